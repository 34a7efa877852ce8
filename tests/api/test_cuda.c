/*
 * The CUDA device as users see it, on the software driver (tests/cuda_driver): where tensors lie, copies, errors of the driver, memory, forks.
 * That results are right is shown by every API_TEST (api.h), which also runs on this device.
 */
#include "on_cuda.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* With memory from kiln's pool. */
static void use_pooled_cuda(const char *settings)
{
    if (settings)
        setenv("KILN_TEST_CUDA", settings, 1);
    set_option("libcuda", cuda_driver());
    set_option("device", "cuda");
}

/* With memory whose end the software driver knows. */
static void use_cuda(const char *settings)
{
    if (software_driver())
        set_option("test_memory", "exact");
    use_pooled_cuda(settings);
}

static void expect_device(kiln_tensor *x, const char *name)
{
    char text[16];
    cr_assert(kiln_device_of(x, text, sizeof text) == KILN_OK, "%s", kiln_error_message());
    cr_assert_str_eq(text, name);
}

static void expect_status(kiln_status status, kiln_status want, const char *text)
{
    cr_assert(status == want, "%s: %s", kiln_status_name(status), kiln_error_message());
    cr_assert(strstr(kiln_error_message(), text), "\"%s\" is not in: %s", text, kiln_error_message());
}

Test(cuda, values_lie_where_they_are_made_and_move)
{
    if (no_driver())
        return;
    kiln_tensor *here = F32(KILN_SHAPE(3), 1, 2, 3);
    use_cuda(NULL);
    kiln_tensor *there = F32(KILN_SHAPE(3), 10, 20, 30), *nowhere = kiln_ones(KILN_F32, KILN_SHAPE(3));
    expect_device(here, "cpu");
    expect_device(there, "cuda:0");
    expect_device(nowhere, "cuda:0");
    expect_device(kiln_add(here, nowhere), "cpu");
    EXPECT(kiln_add(here, nowhere), KILN_F32, KILN_SHAPE(3), 0, 2, 3, 4);
    EXPECT(kiln_add(there, nowhere), KILN_F32, KILN_SHAPE(3), 0, 11, 21, 31);
    EXPECT_ERROR(kiln_add(here, there), KILN_DEVICE, "kiln_add", "f32[3] on cpu", "f32[3] on cuda:0", "kiln_to");

    kiln_tensor *moved = kiln_to(kiln_mul(here, here), "cuda:0");
    expect_device(moved, "cuda:0");
    EXPECT(kiln_add(moved, there), KILN_F32, KILN_SHAPE(3), 0, 11, 24, 39);
    kiln_tensor *back = kiln_to(kiln_add(moved, there), "cpu");
    expect_device(back, "cpu");
    EXPECT(kiln_add(back, here), KILN_F32, KILN_SHAPE(3), 0, 12, 26, 42);
    cr_assert(kiln_to(here, "cpu") != NULL);

    float data[3] = {1, 2, 3};
    int64_t backward[] = {-1};
    kiln_tensor *strided = kiln_wrap_strided(KILN_F32, KILN_SHAPE(3), backward, data + 2, NULL, NULL);
    expect_device(strided, "cpu");
    EXPECT(kiln_add(kiln_to(strided, "cuda"), there), KILN_F32, KILN_SHAPE(3), 0, 13, 22, 31);
    const void *at;
    expect_status(kiln_data(there, &at), KILN_DEVICE, "kiln_to(x, \"cpu\")");
}

/* What kiln_to was told to move lies there, whoever uses it, though it lay nowhere before. */
Test(cuda, values_that_lay_nowhere_stay_where_they_were_moved)
{
    if (no_driver())
        return;
    set_option("libcuda", cuda_driver());
    kiln_tensor *here = F32(KILN_SHAPE(2), 1, 2), *there = kiln_to(here, "cuda");
    cr_assert(kiln_set_device("cuda:0") == KILN_OK);
    kiln_tensor *ones = kiln_to(kiln_ones(KILN_F32, KILN_SHAPE(2)), "cuda:0");
    cr_assert(kiln_set_device("cpu") == KILN_OK);
    expect_device(ones, "cuda:0");
    EXPECT_ERROR(kiln_add(ones, here), KILN_DEVICE, "f32[2] on cuda:0", "f32[2] on cpu");
    EXPECT(kiln_add(ones, there), KILN_F32, KILN_SHAPE(2), 0, 2, 3);
    const char *const devices[] = {"cpu", "cuda"};
    for (int i = 0; i < 2; i++) {
        kiln_tensor *half = kiln_to(kiln_scalar(0.5), devices[i]);
        cr_assert(kiln_is_weak(half), "%s", devices[i]);
        EXPECT(kiln_mul(half, i ? there : here), KILN_F32, KILN_SHAPE(2), 0, 0.5, 1);
    }
    double value;
    kiln_tensor *three = kiln_scalar(3);
    cr_assert(kiln_item(three, &value) == KILN_OK && value == 3); /* on the thread's device, which binds it to nothing */
    EXPECT(kiln_mul(kiln_mul(three, kiln_scalar(2)), there), KILN_F32, KILN_SHAPE(2), 0, 6, 12);
}

enum { COMPOSITES = 16 };

/* x[3, 4] of floats and index[3] of small ints, which lie on one device. */
static kiln_tensor *composite(int which, kiln_tensor *x, kiln_tensor *index)
{
    kiln_tensor *row = kiln_select(x, 0, 0), *values, *places;
    switch (which) {
    case 0:
        return kiln_triu(x, 1);
    case 1:
        return kiln_tril(kiln_unsqueeze(x, 0), 0);
    case 2:
        return kiln_softmax(x, 0);
    case 3:
        return kiln_log_softmax(x, 1);
    case 4:
        return kiln_layer_norm(x, row, kiln_zeros_like(row), 1e-5);
    case 5:
        return kiln_cross_entropy(x, index);
    case 6:
        return kiln_std_axes(x, KILN_AXES(0), 1, true);
    case 7:
        return kiln_logsumexp(x);
    case 8:
        return kiln_take(x, kiln_cast(index, KILN_U64), 1);
    case 9:
        return kiln_scatter(kiln_zeros_like(x), index, x, 0, KILN_SCATTER_ADD);
    case 10:
        return kiln_topk(x, 2, 1, true, &values, &places) == KILN_OK ? kiln_add(values, places) : NULL;
    case 11:
        return kiln_roll(kiln_pad(x, 1, (kiln_padding[]){{1, 0}}, kiln_scalar(7)), 1, 1);
    case 12:
        return kiln_concat((kiln_tensor *[]){x, kiln_ones_like(x), kiln_tile(row, KILN_SHAPE(2, 1))}, 3, 0);
    case 13:
        return kiln_add(kiln_cumsum(x, 1), kiln_argmax_axis(x, 1, true));
    case 14:
        return kiln_matmul(x, kiln_gelu(row));
    default:
        return kiln_clamp(kiln_where(kiln_gt(x, kiln_int(2)), x, kiln_scalar(-1)), kiln_int(0), kiln_scalar(5));
    }
}

