/*
 * From requested tensors to a call: one walk over the pending graph that writes structure, signature and facts.
 *
 * The walk is a depth-first search in input order, so its numbering, inputs before all others, is a function of the structure alone. Its
 * stack lies on the heap. When CALL_MAX_NODES pending nodes are complete, they are served as a call of their own (its outputs: the complete
 * nodes that no other complete node uses, and of the others what is dear and used by the rest, too: runtime/eval/saved.c), become inputs,
 * and the walk goes on. What needs no data (constants, ranges, random numbers) is no such output where there is another: computed, it would
 * lie on this device and no graph of another one could use it.
 * It is collected once more, with the nodes that use it.
 */
#include "ir/attr.h"
#include "ir/base/os.h"
#include "runtime/api/mark.h"
#include "runtime/device/device.h"
#include "runtime/eval.h"
#include "runtime/gradient/custom.h"
#include "runtime/record/bodies.h"

#include <stdio.h>
#include <string.h>

bool buf_reserve(void **at, size_t *cap, size_t size, size_t want)
{
    if (want <= *cap)
        return true;
    size_t grown = *cap ? *cap : 64;
    while (grown < want)
        grown *= 2;
    void *block = os_realloc(*at, grown * size);
    if (!block) {
        (void)fail(ST_OUT_OF_MEMORY, "no memory for collecting a graph");
        return false;
    }
    *at = block;
    *cap = grown;
    return true;
}

#define BUF_PUSH(buf, value)                \
    do {                                    \
        if (!BUF_RESERVE(buf, (buf).n + 1)) \
            return ST_OUT_OF_MEMORY;        \
        (buf).at[(buf).n++] = (value);      \
    } while (0)

static bool is_pending(const RtNode *node) { return node_pending(node) && !node->given; }

/*
 * Numbers of nodes. They are written on the nodes; but of a walk that goes without the lock on those alone that this thread recorded. Of others, which are
 * evaluated, it has a list, which is short.
 */
enum { MAX_FOREIGN = 16 };

static bool is_own(const Evaluation *e, const RtNode *node) { return !e->owns || node->owner == rt_thread()->serial; }

static uint32_t *foreign_index(Evaluation *e, const RtNode *node)
{
    size_t i = 0;
    while (i < e->foreign.n && e->foreign.at[i].node != node)
        i++;
    return i < e->foreign.n ? &e->foreign.at[i].index : NULL;
}

static uint32_t *index_of(Evaluation *e, RtNode *node) { return is_own(e, node) ? &node->index : foreign_index(e, node); }

/* Did the walk complete it? */
static bool is_complete(Evaluation *e, const RtNode *node)
{
    return is_own(e, node) ? node->mark == e->call.walk : foreign_index(e, node) != NULL;
}

/* Without the lock: it goes on with it, or not at all. */
static Status give_up(Evaluation *e)
{
    e->given_up = true;
    return ST_INVALID;
}

/* --- writing a call ----------------------------------------------------------------------------------------------- */

static Status put_bytes(Call *call, const void *data, size_t bytes)
{
    if (!BUF_RESERVE(call->structure, call->structure.n + bytes))
        return ST_OUT_OF_MEMORY;
    memcpy(call->structure.at + call->structure.n, data, bytes);
    call->structure.n += bytes;
    return ST_OK;
}

static Status put_ints(Call *call, const int64_t *values, size_t n)
{
    if (!BUF_RESERVE(call->ints, call->ints.n + n))
        return ST_OUT_OF_MEMORY;
    if (n)
        memcpy(call->ints.at + call->ints.n, values, n * sizeof *values);
    call->ints.n += n;
    return ST_OK;
}

/* A value that was nowhere when the op was recorded, and was computed on another device since. */
static Status lies_elsewhere(const Call *call, const RtNode *node)
{
    char here[DEVICE_NAME], there[DEVICE_NAME], place[320] = "";
    if (node->loc.file)
        snprintf(place, sizeof place, " recorded at %s:%d", node->loc.file, node->loc.line);
    return fail(ST_DEVICE, "a value%s was computed on %s and is used on %s; move it with kiln_to", place,
                device_name(node_device(node), there), device_name(call->device, here));
}

