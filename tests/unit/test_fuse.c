/*
 * Fusion and the kernel form by structure: index expressions, how many kernels graphs become,
 * stages, buffers, donation, limits, and that every fusion not made has a reason in the log. The
 * workloads are those of PERFORMANCE.md section 9.
 */
#include "ir/base/log.h"
#include "jit/options.h"
#include "jit/plan.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Fixture {
    Arena arena;
    jmp_buf oom;
    Graph *g;
    Plan plan;
    char log[1 << 16];
} Fixture;

static Fixture fixture;

static void stop(void)
{
    if (fixture.arena.oom)
        arena_free(&fixture.arena);
    fixture.arena.oom = NULL;
}

TestSuite(fuse, .fini = stop);
TestSuite(fuse_index, .fini = stop);
TestSuite(fuse_verify, .fini = stop);

static void start(void)
{
    stop();
    arena_init(&fixture.arena, &fixture.oom);
    if (setjmp(fixture.oom))
        abort();
}

static void keep_line(void *user, int level, const char *topic, const char *line)
{
    (void)user, (void)level, (void)topic;
    size_t at = strlen(fixture.log);
    snprintf(fixture.log + at, sizeof fixture.log - at, "%s\n", line);
}

static Plan *plan_quietly(const char *text, CudaTarget target, int64_t math)
{
    JitOptions options = {.value = {0}, .target = target};
    options.value[OPT_MATH] = math;
    options.value[OPT_FUSE] = 1;
    options.value[OPT_CPU] = CPU_V4; /* the same steps on every machine */
    start();
    cr_assert_eq(graph_parse(text, &fixture.arena, &fixture.g), ST_OK, "%s", fail_message());
    cr_assert_eq(jit_plan(fixture.g, &options, &fixture.plan), ST_OK, "%s", fail_message());
    return &fixture.plan;
}

/* With its log. */
static Plan *plan_with(const char *text, CudaTarget target, int64_t math)
{
    options_init(); /* it configures the log, too, and planning asks for an option */
    log_set_sink(keep_line, NULL);
    log_configure("fusion,memory,kernels");
    plan_quietly(text, target, math);
    log_configure("");
    log_set_sink(NULL, NULL);
    return &fixture.plan;
}

static Plan *plan_for(const char *text, CudaTarget target) { return plan_with(text, target, 0); }
static Plan *plan_of(const char *text) { return plan_for(text, (CudaTarget){0}); }

static uint32_t stages_of(const Kernel *k)
{
    uint32_t stages;
    kernel_analyse(k, &fixture.arena, &stages);
    return stages;
}

static uint32_t count_kind(const Kernel *k, InstKind kind)
{
    uint32_t n = 0;
    for (VRef v = 0; v < k->inst.n; v++)
        n += k->inst.at[v].kind == kind;
    return n;
}

/* ---- index expressions ---- */

static Kernel *loops(int64_t a, int64_t b)
{
    start();
    Kernel *k = kernel_new(&fixture.arena);
    kernel_add_axis(k, AXIS_X, kidx_const(k, a), a);
    kernel_add_axis(k, AXIS_X, kidx_const(k, b), b);
    for (uint32_t i = 0; i < 3; i++)
        VEC_PUSH(k->arena, k->args, (KArg){.kind = ARG_SIZE, .natural = i < 2});
    return k;
}

Test(fuse_index, equal_expressions_are_one)
{
    Kernel *k = loops(8, 16);
    IRef x = kidx_axis(k, 0), y = kidx_axis(k, 1), n = kidx_arg(k, 0), c3 = kidx_const(k, 3);
    cr_expect_eq(kidx_add(k, x, y), kidx_add(k, y, x));
    cr_expect_eq(kidx_mul(k, kidx_add(k, x, c3), n), kidx_add(k, kidx_mul(k, n, c3), kidx_mul(k, x, n)));
    cr_expect_eq(kidx_add(k, kidx_mul(k, x, c3), kidx_mul(k, x, kidx_const(k, -3))), kidx_const(k, 0));
    cr_expect_eq(kidx_add(k, kidx_add(k, x, c3), kidx_const(k, -3)), x);
    cr_expect_eq(kidx_mul(k, kidx_mul(k, x, n), kidx_mul(k, y, n)), kidx_mul(k, kidx_mul(k, n, n), kidx_mul(k, y, x)));
    cr_expect_neq(kidx_mul(k, x, n), kidx_mul(k, x, kidx_arg(k, 1)));
}

Test(fuse_index, linear)
{
    Kernel *k = loops(8, 16);
    IRef x = kidx_axis(k, 0), y = kidx_axis(k, 1), n = kidx_arg(k, 0), coef, rest;
    IRef e = kidx_add(k, kidx_mul(k, kidx_add(k, x, kidx_const(k, 2)), n), y);
    cr_assert(kidx_linear(k, e, 0, &coef, &rest));
    cr_expect_eq(coef, n);
    cr_expect_eq(rest, kidx_add(k, y, kidx_mul(k, n, kidx_const(k, 2))));
    cr_assert(kidx_linear(k, y, 0, &coef, &rest));
    cr_expect_eq(coef, kidx_const(k, 0));
    cr_expect_eq(rest, y);
    cr_expect_not(kidx_linear(k, kidx_mul(k, x, x), 0, &coef, &rest));
    cr_expect_not(kidx_linear(k, kidx_div(k, x, kidx_const(k, 3)), 0, &coef, &rest));
    cr_expect(kidx_linear(k, kidx_add(k, x, kidx_div(k, y, kidx_const(k, 3))), 0, &coef, &rest));
}

