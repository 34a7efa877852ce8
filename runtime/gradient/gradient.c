/*
 * kiln_grad, kiln_vjp, kiln_jvp: derivatives of what is recorded, as more of it.
 *
 *   import   what the outputs are made of, as a Graph (ir/graph.h): nodes that gradients may flow through, and the views around them;
 *            all else is an input of the graph
 *   derive   ir/gradient.h adds the derivative to it
 *   export   the nodes that the results need are recorded, with the place of the op whose derivative they are
 *
 * Never silently wrong: a value that was computed has let go of what it was made of, so the import fails where it comes upon one through which
 * something might flow (`gone`). Leaves (runtime/gradient/param.h) are where it may end. An older leaf of a parameter that is
 * asked for means that it was assigned since: an error, too.
 *
 * Under the evaluation lock, as another thread might compute a value, and let go of its inputs, in the middle of the walk.
 */
#define KILN_NO_LOCATIONS
#include "ir/gradient.h"
#include "ir/attr.h"
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "ir/base/path.h"
#include "runtime/comm/chain.h"
#include "runtime/device/device.h"
#include "runtime/eval.h"
#include "runtime/gradient/custom.h"
#include "runtime/gradient/group.h"
#include "runtime/gradient/param.h"
#include "ir/base/pointer_map.h"
#include "runtime/mode/finite.h"
#include "runtime/record/bodies.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLACE = 320 };

/* What a public function asks for. */
typedef struct Task {
    const char *in_name; /* "params", "inputs" */
    bool forward;
    unsigned flags;
    int n_in, n_out;
    kiln_tensor *const *in, *const *out;
    RtNode **seed; /* cotangents of the outputs, or tangents of the inputs */
    kiln_tensor **result;
} Task;

/* A kiln_custom_gradient, or a call whose derivative kiln knows, and those of its results that the walk came to. */
typedef struct Met {
    const Custom *custom;
    const RtNode *call; /* then custom is NULL */
    VEC(Ref) result;
    VEC(uint32_t) number;
} Met;

/* Rules of loops and branches that were recorded without one (bodies_rule). References. */
typedef struct Late {
    uint32_t n;
    struct LateRule {
        RtNode *node;
        bool of_stacked; /* what flows to its stacked carries, else to the others */
        Custom *custom;
    } * at;
} Late;

typedef struct Walk {
    Rec *r;
    const Task *task;
    Arena arena;
    Graph *g;
    VEC(RtNode *) node; /* of each node of the graph; borrowed */
    VEC(RtNode *) stack;
    PointerMap ref;   /* where each node was put */
    const Late *late; /* loops and branches whose rules are made in this call, and those of them where one is still to be */
    VEC(struct LateRule) ruleless;
    VEC(Met) met;               /* functions with a derivative of their own (runtime/gradient/custom.h), and calls with a rule */
    PointerMap met_at;          /* where each is in the list */
    VEC(const RtNode *) copied; /* of each node of the graph: the one of a template that it is a copy of; NULL: of none */
    uint8_t phase;              /* the greatest of the outputs' */
    uint32_t recorded;
    Status status;
} Walk;

/* ---- where a node is ---- */

static Ref ref_of(const Walk *w, const RtNode *node)
{
    uint32_t ref = pointer_map_get(&w->ref, node);
    return ref == NOT_MAPPED ? REF_NONE : ref;
}

static Ref put(Walk *w, RtNode *node, Ref ref)
{
    pointer_map_put(&w->arena, &w->ref, node, ref);
    while (w->node.n <= ref)
        VEC_PUSH(&w->arena, w->node, NULL);
    w->node.at[ref] = node;
    return ref;
}

/* ---- import ---- */

static const char *place(Loc loc, char *text)
{
    if (loc.file)
        snprintf(text, PLACE, " (%s:%d)", path_name(loc.file), loc.line);
    else
        text[0] = 0;
    return text;
}

static const char *api_of(const RtNode *node) { return node->api ? node->api : "a tensor"; }

/* Does the walk look at what it is made of? */
static bool opens(const RtNode *node)
{
    return (node_pending(node) || node->keep) && !node->leaf && !node->stop &&
           (node->tracked || (op_class((Op)node->op) == CLS_VIEW && op_info[node->op].arity == 1));
}

/* Was it computed from a parameter, and is that forgotten? */
static bool is_gone(const RtNode *node) { return node->tracked && !node->leaf && !node->stop && !node->keep && !node_pending(node); }

static bool is_input(const Task *task, const RtNode *node)
{
    bool found = false;
    for (int i = 0; i < task->n_in && !found; i++)
        found = task->in[i]->node == node;
    return found;
}

static Status gone(const Walk *w, const RtNode *node)
{
    char here[PLACE], there[PLACE];
    place(node->loc, here);
    place(node->computed.loc, there);
    if (node->computed.api && !strcmp(node->computed.api, "kiln_to"))
        return fail(ST_UNSUPPORTED,
                    "the value depends on one that was moved by kiln_to%s, through which no gradient flows: move parameters before "
                    "they are used, or call kiln_stop_gradient",
                    there);
    if (is_input(w->task, node))
        return fail(ST_INVALID,
                    "the value of %s%s, one of several %s, was computed by %s%s, so how it depends on the others is gone; ask for the "
                    "gradient with respect to it alone, or before it is computed",
                    api_of(node), here, w->task->in_name, node->computed.api ? node->computed.api : "a sync point", there);
    if (node->computed.api && !strcmp(node->computed.api, "kiln_function_call"))
        return fail(
            ST_INVALID,
            "the value of %s%s was computed by kiln_function_call%s, so what it depends on is gone; make the function by "
            "kiln_value_and_grad, or take gradients in it, call it in a kiln_recording, or call kiln_stop_gradient if it is a constant",
            api_of(node), here, there);
    return fail(ST_INVALID,
                "the value of %s%s was computed by %s%s%s, so what it depends on is gone; take gradients first, open a kiln_recording, or "
                "call kiln_stop_gradient if it "
                "is a constant",
                api_of(node), here, node->computed.api ? node->computed.api : "a sync point", there,
                node->seen & SEEN_IN_COMPANY ? " together with what that asked for (not with KILN_JOINT=0)" : "");
}

