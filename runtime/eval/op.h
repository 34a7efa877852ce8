/*
 * Ops of the user's inside (kiln_op_register): what was registered, and calling its functions.
 *
 *     kiln_op --> Callee (ir/callee.h) in a recorded CUSTOM node (runtime/record/bodies.h) --> a CALL step
 *
 * A step holds the number of the recorded node alone: what to call, the types, the attributes are found there when it runs. So programs and
 * entries on disk hold no address, and whoever finds one has recorded, hence registered, all that it calls.
 */
#ifndef RUNTIME_OP_H
#define RUNTIME_OP_H

#include "ir/callee.h"
#include "runtime/record/record.h"

enum { OP_INPUTS = 256, OP_SAID = 512 };

struct CudaOp; /* runtime/cuda/cuda_op.c */

struct kiln_op {
    kiln_op_info info; /* texts and image lie behind, in the same block; the image has a 0 at its end */
    Hash128 image;     /* hash; 0: there is none */
    struct kiln_op *next;
    struct CudaOp *_Atomic loaded; /* on each device where it ran */
};

/* What such a value takes; its number of elements was checked. */
static inline size_t op_bytes(DType dtype, int rank, const int64_t *dim)
{
    size_t bytes = dtype_bytes(dtype);
    for (int d = 0; d < rank; d++)
        bytes *= (size_t)dim[d];
    return bytes;
}

/* While a function of an op runs. */
typedef struct OpAtWork {
    const kiln_op *op;
    struct OpAtWork *outer;
    bool said;
    char text[OP_SAID]; /* by kiln_op_fail */
} OpAtWork;

/* Is one at work in this thread? ST_INVALID: what would compute values fails. */
Status op_refuses(void);

/* The types of the results by `infer`; checked. */
Status op_infer(const kiln_op *op, const Callee *callee, const kiln_type *in, kiln_type *out, Loc loc);

/* Records a call (runtime/record/bodies.h) and its results, which are retained; in eager mode they are computed. */
void op_record(Rec *r, const Callee *callee, uint32_t n_in, RtNode *const *in, uint32_t n_out, const Shape *type, RtNode **result);

/* The host's function; callee->op is a kiln_op. */
CallHost op_call_host;

/* The image on a CUDA device, after what is queued. args: addresses of inputs, then of outputs. (runtime/cuda/cuda_op.c) */
struct CudaRun;
Status cuda_run_op(struct CudaRun *run, const kiln_op *op, const kiln_type *type, void *const *args, const kiln_launch *launch);

#endif
