/*
 * The state of one kernel's translation to LLVM IR, and thin helpers over the LLVM builder.
 * Internal to jit/llvm.
 *
 * Where code goes. A kernel function is a nest of four levels:
 *
 *     LV_TASK   once per call of run                arguments, sizes, what depends on no axis
 *     LV_ROW    once per point of the outer x axes  (every x axis where lanes run along r)
 *     LV_TILE   once per tile of the last x axis    `lanes` consecutive x points; absent where
 *                                                   lanes run along r
 *     LV_R      once per step of the flat r loop
 *
 * Values and index expressions are emitted on demand (value(), index_of()), each at the outermost
 * level that knows all it depends on: `before[level]` is the branch that enters the next inner
 * loop, and code of that level is put in front of it, however deep the place that asked. So
 * loop-invariant code is hoisted by construction, and nothing is emitted that nobody needs. A
 * result is remembered for as long as its level's scope is open (`scope[level]` numbers the
 * instances). Only straight-line code is emitted this way. What has effects (stores, reduction
 * steps) is emitted in order by cpu/loops.c.
 *
 * A value is uniform (one scalar for all lanes) or a vector of `lanes` elements.
 * Nothing here may be marked nsw, nuw, exact or fast: user data reaches it.
 */
#ifndef JIT_LLVM_BUILD_H
#define JIT_LLVM_BUILD_H

#include "jit/dot_facts.h"
#include "jit/kernel_facts.h"
#include "jit/nest.h"
#include "jit/options.h"
#include "jit/overlap.h"
#include "jit/pieces.h"
#include "jit/schedule.h"
#include <llvm-c/Core.h>
#include <string.h>

enum { LV_TASK, LV_ROW, LV_TILE, LV_R, LV_COUNT };
enum { MAX_LANES = MOST_LANES, MAX_AXES = 32 };
enum { JOINED_ANY = -1 }; /* Schedule.joined, while the code for `join_below` is emitted: rows have as many points as the axis has then */

typedef LLVMValueRef LV;
typedef struct Emit Emit;
typedef struct Target Target;
typedef struct CudaTarget CudaTarget;
typedef struct LaunchBuilder LaunchBuilder;
typedef struct Carry Carry;

/* A value in registers: f16 and bf16 as I16 bits, bool as i1. */
typedef struct Val {
    LV v;
    LV wide; /* f32 that v was rounded from, where readers may use that (KInst.unrounded); or NULL */
    bool vec;
} Val;

/*
 * Of a coordinate that was divided, the lanes: runs of `length`, each of which is linear and begins a step behind the one before. Lane t is
 *
 *     first + ((at + t) % length - at) * stride + (at + t) / length * step        0 <= at < length
 *
 * Sums of what comes from one division (`of`) are like that, too: so loads of x[t / 56 * 58 + t % 56] need no gather (cpu/memory.c).
 */
typedef struct Runs {
    LV first, stride, step; /* uniform; first: in an Address a pointer; NULL: not known to be like that */
    LV of, at, length;      /* NULL: linear, one run, which has no step */
    IRef size;              /* of length, where there is one */
} Runs;

/* An index, of type Emit.index (as the walks set them: of i64): lane l has base + l * stride. stride NULL: uniform. `many`: base
 * is a vector, stride NULL. */
typedef struct Ix {
    LV base, stride;
    bool many;
    bool aligned; /* base is a multiple of the lane count and `past`, and stride is 1 */
    int64_t past;
    Runs runs; /* of many */
} Ix;

typedef struct StackPlace {
    LV at; /* of this function; NULL: not yet */
    unsigned bytes;
} StackPlace;

typedef struct Reduction { /* see reduce.c */
    VRef inst;
    uint8_t fold, stage;
    uint8_t in, acc_type;           /* dtypes of the operand and of the accumulator */
    bool ordered;                   /* float sum or product: its order shows */
    bool arg;                       /* argmax, argmin */
    uint32_t slots;                 /* accumulators: vectors of `lanes` elements (CUDA: of one thread) */
    int64_t scratch;                /* offset of the slots in the thread's scratch; -1: on the stack */
    int64_t strip, strip_folded;    /* offset of its strips, and the number of that which all rows are folded to (cpu/strips.c) */
    LV acc, acc_at;                 /* the slots: values, and for arg the flat indices */
    LV total, total_at;             /* results of the blocks so far */
    bool extreme;                   /* steps are those of cpu/extreme.c */
    LV sign, nan;                   /* its state beside the slot */
    LV totals;                      /* the same, of each column (cpu/columns.c) */
    LV partials[2], partials_at[2]; /* CUDA: stacks of partial sums, of lanes and of blocks: subtrees that wait for their other half */
    LV chain, chain_at;             /* CUDA: blocks of one lane so far */
    LV part, part_at;               /* split: byte offsets into the shared scratch (i64) */
} Reduction;

