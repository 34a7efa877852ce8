/*
 * Parses the text form; the grammar is at the top of ir/text.c.
 *
 * One pass by recursive descent over a scanner that knows line and column. Every node is checked by
 * infer_shape before it is added, so text from anywhere is safe: what does not fit is ST_FORMAT
 * with the place. References may leave numbers out; an integer that names something is bounded by
 * the length of the text, so small texts make small graphs.
 */
#include "ir/attr.h"
#include "ir/body.h"
#include "ir/infer.h"
#include "ir/text.h"

#include <ctype.h>
#include <string.h>

enum { MAX_NEST = 5000, MAX_GAP = 1 << 20 };

typedef struct Parser {
    Graph *g;
    Scan s;
    size_t len;
    VEC(Ref) refs;   /* number in the text -> node; REF_NONE: none */
    VEC(Dim) facts;  /* index of a fact -> its size; DIM_NONE: not seen yet */
    int nest, depth; /* of sizes in sizes; of bodies in bodies */
    bool constants;  /* there are no facts: an integer is a constant */
} Parser;

/* ---- scanning ---- */

/* An integer in [0, limit]. */
static Status parse_small(Parser *p, int64_t limit, uint8_t *value)
{
    int64_t v;
    const char *at;
    scan_skip(&p->s);
    at = p->s.at;
    TRY(scan_int(&p->s, &v));
    if (v < 0 || v > limit) {
        p->s.at = at;
        return scan_bad(&p->s, "number out of range");
    }
    *value = (uint8_t)v;
    return ST_OK;
}

/* "%12", as the number in the text. */
static Status parse_number(Parser *p, uint32_t *number)
{
    int64_t v;
    TRY(scan_expect(&p->s, '%'));
    if (!isdigit((unsigned char)*p->s.at))
        return scan_bad(&p->s, "expected a number after '%'");
    TRY(scan_int(&p->s, &v));
    if ((uint64_t)v > p->len || v > UINT32_MAX - 1)
        return scan_bad(&p->s, "reference number too large");
    *number = (uint32_t)v;
    return ST_OK;
}

static Status parse_ref(Parser *p, Ref *r)
{
    uint32_t number;
    scan_skip(&p->s);
    const char *at = p->s.at;
    TRY(parse_number(p, &number));
    if (number >= p->refs.n || p->refs.at[number] == REF_NONE) {
        p->s.at = at;
        return scan_bad(&p->s, "no such node yet");
    }
    *r = p->refs.at[number];
    return ST_OK;
}

static Status define(Parser *p, uint32_t number, Ref r)
{
    while (p->refs.n <= number)
        VEC_PUSH(p->g->arena, p->refs, REF_NONE);
    if (p->refs.at[number] != REF_NONE)
        return scan_bad(&p->s, "this number is taken");
    p->refs.at[number] = r;
    return ST_OK;
}

/* ---- facts ---- */

/* Makes fact `index` with this value; facts between are left out (value 0, nobody's). */
static Status new_fact(Parser *p, int64_t index, int64_t value, Dim *d)
{
    if (index < 0 || (uint64_t)index > MAX_GAP + p->len)
        return scan_bad(&p->s, "fact number too large");
    while (p->facts.n < (uint64_t)index) {
        IntFact none = {.node = REF_NONE};
        VEC_PUSH(p->g->arena, p->g->shared->ints, none);
        VEC_PUSH(p->g->arena, p->facts, DIM_NONE);
    }
    if (p->facts.n == (uint64_t)index) {
        *d = dim_fact(p->g, value, FACT_SIZE, 0, p->g->nodes.n);
        VEC_PUSH(p->g->arena, p->facts, *d);
        return ST_OK;
    }
    if (p->facts.at[index] != DIM_NONE)
        return scan_bad(&p->s, "this fact has a value already");
    /* One that was left out: made at the end, then given its own number. */
    *d = dim_fact(p->g, value, FACT_SIZE, 0, p->g->nodes.n);
    p->g->shared->ints.n--;
    p->g->shared->ints.at[index] = p->g->shared->ints.at[p->g->shared->ints.n];
    p->g->shared->dims.at[*d].fact = (uint32_t)index;
    p->facts.at[index] = *d;
    return ST_OK;
}