/* With tensors on another device than the thread's, what a function makes inside lies beside them, in each mode. */
Test(cuda, functions_work_where_their_operands_lie)
{
    if (no_driver())
        return;
    use_cuda(NULL);
    set_option("device", "cpu");
    set_option("math", "strict");
    kiln_tensor *x = kiln_sin(kiln_reshape(kiln_arange(KILN_F32, 1, 13, 1), KILN_SHAPE(3, 4))), *index = I64(KILN_SHAPE(3), 2, 0, 1);
    x = kiln_mul(x, kiln_scalar(6));
    kiln_tensor *there[2] = {kiln_to(x, "cuda"), kiln_to(index, "cuda")};
    static const char *const modes[] = {"jit", "eager", "interp"};
    float want[64], got[64];
    for (int i = 0; i < 3 * COMPOSITES; i++) {
        set_option("mode", modes[i % 3]);
        kiln_tensor *y = composite(i / 3, x, index), *z = composite(i / 3, there[0], there[1]);
        cr_assert(y && z, "%d, %s: %s", i / 3, modes[i % 3], kiln_error_message());
        expect_device(z, "cuda:0");
        size_t n = (size_t)kiln_numel(y), bytes = n * sizeof *got;
        cr_assert(n <= 64 && kiln_read(y, KILN_F32, want, bytes) == KILN_OK && kiln_read(z, KILN_F32, got, bytes) == KILN_OK, "%d, %s: %s",
                  i / 3, modes[i % 3], kiln_error_message());
        for (size_t k = 0; k < n; k++)
            cr_assert(fabsf(got[k] - want[k]) <= 1e-5f, "%d, %s: [%d] is %g, not %g", i / 3, modes[i % 3], (int)k, (double)got[k],
                      (double)want[k]);
    }
}

/* Those of one device are computed together, whatever stands between them. */
Test(cuda, tensors_of_several_devices_are_evaluated_together)
{
    if (no_driver())
        return;
    use_cuda(NULL);
    set_option("device", "cpu");
    kiln_tensor *here = F32(KILN_SHAPE(2), 1, 2), *there = kiln_to(here, "cuda"), *shared = kiln_exp(there);
    kiln_tensor *all[] = {kiln_mul(shared, there), kiln_neg(here), here, kiln_sub(shared, there), kiln_add(here, here)};
    kiln_stats before, after;
    kiln_get_stats(&before);
    cr_assert(kiln_eval_many(all, 5) == KILN_OK, "%s", kiln_error_message());
    kiln_get_stats(&after);
    cr_assert_eq(after.evals - before.evals, 2);
    EXPECT(all[1], KILN_F32, KILN_SHAPE(2), 0, -1, -2);
    EXPECT(all[3], KILN_F32, KILN_SHAPE(2), 1e-6, 1.7182818, 5.3890561);
    EXPECT(all[4], KILN_F32, KILN_SHAPE(2), 0, 2, 4);
}

/* The host keeps freed memory for its own next tensors: how much there was on a device says nothing of those. */
Test(cuda, memory_of_the_device_keeps_none_of_the_hosts)
{
    enum { MB = 1 << 20, N = 100 * MB };
    if (no_driver())
        return;
    set_option("libcuda", cuda_driver());
    unsigned char *data = calloc(N, 1);
    cr_assert(kiln_set_device("cuda") == KILN_OK, "%s", kiln_error_message());
    kiln_scope *scope = kiln_scope_begin();
    cr_assert(kiln_from(KILN_U8, KILN_SHAPE(N), data) != NULL, "%s", kiln_error_message());
    kiln_scope_end(scope);
    cr_assert(kiln_set_device("cpu") == KILN_OK);
    for (int i = 0; i < 5; i++) { /* of another size class each, 20 to 28 MB; one at a time */
        scope = kiln_scope_begin();
        cr_assert(kiln_from(KILN_U8, KILN_SHAPE((20 + 2 * i) * MB), data) != NULL, "%s", kiln_error_message());
        kiln_scope_end(scope);
    }
    free(data);
    kiln_stats stats;
    kiln_get_stats(&stats);
    cr_assert(stats.pooled_bytes <= (64 + 14) * MB, "%lld bytes are kept", (long long)stats.pooled_bytes);
}

Test(cuda, threads_choose_their_device)
{
    if (no_driver())
        return;
    set_option("libcuda", cuda_driver());
    expect_device(kiln_ones(KILN_F32, KILN_SHAPE(2)), "cpu");
    cr_assert(kiln_set_device("cuda:0") == KILN_OK);
    expect_device(kiln_ones(KILN_F32, KILN_SHAPE(2)), "cuda:0");
    cr_assert(kiln_set_device(NULL) == KILN_OK);
    expect_device(kiln_ones(KILN_F32, KILN_SHAPE(2)), "cpu");
    expect_status(kiln_set_device("cuda:99"), KILN_INVALID,
                  software_driver() ? "cuda:99 does not exist: there is 1 CUDA device" : "cuda:99 does not exist: there");
    cr_assert(kiln_set_device("auto") == KILN_OK);
    expect_device(kiln_ones(KILN_F32, KILN_SHAPE(2)), "cuda:0");
}

Test(cuda, without_a_driver)
{
    set_option("libcuda", "/nonexistent/libcuda.so.1");
    expect_status(kiln_set_device("cuda"), KILN_DEVICE, "no CUDA driver");
    cr_assert(strstr(kiln_error_message(), "\"cpu\""), "%s", kiln_error_message());
    cr_assert(kiln_set_device("auto") == KILN_OK);
    expect_device(kiln_ones(KILN_F32, KILN_SHAPE(2)), "cpu");
    set_option("device", "cuda:0");
    cr_assert(kiln_set_device(NULL) == KILN_OK);
    expect_status(kiln_eval(kiln_ones(KILN_F32, KILN_SHAPE(2))), KILN_DEVICE, "no CUDA driver");
}

