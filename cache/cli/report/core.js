'use strict';
/* What every section uses: the data, elements, quantities, tables. Text comes into the page as text only, never as markup. */
const data = JSON.parse(document.getElementById('data').textContent);
const text = index => data.strings[index] ?? '';
const trace = data.trace ?? null;
const checking = location.hash === '#check'; /* check.js */
const soon = checking ? work => work() : work => requestAnimationFrame(work);

function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes ?? {})) {
        if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
        else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? '' : value);
    }
    for (const child of children.flat(Infinity))
        if (child !== null && child !== undefined) node.append(child instanceof Node ? child : document.createTextNode(String(child)));
    return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) => fill(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);
const color = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/* ---- quantities ---- */

const digits = x => (x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toFixed(2));
function scaled(value, units, step) {
    let i = 0;
    while (Math.abs(value) >= step && i + 1 < units.length) {
        value /= step;
        i++;
    }
    return (i === 0 ? String(Math.round(value)) : (value < 0 ? '-' : '') + digits(Math.abs(value))) + ' ' + units[i];
}
const time = ns => scaled(ns, ['ns', 'µs', 'ms', 's'], 1000);
const bytes = n => scaled(n, ['B', 'KiB', 'MiB', 'GiB', 'TiB'], 1024);
const count = n => Math.round(n).toLocaleString('en').replaceAll(',', '\u202f');
const rate = (n, unit) => (Number.isFinite(n) ? digits(n) + ' ' + unit : '');
const percent = x => (Number.isFinite(x) ? (100 * x).toFixed(x < 0.1 ? 1 : 0) + ' %' : '');

/* ---- sections ---- */

const main = document.getElementById('main');
const sections = [];
/* `build` gives the section's content; null: the sources hold nothing of it, and `missing` says so. */
function section(id, title, missing, build) {
    const content = build();
    const link = el('a', {href: '#' + id}, title);
    document.getElementById('nav').append(link);
    main.append(el('section', {id}, el('h2', {}, title), content ?? el('p', {class: 'quiet'}, missing)));
    sections.push({id, link, there: content !== null});
}

/* ---- tables ---- */

/* columns: {title, value(row), show(row)?, number?, name?}; sorted by a click on a title; the first rows, and more on demand. */
function table(columns, rows, options = {}) {
    let sorted = options.sort ?? -1, down = true, shown = options.first ?? 50, wanted = '';
    const head = el('tr'), body = el('tbody'), more = el('button', {class: 'tool', type: 'button'});
    const search = rows.length > 12 ? el('input', {type: 'search', placeholder: 'find', 'aria-label': 'find in ' + (options.title ?? 'table')}) : null;
    columns.forEach((column, i) => head.append(el('th', {class: column.number ? 'number' : null, scope: 'col'},
        el('button', {type: 'button', onclick: () => {
            down = sorted === i ? !down : column.number === true;
            sorted = i;
            update();
        }}, column.title))));
    function update() {
        let list = rows;
        if (wanted) list = list.filter(row => columns.some(c => String(c.value(row)).toLowerCase().includes(wanted)));
        if (sorted >= 0) {
            const value = columns[sorted].value, order = down ? -1 : 1;
            list = [...list].sort((a, b) => (value(a) < value(b) ? -order : value(a) > value(b) ? order : 0));
        }
        [...head.children].forEach((th, i) => th.setAttribute('aria-sort', i !== sorted ? 'none' : down ? 'descending' : 'ascending'));
        body.replaceChildren(...list.slice(0, shown).map(row => el('tr', {}, columns.map(c => {
            const cell = c.show ? c.show(row) : c.value(row);
            return el('td', {class: c.number ? 'number' : c.name ? 'name' : null}, cell);
        }))));
        more.hidden = list.length <= shown;
        more.textContent = `${count(list.length - shown)} more`;
    }
    more.addEventListener('click', () => {
        shown *= 4;
        update();
    });
    search?.addEventListener('input', () => {
        wanted = search.value.toLowerCase();
        update();
    });
    update();
    return [search ? el('div', {class: 'bar'}, search) : null, el('div', {class: 'scroll'}, el('table', {}, el('thead', {}, head), body)), more];
}
const fields = pairs => el('dl', {}, pairs.map(([name, value]) => [el('dt', {}, name), el('dd', {}, value)]));
const folded = (title, build) => {
    const box = el('details', {}, el('summary', {}, title));
    box.addEventListener('toggle', () => {
        if (box.open && box.children.length === 1) fill(box, {}, [build()]);
    });
    return box;
};
