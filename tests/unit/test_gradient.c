/*
 * Derivatives of graphs (ir/gradient.h), run by the reference interpreter: against central differences in f64, each mode against the
 * other, second derivatives against differences of the first, f32, f16 and bf16 against f64.
 *
 * A case is a graph whose dtype is written T. All its inputs of dtype T are differentiated, in a random direction, for a random
 * cotangent of its outputs: a wrong entry anywhere in a Jacobian shows in both products with it.
 */
#include "ir/base/os.h"
#include "ir/gradient.h"
#include "ir/interp.h"
#include "ir/rules.h"
#include "tests/unit/graphs.h"
#include "tests/unit/golden.h"

#include <math.h>
#include <stdio.h>

TestSuite(gradient, .init = open_arena, .fini = close_arena);

enum { MAX_IN = 4, MAX_OUT = 3, ROOM = 512 };

typedef struct Case {
    const char *text;
    double low, high; /* of all inputs of dtype T; both 0: -2 to 2 */
    bool no_second;   /* its second derivative is not what differences of the first show (kinks) */
} Case;

static const char *typed(const char *text, DType t)
{
    Str out;
    str_init(&out, &arena);
    for (; *text; text++) {
        if (*text == 'T')
            str_printf(&out, "%s", dtype_name(t));
        else
            str_add(&out, text, 1);
    }
    return out.text;
}

/* --- a graph and numbers ------------------------------------------------------------------------------ */

typedef struct Numbers {
    double of[ROOM];
} Numbers;

typedef struct Problem {
    Graph *g;
    DType t;
    uint32_t n_in, n_out; /* of the case itself */
    Ref in[MAX_IN], out[MAX_OUT];
    Numbers x[MAX_IN];
    uint32_t wrt[MAX_IN], n_wrt; /* which inputs are differentiated */
} Problem;

static size_t count_of(const Graph *g, Ref r) { return (size_t)node_hint_numel(g, r); }

/* The elements that an input's storage has, strides included. */
static size_t stored(const Graph *g, Ref r)
{
    const Node *n = graph_node(g, r);
    size_t last = 0;
    if (!n->attr.flag)
        return count_of(g, r);
    for (int d = 0; d < n->rank; d++)
        last +=
            (size_t)(llabs((long long)dim_hint(g, n->fact[n->rank + d])) * (dim_hint(g, n->dim[d]) > 0 ? dim_hint(g, n->dim[d]) - 1 : 0));
    return last + 1;
}

static double uniform(uint64_t *state, double low, double high)
{
    return low + (high - low) * ((double)(next_random(state) >> 11) * 0x1p-53);
}

static Problem make(const Case *c, DType t, uint64_t seed)
{
    Problem p = {.g = parse(typed(c->text, t)), .t = t};
    double low = c->low, high = c->high;
    if (low == 0 && high == 0)
        low = -2, high = 2;
    p.n_in = p.g->inputs.n;
    p.n_out = p.g->outputs.n;
    cr_assert(p.n_in <= MAX_IN && p.n_out <= MAX_OUT);
    for (uint32_t k = 0; k < p.n_in; k++) {
        Ref r = p.in[k] = p.g->inputs.at[k];
        const Node *n = graph_node(p.g, r);
        cr_assert(stored(p.g, r) <= ROOM);
        for (size_t i = 0; i < stored(p.g, r); i++) {
            double v = uniform(&seed, low, high);
            if (fabs(v) < 0.05) /* away from kinks at 0 */
                v = v < 0 ? v - 0.05 : v + 0.05;
            p.x[k].of[i] = (DType)n->dtype == DT_BOOL        ? (double)(next_random(&seed) & 1)
                           : dtype_is_float((DType)n->dtype) ? scalar_to_double(t, scalar_from_double(t, v))
                                                             : (double)(next_random(&seed) % 3); /* an index */
        }
        if ((DType)n->dtype == t)
            p.wrt[p.n_wrt++] = k;
    }
    for (uint32_t k = 0; k < p.n_out; k++)
        p.out[k] = p.g->outputs.at[k];
    return p;
}

/* Computes the nodes `want`, given the numbers of all inputs of the graph. */
static void compute(const Graph *from, uint32_t n, const Ref *want, const Numbers *x, Numbers *out)
{
    Graph g = *from;
    void *in[16], *results[16];
    g.outputs.n = 0;
    memset(&g.outputs, 0, sizeof g.outputs);
    for (uint32_t k = 0; k < n; k++) {
        VEC_PUSH(&arena, g.outputs, want[k]);
        cr_assert(count_of(&g, want[k]) <= ROOM);
        results[k] = arena_alloc(&arena, 8 * ROOM);
    }
    cr_assert(g.inputs.n <= 16 && n <= 16);
    for (uint32_t k = 0; k < g.inputs.n; k++) {
        DType t = (DType)graph_node(&g, g.inputs.at[k])->dtype;
        char *data = in[k] = arena_alloc(&arena, 8 * ROOM);
        for (size_t i = 0; i < ROOM; i++)
            scalar_store(t, scalar_from_double(t, x[k].of[i]), data + i * dtype_bytes(t));
    }
    const Node *bad;
    Status status = interp_run(&g, INTERP_NATIVE, MATH_STRICT, ORDER_HOST, (const void *const *)in, results, &bad);
    cr_assert_eq(status, ST_OK, "%s in %s", fail_message(), print(&g));
    for (uint32_t k = 0; k < n; k++) {
        DType t = (DType)graph_node(&g, want[k])->dtype;
        for (size_t i = 0; i < count_of(&g, want[k]); i++)
            out[k].of[i] = scalar_to_double(t, scalar_load(t, (char *)results[k] + i * dtype_bytes(t)));
    }
}

