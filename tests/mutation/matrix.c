/*
 * Guard mutation over the differential matrix: what check() does with a case here.
 *
 *   warm     a program for the case, in jit mode
 *   mutate   change one fact: a size (in all operands that have it, or in one), a layout, an alignment, a dtype, aliasing, a number of the
 *            case, an option. Compare with the interpreter; once more: the same without a compile; back: right, and a hit
 *
 * A fact that generated code relies on without guarding it shows as a wrong value here; a guard that is never met again as a compile. A
 * changed case that recording refuses, or that fails, must fail in the same way in both. At the end of each group the guards of all its
 * programs, as printed, are held against what is checked (guard_text.h).
 *
 * On a device (KILN_DEVICE) operands are dense copies of their own: strides, alignment and overlap have nothing to vary there.
 *
 * Of a case each MUTATIONS_STEP-th mutation is tried, turning from case to case, so that each group meets all kinds, and with the round
 * (support/slice.h), so that each case does in time.
 */
#include "tests/differential/layouts.h"
#include "tests/differential/result.h"
#include "tests/mutation/programs.h"
#include "tests/support/slice.h"
#include "tests/support/vectors.h"
#include "tests/support/stats.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Call {
    Case c;
    Layout layout[MAX_IN];
    size_t offset[MAX_IN]; /* elements beyond 64-byte alignment, where not 0 */
    int repeats;           /* input whose data repeats, + 1; its layout is one for such data */
    int alias;             /* 1: input 1 is input 0; 2: input 1 is the same memory, an element later */
    const char *option, *value;
    char what[96];
} Call;

/* --- one call ------------------------------------------------------------------------------------------------------- */

static bool may_alias(const Case *c)
{
    return c->n_in > 1 && c->in[0].dtype == c->in[1].dtype && shape_equal(c->in[0].shape, c->in[1].shape) &&
           c->in[0].values == c->in[1].values;
}

static void make_data(const Call *call, void **data)
{
    const Case *c = &call->c;
    for (int i = 0; i < c->n_in; i++)
        data[i] = case_data(c, i, 4000 + 77 * (uint64_t)i);
    if (call->repeats)
        make_repeat(c->in[call->repeats - 1].dtype, c->in[call->repeats - 1].shape, data[call->repeats - 1]);
    if (call->alias) {
        size_t size = kiln_dtype_size(c->in[0].dtype), bytes = (size_t)shape_elements(c->in[0].shape) * size;
        size_t shift = call->alias == 2 && bytes ? size : 0;
        memcpy(data[1], (char *)data[0] + shift, bytes - shift);
    }
}

/* Two wraps of one memory, the second an element later (its last element: what make_data left there). */
static void place_shifted(const Case *c, void *const *data, Placed *placed)
{
    size_t size = kiln_dtype_size(c->in[0].dtype);
    int64_t n = shape_elements(c->in[0].shape);
    placed[0].memory = guarded_at_end((size_t)(n + 1) * size, 0);
    char *at = placed[0].memory.data;
    memcpy(at, data[0], (size_t)n * size);
    memcpy(at + size, data[1], (size_t)n * size);
    placed[0].before = malloc((size_t)(n + 1) * size);
    memcpy(placed[0].before, at, (size_t)(n + 1) * size);
    placed[0].tensor = kiln_wrap(c->in[0].dtype, c->in[0].shape, at, NULL, NULL);
    placed[1].tensor = kiln_wrap(c->in[1].dtype, c->in[1].shape, at + size, NULL, NULL);
}

static Placed place_one(const Call *call, int i, const void *data)
{
    const Spec *s = &call->c.in[i];
    return call->offset[i] ? place_at(s->dtype, s->shape, data, call->offset[i]) : place(s->dtype, s->shape, data, call->layout[i]);
}

