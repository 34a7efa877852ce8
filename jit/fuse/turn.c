/*
 * Operands that lie across the lanes of a kernel which reads each of their elements again and again, as the weights [channels, taps] of a depthwise
 * convolution of images with their channels last: a kernel before it puts what it reads in one lane after the other side by side.
 *
 *     for ijk, l: fold m n of a0[.. + l] a1[l*9 + m*3 + n]     ->     t[m*384 + n*128 + l] = a1[l*9 + m*3 + n], which is read instead of it
 *
 * A vector of them would otherwise be gathered at each point. A small operand alone is worth it, of many points: it stays in the first caches.
 * (Zen 4, one thread, 8 images of 128 channels at 56, 3x3, f32: 7.6 -> 2.3, AVX2 12.4 -> 3.4 ms.)
 */
#include "jit/fuse/fuse.h"

#include "jit/kernel_facts.h"
#include "jit/kernel_text.h"
#include "jit/llvm/emit.h"
#include "jit/step_before.h"
#include "jit/target.h"

enum { LEAST_LANES = 16, MOST_ELEMENTS = 1 << 16, LEAST_POINTS = 1 << 16, LEAST_TIMES = 64, LEAST_FOLDED = 1 << 22 };

/* Points of these axes, as far as is planned for. */
static double points(const Kernel *k, uint32_t axes)
{
    double n = 1;
    for (uint32_t a = 0; a < k->axes.n; a++)
        n *= axes >> a & 1 ? (double)kernel_extent(k, a) : 1;
    return n;
}

static bool is_worth_turning(const Kernel *k, VRef v, uint32_t lane)
{
    if (!may_be_made_before(k, v) || index_walk(k, k->inst.at[v].idx, lane) != INDEX_JUMPS)
        return false;
    const double elements = points(k, k->inst_axes.at[v]), all = points(k, (1u << k->axes.n) - 1);
    return elements <= MOST_ELEMENTS && all >= LEAST_POINTS && all >= elements * LEAST_TIMES;
}

/*
 * Elements from one row of lanes to the next: whole cache lines, so that no vector is in two of them, and an odd number, so that the rows that a
 * tile reads have places of their own in a cache. (Cascade Lake, a tile of 32 in the first cache:
 * rows of 4000 and 4096 bytes 161 and 184 ns, of 4032 147.)
 */
static int64_t row_in_copy(int64_t lanes, int64_t bytes)
{
    return lanes * bytes < LINE ? lanes : ((lanes * bytes + LINE - 1) / LINE | 1) * LINE / bytes;
}

static IRef row_index(Kernel *k, uint32_t lane, DType t)
{
    int64_t lanes;
    const IRef size = k->axes.at[lane].size;
    return kidx_is_const(k, size, &lanes) ? kidx_const(k, row_in_copy(lanes, (int64_t)dtype_bytes(t))) : size;
}

/* Where the copy has what varies along these axes: in their order, but for the lanes', which is the innermost. */
static IRef place_in_copy(Kernel *k, uint32_t axes, uint32_t lane, DType t)
{
    IRef at = kidx_const(k, 0);
    for (uint32_t a = 0; a < k->axes.n; a++)
        if (axes >> a & 1 && a != lane)
            at = kidx_add(k, kidx_mul(k, at, k->axes.at[a].size), kidx_axis(k, a));
    return kidx_add(k, kidx_mul(k, at, row_index(k, lane, t)), kidx_axis(k, lane));
}

static Dim elements_of(Fuser *f, const PlanStep *step, uint32_t axes, uint32_t lane, DType t)
{
    Kernel *k = step->kernel;
    Dim n = dim_const(f->g, 1);
    for (uint32_t a = 0; a < k->axes.n; a++)
        if (axes >> a & 1)
            n = dim_mul(f->g, n, size_in_graph(f, k, step, a == lane ? row_index(k, lane, t) : k->axes.at[a].size));
    return n;
}

/* The axes of what is loaded, in the order in which the copy has them: axis[] of each. Returns how many there are but for the lanes'. */
static uint32_t copy_axes(Kernel *to, const Kernel *from, uint32_t axes, uint32_t lane, StepBefore *x, uint32_t *axis)
{
    const KMap sizes = {.size = step_before_size, .user = x};
    uint32_t order[KERNEL_AXES], n = 0;
    for (uint32_t a = 0; a < from->axes.n; a++)
        if (axes >> a & 1 && a != lane)
            order[n++] = a;
    order[n] = lane;
    for (uint32_t i = 0; i <= n; i++)
        axis[order[i]] =
            kernel_add_axis(to, AXIS_X, kidx_copy(to, from, from->axes.at[order[i]].size, &sizes), kernel_extent(from, order[i]));
    return n;
}

