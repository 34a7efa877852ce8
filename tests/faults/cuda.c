/*
 * Errors of the CUDA driver, on the one made of software (tests/cuda_driver): the n-th call fails with each kind of error, for n = 1, 2, ...
 * through programs of several kernels with copies in and out. What must hold, whatever fails:
 *
 *   the result is right, or there is a status and a message that names the device, the call or the kernel, and the caller's line;
 *   one error that passes leaves everything usable, the next run is right, and no object of the driver is lost;
 *   one that breaks the context is told by every later call, while host data can be read and the CPU goes on;
 *   nothing crashes or hangs, the end of the process included.
 *
 * Forks, devices that can't be used, what the pool keeps: tests/api/test_cuda.c, test_cuda_memory.c.
 */
#include "tests/cuda_driver/test_cuda.h"
#include "tests/mutation/harness.h"
#include "tests/support/seconds.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* What the software driver offers beside the driver's API. */
static struct {
    void (*fail)(long n, int code, int sticky);
    void (*fail_call)(const char *name, long n, int code, int sticky);
    void (*limit_memory)(size_t bytes);
    size_t (*leaks)(char *text, size_t size);
    void (*counters)(test_cuda_counters *out);
} driver;

static void open_driver(void)
{
    const char *path = getenv("KILN_TEST_LIBCUDA");
    void *library = path ? dlopen(path, RTLD_NOW) : NULL;
    static const struct {
        const char *name;
        void *to;
    } functions[] = {{"test_cuda_fail", &driver.fail},
                     {"test_cuda_fail_call", &driver.fail_call},
                     {"test_cuda_limit_memory", &driver.limit_memory},
                     {"test_cuda_leaks", &driver.leaks},
                     {"test_cuda_get_counters", &driver.counters}};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *at = library ? dlsym(library, functions[i].name) : NULL;
        if (!at) {
            fprintf(stderr, "KILN_TEST_LIBCUDA names no software driver: %s\n", dlerror());
            exit(2);
        }
        memcpy(functions[i].to, &at, sizeof at);
    }
    set_option("libcuda", path);
    set_option("device", "cuda");
    set_option("math", "strict"); /* results are compared with the interpreter's, bit for bit */
}

/* --- the program ------------------------------------------------------------------------------------------------------ */

enum { ROWS = 6, COLUMNS = 40, KERNELS = 4 };

/* A product, rows of it normalised, a sum of all: several kernels; a copy in, one on the way and one at the end. `variant` makes it
 * another structure. */
static kiln_status program(int variant, double *value)
{
    static float data[ROWS * COLUMNS], middle[ROWS * ROWS];
    for (int i = 0; i < ROWS * COLUMNS; i++)
        data[i] = (float)(i * i % 11) / 8 - 0.5f;
    *value = NAN;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(ROWS, COLUMNS), data);
    kiln_tensor *y = kiln_tanh(kiln_matmul(x, kiln_transpose(x)));
    for (int k = variant; k; k >>= 1)
        y = k & 1 ? kiln_sin(y) : kiln_cos(y);
    kiln_tensor *z = kiln_softmax(kiln_cumsum(y, 0), 1);
    kiln_status status = kiln_read(y, KILN_F32, middle, sizeof middle);
    if (status == KILN_OK)
        status = kiln_item(kiln_sum(kiln_mul(z, kiln_argmax_axis(y, 0, true))), value);
    kiln_scope_end(scope);
    return status;
}

static double expected(int variant)
{
    double value;
    set_option("mode", "interp");
    kiln_status status = program(variant, &value);
    CHECK(status == KILN_OK, "interp: %s", kiln_error_message());
    set_option("mode", "jit");
    return value;
}

static bool says(const char *text) { return strstr(kiln_error_message(), text) != NULL; }

/* A message as RELIABILITY.md wants it: where in the program, on which device, what went wrong. */
static void message_is_good(int n, int code)
{
    char number[16];
    snprintf(number, sizeof number, "(%d:", code);
    CHECK(says("kiln_") && says("cuda.c:"), "call %d: %s", n, kiln_error_message());
    CHECK(says("cuda:0") || says("CUDA driver"), "call %d: %s", n, kiln_error_message());
    CHECK(says(number) || (says("out of memory") && says("release tensors")), "call %d: %s", n, kiln_error_message());
}

