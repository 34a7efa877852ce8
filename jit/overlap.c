/* Which values rows of windows have in common. */
#include "jit/overlap.h"

#include "jit/nest.h"

#include <string.h>

/* Rows along `across` and points: coordinates of these axes are constants. */
static uint32_t known_axes(const Kernel *k, uint32_t across) { return 1u << across | kernel_r_axes(k); }

/* A sum as it is taken apart: multiples of coordinates, of each factor that is no constant by itself. */
typedef struct Sum {
    uint32_t n;
    IRef factor[OVERLAP_FORMS]; /* IREF_NONE: 1 */
    int64_t times[OVERLAP_FORMS][KERNEL_AXES];
} Sum;

/* The bit of such a form; 0: there is no room. */
static uint32_t form_bit(Overlap *o, const int64_t *times)
{
    uint32_t at = 0;
    while (at < o->n && memcmp(o->times[at], times, sizeof o->times[at]) != 0)
        at++;
    if (at == OVERLAP_FORMS)
        return 0;
    if (at == o->n)
        memcpy(o->times[o->n++], times, sizeof o->times[at]);
    return 1u << at;
}

static bool add_term(Sum *s, IRef factor, uint32_t axis, int64_t times)
{
    uint32_t at = 0;
    while (at < s->n && s->factor[at] != factor)
        at++;
    if (at == OVERLAP_FORMS)
        return false;
    if (at == s->n) {
        s->factor[s->n++] = factor;
        memset(s->times[at], 0, sizeof s->times[at]);
    }
    return !__builtin_add_overflow(s->times[at][axis], times, &s->times[at][axis]);
}

static bool add_index(const Kernel *k, Overlap *o, IRef i, VRef v);

static bool add_terms(const Kernel *k, Overlap *o, IRef i, VRef v, Sum *s)
{
    const Idx *x = &k->idx.at[i];
    uint32_t known = known_axes(k, o->across);
    int64_t times = 1;
    if (!(k->idx_axes.at[i] & known))
        return true;
    if (x->kind == IX_ADD)
        return add_terms(k, o, x->a, v, s) && add_terms(k, o, x->b, v, s);
    if (x->kind == IX_AXIS)
        return add_term(s, IREF_NONE, x->a, 1);
    if (x->kind == IX_MUL && k->idx.at[x->a].kind == IX_AXIS && !(k->idx_axes.at[x->b] & known)) {
        bool constant = kidx_is_const(k, x->b, &times);
        return add_term(s, constant ? IREF_NONE : x->b, k->idx.at[x->a].a, times);
    }
    if (x->kind == IX_VALUE) {
        o->forms[v] |= o->forms[x->a];
        return !o->alone[x->a];
    }
    return add_index(k, o, x->a, v) && add_index(k, o, x->b, v); /* of equal operands, equal */
}

/* What v depends on through this index; false: that is not known. */
static bool add_index(const Kernel *k, Overlap *o, IRef i, VRef v)
{
    Sum s = {0};
    if (!add_terms(k, o, i, v, &s))
        return false;
    for (uint32_t t = 0; t < s.n; t++) {
        uint32_t bit = form_bit(o, s.times[t]);
        if (!bit)
            return false;
        o->forms[v] |= bit;
    }
    return true;
}

const Overlap *overlap_of(const KernelFacts *f, uint32_t across)
{
    const Kernel *k = f->k;
    Overlap *o = ARENA_ARRAY(f->arena, Overlap, 1);
    *o = (Overlap){
        .across = across, .forms = ARENA_ARRAY(f->arena, uint32_t, k->inst.n + 1), .alone = ARENA_ARRAY(f->arena, bool, k->inst.n + 1)};
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *n = &k->inst.at[v];
        VRef in[4];
        uint32_t n_in = kernel_operands(n, in);
        o->alone[v] = n->kind != KI_OP && n->kind != KI_LOAD && n->kind != KI_INDEX && n->kind != KI_CONST && n->kind != KI_SCALAR;
        for (uint32_t i = 0; i < n_in; i++) {
            o->forms[v] |= o->forms[in[i]];
            o->alone[v] |= o->alone[in[i]];
        }
        if (n->idx != IREF_NONE)
            o->alone[v] |= !add_index(k, o, n->idx, v);
    }
    return o;
}

void overlap_at(const KernelFacts *f, const Overlap *o, int64_t row, int64_t point, int64_t at[OVERLAP_FORMS])
{
    const Kernel *k = f->k;
    int64_t coordinate[KERNEL_AXES] = {0}, size;
    for (uint32_t a = k->axes.n; a-- > f->n_x;) {
        kidx_is_const(k, k->axes.at[a].size, &size);
        coordinate[a] = point % size;
        point /= size;
    }
    coordinate[o->across] = row;
    for (uint32_t i = 0; i < o->n; i++) {
        uint64_t sum = 0;
        for (uint32_t a = 0; a < k->axes.n; a++)
            sum += (uint64_t)o->times[i][a] * (uint64_t)coordinate[a];
        at[i] = (int64_t)sum;
    }
}

/* Are the forms of instruction v equal? */
static bool equal_at(const Overlap *o, VRef v, const int64_t *a, const int64_t *b)
{
    for (uint32_t i = 0; i < o->n; i++)
        if (o->forms[v] >> i & 1 && a[i] != b[i])
            return false;
    return true;
}

int64_t overlap_loads(const KernelFacts *f, const Overlap *o, int64_t rows)
{
    int64_t points = nest_points(f->k, kernel_r_axes(f->k)), loads = 0;
    int64_t(*at)[OVERLAP_FORMS] = arena_alloc(f->arena, (size_t)(rows * points) * sizeof *at);
    for (int64_t i = 0; i < rows * points; i++)
        overlap_at(f, o, i / points, i % points, at[i]);
    for (VRef v = 0; v < f->k->inst.n; v++) {
        bool lanes = f->k->inst_axes.at[v] >> (f->n_x - 1) & 1;
        if (f->k->inst.at[v].kind != KI_LOAD || !f->live[v] || !f->info[v].r_level || !lanes)
            continue;
        for (int64_t i = 0; i < rows * points; i++) {
            int64_t before = 0;
            while (before < i && (o->alone[v] || !equal_at(o, v, at[before], at[i])))
                before++;
            loads += before == i;
        }
    }
    return loads;
}
