/*
 * Random sequences of public calls on a few handles: recording, evaluating, reading, assigning, dropping and replacing handles, views,
 * borrowed memory, nested scopes. The same sequence runs once in jit mode and once in interp mode, and all that is read must be
 * equal, bit for bit. What it looks for: storage overwritten or freed too early, stale programs, values that depend on when they are
 * computed.
 *
 * Arguments: tests/support/seeds.h.
 * With KILN_DEVICE=cuda all of it lies there; borrowed memory, which is the host's, is copied.
 *
 * Each seed runs in a child process; one that differs is cut to the fewest steps (a prefix, then without single steps) and printed.
 */
#include "tests/support/compare.h"
#include "tests/support/seeds.h"
#include "tests/support/stats.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 6, STEPS = 60, READS = 80, SIZE = 24 * 48, SEEDS_PER_CHILD = 50 };

typedef enum Action {
    NEW,
    UNARY,
    BINARY,
    VIEW,
    REDUCE,
    ASSIGN_OP,
    ASSIGN_SLOT,
    EVAL,
    EVAL_TWO,
    READ,
    COPY_HANDLE,
    DROP,
    BORROW,
    DRAW,
    SCOPED,
    GATHER,
    MARK,
    WEIGHTED,
    ACTIONS
} Action;
static const char *const action_names[] = {"new",         "unary", "binary",   "view",   "reduce",      "assign op",
                                           "assign slot", "eval",  "eval two", "read",   "copy handle", "drop",
                                           "borrow",      "draw",  "scoped",   "gather", "mark",        "weighted"};

typedef struct Step {
    uint8_t action, to, a, b;
    uint16_t k;
} Step;

typedef struct Plan {
    uint64_t seed;
    int n;
    int64_t rows, columns;
    Step step[STEPS];
} Plan;

/* What was read in one run: all reads, one after another. */
typedef struct Log {
    int n;
    int step[READS];
    uint64_t hash[READS];
    float first[READS];
    int failed_step; /* -1: none */
    char why[200];
} Log;

typedef struct Shared {
    Plan plan;
    Log log[2];
    uint64_t reads;
} Shared;
static Shared *shared;

static void plan_random(uint64_t seed, Plan *plan)
{
    static const uint8_t weights[ACTIONS] = {
        [NEW] = 6,         [UNARY] = 12, [BINARY] = 14,  [VIEW] = 10,  [REDUCE] = 4,      [ASSIGN_OP] = 16,
        [ASSIGN_SLOT] = 5, [EVAL] = 10,  [EVAL_TWO] = 5, [READ] = 8,   [COPY_HANDLE] = 5, [DROP] = 5,
        [BORROW] = 3,      [DRAW] = 2,   [SCOPED] = 4,   [GATHER] = 3, [MARK] = 5,        [WEIGHTED] = 6};
    Rng rng = {seed + 99};
    int total = 0;
    for (int i = 0; i < ACTIONS; i++)
        total += weights[i];
    memset(plan, 0, sizeof *plan);
    plan->seed = seed;
    plan->rows = rng_between(&rng, 1, 6) * 4;
    plan->columns = rng_between(&rng, 1, 48);
    plan->n = (int)rng_between(&rng, 8, STEPS);
    for (int i = 0; i < plan->n; i++) {
        int64_t at = rng_below(&rng, total);
        Step *s = &plan->step[i];
        while ((at -= weights[s->action]) >= 0)
            s->action++;
        s->to = (uint8_t)rng_below(&rng, SLOTS);
        s->a = (uint8_t)rng_below(&rng, SLOTS);
        s->b = (uint8_t)rng_below(&rng, SLOTS);
        s->k = (uint16_t)rng_below(&rng, 1000);
    }
}

/* --- running -------------------------------------------------------------------------------------------------------- */

typedef struct Run {
    const Plan *plan;
    Log *log;
    kiln_tensor *slot[SLOTS]; /* retained; never NULL after the start; all of shape rows x columns, f32 */
    int now;
} Run;

static kiln_shape full_shape(const Run *r) { return KILN_SHAPE(r->plan->rows, r->plan->columns); }

