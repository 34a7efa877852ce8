/*
 * Derivatives of linear algebra, of any order, as each is made of products and further calls. Notation: X' is the tangent of X, [X] its
 * cotangent; all formulas are for real matrices.
 *
 *   solve, inv, det, eigh, svd   M. Giles, An extended collection of matrix derivative results for forward and reverse mode algorithmic differentiation, Oxford 2008;
 *                                svd of matrices that are not square: J. Townsend, Differentiating the singular value decomposition, 2016
 *   cholesky                     I. Murray, Differentiation of the Cholesky decomposition, arXiv 1602.07527
 *   qr                           M. Seeger et al., Auto-differentiating linear algebra, arXiv 1710.08717
 *
 * Functions that read one triangle of a symmetric matrix give a symmetric cotangent and take the symmetric part of a tangent. Where
 * eigenvalues or singular values are equal, vectors have no derivative: what asks for it is infinite or NaN; values alone have one.
 */
#include "ir/body.h"
#include "ir/gradient_rules.h"
#include "ir/linalg.h"

#include <string.h>

static const struct {
    const char *name;
    uint32_t n_in, n_out;
} functions[LINALG_COUNT] = {
#define LINALG(id, name, n_in, n_out) {name, n_in, n_out},
#include "ir/linalg.def"
#undef LINALG
};

Callee linalg_callee(const LinalgAttr *attr, CallHost *host)
{
    return (Callee){.name = functions[attr->function].name,
                    .version = "1",
                    .attributes = attr,
                    .bytes = sizeof *attr,
                    .derivative = true,
                    .rule = linalg_rule,
                    .leading = true,
                    .columns = attr->function == LINALG_SOLVE || attr->function == LINALG_TRIANGULAR,
                    .host = host};
}

/* ---- building ---- */

typedef struct Type {
    DType dtype;
    int rank;
    Dim dim[MAX_RANK];
} Type;

static Type type_of(const Gradient *d, Ref x)
{
    const Node n = node_of(d, x);
    Type type = {(DType)n.dtype, n.rank, {0}};
    memcpy(type.dim, n.dim, sizeof type.dim);
    return type;
}

/* x's leading axes, and `rank` more. */
static Type matrix(const Gradient *d, Ref x, int rank, Dim rows, Dim columns)
{
    Type type = type_of(d, x);
    int lead = type.rank - 2;
    type.rank = lead + rank;
    type.dim[lead] = rows;
    type.dim[lead + 1] = columns;
    return type;
}

static int rank_of(const Gradient *d, Ref x) { return graph_node(d->g, x)->rank; }
/* The size of x's i-th axis from the end, 1: the last. */
static Dim size(const Gradient *d, Ref x, int i) { return graph_node(d->g, x)->dim[rank_of(d, x) - i]; }

/* Another function of the library that call->rule is of. */
static void call_of(Gradient *d, const GradientCall *call, LinalgAttr attr, const Ref *in, const Type *type, Ref *out)
{
    uint32_t n_in = functions[attr.function].n_in, n_out = functions[attr.function].n_out, n_facts = 0;
    const Callee callee = linalg_callee(&attr, call->rule->host);
    Dim *fact = ARENA_ARRAY(d->g->arena, Dim, n_out * MAX_RANK);
    Node n = {.op = OP_CUSTOM, .n_in = n_in, .in = arena_copy(d->g->arena, in, sizeof *in * n_in), .fact = fact, .callee = &callee};
    n.attr.n = n_out;
    for (uint32_t k = 0; k < n_out; k++) {
        n.attr.custom.type[k] = (uint8_t)((unsigned)type[k].dtype << 4 | (unsigned)type[k].rank);
        memcpy(fact + n_facts, type[k].dim, sizeof *fact * (size_t)type[k].rank);
        n_facts += (uint32_t)type[k].rank;
    }
    n.n_facts = n_facts;
    Ref made = graph_add_body(d->g, &n);
    for (uint32_t k = 0; k < n_out; k++)
        out[k] = graph_add_result(d->g, made, k, (Loc){0});
}

static Ref add(Gradient *d, Ref a, Ref b) { return a == REF_NONE || b == REF_NONE ? (a == REF_NONE ? b : a) : grad_ew2(d, OP_ADD, a, b); }
static Ref sub(Gradient *d, Ref a, Ref b) { return b == REF_NONE ? a : a == REF_NONE ? grad_ew1(d, OP_NEG, b) : grad_ew2(d, OP_SUB, a, b); }
static Ref mul(Gradient *d, Ref a, Ref b) { return grad_ew2(d, OP_MUL, a, b); }
static Ref neg(Gradient *d, Ref a) { return grad_ew1(d, OP_NEG, a); }
static Ref turned(Gradient *d, Ref a) { return grad_transposed(d, a); }
static Ref times(Gradient *d, Ref a, Ref b) { return grad_product(d, a, b); }

