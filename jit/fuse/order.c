/*
 * In which order units run.
 *
 * By their roots, each after those that it loads from: so the order in which nodes were recorded. But a unit that frees more memory than it
 * takes runs as soon as it can. That matters in backward passes: the update of a weight reads what its layer was given and what
 * the gradient is there, and stands at the end of the graph; run there, all of that lives to the end.
 *
 * An output that may take over an input (jit/buffers.c) can do so only where its unit reads that input last. So a unit never runs early
 * that reads an input that a unit still to come reads as well. And nothing is overwritten before a step that may fail (jit/assemble.c):
 * while there are some to come, such an output takes memory of its own.
 *
 * A collective that takes no more than it frees (a gradient's sum over the ranks) begins as soon as it can, and so does what is made for
 * one alone: what comes after runs beside it.
 *
 * Sizes are those of the graph at hand. They decide about memory, not about results.
 */
#include "jit/fuse/fuse.h"

#include "ir/callee.h"

typedef struct StepOrder {
    Fuser *f;
    uint32_t *waits;              /* how many loads of a unit are still to be made */
    uint32_t *left;               /* of each node: units that load it and are still to run */
    uint32_t *reader_at, *reader; /* units that load node i: reader[reader_at[i] .. reader_at[i + 1]) */
    VEC(uint32_t) looked;         /* units that may run early: to be looked at */
    bool *done;
    uint32_t uncertain; /* units still to run that are more than kernels */
} StepOrder;

static bool is_certain(const Unit *u)
{
    for (uint32_t s = 0; s < u->steps.n; s++)
        if (u->steps.at[s].kind != STEP_KERNEL)
            return false;
    return true;
}

static bool is_collective(const Fuser *f, const Unit *u)
{
    const PlanStep *last = u->steps.n ? &u->steps.at[u->steps.n - 1] : NULL;
    return last && last->kind == STEP_CALL && graph_node(f->g, last->node)->callee->ordered;
}

static bool is_temporary(const Fuser *f, Ref n) { return f->unit_of[n] != NO_UNIT && !(f->flags[n] & NODE_OUTPUT); }

static double bytes_of(const Fuser *f, Ref n)
{
    return (double)node_hint_numel(f->g, n) * (double)dtype_bytes((DType)graph_node(f->g, n)->dtype);
}

/* Units in the order of their roots, each after those that it loads from, as an array. */
static uint32_t *rank_units(Fuser *f)
{
    uint32_t n = f->units.n, count = 0, ranked = 0;
    uint32_t *by_root = ARENA_ARRAY(f->arena, uint32_t, f->n + n), *by_rank = ARENA_ARRAY(f->arena, uint32_t, n + 1);
    uint8_t *state = ARENA_ARRAY(f->arena, uint8_t, n + 1); /* 1 on the stack, 2 done */
    uint32_t *next = ARENA_ARRAY(f->arena, uint32_t, n + 1), *stack = ARENA_ARRAY(f->arena, uint32_t, n + 1);
    uint32_t *unit_at = ARENA_ARRAY(f->arena, uint32_t, f->n);
    memset(unit_at, 0xff, sizeof *unit_at * f->n);
    for (uint32_t u = 0; u < n; u++)
        unit_at[f->units.at[u].root] = u;
    for (Ref r = 0; r < f->n; r++)
        if (unit_at[r] != NO_UNIT)
            by_root[count++] = unit_at[r];
    for (uint32_t i = 0; i < count; i++) {
        uint32_t depth = 0;
        if (state[by_root[i]])
            continue;
        stack[depth++] = by_root[i];
        state[by_root[i]] = 1;
        while (depth) {
            uint32_t at = stack[depth - 1];
            const Unit *u = &f->units.at[at];
            if (next[at] < u->loads.n) {
                uint32_t on = f->unit_of[u->loads.at[next[at]++]];
                if (on != NO_UNIT && !state[on]) {
                    state[on] = 1;
                    stack[depth++] = on;
                }
                continue;
            }
            state[at] = 2;
            depth--;
            by_rank[ranked++] = at;
        }
    }
    return by_rank;
}

static void find_readers(StepOrder *o)
{
    Fuser *f = o->f;
    uint32_t n = f->units.n, count = 0;
    o->waits = ARENA_ARRAY(f->arena, uint32_t, n + 1);
    o->left = ARENA_ARRAY(f->arena, uint32_t, f->n + 1);
    o->reader_at = ARENA_ARRAY(f->arena, uint32_t, f->n + 1);
    o->done = ARENA_ARRAY(f->arena, bool, n + 1);
    for (uint32_t u = 0; u < n; u++)
        for (uint32_t i = 0; i < f->units.at[u].loads.n; i++) {
            Ref r = f->units.at[u].loads.at[i];
            o->left[r]++;
            o->waits[u] += f->unit_of[r] != NO_UNIT && f->unit_of[r] != u;
        }
    for (Ref r = 0; r < f->n; r++) {
        o->reader_at[r] = count;
        count += o->left[r];
    }
    o->reader_at[f->n] = count;
    o->reader = ARENA_ARRAY(f->arena, uint32_t, count + 1);
    uint32_t *fill = arena_copy(f->arena, o->reader_at, sizeof *fill * (f->n + 1));
    for (uint32_t u = 0; u < n; u++)
        for (uint32_t i = 0; i < f->units.at[u].loads.n; i++)
            o->reader[fill[f->units.at[u].loads.at[i]]++] = u;
}

