/*
 * The recorder that expansions are written against, and what they share. Internal to ir/expand*.c and ir/tape*.c.
 *
 *   EXPAND(SQUARE) { return x_mul(e, x[0], x[0]); }
 *
 * An X names a recorded instruction. Equal instructions are recorded once and constants are folded (exactly, by the
 * interpreter's own engine), so expansions are written for the reader. When memory runs out the recorder goes dead
 * (`failed`) and returns instruction 0 from then on; only tape_get looks at that.
 *
 * f16 and bf16: tape_get widens the inputs of a float op to f32 before the expansion runs and narrows its result, so
 * an expansion sees F32 or F64 -- but for the few in tape.c's list of ops that work on stored bits.
 */
#ifndef IR_EXPAND_H
#define IR_EXPAND_H

#include "ir/scalar.h"

typedef uint16_t X;

typedef struct E {
    TapeInst *inst;
    uint32_t n, cap;
    uint16_t *table; /* open addressing: instruction + 1 */
    uint32_t table_cap;
    TapeCold *cold;
    uint32_t n_cold;
    bool failed;
    MathMode math;
    DType in[4], out; /* as the expansion sees them: f32 where the tape's are f16 or bf16 */
} E;

typedef X ExpandFn(E *e, const X *x);

/* The definition of an op is a function `expand_<ID>`; each elementwise row needs one, or the library does not link. */
#define EXPAND(id) X expand_##id(E *e, const X *x)
#define OP_IS_EW_EW(...) __VA_ARGS__
#define OP_IS_EW_LEAF(...)
#define OP_IS_EW_VIEW(...)
#define OP_IS_EW_REDUCE(...)
#define OP_IS_EW_SCAN(...)
#define OP_IS_EW_GATHER(...)
#define OP_IS_EW_SCATTER(...)
#define OP_IS_EW_SORT(...)
#define OP_IS_EW_CONTRACT(...)
#define OP_IS_EW_BODY(...)
#define OP_IS_EW_RESULT(...)
#define OP(id, text, arity, cls, rule, flags) OP_IS_EW_##cls(EXPAND(id);)
#include "ir/ops.def"
#undef OP

/* Recording. x_inst is the general form; `type` is that of the result. */
X x_inst(E *e, ScalarOp op, SType type, X a, X b, X c);
X x_bits(E *e, SType type, uint64_t bits);    /* a constant by its bits */
X x_num(E *e, SType type, double value);      /* a constant, rounded to a float type or taken as an int */
X x_lookup(E *e, LookupTable table, X index); /* F64 by the lowest bits of an I32 */
X x_row(E *e, X index, int column);           /* the same of an I64 */
static inline SType x_type(const E *e, X x) { return (SType)e->inst[x].type; }
static inline X x_like(E *e, X x, double value) { return x_num(e, x_type(e, x), value); }

/*
 * A cold region: what is recorded between x_cold_begin(e, cond) and x_cold_end(e) matters only in lanes where `cond`
 * (an I1) is set. Results may leave the region only through x_select(e, cond, inside, outside). Regions may hold others.
 */
void x_cold_begin(E *e, X cond);
void x_cold_end(E *e);

#define X_UNARY(name, OPCODE) \
    static inline X x_##name(E *e, X a) { return x_inst(e, SOP_##OPCODE, x_type(e, a), a, 0, 0); }
#define X_BINARY(name, OPCODE) \
    static inline X x_##name(E *e, X a, X b) { return x_inst(e, SOP_##OPCODE, x_type(e, a), a, b, 0); }
#define X_COMPARE(name, OPCODE) \
    static inline X x_##name(E *e, X a, X b) { return x_inst(e, SOP_##OPCODE, SC_I1, a, b, 0); }
#define X_CONVERT(name, OPCODE) \
    static inline X x_##name(E *e, X a, SType to) { return x_inst(e, SOP_##OPCODE, to, a, 0, 0); }
X_BINARY(add, ADD)
X_BINARY(sub, SUB)
X_BINARY(mul, MUL)
X_BINARY(div, DIV)
X_BINARY(sdiv, SDIV)
X_BINARY(udiv, UDIV)
X_BINARY(srem, SREM)
X_BINARY(urem, UREM)
X_UNARY(fneg, FNEG)
X_UNARY(fabs, FABS)
X_UNARY(sqrt, SQRT)
X_UNARY(floor, FLOOR)
X_UNARY(ceil, CEIL)
X_UNARY(trunc, TRUNC)
X_UNARY(rint, RINT)
X_UNARY(ctlz, CTLZ)
X_UNARY(sticky, STICKY)
X_BINARY(and, AND)
X_BINARY(or, OR)
X_BINARY(xor, XOR)
X_BINARY(shl, SHL)
X_BINARY(lshr, LSHR)
X_BINARY(ashr, ASHR)
X_COMPARE(feq, FEQ)
X_COMPARE(fne, FNE)
X_COMPARE(flt, FLT)
X_COMPARE(fle, FLE)
X_COMPARE(ieq, IEQ)
X_COMPARE(ine, INE)
X_COMPARE(slt, SLT)
X_COMPARE(sle, SLE)
X_COMPARE(ult, ULT)
X_COMPARE(ule, ULE)
X_CONVERT(bitcast, BITCAST)
X_CONVERT(sext, SEXT)
X_CONVERT(zext, ZEXT)
X_CONVERT(itrunc, ITRUNC)
X_CONVERT(sitofp, SITOFP)
X_CONVERT(uitofp, UITOFP)
X_CONVERT(fptosi, FPTOSI)
X_CONVERT(fptoui, FPTOUI)
X_CONVERT(fpext, FPEXT)
X_CONVERT(fptrunc, FPTRUNC)
X_CONVERT(f16tof32, F16TOF32)
X_CONVERT(f32tof16, F32TOF16)
X_CONVERT(f32tobf16, F32TOBF16)
#undef X_UNARY
#undef X_BINARY
#undef X_COMPARE
#undef X_CONVERT

