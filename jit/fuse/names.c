/*
 * Functions that have a name, in the graph however they were spelled: the NAMED rows of jit/fuse/recognise.def. Names stand in the log and in what
 * steps are called (kiln_explain, `kiln cache show`, KILN_LOG=perf, traces); no kernel and no number depends on them. Where the ops as written lose
 * digits that the function has, ir/rules.def (NEARER) has made it of other ops before.
 *
 *   activations   of x and of the one op y that makes them (erf, erfc, tanh, sigmoid): what is around y and what y is of are polynomials in x and y,
 *                 so factors, constants and brackets may stand as they like
 *   rows          softmax, norms...: a Row is a value that is repeated along some axes, followed down to what reduces these same axes
 *
 * All is found from its last op, which has the name, but for activations, which are found from y. The other ops are its parts. A number that tells one
 * function from others is asked, last: what has the name is then never run for something else. But where sizes vary, the number of elements that a mean
 * divides by varies with them: it is only looked at, as to ask would compile again for each.
 *
 * Leaves out: steps that are several kernels, and what loops in kernels are called; the variance as mean(x^2) - mean(x)^2, which is no good one.
 */
#include "ir/query.h"
#include "ir/scalar.h"
#include "jit/fuse/fuse.h"
#include "jit/fuse/recognise.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PARTS = 48, MOST_NUMBERS = 12, MOST_UP = 16, MOST_LOOKS = 24, MOST_DEEP = 10, NAME_LENGTH = 48 };
static const char who[] = "names";

/* One attempt. */
typedef struct Naming {
    const Fuser *f;
    Ref part[MOST_PARTS], asked[MOST_NUMBERS];
    uint32_t n, n_asked;
} Naming;

static const Node *node_of(const Naming *m, Ref n) { return graph_node(m->f->g, n); }

static bool has_op(const Naming *m, Ref n, Op op) { return node_of(m, n)->op == op; }

/* n is a part. false: there are too many. */
static bool take(Naming *m, Ref n)
{
    if (m->n == MOST_PARTS)
        return false;
    m->part[m->n++] = n;
    return true;
}

/* Is n such an op? It is a part then. */
static bool is(Naming *m, Ref n, Op op) { return has_op(m, n, op) && take(m, n); }

/* n without casts. */
static Ref plain(Naming *m, Ref n)
{
    while (is(m, n, OP_CAST))
        n = node_of(m, n)->in[0];
    return n;
}

/* Back to what was known at a mark, after an attempt. */
typedef struct NamingMark {
    uint32_t n, n_asked;
} NamingMark;

static NamingMark so_far(const Naming *m) { return (NamingMark){m->n, m->n_asked}; }

static void back(Naming *m, NamingMark to)
{
    m->n = to.n;
    m->n_asked = to.n_asked;
}

/* ---- numbers ---- */

/* The bits of a number, which the host computes; what it is made of is to be asked. */
static bool number_bits(Naming *m, Ref n, int depth, uint64_t *bits)
{
    const Node *node = node_of(m, n = number_source(m->f->g, n));
    uint64_t in[3][2] = {{0}}, out[2] = {0};
    DType types[3];
    if (node->op == OP_SCALAR) {
        *bits = m->f->g->shared->scalars.at[node->scalar].bits;
        if (m->n_asked == MOST_NUMBERS)
            return false;
        m->asked[m->n_asked++] = n;
        return true;
    }
    for (uint32_t k = 0; k < node->n_in; k++) {
        if (k == 3 || depth == MOST_DEEP || !number_bits(m, node->in[k], depth + 1, bits))
            return false;
        types[k] = (DType)node_of(m, node->in[k])->dtype;
        scalar_store(types[k], *bits, in[k]);
    }
    const Tape *tape = tape_get((Op)node->op, types, (DType)node->dtype, options_math(m->f->options));
    if (!tape || !tape_run(tape, types, (DType)node->dtype, 1, (const void *[]){in[0], in[1], in[2]}, out))
        return false;
    *bits = scalar_load((DType)node->dtype, out);
    return true;
}

