/*
 * Folds: what makes one value of many (ir/folds.def), in which order (ir/orders.def), and the reference that executes any fold in any order.
 *
 * A fold has a state of one or two parts. It begins with fold_start; a step puts an element to it, merge puts two states together; both are tapes
 * (ir/scalar.h), which interpreter and emitters run alike. States are of the accumulator's dtype (dtype_accumulator; argmax, argmin: that of what is
 * compared, where a bool counts as u8); a place is an i64.
 */
#ifndef IR_FOLD_H
#define IR_FOLD_H

#include "ir/base/str.h"
#include "ir/scalar.h"

typedef enum Fold {
#define FOLD(id, text, op, step, exact) FOLD_##id,
#define FOLD_OWN(id, text, op, operands, parts, exact) FOLD_##id,
#include "ir/folds.def"
#undef FOLD
#undef FOLD_OWN
    FOLD_COUNT
} Fold;

typedef struct FoldInfo {
    const char *text;
    uint8_t op, step; /* step: the elementwise op, OP_COUNT: tapes of its own */
    uint8_t operands, parts;
    bool exact; /* of floats, too */
} FoldInfo;
extern const FoldInfo fold_info[FOLD_COUNT];

/* OP_REDUCE_SUM -> FOLD_SUM, OP_CUMSUM -> FOLD_SUM, OP_MATMUL -> FOLD_DOT...; FOLD_COUNT: none. */
Fold fold_of(Op op);
static inline bool fold_has_place(Fold fold) { return fold_info[fold].parts == 2; }
/* What a fold of elements of this dtype computes in. */
DType fold_state(Fold fold, DType element);
/* Bits of the value that a state starts with, of the state's dtype: -0.0 for sums of floats (x + start == x, whatever x), +0.0 for a dot, 1, -inf or
 * the least integer for max and argmax... A place starts at that of the first element that its state will see. */
uint64_t fold_start(Fold fold, DType state);
/* What a fold over no elements gives: 0 for sums; argmax, argmin: place 0. */
uint64_t fold_empty(Fold fold, DType state);

/* Tapes of one part of a state: STEP(state, element), MERGE(state, later state); where there is a place both have it behind the value. They are
 * immutable and live for ever. NULL: out of memory. */
typedef enum FoldTape { FOLD_STEP, FOLD_MERGE, FOLD_TAPES } FoldTape;
const Tape *fold_tape(Fold fold, FoldTape which, unsigned part, DType state);

/* ---- orders ---- */

typedef enum OrderKind { ORD_ANY, ORD_LANES, ORD_CHAIN, ORD_PAIRS, ORD_PARTS, ORD_SERIAL, ORD_HALVES, ORDER_KINDS } OrderKind;

typedef struct Order {
    uint8_t kind;
    bool tree;      /* LANES: blocks are put together by lanes and a tree, too; else in order */
    uint16_t lanes; /* LANES */
    uint32_t block; /* LANES, CHAIN, PAIRS: elements of a block; 0: one block */
} Order;

/* Where something is folded: results are equal bit for bit only where this is the same. HOST_PAIRS: a host that multiplies bf16 by pairs. */
typedef enum OrderDevice { ORDER_HOST, ORDER_HOST_PAIRS, ORDER_CUDA, ORDER_DEVICES } OrderDevice;

/* The order in which a fold takes its elements: ORD_ANY where all orders give the same bits. `of`: the dtype of a dot's factors, of the state
 * of any other fold. */
Order order_of(Fold fold, bool running, DType of, OrderDevice device, MathMode math);
static inline bool order_same(Order a, Order b) { return a.kind == b.kind && a.tree == b.tree && a.lanes == b.lanes && a.block == b.block; }
/* Is it the order of this fold on some device, in some mode? */
bool order_known(Fold fold, bool running, DType of, Order order);
/* "lanes 64 block 16384", "lanes 1024 block 16384 tree", "chain block 256", "chain", "pairs block 256", "parts", "serial", "halves",
 * "any". */
void order_print(Order order, Str *out);
extern const char *const order_kind_text[ORDER_KINDS];

/* ---- the reference ---- */

/* `width` folds side by side; element i of fold j is at[i * step + (same ? 0 : j)]. */
typedef struct FoldInput {
    const void *at;
    size_t step;
    bool same; /* for all folds */
} FoldInput;

/* The step of PAIRS: sum + a1 * b1, then + a0 * b0, as the instruction does it. */
float fold_pair(float sum, const float a[2], const float b[2]);

/* Folds n elements of the state's dtype into out[width] (of argmax and argmin: places, i64); running: into out[n][width], sums only. in[1] is there
 * for a dot. false: out of memory. */
bool fold_run(Fold fold, Order order, bool running, DType state, size_t n, size_t width, const FoldInput *in, void *out);

#endif