static PlanStep copy_step(Fuser *f, const PlanStep *of, VRef v, uint32_t lane, uint32_t to)
{
    const Kernel *from = of->kernel;
    const KInst load = from->inst.at[v];
    const uint32_t axes = from->inst_axes.at[v], buffer = of->args.at[load.arg].buffer;
    PlanStep step = {.kind = STEP_KERNEL, .what = "turned", .turns = true, .node = f->plan->buffers.at[buffer].node};
    StepBefore x = step_before(f->g, of, &step, (DType)load.dtype, (DType)load.dtype);
    step.args.at[0].buffer = buffer;
    step.args.at[1].buffer = to;
    uint32_t axis[KERNEL_AXES];
    const uint32_t n = copy_axes(step.kernel, from, axes, lane, &x, axis);
    KInst read = KINST(.kind = KI_LOAD, .dtype = load.dtype), store = KINST(.kind = KI_STORE, .dtype = load.dtype, .arg = 1);
    read.idx = kidx_copy(step.kernel, from, load.idx, &(KMap){.size = step_before_size, .user = &x, .axis = axis});
    store.a = kernel_inst(step.kernel, read);
    store.idx = place_in_copy(step.kernel, (2u << n) - 1, n, (DType)load.dtype);
    kernel_inst(step.kernel, store);
    schedule_kernel(step.kernel, &f->options->target);
    step.bytes =
        dim_mul(f->g, elements_of(f, of, axes, lane, (DType)load.dtype), dim_const(f->g, 2 * (int64_t)dtype_bytes((DType)load.dtype)));
    return step;
}

static uint32_t copy_buffer(Fuser *f, const PlanStep *of, VRef v, uint32_t lane)
{
    const KInst *load = &of->kernel->inst.at[v];
    const PlanBuffer b = buffer_before(&f->plan->buffers.at[of->args.at[load->arg].buffer], BUFFER_TEMP, (DType)load->dtype,
                                       elements_of(f, of, of->kernel->inst_axes.at[v], lane, (DType)load->dtype));
    VEC_PUSH(f->g->arena, f->plan->buffers, b);
    return f->plan->buffers.n - 1;
}

/* The lanes' axis, where it is one of x; else NO_LANE. */
enum { NO_LANE = UINT32_MAX };
static uint32_t lanes_of_points(const Fuser *f, const Kernel *k)
{
    Schedule s;
    llvm_host_schedule(k, f->options, f->scratch, &s, NULL);
    return s.along >= 0 && !s.columns && k->axes.at[s.along].kind == AXIS_X ? (uint32_t)s.along : NO_LANE;
}

/*
 * Few points are folded, with lanes along them: would all of them be in registers with lanes along x, once this is turned? (Zen 4, one thread, distances
 * of 1000 x 1000 points of 64, 16 and 9 f32: 3.6 -> 2.5, 1.7 -> 0.7, 2.3 -> 0.4 ms, AVX2 4.3 -> 3.1, 1.6 -> 0.8, 1.8 -> 0.5; code is some 10 ms longer
 * on its way.)
 */
static bool turns_lanes(const Fuser *f, const Kernel *k, VRef v, uint32_t lane)
{
    int64_t folded;
    if (k->axes.n != lane + 2 || !kidx_is_const(k, k->axes.at[lane + 1].size, &folded) || points(k, (1u << k->axes.n) - 1) < LEAST_FOLDED)
        return false;
    Kernel *turned = kernel_copy(k, f->scratch);
    Schedule s;
    turned->inst.at[v].idx = place_in_copy(turned, turned->inst_axes.at[v], lane, (DType)turned->inst.at[v].dtype);
    schedule_kernel(turned, &f->options->target);
    llvm_host_schedule(turned, f->options, f->scratch, &s, NULL);
    return s.along == (int64_t)lane && s.unroll;
}

static bool turn_one(Fuser *f, uint32_t s)
{
    PlanStep *step = &f->plan->steps.at[s];
    Kernel *k = step->kernel;
    if (step->kind != STEP_KERNEL || step->band || k->form != FORM_LOOPS)
        return false;
    uint32_t last = k->axes.n;
    while (last > 0 && k->axes.at[last - 1].kind != AXIS_X)
        last--;
    if (last < 2 || kernel_extent(k, last - 1) < LEAST_LANES)
        return false;
    for (VRef v = 0; v < k->inst.n; v++) {
        if (!is_worth_turning(k, v, last - 1) || (lanes_of_points(f, k) != last - 1 && !turns_lanes(f, k, v, last - 1)))
            continue;
        const uint32_t buffer = copy_buffer(f, step, v, last - 1), arg = k->inst.at[v].arg;
        const PlanStep copy = copy_step(f, step, v, last - 1, buffer);
        k->inst.at[v].idx = place_in_copy(k, k->inst_axes.at[v], last - 1, (DType)k->inst.at[v].dtype);
        k->args.at[arg] = (KArg){.kind = ARG_BUFFER, .dtype = k->inst.at[v].dtype};
        step->args.at[arg].buffer = buffer;
        schedule_kernel(k, &f->options->target);
        plan_put_before(f->plan, f->g->arena, s, &copy, 1);
        return true;
    }
    return false;
}

void turn_operands(Fuser *f)
{
    for (uint32_t s = 0; s < f->plan->steps.n && target_kind(&f->options->target)->packs; s++)
        while (turn_one(f, s))
            s++;
}
