/*
 * A loop whose step is one elementwise kernel becomes one kernel (on a CPU). Instead of a launch for each iteration, which reads and writes the
 * carries in memory, there is one loop for each point, innermost, and the carries are in registers:
 *
 *     for x < X                          the points of the step's kernel
 *         carry = init[x]
 *         for k < count                  i = k, or count - 1 - k where it goes down
 *             carry = step(i, carry, xs[i][x], captured[x]);  ys[i][x] = ...
 *         last[x] = carry
 *
 * The step's own plan says what its kernel is. It may be done where each point of a carry depends on that point of the carries alone: where each
 * is read at the element that the kernel writes of it. A step that may find an index out of bounds stays: it ends the loop. So does a loop
 * with a condition, which is about all points.
 *
 * Results are those of the loop of launches: the same operations, on values of the same dtypes. How often it runs is an argument.
 */
#include "jit/fuse.h"

#include "ir/body.h"

typedef struct LoopKernel {
    Fuser *f;
    Build b;
    const Node *node;
    const PlanStep *loop;
    Plan *step;
    const PlanStep *inner; /* the step's only one, ... */
    const Kernel *from;    /* ... and its kernel */
    uint32_t carries, n_in, host;
    bool *live;    /* of `from`: what some result needs */
    bool *needed;  /* of the carries */
    VRef *value;   /* of `from` -> of the new kernel */
    VRef *carry;   /* KI_CARRY of each that is needed */
    IRef position; /* of the iteration: i */
} LoopKernel;

bool loop_may_be_kernel(const Fuser *f, Ref n)
{
    const Node *node = graph_node(f->g, n);
    bool may = f->fuse && !f->options->target.sm && node->n_bodies == 1;
    for (Ref i = 0; may && i < node->bodies[0]->nodes.n; i++) {
        OpClass cls = op_class((Op)graph_node(node->bodies[0], i)->op);
        may = cls == CLS_LEAF || cls == CLS_EW || cls == CLS_VIEW;
    }
    return may;
}

/* ---- what the step's kernel is ---- */

static const PlanBuffer *buffer_of(const LoopKernel *l, uint32_t arg) { return &l->step->buffers.at[l->inner->args.at[arg].buffer]; }

static const PlanBuffer *output(const LoopKernel *l, uint32_t k) { return &l->step->buffers.at[l->step->outputs.at[k]]; }

/* Does anybody read result k of the loop? */
static bool is_read(const LoopKernel *l, uint32_t k) { return l->loop->args.at[l->n_in + k].kind == BIND_BUFFER; }

static bool is_carry(const LoopKernel *l, const PlanBuffer *buffer)
{
    return buffer->kind == BUFFER_INPUT && buffer->index > 0 && buffer->index <= l->carries;
}

/* Where a value of so many elements has the one of the point at hand: where the kernel stores such a one. IREF_NONE: it stores none. */
static IRef point_of(const LoopKernel *l, Dim numel)
{
    for (VRef v = 0; v < l->from->inst.n; v++)
        if (l->from->inst.at[v].kind == KI_STORE && dim_same(l->f->g, buffer_of(l, l->from->inst.at[v].arg)->numel, numel))
            return l->from->inst.at[v].idx;
    return IREF_NONE;
}

static VRef store_to(const LoopKernel *l, const PlanBuffer *buffer)
{
    VRef v = 0;
    while (v < l->from->inst.n && (l->from->inst.at[v].kind != KI_STORE || buffer_of(l, l->from->inst.at[v].arg) != buffer))
        v++;
    return v;
}

/* Elementwise, each of its outputs stored once at a place that all of its points agree on. */
static bool kernel_fits(const LoopKernel *l)
{
    const Kernel *k = l->from;
    if (k->form != FORM_LOOPS || kernel_r_axes(k) || k->axes.n >= MAX_SPACE)
        return false;
    for (uint32_t a = 0; a < l->inner->args.n; a++)
        if (l->inner->args.at[a].kind > BIND_HOST || (l->inner->args.at[a].kind == BIND_BUFFER && buffer_of(l, a)->kind == BUFFER_TEMP))
            return false;
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *x = &k->inst.at[v];
        const PlanBuffer *buffer = x->kind == KI_LOAD || x->kind == KI_STORE ? buffer_of(l, x->arg) : NULL;
        if (x->kind == KI_SCATTER || x->kind == KI_BOUND)
            return false;
        if (x->kind == KI_STORE && (x->pred != VREF_NONE || store_to(l, buffer) != v || point_of(l, buffer->numel) != x->idx))
            return false;
        if (x->kind == KI_LOAD && buffer->kind != BUFFER_INPUT)
            return false;
        if (x->kind == KI_LOAD && buffer->index <= l->carries && x->pred != VREF_NONE)
            return false;
        if (x->kind == KI_LOAD && is_carry(l, buffer) && x->idx != point_of(l, buffer->numel))
            return false;
    }
    for (uint32_t o = 0; o < l->step->outputs.n; o++) { /* one that is an input is read there, too */
        const PlanBuffer *out = output(l, o);
        if (out->kind == BUFFER_TEMP || (out->kind == BUFFER_INPUT && (out->index == 0 || point_of(l, out->numel) == IREF_NONE)))
            return false;
    }
    return true;
}

