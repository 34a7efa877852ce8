/*
 * Questions about facts, in terms of sizes and scalars.
 *
 * What structure proves is answered without a question: constants, and classes that hold one. What
 * is false in the graph at hand is answered false without a question too, so guards are recorded
 * only for what was relied on. A size made of several facts is specialised whole or not at all: a
 * refusal half way takes the earlier guards back. In a class of unified facts one is asked for all
 * (the representative); the others have its value by structure.
 */
#include "ir/query.h"
#include "ir/scalar.h"

uint32_t query_mark(const Graph *g) { return g->shared->query ? g->shared->query->mark(g->shared->query) : 0; }

void query_undo(const Graph *g, uint32_t mark)
{
    if (g->shared->query)
        g->shared->query->undo(g->shared->query, mark);
}

static bool known(const Graph *g, Dim d) { return g->shared->dims.at[dim_find(g, d)].kind == DIM_CONST; }

bool spec_dim(const Graph *g, Dim d, const char *who, int64_t *value)
{
    *value = dim_hint(g, d);
    if (known(g, d) || !g->shared->query)
        return true;
    uint32_t *facts, n = dim_facts(g, d, &facts), mark = query_mark(g);
    for (uint32_t k = 0; k < n; k++) {
        int64_t ignored;
        if (!g->shared->query->spec_int(g->shared->query, facts[k], who, &ignored)) {
            query_undo(g, mark);
            return false;
        }
    }
    return true;
}

bool spec_dim_eq(const Graph *g, Dim d, int64_t value, const char *who)
{
    int64_t ignored;
    return dim_hint(g, d) == value && spec_dim(g, d, who, &ignored);
}

bool spec_dim_same(const Graph *g, Dim a, Dim b, const char *who)
{
    if (dim_hint(g, a) != dim_hint(g, b))
        return false;
    return dim_same(g, a, b) || !g->shared->query || g->shared->query->spec_same(g->shared->query, g, a, b, who);
}

bool spec_range(const Graph *g, Dim d, int64_t min, int64_t max, const char *who)
{
    int64_t hint = dim_hint(g, d);
    if (hint < min || hint > max)
        return false;
    return known(g, d) || !g->shared->query || g->shared->query->spec_range(g->shared->query, g, d, min, max, who);
}

void dim_bounds(const Graph *g, Dim d, int64_t *min, int64_t *max)
{
    *min = *max = dim_hint(g, d);
    if (!known(g, d) && g->shared->query)
        g->shared->query->bounds(g->shared->query, g, d, min, max);
}

bool spec_scalar(const Graph *g, Ref r, const char *who, uint64_t *bits)
{
    const Node *n = graph_node(g, r);
    if (n->op != OP_SCALAR)
        return false;
    *bits = g->shared->scalars.at[n->scalar].bits;
    return n->attr.flag || !g->shared->query || g->shared->query->spec_scalar(g->shared->query, n->scalar, who, bits);
}

/* Are the bits those of `value`, rounded to a float dtype, exact in an integer one? */
static bool holds(DType dtype, uint64_t bits, double value)
{
    if (dtype_is_float(dtype))
        return bits == scalar_from_double(dtype, value);
    return scalar_from_double(dtype, value) == bits && scalar_to_double(dtype, bits) == value;
}

bool spec_scalar_eq(const Graph *g, Ref r, double value, const char *who)
{
    const Node *n = graph_node(g, r);
    uint64_t bits;
    return n->op == OP_SCALAR && holds((DType)n->dtype, g->shared->scalars.at[n->scalar].bits, value) && spec_scalar(g, r, who, &bits);
}
