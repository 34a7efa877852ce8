/* kiln_op_register with an image: kernels of the user's own on a CUDA device, among kiln's. */
#include "on_cuda.h"

#include <stdio.h>

/* out[i] = a[i] * b[i] + c[0] for i < the first dim of a. Parameters: pointers to a, b, c, out; dims of a, of b, of out (c has none). */
#define MUL_ADD(name)                                                                                                          \
    ".version 7.0\n.target sm_75\n.address_size 64\n"                                                                          \
    ".visible .entry " name "(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 po, .param .u64 na, .param .u64 nb," \
    " .param .u64 no)\n"                                                                                                       \
    "{\n"                                                                                                                      \
    "  .reg .pred %p<2>;\n  .reg .b32 %r<4>;\n  .reg .f32 %f<5>;\n  .reg .b64 %rd<14>;\n"                                      \
    "  ld.param.u64 %rd1, [pa];\n  ld.param.u64 %rd2, [pb];\n  ld.param.u64 %rd3, [pc];\n  ld.param.u64 %rd4, [po];\n"         \
    "  ld.param.u64 %rd5, [na];\n"                                                                                             \
    "  mov.u32 %r1, %ctaid.x;\n  mov.u32 %r2, %ntid.x;\n  mov.u32 %r3, %tid.x;\n"                                              \
    "  mul.wide.u32 %rd6, %r1, %r2;\n  cvt.u64.u32 %rd7, %r3;\n  add.s64 %rd8, %rd6, %rd7;\n"                                  \
    "  setp.ge.s64 %p1, %rd8, %rd5;\n  @%p1 bra $done;\n"                                                                      \
    "  cvta.to.global.u64 %rd1, %rd1;\n  cvta.to.global.u64 %rd2, %rd2;\n  cvta.to.global.u64 %rd3, %rd3;\n"                   \
    "  cvta.to.global.u64 %rd4, %rd4;\n"                                                                                       \
    "  shl.b64 %rd9, %rd8, 2;\n  add.s64 %rd10, %rd1, %rd9;\n  add.s64 %rd11, %rd2, %rd9;\n  add.s64 %rd12, %rd4, %rd9;\n"     \
    "  ld.global.f32 %f1, [%rd10];\n  ld.global.f32 %f2, [%rd11];\n  ld.global.f32 %f3, [%rd3];\n"                             \
    "  fma.rn.f32 %f4, %f1, %f2, %f3;\n  st.global.f32 [%rd12], %f4;\n"                                                        \
    "$done:\n  ret;\n}\n"

static const char image[] = MUL_ADD("mul_add"), broken[] = ".version 7.0\n.target sm_75\nthis is no PTX\n";
static int launches, host_calls;

static kiln_status same(const kiln_type *in, kiln_type *out, const void *attributes, size_t bytes, void *user)
{
    (void)attributes, (void)bytes, (void)user;
    out[0] = in[0];
    return KILN_OK;
}

static kiln_status cover(const kiln_type *in, const kiln_type *out, const void *attributes, size_t bytes, kiln_launch *launch, void *user)
{
    (void)out, (void)attributes, (void)bytes;
    launches++;
    launch->block[0] = 64;
    launch->grid[0] = (unsigned)((in[0].shape.dim[0] + 63) / 64);
    return user ? kiln_op_fail("not today") : KILN_OK;
}

static kiln_status on_host(const kiln_buffer *in, const kiln_buffer *out, const void *attributes, size_t bytes, void *user)
{
    (void)attributes, (void)bytes, (void)user;
    host_calls++;
    for (int64_t i = 0; i < in[0].type.shape.dim[0]; i++)
        ((float *)out[0].data)[i] = fmaf(((const float *)in[0].data)[i], ((const float *)in[1].data)[i], *(const float *)in[2].data);
    return KILN_OK;
}

static kiln_op_info info_of(const char *name)
{
    return (kiln_op_info){.name = name,
                          .version = "1",
                          .n_in = 3,
                          .n_out = 1,
                          .infer = same,
                          .image = image,
                          .image_bytes = sizeof image - 1,
                          .function = "mul_add",
                          .launch = cover};
}

