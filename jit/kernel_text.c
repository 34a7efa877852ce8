/*
 * What follows from a kernel's body: levels and stages, the verifier, and the text by which kernels
 * are interned.
 *
 * The text holds everything that decides the machine code (form, schedule, argument kinds, axes,
 * body) and nothing else: no buffer, no address, no hint, no cost. Example:
 *
 *     kernel loops vec x0
 *     args a0 f32, a1 f32 out, s2
 *     for x0 < s2
 *       v0 = load a0[x0] : f32
 *       v1 = exp v0 : f32
 *       store a1[x0] = v1
 */
#include "jit/kernel.h"

#include <stdio.h>

static uint32_t r_axes(const Kernel *k)
{
    uint32_t mask = 0;
    for (uint32_t a = 0; a < k->axes.n; a++)
        if (k->axes.at[a].kind == AXIS_R)
            mask |= 1u << a;
    return mask;
}

/* The latest stage among the values an index expression loads through. */
static uint8_t idx_stage(const Kernel *k, IRef i, const InstInfo *info)
{
    const Idx *x = &k->idx.at[i];
    uint8_t stage = 0, other;
    switch ((IdxKind)x->kind) {
    case IX_CONST:
    case IX_ARG:
    case IX_AXIS: return 0;
    case IX_VALUE: return k->inst.at[x->a].kind == KI_REDUCE ? (uint8_t)(info[x->a].stage + 1) : info[x->a].stage;
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
    uint32_t r = r_axes(k), last = 0;
    bool any = r != 0;
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *inst = &k->inst.at[v];
        VRef in[4];
        uint32_t n = kernel_operands(inst, in);
        uint8_t stage = inst->idx == IREF_NONE ? 0 : idx_stage(k, inst->idx, info);
        for (uint32_t i = 0; i < n; i++) {
            uint8_t s = (uint8_t)(info[in[i]].stage + (k->inst.at[in[i]].kind == KI_REDUCE));
            stage = s > stage ? s : stage;
        }
        info[v].axes = k->inst_axes.at[v];
        info[v].r_level = (info[v].axes & r) != 0;
        info[v].stage = stage;
        if ((info[v].r_level || inst->kind == KI_REDUCE) && stage > last)
            last = stage;
    }
    *n_stages = any ? last + 1 : 0;
    return info;
}

/* ---- text ---- */

typedef struct AxisName {
    char text[8];
} AxisName;

static AxisName axis_name(const Kernel *k, uint32_t axis)
{
    AxisName name;
    uint32_t first_r = 0;
    while (first_r < k->axes.n && k->axes.at[first_r].kind == AXIS_X)
        first_r++;
    bool is_r = axis >= first_r;
    snprintf(name.text, sizeof name.text, "%c%u", is_r ? 'r' : 'x', (is_r ? axis - first_r : axis) & 63u);
    return name;
}

/* Prints with parentheses where an operand binds less tightly than what holds it: 0 sum, 1 product,
 * 2 operand of / and %. */
static void print_idx(const Kernel *k, IRef i, int tight, Str *out)
{
    if (i >= k->idx.n) { /* of a broken kernel, for the verifier's message */
        str_printf(out, "?");
        return;
    }
    const Idx *x = &k->idx.at[i];
    int own = x->kind == IX_ADD ? 0 : x->kind == IX_MUL || x->kind == IX_DIV || x->kind == IX_MOD ? 1 : 2;
    if (own < tight)
        str_printf(out, "(");
    switch ((IdxKind)x->kind) {
    case IX_CONST: str_printf(out, "%lld", (long long)x->value); break;
    case IX_ARG: str_printf(out, "s%u", x->a); break;
    case IX_AXIS: str_printf(out, "%s", axis_name(k, x->a).text); break;
    case IX_VALUE: str_printf(out, "v%u", x->a); break;
    case IX_ADD:
        print_idx(k, x->a, 0, out);
        str_printf(out, " + ");
        print_idx(k, x->b, 1, out);
        break;
    case IX_MUL:
        print_idx(k, x->a, k->idx.at[x->a].kind == IX_MUL ? 1 : 2, out);
        str_printf(out, "*");
        print_idx(k, x->b, 2, out);
        break;
    case IX_DIV:
    case IX_MOD:
        print_idx(k, x->a, 2, out);
        str_printf(out, x->kind == IX_DIV ? "/" : "%%");
        print_idx(k, x->b, 2, out);
        break;
    }
    if (own < tight)
        str_printf(out, ")");
}