static bool number(Naming *m, Ref n, double *value)
{
    uint64_t bits;
    if (!node_of(m, n)->number || !number_bits(m, n, 0, &bits))
        return false;
    *value = scalar_to_double((DType)node_of(m, n)->dtype, bits);
    return true;
}

/* Is it that, as written with so many digits as people write, in the dtype of n? Made of so many such numbers. */
static bool near(const Naming *m, Ref n, double value, double expected, int numbers)
{
    static const double lost[DT_COUNT] = {[DT_F16] = 0x1p-12, [DT_BF16] = 0x1p-9, [DT_F32] = 1e-5, [DT_F64] = 1e-5};
    return fabs(value - expected) <= numbers * lost[node_of(m, n)->dtype] * fabs(expected);
}

static bool is_number(Naming *m, Ref n, double expected)
{
    double value;
    return number(m, n, &value) && value == expected;
}

/* May the numbers be relied on? Else nothing was asked. */
static bool ask(const Naming *m)
{
    const Graph *g = m->f->g;
    uint32_t mark = query_mark(g);
    uint64_t bits;
    for (uint32_t i = 0; i < m->n_asked; i++)
        if (!spec_scalar(g, m->asked[i], who, &bits)) {
            query_undo(g, mark);
            return false;
        }
    return true;
}

/* ---- activations ---- */

/* Of x^i y^j the coefficients at[i][j]. */
typedef struct Poly {
    double at[4][2];
} Poly;

static bool poly_mul(const Poly *a, const Poly *b, Poly *out)
{
    *out = (Poly){0};
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 4; j++) {
            int p = i / 4 + (i & 3), q = j / 2 + (j & 1);
            double c = a->at[i / 4][j / 2] * b->at[i & 3][j & 1];
            if (c != 0 && (p > 3 || q > 1))
                return false;
            if (c != 0)
                out->at[p][q] += c;
        }
    return true;
}

/* a + c b */
static void poly_add(const Poly *a, const Poly *b, double c, Poly *out)
{
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 2; j++)
            out->at[i][j] = a->at[i][j] + c * b->at[i][j];
}

/* Node n as a polynomial of the nodes x and y. y may be REF_NONE. */
static bool poly_of(Naming *m, Ref n, Ref x, Ref y, int depth, Poly *out)
{
    Poly a, b;
    double value;
    *out = (Poly){0};
    if (n == x || n == y) {
        out->at[n == x][n != x] = 1;
        return true;
    }
    if (number(m, n, &value)) {
        out->at[0][0] = value;
        return true;
    }
    const Node *node = node_of(m, n);
    Op op = (Op)node->op;
    bool two = op == OP_ADD || op == OP_SUB || op == OP_MUL || op == OP_DIV || op == OP_POW;
    if (depth == MOST_DEEP || !(two || op == OP_NEG || op == OP_SQUARE || op == OP_CAST) || !take(m, n) ||
        !poly_of(m, node->in[0], x, y, depth + 1, &a))
        return false;
    if ((op == OP_DIV || op == OP_POW) && !number(m, node->in[1], &value))
        return false;
    if ((op == OP_ADD || op == OP_SUB || op == OP_MUL) && !poly_of(m, node->in[1], x, y, depth + 1, &b))
        return false;
    switch (op) {
    case OP_ADD: poly_add(&a, &b, 1, out); return true;
    case OP_SUB: poly_add(&a, &b, -1, out); return true;
    case OP_MUL: return poly_mul(&a, &b, out);
    case OP_DIV: poly_add(out, &a, 1 / value, out); return value != 0;
    case OP_NEG: poly_add(out, &a, -1, out); return true;
    case OP_SQUARE: return poly_mul(&a, &a, out);
    case OP_POW: return (value == 2 || value == 3) && poly_mul(&a, &a, &b) && (value == 2 ? (*out = b, true) : poly_mul(&a, &b, out));
    default: *out = a; return true;
    }
}

/* Is p = c0 x + c1 x y, and nothing else? */
static bool is_only(const Naming *m, Ref y, const Poly *p, double c0, double c1)
{
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 2; j++) {
            double expected = i != 1 ? 0 : j ? c1 : c0;
            if (!near(m, y, p->at[i][j], expected, 1))
                return false;
        }
    return true;
}

