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

/* Records op(a, b), promoted and broadcast. */
static kiln_tensor *binary(Rec r, Op op, Prep prep, kiln_tensor *a, kiln_tensor *b, const char *const *names)
{
    RtNode *in[2] = {rec_in(&r, a, names[0]), rec_in(&r, b, names[1])};
    if (!in[0] || !in[1] || !rec_promote(&r, prep, 2, in, names))
        return rec_end(&r, NULL);
    return rec_end(&r, rec_broadcast(&r, 2, in, names) ? rec_ew2(&r, op, in[0], in[1]) : NULL);
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
        in[k] = rec_cast(&r, in[k], node_dtype(in[0]));
    if (!rec_broadcast(&r, 3, in, names))
        return rec_end(&r, NULL);
    return rec_end(&r, rec_ew2(&r, OP_MINIMUM, rec_ew2(&r, OP_MAXIMUM, in[0], in[1]), in[2]));
}
