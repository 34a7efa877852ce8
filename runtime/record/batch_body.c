/*
 * Batching loops and branches (batch.h).
 *
 *   scan    carries, xs and ys that vary have the batch as an axis of their own; xs and ys behind the loop's
 *   while   whose condition does not vary: the same. Else all indices go on until the last one is at its end: one more carry says which are not, and only
 *           these take what a step gives: it settles (ir/body.h). One that does already goes on while any index of it does
 *   cond    whose predicate does not vary: the same, with both bodies batched. Else both run, and each index takes one of both
 *
 * What varies is found beforehand (loop_varies): a carry does where it begins as something that varies, or becomes it in some step.
 */
#define KILN_NO_LOCATIONS
#include "ir/base/os.h"
#include "runtime/record/batch.h"

#include <string.h>

/* ---- what varies ---- */

/* Is the k-th carry what it was, in each step? */
static bool handed_on(const RtNode *loop, uint32_t k) { return bodies_of(loop)->body[0].output[k] == slot_of(SLOT_PLACE, k + 1); }

/* Of a loop: which results do, and do indices come to their end one by one? */
static bool loop_varies(Rec *r, const RtNode *of, const bool *in, bool masked, bool *result, bool *selects)
{
    const Bodies *bodies = bodies_of(of);
    uint32_t carries = of->attr.loop.carries, n = carries + of->attr.loop.xs;
    bool *places = os_calloc((size_t)n + 1 + bodies->n_results, sizeof *places), *out = places ? places + n + 1 : NULL, changed = true,
         ends = false;
    if (!places)
        rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
    else
        memcpy(places + 1, in, n);
    *selects = false;
    while (changed && r->status == ST_OK) {
        if (bodies->n_bodies == 2)
            batch_varies(r, &bodies->body[1], places + 1, in + n, masked, &ends);
        *selects = bodies->n_bodies == 2 && (masked || (ends && !of->attr.loop.settles));
        for (uint32_t k = 0; k < carries && *selects; k++)
            places[1 + k] |= !handed_on(of, k);
        batch_varies(r, &bodies->body[0], places, in + n, masked || *selects, out);
        changed = false;
        for (uint32_t k = 0; k < carries; k++) {
            changed |= out[k] && !places[1 + k];
            places[1 + k] |= out[k];
        }
    }
    for (uint32_t k = 0; k < bodies->n_results && r->status == ST_OK; k++)
        result[k] = k < carries ? places[1 + k] : out[k];
    os_free(places);
    return r->status == ST_OK;
}

static bool cond_varies(Rec *r, const RtNode *of, const bool *in, bool masked, bool *result)
{
    const Bodies *bodies = bodies_of(of);
    bool *out = os_calloc(bodies->n_results + 1u, sizeof *out);
    if (!out)
        rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
    for (uint32_t k = 0; k < bodies->n_results; k++)
        result[k] = in[0];
    for (uint32_t which = 0; which < 2 && !in[0] && r->status == ST_OK; which++) {
        const RtBody *body = &bodies->body[which];
        batch_varies(r, body, in + 1, in + 1 + body->n_inputs, masked, out);
        for (uint32_t k = 0; k < bodies->n_results; k++)
            result[k] |= out[k];
    }
    os_free(out);
    return r->status == ST_OK;
}

bool batch_body_varies(Rec *r, const RtNode *of, const bool *in, bool masked, bool *result)
{
    bool selects, any = false;
    if (of->op == OP_CUSTOM) {
        for (uint32_t k = 0; k < of->n_in; k++)
            any |= in[k];
        memset(result, any, bodies_of(of)->n_results);
        return true;
    }
    if (of->op == OP_COND)
        return cond_varies(r, of, in, masked, result);
    return of->op != OP_LOOP || loop_varies(r, of, in, masked, result, &selects); /* others are refused (batch_body) */
}

/* ---- recording ---- */

