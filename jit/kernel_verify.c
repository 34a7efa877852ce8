/*
 * What must hold of a kernel, whoever made it: fusion, a test, a text. The first broken rule is named with the instruction that breaks it.
 *
 *   operands     come before their users, are as many as the kind takes, and give no store; dtypes follow ir/ops.def and the folds
 *   predicates   are bool
 *   indices      are of axes, sizes, constants and i64 values that come before; nothing is divided by zero; sizes are constants,
 *                arguments or products of those
 *   axes         x axes come before r axes; folds, running folds and scatters need r axes
 *   carries      have one r axis, a start and a value of their own dtype, and one `next`, which nothing inside the loop reads; a kernel that has some
 *                folds nothing
 *   stores       no two points write different values to one element: whatever the value or the predicate depends on, the index
 *                does; and where its terms are constants and all points store, they are a mixed-radix sum
 *   beside       axes that lie beside each other are the last x axes of a contraction: each has one dot, all of one left operand, which
 *                varies along none of them; no instruction depends on two, and each store on one
 *   orders       a fold of which bits depend on the order names one that ir/orders.def has for it, and those in lanes share one: a walk cuts
 *                them together; the others name none. kernel_verify_orders: it is that of the device and the mode
 *   in place     a load of a buffer that is stored too has the store's index
 *   panels       a load of an argument in panels is an operand of one product, and its index says where a point lies in them
 *   size         at most 16 axes; a bucket belongs to a size that may vary
 */
#include "jit/kernel_text.h"
#include "jit/panels.h"

#include <stdio.h>

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
    [KI_LOAD] = {0, true, true},    [KI_FOLD] = {OWN, false, false},
    [KI_SORT] = {1, false, false},  [KI_STORE] = {1, true, true},
    [KI_SCATTER] = {1, true, true}, [KI_BOUND] = {1, true, true},
    [KI_CARRY] = {1, false, false}, [KI_NEXT] = {2, false, false},
    [KI_ATTEND] = {2, false, false},
    /* clang-format on */
};

static Status bad(const Kernel *k, VRef v, const char *why)
{
    Str text;
    const KInst *x = &k->inst.at[v];
    if (x->kind > KI_BOUND || x->dtype >= DT_COUNT || x->op >= (x->kind == KI_FOLD ? (uint32_t)FOLD_COUNT : (uint32_t)OP_COUNT))
        return fail(ST_INTERNAL, "broken kernel: %s in v%u", why, v);
    str_init(&text, k->arena);
    kernel_print_inst(k, v, &text);
    return fail(ST_INTERNAL, "broken kernel: %s in: %s", why, text.text);
}

static bool names_value(const Kernel *k, VRef v) { return k->inst.at[v].kind != KI_STORE && k->inst.at[v].kind != KI_SCATTER; }

static bool idx_ok(const Kernel *k, IRef i, VRef before)
{
    if (i >= k->idx.n)
        return false;
    const Idx *x = &k->idx.at[i];
    int64_t by;
    switch ((IdxKind)x->kind) {
    case IX_CONST: return true;
    case IX_ARG: return x->a < k->args.n && k->args.at[x->a].kind == ARG_SIZE;
    case IX_AXIS: return x->a < k->axes.n;
    case IX_VALUE: {
        const KInst *v = x->a < before ? &k->inst.at[x->a] : NULL;
        return v && v->dtype == DT_I64 && names_value(k, x->a) && v->kind != KI_CONST && v->kind != KI_SCALAR;
    }
    case IX_DIV:
    case IX_MOD:
        if (x->b < k->idx.n && kidx_is_const(k, x->b, &by) && by <= 0)
            return false;
        return x->a < i && x->b < i && idx_ok(k, x->a, before) && idx_ok(k, x->b, before);
    case IX_ADD:
    case IX_MUL: return x->a < i && x->b < i && idx_ok(k, x->a, before) && idx_ok(k, x->b, before);
    }
    return false;
}

/* A constant, an argument, or a product of those. */
static bool is_size(const Kernel *k, IRef i)
{
    const Idx *x = &k->idx.at[i];
    return x->kind == IX_CONST ? x->value >= 0 : x->kind == IX_ARG || (x->kind == IX_MUL && is_size(k, x->a) && is_size(k, x->b));
}

static bool size_ok(const Kernel *k, IRef i) { return idx_ok(k, i, 0) && is_size(k, i); }

