/*
 * For the tests of fusion: runs a Plan on host memory, plainly. One x point after another; each
 * instruction for all r points at once, in the order of the list. It knows nothing of stages, lanes
 * or tasks, and needs no LLVM: what a kernel means is written down here once more (scalar ops by
 * tape_run, the orders of ir/orders.def).
 */
#ifndef TESTS_UNIT_FUSE_RUN_H
#define TESTS_UNIT_FUSE_RUN_H

#include "ir/interp.h"
#include "ir/fold.h"
#include "jit/plan.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char fuse_case[64]; /* for messages: what is being run */

typedef struct FuseRun {
    const Kernel *k;
    void **args;            /* pointers; sizes and scalar bits in the pointer itself */
    const size_t *extent;   /* elements of each buffer argument */
    int64_t coord[32], n_r; /* n_r: r points */
    int64_t *r_coord;       /* [point][axis] */
    char **value;           /* per instruction: one element, or one per r point */
    InstInfo *info;
    MathMode math;
} FuseRun;

static void fuse_apply(MathMode math, Op op, const DType *types, DType out_type, size_t n, const void *const *in, void *out)
{
    const Tape *tape = tape_get(op, types, out_type, math);
    cr_assert_not_null(tape, "no tape for %s", op_name(op));
    cr_assert(tape_run(tape, types, out_type, n, in, out));
}

static int64_t fuse_index(const FuseRun *f, IRef i, int64_t p)
{
    const Idx *x = &f->k->idx.at[i];
    int64_t a, b;
    switch ((IdxKind)x->kind) {
    case IX_CONST: return x->value;
    case IX_ARG: return (int64_t)(intptr_t)f->args[x->a];
    case IX_AXIS: return f->k->axes.at[x->a].kind == AXIS_X ? f->coord[x->a] : f->r_coord[p * 32 + x->a];
    case IX_VALUE: memcpy(&a, f->value[x->a] + 8 * (f->info[x->a].r_level ? p : 0), 8); return a;
    case IX_ADD: return (int64_t)((uint64_t)fuse_index(f, x->a, p) + (uint64_t)fuse_index(f, x->b, p));
    case IX_MUL: return (int64_t)((uint64_t)fuse_index(f, x->a, p) * (uint64_t)fuse_index(f, x->b, p));
    case IX_DIV:
    case IX_MOD:
        a = fuse_index(f, x->a, p);
        b = fuse_index(f, x->b, p);
        if (b <= 0)
            return 0;
        return x->kind == IX_DIV ? (a - ((a % b) + b) % b) / b : ((a % b) + b) % b;
    }
    return 0;
}

static size_t fuse_bytes(const FuseRun *f, VRef v) { return dtype_bytes((DType)f->k->inst.at[v].dtype); }

/* Value v at each of n points (one value repeated where it is not r-level). Freed by the caller. */
static char *fuse_spread(const FuseRun *f, VRef v, int64_t n)
{
    size_t bytes = fuse_bytes(f, v);
    char *out = malloc(bytes * (size_t)n + 16);
    for (int64_t p = 0; p < n; p++)
        memcpy(out + (size_t)p * bytes, f->value[v] + (f->info[v].r_level ? (size_t)p * bytes : 0), bytes);
    return out;
}

static bool fuse_holds(const FuseRun *f, VRef pred, int64_t p)
{
    return pred == VREF_NONE || f->value[pred][f->info[pred].r_level ? p : 0];
}

/* acc = step(acc, x) in dtype t, all as bits in 8 bytes. */
static void fuse_step(const FuseRun *f, Op op, DType t, void *acc, const void *x)
{
    uint64_t out = 0;
    fuse_apply(f->math, op, (DType[]){t, t}, t, 1, (const void *const[]){acc, x}, &out);
    memcpy(acc, &out, dtype_bytes(t));
}

static char *fuse_cast(const FuseRun *f, const char *in, DType from, DType to, int64_t n)
{
    char *out = malloc(dtype_bytes(to) * (size_t)n + 16);
    if (from == to)
        memcpy(out, in, dtype_bytes(to) * (size_t)n);
    else if (n)
        fuse_apply(f->math, OP_CAST, (DType[]){from}, to, (size_t)n, (const void *const[]){in}, out);
    return out;
}