static size_t live_objects(void) { return driver.leaks(NULL, 0); }

/* --- errors that pass ----------------------------------------------------------------------------------------------------- */

static const int passing[] = {1 /* invalid value */,
                              2 /* out of memory */,
                              209 /* no binary for the device */,
                              218 /* invalid PTX */,
                              400 /* invalid handle */,
                              701 /* too many resources */,
                              999 /* unknown */};
enum { PASSING = sizeof passing / sizeof *passing, CALLS = 2000 };

typedef struct Sweep {
    int calls, failed;
    bool over, kernel_named; /* over: there were less than n calls */
} Sweep;

static uint64_t calls_now(void)
{
    test_cuda_counters counters;
    driver.counters(&counters);
    return counters.calls;
}

/* The n-th call from here fails; the program, and once more. */
static void one_fails(int variant, double wanted, int n, int code, Sweep *sweep)
{
    double value;
    uint64_t before = calls_now();
    driver.fail(n, code, 0);
    kiln_status status = program(variant, &value);
    driver.fail(0, 0, 0);
    sweep->over = calls_now() < before + (uint64_t)n;
    sweep->calls += !sweep->over;
    sweep->failed += status != KILN_OK;
    if (status == KILN_OK)
        CHECK(value == wanted, "call %d fails with %d: %.9g, not %.9g", n, code, value, wanted);
    else
        message_is_good(n, code);
    sweep->kernel_named |= says("reduce_sum");
    kiln_clear_error();
    status = program(variant, &value);
    CHECK(status == KILN_OK && value == wanted, "after call %d failed with %d: %.9g, not %.9g: %s", n, code, value, wanted,
          kiln_error_message());
    kiln_clear_error();
}

/* Compiled programs: binding, launching, copying. */
static void warm(void)
{
    open_driver();
    double wanted = expected(0), value;
    for (int i = 0; i < 2; i++)
        OK(program(0, &value));
    size_t before = live_objects();
    set_option("strict", "1");
    for (int k = 0; k < PASSING; k++) {
        Sweep sweep = {0};
        for (int n = 1; n < CALLS && !sweep.over; n++)
            one_fails(0, wanted, n, passing[k], &sweep);
        /* what there is no memory for is asked for once more: buffers, launches */
        CHECK(sweep.failed > (passing[k] == 2 ? 5 : 10) && sweep.over, "%d of %d calls fail with %d", sweep.failed, sweep.calls,
              passing[k]);
        CHECK(sweep.kernel_named || passing[k] == 2, "no message names a kernel (%d)", passing[k]);
        CHECK(live_objects() <= before, "%zu objects of the driver are alive, %zu were", live_objects(), before);
    }
    /* a launch may say that there is no code, too, since the driver may load a function only then: the program is interpreted */
    set_option("strict", "0");
    Sweep sweep = {0};
    for (int n = 1; n < CALLS && !sweep.over; n++)
        one_fails(0, wanted, n, 218, &sweep);
    kiln_stats stats = stats_now();
    CHECK(!sweep.kernel_named && stats.fallbacks > 0, "%lld were interpreted", (long long)stats.fallbacks);
}

/* Programs that are new each time: assembling and loading, too. */
static void cold(void)
{
    open_driver();
    for (int strict = 0; strict < 2; strict++) {
        Sweep sweep = {0};
        set_option("strict", strict ? "1" : "0");
        for (int n = 1; n < CALLS && !sweep.over; n++) {
            int variant = strict * CALLS + n;
            one_fails(variant, expected(variant), n, n % 2 ? 2 : 218, &sweep);
        }
        CHECK(sweep.failed > (strict ? 10 : 5) && sweep.over, "%d of %d calls fail", sweep.failed, sweep.calls);
    }
}

