/*
 * The loops by which a CPU runs a kernel. tests/kernels/nest/NAME.txt holds cases, divided by lines "====": a kernel, a line "----", and
 * the schedules and nests that kiln has for it with vectors of 512, 256 and 128 bits; of a kernel that expects sizes, those of the one that has
 * them. KILN_GOLDEN=update writes what came out instead
 * of comparing. And a nest in which something is wrong is refused.
 */
#include "jit/nest.h"
#include "tests/unit/golden_cases.h"
#include "tests/unit/kernel_ref.h"

TestSuite(nest, .init = setup, .fini = teardown);

static void nests(const Kernel *k, Str *out)
{
    for (int bits = 512; bits >= 128; bits /= 2) {
        JitOptions o = setting_options((Setting){bits, 1, MATH_STRICT, bits == 512 ? CPU_V4 : CPU_V3});
        Schedule s;
        Str nest;
        str_init(&nest, &arena);
        llvm_host_schedule(k, &o, &arena, &s, &nest);
        schedule_print(&s, k, out);
        str_printf(out, "\n%s", nest.text);
    }
}

static void outcome(const char *text, Str *out)
{
    CudaTarget host = {0};
    Kernel *k;
    cr_assert_eq(kernel_parse(text, &arena, &k), ST_OK, "%s in\n%s", fail_message(), text);
    schedule_kernel(k, &host);
    const Kernel *expected = kernel_expected(k, &arena);
    if (expected)
        kernel_print(expected, out);
    nests(expected ? expected : k, out);
}

Test(nest, loops) { cr_assert_geq(golden_cases(KILN_SOURCE_DIR "/tests/kernels/nest/loops.txt", outcome, true), 8); }

Test(nest, folds) { cr_assert_geq(golden_cases(KILN_SOURCE_DIR "/tests/kernels/nest/folds.txt", outcome, true), 12); }

Test(nest, products) { cr_assert_geq(golden_cases(KILN_SOURCE_DIR "/tests/kernels/nest/products.txt", outcome, true), 10); }

/* ---- what the verifier refuses ---- */

static Nest nest;
static KernelFacts facts;
static Schedule own;

/* The nest of a kernel without pieces, as emission has it. */
static void build(const char *text, int bits)
{
    CudaTarget host = {0};
    Kernel *k;
    cr_assert_eq(kernel_parse(text, &arena, &k), ST_OK, "%s in\n%s", fail_message(), text);
    schedule_kernel(k, &host);
    JitOptions o = setting_options((Setting){bits, 1, MATH_STRICT, bits == 512 ? CPU_V4 : CPU_V3});
    llvm_host_schedule(k, &o, &arena, &own, NULL);
    facts = kernel_facts(k, ORDER_HOST, MATH_STRICT, bits, false, &arena);
    facts.schedule = &own;
    nest_statements(&nest, &facts, &arena);
    nest_build(&nest, &facts);
}

static NestNode *first(NestKind kind)
{
    for (uint32_t i = 0; i < nest.node.n; i++)
        if (nest.node.at[i].kind == kind)
            return &nest.node.at[i];
    cr_assert_fail("no such node");
    return NULL;
}

static void no_tail(NestNode *n) { n->tail = NEST_TAIL_NONE; }
static void only_tail(NestNode *n) { n->whole = NEST_WHOLE_NONE; }
static void no_task(NestNode *n) { n->task = false; }
static void double_step(NestNode *n) { n->by *= 2; }
static void half_step(NestNode *n) { n->by /= 2; }
static void more_points(NestNode *n) { n->points++; }
static void more_rows(NestNode *n) { n->few++; }
static void no_axes(NestNode *n) { n->axes = 0; }
static void axis_j_too(NestNode *n) { n->axes |= 2; }
static void empty(NestNode *n) { n->child = NEST_NONE; }
static void left_out(NestNode *n)
{
    if (n == &nest.node.at[nest.phase])
        nest.phase = n->next;
    for (uint32_t i = 0; i < nest.node.n; i++) {
        NestRef *links[] = {&nest.node.at[i].child, &nest.node.at[i].next};
        for (int l = 0; l < 2; l++)
            if (*links[l] != NEST_NONE && &nest.node.at[*links[l]] == n) {
                *links[l] = n->next;
                return;
            }
    }
}
static void there_twice(NestNode *n)
{
    VEC_PUSH(nest.arena, nest.node, *n);
    n = &nest.node.at[n - nest.node.at]; /* it may have moved */
    n->next = nest.node.n - 1;
}

