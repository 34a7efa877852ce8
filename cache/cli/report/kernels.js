/* Kernels: how fast each ran, held against what the machine can do; the memory's course. */

const kernels = (trace?.kernels ?? []).map(k => ({...k, name: text(k.name), program: text(k.program), device: text(k.device), regime: text(k.regime) || 'not told'}));
const machine = data.machine ?? null;
/* What each device that ran something can do in a second, as the traced process knew it; of the CPU else what is kept where this page was made. */
const limits = {...(machine ? {cpu: machine} : {}), ...(trace?.limits ?? {})};
const devices = [...new Set(kernels.map(k => k.device))].sort();

function kernelTable() {
    if (!kernels.length) return null;
    const total = kernels.reduce((sum, k) => sum + k.total, 0);
    return [
        el('p', {class: 'quiet'}, `${count(kernels.length)} kernels, ${count(kernels.reduce((n, k) => n + k.launches, 0))} launches, ${time(total)} in all. Bytes and flops are those of one launch; `,
            kernels.some(k => k.limit) ? 'the limit is the least time that memory (or the cache, for little), arithmetic and special functions need on the device that ran it, as the traced process reckoned; by the median.' : 'how near they come to the limits of their device the trace does not tell.'),
        table([
            {title: 'Kernel', value: k => k.name, name: true},
            {title: 'Time', value: k => k.total, show: k => time(k.total), number: true},
            {title: 'Share', value: k => k.total, show: k => percent(k.total / total), number: true},
            {title: 'Launches', value: k => k.launches, show: k => count(k.launches), number: true},
            {title: 'Median', value: k => k.median, show: k => time(k.median), number: true},
            {title: 'Least', value: k => k.least, show: k => time(k.least), number: true},
            {title: 'Most', value: k => k.most, show: k => time(k.most), number: true},
            {title: 'Bytes', value: k => k.bytes, show: k => bytes(k.bytes), number: true},
            {title: 'GB/s', value: k => k.bytes / k.median, show: k => rate(k.bytes / k.median, ''), number: true},
            {title: 'GFLOP/s', value: k => k.flops / k.median, show: k => rate(k.flops / k.median, ''), number: true},
            {title: 'Of the limit', value: k => k.limit / k.median, show: k => (k.limit ? percent(k.limit / k.median) : ''), number: true},
            ...(devices.some(d => d !== 'cpu') ? [{title: 'Device', value: k => k.device}] : []),
            {title: 'Threads', value: k => k.threads, number: true},
            {title: 'Regime', value: k => k.regime},
            {title: 'Program', value: k => k.program, show: k => el('code', {title: k.program}, k.program.slice(0, 16))},
        ], kernels, {sort: 1, title: 'kernels'})];
}

/* ---- the roofline: arithmetic per byte against arithmetic per second, both in powers of ten ---- */

/* A mark by regime, told apart by its form. */
function mark(regime, x, y, r) {
    const at = (dx, dy) => `${(x + dx * r).toFixed(1)},${(y + dy * r).toFixed(1)}`;
    if (regime === 'compute') return draw('rect', {x: x - r, y: y - r, width: 2 * r, height: 2 * r});
    if (regime === 'overhead') return draw('polygon', {points: `${at(0, -1.2)} ${at(1.1, .9)} ${at(-1.1, .9)}`});
    if (regime === 'memory' || regime === 'not told') return draw('circle', {cx: x, cy: y, r});
    return draw('polygon', {points: `${at(0, -1.3)} ${at(1.3, 0)} ${at(0, 1.3)} ${at(-1.3, 0)}`});
}
const MARKS = {memory: 'memory', overhead: 'overhead', compute: 'compute', 'another one': 'another'};

/* What a device can do: measured of a CPU (cache/machine.def), by its clocks of a CUDA device (runtime/cuda/cuda_limits.c). */
const PEAKS = [['f32', 'fma_f32'], ['f64', 'fma_f64'], ['16-bit products', 'products_16']];
const SLOPES = [['memory', 'memory'], ['memory, copying', 'copy'], ['memory, reading', 'read'], ['cache, copying', 'cache_copy']];
const known = (rows, device) => rows.map(([name, key]) => [name, (limits[device]?.[key] ?? 0) / 1e9]).filter(p => p[1]);