/* Each call that makes something of a kernel fails, for each kernel; strict: that is an error, else the program is interpreted. */
static void kernels(void)
{
    static const char *const calls[] = {"cuLinkCreate_v2", "cuLinkAddData_v2", "cuLinkComplete", "cuModuleLoadDataEx",
                                        "cuModuleGetFunction"};
    open_driver();
    set_option("cache_bytes", "1"); /* a program is dropped when the next comes */
    int variant = 1;
    double value, wanted = expected(variant);
    OK(program(variant, &value));
    CHECK(value == wanted, "%g, not %g", value, wanted);
    size_t before = live_objects();
    for (int strict = 0; strict < 2; strict++)
        for (size_t k = 0; k < sizeof calls / sizeof *calls; k++)
            for (int n = 1; n <= KERNELS; n++) {
                set_option("strict", strict ? "1" : "0");
                wanted = expected(++variant);
                driver.fail_call(calls[k], n, n % 2 ? 209 : 218, 0);
                kiln_status status = program(variant, &value);
                driver.fail(0, 0, 0);
                if (status == KILN_OK)
                    CHECK(value == wanted, "%s %d: %g, not %g", calls[k], n, value, wanted);
                else
                    message_is_good(n, n % 2 ? 209 : 218);
                CHECK(strict || status == KILN_OK, "%s %d: %s", calls[k], n, kiln_error_message());
                kiln_clear_error();
                OK(program(variant, &value));
                CHECK(value == wanted, "after %s %d: %g, not %g", calls[k], n, value, wanted);
                CHECK(live_objects() <= before, "%s %d: %zu objects of the driver are alive, %zu were", calls[k], n, live_objects(),
                      before);
            }
}

/* --- opening the device ------------------------------------------------------------------------------------------------------ */

/* Runs `child` in a process that has not seen CUDA; its exit status: 0 fine, 1 it failed (told there), 3 no call was left to fail. */
static int in_child(void (*child)(int n, int code), int n, int code)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        test_seconds(60);
        child(n, code);
        exit(checks_failed() ? 1 : 0); /* through what runs at exit */
    }
    int status = 0;
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 3), "call %d, error %d: status %x", n, code,
          (unsigned)status);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static const int OPENING = 14; /* driver calls until the device is open, and a few more */

/* An error while the driver starts is for good; one while the device is opened passes. Either is told. */
static void opening_child(int n, int code)
{
    open_driver();
    double value;
    driver.fail(n, code, 0);
    kiln_status status = program(0, &value);
    driver.fail(0, 0, 0);
    bool for_good = says("does not start");
    if (status != KILN_OK)
        message_is_good(n, code);
    kiln_clear_error();
    status = program(0, &value);
    if (for_good)
        CHECK(status == KILN_DEVICE && says("does not start"), "call %d: %s", n, kiln_error_message());
    else
        CHECK(status == KILN_OK && value == expected(0), "call %d: %g, %s", n, value, kiln_error_message());
    kiln_clear_error();
    OK(kiln_set_device("cpu"));
    OK(program(0, &value));
}

static void opening(void)
{
    for (int n = 1; n <= OPENING; n++)
        in_child(opening_child, n, n % 2 ? 2 : 999);
}

/* --- errors that stay -------------------------------------------------------------------------------------------------------- */

static const int staying[] = {700 /* illegal address */, 719 /* launch failed */, 702 /* launch timed out */, 716 /* misaligned */,
                              214 /* uncorrectable memory error */};

