/*
 * Recording functions as bodies (bodies.h).
 *
 *   run       the function, once, on placeholders, as kiln_checkpoint's is: it may only record
 *   harvest   what its outputs are made of: nodes that it recorded, operands first; all else is captured and becomes an operand
 *   make      one block with both bodies, the node, its results
 *
 * Compiled with -fexceptions, as functions of kiln_function are called.
 */
#define KILN_NO_LOCATIONS
#include "runtime/record/bodies.h"
#include "ir/attr.h"
#include "ir/base/os.h"
#include "ir/body.h"
#include "jit/options.h"
#include "runtime/device/device.h"
#include "runtime/gradient/body.h"
#include "runtime/gradient/custom.h"
#include "runtime/gradient/param.h"
#include "ir/base/pointer_map.h"
#include "runtime/gradient/recording.h"
#include "runtime/mode/finite.h"

#include <string.h>
#include <threads.h>

#define CLEANUP(function) __attribute__((cleanup(function)))

/* ---- results ---- */

static void lock(BodyResults *of)
{
    while (atomic_flag_test_and_set_explicit(&of->busy, memory_order_acquire))
        thrd_yield();
}

static void unlock(BodyResults *of) { atomic_flag_clear_explicit(&of->busy, memory_order_release); }

static void forget(const RtNode *result)
{
    if (result->results->result[result->attr.n] == result)
        result->results->result[result->attr.n] = NULL;
}

RtNode *bodies_result(const RtNode *node, uint32_t k)
{
    BodyResults *of = node->results;
    if (!of)
        return NULL;
    lock(of);
    RtNode *result = of->result[k];
    if (result)
        node_retain(result);
    unlock(of);
    return result;
}

bool bodies_drop_result(RtNode *result)
{
    lock(result->results);
    bool last = atomic_fetch_sub_explicit(&result->refs, 1, memory_order_acq_rel) == 1;
    if (last)
        forget(result);
    unlock(result->results);
    return last;
}

void bodies_forget_result(RtNode *result)
{
    lock(result->results);
    forget(result);
    unlock(result->results);
}

void body_results_release(BodyResults *results)
{
    if (results && atomic_fetch_sub_explicit(&results->refs, 1, memory_order_acq_rel) == 1)
        os_free(results);
}

static BodyResults *body_results_new(uint32_t n)
{
    BodyResults *results = os_calloc(1, sizeof *results + sizeof(RtNode *) * n);
    if (!results)
        return NULL;
    atomic_init(&results->refs, 1);
    atomic_flag_clear(&results->busy);
    return results;
}

void bodies_visit(const RtNode *node, BodiesVisit *visit, void *user)
{
    const Bodies *bodies = bodies_of(node);
    for (uint32_t b = 0; b < bodies->n_bodies; b++)
        for (uint32_t m = 0; m < bodies->body[b].n_made; m++) {
            const RtNode *made = bodies->body[b].made[m];
            visit(made, user);
            if (node_has_bodies(made))
                bodies_visit(made, visit, user);
        }
}

/* A result of kiln_custom_gradient: how many nodes its derivative takes; else 0. */
static uint32_t body_n_behind(const RtNode *node)
{
    return node->held && !node_has_bodies(node) ? custom_of(node)->n_behind + custom_of(node)->n_out : 0;
}

/* ---- as graphs ---- */

/* The body as a graph, for a node that is about to be added to `around`. */
static Graph *build_body(BodiesBuild *b, Graph *around, const Node *node, uint32_t which, const RtBody *from)
{
    Graph *g = body_new(around, node, which);
    Ref *made = ARENA_ARRAY(b->arena, Ref, from->n_made + 1);
    const Slot *operand = from->operand;
#define REF(of)                                                   \
    (slot_list(of) == SLOT_MADE    ? made[slot_index(of)]         \
     : slot_list(of) == SLOT_PLACE ? g->inputs.at[slot_index(of)] \
                                   : g->inputs.at[from->n_inputs + slot_index(of)])
    for (uint32_t m = 0; m < from->n_made; m++) {
        const RtNode *x = from->made[m];
        Ref *in = ARENA_ARRAY(b->arena, Ref, x->n_in + 1);
        for (uint32_t k = 0; k < x->n_in; k++, operand++)
            in[k] = REF(*operand);
        g->origin = b->origin++;
        made[m] = bodies_build(b, g, x, in);
    }
    for (uint32_t k = 0; k < from->n_outputs; k++)
        graph_output(g, REF(from->output[k]));
#undef REF
    return g;
}

