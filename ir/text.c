/*
 * The graph as text, printed (here) and parsed back (ir/text_parse.c): in dumps, errors, golden tests.
 *
 *     graph norm(%0: f32[64,512], %1: f32[512]) {
 *       %2 = reduce_sum %0 axes(1) : f32[64]
 *       %3 = slice %1 axes(0) range(0:2:256) : f32[256]
 *       %4 = scalar f32 0.5 : f32[]
 *       return %2 %3
 *     }
 *
 *     graph = "graph" name "(" [input {"," input}] ")" "{" {node} "return" {ref} "}"
 *     input = ref ":" dtype "[" [fact {"," fact}] "]" ["strides" "(" {fact} ")"] ["constant"]
 *     node  = ref "=" op {ref} {attr} {mark} [":" type]     cast: the type it casts to comes after "cast"
 *           | ref "=" ("scalar" | "const") dtype value [":" type]
 *           | ref "=" "input" dtype "[" ... "]" ...          an input that does not come first
 *           | ref "=" ("loop" | "cond") {ref} {attr} {body}
 *           | ref "=" "custom" {ref} "calls" "(" name version ["image:" digits] ["bytes:" digits] ")" {attr}
 *     body  = name "(" [ref ":" type {"," ref ":" type}] ")" "{" {node} "return" {ref} "}"     inputs and refs of its own
 *     attr  = "axes(0 2)" | "axis(1)" | "perm(1 0)" | "groups(2:1 1:1 1:2)" | "mode(add)" | "descending"
 *           | "number(1)" | "gives(f32:2 i64:0)" | "carries(1)" | "xs(1)" | "ys(1)" | "reverse" | "settles"
 *           | name "(" {fact} ")"                            size(4 8); range(start:step:length ...); by(low:high ...)
 *     mark  = "stop" | "again" | "again(2)" | "checkpoint(1)" | "phase(1)"                    as in ir/graph.h
 *     fact  = integer                                        a new fact: the next of graph.ints, with this value
 *           | "s3" | "s3=512"                                an earlier fact; a new one out of turn
 *           | "#512"                                         a constant, no fact
 *           | "(" term "+" term ")" | "(" term "*" term ")"
 *     term  = as fact, but an integer is a constant
 *     value = true | false | integer | float | inf | -inf | nan | 0x... (the bits; other NaNs)
 *     type  = dtype "[" sizes "]"                            for people: sizes are those of the graph at hand. Checked if there
 *
 * Comments run from "//" to the end of the line.
 *
 * scalar is a fact, const is known for ever. Numbers of facts are kept even when others were
 * dropped with their nodes, so that s3 in a dump is the s3 of the guards. Not in the text:
 * locations, and which sizes are known to be equal beyond what the graph's structure says.
 */
#include "ir/text.h"
#include "ir/attr.h"
#include "ir/body.h"

#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- scalars ---- */

/* strtod with '.' whatever the locale says. The whole of `text` must be a number. */
bool text_double(const char *text, double *value)
{
    char buf[128], *to = buf;
    const char *point = localeconv()->decimal_point;
    if (strlen(text) + strlen(point) + 1 > sizeof buf)
        return false;
    bool seen = false;
    for (; *text; text++) {
        if (*text != '.' || seen) {
            *to++ = *text;
        } else {
            to = stpcpy(to, point);
            seen = true;
        }
    }
    *to = 0;
    char *end;
    *value = strtod(buf, &end);
    return end != buf && *end == 0;
}

/* The shortest decimal that rounds to the same bits of dtype. */
static void print_float(DType dtype, uint64_t bits, Str *out)
{
    double value = scalar_to_double(dtype, bits), back;
    char buf[64];
    if (isnan(value)) {
        if (scalar_from_double(dtype, NAN) == bits)
            str_printf(out, "nan");
        else
            str_printf(out, "0x%" PRIx64, bits);
        return;
    }
    if (isinf(value)) {
        str_printf(out, value < 0 ? "-inf" : "inf");
        return;
    }
    const char *point = localeconv()->decimal_point;
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(buf, sizeof buf, "%.*g", digits, value);
        char *at = strstr(buf, point);
        if (at) {
            *at = '.';
            memmove(at + 1, at + strlen(point), strlen(at + strlen(point)) + 1);
        }
        if (text_double(buf, &back) && scalar_from_double(dtype, back) == bits)
            break;
    }
    str_printf(out, "%s", buf);
}

