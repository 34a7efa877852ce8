/* See harness.h. */
#include "tests/mutation/harness.h"
#include "tests/support/seconds.h"
#include "tests/support/slice.h"
#include "tests/support/vectors.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int n_warnings;
char last_warning[512];
static int failures, checks;

void check_that(bool ok, const char *file, int line, const char *condition, const char *format, ...)
{
    checks++;
    if (ok)
        return;
    if (failures++ >= 12)
        return;
    printf("FAIL %s:%d: %s: ", strrchr(file, '/') ? strrchr(file, '/') + 1 : file, line, condition);
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
}

int checks_failed(void) { return failures; }

bool check_ok(kiln_status status, const char *file, int line)
{
    check_that(status == KILN_OK, file, line, "status is OK", "%s: %s", kiln_status_name(status), kiln_error_message());
    if (status != KILN_OK)
        kiln_clear_error();
    return status == KILN_OK;
}

static void keep_warning(void *user, int level, const char *topic, const char *line)
{
    (void)user;
    if (level != 0) {
        if (getenv("KILN_LOG")) /* whoever asks for topics wants to see them */
            printf("%s: %s\n", topic, line);
        return;
    }
    n_warnings++;
    snprintf(last_warning, sizeof last_warning, "%s", line);
}

static int run(const char *program, const Test *tests, int n, int argc, char **argv, bool sliced)
{
    int failed = 0, ran = 0;
    for (int i = 0; i < n; i++) {
        bool wanted = argc < 2 && (!sliced || slice_takes_of((uint64_t)i, (uint64_t)n));
        for (int k = 1; k < argc; k++)
            wanted |= strcmp(argv[k], tests[i].name) == 0;
        if (!wanted)
            continue;
        ran++;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            test_seconds(300);
            kiln_set_log_sink(keep_warning, NULL);
            tests[i].run();
            if (failures || !checks)
                printf("%s: %d of %d checks failed\n", tests[i].name, failures, checks);
            fflush(stdout);
            exit(failures > 0 || checks == 0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        if (WIFSIGNALED(status))
            printf("FAIL %s: signal %d\n", tests[i].name, WTERMSIG(status));
        failed += status != 0;
    }
    if (!on_device())
        vectors_print();
    printf("%s: %d tests, %d failed\n", program, ran, failed);
    return failed > 0 || ran == 0;
}

int run_tests(const char *program, const Test *tests, int n, int argc, char **argv) { return run(program, tests, n, argc, argv, false); }
int run_some_tests(const char *program, const Test *tests, int n, int argc, char **argv)
{
    return run(program, tests, n, argc, argv, true);
}

void set_option(const char *name, const char *value)
{
    kiln_status status = kiln_set_option(name, value);
    CHECK(status == KILN_OK, "%s=%s: %s", name, value, kiln_error_message());
}

bool read_f32(kiln_tensor *x, float *data, int64_t n)
{
    memset(data, 0, (size_t)n * sizeof *data);
    return OK(kiln_read(x, KILN_F32, data, (size_t)n * sizeof *data));
}

kiln_tensor *plain_f32(kiln_shape shape, uint64_t seed)
{
    int64_t n = shape_elements(shape);
    void *data = malloc((size_t)n * sizeof(float) + 1);
    values_fill(KILN_F32, VALUES_PLAIN, 0, seed, n, data);
    kiln_tensor *x = kiln_from(KILN_F32, shape, data);
    free(data);
    return x;
}

bool on_device(void) { return getenv("KILN_DEVICE") != NULL; }
kiln_tensor *there(kiln_tensor *x) { return on_device() ? kiln_to(x, getenv("KILN_DEVICE")) : x; }

bool same_as_interp(Recipe1 *build, void *user, const char *what)
{
    char mode[16] = "", a[96], b[96];
    CHECK(kiln_get_option("mode", mode, sizeof mode) == KILN_OK, "mode");
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *got = build(user);
    kiln_dtype dtype = kiln_dtype_of(got);
    kiln_shape shape = kiln_shape_of(got);
    int64_t n = kiln_numel(got);
    size_t bytes = got ? (size_t)n * kiln_dtype_size(dtype) : 0;
    char *data = malloc(2 * bytes + 2), *wanted = data + bytes + 1;
    bool ok = OK(kiln_read(got, dtype, data, bytes));
    set_option("mode", "interp");
    kiln_tensor *want = build(user);
    ok = ok && OK(kiln_read(want, dtype, wanted, bytes));
    set_option("mode", mode);
    int64_t at = ok ? values_differ(dtype, n, data, wanted, (Tolerance){0, 0}) : -1;
    CHECK(at < 0, "%s: %s element %" PRId64 " is %s, interp says %s", what, shape_text(dtype, shape, (char[96]){0}), at,
          value_text(dtype, data, at, a), value_text(dtype, wanted, at, b));
    free(data);
    kiln_scope_end(scope);
    return ok && at < 0;
}
