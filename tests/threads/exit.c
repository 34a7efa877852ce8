/*
 * A process ends, by exit() in its main thread, in another, or in a log sink that the thread in the background waits for, at any moment of a
 * compile in the background or of what kiln_eval_async queued: soon, with its own status, and without a crash of what the compile still
 * uses. The parent has no thread, so its children may do anything.
 */
#include "kiln.h"
#include "tests/support/seconds.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN = 20, STRUCTURES = 4, STATUS = 7 };

/* Graphs of several kernels, each of a structure of its own: the most general program of each is queued. */
static bool queue_some(void)
{
    float data[64];
    for (int i = 0; i < 64; i++)
        data[i] = (float)i * 0.01f;
    if (kiln_set_option("async_compile", "1") != KILN_OK)
        return false;
    for (int n = 0; n < STRUCTURES; n++) {
        kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(8, 8), data);
        for (int i = 0; i <= n; i++)
            x = kiln_softmax(kiln_sin(kiln_mul(x, x)), i % 2);
        if (kiln_eval(x) != KILN_OK)
            return false;
    }
    return true;
}

static void *exit_here(void *unused)
{
    (void)unused;
    exit(STATUS);
}

/* While the compile in the background has lines of its own to tell. */
static void exit_in_sink(void *main_thread, int level, const char *topic, const char *line)
{
    (void)level, (void)topic, (void)line;
    if (!pthread_equal(*(pthread_t *)main_thread, pthread_self()))
        return;
    usleep(100000);
    exit(STATUS);
}

/* What is queued, and under way, is of no use any more. */
static bool queue_values(void)
{
    kiln_tensor *x = kiln_arange(KILN_F32, 0, 100000, 1);
    for (int n = 0; n < 8; n++)
        if (kiln_eval_async(kiln_sin(kiln_mul(x, kiln_scalar(n)))) != KILN_OK)
            return false;
    return true;
}

static void child(int k)
{
    pthread_t thread, self = pthread_self();
    test_seconds(60);
    if (k % 4 == 3 && queue_some()) {
        kiln_set_log_sink(exit_in_sink, &self);
        if (kiln_set_option("log", "all") == KILN_OK)
            (void)queue_some(); /* which logs */
        _exit(1);
    }
    if (!queue_some() || (k % 3 == 0 && !queue_values()))
        _exit(1);
    usleep((useconds_t)(k / 2 * 1500));
    if (k % 2 == 0)
        exit(STATUS);
    if (pthread_create(&thread, NULL, exit_here, NULL) != 0)
        _exit(1);
    pthread_join(thread, NULL);
}

int main(void)
{
    int failures = 0;
    for (int k = 0; k < CHILDREN; k++) {
        int status = -1;
        pid_t pid = fork();
        if (pid == 0)
            child(k);
        if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != STATUS) {
            fprintf(stderr, "child %d: status %x\n", k, (unsigned)status);
            failures++;
        }
    }
    if (!failures)
        printf("%d processes ended\n", CHILDREN);
    return failures != 0;
}
