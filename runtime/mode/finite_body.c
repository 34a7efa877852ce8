/*
 * Loops and branches under the finite check (finite.h): a request for one more result, the report, which comes first.
 *
 *     LOOP   operands: report, carries, xs, ...    results: report, carries, ys       a carry like any other, which begins as "nothing"
 *     COND   operands as they are                  results: report, those of both functions
 *
 * Compiled with -fexceptions, as the functions of the user's that run in it may throw.
 */
#define KILN_NO_LOCATIONS
#include "ir/base/os.h"
#include "runtime/mode/finite.h"
#include "runtime/record/bodies.h"

#include <string.h>

#define CLEANUP(function) __attribute__((cleanup(function)))

typedef struct Watched {
    Rec *r;
    const BodiesRequest *request; /* the user's */
    bool loop;
    struct WatchedFunction {
        const struct Watched *of;
        const BodyFunction *function;
    } side[2];
    Shape *type; /* of a loop: of the inputs of its step */
    RtNode **given, **result;
} Watched;

static void end_watched(Watched *w)
{
    os_free(w->type);
    os_free(w->given);
}

/* A step or branch. In: i, the report, then the user's; out: the report, then the user's. */
static void call_watched(kiln_tensor **in, kiln_tensor **out, void *with)
{
    const struct WatchedFunction *side = with;
    const Watched *w = side->of;
    kiln_tensor *i = w->loop ? in[0] : NULL, *before = w->loop ? in[1] : NULL;
    Rec r = rec_begin(w->r->api, w->r->loc.file, w->r->loc.line);
    FiniteChecks *body CLEANUP(finite_body_end) = finite_body_begin(&r);
    rec_end(&r, NULL);
    if (!body)
        return;
    if (w->loop)
        in[1] = i;
    const uint64_t errors = errors_raised();
    side->function->call(in + w->loop, out + 1, side->function->with);
    if (errors_since(errors))
        return;
    r = rec_begin(w->r->api, w->r->loc.file, w->r->loc.line);
    RtNode *report = w->loop ? rec_in(&r, before, "a report") : NULL, *number = w->loop ? rec_in(&r, i, "i") : NULL;
    out[0] = rec_end(&r, finite_body_report(&r, body, report, number));
}

/* The condition of a loop, which does not look at the report. */
static void call_condition(kiln_tensor **in, kiln_tensor **out, void *with)
{
    const struct WatchedFunction *side = with;
    side->function->call(in + 1, out, side->function->with);
}

static Status check_watched(void *user, uint32_t which, RtNode *const *out)
{
    const Watched *w = user;
    const bool condition = w->loop && which == 1;
    return w->request->check ? w->request->check(w->request->user, which, out + !condition) : ST_OK;
}

static Status type_of_watched(void *user, uint32_t k, RtNode *const *out, Shape *type)
{
    const Watched *w = user;
    if (k > 0)
        return w->request->type(w->request->user, k - 1, out + 1, type);
    *type = finite_report_type();
    return ST_OK;
}

Status finite_bodies(Rec *r, const BodiesRequest *request, RtNode **result)
{
    const bool loop = request->op == OP_LOOP;
    const uint32_t n_given = request->n_given + loop, n_in = request->function[0].n_in, n_results = request->n_results + 1;
    Watched w CLEANUP(end_watched) = {.r = r, .request = request, .loop = loop};
    w.given = os_calloc((size_t)n_given + n_results + 1, sizeof *w.given);
    w.type = loop ? os_calloc((size_t)n_in + 2, sizeof *w.type) : NULL;
    if (!w.given || (loop && !w.type)) {
        rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
        return r->status;
    }
    w.result = w.given + n_given;
    if (loop && !(w.given[0] = finite_no_report(r)))
        return r->status;
    memcpy(w.given + loop, request->given, sizeof *w.given * request->n_given);
    BodyFunction function[2];
    for (uint32_t b = 0; b < request->n_bodies; b++) {
        const bool condition = loop && b == 1;
        w.side[b] = (struct WatchedFunction){&w, &request->function[b]};
        function[b] = request->function[b];
        function[b].call = condition ? call_condition : call_watched;
        function[b].with = &w.side[b];
        function[b].n_in += loop;
        function[b].n_out += !condition;
        function[b].hidden = !condition;
        function[b].in = loop ? w.type + condition : function[b].in;
    }
    if (loop) {
        w.type[0] = request->function[0].in[0];
        w.type[1] = finite_report_type();
        memcpy(w.type + 2, request->function[0].in + 1, sizeof *w.type * (n_in - 1));
    }
    BodiesRequest watched = *request;
    watched.attr.loop.settles = 0; /* what is watched for changes in any step */
    if (loop)
        watched.attr.loop.carries = (uint16_t)(request->attr.loop.carries + 1);
    else
        watched.attr.n = n_results;
    watched.n_given = n_given;
    watched.n_results = n_results;
    watched.given = w.given;
    watched.function = function;
    watched.check = check_watched;
    watched.type = type_of_watched;
    watched.user = &w;
    watched.reports = true;
    Status status = bodies_record(r, &watched, w.result);
    if (status != ST_OK)
        return status;
    finite_reported(r, w.result[0]);
    node_release(w.result[0]);
    for (uint32_t k = 0; k < request->n_results; k++) {
        result[k] = r->status == ST_OK ? w.result[k + 1] : NULL;
        if (r->status != ST_OK)
            node_release(w.result[k + 1]);
    }
    return r->status;
}

void finite_body_again(Rec *r, RtNode *node)
{
    const Shape type = finite_report_type();
    if (!bodies_of(node)->reports || !finite_watches(r->thread))
        return;
    RtNode *report = bodies_result(node, 0);
    report = report ? rec_own(r, report) : bodies_result_new(r, node, 0, &type);
    if (report)
        finite_reported(r, report);
}
