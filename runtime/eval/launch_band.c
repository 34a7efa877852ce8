/*
 * Running steps in bands (jit/fuse/bands.c): each thread takes some rows through all of them.
 *
 *   rows      how many a band has: a multiple of what each kernel makes in one task (HostLaunch.rows), or sums up in one phase
 *   room      of a thread: argument blocks of its own, the rows, the kernels' scratch
 *   pointers  of what lies in rows: where row 0 would lie
 *   spans     of rows that are zeros but for some columns: which these are, by blocks of rows, if all that have to do with them heed that and
 *             have the same blocks
 *   sums      of a product over rows: its tasks of one of the batch, whose sums stay in the room from one band to the next. So the bands of
 *             one of the batch are run by one thread, in order. Where those of the batch are few and no multiple of the threads, all
 *             threads share one room and larger bands: one step after the other, each by all of them
 *
 * Where there are too few bands for the threads, or they would take more memory than all rows, or a kernel's tasks turn out not to be rows
 * (a schedule that somebody asked for), the steps run one after the other, and the rows are all there. Either way gives the same bits.
 */
#include "ir/base/os.h"
#include "jit/options.h"
#include "runtime/device/device.h"
#include "runtime/eval/pool.h"
#include "runtime/eval/run.h"
#include "runtime/eval/traced.h"

#include <string.h>

enum {
    BANDS_A_THREAD = 2, /* at least, so that a slow one does not hold up the others for long */
    EVEN = 4            /* so many of the batch for each thread are as good as an even number */
};

typedef struct Member {
    const ProgStep *step;
    const CompiledKernel *kernel;
    int64_t rows, blocks, tasks; /* rows of a block; blocks of one of the batch; tasks of a block */
    bool spans;                  /* has some */
    bool folds;                  /* rows are summed up: a block is a phase, its tasks are those of one of the batch */
    void **args;
    size_t args_at, sums_at, sums; /* in a thread's room: its own copy; bytes of sums of one of the batch */
} Member;

typedef struct Bands {
    Run *run;
    const ProgBand *band;
    int64_t batch, rows, each, across; /* rows of a band; bands of one of the batch */
    bool folds;                        /* some member does: the bands of one of the batch are one task */
    bool shared;                       /* ... or, one step after the other, of all threads */
    Member member[BAND_STEPS];
    size_t slot[BAND_SLOTS], scratch, room; /* where the slots and the scratch lie in a thread's room; its bytes */
    int64_t span_rows;                      /* of a block; 0: nobody tells spans */
    bool deaf;                              /* somebody does not heed them, or has other blocks */
    size_t spans_at, spans;                 /* where they lie; bytes of those of one buffer */
    size_t scratch_each;                    /* of a thread */
    int threads;
    char *rooms;
    double (*seconds)[BAND_STEPS]; /* that each thread was at each step; NULL: nobody asked */
} Bands;

static size_t in_room(size_t *room, size_t bytes)
{
    size_t at = *room;
    *room = bytes > SIZE_MAX / 4 || at > SIZE_MAX / 4 ? SIZE_MAX / 2 : at + launch_aligned(bytes);
    return at;
}

static bool in_band(const Bands *b, uint32_t buffer)
{
    const Program *p = b->run->p;
    for (uint32_t i = 0; i < b->band->n; i++)
        for (uint32_t a = 0; a < b->member[i].step->n_args; a++) {
            const ProgArg *arg = &p->args[b->member[i].step->first_arg + a];
            if (arg->kind == BIND_BUFFER && arg->value == buffer)
                return true;
        }
    return false;
}

/* Bytes of the slots when there are so many rows; where each lies, from *room on. */
static size_t place_slots(const Bands *b, int64_t rows, size_t *slot, size_t *room)
{
    const Program *p = b->run->p;
    size_t began = *room;
    for (uint32_t s = 0; s < p->n_band_slots; s++) {
        size_t most = 0;
        for (uint32_t i = 0; i < p->n_buffers; i++) {
            const ProgBuffer *buffer = &p->buffers[i];
            size_t bytes;
            if (buffer->kind != BUFFER_BAND || buffer->slot != s || !in_band(b, i))
                continue;
            if (__builtin_mul_overflow((size_t)rows * dtype_bytes((DType)buffer->dtype), (size_t)b->run->sizes[buffer->row], &bytes))
                bytes = SIZE_MAX / 4;
            most = bytes > most ? bytes : most;
        }
        slot[s] = in_room(room, most);
    }
    return *room - began;
}

