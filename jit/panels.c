/* Panels that are made before a product: which products read such, and the kernel that makes them. How they lie: jit/panel_layout.c. */
#include "jit/panels.h"
#include "ir/base/log.h"
#include "jit/dot_facts.h"
#include "jit/llvm/emit.h"
#include "jit/step_before.h"
#include "jit/target.h"

#include <string.h>

/* ---- what makes them ---- */

/* An operand of a step's product. */
typedef struct Operand {
    PlanStep *step;
    VRef load;
    VRef cast;   /* what the product multiplies by, where that is a cast of what is loaded, and panels have that; else VREF_NONE */
    DType dtype; /* of the panels' elements */
    PanelLayout layout;
    uint32_t buffer;   /* of the plan */
    int64_t rows;      /* of the product, and */
    int64_t task_rows; /* for how many it is packed anew */
} Operand;

typedef struct Keeping Keeping;
struct Keeping {
    Graph *g;
    const JitOptions *options;
    Plan *plan;
    Str *told;
    bool (*may)(const Keeping *x, const Operand *o); /* is it one that shall be in panels? */
    bool casts;                                      /* may panels have what it is cast to? */
    void (*keep)(Keeping *x, Operand *o);
    /* constants */
    uint32_t n_inputs;
    Constants *graphs;
    Plans *plans;
    VEC(uint32_t) inputs;    /* of each of the plans behind those that were there: of which input it makes panels, and */
    VEC(const char *) texts; /* by which kernel */
    /* bands; a product by itself is one, whose rows are the operand's */
    const PlanBand *band;
    VEC(PlanStep) before; /* what makes its panels */
};

/* place < size, where there are places beyond: VREF_NONE elsewhere. */
static VRef within(Kernel *k, IRef place, int64_t size, int64_t places)
{
    if (size == places)
        return VREF_NONE;
    KInst below = KINST(.kind = KI_OP, .op = OP_LT, .dtype = DT_BOOL);
    below.a = kernel_index(k, place);
    below.b = kernel_inst(k, KINST(.kind = KI_CONST, .dtype = DT_I64, .imm = (uint64_t)size));
    return kernel_inst(k, below);
}

static VRef both(Kernel *k, VRef p, VRef q)
{
    if (p == VREF_NONE || q == VREF_NONE)
        return p == VREF_NONE ? q : p;
    KInst and = KINST(.kind = KI_OP, .op = OP_AND, .dtype = DT_BOOL);
    and.a = p;
    and.b = q;
    return kernel_inst(k, and);
}

