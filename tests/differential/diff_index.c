/* Gathering, scattering, sorting, running sums: on every dtype, with indices of every int dtype, fused with a producer too. */
#include "tests/differential/engine.h"

#include <stddef.h>

static const kiln_shape shapes[] = {{3, {7, 13, 5}}, {1, {31}},     {2, {257, 129}}, {1, {1}}, {3, {4, 0, 2}},
                                    {2, {5, 1}},     {1, {100003}}, {2, {3, 2000}},  {1, {0}}};
enum { SHAPES = sizeof shapes / sizeof *shapes };
static const kiln_dtype index_dtypes[] = {KILN_I64, KILN_I8, KILN_I16, KILN_I32, KILN_U8, KILN_U16, KILN_U32, KILN_U64};

/* Indices into an axis of n that fit their dtype. */
static Spec index_spec(kiln_dtype dtype, kiln_shape shape, int64_t n)
{
    int64_t most = dtype == KILN_I8 ? 127 : dtype == KILN_U8 ? 255 : 32767;
    return (Spec){dtype, shape, VALUES_INDEX, n < most ? n : most};
}

static kiln_dtype some_index_dtype(int number) { return index_dtypes[number % 8]; }

/* With arg[5] the operand is computed rather than an input. */
static kiln_tensor *operand(const Case *c, kiln_tensor *x)
{
    return c->arg[5] ? kiln_where(kiln_ne(x, kiln_int(3)), x, kiln_flip(x, KILN_AXES(0))) : x;
}

/* --- take: arg[0] axis --- */

static int build_take(const Case *c, kiln_tensor *const *in, kiln_tensor **out)
{
    out[0] = kiln_take(operand(c, in[0]), in[1], (int)c->arg[0]);
    return 1;
}

static void group_take(const Group *g)
{
    static const kiln_shape indices[] = {{1, {9}}, {0, {0}}, {2, {2, 3}}, {1, {0}}, {3, {2, 1, 2}}};
    for (int dtype = 0, number = 0; dtype < DTYPES; dtype++)
        for (int s = 0; s < 8; s++)
            for (int axis = 0; axis < shapes[s].rank; axis++, number++) {
                kiln_shape index = indices[number % 5];
                if (shapes[s].dim[axis] == 0 && shape_elements(index))
                    continue;
                Case c = {.op = g->name, .build = build_take, .n_in = 2};
                c.arg[0] = number % 2 ? axis : axis - shapes[s].rank;
                c.arg[5] = number % 3 == 0;
                c.in[0] = (Spec){(kiln_dtype)dtype, shapes[s], VALUES_MIX, 0};
                c.in[1] = index_spec(some_index_dtype(number), index, shapes[s].dim[axis]);
                check(&c);
            }
}

/* --- take_along_axis: arg[0] axis --- */

static int build_take_along(const Case *c, kiln_tensor *const *in, kiln_tensor **out)
{
    out[0] = kiln_take_along_axis(operand(c, in[0]), in[1], (int)c->arg[0]);
    return 1;
}

static void group_take_along(const Group *g)
{
    for (int dtype = 0, number = 0; dtype < DTYPES; dtype++)
        for (int s = 0; s < 8; s++)
            for (int axis = 0; axis < shapes[s].rank; axis++, number++) {
                kiln_shape index = shapes[s];
                index.dim[axis] = 6;
                if (number % 3 == 1) /* broadcast in the others */
                    for (int i = 0; i < index.rank; i++)
                        index.dim[i] = i == axis ? 4 : index.dim[i] ? 1 : 0;
                if (shapes[s].dim[axis] == 0 && shape_elements(index))
                    continue;
                Case c = {.op = g->name, .build = build_take_along, .n_in = 2};
                c.arg[0] = axis;
                c.arg[5] = number % 2;
                c.in[0] = (Spec){(kiln_dtype)dtype, shapes[s], VALUES_MIX, 0};
                c.in[1] = index_spec(some_index_dtype(number), index, shapes[s].dim[axis]);
                check(&c);
            }
}

/* --- scatter: arg: axis, mode, along --- */

static int build_scatter(const Case *c, kiln_tensor *const *in, kiln_tensor **out)
{
    kiln_scatter_mode mode = (kiln_scatter_mode)c->arg[1];
    kiln_tensor *x = operand(c, in[0]);
    out[0] =
        c->arg[2] ? kiln_scatter_along_axis(x, in[1], in[2], (int)c->arg[0], mode) : kiln_scatter(x, in[1], in[2], (int)c->arg[0], mode);
    return 1;
}

static void group_scatter(const Group *g)
{
    for (int dtype = KILN_BOOL, number = 0; dtype < DTYPES; dtype++)
        for (int s = 0; s < 7; s++)
            for (int mode = 0; mode < 4; mode++, number++) {
                int axis = shapes[s].rank > 1 ? number % shapes[s].rank : 0;
                if (shapes[s].dim[axis] == 0 || (dtype == KILN_BOOL && mode))
                    continue;
                Case c = {.op = g->name, .build = build_scatter, .n_in = 3};
                c.arg[0] = axis;
                c.arg[1] = mode;
                c.arg[2] = number % 2;
                c.arg[5] = number % 5 == 0;
                kiln_shape source = shapes[s];
                source.dim[axis] = 17;
                for (int d = 0; d < source.rank && c.arg[2] && number % 3 == 0; d++) /* in a corner of x */
                    if (d != axis && d != number % 4)
                        source.dim[d] = (source.dim[d] + 1) / 2;
                c.in[0] = (Spec){(kiln_dtype)dtype, shapes[s], mode == 1 ? VALUES_WIDE : VALUES_MIX, 0};
                c.in[1] = index_spec(some_index_dtype(number), c.arg[2] ? source : (kiln_shape){1, {17}}, shapes[s].dim[axis]);
                c.in[2] = (Spec){(kiln_dtype)dtype, number % 4 == 3 ? (kiln_shape){0, {0}} : source, VALUES_MIX, 0};
                check(&c);
            }
}