static const char *const mode_name[] = {"set", "add", "max", "min"};

static void print_inst(const Kernel *k, VRef v, Str *out)
{
    const KInst *x = &k->inst.at[v];
    VRef in[4];
    str_printf(out, "  ");
    if (x->kind != KI_STORE && x->kind != KI_SCATTER)
        str_printf(out, "v%u = ", v);
    switch ((InstKind)x->kind) {
    case KI_OP: str_printf(out, "%s", op_name((Op)x->op)); break;
    case KI_SCALAR: str_printf(out, "scalar s%u", x->arg); break;
    case KI_CONST: str_printf(out, "const 0x%llx", (unsigned long long)x->imm); break;
    case KI_INDEX:
        str_printf(out, "index ");
        print_idx(k, x->idx, 0, out);
        break;
    case KI_LOAD:
    case KI_STORE:
    case KI_SCATTER:
        if (x->kind == KI_SCATTER)
            str_printf(out, "scatter_%s a%u[", mode_name[x->mode & 3], x->arg);
        else
            str_printf(out, "%s a%u[", x->kind == KI_LOAD ? "load" : "store", x->arg);
        print_idx(k, x->idx, 0, out);
        str_printf(out, "]");
        break;
    case KI_REDUCE: str_printf(out, "%s over r", op_name((Op)x->op)); break;
    case KI_SCAN:
        str_printf(out, "%s along r", op_name((Op)x->op));
        if (x->op == OP_ARGSORT)
            str_printf(out, "%s places of %llu bits", x->mode ? " descending" : "", (unsigned long long)x->imm);
        break;
    case KI_BOUND:
        str_printf(out, "bound fault %llu a%u below ", (unsigned long long)x->imm, x->arg);
        print_idx(k, x->idx, 0, out);
        break;
    }
    uint32_t n = kernel_operands(x, in) - (x->pred != VREF_NONE);
    if (n)
        str_printf(out, x->kind == KI_STORE || x->kind == KI_SCATTER ? " = " : " ");
    for (uint32_t i = 0; i < n; i++)
        str_printf(out, "%sv%u", i ? " " : "", in[i]);
    if (x->pred != VREF_NONE)
        str_printf(out, " where v%u", x->pred);
    if (x->kind != KI_STORE && x->kind != KI_SCATTER)
        str_printf(out, " : %s", dtype_name((DType)x->dtype));
    if (x->save)
        str_printf(out, " saved");
    if (x->unrounded)
        str_printf(out, " unrounded");
    str_printf(out, "\n");
}

static void print_arg(const KArg *arg, uint32_t at, Str *out)
{
    static const char prefix[] = {[ARG_BUFFER] = 'a', [ARG_SIZE] = 's', [ARG_SCALAR] = 's', [ARG_SCRATCH] = 'a', [ARG_FAULT] = 'a'};
    str_printf(out, "%s%c%u", at ? ", " : "", prefix[arg->kind], at);
    if (arg->kind == ARG_BUFFER || arg->kind == ARG_SCALAR)
        str_printf(out, " %s", dtype_name((DType)arg->dtype));
    if (arg->kind == ARG_SCRATCH || arg->kind == ARG_FAULT)
        str_printf(out, arg->kind == ARG_FAULT ? " fault" : " shared");
    str_printf(out, "%s%s%s", arg->written ? " out" : "", arg->may_alias ? " alias" : "",
               arg->natural            ? ""
               : arg->kind == ARG_SIZE ? " int"
                                       : "");
}

