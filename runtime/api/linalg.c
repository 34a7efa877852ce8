/*
 * Linear algebra: calls of LAPACK (ir/linalg.def) on matrices in the last two axes, with what is around them recorded as ever.
 *
 * A system is solved by factors, which are a call of their own: what else asks for the same matrix, or its gradient, finds them. Where one
 * matrix serves many right sides these become columns of one; else leading axes are broadcast, of the factors rather than of the matrix.
 */
#include "runtime/eval/op.h"
#include "runtime/linalg/linalg.h"

#include <inttypes.h>
#include <string.h>

/* ---- recording ---- */

static int64_t rows_of(const RtNode *x) { return x->dim[x->rank - 2]; }
static int64_t columns_of(const RtNode *x) { return x->dim[x->rank - 1]; }

/* x's leading axes, then `rank` of these. */
static Shape shape_like(const RtNode *x, int rank, int64_t rows, int64_t columns)
{
    Shape type = {.dtype = x->dtype, .rank = (uint8_t)(x->rank - 2 + rank)};
    memcpy(type.dim, x->dim, sizeof *type.dim * (size_t)(x->rank - 2));
    type.dim[x->rank - 2] = rows;
    if (rank == 2)
        type.dim[x->rank - 1] = columns;
    return type;
}

/* Borrowed results; NULL: an error is kept. */
static void call(Rec *r, Linalg function, unsigned flags, uint32_t n_in, RtNode *const *in, uint32_t n_out, const Shape *type, RtNode **out)
{
    const LinalgAttr attr = {function, flags};
    const Callee callee = linalg_callee(&attr, linalg_host);
    for (uint32_t k = 0; k < n_in; k++)
        if (!in[k])
            return;
    op_record(r, &callee, n_in, in, n_out, type, out);
    for (uint32_t k = 0; k < n_out; k++)
        if (out[k])
            rec_own(r, out[k]);
}

/* What all of them take: floats of at least two axes, of which f16 and bf16 are computed as f32; *own: the dtype of the results. */
static bool matrices(Rec *r, int n, RtNode **x, const char *const *names, DType *own)
{
    if (!rec_promote(r, PREP_FLOAT, n, x, names))
        return false;
    *own = node_dtype(x[0]);
    for (int k = 0; k < n; k++)
        x[k] = rec_cast(r, rec_strong(r, x[k]), compute_dtype(*own));
    return r->status == ST_OK;
}

static bool check_matrix(Rec *r, const RtNode *a, bool square)
{
    char text[SHAPE_TEXT];
    if (a->rank < 2)
        rec_fail(r, ST_SHAPE, "a matrix has two axes: a is %s", node_text(a, text));
    else if (square && rows_of(a) != columns_of(a))
        rec_fail(r, ST_SHAPE, "the last two axes differ: a is %s", node_text(a, text));
    return r->status == ST_OK;
}

static RtNode *matrix_in(Rec *r, kiln_tensor *a, bool square, DType *own)
{
    static const char *const name = "a";
    RtNode *x = rec_in(r, a, name);
    return x && matrices(r, 1, &x, &name, own) && check_matrix(r, x, square) ? x : NULL;
}

static bool factors(Rec *r, RtNode *a, RtNode **out)
{
    if (!a)
        return false;
    Shape type[2] = {shape_like(a, 2, rows_of(a), columns_of(a)), shape_like(a, 1, rows_of(a), 0)};
    type[1].dtype = DT_I32;
    call(r, LINALG_LU, 0, 1, &a, 2, type, out);
    return r->status == ST_OK;
}

static RtNode *turned(Rec *r, RtNode *x)
{
    uint8_t perm[MAX_RANK];
    for (int d = 0; x && d < x->rank; d++)
        perm[d] = (uint8_t)(d < x->rank - 2 ? d : 2 * x->rank - 3 - d);
    return rec_permute(r, x, perm);
}

/* ---- systems ---- */

/* By a call on matrix[0..n), of which the last two axes of the first are n x n and those of the second are n (or there is none), and b. */
static RtNode *system_of(Rec *r, Linalg function, unsigned flags, int n, RtNode *const *matrix, RtNode *b)
{
    RtNode *in[3] = {matrix[0], n > 1 ? matrix[1] : b, b}, *x = NULL;
    if (!b)
        return NULL;
    const Shape type = shape_like(b, 2, rows_of(b), columns_of(b));
    call(r, function, flags, (uint32_t)n + 1, in, 1, &type, &x);
    return x;
}

