/*
 * A loop whose step is elementwise becomes one kernel. Instead of a launch for each iteration, which reads and writes the
 * carries in memory, there is one loop for each point, innermost, and the carries are in registers:
 *
 *     for x < X                          the points of the step's kernel
 *         carry = init[x]
 *         for k < count                  i = k, or count - 1 - k where it goes down
 *             carry = step(i, carry, xs[i][x], captured[x]);  ys[i][x] = ...
 *         last[x] = carry
 *
 * The step's own plan says what its kernel is. It may be done where each point of a carry depends on that point of the carries alone:
 * where each is read at the element that the kernel writes of it. Carries of rank 0 (a counter, a time) may be beside: what is made of
 * them is another kernel of the step, which each point does for itself. Where somebody wants their ends, a kernel of no axes makes those.
 *
 * A loop with a condition is one kernel, too, where all points agree when it ends: where the condition is made of carries of rank 0. Then
 * one more carry is what it says, of where the loop begins and of each step's carries. Else it is about all points, and only a loop that
 * settles (ir/body.h) is a kernel: points that are at their end change no more there, so each tile goes on until all of its own are. A
 * bound of the steps that some point is not done within is a fault.
 *
 * A step that may find an index out of bounds stays: it ends the loop. Results are those of the loop of launches: the same operations, on
 * values of the same dtypes. How often it runs is an argument.
 */
#include "jit/fuse/fuse.h"

#include "ir/body.h"

enum {
    NO_CARRY = UINT16_MAX,
    NO_OPERAND = UINT32_MAX,
    SOME_STEPS = 32 /* what is planned for where nobody knows how many it takes */
};

/* A kernel of one of the bodies, which the new one takes in. */
typedef struct Part {
    const Plan *plan; /* of the body */
    const PlanStep *inner;
    const Kernel *from;
    uint32_t which; /* of the bodies */
    uint32_t host;  /* where numbers that the body has made on the host are among those of the graph around */
    bool *live;     /* of `from`: what some result needs */
    VRef *value;    /* of `from` -> of the new kernel */
} Part;

struct LoopKernel {
    Fuser *f;
    Build b;
    const Node *node;
    const PlanStep *loop;
    const Plan *step;
    Part part[2]; /* the step's: of rank 0, where there are both; then of all points */
    uint32_t n_parts;
    Part condition; /* from NULL: there is none, or it is a carry */
    uint32_t
        going; /* the carry that tells which points go on, `carries`: what the condition makes; NO_CARRY: it runs as often as `count` says */
    uint32_t carries, n_in;
    bool scalars;  /* results of rank 0 beside others are what this kernel makes, and not those */
    bool *needed;  /* of the carries */
    VRef *init;    /* where each that is needed begins, ... */
    VRef *carry;   /* ... its KI_CARRY, ... */
    VRef *next;    /* ... and what it becomes */
    IRef position; /* of the iteration: i */
};

static bool is_elementwise(const Graph *body)
{
    bool is = true;
    for (Ref i = 0; is && i < body->nodes.n; i++) {
        OpClass cls = op_class((Op)graph_node(body, i)->op);
        is = cls == CLS_LEAF || cls == CLS_EW || cls == CLS_VIEW;
    }
    return is;
}

/* A condition of a loop that settles may fold what its step gives. */
bool refuses_loop_body(Asked *a)
{
    const Node *node = graph_node(a->f->g, a->n);
    bool condition = node->n_bodies == 2 && !node->attr.loop.settles;
    return !is_elementwise(node->bodies[0]) || (condition && !is_elementwise(node->bodies[1]));
}

bool refuses_loop_collects(Asked *a)
{
    const Node *node = graph_node(a->f->g, a->n);
    return node->n_bodies == 2 && node->attr.loop.ys;
}

/* Does a group refuse the loop? */
static bool is_refused(Fuser *f, RefusalId group, Ref n, LoopKernel *l)
{
    Asked asked = {.f = f, .n = n, .loop = l};
    RefusalId why = refuse(group, &asked);
    if (why)
        refused_note(f, &f->reasons, why, &asked);
    return why != REFUSAL_NONE;
}

