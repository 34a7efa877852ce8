/*
 * Sizes: constants, facts, sums and products, with the value each has in the graph at hand (its
 * hint).
 *
 * Constants, sums and products are interned, with constants folded and kept on the right, so equal
 * spellings are one Dim. What an op needs equal is unified (union-find): valid by structure, no
 * guard. The representative of a class is
 *   1. a constant, if it has one: then the size is known in every graph of the structure;
 *   2. else its oldest fact;
 *   3. else its oldest expression.
 * An expression's operands are always older than it, so a walk from a representative to the
 * representatives of its operands ends: at a constant, at a fact, or at an ever older expression --
 * even after "s0 == s0*s1" was unified.
 *
 * An expression is a DAG that may be exponentially large when written out (sizes 0 and 1 allow
 * endless merging), so whatever walks one by recursion has a budget and a linear fallback, or gives
 * up on the safe side ("not proven").
 *
 * Arithmetic wraps: a partial product may overflow when a later factor is 0; the value of the whole
 * is still right.
 */
#include "ir/base/hash.h"
#include "ir/graph.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WALK_BUDGET = 256, MAX_TERMS = 48, PRINT_BUDGET = 4096 };

static int64_t wrap_add(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }

static int64_t wrap_mul(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }

/* ---- making ---- */

static Dim push(Graph *g, DimInfo info)
{
    Dim d = g->shared->dims.n;
    info.parent = d;
    VEC_PUSH(g->arena, g->shared->dims, info);
    return d;
}

static uint64_t key_of(const DimInfo *info)
{
    struct {
        uint64_t kind;
        int64_t value;
        Dim a, b;
    } key = {info->kind, info->kind == DIM_CONST ? info->hint : 0, info->a, info->b};
    return hash64(&key, sizeof key);
}

static bool same_key(const DimInfo *x, const DimInfo *y)
{
    return x->kind == y->kind && x->a == y->a && x->b == y->b && (x->kind != DIM_CONST || x->hint == y->hint);
}

/* The Dim of an equal constant, sum or product, or a new one. */
static Dim intern(Graph *g, DimInfo info)
{
    uint32_t hash = table_key(key_of(&info));
    for (uint32_t probe = 0, d; table_next(&g->shared->dim_intern, hash, &probe, &d);)
        if (same_key(&g->shared->dims.at[d], &info))
            return d;
    Dim d = push(g, info);
    table_add(g->arena, &g->shared->dim_intern, hash, d);
    return d;
}

Dim dim_const(Graph *g, int64_t value)
{
    return intern(g, (DimInfo){.kind = DIM_CONST, .hint = value, .a = DIM_NONE, .b = DIM_NONE, .owner = REF_NONE});
}

Dim dim_fact(Graph *g, int64_t value, FactKind kind, uint8_t axis, Ref node)
{
    node = graph_place(g, node);
    IntFact fact = {.value = value, .kind = (uint8_t)kind, .axis = axis, .node = node};
    uint32_t index = g->shared->ints.n;
    VEC_PUSH(g->arena, g->shared->ints, fact);
    return push(g, (DimInfo){.kind = DIM_FACT, .hint = value, .fact = index, .a = DIM_NONE, .b = DIM_NONE, .owner = node});
}

static bool is_const(const Graph *g, Dim d, int64_t *value)
{
    const DimInfo *info = &g->shared->dims.at[d];
    *value = info->hint;
    return info->kind == DIM_CONST;
}

/* d as rest * c with the greatest constant factor on its right. */
static Dim split_factor(const Graph *g, Dim d, int64_t *c)
{
    const DimInfo *info = &g->shared->dims.at[d];
    if (info->kind == DIM_MUL && is_const(g, info->b, c))
        return info->a;
    *c = 1;
    return d;
}