/* One matrix, and b with leading axes: [..., n, k] as [n, ... k], which are columns of one right side. */
static RtNode *columns_together(Rec *r, Linalg function, unsigned flags, int n, RtNode *const *matrix, RtNode *b)
{
    int lead = b->rank - 2;
    uint8_t there[MAX_RANK], back[MAX_RANK];
    int64_t dims[MAX_RANK];
    for (int d = 0; d < b->rank && d < MAX_RANK; d++) {
        there[d] = (uint8_t)(d == 0 ? lead : d <= lead ? d - 1 : d);
        back[d] = (uint8_t)(d < lead ? d + 1 : d == lead ? 0 : d);
        dims[d] = b->dim[there[d]];
    }
    RtNode *all = rec_merge(r, rec_permute(r, b, there), 1, lead + 1);
    RtNode *x = system_of(r, function, flags, n, matrix, all);
    return x ? rec_permute(r, rec_split(r, x, 1, lead + 1, dims + 1), back) : NULL;
}

/* x with these leading axes; own: of which it has its own. */
static RtNode *lead(Rec *r, RtNode *x, int own, int rank, const int64_t *dims)
{
    int64_t all[MAX_RANK];
    if (!x || rank + own > MAX_RANK)
        return rec_fail(r, ST_SHAPE, "more than %d axes", MAX_RANK);
    memcpy(all, dims, sizeof *dims * (size_t)rank);
    memcpy(all + rank, x->dim + x->rank - own, sizeof *all * (size_t)own);
    return rec_expand(r, x, rank + own, all);
}

/* The leading axes to which a and b broadcast. false: an error is kept. */
static bool leading_axes(Rec *r, const RtNode *a, const RtNode *b, int *rank, int64_t *dims)
{
    char left[SHAPE_TEXT], right[SHAPE_TEXT];
    int64_t numel, all[MAX_RANK];
    *rank = (a->rank > b->rank ? a->rank : b->rank) - 2;
    for (int d = 0; d < *rank; d++) {
        int of_a = d - (*rank + 2 - a->rank), of_b = d - (*rank + 2 - b->rank);
        int64_t x = of_a < 0 ? 1 : a->dim[of_a], y = of_b < 0 ? 1 : b->dim[of_b];
        if (x != y && x != 1 && y != 1) {
            rec_fail(r, ST_SHAPE, "leading axes do not broadcast: a is %s, b is %s", node_text(a, left), node_text(b, right));
            return false;
        }
        all[d] = dims[d] = x == 1 ? y : x;
    }
    all[*rank] = rows_of(a);
    all[*rank + 1] = rows_of(a) > columns_of(b) ? rows_of(a) : columns_of(b);
    if (!shape_numel(*rank + 2, all, &numel))
        rec_fail(r, ST_OVERFLOW, "the result has more than 2^62 elements: a is %s, b is %s", node_text(a, left), node_text(b, right));
    return r->status == ST_OK;
}

static RtNode *solve_system(Rec *r, Linalg function, unsigned flags, kiln_tensor *a, kiln_tensor *b)
{
    static const char *const names[] = {"a", "b"};
    char left[SHAPE_TEXT], right[SHAPE_TEXT];
    RtNode *in[2] = {rec_in(r, a, "a"), NULL}, *matrix[2] = {NULL}, *x;
    DType own;
    in[1] = rec_in(r, b, "b");
    if (!in[0] || !in[1] || !matrices(r, 2, in, names, &own) || !check_matrix(r, in[0], true))
        return NULL;
    bool vector = in[1]->rank == 1;
    if (in[1]->rank == 0 || (vector ? in[1]->dim[0] : rows_of(in[1])) != rows_of(in[0]))
        return rec_fail(r, ST_SHAPE, "a is [..., n, n], b [n] or [..., n, k]: a is %s, b is %s", node_text(in[0], left),
                        node_text(in[1], right));
    int n = function == LINALG_SOLVE ? 2 : 1, rank;
    int64_t dims[MAX_RANK];
    matrix[0] = in[0];
    if (function == LINALG_SOLVE && !factors(r, in[0], matrix))
        return NULL;
    RtNode *right_side = vector ? rec_insert(r, in[1], 1) : in[1];
    if (!right_side)
        return NULL;
    if (in[0]->rank == 2 && right_side->rank > 2)
        x = columns_together(r, function, flags, n, matrix, right_side);
    else {
        if (!leading_axes(r, in[0], right_side, &rank, dims))
            return NULL;
        matrix[0] = lead(r, matrix[0], 2, rank, dims);
        matrix[1] = n > 1 ? lead(r, matrix[1], 1, rank, dims) : NULL;
        x = system_of(r, function, flags, n, matrix, lead(r, right_side, 2, rank, dims));
    }
    x = rec_cast(r, x, own);
    return vector && x ? rec_drop(r, x, (uint8_t)(1u << (x->rank - 1))) : x;
}

