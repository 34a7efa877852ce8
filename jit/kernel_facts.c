/* What is read off a kernel before its schedule is chosen, and how much a point of it computes. */
#include "jit/kernel_facts.h"

#include "ir/scalar.h"
#include "jit/kernel_text.h"
#include "jit/rules.h"

#include <setjmp.h>
#include <string.h>

/* Backwards, since operands come before their users. */
static void find_live(KernelFacts *f)
{
    const Kernel *k = f->k;
    f->live = ARENA_ARRAY(f->arena, bool, k->inst.n + 1);
    f->checked = ARENA_ARRAY(f->arena, bool, k->inst.n + 1);
    for (uint32_t i = k->inst.n; i-- > 0;) {
        const KInst *n = &k->inst.at[i];
        VRef in[4];
        f->checked[i] = n->kind == KI_BOUND && !f->live[i];
        f->live[i] |= n->kind == KI_STORE || n->kind == KI_SCATTER || n->kind == KI_NEXT || f->checked[i];
        if (!f->live[i])
            continue;
        uint32_t n_in = kernel_operands(n, in);
        for (uint32_t o = 0; o < n_in; o++)
            f->live[in[o]] = true;
        if (n->idx != IREF_NONE)
            kidx_mark_values(k, n->idx, f->live);
    }
}

static void count_stages(KernelFacts *f)
{
    for (uint32_t i = 0; i < f->k->inst.n; i++) {
        const KInst *n = &f->k->inst.at[i];
        bool effect =
            kernel_ends(n) || inst_runs(n) || ((n->kind == KI_STORE || n->kind == KI_SCATTER || f->checked[i]) && f->info[i].r_level);
        if (effect && f->live[i] && f->info[i].stage >= f->n_stages)
            f->n_stages = f->info[i].stage + 1u;
    }
}

KernelFacts kernel_facts(const Kernel *k, OrderDevice device, MathMode math, int64_t bits, bool fours, Arena *arena)
{
    uint32_t analysed;
    KernelFacts f = {.arena = arena, .k = k, .math = math, .bits = bits, .fours = fours, .order = kernel_order(k, device)};
    f.info = kernel_analyse(k, arena, &analysed);
    find_live(&f);
    while (f.n_x < k->axes.n && k->axes.at[f.n_x].kind == AXIS_X)
        f.n_x++;
    f.n_r = k->axes.n - f.n_x;
    f.n_products = kernel_beside(k) ? (uint32_t)__builtin_popcount(kernel_beside(k)) : 1;
    for (uint32_t i = 0; i < k->inst.n; i++)
        f.in_order |= kernel_in_order(&k->inst.at[i]);
    count_stages(&f);
    return f;
}

/* ---- indices ---- */

bool index_through_value(const Kernel *k, IRef i)
{
    const Idx *x = &k->idx.at[i];
    if (x->kind == IX_ADD || x->kind == IX_MUL || x->kind == IX_DIV || x->kind == IX_MOD)
        return index_through_value(k, x->a) || index_through_value(k, x->b);
    return x->kind == IX_VALUE;
}

IndexWalk index_walk(const Kernel *k, IRef i, uint32_t axis)
{
    const Idx *x = &k->idx.at[i];
    if (!kidx_uses_axis(k, i, axis))
        return INDEX_STAYS;
    if (x->kind == IX_AXIS)
        return INDEX_STEPS;
    if (x->kind != IX_ADD)
        return x->kind == IX_MOD ? index_walk(k, x->a, axis) : INDEX_JUMPS;
    IndexWalk a = index_walk(k, x->a, axis), b = index_walk(k, x->b, axis);
    return a == INDEX_STAYS ? b : b == INDEX_STAYS ? a : INDEX_JUMPS;
}

bool index_linear(const Kernel *k, IRef i, uint32_t axes, int64_t *times)
{
    const Idx *x = &k->idx.at[i];
    int64_t factor = 1;
    if (!(k->idx_axes.at[i] & axes))
        return true;
    if (x->kind == IX_ADD)
        return index_linear(k, x->a, axes, times) && index_linear(k, x->b, axes, times);
    if (x->kind == IX_MUL && kidx_is_const(k, x->b, &factor))
        x = &k->idx.at[x->a];
    return x->kind == IX_AXIS && !__builtin_add_overflow(times[x->a], factor, &times[x->a]);
}

