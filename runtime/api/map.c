/*
 * kiln_map: the function is recorded once, for one index, and then again for all of them at once (runtime/record/batch.h). No loop, no op
 * of its own; with `chunk` a scan over pieces of so many, and what is left over behind it.
 *
 *     in[k] --> the mapped axis first --> [chunk] split in pieces --> batch --> out[k], whose first axis it is
 */
#define KILN_NO_LOCATIONS
#include "ir/base/os.h"
#include "runtime/gradient/body.h"
#include "runtime/mode/finite.h"
#include "runtime/mode/mode.h"
#include "runtime/record/batch.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CLEANUP(function) __attribute__((cleanup(function)))

/* One call. Nodes are borrowed. */
typedef struct Map {
    Rec *r;
    kiln_function_body *f;
    void *user;
    uint32_t n_in, n_out;
    int64_t n, chunk; /* indices, and how many at a time */
    RtNode **in;      /* the inputs, then room for results */
    Mapped *value;    /* the index, the inputs, what f captured, its results */
    Shape *type;      /* of the index and of one of each input */
    Traced traced;
    kiln_mode *mode, only; /* the layers of the thread, and those of them that look at values */
} Map;

static void end_map(Map *m)
{
    m->r->thread->mode = m->mode;
    traced_end(&m->traced);
    os_free(m->in);
    os_free(m->value);
    os_free(m->type);
}

static void call_function(kiln_tensor **in, kiln_tensor **out, void *with)
{
    const Map *m = with;
    m->f(in + 1, out, m->user);
}

/* Pieces are an axis more, for a while. */
static bool in_pieces(const Map *m) { return m->chunk && m->chunk < m->n; }

static Status check_outputs(void *user, uint32_t which, RtNode *const *out)
{
    (void)which;
    const Map *m = user;
    char text[SHAPE_TEXT];
    for (uint32_t k = 0; k < m->n_out; k++)
        if (out[k]->rank + 1 + in_pieces(m) > MAX_RANK)
            return fail(ST_UNSUPPORTED, "out[%u] is %s of %d axes, and gets %s, where %d are possible", k, node_text(out[k], text),
                        out[k]->rank, in_pieces(m) ? "two more for a while, as there is a chunk" : "one more", MAX_RANK);
    return ST_OK;
}

/* Which axis of each input, and how many indices they have. Inputs become what varies, the axis first. */
static void find_axes(Map *m, const int *axes)
{
    char one[SHAPE_TEXT], other[SHAPE_TEXT];
    uint32_t first = m->n_in;
    int first_axis = 0;
    for (uint32_t k = 0; k < m->n_in && m->r->status == ST_OK; k++) {
        RtNode *x = m->in[k] = rec_strong(m->r, m->in[k]);
        int axis = axes ? axes[k] : 0;
        m->value[1 + k] = (Mapped){x, axis != KILN_WHOLE};
        if (!x || axis == KILN_WHOLE)
            continue;
        if (axis < -x->rank || axis >= x->rank) {
            rec_fail(m->r, ST_INVALID, "axes[%u] is %d, and in[%u] is %s", k, axis, k, node_text(x, one));
            return;
        }
        axis = axis < 0 ? axis + x->rank : axis;
        if (first == m->n_in) {
            first = k;
            first_axis = axis;
            m->n = x->dim[axis];
        } else if (x->dim[axis] != m->n) {
            rec_fail(m->r, ST_SHAPE, "in[%u] is %s and has %" PRId64 " indices (axis %d), in[%u] is %s and has %" PRId64 " (axis %d)",
                     first, node_text(m->in[first], one), m->n, first_axis, k, node_text(x, other), x->dim[axis], axis);
        }
        uint8_t perm[MAX_RANK] = {(uint8_t)axis};
        for (uint8_t d = 0, at = 1; d < x->rank; d++)
            if (d != axis)
                perm[at++] = d;
        m->value[1 + k].node = rec_permute(m->r, x, perm);
    }
    for (uint32_t k = 0; k < m->n_in && m->r->status == ST_OK && in_pieces(m); k++)
        if (m->value[1 + k].varies && m->in[k]->rank == MAX_RANK)
            rec_fail(m->r, ST_UNSUPPORTED, "in[%u] is %s: with a chunk, which is an axis more, at most %d axes are possible", k,
                     node_text(m->in[k], one), MAX_RANK - 1);
    if (first == m->n_in)
        rec_fail(m->r, ST_INVALID, "no input has an axis to go along: all are KILN_WHOLE");
}

