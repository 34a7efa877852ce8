/*
 * Derivatives of kiln_scan, kiln_while and kiln_cond, as functions with a rule of their own (custom.h).
 *
 *   scan   a scan the other way round. Its carries: cotangents of the carries, the captured values that gradients are asked of (as stand-ins
 *          to differentiate by; they never change, so they are never copied), and the sums of their cotangents. Its xs: the carries that
 *          each step was given, which the forward loop stacks as further ys, then the xs, then the cotangents of the ys. With KILN_REMAT=memory
 *          piece by piece (Pieces)
 *   while  first once more forward, stacking what each step was given and counting the steps: nothing is kept of a loop whose gradient nobody asks for. Then
 *          a loop that counts down to 0, with the carries of a scan's, which looks up in the stacks what step k was given
 *   cond   one with the same predicate, on the operands and the cotangents
 *
 * Forward mode: the same loop or branch, in which values and tangents go along together.
 *
 * In all the functions record once more what the body recorded (bodies_inline: the user's function is not called) and differentiate it by
 * kiln_vjp or kiln_jvp. The loops and branches that this records in a rule have no rule yet, else there would be no end: theirs is
 * recorded where a walk comes to one (bodies_rule), so derivatives of derivatives cost nothing until they are asked for.
 */
#define KILN_NO_LOCATIONS
#include "ir/base/os.h"
#include "jit/options.h"
#include "runtime/gradient/custom.h"
#include "runtime/gradient/param.h"
#include "runtime/record/bodies.h"

#include <string.h>

typedef struct Work {
    const DifferentiableBodies *d;
    kiln_tensor **in;         /* of the rule: the operands */
    const RtBody *body;       /* the one at work */
    uint32_t carries, xs, ys; /* of a scan; ys: the user's */
    uint32_t n_captured;
} Work;

static bool flows(const RtNode *node) { return dtype_is_float(node_dtype(node)); }

/* Is a gradient asked for with respect to operand k? */
static bool wanted(const Work *w, uint32_t k) { return flows(w->d->in[k]) && w->d->in[k]->tracked; }

static Rec begin(const Work *w) { return rec_begin(w->d->r->api, w->d->r->loc.file, w->d->r->loc.line); }

/* --- forward --- */

static void run_forward(kiln_tensor **in, kiln_tensor **out, void *with)
{
    const DifferentiableBodies *d = with;
    Rec r = rec_begin(d->r->api, d->r->loc.file, d->r->loc.line);
    RtNode **nodes = os_calloc((size_t)d->node->n_in + d->n_results + 1, sizeof *nodes), **result = nodes ? nodes + d->node->n_in : NULL;
    if (!nodes)
        rec_fail(&r, ST_OUT_OF_MEMORY, "out of memory");
    for (uint32_t k = 0; k < d->node->n_in && nodes; k++)
        nodes[k] = rec_in(&r, in[k], "an operand");
    RtNode *node = r.status == ST_OK ? bodies_again(&r, d->node, nodes) : NULL;
    for (uint32_t k = 0; k < d->n_results && node && r.status == ST_OK; k++)
        result[k] = bodies_result_new(&r, node, k, &d->type[k]);
    if (r.status == ST_OK && node && node->results && rec_is_eager(&r)) {
        Status status = eval_nodes_on(r.device, result, d->n_results, r.api, r.loc);
        if (status != ST_OK)
            rec_failed(&r, status);
    }
    for (uint32_t k = 0; k < d->n_results && r.status == ST_OK; k++)
        out[k] = rec_out(&r, result[k]);
    rec_end(&r, NULL);
    os_free(nodes);
}

/* --- what both rules do inside of their bodies --- */

/* x and y for each float of a list. */
typedef struct Pairs {
    kiln_tensor **a, **b;
    int n;
} Pairs;

static void add_pair(Pairs *p, kiln_tensor *a, kiln_tensor *b)
{
    p->a[p->n] = a;
    p->b[p->n++] = b;
}

/* The body on these inputs and captured values: handles of its outputs. */
static bool inline_body(const Work *w, kiln_tensor *const *in, kiln_tensor *const *captured, kiln_tensor **out)
{
    Rec r = begin(w);
    uint32_t n_in = w->body->n_inputs, n_out = w->body->n_outputs;
    RtNode **nodes = os_calloc((size_t)n_in + w->n_captured + n_out + 1, sizeof *nodes),
           **outputs = nodes ? nodes + n_in + w->n_captured : NULL;
    kiln_mode *mode = r.thread->mode;
    if (!nodes)
        rec_fail(&r, ST_OUT_OF_MEMORY, "out of memory");
    for (uint32_t k = 0; k < n_in && nodes; k++)
        nodes[k] = rec_in(&r, in[k], "an input");
    for (uint32_t k = 0; k < w->n_captured && nodes; k++)
        nodes[n_in + k] = rec_in(&r, captured[k], "a captured value");
    r.thread->mode = NULL; /* layers saw these ops when they were recorded */
    bool good = r.status == ST_OK && bodies_inline(&r, w->body, nodes, nodes + n_in, outputs);
    r.thread->mode = mode;
    for (uint32_t k = 0; k < n_out && good; k++)
        out[k] = rec_out(&r, outputs[k]);
    rec_end(&r, NULL);
    os_free(nodes);
    return good;
}

/* Cotangents of the inputs `of` for the outputs and cotangents in `with`, to grads. */
static bool differentiate(const Work *w, const Pairs *with, int n, kiln_tensor **of, kiln_tensor **grads)
{
    return n == 0 || kiln_vjp_at(with->n, with->a, with->b, n, of, 0, grads, w->d->r->loc.file, w->d->r->loc.line) == KILN_OK;
}

static kiln_tensor *zeros_like(const Work *w, const RtNode *like)
{
    Rec r = begin(w);
    return rec_end(&r, rec_expand(&r, rec_scalar(&r, node_dtype(like), 0), like->rank, like->dim));
}