static Status put_input(Call *call, RtNode *node, uint32_t number)
{
    if (!node->given && node_device(node) != call->device)
        return lies_elsewhere(call, node);
    const uint8_t head[] = {OP_INPUT, node->rank, node->strided};
    TRY(put_bytes(call, head, sizeof head));
    TRY(put_ints(call, node->dim, node->rank));
    if (node->strided)
        TRY(put_ints(call, node->stride, node->rank));
    BUF_PUSH(call->inputs, number);
    return ST_OK;
}

/* A tensor that a rule of kiln_custom_gradient or a function of a loop was called with stands for values that are not known. */
static Status has_no_value(const RtNode *node)
{
    char place[320] = "";
    if (node->loc.file)
        snprintf(place, sizeof place, " at %s:%d", node->loc.file, node->loc.line);
    const char *what = node->inside == INSIDE_BODY ? "function" : "rule";
    return fail(ST_INVALID, "a tensor that a %s of %s%s was called with, or what was made of it, has no value outside of the %s", what,
                node->api, place, what);
}

static Status put_bodies(Call *call, const RtNode *node);

static Status put_what(Call *call, const RtNode *node)
{
    if (node->op == OP_INPUT)
        return has_no_value(node);
    const Callee *callee = node->op == OP_CUSTOM ? bodies_of(node)->callee : NULL;
    call->ordered |= callee && callee->ordered;
    const uint8_t head[] = {node->op, (uint8_t)(node->rank | node->phase << 4 | node->checkpoint << 6)};
    TRY(put_bytes(call, head, sizeof head));
    TRY(put_bytes(call, &node->attr, sizeof node->attr));
    return put_bytes(call, &node->n_in, sizeof node->n_in);
}

/* Facts, its own before those of its bodies. */
static Status put_numbers(Call *call, const RtNode *node)
{
    TRY(put_ints(call, node->facts, node->n_facts));
    if (node->op == OP_SCALAR)
        BUF_PUSH(call->scalars, node->scalar);
    return node_has_bodies(node) ? put_bodies(call, node) : ST_OK;
}

/* What a node in a body is, and what it is made of: the dtype too, which is nowhere else. */
static Status put_made(Call *call, const RtNode *node, const Slot *operand)
{
    TRY(put_what(call, node));
    TRY(put_bytes(call, &node->dtype, sizeof node->dtype));
    TRY(put_bytes(call, operand, sizeof *operand * node->n_in));
    return put_numbers(call, node);
}

static Status put_callee(Call *call, const Callee *callee)
{
    TRY(put_bytes(call, &callee->bytes, sizeof callee->bytes));
    TRY(put_bytes(call, callee->attributes, callee->bytes));
    TRY(put_bytes(call, &callee->image, sizeof callee->image));
    TRY(put_bytes(call, callee->name, strlen(callee->name) + 1));
    return put_bytes(call, callee->version, strlen(callee->version) + 1);
}

static Status put_bodies(Call *call, const RtNode *node)
{
    const Bodies *bodies = bodies_of(node);
    TRY(put_bytes(call, &bodies->n_bodies, sizeof bodies->n_bodies));
    if (bodies->callee)
        TRY(put_callee(call, bodies->callee));
    for (uint32_t b = 0; b < bodies->n_bodies; b++) {
        const RtBody *body = &bodies->body[b];
        const uint32_t head[] = {body->n_inputs, body->n_made, body->n_outputs};
        const Slot *operand = body->operand;
        TRY(put_bytes(call, head, sizeof head));
        for (uint32_t m = 0; m < body->n_made; operand += body->made[m++]->n_in)
            TRY(put_made(call, body->made[m], operand));
        TRY(put_bytes(call, body->output, sizeof *body->output * body->n_outputs));
    }
    return ST_OK;
}

static Status put_op(Evaluation *e, const RtNode *node)
{
    TRY(put_what(&e->call, node));
    for (uint32_t i = 0; i < node->n_in; i++)
        TRY(put_bytes(&e->call, index_of(e, node->in[i]), sizeof(uint32_t)));
    return put_numbers(&e->call, node);
}

