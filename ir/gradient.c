/*
 * The walks of reverse and forward mode over the rows of ir/gradients.def.
 *
 * Reverse mode goes from the newest node to the oldest. Each node has a list of what its users gave it; when the walk comes to it all of them
 * were there, so the list is summed (in the accumulator's dtype, rounded once to the node's) and the node's row passes it on. Only nodes that
 * depend on an input are looked at, and zeros are never made: no list, no cotangent. Forward mode goes the other way.
 */
#include "ir/gradient_rules.h"
#include "ir/pattern.h"

#include <pthread.h>
#include <string.h>

/* ---- the table ---- */

typedef enum RowKind { ROW_NONE, ROW_ZERO, ROW_REFUSED, ROW_EW, ROW_LINEAR, ROW_OWN } RowKind;

typedef struct Row {
    uint8_t kind, inputs; /* through which something flows */
    const char *text[3];
    VjpFn *vjp;
    JvpFn *jvp;
} Row;

enum { ALL = 255, EVERY = 255, TEXTS = 3, POOL = 512 };

#define NONE(op) ROW(op, {.kind = ROW_NONE})
#define ZERO(op) ROW(op, {.kind = ROW_ZERO})
#define REFUSED(op) ROW(op, {.kind = ROW_REFUSED, .inputs = EVERY})
#define EW1(op, x) ROW(op, {.kind = ROW_EW, .text = {x}})
#define EW2(op, x, y) ROW(op, {.kind = ROW_EW, .text = {x, y}})
#define EW3(op, x, y, z) ROW(op, {.kind = ROW_EW, .text = {x, y, z}})
#define LINEAR(op, inputs_, vjp_) ROW(op, {.kind = ROW_LINEAR, .inputs = inputs_, .vjp = vjp_})
#define OWN(op, inputs_, vjp_, jvp_) ROW(op, {.kind = ROW_OWN, .inputs = inputs_, .vjp = vjp_, .jvp = jvp_})

#define ROW(op, ...) GRADIENT_OF_##op,
enum {
#include "ir/gradients.def"
    ROWS
};
#undef ROW

#define ROW(op, ...) __VA_ARGS__,
static const Row rows[ROWS] = {
#include "ir/gradients.def"
};
#undef ROW

/* The row of each op. One that is missing above is a name here that does not exist. */
static const uint8_t row_of[OP_COUNT] = {
#define OP(id, text, arity, cls, rule, flags) GRADIENT_OF_##id,
#include "ir/ops.def"
#undef OP
};

static Pat pool[POOL];
static uint16_t parsed[OP_COUNT][TEXTS];
static uint8_t reads[OP_COUNT]; /* of x, y, z, g, r: those that some text of the op has */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void parse_rows(void)
{
    PatternPool patterns = {pool, 0, POOL};
    PatternUse use;
    for (int op = 0; op < OP_COUNT; op++)
        for (int k = 0; k < TEXTS; k++)
            if (rows[row_of[op]].text[k]) {
                parsed[op][k] = pattern_parse(&patterns, rows[row_of[op]].text[k], "xyzgr", &use);
                reads[op] |= use.vars;
            }
}

static void need_rows(void) { pthread_once(&once, parse_rows); }

bool gradient_flows(Op op, uint32_t k, DType in, DType result)
{
    const Row *row = &rows[row_of[op]];
    if (!dtype_is_float(in) || !dtype_is_float(result))
        return false;
    return row->kind == ROW_EW ? row->text[k] != NULL : row->inputs == ALL || (k < 8 && row->inputs >> k & 1);
}

bool gradient_reads(Op op, uint32_t k)
{
    const Row *row = &rows[row_of[op]];
    need_rows();
    switch ((RowKind)row->kind) {
    case ROW_NONE:
    case ROW_ZERO: return false;
    case ROW_EW: return (reads[op] >> k & 1) || (reads[op] >> 4 & 1);
    case ROW_LINEAR: return row->inputs != ALL && !(k < 8 && row->inputs >> k & 1);
    case ROW_REFUSED:
    case ROW_OWN: break;
    }
    return op != OP_CAST;
}

/* ---- elementwise ---- */

typedef struct Texts {
    Gradient *d;
    Ref of[5]; /* x, y, z, g, r; f16 and bf16 as f32 */
    DType dtype;
    Ref like; /* the node: literals have its shape */
} Texts;

static Ref build(const Texts *t, uint16_t index)
{
    const Pat *p = &pool[index];
    if (p->kind == PAT_VAR)
        return t->of[p->var];
    if (p->kind == PAT_LITERAL)
        return grad_number(t->d, t->dtype, p->value, t->like);
    Ref in[3] = {REF_NONE, REF_NONE, REF_NONE};
    for (int k = 0; k < p->n_in; k++)
        in[k] = build(t, p->in[k]);
    return rewrite_ew(&t->d->w, (Op)p->op, in[0], in[1], in[2], (Loc){0});
}

