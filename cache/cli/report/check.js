/* The page checks itself when it is opened as report.html#check (tests/trace/browser.sh): a click on everything, and in the document what came of
 * it, before the page counts as loaded. So nothing here waits: what would follow in a task of its own is done at once. */
if (checking) {
    const wrong = [];
    addEventListener('error', event => wrong.push(event.message));
    for (const {id, link, there} of sections) {
        const box = document.getElementById(id);
        link.click();
        for (let round = 0; round < 3; round++) /* what opens has more to open */
            for (const summary of [...box.querySelectorAll('details:not([open]) > summary')].slice(0, 40)) {
                summary.click();
                summary.parentElement.dispatchEvent(new Event('toggle'));
            }
        for (const button of [...box.querySelectorAll('button')].slice(0, 60)) button.click();
        for (const input of box.querySelectorAll('input[type=search]')) {
            input.value = 'a';
            input.dispatchEvent(new Event('input'));
            input.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'}));
            input.value = '';
            input.dispatchEvent(new Event('input'));
        }
        for (const select of box.querySelectorAll('select'))
            for (const option of [...select.options].slice(0, 20)) {
                select.value = option.value;
                select.dispatchEvent(new Event('change'));
            }
        for (const canvas of box.querySelectorAll('canvas'))
            for (const key of ['+', '+', 'ArrowRight', 'n', 'n', 'p', 'Enter', '-', '0']) canvas.dispatchEvent(new KeyboardEvent('keydown', {key, cancelable: true}));
        if (box.textContent.trim().length < 10) wrong.push(id + ' is empty');
        if (/\b(NaN|undefined|Infinity|\[object)\b/.test(box.innerText)) wrong.push(`${id} says ${/.{0,20}\b(NaN|undefined|Infinity|\[object)\b.{0,20}/.exec(box.innerText)[0]}`);
        if (there && box.scrollWidth > document.documentElement.clientWidth) wrong.push(id + ' is wider than the page');
    }
    document.body.append(el('pre', {id: 'checked'}, wrong.length ? 'CHECK FAILED: ' + wrong.join('; ') : `CHECK PASSED: ${sections.map(s => s.id + (s.there ? '' : ' (nothing)')).join(', ')}`));
}
