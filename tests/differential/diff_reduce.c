/* Every reduction on every dtype, over many sets of axes, with and without kept dims, on ordinary and special values. */
#include "tests/differential/engine.h"

#include <stddef.h>

typedef kiln_tensor *Over(kiln_tensor *, kiln_axes, bool);
typedef kiln_tensor *OverCorrected(kiln_tensor *, kiln_axes, double, bool);
typedef kiln_tensor *Along(kiln_tensor *, int, bool);
typedef kiln_tensor *Whole(kiln_tensor *);
typedef kiln_tensor *WholeCorrected(kiln_tensor *, double);

/* One of the first three, and the form without axes. */
typedef struct ReduceRow {
    Over *over;
    OverCorrected *corrected;
    Along *along;
    Whole *whole;
    WholeCorrected *whole_corrected;
    int takes;
    kiln_status of_nothing; /* KILN_OK: has a value there */
} ReduceRow;

static const kiln_shape shapes[] = {{3, {7, 13, 5}}, {2, {257, 129}}, {1, {100003}}, {0, {0}},        {1, {0}},        {3, {4, 0, 2}},
                                    {2, {1, 1}},     {3, {5, 1, 3}},  {1, {64}},     {2, {3, 20000}}, {2, {20000, 3}}, {4, {3, 4, 5, 6}},
                                    {1, {16385}},    {2, {1, 33000}}, {1, {65}},     {2, {130, 64}}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* Sets of axes as bits; those that the rank does not have are skipped. WHOLE: the form without axes. */
enum { WHOLE = 0x100 };
static const int axis_sets[] = {WHOLE, 1, 2, 4, 3, 5, 6, 7, 0, 8, 10, 15};
enum { AXIS_SETS = sizeof axis_sets / sizeof *axis_sets };

/* arg: the set of axes, keepdims, correction. */
static int build(const Case *c, kiln_tensor *const *in, kiln_tensor **out)
{
    const ReduceRow *row = c->row;
    double correction = (double)c->arg[2];
    bool keep = c->arg[1] != 0;
    kiln_axes axes = KILN_AXES();
    for (int i = 0; i < KILN_MAX_RANK; i++)
        if (c->arg[0] >> i & 1)
            axes.axis[axes.n++] = i % 2 ? i - kiln_rank(in[0]) : i; /* odd ones counted from the end */
    if (c->arg[0] == WHOLE)
        out[0] = row->whole ? row->whole(in[0]) : row->whole_corrected(in[0], correction);
    else if (row->over)
        out[0] = row->over(in[0], axes, keep);
    else if (row->corrected)
        out[0] = row->corrected(in[0], axes, correction, keep);
    else
        out[0] = row->along(in[0], axes.axis[0], keep);
    return 1;
}

/* Does the set name axes that `shape` has, and, for arg-reductions, exactly one? */
static bool applies(const ReduceRow *row, int set, int rank)
{
    if (set == WHOLE)
        return true;
    int n = 0;
    for (int i = 0; i < KILN_MAX_RANK; i++)
        n += set >> i & 1;
    return set >> rank == 0 && (!row->along || n == 1);
}

static bool reduces_nothing(int set, kiln_shape shape)
{
    for (int i = 0; i < shape.rank; i++)
        if ((set == WHOLE || set >> i & 1) && shape.dim[i] == 0)
            return true;
    return false;
}

/* The elements that are reduced to one. */
static int64_t reduced_elements(int set, kiln_shape shape)
{
    int64_t n = 1;
    for (int i = 0; i < shape.rank; i++)
        n *= set == WHOLE || set >> i & 1 ? shape.dim[i] : 1;
    return n;
}

static void group(const Group *g)
{
    static const Values kinds[] = {VALUES_PLAIN, VALUES_WIDE, VALUES_SPARSE, VALUES_TIES, VALUES_MIX};
    const ReduceRow *row = g->row;
    int64_t number = 0;
    for (int dtype = 0; dtype < DTYPES; dtype++) {
        bool taken = row->takes >> dtype & 1;
        for (int s = 0; s < (taken ? SHAPES : 1); s++)
            for (int a = 0; a < AXIS_SETS; a++) {
                if (!applies(row, axis_sets[a], shapes[s].rank) || (!taken && a))
                    continue;
                number++;
                Case c = {.op = g->name, .build = build, .row = row, .n_in = 1};
                c.arg[0] = axis_sets[a];
                c.arg[1] = number % 2;
                c.arg[2] = number % 3 == 0;
                c.choices[2] = row->corrected ? 3 : 0;
                c.in[0] = (Spec){(kiln_dtype)dtype, shapes[s], kinds[number % 5], 0};
                c.flags = reduced_elements(axis_sets[a], shapes[s]) <= 1 ? MAY_BE_FREE : FREE_WHEN_REPEATING;
                c.refused = taken ? KILN_OK : KILN_BAD_DTYPE;
                if (taken && reduces_nothing(axis_sets[a], shapes[s]))
                    c.refused = row->of_nothing;
                check(&c);
            }
    }
}

#define OVER(name, takes, nothing)                                                                             \
    {                                                                                                          \
#name, group, &(const ReduceRow) { kiln_##name##_axes, NULL, NULL, kiln_##name, NULL, takes, nothing } \
    }
#define CORRECTED(name)                                                                                        \
    {                                                                                                          \
#name, group, &(const ReduceRow) { NULL, kiln_##name##_axes, NULL, NULL, kiln_##name, D_ALL, KILN_OK } \
    }
#define ALONG(name)                                                                                                   \
    {                                                                                                                 \
#name, group, &(const ReduceRow) { NULL, NULL, kiln_##name##_axis, kiln_##name, NULL, D_ALL, KILN_BAD_SHAPE } \
    }

static const Group groups[] = {
    OVER(sum, D_ALL, KILN_OK),
    OVER(prod, D_ALL, KILN_OK),
    OVER(max, D_ALL, KILN_BAD_SHAPE),
    OVER(min, D_ALL, KILN_BAD_SHAPE),
    OVER(any, D_ALL, KILN_OK),
    OVER(all, D_ALL, KILN_OK),
    OVER(mean, D_ALL, KILN_OK),
    OVER(logsumexp, D_ALL, KILN_OK),
    CORRECTED(var),
    CORRECTED(std),
    ALONG(argmax),
    ALONG(argmin),
};

int main(int argc, char **argv) { return run_groups("diff_reduce", groups, sizeof groups / sizeof *groups, argc, argv); }
