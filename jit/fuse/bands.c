/*
 * Bands: kernels that hand each other whole rows run together, some rows at a time.
 *
 * softmax(q k^T) v is three kernels: a product, what is done to its rows, a product. One after the other they write all scores to memory and read
 * them back, twice. But a row of the result needs one row of the scores. So the three are launched as one step whose tasks are bands:
 *
 *     for bands of rows, on any thread        the tasks of the first kernel that make these rows, ...
 *         kernel 0 -> rows of scores           ... in memory of this thread's own, as large as a band: it stays in a core's caches
 *         kernel 1    in place
 *         kernel 2 -> rows of the result       this one is a buffer like any other
 *
 * The kernels are the same as ever, and so is each bit: a task computes what it always does. They are given a pointer to where row 0 would lie.
 * What is in a band is never whole in memory: attention over S keys takes S elements for each row that some thread is at, not S x S.
 *
 * Its gradient also sums rows up: with weights P and what comes from behind, dO, it is dV = P^T dO and dK = dS^T Q, where dS follows from
 * rows of P and dP = dO V^T alone. A product whose sum is over the band's rows keeps its sums from one band to the next (ARG_SCRATCH: a
 * phase is a block of rows):
 *
 *     for each of the batch, on any thread
 *         for bands of rows, a block of the order of those sums
 *             products and rows as above -> P, dS, rows of dQ
 *             products over the rows     -> sums of dV, dK in memory of this thread's own; with the last band dV, dK
 *
 * The sum over k is cut into blocks anyway (ir/orders.def), which are added in order, so these are the same bits, too.
 *
 * A band wants
 *     products and loops over rows, at least one product, all of which have the same batch and rows: tasks of a product are then rows, or
 *         its sum is over them
 *     of what they hand on: each access is to the row that the kernel is at; written by one of them, read by no other step
 *     an order: no step that is none of them stands between two of them and needs the one for the other
 *     no windows of images: they are read where they lie (jit/dot_places.c), and a band would pack them
 *     enough to save: what stays in memory is small where everything fits the caches, and a product packs its other operand anew for each
 *         band, where it is not brought to panels before them (panels_before_products in jit/panels.c)
 *
 * Rows that are zeros behind a mask need neither be written nor read there: kernels tell each other where (jit/llvm/cpu/spans.c).
 *
 * How many rows a band has is decided by the products' schedules (rows_of_band in jit/rules_product.c), whether a launch has enough bands
 * for its threads when it runs (runtime/eval/launch_band.c): there the kernels run one after the other, with the same results.
 */
#include "ir/query.h"
#include "jit/dot_facts.h"
#include "jit/fuse/fuse.h"
#include "jit/kernel_text.h"

enum {
    LEAST_BYTES = 1 << 20, /* of a buffer that is worth it */
    LEAST_ROWS = 32,
    LEAST_SHARED =
        256, /* rows of all of the batch: fewer make no bands for several threads, which products by themselves share by columns */
    FACTORS = 24,
    FAR = 64 /* steps that may lie between the first and the last of a band */
};
static const uint32_t NO_STEP = UINT32_MAX;

/* ---- sizes ---- */

static Dim dim_of_index(Fuser *f, const PlanStep *step, IRef i)
{
    const Idx *x = &step->kernel->idx.at[i];
    if (x->kind == IX_CONST)
        return dim_const(f->g, x->value);
    if (x->kind == IX_ARG && step->args.at[x->a].kind == BIND_SIZE)
        return step->args.at[x->a].size;
    if (x->kind != IX_MUL)
        return DIM_NONE;
    Dim a = dim_of_index(f, step, x->a), b = dim_of_index(f, step, x->b);
    return a == DIM_NONE || b == DIM_NONE ? DIM_NONE : dim_mul(f->g, a, b);
}

/* The sizes of axes [first, end) multiplied. */
static Dim extent(Fuser *f, const PlanStep *step, uint32_t first, uint32_t end)
{
    Dim all = dim_const(f->g, 1);
    for (uint32_t a = first; a < end && all != DIM_NONE; a++) {
        Dim size = dim_of_index(f, step, step->kernel->axes.at[a].size);
        all = size == DIM_NONE ? DIM_NONE : dim_mul(f->g, all, size);
    }
    return all;
}

