/* Casts between all pairs of dtypes, and the 16-bit formats, exhaustively. */
#include "tests/unit/scalars.h"

#include "ir/tape_run.h"

/* ---- what a cast should give, from first principles, in long double ---- */

/* Rounds to the format's grid, halves to even; infinity beyond its range. */
static double round_to(DType t, long double v)
{
    static const struct {
        int digits, least, most;
    } format[4] = {{11, -24, 16}, {8, -133, 128}, {24, -149, 128}, {53, -1074, 1024}};
    size_t k = 0;
    while (float_types[k] != t)
        k++;
    if (isnan((double)v) || isinf((double)v) || v == 0)
        return (double)v;
    int exponent = ilogbl(v) - format[k].digits + 1;
    exponent = exponent < format[k].least ? format[k].least : exponent;
    long double r = ldexpl(rintl(ldexpl(v, -exponent)), exponent);
    return fabsl(r) >= ldexpl(1, format[k].most) ? copysign((double)INFINITY, (double)v) : (double)r;
}

static long double least_of(DType t) { return dtype_kind(t) == DK_UINT ? 0 : -ldexpl(1, (int)dtype_bytes(t) * 8 - 1); }
static long double most_of(DType t) { return ldexpl(1, (int)dtype_bytes(t) * 8 - (dtype_kind(t) == DK_INT)) - 1; }

/* The value of an element; exact, as a long double has 64 bits here. */
static long double value_of(DType t, uint64_t bits)
{
    if (dtype_is_float(t))
        return (long double)scalar_to_double(t, bits);
    return t == DT_U64 ? (long double)bits : (long double)scalar_to_int(t, bits);
}

static uint64_t cast_expected(DType from, DType to, uint64_t bits)
{
    long double v = value_of(from, bits);
    if (to == DT_BOOL)
        return v != 0; /* true of NaN */
    if (dtype_is_float(to)) {
        double d = round_to(to, v);
        return scalar_from_double(to, d); /* exact */
    }
    if (!dtype_is_float(from)) /* wraps */
        return scalar_from_int(to, from == DT_U64 ? (int64_t)bits : scalar_to_int(from, bits));
    if (isnan((double)v))
        return 0;
    v = truncl(v);
    v = v < least_of(to) ? least_of(to) : v > most_of(to) ? most_of(to) : v;
    uint64_t magnitude = (uint64_t)fabsl(v);
    return scalar_from_int(to, (int64_t)(v < 0 ? UINT64_C(0) - magnitude : magnitude));
}

static const double values[] = {0.0,
                                -0.0,
                                0.3,
                                -0.7,
                                0.5,
                                1,
                                -1,
                                1.5,
                                2.5,
                                -2.5,
                                126.9,
                                127,
                                127.5,
                                128,
                                -128,
                                -128.9,
                                -129,
                                255,
                                255.9,
                                256,
                                32767.5,
                                32768,
                                -32769,
                                65504,
                                65519.9,
                                65520,
                                65535,
                                65536,
                                1e5,
                                16777215,
                                16777216,
                                16777217,
                                2147483520,
                                2147483647,
                                2147483648.0,
                                -2147483648.0,
                                -2147483649.0,
                                4294967040.0,
                                4294967295.0,
                                4294967296.0,
                                9007199254740993.0,
                                9223372036854774784.0,
                                9223372036854775808.0,
                                -9223372036854775808.0,
                                -9223372036854777856.0,
                                18446744073709549568.0,
                                18446744073709551616.0,
                                1e30,
                                -1e30,
                                0x1p-14,
                                0x1p-24,
                                0x1p-25,
                                0x1.000001p-25,
                                0x1p-126,
                                0x1p-133,
                                0x1p-134,
                                0x1.00001p-134,
                                0x1p-149,
                                0x1p-150,
                                0x1.0000001p-150,
                                0x1.fffffefp127,
                                0x1.ffffffp127,
                                0x1.fep127,
                                0x1.ffp127,
                                1.00048828125,
                                1.000488281250001,
                                1.00048828124999,
                                1.00390625,
                                1.0039062500001,
                                1e300,
                                INFINITY,
                                -INFINITY,
                                NAN};
