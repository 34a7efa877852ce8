/* Every elementwise function of one operand, on every dtype: taken or refused as the header says, and equal in all modes. */
#include "tests/differential/engine.h"

typedef kiln_tensor *Unary(kiln_tensor *);

typedef enum OutRule { OUT_SAME, OUT_FLOAT, OUT_BOOL } OutRule;

typedef struct UnaryRow {
    Unary *f;
    int takes;
    OutRule out;
    unsigned flags;
    double fast_absolute;
} UnaryRow;

#define NUMBER(name, flags)                                                            \
    {                                                                                  \
#name, group, &(const UnaryRow) { kiln_##name, D_NUMBERS, OUT_SAME, flags, 0 } \
    }
#define FLOAT(name)                                                             \
    {                                                                           \
#name, group, &(const UnaryRow) { kiln_##name, D_ALL, OUT_FLOAT, 0, 0 } \
    }
/* x/2 * (1 + tanh(...)): tanh may be 4.2 + 1.5 units of 2^-24 off (ir/accuracy_cuda.def, ir/accuracy.def), and 1 + tanh is 0 from |x| = 5.5 on */
#define CANCELS(name)                                                                              \
    {                                                                                              \
#name, group, &(const UnaryRow) { kiln_##name, D_ALL, OUT_FLOAT, 0, 2.75 * 5.7 * 0x1p-24 } \
    }
#define TRUTH(name)                                                                      \
    {                                                                                    \
#name, group, &(const UnaryRow) { kiln_##name, D_ALL, OUT_BOOL, MAY_BE_FREE, 0 } \
    }

static const kiln_shape shapes[] = {
    {0, {0}},  {3, {7, 13, 5}}, {1, {0}},        {2, {0, 3}},   {3, {4, 0, 2}},       {1, {1}},  {2, {1, 1}},   {3, {5, 1, 3}},
    {1, {31}}, {2, {13, 7}},    {2, {257, 129}}, {1, {100003}}, {5, {2, 3, 1, 4, 3}}, {1, {64}}, {2, {3, 1000}}};
enum { SHAPES = sizeof shapes / sizeof *shapes, SHAPES_CAST = 2 };

static int build(const Case *c, kiln_tensor *const *in, kiln_tensor **out)
{
    const UnaryRow *row = c->row;
    out[0] = row->f(in[0]);
    return 1;
}

static kiln_dtype out_dtype(OutRule rule, kiln_dtype in)
{
    if (rule == OUT_BOOL)
        return KILN_BOOL;
    return rule == OUT_SAME || dtype_is_float(in) ? in : KILN_F32;
}

static void group(const Group *g)
{
    const UnaryRow *row = g->row;
    for (int dtype = 0; dtype < DTYPES; dtype++) {
        bool taken = row->takes >> dtype & 1, cast = row->out != OUT_SAME && !dtype_is_float((kiln_dtype)dtype);
        int n = !taken ? 1 : cast ? SHAPES_CAST : SHAPES;
        for (int s = 0; s < n; s++) {
            Case c = {.op = g->name, .build = build, .row = row, .n_in = 1, .flags = row->flags | (s == 1 ? FAST_TOO : 0)};
            c.in[0] = (Spec){(kiln_dtype)dtype, shapes[s], VALUES_MIX, 0};
            c.fast_absolute = row->fast_absolute;
            c.refused = taken ? KILN_OK : KILN_BAD_DTYPE;
            c.out = out_dtype(row->out, (kiln_dtype)dtype);
            c.out_known = true;
            check(&c);
        }
    }
}

static const Group groups[] = {
    NUMBER(positive, MAY_BE_FREE),
    NUMBER(neg, 0),
    NUMBER(abs, MAY_BE_FREE),
    NUMBER(sign, 0),
    NUMBER(square, 0),
    NUMBER(floor, MAY_BE_FREE),
    NUMBER(ceil, MAY_BE_FREE),
    NUMBER(round, MAY_BE_FREE),
    NUMBER(trunc, MAY_BE_FREE),
    NUMBER(relu, MAY_BE_FREE),
    FLOAT(reciprocal),
    FLOAT(sqrt),
    FLOAT(rsqrt),
    FLOAT(exp),
    FLOAT(exp2),
    FLOAT(expm1),
    FLOAT(log),
    FLOAT(log2),
    FLOAT(log10),
    FLOAT(log1p),
    FLOAT(sin),
    FLOAT(cos),
    FLOAT(tan),
    FLOAT(asin),
    FLOAT(acos),
    FLOAT(atan),
    FLOAT(sinh),
    FLOAT(cosh),
    FLOAT(tanh),
    FLOAT(asinh),
    FLOAT(acosh),
    FLOAT(atanh),
    FLOAT(erf),
    FLOAT(erfc),
    FLOAT(sigmoid),
    FLOAT(softplus),
    FLOAT(silu),
    FLOAT(gelu),
    CANCELS(gelu_tanh),
    TRUTH(isnan),
    TRUTH(isinf),
    TRUTH(isfinite),
    TRUTH(signbit),
    TRUTH(logical_not),
    {"bitwise_not", group, &(const UnaryRow){kiln_bitwise_not, D_BITS, OUT_SAME, 0, 0}},
};

int main(int argc, char **argv) { return run_groups("diff_unary", groups, sizeof groups / sizeof *groups, argc, argv); }
