/*
 * Derivatives of kiln_scan (loop_scan.c), kiln_while and kiln_cond, as functions with a rule of their own (custom.h).
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
#include "runtime/gradient/loop.h"

#include <string.h>

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

/* --- what rules do inside of their bodies --- */

Room loop_room(const Work *w)
{
    size_t n = 16 * ((size_t)w->d->node->n_in + w->d->n_results + 8);
    Room room = {os_calloc(n, sizeof(kiln_tensor *)), 0};
    if (!room.at)
        (void)error_keep(fail(ST_OUT_OF_MEMORY, "out of memory"), w->d->r->api, w->d->r->loc);
    return room;
}

bool loop_inline_body(const Work *w, kiln_tensor *const *in, kiln_tensor *const *captured, kiln_tensor **out)
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

bool loop_differentiate(const Work *w, const Pairs *with, int n, kiln_tensor **of, kiln_tensor **grads)
{
    return n == 0 || kiln_vjp_at(with->n, with->a, with->b, n, of, 0, grads, w->d->r->loc.file, w->d->r->loc.line) == KILN_OK;
}

kiln_tensor *loop_zeros_like(const Work *w, const RtNode *like)
{
    Rec r = begin(w);
    return rec_end(&r, rec_expand(&r, rec_scalar(&r, node_dtype(like), 0), like->rank, like->dim));
}

kiln_tensor *loop_sum(const Work *w, kiln_tensor *a, kiln_tensor *b)
{
    Rec r = begin(w);
    RtNode *x = rec_in(&r, a, "a"), *y = rec_in(&r, b, "b");
    return rec_end(&r, rec_ew2(&r, OP_ADD, x, y));
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
    Room room = loop_room(w);
    kiln_tensor *one[] = {kiln_full(KILN_I64, KILN_SHAPE(), 1)}, **given = room.at ? take(&room, w->body->n_outputs + 1) : NULL;
    if (given && loop_inline_body(w, in, w->in + w->carries, given)) { /* in[0] is the number of the step */
        memcpy(out, given, sizeof *out * w->carries);
        out[w->carries] = loop_sum(w, in[w->carries + 1], one[0]);
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
    (void)loop_inline_body(&w, in, w.in + w.carries, out);
}

/* stack[k]: what each step was given as carry k; NULL: it stays. The number of steps. NULL: an error is kept. */
static kiln_tensor *count_forward(Work *w, kiln_tensor **stack)
{
    Room room = loop_room(w);
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
    Room room = loop_room(w);
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
    if (loop_inline_body(w, place, captured, outputs)) {
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
        if (loop_differentiate(w, &with, n + (int)n_captured, of, grads)) {
            out[0] = place[0];
            memcpy(out + 1, grads, sizeof *grads * b->n_flowing);
            memcpy(out + 1 + b->n_flowing, variables, sizeof *out * n_captured);
            for (uint32_t k = 0; k < n_captured; k++)
                out[1 + b->n_flowing + n_captured + k] = loop_sum(w, sums[k], grads[n + (int)k]);
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
    Room room = loop_room(&w);
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
            state[n++] = loop_zeros_like(&w, d->in[k]);
    if (state[0] &&
        kiln_while_at(steps_left, while_step_back, n, state, node->facts[0], last, &b, d->r->loc.file, d->r->loc.line) == KILN_OK)
        for (uint32_t k = 0, at = 1, sum = 1 + b.n_flowing + b.n_captured; k < node->n_in; k++)
            grads[k] = k < w.carries ? flows(d->in[k]) ? last[at++] : NULL : wanted(&w, k) ? last[sum++] : NULL;
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
    bool good = moving && loop_inline_body(w, in, captured, out);
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
    Room room = loop_room(w);
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
    Room room = loop_room(&w);
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

/* --- kiln_cond --- */

/* One side. in: operands behind the predicate, then tangents of those that are floats and can move, or cotangents of the results that are floats. */
static void branch(kiln_tensor **in, kiln_tensor **out, const Work *cond, uint32_t which, bool forward)
{
    Work w = *cond;
    const DifferentiableBodies *d = w.d;
    Room room = loop_room(&w);
    if (!room.at)
        return;
    w.body = &bodies_of(d->node)->body[which];
    w.n_captured = d->node->n_in - 1 - w.body->n_inputs;
    w.ys = d->n_results;
    kiln_tensor **captured = in + w.body->n_inputs, **moves = in + d->node->n_in - 1;
    kiln_tensor **outputs = take(&room, w.body->n_outputs + 1), **of = take(&room, d->node->n_in);
    Pairs with = {take(&room, w.body->n_outputs + 1), take(&room, w.body->n_outputs + 1), 0};
    int n = 0;
    for (uint32_t k = 1; k < d->node->n_in; k++)
        if (wanted(&w, k))
            of[n++] = in[k - 1];
    if (forward) {
        (void)along(&w, in, captured, n, of, moves, outputs, out);
    } else if (loop_inline_body(&w, in, captured, outputs)) {
        for (uint32_t k = 0; k < d->n_results; k++)
            if (dtype_is_float((DType)d->type[k].dtype))
                add_pair(&with, outputs[k], *moves++);
        (void)loop_differentiate(&w, &with, n, of, out);
    }
    os_free(room.at);
}

static void then_back(kiln_tensor **in, kiln_tensor **out, void *user) { branch(in, out, user, 0, false); }
static void else_back(kiln_tensor **in, kiln_tensor **out, void *user) { branch(in, out, user, 1, false); }
static void then_along(kiln_tensor **in, kiln_tensor **out, void *user) { branch(in, out, user, 0, true); }
static void else_along(kiln_tensor **in, kiln_tensor **out, void *user) { branch(in, out, user, 1, true); }

/* Does operand k, or result k, have a direction, or a cotangent? */
static bool has_direction(const Work *w, bool result, uint32_t k)
{
    return result ? dtype_is_float((DType)w->d->type[k].dtype) : k > 0 && wanted(w, k);
}

/* One with the same predicate, on the operands and on seeds, of results or operands: what belongs to the others. */
static void cond_of(const DifferentiableBodies *d, kiln_tensor **in, bool forward, kiln_tensor **seeds, kiln_tensor **got)
{
    Work w = {.d = d, .in = in};
    Room room = loop_room(&w);
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