static void need_output(LoopKernel *l, uint32_t k)
{
    const PlanBuffer *out = output(l, k);
    if (out->kind == BUFFER_OUTPUT)
        l->live[l->from->inst.at[store_to(l, out)].a] = true;
    else if (is_carry(l, out))
        l->needed[out->index - 1] = true;
}

/* What the results that somebody reads need, through any number of iterations. */
static void find_needed(LoopKernel *l)
{
    uint32_t known, n = 0;
    for (uint32_t k = 0; k < l->step->outputs.n; k++) {
        if (k < l->carries)
            l->needed[k] = is_read(l, k);
        else if (is_read(l, k))
            need_output(l, k);
    }
    do {
        known = n;
        n = 0;
        for (uint32_t k = 0; k < l->carries; k++)
            if (l->needed[k])
                need_output(l, k);
        for (VRef v = l->from->inst.n; v-- > 0;) {
            const KInst *x = &l->from->inst.at[v];
            VRef in[4];
            for (uint32_t i = 0, m = l->live[v] ? kernel_operands(x, in) : 0; i < m; i++)
                l->live[in[i]] = true;
            if (l->live[v] && x->idx != IREF_NONE)
                kidx_mark_values(l->from, x->idx, l->live);
            if (l->live[v] && x->kind == KI_LOAD && is_carry(l, buffer_of(l, x->arg)))
                l->needed[buffer_of(l, x->arg)->index - 1] = true;
            n += l->live[v];
        }
        for (uint32_t k = 0; k < l->carries; k++)
            n += l->needed[k];
    } while (n != known);
}

/* ---- the kernel with the loop ---- */

/* Sizes and numbers; buffers have a place of their own in each use. */
static uint32_t map_arg(void *user, uint32_t arg)
{
    LoopKernel *l = user;
    const PlanArg *bind = &l->inner->args.at[arg];
    if (bind->kind == BIND_SIZE)
        return l->b.k->idx.at[build_size_arg(&l->b, bind->size)].a;
    return build_number_arg(&l->b, (BindKind)bind->kind, bind->kind == BIND_HOST ? l->host + bind->scalar : bind->scalar,
                            (DType)l->from->args.at[arg].dtype);
}

