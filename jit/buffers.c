/*
 * Buffers of a plan: which are used, from which step to which, which may share memory, and which
 * outputs may take over the storage of an input that its owner gives up.
 *
 * Slots: temporaries whose lifetimes do not overlap share a slot; at run time a slot is as large as
 * the largest of its buffers at the sizes of that call, so any assignment is right and hints only
 * choose a tight one: in the order of their first steps, each takes the slot of a buffer that the
 * same step reads for the last time and only where it writes (in place), or else the free slot
 * whose size is nearest. How much larger that may be is tried out: what takes least memory stays.
 *
 * Buckets (jit/fuse/bucket.c): the kernel that makes an operand is given an address inside the bucket's slot, which is the bucket's and all
 * its operands' from the first step that touches one of them to the last. Nothing else may lie in their place.
 */
#include "jit/fuse/fuse.h"

#include "ir/base/log.h"
#include "ir/callee.h"

static const int64_t LARGEST = INT64_C(1) << 48; /* no memory has more, and sums of some do not overflow */

static int64_t buffer_bytes(const Fuser *f, const PlanBuffer *b)
{
    int64_t bytes;
    bool large = __builtin_mul_overflow(dim_hint(f->g, b->numel), (int64_t)dtype_bytes((DType)b->dtype), &bytes);
    return large || bytes > LARGEST ? LARGEST : bytes;
}

/* Steps that copy what lies where it is copied to go; bands are numbered by those before them. */
static void drop_placed(Plan *plan)
{
    uint32_t kept = 0;
    for (uint32_t s = 0, band = 0; s < plan->steps.n; s++) {
        for (; band < plan->bands.n && plan->bands.at[band].first == s; band++)
            plan->bands.at[band].first = kept;
        if (!plan->steps.at[s].placed)
            plan->steps.at[kept++] = plan->steps.at[s];
    }
    plan->steps.n = kept;
}

typedef struct Used {
    Fuser *f;
    uint32_t *to; /* the numbers that buffers have now; UINT32_MAX: nothing named it */
    VEC(PlanBuffer) kept;
} Used;

static uint32_t keep_buffer(Used *u, uint32_t old, uint32_t first)
{
    if (u->to[old] == UINT32_MAX) {
        u->to[old] = u->kept.n;
        VEC_PUSH(u->f->g->arena, u->kept, u->f->plan->buffers.at[old]);
        u->kept.at[u->kept.n - 1].first_step = first;
    }
    return u->to[old];
}

/* Step s names it, and with it the bucket that it lies in. */
static uint32_t use_buffer(Used *u, uint32_t old, uint32_t s)
{
    const uint32_t within = u->f->plan->buffers.at[old].within, bucket = within == NO_BUFFER ? NO_BUFFER : use_buffer(u, within, s),
                   now = keep_buffer(u, old, s);
    u->kept.at[now].within = bucket;
    u->kept.at[now].last_step = s;
    return now;
}

/* Keeps the buffers that a step or an output names, in the order of their first use, and their
 * first and last steps. */
static void used_buffers(Fuser *f)
{
    Plan *plan = f->plan;
    Used u = {.f = f, .to = ARENA_ARRAY(f->arena, uint32_t, plan->buffers.n + 1)};
    memset(u.to, 0xff, sizeof *u.to * (plan->buffers.n + 1));
    for (uint32_t s = 0; s < plan->steps.n; s++)
        for (uint32_t a = 0; a < plan->steps.at[s].args.n; a++) {
            PlanArg *arg = &plan->steps.at[s].args.at[a];
            if (arg->kind == BIND_BUFFER)
                arg->buffer = use_buffer(&u, arg->buffer, s);
        }
    for (uint32_t i = 0; i < plan->outputs.n; i++)
        plan->outputs.at[i] = keep_buffer(&u, plan->outputs.at[i], 0);
    plan->buffers.at = u.kept.at;
    plan->buffers.n = u.kept.n;
    plan->buffers.cap = u.kept.cap;
}

