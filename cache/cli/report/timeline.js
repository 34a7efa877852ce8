/* The timeline and the flame graph: bars in rows on a canvas, along time or along sums of time. One view for both: zoom, search, keyboard. */

const HUES = {record: 190, sync: 215, 'look-up': 260, guards: 280, compile: 25, pass: 45, fusion: 60, code: 10, disk: 300, bind: 165, launch: 130, device: 110,
    part: 95, copy: 75, wait: 0, interpret: 330};
/* Fill for a category; waiting is grey. */
const hue = category => (category === 'wait' ? `hsl(220 6% ${color('--tint')})` : `hsl(${HUES[category] ?? 235} 55% ${color('--tint')})`);

/* How deep each span of a lane lies in others: by a stack of their ends. Spans come sorted by lane, then time, the longer first. */
function nest(spans) {
    const lanes = new Map();
    for (const [lane, ts, dur, name, category, detail] of spans) {
        if (!lanes.has(lane)) lanes.set(lane, {id: lane, bars: [], stack: [], depth: 0});
        const at = lanes.get(lane);
        while (at.stack.length && at.stack.at(-1).to <= ts) at.stack.pop();
        const bar = {from: ts, to: ts + dur, row: at.stack.length, name: text(name), category: text(category), detail: text(detail), parent: at.stack.at(-1)};
        at.stack.push(bar);
        at.bars.push(bar);
        at.depth = Math.max(at.depth, at.stack.length);
    }
    return [...lanes.values()];
}

/* Equal paths of names merged, side by side, the longest first: what took time, whenever it was. */
function merge(lanes) {
    const root = {kids: new Map(), total: 0, n: 0};
    for (const lane of lanes)
        for (const bar of lane.bars) {
            const above = bar.parent ? bar.parent.merged : root;
            const key = bar.category + '\0' + bar.name;
            if (!above.kids.has(key)) above.kids.set(key, {kids: new Map(), name: bar.name, category: bar.category, total: 0, n: 0});
            bar.merged = above.kids.get(key);
            bar.merged.total += bar.to - bar.from;
            bar.merged.n++;
        }
    const bars = [];
    const place = (node, from, row) => {
        for (const kid of [...node.kids.values()].sort((a, b) => b.total - a.total)) {
            bars.push({from, to: from + kid.total, row, name: kid.name, category: kid.category, detail: `${count(kid.n)} times`});
            place(kid, from, row + 1);
            from += kid.total;
        }
    };
    place(root, 0, 0);
    return bars;
}

