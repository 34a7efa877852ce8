/*
 * Gradients of linear algebra, in f64: along random directions against differences of the function, forward mode against reverse mode, and
 * the gradient of a gradient against differences of that. Where vectors have any sign, functions that do not depend on it. Loops, branches,
 * kiln_map, functions; what has no derivative.
 */
#include "linalg.h"

#include "tests/support/slice.h"
#include "tests/support/count.h"

/* The function: a sum of what was computed of a and b, with weights. */
typedef kiln_tensor *Loss(kiln_tensor *a, kiln_tensor *b);

/* With weights, so that no symmetry hides anything. */
static kiln_tensor *weighed(kiln_tensor *x, double phase)
{
    kiln_tensor *i = kiln_reshape(kiln_arange(KILN_F64, 0, (double)kiln_numel(x), 1), (kiln_shape){1, {kiln_numel(x)}});
    return kiln_sum(kiln_mul(kiln_reshape(x, (kiln_shape){1, {kiln_numel(x)}}), kiln_sin(kiln_add(kiln_mul(i, 1.7), phase))));
}

static kiln_tensor *symmetric(kiln_tensor *a) { return kiln_mul(kiln_add(a, kiln_swap_axes(a, -1, -2)), 0.5); }

static kiln_tensor *of_solve(kiln_tensor *a, kiln_tensor *b) { return weighed(kiln_solve(a, b), 0.3); }
static kiln_tensor *of_vector(kiln_tensor *a, kiln_tensor *b) { return weighed(kiln_solve(a, kiln_reshape(b, KILN_SHAPE(-1))), 0.3); }
static kiln_tensor *of_inv(kiln_tensor *a, kiln_tensor *b) { return weighed(kiln_matmul(kiln_inv(a), b), 0.2); }
static kiln_tensor *of_det(kiln_tensor *a, kiln_tensor *b) { return kiln_add(kiln_sum(kiln_det(a)), kiln_sum(b)); }
static kiln_tensor *of_slogdet(kiln_tensor *a, kiln_tensor *b)
{
    kiln_tensor *sign, *log_abs;
    return kiln_slogdet(a, &sign, &log_abs) == KILN_OK ? kiln_add(weighed(kiln_mul(sign, log_abs), 0.1), kiln_sum(b)) : NULL;
}
static kiln_tensor *of_shared(kiln_tensor *a, kiln_tensor *b) /* factors are shared by all of them */
{
    return kiln_mul(kiln_add(of_solve(a, b), of_det(a, b)), of_inv(a, b));
}
static kiln_tensor *of_cholesky(kiln_tensor *a, kiln_tensor *b)
{
    kiln_tensor *l = kiln_cholesky(positive(a));
    return kiln_add(weighed(l, 0.4), weighed(kiln_solve_triangular(l, b, 0), 0.1));
}
static kiln_tensor *of_lower(kiln_tensor *a, kiln_tensor *b) { return weighed(kiln_solve_triangular(a, b, 0), 0.6); }
static kiln_tensor *of_upper(kiln_tensor *a, kiln_tensor *b)
{
    return weighed(kiln_solve_triangular(a, b, KILN_UPPER | KILN_TRANSPOSED), 0.6);
}
static kiln_tensor *of_unit(kiln_tensor *a, kiln_tensor *b)
{
    return weighed(kiln_solve_triangular(a, b, KILN_UPPER | KILN_UNIT_DIAGONAL), 0.6);
}
static kiln_tensor *of_transposed(kiln_tensor *a, kiln_tensor *b) { return weighed(kiln_solve_triangular(a, b, KILN_TRANSPOSED), 0.6); }
static kiln_tensor *of_qr(kiln_tensor *a, kiln_tensor *b)
{
    kiln_tensor *q, *r, *both = kiln_concat((kiln_tensor *[]){a, b}, 2, -1);
    return kiln_qr(both, &q, &r) == KILN_OK ? kiln_add(weighed(q, 0.4), weighed(r, 0.9)) : NULL;
}
static kiln_tensor *of_tall_qr(kiln_tensor *a, kiln_tensor *b)
{
    kiln_tensor *q, *r, *tall = kiln_concat((kiln_tensor *[]){a, kiln_matmul(kiln_swap_axes(b, -1, -2), a)}, 2, -2);
    return kiln_qr(tall, &q, &r) == KILN_OK ? kiln_add(weighed(q, 0.4), weighed(r, 0.9)) : NULL;
}
static kiln_tensor *of_only_r(kiln_tensor *a, kiln_tensor *b)
{
    kiln_tensor *q, *r;
    return kiln_qr(a, &q, &r) == KILN_OK ? kiln_add(weighed(r, 0.9), kiln_sum(b)) : NULL;
}
static kiln_tensor *of_only_q(kiln_tensor *a, kiln_tensor *b)
{
    kiln_tensor *q, *r;
    return kiln_qr(a, &q, &r) == KILN_OK ? kiln_add(weighed(q, 0.9), kiln_sum(b)) : NULL;
}
/* exp of a symmetric matrix, and its eigenvalues */
static kiln_tensor *of_eigh(kiln_tensor *a, kiln_tensor *b)
{
    kiln_tensor *w, *v;
    if (kiln_eigh(symmetric(a), &w, &v) != KILN_OK)
        return NULL;
    kiln_tensor *exp = kiln_matmul(kiln_mul(v, kiln_unsqueeze(kiln_exp(w), -2)), kiln_swap_axes(v, -1, -2));
    return kiln_add(kiln_add(weighed(exp, 0.1), weighed(kiln_mul(w, w), 0.5)), kiln_sum(b));
}
static kiln_tensor *of_eigvalsh(kiln_tensor *a, kiln_tensor *b)
{
    kiln_tensor *w;
    return kiln_eigh(symmetric(a), &w, NULL) == KILN_OK ? kiln_add(weighed(kiln_mul(w, w), 0.5), kiln_sum(b)) : NULL;
}
/* The polar factor, and the singular values. */
static kiln_tensor *by_svd(kiln_tensor *a, kiln_tensor *b)
{
    kiln_tensor *u, *s, *vt;
    if (kiln_svd(a, &u, &s, &vt) != KILN_OK)
        return NULL;
    kiln_tensor *polar = kiln_matmul(kiln_mul(u, kiln_unsqueeze(kiln_tanh(s), -2)), vt);
    return kiln_add(kiln_add(weighed(polar, 0.1), weighed(kiln_mul(s, s), 0.5)), kiln_sum(b));
}
static kiln_tensor *of_svd(kiln_tensor *a, kiln_tensor *b) { return by_svd(a, b); }
static kiln_tensor *of_wide_svd(kiln_tensor *a, kiln_tensor *b) { return by_svd(kiln_concat((kiln_tensor *[]){a, b}, 2, -1), b); }
static kiln_tensor *of_tall_svd(kiln_tensor *a, kiln_tensor *b)
{
    return by_svd(kiln_concat((kiln_tensor *[]){a, kiln_swap_axes(b, -1, -2)}, 2, -2), b);
}
static kiln_tensor *of_svdvals(kiln_tensor *a, kiln_tensor *b)
{
    kiln_tensor *s;
    return kiln_svd(kiln_concat((kiln_tensor *[]){a, b}, 2, -1), NULL, &s, NULL) == KILN_OK ? weighed(kiln_mul(s, s), 0.5) : NULL;
}