/* "s3" or "s3=512" */
static Status parse_named_fact(Parser *p, Dim *d)
{
    int64_t index, value;
    p->s.at++;
    if (!isdigit((unsigned char)*p->s.at))
        return scan_bad(&p->s, "expected the number of a fact");
    TRY(scan_int(&p->s, &index));
    if (*p->s.at == '=') {
        p->s.at++;
        TRY(scan_int(&p->s, &value));
        return new_fact(p, index, value, d);
    }
    if ((uint64_t)index >= p->facts.n || p->facts.at[index] == DIM_NONE)
        return scan_bad(&p->s, "no such fact yet");
    *d = p->facts.at[index];
    return ST_OK;
}

/* `top`: an integer is a new fact; otherwise it is a constant. */
static Status parse_fact(Parser *p, bool top, Dim *d)
{
    int64_t value;
    scan_skip(&p->s);
    if (*p->s.at == 's')
        return parse_named_fact(p, d);
    if (scan_accept(&p->s, '#')) {
        TRY(scan_int(&p->s, &value));
        *d = dim_const(p->g, value);
        return ST_OK;
    }
    if (scan_accept(&p->s, '(')) {
        Dim a, b;
        if (++p->nest > MAX_NEST)
            return scan_bad(&p->s, "sizes nested too deep");
        TRY(parse_fact(p, false, &a));
        bool add = scan_accept(&p->s, '+');
        if (!add)
            TRY(scan_expect(&p->s, '*'));
        TRY(parse_fact(p, false, &b));
        p->nest--;
        *d = dim_expr(p->g, add ? DIM_ADD : DIM_MUL, a, b);
        return scan_expect(&p->s, ')');
    }
    TRY(scan_int(&p->s, &value));
    if (!top || p->constants) {
        *d = dim_const(p->g, value);
        return ST_OK;
    }
    return new_fact(p, p->facts.n, value, d);
}

/* Says what the facts of a new node, those from number `first` on, are about; they were made before it was known. */
static void label(Parser *p, Ref r, uint32_t first)
{
    const Node *n = graph_node(p->g, r);
    for (uint32_t k = 0; k < n->n_facts; k++) {
        const DimInfo *info = &p->g->shared->dims.at[n->fact[k]];
        if (info->kind != DIM_FACT || info->fact < first)
            continue;
        IntFact *fact = &p->g->shared->ints.at[info->fact];
        FactLabel about = fact_label((Op)n->op, &n->attr, k);
        fact->kind = (uint8_t)about.kind;
        fact->axis = about.axis;
    }
}

/* ---- inputs and scalars ---- */

