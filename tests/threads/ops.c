/*
 * An op of one's own that ends only when another thread is in it too: both are called, so neither evaluation waits for the other. Plain, and under each mode.
 * A plain program, so that it also runs under ThreadSanitizer.
 */
#include "kiln.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum { N = 16, TIMES = 60, WAIT_MS = 200000 }; /* TIMES: programs that were quick before have to be concurrent, too */

static atomic_int arrived, left, failures;

static kiln_status same(const kiln_type *in, kiln_type *out, const void *attributes, size_t bytes, void *user)
{
    (void)attributes, (void)bytes, (void)user;
    out[0] = in[0];
    return KILN_OK;
}

static kiln_status meet(const kiln_buffer *in, const kiln_buffer *out, const void *attributes, size_t bytes, void *user)
{
    const float *from = in[0].data;
    float *to = out[0].data;
    (void)attributes, (void)bytes, (void)user;
    int turn = atomic_fetch_add(&arrived, 1) / 2;
    for (int ms = 0; atomic_load(&arrived) < 2 * turn + 2; ms++) {
        if (ms == WAIT_MS)
            return kiln_op_fail("nobody else is here");
        usleep(1000);
    }
    for (int i = 0; i < N; i++)
        to[i] = from[i] + 1;
    return KILN_OK;
}

static void *work(void *user)
{
    const kiln_op *op = user;
    for (int k = 0; k < TIMES; k++) {
        double got = -1;
        kiln_scope *scope = kiln_scope_begin();
        kiln_mode *mode = k % 3 == 1 ? kiln_autocast_push(KILN_BF16) : k % 3 == 2 ? kiln_finite_check_push() : NULL;
        kiln_tensor *x = kiln_full(KILN_F32, KILN_SHAPE(N), k), *y;
        if (kiln_op_apply(op, &x, NULL, 0, &y) != KILN_OK || kiln_item(kiln_max(y), &got) != KILN_OK || got != k + 1) {
            atomic_fetch_add(&failures, 1);
            fprintf(stderr, "time %d: %g, expected %d (%s)\n", k, got, k + 1, kiln_error_message());
        }
        if (mode && kiln_mode_pop(mode) != KILN_OK)
            atomic_fetch_add(&failures, 1);
        kiln_scope_end(scope);
        for (atomic_fetch_add(&left, 1); atomic_load(&left) < 2 * (k + 1);) /* both go on to the next together */
            usleep(100);
    }
    return NULL;
}

int main(void)
{
    kiln_op_info info = {.name = "test.meet", .version = "1", .n_in = 1, .n_out = 1, .infer = same, .host = meet};
    const kiln_op *op = kiln_op_register(&info);
    pthread_t thread[2];
    if (!op)
        return 2;
    for (int i = 0; i < 2; i++)
        if (pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)op) != 0)
            return 2;
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    if (atomic_load(&failures) == 0)
        puts("all met");
    return atomic_load(&failures) != 0;
}