static IRef copy_index(LoopKernel *l, IRef i)
{
    uint32_t axis[MAX_SPACE];
    for (uint32_t a = 0; a < MAX_SPACE; a++)
        axis[a] = a;
    KMap map = {.arg = map_arg, .user = l, .axis = axis, .value = l->value};
    return kidx_copy(l->b.k, l->from, i, &map);
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

/* Input `index` of the step at the index i, of the new kernel. */
static VRef read_input(LoopKernel *l, const PlanBuffer *buffer, IRef i, VRef pred)
{
    if (buffer->index == 0)
        return put(l, KI_INDEX, DT_I64, VREF_NONE, VREF_NONE, l->position);
    if (is_carry(l, buffer))
        return l->carry[buffer->index - 1];
    if (buffer->index <= l->carries + (uint32_t)l->node->attr.loop.xs)
        i = in_slice(l, i, buffer->numel);
    return put_load(l, buffer->index - 1, buffer->dtype, i, pred);
}

static void copy_step(LoopKernel *l)
{
    for (VRef v = 0; v < l->from->inst.n; v++) {
        KInst x = l->from->inst.at[v];
        VRef *const refs[] = {&x.a, &x.b, &x.c, &x.pred};
        if (!l->live[v])
            continue;
        for (int i = 0; i < 4; i++)
            *refs[i] = *refs[i] == VREF_NONE ? VREF_NONE : l->value[*refs[i]];
        x.of = 0; /* a node of the step's graph: what may stay unrounded is decided */
        x.idx = x.idx == IREF_NONE ? IREF_NONE : copy_index(l, x.idx);
        if (x.kind == KI_SCALAR)
            x.arg = map_arg(l, x.arg);
        l->value[v] = x.kind == KI_LOAD ? read_input(l, buffer_of(l, x.arg), x.idx, x.pred) : kernel_inst(l->b.k, x);
    }
}

/* What the step gives as output k. */
static VRef value_of(LoopKernel *l, uint32_t k)
{
    const PlanBuffer *out = output(l, k);
    if (out->kind == BUFFER_OUTPUT)
        return l->value[l->from->inst.at[store_to(l, out)].a];
    return read_input(l, out, copy_index(l, point_of(l, out->numel)), VREF_NONE);
}

static void begin_carries(LoopKernel *l)
{
    for (uint32_t c = 0; c < l->carries; c++) {
        const PlanBuffer *out = output(l, c);
        if (!l->needed[c])
            continue;
        VRef init = put_load(l, c, out->dtype, copy_index(l, point_of(l, out->numel)), VREF_NONE);
        l->carry[c] = put(l, KI_CARRY, out->dtype, init, VREF_NONE, IREF_NONE);
    }
}

static void end_carries(LoopKernel *l)
{
    VRef *next = ARENA_ARRAY(l->f->scratch, VRef, l->carries + 1);
    for (uint32_t c = 0; c < l->carries; c++)
        if (l->needed[c])
            next[c] = put(l, KI_NEXT, output(l, c)->dtype, l->carry[c], value_of(l, c), IREF_NONE);
    for (uint32_t k = 0; k < l->step->outputs.n; k++) {
        IRef at = is_read(l, k) ? copy_index(l, point_of(l, output(l, k)->numel)) : IREF_NONE;
        if (k < l->carries && is_read(l, k))
            put_store(l, k, at, next[k]);
        else if (is_read(l, k))
            put_store(l, k, in_slice(l, at, output(l, k)->numel), value_of(l, k));
    }
}

static void put_axes(LoopKernel *l)
{
    Build *b = &l->b;
    const Kernel *k = l->from;
    Dim count = l->node->fact[0];
    build_init(b, l->f, NULL, 0, 0, l->loop->node);
    l->value = ARENA_ARRAY(l->f->scratch, VRef, k->inst.n + 1);
    l->carry = ARENA_ARRAY(l->f->scratch, VRef, l->carries + 1);
    for (uint32_t a = 0; a < k->axes.n; a++)
        kernel_add_axis(b->k, AXIS_X, copy_index(l, k->axes.at[a].size), kernel_extent(k, a));
    b->n_x = k->axes.n;
    b->n_r = 1;
    b->x_mask = (1u << b->n_x) - 1;
    b->r_mask = 1u << b->n_x;
    IRef length = build_size_arg(b, count), at = kidx_axis(b->k, kernel_add_axis(b->k, AXIS_R, length, dim_hint(l->f->g, count)));
    l->position = at;
    if (l->node->attr.loop.reverse)
        l->position = kidx_add(b->k, kidx_add(b->k, length, kidx_const(b->k, -1)), kidx_mul(b->k, at, kidx_const(b->k, -1)));
}

/* Numbers that the step has made on the host are made for the kernel. */
static void take_host_scalars(LoopKernel *l)
{
    Plan *plan = l->f->plan;
    l->host = plan->host.n;
    for (uint32_t i = 0; i < l->step->host.n; i++) {
        HostScalar made = l->step->host.at[i];
        for (int k = 0; made.op != OP_INPUT && k < op_info[made.op].arity; k++)
            made.in[k] += l->host;
        VEC_PUSH(l->f->g->arena, plan->host, made);
    }
}

bool loop_as_kernel(Fuser *f, PlanStep *loop)
{
    const Node *node = graph_node(f->g, loop->node);
    LoopKernel l = {.f = f, .node = node, .loop = loop, .step = &loop->bodies[0], .carries = node->attr.loop.carries, .n_in = node->n_in};
    if (l.step->steps.n != 1 || l.step->steps.at[0].kind != STEP_KERNEL)
        return false;
    l.inner = &l.step->steps.at[0];
    l.from = l.inner->kernel;
    if (!kernel_fits(&l))
        return false;
    l.live = ARENA_ARRAY(f->arena, bool, l.from->inst.n + 1);
    l.needed = ARENA_ARRAY(f->arena, bool, l.carries + 1);
    find_needed(&l);
    take_host_scalars(&l);
    put_axes(&l);
    begin_carries(&l);
    copy_step(&l);
    end_carries(&l);
    *loop = build_finish(&l.b);
    return true;
}
