/*
 * Kernels as data: making one, its interned index expressions and its interned instructions.
 *
 * An index expression is kept in one normal form, so that two expressions that are equal as
 * polynomials are the same IRef: a sum of terms in a fixed order, each a product of atoms (axes,
 * arguments, quotients, remainders, loaded values) in a fixed order with its constant on the right;
 * a constant term comes last. Multiplication is distributed. Every operation decodes its operands
 * into a Poly, works there, and encodes the result; the trees that are stored are left-associated,
 * which makes decoding a walk down two spines.
 *
 * Quotients and remainders (they come from reshapes) are simplified where axis sizes prove it:
 *     (q*b + s) / b = q + s/b       (q*b + s) % b = s % b          where s >= 0
 *     s / b = 0                     s % b = s                      where 0 <= s < b
 *     (s/b)*b + s%b = s             (g*q + s) / (g*c) = q / c      where 0 <= s < g
 *
 * An expression with more than MAX_TERMS terms or MAX_ATOMS factors is not decoded but taken as one
 * atom: still right, only less simplified. All arithmetic on constants wraps, as the machine's
 * will.
 *
 * Expressions share parts, but what walks one (here, the emitter, the text) walks a tree. A tree may
 * be exponentially larger than what is stored, so whoever makes long ones looks at idx_size
 * (MAX_INDEX in jit/fuse/fuse.h).
 */
#include "jit/kernel.h"

#include "ir/base/hash.h"

enum { MAX_TERMS = 40, MAX_ATOMS = 12 };

typedef struct Term {
    int64_t coef;
    uint32_t n;
    IRef atom[MAX_ATOMS];
} Term;

typedef struct Poly {
    uint32_t n;
    Term term[MAX_TERMS];
} Poly;

Kernel *kernel_new(Arena *arena)
{
    Kernel *k = ARENA_NEW(arena, Kernel);
    k->arena = arena;
    k->vec_axis = UINT32_MAX;
    memset(k->product, 0xff, sizeof k->product); /* IREF_NONE */
    return k;
}

Kernel *kernel_copy(const Kernel *k, Arena *arena)
{
    Kernel *copy = arena_copy(arena, k, sizeof *k);
    copy->arena = arena;
#define COPY(list) copy->list.at = arena_copy(arena, k->list.at, sizeof *k->list.at * (copy->list.cap = k->list.n))
    COPY(axes), COPY(idx), COPY(inst), COPY(args), COPY(idx_axes), COPY(idx_size), COPY(inst_axes);
#undef COPY
    copy->idx_table.slot = arena_copy(arena, k->idx_table.slot, sizeof *k->idx_table.slot * k->idx_table.cap);
    copy->inst_table.slot = arena_copy(arena, k->inst_table.slot, sizeof *k->inst_table.slot * k->inst_table.cap);
    return copy;
}

uint32_t kernel_add_axis(Kernel *k, AxisKind kind, IRef size, int64_t planned)
{
    KAxis axis = {.kind = (uint8_t)kind, .size = size};
    int64_t fixed;
    if (!kidx_is_const(k, size, &fixed))
        while (axis.bucket < KERNEL_BUCKETS && INT64_C(1) << axis.bucket < planned)
            axis.bucket++;
    VEC_PUSH(k->arena, k->axes, axis);
    return k->axes.n - 1;
}

int64_t kernel_extent(const Kernel *k, uint32_t axis)
{
    int64_t fixed;
    return kidx_is_const(k, k->axes.at[axis].size, &fixed) ? fixed : INT64_C(1) << k->axes.at[axis].bucket;
}

VRef kernel_ending(const Kernel *k)
{
    for (VRef v = 0; v < k->inst.n; v++)
        if (k->inst.at[v].kind == KI_NEXT && k->inst.at[v].mode == ENDS)
            return k->inst.at[v].a;
    return VREF_NONE;
}

uint32_t kernel_r_axes(const Kernel *k)
{
    uint32_t mask = 0;
    for (uint32_t a = 0; a < k->axes.n; a++)
        if (k->axes.at[a].kind == AXIS_R)
            mask |= 1u << a;
    return mask;
}

uint32_t kernel_beside(const Kernel *k)
{
    uint32_t axes = 0;
    for (uint32_t a = 1; a < k->axes.n; a++)
        if (k->axes.at[a].beside)
            axes |= 3u << (a - 1);
    return axes;
}

uint32_t kernel_fold_axes(const Kernel *k, const KInst *x)
{
    uint32_t inner = 1u << (k->axes.n - 1);
    if (k->form != FORM_ATTENTION)
        return kernel_r_axes(k);
    return x->kind == KI_ATTEND ? inner >> 1 : inner;
}

