/* Shapes and dtypes: what is accepted, what is refused with which words, reshape groups. */
#include "ir/rules.h"
#include "tests/unit/graphs.h"

#include <stdio.h>

TestSuite(infer, .init = open_arena, .fini = close_arena);

static Shape shape(DType dtype, int rank, const int64_t *dims)
{
    Shape s = {.dtype = (uint8_t)dtype, .rank = (uint8_t)rank};
    for (int d = 0; d < rank; d++)
        s.dim[d] = dims[d];
    return s;
}
#define SHAPE(t, ...) shape(DT_##t, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__})
#define RANK0(t) shape(DT_##t, 0, NULL)

/* Infers and compares the result or the message with `want`. */
static void check(Status status, const char *want, Op op, Attr attr, uint32_t n_in, const Shape *in, uint32_t n_facts, const int64_t *facts)
{
    Shape out;
    char text[SHAPE_TEXT];
    Status got = infer_shape(op, &attr, n_in, in, facts, n_facts, DT_F16, &out);
    const char *said = got == ST_OK ? shape_text(&out, text) : fail_message();
    cr_assert_eq(got, status, "%s: %s", op_name(op), said);
    cr_assert_str_eq(said, want, "%s", op_name(op));
}
#define OK ST_OK
#define INS(...) \
    (uint32_t)(sizeof((Shape[]){__VA_ARGS__}) / sizeof(Shape)), (Shape[]) { __VA_ARGS__ }
#define FACTS(...) \
    (uint32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) { __VA_ARGS__ }
#define NOFACTS 0, NULL
#define ATTR(...) ((Attr){__VA_ARGS__})

Test(infer, elementwise)
{
    check(OK, "f32[2,3]", OP_ADD, ATTR(0), INS(SHAPE(F32, 2, 3), SHAPE(F32, 2, 3)), NOFACTS);
    check(OK, "bool[2]", OP_LT, ATTR(0), INS(SHAPE(F32, 2), SHAPE(F32, 2)), NOFACTS);
    check(OK, "f16[0]", OP_CAST, ATTR(0), INS(SHAPE(U8, 0)), NOFACTS);
    check(OK, "i8[]", OP_WHERE, ATTR(0), INS(RANK0(BOOL), RANK0(I8), RANK0(I8)), NOFACTS);
    check(ST_SHAPE, "shapes differ: a is f32[2,3], b is f32[3,2]", OP_ADD, ATTR(0), INS(SHAPE(F32, 2, 3), SHAPE(F32, 3, 2)), NOFACTS);
    check(ST_DTYPE, "add does not take f32, f64", OP_ADD, ATTR(0), INS(SHAPE(F32, 2), SHAPE(F64, 2)), NOFACTS);
    check(ST_DTYPE, "add does not take bool, bool", OP_ADD, ATTR(0), INS(RANK0(BOOL), RANK0(BOOL)), NOFACTS);
    check(ST_DTYPE, "exp does not take i32", OP_EXP, ATTR(0), INS(RANK0(I32)), NOFACTS);
    check(ST_DTYPE, "shl does not take bool, bool", OP_SHL, ATTR(0), INS(RANK0(BOOL), RANK0(BOOL)), NOFACTS);
    check(ST_DTYPE, "where does not take i8, i8, i8", OP_WHERE, ATTR(0), INS(RANK0(I8), RANK0(I8), RANK0(I8)), NOFACTS);
}

