/*
 * From drafts to kernels: only the instructions that a store needs, adjacent axes made one where no index tells them apart,
 * arguments in the order of their first use. Equal work gives equal text, whatever it was fused from.
 *
 * All has been decided: this cannot fail, and is done once for each kernel, when there are no more rounds.
 */
#include "jit/fuse/fuse.h"

#include "ir/query.h"

#include <stdio.h>

typedef struct Lower {
    Fuser *f;
    const Draft *d;
    Kernel *to;
    PlanStep *step;
    uint32_t *arg;       /* old argument -> new; UINT32_MAX: not used yet */
    const uint8_t *edge; /* find_edges */
} Lower;

enum { NO_EDGE = UINT8_MAX, MOST_EDGES = 16 };

static uint32_t map_arg(Lower *x, uint32_t old)
{
    if (x->arg[old] == UINT32_MAX) {
        x->arg[old] = x->to->args.n;
        VEC_PUSH(x->to->arena, x->to->args, x->d->k->args.at[old]);
        VEC_PUSH(x->f->g->arena, x->step->args, x->d->args.at[old]);
    }
    return x->arg[old];
}

static IRef map_size(void *user, uint32_t old)
{
    Lower *x = user;
    return kidx_arg(x->to, map_arg(x, old));
}

/* Values that an index expression reads. */
static void mark_values(const Kernel *k, IRef i, bool *live)
{
    const Idx *x = &k->idx.at[i];
    if (x->kind == IX_VALUE)
        live[x->a] = true;
    if (x->kind == IX_ADD || x->kind == IX_MUL || x->kind == IX_DIV || x->kind == IX_MOD) {
        mark_values(k, x->a, live);
        mark_values(k, x->b, live);
    }
}

/* The same: edge is NO_EDGE of those. */
static void unmark_values(const Kernel *k, IRef i, uint8_t *edge)
{
    const Idx *x = &k->idx.at[i];
    if (x->kind == IX_VALUE)
        edge[x->a] = NO_EDGE;
    if (x->kind == IX_ADD || x->kind == IX_MUL || x->kind == IX_DIV || x->kind == IX_MOD) {
        unmark_values(k, x->a, edge);
        unmark_values(k, x->b, edge);
    }
}

/* Of numbers that come from the user: times a size, they must still be what they are. */
static bool small(int64_t value) { return value >= -(INT64_C(1) << 31) && value <= INT64_C(1) << 31; }

static bool small_constant(const Kernel *k, IRef i)
{
    const Idx *x = &k->idx.at[i];
    return x->kind == IX_CONST ? small(x->value) : x->kind != IX_ADD || small_constant(k, x->b); /* it stands on the right */
}

static bool is_edge(const Kernel *k, const KInst *n)
{
    if (n->kind != KI_OP || (n->op != OP_LT && n->op != OP_GE) || k->inst.at[n->a].kind != KI_INDEX || k->inst_axes.at[n->b])
        return false;
    const KInst *right = &k->inst.at[n->b];
    return right->kind == KI_CONST ? small((int64_t)right->imm) : right->kind == KI_INDEX && small_constant(k, right->idx);
}

/* A comparison whose coordinate find_edges has found to be one. */
static bool at_edge(const Kernel *k, const KInst *n, const uint8_t *edge) { return is_edge(k, n) && edge[n->a] != NO_EDGE; }

/* What reaches an effect; edge NULL, or: but for what only comparisons with edges read. */
static bool *live_insts(const Kernel *k, const uint8_t *edge)
{
    bool *live = ARENA_ARRAY(k->arena, bool, k->inst.n + 1);
    for (VRef v = k->inst.n; v-- > 0;) {
        const KInst *inst = &k->inst.at[v];
        VRef in[4];
        if (inst->kind == KI_STORE || inst->kind == KI_SCATTER || inst->kind == KI_BOUND || inst->kind == KI_NEXT) /* what has an effect */
            live[v] = true;
        if (!live[v] || (edge && at_edge(k, inst, edge)))
            continue;
        uint32_t n = kernel_operands(inst, in);
        for (uint32_t i = 0; i < n; i++)
            live[in[i]] = true;
        if (inst->idx != IREF_NONE)
            mark_values(k, inst->idx, live);
    }
    return live;
}

