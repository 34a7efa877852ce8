/* See work.h. A kernel's counts are kept by the set of axes that they go with: few sets, however long the kernel. */
#include "jit/work.h"
#include "ir/base/os.h"
#include "jit/kernel.h"

#include <string.h>

enum { MOST_SETS = 32 };

typedef struct Count {
    uint32_t axes; /* bit set */
    Work work;     /* of one point */
} Count;

struct KernelWork {
    uint32_t n_axes, n_counts;
    Count count[MOST_SETS];
    IRef size[32]; /* of each axis */
    Idx idx[];     /* the kernel's */
};

typedef struct CountJob {
    const CompiledKernel *kernel;
    MathMode math;
    KernelWork *work;
} CountJob;

/* Beyond so many sets the last one takes the rest: axes that nothing depends on count too then. */
static Count *count_of(KernelWork *w, uint32_t axes)
{
    for (uint32_t i = 0; i < w->n_counts; i++)
        if (w->count[i].axes == axes)
            return &w->count[i];
    if (w->n_counts < MOST_SETS)
        w->count[w->n_counts++] = (Count){.axes = axes};
    w->count[w->n_counts - 1].axes |= axes;
    return &w->count[w->n_counts - 1];
}

static double lanes(DType dtype) { return dtype_bytes(dtype) == 8 ? 2 : 1; }

static void add_op(KernelWork *w, uint32_t axes, DType dtype, double flops)
{
    Count *c = count_of(w, axes);
    c->work.flops += dtype_is_float(dtype) ? flops : 0;
    c->work.ops += lanes(dtype);
}

static void add_special(KernelWork *w, const Kernel *k, const KInst *inst, uint32_t axes, MathMode math)
{
    DType types[3] = {DT_F32, DT_F32, DT_F32};
    const VRef operands[3] = {inst->a, inst->b, inst->c};
    for (int i = 0; i < 3; i++)
        if (operands[i] != VREF_NONE)
            types[i] = (DType)k->inst.at[operands[i]].dtype;
    const Tape *tape = tape_get((Op)inst->op, types, (DType)inst->dtype, math);
    double steps = tape ? tape_usual_length(tape).computing : 1;
    Count *c = count_of(w, axes);
    c->work.specials += 1;
    c->work.steps += lanes((DType)inst->dtype) * steps;
}

static bool of_halves(const Kernel *k, const KInst *product)
{
    VRef in[4];
    bool halves = true;
    for (uint32_t i = 0, n = kernel_operands(product, in); i < n; i++)
        halves &= dtype_is_half((DType)k->inst.at[in[i]].dtype);
    return halves;
}

static void count_inst(KernelWork *w, const Kernel *k, VRef v, uint32_t r_mask, MathMode math)
{
    const KInst *inst = &k->inst.at[v];
    uint32_t axes = k->inst_axes.at[v], operands = 0;
    VRef in[4];
    for (uint32_t i = 0, n = kernel_operands(inst, in); i < n; i++)
        operands |= k->inst_axes.at[in[i]];
    switch ((InstKind)inst->kind) {
    case KI_OP:
        if (op_info[inst->op].flags & OPF_COSTLY)
            add_special(w, k, inst, axes, math);
        else
            add_op(w, axes, (DType)inst->dtype, inst->op != OP_CAST && inst->op != OP_WHERE);
        break;
    case KI_ATTEND: /* weights times values; for each score its exponential, and a multiplication and a comparison with others */
        add_op(w, operands, DT_F32, 2);
        count_of(w, operands)->work.halves += kernel_attend_type(k) == DT_F32 ? 0 : 2;
        add_op(w, k->inst_axes.at[inst->a], DT_F32, inst_is_chain(inst) ? 1 : 3);
        count_of(w, k->inst_axes.at[inst->a])->work.specials += inst_is_chain(inst) ? 0 : 1;
        break;
    case KI_FOLD:
        add_op(w, operands | r_mask, (DType)inst->dtype, inst_is_dot(inst) ? 2 : 1);
        if (inst_is_dot(inst) && (k->form == FORM_ATTENTION ? kernel_attend_type(k) != DT_F32 : of_halves(k, inst)))
            count_of(w, operands | r_mask)->work.halves += 2;
        break;
    case KI_SORT: add_op(w, operands | r_mask, (DType)inst->dtype, 1); break;
    case KI_SCATTER: add_op(w, axes | operands, (DType)k->args.at[inst->arg].dtype, inst->mode ? 1 : 0); break;
    case KI_CARRY:
    case KI_NEXT:
    case KI_SCALAR:
    case KI_CONST:
    case KI_INDEX:
    case KI_LOAD:
    case KI_STORE:
    case KI_BOUND: break;
    }
}

