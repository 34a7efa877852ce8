/*
 * kiln_map of each op of ir/ops.def against the op on slices, stacked: bit for bit in strict arithmetic, for each set of operands that vary and each
 * place of the mapped axis; and in the bodies of kiln_scan, kiln_cond and kiln_while. The table says which ops there are: one without a case here
 * fails the test.
 */
#define KILN_NO_LOCATIONS
#include "ir/infer.h"
#include "runtime/record/tensor.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { INDICES = 3, MOST_IN = 3 };

/* One op on operands of these types. */
typedef struct Case {
    Op op;
    DType own;
    Attr attr;
    uint32_t n_in, n_facts;
    int64_t facts[12];
    Shape in[MOST_IN];
    bool index[MOST_IN]; /* values are 0 or 1 */
} Case;

static kiln_tensor *record_case(const Case *c, kiln_tensor *const *in)
{
    return record("kiln_test", (Loc){NULL, 0}, c->op, c->own, &c->attr, c->n_in, in, c->facts, c->n_facts);
}

static void call_case(kiln_tensor **in, kiln_tensor **out, void *user) { out[0] = record_case(user, in); }

static kiln_tensor *values(const Shape *shape, bool index)
{
    kiln_shape s = {shape->rank, {0}};
    memcpy(s.dim, shape->dim, sizeof *s.dim * shape->rank);
    kiln_tensor *x =
        dtype_is_float((DType)shape->dtype) ? kiln_uniform(KILN_F64, s, -2, 2) : kiln_randint(KILN_I64, s, index ? 0 : -3, index ? 2 : 4);
    x = kiln_cast(x, (kiln_dtype)shape->dtype);
    cr_assert_eq(kiln_eval(x), KILN_OK, "%s", kiln_error_message());
    return x;
}

static void same_bits(const Case *c, unsigned vary, int axis, kiln_tensor *a, kiln_tensor *b)
{
    static char x[1 << 14], y[1 << 14];
    cr_assert(a && b, "%s, %x vary, axis %d: %s", op_name(c->op), vary, axis, kiln_error_message());
    cr_assert(kiln_dtype_of(a) == kiln_dtype_of(b) && kiln_rank(a) == kiln_rank(b) && kiln_numel(a) == kiln_numel(b));
    size_t n = (size_t)kiln_numel(a) * kiln_dtype_size(kiln_dtype_of(a));
    cr_assert_leq(n, sizeof x);
    cr_assert_eq(kiln_read(a, kiln_dtype_of(a), x, n), KILN_OK, "%s: %s", op_name(c->op), kiln_error_message());
    cr_assert_eq(kiln_read(b, kiln_dtype_of(b), y, n), KILN_OK, "%s: %s", op_name(c->op), kiln_error_message());
    cr_assert(memcmp(x, y, n) == 0, "%s of %s: %x vary, axis %d: bits differ", op_name(c->op), dtype_name((DType)c->in[0].dtype), vary,
              axis);
}

static void check(const Case *c, unsigned vary, int axis)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *in[MOST_IN], *each[INDICES], *out;
    int axes[MOST_IN];
    for (uint32_t k = 0; k < c->n_in; k++) {
        Shape shape = c->in[k];
        axes[k] = KILN_WHOLE;
        if (vary >> k & 1) {
            int at = axis < 0 || axis > shape.rank ? shape.rank : axis;
            axes[k] = axis < 0 ? -1 : at;
            memmove(shape.dim + at + 1, shape.dim + at, sizeof *shape.dim * (size_t)(shape.rank - at));
            shape.dim[at] = INDICES;
            shape.rank++;
        }
        in[k] = values(&shape, c->index[k]);
    }
    cr_assert_eq(kiln_map(call_case, (int)c->n_in, in, axes, 0, 1, &out, (void *)(uintptr_t)c), KILN_OK, "%s, %x vary, axis %d: %s",
                 op_name(c->op), vary, axis, kiln_error_message());
    for (int i = 0; i < INDICES; i++) {
        kiln_tensor *one[MOST_IN];
        for (uint32_t k = 0; k < c->n_in; k++)
            one[k] = vary >> k & 1 ? kiln_select(in[k], axes[k], i) : in[k];
        each[i] = record_case(c, one);
    }
    same_bits(c, vary, axis, out, kiln_stack(each, INDICES, 0));
    kiln_scope_end(scope);
}

/* --- in loops and branches --- */

typedef struct Looped {
    const Case *c;
    kiln_tensor **in;
} Looped;

static void scan_case(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)carry, (void)carry_out;
    y[0] = record_case(user, x);
}

static void while_case(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const Looped *l = user;
    out[0] = record_case(l->c, l->in);
    out[1] = kiln_add(in[1], kiln_int(1));
}

static kiln_tensor *below_two(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_lt(state[1], kiln_int(2));
}

