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
    EXPECT_ERROR(kiln_add(t, t), KILN_BAD_DTYPE, "kiln_add: a is bool[2]", "numbers are needed");
    EXPECT_ERROR(kiln_neg(t), KILN_BAD_DTYPE, "kiln_neg: x is bool[2]");
    EXPECT_ERROR(kiln_relu(t), KILN_BAD_DTYPE, "kiln_relu");
    EXPECT_ERROR(kiln_bitwise_and(i, f), KILN_BAD_DTYPE, "kiln_bitwise_and: b is f32[2]", "ints or bools");
    EXPECT_ERROR(kiln_bitwise_not(f), KILN_BAD_DTYPE, "kiln_bitwise_not");
    EXPECT_ERROR(kiln_shift_left(t, t), KILN_BAD_DTYPE, "kiln_shift_left", "ints are needed");
    EXPECT_ERROR(kiln_shift_right(i, kiln_scalar(1)), KILN_BAD_DTYPE, "kiln_shift_right: b is weak float");
    EXPECT_ERROR(kiln_max(t), KILN_BAD_DTYPE, "kiln_max: x is bool[2]");
    EXPECT_ERROR(kiln_matmul(t, t), KILN_BAD_DTYPE, "kiln_matmul: a is bool[2]");
    EXPECT_ERROR(kiln_clamp(t, t, t), KILN_BAD_DTYPE, "kiln_clamp: x is bool[2]");
    EXPECT_ERROR(kiln_take(f, f, 0), KILN_BAD_DTYPE, "kiln_take: index is f32[2]: ints are needed");
    EXPECT_ERROR(kiln_cast(f, (kiln_dtype)99), KILN_INVALID, "kiln_cast: dtype 99");
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