Test(fuse_index, quotients_and_remainders_fold)
{
    Kernel *k = loops(8, 16);
    IRef x = kidx_axis(k, 0), y = kidx_axis(k, 1), c16 = kidx_const(k, 16), n = kidx_arg(k, 0), s2 = kidx_arg(k, 2);
    IRef flat = kidx_add(k, kidx_mul(k, x, c16), y);
    cr_expect_eq(kidx_div(k, flat, c16), x);
    cr_expect_eq(kidx_mod(k, flat, c16), y);
    cr_expect_eq(kidx_div(k, flat, kidx_const(k, 128)), kidx_const(k, 0));
    cr_expect_eq(kidx_mod(k, flat, kidx_const(k, 128)), flat);
    cr_expect_eq(kidx_div(k, flat, kidx_const(k, 32)), kidx_div(k, x, kidx_const(k, 2)));
    cr_expect_eq(kidx_mod(k, flat, kidx_const(k, 32)), kidx_add(k, kidx_mul(k, kidx_mod(k, x, kidx_const(k, 2)), c16), y));
    IRef five = kidx_const(k, 5);
    cr_expect_eq(kidx_add(k, kidx_mul(k, kidx_div(k, flat, five), five), kidx_mod(k, flat, five)), flat);
    IRef r = kidx_axis(k, kernel_add_axis(k, AXIS_X, kidx_const(k, 576), 0)), c3 = kidx_const(k, 3),
         c9 = kidx_const(k, 9); /* taps of 3 x 3 */
    IRef rows = kidx_mul(k, kidx_mod(k, kidx_div(k, r, c3), c3), c3);
    cr_expect_eq(kidx_add(k, kidx_add(k, kidx_mul(k, kidx_div(k, r, c9), c9), rows), kidx_mod(k, r, c3)), r);
    /* y may reach n, so nothing folds; x*n + (y % n) does */
    cr_expect_neq(kidx_div(k, kidx_add(k, kidx_mul(k, x, n), y), n), x);
    cr_expect_eq(kidx_div(k, kidx_add(k, kidx_mul(k, x, n), kidx_mod(k, y, n)), n), x);
    /* of 4 * n, divided by n: less than 4 */
    IRef four = kidx_const(k, 4), q = kidx_div(k, kidx_axis(k, kernel_add_axis(k, AXIS_X, kidx_mul(k, n, four), 64)), n);
    cr_expect(kidx_below(k, q, four));
    cr_expect_not(kidx_below(k, q, kidx_const(k, 3)));
    cr_expect_not(kidx_below(k, kidx_div(k, kidx_axis(k, k->axes.n - 1), s2), four));
    cr_expect_eq(kidx_div(k, kidx_add(k, kidx_mul(k, x, four), q), four), x);
    cr_expect_eq(kidx_mod(k, kidx_add(k, kidx_mul(k, x, four), q), four), q);
    /* an argument that may be negative proves nothing */
    cr_expect_neq(kidx_div(k, kidx_add(k, kidx_mul(k, x, c16), s2), c16), kidx_add(k, x, kidx_div(k, s2, c16)));
    cr_expect_not(kidx_below(k, s2, n));
    cr_expect(kidx_below(k, y, c16));
    cr_expect_not(kidx_below(k, y, kidx_const(k, 15)));
    /* one level of division in another */
    cr_expect_eq(kidx_div(k, kidx_div(k, flat, five), kidx_const(k, 7)), kidx_div(k, flat, kidx_const(k, 35)));
}

static int64_t evaluate(const Kernel *k, IRef i, int64_t x, int64_t y)
{
    const Idx *e = &k->idx.at[i];
    if (e->kind == IX_CONST)
        return e->value;
    if (e->kind == IX_AXIS)
        return e->a ? y : x;
    int64_t a = evaluate(k, e->a, x, y), b = evaluate(k, e->b, x, y);
    cr_assert(e->kind == IX_ADD || e->kind == IX_MUL || (a >= 0 && b > 0));
    return e->kind == IX_ADD ? a + b : e->kind == IX_MUL ? a * b : e->kind == IX_DIV ? a / b : a % b;
}

Test(fuse_index, folding_agrees_with_arithmetic)
{
    Kernel *k = loops(8, 16);
    uint64_t s = 1;
    for (int trial = 0; trial < 2000; trial++) {
        int64_t a, b, c, m, d;
        int64_t *const all[] = {&a, &b, &c, &m, &d};
        for (int i = 0; i < 5; i++) {
            s = s * 6364136223846793005u + 1442695040888963407u;
            *all[i] = (int64_t)(s >> 40) % (i < 3 ? 20 : 40);
        }
        m += 1;
        d += 1;
        IRef e = kidx_add(k, kidx_add(k, kidx_mul(k, kidx_axis(k, 0), kidx_const(k, a)), kidx_mul(k, kidx_axis(k, 1), kidx_const(k, b))),
                          kidx_const(k, c));
        IRef forms[] = {kidx_div(k, e, kidx_const(k, m)), kidx_mod(k, e, kidx_const(k, m)),
                        kidx_mod(k, kidx_div(k, e, kidx_const(k, m)), kidx_const(k, d)),
                        kidx_div(k, kidx_mod(k, e, kidx_const(k, m * d)), kidx_const(k, m))};
        for (int64_t x = 0; x < 8; x += 1 + trial % 3) {
            for (int64_t y = 0; y < 16; y += 1 + trial % 4) {
                int64_t v = a * x + b * y + c;
                int64_t want[] = {v / m, v % m, v / m % d, v % (m * d) / m};
                for (int i = 0; i < 4; i++) {
                    int64_t got = evaluate(k, forms[i], x, y);
                    cr_assert_eq(got, want[i], "trial %d form %d at %lld,%lld: %lld, want %lld", trial, i, (long long)x, (long long)y,
                                 (long long)got, (long long)want[i]);
                }
            }
        }
    }
}

/* ---- one kernel ---- */