static int64_t common_multiple(int64_t a, int64_t b)
{
    int64_t x = a, y = b, product;
    while (y) {
        int64_t rest = x % y;
        x = y;
        y = rest;
    }
    return __builtin_mul_overflow(a / x, b, &product) ? INT64_MAX : product;
}

/* What a kernel does with rows; false: its tasks are none. Binds its arguments, which are run->args. */
static bool look_at(Bands *b, Member *m)
{
    Run *run = b->run;
    HostLaunch room;
    bind_args(run, m->step);
    const HostLaunch *launch = kernel_launch(m->kernel, run->args, &room);
    int64_t tasks = launch->tasks[0];
    if (launch->rows <= 0)
        return false;
    m->folds = launch->scratch > 0;
    m->rows = launch->rows < b->rows ? launch->rows : b->rows;
    m->blocks = (b->rows + m->rows - 1) / m->rows;
    if (launch->phases != (m->folds ? m->blocks : 1))
        return false;
    b->folds |= m->folds;
    m->sums = (size_t)(launch->scratch / b->batch);
    m->tasks = tasks / (m->folds ? b->batch : b->batch * m->blocks);
    for (uint32_t a = 0; a < m->step->n_args; a++)
        m->spans |= run->p->args[m->step->first_arg + a].kind == BIND_SPANS;
    b->deaf |= m->spans && (!launch->spans || (b->span_rows && b->span_rows != m->rows));
    b->span_rows = m->spans ? m->rows : b->span_rows;
    int64_t each = common_multiple(b->each, m->rows);
    b->each = each < b->rows ? each : b->rows;
    size_t scratch = (size_t)launch->local;
    b->scratch = scratch > b->scratch ? scratch : b->scratch;
    return m->tasks * b->batch * (m->folds ? 1 : m->blocks) == tasks;
}

/* false: the steps run one after the other. */
static bool plan_bands(Run *run, const ProgBand *band, Bands *b)
{
    *b = (Bands){.run = run, .band = band, .batch = run->sizes[band->batch], .rows = run->sizes[band->rows], .each = 1};
    bool fits = b->batch > 0 && b->rows > 0 && run->p->n_band_slots <= BAND_SLOTS;
    for (uint32_t i = 0; i < band->n; i++) {
        Member *m = &b->member[i];
        m->step = &run->p->steps[band->first + i];
        m->kernel = run->p->kernels[m->step->kernel].compiled;
        fits = fits && look_at(b, m);
    }
    if (!fits)
        return false;
    b->threads = pool_threads();
    b->shared = b->folds && b->batch < b->threads * EVEN && b->batch % b->threads;
    if (b->shared)
        b->each = b->rows / b->threads > b->each ? b->each * b->threads : b->rows;
    b->across = (b->rows + b->each - 1) / b->each;
    b->scratch_each = launch_aligned(b->scratch);
    size_t rooms = b->shared ? 1 : (size_t)b->threads, scratch = b->shared ? b->scratch_each * (size_t)b->threads : b->scratch,
           whole[BAND_SLOTS], nothing = 0;
    for (uint32_t i = 0; i < band->n; i++)
        b->member[i].args_at = in_room(&b->room, sizeof(void *) * b->member[i].step->n_args);
    size_t slots = place_slots(b, b->each, b->slot, &b->room), all = place_slots(b, b->batch * b->rows, whole, &nothing);
    b->scratch = in_room(&b->room, scratch);
    if (b->span_rows && !b->deaf) {
        b->spans = SPAN_BYTES * (size_t)(b->each / b->span_rows + 1);
        b->spans_at = in_room(&b->room, b->spans * BAND_SPANS);
    }
    for (uint32_t i = 0; i < band->n; i++)
        b->member[i].sums_at = in_room(&b->room, b->member[i].sums);
    if (b->room >= SIZE_MAX / 4 / rooms || slots * rooms > all)
        return false;
    return b->folds || b->threads == 1 || b->batch * b->across >= (int64_t)b->threads * BANDS_A_THREAD;
}

