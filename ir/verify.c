/*
 * The verifier: does a graph keep every promise of ir/graph.h? Run after each pass.
 *
 * It trusts nothing: indices are checked before they are followed, attributes an op does not have
 * must be zero (they are compared as bytes), and each node's shape is inferred anew in numbers and
 * compared with the one stored.
 */
#include "ir/attr.h"
#include "ir/body.h"
#include "ir/infer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The fault with the node printed, as far as it can be printed. */
static Status broken(const Graph *g, Ref r, bool printable, const char *why)
{
    Str text;
    char reason[512];
    snprintf(reason, sizeof reason, "%s", why);
    str_init(&text, g->arena);
    if (printable)
        node_print(g, r, &text);
    else
        str_printf(&text, "%%%" PRIu32, r);
    return fail(ST_INTERNAL, "graph is broken at `%s`: %s", text.text, reason);
}

/* Are all numbers in range, so that the node may be printed and its inputs followed? */
static const char *check_indices(const Graph *g, Ref r)
{
    const Node *n = graph_node(g, r);
    if (n->op >= OP_COUNT || n->dtype >= DT_COUNT || n->rank > MAX_RANK)
        return "op, dtype or rank does not exist";
    for (uint32_t k = 0; k < n->n_in; k++)
        if (n->in[k] >= r)
            return "an input is not older than its user";
    for (int d = 0; d < n->rank; d++)
        if (n->dim[d] >= g->shared->dims.n)
            return "a size does not exist";
    for (uint32_t k = 0; k < n->n_facts; k++)
        if (n->fact[k] >= g->shared->dims.n)
            return "a fact does not exist";
    for (uint32_t k = 0; k < n->n_in; k++)
        if ((op_class((Op)graph_node(g, n->in[k])->op) == CLS_BODY) != (n->op == OP_RESULT))
            return "it takes what is no value, or a result of what is one";
    if (n->op == OP_RESULT && (n->n_in != 1 || n->attr.n >= body_n_results(graph_node(g, n->in[0]))))
        return "no such result";
    if (n->n_bodies && op_class((Op)n->op) != CLS_BODY)
        return "it has bodies";
    if (n->op == OP_SCALAR && (n->scalar >= g->shared->scalars.n || g->shared->scalars.at[n->scalar].dtype != n->dtype))
        return "its scalar does not exist or is of another dtype";
    if (n->attr.n > 2 * MAX_RANK && n->op == OP_RESHAPE)
        return "too many groups";
    return NULL;
}

/* Attributes that the op does not have are zero. */
static bool attr_clean(const Node *n)
{
    unsigned fields = attr_info((Op)n->op).fields;
    Attr rest = n->attr;
    if (n->op == OP_INPUT || n->op == OP_SCALAR)
        rest.n = rest.flag = 0;
    if (fields & ATTR_AXES)
        rest.mask = 0;
    if (fields & ATTR_AXIS)
        rest.axis = 0;
    if (fields & ATTR_MODE)
        rest.mode = 0;
    if (fields & ATTR_DESCENDING)
        rest.flag = 0;
    if (fields & ATTR_NUMBER)
        rest.n = 0;
    if (fields & ATTR_LOOP)
        memset(&rest.loop, 0, sizeof rest.loop);
    if (fields & ATTR_CUSTOM) {
        memset(&rest.custom, 0, rest.n < MAX_CALL_RESULTS ? rest.n : MAX_CALL_RESULTS);
        rest.n = 0;
    }
    if (fields & ATTR_PERM)
        memset(rest.perm, 0, n->rank);
    if (fields & ATTR_GROUPS) {
        memset(rest.group.in, 0, rest.n);
        memset(rest.group.out, 0, rest.n);
        rest.n = 0;
    }
    static const Attr zero;
    return memcmp(&rest, &zero, sizeof zero) == 0;
}

static bool check_input(const Graph *g, Ref r)
{
    const Node *n = graph_node(g, r);
    if (n->attr.n >= g->inputs.n || g->inputs.at[n->attr.n] != r || n->n_facts != infer_fact_count(OP_INPUT, &n->attr, n->rank))
        return false;
    for (int d = 0; d < n->rank; d++)
        if (n->dim[d] != n->fact[d])
            return false;
    return true;
}