static inline X x_fma(E *e, X a, X b, X c) { return x_inst(e, SOP_FMA, x_type(e, a), a, b, c); }
static inline X x_select(E *e, X cond, X yes, X no) { return x_inst(e, SOP_SELECT, x_type(e, yes), cond, yes, no); }
/* a * b + constant, shifts by a constant, and other pairs with a constant */
static inline X x_shl_n(E *e, X a, int n) { return x_shl(e, a, x_like(e, a, n)); }
static inline X x_lshr_n(E *e, X a, int n) { return x_lshr(e, a, x_like(e, a, n)); }
static inline X x_ashr_n(E *e, X a, int n) { return x_ashr(e, a, x_like(e, a, n)); }
static inline X x_and_bits(E *e, X a, uint64_t bits) { return x_and(e, a, x_bits(e, x_type(e, a), bits)); }
static inline X x_or_bits(E *e, X a, uint64_t bits) { return x_or(e, a, x_bits(e, x_type(e, a), bits)); }
static inline X x_xor_bits(E *e, X a, uint64_t bits) { return x_xor(e, a, x_bits(e, x_type(e, a), bits)); }
static inline X x_add_bits(E *e, X a, uint64_t bits) { return x_add(e, a, x_bits(e, x_type(e, a), bits)); }
static inline X x_not(E *e, X cond) { return x_xor(e, cond, x_bits(e, SC_I1, 1)); }

/* What F32 and F64 differ in. */
typedef struct FloatForm {
    SType bits; /* the integer type of the same width */
    int width, mantissa, bias;
    uint64_t sign, exponent, one, quiet; /* bit patterns: sign, infinity, 1.0, the quiet NaN */
    double min_normal, max;
} FloatForm;
extern const FloatForm float_forms[2]; /* F32, F64 */
static inline const FloatForm *x_form(const E *e, X x) { return &float_forms[x_type(e, x) == SC_F64]; }

static inline X x_as_int(E *e, X x) { return x_bitcast(e, x, x_form(e, x)->bits); }
static inline X x_as_float(E *e, X i) { return x_bitcast(e, i, x_type(e, i) == SC_I64 ? SC_F64 : SC_F32); }
static inline X x_inf(E *e, X x) { return x_bits(e, x_type(e, x), x_form(e, x)->exponent); }
static inline X x_nan(E *e, X x) { return x_bits(e, x_type(e, x), x_form(e, x)->quiet); }
static inline X x_isnan(E *e, X x) { return x_fne(e, x, x); }
/* y with x's sign bit; y >= 0 must hold */
static inline X x_with_sign(E *e, X y, X x)
{
    const FloatForm *f = x_form(e, x);
    return x_as_float(e, x_or(e, x_as_int(e, y), x_and_bits(e, x_as_int(e, x), f->sign)));
}

/* A polynomial with coefficients for F32 and F64, lowest first. x_poly: c[0] + x (c[1] + x (...)) by fused multiply-add. */
typedef struct Poly {
    struct {
        int n;
        double c[24];
    } of[2];
} Poly;
X x_poly(E *e, X x, const Poly *p);

/* A tape of n inputs of these dtypes, none of 16-bit floats, by an expansion that is no op's; the caller's. NULL: out of memory. */
typedef X RecordFn(E *e, const X *x, const void *what);
Tape *tape_record(RecordFn *record, const void *what, const DType *in, unsigned n);
/* Puts a tape that was made into an empty slot, for ever; another thread's that was faster takes its place. NULL stays NULL. */
const Tape *tape_publish(_Atomic(const Tape *) *slot, Tape *made);

/* f16/bf16 bits <-> F32 (ir/expand_cast.c) */
X x_widen(E *e, DType dtype, X bits);
X x_narrow(E *e, DType dtype, X f32);
X x_narrow_exact(E *e, DType dtype, X f32); /* of what is such a value, or a NaN whose other bits are 0 */

#endif