enum { VALUES = sizeof values / sizeof *values };

static void check_cast(DType from, DType to, uint64_t bits)
{
    uint64_t want = cast_expected(from, to, bits), got = run_bits(OP_CAST, from, to, bits, 0);
    bool nan = dtype_is_float(to) && isnan(scalar_to_double(to, want)) && isnan(scalar_to_double(to, got));
    cr_assert(got == want || nan, "%s to %s of %llx (%Lg): %llx, not %llx", dtype_name(from), dtype_name(to), (unsigned long long)bits,
              value_of(from, bits), (unsigned long long)got, (unsigned long long)want);
}

/* Halfway between two numbers of 11 or 8 digits, above the least numbers of f16, bf16 and f32 and below, and the neighbours in f64. */
Test(cast, f64_halfway_and_beside_it)
{
    static const DType to[] = {DT_F16, DT_BF16};
    static const int digits[] = {11, 8}, least[] = {-24, -133};
    for (int t = 0; t < 2; t++)
        for (int exponent = -160; exponent <= 130; exponent++)
            for (int i = 0; i < 12; i++) {
                int unit = exponent - digits[t] > least[t] ? exponent - digits[t] : least[t];
                uint64_t odd = 2 * (uint64_t)(i * 11 % 64) + 1;
                double half = ldexp((double)odd, unit - 1) + (i % 4 ? ldexp(1, exponent) : 0);
                double beside[] = {half, nextafter(half, INFINITY), nextafter(half, 0), half * (1 + 0x1p-30), half * (1 - 0x1p-28)};
                for (size_t b = 0; b < sizeof beside / sizeof *beside; b++)
                    check_cast(DT_F64, to[t], scalar_from_double(DT_F64, i % 2 ? -beside[b] : beside[b]));
            }
}

Test(cast, all_pairs_on_edges_and_random_bits)
{
    cr_assert_geq(LDBL_MANT_DIG, 64, "this test needs an 80-bit long double");
    static const int64_t ints[] = {0,
                                   1,
                                   -1,
                                   127,
                                   128,
                                   -128,
                                   -129,
                                   255,
                                   256,
                                   2047,
                                   2049,
                                   2051,
                                   257,
                                   259,
                                   65503,
                                   65519,
                                   65520,
                                   65521,
                                   32767,
                                   -32768,
                                   8388609,
                                   16777217,
                                   16777219,
                                   INT32_MAX,
                                   INT32_MIN,
                                   UINT32_MAX,
                                   INT64_MAX,
                                   INT64_MIN,
                                   (INT64_C(1) << 53) + 1,
                                   (INT64_C(1) << 62) + 1,
                                   0x0101000000000001,
                                   0x0101000000000000,
                                   0x0100800000000001,
                                   0x0180800000000000,
                                   0x7fffff4000000001,
                                   0x7fffff4000000000,
                                   -0x0101000000000001,
                                   -2049,
                                   -2051,
                                   -65520};
    for (int from = 0; from < DT_COUNT; from++)
        for (int to = 0; to < DT_COUNT; to++) {
            if (dtype_is_float((DType)from))
                for (size_t i = 0; i < VALUES; i++)
                    check_cast((DType)from, (DType)to, scalar_from_double((DType)from, values[i]));
            else
                for (size_t i = 0; i < sizeof ints / sizeof *ints; i++)
                    check_cast((DType)from, (DType)to, scalar_from_int((DType)from, ints[i]));
            uint64_t state = (uint64_t)(from * 100 + to);
            for (int i = 0; i < 1000; i++) {
                uint64_t bits = random64(&state) >> random64(&state) % 64;
                if (from == DT_BOOL)
                    bits &= 1;
                check_cast((DType)from, (DType)to, bits & (UINT64_MAX >> (64 - dtype_bytes((DType)from) * 8)));
            }
        }
}

