/*
 * Fusion keeps meaning: random graphs, fused and unfused, with all sizes compiled in and with all
 * sizes as arguments, give the interpreter's results bit for bit (any NaN equals any NaN).
 * KILN_TEST_ONLY=n runs that one and prints graph and kernels.
 */
#include "ir/base/os.h"
#include "ir/interp.h"
#include "jit/options.h"
#include "jit/plan.h"
#include "tests/support/slice.h"
#include "tests/unit/fuse_random.h"
#include "tests/unit/fuse_run.h"
#include "tests/unit/kernel_round_trip.h"
#include "tests/unit/query_nothing.h"

#include <stdio.h>

static uint64_t next_state(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return *s >> 33;
}

static void fill(DType t, void *data, size_t n, uint64_t seed)
{
    static const double special[] = {0.0, -0.0, 1.0, -1.0, INFINITY, -INFINITY, NAN, 1e30};
    for (size_t i = 0; i < n; i++) {
        uint64_t v = next_state(&seed);
        double x = v % 11 == 0 ? special[v / 11 % 8] : (double)(int64_t)(v % 4096) / 256.0 - 8.0;
        uint64_t bits = t == DT_BOOL ? v & 1 : dtype_is_float(t) ? scalar_from_double(t, x) : scalar_from_int(t, (int64_t)(v % 23) - 11);
        scalar_store(t, bits, (char *)data + i * dtype_bytes(t));
    }
}

/* The first element that differs, or -1. */
static int64_t differs(DType t, const void *a, const void *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint64_t x = scalar_load(t, (const char *)a + (size_t)i * dtype_bytes(t));
        uint64_t y = scalar_load(t, (const char *)b + (size_t)i * dtype_bytes(t));
        if (x != y && !(dtype_is_float(t) && isnan(scalar_to_double(t, x)) && isnan(scalar_to_double(t, y))))
            return i;
    }
    return -1;
}

static size_t input_elements(const Graph *g, const Node *node)
{
    size_t last = 0, numel = 1;
    for (int i = 0; i < node->rank; i++) {
        size_t dim = (size_t)dim_hint(g, node->dim[i]);
        numel *= dim;
        if (node->attr.flag && dim)
            last += (dim - 1) * (size_t)dim_hint(g, node->fact[node->rank + i]);
    }
    return !numel ? 0 : node->attr.flag ? last + 1 : numel;
}

typedef struct Data {
    void *in[8], *want[8], *got[8];
    size_t in_bytes[8];
} Data;

static void show(Graph *g, const Plan *plan)
{
    Str text;
    str_init(&text, g->arena);
    graph_print(g, "random", &text);
    for (uint32_t s = 0; plan && s < plan->steps.n; s++) {
        str_printf(&text, "step %u %s makes %%%u\n", s, plan->steps.at[s].what, plan->steps.at[s].node);
        if (plan->steps.at[s].kernel)
            kernel_print(plan->steps.at[s].kernel, &text);
    }
    fprintf(stderr, "%s\n", text.text);
}

static void compare(Graph *g, const Plan *plan, Data *d, uint64_t seed, const char *how)
{
    for (uint32_t i = 0; i < g->outputs.n; i++) {
        const Node *node = graph_node(g, g->outputs.at[i]);
        int64_t n = node_hint_numel(g, g->outputs.at[i]);
        int64_t at = differs((DType)node->dtype, d->want[i], d->got[i], n);
        if (at < 0)
            continue;
        size_t bytes = dtype_bytes((DType)node->dtype);
        show(g, plan);
        cr_assert_fail("seed %llu %s: output %u differs at %lld of %lld: want %g, got %g", (unsigned long long)seed, how, i, (long long)at,
                       (long long)n,
                       scalar_to_double((DType)node->dtype, scalar_load((DType)node->dtype, (char *)d->want[i] + (size_t)at * bytes)),
                       scalar_to_double((DType)node->dtype, scalar_load((DType)node->dtype, (char *)d->got[i] + (size_t)at * bytes)));
    }
}

