/*
 * The kernel form: one fused loop nest, one launch. Made by fusion (jit/fuse/), read by the emitter (jit/llvm/),
 * shared by every target. Plain data in an arena.
 *
 *     for x0 < X0, x1 < X1, ...                    parallel axes (maybe none)
 *         [x-level code: values that depend on no r axis]
 *         stage 0:  for r0 < R0, r1 < R1, ...      reduction axes (maybe none)
 *                       loads, scalar ops, accumulate reductions, stores
 *         stage 1:  the same r axes again, now knowing the results of stage 0
 *         ...
 *         [x-level code after the last stage: epilogues, stores]
 *
 * Elementwise kernels have x axes only. Softmax is x = rows, r = columns with three stages: max; sum of exp; store.
 * The body is one list of instructions in dependency order. An instruction's *level* follows from what it depends on:
 * the r axes (it lives in the r loops), only x axes (computed once per x), or neither (once per task). Its *stage*
 * is 0, or one more than the greatest stage of the reductions it depends on. A store or a reduction runs in its own stage.
 * An r-level value needed in several stages is computed again in each, unless `save` says to keep it in scratch.
 *
 * A contraction (FORM_CONTRACT) has one r axis and a fold FOLD_DOT whose two operands are
 * r-level values; everything after it is its epilogue. Several that share their left operand are one kernel (jit/fuse/union.c): each has a last x axis of its own, beside that of the first. A point has a coordinate along one of these axes alone, and what is
 * computed and stored there is what follows from that contraction's dot.
 *
 * An attention (FORM_ATTENTION; CUDA in fast mode only) has the last two x axes rows (queries) and columns (of values), and two r axes,
 * keys and what FOLD_DOT folds. Scores are made of that dot for each row and key; KI_ATTEND folds the keys (jit/fuse/attention.c). Where it
 * is a plain sum (ATTEND_SUM) or the greatest (ATTEND_MOST) there may be two dots, of which `a` is made (jit/fuse/chain.c).
 *
 * A loop of the graph whose step is elementwise (jit/fuse/loop.c) has one r axis, its iterations: each KI_CARRY is a value that goes from one to the
 * next, with one KI_NEXT that says what it becomes. One of bools may be what the loop goes on for (KI_NEXT `mode` ENDS).
 *
 * A sort (FORM_SORT; CUDA only) has axes x = outer, inner and r = the line, and a body of one load, one KI_SORT and one
 * store at the same index; its arguments are in, out, the sizes outer, n, inner, and scratch (jit/fuse/sorted.c).
 *
 * Integers: all index arithmetic is int64, or `index_bits` wide where that gives the same. Arguments: `k->args` lists what the
 * launch passes, see ArgKind.
 */
#ifndef JIT_KERNEL_H
#define JIT_KERNEL_H

#include "ir/graph.h"
#include "ir/base/table.h"
#include "ir/fold.h"

typedef uint32_t IRef; /* index expression; index into Kernel.idx */
typedef uint32_t VRef; /* body instruction; index into Kernel.inst */

/* Index expressions (int64), interned. Sums and products fold constants and keep constants on the right. */
typedef enum IdxKind {
    IX_CONST, /* value */
    IX_ARG,   /* args[arg], an ARG_SIZE */
    IX_AXIS,  /* coordinate of axis a */
    IX_ADD,   /* a + b */
    IX_MUL,   /* a * b */
    IX_DIV,   /* a / b, floor; a >= 0, b > 0, or else the value is not used: then any, but it must not trap */
    IX_MOD,   /* a % b; likewise */
    IX_VALUE  /* body instruction a, an I64 value (gather); already in bounds */
} IdxKind;

typedef struct Idx {
    uint8_t kind;
    uint32_t a, b; /* IRefs; IX_AXIS: axis; IX_ARG: argument; IX_VALUE: VRef */
    int64_t value;
} Idx;

typedef enum AxisKind { AXIS_X, AXIS_R } AxisKind;

typedef struct KAxis {
    uint8_t kind;   /* AxisKind; all x axes come before all r axes; outermost first */
    uint8_t bucket; /* of a size that may vary: log2 of what code is planned for, rounded up; 0 where it is constant */
    bool beside;    /* the x axis of another contraction, instead of the one before it; such are the last x axes */
    IRef size;      /* IX_CONST, IX_ARG or a product of those */
} KAxis;
enum { KERNEL_BUCKETS = 40 };