static void more_lanes(NestNode *n) { n->by += n->by / 2; }
static void all_panels(NestNode *n) { n->by = 128; }
static void no_last(NestNode *n) { n->kind = NEST_MULTIPLY; }
/* Packed before the first block. */
static void not_packed(NestNode *n) { n->kind = NEST_KEPT_LANES; }

static void no_shares(NestNode *n) { n->kind = NEST_ROWS; }
static void all_of_them(NestNode *n) { n->kind = NEST_STEPS; }

static void outside(NestNode *n)
{
    NestNode *block = &nest.node.at[n->parent], *around = &nest.node.at[block->parent];
    NestRef at = block->child;
    block->child = n->next;
    n->next = around->child;
    around->child = at;
}

#define ORDER " order lanes 64 block 16384"

static const char
    rows[] = "kernel (a0 f32, a1 f32, a2 f32 out, s3) for i < s3 ~14, j < 1001\n v0 = load a0[i*1001 + j]; v1 = load a1[j]; v2 = "
             "add v0 v1; store a2[i*1001 + j] = v2",
    softmax[] = "kernel (a0 f32, a1 f32 out) for i < 64, j < 40000\n v0 = load a0[i*40000 + j]; v1 = fold max j (v0); v2 = sub v0 v1; v3 "
                "= exp v2; v4 = fold sum j (v3)" ORDER "; v5 = div v3 v4; store a1[i*40000 + j] = v5",
    sums[] = "kernel (a0 f32, a1 f32 out) for i < 64, j < 1000; v0 = load a0[i*1000 + j]; v1 = fold sum j (v0)" ORDER "; store a1[i] = v1",
    rest[] = "kernel (a0 f64, a1 f64 out) for i < 64, j < 1000; v0 = load a0[i*1000 + j]; v1 = fold sum j (v0)" ORDER "; store a1[i] = v1",
    rounds[] =
        "kernel (a0 f64, a1 f64 out) for i < 64, j < 1024; v0 = load a0[i*1024 + j]; v1 = fold sum j (v0)" ORDER "; store a1[i] = v1",
    strips[] =
        "kernel (a0 f32, a1 f32 out) for i < 5000, j < 512; v0 = load a0[j*5000 + i]; v1 = fold sum j (v0)" ORDER "; store a1[i] = v1",
    stages[] = "kernel (a0 f32, a1 f32 out) for i < 5000, j < 1024\n v0 = load a0[j*5000 + i]; v1 = fold sum j (v0)" ORDER "; v2 = mul v1 "
               "0.5; v3 = sub v0 v2; v4 = square v3; v5 = fold sum j (v4)" ORDER "; store a1[i] = v5",
    any_rows[] = "kernel (a0 f32, a1 f32 out, s2) for i < 5000, j < s2 ~10; v0 = load a0[j*5000 + i]; v1 = fold sum j (v0)" ORDER
                 "; store a1[i] = v1",
    unrolled[] =
        "kernel (a0 f32, a1 f32 out) for i < 1000, j < 7; v0 = load a0[j*1000 + i]; v1 = fold sum j (v0)" ORDER "; store a1[i] = v1",
    squares[] = "kernel (a0 u8, a1 u8 out) for i < 70, j < 70; v0 = load a0[j*70 + i]; v1 = add v0 3; store a1[i*70 + j] = v1",
    blocks[] = "kernel (a0 f32, a1 f32 out, a2 shared) for i < 1000000; v0 = load a0[i]; v1 = fold sum i (v0)" ORDER "; store a1[0] = v1",
    columns[] = "kernel (a0 f32, a1 f32 out, a2 shared) for i < 3, j < 100000; v0 = load a0[j*3 + i]; v1 = fold sum j (v0)" ORDER
                "; store a1[i] = v1",
    product[] =
        "kernel (a0 f32, a1 f32, a2 f32 out) for i < 1024, j < 1024, k < 1024; v0 = load a0[i*1024 + k]; v1 = load a1[k*1024 + j]; v2 "
        "= fold dot k (v0, v1) order chain block 256; store a2[i*1024 + j] = v2",
    kept[] = "kernel (a0 f32, a1 f32 panels 32 along j, a2 f32 out) for i < 64, j < 1000, k < 512; v0 = load a0[i*512 + k]; v1 = load "
             "a1[k*32 + (j/32)*16384 + j%32]; v2 = fold dot k (v0, v1) order chain block 256; store a2[i*1000 + j] = v2",
    dots[] =
        "kernel (a0 f32, a1 f32, a2 f32 out) for i < 4, j < 1001, k < 500; v0 = load a0[i*500 + k]; v1 = load a1[j*500 + k]; v2 = fold "
        "dot k (v0, v1) order chain block 256; store a2[i*1001 + j] = v2",
    pairs[] =
        "kernel (a0 bf16, a1 bf16, a2 bf16 out) for i < 512, j < 512, k < 512; v0 = load a0[i*512 + k]; v1 = load a1[k*512 + j]; v2 = "
        "fold dot k (v0, v1) order pairs block 256; store a2[i*512 + j] = v2",
    scatter[] =
        "kernel (a0 i64, a1 f32, a2 fault, a3 f32 out) for i < 70, j < 1000; v0 = load a0[j]; v1 = load a1[j*70 + i]; v2 = bound v0 "
        "below 500 fault a2.1; scatter add a3[v2*70 + i] = v1 along j";

