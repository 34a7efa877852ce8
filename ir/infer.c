/*
 * What an op makes of its inputs, in numbers: dtype, count of facts, shape, with messages for
 * people.
 *
 * Two functions say the same thing twice, on purpose: infer_shape (here) refuses what does not fit,
 * in numbers, while an op is recorded; infer_dims (ir/infer_dims.c) then knows that all is well and
 * only derives sizes, unifying what infer_shape required to be equal. The verifier compares them.
 *
 * Operands of an elementwise op, matmul's batch axes and so on have been broadcast by explicit
 * EXPANDs. Indices (GATHER, SCATTER) are i64; their values are checked where they are used, not
 * here.
 */
#include "ir/infer.h"

#include <string.h>

/* ---- dtypes ---- */

static bool alike(uint32_t n, const DType *in)
{
    for (uint32_t k = 1; k < n; k++)
        if (in[k] != in[0])
            return false;
    return n > 0;
}

/* Those rules that depend on the op itself. */
static DType infer_own(Op op, const DType *in, DType own)
{
    switch (op) {
    case OP_INPUT:
    case OP_SCALAR:
    case OP_RESULT: return own;
    case OP_IOTA: return DT_I64;
    case OP_GATHER: return in[1] == DT_I64 ? in[0] : DT_COUNT;
    case OP_SCATTER: return in[1] == DT_I64 && in[2] == in[0] ? in[0] : DT_COUNT;
    default: return DT_COUNT;
    }
}

DType infer_dtype(Op op, uint32_t n_in, const DType *in, DType own)
{
    const OpInfo *info = &op_info[op];
    if (info->arity == ARITY_ANY ? n_in == 0 : n_in != (uint32_t)info->arity)
        return DT_COUNT;
    for (uint32_t k = 0; k < n_in; k++)
        if ((unsigned)in[k] >= DT_COUNT)
            return DT_COUNT;
    bool same = alike(n_in, in);
    DKind kind = n_in ? dtype_kind(in[0]) : DK_BOOL;
    switch ((DRule)info->rule) {
    case RULE_SAME: return same ? in[0] : DT_COUNT;
    case RULE_NUM: return same && kind != DK_BOOL ? in[0] : DT_COUNT;
    case RULE_FLOAT: return same && kind == DK_FLOAT ? in[0] : DT_COUNT;
    case RULE_INTS: return same && dtype_is_int(in[0]) ? in[0] : DT_COUNT;
    case RULE_BITS: return same && kind != DK_FLOAT ? in[0] : DT_COUNT;
    case RULE_BOOL: return same && kind == DK_BOOL ? DT_BOOL : DT_COUNT;
    case RULE_CMP: return same ? DT_BOOL : DT_COUNT;
    case RULE_FCMP: return same && kind == DK_FLOAT ? DT_BOOL : DT_COUNT;
    case RULE_CAST: return own;
    case RULE_WHERE: return kind == DK_BOOL && in[1] == in[2] ? in[1] : DT_COUNT;
    case RULE_RANDOM: return same && in[0] == DT_U64 ? DT_U64 : DT_COUNT;
    case RULE_INDEX: return DT_I64;
    case RULE_OWN: return infer_own(op, in, own);
    }
    return DT_COUNT;
}

/* ---- facts ---- */

static uint32_t bits(uint8_t mask) { return (uint32_t)__builtin_popcount(mask); }

uint32_t infer_fact_count(Op op, const Attr *attr, int rank)
{
    uint32_t n = 0;
    switch (op) {
    case OP_INPUT: return (uint32_t)(attr->flag ? 2 * rank : rank);
    case OP_IOTA: return 1;
    case OP_RESHAPE:
        for (uint32_t k = 0; k < attr->n && k < 2 * MAX_RANK; k++)
            n += attr->group.out[k] > 1 ? attr->group.out[k] : 0;
        return n;
    case OP_EXPAND: return bits(attr->mask);
    case OP_SLICE: return 3 * bits(attr->mask);
    case OP_PAD: return 2 * bits(attr->mask);
    case OP_WINDOW: return 4;
    case OP_LOOP: return 1;
    case OP_CUSTOM:
        for (uint32_t k = 0; k < attr->n && k < MAX_CALL_RESULTS; k++)
            n += attr->custom.type[k] & 15u;
        return n;
    default: return 0;
    }
}