#define SOFTMAX                                                                                    \
    "  %1 = reduce_max %0 axes(1)\n  %2 = reshape %1 groups(1:1 0:1)\n  %3 = expand %2 axes(1) "   \
    "size(1000)\n"                                                                                 \
    "  %4 = sub %0 %3\n  %5 = exp %4\n  %6 = reduce_sum %5 axes(1)\n  %7 = reshape %6 groups(1:1 " \
    "0:1)\n"                                                                                       \
    "  %8 = expand %7 axes(1) size(1000)\n  %9 = div %5 %8\n"

Test(fuse, softmax_is_one_kernel_of_three_stages)
{
    Plan *p = plan_of("graph s(%0: f32[64,1000]) {\n" SOFTMAX "  return %9\n}\n");
    cr_assert_eq(p->steps.n, 1);
    const Kernel *k = p->steps.at[0].kernel;
    cr_expect_eq(stages_of(k), 3);
    cr_expect_eq(count_kind(k, KI_LOAD), 1);
    cr_expect_eq(count_kind(k, KI_FOLD), 2);
    uint32_t saved = 0;
    for (VRef v = 0; v < k->inst.n; v++)
        saved += k->inst.at[v].save;
    cr_expect_eq(saved, 1, "exp is kept between the stages");
    cr_expect_eq(p->buffers.at[p->outputs.at[0]].alias_input, 0, "softmax may run in place");
}

Test(fuse, log_softmax_and_logsumexp)
{
    Plan *p = plan_of("graph s(%0: f32[64,1000]) {\n  %1 = reduce_max %0 axes(1)\n  %2 = reshape "
                      "%1 groups(1:1 0:1)\n"
                      "  %3 = expand %2 axes(1) size(1000)\n  %4 = sub %0 %3\n  %5 = exp %4\n  %6 "
                      "= reduce_sum %5 axes(1)\n"
                      "  %7 = log %6\n  %8 = add %7 %1\n  %9 = reshape %7 groups(1:1 0:1)\n  %10 = "
                      "expand %9 axes(1) size(1000)\n"
                      "  %11 = sub %4 %10\n  return %8 %11\n}\n");
    cr_assert_eq(p->steps.n, 1);
    cr_expect_eq(count_kind(p->steps.at[0].kernel, KI_STORE), 2);
    cr_expect_eq(stages_of(p->steps.at[0].kernel), 3);
}

#define LAYER_NORM                                                                               \
    "  %3 = reduce_sum %0 axes(1)\n  %4 = scalar f32 0.0009765625\n  %5 = reshape %4 "           \
    "groups(0:1)\n"                                                                              \
    "  %6 = expand %5 axes(0) size(4096)\n  %7 = mul %3 %6\n  %8 = reshape %7 groups(1:1 0:1)\n" \
    "  %9 = expand %8 axes(1) size(1024)\n  %10 = sub %0 %9\n  %11 = square %10\n  %12 = "       \
    "reduce_sum %11 axes(1)\n"                                                                   \
    "  %13 = mul %12 %6\n  %18 = rsqrt %13\n  %19 = reshape %18 groups(1:1 0:1)\n"               \
    "  %20 = expand %19 axes(1) size(1024)\n  %21 = mul %10 %20\n"

Test(fuse, layer_norm_is_one_kernel)
{
    Plan *p = plan_of("graph n(%0: f32[4096,1024]) {\n" LAYER_NORM "  return %21\n}\n");
    cr_assert_eq(p->steps.n, 1);
    cr_expect_eq(stages_of(p->steps.at[0].kernel), 3);
    cr_expect_eq(count_kind(p->steps.at[0].kernel, KI_LOAD), 1);
}

Test(fuse, statistics_come_along)
{
    Plan *p = plan_of("graph n(%0: f32[4096,1024]) {\n" LAYER_NORM "  %30 = relu %0\n  return %21 %7 %18 %30\n}\n");
    cr_assert_eq(p->steps.n, 1, "%s", fixture.log);
    cr_expect_eq(count_kind(p->steps.at[0].kernel, KI_STORE), 4);
    cr_expect_eq(count_kind(p->steps.at[0].kernel, KI_LOAD), 1);
}

Test(fuse, reductions_over_leading_axes)
{
    Plan *p = plan_of("graph v(%0: f32[1000,3,16]) {\n  %1 = reduce_sum %0 axes(0 1)\n  %2 = reshape %1 "
                      "groups(0:1 0:1 1:1)\n"
                      "  %3 = expand %2 axes(0 1) size(1000 3)\n  %4 = sub %0 %3\n  %5 = square %4\n"
                      "  %6 = reduce_sum %5 axes(0 1)\n  return %6\n}\n");
    cr_assert_eq(p->steps.n, 1);
    const Kernel *k = p->steps.at[0].kernel;
    cr_expect_eq(k->axes.n, 2, "the two reduced axes become one");
    cr_expect_eq(k->vec_axis, 0, "lanes run along the columns");
}

Test(fuse, reductions_of_one_operand_share_it)
{
    Plan *p = plan_of("graph s(%0: f32[1000,1000]) {\n  %1 = reduce_sum %0 axes(0 1)\n  %2 = "
                      "reduce_max %0 axes(0 1)\n"
                      "  %3 = argmax %0 axes(0 1)\n  return %1 %2 %3\n}\n");
    cr_assert_eq(p->steps.n, 1);
    cr_expect(p->steps.at[0].kernel->split, "one long row is cut into tasks");
    cr_expect_eq(p->steps.at[0].args.at[p->steps.at[0].args.n - 1].kind, BIND_SHARED);
}

Test(fuse, elementwise_outputs_share_a_kernel)
{
    Plan *p = plan_of("graph e(%0: f32[70000], %1: f32[70000]) {\n  %2 = sin %0\n  %3 = add %2 "
                      "%1\n  %4 = sub %2 %1\n"
                      "  return %3 %4\n}\n");
    cr_assert_eq(p->steps.n, 1);
    cr_expect_eq(p->steps.at[0].kernel->axes.n, 1);
    cr_expect_eq(count_kind(p->steps.at[0].kernel, KI_LOAD), 2);
}