static int64_t wrap_add(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
static int64_t wrap_mul(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }

/* ---- interning ---- */

static uint32_t mix(uint32_t h, uint64_t v)
{
    uint64_t x = (h ^ v) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(x >> 32) ^ (uint32_t)v * 0x85ebca6bu;
}

static uint32_t idx_hash(const Idx *x) { return mix(mix(mix(x->kind, x->a), x->b), (uint64_t)x->value); }

static uint32_t inst_hash(const KInst *x)
{
    uint32_t h = mix(x->kind, (uint64_t)x->op << 16 | (uint64_t)x->dtype << 8 | x->mode);
    h = mix(h, (uint64_t)x->a << 32 | x->b);
    h = mix(h, (uint64_t)x->c << 32 | x->pred);
    h = mix(h, (uint64_t)x->arg << 32 | x->idx);
    return mix(h, x->imm);
}

/* The axes an expression depends on, through loaded values too. */
static uint32_t idx_axes_of(const Kernel *k, const Idx *x)
{
    switch ((IdxKind)x->kind) {
    case IX_CONST:
    case IX_ARG: return 0;
    case IX_AXIS: return 1u << x->a;
    case IX_VALUE: return k->inst_axes.at[x->a];
    case IX_ADD:
    case IX_MUL:
    case IX_DIV:
    case IX_MOD: return k->idx_axes.at[x->a] | k->idx_axes.at[x->b];
    }
    return 0;
}

static uint32_t idx_size_of(const Kernel *k, const Idx *x)
{
    if (x->kind != IX_ADD && x->kind != IX_MUL && x->kind != IX_DIV && x->kind != IX_MOD)
        return 1;
    uint64_t size = 1 + (uint64_t)k->idx_size.at[x->a] + k->idx_size.at[x->b];
    return size < UINT32_MAX ? (uint32_t)size : UINT32_MAX;
}

static IRef idx_intern(Kernel *k, Idx x)
{
    uint32_t hash = idx_hash(&x);
    for (uint32_t probe = 0, i; table_next(&k->idx_table, hash, &probe, &i);) {
        const Idx *y = &k->idx.at[i];
        if (y->kind == x.kind && y->a == x.a && y->b == x.b && y->value == x.value)
            return i;
    }
    VEC_PUSH(k->arena, k->idx, x);
    VEC_PUSH(k->arena, k->idx_axes, idx_axes_of(k, &x));
    VEC_PUSH(k->arena, k->idx_size, idx_size_of(k, &x));
    table_add(k->arena, &k->idx_table, hash, k->idx.n - 1);
    return k->idx.n - 1;
}

static IRef intern2(Kernel *k, IdxKind kind, IRef a, IRef b) { return idx_intern(k, (Idx){.kind = (uint8_t)kind, .a = a, .b = b}); }

IRef kidx_raw(Kernel *k, IdxKind kind, IRef a, IRef b) { return intern2(k, kind, a, b); }

IRef kidx_const(Kernel *k, int64_t value) { return idx_intern(k, (Idx){.kind = IX_CONST, .value = value}); }

IRef kidx_arg(Kernel *k, uint32_t arg) { return idx_intern(k, (Idx){.kind = IX_ARG, .a = arg}); }

IRef kidx_axis(Kernel *k, uint32_t axis) { return idx_intern(k, (Idx){.kind = IX_AXIS, .a = axis}); }

IRef kidx_value(Kernel *k, VRef value) { return idx_intern(k, (Idx){.kind = IX_VALUE, .a = value}); }

bool kidx_is_const(const Kernel *k, IRef i, int64_t *value)
{
    if (k->idx.at[i].kind != IX_CONST)
        return false;
    *value = k->idx.at[i].value;
    return true;
}

void kidx_mark_values(const Kernel *k, IRef i, bool *marked)
{
    const Idx *x = &k->idx.at[i];
    if (x->kind == IX_VALUE)
        marked[x->a] = true;
    if (x->kind == IX_ADD || x->kind == IX_MUL || x->kind == IX_DIV || x->kind == IX_MOD) {
        kidx_mark_values(k, x->a, marked);
        kidx_mark_values(k, x->b, marked);
    }
}

bool kidx_uses_axis(const Kernel *k, IRef i, uint32_t axis) { return k->idx_axes.at[i] >> axis & 1; }

/* ---- polynomials ---- */

/* Axes first (outermost first), then what depends on them, then arguments. */
static const uint8_t atom_rank[] = {
    [IX_AXIS] = 0, [IX_VALUE] = 1, [IX_DIV] = 2, [IX_MOD] = 3, [IX_ARG] = 4, [IX_ADD] = 5, [IX_MUL] = 6, [IX_CONST] = 7,
};

static int atom_compare(const Kernel *k, IRef i, IRef j)
{
    if (i == j)
        return 0;
    const Idx *x = &k->idx.at[i], *y = &k->idx.at[j];
    if (x->kind != y->kind)
        return atom_rank[x->kind] < atom_rank[y->kind] ? -1 : 1;
    if (x->kind == IX_AXIS || x->kind == IX_ARG || x->kind == IX_VALUE)
        return x->a < y->a ? -1 : 1;
    return i < j ? -1 : 1;
}

/* Order of terms; 0: the same atoms. Constants come last. */
static int term_compare(const Kernel *k, const Term *x, const Term *y)
{
    if (!x->n || !y->n)
        return x->n ? -1 : y->n ? 1 : 0;
    for (uint32_t i = 0; i < x->n && i < y->n; i++) {
        int c = atom_compare(k, x->atom[i], y->atom[i]);
        if (c)
            return c;
    }
    return x->n == y->n ? 0 : x->n > y->n ? -1 : 1;
}

/* Adds a term to a sum; false when the sum is full. */
static bool poly_add_term(const Kernel *k, Poly *p, const Term *t)
{
    if (!t->coef)
        return true;
    uint32_t at = p->n;
    while (at > 0) {
        int c = term_compare(k, &p->term[at - 1], t);
        if (c < 0)
            break;
        at--;
        if (c == 0) {
            p->term[at].coef = wrap_add(p->term[at].coef, t->coef);
            if (!p->term[at].coef) {
                memmove(&p->term[at], &p->term[at + 1], sizeof(Term) * (p->n - at - 1));
                p->n--;
            }
            return true;
        }
    }
    if (p->n == MAX_TERMS)
        return false;
    memmove(&p->term[at + 1], &p->term[at], sizeof(Term) * (p->n - at));
    p->term[at] = *t;
    p->n++;
    return true;
}

static bool term_mul_atom(const Kernel *k, Term *t, IRef atom)
{
    if (t->n == MAX_ATOMS)
        return false;
    uint32_t at = t->n++;
    for (; at > 0 && atom_compare(k, t->atom[at - 1], atom) > 0; at--)
        t->atom[at] = t->atom[at - 1];
    t->atom[at] = atom;
    return true;
}

/* A product as a term; what has too many factors is one atom. */
static void term_decode(const Kernel *k, IRef i, Term *t)
{
    t->coef = 1;
    t->n = 0;
    IRef at = i;
    while (k->idx.at[at].kind == IX_MUL) {
        IRef right = k->idx.at[at].b;
        if (k->idx.at[right].kind == IX_CONST)
            t->coef = wrap_mul(t->coef, k->idx.at[right].value);
        else if (!term_mul_atom(k, t, right))
            break;
        at = k->idx.at[at].a;
    }
    if (k->idx.at[at].kind == IX_CONST)
        t->coef = wrap_mul(t->coef, k->idx.at[at].value);
    else if (k->idx.at[at].kind == IX_MUL || !term_mul_atom(k, t, at))
        *t = (Term){.coef = 1, .n = 1, .atom = {i}};
}

static void poly_decode(const Kernel *k, IRef i, Poly *p)
{
    Term t;
    IRef at = i;
    p->n = 0;
    while (k->idx.at[at].kind == IX_ADD) {
        term_decode(k, k->idx.at[at].b, &t);
        if (!poly_add_term(k, p, &t))
            goto whole;
        at = k->idx.at[at].a;
    }
    term_decode(k, at, &t);
    if (poly_add_term(k, p, &t))
        return;
whole:
    p->n = 1;
    p->term[0] = (Term){.coef = 1, .n = 1, .atom = {i}};
}

static IRef term_encode(Kernel *k, const Term *t)
{
    if (!t->n)
        return kidx_const(k, t->coef);
    IRef product = t->atom[0];
    for (uint32_t i = 1; i < t->n; i++)
        product = intern2(k, IX_MUL, product, t->atom[i]);
    return t->coef == 1 ? product : intern2(k, IX_MUL, product, kidx_const(k, t->coef));
}

static IRef poly_encode(Kernel *k, const Poly *p)
{
    if (!p->n)
        return kidx_const(k, 0);
    IRef sum = term_encode(k, &p->term[0]);
    for (uint32_t i = 1; i < p->n; i++)
        sum = intern2(k, IX_ADD, sum, term_encode(k, &p->term[i]));
    return sum;
}

/* t without its atom number `drop`. */
static Term term_without(const Term *t, uint32_t drop)
{
    Term r = *t;
    memmove(&r.atom[drop], &r.atom[drop + 1], sizeof(IRef) * (t->n - drop - 1));
    r.n--;
    return r;
}

/* t / d, exactly, as products; false when d does not divide t. */
static bool term_divide(const Term *t, const Term *d, Term *quotient)
{
    if (!d->coef || t->coef % d->coef || (d->coef == -1 && t->coef == INT64_MIN))
        return false;
    Term r = *t;
    for (uint32_t i = 0; i < d->n; i++) {
        uint32_t at = 0;
        while (at < r.n && r.atom[at] != d->atom[i])
            at++;
        if (at == r.n)
            return false;
        r = term_without(&r, at);
    }
    r.coef = t->coef / d->coef;
    *quotient = r;
    return true;
}

/* (s/b)*b*m + (s%b)*m becomes s*m. */
static IRef join_remainders(Kernel *k, Poly *p)
{
    for (uint32_t i = 0; i < p->n; i++) {
        for (uint32_t a = 0; a < p->term[i].n; a++) {
            Idx mod = k->idx.at[p->term[i].atom[a]];
            if (mod.kind != IX_MOD)
                continue;
            Term cofactor = term_without(&p->term[i], a), by, want;
            IRef quotient = kidx_div(k, mod.a, mod.b); /* as it is written where it is a term: (x/3)/3 as x/9 */
            term_decode(k, mod.b, &by);
            want = cofactor;
            want.coef = wrap_mul(want.coef, by.coef);
            bool fits = term_mul_atom(k, &want, quotient);
            for (uint32_t j = 0; fits && j < by.n; j++)
                fits = term_mul_atom(k, &want, by.atom[j]);
            for (uint32_t j = 0; fits && j < p->n; j++) {
                if (term_compare(k, &p->term[j], &want) || p->term[j].coef != want.coef)
                    continue;
                Poly rest;
                rest.n = 0;
                for (uint32_t t = 0; t < p->n; t++)
                    if (t != i && t != j)
                        rest.term[rest.n++] = p->term[t];
                return kidx_add(k, poly_encode(k, &rest), kidx_mul(k, mod.a, term_encode(k, &cofactor)));
            }
        }
    }
    return poly_encode(k, p);
}

IRef kidx_add(Kernel *k, IRef a, IRef b)
{
    int64_t va = 0, vb = 0;
    bool ca = kidx_is_const(k, a, &va), cb = kidx_is_const(k, b, &vb);
    if (ca && cb)
        return kidx_const(k, wrap_add(va, vb));
    if (ca && va == 0)
        return b;
    if (cb && vb == 0)
        return a;
    Poly p, q;
    poly_decode(k, a, &p);
    poly_decode(k, b, &q);
    for (uint32_t i = 0; i < q.n; i++)
        if (!poly_add_term(k, &p, &q.term[i]))
            return intern2(k, IX_ADD, a, b);
    return join_remainders(k, &p);
}

static bool term_mul(const Kernel *k, const Term *x, const Term *y, Term *product)
{
    *product = *x;
    product->coef = wrap_mul(x->coef, y->coef);
    for (uint32_t i = 0; i < y->n; i++)
        if (!term_mul_atom(k, product, y->atom[i]))
            return false;
    return true;
}

IRef kidx_mul(Kernel *k, IRef a, IRef b)
{
    int64_t va = 0, vb = 0;
    bool ca = kidx_is_const(k, a, &va), cb = kidx_is_const(k, b, &vb);
    if (ca && cb)
        return kidx_const(k, wrap_mul(va, vb));
    if ((ca && va == 0) || (cb && vb == 1))
        return a;
    if ((cb && vb == 0) || (ca && va == 1))
        return b;
    Poly p, q, r;
    r.n = 0;
    poly_decode(k, a, &p);
    poly_decode(k, b, &q);
    for (uint32_t i = 0; i < p.n; i++) {
        for (uint32_t j = 0; j < q.n; j++) {
            Term t;
            if (!term_mul(k, &p.term[i], &q.term[j], &t) || !poly_add_term(k, &r, &t))
                return intern2(k, IX_MUL, a < b ? a : b, a < b ? b : a);
        }
    }
    return join_remainders(k, &r);
}

bool kidx_linear(Kernel *k, IRef i, uint32_t axis, IRef *coefficient, IRef *rest)
{
    Poly p, q, r;
    q.n = r.n = 0;
    if (!kidx_uses_axis(k, i, axis)) {
        *coefficient = kidx_const(k, 0);
        *rest = i;
        return true;
    }
    poly_decode(k, i, &p);
    for (uint32_t t = 0; t < p.n; t++) {
        Term *term = &p.term[t];
        uint32_t found = UINT32_MAX;
        for (uint32_t a = 0; a < term->n; a++) {
            if (!kidx_uses_axis(k, term->atom[a], axis))
                continue;
            if (k->idx.at[term->atom[a]].kind != IX_AXIS || found != UINT32_MAX)
                return false;
            found = a;
        }
        if (found == UINT32_MAX)
            r.term[r.n++] = *term;
        else {
            Term without = term_without(term, found);
            if (!poly_add_term(k, &q, &without))
                return false;
        }
    }
    *coefficient = poly_encode(k, &q);
    *rest = poly_encode(k, &r);
    return true;
}

/* ---- bounds ---- */

/* Never negative, for what the axes' sizes and the arguments' kinds say? */
static bool term_natural(const Kernel *k, const Term *t)
{
    if (t->coef < 0)
        return false;
    for (uint32_t i = 0; i < t->n; i++) {
        const Idx *x = &k->idx.at[t->atom[i]];
        if (x->kind == IX_ADD || x->kind == IX_MUL || (x->kind == IX_ARG && !k->args.at[x->a].natural))
            return false;
    }
    return true;
}

static bool poly_natural(const Kernel *k, const Poly *p)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (!term_natural(k, &p->term[i]))
            return false;
    return true;
}