static void fuse_argmax(const FuseRun *f, const KInst *inst, const char *row, int64_t n, char *out)
{
    DType t = (DType)f->k->inst.at[inst->a].dtype;
    size_t bytes = dtype_bytes(t);
    int64_t best = 0;
    for (int64_t p = 1; p < n; p++) {
        uint8_t better = 0, nan_best = 0, nan_p = 0;
        const void *pair[] = {row + (size_t)p * bytes, row + (size_t)best * bytes};
        if (dtype_is_float(t)) {
            fuse_apply(f->math, OP_ISNAN, &t, DT_BOOL, 1, &pair[0], &nan_p);
            fuse_apply(f->math, OP_ISNAN, &t, DT_BOOL, 1, &pair[1], &nan_best);
        }
        fuse_apply(f->math, inst->op == FOLD_ARGMAX ? OP_GT : OP_LT, (DType[]){t, t}, DT_BOOL, 1, pair, &better);
        if (!nan_best && (nan_p || better))
            best = p;
    }
    memcpy(out, &best, 8);
}

/* The order of ir/orders.def. */
static void fuse_reduce(const FuseRun *f, const KInst *inst, char *out)
{
    DType in = (DType)f->k->inst.at[inst->a].dtype, t = (DType)inst->dtype, acc = dtype_accumulator(t);
    int64_t n = f->n_r;
    char *row = fuse_spread(f, inst->a, n);
    if (inst_has_place(inst)) {
        fuse_argmax(f, inst, row, n, out);
        free(row);
        return;
    }
    char *wide = fuse_cast(f, row, in, acc, n);
    Fold fold = (Fold)inst->op;
    Op step = (Op)fold_info[fold].step;
    size_t bytes = dtype_bytes(acc);
    int lanes = inst->order.kind == ORD_LANES ? inst->order.lanes : 1;
    int64_t size = inst->order.kind == ORD_LANES ? inst->order.block : n;
    uint64_t start = fold_start(fold, acc), total = start, lane[64];
    for (int64_t block = 0; block < n; block += size) {
        for (int j = 0; j < lanes; j++)
            lane[j] = start;
        for (int64_t i = block; i < n && i < block + size; i++)
            fuse_step(f, step, acc, &lane[(i - block) % lanes], wide + (size_t)i * bytes);
        for (int s = lanes / 2; s; s /= 2)
            for (int j = 0; j < s; j++)
                fuse_step(f, step, acc, &lane[j], &lane[j + s]);
        if (block)
            fuse_step(f, step, acc, &total, &lane[0]);
        else
            total = lane[0];
    }
    if (!n && fold == FOLD_SUM)
        total = 0;
    char *narrow = fuse_cast(f, (const char *)&total, acc, t, 1);
    memcpy(out, narrow, dtype_bytes(t));
    free(narrow);
    free(wide);
    free(row);
}

static void fuse_scan(const FuseRun *f, const KInst *inst, char *out)
{
    DType t = (DType)inst->dtype, acc = dtype_accumulator(t);
    char *row = fuse_spread(f, inst->a, f->n_r), *wide = fuse_cast(f, row, t, acc, f->n_r);
    size_t bytes = dtype_bytes(acc);
    for (int64_t p = 1; p < f->n_r; p++) {
        uint64_t sum = 0;
        memcpy(&sum, wide + (size_t)(p - 1) * bytes, bytes);
        fuse_step(f, OP_ADD, acc, &sum, wide + (size_t)p * bytes);
        memcpy(wide + (size_t)p * bytes, &sum, bytes);
    }
    char *narrow = fuse_cast(f, wide, acc, t, f->n_r);
    memcpy(out, narrow, dtype_bytes(t) * (size_t)f->n_r);
    free(narrow);
    free(wide);
    free(row);
}