/* A size as a product: of a number and of sizes that are none. */
typedef struct Factors {
    int64_t number;
    uint32_t n, looks;
    Dim at[FACTORS];
} Factors;

static void add_factors(const Fuser *f, Dim dim, Factors *to)
{
    Dim d = dim_find(f->g, dim);
    const DimInfo *info = &f->g->shared->dims.at[d];
    const SizeFact *fact = d < f->sizes.n ? &f->sizes.at[d] : NULL; /* compiled in already? */
    bool constant = info->kind == DIM_CONST || (fact && fact->known == 1);
    if (to->looks++ >= FACTORS)
        return;
    if (constant) {
        to->number *= info->kind == DIM_CONST ? info->hint : fact->value;
    } else if (info->kind == DIM_MUL) {
        add_factors(f, info->a, to);
        add_factors(f, info->b, to);
    } else {
        uint32_t at = to->n++;
        for (; at > 0 && to->at[at - 1] > d; at--)
            to->at[at] = to->at[at - 1];
        to->at[at] = d;
    }
}

static bool same_factors(const Fuser *f, Dim a, Dim b)
{
    Factors x = {.number = 1}, y = {.number = 1};
    add_factors(f, a, &x);
    add_factors(f, b, &y);
    return x.looks < FACTORS && y.looks < FACTORS && x.number == y.number && x.n == y.n && memcmp(x.at, y.at, sizeof *x.at * x.n) == 0;
}

/* Where heads were split into groups, the same number may be several sizes, which are not seen to be the same: guards say so. */
static bool same_size(Fuser *f, Dim a, Dim b) { return same_factors(f, a, b) || spec_dim_same(f->g, a, b, "rows of a band"); }

/* ---- steps ---- */

static bool is_product(const PlanStep *step) { return step->kernel->form == FORM_CONTRACT; }

static uint32_t x_axes(const Kernel *k)
{
    uint32_t n = 0;
    while (n < k->axes.n && k->axes.at[n].kind == AXIS_X)
        n++;
    return n;
}

/* So many axes, the first ones, count rows; where rows are summed up, one of the batch. */
static uint32_t row_axes(const PlanStep *step) { return x_axes(step->kernel) - is_product(step) - step->folds; }

/* Windows of images are read where they lie by a product that stands alone (jit/dot_places.c); in a band they would be packed. */
static bool reads_windows(const Kernel *k, const KInst *dot)
{
    enum { FEW = 4 };
    const KernelFacts facts = {.k = k};
    int columns = (int)x_axes(k) - 1;
    DotPlaces p;
    return (dot_places(&facts, dot->a, columns - 1, &p) || dot_places(&facts, dot->b, columns, &p)) && (!p.fixed || p.length >= FEW);
}

/* Are the tasks of this step rows? Of a product, where one operand has the rows and the other the columns. So it is where rows can be summed up:
 * `folds` tells these apart. */
static bool walks_rows(const PlanStep *step)
{
    const Kernel *k = step->kernel;
    if (step->kind != STEP_KERNEL || k->form == FORM_SORT || (k->split && !k->split_asked) || k->axes.n != x_axes(k) + 1 ||
        x_axes(k) == is_product(step))
        return false;
    uint32_t columns = x_axes(k) - 1;
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *x = &k->inst.at[v];
        if (x->kind == KI_SCATTER || (inst_is_dot(x) && reads_windows(k, x)) ||
            (inst_is_dot(x) && (k->inst_axes.at[x->a] >> columns & 1 || k->inst_axes.at[x->b] >> (columns - 1) & 1)))
            return false;
    }
    return is_product(step) || k->vec_axis == columns + 1;
}

static bool touches(const PlanStep *step, uint32_t buffer, bool written)
{
    for (uint32_t a = 0; a < step->args.n; a++)
        if (step->args.at[a].kind == BIND_BUFFER && step->args.at[a].buffer == buffer && step->kernel->args.at[a].written == written)
            return true;
    return false;
}

