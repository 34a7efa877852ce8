/*
 * The view of a graph that passes of users get: see ir/view.h.
 *
 *     recorded   0 1 2 3 4 5 |          n_recorded is where the pass began
 *     built                  | 6 7 8    graph_add with nothing merged across the border: `neg %2` that is built is not the %3 that was there
 *
 * Replacing %2 by %7 writes 7 into the operand lists of the recorded nodes that read 2 (and into the outputs), so all who look see it at
 * once; the list is out of order until view_end writes it anew. That %7 reads none of those is looked up before: a graph never has a circle.
 */
#include "ir/view.h"
#include "ir/attr.h"
#include "ir/infer.h"
#include "ir/match.h"
#include "ir/query.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { POOL = 256 };

struct GraphView {
    Graph *g;
    const char *who;
    int depth;
    uint32_t n_recorded, n_replaced;
    Ref *to; /* by node: what it was replaced by; REF_NONE: it was not */
    uint32_t n_to;
    Ref *user, *first_user; /* users of r: user[first_user[r]] to user[first_user[r + 1]]; first_user NULL: out of date */
    Status status;
    char message[512];
};

void view_fail(GraphView *v, Status status, const char *format, ...)
{
    va_list args;
    if (v->status != ST_OK)
        return;
    v->status = status;
    va_start(args, format);
    vsnprintf(v->message, sizeof v->message, format, args);
    va_end(args);
}

/* Runs one function of the view where memory may run out: the jump ends here. false: it did. */
typedef void ViewFn(GraphView *v, void *arg);
static bool within(GraphView *v, ViewFn *fn, void *arg)
{
    Arena *arena = v->g->arena;
    jmp_buf here, *outer = arena->oom;
    DimPairs *noted = v->g->shared->noted;
    arena->oom = &here;
    bool whole = setjmp(here) == 0;
    if (whole) {
        fn(v, arg);
    } else {
        v->g->shared->noted = noted;
        view_fail(v, ST_OUT_OF_MEMORY, "no memory");
    }
    arena->oom = outer;
    return whole;
}

GraphView *view_begin(Graph *g, const char *who, int depth)
{
    GraphView *v = ARENA_NEW(g->arena, GraphView);
    *v = (GraphView){.g = g, .who = who, .depth = depth, .n_recorded = g->nodes.n};
    graph_keep_apart(g);
    return v;
}

/* ---- looking ---- */

int view_depth(const GraphView *v) { return v->depth; }
uint32_t view_nodes(const GraphView *v) { return v->n_recorded; }
bool view_has(const GraphView *v, int64_t node) { return node >= 0 && node < v->g->nodes.n; }
const Node *view_node(const GraphView *v, Ref r) { return graph_node(v->g, r); }

/* What stands for r by now. */
static Ref resolve(const GraphView *v, Ref r)
{
    while (r < v->n_to && v->to[r] != REF_NONE)
        r = v->to[r];
    return r;
}

bool view_is_output(const GraphView *v, Ref r)
{
    for (uint32_t k = 0; k < v->g->outputs.n; k++)
        if (v->g->outputs.at[k] == r)
            return true;
    return false;
}

/* Marks `root` and all that it is made of. */
static void mark_made_of(const Graph *g, Ref root, bool *marked)
{
    VEC(Ref) stack = {0};
    VEC_PUSH(g->arena, stack, root);
    while (stack.n) {
        Ref r = stack.at[--stack.n];
        const Node *n = graph_node(g, r);
        for (uint32_t k = 0; !marked[r] && k < n->n_in; k++)
            if (!marked[n->in[k]])
                VEC_PUSH(g->arena, stack, n->in[k]);
        marked[r] = true;
    }
}

/* Nodes that some output needs, and those that were built. */
static bool *live_nodes(const GraphView *v)
{
    const Graph *g = v->g;
    bool *live = ARENA_ARRAY(g->arena, bool, g->nodes.n);
    for (uint32_t k = 0; k < g->outputs.n; k++)
        mark_made_of(g, g->outputs.at[k], live);
    for (Ref r = v->n_recorded; r < g->nodes.n; r++)
        mark_made_of(g, r, live);
    return live;
}

