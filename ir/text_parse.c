/*
 * Parses the text form; the grammar is at the top of ir/text.c.
 *
 * One pass by recursive descent over a scanner that knows line and column. Every node is checked by
 * infer_shape before it is added, so text from anywhere is safe: what does not fit is ST_FORMAT
 * with the place. References may leave numbers out; an integer that names something is bounded by
 * the length of the text, so small texts make small graphs.
 */
#include "ir/attr.h"
#include "ir/infer.h"
#include "ir/text.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORD = 96, MAX_NEST = 5000, MAX_GAP = 1 << 20 };

typedef struct Parser {
    Graph *g;
    const char *text, *at;
    size_t len;
    VEC(Ref) refs;  /* number in the text -> node; REF_NONE: none */
    VEC(Dim) facts; /* index of a fact -> its size; DIM_NONE: not seen yet */
    int nest;
} Parser;

/* ---- scanning ---- */

static Status bad(const Parser *p, const char *message)
{
    int line = 1;
    const char *start = p->text;
    for (const char *c = p->text; c < p->at; c++)
        if (*c == '\n')
            line++, start = c + 1;
    return fail(ST_FORMAT, "%d:%d: %s", line, (int)(p->at - start) + 1, message);
}

/* The same with the reason that fail() already holds. */
static Status bad_because(const Parser *p)
{
    char reason[1024];
    snprintf(reason, sizeof reason, "%s", fail_message());
    return bad(p, reason);
}

static void skip(Parser *p)
{
    for (;;) {
        while (isspace((unsigned char)*p->at))
            p->at++;
        if (p->at[0] != '/' || p->at[1] != '/')
            return;
        while (*p->at && *p->at != '\n')
            p->at++;
    }
}

static bool accept(Parser *p, char c)
{
    skip(p);
    if (*p->at != c)
        return false;
    p->at++;
    return true;
}

static Status expect(Parser *p, char c)
{
    char message[32];
    snprintf(message, sizeof message, "expected '%c'", c);
    return accept(p, c) ? ST_OK : bad(p, message);
}

