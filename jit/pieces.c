/* Where comparisons cut an axis, and what is known in each piece. */
#include "jit/pieces.h"

#include "jit/kernel_text.h"

#include <string.h>

/* ---- cuts ---- */

static bool cut_add(Cut *c, IRef of, int64_t times)
{
    uint32_t t = 0;
    while (t < c->n && c->term[t].of != of)
        t++;
    if (t == CUT_TERMS)
        return false;
    if (t == c->n)
        c->term[c->n++] = (CutTerm){.of = of};
    if (__builtin_add_overflow(c->term[t].times, times, &c->term[t].times))
        return false;
    if (!c->term[t].times)
        c->term[t] = c->term[--c->n];
    return true;
}

/* Adds sign * i; of axes only as they are. */
static bool cut_add_index(const Kernel *k, Cut *c, IRef i, int64_t sign)
{
    const Idx *x = &k->idx.at[i];
    int64_t factor;
    if (x->kind == IX_ADD)
        return cut_add_index(k, c, x->a, sign) && cut_add_index(k, c, x->b, sign);
    if (x->kind != IX_AXIS && k->idx_axes.at[i])
        return false;
    if (x->kind == IX_CONST)
        return !__builtin_mul_overflow(sign, x->value, &factor) && cut_add(c, IREF_NONE, factor);
    if (x->kind == IX_MUL && kidx_is_const(k, x->b, &factor))
        return !__builtin_mul_overflow(sign, factor, &factor) && cut_add(c, x->a, factor);
    return cut_add(c, i, sign);
}

/* Takes out the axis, which must be there as it is on the left. */
static bool cut_without_axis(const Kernel *k, Cut *c)
{
    uint32_t axes = 0;
    for (uint32_t t = c->n; t-- > 0;) {
        if (c->term[t].of == IREF_NONE || k->idx.at[c->term[t].of].kind != IX_AXIS)
            continue;
        axes += c->term[t].times == -1 ? 1 : 2;
        c->term[t] = c->term[--c->n];
    }
    return axes == 1;
}

/* Is this a comparison of a coordinate of `axis`, true from some place on or up to it? That place. */
static bool cut_of(const Kernel *k, VRef v, uint32_t axis, Cut *c)
{
    const KInst *n = &k->inst.at[v];
    if (n->kind != KI_OP || (n->op != OP_LT && n->op != OP_GE && n->op != OP_LE && n->op != OP_GT))
        return false;
    const KInst *left = &k->inst.at[n->a], *right = &k->inst.at[n->b];
    *c = (Cut){0};
    if (left->kind != KI_INDEX || k->inst_axes.at[n->a] != 1u << axis || k->inst_axes.at[n->b])
        return false;
    if (right->kind == KI_CONST ? !cut_add(c, IREF_NONE, (int64_t)right->imm)
                                : right->kind != KI_INDEX || !cut_add_index(k, c, right->idx, 1))
        return false;
    return cut_add_index(k, c, left->idx, -1) && cut_without_axis(k, c) && ((n->op != OP_LE && n->op != OP_GT) || cut_add(c, IREF_NONE, 1));
}

static bool natural(const Kernel *k, IRef i)
{
    const Idx *x = &k->idx.at[i];
    if (x->kind == IX_ADD || x->kind == IX_MUL)
        return natural(k, x->a) && natural(k, x->b);
    return x->kind == IX_CONST ? x->value >= 0 : x->kind == IX_ARG && k->args.at[x->a].natural;
}

static int64_t times_of(const Cut *c, IRef of)
{
    for (uint32_t t = 0; t < c->n; t++)
        if (c->term[t].of == of)
            return c->term[t].times;
    return 0;
}

/* Does a <= b follow? */
static bool cut_before(const Kernel *k, const Cut *a, const Cut *b)
{
    for (int side = 0; side < 2; side++) {
        const Cut *c = side ? b : a;
        for (uint32_t t = 0; t < c->n; t++) {
            IRef of = c->term[t].of;
            int64_t more;
            if (__builtin_sub_overflow(times_of(b, of), times_of(a, of), &more) || more < 0 ||
                (more > 0 && of != IREF_NONE && !natural(k, of)))
                return false;
        }
    }
    return true;
}

/* Puts a cut in its place among those in order; false: that is not known, or there are too many. */
static bool cut_insert(const Kernel *k, Pieces *p, const Cut *c)
{
    uint32_t at = p->n - 1;
    for (; at > 0 && !cut_before(k, &p->cut[at - 1], c); at--)
        if (!cut_before(k, c, &p->cut[at - 1]))
            return false;
    if (at > 0 && cut_before(k, c, &p->cut[at - 1]))
        return true; /* it is there */
    if (p->n == MOST_PIECES)
        return false;
    memmove(&p->cut[at + 1], &p->cut[at], sizeof(Cut) * (p->n - 1 - at));
    p->cut[at] = *c;
    p->n++;
    return true;
}