Test(fuse, strangers_stay_apart)
{
    Plan *p = plan_of("graph e(%0: f32[70000], %1: f32[70000]) {\n  %2 = sin %0\n  %3 = cos %1\n  "
                      "return %2 %3\n}\n");
    cr_expect_eq(p->steps.n, 2);
}

/* ---- workloads ---- */

Test(fuse, workload_a)
{
    Plan *p = plan_of("graph a(%0: f32[4096,4096], %1: f32[4096,4096]) {\n  %2 = sin %0\n  %3 = "
                      "cos %1\n  %4 = mul %2 %3\n"
                      "  %5 = add %4 %0\n  %6 = mul %5 %1\n  %7 = relu %6\n  return %7\n}\n");
    cr_assert_eq(p->steps.n, 1);
    cr_expect_eq(p->steps.at[0].kernel->axes.n, 1, "contiguous: one flat axis");
    cr_expect_eq(dim_hint(fixture.g, p->steps.at[0].bytes), 3 * 4096 * 4096 * 4);
}

Test(fuse, workload_b)
{
    Plan *p = plan_of("graph b(%0: f32[10000000]) {\n  %1 = scalar f32 0.1\n  %2 = reshape %1 groups(0:1)\n"
                      "  %3 = expand %2 axes(0) size(10000000)\n  %4 = mul %0 %3\n  %5 = tanh %4\n  %6 = sigmoid "
                      "%0\n"
                      "  %7 = mul %5 %6\n  %8 = reduce_sum %7 axes(0)\n  return %8\n}\n");
    cr_assert_eq(p->steps.n, 1);
    cr_expect(p->steps.at[0].kernel->split);
}

Test(fuse, workload_c)
{
    Plan *p = plan_of("graph c(%0: f32[256,1024], %1: f32[1024,2048], %2: f32[2048,1024]) {\n  %3 "
                      "= matmul %0 %1\n"
                      "  %4 = relu %3\n  %5 = matmul %4 %2\n  return %5\n}\n");
    cr_assert_eq(p->steps.n, 3, "two contractions, and panels of what the last one's tasks multiply by\n%s", fixture.log);
    cr_expect_eq(p->steps.at[0].kernel->form, FORM_CONTRACT);
    cr_expect_eq(count_kind(p->steps.at[0].kernel, KI_OP), 1, "relu is the epilogue");
    cr_expect_eq(p->steps.at[1].kernel->form, FORM_LOOPS);
    cr_expect_eq(p->steps.at[2].kernel->form, FORM_CONTRACT);
}

Test(fuse, workload_d)
{
    Plan *p = plan_of("graph mlp(%0: f32[8,128,64], %1: f32[64,256], %2: f32[256], %3: f32[256,64], %4: "
                      "f32[64]) {\n"
                      "  %10 = reshape %0 groups(2:1 1:1)\n  %11 = matmul %10 %1\n  %12 = reshape %11 "
                      "groups(1:2 1:1) size(8 128)\n"
                      "  %13 = reshape %2 groups(0:1 0:1 1:1)\n  %14 = expand %13 axes(0 1) size(8 "
                      "128)\n  %15 = add %12 %14\n  %16 = relu %15\n"
                      "  %17 = reshape %16 groups(2:1 1:1)\n  %18 = matmul %17 %3\n  %19 = reshape %18 "
                      "groups(1:2 1:1) size(8 128)\n"
                      "  %22 = add %19 %0\n  %23 = reduce_sum %22 axes(2)\n  %24 = reshape %23 "
                      "groups(1:1 1:1 0:1)\n"
                      "  %25 = expand %24 axes(2) size(64)\n  %26 = sub %22 %25\n  return %26\n}\n");
    cr_assert_eq(p->steps.n, 5, "two contractions with their epilogues, panels of the weights of each, one norm\n%s", fixture.log);
    cr_expect_eq(p->steps.at[1].kernel->form, FORM_CONTRACT);
    cr_expect_eq(p->steps.at[3].kernel->form, FORM_CONTRACT);
    cr_expect_eq(p->steps.at[4].kernel->form, FORM_LOOPS);
    cr_expect_eq(p->steps.at[1].kernel->axes.n, 3);
}

Test(fuse, workload_e)
{
    Plan *p = plan_of("graph e(%0: f32[4096,4096]) {\n  %1 = scalar f32 2\n  %2 = reshape %1 groups(0:1 0:1)\n"
                      "  %3 = expand %2 axes(0 1) size(4096 4096)\n  %4 = mul %0 %3\n  %5 = relu %4\n  %6 = "
                      "sigmoid %5\n"
                      "  return %6\n}\n");
    cr_assert_eq(p->steps.n, 1);
    cr_expect_eq(p->steps.at[0].kernel->axes.n, 1);
}

Test(fuse, workload_g)
{
    Plan *p = plan_of("graph g(%0: bf16[512,2048], %1: bf16[2048,4096], %2: bf16[4096,2048], %3: "
                      "bf16[512,4096]) {\n"
                      "  %4 = matmul %0 %1\n  %5 = sigmoid %4\n  %6 = mul %4 %5\n  %7 = matmul %6 "
                      "%2\n  %8 = matmul %3 %2\n"
                      "  return %7\n}\n");
    cr_assert_eq(p->steps.n, 2, "exactly two contractions: the unused product does not run, silu is an epilogue");
}

/* ---- buffers ---- */

Test(fuse, temporaries_share_slots)
{
    /* a chain of contractions: each temporary dies at the next */
    Plan *p = plan_of("graph t(%0: f32[64,64]) {\n  %1 = matmul %0 %0\n  %2 = matmul %1 %1\n  %3 = matmul %2 %2\n"
                      "  %4 = matmul %3 %3\n  %5 = matmul %4 %4\n  return %5\n}\n");
    cr_assert_eq(p->steps.n, 5);
    cr_expect_eq(p->n_slots, 2);
    cr_expect_eq(p->peak_without, 5 * 64 * 64 * 4);
    cr_expect_eq(p->peak_with_reuse, 3 * 64 * 64 * 4);
    cr_expect(strstr(fixture.log, "with reuse"));
}