bool loop_may_be_kernel(Fuser *f, Ref n) { return f->fuse && !is_refused(f, GROUP_LOOP_BODY, n, NULL); }

/* What a condition asks for, any element of it where the loop settles: an input of it; NO_CARRY: it is another one. */
static uint32_t asked_for(const Graph *condition, bool settles)
{
    const Node *asked = graph_node(condition, condition->outputs.at[0]);
    while (settles && asked->op == OP_REDUCE_ANY)
        asked = graph_node(condition, asked->in[0]);
    for (uint32_t k = 0; k < condition->inputs.n; k++)
        if (graph_node(condition, condition->inputs.at[k]) == asked)
            return k;
    return NO_CARRY;
}

/* ---- what the kernels of the bodies are ---- */

static const PlanBuffer *buffer_of(const Part *p, uint32_t arg) { return &p->plan->buffers.at[p->inner->args.at[arg].buffer]; }

static const PlanBuffer *output(const LoopKernel *l, uint32_t k) { return &l->step->buffers.at[l->step->outputs.at[k]]; }

/* Does anybody read result k of the loop? */
static bool is_read(const LoopKernel *l, uint32_t k) { return l->loop->args.at[l->n_in + k].kind == BIND_BUFFER; }

/* Of rank 0? What each step makes of result k, and input k of a body. */
static bool is_scalar(const LoopKernel *l, uint32_t k)
{
    return graph_node(l->node->bodies[0], l->node->bodies[0]->outputs.at[k])->rank == 0;
}
static bool input_is_scalar(const LoopKernel *l, const Part *p, uint32_t k)
{
    const Graph *body = l->node->bodies[p->which];
    return graph_node(body, body->inputs.at[k])->rank == 0;
}

/* Does this kernel make result k? */
static bool is_made(const LoopKernel *l, uint32_t k) { return is_read(l, k) && (l->n_parts == 1 || is_scalar(l, k) == l->scalars); }

/* Is carry c the same in each step? It is read where it lies, as what is captured. */
static bool is_handed_on(const LoopKernel *l, uint32_t c) { return output(l, c)->kind == BUFFER_INPUT && output(l, c)->index == c + 1; }

/* The operand that an input of a body is; NO_OPERAND: the step's i. */
static uint32_t operand_of(const Part *p, const PlanBuffer *buffer) { return p->which ? buffer->index : buffer->index - 1; }

static bool is_carry(const LoopKernel *l, const Part *p, const PlanBuffer *buffer)
{
    return buffer->kind == BUFFER_INPUT && operand_of(p, buffer) < l->carries && !is_handed_on(l, operand_of(p, buffer));
}

/* The kernels that this one takes in, but for the condition's. */
static uint32_t parts_of(const LoopKernel *l) { return l->scalars ? 1 : l->n_parts; }
static Part *main_part(LoopKernel *l) { return &l->part[parts_of(l) - 1]; }

/* Where a kernel stores to a buffer; its instructions' number: nowhere. */
static VRef store_to(const Part *p, const PlanBuffer *buffer)
{
    VRef v = 0;
    while (v < p->from->inst.n && (p->from->inst.at[v].kind != KI_STORE || buffer_of(p, p->from->inst.at[v].arg) != buffer))
        v++;
    return v;
}

/* The same of all of the step's: the part and what it stores. NULL: none does. */
static Part *maker_of(LoopKernel *l, const PlanBuffer *buffer, VRef *stored)
{
    for (uint32_t i = 0; i < l->n_parts; i++) {
        VRef v = store_to(&l->part[i], buffer);
        if (v == l->part[i].from->inst.n)
            continue;
        *stored = l->part[i].from->inst.at[v].a;
        return &l->part[i];
    }
    return NULL;
}

/* Where a value of so many elements has the one of the point at hand: where the kernel stores such a one. IREF_NONE: it stores none. */
static IRef point_of(const LoopKernel *l, const Part *p, Dim numel)
{
    for (VRef v = 0; v < p->from->inst.n; v++)
        if (p->from->inst.at[v].kind == KI_STORE && dim_same(l->f->g, buffer_of(p, p->from->inst.at[v].arg)->numel, numel))
            return p->from->inst.at[v].idx;
    return IREF_NONE;
}