Test(infer, views)
{
    check(OK, "f32[6,4]", OP_RESHAPE, ATTR(.n = 2, .group = {{2, 1}, {1, 1}}), INS(SHAPE(F32, 2, 3, 4)), NOFACTS);
    check(OK, "f32[2,0,5]", OP_RESHAPE, ATTR(.n = 1, .group = {{2}, {3}}), INS(SHAPE(F32, 0, 3)), FACTS(2, 0, 5));
    check(ST_SHAPE, "sizes do not multiply to the same number at axis 0: a is f32[6]", OP_RESHAPE, ATTR(.n = 1, .group = {{1}, {2}}),
          INS(SHAPE(F32, 6)), FACTS(2, 4));
    check(ST_SHAPE, "sizes do not multiply to the same number at axis 0: a is f32[2]", OP_RESHAPE, ATTR(.n = 1, .group = {{1}, {0}}),
          INS(SHAPE(F32, 2)), NOFACTS);
    check(ST_INVALID, "groups cover 1 of 2 axes", OP_RESHAPE, ATTR(.n = 1, .group = {{1}, {1}}), INS(SHAPE(F32, 2, 2)), NOFACTS);
    check(OK, "f32[3,2]", OP_PERMUTE, ATTR(.perm = {1, 0}), INS(SHAPE(F32, 2, 3)), NOFACTS);
    check(ST_INVALID, "the axes are no permutation of 2 axes", OP_PERMUTE, ATTR(.perm = {1, 1}), INS(SHAPE(F32, 2, 3)), NOFACTS);
    check(OK, "f32[5,3]", OP_EXPAND, ATTR(.mask = 1), INS(SHAPE(F32, 1, 3)), FACTS(5));
    check(ST_SHAPE, "axis 1 is not of size 1: a is f32[1,3]", OP_EXPAND, ATTR(.mask = 3), INS(SHAPE(F32, 1, 3)), FACTS(5, 6));
    check(ST_INVALID, "axis 2 does not exist: a is f32[1,3]", OP_EXPAND, ATTR(.mask = 4), INS(SHAPE(F32, 1, 3)), FACTS(5));
    check(ST_OVERFLOW, "too many elements: f32[4611686018427387904,3]", OP_EXPAND, ATTR(.mask = 1), INS(SHAPE(F32, 1, 3)),
          FACTS(INT64_C(1) << 62));
}

