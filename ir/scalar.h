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

/* The table of ROW. */
enum { ROW_COUNT = 64, ROW_COLUMNS = 4 };
extern const double row_table[ROW_COUNT][ROW_COLUMNS];

/* STRICT: every op rounds as written. FAST: the same definitions for now, except where an expansion says otherwise
 * (and states its error bound); a CUDA device has other instructions for some ops then (ir/accuracy_cuda.def).
 * KEYED: part of the key. */
typedef enum MathMode { MATH_STRICT, MATH_FAST, MATH_MODES } MathMode;

typedef struct TapeInst {
    uint8_t op;       /* ScalarOp */
    uint8_t type;     /* SType of the result */
    uint16_t a, b, c; /* earlier instructions */
    uint64_t imm;     /* INPUT, CONST, LOOKUP, ROW */
} TapeInst;

/*
 * A cold region: instructions [begin, end) matter only in lanes where instruction `cond` (an I1 before `begin`) is set.
 * Their results are used outside the region only as operand b of a SELECT on that same `cond`. So a back end may
 * branch around the region when no lane is set, with any value for what it would have computed (zero, say); it may
 * also ignore the mark and execute everything, as the interpreter does. Regions are in order of `begin`; one may lie inside another.
 */
typedef struct TapeCold {
    uint16_t cond, begin, end;
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

/* Executes a tape over n elements. in[k]: n values of the k-th input in its storage form (dtype_bytes each; bools bytes);
 * out likewise. Returns false when memory runs out. The interpreter's engine; also used for scalars on the host. */
bool tape_run(const Tape *tape, const DType *in_types, DType out_type, size_t n, const void *const *in, void *out);

/* Bits of one element of `dtype` from a double or an int64 (rounded, saturated as CAST defines), and back. */
uint64_t scalar_from_double(DType dtype, double value);
uint64_t scalar_from_int(DType dtype, int64_t value);
double scalar_to_double(DType dtype, uint64_t bits);
int64_t scalar_to_int(DType dtype, uint64_t bits);
uint64_t scalar_least_int(DType dtype); /* of bools: 0 */
uint64_t scalar_greatest_int(DType dtype);
void scalar_store(DType dtype, uint64_t bits, void *at);
uint64_t scalar_load(DType dtype, const void *at);

#endif
