/*
 * Which tile a block of threads takes of a matrix product on a CUDA device: tables of them, and a model of what each costs. Nothing here changes
 * a result: each element is one chain over k, or over parts of k (cuda_part), whatever the tile.
 */
#ifndef JIT_CUDA_TILE_H
#define JIT_CUDA_TILE_H

#include "jit/cuda_target.h"

/* The two factors, each with the axis of the tile that only this one varies along. */
enum { ROWS, COLUMNS };

typedef struct CudaTile {
    int64_t warps[2], of_warp[2]; /* warps along each axis; rows and columns of one */
    int64_t depth;                /* k of a slice; for tensor cores where elements have two bytes */
    int64_t blocks;               /* that a multiprocessor holds of it, by registers and shared memory; 1: only if `copies` */
} CudaTile;

/* A product as far as is known when code is made. */
typedef struct CudaProduct {
    double batch;
    int64_t n[2], k, parts;
    int64_t bytes; /* of an element of a slice */
    bool tensor;   /* by tensor cores, else by fused multiply-adds */
    bool copies;   /* factors come to shared memory by cp.async, none through registers */
} CudaProduct;

enum { CUDA_MMA_TILES = 6, CUDA_FMA_TILES = 7 };
extern const CudaTile cuda_mma_tiles[CUDA_MMA_TILES], cuda_fma_tiles[CUDA_FMA_TILES];

int64_t cuda_tile_side(const CudaTile *t, int s);
int64_t cuda_tile_depth(const CudaProduct *p, const CudaTile *t);
/* Slices in shared memory: one is multiplied, the others are on their way. */
int64_t cuda_tile_slices(const CudaTarget *target, const CudaProduct *p, const CudaTile *t);
/* The clocks that a product takes by such tiles; what is not known of it may be 1. */
double cuda_tile_clocks(const CudaTarget *target, const CudaProduct *p, const CudaTile *t);
/* The one that takes least. */
const CudaTile *cuda_tile(const CudaTarget *target, const CudaProduct *p);

/* Has a multiprocessor room for what attention's gradient multiplies by tensor cores, with elements of 16 bits, so many of them in each row? */
bool cuda_chain_fits(const CudaTarget *target, int64_t width);

#endif