/* The text of input k of elementwise node r at g, in the accumulator's dtype. */
static Ref ew_text(Gradient *d, Ref r, uint32_t k, Ref g)
{
    const Node n = node_of(d, r);
    Texts t = {.d = d, .dtype = dtype_accumulator((DType)n.dtype), .like = r};
    uint16_t text = parsed[n.op][k];
    if (pool[text].kind == PAT_VAR) /* g itself: no casts there and back */
        return g;
    for (uint32_t i = 0; i < n.n_in; i++)
        t.of[i] = dtype_is_float(dtype_of(d, n.in[i])) ? grad_wide(d, n.in[i]) : n.in[i];
    t.of[3] = grad_wide(d, g);
    t.of[4] = grad_wide(d, r);
    return build(&t, text);
}

/* ---- what both modes share ---- */

static void start(Gradient *d, Graph *g, const GradientCalls *calls)
{
    static const GradientCalls none;
    need_rows();
    graph_keep_apart(g);
    *d = (Gradient){.g = g, .w = {.g = g}, .end = g->nodes.n, .calls = calls ? calls : &none};
    calls = d->calls;
    d->wanted = ARENA_ARRAY(g->arena, bool, d->end);
    d->is_in = ARENA_ARRAY(g->arena, bool, d->end);
    if (calls->n)
        d->call_of = ARENA_ARRAY(g->arena, uint32_t, d->end);
    for (uint32_t c = 0; c < calls->n; c++)
        for (uint32_t k = 0; k < calls->call[c].n_out; k++)
            d->call_of[calls->call[c].out[k]] = c + 1;
}

/* The call that node r is a result of, and something flows through; NULL: none. */
static const GradientCall *call_at(const Gradient *d, Ref r)
{
    bool is_result = d->call_of && d->call_of[r] && dtype_is_float(dtype_of(d, r));
    return is_result ? &d->calls->call[d->call_of[r] - 1] : NULL;
}

static bool call_flows(const Gradient *d, const GradientCall *call, uint32_t i)
{
    return d->wanted[call->in[i]] && dtype_is_float(dtype_of(d, call->in[i]));
}

static bool any_flows(const Gradient *d, const GradientCall *call)
{
    bool any = false;
    for (uint32_t i = 0; i < call->n_in && !any; i++)
        any = call_flows(d, call, i);
    return any;
}

/* The oldest of its results. */
static Ref first_of(const GradientCall *call)
{
    Ref first = call->out[0];
    for (uint32_t k = 1; k < call->n_out; k++)
        first = call->out[k] < first ? call->out[k] : first;
    return first;
}

static Ref zero_like(Gradient *d, Ref r)
{
    const Node n = node_of(d, r);
    return grad_zero(d, (DType)n.dtype, n.rank, n.dim);
}

static bool flows(const Gradient *d, const Node *n, uint32_t k)
{
    return !n->stop && d->wanted[n->in[k]] && gradient_flows((Op)n->op, k, dtype_of(d, n->in[k]), (DType)n->dtype);
}

bool grad_wants(const Gradient *d, Ref r, uint32_t k) { return flows(d, graph_node(d->g, r), k); }

/* Which nodes depend on one of `in`? */
static void find_wanted(Gradient *d, uint32_t n_in, const Ref *in)
{
    for (uint32_t i = 0; i < n_in; i++)
        d->is_in[in[i]] = true;
    for (Ref r = 0; r < d->end; r++) {
        const Node *n = graph_node(d->g, r);
        d->wanted[r] = d->is_in[r];
        for (uint32_t k = 0; k < n->n_in && !d->wanted[r]; k++)
            d->wanted[r] = flows(d, n, k);
        const GradientCall *call = d->wanted[r] ? NULL : call_at(d, r);
        d->wanted[r] |= call && any_flows(d, call);
    }
}

static bool refuses(const Gradient *d, Ref r, bool forward)
{
    const Node *n = graph_node(d->g, r);
    const GradientCall *call = call_at(d, r);
    bool asked = false;
    if (call)
        return any_flows(d, call) && !call->rule && !d->calls->has(call, forward);
    for (uint32_t k = 0; k < n->n_in; k++)
        asked |= flows(d, n, k);
    return asked && rows[row_of[n->op]].kind == ROW_REFUSED;
}

static Status no_derivative(const Gradient *d, Ref r, Ref *refused)
{
    *refused = r;
    return fail(ST_UNSUPPORTED, "%s has no derivative", op_name((Op)graph_node(d->g, r)->op));
}

