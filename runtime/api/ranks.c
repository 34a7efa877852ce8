/*
 * Collectives as users call them: dtypes and axes, which are views around what a backend carries; and their gradients (runtime/comm/comm.h
 * has the rest).
 *
 * What a backend carries for each rank has an axis in front: an axis that is cut, or that parts come to, is split or merged here.
 * Derivatives are those of the sum of what all ranks make of their results:
 *
 *     all_reduce sum     all_reduce sum            broadcast     sum to the root, zeros elsewhere
 *     all_gather         reduce_scatter sum        all_to_all    all_to_all, back
 *     reduce_scatter     all_gather                send_recv     send_recv, the other way
 *     all_reduce max     to those that have it, in equal shares
 *     send               recv, of what flows to what was received
 *     recv               send; nothing flows on here, but for a parameter that nobody asks for (chain_elsewhere)
 *
 * A shard's alone is that of the mean, as kiln_parallel_gradients makes it: all_gather's `how` says so.
 * The others are made of these: a mean is a sum; products, and maxima that are scattered, are combined here of what all ranks sent.
 */
#define KILN_NO_LOCATIONS
#include "ir/base/os.h"
#include "runtime/comm/chain.h"
#include "runtime/comm/comm.h"
#include "runtime/device/device.h"
#include "runtime/eval.h"
#include "runtime/gradient/body.h"
#include "runtime/gradient/custom.h"

#include <math.h>
#include <string.h>

/* A public function at work. */
typedef struct Work {
    const char *api;
    Loc loc;
    Collective c;
} Work;

static Rec begin(const Work *w) { return rec_begin(w->api, w->loc.file, w->loc.line); }

/* ---- one collective, and its derivative ---- */

static kiln_tensor *as_it_is(const Work *w, kiln_tensor *x)
{
    Rec r = begin(w);
    RtNode *in = rec_in(&r, x, "x");
    return rec_end(&r, in ? collective_record(&r, &w->c, rec_strong(&r, in)) : NULL);
}

/* A maximum or minimum by a backend that forgets NaN: where one is travels beside it. */
static kiln_tensor *extreme_with_nan(const Work *w, kiln_tensor *x)
{
    const char *file = w->loc.file;
    int line = w->loc.line;
    Work any = *w;
    any.c.how = KILN_REDUCE_MAX;
    kiln_tensor *is_nan = kiln_isnan_at(x, file, line);
    kiln_tensor *least = kiln_scalar_at(w->c.how == KILN_REDUCE_MAX ? -INFINITY : INFINITY, file, line);
    kiln_tensor *y = as_it_is(w, kiln_where_at(is_nan, least, x, file, line)), *has_nan = as_it_is(&any, is_nan);
    return kiln_where_at(has_nan, kiln_scalar_at(NAN, file, line), y, file, line);
}

static kiln_tensor *plain(const Work *w, kiln_tensor *x)
{
    const bool extreme = w->c.op == KILN_COMM_ALL_REDUCE && w->c.how != KILN_REDUCE_SUM;
    return extreme && x && dtype_is_float((DType)x->node->dtype) && w->c.group->world->few_types ? extreme_with_nan(w, x) : as_it_is(w, x);
}

static bool is_half(const kiln_tensor *x) { return x && dtype_is_half((DType)x->node->dtype); }

static kiln_tensor *cast(const Work *w, kiln_tensor *x, kiln_dtype dtype) { return kiln_cast_at(x, dtype, w->loc.file, w->loc.line); }

static kiln_tensor *mean_of(const Work *w, kiln_tensor *sum)
{
    return kiln_div_at(sum, kiln_scalar_at(w->c.group->size, w->loc.file, w->loc.line), w->loc.file, w->loc.line);
}