static kiln_tensor *sum_of(const Work *w, kiln_tensor *a, kiln_tensor *b)
{
    Rec r = begin(w);
    RtNode *x = rec_in(&r, a, "a"), *y = rec_in(&r, b, "b");
    return rec_end(&r, rec_ew2(&r, OP_ADD, x, y));
}

/* --- kiln_scan --- */

/* Room for all lists of handles. */
typedef struct Room {
    kiln_tensor **at;
    size_t used;
} Room;

/* Without memory `at` is NULL, and an error is kept: what a rule leaves unset would be zero. */
static Room room_new(const Work *w)
{
    size_t n = 16 * ((size_t)w->d->node->n_in + w->d->n_results + 8);
    Room room = {os_calloc(n, sizeof(kiln_tensor *)), 0};
    if (!room.at)
        (void)error_keep(fail(ST_OUT_OF_MEMORY, "out of memory"), w->d->r->api, w->d->r->loc);
    return room;
}

static kiln_tensor **take(Room *room, size_t n)
{
    kiln_tensor **here = room->at + room->used;
    room->used += n;
    return here;
}

/*
 * With KILN_REMAT=memory not all that the steps were given is kept of a long scan. It is cut into about as many pieces as a piece has steps. On
 * the way back it runs once more forward, which keeps what each piece begins with; then a scan back over pieces runs each of them once more, which
 * keeps what its own steps were given, and goes back through it. What is left over behind whole pieces is one more. Sums of cotangents go
 * from piece to piece, so they are added up in the order that they always have.
 */
typedef struct Pieces {
    const Work *w;
    int64_t n, steps, rest;        /* pieces, steps of each, steps behind them */
    kiln_tensor *first;            /* the number of the first step at work; NULL: 0 */
    bool keeps;                    /* what each step was given */
    int n_carry, n_xs, n_ys;       /* of the way back */
    uint32_t n_flowing, handed_on; /* carries of it: cotangents, then captured values */
} Pieces;

static kiln_tensor *step_number(const Pieces *p, kiln_tensor *i) { return p->first ? sum_of(p->w, i, p->first) : i; }

/* One step back: the order of carries, xs and ys is that of scan_back. */
static void step_back(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    const Pieces *p = user;
    const Work *w = p->w;
    Room room = room_new(w);
    if (!room.at)
        return;
    uint32_t n = w->carries + w->xs, at = 0;
    kiln_tensor **in = take(&room, n + 1), **captured = take(&room, w->n_captured + 1), **out = take(&room, w->body->n_outputs + 1);
    kiln_tensor **of = take(&room, n + w->n_captured + 1), **grads = take(&room, n + w->n_captured + 1);
    kiln_tensor **cotangents = carry;
    Pairs with = {take(&room, w->body->n_outputs + 1), take(&room, w->body->n_outputs + 1), 0};
    in[0] = step_number(p, i);
    memcpy(in + 1, x, sizeof *in * n);
    for (uint32_t k = 0; k < w->carries; k++)
        at += flows(w->d->in[k]);
    uint32_t n_flowing = at, n_captured = 0;
    for (uint32_t k = 0; k < w->n_captured; k++)
        captured[k] = wanted(w, n + k) ? carry[n_flowing + n_captured++] : w->in[n + k];
    if (inline_body(w, in, captured, out)) {
        at = 0;
        for (uint32_t k = 0; k < w->carries; k++)
            if (flows(w->d->in[k]))
                add_pair(&with, out[k], cotangents[at++]);
        at = n;
        for (uint32_t k = 0; k < w->ys && !w->d->of_stacked; k++)
            if (dtype_is_float((DType)w->d->type[w->carries + k].dtype))
                add_pair(&with, out[w->carries + k], x[at++]);
        int n_of = 0;
        for (uint32_t k = 0; k < w->carries; k++)
            if (flows(w->d->in[k]))
                of[n_of++] = in[1 + k];
        for (uint32_t k = w->carries; k < n; k++)
            if (wanted(w, k))
                of[n_of++] = in[1 + k];
        memcpy(of + n_of, carry + n_flowing, sizeof *of * n_captured);
        if (differentiate(w, &with, n_of + (int)n_captured, of, grads)) {
            for (uint32_t k = 0; k < n_flowing; k++)
                carry_out[k] = w->d->of_stacked ? sum_of(w, grads[k], x[n + k]) : grads[k];
            memcpy(y, grads + n_flowing, sizeof *grads * ((size_t)n_of - n_flowing));
            memcpy(carry_out + n_flowing, carry + n_flowing, sizeof *carry * n_captured);
            for (uint32_t k = 0; k < n_captured; k++)
                carry_out[n_flowing + n_captured + k] = sum_of(w, carry[n_flowing + n_captured + k], grads[n_of + (int)k]);
        }
    }
    os_free(room.at);
}

/* A scan of the rule. `back`: against the direction of the user's. Inside of a body, too, those of a rule have none themselves yet. */
static bool scan_of(const Pieces *p, kiln_scan_body *body, int64_t length, bool back, int n_carry, kiln_tensor **init, kiln_tensor **last,
                    int n_xs, kiln_tensor **xs, int n_ys, kiln_tensor **ys)
{
    const DifferentiableBodies *d = p->w->d;
    const unsigned flags = d->node->attr.loop.reverse != back ? KILN_SCAN_REVERSE : 0;
    RtThread *t = d->r->thread;
    const uint8_t custom = t->custom;
    t->custom = INSIDE_RULE;
    kiln_status status =
        kiln_scan_at(body, length, flags, n_carry, init, last, n_xs, xs, n_ys, ys, (void *)(uintptr_t)p, d->r->loc.file, d->r->loc.line);
    t->custom = custom;
    return status == KILN_OK;
}