/* most = q * b - 1 for some q: what is no more than it is, divided by b, at most q - 1. */
static bool below_multiple(Kernel *k, IRef most, IRef b, IRef *quotient)
{
    Poly above;
    Term by, q;
    poly_decode(k, kidx_add(k, most, kidx_const(k, 1)), &above);
    term_decode(k, b, &by);
    if (above.n != 1 || !term_natural(k, &by) || !term_divide(&above.term[0], &by, &q))
        return false;
    *quotient = kidx_add(k, term_encode(k, &q), kidx_const(k, -1));
    return true;
}

/* An upper bound of a natural polynomial, in sizes alone: each axis at its last coordinate. */
static bool poly_upper(Kernel *k, const Poly *p, IRef *upper)
{
    IRef sum = kidx_const(k, 0), minus1 = kidx_const(k, -1);
    for (uint32_t i = 0; i < p->n; i++) {
        IRef product = kidx_const(k, p->term[i].coef);
        for (uint32_t a = 0; a < p->term[i].n; a++) {
            Idx x = k->idx.at[p->term[i].atom[a]];
            int64_t by, most;
            IRef bound;
            if (x.kind == IX_ARG)
                bound = p->term[i].atom[a];
            else if (x.kind == IX_AXIS)
                bound = kidx_add(k, k->axes.at[x.a].size, minus1);
            else if (x.kind == IX_MOD)
                bound = kidx_add(k, x.b, minus1);
            else if (x.kind == IX_DIV) {
                Poly inner;
                poly_decode(k, x.a, &inner);
                if (!poly_natural(k, &inner) || !poly_upper(k, &inner, &bound))
                    return false;
                if (kidx_is_const(k, x.b, &by) && by > 0 && kidx_is_const(k, bound, &most))
                    bound = kidx_const(k, most / by);
                else if (!below_multiple(k, bound, x.b, &bound))
                    return false;
            } else
                return false;
            product = kidx_mul(k, product, bound);
        }
        sum = kidx_add(k, sum, product);
    }
    *upper = sum;
    return true;
}