/* Another one, on a cotangent; what is combined is so in f32 at least. Of a shard it is the mean (kiln_unshard). */
static kiln_tensor *other(const Work *w, kiln_comm_op op, kiln_tensor *x)
{
    Work now = *w;
    now.c.op = (int)op;
    now.c.how = KILN_REDUCE_SUM;
    bool narrow = is_half(x) && op != KILN_COMM_ALL_GATHER && op != KILN_COMM_ALL_TO_ALL && op != KILN_COMM_SEND_RECV;
    kiln_tensor *y = plain(&now, narrow ? cast(w, x, KILN_F32) : x);
    if (y && w->c.op == KILN_COMM_ALL_GATHER && w->c.how == KILN_REDUCE_MEAN)
        y = mean_of(w, y);
    return narrow ? cast(w, y, (kiln_dtype)x->node->dtype) : y;
}

/* What flows to `like`, which was sent. It comes when the cotangent of the send is there: what that is does not count. */
static kiln_tensor *back_from_there(const Work *w, const kiln_tensor *like, kiln_tensor *cotangent)
{
    Work now = *w;
    now.c.op = COMM_RECV;
    now.c.type = (Shape){.dtype = like->node->dtype, .rank = like->node->rank};
    memcpy(now.c.type.dim, like->node->dim, sizeof *like->node->dim * like->node->rank);
    return as_it_is(&now, cotangent);
}

static kiln_tensor *back_to_there(const Work *w, kiln_tensor *cotangent)
{
    Work now = *w;
    now.c.op = COMM_SEND;
    return cast(w, as_it_is(&now, cotangent), KILN_F32);
}

/* Of MAX and MIN: those that have the result share what flows to it. */
static kiln_tensor *to_the_extreme(const Work *w, kiln_tensor *x, kiln_tensor *y, kiln_tensor *cotangent)
{
    const char *file = w->loc.file;
    int line = w->loc.line;
    kiln_tensor *loses = w->c.how == KILN_REDUCE_MAX ? kiln_lt_at(x, y, file, line) : kiln_gt_at(x, y, file, line);
    kiln_tensor *has = cast(w, kiln_logical_not_at(loses, file, line), kiln_dtype_of(x));
    kiln_tensor *share = kiln_div_at(other(w, KILN_COMM_ALL_REDUCE, cotangent), other(w, KILN_COMM_ALL_REDUCE, has), file, line);
    return kiln_where_at(loses, kiln_zeros_like_at(x, file, line), share, file, line);
}

static kiln_tensor *back_the_other_way(const Work *w, kiln_tensor *cotangent)
{
    Work now = *w;
    const int n = w->c.group->size;
    int *to = os_alloc(sizeof *to * (size_t)n);
    for (int k = 0; k < n && to; k++)
        to[k] = -1;
    for (int k = 0; k < n && to; k++)
        if (w->c.from[k] >= 0)
            to[w->c.from[k]] = k;
    now.c.from = to;
    kiln_tensor *y = to ? plain(&now, cotangent) : NULL;
    if (!to)
        (void)error_keep(fail(ST_OUT_OF_MEMORY, "out of memory"), w->api, w->loc);
    os_free(to);
    return y;
}

/* Nothing comes before it but what is in the chain. */
static kiln_tensor *received(const Work *w)
{
    Rec r = begin(w);
    return rec_end(&r, collective_record(&r, &w->c, rec_bits(&r, DT_F32, 0)));
}

static void call_plain(kiln_tensor **in, kiln_tensor **out, void *with)
{
    const Work *w = with;
    out[0] = w->c.op == COMM_RECV ? received(w) : plain(w, in[0]);
}

static void call_jvp(kiln_tensor **in, kiln_tensor **out, kiln_tensor **tangents, kiln_tensor **along, void *with)
{
    (void)in, (void)out;
    along[0] = plain(with, tangents[0]);
}

