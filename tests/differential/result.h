/* What a case gives: recorded, evaluated and read back in one mode, and compared with what another gave. */
#ifndef TESTS_DIFFERENTIAL_RESULT_H
#define TESTS_DIFFERENTIAL_RESULT_H

#include "tests/differential/engine.h"

typedef struct Output {
    kiln_dtype dtype;
    kiln_shape shape;
    void *data;
} Output;

typedef struct Result {
    kiln_status status; /* of the first step that failed */
    const char *step;   /* which: "recording", "kiln_eval_many"... */
    char message[256];
    int n; /* outputs; 0 when something failed */
    Output out[MAX_OUT];
} Result;

/* The data of input i from a seed: heap memory. */
void *case_data(const Case *c, int i, uint64_t seed);
/* Builds on the inputs, evaluates and reads back, in the mode that is set. Leaves no error kept. */
Result case_result(const Case *c, kiln_tensor *const *in);
/* The same by the interpreter (mode and math are left so), from plain copies of the data. */
Result case_by_interp(const Case *c, void *const *data);
/* Reports where `got` is not what the interpreter wants. */
void results_compare(const Case *c, const char *how, const Result *wanted, const Result *got, Tolerance t);
void result_free(Result *r);

#endif