/* Settings of the driver, and what opening the device says. */
static const struct {
    const char *settings;
    kiln_status status;
    const char *text;
} unusable[] = {
    {"devices=0", KILN_DEVICE, "no CUDA device"},
    {"driver=9020", KILN_DEVICE, "9.2"},
    {"cc=7.0", KILN_UNSUPPORTED, "cuda:0"},
    {"fail=cuInit:1:999", KILN_DEVICE, "999"},
    {"fail=cuDevicePrimaryCtxRetain:1:2", KILN_OUT_OF_MEMORY, "making its context"},
};

ParameterizedTestParameters(cuda, unusable_devices)
{
    static size_t index[] = {0, 1, 2, 3, 4};
    return cr_make_param_array(size_t, index, sizeof index / sizeof *index);
}

ParameterizedTest(size_t *i, cuda, unusable_devices)
{
    if (no_driver())
        return;
    setenv("KILN_TEST_CUDA", unusable[*i].settings, 1);
    set_option("libcuda", cuda_driver());
    expect_status(kiln_set_device("cuda"), unusable[*i].status, unusable[*i].text);
    cr_assert(strstr(kiln_error_message(), "\"cpu\""), "no advice: %s", kiln_error_message());
    EXPECT(kiln_add(F32(KILN_SHAPE(2), 1, 2), kiln_scalar(1)), KILN_F32, KILN_SHAPE(2), 0, 2, 3); /* the CPU goes on */
}

Test(cuda, large_copies_pass_through_pinned_memory)
{
    if (no_driver())
        return;
    use_cuda("streams=late");
    enum { N = 3 * 1024 * 1024 + 5 };
    float *data = malloc(sizeof *data * N), *back = malloc(sizeof *back * N);
    for (int i = 0; i < N; i++)
        data[i] = (float)(i % 1000003);
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(N), data);
    memset(data, 0, sizeof *data * N); /* the copy is taken */
    cr_assert(kiln_read(x, KILN_F32, back, sizeof *back * N) == KILN_OK, "%s", kiln_error_message());
    for (int i = 0; i < N; i++)
        cr_assert(back[i] == (float)(i % 1000003), "element %d is %g", i, (double)back[i]);
    free(data);
    free(back);
}

/* Input of the next steps comes over while the device computes: it waits for nothing but the last use of its own memory, and there is
 * memory for some steps. (With all on one stream, the upload of step k finds k - 1 kernels done, since it needs the half of pinned memory
 * of the one before. The driver lets a queue go on by a command when it is asked whether an event was reached: hence the 1.) */
Test(cuda, large_uploads_run_beside_kernels)
{
    if (no_driver())
        return;
    use_pooled_cuda("streams=late");
    enum { N = (1 << 20) + 3, STEPS = 8 };
    const kiln_range every = {0, N, 4099};
    unsigned char *data = malloc(N);
    kiln_tensor *sums[STEPS];
    uint64_t ran[STEPS];
    for (int step = 0; step < STEPS; step++) {
        memset(data, step + 1, N);
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_from(KILN_U8, KILN_SHAPE(N), data);
        ran[step] = counted().launches;
        sums[step] = kiln_keep(kiln_sum(kiln_slice(x, 1, &every)));
        cr_assert(kiln_eval(sums[step]) == KILN_OK, "%s", kiln_error_message());
        kiln_scope_end(scope); /* frees x */
    }
    for (int step = 0; step < STEPS; step++)
        cr_assert(ran[step] <= (uint64_t)(step < 4 ? 1 : step - 3), "%d kernels ran before the upload of step %d", (int)ran[step], step);
    cr_assert(counted().bytes_live < 6 * (N + N / 8), "%zu bytes are in use", (size_t)counted().bytes_live);
    for (int step = 0; step < STEPS; step++)
        EXPECT(sums[step], KILN_U64, KILN_SHAPE(), 0, (step + 1) * (N / 4099 + 1));
    free(data);
}

Test(cuda, out_of_memory_empties_the_pool_and_says_how_things_stand)
{
    if (no_driver())
        return;
    use_pooled_cuda("memory=16M");
    for (int i = 0; i < 20; i++) { /* 4 MB each, of another size class each time: only the pool keeps them */
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_add(kiln_zeros(KILN_F32, KILN_SHAPE(1000000 - 70000 * (i % 7))), kiln_scalar(1));
        cr_assert(kiln_wait(x) == KILN_OK, "%d: %s", i, kiln_error_message());
        kiln_scope_end(scope);
    }
    kiln_tensor *large = kiln_add(kiln_zeros(KILN_F32, KILN_SHAPE(5000000)), kiln_scalar(1));
    expect_status(kiln_eval(large), KILN_OUT_OF_MEMORY, "cuda:0 is out of memory: 20000000 bytes requested");
    cr_assert(strstr(kiln_error_message(), "pooled") && strstr(kiln_error_message(), "free of"), "%s", kiln_error_message());
    cr_assert(strstr(kiln_error_message(), "release tensors"), "%s", kiln_error_message());
    EXPECT(kiln_add(F32(KILN_SHAPE(2), 1, 2), kiln_scalar(1)), KILN_F32, KILN_SHAPE(2), 0, 2, 3);
}

/* 15.9 of 16 MB: no size class has room for that. */
Test(cuda, what_fits_is_not_refused_for_its_size_class)
{
    if (no_driver())
        return;
    use_pooled_cuda("memory=16000000");
    for (int i = 0; i < 3; i++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_add(kiln_zeros(KILN_F32, KILN_SHAPE(3975000)), kiln_scalar(i));
        float last;
        cr_assert(kiln_wait(x) == KILN_OK, "%d: %s", i, kiln_error_message());
        const kiln_range end = {3974999, 3975000, 1};
        cr_assert(kiln_read(kiln_slice(x, 1, &end), KILN_F32, &last, sizeof last) == KILN_OK, "%s", kiln_error_message());
        cr_assert(last == (float)i, "%g", (double)last);
        kiln_scope_end(scope);
        EXPECT(kiln_add(F32(KILN_SHAPE(2), 1, 2), kiln_scalar(i)), KILN_F32, KILN_SHAPE(2), 0, 1 + i, 2 + i);
    }
}