/* ---- what is known in a piece ---- */

static int8_t says_op(const int8_t *says, const KInst *n)
{
    int8_t a = says[n->a], b = n->b == VREF_NONE ? -1 : says[n->b];
    switch ((Op)n->op) { /* of bools; all other ops are not known */
    case OP_NOT: return a < 0 ? a : !a;
    case OP_AND: return a == 0 || b == 0 ? 0 : a < 0 || b < 0 ? -1 : 1;
    case OP_OR: return a == 1 || b == 1 ? 1 : a < 0 || b < 0 ? -1 : 0;
    default: return -1;
    }
}

static void say_all(const Kernel *k, const Pieces *p, uint32_t piece)
{
    int8_t *says = p->says[piece];
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *n = &k->inst.at[v];
        Cut c;
        says[v] = -1;
        if (n->dtype != DT_BOOL)
            continue;
        if (n->kind == KI_CONST)
            says[v] = n->imm != 0;
        else if (cut_of(k, v, p->axis, &c))
            says[v] = (piece > 0 && cut_before(k, &c, &p->cut[piece - 1])) == (n->op == OP_GE || n->op == OP_GT);
        else if (n->kind == KI_OP)
            says[v] = says_op(says, n);
    }
}

const Pieces *pieces_of(const KernelFacts *f, uint32_t axis)
{
    const Kernel *k = f->k;
    Pieces *p = ARENA_ARRAY(f->arena, Pieces, 1);
    *p = (Pieces){.axis = axis, .n = 1};
    Cut c;
    if (f->n_r && k->form != FORM_CONTRACT)
        return NULL;
    for (VRef v = 0; v < k->inst.n; v++)
        if (f->live[v] && cut_of(k, v, axis, &c) && !cut_insert(k, p, &c))
            return NULL;
    if (p->n == 1)
        return NULL;
    for (uint32_t i = 0; i < p->n; i++) {
        p->says[i] = ARENA_ARRAY(f->arena, int8_t, k->inst.n + 1);
        say_all(k, p, i);
    }
    return p;
}

void piece_part(const KernelFacts *f, const Pieces *p, uint32_t piece, bool *part)
{
    const Kernel *k = f->k;
    const int8_t *says = p->says[piece];
    memset(part, 0, k->inst.n * sizeof *part);
    for (uint32_t i = k->inst.n; i-- > 0;) {
        const KInst *n = &k->inst.at[i];
        VRef in[4];
        part[i] |= (n->kind == KI_STORE || f->checked[i]) && f->live[i];
        if (!part[i])
            continue;
        bool where = n->kind == KI_OP && n->op == OP_WHERE && says[n->a] >= 0;
        uint32_t n_in = where ? 1 : kernel_operands(n, in);
        if (where)
            in[0] = says[n->a] ? n->b : n->c;
        if (n->kind == KI_LOAD && n->pred != VREF_NONE && says[n->pred] == 0)
            continue;
        for (uint32_t o = 0; o < n_in; o++)
            part[in[o]] |= says[in[o]] < 0;
    }
}

/* ---- windows ---- */

/* Does this compare a coordinate of points of windows, which grows along an x axis and may along r axes, with a number? */
static bool asks_edge(const Kernel *k, VRef v, uint32_t n_x)
{
    const KInst *n = &k->inst.at[v];
    if (n->kind != KI_OP || (n->op != OP_LT && n->op != OP_GE && n->op != OP_LE && n->op != OP_GT))
        return false;
    const KInst *left = &k->inst.at[n->a], *right = &k->inst.at[n->b];
    int64_t times[KERNEL_AXES] = {0};
    if (left->kind != KI_INDEX || (right->kind != KI_INDEX && right->kind != KI_CONST) || k->inst_axes.at[n->b] ||
        index_through_value(k, left->idx) || (right->kind == KI_INDEX && index_through_value(k, right->idx)) ||
        !index_linear(k, left->idx, UINT32_MAX, times))
        return false;
    for (uint32_t a = 0; a < k->axes.n; a++)
        if (times[a] < 0 || times[a] > INT32_MAX)
            return false;
    return k->inst_axes.at[n->a] & ((1u << n_x) - 1);
}