/* The sum of parts of node r, rounded once to its dtype. */
static Ref sum(Gradient *d, Ref r, const Parts *parts)
{
    DType dtype = dtype_of(d, r);
    Ref total = parts->at[0];
    for (uint32_t k = 1; k < parts->n; k++) {
        total = grad_wide(d, total);
        total = grad_ew2(d, OP_ADD, total, grad_wide(d, parts->at[k]));
    }
    return grad_cast(d, total, dtype);
}

/* ---- reverse mode ---- */

void grad_give(Gradient *d, Ref x, Ref part) { VEC_PUSH(d->g->arena, d->parts[x], part); }

static void pass_on(Gradient *d, Ref r, Ref g)
{
    const Node n = node_of(d, r);
    const Row *row = &rows[row_of[n.op]];
    if (row->vjp) {
        row->vjp(d, r, g);
        return;
    }
    for (uint32_t k = 0; k < n.n_in && row->kind == ROW_EW; k++)
        if (flows(d, &n, k))
            grad_give(d, n.in[k], ew_text(d, r, k, g));
}

static void derive(Gradient *d, const GradientCall *call, bool forward, const Ref *seed, Ref *got)
{
    if (call->rule)
        call->rule->rule(d, call, forward, seed, got);
    else
        d->calls->derive(d->calls->user, call, forward, seed, got);
}

/* The results of the call have their cotangents: what flows to its inputs. */
static void call_back(Gradient *d, const GradientCall *call, const Ref *total)
{
    Ref *seed = ARENA_ARRAY(d->g->arena, Ref, call->n_results), *got = ARENA_ARRAY(d->g->arena, Ref, call->n_in);
    Parts *parts = ARENA_ARRAY(d->g->arena, Parts, call->n_results);
    for (uint32_t i = 0; i < call->n_results; i++)
        seed[i] = REF_NONE;
    for (uint32_t k = 0; k < call->n_out; k++) {
        Ref r = call->out[k];
        if (!dtype_is_float(dtype_of(d, r)))
            continue;
        seed[call->number[k]] = r; /* for now: that node */
        if (total[r] != REF_NONE)
            VEC_PUSH(d->g->arena, parts[call->number[k]], total[r]);
    }
    for (uint32_t i = 0; i < call->n_results; i++)
        if (seed[i] != REF_NONE)
            seed[i] = parts[i].n ? sum(d, seed[i], &parts[i]) : call->rule ? REF_NONE : zero_like(d, seed[i]);
    for (uint32_t i = 0; i < call->n_in; i++)
        got[i] = REF_NONE;
    derive(d, call, false, seed, got);
    for (uint32_t i = 0; i < call->n_in; i++)
        if (got[i] != REF_NONE && call_flows(d, call, i))
            grad_give(d, call->in[i], got[i]);
}

Status gradient_vjp(Graph *g, const GradientCalls *calls, uint32_t n_out, const Ref *out, const Ref *cotangent, uint32_t n_in,
                    const Ref *in, Ref *grad, Ref *refused)
{
    Gradient d;
    start(&d, g, calls);
    uint32_t origin = g->origin;
    find_wanted(&d, n_in, in);
    d.parts = ARENA_ARRAY(g->arena, Parts, d.end);
    Ref *total = ARENA_ARRAY(g->arena, Ref, d.end);
    bool *asked = ARENA_ARRAY(g->arena, bool, d.calls->n);
    for (uint32_t k = 0; k < n_out; k++)
        grad_give(&d, out[k], cotangent[k]);
    for (Ref r = d.end; r-- > 0;) {
        const GradientCall *call = call_at(&d, r);
        total[r] = REF_NONE;
        g->origin = r;
        if (d.wanted[r] && d.parts[r].n) {
            if (refuses(&d, r, false))
                return no_derivative(&d, r, refused);
            total[r] = sum(&d, r, &d.parts[r]);
            if (call)
                asked[call - d.calls->call] = any_flows(&d, call);
            else if (!graph_node(g, r)->stop)
                pass_on(&d, r, total[r]);
        }
        if (call && asked[call - d.calls->call] && r == first_of(call))
            call_back(&d, call, total);
    }
    for (uint32_t i = 0; i < n_in; i++)
        grad[i] = total[in[i]];
    g->origin = origin;
    return ST_OK;
}

/* ---- forward mode ---- */