static Status trace(Map *m)
{
    m->type[0] = (Shape){.dtype = DT_I64};
    for (uint32_t k = 0; k < m->n_in; k++) {
        const Mapped x = m->value[1 + k];
        Shape *type = &m->type[1 + k];
        *type = (Shape){.dtype = x.node->dtype, .rank = (uint8_t)(x.node->rank - x.varies)};
        memcpy(type->dim, x.node->dim + x.varies, sizeof *type->dim * type->rank);
    }
    const BodyFunction function = {.call = call_function, .with = m, .n_in = 1 + m->n_in, .n_out = m->n_out, .in = m->type, .counts = true};
    TRY(bodies_trace(m->r, &function, check_outputs, m, &m->traced));
    Mapped *value = os_alloc(sizeof *value * ((size_t)1 + m->n_in + m->traced.n_captured + m->n_out));
    if (!value) {
        rec_fail(m->r, ST_OUT_OF_MEMORY, "out of memory");
        return ST_OUT_OF_MEMORY;
    }
    memcpy(value, m->value, sizeof *value * (1 + m->n_in));
    os_free(m->value);
    m->value = value;
    for (uint32_t k = 0; k < m->traced.n_captured; k++)
        value[1 + m->n_in + k] = (Mapped){m->traced.captured[k], false};
    return ST_OK;
}

/* Layers saw the ops when f ran. There are values only now: those that look at such see them. */
static void leave_layers(Map *m)
{
    const kiln_mode *mode = m->mode;
    while (mode && !mode_is(mode, LAYER_FINITE))
        mode = mode->below;
    if (mode) {
        m->only = *mode;
        m->only.below = NULL;
    }
    m->r->thread->mode = mode ? &m->only : NULL;
}

/* n indices from `first` (NULL: 0) on, of what lies in m->value: out[k] for each result. */
static bool run_at_once(const Map *m, Rec *r, RtNode *first, int64_t n, RtNode **out)
{
    const Batch b = {r, n, NULL};
    const uint32_t n_values = 1 + m->n_in;
    Mapped *value = m->value, *captured = value + n_values, *result = captured + m->traced.n_captured;
    RtNode *index = rec_iota(r, n);
    value[0] = (Mapped){first ? rec_ew2(r, OP_ADD, index, first) : index, true};
    if (!value[0].node || !batch_inline(&b, &m->traced.bodies->body[0], value, captured, result))
        return false;
    for (uint32_t k = 0; k < m->n_out; k++)
        if (!(out[k] = batch_spread(&b, result[k])))
            return false;
    return true;
}

/* ---- in pieces ---- */

static void call_piece(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)carry, (void)carry_out;
    const Map *m = user;
    Rec r = rec_begin(m->r->api, m->r->loc.file, m->r->loc.line);
    RtNode **out = os_calloc(m->n_out + 1u, sizeof *out);
    if (!out)
        rec_fail(&r, ST_OUT_OF_MEMORY, "out of memory");
    for (uint32_t k = 0, at = 0; k < m->n_in; k++)
        if (m->value[1 + k].varies)
            m->value[1 + k].node = rec_in(&r, x[at++], "a piece");
    RtNode *first = rec_ew2(&r, OP_MUL, rec_in(&r, i, "i"), rec_int(&r, DT_I64, m->chunk));
    if (r.status == ST_OK && run_at_once(m, &r, first, m->chunk, out))
        for (uint32_t k = 0; k < m->n_out; k++)
            y[k] = rec_out(&r, out[k]);
    rec_end(&r, NULL);
    os_free(out);
}

