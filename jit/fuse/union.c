/*
 * Products of one operand: q = x wq, k = x wk, v = x wv as one kernel.
 *
 *     for i, k: x            three kernels                 one kernel
 *
 *         launch; for tiles of q: pack x, pack wq          launch; for tiles of q, k and v:
 *         launch; for tiles of k: pack x, pack wk              pack x
 *         launch; for tiles of v: pack x, pack wv              pack wq, or wk, or wv, whichever the task has tiles of
 *
 * Their task spaces lie side by side: each has the axes of its rows and of k in common with the others and an axis of columns of its own,
 * beside theirs (kernel_beside, "or" in the text), so they may be of any width; and what is done to its sums, which is its own, too. A
 * task's tiles may be of several. There is one launch, at whose end alone threads wait for each other, and a task packs its rows of x once.
 *
 * The kernels are made first, each for itself (lower.c). Those of one operand that lie near each other are put together: x is the same
 * where the instructions that compute it are, once arguments that are bound to the same have one number, for then they are interned as
 * one. What they compute is what it was, so each bit is.
 *
 * Not united: products of a band, which has its own order of tasks (bands.c); those that share the right operand; those that would be made
 * in different ways (jit/rules_product.c): packing what is read in place by itself took up to 6 % more on one thread; and gate and up of
 * silu(x w1) * (x w3), of which the one with the multiplication reads what the other has stored: it would take both sums of a tile at once.
 */
#include "jit/fuse/fuse.h"
#include "jit/llvm/emit.h"

enum {
    MOST = 6,               /* products of one kernel */
    NEAR = 12,              /* steps from the first to the last: what is made early lies in memory until it is read */
    MOST_INSTRUCTIONS = 600 /* of one kernel */
};

struct Uniting {
    Fuser *f;
    uint32_t n, at[MOST + 1]; /* the steps; the last one is asked about */
    bool down;                /* the last one waits for something between them: the kernel stands in its place, not in the first one's */
    Kernel *k;                /* of all; NULL: not made yet */
    PlanArgs args;
};

/* ---- one product ---- */

static uint32_t last_x(const Kernel *k) { return k->axes.n - 2; }

static VRef dot_of(const Kernel *k)
{
    VRef v = 0;
    while (!inst_is_dot(&k->inst.at[v]))
        v++;
    return v;
}

/* A product whose columns are those of its right operand and of all that it stores. */
static bool is_plain(const PlanStep *step)
{
    const Kernel *k = step->kernel;
    if (step->kind != STEP_KERNEL || k->form != FORM_CONTRACT || k->axes.n < 3 || k->axes.at[last_x(k)].kind != AXIS_X)
        return false;
    const KInst *dot = &k->inst.at[dot_of(k)];
    uint32_t columns = 1u << last_x(k);
    for (VRef v = 0; v < k->inst.n; v++)
        if (k->inst.at[v].kind == KI_SCATTER || (k->inst.at[v].kind == KI_STORE && !(k->inst_axes.at[v] & columns)))
            return false;
    return k->inst_axes.at[dot->b] & columns && !(k->inst_axes.at[dot->a] & columns);
}

/* Marks the buffers that a value is loaded from. */
static void mark_loads(const PlanStep *step, VRef v, bool *marked)
{
    const KInst *x = &step->kernel->inst.at[v];
    VRef in[4];
    if (x->kind == KI_LOAD)
        marked[step->args.at[x->arg].buffer] = true;
    for (uint32_t i = 0, n = kernel_operands(x, in); i < n; i++)
        mark_loads(step, in[i], marked);
}

/* Are the left operands made of the same tensors? */
static bool same_operand(const Fuser *f, const PlanStep *a, const PlanStep *b)
{
    uint32_t n = f->plan->buffers.n;
    bool *of_a = ARENA_ARRAY(f->scratch, bool, n + 1), *of_b = ARENA_ARRAY(f->scratch, bool, n + 1);
    mark_loads(a, a->kernel->inst.at[dot_of(a->kernel)].a, of_a);
    mark_loads(b, b->kernel->inst.at[dot_of(b->kernel)].a, of_b);
    return memcmp(of_a, of_b, n) == 0;
}

/* ---- one kernel of several ---- */

typedef struct Uniter {
    Uniting *u;
    const PlanStep *from;
    Kernel *to;
    uint32_t *arg; /* argument of `from` -> of `to`; UINT32_MAX: not known yet */
} Uniter;