static Ref input_like(Graph *g, Ref r)
{
    Shape s = shape_of(g, r);
    return graph_add_input(g, (DType)s.dtype, s.rank, s.dim, NULL, (Loc){0});
}

static double dot(const Graph *g, uint32_t n, const Ref *like, const Numbers *a, const Numbers *b)
{
    double sum = 0;
    for (uint32_t k = 0; k < n; k++)
        for (size_t i = 0; i < count_of(g, like[k]); i++)
            sum += a[k].of[i] * b[k].of[i];
    return sum;
}

static void randomize(Numbers *x, uint64_t *seed)
{
    for (size_t i = 0; i < ROOM; i++)
        x->of[i] = uniform(seed, -1, 1);
}

/* The storage position of the i-th element of an input. */
static size_t position(const Graph *g, Ref r, size_t i)
{
    const Node *n = graph_node(g, r);
    if (!n->attr.flag)
        return i;
    size_t at = 0;
    for (int d = n->rank; d-- > 0;) {
        size_t size = (size_t)dim_hint(g, n->dim[d]);
        at += i % size * (size_t)dim_hint(g, n->fact[n->rank + d]);
        i /= size;
    }
    return at;
}

/* (f(x + h u) - f(x - h u)) / 2h of the nodes `want`; u: directions of the inputs `wrt`. */
static void differences(const Problem *p, uint32_t n, const Ref *want, const Numbers *x, const Numbers *u, Numbers *out)
{
    enum { ALL_IN = 16 };
    double h = cbrt(0x1p-52);
    Numbers *moved = ARENA_ARRAY(&arena, Numbers, ALL_IN), *up = ARENA_ARRAY(&arena, Numbers, n), *down = ARENA_ARRAY(&arena, Numbers, n);
    for (int side = 0; side < 2; side++) {
        memcpy(moved, x, sizeof *x * p->g->inputs.n);
        for (uint32_t w = 0; w < p->n_wrt; w++)
            for (size_t i = 0; i < count_of(p->g, p->in[p->wrt[w]]); i++)
                moved[p->wrt[w]].of[position(p->g, p->in[p->wrt[w]], i)] += (side ? -h : h) * u[w].of[i];
        compute(p->g, n, want, moved, side ? down : up);
    }
    for (uint32_t k = 0; k < n; k++)
        for (size_t i = 0; i < count_of(p->g, want[k]); i++)
            out[k].of[i] = (up[k].of[i] - down[k].of[i]) / (2 * h);
}

static void expect_near(const Graph *g, uint32_t n, const Ref *like, const Numbers *got, const Numbers *want, double tolerance,
                        const char *what, const char *text)
{
    for (uint32_t k = 0; k < n; k++)
        for (size_t i = 0; i < count_of(g, like[k]); i++) {
            double a = got[k].of[i], b = want[k].of[i], limit = tolerance * fmax(1, fabs(b));
            cr_assert(fabs(a - b) <= limit || (isnan(a) && isnan(b)), "%s %u[%zu] is %.17g, not %.17g in\n%s", what, k, i, a, b, text);
        }
}

/* Zeros where nothing is connected. */
static Ref or_zero(Graph *g, Ref r, Ref like)
{
    if (r != REF_NONE)
        return r;
    const Node n = *graph_node(g, like);
    Rewriter w = {.g = g};
    return rewrite_const(&w, (DType)n.dtype, 0, n.rank, n.dim, (Loc){0});
}

static void verify(const Graph *g, uint32_t n, const Ref *got, const Ref *like)
{
    cr_assert_eq(graph_verify(g), ST_OK, "%s in %s", fail_message(), print(g));
    for (uint32_t k = 0; k < n; k++) {
        Shape a = shape_of(g, got[k]), b = shape_of(g, like[k]);
        cr_assert(a.dtype == b.dtype && a.rank == b.rank && !memcmp(a.dim, b.dim, sizeof *a.dim * a.rank), "%u in %s", k, print(g));
    }
}

