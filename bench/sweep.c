/*
 * Single ops on 2^20 elements: those that move, fold or sort elements along an axis, in five shapes, along each axis, in seven dtypes, and casts
 * between all of them and bool.
 *
 *     sweep [--only TEXT] [--below SHARE]     ns, GB/s and share of copy of each row (its name has TEXT in it); --below: only slower rows
 *
 * Bytes are those of the inputs that matter and of the result, once each; a share is the time of a copy that moves as many bytes over the time
 * of the call, both in turns. KILN_CPU=x86-64-v3 has it with 256 bits. bench/sweep.py loads the same rows as a module and runs them beside
 * PyTorch's.
 */
#include "bench/timing.h"

#include <kiln.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef SWEEP_MODULE
#define EXPORT __attribute__((visibility("default")))
#else
#define EXPORT static
#endif

enum { ELEMENTS = 1 << 20, MOST_ROWS = 2048, PIECES = 3 };

typedef struct Op Op;
typedef struct Sweep {
    const Op *op;
    int axis;
    kiln_dtype dtype, to; /* to: of a cast */
    kiln_shape shape;
    char name[80];
    kiln_tensor *x[PIECES], *index;
} Sweep;

struct Op {
    const char *name;
    kiln_tensor *(*make)(const Sweep *s);
    int inputs;
    bool no_axis, floats, more_axes; /* one row a shape; floats only; not for the last axis */
};

static kiln_tensor *make_concat(const Sweep *s) { return kiln_concat(s->x, PIECES, s->axis); }
static kiln_tensor *make_stack(const Sweep *s) { return kiln_stack(s->x, PIECES, s->axis); }
static kiln_tensor *make_roll(const Sweep *s) { return kiln_roll(s->x[0], 1, s->axis); }
static kiln_tensor *make_flip(const Sweep *s) { return kiln_flip(s->x[0], KILN_AXES(s->axis)); }
static kiln_tensor *make_take(const Sweep *s) { return kiln_take(s->x[0], s->index, s->axis); }
static kiln_tensor *make_sum(const Sweep *s) { return kiln_sum_axes(s->x[0], KILN_AXES(s->axis), false); }
static kiln_tensor *make_max(const Sweep *s) { return kiln_max_axes(s->x[0], KILN_AXES(s->axis), false); }
static kiln_tensor *make_argmax(const Sweep *s) { return kiln_argmax_axis(s->x[0], s->axis, false); }
static kiln_tensor *make_cumsum(const Sweep *s) { return kiln_cumsum(s->x[0], s->axis); }
static kiln_tensor *make_softmax(const Sweep *s) { return kiln_softmax(s->x[0], s->axis); }
static kiln_tensor *make_sort(const Sweep *s) { return kiln_sort(s->x[0], s->axis, false); }
static kiln_tensor *make_cast(const Sweep *s) { return kiln_cast(s->x[0], s->to); }

/* The axis changes places with the next one; a view by itself, so it is computed with. */
static kiln_tensor *make_transpose(const Sweep *s)
{
    kiln_axes order = {s->shape.rank, {0, 1, 2, 3, 4, 5, 6, 7}};
    order.axis[s->axis] = s->axis + 1;
    order.axis[s->axis + 1] = s->axis;
    return kiln_maximum(kiln_permute(s->x[0], order), kiln_zeros(s->dtype, KILN_SHAPE()));
}

static const Op ops[] = {
    {"concat", make_concat, PIECES, .no_axis = false},
    {"stack", make_stack, PIECES, .no_axis = false},
    {"roll", make_roll, 1, .no_axis = false},
    {"flip", make_flip, 1, .no_axis = false},
    {"take", make_take, 1, .no_axis = false},
    {"sum", make_sum, 1, .no_axis = false},
    {"max", make_max, 1, .no_axis = false},
    {"argmax", make_argmax, 1, .no_axis = false},
    {"cumsum", make_cumsum, 1, .no_axis = false},
    {"softmax", make_softmax, 1, .floats = true},
    {"sort", make_sort, 1, .no_axis = false},
    {"transpose", make_transpose, 1, .more_axes = true},
    {"cast", make_cast, 1, .no_axis = true},
};

static const kiln_shape shapes[] = {
    {2, {1024, 1024}}, {2, {1 << 18, 4}}, {2, {4, 1 << 18}}, {3, {64, 128, 128}}, {4, {32, 32, 32, 32}},
};

static const struct {
    kiln_dtype dtype;
    const char *name;
    bool is_float;
} dtypes[] = {
    {KILN_F32, "f32", true},  {KILN_F64, "f64", true},  {KILN_BF16, "bf16", true}, {KILN_F16, "f16", true},
    {KILN_I32, "i32", false}, {KILN_I64, "i64", false}, {KILN_U8, "u8", false},    {KILN_BOOL, "bool", false}, /* bool: casts only */
};
enum { OPS = sizeof ops / sizeof *ops, SHAPES = sizeof shapes / sizeof *shapes, DTYPES = sizeof dtypes / sizeof *dtypes };

static Sweep rows[MOST_ROWS];
static int n_rows;

static void add(const Op *op, const kiln_shape *shape, int axis, int d, int to)
{
    Sweep *s = &rows[n_rows++];
    *s = (Sweep){.op = op, .axis = axis, .dtype = dtypes[d].dtype, .to = dtypes[to].dtype, .shape = *shape};
    size_t at = (size_t)snprintf(s->name, sizeof s->name, "%s ", op->name);
    for (int i = 0; i < shape->rank; i++)
        at += (size_t)snprintf(s->name + at, sizeof s->name - at, "%s%lld", i ? "x" : "", (long long)shape->dim[i]);
    if (op->no_axis)
        snprintf(s->name + at, sizeof s->name - at, " %s %s", dtypes[d].name, dtypes[to].name);
    else
        snprintf(s->name + at, sizeof s->name - at, " %d %s", axis, dtypes[d].name);
}

