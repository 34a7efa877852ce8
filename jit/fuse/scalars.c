/*
 * What a plan makes of scalars alone (jit/host_scalars.h). While kernels are formed an argument of the kind BIND_HOST names a node; once all are
 * there, those nodes and what they are made of become a list, in the order of the graph.
 */
#include "jit/fuse/fuse.h"

/* The scalar or the op that node n, which is a number, repeats. */
Ref number_source(const Graph *g, Ref n)
{
    while (op_repeats((Op)graph_node(g, n)->op))
        n = graph_node(g, n)->in[0];
    return n;
}

/* Notes what the arguments of all kernels need, from the last node to the first. */
static bool *needed_numbers(const Fuser *f)
{
    const Graph *g = f->g;
    bool *needed = ARENA_ARRAY(f->arena, bool, f->n + 1);
    for (uint32_t s = 0; s < f->plan->steps.n; s++)
        for (uint32_t a = 0; a < f->plan->steps.at[s].args.n; a++)
            if (f->plan->steps.at[s].args.at[a].kind == BIND_HOST)
                needed[f->plan->steps.at[s].args.at[a].scalar] = true;
    for (Ref n = f->n; n-- > 0;)
        for (uint32_t k = 0; needed[n] && k < graph_node(g, n)->n_in; k++)
            needed[number_source(g, graph_node(g, n)->in[k])] = true;
    return needed;
}

void plan_host_scalars(Fuser *f)
{
    const Graph *g = f->g;
    Plan *plan = f->plan;
    const bool *needed = needed_numbers(f);
    uint32_t *entry = ARENA_ARRAY(f->arena, uint32_t, f->n + 1);
    uint64_t bits;
    for (Ref n = 0; n < f->n; n++) {
        const Node *node = graph_node(g, n);
        if (!needed[n])
            continue;
        HostScalar made = {.op = node->op, .dtype = node->dtype};
        if (node->op == OP_SCALAR && graph_is_const(g, n, &bits))
            made.bits = bits;
        else if (node->op == OP_SCALAR)
            made = (HostScalar){.op = OP_INPUT, .dtype = node->dtype, .in = {node->scalar}};
        for (uint32_t k = 0; k < node->n_in; k++)
            made.in[k] = entry[number_source(g, node->in[k])];
        entry[n] = plan->host.n;
        VEC_PUSH(f->g->arena, plan->host, made);
    }
    for (uint32_t s = 0; s < plan->steps.n; s++)
        for (uint32_t a = 0; a < plan->steps.at[s].args.n; a++) {
            PlanArg *arg = &plan->steps.at[s].args.at[a];
            if (arg->kind == BIND_HOST)
                arg->scalar = entry[arg->scalar];
        }
}
