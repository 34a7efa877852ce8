/*
 * The rows of ir/rules.def: parsed once, matched, applied.
 *
 * A pattern is parsed into a few entries of a pool: operand lists are indices. Matching is by recursion (patterns are
 * at most three deep) in three steps, so that a question about a fact is asked only when the answer decides:
 *   1. structure: ops, equal variables, and literals against the values at hand, noted but not asked;
 *   2. may the row be applied to this dtype;
 *   3. the noted scalars, each asked through spec_scalar_eq; a refusal takes back those already asked.
 * Where the pattern holds ops that commute, every choice of operand order is tried in turn: bit k of `order` swaps the
 * k-th such op.
 */
#include "ir/rules.h"
#include "ir/infer.h"
#include "ir/pattern.h"
#include "ir/query.h"

#include <stdatomic.h>
#include <string.h>
#include <threads.h>

enum { POOL = 1024, MAX_LITERALS = 4, N_VARS = 4 };

typedef struct Parsed {
    uint16_t pattern, replacement;
    uint8_t n_swaps, vars;
} Parsed;

static Pat pool[POOL];
static PatternPool patterns = {pool, 0, POOL};
static Parsed parsed[RULE_COUNT];
static uint16_t by_op[OP_COUNT][RULE_COUNT]; /* rows to try for an op, ended by RULE_COUNT */
static once_flag once = ONCE_FLAG_INIT;
static atomic_bool ready;

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

static const char variables[] = "xyzc";