/* A step of the user's loop once more. */
static void step_again(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    const Pieces *p = user;
    const Work *w = p->w;
    const uint32_t n = w->carries + w->xs;
    Room room = room_new(w);
    if (!room.at)
        return;
    kiln_tensor **in = take(&room, n + 1), **out = take(&room, w->body->n_outputs + 1);
    in[0] = step_number(p, i);
    memcpy(in + 1, carry, sizeof *in * w->carries);
    memcpy(in + 1 + w->carries, x, sizeof *in * w->xs);
    if (inline_body(w, in, w->in + n, out))
        memcpy(carry_out, out, sizeof *out * w->carries);
    if (p->keeps)
        memcpy(y, carry, sizeof *carry * w->carries);
    os_free(room.at);
}

static Pieces one_piece(const Pieces *p, kiln_tensor *number, bool keeps)
{
    Pieces one = *p;
    one.first = kiln_mul(number, kiln_int(p->steps));
    one.keeps = keeps;
    return one;
}

static void piece_again(kiln_tensor *number, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    const Pieces one = one_piece(user, number, false);
    const int carries = (int)one.w->carries;
    memcpy(y, carry, sizeof *carry * one.w->carries);
    (void)scan_of(&one, step_again, one.steps, false, carries, carry, carry_out, (int)one.w->xs, x, 0, NULL);
}

/* Through so many steps forward, which keeps what they were given, and back. xs: what the first one was given, then as those of scan_back. */
static bool forth_and_back(const Pieces *p, int64_t steps, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y)
{
    const Work *w = p->w;
    const int carries = (int)w->carries;
    Room room = room_new(w);
    if (!room.at)
        return false;
    kiln_tensor **xs = take(&room, (size_t)p->n_xs + 1), **end = take(&room, w->carries + 1);
    memcpy(xs, x, sizeof *xs * (size_t)p->n_xs);
    bool good = scan_of(p, step_again, steps, false, carries, x, end, (int)w->xs, x + carries, carries, xs) &&
                scan_of(p, step_back, steps, true, p->n_carry, carry, carry_out, p->n_xs, xs, p->n_ys, y);
    if (good)
        memcpy(carry_out + p->n_flowing, carry + p->n_flowing, sizeof *carry * p->handed_on);
    os_free(room.at);
    return good;
}

static void piece_back(kiln_tensor *number, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    const Pieces one = one_piece(user, number, true);
    (void)forth_and_back(&one, one.steps, carry, x, carry_out, y);
}

/* Of what has a slice for each step: those of the pieces, [n, steps, ..], or of the rest. */
static kiln_tensor *slices(const Pieces *p, kiln_tensor *x, bool rest)
{
    const int64_t end = p->n * p->steps;
    kiln_shape shape = {.rank = kiln_rank(x) + 1, .dim = {p->n, p->steps}};
    if (rest)
        return kiln_slice_axis(x, 0, end, end + p->rest, 1);
    for (int a = 1; a < shape.rank - 1; a++)
        shape.dim[a + 1] = kiln_dim(x, a);
    return kiln_reshape(p->rest ? kiln_slice_axis(x, 0, 0, end, 1) : x, shape);
}

/* Both together again. */
static kiln_tensor *joined(const Pieces *p, kiln_tensor *pieces, kiln_tensor *rest)
{
    kiln_shape shape = {.rank = kiln_rank(pieces) - 1, .dim = {p->n * p->steps}};
    for (int a = 1; a < shape.rank; a++)
        shape.dim[a] = kiln_dim(pieces, a + 1);
    kiln_tensor *both[] = {kiln_reshape(pieces, shape), rest};
    return rest ? kiln_concat(both, 2, 0) : both[0];
}

/* What scan_back's loop does, piece by piece. xs[0..carries) are not read. */
static bool back_in_pieces(Pieces *p, kiln_tensor **init, kiln_tensor **last, kiln_tensor **xs, kiln_tensor **ys)
{
    const Work *w = p->w;
    const bool reverse = w->d->node->attr.loop.reverse, rest_is_last = !reverse;
    Room room = room_new(w);
    if (!room.at)
        return false;
    const int carries = (int)w->carries, n_xs = p->n_xs;
    kiln_tensor **of_pieces = take(&room, (size_t)n_xs + 1), **of_rest = take(&room, (size_t)n_xs + 1);
    kiln_tensor **middle = take(&room, (size_t)p->n_carry + 1), **ys_of_rest = take(&room, (size_t)p->n_ys + 1),
                **end = take(&room, w->carries + 1);
    for (int k = carries; k < n_xs; k++) {
        of_pieces[k] = slices(p, xs[k], false);
        of_rest[k] = p->rest ? slices(p, xs[k], true) : NULL;
    }
    Pieces rest = *p;
    rest.first = kiln_int(p->n * p->steps);
    rest.keeps = false;
    bool good = true;
    kiln_tensor **before = w->in; /* what the pieces begin with, all together */
    memcpy(of_rest, w->in, sizeof *of_rest * w->carries);
    if (p->rest && !rest_is_last) {
        good = scan_of(&rest, step_again, p->rest, false, carries, w->in, end, (int)w->xs, of_rest + carries, 0, NULL);
        before = end;
    }
    kiln_tensor **after = take(&room, w->carries + 1);
    good = good && scan_of(p, piece_again, p->n, false, carries, before, after, (int)w->xs, of_pieces + carries, carries, of_pieces);
    if (rest_is_last)
        memcpy(of_rest, after, sizeof *of_rest * w->carries);
    rest.keeps = true;
    if (p->rest && rest_is_last) {
        good = good && forth_and_back(&rest, p->rest, init, of_rest, middle, ys_of_rest);
        init = middle;
    }
    kiln_tensor **to = p->rest && !rest_is_last ? middle : last;
    good = good && scan_of(p, piece_back, p->n, true, p->n_carry, init, to, n_xs, of_pieces, p->n_ys, ys);
    if (p->rest && !rest_is_last && good) {
        memcpy(middle + p->n_flowing, init + p->n_flowing, sizeof *init * p->handed_on);
        good = forth_and_back(&rest, p->rest, middle, of_rest, last, ys_of_rest);
    }
    for (int k = 0; k < p->n_ys && good; k++)
        ys[k] = joined(p, ys[k], p->rest ? ys_of_rest[k] : NULL);
    os_free(room.at);
    return good;
}

