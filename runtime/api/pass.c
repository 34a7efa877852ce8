/*
 * Rules and passes of users: the public side of jit/extensions.h and ir/view.h. A kiln_graph is a GraphView; a kiln_node its number, which is looked
 * at here before anybody follows it.
 */
#define KILN_NO_LOCATIONS
#include "ir/attr.h"
#include "ir/base/os.h"
#include "jit/extensions.h"
#include "runtime/eval.h"
#include "runtime/record/record.h"

#define SAME(a, b) _Static_assert((int)(a) == (int)(b), "the public enum follows the internal one")
SAME(KILN_RULE_EXACT, SOUND_EXACT);
SAME(KILN_RULE_INT_ONLY, SOUND_INT_ONLY);
SAME(KILN_RULE_FAST, SOUND_FAST);
SAME(KILN_RULE_FINITE, SOUND_FINITE);
SAME(KILN_NO_NODE, (int32_t)REF_NONE);

/* ---- rules ---- */

static Status add_rule(const char *name, const char *pattern, const char *replacement, unsigned condition)
{
    static const RuleDTypes dtypes[] = {RULE_ANY, RULE_FLOATS, RULE_INTS_ONLY, RULE_BOOLS};
    UserRule *rule;
    if (!name || !pattern || !replacement)
        return fail(ST_INVALID, "%s is NULL", !name ? "the name" : !pattern ? "the pattern" : "the replacement");
    if (condition & ~0x33u)
        return fail(ST_INVALID, "rule \"%s\": 0x%x is no condition: KILN_RULE_EXACT and the like, or'ed with KILN_RULE_FLOATS and the like",
                    name, condition);
    TRY(user_rule_new(name, pattern, replacement, (Soundness)(condition & 3), dtypes[condition >> 4], &rule));
    Status status = option_int(OPT_CHECK) == CHECK_RULES ? user_rule_check_values(rule) : ST_OK;
    if (status == ST_OK)
        return extensions_add_rule(rule);
    os_free(rule);
    return status;
}

kiln_status kiln_rule_add(const char *name, const char *pattern, const char *replacement, unsigned condition)
{
    return kiln_rule_add_at(name, pattern, replacement, condition, NULL, 0);
}

kiln_status kiln_rule_add_at(const char *name, const char *pattern, const char *replacement, unsigned condition, const char *file, int line)
{
    return error_sync(add_rule(name, pattern, replacement, condition), "kiln_rule_add", (Loc){file, line});
}

kiln_status kiln_rule_remove(const char *name) { return kiln_rule_remove_at(name, NULL, 0); }

kiln_status kiln_rule_remove_at(const char *name, const char *file, int line)
{
    Status status = name ? extensions_remove_rule(name) : fail(ST_INVALID, "the name is NULL");
    return error_sync(status, "kiln_rule_remove", (Loc){file, line});
}

/* ---- passes ---- */

static Status call_pass(GraphView *view, void (*callback)(void), void *user)
{
    kiln_status status = ((kiln_pass *)callback)((kiln_graph *)view, user);
    if (status < KILN_OK || status > KILN_INTERNAL) {
        view_fail(view, ST_INVALID, "it gave %d, which is no status", (int)status);
        return ST_OK;
    }
    return (Status)status;
}

kiln_status kiln_pass_register(const char *name, const char *version, const char *after, kiln_pass *callback, void *user)
{
    return kiln_pass_register_at(name, version, after, callback, user, NULL, 0);
}

kiln_status kiln_pass_register_at(const char *name, const char *version, const char *after, kiln_pass *callback, void *user,
                                  const char *file, int line)
{
    Status status = !name || !version || !callback ? fail(ST_INVALID, "%s is NULL",
                                                          !name      ? "the name"
                                                          : !version ? "the version"
                                                                     : "the callback")
                                                   : extensions_add_pass(name, version, after, call_pass, (void (*)(void))callback, user);
    return error_sync(status, "kiln_pass_register", (Loc){file, line});
}

kiln_status kiln_pass_remove(const char *name) { return kiln_pass_remove_at(name, NULL, 0); }

/* An evaluation that reads the options and then compiles holds the evaluation lock: once that was free nobody will call the pass but,
 * maybe, a compile in the background, which may fail. */