typedef enum ArgKind {
    ARG_BUFFER,  /* pointer to a buffer's first element (element strides are in the index expressions) */
    ARG_SIZE,    /* int64: a size expression evaluated on the host */
    ARG_SCALAR,  /* 8 bytes: a scalar fact's bits */
    ARG_SCRATCH, /* pointer: partial results shared by the tasks of a split kernel */
    ARG_SPANS,   /* pointer: of a band of rows, which columns of them are there (jit/llvm/cpu/spans.c); NULL: all */
    ARG_FAULT    /* pointer to int64: where an out-of-bounds index stores `fault id` (any non-zero); `stops`: where an earlier one did */
} ArgKind;

typedef struct KArg {
    uint8_t kind;
    uint8_t dtype;  /* BUFFER, SCALAR */
    bool written;   /* BUFFER */
    bool may_alias; /* BUFFER: an output that may be the same storage as an input, read at the same index */
    bool band;      /* BUFFER: only some rows of it are there, those that a thread is at (jit/fuse/bands.c) */
    bool natural;   /* SIZE: never negative */
    bool expects;   /* SIZE, on the host: it may well be `expected`, for which the kernel has code of its own (jit/expected.c) */
    bool stops;     /* FAULT, on CUDA: where it is not 0 as the kernel begins, it writes nothing, or (ENDS) its loop does not begin */
    int16_t expected;
    uint16_t panel;     /* BUFFER of a product: an operand in panels of so many points (jit/panels.h), ... */
    uint8_t panel_axis; /* ... which lie along this x axis; 0: no panels */
    uint16_t of;        /* SPANS: of the rows of which BUFFER, an argument before it */
    uint32_t blocks;    /* BUFFER, band: rows come in blocks of so many, as some product of the band sums them up; 0: they do not */
} KArg;

enum { EXPECTED_MOST = 128 }; /* of KArg.expected, either way */

typedef enum InstKind {
    KI_OP,     /* elementwise op on values a, b, c; types from the operands, dtype of the result in `dtype` */
    KI_SCALAR, /* args[arg] (ARG_SCALAR) */
    KI_CONST,  /* imm, bits of dtype */
    KI_INDEX,  /* the index expression idx as an i64 value */
    KI_LOAD,   /* args[arg][idx]; only where `pred` (a bool value, or VREF_NONE) holds, else a value of zero bits */
    KI_FOLD,   /* `op`, a Fold, over all r axes of value a (DOT: a, b), in `order`; an x-level value. mode RUNNING: over the only r axis,
                   the value up to and including this element; r-level */
    KI_ATTEND, /* FORM_ATTENTION: the mean of b over keys, each weighing exp(a - the greatest a). Keys are taken in blocks of ATTEND_BLOCK: what was
                   summed before a block is scaled to the greatest a so far, then the block's is added. ATTEND_PARTS, of few rows: as
                   jit/llvm/cuda/decode.c has it. Weights are rounded to the dtype that b was widened from, or to tf32, where
                   tensor cores multiply them. Where no a is above -inf: NaN, or, ATTEND_ZERO, 0; of no keys 0.
                   ATTEND_SUM: the sum of a * b over keys, one key (of tensor cores a step of them) after the other from +0; of b = 1
                   each of eight threads sums up every eighth key of a block, then what they have is added in pairs, fours, eights; by
                   tensor cores each of four has two neighbours of eight keys. ATTEND_MOST: the greatest a, NaN where one is; b is 1; of
                   no keys -inf */
    KI_SORT,  /* FORM_SORT: the place in the line of a's r-th element in order; mode 1: descending; imm: bits of a place */
    KI_CARRY, /* a, an x-level value, at the first point of the only r axis; then what its KI_NEXT was given at the point before; r-level */
    KI_NEXT,  /* what the KI_CARRY a becomes: b; an effect. Its value: the carry behind the last point, a where there is none; x-level */
    KI_STORE, /* args[arg][idx] = a, where pred holds; x- or r-level */
    KI_SCATTER, /* args[arg][idx] op= a with `mode`, in r order, sequential over r; idx has an IX_VALUE */
    KI_BOUND    /* a: an i64 index value; idx: the size of the axis. Negative counts from the end (+ size once), then clamped to
                   [0, size); out of bounds (where pred holds) writes imm to ARG_FAULT `arg`. An i64 value; an
                   effect too: it is there even where no instruction uses the value */
} InstKind;
enum { RUNNING = 1 };                                                        /* KInst.mode of a KI_FOLD */
enum { ATTEND_ZERO = 1, ATTEND_PARTS = 2, ATTEND_SUM = 4, ATTEND_MOST = 8 }; /* of a KI_ATTEND: bits; no exponential: the last two */
enum { ATTEND_BLOCK = 64, ATTEND_DOTS = 2 };                                 /* the order of a KI_ATTEND; so many dots at most */
enum { ENDS = 1 }; /* of a KI_NEXT: where the carry, a bool, is false nothing carried changes any more: points may be left out */
#define VREF_NONE UINT32_MAX
#define IREF_NONE UINT32_MAX