/* ---- dtypes ---- */

static Status verify_dtypes(const Kernel *k, VRef v)
{
    const KInst *x = &k->inst.at[v];
    const VRef in[3] = {x->a, x->b, x->c};
    DType types[3] = {DT_COUNT, DT_COUNT, DT_COUNT}, got = (DType)x->dtype;
    uint32_t n = 0;
    while (n < 3 && in[n] != VREF_NONE) {
        types[n] = (DType)k->inst.at[in[n]].dtype;
        n++;
    }
    switch ((InstKind)x->kind) {
    case KI_OP: {
        DType want = kernel_result_dtype(x, n, types);
        return want == got || op_info[x->op].rule == RULE_CAST ? ST_OK : bad(k, v, "dtypes that do not fit the op");
    }
    case KI_SCALAR:
    case KI_LOAD: return (DType)k->args.at[x->arg].dtype == got ? ST_OK : bad(k, v, "a load of another dtype");
    case KI_STORE:
    case KI_SCATTER:
        if ((DType)k->args.at[x->arg].dtype != types[0] || !k->args.at[x->arg].written)
            return bad(k, v, "a store of another dtype, or to an argument that is not written");
        return ST_OK;
    case KI_FOLD:
        if (inst_is_dot(x) && types[0] != types[1])
            return bad(k, v, "a product of two dtypes");
        if (inst_has_place(x) && got != DT_I64)
            return bad(k, v, "a place that is not i64");
        return ST_OK;
    case KI_ATTEND: return types[0] == DT_F32 && got == DT_F32 ? ST_OK : bad(k, v, "scores or means that are not f32");
    case KI_SORT: return got == DT_I64 ? ST_OK : bad(k, v, "a place that is not i64");
    case KI_CARRY: return types[0] == got ? ST_OK : bad(k, v, "a carry that starts as another dtype");
    case KI_NEXT: return types[0] == got && types[1] == got ? ST_OK : bad(k, v, "a carry that becomes another dtype");
    case KI_INDEX: return got == DT_I64 ? ST_OK : bad(k, v, "an index that is not i64");
    case KI_BOUND: return got == DT_I64 && types[0] == DT_I64 ? ST_OK : bad(k, v, "an index that is not i64");
    case KI_CONST: return ST_OK;
    }
    return ST_OK;
}

/* ---- orders ---- */

static Status verify_order(const Kernel *k, VRef v)
{
    const KInst *x = &k->inst.at[v];
    if (x->kind != KI_FOLD)
        return x->order.kind == ORD_ANY ? ST_OK : bad(k, v, "an order of what folds nothing");
    DType of = kernel_fold_of(k, x);
    if (!order_known((Fold)x->op, inst_runs(x), of, x->order)) {
        if (x->order.kind == ORD_ANY)
            return bad(k, v, "a fold whose bits depend on its order, and that names none");
        bool exact = order_of((Fold)x->op, inst_runs(x), of, ORDER_HOST, MATH_STRICT).kind == ORD_ANY;
        return bad(k, v, exact ? "an order of a fold that is exact in any" : "an order that ir/orders.def has for no device");
    }
    for (VRef u = 0; u < v; u++)
        if (x->order.kind == ORD_LANES && k->inst.at[u].order.kind == ORD_LANES && !order_same(x->order, k->inst.at[u].order))
            return bad(k, v, "another order than that of the fold before it");
    return ST_OK;
}

Status kernel_verify_orders(const Kernel *k, OrderDevice device, MathMode math)
{
    static const char *const not_there[] = {[ORDER_HOST] = "an order that the host does not have in this mode",
                                            [ORDER_HOST_PAIRS] = "an order that this host does not have in this mode",
                                            [ORDER_CUDA] = "an order that CUDA devices do not have in this mode"};
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *x = &k->inst.at[v];
        if (x->kind == KI_FOLD && !order_same(x->order, order_of((Fold)x->op, inst_runs(x), kernel_fold_of(k, x), device, math)))
            return bad(k, v, not_there[device]);
    }
    return ST_OK;
}

/* ---- stores ---- */