/* One device's. */
function plot(device, dots) {
    const W = 900, H = 460, L = 60, R = 150, T = 20, B = 46;
    const xs = dots.map(k => k.flops / k.bytes), ys = dots.map(k => k.flops / k.median);
    const peaks = known(PEAKS, device), slopes = known(SLOPES, device), strokes = ['none', '8 4', '2 4'];
    const low = list => Math.floor(Math.log10(Math.min(...list))), high = list => Math.ceil(Math.log10(Math.max(...list)));
    const x0 = Math.min(low(xs), -1), x1 = Math.max(high(xs), 2), y0 = Math.min(low(ys), 0), y1 = Math.max(high([...ys, ...peaks.map(p => p[1])]), y0 + 1);
    const px = v => L + (Math.log10(v) - x0) / (x1 - x0) * (W - L - R), py = v => H - B - (Math.log10(v) - y0) / (y1 - y0) * (H - T - B);
    const picture = draw('svg', {viewBox: `0 0 ${W} ${H}`, class: 'chart', role: 'img', 'aria-label': `roofline plot of the kernels on ${device}`});
    for (let e = x0; e <= x1; e++)
        fill(picture, {}, [draw('line', {class: 'axis', x1: px(10 ** e), x2: px(10 ** e), y1: T, y2: H - B}), draw('text', {x: px(10 ** e), y: H - B + 16, 'text-anchor': 'middle'}, String(10 ** e))]);
    for (let e = y0; e <= y1; e++)
        fill(picture, {}, [draw('line', {class: 'axis', x1: L, x2: W - R, y1: py(10 ** e), y2: py(10 ** e)}), draw('text', {x: L - 6, y: py(10 ** e) + 4, 'text-anchor': 'end'}, String(10 ** e))]);
    fill(picture, {}, [draw('text', {x: (L + W - R) / 2, y: H - 8, 'text-anchor': 'middle'}, 'flops per byte'), draw('text', {x: 8, y: 13}, 'GFLOP/s')]);
    const top = peaks.length ? Math.max(...peaks.map(p => p[1])) : 10 ** y1;
    const inside = v => Math.min(Math.max(v, 10 ** y0), 10 ** y1);
    slopes.forEach(([name, rate_], i) => { /* from where it enters the picture to the highest roof */
        const from = Math.max(10 ** x0, 10 ** y0 / rate_), to = Math.min(10 ** x1, top / rate_);
        if (to <= from) return;
        fill(picture, {}, [draw('line', {class: 'roof', x1: px(from), x2: px(to), y1: py(from * rate_), y2: py(to * rate_), 'stroke-dasharray': strokes[i]})]);
    });
    peaks.forEach(([name, peak], i) => {
        const from = slopes.length ? Math.max(10 ** x0, peak / Math.max(...slopes.map(s => s[1]))) : 10 ** x0;
        fill(picture, {}, [draw('line', {class: 'roof', x1: px(Math.min(from, 10 ** x1)), x2: W - R, y1: py(inside(peak)), y2: py(inside(peak)), 'stroke-dasharray': strokes[i]}),
            draw('text', {x: W - R + 6, y: py(inside(peak)) + (peaks.some(p => p[1] > peak) ? 14 : 0)}, `${name}: ${digits(peak)}`)]);
    });
    const most = Math.max(...dots.map(k => k.total));
    const told = el('div', {class: 'told', 'aria-live': 'polite'}, 'Point at a mark, or step to it with the tab key.');
    dots.forEach((k, i) => {
        const words = `${k.name}: ${digits(ys[i])} GFLOP/s, ${digits(k.bytes / k.median)} GB/s, ${xs[i].toPrecision(3)} flops per byte, median ${time(k.median)}, ${count(k.launches)} launches, regime: ${k.regime}`;
        const shape = mark(k.regime, px(xs[i]), py(inside(ys[i])), 4 + 8 * Math.sqrt(k.total / most));
        const say = () => { told.textContent = words; };
        fill(shape, {class: 'dot', tabindex: i < 60 ? 0 : null, 'aria-label': words, onfocus: say, onpointerenter: say, onclick: say}, [draw('title', {}, words)]);
        picture.append(shape);
    });
    const made = trace.limits[device] ? '' : ', kept on the machine that made this page';
    return [
        devices.length > 1 ? el('h3', {}, device) : null,
        el('p', {class: 'quiet'}, peaks.length ? `The lines are what ${device}${limits[device].threads ? ` with ${count(limits[device].threads)} threads` : ''} can do, ${device === 'cpu' ? 'as measured' : 'by its clocks'}${made}: ` +
            slopes.map(([name, r], i) => `${name} ${digits(r)} GB/s (${['full', 'dashed', 'dotted'][i]})`).join(', ') + '. '
            : `No lines: what ${device} can do the trace does not tell, nor is it kept here (kiln info --measure). `,
            'The larger a mark, the more time all its launches took.'),
        picture, told];
}