/* The kernel of one point for each element of the panels. */
static void make_panels(const Keeping *x, const Operand *o, PlanStep *step)
{
    const Kernel *of = o->step->kernel;
    const PanelLayout *l = &o->layout;
    const KInst *load = &of->inst.at[o->load];
    const uint32_t last = of->axes.n - 1;
    StepBefore before = step_before(x->g, o->step, step, (DType)load->dtype, o->dtype);
    Kernel *k = step->kernel;
    IRef place[KERNEL_AXES] = {0}, to = kidx_const(k, 0);
    int64_t size, n = 0, steps = 0;
    for (uint32_t a = 0; a < last; a++)
        if (l->axes >> a & 1) {
            (void)kidx_is_const(of, of->axes.at[a].size, &size);
            place[a] = kidx_axis(k, kernel_add_axis(k, AXIS_X, kidx_const(k, size), size));
            to = kidx_add(k, to, kidx_mul(k, place[a], kidx_const(k, l->stride[a])));
        }
    const int64_t inner[] = {l->panels, l->steps, l->width, l->each};
    /* Along what is contiguous: rows a power of two apart share a few sets of the caches, which keep none until the next panel reads the rest of
     * its line. (Cascade Lake, panels of 2048 x 2048 i8 4.0 -> 2.1 ms, f32 10 -> 6.) */
    const bool along = index_walk(of, load->idx, last) == INDEX_STEPS;
    const int order[] = {along ? 0 : 1, along ? 1 : 0, 2, 3};
    IRef at[4];
    for (int loop = 0; loop < 4; loop++) {
        const int i = order[loop];
        at[i] = inner[i] > 1 ? kidx_axis(k, kernel_add_axis(k, AXIS_X, kidx_const(k, inner[i]), inner[i])) : kidx_const(k, 0);
    }
    IRef in = at[0];
    for (int i = 1; i < 4; i++)
        in = kidx_add(k, kidx_mul(k, in, kidx_const(k, inner[i])), at[i]);
    to = kidx_add(k, to, in);
    place[l->lane] = kidx_add(k, kidx_mul(k, at[0], kidx_const(k, l->width)), at[2]);
    place[last] = kidx_add(k, kidx_mul(k, at[1], kidx_const(k, l->each)), at[3]);
    (void)kidx_is_const(of, of->axes.at[l->lane].size, &n);
    (void)kidx_is_const(of, of->axes.at[last].size, &steps);
    VRef there = both(k, within(k, place[l->lane], n, l->panels * l->width), within(k, place[last], steps, l->steps * l->each));
    KInst read = KINST(.kind = KI_LOAD, .dtype = load->dtype);
    read.pred = there;
    read.idx = kidx_copy(k, of, load->idx, &(KMap){.size = step_before_size, .user = &before, .place = place});
    KInst store = KINST(.kind = KI_STORE, .dtype = (uint8_t)o->dtype, .arg = 1);
    store.idx = to;
    store.a = kernel_inst(k, read);
    if (o->cast != VREF_NONE) {
        KInst cast = KINST(.kind = KI_OP, .op = OP_CAST, .dtype = (uint8_t)o->dtype);
        cast.a = store.a;
        store.a = kernel_inst(k, cast);
    }
    kernel_inst(k, store);
    step->kernel = kernel_words(k, x->g->arena); /* of a product of bytes by fours */
    schedule_kernel(step->kernel, &x->options->target);
}

/* ---- which ---- */

static uint32_t readers(const Plan *plan, uint32_t buffer)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < plan->steps.n; s++)
        for (uint32_t a = 0; a < plan->steps.at[s].args.n; a++)
            n += plan->steps.at[s].args.at[a].kind == BIND_BUFFER && plan->steps.at[s].args.at[a].buffer == buffer;
    for (uint32_t k = 0; k < plan->outputs.n; k++)
        n += plan->outputs.at[k] == buffer;
    return n;
}

/* Does anything lie within the buffer that the plan's result is in? */
static bool is_bucket(const Plan *plan)
{
    bool bucket = false;
    for (uint32_t b = 0; b < plan->buffers.n; b++)
        bucket |= plan->buffers.at[b].within == plan->outputs.at[0];
    return bucket || plan->buffers.at[plan->outputs.at[0]].kind != BUFFER_OUTPUT;
}

/* A constant that nobody reads in another form? */
static bool may_keep_constant(const Keeping *x, const Operand *o)
{
    const PlanBuffer *b = &x->plan->buffers.at[o->buffer];
    if (b->kind != BUFFER_INPUT || !graph_node(x->g, x->g->inputs.at[b->index])->constant)
        return false;
    return b->index < x->n_inputs || (readers(x->plan, o->buffer) == 1 && !is_bucket(&x->plans->at[b->index - x->n_inputs]));
}

/*
 * What many a band of rows, or many tasks of a product, multiply by, and is there before them. A kernel more costs some microseconds.
 * (Cascade Lake, AVX-512, one thread, f32, 512 and 1,024 cubed, tasks that pack for themselves: 15 % of the time.)
 */