static int power; /* another kernel for each */

static void *to_the_power(void *x)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *y = x;
    for (int i = 1; i < power; i++)
        y = kiln_mul(y, x);
    float got[2];
    bool fine = kiln_read(y, KILN_F32, got, sizeof got) == KILN_OK && got[1] == (float)(1 << power);
    if (!fine)
        fprintf(stderr, "%s\n", kiln_error_message());
    kiln_scope_end(scope);
    return fine ? x : NULL;
}

/* Streams, functions and the linker want memory that the pool may keep. */
Test(cuda, memory_is_given_back_for_whatever_the_driver_wants_it)
{
    static const char *const calls[] = {"cuStreamCreate", "cuEventCreate", "cuModuleGetFunction", "cuLinkCreate_v2", "cuLinkComplete"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        if (!CUDA_WITH("device", "cuda"))
            return;
        kiln_tensor *x = F32(KILN_SHAPE(2), 1, 2);
        kiln_scope *scope = kiln_scope_begin();
        for (int k = 0; k < 3; k++)
            cr_assert(kiln_wait(kiln_add(x, kiln_scalar(k))) == KILN_OK, "%s", kiln_error_message());
        kiln_scope_end(scope); /* now the pool has more than is needed */
        power = (int)i + 2;
        DRIVER(test_cuda_fail_call)(calls[i], 1, 2, 0);
        pthread_t thread; /* with a stream of its own */
        void *fine;
        cr_assert(pthread_create(&thread, NULL, to_the_power, x) == 0);
        pthread_join(thread, &fine);
        cr_assert(fine != NULL, "%s", calls[i]);
        DRIVER(test_cuda_fail_call)(NULL, 0, 0, 0);
    }
}

/* Two threads find the device full: what the first gave back from the pool is there for the second, whose pool is empty by then. */
Test(cuda, memory_that_another_thread_gave_back_is_asked_for_again)
{
    if (no_driver())
        return;
    use_pooled_cuda(NULL);
    kiln_tensor *x = F32(KILN_SHAPE(2), 1, 2);
    DRIVER(test_cuda_fail_call)("cuMemAlloc_v2", 1, 2, 0);
    kiln_tensor *y = kiln_from(KILN_F32, KILN_SHAPE(1024), (const float[1024]){3, 4}); /* just as large as its class */
    cr_assert(y != NULL, "%s", kiln_error_message());
    EXPECT(kiln_add(x, kiln_slice_axis(y, 0, 0, 2, 1)), KILN_F32, KILN_SHAPE(2), 0, 4, 6);
}

Test(cuda, test_memory_exact_is_exact_and_never_used_again)
{
    if (no_driver())
        return;
    use_cuda("memory=16M");
    kiln_tensor *x = F32(KILN_SHAPE(3), 1, 2, 3);
    test_cuda_counters before, after;
    for (int i = 0; i < 3; i++) {
        DRIVER(test_cuda_get_counters)(&before);
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *y = kiln_add(x, kiln_scalar(i));
        cr_assert(kiln_wait(y) == KILN_OK, "%s", kiln_error_message());
        DRIVER(test_cuda_get_counters)(&after);
        cr_assert_eq(after.bytes_live - before.bytes_live, 12);
        cr_assert_eq(after.allocations - before.allocations, 1);
        kiln_scope_end(scope);
        cr_assert(kiln_wait(x) == KILN_OK, "%s", kiln_error_message());
        DRIVER(test_cuda_get_counters)(&after);
        cr_assert_eq(after.bytes_live, before.bytes_live);
    }
    for (int i = 0; i < 20; i++) { /* 4 MB each: what is freed in order of the stream is free in time */
        kiln_scope *scope = kiln_scope_begin();
        cr_assert(kiln_eval(kiln_add(kiln_zeros(KILN_F32, KILN_SHAPE(1000000)), kiln_scalar(1))) == KILN_OK, "%d: %s", i,
                  kiln_error_message());
        kiln_scope_end(scope);
    }
    kiln_tensor *large = kiln_add(kiln_zeros(KILN_F32, KILN_SHAPE(5000000)), kiln_scalar(1));
    expect_status(kiln_eval(large), KILN_OUT_OF_MEMORY, "cuda:0 is out of memory: 20000000 bytes requested");
}

Test(cuda, a_sticky_error_is_told_from_then_on)
{
    if (no_driver())
        return;
    use_cuda(NULL);
    set_option("strict", "1");
    kiln_tensor *before = F32(KILN_SHAPE(2), 1, 2), *host = kiln_to(before, "cpu");
    cr_assert(kiln_wait(kiln_mul(before, before)) == KILN_OK, "%s", kiln_error_message());
    DRIVER(test_cuda_fail_call)("cuLaunchKernel", 1, 700, 1);
    expect_status(kiln_wait(kiln_add(before, kiln_scalar(3))), KILN_DEVICE, "700");
    expect_status(kiln_wait(kiln_add(before, kiln_scalar(4))), KILN_DEVICE, "700");
    cr_assert(strstr(kiln_error_message(), "cannot be used any more"), "%s", kiln_error_message());
    cr_assert(kiln_set_device("cpu") == KILN_OK);
    EXPECT(kiln_add(host, kiln_scalar(1)), KILN_F32, KILN_SHAPE(2), 0, 2, 3);
}

Test(cuda, a_refused_kernel_is_an_error_or_interpreted)
{
    if (no_driver())
        return;
    use_cuda(NULL);
    kiln_tensor *x = F32(KILN_SHAPE(2), 1, 2);
    set_option("strict", "1");
    DRIVER(test_cuda_fail_call)("cuModuleGetFunction", 1, 218, 0);
    expect_status(kiln_eval(kiln_mul(x, x)), KILN_COMPILE, "218");
    EXPECT(kiln_mul(x, x), KILN_F32, KILN_SHAPE(2), 0, 1, 4); /* the next try works */
    set_option("strict", "0");
    DRIVER(test_cuda_fail_call)("cuModuleGetFunction", 1, 218, 0);
    EXPECT(kiln_sub(x, kiln_sin(x)), KILN_F32, KILN_SHAPE(2), 1e-6, 0.158529, 1.090703);
    kiln_stats stats;
    kiln_get_stats(&stats);
    cr_assert_eq(stats.fallbacks, 1);
}