/* scalar_* say the same as the tapes. */
/* 9 and 12 leading bits: neighbours of bf16 and f16 and the middles between them, and what lies just beside those. */
Test(cast, ints_of_32_bits_are_rounded_once)
{
    for (int64_t m = 1 << 8; m < 1 << 12; m++)
        for (int up = 0; up <= 24; up++)
            for (int64_t by = -1; by <= 1; by++) {
                int64_t v = (m << up) + by;
                for (int half = 0; half < 2 && v <= UINT32_MAX; half++) {
                    check_cast(DT_U32, half ? DT_F16 : DT_BF16, (uint64_t)v);
                    check_cast(DT_I32, half ? DT_F16 : DT_BF16, scalar_from_int(DT_I32, v));
                    check_cast(DT_I32, half ? DT_F16 : DT_BF16, scalar_from_int(DT_I32, -v));
                }
            }
}

Test(cast, single_elements_agree_with_the_tapes)
{
    for (int t = 0; t < DT_COUNT; t++) {
        for (size_t i = 0; i < VALUES; i++) {
            uint64_t bits = scalar_from_double(DT_F64, values[i]), want = cast_expected(DT_F64, (DType)t, bits);
            if (!isnan(values[i]))
                cr_assert_eq(scalar_from_double((DType)t, values[i]), want, "%s %a", dtype_name((DType)t), values[i]);
        }
        uint64_t state = (uint64_t)t;
        for (int i = 0; i < 3000; i++) {
            int64_t v = (int64_t)(random64(&state) >> random64(&state) % 64);
            v = i % 2 ? v : -v;
            uint64_t want = run_bits(OP_CAST, DT_I64, (DType)t, (uint64_t)v, 0);
            cr_assert_eq(scalar_from_int((DType)t, v), want, "%s %lld", dtype_name((DType)t), (long long)v);
            uint64_t bits = random64(&state) & (UINT64_MAX >> (64 - dtype_bytes((DType)t) * 8));
            if (t == DT_BOOL)
                bits &= 1;
            double d = scalar_to_double((DType)t, bits), from_tape;
            uint64_t wide = run_bits(OP_CAST, (DType)t, DT_F64, bits, 0);
            memcpy(&from_tape, &wide, sizeof wide);
            cr_assert(same_double(d, from_tape));
            cr_assert_eq((uint64_t)scalar_to_int((DType)t, bits), run_bits(OP_CAST, (DType)t, DT_I64, bits, 0));
        }
    }
}

/* ---- every f16 and bf16 ---- */

static double half_value(uint16_t h)
{
    int exponent = h >> 10 & 31, m = h & 1023;
    double v = exponent == 31 ? (m ? (double)NAN : (double)INFINITY) : exponent == 0 ? ldexp(m, -24) : ldexp(m + 1024, exponent - 25);
    return h & 0x8000 ? -v : v;
}

Test(half, every_f16_widens_and_comes_back)
{
    static uint16_t h[65536], back[65536];
    static float wide[65536];
    for (int i = 0; i < 65536; i++)
        h[i] = (uint16_t)i;
    run_array(OP_CAST, DT_F16, DT_F32, 65536, h, NULL, wide);
    run_array(OP_CAST, DT_F32, DT_F16, 65536, wide, NULL, back);
    for (int i = 0; i < 65536; i++) {
        cr_assert(same_double((double)wide[i], half_value(h[i])), "%x", (unsigned)i);
        cr_assert(same_double((double)half_to_float(h[i]), half_value(h[i])));
        if (!isnan(wide[i]))
            cr_assert_eq(back[i], h[i]);
        else
            cr_assert(isnan(half_value(back[i])));
    }
}

Test(half, every_bf16_widens_and_comes_back)
{
    static uint16_t h[65536], back[65536];
    static float wide[65536];
    for (int i = 0; i < 65536; i++)
        h[i] = (uint16_t)i;
    run_array(OP_CAST, DT_BF16, DT_F32, 65536, h, NULL, wide);
    run_array(OP_CAST, DT_F32, DT_BF16, 65536, wide, NULL, back);
    for (int i = 0; i < 65536; i++) {
        uint32_t bits;
        memcpy(&bits, &wide[i], sizeof bits);
        cr_assert_eq(bits, (uint32_t)i << 16);
        cr_assert_eq(back[i], isnan(wide[i]) ? (h[i] | 0x40) : h[i]);
    }
}