Ref bodies_build(BodiesBuild *b, Graph *g, const RtNode *node, const Ref *in)
{
    g->phase = node->phase;
    g->checkpoint = node->checkpoint;
    if (node->op == OP_SCALAR)
        return graph_add_scalar(g, (DType)node->dtype, b->scalar(b, node), node->loc);
    if (node->op == OP_RESULT)
        return graph_add_result(g, in[0], node->attr.n, node->loc);
    Dim *facts = ARENA_ARRAY(b->arena, Dim, node->n_facts);
    for (uint32_t k = 0; k < node->n_facts; k++) {
        FactLabel label = fact_label((Op)node->op, &node->attr, k);
        facts[k] = dim_fact(g, node->facts[k], label.kind, label.axis, g->nodes.n);
    }
    if (!node_has_bodies(node))
        return graph_add(g, (Op)node->op, (DType)node->dtype, in, node->n_in, &node->attr, facts, node->n_facts, node->loc);
    const Bodies *bodies = bodies_of(node);
    Graph *made[2];
    Node with = {
        .op = node->op, .attr = node->attr, .in = (Ref *)(uintptr_t)in, .n_in = node->n_in, .fact = facts, .n_facts = node->n_facts};
    with.loc = node->loc;
    with.n_bodies = bodies->n_bodies;
    with.bodies = made;
    with.callee = bodies->callee;
    uint32_t origin = g->origin;
    for (uint32_t k = 0; k < bodies->n_bodies; k++)
        made[k] = build_body(b, g, &with, k, &bodies->body[k]);
    g->origin = origin;
    g->phase = node->phase;
    g->checkpoint = node->checkpoint;
    return graph_add_body(g, &with);
}

/* ---- once more ---- */

RtNode *bodies_again(Rec *r, const RtNode *of, RtNode *const *in)
{
    RtNode *node = node_new((Op)of->op, (DType)of->dtype, of->rank, of->dim, of->n_in, of->n_facts);
    if (node) {
        node->attr = of->attr;
        if (of->n_facts)
            memcpy(node->facts, of->facts, sizeof *of->facts * of->n_facts);
        node->held = of->held;
        atomic_fetch_add(&node->held->refs, 1);
        node->results = body_results_new(bodies_of(of)->n_results);
    }
    bool fits = node && node->results;
    node = rec_finish(r, node, in);
    return fits || !node ? node : rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
}

RtNode *bodies_call_new(Rec *r, const Callee *callee, uint32_t n_in, RtNode *const *in, uint32_t n_results, const Shape *type)
{
    size_t name = strlen(callee->name) + 1, version = strlen(callee->version) + 1;
    struct Block {
        Bodies bodies; /* first */
        Callee callee;
        _Alignas(max_align_t) char text[]; /* attributes first: they may be a struct of the user's */
    } *block = os_calloc(1, sizeof *block + name + version + callee->bytes);
    uint32_t n_facts = 0;
    for (uint32_t k = 0; k < n_results; k++)
        n_facts += type[k].rank;
    RtNode *node = block ? node_new(OP_CUSTOM, DT_BOOL, 0, (const int64_t[]){0}, n_in, n_facts) : NULL;
    if (!node) {
        os_free(block);
        return rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
    }
    block->callee = *callee;
    if (callee->bytes)
        memcpy(block->text, callee->attributes, callee->bytes);
    block->callee.attributes = block->text;
    block->callee.name = memcpy(block->text + callee->bytes, callee->name, name);
    block->callee.version = memcpy(block->text + callee->bytes + name, callee->version, version);
    block->bodies = (Bodies){.n_results = n_results, .callee = &block->callee};
    atomic_init(&block->bodies.held.refs, 1);
    node->held = &block->bodies.held;
    node->attr.n = n_results;
    for (uint32_t k = 0, fact = 0; k < n_results; fact += type[k++].rank) {
        node->attr.custom.type[k] = (uint8_t)(type[k].dtype << 4 | type[k].rank);
        memcpy(node->facts + fact, type[k].dim, sizeof *node->facts * type[k].rank);
    }
    node->results = body_results_new(n_results);
    bool fits = node->results != NULL;
    node = rec_finish(r, node, in);
    return fits || !node ? node : rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
}

