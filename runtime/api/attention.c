/*
 * Attention and rotary embedding, of products and elementwise ops.
 *
 * Queries of several heads that share one head of keys are rows of one product, [kv heads, group * queries, d] x [kv heads, d, keys], so
 * that keys and values are never repeated. What a query may see is computed from places where the scores are read: no mask is stored.
 * Weights are not divided by their total; the result is, which has fewer elements.
 */
#include "runtime/record/record.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const kiln_attention_options attention_defaults;

typedef struct Attention {
    RtNode *q, *k, *v; /* of one rank and of the same leading axes, in the dtype that is computed in */
    int rank;
    int64_t group, shared; /* heads of q for each of k: none where q has none; heads of k */
    int64_t queries, keys;
} Attention;

/* x's axis d as counted from the end, 1 the last; 1 where there is none. */
static int64_t from_end(const RtNode *x, int d) { return d <= x->rank ? x->dim[x->rank - d] : 1; }

/* The leading axes of x become those that all broadcast to. */
static RtNode *lead(Rec *r, RtNode *x, const int64_t *leading)
{
    int64_t dims[MAX_RANK];
    if (!x)
        return NULL;
    memcpy(dims, x->dim, sizeof dims);
    for (int d = 0; d < x->rank - 3; d++)
        dims[d] = leading[d];
    return rec_expand(r, x, x->rank, dims);
}

static bool attention_in(Rec *r, RtNode **in, Attention *a)
{
    char text[3][SHAPE_TEXT];
    const RtNode *q = in[0], *k = in[1], *v = in[2];
    int64_t leading[MAX_RANK], numel;
    for (int i = 0; i < 3; i++)
        node_text(in[i], text[i]);
    if (q->rank < 2 || q->rank >= MAX_RANK || k->rank != q->rank || v->rank != q->rank) {
        rec_fail(r, ST_SHAPE, "q, k and v have one rank, 2 to %d: q is %s, k is %s, v is %s", MAX_RANK - 1, text[0], text[1], text[2]);
        return false;
    }
    int64_t heads = from_end(q, 3), shared = from_end(k, 3);
    if (from_end(q, 1) != from_end(k, 1) || from_end(k, 2) != from_end(v, 2) || shared != from_end(v, 3)) {
        rec_fail(r, ST_SHAPE, "q is [..., queries, d], k [..., keys, d], v [..., keys, e]: q is %s, k is %s, v is %s", text[0], text[1],
                 text[2]);
        return false;
    }
    if (shared ? heads % shared != 0 : heads != 0) {
        rec_fail(r, ST_SHAPE, "heads of q, axis %d, are not shared evenly by those of k: q is %s, k is %s", q->rank - 3, text[0], text[1]);
        return false;
    }
    for (int d = 0; d < q->rank - 3; d++) {
        leading[d] = 1;
        for (int i = 0; i < 3; i++) {
            if (in[i]->dim[d] != 1 && leading[d] != 1 && in[i]->dim[d] != leading[d]) {
                rec_fail(r, ST_SHAPE, "axes before the heads do not broadcast: q is %s, k is %s, v is %s", text[0], text[1], text[2]);
                return false;
            }
            leading[d] = in[i]->dim[d] == 1 ? leading[d] : in[i]->dim[d];
        }
    }
    *a = (Attention){
        .rank = q->rank, .group = shared ? heads / shared : 1, .shared = shared, .queries = from_end(q, 2), .keys = from_end(k, 2)};
    int64_t scores[MAX_RANK];
    memcpy(scores, leading, sizeof scores);
    if (a->rank > 2)
        scores[a->rank - 3] = heads;
    scores[a->rank - 2] = a->queries;
    scores[a->rank - 1] = a->keys;
    if (!shape_numel(a->rank, scores, &numel)) {
        rec_fail(r, ST_OVERFLOW, "there are more than 2^62 scores: q is %s, k is %s", text[0], text[1]);
        return false;
    }
    DType wide = compute_dtype(node_dtype(q));
    a->q = rec_cast(r, lead(r, in[0], leading), wide);
    a->k = rec_cast(r, lead(r, in[1], leading), wide);
    a->v = rec_cast(r, lead(r, in[2], leading), wide);
    return a->q && a->k && a->v;
}

