/*
 * api [PART]: runs every API_TEST of tests/api on the CUDA device of KILN_TEST_LIBCUDA's driver (the last one
 * of its modes), without Criterion, each in a child process. PART: only tests whose "suite/name" contains it.
 * Status: 0 all passed, 1 some failed, 2 there are none.
 */
#include <criterion/criterion.h>

#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SECONDS = 120 };

static PlainTest *tests, **last = &tests;
static bool failed;

void plain_test(PlainTest *test)
{
    *last = test;
    last = &test->next;
}

void plain_failed(int fatal, const char *file, int line, const char *condition, const char *format, ...)
{
    const char *name = strrchr(file, '/');
    va_list args;
    va_start(args, format);
    printf("FAILED %s:%d: %s:", name ? name + 1 : file, line, condition);
    vprintf(format, args);
    printf("\n");
    fflush(stdout);
    va_end(args);
    failed = true;
    if (fatal)
        _exit(1);
}

static bool passes(const PlainTest *test)
{
    pid_t child = fork();
    if (child == 0) {
        struct criterion_test_params all = test->parameters();
        alarm(SECONDS);
        test->run(all.params + (all.length - 1) * all.size);
        fflush(stdout);
        _exit(failed);
    }
    int status = 1;
    if (child < 0 || waitpid(child, &status, 0) < 0 || status == 0)
        return child > 0 && status == 0;
    if (WIFSIGNALED(status))
        printf("FAILED signal %d (%s)\n", WTERMSIG(status), strsignal(WTERMSIG(status)));
    printf("FAILED %s/%s\n", test->suite, test->name);
    fflush(stdout);
    return false;
}

int main(int argc, char **argv)
{
    int run = 0, wrong = 0;
    if (!getenv("KILN_TEST_LIBCUDA")) {
        fprintf(stderr, "api: KILN_TEST_LIBCUDA must name the driver\n");
        return 2;
    }
    fflush(stdout);
    for (PlainTest *test = tests; test; test = test->next) {
        char name[200];
        snprintf(name, sizeof name, "%s/%s", test->suite, test->name);
        if (argc > 1 && !strstr(name, argv[1]))
            continue;
        run++;
        wrong += !passes(test);
    }
    printf("api: %d tests, %d failures\n", run, wrong);
    return run == 0 ? 2 : wrong > 0;
}
