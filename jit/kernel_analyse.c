/* What follows from a kernel's body: the stage of each instruction, and whether it is r-level. */
#include "jit/kernel.h"

/* The latest stage among the values an index expression loads through. */
static uint8_t idx_stage(const Kernel *k, IRef i, const InstInfo *info)
{
    const Idx *x = &k->idx.at[i];
    uint8_t stage = 0, other;
    switch ((IdxKind)x->kind) {
    case IX_CONST:
    case IX_ARG:
    case IX_AXIS: return 0;
    case IX_VALUE: return kernel_ends(&k->inst.at[x->a]) ? (uint8_t)(info[x->a].stage + 1) : info[x->a].stage;
    case IX_ADD:
    case IX_MUL:
    case IX_DIV:
    case IX_MOD:
        stage = idx_stage(k, x->a, info);
        other = idx_stage(k, x->b, info);
        return other > stage ? other : stage;
    }
    return stage;
}

InstInfo *kernel_analyse(const Kernel *k, Arena *arena, uint32_t *n_stages)
{
    InstInfo *info = ARENA_ARRAY(arena, InstInfo, k->inst.n + 1);
    uint32_t r = kernel_r_axes(k), last = 0;
    bool any = r != 0;
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *inst = &k->inst.at[v];
        VRef in[4];
        uint32_t n = kernel_operands(inst, in);
        uint8_t stage = inst->idx == IREF_NONE ? 0 : idx_stage(k, inst->idx, info);
        for (uint32_t i = 0; i < n; i++) {
            uint8_t s = (uint8_t)(info[in[i]].stage + kernel_ends(&k->inst.at[in[i]]));
            stage = s > stage ? s : stage;
        }
        info[v].axes = k->inst_axes.at[v];
        info[v].r_level = (info[v].axes & r) != 0;
        info[v].stage = stage;
        if ((info[v].r_level || kernel_ends(inst)) && stage > last)
            last = stage;
    }
    *n_stages = any ? last + 1 : 0;
    return info;
}
