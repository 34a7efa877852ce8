/*
 * Cycles between units: does a unit need, through what other units make, something that it makes
 * itself? The graph is searched with formed units as single points (jit/fuse/cluster.c says when).
 */
#include "jit/fuse/fuse.h"

typedef struct Needs {
    const Ref *at;
    uint32_t n;
} Needs;

/* What a node needs at once: if a unit makes it, all that the unit loads. */
static Needs needs_of(const Fuser *f, Ref n)
{
    if (f->unit_of[n] != NO_UNIT) {
        const Unit *u = &f->units.at[f->unit_of[n]];
        return (Needs){u->loads.at, u->loads.n};
    }
    const Node *node = graph_node(f->g, n);
    return (Needs){node->in, node->n_in};
}

/*
 * Does anything that `loads` need come from a node marked NODE_TARGET? The node, or REF_NONE; with
 * `found`, all such nodes, but for those behind others. Formed units count as one. `lowest` is the
 * first target: what a node needs is older than the node, so nothing older than the first target
 * has to be searched -- unless a unit of several nodes is as old, whose younger ones may need
 * younger nodes (lowest_shared).
 */
static Ref find_cycle(Fuser *f, const Ref *loads, uint32_t n, Ref lowest, Cut *found)
{
    VEC(Ref) stack = {0};
    f->stamp_now++;
    if (f->lowest_shared < lowest)
        lowest = f->lowest_shared;
    for (uint32_t i = 0; i < n; i++)
        VEC_PUSH(f->scratch, stack, loads[i]);
    while (stack.n) {
        Ref at = stack.at[--stack.n];
        f->plan->looks++;
        if (at < lowest || f->stamp[at] == f->stamp_now)
            continue;
        f->stamp[at] = f->stamp_now;
        if (f->flags[at] & NODE_TARGET) {
            if (!found)
                return at;
            VEC_PUSH(f->scratch, *found, at);
            continue;
        }
        Needs needs = needs_of(f, at);
        for (uint32_t i = 0; i < needs.n; i++)
            if (f->stamp[needs.at[i]] != f->stamp_now)
                VEC_PUSH(f->scratch, stack, needs.at[i]);
    }
    return found && found->n ? found->at[0] : REF_NONE;
}

static void meet(Build *b, Ref n, Ref lowest, Cut *stack)
{
    Fuser *f = b->f;
    if (f->reached[n] == f->reached_now)
        return;
    f->reached[n] = f->reached_now;
    if (n < lowest)
        VEC_PUSH(f->scratch, b->waiting, n);
    else
        VEC_PUSH(f->scratch, *stack, n);
}

/*
 * Marks in f->reached what the loads of b need, down to node `lowest` and whatever those at once
 * need. It goes on where it stopped last: what is below waits until a lower node is asked for. To
 * the lowest root at once would be down to the first layer for each kernel of a long chain.
 */
static void reach(Build *b, Ref lowest)
{
    Fuser *f = b->f;
    Cut stack = {0};
    uint32_t waiting = 0;
    if (f->lowest_shared < lowest)
        lowest = f->lowest_shared;
    for (uint32_t i = 0; i < b->waiting.n; i++)
        if (b->waiting.at[i] < lowest)
            b->waiting.at[waiting++] = b->waiting.at[i];
        else
            VEC_PUSH(f->scratch, stack, b->waiting.at[i]);
    f->plan->looks += b->waiting.n;
    b->waiting.n = waiting;
    for (; b->searched < b->loads.n; b->searched++)
        meet(b, b->loads.at[b->searched], lowest, &stack);
    while (stack.n) {
        Needs needs = needs_of(f, stack.at[--stack.n]);
        f->plan->looks++;
        for (uint32_t i = 0; i < needs.n; i++)
            meet(b, needs.at[i], lowest, &stack);
    }
}

static Ref first_output(const Build *b)
{
    Ref first = REF_NONE;
    for (uint32_t i = 0; i < b->outputs.n; i++)
        first = b->outputs.at[i] < first ? b->outputs.at[i] : first;
    return first;
}

Ref cycle_of(Fuser *f, const Build *b, Cut *all)
{
    for (uint32_t i = 0; i < b->loads.n; i++)
        if (b->outputs.n == 1 && b->loads.at[i] == b->outputs.at[0])
            return b->outputs.at[0];
    if (b->outputs.n < 2)
        return REF_NONE;
    for (uint32_t i = 0; i < b->outputs.n; i++)
        f->flags[b->outputs.at[i]] |= NODE_TARGET;
    Ref found = find_cycle(f, b->loads.at, b->loads.n, first_output(b), all);
    for (uint32_t i = 0; i < b->outputs.n; i++)
        f->flags[b->outputs.at[i]] &= (uint16_t)~NODE_TARGET;
    return found;
}

bool closes_cycle(Build *b, Ref n, const Unit *before)
{
    Fuser *f = b->f;
    Ref first = first_output(b), lowest = n < first ? n : first;
    reach(b, lowest);
    bool cycle = f->reached[n] == f->reached_now;
    for (uint32_t i = 0; i < b->outputs.n; i++) {
        f->flags[b->outputs.at[i]] |= NODE_TARGET;
        cycle |= f->reached[b->outputs.at[i]] == f->reached_now;
    }
    f->flags[n] |= NODE_TARGET;
    cycle = cycle || find_cycle(f, before->loads.at, before->loads.n, lowest, NULL) != REF_NONE;
    for (uint32_t i = 0; i < b->outputs.n; i++)
        f->flags[b->outputs.at[i]] &= (uint16_t)~NODE_TARGET;
    f->flags[n] &= (uint16_t)~NODE_TARGET;
    return cycle;
}
