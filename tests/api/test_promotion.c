/* Broadcasting, promotion between dtypes, weak scalars. */
#include "api.h"

API_TEST(broadcast, shapes)
{
    kiln_tensor *row = F32(KILN_SHAPE(3), 1, 2, 3), *column = F32(KILN_SHAPE(2, 1), 10, 20), *one = F32(KILN_SHAPE(), 100);
    EXPECT(kiln_add(row, column), KILN_F32, KILN_SHAPE(2, 3), 0, 11, 12, 13, 21, 22, 23);
    EXPECT(kiln_add(column, row), KILN_F32, KILN_SHAPE(2, 3), 0, 11, 12, 13, 21, 22, 23);
    EXPECT(kiln_add(row, one), KILN_F32, KILN_SHAPE(3), 0, 101, 102, 103);
    EXPECT(kiln_add(one, row), KILN_F32, KILN_SHAPE(3), 0, 101, 102, 103);
    EXPECT(kiln_mul(F32(KILN_SHAPE(1, 2), 1, 2), F32(KILN_SHAPE(2, 1, 1), 3, 4)), KILN_F32, KILN_SHAPE(2, 1, 2), 0, 3, 6, 4, 8);
    EXPECT(kiln_sub(F32(KILN_SHAPE(1, 1), 5), row), KILN_F32, KILN_SHAPE(1, 3), 0, 4, 3, 2);
    EXPECT_EMPTY(kiln_add(F32(KILN_SHAPE(1), 5), kiln_zeros(KILN_F32, KILN_SHAPE(2, 0))), KILN_F32, KILN_SHAPE(2, 0));
}

API_TEST(broadcast, misfits)
{
    kiln_tensor *a = kiln_zeros(KILN_F32, KILN_SHAPE(2, 3)), *b = kiln_zeros(KILN_I32, KILN_SHAPE(2, 4));
    EXPECT_ERROR(kiln_add(a, b), KILN_BAD_SHAPE, "kiln_add: shapes do not broadcast", "a is f32[2,3]", "test_promotion.c:");
    EXPECT_ERROR(kiln_where(b, a, a), KILN_BAD_SHAPE, "kiln_where", "condition is i32[2,4]", "a is f32[2,3]");
    EXPECT_ERROR(kiln_clamp(a, kiln_scalar(0), b), KILN_BAD_SHAPE, "kiln_clamp", "high is i32[2,4]");
    EXPECT_ERROR(kiln_add(a, kiln_zeros(KILN_F32, KILN_SHAPE(0, 3))), KILN_BAD_SHAPE, "f32[0,3]");
    kiln_tensor *tall = kiln_zeros(KILN_F32, KILN_SHAPE(INT64_C(1) << 40, 1)), *wide = kiln_zeros(KILN_F32, KILN_SHAPE(INT64_C(1) << 40));
    EXPECT_ERROR(kiln_add(tall, wide), KILN_OVERFLOW, "2^62");
}