static void find_users(GraphView *v, void *unused)
{
    (void)unused;
    const Graph *g = v->g;
    const bool *live = live_nodes(v);
    uint32_t n = g->nodes.n, *first = ARENA_ARRAY(g->arena, uint32_t, n + 2), total = 0;
    for (int round = 0; round < 2; round++) { /* counted, then entered */
        for (Ref r = 0; r < n; r++) {
            const Ref *in_of = graph_node(g, r)->in;
            for (uint32_t k = 0; live[r] && k < graph_node(g, r)->n_in; k++) {
                Ref in = in_of[k];
                bool again = false; /* mul %1 %1 is one user */
                for (uint32_t j = 0; j < k; j++)
                    again |= in_of[j] == in;
                if (again)
                    continue;
                if (round == 0)
                    first[in + 2]++;
                else
                    v->user[first[in + 1]++] = r;
            }
        }
        for (Ref r = 0; round == 0 && r < n; r++)
            first[r + 2] += first[r + 1];
        if (round == 0) {
            total = first[n + 1];
            v->user = ARENA_ARRAY(g->arena, Ref, total);
        }
    }
    v->first_user = first;
}

uint32_t view_users(GraphView *v, Ref r, const Ref **users)
{
    *users = NULL;
    if (!v->first_user && !within(v, find_users, NULL))
        return 0;
    *users = v->user + v->first_user[r];
    return v->first_user[r + 1] - v->first_user[r];
}

typedef struct TextCall {
    Ref r;
    bool attributes;
    const char *text;
} TextCall;

static void write_text(GraphView *v, void *arg)
{
    TextCall *c = arg;
    const Node *n = graph_node(v->g, c->r);
    Str out;
    str_init(&out, v->g->arena);
    if (c->attributes)
        attr_print((Op)n->op, &n->attr, n->rank, &out);
    else
        node_print(v->g, c->r, &out);
    c->text = out.text + (c->attributes && *out.text == ' ');
}

static const char *text_of(GraphView *v, Ref r, bool attributes)
{
    TextCall c = {r, attributes, NULL};
    return within(v, write_text, &c) ? c.text : NULL;
}

const char *view_attributes(GraphView *v, Ref r) { return text_of(v, r, true); }
const char *view_text(GraphView *v, Ref r) { return text_of(v, r, false); }

/* ---- asking ---- */

typedef struct SizeCall {
    Dim dim;
    bool known;
    int64_t size;
} SizeCall;

static void ask_size(GraphView *v, void *arg)
{
    SizeCall *c = arg;
    c->known = spec_dim(v->g, c->dim, v->who, &c->size);
}

bool view_size(GraphView *v, Ref r, int axis, int64_t *size)
{
    SizeCall c = {.dim = graph_node(v->g, r)->dim[axis]};
    if (!within(v, ask_size, &c) || !c.known)
        return false;
    *size = c.size;
    return true;
}

int64_t view_size_now(const GraphView *v, Ref r, int axis) { return dim_hint(v->g, graph_node(v->g, r)->dim[axis]); }

typedef struct NumberCall {
    Ref r;
    bool known;
    double number;
} NumberCall;

static void ask_number(GraphView *v, void *arg)
{
    NumberCall *c = arg;
    uint64_t bits;
    Ref s = scalar_source(v->g, c->r);
    c->known = s != REF_NONE && spec_scalar(v->g, s, v->who, &bits);
    if (c->known)
        c->number = scalar_to_double((DType)graph_node(v->g, s)->dtype, bits);
}

bool view_number(GraphView *v, Ref r, double *number)
{
    NumberCall c = {.r = r};
    if (!within(v, ask_number, &c) || !c.known)
        return false;
    *number = c.number;
    return true;
}

/* ---- matching ---- */

typedef struct MatchCall {
    const Pat *pool;
    uint16_t root;
    uint8_t n_swaps;
    Ref r;
    bool fits;
    Match m;
} MatchCall;