/*
 * What puts tensors beside one another asks whether a coordinate i is at or past an edge, and axes inside that one may become one with it all the
 * same: i >= c is i * s + j >= c * s for j in [0, s). edge[v], of an index that is only compared so: its innermost axis, which stands there
 * as it is; NO_EDGE of all other instructions. Where more is asked than cutting an axis makes up for (jit/llvm/cpu/pieces.c), there are none.
 */
static uint8_t *find_edges(Fuser *f, const Draft *d, const bool *live)
{
    Kernel *k = d->k;
    uint32_t edges = 0;
    uint8_t *edge = ARENA_ARRAY(f->scratch, uint8_t, k->inst.n + 1);
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *n = &k->inst.at[v];
        IRef coef, rest;
        int64_t one;
        edge[v] = NO_EDGE;
        if (!live[v] || n->kind != KI_INDEX || !k->inst_axes.at[v] || d->n_r)
            continue;
        uint32_t axis = 31 - (uint32_t)__builtin_clz(k->inst_axes.at[v]);
        if (kidx_linear(k, n->idx, axis, &coef, &rest) && kidx_is_const(k, coef, &one) && one == 1 && small_constant(k, rest))
            edge[v] = (uint8_t)axis;
    }
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *n = &k->inst.at[v];
        VRef in[4];
        if (!live[v])
            continue;
        uint32_t n_in = kernel_operands(n, in);
        for (uint32_t i = 0; i < n_in; i++)
            if (!(is_edge(k, n) && i == 0))
                edge[in[i]] = NO_EDGE;
        if (n->idx != IREF_NONE)
            unmark_values(k, n->idx, edge);
        edges += is_edge(k, n);
    }
    if (edges > MOST_EDGES)
        memset(edge, NO_EDGE, k->inst.n);
    return edge;
}

/* New number of each axis; UINT32_MAX for the outer ones of a run that becomes one axis. Returns
 * how many are left. */
static uint32_t merge_axes(const Draft *d, const bool *live, const uint8_t *edge, uint32_t *to)
{
    Kernel *k = d->k;
    bool ordered = false, gone[MAX_SPACE] = {false};
    for (VRef v = 0; v < k->inst.n; v++)
        ordered |= live[v] && kernel_in_order(&k->inst.at[v]);
    for (uint32_t a = 0; a + 1 < k->axes.n; a++) {
        bool same_kind = k->axes.at[a].kind == k->axes.at[a + 1].kind;
        bool product = k->form == FORM_CONTRACT || k->form == FORM_ATTENTION,
             contract = product && a + 2 >= d->n_x; /* m and n stay apart */
        if (!same_kind || contract || (ordered && k->axes.at[a].kind == AXIS_R))
            continue;
        gone[a] = true;
        for (VRef v = 0; v < k->inst.n && gone[a]; v++)
            if ((live[v] || edge[v] != NO_EDGE) && k->inst.at[v].idx != IREF_NONE && k->inst_axes.at[v] >> a & 3 && a < edge[v])
                gone[a] = kidx_mergeable(k, k->inst.at[v].idx, a);
    }
    uint32_t n = 0;
    for (uint32_t a = 0; a < k->axes.n; a++)
        to[a] = gone[a] ? UINT32_MAX : n++;
    return n;
}

/* Drops the r axes when nothing that is stored came from them. */
static void drop_idle_row(Draft *d, const bool *live)
{
    const uint32_t row = ((1u << d->n_r) - 1) << d->n_x;
    for (VRef v = 0; v < d->k->inst.n; v++) {
        const KInst *inst = &d->k->inst.at[v];
        if (live[v] && (d->k->inst_axes.at[v] & row || inst->kind == KI_FOLD || kernel_in_order(inst)))
            return;
    }
    d->k->axes.n = d->n_x;
    d->n_r = 0;
}

/* Of axes that became one: what the schedule plans for, which may be more than any tensor has. */
static int64_t joined_extent(int64_t a, int64_t b)
{
    const int64_t most = INT64_C(1) << KERNEL_BUCKETS;
    int64_t all;
    return __builtin_mul_overflow(a, b, &all) || all > most ? most : all;
}

static void copy_axes(Lower *x, const KMap *map)
{
    const Kernel *k = x->d->k;
    IRef size = kidx_const(x->to, 1);
    int64_t planned = 1;
    for (uint32_t a = 0; a < k->axes.n; a++) {
        size = kidx_mul(x->to, size, kidx_copy(x->to, k, k->axes.at[a].size, map));
        planned = joined_extent(planned, kernel_extent(k, a));
        if (map->axis[a] == UINT32_MAX)
            continue;
        kernel_add_axis(x->to, (AxisKind)k->axes.at[a].kind, size, planned);
        size = kidx_const(x->to, 1);
        planned = 1;
    }
}