/* A leaf of a parameter that is asked for, but not its present value. */
static Status check_leaf(const Walk *w, const RtNode *node)
{
    char now[PLACE], then[PLACE];
    for (int i = 0; i < w->task->n_in; i++) {
        const RtNode *in = w->task->in[i]->node;
        if (in->leaf == node->leaf && in != node)
            return fail(ST_INVALID, "%s[%d] was assigned%s after the value%s was recorded", w->task->in_name, i, place(in->loc, now),
                        place(w->task->n_out ? w->task->out[0]->node->loc : (Loc){0}, then));
    }
    return ST_OK;
}

static Ref put_input(Walk *w, RtNode *node)
{
    return put(w, node, graph_add_input(w->g, (DType)node->dtype, node->rank, node->dim, NULL, node->loc));
}

/* Something that a gradient may flow to ends here: is that right? */
static Status end_at(const Walk *w, const RtNode *node)
{
    if (is_gone(node) && !(w->task->n_in == 1 && is_input(w->task, node)))
        return gone(w, node);
    return node->leaf ? check_leaf(w, node) : ST_OK;
}

/* The call that it is a result of, if kiln knows its derivative (ir/callee.h); else NULL. */
static const RtNode *call_with_rule(const RtNode *node)
{
    const RtNode *call = node->op == OP_RESULT ? node->in[0] : NULL;
    return call && call->op == OP_CUSTOM && bodies_of(call)->callee->rule ? call : NULL;
}

static uint32_t number_of(const RtNode *node) { return node->op == OP_RESULT ? node->attr.n : custom_number(node); }

/* The result of a scan, a stacked carry, that it is the same value as; NULL: it is none. */
static const RtNode *stacked_carry(const RtNode *node)
{
    const Custom *custom = node->held && !node_has_bodies(node) ? custom_of(node) : NULL;
    return custom && custom_number(node) >= custom->n_plain ? custom->out[custom_number(node)] : NULL;
}

/* The loop or branch that it is a result of, if what flows to that goes on by a rule which was not recorded with it; else NULL. */
static RtNode *late_body(const Walk *w, const RtNode *node)
{
    if (node->op == OP_RESULT)
        return bodies_have_rule(node->in[0]) ? node->in[0] : NULL;
    const RtNode *out = w->task->forward ? NULL : stacked_carry(node);
    return out && out->n_in ? out->in[0] : NULL;
}

static struct LateRule late_of(const Walk *w, const RtNode *node)
{
    RtNode *body = late_body(w, node);
    return (struct LateRule){.node = body, .of_stacked = body && !w->task->forward && bodies_stacked(body, number_of(node))};
}

/* The function that it is a result of; NULL: none, or its rule is still to be made. */
static const Custom *custom_behind(const Walk *w, const RtNode *node)
{
    const struct LateRule late = late_of(w, node);
    const Custom *custom = late.node || node->op == OP_RESULT || !node->held ? NULL : custom_of(node);
    for (uint32_t i = 0; i < w->late->n && late.node && !custom; i++)
        if (w->late->at[i].node == late.node && w->late->at[i].of_stacked == late.of_stacked)
            custom = w->late->at[i].custom;
    return custom;
}

static Status put_op(Walk *w, RtNode *node)
{
    char there[PLACE];
    if (node->op == OP_RESULT && node->in[0]->op == OP_CUSTOM)
        return fail(ST_UNSUPPORTED, "%s%s has no derivative: register it with a vjp, or call kiln_stop_gradient if it is a constant",
                    bodies_of(node->in[0])->callee->name, place(node->loc, there));
    if (node->op == OP_RESULT || op_class((Op)node->op) == CLS_BODY)
        return fail(ST_UNSUPPORTED, "no gradient flows through %s%s; call kiln_stop_gradient if it is a constant", api_of(node),
                    place(node->loc, there));
    Ref *in = ARENA_ARRAY(&w->arena, Ref, node->n_in);
    Dim *facts = ARENA_ARRAY(&w->arena, Dim, node->n_facts);
    for (uint32_t k = 0; k < node->n_in; k++) {
        const RtNode *x = node->in[k];
        if (node->tracked && !opens(x) && gradient_flows((Op)node->op, k, (DType)x->dtype, (DType)node->dtype))
            TRY(end_at(w, x));
        in[k] = ref_of(w, x);
    }
    for (uint32_t k = 0; k < node->n_facts; k++) {
        FactLabel label = fact_label((Op)node->op, &node->attr, k);
        facts[k] = dim_fact(w->g, node->facts[k], label.kind, label.axis, w->g->nodes.n);
    }
    put(w, node, graph_add(w->g, (Op)node->op, (DType)node->dtype, in, node->n_in, &node->attr, facts, node->n_facts, node->loc));
    return ST_OK;
}

