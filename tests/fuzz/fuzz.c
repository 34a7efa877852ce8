/*
 * Random graphs: what the compiled program computes must be what the reference interpreter computes.
 *
 *     fuzz [--seed N] [--count M] [--seconds S] [--failures F] [--show]
 *
 * From each seed comes a plan: a recipe (tests/support/random_graph.h), option values, and a few rounds, each with its sizes, data
 * and layouts of the inputs. The rounds run one after another in one process, so that later ones meet the programs of earlier
 * ones: exact repeats, other data, other sizes (generalised variants), and back. Strict mode is compared bit for bit; recipes of
 * smooth functions also run in fast mode, within a tolerance.
 *
 * Work is done in child processes; the parent never calls kiln. When a child finds a difference (or dies) the parent shrinks the
 * plan, each candidate in a child of its own, and prints what is left as C. Same seed, same plan, on every machine.
 *
 * Leaves out: assigns, threads (tests/mutation, tests/threads), kiln_function (fuzz_function.c).
 */
#include "tests/differential/layouts.h"
#include "tests/support/random_graph.h"
#include "tests/support/seconds.h"
#include "tests/support/seeds.h"
#include "tests/support/stats.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 5, OPTIONS = 15, CHILD_SECONDS = 60, BATCH = 100 };

/* Option values that results must not depend on; the first is the default. */
static const struct {
    const char *name;
    const char *value[6];
    int n;
} options[OPTIONS] = {
    {"dynamic", {"auto", "never", "always"}, 3},
    {"threads", {"0", "1", "2", "5"}, 4},
    {"fuse", {"1", "0"}, 2},
    {"rewrite", {"1", "0"}, 2},
    {"vector_bits", {"0", "128", "256"}, 3},
    {"cpu", {"host", "x86-64-v3"}, 2},
    {"llvm_opt", {"1", "0", "2"}, 3},
    {"max_variants", {"8", "2"}, 2},
    {"bands", {"auto", "always", "off"}, 3},
    {"remat", {"auto", "off", "memory"}, 3},
    {"check", {"off", "repeat"}, 2},
    {"async_compile", {"0", "1"}, 2},
    {"constant_bytes", {"0", "30000", "1"}, 3},
    {"users", {"none", "rules", "pass", "both"}, 4},                     /* no option of kiln's: set_users */
    {"layer", {"none", "finite", "bf16", "finite", "f16", "finite"}, 6}, /* nor this: push_layer */
};

typedef struct Round {
    int64_t sizes[PALETTE];
    uint64_t data; /* seed of the values */
    int layout;    /* 0: plain */
    bool eager;
    bool marks; /* constants are told */
} Round;

typedef struct Plan {
    Recipe recipe;
    uint64_t marked; /* inputs, by number: constants */
    uint8_t option[OPTIONS];
    int n_rounds;
    Round round[ROUNDS];
} Plan;

typedef enum Outcome { FINE, DIFFERENT, FAILED, CRASHED } Outcome;
static const char *const outcome_names[] = {"fine", "different results", "failed", "crashed"};

/* What a child tells its parent. */
typedef struct Shared {
    uint64_t seed;
    Plan plan;
    RecipeMade made;
    char why[1024];
    int64_t rounds, compiles, kernels, outputs, not_finite;
} Shared;

static Shared *shared;

/* --- plans ---------------------------------------------------------------------------------------------------------- */

static void other_sizes(Rng *rng, const int64_t *from, int64_t *to)
{
    static const int64_t some[] = {0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 23, 32, 33, 40, 63, 64, 66, 127, 255};
    for (int i = 0; i < PALETTE; i++)
        to[i] = rng_chance(rng, 50) ? from[i] : some[rng_below(rng, 20)];
}