typedef struct Part { /* of what a step does in a band */
    const Bands *b;
    const Member *m;
    void **args;
    int64_t phase, base;
    char *scratch;
} Part;

static void run_part(void *arg, int64_t lo, int64_t hi, int thread)
{
    const Part *p = arg;
    p->m->kernel->run(p->args, p->phase, p->base + lo, p->base + hi, p->scratch + p->b->scratch_each * (size_t)thread);
}

/* Tasks [lo, hi) of a phase; by all threads where they share the band. */
static void run_tasks(Part *p, int64_t phase, int64_t lo, int64_t hi)
{
    enum { PARTS = 4 };
    p->phase = phase;
    p->base = lo;
    int64_t grain = (hi - lo) / (p->b->threads * PARTS);
    if (p->b->shared)
        pool_run(hi - lo, grain > 1 ? grain : 1, p->b->threads, run_part, p);
    else
        run_part(p, 0, hi - lo, 0);
}

/* Rows first to first + n of one of the batch. */
static void run_rows(const Bands *b, int64_t batch, int64_t first, int64_t n, int thread)
{
    const Run *run = b->run;
    char *room = b->rooms + b->room * (size_t)thread;
    double before = b->seconds ? os_seconds() : 0;
    for (uint32_t i = 0; i < b->band->n; i++) {
        const Member *m = &b->member[i];
        void **args = (void **)(void *)(room + m->args_at);
        memcpy(args, m->args, sizeof *args * m->step->n_args);
        for (uint32_t a = 0; a < m->step->n_args; a++) {
            const ProgArg *arg = &run->p->args[m->step->first_arg + a];
            const ProgBuffer *buffer = arg->kind == BIND_BUFFER ? &run->p->buffers[arg->value] : NULL;
            if (arg->kind == BIND_SHARED && m->folds)
                args[a] = (void *)((uintptr_t)(room + m->sums_at) - (uintptr_t)batch * m->sums); /* likewise */
            if (arg->kind == BIND_SPANS && b->spans)                                             /* where those of block 0 would lie */
                args[a] = (void *)((uintptr_t)(room + b->spans_at + b->spans * arg->value) -
                                   SPAN_BYTES * (uintptr_t)(batch * m->blocks + first / m->rows));
            if (!buffer || buffer->kind != BUFFER_BAND)
                continue;
            uintptr_t skipped =
                (uintptr_t)(batch * b->rows + first) * (uintptr_t)run->sizes[buffer->row] * dtype_bytes((DType)buffer->dtype);
            args[a] = (void *)((uintptr_t)(room + b->slot[buffer->slot]) - skipped); /* as a number: no such place need exist */
        }
        int64_t block = first / m->rows, end = (first + n + m->rows - 1) / m->rows, base = batch * m->blocks;
        Part part = {.b = b, .m = m, .args = args, .scratch = room + b->scratch};
        for (int64_t phase = block; phase < end && m->folds; phase++)
            run_tasks(&part, phase, batch * m->tasks, (batch + 1) * m->tasks);
        if (!m->folds)
            run_tasks(&part, 0, (base + block) * m->tasks, (base + end) * m->tasks);
        if (b->seconds) {
            double now = os_seconds();
            b->seconds[thread][i] += now - before;
            before = now;
        }
    }
}

/* Bands [lo, hi); where rows are summed up, all of [lo, hi) of the batch. */
static void run_bands_of(void *arg, int64_t lo, int64_t hi, int thread)
{
    const Bands *b = arg;
    int64_t each = b->folds ? b->across : 1;
    for (int64_t i = lo * each; i < hi * each; i++) {
        int64_t first = i % b->across * b->each, left = b->rows - first;
        run_rows(b, i / b->across, first, left < b->each ? left : b->each, thread);
    }
}