/* The values that a product multiplies, and what they are made of. */
static const bool *factors(Fuser *f, const Kernel *k)
{
    bool *factor = ARENA_ARRAY(f->arena, bool, k->inst.n + 1), through = false;
    for (IRef i = 0; i < k->idx.n; i++)
        through |= k->idx.at[i].kind == IX_VALUE; /* an index that is a value: it may be of a factor */
    for (VRef v = k->inst.n; k->form == FORM_CONTRACT && v-- > 0;) {
        VRef in[4];
        uint32_t n = factor[v] || inst_is_dot(&k->inst.at[v]) ? kernel_operands(&k->inst.at[v], in) : 0;
        for (uint32_t i = 0; i < n; i++)
            factor[in[i]] = true;
        factor[v] |= through;
    }
    return factor;
}

/* Is buffer argument `in` of the step read only at the element that `out` is stored to, before it
 * is? Stores stand at the end of the list, so within a stage they run after the loads; a later
 * stage could load again, so the store must be in the last. What is stored once for a line that
 * several tasks scan is stored by the first of them, while others may still load.
 * Of a product it is the epilogue that may: its tasks have each element's sum apart from the output until then. What they
 * multiply is read by other tasks, too. */
static bool reads_in_place(Fuser *f, const PlanStep *step, uint32_t in, uint32_t out)
{
    const Kernel *k = step->kernel;
    IRef stored = IREF_NONE;
    uint32_t stores = 0, stages, stage = 0, last = 0;
    bool scans = false, in_line = false;
    const InstInfo *info = kernel_analyse(k, f->arena, &stages);
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *x = &k->inst.at[v];
        if (x->kind == KI_SCATTER && x->arg == out)
            return false;
        if (info[v].r_level && info[v].stage > last)
            last = info[v].stage;
        scans |= inst_runs(x);
        if (x->kind == KI_STORE && x->arg == out) {
            stored = x->idx;
            stage = info[v].stage;
            in_line = info[v].r_level;
            stores++;
        }
    }
    if (stores != 1 || stage < last || (k->split && scans && !in_line))
        return false;
    const bool *factor = factors(f, k);
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *x = &k->inst.at[v];
        if (x->kind == KI_LOAD && x->arg == in && (x->idx != stored || x->pred != VREF_NONE || factor[v]))
            return false;
    }
    return true;
}

static bool may_be_in_place(const PlanStep *step)
{
    return step->kind == STEP_KERNEL && (step->kernel->form == FORM_LOOPS || step->kernel->form == FORM_CONTRACT);
}

/* May buffer `b`, made by its first step, lie where `old` lies, which that step reads for the last
 * time? */
static bool may_overwrite(Fuser *f, uint32_t b, uint32_t old)
{
    PlanBuffer *to = &f->plan->buffers.at[b], *from = &f->plan->buffers.at[old];
    PlanStep *step = &f->plan->steps.at[to->first_step];
    uint32_t in = UINT32_MAX, out = UINT32_MAX;
    if (to->within != NO_BUFFER || from->within != NO_BUFFER)
        return false;
    if (from->kind != to->kind || (step->band && to->kind != BUFFER_BAND)) /* other threads may be at an earlier step of the band */
        return false;
    if (from->last_step != to->first_step || from->dtype != to->dtype || !dim_same(f->g, from->numel, to->numel) || !may_be_in_place(step))
        return false;
    for (uint32_t a = 0; a < step->args.n; a++) {
        if (step->args.at[a].kind != BIND_BUFFER)
            continue;
        in = step->args.at[a].buffer == old ? a : in;
        out = step->args.at[a].buffer == b ? a : out;
    }
    if (in == UINT32_MAX || out == UINT32_MAX || step->kernel->args.at[in].written || !reads_in_place(f, step, in, out))
        return false;
    step->kernel->args.at[in].may_alias = step->kernel->args.at[out].may_alias = true;
    return true;
}