/* Around every boundary between two neighbours: just below, on, and just above the middle. */
Test(half, every_rounding_boundary)
{
    static const DType types[2] = {DT_F16, DT_BF16};
    for (int k = 0; k < 2; k++) {
        uint32_t top = k ? 0x7f80 : 0x7c00;
        for (uint32_t i = 0; i < top; i++) {
            double low = scalar_to_double(types[k], i);
            double high = i + 1 == top ? ldexp(1, k ? 128 : 16) : scalar_to_double(types[k], i + 1);
            float middle = (float)((low + high) / 2); /* exact */
            uint64_t even = i & 1 ? i + 1 : i;
            for (int sign = 0; sign < 2; sign++) {
                uint64_t s = sign ? 0x8000 : 0;
                double m = sign ? -(double)middle : (double)middle;
                cr_assert_eq(scalar_from_double(types[k], m), s | even);
                cr_assert_eq(run_bits(OP_CAST, DT_F32, types[k], scalar_from_double(DT_F32, m), 0), s | even);
                cr_assert_eq(run_bits(OP_CAST, DT_F64, types[k], scalar_from_double(DT_F64, m), 0), s | even);
                double below = nextafter(m, 0), above = nextafter(m, sign ? -(double)INFINITY : (double)INFINITY);
                cr_assert_eq(run_bits(OP_CAST, DT_F64, types[k], scalar_from_double(DT_F64, below), 0), s | i);
                cr_assert_eq(run_bits(OP_CAST, DT_F64, types[k], scalar_from_double(DT_F64, above), 0), s | (i + 1));
            }
        }
    }
}

/* Each op on f16 and bf16 is the f32 op, rounded once. */
Test(half, arithmetic_rounds_once)
{
    static const DType types[2] = {DT_F16, DT_BF16};
    static const Op ops[] = {OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_EXP, OP_SQRT, OP_TANH, OP_POW, OP_MAXIMUM};
    uint64_t state = 7;
    for (int k = 0; k < 2; k++)
        for (size_t o = 0; o < sizeof ops / sizeof *ops; o++)
            for (int i = 0; i < 2000; i++) {
                uint64_t a = random64(&state) & 0xffff, b = random64(&state) & 0xffff;
                uint64_t wa = scalar_from_double(DT_F32, scalar_to_double(types[k], a));
                uint64_t wb = scalar_from_double(DT_F32, scalar_to_double(types[k], b));
                double want = scalar_to_double(DT_F32, run_bits(ops[o], DT_F32, DT_F32, wa, wb));
                want = scalar_to_double(types[k], scalar_from_double(types[k], want));
                double got = scalar_to_double(types[k], run_bits(ops[o], types[k], types[k], a, b));
                cr_assert(same_double(got, want), "%s %s %llx %llx", op_name(ops[o]), dtype_name(types[k]), (unsigned long long)a,
                          (unsigned long long)b);
            }
}

/* What selects, negates or makes whole numbers of halves needs no rounding: every value, against the same in f32, rounded. */
Test(half, ops_that_keep_halves)
{
    enum { N = 65536 };
    static uint16_t a[N], b[N], own[N], rounded[N];
    static float wide[3][N];
    int kept = 0;
    for (int i = 0; i < N; i++) {
        a[i] = (uint16_t)i;
        b[i] = (uint16_t)((unsigned)i * 40503u + 12345u);
    }
    for (int op = 0; op < OP_COUNT; op++)
        for (int t = 0; t < 2 && op_keeps_halves((Op)op); t++, kept++) {
            DType half = float_types[t];
            run_array(OP_CAST, half, DT_F32, N, a, NULL, wide[0]);
            run_array(OP_CAST, half, DT_F32, N, b, NULL, wide[1]);
            run_array((Op)op, DT_F32, DT_F32, N, wide[0], wide[1], wide[2]);
            run_array(OP_CAST, DT_F32, half, N, wide[2], NULL, rounded);
            run_array((Op)op, half, half, N, a, b, own);
            for (int i = 0; i < N; i++)
                cr_assert(same_double(scalar_to_double(half, own[i]), scalar_to_double(half, rounded[i])), "%s %s of %x, %x: %x, not %x",
                          op_name((Op)op), dtype_name(half), a[i], b[i], own[i], rounded[i]);
        }
    cr_assert_geq(kept, 2 * 10);
}