/* A result of kiln_custom_gradient, or of a call with a rule, is an input of the graph: what flows to it goes on by the rule (derive_call). One that the
 * walk came to already, as a result of another rule, is one more input, which nothing flows to. */
static void put_result(Walk *w, RtNode *node, const Custom *custom)
{
    const RtNode *call = custom ? NULL : call_with_rule(node);
    const void *of = call ? (const void *)call : custom;
    uint32_t at = pointer_map_get(&w->met_at, of);
    if (at == NOT_MAPPED) {
        at = (uint32_t)w->met.n;
        pointer_map_put(&w->arena, &w->met_at, of, at);
        VEC_PUSH(&w->arena, w->met, (Met){.custom = custom, .call = call});
    }
    Met *met = &w->met.at[at];
    const Ref before = ref_of(w, node);
    Ref ref = put_input(w, node);
    if (before != REF_NONE)
        pointer_map_put(&w->arena, &w->ref, node, before);
    VEC_PUSH(&w->arena, met->result, ref);
    VEC_PUSH(&w->arena, met->number, number_of(node));
}

static Status put_call(Walk *w, RtNode *node)
{
    const RtNode *call = call_with_rule(node);
    for (uint32_t i = 0; i < call->n_in; i++)
        if (dtype_is_float(node_dtype(call->in[i])) && call->in[i]->tracked && !opens(call->in[i]))
            TRY(end_at(w, call->in[i]));
    put_result(w, node, NULL);
    return ST_OK;
}

static Status put_custom(Walk *w, RtNode *node)
{
    const Custom *custom = custom_behind(w, node);
    const RtNode *stacked = w->task->forward ? NULL : stacked_carry(node);
    if (stacked && !stacked->n_in)
        return gone(w, stacked);
    for (uint32_t i = 0; custom && i < custom->n_in; i++)
        if (custom_flows(custom->in[i]) && custom->in[i]->tracked && !opens(custom->in[i]))
            TRY(end_at(w, custom->in[i]));
    if (custom) {
        put_result(w, node, custom);
        return ST_OK;
    }
    const struct LateRule late = late_of(w, node);
    put_input(w, node);
    for (size_t i = 0; i < w->ruleless.n; i++)
        if (w->ruleless.at[i].node == late.node && w->ruleless.at[i].of_stacked == late.of_stacked)
            return ST_OK;
    VEC_PUSH(&w->arena, w->ruleless, late);
    return ST_OK;
}

/* What the walk goes on at. */
static uint32_t behind(const Walk *w, const RtNode *node, RtNode *const **nodes)
{
    bool open = opens(node);
    const RtNode *call = open ? call_with_rule(node) : NULL;
    const Custom *custom = open && !call ? custom_behind(w, node) : NULL;
    call = open && !call && !custom ? late_body(w, node) : call;
    if (call) {
        *nodes = call->in;
        return call->n_in;
    }
    *nodes = custom ? custom->held.node : node->in;
    return !open ? 0 : custom ? custom->n_behind : node->n_in;
}

/* What `root` is made of, operands before those who use them. */
static Status import(Walk *w, RtNode *root)
{
    if (!opens(root) && root->tracked)
        TRY(end_at(w, root));
    VEC_PUSH(&w->arena, w->stack, root);
    while (w->stack.n) {
        RtNode *node = w->stack.at[w->stack.n - 1];
        RtNode *const *in;
        bool known = ref_of(w, node) != REF_NONE, ready = true;
        for (uint32_t k = known ? 0 : behind(w, node, &in); k-- > 0;)
            if (ref_of(w, in[k]) == REF_NONE) {
                VEC_PUSH(&w->arena, w->stack, in[k]);
                ready = false;
            }
        if (!ready)
            continue;
        w->stack.n--;
        if (known)
            continue;
        if (opens(node))
            TRY(call_with_rule(node) ? put_call(w, node) : node->held || late_body(w, node) ? put_custom(w, node) : put_op(w, node));
        else
            put_input(w, node);
    }
    return ST_OK;
}

/* Collectives that the outputs are made of come into the graph in the order in which they were recorded, so what flows back through them
 * comes in the opposite one: ranks whose graphs differ around what they send each other have the same. */
static int in_order(const void *a, const void *b)
{
    const uint64_t x = custom_of(*(RtNode *const *)a)->order, y = custom_of(*(RtNode *const *)b)->order;
    return x < y ? -1 : x > y;
}

static Status import_collectives(Walk *w, uint32_t n, kiln_tensor *const *roots)
{
    VEC(RtNode *) stack = {0}, found = {0};
    PointerMap seen = {0};
    for (uint32_t k = 0; k < n; k++)
        VEC_PUSH(&w->arena, stack, roots[k]->node);
    while (stack.n) {
        RtNode *node = stack.at[--stack.n], *const * in;
        if (pointer_map_get(&seen, node) != NOT_MAPPED)
            continue;
        pointer_map_put(&w->arena, &seen, node, 0);
        const Custom *custom = opens(node) ? custom_behind(w, node) : NULL;
        if (custom && custom->order)
            VEC_PUSH(&w->arena, found, node);
        for (uint32_t k = behind(w, node, &in); k-- > 0;)
            VEC_PUSH(&w->arena, stack, in[k]);
    }
    if (found.n)
        qsort(found.at, found.n, sizeof *found.at, in_order);
    for (size_t k = 0; k < found.n; k++)
        TRY(import(w, found.at[k]));
    return ST_OK;
}

/* ---- derivatives of the user's, and of calls ---- */