static double number(int line, kiln_tensor *x)
{
    double value = 0;
    cr_assert(x && kiln_read(x, KILN_F64, &value, sizeof value) == KILN_OK, "line %d: %s", line, kiln_error_message());
    return value;
}
#define NUMBER(x) number(__LINE__, (x))

/* sum of x o along */
static kiln_tensor *inner(kiln_tensor *x, kiln_tensor *along) { return kiln_sum(kiln_mul(x, along)); }

/* The gradient of f at (a, b), along (da, db). */
static kiln_tensor *slope(Loss *f, kiln_tensor **at, kiln_tensor **along)
{
    kiln_tensor *grad[2];
    OK(kiln_grad(f(at[0], at[1]), at, 2, grad));
    return kiln_add(inner(grad[0], along[0]), inner(grad[1], along[1]));
}

static void check(const char *name, Loss *f, kiln_tensor *a, kiln_tensor *b)
{
    const double h = 0x1p-17;
    kiln_shape sa = {kiln_rank(a), {0}}, sb = {kiln_rank(b), {0}};
    for (int d = 0; d < sa.rank; d++)
        sa.dim[d] = kiln_dim(a, d);
    for (int d = 0; d < sb.rank; d++)
        sb.dim[d] = kiln_dim(b, d);
    kiln_tensor *at[2] = {kiln_param(a), kiln_param(b)}, *along[2] = {random_tensor(KILN_F64, sa, 71), random_tensor(KILN_F64, sb, 72)},
                *other[2] = {random_tensor(KILN_F64, sa, 73), random_tensor(KILN_F64, sb, 74)}, *second[2], *tangent;
    kiln_tensor *first = slope(f, at, along), *loss = f(at[0], at[1]);
    OK(kiln_jvp(2, at, along, 1, &loss, 0, &tangent));
    OK(kiln_grad(first, at, 2, second));
    kiln_tensor *of_first = kiln_add(inner(second[0], other[0]), inner(second[1], other[1]));
    double value[2], slopes[2];
    for (int side = 0; side < 2; side++) {
        double step = side ? h : -h;
        kiln_tensor *beside[2];
        value[side] = NUMBER(f(kiln_add(a, kiln_mul(along[0], step)), kiln_add(b, kiln_mul(along[1], step))));
        beside[0] = kiln_param(kiln_add(a, kiln_mul(other[0], step)));
        beside[1] = kiln_param(kiln_add(b, kiln_mul(other[1], step)));
        slopes[side] = NUMBER(slope(f, beside, along));
    }
    double got = NUMBER(first), want = (value[1] - value[0]) / (2 * h), forward = NUMBER(tangent), scale = 1 + fabs(want);
    cr_assert(fabs(got - want) <= 1e-6 * scale, "%s: the gradient is %.12g, differences give %.12g", name, got, want);
    cr_assert(fabs(forward - got) <= 1e-9 * scale, "%s: forward mode gives %.12g, reverse mode %.12g", name, forward, got);
    got = NUMBER(of_first);
    want = (slopes[1] - slopes[0]) / (2 * h);
    cr_assert(fabs(got - want) <= 1e-5 * (1 + fabs(want)), "%s: the second gradient is %.12g, differences give %.12g", name, got, want);
}

