/*
 * Accuracy of the math functions: accuracy [--all | --every N] [--samples N] [--f64] [--list] [op ...]
 *
 * Runs each function's tape and compares with the C library one precision up (f32 with double, f64 with long double).
 * Prints the worst error in ULP and where, and fails when it exceeds the row of ir/accuracy.def. For ops of one operand it takes
 * each N-th f32, N being the number of slices (support/slice.h; otherwise 4099: seconds); --every N, --all: f32 alone, every f32 takes minutes for
 * an op. --samples sets how many random arguments there are besides (262144). NaN, infinities and the signs of
 * zeros must agree exactly, and what is mathematically within [-1, 1] must be so after rounding.
 * `--list` prints the number of scalar ops of every tape instead.
 *
 * The f64 check needs a long double with more bits than a double (x86); elsewhere it is left out, with a line that says so.
 */
#include "ir/scalar.h"
#include "tests/support/slice.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef long double Wide;

static const struct {
    Op op;
    double bound[2];
} rows[] = {
#define ACCURACY(op, f32, f64) {OP_##op, {f32, f64}},
#include "ir/accuracy.def"
#undef ACCURACY
};
enum { ROWS = sizeof rows / sizeof *rows };

/* The same functions in double and in long double. */
#define REFERENCES(T, S)                                                   \
    static T rsqrt##S##_(T x, T y)                                         \
    {                                                                      \
        (void)y;                                                           \
        return 1 / sqrt##S(x);                                             \
    }                                                                      \
    static T sigmoid##S##_(T x, T y)                                       \
    {                                                                      \
        (void)y;                                                           \
        return x < 0 ? exp##S(x) / (1 + exp##S(x)) : 1 / (1 + exp##S(-x)); \
    }                                                                      \
    static T silu##S##_(T x, T y) { return x * sigmoid##S##_(x, y); }      \
    static T softplus##S##_(T x, T y)                                      \
    {                                                                      \
        (void)y;                                                           \
        return fmax##S(x, 0) + log1p##S(exp##S(-fabs##S(x)));              \
    }                                                                      \
    static T logaddexp##S##_(T x, T y)                                     \
    {                                                                      \
        T d = x == y ? 0 : fabs##S(x - y);                                 \
        return (x < y ? y : x) + log1p##S(exp##S(-d));                     \
    }                                                                      \
    static T pow##S##_(T x, T y) { return pow##S(x, y); }                  \
    static T atan2##S##_(T x, T y) { return atan2##S(x, y); }              \
    static T hypot##S##_(T x, T y) { return hypot##S(x, y); }
#define REFERENCE1(T, f, S)    \
    static T f##S##_(T x, T y) \
    {                          \
        (void)y;               \
        return f##S(x);        \
    }
/* clang-format off */
#define ALL1(M, T, S)                                                                                                           \
    M(T, exp, S)                                                                                                                \
    M(T, exp2, S)                                                                                                               \
    M(T, expm1, S)                                                                                                              \
    M(T, log, S) M(T, log2, S) M(T, log10, S) M(T, log1p, S) M(T, sin, S) M(T, cos, S) M(T, tan, S) M(T, asin, S) M(T, acos, S) \
        M(T, atan, S) M(T, sinh, S) M(T, cosh, S) M(T, tanh, S) M(T, asinh, S) M(T, acosh, S) M(T, atanh, S) M(T, erf, S) M(T, erfc, S)
/* clang-format on */
REFERENCES(double, )
REFERENCES(Wide, l)
ALL1(REFERENCE1, double, )
ALL1(REFERENCE1, Wide, l)

