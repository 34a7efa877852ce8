/*
 * Tiles of matrix products on CUDA, and the model that chooses one. A product takes as long as the multiprocessor with the most tasks, each a
 * tile and a part of k. What a multiprocessor does at once is as fast as the slowest of
 *
 *     multiplications     of tensor cores or fused multiply-adds
 *     shared memory       what warps read of slices, and slices written there
 *     L2                  the rows and columns of a tile that there are, from the cache beyond
 *     latency             a slice is asked for while the slices before it are multiplied, and its block waits for it if they take less time
 *
 * What comes after the sums is added: they go through shared memory to the result; parts of them to memory, and the last block of a tile
 * reads them all.
 *
 *     clocks = max(tasks * k * max(multiply, shared, L2), turns * slices * latency / (slices on their way)) + sums
 *
 * How many multiprocessors there are is a fact of the target, so part of the key. What a device does in a clock are figures of its maker where
 * there are some, and what others measured: L2 and the latency on an H100, and that mma.sync has 0.65 of the rate of its tensor cores there.
 */
#include "jit/cuda_tile.h"

#include <stddef.h>

enum {
    THREADS = 256, /* of a block */
    MOST_SLICES = 4,
    ROW_PAD = 16,      /* bytes between rows of a slice */
    THREAD_SUMS = 256, /* bytes of a thread; half as many where one has eight */
    FMA_A_CLOCK = 128,
    L2_A_CLOCK = 24,      /* bytes that reach a multiprocessor where all of them ask */
    ALONE_A_CLOCK = 40,   /* where few do */
    SHARED_A_CLOCK = 128, /* bytes */
    LATENCY = 700,
    TASK = 1000,     /* clocks of a task beside its k */
    ARRIVAL = 1500,  /* of a part: its fence and its counter */
    UNITS_DOWN = 4,  /* of a warp that multiplies by fused multiply-adds: rows that its lanes read at once */
    UNITS_ACROSS = 8 /* and columns */
};

const CudaTile cuda_mma_tiles[CUDA_MMA_TILES] = {
    {{2, 4}, {64, 64}, 32, 1}, /* 128 x 256 */
    {{2, 4}, {64, 32}, 32, 2}, /* 128 x 128 */
    {{2, 4}, {32, 16}, 32, 4}, /* 64 x 64 */
    {{2, 4}, {16, 8}, 32, 5},  /* 32 x 32 */
    {{1, 8}, {16, 16}, 32, 3}, /* 16 x 128 */
    {{8, 1}, {16, 16}, 32, 3}, /* 128 x 16 */
};

const CudaTile cuda_fma_tiles[CUDA_FMA_TILES] = {
    {{4, 2}, {32, 64}, 8, 2},  /* 128 x 128 */
    {{4, 2}, {32, 32}, 16, 2}, /* 128 x 64 */
    {{4, 2}, {16, 64}, 16, 2}, /* 64 x 128 */
    {{4, 2}, {16, 32}, 16, 3}, /* 64 x 64 */
    {{8, 1}, {4, 32}, 32, 5},  /* 32 x 32 */
    {{1, 8}, {4, 32}, 8, 5},   /* 4 x 256 */
    {{8, 1}, {16, 8}, 16, 5},  /* 128 x 8 */
};

static int64_t at_most(int64_t n, int64_t most) { return n < most ? n : most; }
static double greater(double a, double b) { return a > b ? a : b; }
/* Rounds up; neither is negative. */
static double turns(double n, double by) { return (double)(int64_t)((n + by - 1) / by); }

int64_t cuda_tile_side(const CudaTile *t, int s) { return t->warps[s] * t->of_warp[s]; }
int64_t cuda_tile_depth(const CudaProduct *p, const CudaTile *t) { return p->tensor ? t->depth * 2 / p->bytes : t->depth; }

int64_t cuda_tile_slices(const CudaTarget *target, const CudaProduct *p, const CudaTile *t)
{
    int64_t rows = cuda_tile_side(t, ROWS) + cuda_tile_side(t, COLUMNS), each = rows * (cuda_tile_depth(p, t) * p->bytes + ROW_PAD);
    int64_t n = p->copies ? (cuda_shared_memory(target) / t->blocks - CUDA_SHARED_BLOCK) / each : 2;
    return n < 2 ? 2 : at_most(n, MOST_SLICES);
}