Shape call_result_type(const RtNode *call, uint32_t k)
{
    Shape type = {.dtype = call->attr.custom.type[k] >> 4, .rank = call->attr.custom.type[k] & 15};
    const int64_t *dim = call->facts;
    for (uint32_t before = 0; before < k; before++)
        dim += call->attr.custom.type[before] & 15;
    memcpy(type.dim, dim, sizeof *dim * type.rank);
    return type;
}

RtNode *bodies_result_new(Rec *r, RtNode *node, uint32_t k, const Shape *type)
{
    bool tracked = false;
    for (uint32_t i = 0; i < node->n_in; i++)
        tracked |= node->in[i]->tracked && !node->in[i]->stop;
    RtNode *result = node_new(OP_RESULT, (DType)type->dtype, type->rank, type->dim, 1, 0);
    if (result)
        result->attr.n = k;
    if (!(result = rec_finish(r, result, &node)))
        return NULL;
    result->body = node->body; /* wherever it is asked for */
    result->tracked = tracked && dtype_is_float((DType)type->dtype);
    bool kept = result->tracked || (tracked && node->op == OP_CUSTOM && bodies_of(node)->callee->rule); /* rules read all of them */
    result->keep = kept && rec_is_eager(r);
    if (kept && r->thread->keeper && !recording_add(r->thread->keeper, result))
        return rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
    result->results = node->results;
    atomic_fetch_add_explicit(&result->results->refs, 1, memory_order_relaxed);
    result->results->result[k] = result;
    return result;
}

RtNode *bodies_once_more(Rec *r, const RtNode *of, RtNode *const *in)
{
    r->api = of->api;
    r->loc = of->loc;
    if (node_has_bodies(of))
        return bodies_again(r, of, in);
    Shape type = {.dtype = of->dtype, .rank = of->rank};
    memcpy(type.dim, of->dim, sizeof *of->dim * of->rank);
    if (of->op == OP_RESULT)
        return bodies_result_new(r, in[0], of->attr.n, &type);
    RtNode *node = node_new((Op)of->op, (DType)of->dtype, of->rank, of->dim, of->n_in, of->n_facts);
    if (node) {
        node->attr = of->attr;
        node->scalar = of->scalar;
        node->weak = of->weak;
        if (of->n_facts)
            memcpy(node->facts, of->facts, sizeof *of->facts * of->n_facts);
    }
    node = rec_finish(r, node, in);
    return node && of->stop ? rec_stop(node) : node;
}

bool bodies_have_rule(const RtNode *node) { return node_has_bodies(node) && node->op != OP_CUSTOM && bodies_of(node)->body[0].behind; }

bool bodies_stacked(const RtNode *node, uint32_t k)
{
    return node->op == OP_LOOP && bodies_of(node)->n_bodies == 1 && bodies_have_rule(node) &&
           k >= bodies_of(node)->n_results - node->attr.loop.carries;
}

/* What an output of a body is, as a value of one step. */
static Shape type_of_slot(const RtNode *node, const RtBody *body, Slot slot)
{
    const bool loop = node->op == OP_LOOP;
    const uint32_t at = slot_index(slot), n_given = loop ? node->attr.loop.carries + node->attr.loop.xs : 1 + body->n_inputs;
    const RtNode *of = slot_list(slot) == SLOT_MADE       ? body->made[at]
                       : slot_list(slot) == SLOT_CAPTURED ? node->in[n_given + at]
                       : !loop                            ? node->in[1 + at]
                       : at > 0                           ? node->in[at - 1]
                                                          : NULL;
    const bool sliced = slot_list(slot) == SLOT_PLACE && loop && at > node->attr.loop.carries;
    Shape type = {.dtype = of ? of->dtype : DT_I64, .rank = of ? (uint8_t)(of->rank - sliced) : 0};
    if (of)
        memcpy(type.dim, of->dim + sliced, sizeof *of->dim * type.rank);
    return type;
}