/* All that holds of the derivatives of a case, in f64. */
static void check_f64(const Case *c, uint64_t seed)
{
    Problem p = make(c, DT_F64, seed);
    Graph *g = p.g;
    Ref wrt[MAX_IN], u[MAX_IN], v[MAX_OUT], grad[MAX_IN], tangent[MAX_OUT], refused;
    Numbers *x = ARENA_ARRAY(&arena, Numbers, 16), got[MAX_IN + MAX_OUT], want[MAX_IN + MAX_OUT];
    for (uint32_t w = 0; w < p.n_wrt; w++)
        wrt[w] = p.in[p.wrt[w]];
    for (uint32_t w = 0; w < p.n_wrt; w++)
        u[w] = input_like(g, wrt[w]);
    for (uint32_t k = 0; k < p.n_out; k++)
        v[k] = input_like(g, p.out[k]);
    memcpy(x, p.x, sizeof *x * p.n_in);
    for (uint32_t k = p.n_in; k < g->inputs.n; k++)
        randomize(&x[k], &seed);
    const Numbers *nu = x + p.n_in, *nv = nu + p.n_wrt;

    cr_assert_eq(gradient_jvp(g, NULL, p.n_wrt, wrt, u, p.n_out, p.out, tangent, &refused), ST_OK, "%s", fail_message());
    for (uint32_t k = 0; k < p.n_out; k++)
        tangent[k] = or_zero(g, tangent[k], p.out[k]);
    verify(g, p.n_out, tangent, p.out);
    compute(g, p.n_out, tangent, x, got);
    differences(&p, p.n_out, p.out, x, nu, want);
    expect_near(g, p.n_out, p.out, got, want, 1e-6, "tangent", print(g));
    double forward = dot(g, p.n_out, p.out, nv, got);

    cr_assert_eq(gradient_vjp(g, NULL, p.n_out, p.out, v, p.n_wrt, wrt, grad, &refused), ST_OK, "%s", fail_message());
    for (uint32_t w = 0; w < p.n_wrt; w++)
        grad[w] = or_zero(g, grad[w], wrt[w]);
    verify(g, p.n_wrt, grad, wrt);
    compute(g, p.n_wrt, grad, x, got);
    double reverse = dot(g, p.n_wrt, wrt, nu, got);
    cr_assert(fabs(forward - reverse) <= 1e-11 * fmax(1, fabs(forward)), "<v, J u> is %.17g, <J^T v, u> is %.17g in\n%s", forward, reverse,
              print(g));
    if (c->no_second)
        return;

    /* H u, and as H is symmetric, u H */
    differences(&p, p.n_wrt, grad, x, nu, want);
    for (int back = 0; back < 2; back++) {
        Ref second[MAX_IN];
        cr_assert_eq(back ? gradient_vjp(g, NULL, p.n_wrt, grad, u, p.n_wrt, wrt, second, &refused)
                          : gradient_jvp(g, NULL, p.n_wrt, wrt, u, p.n_wrt, grad, second, &refused),
                     ST_OK, "%s", fail_message());
        for (uint32_t w = 0; w < p.n_wrt; w++)
            second[w] = or_zero(g, second[w], wrt[w]);
        verify(g, p.n_wrt, second, wrt);
        compute(g, p.n_wrt, second, x, got);
        expect_near(g, p.n_wrt, wrt, got, want, 1e-5, back ? "second derivative, reverse" : "second derivative", print(g));
    }
}

/* The gradient in a smaller dtype against that in f64 at the same numbers, relative to the greatest. */
static void check_small(const Case *c, DType t, double tolerance, uint64_t seed)
{
    Numbers got[2][MAX_IN];
    Problem p = make(c, t, seed), wide = make(c, DT_F64, seed);
    memcpy(wide.x, p.x, sizeof p.x);
    uint64_t state = seed + 1;
    Numbers v[MAX_OUT];
    for (uint32_t k = 0; k < p.n_out; k++) {
        randomize(&v[k], &state);
        for (size_t i = 0; i < ROOM; i++)
            v[k].of[i] = scalar_to_double(t, scalar_from_double(t, v[k].of[i]));
    }
    for (int side = 0; side < 2; side++) {
        Problem *q = side ? &wide : &p;
        Ref wrt[MAX_IN], cotangent[MAX_OUT], grad[MAX_IN], refused;
        Numbers *x = ARENA_ARRAY(&arena, Numbers, 16);
        for (uint32_t w = 0; w < q->n_wrt; w++)
            wrt[w] = q->in[q->wrt[w]];
        for (uint32_t k = 0; k < q->n_out; k++)
            cotangent[k] = input_like(q->g, q->out[k]);
        memcpy(x, q->x, sizeof *x * q->n_in);
        memcpy(x + q->n_in, v, sizeof *x * q->n_out);
        cr_assert_eq(gradient_vjp(q->g, NULL, q->n_out, q->out, cotangent, q->n_wrt, wrt, grad, &refused), ST_OK);
        for (uint32_t w = 0; w < q->n_wrt; w++)
            grad[w] = or_zero(q->g, grad[w], wrt[w]);
        verify(q->g, q->n_wrt, grad, wrt);
        compute(q->g, q->n_wrt, grad, x, got[side]);
    }
    for (uint32_t w = 0; w < p.n_wrt; w++) {
        double most = 1;
        size_t n = count_of(p.g, p.in[p.wrt[w]]);
        for (size_t i = 0; i < n; i++)
            most = fmax(most, fabs(got[1][w].of[i]));
        for (size_t i = 0; i < n; i++)
            cr_assert(fabs(got[0][w].of[i] - got[1][w].of[i]) <= tolerance * most, "%s gradient %u[%zu] is %g, in f64 %g in\n%s",
                      dtype_name(t), w, i, got[0][w].of[i], got[1][w].of[i], print(p.g));
    }
}

static void check(const Case *c)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        check_f64(c, seed);
        check_small(c, DT_F32, 1e-4, seed);
        check_small(c, DT_F16, 2e-2, seed);
        check_small(c, DT_BF16, 1e-1, seed);
        arena_free(&arena);
        arena_init(&arena, &no_memory);
    }
}

/* --- elementwise ops: all that there are, in all shapes ------------------------------------------------ */

static Case domain(Op op)
{
    switch (op) {
    case OP_LOG:
    case OP_LOG2:
    case OP_LOG10:
    case OP_SQRT:
    case OP_RSQRT:
    case OP_POW: return (Case){.low = 0.4, .high = 2.5};
    case OP_LOG1P: return (Case){.low = -0.6, .high = 2};
    case OP_ACOSH: return (Case){.low = 1.3, .high = 3};
    case OP_ASIN:
    case OP_ACOS:
    case OP_TAN:
    case OP_ATANH: return (Case){.low = -0.7, .high = 0.7};
    case OP_DIV:
    case OP_REM:
    case OP_FMOD:
    case OP_FLOORDIV:
    case OP_RECIPROCAL: return (Case){.low = 0.5, .high = 2.5};
    case OP_FLOOR:
    case OP_CEIL:
    case OP_ROUND:
    case OP_TRUNC:
    case OP_SIGN: return (Case){.low = 0.1, .high = 0.4};
    default: return (Case){0};
    }
}