static const kiln_op *registered(const kiln_op_info *info)
{
    const kiln_op *op = kiln_op_register(info);
    cr_assert(op != NULL, "%s", kiln_error_message());
    return op;
}

static kiln_tensor *applied(const kiln_op *op, kiln_tensor *a, kiln_tensor *b, kiln_tensor *c)
{
    kiln_tensor *out = NULL, *in[] = {a, b, c};
    OK(kiln_op_apply(op, in, NULL, 0, &out));
    return out;
}

Test(cuda_op, is_launched_among_kernels)
{
    begin_mode(3);
    kiln_op_info info = info_of("test.mul_add");
    const kiln_op *op = registered(&info);
    kiln_stats before = stats_now();
    launches = 0;
    for (int64_t n = 0; n < 100; n += 33) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_arange(KILN_F32, 0, (double)n, 1), *c = kiln_full(KILN_F32, KILN_SHAPE(), 0.5);
        kiln_tensor *y = applied(op, kiln_add(x, 1), kiln_mul(x, 2), c);
        float got[200];
        OK(kiln_read(kiln_neg(applied(op, y, x, c)), KILN_F32, got, sizeof *got * (size_t)n));
        for (int64_t i = 0; i < n; i++)
            cr_assert_eq(got[i], -(((float)i + 1) * 2 * (float)i + 0.5f) * (float)i - 0.5f, "%d of %d: %g", (int)i, (int)n, (double)got[i]);
        kiln_scope_end(scope);
    }
    kiln_stats after = stats_now();
    cr_assert_eq(launches, 8);
    cr_assert_leq(after.compiles - before.compiles, 2);
    end_mode();
}

static void step(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)y;
    carry_out[0] = applied(user, carry[0], x[0], kiln_full(KILN_F32, KILN_SHAPE(), 1));
}

Test(cuda_op, in_loops)
{
    begin_mode(3);
    kiln_op_info info = info_of("test.in_loops");
    const kiln_op *op = registered(&info);
    kiln_tensor *one = kiln_ones(KILN_F32, KILN_SHAPE(3)), *last, *xs = kiln_full(KILN_F32, KILN_SHAPE(5, 3), 2);
    OK(kiln_scan(step, -1, 0, 1, &one, &last, 1, &xs, 0, NULL, (void *)(uintptr_t)op));
    EXPECT(last, KILN_F32, KILN_SHAPE(3), 0, 63, 63, 63);
    end_mode();
}

/* With a function for the host the interpreter has its way, and the CPU; without one they say so. */
Test(cuda_op, beside_a_function_of_the_host)
{
    begin_mode(3);
    kiln_op_info info = info_of("test.both");
    info.host = on_host;
    const kiln_op *op = registered(&info);
    info = info_of("test.device_only");
    const kiln_op *alone = registered(&info);
    launches = host_calls = 0;
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(2)), *c = kiln_full(KILN_F32, KILN_SHAPE(), 3);
    EXPECT(applied(op, x, x, c), KILN_F32, KILN_SHAPE(2), 0, 4, 4);
    cr_assert(launches == 1 && host_calls == 0);
    set_option("mode", "interp");
    EXPECT(applied(op, x, x, c), KILN_F32, KILN_SHAPE(2), 0, 4, 4);
    cr_assert(launches == 1 && host_calls == 1);
    fails_with(kiln_eval(applied(alone, x, x, c)), KILN_UNSUPPORTED, "test.device_only 1 (test_cuda_op.c:");
    set_option("mode", "jit");
    x = kiln_to(x, "cpu");
    c = kiln_to(c, "cpu");
    EXPECT(applied(op, x, x, c), KILN_F32, KILN_SHAPE(2), 0, 4, 4);
    cr_assert(launches == 1 && host_calls == 2);
    fails_with(kiln_eval(applied(alone, x, x, c)), KILN_UNSUPPORTED, "has no function for the host");
    end_mode();
}

