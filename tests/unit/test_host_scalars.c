/* Scalars that the host computes: their values, subnormals and rounding included, their text, and which lists of a file are taken. */
#include "ir/text.h"
#include "jit/host_scalars.h"
#include "tests/unit/arena.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(host_scalars, .init = setup, .fini = teardown);

static uint64_t bits64(double x) { return scalar_from_double(DT_F64, x); }

/* h4 = sqrt(k1 * k0 * 1e300): the product of the two is a subnormal; h6 the same in f32, with one of its own */
static const HostScalar chain[] = {
    {.op = OP_INPUT, .dtype = DT_F64, .in = {1}},  {.op = OP_INPUT, .dtype = DT_F64, .in = {0}},
    {.op = OP_MUL, .dtype = DT_F64, .in = {0, 1}}, {.op = OP_SCALAR, .dtype = DT_F64, .bits = 0x7e37e43c8800759c},
    {.op = OP_MUL, .dtype = DT_F64, .in = {2, 3}}, {.op = OP_SCALAR, .dtype = DT_F32, .bits = 0x00000003},
    {.op = OP_ADD, .dtype = DT_F32, .in = {5, 5}}, {.op = OP_CAST, .dtype = DT_F64, .in = {6}},
    {.op = OP_LT, .dtype = DT_BOOL, .in = {6, 5}},
};
enum { CHAIN = sizeof chain / sizeof *chain };

Test(host_scalars, subnormals_are_kept)
{
    const uint64_t scalars[] = {bits64(1e-200), bits64(1e-120)};
    uint64_t value[CHAIN];
    for (int math = 0; math < MATH_MODES; math++) {
        memset(value, 0xa5, sizeof value);
        cr_assert(host_scalars_run(chain, CHAIN, (MathMode)math, scalars, value));
        cr_expect_eq(value[2], bits64(1e-120 * 1e-200), "%llx", (unsigned long long)value[2]);
        cr_expect_eq(value[2] >> 52, 0, "it is no subnormal");
        cr_expect_neq(value[2], 0);
        cr_expect_eq(value[4], bits64(1e-120 * 1e-200 * 1e300));
        cr_expect_eq(value[6], 6, "bits of an f32, zero-extended");
        cr_expect_eq(value[7], bits64((double)(6 * 0x1p-149f)));
        cr_expect_eq(value[8], 0);
    }
}

Test(host_scalars, text)
{
    static const char *const lines[] = {"h0: f64 = k1", "h2: f64 = mul h0 h1", "h3: f64 = 1e+300", "h7: f64 = cast h6"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        Str out;
        str_init(&out, &arena);
        host_scalar_print(chain, (uint32_t)(lines[i][1] - '0'), &out);
        cr_expect_str_eq(out.text, lines[i]);
    }
}

/* Each of these alone would let a damaged entry read, or run, what is not there. */
Test(host_scalars, unsound_ones_do_not_fit)
{
    static const struct {
        HostScalar at;
        const char *why;
    } cases[] = {
        {{.op = OP_INPUT, .dtype = DT_F64, .in = {2}}, "the call has two scalars"},
        {{.op = OP_INPUT, .dtype = DT_F64, .in = {UINT32_MAX}}, "the call has two scalars"},
        {{.op = OP_COUNT, .dtype = DT_F64}, "no op"},
        {{.op = UINT8_MAX, .dtype = DT_F64}, "no op"},
        {{.op = OP_SCALAR, .dtype = DT_COUNT}, "no dtype"},
        {{.op = OP_ADD, .dtype = UINT8_MAX, .in = {0, 1}}, "no dtype"},
        {{.op = OP_ADD, .dtype = DT_F64, .in = {0, CHAIN}}, "its own operand"},
        {{.op = OP_ADD, .dtype = DT_F64, .in = {CHAIN + 1, 0}}, "an operand that comes later"},
        {{.op = OP_WHERE, .dtype = DT_F64, .in = {8, 0, UINT32_MAX}}, "a third operand that is not there"},
        {{.op = OP_ADD, .dtype = DT_F32, .in = {0, 1}}, "a sum of f64 is no f32"},
        {{.op = OP_ADD, .dtype = DT_F64, .in = {0, 5}}, "operands of two dtypes"},
        {{.op = OP_LT, .dtype = DT_F64, .in = {0, 1}}, "a comparison is a bool"},
        {{.op = OP_ADD, .dtype = DT_F64, .in = {0, 1}, .bits = 1}, "only a constant has bits"},
        {{.op = OP_REDUCE_SUM, .dtype = DT_F64, .in = {0}}, "no elementwise op"},
        {{.op = OP_RESHAPE, .dtype = DT_F64, .in = {0}}, "no elementwise op"},
    };
    HostScalar list[CHAIN + 1];
    for (uint32_t i = 0; i < CHAIN; i++)
        cr_expect(host_scalar_fits(chain, i, 2), "h%u", i);
    cr_expect_not(host_scalar_fits(chain, 0, 1), "k1 of one scalar");
    memcpy(list, chain, sizeof chain);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        list[CHAIN] = cases[i].at;
        cr_expect_not(host_scalar_fits(list, CHAIN, 2), "case %zu: %s", i, cases[i].why);
    }
    list[CHAIN] = (HostScalar){.op = OP_WHERE, .dtype = DT_F64, .in = {8, 0, 1}};
    cr_expect(host_scalar_fits(list, CHAIN, 2), "where of a bool and two f64");
}