static Status remove_pass(const char *name)
{
    UserPass *pass;
    TRY(extensions_remove_pass(name, &pass));
    if (eval_enter(NULL) == ST_OK)
        eval_unlock();
    user_pass_retire(pass);
    return ST_OK;
}

kiln_status kiln_pass_remove_at(const char *name, const char *file, int line)
{
    return error_sync(name ? remove_pass(name) : fail(ST_INVALID, "the name is NULL"), "kiln_pass_remove", (Loc){file, line});
}

/* ---- the view ---- */

static GraphView *view_of(const kiln_graph *graph) { return (GraphView *)(uintptr_t)graph; }

/* Is this a node? KILN_NO_NODE is none, which is no error: who built it was told. */
static bool node_in(const kiln_graph *graph, kiln_node node, const char *api)
{
    if (!graph || node == KILN_NO_NODE)
        return false;
    if (view_has(view_of(graph), node))
        return true;
    view_fail(view_of(graph), ST_INVALID, "%s: there is no node %d", api, (int)node);
    return false;
}

/* The axis of the node, counted from the end where it is negative; -1: there is none. */
static int axis_in(const kiln_graph *graph, kiln_node node, int axis, const char *api)
{
    int rank = view_node(view_of(graph), (Ref)node)->rank;
    if (axis >= -rank && axis < rank)
        return axis < 0 ? axis + rank : axis;
    view_fail(view_of(graph), ST_INVALID, "%s: node %d of rank %d has no axis %d", api, (int)node, rank, axis);
    return -1;
}

static const Node *node_of(const kiln_graph *graph, kiln_node node, const char *api)
{
    return node_in(graph, node, api) ? view_node(view_of(graph), (Ref)node) : NULL;
}

kiln_status kiln_graph_fail(kiln_graph *graph, const char *message)
{
    if (graph)
        view_fail(view_of(graph), ST_INVALID, "%s", message ? message : "it failed");
    return KILN_INVALID;
}

int kiln_graph_depth(const kiln_graph *graph) { return graph ? view_depth(view_of(graph)) : 0; }

kiln_node kiln_graph_nodes(const kiln_graph *graph) { return graph ? (kiln_node)view_nodes(view_of(graph)) : 0; }

const char *kiln_node_op(const kiln_graph *graph, kiln_node node)
{
    const Node *n = node_of(graph, node, "kiln_node_op");
    return n ? op_name((Op)n->op) : "";
}

kiln_dtype kiln_node_dtype(const kiln_graph *graph, kiln_node node)
{
    const Node *n = node_of(graph, node, "kiln_node_dtype");
    return n ? (kiln_dtype)n->dtype : KILN_BOOL;
}

int kiln_node_rank(const kiln_graph *graph, kiln_node node)
{
    const Node *n = node_of(graph, node, "kiln_node_rank");
    return n ? n->rank : 0;
}

bool kiln_node_size(kiln_graph *graph, kiln_node node, int axis, int64_t *size)
{
    static const char api[] = "kiln_node_size";
    if (!node_in(graph, node, api) || !size || (axis = axis_in(graph, node, axis, api)) < 0)
        return false;
    return view_size(view_of(graph), (Ref)node, axis, size);
}

int64_t kiln_node_size_now(const kiln_graph *graph, kiln_node node, int axis)
{
    static const char api[] = "kiln_node_size_now";
    if (!node_in(graph, node, api) || (axis = axis_in(graph, node, axis, api)) < 0)
        return 0;
    return view_size_now(view_of(graph), (Ref)node, axis);
}

bool kiln_node_number(kiln_graph *graph, kiln_node node, double *number)
{
    return node_in(graph, node, "kiln_node_number") && number && view_number(view_of(graph), (Ref)node, number);
}

int kiln_node_axes(const kiln_graph *graph, kiln_node node, int *axes)
{
    const Node *n = node_of(graph, node, "kiln_node_axes");
    unsigned fields = n && axes ? attr_info((Op)n->op).fields : 0;
    int count = 0;
    for (int d = 0; fields & ATTR_AXES && d < MAX_RANK; d++)
        if (n->attr.mask >> d & 1)
            axes[count++] = d;
    if (fields & ATTR_AXIS)
        axes[count++] = n->attr.axis;
    for (int d = 0; fields & ATTR_PERM && d < n->rank; d++)
        axes[count++] = n->attr.perm[d];
    return count;
}

