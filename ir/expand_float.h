/* Pieces of float expansions that several files use. `x` is F32 or F64 throughout. Internal to ir/expand*.c. */
#ifndef IR_EXPAND_FLOAT_H
#define IR_EXPAND_FLOAT_H

#include "ir/expand.h"

extern const Poly poly_exp, poly_expm1, poly_exp2, poly_log, poly_log2, poly_log10, poly_sin_half_pi, poly_sin, poly_cos, poly_tan,
    poly_atan, poly_asin, poly_erf_small, poly_erf_large, poly_erfc, poly_log_mid, poly_pow_log;

static inline bool x_is_f64(const E *e, X x) { return x_type(e, x) == SC_F64; }
/* The constant for the type at hand. */
static inline X x_pick(E *e, X x, double f32, double f64) { return x_like(e, x, x_is_f64(e, x) ? f64 : f32); }
/* At most / at least a limit; NaN stays. */
static inline X x_at_most(E *e, X x, X limit) { return x_select(e, x_flt(e, limit, x), limit, x); }
static inline X x_at_least(E *e, X x, X limit) { return x_select(e, x_flt(e, x, limit), limit, x); }

/* e^x = 2^n (1 + q), with n's integer (plus the bias asked for) in the low bits of `i`: ir/expand_exp.c. */
typedef struct ExpParts {
    X q, i, n; /* n: a multiple of n, as a float */
} ExpParts;
ExpParts exp_parts(E *e, X x, const X *low, int bias, const Poly *p); /* of x + low; NULL: of x */
/* w e^(x + low) for x <= 0 that is clamped where it becomes 0; w, low: NULL for 1, 0; is_low: where the result is no more than the least
 * normal, and not negative. */
X exp_below(E *e, X x, const X *low, const X *w, X is_low);
/* ln 2^-126 and ln 2^-1022 */
#define LOG_MIN_NORMAL_32 (-0x1.5d589ep+6)
#define LOG_MIN_NORMAL_64 (-0x1.6232bdd7abcd2p+9)
/* e^(x + low) for a low that is small against x (ignored, like its NaN, where x is beyond the range). */
X exp_of_pair(E *e, X x, X low);
X exp2_of_pair(E *e, X x, const X *low); /* 2^(x + low), likewise; NULL: 0 */
/* 2^n from an integer whose low bits hold n + the type's bias; the rest is shifted out. */
X exp_scale(E *e, X i);

/* x = 2^n (1 + f), 1 + f in [sqrt(1/2), sqrt(2)]: ir/expand_log.c */
typedef struct LogParts {
    X f, n; /* both floats */
    X i;    /* n as an integer of the float's width */
} LogParts;
LogParts log_parts(E *e, X x, bool subnormals);
/* log of an F64 to about 2^-38, for f32 functions; special values as log has them. */
X log_mid(E *e, X d);
X float_log1p(E *e, X t);
X float_log1p_unit(E *e, X t); /* for t in [0, 1] or NaN */

/* a + b exactly, for |a| >= |b| or a = 0. */
typedef struct Pair {
    X high, low;
} Pair;
static inline Pair x_fast_two_sum(E *e, X a, X b)
{
    X s = x_add(e, a, b);
    return (Pair){s, x_sub(e, b, x_sub(e, s, a))};
}

X float_fmod(E *e, X a, X b); /* exact */
X float_rem(E *e, X a, X b);
X float_floordiv(E *e, X a, X b);
X float_pow(E *e, X a, X b);

/*
 * A product of which few may be subnormal, or rounded to 0: as a fused multiply-add it takes no longer then (jit/llvm/value.c). The addend
 * is a zero that changes no sign.
 */
static inline X x_product(E *e, X a, X b) { return x_fma(e, a, b, x_like(e, a, -0.0)); }

/*
 * a^2, and NO_MORE, which is nothing beside what that is added to; the least is an r of 2^-25 (F64: 2^-54), in e^r - 1. So a tiny a has a
 * normal square, while CPUs of Intel's take more than a hundred cycles for each instruction with a subnormal operand or result.
 */
#define NO_MORE_32 0x1p-100
#define NO_MORE_64 0x1p-900
static inline X x_square(E *e, X a) { return x_fma(e, a, a, x_pick(e, a, NO_MORE_32, NO_MORE_64)); }

#endif
