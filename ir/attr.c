/* The table behind ir/attr.h. Ops without a row have neither attributes nor facts in text. */
#include "ir/attr.h"

static const AttrInfo infos[OP_COUNT] = {
    /* clang-format off */
    [OP_IOTA]       = {0,                          1, "size"},
    [OP_RESHAPE]    = {ATTR_GROUPS,                1, "size"},
    [OP_PERMUTE]    = {ATTR_PERM,                  0, 0},
    [OP_EXPAND]     = {ATTR_AXES,                  1, "size"},
    [OP_SLICE]      = {ATTR_AXES,                  3, "range"},
    [OP_PAD]        = {ATTR_AXES,                  2, "by"},
    [OP_WINDOW]     = {ATTR_AXIS,                  4, "by"},
    [OP_CONCAT]     = {ATTR_AXIS,                  0, 0},
    [OP_REDUCE_SUM] = {ATTR_AXES,                  0, 0},
    [OP_REDUCE_PROD]= {ATTR_AXES,                  0, 0},
    [OP_REDUCE_MAX] = {ATTR_AXES,                  0, 0},
    [OP_REDUCE_MIN] = {ATTR_AXES,                  0, 0},
    [OP_REDUCE_ANY] = {ATTR_AXES,                  0, 0},
    [OP_REDUCE_ALL] = {ATTR_AXES,                  0, 0},
    [OP_ARGMAX]     = {ATTR_AXES,                  0, 0},
    [OP_ARGMIN]     = {ATTR_AXES,                  0, 0},
    [OP_CUMSUM]     = {ATTR_AXIS,                  0, 0},
    [OP_GATHER]     = {ATTR_AXIS,                  0, 0},
    [OP_SCATTER]    = {ATTR_AXIS | ATTR_MODE,      0, 0},
    [OP_ARGSORT]    = {ATTR_AXIS | ATTR_DESCENDING, 0, 0},
    [OP_LOOP]       = {ATTR_LOOP,                  1, "count"},
    [OP_COND]       = {ATTR_NUMBER,                0, 0},
    [OP_RESULT]     = {ATTR_NUMBER,                0, 0},
    [OP_CUSTOM]     = {ATTR_CUSTOM,                1, "sizes"},
    /* clang-format on */
};

const char *const scatter_mode_names[4] = {"set", "add", "max", "min"};

AttrInfo attr_info(Op op) { return infos[op]; }

/* The i-th output axis of the groups that split. */
static uint8_t split_axis(const Attr *attr, uint32_t i)
{
    uint8_t axis = 0;
    for (uint32_t k = 0; k < attr->n; k++) {
        uint8_t width = attr->group.out[k];
        if (width > 1 && i < width)
            return (uint8_t)(axis + i);
        i -= width > 1 ? width : 0;
        axis = (uint8_t)(axis + width);
    }
    return axis;
}

/* The i-th axis of a mask. */
static uint8_t masked_axis(uint8_t mask, uint32_t i)
{
    uint8_t axis = 0;
    for (; axis < MAX_RANK; axis++)
        if (mask >> axis & 1 && i-- == 0)
            break;
    return axis;
}

/* The axis of its result that the i-th size of all results belongs to. */
static uint8_t result_axis(const Attr *attr, uint32_t i)
{
    uint32_t k = 0;
    while (k + 1 < attr->n && i >= (attr->custom.type[k] & 15u))
        i -= attr->custom.type[k++] & 15u;
    return (uint8_t)i;
}

FactLabel fact_label(Op op, const Attr *attr, uint32_t i)
{
    static const FactKind slice[] = {FACT_START, FACT_STEP, FACT_LENGTH}, pad[] = {FACT_LOW, FACT_HIGH},
                          window[] = {FACT_STEP, FACT_DILATION, FACT_SIZE, FACT_SIZE};
    switch (op) {
    case OP_LOOP:
    case OP_IOTA: return (FactLabel){FACT_LENGTH, 0};
    case OP_RESHAPE: return (FactLabel){FACT_SIZE, split_axis(attr, i)};
    case OP_SLICE: return (FactLabel){slice[i % 3], masked_axis(attr->mask, i / 3)};
    case OP_PAD: return (FactLabel){pad[i % 2], masked_axis(attr->mask, i / 2)};
    case OP_CUSTOM: return (FactLabel){FACT_SIZE, result_axis(attr, i)};
    case OP_WINDOW: return (FactLabel){window[i], (uint8_t)(attr->axis + (i == 3))};
    default: return (FactLabel){FACT_SIZE, masked_axis(attr->mask, i)};
    }
}