static void fuse_matmul(const FuseRun *f, const KInst *inst, char *out)
{
    DType t = (DType)inst->dtype, acc = dtype_accumulator(t);
    char *rows[2], *wide[2];
    uint64_t sum = 0, total = 0;
    int64_t size = inst->order.block ? inst->order.block : INT64_MAX;
    for (int i = 0; i < 2; i++) {
        VRef v = i ? inst->b : inst->a;
        rows[i] = fuse_spread(f, v, f->n_r);
        wide[i] = fuse_cast(f, rows[i], (DType)f->k->inst.at[v].dtype, acc, f->n_r);
    }
    size_t bytes = dtype_bytes(acc);
    for (int64_t p = 0; p < f->n_r; p++) {
        const char *a = wide[0] + (size_t)p * bytes, *b = wide[1] + (size_t)p * bytes;
        if (p % size == 0) {
            total = sum;
            sum = 0;
        }
        if (acc == DT_F32) {
            float x, y, s;
            memcpy(&x, a, 4), memcpy(&y, b, 4), memcpy(&s, &sum, 4);
            s = fmaf(x, y, s);
            memcpy(&sum, &s, 4);
        } else if (acc == DT_F64) {
            double x, y, s;
            memcpy(&x, a, 8), memcpy(&y, b, 8), memcpy(&s, &sum, 8);
            s = fma(x, y, s);
            memcpy(&sum, &s, 8);
        } else {
            uint64_t product = 0;
            fuse_apply(f->math, OP_MUL, (DType[]){acc, acc}, acc, 1, (const void *const[]){a, b}, &product);
            fuse_step(f, OP_ADD, acc, &sum, &product);
        }
        if (p >= size && (p % size == size - 1 || p + 1 == f->n_r)) { /* blocks are added in order */
            fuse_step(f, OP_ADD, acc, &total, &sum);
            sum = total;
        }
    }
    char *narrow = fuse_cast(f, (const char *)&sum, acc, t, 1);
    memcpy(out, narrow, dtype_bytes(t));
    free(narrow);
    for (int i = 0; i < 2; i++) {
        free(rows[i]);
        free(wide[i]);
    }
}

static void fuse_scatter(const FuseRun *f, const KInst *inst, int64_t p)
{
    static const Op step[] = {[SCATTER_ADD] = OP_ADD, [SCATTER_MAX] = OP_MAXIMUM, [SCATTER_MIN] = OP_MINIMUM};
    DType t = (DType)inst->dtype;
    int64_t at = fuse_index(f, inst->idx, p);
    cr_assert(at >= 0 && (size_t)at < f->extent[inst->arg], "scatter out of bounds");
    char *cell = (char *)f->args[inst->arg] + (size_t)at * dtype_bytes(t);
    const char *x = f->value[inst->a] + (f->info[inst->a].r_level ? (size_t)p * dtype_bytes(t) : 0);
    if (inst->mode == SCATTER_SET)
        memcpy(cell, x, dtype_bytes(t));
    else
        fuse_step(f, step[inst->mode], t, cell, x);
}

static void fuse_memory(const FuseRun *f, VRef v, int64_t n)
{
    const KInst *inst = &f->k->inst.at[v];
    size_t bytes = fuse_bytes(f, v);
    for (int64_t p = 0; p < n; p++) {
        if (inst->kind == KI_SCATTER) {
            fuse_scatter(f, inst, p);
            continue;
        }
        if (!fuse_holds(f, inst->pred, p)) {
            if (inst->kind == KI_LOAD)
                memset(f->value[v] + (size_t)p * bytes, 0, bytes);
            continue;
        }
        int64_t at = fuse_index(f, inst->idx, p);
        cr_assert(at >= 0 && (size_t)at < f->extent[inst->arg], "%s: v%u: index %lld of %zu", fuse_case, v, (long long)at,
                  f->extent[inst->arg]);
        char *cell = (char *)f->args[inst->arg] + (size_t)at * bytes;
        if (inst->kind == KI_LOAD)
            memcpy(f->value[v] + (size_t)p * bytes, cell, bytes);
        else
            memcpy(cell, f->value[inst->a] + (f->info[inst->a].r_level ? (size_t)p * bytes : 0), bytes);
    }
}

static void fuse_bound(const FuseRun *f, VRef v, int64_t n)
{
    const KInst *inst = &f->k->inst.at[v];
    for (int64_t p = 0; p < n; p++) {
        int64_t i, size = fuse_index(f, inst->idx, p);
        memcpy(&i, f->value[inst->a] + (f->info[inst->a].r_level ? 8 * p : 0), 8);
        i = i < 0 ? i + size : i;
        if (i < 0 || i >= size) {
            if (fuse_holds(f, inst->pred, p))
                *(int64_t *)f->args[inst->arg] = (int64_t)inst->imm;
            i = i >= size ? size - 1 : i;
            i = i < 0 ? 0 : i;
        }
        memcpy(f->value[v] + 8 * p, &i, 8);
    }
}