/* Do the sums of a thread fit its registers? */
static bool sums_fit(const CudaProduct *p, const CudaTile *t)
{
    int64_t sums = cuda_tile_side(t, ROWS) * cuda_tile_side(t, COLUMNS) / THREADS;
    if (t->blocks == 1 && !p->copies)
        return false;
    return p->tensor || sums * p->bytes <= THREAD_SUMS / (p->bytes == 8 ? 2 : 1);
}

/* Clocks of a multiprocessor for one k of a tile. */
static double multiply(const CudaTarget *target, const CudaProduct *p, const CudaTile *t)
{
    double rows = (double)cuda_tile_side(t, ROWS), columns = (double)cuda_tile_side(t, COLUMNS), bytes = (double)p->bytes;
    double warps = (double)(t->warps[ROWS] * t->warps[COLUMNS]), m = (double)t->of_warp[ROWS], n = (double)t->of_warp[COLUMNS];
    if (p->tensor) {
        double tensor = rows * columns / (double)cuda_tensor_rate(target) * bytes / 2;
        double shared = (warps * (m + n) + rows + columns) * bytes / SHARED_A_CLOCK;
        return greater(tensor, shared);
    }
    /* reads of shared memory take their turns with the multiplications */
    return rows * columns / FMA_A_CLOCK * bytes / 4 + warps / 4 * (m / UNITS_DOWN + n / UNITS_ACROSS);
}

double cuda_tile_clocks(const CudaTarget *target, const CudaProduct *p, const CudaTile *t)
{
    double bytes = 0, there = 1, all = (double)p->batch, side = 1, sms = (double)cuda_multiprocessors(target);
    double parts = (double)p->parts, k = turns((double)p->k, parts);
    for (int s = 0; s < 2; s++) {
        double n = (double)at_most(cuda_tile_side(t, s), p->n[s] > 1 ? p->n[s] : 1);
        all *= turns((double)p->n[s], (double)cuda_tile_side(t, s));
        side *= (double)cuda_tile_side(t, s);
        bytes += n * (double)p->bytes;
        there *= n;
    }
    double tasks = turns(all * parts, sms), tiles = turns(all, sms), sums = side * (p->bytes > 4 ? 8 : 4);
    double each = greater(multiply(target, p, t), bytes / L2_A_CLOCK);
    double slices = turns(k, (double)cuda_tile_depth(p, t)), on_their_way = (double)cuda_tile_slices(target, p, t) - 1;
    double blocks = (double)at_most(t->blocks, cuda_room(target) / cuda_multiprocessors(target) / THREADS);
    double clocks = greater(tasks * k * each, turns(tasks, blocks) * slices * LATENCY / on_their_way);
    clocks += tiles * (2 * sums / SHARED_A_CLOCK + there * (double)p->bytes / L2_A_CLOCK + TASK);
    if (p->parts > 1)
        clocks += tasks * sums / L2_A_CLOCK + tiles * parts * sums / ALONE_A_CLOCK + ARRIVAL;
    return clocks;
}

const CudaTile *cuda_tile(const CudaTarget *target, const CudaProduct *p)
{
    const CudaTile *tiles = p->tensor ? cuda_mma_tiles : cuda_fma_tiles, *best = NULL;
    double least = 0;
    for (int i = 0; i < (p->tensor ? CUDA_MMA_TILES : CUDA_FMA_TILES); i++) {
        double clocks = cuda_tile_clocks(target, p, &tiles[i]);
        if (sums_fit(p, &tiles[i]) && (!best || clocks < least))
            best = &tiles[i], least = clocks;
    }
    return best;
}

/* 128 rows of two dots, and of three factors a slice of 32 keys (jit/llvm/cuda/attention_chain.c). */
bool cuda_chain_fits(const CudaTarget *target, int64_t width)
{
    return (2 * 128 + 3 * 32) * 2 * (width + 8) <= cuda_shared_memory(target) - CUDA_SHARED_BLOCK;
}