/* Row by row through n axes: is idx ((axis[0] * size of axis[1] + axis[1]) * size of axis[2] + ...)? */
static bool is_row_major(Fuser *f, const PlanStep *step, IRef idx, const uint32_t *axis, uint32_t n)
{
    Kernel *k = step->kernel;
    Dim stride = dim_const(f->g, 1);
    const uint32_t mark = query_mark(f->g);
    bool ok = true;
    for (uint32_t i = n; i-- > 0 && ok;) {
        IRef coefficient;
        const Dim size = dim_of_index(f, step, k->axes.at[axis[i]].size);
        ok = size != DIM_NONE && kidx_linear(k, idx, axis[i], &coefficient, &idx);
        const Dim here = ok ? dim_of_index(f, step, coefficient) : DIM_NONE;
        ok = here != DIM_NONE && same_size(f, here, stride);
        stride = ok ? dim_mul(f->g, stride, size) : stride;
    }
    int64_t rest;
    ok = ok && kidx_is_const(k, idx, &rest) && rest == 0;
    if (!ok)
        query_undo(f->g, mark);
    return ok;
}

/* Elements of a row of the buffer, where each access of the step is to the row that it is at, and there are no other rows; else DIM_NONE. */
static Dim row_of(Fuser *f, PlanStep *step, uint32_t buffer)
{
    Kernel *k = step->kernel;
    uint32_t rows = row_axes(step), last = k->axes.n - 1, axis[KERNEL_AXES + 1], n = 0;
    Dim found = DIM_NONE;
    for (uint32_t a = 0; a < rows; a++)
        axis[n++] = a;
    if (step->folds)
        axis[n++] = last;
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *x = &k->inst.at[v];
        bool access = x->kind == KI_LOAD || x->kind == KI_STORE;
        if (!access || step->args.at[x->arg].buffer != buffer)
            continue;
        Dim here = is_row_major(f, step, x->idx, axis, n) ? dim_const(f->g, 1) : DIM_NONE;
        for (uint32_t a = rows; a < k->axes.n - step->folds && here == DIM_NONE; a++) {
            axis[n] = a;
            if (is_row_major(f, step, x->idx, axis, n + 1))
                here = dim_of_index(f, step, k->axes.at[a].size);
        }
        if (here == DIM_NONE || (found != DIM_NONE && !same_size(f, found, here)) || (x->kind == KI_STORE && x->pred != VREF_NONE))
            return DIM_NONE;
        found = here;
    }
    Dim all = found == DIM_NONE ? DIM_NONE : extent(f, step, 0, rows);
    if (all != DIM_NONE && step->folds) {
        Dim summed = extent(f, step, last, last + 1);
        all = summed == DIM_NONE ? DIM_NONE : dim_mul(f->g, all, summed);
    }
    return all != DIM_NONE && same_size(f, f->plan->buffers.at[buffer].numel, dim_mul(f->g, all, found)) ? found : DIM_NONE;
}

/* ---- bands ---- */

typedef struct Members { /* of a band to be: steps in order */
    uint32_t n, at[BAND_STEPS];
} Members;

typedef struct Users { /* of a buffer */
    uint32_t writer, n_writers, n_readers, reader[BAND_STEPS];
} Users;

struct Bands {
    Fuser *f;
    Members *of;     /* of each step, whatever band it is in */
    Users *users;    /* of each buffer */
    uint32_t buffer; /* whose rows are asked about, ... */
    Members all;     /* ... and what would be its band; */
    bool stuck;      /* something stands between these */
};

static void find_users_of_buffers(Bands *b)
{
    const Plan *plan = b->f->plan;
    memset(b->users, 0, sizeof *b->users * plan->buffers.n);
    for (uint32_t s = 0; s < plan->steps.n; s++) {
        const PlanStep *step = &plan->steps.at[s];
        for (uint32_t a = 0; a < step->args.n; a++) {
            if (step->args.at[a].kind != BIND_BUFFER)
                continue;
            Users *u = &b->users[step->args.at[a].buffer];
            if (step->kind != STEP_KERNEL || step->kernel->args.at[a].written) {
                u->writer = s;
                u->n_writers++;
            } else if (u->n_readers < BAND_STEPS) {
                u->reader[u->n_readers++] = s;
            } else {
                u->n_writers = UINT32_MAX / 2; /* too many */
            }
        }
    }
}