static void staying_child(int n, int code)
{
    open_driver();
    static const float data[3] = {1, 2, 3};
    float copy[3] = {0};
    double value, again;
    kiln_tensor *host = kiln_to(kiln_from(KILN_F32, KILN_SHAPE(3), data), "cpu");
    OK(kiln_eval(host));
    double wanted = expected(0);
    OK(program(0, &value));
    uint64_t before = calls_now();
    driver.fail(n, code, 1);
    kiln_status status = program(0, &value);
    driver.fail(0, 0, 0);
    if (calls_now() < before + (uint64_t)n)
        exit(checks_failed() ? 1 : 3);
    char first[512];
    snprintf(first, sizeof first, "%s", kiln_error_message());
    if (status == KILN_OK)
        CHECK(value == wanted, "call %d: %g", n, value);
    else
        CHECK(status == KILN_DEVICE && says("kiln_") && says("cuda.c:") && says("cannot be used any more since"), "call %d: %s", n, first);
    kiln_clear_error();
    kiln_status later = program(0, &again);
    CHECK(later == KILN_DEVICE && says("cannot be used any more since"), "call %d, later: %s", n, kiln_error_message());
    const char *cause = strstr(first, "since"), *told = strstr(kiln_error_message(), "since");
    size_t same = cause && strchr(cause, ';') ? (size_t)(strchr(cause, ';') - cause) : 5;
    CHECK(status == KILN_OK || (told && strncmp(cause, told, same) == 0), "call %d: first %s, later %s", n, first, kiln_error_message());
    kiln_clear_error();
    OK(kiln_read(host, KILN_F32, copy, sizeof copy));
    CHECK(memcmp(copy, data, sizeof copy) == 0, "host data changed");
    OK(kiln_set_device("cpu"));
    OK(program(0, &value));
}

static void staying_errors(void)
{
    int n = 1;
    while (n < CALLS && in_child(staying_child, n, staying[n % (int)(sizeof staying / sizeof *staying)]) != 3)
        n++;
    CHECK(n > 20 && n < CALLS, "%d calls were made to fail", n);
}

/* --- memory ----------------------------------------------------------------------------------------------------------------- */

/* Less and less memory: right, or told with the amounts; and right again when there is enough. */
static void memory(void)
{
    open_driver();
    double wanted = expected(0), value;
    OK(program(0, &value));
    int refused = 0;
    for (size_t bytes = 1 << 14; bytes; bytes /= 2) {
        kiln_scope *scope = kiln_scope_begin();
        driver.limit_memory(bytes);
        kiln_tensor *large = kiln_add(kiln_zeros(KILN_F32, KILN_SHAPE(1 << 20)), kiln_scalar(1));
        kiln_status status = kiln_eval(large);
        CHECK(status == KILN_OUT_OF_MEMORY && says("4194304 bytes requested") && says("in use") && says("pooled") && says("free of"),
              "%zu bytes: %s", bytes, kiln_error_message());
        kiln_clear_error();
        status = program(0, &value); /* what was kept was given back, so it may not fit either */
        if (status == KILN_OK)
            CHECK(value == wanted, "%zu bytes: %g", bytes, value);
        else
            CHECK(status == KILN_OUT_OF_MEMORY && says("bytes requested"), "%zu bytes: %s", bytes, kiln_error_message());
        refused += status != KILN_OK;
        kiln_clear_error();
        driver.limit_memory(0);
        OK(program(0, &value));
        CHECK(value == wanted, "with memory again: %g", value);
        kiln_scope_end(scope);
    }
    CHECK(refused > 3, "%d", refused);
}

/* Memory may lack for other things than buffers: what was kept is given back, and the call made once more. */
static void memory_for_the_driver(void)
{
    static const char *const calls[] = {"cuModuleLoadDataEx", "cuLaunchKernel"};
    open_driver();
    set_option("cuda_graphs", "off");
    double value;
    OK(program(0, &value));
    for (int i = 0; i < 2; i++) {
        double wanted = expected(20 + i);
        test_cuda_counters before, after;
        OK(program(40 + i, &value)); /* leaves memory in the pool */
        driver.counters(&before);
        driver.fail_call(calls[i], 1, 2, 0);
        OK(program(20 + i, &value));
        driver.fail(0, 0, 0);
        driver.counters(&after);
        CHECK(value == wanted && after.frees > before.frees, "%s: %g, not %g; %llu buffers were given back", calls[i], value, wanted,
              (unsigned long long)(after.frees - before.frees));
    }
}

/* A linker that fails for reasons of its own, with whatever code: the PTX is loaded without it, and the result is right, in a thread
 * with a small stack, too. */
static char linker_warning[512];

static void keep_warning(void *user, int level, const char *topic, const char *line)
{
    (void)user, (void)level, (void)topic;
    snprintf(linker_warning, sizeof linker_warning, "%s", line);
}