typedef struct Nest {
    const Batch *b;
    const RtNode *of;
    const Mapped *in;
    const bool *varies; /* of the results */
    bool selects;
    uint32_t n_results;
} Nest;

static RtNode *spread_if(const Batch *b, bool varies, Mapped x) { return varies ? batch_spread(b, x) : x.node; }

/* One body inside of another function that is recorded: handles for its outputs. */
typedef struct Side {
    const Nest *nest;
    uint32_t which;
} Side;

static Rec begin(const Nest *x) { return rec_begin(x->of->api, x->of->loc.file, x->of->loc.line); }

static Mapped *room_for(Rec *r, size_t n)
{
    Mapped *room = os_calloc(n + 1, sizeof *room);
    if (!room)
        rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
    return room;
}

static Status type_of_output(void *user, uint32_t k, RtNode *const *out, Shape *type)
{
    const Nest *x = user;
    *type = (Shape){.dtype = out[k]->dtype, .rank = out[k]->rank};
    memcpy(type->dim, out[k]->dim, sizeof *type->dim * type->rank);
    if (x->of->op == OP_COND || k < x->of->attr.loop.carries + (uint32_t)x->selects)
        return ST_OK;
    memmove(type->dim + 1, type->dim, sizeof *type->dim * type->rank);
    type->dim[0] = x->of->facts[0];
    type->rank++;
    return ST_OK;
}

/* Those indices of `mask` for which the condition holds. */
static RtNode *holds(const Nest *x, const Batch *b, const Mapped *state)
{
    Mapped end = {NULL, false};
    uint32_t carries = x->of->attr.loop.carries;
    if (!batch_inline(b, &bodies_of(x->of)->body[1], state, x->in + carries, &end))
        return NULL;
    RtNode *each = batch_spread(b, end);
    return b->mask ? rec_ew2(b->r, OP_AND, b->mask, each) : each;
}

static void call_step(kiln_tensor **in, kiln_tensor **out, void *with)
{
    const Nest *x = ((const Side *)with)->nest;
    Rec r = begin(x);
    Batch b = {&r, x->b->n, x->b->mask};
    const RtBody *body = &bodies_of(x->of)->body[0];
    uint32_t carries = x->of->attr.loop.carries, n = carries + x->of->attr.loop.xs;
    Mapped *place = room_for(&r, (size_t)n + 1 + body->n_outputs), *got = place ? place + n + 1 : NULL;
    for (uint32_t k = 0; k <= n && place; k++) {
        place[k].node = rec_in(&r, in[k], "an input");
        place[k].varies = k > 0 && (k <= carries ? x->varies[k - 1] : x->in[k - 1].varies);
    }
    if (x->selects)
        b.mask = rec_in(&r, in[1 + n], "an input");
    if (r.status == ST_OK && batch_inline(&b, body, place, x->in + n, got)) {
        for (uint32_t k = 0; k < body->n_outputs; k++) {
            got[k] = (Mapped){spread_if(&b, x->varies[k], got[k]), x->varies[k]};
            if (x->selects && k < carries && got[k].varies && !handed_on(x->of, k)) /* what is beyond an index's end in ys nobody reads */
                got[k].node = batch_select(&b, b.mask, got[k].node, place[1 + k].node);
            out[k < carries ? k : k + x->selects] = rec_out(&r, got[k].node);
        }
        if (x->selects)
            out[carries] = rec_out(&r, holds(x, &b, got));
    }
    rec_end(&r, NULL);
    os_free(place);
}