static bool is_member(const Members *m, uint32_t step)
{
    for (uint32_t i = 0; i < m->n; i++)
        if (m->at[i] == step)
            return true;
    return false;
}

/* false: too many. */
static bool add_member(Members *m, uint32_t step)
{
    if (is_member(m, step))
        return true;
    if (m->n == BAND_STEPS)
        return false;
    uint32_t at = m->n++;
    for (; at > 0 && m->at[at - 1] > step; at--)
        m->at[at] = m->at[at - 1];
    m->at[at] = step;
    return true;
}

/* The batch and rows that all products among the members have; false: they differ, or are few. */
static bool rows_of(Fuser *f, const Members *m, Dim *batch, Dim *rows)
{
    *batch = *rows = DIM_NONE;
    for (uint32_t i = 0; i < m->n; i++) {
        const PlanStep *step = &f->plan->steps.at[m->at[i]];
        if (!is_product(step))
            continue;
        uint32_t n = row_axes(step), last = step->kernel->axes.n - 1;
        Dim here = step->folds ? extent(f, step, 0, n) : extent(f, step, 0, n - 1);
        Dim each = step->folds ? extent(f, step, last, last + 1) : extent(f, step, n - 1, n);
        if (here == DIM_NONE || each == DIM_NONE || (*rows != DIM_NONE && !(same_size(f, here, *batch) && same_size(f, each, *rows))))
            return false;
        *batch = here;
        *rows = each;
    }
    if (*rows == DIM_NONE)
        return false;
    const double each = (double)dim_hint(f->g, *rows), all = each * (double)dim_hint(f->g, *batch);
    return (each >= LEAST_ROWS && all >= LEAST_SHARED) || f->options->value[OPT_BANDS] == BANDS_ALWAYS;
}

/* Of the steps among the members that are none: which come after the band, because they need something of it (after[i]: of step first + i).
 * false: one needs something of the band and makes something for it: *between; NO_STEP: something else is wrong. */
static bool order_around(const Plan *plan, const Members *m, bool after[FAR], uint32_t *between)
{
    *between = NO_STEP;
    uint32_t first = m->at[0], last = m->at[m->n - 1];
    if (last - first >= FAR)
        return false;
    for (uint32_t s = first; s <= last; s++) {
        const PlanStep *step = &plan->steps.at[s];
        bool own = is_member(m, s), needs = false;
        after[s - first] = false;
        if (step->kind != STEP_KERNEL || step->band)
            return false;
        for (uint32_t t = first; t < s; t++) {
            bool late = after[t - first];
            for (uint32_t a = 0; (late || is_member(m, t)) && a < plan->steps.at[t].args.n; a++) {
                const PlanArg *arg = &plan->steps.at[t].args.at[a];
                bool made = arg->kind == BIND_BUFFER && plan->steps.at[t].kernel->args.at[a].written;
                bool here = made && (touches(step, arg->buffer, false) || touches(step, arg->buffer, true));
                if (here && own && late) {
                    *between = t;
                    return false;
                }
                needs |= here;
            }
        }
        after[s - first] = needs && !own;
    }
    return true;
}

/* Is whatever one member makes read by the others row by row? */
static bool handed_by_rows(Fuser *f, const Members *m)
{
    Plan *plan = f->plan;
    for (uint32_t i = 0; i < m->n; i++) {
        PlanStep *step = &plan->steps.at[m->at[i]];
        for (uint32_t a = 0; a < step->args.n; a++) {
            uint32_t buffer = step->args.at[a].buffer;
            if (step->args.at[a].kind != BIND_BUFFER || !step->kernel->args.at[a].written)
                continue;
            for (uint32_t j = 0; j < m->n; j++) {
                PlanStep *other = &plan->steps.at[m->at[j]];
                if (j != i && touches(other, buffer, true))
                    return false;
                if (j == i || !touches(other, buffer, false))
                    continue;
                Dim made = row_of(f, step, buffer), read = row_of(f, other, buffer);
                if (made == DIM_NONE || read == DIM_NONE || !same_size(f, made, read))
                    return false;
            }
        }
    }
    return true;
}