/* 0 <= p < bound, provably? */
static bool poly_below(Kernel *k, const Poly *p, IRef bound)
{
    IRef upper;
    Poly room;
    if (!poly_natural(k, p) || !poly_upper(k, p, &upper))
        return false;
    IRef spare = kidx_add(k, bound, kidx_add(k, kidx_mul(k, upper, kidx_const(k, -1)), kidx_const(k, -1)));
    poly_decode(k, spare, &room);
    return poly_natural(k, &room);
}

static int64_t gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t r = a % b;
        a = b;
        b = r;
    }
    return a < 0 ? -a : a;
}

/* p = g*high + low with 0 <= low < g for some divisor g of b, 1 < g < b: finds the largest. */
static bool split_by_factor(Kernel *k, const Poly *p, int64_t b, int64_t *g, Poly *high, Poly *low)
{
    int64_t below = b;
    for (;;) {
        int64_t best = 0;
        for (uint32_t i = 0; i < p->n; i++) {
            int64_t c = p->term[i].coef == INT64_MIN ? 1 : gcd(b, p->term[i].coef);
            if (c > best && c < below)
                best = c;
        }
        if (best <= 1)
            return false;
        high->n = low->n = 0;
        for (uint32_t i = 0; i < p->n; i++) {
            if (p->term[i].coef % best)
                low->term[low->n++] = p->term[i];
            else {
                high->term[high->n] = p->term[i];
                high->term[high->n++].coef /= best;
            }
        }
        if (poly_natural(k, high) && poly_below(k, low, kidx_const(k, best))) {
            *g = best;
            return true;
        }
        below = best;
    }
}

