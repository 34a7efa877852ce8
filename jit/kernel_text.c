/*
 * The text of a kernel: kernels are interned, hashed, compared, dumped and tested by it; jit/kernel_parse.c reads it back.
 *
 *     kernel (a0 f32, s1, a2 f32 out) for i < s1 ~10, j < 512
 *       v0 = load a0[i*512 + j]
 *       v1 = fold sum j (v0)
 *       v2 = mul v1 0.001953125
 *       v3 = sub v0 v2
 *       store a2[i*512 + j] = v3
 *
 *     kernel = "kernel" ["index" "i" bits] "(" [arg {"," arg}] ")" ["of" size "x" size "x" size] ["for" axis {("," | "or") axis}] {end inst}
 *     arg    = "a" n dtype ["out"] ["alias"] ["band" ["blocks" rows]] ["panels" points "along" axis] | "a" n ("shared" | "spans of a" n | "fault" ["stops"]) | "s" n ["int"] ["expects" number] | "s" n dtype
 *     axis   = ["row"] letter "<" index ["~" bucket]          bucket: log2 of what is planned for, where the size may vary
 *                                                          behind "or": instead of the axis before it (jit/fuse/union.c)
 *     inst   = value "=" op {operand} [":" dtype]
 *            | value "=" "load" access [where] | value "=" "index" index
 *            | value "=" "fold" fold letters "(" operands ")" ["running"] [":" dtype] ["order" order]
 *            | value "=" "attend" letter "(" value "," value ")" ["zero"] ("blocks" n | "parts")
 *            | value "=" "sort" letter "(" value ")" ["descending"] "places" bits
 *            | value "=" "bound" operand "below" index "fault" a "." number [where]
 *            | value "=" "carry" operand | value "=" "next" value operand
 *            | "store" access "=" operand [where]
 *            | "scatter" mode access "=" operand "along" letters [where]
 *     order  = "lanes" n "block" n ["tree"] | "chain" ["block" n] | "parts" | "serial" | "halves"     what is exact in any order has none
 *     value  = "v" n           inst  may end in "unrounded"
 *     operand= value | "s" n (a scalar) | number | dtype "(" number ")"
 *     access = a "[" index "]"          where = "where" operand          end = a newline or ";"
 *     index  = sums and products of letters, "s" n, "v" n, numbers, "/" and "%" (floor), in parentheses where needed
 *
 * It holds what a kernel computes, in which order its folds take their elements, and what its code may be planned for (buckets): no buffer, no address, no exact hint, no schedule; that follows
 * from it, the target and the options (jit/schedule.c). A dtype is printed where the op does not fix it. Constants and scalars are
 * printed where they are used, other values are numbered in order. Axes that some fold, running fold, sort or scatter is over are
 * the r axes; today's form has one set of those, after all x axes. Where nothing is folded, but something carried or stored outside, they are marked.
 */
#include "jit/kernel_text.h"

#include "ir/infer.h"
#include "ir/text.h"

#include <stdio.h>

const char kernel_axis_letters[KERNEL_AXES + 1] = "ijklmnopqrtuwxyz";
const char *const kernel_scatter_mode[4] = {"set", "add", "max", "min"};

DType kernel_literal_dtype(const Kernel *k, const KInst *inst, uint32_t operand, const DType types[3])
{
    if (inst->kind == KI_STORE || inst->kind == KI_SCATTER)
        return inst->arg < k->args.n ? (DType)k->args.at[inst->arg].dtype : DT_COUNT;
    if (inst->kind == KI_BOUND)
        return DT_I64;
    if (inst->kind != KI_OP)
        return DT_COUNT;
    switch ((DRule)op_info[inst->op].rule) {
    case RULE_BOOL: return DT_BOOL;
    case RULE_RANDOM: return DT_U64;
    case RULE_WHERE: return operand == 0 ? DT_BOOL : types[3 - operand];
    case RULE_SAME:
    case RULE_NUM:
    case RULE_FLOAT:
    case RULE_INTS:
    case RULE_BITS:
    case RULE_CMP:
    case RULE_FCMP:
        for (uint32_t i = 0; i < 3; i++)
            if (types[i] != DT_COUNT)
                return types[i];
        return DT_COUNT;
    case RULE_CAST:
    case RULE_INDEX:
    case RULE_OWN: return DT_COUNT;
    }
    return DT_COUNT;
}

