/* Tapes, integer ops, plain float ops, reductions' parts, random bits. */
#include "tests/unit/scalars.h"

#include "ir/fold.h"

#include <pthread.h>

/* ---- every op has a tape for every dtype its rule allows, and tapes are sound ---- */

static bool allowed(Op op, DType t)
{
    DKind kind = dtype_kind(t);
    switch ((DRule)op_info[op].rule) {
    case RULE_NUM: return kind != DK_BOOL;
    case RULE_FLOAT:
    case RULE_FCMP: return kind == DK_FLOAT;
    case RULE_INTS: return dtype_is_int(t);
    case RULE_BITS: return kind != DK_FLOAT;
    case RULE_BOOL: return kind == DK_BOOL;
    case RULE_RANDOM: return t == DT_U64;
    default: return true; /* SAME, CMP, CAST, WHERE */
    }
}

static void check_types(const Tape *tape, Op op, DType t)
{
    for (uint16_t k = 0; k < tape->n; k++) {
        const TapeInst *i = &tape->inst[k];
        const uint16_t operand[3] = {i->a, i->b, i->c};
        const ScalarOpInfo *info = &scalar_op_info[i->op];
        for (int j = 0; j < info->arity; j++)
            cr_assert_lt(operand[j], k, "%s %s: operand order", op_name(op), dtype_name(t));
        if (info->arity == 0)
            continue;
        SType a = (SType)tape->inst[i->a].type;
        if (info->result == 1)
            cr_assert_eq(i->type, SC_I1, "%s %s: %s", op_name(op), dtype_name(t), info->name);
        if (info->result == 0)
            cr_assert_eq(i->type, a, "%s %s: %s", op_name(op), dtype_name(t), info->name);
        if (i->op == SOP_BITCAST)
            cr_assert_eq(stype_bits[i->type], stype_bits[a]);
        if (i->op == SOP_SELECT) {
            cr_assert_eq(a, SC_I1);
            cr_assert_eq(i->type, tape->inst[i->b].type);
            cr_assert_eq(i->type, tape->inst[i->c].type);
        } else {
            for (int j = 1; j < info->arity; j++)
                cr_assert_eq(tape->inst[operand[j]].type, a, "%s %s: %s", op_name(op), dtype_name(t), info->name);
        }
    }
}

/* What a cold region computes leaves it only through selects on its condition. */
static void check_cold(const Tape *tape, Op op)
{
    for (uint16_t r = 0; r < tape->n_cold; r++) {
        TapeCold cold = tape->cold[r];
        cr_assert_lt(cold.cond, cold.begin);
        cr_assert_lt(cold.begin, cold.end);
        cr_assert_eq(tape->inst[cold.cond].type, SC_I1);
        cr_assert(tape->out < cold.begin || tape->out >= cold.end);
        for (uint16_t before = 0; before < r; before++) /* in order; apart or inside */
            cr_assert(tape->cold[before].begin <= cold.begin &&
                      (tape->cold[before].end <= cold.begin || tape->cold[before].end >= cold.end));
        for (uint16_t k = cold.end; k < tape->n; k++) {
            const TapeInst *i = &tape->inst[k];
            const uint16_t operand[3] = {i->a, i->b, i->c};
            for (int j = 0; j < scalar_op_info[i->op].arity; j++)
                if (operand[j] >= cold.begin && operand[j] < cold.end)
                    cr_assert(i->op == SOP_SELECT && j == 1 && i->a == cold.cond, "%s", op_name(op));
        }
    }
}

static int long_of(const Tape *tape, int begin, int end)
{
    int n = 0;
    for (int i = begin; i < end; i++)
        n += tape->inst[i].op != SOP_CONST;
    return n;
}

