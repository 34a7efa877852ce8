/*
 * Building a guard set: the other end of ir/query.h. Every answer given to a pass or to the code generator is noted here, so
 * what the code relies on and what is guarded cannot differ.
 *
 * Policy: a fact that is known to vary is never compiled in; every other one may be, and is then guarded. A rewrite that is
 * abandoned takes its notes back (mark / undo). Notes are in terms of the graph's Dims; finish() turns them into plain data.
 */
#include "guards/guards.h"
#include "ir/base/os.h"

#include <string.h>

typedef struct Note {
    uint8_t kind, dtype;
    Dim a, b; /* SCALAR_EQ: a is the scalar's index */
    int64_t v, w;
    const char *who;
} Note;

struct GuardBuilder {
    Query query; /* first: a Query* is a GuardBuilder* */
    Graph *g;
    const GuardPolicy *policy;
    VEC(Note) notes;
    VEC(SizeExpr) sizes;
    uint32_t *size_of; /* Dim -> entry + 1; grows with the graph's dims */
    uint32_t size_of_cap;
    VEC(Dim) fact_dim; /* fact -> a Dim that is exactly this fact (DIM_NONE: made on demand) */
};

/* A fixed fact, and every one unified with it, stays compiled in. */
static void keep_fixed(GuardPolicy *policy, const Graph *g)
{
    bool *class_fixed = ARENA_ARRAY(g->arena, bool, g->shared->dims.n + 1);
    for (Dim d = 0; d < g->shared->dims.n; d++)
        if (g->shared->dims.at[d].kind == DIM_FACT && policy->int_fixed[g->shared->dims.at[d].fact])
            class_fixed[dim_find(g, d)] = true;
    for (Dim d = 0; d < g->shared->dims.n; d++)
        if (g->shared->dims.at[d].kind == DIM_FACT && class_fixed[dim_find(g, d)])
            policy->int_varies[g->shared->dims.at[d].fact] = false;
}

/* A step or a stride of 1 or -1 says which way elements lie, not how many there are: with it accesses are whole vectors. */
static bool is_way(const IntFact *fact)
{
    return (fact->kind == FACT_STEP || fact->kind == FACT_STRIDE) && (fact->value == 1 || fact->value == -1);
}

/* Windows usually take few steps (the strides of a convolution): each has programs of its own, also where they vary, as rows are read where they lie
 * only where it is known how far apart. Until there are too many programs. */
static bool is_usual_step(const GuardPolicy *policy, const Graph *g, const IntFact *fact)
{
    enum { MOST_STEP = 4 };
    return !policy->wide && !policy->general && fact->kind == FACT_STEP && graph_node(g, fact->node)->op == OP_WINDOW && fact->value >= 1 &&
           fact->value <= MOST_STEP;
}

void guard_policy_close(GuardPolicy *policy, const Graph *g, bool always)
{
    for (uint32_t f = 0; f < g->shared->ints.n; f++) {
        const IntFact *fact = &g->shared->ints.at[f];
        policy->int_varies[f] |= always && (policy->general || !is_way(fact));
        policy->int_varies[f] &= !is_usual_step(policy, g, fact);
    }
    bool *class_varies = ARENA_ARRAY(g->arena, bool, g->shared->dims.n + 1);
    for (Dim d = 0; d < g->shared->dims.n; d++)
        if (g->shared->dims.at[d].kind == DIM_FACT && policy->int_varies[g->shared->dims.at[d].fact])
            class_varies[dim_find(g, d)] = true;
    for (Dim d = 0; d < g->shared->dims.n; d++)
        if (g->shared->dims.at[d].kind == DIM_FACT && class_varies[dim_find(g, d)])
            policy->int_varies[g->shared->dims.at[d].fact] = true;
    if (policy->int_fixed)
        keep_fixed(policy, g);
}

/* --- the query interface ---------------------------------------------------------------------------- */

static GuardBuilder *builder_of(Query *q) { return (GuardBuilder *)q; }

static void note(GuardBuilder *b, Note n) { VEC_PUSH(b->g->arena, b->notes, n); }

static void tell_bounds(Query *q, const Graph *g, Dim d, int64_t *min, int64_t *max);

static bool ask_int(Query *q, uint32_t fact, const char *who, int64_t *value)
{
    GuardBuilder *b = builder_of(q);
    int64_t low, high;
    if (b->fact_dim.at[fact] != DIM_NONE) {
        tell_bounds(q, b->g, b->fact_dim.at[fact], &low, &high);
        if (low == high) {
            *value = low;
            return true;
        }
    }
    if (b->policy->int_varies[fact])
        return false;
    *value = b->g->shared->ints.at[fact].value;
    note(b, (Note){.kind = GUARD_INT_EQ, .a = b->fact_dim.at[fact], .v = *value, .who = who});
    return true;
}