Test(gradient, every_elementwise_op_in_every_shape)
{
    static const char *const shapes[] = {"", "0,3", "1", "2,3", "2,1,2"};
    int n = 0;
    for (int o = 0; o < OP_COUNT; o++) {
        Op op = (Op)o;
        DType of[3] = {op == OP_WHERE ? DT_BOOL : DT_F64, DT_F64, DT_F64};
        if (op_class(op) != CLS_EW || op == OP_CAST || op == OP_NEXTAFTER ||
            infer_dtype(op, (uint32_t)op_info[op].arity, of, DT_COUNT) != DT_F64)
            continue;
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            Case c = domain(op);
            Str text;
            str_init(&text, &arena);
            str_printf(&text, "graph g(");
            for (int k = 0; k < op_info[op].arity; k++)
                str_printf(&text, "%s%%%d: %s[%s]", k ? ", " : "", k, of[k] == DT_BOOL ? "bool" : "T", shapes[s]);
            str_printf(&text, ") {\n %%%d = %s", op_info[op].arity, op_name(op));
            for (int k = 0; k < op_info[op].arity; k++)
                str_printf(&text, " %%%d", k);
            str_printf(&text, "\n return %%%d\n}", op_info[op].arity);
            c.text = strdup(text.text);
            check(&c);
            free((char *)(uintptr_t)c.text);
            n++;
        }
    }
    cr_assert_gt(n, 200);
}

/* --- the others ------------------------------------------------------------------------------------------ */