static Result by_jit(const Call *call, void *const *data)
{
    const Case *c = &call->c;
    set_option("mode", "jit");
    set_option("math", "strict");
    if (call->option)
        set_option(call->option, call->value);
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *in[MAX_IN] = {0};
    Placed placed[MAX_IN] = {{0}};
    if (call->alias == 2)
        place_shifted(c, data, placed);
    for (int i = 0; i < c->n_in; i++) {
        if (!placed[i].tensor && i == 1 && call->alias == 1)
            placed[i].tensor = placed[0].tensor;
        else if (!placed[i].tensor)
            placed[i] = place_one(call, i, data[i]);
        in[i] = placed[i].tensor;
    }
    Result r = case_result(c, in);
    for (int i = 0; i < c->n_in; i++)
        if (!placed_intact(&placed[i]))
            report(c, call->what, "input %d was written to", i);
    kiln_scope_end(scope);
    for (int i = 0; i < c->n_in; i++)
        placed_free(&placed[i]);
    if (call->option)
        set_option(call->option, strcmp(call->option, "mode") == 0          ? "jit"
                                 : strcmp(call->option, "math") == 0        ? "strict"
                                 : strcmp(call->option, "dynamic") == 0     ? "auto"
                                 : strcmp(call->option, "cpu") == 0         ? vectors_asked("KILN_CPU", "host")
                                 : strcmp(call->option, "vector_bits") == 0 ? vectors_asked("KILN_VECTOR_BITS", "0")
                                 : strcmp(call->option, "threads") == 0     ? "0"
                                 : strcmp(call->option, "bands") == 0       ? "auto"
                                                                            : "1");
    count_run();
    return r;
}

/* A warm case: its calls so far, and what the interpreter says of it. */
typedef struct Warm {
    Call base;
    void *data[MAX_IN];
    Result wanted;
} Warm;

static int64_t compiles_now(void)
{
    kiln_stats stats = stats_now();
    if (stats.fallbacks)
        return -1000;
    return stats.compiles;
}

/* May results of math=fast be held against strict ones? Not where a unit in the last place makes any number of another: in integers made
 * of floats, and in half floats that went through several functions (pow, sin of something large). */
static bool fast_compares(const Case *c, const Result *wanted)
{
    kiln_dtype dtype = wanted->out[0].dtype;
    bool half = dtype == KILN_F16 || dtype == KILN_BF16;
    return dtype_is_float(dtype) && (!half || c->flags & FAST_TOO);
}

/* Is some operand so large, and finite, that sums of several are beyond the range in one order and not in another? */
static bool sums_may_overflow(const Case *c, void *const *data)
{
    bool vast = false;
    for (int i = 0; i < c->n_in; i++) {
        kiln_dtype dtype = c->in[i].dtype;
        double most = dtype == KILN_F64 ? 1e300 : dtype == KILN_F16 ? 1e4 : 1e30;
        int64_t n = dtype_is_float(dtype) ? shape_elements(c->in[i].shape) : 0;
        for (int64_t k = 0; k < n && !vast; k++) {
            double x = fabs(value_as_double(dtype, data[i], k));
            vast = x > most && isfinite(x);
        }
    }
    return vast;
}

/* With math=fast such sums are infinite or NaN in one order of adding, and something else in another: those elements are not compared. */
static void leave_out_overflow(const Result *wanted, Result *got)
{
    for (int k = 0; k < got->n && k < wanted->n; k++) {
        const Output *from = &wanted->out[k];
        Output *to = &got->out[k];
        size_t size = kiln_dtype_size(to->dtype);
        int64_t n =
            dtype_is_float(to->dtype) && from->dtype == to->dtype && shape_equal(from->shape, to->shape) ? shape_elements(to->shape) : 0;
        for (int64_t i = 0; i < n; i++)
            if (!isfinite(value_as_double(to->dtype, to->data, i)) || !isfinite(value_as_double(from->dtype, from->data, i)))
                memcpy((char *)to->data + (size_t)i * size, (const char *)from->data + (size_t)i * size, size);
    }
}

/* Runs the call and holds it against `wanted`; how many programs were compiled for it. */
static int64_t run(const Call *call, void *const *data, const Result *wanted)
{
    /* math=fast, and the units in the last place that it may cost */
    static const double units[DTYPES] = {[KILN_F16] = 0x1p-6, [KILN_BF16] = 0x1p-4, [KILN_F32] = 0x1p-12, [KILN_F64] = 0x1p-30};
    bool fast = call->option && strcmp(call->value, "fast") == 0;
    Tolerance t = call->c.tolerance;
    if (fast && wanted->n && dtype_is_float(wanted->out[0].dtype))
        t = (Tolerance){units[wanted->out[0].dtype], wanted->out[0].dtype == KILN_F64 ? 1e-12 : 1e-2};
    case_at_hand(&call->c, call->what);
    int64_t before = compiles_now();
    Result got = by_jit(call, data);
    int64_t after = compiles_now();
    if (after < 0)
        report(&call->c, call->what, "fell back to the interpreter: %s", last_warning);
    if (fast && sums_may_overflow(&call->c, data))
        leave_out_overflow(wanted, &got);
    if (!fast || wanted->status || !wanted->n || fast_compares(&call->c, wanted))
        results_compare(&call->c, call->what, wanted, &got, t);
    result_free(&got);
    return after - before;
}

