/* Which attributes and facts each op has, as a table: for the text form and the verifier. */
#ifndef IR_ATTR_H
#define IR_ATTR_H

#include "ir/graph.h"

typedef enum AttrField {
    ATTR_AXES = 1, /* mask */
    ATTR_AXIS = 2,
    ATTR_PERM = 4,
    ATTR_GROUPS = 8, /* n, group */
    ATTR_MODE = 16,
    ATTR_DESCENDING = 32, /* flag */
    ATTR_NUMBER = 64,     /* n */
    ATTR_LOOP = 128,
    ATTR_CUSTOM = 256 /* n, custom */
} AttrField;

typedef struct AttrInfo {
    uint16_t fields;   /* AttrFields, printed in this order; all others are zero */
    uint8_t per_axis;  /* facts that belong together, printed with ':' between them */
    const char *facts; /* what their list is called in text; NULL: none */
} AttrInfo;

AttrInfo attr_info(Op op);
/* The attributes that an op has as text (ir/text.c): " axes(0 2)". rank: of the node. */
void attr_print(Op op, const Attr *attr, int rank, Str *out);

/* The other way, with op and sizes as in a graph's text but for the operands: "reduce_sum axes(0 2)", "cast f32", "reshape groups(1:2)
 * size(4 8)"; sizes are constants. ST_FORMAT: "1:12: why". */
typedef struct AttrText {
    Op op;
    DType own; /* CAST: to which */
    Attr attr;
    const Dim *facts;
    uint32_t n_facts;
} AttrText;
Status attr_parse(Graph *g, const char *text, AttrText *out);

extern const char *const scatter_mode_names[4];

/* What the i-th integer fact of an op (not INPUT) is about, and which axis: ir/graph.h lists them. */
typedef struct FactLabel {
    FactKind kind;
    uint8_t axis;
} FactLabel;
FactLabel fact_label(Op op, const Attr *attr, uint32_t i);

#endif