static void plan_random(uint64_t seed, Plan *plan)
{
    memset(plan, 0, sizeof *plan);
    recipe_random(seed, &plan->recipe);
    Rng rng = {seed * 31 + 7};
    for (int i = 0; i < OPTIONS; i++)
        plan->option[i] = (uint8_t)(rng_chance(&rng, 75) ? 0 : rng_below(&rng, options[i].n));
    plan->marked = rng_chance(&rng, 40) ? rng_next(&rng) : 0;
    plan->n_rounds = ROUNDS;
    for (int k = 0; k < ROUNDS; k++) {
        Round *round = &plan->round[k];
        round->data = rng_next(&rng) >> 20;
        round->layout = rng_chance(&rng, 30) ? (int)rng_below(&rng, LAYOUTS) : 0;
        round->eager = rng_chance(&rng, 10);
        round->marks = plan->marked && rng_chance(&rng, 80);
        if (k == 2 || k == 3)
            other_sizes(&rng, plan->recipe.sizes, round->sizes);
        else
            memcpy(round->sizes, plan->recipe.sizes, sizeof round->sizes);
    }
}

static char warning[400];

/* Keeps the last warning, for the reason of a fall-back. */
static void keep_warning(void *user, int level, const char *topic, const char *line)
{
    (void)user, (void)topic;
    if (level == 0)
        snprintf(warning, sizeof warning, "%s", line);
}

/* --- running a plan (in a child) ------------------------------------------------------------------------------------ */

static void set_option(const char *name, const char *value)
{
    if (kiln_set_option(name, value) != KILN_OK)
        kiln_clear_error(); /* the option of another machine */
}

/* --- rules and a pass of the user's, which change no bit --- */

static const struct {
    const char *name, *pattern, *replacement;
    unsigned condition;
} rules[] = {
    {"fuzz.twice", "(add x x)", "(mul x 2)", KILN_RULE_FLOATS},     {"fuzz.twice_int", "(add x x)", "(mul x 2)", KILN_RULE_INTS},
    {"fuzz.sub", "(sub x y)", "(add x (neg y))", KILN_RULE_FLOATS}, {"fuzz.negative", "(neg x)", "(mul x -1)", KILN_RULE_FLOATS},
    {"fuzz.size", "(abs (neg x))", "(abs x)", KILN_RULE_FLOATS},    {"fuzz.most", "(maximum x x)", "x", KILN_RULE_INTS},
};
enum { RULES = sizeof rules / sizeof *rules };

/* Operands change places, negations come in pairs; where a size is odd (which the program then is for), or wherever. Bodies too. */
static kiln_status shuffle(kiln_graph *g, void *user)
{
    (void)user;
    kiln_node vars[4] = {KILN_NO_NODE, KILN_NO_NODE, KILN_NO_NODE, KILN_NO_NODE};
    for (kiln_node n = 0; n < kiln_graph_nodes(g); n++) {
        const bool is_float = kiln_node_dtype(g, n) == KILN_F32 || kiln_node_dtype(g, n) == KILN_F64;
        int64_t size = 0;
        if (kiln_node_rank(g, n) > 1 && n % 3 == 0 && !kiln_node_size(g, n, 0, &size))
            continue;
        const char *other = size & 1 ? NULL : kiln_graph_match(g, n, "(add x y)", vars) ? "(add y x)" : NULL;
        if (!other && is_float && kiln_graph_match(g, n, "(mul x y)", vars))
            other = size & 1 ? "(mul y x)" : "(neg (neg (mul x y)))";
        if (other)
            (void)kiln_graph_replace(g, n, kiln_graph_build(g, other, vars));
    }
    return KILN_OK;
}

static const char *layer_of(const Plan *plan) { return options[OPTIONS - 1].value[plan->option[OPTIONS - 1]]; }

/* A layer that sees what is recorded; NULL: none. */
static kiln_mode *push_layer(const char *which)
{
    if (strcmp(which, "none") == 0)
        return NULL;
    return strcmp(which, "finite") == 0 ? kiln_finite_check_push() : kiln_autocast_push(strcmp(which, "f16") == 0 ? KILN_F16 : KILN_BF16);
}

