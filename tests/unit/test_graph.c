/* Arenas, sizes, interning, compaction. */
#include "ir/base/hash.h"
#include "ir/query.h"
#include "tests/unit/graphs.h"

#include <stdio.h>

TestSuite(graph, .init = open_arena, .fini = close_arena);
TestSuite(dim, .init = open_arena, .fini = close_arena);
TestSuite(base, .init = open_arena, .fini = close_arena);

/* ---- base ---- */

Test(base, arena_memory_is_zeroed_aligned_and_disjoint)
{
    char *last = NULL;
    for (size_t bytes = 0; bytes < 100000; bytes = bytes * 3 + 1) {
        char *at = arena_alloc(&arena, bytes);
        cr_assert_eq((uintptr_t)at % 16, 0);
        for (size_t k = 0; k < bytes; k++)
            cr_assert_eq(at[k], 0);
        memset(at, 0x5a, bytes);
        cr_assert_neq(at, last);
        last = at;
    }
    char *text = arena_printf(&arena, "%s-%d", "a", 5);
    cr_assert_str_eq(text, "a-5");
    cr_assert_str_eq(arena_strdup(&arena, text), text);
}

Test(base, arena_jumps_when_memory_runs_out)
{
    Arena small;
    jmp_buf out;
    arena_init(&small, &out);
    volatile int jumped = 0;
    if (setjmp(out))
        jumped = 1;
    else
        arena_alloc(&small, SIZE_MAX - 5);
    cr_assert(jumped);
    arena_free(&small);
    cr_assert_eq(small.bytes, 0);
}

Test(base, texts_grow)
{
    Str s;
    str_init(&s, &arena);
    cr_assert_str_eq(s.text, "");
    for (int k = 0; k < 1000; k++)
        str_printf(&s, "%d,", k);
    str_printf(&s, "%0500d", 7);
    cr_assert_eq(strlen(s.text), s.len);
    cr_assert_eq(s.len, 10 * 2 + 90 * 3 + 900 * 4 + 500);
}

Test(base, a_message_may_quote_the_last_one)
{
    cr_assert_eq(fail(ST_SHAPE, "inner %d", 3), ST_SHAPE);
    cr_assert_eq(fail(ST_INDEX, "outer: %s", fail_message()), ST_INDEX);
    cr_assert_str_eq(fail_message(), "outer: inner 3");
    cr_assert_str_eq(status_name(ST_SHAPE), "shapes do not fit");
}

Test(base, vectors_keep_their_elements)
{
    VEC(int) v = {0};
    for (int k = 0; k < 1000; k++)
        VEC_PUSH(&arena, v, k * k);
    cr_assert_eq(v.n, 1000);
    for (int k = 0; k < 1000; k++)
        cr_assert_eq(v.at[k], k * k);
}

Test(base, hashes_differ)
{
    Hash128 a = hash128("abc", 3), b = hash128("abd", 3), c = hash128("abc", 3);
    cr_assert(a.lo != b.lo && a.hi != b.hi && a.lo == c.lo && a.hi == c.hi);
    cr_assert_neq(hash64("", 0), hash64("\0", 1));
}

/* ---- dtypes ---- */

