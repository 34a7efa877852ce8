/* Attention on CUDA: what the walk of many queries (cuda_attention.c) and that of few (cuda_decode.c) share. */
#ifndef JIT_LLVM_CUDA_ATTENTION_H
#define JIT_LLVM_CUDA_ATTENTION_H

#include "jit/llvm/cuda_tiles.h"

enum { QUERIES, KEYS, VALUES, FACTORS };
enum { ROWS_OF_THREAD = 2, VECTOR = 8 };

typedef struct Factor {
    VRef v;
    uint32_t row, inner; /* axes */
    int64_t rows, width; /* of a slice, and elements of a row of it */
    int64_t pitch;
    const uint8_t *align; /* of whole accesses; NULL: there are none */
    bool async;
    LV guard; /* i1: they are whole in this launch; NULL: never */
} Factor;

struct Attend {
    VRef attend, dot;
    Product dots; /* queries x keys; the product that has it is that of weights and values */
    Factor factor[FACTORS];
    int64_t keys;                                                       /* that a warp scores at once */
    LV dot_sum[MOST_SUMS], most[ROWS_OF_THREAD], total[ROWS_OF_THREAD]; /* allocas */
};

static inline LV f32_const(Emit *e, double value) { return LLVMConstReal(e->type[SC_F32], value); }

void attend_start(Emit *e, const Product *p);               /* nothing is summed yet */
LV attend_greater(Emit *e, LV a, LV b);                     /* without NaN */
LV attend_row(Emit *e, LV v, bool most);                    /* of the four threads that have a row together: the greatest, or the sum */
LV attend_base(Emit *e, LV most);                           /* what is taken away from scores */
LV attend_scale(Emit *e, LV most, LV base);                 /* of what was summed with another most: exp(most - base) */
void attend_scores(Emit *e, const Product *p, LV k0);       /* dots become scores of keys k0..., where they are */
void attend_weights(Emit *e, const Product *p);             /* scores become weights; what came before is scaled */
LV attend_pair(Emit *e, const Product *p, LV low, LV high); /* two f32 rounded to the factors' dtype: a register */
LV attend_share(Emit *e, const Product *p, LV total);       /* what sums are multiplied by at the end */
void attend_seen(Emit *e, const Product *p, int64_t block, LV *from, LV *to); /* blocks from *from to *to: all that some query sees */

/* Do scores take registers besides their own: is something read for each, or each query, or computed by many instructions? */
bool attend_heavy(const Emit *e, const Attend *a);

/* cuda_decode.c */
void emit_decode(Emit *e, Product *p);

#endif