static Ref half(Gradient *d, Ref a)
{
    Ref number = grad_number(d, dtype_of(d, a), 0.5, a);
    return mul(d, a, number);
}

/* (a + a^T) / 2 */
static Ref symmetric(Gradient *d, Ref a) { return half(d, add(d, a, turned(d, a))); }

static Ref zeros(Gradient *d, Ref like)
{
    const Node n = node_of(d, like);
    return grad_zero(d, (DType)n.dtype, n.rank, n.dim);
}

/* Of each element of a matrix: op(row, column). */
static Ref where_is(Gradient *d, Ref like, Op op)
{
    const Node n = node_of(d, like);
    Ref row = grad_positions(d, (uint8_t)(n.rank - 2), n.rank, n.dim), column = grad_positions(d, (uint8_t)(n.rank - 1), n.rank, n.dim);
    return grad_ew2(d, op, row, column);
}

/* The elements of a where op(row, column), else 0. */
static Ref only(Gradient *d, Ref a, Op op)
{
    Ref is = where_is(d, a, op), zero = zeros(d, a);
    return grad_where(d, is, a, zero);
}

/* The lower triangle with half of the diagonal. */
static Ref lower_half(Gradient *d, Ref a)
{
    Ref diagonal = half(d, only(d, a, OP_EQ)), below = only(d, a, OP_GT);
    return add(d, below, diagonal);
}

/* v, [..., n], for each row (then it varies along columns) or column of `like`. */
static Ref rows_of(Gradient *d, Ref v, Ref like)
{
    const Node n = node_of(d, like);
    return grad_spread(d, v, (uint8_t)(1u << (n.rank - 2)), n.dim);
}
static Ref columns_of(Gradient *d, Ref v, Ref like)
{
    const Node n = node_of(d, like);
    return grad_spread(d, v, (uint8_t)(1u << (n.rank - 1)), n.dim);
}
/* a diag(v), diag(v) a */
static Ref scaled_columns(Gradient *d, Ref a, Ref v) { return mul(d, a, rows_of(d, v, a)); }
static Ref scaled_rows(Gradient *d, Ref v, Ref a) { return mul(d, columns_of(d, v, a), a); }

static Ref diagonal_of(Gradient *d, Ref a)
{
    return grad_reduce(d, OP_REDUCE_SUM, only(d, a, OP_EQ), (uint8_t)(1u << (rank_of(d, a) - 1)));
}

/* v on the diagonal of a matrix like `like`, which are square. */
static Ref diagonal(Gradient *d, Ref v, Ref like) { return only(d, rows_of(d, v, like), OP_EQ); }

/* [..., ] for each element of a matrix like `like` */
static Ref everywhere(Gradient *d, Ref v, Ref like)
{
    const Node n = node_of(d, like);
    return grad_spread(d, v, (uint8_t)(3u << (n.rank - 2)), n.dim);
}

/* The sum of a b over the matrix. */
static Ref inner(Gradient *d, Ref a, Ref b)
{
    Ref product = mul(d, a, b);
    return grad_reduce(d, OP_REDUCE_SUM, product, (uint8_t)(3u << (rank_of(d, product) - 2)));
}

/* 1 / (v_j - v_i) off the diagonal, 0 on it; like a matrix. */
static Ref gaps(Gradient *d, Ref v, Ref like)
{
    Ref here = rows_of(d, v, like), gap = sub(d, here, columns_of(d, v, like)), diagonal = where_is(d, like, OP_EQ);
    Ref zero = zeros(d, gap), safe = grad_where(d, diagonal, grad_number(d, dtype_of(d, gap), 1, gap), gap);
    return grad_where(d, diagonal, zero, grad_ew1(d, OP_RECIPROCAL, safe));
}

/* ---- systems ---- */

static uint32_t flags_of(const GradientCall *call)
{
    LinalgAttr attr;
    memcpy(&attr, call->rule->attributes, sizeof attr);
    return attr.flags;
}

static Ref solve(Gradient *d, const GradientCall *call, uint32_t flags, Ref b)
{
    const Type type = type_of(d, b);
    Ref x, in[3] = {call->in[0], call->in[1], b};
    call_of(d, call, (LinalgAttr){LINALG_SOLVE, flags}, in, &type, &x);
    return x;
}