/* Arguments beyond 2^17 (F64: 2^20) are no cliff: the region for them is no longer than what everybody runs, and infinity does not take it. */
Test(tape, large_angles_are_short)
{
    static const Op ops[] = {OP_SIN, OP_COS, OP_TAN};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        const Tape *tape = tape_get(ops[i], (DType[]){DT_F32}, DT_F32, MATH_STRICT);
        cr_assert_eq(tape->n_cold, 1);
        int inside = long_of(tape, tape->cold[0].begin, tape->cold[0].end);
        cr_expect_leq(inside, 18, "%s: %d", op_name(ops[i]), inside);
        tape = tape_get(ops[i], (DType[]){DT_F64}, DT_F64, MATH_STRICT);
        cr_assert_eq(tape->n_cold, 1);
        inside = long_of(tape, tape->cold[0].begin, tape->cold[0].end);
        cr_expect_leq(inside, 50, "%s: %d", op_name(ops[i]), inside);
        Tape condition = *tape;
        condition.out = tape->cold[0].cond;
        static const double x[] = {1, 0x1p20, -0x1p20, INFINITY, -INFINITY, NAN, -NAN, 0x1.0000000000001p20, -1e30, 0x1.fffffffffffffp1023};
        enum { N = sizeof x / sizeof *x, FAR = 3 };
        uint8_t asks[N];
        cr_assert(tape_run(&condition, (DType[]){DT_F64}, DT_BOOL, N, (const void *const[]){x}, asks));
        for (int k = 0; k < N; k++)
            cr_expect_eq(asks[k], k >= N - FAR, "%s %a", op_name(ops[i]), x[k]);
    }
}

/* Of exp and its like only what gives a subnormal result, or nearly so, asks for a cold region: no mask, infinity or NaN, nothing out of range. */
Test(tape, only_subnormal_results_are_rare)
{
    static const struct {
        Op op;
        double from[2], to[2]; /* of F32, F64: what may ask */
    } rows[] = {
        {OP_EXP, {-104, -746}, {-86.9, -708}}, {OP_SIGMOID, {-104, -746}, {-87.2, -708.3}}, {OP_SILU, {-109, -752}, {-87.2, -708.3}}};
    enum { N = 1 << 16 };
    static uint64_t x[N];
    static uint8_t asks[N];
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (int w = 0; w < 2; w++) {
            DType type = w ? DT_F64 : DT_F32;
            const Tape *tape = tape_get(rows[r].op, &type, type, MATH_STRICT);
            cr_assert_eq(tape->n_cold, 1);
            Tape condition = *tape;
            condition.out = tape->cold[0].cond;
            for (uint64_t i = 0; i < N; i++) { /* the upper 16 bits of a float: all signs, exponents and specials */
                uint64_t low = i * UINT64_C(0x9e3779b97f4a7c15);
                scalar_store(type, w ? i << 48 | low >> 16 : (i << 16 | low >> 48), (char *)x + i * dtype_bytes(type));
            }
            cr_assert(tape_run(&condition, &type, DT_BOOL, N, (const void *const[]){x}, asks));
            int asked = 0;
            for (size_t i = 0; i < N; i++) {
                double v = scalar_to_double(type, scalar_load(type, (char *)x + i * dtype_bytes(type)));
                cr_expect(!asks[i] || (rows[r].from[w] <= v && v <= rows[r].to[w]), "%s %s of %a", op_name(rows[r].op), dtype_name(type),
                          v);
                asked += asks[i];
            }
            cr_expect_gt(asked, 0);
        }
}

/* CPUs take long for divisions with subnormal operands: functions that are usual of such numbers have none. */
Test(tape, no_subnormal_is_divided)
{
    static const Op ops[] = {OP_SILU, OP_SIGMOID, OP_TAN, OP_ERFC};
    static const float x[] = {0x1p-149F, -0x1p-149F, 0x1.8p-140F, -0x1.8p-140F, 0x1.fffffcp-127F, -0x1.fffffcp-127F};
    enum { N = sizeof x / sizeof *x };
    DType type = DT_F32;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        const Tape *tape = tape_get(ops[i], &type, type, MATH_STRICT);
        for (uint32_t k = 0; k < tape->n; k++) {
            if (tape->inst[k].op != SOP_DIV)
                continue;
            Tape operand = *tape;
            for (int side = 0; side < 2; side++) {
                float v[N];
                operand.out = side ? tape->inst[k].b : tape->inst[k].a;
                cr_assert(tape_run(&operand, &type, type, N, (const void *const[]){x}, v));
                for (int j = 0; j < N; j++)
                    cr_expect_neq(fpclassify(v[j]), FP_SUBNORMAL, "%s of %a divides %s %a", op_name(ops[i]), (double)x[j], side ? "by" : "",
                                  (double)v[j]);
            }
        }
    }
}

