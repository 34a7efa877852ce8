/*
 * The rows of ir/rules.def: parsed once, matched, applied.
 *
 * A RULE is matched and built by ir/match.c, a REWRITE is a function. The rules of users (ir/user_rule.h) are tried before the table's, in the pass
 * that applies them.
 */
#include "ir/rules.h"
#include "ir/infer.h"
#include "ir/match.h"

#include <pthread.h>
#include <string.h>

enum { POOL = 1024 };

static Pat pool[POOL];
static PatternPool patterns = {pool, 0, POOL};
static PatternRule parsed[RULE_COUNT];
static uint16_t by_op[OP_COUNT][RULE_COUNT]; /* rows to try for an op, ended by RULE_COUNT */
static pthread_once_t once = PTHREAD_ONCE_INIT;

enum {
    ANY = RULE_ANY,
    FLOATS = RULE_FLOATS,
    WIDE_FLOATS = RULE_WIDE_FLOATS,
    INTS = RULE_INTS_ONLY,
    UINTS = RULE_UINTS,
    SIGNED = RULE_SIGNED,
    NEGATIVE = RULE_NEGATIVE,
    BOOLS = RULE_BOOLS
};

const RuleInfo rule_info[RULE_COUNT] = {
#define RULE(name, pattern, replacement, dtypes, soundness) \
    {#name, pattern, replacement, NULL, CLS_EW, FAMILY_RULES, dtypes, SOUND_##soundness},
#define REWRITE(name, function, cls, family, soundness) \
    {#name, NULL, NULL, function, CLS_##cls, FAMILY_##family, RULE_ANY, SOUND_##soundness},
#include "ir/rules.def"
#undef RULE
#undef REWRITE
};

/* ---- parsing ---- */

static void parse_rows(void)
{
    uint16_t n[OP_COUNT] = {0};
    for (uint16_t k = 0; k < RULE_COUNT; k++) {
        const RuleInfo *info = &rule_info[k];
        if (info->pattern) {
            PatternUse use, made;
            uint16_t pattern = pattern_parse(&patterns, info->pattern, rule_variable_letters, &use);
            uint16_t replacement = pattern_parse(&patterns, info->replacement, rule_variable_letters, &made);
            parsed[k] = (PatternRule){.name = info->name,
                                      .pool = pool,
                                      .pattern = pattern,
                                      .replacement = replacement,
                                      .n_swaps = use.n_swaps,
                                      .vars = use.vars,
                                      .dtypes = info->dtypes,
                                      .soundness = info->soundness};
            if (pool[parsed[k].pattern].kind != PAT_OP || (made.vars & ~use.vars))
                pattern_bad(info->pattern);
        }
        for (int op = 0; op < OP_COUNT; op++)
            if (info->pattern ? op == pool[parsed[k].pattern].op : op_class((Op)op) == (OpClass)info->cls)
                by_op[op][n[op]++] = k;
    }
    for (int op = 0; op < OP_COUNT; op++)
        if (n[op] < RULE_COUNT)
            by_op[op][n[op]] = RULE_COUNT;
}

/* Parses the rows at the first call. (A program that links us may well have a call_once of its own, and ThreadSanitizer knows nothing of it.) */
static void need_rows(void) { pthread_once(&once, parse_rows); }

bool rule_allows(const Rewriter *w, RuleId rule, DType dtype)
{
    return rule_sound(w, rule_info[rule].dtypes, rule_info[rule].soundness, dtype);
}

/* The dtype a REWRITE's soundness is judged by: that of the last operand (where's values, not its condition). */
static DType judged_dtype(const Graph *g, Ref r)
{
    const Node *n = graph_node(g, r);
    return n->n_in ? (DType)graph_node(g, n->in[n->n_in - 1])->dtype : (DType)n->dtype;
}

/* The first of the users' rules that changes node r. */
static Ref apply_user_rules(Rewriter *w, Ref r)
{
    UserRules *user = &w->user;
    for (uint32_t k = 0; k < user->n && !graph_node(w->g, r)->number; k++) {
        const PatternRule *rule = user->rules[k];
        Match m;
        if (rule->pool[rule->pattern].op != graph_node(w->g, r)->op || !pattern_rule_fits(w, rule, r, &m))
            continue;
        user->last = rule->name;
        if (!user->left) {
            user->endless = rule->name;
            return REF_NONE;
        }
        user->left--;
        Ref made = pattern_rule_build(w, rule, r, &m);
        if (made != REF_NONE && made != r) {
            user->hits[k]++;
            return made;
        }
    }
    return REF_NONE;
}

/* The first row that changes node r; REF_NONE if none does. */
static Ref apply_rows(Rewriter *w, Ref r)
{
    Ref of_user = w->families & FAMILY_USER ? apply_user_rules(w, r) : REF_NONE;
    if (of_user != REF_NONE)
        return of_user;
    for (const uint16_t *at = by_op[graph_node(w->g, r)->op]; *at != RULE_COUNT; at++) {
        RuleId rule = (RuleId)*at;
        const RuleInfo *info = &rule_info[rule];
        if (!(info->family & w->families) || (w->only && w->only != rule + 1u))
            continue;
        if (info->family == FAMILY_RULES && graph_node(w->g, r)->number) /* the host computes it (jit/host_scalars.h) */
            continue;
        Ref made = REF_NONE;
        Match m;
        if (info->pattern && pattern_rule_fits(w, &parsed[rule], r, &m))
            made = pattern_rule_build(w, &parsed[rule], r, &m);
        else if (!info->pattern && rule_allows(w, rule, judged_dtype(w->g, r)))
            made = info->function(w, r);
        if (made != REF_NONE && made != r) {
            w->hits[rule]++;
            return made;
        }
    }
    return REF_NONE;
}

/* ---- adding ---- */

enum { MAX_DEPTH = 48 }; /* of rules whose replacement is simplified: a stop for rows that turn each other back */

static Ref simplify(Rewriter *w, Ref r)
{
    if (!w->families)
        return r;
    need_rows();
    while (w->result.n <= r)
        VEC_PUSH(w->g->arena, w->result, REF_NONE);
    if (w->depth == MAX_DEPTH)
        w->user.endless = w->user.last;
    if (w->result.at[r] != REF_NONE || w->depth == MAX_DEPTH)
        return w->result.at[r] != REF_NONE ? w->result.at[r] : r;
    w->depth++;
    Ref made = apply_rows(w, r);
    w->depth--;
    return w->result.at[r] = made == REF_NONE ? r : made;
}

Ref rewrite_add(Rewriter *w, Op op, DType dtype, const Ref *in, uint32_t n_in, const Attr *attr, const Dim *facts, uint32_t n_facts,
                Loc loc)
{
    Ref r = graph_add(w->g, op, dtype, in, n_in, attr, facts, n_facts, loc);
    Ref same = rewrite_merge(w, r);
    return simplify(w, same);
}

Ref rewrite_ew(Rewriter *w, Op op, Ref a, Ref b, Ref c, Loc loc)
{
    Ref in[3] = {a, b, c};
    DType types[3];
    uint32_t n_in = b == REF_NONE ? 1 : c == REF_NONE ? 2 : 3;
    for (uint32_t k = 0; k < n_in; k++)
        types[k] = (DType)graph_node(w->g, in[k])->dtype;
    DType dtype = infer_dtype(op, n_in, types, DT_COUNT);
    return dtype == DT_COUNT ? REF_NONE : rewrite_add(w, op, dtype, in, n_in, NULL, NULL, 0, loc);
}

Ref rewrite_cast(Rewriter *w, Ref x, DType to, Loc loc)
{
    return (DType)graph_node(w->g, x)->dtype == to ? x : rewrite_add(w, OP_CAST, to, &x, 1, NULL, NULL, 0, loc);
}

Ref rewrite_broadcast(Rewriter *w, Ref s, int rank, const Dim *dims, Loc loc)
{
    Attr insert = {.n = (uint32_t)rank}, repeat = {0};
    Dim facts[MAX_RANK];
    uint32_t n = 0;
    DType dtype = (DType)graph_node(w->g, s)->dtype;
    for (int d = 0; d < rank; d++) {
        const DimInfo *size = &w->g->shared->dims.at[dim_find(w->g, dims[d])];
        insert.group.out[d] = 1;
        if (size->kind == DIM_CONST && size->hint == 1)
            continue;
        repeat.mask = (uint8_t)(repeat.mask | 1u << d);
        facts[n++] = dims[d];
    }
    if (rank)
        s = rewrite_add(w, OP_RESHAPE, dtype, &s, 1, &insert, NULL, 0, loc);
    return n ? rewrite_add(w, OP_EXPAND, dtype, &s, 1, &repeat, facts, n, loc) : s;
}

Ref rewrite_const(Rewriter *w, DType dtype, uint64_t bits, int rank, const Dim *dims, Loc loc)
{
    return rewrite_broadcast(w, graph_add_const(w->g, dtype, bits, loc), rank, dims, loc);
}

/* ---- for tests ---- */

Ref rule_instance(Graph *g, RuleId rule, const Ref vars[4])
{
    need_rows();
    return pattern_instance(g, pool, parsed[rule].pattern, vars, DT_COUNT);
}

unsigned rule_variables(RuleId rule)
{
    need_rows();
    return parsed[rule].vars;
}
