/*
 * Gradients in several threads: of values that all of them share and that one of them computes meanwhile, of their own in recordings, with parameters
 * that all read; and in a child of fork. Each gradient is right, or the error that says that the value was computed. A plain program,
 * so that it also runs under ThreadSanitizer.
 */
#include "kiln.h"
#include "tests/support/sanitizer.h"
#include "tests/support/seconds.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 3, ROUNDS = 40, N = 64 };

static atomic_int failures, refused;
static kiln_tensor *w, *shared[ROUNDS];

static void wrong(const char *what, double got, double wanted)
{
    if (atomic_fetch_add(&failures, 1) < 10)
        fprintf(stderr, "%s: %g, expected %g (%s)\n", what, got, wanted, kiln_error_message());
}

static float weight(int i) { return (float)(i % 13) * 0.1f - 0.5f; }

/* d sum(c tanh(k w)) / d w */
static void check(const char *what, kiln_tensor *grad, double c, double k)
{
    float got[N];
    if (kiln_read(grad, KILN_F32, got, sizeof got) != KILN_OK) {
        wrong(what, 0, 0);
        return;
    }
    for (int i = 0; i < N; i++) {
        double t = tanh(k * (double)weight(i)), want = c * k * (1 - t * t);
        if (fabs((double)got[i] - want) > 1e-4 * (1 + fabs(want))) {
            wrong(what, (double)got[i], want);
            return;
        }
    }
}

static kiln_tensor *scaled(int round) { return kiln_tanh(kiln_mul(w, kiln_scalar(1 + 0.1 * (round % 7)))); }

static void own(int round, double c)
{
    kiln_recording *recording = round % 2 ? kiln_recording_begin() : NULL;
    kiln_tensor *y = scaled(round), *grad = NULL;
    if (recording && kiln_eval(y) != KILN_OK)
        wrong("a value in a recording", 0, 0);
    if (kiln_grad(kiln_sum(kiln_mul(y, kiln_scalar(c))), &w, 1, &grad) != KILN_OK)
        wrong("a gradient of its own", 0, 0);
    else
        check("a gradient of its own", grad, c, 1 + 0.1 * (round % 7));
    kiln_recording_end(recording);
}

static void *work(void *user)
{
    int thread = *(int *)user;
    for (int round = 0; round < ROUNDS; round++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *grad = NULL;
        double c = 1 + thread;
        if (thread == round % 5 && kiln_eval(shared[round]) != KILN_OK)
            wrong("a shared value", 0, 0);
        kiln_status status = kiln_grad(kiln_sum(kiln_mul(shared[round], kiln_scalar(c))), &w, 1, &grad);
        if (status == KILN_OK)
            check("a gradient of a shared value", grad, c, 1 + 0.1 * (round % 7));
        else if (status != KILN_INVALID || !strstr(kiln_error_message(), "was computed by kiln_eval"))
            wrong("status", status, KILN_INVALID);
        else
            atomic_fetch_add(&refused, 1);
        kiln_clear_error();
        own(round + thread, c);
        kiln_scope_end(scope);
    }
    return NULL;
}

static void fork_once(void)
{
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        test_seconds(60);
        if (CHILD_MAY_ALLOCATE && !getenv("KILN_DEVICE"))
            for (int k = 0; k < 4; k++)
                own(k, 2);
        /* past ThreadSanitizer, which takes the parent's threads for leaked where they ended before the fork */
        syscall(SYS_exit_group, atomic_load(&failures) != 0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        wrong("status of a child", status, 0);
}

int main(void)
{
    pthread_t thread[THREADS];
    int number[THREADS];
    float data[N];
    test_seconds(300);
    for (int i = 0; i < N; i++)
        data[i] = weight(i);
    w = kiln_param(kiln_from(KILN_F32, KILN_SHAPE(N), data));
    for (int round = 0; round < ROUNDS; round++)
        shared[round] = scaled(round);
    for (int i = 0; i < THREADS; i++) {
        number[i] = i;
        if (pthread_create(&thread[i], NULL, work, &number[i]))
            return 1;
    }
    for (int k = 0; k < 3; k++) {
        usleep(3000);
        fork_once();
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    if (atomic_load(&refused) == 0)
        wrong("errors", 0, 1); /* thread 0 computes values of which it asks a gradient then */
    return atomic_load(&failures) != 0;
}