Test(cuda, machine_code_that_is_not_taken_gives_way_to_ptx)
{
    if (no_driver())
        return;
    use_cuda(NULL);
    set_option("strict", "1");
    kiln_tensor *x = F32(KILN_SHAPE(2), 1, 2);
    DRIVER(test_cuda_fail_call)("cuModuleLoadDataEx", 1, 209, 0);
    EXPECT(kiln_mul(x, x), KILN_F32, KILN_SHAPE(2), 0, 1, 4);
    DRIVER(test_cuda_fail_call)("cuLinkAddData_v2", 1, 209, 0); /* none was made */
    EXPECT(kiln_neg(x), KILN_F32, KILN_SHAPE(2), 0, -1, -2);
}

/* Each stage over a long row that takes more than a block is a launch; there are no launches without end in a plan. */
Test(cuda, many_stages_over_a_long_row)
{
    if (no_driver())
        return;
    use_cuda(NULL);
    set_option("strict", "1");
    enum { N = 40000, STAGES = 40 };
    static float data[N];
    for (int i = 0; i < N; i++)
        data[i] = (float)(i % 5);
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(N), data);
    for (int i = 0; i < STAGES; i++) /* from the second on the mean is 0 */
        x = kiln_sub(x, kiln_mean(x));
    cr_assert(kiln_read(x, KILN_F32, data, sizeof data) == KILN_OK, "%s", kiln_error_message());
    for (int i = 0; i < N; i++)
        cr_assert(data[i] == (float)(i % 5 - 2), "[%d] is %g", i, (double)data[i]);
}

static void *on_another_stream(void *x_)
{
    kiln_tensor *x = x_;
    float got[2] = {0};
    bool fine = true;
    for (int i = 0; i < 20; i++) {
        kiln_scope *scope = kiln_scope_begin();
        fine = fine && kiln_read(kiln_mul(x, kiln_scalar(i)), KILN_F32, got, sizeof got) == KILN_OK && got[1] == (float)(2 * i);
        kiln_scope_end(scope);
    }
    kiln_release(x);
    return fine ? x : NULL;
}

Test(cuda, threads_have_streams_of_their_own)
{
    if (no_driver())
        return;
    use_pooled_cuda("streams=late,races=on");
    kiln_tensor *x = kiln_add(F32(KILN_SHAPE(2), 0, 1), kiln_scalar(1));
    cr_assert(kiln_eval(x) == KILN_OK, "%s", kiln_error_message()); /* queued, not waited for */
    pthread_t thread[4];
    for (int i = 0; i < 4; i++)
        cr_assert(pthread_create(&thread[i], NULL, on_another_stream, kiln_retain(x)) == 0);
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(thread[i], &result);
        cr_assert(result != NULL, "thread %d", i);
    }
}