static void set_users(const char *which)
{
    static bool has_rules, has_pass;
    const bool both = strcmp(which, "both") == 0, some_rules = both || strcmp(which, "rules") == 0,
               pass = both || strcmp(which, "pass") == 0;
    kiln_status status = KILN_OK;
    for (int k = 0; k < RULES && status == KILN_OK && some_rules != has_rules; k++)
        status = some_rules ? kiln_rule_add(rules[k].name, rules[k].pattern, rules[k].replacement, rules[k].condition)
                            : kiln_rule_remove(rules[k].name);
    if (status == KILN_OK && pass != has_pass)
        status = pass ? kiln_pass_register("fuzz.shuffle", "1", "canonicalise", shuffle, NULL) : kiln_pass_remove("fuzz.shuffle");
    has_rules = some_rules;
    has_pass = pass;
    if (status != KILN_OK) {
        printf("users=%s: %s\n", which, kiln_error_message());
        abort();
    }
}

typedef struct Feed {
    const Round *round;
    uint64_t marked;
    bool plain;
    kiln_tensor *made[RECIPE_NODES]; /* of each input: what is recorded once more reads the same */
    Placed placed[RECIPE_NODES];
    int n;
} Feed;

static kiln_tensor *feed_input(const Recipe *recipe, int k, kiln_shape shape, void *user)
{
    Feed *feed = user;
    const RecipeNode *node = &recipe->node[k];
    int64_t n = shape_elements(shape);
    if (feed->made[k])
        return feed->made[k];
    void *data = malloc((size_t)n * 8 + 8);
    values_fill((kiln_dtype)node->dtype, (Values)node->values, 1, feed->round->data + (uint64_t)k, n, data);
    Layout layout = feed->plain ? LAYOUT_COPIED : (Layout)((feed->round->layout + (feed->round->layout ? k : 0)) % LAYOUTS);
    Placed *p = &feed->placed[feed->n++];
    *p = place((kiln_dtype)node->dtype, shape, data, layout);
    free(data);
    if (feed->marked >> k & 1 && kiln_mark_constant(p->tensor) != KILN_OK)
        abort();
    return feed->made[k] = p->tensor;
}

typedef struct Results {
    int n;
    char not_finite[400]; /* what the layer of that name told; "": nothing */
    struct {
        kiln_dtype dtype;
        kiln_shape shape;
        void *data;
    } out[RECIPE_OUTPUTS];
} Results;

static void results_free(Results *r)
{
    for (int i = 0; i < r->n; i++)
        free(r->out[i].data);
    r->n = 0;
}

static Outcome because(Outcome outcome, const char *format, ...) __attribute__((format(printf, 2, 3)));
static Outcome because(Outcome outcome, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(shared->why, sizeof shared->why, format, args);
    va_end(args);
    return outcome;
}

/* Builds, evaluates, reads. FAILED with a reason in shared->why. */
static Outcome compute_once(const Plan *plan, const char *mode, Feed *feed, Results *results)
{
    kiln_tensor *out[RECIPE_OUTPUTS + 1] = {0};
    Outcome outcome = FINE;
    kiln_seed(plan->recipe.seed);
    kiln_mode *layer = push_layer(layer_of(plan));
    int n = recipe_build(&plan->recipe, feed->round->sizes, feed_input, feed, out, &shared->made, NULL);
    kiln_status status = KILN_OK;
    kiln_stats before = stats_now();
    results->not_finite[0] = 0;
    if (layer) /* outputs that were there are nothing to compute, and that would be no sync point where the layer looks at the rest */
        out[n] = kiln_neg(kiln_zeros(KILN_F32, KILN_SHAPE(1)));
    if (n > 0)
        status = kiln_eval_many(out, n + (layer != NULL));
    if (status == KILN_INVALID && strstr(kiln_error_message(), " made a"))
        snprintf(results->not_finite, sizeof results->not_finite, "%s", kiln_error_message());
    else if (status != KILN_OK)
        outcome = because(FAILED, "%s: %s", mode, kiln_error_message());
    kiln_stats after = stats_now();
    if (kiln_mode_pop(layer) != KILN_OK)
        outcome = because(FAILED, "%s: %s", mode, kiln_error_message());
    if (outcome == FINE && after.fallbacks != before.fallbacks)
        outcome = because(FAILED, "%s: fell back to the interpreter: %s", mode, warning);
    for (int i = 0; i < n && outcome == FINE; i++) {
        kiln_dtype dtype = kiln_dtype_of(out[i]);
        size_t bytes = (size_t)kiln_numel(out[i]) * kiln_dtype_size(dtype);
        results->out[i].dtype = dtype;
        results->out[i].shape = kiln_shape_of(out[i]);
        results->out[i].data = malloc(bytes + 1);
        results->n++;
        if (kiln_read(out[i], dtype, results->out[i].data, bytes) != KILN_OK)
            outcome = because(FAILED, "%s: read: %s", mode, kiln_error_message());
    }
    return outcome;
}