DType kernel_result_dtype(const KInst *inst, uint32_t n, const DType types[3])
{
    if (inst->kind == KI_OP)
        return infer_dtype((Op)inst->op, n, types, DT_COUNT);
    return inst_has_place(inst) || inst->kind == KI_SORT ? DT_I64 : types[0];
}

/* Prints one kernel, or one instruction of one that may be broken. */
typedef struct Printer {
    const Kernel *k;
    Str *out;
    uint32_t *name; /* number of each value in the text */
} Printer;

static bool in_place(const KInst *inst) { return inst->kind == KI_CONST || inst->kind == KI_SCALAR; }
static bool names_no_value(const KInst *inst) { return inst->kind == KI_STORE || inst->kind == KI_SCATTER; }

static Printer printer(const Kernel *k, Str *out)
{
    Printer p = {k, out, ARENA_ARRAY(out->arena, uint32_t, k->inst.n + 1)};
    uint32_t n = 0;
    for (VRef v = 0; v < k->inst.n; v++) {
        p.name[v] = n;
        n += !in_place(&k->inst.at[v]) && !names_no_value(&k->inst.at[v]);
    }
    return p;
}

/* Prints with parentheses where an operand binds less tightly than what holds it: 0 sum, 1 product,
 * 2 operand of / and %. */
static void print_idx(const Printer *p, IRef i, int tight)
{
    const Kernel *k = p->k;
    if (i >= k->idx.n) { /* of a broken kernel, for the verifier's message */
        str_printf(p->out, "?");
        return;
    }
    const Idx *x = &k->idx.at[i];
    int own = x->kind == IX_ADD ? 0 : x->kind == IX_MUL || x->kind == IX_DIV || x->kind == IX_MOD ? 1 : 2;
    if (own < tight)
        str_printf(p->out, "(");
    switch ((IdxKind)x->kind) {
    case IX_CONST: str_printf(p->out, "%lld", (long long)x->value); break;
    case IX_ARG: str_printf(p->out, "s%u", x->a); break;
    case IX_AXIS: str_printf(p->out, "%c", x->a < KERNEL_AXES ? kernel_axis_letters[x->a] : '?'); break;
    case IX_VALUE: str_printf(p->out, x->a < k->inst.n ? "v%u" : "?", x->a < k->inst.n ? p->name[x->a] : 0); break;
    case IX_ADD:
        print_idx(p, x->a, 0);
        str_printf(p->out, " + ");
        print_idx(p, x->b, 1);
        break;
    case IX_MUL:
        print_idx(p, x->a, k->idx.at[x->a].kind == IX_MUL ? 1 : 2);
        str_printf(p->out, "*");
        print_idx(p, x->b, 2);
        break;
    case IX_DIV:
    case IX_MOD:
        print_idx(p, x->a, 2);
        str_printf(p->out, x->kind == IX_DIV ? "/" : "%%");
        print_idx(p, x->b, 2);
        break;
    }
    if (own < tight)
        str_printf(p->out, ")");
}

static void print_axes(const Printer *p, uint32_t axes)
{
    for (uint32_t a = 0; a < KERNEL_AXES; a++)
        if (axes >> a & 1)
            str_printf(p->out, " %c", kernel_axis_letters[a]);
}

/* `expected`: of a constant whose dtype need not be said. */
static void print_operand(const Printer *p, VRef v, DType expected)
{
    const KInst *x = v < p->k->inst.n ? &p->k->inst.at[v] : NULL;
    if (!x || names_no_value(x)) {
        str_printf(p->out, "?");
    } else if (x->kind == KI_SCALAR) {
        str_printf(p->out, "s%u", x->arg);
    } else if (x->kind == KI_CONST) {
        bool said = (DType)x->dtype == expected;
        if (!said)
            str_printf(p->out, "%s(", dtype_name((DType)x->dtype));
        text_print_scalar((DType)x->dtype, x->imm, p->out);
        str_printf(p->out, said ? "" : ")");
    } else {
        str_printf(p->out, "v%u", p->name[v]);
    }
}

static void print_fold(const Printer *p, const KInst *x)
{
    str_printf(p->out, "fold %s", fold_info[x->op].text);
    print_axes(p, kernel_fold_axes(p->k, x));
}

static void print_access(const Printer *p, const KInst *x)
{
    str_printf(p->out, " a%u[", x->arg);
    print_idx(p, x->idx, 0);
    str_printf(p->out, "]");
}