/* A load of a carry, of i, of what another part makes, or of what stays the same. */
static bool load_fits(LoopKernel *l, const Part *p, const KInst *x)
{
    const PlanBuffer *buffer = buffer_of(p, x->arg);
    VRef stored;
    if (buffer->kind != BUFFER_INPUT) { /* of rank 0, for all points */
        const Part *maker = p == &l->part[1] ? maker_of(l, buffer, &stored) : NULL;
        return maker == &l->part[0] && x->pred == VREF_NONE;
    }
    bool is_i = operand_of(p, buffer) == NO_OPERAND;
    if (!is_i && !is_carry(l, p, buffer))
        return true;
    if (x->pred != VREF_NONE)
        return false;
    return is_i || input_is_scalar(l, p, buffer->index) || (p == &l->part[l->n_parts - 1] && x->idx == point_of(l, p, buffer->numel));
}

/* Elementwise, each of its outputs stored once at a place that all of its points agree on. */
static bool part_fits(LoopKernel *l, const Part *p)
{
    const Kernel *k = p->from;
    if (k->form != FORM_LOOPS || kernel_r_axes(k) || k->axes.n >= MAX_SPACE)
        return false;
    for (uint32_t a = 0; a < p->inner->args.n; a++)
        if (p->inner->args.at[a].kind > BIND_HOST)
            return false;
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *x = &k->inst.at[v];
        if (x->kind == KI_SCATTER || x->kind == KI_BOUND || (x->kind == KI_LOAD && !load_fits(l, p, x)))
            return false;
        if (x->kind == KI_STORE &&
            (x->pred != VREF_NONE || store_to(p, buffer_of(p, x->arg)) != v || point_of(l, p, buffer_of(p, x->arg)->numel) != x->idx))
            return false;
    }
    return true;
}

/* What the step gives is stored by a part, that of rank 0 by the one for that, or is an input, which is read where the points have it. */
static bool outputs_fit(LoopKernel *l)
{
    const Part *points = &l->part[l->n_parts - 1];
    for (uint32_t o = 0; o < l->step->outputs.n; o++) {
        const PlanBuffer *out = output(l, o);
        VRef stored;
        if (o < l->carries && is_handed_on(l, o) && !is_read(l, o))
            continue;
        if (out->kind != BUFFER_INPUT) {
            const Part *maker = maker_of(l, out, &stored);
            if (!maker || (l->n_parts == 2 && is_scalar(l, o) != (maker == &l->part[0])))
                return false;
        } else if (out->index == 0 || (!is_scalar(l, o) && point_of(l, points, out->numel) == IREF_NONE)) {
            return false;
        }
        if (l->n_parts == 1 && points->from->axes.n && is_scalar(l, o) && is_read(l, o)) /* of no points it would be none */
            return false;
    }
    return true;
}

static bool find_parts(LoopKernel *l)
{
    const Plan *step = l->step;
    l->n_parts = step->steps.n;
    if (l->n_parts < 1 || l->n_parts > 2)
        return false;
    for (uint32_t i = 0; i < l->n_parts; i++) {
        if (step->steps.at[i].kind != STEP_KERNEL)
            return false;
        l->part[i] = (Part){.plan = step, .inner = &step->steps.at[i], .from = step->steps.at[i].kernel};
    }
    if (l->n_parts == 2 && l->part[0].from->axes.n) {
        Part points = l->part[0];
        l->part[0] = l->part[1];
        l->part[1] = points;
    }
    return l->n_parts == 1 || (l->part[0].from->axes.n == 0 && l->part[1].from->axes.n > 0);
}

/* Who says when it ends. */
static bool find_condition(LoopKernel *l)
{
    bool settles = l->node->attr.loop.settles;
    l->going = NO_CARRY;
    if (l->node->n_bodies == 1)
        return true;
    if (!settles && l->n_parts == 1 && l->part[0].from->axes.n) /* of no points nobody would look whether it ends */
        return false;
    l->going = asked_for(l->node->bodies[1], settles);
    if (l->going < l->carries)
        return !settles || l->n_parts == 1; /* what is of rank 0 does not settle */
    const Plan *plan = &l->loop->bodies[1];
    if (settles || plan->steps.n != 1 || plan->steps.at[0].kind != STEP_KERNEL || plan->steps.at[0].kernel->axes.n)
        return false;
    l->going = l->carries;
    l->condition = (Part){.plan = plan, .inner = &plan->steps.at[0], .from = plan->steps.at[0].kernel, .which = 1};
    return store_to(&l->condition, &plan->buffers.at[plan->outputs.at[0]]) < l->condition.from->inst.n;
}