const char *kiln_node_attributes(kiln_graph *graph, kiln_node node)
{
    const char *text = node_in(graph, node, "kiln_node_attributes") ? view_attributes(view_of(graph), (Ref)node) : NULL;
    return text ? text : "";
}

const char *kiln_node_text(kiln_graph *graph, kiln_node node)
{
    const char *text = node_in(graph, node, "kiln_node_text") ? view_text(view_of(graph), (Ref)node) : NULL;
    return text ? text : "";
}

int kiln_node_n_inputs(const kiln_graph *graph, kiln_node node)
{
    const Node *n = node_of(graph, node, "kiln_node_n_inputs");
    return n ? (int)n->n_in : 0;
}

kiln_node kiln_node_input(const kiln_graph *graph, kiln_node node, int k)
{
    const Node *n = node_of(graph, node, "kiln_node_input");
    return n && k >= 0 && (uint32_t)k < n->n_in ? (kiln_node)n->in[k] : KILN_NO_NODE;
}

int kiln_node_n_users(kiln_graph *graph, kiln_node node)
{
    const Ref *users;
    return node_in(graph, node, "kiln_node_n_users") ? (int)view_users(view_of(graph), (Ref)node, &users) : 0;
}

kiln_node kiln_node_user(kiln_graph *graph, kiln_node node, int k)
{
    const Ref *users;
    if (k < 0 || !node_in(graph, node, "kiln_node_user") || (uint32_t)k >= view_users(view_of(graph), (Ref)node, &users))
        return KILN_NO_NODE;
    return (kiln_node)users[k];
}

bool kiln_node_is_output(const kiln_graph *graph, kiln_node node)
{
    return node_in(graph, node, "kiln_node_is_output") && view_is_output(view_of(graph), (Ref)node);
}

bool kiln_graph_match(kiln_graph *graph, kiln_node node, const char *pattern, kiln_node vars[4])
{
    Ref found[4];
    if (!node_in(graph, node, "kiln_graph_match") || !pattern || !view_match(view_of(graph), (Ref)node, pattern, found))
        return false;
    for (int k = 0; vars && k < 4; k++)
        vars[k] = (kiln_node)found[k];
    return true;
}

kiln_node kiln_graph_op(kiln_graph *graph, const char *op, int n_in, const kiln_node *in)
{
    Ref refs[64];
    if (!graph || !op || !in)
        return KILN_NO_NODE;
    if (n_in < 0 || n_in > (int)(sizeof refs / sizeof *refs)) {
        view_fail(view_of(graph), ST_INVALID, "kiln_graph_op: %d operands; at most 64 are possible", n_in);
        return KILN_NO_NODE;
    }
    for (int k = 0; k < n_in; k++) {
        if (!node_in(graph, in[k], "kiln_graph_op"))
            return KILN_NO_NODE;
        refs[k] = (Ref)in[k];
    }
    return (kiln_node)view_op(view_of(graph), op, refs, (uint32_t)n_in);
}

kiln_node kiln_graph_number(kiln_graph *graph, kiln_dtype dtype, double number)
{
    if (!graph)
        return KILN_NO_NODE;
    if ((int)dtype < 0 || (int)dtype >= DT_COUNT) {
        view_fail(view_of(graph), ST_DTYPE, "kiln_graph_number: %d is no dtype", (int)dtype);
        return KILN_NO_NODE;
    }
    return (kiln_node)view_constant(view_of(graph), (DType)dtype, number);
}

kiln_node kiln_graph_build(kiln_graph *graph, const char *expression, const kiln_node vars[4])
{
    Ref refs[4] = {REF_NONE, REF_NONE, REF_NONE, REF_NONE};
    if (!graph || !expression)
        return KILN_NO_NODE;
    for (int k = 0; vars && k < 4; k++) {
        if (vars[k] == KILN_NO_NODE)
            continue;
        if (!node_in(graph, vars[k], "kiln_graph_build"))
            return KILN_NO_NODE;
        refs[k] = (Ref)vars[k];
    }
    return (kiln_node)view_build(view_of(graph), expression, refs);
}

bool kiln_graph_replace(kiln_graph *graph, kiln_node node, kiln_node with)
{
    static const char api[] = "kiln_graph_replace";
    return node_in(graph, node, api) && node_in(graph, with, api) && view_replace(view_of(graph), (Ref)node, (Ref)with);
}