/* What n is a multiple of. */
static Ref without_factors(const Naming *m, Ref n)
{
    for (;;) {
        const Node *node = node_of(m, n);
        if (node->op == OP_NEG || node->op == OP_CAST || ((node->op == OP_MUL || node->op == OP_DIV) && node_of(m, node->in[1])->number))
            n = node->in[0];
        else if (node->op == OP_MUL && node_of(m, node->in[0])->number)
            n = node->in[1];
        else
            return n;
    }
}

static bool is_arithmetic(Op op) { return op == OP_ADD || op == OP_SUB || op == OP_MUL || op == OP_DIV || op == OP_NEG || op == OP_CAST; }

/* The x of which n is a polynomial: what has a power, or is there twice; REF_NONE: nothing. */
static Ref under_power(const Naming *m, Ref n)
{
    Ref at[MOST_LOOKS] = {n};
    for (uint32_t i = 0, n_at = 1; i < n_at; i++) {
        const Node *node = node_of(m, at[i]);
        if (node->op == OP_SQUARE || node->op == OP_POW)
            return node->in[0];
        for (uint32_t k = 0; is_arithmetic((Op)node->op) && k < node->n_in; k++) {
            for (uint32_t j = 0; j < n_at; j++)
                if (at[j] == node->in[k] && !node_of(m, at[j])->number)
                    return at[j];
            if (n_at < MOST_LOOKS)
                at[n_at++] = node->in[k];
        }
    }
    return REF_NONE;
}

/* What an activation is found from: the op y, of x by so much. */
typedef struct Inside {
    Ref y, x;
    double by;
} Inside;

/* y = erf or erfc of x / sqrt 2. */
static bool is_inside_gelu(Naming *m, Inside *in)
{
    Poly p;
    Ref of = node_of(m, in->y)->in[0];
    in->x = without_factors(m, of);
    if (!poly_of(m, of, in->x, REF_NONE, 0, &p) || p.at[0][0] != 0 || p.at[1][0] == 0)
        return false;
    in->by = p.at[1][0] / 0.70710678118654752440;
    return true;
}

/* y = tanh p or sigmoid 2 p of p = sqrt(2 / pi) (x + 0.044715 x^3). */
static bool is_inside_gelu_tanh(Naming *m, Inside *in)
{
    Poly p;
    Ref of = node_of(m, in->y)->in[0];
    const double slope = 0.79788456080286535588 * (has_op(m, in->y, OP_SIGMOID) ? 2 : 1), cube = slope * 0.044715;
    in->x = under_power(m, of);
    if (in->x == REF_NONE || !poly_of(m, of, in->x, REF_NONE, 0, &p) || p.at[0][0] != 0 || p.at[1][0] == 0 || p.at[2][0] != 0)
        return false;
    in->by = p.at[1][0] / slope;
    return near(m, in->y, p.at[3][0], cube * in->by * in->by * in->by, 4);
}

/* x (1 + erf) / 2 = x (2 - erfc) / 2; the arguments of these odd functions may be negative. */
static bool names_gelu(Naming *m, Ref root, const Inside *in)
{
    Poly p;
    if (!in || !(has_op(m, in->y, OP_ERF) || has_op(m, in->y, OP_ERFC)) || !poly_of(m, root, in->x, in->y, 0, &p))
        return false;
    double half = in->by / 2, size = fabs(half);
    if (has_op(m, in->y, OP_ERF))
        return is_only(m, in->y, &p, size, half) || is_only(m, in->y, &p, -size, -half);
    return is_only(m, in->y, &p, size + half, -half) || is_only(m, in->y, &p, -size - half, half);
}

/* x (1 + tanh) / 2 = x sigmoid. */
static bool names_gelu_tanh(Naming *m, Ref root, const Inside *in)
{
    Poly p;
    if (!in || !(has_op(m, in->y, OP_TANH) || has_op(m, in->y, OP_SIGMOID)) || !poly_of(m, root, in->x, in->y, 0, &p))
        return false;
    return has_op(m, in->y, OP_TANH) ? is_only(m, in->y, &p, in->by / 2, in->by / 2) : is_only(m, in->y, &p, 0, in->by);
}

