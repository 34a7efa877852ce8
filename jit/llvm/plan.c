/*
 * What is settled about a kernel before any IR exists: its facts (jit/kernel_facts.h), its schedule and nest, and the levels of its instructions.
 * Nothing here changes a result (reductions have one order whatever the lanes), only speed.
 */
#include "jit/llvm/build.h"
#include "jit/llvm/emit.h"

#include "ir/base/log.h"
#include "jit/rules.h"
#include "jit/target.h"

static bool changes_meanwhile(const Emit *e, const KInst *load)
{
    const KArg *arg = &e->k->args.at[load->arg];
    return arg->written || arg->may_alias;
}

/*
 * The level of an instruction: the innermost of all it depends on. But where a kernel of one point writes to what it
 * reads, the load is in that point's own thread: at the level of the task all threads would load, beside its store. And
 * where a thread cannot hold all scalars, each is read where it is used. And products that attention makes scores of are sums of a row and a
 * key, even where the key has no part in them.
 */
void plan_levels(Emit *e)
{
    const Kernel *k = e->k;
    uint8_t x_level = e->tile_axis != NO_AXIS ? LV_TILE : LV_ROW;
    e->level = ARENA_ARRAY(e->arena, uint8_t, k->inst.n + 1);
    e->ix_level = ARENA_ARRAY(e->arena, uint8_t, k->idx.n + 1);
    memset(e->ix_level, 0xff, k->idx.n + 1);
    for (uint32_t i = 0; i < k->inst.n; i++) {
        const KInst *n = &k->inst.at[i];
        uint8_t level = LV_TASK;
        VRef in[4];
        uint32_t n_in = kernel_operands(n, in);
        for (uint32_t r = 0; r < n_in; r++)
            level = e->level[in[r]] > level ? e->level[in[r]] : level;
        if (n->idx != IREF_NONE && index_level(e, n->idx) > level)
            level = index_level(e, n->idx);
        if (kernel_ends(n))
            level =
                e->schedule.columns || e->overlap || e->info[i].r_level || (k->form == FORM_ATTENTION && inst_is_dot(n)) ? LV_R : x_level;
        if (inst_runs(n) || n->kind == KI_CARRY)
            level = LV_R;
        if (level == LV_TASK && (n->kind == KI_SCALAR ? e->scalars_anew : n->kind == KI_LOAD && e->cuda && changes_meanwhile(e, n)))
            level = LV_ROW;
        e->level[i] = level;
    }
}

/* Sets what lowering reads from the schedule: which way the lanes run, how many there are, whether there are phases. */
static void schedule_apply(Emit *e)
{
    const Schedule *s = &e->schedule;
    e->vec_r = s->along >= (int64_t)e->n_x;
    e->tile_axis = e->vec_r || s->along < 0 ? NO_AXIS : (int)s->along;
    e->lanes = (int)(e->k->form == FORM_CONTRACT ? s->tile_width : s->lanes);
    e->split = s->split != SPLIT_NEVER;
    e->pieces = e->k->form == FORM_LOOPS && s->pieces >= 0 ? pieces_of(&e->facts, (uint32_t)s->pieces) : NULL;
    e->overlap = schedule_overlaps(s) ? overlap_of(&e->facts, (uint32_t)s->across) : NULL;
    e->edges = e->k->form == FORM_LOOPS && s->inside >= 0 ? inside_of(&e->facts, (uint32_t)s->inside) : NULL;
}

/* What the user asks for (option `schedule`) instead, where the kernel allows it. */
static void schedule_asked(Emit *e)
{
    const Schedule own = e->schedule;
    Schedule asked = own;
    const char *texts = option_contents(e->options->value[OPT_SCHEDULE]);
    if (!texts)
        return;
    ScheduleFacts facts = rules_allow(&e->facts, &own);
    Status status = schedule_find(texts, e->k, e->arena, &asked);
    if (status == ST_OK)
        status = schedule_verify(&asked, &facts);
    if (status == ST_OK)
        e->schedule = asked;
    else if (e->name)
        log_warn("the schedule asked for kernel %s is not taken: %s", e->name, fail_message());
}

void plan_host(Emit *e)
{
    e->planned = rules_choose(&e->facts, &e->schedule);
    schedule_asked(e);
    schedule_apply(e);
    e->prefetch_rows = e->k->form != FORM_CONTRACT;
    e->stream = true;
    e->asks_to_store = llvm_host_asks(e->options) && e->k->form != FORM_CONTRACT; /* rows of a tile are many places at once */
}

/* Which loops there are, from the schedule. */
static void plan_nest(Emit *e)
{
    KernelFacts *f = &e->facts;
    f->schedule = &e->schedule;
    nest_statements(&e->nest, f, e->arena);
    reduce_plan(e);
    if (e->cuda || (e->k->form != FORM_LOOPS && e->k->form != FORM_CONTRACT))
        return;
    f->heavy = e->vec_r && facts_heavy(f, facts_weigh(f, f->schedule, NULL));
    if (e->pieces) {
        int64_t *piece = ARENA_ARRAY(e->arena, int64_t, MOST_PIECES);
        pieces_lengths(e->k, e->pieces, piece);
        f->n_pieces = e->pieces->n;
        f->piece = piece;
    }
    nest_build(&e->nest, f);
}

void emit_plan(Emit *e)
{
    const Kernel *k = e->k;
    e->facts = kernel_facts(k, e->cuda ? ORDER_CUDA : ORDER_HOST, e->math, e->bits, target_multiplies_fours(e->options, e->bits), e->arena);
    const KernelFacts *f = &e->facts;
    e->order = f->order, e->info = f->info, e->live = f->live, e->checked = f->checked;
    e->n_x = f->n_x, e->n_r = f->n_r, e->n_stages = f->n_stages, e->in_order = f->in_order;
    for (uint32_t a = 0; a < k->args.n; a++)
        if (k->args.at[a].kind == ARG_SCRATCH)
            e->shared_arg = a;
    e->target->plan(e);
    plan_levels(e);
    plan_nest(e);
}