static void try_match(GraphView *v, void *arg)
{
    MatchCall *c = arg;
    c->fits = pattern_match(v->g, c->pool, c->root, c->n_swaps, c->r, &c->m) && match_ask(&c->m, v->who);
}

static bool read_expression(GraphView *v, const char *text, PatternPool *pool, PatternUse *use, uint16_t *root)
{
    if (pattern_read(pool, text, rule_variable_letters, use, root) == ST_OK)
        return true;
    view_fail(v, ST_INVALID, "\"%s\", %s", text, fail_message());
    return false;
}

bool view_match(GraphView *v, Ref r, const char *pattern, Ref vars[4])
{
    Pat pats[POOL];
    PatternPool pool = {pats, 0, POOL};
    PatternUse use;
    MatchCall c = {.pool = pats, .r = r};
    if (!read_expression(v, pattern, &pool, &use, &c.root))
        return false;
    c.n_swaps = use.n_swaps;
    if (!within(v, try_match, &c) || !c.fits)
        return false;
    memcpy(vars, c.m.var, sizeof c.m.var);
    return true;
}

/* ---- building ---- */

typedef struct OpCall {
    AttrText text;
    const Ref *in;
    uint32_t n_in;
    Ref made;
} OpCall;

/* New nodes are of the phase of the latest operand, and tell of its place. */
static void follow(GraphView *v, const Ref *in, uint32_t n_in)
{
    Graph *g = v->g;
    const Node *of = NULL;
    for (uint32_t k = 0; k < n_in; k++)
        if (!of || graph_node(g, in[k])->phase > of->phase)
            of = graph_node(g, in[k]);
    g->origin = of ? of->origin : 0;
    g->phase = of ? of->phase : 0;
    g->checkpoint = of ? of->checkpoint : 0;
}

/* In every graph of this structure. */
static bool is_one(Graph *g, Dim d) { return dim_same(g, d, dim_const(g, 1)); }

/* r with axes of size 1 before its own and repeated, so that it has these sizes. The caller knows that it can be. */
static Ref repeat(GraphView *v, Ref r, int rank, const Dim *dims)
{
    Graph *g = v->g;
    Node n = *graph_node(g, r);
    Rewriter plain = {.g = g};
    if (n.rank == 0)
        return rewrite_broadcast(&plain, r, rank, dims, n.loc);
    if (n.rank < rank) {
        Attr insert = {.n = (uint32_t)rank};
        for (int d = 0; d < rank; d++) {
            insert.group.in[d] = d >= rank - n.rank;
            insert.group.out[d] = 1;
        }
        r = graph_add(g, OP_RESHAPE, (DType)n.dtype, &r, 1, &insert, NULL, 0, n.loc);
        n = *graph_node(g, r);
    }
    Attr attr = {0};
    Dim facts[MAX_RANK];
    uint32_t n_facts = 0;
    for (int d = 0; d < rank; d++) {
        bool one = dim_hint(g, n.dim[d]) != dim_hint(g, dims[d]) || is_one(g, n.dim[d]); /* else guarded to be what is wanted */
        if (!one || dim_same(g, n.dim[d], dims[d]))
            continue;
        attr.mask = (uint8_t)(attr.mask | 1u << d);
        facts[n_facts++] = dims[d];
    }
    return n_facts ? graph_add(g, OP_EXPAND, (DType)n.dtype, &r, 1, &attr, facts, n_facts, n.loc) : r;
}

/* The size of axis d of the result: that of an operand which is not 1, if there is one; DIM_NONE: no operand has the axis. */
static Dim wanted_size(Graph *g, const Ref *in, uint32_t n_in, int rank, int d)
{
    Dim wanted = DIM_NONE;
    for (uint32_t k = 0; k < n_in; k++) {
        const Node *n = graph_node(g, in[k]);
        int axis = d - (rank - n->rank);
        if (axis < 0)
            continue;
        bool better = wanted == DIM_NONE || (is_one(g, wanted) && !is_one(g, n->dim[axis])) ||
                      (dim_hint(g, wanted) == 1 && dim_hint(g, n->dim[axis]) != 1);
        wanted = better ? n->dim[axis] : wanted;
    }
    return wanted;
}

