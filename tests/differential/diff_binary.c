/* Every elementwise function of two operands, on every dtype and on broadcast shapes, with weak scalars on either side. */
#include "tests/differential/engine.h"

#include <stddef.h>
#include <string.h>

typedef kiln_tensor *Binary(kiln_tensor *, kiln_tensor *);

typedef enum OutRule { OUT_SAME, OUT_FLOAT, OUT_BOOL } OutRule;

typedef struct BinaryRow {
    Binary *f;
    int takes;
    OutRule out;
} BinaryRow;

/* What a PREP of runtime/record/record.h means to a user. */
#define NUM_TAKES D_NUMBERS, OUT_SAME
#define SIGNED_TAKES D_NUMBERS, OUT_SAME
#define FLOAT_TAKES D_ALL, OUT_FLOAT
#define ANY_TAKES D_ALL, OUT_SAME
#define TRUTH_TAKES D_ALL, OUT_BOOL
#define BITS_TAKES D_BITS, OUT_SAME
#define INTS_TAKES D_INTS, OUT_SAME

static const kiln_shape shapes[][2] = {
    {{0, {0}}, {0, {0}}},
    {{3, {7, 13, 5}}, {3, {7, 13, 5}}},
    {{3, {7, 1, 5}}, {2, {13, 1}}},
    {{2, {13, 7}}, {0, {0}}},
    {{2, {0, 3}}, {2, {1, 3}}},
    {{1, {1}}, {1, {0}}},
    {{2, {257, 129}}, {1, {129}}},
    {{1, {100003}}, {1, {100003}}},
    {{1, {31}}, {1, {31}}},
    {{3, {5, 1, 3}}, {3, {1, 4, 1}}},
    {{0, {0}}, {4, {2, 3, 1, 17}}},
    {{2, {257, 1}}, {2, {1, 129}}},
    {{2, {257, 129}}, {2, {257, 129}}},
};
enum { PAIRS = sizeof shapes / sizeof *shapes, PAIRS_CAST = 2 };

/* arg[0]: where a weak scalar stands in for an operand (0 nowhere, 1 left, 2 right); arg[1]: which one. */
static kiln_tensor *weak_scalar(const Case *c)
{
    static const double floats[] = {2.0, 0.1, -1.5, 0.0, 1e30};
    static const int64_t ints[] = {2, -1, 3, 0, 100};
    kiln_dtype dtype = c->in[0].dtype;
    if (dtype >= KILN_U8 && dtype <= KILN_U64) /* which do not take a negative one */
        return kiln_int(c->arg[1] + 1);
    if (dtype == KILN_BOOL)
        return kiln_bool(c->arg[1] & 1);
    return dtype_is_float(dtype) ? kiln_scalar(floats[c->arg[1]]) : kiln_int(ints[c->arg[1]]);
}

static int build(const Case *c, kiln_tensor *const *in, kiln_tensor **out)
{
    const BinaryRow *row = c->row;
    if (c->arg[0] == 0)
        out[0] = row->f(in[0], in[1]);
    else if (c->arg[0] == 1)
        out[0] = row->f(weak_scalar(c), in[0]);
    else
        out[0] = row->f(in[0], weak_scalar(c));
    return 1;
}

static OutRule out_rule(const Group *g)
{
    static const char *const comparisons[] = {"eq", "ne", "lt", "le", "gt", "ge"}; /* promote as others do, and give a bool */
    const BinaryRow *row = g->row;
    for (size_t i = 0; i < sizeof comparisons / sizeof *comparisons; i++)
        if (strcmp(g->name, comparisons[i]) == 0)
            return OUT_BOOL;
    return row->out;
}

static Case case_of(const Group *g, kiln_dtype dtype, int pair)
{
    const BinaryRow *row = g->row;
    bool taken = row->takes >> dtype & 1;
    Case c = {.op = g->name, .build = build, .row = row, .n_in = 2};
    for (int i = 0; i < 2; i++)
        c.in[i] = (Spec){dtype, shapes[pair][i], VALUES_MIX, 0};
    c.refused = taken ? KILN_OK : KILN_BAD_DTYPE;
    c.out = out_rule(g) == OUT_BOOL ? KILN_BOOL : row->out == OUT_SAME || dtype_is_float(dtype) ? dtype : KILN_F32;
    c.out_known = true;
    return c;
}

static void group(const Group *g)
{
    const BinaryRow *row = g->row;
    for (int dtype = 0; dtype < DTYPES; dtype++) {
        bool taken = row->takes >> dtype & 1, cast = row->out == OUT_FLOAT && !dtype_is_float((kiln_dtype)dtype);
        int n = !taken ? 1 : cast ? PAIRS_CAST : PAIRS;
        for (int pair = 0; pair < n; pair++) {
            Case c = case_of(g, (kiln_dtype)dtype, pair);
            c.flags = pair == 1 ? FAST_TOO : 0;
            check(&c);
        }
        for (int k = 0; taken && k < 10; k++) {
            Case c = case_of(g, (kiln_dtype)dtype, 3);
            c.n_in = 1;
            c.arg[0] = 1 + k % 2;
            c.arg[1] = (k / 2 + dtype) % 5;
            c.choices[1] = 5;
            c.flags = MAY_BE_FREE; /* x * 1 and the like */
            check(&c);
        }
    }
}

static const Group groups[] = {
#define UNARY(name, op, prep)
#define BINARY(name, op, prep, a, b) {&(#name)[5], group, &(const BinaryRow){name, prep##_TAKES}}, /* without kiln_ */
#include "tests/support/elementwise.def"
};

int main(int argc, char **argv) { return run_groups("diff_binary", groups, sizeof groups / sizeof *groups, argc, argv); }