static Ref triangular(Gradient *d, const GradientCall *call, uint32_t flags, Ref a, Ref b)
{
    const Type type = type_of(d, b);
    Ref x, in[2] = {a, b};
    call_of(d, call, (LinalgAttr){LINALG_TRIANGULAR, flags}, in, &type, &x);
    return x;
}

/* A X = B: [B] = A^-T [X], [A] = -[B] X^T, X' = A^-1 (B' - A' X). A^T X = B: the same with A^T for A. */
static Ref of_matrix(Gradient *d, uint32_t flags, Ref x, Ref gb)
{
    bool transposed = flags & LINALG_TRANSPOSED;
    Ref left = transposed ? x : gb, right = turned(d, transposed ? gb : x);
    return neg(d, times(d, left, right));
}

static Ref right_side(Gradient *d, uint32_t flags, Ref a_tangent, Ref b_tangent, Ref x)
{
    if (a_tangent == REF_NONE)
        return b_tangent;
    Ref a = flags & LINALG_TRANSPOSED ? turned(d, a_tangent) : a_tangent;
    return sub(d, b_tangent, times(d, a, x));
}

static void derive_solve(Gradient *d, const GradientCall *call, bool forward, const Ref *seed, Ref *got)
{
    uint32_t flags = flags_of(call);
    if (forward) {
        got[0] = solve(d, call, flags, right_side(d, flags, seed[0], seed[2], call->value[0]));
        return;
    }
    got[2] = solve(d, call, flags ^ LINALG_TRANSPOSED, seed[0]);
    got[0] = of_matrix(d, flags, call->value[0], got[2]);
}

/* What of a triangular matrix is read. */
static Ref triangle(Gradient *d, uint32_t flags, Ref a)
{
    bool upper = flags & LINALG_UPPER, unit = flags & LINALG_UNIT;
    return only(d, a, upper ? (unit ? OP_LT : OP_LE) : unit ? OP_GT : OP_GE);
}

static void derive_triangular(Gradient *d, const GradientCall *call, bool forward, const Ref *seed, Ref *got)
{
    uint32_t flags = flags_of(call);
    if (forward) {
        Ref a = seed[0] == REF_NONE ? REF_NONE : triangle(d, flags, seed[0]);
        got[0] = triangular(d, call, flags, call->in[0], right_side(d, flags, a, seed[1], call->value[0]));
        return;
    }
    got[1] = triangular(d, call, flags ^ LINALG_TRANSPOSED, call->in[0], seed[0]);
    got[0] = triangle(d, flags, of_matrix(d, flags, call->value[0], got[1]));
}

/* X = A^-1: [A] = -X^T [X] X^T, X' = -X A' X */
static void derive_inv(Gradient *d, const GradientCall *call, bool forward, const Ref *seed, Ref *got)
{
    Ref x = forward ? call->value[0] : turned(d, call->value[0]);
    got[0] = neg(d, times(d, times(d, x, seed[0]), x));
}

/* (log |det A|)' = trace(A^-1 A'), and det' = det times that. */
static void derive_det(Gradient *d, const GradientCall *call, bool forward, const Ref *seed, Ref *got)
{
    const bool log = call->n_results == 2;
    const Type type = type_of(d, call->in[0]);
    Ref inverse;
    if (!forward && seed[log] == REF_NONE) /* of a sign */
        return;
    call_of(d, call, (LinalgAttr){LINALG_INV, 0}, call->in, &type, &inverse);
    inverse = turned(d, inverse);
    if (forward) {
        Ref trace = inner(d, inverse, seed[0]);
        got[log] = log ? trace : mul(d, call->value[0], trace);
    } else {
        Ref g = log ? seed[1] : mul(d, seed[0], call->value[0]);
        got[0] = mul(d, everywhere(d, g, inverse), inverse);
    }
}

/* ---- factors ---- */

/* [A] = the symmetric part of L^-T lower_half(L^T [L]) L^-1; L' = L lower_half(L^-1 A' L^-T) */
static void derive_cholesky(Gradient *d, const GradientCall *call, bool forward, const Ref *seed, Ref *got)
{
    Ref l = call->value[0];
    uint32_t flags = forward ? 0 : LINALG_TRANSPOSED;
    Ref middle = forward ? symmetric(d, seed[0]) : lower_half(d, times(d, turned(d, l), seed[0]));
    Ref left = triangular(d, call, flags, l, middle), both = triangular(d, call, flags, l, turned(d, left));
    got[0] = forward ? times(d, l, lower_half(d, both)) : symmetric(d, both);
}