static void call_vjp(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *with)
{
    const Work *w = with;
    switch (w->c.op) {
    case KILN_COMM_ALL_REDUCE:
        grads[0] =
            w->c.how == KILN_REDUCE_SUM ? other(w, KILN_COMM_ALL_REDUCE, cotangents[0]) : to_the_extreme(w, in[0], out[0], cotangents[0]);
        break;
    case KILN_COMM_ALL_GATHER: grads[0] = other(w, KILN_COMM_REDUCE_SCATTER, cotangents[0]); break;
    case KILN_COMM_REDUCE_SCATTER: grads[0] = other(w, KILN_COMM_ALL_GATHER, cotangents[0]); break;
    case KILN_COMM_BROADCAST: grads[0] = other(w, KILN_COMM_REDUCE, cotangents[0]); break;
    case KILN_COMM_ALL_TO_ALL: grads[0] = other(w, KILN_COMM_ALL_TO_ALL, cotangents[0]); break;
    case KILN_COMM_SEND_RECV: grads[0] = back_the_other_way(w, cotangents[0]); break;
    case COMM_SEND: grads[0] = back_from_there(w, in[0], cotangents[0]); break;
    case COMM_RECV: grads[0] = back_to_there(w, cotangents[0]); break;
    default: break; /* nobody records them with a gradient */
    }
}

/* With its derivative; in a rule, which is one, as it is. */
static kiln_tensor *with_gradient(const Work *w, kiln_tensor *x)
{
    kiln_tensor *y = NULL;
    const bool linear = (w->c.op != KILN_COMM_ALL_REDUCE || w->c.how == KILN_REDUCE_SUM) && !comm_is_pair((unsigned)w->c.op);
    if (rt_thread()->custom == INSIDE_RULE)
        return plain(w, x);
    (void)custom_gradient(w->api, w->loc, call_plain, call_vjp, linear ? call_jvp : NULL, 1, &x, 1, &y, (void *)(uintptr_t)w);
    if (y && y->node->held)
        ((Custom *)y->node->held)->order = chain_next();
    return y;
}

/* ---- views around it ---- */

/* axis becomes n parts, by rank, along an axis in front. */
static kiln_tensor *parts_to_front(const Work *w, kiln_tensor *x, int axis)
{
    Rec r = begin(w);
    RtNode *in = rec_in(&r, x, "x");
    const int n = w->c.group->size;
    uint8_t order[MAX_RANK] = {0};
    if (in) {
        const int64_t dims[2] = {n, in->dim[axis] / n};
        in = rec_split(&r, rec_strong(&r, in), axis, 2, dims);
    }
    for (int d = 0; in && d < in->rank; d++)
        order[d] = (uint8_t)(d == 0 ? axis : d <= axis ? d - 1 : d);
    return rec_end(&r, rec_permute(&r, in, order));
}

/* The axis in front becomes the outer part of `axis`. */
static kiln_tensor *parts_from_front(const Work *w, kiln_tensor *y, int axis)
{
    Rec r = begin(w);
    RtNode *in = y ? rec_in(&r, y, "x") : NULL;
    uint8_t order[MAX_RANK] = {0};
    for (int d = 0; in && d < in->rank; d++)
        order[d] = (uint8_t)(d < axis ? d + 1 : d == axis ? 0 : d);
    in = rec_permute(&r, in, order);
    return rec_end(&r, in ? rec_merge(&r, in, axis, 2) : NULL);
}

/* ---- arguments ---- */

/* Checks of all of them; NULL: an error is kept. */
static RtNode *check_named(Rec *r, const kiln_group *g, kiln_tensor *x, const char *what, bool parts)
{
    char text[SHAPE_TEXT];
    Status status = comm_may_record(r->thread, g);
    if (status != ST_OK)
        return rec_failed(r, status);
    RtNode *in = rec_in(r, x, what);
    if (in && (status = chain_move(r)) != ST_OK) /* here, since what follows may be a function's that only records */
        return rec_failed(r, status);
    if (in && parts && in->rank == MAX_RANK)
        return rec_fail(r, ST_UNSUPPORTED, "x is %s: at most %d axes where ranks have parts of it", node_text(in, text), MAX_RANK - 1);
    return in;
}

static RtNode *check(Rec *r, const kiln_group *g, kiln_tensor *x, bool parts) { return check_named(r, g, x, "x", parts); }

static bool check_cut(Rec *r, const RtNode *x, int axis, int n)
{
    char text[SHAPE_TEXT];
    if (x->dim[axis] % n)
        rec_fail(r, ST_SHAPE, "axis %d of %s cannot be cut into %d equal parts, one for each rank", axis, node_text(x, text), n);
    return r->status == ST_OK;
}

