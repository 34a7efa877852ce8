/*
 * The view of a graph that passes of users get (ir/view.h): graphs of which every node that can be built is built anew, and replaced by
 * that, keep their values; what memory does that runs out; what is replaced in which order.
 */
#include "ir/attr.h"
#include "ir/interp.h"
#include "ir/view.h"
#include "ir/base/sanitizer.h"
#include "tests/unit/graphs.h"

#include <stdio.h>
#include <sys/resource.h>

TestSuite(view, .init = open_arena, .fini = close_arena);

static uint64_t hash_of_run(const Graph *g, uint64_t seed)
{
    const void **in = arena_alloc(&arena, sizeof *in * (g->inputs.n + 1));
    void **out = arena_alloc(&arena, sizeof *out * (g->outputs.n + 1));
    uint64_t state = seed, hash = 0;
    for (uint32_t k = 0; k < g->inputs.n; k++) {
        DType t = (DType)graph_node(g, g->inputs.at[k])->dtype;
        int64_t n = node_hint_numel(g, g->inputs.at[k]);
        char *data = arena_alloc(&arena, (size_t)n * 8 + 8);
        for (int64_t i = 0; i < n; i++)
            scalar_store(t, scalar_from_double(t, (double)pick(&state, 9) / 2 - 2), data + i * (int64_t)dtype_bytes(t));
        in[k] = data;
    }
    for (uint32_t k = 0; k < g->outputs.n; k++)
        out[k] = arena_alloc(&arena, (size_t)node_hint_numel(g, g->outputs.at[k]) * 8 + 8);
    const Node *bad = NULL;
    cr_assert_eq(interp_run(g, INTERP_NATIVE, MATH_STRICT, ORDER_HOST, in, out, &bad), ST_OK, "%s\n%s", fail_message(), print(g));
    for (uint32_t k = 0; k < g->outputs.n; k++) {
        DType t = (DType)graph_node(g, g->outputs.at[k])->dtype;
        for (int64_t i = 0; i < node_hint_numel(g, g->outputs.at[k]); i++)
            hash = (hash ^ scalar_load(t, (char *)out[k] + i * (int64_t)dtype_bytes(t))) * UINT64_C(0x9e3779b97f4a7c15);
    }
    return hash;
}

/* The op, and all that it has, as view_op takes it; false: a leaf, or what has sizes, which are symbols here. */
static bool op_text(GraphView *v, Ref r, char *text, size_t size)
{
    const Node *n = view_node(v, r);
    OpClass cls = op_class((Op)n->op);
    if (cls == CLS_LEAF || cls == CLS_BODY || cls == CLS_RESULT || n->n_facts)
        return false;
    snprintf(text, size, "%s %s %s", op_name((Op)n->op), n->op == OP_CAST ? dtype_name((DType)n->dtype) : "", view_attributes(v, r));
    return true;
}

Test(view, what_is_built_anew_keeps_its_values)
{
    uint32_t all = 0;
    for (uint64_t seed = 0; seed < 200; seed++) {
        Graph *g = random_graph(seed + 500, 40);
        uint64_t before = hash_of_run(g, seed);
        const char *was = print(g);
        uint32_t built, replaced, n = g->nodes.n;
        GraphView *v = view_begin(g, "test", 0);
        for (Ref at = 0; at < n; at++) {
            Ref r = seed % 2 ? n - 1 - at : at; /* both ways round */
            char text[200];
            if (!op_text(v, r, text, sizeof text))
                continue;
            Ref made = view_op(v, text, view_node(v, r)->in, view_node(v, r)->n_in);
            cr_assert(made != REF_NONE && view_replace(v, r, made), "seed %d: %s\n%s", (int)seed, text, was);
        }
        cr_assert_eq(view_end(v, &built, &replaced), ST_OK, "seed %d: %s\n%s", (int)seed, fail_message(), was);
        cr_assert_eq(graph_verify(g), ST_OK, "seed %d: %s\n%s\n%s", (int)seed, fail_message(), was, print(g));
        cr_assert_eq(hash_of_run(g, seed), before, "seed %d\n%s\n%s", (int)seed, was, print(g));
        all += replaced;
        arena_free(&arena);
    }
    cr_assert_gt(all, 2000u);
}

