/*
 * Memory of a CUDA device: copies, the pool, what happens when there is none left, streams that hand memory on, runs in place that fail.
 */
#include "on_cuda.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>

/* The host keeps freed memory for its own next tensors: how much there was on a device says nothing of those. */
Test(cuda_memory, memory_of_the_device_keeps_none_of_the_hosts)
{
    enum { MB = 1 << 20, N = 100 * MB };
    use_driver();
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
    kiln_stats stats = stats_now();
    cr_assert(stats.pooled_bytes <= (64 + 14) * MB, "%lld bytes are kept", (long long)stats.pooled_bytes);
}

/* Bytes from an odd address on, by code of each effort. */
Test(cuda_memory, bytes_need_no_alignment)
{
    enum { N = 1000, FROM = 495, BYTES = 34 };
    unsigned char data[N], got[BYTES];
    start_exact(NULL);
    for (int i = 0; i < N; i++)
        data[i] = i % 3 == 0;
    for (int effort = 0; effort < 3; effort++) {
        set_option("llvm_opt", (const char *[]){"0", "1", "2"}[effort]);
        kiln_tensor *x = kiln_from(KILN_BOOL, KILN_SHAPE(N, 1), data);
        cr_assert(kiln_read(kiln_slice_axis(x, 0, FROM, FROM + BYTES, 1), KILN_BOOL, got, sizeof got) == KILN_OK, "%s",
                  kiln_error_message());
        cr_assert(memcmp(got, data + FROM, BYTES) == 0);
    }
    set_option("llvm_opt", "1");
}

Test(cuda_memory, large_copies_pass_through_pinned_memory)
{
    start_exact("streams=late");
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
Test(cuda_memory, large_uploads_run_beside_kernels)
{
    start_pooled("streams=late");
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

Test(cuda_memory, out_of_memory_empties_the_pool_and_says_how_things_stand)
{
    start_pooled("memory=16M");
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
Test(cuda_memory, what_fits_is_not_refused_for_its_size_class)
{
    start_pooled("memory=16000000");
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
Test(cuda_memory, memory_is_given_back_for_whatever_the_driver_wants_it)
{
    static const char *const calls[] = {"cuStreamCreate", "cuEventCreate", "cuModuleGetFunction", "cuLinkCreate_v2", "cuLinkComplete"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        CUDA_WITH("device", "cuda");
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
Test(cuda_memory, memory_that_another_thread_gave_back_is_asked_for_again)
{
    start_pooled(NULL);
    kiln_tensor *x = F32(KILN_SHAPE(2), 1, 2);
    DRIVER(test_cuda_fail_call)("cuMemAlloc_v2", 1, 2, 0);
    kiln_tensor *y = kiln_from(KILN_F32, KILN_SHAPE(1024), (const float[1024]){3, 4}); /* just as large as its class */
    cr_assert(y != NULL, "%s", kiln_error_message());
    EXPECT(kiln_add(x, kiln_slice_axis(y, 0, 0, 2, 1)), KILN_F32, KILN_SHAPE(2), 0, 4, 6);
}

Test(cuda_memory, test_memory_exact_is_exact_and_never_used_again)
{
    start_exact("memory=16M");
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

/* Memory belongs to the streams that used it: a reader that is done with it is none of them. */
Test(cuda_memory, a_read_beside_an_evaluation_takes_no_memory_over)
{
    start_pooled(NULL);
    float data[SHARED];
    for (int i = 0; i < SHARED; i++)
        data[i] = 1;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(SHARED), data), *y = kiln_retain(kiln_add(x, x));
    DRIVER(test_cuda_before)
    ("cuModuleLoadDataEx", 1, while_loading, x); /* the evaluation waits for its inputs, and has not queued a kernel */
    cr_assert(kiln_eval(y) == KILN_OK, "%s", kiln_error_message());
    kiln_scope_end(scope); /* x is freed, while the kernel waits to read it */
    in_another_thread(makes_another, data);
    cr_assert(kiln_read(y, KILN_F32, data, sizeof data) == KILN_OK, "%s", kiln_error_message());
    for (int i = 0; i < SHARED; i++)
        cr_assert(data[i] == 2, "element %d is %g", i, (double)data[i]);
    kiln_release(y);
}

static kiln_tensor *shared_weight;
static atomic_int turn, turns_wrong, waits; /* turn: of the main thread where it is even */
enum { TURNS = 20 };

static void count_wait(void *unused)
{
    (void)unused;
    atomic_fetch_add(&waits, 1);
}

static void use_weight(int number)
{
    float got[SHARED];
    while (atomic_load(&turn) != number)
        sched_yield();
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *y = kiln_mul(shared_weight, kiln_full(KILN_F32, KILN_SHAPE(SHARED), number));
    if (kiln_read(y, KILN_F32, got, sizeof got) != KILN_OK || got[SHARED - 1] != (float)number)
        atomic_fetch_add(&turns_wrong, 1);
    kiln_scope_end(scope);
    atomic_store(&turn, number + 1);
}

static void *uses_weight(void *fine)
{
    for (int k = 1; k < TURNS; k += 2)
        use_weight(k);
    return fine;
}

/* What threads share they wait for once, and never for each other. */
Test(cuda_memory, threads_that_read_one_value_wait_for_it_once)
{
    start_pooled(NULL);
    pthread_t thread;
    shared_weight = kiln_ones(KILN_F32, KILN_SHAPE(SHARED));
    cr_assert(kiln_eval(shared_weight) == KILN_OK, "%s", kiln_error_message());
    DRIVER(test_cuda_before)("cuStreamWaitEvent", 1 << 20, count_wait, NULL);
    cr_assert(pthread_create(&thread, NULL, uses_weight, shared_weight) == 0);
    for (int k = 0; k < TURNS; k += 2)
        use_weight(k);
    pthread_join(thread, NULL);
    DRIVER(test_cuda_before)(NULL, 0, NULL, NULL);
    cr_assert(atomic_load(&turns_wrong) == 0);
    cr_assert(atomic_load(&waits) <= 1, "%d waits", atomic_load(&waits));
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

Test(cuda_memory, what_a_failed_run_overwrote_is_never_taken_for_its_old_value)
{
    CUDA_WITH("device", "cuda", "cuda_graphs", "0");
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
Test(cuda_memory, want_of_memory_after_a_run_in_place_breaks_nothing)
{
    start_pooled("memory=64M,devices=2");
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