static TapeLength outside_cold(const Tape *tape)
{
    TapeLength outside = {0};
    for (uint32_t i = 0; i < tape->n; i++) {
        bool inside = false;
        for (uint32_t r = 0; r < tape->n_cold; r++)
            inside |= i >= tape->cold[r].begin && i < tape->cold[r].end;
        outside.all += !inside;
        uint8_t op = tape->inst[i].op;
        outside.computing += !inside && op != SOP_CONST && op != SOP_INPUT && op != SOP_BITCAST;
    }
    return outside;
}

Test(tape, every_op_and_dtype_has_a_sound_tape)
{
    int made = 0;
    for (int op = 0; op < OP_COUNT; op++) {
        if (op_class((Op)op) != CLS_EW)
            continue;
        for (int t = 0; t < DT_COUNT; t++) {
            DRule rule = (DRule)op_info[op].rule;
            if (!allowed((Op)op, (DType)t))
                continue;
            for (int out = 0; out < DT_COUNT; out++) {
                bool boolean = rule == RULE_CMP || rule == RULE_FCMP;
                if (rule != RULE_CAST && out != (boolean ? DT_BOOL : t))
                    continue;
                DType in[3] = {rule == RULE_WHERE ? DT_BOOL : (DType)t, (DType)t, (DType)t};
                const Tape *tape = tape_get((Op)op, in, (DType)out, MATH_STRICT);
                cr_assert_not_null(tape);
                cr_assert_eq(tape->n_inputs, op_info[op].arity);
                cr_assert_eq(tape->inst[tape->out].type, dtype_info[out].scalar);
                check_types(tape, (Op)op, (DType)t);
                check_cold(tape, (Op)op);
                TapeLength length = tape_usual_length(tape), counted = outside_cold(tape);
                cr_assert(length.all == counted.all && length.computing == counted.computing && counted.computing <= counted.all);
                cr_assert_eq(tape, tape_get((Op)op, in, (DType)out, MATH_STRICT), "made once");
                made++;
            }
        }
    }
    cr_assert_gt(made, 600);
}

static void *get_many(void *result)
{
    const Tape **tapes = result;
    for (int op = 0; op < OP_COUNT; op++)
        if (op_class((Op)op) == CLS_EW && op_info[op].rule == RULE_FLOAT)
            tapes[op] = tape_get((Op)op, (DType[]){DT_F64, DT_F64, DT_F64}, DT_F64, MATH_FAST);
    return NULL;
}

Test(tape, threads_get_one_tape)
{
    enum { THREADS = 4 };
    static const Tape *tapes[THREADS][OP_COUNT];
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++)
        cr_assert_eq(pthread_create(&thread[i], NULL, get_many, tapes[i]), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    for (int i = 1; i < THREADS; i++)
        cr_assert_arr_eq(tapes[0], tapes[i], sizeof tapes[0]);
    cr_assert_not_null(tapes[0][OP_SIN]);
}

Test(tape, blocks_of_any_length_agree_with_single_elements)
{
    enum { N = 1000 };
    float x[N], whole[N];
    for (int i = 0; i < N; i++)
        x[i] = (float)(i - 500) * 3.7F;
    for (size_t n = 0; n <= N; n += n < 4 ? 1 : 83) {
        memset(whole, 0x55, sizeof whole);
        run_array(OP_SIN, DT_F32, DT_F32, n, x, x, whole);
        for (size_t i = 0; i < n; i += 41) {
            float one;
            run_array(OP_SIN, DT_F32, DT_F32, 1, &x[i], &x[i], &one);
            cr_assert_eq(whole[i], one);
        }
    }
}

/* ---- ints ---- */