Test(infer, slices)
{
    check(OK, "f32[4]", OP_SLICE, ATTR(.mask = 1), INS(SHAPE(F32, 8)), FACTS(1, 2, 4));
    check(OK, "f32[8]", OP_SLICE, ATTR(.mask = 1), INS(SHAPE(F32, 8)), FACTS(7, -1, 8));
    check(OK, "f32[0]", OP_SLICE, ATTR(.mask = 1), INS(SHAPE(F32, 0)), FACTS(-1, -1, 0));
    check(ST_INDEX, "start 1, step 2, length 5 leave axis 0: a is f32[8]", OP_SLICE, ATTR(.mask = 1), INS(SHAPE(F32, 8)), FACTS(1, 2, 5));
    check(ST_INDEX, "start -1, step 1, length 1 leave axis 0: a is f32[8]", OP_SLICE, ATTR(.mask = 1), INS(SHAPE(F32, 8)), FACTS(-1, 1, 1));
    check(ST_INDEX, "start 0, step 9223372036854775807, length 3 leave axis 0: a is f32[8]", OP_SLICE, ATTR(.mask = 1), INS(SHAPE(F32, 8)),
          FACTS(0, INT64_MAX, 3));
    check(ST_SHAPE, "length along axis 0 is -1", OP_SLICE, ATTR(.mask = 1), INS(SHAPE(F32, 8)), FACTS(0, 1, -1));
    check(OK, "f32[3,13]", OP_PAD, ATTR(.mask = 2), INS(SHAPE(F32, 3, 8), RANK0(F32)), FACTS(1, 4));
    check(ST_SHAPE, "padding of axis 0 is 0, -1", OP_PAD, ATTR(.mask = 1), INS(SHAPE(F32, 3), RANK0(F32)), FACTS(0, -1));
    check(ST_OVERFLOW, "padding of axis 0 overflows", OP_PAD, ATTR(.mask = 1), INS(SHAPE(F32, 3), RANK0(F32)), FACTS(INT64_MAX, 1));
    check(ST_SHAPE, "the value is not of rank 0: b is f32[1]", OP_PAD, ATTR(.mask = 1), INS(SHAPE(F32, 3), SHAPE(F32, 1)), FACTS(0, 1));
    check(OK, "f32[2,12]", OP_CONCAT, ATTR(.axis = 1), INS(SHAPE(F32, 2, 3), SHAPE(F32, 2, 4), SHAPE(F32, 2, 5)), NOFACTS);
    check(ST_SHAPE, "shapes differ: a is f32[2,3], b is f32[3,3]", OP_CONCAT, ATTR(.axis = 1), INS(SHAPE(F32, 2, 3), SHAPE(F32, 3, 3)),
          NOFACTS);
    check(ST_INVALID, "axis 0 does not exist: a is f32[]", OP_CONCAT, ATTR(.axis = 0), INS(RANK0(F32)), NOFACTS);
    check(OK, "f32[2,3,2,5]", OP_WINDOW, ATTR(.axis = 1), INS(SHAPE(F32, 2, 7, 5)), FACTS(2, 2, 3, 2));
    check(OK, "f32[0,9]", OP_WINDOW, ATTR(.axis = 0), INS(SHAPE(F32, 7)), FACTS(2, 1, 0, 9));
    check(ST_INDEX, "4 windows of 2, stride 2, dilation 2 leave axis 0: a is f32[8]", OP_WINDOW, ATTR(.axis = 0), INS(SHAPE(F32, 8)),
          FACTS(2, 2, 4, 2));
    check(ST_INDEX, "2 windows of 9223372036854775807, stride 2, dilation 2 leave axis 0: a is f32[8]", OP_WINDOW, ATTR(.axis = 0),
          INS(SHAPE(F32, 8)), FACTS(2, 2, 2, INT64_MAX));
    check(ST_INVALID, "1 windows of 0, stride 1, dilation 1", OP_WINDOW, ATTR(.axis = 0), INS(SHAPE(F32, 8)), FACTS(1, 1, 1, 0));
    check(ST_INVALID, "axis 1 does not exist: a is f32[8]", OP_WINDOW, ATTR(.axis = 1), INS(SHAPE(F32, 8)), FACTS(1, 1, 1, 1));
    check(ST_SHAPE, "windows add an axis, and 8 are the most: a is f32[1,1,1,1,1,1,1,1]", OP_WINDOW, ATTR(.axis = 1),
          INS(SHAPE(F32, 1, 1, 1, 1, 1, 1, 1, 1)), FACTS(1, 1, 1, 1));
    check(OK, "i64[5]", OP_IOTA, ATTR(0), 0, NULL, FACTS(5));
    check(ST_SHAPE, "length is -5", OP_IOTA, ATTR(0), 0, NULL, FACTS(-5));
}

Test(infer, reductions)
{
    check(OK, "f32[3]", OP_REDUCE_SUM, ATTR(.mask = 5), INS(SHAPE(F32, 2, 3, 4)), NOFACTS);
    check(OK, "f32[]", OP_REDUCE_SUM, ATTR(.mask = 1), INS(SHAPE(F32, 0)), NOFACTS);
    check(OK, "i64[2]", OP_ARGMAX, ATTR(.mask = 2), INS(SHAPE(F16, 2, 3)), NOFACTS);
    check(ST_SHAPE, "of zero elements has no value: a is f32[2,0]", OP_ARGMAX, ATTR(.mask = 2), INS(SHAPE(F32, 2, 0)), NOFACTS);
    check(OK, "f32[0]", OP_REDUCE_MIN, ATTR(.mask = 2), INS(SHAPE(F32, 0, 0)), NOFACTS);
    check(OK, "f32[2]", OP_REDUCE_MAX, ATTR(.mask = 2), INS(SHAPE(F32, 2, 0)), NOFACTS);
    check(OK, "f32[0]", OP_REDUCE_MAX, ATTR(.mask = 2), INS(SHAPE(F32, 0, 3)), NOFACTS);
    check(ST_DTYPE, "reduce_any does not take f32", OP_REDUCE_ANY, ATTR(.mask = 1), INS(SHAPE(F32, 3)), NOFACTS);
    check(ST_DTYPE, "reduce_sum does not take bool", OP_REDUCE_SUM, ATTR(.mask = 1), INS(SHAPE(BOOL, 3)), NOFACTS);
    check(OK, "f32[2,3]", OP_CUMSUM, ATTR(.axis = 1), INS(SHAPE(F32, 2, 3)), NOFACTS);
    check(OK, "i64[2,3]", OP_ARGSORT, ATTR(.axis = 1, .flag = 1), INS(SHAPE(BOOL, 2, 3)), NOFACTS);
    check(ST_INVALID, "axis 2 does not exist: a is f32[2,3]", OP_CUMSUM, ATTR(.axis = 2), INS(SHAPE(F32, 2, 3)), NOFACTS);
}

