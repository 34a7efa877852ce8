/*
 * A miss: no compiled program fits this call. Say why, choose what becomes an argument, compile, enter the program.
 * serve_miss() is the story.
 */
#include "cache/entry.h"
#include "ir/base/log.h"
#include "jit/compile.h"
#include "runtime/api/mark.h"
#include "runtime/api/stats.h"
#include "runtime/device/device.h"
#include "runtime/eval/background.h"
#include "runtime/eval/store.h"
#include "runtime/eval/traced.h"

#include <stdio.h>
#include <string.h>

enum { HISTORY = 16 };

typedef struct CompileJob {
    Evaluation *e;
    Call *call;
    const CacheMiss *miss;
    Program *program;
    bool concurrent; /* the lock is given back: to be taken again, however the compile ends */
    EvalConcurrent place;
} CompileJob;

const void *bytes_copy(Arena *arena, const void *data, size_t bytes)
{
    return bytes ? arena_copy(arena, data, bytes) : arena_alloc(arena, 0);
}

Facts facts_copy(Arena *arena, const Facts *facts)
{
    return (Facts){bytes_copy(arena, facts->ints, sizeof *facts->ints * facts->n_ints),
                   bytes_copy(arena, facts->scalars, sizeof *facts->scalars * facts->n_scalars), facts->n_ints, facts->n_scalars};
}

Status miss_policy(const Call *call, const JitOptions *options, Breadth breadth, const Graph *g, GuardPolicy *policy)
{
    Arena *arena = g->arena;
    *policy = (GuardPolicy){.int_varies = ARENA_ARRAY(arena, bool, call->facts.n_ints + 1),
                            .scalar_varies = ARENA_ARRAY(arena, bool, call->facts.n_scalars + 1),
                            .int_fixed = ARENA_ARRAY(arena, bool, call->facts.n_ints + 1)};
    int64_t dynamic = options->value[OPT_DYNAMIC];
    Facts *seen = ARENA_ARRAY(arena, Facts, HISTORY);
    policy->n_seen = cache_history(&call->key, &call->facts, policy->int_varies, policy->scalar_varies, seen, HISTORY);
    for (uint32_t i = 0; i < policy->n_seen; i++)
        seen[i] = facts_copy(arena, &seen[i]);
    policy->seen = seen;
    policy->wide = breadth == BREADTH_WIDE;
    policy->general = breadth == BREADTH_GENERAL;
    if (dynamic == DYNAMIC_NEVER)
        memset(policy->int_varies, 0, call->facts.n_ints);
    if (breadth != BREADTH_USUAL)
        memset(policy->scalar_varies, 1, call->facts.n_scalars);
    call_arguments(call, policy->scalar_varies);
    TRY(marks_apply(call, g, policy));
    marks_promise(call, g, policy);
    guard_policy_close(policy, g, dynamic == DYNAMIC_ALWAYS || breadth != BREADTH_USUAL);
    return ST_OK;
}

/* After so many programs a general one, which relies on equalities alone: how reshapes group their axes, above all. Should one of those
 * fail, the most general one, which needs no successor. */
static Breadth breadth_of(const JitOptions *options, const CacheMiss *miss)
{
    if (options->value[OPT_DYNAMIC] == DYNAMIC_NEVER)
        return BREADTH_USUAL;
    if (miss->general)
        return BREADTH_GENERAL;
    return miss->n_variants >= options->value[OPT_MAX_VARIANTS] ? BREADTH_WIDE : BREADTH_USUAL;
}

/* KILN_COMPILE=off: which graph, under which key, for which call. */
static Status compile_refused(const Evaluation *e, const Graph *g, const Call *call, const CacheMiss *miss)
{
    Str why, key, shapes;
    char name[ENTRY_NAME_BYTES];
    str_init(&why, g->arena);
    str_init(&key, g->arena);
    str_init(&shapes, g->arena);
    explain_miss(g, call, miss, &why);
    call_key_text(call, &key);
    KeyText text = {NULL, key.text, 0, key.len};
    entry_prefix(&text, false, name);
    graph_print(g, "graph", &shapes);
    int inputs = (int)strcspn(shapes.text, ")") + 1; /* "graph graph(%0: f32[8,16])" */
    return fail(ST_COMPILE, "KILN_COMPILE=off, and no program is there for the graph %.*s of %zu nodes, %.*s, that %s at %s:%d needs: %s",
                ENTRY_GRAPH_HEX, name, call->nodes.n, inputs, shapes.text, e->api, e->loc.file ? e->loc.file : "?", e->loc.line, why.text);
}