/* Points [from, to) of the r axes; first (i1): what is folded of them are the first totals. outermost: no block is around them. */
typedef struct Folded {
    LV from, to, first;
    bool outermost;
} Folded;

/* Tiles [from, to) of the points [begin, end) of a row; begin NULL: of all of it. passed: tiles of the pieces before. */
typedef struct Stretch {
    LV begin, end, from, to, passed;
} Stretch;

/* A tile of the rows [from, to) of a band. */
typedef struct Band {
    LV tile, from, to;
} Band;

/* Shares [from, to) of the places of a scatter: cpu/shares.c. */
typedef struct Shares {
    LV from, to;
} Shares;

/* One of the rows of windows in a tile: cpu/overlap.c. */
typedef struct OverlapRow {
    LV first;                     /* the coordinate of the first one, */
    int64_t at;                   /* behind which this one is */
    int64_t forms[OVERLAP_FORMS]; /* at the point of r at hand */
    struct OverlapValue **had;    /* per instruction: values of the tile that later rows may want; NULL: each row is by itself */
} OverlapRow;

/* Tiles [0, n) from column `at` on: cpu/strips.c. */
typedef struct StripWalk {
    LV at, n;
    LV *acc;           /* the strip of each reduction */
    bool *extreme;     /* and its Reduction.extreme, which holds for rows that a tile takes together */
    LV from;           /* the first row that loops in here take */
    int64_t rows, by;  /* that a tile takes at once, and how far apart they are */
    LV stack, carried; /* of this canonical lane: sums from there in the stack to here, where it goes, are carried */
    LV tile;           /* the one at hand; NULL: this is in no strip */
} StripWalk;

struct Emit {
    const Kernel *k;
    const Target *target;
    const char *name;
    const char *refused; /* what this target has no code for; NULL: all is well */
    Arena *arena;
    const JitOptions *options;
    MathMode math;

    /* the plan of the whole kernel */
    InstInfo *info;
    uint32_t n_stages, n_x, n_r; /* stages that have something to do in the r loop */
    uint8_t *level, *ix_level;
    bool *live;         /* instructions that some store needs */
    bool *checked;      /* KI_BOUND whose value nobody needs: the index is checked all the same */
    int lanes;          /* 1: scalar code */
    int bits;           /* of a host vector */
    int tile_axis;      /* x axis whose tiles are LV_TILE, or NO_AXIS */
    bool vec_r;         /* lanes run along the flat r index */
    bool stream;        /* outputs too big for the caches may be stored past them */
    bool asks_to_store; /* large ones are asked for before they are stored, where a store comes behind the one before */
    bool prefetch_rows; /* ask for later rows by address where the hardware does not follow */
    int64_t rows_ahead; /* how many rows later, where that is another number than usual; or 0. Negative: not */
    unsigned ahead;     /* bytes: whatever is loaded lane by lane is fetched so far ahead; 0: not */
    bool ahead_far;     /* more than the first cache holds is read before that: it goes to the second one */
    bool split, in_order;
    Order order;                     /* of the kernel's folds in lanes (kernel_order) */
    Schedule schedule;               /* host: all that was decided; what of it changes while code is emitted has a field of its own above */
    Nest nest;                       /* what each instruction does; host, FORM_LOOPS: all loops */
    KernelFacts facts;               /* of which both are made */
    Status planned;                  /* of the schedule */
    Emit *expected;                  /* host, FORM_LOOPS: what is run at the sizes that the kernel expects; NULL: it expects none */
    const Pieces *pieces;            /* host: of which axis; NULL: of none */
    LV piece_start[MOST_PIECES + 1]; /* in the function being emitted */
    const Overlap *overlap;          /* host: rows of windows are tiles together; NULL: they are not */
    const Inside *edges;             /* host: what a tile asks that has code for being inside; NULL: nothing */
    const int8_t *says;              /* of the piece, or the inside, being emitted; NULL: of none */
    Reduction *red;
    uint32_t n_red;
    uint32_t shared_arg;   /* split: the ARG_SCRATCH argument */
    bool keeps;            /* host, split: this code keeps rows in it */
    int64_t scratch_bytes; /* of accumulators; saved rows follow */
    int64_t strip_values;  /* host: offset of what a strip carries and keeps (cpu/strips.c) */