/* dtype "[" facts "]" ["strides" "(" facts ")"] ["constant"] */
static Status parse_input(Parser *p, uint32_t number)
{
    DType dtype;
    Dim facts[2 * MAX_RANK];
    int64_t dims[MAX_RANK], strides[MAX_RANK], numel;
    int rank = 0;
    bool strided = false;
    TRY(text_parse_dtype(&p->s, &dtype));
    TRY(scan_expect(&p->s, '['));
    while (!scan_accept(&p->s, ']')) {
        if (rank)
            TRY(scan_expect(&p->s, ','));
        if (rank == MAX_RANK)
            return scan_bad(&p->s, "rank too large");
        TRY(parse_fact(p, true, &facts[rank]));
        rank++;
    }
    if (scan_accept_word(&p->s, "strides")) {
        strided = true;
        TRY(scan_expect(&p->s, '('));
        for (int d = 0; d < rank; d++)
            TRY(parse_fact(p, true, &facts[rank + d]));
        TRY(scan_expect(&p->s, ')'));
    }
    const bool constant = scan_accept_word(&p->s, "constant");
    for (int d = 0; d < rank; d++) {
        dims[d] = dim_hint(p->g, facts[d]);
        strides[d] = strided ? dim_hint(p->g, facts[rank + d]) : 0;
    }
    if (!shape_numel(rank, dims, &numel))
        return scan_bad(&p->s, "negative or too many elements");
    /* graph_add_input makes its own facts: where they are the very next ones, take back those just
     * parsed. */
    uint32_t n = (uint32_t)(strided ? 2 * rank : rank), first = p->facts.n >= n ? p->facts.n - n : 0;
    bool fresh = p->facts.n == first + n;
    for (uint32_t k = 0; k < n; k++)
        fresh &= p->g->shared->dims.at[facts[k]].kind == DIM_FACT && p->g->shared->dims.at[facts[k]].fact == first + k;
    if (!fresh)
        return scan_bad(&p->s, "an input's sizes are facts of its own, in order");
    p->g->shared->ints.n = p->facts.n = first;
    Ref r = graph_add_input(p->g, dtype, rank, dims, strided ? strides : NULL, (Loc){0});
    graph_node(p->g, r)->constant = constant;
    for (uint32_t k = 0; k < n; k++)
        VEC_PUSH(p->g->arena, p->facts, graph_node(p->g, r)->fact[k]);
    return define(p, number, r);
}

/* dtype value */
static Status parse_scalar(Parser *p, bool constant, uint32_t number)
{
    DType dtype;
    uint64_t bits = 0;
    TRY(text_parse_dtype(&p->s, &dtype));
    TRY(text_parse_scalar(&p->s, dtype, &bits));
    Ref r = constant ? graph_add_const(p->g, dtype, bits, (Loc){0}) : graph_add_scalar(p->g, dtype, bits, (Loc){0});
    return define(p, number, r);
}

/* ---- other nodes ---- */

typedef struct Draft {
    Op op;
    DType dtype;
    bool stop;
    uint8_t again, checkpoint, phase;
    Attr attr;
    Callee *callee;
    VEC(Ref) in;
    VEC(Dim) facts;
    uint32_t first_fact; /* facts from this number on are its own */
} Draft;

static Status parse_block(Parser *p);
static Status parse_type(Parser *p, uint32_t number);
static Status add_result(Parser *p, const Draft *n, uint32_t number);

/* "(3)", for attributes that are counts. */
static Status parse_count(Parser *p, uint32_t limit, uint32_t *count)
{
    int64_t v;
    TRY(scan_expect(&p->s, '('));
    TRY(scan_int(&p->s, &v));
    if (v < 0 || v > limit)
        return scan_bad(&p->s, "number out of range");
    *count = (uint32_t)v;
    return scan_expect(&p->s, ')');
}

static Status parse_loop_count(Parser *p, uint16_t *count)
{
    uint32_t value = 0;
    TRY(parse_count(p, UINT16_MAX / 2, &value));
    *count = (uint16_t)value;
    return ST_OK;
}

static Status parse_groups(Parser *p, Attr *attr)
{
    while (!scan_accept(&p->s, ')')) {
        if (attr->n == 2 * MAX_RANK)
            return scan_bad(&p->s, "too many groups");
        TRY(parse_small(p, MAX_RANK, &attr->group.in[attr->n]));
        TRY(scan_expect(&p->s, ':'));
        TRY(parse_small(p, MAX_RANK, &attr->group.out[attr->n]));
        attr->n++;
    }
    return ST_OK;
}

static Status parse_mode(Parser *p, Attr *attr)
{
    for (uint8_t mode = 0; mode < 4; mode++) {
        if (scan_accept_word(&p->s, scatter_mode_names[mode])) {
            attr->mode = mode;
            return scan_expect(&p->s, ')');
        }
    }
    return scan_bad(&p->s, "expected set, add, max or min");
}