/* M = R [R]^T - [Q]^T Q: [A] = ([Q] + Q (lower triangle of M, mirrored)) R^-T. With C = A' R^-1, B = Q^T C and W = its part below the
 * diagonal less that mirrored: Q' = Q (W - B) + C, R' = (B - W) R */
static void derive_qr(Gradient *d, const GradientCall *call, bool forward, const Ref *seed, Ref *got)
{
    Ref q = call->value[0], r = call->value[1];
    if (forward) {
        Ref c = turned(d, triangular(d, call, LINALG_UPPER | LINALG_TRANSPOSED, r, turned(d, seed[0]))), b = times(d, turned(d, q), c);
        Ref below = only(d, b, OP_GT), w = sub(d, below, turned(d, below)), rest = sub(d, b, w);
        got[0] = sub(d, c, times(d, q, rest));
        got[1] = times(d, rest, r);
        return;
    }
    Ref gq = seed[0], gr = seed[1], m = REF_NONE;
    if (gr != REF_NONE)
        m = times(d, r, turned(d, gr));
    if (gq != REF_NONE)
        m = sub(d, m, times(d, turned(d, gq), q));
    Ref lower = only(d, m, OP_GE), mirrored = add(d, lower, turned(d, only(d, m, OP_GT))), sum = add(d, gq, times(d, q, mirrored));
    got[0] = turned(d, triangular(d, call, LINALG_UPPER, r, turned(d, sum)));
}

/* P = V^T A' V, E_ij = 1 / (w_j - w_i): w' = diagonal of P, V' = V (E o P); [A] = V (diag([w]) + E o (V^T [V])) V^T, of which the symmetric part. */
static void derive_eigh(Gradient *d, const GradientCall *call, bool forward, const Ref *seed, Ref *got)
{
    const bool values_only = call->n_results == 1;
    Ref w = call->value[0], vt;
    if (values_only) {
        Ref both[2];
        const Type type[2] = {type_of(d, w), type_of(d, call->in[0])};
        call_of(d, call, (LinalgAttr){LINALG_EIGH, 0}, call->in, type, both);
        vt = both[1];
    } else
        vt = call->value[1];
    Ref v = turned(d, vt);
    if (forward) {
        Ref p = times(d, times(d, vt, symmetric(d, seed[0])), v);
        got[0] = diagonal_of(d, p);
        if (!values_only)
            got[1] = times(d, turned(d, mul(d, gaps(d, w, p), p)), vt);
        return;
    }
    Ref middle = seed[0] == REF_NONE ? REF_NONE : diagonal(d, seed[0], vt);
    if (!values_only && seed[1] != REF_NONE) {
        Ref m = times(d, vt, turned(d, seed[1]));
        middle = add(d, middle, symmetric(d, mul(d, gaps(d, w, m), m)));
    }
    got[0] = times(d, times(d, v, middle), vt);
}

/* a - a, mirrored */
static Ref skew(Gradient *d, Ref a) { return sub(d, a, turned(d, a)); }

/* (I - V V^T) from the right, of rows: a - (a V) V^T */
static Ref orthogonal_to_rows(Gradient *d, Ref a, Ref vt) { return sub(d, a, times(d, times(d, a, turned(d, vt)), vt)); }
/* ... from the left, of columns: a - U (U^T a) */
static Ref orthogonal_to_columns(Gradient *d, Ref a, Ref u) { return sub(d, a, times(d, u, times(d, turned(d, u), a))); }

typedef struct Svd {
    Ref u, s, vt, e, inverse; /* e_ij = 1 / (s_j^2 - s_i^2), inverse: 1 / s */
    uint32_t flags;
} Svd;

/* P = U^T A' V: s' = diagonal of P, U' = U (E o (P S + S P^T)) + (I - U U^T) A' V S^-1, V' = V (E o (S P + P^T S)) + (I - V V^T) A'^T U S^-1 */
static void svd_forward(Gradient *d, const Svd *x, Ref a, Ref *got)
{
    Ref along_v = times(d, a, turned(d, x->vt)), along_u = times(d, turned(d, x->u), a), p = times(d, along_u, turned(d, x->vt));
    Ref right = scaled_columns(d, p, x->s), left = scaled_rows(d, x->s, p);
    got[1] = diagonal_of(d, p);
    got[0] = times(d, x->u, mul(d, x->e, add(d, right, turned(d, right))));
    got[2] = times(d, turned(d, mul(d, x->e, add(d, left, turned(d, left)))), x->vt);
    if (x->flags & LINALG_TALL)
        got[0] = add(d, got[0], orthogonal_to_columns(d, scaled_columns(d, along_v, x->inverse), x->u));
    if (x->flags & LINALG_WIDE)
        got[2] = add(d, got[2], orthogonal_to_rows(d, scaled_rows(d, x->inverse, along_u), x->vt));
}

