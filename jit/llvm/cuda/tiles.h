/*
 * Matrix products on CUDA through shared memory: what cuda/tiles.c (tasks, the epilogue), cuda/slices.c (the factors on
 * their way) and the two ways to multiply (cuda/mma.c by tensor cores, cuda/fma.c by fused multiply-adds) share.
 */
#ifndef JIT_LLVM_CUDA_TILES_H
#define JIT_LLVM_CUDA_TILES_H

#include "jit/cuda_tile.h"
#include "jit/llvm/cuda/cuda.h"

enum { TILE_WARPS = 8, TILE_THREADS = TILE_WARPS * WARP, MOST_LOADS = 8, MOST_SUMS = 128 };
/* How a version of the code brings slices to shared memory. */
typedef struct Fetch {
    int lanes;               /* elements of an access */
    int64_t loads[2];        /* accesses of a thread; 0: one by one, in a loop of its own */
    const uint8_t *align[2]; /* e->tile_align */
    bool async[2];
    Copy *copy[2][MOST_LOADS];
    LV next[2][MOST_LOADS]; /* allocas: elements on their way */
} Fetch;

typedef struct Product Product;
typedef struct Attend Attend;

/* A way to multiply. */
typedef struct Multiply {
    LV (*factor)(Emit *e, const Product *p, int s); /* factor s at the coordinates set, as shared memory has it: e->lanes of them */
    void (*place)(Emit *e, Product *p);             /* this thread's part of the addresses in slices */
    void (*slices)(Emit *e, const Product *p, LV half, LV k0); /* the products of a slice, to p->sum */
    /* This thread's sums to p->shared, `pitch` elements a row; `row`: where the first row of its warp lies. */
    void (*put)(Emit *e, const Product *p, LV row, int64_t pitch);
} Multiply;

struct Product {
    const Multiply *how;
    VRef reduce, operand[2];
    DType type, acc; /* of slices; of sums */
    int axis[2];     /* NO_AXIS: one row, one column */
    bool along_k[2]; /* neighbours of a factor lie along k */
    bool keeps_k[2]; /* slices lie as [row][k]; else [k][row] */
    bool zeros;      /* k past the end is zero for both factors; else some number: not to be added */
    bool raw, async; /* a plain load of `type` goes to slices as it is; the device can copy by itself */
    bool one_by_one; /* where registers allow it, single elements are on their way all at once, too */
    /* the tile */
    int64_t warps[2], of_warp[2], side[2]; /* warps along each axis; rows and columns of one; of all */
    int64_t depth, pad[2];                 /* k of a slice; elements between its rows */
    int64_t slices;                        /* in shared memory, where both factors are copied there; else two */
    int64_t fragments[2];                  /* of a thread; the meaning is `how`'s */
    uint32_t sums;                         /* of a thread */
    unsigned min_blocks;                   /* that a multiprocessor shall have room for */
    LLVMTypeRef element;                   /* of slices */
    LV n[2], n_k, tiles[2];                /* sizes; tiles along each */
    uint16_t tiles_node[2];                /* as nodes of the launch plan */
    LV first[2];                           /* row and column of the task */
    bool splits;                           /* sums over k may be cut into parts */
    LV parts, part_k;                      /* how many, k of each */
    LV part, k0, k1;                       /* of the task: its part, and from where to where that goes */
    LV tid, lane, warp[2];                 /* this thread: number, lane, row and column of its warp */
    LV place[2];                           /* which element of a slice is this thread's first one */
    LV shared;
    Fetch fetch;
    LV sum[MOST_SUMS]; /* allocas */
    Attend *attend;    /* the sums are those of an attention; NULL: of a product */
};

static inline int64_t element_bytes(const Product *p) { return (int64_t)dtype_bytes(p->type); }

static inline LV const_i32(Emit *e, int64_t v) { return LLVMConstInt(e->type[SC_I32], (uint64_t)v, 0); }

static inline LV both(Emit *e, LV a, LV b) { return LLVMBuildAnd(e->b, a, b, ""); }

/* cuda/tiles.c */
int64_t axis_hint(const Emit *e, int axis); /* 1 without an axis */
/* reduce, operand, type (that of the factors) and axes: rows are what only the first factor varies along, columns what only
 * the second does; all other axes are batch. */
void find_product(const Emit *e, Product *p);
/* Of products of `type`: sets warps, of_warp, side, depth, slices, sums, min_blocks. */
void tiles_choose(const Emit *e, Product *p, bool tensor);
void emit_tiles(Emit *e, Product *p);
void tiles_sizes(Emit *e, Product *p);           /* of the product, and tiles along each side; at LV_TASK */
LV tiles_task(Emit *e, Product *p, LV number);   /* the tile of task `number` (NULL: of the block's own number), and its part of k */
void tiles_locate(Emit *e, Product *p, LV tile); /* where this thread stands, and its tile */

