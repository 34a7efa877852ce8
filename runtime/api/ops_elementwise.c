/* The elementwise functions: a generic body for each arity, a row of elementwise.def for each one. */
#include "runtime/record/record.h"

#include <math.h>

/* Records op(x). */
static kiln_tensor *unary(Rec r, Op op, Prep prep, kiln_tensor *x)
{
    static const char *const names[] = {"x"};
    RtNode *in = rec_in(&r, x, "x");
    if (!rec_promote(&r, prep, 1, &in, names))
        return rec_end(&r, NULL);
    return rec_end(&r, rec_ew1(&r, op, in));
}

/* What an op of numbers is of bools; OP_INPUT, which no row is: itself. */
static Op of_bools(Op op)
{
    static const Op twin[OP_COUNT] = {[OP_ADD] = OP_OR, [OP_MUL] = OP_AND, [OP_MAXIMUM] = OP_OR, [OP_MINIMUM] = OP_AND};
    return twin[op] ? twin[op] : op;
}

/* ---- comparing ints with a weak int, of any size ---- */

static bool is_int_beside(const RtNode *v, const RtNode *x)
{
    return v->weak && dtype_is_int(node_dtype(v)) && !x->weak && dtype_is_int(node_dtype(x)) && node_dtype(x) != DT_I64;
}

static bool is_literal(const RtNode *x) { return x->weak && x->op == OP_SCALAR; }

static bool int_fits(int64_t value, DType t)
{
    return scalar_to_int(t, scalar_from_int(t, value)) == value && (value >= 0 || dtype_is_signed(t));
}

/* Is `x op v` true where v is above, or below, all that x can be? */
static bool holds_beyond(Op op, bool above)
{
    switch (op) {
    case OP_LT:
    case OP_LE: return above;
    case OP_GT:
    case OP_GE: return !above;
    default: return op == OP_NE;
    }
}

/*
 * x op v as the numbers compare, though v need not fit x's dtype. A literal that does not is decided here: x is compared with the
 * least number there is, which all or none of its elements pass. An expression is known only later: then in i64, where all
 * but u64 fit; with u64 what is negative is below everything.
 */
static RtNode *compare_int(Rec *r, Op op, RtNode *x, RtNode *v)
{
    DType t = node_dtype(x);
    if (is_literal(v)) {
        int64_t value = scalar_to_int(DT_I64, v->scalar);
        if (int_fits(value, t))
            return rec_ew2(r, op, x, rec_int(r, t, value));
        return rec_ew2(r, holds_beyond(op, value > 0) ? OP_GE : OP_LT, x, rec_bits(r, t, fold_start(FOLD_MAX, t)));
    }
    v = rec_strong(r, v);
    if (t != DT_U64)
        return rec_ew2(r, op, rec_cast(r, x, DT_I64), v);
    RtNode *negative = rec_ew2(r, OP_LT, v, rec_int(r, DT_I64, 0)), *y = rec_ew2(r, op, x, rec_cast(r, v, t));
    return holds_beyond(op, false) ? rec_ew2(r, OP_OR, y, negative) : rec_ew2(r, OP_AND, y, rec_ew1(r, OP_NOT, negative));
}

static Op mirrored(Op op) { return op == OP_LT ? OP_GT : op == OP_LE ? OP_GE : op == OP_GT ? OP_LT : op == OP_GE ? OP_LE : op; }

/* Records op(a, b), promoted and broadcast. */
static kiln_tensor *binary(Rec r, Op op, Prep prep, kiln_tensor *a, kiln_tensor *b, const char *const *names)
{
    RtNode *in[2] = {rec_in(&r, a, names[0]), rec_in(&r, b, names[1])};
    if (!in[0] || !in[1])
        return rec_end(&r, NULL);
    if (op_info[op].rule == RULE_CMP && is_int_beside(in[1], in[0]))
        return rec_end(&r, compare_int(&r, op, in[0], in[1]));
    if (op_info[op].rule == RULE_CMP && is_int_beside(in[0], in[1]))
        return rec_end(&r, compare_int(&r, mirrored(op), in[1], in[0]));
    if (!rec_promote(&r, prep, 2, in, names) || !rec_broadcast(&r, 2, in, names))
        return rec_end(&r, NULL);
    return rec_end(&r, rec_ew2(&r, node_dtype(in[0]) == DT_BOOL ? of_bools(op) : op, in[0], in[1]));
}