/* All results of a call with a rule: rules read them. A new node is one that nobody computes twice, as it is a result of the same call. */
static Status call_results(Walk *w, const Met *met, GradientCall *out)
{
    RtNode *call = (RtNode *)(uintptr_t)met->call;
    Ref *in = ARENA_ARRAY(&w->arena, Ref, call->n_in), *value = ARENA_ARRAY(&w->arena, Ref, call->attr.n);
    for (uint32_t k = 0; k < call->attr.n; k++)
        value[k] = REF_NONE;
    for (size_t k = 0; k < met->number.n; k++)
        value[met->number.at[k]] = met->result.at[k];
    for (uint32_t k = 0; k < call->attr.n; k++) {
        const Shape type = call_result_type(call, k);
        RtNode *node = NULL;
        if (value[k] != REF_NONE)
            continue;
        node = bodies_result(call, k);
        node = node ? rec_own(w->r, node) : bodies_result_new(w->r, call, k, &type);
        if (!node)
            return w->r->status;
        value[k] = ref_of(w, node);
        if (value[k] == REF_NONE)
            value[k] = put_input(w, node);
    }
    for (uint32_t i = 0; i < call->n_in; i++)
        in[i] = ref_of(w, call->in[i]);
    *out = (GradientCall){.n_in = call->n_in,
                          .n_out = (uint32_t)met->result.n,
                          .n_results = call->attr.n,
                          .in = in,
                          .out = met->result.at,
                          .number = met->number.at,
                          .rule = bodies_of(call)->callee,
                          .value = value};
    return ST_OK;
}

/* The calls of the graph, with a node for every result: rules read them, and what flows to none of them is zero. */
static Status calls(Walk *w, GradientCalls *all)
{
    GradientCall *call = ARENA_ARRAY(&w->arena, GradientCall, w->met.n);
    for (size_t c = 0; c < w->met.n; c++) {
        const Custom *custom = w->met.at[c].custom;
        if (!custom) {
            TRY(call_results(w, &w->met.at[c], &call[c]));
            continue;
        }
        bool *there = ARENA_ARRAY(&w->arena, bool, custom->n_out);
        Ref *in = ARENA_ARRAY(&w->arena, Ref, custom->n_in);
        for (size_t k = 0; k < w->met.at[c].number.n; k++)
            there[w->met.at[c].number.at[k]] = true;
        for (uint32_t k = 0; k < custom->n_out; k++) {
            RtNode *node = custom->out[k];
            if (custom_flows(node) && !there[k]) {
                if (!custom->of_results && !(node = custom_result(w->r, custom, k)))
                    return w->r->status;
                put_result(w, node, custom);
            } else if (!custom_flows(node) && ref_of(w, node) == REF_NONE) {
                put_input(w, node);
            }
        }
        for (uint32_t i = 0; i < custom->n_in; i++)
            in[i] = ref_of(w, custom->in[i]);
        const Met *met = &w->met.at[c];
        call[c] = (GradientCall){.n_in = custom->n_in,
                                 .n_out = (uint32_t)met->result.n,
                                 .n_results = custom->n_out,
                                 .in = in,
                                 .out = met->result.at,
                                 .number = met->number.at,
                                 .with = (void *)(uintptr_t)custom};
    }
    all->n = (uint32_t)w->met.n;
    all->call = call;
    return ST_OK;
}

static bool has_rule(const GradientCall *call, bool forward) { return ((const Custom *)call->with)->rule[forward].given; }

static uint64_t own_scalar(BodiesBuild *build, const RtNode *node)
{
    (void)build;
    return node->scalar;
}

/* Copies the template. */
static void derive_call(void *user, const GradientCall *call, bool forward, const Ref *seed, Ref *got)
{
    Walk *w = user;
    Graph *g = w->g;
    const Custom *custom = call->with;
    const Rule *rule = &custom->rule[forward];
    uint32_t n_in = custom->n_in, n_out = custom->n_out;
    Ref *place = ARENA_ARRAY(&w->arena, Ref, 2 * (n_in + n_out)), *made = ARENA_ARRAY(&w->arena, Ref, rule->n_made);
    memcpy(place, call->in, sizeof *place * n_in);
    for (uint32_t k = 0; k < n_out; k++)
        if (!custom_flows(custom->out[k]))
            place[n_in + k] = ref_of(w, custom->out[k]);
    for (uint32_t k = 0; k < call->n_out; k++)
        place[n_in + call->number[k]] = call->out[k];
    memcpy(place + n_in + n_out + (forward ? n_out : 0), seed, sizeof *place * (forward ? n_in : n_out));
#define REF(slot)                                             \
    (slot_list(slot) == SLOT_PLACE  ? place[slot_index(slot)] \
     : slot_list(slot) == SLOT_MADE ? made[slot_index(slot)]  \
                                    : ref_of(w, rule->captured[slot_index(slot)]))
    const Slot *operand = rule->operand;
    for (uint32_t m = 0; m < rule->n_made; m++) {
        const RtNode *node = rule->made[m];
        Ref *in = ARENA_ARRAY(&w->arena, Ref, node->n_in);
        Dim *facts = ARENA_ARRAY(&w->arena, Dim, node->n_facts);
        for (uint32_t k = 0; k < node->n_in; k++, operand++)
            in[k] = REF(*operand);
        for (uint32_t k = 0; k < node->n_facts; k++) {
            FactLabel label = fact_label((Op)node->op, &node->attr, k);
            facts[k] = dim_fact(g, node->facts[k], label.kind, label.axis, g->nodes.n);
        }
        g->stop = node->stop;
        if (node_has_bodies(node) || node->op == OP_RESULT) {
            BodiesBuild build = {.arena = &w->arena, .scalar = own_scalar, .origin = g->origin};
            made[m] = bodies_build(&build, g, node, in);
        } else
            made[m] = graph_add(g, (Op)node->op, (DType)node->dtype, in, node->n_in, &node->attr, facts, node->n_facts, node->loc);
        g->stop = false;
        while (w->copied.n <= made[m])
            VEC_PUSH(&w->arena, w->copied, NULL);
        w->copied.at[made[m]] = node;
    }
    for (uint32_t k = 0; k < rule->n_results; k++)
        got[k] = rule->result[k] == SLOT_NONE ? REF_NONE : REF(rule->result[k]);
#undef REF
}