/* A carry at each point, where the last time it was right at the one before; or what it is behind the last one. */
static void fuse_carried(const FuseRun *f, VRef v)
{
    const KInst *inst = &f->k->inst.at[v];
    size_t bytes = fuse_bytes(f, v);
    VRef next = v;
    while (inst->kind == KI_CARRY && (f->k->inst.at[next].kind != KI_NEXT || f->k->inst.at[next].a != v))
        next++;
    VRef start = f->k->inst.at[f->k->inst.at[next].a].a, after = f->k->inst.at[next].b;
    for (int64_t p = 0; p < (inst->kind == KI_CARRY ? f->n_r : 1); p++) {
        int64_t points = inst->kind == KI_CARRY ? p : f->n_r, at = f->info[after].r_level ? points - 1 : 0;
        memcpy(f->value[v] + (size_t)p * bytes, points ? f->value[after] + (size_t)at * bytes : f->value[start], bytes);
    }
}

static void fuse_inst(FuseRun *f, VRef v)
{
    const KInst *inst = &f->k->inst.at[v];
    int64_t n = f->info[v].r_level ? f->n_r : 1;
    DType types[3] = {DT_F32, DT_F32, DT_F32};
    const void *in[3] = {NULL, NULL, NULL};
    switch ((InstKind)inst->kind) {
    case KI_OP:
        for (int i = 0; i < op_info[inst->op].arity; i++) {
            VRef x = i == 0 ? inst->a : i == 1 ? inst->b : inst->c;
            types[i] = (DType)f->k->inst.at[x].dtype;
            in[i] = fuse_spread(f, x, n);
        }
        if (n)
            fuse_apply(f->math, (Op)inst->op, types, (DType)inst->dtype, (size_t)n, in, f->value[v]);
        for (int i = 0; i < 3; i++)
            free((void *)(uintptr_t)in[i]);
        return;
    case KI_SCALAR: scalar_store((DType)inst->dtype, (uint64_t)(uintptr_t)f->args[inst->arg], f->value[v]); return;
    case KI_CONST: scalar_store((DType)inst->dtype, inst->imm, f->value[v]); return;
    case KI_INDEX:
        for (int64_t p = 0; p < n; p++) {
            int64_t i = fuse_index(f, inst->idx, p);
            memcpy(f->value[v] + 8 * p, &i, 8);
        }
        return;
    case KI_FOLD:
        if (inst_runs(inst))
            fuse_scan(f, inst, f->value[v]);
        else if (inst_is_dot(inst))
            fuse_matmul(f, inst, f->value[v]);
        else
            fuse_reduce(f, inst, f->value[v]);
        return;
    case KI_SORT:
    case KI_ATTEND: return;
    case KI_CARRY:
    case KI_NEXT: fuse_carried(f, v); return;
    case KI_LOAD:
    case KI_STORE:
    case KI_SCATTER: fuse_memory(f, v, n); return;
    case KI_BOUND: fuse_bound(f, v, n); return;
    }
}

static bool fuse_next(const Kernel *k, const int64_t *size, int64_t *coord, AxisKind kind)
{
    for (uint32_t a = k->axes.n; a-- > 0;) {
        if (k->axes.at[a].kind != kind)
            continue;
        if (++coord[a] < size[a])
            return true;
        coord[a] = 0;
    }
    return false;
}

static void fuse_run_kernel(const Kernel *k, void **args, const size_t *extent, MathMode math, Arena *arena)
{
    FuseRun f = {.k = k, .args = args, .extent = extent, .n_r = 1, .math = math};
    int64_t size[32], n_x = 1, at = 0, r[32] = {0};
    uint32_t stages;
    f.info = kernel_analyse(k, arena, &stages);
    for (uint32_t a = 0; a < k->axes.n; a++) {
        size[a] = fuse_index(&f, k->axes.at[a].size, 0);
        *(k->axes.at[a].kind == AXIS_X ? &n_x : &f.n_r) *= size[a];
    }
    f.r_coord = calloc((size_t)f.n_r * 32 + 32, 8);
    do {
        memcpy(f.r_coord + at++ * 32, r, sizeof r);
    } while (at < f.n_r && fuse_next(k, size, r, AXIS_R));
    f.value = calloc(k->inst.n + 1, sizeof *f.value);
    for (VRef v = 0; v < k->inst.n; v++)
        f.value[v] = calloc((size_t)f.n_r + 1, 8);
    int64_t times = 1;
    for (VRef v = 0; v < k->inst.n; v++)
        times = k->inst.at[v].kind == KI_CARRY && f.n_r ? f.n_r : times;
    for (int64_t x = 0; x < n_x; x++) {
        for (int64_t t = 0; t < times; t++) /* each time one more point has its carries */
            for (VRef v = 0; v < k->inst.n; v++)
                fuse_inst(&f, v);
        fuse_next(k, size, f.coord, AXIS_X);
    }
    for (VRef v = 0; v < k->inst.n; v++)
        free(f.value[v]);
    free(f.value);
    free(f.r_coord);
}

