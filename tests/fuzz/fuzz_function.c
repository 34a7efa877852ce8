/*
 * Random kiln_functions: what calls of one give must be what its C function gives when it is run directly, call after call.
 *
 * Arguments: tests/support/seeds.h.
 *
 * From each seed comes a plan. The C function (body) records a recipe (tests/support/random_graph.h) whose inputs are arguments,
 * captured tensors, captured numbers, constants or draws; besides, it assigns, keeps tensors, draws in vain, calls another function,
 * computes values, fails at some sizes. A plan's calls come with sizes, dtypes, layouts and data, and with events before them: captured
 * tensors get other values (computed or pending, dense or views, of one another), options change, the stream is drawn from or seeded.
 *
 * The plan runs twice: through kiln_functions, compiled; and with the body run directly by the reference interpreter. All results, what
 * the captured tensors mean, and what the body kept must be equal, bit for bit, as kiln.h promises:
 *   - a call that fails has changed nothing, so the direct run takes back what the body assigned then
 *   - an argument that is assigned to inside is no handle of the caller's, and a weak one is weak no more
 *   - what else the body does (it keeps a tensor) happens when it is traced; what was kept then is compared
 *   - two calls after one another with nothing changed but values: the second runs no body (in the modes jit and interp, and if the body
 *     computes nothing and leaves captured tensors and numbers of the kind that it found)
 *
 * Plans: function_plan.h. Running them: function_run.c. Here: drawing plans, comparing, shrinking, printing.
 *
 * Leaves out: C numbers that the body reads and that change (kiln.h: frozen), threads, math=fast.
 */
#include "tests/fuzz/function_plan.h"
#include "tests/support/seeds.h"

#include <inttypes.h>
#include <string.h>

static const char *const from_names[] = {"argument", "captured", "shared", "number", "constant", "drawn"};
static const char *const before_names[] = {"", "assign", "draw", "keep", "scope", "item", "eval", "seed"};
static const char *const after_names[] = {"", "assign", "swap", "assign argument", "next number", "nested", "keep", "fail", "steer"};
static const char *const more_names[] = {"argument", "captured", "number", "constant", "twice"};
static const char *const event_names[] = {"",           "assign data",  "assign pending", "assign other", "assign view", "assign result",
                                          "set number", "option",       "draw",           "seed",         "read",        "eval",
                                          "mark",       "new function", "call inner"};

typedef struct Shared {
    Plan plan;
    Log log[2];
    uint64_t compared;
    char why[700];
} Shared;
static Shared *shared;

/* --- plans ---------------------------------------------------------------------------------------------------------- */

static int weighted(Rng *rng, const uint8_t *weights, int n)
{
    int total = 0, i = 0;
    for (int k = 0; k < n; k++)
        total += weights[k];
    for (int64_t at = rng_below(rng, total); (at -= weights[i]) >= 0;)
        i++;
    return i;
}

/* What kind of event is frequent differs by plan (`favourite`), so that some have many of one. */
static void call_random(Rng *rng, int favourite, const Call *last, Call *call)
{
    static const uint8_t weights[EVENT_KINDS] = {
        [NONE] = 24,         [ASSIGN_DATA] = 8, [ASSIGN_PENDING] = 8, [ASSIGN_OTHER] = 10, [ASSIGN_VIEW] = 12,
        [ASSIGN_RESULT] = 6, [SET_NUMBER] = 8,  [SET_OPTION] = 6,     [DRAW] = 3,          [SEED] = 3,
        [READ] = 4,          [EVAL] = 3,        [MARK] = 4,           [NEW_FUNCTION] = 1,  [CALL_INNER] = 3};
    *call = *last;
    if (rng_chance(rng, 60))
        call->data = (uint32_t)(rng_next(rng) >> 40);
    call->late = (uint8_t)(rng_next(rng) >> 50);
    if (rng_chance(rng, 35))
        return; /* quiet: nothing but values */
    if (rng_chance(rng, 30))
        call->set = (uint8_t)(rng_chance(rng, 50) ? 0 : rng_below(rng, SETS));
    if (rng_chance(rng, 15))
        call->type = (uint8_t)(rng_chance(rng, 50) ? 0 : rng_below(rng, 3));
    if (rng_chance(rng, 20))
        call->layout = (uint8_t)(rng_chance(rng, 50) ? 0 : rng_below(rng, LAYOUTS));
    if (rng_chance(rng, 30)) {
        call->pending = rng_chance(rng, 20);
        call->same = rng_chance(rng, 20);
        call->alias = rng_chance(rng, 20);
        call->weak = rng_chance(rng, 30);
    }
    for (int i = 0; i < EVENTS; i++) {
        call->event[i].event = (uint8_t)(rng_chance(rng, 30) ? favourite : weighted(rng, weights, EVENT_KINDS));
        call->event[i].a = (uint8_t)(rng_chance(rng, 50) ? 0 : rng_below(rng, 64)); /* often the same tensor */
        call->event[i].k = (uint16_t)rng_below(rng, 1000);
    }
}