/* ---- export ---- */

struct Name {
    struct Name *next;
    const char *of;
    char text[];
};
static struct Name *names;

/* "gradient of kiln_matmul": made once for each name, for the life of the process, and under the evaluation lock. */
static const char *gradient_name(const char *api)
{
    static const char prefix[] = "gradient of ";
    if (!api || !strncmp(api, prefix, sizeof prefix - 1))
        return api;
    for (struct Name *name = names; name; name = name->next)
        if (name->of == api)
            return name->text;
    struct Name *name = os_alloc(sizeof *name + sizeof prefix + strlen(api));
    if (!name)
        return api;
    name->of = api;
    name->next = names;
    strcpy(stpcpy(name->text, prefix), api);
    names = name;
    return name->text;
}

static RtNode *record_result(Walk *w, const Node *n, RtNode *of)
{
    Shape type = {.dtype = n->dtype, .rank = n->rank};
    for (int d = 0; d < n->rank; d++)
        type.dim[d] = dim_hint(w->g, n->dim[d]);
    return bodies_result_new(w->r, of, n->attr.n, &type);
}

/* A call that a rule of kiln's makes. */
static RtNode *record_call(Walk *w, const Node *n, RtNode *const *in, const int64_t *facts)
{
    Shape type[MAX_CALL_RESULTS];
    for (uint32_t k = 0; k < n->attr.n; facts += type[k++].rank) {
        type[k] = (Shape){.dtype = n->attr.custom.type[k] >> 4, .rank = n->attr.custom.type[k] & 15};
        memcpy(type[k].dim, facts, sizeof *facts * type[k].rank);
    }
    return bodies_call_new(w->r, n->callee, n->n_in, in, n->attr.n, type);
}

/* A body or call once more; a collective comes after all that were recorded so far. */
static RtNode *record_body(Walk *w, const RtNode *of, RtNode **in)
{
    const Callee *callee = bodies_of(of)->callee;
    const bool ordered = callee && callee->ordered;
    if (ordered && !(in[of->n_in - 1] = chain_operand(w->r)))
        return NULL;
    RtNode *node = bodies_again(w->r, of, in);
    if (node && w->r->thread->mode)
        finite_body_again(w->r, node);
    return node && ordered && !chain_advance(w->r, node) ? NULL : node;
}

/* Records node `ref` of the graph. */
static RtNode *record_node(Walk *w, Ref ref)
{
    const Node *n = graph_node(w->g, ref);
    RtNode **in = ARENA_ARRAY(&w->arena, RtNode *, n->n_in);
    int64_t *facts = ARENA_ARRAY(&w->arena, int64_t, n->n_facts);
    const RtNode *of = n->origin < w->node.n ? w->node.at[n->origin] : NULL;
    const bool copied = ref < w->copied.n && w->copied.at[ref];
    if (copied) { /* the user's own line */
        w->r->api = w->copied.at[ref]->api;
        w->r->loc = w->copied.at[ref]->loc;
    } else if (of && of->api) {
        w->r->api = gradient_name(of->api);
        w->r->loc = of->loc.file ? of->loc : w->r->loc;
    }
    for (uint32_t k = 0; k < n->n_in; k++)
        in[k] = w->node.at[n->in[k]];
    for (uint32_t k = 0; k < n->n_facts; k++)
        facts[k] = dim_hint(w->g, n->fact[k]);
    RtNode *node = n->op == OP_CUSTOM && !copied     ? record_call(w, n, in, facts)
                   : op_class((Op)n->op) == CLS_BODY ? record_body(w, w->copied.at[ref], in)
                   : n->op == OP_RESULT              ? record_result(w, n, in[0])
                   : n->op == OP_SCALAR              ? rec_bits(w->r, (DType)n->dtype, w->g->shared->scalars.at[n->scalar].bits)
                                                     : rec_node(w->r, (Op)n->op, (DType)n->dtype, &n->attr, n->n_in, in, facts, n->n_facts);
    if (!node)
        return NULL;
    node->phase = w->phase < MAX_PHASE ? (uint8_t)(w->phase + 1) : MAX_PHASE;
    return n->stop ? rec_stop(node) : node;
}

/* Records what the results need. */
static Status export(Walk *w, Ref end, uint32_t n, const Ref *result)
{
    bool *live = ARENA_ARRAY(&w->arena, bool, w->g->nodes.n);
    const Rec before = *w->r;
    for (uint32_t k = 0; k < n; k++)
        if (result[k] != REF_NONE)
            live[result[k]] = true;
    for (Ref r = w->g->nodes.n; r-- > end;)
        for (uint32_t k = 0; live[r] && k < graph_node(w->g, r)->n_in; k++)
            live[graph_node(w->g, r)->in[k]] = true;
    VEC_RESERVE(&w->arena, w->node, w->g->nodes.n);
    w->node.n = w->g->nodes.n;
    Status status = ST_OK;
    w->r->derived = true;
    for (Ref r = end; r < w->g->nodes.n && status == ST_OK; r++) {
        if (live[r] && !(w->node.at[r] = record_node(w, r)))
            status = w->r->status;
        w->recorded += live[r];
        w->r->api = before.api;
        w->r->loc = before.loc;
    }
    w->r->derived = false;
    return status;
}

