/*
 * What a miss leads to besides a compile: the reason as text, the log line, and what KILN_ON_RECOMPILE asks for.
 *
 * A recompile is a miss on a graph that has a program already (or had one that was evicted). Recompiles are counted by sync point and
 * graph; when there are as many as KILN_MAX_VARIANTS, a warning says so, once, with their rate.
 */
#define KILN_NO_LOCATIONS
#include "ir/base/log.h"
#include "runtime/api/stats.h"
#include "runtime/eval.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* --- the reason as text --------------------------------------------------------------------------------------------- */

static void place(Str *out, Loc loc)
{
    if (loc.file)
        str_printf(out, "%s:%d", loc.file, loc.line);
    else
        str_printf(out, "unknown place");
}

/* "size of axis 0 of input %2 f32[128,1024] (recorded at train.c:12)": the fact, as the user knows it. */
static void describe_fact(const Graph *g, uint32_t fact, Str *out)
{
    static const char *const what[] = {
        [FACT_DIM] = "size of axis %d",          [FACT_STRIDE] = "stride of axis %d",
        [FACT_SIZE] = "size of axis %d",         [FACT_START] = "start on axis %d",
        [FACT_STEP] = "step on axis %d",         [FACT_LOW] = "padding before axis %d",
        [FACT_HIGH] = "padding after axis %d",   [FACT_LENGTH] = "length",
        [FACT_DILATION] = "dilation on axis %d",
    };
    const IntFact *f = &g->shared->ints.at[fact];
    const Node *node = graph_node(g, f->node);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    str_printf(out, what[f->kind], f->axis);
#pragma GCC diagnostic pop
    str_printf(out, " of %s %%%u %s[", op_name((Op)node->op), f->node, dtype_name((DType)node->dtype));
    for (int i = 0; i < node->rank; i++)
        str_printf(out, "%s%" PRId64, i ? "," : "", dim_hint(g, node->dim[i]));
    str_printf(out, "] (recorded at ");
    place(out, node->loc);
    str_printf(out, ")");
}

static void describe_guard(const Graph *g, const Call *call, const CacheMiss *miss, Str *out)
{
    const GuardSet *set = &miss->closest->guards;
    const Guard *guard = &set->at[miss->guard];
    int64_t *sizes = ARENA_ARRAY(g->arena, int64_t, set->sizes.n + 1);
    sizes_eval(&set->sizes, call->facts.ints, sizes);
    uint32_t fact = guard_first_fact(set, guard);
    str_printf(out, ": ");
    if (guard->kind == GUARD_SCALAR_EQ) {
        str_printf(out, "scalar recorded at ");
        place(out, graph_node(g, g->shared->scalars.at[guard->a].node)->loc);
    } else if (fact != UINT32_MAX) {
        describe_fact(g, fact, out);
    }
    str_printf(out, ": ");
    guard_print_failure(guard, sizes, &call->facts, out);
    str_printf(out, " (guard ");
    guard_print(set, guard, out);
    str_printf(out, ", asked by %s)", guard->who);
}

/* The first value whose dtype is another than in the newest variant. */
static void describe_dtype(const Call *call, const uint8_t *compiled, Str *out)
{
    for (size_t i = 0; i < call->nodes.n; i++) {
        const RtNode *node = call->nodes.at[i];
        if (compiled[i] == node->dtype)
            continue;
        str_printf(out, ": value recorded at ");
        place(out, node->loc);
        str_printf(out, ": expected %s, found %s", dtype_name((DType)compiled[i]), dtype_name((DType)node->dtype));
        return;
    }
    str_printf(out, ": the dtypes are alike, a mark of an axis is not");
}

void explain_miss(const Graph *g, const Call *call, const CacheMiss *miss, Str *out)
{
    str_printf(out, "%s: %s", reason_name(miss->reason), reason_text(miss->reason));
    if (miss->closest)
        describe_guard(g, call, miss, out);
    else if (miss->reason == REASON_DTYPE && miss->signature)
        describe_dtype(call, miss->signature, out);
    if (miss->n_variants)
        str_printf(out, "; closest of %u compiled variant%s", miss->n_variants, miss->n_variants == 1 ? "" : "s");
}