/* Is a scan cut into pieces? Those of equal length without a rest where there is such a number near the root. */
static bool is_cut(const Work *w, Pieces *p)
{
    enum { LEAST = 16 };
    const int64_t length = w->d->node->facts[0];
    bool cut = option_int(OPT_REMAT) == REMAT_MEMORY && !w->d->of_stacked && w->carries && length >= LEAST;
    for (uint32_t k = 0; k < w->xs; k++)
        cut &= w->d->in[w->carries + k]->rank < MAX_RANK;
    for (uint32_t k = 0; k < w->ys; k++)
        cut &= w->d->type[w->carries + k].rank < MAX_RANK;
    if (!cut)
        return false;
    int64_t root = 1;
    while (root * root < length)
        root++;
    p->steps = root;
    for (int64_t steps = root; steps <= 2 * root; steps++)
        if (length % steps == 0) {
            p->steps = steps;
            break;
        }
    p->n = length / p->steps;
    p->rest = length % p->steps;
    return true;
}

static void scan_back(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user)
{
    const DifferentiableBodies *d = user;
    const RtNode *node = d->node;
    Work w = {.d = d, .in = in, .body = &bodies_of(node)->body[0], .carries = node->attr.loop.carries, .xs = node->attr.loop.xs};
    w.ys = d->n_results - 2 * w.carries;
    uint32_t n = w.carries + w.xs;
    w.n_captured = node->n_in - n;
    Room room = room_new(&w);
    if (!room.at)
        return;
    int n_carry = 0, n_xs = 0, n_ys = 0;
    kiln_tensor **init = take(&room, n + 2 * (size_t)w.n_captured + 1), **last = take(&room, n + 2 * (size_t)w.n_captured + 1);
    kiln_tensor **xs = take(&room, n + w.ys + 1), **ys = take(&room, w.xs + 1);
    for (uint32_t k = 0; k < w.carries; k++)
        if (flows(d->in[k]))
            init[n_carry++] = d->of_stacked ? zeros_like(&w, d->in[k]) : cotangents[k];
    uint32_t n_flowing = (uint32_t)n_carry;
    for (uint32_t k = 0; k < w.n_captured; k++)
        if (wanted(&w, n + k))
            init[n_carry++] = in[n + k];
    uint32_t n_captured = (uint32_t)n_carry - n_flowing;
    for (uint32_t k = 0; k < w.n_captured; k++)
        if (wanted(&w, n + k))
            init[n_carry++] = zeros_like(&w, d->in[n + k]);
    for (uint32_t k = 0; k < w.carries; k++)
        xs[n_xs++] = out[w.carries + w.ys + k];
    for (uint32_t k = 0; k < w.xs; k++) {
        xs[n_xs++] = in[w.carries + k];
        n_ys += wanted(&w, w.carries + k);
    }
    const uint32_t first = d->of_stacked ? w.ys : 0, n_seeds = d->of_stacked ? w.carries : w.ys;
    for (uint32_t k = first; k < first + n_seeds; k++)
        if (dtype_is_float((DType)d->type[w.carries + k].dtype))
            xs[n_xs++] = cotangents[w.carries + k];
    Pieces p = {.w = &w, .n_carry = n_carry, .n_xs = n_xs, .n_ys = n_ys, .n_flowing = n_flowing, .handed_on = n_captured};
    if (is_cut(&w, &p) ? back_in_pieces(&p, init, last, xs, ys)
                       : scan_of(&p, step_back, node->facts[0], true, n_carry, init, last, n_xs, xs, n_ys, ys)) {
        uint32_t at = 0, of_ys = 0, of_captured = n_flowing + n_captured;
        for (uint32_t k = 0; k < node->n_in; k++)
            if (k < w.carries)
                grads[k] = flows(d->in[k]) ? last[at++] : NULL;
            else if (wanted(&w, k))
                grads[k] = k < n ? ys[of_ys++] : last[of_captured++];
    }
    os_free(room.at);
}

/* --- kiln_while --- */

/* Is carry k what it was, in each step? */
static bool stays(const Work *w, uint32_t k) { return w->body->output[k] == slot_of(SLOT_PLACE, k + 1); }

/* A loop with a condition that has ys, as long as its bound: of the callbacks, which get what those of BodyFunction get, and `with`. Results to
 * `result`, carries before ys. false: an error is kept. */
typedef struct WhileLoop {
    const Work *w;
    void (*step)(kiln_tensor **in, kiln_tensor **out, void *with);
    void (*condition)(kiln_tensor **in, kiln_tensor **out, void *with);
    void *with;
    uint32_t n_carries, n_ys;
    kiln_tensor **init, **result;
} WhileLoop;

static Status type_of_while(void *user, uint32_t k, RtNode *const *out, Shape *type)
{
    const WhileLoop *x = user;
    bool stacked = k >= x->n_carries;
    *type = (Shape){.dtype = out[k]->dtype, .rank = (uint8_t)(out[k]->rank + stacked)};
    memcpy(type->dim + stacked, out[k]->dim, sizeof *type->dim * out[k]->rank);
    if (stacked)
        type->dim[0] = x->w->d->node->facts[0];
    return ST_OK;
}