Dim dim_mul(Graph *g, Dim a, Dim b)
{
    a = dim_find(g, a);
    b = dim_find(g, b);
    int64_t ca, cb;
    bool ka = is_const(g, a, &ca), kb = is_const(g, b, &cb);
    if (ka && kb)
        return dim_const(g, wrap_mul(ca, cb));
    if (ka) { /* constants to the right */
        Dim t = a;
        a = b, b = t;
        cb = ca, kb = true;
    }
    if (kb && cb == 0)
        return b;
    if (kb && cb == 1)
        return a;
    Dim rest_a = split_factor(g, a, &ca);
    if (kb && rest_a != a)
        return dim_mul(g, rest_a, dim_const(g, wrap_mul(ca, cb)));
    if (!kb) {
        Dim rest_b = split_factor(g, b, &cb);
        if (rest_a != a || rest_b != b)
            return dim_mul(g, dim_mul(g, rest_a, rest_b), dim_const(g, wrap_mul(ca, cb)));
        if (b < a) {
            Dim t = a;
            a = b, b = t;
        }
    }
    return intern(g, (DimInfo){.kind = DIM_MUL, .a = a, .b = b, .owner = REF_NONE, .hint = wrap_mul(dim_hint(g, a), dim_hint(g, b))});
}

/* d as rest + c with the constant term on its right. */
static Dim split_term(const Graph *g, Dim d, int64_t *c)
{
    const DimInfo *info = &g->shared->dims.at[d];
    if (info->kind == DIM_ADD && is_const(g, info->b, c))
        return info->a;
    *c = 0;
    return d;
}

Dim dim_add(Graph *g, Dim a, Dim b)
{
    a = dim_find(g, a);
    b = dim_find(g, b);
    int64_t ca, cb;
    bool ka = is_const(g, a, &ca), kb = is_const(g, b, &cb);
    if (ka && kb)
        return dim_const(g, wrap_add(ca, cb));
    if (ka) {
        Dim t = a;
        a = b, b = t;
        cb = ca, kb = true;
    }
    if (kb && cb == 0)
        return a;
    Dim rest_a = split_term(g, a, &ca);
    if (kb && rest_a != a)
        return dim_add(g, rest_a, dim_const(g, wrap_add(ca, cb)));
    if (!kb) {
        Dim rest_b = split_term(g, b, &cb);
        if (rest_a != a || rest_b != b)
            return dim_add(g, dim_add(g, rest_a, rest_b), dim_const(g, wrap_add(ca, cb)));
        Dim base_a = split_factor(g, a, &ca), base_b = split_factor(g, b, &cb);
        if (base_a == base_b) /* x*2 + x*3 */
            return dim_mul(g, base_a, dim_const(g, wrap_add(ca, cb)));
        if (b < a) {
            Dim t = a;
            a = b, b = t;
        }
    }
    return intern(g, (DimInfo){.kind = DIM_ADD, .a = a, .b = b, .owner = REF_NONE, .hint = wrap_add(dim_hint(g, a), dim_hint(g, b))});
}

Dim dim_expr(Graph *g, DimKind kind, Dim a, Dim b)
{
    int64_t x = dim_hint(g, a), y = dim_hint(g, b);
    return intern(
        g, (DimInfo){.kind = (uint8_t)kind, .a = a, .b = b, .owner = REF_NONE, .hint = kind == DIM_ADD ? wrap_add(x, y) : wrap_mul(x, y)});
}

/* ---- classes ---- */

Dim dim_find(const Graph *g, Dim d)
{
    DimInfo *dims = g->shared->dims.at;
    while (dims[d].parent != d) {
        dims[d].parent = dims[dims[d].parent].parent; /* path halving */
        d = dims[d].parent;
    }
    return d;
}

/* Lower comes first as a representative. */
static int preference(const DimInfo *info) { return info->kind == DIM_CONST ? 0 : info->kind == DIM_FACT ? 1 : 2; }

