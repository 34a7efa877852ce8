/*
 * The CUDA target: how a kernel's points go to threads. Internal to jit/llvm/cuda*.c.
 *
 * The level scheme of build.h holds for one thread. What a thread is given:
 *
 *   no reductions    tiles of `lanes` consecutive points of the last x axis, grid-stride                 cuda/elementwise.c
 *                    squares of them, where inputs are transposed                                        cuda/transpose.c
 *   rows             lanes run along r: `group` threads share an x point, tile u of a row goes
 *                    to thread u % group                                                               cuda/reduce.c
 *   columns          lanes run along x, one a thread: threads (tx, tr), tr < `group` cut the r axis      cuda/reduce.c
 *   loops            columns, whose r axis one thread takes in its order                                cuda/reduce.c
 *   running sums     rows and columns; or blocks of threads share a line, by tickets                     cuda/scan.c
 *   contraction      a block of threads shares tiles of both operands                                   cuda/tiles.c
 *   sort             a block of threads sorts, then merges, items of lines                              cuda/sort.c
 *
 * Code is made in versions: one for whole, aligned tiles (16-byte accesses), chosen by a guard that the kernel evaluates
 * itself from pointers and sizes, and one that takes whatever comes.
 */
#ifndef JIT_LLVM_CUDA_CUDA_H
#define JIT_LLVM_CUDA_CUDA_H

#include "jit/cuda_target.h"
#include "jit/launch_plan.h"
#include "jit/llvm/build.h"

enum { CUDA_GLOBAL = 1, CUDA_SHARED = 3, WARP = 32, ELEMENTWISE_THREADS = 256, MOST_BYTES = 16 };
enum { CUDA_LIGHT_OPS = 56 }; /* a body of at most so many operations is unrolled, and leaves registers for large blocks */
/* Split sums of heavy bodies whose lanes are so few have so many tiles side by side. */
enum { CUDA_SPLIT_LANES = 2, CUDA_SPLIT_TILES = 4 };
/* Where a block of the order is several tasks, so many neighbouring lanes are one task's (32 bytes of f32), the next ones the next's. */
enum { CUDA_CUT_LANES = 8, CUDA_CUT_TILES = 8 };

/*
 * A tile of this thread whose code is interleaved with that of others (unrolling): what is remembered of the levels from
 * e->inner on, and where it stands. Loads of all copies are emitted before anything that uses them, so that they are
 * in flight together.
 */
typedef struct Copy {
    struct ValMemo *val;
    struct IxMemo *ix;
    uint32_t scope[LV_COUNT];
    LV before[LV_COUNT];
    Ix axis[MAX_AXES];
    LV flat, mask, inside, slot, partial;
    int cur;
} Copy;
Copy *copy_new(Emit *e);                 /* takes over what is remembered from now on; at an open level */
void copy_leave(Emit *e, Copy *c);       /* keeps the state */
void copy_enter(Emit *e, const Copy *c); /* and has it again */

/* cuda/cuda.c */
LV cuda_entry(Emit *e, const char *suffix, unsigned threads, unsigned min_blocks, LaunchPhase **phase);
void cuda_return(Emit *e);
LV cuda_special(Emit *e, const char *name); /* a special register as i64: "tid.x" */
/* cuda/divide.c. `size`: d (or 1 if it is less) as a node of the launch plan. */
LV cuda_divide(Emit *e, LV a, LV d, LV bound, uint16_t size); /* i64, 0 <= a < bound: in 32 bits where indices or the bound allow it */
LV cuda_quotient(Emit *e, LV a, LV d, uint16_t size);         /* as wide as an index */
LV divide_cuda(Emit *e, LV a, IRef size);

LV cuda_shared(Emit *e, uint64_t bytes, const char *name); /* static shared memory, aligned to 16 */
/* The same, of any size that a block may have: beyond what is static, the launch brings it. One of an entry. */
LV cuda_shared_by(Emit *e, LaunchPhase *phase, uint64_t bytes, const char *name);