static bool may_pack_before(const Keeping *x, const Operand *o)
{
    enum { TIMES = 4, BYTES = 1 << 16 };
    const PlanBuffer *b = &x->plan->buffers.at[o->buffer];
    if (b->kind == BUFFER_BAND || (b->kind == BUFFER_INPUT && graph_node(x->g, x->g->inputs.at[b->index])->constant))
        return false;
    for (uint32_t s = x->band->first; s < x->band->first + x->band->n; s++) {
        const PlanStep *step = &x->plan->steps.at[s];
        for (uint32_t a = 0; a < step->args.n; a++)
            if (step->args.at[a].kind == BIND_BUFFER && step->args.at[a].buffer == o->buffer && step->kernel->args.at[a].written)
                return false;
    }
    const int64_t rows = x->band->n > 1 ? dim_hint(x->g, x->band->rows) : o->rows;
    return rows > (TIMES - 1) * o->task_rows && o->layout.elements * (int64_t)dtype_bytes(o->dtype) >= BYTES;
}

/* Does nobody else read what is loaded? */
static bool read_by(const Kernel *k, VRef load, VRef by)
{
    bool alone = true;
    for (VRef v = load + 1; v < k->inst.n; v++) {
        VRef in[4];
        uint32_t n = kernel_operands(&k->inst.at[v], in);
        for (uint32_t i = 0; i < n; i++)
            alone &= in[i] != load || v == by;
    }
    return alone;
}

/* Can it be in panels, and does the product pack it to such of this width? */
static bool may_be_panels(const Keeping *x, Operand *o, uint32_t lane, int64_t width, int64_t each)
{
    const Kernel *k = o->step->kernel;
    const KInst *load = &k->inst.at[o->load];
    if (!may_be_made_before(k, o->load) || panel_product(k, o->cast == VREF_NONE ? o->load : o->cast) == VREF_NONE ||
        (o->cast != VREF_NONE && !read_by(k, o->load, o->cast)))
        return false;
    o->buffer = o->step->args.at[load->arg].buffer;
    return panel_layout(k, k->inst_axes.at[o->load], lane, width, each, &o->layout) && x->may(x, o);
}

/* ---- keeping ---- */

static void tell(const Keeping *x, const Operand *o, const char *why)
{
    const PlanBuffer *b = &x->plan->buffers.at[o->buffer];
    const char *line = arena_printf(x->g->arena, "%%%u: %s the panels of %lld columns that %s reads", b->node, why,
                                    (long long)o->layout.width, o->step->what);
    if (log_on(LOG_FUSION))
        log_line(LOG_FUSION, "%s", line);
    if (x->told)
        str_printf(x->told, "%s\n", line);
}

/* An input more of the graph, behind the others. */
static uint32_t add_input(const Keeping *x, const Node *like)
{
    Node input = {.op = OP_INPUT, .dtype = like->dtype, .loc = like->loc, .constant = true};
    input.origin = like->origin;
    input.attr.n = x->g->inputs.n;
    VEC_PUSH(x->g->arena, x->g->inputs, graph_push_node(x->g, &input));
    return (uint32_t)input.attr.n;
}

static PlanBuffer panels_buffer(const Keeping *x, const PlanBuffer *of, BufferKind kind, const Operand *o)
{
    return buffer_before(of, kind, o->dtype, dim_const(x->g, o->layout.elements));
}

/* A plan of its own that makes panels of an input, or the one that does so already: which of `plans` it is. */
static uint32_t plan_of(Keeping *x, const Operand *o, PlanStep *step)
{
    const PlanBuffer *b = &x->plan->buffers.at[o->buffer];
    const uint32_t before = x->plans->n - x->inputs.n;
    Str text;
    str_init(&text, x->g->arena);
    kernel_print(step->kernel, &text);
    for (uint32_t i = 0; i < x->inputs.n; i++)
        if (x->inputs.at[i] == b->index && strcmp(x->texts.at[i], text.text) == 0)
            return before + i;
    Plan plan = {0};
    PlanBuffer in = *b, out = panels_buffer(x, b, BUFFER_OUTPUT, o);
    in.first_step = in.last_step = 0;
    VEC_PUSH(x->g->arena, plan.buffers, in);
    VEC_PUSH(x->g->arena, plan.buffers, out);
    step->args.at[0].buffer = 0;
    step->args.at[1].buffer = 1;
    VEC_PUSH(x->g->arena, plan.steps, *step);
    VEC_PUSH(x->g->arena, plan.outputs, 1);
    VEC_PUSH(x->g->arena, *x->plans, plan);
    VEC_PUSH(x->g->arena, *x->graphs, x->g);
    VEC_PUSH(x->g->arena, x->inputs, b->index);
    VEC_PUSH(x->g->arena, x->texts, text.text);
    return x->plans->n - 1;
}

