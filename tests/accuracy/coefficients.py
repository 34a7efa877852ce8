"""Derives the polynomial coefficients of ir/expand_*.c: python3 coefficients.py [name ...]   (needs mpmath)

Each fit minimises the largest weighted error over an interval (Remez exchange in 60 digits); then coefficients are
rounded to the format one by one, lowest first, refitting those still free. Printed as C arrays of hexadecimal constants
with the error reached, in bits.
"""
import sys
import struct
from mpmath import mp, mpf, matrix, lu_solve, log, exp, sin, cos, tan, atan, asin, erf, erfc, sqrt, pi, cosh, expm1, log1p

mp.dps = 60
LN2 = log(mpf(2))


def round_f32(v):
    return mpf(struct.unpack('f', struct.pack('f', float(v)))[0])


def round_f64(v):
    return mpf(float(v))


def remez(target, weight, basis, lo, hi, rounds=12):
    """Minimax of |target - sum c_j basis_j| * weight on [lo, hi]; returns coefficients and the error."""
    n = len(basis)
    points = [(lo + hi) / 2 - (hi - lo) / 2 * mp.cos(mp.pi * (i + mpf(1) / 2) / (n + 1)) for i in range(n + 1)]
    grid_n = 60 * (n + 1)
    grid = [(lo + hi) / 2 - (hi - lo) / 2 * mp.cos(mp.pi * i / grid_n) for i in range(grid_n + 1)]
    tg = [target(x) for x in grid]
    wg = [weight(x) for x in grid]
    bg = [[b(x) for b in basis] for x in grid]
    for _ in range(rounds):
        a = matrix(n + 1, n + 1)
        r = matrix(n + 1, 1)
        for i, x in enumerate(points):
            w = weight(x)
            for j in range(n):
                a[i, j] = basis[j](x) * w
            a[i, n] = (-1) ** i
            r[i] = target(x) * w
        s = lu_solve(a, r)
        c = [s[j] for j in range(n)]
        err = [(tg[k] - sum(c[j] * bg[k][j] for j in range(n))) * wg[k] for k in range(len(grid))]
        # the largest of each run of one sign
        runs, start = [], 0
        for k in range(1, len(grid) + 1):
            if k == len(grid) or (err[k] > 0) != (err[start] > 0):
                runs.append(max(range(start, k), key=lambda q: abs(err[q])))
                start = k
        worst = max(abs(v) for v in err)
        if len(runs) < n + 1:
            break
        while len(runs) > n + 1:
            runs.pop(0) if abs(err[runs[0]]) < abs(err[runs[-1]]) else runs.pop()
        points = [grid[k] for k in runs]
        if worst < abs(s[n]) * mpf('1.0005'):
            break
    return c, worst


def fit(name, target, weight, powers, lo, hi, rnd):
    """powers: exponents of x in the polynomial."""
    lo, hi = mpf(lo), mpf(hi)
    weigh = weight
    c, ideal = remez(target, weigh, [lambda x, p=p: x ** p for p in powers], lo, hi)
    fixed, best = {}, list(c)
    for step, power in enumerate(powers):
        fixed[power] = rnd(best[step])
        free = powers[step + 1:]
        if not free:
            break
        rest = lambda x: target(x) - sum(v * x ** p for p, v in fixed.items())
        c, worst = remez(rest, weigh, [lambda x, p=p: x ** p for p in free], lo, hi)
        if worst < 2 * ideal:  # else keep what the last good fit says
            best[step + 1:] = c
    grid = [lo + (hi - lo) * i / 4000 for i in range(1, 4000)]
    worst = max(abs((target(x) - sum(v * x ** p for p, v in fixed.items())) * weight(x)) for x in grid)
    bits = lambda v: float(log(v) / LN2)
    print(f'/* {name}: 2^{bits(worst):.1f} (unrounded 2^{bits(ideal):.1f}) */')
    print('{' + ', '.join(float(fixed[p]).hex() for p in powers) + '}')
    sys.stdout.flush()


def safe(f, series0):
    return lambda x: series0 if abs(x) < mpf(10) ** -20 else f(x)


R = {'f32': round_f32, 'f64': round_f64}
JOBS = {}


def job(name, f):
    JOBS[name] = f