/* The common part of / and %: takes multiples of b out of a (*quotient) and says what is left
 * (*left). */
static bool take_multiples(Kernel *k, IRef a, IRef b, IRef *quotient, Poly *left)
{
    Poly p, q;
    Term by, t;
    q.n = 0;
    poly_decode(k, a, &p);
    left->n = 0;
    if (k->idx.at[b].kind == IX_ADD) {
        *left = p;
        *quotient = kidx_const(k, 0);
        return poly_natural(k, left);
    }
    term_decode(k, b, &by);
    for (uint32_t i = 0; i < p.n; i++) {
        if (term_divide(&p.term[i], &by, &t))
            (void)poly_add_term(k, &q, &t);
        else
            left->term[left->n++] = p.term[i];
    }
    /* a constant beyond b leaves its remainder */
    if (left->n && !left->term[left->n - 1].n && !by.n && by.coef > 0) {
        Term *c = &left->term[left->n - 1];
        int64_t whole = c->coef / by.coef - (c->coef % by.coef < 0);
        Term add = {.coef = whole};
        c->coef -= whole * by.coef;
        if (!poly_add_term(k, &q, &add))
            return false;
        if (!c->coef)
            left->n--;
    }
    *quotient = poly_encode(k, &q);
    return poly_natural(k, left);
}

