/*
 * How wide a kernel's index arithmetic is on a device whose registers have 32 bits: 32 where every offset, coordinate and
 * size provably fits, else 64. A 64-bit sum takes two instructions there, a product four, a quotient a hundred.
 *
 * Each index expression gets an interval, low <= 0 <= high, of sizes: a coordinate lies below its axis' size, a stride is taken to
 * keep the sign that it has now, the rest is interval arithmetic. What holds by constants needs no guard; of the others the program
 * gets a guard, so a larger tensor is met by another program, whose indices are 64 bits wide. Sums and products may wrap half
 * way, only their final value counts; operands of quotients and remainders count as well.
 *
 * The intervals themselves are numbers of 64 bits, here and where guards are checked, and must not wrap: the bound of a quotient is that
 * of its dividend, and times a stride it may be 2^64, which would look like 0. So the factors of a coordinate's products are held below
 * the limit, too, and what long sums are made of (three products are less than 2^64). Such guards stand on their own.
 *
 * KILN_TEST_FAIL=index:16 lowers the limit to 15 bits, and the code really has no more.
 */
#include "jit/fuse/fuse.h"

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
    VEC(Dim) always; /* those among them that no other one stands for */
} Width;

static bool is_zero(const Width *w, Dim d) { return d == w->zero; }

static bool among(const Dim *dims, uint32_t n, Dim d)
{
    for (uint32_t i = 0; i < n; i++)
        if (dims[i] == d)
            return true;
    return false;
}

static void demand(Width *w, Dim d)
{
    if (!is_zero(w, d) && !among(w->must.at, w->must.n, d))
        VEC_PUSH(w->g->arena, w->must, d);
}

static Interval interval_of(Width *w, IRef i);

/* Both ends, so that what is made of them is exact. */
static Interval hold(Width *w, IRef i)
{
    Interval v = interval_of(w, i);
    const Idx *x = &w->k->idx.at[i];
    const Dim ends[] = {v.low, v.high};
    bool guarded = x->kind == IX_ARG && !w->k->args.at[x->a].natural; /* by of_argument */
    for (int e = 0; e < 2 && !guarded; e++) {
        demand(w, ends[e]);
        if (!is_zero(w, ends[e]) && !among(w->always.at, w->always.n, ends[e]))
            VEC_PUSH(w->g->arena, w->always, ends[e]);
    }
    return v;
}

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

/* Is it made of sizes and constants? */
static bool of_sizes(const Kernel *k, IRef i)
{
    const Idx *x = &k->idx.at[i];
    if (x->kind == IX_ADD || x->kind == IX_MUL)
        return of_sizes(k, x->a) && of_sizes(k, x->b);
    return x->kind == IX_CONST || x->kind == IX_ARG;
}

enum { SAFE_TERMS = 3 };

static uint32_t terms_of(const Kernel *k, IRef i)
{
    uint32_t n = 1;
    for (; k->idx.at[i].kind == IX_ADD; i = k->idx.at[i].a)
        n++;
    return n;
}

static Interval derive(Width *w, IRef i)
{
    const Idx *x = &w->k->idx.at[i];
    switch ((IdxKind)x->kind) {
    case IX_CONST: return of_constant(w, x->value);
    case IX_ARG: return of_argument(w, x->a);
    case IX_AXIS: return interval_of(w, w->k->axes.at[x->a].size);
    case IX_VALUE: return of_value(w, x->a);
    case IX_MUL: /* products of sizes were checked when shapes were */
        if (of_sizes(w->k, i))
            return product(w, interval_of(w, x->a), interval_of(w, x->b));
        return product(w, hold(w, x->a), hold(w, x->b));
    case IX_ADD: {
        bool long_sum = terms_of(w->k, i) > SAFE_TERMS;
        Interval a = long_sum ? hold(w, x->a) : interval_of(w, x->a), b = long_sum ? hold(w, x->b) : interval_of(w, x->b);
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

/* Never negative in any graph that the program will meet? */
static bool is_natural(const Graph *g, Dim d)
{
    int64_t least, most;
    dim_bounds(g, d, &least, &most);
    return least >= 0;
}

/* Is d a term of the sum `of`, whose other terms are not negative? Then it need not be asked about. */
static bool is_term(const Graph *g, Dim d, Dim of)
{
    enum { TERMS = 16 };
    Dim rest[TERMS];
    int n = 0;
    bool found = false;
    for (; n < TERMS && !found && g->shared->dims.at[of].kind == DIM_ADD; n++) {
        Dim a = dim_find(g, g->shared->dims.at[of].a), b = dim_find(g, g->shared->dims.at[of].b);
        found = b == d;
        rest[n] = found ? a : b;
        of = a;
    }
    if (!found && of != d)
        return false;
    for (int i = 0; i < n; i++)
        if (!is_natural(g, rest[i]))
            return false;
    return true;
}

static bool ask(Width *w)
{
    for (uint32_t i = 0; i < w->must.n && w->fits; i++) {
        Dim d = dim_find(w->g, w->must.at[i]);
        bool implied = false, stands = among(w->always.at, w->always.n, w->must.at[i]);
        for (uint32_t j = 0; j < w->must.n && !implied && !stands; j++) {
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
