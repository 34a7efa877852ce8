/*
 * The CUDA device as users see it, on the software driver (tests/cuda_driver): where tensors lie, errors of the driver, modules, forks.
 * That results are right is shown by every API_TEST (api.h), which also runs on this device.
 */
#include "on_cuda.h"
#include "tests/support/seconds.h"
#include "tests/support/count.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

Test(cuda, values_lie_where_they_are_made_and_move)
{
    kiln_tensor *here = F32(KILN_SHAPE(3), 1, 2, 3);
    start_exact(NULL);
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
    use_driver();
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
    case 0: return kiln_triu(x, 1);
    case 1: return kiln_tril(kiln_unsqueeze(x, 0), 0);
    case 2: return kiln_softmax(x, 0);
    case 3: return kiln_log_softmax(x, 1);
    case 4: return kiln_layer_norm(x, row, kiln_zeros_like(row), 1e-5);
    case 5: return kiln_cross_entropy(x, index);
    case 6: return kiln_std_axes(x, KILN_AXES(0), 1, true);
    case 7: return kiln_logsumexp(x);
    case 8: return kiln_take(x, kiln_cast(index, KILN_U64), 1);
    case 9: return kiln_scatter(kiln_zeros_like(x), index, x, 0, KILN_SCATTER_ADD);
    case 10: return kiln_topk(x, 2, 1, true, &values, &places) == KILN_OK ? kiln_add(values, places) : NULL;
    case 11: return kiln_roll(kiln_pad(x, 1, (kiln_padding[]){{1, 0}}, kiln_scalar(7)), 1, 1);
    case 12: return kiln_concat((kiln_tensor *[]){x, kiln_ones_like(x), kiln_tile(row, KILN_SHAPE(2, 1))}, 3, 0);
    case 13: return kiln_add(kiln_cumsum(x, 1), kiln_argmax_axis(x, 1, true));
    case 14: return kiln_matmul(x, kiln_gelu(row));
    default: return kiln_clamp(kiln_where(kiln_gt(x, kiln_int(2)), x, kiln_scalar(-1)), kiln_int(0), kiln_scalar(5));
    }
}

/* With tensors on another device than the thread's, what a function makes inside lies beside them, in each mode. */
Test(cuda, functions_work_where_their_operands_lie)
{
    start_exact(NULL);
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
    start_exact(NULL);
    set_option("device", "cpu");
    kiln_tensor *here = F32(KILN_SHAPE(2), 1, 2), *there = kiln_to(here, "cuda"), *shared = kiln_exp(there);
    kiln_tensor *all[] = {kiln_mul(shared, there), kiln_neg(here), here, kiln_sub(shared, there), kiln_add(here, here)};
    kiln_stats before = stats_now();
    cr_assert(kiln_eval_many(all, 5) == KILN_OK, "%s", kiln_error_message());
    kiln_stats after = stats_now();
    cr_assert_eq(after.evals - before.evals, 2);
    EXPECT(all[1], KILN_F32, KILN_SHAPE(2), 0, -1, -2);
    EXPECT(all[3], KILN_F32, KILN_SHAPE(2), 1e-6, 1.7182818, 5.3890561);
    EXPECT(all[4], KILN_F32, KILN_SHAPE(2), 0, 2, 4);
}

/* A graph of several parts leaves alone what needs no data: graphs of any device can use it afterwards. */
Test(cuda, parts_of_a_large_graph_keep_no_constants)
{
    start_exact(NULL);
    set_option("device", "cpu");
    kiln_tensor *here = F32(KILN_SHAPE(2), 1, 2), *there = kiln_to(here, "cuda");
    for (int n = 8182; n <= 8192; n++) { /* about CALL_MAX_NODES */
        int sign = n % 2 ? -1 : 1;
        kiln_tensor *x = n % 4 < 2 ? here : there, *other = x == here ? there : here, *y = x;
        kiln_tensor *c = kiln_full(KILN_F32, KILN_SHAPE(2), 3), *six = kiln_mul(kiln_scalar(2), kiln_scalar(3));
        for (int i = 0; i < n; i++)
            y = kiln_neg(y);
        y = kiln_neg(kiln_neg(kiln_add(kiln_add(y, c), six)));
        kiln_tensor *both[] = {y, kiln_mul(other, c)};
        cr_assert(kiln_eval_many(both, 2) == KILN_OK, "%d: %s", n, kiln_error_message());
        EXPECT(y, KILN_F32, KILN_SHAPE(2), 0, 9 + sign, 9 + 2 * sign);
        EXPECT(both[1], KILN_F32, KILN_SHAPE(2), 0, 3, 6);
        EXPECT(kiln_mul(other, six), KILN_F32, KILN_SHAPE(2), 0, 6, 12);
    }
}