/* The marks follow the dtypes: of which node, how many bytes, what marks_signature says. */
static Status put_marks(Call *call)
{
    for (size_t k = 0; k < call->nodes.n; k++) {
        const RtNode *node = call->nodes.at[k];
        if (!node->marks)
            continue;
        uint8_t marks[MARKS_BYTES];
        uint32_t head[] = {(uint32_t)k, (uint32_t)marks_signature(node, marks)};
        if (!BUF_RESERVE(call->signature, call->signature.n + sizeof head + head[1]))
            return ST_OUT_OF_MEMORY;
        memcpy(call->signature.at + call->signature.n, head, sizeof head);
        memcpy(call->signature.at + call->signature.n + sizeof head, marks, head[1]);
        call->signature.n += sizeof head + head[1];
    }
    return ST_OK;
}

/* Inputs stand first, in the order in which the walk met them, as in the text of every graph; what is behind them keeps its order. The
 * ordered list is made behind the old one, in the same room. */
static Status inputs_first(Evaluation *e)
{
    Call *call = &e->call;
    size_t n = call->nodes.n, at = n, inputs = 0;
    while (inputs < n && !is_pending(call->nodes.at[inputs]))
        inputs++;
    bool ordered = true;
    for (size_t i = inputs; i < n && ordered; i++)
        ordered = is_pending(call->nodes.at[i]);
    if (ordered)
        return ST_OK;
    if (!BUF_RESERVE(call->nodes, 2 * n))
        return ST_OUT_OF_MEMORY;
    for (int pending = 0; pending < 2; pending++)
        for (size_t i = 0; i < n; i++) {
            RtNode *node = call->nodes.at[i];
            if (is_pending(node) != pending)
                continue;
            *index_of(e, node) = (uint32_t)(at - n);
            call->nodes.at[at++] = node;
        }
    for (size_t k = 0; k < call->outputs.n; k++)
        call->outputs.at[k] = *index_of(e, call->nodes.at[call->outputs.at[k]]);
    memmove(call->nodes.at, call->nodes.at + n, n * sizeof *call->nodes.at);
    return ST_OK;
}

/* Writes everything of the nodes in call->nodes, then the outputs; makes key and facts. */
static Status write_call(Evaluation *e, const uint8_t *keyed, size_t keyed_bytes)
{
    Call *call = &e->call;
    call->structure.n = call->signature.n = call->ints.n = call->scalars.n = call->inputs.n = 0;
    call->ordered = false;
    TRY(inputs_first(e));
    TRY(put_bytes(call, keyed, keyed_bytes));
    bool marked = false;
    for (size_t i = 0; i < call->nodes.n; i++) {
        RtNode *node = call->nodes.at[i];
        marked |= node->marks != NULL;
        BUF_PUSH(call->signature, node->dtype);
        TRY(is_pending(node) ? put_op(e, node) : put_input(call, node, (uint32_t)i));
    }
    if (marked)
        TRY(put_marks(call));
    TRY(put_bytes(call, call->outputs.at, call->outputs.n * sizeof *call->outputs.at));
    call->key = (CallKey){hash128(call->structure.at, call->structure.n), call->structure.at, call->signature.at, call->structure.n,
                          call->signature.n};
    call->facts = (Facts){call->ints.at, call->scalars.at, (uint32_t)call->ints.n, (uint32_t)call->scalars.n};
    return ST_OK;
}

/* --- the walk -------------------------------------------------------------------------------------------------------- */

static void start_call(Evaluation *e)
{
    e->call.walk = evaluation_next_number(e);
    e->call.again = e->call.reads = (Again){0};
    e->call.nodes.n = e->call.outputs.n = e->used.n = e->n_pending = e->foreign.n = 0;
    e->keeps = false;
}

static void meet_again(Again *again, const RtNode *node)
{
    if (node->mark < again->walk)
        return;
    if (node->mark > again->walk)
        *again = (Again){.walk = node->mark};
    again->n++;
    again->bytes += (size_t)node_elements(node) * dtype_bytes((DType)node->dtype);
    again->node = node;
}

/* Does another thread compute a call that this pending node is part of? Then the walk is given up, for the time being (runtime/eval/lock.c). */
static Status look_for_claim(Evaluation *e, const RtNode *node)
{
    if (!node->mark || !eval_claimed(node->mark))
        return ST_OK;
    e->awaits = node->mark;
    return ST_INVALID;
}