static int fuse_compare(DType t, const char *data, const char *order_data, int64_t i, int64_t j, int64_t stride)
{
    size_t bytes = dtype_bytes(t);
    const void *pair[] = {data + (size_t)(i * stride) * bytes, order_data + (size_t)(j * stride) * bytes};
    uint8_t less = 0, nan[2] = {0, 0};
    for (int k = 0; k < 2 && dtype_is_float(t); k++)
        fuse_apply(MATH_STRICT, OP_ISNAN, &t, DT_BOOL, 1, &pair[k], &nan[k]);
    if (nan[0] || nan[1])
        return nan[0] - nan[1] > 0 ? 2 : nan[0] == nan[1] ? 0 : -2;
    uint64_t a = scalar_load(t, pair[0]), b = scalar_load(t, pair[1]);
    if (t == DT_BOOL)
        return a < b ? -1 : a > b;
    fuse_apply(MATH_STRICT, OP_LT, (DType[]){t, t}, DT_BOOL, 1, pair, &less);
    if (less)
        return -1;
    fuse_apply(MATH_STRICT, OP_GT, (DType[]){t, t}, DT_BOOL, 1, pair, &less);
    return less;
}

/* Stable insertion sort of indices; NaN last in both directions. */
static void fuse_sort(const char *in, DType t, int64_t *out, int64_t outer, int64_t n, int64_t inner, bool descending)
{
    for (int64_t o = 0; o < outer; o++) {
        for (int64_t c = 0; c < inner; c++) {
            const char *row = in + (size_t)(o * n * inner + c) * dtype_bytes(t);
            int64_t *to = out + o * n * inner + c;
            for (int64_t i = 0; i < n; i++) {
                int64_t j = i;
                for (; j > 0; j--) {
                    int cmp = fuse_compare(t, row, row, to[(j - 1) * inner], i, inner);
                    bool swap = cmp == 2 || (cmp != -2 && (descending ? cmp < 0 : cmp > 0));
                    if (!swap)
                        break;
                    to[j * inner] = to[(j - 1) * inner];
                }
                to[j * inner] = i;
            }
        }
    }
}

/* The elements at those places. */
static void fuse_take(const char *in, DType t, const int64_t *place, char *out, int64_t outer, int64_t n, int64_t inner)
{
    const size_t bytes = dtype_bytes(t);
    for (int64_t o = 0; o < outer; o++)
        for (int64_t at = 0; at < n * inner; at++)
            memcpy(out + (size_t)(o * n * inner + at) * bytes,
                   in + (size_t)((o * n + place[o * n * inner + at]) * inner + at % inner) * bytes, bytes);
}

static void fuse_sort_step(const PlanStep *step, DType t, void *const *args)
{
    const int64_t outer = (int64_t)(intptr_t)args[2], n = (int64_t)(intptr_t)args[3], inner = (int64_t)(intptr_t)args[4];
    int64_t *place = step->values ? calloc((size_t)(outer * n * inner) + 1, sizeof *place) : args[1];
    fuse_sort(args[0], t, place, outer, n, inner, step->descending);
    if (!step->values)
        return;
    fuse_take(args[0], t, place, args[1], outer, n, inner);
    free(place);
}

/* Runs the plan at the graph's own facts. Buffers lie in slots as the plan says; outputs take over
 * donated inputs where `donate`, so wrong lifetimes and aliases show. Returns the fault, 0: none.
 */