/* What the condition's kernel stores. */
static VRef asked(const LoopKernel *l)
{
    const Part *p = &l->condition;
    return p->from->inst.at[store_to(p, &p->plan->buffers.at[p->plan->outputs.at[0]])].a;
}

/* ---- what is needed ---- */

static void need_output(LoopKernel *l, uint32_t k)
{
    const PlanBuffer *out = output(l, k);
    VRef stored;
    Part *maker = out->kind == BUFFER_INPUT ? NULL : maker_of(l, out, &stored);
    if (maker)
        maker->live[stored] = true;
    else if (is_carry(l, &l->part[0], out))
        l->needed[out->index - 1] = true;
}

/* What the live instructions of a part need. Returns how many they are. */
static uint32_t need_operands(LoopKernel *l, Part *p)
{
    uint32_t n = 0;
    for (VRef v = p->from->inst.n; v-- > 0;) {
        const KInst *x = &p->from->inst.at[v];
        VRef in[4], stored;
        if (!p->live[v])
            continue;
        n++;
        for (uint32_t i = 0, m = kernel_operands(x, in); i < m; i++)
            p->live[in[i]] = true;
        if (x->idx != IREF_NONE)
            kidx_mark_values(p->from, x->idx, p->live);
        if (x->kind != KI_LOAD)
            continue;
        if (is_carry(l, p, buffer_of(p, x->arg)))
            l->needed[operand_of(p, buffer_of(p, x->arg))] = true;
        else if (buffer_of(p, x->arg)->kind != BUFFER_INPUT)
            maker_of(l, buffer_of(p, x->arg), &stored)->live[stored] = true;
    }
    return n;
}

static void open_part(LoopKernel *l, Part *p) { p->live = ARENA_ARRAY(l->f->arena, bool, p->from->inst.n + 1); }

/* What the results that this kernel makes need, through any number of iterations. */
static void find_needed(LoopKernel *l)
{
    uint32_t known, n = 0;
    l->needed = ARENA_ARRAY(l->f->arena, bool, l->carries + 1);
    for (uint32_t i = 0; i < l->n_parts; i++)
        open_part(l, &l->part[i]);
    if (l->condition.from) {
        open_part(l, &l->condition);
        l->condition.live[asked(l)] = true;
    }
    for (uint32_t k = 0; k < l->step->outputs.n; k++) {
        if (k < l->carries)
            l->needed[k] = is_made(l, k) || k == l->going;
        else if (is_made(l, k))
            need_output(l, k);
    }
    do {
        known = n;
        n = l->condition.from ? need_operands(l, &l->condition) : 0;
        for (uint32_t k = 0; k < l->carries; k++)
            if (l->needed[k])
                need_output(l, k);
        for (uint32_t i = l->n_parts; i-- > 0;)
            n += need_operands(l, &l->part[i]);
        for (uint32_t k = 0; k < l->carries; k++)
            n += l->needed[k];
    } while (n != known);
}

/* ---- the kernel with the loop ---- */

typedef struct Copying {
    LoopKernel *l;
    const Part *p;
} Copying;

/* Sizes and numbers have the same argument in all uses; buffers have a place of their own in each. */
static IRef map_size(void *user, uint32_t arg)
{
    const Copying *x = user;
    return build_size_arg(&x->l->b, x->p->inner->args.at[arg].size);
}

static uint32_t map_number(const Copying *x, uint32_t arg)
{
    const PlanArg *bind = &x->p->inner->args.at[arg];
    return build_number_arg(&x->l->b, (BindKind)bind->kind, bind->kind == BIND_HOST ? x->p->host + bind->scalar : bind->scalar,
                            (DType)x->p->from->args.at[arg].dtype);
}