static bool check_how(Rec *r, const RtNode *x, kiln_reduce how)
{
    if ((unsigned)how > KILN_REDUCE_MEAN)
        rec_fail(r, ST_INVALID, "how is %d, which is no kiln_reduce", (int)how);
    else if (x->dtype == DT_BOOL && (how == KILN_REDUCE_SUM || how == KILN_REDUCE_PROD))
        rec_fail(r, ST_DTYPE, "x is bool: MAX is any and MIN all of them; or cast it");
    return r->status == ST_OK;
}

/* How what was combined is given: a mean of ints in f32. */
static kiln_dtype given(const kiln_tensor *x, kiln_reduce how)
{
    const DType dtype = node_dtype(x->node);
    return how == KILN_REDUCE_MEAN && !dtype_is_float(dtype) ? KILN_F32 : (kiln_dtype)dtype;
}

/* What it is computed in. */
static kiln_dtype wide(const Work *w, const kiln_tensor *x, kiln_reduce how)
{
    const kiln_dtype dtype = given(x, how);
    if (w->c.group->world->few_types && (dtype == KILN_I16 || dtype == KILN_U16))
        return dtype == KILN_I16 ? KILN_I32 : KILN_U32;
    return is_half(x) ? KILN_F32 : dtype;
}

/* All of it in a scope of its own: of what is between, nothing is held. */
static kiln_tensor *end(kiln_scope *scope, kiln_tensor *result)
{
    if (result)
        (void)kiln_keep(result);
    kiln_scope_end(scope);
    return result;
}

/* ---- the public functions ---- */

static kiln_tensor *strong(const Work *w, kiln_tensor *x)
{
    Rec r = begin(w);
    return rec_end(&r, rec_strong(&r, rec_in(&r, x, "x")));
}

/* Of parts from all ranks along the first axis. */
static kiln_tensor *combine(const Work *w, kiln_tensor *parts, kiln_reduce how)
{
    const kiln_axes first = KILN_AXES(0);
    const char *file = w->loc.file;
    int line = w->loc.line;
    return !parts                    ? NULL
           : how == KILN_REDUCE_PROD ? kiln_prod_axes_at(parts, first, false, file, line)
           : how == KILN_REDUCE_MAX  ? kiln_max_axes_at(parts, first, false, file, line)
                                     : kiln_min_axes_at(parts, first, false, file, line);
}

API3(kiln_tensor *, kiln_all_reduce, kiln_group *, group, kiln_tensor *, x, kiln_reduce, how)
{
    Rec r = REC(kiln_all_reduce);
    RtNode *in = check(&r, group, x, how == KILN_REDUCE_PROD);
    bool fits = in && check_how(&r, in, how);
    rec_end(&r, NULL);
    if (!fits)
        return NULL;
    const bool sum = how == KILN_REDUCE_SUM || how == KILN_REDUCE_MEAN;
    Work w = {"kiln_all_reduce", r.loc, {.group = group, .op = KILN_COMM_ALL_REDUCE, .how = sum ? KILN_REDUCE_SUM : how}};
    kiln_scope *scope = kiln_scope_begin();
    x = strong(&w, x);
    kiln_tensor *y = cast(&w, x, how == KILN_REDUCE_PROD ? (kiln_dtype)node_dtype(x->node) : wide(&w, x, how));
    if (group->size > 1 && how == KILN_REDUCE_PROD) {
        w.c.op = KILN_COMM_ALL_GATHER;
        y = combine(&w, with_gradient(&w, y), how);
    } else if (group->size > 1) {
        y = with_gradient(&w, y);
        y = how == KILN_REDUCE_MEAN && y ? mean_of(&w, y) : y;
    }
    return end(scope, y ? cast(&w, y, given(x, how)) : NULL);
}

API3(kiln_tensor *, kiln_all_gather, kiln_group *, group, kiln_tensor *, x, int, axis)
{
    Rec r = REC(kiln_all_gather);
    RtNode *in = check(&r, group, x, true);
    bool fits = in && rec_axis(&r, in, axis, &axis);
    if (!fits || group->size == 1)
        return rec_end(&r, fits ? rec_same(&r, rec_strong(&r, in)) : NULL);
    rec_end(&r, NULL);
    const Work w = {"kiln_all_gather", r.loc, {.group = group, .op = KILN_COMM_ALL_GATHER}};
    kiln_scope *scope = kiln_scope_begin();
    return end(scope, parts_from_front(&w, with_gradient(&w, x), axis));
}