void kernel_print(const Kernel *k, Str *out)
{
    static const char *const form[] = {[FORM_LOOPS] = "loops", [FORM_CONTRACT] = "contract", [FORM_SORT] = "sort"};
    str_printf(out, "kernel %s", form[k->form]);
    if (k->vec_axis != UINT32_MAX)
        str_printf(out, " vec %s", axis_name(k, k->vec_axis).text);
    str_printf(out, "%s", k->split ? " split" : "");
    for (int i = 0; i < 3 && k->split && k->form == FORM_CONTRACT; i++) {
        str_printf(out, i ? " x " : " of ");
        print_idx(k, k->product[i], 0, out);
    }
    if (k->index_bits)
        str_printf(out, " index i%d", k->index_bits);
    str_printf(out, "\nargs ");
    for (uint32_t a = 0; a < k->args.n; a++)
        print_arg(&k->args.at[a], a, out);
    str_printf(out, "\n");
    if (k->axes.n)
        str_printf(out, "for ");
    for (uint32_t a = 0; a < k->axes.n; a++) {
        str_printf(out, "%s%s < ", a ? ", " : "", axis_name(k, a).text);
        print_idx(k, k->axes.at[a].size, 0, out);
    }
    if (k->axes.n)
        str_printf(out, "\n");
    for (VRef v = 0; v < k->inst.n; v++)
        print_inst(k, v, out);
}

/* ---- verifier ---- */

/* What an instruction kind must and may have. */
typedef struct KindRule {
    uint8_t operands; /* a (1), a and b (2)...; OWN: by op */
    bool idx, arg;
} KindRule;
enum { OWN = 9 };
static const KindRule kind_rule[] = {
    /* clang-format off */
    [KI_OP] = {OWN, false, false},  [KI_SCALAR] = {0, false, true},
    [KI_CONST] = {0, false, false}, [KI_INDEX] = {0, true, false},
    [KI_LOAD] = {0, true, true},    [KI_REDUCE] = {OWN, false, false},
    [KI_SCAN] = {1, false, false},  [KI_STORE] = {1, true, true},
    [KI_SCATTER] = {1, true, true}, [KI_BOUND] = {1, true, true},
    /* clang-format on */
};

static Status bad(const Kernel *k, VRef v, const char *why)
{
    Str text;
    const KInst *x = &k->inst.at[v];
    if (x->kind > KI_BOUND || x->dtype >= DT_COUNT || x->op >= OP_COUNT)
        return fail(ST_INTERNAL, "broken kernel: %s in v%u", why, v);
    str_init(&text, k->arena);
    print_inst(k, v, &text);
    return fail(ST_INTERNAL, "broken kernel: %s in:%s", why, text.text);
}

static bool idx_ok(const Kernel *k, IRef i, VRef before)
{
    if (i >= k->idx.n)
        return false;
    const Idx *x = &k->idx.at[i];
    switch ((IdxKind)x->kind) {
    case IX_CONST: return true;
    case IX_ARG: return x->a < k->args.n && k->args.at[x->a].kind == ARG_SIZE;
    case IX_AXIS: return x->a < k->axes.n;
    case IX_VALUE: return x->a < before && k->inst.at[x->a].dtype == DT_I64;
    case IX_ADD:
    case IX_MUL:
    case IX_DIV:
    case IX_MOD: return x->a < i && x->b < i && idx_ok(k, x->a, before) && idx_ok(k, x->b, before);
    }
    return false;
}

