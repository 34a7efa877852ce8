/* Parsing the expressions of tables: see ir/pattern.h. */
#include "ir/pattern.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Seen by the first test that uses the table. */
_Noreturn void pattern_bad(const char *text)
{
    fprintf(stderr, "kiln: broken invariant: the row `%s` does not parse\n", text);
    abort();
}

static const char *skip(const char *at)
{
    while (*at == ' ')
        at++;
    return at;
}

/* A decimal of the form -12.5, without asking the locale. */
static const char *parse_literal(const char *at, double *value)
{
    double sign = *at == '-' ? -1.0 : 1.0, v = 0, scale = 1;
    at += *at == '-';
    for (; *at >= '0' && *at <= '9'; at++)
        v = v * 10 + (*at - '0');
    if (*at == '.')
        for (at++; *at >= '0' && *at <= '9'; at++)
            v = v * 10 + (*at - '0'), scale *= 10;
    *value = sign * (v / scale);
    return at;
}

static uint16_t parse(PatternPool *pool, const char **text, const char *variables, PatternUse *use)
{
    const char *at = skip(*text), *var;
    if (pool->n == pool->cap)
        pattern_bad(*text);
    uint16_t index = pool->n++;
    Pat p = {0};
    if (*at == '(') {
        size_t len = strcspn(++at, " )");
        p.kind = PAT_OP;
        Op op = op_parse(at, len);
        if (op == OP_COUNT || op_class(op) != CLS_EW)
            pattern_bad(*text);
        p.op = (uint8_t)op;
        at = skip(at + len);
        if (op_info[op].flags & OPF_COMMUTES)
            p.swap = ++use->n_swaps;
        while (*at != ')') {
            if (p.n_in == 3 || !*at)
                pattern_bad(*text);
            p.in[p.n_in++] = parse(pool, &at, variables, use);
            at = skip(at);
        }
        if (p.n_in != op_info[op].arity)
            pattern_bad(*text);
        at++;
    } else if (*at && (var = strchr(variables, *at))) {
        p.kind = PAT_VAR;
        p.var = (uint8_t)(var - variables);
        use->vars = (uint8_t)(use->vars | 1u << p.var);
        at++;
    } else {
        const char *end = parse_literal(at, &p.value);
        p.kind = PAT_LITERAL;
        if (end == at)
            pattern_bad(*text);
        at = end;
    }
    pool->at[index] = p;
    *text = at;
    return index;
}

uint16_t pattern_parse(PatternPool *pool, const char *text, const char *variables, PatternUse *use)
{
    const char *at = text;
    *use = (PatternUse){0};
    uint16_t index = parse(pool, &at, variables, use);
    if (*skip(at))
        pattern_bad(text);
    return index;
}