    /* CUDA: see cuda/cuda.h */
    const CudaTarget *cuda;
    int group, groups_per_block;   /* threads that share an x point; x points of a block of threads */
    int cut;                       /* split: tasks that a block of the order is, by its lanes */
    uint32_t row_tiles, row_slots; /* rows kept in registers: tiles of a thread, accumulators; 0: none are */
    int transposed_axis;           /* x axis along which transposed inputs lie, or NO_AXIS; and which ones those are */
    const uint8_t *transposed_align;
    bool cold;           /* this version of the code is for pointers that are hardly ever met: it shall be small */
    uint32_t step_slots; /* accumulators that a loop over r steps through side by side; 1: one */
    bool scan_group;     /* scans are made by all threads of a group (cuda/scan.c), `scan_tiles` tiles of a thread at a step */
    uint32_t scan_tiles;
    struct Carry *scan_carry; /* one thread a line, fast mode: per instruction, the sums of a running fold */
    LV slot;                  /* the accumulator of this copy, where a thread has several */
    LV partial;               /* i1: this copy's tile exists; reductions leave it out otherwise; NULL: it does */
    LaunchBuilder *launch;    /* what the launches are, filled in by emission */
    bool scalars_anew;        /* scalars are read where they are used (Target.anew) */

    /* LLVM; owned by session.c. ptr: to a buffer */
    LLVMContextRef ctx;
    LLVMModuleRef module;
    LLVMBuilderRef b;
    LLVMTypeRef type[STYPE_COUNT], ptr, half;
    LLVMTypeRef index; /* of index expressions: i64, or Kernel.index_bits wide */

    bool usual;                /* no argument of the op at hand needs a cold region (tape.c), or what that is for is not wanted */
    struct Outlined *outlined; /* functions of tapes and cold regions (tape.c), the newest first */
    unsigned n_outlined;
    uint32_t *uses; /* per op and dtype of the first operand: KI_OPs of the kernel; NULL: not counted yet */

    /* the function being emitted */
    LV fn, block, scratch;          /* `block` is the argument block */
    LV entry_end;                   /* the terminator of the block that holds the allocas */
    StackPlace zeros, sink;         /* host: what a load or a store goes to where its predicate is false */
    StackPlace stage_in, stage_out; /* host: the last tile's elements (cpu/tails.c) */
    Folded folded;                  /* where the walk over the nest is: points of the r axes, ... */
    LV folded_block;                /* ... the block whose partial results they are, ... */
    Stretch stretch;                /* ... tiles of a row, ... */
    Band band;                      /* ... a tile of a band, ... */
    Shares shares;                  /* ... some shares of places, ... */
    StripWalk strip;                /* ... a strip, ... */
    OverlapRow row;                 /* ... a row of windows, ... */
    const VRef *zero;               /* ... a chunk of a row in which this is zero (cpu/masked.c); NULL: not known */
    LV flat_n;                      /* points of all r axes */
    LV blocks;                      /* split: partial results of flat_n */
    int cur;                        /* level the builder stands at */
    LV standing;                    /* the instruction it stands before, or NULL: at the end of its block */
    LV before[LV_COUNT];
    uint32_t scope[LV_COUNT], scopes;
    struct ValMemo {
        Val val;
        LV splat;
        uint32_t scope;
        uint8_t level;
    } * val;
    struct IxMemo {
        Ix ix;
        uint32_t scope;
        uint8_t level;
    } * ix;
    struct ArgMemo {
        LV v;
        uint32_t scope;
    } * arg;
    int inner; /* memos of this level and deeper ones are in inner_val, inner_ix: see Copy in cuda/cuda.h */
    struct ValMemo *inner_val;
    struct IxMemo *inner_ix;
    const uint8_t *tile_align; /* per instruction: Address.align of its access in this version of the code; or NULL */
    Ix axis[MAX_AXES];
    LV inside; /* CUDA; i1: this thread's tile exists (all of it, or mask says which lanes); NULL: it does */
    LV mask;   /* <lanes x i1> of the live lanes of this tile; NULL: all */
    LV whole;  /* i1: the mask, if there is one, has all lanes set; NULL: not known */
    LV left; /* i64: elements to the end of this tile's row; where accesses branch on `whole` instead of using `mask` (cpu/tails.c); or NULL */
    uint32_t own;  /* of several products: the lane axis of the one at hand, a bit; else 0 */
    LV points[2];  /* i64: x points, all points; NULL: no store goes past the caches here */
    bool streamed; /* some store of this function may have gone past the caches */
    Ix joint;      /* columns, joined: row * columns + column of this step's or tile's lanes; base NULL: not in such a one */
    LV flat;       /* flat r index of this step (of its lane 0) */
    int part;      /* lanes along r: the element of the accumulator that lane 0 of this step goes to; 0 but in a tail of registers */
    uint32_t stage;
    LV *scan;           /* per instruction: its running value, where it is one */
    bool *same;         /* per instruction, where values are carried: all lanes have the same; NULL: not known yet (value.c) */
    LV x_flat, x_total; /* split: number of this x point (lane 0), number of x points */
    uint32_t *asks;     /* per instruction: 1 + the first stage that loads it in this function; 0: none yet */
    LV *repeated;       /* per instruction: where its row is, again and again; NULL: nowhere (cpu/repeat.c) */
    LV column;          /* where repeated is not NULL: the place of the column of a tile's first lane */
    LV *saved;          /* per instruction: where its row lies in scratch; NULL: not saved */
    LV **squares;       /* per instruction: the tiles of a load that came in a square, by row; NULL: it did not (cpu/squares.c) */
};