/* cuda/parts.c */
int64_t parts_hint(const Emit *e);                                             /* how many there will be, as far as hints go */
void plan_parts(Emit *e, Product *p);                                          /* sets p->splits, part_k, parts; at LV_TASK */
uint16_t parts_node(Emit *e);                                                  /* parts, for the launch plan */
void parts_scratch(Emit *e, const Product *p, uint16_t tasks, uint16_t parts); /* bytes of ARG_SCRATCH */
/* Sums of the task's part of a tile, to the scratch. i1, the same for all threads of the block: is nothing missing of the tiles that
 * are to be finished together (`tile` and every PARTS_COUNTERS-th)? */
LV leave_sums(Emit *e, const Product *p, LV tile, LV tiles);
void take_parts(Emit *e, Product *p, LV tile); /* p->sum = the parts' sums, added up in order */
enum { PARTS_COUNTERS = GRID_COUNTER_BYTES / 4 };

/* cuda/attention.c */
int64_t attend_bytes(const Product *p);    /* of shared memory */
void attend_open(Emit *e, Product *p);     /* at LV_TASK */
LV attend_none(Emit *e, const Product *p); /* what sums are of no keys */
void attend_keys(Emit *e, Product *p);     /* all keys of the task at hand, to p->sum, where that is */

/* cuda/attention_parts.c: of a block of queries. What a thread has besides its sums, MOST_STATES at most, as allocas; part 0 was in sums and those: a later
 * part's numbers, in that order, are added. */
enum { MOST_STATES = 8 };
void attend_plan_parts(Emit *e, Product *p);
LV attend_parts(Emit *e, const Product *p); /* p->parts, of a product that splits, from shared memory: sums need the registers before */
uint16_t attend_parts_node(Emit *e);
uint32_t attend_left(const Product *p, LV *out);
void attend_merge(Emit *e, const Product *p, const LV *part);
void attend_divide(Emit *e, Product *p); /* cuda/attention.c: sums become means */

/* cuda/seen.c */
typedef struct Rectangle { /* of rows and columns, all included */
    uint32_t axis[2];
    LV first[2], last[2];
} Rectangle;
LV never_seen(Emit *e, const Rectangle *r,
              VRef score); /* i1: no key (COLUMNS) has a weight for a query (ROWS); NULL: nothing tells. Both coordinates aside */
LV always_seen(Emit *e, const Rectangle *r, VRef score);   /* i1: scores, a `where`, are its first choice; NULL: nothing tells */
LV never_weighs(Emit *e, const Rectangle *r, VRef weight); /* the same, of a weight itself, which is 0 then */

/* cuda/slices.c */
void mark_operands(Emit *e, VRef v, bool *mark); /* v and all that it is made of */
/* Which of the loads that v is made of can be whole aligned accesses of e->lanes along an axis (e->tile_align). Is some? */
bool align_operand(Emit *e, VRef v, uint32_t axis, const uint8_t **align);
void copy_to_shared(Emit *e, VRef load, LV to, LV exists); /* cp.async of e->lanes elements; where not `exists` (NULL: always) zeros */
void wait_copies(Emit *e);
int64_t slice_pitch(const Product *p, int s); /* elements from one of its rows to the next */
int64_t slice_bytes(const Product *p, int s);
bool is_plain(const Emit *e, const Product *p, int s); /* may the device copy factor s as it is? */
bool plan_fetch(Emit *e, Product *p, bool vector);     /* sets p->fetch; is some access a whole aligned tile? */
LV fetch_guard(Emit *e, Product *p);                   /* i1: this launch's slices can come whole */
LV divides(Emit *e, LV n, int by);                     /* i1: `by`, a power of two, divides n */
Ix lanes_from(Emit *e, LV base, bool lanes);           /* a coordinate: of e->lanes neighbours from `base` on if `lanes` */
void add_products(Emit *e, Product *p);                /* all k of the task at hand, to p->sum */

/* cuda/mma.c, cuda/fma.c: the plan of a tile; false: not by this one */
bool plan_mma(Emit *e, Product *p);
/* What of tensor cores an attention uses: two products, of warps one below the other. */
VRef mma_factor(const Emit *e, VRef v); /* v, or what it was widened from */
void mma_plan(Emit *e, Product *p, DType type, const int64_t fragments[2], int64_t depth, bool along_k);
void mma_place(Emit *e, Product *p);
int64_t mma_step(const Product *p);
void mma_load(Emit *e, const Product *p, int s, LV slice, int64_t first, int64_t k, int registers, LV *out);
void mma_round(Emit *e, const Product *p, LV *v, int n); /* words of f32: to tf32; of other products they stay as they are */
void mma_add(Emit *e, const Product *p, const LV *a, const LV *b, const LV *sum);
bool plan_fma(Emit *e, Product *p);

#endif
