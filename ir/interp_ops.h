/* What the interpreter's files share: ir/interp.c (driver, leaves), interp_ew.c, interp_move.c, interp_reduce.c. */
#ifndef IR_INTERP_OPS_H
#define IR_INTERP_OPS_H

#include "ir/interp.h"

/* An array: contiguous, row-major. In INTERP_F64 mode every floating one is F64, whatever its node says. */
typedef struct Value {
    DType dtype;
    int rank;
    int64_t dim[MAX_RANK];
    size_t n;   /* elements */
    void *data; /* os_alloc; NULL before it was computed and after its last use */
} Value;

typedef struct Run {
    const Graph *g;
    InterpMode mode;
    MathMode math;
    OrderDevice device;
    const void *const *inputs;
    bool nested;     /* a body: the inputs are values as they are in this mode */
    Value *value;    /* by node; what has bodies: an array of its results' */
    const Node *bad; /* the first node that met an index out of bounds; NULL */
} Run;

/* Computes node `r` into run->value[r], whose shape, dtype and room are there. */
typedef Status InterpFn(Run *run, Ref r);
InterpFn interp_ew, interp_view, interp_reduce, interp_scan, interp_gather, interp_scatter, interp_sort, interp_contract, interp_body,
    interp_result;

/* Runs a body, outputs as in interp_run. (ir/interp.c) */
Status interp_nested(Run *around, const Graph *body, const void *const *inputs, void *const *outputs);
/* Before the value of r is freed: what it refers to. (ir/interp_body.c) */
void interp_free_results(const Run *run, Ref r);

static inline const Node *run_node(const Run *run, Ref r) { return graph_node(run->g, r); }
static inline const Value *run_in(const Run *run, Ref r, uint32_t k) { return &run->value[run_node(run, r)->in[k]]; }
static inline int64_t run_fact(const Run *run, Ref r, uint32_t k) { return dim_hint(run->g, run_node(run, r)->fact[k]); }

/* The dtype that values of a node's dtype have in this mode. */
static inline DType run_dtype(const Run *run, DType t) { return run->mode == INTERP_F64 && dtype_is_float(t) ? DT_F64 : t; }

/* Room for n elements: at least one byte, or NULL. */
void *value_room(DType dtype, size_t n);

/* Row-major strides, in elements. */
void value_strides(const Value *v, int64_t stride[MAX_RANK]);

/*
 * For every position p of a box of size dim: to[sum p to_stride] = from[sum p from_stride]; strides in elements of
 * `bytes`, may be 0 or negative.
 */
void copy_box(int rank, const int64_t *dim, size_t bytes, void *to, const int64_t *to_stride, const void *from, const int64_t *from_stride);

/* out[i] = op(in[0][i], ...), with its tape. false: out of memory. */
bool run_op(const Run *run, Op op, const DType *in_types, DType out_type, size_t n, const void *const *in, void *out);

#endif