/* Rows after which the product of a step starts another sum. */
static uint32_t block_of_sums(const PlanStep *step)
{
    const Kernel *k = step->kernel;
    VRef v = 0;
    while (!inst_is_dot(&k->inst.at[v]))
        v++;
    return kernel_dot_block(&k->inst.at[v]);
}

/*
 * Does it pay to keep the rows of a buffer? It is not written to memory and read from there. But a product packs its right operand for
 * each band, where it does so for some 350 rows by itself. (Two cores: 0.07 ns a byte, 0.3 ns an element packed.) Memory counts where the
 * buffer is large and the bands have rows enough to be some tens of per cent slower at most: of 32,768 queries and keys the scores are
 * 4 GiB a head. Where rows are summed up, bands have a block of them.
 */
static bool pays(Fuser *f, uint32_t buffer, const Users *u)
{
    static const double byte = 0.07, packed = 0.3, rows_alone = 350, most_rows = 224, band_bytes = 2 << 20, large = 1 << 30, enough = 8;
    const PlanBuffer *b = &f->plan->buffers.at[buffer];
    Dim row = row_of(f, &f->plan->steps.at[u->writer], buffer);
    if (row == DIM_NONE)
        return false;
    double width = (double)dtype_bytes((DType)b->dtype), whole = (double)dim_hint(f->g, b->numel) * width;
    double bytes = (double)dim_hint(f->g, row) * width, rows = band_bytes / (bytes + 1), lost = 0;
    if (whole > large && rows > enough - 1)
        return true;
    uint32_t block = 0;
    for (uint32_t i = 0; i < u->n_readers; i++)
        if (f->plan->steps.at[u->reader[i]].folds)
            block = block_of_sums(&f->plan->steps.at[u->reader[i]]);
    rows = block ? block : rows > most_rows ? most_rows : rows < 1 ? 1 : rows;
    for (uint32_t i = 0; i <= u->n_readers; i++) {
        const PlanStep *step = &f->plan->steps.at[i < u->n_readers ? u->reader[i] : u->writer];
        uint32_t n = step->kernel->axes.n;
        if (is_product(step) && !step->folds)
            lost += packed * (1 / rows - 1 / rows_alone) * (double)kernel_extent(step->kernel, n - 1) *
                    (double)kernel_extent(step->kernel, n - 2);
    }
    return 2 * byte * bytes > lost;
}

static bool add_members(Members *m, const Members *more)
{
    bool fits = true;
    for (uint32_t i = 0; i < more->n && fits; i++)
        fits = add_member(m, more->at[i]);
    return fits;
}

/* All steps of the bands that touch the buffer, and those between them. false: they are too many, or one between them is no band's. */
static bool find_members(Bands *b)
{
    const Plan *plan = b->f->plan;
    const Users *u = &b->users[b->buffer];
    bool after[FAR], fits = true;
    uint32_t between;
    b->all = b->of[u->writer];
    b->stuck = false;
    for (uint32_t r = 0; r < u->n_readers; r++)
        fits &= add_members(&b->all, &b->of[u->reader[r]]);
    while (fits && !b->stuck && !order_around(plan, &b->all, after, &between)) {
        b->stuck = between == NO_STEP || !walks_rows(&plan->steps.at[between]);
        fits = b->stuck || add_members(&b->all, &b->of[between]);
    }
    return fits;
}

/* Those that read the rows of a buffer, each by its tasks, and sum them up are told so: products that are in no band yet. false: some reader
 * does neither. */
static bool choose_folds(Bands *b, uint32_t buffer)
{
    const Users *u = &b->users[buffer];
    for (uint32_t r = 0; r < u->n_readers; r++) {
        PlanStep *step = &b->f->plan->steps.at[u->reader[r]];
        if (row_of(b->f, step, buffer) != DIM_NONE)
            continue;
        if (b->of[u->reader[r]].n > 1 || !is_product(step))
            return false;
        step->folds = true;
        if (row_of(b->f, step, buffer) == DIM_NONE)
            return false;
    }
    return true;
}