typedef struct ProgramRun {
    int variant;
    double value;
} ProgramRun;

static void *run_there(void *run)
{
    ProgramRun *r = run;
    OK(program(r->variant, &r->value));
    return NULL;
}

static double on_small_stack(int variant)
{
    ProgramRun run = {variant, NAN};
    pthread_attr_t attr;
    pthread_t thread;
    CHECK(pthread_attr_init(&attr) == 0 && pthread_attr_setstacksize(&attr, (size_t)256 << 10) == 0 &&
              pthread_create(&thread, &attr, run_there, &run) == 0 && pthread_join(thread, NULL) == 0,
          "no thread");
    pthread_attr_destroy(&attr);
    return run.value;
}

static void linker(void)
{
    static const char *const calls[] = {"cuLinkCreate_v2", "cuLinkAddData_v2", "cuLinkComplete"};
    open_driver();
    set_option("strict", "1");
    kiln_set_log_sink(keep_warning, NULL);
    double value;
    for (int i = 0; i < 3; i++) {
        double wanted = expected(50 + i);
        driver.fail_call(calls[i], 1, (const int[]){1, 801, 218}[i], 0);
        value = on_small_stack(50 + i);
        driver.fail(0, 0, 0);
        CHECK(value == wanted, "%s: %g, not %g", calls[i], value, wanted);
    }
    CHECK(strstr(linker_warning, "PTX is loaded without it"), "%s", linker_warning);
    kiln_set_log_sink(NULL, NULL);
}

/* --- the end of the process ------------------------------------------------------------------------------------------------------ */

static kiln_tensor *left; /* alive when the process ends */

/* Runs at exit when the driver is no more: nothing crashes or speaks, and what asks for values is told why not. */
static void late(void)
{
    float out[4];
    CHECK(kiln_read(left, KILN_F32, out, sizeof out) == KILN_DEVICE && says("(4:"), "%s", kiln_error_message());
    kiln_clear_error();
    kiln_release(left);
    fflush(stderr);
    struct stat info;
    CHECK(fstat(STDERR_FILENO, &info) == 0 && info.st_size == 0, "%lld bytes were printed", (long long)info.st_size);
    if (checks_failed())
        _exit(1);
}

static void end_child(int n, int code)
{
    (void)code;
    static const float data[4] = {1, 2, 3, 4};
    FILE *said = tmpfile(); /* nothing may be said; checks speak to stdout */
    CHECK(said && dup2(fileno(said), STDERR_FILENO) >= 0, "no file");
    if (n == 0)
        atexit(late); /* before the driver registers what ends it: runs after that */
    open_driver();
    double value;
    OK(program(0, &value));
    kiln_scope *scope = kiln_scope_begin();
    left = kiln_add(kiln_from(KILN_F32, KILN_SHAPE(4), data), kiln_scalar(1));
    OK(kiln_eval(left));
    kiln_retain(left);
    kiln_scope_end(scope);
}

static void end_of_process(void)
{
    in_child(end_child, 0, 0);
    in_child(end_child, 1, 0);
}

/* --- a kernel that does wrong -------------------------------------------------------------------------------------------------- */

/* With KILN_SYNC=1 the launch at fault is named, and where it was asked for. */
static void guilty_launch(int n, int code)
{
    (void)n;
    open_driver();
    set_option("sync", "1");
    double value;
    OK(program(0, &value));
    driver.fail_call("cuStreamSynchronize", 2, code, 1); /* the launch before it is the one */
    kiln_status status = program(0, &value);
    CHECK(status == KILN_DEVICE && says("cuda.c:"), "%s", kiln_error_message());
    CHECK(says("reduce") || says("matmul") || says("cumsum"), "no kernel is named: %s", kiln_error_message());
    CHECK(!says("KILN_SYNC"), "what was done is advised: %s", kiln_error_message());
}

static void sync_names_the_kernel(void) { in_child(guilty_launch, 0, 700); }

/* --- other devices and drivers ------------------------------------------------------------------------------------------------- */