API2(kiln_tensor *, kiln_solve, kiln_tensor *, a, kiln_tensor *, b)
{
    Rec r = REC(kiln_solve);
    return rec_end(&r, solve_system(&r, LINALG_SOLVE, 0, a, b));
}

API3(kiln_tensor *, kiln_solve_triangular, kiln_tensor *, a, kiln_tensor *, b, unsigned, flags)
{
    static const unsigned meaning[][2] = {
        {KILN_UPPER, LINALG_UPPER}, {KILN_TRANSPOSED, LINALG_TRANSPOSED}, {KILN_UNIT_DIAGONAL, LINALG_UNIT}};
    Rec r = REC(kiln_solve_triangular);
    unsigned own = 0, known = 0;
    for (int k = 0; k < 3; k++) {
        known |= meaning[k][0];
        own |= flags & meaning[k][0] ? meaning[k][1] : 0;
    }
    if (flags & ~known)
        rec_fail(&r, ST_INVALID, "flags are %#x: there are KILN_UPPER, KILN_TRANSPOSED and KILN_UNIT_DIAGONAL", flags);
    return rec_end(&r, r.status == ST_OK ? solve_system(&r, LINALG_TRIANGULAR, own, a, b) : NULL);
}

API1(kiln_tensor *, kiln_inv, kiln_tensor *, a)
{
    Rec r = REC(kiln_inv);
    DType own = DT_F32;
    RtNode *x = matrix_in(&r, a, true, &own), *factor[2] = {NULL}, *y = NULL;
    if (factors(&r, x, factor)) {
        const Shape type = shape_like(x, 2, rows_of(x), columns_of(x));
        call(&r, LINALG_INV, 0, 2, factor, 1, &type, &y);
    }
    return rec_end(&r, rec_cast(&r, y, own));
}

/* ---- determinants ---- */

static bool determinant(Rec *r, Linalg function, kiln_tensor *a, DType *own, RtNode **out)
{
    RtNode *x = matrix_in(r, a, true, own), *factor[2] = {NULL};
    if (!factors(r, x, factor))
        return false;
    const Shape type[2] = {shape_like(x, 0, 0, 0), shape_like(x, 0, 0, 0)};
    call(r, function, 0, 2, factor, function == LINALG_DET ? 1 : 2, type, out);
    return r->status == ST_OK;
}

API1(kiln_tensor *, kiln_det, kiln_tensor *, a)
{
    Rec r = REC(kiln_det);
    DType own = DT_F32;
    RtNode *y = NULL;
    return rec_end(&r, determinant(&r, LINALG_DET, a, &own, &y) ? rec_cast(&r, y, own) : NULL);
}

/* Hands out several results, of which the user wants those that have a place; all NULL on error. */
static kiln_status hand_out(Rec *r, int n, RtNode *const *from, const DType *dtype, kiln_tensor **const *to)
{
    for (int k = 0; k < n; k++)
        if (to[k])
            *to[k] = r->status == ST_OK ? rec_out(r, rec_cast(r, from[k], *dtype)) : NULL;
    for (int k = 0; k < n; k++)
        if (to[k] && r->status != ST_OK)
            *to[k] = NULL;
    rec_end(r, NULL);
    return (kiln_status)r->status;
}

static bool need(Rec *r, const void *place, const char *name)
{
    if (!place)
        rec_fail(r, ST_INVALID, "%s is NULL", name);
    return place;
}

