/* The table behind ir/attr.h. Ops without a row have neither attributes nor facts in text. */
#include "ir/attr.h"

static const AttrInfo infos[OP_COUNT] = {
    [OP_IOTA]       = {0,                          1, "size"},
    [OP_RESHAPE]    = {ATTR_GROUPS,                1, "size"},
    [OP_PERMUTE]    = {ATTR_PERM,                  0, 0},
    [OP_EXPAND]     = {ATTR_AXES,                  1, "size"},
    [OP_SLICE]      = {ATTR_AXES,                  3, "range"},
    [OP_PAD]        = {ATTR_AXES,                  2, "by"},
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
};

const char *const scatter_mode_names[4] = {"set", "add", "max", "min"};

AttrInfo attr_info(Op op)
{
    return infos[op];
}