void text_print_scalar(DType dtype, uint64_t bits, Str *out)
{
    switch (dtype_kind(dtype)) {
    case DK_BOOL: str_printf(out, bits ? "true" : "false"); break;
    case DK_INT: str_printf(out, "%" PRId64, scalar_to_int(dtype, bits)); break;
    case DK_UINT: str_printf(out, "%" PRIu64, bits); break;
    case DK_FLOAT: print_float(dtype, bits, out); break;
    }
}

static Status parse_bits(const Scan *s, DType dtype, const char *word, uint64_t *bits)
{
    char *end;
    double number;
    errno = 0;
    if (strncmp(word, "0x", 2) == 0) {
        *bits = strtoull(word, &end, 16);
        if (*end || errno || (dtype_bytes(dtype) < 8 && *bits >> 8 * dtype_bytes(dtype)) || (dtype == DT_BOOL && *bits > 1))
            return scan_bad(s, "not the bits of that dtype");
        return ST_OK;
    }
    switch (dtype_kind(dtype)) {
    case DK_BOOL:
        *bits = strcmp(word, "true") == 0;
        return *bits || strcmp(word, "false") == 0 ? ST_OK : scan_bad(s, "expected true or false");
    case DK_INT: {
        long long v = strtoll(word, &end, 10);
        *bits = scalar_from_int(dtype, v);
        return end != word && !*end && !errno && scalar_to_int(dtype, *bits) == v ? ST_OK : scan_bad(s, "not an integer of that dtype");
    }
    case DK_UINT:
        *bits = strtoull(word, &end, 10);
        return end != word && !*end && !errno && *word != '-' && (dtype_bytes(dtype) == 8 || !(*bits >> 8 * dtype_bytes(dtype)))
                   ? ST_OK
                   : scan_bad(s, "not an integer of that dtype");
    case DK_FLOAT:
        if (!text_double(word, &number))
            return scan_bad(s, "expected a number");
        *bits = scalar_from_double(dtype, number);
        return ST_OK;
    }
    return scan_bad(s, "expected a value");
}

Status text_parse_scalar(Scan *s, DType dtype, uint64_t *bits)
{
    char word[96];
    size_t len = 0;
    scan_skip(s);
    while (scan_word_char(s->at[len]) || s->at[len] == '-' || s->at[len] == '+' || s->at[len] == '.')
        len++;
    if (len == 0 || len >= sizeof word)
        return scan_bad(s, "expected a value");
    memcpy(word, s->at, len);
    word[len] = 0;
    TRY(parse_bits(s, dtype, word, bits));
    s->at += len;
    return ST_OK;
}

Status text_parse_dtype(Scan *s, DType *dtype)
{
    size_t len = scan_peek_word(s);
    *dtype = dtype_parse(s->at, len);
    if (*dtype == DT_COUNT)
        return scan_bad(s, "expected a dtype");
    s->at += len;
    return ST_OK;
}

/* ---- nodes ---- */

/* Which fact is expected next (see the grammar), and which were seen. NULL where a node is printed
 * by itself. */
typedef struct FactOrder {
    uint32_t next;
    bool *seen;
} FactOrder;

/* Marks a fact as printed; true when it was not before. */
static bool first_time(FactOrder *order, uint32_t fact)
{
    if (!order || order->seen[fact])
        return false;
    order->seen[fact] = true;
    return true;
}

enum { EXPR_BUDGET = 4096 };

static void print_term(const Graph *g, Dim d, FactOrder *order, Str *out, int *budget)
{
    const DimInfo *info = &g->shared->dims.at[d];
    if (--*budget < 0) {
        str_printf(out, "?");
        return;
    }
    if (info->kind == DIM_CONST) {
        str_printf(out, "%" PRId64, info->hint);
    } else if (info->kind == DIM_FACT) {
        str_printf(out, "s%" PRIu32, info->fact);
        if (first_time(order, info->fact)) {
            str_printf(out, "=%" PRId64, info->hint);
            order->next = info->fact + 1 > order->next ? info->fact + 1 : order->next;
        }
    } else {
        str_add(out, "(", 1);
        print_term(g, info->a, order, out, budget);
        str_add(out, info->kind == DIM_ADD ? "+" : "*", 1);
        print_term(g, info->b, order, out, budget);
        str_add(out, ")", 1);
    }
}

