/*
 * Guard mutation. For each graph of a table: warm a program, change each fact in turn (sizes, dtype, layout, alignment, aliasing,
 * scalar, attribute, options), compare with the interpreter, run the changed one again (no compile), go back to the first
 * (right, and no compile).
 *
 * A fact that generated code relies on without guarding it shows as a wrong value here; a guard that is never met again as a compile.
 * A run takes a slice of the graphs (support/slice.h).
 */
#include "tests/differential/layouts.h"
#include "tests/mutation/harness.h"
#include "tests/support/slice.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* All facts of a call. */
typedef struct Facts {
    int64_t size[3];
    int64_t attribute; /* a slice bound, a padding, a shift... */
    double scalar;
    kiln_dtype dtype;
    Layout layout[2];
    size_t offset[2]; /* elements between a 64-byte boundary and the data (row-major layouts) */
    int alias;        /* 0: two tensors, 1: one handle twice, 2: two wraps of one memory, the second shifted by an element */
    const char *mode, *math, *fuse, *rewrite, *vector_bits, *cpu, *llvm_opt, *threads;
} Facts;

typedef kiln_tensor *Build(const Facts *f, kiln_tensor *a, kiln_tensor *b);

/* A graph on inputs a[axes a] and b[axes b], each axis named by the index of its size. */
typedef struct Graph {
    const char *name;
    Build *build;
    int a_rank, a_axes[3], b_rank, b_axes[3];
    int64_t attribute, other_attribute;
} Graph;

/* --- graphs --------------------------------------------------------------------------------------------------------- */

static kiln_tensor *elementwise(const Facts *f, kiln_tensor *a, kiln_tensor *b)
{
    return kiln_sub(kiln_mul(a, kiln_scalar(f->scalar)), kiln_maximum(b, a));
}

static kiln_tensor *rules(const Facts *f, kiln_tensor *a, kiln_tensor *b)
{
    kiln_tensor *s = kiln_scalar(f->scalar);
    return kiln_add(kiln_pow(a, s), kiln_mul(kiln_add(b, s), s));
}

static kiln_tensor *outer(const Facts *f, kiln_tensor *a, kiln_tensor *b)
{
    (void)f;
    return kiln_tanh(kiln_mul(kiln_unsqueeze(a, 1), b));
}

static kiln_tensor *row_sum(const Facts *f, kiln_tensor *a, kiln_tensor *b)
{
    (void)f;
    return kiln_sum_axes(kiln_mul(a, b), KILN_AXES(-1), false);
}

static kiln_tensor *column_sum(const Facts *f, kiln_tensor *a, kiln_tensor *b)
{
    return kiln_mul(kiln_sum_axes(kiln_add(a, b), KILN_AXES(0), false), kiln_scalar(f->scalar));
}

static kiln_tensor *whole_sum(const Facts *f, kiln_tensor *a, kiln_tensor *b)
{
    (void)f;
    return kiln_stack((kiln_tensor *[]){kiln_sum(a), kiln_mean(kiln_abs(b)), kiln_logsumexp(a)}, 3, 0);
}

static kiln_tensor *softmax(const Facts *f, kiln_tensor *a, kiln_tensor *b)
{
    return kiln_softmax(kiln_add(kiln_mul(a, kiln_scalar(f->scalar)), b), -1);
}

static kiln_tensor *layer_norm(const Facts *f, kiln_tensor *a, kiln_tensor *b)
{
    return kiln_layer_norm(a, b, kiln_neg(b), f->scalar * 1e-3);
}

static kiln_tensor *reshape(const Facts *f, kiln_tensor *a, kiln_tensor *b)
{
    (void)f;
    kiln_tensor *flat = kiln_reshape(kiln_transpose(a), KILN_SHAPE(kiln_numel(a)));
    return kiln_add(kiln_reshape(flat, kiln_shape_of(b)), b);
}

static kiln_tensor *slice(const Facts *f, kiln_tensor *a, kiln_tensor *b)
{
    return kiln_mul(kiln_slice_axis(a, -1, f->attribute, KILN_NONE, 1), kiln_slice_axis(b, -1, f->attribute, KILN_NONE, 1));
}

