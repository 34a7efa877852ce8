#include "bench/call.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

Call *call_new(void)
{
    Call *call = calloc(1, sizeof *call);
    if (!call)
        exit(1);
    call->scope = kiln_scope_begin();
    kiln_seed(1);
    return call;
}

void call_compile(Call *call, CallBody *body, int results, const void *user)
{
    kiln_check(kiln_eval_many(call->in, call->inputs));
    call->results = results;
    call->f = kiln_function_new(body, call->inputs, results, (void *)(uintptr_t)user);
    if (!call->f)
        kiln_check(kiln_error_status());
}

void call_free(Call *call)
{
    for (int k = 0; k < call->results; k++)
        kiln_release(call->out[k]);
    kiln_function_free(call->f);
    kiln_scope_end(call->scope);
    free(call);
}

void call_run(Call *call)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *out[MOST_RESULTS];
    kiln_check(kiln_function_call(call->f, call->in, out));
    kiln_check(kiln_eval_many(out, call->results));
    for (int k = 0; k < call->results; k++) {
        kiln_release(call->out[k]);
        call->out[k] = kiln_retain(out[k]);
    }
    kiln_scope_end(scope);
}

int call_read(const Call *call, int i, int64_t *dims, int *dtype, void *data)
{
    kiln_tensor *x = i < 0 ? (i + call->results >= 0 ? call->out[-1 - i] : NULL) : i < call->inputs ? call->in[i] : NULL;
    if (!x)
        return -1;
    kiln_shape shape = kiln_shape_of(x);
    memcpy(dims, shape.dim, sizeof *dims * (size_t)shape.rank);
    *dtype = (int)kiln_dtype_of(x);
    if (data)
        kiln_check(kiln_read(x, kiln_dtype_of(x), data, (size_t)kiln_numel(x) * kiln_dtype_size(kiln_dtype_of(x))));
    return shape.rank;
}

CallTime call_time(Call *call, int rounds)
{
    double times[MAX_ROUNDS];
    kiln_stats before, after;
    for (int k = 0; k < 3; k++)
        call_run(call);
    kiln_get_stats(&before);
    for (int k = 0; k < rounds; k++) {
        double start = now_seconds();
        call_run(call);
        times[k] = now_seconds() - start;
    }
    kiln_get_stats(&after);
    return (CallTime){median(times, rounds), (long long)(after.kernels - before.kernels) / rounds,
                      (long long)(after.compiles - before.compiles), (double)(after.bytes_moved - before.bytes_moved) / rounds};
}