static void print_attend(const Printer *p, const KInst *x)
{
    str_printf(p->out, "%s%s%s", x->mode & ATTEND_ZERO ? " zero" : "", x->mode & ATTEND_SUM ? " sum" : "",
               x->mode & ATTEND_MOST ? " most" : "");
    if (x->mode & ATTEND_PARTS)
        str_printf(p->out, " parts");
    else
        str_printf(p->out, " blocks %d", ATTEND_BLOCK);
}

static void print_inst(const Printer *p, VRef v)
{
    const Kernel *k = p->k;
    const KInst *x = &k->inst.at[v];
    const VRef in[3] = {x->a, x->b, x->c};
    DType types[3] = {DT_COUNT, DT_COUNT, DT_COUNT}, all[3];
    uint32_t n = 0;
    for (uint32_t i = 0; i < 3; i++) {
        if (in[i] == VREF_NONE)
            continue;
        n = i + 1;
        all[i] = in[i] < k->inst.n ? (DType)k->inst.at[in[i]].dtype : DT_COUNT;
        types[i] = in[i] < k->inst.n && k->inst.at[in[i]].kind == KI_CONST ? DT_COUNT : all[i];
    }
    if (!names_no_value(x))
        str_printf(p->out, "v%u = ", p->name[v]);
    switch ((InstKind)x->kind) {
    case KI_SCALAR:
    case KI_CONST: print_operand(p, v, DT_COUNT); break; /* of a broken kernel */
    case KI_OP:
        str_printf(p->out, "%s", op_name((Op)x->op));
        for (uint32_t i = 0; i < n; i++) {
            str_printf(p->out, " ");
            print_operand(p, in[i], kernel_literal_dtype(k, x, i, types));
        }
        break;
    case KI_INDEX:
        str_printf(p->out, "index ");
        print_idx(p, x->idx, 0);
        break;
    case KI_LOAD:
        str_printf(p->out, "load");
        print_access(p, x);
        break;
    case KI_FOLD:
    case KI_ATTEND:
    case KI_SORT:
        if (x->kind != KI_FOLD) {
            str_printf(p->out, x->kind == KI_SORT ? "sort" : "attend");
            print_axes(p, kernel_fold_axes(k, x));
        } else {
            print_fold(p, x);
        }
        for (uint32_t i = 0; i < n; i++) {
            str_printf(p->out, i ? ", " : " (");
            print_operand(p, in[i], DT_COUNT);
        }
        str_printf(p->out, ")");
        if (x->kind == KI_SORT)
            str_printf(p->out, "%s places %llu", x->mode ? " descending" : "", (unsigned long long)x->imm);
        else if (x->kind == KI_ATTEND)
            print_attend(p, x);
        else if (inst_runs(x))
            str_printf(p->out, " running");
        break;
    case KI_CARRY:
    case KI_NEXT:
        str_printf(p->out, x->kind == KI_CARRY ? "carry" : "next");
        for (uint32_t i = 0; i < n; i++) {
            str_printf(p->out, " ");
            print_operand(p, in[i], DT_COUNT);
        }
        if (x->kind == KI_NEXT && x->mode == ENDS)
            str_printf(p->out, " ends");
        break;
    case KI_STORE:
    case KI_SCATTER:
        str_printf(p->out, "%s%s", x->kind == KI_STORE ? "store" : "scatter ", x->kind == KI_STORE ? "" : kernel_scatter_mode[x->mode & 3]);
        print_access(p, x);
        str_printf(p->out, " = ");
        print_operand(p, x->a, kernel_literal_dtype(k, x, 0, types));
        if (x->kind == KI_SCATTER) {
            str_printf(p->out, " along");
            print_axes(p, kernel_r_axes(k));
        }
        break;
    case KI_BOUND:
        str_printf(p->out, "bound ");
        print_operand(p, x->a, DT_I64);
        str_printf(p->out, " below ");
        print_idx(p, x->idx, 0);
        str_printf(p->out, " fault a%u.%llu", x->arg, (unsigned long long)x->imm);
        break;
    }
    if (x->pred != VREF_NONE) {
        str_printf(p->out, " where ");
        print_operand(p, x->pred, DT_BOOL);
    }
    if ((x->kind == KI_OP || x->kind == KI_FOLD || x->kind == KI_SORT) && kernel_result_dtype(x, n, all) != (DType)x->dtype)
        str_printf(p->out, " : %s", dtype_name((DType)x->dtype));
    if (x->order.kind != ORD_ANY) {
        str_printf(p->out, " order ");
        order_print(x->order, p->out);
    }
    if (x->unrounded)
        str_printf(p->out, " unrounded");
}