/* The definitions in 128 bits, wrapped at the end. */
static __int128 int_expected(Op op, DType t, __int128 a, __int128 b)
{
    __int128 q = b == 0 ? 0 : a / b, r = b == 0 ? 0 : a % b, width = (__int128)dtype_bytes(t) * 8;
    bool below = r != 0 && (r < 0) != (b < 0);
    bool too_wide = b < 0 || b >= width;
    switch (op) {
    case OP_NEG: return -a;
    case OP_ABS: return a < 0 ? -a : a;
    case OP_SIGN: return (a > 0) - (a < 0);
    case OP_SQUARE: return (__int128)((unsigned __int128)a * (unsigned __int128)a);
    case OP_RELU: return a < 0 ? 0 : a;
    case OP_FLOOR:
    case OP_ROUND: return a;
    case OP_NOT: return ~a;
    case OP_ADD: return a + b;
    case OP_SUB: return a - b;
    case OP_MUL: return (__int128)((unsigned __int128)a * (unsigned __int128)b);
    case OP_FLOORDIV: return q - below;
    case OP_REM: return below ? r + b : r;
    case OP_FMOD: return r;
    case OP_MAXIMUM: return a > b ? a : b;
    case OP_MINIMUM: return a < b ? a : b;
    case OP_AND: return a & b;
    case OP_OR: return a | b;
    case OP_XOR: return a ^ b;
    case OP_SHL: return too_wide ? 0 : (__int128)((unsigned __int128)a << (int)b);
    case OP_SHR: return a >> (too_wide ? 127 : (int)b);
    case OP_POW: {
        if (b < 0)
            return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;
        unsigned __int128 r2 = 1, base = (unsigned __int128)a;
        for (; b; b >>= 1, base *= base)
            if (b & 1)
                r2 *= base;
        return (__int128)r2;
    }
    default: cr_assert_fail("%s", op_name(op)); return 0;
    }
}

static __int128 int_value(DType t, uint64_t bits) { return t == DT_U64 ? (__int128)bits : (__int128)scalar_to_int(t, bits); }

Test(scalar, ints_wrap_divide_and_shift_as_defined)
{
    static const Op ops[] = {OP_NEG,      OP_ABS, OP_SIGN, OP_SQUARE,  OP_RELU,    OP_FLOOR, OP_ROUND, OP_NOT, OP_ADD, OP_SUB, OP_MUL,
                             OP_FLOORDIV, OP_REM, OP_FMOD, OP_MAXIMUM, OP_MINIMUM, OP_AND,   OP_OR,    OP_XOR, OP_SHL, OP_SHR, OP_POW};
    static const int64_t seeds[] = {0,
                                    1,
                                    -1,
                                    2,
                                    -2,
                                    3,
                                    -3,
                                    5,
                                    7,
                                    -7,
                                    8,
                                    15,
                                    16,
                                    31,
                                    32,
                                    33,
                                    63,
                                    64,
                                    65,
                                    127,
                                    128,
                                    -128,
                                    255,
                                    256,
                                    257,
                                    1000,
                                    32767,
                                    32768,
                                    -32768,
                                    65535,
                                    INT32_MAX,
                                    INT32_MIN,
                                    UINT32_MAX,
                                    INT64_MAX,
                                    INT64_MIN,
                                    INT64_MIN + 1,
                                    0x123456789abcdef};
    for (size_t k = 0; k < 8; k++)
        for (size_t o = 0; o < sizeof ops / sizeof *ops; o++)
            for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++)
                for (size_t j = 0; j < sizeof seeds / sizeof *seeds; j++) {
                    DType t = int_types[k];
                    uint64_t a = scalar_from_int(t, seeds[i]), b = scalar_from_int(t, seeds[j]);
                    __int128 want = int_expected(ops[o], t, int_value(t, a), int_value(t, b));
                    uint64_t want_bits = scalar_from_int(t, (int64_t)(uint64_t)(unsigned __int128)want);
                    uint64_t got = run_bits(ops[o], t, t, a, b);
                    cr_assert_eq(got, want_bits, "%s %s %lld %lld: %llx, not %llx", op_name(ops[o]), dtype_name(t), (long long)seeds[i],
                                 (long long)seeds[j], (unsigned long long)got, (unsigned long long)want_bits);
                }
}

Test(scalar, int_comparisons_mind_the_sign)
{
    for (size_t k = 0; k < 8; k++) {
        DType t = int_types[k];
        uint64_t low = scalar_from_int(t, 1), top = scalar_from_int(t, -1);
        bool is_signed = dtype_kind(t) == DK_INT;
        cr_assert_eq(run_bits(OP_LT, t, DT_BOOL, low, top), !is_signed);
        cr_assert_eq(run_bits(OP_GE, t, DT_BOOL, low, top), is_signed);
        cr_assert_eq(run_bits(OP_GT, t, DT_BOOL, top, low), !is_signed);
        cr_assert_eq(run_bits(OP_LE, t, DT_BOOL, low, low), 1);
        cr_assert_eq(run_bits(OP_EQ, t, DT_BOOL, low, top), 0);
        cr_assert_eq(run_bits(OP_NE, t, DT_BOOL, low, top), 1);
    }
}