static void plan_random(uint64_t seed, Plan *plan)
{
    static const uint8_t froms[FROMS] = {35, 35, 10, 12, 6, 6};
    static const uint8_t befores[BEFORES] = {70, 6, 5, 5, 4, 3, 2, 1}, afters[AFTERS] = {40, 20, 6, 4, 5, 10, 8, 4, 3};
    memset(plan, 0, sizeof *plan);
    recipe_random(seed + 0x66756e63, &plan->recipe);
    Rng rng = {seed * 31 + 11};
    for (int s = 0; s < SETS; s++)
        for (int i = 0; i < PALETTE; i++) {
            static const int64_t some[] = {0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 23, 32, 33, 40, 63, 64, 66, 127, 255};
            plan->sizes[s][i] = s == 0 || rng_chance(&rng, 40) ? plan->recipe.sizes[i] : some[rng_below(&rng, 20)];
        }
    bool computes = rng_chance(&rng, 10); /* else the body has no sync points */
    int last_input = -1;
    for (int k = 0; k < plan->recipe.n; k++) {
        plan->from[k] = (uint8_t)weighted(&rng, froms, FROMS);
        RecipeNode *node = &plan->recipe.node[k];
        if (node->op <= R_RANDOM ? rng_chance(&rng, 60) : rng_chance(&rng, 8)) /* a recipe has few inputs */
            node->op = R_INPUT;
        if (node->op == R_INPUT) {
            if (last_input >= 0 && rng_chance(&rng, 50)) /* of one kind: they can be assigned to one another */
                *node = plan->recipe.node[last_input];
            last_input = k;
        }
        plan->before[k] = (uint8_t)weighted(&rng, befores, computes ? BEFORES : ITEM_BEFORE);
    }
    for (int i = 0; i < AFTER; i++) {
        plan->after[i].kind = (uint8_t)weighted(&rng, afters, computes ? AFTERS : STEER);
        plan->after[i].a = (uint8_t)rng_below(&rng, 64);
        plan->after[i].k = (uint16_t)rng_below(&rng, 1000);
    }
    plan->n_more = (int)rng_below(&rng, MORE + 1);
    for (int i = 0; i < plan->n_more; i++)
        plan->more[i] = (uint8_t)rng_below(&rng, MORES);
    plan->n_calls = (int)rng_between(&rng, 4, CALLS);
    Call last = {0};
    int favourite = (int)rng_between(&rng, ASSIGN_DATA, rng_chance(&rng, 70) ? SET_NUMBER : EVENT_KINDS - 1);
    for (int i = 0; i < plan->n_calls; i++) {
        call_random(&rng, favourite, &last, &plan->call[i]);
        last = plan->call[i];
        memset(last.event, 0, sizeof last.event);
    }
}

/* --- comparing ------------------------------------------------------------------------------------------------------ */

static bool same_place(const Entry *a, const Entry *b)
{
    return a->call == b->call && a->index == b->index && strcmp(a->what, b->what) == 0;
}

static bool differ(const Entry *a, const Entry *b)
{
    if (a->hash == b->hash && strcmp(a->kind, b->kind) == 0)
        return false;
    snprintf(shared->why, sizeof shared->why, "call %d: %s %d is %s %s..., directly it is %s %s...", a->call, a->what, a->index, a->kind,
             a->first, b->kind, b->first);
    return true;
}