/* Operands of an elementwise op brought to one shape, as NumPy does. false: they do not fit (an error), or may not in other graphs. */
static bool broadcast(GraphView *v, Ref *in, uint32_t n_in)
{
    Graph *g = v->g;
    Dim dims[MAX_RANK];
    int rank = 0;
    for (uint32_t k = 0; k < n_in; k++)
        rank = graph_node(g, in[k])->rank > rank ? graph_node(g, in[k])->rank : rank;
    for (int d = 0; d < rank; d++) {
        dims[d] = wanted_size(g, in, n_in, rank, d);
        for (uint32_t k = 0; k < n_in; k++) {
            const Node *n = graph_node(g, in[k]);
            int axis = d - (rank - n->rank);
            if (axis < 0 || is_one(g, n->dim[axis]))
                continue;
            int64_t mine = dim_hint(g, n->dim[axis]), wanted = dim_hint(g, dims[d]);
            if (mine != 1 && mine != wanted) {
                view_fail(v, ST_SHAPE, "operands do not fit: axis %d is %lld in one and %lld in another", d, (long long)wanted,
                          (long long)mine);
                return false;
            }
            if (mine == wanted ? !spec_dim_same(g, n->dim[axis], dims[d], v->who) : !spec_dim_eq(g, n->dim[axis], 1, v->who))
                return false;
        }
    }
    for (uint32_t k = 0; k < n_in; k++)
        in[k] = repeat(v, in[k], rank, dims);
    return true;
}

static Shape shape_of(const Graph *g, Ref r)
{
    const Node *n = graph_node(g, r);
    Shape shape = {.dtype = n->dtype, .rank = n->rank};
    for (int d = 0; d < n->rank; d++)
        shape.dim[d] = dim_hint(g, n->dim[d]);
    return shape;
}

/* What the op needs of sizes, beyond what infer_dims unifies: that a range lies within its axis. */
static bool ask_ranges(GraphView *v, const AttrText *t, Ref x)
{
    const Node *n = graph_node(v->g, x);
    for (int d = 0; d < n->rank; d++) {
        int64_t ignored;
        bool concerned = t->op == OP_SLICE ? t->attr.mask >> d & 1 : t->op == OP_WINDOW && t->attr.axis == d;
        if (concerned && !spec_dim(v->g, n->dim[d], v->who, &ignored))
            return false;
    }
    return true;
}

/* Asks for each pair of sizes that the op would unify. */
static bool ask_equal(GraphView *v, const AttrText *t, const Ref *in, uint32_t n_in)
{
    Graph *g = v->g;
    DimPairs pairs = {0};
    uint8_t rank;
    Dim dims[MAX_RANK];
    g->shared->noted = &pairs;
    infer_dims(g, t->op, &t->attr, n_in, in, t->facts, &rank, dims);
    g->shared->noted = NULL;
    for (uint32_t k = 0; k < pairs.n; k++)
        if (!spec_dim_same(g, pairs.at[k].a, pairs.at[k].b, v->who))
            return false;
    return true;
}

static void add_op(GraphView *v, void *arg)
{
    OpCall *c = arg;
    Graph *g = v->g;
    const AttrText *t = &c->text;
    Ref *in = arena_copy(g->arena, c->in, sizeof *in * c->n_in);
    Shape *shapes = ARENA_ARRAY(g->arena, Shape, c->n_in), out;
    int64_t *facts = ARENA_ARRAY(g->arena, int64_t, t->n_facts);
    follow(v, in, c->n_in);
    uint32_t mark = query_mark(g);
    if (op_class(t->op) == CLS_EW && !broadcast(v, in, c->n_in)) {
        query_undo(g, mark);
        return;
    }
    for (uint32_t k = 0; k < c->n_in; k++)
        shapes[k] = shape_of(g, in[k]);
    for (uint32_t k = 0; k < t->n_facts; k++)
        facts[k] = dim_hint(g, t->facts[k]);
    if (infer_shape(t->op, &t->attr, c->n_in, shapes, facts, t->n_facts, t->own, &out) != ST_OK) {
        view_fail(v, ST_SHAPE, "%s: %s", op_name(t->op), fail_message());
        return;
    }
    if (!ask_ranges(v, t, in[0]) || !ask_equal(v, t, in, c->n_in)) {
        query_undo(g, mark);
        return;
    }
    c->made = graph_add(g, t->op, (DType)out.dtype, in, c->n_in, &t->attr, t->facts, t->n_facts, graph_node(g, in[0])->loc);
    v->first_user = NULL;
}

