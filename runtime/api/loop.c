/* kiln_while, kiln_scan, kiln_cond: checks and types; what is recorded is made by runtime/record/bodies.c. */
#define KILN_NO_LOCATIONS
#include "ir/base/os.h"
#include "runtime/gradient/body.h"
#include "runtime/record/bodies.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CLEANUP(function) __attribute__((cleanup(function)))

static const int64_t no_dims[1];
enum { BODY_VALUES = 4096 }; /* carries, xs, ys, inputs, outputs: of each */

/* One public call. Operands and results are borrowed and owned references, in one block. */
typedef struct LoopCall {
    Rec *r;
    RtNode **in, **result;
    Shape *type; /* of a body's inputs */
    uint32_t n_in, n_results;
    const char *carry; /* how the user calls the values that a step passes on */
    uint32_t n_carry;
    int64_t length;
    RtNode **first; /* a branch: what the first function gave; references */
} LoopCall;

static void end_call(LoopCall *c)
{
    for (uint32_t k = 0; c->first && k < c->n_results; k++)
        node_release(c->first[k]);
    os_free(c->first);
    os_free(c->in);
}

static void end_with(void *with) { end_call(with); } /* the first member of While and Scan */

static bool begin_call(LoopCall *c, uint32_t n_in, uint32_t n_results)
{
    if (c->r->status != ST_OK)
        return false;
    size_t nodes = sizeof(RtNode *) * ((size_t)n_in + n_results + 1);
    char *block = os_calloc(1, nodes + sizeof(Shape) * ((size_t)n_in + 2));
    if (!block) {
        rec_fail(c->r, ST_OUT_OF_MEMORY, "out of memory");
        return false;
    }
    c->in = (RtNode **)(void *)block;
    c->result = c->in + n_in;
    c->type = (Shape *)(void *)(block + nodes);
    c->n_results = n_results;
    return true;
}

static void take(LoopCall *c, kiln_tensor *const *x, uint32_t n, const char *name)
{
    char text[40];
    for (uint32_t k = 0; k < n && c->r->status == ST_OK; k++) {
        snprintf(text, sizeof text, "%s[%u]", name, k);
        c->in[c->n_in] = rec_strong(c->r, rec_in(c->r, x[k], text));
        c->n_in++;
    }
}

static Shape type_of(const RtNode *node)
{
    Shape type = {.dtype = node->dtype, .rank = node->rank};
    memcpy(type.dim, node->dim, sizeof *node->dim * node->rank);
    return type;
}

static bool same_type(const RtNode *a, const RtNode *b)
{
    return a->dtype == b->dtype && a->rank == b->rank && memcmp(a->dim, b->dim, sizeof *a->dim * a->rank) == 0;
}

/* The step gives carries of the types that it was given. */
static Status check_carries(const LoopCall *c, RtNode *const *out)
{
    char is[SHAPE_TEXT], gives[SHAPE_TEXT];
    for (uint32_t k = 0; k < c->n_carry; k++)
        if (!same_type(c->in[k], out[k]))
            return fail(c->in[k]->dtype != out[k]->dtype ? ST_DTYPE : ST_SHAPE,
                        "%s[%u] is %s and becomes %s: a step keeps dtypes and shapes", c->carry, k, node_text(c->in[k], is),
                        node_text(out[k], gives));
    return ST_OK;
}

/* Handles for the results: of the first `n` to a, of the others to b. */
static kiln_status hand_out(LoopCall *c, Status status, uint32_t n, kiln_tensor **a, kiln_tensor **b)
{
    const char *api = c->r->api;
    Loc loc = c->r->loc;
    uint32_t n_results = c->n_results;
    kiln_tensor **all = os_calloc(n_results + 1, sizeof *all);
    if (status == ST_OK && !all)
        status = error_keep(fail(ST_OUT_OF_MEMORY, "out of memory"), api, loc);
    for (uint32_t k = 0; k < n_results && status != ST_OK; k++)
        if (c->result)
            node_release(c->result[k]);
    rec_end(c->r, NULL);
    if (status == ST_OK)
        status = body_hand_out(api, loc, n_results, c->result, all);
    for (uint32_t k = 0; k < n_results && status == ST_OK; k++)
        *(k < n ? &a[k] : &b[k - n]) = all[k];
    os_free(all);
    return (kiln_status)status;
}

static void clear(kiln_tensor **x, int n)
{
    if (x && n > 0)
        memset(x, 0, sizeof(kiln_tensor *) * (size_t)n);
}

/* ---- kiln_while ---- */

typedef struct While {
    LoopCall call;
    kiln_condition *condition;
    kiln_function_body *step;
    void *user;
} While;