Test(graph, promotion)
{
    static const struct {
        DType a, b, want;
    } table[] = {
        {DT_BOOL, DT_I8, DT_I8},   {DT_I8, DT_U8, DT_I16},    {DT_I16, DT_U8, DT_I16},  {DT_I8, DT_U32, DT_I64},
        {DT_I64, DT_U32, DT_I64},  {DT_I8, DT_U64, DT_F32},   {DT_U8, DT_U64, DT_U64},  {DT_I64, DT_F16, DT_F16},
        {DT_F16, DT_BF16, DT_F32}, {DT_BF16, DT_F64, DT_F64}, {DT_F32, DT_F16, DT_F32}, {DT_U16, DT_I16, DT_I32},
    };
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        cr_assert_eq(dtype_promote(table[k].a, table[k].b), table[k].want, "row %zu", k);
        cr_assert_eq(dtype_promote(table[k].b, table[k].a), table[k].want, "row %zu", k);
    }
    for (int t = 0; t < DT_COUNT; t++) {
        const char *name = dtype_name((DType)t);
        cr_assert_eq(dtype_promote((DType)t, (DType)t), (DType)t);
        cr_assert_eq(dtype_parse(name, strlen(name)), (DType)t);
    }
    cr_assert_eq(dtype_parse("f3", 2), DT_COUNT);
    cr_assert_eq(dtype_promote_weak(DT_I32, DK_FLOAT), DT_F32);
    cr_assert_eq(dtype_promote_weak(DT_BOOL, DK_INT), DT_I64);
    cr_assert_eq(dtype_promote_weak(DT_F16, DK_FLOAT), DT_F16);
    cr_assert_eq(dtype_promote_weak(DT_U8, DK_INT), DT_U8);
    cr_assert_eq(dtype_accumulator(DT_BF16), DT_F32);
}

/* ---- sizes ---- */

static Dim fact(Graph *g, int64_t value) { return dim_fact(g, value, FACT_DIM, 0, REF_NONE); }

static const char *text(const Graph *g, Dim d)
{
    Str s;
    str_init(&s, &arena);
    dim_print(g, d, &s);
    return s.text;
}

Test(dim, constants_fold_and_equal_spellings_are_one)
{
    Graph *g = graph_new(&arena);
    Dim a = fact(g, 6), b = fact(g, 7), two = dim_const(g, 2);
    cr_assert_eq(dim_mul(g, two, dim_const(g, 3)), dim_const(g, 6));
    cr_assert_eq(dim_mul(g, a, dim_const(g, 1)), a);
    cr_assert_eq(dim_mul(g, a, dim_const(g, 0)), dim_const(g, 0));
    cr_assert_eq(dim_add(g, dim_const(g, 0), a), a);
    cr_assert_eq(dim_mul(g, a, b), dim_mul(g, b, a));
    cr_assert_str_eq(text(g, dim_mul(g, dim_mul(g, two, a), dim_mul(g, b, two))), "((s0*s1)*4)");
    cr_assert_str_eq(text(g, dim_add(g, dim_add(g, two, a), dim_add(g, b, two))), "((s0+s1)+4)");
    cr_assert_str_eq(text(g, dim_add(g, a, a)), "(s0*2)");
    cr_assert_str_eq(text(g, dim_add(g, dim_add(g, a, a), a)), "(s0*3)");
    cr_assert_eq(dim_hint(g, dim_mul(g, a, b)), 42);
}

Test(dim, classes_prefer_constants_then_old_facts)
{
    Graph *g = graph_new(&arena);
    Dim a = fact(g, 5), b = fact(g, 5), c = fact(g, 5), sum = dim_add(g, fact(g, 2), fact(g, 3));
    dim_unify(g, b, sum);
    cr_assert_eq(dim_find(g, sum), b);
    dim_unify(g, b, c);
    dim_unify(g, c, a);
    cr_assert_eq(dim_find(g, sum), a);
    cr_assert_not(dim_same(g, a, dim_const(g, 5)));
    dim_unify(g, sum, dim_const(g, 5));
    cr_assert_eq(dim_find(g, c), dim_const(g, 5));
    cr_assert(dim_same(g, a, dim_const(g, 5)));
    cr_assert_eq(dim_mul(g, c, dim_const(g, 2)), dim_const(g, 10), "the constant is used");
}

Test(dim, expressions_are_compared_through_classes)
{
    Graph *g = graph_new(&arena);
    Dim a = fact(g, 2), b = fact(g, 3), c = fact(g, 5), b2 = fact(g, 3);
    Dim p = dim_mul(g, dim_mul(g, a, b), c), q = dim_mul(g, a, dim_mul(g, c, b2));
    cr_assert_not(dim_same(g, p, q));
    dim_unify(g, b, b2);
    cr_assert(dim_same(g, p, q));
    cr_assert(dim_same(g, dim_add(g, p, c), dim_add(g, c, q)));
    cr_assert_not(dim_same(g, dim_add(g, p, c), dim_add(g, q, b)));
    cr_assert_not(dim_same(g, a, b));
}