/* With constants twice: what the first time kept the second one reads. */
static Outcome compute(const Plan *plan, const Round *round, const char *mode, const char *math, Results *results)
{
    Feed feed = {.round = round, .plain = strcmp(mode, "interp") == 0};
    Outcome outcome = FINE;
    *results = (Results){0};
    set_option("mode", mode);
    set_option("math", math);
    feed.marked = round->marks && !feed.plain ? plan->marked : 0;
    kiln_scope *scope = kiln_scope_begin();
    for (int time = 0; time < (feed.marked ? 2 : 1) && outcome == FINE; time++) {
        results_free(results);
        outcome = compute_once(plan, mode, &feed, results);
    }
    for (int i = 0; i < feed.n && outcome == FINE; i++)
        if (!placed_intact(&feed.placed[i]))
            outcome = because(FAILED, "%s: an input was written to", mode);
    kiln_scope_end(scope);
    for (int i = 0; i < feed.n; i++)
        placed_free(&feed.placed[i]);
    kiln_clear_error();
    return outcome;
}

/*
 * The tolerance of fast mode: relative to the greatest magnitude of the output, and no less than what rounding leaves of terms of order 100 that
 * cancel and are divided by their deviation, at least sqrt(1e-3) (kiln_normalize of equal numbers is 0 but for that); strict results are compared
 * bit for bit.
 */
static Tolerance tolerance_of(kiln_dtype dtype, int64_t n, const void *data)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        double value = fabs(value_as_double(dtype, data, i));
        most = isfinite(value) && value > most ? value : most;
    }
    static const double units[KILN_F64 + 1] = {[KILN_F16] = 0.05, [KILN_BF16] = 0.25, [KILN_F32] = 1e-4, [KILN_F64] = 1e-12};
    const double unit = units[dtype];
    return (Tolerance){unit, unit * most + 4 * unit};
}

static Outcome compare(const Results *wanted, const Results *got, bool exact, const char *how)
{
    if (exact && strcmp(wanted->not_finite, got->not_finite) != 0)
        return because(DIFFERENT, "%s: told \"%s\", interp \"%s\"", how, got->not_finite, wanted->not_finite);
    if (wanted->n != got->n)
        return because(DIFFERENT, "%s: %d outputs, interp has %d", how, got->n, wanted->n);
    for (int i = 0; i < wanted->n; i++) {
        kiln_dtype dtype = wanted->out[i].dtype;
        int64_t n = shape_elements(wanted->out[i].shape);
        char a[96], b[96], s[96];
        if (dtype != got->out[i].dtype || !shape_equal(wanted->out[i].shape, got->out[i].shape))
            return because(DIFFERENT, "%s: output %d is %s, interp says %s", how, i, shape_text(got->out[i].dtype, got->out[i].shape, a),
                           shape_text(dtype, wanted->out[i].shape, b));
        Tolerance t = exact ? (Tolerance){0, 0} : tolerance_of(dtype, n, wanted->out[i].data);
        int64_t at = values_differ(dtype, n, wanted->out[i].data, got->out[i].data, t);
        if (at >= 0)
            return because(DIFFERENT, "%s: output %d %s element %" PRId64 " is %s, interp says %s", how, i,
                           shape_text(dtype, wanted->out[i].shape, s), at, value_text(dtype, got->out[i].data, at, a),
                           value_text(dtype, wanted->out[i].data, at, b));
    }
    return FINE;
}