static bool same_arg(const Fuser *f, const PlanArg *a, const PlanArg *b)
{
    if (a->kind != b->kind || a->buffer != b->buffer || a->scalar != b->scalar)
        return false;
    return a->kind != BIND_SIZE || dim_same(f->g, a->size, b->size);
}

static uint32_t map_arg(Uniter *x, uint32_t old)
{
    const PlanArg *arg = &x->from->args.at[old];
    uint32_t at = x->arg[old] == UINT32_MAX ? 0 : x->arg[old];
    while (x->arg[old] == UINT32_MAX && at < x->to->args.n && !same_arg(x->u->f, &x->u->args.at[at], arg))
        at++;
    if (at == x->to->args.n) {
        VEC_PUSH(x->to->arena, x->to->args, x->from->kernel->args.at[old]);
        VEC_PUSH(x->u->f->g->arena, x->u->args, *arg);
    }
    x->arg[old] = at;
    return at;
}

static IRef map_size(void *user, uint32_t old)
{
    Uniter *x = user;
    return kidx_arg(x->to, map_arg(x, old));
}

/* All but stores, or those: they come last (jit/buffers.c). */
static void copy_insts(Uniter *x, const KMap *map, VRef *value, bool stores)
{
    const Kernel *k = x->from->kernel;
    for (VRef v = 0; v < k->inst.n; v++) {
        KInst inst = k->inst.at[v];
        if ((inst.kind == KI_STORE) != stores)
            continue;
        VRef *const in[] = {&inst.a, &inst.b, &inst.c, &inst.pred};
        for (int i = 0; i < 4; i++)
            *in[i] = *in[i] == VREF_NONE ? VREF_NONE : value[*in[i]];
        if (inst.kind == KI_SCALAR || inst.kind == KI_LOAD || inst.kind == KI_STORE || inst.kind == KI_BOUND)
            inst.arg = map_arg(x, inst.arg);
        if (inst.idx != IREF_NONE)
            inst.idx = kidx_copy(x->to, k, inst.idx, map);
        value[v] = kernel_inst(x->to, inst);
        note_same(&x->to->inst.at[value[v]], inst.of);
    }
}

static IRef copy_size(const KMap *map, uint32_t axis)
{
    const Uniter *x = map->user;
    const Kernel *k = x->from->kernel;
    return kidx_copy(x->to, k, k->axes.at[axis].size, map);
}

/*
 * Where the points of a product's own axes lie among those of all: place[axis]. What is stored in heads has batch and rows apart, where
 * others have one axis of both. false: they have not the same points.
 */
static bool align(const KMap *map, uint32_t shared, uint32_t number, IRef *place)
{
    Uniter *x = map->user;
    Kernel *to = x->to;
    const uint32_t columns = last_x(x->from->kernel);
    uint32_t a = 0;
    for (uint32_t c = 0; c < shared; c++, a++) {
        const uint32_t first = a;
        if (a >= columns)
            return false;
        IRef points = copy_size(map, a), rest = kidx_axis(to, c);
        while (points != to->axes.at[c].size && a + 1 < columns)
            points = kidx_mul(to, points, copy_size(map, ++a));
        if (points != to->axes.at[c].size)
            return false;
        for (uint32_t i = a; i > first; i--) {
            place[i] = kidx_mod(to, rest, copy_size(map, i));
            rest = kidx_div(to, rest, copy_size(map, i));
        }
        place[first] = rest;
    }
    place[columns] = kidx_axis(to, shared + number);
    place[columns + 1] = kidx_axis(to, to->axes.n - 1);
    return a == columns && copy_size(map, columns + 1) == to->axes.at[to->axes.n - 1].size;
}

