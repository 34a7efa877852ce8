/*
 * The pass loop, written once: each pass of jit/passes.def is run, verified, timed, logged and
 * dumped here.
 *
 * A pass rewrites the graph in place (ir/rules.h); what it may rely on it asks through g->shared->query.
 * The graph is verified before the first pass and after each one, so a fault names the pass that
 * made it.
 */
#include "jit/passes.h"
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "ir/base/timeline.h"
#include "ir/match.h"
#include "ir/rules.h"
#include "jit/hoist.h"
#include "ir/view.h"
#include "jit/extensions.h"
#include "jit/remat.h"
#include "jit/target.h"
#include "jit/trim.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct PassRun {
    Graph *g;
    const JitOptions *options;
    const Extensions *extensions;
    Rewriter rewriter;        /* what was applied; zero for passes that apply nothing */
    uint32_t *of_user;        /* how often each rule of users' was */
    uint32_t built, replaced; /* by a pass of users' */
} PassRun;

typedef Status PassFn(PassRun *run);

static Status rewrite(PassRun *run, unsigned families)
{
    Rewriter w = {.g = run->g, .math = options_math(run->options), .finite = run->options->value[OPT_FINITE] != 0, .families = families};
    Status status = graph_rewrite(&w);
    for (int k = 0; k < RULE_COUNT; k++)
        run->rewriter.hits[k] += w.hits[k];
    run->rewriter.merged += w.merged;
    return status;
}

static Status pass_canonicalise(PassRun *run) { return rewrite(run, FAMILY_CANON); }

static Status pass_fold(PassRun *run) { return rewrite(run, FAMILY_FOLD); }

/* What a rule makes is put in canonical form and folded at once, so that the next rule sees it so.
 */
static Status pass_rules(PassRun *run)
{
    const OrderDevice order = target_order(run->options);
    const unsigned host = order == ORDER_CUDA ? 0 : FAMILY_WIDEN | (order == ORDER_HOST_PAIRS ? FAMILY_PAIRS : 0);
    return rewrite(run, FAMILY_CANON | FAMILY_FOLD | FAMILY_RULES | host);
}

/* Those of users, which see what was recorded in its one spelling, before the rules of kiln's own. Rules that go round in circles, or make a graph
 * grow without end, are stopped. */
static Status pass_user_rules(PassRun *run)
{
    const Extensions *own = run->extensions;
    Rewriter w = {.g = run->g,
                  .math = options_math(run->options),
                  .finite = run->options->value[OPT_FINITE] != 0,
                  .families = FAMILY_CANON | FAMILY_FOLD | FAMILY_USER,
                  .user = {.rules = own->rules, .n = own->n_rules, .hits = run->of_user, .left = 64 + 8 * run->g->nodes.n}};
    Status status = graph_rewrite(&w);
    if (w.user.endless)
        log_warn_once(w.user.endless,
                      "rule \"%s\" is applied without end to what rules made: it was stopped, the graph of %u nodes is as far as it came",
                      w.user.endless, run->g->nodes.n);
    return status;
}

static Status pass_cse(PassRun *run) { return rewrite(run, FAMILY_MERGE); }

static Status pass_hoist(PassRun *run)
{
    trim(run->g);
    hoist(run->g);
    return ST_OK;
}

static Status pass_remat(PassRun *run)
{
    const JitOptions *o = run->options;
    remat(run->g, (int)o->value[OPT_REMAT], target_kind(&o->target)->bands && o->value[OPT_BANDS] != BANDS_OFF);
    return ST_OK;
}

static Status pass_dce(PassRun *run)
{
    graph_compact(run->g, NULL);
    return ST_OK;
}

static const struct {
    const char *name;
    PassFn *run;
    bool optional;
} passes[PASS_COUNT] = {
#define PASS(id, name, function, optional, help) {name, function, optional},
#include "jit/passes.def"
#undef PASS
};

const char *pass_name(PassId id) { return passes[id].name; }

static void print_hit(const char *name, uint32_t n, Str *out)
{
    if (n)
        str_printf(out, "%s%s %u", out->len ? ", " : "", name, n);
}

/* "mul_one 2, reshape 1": what was applied how often. */
static void print_hits(const PassRun *run, Str *out)
{
    const Rewriter *w = &run->rewriter;
    for (int k = 0; k < RULE_COUNT; k++)
        print_hit(rule_info[k].name, w->hits[k], out);
    for (uint32_t k = 0; k < run->extensions->n_rules; k++)
        print_hit(run->extensions->rules[k]->name, run->of_user[k], out);
    print_hit("merged", w->merged, out);
    print_hit("built", run->built, out);
    print_hit("replaced", run->replaced, out);
}

static const char *graph_text(const Graph *g)
{
    Str text;
    str_init(&text, g->arena);
    graph_print(g, "g", &text);
    return text.text;
}

static void report(const PassRun *run, const char *name, uint32_t before, double seconds, const char *text, bool changed)
{
    Str hits;
    str_init(&hits, run->g->arena);
    print_hits(run, &hits);
    log_line(LOG_PASSES, "%-12s %u -> %u nodes, %.3f ms%s%s", name, before, graph_size(run->g), seconds * 1e3, hits.len ? ": " : "",
             hits.text);
    if (text && changed)
        log_text(LOG_PASSES, text);
}

/* Does KILN_TEST_FAIL ask this pass to fail? */
static bool told_to_fail(const char *name)
{
    char want[64];
    option_text(OPT_TEST_FAIL, want, sizeof want);
    return strncmp(want, "pass:", 5) == 0 && strcmp(want + 5, name) == 0;
}