static const struct {
    const char *name;
    Loss *f;
    int columns; /* of b */
} losses[] = {{"solve", of_solve, 2},
              {"a vector", of_vector, 1},
              {"inv", of_inv, 2},
              {"det", of_det, 2},
              {"slogdet", of_slogdet, 2},
              {"shared factors", of_shared, 2},
              {"cholesky", of_cholesky, 2},
              {"lower", of_lower, 3},
              {"upper, transposed", of_upper, 3},
              {"upper, ones", of_unit, 1},
              {"lower, transposed", of_transposed, 2},
              {"qr", of_qr, 2},
              {"tall qr", of_tall_qr, 2},
              {"r alone", of_only_r, 2},
              {"q alone", of_only_q, 2},
              {"eigh", of_eigh, 2},
              {"eigenvalues", of_eigvalsh, 2},
              {"svd", of_svd, 2},
              {"wide svd", of_wide_svd, 2},
              {"tall svd", of_tall_svd, 2},
              {"singular values", of_svdvals, 2}};
enum { LOSSES = sizeof losses / sizeof *losses };

/* A run takes some of them; which moves on by rounds too, as those who take some of the tests go by the rest of the seed. */
static bool taken(int loss) { return slice_takes((uint64_t)loss + slice_round()); }

/* Of matrices with distinct values and pivots far from 0. */
static kiln_tensor *good(kiln_shape shape, uint64_t seed)
{
    int64_t n = shape.dim[shape.rank - 1];
    kiln_tensor *steps = kiln_add(kiln_mul(kiln_arange(KILN_F64, 0, (double)n, 1), 1.3), 2);
    return kiln_add(random_tensor(KILN_F64, shape, seed), kiln_mul(kiln_eye(KILN_F64, n, n, 0), steps));
}