static Status parse_axes(Parser *p, Attr *attr)
{
    while (!scan_accept(&p->s, ')')) {
        uint8_t axis = 0;
        TRY(parse_small(p, MAX_RANK - 1, &axis));
        attr->mask = (uint8_t)(attr->mask | 1u << axis);
    }
    return ST_OK;
}

static Status parse_perm(Parser *p, Attr *attr)
{
    for (int d = 0; !scan_accept(&p->s, ')'); d++) {
        if (d == MAX_RANK)
            return scan_bad(&p->s, "too many axes");
        TRY(parse_small(p, MAX_RANK - 1, &attr->perm[d]));
    }
    return ST_OK;
}

static Status parse_fact_list(Parser *p, int per_axis, Draft *n)
{
    for (int k = 0; !scan_accept(&p->s, ')'); k++) {
        if (k % per_axis)
            TRY(scan_expect(&p->s, ':'));
        Dim d;
        TRY(parse_fact(p, true, &d));
        VEC_PUSH(p->g->arena, n->facts, d);
    }
    return ST_OK;
}

/* "f32:2 i64:0)" */
static Status parse_gives(Parser *p, Attr *attr)
{
    for (attr->n = 0; !scan_accept(&p->s, ')'); attr->n++) {
        DType dtype;
        uint8_t rank = 0;
        if (attr->n == MAX_CALL_RESULTS)
            return scan_bad(&p->s, "too many results");
        TRY(text_parse_dtype(&p->s, &dtype));
        TRY(scan_expect(&p->s, ':'));
        TRY(parse_small(p, MAX_RANK, &rank));
        attr->custom.type[attr->n] = (uint8_t)(dtype << 4 | rank);
    }
    return ST_OK;
}

/* The attributes and facts that this op has, in any order. */
static Status parse_attrs(Parser *p, Draft *n)
{
    AttrInfo info = attr_info(n->op);
    for (;;) {
        if (scan_accept_word(&p->s, "stop")) {
            n->stop = true;
        } else if (scan_accept_word(&p->s, "again")) {
            n->again = 1;
            if (scan_accept(&p->s, '(')) {
                TRY(parse_small(p, MAX_CHECKPOINT, &n->again));
                TRY(scan_expect(&p->s, ')'));
            }
        } else if (scan_accept_word(&p->s, "checkpoint")) {
            TRY(scan_expect(&p->s, '('));
            TRY(parse_small(p, MAX_CHECKPOINT, &n->checkpoint));
            TRY(scan_expect(&p->s, ')'));
        } else if (scan_accept_word(&p->s, "phase")) {
            TRY(scan_expect(&p->s, '('));
            TRY(parse_small(p, MAX_PHASE, &n->phase));
            TRY(scan_expect(&p->s, ')'));
        } else if (info.fields & ATTR_DESCENDING && scan_accept_word(&p->s, "descending")) {
            n->attr.flag = 1;
        } else if (info.fields & ATTR_AXES && scan_accept_word(&p->s, "axes")) {
            TRY(scan_expect(&p->s, '('));
            TRY(parse_axes(p, &n->attr));
        } else if (info.fields & ATTR_AXIS && scan_accept_word(&p->s, "axis")) {
            TRY(scan_expect(&p->s, '('));
            TRY(parse_small(p, MAX_RANK - 1, &n->attr.axis));
            TRY(scan_expect(&p->s, ')'));
        } else if (info.fields & ATTR_NUMBER && scan_accept_word(&p->s, "number")) {
            TRY(parse_count(p, UINT16_MAX, &n->attr.n));
        } else if (info.fields & ATTR_CUSTOM && scan_accept_word(&p->s, "calls")) {
            TRY(scan_expect(&p->s, '('));
            TRY(callee_parse(&p->s, p->g->arena, &n->callee));
        } else if (info.fields & ATTR_CUSTOM && scan_accept_word(&p->s, "gives")) {
            TRY(scan_expect(&p->s, '('));
            TRY(parse_gives(p, &n->attr));
        } else if (info.fields & ATTR_LOOP && scan_accept_word(&p->s, "carries")) {
            TRY(parse_loop_count(p, &n->attr.loop.carries));
        } else if (info.fields & ATTR_LOOP && scan_accept_word(&p->s, "xs")) {
            TRY(parse_loop_count(p, &n->attr.loop.xs));
        } else if (info.fields & ATTR_LOOP && scan_accept_word(&p->s, "ys")) {
            TRY(parse_loop_count(p, &n->attr.loop.ys));
        } else if (info.fields & ATTR_LOOP && scan_accept_word(&p->s, "reverse")) {
            n->attr.loop.reverse = 1;
        } else if (info.fields & ATTR_LOOP && scan_accept_word(&p->s, "settles")) {
            n->attr.loop.settles = 1;
        } else if (info.fields & ATTR_PERM && scan_accept_word(&p->s, "perm")) {
            TRY(scan_expect(&p->s, '('));
            TRY(parse_perm(p, &n->attr));
        } else if (info.fields & ATTR_GROUPS && scan_accept_word(&p->s, "groups")) {
            TRY(scan_expect(&p->s, '('));
            TRY(parse_groups(p, &n->attr));
        } else if (info.fields & ATTR_MODE && scan_accept_word(&p->s, "mode")) {
            TRY(scan_expect(&p->s, '('));
            TRY(parse_mode(p, &n->attr));
        } else if (info.facts && scan_accept_word(&p->s, info.facts)) {
            TRY(scan_expect(&p->s, '('));
            TRY(parse_fact_list(p, info.per_axis, n));
        } else {
            return ST_OK;
        }
    }
}