def both(base, sizes, make):
    for t in ('f32', 'f64'):
        if t in sizes:
            job(f'{base}_{t}', lambda t=t, k=sizes[t]: make(t, k))


half_ln2 = LN2 / 2 * mpf('1.002')
# exp(r) = 1 + r + r^2 P(r); error relative to exp(r)
both('exp', {'f32': 5, 'f64': 10}, lambda t, n: fit(f'exp_{t}', safe(lambda r: (expm1(r) - r) / r ** 2, mpf(1) / 2), lambda r: r ** 2 / exp(r), list(range(n)), -half_ln2, half_ln2, R[t]))
# expm1(r) = r + r^2 P(r); error relative to expm1(r)
both('expm1', {'f32': 6, 'f64': 11}, lambda t, n: fit(f'expm1_{t}', safe(lambda r: (expm1(r) - r) / r ** 2, mpf(1) / 2), lambda r: abs(r ** 2 / expm1(r)) if r else mpf(0), list(range(n)), -half_ln2, half_ln2, R[t]))
# 2^r = 1 + r P(r)
both('exp2', {'f32': 6, 'f64': 11}, lambda t, n: fit(f'exp2_{t}', safe(lambda r: expm1(r * LN2) / r, LN2), lambda r: r / 2 ** r, list(range(n)), -mpf(1) / 2, mpf(1) / 2, R[t]))
fl, fh = sqrt(mpf(2)) / 2 - 1, sqrt(mpf(2)) - 1
# log(1 + f) = f - f^2/2 + f^3 P(f)
both('log', {'f32': 8, 'f64': 20}, lambda t, n: fit(f'log_{t}', safe(lambda f: (log1p(f) - f + f * f / 2) / f ** 3, mpf(1) / 3), lambda f: abs(f ** 3 / log1p(f)) if f else mpf(0), list(range(n)), fl, fh, R[t]))
# log2(1 + f) = f + f Q(f);  log10(1 + f) = f Q(f)
both('log2', {'f32': 10}, lambda t, n: fit(f'log2_{t}', safe(lambda f: (log1p(f) / LN2 - f) / f, 1 / LN2 - 1), lambda f: abs(f / (log1p(f) / LN2)) if f else mpf(1), list(range(n)), fl, fh, R[t]))
both('log10', {'f32': 10}, lambda t, n: fit(f'log10_{t}', safe(lambda f: log1p(f) / log(mpf(10)) / f, 1 / log(mpf(10))), lambda f: abs(f / (log1p(f) / log(mpf(10)))) if f else mpf(1), list(range(n)), fl, fh, R[t]))
# on squares: z = r^2
# where search_sin.c starts
both('sin_half_pi', {'f32': 4}, lambda t, n: fit(f'sin_half_pi_{t}', safe(lambda z: (sin(sqrt(z)) - sqrt(z)) / sqrt(z) ** 3, -mpf(1) / 6), lambda z: z / (sin(sqrt(z)) / sqrt(z)) if z else mpf(0), list(range(n)), 0, (pi / 2 * mpf('1.001')) ** 2, R[t]))
both('sin', {'f32': 3, 'f64': 6}, lambda t, n: fit(f'sin_{t}', safe(lambda z: (sin(sqrt(z)) - sqrt(z)) / sqrt(z) ** 3, -mpf(1) / 6), lambda z: z / (sin(sqrt(z)) / sqrt(z)) if z else mpf(0), list(range(n)), 0, (pi / 4 * mpf('1.001')) ** 2, R[t]))
both('cos', {'f32': 3, 'f64': 6}, lambda t, n: fit(f'cos_{t}', safe(lambda z: (cos(sqrt(z)) - 1 + z / 2) / z ** 2, mpf(1) / 24), lambda z: z * z / cos(sqrt(z)), list(range(n)), 0, (pi / 4 * mpf('1.001')) ** 2, R[t]))
both('tan', {'f32': 6, 'f64': 14}, lambda t, n: fit(f'tan_{t}', safe(lambda z: (tan(sqrt(z)) - sqrt(z)) / sqrt(z) ** 3, mpf(1) / 3), lambda z: z / (tan(sqrt(z)) / sqrt(z)) if z else mpf(0), list(range(n)), 0, (pi / 4 * mpf('1.001')) ** 2, R[t]))
both('atan', {'f32': 8, 'f64': 20}, lambda t, n: fit(f'atan_{t}', safe(lambda z: (atan(sqrt(z)) - sqrt(z)) / sqrt(z) ** 3, -mpf(1) / 3), lambda z: z / (atan(sqrt(z)) / sqrt(z)) if z else mpf(0), list(range(n)), 0, 1, R[t]))
both('asin', {'f32': 5, 'f64': 13}, lambda t, n: fit(f'asin_{t}', safe(lambda z: (asin(sqrt(z)) - sqrt(z)) / sqrt(z) ** 3, mpf(1) / 6), lambda z: z / (asin(sqrt(z)) / sqrt(z)) if z else mpf(0), list(range(n)), 0, mpf(1) / 4, R[t]))
# erf(x) = x + x P(x^2) up to a; beyond, erfc(x) = exp(Q(x - c))
tsp = 2 / sqrt(pi)
ERF = {'f32': (7, mpf('0.95'), 8, mpf('4.0')), 'f64': (14, mpf('0.95'), 20, mpf('5.95'))}
both('erf_small', {t: v[0] for t, v in ERF.items()}, lambda t, n: fit(f'erf_small_{t}', safe(lambda z: erf(sqrt(z)) / sqrt(z) - 1, tsp - 1), lambda z: 1 / (erf(sqrt(z)) / sqrt(z)) if z else 1 / tsp, list(range(n)), 0, ERF[t][1] ** 2, R[t]))
both('erf_large', {t: v[2] for t, v in ERF.items()}, lambda t, n: fit(f'erf_large_{t}', lambda u: log(erfc(u + 1)), lambda u: erfc(u + 1) / erf(u + 1), list(range(n)), ERF[t][1] - 1 - mpf('0.01'), ERF[t][3] - 1, R[t]))