API4(kiln_tensor *, kiln_reduce_scatter, kiln_group *, group, kiln_tensor *, x, kiln_reduce, how, int, axis)
{
    Rec r = REC(kiln_reduce_scatter);
    RtNode *in = check(&r, group, x, true);
    bool fits = in && check_how(&r, in, how) && rec_axis(&r, in, axis, &axis) && check_cut(&r, in, axis, group->size);
    rec_end(&r, NULL);
    if (!fits)
        return NULL;
    const bool sum = how == KILN_REDUCE_SUM || how == KILN_REDUCE_MEAN;
    const Work w = {"kiln_reduce_scatter", r.loc, {.group = group, .op = sum ? KILN_COMM_REDUCE_SCATTER : KILN_COMM_ALL_TO_ALL}};
    kiln_scope *scope = kiln_scope_begin();
    x = strong(&w, x);
    kiln_tensor *y = sum ? cast(&w, x, wide(&w, x, how)) : x;
    if (group->size > 1) {
        y = with_gradient(&w, parts_to_front(&w, y, axis));
        y = sum ? y : combine(&w, y, how);
        y = how == KILN_REDUCE_MEAN && y ? mean_of(&w, y) : y;
    }
    return end(scope, y ? cast(&w, y, given(x, how)) : NULL);
}

API3(kiln_tensor *, kiln_broadcast, kiln_group *, group, kiln_tensor *, x, int, root)
{
    Rec r = REC(kiln_broadcast);
    RtNode *in = check(&r, group, x, false);
    if (in && (root < 0 || root >= group->size))
        in = rec_fail(&r, ST_INVALID, "root is %d in a group of %d", root, group->size);
    if (!in || group->size == 1)
        return rec_end(&r, in ? rec_same(&r, rec_strong(&r, in)) : NULL);
    rec_end(&r, NULL);
    const Work w = {"kiln_broadcast", r.loc, {.group = group, .op = KILN_COMM_BROADCAST, .root = root}};
    return with_gradient(&w, x);
}

API4(kiln_tensor *, kiln_all_to_all, kiln_group *, group, kiln_tensor *, x, int, split_axis, int, concat_axis)
{
    Rec r = REC(kiln_all_to_all);
    RtNode *in = check(&r, group, x, true);
    bool fits = in && rec_axis(&r, in, split_axis, &split_axis) && rec_axis(&r, in, concat_axis, &concat_axis) &&
                check_cut(&r, in, split_axis, group->size);
    if (!fits || group->size == 1)
        return rec_end(&r, fits ? rec_same(&r, rec_strong(&r, in)) : NULL);
    rec_end(&r, NULL);
    const Work w = {"kiln_all_to_all", r.loc, {.group = group, .op = KILN_COMM_ALL_TO_ALL}};
    kiln_scope *scope = kiln_scope_begin();
    return end(scope, parts_from_front(&w, with_gradient(&w, parts_to_front(&w, x, split_axis)), concat_axis));
}

static bool check_from(Rec *r, const kiln_group *g, const int *from)
{
    if (!from)
        rec_fail(r, ST_INVALID, "from is NULL");
    for (int k = 0; k < g->size && r->status == ST_OK; k++) {
        if (from[k] < -1 || from[k] >= g->size)
            rec_fail(r, ST_INVALID, "from[%d] is %d: a rank of %d, or -1 for none", k, from[k], g->size);
        for (int j = 0; j < k && r->status == ST_OK && from[k] >= 0; j++)
            if (from[j] == from[k])
                rec_fail(r, ST_INVALID, "from[%d] and from[%d] are both %d: what goes to several is for kiln_broadcast", j, k, from[k]);
    }
    return r->status == ST_OK;
}