static Outcome run_round(const Plan *plan, int k)
{
    const Round *round = &plan->round[k];
    const bool eager = round->eager && strcmp(layer_of(plan), "finite") != 0; /* an op that fails the check has no value there */
    Results wanted, got;
    char how[64];
    Outcome outcome = compute(plan, round, "interp", "strict", &wanted);
    if (outcome == FINE) {
        snprintf(how, sizeof how, "round %d, %s", k, eager ? "eager" : "jit");
        outcome = compute(plan, round, eager ? "eager" : "jit", "strict", &got);
        if (outcome == FINE)
            outcome = compare(&wanted, &got, true, how);
        results_free(&got);
    }
    if (outcome == FINE && plan->recipe.smooth && k < 2) {
        outcome = compute(plan, round, "jit", "fast", &got);
        if (outcome == FINE)
            outcome = compare(&wanted, &got, false, "jit, math=fast");
        results_free(&got);
    }
    shared->rounds++;
    shared->outputs += wanted.n;
    shared->not_finite += wanted.not_finite[0] != 0;
    results_free(&wanted);
    return outcome;
}

static Outcome run_plan(const Plan *plan)
{
    shared->why[0] = 0;
    for (int i = 0; i < OPTIONS - 2; i++)
        set_option(options[i].name, options[i].value[plan->option[i]]);
    set_users(options[OPTIONS - 2].value[plan->option[OPTIONS - 2]]);
    Outcome outcome = FINE;
    for (int k = 0; k < plan->n_rounds && outcome == FINE; k++)
        outcome = run_round(plan, k);
    return outcome;
}

static void tell_stats(void)
{
    kiln_stats stats = stats_now();
    shared->compiles += stats.compiles;
    shared->kernels += stats.kernels;
}

/* --- children ------------------------------------------------------------------------------------------------------- */

static Outcome outcome_of(int status)
{
    if (WIFSIGNALED(status)) {
        bool endless = WTERMSIG(status) == SIGALRM || WTERMSIG(status) == SIGPROF;
        if (!shared->why[0] || !endless)
            snprintf(shared->why, sizeof shared->why, "signal %d%s", WTERMSIG(status), endless ? " (does not end)" : "");
        return CRASHED;
    }
    int code = WEXITSTATUS(status);
    return code <= FAILED ? (Outcome)code : CRASHED;
}

/* Runs seeds from `first` on until one is not fine, `count` are done or the time is up. *done: how many were fine. */
static Outcome run_batch(uint64_t first, int64_t count, double until, int64_t *done)
{
    shared->seed = first;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        kiln_set_log_sink(keep_warning, NULL);
        Outcome outcome = FINE;
        for (int64_t i = 0; i < count && outcome == FINE && seeds_clock() < until; i++) {
            test_seconds(CHILD_SECONDS);
            shared->seed = first + (uint64_t)i;
            plan_random(shared->seed, &shared->plan);
            outcome = run_plan(&shared->plan);
            if (outcome == FINE)
                shared->seed++;
        }
        tell_stats();
        _exit((int)outcome);
    }
    int status = 0;
    waitpid(child, &status, 0);
    *done = (int64_t)(shared->seed - first);
    return outcome_of(status);
}

/* One plan in a fresh process. */
static Outcome run_alone(const Plan *plan)
{
    static Plan copy;
    copy = *plan;
    shared->why[0] = 0;
    pid_t child = fork();
    if (child == 0) {
        test_seconds(CHILD_SECONDS / 4);
        kiln_set_log_sink(keep_warning, NULL);
        _exit((int)run_plan(&copy));
    }
    int status = 0;
    waitpid(child, &status, 0);
    return outcome_of(status);
}

/* --- shrinking ------------------------------------------------------------------------------------------------------ */

typedef struct Shrink {
    Plan best;
    RecipeMade made;
    Outcome wanted;
    char why[1024];
    double until;
} Shrink;

/* Keeps the candidate when it fails in the same way. */
static bool keep_if_bad(Shrink *s, const Plan *candidate)
{
    if (seeds_clock() > s->until || memcmp(candidate, &s->best, sizeof *candidate) == 0)
        return false;
    if (run_alone(candidate) != s->wanted)
        return false;
    s->best = *candidate;
    s->made = shared->made;
    memcpy(s->why, shared->why, sizeof s->why);
    return true;
}