/* How far the expression moves along an axis, where that is a constant. */
static bool steps(const Kernel *k, IRef i, uint32_t axis, int64_t *by)
{
    const Idx *x = &k->idx.at[i];
    int64_t a, b;
    *by = x->kind == IX_AXIS && x->a == axis;
    if (x->kind == IX_AXIS || !kidx_uses_axis(k, i, axis))
        return true;
    if (x->kind == IX_ADD)
        return steps(k, x->a, axis, &a) && steps(k, x->b, axis, &b) && !__builtin_add_overflow(a, b, by);
    return x->kind == IX_MUL && kidx_is_const(k, x->b, &b) && steps(k, x->a, axis, &a) && !__builtin_mul_overflow(a, b, by);
}

/* Two points that write one element, as far as constants tell: sorted by how far each axis steps, each must step over all that those before
 * it reach. What is not linear in constants is taken to be right. */
static bool collides(const Kernel *k, IRef i, uint32_t axes)
{
    int64_t step[KERNEL_AXES], size[KERNEL_AXES];
    uint32_t n = 0;
    for (uint32_t a = 0; a < k->axes.n; a++) {
        if (!(axes >> a & 1))
            continue;
        if (!kidx_is_const(k, k->axes.at[a].size, &size[n]) || !steps(k, i, a, &step[n]) || step[n] == INT64_MIN)
            return false;
        step[n] = step[n] < 0 ? -step[n] : step[n];
        if (size[n] <= 1)
            continue;
        uint32_t at = n++;
        for (; at > 0 && step[at - 1] > step[at]; at--) {
            int64_t t = step[at], s = size[at];
            step[at] = step[at - 1], size[at] = size[at - 1];
            step[at - 1] = t, size[at - 1] = s;
        }
    }
    int64_t reach = 0, span;
    for (uint32_t a = 0; a < n; a++) {
        if (step[a] <= reach)
            return true;
        if (__builtin_mul_overflow(step[a], size[a] - 1, &span) || __builtin_add_overflow(reach, span, &reach))
            return false;
    }
    return false;
}

static bool is_empty(const Kernel *k)
{
    int64_t size;
    for (uint32_t a = 0; a < k->axes.n; a++)
        if (kidx_is_const(k, k->axes.at[a].size, &size) && size == 0)
            return true;
    return false;
}

/* Axes with more than one point, for all that is known. */
static uint32_t real_axes(const Kernel *k, uint32_t axes)
{
    int64_t size;
    for (uint32_t a = 0; a < k->axes.n; a++)
        if (kidx_is_const(k, k->axes.at[a].size, &size) && size <= 1)
            axes &= ~(1u << a);
    return axes;
}

static Status verify_store(const Kernel *k, VRef v)
{
    const KInst *x = &k->inst.at[v];
    uint32_t of_value = k->inst_axes.at[x->a] | (x->pred == VREF_NONE ? 0 : k->inst_axes.at[x->pred]), of_index = k->idx_axes.at[x->idx];
    if (x->kind != KI_STORE || is_empty(k))
        return ST_OK;
    if (real_axes(k, of_value) & ~of_index)
        return bad(k, v, "a store at one place of what differs from point to point");
    if (x->pred == VREF_NONE && collides(k, x->idx, of_index))
        return bad(k, v, "a store of two points at one place");
    for (VRef u = 0; u < k->inst.n; u++) {
        const KInst *load = &k->inst.at[u];
        if (load->kind == KI_LOAD && load->arg == x->arg && load->idx != x->idx)
            return bad(k, u, "a load of what is stored elsewhere");
    }
    return ST_OK;
}

/* ---- carries ---- */

static Status verify_carried(const Kernel *k, VRef v)
{
    const KInst *x = &k->inst.at[v];
    uint32_t r = kernel_r_axes(k), nexts = 0;
    if (r & (r - 1))
        return bad(k, v, "a carry along several axes");
    if (x->kind == KI_CARRY && k->inst_axes.at[x->a] & r)
        return bad(k, v, "a carry that starts anew at each point");
    if (x->kind == KI_NEXT && k->inst.at[x->a].kind != KI_CARRY)
        return bad(k, v, "a next of what is no carry");
    if (x->kind == KI_NEXT && x->mode == ENDS && x->dtype != DT_BOOL)
        return bad(k, v, "a loop that ends by what is no bool");
    for (VRef u = v + 1; u < k->inst.n; u++) {
        VRef in[4];
        uint32_t n = kernel_operands(&k->inst.at[u], in);
        nexts += k->inst.at[u].kind == KI_NEXT && k->inst.at[u].a == v;
        if (k->inst.at[u].kind == KI_FOLD || k->inst.at[u].kind == KI_SORT || k->inst.at[u].kind == KI_SCATTER)
            return bad(k, u, "a fold beside a carry");
        for (uint32_t i = 0; i < n && x->kind == KI_NEXT; i++)
            if (in[i] == v && k->inst_axes.at[u] & r)
                return bad(k, u, "the end of a carry inside of its loop");
    }
    return x->kind == KI_NEXT || nexts == 1 ? ST_OK : bad(k, v, "a carry without one next");
}

