/*
 * Logarithms and what is made of them.
 *
 * x = 2^n (1 + f) with 1 + f between sqrt(1/2) and sqrt(2), split by integer arithmetic on the bits: adding
 * the distance from sqrt(1/2) to 1 carries into the exponent exactly when it should. Then
 * log x = n ln 2 + f - f^2/2 + f^3 P(f), smallest terms first. Subnormal x are scaled up.
 *
 * log 0 = -inf, log of less is NaN, inf and NaN stay. Error bounds are rows of ir/accuracy.def.
 */
#include "ir/expand_float.h"

static const double ln2_high[2] = {0x1.62e43p-1, 0x1.62e42fefa39efp-1};
static const double ln2_low[2] = {-0x1.05c610p-29, 0x1.abc9e3b39803fp-56};

/* The float value of a small integer of the width of x's type. */
static X int_value(E *e, X i)
{
    if (x_type(e, i) == SC_I32)
        return x_sitofp(e, i, SC_F32);
    /* few CPUs convert 64-bit integers: put it below 1.5 * 2^52 instead */
    X magic = x_like(e, x_bits(e, SC_F64, 0), 0x1.8p52);
    return x_sub(e, x_as_float(e, x_add(e, i, x_as_int(e, magic))), magic);
}

/* Splits positive x; `subnormals` says whether x may be one. */
LogParts log_parts(E *e, X x, bool subnormals)
{
    const FloatForm *f = x_form(e, x);
    uint64_t root = f->bits == SC_I64 ? UINT64_C(0x3fe6a09e667f3bcd) : 0x3f3504f3;
    X bias = x_like(e, x_as_int(e, x), f->bias);
    if (subnormals) {
        X small = x_flt(e, x, x_like(e, x, f->min_normal));
        int up = f->mantissa + 1;
        X scaled = x_product(e, x, x_like(e, x, (double)(UINT64_C(1) << up)));
        bias = x_select(e, small, x_like(e, bias, f->bias + up), bias);
        x = x_select(e, small, scaled, x);
    }
    X i = x_add_bits(e, x_as_int(e, x), f->one - root);
    X n = x_sub(e, x_ashr_n(e, i, f->mantissa), bias);
    X m = x_add_bits(e, x_and_bits(e, i, (UINT64_C(1) << f->mantissa) - 1), root);
    X one_plus_f = x_as_float(e, m);
    return (LogParts){.f = x_sub(e, one_plus_f, x_like(e, x, 1)), .n = int_value(e, n), .i = n};
}

/* n ln 2 + log(1 + f) */
static X log_value(E *e, LogParts p)
{
    int w = x_is_f64(e, p.f);
    X f = p.f;
    X r = x_fma(e, f, x_poly(e, f, &poly_log), x_like(e, f, -0.5));
    r = x_fma(e, x_mul(e, f, f), r, f);
    r = x_fma(e, p.n, x_like(e, f, ln2_low[w]), r);
    return x_fma(e, p.n, x_like(e, f, ln2_high[w]), r);
}

/* What a logarithm does at 0, below, and at infinity and NaN, where it is x itself. */
static X log_special(E *e, X x, X r)
{
    X zero = x_like(e, x, 0), inf = x_inf(e, x);
    r = x_select(e, x_flt(e, x, inf), r, x);
    X at_most_zero = x_select(e, x_feq(e, x, zero), x_fneg(e, inf), x_nan(e, x));
    return x_select(e, x_fle(e, x, zero), at_most_zero, r);
}

EXPAND(LOG) { return log_special(e, x[0], log_value(e, log_parts(e, x[0], true))); }

X log_mid(E *e, X d)
{
    LogParts p = log_parts(e, d, false);
    X r = x_fma(e, x_mul(e, p.f, p.f), x_poly(e, p.f, &poly_log_mid), p.f);
    return log_special(e, d, x_fma(e, p.n, x_like(e, d, 0x1.62e42fefa39efp-1), r));
}

/*
 * (n ln 2 + log(1 + f)) / ln(base) in F64: log(1 + f) as high + low, times log_base(e) in two parts, plus n times
 * log_base(2) in two parts. The sums are ordered so that only the last rounding counts.
 */