static IRef copy_index(LoopKernel *l, const Part *p, IRef i)
{
    uint32_t axis[MAX_SPACE];
    for (uint32_t a = 0; a < MAX_SPACE; a++)
        axis[a] = a;
    Copying x = {l, p};
    KMap map = {.size = map_size, .user = &x, .axis = axis, .value = p->value};
    return kidx_copy(l->b.k, p->from, i, &map);
}

/* In what the iterations have a slice of `numel` elements each of: this iteration's. */
static IRef in_slice(LoopKernel *l, IRef i, Dim numel)
{
    return kidx_add(l->b.k, i, kidx_mul(l->b.k, l->position, build_size(&l->b, numel)));
}

static VRef put(LoopKernel *l, InstKind kind, uint8_t dtype, VRef a, VRef b, IRef idx)
{
    KInst x = KINST(.kind = (uint8_t)kind, .dtype = dtype);
    x.a = a;
    x.b = b;
    x.idx = idx;
    return kernel_inst(l->b.k, x);
}

static VRef put_load(LoopKernel *l, uint32_t operand, uint8_t dtype, IRef at, VRef pred)
{
    KInst load = KINST(.kind = KI_LOAD, .dtype = dtype);
    load.arg = build_buffer_arg(&l->b, l->loop->args.at[operand].buffer, false);
    load.idx = at;
    load.pred = pred;
    return kernel_inst(l->b.k, load);
}

static void put_store(LoopKernel *l, uint32_t k, IRef at, VRef v)
{
    KInst store = KINST(.kind = KI_STORE, .dtype = output(l, k)->dtype);
    store.arg = build_buffer_arg(&l->b, l->loop->args.at[l->n_in + k].buffer, true);
    store.a = v;
    store.idx = at;
    kernel_inst(l->b.k, store);
}

/* An input of a body at the index i, of the new kernel, where the carries are `state`. */
static VRef read_input(LoopKernel *l, const Part *p, const PlanBuffer *buffer, IRef i, VRef pred, const VRef *state)
{
    uint32_t operand = operand_of(p, buffer);
    if (operand == NO_OPERAND)
        return put(l, KI_INDEX, DT_I64, VREF_NONE, VREF_NONE, l->position);
    if (is_carry(l, p, buffer))
        return state[operand];
    if (p->which == 0 && operand >= l->carries && operand < l->carries + (uint32_t)l->node->attr.loop.xs)
        i = in_slice(l, i, buffer->numel);
    return put_load(l, operand, buffer->dtype, i, pred);
}

static VRef copy_load(LoopKernel *l, const Part *p, const KInst *x, const VRef *state)
{
    const PlanBuffer *buffer = buffer_of(p, x->arg);
    VRef stored;
    if (buffer->kind == BUFFER_INPUT)
        return read_input(l, p, buffer, x->idx, x->pred, state);
    const Part *maker = maker_of(l, buffer, &stored);
    return maker->value[stored];
}

static void copy_part(LoopKernel *l, Part *p, const VRef *state)
{
    const Copying copying = {l, p};
    for (VRef v = 0; v < p->from->inst.n; v++) {
        KInst x = p->from->inst.at[v];
        VRef *const refs[] = {&x.a, &x.b, &x.c, &x.pred};
        if (!p->live[v])
            continue;
        for (int i = 0; i < 4; i++)
            *refs[i] = *refs[i] == VREF_NONE ? VREF_NONE : p->value[*refs[i]];
        x.of = 0; /* a node of the body's graph: what may stay unrounded is decided */
        x.idx = x.idx == IREF_NONE ? IREF_NONE : copy_index(l, p, x.idx);
        if (x.kind == KI_SCALAR)
            x.arg = map_number(&copying, x.arg);
        p->value[v] = x.kind == KI_LOAD ? copy_load(l, p, &x, state) : kernel_inst(l->b.k, x);
    }
}

/* Where the point at hand has its element of result k, of one step. */
static IRef place_of(LoopKernel *l, uint32_t k)
{
    const Part *p = &l->part[l->n_parts - 1];
    return is_scalar(l, k) ? kidx_const(l->b.k, 0) : copy_index(l, p, point_of(l, p, output(l, k)->numel));
}