Test(fuse, donation_only_where_it_is_read_in_place)
{
    Plan *p = plan_of("graph t(%0: f32[64]) {\n  %1 = relu %0\n  return %1\n}\n");
    cr_expect_eq(p->buffers.at[p->outputs.at[0]].alias_input, 0);
    p = plan_of("graph t(%0: f32[64]) {\n  %1 = slice %0 axes(0) range(63:-1:64)\n  return %1\n}\n");
    cr_expect_eq(p->buffers.at[p->outputs.at[0]].alias_input, NO_BUFFER, "reversed: other elements are still to be read");
    p = plan_of("graph t(%0: f32[64]) {\n  %1 = relu %0\n  return %1 %0\n}\n");
    cr_expect_eq(p->buffers.at[p->outputs.at[0]].alias_input, NO_BUFFER, "the input is an output");
    p = plan_of("graph t(%0: f32[64]) {\n  %1 = cast i32 %0\n  return %1\n}\n");
    cr_expect_eq(p->buffers.at[p->outputs.at[0]].alias_input, NO_BUFFER, "another dtype");
    p = plan_of("graph t(%0: f32[64,1000]) {\n" SOFTMAX "  %20 = relu %0\n  return %9 %20\n}\n");
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t j = 0; j < i; j++)
            cr_expect(p->buffers.at[p->outputs.at[i]].alias_input == NO_BUFFER ||
                      p->buffers.at[p->outputs.at[i]].alias_input != p->buffers.at[p->outputs.at[j]].alias_input);
}

Test(fuse, outputs_that_are_inputs)
{
    Plan *p = plan_of("graph t(%0: f32[6,4]) {\n  %1 = reshape %0 groups(2:1)\n  return %0 %1 %0\n}\n");
    cr_expect_eq(p->steps.n, 0);
    for (uint32_t i = 0; i < 3; i++)
        cr_expect_eq(p->buffers.at[p->outputs.at[i]].kind, BUFFER_INPUT);
}

/* ---- limits ---- */

static char *big(const char *head, uint32_t n, const char *(*line)(uint32_t i, char *buf), uint32_t result)
{
    size_t room = 64 + 128 * (size_t)n + strlen(head);
    char *text = malloc(room), buf[256];
    size_t at = (size_t)snprintf(text, room, "%s", head);
    for (uint32_t i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, room - at, "%s", line(i, buf));
    snprintf(text + at, room - at, "  return %%%u\n}\n", result);
    return text;
}

static const char *chain_line(uint32_t i, char *buf)
{
    static const char *const ops[] = {"sin", "neg", "abs", "square", "floor"};
    sprintf(buf, "  %%%u = %s %%%u\n", i + 1, ops[i % 5], i);
    return buf;
}

Test(fuse, a_chain_of_5000_ops)
{
    char *text = big("graph c(%0: f32[1000]) {\n", 5000, chain_line, 5000);
    Plan *p = plan_of(text);
    cr_expect_geq(p->steps.n, 2);
    cr_expect_leq(p->steps.n, 20);
    for (uint32_t s = 0; s < p->steps.n; s++)
        cr_expect_leq(p->steps.at[s].kernel->inst.n, 2000);
    cr_expect_lt(p->looks, 20 * 5000, "%llu looks at nodes", (unsigned long long)p->looks);
    free(text);
}

static const char *sum_line(uint32_t i, char *buf)
{
    sprintf(buf, "  %%%u = add %%%u %%%u\n", 1000 + i, i ? 999 + i : 0, i + 1);
    return buf;
}

Test(fuse, a_sum_of_1000_inputs)
{
    char head[1000 * 16 + 64];
    size_t at = (size_t)sprintf(head, "graph s(");
    for (int i = 0; i < 1000; i++)
        at += (size_t)sprintf(head + at, "%s%%%d: f32[50]", i ? ", " : "", i);
    sprintf(head + at, ") {\n");
    char *text = big(head, 999, sum_line, 1998);
    Plan *p = plan_of(text);
    cr_expect_leq(p->steps.n, 30);
    for (uint32_t s = 0; s < p->steps.n; s++)
        cr_expect_leq(p->steps.at[s].args.n, 72);
    free(text);
}

static const char *stencil_line(uint32_t i, char *buf)
{
    uint32_t at = 3 * i;
    sprintf(buf,
            "  %%%u = slice %%%u axes(0) range(0:1:%u)\n  %%%u = slice %%%u axes(0) "
            "range(2:1:%u)\n  %%%u = add %%%u %%%u\n",
            at + 1, at, 4000 - 2 * i - 2, at + 2, at, 4000 - 2 * i - 2, at + 3, at + 1, at + 2);
    return buf;
}

/* The plan of n softmaxes of [8,16] one after another, along the rows, or (in_turn) along rows and
 * columns in turn. */