/* The changed call, the same again, and back to the warm one. */
static void meet(const Warm *warm, const Call *changed, bool other_data)
{
    void *own[MAX_IN] = {0};
    Result wanted = warm->wanted;
    if (other_data) {
        make_data(changed, own);
        wanted = case_by_interp(&changed->c, own);
    }
    void *const *data = other_data ? own : warm->data;
    run(changed, data, &wanted);
    if (run(changed, data, &wanted) > 0)
        report(&changed->c, changed->what, "compiled again for the same facts");
    Call back = warm->base;
    snprintf(back.what, sizeof back.what, "back from %.80s", changed->what);
    if (run(&back, warm->data, &warm->wanted) > 0)
        report(&back.c, back.what, "compiled again");
    if (other_data) {
        result_free(&wanted);
        for (int i = 0; i < MAX_IN; i++)
            free(own[i]);
    }
}

enum { MUTATIONS_STEP = 6 };

/* --- mutations ------------------------------------------------------------------------------------------------------ */

/* Those of one case are counted through; `due` says which are tried. */
typedef struct Mutations {
    const Warm *warm;
    int64_t number; /* of the case at first */
} Mutations;

static bool due(Mutations *m) { return m->number++ % MUTATIONS_STEP == 0; }

static void mutate_linked(Mutations *m, int64_t from, int64_t to)
{
    Call f = m->warm->base;
    if (from == to || to < 0 || !due(m))
        return;
    for (int i = 0; i < f.c.n_in; i++)
        for (int d = 0; d < f.c.in[i].shape.rank; d++)
            if (f.c.in[i].shape.dim[d] == from)
                f.c.in[i].shape.dim[d] = to;
    snprintf(f.what, sizeof f.what, "sizes %" PRId64 " now %" PRId64, from, to);
    meet(m->warm, &f, true);
}

static void mutate_sizes(Mutations *m)
{
    const Case *c = &m->warm->base.c;
    int64_t met[MAX_IN * KILN_MAX_RANK];
    int n = 0;
    for (int i = 0; i < c->n_in; i++)
        for (int d = 0; d < c->in[i].shape.rank; d++) {
            int64_t size = c->in[i].shape.dim[d];
            bool known = false;
            for (int k = 0; k < n; k++)
                known |= met[k] == size;
            if (!known) {
                met[n++] = size;
                mutate_linked(m, size, size + 1);
                mutate_linked(m, size, size < 1000 ? 2 * size + 3 : size - 1);
                mutate_linked(m, size, 1);
                mutate_linked(m, size, 0);
            }
            if (!due(m))
                continue;
            Call f = m->warm->base; /* this one alone: mostly refused, or another way to broadcast */
            f.c.in[i].shape.dim[d] = size > 1 ? size - 1 : 3;
            snprintf(f.what, sizeof f.what, "dim %d of input %d now %" PRId64, d, i, f.c.in[i].shape.dim[d]);
            meet(m->warm, &f, true);
        }
}

static void mutate_places(Mutations *m)
{
    static const size_t offsets[] = {1, 2, 5, 17, 63};
    for (int i = 0; i < m->warm->base.c.n_in; i++) {
        for (int layout = 1; layout < LAYOUTS_ALL; layout++) {
            Call f = m->warm->base;
            bool repeating = layout >= LAYOUTS;
            if (!layout_matters((Layout)layout) || !due(m) || (repeating && f.c.in[i].values == VALUES_INDEX))
                continue;
            f.layout[i] = (Layout)layout;
            f.repeats = repeating ? i + 1 : 0;
            snprintf(f.what, sizeof f.what, "input %d %s", i, layout_names[layout]);
            meet(m->warm, &f, repeating);
        }
        for (size_t k = 0; k < sizeof offsets / sizeof *offsets; k++) {
            Call f = m->warm->base;
            if (on_device() || !due(m))
                continue;
            f.offset[i] = offsets[k];
            snprintf(f.what, sizeof f.what, "input %d at %zu elements from alignment", i, offsets[k]);
            meet(m->warm, &f, false);
        }
    }
}