static const Case others[] = {
    /* strided inputs, values used twice, scalars */
    {.text = "graph g(%0: T[2,3] strides(1 2)) {\n %1 = sin %0\n %2 = mul %1 %0\n %3 = add %2 %1\n return %3 %1\n}"},
    {.text = "graph g(%0: T[4]) {\n %1 = square %0\n %2 = add %1 %1\n %3 = mul %2 %1\n return %3\n}", .low = -1, .high = 1},
    {.text = "graph g(%0: T[]) {\n %1 = reshape %0 groups(0:1)\n %2 = expand %1 axes(0) size(5)\n %3 = tanh %2\n return %3\n}"},
    {.text = "graph g(%0: T[3]) {\n %1 = cast f64 %0\n %2 = exp %1\n %3 = cast T %2\n return %3\n}", .low = -1, .high = 1},
    {.text = "graph g(%0: T[3]) {\n %1 = cast f32 %0\n %2 = cast i32 %1\n %3 = cast T %2\n %4 = mul %3 %0\n return %4\n}",
     .low = 1.2,
     .high = 1.8},
    {.text = "graph g(%0: T[3]) {\n return %0 %0\n}"},
    /* views */
    {.text = "graph g(%0: T[2,6]) {\n %1 = reshape %0 groups(2:1)\n %2 = reshape %1 groups(1:3) size(3 2 2)\n %3 = sin %2\n return %3\n}"},
    {.text = "graph g(%0: T[2,6]) {\n %1 = reshape %0 groups(2:2) size(3 4)\n %2 = reshape %1 groups(1:1 0:1 1:1)\n %3 = sin %2\n return "
             "%3\n}"},
    {.text = "graph g(%0: T[2,1,3]) {\n %1 = reshape %0 groups(1:1 1:0 1:1)\n %2 = permute %1 perm(1 0)\n %3 = sin %2\n return %3\n}"},
    {.text = "graph g(%0: T[2,3,2]) {\n %1 = permute %0 perm(2 0 1)\n %2 = sin %1\n return %2\n}"},
    {.text = "graph g(%0: T[1,3,1]) {\n %1 = expand %0 axes(0 2) size(2 4)\n %2 = sin %1\n return %2\n}"},
    {.text = "graph g(%0: T[1,3]) {\n %1 = expand %0 axes(0) size(0)\n %2 = sin %1\n return %2\n}"},
    {.text = "graph g(%0: T[7,4]) {\n %1 = slice %0 axes(0 1) range(1:1:3 3:-1:3)\n %2 = sin %1\n return %2\n}"},
    {.text = "graph g(%0: T[7,9]) {\n %1 = slice %0 axes(0 1) range(1:2:3 8:-3:3)\n %2 = sin %1\n return %2\n}"},
    {.text = "graph g(%0: T[5]) {\n %1 = slice %0 axes(0) range(4:2:0)\n %2 = sin %1\n return %2\n}"},
    {.text = "graph g(%0: T[5]) {\n %1 = slice %0 axes(0) range(2:-2:1)\n %2 = sin %1\n return %2\n}"},
    {.text = "graph g(%0: T[5]) {\n %1 = slice %0 axes(0) range(4:-1:0)\n %2 = sin %1\n return %2\n}"},
    {.text = "graph g(%0: T[1,1,1,1,1,1,2,5]) {\n %1 = slice %0 axes(6 7) range(1:-1:2 4:-2:2)\n %2 = sin %1\n return %2\n}"},
    {.text = "graph g(%0: T[2,3], %1: T[]) {\n %2 = pad %0 %1 axes(0 1) by(1:0 2:1)\n %3 = sin %2\n return %3\n}"},
    {.text = "graph g(%0: T[2,3], %1: T[2,0], %2: T[2,2]) {\n %3 = concat %0 %1 %2 %0 axis(1)\n %4 = sin %3\n return %4\n}"},
    /* reductions, scans */
    {.text = "graph g(%0: T[2,3,2]) {\n %1 = reduce_sum %0 axes(0 2)\n %2 = sin %1\n return %2\n}"},
    {.text = "graph g(%0: T[2,3,2]) {\n %1 = reduce_prod %0 axes(1)\n %2 = sin %1\n return %2\n}", .low = -1.5, .high = 1.5},
    {.text = "graph g(%0: T[2,0]) {\n %1 = reduce_prod %0 axes(1)\n %2 = reduce_sum %0 axes(1)\n return %1 %2\n}"},
    {.text = "graph g(%0: T[2,5]) {\n %1 = reduce_max %0 axes(1)\n %2 = sin %1\n return %2\n}"},
    {.text = "graph g(%0: T[3,5]) {\n %1 = reduce_min %0 axes(0 1)\n %2 = sin %1\n return %2\n}"},
    {.text = "graph g(%0: T[3,4]) {\n %1 = cumsum %0 axis(1)\n %2 = sin %1\n return %2\n}", .low = -1, .high = 1},
    {.text = "graph g(%0: T[0,4]) {\n %1 = cumsum %0 axis(0)\n %2 = sin %1\n return %2\n}"},
    /* indices */
    {.text = "graph g(%0: T[3,2], %1: i64[4,2]) {\n %2 = gather %0 %1 axis(0)\n %3 = sin %2\n return %3\n}"},
    {.text =
         "graph g(%0: T[2,3], %1: i64[2]) {\n %2 = reshape %1 groups(1:1 0:1)\n %3 = gather %0 %2 axis(1)\n %4 = sin %3\n return %4\n}"},
    {.text = "graph g(%0: T[3,2], %1: i64[4,2], %2: T[4,2]) {\n %3 = scatter %0 %1 %2 axis(0) mode(set)\n %4 = sin %3\n return %4\n}"},
    {.text = "graph g(%0: T[3,2], %1: i64[4,2], %2: T[4,2]) {\n %3 = scatter %0 %1 %2 axis(0) mode(add)\n %4 = sin %3\n return %4\n}",
     .low = -0.6,
     .high = 0.6},
    {.text = "graph g(%0: T[3,2], %1: i64[4,2], %2: T[4,2]) {\n %3 = scatter %0 %1 %2 axis(0) mode(max)\n %4 = sin %3\n return %4\n}"},
    {.text = "graph g(%0: T[2,3], %1: i64[2,5], %2: T[2,5]) {\n %3 = scatter %0 %1 %2 axis(1) mode(min)\n %4 = sin %3\n return %4\n}"},
    {.text = "graph g(%0: T[6]) {\n %1 = argsort %0 axis(0)\n %2 = gather %0 %1 axis(0)\n %3 = cumsum %2 axis(0)\n return %3\n}",
     .no_second = true},
    /* products */
    {.text = "graph g(%0: T[2,3], %1: T[3,4]) {\n %2 = matmul %0 %1\n %3 = sin %2\n return %3\n}", .low = -0.7, .high = 0.7},
    {.text = "graph g(%0: T[2,2,3], %1: T[2,3,2]) {\n %2 = matmul %0 %1\n %3 = sin %2\n return %3\n}", .low = -0.7, .high = 0.7},
    {.text = "graph g(%0: T[2,0], %1: T[0,3]) {\n %2 = matmul %0 %1\n %3 = cos %2\n return %3\n}"},
    {.text =
         "graph g(%0: T[3,2,4], %1: T[4,2]) {\n %2 = reshape %1 groups(0:1 1:1 1:1)\n %3 = expand %2 axes(0) size(3)\n %4 = matmul %0 %3\n"
         " %5 = sin %4\n return %5\n}",
     .low = -0.7,
     .high = 0.7},
    {.text = "graph g(%0: T[1,2,1,2,3], %1: T[2,1,2,3,2]) {\n %2 = expand %0 axes(0 2) size(2 2)\n %3 = expand %1 axes(1) size(2)\n"
             " %4 = matmul %2 %3\n %5 = sin %4\n return %5\n}",
     .low = -0.7,
     .high = 0.7},
    {.text = "graph g(%0: T[1,2,3], %1: T[2,3,2]) {\n %2 = expand %0 axes(0) size(2)\n %3 = matmul %2 %1\n %4 = sin %3\n %5 = sin %2\n"
             " return %4 %5\n}",
     .low = -0.7,
     .high = 0.7},
};

Test(gradient, views_reductions_indices_products)
{
    for (size_t k = 0; k < sizeof others / sizeof *others; k++)
        check(&others[k]);
}

/* --- what no difference shows ------------------------------------------------------------------------------ */

/* The gradients of `text` (f64, one output) for cotangent g at x. */
static void gradient_at(const char *text, const double *const *x, double cotangent, Numbers *out)
{
    Graph *g = parse(typed(text, DT_F64));
    uint32_t n = g->inputs.n, n_wrt = 0;
    Ref wrt[MAX_IN], grad[MAX_IN], like[MAX_IN], refused, result = g->outputs.at[0];
    Numbers *all = ARENA_ARRAY(&arena, Numbers, 16);
    for (uint32_t k = 0; k < n; k++) {
        memcpy(all[k].of, x[k], sizeof(double) * count_of(g, g->inputs.at[k]));
        if (graph_node(g, g->inputs.at[k])->dtype == DT_F64)
            wrt[n_wrt++] = g->inputs.at[k];
    }
    Ref v = input_like(g, result);
    for (size_t i = 0; i < ROOM; i++)
        all[n].of[i] = cotangent;
    cr_assert_eq(gradient_vjp(g, NULL, 1, &result, &v, n_wrt, wrt, grad, &refused), ST_OK);
    for (uint32_t w = 0; w < n_wrt; w++)
        like[w] = or_zero(g, grad[w], wrt[w]);
    compute(g, n_wrt, like, all, out);
}