static bool record_while(WhileLoop *x)
{
    Rec r = begin(x->w);
    const uint32_t n = x->n_carries, n_results = n + x->n_ys;
    RtNode **given = os_calloc((size_t)n + n_results + 1, sizeof *given), **result = given ? given + n : NULL;
    Shape *type = os_calloc((size_t)n + 1, sizeof *type);
    if (!given || !type)
        rec_fail(&r, ST_OUT_OF_MEMORY, "out of memory");
    else
        type[0] = (Shape){.dtype = DT_I64};
    for (uint32_t k = 0; k < n && r.status == ST_OK; k++) {
        if (!(given[k] = rec_in(&r, x->init[k], "a carry")))
            break;
        type[k + 1] = (Shape){.dtype = given[k]->dtype, .rank = given[k]->rank};
        memcpy(type[k + 1].dim, given[k]->dim, sizeof *given[k]->dim * given[k]->rank);
    }
    if (r.status == ST_OK) {
        const BodyFunction functions[] = {
            {.call = x->step, .with = x->with, .n_in = n + 1, .n_out = n_results, .in = type, .counts = true},
            {.call = x->condition, .with = x->with, .n_in = n, .n_out = 1, .in = type + 1},
        };
        const BodiesRequest request = {.op = OP_LOOP,
                                       .attr.loop = {.carries = (uint16_t)n, .ys = (uint16_t)x->n_ys},
                                       .facts = x->w->d->node->facts,
                                       .n_facts = 1,
                                       .n_bodies = 2,
                                       .n_given = n,
                                       .n_results = n_results,
                                       .given = given,
                                       .function = functions,
                                       .type = type_of_while,
                                       .user = x,
                                       .differentiable = true};
        if (bodies_record(&r, &request, result) == ST_OK)
            for (uint32_t k = 0; k < n_results; k++)
                x->result[k] = rec_out(&r, rec_own(&r, result[k]));
    }
    const bool good = r.status == ST_OK;
    rec_end(&r, NULL);
    os_free(given);
    os_free(type);
    return good;
}

/* Forward: carries, and the number of steps; ys: the carries that a step is given, but for those that stay. */
static void count_step(kiln_tensor **in, kiln_tensor **out, void *with)
{
    const Work *w = with;
    uint32_t at = w->carries + 1;
    Room room = room_new(w);
    kiln_tensor *one[] = {kiln_full(KILN_I64, KILN_SHAPE(), 1)}, **given = room.at ? take(&room, w->body->n_outputs + 1) : NULL;
    if (given && inline_body(w, in, w->in + w->carries, given)) { /* in[0] is the number of the step */
        memcpy(out, given, sizeof *out * w->carries);
        out[w->carries] = sum_of(w, in[w->carries + 1], one[0]);
        for (uint32_t k = 0; k < w->carries; k++)
            if (!stays(w, k))
                out[at++] = in[k + 1];
    }
    os_free(room.at);
}

static void count_condition(kiln_tensor **in, kiln_tensor **out, void *with)
{
    Work w = *(const Work *)with;
    w.body = &bodies_of(w.d->node)->body[1];
    (void)inline_body(&w, in, w.in + w.carries, out);
}

/* stack[k]: what each step was given as carry k; NULL: it stays. The number of steps. NULL: an error is kept. */
static kiln_tensor *count_forward(Work *w, kiln_tensor **stack)
{
    Room room = room_new(w);
    const uint32_t carries = w->carries;
    WhileLoop x = {.w = w, .step = count_step, .condition = count_condition, .with = w, .n_carries = carries + 1};
    kiln_tensor *count = NULL;
    if (!room.at)
        return NULL;
    x.init = take(&room, carries + 1);
    x.result = take(&room, 2 * (size_t)carries + 1);
    memcpy(x.init, w->in, sizeof *w->in * carries);
    x.init[carries] = kiln_full(KILN_I64, KILN_SHAPE(), 0);
    for (uint32_t k = 0; k < carries; k++)
        x.n_ys += !stays(w, k);
    if (x.init[carries] && record_while(&x)) {
        count = x.result[carries];
        for (uint32_t k = 0, at = carries + 1; k < carries; k++)
            stack[k] = stays(w, k) ? NULL : x.result[at++];
    }
    os_free(room.at);
    return count;
}

typedef struct Back {
    Work *w;
    kiln_tensor **stack, **of_ys; /* what each step was given, and the cotangents of what it gave */
    uint32_t n_flowing, n_captured;
} Back;

static kiln_tensor *steps_left(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_gt(state[0], kiln_int(0));
}

/* What lies at i of a stack. */
static RtNode *at_step(Rec *r, kiln_tensor *stack, kiln_tensor *i)
{
    RtNode *index = rec_insert(r, rec_in(r, i, "i"), 0);
    return rec_drop(r, rec_take(r, rec_in(r, stack, "a stack"), index, 0), 1);
}

/* What a step was given as a carry, as a variable: what lies at i of a stack; or x itself (i is NULL), a carry that stays. */
static kiln_tensor *given_to(const Work *w, kiln_tensor *x, kiln_tensor *i)
{
    Rec r = begin(w);
    RtNode *one = i ? at_step(&r, x, i) : rec_in(&r, x, "a carry");
    if (one && dtype_is_float(node_dtype(one)))
        one = param_value(&r, one, param_new_id(), false);
    return rec_end(&r, one);
}

static kiln_tensor *cotangent_at(const Work *w, kiln_tensor *of_y, kiln_tensor *i)
{
    Rec r = begin(w);
    return rec_end(&r, at_step(&r, of_y, i));
}

