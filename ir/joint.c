/* What goes from the forward half of a joint graph to the backward half: for jit/remat.c, KILN_LOG=gradient and `kiln cache show`. */
#include "ir/joint.h"
#include "ir/base/path.h"

#include <inttypes.h>
#include <string.h>

bool joint_halves(const Graph *g, bool **forward, bool **live)
{
    bool backward = false;
    *forward = ARENA_ARRAY(g->arena, bool, g->nodes.n);
    *live = ARENA_ARRAY(g->arena, bool, g->nodes.n);
    for (uint32_t k = 0; k < g->outputs.n; k++)
        (*live)[g->outputs.at[k]] = true;
    for (Ref r = g->nodes.n; r-- > 0;) {
        const Node *node = graph_node(g, r);
        if (!(*live)[r])
            continue;
        (*forward)[r] |= node->phase == 0;
        backward |= !(*forward)[r];
        for (uint32_t k = 0; k < node->n_in; k++) {
            (*live)[node->in[k]] = true;
            (*forward)[node->in[k]] |= (*forward)[r];
        }
    }
    return backward;
}

void bytes_print(double bytes, Str *out)
{
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB"};
    int unit = 0;
    for (; bytes >= 1023.95 && unit < 4; unit++)
        bytes /= 1024;
    str_printf(out, unit ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
}

static double bytes_of(const Graph *g, Ref r)
{
    return (double)node_hint_numel(g, r) * (double)dtype_bytes((DType)graph_node(g, r)->dtype);
}

/* %14 matmul f32[4096,1024] 16.0 MB net.c:31 */
static void value_print(const Graph *g, Ref r, Str *out)
{
    const Node *n = graph_node(g, r);
    str_printf(out, "%%%" PRIu32 " %s %s[", r, op_name((Op)n->op), dtype_name((DType)n->dtype));
    for (int d = 0; d < n->rank; d++)
        str_printf(out, "%s%" PRId64, d ? "," : "", dim_hint(g, n->dim[d]));
    str_printf(out, "] ");
    bytes_print(bytes_of(g, r), out);
    if (n->loc.file)
        str_printf(out, " %s:%d", path_name(n->loc.file), n->loc.line);
}

static bool is_view(const Node *node) { return op_class((Op)node->op) == CLS_VIEW; }

typedef struct Crossing {
    uint32_t n;
    double bytes;
    Ref most;
} Crossing;

static void add(const Graph *g, Crossing *c, Ref r)
{
    double bytes = bytes_of(g, r);
    if (c->n++ == 0 || bytes > bytes_of(g, c->most))
        c->most = r;
    c->bytes += bytes;
}

static void lines(const Graph *g, const bool *which, const char *what, Str *out)
{
    for (Ref r = 0; r < g->nodes.n; r++)
        if (which[r]) {
            str_printf(out, "\n  %s ", what);
            value_print(g, r, out);
        }
}

bool joint_print(const Graph *g, bool each, Str *out)
{
    bool *forward, *live, *read = ARENA_ARRAY(g->arena, bool, g->nodes.n), *again = ARENA_ARRAY(g->arena, bool, g->nodes.n);
    Crossing reads = {0}, copies = {0};
    if (!joint_halves(g, &forward, &live))
        return false;
    for (Ref r = 0; r < g->nodes.n; r++) {
        const Node *node = graph_node(g, r);
        if (!live[r] || forward[r])
            continue;
        again[r] = node->again && !is_view(node) && !node->number;
        if (again[r])
            add(g, &copies, r);
        for (uint32_t k = 0; k < node->n_in; k++) {
            Ref x = node->in[k];
            while (forward[x] && is_view(graph_node(g, x)) && graph_node(g, x)->n_in == 1)
                x = graph_node(g, x)->in[0];
            if (!forward[x] || read[x] || graph_node(g, x)->number || op_class((Op)graph_node(g, x)->op) == CLS_LEAF)
                continue;
            read[x] = true;
            add(g, &reads, x);
        }
    }
    str_printf(out, "read of the forward pass: %u value%s, ", reads.n, reads.n == 1 ? "" : "s");
    bytes_print(reads.bytes, out);
    if (reads.n) {
        str_printf(out, " (most: ");
        value_print(g, reads.most, out);
        str_printf(out, ")");
    }
    str_printf(out, "; computed again: %u value%s, ", copies.n, copies.n == 1 ? "" : "s");
    bytes_print(copies.bytes, out);
    if (each) {
        lines(g, read, "read", out);
        lines(g, again, "again", out);
    }
    return true;
}
