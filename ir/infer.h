/*
 * Shapes: what an op makes of its inputs' shapes, in numbers (while recording) and in sizes (in a graph).
 */
#ifndef IR_INFER_H
#define IR_INFER_H

#include "ir/graph.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct Shape {
    uint8_t dtype, rank;
    int64_t dim[MAX_RANK];
} Shape;

enum { SHAPE_TEXT = 256 };

/* "f32[256,1024]" into buf (of at least SHAPE_TEXT bytes); returns buf. */
static inline const char *shape_text(const Shape *shape, char *buf)
{
    size_t at = (size_t)snprintf(buf, SHAPE_TEXT, "%s[", dtype_name((DType)shape->dtype));
    for (int d = 0; d < shape->rank; d++)
        at += (size_t)snprintf(buf + at, SHAPE_TEXT - at, "%s%" PRId64, d ? "," : "", shape->dim[d]);
    snprintf(buf + at, SHAPE_TEXT - at, "]");
    return buf;
}

/* Where element `number` of such a value is, "[3,17]". The same. */
static inline const char *index_text(const Shape *shape, int64_t number, char *buf)
{
    int64_t inner = 1;
    size_t at = (size_t)snprintf(buf, SHAPE_TEXT, "[");
    for (int d = 0; d < shape->rank; d++)
        inner *= shape->dim[d];
    for (int d = 0; d < shape->rank; d++) {
        inner /= shape->dim[d];
        at += (size_t)snprintf(buf + at, SHAPE_TEXT - at, "%s%" PRId64, d ? "," : "", number / inner);
        number %= inner;
    }
    snprintf(buf + at, SHAPE_TEXT - at, "]");
    return buf;
}

/* The output dtype of `op` for inputs of these dtypes by the table's rule (casts already inserted); for CAST pass
 * the wanted dtype in `own`. DT_COUNT: the rule refuses them. */
DType infer_dtype(Op op, uint32_t n_in, const DType *in, DType own);

/* Output shape in numbers. `facts` as ir/graph.h lists them. ST_SHAPE, ST_INVALID, ST_OVERFLOW (more than 2^62
 * elements) or ST_DTYPE with a message that says which operand or axis is at fault; the API layer adds function and place. */
Status infer_shape(Op op, const Attr *attr, uint32_t n_in, const Shape *in, const int64_t *facts, uint32_t n_facts, DType own, Shape *out);

/* The number of integer facts a node of this op and attr carries (INPUT: rank, or 2 * rank when strided). */
uint32_t infer_fact_count(Op op, const Attr *attr, int rank);

/* Output sizes in a graph, unifying what the op needs equal. Only for arguments infer_shape accepted. */
void infer_dims(Graph *g, Op op, const Attr *attr, uint32_t n_in, const Ref *in, const Dim *facts, uint8_t *rank, Dim *dims);

/* The attributes and facts of a reshape to `out`, which has as many elements: one group of all axes (of one
 * element: each axis by itself). The structure depends on the ranks alone. Facts (sizes of the output, where
 * it has several axes) go to `facts`, their number to *n_facts. */
void reshape_whole(int in_rank, int out_rank, const int64_t *out, Attr *attr, int64_t *facts, uint32_t *n_facts);

/* Product of dims with overflow check (limit 2^62): false on overflow or a negative dim. A zero dim gives 0, but the others
 * must fit nevertheless (as in NumPy), so that no product of some of the dims overflows anywhere. */
bool shape_numel(int rank, const int64_t *dims, int64_t *numel);

#endif