Test(scalar, bools)
{
    for (uint64_t a = 0; a < 2; a++)
        for (uint64_t b = 0; b < 2; b++) {
            cr_assert_eq(run_bits(OP_AND, DT_BOOL, DT_BOOL, a, b), a & b);
            cr_assert_eq(run_bits(OP_OR, DT_BOOL, DT_BOOL, a, b), a | b);
            cr_assert_eq(run_bits(OP_XOR, DT_BOOL, DT_BOOL, a, b), a ^ b);
            cr_assert_eq(run_bits(OP_NOT, DT_BOOL, DT_BOOL, a, b), !a);
            cr_assert_eq(run_bits(OP_EQ, DT_BOOL, DT_BOOL, a, b), a == b);
            cr_assert_eq(run_bits(OP_LT, DT_BOOL, DT_BOOL, a, b), a < b);
            cr_assert_eq(run_bits(OP_GE, DT_BOOL, DT_BOOL, a, b), a >= b);
        }
}

Test(scalar, where_moves_bits_untouched)
{
    for (int t = 0; t < DT_COUNT; t++) {
        DType types[3] = {DT_BOOL, (DType)t, (DType)t};
        uint64_t mask = UINT64_MAX >> (64 - dtype_bytes((DType)t) * 8), yes = UINT64_C(0x7fa17d017f817d01) & mask,
                 no = UINT64_C(0xfff4000100000001) & mask; /* signalling NaNs among them */
        if (t == DT_BOOL)
            yes = 1, no = 0;
        for (uint64_t c = 0; c < 2; c++) {
            uint64_t out = 0;
            cr_assert(
                tape_run(tape_get(OP_WHERE, types, (DType)t, MATH_STRICT), types, (DType)t, 1, (const void *const[]){&c, &yes, &no}, &out));
            cr_assert_eq(out, c ? yes : no, "%s", dtype_name((DType)t));
        }
    }
}

/* ---- floats: what is exact or rounded once ---- */

static const double grid[] = {0.0,    -0.0,     1,        -1,       0.5,       -0.5, 1.5,      -1.5,           2,        2.5,       -2.5,
                              3,      -3,       7,        0.1,      -0.3,      100,  -1000.25, 0x1p-14,        0x1p-24,  -0x1p-24,  65504,
                              -65504, 0x1p-126, 0x1p-133, 0x1p-149, -0x1p-149, 1e30, -1e38,    0x1.fffffep127, INFINITY, -INFINITY, NAN};
enum { GRID = sizeof grid / sizeof *grid };

static double sign_of(double a) { return isnan(a) ? a : (a > 0) - (a < 0); }

static double floordiv_of(double a, double b)
{
    if (b == 0)
        return a / b;
    double m = fmod(a, b), q = (a - m) / b;
    if (m != 0 && (b < 0) != (m < 0))
        q -= 1;
    return q == 0 ? copysign(0, a / b) : floor(q) + (q - floor(q) > 0.5);
}

static double rem_of(double a, double b)
{
    double m = fmod(a, b);
    if (m == 0)
        return copysign(0, b);
    return (b < 0) != (m < 0) ? m + b : m;
}

static double float_expected(Op op, double a, double b)
{
    switch (op) {
    case OP_NEG: return -a;
    case OP_ABS: return fabs(a);
    case OP_SIGN: return sign_of(a);
    case OP_SQUARE: return a * a;
    case OP_RECIPROCAL: return 1 / a;
    case OP_SQRT: return sqrt(a);
    case OP_RELU: return a <= 0 ? 0 : a;
    case OP_FLOOR: return floor(a);
    case OP_CEIL: return ceil(a);
    case OP_ROUND: return rint(a);
    case OP_TRUNC: return trunc(a);
    case OP_ADD: return a + b;
    case OP_SUB: return a - b;
    case OP_MUL: return a * b;
    case OP_DIV: return a / b;
    case OP_FMOD: return fmod(a, b);
    case OP_COPYSIGN: return copysign(a, b);
    case OP_MAXIMUM: return isnan(a) ? a : isnan(b) ? b : a == b ? (signbit(a) ? b : a) : a > b ? a : b;
    case OP_MINIMUM: return isnan(a) ? a : isnan(b) ? b : a == b ? (signbit(a) ? a : b) : a < b ? a : b;
    default: cr_assert_fail("%s", op_name(op)); return 0;
    }
}