/* The x of 1 + exp(-x); else REF_NONE. */
static Ref logistic_below(Naming *m, Ref n)
{
    NamingMark before = so_far(m);
    for (uint32_t k = 0; is(m, n, OP_ADD) && k < 2; back(m, before), k++) {
        Ref exp = plain(m, node_of(m, n)->in[k]), minus;
        double minus_one;
        if (!is(m, exp, OP_EXP) || !is_number(m, node_of(m, n)->in[!k], 1))
            continue;
        minus = node_of(m, exp)->in[0];
        if (is(m, minus, OP_NEG))
            return node_of(m, minus)->in[0];
        if (is(m, minus, OP_MUL) && number(m, node_of(m, minus)->in[1], &minus_one) && minus_one == -1)
            return node_of(m, minus)->in[0];
    }
    return REF_NONE;
}

/* The x of sigmoid x; else REF_NONE. */
static Ref logistic_of(Naming *m, Ref n)
{
    if (is(m, n, OP_SIGMOID))
        return node_of(m, n)->in[0];
    if (is(m, n, OP_RECIPROCAL))
        return logistic_below(m, node_of(m, n)->in[0]);
    bool inverse = has_op(m, n, OP_DIV) && is_number(m, node_of(m, n)->in[0], 1) && take(m, n);
    return inverse ? logistic_below(m, node_of(m, n)->in[1]) : REF_NONE;
}

static bool names_sigmoid(Naming *m, Ref root, const Inside *in) { return !in && logistic_of(m, root) != REF_NONE; }

static bool names_silu(Naming *m, Ref root, const Inside *in)
{
    const Node *node = node_of(m, root);
    if (in)
        return false;
    if (is(m, root, OP_SILU))
        return true;
    if (is(m, root, OP_DIV))
        return logistic_below(m, node->in[1]) == node->in[0];
    NamingMark before = so_far(m);
    for (uint32_t k = 0; is(m, root, OP_MUL) && k < 2; back(m, before), k++)
        if (logistic_of(m, node->in[k]) == node->in[!k])
            return true;
    return false;
}

/* ---- rows ---- */

/* A value followed down from where it has the shape of the whole: axis i of that is axis axis[i] of `at`; -1: repeated along it. */
typedef struct Row {
    Ref at;
    uint8_t rank;
    int8_t axis[MAX_RANK];
} Row;

static Row row_of(const Naming *m, Ref n)
{
    Row r = {.at = n, .rank = node_of(m, n)->rank};
    for (int i = 0; i < r.rank; i++)
        r.axis[i] = (int8_t)i;
    return r;
}

/* Past an axis of size 1 that a reshape has inserted, or left out. false: it does more than that. */
static bool past_reshape(Row *r, const Attr *attr)
{
    int8_t to[MAX_RANK];
    int in = 0, out = 0;
    for (uint32_t g = 0; g < attr->n; g++) {
        if (attr->group.in[g] > 1 || attr->group.out[g] > 1)
            return false;
        if (attr->group.out[g])
            to[out++] = (int8_t)(attr->group.in[g] ? in : -1);
        in += attr->group.in[g];
    }
    for (int i = 0; i < r->rank; i++)
        r->axis[i] = r->axis[i] < 0 ? (int8_t)-1 : to[r->axis[i]];
    return true;
}

/* Past what repeats it and past casts. */
static bool down(Naming *m, Row *r)
{
    for (;; r->at = node_of(m, r->at)->in[0]) {
        const Node *node = node_of(m, r->at);
        if (node->op == OP_RESHAPE) {
            if (!past_reshape(r, &node->attr))
                return false;
        } else if (node->op == OP_EXPAND) {
            for (int i = 0; i < r->rank && i < MAX_RANK; i++)
                if (r->axis[i] >= 0 && node->attr.mask >> r->axis[i] & 1)
                    r->axis[i] = -1;
        } else if (node->op != OP_CAST || !take(m, r->at)) {
            return node->op != OP_CAST;
        }
    }
}

