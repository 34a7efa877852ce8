/* Computing each call twice: see twice.h. */
#include "runtime/eval/twice.h"
#include "ir/base/os.h"
#include "ir/base/path.h"
#include "ir/infer.h"
#include "ir/scalar.h"
#include "runtime/device/device.h"
#include "runtime/eval/pool.h"

#include <stdio.h>
#include <string.h>

bool twice_wanted(const Evaluation *e, const Call *call) { return e->options.value[OPT_CHECK] == CHECK_REPEAT && !call->ordered; }

static void release_all(Result *result, size_t n)
{
    for (size_t k = 0; k < n; k++)
        storage_release(result[k].storage);
}

/* "kiln_sum (net.c:42) is not the same when it is computed once more: 0.5 and 0.25 at [3]" */
static Status tell(const RtNode *node, const char *first, const char *second)
{
    const size_t bytes = dtype_bytes((DType)node->dtype);
    char where[320] = "", at[SHAPE_TEXT];
    Shape type = {.dtype = node->dtype, .rank = node->rank};
    memcpy(type.dim, node->dim, sizeof *node->dim * node->rank);
    int64_t number = 0;
    while (memcmp(first + (size_t)number * bytes, second + (size_t)number * bytes, bytes) == 0)
        number++;
    uint64_t one = 0, other = 0;
    memcpy(&one, first + (size_t)number * bytes, bytes);
    memcpy(&other, second + (size_t)number * bytes, bytes);
    if (node->loc.file)
        snprintf(where, sizeof where, " (%s:%d)", path_name(node->loc.file), node->loc.line);
    return fail(
        ST_INVALID, "%s%s is not the same when it is computed once more: %.17g and %.17g (bits %#llx and %#llx) at %s (KILN_CHECK=repeat)",
        node->api ? node->api : op_name((Op)node->op), where, scalar_to_double((DType)node->dtype, one),
        scalar_to_double((DType)node->dtype, other), (unsigned long long)one, (unsigned long long)other, index_text(&type, number, at));
}

static Status compare(const RtNode *node, const Result *one, const Result *other)
{
    const size_t bytes = (size_t)node_elements(node) * dtype_bytes((DType)node->dtype);
    char *first = os_alloc(2 * bytes + 1), *second = first + bytes;
    if (!first)
        return fail(ST_OUT_OF_MEMORY, "no memory to compare what was computed twice (KILN_CHECK=repeat)");
    Status status = device_read(one->storage, one->data, first, bytes);
    if (status == ST_OK)
        status = device_read(other->storage, other->data, second, bytes);
    if (status == ST_OK && memcmp(first, second, bytes) != 0)
        status = tell(node, first, second);
    os_free(first);
    return status;
}

/* The value that lies deepest in the graph is told: others may be made of it. */
static Status compare_all(const Evaluation *e, const Call *call, const Result *first)
{
    const size_t n = call->outputs.n;
    Status status = ST_OK;
    for (uint32_t number = 0; number < call->nodes.n && status == ST_OK; number++)
        for (size_t k = 0; k < n && status == ST_OK; k++)
            if (call->outputs.at[k] == number)
                status = compare(call_output(call, k), &first[k], &e->results.at[k]);
    return status;
}

Status twice(Evaluation *e, Call *call, Status (*compute)(Evaluation *e, Call *call))
{
    const size_t n = call->outputs.n;
    Result *first = os_alloc(sizeof *first * (n + 1));
    if (!first)
        return fail(ST_OUT_OF_MEMORY, "no memory to compute twice (KILN_CHECK=repeat)");
    e->first_of_two = true;
    pool_run_here(true);
    Status status = compute(e, call);
    pool_run_here(false);
    e->first_of_two = false;
    if (status == ST_OK) {
        memcpy(first, e->results.at, sizeof *first * n);
        status = compute(e, call);
        if (status == ST_OK && (status = compare_all(e, call, first)) != ST_OK)
            release_all(e->results.at, n);
        release_all(first, n);
    }
    os_free(first);
    return status;
}