/* A body is run at fewer calls through a function, so of what it kept there is less. */
static bool logs_agree(const Log *through, const Log *directly)
{
    const Log *const logs[] = {through, directly};
    shared->why[0] = 0;
    for (int i = 0; i < 2; i++)
        if (logs[i]->why[0]) {
            snprintf(shared->why, sizeof shared->why, "%s: %s", i ? "directly" : "through the function", logs[i]->why);
            return false;
        }
    int k = 0;
    for (int i = 0; i < through->n; i++) {
        const Entry *a = &through->entry[i];
        while (k < directly->n && directly->entry[k].kept && !same_place(a, &directly->entry[k]))
            k++;
        if (k == directly->n || !same_place(a, &directly->entry[k])) {
            snprintf(shared->why, sizeof shared->why, "call %d: %s %d (%s) is not what the direct run has there", a->call, a->what,
                     a->index, a->kind);
            return false;
        }
        if (differ(a, &directly->entry[k++]))
            return false;
    }
    return true;
}

static bool plan_runs_well(const void *data)
{
    const Plan *plan = data;
    plan_run(plan, true, &shared->log[0]);
    plan_run(plan, false, &shared->log[1]);
    shared->compared += (uint64_t)plan->n_calls;
    return logs_agree(&shared->log[0], &shared->log[1]);
}

static bool run_seed(uint64_t seed)
{
    plan_random(seed, &shared->plan);
    return plan_runs_well(&shared->plan);
}

/* --- shrinking and printing ------------------------------------------------------------------------------------------- */

typedef struct Shrink {
    Plan best;
    char why[700];
    double until;
} Shrink;

static bool keep_if_bad(Shrink *s, const Plan *candidate)
{
    if (memcmp(candidate, &s->best, sizeof *candidate) == 0 || seeds_clock() > s->until ||
        seeds_in_child(plan_runs_well, candidate, 20, NULL))
        return false;
    s->best = *candidate;
    memcpy(s->why, shared->why, sizeof s->why);
    return true;
}

static bool shrink_calls(Shrink *s)
{
    bool any = false;
    for (int i = s->best.n_calls - 1; i >= 0 && s->best.n_calls > 1; i--) {
        Plan c = s->best;
        memmove(&c.call[i], &c.call[i + 1], sizeof c.call[0] * (size_t)(c.n_calls - i - 1));
        c.n_calls--;
        any |= keep_if_bad(s, &c);
    }
    for (int i = 0; i < s->best.n_calls; i++) {
        for (int e = 0; e < EVENTS; e++) {
            Plan c = s->best;
            memset(&c.call[i].event[e], 0, sizeof c.call[i].event[e]);
            any |= keep_if_bad(s, &c);
        }
        Plan c = s->best;
        c.call[i].pending = c.call[i].same = c.call[i].alias = c.call[i].weak = false;
        any |= keep_if_bad(s, &c);
        c = s->best;
        c.call[i].set = c.call[i].type = c.call[i].layout = 0;
        any |= keep_if_bad(s, &c);
        c = s->best;
        c.call[i].data = 0;
        any |= keep_if_bad(s, &c);
    }
    return any;
}

static bool shrink_body(Shrink *s)
{
    bool any = false;
    for (int i = 0; i < AFTER; i++) {
        Plan c = s->best;
        c.after[i].kind = NOTHING;
        any |= keep_if_bad(s, &c);
    }
    Plan less = s->best;
    less.n_more = 0;
    any |= keep_if_bad(s, &less);
    for (int i = s->best.recipe.n_out - 1; i >= 0 && s->best.recipe.n_out > 1; i--) {
        Plan c = s->best;
        memmove(&c.recipe.out[i], &c.recipe.out[i + 1], sizeof c.recipe.out[0] * (size_t)(c.recipe.n_out - i - 1));
        c.recipe.n_out--;
        any |= keep_if_bad(s, &c);
    }
    for (int k = s->best.recipe.n - 1; k >= 0; k--) {
        Plan c = s->best;
        c.before[k] = PLAINLY;
        any |= keep_if_bad(s, &c);
        for (int form = 0; form < 3 && s->best.recipe.node[k].op != R_INPUT; form++) { /* the node becomes one of its operands */
            c = s->best;
            RecipeNode *node = &c.recipe.node[k];
            node->in[0] = node->in[form];
            node->op = R_ALIAS;
            any |= keep_if_bad(s, &c);
        }
        if (s->best.recipe.node[k].op == R_INPUT || k == 0)
            continue;
        c = s->best; /* a node that nobody needs */
        c.recipe.node[k] = (RecipeNode){.op = R_WEAK};
        any |= keep_if_bad(s, &c);
    }
    for (int i = 0; i < SETS * PALETTE; i++)
        for (int64_t size = 1; size < 3; size++) {
            Plan c = s->best;
            if (c.sizes[i / PALETTE][i % PALETTE] <= size)
                break;
            c.sizes[i / PALETTE][i % PALETTE] = size;
            any |= keep_if_bad(s, &c);
        }
    return any;
}