static Status verify_inst(const Kernel *k, VRef v)
{
    static const uint8_t arg_kind[] = {
        [KI_SCALAR] = ARG_SCALAR, [KI_LOAD] = ARG_BUFFER, [KI_STORE] = ARG_BUFFER, [KI_SCATTER] = ARG_BUFFER, [KI_BOUND] = ARG_FAULT};
    const KInst *x = &k->inst.at[v];
    if (x->kind > KI_BOUND || x->dtype >= DT_COUNT || x->op >= OP_COUNT)
        return bad(k, v, "unknown kind, op or dtype");
    const KindRule *rule = &kind_rule[x->kind];
    VRef in[4];
    uint32_t n = kernel_operands(x, in);
    for (uint32_t i = 0; i < n; i++)
        if (in[i] >= v)
            return bad(k, v, "an operand that comes later");
    uint32_t want = rule->operands;
    if (want == OWN)
        want = x->kind == KI_OP ? (uint32_t)op_info[x->op].arity : x->op == OP_MATMUL ? 2 : 1;
    if (n - (x->pred != VREF_NONE) != want)
        return bad(k, v, "the wrong number of operands");
    if (x->kind == KI_OP && op_class((Op)x->op) != CLS_EW)
        return bad(k, v, "an op that is not elementwise");
    if (x->pred != VREF_NONE && k->inst.at[x->pred].dtype != DT_BOOL)
        return bad(k, v, "a predicate that is not bool");
    if (rule->idx != (x->idx != IREF_NONE) || (rule->idx && !idx_ok(k, x->idx, v)))
        return bad(k, v, "a wrong index expression");
    if (rule->arg && (x->arg >= k->args.n || k->args.at[x->arg].kind != arg_kind[x->kind]))
        return bad(k, v, "a wrong argument");
    if (x->kind == KI_LOAD && k->args.at[x->arg].dtype != x->dtype)
        return bad(k, v, "a load of another dtype");
    if ((x->kind == KI_STORE || x->kind == KI_SCATTER) &&
        (k->args.at[x->arg].dtype != k->inst.at[x->a].dtype || !k->args.at[x->arg].written))
        return bad(k, v, "a store of another dtype, or to an argument that is not written");
    if ((x->kind == KI_SCAN && x->op == OP_ARGSORT) != (x->kind == KI_SCAN && k->form == FORM_SORT))
        return bad(k, v, "a sort in a kernel of another form");
    if ((x->kind == KI_REDUCE || x->kind == KI_SCAN || x->kind == KI_SCATTER) && !r_axes(k))
        return bad(k, v, "a reduction without r axes");
    return ST_OK;
}

Status kernel_verify(const Kernel *k)
{
    bool seen_r = false;
    for (uint32_t a = 0; a < k->axes.n; a++) {
        if (k->axes.at[a].kind == AXIS_X && seen_r)
            return fail(ST_INTERNAL, "broken kernel: an x axis after an r axis");
        seen_r |= k->axes.at[a].kind == AXIS_R;
        if (!idx_ok(k, k->axes.at[a].size, 0) || k->idx_axes.at[k->axes.at[a].size])
            return fail(ST_INTERNAL, "broken kernel: a wrong size of axis %u", a);
    }
    if (k->vec_axis != UINT32_MAX && k->vec_axis >= k->axes.n)
        return fail(ST_INTERNAL, "broken kernel: vec_axis %u", k->vec_axis);
    for (int i = 0; i < 3 && k->split && k->form == FORM_CONTRACT; i++)
        if (!idx_ok(k, k->product[i], 0) || k->idx_axes.at[k->product[i]])
            return fail(ST_INTERNAL, "broken kernel: a wrong size of its matrix product");
    bool stores = false;
    for (VRef v = 0; v < k->inst.n; v++) {
        TRY(verify_inst(k, v));
        stores |= k->inst.at[v].kind == KI_STORE || k->inst.at[v].kind == KI_SCATTER;
    }
    return stores ? ST_OK : fail(ST_INTERNAL, "broken kernel: it stores nothing");
}