API_TEST(promotion, table)
{
    static const struct {
        kiln_dtype a, b, result;
    } rows[] = {
        /* clang-format off */
        {KILN_BOOL, KILN_BOOL, KILN_BOOL}, {KILN_BOOL, KILN_I8, KILN_I8},
        {KILN_BOOL, KILN_F16, KILN_F16},   {KILN_I8, KILN_I32, KILN_I32},
        {KILN_I8, KILN_U8, KILN_I16},      {KILN_I32, KILN_U32, KILN_I64},
        {KILN_I64, KILN_U8, KILN_I64},     {KILN_U8, KILN_U64, KILN_U64},
        {KILN_U64, KILN_I64, KILN_F32},    {KILN_I64, KILN_F16, KILN_F16},
        {KILN_I32, KILN_F32, KILN_F32},    {KILN_I64, KILN_F64, KILN_F64},
        {KILN_F16, KILN_BF16, KILN_F32},   {KILN_F16, KILN_F32, KILN_F32},
        {KILN_BF16, KILN_F64, KILN_F64},   {KILN_F32, KILN_F64, KILN_F64},
        /* clang-format on */
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        kiln_tensor *a = kiln_ones(rows[k].a, KILN_SHAPE(2)), *b = kiln_ones(rows[k].b, KILN_SHAPE(2));
        kiln_tensor *t = kiln_ones(KILN_BOOL, KILN_SHAPE(2));
        expect((int)k, kiln_where(t, a, b), rows[k].result, KILN_SHAPE(2), 0, (double[]){1, 1}, 2);
        expect((int)k, kiln_where(t, b, a), rows[k].result, KILN_SHAPE(2), 0, (double[]){1, 1}, 2);
        if (rows[k].result != KILN_BOOL)
            expect((int)k, kiln_add(a, b), rows[k].result, KILN_SHAPE(2), 0, (double[]){2, 2}, 2);
    }
}

API_TEST(promotion, weak_scalars_take_the_dtype_they_meet)
{
    for (int t = KILN_I8; t <= KILN_F64; t++) {
        kiln_dtype dtype = (kiln_dtype)t;
        bool is_float = dtype >= KILN_F16;
        kiln_tensor *x = kiln_full(dtype, KILN_SHAPE(2), 5);
        expect(t, kiln_add(x, kiln_int(2)), dtype, KILN_SHAPE(2), 0, (double[]){7, 7}, 2);
        expect(t, kiln_add(kiln_bool(true), x), dtype, KILN_SHAPE(2), 0, (double[]){6, 6}, 2);
        expect(t, kiln_mul(x, kiln_scalar(0.5)), is_float ? dtype : KILN_F32, KILN_SHAPE(2), 0, (double[]){2.5, 2.5}, 2);
        expect(t, kiln_gt(x, kiln_scalar(4.5)), KILN_BOOL, KILN_SHAPE(2), 0, (double[]){1, 1}, 2);
    }
    EXPECT(kiln_add(BOOL(KILN_SHAPE(2), 0, 1), kiln_int(2)), KILN_I64, KILN_SHAPE(2), 0, 2, 3);
    EXPECT(kiln_add(BOOL(KILN_SHAPE(2), 0, 1), kiln_scalar(2)), KILN_F32, KILN_SHAPE(2), 0, 2, 3);
}

API_TEST(promotion, weak_scalars_among_themselves)
{
    kiln_tensor *s = kiln_div(kiln_int(1), kiln_sqrt(kiln_scalar(2)));
    cr_assert(kiln_is_weak(s));
    double value;
    cr_assert(kiln_item(s, &value) == KILN_OK, "%s", kiln_error_message());
    cr_assert_float_eq(value, 1 / sqrt(2), 1e-15);
    EXPECT(kiln_mul(F32(KILN_SHAPE(2), 1, 2), s), KILN_F32, KILN_SHAPE(2), 1e-7, 1 / sqrt(2), sqrt(2));
    EXPECT(kiln_mul(F64(KILN_SHAPE(1), 1), s), KILN_F64, KILN_SHAPE(1), 1e-15, 1 / sqrt(2));
    EXPECT(kiln_add(I32(KILN_SHAPE(2), 1, 2), kiln_mul(kiln_int(2), kiln_int(3))), KILN_I32, KILN_SHAPE(2), 0, 7, 8);
    cr_assert(!kiln_is_weak(kiln_add(F32(KILN_SHAPE(), 1), kiln_scalar(1))));
    EXPECT(kiln_expand(kiln_scalar(1.5), KILN_SHAPE(2)), KILN_F32, KILN_SHAPE(2), 0, 1.5, 1.5);
    EXPECT(kiln_expand(kiln_int(3), KILN_SHAPE(2)), KILN_I64, KILN_SHAPE(2), 0, 3, 3);
    EXPECT(kiln_sum(kiln_scalar(2)), KILN_F32, KILN_SHAPE(), 0, 2);
}