/* ---- attention ---- */

/* The last axes are rows, columns, keys and what the dots fold: one dot, of rows and keys (of a chain two); one mean, of that and of the
 * values of the keys. */
static Status verify_attention(const Kernel *k, VRef v)
{
    const KInst *x = &k->inst.at[v];
    uint32_t n = k->axes.n;
    if (k->form != FORM_ATTENTION || (x->kind != KI_ATTEND && x->kind != KI_FOLD))
        return x->kind == KI_ATTEND ? bad(k, v, "an attention in a kernel of another form") : ST_OK;
    if (n < 4 || kernel_r_axes(k) != 3u << (n - 2))
        return bad(k, v, "an attention whose last two axes are not folded");
    uint32_t row = 1u << (n - 4), column = row << 1, key = row << 2, inner = row << 3;
    uint32_t a = k->inst_axes.at[x->a], b = x->b == VREF_NONE ? 0 : k->inst_axes.at[x->b], outer = column | inner;
    if (x->kind == KI_FOLD ? !inst_is_dot(x) || a & (column | key) || b & (row | column) : a & outer || b & (row | inner))
        return bad(k, v, "an attention of what depends on other axes");
    uint32_t dots = x->kind == KI_FOLD, most = x->kind == KI_ATTEND && !inst_is_chain(x) ? 1 : ATTEND_DOTS;
    for (VRef u = 0; u < v; u++) {
        dots += inst_is_dot(&k->inst.at[u]);
        if (dots > most || (x->kind == KI_ATTEND && k->inst.at[u].kind == KI_ATTEND))
            return bad(k, v, "an attention of several");
    }
    if (inst_is_chain(x) && x->mode & ATTEND_MOST && !kernel_folds_scores(k, x))
        return bad(k, v, "a greatest score with values");
    return dots ? ST_OK : bad(k, v, "an attention without a dot");
}

/* ---- axes beside each other ---- */

static Status verify_beside(const Kernel *k)
{
    const uint32_t beside = kernel_beside(k);
    uint32_t had = 0;
    VRef left = VREF_NONE;
    if (!beside)
        return ST_OK;
    for (uint32_t a = 0; a < k->axes.n; a++)
        if (k->axes.at[a].kind == AXIS_X
                ? beside >> a & 1 && a + 1 < k->axes.n && !(beside >> (a + 1) & 1) && k->axes.at[a + 1].kind == AXIS_X
                : beside >> a & 1)
            return fail(ST_INTERNAL, "broken kernel: axes beside axis %c are not the last ones that are not folded",
                        kernel_axis_letters[a]);
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *x = &k->inst.at[v];
        const uint32_t own = k->inst_axes.at[v] & beside;
        if (own & (own - 1))
            return bad(k, v, "what depends on two axes beside each other");
        if (x->kind == KI_STORE && !own)
            return bad(k, v, "a store that follows from no axis of those beside each other");
        if (!inst_reduces(x))
            continue;
        if (!inst_is_dot(x) || !own || own & had || k->inst_axes.at[x->a] & beside || (left != VREF_NONE && x->a != left))
            return bad(k, v, "not one dot of the same left operand for each axis of those beside each other");
        had |= own;
        left = x->a;
    }
    return had == beside ? ST_OK : fail(ST_INTERNAL, "broken kernel: axes without a dot beside each other");
}

/* ---- panels ---- */

/* Of a copy, as the index that it should have is made there. */
static Status verify_panels(const Kernel *k)
{
    Kernel *copy = NULL;
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *x = &k->inst.at[v];
        PanelLayout layout;
        if (x->kind != KI_LOAD || !k->args.at[x->arg].panel)
            continue;
        if (k->form != FORM_CONTRACT || k->args.at[x->arg].written || x->pred != VREF_NONE || !panel_layout_of(k, v, &layout))
            return bad(k, v, "panels that are not one product's");
        copy = copy ? copy : kernel_copy(k, k->arena);
        if (panel_index(copy, &layout) != x->idx)
            return bad(k, v, "an element of panels in another place");
    }
    return ST_OK;
}