/* groups: {title, bars, depth}. */
function barView(groups, label, alongTime) {
    const ROW = 18, TITLE = 16, AXIS = 20;
    const bars = [], titles = [];
    let y = AXIS;
    for (const group of groups) {
        if (group.title) {
            titles.push({y, text: group.title});
            y += TITLE;
        }
        for (const bar of group.bars) bars.push({...bar, y: y + bar.row * ROW});
        y += group.depth * ROW + 6;
    }
    const height = y + 4;
    const least = bars.reduce((m, b) => Math.min(m, b.from), Infinity), most = bars.reduce((m, b) => Math.max(m, b.to), -Infinity);
    let from = least, to = Math.max(most, least + 1), chosen = -1, found = [];
    const canvas = el('canvas', {tabindex: 0, role: 'img', 'aria-label': label + '. Keys: left and right move, plus and minus zoom, n and p step, 0 shows all.'});
    canvas.style.height = height + 'px';
    const told = el('div', {class: 'told', 'aria-live': 'polite'}, 'Click a bar, or press n, to see what it is.');
    const search = el('input', {type: 'search', placeholder: 'find by name', 'aria-label': 'find in ' + label});
    const x = t => (t - from) / (to - from) * canvas.clientWidth;

    function ruler(c, width) {
        const step = 10 ** Math.floor(Math.log10((to - from) / 4 || 1)), each = [1, 2, 5, 10].map(k => k * step).find(s => (to - from) / s <= Math.max(2, width / 110));
        c.fillStyle = color('--quiet');
        c.strokeStyle = color('--line');
        for (let t = Math.ceil((from - least) / each) * each; t <= to - least; t += each) {
            const at = Math.round(x(t + least)) + .5;
            c.beginPath();
            c.moveTo(at, 0);
            c.lineTo(at, height);
            c.stroke();
            c.fillText(t === 0 ? '0' : time(t), at + 3, 13);
        }
    }
    function paint() {
        const width = canvas.clientWidth, scale = window.devicePixelRatio || 1;
        if (!width) return;
        canvas.width = width * scale;
        canvas.height = height * scale;
        const c = canvas.getContext('2d'), ink = color('--ink'), fills = new Map(), mark = color('--mark'), accent = color('--accent');
        c.scale(scale, scale);
        c.font = '11px ' + (color('--mono') || 'monospace');
        ruler(c, width);
        c.fillStyle = color('--quiet');
        for (const title of titles) c.fillText(title.text, 4, title.y + 12);
        const hits = new Set(found);
        bars.forEach((bar, i) => {
            if (bar.to < from || bar.from > to) return;
            const left = Math.max(-2, x(bar.from)), right = Math.min(width + 2, x(bar.to)), w = Math.max(right - left, .7);
            if (!fills.has(bar.category)) fills.set(bar.category, hue(bar.category));
            c.fillStyle = hits.has(i) ? mark : fills.get(bar.category);
            c.fillRect(left, bar.y, w, ROW - 2);
            if (i === chosen || hits.has(i)) {
                c.strokeStyle = i === chosen ? accent : ink;
                c.lineWidth = i === chosen ? 2 : 1;
                c.strokeRect(left + .5, bar.y + .5, Math.max(w - 1, 1), ROW - 3);
            }
            if (w > 24) {
                c.fillStyle = ink;
                const room = Math.floor((w - 6) / 6.7), name = bar.name.length > room ? bar.name.slice(0, Math.max(room - 1, 0)) + '…' : bar.name;
                c.fillText(name, Math.max(left, 0) + 3, bar.y + 12);
            }
        });
    }
    let waiting = false;
    function later() {
        if (waiting) return;
        waiting = true;
        soon(() => {
            waiting = false;
            paint();
        });
    }
    function show(a, b) {
        const width = Math.min(Math.max(b - a, 10), most - least || 1);
        from = Math.min(Math.max(a, least), most - width);
        to = from + width;
        later();
    }
    const zoom = (factor, at = (from + to) / 2) => show(at - (at - from) * factor, at + (to - at) * factor);
    const move = part => show(from + part * (to - from), to + part * (to - from));
    function choose(i, look) {
        chosen = i;
        const bar = bars[i];
        if (!bar) return later();
        told.replaceChildren(el('b', {}, bar.name), ` — ${bar.category}, ${time(bar.to - bar.from)}` + (alongTime ? `, begins at ${time(bar.from - least)}` : '') +
            (bar.detail ? `; ${bar.detail}` : ''));
        if (look && (bar.to < from || bar.from > to)) show(bar.from - (to - from) / 2, bar.from + (to - from) / 2);
        later();
    }
    /* n, p: the next bar that was found, or the next of all. */
    function step(by) {
        const list = found.length ? found : bars.map((_, i) => i);
        if (!list.length) return;
        const at = list.indexOf(chosen);
        choose(list[(at < 0 && by < 0 ? list.length - 1 : at + by + list.length) % list.length], true);
    }
    const keys = {ArrowLeft: () => move(-.25), ArrowRight: () => move(.25), a: () => move(-.25), d: () => move(.25), '+': () => zoom(.5), '=': () => zoom(.5), w: () => zoom(.5),
        '-': () => zoom(2), s: () => zoom(2), 0: () => show(least, most), n: () => step(1), p: () => step(-1),
        Enter: () => bars[chosen] && show(bars[chosen].from, bars[chosen].to)};
    canvas.addEventListener('keydown', event => {
        if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
        event.preventDefault();
        keys[event.key]();
    });
    canvas.addEventListener('wheel', event => {
        if (!event.ctrlKey && !event.shiftKey) return; /* the page scrolls */
        event.preventDefault();
        zoom(event.deltaY + event.deltaX > 0 ? 1.25 : .8, from + event.offsetX / canvas.clientWidth * (to - from));
    }, {passive: false});
    let held = null;
    canvas.addEventListener('pointerdown', event => {
        held = {x: event.offsetX, from, moved: false};
    });
    canvas.addEventListener('pointermove', event => {
        if (!held || !event.buttons) return;
        const by = event.offsetX - held.x;
        held.moved ||= Math.abs(by) > 4;
        if (held.moved) show(held.from - by / canvas.clientWidth * (to - from), held.from - by / canvas.clientWidth * (to - from) + (to - from));
    });
    canvas.addEventListener('pointerup', event => {
        if (held && !held.moved) {
            const t = from + event.offsetX / canvas.clientWidth * (to - from), slack = 2 * (to - from) / canvas.clientWidth;
            choose(bars.findLastIndex(b => event.offsetY >= b.y && event.offsetY < b.y + ROW && t >= b.from - slack && t <= b.to + slack), false);
        }
        held = null;
    });
    canvas.addEventListener('dblclick', () => keys.Enter());
    search.addEventListener('input', () => {
        const wanted = search.value.toLowerCase();
        found = wanted ? bars.flatMap((b, i) => ((b.name + ' ' + b.detail + ' ' + b.category).toLowerCase().includes(wanted) ? [i] : [])) : [];
        told.textContent = wanted ? `${count(found.length)} found` : '';
        later();
    });
    search.addEventListener('keydown', event => {
        if (event.key === 'Enter') step(event.shiftKey ? -1 : 1);
    });
    new ResizeObserver(later).observe(canvas);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', later);
    matchMedia('print').addEventListener('change', paint);
    const tool = (name, title, act) => el('button', {class: 'tool', type: 'button', title, 'aria-label': title, onclick: act}, name);
    const categories = [...new Set(bars.map(b => b.category))];
    return [
        el('div', {class: 'bar'}, search, tool('+', 'zoom in', () => zoom(.5)), tool('−', 'zoom out', () => zoom(2)), tool('◀', 'earlier', () => move(-.25)),
            tool('▶', 'later', () => move(.25)), tool('all', 'show all', () => show(least, most)), tool('previous', 'previous bar', () => step(-1)), tool('next', 'next bar', () => step(1))),
        canvas, told,
        el('div', {class: 'legend'}, categories.map(c => el('span', {}, el('i', {style: `background: hsl(${HUES[c] ?? 235} ${c === 'wait' ? '6%' : '55%'} var(--tint))`}), c)))];
}

function timeline() {
    if (!trace || !trace.spans.length) return null;
    const names = new Map(trace.lanes), lanes = nest(trace.spans);
    for (const lane of lanes) lane.title = names.get(lane.id) ?? 'lane ' + lane.id;
    const help = el('p', {class: 'quiet help'}, 'With the timeline in focus: ', el('kbd', {}, '← →'), ' move, ', el('kbd', {}, '+ −'), ' zoom, ', el('kbd', {}, 'n p'), ' step from bar to bar or from find to find, ',
        el('kbd', {}, 'Enter'), ' fills the width with a bar, ', el('kbd', {}, '0'), ' shows all. Ctrl and the wheel zoom, too.');
    return [barView(lanes, 'timeline', true), help];
}
function flame() {
    if (!trace || !trace.spans.length) return null;
    const bars = merge(nest(trace.spans)), depth = bars.reduce((m, b) => Math.max(m, b.row + 1), 0);
    return [el('p', {class: 'quiet'}, 'The same spans, those of equal names added up, all threads together: what lies below a bar happened in it.'),
        barView([{bars, depth}], 'flame graph', false)];
}