Test(cuda, threads_choose_their_device)
{
    use_driver();
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
    setenv("KILN_TEST_CUDA", unusable[*i].settings, 1);
    use_driver();
    expect_status(kiln_set_device("cuda"), unusable[*i].status, unusable[*i].text);
    cr_assert(strstr(kiln_error_message(), "\"cpu\""), "no advice: %s", kiln_error_message());
    EXPECT(kiln_add(F32(KILN_SHAPE(2), 1, 2), kiln_scalar(1)), KILN_F32, KILN_SHAPE(2), 0, 2, 3); /* the CPU goes on */
}

Test(cuda, a_sticky_error_is_told_from_then_on)
{
    start_exact(NULL);
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
    start_exact(NULL);
    kiln_tensor *x = F32(KILN_SHAPE(2), 1, 2);
    set_option("strict", "1");
    DRIVER(test_cuda_fail_call)("cuModuleGetFunction", 1, 218, 0);
    expect_status(kiln_eval(kiln_mul(x, x)), KILN_COMPILE, "218");
    EXPECT(kiln_mul(x, x), KILN_F32, KILN_SHAPE(2), 0, 1, 4); /* the next try works */
    set_option("strict", "0");
    DRIVER(test_cuda_fail_call)("cuModuleGetFunction", 1, 218, 0);
    EXPECT(kiln_sub(x, kiln_sin(x)), KILN_F32, KILN_SHAPE(2), 1e-6, 0.158529, 1.090703);
    kiln_stats stats = stats_now();
    cr_assert_eq(stats.fallbacks, 1);
}

Test(cuda, machine_code_that_is_not_taken_gives_way_to_ptx)
{
    start_exact(NULL);
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
    start_exact(NULL);
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

/* Where there is more than one CPU to do so. */
Test(cuda, kernels_of_a_program_are_compiled_beside_each_other)
{
    cpu_set_t cpus;
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) < 2) {
        cr_log_info("one CPU: kernels are compiled one after another");
        return;
    }
    start_exact(NULL);
    set_option("fuse", "0");
    kiln_tensor *x = F32(KILN_SHAPE(3), 1, 2, 3);
    atomic_int came = 0;
    DRIVER(test_cuda_before)("cuLinkCreate_v2", 2, wait_for_another, &came);
    EXPECT(kiln_square(kiln_add(x, kiln_scalar(1))), KILN_F32, KILN_SHAPE(3), 0, 4, 9, 16);
    cr_assert(atomic_load(&came) == 2, "the second kernel was compiled after the first");
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
    start_pooled("streams=late,races=on");
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
    start_exact(NULL);
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
    use_driver();
    kiln_tensor *host = F32(KILN_SHAPE(2), 1, 2);
    pthread_t thread;
    void *opened;
    DRIVER(test_cuda_before)("cuInit", 1, open_slowly, NULL);
    cr_assert(pthread_create(&thread, NULL, open_device, NULL) == 0);
    while (!atomic_load(&opening))
        usleep(1000);
    pid_t child = fork();
    if (child == 0) {
        test_seconds(20); /* instead of hanging */
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

Test(cuda, modules_go_with_their_programs)
{
    start_exact(NULL);
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
    int modules = occurrences("module", text);
    cr_assert(modules <= 2, "%d modules are loaded:\n%s", modules, text);
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
    start_exact(NULL);
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
    start_exact(NULL);
    set_option("log", "kernels");
    kiln_set_log_sink(keep_kernel_line, NULL);
    kiln_tensor *x = F32(KILN_SHAPE(2, 3), 3, 1, 2, 6, 5, 4);
    cr_assert(kiln_eval(kiln_softmax(x, 1)) == KILN_OK, "%s", kiln_error_message());
    cr_expect(strstr(kernel_lines, " registers, ") && strstr(kernel_lines, " bytes of local memory a thread"), "%s", kernel_lines);
    kiln_set_log_sink(NULL, NULL);
}