/* Is the row made by such an op of one operand? Then it is that operand's. */
static bool past(Naming *m, Row *r, Op op)
{
    bool found = down(m, r) && is(m, r->at, op);
    if (found)
        r->at = node_of(m, r->at)->in[0];
    return found;
}

/* Is it a reduction of x, repeated along the axes that it reduces? *mask: these axes. */
static bool reduces(Naming *m, Row *r, Op op, Ref x, uint8_t *mask)
{
    if (!down(m, r) || !is(m, r->at, op))
        return false;
    const Node *node = node_of(m, r->at), *whole = node_of(m, x);
    if (plain(m, node->in[0]) != plain(m, x) || whole->rank != r->rank)
        return false;
    *mask = node->attr.mask;
    for (int i = 0, kept = 0; i < r->rank; i++) {
        int expected = *mask >> i & 1 ? -1 : kept++;
        if (r->axis[i] != expected && dim_hint(m->f->g, whole->dim[i]) != 1)
            return false;
    }
    return *mask != 0;
}

/* The mean of x over some axes: a sum, divided by how many it sums up. */
static bool averages(Naming *m, Row *r, Ref x, uint8_t *mask)
{
    double by = 0, count = 1;
    bool fixed = true;
    if (!down(m, r))
        return false;
    const Node *node = node_of(m, r->at);
    bool product = node->op == OP_MUL;
    uint32_t asked = m->n_asked;
    if ((!product && node->op != OP_DIV) || !take(m, r->at) || !number(m, node->in[1], &by))
        return false;
    Ref number = node->in[1];
    r->at = node->in[0];
    if (!reduces(m, r, OP_REDUCE_SUM, x, mask))
        return false;
    for (int i = 0; i < r->rank; i++)
        if (*mask >> i & 1) {
            Dim size = node_of(m, x)->dim[i];
            count *= (double)dim_hint(m->f->g, size);
            fixed &= size_is_fixed(m->f, size);
        }
    if (!fixed)
        m->n_asked = asked;
    by = product ? by * count : by / count;
    bool narrow = dtype_bytes((DType)node_of(m, number)->dtype) < 4;
    return near(m, number, by, 1, 2) && (narrow || fabs(by - 1) * count < 0.25); /* not that of one more or less */
}

/* Is n = x minus its greatest along some axes? That x; else REF_NONE. */
static Ref shifted(Naming *m, Ref n, uint8_t *mask)
{
    if (!is(m, n, OP_SUB))
        return REF_NONE;
    const Node *node = node_of(m, n);
    Row r = row_of(m, node->in[1]);
    if (!down(m, &r))
        return REF_NONE;
    if (is(m, r.at, OP_WHERE)) /* which is 0 where it is infinite */
        r.at = node_of(m, r.at)->in[node_of(m, node_of(m, r.at)->in[1])->number ? 2 : 1];
    return reduces(m, &r, OP_REDUCE_MAX, node->in[0], mask) ? node->in[0] : REF_NONE;
}

/* Is n = exp e / the sum of exp e along some axes? That exp; else REF_NONE. */
static Ref shared(Naming *m, Ref n, uint8_t *mask)
{
    const Node *node = node_of(m, n);
    NamingMark before = so_far(m);
    for (int side = 0; (node->op == OP_MUL || node->op == OP_DIV) && side < (node->op == OP_MUL ? 2 : 1); back(m, before), side++) {
        Ref exp = plain(m, node->in[side]);
        Row r = row_of(m, node->in[!side]);
        if (is(m, exp, OP_EXP) && (node->op == OP_DIV || past(m, &r, OP_RECIPROCAL)) && reduces(m, &r, OP_REDUCE_SUM, exp, mask) &&
            take(m, n))
            return exp;
    }
    return REF_NONE;
}

static bool names_softmax(Naming *m, Ref root, const Inside *in)
{
    uint8_t sum, most;
    Ref exp = !in ? shared(m, root, &sum) : REF_NONE;
    return exp != REF_NONE && shifted(m, plain(m, node_of(m, exp)->in[0]), &most) != REF_NONE && sum == most;
}