Test(cuda_op, what_goes_wrong)
{
    begin_mode(3);
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(2)), *c = kiln_full(KILN_F32, KILN_SHAPE(), 3);
    kiln_op_info info = info_of("test.refuses");
    info.user = &info;
    fails_with(kiln_eval(applied(registered(&info), x, x, c)), KILN_INVALID, "): not today (test_cuda_op.c:");
    info = info_of("test.no_entry");
    info.function = "elsewhere";
    fails_with(kiln_eval(applied(registered(&info), x, x, c)), KILN_DEVICE, "elsewhere");
    info = info_of("test.broken");
    info.image = broken;
    info.image_bytes = sizeof broken;
    fails_with(kiln_eval(applied(registered(&info), x, x, c)), KILN_DEVICE, "test.broken");
    EXPECT(kiln_add(x, c), KILN_F32, KILN_SHAPE(2), 0, 4, 4);
    end_mode();
}

/* Another image is another key. */
Test(cuda_op, an_image_is_part_of_the_key)
{
    begin_mode(3);
    static const char other[] = MUL_ADD("mul_add") "\n";
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(2)), *c = kiln_full(KILN_F32, KILN_SHAPE(), 3);
    kiln_op_info info = info_of("test.image");
    const kiln_op *op = registered(&info);
    info.name = "test.other_image";
    info.image = other;
    info.image_bytes = sizeof other - 1;
    const kiln_op *second = registered(&info);
    kiln_stats before = stats_now();
    for (int k = 0; k < 2; k++) {
        EXPECT(applied(op, x, x, c), KILN_F32, KILN_SHAPE(2), 0, 4, 4);
        EXPECT(applied(second, x, x, c), KILN_F32, KILN_SHAPE(2), 0, 4, 4);
    }
    kiln_stats after = stats_now();
    cr_assert_eq(after.compiles - before.compiles, 2);
    end_mode();
}

/* Nothing of the ptx is stale: the copy is the library's. */
Test(cuda_op, the_image_is_copied)
{
    begin_mode(3);
    char mine[sizeof image];
    memcpy(mine, image, sizeof image);
    kiln_op_info info = info_of("test.copied");
    info.image = mine;
    const kiln_op *op = registered(&info);
    memset(mine, 'x', sizeof mine);
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(2)), *c = kiln_full(KILN_F32, KILN_SHAPE(), 3);
    EXPECT(applied(op, x, x, c), KILN_F32, KILN_SHAPE(2), 0, 4, 4);
    end_mode();
}

static void keep_perf(void *user, int level, const char *topic, const char *line)
{
    char *text = user;
    (void)level;
    if (!strcmp(topic, "perf"))
        strncat(text, line, 4000 - strlen(text) - 1);
}

static void twice(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *c = kiln_full(KILN_F32, KILN_SHAPE(), 1);
    out[0] = kiln_neg(applied(user, applied(user, in[0], in[0], c), in[0], c));
}

/* Timed, waited for, replayed: the same values, and its name. */
Test(cuda_op, is_timed_and_replayed)
{
    begin_mode(3);
    static char text[4000];
    kiln_op_info info = info_of("test.timed");
    const kiln_op *op = registered(&info);
    kiln_function *f = kiln_function_new(twice, 1, 1, (void *)(uintptr_t)op);
    kiln_tensor *x = kiln_full(KILN_F32, KILN_SHAPE(4), 2), *y;
    for (int k = 0; k < 6; k++) {
        if (k == 3)
            set_option("sync", "1");
        if (k == 4) {
            kiln_set_log_sink(keep_perf, text);
            set_option("log", "perf");
        }
        OK(kiln_function_call(f, &x, &y));
        EXPECT(y, KILN_F32, KILN_SHAPE(4), 0, -11, -11, -11, -11);
    }
    set_option("log", "");
    kiln_set_log_sink(NULL, NULL);
    kiln_function_free(f);
    cr_assert(strstr(text, "call test.timed 1"), "%s", text);
    end_mode();
}