static void failed(Run *r, const char *what)
{
    if (r->log->failed_step < 0) {
        r->log->failed_step = r->now;
        snprintf(r->log->why, sizeof r->log->why, "%s: %s", what, kiln_error_message());
    }
    kiln_clear_error();
}

static void put(Run *r, int slot, kiln_tensor *x)
{
    if (!x) {
        failed(r, "recording");
        return;
    }
    kiln_retain(x);
    if (r->slot[slot])
        kiln_release(r->slot[slot]);
    r->slot[slot] = x;
}

static void read_slot(Run *r, kiln_tensor *x)
{
    static float data[SIZE];
    int64_t n = kiln_numel(x);
    if (r->log->n == READS)
        return;
    if (kiln_read(x, KILN_F32, data, (size_t)n * sizeof *data) != KILN_OK) {
        failed(r, "read");
        return;
    }
    r->log->step[r->log->n] = r->now;
    r->log->first[r->log->n] = data[0];
    r->log->hash[r->log->n++] = values_hash(KILN_F32, n, data);
}

static kiln_tensor *fresh(Run *r, int k)
{
    static float data[SIZE];
    values_fill(KILN_F32, VALUES_PLAIN, 0, r->plan->seed + (uint64_t)k, r->plan->rows * r->plan->columns, data);
    return kiln_from(KILN_F32, full_shape(r), data);
}

static void free_memory(void *data, void *user)
{
    (void)user;
    memset(data, 0xff, 64); /* whoever still reads it notices */
    free(data);
}

static kiln_tensor *borrowed(Run *r, int k)
{
    int64_t n = r->plan->rows * r->plan->columns;
    float *data = malloc((size_t)n * sizeof *data + 64);
    values_fill(KILN_F32, VALUES_PLAIN, 0, r->plan->seed + (uint64_t)k, n, data);
    kiln_tensor *x = kiln_wrap(KILN_F32, full_shape(r), data, free_memory, NULL);
    const char *device = getenv("KILN_DEVICE");
    return device ? kiln_to(x, device) : x;
}

static kiln_tensor *unary(kiln_tensor *x, int k)
{
    switch (k % 6) {
    case 0: return kiln_neg(x);
    case 1: return kiln_tanh(x);
    case 2: return kiln_mul(x, kiln_scalar(0.5 + k % 5));
    case 3: return kiln_add(x, kiln_int(k % 3));
    case 4: return kiln_positive(x);
    }
    return kiln_cumsum(x, k / 6 % 2);
}

static kiln_tensor *binary(kiln_tensor *x, kiln_tensor *y, int k)
{
    switch (k % 5) {
    case 0: return kiln_sub(x, y);
    case 1: return kiln_maximum(x, y);
    case 2: return kiln_add(kiln_mul(x, kiln_scalar(0.25)), y);
    case 3: return kiln_where(kiln_lt(x, y), y, kiln_flip(x, KILN_AXES(0)));
    }
    return kiln_sub(x, kiln_mean_axes(y, KILN_AXES(k / 5 % 2), true));
}

/* Moves elements; the shape stays. */
static kiln_tensor *view(Run *r, kiln_tensor *x, int k)
{
    switch (k % 6) {
    case 0: return kiln_flip(x, KILN_AXES(k / 6 % 2));
    case 1: return kiln_reshape(kiln_transpose(x), full_shape(r));
    case 2: return kiln_roll(x, k % 7, k / 6 % 2);
    case 3: /* the first half twice */
        return kiln_concat(
            (kiln_tensor *[]){kiln_slice_axis(x, 0, 0, r->plan->rows / 2, 1), kiln_slice_axis(x, 0, 0, r->plan->rows / 2, 1)}, 2, 0);
    case 4: return kiln_reshape(kiln_reshape(x, KILN_SHAPE(-1)), full_shape(r));
    }
    return kiln_expand(kiln_slice_axis(x, 0, k % 4, k % 4 + 1, 1), full_shape(r));
}