static void call_condition(kiln_tensor **in, kiln_tensor **out, void *with)
{
    const Nest *x = ((const Side *)with)->nest;
    Rec r = begin(x);
    const Batch b = {&r, x->b->n, x->b->mask};
    uint32_t carries = x->of->attr.loop.carries;
    Mapped *state = room_for(&r, carries), end = {NULL, false};
    for (uint32_t k = 0; k < carries && state; k++)
        state[k] = (Mapped){rec_in(&r, in[k], "an input"), x->varies[k]};
    if (x->selects)
        end.node = rec_reduce(&r, OP_REDUCE_ANY, rec_in(&r, in[carries], "an input"), 1, false);
    else if (r.status == ST_OK)
        (void)batch_inline(&b, &bodies_of(x->of)->body[1], state, x->in + carries, &end);
    if (end.node && end.varies)
        end.node = rec_reduce(&r, OP_REDUCE_ANY, end.node, 1, false);
    out[0] = rec_out(&r, end.node);
    rec_end(&r, NULL);
    os_free(state);
}

static bool record_loop(const Nest *x, Mapped *result)
{
    Rec *r = x->b->r;
    const RtNode *of = x->of;
    const uint32_t carries = of->attr.loop.carries, n = carries + of->attr.loop.xs, more = x->selects, n_bodies = bodies_of(of)->n_bodies;
    RtNode **given = os_calloc((size_t)n + x->n_results + 4, sizeof *given), **made = given ? given + n + 2 : NULL;
    Shape *type = os_calloc((size_t)n + 3, sizeof *type);
    Mapped *begins = room_for(r, carries);
    if (!given || !type)
        rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
    for (uint32_t k = 0; k < n && r->status == ST_OK; k++) {
        bool varies = k < carries ? x->varies[k] : x->in[k].varies;
        given[k] = spread_if(x->b, varies, x->in[k]);
        if (k < carries)
            begins[k] = (Mapped){given[k], varies};
        else if (varies)
            given[k] = rec_permute(r, given[k], (const uint8_t[]){1, 0, 2, 3, 4, 5, 6, 7});
    }
    if (more && r->status == ST_OK)
        given[n] = holds(x, x->b, begins);
    for (uint32_t k = 0; k < n + more && r->status == ST_OK; k++) {
        bool sliced = k >= carries && k < n;
        type[1 + k] = (Shape){.dtype = given[k]->dtype, .rank = (uint8_t)(given[k]->rank - sliced)};
        memcpy(type[1 + k].dim, given[k]->dim + sliced, sizeof *given[k]->dim * type[1 + k].rank);
    }
    if (r->status == ST_OK) {
        type[0] = (Shape){.dtype = DT_I64};
        Side side = {x, 0};
        const BodyFunction functions[] = {
            {.call = call_step, .with = &side, .n_in = n + 1 + more, .n_out = x->n_results + more, .in = type, .counts = true},
            {.call = call_condition, .with = &side, .n_in = carries + more, .n_out = 1, .in = type + 1}};
        BodiesRequest request = {.op = OP_LOOP,
                                 .attr = of->attr,
                                 .facts = of->facts,
                                 .n_facts = of->n_facts,
                                 .n_bodies = n_bodies,
                                 .n_given = n + more,
                                 .n_results = x->n_results + more,
                                 .given = given,
                                 .function = functions,
                                 .type = type_of_output,
                                 .user = (void *)(uintptr_t)x,
                                 .differentiable = true};
        request.attr.loop.carries = (uint16_t)(carries + more);
        request.attr.loop.settles = more || of->attr.loop.settles;
        (void)bodies_record(r, &request, made);
    }
    for (uint32_t k = 0; k < x->n_results && r->status == ST_OK; k++) {
        result[k] = (Mapped){rec_own(r, made[k < carries ? k : k + more]), x->varies[k]};
        if (k >= carries && result[k].varies)
            result[k].node = rec_permute(r, result[k].node, (const uint8_t[]){1, 0, 2, 3, 4, 5, 6, 7});
    }
    if (more && r->status == ST_OK)
        rec_own(r, made[carries]);
    os_free(given);
    os_free(type);
    os_free(begins);
    return r->status == ST_OK;
}