static void mutate_dtypes(Mutations *m)
{
    for (int i = -1; i < m->warm->base.c.n_in; i++) /* -1: all of them */
        for (int other = 1; other <= (i < 0 ? 3 : 1); other++) {
            Call f = m->warm->base;
            if (f.c.n_in == 0 || !due(m))
                continue;
            for (int k = 0; k < f.c.n_in; k++)
                if ((i < 0 || i == k) && f.c.in[k].values != VALUES_INDEX)
                    f.c.in[k].dtype = (kiln_dtype)(((int)f.c.in[k].dtype + (i < 0 ? 4 * other + 1 : 5)) % DTYPES);
            snprintf(f.what, sizeof f.what, "dtype of input %d", i);
            meet(m->warm, &f, true);
        }
}

static void mutate_aliases(Mutations *m)
{
    for (int alias = 1; alias <= (on_device() ? 1 : 2); alias++) {
        Call f = m->warm->base;
        if (!may_alias(&f.c) || !due(m))
            continue;
        f.alias = alias;
        snprintf(f.what, sizeof f.what, alias == 1 ? "one tensor twice" : "two wraps of one memory");
        meet(m->warm, &f, true);
    }
}

static void mutate_numbers(Mutations *m)
{
    for (int k = 0; k < 6; k++)
        for (int value = 0; value < m->warm->base.c.choices[k]; value++) {
            Call f = m->warm->base;
            if (value == f.c.arg[k] || !due(m))
                continue;
            f.c.arg[k] = value;
            snprintf(f.what, sizeof f.what, "number %d of the case now %d", k, value);
            meet(m->warm, &f, true);
        }
}

static void mutate_options(Mutations *m)
{
    static const char *const options[][2] = {
        {"math", "fast"},      {"fuse", "0"},        {"rewrite", "0"}, {"vector_bits", "128"}, {"llvm_opt", "0"},   {"mode", "eager"},
        {"dynamic", "always"}, {"dynamic", "never"}, {"threads", "1"}, {"cpu", "x86-64-v3"},   {"bands", "always"},
    };
    for (size_t k = 0; k < sizeof options / sizeof *options; k++) {
        Call f = m->warm->base;
        if (!due(m))
            continue;
        f.option = options[k][0];
        f.value = options[k][1];
        snprintf(f.what, sizeof f.what, "%s=%s", f.option, f.value);
        meet(m->warm, &f, false);
    }
}

/* --- one case ------------------------------------------------------------------------------------------------------- */

void check(const Case *asked)
{
    int64_t number;
    if (!case_due(&number))
        return;
    Case here = case_here(asked);
    const Case *c = &here;
    Warm warm = {.base = {.c = *c, .what = "first"}};
    make_data(&warm.base, warm.data);
    warm.wanted = case_by_interp(c, warm.data);
    if (warm.wanted.status == KILN_OK && warm.wanted.n) {
        run(&warm.base, warm.data, &warm.wanted);
        if (run(&warm.base, warm.data, &warm.wanted) > 0)
            report(c, "again", "compiled again for the same facts");
        Mutations m = {&warm, number / (int64_t)slices() + (int64_t)slice_round()};
        mutate_sizes(&m);
        mutate_places(&m);
        mutate_dtypes(&m);
        mutate_aliases(&m);
        mutate_numbers(&m);
        mutate_options(&m);
    }
    result_free(&warm.wanted);
    for (int i = 0; i < MAX_IN; i++)
        free(warm.data[i]);
}

static void say(void *user, const char *what)
{
    const Group *group = user;
    report(&(Case){.op = group->name}, "guards as text", "%s", what);
}

/* The guards of every program that the group made. */
void group_ends(const Group *group) { programs_guards_agree(20, say, (void *)(uintptr_t)group); }
