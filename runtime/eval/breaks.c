/*
 * KILN_LOG=breaks: sync points that split what could have been one graph.
 *
 *     y = kiln_exp(x);
 *     kiln_item(kiln_sum(y), &s);          computes y inside, keeps only the sum
 *     if (s > 0) kiln_eval(kiln_mul(y, x)) needs y again: it is computed a second time
 *
 * A walk leaves its number on the nodes it collects (RtNode.mark). A pending node that carries the number of an earlier walk was
 * part of that walk's graph, was not one of its results, and is needed again. Only that is reported: results of one sync
 * point that are inputs of the next graph cost nothing twice.
 */
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "runtime/eval.h"

#include <string.h>

enum { REMEMBERED = 256 };

/* Which sync point a walk served; under the evaluation lock. */
static struct Served {
    uint32_t walk, evaluation;
    const char *api;
    char *file; /* a copy: the plugin that the name lies in may be unloaded; NULL: unknown */
    int line;
} served[REMEMBERED];

void breaks_served(const Call *call, const char *api, Loc loc)
{
    if (!log_on(LOG_BREAKS))
        return;
    struct Served *s = &served[call->walk % REMEMBERED];
    os_free(s->file);
    *s = (struct Served){call->walk, call->evaluation, api, loc.file ? os_copy(loc.file, strlen(loc.file) + 1) : NULL, loc.line};
}

void breaks_report(const Call *call, const char *api, Loc loc)
{
    const struct Served *first = &served[call->again.walk % REMEMBERED];
    if (!log_on(LOG_BREAKS) || call->again.n == 0 || first->walk != call->again.walk ||
        first->evaluation == call->evaluation) /* parts of one large graph */
        return;
    const RtNode *node = call->again.node;
    log_line(LOG_BREAKS,
             "%s at %s:%d split a graph: it computed %u node%s that %s at %s:%d needs again, such as the %s recorded at "
             "%s:%d. Evaluate both together (kiln_eval_many), or what they share before",
             first->api, first->file ? first->file : "?", first->line, call->again.n, call->again.n == 1 ? "" : "s", api,
             loc.file ? loc.file : "?", loc.line, op_name((Op)node->op), node->loc.file ? node->loc.file : "?", node->loc.line);
}
