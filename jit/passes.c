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
#include "ir/rules.h"
#include "jit/hoist.h"
#include "jit/remat.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct PassRun {
    Graph *g;
    const JitOptions *options;
    Rewriter rewriter; /* what was applied; zero for passes that apply nothing */
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
static Status pass_rules(PassRun *run) { return rewrite(run, FAMILY_CANON | FAMILY_FOLD | FAMILY_RULES); }

static Status pass_cse(PassRun *run) { return rewrite(run, FAMILY_MERGE); }

static Status pass_hoist(PassRun *run)
{
    hoist(run->g);
    return ST_OK;
}

static Status pass_remat(PassRun *run)
{
    remat(run->g, (int)run->options->value[OPT_REMAT]);
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

/* "mul_one 2, reshape 1": what was applied how often. */
static void print_hits(const Rewriter *w, Str *out)
{
    const char *comma = "";
    for (int k = 0; k < RULE_COUNT; k++) {
        if (w->hits[k]) {
            str_printf(out, "%s%s %u", comma, rule_info[k].name, w->hits[k]);
            comma = ", ";
        }
    }
    if (w->merged)
        str_printf(out, "%smerged %u", comma, w->merged);
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
    print_hits(&run->rewriter, &hits);
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

/* On a graph, then on the bodies in it. */
static Status run_on(PassRun *run, PassId id, Graph *g)
{
    run->g = g;
    TRY(passes[id].run(run));
    for (Ref r = 0; r < g->nodes.n; r++)
        for (uint32_t b = 0; b < graph_node(g, r)->n_bodies; b++)
            TRY(run_on(run, id, graph_node(g, r)->bodies[b]));
    return ST_OK;
}

static Status run_pass(PassRun *run, PassId id)
{
    if (told_to_fail(passes[id].name))
        return fail(ST_COMPILE, "made to fail by KILN_TEST_FAIL");
    Graph *g = run->g;
    Status status = run_on(run, id, g);
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

Status jit_run_passes(Graph *g, const JitOptions *options, PassDump *dump, void *user)
{
    bool logged = log_on(LOG_PASSES), want_text = dump || (logged && log_detailed(LOG_PASSES));
    PassRun run = {.g = g, .options = options};
    TRY(graph_verify(g));
    const char *text = want_text ? graph_text(g) : NULL;
    if (dump)
        dump(user, "graph_recorded.txt", with_places(g, text));
    for (int id = 0; id < PASS_COUNT; id++) {
        if (passes[id].optional && !options->value[OPT_REWRITE])
            continue;
        const char *name = passes[id].name, *before = text;
        uint32_t n = logged ? graph_size(g) : 0;
        double start = os_seconds();
        int64_t began = timeline_begin();
        run.rewriter = (Rewriter){0};
        Status status = run_pass(&run, (PassId)id);
        if (status != ST_OK)
            return failed(status, name);
        double seconds = os_seconds() - start;
        if (began)
            timeline_span(TL_PASS, name, began, TL_INT("nodes", graph_size(g)));
        text = want_text ? graph_text(g) : NULL;
        bool changed = text && strcmp(text, before) != 0;
        if (logged)
            report(&run, name, n, seconds, log_detailed(LOG_PASSES) ? text : NULL, changed);
        if (dump && changed)
            dump(user, arena_printf(g->arena, "graph_%s.txt", name), with_places(g, text));
    }
    return ST_OK;
}