static kiln_tensor *step(const Facts *f, kiln_tensor *a, kiln_tensor *b)
{
    return kiln_sub(kiln_slice_axis(a, 0, KILN_NONE, KILN_NONE, f->attribute), kiln_slice_axis(b, 0, KILN_NONE, KILN_NONE, f->attribute));
}

static kiln_tensor *pad(const Facts *f, kiln_tensor *a, kiln_tensor *b)
{
    const kiln_padding padding[] = {{f->attribute, 1}, {2, f->attribute}};
    return kiln_pad(kiln_mul(a, b), 2, padding, kiln_scalar(f->scalar));
}

static kiln_tensor *roll(const Facts *f, kiln_tensor *a, kiln_tensor *b)
{
    return kiln_add(kiln_roll(a, f->attribute, 1), kiln_flip(b, KILN_AXES(0)));
}

static kiln_tensor *concat(const Facts *f, kiln_tensor *a, kiln_tensor *b)
{
    (void)f;
    return kiln_neg(kiln_concat((kiln_tensor *[]){a, kiln_exp(b), a}, 3, 0));
}

static kiln_tensor *triangle(const Facts *f, kiln_tensor *a, kiln_tensor *b)
{
    return kiln_add(kiln_triu(a, f->attribute), kiln_tril(b, f->attribute));
}

static kiln_tensor *matmul(const Facts *f, kiln_tensor *a, kiln_tensor *b)
{
    return kiln_relu(kiln_add(kiln_matmul(a, b), kiln_scalar(f->scalar)));
}

static kiln_tensor *matmul_transposed(const Facts *f, kiln_tensor *a, kiln_tensor *b)
{
    (void)f;
    return kiln_matmul(kiln_neg(a), kiln_transpose(b));
}

static kiln_tensor *gather(const Facts *f, kiln_tensor *a, kiln_tensor *b)
{
    kiln_tensor *index = kiln_argsort(b, 0, false);
    return kiln_mul(kiln_take(a, index, 0), kiln_scalar(f->scalar));
}

static kiln_tensor *scatter(const Facts *f, kiln_tensor *a, kiln_tensor *b)
{
    kiln_tensor *index = kiln_argsort(b, 0, true);
    return kiln_scatter(a, index, kiln_scalar(f->scalar), 0, KILN_SCATTER_ADD);
}

static kiln_tensor *scan(const Facts *f, kiln_tensor *a, kiln_tensor *b)
{
    (void)f;
    return kiln_cumsum(kiln_mul(a, b), 0);
}

static kiln_tensor *sorted(const Facts *f, kiln_tensor *a, kiln_tensor *b)
{
    (void)f;
    return kiln_sort(kiln_sub(a, b), -1, true);
}

static kiln_tensor *index_of(const Facts *f, kiln_tensor *a, kiln_tensor *b)
{
    (void)f;
    return kiln_argmax_axis(kiln_sub(a, b), -1, true);
}

static kiln_tensor *created(const Facts *f, kiln_tensor *a, kiln_tensor *b)
{
    kiln_seed((uint64_t)f->attribute);
    kiln_tensor *noise = kiln_uniform(KILN_F32, kiln_shape_of(a), 0, f->scalar);
    return kiln_add(kiln_add(a, kiln_mul(noise, kiln_arange(KILN_F32, 0, (double)f->size[1], 1))), b);
}

/* What bodies do with a value of two axes: facts of each kind. */
static kiln_tensor *inside(const Facts *f, kiln_tensor *x)
{
    kiln_tensor *y = kiln_roll(kiln_mul(x, kiln_scalar(f->scalar)), f->attribute, -1);
    return kiln_cast(kiln_sub(y, kiln_mul(kiln_sum_axes(x, KILN_AXES(-1), true), 0.125)), kiln_dtype_of(x));
}

static void step_of_scan(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **next, kiln_tensor **y, void *user)
{
    next[0] = inside(user, kiln_add(carry[0], kiln_cast(kiln_add(x[0], i), kiln_dtype_of(carry[0]))));
    y[0] = kiln_max(next[0]);
}

