/* Functions that only move elements, on every dtype: alone, and fused into a consumer and over a producer. */
#include "tests/differential/engine.h"

#include <stddef.h>

static const kiln_shape shapes[] = {{3, {7, 13, 5}},   {2, {257, 129}}, {1, {1000}}, {3, {4, 0, 2}}, {2, {1, 1}},
                                    {4, {2, 3, 4, 5}}, {0, {0}},        {1, {0}},    {3, {5, 1, 3}}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* The form of a view: records it on x with shape variant k of the function; NULL without an error kept: not applicable. */
typedef kiln_tensor *View(kiln_tensor *x, int k);
typedef struct ViewRow {
    View *view;
    int variants;
} ViewRow;

static int last_axis(kiln_tensor *x) { return kiln_rank(x) - 1; }

static kiln_tensor *view_reshape(kiln_tensor *x, int k)
{
    kiln_shape s = kiln_shape_of(x);
    switch (k) {
    case 0: return kiln_reshape(x, KILN_SHAPE(kiln_numel(x)));
    case 1: /* merge the last two axes */
        if (s.rank < 2)
            return NULL;
        s.dim[s.rank - 2] *= s.dim[s.rank - 1];
        s.rank--;
        return kiln_reshape(x, s);
    case 2: /* regroup: the other way round */
        for (int i = 0; i < s.rank; i++)
            s.dim[i] = kiln_dim(x, s.rank - 1 - i);
        return kiln_reshape(x, s);
    case 3: return kiln_numel(x) ? kiln_reshape(x, KILN_SHAPE(1, -1, 1)) : NULL;
    }
    return kiln_flatten(x);
}

static kiln_tensor *view_permute(kiln_tensor *x, int k)
{
    int rank = kiln_rank(x);
    kiln_axes order = {rank, {0}};
    for (int i = 0; i < rank; i++)
        order.axis[i] = (i + 1 + k) % rank;
    if (k == 3)
        return rank >= 2 ? kiln_transpose(x) : NULL;
    return k == 2 ? (rank >= 2 ? kiln_swap_axes(x, 0, -1) : NULL) : kiln_permute(x, order);
}

static kiln_tensor *view_expand(kiln_tensor *x, int k)
{
    kiln_shape s = kiln_shape_of(x);
    if (s.rank > 5)
        return NULL;
    if (k == 0) { /* a new leading axis */
        for (int i = s.rank; i > 0; i--)
            s.dim[i] = s.dim[i - 1];
        s.dim[0] = 3;
        s.rank++;
        return kiln_expand(x, s);
    }
    kiln_tensor *y = kiln_unsqueeze(x, k == 1 ? -1 : 0);
    s = kiln_shape_of(y);
    for (int i = 0; i < s.rank; i++)
        s.dim[i] = s.dim[i] == 1 ? 4 : -1;
    return kiln_expand(y, s);
}

static kiln_tensor *view_squeeze(kiln_tensor *x, int k)
{
    kiln_tensor *y = kiln_unsqueeze(kiln_unsqueeze(x, 0), -1);
    return k == 0 ? kiln_squeeze(y, KILN_ALL_AXES) : kiln_squeeze(y, KILN_AXES(-1));
}

static kiln_tensor *view_slice(kiln_tensor *x, int k)
{
    static const kiln_range ranges[][3] = {
        {{1, KILN_NONE, 2}, {KILN_NONE, -1, 1}, {0, 3, 1}},
        {{KILN_NONE, KILN_NONE, -1}, {KILN_NONE, KILN_NONE, -2}, KILN_ALL},
        {{-3, 100, 1}, {5, 2, 1}, KILN_ALL}, /* empty along axis 1 */
        {{2, 3, 1}, KILN_ALL, {KILN_NONE, KILN_NONE, 4}},
        {{100, KILN_NONE, -3}, {1, KILN_NONE, 1}, {-2, KILN_NONE, -1}},
    };
    int n = kiln_rank(x) < 3 ? kiln_rank(x) : 3;
    return kiln_slice(x, n, ranges[k]);
}

static kiln_tensor *view_select(kiln_tensor *x, int k)
{
    int axis = k % 2 ? last_axis(x) : 0;
    if (kiln_rank(x) == 0 || kiln_dim(x, axis) == 0)
        return NULL;
    return kiln_select(x, axis, k < 2 ? kiln_dim(x, axis) / 2 : -1);
}

static kiln_tensor *view_flip(kiln_tensor *x, int k)
{
    if (k && kiln_rank(x) == 0)
        return NULL;
    return kiln_flip(x, k == 0 ? KILN_ALL_AXES : KILN_AXES(k == 1 ? 0 : -1));
}

static kiln_tensor *view_roll(kiln_tensor *x, int k)
{
    static const int64_t shifts[] = {1, -3, 1000003, 0};
    return kiln_rank(x) ? kiln_roll(x, shifts[k], k % 2 ? 0 : -1) : NULL;
}

static kiln_tensor *view_pad(kiln_tensor *x, int k)
{
    static const kiln_padding paddings[][3] = {{{1, 2}, {0, 3}, {4, 0}}, {{0, 0}, {5, 5}, {0, 0}}, {{0, 1}, {0, 0}, {0, 1}}};
    int n = kiln_rank(x) < 3 ? kiln_rank(x) : 3;
    bool fraction = k == 1 && kiln_dtype_of(x) >= KILN_F16; /* of ints refused: api/test_promotion */
    return kiln_pad(x, n, paddings[k], fraction ? kiln_scalar(1.5) : kiln_int(k));
}

static kiln_tensor *view_pad_by(kiln_tensor *x, int k)
{
    static const kiln_padding paddings[2] = {{1, 2}, {2, 0}};
    int n = kiln_rank(x) < 2 ? kiln_rank(x) : 2;
    for (int d = 0; d < n; d++)
        if (kiln_dim(x, d) < 3)
            return NULL;
    return kiln_pad_by(x, n, paddings, (kiln_pad_mode)(KILN_PAD_EDGE + k));
}

/* Windows that touch, overlap and leave gaps, one long one, windows of windows. */
static kiln_tensor *view_unfold(kiln_tensor *x, int k)
{
    static const int64_t rows[][3] = {{2, 2, 1}, {3, 1, 1}, {2, 3, 2}, {1, 2, 1}};
    int axis = k % 2 ? last_axis(x) : 0;
    if (kiln_rank(x) == 0 || kiln_rank(x) > 6)
        return NULL;
    int64_t n = kiln_dim(x, axis), size = k < 4 ? rows[k][0] : 2;
    if (k == 4)
        return n < 2 ? NULL : kiln_unfold(x, axis, n - 1, 1, 1);
    if (n < (size - 1) * (k < 4 ? rows[k][2] : 2) + 1)
        return NULL;
    if (k < 4)
        return kiln_unfold(x, axis, size, rows[k][1], rows[k][2]);
    return kiln_unfold(kiln_unfold(x, axis, 2, 1, 1), axis, 2, 1, 1);
}

static kiln_tensor *view_concat(kiln_tensor *x, int k)
{
    if (kiln_rank(x) == 0 && k < 2)
        return NULL;
    kiln_tensor *parts[3] = {x, x, x};
    if (k < 2) {
        parts[1] = k == 1 ? kiln_flip(x, KILN_ALL_AXES) : kiln_slice_axis(x, 0, 0, 2, 1);
        return kiln_concat(parts, 3, k == 1 ? -1 : 0);
    }
    return kiln_stack(parts, 3, k == 2 ? 0 : -1);
}

static kiln_tensor *view_split(kiln_tensor *x, int k)
{
    int64_t n = kiln_rank(x) ? kiln_dim(x, 0) : 0;
    if (n < 2)
        return NULL;
    kiln_tensor *parts[2];
    if (kiln_split(x, 0, 2, (int64_t[]){1, n - 1}, parts) != KILN_OK)
        return NULL;
    return parts[k];
}

static kiln_tensor *view_tile(kiln_tensor *x, int k)
{
    return kiln_tile(x, k == 0 ? KILN_SHAPE(2) : k == 1 ? KILN_SHAPE(3, 1) : KILN_SHAPE(2, 1, 2));
}

static kiln_tensor *view_triangle(kiln_tensor *x, int k)
{
    if (kiln_rank(x) < 2)
        return NULL;
    return k < 3 ? kiln_triu(x, k - 1) : kiln_tril(x, k - 4);
}

/* Views of views: what fusion composes. */
static kiln_tensor *view_chain(kiln_tensor *x, int k)
{
    if (kiln_rank(x) < 2)
        return NULL;
    kiln_tensor *y = kiln_transpose(kiln_slice_axis(x, 0, KILN_NONE, KILN_NONE, -1));
    if (k == 0)
        return kiln_reshape(y, KILN_SHAPE(kiln_numel(y)));
    y = kiln_pad(y, 2, (kiln_padding[]){{1, 0}, {0, 2}}, kiln_int(1));
    if (k == 1)
        return kiln_flip(y, KILN_AXES(-1));
    kiln_tensor *parts[2] = {y, kiln_roll(y, 2, -1)};
    y = kiln_concat(parts, 2, 1);
    return k == 2 ? y : kiln_flatten(kiln_slice_axis(y, 1, 1, KILN_NONE, 3));
}

/* arg: form, what surrounds the view (0 nothing, 1 a producer and a consumer, 2 a reduction after it). */
static int build(const Case *c, kiln_tensor *const *in, kiln_tensor **out)
{
    const ViewRow *row = c->row;
    kiln_tensor *x = in[0];
    if (c->arg[1] == 1)
        x = kiln_mul(x, x);
    out[0] = row->view(x, (int)c->arg[0]);
    if (!out[0])
        return 0;
    if (c->arg[1] == 1)
        out[0] = kiln_add(out[0], kiln_int(1));
    if (c->arg[1] == 2)
        out[0] = kiln_sum_axes(out[0], kiln_rank(out[0]) ? KILN_AXES(-1) : KILN_AXES(), false);
    return 1;
}

/* Asks the view itself whether it applies to the shape. */
static bool applies(const ViewRow *row, kiln_shape shape, int k)
{
    kiln_scope *scope = kiln_scope_begin();
    set_option("mode", "jit");
    bool yes = row->view(kiln_zeros(KILN_F32, shape), k) || kiln_error_status() != KILN_OK;
    kiln_clear_error();
    kiln_scope_end(scope);
    return yes;
}

static void group(const Group *g)
{
    const ViewRow *row = g->row;
    for (int s = 0; s < SHAPES; s++)
        for (int k = 0; k < row->variants; k++) {
            if (!applies(row, shapes[s], k))
                continue;
            for (int dtype = 0; dtype < DTYPES; dtype++)
                for (int around = 0; around < 3; around++) {
                    Case c = {.op = g->name, .build = build, .row = row, .arg = {k, around}, .n_in = 1};
                    if (around == 1 && dtype == KILN_BOOL)
                        continue;
                    c.in[0] = (Spec){(kiln_dtype)dtype, shapes[s], around == 2 ? VALUES_PLAIN : VALUES_MIX, 0};
                    c.flags = around == 0 || shapes[s].rank == 0 ? MAY_BE_FREE : 0;
                    bool one = shape_elements(shapes[s]) <= 1 || row->view == view_select || (row->view == view_reshape && k == 3);
                    if (around == 2 && one) /* a sum of one element */
                        c.flags = MAY_BE_FREE;
                    check(&c);
                }
        }
}

#define ROW(name, variants)                                      \
    {                                                            \
#name, group, &(const ViewRow) { view_##name, variants } \
    }

static const Group groups[] = {
    ROW(reshape, 5), ROW(permute, 4), ROW(expand, 3), ROW(squeeze, 2), ROW(slice, 5),    ROW(select, 4), ROW(flip, 3),   ROW(roll, 4),
    ROW(pad, 3),     ROW(concat, 4),  ROW(split, 2),  ROW(tile, 3),    ROW(triangle, 6), ROW(chain, 4),  ROW(unfold, 6), ROW(pad_by, 4),
};

int main(int argc, char **argv) { return run_groups("diff_views", groups, sizeof groups / sizeof *groups, argc, argv); }