/* Of each buffer of a kind, the one that it lies where, in place; NO_BUFFER: none. */
static const uint32_t *find_overwritten(Fuser *f, BufferKind kind)
{
    const Plan *plan = f->plan;
    uint32_t *over = ARENA_ARRAY(f->arena, uint32_t, plan->buffers.n + 1);
    bool *taken = ARENA_ARRAY(f->arena, bool, plan->buffers.n + 1);
    for (uint32_t i = 0; i < plan->buffers.n; i++) {
        const PlanBuffer *b = &plan->buffers.at[i];
        const PlanStep *step = b->kind == kind ? &plan->steps.at[b->first_step] : NULL;
        over[i] = NO_BUFFER;
        for (uint32_t a = 0; step && a < step->args.n && over[i] == NO_BUFFER; a++) {
            uint32_t old = step->args.at[a].kind == BIND_BUFFER ? step->args.at[a].buffer : i;
            if (old == i || taken[old] || !may_overwrite(f, i, old))
                continue;
            over[i] = old;
            taken[old] = true;
        }
    }
    return over;
}

typedef struct Slot {
    int64_t bytes;
    uint32_t busy; /* until which step */
} Slot;

typedef struct Slots {
    uint32_t n;
    int64_t bytes;
    uint32_t *of; /* each buffer's */
} Slots;

/* A free slot is taken by what is smaller by a factor of `most` at most: what is small and lives long keeps no large one from others. */
static Slots try_slots(Fuser *f, BufferKind kind, const uint32_t *over, int64_t most)
{
    const Plan *plan = f->plan;
    VEC(Slot) slots = {0};
    Slots all = {.of = ARENA_ARRAY(f->arena, uint32_t, plan->buffers.n + 1)};
    for (uint32_t i = 0; i < plan->buffers.n; i++) { /* in the order of their first steps, as used_buffers left them */
        const PlanBuffer *b = &plan->buffers.at[i];
        int64_t want = buffer_bytes(f, b), best_gap = 0;
        if (b->kind != kind || b->within != NO_BUFFER)
            continue;
        uint32_t best = over[i] == NO_BUFFER ? NO_SLOT : all.of[over[i]];
        for (uint32_t s = 0; s < slots.n && over[i] == NO_BUFFER; s++) {
            const int64_t has = slots.at[s].bytes;
            if (slots.at[s].busy >= b->first_step || has / most > want)
                continue;
            int64_t gap = has > want ? has - want : 2 * (want - has);
            if (best == NO_SLOT || gap < best_gap) {
                best = s;
                best_gap = gap;
            }
        }
        if (best == NO_SLOT) {
            best = slots.n;
            VEC_PUSH(f->arena, slots, (Slot){.bytes = 0});
        }
        Slot *slot = &slots.at[best];
        slot->bytes = slot->bytes > want ? slot->bytes : want;
        slot->busy = b->last_step;
        all.of[i] = best;
    }
    all.n = slots.n;
    for (uint32_t s = 0; s < slots.n; s++)
        all.bytes += slots.at[s].bytes;
    return all;
}

/* Gives the buffers of one kind, TEMP or BAND, the slots that take least; how many those are, and their bytes. */
static uint32_t assign_slots(Fuser *f, BufferKind kind, int64_t *bytes)
{
    static const int64_t most[] = {INT64_MAX, 8, 2, 1};
    const uint32_t *over = find_overwritten(f, kind);
    Slots best = try_slots(f, kind, over, most[0]);
    for (size_t k = 1; k < sizeof most / sizeof *most; k++) {
        Slots other = try_slots(f, kind, over, most[k]);
        best = other.bytes < best.bytes ? other : best;
    }
    for (uint32_t i = 0; i < f->plan->buffers.n; i++)
        if (f->plan->buffers.at[i].kind == kind)
            f->plan->buffers.at[i].slot = best.of[f->plan->buffers.at[i].within == NO_BUFFER ? i : f->plan->buffers.at[i].within];
    *bytes += best.bytes;
    return best.n;
}

static void stretch(PlanBuffer *b, uint32_t first, uint32_t last)
{
    b->first_step = b->first_step > first ? first : b->first_step;
    b->last_step = b->last_step < last ? last : b->last_step;
}

/* What a step of a band touches is there from its first step to its last: different rows are at different steps. So no memory in it is taken
 * over by what is written in it, but for the rows. */