/* Is it this thread's alone, as far as a walk without the lock can see? What it is made of is looked at by others only under the lock. */
static Status look_for_owner(Evaluation *e, const RtNode *node)
{
    bool alone = node->owner == rt_thread()->serial && !node->mark && !node->held && !node->keep;
    return alone && node->op != OP_RESULT && node->op != OP_CUSTOM && !node_has_bodies(node) ? ST_OK : give_up(e);
}

static Status complete_node(Evaluation *e, RtNode *node)
{
    uint32_t index = (uint32_t)e->call.nodes.n;
    if (!is_own(e, node)) {
        if (e->foreign.n == MAX_FOREIGN)
            return give_up(e);
        BUF_PUSH(e->foreign, ((Foreign){node, index}));
    } else {
        if (node->mark && node->op != OP_SCALAR)
            meet_again(is_pending(node) ? &e->call.again : &e->call.reads, node);
        node->mark = e->call.walk;
        node->index = index;
    }
    BUF_PUSH(e->call.nodes, node);
    BUF_PUSH(e->used, false);
    if (is_pending(node)) {
        e->n_pending += node_has_bodies(node) ? 1 + bodies_of(node)->n_nodes : 1;
        e->keeps |= node->keep;
        for (uint32_t i = 0; i < node->n_in; i++)
            e->used.at[*index_of(e, node->in[i])] = true;
    }
    return ST_OK;
}

/* All results of a loop or branch that anybody may still ask for are computed with it: it runs once. */
static Status complete_results(Evaluation *e, RtNode *node)
{
    const Bodies *bodies = bodies_of(node);
    if (!BUF_RESERVE(e->results_held, e->results_held.n + bodies->n_results))
        return ST_OUT_OF_MEMORY;
    for (uint32_t k = 0; k < bodies->n_results; k++) {
        RtNode *result = bodies_result(node, k);
        if (!result)
            continue;
        e->results_held.at[e->results_held.n++] = result;
        if (is_pending(result) && result->mark != e->call.walk) {
            TRY(look_for_claim(e, result));
            TRY(complete_node(e, result));
        }
        if (is_pending(result))
            BUF_PUSH(e->call.outputs, result->index);
    }
    return ST_OK;
}

/* What was only looked at is an input of the calls that follow. */
static Status give_outputs(Evaluation *e)
{
    for (size_t k = 0; k < e->call.outputs.n; k++) {
        RtNode *node = e->call.nodes.at[e->call.outputs.at[k]];
        if (!is_pending(node))
            continue;
        BUF_PUSH(e->given, node);
        node->given = true;
    }
    return ST_OK;
}

void collect_end(Evaluation *e)
{
    for (size_t i = 0; i < e->given.n; i++)
        e->given.at[i]->given = false;
    e->given.n = 0;
}

/* Is node i none of the first n outputs? */
static bool not_listed(const Call *call, size_t n, uint32_t i)
{
    bool listed = false;
    for (size_t k = 0; k < n && !listed; k++)
        listed = call->outputs.at[k] == i;
    return !listed;
}

static void hold_outputs(const Call *c)
{
    for (size_t k = 0; k < c->outputs.n; k++)
        node_retain(call_output(c, k));
}

static void release_outputs(const Call *c)
{
    for (size_t k = 0; k < c->outputs.n; k++)
        node_release(call_output(c, k));
}

/* Serves what is complete; afterwards those nodes have values, or are taken to have. An output that only others of them use goes when they let
 * their inputs go, so all are held meanwhile: call_donated counts the inputs of outputs as going anyway. */
static Status cut(Evaluation *e, const uint8_t *keyed, size_t keyed_bytes, ServeCall *serve, void *user)
{
    size_t listed = e->call.outputs.n; /* results of loops and branches */
    for (int anywhere = 0; anywhere < 2 && e->call.outputs.n == listed && (!listed || !anywhere); anywhere++)
        for (size_t i = 0; i < e->call.nodes.n; i++)
            if (!e->used.at[i] && not_listed(&e->call, listed, (uint32_t)i) && is_pending(e->call.nodes.at[i]) &&
                (anywhere || e->call.nodes.at[i]->device != DEVICE_ANY))
                BUF_PUSH(e->call.outputs, (uint32_t)i);
    TRY(call_save(e, true));
    TRY(write_call(e, keyed, keyed_bytes));
    hold_outputs(&e->call);
    Status status = serve(e, &e->call, user);
    if (status == ST_OK)
        status = give_outputs(e);
    release_outputs(&e->call);
    if (status == ST_OK)
        start_call(e);
    return status;
}