static void call_step(kiln_tensor **in, kiln_tensor **out, void *with)
{
    const While *w = with;
    w->step(in + 1, out, w->user);
}

static void call_condition(kiln_tensor **in, kiln_tensor **out, void *with)
{
    const While *w = with;
    kiln_tensor *x = w->condition(in, w->user);
    if (!x)
        return;
    Rec r = rec_begin(w->call.r->api, w->call.r->loc.file, w->call.r->loc.line);
    RtNode *node = rec_in(&r, x, "what the condition gave");
    if (node && node_elements(node) != 1) {
        char text[SHAPE_TEXT];
        node = rec_fail(&r, ST_SHAPE, "the condition gave %s: one element is needed (kiln_any, kiln_all, kiln_max)", node_text(node, text));
    }
    out[0] = rec_end(&r, node ? rec_cast(&r, rec_reshape(&r, rec_strong(&r, node), 0, no_dims), DT_BOOL) : NULL);
}

static Status check_while(void *user, uint32_t which, RtNode *const *out)
{
    const While *w = user;
    return which ? ST_OK : check_carries(&w->call, out);
}

static Status type_of_result(void *user, uint32_t k, RtNode *const *out, Shape *type)
{
    (void)user;
    *type = type_of(out[k]);
    return ST_OK;
}

kiln_status kiln_while(kiln_condition *condition, kiln_function_body *step, int n, kiln_tensor *const *init, int64_t max_steps,
                       kiln_tensor **out, void *user)
{
    return kiln_while_at(condition, step, n, init, max_steps, out, user, NULL, 0);
}

kiln_status kiln_while_at(kiln_condition *condition, kiln_function_body *step, int n, kiln_tensor *const *init, int64_t max_steps,
                          kiln_tensor **out, void *user, const char *file, int line)
{
    Rec r = REC(kiln_while);
    While w CLEANUP(end_with) = {.call = {.r = &r, .carry = "state"}, .condition = condition, .step = step, .user = user};
    LoopCall *c = &w.call;
    bool counts = n >= 1 && n <= BODY_VALUES;
    if (!condition || !step || !counts || !init || !out || max_steps < 0)
        rec_fail(&r, ST_INVALID, "needs functions, 1 <= n <= %d values, room for n results, and max_steps >= 0", BODY_VALUES);
    if (begin_call(c, counts ? (uint32_t)n : 0, counts ? (uint32_t)n : 0))
        take(c, init, (uint32_t)n, "init");
    clear(out, counts ? n : 0); /* not earlier: it may be `init` */
    Status status = r.status;
    if (status == ST_OK) {
        c->n_carry = c->n_in;
        c->type[0] = (Shape){.dtype = DT_I64};
        for (uint32_t k = 0; k < c->n_in; k++)
            c->type[k + 1] = type_of(c->in[k]);
        const int64_t bound = max_steps ? max_steps : INT64_MAX;
        const BodyFunction functions[] = {
            {.call = call_step, .with = &w, .n_in = c->n_in + 1, .n_out = c->n_in, .in = c->type, .counts = true},
            {.call = call_condition, .with = &w, .n_in = c->n_in, .n_out = 1, .in = c->type + 1},
        };
        const BodiesRequest request = {.op = OP_LOOP,
                                       .attr = {.loop.carries = (uint16_t)c->n_in},
                                       .facts = &bound,
                                       .n_facts = 1,
                                       .n_bodies = 2,
                                       .n_given = c->n_in,
                                       .n_results = c->n_in,
                                       .given = c->in,
                                       .function = functions,
                                       .check = check_while,
                                       .type = type_of_result,
                                       .user = &w,
                                       .differentiable = true};
        status = bodies_record(&r, &request, c->result);
    }
    return hand_out(c, status, c->n_results, out, NULL);
}

/* ---- kiln_scan ---- */

typedef struct Scan {
    LoopCall call;
    kiln_scan_body *body;
    void *user;
    int n_carry, n_xs;
} Scan;

static void call_scan(kiln_tensor **in, kiln_tensor **out, void *with)
{
    const Scan *s = with;
    s->body(in[0], in + 1, in + 1 + s->n_carry, out, out + s->n_carry, s->user);
}

static Status check_scan(void *user, uint32_t which, RtNode *const *out)
{
    (void)which;
    const Scan *s = user;
    TRY(check_carries(&s->call, out));
    for (uint32_t k = s->call.n_carry; k < s->call.n_results; k++)
        if (out[k]->rank == MAX_RANK)
            return fail(ST_SHAPE, "y[%u] has %d axes, and gets one more", k - s->call.n_carry, MAX_RANK);
    return ST_OK;
}

