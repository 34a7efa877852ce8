/*
 * How a kernel's loops are run: which axis goes to vector lanes, whether reductions are cut into
 * tasks, what is kept between stages, and what a point costs. Follows from the kernel's text and the
 * target; never changes a result. What differs from device to device are facts of jit/target.h: on a CUDA device a row takes a block of
 * threads, so it takes more rows, each of them shorter, to keep all of it at work.
 */
#include "jit/kernel.h"
#include "jit/target.h"

#include "ir/fold.h"

enum { SAVE_BYTES = 256 * 1024 }; /* scratch of a thread for saved rows */

#define OP_NS 0.03
#define COSTLY_NS 0.5
#define BYTE_NS 0.04

static double level_points(const Kernel *k, uint32_t axes)
{
    double points = 1;
    for (uint32_t a = 0; a < k->axes.n; a++)
        if (axes >> a & 1)
            points *= (double)kernel_extent(k, a);
    return points;
}

/* What lanes along an axis win: bytes of accesses whose neighbours are adjacent, less what must be
 * gathered. */
static double lane_gain(Kernel *k, uint32_t axis, uint32_t r_mask)
{
    double gain = 0;
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *inst = &k->inst.at[v];
        if (inst->kind != KI_LOAD && inst->kind != KI_STORE)
            continue;
        uint32_t axes = k->inst_axes.at[v];
        double weight = (double)dtype_bytes((DType)inst->dtype) * (axes & r_mask ? level_points(k, r_mask) : 1);
        IRef coef, rest;
        int64_t step = 0;
        if (!kidx_uses_axis(k, inst->idx, axis))
            continue;
        bool unit = kidx_linear(k, inst->idx, axis, &coef, &rest) && kidx_is_const(k, coef, &step) && step == 1;
        gain += unit ? weight : -weight;
    }
    return gain;
}

static void choose_lanes(Kernel *k, uint32_t r_mask, const TargetKind *target)
{
    uint32_t last_x = UINT32_MAX, last_r = UINT32_MAX;
    bool ordered = false, index = false;
    for (uint32_t a = 0; a < k->axes.n; a++)
        *(k->axes.at[a].kind == AXIS_X ? &last_x : &last_r) = a;
    for (VRef v = 0; v < k->inst.n; v++) {
        ordered |= kernel_in_order(&k->inst.at[v]) && !(inst_runs(&k->inst.at[v]) && target->scans_together);
        index |= inst_is_dot(&k->inst.at[v]);
    }
    if (index || last_r == UINT32_MAX || ordered) {
        k->vec_axis = last_x;
        return;
    }
    if (last_x == UINT32_MAX) {
        k->vec_axis = last_r;
        return;
    }
    double along_r = lane_gain(k, last_r, r_mask), along_x = lane_gain(k, last_x, r_mask);
    bool short_x = kernel_extent(k, last_x) < 8, short_r = kernel_extent(k, last_r) < 8;
    if (short_x != short_r)
        k->vec_axis = short_x ? last_r : last_x;
    else
        k->vec_axis = along_x > along_r ? last_x : last_r;
}

static bool varies(const Kernel *k, uint32_t axes)
{
    bool any = false;
    for (uint32_t a = 0; a < k->axes.n; a++) {
        int64_t fixed;
        any |= axes >> a & 1 && !kidx_is_const(k, k->axes.at[a].size, &fixed);
    }
    return any;
}

/* Of those of constant size. */
static double fixed_points(const Kernel *k, uint32_t axes)
{
    double points = 1;
    for (uint32_t a = 0; a < k->axes.n; a++) {
        int64_t fixed;
        if (axes >> a & 1 && kidx_is_const(k, k->axes.at[a].size, &fixed))
            points *= (double)fixed;
    }
    return points;
}

/* Fewer rows than this do not keep the device busy. A kernel of one stage costs no further launch when it is cut. */
static double few_rows(const CudaTarget *target, bool once)
{
    int64_t few = target_kind(target)->few;
    return (double)(few ? few : cuda_multiprocessors(target) * (once ? 2 : 1));
}

static void choose_split(Kernel *k, uint32_t r_mask, const CudaTarget *device)
{
    const TargetKind *target = target_kind(device);
    bool reduces = false, scans = false, ordered = k->form != FORM_LOOPS;
    for (VRef v = 0; v < k->inst.n; v++) {
        reduces |= inst_reduces(&k->inst.at[v]);
        scans |= inst_runs(&k->inst.at[v]);
        ordered |= k->inst.at[v].kind == KI_SCATTER;
    }
    ordered |= scans && (reduces || !target->scans_together);
    uint32_t all = (1u << k->axes.n) - 1, stages;
    double rows = level_points(k, all & ~r_mask), length = level_points(k, r_mask);
    bool any_rows = varies(k, all & ~r_mask), any_length = varies(k, r_mask);
    kernel_analyse(k, k->arena, &stages);
    bool few = rows < few_rows(device, stages == 1), far = length >= (double)target->far;
    if (target->sizes_ask) {
        few |= any_rows && fixed_points(k, all & ~r_mask) < few_rows(device, false);
        far |= any_length;
        k->split_asked = any_rows || (any_length && stages > 1); /* to cut a short row of one stage costs next to nothing */
    } else {
        far |= any_length && stages == 1;
    }
    k->split = (reduces || scans) && !ordered && few && far && (!target->cut_stages || stages <= target->cut_stages);
    k->split_asked &= k->split;
}