Test(scalar, plain_float_ops_on_special_values)
{
    static const Op ops[] = {OP_NEG,   OP_ABS, OP_SIGN, OP_SQUARE, OP_RECIPROCAL, OP_SQRT, OP_RELU,     OP_FLOOR,   OP_CEIL,   OP_ROUND,
                             OP_TRUNC, OP_ADD, OP_SUB,  OP_MUL,    OP_DIV,        OP_FMOD, OP_COPYSIGN, OP_MAXIMUM, OP_MINIMUM};
    for (size_t k = 0; k < 4; k++)
        for (size_t o = 0; o < sizeof ops / sizeof *ops; o++)
            for (size_t i = 0; i < GRID; i++)
                for (size_t j = 0; j < GRID; j++) {
                    DType t = float_types[k];
                    double a = scalar_to_double(t, scalar_from_double(t, grid[i]));
                    double b = scalar_to_double(t, scalar_from_double(t, grid[j]));
                    double want = float_expected(ops[o], a, b); /* a double has room for one exact rounding below */
                    want = scalar_to_double(t, scalar_from_double(t, want));
                    double got = run_float(ops[o], t, a, b);
                    cr_assert(same_double(got, want), "%s %s %a %a: %a, not %a", op_name(ops[o]), dtype_name(t), a, b, got, want);
                }
}

Test(scalar, python_division_of_floats)
{
    for (size_t i = 0; i < GRID; i++)
        for (size_t j = 0; j < GRID; j++) {
            double a = grid[i], b = grid[j];
            double got = run_float(OP_FLOORDIV, DT_F64, a, b), rest = run_float(OP_REM, DT_F64, a, b);
            cr_assert(same_double(got, floordiv_of(a, b)), "%a // %a: %a, not %a", a, b, got, floordiv_of(a, b));
            cr_assert(same_double(rest, rem_of(a, b)), "%a %% %a: %a, not %a", a, b, rest, rem_of(a, b));
        }
    cr_assert_eq(run_float(OP_REM, DT_F32, -7, 3), 2);
    cr_assert_eq(run_float(OP_FLOORDIV, DT_F32, -7, 3), -3);
    cr_assert_eq(run_float(OP_FLOORDIV, DT_F16, 7, -2), -4);
}

/* Quotients of any size, subnormals included. */
Test(scalar, fmod_is_exact)
{
    uint64_t state = 1;
    for (int i = 0; i < 20000; i++) {
        uint64_t a = random64(&state), b = random64(&state);
        if (i % 4 == 0)
            b &= UINT64_C(0x800fffffffffffff); /* subnormal divisor */
        if (i % 4 == 1)
            a = (a & ~(UINT64_C(0x7ff) << 52)) | ((b & (UINT64_C(0x7ff) << 52)) + ((uint64_t)(i % 64) << 52)) % (UINT64_C(0x7ff) << 52);
        double x = scalar_to_double(DT_F64, a), y = scalar_to_double(DT_F64, b);
        double got = run_float(OP_FMOD, DT_F64, x, y);
        cr_assert(same_double(got, fmod(x, y)), "fmod %a %a: %a, not %a", x, y, got, fmod(x, y));
        uint32_t a32 = (uint32_t)(a >> 32), b32 = (uint32_t)(b >> (i % 3 ? 32 : 40));
        double x32 = scalar_to_double(DT_F32, a32), y32 = scalar_to_double(DT_F32, b32);
        got = run_float(OP_FMOD, DT_F32, x32, y32);
        cr_assert(same_double(got, fmod(x32, y32)), "fmodf %a %a: %a, not %a", x32, y32, got, fmod(x32, y32));
    }
}