/* Adds the pass to the message of its failure. */
static Status failed(Status status, const char *name)
{
    char reason[1024];
    snprintf(reason, sizeof reason, "%s", fail_message());
    return fail(status, "pass %s: %s", name, reason);
}

/* A pass: a row of the table, or a user's. */
typedef struct PassAt {
    PassFn *run;    /* NULL: ... */
    UserPass *user; /* ... this one */
    const char *name;
} PassAt;

/* A user's pass, which sees the graph through a view. All that it does wrong makes the compile fail, and nothing else. */
static Status call_user(PassRun *run, UserPass *pass, int depth)
{
    uint32_t built, replaced;
    GraphView *view = view_begin(run->g, pass->name, depth);
    if (!user_pass_hold(pass))
        return fail(ST_COMPILE, "it was removed meanwhile");
    Status status = pass->call(view, pass->callback, pass->user);
    user_pass_let_go(pass);
    if (status != ST_OK)
        view_fail(view, status, "it gave \"%s\"", status_name(status));
    TRY(view_end(view, &built, &replaced));
    run->built += built;
    run->replaced += replaced;
    return ST_OK;
}

/* On a graph, then on the bodies in it. */
static Status run_on(PassRun *run, const PassAt *pass, Graph *g, int depth)
{
    run->g = g;
    TRY(pass->run ? pass->run(run) : call_user(run, pass->user, depth));
    for (Ref r = 0; r < g->nodes.n; r++)
        for (uint32_t b = 0; b < graph_node(g, r)->n_bodies; b++)
            TRY(run_on(run, pass, graph_node(g, r)->bodies[b], depth + 1));
    return ST_OK;
}

static Status run_pass(PassRun *run, const PassAt *pass)
{
    if (told_to_fail(pass->name))
        return fail(ST_COMPILE, "made to fail by KILN_TEST_FAIL");
    Graph *g = run->g;
    Status status = run_on(run, pass, g, 0);
    run->g = g;
    return status == ST_OK ? graph_verify(g) : status;
}

/* And, as comments behind it, where its nodes were recorded: "// %3 train.c:12". A dump is read by people; no key and no entry holds places. */
static const char *with_places(const Graph *g, const char *text)
{
    Str out;
    str_init(&out, g->arena);
    str_add(&out, text, strlen(text));
    for (Ref r = 0; r < g->nodes.n; r++) {
        const Loc *loc = &graph_node(g, r)->loc;
        if (loc->file)
            str_printf(&out, "// %%%" PRIu32 " %.*s:%d\n", r, (int)strcspn(loc->file, "\n"), loc->file, loc->line);
    }
    return out.text;
}

/* Where dumps of a whole run of passes go, and the graph's text as it is. */
typedef struct Told {
    PassDump *dump;
    void *user;
    const char *text; /* NULL: not asked for */
    bool logged;
} Told;

/* One pass, with all that is told of it. */
static Status run_told(PassRun *run, const PassAt *pass, Told *told)
{
    Graph *g = run->g;
    const char *before = told->text;
    uint32_t n = told->logged ? graph_size(g) : 0;
    double start = os_seconds();
    int64_t began = timeline_begin();
    run->rewriter = (Rewriter){0};
    run->built = run->replaced = 0;
    memset(run->of_user, 0, sizeof *run->of_user * run->extensions->n_rules);
    Status status = run_pass(run, pass);
    if (status != ST_OK)
        return failed(status, pass->name);
    double seconds = os_seconds() - start;
    if (began)
        timeline_span(TL_PASS, pass->name, began, TL_INT("nodes", graph_size(g)));
    told->text = told->text ? graph_text(g) : NULL;
    bool changed = told->text && strcmp(told->text, before) != 0;
    if (told->logged)
        report(run, pass->name, n, seconds, log_detailed(LOG_PASSES) ? told->text : NULL, changed);
    if (told->dump && changed)
        told->dump(told->user, arena_printf(g->arena, "graph_%s.txt", pass->name), with_places(g, told->text));
    return ST_OK;
}

/* The passes that users have at a place, in the order of the set. */
static Status run_users(PassRun *run, int place, Told *told)
{
    for (uint32_t k = 0; k < run->extensions->n_passes; k++) {
        UserPass *pass = run->extensions->passes[k];
        if (pass->after == place)
            TRY(run_told(run, &(PassAt){.user = pass, .name = pass->name}, told));
    }
    return ST_OK;
}

Status jit_run_passes(Graph *g, const JitOptions *options, PassDump *dump, void *user)
{
    bool logged = log_on(LOG_PASSES);
    PassRun run = {.g = g, .options = options, .extensions = extensions_of(options->value[OPT_EXTENSIONS])};
    Told told = {.dump = dump, .user = user, .logged = logged};
    if (options->value[OPT_EXTENSIONS] && !run.extensions->id)
        return fail(ST_INTERNAL, "the set of rules and passes %" PRId64 " is not there", options->value[OPT_EXTENSIONS]);
    run.of_user = ARENA_ARRAY(g->arena, uint32_t, run.extensions->n_rules);
    TRY(graph_verify(g));
    told.text = dump || (logged && log_detailed(LOG_PASSES)) ? graph_text(g) : NULL;
    if (dump)
        dump(user, "graph_recorded.txt", with_places(g, told.text));
    TRY(run_users(&run, AT_START, &told));
    for (int id = 0; id < PASS_COUNT; id++) {
        bool idle = id == PASS_USER_RULES && !run.extensions->n_rules && !told_to_fail(passes[id].name);
        if (!idle && (!passes[id].optional || options->value[OPT_REWRITE]))
            TRY(run_told(&run, &(PassAt){.run = passes[id].run, .name = passes[id].name}, &told));
        TRY(run_users(&run, id, &told));
    }
    return ST_OK;
}
