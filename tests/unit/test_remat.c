/* What a gradient computes again (jit/remat.h), as golden texts; results of random graphs do not change; the order of units (jit/fuse/order.c). */
#include "ir/base/os.h"
#include "ir/gradient.h"
#include "ir/interp.h"
#include "jit/options.h"
#include "jit/plan.h"
#include "jit/remat.h"
#include "tests/support/sanitizer.h"
#include "tests/unit/graphs.h"
#include "tests/unit/golden.h"

#include <stdio.h>

TestSuite(remat, .init = open_arena, .fini = close_arena);

enum { MAX_IN = 8, MAX_OUT = 5 };

/* The graph with its gradient, as phase 1, by all inputs that are floats; outputs stay and the gradients come behind. false: an op has none. */
static bool differentiate(Graph *g)
{
    Ref in[MAX_IN], seed[MAX_OUT], made[MAX_IN], refused;
    uint32_t n_in = 0, n_out = g->outputs.n;
    cr_assert(g->inputs.n <= MAX_IN && n_out <= MAX_OUT);
    for (uint32_t k = 0; k < g->inputs.n; k++)
        if (dtype_is_float((DType)graph_node(g, g->inputs.at[k])->dtype))
            in[n_in++] = g->inputs.at[k];
    for (uint32_t k = 0; k < n_out; k++) {
        Shape s = shape_of(g, g->outputs.at[k]);
        seed[k] = graph_add_input(g, (DType)s.dtype, s.rank, s.dim, NULL, (Loc){0});
    }
    g->phase = 1;
    bool done = gradient_vjp(g, NULL, n_out, g->outputs.at, seed, n_in, in, made, &refused) == ST_OK;
    g->phase = 0;
    for (uint32_t k = 0; k < n_in && done; k++)
        if (made[k] != REF_NONE)
            graph_output(g, made[k]);
    graph_compact(g, NULL);
    return done;
}

/* tests/golden/remat/NAME.txt: a comment that begins with a value of the option, a graph, "----", the joint graph. KILN_GOLDEN=update. */
static void check_golden(const char *path)
{
    static char text[GOLDEN_MOST];
    char *wanted = golden_read(path, text);
    int how = !strncmp(text, "// off", 6) ? REMAT_OFF : !strncmp(text, "// memory", 9) ? REMAT_MEMORY : REMAT_AUTO;
    Graph *g = parse(text);
    cr_assert(differentiate(g));
    remat(g, how, true);
    graph_compact(g, NULL);
    cr_assert_eq(graph_verify(g), ST_OK, "%s: %s", path, fail_message());
    const char *got = print(g);
    golden_compare(path, text, wanted, got);
    cr_expect_str_eq(print(parse(got)), got, "%s: it does not parse back", path);
}

Test(remat, golden_texts) { golden_folder(KILN_SOURCE_DIR "/tests/golden/remat", check_golden, 6); }

Test(remat, without_gradients_nothing_changes)
{
    Graph *g = parse("graph g(%0: f32[1024]) {\n%1 = cos %0\n%2 = exp %1\n%3 = add %1 %2\nreturn %3\n}");
    const char *before = print(g);
    remat(g, REMAT_AUTO, true);
    cr_expect_str_eq(print(g), before);
}

/* --- random graphs ------------------------------------------------------------------------------------- */

/* All outputs, at inputs that depend on nothing but their number. false: an index is out of bounds. */
static bool results(const Graph *g, void **out, size_t *bytes)
{
    void **in = ARENA_ARRAY(&arena, void *, g->inputs.n + 1);
    for (uint32_t k = 0; k < g->inputs.n; k++) {
        const Node *n = graph_node(g, g->inputs.at[k]);
        size_t count = 1;
        for (int d = 0; d < n->rank; d++)
            count *= (size_t)dim_hint(g, n->dim[d]);
        uint64_t state = k + 1;
        in[k] = arena_alloc(&arena, 8 * count + 8);
        for (size_t i = 0; i < count; i++)
            scalar_store((DType)n->dtype, scalar_from_double((DType)n->dtype, (double)pick(&state, 64) / 32),
                         (char *)in[k] + i * dtype_bytes((DType)n->dtype));
    }
    for (uint32_t k = 0; k < g->outputs.n; k++) {
        bytes[k] = (size_t)node_hint_numel(g, g->outputs.at[k]) * dtype_bytes((DType)graph_node(g, g->outputs.at[k])->dtype);
        out[k] = arena_alloc(&arena, bytes[k] + 8);
    }
    const Node *bad;
    Status status = interp_run(g, INTERP_NATIVE, MATH_STRICT, ORDER_HOST, (const void *const *)in, out, &bad);
    cr_assert(status == ST_OK || status == ST_INDEX, "%s", fail_message());
    return status == ST_OK;
}