static Ref checked_op(GraphView *v, const AttrText *t, const Ref *in, uint32_t n_in)
{
    OpCall c = {.text = *t, .in = in, .n_in = n_in, .made = REF_NONE};
    OpClass cls = op_class(t->op);
    int arity = op_info[t->op].arity;
    if (cls == CLS_LEAF || cls == CLS_BODY || cls == CLS_RESULT) {
        view_fail(v, ST_UNSUPPORTED, "%s: a pass cannot build it", op_name(t->op));
        return REF_NONE;
    }
    if ((arity != ARITY_ANY && (uint32_t)arity != n_in) || n_in == 0) {
        view_fail(v, ST_INVALID, "%s takes %d operand%s, not %u", op_name(t->op), arity == ARITY_ANY ? 1 : arity,
                  arity == ARITY_ANY ? " or more"
                  : arity == 1       ? ""
                                     : "s",
                  n_in);
        return REF_NONE;
    }
    if (t->n_facts != infer_fact_count(t->op, &t->attr, 0)) {
        view_fail(v, ST_INVALID, "%s needs %u sizes here, not %u", op_name(t->op), infer_fact_count(t->op, &t->attr, 0), t->n_facts);
        return REF_NONE;
    }
    for (uint32_t k = 0; k < n_in; k++) {
        if (op_class((Op)graph_node(v->g, in[k])->op) == CLS_BODY) {
            view_fail(v, ST_INVALID, "%s: operand %u is a %s, which has no value but its results", op_name(t->op), k,
                      op_name((Op)graph_node(v->g, in[k])->op));
            return REF_NONE;
        }
    }
    return within(v, add_op, &c) ? c.made : REF_NONE;
}

typedef struct ParseCall {
    const char *text;
    AttrText out;
    bool good;
} ParseCall;

static void parse_op(GraphView *v, void *arg)
{
    ParseCall *c = arg;
    c->good = attr_parse(v->g, c->text, &c->out) == ST_OK;
    if (!c->good)
        view_fail(v, ST_INVALID, "\"%s\" is no op with its attributes: %s", c->text, fail_message());
}

Ref view_op(GraphView *v, const char *op, const Ref *in, uint32_t n_in)
{
    ParseCall c = {.text = op};
    return within(v, parse_op, &c) && c.good ? checked_op(v, &c.out, in, n_in) : REF_NONE;
}

typedef struct ConstantCall {
    DType dtype;
    double value;
    Ref made;
} ConstantCall;

static void add_constant(GraphView *v, void *arg)
{
    ConstantCall *c = arg;
    v->g->origin = 0;
    c->made = graph_add_const(v->g, c->dtype, scalar_from_double(c->dtype, c->value), (Loc){0});
    v->first_user = NULL;
}

Ref view_constant(GraphView *v, DType dtype, double value)
{
    ConstantCall c = {dtype, value, REF_NONE};
    if (!pattern_literal_exists(dtype, value)) {
        view_fail(v, ST_INVALID, "%g is no %s", value, dtype_name(dtype));
        return REF_NONE;
    }
    return within(v, add_constant, &c) ? c.made : REF_NONE;
}

