/*
 * The matrix op x dtype x shape x layout x mode.
 *
 *   check(case)
 *     data of the inputs -> interp on plain copies -> wanted outputs
 *     for jit and eager, for some layouts of the operands: run, compare
 *
 * Leaves out: two layouts of each case are tried; which is the second turns with the number of the case and with the round
 * (support/slice.h), so that a table of cases sees all of them, and each case in time. On a device an operand is a dense copy, so only the
 * layouts that are views differ there, and one is tried; eager mode, whose kernels are mostly those of jit mode, every third time.
 */
#include "tests/differential/layouts.h"
#include "tests/differential/result.h"
#include "tests/support/slice.h"
#include "tests/support/vectors.h"
#include "tests/support/stats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Is it what the case says that recording and computing come to? */
static bool as_expected(const Case *c, const char *how, const Result *r)
{
    if (r->status == KILN_OK && r->n)
        return true;
    bool recording = strcmp(r->step, "recording") == 0;
    if (recording && r->status != KILN_OK && r->status == c->refused)
        return true;
    report(c, how, "%s failed: %s", r->step, r->message);
    return false;
}

static bool wanted_result(const Case *c, void *const *data, Result *wanted)
{
    *wanted = case_by_interp(c, data);
    bool ok = as_expected(c, "interp", wanted);
    if (ok && c->refused != KILN_OK && wanted->n) {
        report(c, "interp", "should be refused (%s) but is not", kiln_status_name(c->refused));
        ok = false;
    }
    if (ok && c->out_known && wanted->n && wanted->out[0].dtype != c->out) {
        report(c, "interp", "dtype %s, expected %s", kiln_dtype_name(wanted->out[0].dtype), kiln_dtype_name(c->out));
        ok = false;
    }
    return ok;
}

/* One jit or eager run with the given layouts. */
static void run(const Case *c, const char *mode, const Layout *layouts, void *const *data, const Result *wanted)
{
    char how[160];
    int n = snprintf(how, sizeof how, "%s", mode);
    for (int i = 0; i < c->n_in; i++)
        n += snprintf(how + n, sizeof how - (size_t)n, ", %s", layout_names[layouts[i]]);
    case_at_hand(c, how);
    set_option("mode", mode);
    set_option("math", c->tolerance.relative > 0 ? "fast" : "strict");

    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *in[MAX_IN] = {0};
    Placed placed[MAX_IN] = {{0}};
    for (int i = 0; i < c->n_in; i++) {
        placed[i] = place(c->in[i].dtype, c->in[i].shape, data[i], layouts[i]);
        in[i] = placed[i].tensor;
    }
    kiln_stats after;
    kiln_stats before = stats_now();
    Result got = case_result(c, in);
    if (as_expected(c, how, &got)) {
        kiln_get_stats(&after);
        results_compare(c, how, wanted, &got, c->tolerance);
        int64_t elements = 0;
        for (int k = 0; k < got.n; k++)
            elements += shape_elements(got.out[k].shape);
        bool fell_back = after.fallbacks != before.fallbacks;
        if (fell_back && !vectors_missing(last_warning))
            report(c, how, "fell back to the interpreter: %s", last_warning);
        bool repeating = c->n_in > 0 && layouts[0] >= LAYOUTS;
        bool free = c->flags & MAY_BE_FREE || (c->flags & FREE_WHEN_REPEATING && repeating);
        if (elements && !free && !fell_back && after.kernels == before.kernels)
            report(c, how, "no kernel was launched");
    }
    for (int i = 0; i < c->n_in; i++)
        if (!placed_intact(&placed[i]))
            report(c, how, "input %d was written to", i);
    kiln_scope_end(scope);
    for (int i = 0; i < c->n_in; i++)
        placed_free(&placed[i]);
    result_free(&got);
    count_run();
}

static void fill_layouts(Layout *layouts, int n, int64_t first, int count, int base)
{
    for (int i = 0; i < n; i++)
        layouts[i] = (Layout)(base + (int)((first + 5 * i) % count));
}

/* --- one case ------------------------------------------------------------------------------------------------------- */

/* The default mode: expansions may differ from strict ones within the bounds that ir/accuracy.def states. */
static void check_fast(const Case *c, void *const *data, const Result *wanted)
{
    static const double units[DTYPES] = {[KILN_F16] = 0x1p-9, [KILN_BF16] = 0x1p-6, [KILN_F32] = 0x1p-20, [KILN_F64] = 0x1p-48};
    Layout plain[MAX_IN] = {LAYOUT_PLAIN};
    if (wanted->n == 0 || !dtype_is_float(wanted->out[0].dtype))
        return;
    Case fast = *c;
    fast.tolerance.relative = units[wanted->out[0].dtype];
    fast.tolerance.absolute = wanted->out[0].dtype == KILN_F64 ? 1e-300 : wanted->out[0].dtype == KILN_F16 ? 1e-7 : 1e-37;
    if (wanted->out[0].dtype != KILN_F64)
        fast.tolerance.absolute += c->fast_absolute;
    run(&fast, "jit", plain, data, wanted);
}

static void check_on(const Case *c, void *const *data, int64_t number, bool repeating)
{
    Result wanted;
    case_at_hand(c, "interp");
    if (wanted_result(c, data, &wanted)) {
        Layout layouts[MAX_IN];
        int64_t turn = number + (int64_t)slice_round();
        int base = repeating ? LAYOUTS : 0, count = repeating ? LAYOUTS_ALL - LAYOUTS : LAYOUTS;
        int tries = repeating || on_device() ? 1 : 2;
        for (int k = 0; k < tries; k++) {
            int64_t first = k == 1 ? 1 + turn % (count - 1) : turn;
            fill_layouts(layouts, c->n_in, first, count, base);
            if (k == 0 && !repeating && !on_device()) /* all plain */
                memset(layouts, 0, sizeof layouts);
            run(c, "jit", layouts, data, &wanted);
            if (!on_device() || turn % 3 == 0)
                run(c, "eager", layouts, data, &wanted);
        }
        if ((c->flags & FAST_TOO) && !repeating)
            check_fast(c, data, &wanted);
    }
    result_free(&wanted);
}

void check(const Case *asked)
{
    int64_t number;
    if (!case_due(&number))
        return;
    Case here = case_here(asked);
    const Case *c = &here;
    void *data[MAX_IN] = {0};
    uint64_t seed = 1000003u * (uint64_t)c->arg[0] + (uint64_t)number;
    bool rank = false;
    for (int i = 0; i < c->n_in; i++) {
        data[i] = case_data(c, i, seed + 77 * (uint64_t)i);
        rank |= c->in[i].shape.rank > 0 && shape_elements(c->in[i].shape) > 0;
    }
    check_on(c, data, number, false);
    if (rank && c->refused == KILN_OK && (number + (int64_t)slice_round()) % 4 == 0) {
        for (int i = 0; i < c->n_in; i++)
            make_repeat(c->in[i].dtype, c->in[i].shape, data[i]);
        check_on(c, data, number, true);
    }
    for (int i = 0; i < c->n_in; i++)
        free(data[i]);
}

void group_ends(const Group *group) { (void)group; }