function roofline() {
    const dots = kernels.filter(k => k.flops > 0 && k.bytes > 0 && k.median > 0).slice(0, 1500), others = kernels.length - dots.length;
    if (!dots.length) return null;
    return [
        devices.map(device => [device, dots.filter(k => k.device === device)]).filter(d => d[1].length).map(([device, own]) => plot(device, own)),
        el('div', {class: 'legend'}, Object.entries(MARKS).map(([name, regime]) => el('span', {}, draw('svg', {width: 14, height: 12, 'aria-hidden': 'true'}, fill(mark(regime, 7, 6, 4.5), {class: 'dot'}, [])), ' regime: ' + name))),
        others ? el('p', {class: 'quiet'}, `${count(others)} kernels are not in the plot: they compute nothing (copies, sorts) or took no time that could be measured.`) : null];
}

/* ---- memory ---- */

function memory() {
    if (!trace || !trace.memory.length) return null;
    const W = 900, H = 260, L = 80, R = 130, T = 12, B = 30;
    const curves = [['tensors', 'none', 1], ['most so far', '8 4', 2], ['kept for reuse', '2 4', 3], ['programs', '10 3 2 3', 4]];
    const first = trace.memory[0][0], last = Math.max(trace.memory.at(-1)[0], first + 1);
    const top = trace.memory.reduce((m, p) => Math.max(m, p[1], p[2], p[3], p[4]), 1);
    const px = t => L + (t - first) / (last - first) * (W - L - R), py = v => H - B - v / top * (H - T - B);
    const picture = draw('svg', {viewBox: `0 0 ${W} ${H}`, class: 'chart', role: 'img', 'aria-label': 'bytes of tensors, freed memory kept, and programs over time'});
    for (let i = 0; i <= 4; i++)
        fill(picture, {}, [draw('line', {class: 'axis', x1: L, x2: W - R, y1: py(top * i / 4), y2: py(top * i / 4)}), draw('text', {x: L - 6, y: py(top * i / 4) + 4, 'text-anchor': 'end'}, bytes(top * i / 4))]);
    fill(picture, {}, [draw('text', {x: L, y: H - 8}, time(first - trace.begin)), draw('text', {x: W - R, y: H - 8, 'text-anchor': 'end'}, time(last - trace.begin))]);
    const ends = curves.map(([name, dash, k]) => ({name, dash, k, y: py(trace.memory.at(-1)[k])})).sort((a, b) => a.y - b.y);
    ends.forEach((c, i) => { /* names at the right end, none over another */
        c.label = Math.max(c.y + 4, i ? ends[i - 1].label + 13 : 12);
        let path = '';
        for (const p of trace.memory) path += path ? `H${px(p[0]).toFixed(1)}V${py(p[c.k]).toFixed(1)}` : `M${px(p[0]).toFixed(1)} ${py(p[c.k]).toFixed(1)}`;
        fill(picture, {}, [draw('path', {class: 'curve', d: path, 'stroke-dasharray': c.dash}), draw('text', {x: W - R + 6, y: c.label}, c.name)]);
    });
    const rows = trace.places.filter(p => p.live || p.growth);
    return [picture,
        el('h3', {}, 'The largest buffers'),
        trace.buffers.length ? table([
            {title: 'Recorded at', value: b => b.place, name: true},
            {title: 'By', value: b => b.api},
            {title: 'Largest', value: b => b.bytes, show: b => bytes(b.bytes), number: true},
            {title: 'Times', value: b => b.results, show: b => count(b.results), number: true},
        ], trace.buffers, {sort: 2, title: 'largest buffers'}) : el('p', {class: 'quiet'}, 'No result was as large as 64 KiB.'),
        el('h3', {}, 'Where it grew'),
        el('p', {class: 'quiet'}, 'A trace tells how many bytes were live after each sync point: growth is what one evaluation there added at most.'),
        rows.length ? table([
            {title: 'Sync point', value: p => p.place, name: true},
            {title: 'Largest growth', value: p => p.growth, show: p => bytes(p.growth), number: true},
            {title: 'Most live after it', value: p => p.live, show: p => bytes(p.live), number: true},
            {title: 'Calls', value: p => p.syncs, show: p => count(p.syncs), number: true},
        ], rows, {sort: 1, title: 'places by memory'}) : el('p', {class: 'quiet'}, 'No sync point changed it.')];
}