static void stretch_bands(Plan *plan)
{
    for (uint32_t s = 0; s < plan->steps.n; s++)
        for (uint32_t a = 0; plan->steps.at[s].band && a < plan->steps.at[s].args.n; a++) {
            const PlanBand *band = &plan->bands.at[plan->steps.at[s].band - 1];
            if (plan->steps.at[s].args.at[a].kind != BIND_BUFFER)
                continue;
            PlanBuffer *b = &plan->buffers.at[plan->steps.at[s].args.at[a].buffer];
            if (b->kind == BUFFER_BAND)
                continue;
            stretch(b, band->first, band->first + band->n - 1);
            if (b->within != NO_BUFFER)
                stretch(&plan->buffers.at[b->within], band->first, band->first + band->n - 1);
        }
}

static bool touches(const PlanStep *step, const uint32_t buffer[2])
{
    for (uint32_t a = 0; a < step->args.n; a++)
        if (step->args.at[a].kind == BIND_BUFFER && (step->args.at[a].buffer == buffer[0] || step->args.at[a].buffer == buffer[1]))
            return true;
    return false;
}

static bool is_collective(const Fuser *f, const PlanStep *step)
{
    return step->kind == STEP_CALL && graph_node(f->g, step->node)->callee->ordered;
}

/* A collective may be in the air until a step needs it, or FLIGHTS more began (runtime/evaluation.h): what it reads and writes is
 * nobody else's until then. */
static void stretch_flights(Fuser *f)
{
    enum { FLIGHTS = 4 };
    Plan *plan = f->plan;
    for (uint32_t s = 0; s < plan->steps.n; s++) {
        const PlanStep *call = &plan->steps.at[s];
        if (!is_collective(f, call))
            continue;
        const uint32_t at[2] = {0,
                                graph_node(f->g, call->node)->n_in}; /* without the number that keeps the order, which is there at once */
        uint32_t buffer[2], lands = s + 1, others = 0;
        for (int k = 0; k < 2; k++)
            buffer[k] = call->args.at[at[k]].kind == BIND_BUFFER ? call->args.at[at[k]].buffer : NO_BUFFER;
        for (; lands < plan->steps.n && !touches(&plan->steps.at[lands], buffer); lands++)
            if (plan->steps.at[lands].kind != STEP_KERNEL && (!is_collective(f, &plan->steps.at[lands]) || ++others == FLIGHTS))
                break;
        for (int k = 0; k < 2; k++)
            if (buffer[k] != NO_BUFFER && plan->buffers.at[buffer[k]].last_step < lands - 1) /* that step begins when it is done */
                plan->buffers.at[buffer[k]].last_step = lands - 1;
    }
}

static void place_buffers(Fuser *f)
{
    Plan *plan = f->plan;
    int64_t in_bands = 0;
    plan->peak_with_reuse = plan->peak_without = 0;
    for (uint32_t i = 0; i < plan->buffers.n; i++) {
        const PlanBuffer *b = &plan->buffers.at[i];
        plan->peak_without += b->kind == BUFFER_INPUT || b->within != NO_BUFFER ? 0 : buffer_bytes(f, b);
        plan->peak_with_reuse += b->kind == BUFFER_OUTPUT ? buffer_bytes(f, b) : 0;
    }
    stretch_bands(plan);
    stretch_flights(f);
    plan->n_slots = assign_slots(f, BUFFER_TEMP, &plan->peak_with_reuse);
    plan->n_band_slots = assign_slots(f, BUFFER_BAND, &in_bands); /* a few rows of those, for each thread */
}

static bool is_graph_output_twice(const Plan *plan, uint32_t buffer)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->outputs.n; i++)
        n += plan->outputs.at[i] == buffer;
    return n > 1;
}

/* The steps from here on cannot find an index out of bounds: 0 where none can. */
static uint32_t behind_faults(const Plan *plan)
{
    uint32_t behind = 0;
    for (uint32_t s = 0; s < plan->steps.n; s++)
        for (uint32_t a = 0; a < plan->steps.at[s].args.n; a++)
            behind = plan->steps.at[s].args.at[a].kind == BIND_FAULT ? s + 1 : behind;
    return behind;
}