API_TEST(promotion, literals_must_fit)
{
    kiln_tensor *x = kiln_zeros(KILN_U8, KILN_SHAPE(2));
    EXPECT_ERROR(kiln_add(x, kiln_int(256)), KILN_INVALID, "kiln_add: 256 does not fit u8");
    EXPECT_ERROR(kiln_add(x, kiln_int(-1)), KILN_INVALID, "-1 does not fit u8");
    EXPECT(kiln_add(kiln_zeros(KILN_U64, KILN_SHAPE(1)), kiln_int(INT64_MAX)), KILN_U64, KILN_SHAPE(1), 0, (double)INT64_MAX);
}

API_TEST(promotion, refused_dtypes)
{
    kiln_tensor *t = BOOL(KILN_SHAPE(2), 0, 1), *f = F32(KILN_SHAPE(2), 0, 1), *i = I32(KILN_SHAPE(2), 0, 1);
    EXPECT_ERROR(kiln_sub(t, t), KILN_BAD_DTYPE, "kiln_sub: a is bool[2]", "bools have no differences", "kiln_logical_xor");
    EXPECT_ERROR(kiln_neg(t), KILN_BAD_DTYPE, "kiln_neg: x is bool[2]", "kiln_logical_not");
    EXPECT_ERROR(kiln_div(kiln_pow(t, t), t), KILN_BAD_DTYPE, "kiln_pow: a is bool[2]", "numbers are needed");
    EXPECT_ERROR(kiln_relu(t), KILN_BAD_DTYPE, "kiln_relu");
    EXPECT_ERROR(kiln_bitwise_and(i, f), KILN_BAD_DTYPE, "kiln_bitwise_and: b is f32[2]", "ints or bools");
    EXPECT_ERROR(kiln_bitwise_not(f), KILN_BAD_DTYPE, "kiln_bitwise_not");
    EXPECT_ERROR(kiln_shift_left(t, t), KILN_BAD_DTYPE, "kiln_shift_left", "ints are needed");
    EXPECT_ERROR(kiln_shift_right(i, kiln_scalar(1)), KILN_BAD_DTYPE, "kiln_shift_right: b is weak float");
    EXPECT_ERROR(kiln_matmul(t, t), KILN_BAD_DTYPE, "kiln_matmul: a is bool[2]");
    EXPECT_ERROR(kiln_clamp(t, t, t), KILN_BAD_DTYPE, "kiln_clamp: x is bool[2]");
    EXPECT_ERROR(kiln_take(f, f, 0), KILN_BAD_DTYPE, "kiln_take: index is f32[2]: ints are needed");
    EXPECT_ERROR(kiln_cast(f, (kiln_dtype)99), KILN_INVALID, "kiln_cast: dtype 99");
}

