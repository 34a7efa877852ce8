/*
 * Matching the rules of ir/match.h and building what they say. A pattern is parsed into a few entries of a pool: operand lists are indices.
 * Matching is by recursion in three steps, so that a question about a fact is asked only when the answer decides:
 *   1. structure: ops, equal variables, and literals against the values at hand, noted but not asked;
 *   2. may the rule be applied to this dtype;
 *   3. the noted scalars, each asked through spec_scalar_eq; a refusal takes back those already asked.
 * Where the pattern holds ops that commute, every choice of operand order is tried in turn: bit k of `order` swaps the
 * k-th such op.
 */
#include "ir/match.h"
#include "ir/infer.h"
#include "ir/query.h"

enum { CONDITION = 3 }; /* the variable c */

const char rule_variable_letters[RULE_VARIABLES + 1] = "xyzc";

/* ---- matching ---- */

Ref scalar_source(const Graph *g, Ref r)
{
    const Node *n = graph_node(g, r);
    while (n->rank > 0) {
        if (!op_repeats((Op)n->op))
            return REF_NONE;
        r = n->in[0];
        n = graph_node(g, r);
    }
    return r;
}

uint32_t graph_size(const Graph *g)
{
    uint32_t size = 0;
    for (Ref r = 0; r < g->nodes.n; r++)
        size += graph_node(g, r)->rank == 0 || scalar_source(g, r) == REF_NONE;
    return size;
}

/* Does the value at hand equal the literal? Reads the fact without a question: only a yes is relied on, and asked for later. */
static bool literal_fits(Match *m, Ref r, double value)
{
    Ref s = scalar_source(m->g, r);
    if (s == REF_NONE || graph_node(m->g, s)->op != OP_SCALAR || m->n_literals == PATTERN_LITERALS)
        return false;
    Graph unasked = *m->g;
    GraphShared shared = *m->g->shared;
    unasked.shared = &shared;
    shared.query = NULL;
    if (!spec_scalar_eq(&unasked, s, value, ""))
        return false;
    m->scalar[m->n_literals] = s;
    m->value[m->n_literals++] = value;
    return true;
}

static bool fits(Match *m, const Pat *pool, uint16_t index, Ref r)
{
    const Pat *p = &pool[index];
    const Node *n = graph_node(m->g, r);
    if (p->kind == PAT_LITERAL)
        return literal_fits(m, r, p->value);
    if (p->kind == PAT_VAR) {
        if (p->var == CONDITION && n->dtype != DT_BOOL)
            return false;
        if (m->var[p->var] == REF_NONE)
            m->var[p->var] = r;
        return m->var[p->var] == r;
    }
    if (n->op != p->op)
        return false;
    bool swap = p->swap && m->order >> (p->swap - 1) & 1;
    for (int k = 0; k < p->n_in; k++)
        if (!fits(m, pool, p->in[k], n->in[swap ? 1 - k : k]))
            return false;
    return true;
}

bool pattern_match(const Graph *g, const Pat *pool, uint16_t pattern, uint8_t n_swaps, Ref r, Match *m)
{
    for (unsigned order = 0; order < 1u << n_swaps; order++) {
        Match fresh = {.g = g, .order = order, .var = {REF_NONE, REF_NONE, REF_NONE, REF_NONE}};
        if (fits(&fresh, pool, pattern, r)) {
            *m = fresh;
            return true;
        }
    }
    return false;
}

bool match_ask(const Match *m, const char *who)
{
    uint32_t mark = query_mark(m->g);
    for (int k = 0; k < m->n_literals; k++) {
        if (!spec_scalar_eq(m->g, m->scalar[k], m->value[k], who)) {
            query_undo(m->g, mark);
            return false;
        }
    }
    return true;
}

static bool dtype_fits(RuleDTypes dtypes, DType t)
{
    switch (dtypes) {
    case RULE_ANY: return true;
    case RULE_FLOATS: return dtype_is_float(t);
    case RULE_WIDE_FLOATS: return t == DT_F32 || t == DT_F64;
    case RULE_INTS_ONLY: return dtype_is_int(t);
    case RULE_UINTS: return dtype_kind(t) == DK_UINT;
    case RULE_SIGNED: return dtype_kind(t) == DK_INT;
    case RULE_NEGATIVE: return dtype_is_signed(t);
    case RULE_BOOLS: return t == DT_BOOL;
    }
    return false;
}

bool rule_sound(const Rewriter *w, uint8_t dtypes, uint8_t soundness, DType dtype)
{
    if (!dtype_fits((RuleDTypes)dtypes, dtype))
        return false;
    if (w->unsound || soundness == SOUND_EXACT || !dtype_is_float(dtype))
        return true;
    return w->math == MATH_FAST && (soundness == SOUND_FAST || soundness == SOUND_NEARER || (soundness == SOUND_FINITE && w->finite));
}

/* ---- applying ---- */

