/* The passes over a graph before fusion; the table is jit/passes.def. */
#ifndef JIT_PASSES_H
#define JIT_PASSES_H

#include "ir/graph.h"
#include "jit/options.h"

typedef enum PassId {
#define PASS(id, name, function, optional, help) PASS_##id,
#include "jit/passes.def"
#undef PASS
    PASS_COUNT
} PassId;

const char *pass_name(PassId id);

/* Gets each stage as text; `stage` is a file name such as "graph_rules.txt". */
typedef void PassDump(void *user, const char *stage, const char *text);

/*
 * Runs all passes on g, in place. Facts keep their numbers; nodes do not. Guards go through g->shared->query. Logs under LOG_PASSES.
 * `dump` (may be NULL) gets the graph as recorded and after each pass that changed it. On failure (a broken graph: ST_INTERNAL;
 * the test hook: ST_COMPILE) g is in no particular state.
 */
Status jit_run_passes(Graph *g, const JitOptions *options, PassDump *dump, void *user);

#endif