static Plan *softmax_chain(int n, bool in_turn)
{
    size_t room = 600 * (size_t)n + 100;
    char *text = malloc(room), *at = text;
    cr_assert_not_null(text);
    at += sprintf(at, "graph chain(%%0: f32[8,16]) {\n");
    for (int i = 0; i < n; i++) {
        int x = 9 * i, columns = in_turn && i % 2;
        const char *kept = columns ? "groups(0:1 1:1)" : "groups(1:1 0:1)";
        const char *again = columns ? "axes(0) size(8)" : "axes(1) size(16)";
        at += sprintf(at, "  %%%d = reduce_max %%%d axes(%d)\n", x + 1, x, !columns);
        at += sprintf(at, "  %%%d = reshape %%%d %s\n", x + 2, x + 1, kept);
        at += sprintf(at, "  %%%d = expand %%%d %s\n", x + 3, x + 2, again);
        at += sprintf(at, "  %%%d = sub %%%d %%%d\n", x + 4, x, x + 3);
        at += sprintf(at, "  %%%d = exp %%%d\n", x + 5, x + 4);
        at += sprintf(at, "  %%%d = reduce_sum %%%d axes(%d)\n", x + 6, x + 5, !columns);
        at += sprintf(at, "  %%%d = reshape %%%d %s\n", x + 7, x + 6, kept);
        at += sprintf(at, "  %%%d = expand %%%d %s\n", x + 8, x + 7, again);
        at += sprintf(at, "  %%%d = div %%%d %%%d\n", x + 9, x + 5, x + 8);
    }
    sprintf(at, "  return %%%d\n}\n", 9 * n);
    Plan *p = plan_quietly(text, (CudaTarget){0}, 0);
    free(text);
    return p;
}

static uint32_t most_buffers(const Plan *p)
{
    uint32_t most = 0;
    for (uint32_t s = 0; s < p->steps.n; s++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < p->steps.at[s].args.n; i++)
            n += p->steps.at[s].args.at[i].kind == BIND_BUFFER;
        most = n > most ? n : most;
    }
    return most;
}

/* Cut where little has to be stored, not where the budget of a kernel happens to run out. */
Test(fuse, a_chain_of_300_softmaxes)
{
    Plan *p = softmax_chain(300, false);
    cr_expect_leq(p->steps.n, 10, "%u kernels", p->steps.n);
    cr_expect_leq(most_buffers(p), 5);
}

/* Softmaxes along rows and columns do not share loops: a kernel each. The work must not grow with
 * the square of the length, which would be 16 times. */
Test(fuse, a_chain_of_softmaxes_along_rows_and_columns)
{
    Plan *p = softmax_chain(200, true);
    unsigned long long once = p->looks;
    cr_expect_leq(p->steps.n, 210, "%u kernels", p->steps.n);
    cr_expect_leq(most_buffers(p), 64);
    if (KILN_TEST_SLOWER > 1) /* a sanitizer: the normal build counts */
        return;
    p = softmax_chain(800, true);
    unsigned long long four = p->looks;
    cr_expect_leq(p->steps.n, 840, "%u kernels", p->steps.n);
    cr_expect_lt(four, 8 * once, "%llu looks at nodes for 200, %llu for 800", once, four);
}

Test(fuse, a_stencil_of_stencils)
{
    char *text = big("graph s(%0: f32[4000]) {\n", 40, stencil_line, 120);
    Plan *p = plan_of(text);
    cr_expect_leq(p->steps.n, 16);
    for (uint32_t s = 0; s < p->steps.n; s++)
        cr_expect_leq(p->steps.at[s].kernel->inst.n, 200);
    free(text);
}

Test(fuse, a_long_concat)
{
    char text[8192];
    size_t at = (size_t)sprintf(text, "graph c(%%0: f32[5,7]) {\n  %%1 = relu %%0\n  %%2 = concat");
    for (int i = 0; i < 40; i++)
        at += (size_t)sprintf(text + at, " %%%d", i % 2);
    sprintf(text + at, " axis(1)\n  return %%2\n}\n");
    Plan *p = plan_of(text);
    Str texts[3];
    uint32_t kernels = 0;
    cr_expect_geq(p->steps.n, 40);
    for (uint32_t s = 0; s < p->steps.n; s++) {
        cr_expect_eq(count_kind(p->steps.at[s].kernel, KI_STORE), 1);
        uint32_t k = 0;
        str_init(&texts[kernels], &fixture.arena);
        kernel_print(p->steps.at[s].kernel, &texts[kernels]);
        while (strcmp(texts[k].text, texts[kernels].text) != 0)
            k++;
        kernels += k == kernels;
        cr_assert_leq(kernels, 2, "relu and the copy of a piece are all there is to compile");
    }
}

/* ---- reasons ---- */

Test(fuse, reasons)
{
    Plan *p = plan_of("graph m(%0: f32[100,16], %1: f32[100,32]) {\n  %2 = reduce_max %0 axes(1)\n"
                      "  %3 = reshape %2 groups(1:1 0:1)\n  %4 = expand %3 axes(1) size(32)\n  %5 "
                      "= sub %1 %4\n  return %5\n}\n");
    cr_assert_eq(p->steps.n, 2);
    cr_expect(strstr(fixture.log, "not fused: %2 reduce_max into %5: "), "%s", fixture.log);
    cr_expect(strstr(fixture.log, "for i < 100, j < 16"), "kernels are printed: %s", fixture.log);
}

Test(fuse, a_shared_reduction_is_stored_once)
{
    Plan *p = plan_of("graph m(%0: f32[100,16], %1: f32[100,32], %2: f32[100,48]) {\n  %3 = reduce_sum %0 "
                      "axes(1)\n  %4 = sqrt %3\n"
                      "  %5 = reshape %4 groups(1:1 0:1)\n  %6 = expand %5 axes(1) size(32)\n  %7 = div %1 %6\n"
                      "  %8 = expand %5 axes(1) size(48)\n  %9 = div %2 %8\n  return %7 %9\n}\n");
    uint32_t reductions = 0;
    for (uint32_t s = 0; s < p->steps.n; s++)
        reductions += count_kind(p->steps.at[s].kernel, KI_FOLD);
    cr_expect_eq(reductions, 1, "%s", fixture.log);
    cr_expect_eq(p->steps.n, 3);
}

