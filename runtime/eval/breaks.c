/*
 * KILN_LOG=breaks: sync points that split what could have been one graph, in two ways.
 *
 *     y = kiln_exp(x);
 *     kiln_item(kiln_sum(y), &s);          computes y inside, keeps only the sum
 *     kiln_eval(kiln_mul(y, x));           needs y again: it is computed a second time
 *
 * A walk leaves its number on the nodes it collects (RtNode.mark). A pending node that carries the number of an earlier walk was
 * part of that walk's graph, was not one of its results, and is needed again.
 *
 *     kiln_item(kiln_sum(x), &s);          the program looks at the value, ...
 *     y = s > 0 ? kiln_exp(x) : kiln_neg(x);
 *     kiln_eval(y);                        ... and goes on with what it was computed from: x is read twice, by two graphs
 *
 * An input that carries the number of an earlier walk was met by that walk. If the program has read the result of that walk, and something
 * of this graph was recorded after that (RtNode.after), the read stands between the two. It is told once for each pair of places, for loops.
 * Results that are inputs of the next graph cost nothing twice and are not told.
 */
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "runtime/api/stats.h"
#include "runtime/eval.h"
#include "runtime/record/record.h"

#include <stdio.h>
#include <string.h>

enum { REMEMBERED = 256, TOLD = 64 };

/* A place in the user's program. The file's name is a copy: the plugin that it lies in may be unloaded. */
typedef struct Place {
    const char *api;
    char *file; /* NULL: unknown */
    int line;
} Place;

/* Which sync point a walk served; under the evaluation lock. */
static struct Served {
    uint32_t walk, evaluation;
    Place place;
    const RtNode *result; /* only compared */
    double began;
    int64_t compile_ns; /* until then */
    Place reader;       /* who looked at the result first; no api: nobody */
    uint32_t passed;    /* sync points until that was done */
    double seconds;     /* from when it began until then, compiles left out */
} served[REMEMBERED];

static _Atomic uint32_t passed;
static Hash128 told[TOLD];
static uint32_t n_told;

uint32_t breaks_passed(void) { return atomic_load_explicit(&passed, memory_order_relaxed); }

static void set_place(Place *place, const char *api, Loc loc)
{
    os_free(place->file);
    *place = (Place){api, loc.file ? os_copy(loc.file, strlen(loc.file) + 1) : NULL, loc.line};
}

static const char *known(const char *file) { return file ? file : "?"; }

void breaks_served(const Evaluation *e, const Call *call)
{
    if (!log_on(LOG_BREAKS))
        return;
    struct Served *s = &served[call->walk % REMEMBERED];
    set_place(&s->place, e->api, e->loc);
    set_place(&s->reader, NULL, (Loc){NULL, 0});
    s->walk = call->walk;
    s->evaluation = call->evaluation;
    s->result = call->nodes.at[call->outputs.at[0]];
    s->began = e->began;
    s->compile_ns = e->compile_ns;
    atomic_fetch_add(&passed, 1);
}

void breaks_read(const RtNode *node, const char *api, Loc loc)
{
    if (!log_on(LOG_BREAKS) || eval_enter(NULL) != ST_OK)
        return;
    struct Served *s = &served[node->mark % REMEMBERED];
    if (node->mark && s->walk == node->mark && s->result == node && !s->reader.api) {
        set_place(&s->reader, api, loc);
        s->passed = atomic_fetch_add(&passed, 1) + 1;
        s->seconds = os_seconds() - s->began - 1e-9 * (double)(stat_get(STAT_COMPILE_NS) - s->compile_ns);
    }
    eval_unlock();
}

/* --- telling ----------------------------------------------------------------------------------------------------------------------- */

static void tell_again(const Call *call, const char *api, Loc loc)
{
    const struct Served *first = &served[call->again.walk % REMEMBERED];
    if (call->again.n == 0 || first->walk != call->again.walk || first->evaluation == call->evaluation) /* parts of one large graph */
        return;
    const RtNode *node = call->again.node;
    log_line(LOG_BREAKS,
             "%s at %s:%d split a graph: it computed %u node%s that %s at %s:%d needs again, such as the %s recorded at "
             "%s:%d. Evaluate both together (kiln_eval_many), or what they share before",
             first->place.api, known(first->place.file), first->place.line, call->again.n, call->again.n == 1 ? "" : "s", api,
             known(loc.file), loc.line, op_name((Op)node->op), known(node->loc.file), node->loc.line);
}

static bool told_before(const Place *reader, Loc loc)
{
    char text[600];
    int n = snprintf(text, sizeof text, "%.250s:%d %.250s:%d", known(reader->file), reader->line, known(loc.file), loc.line);
    Hash128 hash = hash128(text, (size_t)n);
    for (uint32_t i = 0; i < n_told && i < TOLD; i++)
        if (told[i].lo == hash.lo && told[i].hi == hash.hi)
            return true;
    told[n_told++ % TOLD] = hash;
    return false;
}

/* What the graph at hand reads that the first one read too, its result left out. */
static Again read_twice(const Call *call, const struct Served *first)
{
    Again reads = call->reads;
    for (size_t i = 0; i < call->inputs.n; i++)
        if (call->nodes.at[call->inputs.at[i]] == first->result) {
            reads.n--;
            reads.bytes -= (size_t)node_elements(first->result) * dtype_bytes((DType)first->result->dtype);
        }
    if (reads.node == first->result)
        reads.node = NULL;
    return reads;
}

static void tell_branch(const Call *call, const char *api, Loc loc)
{
    const struct Served *first = &served[call->reads.walk % REMEMBERED];
    if (call->reads.n == 0 || first->walk != call->reads.walk || !first->reader.api || first->evaluation == call->evaluation)
        return;
    Again reads = read_twice(call, first);
    bool later = false;
    for (size_t i = 0; i < call->nodes.n && !later; i++)
        later = !atomic_load(&call->nodes.at[i]->storage) && call->nodes.at[i]->after >= first->passed;
    if (!later || reads.n == 0 || told_before(&first->reader, loc))
        return;
    char shape[SHAPE_TEXT], from[SHAPE_TEXT + 320] = "";
    if (reads.node)
        snprintf(from, sizeof from, ", %s recorded at %s:%d", node_text(reads.node, shape), known(reads.node->loc.file),
                 reads.node->loc.line);
    log_line(
        LOG_BREAKS,
        "%s at %s:%d cut a graph in two: the program looked at its value, and %s at %s:%d computes what was recorded after that from %s%s. "
        "The program waited %.3f ms for the value, and %zu bytes are read a second time. Where the value only decides which of two "
        "results is taken, kiln_where(condition, a, b) keeps one graph",
        first->reader.api, known(first->reader.file), first->reader.line, api, known(loc.file), loc.line,
        reads.n == 1 ? "the same input" : "the same inputs", from, 1e3 * (first->seconds > 0 ? first->seconds : 0), reads.bytes);
}

void breaks_report(Evaluation *e, const Call *call)
{
    if (!log_on(LOG_BREAKS))
        return;
    tell_again(call, e->api, e->loc);
    tell_branch(call, e->api, e->loc);
    e->began = os_seconds();
    e->compile_ns = stat_get(STAT_COMPILE_NS);
}
