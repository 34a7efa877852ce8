/*
 * command KILN [DIRECTORY]: how long the command `kiln` takes from start to end, beside a process
 * that does nothing, in turns. Medians and the best of 101 rounds, in milliseconds; its output goes
 * to /dev/null. DIRECTORY: a cache to list (default: the user's own).
 */
#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

enum { ROUNDS = 101, MAX_WORDS = 6 };

typedef struct Case {
    const char *what;
    const char *words[MAX_WORDS]; /* NULL ends; the first is the program, "kiln" stands for KILN,
                                     "DIR" for --dir=DIRECTORY */
    double ms[ROUNDS];
} Case;

static Case cases[] = {
    {.what = "a process that does nothing", .words = {"/bin/true"}},
    {.what = "kiln --version", .words = {"kiln", "--version"}},
    {.what = "kiln rules", .words = {"kiln", "rules"}},
    {.what = "kiln info", .words = {"kiln", "info", "DIR"}},
    {.what = "kiln cache list --keys", .words = {"kiln", "cache", "list", "--keys", "DIR"}},
    {.what = "kiln cache list", .words = {"kiln", "cache", "list", "DIR"}},
    {.what = "kiln cache verify", .words = {"kiln", "cache", "verify", "DIR"}},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Runs one case to its end; negative: it could not be started or failed. */
static double run(const Case *c, char *kiln, char *dir, posix_spawn_file_actions_t *quiet)
{
    extern char **environ;
    char *argv[MAX_WORDS + 1] = {NULL};
    int n = 0, status = 0;
    for (int k = 0; k < MAX_WORDS && c->words[k]; k++) {
        bool is_dir = strcmp(c->words[k], "DIR") == 0;
        if (!is_dir || *dir)
            argv[n++] = strcmp(c->words[k], "kiln") == 0 ? kiln : is_dir ? dir : (char *)c->words[k];
    }
    pid_t child;
    double start = now_ms();
    if (posix_spawn(&child, argv[0], quiet, NULL, argv, environ) != 0 || waitpid(child, &status, 0) != child)
        return -1;
    double ms = now_ms() - start;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? ms : -1;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
    char dir[4096] = "";
    posix_spawn_file_actions_t quiet;
    if (argc < 2) {
        fprintf(stderr, "usage: %s KILN [DIRECTORY]\n", argv[0]);
        return 2;
    }
    if (argc > 2)
        snprintf(dir, sizeof dir, "--dir=%s", argv[2]);
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&quiet, 2, "/dev/null", O_WRONLY, 0);
    for (int round = 0; round < ROUNDS; round++)
        for (int k = 0; k < N_CASES; k++)
            cases[k].ms[round] = run(&cases[k], argv[1], dir, &quiet);
    posix_spawn_file_actions_destroy(&quiet);
    printf("%-30s %10s %10s\n", "", "median ms", "best ms");
    for (int k = 0; k < N_CASES; k++) {
        qsort(cases[k].ms, ROUNDS, sizeof(double), by_value);
        if (cases[k].ms[0] < 0)
            printf("%-30s     failed\n", cases[k].what);
        else
            printf("%-30s %10.2f %10.2f\n", cases[k].what, cases[k].ms[ROUNDS / 2], cases[k].ms[0]);
    }
    return 0;
}