/* Outputs that are no floats have no gradient. */
static void keep_floats(Graph *g)
{
    uint32_t kept = 0;
    for (uint32_t k = 0; k < g->outputs.n; k++)
        if (dtype_is_float((DType)graph_node(g, g->outputs.at[k])->dtype))
            g->outputs.at[kept++] = g->outputs.at[k];
    g->outputs.n = kept;
}

Test(remat, random_graphs_compute_the_same, .timeout = HANGS_AFTER(60))
{
    int tried = 0, copied = 0, deep = 0;
    for (uint64_t seed = 1; seed <= 800; seed++) {
        for (int how = REMAT_AUTO; how <= REMAT_MEMORY; how += REMAT_MEMORY - REMAT_AUTO) {
            Graph *g = random_graph(seed, 24);
            keep_floats(g);
            if (!differentiate(g))
                continue;
            void *want[MAX_IN + MAX_OUT], *got[MAX_IN + MAX_OUT];
            size_t bytes[MAX_IN + MAX_OUT];
            if (!results(g, want, bytes))
                continue;
            tried++;
            uint32_t n = g->outputs.n;
            uint64_t depths = seed;
            for (Ref r = 0; r < g->nodes.n && seed % 2; r++) /* half of them in checkpoints, as no program has them */
                graph_node(g, r)->checkpoint = graph_node(g, r)->phase ? 0 : (uint8_t)pick(&depths, MAX_CHECKPOINT + 1);
            remat(g, seed % 4 == 1 ? REMAT_OFF : how, true);
            graph_compact(g, NULL);
            cr_assert_eq(graph_verify(g), ST_OK, "seed %d: %s", (int)seed, fail_message());
            cr_assert(results(g, got, bytes) && g->outputs.n == n);
            for (uint32_t k = 0; k < n; k++)
                cr_assert(memcmp(want[k], got[k], bytes[k]) == 0, "seed %d: output %d", (int)seed, (int)k);
            for (Ref r = 0; r < g->nodes.n; r++) {
                const Node *node = graph_node(g, r);
                OpClass cls = op_class((Op)node->op);
                copied += node->again;
                deep += node->again > 1;
                cr_assert(!node->again || node->checkpoint ||
                              (cls != CLS_CONTRACT && cls != CLS_SORT && cls != CLS_SCATTER && cls != CLS_SCAN && cls != CLS_LEAF),
                          "seed %d: %s is computed again", (int)seed, op_name((Op)node->op));
                for (uint32_t k = 0; k < node->n_in; k++)
                    cr_assert(node->phase > 0 || !graph_node(g, node->in[k])->again, "seed %d: a forward node reads a copy", (int)seed);
            }
        }
    }
    cr_assert(tried >= 100 && copied >= 100 && deep >= 100, "%d graphs, %d copies, %d deep", tried, copied, deep);
}

/* --- the order of units --------------------------------------------------------------------------------- */

/* Three products, and an update of each weight at the end, as a training step has it: each runs when what it reads is there. */
Test(remat, updates_run_early)
{
    Graph *g = parse("graph g(%0: f32[64,512], %1: f32[512,512], %2: f32[512,64], %3: f32[512,64], %4: f32[512,64]) {\n"
                     "  %5 = matmul %0 %1\n  %6 = exp %5\n  %7 = matmul %6 %1\n  %8 = exp %7\n  %9 = matmul %8 %1\n  %10 = exp %9\n"
                     "  %11 = permute %6 perm(1 0)\n  %12 = permute %8 perm(1 0)\n  %13 = permute %10 perm(1 0)\n"
                     "  %14 = add %11 %2\n  %15 = add %12 %3\n  %16 = add %13 %4\n  return %14 %15 %16\n}");
    JitOptions options;
    Plan plan;
    options_snapshot(&options);
    cr_assert_eq(jit_plan(g, &options, &plan), ST_OK, "%s", fail_message());
    int64_t value = 64 * 512 * 4; /* three outputs; of three values between, two at a time */
    cr_expect_eq(plan.peak_with_reuse, 5 * value, "%d values", (int)(plan.peak_with_reuse / value));
}