#define UNARY(name, op, prep) \
    API1(kiln_tensor *, name, kiln_tensor *, x) { return unary(REC(name), OP_##op, PREP_##prep, x); }
#define BINARY(name, op, prep, an, bn)                                                       \
    API2(kiln_tensor *, name, kiln_tensor *, a, kiln_tensor *, b)                            \
    {                                                                                        \
        return binary(REC(name), OP_##op, PREP_##prep, a, b, (const char *const[]){an, bn}); \
    }
#include "runtime/api/elementwise.def"
#undef UNARY
#undef BINARY

API1(kiln_tensor *, kiln_positive, kiln_tensor *, x)
{
    static const char *const names[] = {"x"};
    Rec r = REC(kiln_positive);
    RtNode *in = rec_in(&r, x, "x");
    return rec_end(&r, rec_promote(&r, PREP_NUM, 1, &in, names) ? in : NULL);
}

API2(kiln_tensor *, kiln_cast, kiln_tensor *, x, kiln_dtype, dtype)
{
    Rec r = REC(kiln_cast);
    RtNode *in = rec_in(&r, x, "x");
    if (in && (unsigned)dtype >= DT_COUNT)
        return rec_end(&r, rec_fail(&r, ST_INVALID, "dtype %d does not exist", (int)dtype));
    return rec_end(&r, rec_cast(&r, in, (DType)dtype));
}

API3(kiln_tensor *, kiln_where, kiln_tensor *, condition, kiln_tensor *, a, kiln_tensor *, b)
{
    static const char *const names[] = {"condition", "a", "b"};
    Rec r = REC(kiln_where);
    RtNode *in[3] = {rec_in(&r, condition, names[0]), rec_in(&r, a, names[1]), rec_in(&r, b, names[2])};
    if (!in[0] || !in[1] || !in[2])
        return rec_end(&r, NULL);
    if (!rec_promote(&r, PREP_TRUTH, 1, in, names) || !rec_promote(&r, PREP_ANY, 2, in + 1, names + 1))
        return rec_end(&r, NULL);
    if (!in[0]->weak) { /* two weak values chosen by a tensor become an array */
        in[1] = rec_strong(&r, in[1]);
        in[2] = rec_strong(&r, in[2]);
    }
    if (!rec_broadcast(&r, 3, in, names))
        return rec_end(&r, NULL);
    return rec_end(&r, rec_ew3(&r, OP_WHERE, in[0], in[1], in[2]));
}

/* A bound in dtype t: beyond what t holds it is t's end, and bounds nothing. */
static RtNode *saturated(Rec *r, RtNode *v, DType t)
{
    DType s = v ? node_dtype(v) : t;
    if (!v || s == t || !dtype_is_int(s) || !dtype_is_int(t))
        return rec_cast(r, v, t); /* of floats a cast saturates */
    unsigned of_t = 8 * (unsigned)dtype_bytes(t) - dtype_is_signed(t), of_s = 8 * (unsigned)dtype_bytes(s) - dtype_is_signed(s);
    int64_t most = of_t < 63 ? (INT64_C(1) << of_t) - 1 : INT64_MAX, least = dtype_is_signed(t) ? -most - 1 : 0;
    if (is_literal(v)) {
        int64_t value = scalar_to_int(s, v->scalar);
        return rec_int(r, t, value < least ? least : value > most ? most : value);
    }
    v = rec_strong(r, v);
    if (dtype_is_signed(s) && (!dtype_is_signed(t) || of_t < of_s))
        v = rec_ew2(r, OP_MAXIMUM, v, rec_int(r, s, least));
    if (of_t < of_s)
        v = rec_ew2(r, OP_MINIMUM, v, rec_int(r, s, most));
    return rec_cast(r, v, t);
}

API3(kiln_tensor *, kiln_clamp, kiln_tensor *, x, kiln_tensor *, low, kiln_tensor *, high)
{
    static const char *const names[] = {"x", "low", "high"};
    Rec r = REC(kiln_clamp);
    RtNode *in[3] = {rec_in(&r, x, names[0]), rec_in(&r, low, names[1]), rec_in(&r, high, names[2])};
    if (!in[0] || !in[1] || !in[2])
        return rec_end(&r, NULL);
    if (in[0]->weak ? !rec_promote(&r, PREP_NUM, 3, in, names) : !rec_promote(&r, PREP_NUM, 1, in, names))
        return rec_end(&r, NULL);
    for (int k = 1; k < 3 && !in[0]->weak; k++)
        in[k] = saturated(&r, in[k], node_dtype(in[0]));
    if (!rec_broadcast(&r, 3, in, names))
        return rec_end(&r, NULL);
    return rec_end(&r, rec_ew2(&r, OP_MINIMUM, rec_ew2(&r, OP_MAXIMUM, in[0], in[1]), in[2]));
}