LINALG_TEST(linalg_gradient, as_differences)
{
    for (int l = 0; l < LOSSES; l++)
        if (taken(l))
            check(losses[l].name, losses[l].f, good(KILN_SHAPE(4, 4), (uint64_t)(3 + l)),
                  random_tensor(KILN_F64, KILN_SHAPE(4, losses[l].columns), (uint64_t)(60 + l)));
}

LINALG_TEST(linalg_gradient, of_batches)
{
    for (int l = 0; l < LOSSES; l++)
        if (losses[l].f != of_vector && taken(l + 1))
            check(losses[l].name, losses[l].f, good(KILN_SHAPE(2, 3, 3), (uint64_t)(5 + l)),
                  random_tensor(KILN_F64, KILN_SHAPE(2, 3, losses[l].columns), (uint64_t)(80 + l)));
    check("one matrix for many", of_solve, good(KILN_SHAPE(3, 3), 1), random_tensor(KILN_F64, KILN_SHAPE(2, 3, 2), 2));
    check("one side for many", of_solve, good(KILN_SHAPE(2, 3, 3), 1), random_tensor(KILN_F64, KILN_SHAPE(3, 2), 2));
}

/* One step of a filter: x <- A^-1 (x + b), in a loop. */
static void step(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)x, (void)y;
    kiln_tensor **with = user;
    carry_out[0] = kiln_solve(with[0], kiln_add(carry[0], with[1]));
}
static kiln_tensor *of_scan(kiln_tensor *a, kiln_tensor *b)
{
    kiln_tensor *with[2] = {a, b}, *last;
    return kiln_scan(step, 3, 0, 1, &b, &last, 0, NULL, 0, NULL, with) == KILN_OK ? weighed(last, 0.2) : NULL;
}

static void one_row(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    kiln_tensor *x = kiln_solve(in[0], in[1]);
    out[0] = kiln_add(kiln_sum(kiln_mul(x, x)), kiln_det(in[0]));
}
static kiln_tensor *of_map(kiln_tensor *a, kiln_tensor *b)
{
    kiln_tensor *y;
    return kiln_map(one_row, 2, (kiln_tensor *[]){a, b}, NULL, 0, 1, &y, NULL) == KILN_OK ? weighed(y, 0.7) : NULL;
}
/* the same matrix for all columns of b */
static kiln_tensor *of_map_whole(kiln_tensor *a, kiln_tensor *b)
{
    static const int axes[] = {KILN_WHOLE, 1};
    kiln_tensor *y;
    return kiln_map(one_row, 2, (kiln_tensor *[]){a, b}, axes, 0, 1, &y, NULL) == KILN_OK ? weighed(y, 0.7) : NULL;
}

static void solves(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = of_cholesky(in[0], in[1]);
}
static void multiplies(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = weighed(kiln_matmul(in[0], in[1]), 0.1);
}
static kiln_tensor *of_cond(kiln_tensor *a, kiln_tensor *b)
{
    kiln_tensor *y, *first = kiln_gt(kiln_sum(kiln_stop_gradient(b)), -1000);
    return kiln_cond(first, solves, multiplies, 2, (kiln_tensor *[]){a, b}, 1, &y, NULL) == KILN_OK ? y : NULL;
}