/* Of operands that a scan gives to its step, of a branch's, and of captured ones. */
static void check_in_bodies(const Case *c)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *in[MOST_IN], *one[MOST_IN], *each[INDICES], *out;
    void *user = (void *)(uintptr_t)c;
    for (uint32_t k = 0; k < c->n_in; k++) {
        Shape shape = c->in[k];
        memmove(shape.dim + 1, shape.dim, sizeof *shape.dim * shape.rank);
        shape.dim[0] = INDICES;
        shape.rank++;
        in[k] = values(&shape, c->index[k]);
    }
    for (int i = 0; i < INDICES; i++) {
        for (uint32_t k = 0; k < c->n_in; k++)
            one[k] = kiln_select(in[k], 0, i);
        each[i] = record_case(c, one);
    }
    cr_assert_eq(kiln_scan(scan_case, -1, 0, 0, NULL, NULL, (int)c->n_in, in, 1, &out, user), KILN_OK, "%s: %s", op_name(c->op),
                 kiln_error_message());
    same_bits(c, 0, 0, out, kiln_stack(each, INDICES, 0));
    for (int yes = 0; yes < 2; yes++) {
        kiln_tensor *predicate = kiln_full(KILN_BOOL, KILN_SHAPE(), yes);
        cr_assert_eq(kiln_cond(predicate, call_case, call_case, (int)c->n_in, one, 1, &out, user), KILN_OK, "%s: %s", op_name(c->op),
                     kiln_error_message());
        same_bits(c, 1, yes, out, each[INDICES - 1]);
    }
    kiln_shape type = {.rank = kiln_rank(each[0])};
    for (int a = 0; a < type.rank; a++)
        type.dim[a] = kiln_dim(each[0], a);
    kiln_tensor *state[] = {kiln_zeros(kiln_dtype_of(each[0]), type), kiln_full(KILN_I64, KILN_SHAPE(), 0)};
    Looped l = {c, one};
    cr_assert_eq(kiln_while(below_two, while_case, 2, state, 0, state, &l), KILN_OK, "%s: %s", op_name(c->op), kiln_error_message());
    same_bits(c, 2, 0, state[0], each[INDICES - 1]);
    kiln_scope_end(scope);
}

/* All sets and places; or, where that is slow, one place for each set. */
static void check_all(const Case *c, bool few)
{
    static unsigned turn;
    check_in_bodies(c);
    for (unsigned vary = 1; vary < 1u << c->n_in; vary++)
        if (few)
            check(c, vary, (int)(turn++ % 4) - 1);
        else
            for (int axis = -1; axis <= c->in[0].rank; axis++)
                check(c, vary, axis);
}

static Shape shape(DType dtype, int rank, const int64_t *dims)
{
    Shape s = {.dtype = (uint8_t)dtype, .rank = (uint8_t)rank};
    memcpy(s.dim, dims, sizeof *dims * (size_t)rank);
    return s;
}
#define SHAPE(dtype, ...) shape(dtype, (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8), (int64_t[]){__VA_ARGS__})
#define FACTS(...) .n_facts = (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8), .facts = {__VA_ARGS__}

static int check_elementwise(Op op, bool few)
{
    static const DType dtypes[] = {DT_F32, DT_I32, DT_BOOL, DT_U64, DT_BF16, DT_F64};
    int ran = 0;
    for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes && !(few && ran > 0); t++) {
        Case c = {.op = op, .own = op == OP_CAST ? dtypes[(t + 1) % 6] : DT_COUNT, .n_in = (uint32_t)op_info[op].arity};
        DType in[MOST_IN];
        for (uint32_t k = 0; k < c.n_in; k++) {
            in[k] = op == OP_WHERE && k == 0 ? DT_BOOL : dtypes[t];
            c.in[k] = SHAPE(in[k], 2, 3);
        }
        if (infer_dtype(op, c.n_in, in, c.own) == DT_COUNT)
            continue;
        check_all(&c, few);
        ran++;
    }
    return ran;
}

static const Shape f32_423 = {DT_F32, 3, {4, 2, 3}};

static int run_cases(const Case *cases, size_t n, Op op, bool few)
{
    int ran = 0;
    for (size_t k = 0; k < n; k++)
        if (cases[k].op == op) {
            check_all(&cases[k], few);
            ran++;
        }
    return ran;
}