static bool names_softmax_plain(Naming *m, Ref root, const Inside *in)
{
    uint8_t sum;
    return !in && shared(m, root, &sum) != REF_NONE;
}

/* log sum exp s of s, whose greatest is 0: as it is written, or as kiln_log_softmax does it. */
static bool totals(Naming *m, Row *r, Ref s, uint8_t *mask)
{
    if (past(m, r, OP_LOG)) {
        if (!down(m, r) || !has_op(m, r->at, OP_REDUCE_SUM))
            return false;
        Ref exp = plain(m, node_of(m, r->at)->in[0]);
        return is(m, exp, OP_EXP) && plain(m, node_of(m, exp)->in[0]) == plain(m, s) && reduces(m, r, OP_REDUCE_SUM, exp, mask);
    }
    if (!past(m, r, OP_LOG1P) || !past(m, r, OP_ADD) || !down(m, r) || !has_op(m, r->at, OP_REDUCE_SUM))
        return false;
    Ref rest = node_of(m, r->at)->in[0];
    if (!is(m, rest, OP_WHERE) || !is(m, node_of(m, rest)->in[0], OP_EQ) || !is(m, node_of(m, rest)->in[2], OP_EXP))
        return false;
    return node_of(m, node_of(m, rest)->in[2])->in[0] == s && reduces(m, r, OP_REDUCE_SUM, rest, mask);
}

static bool names_log_softmax(Naming *m, Ref root, const Inside *in)
{
    uint8_t sum, most;
    if (in || !is(m, root, OP_SUB))
        return false;
    const Node *node = node_of(m, root);
    Row r = row_of(m, node->in[1]);
    return totals(m, &r, node->in[0], &sum) && shifted(m, plain(m, node->in[0]), &most) != REF_NONE && sum == most;
}

/* Is n = x, or x times something? */
static bool has_factor(Naming *m, Ref n, Ref x, int depth)
{
    n = plain(m, n);
    const Node *node = node_of(m, n);
    if (n == x)
        return true;
    return depth < 3 && node->op == OP_MUL && (has_factor(m, node->in[0], x, depth + 1) || has_factor(m, node->in[1], x, depth + 1)) &&
           take(m, n);
}

/* Is root = x / sqrt(mean of x^2 + eps), or that times something which was multiplied by x first? That x; else REF_NONE. */
static Ref scaled(Naming *m, Ref root, uint8_t *mask)
{
    const Node *node = node_of(m, root);
    NamingMark before = so_far(m);
    for (int side = 0; (node->op == OP_MUL || node->op == OP_DIV) && side < (node->op == OP_MUL ? 2 : 1); back(m, before), side++) {
        Row r = row_of(m, node->in[!side]);
        bool inverse = node->op == OP_DIV || past(m, &r, OP_RSQRT);
        if (!inverse || (node->op == OP_DIV && !past(m, &r, OP_SQRT))) {
            r = row_of(m, node->in[!side]);
            if (node->op == OP_DIV || !past(m, &r, OP_RECIPROCAL) || !past(m, &r, OP_SQRT))
                continue;
        }
        if (!down(m, &r) || !is(m, r.at, OP_ADD) || !node_of(m, node_of(m, r.at)->in[1])->number)
            continue;
        r.at = node_of(m, r.at)->in[0];
        Row of = r;
        if (!down(m, &of) || node_of(m, of.at)->n_in < 1)
            continue;
        Row sum = {.at = node_of(m, of.at)->in[0], .rank = of.rank};
        memcpy(sum.axis, of.axis, sizeof sum.axis);
        if (!down(m, &sum) || !has_op(m, sum.at, OP_REDUCE_SUM))
            continue;
        Ref power = plain(m, node_of(m, sum.at)->in[0]), base = node_of(m, power)->n_in ? node_of(m, power)->in[0] : REF_NONE;
        bool square = is(m, power, OP_SQUARE) || (is(m, power, OP_MUL) && node_of(m, power)->in[1] == base) ||
                      (is(m, power, OP_POW) && is_number(m, node_of(m, power)->in[1], 2));
        if (square && has_factor(m, node->in[side], plain(m, base), 0) && averages(m, &r, power, mask) && take(m, root))
            return base;
    }
    return REF_NONE;
}