/* build.c */
LLVMTypeRef l_vec(const Emit *e, LLVMTypeRef element);    /* <lanes x element>; the element where lanes is 1 */
LLVMTypeRef l_type(const Emit *e, DType dtype, bool vec); /* in registers */
LLVMTypeRef l_memory(const Emit *e, DType dtype);         /* one element in memory */
LV l_i64(const Emit *e, int64_t value);
LV l_const(const Emit *e, SType type, uint64_t bits, bool vec);
bool l_is_const(LV v, int64_t *value);
LV l_splat(Emit *e, LV scalar);
LV l_splat_n(Emit *e, LV scalar, unsigned n);
LV l_iota(Emit *e, LLVMTypeRef element); /* <0, 1, 2, ...> */
LV l_lane_mask(Emit *e, LV count);       /* lanes below count (i64, not negative) */
LV l_unknown_one(Emit *e, LV count);     /* count; where that is 1 by itself, LLVM does not see it */
LV l_reverse(Emit *e, LV v);
LV l_part(Emit *e, LV v, int from, int n); /* n elements of v from `from` on; what v does not have is undefined */
LV l_join(Emit *e, LV *parts, unsigned n); /* vectors of as many elements each, side by side */
LV l_in_turns(Emit *e, LV low, LV high);   /* the elements of two vectors in turns */
LV l_any(Emit *e, Val v);                  /* i1: is some lane of an i1 value set? */
LV l_add(Emit *e, LV a, LV b);             /* i64; folds 0 and 1 */
LV l_sub(Emit *e, LV a, LV b);
LV l_mul(Emit *e, LV a, LV b);
LV l_div(Emit *e, LV a, LV b); /* a >= 0, b > 0; powers of two by shifts */
LV l_mod(Emit *e, LV a, LV b);
LV l_min(Emit *e, LV a, LV b); /* signed */
LV l_max(Emit *e, LV a, LV b);
LV l_ceil_div(Emit *e, LV a, LV b);
LV l_align64(Emit *e, LV bytes);
LV l_gep(Emit *e, LLVMTypeRef element, LV ptr, LV index);
LV l_gep_bytes(Emit *e, LV ptr, LV bytes);
LV l_intrinsic(Emit *e, const char *name, LLVMTypeRef *types, unsigned n_types, LV *args, unsigned n_args);
LV l_alloca(Emit *e, LLVMTypeRef type, unsigned align, const char *name);
LV l_load(Emit *e, LLVMTypeRef type, LV ptr, unsigned align);
LV l_store(Emit *e, LV value, LV ptr, unsigned align);
LV l_to_memory(Emit *e, DType dtype, LV v); /* i1 to i8 */
LV l_from_memory(Emit *e, DType dtype, LV v);
/* LLVMFPToSI: any number where that does not fit; LLVMFPToUI: every lane fits (lint.c) */
LV l_float_to_int(Emit *e, LLVMOpcode op, LV v, LLVMTypeRef type);
LLVMBasicBlockRef l_block(Emit *e, const char *name);
void l_at(Emit *e, LLVMBasicBlockRef block); /* builder to the end of `block` */

/* for (iv = start; iv < end; iv += step), signed, in rotated form, or no loop where constants say that there is one step (body is
 * NULL then, and iv is start). `guard` is the branch in front of it. */
typedef struct Loop {
    LV iv, end, step, guard;
    LLVMBasicBlockRef exit, body;
} Loop;
Loop loop_begin(Emit *e, LV start, LV end, LV step, const char *name);
void loop_end(Emit *e, const Loop *loop);

/* if (condition) { ... } */
typedef struct If {
    LV branch;
    LLVMBasicBlockRef exit;
} If;
If if_begin(Emit *e, LV condition, const char *name);
void if_end(Emit *e, const If *i);
void l_unlikely(Emit *e, LV branch);                /* its first target is rarely taken */
void l_attribute(Emit *e, LV fn, const char *name); /* of the function, with the value 0 (`memory`: none) */

/* Levels. open: a new instance of `level` (and of all inner ones) begins here. enter: stand at the outermost place of
 * `level` (no-op where the builder is there already); leave: go back. */
typedef struct Place {
    int cur;
    LLVMBasicBlockRef block;
    LV standing;
} Place;
void level_open(Emit *e, int level);
void level_close(Emit *e, int level, int outer); /* back to level `outer`, at the current end of block */
Place level_enter(Emit *e, int level);
void level_leave(Emit *e, Place place);

/* Starts the body of a function whose argument block is parameter 0; makes the alloca block. */
void function_open(Emit *e, LV fn, LV scratch);