/* What the step gives as output k. */
static VRef value_of(LoopKernel *l, uint32_t k)
{
    const PlanBuffer *out = output(l, k);
    VRef stored;
    if (out->kind == BUFFER_INPUT)
        return read_input(l, &l->part[0], out, place_of(l, k), VREF_NONE, l->carry);
    const Part *maker = maker_of(l, out, &stored);
    return maker->value[stored];
}

static void begin_carries(LoopKernel *l)
{
    for (uint32_t c = 0; c < l->carries; c++) {
        if (!l->needed[c])
            continue;
        l->init[c] = put_load(l, c, output(l, c)->dtype, place_of(l, c), VREF_NONE);
        l->carry[c] = put(l, KI_CARRY, output(l, c)->dtype, l->init[c], VREF_NONE, IREF_NONE);
    }
    if (!l->condition.from)
        return;
    copy_part(l, &l->condition, l->init);
    l->carry[l->going] = put(l, KI_CARRY, DT_BOOL, l->condition.value[asked(l)], VREF_NONE, IREF_NONE);
}

static VRef put_next(LoopKernel *l, uint32_t c)
{
    KInst next = KINST(.kind = KI_NEXT, .dtype = l->b.k->inst.at[l->carry[c]].dtype, .mode = c == l->going ? ENDS : 0);
    next.a = l->carry[c];
    next.b = l->next[c];
    return kernel_inst(l->b.k, next);
}

/* A point that goes on behind the last step is an index out of bounds: 1 of 1. */
static void put_bound(LoopKernel *l, VRef goes_on)
{
    KInst index = KINST(.kind = KI_OP, .op = OP_CAST, .dtype = DT_I64), bound = KINST(.kind = KI_BOUND, .dtype = DT_I64);
    index.a = goes_on;
    bound.a = kernel_inst(l->b.k, index);
    bound.idx = kidx_const(l->b.k, 1);
    bound.arg = build_fault_arg(&l->b);
    bound.imm = build_fault_id(l->f, l->loop->node);
    kernel_inst(l->b.k, bound);
}

static void end_carries(LoopKernel *l)
{
    VRef *end = ARENA_ARRAY(l->f->scratch, VRef, l->carries + 1);
    for (uint32_t c = 0; c < l->carries; c++)
        if (l->needed[c])
            l->next[c] = value_of(l, c);
    if (l->condition.from) {
        copy_part(l, &l->condition, l->next);
        l->next[l->going] = l->condition.value[asked(l)];
    }
    for (uint32_t c = 0; c <= l->carries; c++)
        if (c < l->carries ? l->needed[c] : l->condition.from != NULL)
            end[c] = put_next(l, c);
    if (l->going != NO_CARRY)
        put_bound(l, end[l->going]);
    for (uint32_t k = 0; k < l->step->outputs.n; k++) {
        if (!is_made(l, k))
            continue;
        if (k < l->carries)
            put_store(l, k, place_of(l, k), end[k]);
        else
            put_store(l, k, in_slice(l, place_of(l, k), output(l, k)->numel), value_of(l, k));
    }
}

static void put_axes(LoopKernel *l)
{
    Build *b = &l->b;
    Part *points = main_part(l);
    Dim count = l->node->fact[0];
    build_init(b, l->f, NULL, 0, 0, l->loop->node);
    for (uint32_t i = 0; i < l->n_parts; i++)
        l->part[i].value = ARENA_ARRAY(l->f->scratch, VRef, l->part[i].from->inst.n + 1);
    if (l->condition.from)
        l->condition.value = ARENA_ARRAY(l->f->scratch, VRef, l->condition.from->inst.n + 1);
    l->init = ARENA_ARRAY(l->f->scratch, VRef, l->carries + 1);
    l->carry = ARENA_ARRAY(l->f->scratch, VRef, l->carries + 1);
    l->next = ARENA_ARRAY(l->f->scratch, VRef, l->carries + 1);
    for (uint32_t a = 0; a < points->from->axes.n; a++)
        kernel_add_axis(b->k, AXIS_X, copy_index(l, points, points->from->axes.at[a].size), kernel_extent(points->from, a));
    b->n_x = points->from->axes.n;
    b->n_r = 1;
    b->x_mask = (1u << b->n_x) - 1;
    b->r_mask = 1u << b->n_x;
    const int64_t planned = l->going == NO_CARRY ? dim_hint(l->f->g, count) : SOME_STEPS;
    IRef length = build_size_arg(b, count), at = kidx_axis(b->k, kernel_add_axis(b->k, AXIS_R, length, planned));
    l->position = at;
    if (l->node->attr.loop.reverse)
        l->position = kidx_add(b->k, kidx_add(b->k, length, kidx_const(b->k, -1)), kidx_mul(b->k, at, kidx_const(b->k, -1)));
}