EXPORT int sweep_rows(void)
{
    if (n_rows)
        return n_rows;
    for (int o = 0; o < OPS; o++)
        for (int d = 0; d < DTYPES; d++)
            for (int k = 0; k < (ops[o].no_axis ? DTYPES : SHAPES); k++)
                for (int axis = 0; axis < (ops[o].no_axis ? k != d : shapes[k].rank - ops[o].more_axes); axis++) {
                    if (ops[o].no_axis)
                        add(&ops[o], &shapes[0], 0, d, k);
                    else if (dtypes[d].is_float || (!ops[o].floats && dtypes[d].dtype != KILN_BOOL))
                        add(&ops[o], &shapes[k], axis, d, d);
                }
    return n_rows;
}

EXPORT const char *sweep_name(int row) { return rows[row].name; }

/* The inputs of a row, small whole numbers, which all dtypes have. */
EXPORT Sweep *sweep_open(int row)
{
    Sweep *s = &rows[row];
    kiln_scope *scope = kiln_scope_begin();
    for (int i = 0; i < s->op->inputs; i++) {
        kiln_tensor *x = kiln_cast(
            kiln_reshape(kiln_remainder(kiln_arange(KILN_I64, 0, ELEMENTS, 1), kiln_full(KILN_I64, KILN_SHAPE(), 101 + i)), s->shape),
            s->dtype);
        kiln_check(kiln_eval(x));
        s->x[i] = kiln_keep(x);
    }
    int64_t n = s->shape.dim[s->axis];
    kiln_tensor *index = kiln_remainder(kiln_mul(kiln_arange(KILN_I64, 0, (double)n, 1), kiln_full(KILN_I64, KILN_SHAPE(), 7919)),
                                        kiln_full(KILN_I64, KILN_SHAPE(), (double)n));
    kiln_check(kiln_eval(index));
    s->index = kiln_keep(index);
    kiln_scope_end(scope);
    return s;
}

EXPORT void sweep_close(Sweep *s)
{
    for (int i = 0; i < s->op->inputs; i++)
        kiln_release(s->x[i]);
    kiln_release(s->index);
}

/* One call; the result's elements to `data` where that is not NULL. Bytes that it must read and write. */
EXPORT int64_t sweep_run(Sweep *s, void *data)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *y = s->op->make(s);
    kiln_check(kiln_eval(y));
    int64_t size = (int64_t)kiln_dtype_size(kiln_dtype_of(y)), bytes = kiln_numel(y) * size;
    if (data)
        kiln_check(kiln_read(y, kiln_dtype_of(y), data, (size_t)bytes));
    kiln_scope_end(scope);
    return bytes + (int64_t)ELEMENTS * s->op->inputs * (int64_t)kiln_dtype_size(s->dtype);
}

#ifndef SWEEP_MODULE
static char *from, *to;

static void copy_part(void *bytes_, int part, int parts)
{
    size_t bytes = *(size_t *)bytes_, begin = bytes * (size_t)part / (size_t)parts, end = bytes * ((size_t)part + 1) / (size_t)parts;
    memcpy(to + begin, from + begin, end - begin);
}

static double calls(Sweep *s, size_t copied, int n)
{
    double start = now_seconds();
    for (int i = 0; i < n; i++) {
        if (s)
            sweep_run(s, NULL);
        else
            run_parts(cpu_count(), copy_part, &copied);
    }
    double seconds = (now_seconds() - start) / n;
    if (!s)
        stop_parts();
    return seconds;
}

int main(int argc, char **argv)
{
    enum { ROUNDS = 7, CALLS = 10 };
    const char *only = "";
    double below = 1e9, took[ROUNDS], share[ROUNDS];
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 < argc && !strcmp(argv[i], "--only")) {
            only = argv[i + 1];
        } else if (i + 1 < argc && !strcmp(argv[i], "--below")) {
            below = atof(argv[i + 1]);
        } else {
            fputs("usage: sweep [--only TEXT] [--below SHARE]\n", stderr);
            return 2;
        }
    }
    setenv("KILN_DYNAMIC", "never", 0); /* each row is a program of its own, as in a process that runs it alone */
    size_t most = 4 * sizeof(double) * ELEMENTS * PIECES;
    from = (char *)new_floats(most / sizeof(float), 0, 1);
    to = (char *)new_floats(most / sizeof(float), 0, 1);
    for (int r = 0; r < sweep_rows(); r++) {
        if (!strstr(sweep_name(r), only))
            continue;
        Sweep *s = sweep_open(r);
        int64_t bytes = sweep_run(s, NULL);
        calls(s, 0, 3);
        for (int i = 0; i < ROUNDS; i++) {
            took[i] = calls(s, 0, CALLS);
            share[i] = calls(NULL, (size_t)bytes / 2, CALLS) / took[i];
        }
        sweep_close(s);
        if (median(share, ROUNDS) < below)
            printf("%-36s %10.0f ns %7.1f GB/s  %.2f of copy\n", sweep_name(r), 1e9 * median(took, ROUNDS),
                   1e-9 * (double)bytes / median(took, ROUNDS), median(share, ROUNDS));
    }
    free(from);
    free(to);
    return 0;
}
#endif