/* Infers the node's dtype and shape from its inputs and compares. NULL: as stored. */
static const char *check_shape(const Graph *g, Ref r)
{
    const Node *n = graph_node(g, r);
    Shape small[4], *in = n->n_in <= 4 ? small : ARENA_ARRAY(g->arena, Shape, n->n_in), out;
    int64_t facts[3 * MAX_RANK];
    if (n->n_facts > sizeof facts / sizeof *facts)
        return "too many facts";
    for (uint32_t k = 0; k < n->n_in; k++) {
        const Node *x = graph_node(g, n->in[k]);
        in[k] = (Shape){.dtype = x->dtype, .rank = x->rank};
        for (int d = 0; d < x->rank; d++)
            in[k].dim[d] = dim_hint(g, x->dim[d]);
    }
    for (uint32_t k = 0; k < n->n_facts; k++)
        facts[k] = dim_hint(g, n->fact[k]);
    if (infer_shape((Op)n->op, &n->attr, n->n_in, in, facts, n->n_facts, (DType)n->dtype, &out) != ST_OK)
        return fail_message();
    if (out.dtype != n->dtype || out.rank != n->rank)
        return "dtype or rank is not what its inputs give";
    for (int d = 0; d < out.rank; d++)
        if (out.dim[d] != dim_hint(g, n->dim[d]))
            return "shape is not what its inputs give";
    return NULL;
}

static const char *check_result(const Graph *g, const Node *n)
{
    BodyType type = body_result_type(g, graph_node(g, n->in[0]), n->attr.n);
    bool same = type.dtype == n->dtype && type.rank == n->rank;
    for (int d = 0; same && d < type.rank; d++)
        same = dim_hint(g, type.dim[d]) == dim_hint(g, n->dim[d]);
    return same ? NULL : "it is not of the type of the result";
}

static Status check_dims(const Graph *g)
{
    for (Dim d = 0; d < g->shared->dims.n; d++) {
        const DimInfo *info = &g->shared->dims.at[d];
        bool fits = info->kind <= DIM_MUL && info->parent < g->shared->dims.n;
        if (fits && info->kind == DIM_FACT)
            fits = info->fact < g->shared->ints.n;
        if (fits && info->kind >= DIM_ADD)
            fits = info->a < d && info->b < d;
        if (!fits)
            return fail(ST_INTERNAL, "graph is broken at size %" PRIu32, d);
    }
    return ST_OK;
}

Status graph_verify(const Graph *g)
{
    if (!g->around) /* they are those of the graph around */
        TRY(check_dims(g));
    for (Ref r = 0; r < g->nodes.n; r++) {
        const Node *n = graph_node(g, r);
        const char *why = check_indices(g, r);
        if (why)
            return broken(g, r, false, why);
        if (!attr_clean(n))
            return broken(g, r, true, "an attribute that the op does not have is set");
        if (n->op == OP_INPUT) {
            if (!check_input(g, r))
                return broken(g, r, true, "the input is not in the graph's list, or its facts are not its sizes");
            continue;
        }
        why = n->op == OP_RESULT                ? check_result(g, n)
              : op_class((Op)n->op) != CLS_BODY ? check_shape(g, r)
              : body_verify(g, n) != ST_OK      ? fail_message()
                                                : NULL;
        if (why)
            return broken(g, r, true, why);
    }
    for (uint32_t k = 0; k < g->inputs.n; k++)
        if (g->inputs.at[k] >= g->nodes.n || graph_node(g, g->inputs.at[k])->op != OP_INPUT || graph_node(g, g->inputs.at[k])->attr.n != k)
            return fail(ST_INTERNAL, "graph is broken: input %" PRIu32 " is not one", k);
    for (uint32_t k = 0; k < g->outputs.n; k++)
        if (g->outputs.at[k] >= g->nodes.n || op_class((Op)graph_node(g, g->outputs.at[k])->op) == CLS_BODY)
            return fail(ST_INTERNAL, "graph is broken: output %" PRIu32 " does not exist or is no value", k);
    return ST_OK;
}