/* Gradients through loops and branches: the first, which is all that these have. */
static void check_first(const char *name, Loss *f, kiln_tensor *a, kiln_tensor *b, kiln_shape sa, kiln_shape sb)
{
    const double h = 0x1p-17;
    kiln_tensor *at[2] = {kiln_param(a), kiln_param(b)}, *along[2] = {random_tensor(KILN_F64, sa, 1), random_tensor(KILN_F64, sb, 2)};
    double got = NUMBER(slope(f, at, along)), value[2];
    for (int side = 0; side < 2; side++)
        value[side] = NUMBER(f(kiln_add(a, kiln_mul(along[0], side ? h : -h)), kiln_add(b, kiln_mul(along[1], side ? h : -h))));
    double want = (value[1] - value[0]) / (2 * h);
    cr_assert(fabs(got - want) <= 1e-6 * (1 + fabs(want)), "%s: the gradient is %.12g, differences give %.12g", name, got, want);
}

LINALG_TEST(linalg_gradient, through_loops_and_branches)
{
    kiln_shape square = KILN_SHAPE(3, 3), b = KILN_SHAPE(3, 2), many = KILN_SHAPE(4, 3, 3), rows = KILN_SHAPE(4, 3);
    check_first("scan", of_scan, good(square, 1), random_tensor(KILN_F64, b, 2), square, b);
    check_first("cond", of_cond, good(square, 3), random_tensor(KILN_F64, b, 4), square, b);
    check("map", of_map, good(many, 5), random_tensor(KILN_F64, rows, 6));
    check("map of one matrix", of_map_whole, good(square, 7), random_tensor(KILN_F64, b, 8));
}

/* How many steps of the program of x have this text. */
static int steps(kiln_tensor *x, const char *text)
{
    static char plan[1 << 16];
    OK(kiln_explain(x, plan, sizeof plan, NULL));
    return occurrences(text, plan);
}

/* kiln_map calls LAPACK once for all rows. */
Test(linalg_gradient_program, map_is_one_call)
{
    if (!have_lapack())
        return;
    kiln_tensor *in[2] = {good(KILN_SHAPE(4, 3, 3), 5), random_tensor(KILN_F64, KILN_SHAPE(4, 3), 6)}, *y, *x;
    OK(kiln_map(one_row, 2, in, NULL, 0, 1, &y, NULL));
    cr_assert_eq(steps(y, "call kiln.solve 1"), 1);
    cr_assert_eq(steps(y, "loop"), 0);
    x = kiln_solve(in[0], kiln_unsqueeze(in[1], -1));
    kiln_tensor *want = kiln_add(kiln_sum_axes(kiln_mul(x, x), KILN_AXES(1, 2), false), kiln_det(in[0]));
    EXPECT(kiln_max(kiln_abs(kiln_sub(y, want))), KILN_F64, KILN_SHAPE(), 1e-12, 0);
}

/* What was computed in a recording kept the factors for a gradient that comes later. */
Test(linalg_gradient_program, recordings_keep_factors)
{
    if (!have_lapack())
        return;
    kiln_recording *recording = kiln_recording_begin();
    kiln_tensor *at[2] = {kiln_param(good(KILN_SHAPE(4, 4), 1)), kiln_param(random_tensor(KILN_F64, KILN_SHAPE(4, 2), 2))}, *grad[2];
    kiln_tensor *loss = of_shared(at[0], at[1]);
    OK(kiln_eval(loss));
    OK(kiln_grad(loss, at, 2, grad));
    kiln_tensor *all = kiln_add(kiln_sum(grad[0]), kiln_sum(grad[1]));
    cr_assert_eq(steps(all, "call kiln.lu 1"), 0);
    cr_assert_eq(steps(all, "call kiln.solve 1"), 1);
    OK(kiln_eval(all));
    kiln_recording_end(recording);
}