static void check_seed(uint64_t seed, bool verbose)
{
    Arena arena;
    jmp_buf oom;
    Data d = {0};
    arena_init(&arena, &oom);
    cr_assert_eq(setjmp(oom), 0);
    Graph *g = graph_new(&arena);
    random_graph(g, seed);
    graph_compact(g, NULL); /* the interpreter runs dead nodes too, and reports their faults */
    cr_assert_eq(graph_verify(g), ST_OK, "seed %llu: %s", (unsigned long long)seed, fail_message());
    if (verbose)
        show(g, NULL);
    for (uint32_t i = 0; i < g->inputs.n; i++) {
        const Node *node = graph_node(g, g->inputs.at[i]);
        size_t n = input_elements(g, node);
        d.in_bytes[i] = n * dtype_bytes((DType)node->dtype);
        d.in[i] = malloc(d.in_bytes[i] + 16);
        fill((DType)node->dtype, d.in[i], n, seed * 31 + i);
    }
    for (uint32_t i = 0; i < g->outputs.n; i++) {
        size_t bytes = (size_t)node_hint_numel(g, g->outputs.at[i]) * dtype_bytes((DType)graph_node(g, g->outputs.at[i])->dtype);
        d.want[i] = malloc(bytes + 16);
        d.got[i] = malloc(bytes + 16);
    }
    const Node *bad_node = NULL;
    snprintf(fuse_case, sizeof fuse_case, "seed %llu", (unsigned long long)seed);
    Status ran = interp_run(g, INTERP_NATIVE, MATH_STRICT, ORDER_HOST, (const void *const *)d.in, d.want, &bad_node);
    cr_assert(ran == ST_OK || ran == ST_INDEX, "seed %llu: %s", (unsigned long long)seed, fail_message());
    for (int how = 0; how < 4; how++) {
        static const char *const names[] = {"fused", "fused, sizes as arguments", "unfused", "unfused, sizes as arguments"};
        JitOptions options = {.value = {0}};
        Plan plan;
        options.value[OPT_MATH] = OPT_MATH_STRICT; /* in fast mode a product with a vector may be a sum, of another order */
        options.value[OPT_FUSE] = how < 2;
        options.value[OPT_BANDS] = seed % 3 ? BANDS_ALWAYS : BANDS_OFF;
        g->shared->query = how & 1 ? &nothing : NULL;
        cr_assert_eq(jit_plan(g, &options, &plan), ST_OK, "seed %llu %s: %s", (unsigned long long)seed, names[how], fail_message());
        for (uint32_t s = 0; s < plan.steps.n; s++)
            if (plan.steps.at[s].kernel)
                check_round_trip(plan.steps.at[s].kernel, &arena);
        if (verbose) {
            fprintf(stderr, "%s\n", names[how]);
            show(g, &plan);
        }
        for (uint32_t i = 0; i < g->outputs.n; i++)
            memset(d.got[i], 0x77,
                   (size_t)node_hint_numel(g, g->outputs.at[i]) * dtype_bytes((DType)graph_node(g, g->outputs.at[i])->dtype));
        snprintf(fuse_case, sizeof fuse_case, "seed %llu %s", (unsigned long long)seed, names[how]);
        int64_t fault = fuse_run_plan(g, &plan, MATH_STRICT, how < 2, (const void *const *)d.in, d.in_bytes, d.got);
        if (how >= 2)
            cr_assert_eq(fault != 0, ran == ST_INDEX, "seed %llu %s: fault %lld", (unsigned long long)seed, names[how], (long long)fault);
        compare(g, &plan, &d, seed, names[how]);
    }
    for (int i = 0; i < 8; i++) {
        free(d.in[i]);
        free(d.want[i]);
        free(d.got[i]);
    }
    arena_free(&arena);
}

/* A slice of the seeds from `first` on (support/slice.h), or KILN_TEST_ONLY. */
static void check_range(uint64_t first)
{
    uint64_t only = slice_number("KILN_TEST_ONLY", UINT64_MAX), begin = first, count = 4000;
    slice_seeds(&begin, &count);
    if (only >= first && only < first + 100000000)
        check_seed(only, true);
    for (uint64_t seed = begin; only == UINT64_MAX && seed < begin + count; seed++)
        check_seed(seed, false);
}

Test(fuse_random, first) { check_range(0); }
Test(fuse_random, second) { check_range(100000000); }
Test(fuse_random, third) { check_range(200000000); }
Test(fuse_random, fourth) { check_range(300000000); }