/* name "(" inputs ")" "{" nodes "return" refs "}" */
static Status parse_body(Parser *p, const Node *node, uint32_t which, Graph **out)
{
    Graph *around = p->g, *body = body_new(around, node, which);
    Parser outer = *p;
    if (p->depth == MAX_BODY_DEPTH)
        return scan_bad(&p->s, "bodies nested too deep");
    p->g = body;
    p->depth++;
    memset(&p->refs, 0, sizeof p->refs);
    TRY(scan_expect(&p->s, '('));
    for (uint32_t k = 0; k < body->inputs.n; k++) {
        uint32_t number;
        if (k)
            TRY(scan_expect(&p->s, ','));
        TRY(parse_number(p, &number));
        TRY(define(p, number, body->inputs.at[k]));
        TRY(parse_type(p, number));
    }
    TRY(scan_expect(&p->s, ')'));
    TRY(parse_block(p));
    p->g = around;
    p->depth = outer.depth;
    p->refs.at = outer.refs.at;
    p->refs.n = outer.refs.n;
    p->refs.cap = outer.refs.cap;
    *out = body;
    return ST_OK;
}

static Status add_body(Parser *p, const Draft *n, uint32_t number)
{
    Graph *bodies[MAX_BODIES];
    Node node = {.op = (uint8_t)n->op, .attr = n->attr, .in = n->in.at, .n_in = n->in.n, .fact = n->facts.at, .n_facts = n->facts.n};
    node.bodies = bodies;
    node.callee = n->callee;
    const char *why = body_check_node(p->g, &node);
    if (why)
        return scan_bad(&p->s, why);
    for (; node.n_bodies < MAX_BODIES && n->op != OP_CUSTOM; node.n_bodies++) {
        uint32_t which = node.n_bodies;
        if (!scan_accept_word(&p->s, body_name(n->op, which))) {
            if (which < body_least(n->op))
                return scan_bad(&p->s, "expected a body");
            break;
        }
        TRY(parse_body(p, &node, which, &bodies[which]));
    }
    if (body_verify(p->g, &node) != ST_OK)
        return scan_bad_because(&p->s);
    Ref r = graph_add_body(p->g, &node);
    label(p, r, n->first_fact);
    return define(p, number, r);
}