/* Is n = x - the mean of x along these axes? */
static bool centred(Naming *m, Ref n, uint8_t mask)
{
    uint8_t own;
    n = plain(m, n);
    if (!is(m, n, OP_SUB))
        return false;
    Row r = row_of(m, node_of(m, n)->in[1]);
    return averages(m, &r, node_of(m, n)->in[0], &own) && own == mask;
}

static bool is_last(const Naming *m, Ref root, uint8_t mask) { return mask == 1u << (node_of(m, root)->rank - 1); }

static bool names_layer_norm(Naming *m, Ref root, const Inside *in)
{
    uint8_t mask;
    Ref x = !in ? scaled(m, root, &mask) : REF_NONE;
    return x != REF_NONE && is_last(m, root, mask) && centred(m, x, mask);
}

static bool names_normalize(Naming *m, Ref root, const Inside *in)
{
    uint8_t mask;
    Ref x = !in ? scaled(m, root, &mask) : REF_NONE;
    return x != REF_NONE && !is_last(m, root, mask) && centred(m, x, mask);
}

static bool names_rms_norm(Naming *m, Ref root, const Inside *in)
{
    uint8_t mask;
    return !in && scaled(m, root, &mask) != REF_NONE;
}

/* ---- finding ---- */

static const struct {
    RecognisedId id;
    const char *name;
    bool (*names)(Naming *, Ref root, const Inside *in); /* y: of an activation, the op that it is found from; else REF_NONE */
} functions[] = {
#define RECOGNISED(id, sentence)
#define NAMED(id, name, sentence) {RECOGNISED_##id, name, names_##id},
#include "jit/fuse/recognise.def"
#undef NAMED
#undef RECOGNISED
};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

/* m: what is known of it so far, for each attempt. */
static bool name_node(Fuser *f, Naming *m, Ref root, const Inside *in)
{
    NamingMark before = so_far(m);
    for (uint32_t k = 0; k < FUNCTIONS && !f->named[root]; k++, back(m, before)) {
        if (!functions[k].names(m, root, in) || !ask(m))
            continue;
        f->named[root] = (uint8_t)(k + 1);
        f->n_named++;
        for (uint32_t i = 0; i < m->n; i++)
            f->part_of[m->part[i]] = root;
        return true;
    }
    return false;
}

/* What is made of y by few ops, until something has a name. */
static void name_above(Fuser *f, Ref y)
{
    Naming m;
    Inside in = {.y = y};
    Op op = (Op)graph_node(f->g, y)->op;
    Ref at[MOST_UP] = {y};
    m.f = f;
    m.n = m.n_asked = 0;
    if (!take(&m, y) || !(op == OP_ERF || op == OP_ERFC ? is_inside_gelu(&m, &in) : is_inside_gelu_tanh(&m, &in)))
        return;
    for (uint32_t i = 0, n = 1; i < n; i++)
        for (uint32_t u = f->user_at[at[i]]; u < f->user_at[at[i] + 1]; u++) {
            Ref user = f->users[u];
            if (!is_arithmetic((Op)graph_node(f->g, user)->op))
                continue;
            if (name_node(f, &m, user, &in))
                return;
            if (n < MOST_UP)
                at[n++] = user;
        }
}

void name_nodes(Fuser *f)
{
    Naming m;
    m.f = f;
    m.n = m.n_asked = 0;
    f->n_named = 0;
    f->named = ARENA_ARRAY(f->arena, uint8_t, f->n + 1);
    f->part_of = ARENA_ARRAY(f->arena, Ref, f->n + 1);
    memset(f->part_of, 0xff, sizeof *f->part_of * (f->n + 1));
    for (Ref n = 0; n < f->n; n++) {
        const Node *node = graph_node(f->g, n);
        Op op = (Op)node->op;
        if (!(f->flags[n] & NODE_LIVE) || node->number)
            continue;
        if (op == OP_ERF || op == OP_ERFC || op == OP_TANH || op == OP_SIGMOID)
            name_above(f, n);
        if (op == OP_MUL || op == OP_DIV || op == OP_SUB || op == OP_RECIPROCAL || op == OP_SILU || op == OP_SIGMOID)
            (void)name_node(f, &m, n, NULL);
    }
}