API_TEST(promotion, bools_are_or_and_and)
{
    kiln_tensor *a = BOOL(KILN_SHAPE(4), 0, 0, 1, 1), *b = BOOL(KILN_SHAPE(4), 0, 1, 0, 1);
    EXPECT(kiln_add(a, b), KILN_BOOL, KILN_SHAPE(4), 0, 0, 1, 1, 1);
    EXPECT(kiln_maximum(a, b), KILN_BOOL, KILN_SHAPE(4), 0, 0, 1, 1, 1);
    EXPECT(kiln_mul(a, b), KILN_BOOL, KILN_SHAPE(4), 0, 0, 0, 0, 1);
    EXPECT(kiln_minimum(a, b), KILN_BOOL, KILN_SHAPE(4), 0, 0, 0, 0, 1);
    EXPECT(kiln_add(a, kiln_bool(true)), KILN_BOOL, KILN_SHAPE(4), 0, 1, 1, 1, 1);
    EXPECT(kiln_mul(kiln_bool(true), kiln_bool(false)), KILN_BOOL, KILN_SHAPE(), 0, 0);
    EXPECT(kiln_max(a), KILN_BOOL, KILN_SHAPE(), 0, 1);
    EXPECT(kiln_min(a), KILN_BOOL, KILN_SHAPE(), 0, 0);
    kiln_tensor *square = kiln_reshape(b, KILN_SHAPE(2, 2));
    EXPECT(kiln_max_axes(square, KILN_AXES(0), true), KILN_BOOL, KILN_SHAPE(1, 2), 0, 0, 1);
    EXPECT(kiln_min_axes(square, KILN_AXES(0), false), KILN_BOOL, KILN_SHAPE(2), 0, 0, 1);
    EXPECT(kiln_min_axes(BOOL(KILN_SHAPE(2, 1), 1, 1), KILN_AXES(0), false), KILN_BOOL, KILN_SHAPE(1), 0, 1);
    EXPECT_ERROR(kiln_max(kiln_zeros(KILN_BOOL, KILN_SHAPE(0))), KILN_BAD_SHAPE, "kiln_max: there is no value of zero elements");
}

/* ---- ints against weak ints that their dtype may not hold ---- */

typedef kiln_tensor *Compare(kiln_tensor *a, kiln_tensor *b, const char *file, int line);
static Compare *const compares[] = {kiln_eq_at, kiln_ne_at, kiln_lt_at, kiln_le_at, kiln_gt_at, kiln_ge_at};

static bool compared(size_t how, __int128 a, __int128 b)
{
    const bool says[] = {a == b, a != b, a<b, a <= b, a> b, a >= b};
    return says[how];
}

/* A weak int: a literal, or what is only known when it is computed. */
static kiln_tensor *weak_int(int64_t value, bool literal) { return literal ? kiln_int(value) : kiln_add(kiln_int(value), kiln_int(0)); }

API_TEST(promotion, ints_compare_as_numbers)
{
    for (kiln_dtype t = KILN_I8; t <= KILN_U64; t++) {
        unsigned bits = 8 * (unsigned)kiln_dtype_size(t);
        bool is_signed = t <= KILN_I64;
        __int128 most = ((__int128)1 << (bits - is_signed)) - 1, least = is_signed ? -most - 1 : 0;
        const __int128 at[] = {least, least + 1, 1, most - 1, most},
                       other[] = {INT64_MIN, least - 1, least, -1, 0, 1, most, most + 1, INT64_MAX};
        uint8_t data[5 * 8];
        for (int i = 0; i < 5; i++) {
            uint64_t word = (uint64_t)at[i];
            memcpy(data + i * (int)bits / 8, &word, bits / 8); /* little endian */
        }
        kiln_tensor *x = kiln_from(t, KILN_SHAPE(5), data);
        for (size_t v = 0; v < sizeof other / sizeof *other; v++)
            for (size_t how = 0; how < 6; how++)
                for (int form = 0; form < 4; form++) {
                    if (other[v] < INT64_MIN || other[v] > INT64_MAX)
                        continue;
                    kiln_tensor *w = weak_int((int64_t)other[v], form & 1);
                    kiln_tensor *y = compares[how](form & 2 ? w : x, form & 2 ? x : w, __FILE__, __LINE__);
                    uint8_t got[5];
                    cr_assert(kiln_dtype_of(y) == KILN_BOOL && kiln_rank(y) == 1, "%s", kiln_error_message());
                    cr_assert(kiln_read(y, KILN_BOOL, got, 5) == KILN_OK, "%s", kiln_error_message());
                    for (int i = 0; i < 5; i++)
                        cr_assert(got[i] == compared(how, form & 2 ? other[v] : at[i], form & 2 ? at[i] : other[v]),
                                  "%s, comparison %zu, element %d with %lld, form %d: %d", kiln_dtype_name(t), how, i, (long long)other[v],
                                  form, got[i]);
                }
    }
}