/* Of the steps that are in no band after all. */
static void forget_folds(Bands *b, uint32_t buffer)
{
    const Users *u = &b->users[buffer];
    for (uint32_t r = 0; r < u->n_readers; r++)
        if (b->of[u->reader[r]].n == 1)
            b->f->plan->steps.at[u->reader[r]].folds = false;
}

/* Makes a band of the steps that have this label, next to each other: what stands between them goes before or after. */
static void gather(Fuser *f, uint32_t *label, uint32_t which)
{
    Plan *plan = f->plan;
    Members m = {0};
    bool after[FAR];
    uint32_t between;
    for (uint32_t s = 0; s < plan->steps.n; s++)
        if (label[s] == which)
            (void)add_member(&m, s);
    if (!order_around(plan, &m, after, &between)) /* another band lies there by now */
        return;
    PlanBand band = {.n = m.n};
    (void)rows_of(f, &m, &band.batch, &band.rows);
    uint32_t first = m.at[0], count = m.at[m.n - 1] - first + 1, at = first;
    PlanStep *steps = arena_copy(f->arena, plan->steps.at + first, sizeof *steps * count);
    uint32_t *labels = arena_copy(f->arena, label + first, sizeof *labels * count);
    for (int part = 0; part < 3; part++) { /* before, the band, after */
        band.first = part == 1 ? at : band.first;
        for (uint32_t i = 0; i < count; i++) {
            bool own = is_member(&m, first + i);
            if ((own ? 1 : after[i] ? 2 : 0) != part)
                continue;
            steps[i].band = own ? plan->bands.n + 1 : 0;
            label[at] = labels[i];
            plan->steps.at[at++] = steps[i];
        }
    }
    VEC_PUSH(f->g->arena, plan->bands, band);
}

/* Bands stand where their steps do: what a later one was gathered from may have gone before an earlier one. */
static void sort_bands(Plan *plan)
{
    for (uint32_t i = 1; i < plan->bands.n; i++) {
        PlanBand band = plan->bands.at[i];
        uint32_t at = i;
        for (; at > 0 && plan->bands.at[at - 1].first > band.first; at--)
            plan->bands.at[at] = plan->bands.at[at - 1];
        plan->bands.at[at] = band;
    }
    for (uint32_t i = 0; i < plan->bands.n; i++)
        for (uint32_t s = 0; s < plan->bands.at[i].n; s++)
            plan->steps.at[plan->bands.at[i].first + s].band = i + 1;
}

/* Of what only one band makes and reads, it keeps rows; they are no bytes that a launch moves. */
static void keep_rows(Bands *b)
{
    Fuser *f = b->f;
    Plan *plan = f->plan;
    uint32_t *kept = ARENA_ARRAY(f->arena, uint32_t, plan->bands.n + 1);
    find_users_of_buffers(b);
    for (uint32_t i = 0; i < plan->buffers.n; i++) {
        const Users *u = &b->users[i];
        uint32_t band = u->n_writers == 1 ? plan->steps.at[u->writer].band : 0;
        bool all = plan->buffers.at[i].kind == BUFFER_TEMP && plan->buffers.at[i].within == NO_BUFFER && band && u->n_readers;
        for (uint32_t r = 0; r < u->n_readers && all; r++)
            all = plan->steps.at[u->reader[r]].band == band;
        Dim row = all ? row_of(f, &plan->steps.at[u->writer], i) : DIM_NONE;
        if (row == DIM_NONE || kept[band] == BAND_SLOTS)
            continue;
        kept[band]++;
        plan->buffers.at[i].kind = BUFFER_BAND;
        plan->buffers.at[i].row = row;
        for (uint32_t s = plan->bands.at[band - 1].first; s < plan->steps.n && plan->steps.at[s].band == band; s++)
            for (uint32_t a = 0; a < plan->steps.at[s].args.n; a++)
                if (plan->steps.at[s].args.at[a].kind == BIND_BUFFER && plan->steps.at[s].args.at[a].buffer == i)
                    plan->steps.at[s].kernel->args.at[a].band = true;
    }
    for (uint32_t s = 0; s < plan->steps.n; s++) {
        if (!plan->steps.at[s].band)
            continue;
        plan->steps.at[s].bytes = step_bytes(f, &plan->steps.at[s]);
        for (uint32_t a = 0; a < plan->steps.at[s].kernel->args.n; a++) /* all kernels of a band count its rows alike */
            plan->steps.at[s].kernel->args.at[a].expects = false;
    }
}