bool index_steps(const Kernel *k, IRef i, uint32_t axis)
{
    const Idx *x = &k->idx.at[i];
    if (!kidx_uses_axis(k, i, axis))
        return true;
    if (x->kind == IX_ADD)
        return index_steps(k, x->a, axis) && index_steps(k, x->b, axis);
    if (x->kind == IX_MUL)
        return !k->idx_axes.at[x->b] && !index_through_value(k, x->b) && index_steps(k, x->a, axis);
    return x->kind == IX_AXIS;
}

bool index_is_row(const Kernel *k, IRef term, uint32_t axis, IRef size)
{
    const Idx *x = &k->idx.at[term];
    return x->kind == IX_MUL && x->b == size && k->idx.at[x->a].kind == IX_AXIS && k->idx.at[x->a].a == axis;
}

/* axis, and what is the same for all points? */
static bool is_one_row(const Kernel *k, IRef i, uint32_t axis)
{
    const Idx *x = &k->idx.at[i];
    if (x->kind != IX_ADD)
        return x->kind == IX_AXIS && x->a == axis;
    bool first = k->idx_axes.at[x->a];
    return !k->idx_axes.at[first ? x->b : x->a] && !index_through_value(k, i) && is_one_row(k, first ? x->a : x->b, axis);
}

bool load_repeats(const Kernel *k, VRef v, uint32_t axis)
{
    const KInst *x = &k->inst.at[v];
    return x->kind == KI_LOAD && x->pred == VREF_NONE && !k->args.at[x->arg].written && !k->args.at[x->arg].may_alias &&
           is_one_row(k, x->idx, axis);
}

bool index_counts_rows(const Kernel *k, IRef i, uint32_t first, uint32_t count[3])
{
    const Idx *x = &k->idx.at[i];
    if (!(k->idx_axes.at[i] >> first))
        return true;
    if (x->kind == IX_ADD)
        return index_counts_rows(k, x->a, first, count) && index_counts_rows(k, x->b, first, count);
    bool row = index_is_row(k, i, first, k->axes.at[first + 1].size), column = x->kind == IX_AXIS && x->a == first + 1;
    count[row ? 0 : column ? 1 : 2]++;
    return x->kind == IX_AXIS || (x->kind == IX_MUL && k->idx.at[x->a].kind == IX_AXIS && !k->idx_axes.at[x->b]);
}

bool rows_repeat(const Kernel *k)
{
    enum { MOST = 16 }; /* a thread's stack has a copy of each */
    uint32_t n_x = 0, rows = 0;
    int64_t known;
    while (n_x < k->axes.n && k->axes.at[n_x].kind == AXIS_X)
        n_x++;
    if (n_x < 2 || n_x != k->axes.n || kidx_is_const(k, k->axes.at[n_x - 1].size, &known))
        return false;
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *x = &k->inst.at[v];
        uint32_t count[3] = {0};
        if (x->kind == KI_CONST || x->kind == KI_SCALAR || x->kind == KI_OP)
            continue;
        if ((x->kind != KI_LOAD && x->kind != KI_STORE) || x->pred != VREF_NONE || index_through_value(k, x->idx))
            return false;
        bool repeats = load_repeats(k, v, n_x - 1), linear = index_counts_rows(k, x->idx, n_x - 2, count);
        bool same = x->kind == KI_LOAD && !count[0] && !count[1] && !count[2];
        if (!repeats && !(linear && (same || (count[0] == 1 && count[1] == 1 && !count[2]))))
            return false;
        rows += repeats;
    }
    return rows && rows <= MOST;
}

/* Does what an index steps through begin anew somewhere (i % n, of a repeated array)? A square may lie across that. */
static bool wraps(const Kernel *k, IRef i, uint32_t axis)
{
    const Idx *x = &k->idx.at[i];
    if (!kidx_uses_axis(k, i, axis) || x->kind == IX_AXIS)
        return false;
    return x->kind != IX_ADD || wraps(k, x->a, axis) || wraps(k, x->b, axis);
}