API_TEST(promotion, ints_compare_as_numbers_literally)
{
    kiln_tensor *x = U8(KILN_SHAPE(3), 0, 44, 255);
    EXPECT(kiln_lt(x, kiln_int(300)), KILN_BOOL, KILN_SHAPE(3), 0, 1, 1, 1);
    EXPECT(kiln_eq(x, kiln_int(300)), KILN_BOOL, KILN_SHAPE(3), 0, 0, 0, 0);
    EXPECT(kiln_ge(x, kiln_int(-1)), KILN_BOOL, KILN_SHAPE(3), 0, 1, 1, 1);
    EXPECT(kiln_gt(kiln_int(-1), x), KILN_BOOL, KILN_SHAPE(3), 0, 0, 0, 0);
    EXPECT(kiln_eq(x, kiln_mul(kiln_int(150), kiln_int(2))), KILN_BOOL, KILN_SHAPE(3), 0, 0, 0, 0);
    EXPECT(kiln_eq(kiln_sum(x), kiln_int(299)), KILN_BOOL, KILN_SHAPE(), 0, 1);
}

/* Each number of those in range, and of those beyond, is an argument: they share a program. */
Test(promotion, compared_numbers_are_arguments)
{
    kiln_stats before;
    kiln_tensor *x = U8(KILN_SHAPE(3), 0, 44, 255);
    static const int64_t numbers[] = {7, 300, -5, 250, 1000, -70000, 9, INT64_MAX};
    for (int i = 0; i < 8; i++) {
        cr_assert(kiln_eval(kiln_lt(x, kiln_int(numbers[i]))) == KILN_OK);
        if (i == 2)
            kiln_get_stats(&before);
    }
    kiln_stats after = stats_now();
    cr_assert(after.compiles == before.compiles, "%d compiles", (int)(after.compiles - before.compiles));
}

