/*
 * Scalar tapes: the definition of every elementwise op as straight-line code of scalar operations.
 *
 *   const Tape *t = tape_get(OP_TANH, (DType[]){DT_F32}, DT_F32, MATH_STRICT);
 *
 * A tape is made once per (op, input dtypes, output dtype, math mode) by running the op's expand function
 * (ir/expand*.c) against a recorder, and is immutable afterwards. The interpreter executes tapes over blocks of
 * elements; the emitter turns each instruction into one LLVM instruction on vectors. So both run the same definition.
 *
 * f16 and bf16 are storage: a tape takes and gives their bits as I16, converts, computes in f32 and rounds once at its end
 * (bf16 conversion is integer arithmetic; f16 uses F16TOF32 / F32TOF16). bool inputs and outputs are I1.
 */
#ifndef IR_SCALAR_H
#define IR_SCALAR_H

#include "ir/base/status.h"
#include "ir/dtype.h"
#include "ir/op.h"

typedef enum ScalarOp {
#define SCALAR_OP(id, text, arity, result) SOP_##id,
#include "ir/scalar.def"
#undef SCALAR_OP
    SOP_COUNT
} ScalarOp;

/* Tables of LOOKUP. */
typedef enum LookupTable {
#define LOOKUP(id, ...) TABLE_##id,
#include "ir/lookup.def"
#undef LOOKUP
    TABLE_COUNT
} LookupTable;
enum { LOOKUP_ENTRIES = 8 };
extern const double lookup_table[TABLE_COUNT][LOOKUP_ENTRIES];

/* STRICT: every op rounds as written. FAST: the same definitions for now, except where an expansion says otherwise
 * (and states its error bound); a CUDA device has other instructions for some ops then (ir/accuracy_cuda.def).
 * KEYED: part of the key. */
typedef enum MathMode { MATH_STRICT, MATH_FAST, MATH_MODES } MathMode;

typedef struct TapeInst {
    uint8_t op;       /* ScalarOp */
    uint8_t type;     /* SType of the result */
    uint16_t a, b, c; /* earlier instructions */
    uint64_t imm;     /* INPUT, CONST, LOOKUP */
} TapeInst;

/*
 * A cold region: instructions [begin, end) matter only in lanes where instruction `cond` (an I1 before `begin`) is set.
 * Their results are used outside the region only as operand b of a SELECT on that same `cond`. So a back end may
 * branch around the region when no lane is set, with any value for what it would have computed (zero, say); it may
 * also ignore the mark and execute everything, as the interpreter does. Regions are in order of `begin`; one may lie inside another.
 * The results of one that is `whole` are right in the other lanes, too (bit for bit, NaN apart): where it is executed, no SELECT is needed.
 */
typedef struct TapeCold {
    uint16_t cond, begin, end;
    bool whole;
} TapeCold;

typedef struct Tape {
    const TapeInst *inst;
    uint16_t n, n_inputs;
    uint16_t out; /* the instruction that is the result */
    uint16_t n_cold;
    const TapeCold *cold;
} Tape;

/* The next region that is not inside region r; n_cold: there is none. */
uint16_t tape_region_after(const Tape *tape, uint16_t r);
/* Instructions outside of cold regions, which is what nearly every element takes: all of them, and those that a
 * processor executes: neither inputs nor constants, nor bits seen as another type. */
typedef struct TapeLength {
    uint32_t all, computing;
} TapeLength;
TapeLength tape_usual_length(const Tape *tape);

typedef struct ScalarOpInfo {
    const char *name;
    int8_t arity;
    uint8_t result; /* 0 SAME, 1 I1, 2 OWN */
} ScalarOpInfo;
extern const ScalarOpInfo scalar_op_info[SOP_COUNT];
extern const uint8_t stype_bits[STYPE_COUNT]; /* 1, 8, 16, 32, 64, 32, 64 */