/* The sizes of the graph's matrix product, of the axes before any were merged. */
static void copy_product(Lower *x, const KMap *map)
{
    const Kernel *k = x->d->k;
    uint32_t rows = x->d->n_x - 2;
    IRef *to = x->to->product;
    to[0] = kidx_const(x->to, 1);
    for (uint32_t a = 0; a < rows; a++)
        to[0] = kidx_mul(x->to, to[0], kidx_copy(x->to, k, k->axes.at[a].size, map));
    for (uint32_t i = 0; i < 2; i++)
        to[1 + i] = kidx_copy(x->to, k, k->axes.at[rows + i].size, map);
}

/* Of an index of edges: the axes that become one with its innermost one and lie inside it are that many points. */
static IRef edge_scale(Lower *x, const KMap *map, uint32_t axis)
{
    IRef points = kidx_const(x->to, 1);
    while (map->axis[axis] == UINT32_MAX)
        points = kidx_mul(x->to, points, kidx_copy(x->to, x->d->k, x->d->k->axes.at[++axis].size, map));
    return points;
}

/* A comparison with an edge, of the axis that is left. */
static VRef copy_edge(Lower *x, const KMap *map, KInst inst)
{
    Kernel *k = x->d->k;
    uint32_t axis = x->edge[inst.a], last = axis;
    IRef scale = edge_scale(x, map, axis), coef, rest, bound;
    const KInst *right = &k->inst.at[inst.b];
    while (map->axis[last] == UINT32_MAX)
        last++;
    kidx_linear(k, k->inst.at[inst.a].idx, axis, &coef, &rest);
    bound = right->kind == KI_CONST ? kidx_const(x->to, (int64_t)right->imm) : kidx_copy(x->to, k, right->idx, map);
    inst.b = kernel_index(x->to, kidx_mul(x->to, bound, scale));
    rest = kidx_mul(x->to, kidx_copy(x->to, k, rest, map), scale);
    inst.a = kernel_index(x->to, kidx_add(x->to, kidx_axis(x->to, map->axis[last]), rest));
    return kernel_inst(x->to, inst);
}

/* Stores come last: an output may be the storage of an input (jit/buffers.c). */
static void copy_insts(Lower *x, const KMap *map, const bool *live, VRef *value, bool stores)
{
    const Kernel *k = x->d->k;
    for (VRef v = 0; v < k->inst.n; v++) {
        bool store = k->inst.at[v].kind == KI_STORE || k->inst.at[v].kind == KI_SCATTER;
        if (!live[v] || store != stores)
            continue;
        KInst inst = k->inst.at[v];
        if (at_edge(k, &inst, x->edge)) {
            value[v] = copy_edge(x, map, inst);
            continue;
        }
        inst.a = inst.a == VREF_NONE ? VREF_NONE : value[inst.a];
        inst.b = inst.b == VREF_NONE ? VREF_NONE : value[inst.b];
        inst.c = inst.c == VREF_NONE ? VREF_NONE : value[inst.c];
        inst.pred = inst.pred == VREF_NONE ? VREF_NONE : value[inst.pred];
        if (inst.kind == KI_SCALAR || inst.kind == KI_LOAD || inst.kind == KI_STORE || inst.kind == KI_SCATTER || inst.kind == KI_BOUND)
            inst.arg = map_arg(x, inst.arg);
        if (inst.idx != IREF_NONE)
            inst.idx = kidx_copy(x->to, k, inst.idx, map);
        value[v] = kernel_inst(x->to, inst);
        note_same(&x->to->inst.at[value[v]], inst.of);
    }
}

/* Bytes moved: each buffer read and each written once; rows of a band stay in the caches. */
Dim step_bytes(Fuser *f, const PlanStep *step)
{
    Graph *g = f->g;
    Dim sum = dim_const(g, 0);
    for (uint32_t i = 0; i < step->args.n; i++) {
        if (step->args.at[i].kind != BIND_BUFFER)
            continue;
        const PlanBuffer *buffer = &f->plan->buffers.at[step->args.at[i].buffer];
        if (buffer->kind == BUFFER_BAND)
            continue;
        sum = dim_add(g, sum, dim_mul(g, buffer->numel, dim_const(g, (int64_t)dtype_bytes((DType)buffer->dtype))));
    }
    return sum;
}