/* A comparison of coordinates that is the same for all of a row along `axis`, and no edge: the first one, or VREF_NONE. */
static VRef choice_of(const KernelFacts *f, uint32_t axis)
{
    const Kernel *k = f->k;
    for (VRef v = 0; v < k->inst.n && !f->n_r; v++) {
        const KInst *n = &k->inst.at[v];
        if (!f->live[v] || n->kind != KI_OP || n->dtype != DT_BOOL || n->b == VREF_NONE || n->c != VREF_NONE)
            continue;
        const KInst *left = &k->inst.at[n->a], *right = &k->inst.at[n->b];
        const bool coordinate = left->kind == KI_INDEX && !index_through_value(k, left->idx), number = right->kind == KI_CONST;
        if (coordinate && number && k->inst_axes.at[v] && !(k->inst_axes.at[v] >> axis & 1) && !asks_edge(k, v, f->n_x))
            return v;
    }
    return VREF_NONE;
}

const Inside *inside_of(const KernelFacts *f, uint32_t axis)
{
    const Kernel *k = f->k;
    bool along = false;
    uint32_t asked = 0; /* axes */
    Inside *in = ARENA_ARRAY(f->arena, Inside, 1);
    *in = (Inside){.holds = ARENA_ARRAY(f->arena, VRef, k->inst.n + 1),
                   .choice = choice_of(f, axis),
                   .asks = ARENA_ARRAY(f->arena, bool, k->inst.n + 1)};
    for (int way = 0; way < 4; way++)
        in->says[way / 2][way % 2] = ARENA_ARRAY(f->arena, int8_t, k->inst.n + 1);
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *n = &k->inst.at[v];
        bool edge = f->live[v] && n->dtype == DT_BOOL && asks_edge(k, v, f->n_x), here = edge && k->inst_axes.at[n->a] >> axis & 1;
        VRef from[4];
        uint32_t n_from = kernel_operands(n, from);
        in->asks[v] = edge || v == in->choice;
        for (uint32_t i = 0; i < n_from; i++)
            in->asks[v] |= in->asks[from[i]];
        along |= here;
        asked |= edge ? k->inst_axes.at[n->a] : 0;
        if (edge)
            in->holds[in->n++] = v;
        for (int way = 0; way < 4; way++) {
            const int row = way / 2;
            int8_t *says = in->says[row][way % 2];
            bool op = n->dtype == DT_BOOL && n->kind == KI_OP, number = n->dtype == DT_BOOL && n->kind == KI_CONST;
            says[v] = edge && !(row && here) ? 1 : number ? n->imm != 0 : v == in->choice ? way % 2 : op && !edge ? says_op(says, n) : -1;
        }
    }
    for (IRef i = 0; i < k->idx.n; i++) /* coordinates are a row's, where what they are made of is */
        along &= k->idx.at[i].kind != IX_VALUE || !in->asks[k->idx.at[i].a];
    return along && (f->n_r || asked & (asked - 1)) ? in : NULL;
}

bool inside_mostly(const KernelFacts *f, const Inside *in)
{
    const Kernel *k = f->k;
    int64_t from[KERNEL_AXES] = {0}, to[KERNEL_AXES] = {0}, size;
    double share = 1;
    for (uint32_t h = 0; h < in->n; h++) {
        const KInst *n = &k->inst.at[in->holds[h]];
        const uint32_t axis = (uint32_t)__builtin_ctz(k->inst_axes.at[n->a]);
        Cut c;
        if (!kidx_is_const(k, k->axes.at[axis].size, &size) || !cut_of(k, in->holds[h], axis, &c) ||
            (c.n && (c.n > 1 || c.term[0].of != IREF_NONE)))
            return false;
        const int64_t at = times_of(&c, IREF_NONE);
        to[axis] = to[axis] ? to[axis] : size;
        if (n->op == OP_GE || n->op == OP_GT)
            from[axis] = at > from[axis] ? at : from[axis];
        else
            to[axis] = at < to[axis] ? at : to[axis];
        if (from[axis] >= to[axis])
            return false;
    }
    for (uint32_t a = 0; a < f->n_x; a++)
        share *= to[a] && kidx_is_const(k, k->axes.at[a].size, &size) ? (double)(to[a] - from[a]) / (double)size : 1;
    return share > 0.5;
}

bool pieces_lengths(const Kernel *k, const Pieces *p, int64_t length[MOST_PIECES])
{
    int64_t from = 0, size;
    bool fixed = kidx_is_const(k, k->axes.at[p->axis].size, &size), all = fixed;
    for (uint32_t i = 0; i < p->n; i++) {
        const Cut *c = &p->cut[i];
        bool last = i + 1 == p->n, known = fixed && (last || !c->n || (c->n == 1 && c->term[0].of == IREF_NONE));
        int64_t to = !known ? -1 : last ? size : times_of(c, IREF_NONE);
        to = !known ? -1 : to < 0 ? 0 : to > size ? size : to;
        length[i] = known && from >= 0 ? (to > from ? to - from : 0) : -1;
        all &= known;
        from = to;
    }
    return all;
}