static Status type_of_scanned(void *user, uint32_t k, RtNode *const *out, Shape *type)
{
    const Scan *s = user;
    *type = type_of(out[k]);
    if (k < s->call.n_carry)
        return ST_OK;
    memmove(type->dim + 1, type->dim, sizeof *type->dim * type->rank);
    type->dim[0] = s->call.length;
    type->rank++;
    int64_t numel;
    char text[SHAPE_TEXT];
    return shape_numel(type->rank, type->dim, &numel) ? ST_OK : fail(ST_OVERFLOW, "too many elements: %s", shape_text(type, text));
}

/* The length of the loop, and xs that are as long. */
static void check_length(Scan *s, int64_t length)
{
    LoopCall *c = &s->call;
    char text[SHAPE_TEXT];
    for (int k = 0; k < s->n_xs && c->r->status == ST_OK; k++) {
        const RtNode *x = c->in[c->n_carry + (uint32_t)k];
        if (x->rank == 0) {
            rec_fail(c->r, ST_SHAPE, "xs[%d] is %s: it needs an axis to go along", k, node_text(x, text));
        } else if (length < 0) {
            length = x->dim[0];
        } else if (x->dim[0] != length) {
            rec_fail(c->r, ST_SHAPE, "xs[%d] is %s, and the loop has %" PRId64 " steps", k, node_text(x, text), length);
        }
    }
    c->length = length;
}

kiln_status kiln_scan(kiln_scan_body *body, int64_t length, unsigned flags, int n_carry, kiln_tensor *const *init, kiln_tensor **last,
                      int n_xs, kiln_tensor *const *xs, int n_ys, kiln_tensor **ys, void *user)
{
    return kiln_scan_at(body, length, flags, n_carry, init, last, n_xs, xs, n_ys, ys, user, NULL, 0);
}

kiln_status kiln_scan_at(kiln_scan_body *body, int64_t length, unsigned flags, int n_carry, kiln_tensor *const *init, kiln_tensor **last,
                         int n_xs, kiln_tensor *const *xs, int n_ys, kiln_tensor **ys, void *user, const char *file, int line)
{
    Rec r = REC(kiln_scan);
    Scan s CLEANUP(end_with) = {.call = {.r = &r, .carry = "carry"}, .body = body, .user = user, .n_carry = n_carry, .n_xs = n_xs};
    LoopCall *c = &s.call;
    bool counts = n_carry >= 0 && n_carry <= BODY_VALUES && n_xs >= 0 && n_xs <= BODY_VALUES && n_ys >= 0 && n_ys <= BODY_VALUES;
    if (!body || !counts || (n_carry && (!init || !last)) || (n_xs && !xs) || (n_ys && !ys) || n_carry + n_ys == 0)
        rec_fail(&r, ST_INVALID, "needs a function, 0 to %d carries, xs and ys, arrays for them, and a result", BODY_VALUES);
    else if (flags & ~(unsigned)KILN_SCAN_REVERSE)
        rec_fail(&r, ST_INVALID, "flags %u: KILN_SCAN_REVERSE is the only one", flags);
    else if (length < -1 || (length == -1 && n_xs == 0))
        rec_fail(&r, ST_INVALID, "length %" PRId64 ": it is >= 0, or -1 where xs tell", length);
    if (begin_call(c, counts ? (uint32_t)(n_carry + n_xs) : 0, counts ? (uint32_t)(n_carry + n_ys) : 0)) {
        take(c, init, (uint32_t)n_carry, "init");
        take(c, xs, (uint32_t)n_xs, "xs");
        c->n_carry = (uint32_t)n_carry;
        check_length(&s, length);
    }
    clear(last, counts ? n_carry : 0);
    clear(ys, counts ? n_ys : 0);
    Status status = r.status;
    if (status == ST_OK) {
        c->type[0] = (Shape){.dtype = DT_I64};
        for (uint32_t k = 0; k < c->n_in; k++) {
            Shape *type = &c->type[k + 1];
            *type = type_of(c->in[k]);
            if (k < c->n_carry)
                continue;
            type->rank--;
            memmove(type->dim, type->dim + 1, sizeof *type->dim * type->rank);
        }
        const BodyFunction function = {
            .call = call_scan, .with = &s, .n_in = c->n_in + 1, .n_out = c->n_results, .in = c->type, .counts = true};
        const BodiesRequest request = {.op = OP_LOOP,
                                       .attr.loop = {.carries = (uint16_t)n_carry,
                                                     .xs = (uint16_t)n_xs,
                                                     .ys = (uint16_t)n_ys,
                                                     .reverse = flags & KILN_SCAN_REVERSE ? 1 : 0},
                                       .facts = &c->length,
                                       .n_facts = 1,
                                       .n_bodies = 1,
                                       .n_given = c->n_in,
                                       .n_results = c->n_results,
                                       .given = c->in,
                                       .function = &function,
                                       .check = check_scan,
                                       .type = type_of_scanned,
                                       .user = &s,
                                       .differentiable = true};
        status = bodies_record(&r, &request, c->result);
    }
    return hand_out(c, status, c->n_carry, last, ys);
}