/* The kernel's own text is the end of what it is known by (jit/codegen.c). */
static Status count_in_arena(Arena *arena, void *user)
{
    CountJob *job = user;
    Kernel *k;
    char *key = arena_printf(arena, "%.*s", (int)job->kernel->key_bytes, job->kernel->key), *text = strstr(key, "\nkernel ");
    TRY(kernel_parse(text ? text + 1 : key, arena, &k));
    KernelWork *w = k->axes.n <= 32 ? os_calloc(1, sizeof *w + sizeof *w->idx * k->idx.n) : NULL;
    if (!w)
        return ST_OUT_OF_MEMORY;
    w->n_axes = k->axes.n;
    for (uint32_t a = 0; a < k->axes.n; a++)
        w->size[a] = k->axes.at[a].size;
    memcpy(w->idx, k->idx.at, sizeof *w->idx * k->idx.n);
    for (VRef v = 0; v < k->inst.n; v++)
        count_inst(w, k, v, kernel_r_axes(k), job->math);
    for (VRef v = 0; v < k->inst.n; v++) /* how often such a loop goes round nobody knows: one step counts */
        for (uint32_t i = 0; k->inst.at[v].kind == KI_NEXT && k->inst.at[v].mode == ENDS && i < w->n_counts; i++)
            w->count[i].axes &= ~kernel_r_axes(k);
    job->work = w;
    return ST_OK;
}

/* A constant, an argument or a product of those. */
static double size_of(const KernelWork *w, IRef i, const Program *p, const ProgStep *step, const int64_t *sizes)
{
    const Idx *x = &w->idx[i];
    if (x->kind == IX_MUL)
        return size_of(w, x->a, p, step, sizes) * size_of(w, x->b, p, step, sizes);
    if (x->kind == IX_ARG && x->a < step->n_args && p->args[step->first_arg + x->a].kind == BIND_SIZE)
        return (double)sizes[p->args[step->first_arg + x->a].value];
    return (double)x->value;
}

void work_add(Work *sum, const Work *more, double times)
{
    sum->flops += times * more->flops;
    sum->specials += times * more->specials;
    sum->ops += times * more->ops;
    sum->steps += times * more->steps;
    sum->halves += times * more->halves;
}

Work step_work(const Program *p, const ProgStep *step, const int64_t *sizes)
{
    Work sum = {0};
    if (step->kind != STEP_KERNEL)
        return sum;
    CompiledKernel *kernel = p->kernels[step->kernel].compiled;
    if (!kernel->work) {
        CountJob job = {.kernel = kernel, .math = (MathMode)p->math};
        if (with_arena(count_in_arena, &job) != ST_OK)
            job.work = os_calloc(1, sizeof *job.work); /* nothing, and nobody tries again */
        kernel->work = job.work;
        if (!job.work)
            return sum;
    }
    const KernelWork *w = kernel->work;
    double size[32];
    for (uint32_t a = 0; a < w->n_axes; a++)
        size[a] = size_of(w, w->size[a], p, step, sizes);
    for (uint32_t i = 0; i < w->n_counts; i++) {
        const Count *c = &w->count[i];
        double points = 1;
        for (uint32_t a = 0; a < w->n_axes; a++)
            points *= c->axes >> a & 1 ? size[a] : 1;
        work_add(&sum, &c->work, points);
    }
    return sum;
}