/* ---- what has none ---- */

static void find_unbounded(const RtNode *node, void *found)
{
    if (node->op == OP_LOOP && node->facts[0] == INT64_MAX && bodies_of(node)->n_bodies == 2)
        *(const RtNode **)found = node;
}

/* A function that has no rule for this direction. */
static Status no_rule(const Walk *w, const RtNode *node, Status status)
{
    char where[PLACE];
    const Task *t = w->task;
    const Custom *custom = custom_behind(w, node);
    const RtNode *of =
        custom->of_bodies && custom->n_out && custom->out[0]->op == OP_RESULT && custom->out[0]->n_in ? custom->out[0]->in[0] : NULL;
    const RtNode *unbounded = NULL;
    if (!of)
        return fail(status, "%s%s was given no jvp, and forward mode needs one", api_of(node), place(node->loc, where));
    find_unbounded(of, &unbounded);
    bodies_visit(of, find_unbounded, &unbounded);
    if (unbounded && !t->forward)
        return fail(
            ST_UNSUPPORTED,
            "no gradient flows through kiln_while%s without max_steps: give it a bound, or call kiln_stop_gradient if it is a constant",
            place(unbounded->loc, where));
    return fail(ST_UNSUPPORTED, "no gradient flows %s %s%s: something in it has none; call kiln_stop_gradient if it is a constant",
                t->forward ? "in forward mode through" : "through", api_of(custom->out[0]), place(of->loc, where));
}

/* ---- all of it ---- */

/* A result: what was recorded, or zeros; where x is. */
static kiln_tensor *result(Walk *w, Ref ref, Ref end, const RtNode *like)
{
    RtNode *node;
    if (ref != REF_NONE)
        node = w->node.at[ref];
    else
        node = rec_expand(w->r, rec_bits(w->r, node_dtype(like), 0), like->rank, like->dim);
    if (node && (ref == REF_NONE || ref >= end) && node_pending(node) && node->device == DEVICE_ANY)
        node->device = (uint8_t)node_device(like);
    return rec_out(w->r, node);
}

static Status unconnected(const Task *t, int i)
{
    char where[PLACE];
    if (t->forward)
        return fail(ST_INVALID, "outputs[%d] depends on none of the inputs%s", i, place(t->out[i]->node->loc, where));
    return fail(ST_INVALID, "no output depends on %s[%d]%s", t->in_name, i, place(t->in[i]->node->loc, where));
}

/* "kiln_grad (train.c:55): 412 forward, 803 recorded, 24 params, 1 disconnected: params[3] (net.c:12)" */
static void log_gradient(const Walk *w, uint32_t forward, uint32_t n, const Ref *got)
{
    const Task *t = w->task;
    char where[PLACE];
    const char *between = ": ";
    uint32_t disconnected = 0;
    Str out;
    str_init(&out, w->g->arena);
    for (uint32_t k = 0; k < n; k++)
        disconnected += got[k] == REF_NONE;
    str_printf(&out, "%s%s: %u forward, %u recorded, %d %s", w->r->api, place(w->r->loc, where), forward, w->recorded, t->n_in, t->in_name);
    if (disconnected)
        str_printf(&out, ", %u disconnected", disconnected);
    for (uint32_t k = 0; k < n; k++)
        if (got[k] == REF_NONE) {
            str_printf(&out, "%s%s[%u]%s", between, t->forward ? "outputs" : t->in_name, k,
                       place((t->forward ? t->out : t->in)[k]->node->loc, where));
            between = ", ";
        }
    log_line(LOG_GRADIENT, "%s", out.text);
}