Shape bodies_result_type(const RtNode *node, uint32_t k)
{
    const RtBody *body = &bodies_of(node)->body[0];
    Shape type = type_of_slot(node, body, body->output[k]);
    if (node->op == OP_LOOP && k >= node->attr.loop.carries) {
        memmove(type.dim + 1, type.dim, sizeof *type.dim * type.rank);
        type.dim[0] = node->facts[0];
        type.rank++;
    }
    return type;
}

bool bodies_inline(Rec *r, const RtBody *body, RtNode *const *in, RtNode *const *captured, RtNode **out)
{
    const Rec before = *r;
    uint32_t most = 1;
    for (uint32_t m = 0; m < body->n_made; m++) {
        uint32_t n = body->made[m]->n_in + body_n_behind(body->made[m]);
        most = n > most ? n : most;
    }
    RtNode **made = os_alloc(sizeof *made * ((size_t)body->n_made + most));
    CustomsAgain customs = {0};
    const Slot *operand = body->operand, *behind = body->behind;
    if (!made)
        rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
#define NODE(of) \
    (slot_list(of) == SLOT_MADE ? made[slot_index(of)] : slot_list(of) == SLOT_PLACE ? in[slot_index(of)] : captured[slot_index(of)])
    for (uint32_t m = 0; m < body->n_made && r->status == ST_OK; m++) {
        RtNode **operands = made + body->n_made;
        const RtNode *of = body->made[m];
        uint32_t n = of->n_in, more = behind ? body_n_behind(of) : 0;
        for (uint32_t k = 0; k < n; k++, operand++)
            operands[k] = NODE(*operand);
        for (uint32_t k = 0; k < more; k++, behind++)
            operands[n + k] = NODE(*behind);
        made[m] = more ? custom_again(r, &customs, of, operands + n) : bodies_once_more(r, of, operands);
    }
    for (uint32_t k = 0; k < body->n_outputs && r->status == ST_OK; k++)
        out[k] = NODE(body->output[k]);
#undef NODE
    customs_again_end(&customs);
    os_free(made);
    r->api = before.api;
    r->loc = before.loc;
    return r->status == ST_OK;
}

/* ---- running a function ---- */

typedef struct Harvest {
    VEC(RtNode *) made;
    VEC(Slot) operand, output, behind;
} Harvest;

struct BodyMaking {
    Rec *r;
    const BodiesRequest *request;
    Arena arena;
    RtNode **place[2]; /* of each function: placeholders, and behind them what it gave; references */
    uint32_t n_place[2];
    LoopBody loop;
    Harvest harvest[2];
    VEC(RtNode *) captured;
    PointerMap captured_at;
    RtNode **in; /* operands */
    Bodies *bodies;
    RtNode *pattern;
    uint32_t n_results; /* with those that are not the user's */
    Shape *type;
    bool tracked; /* a gradient may be asked for through it: ... */
    bool rule;    /* ... by a rule that is recorded at once, not where a walk comes to it (bodies_rule) */
};

static void release_all(RtNode **node, uint32_t n)
{
    for (uint32_t k = 0; node && k < n; k++)
        node_release(node[k]);
}

/* Of bodies that no node has. */
static void drop_bodies(Bodies *bodies)
{
    if (!bodies)
        return;
    release_all(bodies->held.node, bodies->held.n);
    os_free(bodies);
}

static void end_making(BodyMaking *m)
{
    RtThread *t = m->r->thread;
    if (t->loop == &m->loop)
        t->loop = m->loop.outer;
    for (int b = 0; b < 2; b++) {
        release_all(m->place[b], m->n_place[b]);
        os_free(m->place[b]);
    }
    node_release(m->pattern);
    drop_bodies(m->bodies);
    arena_free(&m->arena);
}