/* ---- shapes in numbers ---- */

typedef struct Args {
    Op op;
    const Attr *attr;
    uint32_t n_in;
    const Shape *in;
    const int64_t *facts;
    Shape *out;
} Args;

typedef Status ShapeRule(const Args *a);

static const char *operand_name(uint32_t k, char *buf)
{
    snprintf(buf, 16, k < 26 ? "%c" : "input %u", k < 26 ? 'a' + k : k);
    return buf;
}

static Status shapes_differ(const Args *a, uint32_t k)
{
    char left[SHAPE_TEXT], right[SHAPE_TEXT], name[16];
    return fail(ST_SHAPE, "shapes differ: a is %s, %s is %s", shape_text(&a->in[0], left), operand_name(k, name),
                shape_text(&a->in[k], right));
}

static Status axis_range(const Args *a)
{
    char text[SHAPE_TEXT];
    if (a->attr->axis >= a->in[0].rank)
        return fail(ST_INVALID, "axis %d does not exist: a is %s", a->attr->axis, shape_text(&a->in[0], text));
    return ST_OK;
}

static Status mask_range(const Args *a)
{
    char text[SHAPE_TEXT];
    if (a->attr->mask >> a->in[0].rank)
        return fail(ST_INVALID, "axis %d does not exist: a is %s", 31 - __builtin_clz(a->attr->mask), shape_text(&a->in[0], text));
    return ST_OK;
}

static Status shape_same(const Args *a)
{
    for (uint32_t k = 1; k < a->n_in; k++)
        if (a->in[k].rank != a->in[0].rank || memcmp(a->in[k].dim, a->in[0].dim, sizeof a->in[0].dim[0] * a->in[0].rank) != 0)
            return shapes_differ(a, k);
    a->out->rank = a->in[0].rank;
    memcpy(a->out->dim, a->in[0].dim, sizeof a->in[0].dim);
    return ST_OK;
}

static Status shape_scalar(const Args *a)
{
    a->out->rank = 0;
    return ST_OK;
}

static Status shape_iota(const Args *a)
{
    a->out->rank = 1;
    a->out->dim[0] = a->facts[0];
    if (a->facts[0] < 0)
        return fail(ST_SHAPE, "length is %" PRId64, a->facts[0]);
    return ST_OK;
}

static Status shape_reshape(const Args *a)
{
    const Attr *t = a->attr;
    const Shape *x = &a->in[0];
    int i = 0, j = 0;
    const int64_t *fact = a->facts;
    if (t->n > 2 * MAX_RANK)
        return fail(ST_INVALID, "%u groups of axes", t->n);
    for (uint32_t k = 0; k < t->n; k++) {
        int in = t->group.in[k], out = t->group.out[k];
        if (i + in > x->rank || j + out > MAX_RANK || in + out == 0)
            return fail(ST_INVALID, "groups of axes do not fit");
        int64_t before, after;
        bool fits = shape_numel(in, x->dim + i, &before);
        if (out == 1)
            a->out->dim[j] = in ? before : 1;
        for (int d = 0; out > 1 && d < out; d++)
            a->out->dim[j + d] = *fact++;
        fits &= shape_numel(out, a->out->dim + j, &after);
        if (!fits || before != after) {
            char text[SHAPE_TEXT];
            return fail(ST_SHAPE, "sizes do not multiply to the same number at axis %d: a is %s", i, shape_text(x, text));
        }
        i += in;
        j += out;
    }
    if (i != x->rank)
        return fail(ST_INVALID, "groups cover %d of %d axes", i, x->rank);
    a->out->rank = (uint8_t)j;
    return ST_OK;
}

static Status shape_permute(const Args *a)
{
    unsigned seen = 0;
    int rank = a->in[0].rank;
    for (int d = 0; d < rank; d++) {
        uint8_t from = a->attr->perm[d];
        if (from >= rank || seen >> from & 1)
            return fail(ST_INVALID, "the axes are no permutation of %d axes", rank);
        seen |= 1u << from;
        a->out->dim[d] = a->in[0].dim[from];
    }
    a->out->rank = (uint8_t)rank;
    return ST_OK;
}