Test(cuda, a_forked_child_is_told_to_use_the_cpu)
{
    if (no_driver())
        return;
    use_cuda(NULL);
    kiln_tensor *x = F32(KILN_SHAPE(2), 1, 2), *host = kiln_to(x, "cpu");
    cr_assert(kiln_wait(x) == KILN_OK);
    pid_t child = fork();
    if (child == 0) {
        bool told = kiln_eval(kiln_add(x, x)) == KILN_DEVICE && strstr(kiln_error_message(), "forked child");
        bool works = kiln_set_device("cpu") == KILN_OK && kiln_eval(kiln_add(host, host)) == KILN_OK;
        _exit(told ? works ? 0 : 2 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
    EXPECT(kiln_add(x, x), KILN_F32, KILN_SHAPE(2), 0, 2, 4);
}

static atomic_int opening;

static void open_slowly(void *nothing)
{
    (void)nothing;
    atomic_store(&opening, 1);
    usleep(300000);
}

static void *open_device(void *nothing)
{
    (void)nothing;
    return kiln_set_device("cuda") == KILN_OK ? &opening : NULL;
}

Test(cuda, a_child_forked_while_the_driver_starts_is_told_too)
{
    if (no_driver())
        return;
    set_option("libcuda", cuda_driver());
    kiln_tensor *host = F32(KILN_SHAPE(2), 1, 2);
    pthread_t thread;
    void *opened;
    DRIVER(test_cuda_before)("cuInit", open_slowly, NULL);
    cr_assert(pthread_create(&thread, NULL, open_device, NULL) == 0);
    while (!atomic_load(&opening))
        usleep(1000);
    pid_t child = fork();
    if (child == 0) {
        alarm(20); /* instead of hanging */
        bool told = kiln_set_device("cuda") == KILN_DEVICE && strstr(kiln_error_message(), "forked child");
        bool works = kiln_eval(kiln_add(host, host)) == KILN_OK;
        _exit(told ? works ? 0 : 2 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
    pthread_join(thread, &opened);
    cr_assert(opened != NULL);
    EXPECT(kiln_add(kiln_to(host, "cuda"), kiln_scalar(1)), KILN_F32, KILN_SHAPE(2), 0, 2, 3);
}

enum { SHARED = 1000 };

/* In a thread whose stream goes to the next one. */
static void *reads_it(void *x)
{
    float got[SHARED];
    return kiln_read(x, KILN_F32, got, sizeof got) == KILN_OK && got[SHARED - 1] == 1 ? x : NULL;
}

static void *makes_another(void *fine)
{
    float data[SHARED];
    for (int i = 0; i < SHARED; i++)
        data[i] = -1;
    kiln_tensor *z = kiln_from(KILN_F32, KILN_SHAPE(SHARED), data);
    bool read = kiln_read(z, KILN_F32, data, sizeof data) == KILN_OK;
    return read ? fine : NULL;
}

static void in_another_thread(void *(*work)(void *), void *x)
{
    pthread_t thread;
    void *fine;
    cr_assert(pthread_create(&thread, NULL, work, x) == 0);
    pthread_join(thread, &fine);
    cr_assert(fine != NULL, "%s", kiln_error_message());
}

static void while_loading(void *x) { in_another_thread(reads_it, x); }

/* Memory belongs to the stream that used it last: a reader that is done with it is not that. */
Test(cuda, a_read_beside_an_evaluation_takes_no_memory_over)
{
    if (no_driver())
        return;
    use_pooled_cuda(NULL);
    float data[SHARED];
    for (int i = 0; i < SHARED; i++)
        data[i] = 1;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(SHARED), data), *y = kiln_retain(kiln_add(x, x));
    DRIVER(test_cuda_before)("cuModuleLoadDataEx", while_loading, x); /* the evaluation waits for its inputs, and has not queued a kernel */
    cr_assert(kiln_eval(y) == KILN_OK, "%s", kiln_error_message());
    kiln_scope_end(scope); /* x is freed, while the kernel waits to read it */
    in_another_thread(makes_another, data);
    cr_assert(kiln_read(y, KILN_F32, data, sizeof data) == KILN_OK, "%s", kiln_error_message());
    for (int i = 0; i < SHARED; i++)
        cr_assert(data[i] == 2, "element %d is %g", i, (double)data[i]);
    kiln_release(y);
}

/* p = 2 p + 1 in place, and its product with itself: two launches, of which the n-th fails. */
static kiln_status step_in_place(kiln_tensor *p, int n, float *got)
{
    kiln_scope *scope = kiln_scope_begin();
    cr_assert(kiln_assign(p, kiln_add(kiln_mul(p, kiln_scalar(2)), kiln_scalar(1))) == KILN_OK);
    kiln_tensor *both[] = {p, kiln_retain(kiln_matmul(p, p))};
    kiln_scope_end(scope); /* the old p is nobody's */
    if (n)
        DRIVER(test_cuda_fail_call)("cuLaunchKernel", n, 701, 0);
    kiln_status status = kiln_eval_many(both, 2);
    DRIVER(test_cuda_fail_call)(NULL, 0, 0, 0);
    if (status == KILN_OK)
        status = kiln_read(p, KILN_F32, got, sizeof *got * 4096);
    kiln_release(both[1]);
    return status;
}

Test(cuda, what_a_failed_run_overwrote_is_never_taken_for_its_old_value)
{
    if (!CUDA_WITH("device", "cuda", "cuda_graphs", "0"))
        return;
    static float data[4096];
    for (int i = 0; i < 4096; i++)
        data[i] = (float)i;
    kiln_tensor *p = kiln_from(KILN_F32, KILN_SHAPE(64, 64), data);
    /* kernels that never ran may fail for reasons of their own: they overwrite nothing */
    expect_status(step_in_place(p, 2, data), KILN_DEVICE, "701");
    cr_assert(kiln_read(p, KILN_F32, data, sizeof data) == KILN_OK, "%s", kiln_error_message());
    cr_assert(data[3] == 7, "%g", (double)data[3]);
    cr_assert(step_in_place(p, 0, data) == KILN_OK && data[3] == 15, "%g: %s", (double)data[3], kiln_error_message());
    cr_assert(step_in_place(p, 0, data) == KILN_OK && data[3] == 31, "%g: %s", (double)data[3], kiln_error_message());
    expect_status(step_in_place(p, 1, data), KILN_DEVICE, "701"); /* nothing was launched: nothing is lost */
    cr_assert(kiln_read(p, KILN_F32, data, sizeof data) == KILN_OK && data[3] == 63, "%g: %s", (double)data[3], kiln_error_message());
    expect_status(step_in_place(p, 2, data), KILN_DEVICE, "cannot be used any more");
    expect_status(kiln_read(p, KILN_F32, data, sizeof data), KILN_DEVICE, "701");
}

/* The run before it overwrote something, and went well. */
Test(cuda, want_of_memory_after_a_run_in_place_breaks_nothing)
{
    if (no_driver())
        return;
    use_pooled_cuda("memory=64M,devices=2");
    static float data[4096];
    kiln_tensor *p = kiln_from(KILN_F32, KILN_SHAPE(64, 64), data), *other = kiln_to(p, "cuda:1");
    for (int i = 0; i < 4; i++)
        cr_assert(step_in_place(p, 0, data) == KILN_OK, "%s", kiln_error_message());
    for (int k = 0; k < 2; k++) {
        kiln_tensor *large = kiln_add(kiln_sum(k ? other : p), kiln_zeros(KILN_F32, KILN_SHAPE(1 << 16, 1024)));
        expect_status(kiln_eval(large), KILN_OUT_OF_MEMORY, k ? "cuda:1 is out of memory" : "cuda:0 is out of memory");
        cr_assert(kiln_read(p, KILN_F32, data, sizeof data) == KILN_OK && data[0] == 15, "%s", kiln_error_message());
        cr_assert(kiln_read(other, KILN_F32, data, sizeof data) == KILN_OK && data[0] == 0, "%s", kiln_error_message());
    }
}

/* relu(a @ b + c) of a[m, k], b[k, 17] in `dtype`, from numbers that tf32 does not hold. */
static void products(kiln_dtype dtype, int64_t m, int64_t k, float *out)
{
    static float data[64 * 64];
    for (int i = 0; i < 64 * 64; i++)
        data[i] = (float)(i * 7919 % 8191) / 8191 - 0.45f;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *a = kiln_cast(kiln_from(KILN_F32, KILN_SHAPE(m, k), data), dtype);
    kiln_tensor *b = kiln_cast(kiln_from(KILN_F32, KILN_SHAPE(k, 17), data + 5), dtype);
    kiln_tensor *c = kiln_cast(kiln_from(KILN_F32, KILN_SHAPE(17), data + 11), dtype);
    kiln_tensor *r = kiln_relu(kiln_add(kiln_matmul(a, b), c));
    cr_assert(kiln_read(kiln_cast(r, KILN_F32), KILN_F32, out, (size_t)(m * 17) * sizeof *out) == KILN_OK, "%s", kiln_error_message());
    kiln_scope_end(scope);
}

static double furthest(const float *a, const float *b, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

static int64_t compiles(void)
{
    kiln_stats stats;
    kiln_get_stats(&stats);
    return stats.compiles;
}

/* Tensor cores: in fast mode, for f32 by an option of its own; each mode is a program of its own, found again. */
Test(cuda, tensor_cores_where_the_mode_allows_them)
{
    enum { M = 20, K = 48, N = M * 17 };
    static const struct {
        kiln_dtype dtype;
        const char *tf32;
        double most; /* of fast mode: 0 has the bits of strict mode. Sums are below 16 */
    } rows[] = {{KILN_F16, "0", 0x1p-7}, {KILN_BF16, "0", 0x1p-4}, {KILN_F32, "0", 0}, {KILN_F32, "1", 0x1p-7}};
    if (no_driver())
        return;
    float want[N], strict[N], fast[N], again[N];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        set_option("device", "cpu");
        set_option("mode", "interp");
        products(rows[i].dtype, M, K, want);
        use_cuda("rough=on");
        set_option("mode", "jit");
        set_option("tf32", rows[i].tf32);
        set_option("math", "strict");
        products(rows[i].dtype, M, K, strict);
        cr_assert(memcmp(strict, want, sizeof want) == 0, "strict mode, %s", kiln_dtype_name(rows[i].dtype));
        int64_t before = compiles();
        set_option("math", "fast");
        products(rows[i].dtype, M, K, fast);
        cr_assert(compiles() > before, "fast mode is a program of its own, %s", kiln_dtype_name(rows[i].dtype));
        double off = furthest(fast, want, N);
        cr_assert(off <= rows[i].most, "fast mode, %s: %g", kiln_dtype_name(rows[i].dtype), off);
        cr_assert(rows[i].dtype != KILN_F32 || (off > 0) == (rows[i].most > 0), "tf32 %s", rows[i].tf32);
        before = compiles();
        products(rows[i].dtype, M, K, again);
        set_option("math", "strict");
        products(rows[i].dtype, M, K, strict);
        cr_assert(compiles() == before && memcmp(again, fast, sizeof fast) == 0 && memcmp(strict, want, sizeof want) == 0);
    }
}

/* The order of a sum follows from its length, dtype and device alone: one row or many, sizes compiled in or not. */
Test(cuda, tensor_cores_give_a_row_the_same_bits_in_every_program)
{
    enum { M = 20, K = 40 };
    if (no_driver())
        return;
    use_cuda("rough=on");
    float all[M * 17], one[M * 17];
    products(KILN_BF16, M, K, all);
    for (int i = 0; i < 6; i++) {
        set_option("dynamic", i & 1 ? "always" : "never");
        int64_t m = i < 2 ? M : i < 4 ? 1 : 3;
        products(KILN_BF16, m, K, one);
        cr_assert(memcmp(one, all, (size_t)m * 17 * sizeof *one) == 0, "%d rows, dynamic %d", (int)m, i & 1);
    }
}

static kiln_tensor *whole_numbers(kiln_dtype dtype, kiln_shape shape)
{
    static float data[4096];
    for (int i = 0; i < 4096; i++)
        data[i] = (float)(i * 37 % 19 - 9);
    return kiln_cast(kiln_from(KILN_F32, shape, data), dtype);
}

enum { VIEWS = 12 };

/* Products of views; every sum is a whole number below 2^24, so their order does not show. */
static kiln_tensor *product_of_views(kiln_dtype t, int which)
{
    kiln_tensor *a = whole_numbers(t, KILN_SHAPE(24, 40)), *b = whole_numbers(t, KILN_SHAPE(40, 32));
    kiln_tensor *zero = kiln_int(0), *batch = whole_numbers(t, KILN_SHAPE(3, 24, 40));
    switch (which) {
    case 0:
        return kiln_matmul(kiln_flip(a, KILN_AXES(1)), b);
    case 1:
        return kiln_matmul(kiln_pad(a, 2, (kiln_padding[]){{1, 2}, {0, 7}}, zero), kiln_pad(b, 1, (kiln_padding[]){{3, 4}}, zero));
    case 2:
        return kiln_matmul(kiln_slice_axis(a, 1, 1, 40, 3), kiln_slice_axis(b, 0, 2, 15, 1));
    case 3:
        return kiln_matmul(kiln_take(a, kiln_from(KILN_I32, KILN_SHAPE(5), (int32_t[]){7, -1, 0, 7, 3}), 0), b);
    case 4:
        return kiln_matmul(kiln_concat((kiln_tensor *[]){a, kiln_mul(a, a)}, 2, 0), b);
    case 5:
        return kiln_matmul(batch, b);
    case 6:
        return kiln_matmul(kiln_permute(batch, KILN_AXES(1, 0, 2)), b);
    case 7:
        return kiln_matmul(kiln_tril(kiln_matmul(a, kiln_transpose(a)), 0), a);
    case 8:
        return kiln_matmul(kiln_slice_axis(a, 0, 3, 4, 1), b); /* one row */
    case 9:
        return kiln_matmul(a, kiln_slice_axis(b, 1, 5, 6, 1)); /* one column */
    case 10:
        return kiln_matmul(kiln_transpose(b), kiln_transpose(a));
    default:
        return kiln_add(kiln_relu(kiln_matmul(kiln_cast(a, KILN_F32), kiln_cast(b, KILN_F32))), kiln_cast(kiln_flip(kiln_slice_axis(b, 0, 0, 24, 1), KILN_AXES(0)), KILN_F32));
    }
}

Test(cuda, tensor_cores_take_views)
{
    static const kiln_dtype types[] = {KILN_BF16, KILN_F16, KILN_F32};
    static float want[4096], got[4096];
    if (no_driver())
        return;
    use_cuda("rough=on");
    set_option("tf32", "1");
    for (int i = 0; i < VIEWS * 3; i++)
        for (int interp = 1; interp >= 0; interp--) {
            set_option("mode", interp ? "interp" : "jit");
            kiln_scope *scope = kiln_scope_begin();
            kiln_tensor *r = product_of_views(types[i % 3], i / 3);
            int64_t n = kiln_numel(r);
            cr_assert(r && n <= 4096 && kiln_eval(r) == KILN_OK, "%s", kiln_error_message()); /* rounded to its dtype */
            cr_assert(kiln_read(kiln_cast(r, KILN_F32), KILN_F32, interp ? want : got, (size_t)n * sizeof *got) == KILN_OK, "%s",
                      kiln_error_message());
            for (int64_t x = 0; x < n && !interp; x++)
                cr_assert(got[x] == want[x] || (isnan(got[x]) && isnan(want[x])), "view %d of %s: element %d is %g, not %g", i / 3,
                          kiln_dtype_name(types[i % 3]), (int)x, (double)got[x], (double)want[x]);
            kiln_scope_end(scope);
        }
    kiln_stats stats;
    kiln_get_stats(&stats);
    cr_assert(stats.fallbacks == 0);
}

Test(cuda, modules_go_with_their_programs)
{
    if (no_driver())
        return;
    use_cuda(NULL);
    set_option("cache_bytes", "1"); /* each program is dropped when the next comes */
    kiln_tensor *x = F32(KILN_SHAPE(2), 1, 2);
    char text[2048];
    for (int i = 0; i < 6; i++) {
        kiln_tensor *y = x;
        for (int k = 0; k <= i; k++)
            y = k % 2 ? kiln_sin(y) : kiln_mul(y, x);
        cr_assert(kiln_eval(y) == KILN_OK, "%s", kiln_error_message()); /* its launches are queued when it is dropped */
    }
    cr_assert_eq(counted().violations, 0, "%s", DRIVER(test_cuda_report)());
    (void)DRIVER(test_cuda_leaks)(text, sizeof text);
    int modules = 0;
    for (const char *at = text; (at = strstr(at, "module")); at++)
        modules++;
    cr_assert(modules <= 2, "%d modules are loaded:\n%s", modules, text);
}

/* [rows, columns] of small numbers of either sign. */
static kiln_tensor *small_numbers(kiln_dtype dtype, float *data, int64_t rows, int64_t columns, int by)
{
    for (int64_t i = 0; i < rows * columns; i++)
        data[i] = (float)((int)(i * 11 + i / columns) % by - by / 2) * 0.25f;
    return kiln_cast(kiln_from(KILN_F32, KILN_SHAPE(rows, columns), data), dtype);
}

/* Products with a vector are reductions in fast mode: near the sums in f64, the same bits in every program, one kernel each. */
Test(cuda, products_with_vectors)
{
    static const kiln_dtype types[] = {KILN_F32, KILN_F64, KILN_BF16};
    static const int64_t lengths[] = {0, 1, 5, 257, 1024, 40000};
    static float left[40000], right[40000];
    if (no_driver())
        return;
    use_cuda(NULL);
    for (int dynamic = 0; dynamic < 2; dynamic++) {
        set_option("dynamic", dynamic ? "always" : "never");
        for (size_t t = 0; t < sizeof types / sizeof *types; t++)
            for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
                kiln_scope *scope = kiln_scope_begin();
                int64_t k = lengths[l], m = k > 1024 ? 1 : 9;
                kiln_tensor *a = small_numbers(types[t], left, m, k, 5);
                kiln_tensor *v = kiln_reshape(small_numbers(types[t], right, 1, k, 7), KILN_SHAPE(k));
                double got[9], dot = 0;
                cr_assert(kiln_eval(a) == KILN_OK && kiln_eval(v) == KILN_OK, "%s", kiln_error_message());
                kiln_stats before, after;
                kiln_get_stats(&before);
                kiln_tensor *y = kiln_matmul(a, v);
                cr_assert(kiln_eval(y) == KILN_OK, "%s", kiln_error_message());
                kiln_get_stats(&after);
                cr_expect(after.kernels - before.kernels <= 1, "%d kernels", (int)(after.kernels - before.kernels));
                cr_assert(kiln_read(kiln_cast(y, KILN_F64), KILN_F64, got, (size_t)m * 8) == KILN_OK, "%s", kiln_error_message());
                for (int64_t i = 0; i < m; i++) {
                    double want = 0;
                    for (int64_t j = 0; j < k; j++)
                        want += (double)left[i * k + j] * (double)right[j];
                    double error = fabs(got[i] - want);
                    cr_expect(error <= (types[t] == KILN_BF16 ? 0.004 * fabs(want) : 1e-5), "%s, %d elements: %g, not %g",
                              kiln_dtype_name(types[t]), (int)k, got[i], want);
                }
                kiln_tensor *one = kiln_reshape(kiln_slice_axis(a, 0, 0, 1, 1), KILN_SHAPE(k));
                cr_assert(kiln_item(kiln_matmul(one, v), &dot) == KILN_OK, "%s", kiln_error_message());
                cr_expect(dot == got[0], "%s, %d elements: %g as a dot product, %g in a matrix", kiln_dtype_name(types[t]), (int)k, dot, got[0]);
                kiln_scope_end(scope);
            }
    }
    kiln_stats stats;
    kiln_get_stats(&stats);
    cr_assert(stats.fallbacks == 0);
}

static char kernel_lines[8192];

static void keep_kernel_line(void *user, int level, const char *topic, const char *line)
{
    (void)user, (void)level;
    size_t at = strlen(kernel_lines);
    if (topic && strcmp(topic, "kernels") == 0)
        snprintf(kernel_lines + at, sizeof kernel_lines - at, "%s\n", line);
}

/* One element, of which each thread knows the place: its owner alone loads it, whatever LLVM does. The driver tells of races. */
Test(cuda, a_lone_element_in_place_is_loaded_by_its_owner)
{
    if (no_driver())
        return;
    use_cuda(NULL);
    set_option("llvm_opt", "0");
    for (int sums = 0; sums < 2; sums++) {
        kiln_tensor *x = F32(KILN_SHAPE(1), 3), *y = F32(KILN_SHAPE(5), 1, 2, 3, 4, 5);
        for (int i = 0; i < 2; i++) {
            kiln_tensor *next = sums ? kiln_add(x, kiln_sum_axes(y, KILN_AXES(0), true)) : kiln_square(x);
            cr_assert(kiln_assign(x, next) == KILN_OK && kiln_eval(x) == KILN_OK, "%s", kiln_error_message());
        }
        EXPECT(x, KILN_F32, KILN_SHAPE(1), 0, sums ? 33 : 81);
    }
}

/* KILN_LOG=kernels tells what the driver made of each kernel. */
Test(cuda, the_log_tells_of_registers)
{
    if (no_driver())
        return;
    use_cuda(NULL);
    set_option("log", "kernels");
    kiln_set_log_sink(keep_kernel_line, NULL);
    kiln_tensor *x = F32(KILN_SHAPE(2, 3), 3, 1, 2, 6, 5, 4);
    cr_assert(kiln_eval(kiln_softmax(x, 1)) == KILN_OK, "%s", kiln_error_message());
    cr_expect(strstr(kernel_lines, " registers, ") && strstr(kernel_lines, " bytes of local memory a thread"), "%s", kernel_lines);
    kiln_set_log_sink(NULL, NULL);
}