Test(dim, a_product_that_equals_its_factor_does_not_loop)
{
    Graph *g = graph_new(&arena);
    Dim a = fact(g, 4), b = fact(g, 1), p = dim_mul(g, a, b), q = dim_mul(g, p, b);
    dim_unify(g, a, p);
    dim_unify(g, q, p);
    cr_assert(dim_same(g, q, a));
    Dim e = dim_mul(g, fact(g, 1), fact(g, 1)), f = dim_mul(g, e, fact(g, 1));
    dim_unify(g, e, f);
    cr_assert(dim_same(g, e, f));
    cr_assert_not(dim_same(g, e, dim_mul(g, b, fact(g, 1))));
    uint32_t *facts;
    cr_assert_eq(dim_facts(g, q, &facts), 1);
    cr_assert_eq(facts[0], 0);
}

Test(dim, exponential_expressions_are_walked_in_linear_time)
{
    Graph *g = graph_new(&arena);
    Dim d = fact(g, 1), other = fact(g, 1), one = fact(g, 1);
    for (int k = 0; k < 200; k++) {
        d = dim_expr(g, DIM_MUL, d, d);
        other = dim_expr(g, DIM_MUL, other, other);
    }
    int64_t ints[] = {1, 1, 1};
    cr_assert_eq(dim_eval(g, d, ints), 1);
    uint32_t *facts;
    cr_assert_eq(dim_facts(g, d, &facts), 1);
    cr_assert_not(dim_same(g, d, other));
    cr_assert(dim_same(g, d, d));
    Str s;
    str_init(&s, &arena);
    dim_print(g, d, &s);
    cr_assert_lt(s.len, 100000u);
    int64_t value;
    cr_assert(spec_dim(g, dim_mul(g, d, one), "test", &value));
    cr_assert_eq(value, 1);
}

Test(dim, evaluation_wraps_but_the_whole_is_right)
{
    Graph *g = graph_new(&arena);
    Dim big = fact(g, INT64_C(1) << 40), p = dim_mul(g, dim_mul(g, big, big), fact(g, 0));
    cr_assert_eq(dim_hint(g, p), 0);
    cr_assert_eq(dim_eval(g, p, (int64_t[]){3, 5}), 45);
    cr_assert_eq(dim_eval(g, p, (int64_t[]){INT64_C(1) << 50, 0}), 0);
}

Test(dim, long_sums_stay_linear)
{
    Graph *g = graph_new(&arena);
    Dim sum = dim_const(g, 0);
    for (int k = 0; k < 20000; k++)
        sum = dim_add(g, sum, fact(g, k));
    int64_t *ints = arena_alloc(&arena, sizeof *ints * 20000);
    for (int k = 0; k < 20000; k++)
        ints[k] = 1;
    cr_assert_eq(dim_eval(g, sum, ints), 20000);
    uint32_t *facts;
    cr_assert_eq(dim_facts(g, sum, &facts), 20000);
}

/* ---- nodes ---- */