static const struct {
    const char *kernel;
    NestKind kind;
    void (*damage)(NestNode *n);
    const char *rule;
} damages[] = {
    {rows, NEST_TILES, no_tail, "points that fill no vector have no tail"},
    {rows, NEST_TILES, only_tail, "whole vectors have no loop"},
    {rows, NEST_TILES, no_axes, "an axis has no loop over its points"},
    {rows, NEST_TILES, there_twice, "bodies are not in order, or one is there twice"},
    {rows, NEST_ROWS, no_task, "tasks are in a loop that is none"},
    {rows, NEST_ROWS, axis_j_too, "an axis has a loop inside the one over its points"},
    {rows, NEST_BODY, left_out, "a body is not there"},
    {softmax, NEST_BLOCKS, double_step, "a fold is not cut at the blocks of its order"},
    {softmax, NEST_STAGE, left_out, "a body is not there"},
    {softmax, NEST_LANES, half_step, NULL}, /* a maximum has no order */
    {softmax, NEST_LANES, empty, "what is folded is not put together"},
    {softmax, NEST_START, left_out, "accumulators do not start"},
    {softmax, NEST_MERGE, left_out, "what is folded is not put together"},
    {columns, NEST_PART, left_out, "what is folded is not put together"},
    {sums, NEST_LANES, half_step, "accumulators are not the lanes of the order"},
    {rest, NEST_ROUNDS, empty, "one way of several leaves something out"},
    {rest, NEST_ROUNDS, more_points, "a round is more than the lanes of the order"},
    {rest, NEST_LANES, no_tail, "points that fill no vector have no tail"},
    {rounds, NEST_ROUNDS, more_points, "rounds do not end where the points do"},
    {strips, NEST_CANONICAL, half_step, "a strip has other lanes than the order"},
    {strips, NEST_CHAINS, half_step, "a chain takes other rows than those of its lane"},
    {strips, NEST_CHAINS, more_points, "a strip has other lanes than the order"},
    {any_rows, NEST_CANONICAL, left_out, "blocks of some numbers of rows are left out"},
    {any_rows, NEST_CANONICAL, more_rows, "blocks of some numbers of rows are left out"},
    {any_rows, NEST_CHAINS, empty, "one way of several leaves something out"},
    {strips, NEST_STRIP_END, left_out, "one way of several leaves something out"},
    {strips, NEST_TILES, no_tail, "points that fill no vector have no tail"},
    {stages, NEST_STRIP_KEEP, left_out, "a stage of a strip keeps nothing"},
    {stages, NEST_STRIP_STAGE, left_out, "a body is not there"},
    {stages, NEST_STRIP_ROWS, half_step, "a lane takes other rows than its own"},
    {unrolled, NEST_UNROLL, more_points, "other points have code of their own than there are"},
    {squares, NEST_SQUARES, empty, "one way of several leaves something out"},
    {squares, NEST_SQUARES, more_points, "a band is no whole squares"},
    {squares, NEST_BAND, no_axes, "an axis has no loop over its points"},
    {blocks, NEST_BLOCKS, half_step, "a fold is not cut at the blocks of its order"},
    {blocks, NEST_PHASE, left_out, "phases"},
    {columns, NEST_JOINT, double_step, "lanes along columns do not divide those of the order"},
    {columns, NEST_JOINT, no_tail, "points that fill no vector have no tail"},
    {product, NEST_BLOCKS, half_step, "a fold is not cut at the blocks of its order"},
    {product, NEST_PACK_ROWS, left_out, "a panel is read that is not packed"},
    {product, NEST_PACK_LANES, left_out, "a panel is read that is not packed"},
    {product, NEST_PACK_ROWS, outside, "a panel has other points than the block"},
    {product, NEST_PACK_LANES, not_packed, "a panel is not kept, or has other points than a tile"},
    {kept, NEST_KEPT_LANES, left_out, "a panel is read that is not packed"},
    {kept, NEST_KEPT_LANES, outside, "a panel has no place"},
    {product, NEST_LAST, no_last, "what follows a sum is done before its last block"},
    {product, NEST_LAST, left_out, "a body is not there"},
    {product, NEST_GROUP, double_step, "what is cut is no whole tiles"},
    {product, NEST_PANELS, more_lanes, NULL}, /* six tiles are as good as four */
    {product, NEST_SUM_POINTS, no_axes, "an axis has no loop over its points"},
    {product, NEST_TILE_ROWS, more_points, "registers have other rows than the tile"},
    {product, NEST_TILE_LANES, more_lanes, "what is cut is no whole tiles"},
    {product, NEST_TILE_LANES, all_panels, "a tile is no whole vectors"},
    {product, NEST_DOT_START, left_out, "sums do not start before what is added"},
    {product, NEST_DOT_MERGE, left_out, "what is folded is not put together"},
    {pairs, NEST_STEPS, half_step, "a pair is parted"},
    {scatter, NEST_SHARES, left_out, "a body is not there"},
    {scatter, NEST_SHARES, no_shares, "points are left to other tasks that do not have them"},
    {scatter, NEST_CHOSEN, all_of_them, "several tasks do the same points"},
    {dots, NEST_SQUARES_OF_K, no_tail, "points that fill no vector have no tail"},
    {dots, NEST_SUM_LANES, no_tail, "points that fill no vector have no tail"},
};

Test(nest, broken_ones_are_refused_by_name)
{
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        build(damages[i].kernel, 512);
        cr_assert_eq(nest_verify(&nest, &facts), ST_OK, "%s", fail_message());
        damages[i].damage(first(damages[i].kind));
        Status status = nest_verify(&nest, &facts);
        if (!damages[i].rule) {
            cr_expect_eq(status, ST_OK, "%zu: %s", i, fail_message());
            continue;
        }
        cr_expect(status == ST_INTERNAL && strstr(fail_message(), damages[i].rule), "%zu: %s, wanted %s", i,
                  status == ST_OK ? "it is taken" : fail_message(), damages[i].rule);
    }
}
