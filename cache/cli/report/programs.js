/*
 * Programs: their graphs drawn, before and after each pass, what differs marked; kernels, guards, plan as text.
 *
 * A graph comes as the text that kiln prints everywhere (ir/text.c):
 *     graph g(%0: f32[48,32]) {
 *       %1 = reduce_max %0 axes(1) : f32[48]
 *       return %1
 *     }
 *     // %1 train.c:12
 */
const programs = data.programs ?? [];
/* Nodes of a graph that is drawn whole at once, that may be drawn whole where somebody asks for it, that are drawn around one of a large graph. */
const AT_ONCE = 400, MOST_DRAWN = 4000, AROUND = 80;

/* {nodes: by number {ref, op, rest, type, inputs, place}, outputs: numbers} */
function parseGraph(source) {
    const nodes = new Map(), outputs = [];
    const add = (ref, op, rest, type) => {
        const inputs = [...rest.matchAll(/%(\d+)/g)].map(m => m[1]).filter(r => nodes.has(r));
        nodes.set(ref, {ref, op, rest, type, inputs, place: '', level: 0});
    };
    for (const line of source.split('\n')) {
        let m;
        if ((m = /^graph [^(]*\((.*)\) \{/.exec(line))) {
            for (const input of m[1].matchAll(/%(\d+): ([a-z]+\d*\[[^\]]*\][^,%]*)/g)) add(input[1], 'input', '', input[2].trim());
        } else if ((m = /^\s+%(\d+) = (\S+) ?(.*) : (\S+)\s*$/.exec(line))) {
            add(m[1], m[2], m[3], m[4]);
        } else if ((m = /^\s+return (.*)$/.exec(line))) {
            outputs.push(...[...m[1].matchAll(/%(\d+)/g)].map(x => x[1]).filter(r => nodes.has(r)));
        } else if ((m = /^\/\/ %(\d+) (.*)$/.exec(line)) && nodes.has(m[1])) {
            nodes.get(m[1]).place = m[2];
        }
    }
    return {nodes, outputs};
}

/* Numbers values: equal op, attributes, type and inputs give one number. `known`: shared by the graphs that are compared. */
function number(graph, known) {
    for (const node of graph.nodes.values()) {
        const words = [node.op, node.op === 'input' ? node.ref : node.rest.replace(/%(\d+)/g, (_, r) => '%' + (graph.nodes.get(r)?.value ?? r)), node.type].join(' ');
        if (!known.has(words)) known.set(words, known.size);
        node.value = known.get(words);
    }
    return new Set([...graph.nodes.values()].map(n => n.value));
}

function usersOf(graph) {
    const users = new Map();
    for (const node of graph.nodes.values())
        for (const r of node.inputs) users.set(r, [...(users.get(r) ?? []), node.ref]);
    return users;
}

/* What lies nearest to a node, as a graph of its own. The way does not lead through what many read: a constant would bring all of them. */
function around(graph, centre, most) {
    const MANY = 12, users = usersOf(graph), taken = new Set([centre]);
    for (let edge = [centre]; edge.length && taken.size < most;) {
        const next = [];
        for (const r of edge)
            for (const near of [...graph.nodes.get(r).inputs, ...(users.get(r) ?? [])])
                if (!taken.has(near) && taken.size < most) {
                    taken.add(near);
                    if ((users.get(near) ?? []).length <= MANY) next.push(near);
                }
        edge = next;
    }
    const nodes = new Map();
    for (const [ref, node] of graph.nodes) {
        if (!taken.has(ref)) continue;
        const inputs = node.inputs.filter(r => taken.has(r)), seen = (users.get(ref) ?? []).filter(r => taken.has(r));
        nodes.set(ref, {...node, inputs, hidden: node.inputs.length - inputs.length + (users.get(ref) ?? []).length - seen.length});
    }
    return {nodes, outputs: graph.outputs.filter(r => taken.has(r))};
}

/* Rows by the longest way from an input; within a row by the mean place of what a node reads, and once more by what reads it. */
function layout(graph) {
    const rows = [], users = usersOf(graph);
    for (const node of graph.nodes.values())
        node.level = node.inputs.reduce((l, r) => Math.max(l, graph.nodes.get(r).level + 1), 0);
    for (const node of [...graph.nodes.values()].reverse()) /* leaves go down to who needs them */
        if (!node.inputs.length && users.has(node.ref)) node.level = Math.min(...users.get(node.ref).map(r => graph.nodes.get(r).level)) - 1;
    for (const node of graph.nodes.values()) (rows[node.level] ??= []).push(node);
    const shown = rows.filter(Boolean);
    const spread = () => shown.forEach(row => row.forEach((node, i) => { node.x = i - (row.length - 1) / 2; }));
    const mean = list => (list.length ? list.reduce((s, r) => s + graph.nodes.get(r).x, 0) / list.length : null);
    const arrange = (row, near) => {
        const wish = new Map(row.map(n => [n, mean(near(n)) ?? n.x]));
        row.sort((a, b) => wish.get(a) - wish.get(b));
        let right = -Infinity;
        for (const n of row) right = n.x = Math.max(wish.get(n), right + 1);
        const shift = row.reduce((s, n) => s + wish.get(n) - n.x, 0) / row.length;
        for (const n of row) n.x += shift;
    };
    spread();
    for (let round = 0; round < 4; round++) {
        shown.forEach(row => arrange(row, n => n.inputs));
        [...shown].reverse().forEach(row => arrange(row, n => users.get(n.ref) ?? []));
    }
    return shown;
}

/* `marks`: value -> "new" or "gone". `choose`: of a part of a graph, whose `centre` a click moves. */
function drawGraph(graph, marks, told, centre, choose) {
    const rows = layout(graph), W = 168, H = 66, BOX = 148, TALL = 38, PAD = 14;
    let left = Infinity, right = -Infinity;
    rows.forEach((row, level) => row.forEach(n => {
        n.y = PAD + level * H;
        left = Math.min(left, n.x);
        right = Math.max(right, n.x);
    }));
    const px = n => PAD + (n.x - left) * W, width = (right - left) * W + BOX + 2 * PAD, height = (rows.length - 1) * H + TALL + 2 * PAD + 16;
    const picture = draw('svg', {class: 'graph', width, height, viewBox: `0 0 ${width} ${height}`, role: 'group', 'aria-label': `graph of ${graph.nodes.size} nodes`});
    for (const node of graph.nodes.values())
        for (const r of node.inputs) {
            const from = graph.nodes.get(r), x1 = px(from) + BOX / 2, y1 = from.y + TALL, x2 = px(node) + BOX / 2, y2 = node.y;
            picture.append(draw('path', {class: 'edge', d: `M${x1} ${y1}C${x1} ${y1 + 18} ${x2} ${y2 - 18} ${x2} ${y2}`}));
        }
    const outputs = new Set(graph.outputs);
    for (const node of graph.nodes.values()) {
        const state = marks?.get(node.value) ?? '', x = px(node);
        const words = `%${node.ref} ${node.op} ${node.rest} : ${node.type}` + (node.place ? `, recorded at ${node.place}` : '') + (outputs.has(node.ref) ? '; an output' : '') + (state ? `; ${state}` : '') +
            (node.hidden ? `; ${count(node.hidden)} more that it reads or that read it` : '');
        const say = () => { told.textContent = words; };
        const cut = (s, n) => (s.length > n ? s.slice(0, n - 1) + '…' : s);
        const sign = state === 'new' ? '+ ' : state === 'gone' ? '− ' : '';
        picture.append(draw('g', {class: `node ${state}${node.ref === centre ? ' centre' : ''}`, tabindex: 0, 'aria-label': words, onfocus: say, onpointerenter: say, onclick: () => (choose ?? say)(node.ref)}, draw('title', {}, words),
            node.op === 'input' ? draw('ellipse', {cx: x + BOX / 2, cy: node.y + TALL / 2, rx: BOX / 2, ry: TALL / 2}) : draw('rect', {x, y: node.y, width: BOX, height: TALL, rx: 3}),
            draw('text', {x: x + BOX / 2, y: node.y + 16, 'text-anchor': 'middle'}, cut(`${sign}%${node.ref} ${node.op}`, 21)),
            draw('text', {x: x + BOX / 2, y: node.y + 30, 'text-anchor': 'middle'}, cut(node.type, 21)),
            outputs.has(node.ref) ? draw('text', {x: x + BOX / 2, y: node.y + TALL + 12, 'text-anchor': 'middle'}, '▼ output') : null,
            node.hidden ? draw('text', {x: x + BOX - 4, y: node.y + 12, 'text-anchor': 'end'}, '⋯') : null));
    }
    return el('div', {class: 'graphbox'}, picture);
}

/* A large graph, by its parts: around one node, which a search or a click chooses; whole where somebody asks for it. */
function exploreGraph(graph, marks, told, first) {
    const box = el('div'), all = [...graph.nodes.values()], words = n => `%${n.ref} ${n.op} ${n.rest} : ${n.type} ${n.place}`.toLowerCase();
    let centre = first;
    const draws = () => {
        box.replaceChildren(drawGraph(around(graph, centre, AROUND), marks, told, centre, choose));
        soon(() => { /* once it is laid out */
            const view = box.firstChild, at = box.querySelector('.centre')?.getBBox();
            if (at) view.scrollTo(at.x + at.width / 2 - view.clientWidth / 2, at.y + at.height / 2 - view.clientHeight / 2);
        });
    };
    const choose = ref => {
        centre = ref;
        const node = graph.nodes.get(ref);
        told.textContent = `%${ref} ${node.op} ${node.rest} : ${node.type}` + (node.place ? `, recorded at ${node.place}` : '');
        draws();
    };
    const search = el('input', {type: 'search', placeholder: 'find a node', 'aria-label': 'find a node by number, op, shape or place; Enter goes on to the next', onkeydown: event => {
        if (event.key !== 'Enter' || !search.value) return;
        const from = all.findIndex(n => n.ref === centre) + 1, wanted = search.value.toLowerCase();
        const found = [...all.slice(from), ...all.slice(0, from)].find(n => words(n).includes(wanted));
        if (found) choose(found.ref);
        else told.textContent = `No node has “${search.value}”.`;
    }});
    const whole = all.length <= MOST_DRAWN ? el('button', {class: 'tool', type: 'button', onclick: () => box.replaceChildren(drawGraph(graph, marks, told))}, `draw all ${count(all.length)}`) : null;
    draws();
    return [el('p', {class: 'quiet'}, `Drawn are the ${AROUND} nodes nearest to one (a thick frame) of ${count(all.length)}; a click on another one goes there. ⋯: there is more around it.`),
        el('div', {class: 'bar'}, search, whole), box];
}

/* Graphs by pass: one is drawn, with what is new against the one before; what is gone is listed. */
function passes(program) {
    const graphs = program.graphs.filter(g => g.text !== null);
    if (!graphs.length) return el('p', {class: 'quiet'}, program.graphs.length ? 'Its graphs are left out: the page has no room for them.' : 'The source holds no graph of it.');
    const known = new Map(), parsed = graphs.map(g => parseGraph(g.text)), values = parsed.map(g => number(g, known));
    const view = el('div');
    const title = i => (i === 0 ? graphs[0].pass === 'recorded' ? 'as recorded' : graphs[0].pass : 'after ' + graphs[i].pass) + ` (${count(parsed[i].nodes.size)} nodes)`;
    const choice = el('select', {'aria-label': 'graph of which pass', onchange: () => show(Number(choice.value))}, graphs.map((_, i) => el('option', {value: i}, title(i))));
    function show(i) {
        const told = el('div', {class: 'told', 'aria-live': 'polite'}, 'Point at a node, or step to it with the tab key: its shape, dtype and place.');
        const before = i > 0 ? parsed[i - 1] : null, marks = new Map();
        const fresh = before ? [...parsed[i].nodes.values()].filter(n => !values[i - 1].has(n.value)) : [];
        const gone = before ? [...before.nodes.values()].filter(n => !values[i].has(n.value)) : [];
        fresh.forEach(n => marks.set(n.value, 'new'));
        const line = n => `${n.op === 'input' ? 'input' : n.op + ' ' + n.rest} : ${n.type}`;
        const nodes = [...parsed[i].nodes.keys()], first = fresh[0]?.ref ?? parsed[i].outputs[0] ?? nodes[0];
        view.replaceChildren(
            el('p', {class: 'quiet'}, before ? `${count(fresh.length)} new (+, a thick frame; what reads a new one counts as new), ${count(gone.length)} gone (−), against the graph before this pass.` : 'Before any pass.'),
            ...(nodes.length <= AT_ONCE ? [drawGraph(parsed[i], marks, told)] : exploreGraph(parsed[i], marks, told, first)), told,
            gone.length || fresh.length ? el('details', {}, el('summary', {}, 'What changed'), el('pre', {class: 'diff'},
                gone.map(n => [el('span', {class: 'minus'}, '− ' + line(n)), '\n']), fresh.map(n => [el('span', {class: 'plus'}, '+ ' + line(n)), '\n']))) : '',
            el('details', {}, el('summary', {}, 'As text'), el('pre', {}, graphs[i].text)));
    }
    show(0);
    return [el('div', {class: 'bar'}, choice), view, graphs.length < 2 ? el('p', {class: 'quiet'}, 'No pass changed it.') : null];
}

function kernelTexts(program) {
    const body = k => (k.text ?? '').replace(/^[^]*?\n(?=kernel )/, '');
    return program.kernels.map((k, i) => folded(`kernel ${i}: ${k.name ?? '(no name)'}` + (k.code_bytes ? `, ${bytes(k.code_bytes)} of code` : ''), () => [
        k.text ? el('pre', {}, body(k)) : el('p', {class: 'quiet'}, 'Its text is not there.'),
        [['ir', 'LLVM IR'], ['assembly', 'Assembly'], ['ptx', 'PTX']].filter(([key]) => key in k).map(([key, name]) =>
            (k[key] ? folded(name, () => el('pre', {}, k[key])) : el('p', {class: 'quiet'}, `${name}: left out, the page has no room for it.`))),
    ]));
}

function guardList(program) {
    const guards = program.entry ? program.entry.guards : [...(program.plan ?? '').matchAll(/^ {2}guard (.*?) {3}\(asked by (.*)\)$/gm)].map(m => ({guard: m[1], kind: '', asked_by: m[2]}));
    if (!guards.length) return el('p', {class: 'quiet'}, program.entry || program.plan ? 'None: it is right for every call of its graph.' : 'Not told.');
    return table([
        {title: 'Guard', value: g => g.guard, name: true},
        {title: 'Kind', value: g => g.kind},
        {title: 'Asked by', value: g => g.asked_by},
    ], guards, {title: 'guards'});
}

function fusionLines(program) {
    if (!program.fusion) return el('p', {class: 'quiet'}, program.kind === 'entry' ? 'An entry of the cache does not tell why; a dump does (KILN_DUMP=folder).' : 'Not told.');
    const lines = program.fusion.split('\n').filter(Boolean);
    const kinds = {'not fused': '✗ not fused', stored: '■ stored', kernel: '✓ fused'};
    const rows = lines.map(line => ({kind: Object.keys(kinds).find(k => line.startsWith(k)) ?? '', line}));
    return table([{title: 'Decision', value: r => r.kind, show: r => kinds[r.kind] ?? ''}, {title: 'What', value: r => r.line.replace(/^(not fused|stored): /, ''), name: true}], rows, {title: 'fusion decisions', first: 100});
}

function programView(program) {
    const e = program.entry;
    return [
        e ? fields([['entry', el('code', {}, e.entry)], ['needed by', e.where || 'not told'], ['shapes', e.shapes || 'none'], ['sizes', e.sizes], ['device', e.device], ['compiled in', time(1e9 * e.compile_seconds)],
            ...(e.gradient ? [['gradient', e.gradient]] : [])]) : null,
        el('h3', {}, 'Graph, before and after each pass'),
        program.kind === 'entry' ? el('p', {class: 'quiet'}, 'An entry holds the graph as recorded and as it was after all passes; a dump (KILN_DUMP=folder) has one for each pass, and places in the source.') : null,
        passes(program),
        el('h3', {}, 'Fusion'), fusionLines(program),
        el('h3', {}, 'Kernels'), program.kernels.length ? kernelTexts(program) : el('p', {class: 'quiet'}, 'None is in the source: kernels that were there already are not dumped again, and some steps have none.'),
        el('h3', {}, 'Guards'), guardList(program),
        el('h3', {}, 'Launch plan'), el('pre', {}, e?.plan ?? program.plan ?? 'not told'),
        e ? folded('Made by and for: options and target', () => fields(Object.entries(e.maker))) : null,
    ];
}

function programList() {
    if (!programs.length) return null;
    const title = p => [el('code', {}, p.name), ` ${p.kernels.map(k => k.name).filter(Boolean).slice(0, 4).join(', ')}${p.kernels.length > 4 ? ', …' : ''}`];
    const box = el('div'), more = el('button', {class: 'tool', type: 'button'});
    let shown = 50, wanted = '';
    const words = p => [p.name, ...p.kernels.map(k => k.name ?? ''), p.graphs[0]?.text ?? ''].join(' ').toLowerCase();
    function update() {
        const list = wanted ? programs.filter(p => words(p).includes(wanted)) : programs;
        box.replaceChildren(...list.slice(0, shown).map((p, i) => {
            const one = folded(title(p), () => programView(p));
            one.open = programs.length === 1 && i === 0;
            return one;
        }));
        more.hidden = list.length <= shown;
        more.textContent = `${count(list.length - shown)} more`;
    }
    more.addEventListener('click', () => {
        shown *= 4;
        update();
    });
    const search = el('input', {type: 'search', placeholder: 'find', 'aria-label': 'find a program, by name, kernel or op', oninput: () => {
        wanted = search.value.toLowerCase();
        update();
    }});
    update();
    return [el('p', {class: 'quiet'}, `${programs.length === 1 ? 'One program, which' : `${count(programs.length)} programs. Each`} opens to its graphs, fusion, kernels, guards and launch plan.`), programs.length > 12 ? el('div', {class: 'bar'}, search) : null, box, more];
}
