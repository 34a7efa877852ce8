/*
 * How wide a kernel's index arithmetic is on a device whose registers have 32 bits: 32 where every offset, coordinate and
 * size provably fits, else 64. A 64-bit sum takes two instructions there, a product four, a quotient a hundred.
 *
 * Each index expression gets an interval, low <= 0 <= high, of sizes: a coordinate lies below its axis' size, a stride is taken to
 * keep the sign that it has now, the rest is interval arithmetic. What holds by constants needs no guard; of the others the program
 * gets a guard, so a larger tensor is met by another program, whose indices are 64 bits wide. Sums and products may wrap half
 * way, only their final value counts; operands of quotients and remainders count as well.
 *
 * KILN_TEST_FAIL=index:16 lowers the limit to 15 bits, and the code really has no more.
 */
#include "jit/fuse.h"

#include "ir/query.h"

#define WHO "32-bit indexing"

typedef struct Interval {
    Dim low, high;
} Interval;

typedef struct Width {
    Graph *g;
    const Kernel *k;
    const PlanStep *step;
    Dim zero;
    int64_t limit;
    bool fits;
    uint32_t *known; /* per IRef: entry of `interval` + 1 */
    VEC(Interval) interval;
    VEC(Dim) must;   /* sizes that have to be below the limit, each once */
} Width;

static bool is_zero(const Width *w, Dim d) { return d == w->zero; }

static void demand(Width *w, Dim d)
{
    for (uint32_t i = 0; i < w->must.n; i++)
        if (w->must.at[i] == d)
            return;
    if (!is_zero(w, d))
        VEC_PUSH(w->g->arena, w->must, d);
}

static Interval interval_of(Width *w, IRef i);

static Interval unknown(Width *w)
{
    w->fits = false;
    return (Interval){w->zero, w->zero};
}

static Interval of_constant(Width *w, int64_t value)
{
    Dim d = dim_const(w->g, value);
    return value < 0 ? (Interval){d, w->zero} : (Interval){w->zero, d};
}

static Interval of_argument(Width *w, uint32_t arg)
{
    Dim d = w->step->args.at[arg].size;
    bool natural = w->k->args.at[arg].natural, negative = dim_hint(w->g, d) < 0;
    if (!natural)
        w->fits &= spec_range(w->g, d, negative ? -w->limit : 0, negative ? 0 : w->limit, WHO);
    return negative ? (Interval){d, w->zero} : (Interval){w->zero, d};
}

/* One of the two must be of one sign. */
static Interval product(Width *w, Interval a, Interval b)
{
    if (!is_zero(w, b.low) && !is_zero(w, b.high)) {
        Interval t = a;
        a = b, b = t;
    }
    if (is_zero(w, b.low))
        return (Interval){dim_mul(w->g, a.low, b.high), dim_mul(w->g, a.high, b.high)};
    if (is_zero(w, b.high))
        return (Interval){dim_mul(w->g, a.high, b.low), dim_mul(w->g, a.low, b.low)};
    return unknown(w);
}

/* An index that a KI_BOUND has put into its axis. */
static Interval of_value(Width *w, VRef v)
{
    const KInst *n = &w->k->inst.at[v];
    return n->kind == KI_BOUND || n->kind == KI_INDEX ? interval_of(w, n->idx) : unknown(w);
}

static Interval derive(Width *w, IRef i)
{
    const Idx *x = &w->k->idx.at[i];
    switch ((IdxKind)x->kind) {
    case IX_CONST:
        return of_constant(w, x->value);
    case IX_ARG:
        return of_argument(w, x->a);
    case IX_AXIS:
        return interval_of(w, w->k->axes.at[x->a].size);
    case IX_VALUE:
        return of_value(w, x->a);
    case IX_MUL:
        return product(w, interval_of(w, x->a), interval_of(w, x->b));
    case IX_ADD: {
        Interval a = interval_of(w, x->a), b = interval_of(w, x->b);
        return (Interval){dim_add(w->g, a.low, b.low), dim_add(w->g, a.high, b.high)};
    }
    case IX_DIV:
    case IX_MOD: { /* operands are not negative where the value is used */
        Interval a = interval_of(w, x->a), b = interval_of(w, x->b);
        demand(w, a.high);
        demand(w, b.high);
        return (Interval){w->zero, x->kind == IX_DIV ? a.high : b.high};
    }
    }
    return unknown(w);
}

static Interval interval_of(Width *w, IRef i)
{
    if (!w->known[i]) {
        Interval v = derive(w, i);
        VEC_PUSH(w->g->arena, w->interval, v);
        w->known[i] = w->interval.n;
    }
    return w->interval.at[w->known[i] - 1];
}

static void demand_index(Width *w, IRef i)
{
    Interval v = interval_of(w, i);
    demand(w, v.low);
    demand(w, v.high);
}

/* Points of the axes of one kind: the numbers that coordinates are taken from. */
static void demand_points(Width *w, AxisKind kind)
{
    Dim n = dim_const(w->g, 1);
    for (uint32_t a = 0; a < w->k->axes.n; a++) {
        if (w->k->axes.at[a].kind != kind)
            continue;
        demand_index(w, w->k->axes.at[a].size);
        n = dim_mul(w->g, n, interval_of(w, w->k->axes.at[a].size).high);
    }
    demand(w, n);
}

/* Is d a term of the sum `of`? Then it need not be asked about; no term is negative. */
static bool is_term(const Graph *g, Dim d, Dim of)
{
    enum { TERMS = 16 };
    for (int i = 0; i < TERMS && g->dims.at[of].kind == DIM_ADD; i++) {
        if (dim_find(g, g->dims.at[of].b) == d)
            return true;
        of = dim_find(g, g->dims.at[of].a);
    }
    return of == d;
}

static bool ask(Width *w)
{
    for (uint32_t i = 0; i < w->must.n && w->fits; i++) {
        Dim d = dim_find(w->g, w->must.at[i]);
        bool implied = false;
        for (uint32_t j = 0; j < w->must.n && !implied; j++) {
            Dim of = dim_find(w->g, w->must.at[j]);
            implied = of != d && is_term(w->g, d, of);
        }
        w->fits = implied || spec_range(w->g, d, -w->limit, w->limit, WHO);
    }
    return w->fits;
}

static bool fits(Graph *g, const PlanStep *step, int64_t limit)
{
    const Kernel *k = step->kernel;
    Width w = {.g = g, .k = k, .step = step, .zero = dim_const(g, 0), .limit = limit, .fits = true};
    w.known = ARENA_ARRAY(g->arena, uint32_t, k->idx.n + 1);
    demand_points(&w, AXIS_X);
    demand_points(&w, AXIS_R);
    for (VRef v = 0; v < k->inst.n && w.fits; v++)
        if (k->inst.at[v].idx != IREF_NONE)
            demand_index(&w, k->inst.at[v].idx);
    return ask(&w);
}

void choose_index_width(Graph *g, Plan *plan)
{
    char hook[32];
    bool lowered = strstr(option_text(OPT_TEST_FAIL, hook, sizeof hook), "index:16") != NULL;
    for (uint32_t s = 0; s < plan->steps.n; s++) {
        const PlanStep *step = &plan->steps.at[s];
        if (step->kind != STEP_KERNEL || step->kernel->form == FORM_SORT)
            continue;
        uint32_t mark = query_mark(g);
        if (fits(g, step, lowered ? INT16_MAX : INT32_MAX))
            step->kernel->index_bits = lowered ? 16 : 32;
        else
            query_undo(g, mark);
    }
}
