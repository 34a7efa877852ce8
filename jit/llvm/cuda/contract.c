/*
 * Contractions on CUDA: which way. By tiles in shared memory (cuda/tiles.c) where both factors are used several times; where
 * there is no matrix, each thread computes an element by itself, one chain of multiply-adds over k from +0.
 */
#include "jit/llvm/cuda/tiles.h"

enum { THREADS = 256 };

static Val operand(Emit *e, const Product *p, VRef v) { return cast_emit(e, p->type, p->acc, value(e, v)); }

static void emit_elements(Emit *e, Product *p)
{
    LaunchPhase *phase;
    LLVMTypeRef type = l_type(e, p->acc, false);
    cuda_entry(e, "", THREADS, 0, &phase);
    phase->points = axes_node(e, 0, e->k->axes.n);
    phase->tasks = launch_op(e->launch, LAUNCH_CEIL_DIV, axes_node(e, 0, e->n_x), launch_const(e->launch, THREADS));
    phase->tasks = launch_op(e->launch, LAUNCH_MIN, phase->tasks, launch_const(e->launch, INT32_MAX));
    Place place = level_enter(e, LV_TASK);
    p->n_k = axes_product(e, e->n_x, e->k->axes.n);
    e->x_total = axes_product(e, 0, e->n_x);
    p->tid = cuda_special(e, "tid.x");
    level_leave(e, place);
    LV from = l_add(e, l_mul(e, cuda_special(e, "ctaid.x"), l_i64(e, THREADS)), p->tid);
    LV by = l_mul(e, cuda_special(e, "nctaid.x"), l_i64(e, THREADS)), sum = l_alloca(e, type, 0, "sum");
    Loop l = loop_begin(e, from, e->x_total, by, "element");
    level_open(e, LV_ROW);
    row_seek(e, outer_axes(e), l.iv, NULL);
    pin(e, LV_ROW);
    l_store(e, LLVMConstNull(type), sum, 0);
    Loop k = loop_begin(e, l_i64(e, 0), p->n_k, l_i64(e, 1), "k");
    level_open(e, LV_R);
    e->flat = k.iv;
    e->axis[e->k->axes.n - 1] = ix_uniform(k.iv);
    LV a = operand(e, p, p->operand[ROWS]).v, b = operand(e, p, p->operand[COLUMNS]).v;
    l_store(e, dot_step(e, p->acc, l_load(e, type, sum, 0), a, b), sum, 0);
    level_close(e, LV_R, LV_ROW);
    loop_end(e, &k);
    pin(e, LV_ROW);
    Val v = {.v = l_load(e, type, sum, 0)};
    value_set(e, p->reduce, e->level[p->reduce], cast_emit(e, p->acc, (DType)e->k->inst.at[p->reduce].dtype, v));
    emit_stores(e, false, 0);
    level_close(e, LV_ROW, LV_ROW);
    loop_end(e, &l);
    cuda_return(e);
}

bool cuda_steps_along_k(const Emit *e, VRef v)
{
    const KInst *n = &e->k->inst.at[v];
    uint32_t axis = e->k->axes.n - 1;
    if (n->kind == KI_LOAD) {
        const Idx *last = &e->k->idx.at[n->idx];
        while (last->kind == IX_ADD) { /* some term of the sum is the axis itself */
            const Idx *b = &e->k->idx.at[last->b];
            if (b->kind == IX_AXIS && b->a == axis)
                return true;
            last = &e->k->idx.at[last->a];
        }
        return last->kind == IX_AXIS && last->a == axis;
    }
    VRef in[4];
    uint32_t count = kernel_operands(n, in);
    for (uint32_t i = 0; i < count; i++)
        if (e->info[in[i]].r_level)
            return cuda_steps_along_k(e, in[i]);
    return false;
}

void emit_contract_cuda(Emit *e)
{
    Product p = {0};
    if (e->k->split)
        e->launch->scratch = launch_const(e->launch, GRID_COUNTER_BYTES);
    find_product(e, &p);
    if (plan_mma(e, &p) || plan_fma(e, &p)) {
        emit_tiles(e, &p);
        return;
    }
    p.acc = dtype_accumulator((DType)e->k->inst.at[p.reduce].dtype);
    emit_elements(e, &p);
}