static void print_arg(const KArg *arg, uint32_t at, Str *out)
{
    static const char prefix[] = {
        [ARG_BUFFER] = 'a', [ARG_SIZE] = 's', [ARG_SCALAR] = 's', [ARG_SCRATCH] = 'a', [ARG_SPANS] = 'a', [ARG_FAULT] = 'a'};
    str_printf(out, "%s%c%u", at ? ", " : "", prefix[arg->kind], at);
    if (arg->kind == ARG_BUFFER || arg->kind == ARG_SCALAR)
        str_printf(out, " %s", dtype_name((DType)arg->dtype));
    if (arg->kind == ARG_SCRATCH || arg->kind == ARG_FAULT)
        str_printf(out, arg->kind == ARG_SCRATCH ? " shared" : arg->stops ? " fault stops" : " fault");
    if (arg->kind == ARG_SPANS)
        str_printf(out, " spans of a%u", arg->of);
    str_printf(out, "%s%s%s", arg->written ? " out" : "", arg->may_alias ? " alias" : "", arg->band ? " band" : "");
    if (arg->blocks)
        str_printf(out, " blocks %u", arg->blocks);
    if (arg->panel)
        str_printf(out, " panels %u along %c", arg->panel, kernel_axis_letters[arg->panel_axis]);
    if (arg->kind == ARG_SIZE && !arg->natural)
        str_printf(out, " int");
    if (arg->expects)
        str_printf(out, " expects %d", arg->expected);
}

void kernel_print(const Kernel *k, Str *out)
{
    Printer p = printer(k, out);
    str_printf(out, "kernel");
    if (k->index_bits)
        str_printf(out, " index i%d", k->index_bits);
    str_printf(out, " (");
    for (uint32_t a = 0; a < k->args.n; a++)
        print_arg(&k->args.at[a], a, out);
    str_printf(out, ")");
    for (int i = 0; i < 3 && k->product[0] != IREF_NONE; i++) {
        str_printf(out, i ? " x " : " of ");
        print_idx(&p, k->product[i], 1);
    }
    bool mark = true;
    for (VRef v = 0; v < k->inst.n && mark; v++)
        mark = k->inst.at[v].kind != KI_FOLD && k->inst.at[v].kind != KI_SORT && k->inst.at[v].kind != KI_SCATTER;
    for (uint32_t a = 0; a < k->axes.n; a++) {
        str_printf(out, "%s%s %c < ",
                   k->axes.at[a].beside ? " or"
                   : a                  ? ","
                                        : " for",
                   mark && k->axes.at[a].kind == AXIS_R ? " row" : "", a < KERNEL_AXES ? kernel_axis_letters[a] : '?');
        print_idx(&p, k->axes.at[a].size, 0);
        if (k->axes.at[a].bucket)
            str_printf(out, " ~%u", k->axes.at[a].bucket);
    }
    str_printf(out, "\n");
    for (VRef v = 0; v < k->inst.n; v++) {
        if (in_place(&k->inst.at[v]))
            continue;
        str_printf(out, "  ");
        print_inst(&p, v);
        str_printf(out, "\n");
    }
}

void kernel_print_inst(const Kernel *k, VRef v, Str *out)
{
    Printer p = printer(k, out);
    print_inst(&p, v);
}

const char *kernel_kind_name(const Kernel *k)
{
    const char *first = k->form == FORM_CONTRACT ? "matmul" : k->form == FORM_ATTENTION ? "attention" : "";
    for (VRef v = 0; v < k->inst.n; v++)
        first = k->inst.at[v].kind == KI_SCATTER ? "scatter" : k->inst.at[v].kind == KI_CARRY ? "loop" : first;
    return first;
}

const char *kernel_name(const Kernel *k, Arena *arena)
{
    char name[64];
    size_t len = 0;
    bool seen[OP_COUNT] = {[OP_MATMUL] = true};
    len = (size_t)snprintf(name, sizeof name, "%s", kernel_kind_name(k));
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *inst = &k->inst.at[v];
        Op own = inst_graph_op(inst);
        if (own == OP_COUNT || seen[own])
            continue;
        seen[own] = true;
        const char *op = op_name(own);
        if (len + strlen(op) + 2 > 48)
            break;
        len += (size_t)snprintf(name + len, sizeof name - len, "%s%s", len ? "_" : "", op);
    }
    return len ? arena_strdup(arena, name) : "copy";
}