Test(graph, nodes_without_facts_are_interned)
{
    Graph *g = graph_new(&arena);
    Ref x = graph_add_input(g, DT_F32, 2, (int64_t[]){3, 4}, NULL, (Loc){0});
    Ref y = graph_add_input(g, DT_F32, 2, (int64_t[]){3, 4}, NULL, (Loc){0});
    cr_assert_neq(x, y);
    Ref a = graph_ew(g, OP_ADD, x, y, REF_NONE, (Loc){0});
    cr_assert_eq(graph_ew(g, OP_ADD, x, y, REF_NONE, (Loc){"other.c", 7}), a);
    cr_assert_neq(graph_ew(g, OP_ADD, y, x, REF_NONE, (Loc){0}), a);
    cr_assert_neq(graph_ew(g, OP_SUB, x, y, REF_NONE, (Loc){0}), a);
    Attr rows = {.mask = 1}, columns = {.mask = 2};
    Ref s = graph_add(g, OP_REDUCE_SUM, DT_F32, &a, 1, &rows, NULL, 0, (Loc){0});
    cr_assert_neq(graph_add(g, OP_REDUCE_SUM, DT_F32, &a, 1, &columns, NULL, 0, (Loc){0}), s);
    cr_assert_eq(graph_add(g, OP_REDUCE_SUM, DT_F32, &a, 1, &rows, NULL, 0, (Loc){0}), s);
    cr_assert_neq(graph_add(g, OP_CAST, DT_F16, &a, 1, NULL, NULL, 0, (Loc){0}),
                  graph_add(g, OP_CAST, DT_I8, &a, 1, NULL, NULL, 0, (Loc){0}));
}

Test(graph, nodes_with_facts_are_not)
{
    Graph *g = graph_new(&arena);
    Ref x = graph_add_input(g, DT_F32, 1, (int64_t[]){8}, NULL, (Loc){0});
    Attr first = {.mask = 1};
    Dim facts[3] = {dim_const(g, 0), dim_const(g, 1), fact(g, 4)};
    cr_assert_neq(graph_add(g, OP_SLICE, DT_F32, &x, 1, &first, facts, 3, (Loc){0}),
                  graph_add(g, OP_SLICE, DT_F32, &x, 1, &first, facts, 3, (Loc){0}));
    cr_assert_neq(graph_add_scalar(g, DT_F32, 5, (Loc){0}), graph_add_scalar(g, DT_F32, 5, (Loc){0}));
    Ref c = graph_add_const(g, DT_F32, 5, (Loc){0});
    cr_assert_eq(graph_add_const(g, DT_F32, 5, (Loc){0}), c);
    cr_assert_neq(graph_add_const(g, DT_I32, 5, (Loc){0}), c);
    cr_assert_neq(graph_add_const(g, DT_F32, 6, (Loc){0}), c);
    uint64_t bits;
    cr_assert(graph_is_const(g, c, &bits) && bits == 5);
    cr_assert_not(graph_is_const(g, x, &bits));
    cr_assert_eq(graph_verify(g), ST_OK, "%s", fail_message());
}

Test(graph, interning_survives_growth)
{
    Graph *g = graph_new(&arena);
    Ref x = graph_add_input(g, DT_I64, 0, NULL, NULL, (Loc){0}), made[2000];
    for (int k = 0; k < 2000; k++)
        made[k] = graph_ew(g, OP_ADD, k ? made[k - 1] : x, x, REF_NONE, (Loc){0});
    uint32_t n = g->nodes.n;
    for (int k = 0; k < 2000; k++)
        cr_assert_eq(graph_ew(g, OP_ADD, k ? made[k - 1] : x, x, REF_NONE, (Loc){0}), made[k]);
    cr_assert_eq(g->nodes.n, n);
}

Test(graph, more_than_256_inputs)
{
    Graph *g = graph_new(&arena);
    for (int k = 0; k < 1000; k++)
        graph_add_input(g, DT_F32, 1, (int64_t[]){2}, NULL, (Loc){0});
    cr_assert_eq(graph_node(g, g->inputs.at[999])->attr.n, 999);
    cr_assert_eq(graph_verify(g), ST_OK, "%s", fail_message());
}