/* index.c */
Ix index_of(Emit *e, IRef i);
LV index_uniform(Emit *e, IRef i);               /* of an expression without lanes; i64 */
LV index_vector(Emit *e, Ix ix);                 /* as a vector of lanes, of its own type */
LV index_wide(Emit *e, LV v);                    /* of index type to i64, a vector too */
LV index_narrow(Emit *e, LV v);                  /* the other way */
LV index_divide(Emit *e, LV a, LV d, IRef size); /* a / d of i64 coordinates and sizes, as wide as an index; d is `size`, or 1 if more */
Ix ix_uniform(LV base);
/* floor(a / d), or a mod d; `size` as above, or IREF_NONE */
Ix ix_divide(Emit *e, Ix a, LV d, IRef size, bool rest);
LV axis_size(Emit *e, uint32_t axis);                   /* i64 */
LV axes_product(Emit *e, uint32_t first, uint32_t end); /* of the sizes of axes first to end - 1 */

/* launch.c: nodes of the launch plan (../launch_plan.h) */
uint16_t size_node(Emit *e, IRef size);
uint16_t axis_node(Emit *e, uint32_t axis); /* its size */
uint16_t axes_node(Emit *e, uint32_t first, uint32_t end);
uint16_t tasks_node(Emit *e, uint16_t n, int64_t each); /* n points by so many: tasks of them */
LV node_value(Emit *e, uint16_t node);                  /* i64: what the launch plan comes to, at this place of the code */
uint8_t index_level(Emit *e, IRef i);
typedef struct Address {
    LV ptr;    /* of lane 0; `many`: a vector of pointers */
    LV stride; /* in elements; NULL: uniform */
    bool many;
    bool constant;  /* nobody writes there while the kernel runs */
    bool asked;     /* an earlier stage of this row has asked for what lies ahead */
    unsigned align; /* of a contiguous tile, bytes; 0: that of an element */
    Runs runs;      /* of many */
} Address;
/*
 * What targets differ in. All else (the plan, levels, values, tapes, index expressions, steps of reductions) is shared.
 */
struct Target {
    unsigned space;          /* LLVM's address space of buffers */
    int64_t shared_reserved; /* bytes at the start of ARG_SCRATCH that are not for partial results */
    bool scalar_lanes;       /* lanes are registers of one thread: no instruction works on vectors */
    bool calls;              /* a kernel may have functions of its own and call them */
    void (*plan)(Emit *e);   /* which way the lanes run, how many, and what else is decided by hints */
    Val (*load)(Emit *e, DType dtype, Address at, const Val *pred);
    void (*store)(Emit *e, DType dtype, Address at, Val value, const Val *pred);
    void (*fault)(Emit *e, LV bad, LV to, LV id); /* *to = id where bad (i1) holds; may be asked for in hoisted code */
    /* Fast mode; may be NULL. `op` on f32, whose result is to be rounded to `rounded`, by approximate instructions;
     * false: by its tape. */
    bool (*approximate)(Emit *e, Op op, DType rounded, const Val *in, Val *out);
    /* An op for which the target has one instruction with the same bits; false: by its tape. `in` NULL only asks. May be NULL. */
    bool (*exact)(Emit *e, Op op, const DType *in_types, DType to, const Val *in, Val *out);
    /* Zeros for what of a value (an f32 or f64; others are as they are) is below the least normal, if arithmetic takes that for zeros; false: it does
     * not. `v` NULL only asks. May be NULL. */
    bool (*normal)(Emit *e, DType dtype, Val *v);
    /* One element x further in running sum v, where the target adds up by another order than element after element; false: it
     * does not. May be NULL. */
    bool (*scan)(Emit *e, VRef v, Val x, Val *sum);
    /* a / size for a narrow a >= 0, a vector too, by what the launch knows of that size (at least 1); NULL: by an instruction. May be
     * NULL. */
    LV (*divide)(Emit *e, LV a, IRef size);
    LV (*anew)(Emit *e, LV pointer); /* the same pointer, but what is read there is read here and not in front of loops; for scalars_anew */
    void (*loops)(Emit *e);          /* the walk over tasks and threads: FORM_LOOPS, FORM_CONTRACT */
    void (*contract)(Emit *e);
    void (*sort)(Emit *e);      /* NULL: FORM_SORT is not for this target */
    void (*attention)(Emit *e); /* NULL: FORM_ATTENTION is not */
};

Address address_of(Emit *e, LLVMTypeRef element, LV base, IRef i);
/* The value of a tile's lanes in an index in which nothing else is one or differs from lane to lane; or VREF_NONE. */
VRef index_gathers(Emit *e, IRef i);
/* For such an index, as if that value were the place along the lanes. */
Address address_in_line(Emit *e, LLVMTypeRef element, LV base, IRef i);
LV runs_jump(Emit *e, const Runs *runs);                          /* what a run begins behind where the one before would go on */
LV runs_pointers(Emit *e, LLVMTypeRef element, const Runs *runs); /* of an Address: one for each lane */
Address address_ix(Emit *e, LLVMTypeRef element, LV base, Ix ix);

