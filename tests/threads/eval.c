/*
 * Recording and evaluating from several threads at once, under ThreadSanitizer: threads that miss on the same key together, a
 * pending tensor that all want, tensors handed over, scopes, errors, statistics. Results are whole numbers, so that they can be
 * compared exactly.
 */
#include "kiln.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, ROUNDS = 12, N = 300 };

static kiln_tensor *shared_pending, *shared_ready;
static pthread_barrier_t barrier;

/* sum over (3 i + k) for i < n */
static double expected_sum(int n, int k)
{
    return 1.5 * n * (n - 1) + (double)n * k;
}

static kiln_tensor *graph(int n, int k)
{
    kiln_tensor *i = kiln_arange(KILN_F32, 0, n, 1);
    return kiln_add(kiln_mul(i, kiln_scalar(3)), kiln_scalar(k));
}

/* One round of a thread; the number of wrong things. */
static int one_round(int thread, int round)
{
    int wrong = 0;
    double value = -1;
    kiln_scope *scope = kiln_scope_begin();

    /* All threads meet the same new graph at the same time: sizes differ by round, scalars by thread. */
    pthread_barrier_wait(&barrier);
    kiln_tensor *y = graph(N + round, thread);
    if (kiln_item(kiln_sum(y), &value) != KILN_OK || value != expected_sum(N + round, thread))
        wrong++;

    /* One node, computed once, wanted by all. */
    if (kiln_item(kiln_sum(kiln_add(shared_pending, kiln_scalar(thread))), &value) != KILN_OK ||
        value != expected_sum(N, thread))
        wrong++;
    float data[N];
    if (kiln_read(kiln_neg(shared_ready), KILN_F32, data, sizeof data) != KILN_OK || data[N - 1] != -3.0f * (N - 1))
        wrong++;

    /* Errors belong to the thread that made them. */
    if (thread % 2 == 0) {
        if (kiln_add(kiln_zeros(KILN_F32, KILN_SHAPE(2)), kiln_zeros(KILN_F32, KILN_SHAPE(3))) != NULL)
            wrong++;
        if (!strstr(kiln_error_message(), "kiln_add"))
            wrong++;
        kiln_clear_error();
    } else if (kiln_error_message()[0] != '\0') {
        wrong++;
    }
    kiln_stats stats;
    kiln_get_stats(&stats);
    wrong += stats.evals < 1;
    if (round % 4 == thread % 4) {
        char text[8];
        snprintf(text, sizeof text, "%d", 1 + round % 3);
        wrong += kiln_set_option("threads", text) != KILN_OK;
    }
    kiln_scope_end(scope);
    return wrong;
}

static void *thread_main(void *number)
{
    int thread = *(int *)number, wrong = 0;
    for (int round = 0; round < ROUNDS; round++)
        wrong += one_round(thread, round);
    *(int *)number = wrong;
    return NULL;
}

int main(void)
{
    pthread_t thread[THREADS];
    int result[THREADS], wrong = 0;
    kiln_scope *scope = kiln_scope_begin();
    shared_pending = kiln_retain(graph(N, 0));
    shared_ready = kiln_retain(graph(N, 0));
    if (kiln_eval(shared_ready) != KILN_OK) {
        fprintf(stderr, "%s\n", kiln_error_message());
        return 2;
    }
    kiln_scope_end(scope);
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) {
        result[i] = i;
        if (pthread_create(&thread[i], NULL, thread_main, &result[i]) != 0)
            return 2;
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        wrong += result[i];
    }
    kiln_release(shared_pending);
    kiln_release(shared_ready);
    kiln_stats stats;
    kiln_get_stats(&stats);
    printf("%d wrong; %lld compiles, %lld hits, %lld misses\n", wrong, (long long)stats.compiles, (long long)stats.hits,
           (long long)stats.misses);
    return wrong != 0 || stats.fallbacks != 0;
}