API3(kiln_tensor *, kiln_send_recv, kiln_group *, group, kiln_tensor *, x, const int *, from)
{
    Rec r = REC(kiln_send_recv);
    RtNode *in = check(&r, group, x, false);
    bool fits = in && check_from(&r, group, from);
    rec_end(&r, NULL);
    if (!fits)
        return NULL;
    const Work w = {"kiln_send_recv", r.loc, {.group = group, .op = KILN_COMM_SEND_RECV, .from = from}};
    if (group->size > 1)
        return with_gradient(&w, x);
    return from[0] == 0 ? cast(&w, x, (kiln_dtype)node_dtype(x->node)) : kiln_zeros_like_at(x, file, line);
}

/* A message of this rank alone and one other. */
static bool check_pair(Rec *r, const kiln_group *g, int rank, const char *name)
{
    Status status = comm_may_record(r->thread, g);
    if (status != ST_OK)
        rec_failed(r, status);
    else if (rank < 0 || rank >= g->size)
        rec_fail(r, ST_INVALID, "%s is %d in a group of %d", name, rank, g->size);
    else if (r->thread->custom == INSIDE_RULE)
        rec_fail(r, ST_UNSUPPORTED, "in a rule of kiln_custom_gradient: the gradient of kiln_send and kiln_recv is kiln's");
    return r->status == ST_OK;
}

API3(kiln_tensor *, kiln_send, kiln_group *, group, kiln_tensor *, x, int, to)
{
    Rec r = REC(kiln_send);
    const RtNode *in = check_pair(&r, group, to, "to") ? check(&r, group, x, false) : NULL;
    rec_end(&r, NULL);
    const Work w = {"kiln_send", r.loc, {.group = group, .op = COMM_SEND, .root = to}};
    return !in ? NULL : dtype_is_float(node_dtype(in)) ? with_gradient(&w, x) : as_it_is(&w, x);
}

API4(kiln_tensor *, kiln_recv, kiln_group *, group, kiln_dtype, dtype, kiln_shape, shape, int, from)
{
    Rec r = REC(kiln_recv);
    Work w = {"kiln_recv", r.loc, {.group = group, .op = COMM_RECV, .root = from}};
    if (check_pair(&r, group, from, "from") && (unsigned)dtype >= DT_COUNT)
        rec_fail(&r, ST_DTYPE, "dtype is %d, which is no kiln_dtype", (int)dtype);
    bool fits = r.status == ST_OK && rec_shape(&r, shape);
    Status status = fits ? chain_move(&r) : ST_OK; /* here, since what follows is a function's that only records */
    if (status != ST_OK)
        rec_failed(&r, status);
    rec_end(&r, NULL);
    if (!fits || status != ST_OK)
        return NULL;
    w.c.type = (Shape){.dtype = (uint8_t)dtype, .rank = (uint8_t)shape.rank};
    memcpy(w.c.type.dim, shape.dim, sizeof *shape.dim * (size_t)shape.rank);
    return !dtype_is_float((DType)dtype) ? received(&w) : chain_open_elsewhere() ? with_gradient(&w, chain_elsewhere()) : NULL;
}

API1(kiln_status, kiln_barrier, kiln_group *, group)
{
    static const char api[] = "kiln_barrier";
    const Loc loc = {file, line};
    if (body_refuses(api, loc))
        return KILN_INVALID;
    Status status = comm_enter(group, api, loc);
    if (status == ST_OK) {
        const CommWhat what = {.op = KILN_COMM_BARRIER};
        const kiln_comm_call call = {.op = KILN_COMM_BARRIER, .to = -1, .from = -1};
        status = comm_run(group, &what, &call, NULL, loc);
        eval_unlock();
    }
    return error_sync(status, api, loc);
}

/* ---- shards ---- */

/* How long each rank's part of x is, laid out in one row. */
static int64_t part_of(const kiln_group *g, int64_t elements) { return elements / g->size + (elements % g->size != 0); }