/* The shape of the first operand, of which `change` makes what each axis of the mask becomes, by its next facts. */
static Status shape_by_axes(const Args *a, Status (*change)(const Args *a, int d, const int64_t **fact))
{
    Args x = *a;
    x.n_in = 1;
    TRY(mask_range(a));
    TRY(shape_same(&x));
    const int64_t *fact = a->facts;
    for (int d = 0; d < a->out->rank; d++)
        if (a->attr->mask >> d & 1)
            TRY(change(a, d, &fact));
    return ST_OK;
}

static Status expand_axis(const Args *a, int d, const int64_t **fact)
{
    char text[SHAPE_TEXT];
    if (a->in[0].dim[d] != 1)
        return fail(ST_SHAPE, "axis %d is not of size 1: a is %s", d, shape_text(&a->in[0], text));
    a->out->dim[d] = *(*fact)++;
    return a->out->dim[d] < 0 ? fail(ST_SHAPE, "size of axis %d is %" PRId64, d, a->out->dim[d]) : ST_OK;
}

static Status slice_axis(const Args *a, int d, const int64_t **fact)
{
    int64_t start = (*fact)[0], step = (*fact)[1], length = (*fact)[2], dim = a->in[0].dim[d], last;
    *fact += 3;
    if (length < 0)
        return fail(ST_SHAPE, "length along axis %d is %" PRId64, d, length);
    bool over = length > 0 && (__builtin_mul_overflow(length - 1, step, &last) || __builtin_add_overflow(last, start, &last));
    if (length > 0 && (over || start < 0 || start >= dim || last < 0 || last >= dim)) {
        char text[SHAPE_TEXT];
        return fail(ST_INDEX, "start %" PRId64 ", step %" PRId64 ", length %" PRId64 " leave axis %d: a is %s", start, step, length, d,
                    shape_text(&a->in[0], text));
    }
    a->out->dim[d] = length;
    return ST_OK;
}

static Status pad_axis(const Args *a, int d, const int64_t **fact)
{
    int64_t low = *(*fact)++, high = *(*fact)++;
    if (low < 0 || high < 0)
        return fail(ST_SHAPE, "padding of axis %d is %" PRId64 ", %" PRId64, d, low, high);
    if (__builtin_add_overflow(a->out->dim[d], low, &a->out->dim[d]) || __builtin_add_overflow(a->out->dim[d], high, &a->out->dim[d]))
        return fail(ST_OVERFLOW, "padding of axis %d overflows", d);
    return ST_OK;
}

static Status shape_expand(const Args *a) { return shape_by_axes(a, expand_axis); }
static Status shape_slice(const Args *a) { return shape_by_axes(a, slice_axis); }

static Status shape_pad(const Args *a)
{
    char text[SHAPE_TEXT];
    if (a->in[1].rank != 0)
        return fail(ST_SHAPE, "the value is not of rank 0: b is %s", shape_text(&a->in[1], text));
    return shape_by_axes(a, pad_axis);
}

static Status shape_window(const Args *a)
{
    char text[SHAPE_TEXT];
    TRY(axis_range(a));
    const Shape *x = &a->in[0];
    const int64_t stride = a->facts[0], dilation = a->facts[1], count = a->facts[2], size = a->facts[3];
    int axis = a->attr->axis;
    if (x->rank == MAX_RANK)
        return fail(ST_SHAPE, "windows add an axis, and %d are the most: a is %s", MAX_RANK, shape_text(x, text));
    if (stride < 1 || dilation < 1 || size < 1 || count < 0)
        return fail(ST_INVALID, "%" PRId64 " windows of %" PRId64 ", stride %" PRId64 ", dilation %" PRId64, count, size, stride, dilation);
    int64_t last, inside, first = count ? count - 1 : 0;
    bool over = __builtin_mul_overflow(first, stride, &last) || __builtin_mul_overflow(size - 1, dilation, &inside) ||
                __builtin_add_overflow(last, inside, &last);
    if (count && (over || last >= x->dim[axis]))
        return fail(ST_INDEX, "%" PRId64 " windows of %" PRId64 ", stride %" PRId64 ", dilation %" PRId64 " leave axis %d: a is %s", count,
                    size, stride, dilation, axis, shape_text(x, text));
    for (int d = 0; d < x->rank; d++)
        a->out->dim[d + (d > axis)] = x->dim[d];
    a->out->dim[axis] = count;
    a->out->dim[axis + 1] = size;
    a->out->rank = (uint8_t)(x->rank + 1);
    return ST_OK;
}

