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
#include "runtime/eval.h"

enum { REMEMBERED = 256 };

/* Which sync point a walk served; under the evaluation lock. */
static struct {
    uint32_t walk, evaluation;
    const char *api;
    Loc loc;
} served[REMEMBERED];

void breaks_served(const Call *call, const char *api, Loc loc)
{
    if (!log_on(LOG_BREAKS))
        return;
    served[call->walk % REMEMBERED].walk = call->walk;
    served[call->walk % REMEMBERED].evaluation = call->evaluation;
    served[call->walk % REMEMBERED].api = api;
    served[call->walk % REMEMBERED].loc = loc;
}

void breaks_report(const Call *call, const char *api, Loc loc)
{
    uint32_t slot = call->again.walk % REMEMBERED;
    if (!log_on(LOG_BREAKS) || call->again.n == 0 || served[slot].walk != call->again.walk ||
        served[slot].evaluation == call->evaluation) /* parts of one large graph */
        return;
    const RtNode *node = call->again.node;
    Loc first = served[slot].loc;
    log_line(LOG_BREAKS, "%s at %s:%d split a graph: it computed %u node%s that %s at %s:%d needs again, such as the %s recorded at "
             "%s:%d. Evaluate both together (kiln_eval_many), or what they share before", served[slot].api,
             first.file ? first.file : "?", first.line, call->again.n, call->again.n == 1 ? "" : "s", api, loc.file ? loc.file : "?",
             loc.line, op_name((Op)node->op), node->loc.file ? node->loc.file : "?", node->loc.line);
}