/* Rooms of all threads, and before them the arguments that they have in common. */
static bool make_room(Bands *b, bool timed)
{
    size_t args = 0, timing = 0;
    for (uint32_t i = 0; i < b->band->n; i++)
        (void)in_room(&args, sizeof(void *) * b->member[i].step->n_args);
    if (timed)
        (void)in_room(&timing, sizeof *b->seconds * (size_t)b->threads);
    const char *name = b->run->p->steps[b->band->first].what;
    char *at = launch_scratch(b->run->e, args + timing + b->room * (size_t)(b->shared ? 1 : b->threads), name);
    if (!at)
        return false;
    for (uint32_t i = 0, n = 0; i < b->band->n; i++) {
        b->member[i].args = (void **)(void *)(at + n);
        n += (uint32_t)launch_aligned(sizeof(void *) * b->member[i].step->n_args);
        bind_args(b->run, b->member[i].step);
        memcpy(b->member[i].args, b->run->args, sizeof(void *) * b->member[i].step->n_args);
    }
    b->seconds = timed ? (double(*)[BAND_STEPS])(void *)(at + args) : NULL;
    if (timed)
        memset(b->seconds, 0, timing);
    b->rooms = at + args + timing;
    return true;
}

/* Each step's share of the time that all took together. */
static void tell_times(const Bands *b, double seconds, int64_t began)
{
    Run *run = b->run;
    double spent[BAND_STEPS] = {0}, all = 0;
    for (uint32_t i = 0; i < b->band->n; i++)
        for (int t = 0; t < b->threads; t++) {
            spent[i] += b->seconds[t][i];
            all += b->seconds[t][i];
        }
    Launched together = {.program = run->whole, .what = "band", .device = run->device, .known = true};
    for (uint32_t i = 0; i < b->band->n; i++) {
        const ProgStep *step = b->member[i].step;
        Launched l = {.program = run->whole,
                      .what = step->what,
                      .bytes = run->sizes[step->bytes],
                      .work = step_work(run->p, step, run->sizes),
                      .tasks = b->batch * b->across,
                      .threads = b->threads,
                      .device = run->device,
                      .known = true};
        perf_launched(&l, all > 0 ? seconds * spent[i] / all : 0);
        together.bytes += l.bytes;
        together.tasks = l.tasks;
        together.threads = l.threads;
        work_add(&together.work, &l.work, 1);
    }
    if (began)
        traced_launch(run->e, &together, began);
}

/* All rows in memory, one step after the other. */
static Status run_whole(Run *run, const ProgBand *band, const Bands *b)
{
    size_t slot[BAND_SLOTS], bytes = 0;
    bool together;
    TRY(band_reserve(run, band, &together));
    (void)place_slots(b, b->batch * b->rows, slot, &bytes);
    for (uint32_t i = 0; i < run->p->n_buffers; i++)
        if (run->p->buffers[i].kind == BUFFER_BAND && in_band(b, i))
            run->address[i] = (char *)run->rows->data + slot[run->p->buffers[i].slot];
    for (uint32_t i = 0; i < band->n && !run->fault; i++)
        TRY(run_step(run, &run->p->steps[band->first + i]));
    return ST_OK;
}

Status band_reserve(Run *run, const ProgBand *band, bool *together)
{
    Bands b;
    size_t slot[BAND_SLOTS], bytes = 0;
    *together = plan_bands(run, band, &b);
    if (*together)
        return make_room(&b, run_timed(run)) ? ST_OK : ST_OUT_OF_MEMORY;
    (void)place_slots(&b, b.batch * b.rows, slot, &bytes);
    if (run->rows && run->rows->bytes < bytes) {
        storage_release(run->rows);
        run->rows = NULL;
    }
    return run->rows ? ST_OK : storage_new_on(run->device, bytes, &run->rows);
}

Status run_band(Run *run, const ProgBand *band)
{
    Bands b;
    if (!plan_bands(run, band, &b))
        return run_whole(run, band, &b);
    bool timed = run_timed(run);
    if (timed)
        perf_look();
    int64_t began = run_traced(run);
    if (!make_room(&b, timed))
        return ST_OUT_OF_MEMORY;
    if (began)
        pool_name_work(b.member[0].step->what);
    double start = timed ? os_seconds() : 0;
    if (b.shared)
        run_bands_of(&b, 0, b.batch, 0);
    else
        pool_run(b.folds ? b.batch : b.batch * b.across, 1, b.threads, run_bands_of, &b);
    if (timed)
        tell_times(&b, os_seconds() - start, began);
    for (uint32_t i = 0; i < band->n; i++)
        run->e->moved += run->sizes[b.member[i].step->bytes];
    run->e->launches += band->n;
    return ST_OK;
}