static Status derive(Walk *w)
{
    const Task *t = w->task;
    uint32_t n_in = (uint32_t)t->n_in, n_out = (uint32_t)t->n_out, n_seeds = t->forward ? n_in : n_out,
             n_results = t->forward ? n_out : n_in;
    Ref *in = ARENA_ARRAY(&w->arena, Ref, n_in + 1), *out = ARENA_ARRAY(&w->arena, Ref, n_out),
        *seed = ARENA_ARRAY(&w->arena, Ref, n_seeds), *got = ARENA_ARRAY(&w->arena, Ref, n_results + 1), refused = REF_NONE,
        elsewhere = REF_NONE;
    w->g = graph_new(&w->arena);
    w->g->apart = REF_NONE;
    if (chain_there())
        TRY(import_collectives(w, n_out, t->out));
    for (uint32_t k = 0; k < n_out; k++) {
        RtNode *node = t->out[k]->node;
        TRY(import(w, node));
        out[k] = ref_of(w, node);
        w->phase = node->phase > w->phase ? node->phase : w->phase;
    }
    if (w->ruleless.n)
        return ST_OK;
    for (uint32_t i = 0; i < n_in; i++) {
        RtNode *node = t->in[i]->node;
        in[i] = ref_of(w, node);
        if (in[i] == REF_NONE) /* no output is made of it */
            in[i] = put_input(w, node);
    }
    for (uint32_t k = 0; k < n_seeds; k++) {
        seed[k] = ref_of(w, t->seed[k]);
        if (seed[k] == REF_NONE)
            seed[k] = put_input(w, t->seed[k]);
    }
    if (chain_elsewhere())
        elsewhere = ref_of(w, chain_elsewhere()->node);
    if (elsewhere != REF_NONE && t->forward)
        return fail(ST_UNSUPPORTED,
                    "an output depends on kiln_recv, through which forward mode does not go: call kiln_stop_gradient if it is a constant");
    in[n_in] = elsewhere; /* what was received: its sender gets what flows to it, whatever is asked for here */
    const uint32_t n_live = n_results + (elsewhere != REF_NONE);
    GradientCalls all = {.has = has_rule, .derive = derive_call, .user = w};
    TRY(calls(w, &all));
    Ref end = w->g->nodes.n;
    Status status = t->forward ? gradient_jvp(w->g, &all, n_in, in, seed, n_out, out, got, &refused)
                               : gradient_vjp(w->g, &all, n_out, out, seed, n_live, in, got, &refused);
    if (status != ST_OK) {
        const RtNode *node = w->node.at[refused];
        char where[PLACE];
        if (node->held || late_body(w, node))
            return no_rule(w, node, status);
        return fail(status, "%s%s has no derivative; call kiln_stop_gradient if it is a constant", api_of(node), place(node->loc, where));
    }
    for (uint32_t k = 0; k < n_results; k++)
        if (got[k] == REF_NONE && t->flags & KILN_GRAD_CONNECTED)
            return unconnected(t, (int)k);
    TRY(export(w, end, n_live, got));
    if (log_on(LOG_GRADIENT))
        log_gradient(w, end, n_results, got);
    for (uint32_t k = 0; k < n_results; k++)
        if (!(t->result[k] = result(w, got[k], end, t->forward ? t->out[k]->node : t->in[k]->node)))
            return ST_OUT_OF_MEMORY;
    return ST_OK;
}

/* Adds those that a walk came to, whose rules are still to be made. */
static Status add_late(Late *late, uint32_t n, const struct LateRule *more)
{
    struct LateRule *at = os_realloc(late->at, sizeof *at * (late->n + n));
    if (!at)
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    late->at = at;
    for (uint32_t i = 0; i < n; i++)
        at[late->n++] = (struct LateRule){node_retain(more[i].node), more[i].of_stacked, NULL};
    return ST_OK;
}

static void end_late(Late *late)
{
    for (uint32_t i = 0; i < late->n; i++) {
        custom_release(late->at[i].custom);
        node_release(late->at[i].node);
    }
    os_free(late->at);
}

/* Runs the task; on error all results are NULL and the error is kept. Rules that are missing are recorded without the lock, as the functions in them
 * take it; then the walk begins anew. */
static kiln_status run(Rec *r, const Task *task)
{
    jmp_buf no_memory;
    const Rec before = *r;
    Late late = {0};
    int n = task->forward ? task->n_out : task->n_in;
    uint32_t made = 0;
    Status status = r->status;
    do {
        Walk w = {.r = r, .task = task, .late = &late};
        if (status == ST_OK && (status = eval_enter(NULL)) == ST_OK) {
            arena_init(&w.arena, &no_memory);
            if (setjmp(no_memory) == 0)
                status = derive(&w);
            else
                status = fail(ST_OUT_OF_MEMORY, "out of memory");
            if (status == ST_OK && w.ruleless.n)
                status = add_late(&late, (uint32_t)w.ruleless.n, w.ruleless.at);
            arena_free(&w.arena);
            eval_unlock();
        }
        r->api = before.api;
        r->loc = before.loc;
        const bool again = made < late.n;
        for (; made < late.n && status == ST_OK; made++)
            status = bodies_rule(late.at[made].node, task->forward, late.at[made].of_stacked, &late.at[made].custom);
        if (!again)
            break;
    } while (status == ST_OK);
    end_late(&late);
    if (status == ST_OK && !task->forward)
        status = r->thread->custom >= INSIDE_RULE ? ST_OK : group_new(r->thread, n, task->result);
    if (status != ST_OK && r->status == ST_OK)
        rec_failed(r, status);
    for (int k = 0; k < n && status != ST_OK; k++)
        task->result[k] = NULL;
    rec_end(r, NULL);
    return (kiln_status)status;
}

/* ---- arguments ---- */

/* Are these values that a gradient can be asked for? */
static void check_inputs(Rec *r, const Task *t)
{
    char text[SHAPE_TEXT], name[64];
    for (int i = 0; i < t->n_in && r->status == ST_OK; i++) {
        snprintf(name, sizeof name, "%s[%d]", t->in_name, i);
        const RtNode *x = rec_in(r, t->in[i], name);
        if (!x)
            return;
        if (x->weak)
            rec_fail(r, ST_INVALID, "%s is a %s: a number that is copied into what is recorded; use kiln_full(dtype, KILN_SHAPE(), value)",
                     name, node_text(x, text));
        else if (!dtype_is_float(node_dtype(x)))
            rec_fail(r, ST_DTYPE, "%s is %s: only floats have gradients", name, node_text(x, text));
        else if (!x->tracked)
            rec_fail(r, ST_INVALID, "%s is no parameter and not computed from one: call kiln_param before it is used", name);
    }
}

static void check_outputs(Rec *r, const Task *t)
{
    char text[SHAPE_TEXT], name[64];
    for (int k = 0; k < t->n_out && r->status == ST_OK; k++) {
        snprintf(name, sizeof name, "outputs[%d]", k);
        const RtNode *x = rec_in(r, t->out[k], name);
        if (x && (x->weak || !dtype_is_float(node_dtype(x))))
            rec_fail(r, ST_DTYPE, "%s is %s: only floats have gradients", name, node_text(x, text));
    }
}