static Status compile_in_arena(Arena *arena, void *user)
{
    CompileJob *job = user;
    Evaluation *e = job->e;
    Graph *g = call_graph(job->call, arena);
    GuardPolicy policy;
    log_graph(g, job->call);
    traced_miss(e, g, job->call, job->miss);
    e->refused = true;
    if (e->options.value[OPT_COMPILE] == COMPILE_OFF)
        return compile_refused(e, g, job->call, job->miss);
    TRY(miss_reported(g, job->call, job->miss, &e->options, e->api, e->loc));
    TRY(miss_policy(job->call, &e->options, breadth_of(&e->options, job->miss), g, &policy));
    e->refused = false;
    log_recorded(count_recorded(g, job->call));

    char name[64];
    CallId id = call_id(job->call);
    CompileTexts texts;
    bool keep = store_wanted(&e->options);
    CompileRequest request = {.graph = g,
                              .policy = &policy,
                              .options = &e->options,
                              .id = id.text,
                              .dump_name = dump_name(job->call, name, sizeof name),
                              .want_texts = keep,
                              .assemble = cuda_assemble,
                              .device = job->call->device};
    Str key;
    str_init(&key, arena);
    if (keep)
        call_key_text(job->call, &key);
    const char *place = keep ? store_place(e->loc, arena) : "";
    job->concurrent = may_be_concurrent(e, job->call);
    if (job->concurrent) /* nothing below looks at nodes, or at what belongs to the cache */
        eval_concurrent_begin(&job->place, job->call->walk, &job->call->key);
    TRY(jit_compile(&request, &job->program, &texts));
    if (keep)
        store_keep(&(StoreItem){key.text, key.len, &job->call->facts, &policy, job->program, &texts, &e->options, e->api, place});
    return ST_OK;
}

typedef struct AgainJob {
    const Evaluation *e;
    const Call *call;
    const EntryView *entry;
    Program *program;
} AgainJob;

static Status compile_again_in_arena(Arena *arena, void *user)
{
    AgainJob *job = user;
    GuardPolicy policy = job->entry->policy;
    Graph *g = call_graph(job->call, arena);
    marks_promise(job->call, g, &policy); /* the rest is as it was */
    CompileRequest request = {
        .graph = g, .policy = &policy, .options = &job->e->options, .afresh = true, .assemble = cuda_assemble, .device = job->call->device};
    TRY(jit_compile(&request, &job->program, NULL));
    stat_add(STAT_COMPILES, 1);
    stat_add(STAT_COMPILE_NS, (int64_t)(1e9 * job->program->compile_seconds));
    return ST_OK;
}

Status compile_as(const Evaluation *e, const Call *call, const EntryView *entry, Program **out)
{
    AgainJob job = {e, call, entry, NULL};
    TRY(with_arena(compile_again_in_arena, &job));
    *out = job.program;
    return ST_OK;
}

Status serve_miss(Evaluation *e, Call *call, const CacheMiss *miss, CacheHit *hit)
{
    if (background_await(e, call, hit))
        return ST_OK;
    CompileJob job = {.e = e, .call = call, .miss = miss};
    Status status = with_arena(compile_in_arena, &job);
    if (job.concurrent) {
        eval_concurrent_end(&job.place);
        call_renumber(call);
    }
    TRY(status);
    stat_add(STAT_COMPILES, 1);
    stat_add(STAT_COMPILE_NS, (int64_t)(1e9 * job.program->compile_seconds));
    background_generalise(e, call, job.program);
    return cache_add(&call->key, &call->facts, job.program, (size_t)e->options.value[OPT_CACHE_BYTES], hit);
}

Status eval_explain(Evaluation *e, Call *call, Arena *arena, Str *out)
{
    TRY(device_target(call->device, &e->options.target));
    CacheHit hit;
    CacheMiss miss;
    str_printf(out, "%zu nodes (%s): ", call->nodes.n, call_id(call).text);
    if (cache_find(&call->key, &call->facts, &hit, &miss) || store_find(e, call, &miss, &hit)) {
        explain_program(hit.program, out);
        return ST_OK;
    }
    Graph *g = call_graph(call, arena);
    GuardPolicy policy;
    explain_miss(g, call, &miss, out);
    TRY(miss_policy(call, &e->options, breadth_of(&e->options, &miss), g, &policy));

    Str steps;
    str_init(&steps, arena);
    uint32_t n_steps = 0;
    CompileRequest request = {.graph = g, .policy = &policy, .options = &e->options};
    TRY(jit_preview(&request, &n_steps, &steps));
    str_printf(out, "\nwould compile %u launch%s\n%s", n_steps, n_steps == 1 ? "" : "es", n_steps ? steps.text : "");
    return ST_OK;
}
