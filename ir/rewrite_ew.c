/* Rewrites of elementwise nodes that patterns cannot say: constants, broadcast scalars, casts,
 * idempotents. */
#include "ir/rules.h"

#include <string.h>

/* ---- scalars ---- */

/* f of broadcasts alone is the broadcast of f: computed once, and on the host when made of scalars
 * only. */
Ref rewrite_lift_scalars(Rewriter *w, Ref r)
{
    const Node n = *graph_node(w->g, r);
    Ref in[3];
    if (n.rank == 0)
        return REF_NONE;
    for (uint32_t k = 0; k < n.n_in; k++) {
        in[k] = scalar_source(w->g, n.in[k]);
        if (in[k] == REF_NONE)
            return REF_NONE;
    }
    Ref s = rewrite_add(w, (Op)n.op, (DType)n.dtype, in, n.n_in, &n.attr, NULL, 0, n.loc);
    return rewrite_broadcast(w, s, n.rank, n.dim, n.loc);
}

/* Does r repeat one value? Among nodes of rank 0, where all do, a scalar does. */
static bool is_scalar(const Graph *g, Ref r)
{
    const Node *n = graph_node(g, r);
    return n->rank ? scalar_source(g, r) != REF_NONE : n->op == OP_SCALAR;
}

Ref rewrite_constant_right(Rewriter *w, Ref r)
{
    const Node n = *graph_node(w->g, r);
    if (!(op_info[n.op].flags & OPF_COMMUTES) || !is_scalar(w->g, n.in[0]) || is_scalar(w->g, n.in[1]))
        return REF_NONE;
    return rewrite_add(w, (Op)n.op, (DType)n.dtype, (Ref[]){n.in[1], n.in[0]}, 2, &n.attr, NULL, 0, n.loc);
}

Ref rewrite_fold(Rewriter *w, Ref r)
{
    const Node n = *graph_node(w->g, r);
    DType types[3];
    uint64_t values[3][2] = {{0}}, out[2] = {0};
    const void *in[3] = {values[0], values[1], values[2]};
    if (n.rank != 0 || n.n_in == 0 || n.n_in > 3)
        return REF_NONE;
    for (uint32_t k = 0; k < n.n_in; k++) {
        uint64_t bits;
        if (!graph_is_const(w->g, n.in[k], &bits))
            return REF_NONE;
        types[k] = (DType)graph_node(w->g, n.in[k])->dtype;
        scalar_store(types[k], bits, values[k]);
    }
    const Tape *tape = tape_get((Op)n.op, types, (DType)n.dtype, w->math);
    if (!tape || !tape_run(tape, types, (DType)n.dtype, 1, in, out))
        return REF_NONE;
    return graph_add_const(w->g, (DType)n.dtype, scalar_load((DType)n.dtype, out), n.loc);
}

/* (x op s) op t -> x op (s op t) for scalars s and t, where op may be regrouped. */
static Ref regroup(Rewriter *w, Ref r)
{
    const Node n = *graph_node(w->g, r);
    const Node inner = *graph_node(w->g, n.in[0]);
    if (inner.op != n.op || !is_scalar(w->g, n.in[1]) || !is_scalar(w->g, inner.in[1]) || is_scalar(w->g, inner.in[0]))
        return REF_NONE;
    Ref scalars = rewrite_ew(w, (Op)n.op, inner.in[1], n.in[1], REF_NONE, n.loc);
    return rewrite_ew(w, (Op)n.op, inner.in[0], scalars, REF_NONE, n.loc);
}

Ref rewrite_scalars_together(Rewriter *w, Ref r)
{
    Op op = (Op)graph_node(w->g, r)->op;
    return op == OP_ADD || op == OP_MUL || op == OP_AND || op == OP_OR || op == OP_XOR ? regroup(w, r) : REF_NONE;
}

Ref rewrite_bounds_together(Rewriter *w, Ref r)
{
    Op op = (Op)graph_node(w->g, r)->op;
    return op == OP_MAXIMUM || op == OP_MINIMUM ? regroup(w, r) : REF_NONE;
}

/* ---- casts ---- */

Ref rewrite_cast_same(Rewriter *w, Ref r)
{
    const Node *n = graph_node(w->g, r);
    return n->op == OP_CAST && graph_node(w->g, n->in[0])->dtype == n->dtype ? n->in[0] : REF_NONE;
}

/* Bits of magnitude that a dtype holds exactly: of an integer its own, of a float its precision. */
static int digits(DType t)
{
    static const int floats[DT_COUNT] = {[DT_F16] = 11, [DT_BF16] = 8, [DT_F32] = 24, [DT_F64] = 53};
    if (dtype_is_float(t))
        return floats[t];
    return t == DT_BOOL ? 1 : (int)dtype_bytes(t) * 8 - dtype_is_signed(t);
}

/* Is every value of `from` a value of `to`? */
static bool lossless(DType from, DType to)
{
    if (from == to || from == DT_BOOL)
        return true;
    if (to == DT_BOOL || (dtype_is_float(from) && !dtype_is_float(to)))
        return false;
    if (dtype_is_float(from))
        return to == DT_F64 || (to == DT_F32 && from != DT_F64);
    if (dtype_is_signed(from) && !dtype_is_signed(to))
        return false;
    return digits(from) <= digits(to);
}

/*
 * a -> b -> c is a -> c when
 *   - a -> b loses nothing and the second cast asks for the value only. Float to integer saturates
 * where integer to integer wraps, so an integer that goes through a float must fit c;
 *   - all are integers and b keeps the bits that c keeps.
 */
static bool skips(DType a, DType b, DType c)
{
    if (lossless(a, b))
        return dtype_is_float(a) || !dtype_is_float(b) || !dtype_is_int(c) || lossless(a, c);
    return dtype_is_int(a) && dtype_is_int(b) && dtype_is_int(c) && dtype_bytes(c) <= dtype_bytes(b);
}

Ref rewrite_cast_of_cast(Rewriter *w, Ref r)
{
    const Node n = *graph_node(w->g, r);
    if (n.op != OP_CAST)
        return REF_NONE;
    const Node b = *graph_node(w->g, n.in[0]);
    if (b.op != OP_CAST)
        return REF_NONE;
    DType a = (DType)graph_node(w->g, b.in[0])->dtype;
    return skips(a, (DType)b.dtype, (DType)n.dtype) ? rewrite_cast(w, b.in[0], (DType)n.dtype, n.loc) : REF_NONE;
}

/* ---- idempotents ---- */

static bool rounds(Op op) { return op == OP_FLOOR || op == OP_CEIL || op == OP_ROUND || op == OP_TRUNC; }

Ref rewrite_idempotent(Rewriter *w, Ref r)
{
    const Node *n = graph_node(w->g, r);
    if (!(op_info[n->op].flags & OPF_IDEMPOTENT))
        return REF_NONE;
    const Node *x = graph_node(w->g, n->in[0]);
    return x->op == n->op || (rounds((Op)n->op) && rounds((Op)x->op)) ? n->in[0] : REF_NONE;
}