/* The second size makes the program of all. */
Test(linalg_gradient_program, sizes_share_programs)
{
    if (!have_lapack())
        return;
    kiln_stats before;
    for (int n = 3; n < 9; n++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *at[2] = {good(KILN_SHAPE(2, n, n), 1), random_tensor(KILN_F64, KILN_SHAPE(2, n, 3), 2)}, *grad[2];
        OK(kiln_eval_many(at, 2));
        at[0] = kiln_param(at[0]);
        at[1] = kiln_param(at[1]);
        if (n == 5)
            kiln_get_stats(&before);
        OK(kiln_grad(kiln_add(kiln_add(of_shared(at[0], at[1]), of_eigh(at[0], at[1])), of_only_r(at[0], at[1])), at, 2, grad));
        OK(kiln_eval_many(grad, 2));
        kiln_scope_end(scope);
    }
    no_compile_since(&before);
}

/* ... and where they share the matrix, on its one copy. */
Test(linalg_gradient_program, map_of_one_matrix)
{
    static const int axes[] = {KILN_WHOLE, 1};
    static char text[1 << 16];
    if (!have_lapack())
        return;
    kiln_tensor *in[2] = {good(KILN_SHAPE(3, 3), 5), random_tensor(KILN_F64, KILN_SHAPE(3, 7), 6)}, *y;
    OK(kiln_map(one_row, 2, in, axes, 0, 1, &y, NULL));
    OK(kiln_graph_text(y, text, sizeof text, NULL));
    cr_assert(strstr(text, "f64[3,7]") && !strstr(text, "f64[7,3,3]"), "%s", text);
}

/* Factors, and the inverse in a determinant's gradient, are computed once for all that asks for them. */
Test(linalg_gradient_program, shares_factors)
{
    if (!have_lapack())
        return;
    kiln_tensor *at[2] = {kiln_param(good(KILN_SHAPE(4, 4), 1)), kiln_param(random_tensor(KILN_F64, KILN_SHAPE(4, 2), 2))}, *grad[2];
    OK(kiln_grad(of_shared(at[0], at[1]), at, 2, grad));
    kiln_tensor *all = kiln_add(kiln_sum(grad[0]), kiln_sum(grad[1]));
    cr_assert_eq(steps(all, "call kiln.lu 1"), 1);
    cr_assert_eq(steps(all, "call kiln.inv 1"), 1);
    cr_assert_eq(steps(all, "call kiln.solve 1"), 2); /* there and back */
}

/* A function that is replayed, with other sizes too. */
static void trains(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = of_solve(in[0], in[1]);
    (void)kiln_grad(out[0], in, 1, out + 1);
}

LINALG_TEST(linalg_gradient, in_functions)
{
    kiln_function *f = kiln_function_new(trains, 2, 2, NULL);
    for (int call = 0; call < 12; call++) {
        int n = call < 6 ? 3 : 2 + call % 4;
        kiln_tensor *a = good(KILN_SHAPE(n, n), (uint64_t)call), *b = random_tensor(KILN_F64, KILN_SHAPE(n, 2), 9), *out[2],
                    *p = kiln_param(a), *grad;
        OK(kiln_function_call(f, (kiln_tensor *[]){a, b}, out));
        OK(kiln_grad(of_solve(p, b), &p, 1, &grad));
        EXPECT(kiln_max(kiln_abs(kiln_sub(grad, out[1]))), KILN_F64, KILN_SHAPE(), 1e-12, 0);
    }
    kiln_function_free(f);
}

/* Values that were computed in a recording keep how they were made. */
LINALG_TEST(linalg_gradient, of_what_was_computed)
{
    kiln_tensor *p = kiln_param(good(KILN_SHAPE(3, 3), 1)), *b = random_tensor(KILN_F64, KILN_SHAPE(3, 2), 2), *early, *late;
    kiln_tensor *loss = of_shared(p, b);
    OK(kiln_grad(loss, &p, 1, &early));
    kiln_recording *recording = kiln_recording_begin();
    kiln_tensor *kept = of_shared(p, b);
    OK(kiln_eval(kept));
    OK(kiln_grad(kept, &p, 1, &late));
    kiln_recording_end(recording);
    EXPECT(kiln_max(kiln_abs(kiln_sub(early, late))), KILN_F64, KILN_SHAPE(), 1e-9, 0);
}