/* ---- kiln_cond ---- */

typedef struct Branch {
    kiln_function_body *f;
    void *user;
} Branch;

static void call_branch(kiln_tensor **in, kiln_tensor **out, void *with)
{
    const Branch *branch = with;
    branch->f(in, out, branch->user);
}

static Status check_cond(void *user, uint32_t which, RtNode *const *out)
{
    LoopCall *c = user;
    char one[SHAPE_TEXT], other[SHAPE_TEXT];
    if (which == 0) {
        if (!(c->first = os_calloc(c->n_results + 1, sizeof *c->first)))
            return fail(ST_OUT_OF_MEMORY, "out of memory");
        for (uint32_t k = 0; k < c->n_results; k++)
            c->first[k] = node_retain(out[k]);
        return ST_OK;
    }
    for (uint32_t k = 0; k < c->n_results; k++)
        if (!same_type(c->first[k], out[k]))
            return fail(c->first[k]->dtype != out[k]->dtype ? ST_DTYPE : ST_SHAPE,
                        "out[%u] is %s of then_f and %s of else_f: both give the same", k, node_text(c->first[k], one),
                        node_text(out[k], other));
    return ST_OK;
}

kiln_status kiln_cond(kiln_tensor *predicate, kiln_function_body *then_f, kiln_function_body *else_f, int n_in, kiln_tensor *const *in,
                      int n_out, kiln_tensor **out, void *user)
{
    return kiln_cond_at(predicate, then_f, else_f, n_in, in, n_out, out, user, NULL, 0);
}

kiln_status kiln_cond_at(kiln_tensor *predicate, kiln_function_body *then_f, kiln_function_body *else_f, int n_in, kiln_tensor *const *in,
                         int n_out, kiln_tensor **out, void *user, const char *file, int line)
{
    Rec r = REC(kiln_cond);
    LoopCall call CLEANUP(end_call) = {.r = &r}, *c = &call;
    char text[SHAPE_TEXT];
    bool counts = n_in >= 0 && n_in <= BODY_VALUES && n_out >= 1 && n_out <= BODY_VALUES;
    if (!then_f || !else_f || !counts || (n_in && !in) || !out)
        rec_fail(&r, ST_INVALID, "needs two functions, 0 to %d inputs and room for 1 to %d outputs", BODY_VALUES, BODY_VALUES);
    if (begin_call(c, counts ? (uint32_t)n_in + 1 : 0, counts ? (uint32_t)n_out : 0)) {
        RtNode *p = rec_in(&r, predicate, "predicate");
        if (p && node_elements(p) != 1)
            p = rec_fail(&r, ST_SHAPE, "predicate is %s: one element is needed", node_text(p, text));
        c->in[c->n_in++] = p ? rec_cast(&r, rec_reshape(&r, rec_strong(&r, p), 0, no_dims), DT_BOOL) : NULL;
        take(c, in, (uint32_t)n_in, "in");
    }
    clear(out, counts ? n_out : 0);
    Status status = r.status;
    if (status == ST_OK) {
        for (uint32_t k = 1; k < c->n_in; k++)
            c->type[k - 1] = type_of(c->in[k]);
        Branch branches[] = {{then_f, user}, {else_f, user}};
        BodyFunction functions[2];
        for (int k = 0; k < 2; k++)
            functions[k] =
                (BodyFunction){.call = call_branch, .with = &branches[k], .n_in = c->n_in - 1, .n_out = c->n_results, .in = c->type};
        const BodiesRequest request = {.op = OP_COND,
                                       .attr = {.n = c->n_results},
                                       .n_bodies = 2,
                                       .n_given = c->n_in,
                                       .n_results = c->n_results,
                                       .given = c->in,
                                       .function = functions,
                                       .check = check_cond,
                                       .type = type_of_result,
                                       .user = c,
                                       .differentiable = true};
        status = bodies_record(&r, &request, c->result);
    }
    return hand_out(c, status, c->n_results, out, NULL);
}