/* What sums rows up keeps the sums from one band to the next; the others of the band then take whole blocks of rows. */
static void mark_folds(Fuser *f)
{
    Plan *plan = f->plan;
    for (uint32_t s = 0; s < plan->steps.n; s++) {
        PlanStep *step = &plan->steps.at[s];
        step->folds &= step->band != 0;
        if (!step->folds)
            continue;
        VEC_PUSH(step->kernel->arena, step->kernel->args, (KArg){.kind = ARG_SCRATCH});
        VEC_PUSH(f->g->arena, step->args, (PlanArg){.kind = BIND_SHARED, .size = DIM_NONE});
        const PlanBand *band = &plan->bands.at[step->band - 1];
        for (uint32_t o = band->first; o < band->first + band->n; o++) {
            const PlanStep *other = &plan->steps.at[o];
            for (uint32_t a = 0; a < other->args.n && !other->folds; a++)
                other->kernel->args.at[a].blocks = other->kernel->args.at[a].band ? block_of_sums(step) : 0;
        }
    }
}

/* May what the product makes be zeros in whole stretches of a row? Where something is chosen by places. */
static bool chooses_by_places(const Kernel *k)
{
    bool chooses = false, places = false;
    for (VRef v = 0; v < k->inst.n; v++) {
        chooses |= k->inst.at[v].kind == KI_OP && k->inst.at[v].op == OP_WHERE;
        places |= k->inst.at[v].kind == KI_INDEX;
    }
    return chooses && places;
}

/* Rows that products alone make and read need not be there where they are zeros (jit/llvm/cpu/spans.c). */
static void share_spans(Bands *b)
{
    Fuser *f = b->f;
    Plan *plan = f->plan;
    uint32_t *shared = ARENA_ARRAY(f->arena, uint32_t, plan->bands.n + 1);
    for (uint32_t i = 0; i < plan->buffers.n; i++) {
        const Users *u = &b->users[i];
        const PlanStep *writer = &plan->steps.at[u->writer];
        bool all = plan->buffers.at[i].kind == BUFFER_BAND && is_product(writer) && !writer->folds && chooses_by_places(writer->kernel);
        for (uint32_t r = 0; r < u->n_readers && all; r++)
            all = is_product(&plan->steps.at[u->reader[r]]);
        if (!all || shared[writer->band] == BAND_SPANS)
            continue;
        const uint32_t number = shared[writer->band]++, first = plan->bands.at[writer->band - 1].first;
        for (uint32_t s = first; s < first + plan->bands.at[writer->band - 1].n; s++) {
            PlanStep *step = &plan->steps.at[s];
            for (uint32_t a = 0, n = step->args.n; a < n; a++) {
                if (step->args.at[a].kind != BIND_BUFFER || step->args.at[a].buffer != i)
                    continue;
                VEC_PUSH(step->kernel->arena, step->kernel->args, (KArg){.kind = ARG_SPANS, .of = (uint16_t)a});
                VEC_PUSH(f->g->arena, step->args, (PlanArg){.kind = BIND_SPANS, .buffer = number, .size = DIM_NONE});
            }
        }
    }
}

/* ---- why not ---- */

static bool always(const Fuser *f) { return f->options->value[OPT_BANDS] == BANDS_ALWAYS; }

static const Users *asked_users(const Asked *a) { return &a->bands->users[a->bands->buffer]; }

bool refuses_band_small(Asked *a)
{
    const PlanBuffer *buffer = &a->f->plan->buffers.at[a->bands->buffer];
    return !always(a->f) && (double)dim_hint(a->f->g, buffer->numel) * (double)dtype_bytes((DType)buffer->dtype) < LEAST_BYTES;
}

bool refuses_band_users(Asked *a) { return asked_users(a)->n_writers != 1; }