static kiln_tensor *body_of_scan(const Facts *f, kiln_tensor *a, kiln_tensor *b)
{
    kiln_tensor *last = NULL, *ys = NULL;
    if (kiln_scan(step_of_scan, -1, 0, 1, &b, &last, 1, &a, 1, &ys, (void *)(uintptr_t)f) != KILN_OK)
        return NULL;
    return kiln_add(kiln_sum(ys), last);
}

static kiln_tensor *fewer(kiln_tensor **state, void *user)
{
    const Facts *f = user;
    return kiln_lt(state[1], 3 + (double)f->attribute);
}

static void step_of_while(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const Facts *f = user;
    out[0] = inside(f, in[0]);
    out[1] = kiln_add(in[1], kiln_cast(kiln_maximum(kiln_scalar(f->scalar), 1), KILN_I64));
}

static kiln_tensor *body_of_while(const Facts *f, kiln_tensor *a, kiln_tensor *b)
{
    kiln_tensor *state[] = {kiln_add(a, b), kiln_from(KILN_I64, KILN_SHAPE(), (int64_t[]){0})};
    return kiln_while(fewer, step_of_while, 2, state, 0, state, (void *)(uintptr_t)f) == KILN_OK ? state[0] : NULL;
}

static void then_of_cond(kiln_tensor **in, kiln_tensor **out, void *user) { out[0] = inside(user, in[0]); }
static void else_of_cond(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const Facts *f = user;
    out[0] = kiln_cast(kiln_add(in[1], kiln_scalar(f->scalar)), kiln_dtype_of(in[0]));
}

static kiln_tensor *body_of_cond(const Facts *f, kiln_tensor *a, kiln_tensor *b)
{
    kiln_tensor *out = NULL, *in[] = {a, b}, *positive = kiln_gt(kiln_sum(a), kiln_scalar(f->scalar));
    return kiln_cond(positive, then_of_cond, else_of_cond, 2, in, 1, &out, (void *)(uintptr_t)f) == KILN_OK ? out : NULL;
}

/* Axes: 0, 1 and 2 name Facts.size. */
static const Graph graphs[] = {
    {"elementwise", elementwise, 2, {0, 1}, 2, {0, 1}, 0, 0},
    {"elementwise 1-D", elementwise, 1, {0}, 1, {0}, 0, 0},
    {"broadcast", elementwise, 3, {2, 0, 1}, 1, {1}, 0, 0},
    {"rules", rules, 2, {0, 1}, 2, {0, 1}, 0, 0},
    {"outer", outer, 1, {0}, 1, {1}, 0, 0},
    {"row sum", row_sum, 2, {0, 1}, 2, {0, 1}, 0, 0},
    {"column sum", column_sum, 2, {0, 1}, 2, {0, 1}, 0, 0},
    {"whole sum", whole_sum, 2, {0, 1}, 1, {2}, 0, 0},
    {"softmax", softmax, 2, {0, 1}, 2, {0, 1}, 0, 0},
    {"layer norm", layer_norm, 2, {0, 1}, 1, {1}, 0, 0},
    {"reshape", reshape, 2, {0, 1}, 2, {0, 1}, 0, 0},
    {"slice", slice, 2, {0, 1}, 2, {0, 1}, 1, 3},
    {"step", step, 2, {0, 1}, 2, {0, 1}, 2, -1},
    {"pad", pad, 2, {0, 1}, 2, {0, 1}, 1, 3},
    {"roll", roll, 2, {0, 1}, 2, {0, 1}, 1, -3},
    {"concat", concat, 2, {0, 1}, 2, {2, 1}, 0, 0},
    {"triangle", triangle, 2, {0, 1}, 2, {0, 1}, 0, -2},
    {"matmul", matmul, 2, {0, 1}, 2, {1, 2}, 0, 0},
    {"matmul transposed", matmul_transposed, 2, {0, 1}, 2, {2, 1}, 0, 0},
    {"gather", gather, 2, {0, 1}, 1, {0}, 0, 0},
    {"scatter", scatter, 2, {0, 1}, 1, {0}, 0, 0},
    {"scan", scan, 2, {0, 1}, 2, {0, 1}, 0, 0},
    {"sorted", sorted, 2, {0, 1}, 2, {0, 1}, 0, 0},
    {"index of max", index_of, 2, {0, 1}, 2, {0, 1}, 0, 0},
    {"created", created, 2, {0, 1}, 2, {0, 1}, 7, 8},
    {"body of a scan", body_of_scan, 3, {2, 0, 1}, 2, {0, 1}, 1, -3},
    {"body of a while", body_of_while, 2, {0, 1}, 2, {0, 1}, 1, 2},
    {"body of a cond", body_of_cond, 2, {0, 1}, 2, {0, 1}, 1, -3},
};
enum { GRAPHS = sizeof graphs / sizeof *graphs };