static X log_in_base(E *e, LogParts p, double e_high, double e_low, double two_high, double two_low)
{
    X f = p.f, half_f = x_mul(e, f, x_like(e, f, 0.5));
    X h = x_mul(e, half_f, f), h_low = x_fma(e, half_f, f, x_fneg(e, h));
    X high = x_sub(e, f, h);
    X low = x_sub(e, x_sub(e, x_sub(e, f, high), h), h_low);
    X cube = x_mul(e, x_mul(e, f, f), f);
    low = x_fma(e, cube, x_poly(e, f, &poly_log), low);
    X eh = x_like(e, f, e_high);
    X product = x_mul(e, high, eh);
    X rest = x_fma(e, high, eh, x_fneg(e, product));
    rest = x_fma(e, high, x_like(e, f, e_low), rest);
    rest = x_fma(e, low, eh, rest);
    rest = x_fma(e, p.n, x_like(e, f, two_low), rest);
    X th = x_like(e, f, two_high);
    X whole = x_mul(e, p.n, th);
    rest = x_add(e, rest, x_fma(e, p.n, th, x_fneg(e, whole)));
    X sum = x_add(e, whole, product);
    X lost = x_add(e, x_sub(e, whole, sum), product); /* |whole| > |product|, or it is 0 */
    return x_add(e, sum, x_add(e, lost, rest));
}

EXPAND(LOG2)
{
    LogParts p = log_parts(e, x[0], true);
    X r;
    if (x_is_f64(e, x[0]))
        r = log_in_base(e, p, 0x1.71547652b82fep+0, 0x1.777d0ffda0d24p-56, 1, 0);
    else
        r = x_add(e, p.n, x_fma(e, p.f, x_poly(e, p.f, &poly_log2), p.f));
    return log_special(e, x[0], r);
}

EXPAND(LOG10)
{
    LogParts p = log_parts(e, x[0], true);
    X r;
    if (x_is_f64(e, x[0])) {
        r = log_in_base(e, p, 0x1.bcb7b1526e50ep-2, 0x1.95355baaafad3p-57, 0x1.34413509f79ffp-2, -0x1.9dc1da994fd21p-59);
    } else {
        r = x_mul(e, p.f, x_poly(e, p.f, &poly_log10));
        r = x_fma(e, p.n, x_like(e, r, -0x1.ec10cp-27), r);
        r = x_fma(e, p.n, x_like(e, r, 0x1.344136p-2), r);
    }
    return log_special(e, x[0], r);
}

/*
 * With 1 + t = 2^n (1 + f): f = 2^-n t + (2^-n - 1), which a fused multiply-add rounds once, so nothing of a small t is
 * lost. Where t is so large that 2^-n has no exponent left, 1 does not matter and f is that of t.
 */
static LogParts log1p_parts(E *e, X t, LogParts p)
{
    const FloatForm *form = x_form(e, t);
    X scale = x_as_float(e, x_shl_n(e, x_sub(e, x_like(e, p.i, form->bias), p.i), form->mantissa));
    p.f = x_fma(e, t, scale, x_sub(e, scale, x_like(e, t, 1)));
    return p;
}

X float_log1p(E *e, X t)
{
    X u = x_add(e, t, x_like(e, t, 1));
    LogParts of_u = log_parts(e, u, false), p = log1p_parts(e, t, of_u);
    X large = x_flt(e, x_pick(e, t, 0x1p60, 0x1p120), t);
    p.f = x_select(e, large, of_u.f, p.f);
    return log_special(e, u, log_value(e, p));
}

X float_log1p_unit(E *e, X t)
{
    LogParts of_u = log_parts(e, x_add(e, t, x_like(e, t, 1)), false);
    return log_value(e, log1p_parts(e, t, of_u));
}

EXPAND(LOG1P)
{
    X zero = x_feq(e, x[0], x_like(e, x[0], 0)); /* keeps its sign */
    return x_select(e, zero, x[0], float_log1p(e, x[0]));
}