/* Something that stands for a value inside of a body. */
static RtNode *placeholder(const BodyMaking *m, const Shape *type)
{
    RtNode *node = node_new(OP_INPUT, (DType)type->dtype, type->rank, type->dim, 0, 0);
    if (!node)
        return NULL;
    node->device = (uint8_t)m->r->device;
    node->inside = INSIDE_BODY;
    node->api = m->r->api;
    node->loc = m->r->loc;
    if (dtype_is_float((DType)type->dtype)) { /* derivatives may be asked for in a body, too */
        node->tracked = true;
        node->leaf = param_new_id();
    }
    return node;
}

static Status make_strong(BodyMaking *m, const BodyFunction *f, RtNode **out)
{
    Rec r = rec_begin(m->r->api, m->r->loc.file, m->r->loc.line);
    for (uint32_t k = 0; k < f->n_out && r.status == ST_OK; k++) {
        RtNode *strong = rec_strong(&r, out[k]);
        if (!strong || strong == out[k])
            continue;
        node_retain(strong);
        node_release(out[k]);
        out[k] = strong;
    }
    rec_end(&r, NULL);
    return r.status;
}

static Status run_function(BodyMaking *m, uint32_t which)
{
    const BodyFunction *f = &m->request->function[which];
    RtNode **place = m->place[which] = os_calloc((size_t)f->n_in + f->n_out + 1, sizeof(RtNode *));
    uint32_t *n = &m->n_place[which];
    if (!place)
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    for (; *n < f->n_in; (*n)++)
        if (!(place[*n] = placeholder(m, &f->in[*n])))
            return ST_OUT_OF_MEMORY;
    m->loop.index = f->counts ? place[0] : NULL;
    const BodyRun run = {.api = m->r->api,
                         .loc = m->r->loc,
                         .n_in = f->n_in,
                         .n_out = f->n_out,
                         .in = place,
                         .out = place + f->n_in,
                         .call = f->call,
                         .with = f->with,
                         .hidden = f->hidden,
                         .custom = INSIDE_BODY};
    TRY(body_run(&run));
    *n += f->n_out;
    TRY(make_strong(m, f, run.out));
    return m->request->check ? m->request->check(m->request->user, which, run.out) : ST_OK;
}

/* ---- harvesting what it recorded ---- */

static bool is_inside(const BodyMaking *m, const RtNode *node) { return node->body == m->loop.id && node_pending(node); }

static Slot capture(BodyMaking *m, RtNode *node)
{
    uint32_t at = pointer_map_get(&m->captured_at, node);
    if (at == NOT_MAPPED) {
        at = (uint32_t)m->captured.n;
        pointer_map_put(&m->arena, &m->captured_at, node, at);
        VEC_PUSH(&m->arena, m->captured, node);
    }
    return slot_of(SLOT_CAPTURED, at);
}

/* What a node is in the body; those inside that were not met yet: NOT_MAPPED. */
static Slot ref_of(BodyMaking *m, const PointerMap *seen, RtNode *node)
{
    uint32_t ref = pointer_map_get(seen, node);
    return ref == NOT_MAPPED && !is_inside(m, node) ? capture(m, node) : ref;
}

/* The nodes that a node of a body is made of, and behind its operands those that its derivative takes, if it has one of its own. */
static RtNode *operand_at(const RtNode *node, uint32_t k) { return k < node->n_in ? node->in[k] : node->held->node[k - node->n_in]; }

