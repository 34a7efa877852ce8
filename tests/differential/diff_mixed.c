/* Casts between all pairs of dtypes, where and clamp, and promotion of operands of two dtypes. */
#include "tests/differential/engine.h"

#include <stddef.h>

static const kiln_shape shapes[] = {{3, {7, 13, 5}}, {0, {0}}, {1, {1000}}, {2, {0, 3}}, {2, {257, 129}}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static Spec spec(kiln_dtype dtype, kiln_shape shape) { return (Spec){dtype, shape, VALUES_MIX, 0}; }

/* --- cast: arg[0] is the target --- */

static int build_cast(const Case *c, kiln_tensor *const *in, kiln_tensor **out)
{
    out[0] = kiln_cast(in[0], (kiln_dtype)c->arg[0]);
    return 1;
}

static void group_cast(const Group *g)
{
    for (int from = 0; from < DTYPES; from++)
        for (int to = 0; to < DTYPES; to++)
            for (int s = 0; s < SHAPES; s++) {
                Case c = {.op = g->name, .build = build_cast, .n_in = 1, .arg = {to}};
                c.in[0] = spec((kiln_dtype)from, shapes[s]);
                c.flags = from == to ? MAY_BE_FREE : 0;
                c.out = (kiln_dtype)to;
                c.out_known = true;
                check(&c);
            }
}

/* --- where: any condition; a and b alike or promoted --- */

static int build_where(const Case *c, kiln_tensor *const *in, kiln_tensor **out)
{
    (void)c;
    out[0] = kiln_where(in[0], in[1], in[2]);
    return 1;
}

static void group_where(const Group *g)
{
    for (int dtype = 0; dtype < DTYPES; dtype++)
        for (int k = 0; k < 4; k++) {
            Case c = {.op = g->name, .build = build_where, .n_in = 3};
            bool broadcast = k == 1;
            c.in[0] = spec(k == 2 ? (kiln_dtype)((dtype + 5) % DTYPES) : KILN_BOOL, shapes[k == 3 ? 1 : 0]);
            c.in[1] = spec((kiln_dtype)dtype, broadcast ? (kiln_shape){2, {13, 1}} : shapes[0]);
            c.in[2] = spec(k == 3 ? (kiln_dtype)((dtype + 3) % DTYPES) : (kiln_dtype)dtype, broadcast ? (kiln_shape){0, {0}} : shapes[0]);
            check(&c);
        }
}

/* --- clamp: arg[0] says what the bounds are: 0 tensors, 1 rank 0, 2 weak scalars --- */

static int build_clamp(const Case *c, kiln_tensor *const *in, kiln_tensor **out)
{
    bool weak = c->n_in == 1;
    bool floats = dtype_is_float(c->in[0].dtype);
    kiln_tensor *low = !weak ? in[1] : floats ? kiln_scalar(-0.5) : kiln_int(2);
    kiln_tensor *high = !weak ? in[2] : floats ? kiln_scalar(1.25) : kiln_int(5);
    out[0] = kiln_clamp(in[0], low, high);
    return 1;
}

static void group_clamp(const Group *g)
{
    for (int dtype = KILN_BOOL + 1; dtype < DTYPES; dtype++)
        for (int k = 0; k < 4; k++) {
            Case c = {.op = g->name, .build = build_clamp, .n_in = k == 2 ? 1 : 3, .arg = {k}};
            c.in[0] = spec((kiln_dtype)dtype, shapes[k == 3 ? 4 : 0]);
            for (int i = 1; i < 3; i++)
                c.in[i] = spec((kiln_dtype)dtype, k == 1 ? shapes[1] : k == 3 ? (kiln_shape){1, {129}} : shapes[0]);
            c.out = (kiln_dtype)dtype;
            c.out_known = true;
            check(&c);
        }
}

/* --- promotion: all pairs of dtypes --- */

typedef kiln_tensor *Binary(kiln_tensor *, kiln_tensor *);
typedef struct PromoteRow {
    Binary *f;
} PromoteRow;

static int build_promote(const Case *c, kiln_tensor *const *in, kiln_tensor **out)
{
    const PromoteRow *row = c->row;
    out[0] = row->f(in[0], in[1]);
    return 1;
}

static void group_promote(const Group *g)
{
    for (int a = 0; a < DTYPES; a++)
        for (int b = 0; b < DTYPES; b++) {
            if (a == b)
                continue;
            Case c = {.op = g->name, .build = build_promote, .row = g->row, .n_in = 2};
            c.in[0] = spec((kiln_dtype)a, (kiln_shape){2, {6, 21}});
            c.in[1] = spec((kiln_dtype)b, (kiln_shape){2, {6, b % 2 ? 21 : 1}});
            check(&c);
        }
}

/* --- a weak scalar of another kind than the tensor: arg[0] 0 float, 1 int, 2 bool --- */

static int build_weak(const Case *c, kiln_tensor *const *in, kiln_tensor **out)
{
    kiln_tensor *s = c->arg[0] == 0   ? kiln_scalar(2.5)
                     : c->arg[0] == 1 ? kiln_int(dtype_is_signed(c->in[0].dtype) ? -3 : 3)
                                      : kiln_bool(true);
    kiln_tensor *half = kiln_div(kiln_int(1), kiln_sqrt(kiln_scalar(7))); /* scalars among themselves */
    kiln_tensor *x = c->in[0].dtype == KILN_BOOL && c->arg[0] == 2 ? kiln_cast(in[0], KILN_I8) : in[0];
    out[0] = kiln_mul(x, s);
    out[1] = kiln_add(half, x);
    out[2] = kiln_where(kiln_lt(x, kiln_int(1)), s, x);
    out[3] = kiln_expand(kiln_mul(half, s), KILN_SHAPE(3, 2));
    return 4;
}

static void group_weak(const Group *g)
{
    for (int dtype = 0; dtype < DTYPES; dtype++)
        for (int k = 0; k < 3; k++) {
            Case c = {.op = g->name, .build = build_weak, .n_in = 1, .arg = {k}};
            c.in[0] = spec((kiln_dtype)dtype, shapes[0]);
            check(&c);
        }
}

static const Group groups[] = {
    {"cast", group_cast, NULL},
    {"where", group_where, NULL},
    {"clamp", group_clamp, NULL},
    {"promote_add", group_promote, &(const PromoteRow){kiln_add}},
    {"promote_div", group_promote, &(const PromoteRow){kiln_div}},
    {"promote_lt", group_promote, &(const PromoteRow){kiln_lt}},
    {"promote_maximum", group_promote, &(const PromoteRow){kiln_maximum}},
    {"weak", group_weak, NULL},
};

int main(int argc, char **argv) { return run_groups("diff_mixed", groups, sizeof groups / sizeof *groups, argc, argv); }