/* What a size of the kernel is here, for which nothing is guarded. */
static int64_t size_here(const Lower *x, IRef i)
{
    const Idx *size = &x->to->idx.at[i];
    switch ((IdxKind)size->kind) {
    case IX_CONST: return size->value;
    case IX_ARG: return dim_hint(x->f->g, x->step->args.at[size->a].size);
    case IX_ADD: return (int64_t)((uint64_t)size_here(x, size->a) + (uint64_t)size_here(x, size->b));
    case IX_MUL: return (int64_t)((uint64_t)size_here(x, size->a) * (uint64_t)size_here(x, size->b));
    case IX_DIV:
    case IX_MOD:
    case IX_AXIS:
    case IX_VALUE: break;
    }
    return 0;
}

static void mark_sizes(const Kernel *k, IRef i, bool *marked)
{
    const Idx *x = &k->idx.at[i];
    if (x->kind == IX_ARG)
        marked[x->a] = true;
    if (x->kind == IX_ADD || x->kind == IX_MUL) {
        mark_sizes(k, x->a, marked);
        mark_sizes(k, x->b, marked);
    }
}

/* Points of a short row, or columns that are few, along this axis; 0: it is neither. */
static int64_t row_most(const Kernel *k, uint32_t axis)
{
    enum { FEW_COLUMNS = 32 };
    bool row = k->axes.at[axis].kind == AXIS_R || axis + 1 == k->axes.n;
    return row ? EXPECTED_MOST : k->axes.at[axis + 1].kind == AXIS_R ? FEW_COLUMNS : 0;
}

/* Where this size is more than that, it is so in all calls of the program: short rows are to meet another one. That is another compile, which a
 * large program is not worth; one made at short rows is as good as any for long ones. */
static void keep_longer(const Lower *x, IRef size, int64_t most)
{
    enum { SMALL_PROGRAM = 16 }; /* nodes */
    const Idx *i = &x->to->idx.at[size];
    if (i->kind == IX_ARG && x->f->n <= SMALL_PROGRAM)
        (void)spec_range(x->f->g, x->step->args.at[i->a].size, most + 1, INT64_MAX, "short rows");
}

/*
 * Short rows, or columns that are few, of a number that may vary: whatever size is small here, but that of the outermost axis, is expected
 * again (jit/expected.c). That is code twice, so there must be points enough for it to matter. Rows of four that a sum, a maximum or a
 * concatenation takes one by one have made it five times as slow, rows of 128 bytes a copy a third slower.
 */
static void expect_sizes(const Lower *x)
{
    enum { POINTS = 1 << 14 };
    Kernel *k = x->to;
    double points = 1;
    bool any = false, *inner = ARENA_ARRAY(x->f->scratch, bool, k->args.n + 1), *outer = ARENA_ARRAY(x->f->scratch, bool, k->args.n + 1);
    for (uint32_t a = 0; a < k->axes.n; a++) {
        const KAxis *axis = &k->axes.at[a];
        int64_t size = size_here(x, axis->size), most = row_most(k, a);
        points *= (double)size;
        any |= axis->bucket && size <= most;
        mark_sizes(k, axis->size, a > 0 || size <= most ? inner : outer);
    }
    if (points < POINTS || k->form != FORM_LOOPS)
        return;
    for (uint32_t a = 0; a < k->axes.n; a++) {
        const int64_t most = row_most(k, a);
        if (k->axes.at[a].bucket && most && size_here(x, k->axes.at[a].size) > most)
            keep_longer(x, k->axes.at[a].size, most);
    }
    for (uint32_t a = 0; a < k->args.n && any; a++) {
        KArg *arg = &k->args.at[a];
        bool fits = arg->kind == ARG_SIZE && (inner[a] || !outer[a]);
        int64_t size = fits ? dim_hint(x->f->g, x->step->args.at[a].size) : INT64_MAX;
        arg->expects = size >= (arg->natural ? 0 : -EXPECTED_MOST) && size <= EXPECTED_MOST;
        arg->expected = arg->expects ? (int16_t)size : 0;
    }
}