/* cpu/memory.c: whole tiles, where the tile's mask and `pred` (NULL: everywhere) hold; in registers'
 * form */
static inline Val load_at(Emit *e, DType dtype, Address at, const Val *pred) { return e->target->load(e, dtype, at, pred); }
static inline void store_at(Emit *e, DType dtype, Address at, Val value, const Val *pred) { e->target->store(e, dtype, at, value, pred); }
/* Past the caches where that is possible and wanted, and `only_if` (i1, or NULL) holds. */
void stream_at(Emit *e, DType dtype, Address at, Val value, LV bits);
/* So many bytes, which may be no more than some, from one contiguous place to another at once; i1: that was done. NULL: never here. */
LV copy_host(Emit *e, Address to, Address from, LV bytes);
Val load_host(Emit *e, DType dtype, Address at, const Val *pred);
void store_host(Emit *e, DType dtype, Address at, Val value, const Val *pred);
void fault_host(Emit *e, LV bad, LV to, LV id);
void l_prefetch(Emit *e, LV ptr, unsigned from, unsigned bytes); /* the lines from that byte on */
bool address_is_line(Address at);                                /* is it one of a contiguous tile? */
void prefetch_at(Emit *e, DType dtype, Address at,
                 unsigned from); /* the lines of a contiguous tile, from that byte on; nothing for others */
void stream_end(Emit *e);        /* at the end of a function that called it */
enum { STREAM_BYTES = 1 << 24 }; /* outputs from this size on are streamed */
/* The lines of a contiguous tile some way ahead, for writing, if `large`, an i1 of the task, holds. */
void ask_at(Emit *e, DType dtype, Address at, LV large);
enum { ASK_BYTES = 1 << 21 }; /* outputs from this size on are asked for */

/* cpu/tails.c */
LV live_select(Emit *e, LV v, LV other); /* v in the live lanes of a tile that has a mask, `other` in the rest */

/* convert.c */
LV l_sticky(Emit *e, LV v, bool vec);         /* STICKY of I64 */
LV l_float_to_bhalf(Emit *e, LV v, bool vec); /* F32TOBF16 */

/* lookup.c */
LV l_lookup(Emit *e, const double *table, LV index, bool vec); /* entry (index mod LOOKUP_ENTRIES) in each lane; index: I32 */
void l_row(Emit *e, LV index, LV column[ROW_COLUMNS]);         /* the columns of row (index mod ROW_COUNT) in each lane; index: I64 */

/* tape.c */
Val op_emit(Emit *e, Op op, const DType *in_types, DType out, const Val *in); /* the op's tape */
/* A part of a fold's state by its own tape (fold_tape); of a dot: the sum and one product more, two sums. */
Val fold_emit(Emit *e, Fold fold, FoldTape which, unsigned part, DType state, const Val *in, uint32_t n);
LV dot_step(Emit *e, DType acc, LV sum, LV a, LV b);
LV dot_merge(Emit *e, DType acc, LV total, LV part);
uint32_t op_length(Emit *e, Op op, const DType *in_types, DType out); /* about how many scalar operations that is, a lane */
Val cast_emit(Emit *e, DType from, DType to, Val v);

/* value.c */
Val value(Emit *e, VRef v);
LV value_vector(Emit *e, VRef v); /* broadcast where it is uniform */
LV val_vector(Emit *e, Val v);
LV argument(Emit *e, uint32_t arg);
void value_set(Emit *e, VRef v, int level, Val val);
void value_forget(Emit *e, VRef v); /* it is computed anew where it is asked for next */
void value_scatter(Emit *e, VRef v);
void carries_open(Emit *e);        /* before the r loop: where the carries lie, which is e->scan, and ... */
void carries_start(Emit *e);       /* ... what they are; ... */
void carries_read(Emit *e);        /* ... as a point of it begins; ... */
void carries_step(Emit *e);        /* ... as it ends */
void carries_end(Emit *e, LV end); /* CUDA: where `end` (i1) holds, it does not begin */
LV carries_go_on(Emit *e);         /* i1: is there a point of the tile for which the loop goes on? NULL: it asks none */
void value_store(Emit *e, VRef v);

/* A partial result of a reduction: vector or scalar, and for arg reductions the flat index beside it. */
typedef struct Part {
    LV v, at;
} Part;
Part part_merge(Emit *e, const Reduction *r, Part a, Part b, bool vec); /* a comes first */
Part part_later(Emit *e, const Reduction *r, Part a, Part b);           /* of places: all of b's are behind a's */
Part part_halve(Emit *e, const Reduction *r, Part a);                   /* the tree over the lanes of one vector */
Part part_start(Emit *e, const Reduction *r, LV from, bool vec);
Part part_read(Emit *e, const Reduction *r, LV block); /* split: of a block, from the shared scratch */