static bool costly(const KInst *inst) { return inst->kind == KI_OP && op_info[inst->op].flags & OPF_COSTLY; }

/* r-level values of one stage that a later stage needs again: the costly ones are kept while the
 * row fits. */
static void choose_saved(Kernel *k, uint32_t r_mask, const TargetKind *target)
{
    uint32_t stages;
    InstInfo *info = kernel_analyse(k, k->arena, &stages);
    bool shared = k->split && target->keeps;
    if (stages < 2 || (k->split && !k->split_asked && !shared))
        return;
    double row = level_points(k, r_mask), rows = level_points(k, ((1u << k->axes.n) - 1) & ~r_mask), room = SAVE_BYTES;
    if (shared && (double)target->keeps > room * rows)
        room = (double)target->keeps / rows;
    /* bit s: needed in stage s */
    uint32_t *needed = ARENA_ARRAY(k->arena, uint32_t, k->inst.n + 1);
    for (VRef v = k->inst.n; v-- > 0;) {
        const KInst *inst = &k->inst.at[v];
        uint32_t own = 1u << (info[v].stage & 31);
        if (inst->kind == KI_STORE || kernel_ends(inst) || inst->kind == KI_SCATTER)
            needed[v] |= own;
        if (!info[v].r_level && !kernel_ends(inst))
            continue;
        uint32_t later = needed[v] & ~own;
        bool lanes = dtype_is_float((DType)inst->dtype) || dtype_is_int((DType)inst->dtype);
        double bytes = row * (double)dtype_bytes((DType)inst->dtype);
        if (info[v].r_level && needed[v] & own && later && lanes && (costly(inst) || inst_runs(inst)) && bytes <= room) {
            k->inst.at[v].save = true;
            room -= bytes;
            needed[v] = own;
        }
        VRef in[4];
        uint32_t n = kernel_operands(inst, in);
        for (uint32_t i = 0; i < n; i++)
            if (info[in[i]].r_level)
                needed[in[i]] |= needed[v];
    }
}

static double point_cost(const Kernel *k, uint32_t r_mask)
{
    double row = level_points(k, r_mask), cost = 0.1;
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *inst = &k->inst.at[v];
        bool inner = !r_mask || k->inst_axes.at[v] & r_mask || kernel_ends(inst);
        double ns = costly(inst) ? COSTLY_NS : OP_NS;
        if (inst->kind == KI_LOAD || inst->kind == KI_STORE || inst->kind == KI_SCATTER)
            ns = BYTE_NS * (double)dtype_bytes((DType)inst->dtype);
        if (inst_runs(inst) || inst->kind == KI_SCATTER)
            ns += 1;
        if (!k->inst_axes.at[v] && !kernel_ends(inst))
            ns = 0;
        cost += inner || row < 1 ? ns : ns / row;
    }
    uint32_t beside = kernel_beside(k); /* a point is of one of these contractions */
    return beside ? cost / __builtin_popcount(beside) : cost;
}

/* On the host: a product has room for the sums of its blocks of k (jit/fuse/blocks.c), which are then tasks. Where it reads a band, these are of
 * its rows. */
static bool has_room(const Kernel *k)
{
    bool room = false, band = false;
    for (uint32_t a = 0; a < k->args.n; a++) {
        room |= k->args.at[a].kind == ARG_SCRATCH;
        band |= k->args.at[a].band;
    }
    return room && !band;
}

/* Few results on a CUDA device: the sum over k is cut where sizes may ask for it (jit/llvm/cuda/parts.c). */
static bool cuts_contraction(const Kernel *k)
{
    int64_t size[3], length;
    if (k->product[0] == IREF_NONE)
        return false;
    for (VRef v = 0; v < k->inst.n; v++)
        if (k->inst.at[v].order.kind == ORD_CHAIN)
            return false;
    for (int i = 0; i < 3; i++)
        if (!kidx_is_const(k, k->product[i], &size[i]))
            return true;
    if (!kidx_is_const(k, k->axes.at[k->axes.n - 1].size, &length))
        return true;
    return cuda_part(size[0], size[1], size[2], length) < length;
}

static bool has_chain(const Kernel *k)
{
    bool found = false;
    for (VRef v = 0; v < k->inst.n; v++)
        found |= inst_is_chain(&k->inst.at[v]);
    return found;
}

void schedule_kernel(Kernel *k, const CudaTarget *target)
{
    uint32_t r_mask = kernel_r_axes(k);
    const TargetKind *kind = target_kind(target);
    choose_lanes(k, r_mask, kind);
    if (r_mask) {
        choose_split(k, r_mask, target);
        if (k->form == FORM_CONTRACT)
            k->split = kind->cuts_products ? cuts_contraction(k) : has_room(k);
        if (k->form == FORM_ATTENTION)
            k->split = !has_chain(k); /* keys may be cut in parts: each launch asks the sizes */
        if (!k->split)
            k->product[0] = IREF_NONE; /* nobody reads it: products that differ in it alone are one kernel */
        if (k->form != FORM_ATTENTION)
            choose_saved(k, r_mask, kind);
    }
    k->cost = point_cost(k, r_mask);
}
