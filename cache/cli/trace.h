/* Two timelines held against each other: `kiln trace diff`, `kiln report --diff`. */
#ifndef CACHE_CLI_TRACE_H
#define CACHE_CLI_TRACE_H

#include "cache/cli/trace_read.h"

typedef struct TraceDiff TraceDiff;

/* Reads both and compares. END_FINE, or the status to end with, all being said. */
int trace_diff(Cli *cli, const char *const path[TRACE_SIDES], TraceDiff **out);
json_t *trace_diff_json(const TraceDiff *diff); /* as `kiln trace diff --json` prints it */
void trace_diff_print(const TraceDiff *diff);
/* Says what keeps it from being the whole truth, and which kernels failed --fail-above. END_FINE; END_FOUND: some did. */
int trace_diff_end(const TraceDiff *diff);

#endif