static Ref neg_of(GraphView *v, Ref r) { return view_op(v, "neg", &r, 1); }

/* %1 becomes %3, and that %4; who read %1 reads %4, and the neg that was built of %1 reads %1. */
Test(view, replacing_again_and_chains)
{
    Graph *g = parse("graph g(%0: f32[4]) { %1 = exp %0 %2 = sin %1 return %2 %1 }");
    GraphView *v = view_begin(g, "test", 0);
    uint32_t built, replaced;
    Ref a = neg_of(v, 1), b = neg_of(v, a);
    const Ref *users;
    cr_assert_eq(view_users(v, 1, &users), 2u);
    cr_assert(view_replace(v, 1, a));
    cr_assert_eq(view_node(v, 2)->in[0], a);
    cr_assert_eq(view_users(v, 1, &users), 1u);
    cr_assert_eq(users[0], a);
    cr_assert(view_is_output(v, a) && !view_is_output(v, 1));
    cr_assert(view_replace(v, a, b));
    cr_assert_eq(view_node(v, 2)->in[0], b);
    cr_assert_eq(view_end(v, &built, &replaced), ST_OK, "%s", fail_message());
    cr_assert_eq(built, 2u);
    cr_assert_eq(replaced, 2u);
    cr_assert_str_eq(print(g), "graph g(%0: f32[4]) {\n  %1 = exp %0 : f32[4]\n  %2 = neg %1 : f32[4]\n  %3 = neg %2 : f32[4]\n"
                               "  %4 = sin %3 : f32[4]\n  return %4 %3\n}\n");
}

/* A view that nobody changed leaves the text as it was, and what was built for nothing goes. */
Test(view, nothing_replaced_is_nothing_changed)
{
    Graph *g = parse("graph g(%0: f32[4], %1: f32[4]) { %2 = exp %0 return %2 }");
    const char *before = print(g);
    uint32_t built, replaced;
    GraphView *v = view_begin(g, "test", 0);
    (void)neg_of(v, 2);
    cr_assert_eq(view_end(v, &built, &replaced), ST_OK);
    cr_assert_str_eq(print(g), before);
}

/* Marks of gradients follow: what is built of a node of the backward half belongs to it. */
Test(view, phases_follow_operands)
{
    Graph *g = parse("graph g(%0: f32[4]) { %1 = exp %0 checkpoint(1) %2 = sin %1 phase(1) %3 = mul %1 %2 phase(1) return %3 }");
    GraphView *v = view_begin(g, "test", 0);
    Ref both[2] = {1, 2};
    cr_assert_eq(view_node(v, neg_of(v, 1))->checkpoint, 1);
    cr_assert_eq(view_node(v, neg_of(v, 2))->phase, 1);
    cr_assert_eq(view_node(v, view_op(v, "mul", both, 2))->phase, 1);
}

/* Memory that runs out in a function of the view is its error: no jump passes through the pass. */
Test(view, no_memory_is_an_error_of_the_view)
{
    if (WITH_ASAN || WITH_TSAN) /* which need memory themselves */
        return;
    Graph *g = parse("graph g(%0: f32[4]) { %1 = exp %0 return %1 }");
    GraphView *v = view_begin(g, "test", 0);
    uint32_t built, replaced;
    struct rlimit before, none;
    cr_assert_eq(getrlimit(RLIMIT_AS, &before), 0);
    none = before;
    none.rlim_cur = 1;
    cr_assert_eq(setrlimit(RLIMIT_AS, &none), 0);
    int n = 0;
    for (Ref made = 1; made != REF_NONE && n < 1 << 22; n++)
        made = neg_of(v, made);
    cr_assert_eq(setrlimit(RLIMIT_AS, &before), 0);
    cr_assert_lt(n, 1 << 22);
    cr_assert_eq(view_end(v, &built, &replaced), ST_OUT_OF_MEMORY);
}