/* whole[k]: the inputs as they are. The results of all whole pieces, [pieces * chunk, ...]. */
static bool run_pieces(const Map *m, RtNode *const *whole, int64_t pieces, RtNode **out)
{
    Rec *r = m->r;
    kiln_tensor **xs = os_calloc((size_t)m->n_in + m->n_out + 1, sizeof *xs), **ys = xs ? xs + m->n_in : NULL;
    int n_xs = 0;
    if (!xs)
        rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
    for (uint32_t k = 0; k < m->n_in && r->status == ST_OK; k++)
        if (m->value[1 + k].varies) {
            RtNode *x = whole[k];
            if (x->dim[0] != pieces * m->chunk)
                x = rec_slice(r, x, 0, 0, 1, pieces * m->chunk);
            xs[n_xs++] = rec_out(r, rec_split(r, x, 0, 2, (const int64_t[]){pieces, m->chunk}));
        }
    if (r->status == ST_OK) {
        Status status = (Status)kiln_scan_at(call_piece, pieces, 0, 0, NULL, NULL, n_xs, xs, (int)m->n_out, ys, (void *)(uintptr_t)m,
                                             r->loc.file, r->loc.line);
        if (status != ST_OK)
            r->status = status; /* it is kept */
    }
    for (uint32_t k = 0; k < m->n_out && r->status == ST_OK; k++)
        out[k] = rec_merge(r, rec_own(r, node_retain(ys[k]->node)), 0, 2);
    os_free(xs);
    return r->status == ST_OK;
}

static bool run_in_pieces(Map *m, RtNode **out)
{
    Rec *r = m->r;
    const int64_t pieces = m->n / m->chunk, done = pieces * m->chunk, left = m->n - done;
    RtNode **whole = os_calloc((size_t)m->n_in + m->n_out + 1, sizeof *whole), **rest = whole ? whole + m->n_in : NULL;
    kiln_scope *scope = kiln_scope_begin(); /* of the handles here */
    if (!whole || !scope)
        rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
    for (uint32_t k = 0; k < m->n_in && whole; k++)
        whole[k] = m->value[1 + k].node;
    if (r->status == ST_OK && run_pieces(m, whole, pieces, out) && left) {
        for (uint32_t k = 0; k < m->n_in; k++)
            m->value[1 + k].node = m->value[1 + k].varies ? rec_slice(r, whole[k], 0, done, 1, left) : whole[k];
        if (r->status == ST_OK && run_at_once(m, r, rec_int(r, DT_I64, done), left, rest))
            for (uint32_t k = 0; k < m->n_out; k++)
                out[k] = rec_concat(r, 2, (RtNode *[]){out[k], rest[k]}, 0);
    }
    kiln_scope_end(scope);
    os_free(whole);
    return r->status == ST_OK;
}

/* ---- the public function ---- */

kiln_status kiln_map(kiln_function_body *f, int n_in, kiln_tensor *const *in, const int *axes, int64_t chunk, int n_out, kiln_tensor **out,
                     void *user)
{
    return kiln_map_at(f, n_in, in, axes, chunk, n_out, out, user, NULL, 0);
}

kiln_status kiln_map_at(kiln_function_body *f, int n_in, kiln_tensor *const *in, const int *axes, int64_t chunk, int n_out,
                        kiln_tensor **out, void *user, const char *file, int line)
{
    Rec r = REC(kiln_map);
    Map m CLEANUP(end_map) = {.r = &r, .f = f, .user = user, .chunk = chunk, .mode = r.thread->mode};
    bool fits = f && in && out && n_in > 0 && n_out > 0 && chunk >= 0;
    if (!fits)
        rec_fail(&r, ST_INVALID, "needs a function, n_in >= 1 inputs, room for n_out >= 1 outputs, and chunk >= 0");
    m.in = body_arguments(&r, fits, n_in, in, n_out, out, 0);
    if (r.status == ST_OK) {
        m.n_in = (uint32_t)n_in;
        m.n_out = (uint32_t)n_out;
        m.value = os_calloc((size_t)n_in + 1, sizeof *m.value);
        m.type = os_calloc((size_t)n_in + 1, sizeof *m.type);
        if (!m.value || !m.type)
            rec_fail(&r, ST_OUT_OF_MEMORY, "out of memory");
        else
            find_axes(&m, axes);
    }
    if (r.status == ST_OK && trace(&m) == ST_OK) {
        leave_layers(&m);
        (void)(in_pieces(&m) ? run_in_pieces(&m, m.in + n_in) : run_at_once(&m, &r, NULL, m.n, m.in + n_in));
    }
    for (uint32_t k = 0; k < m.n_out && r.status == ST_OK; k++)
        out[k] = rec_out(&r, m.in[n_in + (int)k]);
    for (uint32_t k = 0; k < m.n_out && r.status != ST_OK; k++)
        out[k] = NULL;
    rec_end(&r, NULL);
    return (kiln_status)r.status;
}