static void expect(const char *text, const double *const *x, double g, const double *const *want)
{
    Numbers out[MAX_IN];
    gradient_at(text, x, g, out);
    for (int k = 0; want[k]; k++)
        for (int i = 0; !isinf(want[k][i]) || want[k][i] > 0; i++) /* ended by -inf */
            cr_assert(out[k].of[i] == want[k][i] || (isnan(want[k][i]) && isnan(out[k].of[i])), "%s: input %d[%d]: %g, not %g", text, k, i,
                      out[k].of[i], want[k][i]);
}

#define X(...) ((const double *const[]){__VA_ARGS__, NULL})
#define V(...) ((const double[]){__VA_ARGS__, -INFINITY})

#define UNARY(op) "graph g(%0: T[3]) {\n %1 = " op " %0\n return %1\n}"
#define BINARY(op) "graph g(%0: T[3], %1: T[3]) {\n %2 = " op " %0 %1\n return %2\n}"

Test(gradient, special_values)
{
    const double inf = INFINITY, nan = NAN;
    expect(UNARY("relu"), X(V(0, 2, -1)), 3, X(V(0, 3, 0)));
    expect(UNARY("abs"), X(V(0, 2, -1)), 3, X(V(0, 3, -3)));
    expect(UNARY("sqrt"), X(V(0, 4, 0.25)), 1, X(V(inf, 0.25, 1)));
    expect(UNARY("sqrt"), X(V(0, 4, 0.25)), 0, X(V(0, 0, 0)));
    expect(UNARY("log"), X(V(0, 4, nan)), 0, X(V(0, 0, 0)));
    expect(BINARY("maximum"), X(V(1, 2, 3), V(1, 3, 2)), 2, X(V(1, 0, 2), V(1, 2, 0)));
    expect(BINARY("minimum"), X(V(1, 2, 3), V(1, 3, 2)), 2, X(V(1, 2, 0), V(1, 0, 2)));
    expect(BINARY("maximum"), X(V(nan, 1, nan), V(1, nan, nan)), 2, X(V(nan, nan, nan), V(nan, nan, nan)));
    expect(BINARY("maximum"), X(V(nan, 1, nan), V(1, nan, nan)), 0, X(V(0, 0, 0), V(0, 0, 0)));
    expect(BINARY("maximum"), X(V(inf, 1, 0), V(1, inf, -0.0)), inf, X(V(inf, 0, inf), V(0, inf, inf)));
    expect(BINARY("hypot"), X(V(0, 3, 0), V(0, 4, -2)), 1, X(V(0, 3.0 / 5, 0), V(0, 4.0 / 5, -1)));
    expect(BINARY("pow"), X(V(0, 0, 2), V(0, 2, 0)), 1, X(V(0, 0, 0), V(0, 0, log(2))));
    expect(BINARY("pow"), X(V(0, -2, 0), V(1, 2, 3)), 1, X(V(1, -4, 0), V(0, nan, 0)));
    expect(BINARY("mul"), X(V(inf, nan, 1), V(1, 1, inf)), 0, X(V(0, 0, 0), V(0, 0, 0)));
    expect(BINARY("div"), X(V(1, 1, 0), V(0, inf, 2)), 0, X(V(0, 0, 0), V(-0.0, -0.0, -0.0)));
    expect(BINARY("logaddexp"), X(V(1, 5000, inf), V(1, -5000, inf)), 1, X(V(0.5, 1, 0.5), V(0.5, 0, 0.5)));
    expect(BINARY("logaddexp"), X((const double[]){-INFINITY, 1, 2}, (const double[]){-INFINITY, -INFINITY, 2}), 1,
           X(V(0.5, 1, 0.5), V(0.5, 0, 0.5)));
    expect("graph g(%0: bool[3], %1: T[3]) {\n %2 = sqrt %1\n %3 = sub %2 %2\n %4 = where %0 %2 %3\n return %3\n}",
           X(V(0, 1, 0), V(1, 4, 4)), 1, X(V(0, 0, 0)));
    /* the branch that is not chosen: log of 0 and of less */
    expect("graph g(%0: bool[3], %1: T[3]) {\n %2 = log %1\n %3 = sqrt %2\n %4 = where %0 %3 %1\n return %4\n}", X(V(0, 0, 0), V(0, -1, 1)),
           1, X(V(1, 1, 1)));
}

#define REDUCE(op) "graph g(%0: T[2,3]) {\n %1 = " op " %0 axes(1)\n return %1\n}"