IRef kidx_div(Kernel *k, IRef a, IRef b)
{
    int64_t va = 0, vb = 0;
    bool ca = kidx_is_const(k, a, &va), cb = kidx_is_const(k, b, &vb);
    if (cb && vb == 1)
        return a;
    if ((ca && va == 0) || (cb && vb == 0))
        return kidx_const(k, 0);
    if (ca && cb && vb > 0)
        return kidx_const(k, va / vb - (va % vb < 0));
    Poly left, high, low;
    IRef quotient;
    if (!take_multiples(k, a, b, &quotient, &left))
        return intern2(k, IX_DIV, a, b);
    if (!left.n || poly_below(k, &left, b))
        return quotient;
    int64_t g;
    if (cb && vb > 0 && split_by_factor(k, &left, vb, &g, &high, &low))
        return kidx_add(k, quotient, kidx_div(k, poly_encode(k, &high), kidx_const(k, vb / g)));
    IRef rest = poly_encode(k, &left);
    Idx inner = k->idx.at[rest];
    IRef part = inner.kind == IX_DIV ? intern2(k, IX_DIV, inner.a, kidx_mul(k, inner.b, b)) : intern2(k, IX_DIV, rest, b);
    return kidx_add(k, quotient, part);
}

IRef kidx_mod(Kernel *k, IRef a, IRef b)
{
    int64_t va = 0, vb = 0;
    bool ca = kidx_is_const(k, a, &va), cb = kidx_is_const(k, b, &vb);
    if ((cb && (vb == 1 || vb == 0)) || (ca && va == 0))
        return kidx_const(k, 0);
    if (ca && cb && vb > 0)
        return kidx_const(k, va % vb + (va % vb < 0 ? vb : 0));
    Poly left, high, low;
    IRef quotient;
    if (!take_multiples(k, a, b, &quotient, &left))
        return intern2(k, IX_MOD, a, b);
    IRef rest = poly_encode(k, &left);
    if (!left.n || poly_below(k, &left, b))
        return rest;
    int64_t g;
    if (cb && vb > 0 && split_by_factor(k, &left, vb, &g, &high, &low)) {
        IRef turn = kidx_mod(k, poly_encode(k, &high), kidx_const(k, vb / g));
        return kidx_add(k, kidx_mul(k, turn, kidx_const(k, g)), poly_encode(k, &low));
    }
    return intern2(k, IX_MOD, rest, b);
}

bool kidx_below(Kernel *k, IRef i, IRef bound)
{
    Poly p;
    poly_decode(k, i, &p);
    return poly_below(k, &p, bound);
}

/* ---- merging axes, and copying between kernels ---- */

bool kidx_mergeable(Kernel *k, IRef i, uint32_t outer)
{
    uint32_t inner = outer + 1;
    if (!(k->idx_axes.at[i] >> outer & 3))
        return true;
    Poly p, a, b;
    a.n = b.n = 0;
    poly_decode(k, i, &p);
    for (uint32_t t = 0; t < p.n; t++) {
        Term *term = &p.term[t];
        uint32_t plain = UINT32_MAX;
        for (uint32_t x = 0; x < term->n; x++) {
            Idx atom = k->idx.at[term->atom[x]];
            if (!(k->idx_axes.at[term->atom[x]] >> outer & 3) || atom.kind == IX_VALUE)
                continue;
            if (atom.kind == IX_AXIS) {
                if (plain != UINT32_MAX)
                    return false;
                plain = x;
            } else if (atom.kind != IX_DIV && atom.kind != IX_MOD)
                return false;
            else if (!kidx_mergeable(k, atom.a, outer) || !kidx_mergeable(k, atom.b, outer))
                return false;
        }
        if (plain == UINT32_MAX)
            continue;
        bool is_outer = k->idx.at[term->atom[plain]].a == outer;
        Term without = term_without(term, plain);
        if (!poly_add_term(k, is_outer ? &a : &b, &without))
            return false;
    }
    return poly_encode(k, &a) == kidx_mul(k, poly_encode(k, &b), k->axes.at[inner].size);
}