static bool shrink_rounds(Shrink *s)
{
    bool any = false;
    for (int k = s->best.n_rounds - 1; k >= 0; k--) {
        Plan c = s->best;
        memmove(&c.round[k], &c.round[k + 1], sizeof c.round[0] * (size_t)(c.n_rounds - k - 1));
        c.n_rounds--;
        any |= c.n_rounds > 0 && keep_if_bad(s, &c);
    }
    for (int k = 0; k < s->best.n_rounds; k++) {
        Plan c = s->best;
        c.round[k].layout = 0;
        any |= keep_if_bad(s, &c);
        c = s->best;
        c.round[k].eager = false;
        any |= keep_if_bad(s, &c);
        c = s->best;
        c.round[k].marks = false;
        any |= keep_if_bad(s, &c);
    }
    for (int i = 0; i < OPTIONS; i++) {
        Plan c = s->best;
        c.option[i] = 0;
        any |= keep_if_bad(s, &c);
    }
    return any;
}

static bool shrink_outputs(Shrink *s)
{
    bool any = false;
    for (int i = s->best.recipe.n_out - 1; i >= 0; i--) {
        Plan c = s->best;
        Recipe *r = &c.recipe;
        if (r->n_out < 2)
            break;
        memmove(&r->out[i], &r->out[i + 1], sizeof r->out[0] * (size_t)(r->n_out - i - 1));
        r->n_out--;
        recipe_compact(r);
        any |= keep_if_bad(s, &c);
    }
    for (int k = s->best.recipe.n - 2; k >= 0 && s->best.recipe.n_out == 1; k--) { /* an earlier node as the only output */
        Plan c = s->best;
        c.recipe.out[0] = (int16_t)(k < c.recipe.n ? k : 0);
        recipe_compact(&c.recipe);
        any |= keep_if_bad(s, &c);
    }
    return any;
}

/* Node k becomes an input of the same dtype and shape, when the palette has its sizes. */
static bool cut_node(const Shrink *s, Plan *c, int k)
{
    RecipeNode *node = &c->recipe.node[k];
    const kiln_shape *shape = &s->made.shape[k];
    if (node->op == R_INPUT || !s->made.ok[k] || shape->rank > RECIPE_RANK)
        return false;
    *node = (RecipeNode){.op = R_INPUT, .dtype = (uint8_t)s->made.dtype[k], .values = VALUES_MIX, .rank = (uint8_t)shape->rank};
    const int64_t *sizes = c->round[c->n_rounds - 1].sizes;
    for (int i = 0; i < shape->rank; i++) {
        int p = 0;
        while (p < PALETTE && sizes[p] != shape->dim[i])
            p++;
        if (p == PALETTE && shape->dim[i] != 1)
            return false;
        node->size[i] = (uint8_t)p;
    }
    return true;
}

static bool shrink_nodes(Shrink *s)
{
    bool any = false;
    for (int k = s->best.recipe.n - 1; k >= 0; k--) {
        for (int form = 0; form < 4 && k < s->best.recipe.n; form++) {
            Plan c = s->best;
            RecipeNode *node = &c.recipe.node[k];
            if (form == 3 ? !cut_node(s, &c, k) : node->op == R_INPUT)
                continue;
            if (form < 3) {
                node->in[0] = node->in[form];
                node->op = R_ALIAS;
            }
            recipe_compact(&c.recipe);
            any |= keep_if_bad(s, &c);
        }
        for (int i = 0; i < 4 && k < s->best.recipe.n; i++) {
            Plan c = s->best;
            c.recipe.node[k].p[i] = 0;
            any |= c.recipe.node[k].op != R_UNARY && c.recipe.node[k].op != R_BINARY && keep_if_bad(s, &c);
        }
        if (k < s->best.recipe.n && s->best.recipe.node[k].op == R_INPUT) {
            Plan c = s->best;
            c.recipe.node[k].values = VALUES_PLAIN;
            any |= keep_if_bad(s, &c);
            c = s->best;
            c.recipe.node[k].dtype = KILN_F32;
            any |= keep_if_bad(s, &c);
        }
    }
    return any;
}

