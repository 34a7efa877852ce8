/*
 * Which CPUs kiln's threads use: those of the process (of its first thread), whatever core the thread that they are started by is kept to; and no others: where
 * the process is kept to one core, there are no workers, and those that KILN_THREADS asks for stay on it.
 */
#include "kiln.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LARGE = 1 << 21 };

static int failures;
static cpu_set_t process;

static void check(bool right, const char *what, int got)
{
    if (right)
        return;
    failures++;
    fprintf(stderr, "%s: %d (%s)\n", what, got, kiln_error_message());
}

/* The n-th CPU of the process alone. */
static cpu_set_t one_cpu(int n)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &process) && n-- == 0)
            CPU_SET(cpu, &one);
    return one;
}

/* Something large, something in the background. */
static void compute(void)
{
    kiln_scope *scope = kiln_scope_begin();
    double sum = 0;
    for (int k = 0; k < 3; k++) {
        kiln_tensor *x = kiln_full(KILN_F32, KILN_SHAPE(LARGE), 1);
        check(kiln_eval(x) == KILN_OK, "an input", k);
        kiln_tensor *y = kiln_sum(kiln_sqrt(kiln_mul(x, x)));
        check(kiln_eval_async(kiln_add(x, kiln_int(k))) == KILN_OK, "queueing", k);
        check(kiln_item(y, &sum) == KILN_OK && sum == LARGE, "a sum", (int)sum);
    }
    kiln_scope_end(scope);
}

/* How many threads there are besides `known`, and how many of them may use `expected`. */
static int others(const pid_t *known, int n_known, const cpu_set_t *expected, int *right)
{
    DIR *tasks = opendir("/proc/self/task");
    int n = *right = 0;
    for (const struct dirent *entry; tasks && (entry = readdir(tasks));) {
        cpu_set_t set;
        pid_t task = atoi(entry->d_name);
        bool of_kiln = task > 0;
        for (int k = 0; k < n_known; k++)
            of_kiln &= task != known[k];
        if (!of_kiln || sched_getaffinity(task, sizeof set, &set) != 0)
            continue;
        n++;
        *right += CPU_EQUAL(&set, expected);
    }
    if (tasks)
        closedir(tasks);
    return n;
}

/* There are `wanted`, all of which may use `expected`, once they had a core to begin on. */
static void check_others(const pid_t *known, int n_known, const cpu_set_t *expected, int wanted, const char *what)
{
    int n = 0, right = -1;
    for (int k = 0; k < 20000 && !(n == wanted && right == n); k++) {
        n = others(known, n_known, expected, &right);
        usleep(5000);
    }
    check(n == wanted, what, n);
    check(right == n, "of these, threads with the right CPUs", right);
}

static void *pinned(void *unused)
{
    cpu_set_t one = one_cpu(CPU_COUNT(&process) - 1);
    (void)unused;
    check(sched_setaffinity(0, sizeof one, &one) == 0, "keeping a thread to a core", CPU_COUNT(&one));
    compute();
    pid_t known[] = {getpid(), gettid()};
    check_others(known, 2, &process, CPU_COUNT(&process), "threads of kiln's: workers but one, and that of kiln_eval_async");
    return NULL;
}

static int kept_to_one(void)
{
    cpu_set_t one = one_cpu(0);
    pid_t known[] = {getpid()};
    check(sched_setaffinity(0, sizeof one, &one) == 0, "keeping the process to a core", 1);
    compute();
    check_others(known, 1, &one, 1, "threads of kiln's: that of kiln_eval_async");
    check(kiln_set_option("threads", "2") == KILN_OK, "an option", 2);
    compute();
    check_others(known, 1, &one, 2, "threads of kiln's: a worker that was asked for, too");
    return failures != 0;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    int status = 1;
    if (sched_getaffinity(0, sizeof process, &process) != 0 || CPU_COUNT(&process) < 2) {
        puts("there is one CPU: nothing to see");
        return 0;
    }
    check(kiln_set_option("threads", "0") == KILN_OK, "an option", 0);
    if (argc > 1)
        return kept_to_one();
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", argv[0], "one", (char *)NULL);
        _exit(2);
    }
    check(child > 0 && waitpid(child, &status, 0) == child && status == 0, "a process on one core", status);
    check(pthread_create(&thread, NULL, pinned, NULL) == 0, "a thread", 0);
    pthread_join(thread, NULL);
    if (!failures)
        puts("all as they should be");
    return failures != 0;
}