static bool word_char(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* The word at hand, without consuming it; its length, 0 if there is none. */
static size_t peek_word(Parser *p)
{
    size_t len = 0;
    skip(p);
    while (word_char(p->at[len]))
        len++;
    return len;
}

static bool accept_word(Parser *p, const char *word)
{
    size_t len = peek_word(p);
    if (len != strlen(word) || memcmp(p->at, word, len) != 0)
        return false;
    p->at += len;
    return true;
}

static Status parse_int(Parser *p, int64_t *value)
{
    skip(p);
    char *end;
    errno = 0;
    if (!isdigit((unsigned char)*p->at) && *p->at != '-')
        return bad(p, "expected a number");
    long long v = strtoll(p->at, &end, 10);
    if (end == p->at || errno)
        return bad(p, end == p->at ? "expected a number" : "number out of range");
    p->at = end;
    *value = v;
    return ST_OK;
}

/* An integer in [0, limit]. */
static Status parse_small(Parser *p, int64_t limit, uint8_t *value)
{
    int64_t v;
    const char *at;
    skip(p);
    at = p->at;
    TRY(parse_int(p, &v));
    if (v < 0 || v > limit) {
        p->at = at;
        return bad(p, "number out of range");
    }
    *value = (uint8_t)v;
    return ST_OK;
}

static Status parse_dtype(Parser *p, DType *dtype)
{
    size_t len = peek_word(p);
    *dtype = dtype_parse(p->at, len);
    if (*dtype == DT_COUNT)
        return bad(p, "expected a dtype");
    p->at += len;
    return ST_OK;
}

/* "%12", as the number in the text. */
static Status parse_number(Parser *p, uint32_t *number)
{
    int64_t v;
    TRY(expect(p, '%'));
    if (!isdigit((unsigned char)*p->at))
        return bad(p, "expected a number after '%'");
    TRY(parse_int(p, &v));
    if ((uint64_t)v > p->len || v > UINT32_MAX - 1)
        return bad(p, "reference number too large");
    *number = (uint32_t)v;
    return ST_OK;
}

static Status parse_ref(Parser *p, Ref *r)
{
    uint32_t number;
    skip(p);
    const char *at = p->at;
    TRY(parse_number(p, &number));
    if (number >= p->refs.n || p->refs.at[number] == REF_NONE) {
        p->at = at;
        return bad(p, "no such node yet");
    }
    *r = p->refs.at[number];
    return ST_OK;
}

static Status define(Parser *p, uint32_t number, Ref r)
{
    while (p->refs.n <= number)
        VEC_PUSH(p->g->arena, p->refs, REF_NONE);
    if (p->refs.at[number] != REF_NONE)
        return bad(p, "this number is taken");
    p->refs.at[number] = r;
    return ST_OK;
}

/* ---- facts ---- */

/* Makes fact `index` with this value; facts between are left out (value 0, nobody's). */
static Status new_fact(Parser *p, int64_t index, int64_t value, Dim *d)
{
    if (index < 0 || (uint64_t)index > MAX_GAP + p->len)
        return bad(p, "fact number too large");
    while (p->facts.n < (uint64_t)index) {
        IntFact none = {.node = REF_NONE};
        VEC_PUSH(p->g->arena, p->g->ints, none);
        VEC_PUSH(p->g->arena, p->facts, DIM_NONE);
    }
    if (p->facts.n == (uint64_t)index) {
        *d = dim_fact(p->g, value, FACT_SIZE, 0, p->g->nodes.n);
        VEC_PUSH(p->g->arena, p->facts, *d);
        return ST_OK;
    }
    if (p->facts.at[index] != DIM_NONE)
        return bad(p, "this fact has a value already");
    /* One that was left out: made at the end, then given its own number. */
    *d = dim_fact(p->g, value, FACT_SIZE, 0, p->g->nodes.n);
    p->g->ints.n--;
    p->g->ints.at[index] = p->g->ints.at[p->g->ints.n];
    p->g->dims.at[*d].fact = (uint32_t)index;
    p->facts.at[index] = *d;
    return ST_OK;
}

/* "s3" or "s3=512" */
static Status parse_named_fact(Parser *p, Dim *d)
{
    int64_t index, value;
    p->at++;
    if (!isdigit((unsigned char)*p->at))
        return bad(p, "expected the number of a fact");
    TRY(parse_int(p, &index));
    if (*p->at == '=') {
        p->at++;
        TRY(parse_int(p, &value));
        return new_fact(p, index, value, d);
    }
    if ((uint64_t)index >= p->facts.n || p->facts.at[index] == DIM_NONE)
        return bad(p, "no such fact yet");
    *d = p->facts.at[index];
    return ST_OK;
}

/* `top`: an integer is a new fact; otherwise it is a constant. */
static Status parse_fact(Parser *p, bool top, Dim *d)
{
    int64_t value;
    skip(p);
    if (*p->at == 's')
        return parse_named_fact(p, d);
    if (accept(p, '#')) {
        TRY(parse_int(p, &value));
        *d = dim_const(p->g, value);
        return ST_OK;
    }
    if (accept(p, '(')) {
        Dim a, b;
        if (++p->nest > MAX_NEST)
            return bad(p, "sizes nested too deep");
        TRY(parse_fact(p, false, &a));
        bool add = accept(p, '+');
        if (!add)
            TRY(expect(p, '*'));
        TRY(parse_fact(p, false, &b));
        p->nest--;
        *d = dim_expr(p->g, add ? DIM_ADD : DIM_MUL, a, b);
        return expect(p, ')');
    }
    TRY(parse_int(p, &value));
    if (!top) {
        *d = dim_const(p->g, value);
        return ST_OK;
    }
    return new_fact(p, p->facts.n, value, d);
}

/* Says what the facts of a new node are about; they were made before it was known. */
static void label(Parser *p, Ref r)
{
    const Node *n = graph_node(p->g, r);
    for (uint32_t k = 0; k < n->n_facts; k++) {
        const DimInfo *info = &p->g->dims.at[n->fact[k]];
        if (info->kind != DIM_FACT || info->owner != r)
            continue;
        IntFact *fact = &p->g->ints.at[info->fact];
        FactLabel about = fact_label((Op)n->op, &n->attr, k);
        fact->kind = (uint8_t)about.kind;
        fact->axis = about.axis;
    }
}

/* ---- inputs and scalars ---- */

/* dtype "[" facts "]" ["strides" "(" facts ")"] */
static Status parse_input(Parser *p, uint32_t number)
{
    DType dtype;
    Dim facts[2 * MAX_RANK];
    int64_t dims[MAX_RANK], strides[MAX_RANK], numel;
    int rank = 0;
    bool strided = false;
    TRY(parse_dtype(p, &dtype));
    TRY(expect(p, '['));
    while (!accept(p, ']')) {
        if (rank)
            TRY(expect(p, ','));
        if (rank == MAX_RANK)
            return bad(p, "rank too large");
        TRY(parse_fact(p, true, &facts[rank]));
        rank++;
    }
    if (accept_word(p, "strides")) {
        strided = true;
        TRY(expect(p, '('));
        for (int d = 0; d < rank; d++)
            TRY(parse_fact(p, true, &facts[rank + d]));
        TRY(expect(p, ')'));
    }
    for (int d = 0; d < rank; d++) {
        dims[d] = dim_hint(p->g, facts[d]);
        strides[d] = strided ? dim_hint(p->g, facts[rank + d]) : 0;
    }
    if (!shape_numel(rank, dims, &numel))
        return bad(p, "negative or too many elements");
    /* graph_add_input makes its own facts: where they are the very next ones, take back those just
     * parsed. */
    uint32_t n = (uint32_t)(strided ? 2 * rank : rank), first = p->facts.n >= n ? p->facts.n - n : 0;
    bool fresh = p->facts.n == first + n;
    for (uint32_t k = 0; k < n; k++)
        fresh &= p->g->dims.at[facts[k]].kind == DIM_FACT && p->g->dims.at[facts[k]].fact == first + k;
    if (!fresh)
        return bad(p, "an input's sizes are facts of its own, in order");
    p->g->ints.n = p->facts.n = first;
    Ref r = graph_add_input(p->g, dtype, rank, dims, strided ? strides : NULL, (Loc){0});
    for (uint32_t k = 0; k < n; k++)
        VEC_PUSH(p->g->arena, p->facts, graph_node(p->g, r)->fact[k]);
    return define(p, number, r);
}

static Status parse_bits(Parser *p, DType dtype, const char *word, uint64_t *bits)
{
    char *end;
    double number;
    errno = 0;
    if (strncmp(word, "0x", 2) == 0) {
        *bits = strtoull(word, &end, 16);
        if (*end || errno || (dtype_bytes(dtype) < 8 && *bits >> 8 * dtype_bytes(dtype)) || (dtype == DT_BOOL && *bits > 1))
            return bad(p, "not the bits of that dtype");
        return ST_OK;
    }
    switch (dtype_kind(dtype)) {
    case DK_BOOL: *bits = strcmp(word, "true") == 0; return *bits || strcmp(word, "false") == 0 ? ST_OK : bad(p, "expected true or false");
    case DK_INT: {
        long long v = strtoll(word, &end, 10);
        *bits = scalar_from_int(dtype, v);
        return end != word && !*end && !errno && scalar_to_int(dtype, *bits) == v ? ST_OK : bad(p, "not an integer of that dtype");
    }
    case DK_UINT:
        *bits = strtoull(word, &end, 10);
        return end != word && !*end && !errno && *word != '-' && (dtype_bytes(dtype) == 8 || !(*bits >> 8 * dtype_bytes(dtype)))
                   ? ST_OK
                   : bad(p, "not an integer of that dtype");
    case DK_FLOAT:
        if (!text_double(word, &number))
            return bad(p, "expected a number");
        *bits = scalar_from_double(dtype, number);
        return ST_OK;
    }
    return bad(p, "expected a value");
}

/* dtype value */
static Status parse_scalar(Parser *p, bool constant, uint32_t number)
{
    DType dtype;
    char word[MAX_WORD];
    uint64_t bits = 0;
    size_t len = 0;
    TRY(parse_dtype(p, &dtype));
    skip(p);
    while (word_char(p->at[len]) || p->at[len] == '-' || p->at[len] == '+' || p->at[len] == '.')
        len++;
    if (len == 0 || len >= sizeof word)
        return bad(p, "expected a value");
    memcpy(word, p->at, len);
    word[len] = 0;
    TRY(parse_bits(p, dtype, word, &bits));
    p->at += len;
    Ref r = constant ? graph_add_const(p->g, dtype, bits, (Loc){0}) : graph_add_scalar(p->g, dtype, bits, (Loc){0});
    return define(p, number, r);
}

/* ---- other nodes ---- */

typedef struct Draft {
    Op op;
    DType dtype;
    bool stop;
    Attr attr;
    VEC(Ref) in;
    VEC(Dim) facts;
} Draft;

static Status parse_groups(Parser *p, Attr *attr)
{
    while (!accept(p, ')')) {
        if (attr->n == 2 * MAX_RANK)
            return bad(p, "too many groups");
        TRY(parse_small(p, MAX_RANK, &attr->group.in[attr->n]));
        TRY(expect(p, ':'));
        TRY(parse_small(p, MAX_RANK, &attr->group.out[attr->n]));
        attr->n++;
    }
    return ST_OK;
}

static Status parse_mode(Parser *p, Attr *attr)
{
    for (uint8_t mode = 0; mode < 4; mode++) {
        if (accept_word(p, scatter_mode_names[mode])) {
            attr->mode = mode;
            return expect(p, ')');
        }
    }
    return bad(p, "expected set, add, max or min");
}

static Status parse_axes(Parser *p, Attr *attr)
{
    while (!accept(p, ')')) {
        uint8_t axis = 0;
        TRY(parse_small(p, MAX_RANK - 1, &axis));
        attr->mask = (uint8_t)(attr->mask | 1u << axis);
    }
    return ST_OK;
}

static Status parse_perm(Parser *p, Attr *attr)
{
    for (int d = 0; !accept(p, ')'); d++) {
        if (d == MAX_RANK)
            return bad(p, "too many axes");
        TRY(parse_small(p, MAX_RANK - 1, &attr->perm[d]));
    }
    return ST_OK;
}

static Status parse_fact_list(Parser *p, int per_axis, Draft *n)
{
    for (int k = 0; !accept(p, ')'); k++) {
        if (k % per_axis)
            TRY(expect(p, ':'));
        Dim d;
        TRY(parse_fact(p, true, &d));
        VEC_PUSH(p->g->arena, n->facts, d);
    }
    return ST_OK;
}

/* The attributes and facts that this op has, in any order. */
static Status parse_attrs(Parser *p, Draft *n)
{
    AttrInfo info = attr_info(n->op);
    for (;;) {
        if (accept_word(p, "stop")) {
            n->stop = true;
        } else if (info.fields & ATTR_DESCENDING && accept_word(p, "descending")) {
            n->attr.flag = 1;
        } else if (info.fields & ATTR_AXES && accept_word(p, "axes")) {
            TRY(expect(p, '('));
            TRY(parse_axes(p, &n->attr));
        } else if (info.fields & ATTR_AXIS && accept_word(p, "axis")) {
            TRY(expect(p, '('));
            TRY(parse_small(p, MAX_RANK - 1, &n->attr.axis));
            TRY(expect(p, ')'));
        } else if (info.fields & ATTR_PERM && accept_word(p, "perm")) {
            TRY(expect(p, '('));
            TRY(parse_perm(p, &n->attr));
        } else if (info.fields & ATTR_GROUPS && accept_word(p, "groups")) {
            TRY(expect(p, '('));
            TRY(parse_groups(p, &n->attr));
        } else if (info.fields & ATTR_MODE && accept_word(p, "mode")) {
            TRY(expect(p, '('));
            TRY(parse_mode(p, &n->attr));
        } else if (info.facts && accept_word(p, info.facts)) {
            TRY(expect(p, '('));
            TRY(parse_fact_list(p, info.per_axis, n));
        } else {
            return ST_OK;
        }
    }
}

/* Checks the draft in numbers and adds it. */
static Status add_node(Parser *p, const Draft *n, uint32_t number)
{
    Graph *g = p->g;
    Shape *in = ARENA_ARRAY(g->arena, Shape, n->in.n), out;
    int64_t *facts = ARENA_ARRAY(g->arena, int64_t, n->facts.n);
    for (uint32_t k = 0; k < n->in.n; k++) {
        const Node *x = graph_node(g, n->in.at[k]);
        in[k] = (Shape){.dtype = x->dtype, .rank = x->rank};
        for (int d = 0; d < x->rank; d++)
            in[k].dim[d] = dim_hint(g, x->dim[d]);
    }
    for (uint32_t k = 0; k < n->facts.n; k++)
        facts[k] = dim_hint(g, n->facts.at[k]);
    if (n->facts.n != infer_fact_count(n->op, &n->attr, 0))
        return bad(p, "wrong number of facts");
    if (infer_shape(n->op, &n->attr, n->in.n, in, facts, n->facts.n, n->dtype, &out) != ST_OK)
        return bad_because(p);
    Ref before = g->nodes.n;
    g->stop = n->stop;
    Ref r = graph_add(g, n->op, (DType)out.dtype, n->in.at, n->in.n, &n->attr, n->facts.at, n->facts.n, (Loc){0});
    g->stop = false;
    if (r == before)
        label(p, r);
    return define(p, number, r);
}

/* [":" type], which must be the node's */
static Status parse_type(Parser *p, uint32_t number)
{
    if (!accept(p, ':'))
        return ST_OK;
    const Node *n = graph_node(p->g, p->refs.at[number]);
    DType dtype;
    int rank = 0;
    TRY(parse_dtype(p, &dtype));
    TRY(expect(p, '['));
    bool same = dtype == (DType)n->dtype;
    while (!accept(p, ']')) {
        int64_t size;
        if (rank)
            TRY(expect(p, ','));
        TRY(parse_int(p, &size));
        same &= rank < n->rank && size == dim_hint(p->g, n->dim[rank]);
        rank++;
    }
    return same && rank == n->rank ? ST_OK : bad(p, "not the type of this node");
}

static Status parse_node(Parser *p)
{
    uint32_t number;
    Draft n = {0};
    TRY(parse_number(p, &number));
    if (number < p->refs.n && p->refs.at[number] != REF_NONE)
        return bad(p, "this number is taken");
    TRY(expect(p, '='));
    size_t len = peek_word(p);
    if (accept_word(p, "input"))
        return parse_input(p, number);
    bool constant = accept_word(p, "const");
    if (constant || accept_word(p, "scalar")) {
        TRY(parse_scalar(p, constant, number));
        return parse_type(p, number);
    }
    n.op = op_parse(p->at, len);
    if (n.op == OP_COUNT)
        return bad(p, "expected an op");
    p->at += len;
    n.dtype = DT_COUNT;
    if (n.op == OP_CAST)
        TRY(parse_dtype(p, &n.dtype));
    for (skip(p); *p->at == '%'; skip(p)) {
        /* "%3 = neg %2" is followed by "%4 = ...": a reference that is defined is no operand. */
        const char *at = p->at;
        uint32_t ignored;
        TRY(parse_number(p, &ignored));
        bool next_node = accept(p, '=');
        p->at = at;
        if (next_node)
            break;
        Ref r;
        TRY(parse_ref(p, &r));
        VEC_PUSH(p->g->arena, n.in, r);
    }
    TRY(parse_attrs(p, &n));
    TRY(add_node(p, &n, number));
    return parse_type(p, number);
}

static Status parse_whole(Parser *p)
{
    if (!accept_word(p, "graph"))
        return bad(p, "expected 'graph'");
    p->at += peek_word(p); /* the name */
    TRY(expect(p, '('));
    for (bool first = true; !accept(p, ')'); first = false) {
        uint32_t number;
        if (!first)
            TRY(expect(p, ','));
        TRY(parse_number(p, &number));
        TRY(expect(p, ':'));
        TRY(parse_input(p, number));
    }
    TRY(expect(p, '{'));
    while (!accept_word(p, "return"))
        TRY(parse_node(p));
    while (!accept(p, '}')) {
        Ref r;
        TRY(parse_ref(p, &r));
        graph_output(p->g, r);
    }
    skip(p);
    return *p->at ? bad(p, "text after the graph") : ST_OK;
}

Status graph_parse(const char *text, Arena *arena, Graph **out)
{
    Parser p = {.g = graph_new(arena), .text = text, .at = text, .len = strlen(text)};
    *out = NULL;
    TRY(parse_whole(&p));
    *out = p.g;
    return ST_OK;
}