# erfc(a) = e^(-a^2) u P(q), u = 1 / (a + k), q = (a - k) u = 1 - 2 k u, up to where erfc is less than the least subnormal
ERFC = {'f32': (11, mpf(2), mpf('10.1')), 'f64': (24, mpf(4), mpf('27.3'))}


def erfcx_scaled(q, k):
    a = k * (1 + q) / (1 - q)
    return exp(a * a) * erfc(a) * (a + k)


both('erfc', {t: v[0] for t, v in ERFC.items()}, lambda t, n: fit(f'erfc_{t}', lambda q: erfcx_scaled(q, ERFC[t][1]), lambda q: 1 / erfcx_scaled(q, ERFC[t][1]), list(range(n)), -1, (ERFC[t][2] - ERFC[t][1]) / (ERFC[t][2] + ERFC[t][1]), R[t]))

# for f32 functions that compute in f64: log(1 + f) = f + f^2 P(f), and 2^r = 1 + r P(r), to 2^-38 or so
both('log_mid', {'f64': 13}, lambda t, n: fit('log_mid_f64', safe(lambda f: (log1p(f) - f) / f ** 2, -mpf(1) / 2), lambda f: abs(f ** 2 / log1p(f)) if f else mpf(0), list(range(n)), fl, fh, R[t]))
both('exp2_mid', {'f64': 7}, lambda t, n: fit('exp2_mid_f64', safe(lambda r: expm1(r * LN2) / r, LN2), lambda r: r / 2 ** r, list(range(n)), -mpf(1) / 2, mpf(1) / 2, R[t]))

# log(1 + f) = 2 s + s^3 (2/3 + z P(z)), s = f / (2 + f), z = s^2: for F64 pow
smax = (sqrt(mpf(2)) - 1) / (sqrt(mpf(2)) + 1)
both('pow_log', {'f64': 9}, lambda t, n: fit('pow_log_f64', safe(lambda z: (mp.atanh(sqrt(z)) * 2 - 2 * sqrt(z) - 2 * sqrt(z) ** 3 / 3) / sqrt(z) ** 5, mpf(2) / 5), lambda z: z * z / 2, list(range(n)), mpf(10) ** -8, smax ** 2 * mpf('1.001'), R[t]))

if __name__ == '__main__':
    for wanted in sys.argv[1:] or JOBS:
        for name, f in JOBS.items():
            if name == wanted or wanted in (name.rsplit('_', 1)):
                f()
