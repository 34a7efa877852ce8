/*
 * api [--list] [--part K/N | --slice] [WORD...]: runs every API_TEST of tests/api on the CUDA device of KILN_TEST_LIBCUDA's
 * driver (the last one of its modes), and what test_cuda*.c there test that needs no software driver
 * (software_only.def), without Criterion, each in a child process.
 *
 *     WORD         only tests whose "suite/name" contains one of them; a word that no name contains is an error
 *     --part K/N   of these the K-th, K+N-th, and so on: parts 1 to N together are all of them, each once, whatever
 *                  tests there are
 *     --slice      the part that support/slice.h takes
 *     --list       their names, and nothing is run
 *
 * SIGTERM ends it with the summary of what ran. Status: 0 all passed, 1 some failed, 2 there is nothing to run.
 */
#include "tests/support/seconds.h"
#include "tests/support/slice.h"

#include <criterion/criterion.h>

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SECONDS = 120 };

static PlainTest *tests, **last = &tests;
static bool failed;
static volatile sig_atomic_t terminated;

static void on_term(int signal)
{
    (void)signal;
    terminated = 1;
}

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
        signal(SIGTERM, SIG_DFL);
        test_seconds(SECONDS);
        if (test->parameters) {
            struct criterion_test_params all = test->parameters();
            test->run(all.params + (all.length - 1) * all.size);
        } else {
            test->run(NULL);
        }
        fflush(stdout);
        _exit(failed);
    }
    if (child < 0) {
        perror("FAILED fork");
        return false;
    }
    int status = 1;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        if (terminated)
            kill(child, SIGTERM); /* `timeout` does that too; others may not */
    if (status == 0)
        return true;
    if (terminated)
        return false;
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

static bool chosen(const char *name, char **words, bool *found)
{
    bool any = !*words;
    for (int i = 0; words[i]; i++)
        if (strstr(name, words[i]))
            any = found[i] = true;
    return any;
}

static bool needs_software(const char *name, bool met[SOFTWARE_ONLY_TESTS])
{
    for (int i = 0; i < SOFTWARE_ONLY_TESTS; i++)
        if (strcmp(name, software_only[i]) == 0)
            return met[i] = true;
    return false;
}

enum { MAX_WORDS = 50 };

typedef struct Options {
    bool list;
    int part, parts;
    char **words; /* NULL at the end */
    bool found[MAX_WORDS];
} Options;

static bool read_options(int argc, char **argv, Options *o)
{
    char more;
    *o = (Options){.part = 1, .parts = 1};
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "--list") == 0)
            o->list = true;
        else if (strcmp(argv[i], "--slice") == 0)
            o->parts = (int)slices(), o->part = (int)(slice_seed() % slices()) + 1;
        else if (strcmp(argv[i], "--part") != 0 || ++i == argc || sscanf(argv[i], "%d/%d%c", &o->part, &o->parts, &more) != 2 ||
                 o->part < 1 || o->part > o->parts)
            return false;
    }
    o->words = argv + i;
    return argc - i <= MAX_WORDS;
}

int main(int argc, char **argv)
{
    Options options;
    int n_chosen = 0, run = 0, wrong = 0, left_out = 0;
    bool met[SOFTWARE_ONLY_TESTS] = {false};
    char ended[200] = "", stopped[240] = "";
    if (!read_options(argc, argv, &options)) {
        fprintf(stderr, "usage: api [--list] [--part K/N | --slice] [WORD...]\n");
        return 2;
    }
    unsetenv("KILN_DEVICE"); /* the tests choose theirs */
    if (!options.list && !getenv("KILN_TEST_LIBCUDA")) {
        fprintf(stderr, "api: KILN_TEST_LIBCUDA must name the driver\n");
        return 2;
    }
    struct sigaction term = {.sa_handler = on_term};
    sigaction(SIGTERM, &term, NULL);
    fflush(stdout);
    for (PlainTest *test = tests; test && !terminated; test = test->next) {
        char name[200];
        snprintf(name, sizeof name, "%s/%s", test->suite, test->name);
        if (needs_software(name, met)) {
            left_out++;
            continue;
        }
        if (!chosen(name, options.words, options.found) || n_chosen++ % options.parts != options.part - 1)
            continue;
        run++;
        if (options.list)
            printf("%s\n", name);
        else if (passes(test))
            memcpy(ended, name, sizeof ended);
        else if (terminated)
            snprintf(stopped, sizeof stopped, "; stopped in %s", name);
        else
            wrong++;
    }
    if (terminated && !*stopped) /* between two tests */
        snprintf(stopped, sizeof stopped, "; stopped after %s", *ended ? ended : "no test");
    for (int i = 0; options.words[i] && !terminated; i++)
        if (!options.found[i]) {
            printf("FAILED no name of a test contains %s\n", options.words[i]);
            wrong++;
        }
    for (int i = 0; i < SOFTWARE_ONLY_TESTS && !terminated; i++)
        if (!met[i]) {
            printf("FAILED software_only.def: there is no test %s\n", software_only[i]);
            wrong++;
        }
    if (!options.list)
        printf("api: %d tests, %d failures; %d need the software driver%s\n", run, wrong, left_out, stopped);
    return run == 0 ? 2 : wrong > 0 || *stopped;
}
