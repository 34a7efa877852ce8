/*
 * Products of few results and a long sum, such as the gradient of a weight, x^T g of thousands of rows: tiles of the result are fewer tasks than
 * there are threads. The sum over k is cut into blocks anyway (ir/orders.def), which are added in order, so blocks can be tasks, too:
 *
 *     even phases     block sums of so many blocks of k, each a task -> ARG_SCRATCH
 *     odd phases      these are added, in order, to the sum of those before; behind the last ones what follows the sum
 *
 * which are the same bits (jit/nest_product.c, jit/llvm/cpu/contract.c). Here it is decided which products have room for that, by what is
 * planned for; of other sizes a launch has more or fewer blocks in a phase. Not of products in bands, which keep their sums from one band to
 * the next (jit/fuse/bands.c).
 */
#include "jit/fuse/fuse.h"

#include "jit/kernel_text.h"

enum {
    MOST_EXTENT = 128, /* of each axis of the result: longer ones have tasks enough, and few rows by many columns go by strips ... */
    MOST_POINTS = MOST_EXTENT * MOST_EXTENT, /* ... and all of it: block sums are some of what is read, then */
    LEAST_BLOCKS = 8,
    LEAST_WORK = 1 << 20 /* multiplications: about twice what it takes to wake a thread */
};

static const KInst *only_dot(const Kernel *k)
{
    const KInst *dot = NULL;
    for (VRef v = 0; v < k->inst.n; v++)
        if (inst_is_dot(&k->inst.at[v])) {
            if (dot)
                return NULL;
            dot = &k->inst.at[v];
        }
    return dot;
}

/* Is it long and small? Of several products of one operand those tasks are enough. */
static bool wants_blocks(const Kernel *k)
{
    const KInst *dot = k->form == FORM_CONTRACT ? only_dot(k) : NULL;
    if (!dot || kernel_beside(k))
        return false;
    double points = 1;
    for (uint32_t a = 0; a + 1 < k->axes.n; a++) {
        if (kernel_extent(k, a) > MOST_EXTENT)
            return false;
        points *= (double)kernel_extent(k, a);
    }
    const double steps = (double)kernel_extent(k, k->axes.n - 1);
    return points >= 1 && points <= MOST_POINTS && steps >= LEAST_BLOCKS * (double)kernel_dot_block(dot) && points * steps >= LEAST_WORK;
}

void plan_blocks(Fuser *f)
{
    Plan *plan = f->plan;
    if (!target_kind(&f->options->target)->blocks)
        return;
    for (uint32_t s = 0; s < plan->steps.n; s++) {
        PlanStep *step = &plan->steps.at[s];
        if (step->kind != STEP_KERNEL || step->band || !wants_blocks(step->kernel))
            continue;
        VEC_PUSH(step->kernel->arena, step->kernel->args, (KArg){.kind = ARG_SCRATCH});
        VEC_PUSH(f->g->arena, step->args, (PlanArg){.kind = BIND_SHARED, .size = DIM_NONE});
        schedule_kernel(step->kernel, &f->options->target);
    }
}