Test(gradient, special_values_of_reductions)
{
    const double nan = NAN, inf = INFINITY;
    expect(REDUCE("reduce_max"), X(V(1, 3, 3, 2, 2, 2)), 3, X(V(0, 1.5, 1.5, 1, 1, 1)));
    expect(REDUCE("reduce_min"), X(V(1, 3, 3, inf, inf, inf)), 3, X(V(3, 0, 0, 1, 1, 1)));
    expect(REDUCE("reduce_max"), X(V(1, nan, 3, 2, 5, 2)), 3, X(V(nan, nan, nan, 0, 3, 0)));
    expect(REDUCE("reduce_max"), X(V(1, nan, 3, 2, 5, 2)), 0, X(V(0, 0, 0, 0, 0, 0)));
    expect(REDUCE("reduce_max"), X(V(1, 4, 3, 2, 5, 2)), inf, X(V(0, inf, 0, 0, inf, 0)));
    expect(REDUCE("reduce_prod"), X(V(2, 0, 3, 2, 5, 4)), 1, X(V(0, 6, 0, 20, 8, 10)));
    expect(REDUCE("reduce_prod"), X(V(2, 0, 0, 0, 0, 0)), 1, X(V(0, 0, 0, 0, 0, 0)));
    const char *scatter = "graph g(%0: T[2], %1: i64[4], %2: T[4]) {\n %3 = scatter %0 %1 %2 axis(0) mode(max)\n return %3\n}";
    expect(scatter, X(V(1, 5), V(0, 0, 1, 1), V(1, 1, 2, 3)), 3, X(V(1, 3), V(1, 1, 0, 0)));
    const char *set = "graph g(%0: T[2], %1: i64[4], %2: T[4]) {\n %3 = scatter %0 %1 %2 axis(0) mode(set)\n return %3\n}";
    expect(set, X(V(1, 5), V(0, 0, 0, 0), V(1, 1, 2, 3)), 3, X(V(0, 3), V(0, 0, 0, 3)));
}

/* At a stationary point the gradient is 0 and its derivative is not: a factor masked by "g is 0" would lose it. */
Test(gradient, second_derivative_at_a_stationary_point)
{
    static const char *const texts[] = {
        "graph g(%0: T[2]) {\n %1 = square %0\n return %1\n}",
        "graph g(%0: T[2]) {\n %1 = mul %0 %0\n return %1\n}",
        "graph g(%0: T[2]) {\n %1 = cosh %0\n %2 = add %1 %1\n return %2\n}",
        "graph g(%0: T[2]) {\n %1 = exp %0\n %2 = sub %1 %0\n %3 = add %2 %2\n return %3\n}",
        "graph g(%0: T[2]) {\n %1 = neg %0\n %2 = logaddexp %0 %1\n %3 = add %2 %2\n return %3\n}",
        "graph g(%0: T[2]) {\n %1 = sin %0\n %2 = mul %1 %0\n return %2\n}",
    };
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        Graph *g = parse(typed(texts[k], DT_F64));
        Ref x = g->inputs.at[0], y = g->outputs.at[0], v = input_like(g, y), u = input_like(g, x), grad, second, refused;
        Numbers all[3] = {{{0, 0}}, {{1, 1}}, {{1, 2}}}, got[2];
        cr_assert_eq(gradient_vjp(g, NULL, 1, &y, &v, 1, &x, &grad, &refused), ST_OK);
        cr_assert_eq(gradient_jvp(g, NULL, 1, &x, &u, 1, &grad, &second, &refused), ST_OK);
        compute(g, 2, (const Ref[]){grad, second}, all, got);
        double want = k == 4 ? 2 : 2;
        cr_assert(got[0].of[0] == 0 && fabs(got[1].of[0] - want) < 1e-12 && fabs(got[1].of[1] - 2 * want) < 1e-12, "%s: %g %g", texts[k],
                  got[1].of[0], got[1].of[1]);
    }
}

Test(gradient, inputs_that_depend_on_each_other_get_total_derivatives)
{
    Graph *g = parse("graph g(%0: f64[1]) {\n %1 = exp %0\n %2 = square %1\n return %2\n}");
    Ref in[2] = {0, 1}, y = 2, v = input_like(g, y), grad[2], refused;
    cr_assert_eq(gradient_vjp(g, NULL, 1, &y, &v, 2, in, grad, &refused), ST_OK);
    Numbers all[2] = {{{1}}, {{1}}}, got[2];
    compute(g, 2, grad, all, got);
    cr_assert_float_eq(got[0].of[0], 2 * exp(2), 1e-12);
    cr_assert_float_eq(got[1].of[0], 2 * exp(1), 1e-12);
}

Test(gradient, what_is_not_connected_is_not_there)
{
    Graph *g = parse("graph g(%0: f64[2], %1: f64[2], %2: i64[2]) {\n %3 = floor %1\n %4 = cast f64 %2\n %5 = mul %0 %4\n %6 = add %5 %3\n"
                     " %7 = reshape %1 groups(1:1) stop\n %8 = mul %6 %7\n return %8\n}");
    Ref in[2] = {0, 1}, y = g->outputs.at[0], v = input_like(g, y), grad[2], refused;
    cr_assert_eq(gradient_vjp(g, NULL, 1, &y, &v, 2, in, grad, &refused), ST_OK);
    cr_assert(grad[0] != REF_NONE && grad[1] == REF_NONE);
}

Test(gradient, what_has_no_derivative_is_refused)
{
    Graph *g = parse("graph g(%0: f64[2], %1: f64[2]) {\n %2 = nextafter %0 %1\n %3 = mul %2 %0\n return %3\n}");
    Ref in = 0, y = 3, v = input_like(g, y), made, refused = 0;
    cr_assert_eq(gradient_vjp(g, NULL, 1, &y, &v, 1, &in, &made, &refused), ST_UNSUPPORTED);
    cr_assert_eq(refused, 2);
    cr_assert_eq(gradient_jvp(g, NULL, 1, &in, &v, 1, &y, &made, &refused), ST_UNSUPPORTED);
    cr_assert_eq(refused, 2);
}