/* The plan that made the value goes on to its panels. */
static void go_on(const Keeping *x, Plan *plan, const Operand *o, PlanStep *step)
{
    const uint32_t value = plan->outputs.at[0];
    PlanBuffer out = panels_buffer(x, &plan->buffers.at[value], BUFFER_OUTPUT, o);
    out.first_step = out.last_step = plan->buffers.at[value].last_step = plan->steps.n;
    plan->buffers.at[value].kind = BUFFER_TEMP;
    plan->buffers.at[value].slot = plan->n_slots++;
    plan->buffers.at[value].alias_input = NO_BUFFER;
    step->args.at[0].buffer = value;
    step->args.at[1].buffer = plan->outputs.at[0] = plan->buffers.n;
    VEC_PUSH(x->g->arena, plan->buffers, out);
    VEC_PUSH(x->g->arena, plan->steps, *step);
}

/* What makes the panels; its buffers are named later. */
static PlanStep step_of(const Keeping *x, const Operand *o)
{
    const PlanBuffer *b = &x->plan->buffers.at[o->buffer];
    PlanStep step = {.kind = STEP_KERNEL, .what = "panels", .node = b->node};
    make_panels(x, o, &step);
    step.bytes = dim_const(x->g, o->layout.elements * (int64_t)(dtype_bytes((DType)b->dtype) + dtype_bytes(o->dtype)));
    return step;
}

/* The product reads these from now on. Nothing is interned in its kernel behind this, which changes its instructions. */
static void read_panels(const Keeping *x, const Operand *o, PlanBuffer panels)
{
    Kernel *k = o->step->kernel;
    KInst *load = &k->inst.at[o->load];
    o->step->args.at[load->arg].buffer = x->plan->buffers.n;
    VEC_PUSH(x->g->arena, x->plan->buffers, panels);
    k->args.at[load->arg].panel = (uint16_t)o->layout.width;
    k->args.at[load->arg].panel_axis = (uint8_t)o->layout.lane;
    k->args.at[load->arg].dtype = load->dtype = (uint8_t)o->dtype;
    load->idx = panel_index(k, &o->layout);
    if (o->cast != VREF_NONE)
        kernel_drop(k, o->cast, o->load);
}

static void keep_constant(Keeping *x, Operand *o)
{
    const PlanBuffer b = x->plan->buffers.at[o->buffer];
    PlanStep step = step_of(x, o);
    tell(x, o, "constant, so it is kept in");
    PlanBuffer panels = panels_buffer(x, &b, BUFFER_INPUT, o);
    if (b.index < x->n_inputs) {
        const uint32_t had = x->plans->n, made = plan_of(x, o, &step);
        panels.index = x->n_inputs + made;
        if (x->plans->n > had)
            (void)add_input(x, graph_node(x->g, x->g->inputs.at[b.index]));
    } else {
        go_on(x, &x->plans->at[b.index - x->n_inputs], o, &step);
    }
    panels.node = x->g->inputs.at[panels.index];
    read_panels(x, o, panels);
}

static void pack_before(Keeping *x, Operand *o)
{
    PlanStep step = step_of(x, o);
    tell(x, o, "read by each band or task, so it is packed before them to");
    const PlanBuffer panels = panels_buffer(x, &x->plan->buffers.at[o->buffer], BUFFER_TEMP, o);
    step.args.at[0].buffer = o->buffer;
    step.args.at[1].buffer = x->plan->buffers.n;
    VEC_PUSH(x->g->arena, x->before, step);
    read_panels(x, o, panels);
}

