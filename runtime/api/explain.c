/* What kiln says about a call: graphs, look-ups, fall-backs, dumps. Why something was compiled: runtime/eval/recompile.c. */
#define KILN_NO_LOCATIONS
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "jit/options.h"
#include "runtime/eval.h"
#include "runtime/record/record.h"

#include <stdio.h>

void log_hit(const Call *call)
{
    if (log_on(LOG_CACHE))
        log_line(LOG_CACHE, "hit %s (%zu nodes)", call_id(call).text, call->nodes.n);
}

void log_graph(const Graph *g, const Call *call)
{
    if (!log_on(LOG_GRAPH))
        return;
    Str out;
    str_init(&out, g->arena);
    graph_print(g, arena_printf(g->arena, "g%s", call_id(call).text), &out);
    log_text(LOG_GRAPH, out.text);
}

void warn_fallback(const Call *call, const char *api, Loc loc)
{
    char key[48], why[512];
    snprintf(why, sizeof why, "%s", fail_message());
    CallId id = call_id(call);
    snprintf(key, sizeof key, "fallback %s", id.text);
    log_warn_once(key,
                  "%s at %s:%d: compiling the graph %s (%zu nodes) failed: %s; the interpreter runs it, slowly "
                  "(KILN_STRICT=1 makes this an error)",
                  api, loc.file ? loc.file : "?", loc.line, id.text, call->nodes.n, why);
}

const char *dump_name(const Call *call, char *buffer, size_t size)
{
    static unsigned counter; /* under the evaluation lock; numbers the programs of this process */
    char folder[8];
    if (os_elevated() || option_text(OPT_DUMP, folder, sizeof folder)[0] == '\0')
        return NULL;
    snprintf(buffer, size, "%04u_%s", counter++, call_id(call).text);
    return buffer;
}

/* --- kiln_graph_text, kiln_explain ---------------------------------------------------------------------------------------- */

typedef struct TextJob {
    Evaluation *e;
    Call *call;
    const RtNode *root;
    bool explain;
    uint32_t part; /* calls so far */
    char *buffer;
    size_t size, length;
} TextJob;

static Status print_in_arena(Arena *arena, void *user)
{
    TextJob *job = user;
    Str out;
    str_init(&out, arena);
    bool last = job->call->nodes.at[job->call->outputs.at[0]] == job->root;
    if (job->part++ || !last) /* a graph of more than CALL_MAX_NODES nodes */
        str_printf(&out, "part %u%s: ", job->part, last ? ", the last" : "");
    if (job->explain)
        TRY(eval_explain(job->e, job->call, arena, &out));
    else
        graph_print(call_graph(job->call, arena), "graph", &out);
    if (job->length < job->size)
        snprintf(job->buffer + job->length, job->size - job->length, "%s", out.text);
    job->length += out.len;
    return ST_OK;
}

static Status print_call(Evaluation *e, Call *call, void *user)
{
    TextJob *job = user;
    job->e = e;
    job->call = call;
    return with_arena(print_in_arena, job);
}

/* The text about the graph behind x. An evaluated tensor has no graph: empty text. */
static kiln_status text_of(kiln_tensor *x, bool explain, char *buffer, size_t size, size_t *needed, const char *api, Loc loc)
{
    if (!x)
        return error_null("x", api, loc);
    if (size && !buffer)
        return error_sync(fail(ST_INVALID, "buffer is NULL but size is %zu", size), api, loc);
    TextJob job = {.root = x->node, .explain = explain, .buffer = buffer, .size = size};
    if (size)
        buffer[0] = '\0';
    RtNode *root = x->node;
    Evaluation *e;
    Status status = eval_enter(&e);
    if (status == ST_OK) {
        status = eval_collect(e, &root, 1, print_call, &job);
        eval_unlock();
    }
    if (needed)
        *needed = job.length;
    return error_sync(status, api, loc);
}

API4(kiln_status, kiln_graph_text, kiln_tensor *, x, char *, buffer, size_t, size, size_t *, needed)
{
    return text_of(x, false, buffer, size, needed, "kiln_graph_text", (Loc){file, line});
}

API4(kiln_status, kiln_explain, kiln_tensor *, x, char *, buffer, size_t, size, size_t *, needed)
{
    return text_of(x, true, buffer, size, needed, "kiln_explain", (Loc){file, line});
}
