/*
 * Groups of axes of a reshape, from numbers: for graphs of tests, which shall have groups of all kinds. From the left: equal axes
 * stay; an axis of size 1 on one side only is dropped or inserted by itself; else the shortest runs of equal product form a
 * group. With no elements a product proves nothing (0*3 = 0*5), so there only equal axes at both ends stay.
 */
#ifndef TESTS_SUPPORT_RESHAPE_GROUPS_H
#define TESTS_SUPPORT_RESHAPE_GROUPS_H

#include "ir/infer.h"

#include <string.h>

static inline void add_group(Attr *attr, int in, int out)
{
    attr->group.in[attr->n] = (uint8_t)in;
    attr->group.out[attr->n++] = (uint8_t)out;
}

static inline bool has_zero(const int64_t *dims, int n)
{
    for (int d = 0; d < n; d++)
        if (dims[d] == 0)
            return true;
    return false;
}

/* Groups of two shapes without elements: equal axes at both ends stay, the rest (which must hold a
 * zero on both sides) is one general group. */
static inline void empty_groups(int in_rank, const int64_t *in, int out_rank, const int64_t *out, Attr *attr)
{
    int head = 0, tail = 0;
    while (head < in_rank && head < out_rank && in[head] == out[head])
        head++;
    if (head < in_rank || head < out_rank) {
        while (!has_zero(in + head, in_rank - head) || !has_zero(out + head, out_rank - head))
            head--;
        while (head + tail < in_rank && head + tail < out_rank && in[in_rank - 1 - tail] == out[out_rank - 1 - tail] &&
               has_zero(in + head, in_rank - head - tail - 1) && has_zero(out + head, out_rank - head - tail - 1))
            tail++;
    }
    for (int d = 0; d < head; d++)
        add_group(attr, 1, 1);
    if (head < in_rank || head < out_rank)
        add_group(attr, in_rank - head - tail, out_rank - head - tail);
    for (int d = 0; d < tail; d++)
        add_group(attr, 1, 1);
}

static inline void full_groups(int in_rank, const int64_t *in, int out_rank, const int64_t *out, Attr *attr)
{
    int i = 0, j = 0;
    while (i < in_rank || j < out_rank) {
        if (i < in_rank && j < out_rank && in[i] == out[j]) {
            add_group(attr, 1, 1);
            i++, j++;
        } else if (i < in_rank && in[i] == 1) {
            add_group(attr, 1, 0);
            i++;
        } else if (j < out_rank && out[j] == 1) {
            add_group(attr, 0, 1);
            j++;
        } else {
            int i0 = i, j0 = j;
            int64_t before = in[i++], after = out[j++];
            while (before != after) {
                if (before < after)
                    before *= in[i++];
                else
                    after *= out[j++];
            }
            add_group(attr, i - i0, j - j0);
        }
    }
}

/* Writes attr, the sizes of the outputs of groups that split to `facts`, and their number. false: the shapes differ in elements. */
static inline bool reshape_groups(int in_rank, const int64_t *in, int out_rank, const int64_t *out, Attr *attr, int64_t *facts,
                                  uint32_t *n_facts)
{
    int64_t before, after;
    if (!shape_numel(in_rank, in, &before) || !shape_numel(out_rank, out, &after) || before != after)
        return false;
    memset(attr, 0, sizeof *attr);
    if (before)
        full_groups(in_rank, in, out_rank, out, attr);
    else
        empty_groups(in_rank, in, out_rank, out, attr);
    *n_facts = 0;
    int j = 0;
    for (uint32_t k = 0; k < attr->n; k++) {
        for (int d = 0; attr->group.out[k] > 1 && d < attr->group.out[k]; d++)
            facts[(*n_facts)++] = out[j + d];
        j += attr->group.out[k];
    }
    return true;
}

#endif