/* The lane operand of a product. Where it is cast to what a sum is, panels have that: a band would cast it again and again. */
static Operand operand_of(const Keeping *x, PlanStep *step, const DotFacts *dot)
{
    const Kernel *k = step->kernel;
    Operand o = {.step = step, .load = dot_uncast(k, dot->operand[LANE_SIDE]), .cast = VREF_NONE};
    const KInst *n = &k->inst.at[o.load];
    if (x->casts && n->kind == KI_OP && n->op == OP_CAST && n->dtype == dot->acc && dtype_is_float((DType)k->inst.at[n->a].dtype)) {
        o.cast = o.load;
        o.load = n->a;
    }
    o.dtype = (DType)n->dtype;
    return o;
}

static void keep_operands(Keeping *x, PlanStep *step)
{
    Schedule s;
    Arena *arena = x->g->arena;
    llvm_host_schedule(step->kernel, x->options, arena, &s, NULL);
    if (s.way != WAY_PACKED)
        return;
    KernelFacts f = kernel_facts(step->kernel, target_order(x->options), options_math(x->options), s.bits,
                                 target_multiplies_fours(x->options, s.bits), arena);
    f.schedule = &s;
    const DotFacts all = dot_scheduled(&f);
    if (all.sums_rows || all.axis[LANE_SIDE] == NO_AXIS)
        return;
    for (uint32_t i = 0; i < f.n_products; i++) {
        const DotFacts dot = dot_product(&f, &all, i);
        Operand o = operand_of(x, step, &dot);
        o.rows = dot.n[ROW_SIDE];
        o.task_rows = s.task_rows;
        if (dtype_bytes(o.dtype) * (size_t)dot.each == dtype_bytes(dot.acc) &&
            may_be_panels(x, &o, (uint32_t)dot.axis[LANE_SIDE], s.tile_width, dot.each))
            x->keep(x, &o);
    }
}

static bool is_product(const PlanStep *step) { return step->kind == STEP_KERNEL && step->kernel->form == FORM_CONTRACT; }

void panels_keep(Graph *g, const JitOptions *options, uint32_t n_inputs, Plan *plan, Constants *graphs, Plans *plans, Str *told)
{
    Keeping x = {.g = g, .options = options, .plan = plan, .told = told, .may = may_keep_constant, .keep = keep_constant};
    x.n_inputs = n_inputs;
    x.graphs = graphs;
    x.plans = plans;
    bool any = false;
    for (uint32_t i = 0; i < g->inputs.n; i++)
        any |= graph_node(g, g->inputs.at[i])->constant;
    for (uint32_t s = 0; s < plan->steps.n && any && target_kind(&options->target)->packs; s++)
        if (is_product(&plan->steps.at[s]))
            keep_operands(&x, &plan->steps.at[s]);
}

void panels_before_products(Graph *g, const JitOptions *options, Plan *plan, Str *told)
{
    uint32_t n;
    for (uint32_t s = 0; s < plan->steps.n && target_kind(&options->target)->packs; s += n) {
        PlanBand band = {.first = s, .n = 1};
        for (uint32_t b = 0; b < plan->bands.n; b++)
            if (plan->bands.at[b].first == s)
                band = plan->bands.at[b];
        Keeping x = {.g = g, .options = options, .plan = plan, .told = told, .may = may_pack_before, .casts = true, .keep = pack_before};
        x.band = &band;
        for (uint32_t i = 0; i < band.n; i++)
            if (is_product(&plan->steps.at[s + i]))
                keep_operands(&x, &plan->steps.at[s + i]);
        if (x.before.n)
            plan_put_before(plan, g->arena, s, x.before.at, x.before.n);
        n = band.n + x.before.n;
    }
}