static void harvest(BodyMaking *m, uint32_t which)
{
    const BodyFunction *f = &m->request->function[which];
    Harvest *h = &m->harvest[which];
    RtNode **place = m->place[which];
    PointerMap seen = {0};
    VEC(RtNode *) stack = {0};
    Arena *arena = &m->arena;
    *h = (Harvest){0};
    for (uint32_t k = 0; k < f->n_in; k++)
        pointer_map_put(arena, &seen, place[k], slot_of(SLOT_PLACE, k));
    for (uint32_t k = f->n_out; k-- > 0;)
        VEC_PUSH(arena, stack, place[f->n_in + k]);
    while (stack.n) {
        RtNode *node = stack.at[stack.n - 1];
        bool known = ref_of(m, &seen, node) != NOT_MAPPED, ready = true;
        uint32_t n = node->n_in + (m->tracked ? body_n_behind(node) : 0);
        for (uint32_t k = known ? 0 : n; k-- > 0;)
            if (ref_of(m, &seen, operand_at(node, k)) == NOT_MAPPED) {
                VEC_PUSH(arena, stack, operand_at(node, k));
                ready = false;
            }
        if (!ready)
            continue;
        stack.n--;
        if (known)
            continue;
        for (uint32_t k = 0; k < n; k++) {
            Slot operand = ref_of(m, &seen, operand_at(node, k));
            if (k < node->n_in)
                VEC_PUSH(arena, h->operand, operand);
            else
                VEC_PUSH(arena, h->behind, operand);
        }
        pointer_map_put(arena, &seen, node, slot_of(SLOT_MADE, h->made.n));
        VEC_PUSH(arena, h->made, node);
    }
    for (uint32_t k = 0; k < f->n_out; k++) {
        Slot output = ref_of(m, &seen, place[f->n_in + k]);
        VEC_PUSH(arena, h->output, output);
    }
}

/* ---- making ---- */

/* The next part of one block, whose size is only counted while it is NULL. */
static void *part(char *block, size_t *at, size_t bytes)
{
    char *here = block ? block + *at : NULL;
    *at += (bytes + 15) & ~(size_t)15;
    return here;
}

static void *keep(char *block, size_t *at, const void *from, size_t bytes)
{
    void *here = part(block, at, bytes);
    if (here && bytes)
        memcpy(here, from, bytes);
    return here;
}

static Status make_bodies(BodyMaking *m)
{
    const BodiesRequest *q = m->request;
    Bodies head = {.n_bodies = q->n_bodies, .n_results = m->n_results, .reports = q->reports};
    char *block = NULL;
    for (int pass = 0; pass < 2; pass++) {
        size_t at = 0, held = 0;
        (void)part(block, &at, sizeof head);
        for (uint32_t b = 0; b < q->n_bodies; b++)
            held += m->harvest[b].made.n;
        head.held.node = part(block, &at, sizeof *head.held.node * (held + 1));
        held = 0;
        for (uint32_t b = 0; b < q->n_bodies; b++) {
            const Harvest *h = &m->harvest[b];
            RtBody *body = &head.body[b];
            *body = (RtBody){.n_inputs = q->function[b].n_in, .n_made = (uint32_t)h->made.n, .n_outputs = (uint32_t)h->output.n};
            body->operand = keep(block, &at, h->operand.at, sizeof *h->operand.at * h->operand.n);
            body->behind = m->tracked ? keep(block, &at, h->behind.at, sizeof *h->behind.at * h->behind.n) : NULL;
            body->output = keep(block, &at, h->output.at, sizeof *h->output.at * h->output.n);
            body->made = head.held.node ? head.held.node + held : NULL;
            for (size_t k = 0; k < h->made.n && block; k++)
                body->made[k] = node_retain(h->made.at[k]);
            held += h->made.n;
        }
        head.held.n = (uint32_t)held;
        if (pass == 0 && !(block = os_calloc(1, at)))
            return fail(ST_OUT_OF_MEMORY, "out of memory");
    }
    m->bodies = (Bodies *)(void *)block;
    memcpy(m->bodies, &head, sizeof head);
    atomic_init(&m->bodies->held.refs, 1);
    m->bodies->n_nodes = m->bodies->held.n;
    for (uint32_t k = 0; k < m->bodies->held.n; k++)
        if (node_has_bodies(m->bodies->held.node[k]))
            m->bodies->n_nodes += bodies_of(m->bodies->held.node[k])->n_nodes;
    return ST_OK;
}