static void print_fact(const Graph *g, Ref r, Dim d, FactOrder *order, Str *out)
{
    const DimInfo *info = &g->shared->dims.at[d];
    int budget = EXPR_BUDGET;
    bool fresh = info->kind == DIM_FACT && (order ? info->fact == order->next && !order->seen[info->fact] : info->owner == r);
    if (fresh) {
        str_printf(out, "%" PRId64, info->hint);
        if (order)
            order->seen[order->next++] = true;
    } else if (info->kind == DIM_CONST) {
        str_printf(out, "#%" PRId64, info->hint);
    } else {
        print_term(g, d, order, out, &budget);
    }
}

static void print_type(const Graph *g, const Node *n, Str *out)
{
    str_printf(out, "%s[", dtype_name((DType)n->dtype));
    for (int d = 0; d < n->rank; d++)
        str_printf(out, "%s%" PRId64, d ? "," : "", dim_hint(g, n->dim[d]));
    str_printf(out, "]");
}

/* "f32[4,s0] strides(s1 1)" */
static void print_input(const Graph *g, Ref r, FactOrder *order, Str *out)
{
    const Node *n = graph_node(g, r);
    str_printf(out, "%s[", dtype_name((DType)n->dtype));
    for (int d = 0; d < n->rank; d++) {
        if (d)
            str_printf(out, ",");
        print_fact(g, r, n->fact[d], order, out);
    }
    str_printf(out, "]");
    for (int d = 0; n->attr.flag && d < n->rank; d++) {
        str_printf(out, d ? " " : " strides(");
        print_fact(g, r, n->fact[n->rank + d], order, out);
    }
    if (n->attr.flag)
        str_printf(out, n->rank ? ")" : " strides()");
    if (n->constant)
        str_printf(out, " constant");
}

void attr_print(Op op, const Attr *attr, int rank, Str *out)
{
    unsigned fields = attr_info(op).fields;
    const char *space = "";
    if (fields & ATTR_AXES) {
        str_printf(out, " axes(");
        for (int d = 0; d < MAX_RANK; d++) {
            if (attr->mask >> d & 1) {
                str_printf(out, "%s%d", space, d);
                space = " ";
            }
        }
        str_printf(out, ")");
    }
    if (fields & ATTR_AXIS)
        str_printf(out, " axis(%d)", attr->axis);
    if (fields & ATTR_PERM) {
        str_printf(out, " perm(");
        for (int d = 0; d < rank; d++)
            str_printf(out, "%s%d", d ? " " : "", attr->perm[d]);
        str_printf(out, ")");
    }
    if (fields & ATTR_GROUPS) {
        str_printf(out, " groups(");
        for (uint32_t k = 0; k < attr->n && k < 2 * MAX_RANK; k++)
            str_printf(out, "%s%d:%d", k ? " " : "", attr->group.in[k], attr->group.out[k]);
        str_printf(out, ")");
    }
    if (fields & ATTR_MODE)
        str_printf(out, " mode(%s)", attr->mode < 4 ? scatter_mode_names[attr->mode] : "?");
    if (fields & ATTR_DESCENDING && attr->flag)
        str_printf(out, " descending");
    if (fields & ATTR_NUMBER)
        str_printf(out, " number(%" PRIu32 ")", attr->n);
    if (fields & ATTR_CUSTOM) {
        str_printf(out, " gives(");
        for (uint32_t k = 0; k < attr->n && k < MAX_CALL_RESULTS; k++)
            str_printf(out, "%s%s:%d", k ? " " : "", dtype_name((DType)(attr->custom.type[k] >> 4)), attr->custom.type[k] & 15);
        str_printf(out, ")");
    }
    if (fields & ATTR_LOOP)
        str_printf(out, " carries(%u) xs(%u) ys(%u)%s%s", attr->loop.carries, attr->loop.xs, attr->loop.ys,
                   attr->loop.reverse ? " reverse" : "", attr->loop.settles ? " settles" : "");
}