/* Functions that read one triangle take their argument for symmetric: the gradient is, and of a tangent the symmetric part counts. */
static kiln_tensor *of_one_triangle(kiln_tensor *a, kiln_tensor *b)
{
    kiln_tensor *w, *v;
    if (kiln_eigh(a, &w, &v) != KILN_OK)
        return NULL;
    kiln_tensor *root = kiln_matmul(kiln_mul(v, kiln_unsqueeze(kiln_sqrt(w), -2)), kiln_swap_axes(v, -1, -2));
    return kiln_add(kiln_add(weighed(kiln_cholesky(a), 0.3), weighed(root, 0.8)), weighed(b, 0.1));
}

LINALG_TEST(linalg_gradient, of_one_triangle_is_symmetric)
{
    kiln_shape shape = KILN_SHAPE(3, 3);
    kiln_tensor *a = positive(random_tensor(KILN_F64, shape, 4)), *b = random_tensor(KILN_F64, shape, 5), *grad[2], *tangent[2], *loss;
    kiln_tensor *at[2] = {kiln_param(a), kiln_param(b)}, *along[2] = {random_tensor(KILN_F64, shape, 6), random_tensor(KILN_F64, shape, 7)};
    kiln_tensor *even[2] = {symmetric(along[0]), along[1]};
    loss = of_one_triangle(at[0], at[1]);
    OK(kiln_jvp(2, at, along, 1, &loss, 0, &tangent[0]));
    OK(kiln_jvp(2, at, even, 1, &loss, 0, &tangent[1]));
    OK(kiln_grad(loss, at, 2, grad));
    kiln_tensor *back = kiln_add(inner(grad[0], along[0]), inner(grad[1], along[1]));
    double got = NUMBER(back), first = NUMBER(tangent[0]), second = NUMBER(tangent[1]);
    cr_assert(fabs(first - got) <= 1e-9 && fabs(second - got) <= 1e-9, "%.12g, %.12g, %.12g", got, first, second);
    EXPECT(kiln_max(kiln_abs(kiln_sub(grad[0], kiln_swap_axes(grad[0], -1, -2)))), KILN_F64, KILN_SHAPE(), 1e-12, 0);
}

/* Equal eigenvalues: those alone have a gradient, their vectors have none, and say so by what is not finite. */
LINALG_TEST(linalg_gradient, of_equal_values)
{
    kiln_tensor *p = kiln_param(kiln_eye(KILN_F64, 2, 2, 0)), *w, *v, *of_values, *of_vectors;
    OK(kiln_eigh(p, &w, &v));
    OK(kiln_grad(kiln_sum(w), &p, 1, &of_values));
    OK(kiln_grad(weighed(v, 0.3), &p, 1, &of_vectors));
    EXPECT(of_values, KILN_F64, KILN_SHAPE(2, 2), 1e-12, 1, 0, 0, 1);
    double *bad = VALUES(of_vectors);
    cr_assert(!isfinite(bad[0]) || !isfinite(bad[1]), "%g %g", bad[0], bad[1]);
    free(bad);
}

LINALG_TEST(linalg_gradient, of_a_singular_determinant)
{
    kiln_tensor *p = kiln_param(F64(KILN_SHAPE(2, 2), 1, 2, 2, 4)), *grad;
    kiln_status status = kiln_grad(kiln_det(p), &p, 1, &grad);
    if (status == KILN_OK)
        status = kiln_eval(grad);
    fails_with(status, KILN_INVALID, "the matrix is singular: pivot 2 of 2 is 0");
}