/* A node that nobody has and that is never computed: bodies_again makes those that are, of its kind. */
static Status make_pattern(BodyMaking *m)
{
    const BodiesRequest *q = m->request;
    uint32_t n_in = q->n_given + (uint32_t)m->captured.n;
    m->in = ARENA_ARRAY(&m->arena, RtNode *, n_in + 1);
    for (uint32_t k = 0; k < n_in; k++)
        m->in[k] = k < q->n_given ? q->given[k] : m->captured.at[k - q->n_given];
    m->pattern = node_new(q->op, DT_BOOL, 0, (const int64_t[]){0}, n_in, q->n_facts);
    if (!m->pattern)
        return ST_OUT_OF_MEMORY;
    for (uint32_t k = 0; k < n_in; k++)
        m->pattern->in[k] = node_retain(m->in[k]);
    m->pattern->attr = q->attr;
    if (q->op == OP_LOOP)
        m->pattern->attr.loop.ys = (uint16_t)(m->n_results - q->attr.loop.carries);
    if (q->n_facts)
        memcpy(m->pattern->facts, q->facts, sizeof *q->facts * q->n_facts);
    m->pattern->held = &m->bodies->held;
    m->bodies = NULL;
    return ST_OK;
}

/* Would a gradient that goes back through what was harvested come to a call that has no derivative? Recording its way back would fail then;
 * without one the loop or branch says so where it is asked for. */
static bool ends_at_call(const BodyMaking *m)
{
    bool ends = false;
    for (uint32_t b = 0; b < m->request->n_bodies; b++)
        for (size_t k = 0; k < m->harvest[b].made.n && !ends; k++) {
            const RtNode *node = m->harvest[b].made.at[k];
            ends = node->op == OP_RESULT && node->in[0]->op == OP_CUSTOM && !bodies_of(node->in[0])->callee->derivative && node->tracked &&
                   !node->stop;
        }
    return ends;
}

/* May a gradient be asked for through the node? A carry of all axes that there are cannot be stacked. */
static bool is_tracked(const BodyMaking *m)
{
    const BodiesRequest *q = m->request;
    bool tracked = false;
    for (uint32_t k = 0; k < q->n_given; k++)
        tracked |= q->given[k]->tracked && !q->given[k]->stop;
    for (size_t k = 0; k < m->captured.n; k++)
        tracked |= m->captured.at[k]->tracked && !m->captured.at[k]->stop;
    for (uint32_t k = 0; q->op == OP_LOOP && k < q->attr.loop.carries; k++)
        tracked &= q->given[k]->rank < MAX_RANK;
    return tracked && q->differentiable && !ends_at_call(m);
}

/* The carries that each step is given become ys, behind those of the user's. */
static void stack_carries(BodyMaking *m)
{
    Harvest *h = &m->harvest[0];
    for (uint32_t k = 0; k < m->request->attr.loop.carries; k++) {
        VEC_PUSH(&m->arena, h->output, slot_of(SLOT_PLACE, k + 1));
        m->n_results++;
    }
}

/* Their types: of what is stacked one axis more than the carry has. */
static Status find_types(BodyMaking *m)
{
    const BodiesRequest *q = m->request;
    m->type = ARENA_ARRAY(&m->arena, Shape, m->n_results + 1);
    for (uint32_t k = 0; k < m->n_results; k++) {
        Shape *type = &m->type[k];
        if (k < q->n_results) {
            TRY(q->type(q->user, k, m->place[0] + q->function[0].n_in, type));
            continue;
        }
        const RtNode *carry = m->in[k - q->n_results];
        *type = (Shape){.dtype = carry->dtype, .rank = (uint8_t)(carry->rank + 1), .dim = {q->facts[0]}};
        memcpy(type->dim + 1, carry->dim, sizeof *carry->dim * carry->rank);
    }
    return ST_OK;
}

static Status make_results(BodyMaking *m, RtNode **result)
{
    Rec *r = m->r;
    const BodiesRequest *q = m->request;
    if (m->rule) {
        const DifferentiableBodies d = {r, m->pattern, m->in, m->type, m->n_results, false};
        RtNode **all = ARENA_ARRAY(&m->arena, RtNode *, m->n_results + 1);
        TRY(bodies_differentiable(&d, all));
        for (uint32_t k = 0; k < m->n_results; k++)
            if (k < q->n_results)
                result[k] = all[k];
            else
                node_release(all[k]);
        return ST_OK;
    }
    RtNode *node = bodies_again(r, m->pattern, m->in);
    for (uint32_t k = 0; k < q->n_results && node; k++) {
        if (!(result[k] = bodies_result_new(r, node, k, &m->type[k])))
            return r->status;
        node_retain(result[k]);
    }
    return r->status == ST_OK && rec_is_eager(r) ? eval_nodes_on(r->device, result, q->n_results, r->api, r->loc) : r->status;
}