/* Numbers that a body has made on the host are made for the kernel. Returns where they begin. */
static uint32_t take_host_scalars(LoopKernel *l, const Plan *body)
{
    Plan *plan = l->f->plan;
    uint32_t first = plan->host.n;
    for (uint32_t i = 0; i < body->host.n; i++) {
        HostScalar made = body->host.at[i];
        for (int k = 0; made.op != OP_INPUT && k < op_info[made.op].arity; k++)
            made.in[k] += first;
        VEC_PUSH(l->f->g->arena, plan->host, made);
    }
    return first;
}

static PlanStep make_kernel(LoopKernel *l, bool scalars)
{
    l->scalars = scalars;
    find_needed(l);
    put_axes(l);
    begin_carries(l);
    for (uint32_t i = 0; i < parts_of(l); i++)
        copy_part(l, &l->part[i], l->carry);
    end_carries(l);
    Draft draft = build_draft(&l->b);
    PlanStep step = {.kind = STEP_KERNEL, .node = l->b.root};
    lower(l->f, &draft, &step);
    return step;
}

/* Behind step s one more. */
static void insert_step(Fuser *f, uint32_t s, PlanStep step)
{
    Plan *plan = f->plan;
    VEC_PUSH(f->g->arena, plan->steps, step);
    memmove(&plan->steps.at[s + 2], &plan->steps.at[s + 1], sizeof step * (plan->steps.n - s - 2));
    plan->steps.at[s + 1] = step;
    for (uint32_t i = 0; i < plan->bands.n; i++)
        plan->bands.at[i].first += plan->bands.at[i].first > s;
}

bool refuses_loop_kernels(Asked *a) { return !find_parts(a->loop); }

bool refuses_loop_end(Asked *a) { return !find_condition(a->loop); }

bool refuses_loop_results(Asked *a) { return !outputs_fit(a->loop); }

bool refuses_loop_points(Asked *a)
{
    LoopKernel *l = a->loop;
    bool fits = true;
    for (uint32_t i = 0; i < l->n_parts && fits; i++)
        fits = part_fits(l, &l->part[i]);
    return !fits || (l->condition.from && !part_fits(l, &l->condition));
}

bool loop_as_kernel(Fuser *f, uint32_t s)
{
    const PlanStep loop = f->plan->steps.at[s];
    const Node *node = graph_node(f->g, loop.node);
    LoopKernel l = {.f = f, .node = node, .loop = &loop, .step = &loop.bodies[0], .carries = node->attr.loop.carries, .n_in = node->n_in};
    bool of_rank_0 = false, of_points = false;
    if (is_refused(f, GROUP_LOOP, loop.node, &l))
        return false;
    for (uint32_t i = 0, host = take_host_scalars(&l, l.step); i < l.n_parts; i++)
        l.part[i].host = host;
    if (l.condition.from)
        l.condition.host = take_host_scalars(&l, l.condition.plan);
    for (uint32_t k = 0; k < l.step->outputs.n; k++) {
        of_rank_0 |= is_read(&l, k) && is_scalar(&l, k);
        of_points |= is_read(&l, k) && !is_scalar(&l, k);
    }
    of_rank_0 |= node->n_bodies == 2; /* of no points, too, it has to come to its end */
    f->plan->steps.at[s] = make_kernel(&l, l.n_parts == 2 && of_rank_0);
    if (l.n_parts == 2 && of_rank_0 && of_points)
        insert_step(f, s, make_kernel(&l, false));
    return true;
}