/* reduce.c; "all" functions concern every reduction of a stage */
void reduce_plan(Emit *e);   /* fills e->red; needs lanes, levels and info */
void reduce_place(Emit *e);  /* where accumulators live */
void reduce_layout(Emit *e); /* split: sets the offsets of partial results */
/* The bytes that they are, as a node, for x points and so many blocks. */
uint16_t reduce_layout_node(Emit *e, uint16_t x, uint16_t blocks);
void reduce_open(Emit *e, uint32_t stage); /* room for accumulators and totals */
void reduce_block_begin(Emit *e, uint32_t stage, LV from);
Part reduce_part(Emit *e, const Reduction *r);                       /* what this step adds to it: a vector */
void reduce_step_all(Emit *e, uint32_t stage);                       /* in the loop's body, for e->flat */
void reduce_block_end(Emit *e, uint32_t stage, LV first, LV length); /* first (i1): of this x point */
void reduce_store_block(Emit *e, uint32_t stage, LV block);          /* split: total to the shared scratch */
void reduce_combine(Emit *e, uint32_t stage);                        /* split: totals of all blocks, also kept for later stages */
void reduce_close(Emit *e, uint32_t stage);                          /* totals become the values of the folds */
void reduce_result(Emit *e, const Reduction *r, Val v);              /* v becomes the value of its fold */
Val reduce_read(Emit *e, VRef v);                                    /* split: a combined result of an earlier stage */
bool stage_ordered(const Emit *e, uint32_t stage);
LLVMTypeRef slot_type(Emit *e, DType t); /* of an accumulator: `lanes` elements as memory has them */

/* cpu/loops.c: what walks share */
void scans_open(Emit *e, uint32_t stage);
LV row_place(Emit *e, VRef v);           /* of a row that is kept: where this point's vector lies */
void rows_save(Emit *e, uint32_t stage); /* of one step of the r loop: what later stages want again */
void r_body(Emit *e, uint32_t stage);    /* all of one step of the r loop: scans, saves, reductions, stores */
/* Coordinates of the first n axes; odometer NULL: into e->axis. */
void row_seek(Emit *e, uint32_t n, LV point, LV *odometer);
void count_x(Emit *e);
void tile_mask(Emit *e, LV left); /* for a tile with `left` elements to its end; until mask_end */
void mask_end(Emit *e);
void lanes_change(Emit *e, int lanes); /* from here on */
void pin(Emit *e, int level);          /* a new block, so that code of `level` has a branch to stand in front of */

/* The walk: a node, or what is in it. Functions of nodes are called through it alone (cpu/loops.c, cpu/columns.c, cpu/squares.c, cpu/tiles.c, cpu/steps.c,
 * cpu/strips.c, cpu/unroll.c). */
void nest_emit(Emit *e, NestRef at);
void nest_inside(Emit *e, const NestNode *node);
Folded all_folded(Emit *e);
void walk_columns(Emit *e, const NestNode *node);
void repeat_rows(Emit *e);                    /* join_below: puts rows that repeat where tiles load them */
void repeat_from(Emit *e, LV point);          /* the first lane of the next tile is at that point of the joined rows */
void repeat_next(Emit *e);                    /* the next tile begins where this one ends */
bool load_repeated(Emit *e, VRef v, Val *to); /* from there; false: it is not there */
void walk_joint(Emit *e, const NestNode *node);
void walk_column(Emit *e, const NestNode *node);
void walk_column_merge(Emit *e, const NestNode *node);
void walk_squares(Emit *e, const NestNode *node);
void walk_pieces(Emit *e, const NestNode *node);
void walk_piece(Emit *e, const NestNode *node);
void walk_piece_rows(Emit *e, const NestNode *node);
void walk_tiles(Emit *e, const NestNode *node);
void walk_strips(Emit *e, const NestNode *node);
void walk_canonical(Emit *e, const NestNode *node);
void walk_strip_rows(Emit *e, const NestNode *node);
void walk_row_tiles(Emit *e, const NestNode *node);
void walk_chain_tiles(Emit *e, const NestNode *node);
void walk_strip_stage(Emit *e, const NestNode *node);
void walk_strip_keep(Emit *e, const NestNode *node);
void walk_strip_end(Emit *e, const NestNode *node);
void walk_steps(Emit *e, const NestNode *node);
void walk_each(Emit *e, const NestNode *node);
void walk_chosen(Emit *e, const NestNode *node);
void walk_lanes(Emit *e, const NestNode *node);
void walk_rounds(Emit *e, const NestNode *node);
void walk_unroll(Emit *e, const NestNode *node);
void walk_overlap(Emit *e, const NestNode *node);
void walk_overlap_rows(Emit *e, const NestNode *node);
void walk_overlap_left(Emit *e, const NestNode *node);