static void parse_rows(void)
{
    uint16_t n[OP_COUNT] = {0};
    for (uint16_t k = 0; k < RULE_COUNT; k++) {
        const RuleInfo *info = &rule_info[k];
        if (info->pattern) {
            PatternUse use, made;
            parsed[k].pattern = pattern_parse(&patterns, info->pattern, variables, &use);
            parsed[k].replacement = pattern_parse(&patterns, info->replacement, variables, &made);
            parsed[k].n_swaps = use.n_swaps;
            parsed[k].vars = use.vars;
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
    atomic_store_explicit(&ready, true, memory_order_release);
}

/* Parses the rows at the first call. (The flag says in the open what call_once does inside libc.) */
static void need_rows(void)
{
    if (atomic_load_explicit(&ready, memory_order_acquire))
        return;
    call_once(&once, parse_rows);
    (void)atomic_load_explicit(&ready, memory_order_acquire);
}

/* ---- matching ---- */

typedef struct Match {
    const Graph *g;
    unsigned order;
    Ref var[N_VARS];
    Ref scalar[MAX_LITERALS]; /* the scalars that literals stand for */
    double value[MAX_LITERALS];
    int n_literals;
} Match;

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
    if (s == REF_NONE || graph_node(m->g, s)->op != OP_SCALAR || m->n_literals == MAX_LITERALS)
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

static bool fits(Match *m, uint16_t index, Ref r)
{
    const Pat *p = &pool[index];
    const Node *n = graph_node(m->g, r);
    if (p->kind == PAT_LITERAL)
        return literal_fits(m, r, p->value);
    if (p->kind == PAT_VAR) {
        if (m->var[p->var] == REF_NONE)
            m->var[p->var] = r;
        return m->var[p->var] == r;
    }
    if (n->op != p->op)
        return false;
    bool swap = p->swap && m->order >> (p->swap - 1) & 1;
    for (int k = 0; k < p->n_in; k++)
        if (!fits(m, p->in[k], n->in[swap ? 1 - k : k]))
            return false;
    return true;
}

static bool find_match(Match *m, const Parsed *rule, Ref r)
{
    for (unsigned order = 0; order < 1u << rule->n_swaps; order++) {
        Match fresh = {.g = m->g, .order = order};
        for (int v = 0; v < N_VARS; v++)
            fresh.var[v] = REF_NONE;
        if (fits(&fresh, rule->pattern, r)) {
            *m = fresh;
            return true;
        }
    }
    return false;
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

bool rule_allows(const Rewriter *w, RuleId rule, DType dtype)
{
    const RuleInfo *info = &rule_info[rule];
    if (!dtype_fits((RuleDTypes)info->dtypes, dtype))
        return false;
    if (w->unsound || info->soundness == SOUND_EXACT || !dtype_is_float(dtype))
        return true;
    return w->math == MATH_FAST && (info->soundness == SOUND_FAST || (info->soundness == SOUND_FINITE && w->finite));
}

/* ---- applying ---- */

/* Builds the replacement; literals take dtype `literal` at the top and that of `x` below. */
static Ref build(Rewriter *w, uint16_t index, const Match *m, const Node *root, DType literal)
{
    const Pat *p = &pool[index];
    if (p->kind == PAT_VAR)
        return m->var[p->var];
    if (p->kind == PAT_LITERAL)
        return rewrite_const(w, literal, scalar_from_double(literal, p->value), root->rank, root->dim, root->loc);
    Ref in[3] = {REF_NONE, REF_NONE, REF_NONE};
    for (int k = 0; k < p->n_in; k++) {
        Ref x = m->var[0] != REF_NONE ? m->var[0] : m->var[3];
        in[k] = build(w, p->in[k], m, root, (DType)graph_node(w->g, x)->dtype);
        if (in[k] == REF_NONE)
            return REF_NONE;
    }
    return rewrite_ew(w, (Op)p->op, in[0], in[1], in[2], root->loc);
}

/* Would the replacement's dtypes be accepted, and give the root's? Checked before anything is asked. */
static DType dtype_of(const Graph *g, uint16_t index, const Match *m, DType literal)
{
    const Pat *p = &pool[index];
    DType in[3];
    if (p->kind == PAT_VAR)
        return (DType)graph_node(g, m->var[p->var])->dtype;
    if (p->kind == PAT_LITERAL)
        return literal;
    Ref x = m->var[0] != REF_NONE ? m->var[0] : m->var[3];
    for (int k = 0; k < p->n_in; k++)
        in[k] = dtype_of(g, p->in[k], m, (DType)graph_node(g, x)->dtype);
    return infer_dtype((Op)p->op, p->n_in, in, DT_COUNT);
}

static Ref apply_pattern(Rewriter *w, RuleId rule, Ref r)
{
    const RuleInfo *info = &rule_info[rule];
    Match m = {.g = w->g};
    if (!find_match(&m, &parsed[rule], r))
        return REF_NONE;
    const Node root = *graph_node(w->g, r);
    Ref x = m.var[0] != REF_NONE ? m.var[0] : m.var[3];
    if (!rule_allows(w, rule, (DType)graph_node(w->g, x)->dtype))
        return REF_NONE;
    if (dtype_of(w->g, parsed[rule].replacement, &m, (DType)root.dtype) != (DType)root.dtype)
        return REF_NONE;
    uint32_t mark = query_mark(w->g);
    for (int k = 0; k < m.n_literals; k++) {
        if (!spec_scalar_eq(w->g, m.scalar[k], m.value[k], info->name)) {
            query_undo(w->g, mark);
            return REF_NONE;
        }
    }
    return build(w, parsed[rule].replacement, &m, &root, (DType)root.dtype);
}

/* The dtype a REWRITE's soundness is judged by: that of the last operand (where's values, not its condition). */
static DType judged_dtype(const Graph *g, Ref r)
{
    const Node *n = graph_node(g, r);
    return n->n_in ? (DType)graph_node(g, n->in[n->n_in - 1])->dtype : (DType)n->dtype;
}

/* The first row that changes node r; REF_NONE if none does. */
static Ref apply_rows(Rewriter *w, Ref r)
{
    for (const uint16_t *at = by_op[graph_node(w->g, r)->op]; *at != RULE_COUNT; at++) {
        RuleId rule = (RuleId)*at;
        const RuleInfo *info = &rule_info[rule];
        if (!(info->family & w->families) || (w->only && w->only != rule + 1u))
            continue;
        if (info->family == FAMILY_RULES && graph_node(w->g, r)->number) /* the host computes it (jit/host_scalars.h) */
            continue;
        Ref made = REF_NONE;
        if (info->pattern)
            made = apply_pattern(w, rule, r);
        else if (rule_allows(w, rule, judged_dtype(w->g, r)))
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

static Ref instance(Graph *g, uint16_t index, const Ref vars[N_VARS], bool condition)
{
    const Pat *p = &pool[index];
    if (p->kind == PAT_VAR)
        return vars[p->var];
    if (p->kind == PAT_LITERAL) {
        /* A scalar beside x, shaped like it. A pattern without x has bools only. */
        const Node like = *graph_node(g, vars[0] != REF_NONE ? vars[0] : vars[3]);
        DType dtype = condition ? DT_BOOL : (DType)like.dtype;
        Rewriter plain = {.g = g};
        Ref s = graph_add_scalar(g, dtype, scalar_from_double(dtype, p->value), (Loc){0});
        return rewrite_broadcast(&plain, s, like.rank, like.dim, (Loc){0});
    }
    Ref in[3] = {REF_NONE, REF_NONE, REF_NONE};
    for (int k = 0; k < p->n_in; k++)
        in[k] = instance(g, p->in[k], vars, p->op == OP_WHERE && k == 0);
    return graph_ew(g, (Op)p->op, in[0], in[1], in[2], (Loc){0});
}

Ref rule_instance(Graph *g, RuleId rule, const Ref vars[4])
{
    need_rows();
    return instance(g, parsed[rule].pattern, vars, false);
}

unsigned rule_variables(RuleId rule)
{
    need_rows();
    return parsed[rule].vars;
}