/* The kernel of all. Its rows are those of the product that has fewest axes of them. false: they have not the same ones. */
static bool unite(Uniting *u)
{
    Fuser *f = u->f;
    uint32_t least = 0;
    IRef place[MOST][MAX_SPACE];
    VRef *value[MOST];
    Uniter x[MOST];
    KMap map[MOST];
    u->k = kernel_new(f->g->arena);
    u->args = (PlanArgs){0};
    u->k->form = FORM_CONTRACT;
    for (uint32_t i = 0; i < u->n; i++) {
        const PlanStep *step = &f->plan->steps.at[u->at[i]];
        x[i] = (Uniter){u, step, u->k, ARENA_ARRAY(f->scratch, uint32_t, step->args.n + 1)};
        memset(x[i].arg, 0xff, sizeof *x[i].arg * step->args.n);
        value[i] = ARENA_ARRAY(f->scratch, VRef, step->kernel->inst.n + 1);
        map[i] = (KMap){.size = map_size, .user = &x[i], .place = place[i], .value = value[i]};
        least = step->kernel->axes.n < x[least].from->kernel->axes.n ? i : least;
    }
    const uint32_t shared = last_x(x[least].from->kernel);
    for (uint32_t a = 0; a < shared + u->n + 1; a++) {
        const uint32_t of = a < shared || a == shared + u->n ? least : a - shared;
        const Kernel *k = x[of].from->kernel;
        const uint32_t old = a < shared ? a : a == shared + u->n ? last_x(k) + 1 : last_x(k);
        kernel_add_axis(u->k, (AxisKind)k->axes.at[old].kind, copy_size(&map[of], old), kernel_extent(k, old));
        u->k->axes.at[a].beside = a > shared && a < shared + u->n;
    }
    for (uint32_t i = 0; i < u->n; i++)
        if (!align(&map[i], shared, i, place[i]))
            return false;
    for (int stores = 0; stores < 2; stores++)
        for (uint32_t i = 0; i < u->n; i++)
            copy_insts(&x[i], &map[i], value[i], stores != 0);
    schedule_kernel(u->k, &f->options->target);
    return true;
}

/* ---- why not ---- */

static PlanStep *asked(const Asked *a, uint32_t i) { return &a->f->plan->steps.at[a->uniting->at[i]]; }
static PlanStep *asked_last(const Asked *a) { return asked(a, a->uniting->n - 1); }

bool refuses_union_band(Asked *a) { return asked(a, 0)->band || asked_last(a)->band; }

/* Which copy of a node its product is, that a gradient computes again. */
static uint8_t copy_of(const Fuser *f, const PlanStep *step)
{
    const uint32_t of = step->kernel->inst.at[dot_of(step->kernel)].of; /* 1 + a node; 0, or beyond all: of none, of several */
    return graph_node(f->g, of && of <= f->n ? of - 1 : step->node)->again;
}

/* It would be made beside what it is a copy of, and kept, which it was made again to avoid. */
bool refuses_union_again(Asked *a) { return copy_of(a->f, asked(a, 0)) != copy_of(a->f, asked_last(a)); }

static bool touches(const PlanStep *step, uint32_t buffer, bool written_only)
{
    for (uint32_t i = 0; i < step->args.n; i++)
        if (step->args.at[i].kind == BIND_BUFFER && step->args.at[i].buffer == buffer &&
            (!written_only || step->kind != STEP_KERNEL || step->kernel->args.at[i].written))
            return true;
    return false;
}

/* Does something between step s and an earlier one write what s reads, or touch what it writes? */
static bool waits(const Plan *plan, uint32_t s, uint32_t earlier)
{
    const PlanStep *step = &plan->steps.at[s];
    for (uint32_t i = 0; i < step->args.n; i++)
        for (uint32_t t = earlier; step->args.at[i].kind == BIND_BUFFER && t < s; t++)
            if (touches(&plan->steps.at[t], step->args.at[i].buffer, !step->kernel->args.at[i].written))
                return true;
    return false;
}

/* Does something between step s and a later one, that one with it, touch what s writes, or write what it reads? */
static bool is_waited_for(const Plan *plan, uint32_t s, uint32_t later)
{
    const PlanStep *step = &plan->steps.at[s];
    for (uint32_t i = 0; i < step->args.n; i++)
        for (uint32_t t = s + 1; step->args.at[i].kind == BIND_BUFFER && t <= later; t++)
            if (touches(&plan->steps.at[t], step->args.at[i].buffer, !step->kernel->args.at[i].written))
                return true;
    return false;
}

/* The last product moves up to the first; or all move down to it. */
bool refuses_union_needs(Asked *a)
{
    Uniting *u = a->uniting;
    const uint32_t last = u->at[u->n - 1];
    bool stuck = false;
    u->down |= waits(a->f->plan, last, u->at[0]);
    for (uint32_t i = 0; i + 1 < u->n && u->down && !stuck; i++)
        stuck = is_waited_for(a->f->plan, u->at[i], last);
    return stuck;
}