static kiln_tensor *print_input(const Recipe *recipe, int k, kiln_shape shape, void *user)
{
    const Plan *plan = user;
    printf(" (%s%s%s)", from_names[plan->from[k]], plan->before[k] ? "; before it: " : "", before_names[plan->before[k]]);
    return kiln_zeros((kiln_dtype)recipe->node[k].dtype, shape);
}

static bool print_body(const void *data)
{
    Plan plan = *(const Plan *)data;
    kiln_tensor *out[RECIPE_OUTPUTS];
    plan_options("interp");
    recipe_build(&plan.recipe, plan.sizes[0], print_input, &plan, out, NULL, stdout);
    return true;
}

static void print_plan(const Plan *plan)
{
    seeds_in_child(print_body, plan, 20, NULL);
    for (int i = 0; i < plan->n_more; i++)
        printf("    output: %s\n", more_names[plan->more[i]]);
    for (int i = 0; i < AFTER; i++)
        if (plan->after[i].kind)
            printf("    then: %s, a = %d, k = %d\n", after_names[plan->after[i].kind], plan->after[i].a, plan->after[i].k);
    for (int s = 0; s < SETS; s++)
        printf("  sizes %d: %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 "\n", s, plan->sizes[s][0], plan->sizes[s][1], plan->sizes[s][2],
               plan->sizes[s][3]);
    for (int i = 0; i < plan->n_calls; i++) {
        const Call *c = &plan->call[i];
        for (int e = 0; e < EVENTS; e++)
            if (c->event[e].event == SET_OPTION)
                printf("  option %s=%s\n", options[c->event[e].k % OPTIONS].name, options[c->event[e].k % OPTIONS].value);
            else if (c->event[e].event)
                printf("  %s, a = %d, k = %d\n", event_names[c->event[e].event], c->event[e].a, c->event[e].k);
        printf("  call %d: sizes %d, dtypes %d, data %" PRIu32 "%s%s%s%s%s%s\n", i, c->set, c->type, c->data, c->layout ? ", " : "",
               c->layout ? layout_names[c->layout] : "", c->pending ? ", pending" : "", c->same ? ", one for several" : "",
               c->alias ? ", captured tensors" : "", c->weak ? ", weak" : "");
    }
}

static void explain(uint64_t seed)
{
    static Shrink s;
    memcpy(s.why, shared->why, sizeof s.why);
    plan_random(seed, &s.best);
    s.until = seeds_clock() + 30;
    int status;
    if (seeds_in_child(plan_runs_well, &s.best, 60, &status))
        printf("  (not when run alone: it needs the seeds before it)\n");
    else {
        printf("  %s (status %x)\n", shared->why, (unsigned)status);
        for (bool any = true; any;) {
            any = shrink_calls(&s);
            any |= shrink_body(&s);
        }
    }
    printf("  %s\n", s.why);
    print_plan(&s.best);
}

static void show(uint64_t seed)
{
    plan_random(seed, &shared->plan);
    print_plan(&shared->plan);
}

int main(int argc, char **argv)
{
    shared = seeds_shared(sizeof *shared);
    Seeds seeds = {"fuzz_function", "calls compared", &shared->compared, 50, 60, run_seed, explain, show};
    return seeds_main(argc, argv, &seeds);
}