static int check_others(Op op, bool few)
{
    const Case cases[] = {
        {OP_RESHAPE, DT_F32, {.n = 2, .group = {{2, 1}, {1, 1}}}, 1, .in = {f32_423}},
        {OP_RESHAPE, DT_F32, {.n = 3, .group = {{1, 1, 1}, {2, 1, 1}}}, 1, FACTS(2, 2), .in = {f32_423}},
        {OP_RESHAPE, DT_F32, {.n = 4, .group = {{1, 0, 1, 1}, {1, 1, 1, 1}}}, 1, .in = {f32_423}},
        {OP_RESHAPE, DT_F32, {.n = 3, .group = {{1, 1, 1}, {1, 0, 1}}}, 1, .in = {SHAPE(DT_F32, 4, 1, 3)}},
        {OP_RESHAPE, DT_F32, {.n = 1, .group = {{3}, {2}}}, 1, FACTS(6, 4), .in = {f32_423}},
        {OP_PERMUTE, DT_F32, {.perm = {2, 0, 1}}, 1, .in = {f32_423}},
        {OP_EXPAND, DT_F32, {.mask = 2}, 1, FACTS(5), .in = {SHAPE(DT_F32, 4, 1, 3)}},
        {OP_SLICE, DT_F32, {.mask = 5}, 1, FACTS(3, -1, 2, 1, 1, 2), .in = {f32_423}},
        {OP_PAD, DT_F32, {.mask = 6}, 2, FACTS(1, 0, 2, 1), .in = {f32_423, {DT_F32, 0, {0}}}},
        {OP_WINDOW, DT_F32, {.axis = 0}, 1, FACTS(1, 1, 3, 2), .in = {f32_423}},
        {OP_CONCAT, DT_F32, {.axis = 1}, 3, .in = {f32_423, SHAPE(DT_F32, 4, 1, 3), f32_423}},
        {OP_CUMSUM, DT_F32, {.axis = 1}, 1, .in = {SHAPE(DT_F32, 2, 40)}},
        {OP_CUMSUM, DT_I32, {.axis = 0}, 1, .in = {SHAPE(DT_I32, 4, 3)}},
        {OP_ARGSORT, DT_I64, {.axis = 1, .flag = 1}, 1, .in = {SHAPE(DT_F32, 2, 9)}},
        {OP_GATHER, DT_F32, {.axis = 1}, 2, .in = {f32_423, SHAPE(DT_I64, 4, 5, 3)}, .index = {false, true}},
        {OP_GATHER, DT_F32, {.axis = 0}, 2, .in = {SHAPE(DT_F32, 4), SHAPE(DT_I64, 5)}, .index = {false, true}},
        {OP_MATMUL, DT_F32, {0}, 2, .in = {SHAPE(DT_F32, 4, 5), SHAPE(DT_F32, 5, 3)}},
        {OP_MATMUL, DT_F64, {0}, 2, .in = {SHAPE(DT_F64, 2, 4, 5), SHAPE(DT_F64, 2, 5, 3)}},
        {OP_MATMUL, DT_I32, {0}, 2, .in = {SHAPE(DT_I32, 4, 5), SHAPE(DT_I32, 5, 1)}},
    };
    int ran = run_cases(cases, sizeof cases / sizeof *cases, op, few);
    for (uint8_t mode = SCATTER_SET; op == OP_SCATTER && mode <= SCATTER_MIN; mode++, ran++)
        check_all(&(Case){OP_SCATTER,
                          DT_F32,
                          {.axis = 1, .mode = mode},
                          3,
                          .in = {f32_423, SHAPE(DT_I64, 4, 5, 3), SHAPE(DT_F32, 4, 5, 3)},
                          .index = {false, true}},
                  few);
    for (uint8_t mask = 1; op_class(op) == CLS_REDUCE && mask < 8; mask++, ran++) {
        DType dtype = op_info[op].rule == RULE_BOOL ? DT_BOOL : mask == 7 ? DT_I32 : DT_F32;
        if (op == OP_REDUCE_SUM && mask == 5) /* long enough for lanes */
            check_all(&(Case){op, dtype, {.mask = 1}, 1, .in = {SHAPE(dtype, 300)}}, few);
        check_all(&(Case){op, op_info[op].rule == RULE_INDEX ? DT_I64 : dtype, {.mask = mask}, 1, .in = {SHAPE(dtype, 4, 2, 3)}}, few);
    }
    return ran;
}

/* Not by this test: without operands; loops and branches and their results (api/test_map, test_loop). */
static bool elsewhere(Op op) { return op_class(op) == CLS_LEAF || op_class(op) == CLS_BODY || op_class(op) == CLS_RESULT; }

static void check_each_op(const char *mode, bool few)
{
    cr_assert_eq(kiln_set_option("math", "strict"), KILN_OK);
    cr_assert_eq(kiln_set_option("mode", mode), KILN_OK);
    for (int op = 0; op < OP_COUNT; op++) {
        int ran = elsewhere((Op)op) ? 1 : op_class((Op)op) == CLS_EW ? check_elementwise((Op)op, few) : check_others((Op)op, few);
        cr_assert(ran > 0, "%s has no case here", op_name((Op)op));
    }
}

Test(map, is_each_op_on_slices) { check_each_op("interp", false); }
Test(map, compiled_is_each_op_on_slices) { check_each_op("jit", true); }