/* cuda/plan.c */
void plan_cuda(Emit *e);
/* Which accesses of lanes along `axis` (AXIS_NONE: the flat r index) can be whole aligned tiles: fills e->tile_align. */
bool plan_align(Emit *e, uint32_t axis);
LV align_guard(Emit *e, uint32_t axis); /* i1: they are, in this launch */
uint32_t plan_ops(Emit *e);             /* scalar operations of the body, a point */
/* Tiles of a heavy body side by side, `most` or fewer: one is computed after another, but what the others have loaded waits in
 * registers, of which there are few to spare. Enough is asked for at once then. */
uint32_t heavy_tiles(Emit *e, const bool *loads, uint32_t most);
bool cuda_whole_tile(Emit *e, uint32_t i, uint32_t axis); /* can access i, for some pointers and sizes? */

/* cuda/registers.c: the text with the number of blocks that a multiprocessor is to hold, if it is `least` or more, for each entry that
 * says none; `bytes` (in and out) without the zero at its end. os_free; NULL: no memory. */
char *cuda_ask_for_blocks(const char *ptx, size_t *bytes, unsigned least);

/* cuda/memory.c */
Val load_cuda(Emit *e, DType dtype, Address at, const Val *pred);
void store_cuda(Emit *e, DType dtype, Address at, Val value, const Val *pred);
void fault_cuda(Emit *e, LV bad, LV to, LV id);
LV cuda_load_row(Emit *e, LLVMTypeRef element, Address at, int lane); /* at.align bytes apart: a vector from where this lane is */

/* cuda/approx.c */
bool approximate_cuda(Emit *e, Op op, DType rounded, const Val *in, Val *out);

/* cuda/reduce_tree.c: the order of reductions among the lanes of a thread and among threads */
typedef struct Threads {   /* of this thread; i64 */
    LV tid, block, blocks; /* number in its block, number of its block, blocks in all */
    LV t, local;           /* number in its group, which of the groups of the block */
    LV part;               /* which task of its block of the order, where that is several (Emit.cut) */
    LV shared;             /* room for one exchange */
} Threads;
uint64_t exchange_bytes(const Emit *e);      /* that any reduction needs of `shared` */
void partials_open(Emit *e, uint32_t stage); /* stacks of partial sums: of lanes (tree 0) and of blocks (tree 1) */
/* Leaf number `leaf` of a tree is done: in the accumulators (tree 0) or the chains (tree 1). Leaves come in the order in
 * which a walk down the tree from its root meets them. */
void partials_push(Emit *e, uint32_t stage, int tree, LV leaf);
void partials_pop(Emit *e, uint32_t stage, int tree, LV depth); /* the tree of 2^depth leaves, back to where they were */
void chain_open(Emit *e, uint32_t stage, LV from);              /* start values */
void chain_add(Emit *e, uint32_t stage);                        /* the total of one more block */
void chain_close(Emit *e, uint32_t stage);                      /* becomes the total */
void slots_join(Emit *e, uint32_t stage);                       /* the accumulators of a thread: to the first */
void slots_leave(Emit *e, uint32_t stage);                      /* which is the only one from now on */
/* Accumulators of all threads of a group become the total, which all of them know; or, where a block of the order is several tasks, the
 * totals of the first `left` threads, each of lanes `left` apart. By all threads of the block together. */
void reduce_group(Emit *e, const Threads *w, uint32_t stage, int left);
LV barrier(Emit *e);
/* i1, the same for all threads of the block, each of which calls it: has the last of `tasks` arrived at this counter of
 * ARG_SCRATCH, with all that they wrote? Leaves the counter zero then. `shared`: room for 4 bytes that nobody needs. */
LV last_to_arrive(Emit *e, LV tid, LV shared, LV counter, LV tasks);
void cuda_fence(Emit *e); /* of this thread's accesses, as the whole device sees them */
/* A scalar from the thread `by` (i32) further on in the group ("down"), from thread `by` of it ("idx"), from that whose
 * number differs in the bits of `by` ("bfly"). Groups of more than a warp: within the warp. */
