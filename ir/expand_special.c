/*
 * Inverse hyperbolic functions, erf and erfc. F32 inverse hyperbolics compute a logarithm in F64, where nothing cancels that
 * matters; F64 ones go through log1p. Error bounds are rows of ir/accuracy.def.
 */
#include "ir/expand_float.h"

/* asinh x = sign x * log(a + sqrt(a^2 + 1)); tiny x are the result. */
EXPAND(ASINH)
{
    X a = x_fabs(e, x[0]), r, one;
    if (!x_is_f64(e, a)) {
        X d = x_fpext(e, a, SC_F64);
        one = x_like(e, d, 1);
        r = x_fptrunc(e, log_mid(e, x_add(e, d, x_sqrt(e, x_fma(e, d, d, one)))), SC_F32);
        r = x_select(e, x_flt(e, a, x_like(e, a, 0x1p-12)), a, r);
        return x_with_sign(e, r, x[0]);
    }
    one = x_like(e, a, 1);
    X large = x_flt(e, x_like(e, a, 0x1p60), a);
    X square = x_square(e, a);
    X t = x_add(e, a, x_div(e, square, x_add(e, one, x_sqrt(e, x_add(e, square, one)))));
    r = float_log1p(e, x_select(e, large, a, t));
    r = x_select(e, large, x_add(e, r, x_like(e, a, 0x1.62e42fefa39efp-1)), r);
    r = x_select(e, x_flt(e, a, x_like(e, a, 0x1p-28)), a, r);
    return x_with_sign(e, r, x[0]);
}

/* acosh x = log(x + sqrt(x^2 - 1)); with t = x - 1, log1p(t + sqrt(2t + t^2)). NaN below 1. */
EXPAND(ACOSH)
{
    if (!x_is_f64(e, x[0])) {
        X d = x_fpext(e, x[0], SC_F64);
        X root = x_sqrt(e, x_fma(e, d, d, x_like(e, d, -1)));
        X r = x_fptrunc(e, log_mid(e, x_add(e, d, root)), SC_F32);
        return x_select(e, x_flt(e, x[0], x_like(e, x[0], 1)), x_nan(e, x[0]), r);
    }
    X t = x_sub(e, x[0], x_like(e, x[0], 1));
    X large = x_flt(e, x_like(e, t, 0x1p28), t);
    X inner = x_add(e, t, x_sqrt(e, x_fma(e, t, t, x_add(e, t, t))));
    X r = float_log1p(e, x_select(e, large, t, inner));
    r = x_select(e, large, x_add(e, r, x_like(e, t, 0x1.62e42fefa39efp-1)), r);
    return x_select(e, x_flt(e, x[0], x_like(e, t, 1)), x_nan(e, t), r);
}

/* atanh x = log((1 + x) / (1 - x)) / 2 = log1p(2a + 2a^2 / (1 - a)) / 2. Infinite at 1, NaN beyond. */
EXPAND(ATANH)
{
    X a = x_fabs(e, x[0]), r;
    if (!x_is_f64(e, a)) {
        X d = x_fpext(e, a, SC_F64), one = x_like(e, d, 1);
        X log = log_mid(e, x_div(e, x_add(e, one, d), x_sub(e, one, d)));
        r = x_fptrunc(e, x_mul(e, log, x_like(e, d, 0.5)), SC_F32);
        r = x_select(e, x_flt(e, a, x_like(e, a, 0x1p-12)), a, r);
    } else {
        X one = x_like(e, a, 1), twice = x_add(e, a, a);
        X t = x_fma(e, twice, x_div(e, a, x_sub(e, one, a)), twice);
        r = x_mul(e, float_log1p(e, t), x_like(e, a, 0.5));
        r = x_select(e, x_flt(e, a, x_like(e, a, 0x1p-28)), a, r);
        r = x_select(e, x_flt(e, one, a), x_nan(e, a), r);
    }
    return x_with_sign(e, r, x[0]);
}

/* An odd polynomial up to 0.95; beyond, 1 - erfc, and erfc = exp of a polynomial. */
EXPAND(ERF)
{
    X a = x_fabs(e, x[0]), one = x_like(e, a, 1);
    X c = x_at_most(e, a, x_pick(e, a, 4, 5.95));
    X z = x_square(e, c);
    X near = x_fma(e, c, x_poly(e, z, &poly_erf_small), c);
    ExpParts p = exp_parts(e, x_poly(e, x_sub(e, c, one), &poly_erf_large), NULL, x_form(e, a)->bias, &poly_exp);
    X s = exp_scale(e, p.i);
    X far = x_sub(e, one, x_fma(e, s, p.q, s));
    X r = x_select(e, x_flt(e, x_like(e, a, 0.95), c), far, near);
    return x_with_sign(e, r, x[0]);
}

/* Beyond, erfc is less than the least normal. */
#define ERFC_LOW_32 0x1.2639bep+3
#define ERFC_LOW_64 0x1.a8b12fc6e4892p+4

/*
 * erfc a = e^(-a^2) u P(q) for a >= 0, with u = 1 / (a + k), corrected by what it misses, and q = (a - k) u in [-1, 1); a^2 is taken in two
 * parts, since e^-s makes s times as large a relative error of an error of s. Of -a it is 2 - erfc a.
 */
EXPAND(ERFC)
{
    double k = x_is_f64(e, x[0]) ? 4 : 2;
    X one = x_like(e, x[0], 1);
    X a = x_at_most(e, x_fabs(e, x[0]), x_pick(e, x[0], 10.2, 27.4));
    X u = x_div(e, one, x_add(e, a, x_like(e, a, k)));
    X miss = x_fma(e, u, x_fneg(e, a), x_fma(e, u, x_like(e, a, -k), one)), u_low = x_product(e, u, miss);
    X q = x_fma(e, u_low, x_like(e, a, -2 * k), x_fma(e, u, x_like(e, a, -2 * k), one));
    X ratio = x_poly(e, q, &poly_erfc);
    X w = x_fma(e, ratio, u, x_product(e, ratio, u_low));
    X s = x_fneg(e, x_square(e, a)), low = x_fneg(e, x_fma(e, a, a, s));
    X r = exp_below(e, s, &low, &w, x_flt(e, x_pick(e, a, ERFC_LOW_32, ERFC_LOW_64), a));
    return x_select(e, x_flt(e, x[0], x_like(e, r, 0)), x_sub(e, x_like(e, r, 2), r), r);
}