static void call_branch(kiln_tensor **in, kiln_tensor **out, void *with)
{
    (void)in;
    const Side *side = with;
    const Nest *x = side->nest;
    Rec r = begin(x);
    const Batch b = {&r, x->b->n, x->b->mask};
    const RtBody *body = &bodies_of(x->of)->body[side->which];
    Mapped *got = room_for(&r, x->n_results);
    if (got && batch_inline(&b, body, x->in + 1, x->in + 1 + body->n_inputs, got))
        for (uint32_t k = 0; k < x->n_results; k++)
            out[k] = rec_out(&r, spread_if(&b, x->varies[k], got[k]));
    rec_end(&r, NULL);
    os_free(got);
}

static bool record_cond(const Nest *x, Mapped *result)
{
    Rec *r = x->b->r;
    RtNode **made = os_calloc(x->n_results + 1u, sizeof *made);
    Side side[] = {{x, 0}, {x, 1}};
    const BodyFunction functions[] = {{.call = call_branch, .with = &side[0], .n_out = x->n_results},
                                      {.call = call_branch, .with = &side[1], .n_out = x->n_results}};
    const BodiesRequest request = {.op = OP_COND,
                                   .attr = x->of->attr,
                                   .n_bodies = 2,
                                   .n_given = 1,
                                   .n_results = x->n_results,
                                   .given = &x->in[0].node,
                                   .function = functions,
                                   .type = type_of_output,
                                   .user = (void *)(uintptr_t)x,
                                   .differentiable = true};
    if (!made)
        rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
    else
        (void)bodies_record(r, &request, made);
    for (uint32_t k = 0; k < x->n_results && r->status == ST_OK; k++)
        result[k] = (Mapped){rec_own(r, made[k]), x->varies[k]};
    os_free(made);
    return r->status == ST_OK;
}

/* Both branches, each for the indices that take it. */
static bool record_both(const Nest *x, Mapped *result)
{
    Rec *r = x->b->r;
    RtNode *chosen = x->in[0].node;
    Mapped *got = room_for(r, 2 * (size_t)x->n_results);
    for (uint32_t which = 0; which < 2 && r->status == ST_OK; which++) {
        RtNode *mask = which ? rec_ew1(r, OP_NOT, chosen) : chosen;
        const Batch b = {r, x->b->n, x->b->mask && mask ? rec_ew2(r, OP_AND, x->b->mask, mask) : mask};
        const RtBody *body = &bodies_of(x->of)->body[which];
        if (b.mask)
            (void)batch_inline(&b, body, x->in + 1, x->in + 1 + body->n_inputs, got + which * x->n_results);
    }
    for (uint32_t k = 0; k < x->n_results && r->status == ST_OK; k++) {
        RtNode *one = batch_spread(x->b, got[k]), *other = batch_spread(x->b, got[x->n_results + k]);
        result[k] = (Mapped){batch_select(x->b, chosen, one, other), true};
    }
    os_free(got);
    return r->status == ST_OK;
}

bool batch_body(const Batch *b, const RtNode *of, const Mapped *in, Mapped *result)
{
    if (of->op == OP_CUSTOM)
        return batch_call(b, of, in, result);
    Rec *r = b->r;
    Nest x = {.b = b, .of = of, .in = in, .n_results = bodies_of(of)->n_results};
    bool *varies = os_calloc((size_t)of->n_in + x.n_results + 1, sizeof *varies), *results = varies ? varies + of->n_in : NULL;
    if (!varies)
        rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
    if (of->op != OP_LOOP && of->op != OP_COND)
        rec_fail(r, ST_UNSUPPORTED, "it has no form for many indices at once: kiln_scan takes them one by one");
    for (uint32_t k = 0; k < of->n_in && varies; k++)
        varies[k] = in[k].varies;
    x.varies = results;
    if (r->status == ST_OK &&
        (of->op == OP_COND ? cond_varies(r, of, varies, b->mask, results) : loop_varies(r, of, varies, b->mask, results, &x.selects)))
        (void)(of->op == OP_LOOP ? record_loop(&x, result) : in[0].varies ? record_both(&x, result) : record_cond(&x, result));
    os_free(varies);
    return r->status == ST_OK;
}
