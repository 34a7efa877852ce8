/*
 * Recording and letting go in different threads: makers hand tensors to takers, who release them,
 * so nodes, handles and data move between the free lists of the threads all the time. For
 * ThreadSanitizer; elsewhere it checks that nothing is left.
 */
#include "kiln.h"
#include "tests/support/stats.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { PAIRS = 2, ROUNDS = 30, BATCH = 400 };

/* A queue of one batch. */
typedef struct Box {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    kiln_tensor *batch[BATCH];
    int full;
} Box;

static int failures; /* under a mutex */
static pthread_mutex_t failures_mutex = PTHREAD_MUTEX_INITIALIZER;

static void check(int ok, const char *what)
{
    if (ok)
        return;
    pthread_mutex_lock(&failures_mutex);
    failures++;
    pthread_mutex_unlock(&failures_mutex);
    fprintf(stderr, "%s: %s\n", what, kiln_error_message());
}

static void *maker(void *arg)
{
    static const float data[4] = {1, 2, 3, 4};
    Box *box = arg;
    for (int round = 0; round < ROUNDS; round++) {
        kiln_tensor *made[BATCH];
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(4), data);
        for (int i = 0; i < BATCH; i++) {
            x = i % 40 ? kiln_add(x, kiln_scalar(i)) : kiln_from(KILN_F32, KILN_SHAPE(4), data);
            made[i] = kiln_retain(x);
        }
        kiln_scope_end(scope);
        pthread_mutex_lock(&box->mutex);
        while (box->full)
            pthread_cond_wait(&box->changed, &box->mutex);
        for (int i = 0; i < BATCH; i++)
            box->batch[i] = made[i];
        box->full = 1;
        pthread_cond_broadcast(&box->changed);
        pthread_mutex_unlock(&box->mutex);
    }
    return NULL;
}

static void *taker(void *arg)
{
    Box *box = arg;
    for (int round = 0; round < ROUNDS; round++) {
        kiln_tensor *taken[BATCH];
        pthread_mutex_lock(&box->mutex);
        while (!box->full)
            pthread_cond_wait(&box->changed, &box->mutex);
        for (int i = 0; i < BATCH; i++)
            taken[i] = box->batch[i];
        box->full = 0;
        pthread_cond_broadcast(&box->changed);
        pthread_mutex_unlock(&box->mutex);
        kiln_scope *scope = kiln_scope_begin();
        double value = 0, last = 0;
        check(kiln_item(kiln_sum(taken[39]), &value) == KILN_OK, "sum");
        check(kiln_item(kiln_select(taken[0], 0, -1), &last) == KILN_OK, "last");
        check(value == 10 + 4 * 780 && last == 4, "a value"); /* 1 + 2 + ... + 39 = 780 */
        kiln_scope_end(scope);
        for (int i = 0; i < BATCH; i++)
            kiln_release(taken[i]);
    }
    return NULL;
}

int main(void)
{
    static Box boxes[PAIRS];
    pthread_t threads[2 * PAIRS];
    for (int i = 0; i < PAIRS; i++) {
        pthread_mutex_init(&boxes[i].mutex, NULL);
        pthread_cond_init(&boxes[i].changed, NULL);
        check(pthread_create(&threads[2 * i], NULL, maker, &boxes[i]) == 0, "a thread");
        check(pthread_create(&threads[2 * i + 1], NULL, taker, &boxes[i]) == 0, "a thread");
    }
    for (int i = 0; i < 2 * PAIRS; i++)
        pthread_join(threads[i], NULL);
    kiln_stats stats = stats_now();
    check(stats.live_bytes == 0, "bytes are left");
    check(stats.fallbacks == 0, "the interpreter ran");
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