/* --- one call ------------------------------------------------------------------------------------------------------- */

typedef struct Data {
    kiln_shape shape;
    void *elements;
} Data;

static Data make_data(const Facts *f, int rank, const int *axes, uint64_t seed)
{
    Data d = {.shape = {rank, {0}}};
    for (int i = 0; i < rank; i++)
        d.shape.dim[i] = f->size[axes[i]];
    int64_t n = shape_elements(d.shape);
    d.elements = malloc((size_t)n * kiln_dtype_size(f->dtype) + 1);
    values_fill(f->dtype, VALUES_PLAIN, 0, seed, n, d.elements);
    return d;
}

typedef struct Answer {
    kiln_dtype dtype;
    kiln_shape shape;
    void *data;
    kiln_status status;
} Answer;

static Answer evaluate(const Graph *g, const Facts *f, kiln_tensor *a, kiln_tensor *b)
{
    Answer answer = {0};
    kiln_tensor *out = g->build(f, a, b);
    answer.dtype = kiln_dtype_of(out);
    answer.shape = kiln_shape_of(out);
    size_t bytes = out ? (size_t)kiln_numel(out) * kiln_dtype_size(answer.dtype) : 0;
    answer.data = malloc(bytes + 1);
    answer.status = kiln_read(out, answer.dtype, answer.data, bytes);
    return answer;
}

static Answer by_interp(const Graph *g, const Facts *f, Data a, Data b)
{
    set_option("mode", "interp");
    set_option("math", "strict");
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_from(f->dtype, a.shape, a.elements), *y = kiln_from(f->dtype, b.shape, b.elements);
    Answer answer = evaluate(g, f, x, y);
    kiln_clear_error();
    kiln_scope_end(scope);
    return answer;
}

static Answer by_jit(const Graph *g, const Facts *f, Data a, Data b)
{
    set_option("mode", f->mode);
    set_option("math", f->math);
    set_option("fuse", f->fuse);
    set_option("rewrite", f->rewrite);
    set_option("vector_bits", f->vector_bits);
    set_option("cpu", f->cpu);
    set_option("llvm_opt", f->llvm_opt);
    set_option("threads", f->threads);
    kiln_scope *scope = kiln_scope_begin();
    Placed x = f->layout[0] ? place(f->dtype, a.shape, a.elements, f->layout[0]) : place_at(f->dtype, a.shape, a.elements, f->offset[0]);
    Placed y = {.tensor = x.tensor};
    if (f->alias == 2)
        y.tensor = kiln_wrap(f->dtype, b.shape, x.memory.data, NULL, NULL);
    else if (f->alias == 0)
        y = f->layout[1] ? place(f->dtype, b.shape, b.elements, f->layout[1]) : place_at(f->dtype, b.shape, b.elements, f->offset[1]);
    Answer answer = evaluate(g, f, x.tensor, y.tensor);
    CHECK(placed_intact(&x) && placed_intact(&y), "%s: an input was written to", g->name);
    kiln_clear_error();
    kiln_scope_end(scope);
    placed_free(&x);
    placed_free(&y);
    return answer;
}