typedef struct KInst {
    uint8_t kind, op, dtype, mode; /* op: Op, of a KI_FOLD Fold */
    bool save;                     /* r-level, used in later stages: keep the row in scratch instead of computing it again */
    bool unrounded;                /* of f16 or bf16: its readers may take the f32 that it was rounded from (jit/fuse/rounding.c) */
    uint32_t of;                   /* 1 + the node of the graph whose value this is, for that decision; 0: none. Not in the text */
    uint32_t arg;
    VRef a, b, c, pred;
    IRef idx;
    uint64_t imm;
    Order order; /* FOLD: in which elements are folded (ir/orders.def) */
} KInst;

/* An instruction without operands: what is left out stays "none". */
#define KINST(...) ((KInst){.a = VREF_NONE, .b = VREF_NONE, .c = VREF_NONE, .pred = VREF_NONE, .idx = IREF_NONE, __VA_ARGS__})

Op inst_graph_op(const KInst *x); /* the op of the graph that it is; OP_COUNT: none */
static inline bool inst_reduces(const KInst *x) { return x->kind == KI_FOLD && x->mode != RUNNING; }
/* A value for each r point that depends on the others: a running fold, or a sort. */
static inline bool inst_runs(const KInst *x) { return (x->kind == KI_FOLD && x->mode == RUNNING) || x->kind == KI_SORT; }
/* A KI_ATTEND that folds what its scores are, rather than their exponentials. */
static inline bool inst_is_chain(const KInst *x) { return x->kind == KI_ATTEND && x->mode & (ATTEND_SUM | ATTEND_MOST); }
static inline bool inst_is_dot(const KInst *x) { return x->kind == KI_FOLD && x->op == FOLD_DOT; }
static inline bool inst_has_place(const KInst *x) { return x->kind == KI_FOLD && fold_has_place((Fold)x->op); }

typedef enum KernelForm { FORM_LOOPS, FORM_CONTRACT, FORM_ATTENTION, FORM_SORT } KernelForm;

typedef struct Kernel {
    Arena *arena;
    uint8_t form;
    IRef product[3]; /* CONTRACT: batch, rows and columns as the graph has them, of which axes may have been merged; where the
                            sum over k may be cut, else IREF_NONE */
    VEC(KAxis) axes;
    VEC(Idx) idx;
    VEC(KInst) inst;
    VEC(KArg) args;

    /* Schedule (jit/schedule.c). Never changes a result, only speed; follows from the text, target and options. */
    uint32_t vec_axis;  /* the axis whose iterations go to vector lanes (the last x or the last r axis); UINT32_MAX: scalar */
    bool split;         /* reductions are cut at the order's blocks and the blocks are tasks too (few x, long r): each stage is
                            a phase of its own with partial results in ARG_SCRATCH. A contraction: its sum may be
                            cut (CPU: jit/fuse/blocks.c; CUDA: jit/llvm/cuda/parts.c) */
    bool split_asked;   /* host: each launch asks the sizes whether it is (HOST_FEW, HOST_FAR); else it has one phase */
    uint8_t index_bits; /* CUDA: every index, coordinate and size fits that many bits, sign included; 0: 64 (jit/index_width.c) */
    double cost;        /* rough nanoseconds per (x, r) point, for the grain of parallel work */

    /* Kept by kidx_* and kernel_inst: bit sets of the axes each expression and instruction depends on, the size of each expression
     * written out as a tree (UINT32_MAX: that or more), and what interns. */
    VEC(uint32_t) idx_axes;
    VEC(uint32_t) idx_size;
    VEC(uint32_t) inst_axes;
    HashTable idx_table, inst_table;
} Kernel;