/* ---- all ---- */

static Status verify_inst(const Kernel *k, VRef v)
{
    static const uint8_t arg_kind[] = {
        [KI_SCALAR] = ARG_SCALAR, [KI_LOAD] = ARG_BUFFER, [KI_STORE] = ARG_BUFFER, [KI_SCATTER] = ARG_BUFFER, [KI_BOUND] = ARG_FAULT};
    const KInst *x = &k->inst.at[v];
    if (x->kind > KI_BOUND || x->dtype >= DT_COUNT || x->op >= (x->kind == KI_FOLD ? (uint32_t)FOLD_COUNT : (uint32_t)OP_COUNT))
        return bad(k, v, "unknown kind, op or dtype");
    const KindRule *rule = &kind_rule[x->kind];
    VRef in[4];
    uint32_t n = kernel_operands(x, in);
    for (uint32_t i = 0; i < n; i++)
        if (in[i] >= v || !names_value(k, in[i]))
            return bad(k, v, "an operand that comes later, or gives no value");
    uint32_t want = rule->operands;
    if (want == OWN)
        want = x->kind == KI_OP ? (uint32_t)op_info[x->op].arity : fold_info[x->op].operands;
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
    if (x->kind == KI_FOLD && x->mode == RUNNING && x->op != FOLD_SUM)
        return bad(k, v, "a running fold that is no sum");
    if (inst_runs(x) && (x->kind == KI_SORT) != (k->form == FORM_SORT))
        return bad(k, v, "a sort in a kernel of another form");
    if ((x->kind == KI_FOLD || x->kind == KI_ATTEND || kernel_in_order(x)) && !kernel_r_axes(k))
        return bad(k, v, "a fold over no axis");
    if (x->kind == KI_CARRY || x->kind == KI_NEXT)
        TRY(verify_carried(k, v));
    TRY(verify_dtypes(k, v));
    TRY(verify_attention(k, v));
    TRY(verify_order(k, v));
    return x->kind == KI_STORE || x->kind == KI_SCATTER ? verify_store(k, v) : ST_OK;
}

Status kernel_verify(const Kernel *k)
{
    bool seen_r = false;
    int64_t fixed;
    if (k->axes.n > KERNEL_AXES)
        return fail(ST_INTERNAL, "broken kernel: %u axes", k->axes.n);
    for (uint32_t a = 0; a < k->axes.n; a++) {
        if (k->axes.at[a].kind == AXIS_X && seen_r)
            return fail(ST_INTERNAL, "broken kernel: axis %c is in front of one that is folded, or behind", kernel_axis_letters[a]);
        seen_r |= k->axes.at[a].kind == AXIS_R;
        if (!size_ok(k, k->axes.at[a].size) || (k->axes.at[a].bucket && kidx_is_const(k, k->axes.at[a].size, &fixed)))
            return fail(ST_INTERNAL, "broken kernel: a wrong size of axis %c", kernel_axis_letters[a]);
    }
    if (k->vec_axis != UINT32_MAX && k->vec_axis >= k->axes.n)
        return fail(ST_INTERNAL, "broken kernel: vec_axis %u", k->vec_axis);
    for (int i = 0; i < 3 && k->product[0] != IREF_NONE; i++)
        if (!size_ok(k, k->product[i]))
            return fail(ST_INTERNAL, "broken kernel: a wrong size of its matrix product");
    for (uint32_t a = 0; a < k->args.n; a++)
        if (k->args.at[a].expects && k->args.at[a].kind != ARG_SIZE)
            return fail(ST_INTERNAL, "broken kernel: argument %u is expected to be a number", a);
    bool acts = false; /* one that only looks whether a loop ends is enough */
    for (VRef v = 0; v < k->inst.n; v++) {
        TRY(verify_inst(k, v));
        acts |= k->inst.at[v].kind == KI_STORE || k->inst.at[v].kind == KI_SCATTER || k->inst.at[v].kind == KI_BOUND;
    }
    if (!acts)
        return fail(ST_INTERNAL, "broken kernel: it stores nothing");
    TRY(verify_beside(k));
    return verify_panels(k);
}