API_TEST(promotion, bounds_beyond_the_dtype_bound_nothing)
{
    kiln_tensor *x = U8(KILN_SHAPE(3), 0, 44, 255), *s = kiln_from(KILN_I8, KILN_SHAPE(3), (const int8_t[]){-128, 5, 127});
    EXPECT(kiln_clamp(x, kiln_int(-1), kiln_int(300)), KILN_U8, KILN_SHAPE(3), 0, 0, 44, 255);
    EXPECT(kiln_clamp(x, kiln_scalar(-1), kiln_scalar(300)), KILN_U8, KILN_SHAPE(3), 0, 0, 44, 255);
    EXPECT(kiln_clamp(x, kiln_int(300), kiln_int(400)), KILN_U8, KILN_SHAPE(3), 0, 255, 255, 255);
    EXPECT(kiln_clamp(x, I32(KILN_SHAPE(3), -7, 50, 256), I32(KILN_SHAPE(), 1000)), KILN_U8, KILN_SHAPE(3), 0, 0, 50, 255);
    EXPECT(kiln_clamp(x, kiln_mul(kiln_int(-5), kiln_int(7)), kiln_mul(kiln_int(150), kiln_int(2))), KILN_U8, KILN_SHAPE(3), 0, 0, 44, 255);
    EXPECT(kiln_clamp(s, x, kiln_int(INT64_MAX)), KILN_I8, KILN_SHAPE(3), 0, 0, 44, 127);
    EXPECT(kiln_clamp(s, I64(KILN_SHAPE(), INT64_MIN), kiln_cast(x, KILN_U64)), KILN_I8, KILN_SHAPE(3), 0, -128, 5, 127);
    EXPECT(kiln_clamp(kiln_cast(s, KILN_F16), kiln_scalar(-1e9), kiln_scalar(1e9)), KILN_F16, KILN_SHAPE(3), 0, -128, 5, 127);
    const kiln_padding one[] = {{1, 0}};
    EXPECT(kiln_pad(x, 1, one, kiln_int(7)), KILN_U8, KILN_SHAPE(4), 0, 7, 0, 44, 255);
    EXPECT(kiln_pad(x, 1, one, kiln_scalar(7)), KILN_U8, KILN_SHAPE(4), 0, 7, 0, 44, 255);
    EXPECT_ERROR(kiln_pad(x, 1, one, kiln_int(300)), KILN_INVALID, "kiln_pad: 300 does not fit u8");
    EXPECT_ERROR(kiln_pad(x, 1, one, kiln_scalar(300)), KILN_INVALID, "kiln_pad: 300 does not fit u8");
    EXPECT_ERROR(kiln_pad(x, 1, one, kiln_scalar(0.5)), KILN_INVALID, "kiln_pad: 0.5 is no whole number: the dtype is u8");
    EXPECT_ERROR(kiln_pad(x, 1, one, kiln_scalar(NAN)), KILN_INVALID, "nan does not fit u8");
    EXPECT(kiln_pad(x, 1, one, I32(KILN_SHAPE(), 300)), KILN_U8, KILN_SHAPE(4), 0, 44, 0, 44, 255); /* as kiln_cast */
    EXPECT_ERROR(kiln_pad(s, 1, one, kiln_int(-129)), KILN_INVALID, "kiln_pad: -129 does not fit i8");
    EXPECT_ERROR(kiln_pad(s, 1, one, kiln_scalar(INFINITY)), KILN_INVALID, "kiln_pad: inf does not fit i8");
    /* a float has an infinity for what is beyond it, and rounds */
    kiln_tensor *half = kiln_cast(s, KILN_F16), *single = kiln_cast(s, KILN_F32);
    EXPECT(kiln_pad(half, 1, one, kiln_scalar(1e9)), KILN_F16, KILN_SHAPE(4), 0, INFINITY, -128, 5, 127);
    EXPECT(kiln_pad(half, 1, one, kiln_int(-1000000)), KILN_F16, KILN_SHAPE(4), 0, -INFINITY, -128, 5, 127);
    EXPECT(kiln_pad(half, 1, one, kiln_scalar(2049)), KILN_F16, KILN_SHAPE(4), 0, 2048, -128, 5, 127);
    EXPECT(kiln_pad(single, 1, one, kiln_scalar(-1e300)), KILN_F32, KILN_SHAPE(4), 0, -INFINITY, -128, 5, 127);
    EXPECT(kiln_pad(single, 1, one, kiln_scalar(NAN)), KILN_F32, KILN_SHAPE(4), 0, NAN, -128, 5, 127);
}

/* f32 data, f64 arithmetic, a narrow result: one kernel, of as many lanes as the result has in 16 bytes. */
API_TEST(promotion, from_f32_by_f64_to_less)
{
    static const kiln_dtype dtypes[] = {KILN_BOOL, KILN_I8, KILN_U8, KILN_I16, KILN_U16, KILN_F16, KILN_BF16, KILN_F32, KILN_I32};
    float data[70], got[70];
    for (int i = 0; i < 70; i++)
        data[i] = (float)(i % 2);
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        kiln_tensor *two = kiln_cast(kiln_full(KILN_F32, KILN_SHAPE(), 2), KILN_F64);
        kiln_tensor *y = kiln_cast(kiln_mul(kiln_from(KILN_F32, KILN_SHAPE(70), data), two), dtypes[d]);
        cr_assert(kiln_eval(y) == KILN_OK, "%s", kiln_error_message());
        cr_assert(kiln_read(kiln_cast(y, KILN_F32), KILN_F32, got, sizeof got) == KILN_OK, "%s", kiln_error_message());
        for (int i = 0; i < 70; i++)
            cr_assert(got[i] == (float)(i % 2) * (dtypes[d] == KILN_BOOL ? 1 : 2), "%s: %d", kiln_dtype_name(dtypes[d]), i);
    }
}