/* A CUDA device does not stop where a step found an index out of bounds, so the steps that overwrite look, and the loops that might have no end
 * for what stands there. */
static void stop_at_fault(Fuser *f, PlanStep *step)
{
    for (uint32_t a = 0; a < step->args.n; a++)
        if (step->args.at[a].kind == BIND_FAULT && step->kernel->args.at[a].stops)
            return;
    VEC_PUSH(step->kernel->arena, step->kernel->args, (KArg){.kind = ARG_FAULT, .stops = true});
    VEC_PUSH(f->g->arena, step->args, (PlanArg){.kind = BIND_FAULT, .size = DIM_NONE});
}

/* An output may take an input's storage when the step that writes it is the only one that writes
 * it, the last that reads the input, and reads it only where it writes. */
static void find_donations(Fuser *f)
{
    Plan *plan = f->plan;
    uint32_t behind = target_kind(&f->options->target)->goes_on_when_wrong ? behind_faults(plan) : 0;
    bool *taken = ARENA_ARRAY(f->arena, bool, plan->buffers.n + 1);
    for (uint32_t i = 0; i < plan->outputs.n; i++)
        taken[plan->outputs.at[i]] = true; /* an input that is itself an output stays */
    for (uint32_t s = 0; s < plan->steps.n; s++) {
        PlanStep *step = &plan->steps.at[s];
        if (!may_be_in_place(step))
            continue;
        for (uint32_t o = 0; o < step->args.n; o++) {
            if (step->args.at[o].kind != BIND_BUFFER || !step->kernel->args.at[o].written)
                continue;
            PlanBuffer *out = &plan->buffers.at[step->args.at[o].buffer];
            if (out->kind != BUFFER_OUTPUT || out->first_step != s || out->alias_input != NO_BUFFER ||
                is_graph_output_twice(plan, step->args.at[o].buffer))
                continue;
            for (uint32_t i = 0; i < step->args.n && out->alias_input == NO_BUFFER; i++) {
                if (step->args.at[i].kind != BIND_BUFFER)
                    continue;
                uint32_t index = step->args.at[i].buffer;
                PlanBuffer *in = &plan->buffers.at[index];
                bool fits = in->kind == BUFFER_INPUT && !taken[index] && in->last_step == s && in->dtype == out->dtype &&
                            !graph_node(f->g, in->node)->attr.flag && !graph_node(f->g, in->node)->constant &&
                            dim_same(f->g, in->numel, out->numel);
                if (!fits || !reads_in_place(f, step, i, o))
                    continue;
                out->alias_input = index;
                taken[index] = true;
                step->kernel->args.at[o].may_alias = step->kernel->args.at[i].may_alias = true;
                if (behind > 0 && s >= behind)
                    stop_at_fault(f, step);
            }
        }
    }
}

static void stop_loops(Fuser *f)
{
    bool may_fail = f->g->around; /* of a body: what is around it */
    for (uint32_t s = 0; s < f->plan->steps.n; s++) {
        PlanStep *step = &f->plan->steps.at[s];
        if (may_fail && step->kind == STEP_KERNEL && kernel_ending(step->kernel) != VREF_NONE)
            stop_at_fault(f, step);
        may_fail |= step->kind != STEP_KERNEL;
        for (uint32_t a = 0; a < step->args.n; a++)
            may_fail |= step->args.at[a].kind == BIND_FAULT;
    }
}

void plan_buffers(Fuser *f)
{
    drop_placed(f->plan);
    used_buffers(f);
    place_buffers(f);
    if (target_kind(&f->options->target)->goes_on_when_wrong)
        stop_loops(f);
    find_donations(f);
    if (log_on(LOG_MEMORY))
        log_line(LOG_MEMORY, "%u buffers, temporaries in %u slots%s: peak %lld bytes with reuse, %lld without", f->plan->buffers.n,
                 f->plan->n_slots, f->plan->n_band_slots ? arena_printf(f->arena, ", rows in bands in %u", f->plan->n_band_slots) : "",
                 (long long)f->plan->peak_with_reuse, (long long)f->plan->peak_without);
}