static bool ask_same(Query *q, const Graph *g, Dim x, Dim y, const char *who)
{
    GuardBuilder *b = builder_of(q);
    if (b->policy->general || dim_hint(g, x) != dim_hint(g, y))
        return false;
    for (uint32_t i = 0; i < b->policy->n_seen; i++)
        if (dim_eval(g, x, b->policy->seen[i].ints) != dim_eval(g, y, b->policy->seen[i].ints))
            return false;
    note(b, (Note){.kind = GUARD_SAME, .a = x, .b = y, .who = who});
    return true;
}

enum { BOUND_BUDGET = 64 }; /* sizes that one bound is made of; the rest is unknown */

static int64_t capped(int64_t a, int64_t b, bool sum)
{
    int64_t r;
    bool over = sum ? __builtin_add_overflow(a, b, &r) : __builtin_mul_overflow(a, b, &r);
    return over ? INT64_MAX : r;
}

/* Sums and products of natural sizes, a promise of their own, or nothing. */
static void bounds_within(const GuardBuilder *b, Dim d, int64_t *min, int64_t *max, int *budget)
{
    const Graph *g = b->g;
    d = dim_find(g, d);
    const DimInfo *info = &g->shared->dims.at[d];
    *min = INT64_MIN;
    *max = INT64_MAX;
    if (info->kind == DIM_CONST) {
        *min = *max = info->hint;
        return;
    }
    if (info->kind == DIM_FACT) {
        if (fact_natural((FactKind)g->shared->ints.at[info->fact].kind))
            *min = 0;
    } else if (--*budget > 0) {
        int64_t low, high, other_low, other_high;
        bool sum = info->kind == DIM_ADD;
        bounds_within(b, info->a, &low, &high, budget);
        bounds_within(b, info->b, &other_low, &other_high, budget);
        if (low >= 0 && other_low >= 0) { /* where a size is 0, a factor that is not bounded does not matter */
            *min = capped(low, other_low, sum);
            *max = capped(high, other_high, sum);
        }
    }
    for (uint32_t i = 0; i < b->policy->n_promised; i++) {
        const PromisedRange *p = &b->policy->promised[i];
        if (dim_find(g, p->size) == d) {
            *min = p->min > *min ? p->min : *min;
            *max = p->max < *max ? p->max : *max;
        }
    }
}

static void tell_bounds(Query *q, const Graph *g, Dim d, int64_t *min, int64_t *max)
{
    int budget = BOUND_BUDGET;
    (void)g;
    bounds_within(builder_of(q), d, min, max, &budget);
}

static bool ask_range(Query *q, const Graph *g, Dim d, int64_t min, int64_t max, const char *who)
{
    GuardBuilder *b = builder_of(q);
    int64_t hint = dim_hint(g, d), low, high;
    tell_bounds(q, g, d, &low, &high);
    if (low >= min && high <= max)
        return true;
    if (b->policy->general || b->policy->wide || hint < min || hint > max)
        return false;
    note(b, (Note){.kind = GUARD_RANGE, .a = d, .v = min, .w = max, .who = who});
    return true;
}

static bool ask_scalar(Query *q, uint32_t scalar, const char *who, uint64_t *bits)
{
    GuardBuilder *b = builder_of(q);
    if (b->policy->general || b->policy->wide || b->policy->scalar_varies[scalar])
        return false;
    const ScalarFact *fact = &b->g->shared->scalars.at[scalar];
    *bits = fact->bits;
    note(b, (Note){.kind = GUARD_SCALAR_EQ, .dtype = fact->dtype, .a = scalar, .v = (int64_t)fact->bits, .who = who});
    return true;
}

static uint32_t mark_notes(Query *q) { return builder_of(q)->notes.n; }
static void undo_notes(Query *q, uint32_t mark) { builder_of(q)->notes.n = mark; }

GuardBuilder *guard_builder_new(Graph *g, const GuardPolicy *policy)
{
    GuardBuilder *b = ARENA_NEW(g->arena, GuardBuilder);
    b->query = (Query){ask_int, ask_same, ask_range, tell_bounds, ask_scalar, mark_notes, undo_notes};
    b->g = g;
    b->policy = policy;
    for (uint32_t i = 0; i < g->shared->ints.n; i++)
        VEC_PUSH(g->arena, b->fact_dim, DIM_NONE);
    for (Dim d = 0; d < g->shared->dims.n; d++)
        if (g->shared->dims.at[d].kind == DIM_FACT && b->fact_dim.at[g->shared->dims.at[d].fact] == DIM_NONE)
            b->fact_dim.at[g->shared->dims.at[d].fact] = d;
    g->shared->query = &b->query;
    return b;
}

/* --- plain data --------------------------------------------------------------------------------------- */