Kernel *kernel_new(Arena *arena);
Kernel *kernel_copy(const Kernel *k, Arena *arena);
uint32_t kernel_add_axis(Kernel *k, AxisKind kind, IRef size,
                         int64_t planned);                  /* `planned`: its size, or what to plan for where that varies */
int64_t kernel_extent(const Kernel *k, uint32_t axis);      /* the size, or what is planned for */
uint32_t kernel_r_axes(const Kernel *k);                    /* bit set */
uint32_t kernel_beside(const Kernel *k);                    /* those that lie beside each other: a bit set; 0: none do */
uint32_t kernel_fold_axes(const Kernel *k, const KInst *x); /* those that an instruction folds: all r axes, in an attention one */
IRef kidx_const(Kernel *k, int64_t value);
IRef kidx_arg(Kernel *k, uint32_t arg);
IRef kidx_axis(Kernel *k, uint32_t axis);
IRef kidx_value(Kernel *k, VRef value);
IRef kidx_add(Kernel *k, IRef a, IRef b);
IRef kidx_mul(Kernel *k, IRef a, IRef b);
IRef kidx_div(Kernel *k, IRef a, IRef b);
IRef kidx_mod(Kernel *k, IRef a, IRef b);
IRef kidx_raw(Kernel *k, IdxKind kind, IRef a, IRef b); /* a sum, product, quotient or remainder as it stands, not in normal form */
bool kidx_is_const(const Kernel *k, IRef i, int64_t *value);
/* idx = coefficient * axis + rest, where neither mentions the axis? false: not linear in it. Both in interned form. */
bool kidx_linear(Kernel *k, IRef i, uint32_t axis, IRef *coefficient, IRef *rest);
bool kidx_uses_axis(const Kernel *k, IRef i, uint32_t axis);
void kidx_mark_values(const Kernel *k, IRef i, bool *marked); /* sets marked[v] of the values v that it is made of */
bool kidx_below(Kernel *k, IRef i, IRef bound);               /* provably 0 <= i < bound? */
/* May axes `outer` and outer + 1 become one, as far as this expression goes? (coefficient of the outer one = that of the
 * inner one times its size, everywhere) */
bool kidx_mergeable(Kernel *k, IRef i, uint32_t outer);
/* An expression of `from` in `to`: sizes become what `size` says, axes and values are renamed. axis[a] == UINT32_MAX: a is the outer part of
 * axes that were merged; the innermost one's new axis stands for all. */
typedef struct KMap {
    IRef (*size)(void *user, uint32_t arg); /* an expression of `to` */
    void *user;
    const uint32_t *axis;
    const IRef *place; /* or: an expression of `to` for each axis; NULL: there is `axis` */
    const VRef *value;
} KMap;
IRef kidx_copy(Kernel *to, const Kernel *from, IRef i, const KMap *map);

/* Whoever reads v reads `instead`, an earlier one, and v is gone. Nothing is interned in the kernel behind this. */
void kernel_drop(Kernel *k, VRef v, VRef instead);
VRef kernel_inst(Kernel *k, KInst inst);                  /* interns pure instructions; operands that are absent are VREF_NONE (KINST) */
VRef kernel_index(Kernel *k, IRef i);                     /* an index as a value: KI_INDEX, or KI_CONST where it is one */
uint32_t kernel_operands(const KInst *inst, VRef out[4]); /* a, b, c, pred, those that are there */

