/* What kiln says about a call: graphs, look-ups, and above all why something was compiled. */
#define KILN_NO_LOCATIONS
#include "ir/base/log.h"
#include "jit/options.h"
#include "runtime/eval.h"

#include <inttypes.h>
#include <stdio.h>

static void place(Str *out, Loc loc)
{
    if (loc.file)
        str_printf(out, "%s:%d", loc.file, loc.line);
    else
        str_printf(out, "unknown place");
}

/* "axis 0 of input %2 f32[128,1024]": the fact, as the user knows it. */
static void describe_fact(const Graph *g, uint32_t fact, Str *out)
{
    static const char *const what[] = {
        [FACT_DIM] = "size of axis %d",     [FACT_STRIDE] = "stride of axis %d", [FACT_SIZE] = "size of axis %d",
        [FACT_START] = "start on axis %d",  [FACT_STEP] = "step on axis %d",     [FACT_LOW] = "padding before axis %d",
        [FACT_HIGH] = "padding after axis %d", [FACT_LENGTH] = "length",
    };
    const IntFact *f = &g->ints.at[fact];
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
        place(out, graph_node(g, g->scalars.at[guard->a].node)->loc);
    } else if (fact != UINT32_MAX) {
        describe_fact(g, fact, out);
    }
    str_printf(out, ": ");
    guard_print_failure(guard, sizes, &call->facts, out);
    str_printf(out, " (guard ");
    guard_print(set, guard, out);
    str_printf(out, ", asked by %s)", guard->who);
}

void log_recompile(const Graph *g, const Call *call, const CacheMiss *miss, const char *api, Loc loc)
{
    if (!log_on(LOG_RECOMPILES))
        return;
    Str out;
    str_init(&out, g->arena);
    str_printf(&out, "%s at ", api);
    place(&out, loc);
    str_printf(&out, ": compiling %zu nodes (%016" PRIx64 "): %s: %s", call->nodes.n, call->key.hash.hi,
               reason_name(miss->reason), reason_text(miss->reason));
    if (miss->closest)
        describe_guard(g, call, miss, &out);
    if (miss->n_variants)
        str_printf(&out, "; closest of %u compiled variant%s", miss->n_variants, miss->n_variants == 1 ? "" : "s");
    log_line(LOG_RECOMPILES, "%s", out.text);
}

void log_hit(const Call *call)
{
    if (log_on(LOG_CACHE))
        log_line(LOG_CACHE, "hit %016" PRIx64 " (%zu nodes)", call->key.hash.hi, call->nodes.n);
}

void log_graph(const Graph *g, const Call *call)
{
    if (!log_on(LOG_GRAPH))
        return;
    char name[32];
    snprintf(name, sizeof name, "g%016" PRIx64, call->key.hash.hi);
    Str out;
    str_init(&out, g->arena);
    graph_print(g, name, &out);
    log_text(LOG_GRAPH, out.text);
}

void warn_fallback(const Call *call, const char *api, Loc loc)
{
    char key[48];
    snprintf(key, sizeof key, "fallback %016" PRIx64, call->key.hash.hi);
    log_warn_once(key, "%s at %s:%d: compiling the graph %016" PRIx64 " (%zu nodes) failed: %s; the interpreter runs it, slowly "
                  "(KILN_STRICT=1 makes this an error)", api, loc.file ? loc.file : "?", loc.line, call->key.hash.hi,
                  call->nodes.n, fail_message());
}

const char *dump_name(const Call *call, char *buffer, size_t size)
{
    static unsigned counter; /* under the evaluation lock; numbers the programs of this process */
    char folder[8];
    if (option_text(OPT_DUMP, folder, sizeof folder)[0] == '\0')
        return NULL;
    snprintf(buffer, size, "%04u_%016" PRIx64, counter++, call->key.hash.hi);
    return buffer;
}

/* --- kiln_graph_text ------------------------------------------------------------------------------------------------ */

typedef struct TextJob {
    const Call *call;
    const RtNode *root;
    char *buffer;
    size_t size, length;
} TextJob;

static Status print_in_arena(Arena *arena, void *user)
{
    TextJob *job = user;
    Str out;
    str_init(&out, arena);
    graph_print(call_graph(job->call, arena), "graph", &out);
    job->length = out.len;
    if (job->size)
        snprintf(job->buffer, job->size, "%s", out.text);
    return ST_OK;
}

static Status print_call(Call *call, void *user)
{
    TextJob *job = user;
    job->call = call;
    if (call->nodes.at[call->outputs.at[0]] != job->root)
        return fail(ST_UNSUPPORTED, "the graph has more than %d nodes and would run in parts", CALL_MAX_NODES);
    return with_arena(print_in_arena, job);
}

kiln_status kiln_graph_text_at(const char *file, int line, kiln_tensor *x, char *buffer, size_t size, size_t *needed)
{
    static const char api[] = "kiln_graph_text";
    Loc loc = {file, line};
    if (!x)
        return error_null("x", api, loc);
    if (size && !buffer)
        return error_sync(fail(ST_INVALID, "buffer is NULL but size is %zu", size), api, loc);
    TextJob job = {.root = x->node, .buffer = buffer, .size = size};
    if (size)
        buffer[0] = '\0';
    eval_lock();
    RtNode *root = x->node;
    Status status = eval_collect(&root, 1, print_call, &job); /* an evaluated tensor has no graph: empty text */
    eval_unlock();
    if (needed)
        *needed = job.length;
    return error_sync(status, api, loc);
}

kiln_status kiln_graph_text(kiln_tensor *x, char *buffer, size_t size, size_t *needed)
{
    return kiln_graph_text_at(NULL, 0, x, buffer, size, needed);
}
