/*
 * Attention on CUDA: what the walks share, that of many queries by tensor cores (cuda/attention.c) and by fused multiply-adds (cuda/attention_fma.c), and
 * that of few queries (cuda/decode.c, cuda/decode_fma.c).
 */
#ifndef JIT_LLVM_CUDA_ATTENTION_H
#define JIT_LLVM_CUDA_ATTENTION_H

#include "jit/llvm/cuda/tiles.h"

enum { QUERIES, KEYS, VALUES, MORE_QUERIES, MORE_KEYS, FACTORS }; /* the last two: of a second dot */
enum { ROWS_OF_THREAD = 2, MOST_ROWS_OF_THREAD = 4, VECTOR = 8, ATTEND_ROWS = TILE_WARPS * 16 };

typedef struct Factor {
    VRef v;              /* VREF_NONE: there is no such factor */
    uint32_t row, inner; /* axes */
    int64_t width;       /* elements of a row */
    int64_t rows, part;  /* of a slice: rows, and elements of each */
    int64_t pitch;
    const uint8_t *align; /* of whole accesses; NULL: there are none */
    bool async;
    LV guard; /* i1: they are whole in this launch; NULL: never */
} Factor;

/* Which of its warp's sums a thread has: of scores, and of means. */
typedef struct Layout {
    int rows, row_step;                              /* rows of a thread; from one to the next */
    int threads;                                     /* that have a row together */
    int apart[3];                                    /* bits in which their lanes differ; 0: no more */
    LV (*row)(Emit *e, const Product *p);            /* the first row, in the warp */
    LV (*key)(Emit *e, const Product *p, int64_t i); /* of score i of each row: which key of the block */
    int64_t (*sum)(int row, int64_t i);              /* the sum that is element i of a row */
} Layout;

struct Attend {
    VRef attend, dot[ATTEND_DOTS];
    uint32_t n_dots;
    Product dots; /* queries x keys; the product that has it is that of weights and values */
    Factor factor[FACTORS];
    const Layout *at;
    void (*walk)(Emit *e, Product *p); /* all keys of the task at hand */
    int64_t keys;                      /* that a warp scores at once */
    int64_t bytes;                     /* of shared memory */
    bool tf32;                         /* f32 is multiplied by tensor cores, as tf32 */
    bool stay;                         /* queries stay in shared memory */
    int64_t stages;                    /* slices of keys in shared memory (cuda/attention_chain.c) */
    int values_of;                     /* values are these keys as they lie: KEYS or MORE_KEYS; 0: others */
    LV parts;                          /* shared: how many there are */
    LV dot_sum[MOST_SUMS]; /* allocas, as those that follow: of each dot as many; scores and weights where those of the first were */
    LV most[MOST_ROWS_OF_THREAD], total[MOST_ROWS_OF_THREAD];
};

static inline LV f32_const(Emit *e, double value) { return LLVMConstReal(e->type[SC_F32], value); }

void attend_start(Emit *e, const Product *p);              /* nothing is summed yet */
LV attend_greater(Emit *e, LV a, LV b);                    /* without NaN */
bool attend_chains(const Emit *e, const Product *p);       /* no exponentials: a sum or the greatest of what scores are */
LV attend_row(Emit *e, const Product *p, LV v, bool most); /* of the threads that have a row together: the greatest, or the sum */
LV attend_base(Emit *e, LV most);                          /* what is taken away from scores */
LV attend_scale(Emit *e, LV most, LV base);                /* of what was summed with another most: exp(most - base) */
void attend_scores(Emit *e, const Product *p, LV k0);      /* dots become scores of keys k0..., where they are */
void attend_block_scores(Emit *e, const Product *p,
                         LV k0);                /* the same of ATTEND_BLOCK keys for all queries of the block: most are seen by all */
void attend_weights(Emit *e, const Product *p); /* scores become weights; what came before is scaled */
LV attend_pair(Emit *e, const Product *p, LV low, LV high); /* two f32 rounded to the factors' dtype: a register */
LV attend_share(Emit *e, const Product *p, LV total);       /* what sums are multiplied by at the end */
/* Rows `first`... of a factor, elements `column`... of each, on their way to `to`; rows from `end` on are zeros. */
void attend_bring(Emit *e, const Product *p, int which, LV first, LV end, LV column, LV to);
void attend_land(Emit *e, const Product *p);   /* what this thread has brought is there */
void attend_arrive(Emit *e, const Product *p); /* what all threads have brought is there, and they are done with what was before */
void attend_seen(Emit *e, const Product *p, int64_t block, LV *from, LV *to); /* blocks from *from to *to: all that some query sees */

/* Do scores take registers besides their own: is something read for each, or each query, or computed by many instructions? */
bool attend_heavy(const Emit *e, const Attend *a);

/*
 * cuda/attention_parts.c. Keys are cut in as many parts as fill the device once with `blocks` blocks a multiprocessor, or, so that the last wave of several
 * costs little, in at most `wave_parts` that fill it `waves` times (0: not that); in `most` at most, `least` keys each, multiples of `unit`.
 */
typedef struct KeyCut {
    int64_t blocks, waves, wave_parts, least, most, unit;
} KeyCut;
void attend_cut(Emit *e, Product *p, const KeyCut *c, LV tiles); /* parts of each of so many tiles of queries, at LV_TASK */
uint16_t attend_cut_node(Emit *e, const KeyCut *c, uint16_t tiles);
void attend_finish(Emit *e, Product *p); /* of a block whose keys are not cut: sums become means */

/* By tensor cores: dot number `dot` of rows and keys in shared memory (`held`: fragments of all rows, NULL: they are there, too); what is made of
 * weights, which lie where the dots were, and values in shared memory. */
void attend_add_dots(Emit *e, Product *p, uint32_t dot, const LV *held, LV rows, LV keys);
void attend_add_means(Emit *e, Product *p, LV values);

/* cuda/attention_chain.c. Where there are no values: a block's weights to what a thread has of a row in p->sum; of all threads of a row; that to where
 * the epilogue reads it. */
void emit_attention_chain(Emit *e, Product *p);
void attend_fold_block(Emit *e, const Product *p);
void attend_fold_rows(Emit *e, const Product *p);
void attend_put_rows(Emit *e, const Product *p, LV row, int64_t pitch);

/* cuda/attention_fma.c */
void emit_attention_fma(Emit *e, Product *p);

/* cuda/decode.c */
void emit_decode(Emit *e, Product *p);

#endif