Test(fuse, kernels_of_equal_layers_are_equal_texts)
{
    Plan *p = plan_of("graph l(%0: f32[32,64], %1: f32[64,64], %2: f32[64,64], %3: f32[64,64]) {\n "
                      " %4 = matmul %0 %1\n  %5 = tanh %4\n"
                      "  %6 = matmul %5 %2\n  %7 = tanh %6\n  %8 = matmul %7 %3\n  %9 = tanh %8\n  "
                      "return %9\n}\n");
    cr_assert_eq(p->steps.n, 3);
    Str text[3];
    for (uint32_t i = 0; i < 3; i++) {
        str_init(&text[i], &fixture.arena);
        kernel_print(p->steps.at[i].kernel, &text[i]);
    }
    cr_expect_str_eq(text[0].text, text[1].text);
    cr_expect_str_eq(text[1].text, text[2].text);
}

Test(fuse, twice_the_same)
{
    const char *graph = "graph s(%0: f32[64,1000]) {\n" SOFTMAX "  return %9 %6\n}\n";
    static char first[sizeof fixture.log];
    plan_of(graph);
    memcpy(first, fixture.log, sizeof first);
    fixture.log[0] = 0;
    plan_of(graph);
    cr_expect_str_eq(first, fixture.log);
}

/* ---- the verifier ---- */

Test(fuse_verify, finds_broken_kernels)
{
    Plan *p = plan_of("graph e(%0: f32[70,3]) {\n  %1 = sin %0\n  %2 = reduce_sum %1 axes(1)\n  return %2\n}\n");
    Kernel *k = p->steps.at[0].kernel;
    cr_assert_eq(kernel_verify(k), ST_OK);
    for (VRef v = 0; v < k->inst.n; v++) {
        KInst good = k->inst.at[v];
        k->inst.at[v].dtype = good.dtype == DT_F64 ? DT_F32 : DT_F64;
        if (good.kind == KI_LOAD)
            cr_expect_eq(kernel_verify(k), ST_INTERNAL, "dtype of v%u", v);
        k->inst.at[v] = good;
        k->inst.at[v].a = good.kind == KI_LOAD ? 0 : k->inst.n;
        cr_expect_eq(kernel_verify(k), ST_INTERNAL, "operand of v%u", v);
        k->inst.at[v] = good;
        if (good.idx != IREF_NONE) {
            k->inst.at[v].idx = IREF_NONE;
            cr_expect_eq(kernel_verify(k), ST_INTERNAL, "index of v%u", v);
            k->inst.at[v] = good;
        }
        if (good.kind == KI_LOAD || good.kind == KI_STORE) {
            k->inst.at[v].arg = 100;
            cr_expect_eq(kernel_verify(k), ST_INTERNAL, "argument of v%u", v);
            k->inst.at[v] = good;
        }
    }
    k->axes.at[0].kind = AXIS_R;
    k->axes.at[1].kind = AXIS_X;
    cr_expect_eq(kernel_verify(k), ST_INTERNAL, "order of axes");
}

/* ---- what the schedule makes of a device ---- */

static const char *rows_text(bool stages, int64_t n, int64_t m)
{
    static char text[1024];
    const char *sum = "graph sums(%%0: f32[%lld,%lld]) {\n  %%1 = reduce_sum %%0 axes(1)\n  return %%1\n}\n";
    const char *two = "graph centred(%%0: f32[%lld,%lld]) {\n  %%1 = reduce_max %%0 axes(1)\n  %%2 = reshape %%1 groups(1:1 0:1)\n"
                      "  %%3 = expand %%2 axes(1) size(%lld)\n  %%4 = sub %%0 %%3\n  return %%4\n}\n";
    snprintf(text, sizeof text, stages ? two : sum, (long long)n, (long long)m, (long long)m);
    return text;
}

/* Rows are cut where they are too few to fill the device: the host, a large device, a small one. */
Test(fuse, split_by_the_size_of_the_device)
{
    static const struct {
        bool stages;
        int64_t rows, length;
        bool host, large, small;
    } cases[] = {
        {false, 1, 10000000, true, true, true},   {false, 100, 1000000, false, true, false}, {false, 200, 40000, false, true, false},
        {false, 300, 40000, false, false, false}, {false, 20, 40000, false, true, true},     {false, 1, 20000, false, false, false},
        {true, 100, 40000, false, true, false},   {true, 200, 40000, false, false, false}, /* several stages: a launch for each */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const bool want[] = {cases[i].host, cases[i].large, cases[i].small};
        const CudaTarget targets[] = {{.sm = 0}, {.sm = 90, .ptx = 80, .multiprocessors = 132}, {.sm = 87, .ptx = 74}};
        for (int t = 0; t < 3; t++) {
            Plan *p = plan_for(rows_text(cases[i].stages, cases[i].rows, cases[i].length), targets[t]);
            cr_assert_eq(p->steps.n, 1);
            cr_expect_eq(p->steps.at[0].kernel->split, want[t], "case %zu, device %d", i, t);
        }
    }
}

/* How a sum over k is cut (jit/llvm/cuda/parts.c) follows from the product's own sizes, whether its axes were merged or not. */
Test(fuse, sizes_of_products)
{
    static const char text[] = "graph p(%%0: f32[3,24,1040], %%1: f32[%s1040,32]) {\n%s  %%4 = matmul %%0 %s\n  return %%4\n}\n",
                      same[] = "  %2 = reshape %1 groups(0:1 1:1 1:1)\n  %3 = expand %2 axes(0) size(3)\n";
    for (int merged = 0; merged < 2; merged++) {
        char graph[512];
        snprintf(graph, sizeof graph, text, merged ? "" : "3,", merged ? same : "", merged ? "%3" : "%1");
        Plan *p = plan_for(graph, (CudaTarget){.sm = 90, .ptx = 80});
        const Kernel *k = p->steps.at[0].kernel;
        Str out = {.arena = &fixture.arena};
        kernel_print(k, &out);
        cr_assert_eq(p->steps.n, 1);
        cr_expect_eq(k->axes.n, merged ? 3 : 4, "%s", out.text);
        cr_expect(strstr(out.text, " of 3 x 24 x 32"), "%s", out.text);
    }
}