Dim size_in_graph(Fuser *f, const Kernel *k, const PlanStep *step, IRef i)
{
    const Idx *size = &k->idx.at[i];
    switch ((IdxKind)size->kind) {
    case IX_CONST: return dim_const(f->g, size->value);
    case IX_ARG: return step->args.at[size->a].size;
    case IX_ADD: return dim_add(f->g, size_in_graph(f, k, step, size->a), size_in_graph(f, k, step, size->b));
    case IX_MUL: return dim_mul(f->g, size_in_graph(f, k, step, size->a), size_in_graph(f, k, step, size->b));
    case IX_DIV:
    case IX_MOD:
    case IX_AXIS:
    case IX_VALUE: break;
    }
    return DIM_NONE;
}

/*
 * A product of a number of rows that may vary with a matrix that counts: few of them read it where it lies, more pack it, and the wrong way
 * takes four times as long. So there are programs for few, twice as many, and more of them, as a model has calls of a token and of a text.
 */
static void few_or_more_rows(const Lower *x)
{
    enum {
        ELEMENTS = 1 << 15,
        FEWEST_ROWS = 2,
        FEW_ROWS = 3
    }; /* strips_elements, and log2 of narrow_rows and thin_rows of jit/limits.def */
    Kernel *k = x->to;
    uint32_t n_x = 0;
    while (n_x < k->axes.n && k->axes.at[n_x].kind == AXIS_X)
        n_x++;
    if (n_x < 2 || n_x + 1 != k->axes.n || !k->axes.at[n_x - 2].bucket ||
        size_here(x, k->axes.at[n_x - 1].size) * size_here(x, k->axes.at[n_x].size) < ELEMENTS)
        return;
    KAxis *rows = &k->axes.at[n_x - 2];
    const Dim size = size_in_graph(x->f, k, x->step, rows->size);
    const int64_t here = size_here(x, rows->size);
    const uint8_t bucket = here <= 1 << FEWEST_ROWS ? FEWEST_ROWS : here <= 1 << FEW_ROWS ? FEW_ROWS : 0;
    const int64_t least = bucket == FEWEST_ROWS ? 0 : 1 + (INT64_C(1) << (bucket ? FEWEST_ROWS : FEW_ROWS));
    const int64_t most = bucket ? INT64_C(1) << bucket : INT64_MAX;
    if (size != DIM_NONE && spec_range(x->f->g, size, least, most, "rows of a product") && bucket)
        rows->bucket = bucket;
}

void lower(Fuser *f, Draft *d, PlanStep *step)
{
    Kernel *k = d->k;
    Lower x = {.f = f, .d = d, .step = step, .to = kernel_new(f->g->arena)};
    x.arg = ARENA_ARRAY(f->scratch, uint32_t, k->args.n + 1);
    memset(x.arg, 0xff, sizeof *x.arg * (k->args.n + 1));
    x.to->form = k->form;
    uint32_t axis[MAX_SPACE];
    bool *live = live_insts(k, NULL);
    drop_idle_row(d, live);
    const uint8_t *edge = x.edge = find_edges(f, d, live);
    live = live_insts(k, edge);
    merge_axes(d, live, edge, axis);
    VRef *value = ARENA_ARRAY(f->scratch, VRef, k->inst.n + 1);
    KMap map = {.size = map_size, .user = &x, .axis = axis, .value = value};
    copy_axes(&x, &map);
    if (k->form == FORM_CONTRACT)
        copy_product(&x, &map);
    copy_insts(&x, &map, live, value, false);
    copy_insts(&x, &map, live, value, true);
    if (target_kind(&f->options->target)->nests)
        x.to = kernel_words(x.to, f->scratch);
    step->kernel = x.to;
    step->what = kernel_name(x.to, f->g->arena);
    if (k->form == FORM_CONTRACT && target_kind(&f->options->target)->packs)
        few_or_more_rows(&x);
    kernel_set_orders(x.to, target_order(f->options), options_math(f->options));
    schedule_kernel(x.to, &f->options->target);
    if (target_kind(&f->options->target)->nests)
        expect_sizes(&x);
    if (x.to->split) {
        VEC_PUSH(x.to->arena, x.to->args, (KArg){.kind = ARG_SCRATCH});
        VEC_PUSH(f->g->arena, step->args, (PlanArg){.kind = BIND_SHARED, .size = DIM_NONE});
    }
    step->bytes = step_bytes(f, step);
}