void dim_unify(Graph *g, Dim a, Dim b)
{
    a = dim_find(g, a);
    b = dim_find(g, b);
    if (a == b)
        return;
    if (g->shared->noted) {
        VEC_PUSH(g->arena, *g->shared->noted, ((DimPair){a, b}));
        return;
    }
    if (dim_hint(g, a) != dim_hint(g, b)) {
        fprintf(stderr, "kiln: broken invariant: unifying a size of %" PRId64 " with one of %" PRId64 "\n", dim_hint(g, a), dim_hint(g, b));
        abort();
    }
    int pa = preference(&g->shared->dims.at[a]), pb = preference(&g->shared->dims.at[b]);
    if (pa < pb || (pa == pb && a < b))
        g->shared->dims.at[b].parent = a;
    else
        g->shared->dims.at[a].parent = b;
}

/* ---- comparing ---- */

typedef struct Terms {
    Dim at[MAX_TERMS];
    int n;
    int64_t c; /* the constant factor or term */
    bool too_many;
} Terms;

/* Writes d as a flat product (kind DIM_MUL) or sum (DIM_ADD) over class representatives. */
static void flatten(const Graph *g, Dim d, DimKind kind, Terms *out)
{
    d = dim_find(g, d);
    const DimInfo *info = &g->shared->dims.at[d];
    if (out->too_many)
        return;
    if (info->kind == DIM_CONST) {
        out->c = kind == DIM_MUL ? wrap_mul(out->c, info->hint) : wrap_add(out->c, info->hint);
    } else if (info->kind == kind) {
        flatten(g, info->a, kind, out);
        flatten(g, info->b, kind, out);
    } else if (out->n == MAX_TERMS) {
        out->too_many = true;
    } else {
        out->at[out->n++] = d;
    }
}

/* Equal up to the order of factors and terms; spends budget, false when it runs out. */
static bool same_within(const Graph *g, Dim a, Dim b, int *budget)
{
    a = dim_find(g, a);
    b = dim_find(g, b);
    if (a == b)
        return true;
    const DimInfo *ia = &g->shared->dims.at[a], *ib = &g->shared->dims.at[b];
    if (ia->hint != ib->hint || ia->kind == DIM_CONST || ib->kind == DIM_CONST || --*budget < 0)
        return false;
    DimKind kind = ia->kind == DIM_MUL || ib->kind == DIM_MUL ? DIM_MUL : DIM_ADD;
    Terms ta = {.c = kind == DIM_MUL}, tb = {.c = kind == DIM_MUL};
    flatten(g, a, kind, &ta);
    flatten(g, b, kind, &tb);
    if (ta.too_many || tb.too_many)
        return false;
    if (kind == DIM_MUL && ta.c == 0 && tb.c == 0)
        return true;
    if (ta.n != tb.n || ta.c != tb.c || (ta.n == 1 && ta.at[0] == a && tb.at[0] == b))
        return false;
    for (int i = 0; i < ta.n; i++) {
        int j = i;
        while (j < tb.n && !same_within(g, ta.at[i], tb.at[j], budget))
            j++;
        if (j == tb.n)
            return false;
        tb.at[j] = tb.at[i];
    }
    return true;
}

bool dim_same(const Graph *g, Dim a, Dim b)
{
    int budget = WALK_BUDGET;
    return same_within(g, a, b, &budget);
}

/* ---- reading ---- */

static bool print_within(const Graph *g, Dim d, Str *out, int *budget)
{
    const DimInfo *info = &g->shared->dims.at[d];
    if (--*budget < 0) {
        str_printf(out, "?");
        return false;
    }
    if (info->kind == DIM_CONST)
        str_printf(out, "%" PRId64, info->hint);
    else if (info->kind == DIM_FACT)
        str_printf(out, "s%" PRIu32, info->fact);
    else {
        str_add(out, "(", 1);
        print_within(g, info->a, out, budget);
        str_add(out, info->kind == DIM_ADD ? "+" : "*", 1);
        print_within(g, info->b, out, budget);
        str_add(out, ")", 1);
    }
    return true;
}