Test(graph, compaction_keeps_inputs_and_facts)
{
    Graph *g = parse("graph g(%0: f32[2,3], %1: f32[5]) {\n"
                     "  %2 = neg %1\n %3 = slice %1 axes(0) range(0:1:4)\n %4 = exp %0\n %5 = const f32 2\n"
                     "  %6 = slice %0 axes(1) range(1:1:2)\n return %6 %6 }");
    Ref map[7];
    graph_compact(g, map);
    cr_assert_eq(map[2], REF_NONE);
    cr_assert_eq(map[6], 2);
    cr_assert_eq(graph_verify(g), ST_OK, "%s", fail_message());
    cr_assert_str_eq(print(g), "graph g(%0: f32[2,3], %1: f32[5]) {\n"
                               "  %2 = slice %0 axes(1) range(s6=1:1:2) : f32[2,2]\n"
                               "  return %2 %2\n}\n");
    cr_assert_eq(g->shared->ints.at[6].node, 2);
    cr_assert_eq(g->shared->ints.at[3].node, REF_NONE);
    cr_assert_eq(graph_add_const(g, DT_F32, 7, (Loc){0}), 3, "interning goes on");
}

/* What makes two sizes equal, by structure. */
Test(graph, ops_unify_sizes)
{
    Graph *g = parse("graph g(%0: f32[4,6], %1: f32[4,6], %2: f32[6,5], %3: f32[24], %4: f32[1,6]) {\n"
                     "  %5 = add %0 %1\n"    /* s0=s2 s1=s3 */
                     "  %6 = matmul %0 %2\n" /* s1=s4 */
                     "  %7 = reshape %0 groups(2:1)\n"
                     "  %8 = mul %7 %3\n"                        /* s6=s0*s1 */
                     "  %9 = reshape %3 groups(1:2) size(4 6)\n" /* s9 s10: product s6 */
                     "  %10 = reshape %9 groups(2:1)\n"
                     "  %11 = expand %4 axes(0) size(4)\n" /* s7 = 1 */
                     "  %12 = concat %0 %1 axis(0)\n"
                     "  return %5 %6 %8 %10 %11 %12 }");
    const Node *x = graph_node(g, 0), *y = graph_node(g, 1), *w = graph_node(g, 2), *flat = graph_node(g, 3);
    cr_assert(dim_same(g, x->dim[0], y->dim[0]) && dim_same(g, x->dim[1], y->dim[1]));
    cr_assert(dim_same(g, x->dim[1], w->dim[0]));
    cr_assert_not(dim_same(g, x->dim[0], w->dim[1]));
    cr_assert(dim_same(g, flat->dim[0], dim_mul(g, y->dim[1], y->dim[0])));
    cr_assert(dim_same(g, node_numel(g, 9), flat->dim[0]));
    cr_assert(dim_same(g, graph_node(g, 10)->dim[0], flat->dim[0]));
    cr_assert_eq(dim_find(g, graph_node(g, 4)->dim[0]), dim_const(g, 1));
    cr_assert(dim_same(g, graph_node(g, 12)->dim[0], dim_mul(g, y->dim[0], dim_const(g, 2))));
}

Test(graph, broken_graphs_are_found)
{
    Graph *g = parse("graph g(%0: f32[2,3]) { %1 = neg %0 %2 = reduce_sum %1 axes(0) return %2 }");
    cr_assert_eq(graph_verify(g), ST_OK);
    Node *n = graph_node(g, 2), good = *n;
    n->dtype = DT_I8;
    cr_assert_eq(graph_verify(g), ST_INTERNAL);
    cr_assert(strstr(fail_message(), "%2 = reduce_sum %1"), "%s", fail_message());
    *n = good;
    n->attr.axis = 1;
    cr_assert_eq(graph_verify(g), ST_INTERNAL);
    *n = good;
    n->attr.mask = 4;
    cr_assert_eq(graph_verify(g), ST_INTERNAL);
    *n = good;
    n->dim[0] = graph_node(g, 0)->dim[0];
    cr_assert_eq(graph_verify(g), ST_INTERNAL);
    *n = good;
    n->in[0] = 2;
    cr_assert_eq(graph_verify(g), ST_INTERNAL);
    n->in[0] = 1;
    cr_assert_eq(graph_verify(g), ST_OK);
    g->outputs.at[0] = 3;
    cr_assert_eq(graph_verify(g), ST_INTERNAL);
}