static kiln_tensor *gathered(Run *r, kiln_tensor *x, kiln_tensor *y, int k)
{
    kiln_tensor *order = kiln_argsort(kiln_select(y, 1, 0), 0, k & 1);
    (void)r;
    return k & 2 ? kiln_take(x, order, 0) : kiln_scatter(x, order, y, 0, k & 4 ? KILN_SCATTER_ADD : KILN_SCATTER_SET);
}

/* x times what is made of y, which may be a constant: worth being kept, or not, by k. */
static kiln_tensor *weighted(Run *r, kiln_tensor *x, kiln_tensor *y, int k)
{
    kiln_tensor *w = k & 1 ? kiln_tanh(y) : k & 2 ? kiln_mul(y, kiln_scalar(0.5 + k % 3)) : y;
    (void)r;
    switch (k / 4 % 4) {
    case 0: return kiln_matmul(x, kiln_softmax(kiln_matmul(kiln_transpose(y), w), 1));
    case 1: return kiln_matmul(kiln_tanh(kiln_matmul(x, kiln_transpose(w))), y); /* rows, turned */
    case 2: return kiln_add(x, kiln_mean_axes(kiln_exp(kiln_tanh(w)), KILN_AXES(k / 16 % 2), true));
    }
    w = kiln_roll(kiln_softmax(w, k / 16 % 2), 1, 0);
    return k & 32 ? w : kiln_mul(kiln_tanh(x), w);
}

/* Work in a scope of its own, of which one tensor survives. */
static kiln_tensor *scoped(Run *r, const Step *s)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = unary(binary(r->slot[s->a], r->slot[s->b], s->k), s->k / 3), *other = view(r, x, s->k);
    if (s->k & 1 && kiln_eval(x) != KILN_OK)
        failed(r, "eval");
    kiln_tensor *kept = kiln_keep(s->k & 2 ? other : x);
    kiln_scope_end(scope);
    return kept;
}

static void do_step(Run *r, const Step *s)
{
    kiln_tensor *a = r->slot[s->a], *b = r->slot[s->b];
    switch ((Action)s->action) {
    case NEW: put(r, s->to, fresh(r, s->k)); break;
    case UNARY: put(r, s->to, unary(a, s->k)); break;
    case BINARY: put(r, s->to, binary(a, b, s->k)); break;
    case VIEW: put(r, s->to, view(r, a, s->k)); break;
    case REDUCE: put(r, s->to, kiln_expand(kiln_sum_axes(a, KILN_AXES(s->k % 2), true), full_shape(r))); break;
    case ASSIGN_OP:
        if (kiln_assign(r->slot[s->to], s->k % 3 ? binary(a, b, s->k) : unary(r->slot[s->to], s->k)) != KILN_OK)
            failed(r, "assign");
        break;
    case ASSIGN_SLOT:
        if (kiln_assign(r->slot[s->to], s->k % 2 ? a : view(r, a, s->k / 2)) != KILN_OK)
            failed(r, "assign");
        break;
    case EVAL:
        if (kiln_eval(a) != KILN_OK)
            failed(r, "eval");
        break;
    case EVAL_TWO:
        if (kiln_eval_many((kiln_tensor *[]){a, b}, 2) != KILN_OK)
            failed(r, "eval many");
        break;
    case READ: read_slot(r, a); break;
    case COPY_HANDLE: put(r, s->to, kiln_positive(a)); break;
    case DROP: put(r, s->to, fresh(r, 5000)); break;
    case BORROW: put(r, s->to, borrowed(r, s->k)); break;
    case DRAW: put(r, s->to, kiln_uniform(KILN_F32, full_shape(r), -1, 1)); break;
    case SCOPED: put(r, s->to, scoped(r, s)); break;
    case GATHER: put(r, s->to, gathered(r, a, b, s->k)); break;
    case MARK:
        if (kiln_mark_constant(a) != KILN_OK)
            failed(r, "mark");
        break;
    case WEIGHTED: put(r, s->to, weighted(r, a, b, s->k)); break;
    case ACTIONS: break;
    }
}