/* [..., heads, queries, n] times b, [..., kv heads, n, m]. */
static RtNode *times(Rec *r, const Attention *a, RtNode *x, RtNode *b)
{
    int heads = a->rank - 3;
    const int64_t shared[2] = {a->shared, a->group}, rows[2] = {a->group, a->queries};
    if (a->group != 1 && a->shared == 1) { /* one kv head: its axis would lie between those that the product and its rows have in common */
        RtNode *in[2] = {rec_merge(r, x, heads, 2), rec_merge(r, b, heads, 2)};
        RtNode *y = in[0] && in[1] ? rec_node(r, OP_MATMUL, DT_COUNT, NULL, 2, in, NULL, 0) : NULL;
        return y ? rec_split(r, y, heads, 2, rows) : NULL;
    }
    if (a->group != 1)
        x = rec_merge(r, rec_split(r, x, heads, 2, shared), heads + 1, 2);
    RtNode *in[2] = {x, b};
    RtNode *y = x && b ? rec_node(r, OP_MATMUL, DT_COUNT, NULL, 2, in, NULL, 0) : NULL;
    return a->group != 1 && y ? rec_merge(r, rec_split(r, y, heads + 1, 2, rows), heads, 2) : y;
}

/* The last two axes of x exchanged. */
static RtNode *turned(Rec *r, RtNode *x)
{
    uint8_t perm[MAX_RANK];
    for (int d = 0; x && d < x->rank; d++)
        perm[d] = (uint8_t)(d < x->rank - 2 ? d : 2 * x->rank - 3 - d);
    return rec_permute(r, x, perm);
}

/* Where queries (axis 0) or keys (axis 1) are, as i64 [queries, keys]. */
static RtNode *places(Rec *r, const Attention *a, int axis)
{
    const int64_t dims[2] = {a->queries, a->keys};
    return rec_repeat(r, rec_insert(r, rec_iota(r, dims[axis]), !axis), (uint8_t)(2u >> axis), dims);
}

/* Does an argument broadcast to these dims without changing them? */
static bool broadcasts(const RtNode *x, int rank, const int64_t *dims)
{
    bool fits = x->rank <= rank;
    for (int d = 1; d <= x->rank && fits; d++)
        fits = from_end(x, d) == 1 || from_end(x, d) == dims[rank - d];
    return fits;
}

static RtNode *both(Rec *r, RtNode *seen, RtNode *more) { return seen ? rec_ew2(r, OP_AND, seen, more) : more; }

/* Which scores count, as bools that broadcast to them; *ok false: an error was kept. NULL: all do. */
static RtNode *visible(Rec *r, const Attention *a, const kiln_attention_options *o, RtNode *lengths, bool *ok)
{
    RtNode *key = NULL, *seen = NULL;
    bool bounded = o->causal || o->before || o->after;
    if (bounded || lengths)
        key = places(r, a, 1);
    if (lengths)
        seen = rec_ew2(r, OP_LT, key, lengths);
    if (bounded) { /* how far a key is before the query's own place */
        RtNode *own = places(r, a, 0);
        if (o->from_end && lengths)
            own = rec_ew2(r, OP_ADD, own, rec_ew2(r, OP_SUB, lengths, rec_int(r, DT_I64, a->queries)));
        else if (o->from_end)
            own = rec_ew2(r, OP_ADD, own, rec_int(r, DT_I64, a->keys - a->queries));
        RtNode *distance = rec_ew2(r, OP_SUB, own, key);
        if (o->causal || o->after)
            seen = both(r, seen, rec_ew2(r, OP_GE, distance, rec_int(r, DT_I64, o->causal ? 0 : -o->after)));
        if (o->before)
            seen = both(r, seen, rec_ew2(r, OP_LE, distance, rec_int(r, DT_I64, o->before)));
    }
    *ok = seen || !(bounded || lengths);
    return seen;
}

/* Lengths as i64 [..., 1, 1, 1]. */
static RtNode *lengths_in(Rec *r, const Attention *a, RtNode *argument)
{
    char text[SHAPE_TEXT], of_q[SHAPE_TEXT];
    RtNode *lengths = rec_index(r, argument, "lengths");
    if (!lengths)
        return NULL;
    if (!broadcasts(lengths, a->rank > 3 ? a->rank - 3 : 0, a->q->dim))
        return rec_fail(r, ST_SHAPE, "lengths do not broadcast to the axes before the heads: q is %s, lengths is %s", node_text(a->q, of_q),
                        node_text(lengths, text));
    lengths = rec_ew2(r, OP_MINIMUM, lengths, rec_int(r, DT_I64, a->keys));
    for (int d = 0; d < 3 && a->rank > 2; d++)
        lengths = rec_insert(r, lengths, lengths ? lengths->rank : 0);
    return lengths;
}