/* Compares one call with the interpreter. Returns the compiles that it waited for; -1 when the op does not take these facts. */
static int64_t call(const Graph *g, const Facts *f, const char *what)
{
    Data a = make_data(f, g->a_rank, g->a_axes, 11), b = make_data(f, g->b_rank, g->b_axes, 22);
    if (f->alias && shape_equal(a.shape, b.shape))
        memcpy(b.elements, a.elements, (size_t)shape_elements(a.shape) * kiln_dtype_size(f->dtype));
    Answer wanted = by_interp(g, f, a, b);
    kiln_stats before = stats_now();
    Answer got = by_jit(g, f, a, b);
    kiln_stats after = stats_now();
    CHECK(wanted.status == got.status, "%s, %s: status %d, interp %d", g->name, what, got.status, wanted.status);
    CHECK(after.fallbacks == before.fallbacks, "%s, %s: fell back to the interpreter: %s", g->name, what, last_warning);
    if (wanted.status == KILN_OK && got.status == KILN_OK) {
        bool fast = strcmp(f->math, "fast") == 0;
        Tolerance t = fast && dtype_is_float(wanted.dtype) ? (Tolerance){1e-3, 1e-4} : (Tolerance){0, 0};
        int64_t n = shape_elements(wanted.shape);
        int64_t at = shape_equal(wanted.shape, got.shape) ? values_differ(wanted.dtype, n, wanted.data, got.data, t) : 0;
        char x[64], y[64], s[96];
        CHECK(at < 0, "%s, %s: %s element %" PRId64 " is %s, interp says %s", g->name, what, shape_text(got.dtype, got.shape, s), at,
              n ? value_text(got.dtype, got.data, at, x) : "?", n ? value_text(wanted.dtype, wanted.data, at, y) : "?");
    }
    bool fits = wanted.status == KILN_OK;
    free(a.elements);
    free(b.elements);
    free(wanted.data);
    free(got.data);
    return fits ? after.misses - before.misses : -1;
}

/* --- mutations ------------------------------------------------------------------------------------------------------ */

static const Facts base_facts = {.size = {12, 40, 8},
                                 .scalar = 0.75,
                                 .dtype = KILN_F32,
                                 .mode = "jit",
                                 .math = "strict",
                                 .fuse = "1",
                                 .rewrite = "1",
                                 .vector_bits = "0",
                                 .cpu = "host",
                                 .llvm_opt = "1",
                                 .threads = "0"};

static void mutate(const Graph *g, const Facts *base, const Facts *changed, const char *what)
{
    if (call(g, changed, what) < 0)
        return; /* not for this op */
    CHECK(call(g, changed, what) == 0, "%s, %s: compiled again for the same facts", g->name, what);
    CHECK(call(g, base, "back") == 0, "%s, back from %s: compiled again", g->name, what);
}

static void mutate_sizes(const Graph *g, const Facts *base)
{
    static const int64_t sizes[] = {0, 1, 2, 3, 7, 13, 64, 65, 100};
    for (int axis = 0; axis < 3; axis++)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            Facts f = *base;
            char what[64];
            f.size[axis] = sizes[k];
            snprintf(what, sizeof what, "size %d = %" PRId64, axis, sizes[k]);
            mutate(g, base, &f, what);
        }
    for (int a = 0; a < 3; a++)
        for (int b = 0; b < 3; b++)
            for (int c = 0; c < 3; c++) { /* 0, 1, 2 in every order */
                Facts f = *base;
                f.size[0] = a, f.size[1] = b, f.size[2] = c;
                char what[64];
                snprintf(what, sizeof what, "sizes %d %d %d", a, b, c);
                call(g, &f, what);
            }
    Facts f = *base; /* equal ones that were not */
    f.size[0] = f.size[1] = f.size[2] = 40;
    mutate(g, base, &f, "all sizes equal");
    f.size[0] = 40, f.size[1] = 12;
    mutate(g, base, &f, "sizes swapped");
}