/* State: how many steps are left, cotangents of the carries, captured values as variables, the sums of their cotangents. */
static void while_step_back(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const Back *b = user;
    const Work *w = b->w;
    Room room = room_new(w);
    if (!room.at)
        return;
    uint32_t n_captured = 0;
    kiln_tensor **cotangents = in + 1, **variables = cotangents + b->n_flowing, **sums = variables + b->n_captured;
    kiln_tensor **place = take(&room, w->carries + 1), **captured = take(&room, w->n_captured + 1),
                **outputs = take(&room, w->body->n_outputs + 1);
    kiln_tensor **of = take(&room, (size_t)w->carries + w->n_captured + 1), **grads = take(&room, (size_t)w->carries + w->n_captured + 1);
    Pairs with = {take(&room, w->body->n_outputs + 1), take(&room, w->body->n_outputs + 1), 0};
    place[0] = kiln_sub(in[0], kiln_int(1));
    for (uint32_t k = 0; k < w->carries; k++)
        place[k + 1] = b->stack[k] ? given_to(w, b->stack[k], place[0]) : given_to(w, w->in[k], NULL);
    for (uint32_t k = 0; k < w->n_captured; k++)
        captured[k] = wanted(w, w->carries + k) ? variables[n_captured++] : w->in[w->carries + k];
    if (inline_body(w, place, captured, outputs)) {
        int n = 0;
        for (uint32_t k = 0; k < w->carries; k++)
            if (flows(w->d->in[k])) {
                add_pair(&with, outputs[k], cotangents[n]);
                of[n++] = place[k + 1];
            }
        for (uint32_t k = 0; k < w->ys; k++)
            if (dtype_is_float((DType)w->d->type[w->carries + k].dtype))
                add_pair(&with, outputs[w->carries + k], cotangent_at(w, b->of_ys[k], place[0]));
        memcpy(of + n, variables, sizeof *of * n_captured);
        if (differentiate(w, &with, n + (int)n_captured, of, grads)) {
            out[0] = place[0];
            memcpy(out + 1, grads, sizeof *grads * b->n_flowing);
            memcpy(out + 1 + b->n_flowing, variables, sizeof *out * n_captured);
            for (uint32_t k = 0; k < n_captured; k++)
                out[1 + b->n_flowing + n_captured + k] = sum_of(w, sums[k], grads[n + (int)k]);
        }
    }
    os_free(room.at);
}

static void while_back(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user)
{
    (void)out;
    const DifferentiableBodies *d = user;
    const RtNode *node = d->node;
    Work w = {.d = d, .in = in, .body = &bodies_of(node)->body[0], .carries = node->attr.loop.carries};
    w.n_captured = node->n_in - w.carries;
    w.ys = d->n_results - w.carries;
    if (node->facts[0] == INT64_MAX) {
        (void)error_keep(fail(ST_UNSUPPORTED, "no bound of steps: no room for what they were given"), d->r->api, d->r->loc);
        return;
    }
    Room room = room_new(&w);
    if (!room.at)
        return;
    Back b = {.w = &w, .stack = take(&room, w.carries + 1), .of_ys = cotangents + w.carries};
    size_t most = 2 + w.carries + 2 * (size_t)w.n_captured;
    kiln_tensor **state = take(&room, most), **last = take(&room, most);
    int n = 0;
    state[n++] = count_forward(&w, b.stack);
    for (uint32_t k = 0; k < w.carries; k++)
        if (flows(d->in[k]))
            state[n++] = cotangents[k];
    b.n_flowing = (uint32_t)n - 1;
    for (uint32_t k = w.carries; k < node->n_in; k++)
        if (wanted(&w, k))
            state[n++] = in[k];
    b.n_captured = (uint32_t)n - 1 - b.n_flowing;
    for (uint32_t k = w.carries; k < node->n_in; k++)
        if (wanted(&w, k))
            state[n++] = zeros_like(&w, d->in[k]);
    if (state[0] &&
        kiln_while_at(steps_left, while_step_back, n, state, node->facts[0], last, &b, d->r->loc.file, d->r->loc.line) == KILN_OK)
        for (uint32_t k = 0, at = 1, sum = 1 + b.n_flowing + b.n_captured; k < node->n_in; k++)
            grads[k] = k < w.carries ? flows(d->in[k]) ? last[at++] : NULL : wanted(&w, k) ? last[sum++] : NULL;
    os_free(room.at);
}

/* --- kiln_cond --- */

typedef struct Side {
    const Work *w;
    uint32_t which;
} Side;

/* Operands behind the predicate, then cotangents of the results that are floats. */
static void branch_back(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const Side *side = user;
    Work w = *side->w;
    const DifferentiableBodies *d = w.d;
    Room room = room_new(&w);
    if (!room.at)
        return;
    w.body = &bodies_of(d->node)->body[side->which];
    w.n_captured = d->node->n_in - 1 - w.body->n_inputs;
    kiln_tensor **outputs = take(&room, w.body->n_outputs + 1), **of = take(&room, d->node->n_in);
    Pairs with = {take(&room, w.body->n_outputs + 1), take(&room, w.body->n_outputs + 1), 0};
    uint32_t at = d->node->n_in - 1;
    int n = 0;
    if (inline_body(&w, in, in + w.body->n_inputs, outputs)) {
        for (uint32_t k = 0; k < d->n_results; k++)
            if (dtype_is_float((DType)d->type[k].dtype))
                add_pair(&with, outputs[k], in[at++]);
        for (uint32_t k = 1; k < d->node->n_in; k++)
            if (wanted(&w, k))
                of[n++] = in[k - 1];
        (void)differentiate(&w, &with, n, of, out);
    }
    os_free(room.at);
}

/* --- forward mode --- */