/* --- sorting: arg: axis, descending, what (0 sort, 1 argsort, 2 topk) --- */

static int build_sort(const Case *c, kiln_tensor *const *in, kiln_tensor **out)
{
    kiln_tensor *x = operand(c, in[0]);
    int axis = (int)c->arg[0];
    if (c->arg[2] == 0)
        out[0] = kiln_sort(x, axis, c->arg[1] != 0);
    else if (c->arg[2] == 1)
        out[0] = kiln_argsort(x, axis, c->arg[1] != 0);
    else
        return kiln_topk(x, (kiln_dim(x, axis) + 1) / 2, axis, c->arg[1] != 0, &out[0], &out[1]) == KILN_OK ? 2 : 0;
    return 1;
}

static void group_sort(const Group *g)
{
    for (int dtype = 0, number = 0; dtype < DTYPES; dtype++)
        for (int s = 0; s < SHAPES; s++)
            for (int what = 0; what < 3; what++, number++) {
                Case c = {.op = g->name, .build = build_sort, .n_in = 1};
                c.arg[0] = number % shapes[s].rank;
                c.arg[1] = number / 3 % 2;
                c.arg[2] = what;
                c.arg[5] = number % 4 == 0 && dtype != KILN_BOOL;
                c.in[0] = (Spec){(kiln_dtype)dtype, shapes[s], number % 2 ? VALUES_TIES : VALUES_MIX, 0};
                c.flags = shape_elements(shapes[s]) <= 1 ? MAY_BE_FREE : 0;
                check(&c);
            }
}

/* --- cumsum: arg[0] axis --- */

static int build_cumsum(const Case *c, kiln_tensor *const *in, kiln_tensor **out)
{
    out[0] = kiln_cumsum(operand(c, in[0]), (int)c->arg[0]);
    return 1;
}

static void group_cumsum(const Group *g)
{
    static const Values kinds[] = {VALUES_PLAIN, VALUES_WIDE, VALUES_SPARSE};
    for (int dtype = 0, number = 0; dtype < DTYPES; dtype++)
        for (int s = 0; s < SHAPES; s++)
            for (int axis = 0; axis < shapes[s].rank; axis++, number++) {
                Case c = {.op = g->name, .build = build_cumsum, .n_in = 1, .arg = {axis}};
                c.arg[5] = number % 3 == 0 && shapes[s].dim[0];
                c.in[0] = (Spec){(kiln_dtype)dtype, shapes[s], kinds[number % 3], 0};
                check(&c);
            }
}

/* --- out of bounds: an error when computed, in every mode --- */

static void group_bounds(const Group *g)
{
    static const int64_t wrong[] = {5, -6, 1000, INT64_MIN, INT64_MAX};
    for (int k = 0; k < 5; k++)
        for (int what = 0; what < 3; what++)
            for (int mode = 0; mode < 3; mode++) {
                Case c = {.op = g->name, .arg = {wrong[k], what}};
                const char *modes[] = {"jit", "eager", "interp"};
                if (!case_due(NULL))
                    continue;
                set_option("mode", modes[mode]);
                kiln_scope *scope = kiln_scope_begin();
                kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(5), (float[]){1, 2, 3, 4, 5});
                kiln_tensor *i = kiln_from(KILN_I64, KILN_SHAPE(3), (int64_t[]){0, wrong[k], -5});
                kiln_tensor *y = what == 0   ? kiln_take(x, i, 0)
                                 : what == 1 ? kiln_take_along_axis(x, i, 0)
                                             : kiln_scatter(x, i, kiln_neg(i), 0, KILN_SCATTER_SET);
                kiln_status status = kiln_wait(kiln_add(y, kiln_int(1)));
                if (status != KILN_BAD_INDEX)
                    report(&c, modes[mode], "status %d (%s), expected %s", status, kiln_error_message(), kiln_status_name(KILN_BAD_INDEX));
                kiln_clear_error();
                double sum = 0;
                if (kiln_item(kiln_sum(x), &sum) != KILN_OK || sum != 15)
                    report(&c, modes[mode], "not usable after the error: %g %s", sum, kiln_error_message());
                kiln_clear_error();
                kiln_scope_end(scope);
            }
}

static const Group groups[] = {
    {"take", group_take, NULL},       {"take_along_axis", group_take_along, NULL},
    {"scatter", group_scatter, NULL}, {"sort", group_sort, NULL},
    {"cumsum", group_cumsum, NULL},   {"bounds", group_bounds, NULL},
};

int main(int argc, char **argv) { return run_groups("diff_index", groups, sizeof groups / sizeof *groups, argc, argv); }