static const char *const machines[] = {
    "cc=7.5,driver=11040", "cc=8.0,driver=11040",  "cc=8.6,driver=11080",  "cc=8.9,driver=12000", "cc=9.0,driver=12000",
    "cc=9.0,driver=13000", "cc=10.0,driver=12080", "cc=12.0,driver=13000", "cc=8.0,sms=1",        "cc=9.0,sms=200",
};

/* What each device and driver takes: the program is right, and the same bits everywhere. */
static void machine_child(int n, int code)
{
    (void)code;
    setenv("KILN_TEST_CUDA", machines[n], 1);
    open_driver();
    set_option("strict", "1");
    double value;
    OK(program(0, &value));
    CHECK(value == expected(0), "%s: %g", machines[n], value);
}

static void other_machines(void)
{
    for (int n = 0; n < (int)(sizeof machines / sizeof *machines); n++)
        in_child(machine_child, n, 0);
}

static void two_devices(void)
{
    setenv("KILN_TEST_CUDA", "devices=2,log=none", 1);
    open_driver();
    kiln_scope *scope = kiln_scope_begin();
    static const float data[3] = {1, 2, 3};
    float got[3] = {0};
    kiln_tensor *a = kiln_from(KILN_F32, KILN_SHAPE(3), data);
    OK(kiln_set_device("cuda:1"));
    kiln_tensor *b = kiln_from(KILN_F32, KILN_SHAPE(3), data);
    CHECK(kiln_add(a, b) == NULL && kiln_error_status() == KILN_DEVICE && says("on cuda:0") && says("on cuda:1") && says("kiln_to"), "%s",
          kiln_error_message());
    kiln_clear_error();
    kiln_tensor *c = kiln_add(kiln_to(kiln_mul(a, a), "cuda:1"), b);
    OK(kiln_read(c, KILN_F32, got, sizeof got));
    CHECK(got[0] == 2 && got[1] == 6 && got[2] == 12, "%g %g %g", (double)got[0], (double)got[1], (double)got[2]);
    double value;
    OK(program(0, &value));
    CHECK(kiln_set_device("cuda:2") == KILN_INVALID && says("there are 2 CUDA devices"), "%s", kiln_error_message());
    kiln_clear_error();
    driver.fail(1, 700, 1); /* one device breaks: the other goes on */
    OK(kiln_set_device("cuda:1"));
    CHECK(kiln_wait(kiln_mul(b, b)) == KILN_DEVICE && says("cuda:1 cannot be used any more"), "%s", kiln_error_message());
    kiln_clear_error();
    OK(kiln_set_device("cuda:0"));
    OK(program(0, &value));
    CHECK(value == expected(0), "%g", value);
    kiln_scope_end(scope);
}

static void stub_child(int n, int code)
{
    (void)n;
    open_driver();
    double value;
    driver.fail_call("cuDriverGetVersion", 1, code, 0);
    CHECK(program(0, &value) == KILN_DEVICE && says("is the stub of a CUDA toolkit"), "%s", kiln_error_message());
    kiln_clear_error();
}

/* A library that is no CUDA driver: one from before what is needed, the toolkit's stub. */
static void foreign_library(void)
{
    double value;
    in_child(stub_child, 0, 34);
    set_option("libcuda", "libm.so.6");
    set_option("device", "cuda");
    CHECK(program(0, &value) == KILN_DEVICE && says("lacks cu") && says("too old"), "%s", kiln_error_message());
    kiln_clear_error();
    OK(kiln_set_device("cpu"));
    OK(program(0, &value));
}

static const Test tests[] = {
    {"warm", warm},
    {"cold", cold},
    {"kernels", kernels},
    {"opening", opening},
    {"staying", staying_errors},
    {"memory", memory},
    {"memory_for_the_driver", memory_for_the_driver},
    {"linker", linker},
    {"end_of_process", end_of_process},
    {"sync_names_the_kernel", sync_names_the_kernel},
    {"other_machines", other_machines},
    {"two_devices", two_devices},
    {"foreign_library", foreign_library},
};

int main(int argc, char **argv) { return run_some_tests("cuda", tests, sizeof tests / sizeof *tests, argc, argv); }