/* The definition of an elementwise op. Thread-safe; the tape lives for ever. NULL: out of memory.
 * `in` has op_info[op].arity entries; `out` matters for CAST and is the rule's result otherwise. */
const Tape *tape_get(Op op, const DType *in, DType out, MathMode math);

/* Is the result of this op, on f16 or bf16 values, such a value, without rounding? */
bool op_keeps_halves(Op op);

/* The conversion between a stored element and the accumulator of sums: CAST tapes. The step of a reduction
 * (REDUCE_SUM: ADD, REDUCE_MAX: MAXIMUM, ...): which elementwise op combines two partial results. */
Op reduce_step(Op reduce);
/* Its start value in `dtype`'s own bits: -0.0 for float sums (so that x + start == x), 1 for products, -inf or the
 * least integer for max... */
uint64_t reduce_start(Op reduce, DType accumulator);

/* Executes a tape over n elements. in[k]: n values of the k-th input in its storage form (dtype_bytes each; bools bytes);
 * out likewise. Returns false when memory runs out. The interpreter's engine; also used for scalars on the host. */
bool tape_run(const Tape *tape, const DType *in_types, DType out_type, size_t n, const void *const *in, void *out);

/* Bits of one element of `dtype` from a double or an int64 (rounded, saturated as CAST defines), and back. */
uint64_t scalar_from_double(DType dtype, double value);
uint64_t scalar_from_int(DType dtype, int64_t value);
double scalar_to_double(DType dtype, uint64_t bits);
int64_t scalar_to_int(DType dtype, uint64_t bits);
void scalar_store(DType dtype, uint64_t bits, void *at);
uint64_t scalar_load(DType dtype, const void *at);

/*
 * The order of reductions: the same everywhere (interpreter, CPU kernels of any vector width or thread count), so
 * results are bit-equal. n elements, row-major over the reduced axes, are cut into blocks of REDUCE_BLOCK. In a block,
 * element i (counted from the block's start) is added to lane i % REDUCE_LANES, lanes starting at reduce_start; then for
 * s = LANES/2, LANES/4, ... 1: lane[j] = lane[j] + lane[j + s] for j < s. Block results are added in order, from the first
 * block's on: total = block0; total = total + block1; ... Zero elements: 0 for sums, 1 for products.
 * Only float sums and products depend on this; everything else is exact in any order.
 * CUDA devices keep another: CUDA_REDUCE_LANES lanes, as many as a block of threads works on at once, and the results of
 * blocks are put together by lanes and a tree as well, as if they were the elements of one block of any length.
 * A contraction instead cuts k into blocks of DOT_BLOCK; each is summed in order into one accumulator (f32 for f16 and bf16, else the
 * dtype), with FMA for floats, from +0, and the results of blocks are added in order, from the first block's on. On a CUDA device k is
 * one block; and there a product with a vector is a sum of products where its dtype is an integer one or math is fast
 * (jit/fuse.c).
 * A scan goes in order from its first element; on a CUDA device, where math is fast, by halving: n elements are those of the first
 * half of a tree (the largest power of two below n) and the rest, S(all) = S(first) + S(rest); each half is scanned in the same way,
 * starting from what stands before it: `base` for the first, base + S(first) for the rest, and base + x for one element. So an
 * element's value is that of the elements up to it alone, whatever their number, and it went through at most 2 * log2(n) + 1
 * additions: it is off by at most (2 * log2(n) + 1) * (half a unit in the last place of 1) * (the sum of the magnitudes), to
 * first order; in order it would be n of them.
 */
enum { REDUCE_LANES = 64, REDUCE_BLOCK = 16384, CUDA_REDUCE_LANES = 1024, DOT_BLOCK = 256 };

/* Whose order: reductions are equal bit for bit only where this is the same. */
typedef enum ReduceOrder { ORDER_HOST, ORDER_CUDA } ReduceOrder;

#endif