static Status shape_concat(const Args *a)
{
    TRY(axis_range(a));
    Args x = *a;
    x.n_in = 1;
    TRY(shape_same(&x));
    int axis = a->attr->axis;
    for (uint32_t k = 1; k < a->n_in; k++) {
        Shape aligned = a->in[k];
        if (aligned.rank == a->in[0].rank)
            aligned.dim[axis] = a->in[0].dim[axis];
        if (aligned.rank != a->in[0].rank || memcmp(aligned.dim, a->in[0].dim, sizeof aligned.dim[0] * aligned.rank) != 0)
            return shapes_differ(a, k);
        if (__builtin_add_overflow(a->out->dim[axis], a->in[k].dim[axis], &a->out->dim[axis]))
            return fail(ST_OVERFLOW, "size of axis %d overflows", axis);
    }
    return ST_OK;
}

/* Has a reduction without a neutral element something to reduce for each output element? */
static Status reduces_something(const Args *a)
{
    int64_t numel = 0, reduced = 1;
    char text[SHAPE_TEXT];
    shape_numel(a->out->rank, a->out->dim, &numel);
    for (int d = 0; d < a->in[0].rank; d++)
        if (a->attr->mask >> d & 1 && a->in[0].dim[d] == 0)
            reduced = 0;
    if (numel && !reduced)
        return fail(ST_SHAPE, "of zero elements has no value: a is %s", shape_text(&a->in[0], text));
    return ST_OK;
}

static Status shape_reduce(const Args *a)
{
    TRY(mask_range(a));
    int rank = 0;
    for (int d = 0; d < a->in[0].rank; d++)
        if (!(a->attr->mask >> d & 1))
            a->out->dim[rank++] = a->in[0].dim[d];
    a->out->rank = (uint8_t)rank;
    if (a->op == OP_ARGMAX || a->op == OP_ARGMIN)
        return reduces_something(a);
    return ST_OK;
}

static Status shape_along(const Args *a)
{
    TRY(axis_range(a));
    return shape_same(a);
}

/* Do x and the index agree but along the axis, and is there something to take? `k`: whose shape is
 * compared with x. */
static Status check_index(const Args *a, uint32_t k)
{
    TRY(axis_range(a));
    const Shape *x = &a->in[0], *index = &a->in[k];
    bool same = x->rank == index->rank;
    for (int d = 0; same && d < x->rank; d++)
        same = d == a->attr->axis || x->dim[d] == index->dim[d];
    if (!same) {
        char left[SHAPE_TEXT], right[SHAPE_TEXT];
        return fail(ST_SHAPE, "shapes differ outside axis %d: a is %s, the index is %s", a->attr->axis, shape_text(x, left),
                    shape_text(index, right));
    }
    int64_t numel;
    if (shape_numel(index->rank, index->dim, &numel) && numel > 0 && x->dim[a->attr->axis] == 0)
        return fail(ST_INDEX, "axis %d has no elements to index", a->attr->axis);
    return ST_OK;
}

static Status shape_gather(const Args *a)
{
    TRY(check_index(a, 1));
    a->out->rank = a->in[1].rank;
    memcpy(a->out->dim, a->in[1].dim, sizeof a->in[1].dim);
    return ST_OK;
}

static Status shape_scatter(const Args *a)
{
    TRY(check_index(a, 1));
    if (a->attr->mode > SCATTER_MIN)
        return fail(ST_INVALID, "scatter mode %d", a->attr->mode);
    if (a->attr->mode != SCATTER_SET && a->in[0].dtype == DT_BOOL)
        return fail(ST_DTYPE, "only `set` scatters bools");
    if (a->in[1].rank != a->in[2].rank || memcmp(a->in[1].dim, a->in[2].dim, sizeof a->in[1].dim[0] * a->in[1].rank) != 0) {
        char left[SHAPE_TEXT], right[SHAPE_TEXT];
        return fail(ST_SHAPE, "index and source differ: the index is %s, the source is %s", shape_text(&a->in[1], left),
                    shape_text(&a->in[2], right));
    }
    Args x = *a;
    x.n_in = 1;
    return shape_same(&x);
}