static bool shrink_sizes(Shrink *s)
{
    static const int64_t smaller[] = {1, 2, 3, 4};
    bool any = false;
    for (int k = 0; k < s->best.n_rounds; k++)
        for (int i = 0; i < PALETTE; i++)
            for (int j = 0; j < 4; j++) {
                Plan c = s->best;
                if (c.round[k].sizes[i] <= smaller[j])
                    break;
                c.round[k].sizes[i] = smaller[j];
                if (keep_if_bad(s, &c)) {
                    any = true;
                    break;
                }
            }
    return any;
}

static void print_plan(const Plan *plan)
{
    fflush(stdout);
    pid_t child = fork(); /* recording happens in a child, like everything of kiln */
    if (child == 0) {
        set_option("mode", "interp");
        for (int i = 0; i < OPTIONS; i++)
            if (plan->option[i])
                printf("    option %s=%s\n", options[i].name, options[i].value[plan->option[i]]);
        for (int k = 0; k < plan->n_rounds; k++) {
            Feed feed = {.round = &plan->round[k], .plain = true};
            kiln_tensor *out[RECIPE_OUTPUTS];
            printf("  round %d: data seed %" PRIu64 ", layout %s%s", k, plan->round[k].data, layout_names[plan->round[k].layout],
                   plan->round[k].eager ? ", eager" : "");
            printf(plan->round[k].marks ? ", constants %#" PRIx64 "\n" : "\n", plan->marked);
            recipe_build(&plan->recipe, plan->round[k].sizes, feed_input, &feed, out, NULL, stdout);
        }
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

static void explain(uint64_t seed, Outcome outcome, double patience)
{
    static Shrink s;
    s.best = shared->plan;
    s.wanted = outcome;
    s.until = seeds_clock() + patience;
    memcpy(s.why, shared->why, sizeof s.why);
    s.made = shared->made;
    printf("seed %" PRIu64 ": %s: %s\n", seed, outcome_names[outcome], s.why);
    plan_random(seed, &s.best);
    Plan first = s.best;
    Outcome alone = run_alone(&first);
    if (alone == FINE) {
        printf("  (not when run alone: it needs the seeds before it)\n");
    } else {
        s.wanted = alone;
        s.made = shared->made;
        memcpy(s.why, shared->why, sizeof s.why);
        bool any = true;
        while (any && seeds_clock() < s.until) {
            any = shrink_rounds(&s);
            any |= shrink_outputs(&s);
            any |= shrink_nodes(&s);
            any |= shrink_sizes(&s);
        }
        printf("  shrunk: %s\n", s.why);
    }
    print_plan(&s.best);
    fflush(stdout);
}

/* --- main ----------------------------------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    SeedsAsked asked = {.first = 1, .count = INT64_MAX, .seconds = 60, .failures = 3};
    if (!seeds_asked(argc, argv, "fuzz", &asked))
        return 2;
    shared = seeds_shared(sizeof *shared);
    if (asked.show) {
        plan_random(asked.first, &shared->plan);
        print_plan(&shared->plan);
        return 0;
    }
    int64_t count = asked.count < INT64_MAX ? (int64_t)asked.count : INT64_MAX, failures = 0, done = 0;
    uint64_t at = asked.first;
    double start = seeds_clock(), end = start + asked.seconds;
    while (done < count && seeds_clock() < end && failures < asked.failures) {
        int64_t fine = 0;
        Outcome outcome = run_batch(at, count - done < BATCH ? count - done : BATCH, end, &fine);
        done += fine;
        at += (uint64_t)fine;
        if (outcome == FINE)
            continue;
        failures++;
        explain(at, outcome, 30);
        at++;
        done++;
    }
    printf("fuzz: seeds %" PRIu64 " to %" PRIu64 ": %" PRId64 " plans, %" PRId64 " rounds, %" PRId64 " outputs, %" PRId64
           " programs, %" PRId64 " kernel launches, %" PRId64 " told as not finite, %" PRId64 " failures, %.1f s\n",
           asked.first, at - 1, done, shared->rounds, shared->outputs, shared->compiles, shared->kernels, shared->not_finite, failures,
           seeds_clock() - start);
    if (shared->kernels == 0)
        printf("FAIL nothing was launched\n");
    return failures > 0 || shared->kernels == 0;
}