bool named_as(const Fuser *f, Ref n, RecognisedId id) { return f->named[n] && functions[f->named[n] - 1].id == id; }

/* ---- what steps are called ---- */

static int by_number(const void *a, const void *b)
{
    Ref x = *(const Ref *)a, y = *(const Ref *)b;
    return x < y ? -1 : x > y;
}

/* A kernel's nodes, each once, in the order of the graph. */
typedef struct Nodes {
    Ref *at;
    uint32_t n;
} Nodes;

/* "matmul_add_gelu": kernel_name with functions for their ops. NULL: none is computed in this kernel, or its last op alone. here[n]: 0 for each node,
 * then and now. */
static const char *name_of(const Fuser *f, const Kernel *k, Nodes nodes, uint32_t *here)
{
    char name[NAME_LENGTH + 1];
    const char *words[NAME_LENGTH];
    uint32_t n_words = 0;
    bool any = false;
    for (uint32_t i = 0; i < nodes.n; i++)
        here[nodes.at[i]] = 1;
    for (uint32_t i = 0; i < nodes.n; i++) {
        Ref root = f->part_of[nodes.at[i]];
        if (root != REF_NONE && root != nodes.at[i] && here[root])
            here[root]++; /* so many of its parts are here */
    }
    int length = snprintf(name, sizeof name, "%s", kernel_kind_name(k));
    for (uint32_t i = 0; i < nodes.n; i++) {
        Ref n = nodes.at[i], root = f->part_of[n];
        OpClass cls = class_of(f, n);
        bool named = f->named[n] && here[n] > 1;
        const char *word = named ? functions[f->named[n] - 1].name : op_name((Op)graph_node(f->g, n)->op);
        bool said = cls == CLS_VIEW || cls == CLS_LEAF || cls == CLS_CONTRACT || graph_node(f->g, n)->number ||
                    (root != REF_NONE && root != n && here[root]);
        for (uint32_t j = 0; j < n_words; j++)
            said |= words[j] == word;
        any |= named;
        if (said)
            continue;
        if ((size_t)length + strlen(word) + 2 > NAME_LENGTH)
            break;
        words[n_words++] = word;
        length += snprintf(name + length, sizeof name - (size_t)length, "%s%s", length ? "_" : "", word);
    }
    for (uint32_t i = 0; i < nodes.n; i++)
        here[nodes.at[i]] = 0;
    return any ? arena_strdup(f->g->arena, name) : NULL;
}

void name_steps(Fuser *f)
{
    if (!f->n_named)
        return;
    uint32_t *start = ARENA_ARRAY(f->arena, uint32_t, f->units.n + 2), *here = ARENA_ARRAY(f->arena, uint32_t, f->n + 1);
    Ref *at = ARENA_ARRAY(f->arena, Ref, f->visits.n + 1);
    for (uint32_t i = 0; i < f->visits.n; i++)
        start[f->visits.at[i].unit + 2]++;
    for (uint32_t u = 2; u < f->units.n + 2; u++)
        start[u] += start[u - 1];
    for (uint32_t i = 0; i < f->visits.n; i++)
        at[start[f->visits.at[i].unit + 1]++] = f->visits.at[i].node;
    for (uint32_t u = 0; u < f->units.n; u++) {
        Nodes nodes = {at + start[u], 0};
        uint32_t n = start[u + 1] - start[u];
        Unit *unit = &f->units.at[u];
        if (unit->steps.n != 1 || !unit->steps.at[0].kernel || !n)
            continue;
        qsort(nodes.at, n, sizeof *nodes.at, by_number);
        for (uint32_t i = 0; i < n; i++)
            if (!i || nodes.at[i] != nodes.at[i - 1])
                nodes.at[nodes.n++] = nodes.at[i];
        const char *name = name_of(f, unit->steps.at[0].kernel, nodes, here);
        if (name)
            unit->steps.at[0].what = name;
    }
}
