/* The sections in their order, and the smaller ones of them. */

function overview() {
    const out = [];
    out.push(fields([['made by', 'kiln ' + data.kiln], ...data.sources.map(s => [s.kind, el('code', {}, s.path + (s.version ? ` (kiln ${s.version})` : ''))])]));
    if (data.notes.length) out.push(el('h3', {}, 'What is not here'), el('ul', {class: 'notes'}, data.notes.map(n => el('li', {}, n))));
    if (trace) {
        const all = trace.end - trace.begin;
        out.push(el('h3', {}, 'Where the time went'),
            el('p', {class: 'quiet'}, `From the first event to the last: ${time(all)}. A span lies in others (a launch in its sync point), so shares add up to more than the whole.`),
            table([
                {title: 'What', value: c => text(c[0])},
                {title: 'Spans', value: c => c[1], show: c => count(c[1]), number: true},
                {title: 'Time', value: c => c[2], show: c => time(c[2]), number: true},
                {title: 'Of the whole', value: c => c[2], show: c => percent(c[2] / all), number: true},
            ], trace.categories, {sort: 2, title: 'categories'}));
    }
    return out;
}

function places() {
    if (!trace || !trace.places.length) return null;
    return table([
        {title: 'Place', value: p => p.place, name: true},
        {title: 'Call', value: p => p.call ?? '', show: p => el('code', {}, p.call ?? '')},
        {title: 'Calls', value: p => p.syncs, show: p => count(p.syncs), number: true},
        {title: 'Time', value: p => p.total, show: p => time(p.total), number: true},
        {title: 'Each', value: p => (p.syncs ? p.total / p.syncs : 0), show: p => (p.syncs ? time(p.total / p.syncs) : ''), number: true},
        {title: 'Misses', value: p => p.misses, show: p => count(p.misses), number: true},
    ], trace.places, {sort: 3, title: 'sync points'});
}

/* Misses that the library recorded in the cache directory: the closest entry, and the guard that failed. */
function recorded() {
    const rows = data.recorded ?? [];
    if (!rows.length) return null;
    const when = s => new Date(1000 * s).toISOString().slice(0, 19).replace('T', ' ');
    return [el('h3', {}, 'Recorded in the cache directory'), el('p', {class: 'quiet'}, 'The newest; by all processes that used the directory. Times in UTC.'),
        table([
            {title: 'When', value: r => r.time, show: r => when(r.time)},
            {title: 'By', value: r => r.where},
            {title: 'Reason', value: r => r.reason},
            {title: 'Graph', value: r => r.key, show: r => el('code', {}, r.key.slice(0, 8))},
            {title: 'Expected', value: r => r.guard ?? '', show: r => r.guard ?? 'no program to compare with', name: true},
            {title: 'Found', value: r => r.failure ?? '', name: true},
            {title: 'Asked by', value: r => r.asked_by ?? ''},
        ], rows, {title: 'recorded misses'})];
}

function traced() {
    const rows = (trace?.misses ?? []).map(([ts, reason, place, programs, why]) => ({ts, reason: text(reason), place: text(place), programs, why: text(why)}));
    if (!rows.length) return trace ? el('p', {class: 'good'}, 'None: every look-up found a compiled program.') : null;
    const reasons = new Map();
    for (const row of rows) reasons.set(row.reason, (reasons.get(row.reason) ?? 0) + 1);
    return [
        el('p', {}, [...reasons].map(([reason, n]) => `${reason}: ${count(n)}`).join(', ')),
        table([
            {title: 'When', value: r => r.ts, show: r => time(r.ts - trace.begin), number: true},
            {title: 'Where', value: r => r.place, name: true},
            {title: 'Reason', value: r => r.reason},
            {title: 'Expected and found', value: r => r.why, show: r => r.why || 'not told'},
            {title: 'Programs there were', value: r => r.programs, number: true},
        ], rows, {title: 'misses'})];
}

function misses() {
    const parts = [traced(), recorded()].filter(p => p !== null);
    return parts.length ? parts : null;
}

function cacheStatistics() {
    const c = data.cache;
    if (!c) return null;
    const counters = Object.entries(c.counters).map(([name, value]) => ({name, value}));
    return [fields([['directory', el('code', {}, c.directory)], ['entries', `${count(c.entries)}, ${bytes(c.bytes)}`], ['processes', `${count(c.processes)} left their counters`]]),
        counters.length ? table([{title: 'Counter', value: r => r.name, name: true}, {title: 'Sum', value: r => r.value, show: r => (r.name.endsWith('_us') ? time(1000 * r.value) : count(r.value)), number: true}], counters, {title: 'counters', first: 100}) : null];
}