/* The op itself on the tangents of the inputs that it is linear in. */
static Ref linear(Gradient *d, Ref r, const Ref *t)
{
    const Node n = node_of(d, r);
    Ref *in = ARENA_ARRAY(d->g->arena, Ref, n.n_in);
    for (uint32_t k = 0; k < n.n_in; k++) {
        const Node x = node_of(d, n.in[k]);
        if (t[k] != REF_NONE)
            in[k] = t[k];
        else if (gradient_flows((Op)n.op, k, (DType)x.dtype, (DType)n.dtype))
            in[k] = grad_zero(d, (DType)x.dtype, x.rank, x.dim);
        else
            in[k] = n.in[k];
    }
    return grad_node(d, (Op)n.op, in, n.n_in, &n.attr, n.fact, n.n_facts);
}

static void tangents_of(Gradient *d, Ref r, Parts *parts)
{
    const Node n = node_of(d, r);
    const Row *row = &rows[row_of[n.op]];
    Ref *t = ARENA_ARRAY(d->g->arena, Ref, n.n_in);
    bool any = false;
    for (uint32_t k = 0; k < n.n_in; k++) {
        t[k] = flows(d, &n, k) ? d->tangent[n.in[k]] : REF_NONE;
        any |= t[k] != REF_NONE;
        if (row->kind == ROW_EW && t[k] != REF_NONE)
            VEC_PUSH(d->g->arena, *parts, ew_text(d, r, k, t[k]));
    }
    if (any && row->kind == ROW_LINEAR)
        VEC_PUSH(d->g->arena, *parts, linear(d, r, t));
    else if (any && row->jvp)
        VEC_PUSH(d->g->arena, *parts, row->jvp(d, r, t));
}

/* Tangents of the call's results from those of its inputs, which are older than the first of them. */
static Ref *call_forward(Gradient *d, const GradientCall *call)
{
    Ref *seed = ARENA_ARRAY(d->g->arena, Ref, call->n_in), *got = ARENA_ARRAY(d->g->arena, Ref, call->n_results);
    bool any = false;
    for (uint32_t i = 0; i < call->n_in; i++) {
        seed[i] = call_flows(d, call, i) ? d->tangent[call->in[i]] : REF_NONE;
        any |= seed[i] != REF_NONE;
    }
    for (uint32_t i = 0; any && !call->rule && i < call->n_in; i++)
        if (seed[i] == REF_NONE && dtype_is_float(dtype_of(d, call->in[i])))
            seed[i] = zero_like(d, call->in[i]);
    for (uint32_t i = 0; i < call->n_results; i++)
        got[i] = REF_NONE;
    if (any)
        derive(d, call, true, seed, got);
    return got;
}

Status gradient_jvp(Graph *g, const GradientCalls *calls, uint32_t n_in, const Ref *in, const Ref *tangent, uint32_t n_out, const Ref *out,
                    Ref *out_tangent, Ref *refused)
{
    Gradient d;
    start(&d, g, calls);
    uint32_t origin = g->origin;
    find_wanted(&d, n_in, in);
    d.tangent = ARENA_ARRAY(g->arena, Ref, d.end);
    bool *needed = ARENA_ARRAY(g->arena, bool, d.end);
    for (uint32_t k = 0; k < n_out; k++)
        needed[out[k]] = true;
    for (Ref r = d.end; r-- > 0;) {
        const GradientCall *call = needed[r] ? call_at(&d, r) : NULL;
        for (uint32_t k = 0; needed[r] && k < graph_node(g, r)->n_in; k++)
            needed[graph_node(g, r)->in[k]] |= flows(&d, graph_node(g, r), k);
        for (uint32_t i = 0; call && i < call->n_in; i++)
            needed[call->in[i]] |= call_flows(&d, call, i);
    }
    Ref **of_call = ARENA_ARRAY(g->arena, Ref *, d.calls->n);
    for (Ref r = 0; r < d.end; r++) {
        const GradientCall *call = call_at(&d, r);
        Parts parts = {0};
        d.tangent[r] = REF_NONE;
        if (!d.wanted[r] || !needed[r])
            continue;
        if (refuses(&d, r, true))
            return no_derivative(&d, r, refused);
        g->origin = r;
        for (uint32_t i = 0; i < n_in; i++)
            if (in[i] == r)
                VEC_PUSH(g->arena, parts, tangent[i]);
        if (call && !of_call[call - d.calls->call])
            of_call[call - d.calls->call] = call_forward(&d, call);
        for (uint32_t k = 0; call && k < call->n_out; k++)
            if (call->out[k] == r && of_call[call - d.calls->call][call->number[k]] != REF_NONE)
                VEC_PUSH(g->arena, parts, of_call[call - d.calls->call][call->number[k]]);
        tangents_of(&d, r, &parts);
        if (parts.n)
            d.tangent[r] = sum(&d, r, &parts);
    }
    for (uint32_t k = 0; k < n_out; k++)
        out_tangent[k] = d.tangent[out[k]];
    g->origin = origin;
    return ST_OK;
}