/* cpu/steps.c */
static inline int x_level(const Emit *e) { return e->tile_axis != NO_AXIS ? LV_TILE : LV_ROW; }
void r_constants(Emit *e, int64_t at);         /* the coordinates of point number `at`, where all sizes are known */
void r_point(Emit *e, LV flat);                /* at LV_R, lanes along r: the coordinates of another point */
void r_step(Emit *e, NestRef inside, LV flat); /* a step of a loop with that body, there */

/* cpu/tiles.c */
LV tiles_of_row(Emit *e, const NestNode *row); /* of which the tiles are the only child, or those of its pieces */
uint16_t tiles_node(Emit *e, const NestNode *tiles);
/* `past`: how far `at` is past a multiple of the lane count. */
enum { UNALIGNED = -1 /* that is not known */ };
void tile_begin(Emit *e, LV at, int64_t past);
void tile_end(Emit *e);
void tile(Emit *e, const NestNode *node, LV at, int64_t past); /* with what is in the node between them, but strips */

/*
 * A loop over the tiles of [from, to), which begins at a whole tile and may end within one, with its body there once: two passes of one loop, the
 * first over the whole tiles, the second over what is left. So `whole`, on which accesses branch (cpu/tails.c), is the same all through
 * a pass: to ask each tile took sin of f32 in cache 1.2 times as long at 256 bits (bench/dynamic).
 */
typedef struct Passes {
    LLVMBasicBlockRef pass;
    LV branch; /* in front of both */
    LV from, whole, full, to;
    Loop tiles;
} Passes;

Passes passes_begin(Emit *e, LV from, LV to, LV full, LV size, const char *name);
void passes_end(Emit *e, Passes *p);

/* cpu/overlap.c */
static inline bool overlap_axis(const Emit *e, uint32_t axis) { return e->overlap && axis == e->overlap->across; }
void overlap_point(Emit *e, int64_t point);     /* the r axes are at that point */
bool overlap_recall(Emit *e, VRef v, Val *had); /* has an earlier row computed it? */
void overlap_keep(Emit *e, VRef v, Val val);

/* cpu/shares.c: the loop over x tasks, in which those of [lo, hi) that are shares of it are to be walked */
Loop shares_begin(Emit *e, const NestNode *node, LV lo, LV hi);

/* cpu/strips.c */
void strip_place(Emit *e); /* where strips live; behind reduce_place */
void strip_blocks(Emit *e, const NestNode *node);

/* cpu/masked.c: chunks of a row in which a mask has left nothing but -inf */
typedef struct Masked {
    VRef exp, x, less; /* of x - less */
    int64_t chunk;     /* points */
} Masked;
bool masked_stage(const Emit *e, Masked *m);                                /* may it pay to look for them? */
void masked_chunk(Emit *e, const Masked *m, const NestNode *node, LV from); /* one chunk of the loop `node` */

/* cpu/extreme.c: reductions whose `extreme` is set, of one slot */
void extreme_open(Emit *e, Reduction *r);
void extreme_begin(Emit *e, const Reduction *r);                   /* of a block, beside the slot's start value */
LV extreme_step(Emit *e, const Reduction *r, LV best, LV x, LV y); /* y: another point for lanes along x, or NULL */
LV extreme_result(Emit *e, const Reduction *r, LV best);           /* a scalar where lanes run along r */

/* cpu/pieces.c */
uint16_t pieces_node(Emit *e, int64_t lanes); /* tiles of so many lanes that they have */
void pieces_open(Emit *e);                    /* in each function; at LV_TASK */
void piece_begin(Emit *e, uint32_t piece, LV *from, LV *to);
void piece_end(Emit *e);
LV tile_is_inside(Emit *e, LV at, bool row);    /* the tile of lanes from there on, or all that its row alone says; at LV_ROW */
int piece_says(const Emit *e, VRef v);          /* a bool, in this piece or inside: 0, 1; -1: not known, or VREF_NONE */
VRef piece_side(const Emit *e, const KInst *n); /* what this instruction, a `where`, is in this piece; VREF_NONE: not known */

/* cpu/loops.c, cpu/contract.c: the function "run" of a kernel whose plan was made by emit_plan (plan.c), and its launch plan */
void emit_plan(Emit *e);
void plan_host(Emit *e);
void plan_levels(Emit *e); /* of instructions and index expressions, for the lanes chosen */
/* Stores and other effects of one stage of the r loop, or the x-level ones: operands, then effects; or both. */
void emit_operands(Emit *e, bool r_level, uint32_t stage);
void emit_effects(Emit *e, bool r_level, uint32_t stage);
void emit_stores(Emit *e, bool r_level, uint32_t stage);
void emit_loops(Emit *e);
void emit_contract(Emit *e);
LV function_add(Emit *e, const char *name, bool exported, unsigned n_i64);

#endif