API2(kiln_tensor *, kiln_shard, kiln_group *, group, kiln_tensor *, x)
{
    Rec r = REC(kiln_shard);
    RtNode *in = check(&r, group, x, false);
    if (!(in = in ? rec_strong(&r, in) : NULL))
        return rec_end(&r, NULL);
    const int64_t elements = node_elements(in), part = part_of(group, elements), start = group->rank * part;
    const int64_t left = start < elements ? elements - start : 0, own = left < part ? left : part;
    in = rec_merge(&r, in, 0, in->rank);
    in = in ? rec_slice(&r, in, 0, own ? start : 0, 1, own) : NULL;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *y = in ? rec_out(&r, in) : NULL;
    rec_end(&r, NULL);
    if (y && own < part)
        y = kiln_pad_at(y, 1, &(kiln_padding){.high = part - own}, kiln_bool_at(false, file, line), file, line);
    return end(scope, y);
}

API3(kiln_tensor *, kiln_unshard, kiln_group *, group, kiln_tensor *, shard, kiln_shape, shape)
{
    Rec r = REC(kiln_unshard);
    char text[SHAPE_TEXT];
    RtNode *in = check_named(&r, group, shard, "shard", false);
    if (!in || !rec_shape(&r, shape))
        return rec_end(&r, NULL);
    int64_t elements = 1;
    for (int d = 0; d < shape.rank; d++)
        elements *= shape.dim[d];
    if (in->rank != 1 || in->dim[0] != part_of(group, elements))
        return rec_end(&r, rec_fail(&r, ST_SHAPE, "shard is %s: each of %d ranks has [%lld] of %lld elements (kiln_shard)",
                                    node_text(in, text), group->size, (long long)part_of(group, elements), (long long)elements));
    rec_end(&r, NULL);
    const Work w = {"kiln_unshard", r.loc, {.group = group, .op = KILN_COMM_ALL_GATHER, .how = KILN_REDUCE_MEAN}};
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *y = group->size > 1 ? parts_from_front(&w, with_gradient(&w, shard), 0) : shard;
    if (y && elements < y->node->dim[0])
        y = kiln_slice_axis_at(y, 0, 0, elements, 1, file, line);
    return end(scope, kiln_reshape_at(y, shape, file, line));
}

/* ---- data parallel ---- */

/* Bytes: gradients of at most so many travel with others, until there are about so many of them: what a message costs is what it takes to
 * begin it, then. */
enum { SMALL = 64 << 10, BUCKET = 4 << 20 };

typedef struct Bucket {
    const Work *w;
    kiln_tensor **grads; /* all */
    kiln_tensor **mean;  /* in their places */
    int *at;             /* those in it */
    int n;
    size_t bytes;
} Bucket;

static size_t bytes_of(const kiln_tensor *x) { return (size_t)node_elements(x->node) * dtype_bytes(node_dtype(x->node)); }

static kiln_tensor *all_reduced(const Bucket *b, kiln_tensor *x, kiln_reduce how)
{
    return kiln_all_reduce_at(b->w->c.group, x, how, b->w->loc.file, b->w->loc.line);
}

/* In the dtype that they are combined in, so that nothing stands between the bucket and its collective (jit/buffers.c). */
static kiln_tensor *one_behind_the_other(const Bucket *b)
{
    kiln_tensor **wider = os_calloc((size_t)b->n, sizeof *wider);
    RtNode **flat = os_calloc((size_t)b->n, sizeof *flat), *joined = NULL;
    bool whole = wider && flat;
    for (int k = 0; k < b->n && whole; k++) {
        kiln_tensor *x = b->grads[b->at[k]];
        whole = (wider[k] = cast(b->w, strong(b->w, x), wide(b->w, x, KILN_REDUCE_MEAN))) != NULL;
    }
    Rec r = begin(b->w);
    for (int k = 0; k < b->n && whole; k++) {
        RtNode *x = rec_in(&r, wider[k], "grads");
        whole = x && (flat[k] = rec_merge(&r, x, 0, x->rank));
    }
    if (whole)
        joined = rec_concat(&r, (uint32_t)b->n, flat, 0);
    else if (!wider || !flat)
        rec_fail(&r, ST_OUT_OF_MEMORY, "out of memory");
    os_free(wider);
    os_free(flat);
    return rec_end(&r, joined);
}

