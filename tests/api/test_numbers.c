/* Numbers as operands, kiln_check, and a log that goes into memory. */
#include "api.h"

#include <stdio.h>
#include <unistd.h>

static void is(kiln_tensor *x, kiln_dtype dtype, double expected)
{
    double value = -12345;
    cr_assert(x, "%s", kiln_error_message());
    cr_expect(kiln_dtype_of(x) == dtype, "%s", kiln_dtype_name(kiln_dtype_of(x)));
    cr_assert(kiln_item(x, &value) == KILN_OK, "%s", kiln_error_message());
    cr_expect(value == expected, "%g, not %g", value, expected);
}

Test(numbers, each_kind_of_c)
{
    kiln_tensor *x = kiln_full(KILN_F32, KILN_SHAPE(1), 3), *i = kiln_full_int(KILN_I32, KILN_SHAPE(1), 7);
    const double d = 2;
    const char c = 2;
    is(kiln_mul(x, 2.0), KILN_F32, 6);
    is(kiln_mul(2.0F, x), KILN_F32, 6);
    is(kiln_add(x, d), KILN_F32, 5);
    is(kiln_sub(1, x), KILN_F32, -2);
    is(kiln_add(i, 2), KILN_I32, 9);
    is(kiln_add(i, 0.5), KILN_F32, 7.5);
    is(kiln_add(i, c), KILN_I32, 9);
    is(kiln_add(i, (signed char)-2), KILN_I32, 5);
    is(kiln_add(i, (unsigned char)200), KILN_I32, 207);
    is(kiln_add(i, (short)-300), KILN_I32, -293);
    is(kiln_add(i, (unsigned short)300), KILN_I32, 307);
    is(kiln_add(i, 300U), KILN_I32, 307);
    is(kiln_add(i, -300L), KILN_I32, -293);
    is(kiln_add(i, (size_t)300), KILN_I32, 307);
    is(kiln_add(i, 300LL), KILN_I32, 307);
    is(kiln_add(i, 300ULL), KILN_I32, 307);
    is(kiln_logical_and(i, (bool)true), KILN_BOOL, 1);
    is(kiln_where(kiln_gt(x, 2), x, 0), KILN_F32, 3);
    is(kiln_clamp(x, -1, 1), KILN_F32, 1);
    is(kiln_add(kiln_mul(kiln_sub(kiln_div(x, 2), 1), 4), kiln_mul(x, kiln_pow(x, 2))), KILN_F32, 29);
}

Test(numbers, errors)
{
    kiln_tensor *x = kiln_ones(KILN_U64, KILN_SHAPE(1));
    cr_expect(kiln_add(x, UINT64_MAX) == NULL);
    cr_expect(kiln_error_status() == KILN_OVERFLOW && strstr(kiln_error_message(), "kiln_from") &&
                  strstr(kiln_error_message(), "test_numbers.c"),
              "%s", kiln_error_message());
    kiln_clear_error();
    is(kiln_sub(x, INT64_MAX), KILN_U64, 0x1p63 + 2); /* wraps */
    cr_expect(kiln_add(x, NULL) == NULL);
    kiln_clear_error();
}

/* An operand is evaluated once, in a place of its own. */
Test(numbers, once)
{
    int n = 0;
    is(kiln_mul(kiln_full(KILN_F64, KILN_SHAPE(), ++n), ++n), KILN_F64, 2);
    cr_expect(n == 2);
}

Test(check, fine) { kiln_check(kiln_eval(kiln_ones(KILN_F32, KILN_SHAPE(2)))); }

Test(check, ends_the_process, .exit_code = 1)
{
    kiln_check(kiln_eval(kiln_add(kiln_ones(KILN_F32, KILN_SHAPE(2)), kiln_ones(KILN_F32, KILN_SHAPE(3)))));
    _exit(0);
}

Test(log, into_memory)
{
    char text[4000], small[10];
    kiln_log_buffer all = {text, sizeof text, 0}, some = {small, sizeof small, 0}, none = {NULL, 0, 0};
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(3));
    cr_assert(kiln_eval(x) == KILN_OK);
    set_option("log", "recompiles");
    kiln_set_log_sink(kiln_log_into, &all);
    cr_assert(kiln_eval(kiln_sin(x)) == KILN_OK);
    cr_expect(strstr(text, "never_seen") && text[all.needed - 1] == '\n' && strlen(text) == all.needed, "%s", text);
    kiln_set_log_sink(kiln_log_into, &some);
    cr_assert(kiln_eval(kiln_cos(x)) == KILN_OK);
    cr_expect(strlen(small) == sizeof small - 1 && some.needed > sizeof small);
    kiln_set_log_sink(kiln_log_into, &none);
    cr_assert(kiln_eval(kiln_tan(x)) == KILN_OK);
    cr_expect(none.needed == some.needed, "%zu", none.needed);
    kiln_set_log_sink(NULL, NULL);
    set_option("log", "");
}
