/* fork while other threads compute: neither process may hang, and the child computes with a pool of its own. */
#include "api.h"
#include "tests/support/sanitizer.h"
#include "tests/support/seconds.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 1 << 18, FORKS = 15 };

static atomic_bool stop;

static void *compute(void *user)
{
    (void)user;
    while (!stop) {
        kiln_scope *scope = kiln_scope_begin();
        double sum;
        cr_assert(kiln_item(kiln_sum(kiln_uniform(KILN_F32, KILN_SHAPE(N), 0, 1)), &sum) == KILN_OK);
        kiln_scope_end(scope);
    }
    return NULL;
}

static bool child_computes(kiln_tensor *x, double k)
{
    double sum;
    test_seconds(20);
    if (!CHILD_MAY_ALLOCATE)
        return true;
    return kiln_item(kiln_sum(kiln_add(x, kiln_scalar(k))), &sum) == KILN_OK && sum == N * (k + 1);
}

Test(fork, while_other_threads_compute, .timeout = HANGS_AFTER(60))
{
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(N));
    cr_assert(kiln_eval(x) == KILN_OK);
    pthread_t thread[2];
    for (int i = 0; i < 2; i++)
        cr_assert(pthread_create(&thread[i], NULL, compute, NULL) == 0);
    for (int k = 0; k < FORKS; k++) {
        usleep(2000);
        pid_t child = fork();
        if (child == 0)
            _exit(child_computes(x, k) ? 0 : 1);
        int status = -1;
        cr_assert(child > 0 && waitpid(child, &status, 0) == child);
        cr_assert(status == 0, "child %d: %x", k, (unsigned)status);
    }
    stop = true;
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
}