bool refuses_band_tasks(Asked *a)
{
    const Users *u = asked_users(a);
    bool rows = walks_rows(&a->f->plan->steps.at[u->writer]);
    for (uint32_t r = 0; r < u->n_readers && rows; r++)
        rows = walks_rows(&a->f->plan->steps.at[u->reader[r]]);
    return !rows;
}

bool refuses_band_places(Asked *a) { return !choose_folds(a->bands, a->bands->buffer); }

bool refuses_band_packs(Asked *a) { return !always(a->f) && !pays(a->f, a->bands->buffer, asked_users(a)); }

bool refuses_band_many(Asked *a) { return !find_members(a->bands); }

bool refuses_band_between(Asked *a) { return a->bands->stuck; }

bool refuses_band_rows(Asked *a)
{
    Dim batch, rows;
    return !rows_of(a->f, &a->bands->all, &batch, &rows);
}

bool refuses_band_handed(Asked *a) { return !handed_by_rows(a->f, &a->bands->all); }

/* What touches this buffer becomes one band, with what is in a band with it, unless something refuses that. */
static RefusalId try_band(Bands *b, uint32_t buffer)
{
    Asked asked = {.f = b->f, .bands = b};
    b->buffer = buffer;
    const uint32_t mark = query_mark(b->f->g);
    const RefusalId why = refuse(GROUP_BAND, &asked);
    if (why) {
        forget_folds(b, buffer);
        query_undo(b->f->g, mark);
    }
    for (uint32_t i = 0; i < b->all.n && !why; i++)
        b->of[b->all.at[i]] = b->all;
    return why;
}

static bool touches_product(const Bands *b, uint32_t buffer)
{
    const PlanStep *steps = b->f->plan->steps.at;
    const Users *u = &b->users[buffer];
    bool product = steps[u->writer].kind == STEP_KERNEL && is_product(&steps[u->writer]);
    for (uint32_t r = 0; r < u->n_readers && !product; r++)
        product = steps[u->reader[r]].kind == STEP_KERNEL && is_product(&steps[u->reader[r]]);
    return product;
}

/* Of what a product makes or reads, but single numbers; the others are said to be apart already. */
static void tell_whole(Bands *b, const RefusalId *why)
{
    Plan *plan = b->f->plan;
    for (uint32_t i = 0; i < plan->buffers.n; i++) {
        const PlanBuffer *buffer = &plan->buffers.at[i];
        if (why[i] && buffer->kind != BUFFER_BAND && graph_node(b->f->g, buffer->node)->rank && touches_product(b, i))
            refused_note(b->f, &b->f->reasons, why[i], &(Asked){.n = buffer->node});
    }
}

void plan_bands(Fuser *f)
{
    Plan *plan = f->plan;
    Bands b = {.f = f};
    if (!f->fuse || !target_kind(&f->options->target)->bands || f->options->value[OPT_BANDS] == BANDS_OFF)
        return;
    b.of = ARENA_ARRAY(f->arena, Members, plan->steps.n + 1);
    b.users = ARENA_ARRAY(f->arena, Users, plan->buffers.n + 1);
    for (uint32_t s = 0; s < plan->steps.n; s++)
        b.of[s] = (Members){1, {s}};
    find_users_of_buffers(&b);
    RefusalId *why = ARENA_ARRAY(f->arena, RefusalId, plan->buffers.n + 1);
    for (uint32_t i = 0; i < plan->buffers.n; i++)
        if (plan->buffers.at[i].kind == BUFFER_TEMP && plan->buffers.at[i].within == NO_BUFFER && b.users[i].n_writers &&
            b.users[i].n_readers)
            why[i] = try_band(&b, i);
    uint32_t *label = ARENA_ARRAY(f->arena, uint32_t, plan->steps.n + 1), n = 0;
    for (uint32_t s = 0; s < plan->steps.n; s++)
        for (uint32_t i = 0; b.of[s].n > 1 && b.of[s].at[0] == s && i < b.of[s].n; i++) {
            n += i == 0;
            label[b.of[s].at[i]] = n;
        }
    for (uint32_t which = 1; which <= n; which++)
        gather(f, label, which);
    sort_bands(plan);
    if (plan->bands.n) {
        keep_rows(&b);
        share_spans(&b);
        mark_folds(f);
    }
    tell_whole(&b, why);
}