/* [A] = U ((E o skew(U^T [U])) S + S (E o skew(V^T [V])) + diag([s])) V^T + (I - U U^T) [U] S^-1 V^T + U S^-1 [V]^T (I - V V^T) */
static Ref svd_back(Gradient *d, const Svd *x, const Ref *seed)
{
    Ref gu = seed[0], gs = seed[1], gvt = seed[2], middle = REF_NONE, orthogonal = REF_NONE;
    if (gs != REF_NONE)
        middle = diagonal(d, gs, x->e);
    if (gu != REF_NONE)
        middle = add(d, middle, scaled_columns(d, mul(d, x->e, skew(d, times(d, turned(d, x->u), gu))), x->s));
    if (gvt != REF_NONE)
        middle = add(d, middle, scaled_rows(d, x->s, mul(d, x->e, skew(d, times(d, x->vt, turned(d, gvt))))));
    if (gu != REF_NONE && x->flags & LINALG_TALL)
        orthogonal = times(d, scaled_columns(d, orthogonal_to_columns(d, gu, x->u), x->inverse), x->vt);
    if (gvt != REF_NONE && x->flags & LINALG_WIDE)
        orthogonal = times(d, x->u, scaled_rows(d, x->inverse, orthogonal_to_rows(d, gvt, x->vt)));
    return add(d, times(d, times(d, x->u, middle), x->vt), orthogonal);
}

static void derive_svd(Gradient *d, const GradientCall *call, bool forward, const Ref *seed, Ref *got)
{
    Ref s = call->value[1];
    Svd x = {.u = call->value[0], .s = s, .vt = call->value[2], .flags = flags_of(call)};
    const Type square = matrix(d, call->in[0], 2, size(d, s, 1), size(d, s, 1));
    Ref squares = mul(d, s, s);
    x.e = gaps(d, squares, grad_zero(d, square.dtype, square.rank, square.dim));
    x.inverse = grad_ew1(d, OP_RECIPROCAL, s);
    if (forward)
        svd_forward(d, &x, seed[0], got);
    else
        got[0] = svd_back(d, &x, seed);
}

/* s' = diagonal of U^T A' V, [A] = U diag([s]) V^T */
static void derive_svdvals(Gradient *d, const GradientCall *call, bool forward, const Ref *seed, Ref *got)
{
    Ref a = call->in[0], s = call->value[0], k[3];
    const Type type[3] = {matrix(d, a, 2, size(d, a, 2), size(d, s, 1)), type_of(d, s), matrix(d, a, 2, size(d, s, 1), size(d, a, 1))};
    call_of(d, call, (LinalgAttr){LINALG_SVD, flags_of(call)}, &a, type, k);
    if (forward) {
        Ref left = times(d, turned(d, k[0]), seed[0]);
        got[0] = diagonal_of(d, times(d, left, turned(d, k[2])));
    } else
        got[0] = times(d, scaled_columns(d, k[0], seed[0]), k[2]);
}

/* F stands for A (ir/linalg.h). */
static void derive_lu(Gradient *d, const GradientCall *call, bool forward, const Ref *seed, Ref *got)
{
    (void)d, (void)call, (void)forward;
    got[0] = seed[0];
}

void linalg_rule(Gradient *d, const GradientCall *call, bool forward, const Ref *seed, Ref *got)
{
    static CallRule *const rules[LINALG_COUNT] = {
        [LINALG_LU] = derive_lu,
        [LINALG_SOLVE] = derive_solve,
        [LINALG_INV] = derive_inv,
        [LINALG_DET] = derive_det,
        [LINALG_SLOGDET] = derive_det,
        [LINALG_CHOLESKY] = derive_cholesky,
        [LINALG_TRIANGULAR] = derive_triangular,
        [LINALG_QR] = derive_qr,
        [LINALG_EIGH] = derive_eigh,
        [LINALG_EIGVALSH] = derive_eigh,
        [LINALG_SVD] = derive_svd,
        [LINALG_SVDVALS] = derive_svdvals,
    };
    LinalgAttr attr;
    bool any = false;
    memcpy(&attr, call->rule->attributes, sizeof attr);
    for (uint32_t k = 0; k < (forward ? call->n_in : call->n_results); k++)
        any |= seed[k] != REF_NONE;
    if (any)
        rules[attr.function](d, call, forward, seed, got);
}