static RtNode *seed_of(Rec *r, kiln_tensor *seed, const RtNode *x, const char *what, int k)
{
    char name[64];
    snprintf(name, sizeof name, "%s[%d]", what, k);
    return rec_like(r, seed, x, name);
}

/* What is common to kiln_vjp and kiln_jvp. */
static kiln_status products(Rec r, Task t, kiln_tensor *const *seeds, const char *what)
{
    int n_seeds = t.forward ? t.n_in : t.n_out, n_results = t.forward ? t.n_out : t.n_in;
    kiln_tensor *const *seeded = t.forward ? t.in : t.out;
    RtNode *few[8];
    if (t.result && n_results > 0)
        memset(t.result, 0, sizeof(kiln_tensor *) * (size_t)n_results);
    if (t.n_in < 0 || t.n_out < 0 || (t.n_in && !t.in) || (t.n_out && !t.out) || (n_seeds && !seeds) || (n_results && !t.result))
        rec_fail(&r, ST_INVALID, "needs arrays of inputs, outputs, %s and results", what);
    else if (t.flags & ~(unsigned)KILN_GRAD_CONNECTED)
        rec_fail(&r, ST_INVALID, "flags are %#x: there is KILN_GRAD_CONNECTED", t.flags);
    if (r.status != ST_OK) {
        rec_end(&r, NULL);
        return (kiln_status)r.status;
    }
    check_inputs(&r, &t);
    check_outputs(&r, &t);
    t.seed = n_seeds > 8 ? os_alloc(sizeof *t.seed * (size_t)n_seeds) : few;
    if (!t.seed)
        rec_fail(&r, ST_OUT_OF_MEMORY, "out of memory");
    for (int k = 0; k < n_seeds && r.status == ST_OK; k++)
        t.seed[k] = seed_of(&r, seeds[k], seeded[k]->node, what, k);
    kiln_status status = run(&r, &t);
    if (t.seed != few)
        os_free(t.seed);
    return status;
}

/* ---- the public functions ---- */

kiln_status kiln_grad(kiln_tensor *loss, kiln_tensor *const *params, int n, kiln_tensor **grads)
{
    return kiln_grad_at(loss, params, n, grads, NULL, 0);
}

kiln_status kiln_grad_at(kiln_tensor *loss, kiln_tensor *const *params, int n, kiln_tensor **grads, const char *file, int line)
{
    Rec r = REC(kiln_grad);
    char text[SHAPE_TEXT];
    RtNode *one = NULL;
    Task t = {.in_name = "params", .n_in = n, .n_out = 1, .in = params, .out = &loss, .seed = &one, .result = grads};
    if (grads && n > 0)
        memset(grads, 0, sizeof *grads * (size_t)n);
    if (n < 0 || (n && (!params || !grads))) {
        rec_fail(&r, ST_INVALID, "needs n >= 0 parameters and room for as many gradients");
        rec_end(&r, NULL);
        return KILN_INVALID;
    }
    RtNode *x = rec_in(&r, loss, "loss");
    if (x && (x->weak || !dtype_is_float(node_dtype(x))))
        rec_fail(&r, ST_DTYPE, "loss is %s: a float is needed", node_text(x, text));
    else if (x && node_elements(x) != 1)
        rec_fail(&r, ST_SHAPE, "loss is %s: one element is needed (kiln_sum, kiln_mean; or kiln_vjp)", node_text(x, text));
    else if (x) {
        check_inputs(&r, &t);
        one = rec_expand(&r, rec_scalar(&r, node_dtype(x), 1), x->rank, x->dim);
    }
    return run(&r, &t);
}

kiln_status kiln_vjp(int n_out, kiln_tensor *const *outputs, kiln_tensor *const *cotangents, int n_in, kiln_tensor *const *inputs,
                     unsigned flags, kiln_tensor **grads)
{
    return kiln_vjp_at(n_out, outputs, cotangents, n_in, inputs, flags, grads, NULL, 0);
}

kiln_status kiln_vjp_at(int n_out, kiln_tensor *const *outputs, kiln_tensor *const *cotangents, int n_in, kiln_tensor *const *inputs,
                        unsigned flags, kiln_tensor **grads, const char *file, int line)
{
    Task t = {.in_name = "inputs", .flags = flags, .n_in = n_in, .n_out = n_out, .in = inputs, .out = outputs, .result = grads};
    return products(REC(kiln_vjp), t, cotangents, "cotangents");
}

kiln_status kiln_jvp(int n_in, kiln_tensor *const *inputs, kiln_tensor *const *tangents, int n_out, kiln_tensor *const *outputs,
                     unsigned flags, kiln_tensor **out_tangents)
{
    return kiln_jvp_at(n_in, inputs, tangents, n_out, outputs, flags, out_tangents, NULL, 0);
}

kiln_status kiln_jvp_at(int n_in, kiln_tensor *const *inputs, kiln_tensor *const *tangents, int n_out, kiln_tensor *const *outputs,
                        unsigned flags, kiln_tensor **out_tangents, const char *file, int line)
{
    Task t = {.in_name = "inputs",
              .forward = true,
              .flags = flags,
              .n_in = n_in,
              .n_out = n_out,
              .in = inputs,
              .out = outputs,
              .result = out_tangents};
    return products(REC(kiln_jvp), t, tangents, "tangents");
}