bool refuses_union_large(Asked *a)
{
    uint32_t insts = 0, buffers = 0;
    for (uint32_t i = 0; i < a->uniting->n; i++) {
        insts += asked(a, i)->kernel->inst.n;
        buffers += asked(a, i)->args.n;
    }
    return a->uniting->n > MOST || insts > MOST_INSTRUCTIONS || buffers > MAX_BUFFERS ||
           asked(a, 0)->kernel->axes.n + a->uniting->n > MAX_SPACE;
}

bool refuses_union_sums(Asked *a)
{
    const Kernel *k = asked(a, 0)->kernel, *last = asked_last(a)->kernel;
    const KInst *x = &k->inst.at[dot_of(k)], *y = &last->inst.at[dot_of(last)];
    return x->dtype != y->dtype || k->inst.at[x->a].dtype != last->inst.at[y->a].dtype || !order_same(x->order, y->order);
}

/* From here on the kernel of all is there. */
bool refuses_union_places(Asked *a)
{
    Uniting *u = a->uniting;
    VRef left = VREF_NONE;
    if (!unite(u))
        return true;
    for (VRef v = 0; v < u->k->inst.n; v++) {
        const KInst *x = &u->k->inst.at[v];
        if (inst_is_dot(x) && left != VREF_NONE && x->a != left)
            return true;
        left = inst_is_dot(x) ? x->a : left;
    }
    return false;
}

/* Along a product's own columns, packed or not, as all do. One that has its rows in several axes is made as if they were one. */
bool refuses_union_way(Asked *a)
{
    Schedule all, one;
    llvm_host_schedule(a->uniting->k, a->f->options, a->f->scratch, &all, NULL);
    for (uint32_t i = 0; i < a->uniting->n; i++) {
        const Kernel *k = asked(a, i)->kernel;
        llvm_host_schedule(k, a->f->options, a->f->scratch, &one, NULL);
        const bool apart = k->axes.n + a->uniting->n > a->uniting->k->axes.n + 1;
        if ((one.way != all.way && !apart) || one.along != (int64_t)last_x(k) || one.in_place)
            return true;
    }
    return false;
}

/* ---- which ---- */

/* The products of the operand of step s, s first; *u gets their kernel. */
static void find_union(Fuser *f, uint32_t s, Uniting *u)
{
    const Plan *plan = f->plan;
    *u = (Uniting){.f = f, .n = 1, .at = {s}};
    for (uint32_t t = s + 1; t < plan->steps.n && t - s <= NEAR && is_plain(&plan->steps.at[s]); t++) {
        if (!is_plain(&plan->steps.at[t]) || !same_operand(f, &plan->steps.at[s], &plan->steps.at[t]))
            continue;
        Uniting more = *u;
        Asked question = {.f = f, .n = plan->steps.at[t].node, .uniting = &more, .with = &plan->steps.at[s]};
        more.at[more.n++] = t;
        RefusalId why = refuse(GROUP_UNION, &question);
        if (why)
            refused_note(f, &f->reasons, why, &question);
        else
            *u = more;
    }
}

/* Its steps become one, in the place of one of them. */
static void replace(Fuser *f, const Uniting *u)
{
    Plan *plan = f->plan;
    PlanStep one = plan->steps.at[u->at[0]];
    bool same = true;
    for (uint32_t i = 1; i < u->n; i++)
        same &= strcmp(one.what, plan->steps.at[u->at[i]].what) == 0;
    one.kernel = u->k;
    one.args.at = u->args.at;
    one.args.n = u->args.n;
    one.args.cap = u->args.cap;
    one.what = same ? one.what : kernel_name(u->k, f->g->arena);
    one.bytes = step_bytes(f, &one);
    const uint32_t stays = u->down ? u->n - 1 : 0;
    plan->steps.at[u->at[stays]] = one;
    for (uint32_t i = u->n; i-- > 0;) {
        if (i == stays)
            continue;
        memmove(&plan->steps.at[u->at[i]], &plan->steps.at[u->at[i] + 1], sizeof *plan->steps.at * (plan->steps.n - u->at[i] - 1));
        plan->steps.n--;
        for (uint32_t b = 0; b < plan->bands.n; b++)
            plan->bands.at[b].first -= plan->bands.at[b].first > u->at[i];
    }
}

void plan_unions(Fuser *f)
{
    Uniting u;
    if (!f->fuse || !target_kind(&f->options->target)->unites)
        return;
    for (uint32_t s = 0; s < f->plan->steps.n; s += u.n == 1 || !u.down) {
        arena_reset(f->scratch);
        find_union(f, s, &u);
        if (u.n > 1)
            replace(f, &u);
    }
}