#define PAIR(ID, f) [OP_##ID] = {f##_, f##l_}
static const struct {
    double (*f32)(double, double);
    Wide (*f64)(Wide, Wide);
} reference[OP_COUNT] = {PAIR(RSQRT, rsqrt),
                         PAIR(EXP, exp),
                         PAIR(EXP2, exp2),
                         PAIR(EXPM1, expm1),
                         PAIR(LOG, log),
                         PAIR(LOG2, log2),
                         PAIR(LOG10, log10),
                         PAIR(LOG1P, log1p),
                         PAIR(SIN, sin),
                         PAIR(COS, cos),
                         PAIR(TAN, tan),
                         PAIR(ASIN, asin),
                         PAIR(ACOS, acos),
                         PAIR(ATAN, atan),
                         PAIR(SINH, sinh),
                         PAIR(COSH, cosh),
                         PAIR(TANH, tanh),
                         PAIR(ASINH, asinh),
                         PAIR(ACOSH, acosh),
                         PAIR(ATANH, atanh),
                         PAIR(ERF, erf),
                         PAIR(ERFC, erfc),
                         PAIR(SIGMOID, sigmoid),
                         PAIR(SILU, silu),
                         PAIR(SOFTPLUS, softplus),
                         PAIR(POW, pow),
                         PAIR(ATAN2, atan2),
                         PAIR(HYPOT, hypot),
                         PAIR(LOGADDEXP, logaddexp)};

enum { CHUNK = 1 << 14 };

typedef struct Check {
    Op op;
    DType dtype;
    double worst, at[2], got;
    Wide want;
    uint64_t wrong, runs; /* wrong: a NaN, infinity or sign of zero that differs; a sine above 1 */
    double wrong_at[2], wrong_got;
} Check;

static uint64_t random_state;