/* Scores with what is not seen at -inf. */
static RtNode *masked(Rec *r, const Attention *a, const kiln_attention_options *o, RtNode *scores)
{
    char text[SHAPE_TEXT], other[SHAPE_TEXT];
    bool ok;
    RtNode *lengths, *mask;
    if (!scores || !rec_optional(r, o->lengths, "lengths", &lengths) || !rec_optional(r, o->mask, "mask", &mask))
        return NULL;
    if (lengths && !(lengths = lengths_in(r, a, lengths)))
        return NULL;
    RtNode *seen = visible(r, a, o, lengths, &ok);
    if (!ok)
        return NULL;
    if (mask) {
        if (!broadcasts(mask, scores->rank, scores->dim))
            return rec_fail(r, ST_SHAPE, "mask does not broadcast to the scores: scores are %s, mask is %s", node_text(scores, text),
                            node_text(mask, other));
        if (node_dtype(mask) == DT_BOOL)
            seen = both(r, seen, mask);
        else if (dtype_is_float(node_dtype(mask)))
            scores = rec_ew2(r, OP_ADD, scores, rec_cast(r, mask, node_dtype(scores)));
        else
            return rec_fail(r, ST_DTYPE, "mask is %s: bools (true: seen) or floats (added) are needed", node_text(mask, other));
        if (node_dtype(mask) == DT_BOOL && !seen)
            return NULL;
    }
    return seen && scores ? rec_ew3(r, OP_WHERE, seen, scores, rec_scalar(r, node_dtype(scores), -INFINITY)) : scores;
}

static RtNode *attention(Rec *r, const Attention *a, const kiln_attention_options *o)
{
    DType dtype = node_dtype(a->q);
    double scale = o->scale != 0 ? o->scale : 1 / sqrt((double)from_end(a->q, 1));
    RtNode *q = rec_ew2(r, OP_MUL, a->q, rec_scalar(r, dtype, scale));
    RtNode *scores = times(r, a, q, turned(r, a->k));
    if (o->softcap != 0 && scores) {
        RtNode *small = rec_ew2(r, OP_DIV, scores, rec_scalar(r, dtype, o->softcap));
        scores = rec_ew2(r, OP_MUL, rec_ew1(r, OP_TANH, small), rec_scalar(r, dtype, o->softcap));
    }
    scores = masked(r, a, o, scores);
    if (!scores)
        return NULL;
    /* What is made of it does not depend on which number is taken away; -inf, of a row that sees nothing, would make NaN. */
    uint8_t last = (uint8_t)(1u << (a->rank - 1));
    RtNode *most = rec_stop(rec_reduce(r, OP_REDUCE_MAX, scores, last, true));
    if (!most)
        return NULL;
    RtNode *nothing = rec_ew2(r, OP_EQ, most, rec_scalar(r, dtype, -INFINITY));
    most = rec_ew3(r, OP_WHERE, nothing, rec_scalar(r, dtype, 0), most);
    RtNode *weights = rec_ew1(r, OP_EXP, rec_ew2(r, OP_SUB, scores, most ? rec_repeat(r, most, last, scores->dim) : NULL));
    RtNode *total = rec_reduce(r, OP_REDUCE_SUM, weights, last, true);
    if (!total)
        return NULL;
    nothing = rec_ew2(r, OP_EQ, total, rec_scalar(r, dtype, 0));
    total = rec_ew3(r, OP_WHERE, nothing, rec_scalar(r, dtype, 1), total);
    if (o->dropout != 0)
        weights = rec_dropout(r, weights, o->dropout);
    RtNode *y = times(r, a, weights, a->v);
    RtNode *share = rec_ew1(r, OP_RECIPROCAL, total);
    return y && share ? rec_ew2(r, OP_MUL, y, rec_repeat(r, share, last, y->dim)) : NULL;
}

static bool options_ok(Rec *r, const kiln_attention_options *o)
{
    if (!rec_reserved(r, o->reserved))
        return false;
    if (!isfinite(o->scale)) {
        rec_fail(r, ST_INVALID, "scale is %g: a finite number is needed", o->scale);
        return false;
    }
    if (!(o->softcap >= 0) || !isfinite(o->softcap)) {
        rec_fail(r, ST_INVALID, "softcap is %g: a finite number, at least 0, is needed", o->softcap);
        return false;
    }
    if (!(o->dropout >= 0 && o->dropout < 1)) {
        rec_fail(r, ST_INVALID, "dropout is %g: a probability, 0 <= dropout < 1, is needed", o->dropout);
        return false;
    }
    if (o->before < 0 || o->after < 0) {
        rec_fail(r, ST_INVALID, "a window of %" PRId64 " keys before and %" PRId64 " after: at least 0, which is no bound", o->before,
                 o->after);
        return false;
    }
    if (o->causal && o->after) {
        rec_fail(r, ST_INVALID, "`causal` comes with %" PRId64 " keys after", o->after);
        return false;
    }
    return true;
}