int64_t square_side(int64_t bits, DType dtype)
{
    enum { MOST_SIDE = 16 }; /* registers */
    int64_t held = bits / 8 / (int64_t)dtype_bytes(dtype);
    return held < MOST_SIDE ? held : MOST_SIDE;
}

bool in_squares(const KernelFacts *f, VRef load, int64_t side, uint32_t along, uint32_t across)
{
    const KInst *n = &f->k->inst.at[load];
    if (n->kind != KI_LOAD || !f->live[load] || n->pred != VREF_NONE || square_side(f->bits, (DType)n->dtype) != side)
        return false;
    const KArg *arg = &f->k->args.at[n->arg];
    return !arg->written && !arg->may_alias && index_walk(f->k, n->idx, along) == INDEX_JUMPS &&
           index_walk(f->k, n->idx, across) == INDEX_STEPS && !wraps(f->k, n->idx, across);
}

/* ---- places of a scatter ---- */

/* Of the one scatter, beside which there is nothing that has an effect or goes from point to point; or VREF_NONE. */
static VRef scattered_along(const KernelFacts *f)
{
    const Kernel *k = f->k;
    bool *marked = ARENA_ARRAY(f->arena, bool, k->inst.n + 1);
    VRef place = VREF_NONE;
    uint32_t scatters = 0, places = 0;
    memset(marked, 0, k->inst.n * sizeof *marked);
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *x = &k->inst.at[v];
        if (x->kind == KI_STORE || kernel_ends(x) || inst_runs(x) || x->kind == KI_CARRY || f->checked[v])
            return VREF_NONE;
        if (x->kind != KI_SCATTER)
            continue;
        scatters++;
        kidx_mark_values(k, x->idx, marked);
    }
    for (VRef v = 0; v < k->inst.n; v++)
        if (marked[v]) {
            place = v;
            places++;
        }
    return scatters == 1 && places == 1 && k->inst.at[place].kind == KI_BOUND ? place : VREF_NONE;
}

/* Is it read point by point, or not at all? What another task may write to meanwhile is not. */
static bool computed_in_lanes(const KernelFacts *f, VRef v)
{
    const Kernel *k = f->k;
    const KInst *x = &k->inst.at[v];
    if (x->kind == KI_LOAD) {
        const KArg *arg = &k->args.at[x->arg];
        return !arg->written && !arg->may_alias && x->pred == VREF_NONE && index_walk(k, x->idx, f->n_x) != INDEX_JUMPS &&
               !index_through_value(k, x->idx);
    }
    return x->kind == KI_BOUND || x->kind == KI_OP || x->kind == KI_CONST || x->kind == KI_SCALAR ||
           (x->kind == KI_INDEX && !index_through_value(k, x->idx));
}

bool facts_only_stores(const KernelFacts *f)
{
    for (uint32_t i = 0; i < f->k->inst.n; i++) {
        const KInst *n = &f->k->inst.at[i];
        if (f->checked[i] || n->kind == KI_SCATTER || (n->kind == KI_STORE && f->info[i].r_level))
            return false;
    }
    return true;
}

bool facts_twice(const KernelFacts *f)
{
    for (uint32_t i = 0; i < f->k->inst.n; i++) {
        const KInst *n = &f->k->inst.at[i];
        if ((n->kind == KI_STORE && f->k->args.at[n->arg].may_alias) || (n->kind == KI_LOAD && f->k->args.at[n->arg].written))
            return false;
    }
    return f->n_stages == 1 && !f->in_order && facts_only_stores(f);
}

VRef facts_place(const KernelFacts *f)
{
    const Kernel *k = f->k;
    VRef place = f->n_r == 1 ? scattered_along(f) : VREF_NONE;
    bool *part = ARENA_ARRAY(f->arena, bool, k->inst.n + 1);
    memset(part, 0, k->inst.n * sizeof *part);
    if (place != VREF_NONE)
        part[place] = true;
    for (VRef v = k->inst.n; v-- > 0 && place != VREF_NONE;) {
        VRef in[4];
        uint32_t n = part[v] ? kernel_operands(&k->inst.at[v], in) : 0;
        if (part[v] && (!computed_in_lanes(f, v) || k->inst_axes.at[v] & ~kernel_r_axes(k)))
            return VREF_NONE;
        for (uint32_t o = 0; o < n; o++)
            part[in[o]] = true;
    }
    const Schedule one = {.along = -1, .lanes = 1};
    return place != VREF_NONE && facts_weigh(f, &one, part).ops <= rule_limit(f->bits, LIMIT_place_code) ? place : VREF_NONE;
}