static uint64_t random_bits(void)
{
    uint64_t z = (random_state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static bool within_one(Op op) { return op == OP_SIN || op == OP_COS || op == OP_TANH || op == OP_ERF || op == OP_SIGMOID; }

/* The error in ULP of an f32 that is finite, not near the end of the range; NaN, which compares as no error, for the rest:
 * most of an exhaustive run goes through here. */
static double plain_error(double got, double want)
{
    uint64_t bits;
    memcpy(&bits, &want, sizeof bits);
    int exponent = (int)(bits >> 52 & 0x7ff) - 1023;
    if (!(fabs(got) < 0x1p127) || exponent < -126 || exponent > 126)
        return NAN;
    bits = (uint64_t)(1023 + 23 - exponent) << 52; /* 1 / ULP */
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return fabs(got - want) * scale;
}

/* Compares one result with the exact one. */
static void compare(Check *c, double x, double y, double got, Wide want)
{
    if (c->dtype == DT_F32 && c->op != OP_LOGADDEXP && !(within_one(c->op) && fabs(got) > 1) &&
        plain_error(got, (double)want) <= c->worst) {
        c->runs++;
        return;
    }
    bool wide = c->dtype == DT_F64;
    int digits = wide ? 53 : 24, least = wide ? -1074 : -149, most = wide ? 1024 : 128;
    c->runs++;
    Wide limit = ldexpl(1, most) - ldexpl(1, most - digits - 1); /* rounds to infinity from here on */
    bool bad;
    double error = 0;
    if (isnan(got) || isnan((double)want)) {
        bad = !isnan(got) || !isnan((double)want);
    } else if (isinf(got)) {
        bad = (got > 0) != (want > 0) || fabsl(want) < limit * (1 - ldexpl(1, -digits + 1));
    } else if (fabsl(want) >= limit * (1 + ldexpl(1, -digits + 2))) {
        bad = true;
    } else {
        Wide scale = want;
        if (c->op == OP_LOGADDEXP && fabsl(scale) < fabs(fmax(x, y)))
            scale = (Wide)fmax(x, y); /* a sum of two terms that may cancel: relative to the larger operand */
        int exponent = scale == 0 ? least : ilogbl(scale) - digits + 1;
        exponent = exponent < least ? least : exponent;
        error = (double)ldexpl(fabsl((Wide)got - want), -exponent);
        bad = want == 0 && (got != 0 || (signbit(got) != 0) != (signbit(want) != 0));
        bad |= within_one(c->op) && fabs(got) > 1;
    }
    if (bad) {
        c->wrong_at[0] = x;
        c->wrong_at[1] = y;
        c->wrong_got = got;
        c->wrong++;
    } else if (error > c->worst) {
        c->worst = error;
        c->at[0] = x;
        c->at[1] = y;
        c->got = got;
        c->want = want;
    }
}

static void run_chunk(Check *c, size_t n, const void *x, const void *y)
{
    static double out[CHUNK];
    const DType in[2] = {c->dtype, c->dtype};
    const Tape *tape = tape_get(c->op, in, c->dtype, MATH_STRICT);
    if (!tape || !tape_run(tape, in, c->dtype, n, (const void *const[]){x, y}, out)) {
        fprintf(stderr, "out of memory\n");
        exit(2);
    }
    for (size_t i = 0; i < n; i++) {
        double a, b, got;
        if (c->dtype == DT_F32) {
            a = (double)((const float *)x)[i];
            b = (double)((const float *)y)[i];
            got = (double)((const float *)(const void *)out)[i];
            compare(c, a, b, got, (Wide)reference[c->op].f32(a, b));
        } else {
            a = ((const double *)x)[i];
            b = ((const double *)y)[i];
            compare(c, a, b, out[i], reference[c->op].f64((Wide)a, (Wide)b));
        }
    }
}

static const double special[] = {0.0,
                                 -0.0,
                                 1,
                                 -1,
                                 2,
                                 -2,
                                 3,
                                 -3,
                                 0.5,
                                 -0.5,
                                 4,
                                 5,
                                 0.1,
                                 -0.1,
                                 1e-3,
                                 10,
                                 -10,
                                 100,
                                 127,
                                 128,
                                 -126,
                                 -149,
                                 1000,
                                 INFINITY,
                                 -INFINITY,
                                 NAN,
                                 FLT_MAX,
                                 -FLT_MAX,
                                 FLT_MIN,
                                 FLT_TRUE_MIN,
                                 -FLT_TRUE_MIN,
                                 88.5,
                                 89,
                                 -87.5,
                                 -103.5,
                                 0x1.fffffep-1,
                                 0x1.000002p0,
                                 3.14159265358979,
                                 1.57079632679490,
                                 1e5,
                                 2e5,
                                 1e10,
                                 1e30,
                                 -1e30,
                                 16777216,
                                 16777217};
enum { SPECIALS = sizeof special / sizeof *special };

/* A value for sampling: any bits, or one of moderate size, or near 1. */
static double sample(DType dtype, unsigned kind)
{
    uint64_t r = random_bits();
    double unit = (double)(int64_t)r * 0x1p-63, v;
    switch (kind % 4) {
    case 0:
        if (dtype == DT_F32) {
            uint32_t u = (uint32_t)r;
            float f;
            memcpy(&f, &u, sizeof f);
            return (double)f;
        }
        memcpy(&v, &r, sizeof v);
        return v;
    case 1: return unit * 100;
    case 2: return 1 + unit * unit * unit;
    default: return ldexp(unit, (int)(random_bits() % 40) - 20);
    }
}

static void put(DType dtype, void *at, size_t i, double v)
{
    if (dtype == DT_F32)
        ((float *)at)[i] = (float)v;
    else
        ((double *)at)[i] = v;
}

static void check_op(Check *c, uint64_t stride, size_t samples)
{
    static double x[CHUNK], y[CHUNK];
    bool one = op_info[c->op].arity == 1;
    size_t n = 0;
    for (int i = 0; i < SPECIALS; i++)
        for (int j = 0; j < (one ? 1 : SPECIALS); j++) {
            put(c->dtype, x, n, special[i]);
            put(c->dtype, y, n++, special[j]);
        }
    run_chunk(c, n, x, y);
    if (one && c->dtype == DT_F32) {
        for (uint64_t u = slice_seed() % stride; u <= UINT32_MAX;) {
            for (n = 0; n < CHUNK && u <= UINT32_MAX; u += stride, n++)
                ((uint32_t *)(void *)x)[n] = (uint32_t)u;
            run_chunk(c, n, x, x);
        }
    }
    for (size_t done = 0; done < samples; done += CHUNK) {
        for (n = 0; n < CHUNK; n++) {
            put(c->dtype, x, n, sample(c->dtype, (unsigned)n));
            put(c->dtype, y, n, sample(c->dtype, (unsigned)(n / 4)));
        }
        run_chunk(c, CHUNK, x, y);
    }
}

static int list(void)
{
    printf("%-12s", "scalar ops");
    for (int t = 0; t < DT_COUNT; t++)
        printf(" %5s", dtype_name((DType)t));
    printf("   (in cold regions, of f32 and f64)\n");
    for (int op = 0; op < OP_COUNT; op++) {
        if (op_class((Op)op) != CLS_EW || op == OP_CAST || op == OP_WHERE)
            continue;
        printf("%-12s", op_name((Op)op));
        int cold[DT_COUNT] = {0};
        for (int t = 0; t < DT_COUNT; t++) {
            static const bool kinds[][4] = {
                [RULE_NUM] = {0, 1, 1, 1}, [RULE_FLOAT] = {0, 0, 0, 1}, [RULE_INTS] = {0, 1, 1, 0},  [RULE_BITS] = {1, 1, 1, 0},
                [RULE_CMP] = {1, 1, 1, 1}, [RULE_FCMP] = {0, 0, 0, 1},  [RULE_RANDOM] = {0, 0, 0, 0}};
            bool ok = op_info[op].rule == RULE_RANDOM ? t == DT_U64 : kinds[op_info[op].rule][dtype_kind((DType)t)];
            if (!ok) {
                printf(" %5s", "");
                continue;
            }
            bool boolean = op_info[op].rule == RULE_CMP || op_info[op].rule == RULE_FCMP;
            const DType in[2] = {(DType)t, (DType)t};
            const Tape *tape = tape_get((Op)op, in, boolean ? DT_BOOL : (DType)t, MATH_STRICT);
            int n = 0;
            for (uint16_t k = 0; k < tape->n; k++)
                n += tape->inst[k].op != SOP_CONST && tape->inst[k].op != SOP_INPUT && tape->inst[k].op != SOP_BITCAST;
            for (uint16_t k = 0; k < tape->n_cold; k++)
                for (uint16_t j = tape->cold[k].begin; j < tape->cold[k].end; j++)
                    cold[t] += tape->inst[j].op != SOP_CONST && tape->inst[j].op != SOP_BITCAST;
            printf(" %5d", n - cold[t]);
        }
        if (cold[DT_F32] || cold[DT_F64])
            printf("   + %d, %d", cold[DT_F32], cold[DT_F64]);
        printf("\n");
    }
    return 0;
}

int main(int argc, char **argv)
{
    uint64_t stride = slice_number("KILN_TEST_SLICES", 4099);
    size_t samples = 1 << 18;
    random_state = slice_seed();
    bool f32 = true, f64 = LDBL_MANT_DIG > 53, named = false, f32_only = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--list"))
            return list();
        if (!strcmp(argv[i], "--all"))
            stride = 1, f32_only = true;
        else if (!strcmp(argv[i], "--every") && i + 1 < argc && atoi(argv[i + 1]) > 0)
            stride = (uint64_t)atoi(argv[++i]), f32_only = true;
        else if (!strcmp(argv[i], "--samples") && i + 1 < argc && atoi(argv[i + 1]) > 0)
            samples = (size_t)atoi(argv[++i]);
        else if (!strcmp(argv[i], "--f64"))
            f32 = false;
        else if (argv[i][0] == '-' || op_parse(argv[i], strlen(argv[i])) == OP_COUNT)
            return fprintf(stderr, "usage: accuracy [--all | --every N] [--samples N] [--f64] [--list] [op ...]\n"), 2;
        else
            named = true;
    }
    if (!f64)
        printf("long double is no wider than double here: f64 is not checked\n");
    int failed = 0;
    for (int wide = !f32; wide <= (f32_only && f32 ? 0 : f64); wide++)
        for (int k = 0; k < ROWS; k++) {
            bool wanted = !named;
            for (int i = 1; i < argc; i++)
                wanted |= op_parse(argv[i], strlen(argv[i])) == rows[k].op;
            if (!wanted)
                continue;
            if (!reference[rows[k].op].f32) {
                printf("%s of ir/accuracy.def needs a reference here  FAIL\n", op_name(rows[k].op));
                failed++;
                continue;
            }
            Check c = {.op = rows[k].op, .dtype = wide ? DT_F64 : DT_F32};
            check_op(&c, stride, samples);
            bool over = c.worst > rows[k].bound[wide] || c.wrong;
            printf("%-10s %s  %8.4f ULP of %.2f at %a %a: %a, exactly %La%s\n", op_name(c.op), dtype_name(c.dtype), c.worst,
                   rows[k].bound[wide], c.at[0], c.at[1], c.got, c.want, over ? "  FAIL" : "");
            if (c.wrong)
                printf("    %llu wrong, such as %a %a: %a\n", (unsigned long long)c.wrong, c.wrong_at[0], c.wrong_at[1], c.wrong_got);
            fflush(stdout);
            failed += over;
        }
    return failed ? 1 : 0;
}