static uint32_t add_size(GuardBuilder *b, SizeExpr e)
{
    for (uint32_t i = 0; i < b->sizes.n; i++) { /* only leaves repeat: Dims are interned */
        const SizeExpr *s = &b->sizes.at[i];
        if (s->kind == e.kind && s->a == e.a && s->b == e.b && s->value == e.value)
            return i;
    }
    VEC_PUSH(b->g->arena, b->sizes, e);
    return b->sizes.n - 1;
}

uint32_t guard_builder_size(GuardBuilder *b, Dim d)
{
    const Graph *g = b->g;
    if (b->size_of_cap < g->shared->dims.n) {
        uint32_t *grown = ARENA_ARRAY(g->arena, uint32_t, g->shared->dims.n);
        if (b->size_of_cap)
            memcpy(grown, b->size_of, sizeof *grown * b->size_of_cap);
        b->size_of = grown;
        b->size_of_cap = g->shared->dims.n;
    }
    /* Post-order over the expression with a stack of our own: sums can be as long as a concatenation. */
    VEC(Dim) stack = {0};
    VEC_PUSH(g->arena, stack, d);
    while (stack.n) {
        Dim top = stack.at[stack.n - 1];
        const DimInfo *info = &g->shared->dims.at[top];
        if (b->size_of[top]) {
            stack.n--;
            continue;
        }
        if (info->kind == DIM_CONST) {
            b->size_of[top] = 1 + add_size(b, (SizeExpr){.kind = SIZE_CONST, .value = info->hint});
        } else if (info->kind == DIM_FACT) {
            b->size_of[top] = 1 + add_size(b, (SizeExpr){.kind = SIZE_FACT, .a = info->fact});
        } else if (b->size_of[info->a] && b->size_of[info->b]) {
            SizeKind kind = info->kind == DIM_ADD ? SIZE_ADD : SIZE_MUL;
            b->size_of[top] =
                1 + add_size(b, (SizeExpr){.kind = (uint8_t)kind, .a = b->size_of[info->a] - 1, .b = b->size_of[info->b] - 1});
        } else {
            VEC_PUSH(g->arena, stack, info->a);
            VEC_PUSH(g->arena, stack, info->b);
        }
    }
    return b->size_of[d] - 1;
}

static bool same_guard(const Guard *x, const Guard *y)
{
    return x->kind == y->kind && x->a == y->a && x->b == y->b && x->v == y->v && x->w == y->w;
}

Status guard_builder_finish(GuardBuilder *b, GuardSet *out)
{
    VEC(Guard) guards = {0};
    bool on_scalars = false;
    /* One guard per integer fact is enough however often it was asked about. */
    bool *int_done = ARENA_ARRAY(b->g->arena, bool, b->g->shared->ints.n + 1);
    for (uint32_t i = 0; i < b->notes.n; i++) {
        const Note *n = &b->notes.at[i];
        Guard guard = {.kind = n->kind, .dtype = n->dtype, .v = n->v, .w = n->w, .who = n->who};
        if (n->kind == GUARD_SCALAR_EQ) {
            guard.a = n->a;
            on_scalars = true;
        } else {
            if (n->kind == GUARD_INT_EQ) {
                uint32_t fact = b->g->shared->dims.at[n->a].fact;
                if (int_done[fact])
                    continue;
                int_done[fact] = true;
            }
            guard.a = guard_builder_size(b, n->a);
            guard.b = n->kind == GUARD_SAME ? guard_builder_size(b, n->b) : 0;
        }
        bool known = false;
        if (n->kind != GUARD_INT_EQ)
            for (uint32_t k = 0; k < guards.n && !known; k++)
                known = same_guard(&guards.at[k], &guard);
        if (!known)
            VEC_PUSH(b->g->arena, guards, guard);
    }

    size_t guard_bytes = sizeof(Guard) * guards.n, size_bytes = sizeof(SizeExpr) * b->sizes.n;
    Guard *guard_copy = os_alloc(guard_bytes + 1);
    SizeExpr *size_copy = os_alloc(size_bytes + 1);
    if (!guard_copy || !size_copy) {
        os_free(guard_copy);
        os_free(size_copy);
        return fail(ST_OUT_OF_MEMORY, "no memory for %u guards", guards.n);
    }
    if (guards.n)
        memcpy(guard_copy, guards.at, guard_bytes);
    if (b->sizes.n)
        memcpy(size_copy, b->sizes.at, size_bytes);
    *out = (GuardSet){{size_copy, b->sizes.n}, guard_copy, guards.n, on_scalars};
    return ST_OK;
}

void guards_free(GuardSet *set)
{
    os_free(set->sizes.at);
    os_free(set->at);
    *set = (GuardSet){{NULL, 0}, NULL, 0, false};
}