/* Who reads a mean reads the sums where they lie: each part is divided by itself, which may be done in its reader's kernel. */
static bool take_apart(const Bucket *b, kiln_tensor *joined)
{
    Rec r = begin(b->w);
    RtNode *all = joined ? rec_in(&r, joined, "grads") : NULL;
    int64_t start = 0;
    for (int k = 0; k < b->n && all && r.status == ST_OK; k++) {
        const RtNode *like = b->grads[b->at[k]]->node;
        const int64_t length = node_elements(like);
        RtNode *part = rec_slice(&r, all, 0, start, 1, length);
        b->mean[b->at[k]] = rec_out(&r, part ? rec_split(&r, part, 0, like->rank, like->dim) : NULL);
        start += length;
    }
    rec_end(&r, NULL);
    bool well = all && r.status == ST_OK;
    for (int k = 0; k < b->n && well; k++) {
        kiln_tensor **part = &b->mean[b->at[k]];
        well = (*part = cast(b->w, mean_of(b->w, *part), given(b->grads[b->at[k]], KILN_REDUCE_MEAN))) != NULL;
    }
    return well;
}

/* What is in it travels, and it is empty. */
static bool send(Bucket *b)
{
    bool sent = true;
    if (b->n == 1)
        sent = (b->mean[b->at[0]] = all_reduced(b, b->grads[b->at[0]], KILN_REDUCE_MEAN)) != NULL;
    else if (b->n > 1)
        sent = take_apart(b, all_reduced(b, one_behind_the_other(b), KILN_REDUCE_SUM));
    b->n = 0;
    b->bytes = 0;
    return sent;
}

/* The last first: its gradient is there first, and its sum goes on beside the rest of the backward pass. */
static bool reduce_all(Bucket *b, int n)
{
    bool well = true;
    for (int dtype = 0; dtype < DT_COUNT; dtype++) {
        for (int k = n - 1; k >= 0 && well; k--) {
            const size_t bytes = bytes_of(b->grads[k]);
            if (b->grads[k]->node->dtype != dtype)
                continue;
            if (bytes > SMALL) {
                well = (b->mean[k] = all_reduced(b, b->grads[k], KILN_REDUCE_MEAN)) != NULL;
                continue;
            }
            b->at[b->n++] = k;
            b->bytes += bytes;
            if (b->bytes >= BUCKET)
                well = send(b);
        }
        well = well && send(b);
    }
    return well;
}

kiln_status kiln_parallel_gradients(kiln_group *group, kiln_tensor **grads, int n)
{
    return kiln_parallel_gradients_at(group, grads, n, NULL, 0);
}

kiln_status kiln_parallel_gradients_at(kiln_group *group, kiln_tensor **grads, int n, const char *file, int line)
{
    static const char api[] = "kiln_parallel_gradients";
    Rec r = rec_begin(api, file, line);
    const Work w = {api, r.loc, {.group = group}};
    Status may = comm_may_record(r.thread, group);
    if (may != ST_OK)
        rec_failed(&r, may);
    else if (n < 0)
        rec_fail(&r, ST_INVALID, "n is %d", n);
    else if (n && !grads)
        rec_fail(&r, ST_INVALID, "grads is NULL");
    for (int k = 0; k < n && r.status == ST_OK; k++)
        rec_in(&r, grads[k], "a gradient");
    rec_end(&r, NULL);
    if (r.status != ST_OK || group->size == 1 || n == 0)
        return (kiln_status)r.status;
    kiln_tensor **mean = os_calloc((size_t)n, sizeof *mean);
    int *at = os_calloc((size_t)n, sizeof *at);
    kiln_scope *scope = kiln_scope_begin();
    Bucket b = {.w = &w, .grads = grads, .mean = mean, .at = at};
    bool well = mean && at && reduce_all(&b, n);
    for (int k = 0; k < n && well; k++)
        grads[k] = kiln_keep(mean[k]);
    kiln_scope_end(scope);
    if (!mean || !at)
        (void)error_keep(fail(ST_OUT_OF_MEMORY, "out of memory"), api, w.loc);
    os_free(mean);
    os_free(at);
    return well ? KILN_OK : kiln_error_status();
}
