/* Parsing the expressions of tables and of users: see ir/pattern.h. */
#include "ir/pattern.h"
#include "ir/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Reading {
    PatternPool *pool;
    const char *text, *at, *variables;
    PatternUse *use;
    int depth;
} Reading;

/* Seen by the first test that uses the table. */
_Noreturn void pattern_bad(const char *text)
{
    fprintf(stderr, "kiln: broken invariant: the row `%s` does not parse\n", text);
    abort();
}

static int column(const Reading *r, const char *at) { return (int)(at - r->text) + 1; }

/* One word of the text, cut where it is long: for messages. */
static int word_length(const char *at)
{
    size_t n = strcspn(at, " ()");
    return n == 0 && *at ? 1 : n > 24 ? 24 : (int)n;
}

static Status expected(const Reading *r, const char *what)
{
    if (!*r->at)
        return fail(ST_INVALID, "at column %d: expected %s, not the end", column(r, r->at), what);
    return fail(ST_INVALID, "at column %d: expected %s, not `%.*s`", column(r, r->at), what, word_length(r->at), r->at);
}

static void skip(Reading *r)
{
    while (*r->at == ' ')
        r->at++;
}

/* "there is no op `mull`; `mul` is near" */
static Status no_such_op(const Reading *r, const char *at, size_t len)
{
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)len, at);
    size_t best = SIZE_MAX;
    int nearest = 0;
    for (int op = 0; op < OP_COUNT && len < sizeof name; op++) {
        size_t d = op_class((Op)op) == CLS_EW ? str_distance(name, op_name((Op)op)) : SIZE_MAX;
        if (d < best) {
            best = d;
            nearest = op;
        }
    }
    if (best <= len / 2)
        return fail(ST_INVALID, "at column %d: there is no op `%s`; `%s` is near (`kiln ops` lists them)", column(r, at), name,
                    op_name((Op)nearest));
    return fail(ST_INVALID, "at column %d: there is no op `%s` (`kiln ops` lists them)", column(r, at), name);
}

static Status read_one(Reading *r, uint16_t *index);

/* "(mul x y)", behind the bracket. */
static Status read_op(Reading *r, Pat *p)
{
    const char *name = r->at;
    size_t len = strcspn(name, " ()");
    if (!len)
        return expected(r, "an op");
    Op op = op_parse(name, len);
    if (op == OP_COUNT)
        return no_such_op(r, name, len);
    if (op_class(op) != CLS_EW)
        return fail(ST_INVALID, "at column %d: `%s` is no elementwise op", column(r, name), op_name(op));
    p->kind = PAT_OP;
    p->op = (uint8_t)op;
    r->at += len;
    if (op_info[op].flags & OPF_COMMUTES)
        p->swap = ++r->use->n_swaps;
    if (r->use->n_swaps > PATTERN_SWAPS)
        return fail(ST_INVALID, "at column %d: more than %d ops that commute", column(r, name), PATTERN_SWAPS);
    for (skip(r); *r->at && *r->at != ')'; skip(r)) {
        if (p->n_in == op_info[op].arity)
            return fail(ST_INVALID, "at column %d: `%s` takes %d operand%s, not more", column(r, r->at), op_name(op), op_info[op].arity,
                        op_info[op].arity == 1 ? "" : "s");
        TRY(read_one(r, &p->in[p->n_in]));
        p->n_in++;
    }
    if (*r->at != ')')
        return expected(r, "`)`");
    if (p->n_in != op_info[op].arity)
        return fail(ST_INVALID, "at column %d: `%s` takes %d operands, not %d", column(r, r->at), op_name(op), op_info[op].arity, p->n_in);
    r->at++;
    return ST_OK;
}

/* A decimal such as -12.5 or 1e-3, without asking the locale. */
static Status read_literal(Reading *r, Pat *p)
{
    char number[48];
    size_t len = strspn(r->at, "+-.0123456789eE");
    snprintf(number, sizeof number, "%.*s", (int)len, r->at);
    p->kind = PAT_LITERAL;
    if (len == 0 || len >= sizeof number || !text_double(number, &p->value)) {
        char what[80];
        snprintf(what, sizeof what, "a variable (one of %s), a number or `(`", r->variables);
        return expected(r, what);
    }
    if (++r->use->n_literals > PATTERN_LITERALS)
        return fail(ST_INVALID, "at column %d: more than %d numbers", column(r, r->at), PATTERN_LITERALS);
    r->at += len;
    return ST_OK;
}

static Status read_one(Reading *r, uint16_t *index)
{
    const char *var;
    Pat p = {0};
    skip(r);
    if (r->pool->n == r->pool->cap || r->depth == PATTERN_DEPTH)
        return fail(ST_INVALID, "at column %d: the expression is too %s", column(r, r->at), r->depth == PATTERN_DEPTH ? "deep" : "long");
    *index = r->pool->n++;
    r->depth++;
    if (*r->at == '(') {
        r->at++;
        TRY(read_op(r, &p));
    } else if (*r->at && (var = strchr(r->variables, *r->at)) && (!r->at[1] || strchr(" )", r->at[1]))) {
        p.kind = PAT_VAR;
        p.var = (uint8_t)(var - r->variables);
        r->use->vars = (uint8_t)(r->use->vars | 1u << p.var);
        r->at++;
    } else {
        TRY(read_literal(r, &p));
    }
    r->depth--;
    r->pool->at[*index] = p;
    return ST_OK;
}

Status pattern_read(PatternPool *pool, const char *text, const char *variables, PatternUse *use, uint16_t *root)
{
    Reading r = {.pool = pool, .text = text, .at = text, .variables = variables, .use = use};
    *use = (PatternUse){0};
    TRY(read_one(&r, root));
    skip(&r);
    return *r.at ? expected(&r, "the end") : ST_OK;
}

uint16_t pattern_parse(PatternPool *pool, const char *text, const char *variables, PatternUse *use)
{
    uint16_t root = 0;
    if (pattern_read(pool, text, variables, use, &root) != ST_OK)
        pattern_bad(text);
    return root;
}