/* What is folded along the r axes, or carried: its value is there behind them. */
static inline bool kernel_ends(const KInst *inst) { return inst_reduces(inst) || inst->kind == KI_NEXT || inst->kind == KI_ATTEND; }
/* The KI_CARRY that a loop goes on for; VREF_NONE: there is none. */
VRef kernel_ending(const Kernel *k);
/* What takes the points of the r axis one after the other. */
static inline bool kernel_in_order(const KInst *inst)
{
    return inst_runs(inst) || inst->kind == KI_SCATTER || inst->kind == KI_CARRY || inst->kind == KI_NEXT;
}

/* Facts derived from the body: which axes each instruction depends on (bit set), its stage and whether it is r-level. */
typedef struct InstInfo {
    uint32_t axes;
    uint8_t stage;
    bool r_level;
} InstInfo;
InstInfo *kernel_analyse(const Kernel *k, Arena *arena, uint32_t *n_stages);

/* A chain without values: b is 1. */
bool kernel_folds_scores(const Kernel *k, const KInst *x);
/* Of a FORM_ATTENTION: f16 or bf16, which queries, keys and values, of all dots, are or were widened from; else f32. */
DType kernel_attend_type(const Kernel *k);
/* The dtype that the order of a KI_FOLD follows from (order_of). */
DType kernel_fold_of(const Kernel *k, const KInst *fold);
/* Gives each fold the order that it has on a device in a mode: lowering does so once. */
void kernel_set_orders(Kernel *k, OrderDevice device, MathMode math);
/* The order of the kernel's folds in lanes. Where all are exact, and so any would do, it is that of sums. */
Order kernel_order(const Kernel *k, OrderDevice device);
/* Steps of a block of a product on the host; where it is exact: those of a product of floats. */
uint32_t kernel_dot_block(const KInst *dot);

/* The kernel of the launches whose sizes are those expected, as constants, in `arena`; the arguments are the same. NULL: it expects none, or has
 * no code of its own for them. */
Kernel *kernel_expected(const Kernel *k, Arena *arena);
/* The kernel that moves words, where k moves elements side by side that make some, and does nothing else (jit/words.c); else k. The arguments are the
 * same, but that they have words. Where words are read at any address: on the host. */
Kernel *kernel_words(Kernel *k, Arena *scratch);

/* Sets the schedule: a function of the kernel's text and the target (jit/schedule.c). */
typedef struct CudaTarget CudaTarget;
void schedule_kernel(Kernel *k, const CudaTarget *target);

Status kernel_verify(const Kernel *k); /* ST_INTERNAL with the instruction printed */
/* Is each order the one of this device and mode? ST_INTERNAL with the fold printed. */
Status kernel_verify_orders(const Kernel *k, OrderDevice device, MathMode math);
void kernel_print(const Kernel *k, Str *out);           /* its text (jit/kernel_text.c): kernels are interned by it */
const char *kernel_kind_name(const Kernel *k);          /* how its name begins: "matmul", "loop"...; "" of most */
const char *kernel_name(const Kernel *k, Arena *arena); /* "exp_sum_div": its ops, each named once, for people */
void kernel_print_inst(const Kernel *k, VRef v, Str *out);
/* The kernel that a text says, in `arena`: printing it gives the text again where that was printed. ST_FORMAT, with line and column;
 * ST_INTERNAL: one that kernel_verify refuses. */
Status kernel_parse(const char *text, Arena *arena, Kernel **out);

/*
 * The machine code's interface: the function run. `args` is the argument block: one 8-byte slot per Kernel.args entry.
 * run executes tasks [lo, hi) of phase `phase`; tasks of one phase are independent and results do not depend on how the
 * range is cut. `scratch` is room of this thread's own, aligned to 64. How many phases and tasks there are says the launch plan
 * (jit/launch_plan.h). A kernel without ARG_SCRATCH has one phase. Only phases of a split kernel share data, through it; so do those of
 * a product that sums up rows of a band (jit/fuse/bands.c), whose tasks have a place each there, one after the other.
 */
/* Few x points are fewer than that, a long r is at least so long: four blocks of a sum; rows of so many bytes together are kept between stages. */
enum { HOST_FEW = 64, HOST_FAR = 4 * 16384, HOST_KEEP = 10 << 20 };
typedef void KernelRun(void *const *args, int64_t phase, int64_t lo, int64_t hi, void *scratch);

#endif
