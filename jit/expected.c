/*
 * Kernels that expect sizes: one whose rows are short, of a length that may vary, has code of its own for the length that it was met with.
 *
 *     kernel (s0, s1 expects 4, a2 f32, a3 f32 out) for i < s0 ~18, j < s1 ~6; v0 = load a2[i*s1 + j]; ...
 *     kernel (s0, s1, a2 f32, a3 f32 out) for i < s0 ~18, j < 4; v0 = load a2[i*4 + j]; ...           where s1 is 4
 *
 * What a schedule can do with rows of four depends on its knowing that there are four (a vector of four rows, columns side by side,
 * folds without a loop), and a program that was asked to take any size gets none of it. Here sizes are no guards of the program: a launch
 * asks whether all that are expected have come (emit_loops in jit/llvm/cpu/loops.c), and one of other sizes runs as if nothing had been
 * expected. Both have the same bits: the second kernel is the first one with constants in place of arguments, and no schedule changes a
 * result.
 */
#include "jit/cuda_target.h"
#include "jit/kernel_facts.h"
#include "jit/kernel_text.h"

typedef struct Fixing {
    const Kernel *from;
    Kernel *to;
} Fixing;

static IRef fixed_size(void *user, uint32_t arg)
{
    const Fixing *x = user;
    const KArg *size = &x->from->args.at[arg];
    return size->expects ? kidx_const(x->to, size->expected) : kidx_arg(x->to, arg);
}

/* Carried values make a loop of the graph's; rows of a band come from other kernels, which count them as these do. */
static bool fixes(const Kernel *k)
{
    bool any = false;
    for (uint32_t a = 0; a < k->args.n; a++) {
        if (k->args.at[a].band)
            return false;
        any |= k->args.at[a].expects;
    }
    for (VRef v = 0; v < k->inst.n; v++)
        if (k->inst.at[v].kind == KI_CARRY)
            return false;
    return any && k->form == FORM_LOOPS;
}

static void copy_axes(const Fixing *x, const KMap *map)
{
    for (uint32_t a = 0; a < x->from->axes.n; a++) {
        const KAxis *axis = &x->from->axes.at[a];
        kernel_add_axis(x->to, (AxisKind)axis->kind, kidx_copy(x->to, x->from, axis->size, map), kernel_extent(x->from, a));
    }
}

static void copy_insts(const Fixing *x, const KMap *map, VRef *value)
{
    int64_t number;
    for (VRef v = 0; v < x->from->inst.n; v++) {
        KInst inst = x->from->inst.at[v];
        VRef *const operands[] = {&inst.a, &inst.b, &inst.c, &inst.pred};
        for (int i = 0; i < 4; i++)
            *operands[i] = *operands[i] == VREF_NONE ? VREF_NONE : value[*operands[i]];
        inst.save = false; /* the schedule's */
        inst.idx = inst.idx == IREF_NONE ? IREF_NONE : kidx_copy(x->to, x->from, inst.idx, map);
        if (inst.kind == KI_INDEX && kidx_is_const(x->to, inst.idx, &number))
            inst = KINST(.kind = KI_CONST, .dtype = DT_I64, .imm = (uint64_t)number);
        value[v] = kernel_inst(x->to, inst);
    }
}

Kernel *kernel_expected(const Kernel *k, Arena *arena)
{
    uint32_t axis[KERNEL_AXES];
    const CudaTarget host = {0};
    if (!fixes(k) || rows_repeat(k)) /* which join as well whatever their length is */
        return NULL;
    Fixing x = {k, kernel_new(arena)};
    VRef *value = ARENA_ARRAY(arena, VRef, k->inst.n + 1);
    KMap map = {.size = fixed_size, .user = &x, .axis = axis, .value = value};
    for (uint32_t a = 0; a < k->axes.n; a++)
        axis[a] = a;
    for (uint32_t a = 0; a < k->args.n; a++) {
        KArg arg = k->args.at[a];
        arg.expects = false, arg.expected = 0;
        VEC_PUSH(arena, x.to->args, arg);
    }
    x.to->index_bits = k->index_bits;
    copy_axes(&x, &map);
    copy_insts(&x, &map, value);
    for (uint32_t a = 0; a < k->axes.n; a++)
        if (kernel_extent(x.to, a) < 1)
            return NULL;
    x.to = kernel_words(x.to, arena);
    schedule_kernel(x.to, &host);
    return x.to->split && !k->split ? NULL : x.to; /* there is no scratch to split it */
}