IRef kidx_copy(Kernel *to, const Kernel *from, IRef i, const KMap *map)
{
    Poly p;
    poly_decode(from, i, &p);
    IRef sum = kidx_const(to, 0);
    for (uint32_t t = 0; t < p.n; t++) {
        IRef product = kidx_const(to, p.term[t].coef);
        for (uint32_t x = 0; x < p.term[t].n && product != IREF_NONE; x++) {
            Idx atom = from->idx.at[p.term[t].atom[x]];
            IRef factor = IREF_NONE;
            switch ((IdxKind)atom.kind) {
            case IX_CONST: factor = kidx_const(to, atom.value); break;
            case IX_ARG: factor = map->size(map->user, atom.a); break;
            case IX_AXIS: /* an outer part of merged axes: its term lives on in the innermost one's
                           */
                factor = map->place ? map->place[atom.a] : map->axis[atom.a] == UINT32_MAX ? IREF_NONE : kidx_axis(to, map->axis[atom.a]);
                break;
            case IX_VALUE: factor = kidx_value(to, map->value[atom.a]); break;
            case IX_DIV: factor = kidx_div(to, kidx_copy(to, from, atom.a, map), kidx_copy(to, from, atom.b, map)); break;
            case IX_MOD: factor = kidx_mod(to, kidx_copy(to, from, atom.a, map), kidx_copy(to, from, atom.b, map)); break;
            case IX_ADD: factor = kidx_add(to, kidx_copy(to, from, atom.a, map), kidx_copy(to, from, atom.b, map)); break;
            case IX_MUL: factor = kidx_mul(to, kidx_copy(to, from, atom.a, map), kidx_copy(to, from, atom.b, map)); break;
            }
            product = factor == IREF_NONE ? IREF_NONE : kidx_mul(to, product, factor);
        }
        if (product != IREF_NONE)
            sum = kidx_add(to, sum, product);
    }
    return sum;
}

/* ---- instructions ---- */

uint32_t kernel_operands(const KInst *inst, VRef out[4])
{
    uint32_t n = 0;
    if (inst->a != VREF_NONE)
        out[n++] = inst->a;
    if (inst->b != VREF_NONE)
        out[n++] = inst->b;
    if (inst->c != VREF_NONE)
        out[n++] = inst->c;
    if (inst->pred != VREF_NONE)
        out[n++] = inst->pred;
    return n;
}

Op inst_graph_op(const KInst *x)
{
    switch ((InstKind)x->kind) {
    case KI_OP: return (Op)x->op;
    case KI_FOLD: return inst_runs(x) ? OP_CUMSUM : (Op)fold_info[x->op].op;
    case KI_SORT: return OP_ARGSORT;
    case KI_ATTEND:
    case KI_CARRY:
    case KI_NEXT:
    case KI_SCALAR:
    case KI_CONST:
    case KI_INDEX:
    case KI_LOAD:
    case KI_STORE:
    case KI_SCATTER:
    case KI_BOUND: return OP_COUNT;
    }
    return OP_COUNT;
}

/* The axes a new instruction depends on. */
static uint32_t inst_axes_of(const Kernel *k, const KInst *x)
{
    VRef in[4];
    uint32_t n = kernel_operands(x, in), axes = x->idx == IREF_NONE ? 0 : k->idx_axes.at[x->idx];
    for (uint32_t i = 0; i < n; i++)
        axes |= k->inst_axes.at[in[i]];
    if (x->kind == KI_CARRY) /* what it becomes may depend on any */
        return k->axes.n ? UINT32_MAX >> (32 - k->axes.n) : 0;
    if (kernel_ends(x))
        return axes & ~kernel_fold_axes(k, x);
    if (inst_runs(x) || x->kind == KI_SCATTER)
        return axes | kernel_r_axes(k);
    return axes;
}

static bool inst_equal(const KInst *x, const KInst *y)
{
    return x->kind == y->kind && x->op == y->op && x->dtype == y->dtype && x->mode == y->mode && x->save == y->save && x->arg == y->arg &&
           x->a == y->a && x->b == y->b && x->c == y->c && x->pred == y->pred && x->idx == y->idx && x->imm == y->imm &&
           order_same(x->order, y->order);
}