static Status add_result(Parser *p, const Draft *n, uint32_t number)
{
    if (n->in.n != 1 || n->attr.n >= body_n_results(graph_node(p->g, n->in.at[0])))
        return scan_bad(&p->s, "no such result");
    p->g->phase = n->phase;
    p->g->checkpoint = n->checkpoint;
    Ref r = graph_add_result(p->g, n->in.at[0], n->attr.n, (Loc){0});
    p->g->phase = p->g->checkpoint = 0;
    return define(p, number, r);
}

/* Checks the draft in numbers and adds it. */
static Status add_node(Parser *p, const Draft *n, uint32_t number)
{
    Graph *g = p->g;
    Shape *in = ARENA_ARRAY(g->arena, Shape, n->in.n), out;
    int64_t *facts = ARENA_ARRAY(g->arena, int64_t, n->facts.n);
    for (uint32_t k = 0; k < n->in.n; k++) {
        const Node *x = graph_node(g, n->in.at[k]);
        if ((op_class((Op)x->op) == CLS_BODY) != (n->op == OP_RESULT))
            return scan_bad(&p->s, "a result is of what has bodies, and nothing else takes that");
        in[k] = (Shape){.dtype = x->dtype, .rank = x->rank};
        for (int d = 0; d < x->rank; d++)
            in[k].dim[d] = dim_hint(g, x->dim[d]);
    }
    for (uint32_t k = 0; k < n->facts.n; k++)
        facts[k] = dim_hint(g, n->facts.at[k]);
    if (n->facts.n != infer_fact_count(n->op, &n->attr, 0))
        return scan_bad(&p->s, "wrong number of facts");
    if (n->op == OP_RESULT)
        return add_result(p, n, number);
    if (infer_shape(n->op, &n->attr, n->in.n, in, facts, n->facts.n, n->dtype, &out) != ST_OK)
        return scan_bad_because(&p->s);
    Ref before = g->nodes.n;
    g->stop = n->stop;
    g->phase = n->phase;
    g->checkpoint = n->checkpoint;
    Ref apart = g->apart;
    if (n->again) /* what it is a copy of stands before it */
        g->apart = REF_NONE;
    Ref r = graph_add(g, n->op, (DType)out.dtype, n->in.at, n->in.n, &n->attr, n->facts.at, n->facts.n, (Loc){0});
    if (n->again)
        graph_node(g, r)->again = n->again;
    g->apart = apart;
    g->stop = false;
    g->phase = 0;
    g->checkpoint = 0;
    if (r == before)
        label(p, r, n->first_fact);
    return define(p, number, r);
}

/* [":" type], which must be the node's */
static Status parse_type(Parser *p, uint32_t number)
{
    if (!scan_accept(&p->s, ':'))
        return ST_OK;
    const Node *n = graph_node(p->g, p->refs.at[number]);
    DType dtype;
    int rank = 0;
    TRY(text_parse_dtype(&p->s, &dtype));
    TRY(scan_expect(&p->s, '['));
    bool same = dtype == (DType)n->dtype;
    while (!scan_accept(&p->s, ']')) {
        int64_t size;
        if (rank)
            TRY(scan_expect(&p->s, ','));
        TRY(scan_int(&p->s, &size));
        same &= rank < n->rank && size == dim_hint(p->g, n->dim[rank]);
        rank++;
    }
    return same && rank == n->rank ? ST_OK : scan_bad(&p->s, "not the type of this node");
}