/* New nodes are not merged with those that were there. */
Test(gradient, old_nodes_stay_apart)
{
    Graph *g = parse("graph g(%0: f64[2]) {\n %1 = sin %0\n %2 = cos %0\n %3 = add %1 %2\n return %3\n}");
    Ref in = 0, y = 1, v = input_like(g, y), grad, refused;
    Ref end = g->nodes.n;
    cr_assert_eq(gradient_vjp(g, NULL, 1, &y, &v, 1, &in, &grad, &refused), ST_OK);
    cr_assert(grad >= end);
    for (Ref r = end; r < g->nodes.n; r++)
        for (uint32_t k = 0; k < graph_node(g, r)->n_in; k++)
            cr_assert_neq(graph_node(g, r)->in[k], 2);
}

/* --- golden texts ------------------------------------------------------------------------------------------ */

/* tests/golden/gradient/NAME.txt: a graph, a line "----", the graph with its derivative. The first line says which: "vjp" or "jvp", and with "0"
 * that of the first input alone, else of all floats. KILN_GOLDEN=update writes what came out. */
static void check_golden(const char *path)
{
    static char text[GOLDEN_MOST];
    char *wanted = golden_read(path, text), words[64];
    snprintf(words, sizeof words, "%.*s", (int)strcspn(text, "\n"), text);
    Graph *g = parse(text);
    Ref in[MAX_IN], seed[MAX_IN + MAX_OUT], made[MAX_IN + MAX_OUT], refused;
    const Ref *out = g->outputs.at;
    bool forward = strstr(words, "jvp") != NULL;
    uint32_t n_in = 0, n_out = g->outputs.n;
    for (uint32_t k = 0; k < (strchr(words, '0') ? 1 : g->inputs.n); k++)
        if (dtype_is_float((DType)graph_node(g, g->inputs.at[k])->dtype))
            in[n_in++] = g->inputs.at[k];
    for (uint32_t k = 0; k < (forward ? n_in : n_out); k++)
        seed[k] = input_like(g, forward ? in[k] : out[k]);
    cr_assert_eq(forward ? gradient_jvp(g, NULL, n_in, in, seed, n_out, out, made, &refused)
                         : gradient_vjp(g, NULL, n_out, out, seed, n_in, in, made, &refused),
                 ST_OK);
    verify(g, forward ? n_out : n_in, made, forward ? out : in);
    g->outputs.n = 0;
    for (uint32_t k = 0; k < (forward ? n_out : n_in); k++)
        graph_output(g, made[k]);
    graph_compact(g, NULL);
    golden_compare(path, text, wanted, print(g));
}

Test(gradient, golden_texts) { golden_folder(KILN_SOURCE_DIR "/tests/golden/gradient", check_golden, 11); }

/* Each op's texts, as they are built: what changes in the table shows here. */
Test(gradient, golden_texts_of_the_table)
{
    const char *path = KILN_SOURCE_DIR "/tests/golden/gradient/table.golden", *mode = os_getenv("KILN_GOLDEN");
    Str out;
    str_init(&out, &arena);
    for (int o = 0; o < OP_COUNT; o++) {
        Op op = (Op)o;
        Ref in[3], wrt[3], seed[3], made[3], refused;
        uint32_t n = 0, arity = (uint32_t)op_info[op].arity;
        DType of[3] = {op == OP_WHERE ? DT_BOOL : DT_F32, DT_F32, DT_F32};
        if (op_class(op) != CLS_EW || op == OP_CAST || op == OP_NEXTAFTER || infer_dtype(op, arity, of, DT_COUNT) != DT_F32)
            continue;
        for (int forward = 0; forward < 2; forward++) {
            Graph *g = graph_new(&arena);
            n = 0;
            for (uint32_t k = 0; k < arity; k++) {
                in[k] = graph_add_input(g, of[k], 1, (const int64_t[]){4}, NULL, (Loc){0});
                if (of[k] == DT_F32)
                    wrt[n++] = in[k];
            }
            Ref y = graph_ew(g, op, in[0], arity > 1 ? in[1] : REF_NONE, arity > 2 ? in[2] : REF_NONE, (Loc){0});
            for (uint32_t k = 0; k < (forward ? n : 1); k++)
                seed[k] = input_like(g, y);
            cr_assert_eq(forward ? gradient_jvp(g, NULL, n, wrt, seed, 1, &y, made, &refused)
                                 : gradient_vjp(g, NULL, 1, &y, seed, n, wrt, made, &refused),
                         ST_OK);
            for (uint32_t k = 0; k < (forward ? 1 : n); k++)
                graph_output(g, or_zero(g, made[k], y));
            graph_compact(g, NULL);
            cr_assert_eq(graph_verify(g), ST_OK);
            graph_print(g, forward ? "jvp" : "vjp", &out);
        }
    }
    FILE *file = fopen(path, mode && !strcmp(mode, "update") ? "w" : "r");
    cr_assert_not_null(file, "%s", path);
    if (mode && !strcmp(mode, "update")) {
        fputs(out.text, file);
    } else {
        static char wanted[1 << 18];
        wanted[fread(wanted, 1, sizeof wanted - 1, file)] = 0;
        size_t at = 0;
        while (wanted[at] && wanted[at] == out.text[at])
            at++;
        cr_expect(!strcmp(wanted, out.text), "%s differs at: got %.300s\nwanted %.300s", path, out.text + at, wanted + at);
    }
    fclose(file);
}