Test(infer, indices)
{
    check(OK, "f32[2,7]", OP_GATHER, ATTR(.axis = 1), INS(SHAPE(F32, 2, 3), SHAPE(I64, 2, 7)), NOFACTS);
    check(ST_SHAPE, "shapes differ outside axis 1: a is f32[2,3], the index is i64[3,7]", OP_GATHER, ATTR(.axis = 1),
          INS(SHAPE(F32, 2, 3), SHAPE(I64, 3, 7)), NOFACTS);
    check(ST_DTYPE, "gather does not take f32, i32", OP_GATHER, ATTR(.axis = 0), INS(SHAPE(F32, 2), SHAPE(I32, 2)), NOFACTS);
    check(ST_INDEX, "axis 0 has no elements to index", OP_GATHER, ATTR(.axis = 0), INS(SHAPE(F32, 0), SHAPE(I64, 2)), NOFACTS);
    check(OK, "f32[0]", OP_GATHER, ATTR(.axis = 0), INS(SHAPE(F32, 0), SHAPE(I64, 0)), NOFACTS);
    check(OK, "f32[9]", OP_SCATTER, ATTR(.mode = SCATTER_ADD), INS(SHAPE(F32, 9), SHAPE(I64, 2), SHAPE(F32, 2)), NOFACTS);
    check(ST_SHAPE, "index and source differ: the index is i64[2], the source is f32[3]", OP_SCATTER, ATTR(0),
          INS(SHAPE(F32, 9), SHAPE(I64, 2), SHAPE(F32, 3)), NOFACTS);
    check(ST_DTYPE, "only `set` scatters bools", OP_SCATTER, ATTR(.mode = SCATTER_MAX), INS(SHAPE(BOOL, 9), SHAPE(I64, 2), SHAPE(BOOL, 2)),
          NOFACTS);
}

Test(infer, matmul)
{
    check(OK, "f32[256,512]", OP_MATMUL, ATTR(0), INS(SHAPE(F32, 256, 1024), SHAPE(F32, 1024, 512)), NOFACTS);
    check(OK, "i8[7,2,4]", OP_MATMUL, ATTR(0), INS(SHAPE(I8, 7, 2, 0), SHAPE(I8, 7, 0, 4)), NOFACTS);
    check(ST_SHAPE, "inner dims differ: a is f32[256,1024], b is f32[512,2048]", OP_MATMUL, ATTR(0),
          INS(SHAPE(F32, 256, 1024), SHAPE(F32, 512, 2048)), NOFACTS);
    check(ST_SHAPE, "batch dims differ at axis 0: a is f32[2,3,3], b is f32[3,3,3]", OP_MATMUL, ATTR(0),
          INS(SHAPE(F32, 2, 3, 3), SHAPE(F32, 3, 3, 3)), NOFACTS);
    check(ST_SHAPE, "ranks do not fit: a is f32[3], b is f32[3]", OP_MATMUL, ATTR(0), INS(SHAPE(F32, 3), SHAPE(F32, 3)), NOFACTS);
}