static Status parse_node(Parser *p)
{
    uint32_t number;
    Draft n = {0};
    TRY(parse_number(p, &number));
    if (number < p->refs.n && p->refs.at[number] != REF_NONE)
        return scan_bad(&p->s, "this number is taken");
    TRY(scan_expect(&p->s, '='));
    size_t len = scan_peek_word(&p->s);
    if (scan_accept_word(&p->s, "input"))
        return parse_input(p, number);
    bool constant = scan_accept_word(&p->s, "const");
    if (constant || scan_accept_word(&p->s, "scalar")) {
        TRY(parse_scalar(p, constant, number));
        return parse_type(p, number);
    }
    n.op = op_parse(p->s.at, len);
    if (n.op == OP_COUNT)
        return scan_bad(&p->s, "expected an op");
    p->s.at += len;
    n.dtype = DT_COUNT;
    if (n.op == OP_CAST)
        TRY(text_parse_dtype(&p->s, &n.dtype));
    for (scan_skip(&p->s); *p->s.at == '%'; scan_skip(&p->s)) {
        /* "%3 = neg %2" is followed by "%4 = ...": a reference that is defined is no operand. */
        const char *at = p->s.at;
        uint32_t ignored;
        TRY(parse_number(p, &ignored));
        bool next_node = scan_accept(&p->s, '=');
        p->s.at = at;
        if (next_node)
            break;
        Ref r = REF_NONE;
        TRY(parse_ref(p, &r));
        VEC_PUSH(p->g->arena, n.in, r);
    }
    n.first_fact = p->facts.n;
    TRY(parse_attrs(p, &n));
    if (op_class(n.op) == CLS_BODY) {
        TRY(add_body(p, &n, number));
        TRY(parse_attrs(p, &n)); /* marks stand behind the bodies */
        Node *made = graph_node(p->g, p->refs.at[number]);
        made->phase = n.phase;
        made->checkpoint = n.checkpoint;
    } else {
        TRY(add_node(p, &n, number));
    }
    return parse_type(p, number);
}

/* "{" nodes "return" refs "}" */
static Status parse_block(Parser *p)
{
    TRY(scan_expect(&p->s, '{'));
    while (!scan_accept_word(&p->s, "return"))
        TRY(parse_node(p));
    while (!scan_accept(&p->s, '}')) {
        Ref r = REF_NONE;
        TRY(parse_ref(p, &r));
        if (op_class((Op)graph_node(p->g, r)->op) == CLS_BODY)
            return scan_bad(&p->s, "it has no value, only results");
        graph_output(p->g, r);
    }
    return ST_OK;
}

static Status parse_whole(Parser *p)
{
    if (!scan_accept_word(&p->s, "graph"))
        return scan_bad(&p->s, "expected 'graph'");
    p->s.at += scan_peek_word(&p->s); /* the name */
    TRY(scan_expect(&p->s, '('));
    for (bool first = true; !scan_accept(&p->s, ')'); first = false) {
        uint32_t number;
        if (!first)
            TRY(scan_expect(&p->s, ','));
        TRY(parse_number(p, &number));
        TRY(scan_expect(&p->s, ':'));
        TRY(parse_input(p, number));
    }
    TRY(parse_block(p));
    scan_skip(&p->s);
    return *p->s.at ? scan_bad(&p->s, "text after the graph") : ST_OK;
}

Status attr_parse(Graph *g, const char *text, AttrText *out)
{
    Parser p = {.g = g, .s = {text, text}, .len = strlen(text), .constants = true};
    Draft n = {.dtype = DT_COUNT};
    size_t len = scan_peek_word(&p.s);
    n.op = op_parse(p.s.at, len);
    if (n.op == OP_COUNT)
        return scan_bad(&p.s, "expected an op");
    p.s.at += len;
    if (n.op == OP_CAST)
        TRY(text_parse_dtype(&p.s, &n.dtype));
    TRY(parse_attrs(&p, &n));
    scan_skip(&p.s);
    if (*p.s.at || n.stop || n.again || n.checkpoint || n.phase)
        return scan_bad(&p.s, "this op has no such attribute");
    *out = (AttrText){n.op, n.dtype, n.attr, n.facts.at, n.facts.n};
    return ST_OK;
}

Status graph_parse(const char *text, Arena *arena, Graph **out)
{
    Parser p = {.g = graph_new(arena), .s = {text, text}, .len = strlen(text)};
    *out = NULL;
    TRY(parse_whole(&p));
    *out = p.g;
    return ST_OK;
}