void dim_print(const Graph *g, Dim d, Str *out)
{
    int budget = PRINT_BUDGET;
    print_within(g, d, out, &budget);
}

/* By recursion; *budget < 0 afterwards means that the value is not to be used. */
static int64_t eval_within(const Graph *g, Dim d, const int64_t *ints, int *budget)
{
    const DimInfo *info = &g->shared->dims.at[d];
    if (--*budget < 0)
        return 0;
    if (info->kind == DIM_CONST)
        return info->hint;
    if (info->kind == DIM_FACT)
        return ints[info->fact];
    int64_t a = eval_within(g, info->a, ints, budget), b = eval_within(g, info->b, ints, budget);
    return info->kind == DIM_ADD ? wrap_add(a, b) : wrap_mul(a, b);
}

int64_t dim_eval(const Graph *g, Dim d, const int64_t *ints)
{
    int budget = WALK_BUDGET;
    int64_t value = eval_within(g, d, ints, &budget);
    if (budget >= 0)
        return value;
    /* Large: mark what it needs, then compute oldest first. */
    int64_t *values = ARENA_ARRAY(g->arena, int64_t, d + 1);
    bool *needed = ARENA_ARRAY(g->arena, bool, d + 1);
    needed[d] = true;
    for (Dim i = d + 1; i-- > 0;)
        if (needed[i] && g->shared->dims.at[i].kind >= DIM_ADD)
            needed[g->shared->dims.at[i].a] = needed[g->shared->dims.at[i].b] = true;
    for (Dim i = 0; i <= d; i++) {
        const DimInfo *info = &g->shared->dims.at[i];
        if (!needed[i])
            continue;
        values[i] = info->kind == DIM_CONST  ? info->hint
                    : info->kind == DIM_FACT ? ints[info->fact]
                    : info->kind == DIM_ADD  ? wrap_add(values[info->a], values[info->b])
                                             : wrap_mul(values[info->a], values[info->b]);
    }
    return values[d];
}

/* Adds to `found` what the representative of d consists of. Small expressions are walked as trees,
 * with duplicates dropped by search; false when the budget runs out. */
typedef VEC(uint32_t) FactList;

static bool facts_within(const Graph *g, Dim d, FactList *found, int *budget)
{
    d = dim_find(g, d);
    const DimInfo *info = &g->shared->dims.at[d];
    if (--*budget < 0)
        return false;
    if (info->kind >= DIM_ADD)
        return facts_within(g, info->a, found, budget) && facts_within(g, info->b, found, budget);
    if (info->kind == DIM_CONST)
        return true;
    for (uint32_t k = 0; k < found->n; k++)
        if (found->at[k] == info->fact)
            return true;
    VEC_PUSH(g->arena, *found, info->fact);
    return true;
}

/* The same for expressions of any size: each Dim visited once. */
static void facts_of_dag(const Graph *g, Dim d, FactList *found)
{
    bool *seen = ARENA_ARRAY(g->arena, bool, g->shared->dims.n);
    VEC(Dim) stack = {0};
    VEC_PUSH(g->arena, stack, d);
    while (stack.n) {
        Dim at = dim_find(g, stack.at[--stack.n]);
        const DimInfo *info = &g->shared->dims.at[at];
        if (seen[at])
            continue;
        seen[at] = true;
        if (info->kind == DIM_FACT)
            VEC_PUSH(g->arena, *found, info->fact);
        if (info->kind >= DIM_ADD) {
            VEC_PUSH(g->arena, stack, info->b);
            VEC_PUSH(g->arena, stack, info->a);
        }
    }
}

uint32_t dim_facts(const Graph *g, Dim d, uint32_t **facts)
{
    FactList found = {0};
    int budget = WALK_BUDGET;
    if (!facts_within(g, d, &found, &budget)) {
        found.n = 0;
        facts_of_dag(g, d, &found);
    }
    *facts = found.at;
    return found.n;
}