static Status walk(Evaluation *e, RtNode *const *roots, uint32_t n_roots, int device, const uint8_t *keyed, size_t keyed_bytes,
                   ServeCall *serve, void *user)
{
    e->stack.n = 0;
    e->call.device = device;
    e->whole = false;
    start_call(e);
    for (uint32_t i = n_roots; i-- > 0;)
        BUF_PUSH(e->stack, roots[i]);
    while (e->stack.n) {
        RtNode *node = e->stack.at[e->stack.n - 1];
        bool ready = true, complete = is_complete(e, node);
        if (!complete && is_pending(node)) {
            TRY(e->owns ? look_for_owner(e, node) : look_for_claim(e, node));
            for (uint32_t i = node->n_in; i-- > 0;)
                if (!is_complete(e, node->in[i])) {
                    BUF_PUSH(e->stack, node->in[i]);
                    ready = false;
                }
        }
        if (!ready)
            continue;
        e->stack.n--;
        if (complete)
            continue;
        TRY(complete_node(e, node));
        if (node_has_bodies(node) && !e->alone)
            TRY(complete_results(e, node));
        if (e->n_pending >= CALL_MAX_NODES && e->stack.n)
            TRY(e->owns ? give_up(e) : cut(e, keyed, keyed_bytes, serve, user));
    }
    for (uint32_t i = 0; i < n_roots; i++)
        if (is_pending(roots[i])) {
            if (roots[i]->mark != e->call.walk) /* complete before the last cut, but not an output of it: once more */
                return walk(e, roots, n_roots, device, keyed, keyed_bytes, serve, user);
            bool listed = false;
            for (size_t k = 0; k < e->call.outputs.n && !listed; k++)
                listed = e->call.nodes.at[e->call.outputs.at[k]] == roots[i];
            if (!listed)
                BUF_PUSH(e->call.outputs, roots[i]->index);
        }
    if (e->call.outputs.n == 0)
        return ST_OK;
    TRY(call_save(e, false));
    TRY(write_call(e, keyed, keyed_bytes));
    e->whole = true;
    return serve(e, &e->call, user);
}

Status collect(Evaluation *e, RtNode *const *roots, uint32_t n_roots, int device, const uint8_t *keyed, size_t keyed_bytes,
               ServeCall *serve, void *user)
{
    size_t before = e->results_held.n;
    Status status = walk(e, roots, n_roots, device, keyed, keyed_bytes, serve, user);
    while (e->results_held.n > before)
        node_release(e->results_held.at[--e->results_held.n]);
    return status;
}

void call_renumber(const Call *call)
{
    for (size_t i = 0; i < call->nodes.n; i++)
        call->nodes.at[i]->index = (uint32_t)i;
}

/* --- the call as a graph ------------------------------------------------------------------------------------------------ */

typedef struct Building {
    BodiesBuild build; /* first */
    const Call *call;
    size_t scalar; /* the next one */
} Building;

static uint64_t next_scalar(BodiesBuild *build, const RtNode *node)
{
    Building *b = (Building *)(void *)build;
    (void)node; /* a replay has others than it */
    return b->call->facts.scalars[b->scalar++];
}