static int64_t fuse_run_plan(Graph *g, const Plan *plan, MathMode math, bool donate, const void *const *inputs, const size_t *input_bytes,
                             void *const *outputs)
{
    int64_t ints[4096], fault = 0;
    cr_assert(g->shared->ints.n <= 4096);
    for (uint32_t i = 0; i < g->shared->ints.n; i++)
        ints[i] = g->shared->ints.at[i].value;
    uint64_t *scalars = ARENA_ARRAY(g->arena, uint64_t, g->shared->scalars.n + 1),
             *host = ARENA_ARRAY(g->arena, uint64_t, plan->host.n + 1);
    for (uint32_t i = 0; i < g->shared->scalars.n; i++)
        scalars[i] = g->shared->scalars.at[i].bits;
    cr_assert(host_scalars_run(plan->host.at, plan->host.n, math, scalars, host));
    char **memory = calloc(plan->buffers.n + 1, sizeof *memory), **slot = calloc(plan->n_slots + plan->n_band_slots + 1, sizeof *slot);
    char **own = calloc(plan->buffers.n + 1, sizeof *own);
    for (uint32_t s = 0; s < plan->n_slots + plan->n_band_slots; s++) {
        size_t bytes = 16;
        bool band = s >= plan->n_slots; /* all rows: the steps run one after the other */
        for (uint32_t i = 0; i < plan->buffers.n; i++) {
            const PlanBuffer *b = &plan->buffers.at[i];
            size_t want = (size_t)dim_eval(g, b->numel, ints) * dtype_bytes((DType)b->dtype);
            if (b->kind == (band ? BUFFER_BAND : BUFFER_TEMP) && b->slot == (band ? s - plan->n_slots : s) && want > bytes)
                bytes = want;
        }
        slot[s] = malloc(bytes);
        memset(slot[s], 0xa5, bytes);
    }
    for (uint32_t i = 0; i < plan->buffers.n; i++) {
        const PlanBuffer *b = &plan->buffers.at[i];
        size_t bytes = (size_t)dim_eval(g, b->numel, ints) * dtype_bytes((DType)b->dtype);
        if (b->kind == BUFFER_TEMP)
            memory[i] = slot[b->slot];
        else if (b->kind == BUFFER_BAND)
            memory[i] = slot[plan->n_slots + b->slot];
        else {
            size_t room = b->kind == BUFFER_INPUT ? input_bytes[b->index] : bytes;
            memory[i] = own[i] = malloc(room + 16);
            memset(memory[i], 0x5a, room);
            if (b->kind == BUFFER_INPUT)
                memcpy(memory[i], inputs[b->index], room);
        }
    }
    for (uint32_t i = 0; donate && i < plan->buffers.n; i++)
        if (plan->buffers.at[i].kind == BUFFER_OUTPUT && plan->buffers.at[i].alias_input != NO_BUFFER)
            memory[i] = memory[plan->buffers.at[i].alias_input];
    for (uint32_t s = 0; s < plan->steps.n; s++) {
        const PlanStep *step = &plan->steps.at[s];
        void *args[256];
        size_t extent[256] = {0};
        char shared[64];
        cr_assert(step->args.n <= 256);
        for (uint32_t a = 0; a < step->args.n; a++) {
            const PlanArg *arg = &step->args.at[a];
            if (arg->kind == BIND_BUFFER) {
                const PlanBuffer *b = &plan->buffers.at[arg->buffer];
                args[a] = memory[arg->buffer];
                extent[a] =
                    b->kind == BUFFER_INPUT ? input_bytes[b->index] / dtype_bytes((DType)b->dtype) : (size_t)dim_eval(g, b->numel, ints);
                cr_assert(b->first_step <= s && s <= b->last_step, "buffer %u used out of its lifetime", arg->buffer);
            } else if (arg->kind == BIND_SIZE)
                args[a] = (void *)(intptr_t)dim_eval(g, arg->size, ints);
            else if (arg->kind == BIND_SCALAR)
                args[a] = (void *)(uintptr_t)g->shared->scalars.at[arg->scalar].bits;
            else if (arg->kind == BIND_HOST)
                args[a] = (void *)(uintptr_t)host[arg->scalar];
            else
                args[a] = arg->kind == BIND_FAULT ? (void *)&fault : (void *)shared;
        }
        if (step->kind == STEP_SORT)
            fuse_sort_step(step, (DType)plan->buffers.at[step->args.at[0].buffer].dtype, args);
        else
            fuse_run_kernel(step->kernel, args, extent, math, g->arena);
    }
    for (uint32_t i = 0; i < plan->outputs.n; i++) {
        const PlanBuffer *b = &plan->buffers.at[plan->outputs.at[i]];
        memcpy(outputs[i], memory[plan->outputs.at[i]], (size_t)dim_eval(g, b->numel, ints) * dtype_bytes((DType)b->dtype));
    }
    for (uint32_t i = 0; i < plan->buffers.n; i++)
        free(own[i]);
    for (uint32_t s = 0; s < plan->n_slots + plan->n_band_slots; s++)
        free(slot[s]);
    free(own);
    free(slot);
    free(memory);
    return fault;
}

#endif