static void mutate_inputs(const Graph *g, const Facts *base)
{
    char what[96];
    for (int k = 0; k < 2; k++) {
        for (int layout = 1; layout < LAYOUTS; layout++) {
            Facts f = *base;
            f.layout[k] = (Layout)layout;
            snprintf(what, sizeof what, "input %d %s", k, layout_names[layout]);
            mutate(g, base, &f, what);
        }
        for (size_t offset = 1; offset < 64; offset = 2 * offset + 1) {
            Facts f = *base;
            f.offset[k] = offset;
            snprintf(what, sizeof what, "input %d at %zu elements from alignment", k, offset);
            mutate(g, base, &f, what);
        }
    }
    static const kiln_dtype dtypes[] = {KILN_F64, KILN_F16, KILN_BF16, KILN_I32, KILN_I8, KILN_U8, KILN_I64};
    for (size_t k = 0; k < sizeof dtypes / sizeof *dtypes; k++) {
        Facts f = *base;
        f.dtype = dtypes[k];
        snprintf(what, sizeof what, "dtype %s", kiln_dtype_name(dtypes[k]));
        mutate(g, base, &f, what);
    }
    Facts f = *base;
    f.size[0] = f.size[1] = f.size[2] = 24; /* so that the two inputs may have one shape */
    call(g, &f, "before aliasing");
    if (g->a_rank == g->b_rank)
        for (int alias = 1; alias <= (getenv("KILN_DEVICE") ? 1 : 2); alias++) { /* a device has copies of its own */
            Facts same = f;
            same.alias = alias;
            mutate(g, &f, &same, alias == 1 ? "one tensor twice" : "two wraps of one memory");
        }
}

static void mutate_numbers(const Graph *g, const Facts *base)
{
    static const double scalars[] = {1, 0, 2, -1, 0.5, 3, 1e30, -0.0};
    char what[64];
    for (size_t k = 0; k < sizeof scalars / sizeof *scalars; k++) {
        Facts f = *base;
        f.scalar = scalars[k];
        snprintf(what, sizeof what, "scalar %g", scalars[k]);
        mutate(g, base, &f, what);
    }
    for (int64_t k = -2; k <= 5; k++) {
        Facts f = *base;
        f.attribute = g->attribute + (k == 5 ? g->other_attribute : k);
        bool odd =
            (g->build == step && f.attribute == 0) || (g->build == pad && f.attribute < 0) || (g->build == created && f.attribute < 0);
        if (odd)
            continue;
        snprintf(what, sizeof what, "attribute %" PRId64, f.attribute);
        mutate(g, base, &f, what);
    }
}

static void mutate_options(const Graph *g, const Facts *base)
{
    static const struct {
        const char *name, *value;
        size_t at;
    } options[] = {
#define OPTION(name, value) {#name, value, offsetof(Facts, name)}
        /* clang-format off */
        OPTION(mode, "eager"),        OPTION(math, "fast"),         OPTION(fuse, "0"),
        OPTION(rewrite, "0"),         OPTION(vector_bits, "128"),   OPTION(vector_bits, "256"),
        OPTION(vector_bits, "512"),   OPTION(llvm_opt, "0"),        OPTION(llvm_opt, "2"),
        OPTION(threads, "1"),         OPTION(threads, "2"),         OPTION(threads, "7"),
        OPTION(cpu, "x86-64-v3"),
        /* clang-format on */
    };
    for (size_t k = 0; k < sizeof options / sizeof *options; k++) {
        Facts f = *base;
        char what[64];
        memcpy((char *)&f + options[k].at, &options[k].value, sizeof options[k].value);
        snprintf(what, sizeof what, "%s=%s", options[k].name, options[k].value);
        mutate(g, base, &f, what);
    }
}

static void run_all(void (*mutation)(const Graph *g, const Facts *base))
{
    for (int k = 0; k < GRAPHS; k++) {
        if (!slice_takes((uint64_t)k))
            continue;
        Facts base = base_facts;
        base.attribute = graphs[k].attribute;
        CHECK(call(&graphs[k], &base, "first") >= 0, "%s does not run at all", graphs[k].name);
        CHECK(call(&graphs[k], &base, "again") == 0, "%s compiled twice", graphs[k].name);
        mutation(&graphs[k], &base);
    }
}

static void sizes(void) { run_all(mutate_sizes); }
static void inputs(void) { run_all(mutate_inputs); }
static void numbers(void) { run_all(mutate_numbers); }