Graph *call_graph(const Call *c, Arena *arena)
{
    Graph *g = graph_new(arena);
    Ref *ref = ARENA_ARRAY(arena, Ref, c->nodes.n + 1);
    Building b = {.build = {.arena = arena, .scalar = next_scalar, .origin = (uint32_t)c->nodes.n}, .call = c};
    for (size_t i = 0; i < c->nodes.n; i++) {
        const RtNode *node = c->nodes.at[i];
        g->origin = (uint32_t)i;
        if (!is_pending(node)) {
            g->phase = node->phase;
            g->checkpoint = node->checkpoint;
            ref[i] = graph_add_input(g, (DType)node->dtype, node->rank, node->dim, node->strided ? node->stride : NULL, node->loc);
            graph_node(g, ref[i])->constant = node->marks && node->marks->constant;
            continue;
        }
        Ref *in = ARENA_ARRAY(arena, Ref, node->n_in);
        for (uint32_t k = 0; k < node->n_in; k++)
            in[k] = ref[node->in[k]->index];
        ref[i] = bodies_build(&b.build, g, node, in);
    }
    g->phase = g->checkpoint = 0;
    for (size_t i = 0; i < c->outputs.n; i++)
        graph_output(g, ref[c->outputs.at[i]]);
    return g;
}

typedef struct Sought {
    uint32_t left;
    const RtNode *found;
} Sought;

static void count_down(const RtNode *node, void *user)
{
    Sought *s = user;
    if (!s->found && s->left-- == 0)
        s->found = node;
}

const RtNode *call_node(const Call *c, uint32_t number)
{
    if (number < c->nodes.n)
        return c->nodes.at[number];
    Sought sought = {.left = number - (uint32_t)c->nodes.n};
    for (size_t i = 0; i < c->nodes.n && !sought.found; i++)
        if (is_pending(c->nodes.at[i]) && node_has_bodies(c->nodes.at[i]))
            bodies_visit(c->nodes.at[i], count_down, &sought);
    return sought.found;
}

typedef struct ScalarVisit {
    void (*visit)(const RtNode *scalar, size_t k, void *user);
    void *user;
    size_t next;
} ScalarVisit;

static void visit_scalar(const RtNode *node, void *user)
{
    ScalarVisit *v = user;
    if (node->op == OP_SCALAR)
        v->visit(node, v->next++, v->user);
}

void call_scalars(const Call *c, void (*visit)(const RtNode *scalar, size_t k, void *user), void *user)
{
    ScalarVisit v = {visit, user, 0};
    for (size_t i = 0; i < c->nodes.n; i++) {
        const RtNode *node = c->nodes.at[i];
        if (!is_pending(node))
            continue;
        visit_scalar(node, &v);
        if (node_has_bodies(node))
            bodies_visit(node, visit_scalar, &v);
    }
}

static void note_argument(const RtNode *scalar, size_t k, void *user)
{
    bool *varies = user;
    varies[k] |= scalar->attr.mode == SCALAR_ARGUMENT;
}

void call_arguments(const Call *c, bool *varies) { call_scalars(c, note_argument, varies); }

/*
 * An input's storage may be overwritten only when nobody can read it afterwards: every reference to its node comes from nodes of this
 * call that are outputs (they let their inputs go once they have values, unless they keep them) or that die with those.
 */
const bool *call_donated(Evaluation *e, const Call *c)
{
    size_t n = c->nodes.n + 1;
    if (!BUF_RESERVE(e->donated, c->inputs.n + 1) || !BUF_RESERVE(e->output, n) || !BUF_RESERVE(e->going, n))
        return NULL;
    if (!c->held) { /* who holds the references has to be counted */
        memset(e->output.at, 0, n);
        memset(e->going.at, 0, n * sizeof *e->going.at);
        for (size_t i = 0; i < c->outputs.n; i++)
            e->output.at[c->outputs.at[i]] = true;
        for (size_t i = c->nodes.n; i-- > 0;) {
            const RtNode *node = c->nodes.at[i];
            bool dies = atomic_load(&node->refs) == e->going.at[i];
            if (is_pending(node) && ((e->output.at[i] && !node->keep) || dies))
                for (uint32_t k = 0; k < node->n_in; k++)
                    e->going.at[*index_of(e, node->in[k])]++;
        }
    }
    for (size_t k = 0; k < c->inputs.n; k++) {
        const RtNode *node = c->nodes.at[c->inputs.at[k]];
        const Storage *storage = atomic_load(&node->storage);
        uint32_t ours = c->held ? c->held[k] : e->going.at[c->inputs.at[k]];
        e->donated.at[k] = atomic_load(&node->refs) == ours && !storage->borrowed && !node->strided && atomic_load(&storage->refs) == 1;
    }
    return e->donated.at;
}
