// Floating point: evals, comparisons, conversions.
//
// f32 and f64 are the host's, rounding modes included. f16 and bf16 are computed in f64 and rounded once: for one
// operation on numbers this short that is exact (fma is rounded to odd first). NaN results of f32 are 0x7fffffff, of f16 and
// bf16 0x7fff, as devices give them. Approximations (.approx) are computed in f64 and rounded: better than any device. With
// rough=on those of f32 that the PTX ISA gives an error for are off by all of it, upwards or downwards as the operands'
// bits say; what is rightly 0 or infinite stays so. And neg and abs of a NaN, whose bits the ISA leaves open, give that one NaN, as devices do.
#include "tests/cuda_driver/driver.h"
#include "tests/cuda_driver/exec.h"

#include <fenv.h>
#include <math.h>
#include <string.h>

static float as_f32(uint64_t bits)
{
    uint32_t b = (uint32_t)bits;
    float f;
    memcpy(&f, &b, sizeof f);
    return f;
}

static double as_f64(uint64_t bits)
{
    double f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint64_t bits_f32(float f)
{
    uint32_t b;
    memcpy(&b, &f, sizeof b);
    return b;
}

static uint64_t bits_f64(double f)
{
    uint64_t b;
    memcpy(&b, &f, sizeof b);
    return b;
}

static uint64_t flush_f32(uint64_t bits) { return bits & 0x7f800000u ? bits : bits & 0x80000000u; }

static float in_f32(const Inst *in, uint64_t bits) { return as_f32(in->flags & FLAG(ftz) ? flush_f32(bits) : bits); }

static uint64_t out_f32(const Inst *in, float f)
{
    if (in->flags & FLAG(sat))
        f = f > 0 ? (f < 1 ? f : 1) : 0; // NaN gives +0
    if (f != f)
        return 0x7fffffffu;
    uint64_t bits = bits_f32(f);
    return in->flags & FLAG(ftz) ? flush_f32(bits) : bits;
}

static uint64_t out_f64(const Inst *in, double f)
{
    if (in->flags & FLAG(sat))
        f = f > 0 ? (f < 1 ? f : 1) : 0;
    return bits_f64(f);
}

// ---- formats ----

static const struct Format {
    int precision, least; // bits of the significand with the hidden one; exponent of the least normal number
    uint64_t infinity, nan;
} formats[T_COUNT] = {
    [T_F16] = {11, -14, 0x7c00, 0x7fff},
    [T_BF16] = {8, -126, 0x7f80, 0x7fff},
    [T_F32] = {24, -126, 0x7f800000u, 0x7fffffffu},
};

double float_widen(PtxType type, uint64_t bits)
{
    if (type == T_F64)
        return as_f64(bits);
    if (type == T_F32 || type == T_TF32)
        return (double)as_f32(bits);
    if (type == T_BF16)
        return (double)as_f32((bits & 0xffff) << 16);
    uint64_t exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
    double v = exponent == 31 ? (fraction ? (double)NAN : (double)INFINITY)
               : exponent     ? ldexp((double)(fraction | 0x400), (int)exponent - 25)
                              : ldexp((double)fraction, -24);
    return bits & 0x8000 ? -v : v;
}

uint64_t float_narrow(PtxType type, double value, int mode)
{
    if (type == T_F64)
        return bits_f64(value);
    const struct Format *f = &formats[type];
    unsigned top = ptx_types[type].bits - 1u;
    if (value != value)
        return f->nan;
    bool negative = signbit(value);
    uint64_t sign = negative ? UINT64_C(1) << top : 0;
    value = fabs(value);
    if (isinf(value))
        return sign | f->infinity;
    if (value == 0)
        return sign;
    int exponent;
    frexp(value, &exponent);
    exponent = exponent - 1 < f->least ? f->least : exponent - 1;
    double units = ldexp(value, f->precision - 1 - exponent); // of the last place
    bool up = mode == M_ROUND_rp ? !negative : mode == M_ROUND_rm ? negative : false;
    double whole = up ? ceil(units) : mode == M_ROUND_rz || mode == M_ROUND_rm || mode == M_ROUND_rp ? floor(units) : rint(units);
    if (mode == M_ROUND_rna)
        whole = floor(units + 0.5);
    // The hidden bit of `whole` adds one to the exponent field; a number below the least normal one has none.
    uint64_t bits = ((uint64_t)(exponent - f->least) << (f->precision - 1)) + (uint64_t)whole;
    if (bits >= f->infinity)
        bits = f->infinity - (!up && (mode == M_ROUND_rz || mode == M_ROUND_rm || mode == M_ROUND_rp));
    return sign | bits;
}

double float_fma_odd(double a, double b, double c)
{
    double p = a * b, s = p + c; // the product of two short numbers is exact
    double part = s - p, error = (p - (s - part)) + (c - part);
    if (error != 0 && isfinite(s) && !(bits_f64(s) & 1))
        s = nextafter(s, error > 0 ? (double)INFINITY : -(double)INFINITY);
    return s;
}

// ---- evals ----

#define EVAL_F32(name, ...)                                                                           \
    static uint64_t eval_##name##_f32(const Inst *in, uint64_t a, uint64_t b, uint64_t c, uint64_t d) \
    {                                                                                                 \
        float x = in_f32(in, a), y = in_f32(in, b), z = in_f32(in, c);                                \
        (void)d, (void)x, (void)y, (void)z;                                                           \
        return out_f32(in, __VA_ARGS__);                                                              \
    }
#define EVAL_F64(name, ...)                                                                           \
    static uint64_t eval_##name##_f64(const Inst *in, uint64_t a, uint64_t b, uint64_t c, uint64_t d) \
    {                                                                                                 \
        double x = as_f64(a), y = as_f64(b), z = as_f64(c);                                           \
        (void)d, (void)x, (void)y, (void)z;                                                           \
        return out_f64(in, __VA_ARGS__);                                                              \
    }
#define EVAL_BOTH(name, ...) EVAL_F32(name, __VA_ARGS__) EVAL_F64(name, __VA_ARGS__)

EVAL_BOTH(add, x + y)
EVAL_BOTH(sub, x - y)
EVAL_BOTH(mul, x *y)
EVAL_F32(fma, fmaf(x, y, z))
EVAL_F64(fma, fma(x, y, z))

static bool upwards(float x, float y)
{
    uint32_t h = (uint32_t)bits_f32(x) * 0x9e3779b1u ^ (uint32_t)bits_f32(y) * 0x85ebca77u;
    return h >> 16 & 1;
}

static bool stays(float r) { return !settings.rough || r == 0 || !isfinite(r); }

// `units` in the last place away from the rounded result.
static float off_by_units(float x, float y, double exact, int units)
{
    float r = (float)exact, to = upwards(x, y) ? INFINITY : -INFINITY;
    for (int i = 0; i < units && !stays(r); i++) {
        float next = nextafterf(r, to);
        if (next == 0 || !isfinite(next))
            break;
        r = next;
    }
    return r;
}

// The f32 furthest from the exact result that is no further than `error`.
static float off_by(float x, double exact, double error)
{
    float r = (float)exact;
    if (stays(r))
        return r;
    bool up = upwards(x, 0);
    double edge = up ? exact + error : exact - error;
    float far = (float)edge;
    if (up ? (double)far > edge : (double)far < edge)
        far = nextafterf(far, up ? -INFINITY : INFINITY);
    return far == 0 || !isfinite(far) ? r : far;
}

static float binary_logarithm(float x)
{
    double exact = log2((double)x);
    return off_by(x, exact, x > 0.5f && x < 2 ? 0x1p-22 : fabs(exact) * 0x1p-22);
}

static float divide(const Inst *in, float x, float y)
{
    float size = fabsf(y);
    if (in->flags & FLAG(approx) && size > 0x1p126f && size < INFINITY) // documented: the reciprocal underflows
        return isinf(x) ? NAN : copysignf(0, x) * copysignf(1, y);
    return in->flags & (FLAG(approx) | FLAG(full)) ? off_by_units(x, y, (double)(x / y), 2) : x / y;
}

static float root(float x)
{
    double exact = 1 / sqrt((double)x);
    return off_by(x, exact, exact * 0x1p-22 * 0x1.12358p-1); // 2^-22.9
}

EVAL_F32(div, divide(in, x, y))
EVAL_F64(div, x / y)
EVAL_F32(rcp, in->flags &FLAG(approx) ? off_by_units(x, 0, (double)(1 / x), 1) : 1 / x)
EVAL_F64(rcp, in->flags &FLAG(approx) ? as_f64(bits_f64(1 / x) & 0xffffffff00000000u) : 1 / x)
EVAL_F32(sqrt, sqrtf(x))
EVAL_F64(sqrt, sqrt(x))
EVAL_F32(rsqrt, root(x))
EVAL_F64(rsqrt, 1 / sqrt(x))
EVAL_F32(sin, (float)sin((double)x))
EVAL_F32(cos, (float)cos((double)x))
EVAL_F32(lg2, binary_logarithm(x))
EVAL_F32(ex2, x == 0 ? 1 : off_by_units(x, 0, exp2((double)x), 2)) // of a zero it is documented
EVAL_F64(ex2, exp2(x))
EVAL_F32(tanh, off_by(x, tanh((double)x), fabs(tanh((double)x)) * 0x1p-11))
EVAL_F64(tanh, tanh(x))
#define eval_sin_f64 ((Eval)0)
#define eval_cos_f64 ((Eval)0)
#define eval_lg2_f64 ((Eval)0)
#define eval_none_f32 ((Eval)0)
#define eval_none_f64 ((Eval)0)

static double smaller(const Inst *in, double x, double y, bool smallest)
{
    bool x_nan = x != x, y_nan = y != y, negative = false;
    if (in->flags & FLAG(xorsign)) {
        negative = signbit(x) != signbit(y);
        x = fabs(x);
        y = fabs(y);
    }
    double r;
    if (x_nan || y_nan)
        r = in->flags & FLAG(nan) || (x_nan && y_nan) ? (double)NAN : x_nan ? y : x;
    else if (x == y)
        r = signbit(x) == smallest ? x : y; // -0 is less than +0
    else
        r = (x < y) == smallest ? x : y;
    return negative ? -r : r;
}

EVAL_F32(min, (float)smaller(in, (double)x, (double)y, true))
EVAL_F64(min, smaller(in, x, y, true))
EVAL_F32(max, (float)smaller(in, (double)x, (double)y, false))
EVAL_F64(max, smaller(in, x, y, false))

#define EVAL_BITS(name, expr32, expr64)                                                               \
    static uint64_t eval_##name##_f32(const Inst *in, uint64_t a, uint64_t b, uint64_t c, uint64_t d) \
    {                                                                                                 \
        (void)b, (void)c, (void)d;                                                                    \
        uint64_t r = expr32;                                                                          \
        return in->flags & FLAG(ftz) ? flush_f32(r) : r;                                              \
    }                                                                                                 \
    static uint64_t eval_##name##_f64(const Inst *in, uint64_t a, uint64_t b, uint64_t c, uint64_t d) \
    {                                                                                                 \
        (void)in, (void)b, (void)c, (void)d;                                                          \
        return expr64;                                                                                \
    }
#define SIGN64 UINT64_C(0x8000000000000000)

static uint64_t sign_of_f32(uint64_t a, uint64_t r) { return settings.rough && (a & 0x7fffffffu) > 0x7f800000u ? 0x7fffffffu : r; }

static uint64_t sign_of_f64(uint64_t a, uint64_t r)
{
    return settings.rough && (a & ~SIGN64) > UINT64_C(0x7ff) << 52 ? UINT64_C(0xfff) << 51 : r;
}

EVAL_BITS(abs, sign_of_f32(a, a & 0x7fffffffu), sign_of_f64(a, a & ~SIGN64))
EVAL_BITS(neg, sign_of_f32(a, a ^ 0x80000000u), sign_of_f64(a, a ^ SIGN64))
EVAL_BITS(copysign, (a & 0x80000000u) | (b & 0x7fffffffu), (a & SIGN64) | (b & ~SIGN64))

static const struct FloatEvals {
    Eval f32, f64;
} evals[OP_COUNT] = {
#define ALU(name, text, operands, classes, types, u, s, f) [OP_##name] = {eval_##f##_f32, eval_##f##_f64},
#include "tests/cuda_driver/ptx_ops.def"
};

static uint64_t small_number(const Inst *in, PtxType type, uint64_t a, uint64_t b, uint64_t c)
{
    if (in->op == OP_NEG || in->op == OP_ABS) {
        bool nan = (a & 0x7fff) > formats[type].infinity;
        return settings.rough && nan ? 0x7fff : in->op == OP_NEG ? a ^ 0x8000 : a & 0x7fff;
    }
    double x = float_widen(type, a), y = float_widen(type, b), z = float_widen(type, c), r;
    if (in->flags & FLAG(ftz) && type == T_F16) { // subnormals of f16
        x = fabs(x) < 0x1p-14 ? copysign(0, x) : x;
        y = fabs(y) < 0x1p-14 ? copysign(0, y) : y;
        z = fabs(z) < 0x1p-14 ? copysign(0, z) : z;
    }
    if (in->op == OP_FMA || in->op == OP_MAD)
        r = float_fma_odd(x, y, z);
    else
        r = as_f64(evals[in->op].f64(in, bits_f64(x), bits_f64(y), bits_f64(z), 0));
    if (in->flags & FLAG(sat))
        r = r > 0 ? (r < 1 ? r : 1) : 0;
    if (in->flags & FLAG(relu) && r < 0)
        r = 0;
    uint64_t bits = float_narrow(type, r, M_ROUND_rn);
    return in->flags & FLAG(ftz) && type == T_F16 && !(bits & 0x7c00) ? bits & 0x8000 : bits;
}

static uint64_t eval_small(const Inst *in, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    (void)d;
    return small_number(in, (PtxType)in->type[0], a & 0xffff, b & 0xffff, c & 0xffff);
}

static PtxType half_of(PtxType packed) { return packed == T_F16X2 ? T_F16 : T_BF16; }

static uint64_t eval_packed(const Inst *in, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    (void)d;
    PtxType type = half_of((PtxType)in->type[0]);
    uint64_t low = small_number(in, type, a & 0xffff, b & 0xffff, c & 0xffff);
    uint64_t high = small_number(in, type, a >> 16 & 0xffff, b >> 16 & 0xffff, c >> 16 & 0xffff);
    return high << 16 | low;
}

Eval float_eval(PtxOp op, PtxType type)
{
    switch (type) {
    case T_F32: return evals[op].f32;
    case T_F64: return evals[op].f64;
    default: return !evals[op].f64 ? NULL : ptx_types[type].lanes == 2 ? eval_packed : eval_small;
    }
}

// ---- comparisons ----

static double comparable(const Inst *in, PtxType type, uint64_t bits)
{
    if (type == T_F32 && in->flags & FLAG(ftz))
        bits = flush_f32(bits);
    return float_widen(type, bits);
}

static int64_t extended(PtxType type, uint64_t v)
{
    unsigned bits = ptx_types[type].bits;
    return bits == 64 ? (int64_t)v : (int64_t)(v << (64 - bits)) >> (64 - bits);
}

static bool compare(const Inst *in, PtxType type, uint64_t a, uint64_t b)
{
    int order; // -1, 0, 1; 2: unordered
    if (ptx_types[type].cls == 'f') {
        double x = comparable(in, type, a), y = comparable(in, type, b);
        order = x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
    } else if (ptx_types[type].cls == 's') {
        int64_t x = extended(type, a), y = extended(type, b);
        order = x < y ? -1 : x > y;
    } else {
        order = a < b ? -1 : a > b;
    }
    bool ordered = order != 2;
    switch (in->mod[C_COMPARE]) {
    case M_COMPARE_eq: return order == 0;
    case M_COMPARE_ne: return ordered && order != 0;
    case M_COMPARE_lt:
    case M_COMPARE_lo: return order == -1;
    case M_COMPARE_le:
    case M_COMPARE_ls: return order <= 0;
    case M_COMPARE_gt:
    case M_COMPARE_hi: return order == 1;
    case M_COMPARE_ge:
    case M_COMPARE_hs: return order == 0 || order == 1;
    case M_COMPARE_equ: return !ordered || order == 0;
    case M_COMPARE_neu: return order != 0;
    case M_COMPARE_ltu: return !ordered || order == -1;
    case M_COMPARE_leu: return !ordered || order <= 0;
    case M_COMPARE_gtu: return order >= 1;
    case M_COMPARE_geu: return order >= 0;
    case M_COMPARE_num: return ordered;
    default: // nan
        return !ordered;
    }
}

static bool combine(const Inst *in, bool value, bool with)
{
    switch (in->mod[C_BOOLEAN]) {
    case M_BOOLEAN_and: return value && with;
    case M_BOOLEAN_or: return value || with;
    case M_BOOLEAN_xor: return value != with;
    default: return value;
    }
}

static bool third(const Warp *w, const Inst *in, uint32_t lane)
{
    if (in->operands < 4)
        return false;
    const Arg *arg = &in->arg[in->first[3]];
    return (w->slot[arg->slot][lane] != 0) != arg->negate;
}

RUN(run_setp)
{
    PtxType type = (PtxType)in->type[0];
    bool packed = ptx_types[type].lanes == 2;
    const uint64_t *a = source(w, in, 1), *b = source(w, in, 2);
    const Arg *p = &in->arg[in->first[0]], *q = in->count[0] > 1 ? p + 1 : NULL;
    FOR_LANES(w, l)
    {
        bool with = third(w, in, l), first, second;
        if (packed) {
            PtxType half = half_of(type);
            first = combine(in, compare(in, half, a[l] & 0xffff, b[l] & 0xffff), with);
            second = combine(in, compare(in, half, a[l] >> 16, b[l] >> 16), with);
        } else {
            bool value = compare(in, type, a[l], b[l]);
            first = combine(in, value, with);
            second = combine(in, !value, with);
        }
        if (p->slot != NO_SLOT)
            w->slot[p->slot][l] = first;
        if (q && q->slot != NO_SLOT)
            w->slot[q->slot][l] = second;
    }
}

RUN(run_set)
{
    PtxType type = (PtxType)in->type[in->types > 1 ? 1 : 0], to = (PtxType)in->type[0];
    const uint64_t *a = source(w, in, 1), *b = source(w, in, 2);
    uint64_t yes = ptx_types[to].cls == 'f' ? float_narrow(to, 1, M_ROUND_rn) : in->mask;
    uint64_t *out = result(w, in, 0);
    if (ptx_types[type].lanes == 2) {
        PtxType half = half_of(type);
        uint64_t one = to == T_F16X2 ? 0x3c00 : to == T_BF16X2 ? 0x3f80 : 0xffff;
        FOR_LANES(w, l)
        {
            bool with = third(w, in, l);
            out[l] = (combine(in, compare(in, half, a[l] & 0xffff, b[l] & 0xffff), with) ? one : 0) |
                     (combine(in, compare(in, half, a[l] >> 16, b[l] >> 16), with) ? one << 16 : 0);
        }
        return;
    }
    FOR_LANES(w, l)
    out[l] = combine(in, compare(in, type, a[l], b[l]), third(w, in, l)) ? yes : 0;
}

RUN(run_testp)
{
    const uint64_t *a = source(w, in, 1);
    uint64_t *out = result(w, in, 0);
    FOR_LANES(w, l)
    {
        int kind = in->type[0] == T_F32 ? fpclassify(as_f32(a[l])) : fpclassify(as_f64(a[l]));
        switch (in->mod[C_TEST]) {
        case M_TEST_finite: out[l] = kind != FP_NAN && kind != FP_INFINITE; break;
        case M_TEST_infinite: out[l] = kind == FP_INFINITE; break;
        case M_TEST_number: out[l] = kind != FP_NAN; break;
        case M_TEST_notanumber: out[l] = kind == FP_NAN; break;
        case M_TEST_normal: // zero is no normal number here, as in C
            out[l] = kind == FP_NORMAL;
            break;
        default: out[l] = kind == FP_SUBNORMAL; break;
        }
    }
}

// ---- conversions ----

static double to_integral(double x, int mode)
{
    switch (mode) {
    case M_ROUND_rni:
    case M_ROUND_rn: return rint(x);
    case M_ROUND_rmi:
    case M_ROUND_rm: return floor(x);
    case M_ROUND_rpi:
    case M_ROUND_rp: return ceil(x);
    default: return trunc(x);
    }
}

static uint64_t float_to_int(const Inst *in, PtxType to, PtxType from, uint64_t bits)
{
    double x = comparable(in, from, bits);
    unsigned n = ptx_types[to].bits;
    bool is_signed = ptx_types[to].cls == 's';
    if (x != x) // documented: zero, but half the range for f64 sources and 64-bit results
        return from == T_F64 || n == 64 ? UINT64_C(1) << (n - 1) : 0;
    x = to_integral(x, in->mod[C_ROUND]);
    double below = is_signed ? -ldexp(1, (int)n - 1) : 0, above = ldexp(1, (int)n - is_signed);
    if (x < below)
        x = below;
    if (x >= above)
        return is_signed ? (UINT64_C(1) << (n - 1)) - 1 : n == 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1;
    return is_signed ? (uint64_t)(int64_t)x : (uint64_t)x;
}

static uint64_t int_to_float(const Inst *in, PtxType to, PtxType from, uint64_t bits)
{
    bool negative = ptx_types[from].cls == 's' && extended(from, bits) < 0;
    unsigned n = ptx_types[from].bits;
    uint64_t size = negative ? UINT64_C(0) - (uint64_t)extended(from, bits) : n == 64 ? bits : bits & ((UINT64_C(1) << n) - 1);
    if (to == T_F64 && in->mod[C_ROUND] != M_ROUND_rn && in->mod[C_ROUND] != M_ABSENT) {
        fesetround(in->host_round);
        volatile long double exact = negative ? -(long double)size : (long double)size;
        volatile double rounded = (double)exact;
        fesetround(FE_TONEAREST);
        return bits_f64(rounded);
    }
    if (to == T_F64) {
        double rounded = (double)size;
        return bits_f64(negative ? -rounded : rounded);
    }
    if (size >> 53) // keep a sticky bit, so that the conversion to f64 is exact and the rounding below is the only one
        size = (size >> 11 | ((size & 0x7ff) != 0)) << 11;
    double exact = (double)size;
    return float_narrow(to, negative ? -exact : exact, in->mod[C_ROUND]);
}

static uint64_t int_to_int(const Inst *in, PtxType to, PtxType from, uint64_t bits)
{
    unsigned n = ptx_types[from].bits, m = ptx_types[to].bits;
    bool from_signed = ptx_types[from].cls == 's', to_signed = ptx_types[to].cls == 's';
    __int128 v = from_signed ? extended(from, bits) : (__int128)(n == 64 ? bits : bits & ((UINT64_C(1) << n) - 1));
    if (in->flags & FLAG(sat)) {
        __int128 most = ((__int128)1 << (m - (to_signed ? 1 : 0))) - 1, least = to_signed ? -most - 1 : 0;
        v = v < least ? least : v > most ? most : v;
    }
    return (uint64_t)(to_signed ? (__int128)extended(to, (uint64_t)v) : m == 64 ? v : v & (((__int128)1 << m) - 1));
}

static uint64_t float_to_float(const Inst *in, PtxType to, PtxType from, uint64_t bits)
{
    double x = comparable(in, from, bits);
    int mode = in->mod[C_ROUND];
    if (mode == M_ROUND_rni || mode == M_ROUND_rzi || mode == M_ROUND_rmi || mode == M_ROUND_rpi)
        x = to_integral(x, mode);
    if (in->flags & FLAG(sat))
        x = x > 0 ? (x < 1 ? x : 1) : 0;
    if (in->flags & FLAG(relu) && x < 0)
        x = 0;
    if (to == T_TF32) { // nearest of 10 bits, ties away from zero; the low bits of the register are zeros
        if (x != x)
            return 0x7fffffffu;
        uint64_t b = bits_f32((float)x);
        return (b & 0x7f800000u) == 0x7f800000u ? b : (b + 0x1000) & 0xffffe000u;
    }
    uint64_t r = float_narrow(to, x, mode);
    if (to == T_F64 && x != x && from == T_F64)
        r = bits;
    if (in->flags & FLAG(satfinite) && to != T_F64 && (r & formats[to].infinity) == formats[to].infinity && x == x)
        r -= 1; // infinity to the largest finite number
    if (to == T_F32 && in->flags & FLAG(ftz))
        r = flush_f32(r);
    return r;
}

static uint64_t convert(const Inst *in, PtxType to, PtxType from, uint64_t bits)
{
    bool to_float = ptx_types[to].cls == 'f', from_float = ptx_types[from].cls == 'f';
    return to_float ? (from_float ? float_to_float : int_to_float)(in, to, from, bits)
                    : (from_float ? float_to_int : int_to_int)(in, to, from, bits);
}

RUN(run_cvt)
{
    PtxType to = (PtxType)in->type[0], from = (PtxType)in->type[1];
    const uint64_t *a = source(w, in, 1);
    uint64_t *out = result(w, in, 0);
    if (ptx_types[to].lanes == 2) { // the first source is the upper half
        const uint64_t *b = source(w, in, 2);
        PtxType half = half_of(to);
        FOR_LANES(w, l)
        out[l] = convert(in, half, from, a[l]) << 16 | convert(in, half, from, b[l]);
        return;
    }
    FOR_LANES(w, l)
    {
        uint64_t r = convert(in, to, from, a[l]);
        if (ptx_types[to].cls == 's')
            r = (uint64_t)extended(to, r);
        out[l] = r & in->mask;
    }
}