static void print_facts(const Graph *g, Ref r, FactOrder *order, Str *out)
{
    const Node *n = graph_node(g, r);
    AttrInfo info = attr_info((Op)n->op);
    if (!info.facts || n->n_facts == 0)
        return;
    str_printf(out, " %s(", info.facts);
    for (uint32_t k = 0; k < n->n_facts; k++) {
        if (k)
            str_printf(out, k % info.per_axis ? ":" : " ");
        print_fact(g, r, n->fact[k], order, out);
    }
    str_printf(out, ")");
}

static void print_nodes(const Graph *g, Ref r, FactOrder *order, int depth, Str *out);

/* " step(%0: i64[], %1: f32[8]) {" and so on, indented; for a message (order NULL) only the name. */
static void print_bodies(const Node *n, FactOrder *order, int depth, Str *out)
{
    for (uint32_t b = 0; b < n->n_bodies; b++) {
        const Graph *body = n->bodies[b];
        str_printf(out, " %s", body_name((Op)n->op, b));
        if (!order)
            continue;
        str_printf(out, "(");
        for (uint32_t k = 0; k < body->inputs.n; k++) {
            str_printf(out, "%s%%%" PRIu32 ": ", k ? ", " : "", body->inputs.at[k]);
            print_type(body, graph_node(body, body->inputs.at[k]), out);
        }
        str_printf(out, ") {\n");
        print_nodes(body, body->inputs.n, order, depth + 1, out);
        str_printf(out, "%*s}", 2 * depth, "");
    }
}

static void print_line(const Graph *g, Ref r, FactOrder *order, int depth, Str *out)
{
    const Node *n = graph_node(g, r);
    str_printf(out, "%%%" PRIu32 " = ", r);
    if (n->op == OP_INPUT) {
        str_printf(out, "input ");
        print_input(g, r, order, out);
        return;
    }
    if (n->op == OP_SCALAR) {
        str_printf(out, "%s %s ", n->attr.flag ? "const" : "scalar", dtype_name((DType)n->dtype));
        text_print_scalar((DType)n->dtype, g->shared->scalars.at[n->scalar].bits, out);
    } else {
        str_printf(out, "%s", op_name((Op)n->op));
        if (n->op == OP_CAST)
            str_printf(out, " %s", dtype_name((DType)n->dtype));
        for (uint32_t k = 0; k < n->n_in; k++)
            str_printf(out, " %%%" PRIu32, n->in[k]);
        if (n->callee) {
            str_printf(out, " calls(");
            callee_print(n->callee, out);
            str_printf(out, ")");
        }
        attr_print((Op)n->op, &n->attr, n->rank, out);
        print_facts(g, r, order, out);
        print_bodies(n, order, depth, out);
    }
    if (n->stop)
        str_printf(out, " stop");
    if (n->again)
        str_printf(out, n->again > 1 ? " again(%u)" : " again", n->again);
    if (n->checkpoint)
        str_printf(out, " checkpoint(%u)", n->checkpoint);
    if (n->phase)
        str_printf(out, " phase(%u)", n->phase);
    str_printf(out, " : ");
    print_type(g, n, out);
}

void node_print(const Graph *g, Ref r, Str *out) { print_line(g, r, NULL, 0, out); }

/* Nodes from r on, and what is returned, a line each. */
static void print_nodes(const Graph *g, Ref r, FactOrder *order, int depth, Str *out)
{
    for (; r < g->nodes.n; r++) {
        str_printf(out, "%*s", 2 * depth, "");
        print_line(g, r, order, depth, out);
        str_printf(out, "\n");
    }
    str_printf(out, "%*sreturn", 2 * depth, "");
    for (uint32_t k = 0; k < g->outputs.n; k++)
        str_printf(out, " %%%" PRIu32, g->outputs.at[k]);
    str_printf(out, "\n");
}

void graph_print(const Graph *g, const char *name, Str *out)
{
    FactOrder order = {.seen = ARENA_ARRAY(out->arena, bool, g->shared->ints.n + 1)};
    Ref r = 0;
    str_printf(out, "graph %s(", name);
    for (; r < g->nodes.n && graph_node(g, r)->op == OP_INPUT; r++) {
        str_printf(out, "%s%%%" PRIu32 ": ", r ? ", " : "", r);
        print_input(g, r, &order, out);
    }
    str_printf(out, ") {\n");
    print_nodes(g, r, &order, 1, out);
    str_printf(out, "}\n");
}