static Ref build(GraphView *v, const Pat *pool, uint16_t index, const Ref vars[4], DType literal)
{
    const Pat *p = &pool[index];
    if (p->kind == PAT_VAR) {
        if (vars[p->var] == REF_NONE)
            view_fail(v, ST_INVALID, "the expression has a %c, and no node stands for it", rule_variable_letters[p->var]);
        return vars[p->var];
    }
    if (p->kind == PAT_LITERAL)
        return view_constant(v, literal, p->value);
    Ref in[3] = {REF_NONE, REF_NONE, REF_NONE};
    for (int round = 0; round < 2; round++) { /* a number takes the dtype of an operand beside it */
        for (int k = 0; k < p->n_in; k++) {
            if ((pool[p->in[k]].kind == PAT_LITERAL) != (round == 1))
                continue;
            in[k] = build(v, pool, p->in[k], vars, p->op == OP_WHERE && k == 0 ? DT_BOOL : literal);
            if (in[k] == REF_NONE)
                return REF_NONE;
            if (round == 0 && !(p->op == OP_WHERE && k == 0))
                literal = (DType)graph_node(v->g, in[k])->dtype;
        }
    }
    AttrText t = {.op = (Op)p->op, .own = DT_COUNT};
    return checked_op(v, &t, in, p->n_in);
}

Ref view_build(GraphView *v, const char *expression, const Ref vars[4])
{
    Pat pats[POOL];
    PatternPool pool = {pats, 0, POOL};
    PatternUse use;
    uint16_t root;
    if (!read_expression(v, expression, &pool, &use, &root))
        return REF_NONE;
    Ref x = vars[0] != REF_NONE ? vars[0] : vars[3];
    return build(v, pats, root, vars, x != REF_NONE ? (DType)graph_node(v->g, x)->dtype : DT_F32);
}

/* ---- replacing ---- */

typedef struct ReplaceCall {
    Ref old, with;
    bool done;
} ReplaceCall;

static bool reads(const Node *n, Ref r)
{
    for (uint32_t k = 0; k < n->n_in; k++)
        if (n->in[k] == r)
            return true;
    return false;
}

static void replace(GraphView *v, void *arg)
{
    ReplaceCall *c = arg;
    Graph *g = v->g;
    bool *needed = ARENA_ARRAY(g->arena, bool, g->nodes.n);
    mark_made_of(g, c->with, needed);
    for (Ref r = 0; r < v->n_recorded; r++) {
        if (needed[r] && reads(graph_node(g, r), c->old)) {
            view_fail(v, ST_INVALID, "%%%u (%s) would be made of itself if %%%u were replaced by %%%u", r,
                      op_name((Op)graph_node(g, r)->op), c->old, c->with);
            return;
        }
    }
    const Node *a = graph_node(g, c->old), *b = graph_node(g, c->with);
    uint32_t mark = query_mark(g);
    for (int d = 0; d < a->rank; d++) {
        if (!spec_dim_same(g, a->dim[d], b->dim[d], v->who)) {
            query_undo(g, mark);
            return;
        }
    }
    if (v->n_to < g->nodes.n) {
        Ref *to = ARENA_ARRAY(g->arena, Ref, g->nodes.n);
        memset(to, 0xff, sizeof *to * g->nodes.n);
        for (uint32_t r = 0; r < v->n_to; r++)
            to[r] = v->to[r];
        v->to = to;
        v->n_to = g->nodes.n;
    }
    v->to[c->old] = c->with;
    for (Ref r = 0; r < v->n_recorded; r++)
        for (uint32_t k = 0; k < graph_node(g, r)->n_in; k++)
            if (graph_node(g, r)->in[k] == c->old)
                graph_node(g, r)->in[k] = c->with;
    for (uint32_t k = 0; k < g->outputs.n; k++)
        if (g->outputs.at[k] == c->old)
            g->outputs.at[k] = c->with;
    v->n_replaced++;
    v->first_user = NULL;
    c->done = true;
}

