/* See result.h. */
#include "tests/differential/result.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

void *case_data(const Case *c, int i, uint64_t seed)
{
    const Spec *spec = &c->in[i];
    int64_t n = shape_elements(spec->shape);
    void *data = malloc((size_t)n * kiln_dtype_size(spec->dtype) + 1);
    values_fill(spec->dtype, spec->values, spec->limit, seed, n, data);
    return data;
}

void result_free(Result *r)
{
    for (int i = 0; i < r->n; i++)
        free(r->out[i].data);
    *r = (Result){0};
}

static Result failed(Result r, const char *step)
{
    result_free(&r);
    r.step = step;
    r.status = kiln_error_status();
    snprintf(r.message, sizeof r.message, "%s", kiln_error_message());
    kiln_clear_error();
    return r;
}

Result case_result(const Case *c, kiln_tensor *const *in)
{
    kiln_tensor *out[MAX_OUT] = {0};
    Result r = {0};
    int n = c->build(c, in, out);
    for (int i = 0; i < n; i++)
        if (!out[i])
            n = 0;
    if (n == 0)
        return failed(r, "recording");
    if (kiln_eval_many(out, n) != KILN_OK)
        return failed(r, "kiln_eval_many");
    for (int i = 0; i < n; i++) {
        Output *o = &r.out[i];
        o->dtype = kiln_dtype_of(out[i]);
        o->shape = kiln_shape_of(out[i]);
        size_t bytes = (size_t)kiln_numel(out[i]) * kiln_dtype_size(o->dtype);
        o->data = malloc(bytes + 1);
        r.n = i + 1;
        if (kiln_read(out[i], o->dtype, o->data, bytes) != KILN_OK)
            return failed(r, "kiln_read");
    }
    return r;
}

Result case_by_interp(const Case *c, void *const *data)
{
    set_option("mode", "interp");
    set_option("math", "strict");
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *in[MAX_IN] = {0};
    for (int i = 0; i < c->n_in; i++)
        in[i] = kiln_from(c->in[i].dtype, c->in[i].shape, data[i]);
    Result r = case_result(c, in);
    kiln_scope_end(scope);
    return r;
}

static bool same_output(const Case *c, const char *how, int k, const Output *w, const Output *g, Tolerance t)
{
    char a[96], b[96];
    if (w->dtype != g->dtype || !shape_equal(w->shape, g->shape)) {
        report(c, how, "output %d is %s, interp says %s", k, shape_text(g->dtype, g->shape, a), shape_text(w->dtype, w->shape, b));
        return false;
    }
    int64_t n = shape_elements(w->shape), at = values_differ(w->dtype, n, w->data, g->data, t), wrong = 0;
    if (at < 0)
        return true;
    size_t size = kiln_dtype_size(w->dtype);
    for (int64_t i = at; i < n; i++)
        wrong += values_differ(w->dtype, 1, (char *)w->data + (size_t)i * size, (char *)g->data + (size_t)i * size, t) >= 0;
    report(c, how, "output %d %s element %" PRId64 " is %s, interp says %s (%" PRId64 " of %" PRId64 " differ)", k,
           shape_text(w->dtype, w->shape, (char[96]){0}), at, value_text(g->dtype, g->data, at, a), value_text(w->dtype, w->data, at, b),
           wrong, n);
    return false;
}

void results_compare(const Case *c, const char *how, const Result *wanted, const Result *got, Tolerance t)
{
    if (wanted->n != got->n || wanted->status != got->status) {
        report(c, how, "%d outputs (%s: %s), interp has %d (%s: %s)", got->n, got->step ? got->step : "ok", got->message, wanted->n,
               wanted->step ? wanted->step : "ok", wanted->message);
        return;
    }
    for (int k = 0; k < wanted->n; k++)
        if (!same_output(c, how, k, &wanted->out[k], &got->out[k], t))
            return;
}