/* One step of a loop, or a branch: what its outputs are, and in which direction they move as its inputs do. Lists of the floats alone. */
static bool along(const Work *w, kiln_tensor *const *in, kiln_tensor *const *captured, int n, kiln_tensor **of, kiln_tensor **tangents,
                  kiln_tensor **out, kiln_tensor **out_tangents)
{
    kiln_tensor **moving = os_calloc(w->body->n_outputs + 1u, sizeof *moving);
    if (!moving)
        (void)error_keep(fail(ST_OUT_OF_MEMORY, "out of memory"), w->d->r->api, w->d->r->loc);
    bool good = moving && inline_body(w, in, captured, out);
    int n_out = 0;
    for (uint32_t k = 0; k < w->body->n_outputs && good; k++)
        if (dtype_is_float((DType)w->d->type[k].dtype) && k < w->carries + w->ys)
            moving[n_out++] = out[k];
    good = good && kiln_jvp_at(n, of, tangents, n_out, moving, 0, out_tangents, w->d->r->loc.file, w->d->r->loc.line) == KILN_OK;
    os_free(moving);
    return good;
}

/* What goes along with a loop. Carries: the loop's, their tangents, captured values as variables. Xs: the loop's, and their tangents. */
typedef struct Along {
    Work *w;
    kiln_tensor **tangents; /* of the operands */
    uint32_t n_flowing;     /* carries that are floats */
    uint32_t n_carries;     /* all of them */
} Along;

static void step_along(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    const Along *a = user;
    const Work *w = a->w;
    Room room = room_new(w);
    if (!room.at)
        return;
    uint32_t n = w->carries + w->xs, at = w->carries, at_x = w->xs, variable = w->carries + a->n_flowing, n_variables = 0;
    kiln_tensor **in = take(&room, n + 1), **captured = take(&room, w->n_captured + 1), **out = take(&room, w->body->n_outputs + 1);
    kiln_tensor **of = take(&room, n + w->n_captured + 1), **tangents = take(&room, n + w->n_captured + 1),
                **got = take(&room, w->body->n_outputs + 1);
    int n_of = 0;
    in[0] = i;
    for (uint32_t k = 0; k < n; k++) {
        in[k + 1] = k < w->carries ? carry[k] : x[k - w->carries];
        if (!flows(w->d->in[k]))
            continue;
        of[n_of] = in[k + 1];
        tangents[n_of++] = k < w->carries ? carry[at++] : x[at_x++];
    }
    for (uint32_t k = 0; k < w->n_captured; k++) {
        captured[k] = w->in[n + k];
        if (!wanted(w, n + k))
            continue;
        captured[k] = of[n_of] = carry[variable + n_variables++];
        tangents[n_of++] = a->tangents[n + k];
    }
    if (along(w, in, captured, n_of, of, tangents, out, got)) {
        memcpy(carry_out, out, sizeof *out * w->carries);
        memcpy(carry_out + w->carries, got, sizeof *got * a->n_flowing);
        memcpy(carry_out + variable, carry + variable, sizeof *carry * n_variables);
        uint32_t n_ys = 0;
        for (uint32_t k = 0; k < w->ys; k++)
            if (dtype_is_float((DType)w->d->type[w->carries + k].dtype)) {
                y[n_ys] = got[a->n_flowing + n_ys];
                n_ys++;
            }
        if (bodies_of(w->d->node)->n_bodies == 1) /* the stacked carries: where nobody asks for them they are dropped */
            memcpy(y + n_ys, carry + w->carries, sizeof *y * a->n_flowing);
    }
    os_free(room.at);
}

static void while_step_along(kiln_tensor **in, kiln_tensor **out, void *with)
{
    const Along *a = with;
    step_along(in[0], in + 1, NULL, out, out + a->n_carries, with);
}

static void while_condition_along(kiln_tensor **in, kiln_tensor **out, void *with) { count_condition(in, out, ((const Along *)with)->w); }

static void loop_along(kiln_tensor **in, kiln_tensor **out, kiln_tensor **tangents, kiln_tensor **out_tangents, void *user)
{
    (void)out;
    const DifferentiableBodies *d = user;
    const RtNode *node = d->node;
    const bool ends = bodies_of(node)->n_bodies == 2;
    Work w = {.d = d, .in = in, .body = &bodies_of(node)->body[0], .carries = node->attr.loop.carries, .xs = node->attr.loop.xs};
    w.ys = d->n_results - (ends ? 1 : 2) * w.carries;
    uint32_t n = w.carries + w.xs;
    w.n_captured = node->n_in - n;
    Along a = {.w = &w, .tangents = tangents};
    Room room = room_new(&w);
    if (!room.at)
        return;
    kiln_tensor **init = take(&room, 2 * (size_t)n + w.n_captured + 1), **last = take(&room, 2 * (size_t)n + w.n_captured + w.ys + 1);
    kiln_tensor **xs = take(&room, 2 * (size_t)w.xs + 1), **ys = take(&room, d->n_results + 1);
    int n_carry = (int)w.carries, n_xs = (int)w.xs, n_ys = 0;
    memcpy(init, in, sizeof *in * w.carries);
    memcpy(xs, in + w.carries, sizeof *in * w.xs);
    for (uint32_t k = 0; k < n; k++)
        if (flows(d->in[k])) {
            *(k < w.carries ? &init[n_carry++] : &xs[n_xs++]) = tangents[k];
            a.n_flowing += k < w.carries;
        }
    for (uint32_t k = n; k < node->n_in; k++)
        if (wanted(&w, k))
            init[n_carry++] = in[k];
    for (uint32_t k = w.carries; k < d->n_results; k++)
        n_ys += dtype_is_float((DType)d->type[k].dtype);
    kiln_status status;
    if (ends) {
        a.n_carries = (uint32_t)n_carry;
        WhileLoop x = {&w, while_step_along, while_condition_along, &a, a.n_carries, (uint32_t)n_ys, init, last};
        status = record_while(&x) ? KILN_OK : kiln_error_status();
        ys = last + n_carry;
    } else if (n_carry + n_ys == 0) { /* whole numbers alone */
        status = KILN_OK;
    } else {
        status = kiln_scan_at(step_along, node->facts[0], node->attr.loop.reverse ? KILN_SCAN_REVERSE : 0, n_carry, init, last, n_xs, xs,
                              n_ys, ys, &a, d->r->loc.file, d->r->loc.line);
    }
    for (uint32_t k = 0, at = w.carries, at_y = 0; k < d->n_results && status == KILN_OK; k++)
        if (dtype_is_float((DType)d->type[k].dtype))
            out_tangents[k] = k < w.carries ? last[at++] : ys[at_y++];
    os_free(room.at);
}

