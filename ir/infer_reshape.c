/*
 * Numbers of elements, and the reshape that a user asks for by numbers.
 *
 * The groups of axes that a reshape keeps, merges and splits are structure, and numbers never leak into
 * the structure: [1, 6, 5] -> [6, 5] may drop an axis or merge two. So all axes are one group, and
 * ir/rewrite_reshape.c finds finer ones, with guards.
 */
#include "ir/infer.h"

#include <string.h>

static const int64_t LARGEST = INT64_C(1) << 62;

bool shape_numel(int rank, const int64_t *dims, int64_t *numel)
{
    int64_t n = 1;
    bool zero = false, over = false;
    for (int d = 0; d < rank; d++) {
        if (dims[d] < 0)
            return false;
        zero |= dims[d] == 0;
        over |= dims[d] != 0 && n > LARGEST / dims[d];
        if (dims[d] != 0 && !over)
            n *= dims[d];
    }
    *numel = zero ? 0 : n;
    return !over;
}

void reshape_whole(int in_rank, int out_rank, const int64_t *out, Attr *attr, int64_t *facts, uint32_t *n_facts)
{
    memset(attr, 0, sizeof *attr);
    *n_facts = 0;
    if (in_rank && out_rank) {
        attr->n = 1;
        attr->group.in[0] = (uint8_t)in_rank;
        attr->group.out[0] = (uint8_t)out_rank;
        for (int d = 0; out_rank > 1 && d < out_rank; d++)
            facts[(*n_facts)++] = out[d];
        return;
    }
    attr->n = (uint32_t)(in_rank + out_rank); /* of one element, so each axis is 1 */
    for (uint32_t k = 0; k < attr->n; k++) {
        attr->group.in[k] = in_rank > 0;
        attr->group.out[k] = out_rank > 0;
    }
}
