/*
 * api [PART...]: runs every API_TEST of tests/api on the CUDA device of KILN_TEST_LIBCUDA's driver (the last one
 * of its modes), and what test_cuda*.c there test that needs no software driver (software_only.def), without
 * Criterion, each in a child process. PART: only tests whose "suite/name" contains one of them.
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
        alarm(SECONDS);
        if (test->parameters) {
            struct criterion_test_params all = test->parameters();
            test->run(all.params + (all.length - 1) * all.size);
        } else {
            test->run(NULL);
        }
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

static const char *const software_only[] = {
#define SOFTWARE_ONLY(suite, name, needs) #suite "/" #name,
#include "software_only.def"
};
enum { SOFTWARE_ONLY_TESTS = sizeof software_only / sizeof *software_only };

static bool chosen(const char *name, char **parts)
{
    bool any = !*parts;
    for (; *parts && !any; parts++)
        any = strstr(name, *parts) != NULL;
    return any;
}

static bool needs_software(const char *name, bool met[SOFTWARE_ONLY_TESTS])
{
    for (int i = 0; i < SOFTWARE_ONLY_TESTS; i++)
        if (strcmp(name, software_only[i]) == 0)
            return met[i] = true;
    return false;
}

int main(int argc, char **argv)
{
    (void)argc;
    int run = 0, wrong = 0, left_out = 0;
    bool met[SOFTWARE_ONLY_TESTS] = {false};
    unsetenv("KILN_DEVICE"); /* the tests choose theirs */
    if (!getenv("KILN_TEST_LIBCUDA")) {
        fprintf(stderr, "api: KILN_TEST_LIBCUDA must name the driver\n");
        return 2;
    }
    fflush(stdout);
    for (PlainTest *test = tests; test; test = test->next) {
        char name[200];
        snprintf(name, sizeof name, "%s/%s", test->suite, test->name);
        if (needs_software(name, met)) {
            left_out++;
            continue;
        }
        if (!chosen(name, argv + 1))
            continue;
        run++;
        wrong += !passes(test);
    }
    for (int i = 0; i < SOFTWARE_ONLY_TESTS; i++)
        if (!met[i]) {
            printf("FAILED software_only.def: there is no test %s\n", software_only[i]);
            wrong++;
        }
    printf("api: %d tests, %d failures; %d need the software driver\n", run, wrong, left_out);
    return run == 0 ? 2 : wrong > 0;
}
