/*
 * Executing tapes: the interpreter's engine.
 *
 * A tape is run over blocks of elements, one instruction at a time: each instruction is a plain typed loop over the
 * block, writing a row of its own. Cold regions are simply executed. On x86-64 the loops are compiled twice, for any
 * CPU and for one with AVX2 and FMA; both give the same bits, as every operation here is exactly rounded.
 *
 * What must hold: no contraction (-ffp-contract=off; clang is told below), no fast-math, round to nearest.
 */
#include "ir/tape_run.h"
#include "ir/base/os.h"

#include <math.h>
#include <string.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

enum { BLOCK = 256, STACK_BYTES = 8192 };

/* ---- 16-bit formats ---- */

static inline uint32_t float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline __attribute__((always_inline)) float widen_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = (uint32_t)(h & 0x7fff) << 13;
    /* As an f32 the bits are 2^-112 of the value; NaN and inf need the largest exponent. */
    uint32_t scaled = float_bits(float_of(rest) * 0x1p112f);
    uint32_t bits = rest >= 0x0f800000 ? (rest | 0x7f800000) : scaled;
    if (rest > 0x0f800000)
        bits |= 0x00400000;
    return float_of(sign | bits);
}

static inline __attribute__((always_inline)) uint16_t narrow_f16(float f)
{
    uint32_t u = float_bits(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    /* normal: rebias, add half of the last place (less one, plus its parity), drop 13 bits */
    uint32_t normal = (a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13;
    /* subnormal: adding 0.5 aligns the last place of an f16 subnormal with that of an f32 */
    uint32_t subnormal = float_bits(float_of(a < 0x38800000 ? a : 0) + 0.5f) - 0x3f000000;
    uint32_t r = a < 0x38800000 ? subnormal : normal;
    r = a >= 0x47800000 ? 0x7c00 : r;
    r = a > 0x7f800000 ? (0x7e00 | (a >> 13 & 0x3ff)) : r;
    return (uint16_t)(sign | r);
}

float half_to_float(uint16_t bits) { return widen_f16(bits); }
uint16_t half_from_float(float value) { return narrow_f16(value); }
float bhalf_to_float(uint16_t bits) { return float_of((uint32_t)bits << 16); }

uint16_t bhalf_from_float(float value)
{
    uint32_t u = float_bits(value);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* ---- one instruction over a block ---- */

/* Rows are read as what the next instruction takes them for. */
typedef float __attribute__((may_alias)) f32;
typedef double __attribute__((may_alias)) f64;
typedef uint8_t __attribute__((may_alias)) u8;
typedef uint16_t __attribute__((may_alias)) u16;
typedef uint32_t __attribute__((may_alias)) u32;
typedef uint64_t __attribute__((may_alias)) u64;
typedef int8_t __attribute__((may_alias)) i8;
typedef int16_t __attribute__((may_alias)) i16;
typedef int32_t __attribute__((may_alias)) i32;
typedef int64_t __attribute__((may_alias)) i64;

#define UN(R, A, expr)                   \
    {                                    \
        R *restrict o_ = out;            \
        const A *a_ = pa;                \
        for (size_t i = 0; i < n; i++) { \
            const A a = a_[i];           \
            o_[i] = (R)(expr);           \
        }                                \
        return;                          \
    }
#define BIN(R, A, expr)                   \
    {                                     \
        R *restrict o_ = out;             \
        const A *a_ = pa, *b_ = pb;       \
        for (size_t i = 0; i < n; i++) {  \
            const A a = a_[i], b = b_[i]; \
            o_[i] = (R)(expr);            \
        }                                 \
        return;                           \
    }
#define TER(R, A, expr)                   \
    {                                     \
        R *restrict o_ = out;             \
        const A *a_ = pa;                 \
        const R *b_ = pb, *c_ = pc;       \
        for (size_t i = 0; i < n; i++) {  \
            const A a = a_[i];            \
            const R b = b_[i], c = c_[i]; \
            o_[i] = (R)(expr);            \
        }                                 \
        return;                           \
    }

/* clang-format off */
#define KEY(op, type) ((unsigned)(op) * STYPE_COUNT + (unsigned)(type))
#define KEY3(op, type, from) ((KEY(op, type)) * STYPE_COUNT + (unsigned)(from))
#define CASE(op, type) case KEY(SOP_##op, SC_##type):

#define FLOAT_OPS(T, C, s)                                                                         \
    CASE(ADD, T) BIN(C, C, a + b)                                                                  \
    CASE(SUB, T) BIN(C, C, a - b)                                                                  \
    CASE(MUL, T) BIN(C, C, a * b)                                                                  \
    CASE(DIV, T) BIN(C, C, a / b)                                                                  \
    CASE(FMA, T) TER(C, C, fma##s(a, b, c))                                                        \
    CASE(FNEG, T) UN(C, C, -a)                                                                     \
    CASE(FABS, T) UN(C, C, fabs##s(a))                                                             \
    CASE(SQRT, T) UN(C, C, sqrt##s(a))                                                             \
    CASE(FLOOR, T) UN(C, C, floor##s(a))                                                           \
    CASE(CEIL, T) UN(C, C, ceil##s(a))                                                             \
    CASE(TRUNC, T) UN(C, C, trunc##s(a))                                                           \
    CASE(RINT, T) UN(C, C, rint##s(a))

#define INT_OPS(T, U, S, W)                                                                        \
    CASE(ADD, T) BIN(U, U, a + b)                                                                  \
    CASE(SUB, T) BIN(U, U, a - b)                                                                  \
    CASE(MUL, T) BIN(U, U, (u64)a * b)                                                        \
    CASE(SDIV, T) BIN(S, S, a / b)                                                                 \
    CASE(UDIV, T) BIN(U, U, a / b)                                                                 \
    CASE(SREM, T) BIN(S, S, a % b)                                                                 \
    CASE(UREM, T) BIN(U, U, a % b)                                                                 \
    CASE(SHL, T) BIN(U, U, (u64)a << (b & (W - 1)))                                           \
    CASE(LSHR, T) BIN(U, U, a >> (b & (W - 1)))                                                    \
    CASE(ASHR, T) BIN(S, S, a >> (b & (W - 1)))                                                    \
    CASE(CTLZ, T) UN(U, U, a == 0 ? W : __builtin_clzll(a) - (64 - W))

#define LOGIC_OPS(T, U)                                                                            \
    CASE(AND, T) BIN(U, U, a & b)                                                                  \
    CASE(OR, T) BIN(U, U, a | b)                                                                   \
    CASE(XOR, T) BIN(U, U, a ^ b)                                                                  \
    CASE(SELECT, T) TER(U, u8, a ? b : c)                                                     \
    CASE(BITCAST, T) UN(U, U, a)

#define COMPARE_OPS(T, U, S)                                                                       \
    CASE(IEQ, T) BIN(u8, U, a == b)                                                           \
    CASE(INE, T) BIN(u8, U, a != b)                                                           \
    CASE(SLT, T) BIN(u8, S, a < b)                                                            \
    CASE(SLE, T) BIN(u8, S, a <= b)                                                           \
    CASE(ULT, T) BIN(u8, U, a < b)                                                            \
    CASE(ULE, T) BIN(u8, U, a <= b)

#define FLOAT_COMPARE_OPS(T, C)                                                                    \
    CASE(FEQ, T) BIN(u8, C, a == b)                                                           \
    CASE(FNE, T) BIN(u8, C, a != b)                                                           \
    CASE(FLT, T) BIN(u8, C, a < b)                                                            \
    CASE(FLE, T) BIN(u8, C, a <= b)

#define EXT(TO, CTO, STO, FROM, CFROM, SFROM)                                                      \
    case KEY3(SOP_ZEXT, SC_##TO, SC_##FROM): UN(CTO, CFROM, a)                                     \
    case KEY3(SOP_SEXT, SC_##TO, SC_##FROM): UN(STO, SFROM, a)
#define FROM_I1(TO, CTO)                                                                           \
    case KEY3(SOP_ZEXT, SC_##TO, SC_I1): UN(CTO, u8, a)                                            \
    case KEY3(SOP_SEXT, SC_##TO, SC_I1): UN(CTO, u8, UINT64_C(0) - a)                              \
    case KEY3(SOP_ITRUNC, SC_I1, SC_##TO): UN(u8, CTO, a & 1)
#define TRUNC(TO, CTO, FROM, CFROM) case KEY3(SOP_ITRUNC, SC_##TO, SC_##FROM): UN(CTO, CFROM, a)
#define LIMIT(CF, CS) ((CF)((CS)1 << (8 * sizeof(CS) - 2)) * 2) /* of a signed type: exact */
#define INT_FLOAT(F, CF, I, CU, CS)                                                                \
    case KEY3(SOP_SITOFP, SC_##F, SC_##I): UN(CF, CS, a)                                           \
    case KEY3(SOP_UITOFP, SC_##F, SC_##I): UN(CF, CU, a)                                           \
    case KEY3(SOP_FPTOSI, SC_##I, SC_##F): UN(CS, CF, a >= -LIMIT(CF, CS) && a < LIMIT(CF, CS) ? (CS)a : 0) \
    case KEY3(SOP_FPTOUI, SC_##I, SC_##F): UN(CU, CF, a)


/* Conversions, told apart by both types. */
static inline __attribute__((always_inline)) void convert_block(unsigned key, size_t n, void *out,
                                                                const void *pa)
{
    switch (key) {
        FROM_I1(I8, u8)
        FROM_I1(I16, u16)
        FROM_I1(I32, u32)
        FROM_I1(I64, u64)
        EXT(I16, u16, i16, I8, u8, i8)
        EXT(I32, u32, i32, I8, u8, i8)
        EXT(I64, u64, i64, I8, u8, i8)
        EXT(I32, u32, i32, I16, u16, i16)
        EXT(I64, u64, i64, I16, u16, i16)
        EXT(I64, u64, i64, I32, u32, i32)
        TRUNC(I8, u8, I16, u16)
        TRUNC(I8, u8, I32, u32)
        TRUNC(I8, u8, I64, u64)
        TRUNC(I16, u16, I32, u32)
        TRUNC(I16, u16, I64, u64)
        TRUNC(I32, u32, I64, u64)
        INT_FLOAT(F32, f32, I8, u8, i8)
        INT_FLOAT(F32, f32, I16, u16, i16)
        INT_FLOAT(F32, f32, I32, u32, i32)
        INT_FLOAT(F32, f32, I64, u64, i64)
        INT_FLOAT(F64, f64, I8, u8, i8)
        INT_FLOAT(F64, f64, I16, u16, i16)
        INT_FLOAT(F64, f64, I32, u32, i32)
        INT_FLOAT(F64, f64, I64, u64, i64)
    case KEY3(SOP_FPEXT, SC_F64, SC_F32):
        UN(f64, f32, a)
    case KEY3(SOP_FPTRUNC, SC_F32, SC_F64):
        UN(f32, f64, a)
    case KEY3(SOP_F16TOF32, SC_F32, SC_I16):
        UN(f32, u16, widen_f16(a))
    case KEY3(SOP_F32TOF16, SC_I16, SC_F32):
        UN(u16, f32, narrow_f16(a))
    case KEY3(SOP_F32TOBF16, SC_I16, SC_F32):
        UN(u16, f32, bhalf_from_float(a))
    case KEY3(SOP_STICKY, SC_I64, SC_I64):
        UN(u64, u64, (a & ~(u64)UINT32_MAX) | (u64)((u32)a != 0) << 31)
    }
}

/* out[i] = op(a[i], b[i], c[i]); `type` is the result's, `from` the first operand's. */
static inline __attribute__((always_inline)) void execute_block(ScalarOp op, SType type, SType from,
                                                                size_t n, void *out,
                                                                const void *pa, const void *pb,
                                                                const void *pc)
{
    /* comparisons are told apart by what they compare */
    switch (scalar_op_info[op].result == 1 ? KEY(op, from) : KEY(op, type)) {
        FLOAT_OPS(F32, f32, f)
        FLOAT_OPS(F64, f64, )
        INT_OPS(I8, u8, i8, 8)
        INT_OPS(I16, u16, i16, 16)
        INT_OPS(I32, u32, i32, 32)
        INT_OPS(I64, u64, i64, 64)
        LOGIC_OPS(I1, u8)
        LOGIC_OPS(I8, u8)
        LOGIC_OPS(I16, u16)
        LOGIC_OPS(I32, u32)
        LOGIC_OPS(I64, u64)
        COMPARE_OPS(I1, u8, u8)
        COMPARE_OPS(I8, u8, i8)
        COMPARE_OPS(I16, u16, i16)
        COMPARE_OPS(I32, u32, i32)
        COMPARE_OPS(I64, u64, i64)
        FLOAT_COMPARE_OPS(F32, f32)
        FLOAT_COMPARE_OPS(F64, f64)
    case KEY(SOP_LOOKUP, SC_F64): /* b: the table */
        UN(f64, u32, ((const f64 *)pb)[a % LOOKUP_ENTRIES])
    case KEY(SOP_ROW, SC_F64): /* b: the table, from the column on */
        UN(f64, u64, ((const f64 *)pb)[a % ROW_COUNT * ROW_COLUMNS])
    case KEY(SOP_SELECT, SC_F32):
        TER(u32, u8, a ? b : c)
    case KEY(SOP_SELECT, SC_F64):
        TER(u64, u8, a ? b : c)
    case KEY(SOP_BITCAST, SC_F32):
        UN(u32, u32, a)
    case KEY(SOP_BITCAST, SC_F64):
        UN(u64, u64, a)
    }
    convert_block(KEY3(op, type, from), n, out, pa);
}
/* clang-format on */

typedef void ExecuteFn(ScalarOp op, SType type, SType from, size_t n, void *out, const void *pa, const void *pb, const void *pc);

static void execute_any(ScalarOp op, SType type, SType from, size_t n, void *out, const void *pa, const void *pb, const void *pc)
{
    execute_block(op, type, from, n, out, pa, pb, pc);
}

static void axpy_f32_any(size_t n, float *restrict acc, float a, const float *restrict x)
{
    for (size_t i = 0; i < n; i++)
        acc[i] = fmaf(a, x[i], acc[i]);
}

static void axpy_f64_any(size_t n, double *restrict acc, double a, const double *restrict x)
{
    for (size_t i = 0; i < n; i++)
        acc[i] = fma(a, x[i], acc[i]);
}

#ifdef __x86_64__
__attribute__((target("avx2,fma"))) static void axpy_f32_fma(size_t n, float *restrict acc, float a, const float *restrict x)
{
    for (size_t i = 0; i < n; i++)
        acc[i] = fmaf(a, x[i], acc[i]);
}

__attribute__((target("avx2,fma"))) static void axpy_f64_fma(size_t n, double *restrict acc, double a, const double *restrict x)
{
    for (size_t i = 0; i < n; i++)
        acc[i] = fma(a, x[i], acc[i]);
}

__attribute__((target("avx2,fma"))) static void execute_fma(ScalarOp op, SType type, SType from, size_t n, void *out, const void *pa,
                                                            const void *pb, const void *pc)
{
    execute_block(op, type, from, n, out, pa, pb, pc);
}
#endif

#ifdef __x86_64__
static bool has_fma(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static ExecuteFn *choose_execute(void) { return has_fma() ? execute_fma : execute_any; }

void tape_axpy_f32(size_t n, float *acc, float a, const float *x) { (has_fma() ? axpy_f32_fma : axpy_f32_any)(n, acc, a, x); }

void tape_axpy_f64(size_t n, double *acc, double a, const double *x) { (has_fma() ? axpy_f64_fma : axpy_f64_any)(n, acc, a, x); }
#else
static ExecuteFn *choose_execute(void) { return execute_any; }
void tape_axpy_f32(size_t n, float *acc, float a, const float *x) { axpy_f32_any(n, acc, a, x); }
void tape_axpy_f64(size_t n, double *acc, double a, const double *x) { axpy_f64_any(n, acc, a, x); }
#endif

uint64_t tape_fold(ScalarOp op, SType type, SType from, const uint64_t operand[3])
{
    uint64_t out = 0;
    choose_execute()(op, type, from, 1, &out, &operand[0], &operand[1], &operand[2]);
    return out;
}

/* ---- a tape over blocks ---- */

static size_t row_bytes(SType type, size_t block) { return ((stype_bits[type] + 7u) / 8 * block + 31) & ~(size_t)31; }

/* Fills the row of a CONST. */
static void fill(void *row, SType type, uint64_t bits, size_t n)
{
    size_t bytes = (stype_bits[type] + 7u) / 8;
    for (size_t i = 0; i < n; i++)
        memcpy((char *)row + i * bytes, &bits, bytes); /* little endian */
}

bool tape_run(const Tape *tape, const DType *in_types, DType out_type, size_t n, const void *const *in, void *out)
{
    if (n == 0)
        return true;
    const TapeInst *inst = tape->inst;
    size_t block = n < BLOCK ? n : BLOCK, bytes = tape->n * sizeof(char *);
    for (uint16_t k = 0; k < tape->n; k++)
        if (inst[k].op != SOP_INPUT)
            bytes += row_bytes((SType)inst[k].type, block);
    _Alignas(32) char small[STACK_BYTES];
    char *heap = NULL;
    if (bytes + 32 > sizeof small && !(heap = os_alloc(bytes + 32)))
        return false;
    char **row = (char **)(void *)(heap ? heap : small);
    char *at = (char *)(row + tape->n);
    at += (32 - (uintptr_t)at % 32) % 32;
    for (uint16_t k = 0; k < tape->n; k++) {
        if (inst[k].op == SOP_INPUT)
            continue;
        row[k] = at;
        at += row_bytes((SType)inst[k].type, block);
        if (inst[k].op == SOP_CONST)
            fill(row[k], (SType)inst[k].type, inst[k].imm, block);
    }
    ExecuteFn *execute = choose_execute();
    size_t out_bytes = dtype_bytes(out_type);
    for (size_t done = 0; done < n; done += block) {
        size_t now = n - done < block ? n - done : block;
        for (uint16_t k = 0; k < tape->n; k++) {
            const TapeInst *i = &inst[k];
            if (i->op == SOP_INPUT)
                row[k] = (char *)(uintptr_t)in[i->imm] + done * dtype_bytes(in_types[i->imm]);
            else if (i->op == SOP_LOOKUP)
                execute(SOP_LOOKUP, (SType)i->type, (SType)inst[i->a].type, now, row[k], row[i->a], lookup_table[i->imm], NULL);
            else if (i->op == SOP_ROW)
                execute(SOP_ROW, (SType)i->type, (SType)inst[i->a].type, now, row[k], row[i->a], &row_table[0][i->imm], NULL);
            else if (i->op != SOP_CONST)
                execute((ScalarOp)i->op, (SType)i->type, (SType)inst[i->a].type, now, row[k], row[i->a], row[i->b], row[i->c]);
        }
        memcpy((char *)out + done * out_bytes, row[tape->out], now * out_bytes);
    }
    os_free(heap);
    return true;
}