/* May an output of the unit lie where input r does? */
static bool may_take(const Fuser *f, const Unit *u, Ref r)
{
    const Node *in = graph_node(f->g, r);
    bool may = false;
    for (uint32_t i = 0; i < u->outputs.n && !may; i++) {
        Ref out = u->outputs.at[i];
        may = f->flags[out] & NODE_OUTPUT && graph_node(f->g, out)->dtype == in->dtype &&
              node_hint_numel(f->g, out) == node_hint_numel(f->g, r);
    }
    return may;
}

static bool only_for_collectives(const StepOrder *o, const Unit *u)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < u->outputs.n; i++) {
        Ref r = u->outputs.at[i];
        for (uint32_t k = o->reader_at[r]; k < o->reader_at[r + 1]; k++, n++)
            if (!is_collective(o->f, &o->f->units.at[o->reader[k]]))
                return false;
        if (!is_temporary(o->f, r))
            return false;
    }
    return n > 0;
}

enum { NUMBER = sizeof(int64_t) }; /* that keeps collectives in order */

/* Does running the unit now free more than it takes? */
static bool pays(const StepOrder *o, uint32_t unit)
{
    const Fuser *f = o->f;
    const Unit *u = &f->units.at[unit];
    double bytes = 0;
    for (uint32_t i = 0; i < u->loads.n; i++) {
        Ref r = u->loads.at[i];
        const bool over = graph_node(f->g, r)->op == OP_INPUT && may_take(f, u, r);
        if (over && o->left[r] > 1)
            return false;
        if (over && o->uncertain)
            bytes -= bytes_of(f, r);
        if (is_temporary(f, r) && o->left[r] == 1)
            bytes += bytes_of(f, r);
    }
    for (uint32_t i = 0; i < u->outputs.n; i++)
        if (is_temporary(f, u->outputs.at[i]))
            bytes -= bytes_of(f, u->outputs.at[i]);
    return bytes > 0 || (is_collective(f, u) && bytes + NUMBER >= 0) || only_for_collectives(o, u);
}

static void look_at_readers(StepOrder *o, Ref r)
{
    for (uint32_t k = o->reader_at[r]; k < o->reader_at[r + 1]; k++)
        VEC_PUSH(o->f->arena, o->looked, o->reader[k]);
}

static void run(StepOrder *o, uint32_t unit)
{
    Fuser *f = o->f;
    const Unit *u = &f->units.at[unit];
    o->done[unit] = true;
    o->uncertain -= !is_certain(u);
    for (uint32_t s = 0; s < u->steps.n; s++)
        VEC_PUSH(f->g->arena, f->plan->steps, u->steps.at[s]);
    for (uint32_t i = 0; i < u->loads.n; i++)
        if (--o->left[u->loads.at[i]] == 1)
            look_at_readers(o, u->loads.at[i]);
    for (uint32_t i = 0; i < u->outputs.n; i++) {
        Ref r = u->outputs.at[i];
        for (uint32_t k = o->reader_at[r]; k < o->reader_at[r + 1]; k++)
            o->waits[o->reader[k]]--;
        look_at_readers(o, r);
    }
}

/* Has whatever is read one maker? */
static Status check_makers(const Fuser *f)
{
    for (uint32_t u = 0; u < f->units.n; u++) {
        const Unit *unit = &f->units.at[u];
        for (uint32_t i = 0; i < unit->outputs.n; i++)
            if (f->unit_of[unit->outputs.at[i]] != u)
                return fail(ST_INTERNAL, "fusion: several kernels make %%%u", unit->outputs.at[i]);
        for (uint32_t i = 0; i < unit->loads.n; i++)
            if (f->unit_of[unit->loads.at[i]] == NO_UNIT && graph_node(f->g, unit->loads.at[i])->op != OP_INPUT)
                return fail(ST_INTERNAL, "fusion: the kernel of %%%u reads %%%u, which none makes", unit->root, unit->loads.at[i]);
    }
    return ST_OK;
}

Status order_units(Fuser *f)
{
    TRY(check_makers(f));
    const uint32_t *by_rank = rank_units(f);
    StepOrder o = {.f = f};
    find_readers(&o);
    for (uint32_t i = 0; i < f->units.n; i++)
        o.uncertain += !is_certain(&f->units.at[i]);
    for (uint32_t i = 0; i < f->units.n; i++) {
        if (!o.done[by_rank[i]] && o.waits[by_rank[i]])
            return fail(ST_INTERNAL, "fusion: the kernel of %%%u needs, through others, what it makes", f->units.at[by_rank[i]].root);
        if (!o.done[by_rank[i]])
            run(&o, by_rank[i]);
        while (o.looked.n) {
            uint32_t u = o.looked.at[--o.looked.n];
            if (!o.done[u] && !o.waits[u] && pays(&o, u))
                run(&o, u);
        }
    }
    return ST_OK;
}