static Status record_all(BodyMaking *m, void *with)
{
    const BodiesRequest *q = m->request;
    RtNode **result = with;
    for (uint32_t b = 0; b < q->n_bodies; b++) {
        TRY(run_function(m, b));
        harvest(m, b);
    }
    m->r->thread->loop = m->loop.outer; /* what follows is recorded around */
    m->n_results = q->n_results;
    m->tracked = is_tracked(m);
    m->rule = m->tracked && m->r->thread->custom != INSIDE_FUNCTION && m->r->thread->custom != INSIDE_RULE;
    for (uint32_t b = 0; b < q->n_bodies && m->tracked; b++) /* once more, with what derivatives of the user's take */
        harvest(m, b);
    if (m->tracked && q->op == OP_LOOP && q->n_bodies == 1)
        stack_carries(m);
    TRY(make_bodies(m));
    TRY(make_pattern(m));
    TRY(find_types(m));
    return make_results(m, result);
}

/* Runs `work` inside of a body of its own. */
static Status make(Rec *r, const BodiesRequest *request, Status (*work)(BodyMaking *m, void *with), void *with)
{
    static _Atomic uint32_t last_id;
    BodyMaking m CLEANUP(end_making) = {.r = r, .request = request};
    jmp_buf oom;
    int depth = 1;
    for (const LoopBody *loop = r->thread->loop; loop; loop = loop->outer)
        depth++;
    if (depth > MAX_BODY_DEPTH) {
        rec_fail(r, ST_UNSUPPORTED, "loops and branches nested more than %d deep", MAX_BODY_DEPTH);
        return r->status;
    }
    m.loop.outer = r->thread->loop;
    while (!(m.loop.id = atomic_fetch_add(&last_id, 1) + 1))
        continue;
    r->thread->loop = &m.loop;
    arena_init(&m.arena, &oom);
    return setjmp(oom) ? fail(ST_OUT_OF_MEMORY, "out of memory") : work(&m, with);
}

Status bodies_record(Rec *r, const BodiesRequest *request, RtNode **result)
{
    if (r->thread->mode && !request->reports && finite_watches(r->thread))
        return finite_bodies(r, request, result);
    Status status = make(r, request, record_all, result);
    for (uint32_t k = 0; k < request->n_results && status != ST_OK; k++) {
        node_release(result[k]);
        result[k] = NULL;
    }
    if (status != ST_OK)
        rec_failed(r, status);
    return status;
}

/* ---- without a node ---- */

static Status trace_all(BodyMaking *m, void *with)
{
    Traced *traced = with;
    m->loop.again = true;
    TRY(run_function(m, 0));
    harvest(m, 0);
    TRY(make_bodies(m));
    if (!(traced->captured = os_alloc(sizeof(RtNode *) * (m->captured.n + 1))))
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    for (; traced->n_captured < m->captured.n; traced->n_captured++)
        traced->captured[traced->n_captured] = node_retain(m->captured.at[traced->n_captured]);
    traced->bodies = m->bodies;
    m->bodies = NULL;
    return ST_OK;
}

Status bodies_trace(Rec *r, const BodyFunction *function, Status (*check)(void *user, uint32_t which, RtNode *const *out), void *user,
                    Traced *traced)
{
    const BodiesRequest request = {.n_bodies = 1, .function = function, .check = check, .user = user};
    Status status = make(r, &request, trace_all, traced);
    if (status != ST_OK)
        rec_failed(r, status);
    return status;
}

void traced_end(Traced *traced)
{
    release_all(traced->captured, traced->n_captured);
    os_free(traced->captured);
    drop_bodies(traced->bodies);
    *traced = (Traced){0};
}
