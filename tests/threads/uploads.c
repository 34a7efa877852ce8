/*
 * Large inputs made by one thread, computed with by it and by another, and given up by whoever is last, while threads end and begin: on a
 * CUDA device these are streams that wait for each other, copies beside kernels, and memory that goes from stream to stream. Every sum is
 * right. A plain program, so that it also runs under ThreadSanitizer. Argument: the number of rounds.
 */
#include "kiln.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 3, LIVES = 2, N = (1 << 20) + 3, STRIDE = 4099, PICKED = N / STRIDE + 1 };

static int rounds = 10;
static atomic_int failures;
static kiln_tensor *handed[THREADS]; /* to thread k, owned; NULL: nothing */
static int handed_value[THREADS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of both */

static void expect_sum(kiln_tensor *sum, int value, const char *what)
{
    int64_t got = -1;
    if ((kiln_item_int(sum, &got) != KILN_OK || got != (int64_t)value * PICKED) && atomic_fetch_add(&failures, 1) < 10)
        fprintf(stderr, "%s: %lld, expected %lld (%s)\n", what, (long long)got, (long long)value * PICKED, kiln_error_message());
}

/* Leaves x for a thread; returns what lay there. */
static kiln_tensor *hand_over(int to, kiln_tensor *x, int *value)
{
    pthread_mutex_lock(&lock);
    kiln_tensor *before = handed[to];
    int before_value = handed_value[to];
    handed[to] = x;
    handed_value[to] = *value;
    pthread_mutex_unlock(&lock);
    *value = before_value;
    return before;
}

static void one_round(int thread, int round)
{
    static _Thread_local unsigned char data[N];
    const kiln_range every = {0, N, STRIDE};
    int value = 1 + (round * THREADS + thread) % 200, other = 0;
    memset(data, value, N);
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_from(KILN_U8, KILN_SHAPE(N), data);
    kiln_tensor *mine = kiln_sum(kiln_slice(x, 1, &every));
    if (kiln_eval(mine) != KILN_OK)
        expect_sum(mine, value, "own input");
    kiln_tensor *theirs = hand_over(thread, NULL, &other);
    if (theirs)
        expect_sum(kiln_sum(kiln_slice(theirs, 1, &every)), other, "another thread's input");
    kiln_release(theirs);
    int ignored = value;
    kiln_release(hand_over((thread + 1) % THREADS, kiln_retain(x), &ignored)); /* perhaps nobody computed with that one */
    if (round % 3 == 0)
        expect_sum(mine, value, "own input");
    kiln_scope_end(scope);
}

static void *work(void *user)
{
    for (int round = 0; round < rounds; round++)
        one_round(*(int *)user, round);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        rounds = atoi(argv[1]);
    for (int life = 0; life < LIVES; life++) { /* the second threads take over the streams of the first */
        pthread_t thread[THREADS];
        int number[THREADS];
        for (int k = 0; k < THREADS; k++) {
            number[k] = k;
            if (pthread_create(&thread[k], NULL, work, &number[k]) != 0)
                return 2;
        }
        for (int k = 0; k < THREADS; k++)
            pthread_join(thread[k], NULL);
    }
    for (int k = 0; k < THREADS; k++)
        kiln_release(handed[k]);
    printf("%d failures in %d rounds\n", atomic_load(&failures), LIVES * THREADS * rounds);
    return atomic_load(&failures) != 0;
}
