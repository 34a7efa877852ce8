/*
 * all_reduce of kiln beside MPI's own, in one process: mpirun -n 2 bench/ranks [--quick]
 *
 * In turns, on the same communicator's ranks: MPI_Allreduce; MPI_Iallreduce, asked with MPI_Test until it is done, which is what the
 * backend does; and kiln, a kiln_function of CHAIN all_reduces of which each takes the last one's result, so that a row is what one of them
 * takes, without recording. Medians over rounds. Then a step that makes many small gradients and sums them over the ranks
 * (kiln_parallel_gradients), with what it moves in memory.
 */
#include <kiln.h>
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { CHAIN = 16, MOST = 200, GRADIENTS = 64 };

static kiln_group *world;

static void sums(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = in[0];
    for (int k = 0; k < CHAIN; k++)
        out[0] = kiln_all_reduce(world, out[0], KILN_REDUCE_SUM);
}

static int less(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, less);
    return x[n / 2];
}

/* Memory as kiln's: aligned, in large pages where there are some. */
static float *zeros(int64_t n)
{
    const size_t bytes = (size_t)n * sizeof(float), huge = 2 << 20;
    void *block;
    if (posix_memalign(&block, bytes >= huge ? huge : 64, bytes))
        exit(1);
    if (bytes >= huge)
        (void)madvise(block, bytes, MADV_HUGEPAGE);
    return memset(block, 0, bytes);
}

static void plain(float *x, float *y, int n)
{
    for (int k = 0; k < CHAIN; k++)
        MPI_Allreduce(k % 2 ? y : x, k % 2 ? x : y, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void polled(float *x, float *y, int n)
{
    for (int k = 0; k < CHAIN; k++) {
        MPI_Request request;
        int done = 0;
        MPI_Iallreduce(k % 2 ? y : x, k % 2 ? x : y, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
        while (!done)
            MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    }
}

/* Products, of which means over the ranks are taken from as many parameters. */
static void gradients(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor **w = user, *g[GRADIENTS];
    for (int k = 0; k < GRADIENTS; k++)
        g[k] = kiln_matmul(in[0], kiln_add(in[0], k));
    if (kiln_parallel_gradients(world, g, GRADIENTS) != KILN_OK)
        exit(1);
    for (int k = 0; k < GRADIENTS; k++)
        if (kiln_assign(w[k], kiln_sub(w[k], kiln_mul(g[k], 1e-9))) != KILN_OK)
            exit(1);
    out[0] = kiln_zeros(KILN_F32, KILN_SHAPE());
}

static int small_gradients(int64_t side, int rounds)
{
    static kiln_tensor *w[GRADIENTS];
    double t[MOST];
    kiln_stats before, after;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_full(KILN_F32, KILN_SHAPE(side, side), 1e-3), *out;
    for (int k = 0; k < GRADIENTS; k++)
        w[k] = kiln_param(kiln_zeros(KILN_F32, KILN_SHAPE(side, side)));
    kiln_function *f = kiln_function_new(gradients, 1, 1, w);
    if (kiln_eval(x) != KILN_OK)
        return 1;
    for (int r = -3; r < rounds; r++) {
        kiln_scope *inner = kiln_scope_begin();
        MPI_Barrier(MPI_COMM_WORLD);
        kiln_get_stats(&before);
        double began = MPI_Wtime();
        if (kiln_function_call(f, &x, &out) != KILN_OK || kiln_eval(out) != KILN_OK) {
            fprintf(stderr, "%s\n", kiln_error_message());
            return 1;
        }
        if (r >= 0)
            t[r] = MPI_Wtime() - began;
        kiln_get_stats(&after);
        kiln_scope_end(inner);
    }
    if (kiln_group_rank(world) == 0)
        printf("%d gradients of %lld x %lld: %.1f us a step, %lld launches, %.2f MB read and written\n", GRADIENTS, (long long)side,
               (long long)side, median(t, rounds) * 1e6, (long long)(after.kernels - before.kernels),
               (double)(after.bytes_moved - before.bytes_moved) * 1e-6);
    kiln_function_free(f);
    kiln_scope_end(scope);
    return 0;
}

int main(int argc, char **argv)
{
    static const int64_t sizes[] = {2, 256, 16 << 10, 256 << 10, 4 << 20};
    int quick = argc > 1 && !strcmp(argv[1], "--quick");
    if (!(world = kiln_group_world(NULL))) {
        fprintf(stderr, "%s\n", kiln_error_message());
        return 1;
    }
    if (kiln_group_rank(world) == 0)
        printf("%10s %14s %14s %14s %10s %12s\n", "bytes", "MPI_Allreduce", "MPI_Iallreduce", "kiln", "over plain", "GB/s");
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const int64_t n = sizes[s];
        int rounds = n > 100000 ? 9 : quick ? 50 : MOST;
        double t[3][MOST];
        float *x = zeros(n), *y = zeros(n);
        kiln_scope *scope = kiln_scope_begin();
        kiln_function *f = kiln_function_new(sums, 1, 1, NULL);
        kiln_tensor *in = kiln_zeros(KILN_F32, KILN_SHAPE(n)), *out;
        if (kiln_eval(in) != KILN_OK)
            return 1;
        for (int r = -3; r < rounds; r++) {
            kiln_scope *inner = kiln_scope_begin();
            double at[4];
            MPI_Barrier(MPI_COMM_WORLD);
            at[0] = MPI_Wtime();
            plain(x, y, (int)n);
            at[1] = MPI_Wtime();
            polled(x, y, (int)n);
            at[2] = MPI_Wtime();
            kiln_status status = kiln_function_call(f, &in, &out);
            if (status == KILN_OK)
                status = kiln_eval(out);
            at[3] = MPI_Wtime();
            if (status != KILN_OK) {
                fprintf(stderr, "%s\n", kiln_error_message());
                return 1;
            }
            for (int k = 0; k < 3 && r >= 0; k++)
                t[k][r] = (at[k + 1] - at[k]) / CHAIN;
            kiln_scope_end(inner);
        }
        double m[3];
        for (int k = 0; k < 3; k++)
            m[k] = median(t[k], rounds);
        if (kiln_group_rank(world) == 0)
            printf("%10lld %11.2f us %11.2f us %11.2f us %10.2f %12.2f\n", (long long)n * 4, m[0] * 1e6, m[1] * 1e6, m[2] * 1e6,
                   m[2] / m[0], (double)n * 4 / m[2] / 1e9);
        kiln_function_free(f);
        kiln_scope_end(scope);
        free(x);
        free(y);
    }
    for (int64_t side = 8; side <= 128; side *= 4)
        if (small_gradients(side, quick ? 50 : MOST))
            return 1;
    return kiln_barrier(world) != KILN_OK;
}
