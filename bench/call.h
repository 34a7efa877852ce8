/* A kiln_function with its inputs, called as a user calls it, and timed: what rows of convolution.c and programs.c are. */
#ifndef BENCH_CALL_H
#define BENCH_CALL_H

#include "bench/timing.h"

#include <kiln.h>

enum { MOST_INPUTS = 13, MOST_RESULTS = 3, CALL_ROUNDS = 15, QUICK_ROUNDS = 3 };

typedef struct Call {
    kiln_scope *scope;
    kiln_function *f;
    kiln_tensor *in[MOST_INPUTS], *out[MOST_RESULTS]; /* out: of the last call */
    int inputs, results;
} Call;

typedef void CallBody(kiln_tensor **in, kiln_tensor **out, void *user);

/* Opens a scope, in which the caller then makes `in` and counts `inputs`; call_compile evaluates them and makes the function. */
Call *call_new(void);
void call_compile(Call *call, CallBody *body, int results, const void *user);
void call_run(Call *call);
void call_free(Call *call);

/* Input i, or a result of the last call (i = -1, -2, ..): its rank, with its dims, its dtype and its elements, unless data is NULL.
 * -1: there is none. */
int call_read(const Call *call, int i, int64_t *dims, int *dtype, void *data);

typedef struct CallTime {
    double seconds; /* median of the rounds */
    long long kernels, compiles;
    double bytes;
} CallTime;

/* After three calls that don't count. kernels and bytes: of one call; compiles: of all that count. */
CallTime call_time(Call *call, int rounds);

#endif