Test(infer, numel)
{
    int64_t n;
    cr_assert(shape_numel(0, NULL, &n) && n == 1);
    cr_assert(shape_numel(3, (int64_t[]){1 << 30, 1 << 30, 0}, &n) && n == 0);
    cr_assert_not(shape_numel(3, (int64_t[]){INT64_MAX, INT64_MAX, 0}, &n));
    cr_assert_not(shape_numel(3, (int64_t[]){0, INT64_MAX, INT64_MAX}, &n));
    cr_assert(shape_numel(2, (int64_t[]){INT64_C(1) << 31, INT64_C(1) << 31}, &n) && n == INT64_C(1) << 62);
    cr_assert_not(shape_numel(2, (int64_t[]){INT64_C(1) << 32, INT64_C(1) << 31}, &n));
    cr_assert_not(shape_numel(2, (int64_t[]){0, -1}, &n));
}

/* ---- reshape groups ---- */

#define D(...) \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) { __VA_ARGS__ }

/* The groups that canonicalising finds in a reshape as users record it, where every fact is known. */
static const char *groups(int in_rank, const int64_t *in, int out_rank, const int64_t *out)
{
    static char text[256];
    Attr attr;
    int64_t facts[MAX_RANK];
    Dim dims[MAX_RANK];
    uint32_t n_facts;
    Graph *g = graph_new(&arena);
    Ref x = graph_add_input(g, DT_F32, in_rank, in, NULL, (Loc){0});
    reshape_whole(in_rank, out_rank, out, &attr, facts, &n_facts);
    for (uint32_t k = 0; k < n_facts; k++)
        dims[k] = dim_fact(g, facts[k], FACT_SIZE, (uint8_t)k, 1);
    graph_output(g, graph_add(g, OP_RESHAPE, DT_F32, &x, 1, &attr, dims, n_facts, (Loc){0}));
    Rewriter w = {.g = g, .families = FAMILY_CANON};
    cr_assert_eq(graph_rewrite(&w), ST_OK, "%s", fail_message());
    cr_assert_eq(graph_verify(g), ST_OK, "%s", fail_message());
    const Node *n = graph_node(g, g->outputs.at[0]);
    cr_assert_eq(n->rank, out_rank);
    for (int d = 0; d < out_rank; d++)
        cr_assert_eq(dim_hint(g, n->dim[d]), out[d]);
    if (n->op != OP_RESHAPE)
        return "the input";
    size_t at = 0;
    text[0] = 0;
    for (uint32_t k = 0; k < n->attr.n; k++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%d:%d", k ? " " : "", n->attr.group.in[k], n->attr.group.out[k]);
    return text;
}

Test(infer, a_reshape_has_a_structure_of_its_ranks)
{
    Attr a, b;
    int64_t facts[MAX_RANK];
    uint32_t n;
    reshape_whole(3, 2, (int64_t[]){6, 4}, &a, facts, &n);
    cr_assert(n == 2 && facts[0] == 6 && facts[1] == 4 && a.n == 1 && a.group.in[0] == 3 && a.group.out[0] == 2);
    reshape_whole(3, 2, (int64_t[]){0, 1}, &b, facts, &n);
    cr_assert(memcmp(&a, &b, sizeof a) == 0);
    reshape_whole(3, 1, (int64_t[]){24}, &a, facts, &n);
    cr_assert(n == 0 && a.n == 1 && a.group.in[0] == 3 && a.group.out[0] == 1);
    reshape_whole(3, 0, NULL, &a, facts, &n);
    cr_assert(n == 0 && a.n == 3 && a.group.in[2] == 1 && a.group.out[2] == 0);
    reshape_whole(0, 2, (int64_t[]){1, 1}, &a, facts, &n);
    cr_assert(n == 0 && a.n == 2 && a.group.in[1] == 0 && a.group.out[1] == 1);
}

Test(infer, groups_are_as_fine_as_the_numbers_allow)
{
    cr_assert_str_eq(groups(D(2, 3, 4), D(6, 4)), "2:1 1:1");
    cr_assert_str_eq(groups(D(6, 4), D(2, 3, 2, 2)), "1:2 1:2");
    cr_assert_str_eq(groups(D(6, 4), D(4, 6)), "2:2");
    cr_assert_str_eq(groups(D(1, 5), D(5, 1)), "1:0 1:1 0:1");
    cr_assert_str_eq(groups(D(1, 1, 3), D(1, 3)), "1:1 1:0 1:1");
    cr_assert_str_eq(groups(D(1), 0, NULL), "1:0");
    cr_assert_str_eq(groups(0, NULL, D(1, 1)), "0:1 0:1");
    cr_assert_str_eq(groups(D(2, 1, 3), D(6)), "3:1");
    cr_assert_str_eq(groups(D(0, 3), D(0, 5)), "2:2");
    cr_assert_str_eq(groups(D(0), D(0)), "the input");
    cr_assert_str_eq(groups(D(4, 0, 3), D(4, 0, 3)), "the input");
    cr_assert_str_eq(groups(D(4, 0, 3), D(4, 2, 0, 3)), "1:1 1:2 1:1");
    cr_assert_str_eq(groups(D(4, 0), D(0)), "2:1");
    cr_assert_str_eq(groups(D(0, 6, 5), D(0, 5)), "2:1 1:1");
    cr_assert_str_eq(groups(D(1, 1, 1, 1, 2, 2, 2, 2), D(2, 2, 2, 2, 1, 1, 1, 1)), "1:0 1:0 1:0 1:0 1:1 1:1 1:1 1:1 0:1 0:1 0:1 0:1");
}

/* Any two shapes of one element count: the groups cover both and give the target. */
Test(infer, groups_of_random_shapes)
{
    uint64_t state = 7;
    int tried = 0;
    static const int64_t sizes[] = {0, 1, 1, 2, 2, 3, 4, 6, 12};
    while (tried < 3000) {
        int64_t in[8], out[8], a, b;
        int ri = (int)pick(&state, 6), ro = (int)pick(&state, 6);
        for (int d = 0; d < 8; d++)
            in[d] = sizes[pick(&state, 9)], out[d] = sizes[pick(&state, 9)];
        shape_numel(ri, in, &a);
        shape_numel(ro, out, &b);
        if (a != b)
            continue;
        tried++;
        (void)groups(ri, in, ro, out);
    }
}

/* Numbers and sizes say the same: every node of random graphs is verified, which infers in numbers. */
Test(infer, random_graphs_verify)
{
    uint32_t seen[OP_COUNT] = {0};
    for (uint64_t seed = 0; seed < 300; seed++) {
        Graph *g = random_graph(seed, 60);
        cr_assert_eq(graph_verify(g), ST_OK, "seed %d: %s", (int)seed, fail_message());
        for (Ref r = 0; r < g->nodes.n; r++)
            seen[graph_node(g, r)->op]++;
        int64_t *ints = arena_alloc(&arena, sizeof *ints * (g->shared->ints.n + 1));
        for (uint32_t k = 0; k < g->shared->ints.n; k++)
            ints[k] = g->shared->ints.at[k].value;
        for (Dim d = 0; d < g->shared->dims.n; d++) {
            cr_assert_eq(dim_eval(g, d, ints), dim_hint(g, d));
            cr_assert_eq(dim_hint(g, dim_find(g, d)), dim_hint(g, d));
        }
    }
    for (int op = 0; op < OP_COUNT; op++) /* calls are the user's: api/test_op */
        cr_assert(seen[op] || op == OP_CUSTOM, "no random graph holds %s", op_name((Op)op));
}