API4(kiln_tensor *, kiln_attention, kiln_tensor *, q, kiln_tensor *, k, kiln_tensor *, v, const kiln_attention_options *, options)
{
    static const char *const names[] = {"q", "k", "v"};
    Rec r = REC(kiln_attention);
    const kiln_attention_options *o = options ? options : &attention_defaults;
    kiln_tensor *arguments[3] = {q, k, v};
    RtNode *in[3];
    Attention a;
    for (int i = 0; i < 3; i++) {
        in[i] = rec_strong(&r, rec_in(&r, arguments[i], names[i]));
        if (!in[i])
            return rec_end(&r, NULL);
    }
    if (!options_ok(&r, o) || !rec_promote(&r, PREP_FLOAT, 3, in, names))
        return rec_end(&r, NULL);
    DType out = node_dtype(in[0]);
    return rec_end(&r, attention_in(&r, in, &a) ? rec_cast(&r, attention(&r, &a, o), out) : NULL);
}

/* ---- rotary embedding ---- */

/* Elements of a and b, of one shape, one after another along the last axis: with all ranks in use, the first two axes are one meanwhile. */
static RtNode *pairs_of(Rec *r, RtNode *a, RtNode *b, int axis)
{
    const bool full = axis + 1 == MAX_RANK;
    const int last = axis - full;
    const int64_t first[2] = {a->dim[0], full ? a->dim[1] : 0};
    RtNode *part[2] = {a, b};
    for (int k = 0; k < 2; k++)
        part[k] = rec_insert(r, full ? rec_merge(r, part[k], 0, 2) : part[k], last + 1);
    RtNode *y = part[0] && part[1] ? rec_merge(r, rec_concat(r, 2, part, last + 1), last, 2) : NULL;
    return full ? rec_split(r, y, 0, 2, first) : y;
}

/* Pairs (a, b) of x become (a cos - b sin, b cos + a sin); what is behind the pairs stays. */
API3(kiln_tensor *, kiln_rotary, kiln_tensor *, x, kiln_tensor *, angles, bool, interleaved)
{
    static const char *const names[] = {"x", "angles"};
    Rec r = REC(kiln_rotary);
    char text[SHAPE_TEXT], other[SHAPE_TEXT];
    RtNode *in = rec_strong(&r, rec_in(&r, x, "x")), *angle = rec_strong(&r, rec_in(&r, angles, "angles"));
    if (!in || !angle || !rec_promote(&r, PREP_FLOAT, 1, &in, names) || !rec_promote(&r, PREP_FLOAT, 1, &angle, names + 1))
        return rec_end(&r, NULL);
    int axis = in->rank - 1;
    int64_t pairs = angle->rank ? from_end(angle, 1) : 0, dims[MAX_RANK];
    memcpy(dims, in->dim, sizeof dims);
    bool fits = axis >= 0 && angle->rank && pairs <= dims[axis] / 2;
    if (fits)
        dims[axis] = pairs;
    if (!fits || !broadcasts(angle, in->rank, dims))
        return rec_end(&r, rec_fail(&r, ST_SHAPE,
                                    "x is [..., d], angles broadcast to [..., pairs] with at most d / 2 pairs: x is %s, angles is %s",
                                    node_text(in, text), node_text(angle, other)));
    DType out = node_dtype(in), wide = compute_dtype(out);
    int64_t step = interleaved ? 2 : 1, rest = in->dim[axis] - 2 * pairs;
    RtNode *part[3];
    part[0] = rec_cast(&r, rec_slice(&r, in, axis, 0, step, pairs), wide);
    part[1] = rec_cast(&r, rec_slice(&r, in, axis, interleaved ? 1 : pairs, step, pairs), wide);
    part[2] = rest ? rec_slice(&r, in, axis, 2 * pairs, 1, rest) : NULL;
    angle = rec_cast(&r, angle, node_dtype(angle) == DT_F64 ? DT_F64 : wide);
    RtNode *cosine = rec_cast(&r, rec_ew1(&r, OP_COS, angle), wide), *sine = rec_cast(&r, rec_ew1(&r, OP_SIN, angle), wide);
    RtNode *ac = rec_ew2(&r, OP_MUL, part[0], cosine), *bs = rec_ew2(&r, OP_MUL, part[1], sine);
    RtNode *bc = rec_ew2(&r, OP_MUL, part[1], cosine), *as = rec_ew2(&r, OP_MUL, part[0], sine);
    part[0] = rec_cast(&r, rec_ew2(&r, OP_SUB, ac, bs), out);
    part[1] = rec_cast(&r, rec_ew2(&r, OP_ADD, bc, as), out);
    if (!part[0] || !part[1] || (rest && !part[2]))
        return rec_end(&r, NULL);
    if (!interleaved)
        return rec_end(&r, rec_concat(&r, rest ? 3 : 2, part, axis));
    RtNode *turned_pairs = pairs_of(&r, part[0], part[1], axis);
    RtNode *all[2] = {turned_pairs, part[2]};
    return rec_end(&r, rest && turned_pairs ? rec_concat(&r, 2, all, axis) : turned_pairs);
}