Test(scalar, float_predicates_and_comparisons)
{
    for (size_t k = 0; k < 4; k++)
        for (size_t i = 0; i < GRID; i++) {
            DType t = float_types[k];
            uint64_t bits = scalar_from_double(t, grid[i]);
            double a = scalar_to_double(t, bits);
            cr_assert_eq(run_bits(OP_ISNAN, t, DT_BOOL, bits, 0), isnan(a) != 0);
            cr_assert_eq(run_bits(OP_ISINF, t, DT_BOOL, bits, 0), isinf(a) != 0);
            cr_assert_eq(run_bits(OP_ISFINITE, t, DT_BOOL, bits, 0), isfinite(a) != 0);
            if (!isnan(a))
                cr_assert_eq(run_bits(OP_SIGNBIT, t, DT_BOOL, bits, 0), signbit(a) != 0);
            for (size_t j = 0; j < GRID; j++) {
                uint64_t other = scalar_from_double(t, grid[j]);
                double b = scalar_to_double(t, other);
                cr_assert_eq(run_bits(OP_EQ, t, DT_BOOL, bits, other), a == b);
                cr_assert_eq(run_bits(OP_NE, t, DT_BOOL, bits, other), a != b);
                cr_assert_eq(run_bits(OP_LT, t, DT_BOOL, bits, other), a < b);
                cr_assert_eq(run_bits(OP_LE, t, DT_BOOL, bits, other), a <= b);
                cr_assert_eq(run_bits(OP_GT, t, DT_BOOL, bits, other), a > b);
                cr_assert_eq(run_bits(OP_GE, t, DT_BOOL, bits, other), a >= b);
            }
        }
}

Test(scalar, nextafter_steps_to_the_neighbour)
{
    for (size_t i = 0; i < GRID; i++)
        for (size_t j = 0; j < GRID; j++) {
            double got = run_float(OP_NEXTAFTER, DT_F64, grid[i], grid[j]);
            cr_assert(same_double(got, nextafter(grid[i], grid[j])), "%a %a: %a", grid[i], grid[j], got);
            float a = (float)grid[i], b = (float)grid[j];
            got = run_float(OP_NEXTAFTER, DT_F32, (double)a, (double)b);
            cr_assert(same_double(got, (double)nextafterf(a, b)), "%a %a: %a", (double)a, (double)b, got);
        }
    cr_assert_eq(run_bits(OP_NEXTAFTER, DT_F16, DT_F16, 0x3c00, 0x4000), 0x3c01);
    cr_assert_eq(run_bits(OP_NEXTAFTER, DT_F16, DT_F16, 0x7bff, 0x7c00), 0x7c00);
    cr_assert_eq(run_bits(OP_NEXTAFTER, DT_F16, DT_F16, 0x0000, 0x8001), 0x8001);
    cr_assert_eq(run_bits(OP_NEXTAFTER, DT_BF16, DT_BF16, 0xbf80, 0x0000), 0xbf7f);
}

/* ---- reductions, random bits ---- */

Test(scalar, fold_start_changes_nothing)
{
    static const Fold folds[] = {FOLD_SUM, FOLD_PROD, FOLD_MAX, FOLD_MIN};
    for (size_t o = 0; o < 4; o++)
        for (int t = DT_I8; t < DT_COUNT; t++)
            for (size_t i = 0; i < GRID; i++) {
                uint64_t x = dtype_is_float((DType)t) ? scalar_from_double((DType)t, grid[i])
                                                      : scalar_from_int((DType)t, (int64_t)(i * i * 7919) - 1000);
                uint64_t start = fold_start(folds[o], (DType)t);
                uint64_t got = run_bits((Op)fold_info[folds[o]].step, (DType)t, (DType)t, start, x);
                cr_assert(got == x || (dtype_is_float((DType)t) && isnan(scalar_to_double((DType)t, x))),
                          "%s %s: start %llx, element %llx, result %llx", fold_info[folds[o]].text, dtype_name((DType)t),
                          (unsigned long long)start, (unsigned long long)x, (unsigned long long)got);
            }
    cr_assert_eq(fold_start(FOLD_ANY, DT_BOOL), 0);
    cr_assert_eq(fold_start(FOLD_ALL, DT_BOOL), 1);
    cr_assert_eq(fold_start(FOLD_SUM, DT_F32), 0x80000000);
}

/* Published with Random123: kat_vectors, threefry 2x32 with 20 rounds. */
Test(scalar, threefry_known_answers)
{
    static const struct {
        uint64_t counter, key, want;
    } kat[] = {
        {0, 0, UINT64_C(0x99ba4efe6b200159)},
        {UINT64_MAX, UINT64_MAX, UINT64_C(0xbb002be71cb996fc)},
        {UINT64_C(0x85a308d3243f6a88), UINT64_C(0x0370734413198a2e), UINT64_C(0x483df7a0c4923a9c)},
    };
    for (size_t i = 0; i < sizeof kat / sizeof *kat; i++)
        cr_assert_eq(run_bits(OP_THREEFRY, DT_U64, DT_U64, kat[i].counter, kat[i].key), kat[i].want, "%zu", i);
}