static void run(const Plan *plan, const char *mode, Log *log)
{
    *log = (Log){.failed_step = -1};
    Run r = {.plan = plan, .log = log};
    if (kiln_set_option("mode", mode) != KILN_OK || kiln_set_option("math", "strict") != KILN_OK)
        exit(2);
    kiln_seed(plan->seed);
    kiln_stats before = stats_now();
    kiln_scope *scope = kiln_scope_begin();
    for (int i = 0; i < SLOTS; i++)
        put(&r, i, fresh(&r, i));
    for (r.now = 0; r.now < plan->n; r.now++) {
        kiln_scope *inner = r.now % 4 == 0 ? kiln_scope_begin() : NULL;
        do_step(&r, &plan->step[r.now]);
        if (inner)
            kiln_scope_end(inner); /* the slots keep what they hold */
    }
    for (int i = 0; i < SLOTS; i++)
        read_slot(&r, r.slot[i]);
    for (int i = 0; i < SLOTS; i++)
        kiln_release(r.slot[i]);
    kiln_scope_end(scope);
    kiln_stats after = stats_now();
    if (after.fallbacks != before.fallbacks)
        failed(&r, "fell back to the interpreter");
    if (after.live_bytes != before.live_bytes && log->failed_step < 0) {
        log->failed_step = plan->n;
        snprintf(log->why, sizeof log->why, "%" PRId64 " bytes of tensors are left", after.live_bytes - before.live_bytes);
    }
}

/* 0 when both modes agree. */
static int compare_modes(const Plan *plan)
{
    run(plan, plan->seed % 7 == 3 ? "eager" : "jit", &shared->log[0]);
    run(plan, "interp", &shared->log[1]);
    const Log *a = &shared->log[0], *b = &shared->log[1];
    if (a->failed_step != b->failed_step || a->failed_step >= 0 || a->n != b->n)
        return 1;
    for (int i = 0; i < a->n; i++)
        if (a->hash[i] != b->hash[i])
            return 1;
    shared->reads += (uint64_t)a->n;
    return 0;
}

/* --- shrinking ------------------------------------------------------------------------------------------------------ */

static bool run_plan(const void *plan) { return compare_modes(plan) == 0; }

static bool runs_well(const Plan *plan) { return seeds_in_child(run_plan, plan, 20, NULL); }

static void print_plan(const Plan *plan)
{
    printf("  shape %" PRId64 "x%" PRId64 "\n", plan->rows, plan->columns);
    for (int i = 0; i < plan->n; i++)
        printf("  %2d: %-12s to s%d from s%d s%d, k = %d\n", i, action_names[plan->step[i].action], plan->step[i].to, plan->step[i].a,
               plan->step[i].b, plan->step[i].k);
}

static void explain(uint64_t seed)
{
    static Plan best;
    plan_random(seed, &best);
    if (runs_well(&best)) {
        printf("  (not when run alone: it needs the seeds before it)\n");
    } else {
        for (int i = best.n - 1; i >= 0; i--) { /* single steps, from the last */
            Plan c = best;
            memmove(&c.step[i], &c.step[i + 1], sizeof c.step[0] * (size_t)(c.n - i - 1));
            c.n--;
            if (!runs_well(&c))
                best = c;
        }
        runs_well(&best);
    }
    print_plan(&best);
    for (int m = 0; m < 2; m++) {
        const Log *log = &shared->log[m];
        printf("  %s:", m ? "interp" : "compiled");
        if (log->failed_step >= 0)
            printf(" step %d failed: %s", log->failed_step, log->why);
        for (int i = 0; i < log->n; i++)
            if (shared->log[0].hash[i] != shared->log[1].hash[i])
                printf(" [step %d: %08x... first %.9g]", log->step[i], (unsigned)(log->hash[i] >> 32), (double)log->first[i]);
        printf("\n");
    }
    fflush(stdout);
}

static bool run_seed(uint64_t seed)
{
    plan_random(seed, &shared->plan);
    return compare_modes(&shared->plan) == 0;
}

static void show(uint64_t seed)
{
    plan_random(seed, &shared->plan);
    print_plan(&shared->plan);
}

int main(int argc, char **argv)
{
    shared = seeds_shared(sizeof *shared);
    Seeds seeds = {"fuzz_state", "values read", &shared->reads, SEEDS_PER_CHILD, 30, run_seed, explain, show};
    return seeds_main(argc, argv, &seeds);
}