/* Operands behind the predicate, then tangents of those that are floats and can move. */
static void branch_along(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const Side *side = user;
    Work w = *side->w;
    const DifferentiableBodies *d = w.d;
    Room room = room_new(&w);
    if (!room.at)
        return;
    w.body = &bodies_of(d->node)->body[side->which];
    w.n_captured = d->node->n_in - 1 - w.body->n_inputs;
    w.ys = d->n_results;
    kiln_tensor **outputs = take(&room, w.body->n_outputs + 1), **of = take(&room, d->node->n_in);
    int n = 0;
    for (uint32_t k = 1; k < d->node->n_in; k++)
        if (wanted(&w, k))
            of[n++] = in[k - 1];
    (void)along(&w, in, in + w.body->n_inputs, n, of, in + d->node->n_in - 1, outputs, out);
    os_free(room.at);
}

static void then_back(kiln_tensor **in, kiln_tensor **out, void *user) { branch_back(in, out, &(Side){user, 0}); }
static void else_back(kiln_tensor **in, kiln_tensor **out, void *user) { branch_back(in, out, &(Side){user, 1}); }
static void then_along(kiln_tensor **in, kiln_tensor **out, void *user) { branch_along(in, out, &(Side){user, 0}); }
static void else_along(kiln_tensor **in, kiln_tensor **out, void *user) { branch_along(in, out, &(Side){user, 1}); }

/* Does operand k, or result k, have a direction, or a cotangent? */
static bool has_direction(const Work *w, bool result, uint32_t k)
{
    return result ? dtype_is_float((DType)w->d->type[k].dtype) : k > 0 && wanted(w, k);
}

/* One with the same predicate, on the operands and on seeds, of results or operands: what belongs to the others. */
static void cond_of(const DifferentiableBodies *d, kiln_tensor **in, bool forward, kiln_tensor **seeds, kiln_tensor **got)
{
    Work w = {.d = d, .in = in};
    Room room = room_new(&w);
    if (!room.at)
        return;
    const uint32_t n_in = d->node->n_in, n_seeds = forward ? n_in : d->n_results, n_got = forward ? d->n_results : n_in;
    kiln_tensor **given = take(&room, (size_t)n_in + n_seeds), **out = take(&room, n_got + 1);
    int n = (int)n_in - 1, n_out = 0;
    memcpy(given, in + 1, sizeof *given * (n_in - 1));
    for (uint32_t k = 0; k < n_seeds; k++)
        if (has_direction(&w, !forward, k))
            given[n++] = seeds[k];
    for (uint32_t k = 0; k < n_got; k++)
        n_out += has_direction(&w, forward, k);
    kiln_function_body *then_f = forward ? then_along : then_back, *else_f = forward ? else_along : else_back;
    if (n_out && kiln_cond_at(in[0], then_f, else_f, n, given, n_out, out, &w, d->r->loc.file, d->r->loc.line) == KILN_OK)
        for (uint32_t k = 0, at = 0; k < n_got; k++)
            if (has_direction(&w, forward, k))
                got[k] = out[at++];
    os_free(room.at);
}

static void cond_back(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user)
{
    (void)out;
    cond_of(user, in, false, cotangents, grads);
}

static void cond_along(kiln_tensor **in, kiln_tensor **out, kiln_tensor **tangents, kiln_tensor **out_tangents, void *user)
{
    (void)out;
    cond_of(user, in, true, tangents, out_tangents);
}

/* --- both --- */

static CustomFunction functions_of(const DifferentiableBodies *d)
{
    const bool ends = d->node->op == OP_LOOP && bodies_of(d->node)->n_bodies == 2;
    return (CustomFunction){.f = run_forward,
                            .vjp = d->node->op == OP_COND ? cond_back
                                   : ends                 ? while_back
                                                          : scan_back,
                            .jvp = d->node->op == OP_COND ? cond_along : loop_along,
                            .user = (void *)(uintptr_t)d,
                            .n_plain = d->n_results - (d->node->op == OP_LOOP && !ends ? d->node->attr.loop.carries : 0)};
}

Status bodies_differentiable(const DifferentiableBodies *d, RtNode **result)
{
    const CustomFunction function = functions_of(d);
    return custom_of_bodies(d->r->api, d->r->loc, &function, d->node->n_in, d->in, d->n_results, result);
}

Status bodies_rule(RtNode *node, bool forward, bool of_stacked, Custom **rule)
{
    Rec r = rec_begin(node->api, node->loc.file, node->loc.line);
    const uint32_t n = bodies_of(node)->n_results;
    RtNode **result = os_calloc(n + 1u, sizeof *result);
    Shape *type = os_calloc(n + 1u, sizeof *type);
    if (!result || !type)
        rec_fail(&r, ST_OUT_OF_MEMORY, "out of memory");
    for (uint32_t k = 0; k < n && r.status == ST_OK; k++) {
        type[k] = bodies_result_type(node, k);
        result[k] = bodies_result(node, k);
        result[k] = result[k] ? rec_own(&r, result[k]) : bodies_result_new(&r, node, k, &type[k]);
    }
    const DifferentiableBodies d = {&r, node, node->in, type, n, of_stacked};
    const CustomFunction function = functions_of(&d);
    Status status = r.status;
    if (status == ST_OK)
        status = custom_of_results(r.api, r.loc, &function, forward, node->n_in, node->in, n, result, rule);
    rec_end(&r, NULL);
    os_free(result);
    os_free(type);
    return status;
}