static Status shape_matmul(const Args *a)
{
    const Shape *x = &a->in[0], *y = &a->in[1];
    char left[SHAPE_TEXT], right[SHAPE_TEXT];
    int rank = x->rank;
    if (rank < 2 || y->rank != rank)
        return fail(ST_SHAPE, "ranks do not fit: a is %s, b is %s", shape_text(x, left), shape_text(y, right));
    if (x->dim[rank - 1] != y->dim[rank - 2])
        return fail(ST_SHAPE, "inner dims differ: a is %s, b is %s", shape_text(x, left), shape_text(y, right));
    for (int d = 0; d < rank - 2; d++)
        if (x->dim[d] != y->dim[d])
            return fail(ST_SHAPE, "batch dims differ at axis %d: a is %s, b is %s", d, shape_text(x, left), shape_text(y, right));
    memcpy(a->out->dim, x->dim, sizeof x->dim);
    a->out->dim[rank - 1] = y->dim[rank - 1];
    a->out->rank = (uint8_t)rank;
    return ST_OK;
}

/* The rule of each op that is not simply elementwise. */
static ShapeRule *shape_rule(Op op)
{
    switch (op_class(op)) {
    case CLS_EW: return shape_same;
    case CLS_REDUCE: return shape_reduce;
    case CLS_SCAN:
    case CLS_SORT: return shape_along;
    case CLS_GATHER: return shape_gather;
    case CLS_SCATTER: return shape_scatter;
    case CLS_CONTRACT: return shape_matmul;
    case CLS_BODY:
    case CLS_RESULT: return NULL; /* ir/body.c */
    case CLS_LEAF: return op == OP_IOTA ? shape_iota : op == OP_SCALAR ? shape_scalar : NULL;
    case CLS_VIEW:
        return op == OP_RESHAPE   ? shape_reshape
               : op == OP_PERMUTE ? shape_permute
               : op == OP_EXPAND  ? shape_expand
               : op == OP_SLICE   ? shape_slice
               : op == OP_PAD     ? shape_pad
               : op == OP_WINDOW  ? shape_window
               : op == OP_CONCAT  ? shape_concat
                                  : NULL;
    }
    return NULL;
}

static Status refuse_dtype(Op op, uint32_t n_in, const Shape *in)
{
    char types[128] = "";
    size_t at = 0;
    for (uint32_t k = 0; k < n_in && at + 8 < sizeof types; k++)
        at += (size_t)snprintf(types + at, sizeof types - at, "%s%s", k ? ", " : "", dtype_name((DType)in[k].dtype));
    return fail(ST_DTYPE, "%s does not take %s", op_name(op), n_in ? types : "no inputs");
}

Status infer_shape(Op op, const Attr *attr, uint32_t n_in, const Shape *in, const int64_t *facts, uint32_t n_facts, DType own, Shape *out)
{
    static const Attr none;
    DType small[4] = {DT_BOOL}, type = DT_COUNT;
    attr = attr ? attr : &none;
    if (n_in <= 4) {
        for (uint32_t k = 0; k < n_in; k++)
            small[k] = (DType)in[k].dtype;
        type = infer_dtype(op, n_in, small, own);
    } else if (op_info[op].arity == ARITY_ANY) { /* concat: all alike */
        type = (DType)in[0].dtype;
        for (uint32_t k = 1; k < n_in; k++)
            if (in[k].dtype != in[0].dtype)
                return fail(ST_DTYPE, "dtypes differ: a is %s, input %u is %s", dtype_name(type), k, dtype_name((DType)in[k].dtype));
    }
    if ((unsigned)type >= DT_COUNT)
        return refuse_dtype(op, n_in, in);
    ShapeRule *rule = shape_rule(op);
    if (!rule)
        return fail(ST_INTERNAL, "%s has no shape rule", op_name(op));
    if (n_facts != infer_fact_count(op, attr, 0))
        return fail(ST_INTERNAL, "%s has %u facts", op_name(op), n_facts);
    Shape made = {.dtype = (uint8_t)type};
    TRY(rule(&(Args){op, attr, n_in, in, facts, &made}));
    int64_t numel;
    if (!shape_numel(made.rank, made.dim, &numel)) {
        char text[SHAPE_TEXT];
        return fail(ST_OVERFLOW, "too many elements: %s", shape_text(&made, text));
    }
    *out = made;
    return ST_OK;
}