LV cuda_shuffle(Emit *e, const char *mode, LV v, LV by);

/* cuda/reduce.c: may what is stored for a point lie where its inputs lay? Then there is a barrier before. */
bool overwrites_points(const Emit *e);

/* The x axes of rows: all but the one that tiles lie along. */
static inline uint32_t outer_axes(const Emit *e) { return e->tile_axis != NO_AXIS ? e->n_x - 1 : e->n_x; }

/* cuda/reduce.c: what its walks share with cuda/scan.c */
typedef struct Walk {
    Threads th;
    LV groups;      /* of x points */
    LV blocks;      /* split: blocks of the order that an x point has */
    LV alive;       /* i1: the thread's point is its own; NULL: always */
    LV leader;      /* i1: first of its group, and alive */
    uint32_t tiles; /* row in registers: tiles of a thread; 0: loops */
    uint32_t slots; /* accumulators that this needs for an ordered reduction */
    Copy **copies;
} Walk;

/* A tile that exists if `inside` (NULL: it does) holds; else it is where the tile at `instead` is. */
Copy *open_copy(Emit *e, LV flat, LV instead, LV inside, LV alive);
/* Tiles side by side: loads of all; then steps and operands of all, then effects of all. */
void copies_load(Emit *e, uint32_t stage, Copy **copies, uint32_t n);
void copies_run(Emit *e, uint32_t stage, Copy **copies, uint32_t n);
void seek_point(Emit *e, Walk *w, LV g); /* the point of this thread in x group g, and its coordinates */
void x_stores(Emit *e, const Walk *w);

/* cuda/scan.c: running sums by all threads of a group, or of several blocks */
enum {
    SCAN_SPLIT_THREADS = 256,
    SCAN_BLOCKS_PER_SM = 8,
    SCAN_COLUMN_THREADS = 640 /* for which a multiprocessor has 102 registers each */
};
const char *scan_serial(const Emit *e);           /* why one thread has to walk a line; NULL: a group may share it */
void scan_open_serial(Emit *e, uint32_t stage);   /* one thread a line, fast mode: its sums */
bool scan_cuda(Emit *e, VRef v, Val x, Val *sum); /* and the next element (Target.scan) */
bool stage_scans(const Emit *e, uint32_t stage);  /* does it need a running sum? */
uint64_t scan_exchange_bytes(const Emit *e);      /* of Threads.shared */
void scan_copies(Emit *e, const Walk *w, uint32_t stage, Copy **tiles, uint32_t n); /* a line in registers */
void scan_span(Emit *e, const Walk *w, uint32_t stage);                             /* a line of any length, step after step */
void scan_tasks(Emit *e, Walk *w);                                                  /* split: the walk over all lines */
void scan_launch(Emit *e, LaunchPhase *phase);                                      /* its grid, and bytes of ARG_SCRATCH */

/* The walks. */
void elementwise_copies(Emit *e, Copy **copies, uint32_t n); /* ops of all, then stores of all; closes LV_ROW */

/* cuda/transpose.c: inputs whose neighbours lie along another axis than the output's */
void plan_transposed(Emit *e);       /* after lanes and tile_align were chosen along the last axis; may lower them */
LV transposed_guard(Emit *e);        /* i1: besides that of the tiles */
uint16_t transposed_blocks(Emit *e); /* of threads, as a node of the launch plan */
void emit_transposed(Emit *e);
void emit_reductions(Emit *e);
void emit_contract_cuda(Emit *e);
void emit_sort_cuda(Emit *e);
void emit_attention_cuda(Emit *e);
/* Do neighbouring elements of this factor of a contraction lie along k? Decided by its first load that varies along k. */
bool cuda_steps_along_k(const Emit *e, VRef v);
void emit_threads(Emit *e); /* FORM_LOOPS: one of the others */

#endif
