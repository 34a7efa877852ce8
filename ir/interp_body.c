/* The reference interpreter: loops, branches and calls. A body is run as a graph of its own, on values as they are in this mode. */
#include "ir/base/os.h"
#include "ir/body.h"
#include "ir/interp_ops.h"

#include <string.h>

/* Shapes and room for n values, in one array; what has no room yet is NULL. */
static Value *values_new(uint32_t n) { return os_calloc((size_t)n + 1, sizeof(Value)); }

static Status give_room(Run *run, const BodyType *type, Value *v)
{
    *v = (Value){.dtype = run_dtype(run, (DType)type->dtype), .rank = type->rank, .n = 1};
    for (int d = 0; d < v->rank; d++) {
        v->dim[d] = dim_hint(run->g, type->dim[d]);
        if (__builtin_mul_overflow(v->n, (size_t)v->dim[d], &v->n))
            return ST_OUT_OF_MEMORY;
    }
    v->data = value_room(v->dtype, v->n);
    return v->data ? ST_OK : ST_OUT_OF_MEMORY;
}

static size_t value_bytes(const Value *v) { return v->n * dtype_bytes(v->dtype); }

void interp_free_results(const Run *run, Ref r)
{
    const Node *node = run_node(run, r);
    Value *results = run->value[r].data;
    for (uint32_t k = 0; results && op_class((Op)node->op) == CLS_BODY && k < body_n_results(node); k++)
        os_free(results[k].data);
}

/* One of the arguments of a body, at iteration i. */
static const void *argument(const Run *run, Ref r, uint32_t which, uint32_t input, const int64_t *i, const Value *carries)
{
    const Node *node = run_node(run, r);
    bool sliced;
    uint32_t operand = body_operand(node, which, input, &sliced);
    if (operand == REF_NONE)
        return i;
    if (node->op == OP_LOOP && operand < node->attr.loop.carries)
        return carries[operand].data;
    const Value *v = run_in(run, r, operand);
    return sliced && v->n ? (const char *)v->data + (size_t)*i * (value_bytes(v) / (size_t)v->dim[0]) : v->data;
}

static Status run_body(Run *run, Ref r, uint32_t which, const int64_t *i, const Value *carries, void *const *outputs)
{
    const Node *node = run_node(run, r);
    uint32_t n = body_n_inputs(node, which);
    const void **inputs = os_alloc(sizeof *inputs * (n + 1));
    if (!inputs)
        return ST_OUT_OF_MEMORY;
    for (uint32_t k = 0; k < n; k++)
        inputs[k] = argument(run, r, which, k, i, carries);
    Status status = interp_nested(run, node->bodies[which], inputs, outputs);
    os_free(inputs);
    return status;
}

static Status run_loop(Run *run, Ref r, Value *results, Value *next, void **outputs)
{
    const Node *node = run_node(run, r);
    uint32_t carries = node->attr.loop.carries, n = body_n_results(node);
    int64_t count = dim_hint(run->g, node->fact[0]);
    for (int64_t step = 0;; step++) {
        bool go_on = node->n_bodies == 1 && step < count;
        if (node->n_bodies == 2)
            TRY(run_body(run, r, 1, NULL, results, (void *const[]){&go_on}));
        if (!go_on)
            return ST_OK;
        if (step == count)
            return body_endless(node->loc, count);
        int64_t i = node->attr.loop.reverse ? count - 1 - step : step;
        for (uint32_t k = 0; k < n; k++) {
            const Value *y = &results[k];
            outputs[k] = k < carries ? next[k].data : y->n ? (char *)y->data + (size_t)i * (value_bytes(y) / (size_t)count) : y->data;
        }
        TRY(run_body(run, r, 0, &i, results, outputs));
        for (uint32_t k = 0; k < carries; k++) {
            void *made = next[k].data;
            next[k].data = results[k].data;
            results[k].data = made;
        }
    }
}

static Status run_cond(Run *run, Ref r, const Value *results, void **outputs)
{
    const Node *node = run_node(run, r);
    for (uint32_t k = 0; k < body_n_results(node); k++)
        outputs[k] = results[k].data;
    return run_body(run, r, *(const bool *)run_in(run, r, 0)->data ? 0 : 1, NULL, NULL, outputs);
}

static CallBuffer call_buffer(const Value *v)
{
    return (CallBuffer){.dtype = (uint8_t)v->dtype, .rank = v->rank, .dim = v->dim, .data = v->data};
}

/* The user's own function, which knows the dtypes that it was recorded with. */
static Status run_call(Run *run, Ref r, const Value *results)
{
    const Node *node = run_node(run, r);
    if (!node->callee->host || run->mode != INTERP_NATIVE)
        return fail(ST_UNSUPPORTED, "%s %s is not at hand", node->callee->name, node->callee->version);
    CallBuffer *in = os_calloc((size_t)node->n_in + node->attr.n + 1, sizeof *in), *out = in ? in + node->n_in : NULL;
    if (!in)
        return ST_OUT_OF_MEMORY;
    for (uint32_t k = 0; k < node->n_in; k++)
        in[k] = call_buffer(run_in(run, r, k));
    for (uint32_t k = 0; k < node->attr.n; k++)
        out[k] = call_buffer(&results[k]);
    Status status = node->callee->host(node->callee, node->loc, in, node->n_in, out, node->attr.n);
    os_free(in);
    return status;
}

Status interp_body(Run *run, Ref r)
{
    const Node *node = run_node(run, r);
    uint32_t n = body_n_results(node), carries = node->op == OP_LOOP ? node->attr.loop.carries : 0;
    Value *results = values_new(n), *next = values_new(carries);
    void **outputs = os_calloc((size_t)n + 1, sizeof *outputs);
    Status status = results && next && outputs ? ST_OK : ST_OUT_OF_MEMORY;
    os_free(run->value[r].data);
    run->value[r].data = results;
    for (uint32_t k = 0; k < n && status == ST_OK; k++) {
        BodyType type = body_result_type(run->g, node, k);
        status = give_room(run, &type, &results[k]);
        if (status == ST_OK && k < carries)
            status = give_room(run, &type, &next[k]);
        if (status == ST_OK && k < carries && results[k].n)
            memcpy(results[k].data, run_in(run, r, k)->data, value_bytes(&results[k]));
    }
    if (status == ST_OK)
        status = node->op == OP_LOOP   ? run_loop(run, r, results, next, outputs)
                 : node->op == OP_COND ? run_cond(run, r, results, outputs)
                                       : run_call(run, r, results);
    for (uint32_t k = 0; next && k < carries; k++)
        os_free(next[k].data);
    os_free(next);
    os_free(outputs);
    return status;
}

Status interp_result(Run *run, Ref r)
{
    const Node *node = run_node(run, r);
    const Value *result = &((const Value *)run_in(run, r, 0)->data)[node->attr.n];
    if (result->n)
        memcpy(run->value[r].data, result->data, value_bytes(result));
    return ST_OK;
}