/*
 * Products with a vector, in fast mode: reductions on a CUDA device, where a size that happens to be 1 is no vector; on a CPU where the
 * matrix lies along the sum and is that vector's alone. Ints are in strict mode, too, on a device.
 */
Test(fuse, products_with_vectors)
{
    static const char matvec[] = "graph v(%0: f16[300,5000], %1: f16[5000]) {\n  %2 = reshape %1 groups(1:1 0:1)\n"
                                 "  %3 = matmul %0 %2\n  %4 = neg %3\n  return %4\n}\n",
                      dot[] = "graph d(%0: f32[5000000], %1: f32[5000000]) {\n  %2 = reshape %0 groups(0:1 1:1)\n"
                              "  %3 = reshape %1 groups(1:1 0:1)\n  %4 = matmul %2 %3\n  return %4\n}\n",
                      ints[] = "graph i(%0: i32[7,50], %1: i32[50]) {\n  %2 = reshape %1 groups(1:1 0:1)\n"
                               "  %3 = matmul %0 %2\n  return %3\n}\n",
                      one[] = "graph o(%0: f32[1,50], %1: f32[50,60]) {\n  %2 = matmul %0 %1\n  return %2\n}\n",
                      turned[] = "graph t(%0: f32[1,50], %1: f32[60,50]) {\n  %2 = permute %1 perm(1 0)\n"
                                 "  %3 = matmul %0 %2\n  return %3\n}\n",
                      heads[] = "graph h(%0: f32[8,1,50], %1: f32[8,60,50]) {\n  %2 = permute %1 perm(0 2 1)\n"
                                "  %3 = matmul %0 %2\n  return %3\n}\n",
                      front[] = "graph r(%0: f32[1,1,50], %1: f32[60,50]) {\n  %2 = permute %1 perm(1 0)\n"
                                "  %3 = reshape %2 groups(0:1 1:1 1:1)\n  %4 = matmul %0 %3\n  return %4\n}\n",
                      narrow[] = "graph n(%0: bf16[8,1,64], %1: bf16[8,60,64]) {\n  %2 = permute %1 perm(0 2 1)\n"
                                 "  %3 = matmul %0 %2\n  return %3\n}\n",
                      shared[] = "graph s(%0: f32[8,1,50], %1: f32[60,50]) {\n  %2 = permute %1 perm(1 0)\n"
                                 "  %3 = reshape %2 groups(0:1 1:1 1:1)\n  %4 = expand %3 axes(0) size(8)\n"
                                 "  %5 = matmul %0 %4\n  return %5\n}\n",
                      columns[] = "graph c(%0: f32[50,60], %1: f32[50,1]) {\n  %2 = permute %0 perm(1 0)\n"
                                  "  %3 = matmul %2 %1\n  return %3\n}\n";
    static const struct {
        const char *text;
        bool host, fast, strict, split; /* is it a reduction: on a CPU in fast mode, on a device? */
    } cases[] = {{matvec, true, true, false, false},  {dot, true, true, false, true},       {ints, false, true, true, false},
                 {one, false, false, false, false},   {turned, true, false, false, false},  {heads, true, false, false, false},
                 {front, true, false, false, false},  {shared, false, false, false, false}, {columns, false, false, false, false},
                 {narrow, false, false, false, false}};
    const CudaTarget device = {.sm = 90, .ptx = 80}, host = {.sm = 0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int math = 0; math < 2; math++)
            for (int cuda = 0; cuda < 2; cuda++) {
                const Kernel *k =
                    plan_with(cases[i].text, cuda ? device : host, math ? OPT_MATH_STRICT : OPT_MATH_FAST)->steps.at[0].kernel;
                bool sums = cuda ? (math ? cases[i].strict : cases[i].fast) : !math && cases[i].host;
                cr_assert_eq(fixture.plan.steps.n, 1);
                cr_expect_eq(k->form, sums ? FORM_LOOPS : FORM_CONTRACT, "case %zu, strict %d, cuda %d", i, math, cuda);
                cr_expect_eq(k->split && sums, sums && cases[i].split, "case %zu", i);
            }
}

/* Few results and a long sum: blocks of it are tasks, on a CPU. Not of a short one, of many results, or of few rows by a
 * wide matrix, which go by strips. */
Test(fuse, blocks_of_products_are_tasks)
{
    static const char *const texts[] = {
        "graph g(%0: f32[16,65536], %1: f32[65536,16]) {\n  %2 = matmul %0 %1\n  return %2\n}\n",
        "graph w(%0: f32[8192,64], %1: f32[8192,64]) {\n  %2 = permute %0 perm(1 0)\n  %3 = matmul %2 %1\n  return %3\n}\n",
        "graph s(%0: f32[16,1024], %1: f32[1024,16]) {\n  %2 = matmul %0 %1\n  return %2\n}\n",
        "graph m(%0: f32[512,8192], %1: f32[8192,512]) {\n  %2 = matmul %0 %1\n  return %2\n}\n",
        "graph t(%0: f32[4,4096], %1: f32[4096,4096]) {\n  %2 = matmul %0 %1\n  return %2\n}\n"};
    const CudaTarget device = {.sm = 90, .ptx = 80}, host = {.sm = 0};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const PlanStep *step = &plan_with(texts[i], host, OPT_MATH_STRICT)->steps.at[0];
        const uint32_t last = step->args.n - 1;
        cr_expect_eq(step->kernel->split, i < 2, "case %zu", i);
        cr_expect_eq(step->args.at[last].kind == BIND_SHARED && step->kernel->args.at[last].kind == ARG_SCRATCH, i < 2, "case %zu", i);
        cr_expect_not(plan_with(texts[i], device, OPT_MATH_STRICT)->steps.at[0].kernel->split, "case %zu", i);
    }
}
