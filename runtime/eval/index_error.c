/* An index that is out of bounds: which function, axis and, where it is at hand, which index. */
#include "ir/body.h"
#include "ir/scalar.h"
#include "runtime/device/device.h"
#include "runtime/eval/call.h"

#include <inttypes.h>
#include <stdio.h>

/* An index given as an array, before it was cast and repeated: NULL where it is computed, or not in this memory. */
static const RtNode *given_index(const Call *call, const RtNode *index)
{
    while (!atomic_load(&index->storage) && index->n_in == 1)
        index = index->in[0];
    bool here = atomic_load(&index->storage) && !device_kind(call->device)->apart;
    return here && dtype_is_int((DType)index->dtype) && !index->strided ? index : NULL;
}

/* Writes the first index that does not fit an axis of `size`; false: there is none. */
static bool wrong_index(const RtNode *index, int64_t size, char *text, size_t room)
{
    DType dtype = (DType)index->dtype;
    int64_t n = node_elements(index);
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = scalar_load(dtype, index->data + (size_t)i * dtype_bytes(dtype));
        int64_t value = scalar_to_int(dtype, bits);
        if (dtype == DT_U64 && value < 0)
            snprintf(text, room, "index %" PRIu64, bits);
        else if (value < -size || value >= size)
            snprintf(text, room, "index %" PRId64, value);
        else
            continue;
        return true;
    }
    return false;
}

IndexPlace index_place(const RtNode *node)
{
    if (node->op == OP_LOOP)
        return (IndexPlace){.loc = node->loc, .axis = NO_AXIS, .size = node->facts[0]};
    return (IndexPlace){node->api ? node->api : op_name((Op)node->op), node->loc, node->attr.axis, node->in[0]->dim[node->attr.axis]};
}

Status index_failed(const IndexPlace *p, const char *which)
{
    if (p->axis == NO_AXIS)
        return body_endless(p->loc, p->size);
    char place[320] = "";
    if (p->loc.file)
        snprintf(place, sizeof place, " at %s:%d", p->loc.file, p->loc.line);
    return fail(ST_INDEX, "%s of the %s%s is out of bounds: axis %d has %" PRId64 " elements", which ? which : "an index", p->api, place,
                p->axis, p->size);
}

/* Names the function, the axis, and the index where it is at hand. */
Status call_index_failed(const Call *call, uint32_t number)
{
    const RtNode *node = call_node(call, number);
    const RtNode *index = node->op != OP_LOOP && number < call->nodes.n ? given_index(call, node->in[1]) : NULL;
    IndexPlace place = index_place(node);
    char which[40];
    return index_failed(&place, index && wrong_index(index, place.size, which, sizeof which) ? which : NULL);
}
