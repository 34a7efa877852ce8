/* Every elementwise function of one operand, on every dtype: taken or refused as the header says, and equal in all modes. */
#include "tests/differential/engine.h"

#include <string.h>

typedef kiln_tensor *Unary(kiln_tensor *);

typedef enum OutRule { OUT_SAME, OUT_FLOAT, OUT_BOOL } OutRule;
/* What a PREP of runtime/record/record.h means to a user. */
#define NUM_TAKES D_NUMBERS, OUT_SAME
#define SIGNED_TAKES D_NUMBERS, OUT_SAME
#define FLOAT_TAKES D_ALL, OUT_FLOAT
#define TRUTH_TAKES D_ALL, OUT_BOOL
#define BITS_TAKES D_BITS, OUT_SAME

typedef struct UnaryRow {
    Unary *f;
    int takes;
    OutRule out;
} UnaryRow;

/* Tests of a number: a bool, though they promote as FLOAT does. */
static const char *const truths[] = {"isnan", "isinf", "isfinite", "signbit"};
/* Of ints they are nothing, or known without looking. */
static const char *const may_be_free[] = {"positive", "abs",   "floor", "ceil",     "round",   "trunc",
                                          "relu",     "isnan", "isinf", "isfinite", "signbit", "logical_not"};

static bool among(const char *name, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}
#define AMONG(name, names) among(name, names, sizeof names / sizeof *names)

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

static OutRule out_rule(const Group *g)
{
    const UnaryRow *row = g->row;
    return AMONG(g->name, truths) ? OUT_BOOL : row->out;
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
        bool taken = row->takes >> dtype & 1, cast = out_rule(g) != OUT_SAME && !dtype_is_float((kiln_dtype)dtype);
        int n = !taken ? 1 : cast ? SHAPES_CAST : SHAPES;
        for (int s = 0; s < n; s++) {
            Case c = {.op = g->name, .build = build, .row = row, .n_in = 1, .flags = s == 1 ? FAST_TOO : 0};
            c.in[0] = (Spec){(kiln_dtype)dtype, shapes[s], VALUES_MIX, 0};
            c.flags |= AMONG(g->name, may_be_free) ? MAY_BE_FREE : 0;
            /* x/2 * (1 + tanh(...)): tanh may be 4.2 + 1.5 units of 2^-24 off (ir/accuracy_cuda.def, ir/accuracy.def), and 1 + tanh is 0
             * from |x| = 5.5 on */
            c.fast_absolute = strcmp(g->name, "gelu_tanh") == 0 ? 2.75 * 5.7 * 0x1p-24 : 0;
            c.refused = taken ? KILN_OK : KILN_BAD_DTYPE;
            c.out = out_dtype(out_rule(g), (kiln_dtype)dtype);
            c.out_known = true;
            check(&c);
        }
    }
}

static const Group groups[] = {
#define UNARY(name, op, prep) {&(#name)[5], group, &(const UnaryRow){name, prep##_TAKES}}, /* without kiln_ */
#define BINARY(name, op, prep, a, b)
#include "tests/support/elementwise.def"
};

int main(int argc, char **argv) { return run_groups("diff_unary", groups, sizeof groups / sizeof *groups, argc, argv); }