bool view_replace(GraphView *v, Ref old, Ref with)
{
    ReplaceCall c = {old, with, false};
    char before[SHAPE_TEXT], after[SHAPE_TEXT];
    if (op_class((Op)graph_node(v->g, old)->op) == CLS_BODY || op_class((Op)graph_node(v->g, with)->op) == CLS_BODY) {
        view_fail(v, ST_INVALID, "%%%u or %%%u has no value, only results: those can be replaced", old, with);
        return false;
    }
    if (resolve(v, old) != old || resolve(v, with) != with) {
        view_fail(v, ST_INVALID, "%%%u was replaced already", resolve(v, old) != old ? old : with);
        return false;
    }
    if (with == old)
        return true;
    Shape a = shape_of(v->g, old), b = shape_of(v->g, with);
    bool same = a.dtype == b.dtype && a.rank == b.rank && memcmp(a.dim, b.dim, sizeof *a.dim * a.rank) == 0;
    if (!same) {
        view_fail(v, ST_SHAPE, "%%%u is %s and cannot be replaced by %%%u, which is %s", old, shape_text(&a, before), with,
                  shape_text(&b, after));
        return false;
    }
    return within(v, replace, &c) && c.done;
}

/* ---- the graph in order ---- */

typedef struct Order {
    Graph *g;
    const Node *old;
    Ref *map; /* to the new list; REF_NONE: not in it yet */
} Order;

typedef struct Frame {
    Ref r;
    uint32_t k;
} Frame;

static void put(Order *o, Ref r)
{
    Node n = o->old[r];
    n.in = arena_copy(o->g->arena, n.in, sizeof *n.in * n.n_in);
    for (uint32_t k = 0; k < n.n_in; k++)
        n.in[k] = o->map[n.in[k]];
    n.number = n.n_in ? graph_is_number(o->g, &n) : n.number;
    o->map[r] = o->g->nodes.n;
    VEC_PUSH(o->g->arena, o->g->nodes, n);
}

/* Puts r behind what it reads; not by recursion, since chains are long. */
static void put_with_operands(Order *o, Ref root)
{
    Arena *arena = o->g->arena;
    VEC(Frame) stack = {0};
    VEC_PUSH(arena, stack, ((Frame){root, 0}));
    while (stack.n) {
        Frame *top = &stack.at[stack.n - 1];
        const Node *n = &o->old[top->r];
        bool there = o->map[top->r] != REF_NONE;
        if (there || top->k == n->n_in) {
            if (!there)
                put(o, top->r);
            stack.n--;
        } else if (o->map[n->in[top->k++]] == REF_NONE) {
            VEC_PUSH(arena, stack, ((Frame){n->in[top->k - 1], 0}));
        }
    }
}

static void put_in_order(GraphView *v)
{
    Graph *g = v->g;
    uint32_t n = g->nodes.n;
    const bool *live = live_nodes(v);
    Order o = {.g = g, .old = g->nodes.at, .map = ARENA_ARRAY(g->arena, Ref, n)};
    memset(o.map, 0xff, sizeof *o.map * n);
    memset(&g->nodes, 0, sizeof g->nodes);
    VEC_RESERVE(g->arena, g->nodes, n + 1);
    for (Ref r = 0; r < n; r++)
        if (live[r] || o.old[r].op == OP_INPUT)
            put_with_operands(&o, r);
    for (uint32_t k = 0; k < g->inputs.n; k++)
        g->inputs.at[k] = o.map[g->inputs.at[k]];
    for (Ref r = 0; r < n; r++) /* what is told of a node that is gone is told of what stands for it */
        if (o.map[r] == REF_NONE)
            o.map[r] = o.map[resolve(v, r)];
    graph_remap(g, o.map, n);
}

Status view_end(GraphView *v, uint32_t *built, uint32_t *replaced)
{
    Graph *g = v->g;
    *built = g->nodes.n - v->n_recorded;
    *replaced = v->n_replaced;
    g->origin = g->phase = g->checkpoint = 0;
    if (v->status != ST_OK)
        return fail(v->status == ST_OUT_OF_MEMORY ? ST_OUT_OF_MEMORY : ST_COMPILE, "%s", v->message);
    if (v->n_replaced)
        put_in_order(v);
    graph_compact(g, NULL);
    return ST_OK;
}