void explain_program(const Program *program, Str *out)
{
    str_printf(out, "hit: a compiled program fits, with %u guard%s", program->guards.n, program->guards.n == 1 ? "" : "s");
    for (uint32_t i = 0; i < program->guards.n; i++) {
        str_printf(out, i ? ", " : ": ");
        guard_print(&program->guards, &program->guards.at[i], out);
    }
    str_printf(out, "\nwould run %u launch%s\n", program->n_steps, program->n_steps == 1 ? "" : "es");
    for (uint32_t i = 0; i < program->n_steps; i++)
        str_printf(out, "  %s\n", program->steps[i].what);
}

/* --- recompiles by place ----------------------------------------------------------------------------------------------- */

enum { SITES = 64 };

/* A sync point that recompiled a graph; under the evaluation lock. The file's name is hashed, for it is gone when the plugin that it lies
 * in is unloaded; two of one hash would be counted together. */
typedef struct Site {
    Hash128 file, graph;
    int line;
    int64_t recompiles, first_eval;
} Site;

static Site sites[SITES];
static int n_sites;

static bool same_hash(Hash128 a, Hash128 b) { return a.lo == b.lo && a.hi == b.hi; }

static Site *site_at(Loc loc, Hash128 graph)
{
    if (!loc.file)
        return NULL;
    Hash128 file = hash128(loc.file, strlen(loc.file));
    for (int i = 0; i < n_sites; i++)
        if (sites[i].line == loc.line && same_hash(sites[i].graph, graph) && same_hash(sites[i].file, file))
            return &sites[i];
    if (n_sites == SITES)
        return NULL;
    sites[n_sites] = (Site){.file = file, .graph = graph, .line = loc.line, .first_eval = stat_get(STAT_EVALS)};
    return &sites[n_sites++];
}

static void count_recompile(const Call *call, const JitOptions *options, const char *api, Loc loc, const char *reason)
{
    Site *site = site_at(loc, call->key.hash);
    if (!site || ++site->recompiles != options->value[OPT_MAX_VARIANTS])
        return;
    int64_t evals = stat_get(STAT_EVALS) - site->first_eval + 1;
    log_warn("%s at %s:%d: %" PRId64 " recompiles of one graph in the last %" PRId64
             " evaluations; the last one because %s. Mark the axis that "
             "varies with kiln_mark_dynamic, or see KILN_LOG=recompiles",
             api, loc.file, loc.line, site->recompiles, evals < site->recompiles ? site->recompiles : evals, reason);
}

/* --- a miss --------------------------------------------------------------------------------------------------------------- */

static bool is_recompile(const CacheMiss *miss) { return miss->n_variants > 0 || miss->general || miss->reason == REASON_EVICTED; }

Status miss_reported(const Graph *g, const Call *call, const CacheMiss *miss, const JitOptions *options, const char *api, Loc loc)
{
    int64_t wish = options->value[OPT_ON_RECOMPILE];
    if (!is_recompile(miss) && !log_on(LOG_RECOMPILES))
        return ST_OK;
    Str out;
    str_init(&out, g->arena);
    explain_miss(g, call, miss, &out);
    if (log_on(LOG_RECOMPILES)) {
        call_site_compiles(call, miss->reason == REASON_NEVER_SEEN, options, loc, &out);
        log_line(LOG_RECOMPILES, "%s at %s:%d: compiling %zu node%s (%s): %s", api, loc.file ? loc.file : "?", loc.line, call->nodes.n,
                 call->nodes.n == 1 ? "" : "s", call_id(call).text, out.text);
    }
    if (!is_recompile(miss))
        return ST_OK;
    if (wish == ON_RECOMPILE_ERROR)
        return fail(ST_COMPILE, "KILN_ON_RECOMPILE=error: %s", out.text);
    if (wish == ON_RECOMPILE_WARN)
        log_warn("%s at %s:%d: recompiles %zu nodes: %s", api, loc.file ? loc.file : "?", loc.line, call->nodes.n, out.text);
    count_recompile(call, options, api, loc, out.text);
    return ST_OK;
}