API3(kiln_status, kiln_slogdet, kiln_tensor *, a, kiln_tensor **, sign, kiln_tensor **, log_abs)
{
    Rec r = REC(kiln_slogdet);
    DType own = DT_F32;
    RtNode *y[2] = {NULL};
    if (need(&r, sign, "sign") && need(&r, log_abs, "log_abs"))
        determinant(&r, LINALG_SLOGDET, a, &own, y);
    return hand_out(&r, 2, y, &own, (kiln_tensor * *const[]){sign, log_abs});
}

/* ---- factors ---- */

API1(kiln_tensor *, kiln_cholesky, kiln_tensor *, a)
{
    Rec r = REC(kiln_cholesky);
    DType own = DT_F32;
    RtNode *x = matrix_in(&r, a, true, &own), *y = NULL;
    if (x) {
        const Shape type = shape_like(x, 2, rows_of(x), columns_of(x));
        call(&r, LINALG_CHOLESKY, 0, 1, &x, 1, &type, &y);
    }
    return rec_end(&r, rec_cast(&r, y, own));
}

/* Q and R of a matrix with at least as many rows as columns. */
static void qr(Rec *r, RtNode *x, RtNode **out)
{
    if (!x)
        return;
    const Shape type[2] = {shape_like(x, 2, rows_of(x), columns_of(x)), shape_like(x, 2, columns_of(x), columns_of(x))};
    call(r, LINALG_QR, 0, 1, &x, 2, type, out);
}

API3(kiln_status, kiln_qr, kiln_tensor *, a, kiln_tensor **, q, kiln_tensor **, upper)
{
    Rec r = REC(kiln_qr);
    DType own = DT_F32;
    RtNode *x = NULL, *y[2] = {NULL};
    if (need(&r, q, "q") && need(&r, upper, "r"))
        x = matrix_in(&r, a, false, &own);
    if (x && rows_of(x) < columns_of(x)) { /* the square block in front, and Q^T times the rest */
        int64_t m = rows_of(x), n = columns_of(x);
        qr(&r, rec_slice(&r, x, x->rank - 1, 0, 1, m), y);
        RtNode *rest = rec_slice(&r, x, x->rank - 1, m, 1, n - m), *product[2] = {turned(&r, y[0]), rest}, *both[2] = {y[1], NULL};
        both[1] = product[0] && rest ? rec_node(&r, OP_MATMUL, DT_COUNT, NULL, 2, product, NULL, 0) : NULL;
        y[1] = both[0] && both[1] ? rec_concat(&r, 2, both, x->rank - 1) : NULL;
    } else
        qr(&r, x, y);
    return hand_out(&r, 2, y, &own, (kiln_tensor * *const[]){q, upper});
}

API3(kiln_status, kiln_eigh, kiln_tensor *, a, kiln_tensor **, values, kiln_tensor **, vectors)
{
    Rec r = REC(kiln_eigh);
    DType own = DT_F32;
    RtNode *x = need(&r, values, "values") ? matrix_in(&r, a, true, &own) : NULL, *y[2] = {NULL};
    if (x) {
        const Shape type[2] = {shape_like(x, 1, rows_of(x), 0), shape_like(x, 2, rows_of(x), rows_of(x))};
        call(&r, vectors ? LINALG_EIGH : LINALG_EIGVALSH, 0, 1, &x, vectors ? 2 : 1, type, y);
        y[1] = vectors ? turned(&r, y[1]) : NULL;
    }
    return hand_out(&r, 2, y, &own, (kiln_tensor * *const[]){values, vectors});
}

API4(kiln_status, kiln_svd, kiln_tensor *, a, kiln_tensor **, u, kiln_tensor **, s, kiln_tensor **, vt)
{
    Rec r = REC(kiln_svd);
    DType own = DT_F32;
    RtNode *x = need(&r, s, "s") ? matrix_in(&r, a, false, &own) : NULL, *y[3] = {NULL};
    if (x) {
        int64_t m = rows_of(x), n = columns_of(x), k = m < n ? m : n;
        const Shape type[3] = {shape_like(x, 2, m, k), shape_like(x, 1, k, 0), shape_like(x, 2, k, n)};
        unsigned flags = m > n ? LINALG_TALL : m < n ? LINALG_WIDE : 0;
        if (u || vt)
            call(&r, LINALG_SVD, flags, 1, &x, 3, type, y);
        else
            call(&r, LINALG_SVDVALS, flags, 1, &x, 1, type + 1, y + 1);
    }
    return hand_out(&r, 3, y, &own, (kiln_tensor * *const[]){u, s, vt});
}