/* The options that decide about code, of each entry; the command does not know those of a run. */
function options() {
    const rows = programs.filter(p => p.entry).flatMap(p => Object.entries(p.entry.maker).map(([name, value]) => ({entry: p.name, name, value})));
    if (!rows.length) return null;
    const differing = rows.filter(r => rows.some(o => o.name === r.name && o.value !== r.value));
    const first = rows.filter(r => r.entry === rows[0].entry);
    return [fields(first.map(r => [r.name, differing.some(d => d.name === r.name) ? el('span', {class: 'bad'}, 'differs between the entries: see each program') : r.value]))];
}

function machinery() {
    if (!Object.keys(limits).length) return null;
    const rates = {memory: 'memory', products_16: 'products of 16-bit floats', specials: 'special functions', copy: 'copying memory', read: 'reading memory', cache_copy: 'copying in a cache', fma_f32: 'f32 arithmetic', fma_f64: 'f64 arithmetic', wake: 'waking a thread'};
    const shown = ([name, value]) => [rates[name] ?? name, !value ? 'unknown' : name === 'wake' ? time(value) : name === 'specials' ? rate(value / 1e9, 'G/s') : /^(fma|products)/.test(name) ? rate(value / 1e9, 'GFLOP/s') : name === 'threads' ? String(value) : rate(value / 1e9, 'GB/s')];
    return Object.entries(limits).map(([device, of]) => [el('h3', {}, device),
        el('p', {class: 'quiet'}, trace?.limits[device] ? `What it can do, as the traced process knew it${device === 'cpu' ? '' : ': by its clocks'}.` : 'What the machine that made this page can do, as it is kept in its cache directory.'),
        fields(Object.entries(of).map(shown))]);
}

function comparison() {
    const d = data.diff;
    const side = s => `${s.path}: ${s.version ? 'kiln ' + s.version : 'cut short'}, ${count(s.launches)} launches` + (s.lost_events ? `, ${count(s.lost_events)} older events lost` : '') + (s.unreadable ? `, ${count(s.unreadable)} lines unreadable` : '');
    const change = k => (k.median_a && k.median_b ? k.median_b / k.median_a - 1 : NaN);
    const signs = {slower: '▲ slower', faster: '▼ faster', same: '= same', new: '+ new', gone: '− gone', 'too short': '· too short'};
    return [fields([['A', side(d.a)], ['B', side(d.b)]]),
        d.failed ? el('p', {class: 'bad'}, `${count(d.failed)} got slower by more than was allowed.`) : null,
        d.kernels.length ? table([
            {title: 'Kernel', value: k => k.kernel, name: true},
            {title: 'Bytes', value: k => k.bytes, show: k => bytes(k.bytes), number: true},
            {title: 'Launches A', value: k => k.launches_a, show: k => count(k.launches_a), number: true},
            {title: 'B', value: k => k.launches_b, show: k => count(k.launches_b), number: true},
            {title: 'Median A', value: k => k.median_a ?? -1, show: k => (k.median_a === null ? '' : time(1e9 * k.median_a)), number: true},
            {title: 'B', value: k => k.median_b ?? -1, show: k => (k.median_b === null ? '' : time(1e9 * k.median_b)), number: true},
            {title: 'Change', value: k => change(k), show: k => (Number.isFinite(change(k)) ? (change(k) > 0 ? '+' : '') + (100 * change(k)).toFixed(1) + ' %' : ''), number: true},
            {title: '', value: k => k.change, show: k => el('span', {class: {slower: 'bad', faster: 'good'}[k.change]}, signs[k.change] ?? k.change)},
        ], d.kernels, {title: 'compared kernels', first: 200}) : el('p', {class: 'quiet'}, 'Neither trace has kernels.')];
}

document.querySelector('noscript')?.remove();
const NO_TRACE = 'None of the sources is a trace (KILN_TRACE=file.json) that tells it.';
section('overview', 'Overview', '', overview);
if (data.diff) {
    section('comparison', 'Comparison', '', comparison);
} else {
    section('timeline', 'Timeline', NO_TRACE, timeline);
    section('flame', 'Flame graph', NO_TRACE, flame);
    section('kernels', 'Kernels', NO_TRACE, kernelTable);
    section('roofline', 'Roofline', NO_TRACE, roofline);
    section('places', 'Sync points', NO_TRACE, places);
    section('memory', 'Memory', NO_TRACE, memory);
    section('misses', 'Misses', NO_TRACE, misses);
    section('programs', 'Programs', 'None of the sources holds programs: add a folder of dumps (KILN_DUMP=folder) or keys of entries (kiln cache list).', programList);
    section('cache', 'Cache', 'Not told: no entry of a cache directory is among the sources.', cacheStatistics);
    section('options', 'Options', 'Not told: neither a trace nor a dump holds the options of its run; an entry of the cache holds those that decide about code.', options);
    section('machine', 'Machine', 'Not known: it was not measured here, or there is no cache directory (kiln info --measure).', machinery);
}