/* The first program is made with a scalar that rules look for, so its code may rely on it. */
static void special_numbers(void)
{
    static const double first[] = {1, 0, 2, -1};
    for (int k = 0; k < GRAPHS; k++)
        for (size_t i = 0; i < sizeof first / sizeof *first && slice_takes((uint64_t)k); i++) {
            Facts base = base_facts;
            base.attribute = graphs[k].attribute;
            base.size[0] = 20 + (int64_t)i;
            base.scalar = first[i];
            set_option("dynamic", i % 2 ? "auto" : "never");
            if (call(&graphs[k], &base, "first") < 0)
                continue; /* an epsilon of -1 */
            for (size_t j = 0; j < 6; j++) {
                Facts f = base;
                char what[64];
                f.scalar = j < 4 ? first[j] : j == 4 ? 0.75 : -0.0;
                snprintf(what, sizeof what, "scalar %g after %g", f.scalar, first[i]);
                mutate(&graphs[k], &base, &f, what);
            }
        }
}

/* Sizes that were equal in all calls so far, and then are not; and the other way round. */
static void equal_sizes(void)
{
    static const int64_t equal[] = {24, 40, 16, 33}, other[][3] = {{24, 40, 16}, {40, 24, 24}, {24, 24, 40}, {7, 40, 7}, {33, 1, 0}};
    for (int pass = 0; pass < 2; pass++) {
        set_option("dynamic", pass ? "always" : "auto");
        for (int k = 0; k < GRAPHS; k++) {
            if (!slice_takes((uint64_t)k))
                continue;
            Facts f = base_facts;
            f.attribute = graphs[k].attribute;
            for (size_t i = 0; i < sizeof equal / sizeof *equal; i++) {
                f.size[0] = f.size[1] = f.size[2] = equal[i];
                call(&graphs[k], &f, "equal sizes");
            }
            Facts base = f;
            for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
                memcpy(f.size, other[i], sizeof f.size);
                mutate(&graphs[k], &base, &f, "sizes that differ after equal ones");
            }
        }
    }
}

/* One program for small sizes meets more than 2^31 elements: memory that is mapped but (nearly) all one page of zeros. */
static void large_sizes(void)
{
    const int64_t n = ((int64_t)1 << 31) + 12345;
    unsigned char *zeros = mmap(NULL, (size_t)n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (zeros == MAP_FAILED) {
        CHECK(true, "%s", "no address space");
        return;
    }
    zeros[n - 2] = 7;
    zeros[n - 1] = 200;
    const int64_t sizes[] = {100, 300, n, 100};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        kiln_scope *scope = kiln_scope_begin();
        bool large = sizes[i] == n;
        kiln_tensor *x = kiln_wrap(KILN_U8, KILN_SHAPE(sizes[i]), zeros, NULL, NULL);
        kiln_tensor *tail = kiln_slice_axis(x, 0, -2, KILN_NONE, 1);
        int64_t total = -1, at = -1;
        unsigned char last[2] = {1, 1};
        CHECK(kiln_item_int(kiln_sum(x), &total) == KILN_OK && total == (large ? 207 : 0), "sum of %" PRId64 " is %" PRId64 ": %s",
              sizes[i], total, kiln_error_message());
        CHECK(kiln_item_int(kiln_argmax(x), &at) == KILN_OK && at == (large ? n - 1 : 0), "argmax of %" PRId64 " is %" PRId64, sizes[i],
              at);
        CHECK(kiln_read(kiln_add(tail, kiln_int(1)), KILN_U8, last, 2) == KILN_OK && last[1] == (large ? 201 : 1), "last is %d", last[1]);
        kiln_scope_end(scope);
    }
    munmap(zeros, (size_t)n);
}

static void all_options(void) { run_all(mutate_options); }

static void sizes_never_dynamic(void)
{
    set_option("dynamic", "never");
    run_all(mutate_numbers);
}

static void sizes_always_dynamic(void)
{
    set_option("dynamic", "always");
    run_all(mutate_sizes);
}

int main(int argc, char **argv)
{
    static const Test tests[] = {
        {"sizes", sizes},
        {"inputs", inputs},
        {"numbers", numbers},
        {"special_numbers", special_numbers},
        {"equal_sizes", equal_sizes},
        {"large_sizes", large_sizes},
        {"options", all_options},
        {"never_dynamic", sizes_never_dynamic},
        {"always_dynamic", sizes_always_dynamic},
    };
    return run_tests("mutate_facts", tests, sizeof tests / sizeof *tests, argc, argv);
}
