/*
 * The walk of contractions by tensor cores: what cuda_mma.c (whether, tasks, the epilogue) and
 * cuda_mma_slices.c (the factors on their way) share.
 */
#ifndef JIT_LLVM_CUDA_MMA_H
#define JIT_LLVM_CUDA_MMA_H

#include "jit/llvm/cuda.h"

enum { MMA_THREADS = 8 * WARP, MOST_FRAGMENTS = 4, MOST_LOADS = 2 };
/* The two factors, each with the axis of the tile that only this one varies along. */
enum { ROWS, COLUMNS };

typedef struct Shape {
    int64_t rows, columns, m, n; /* warps; fragments of each */
} Shape;

/* How a version of the code brings slices to shared memory. */
typedef struct Fetch {
    int lanes;               /* 1: one by one, in a loop of its own */
    int64_t depth, loads[2]; /* k of a slice; accesses of a thread */
    int64_t stage;           /* bytes of half the shared memory */
    const uint8_t *align[2]; /* e->tile_align */
    bool async[2];
    Copy *copy[2][MOST_LOADS];
    LV next[2][MOST_LOADS]; /* allocas: elements on their way */
} Fetch;

typedef struct Product {
    VRef reduce, operand[2];
    DType type;             /* of the factors: F16, BF16, F32 for tf32 */
    bool short_k;           /* sm_75: instructions over 8 k instead of 16 */
    int axis[2];            /* NO_AXIS: one row, one column */
    LV n[2], n_k, tiles[2]; /* sizes; tiles along each */
    LV first[2];            /* row and column of the task */
    const Shape *shape;
    int64_t side[2];       /* of the tile */
    bool along_k[2];       /* slices lie as [row][k] */
    LV tid, lane, warp[2]; /* this thread: number, lane, row and column of its warp */
    LV fragment[2];        /* which element of a slice this lane's first fragment begins at */
    LV shared;
    Fetch fetch;
    LV sum[MOST_FRAGMENTS][MOST_FRAGMENTS][4];
} Product;

static inline int64_t element_bytes(const Product *p)
{
    return (int64_t)dtype_bytes(p->type);
}

static inline LV i32(Emit *e, int64_t v)
{
    return LLVMConstInt(e->type[SC_I32], (uint64_t)v, 0);
}

static inline LLVMTypeRef element_type(Emit *e, const Product *p)
{
    return e->type[p->type == DT_F32 ? SC_I32 : SC_I16];
}

/* A coordinate: of e->lanes neighbours from `base` on if `lanes`. */
static inline Ix lanes_from(Emit *e, LV base, bool lanes)
{
    return lanes && e->lanes > 1 ? (Ix){.base = base, .stride = l_i64(e, 1), .aligned = true}
                                 : ix_uniform(base);
}

/* cuda_mma_slices.c */
bool plan_fetch(Emit *e, Product *p,
                bool vector);           /* sets p->fetch; is some access a whole aligned tile? */
LV fetch_guard(Emit *e, Product *p);    /* i1: this launch's slices can come whole */
LV divides(Emit *e, LV n, int by);      /* i1: `by`, a power of two, divides n */
void add_products(Emit *e, Product *p); /* all k of the task at hand, to p->sum */

#endif