/* Builds the replacement; literals take dtype `literal` at the top and that of `x` below. */
static Ref build(Rewriter *w, const Pat *pool, uint16_t index, const Match *m, const Node *root, DType literal)
{
    const Pat *p = &pool[index];
    if (p->kind == PAT_VAR)
        return m->var[p->var];
    if (p->kind == PAT_LITERAL)
        return rewrite_const(w, literal, scalar_from_double(literal, p->value), root->rank, root->dim, root->loc);
    Ref in[3] = {REF_NONE, REF_NONE, REF_NONE};
    for (int k = 0; k < p->n_in; k++) {
        Ref x = m->var[0] != REF_NONE ? m->var[0] : m->var[CONDITION];
        in[k] = build(w, pool, p->in[k], m, root, (DType)graph_node(w->g, x)->dtype);
        if (in[k] == REF_NONE)
            return REF_NONE;
    }
    return rewrite_ew(w, (Op)p->op, in[0], in[1], in[2], root->loc);
}

bool pattern_literal_exists(DType dtype, double value)
{
    return dtype_is_float(dtype) || scalar_to_double(dtype, scalar_from_double(dtype, value)) == value;
}

/* Would the replacement's dtypes be accepted, and give the root's? Checked before anything is asked. */
static DType dtype_of(const Graph *g, const Pat *pool, uint16_t index, const Match *m, DType literal)
{
    const Pat *p = &pool[index];
    DType in[3];
    if (p->kind == PAT_VAR)
        return (DType)graph_node(g, m->var[p->var])->dtype;
    if (p->kind == PAT_LITERAL)
        return pattern_literal_exists(literal, p->value) ? literal : DT_COUNT;
    Ref x = m->var[0] != REF_NONE ? m->var[0] : m->var[CONDITION];
    for (int k = 0; k < p->n_in; k++)
        in[k] = dtype_of(g, pool, p->in[k], m, (DType)graph_node(g, x)->dtype);
    return infer_dtype((Op)p->op, p->n_in, in, DT_COUNT);
}

/* Is nothing below r, an op of the pattern, read but by the pattern? */
static bool inside_alone(const Rewriter *w, const PatternRule *rule, uint16_t index, Ref r, const Match *m)
{
    const Pat *p = &rule->pool[index];
    const Node *n = graph_node(w->g, r);
    bool swap = p->swap && m->order >> (p->swap - 1) & 1;
    for (int k = 0; k < p->n_in; k++) {
        Ref in = n->in[swap ? 1 - k : k];
        if (rule->pool[p->in[k]].kind != PAT_OP)
            continue;
        if ((in < w->readers.n && w->readers.at[in] > 1) || !inside_alone(w, rule, p->in[k], in, m))
            return false;
    }
    return true;
}

bool pattern_rule_fits(const Rewriter *w, const PatternRule *rule, Ref r, Match *m)
{
    const Graph *g = w->g;
    if (!pattern_match(g, rule->pool, rule->pattern, rule->n_swaps, r, m))
        return false;
    if (rule->soundness == SOUND_NEARER && !inside_alone(w, rule, rule->pattern, r, m))
        return false;
    for (int v = 0; v < RULE_VARIABLES; v++) {
        bool judged = m->var[v] != REF_NONE && (v != CONDITION || m->var[0] == REF_NONE);
        if (judged && !rule_sound(w, rule->dtypes, rule->soundness, (DType)graph_node(g, m->var[v])->dtype))
            return false;
    }
    DType root = (DType)graph_node(g, r)->dtype;
    return dtype_of(g, rule->pool, rule->replacement, m, root) == root;
}

Ref pattern_rule_build(Rewriter *w, const PatternRule *rule, Ref r, const Match *m)
{
    const Node root = *graph_node(w->g, r);
    if (!match_ask(m, rule->name))
        return REF_NONE;
    return build(w, rule->pool, rule->replacement, m, &root, (DType)root.dtype);
}

/* ---- a rule by itself, for tests of it ---- */

Ref pattern_instance(Graph *g, const Pat *pool, uint16_t index, const Ref vars[RULE_VARIABLES], DType literal)
{
    const Pat *p = &pool[index];
    if (p->kind == PAT_VAR)
        return vars[p->var];
    if (p->kind == PAT_LITERAL) {
        /* A scalar beside x, shaped like it. A pattern without x has bools only. */
        const Node like = *graph_node(g, vars[0] != REF_NONE ? vars[0] : vars[CONDITION]);
        DType dtype = literal != DT_COUNT ? literal : (DType)like.dtype;
        Rewriter plain = {.g = g};
        Ref s = graph_add_scalar(g, dtype, scalar_from_double(dtype, p->value), (Loc){0});
        return rewrite_broadcast(&plain, s, like.rank, like.dim, (Loc){0});
    }
    Ref in[3] = {REF_NONE, REF_NONE, REF_NONE};
    for (int k = 0; k < p->n_in; k++)
        in[k] = pattern_instance(g, pool, p->in[k], vars, p->op == OP_WHERE && k == 0 ? DT_BOOL : DT_COUNT);
    return graph_ew(g, (Op)p->op, in[0], in[1], in[2], (Loc){0});
}
