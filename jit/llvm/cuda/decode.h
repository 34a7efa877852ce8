/* Attention of few queries on CUDA: what its two walks share, by tensor cores (cuda/decode.c) and by fused multiply-adds (cuda/decode_fma.c). */
#ifndef JIT_LLVM_CUDA_DECODE_H
#define JIT_LLVM_CUDA_DECODE_H

#include "jit/llvm/cuda/attention.h"

enum { DECODE_WARPS = 4, DECODE_THREADS = DECODE_WARPS * WARP, DECODE_ROWS = 16 };

typedef struct Decode Decode;

/* A way to multiply. A warp has a band of the task's rows and a stripe of its keys: so many warps as there are bands have the same keys. */
typedef struct DecodeWay {
    int64_t vector;  /* elements of an access */
    int64_t span[2]; /* elements of a row that the threads of an access have: of keys and queries; of values */
    int64_t keys;    /* that a warp scores at once, as scores have them */
    int64_t rows;    /* of a band */
    void (*plan)(Emit *e, const Decode *d);
    /* Keys `from`..., of all stripes. `ahead`: what comes next is on its way, which takes more registers than single elements leave;
     * `full`: so do scores. */
    void (*walk)(Emit *e, const Decode *d, LV from, LV to, bool ahead, bool full);
    void (*most)(Emit *e, const Decode *d); /* of the warp's rows, to d->most */
    void (*put)(Emit *e, const Decode *d);  /* totals and means, scaled to the greatest of all stripes, to where those of warps are */
} DecodeWay;

struct Decode {
    Product *p;
    Attend *a;
    const DecodeWay *way;
    LV warp;            /* which one this is, i64 */
    LV bands;           /* of rows: 1, 2 or 4; number p->warp[ROWS] is this warp's */
    LV stripe, stripes; /* of keys; this warp's, and how many */
    LV most, totals;    /* shared: f32 of [warp][row] */
    LV word;            /* shared: 4 bytes */
    int64_t pitch;      /* of a row of means in shared memory */
    int64_t spans[2];   /* of rows of keys; of values */
    Ix batch[MAX_AXES]; /* coordinates of the head */
};

/* Elements `column` (counted in accesses)... of a row's span, as many as an access has, of the products' type. Zeros: of rows past the
 * end if `whole`, else whatever; of columns past the width. */
LV decode_row(Emit *e, const Decode *d, int which, LV row, LV end, int64_t span, LV column, bool whole);
LV decode_mean_at(Emit *e, const Decode *d, LV warp, LV row, LV column); /* shared, as those that follow; rows of the task */
LV decode_of_warp(Emit *e, LV stats, LV warp, LV row);                   /* of d->most or d->totals */
LV decode_most_of_warps(Emit *e, const Decode *d, LV row);

extern const DecodeWay decode_by_fma;

#endif