/* ---- parts of a body, and what they weigh ---- */

void facts_part(const KernelFacts *f, uint32_t stage, bool loads_saved, bool *part)
{
    const Kernel *k = f->k;
    memset(part, 0, k->inst.n * sizeof *part);
    for (uint32_t i = k->inst.n; i-- > 0;) {
        const KInst *n = &k->inst.at[i];
        bool here = f->info[i].stage == stage && f->live[i];
        bool effect = kernel_ends(n) || (f->info[i].r_level && (n->kind == KI_STORE || n->save));
        if (!part[i] && !(here && effect))
            continue;
        part[i] = f->info[i].r_level;
        if (n->save && f->info[i].stage < stage && loads_saved)
            continue;
        VRef in[4];
        uint32_t n_in = kernel_operands(n, in);
        for (uint32_t o = 0; o < n_in; o++)
            part[in[o]] |= f->info[in[o]].r_level;
    }
}

static const Tape *tape(const KernelFacts *f, Op op, const DType *in, DType out)
{
    const Tape *t = tape_get(op, in, out, f->math);
    if (!t)
        longjmp(*f->arena->oom, 1);
    return t;
}

Weight facts_weigh(const KernelFacts *f, const Schedule *s, const bool *part)
{
    Weight w = {.widest = 1, .narrowest = 8};
    bool along_x = s->along >= 0 && s->along < (int64_t)f->n_x;
    uint32_t along = !along_x ? 0 : s->joined ? 3u << (f->n_x - 2) : 1u << s->along;
    for (uint32_t i = 0; i < f->k->inst.n; i++) {
        const KInst *n = &f->k->inst.at[i];
        bool shared = !f->n_r && along && !(f->k->inst_axes.at[i] & along);
        if (n->kind == KI_STORE || n->kind == KI_SCATTER || (part && !part[i]) || shared)
            continue;
        unsigned bytes = (unsigned)dtype_bytes((DType)n->dtype);
        if (dtype_is_half((DType)n->dtype))
            bytes = n->kind == KI_LOAD ? 2 : 4; /* computed in f32 */
        if (n->kind != KI_CONST && n->kind != KI_SCALAR) {
            w.widest = bytes > w.widest ? bytes : w.widest;
            w.narrowest = bytes < w.narrowest ? bytes : w.narrowest;
        }
        if (n->kind != KI_OP)
            continue;
        DType types[3] = {0};
        const VRef refs[3] = {n->a, n->b, n->c};
        for (int a = 0; a < op_info[n->op].arity; a++)
            types[a] = (DType)f->k->inst.at[refs[a]].dtype;
        const Tape *t = tape(f, (Op)n->op, types, (DType)n->dtype);
        w.ops += t->n;
        w.usual += tape_usual_length(t).computing;
    }
    return w;
}

int64_t facts_weigh_point(const KernelFacts *f, const Schedule *s, Weight w)
{
    int64_t ops = w.ops;
    for (uint32_t i = 0; i < f->k->inst.n; i++) {
        const KInst *n = &f->k->inst.at[i];
        DType t = dtype_accumulator((DType)n->dtype);
        if (inst_has_place(n))
            ops += rule_limit(f->bits, LIMIT_place);
        else if (inst_reduces(n))
            ops += tape_usual_length(tape(f, (Op)fold_info[n->op].step, (DType[]){t, t}, t)).computing;
        if (n->kind == KI_LOAD && f->live[i] && f->info[i].r_level)
            ops += index_walk(f->k, n->idx, (uint32_t)s->along) == INDEX_JUMPS ? s->lanes : 1;
    }
    return ops;
}

bool facts_heavy(const KernelFacts *f, Weight w) { return w.ops >= rule_limit(f->bits, LIMIT_heavy); }