/* f16 or bf16, that a value is or was widened from; else f32. */
static DType half_type(const Kernel *k, VRef v)
{
    const KInst *x = &k->inst.at[v];
    if (x->kind == KI_OP && x->op == OP_CAST && x->dtype == DT_F32)
        x = &k->inst.at[x->a];
    return dtype_is_half((DType)x->dtype) ? (DType)x->dtype : DT_F32;
}

bool kernel_folds_scores(const Kernel *k, const KInst *x)
{
    const KInst *b = &k->inst.at[x->b];
    return inst_is_chain(x) && b->kind == KI_CONST && b->dtype == DT_F32 && b->imm == scalar_from_double(DT_F32, 1);
}

DType kernel_attend_type(const Kernel *k)
{
    DType type = DT_COUNT;
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *x = &k->inst.at[v];
        if (x->kind != KI_ATTEND && !inst_is_dot(x))
            continue;
        if (kernel_folds_scores(k, x)) /* no values */
            continue;
        DType of = half_type(k, x->b);
        bool alike = (type == DT_COUNT || type == of) && (x->kind == KI_ATTEND || half_type(k, x->a) == of);
        type = alike ? of : DT_F32;
    }
    return type;
}

DType kernel_fold_of(const Kernel *k, const KInst *fold)
{
    if (inst_is_dot(fold))
        return (DType)k->inst.at[fold->a].dtype;
    return fold_state((Fold)fold->op, (DType)(inst_has_place(fold) ? k->inst.at[fold->a].dtype : fold->dtype));
}

void kernel_set_orders(Kernel *k, OrderDevice device, MathMode math)
{
    for (VRef v = 0; v < k->inst.n; v++) {
        KInst *x = &k->inst.at[v];
        if (x->kind == KI_FOLD)
            x->order = order_of((Fold)x->op, inst_runs(x), kernel_fold_of(k, x), device, math);
    }
}

Order kernel_order(const Kernel *k, OrderDevice device)
{
    for (VRef v = 0; v < k->inst.n; v++)
        if (k->inst.at[v].order.kind == ORD_LANES)
            return k->inst.at[v].order;
    return order_of(FOLD_SUM, false, DT_F32, device, MATH_STRICT);
}

uint32_t kernel_dot_block(const KInst *dot)
{
    return dot->order.kind == ORD_CHAIN || dot->order.kind == ORD_PAIRS ? dot->order.block
                                                                        : order_of(FOLD_DOT, false, DT_F32, ORDER_HOST, MATH_STRICT).block;
}

VRef kernel_inst(Kernel *k, KInst inst)
{
    bool pure = inst.kind != KI_STORE && inst.kind != KI_SCATTER && inst.kind != KI_CARRY && inst.kind != KI_NEXT;
    uint32_t hash = inst_hash(&inst);
    for (uint32_t probe = 0, i; pure && table_next(&k->inst_table, hash, &probe, &i);)
        if (inst_equal(&k->inst.at[i], &inst))
            return i;
    VEC_PUSH(k->arena, k->inst, inst);
    VEC_PUSH(k->arena, k->inst_axes, inst_axes_of(k, &inst));
    if (pure)
        table_add(k->arena, &k->inst_table, hash, k->inst.n - 1);
    return k->inst.n - 1;
}

static void drop_from(VRef *at, VRef v, VRef instead)
{
    if (*at != VREF_NONE && *at >= v)
        *at = *at == v ? instead : *at - 1;
}

void kernel_drop(Kernel *k, VRef v, VRef instead)
{
    k->inst.n--;
    k->inst_axes.n--;
    memmove(k->inst.at + v, k->inst.at + v + 1, sizeof *k->inst.at * (k->inst.n - v));
    memmove(k->inst_axes.at + v, k->inst_axes.at + v + 1, sizeof *k->inst_axes.at * (k->inst.n - v));
    for (VRef i = v; i < k->inst.n; i++) {
        KInst *x = &k->inst.at[i];
        drop_from(&x->a, v, instead);
        drop_from(&x->b, v, instead);
        drop_from(&x->c, v, instead);
        drop_from(&x->pred, v, instead);
    }
    for (IRef i = 0; i < k->idx.n; i++)
        if (k->idx.at[i].kind == IX_VALUE)
            drop_from(&k->idx.at[i].a, v, instead);
}

VRef kernel_index(Kernel *k, IRef i)
{
    KInst inst = KINST(.kind = KI_INDEX, .dtype = DT_I64);
    int64_t value;
    if (kidx_is_const(k, i, &value))
        return kernel_inst(k, KINST(.kind = KI_CONST, .dtype = DT_I64, .imm = (uint64_t)value));
    inst.idx = i;
    return kernel_inst(k, inst);
}
