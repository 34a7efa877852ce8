// Data races: two threads access the same bytes, one of them writes, nothing orders them, and they are not both strong
// (atomic, .relaxed, .volatile ...). Two plain writes of the same value are let pass: devices define that.
//
// What orders accesses, after the memory model of PTX:
//   the same thread;
//   barriers of the block (bar.sync, also with a count): each warp counts the barriers that it passed in `time`, and `known`
//     says up to which time it has seen every other warp; a barrier joins the knowledge of those that pass it together;
//   bar.warp.sync: the same between the lanes of a warp, in `lane_known`. Shuffles and votes exchange values and order
//     nothing; lanes of a warp are not in step;
//   a release and an acquire on one address: fence then atomic (or an atomic with .release), seen by atomic then fence (or
//     with .acquire). What a thread releases is what it knew at its fence. A barrier hands on what a thread acquired. This
//     is how "the last block adds up" is found to be right, or wrong when a fence is missing.
//
// Memory is looked at in pages of cells; a cell stands for 4 bytes, or for one once a page sees accesses of less than 4 bytes.
// What is read through the read-only cache (ld.global.nc) may not be written in the same launch at all, whoever does it and
// in whatever order.
//
// A cell remembers its last writer and two readers. So a race can be missed (a third reader, or the memory for cells ran out),
// but what is reported is one.
#include "tests/cuda_driver/race.h"
#include "tests/cuda_driver/driver.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = 1024, BUCKETS = 1 << 14, VARIABLE_BUCKETS = 1 << 12, ACQUIRED_KEPT = 8, OBSERVED_KEPT = 4 };
#define CELLS_LIMIT ((size_t)256 << 20) // bytes of cells for global memory in one launch

typedef struct Stamp {
    uint32_t block;
    uint16_t thread; // in the block
    bool set, strong;
    uint32_t time, lane_time; // of its warp, of its lane
    uint32_t line;
} Stamp;

typedef struct Cell {
    Stamp writer, reader[2];
    Stamp cached; // a reader that went through the read-only cache (ld.global.nc), in the whole launch
} Cell;

typedef struct Page {
    struct Page *next;  // in its bucket
    struct Page *older; // of the launch
    uint64_t number;
    unsigned grain; // bytes per cell: 4 or 1
    Cell *cell;
} Page;

typedef struct Known { // what a release told about its block
    uint32_t block;
    uint32_t time;         // accesses of all its warps before this time are known
    uint32_t warp;         // the releasing one
    uint32_t lanes[LANES]; // of it: accesses before these lane times, too
    bool any;              // several warps released: all they did until then counts as known
} Known;

typedef struct SyncVariable {   // an address that atomics or strong accesses use
    struct SyncVariable *next;  // in its bucket
    struct SyncVariable *older; // of the launch
    uint64_t address;
    bool shared;
    Known *known;
    size_t count, room;
} SyncVariable;

typedef struct Acquired {
    Stamp by; // who, when; block unused
    SyncVariable *from;
    size_t count; // entries of it that were there
} Acquired;

typedef struct RaceState {
    Page *bucket[BUCKETS];
    Page *newest, *last;
    Page *shared[(256 << 10) / PAGE];
    size_t bytes;
    SyncVariable *variables[VARIABLE_BUCKETS];
    SyncVariable *newest_variable;
    Acquired acquired[ACQUIRED_KEPT]; // of the running block
    size_t acquired_count;
    bool acquired_too_much; // to keep them apart: what other threads released counts as known from then on
    struct LaneState {
        bool fenced;
        uint32_t fence_time, fence_lane_time; // when
        struct {
            SyncVariable *variable;
            size_t count;
        } observed[OBSERVED_KEPT];
        unsigned observed_count;
    } lane[MAX_WARPS][LANES];
} RaceState;

static RaceState *spare; // a launch leaves it empty for the next one: making it costs more than a small kernel

static size_t page_bucket(uint64_t number) { return (number ^ number >> 14) % BUCKETS; }

static size_t variable_bucket(uint64_t address) { return (address >> 2 ^ address >> 14) % VARIABLE_BUCKETS; }

// ---- pages ----

static void free_page(Page *page)
{
    free(page->cell);
    free(page);
}

static Page *new_page(RaceState *r, uint64_t number, unsigned grain)
{
    Page *page = calloc(1, sizeof *page);
    if (page)
        page->cell = calloc(PAGE / grain, sizeof(Cell));
    if (!page || !page->cell) {
        free(page);
        return NULL;
    }
    page->number = number;
    page->grain = grain;
    r->bytes += PAGE / grain * sizeof(Cell);
    return page;
}

// Four cells for each one, all with its history.
static bool split_page(RaceState *r, Page *page)
{
    Cell *fine = calloc(PAGE, sizeof *fine);
    if (!fine)
        return false;
    for (unsigned i = 0; i < PAGE; i++)
        fine[i] = page->cell[i / page->grain];
    free(page->cell);
    page->cell = fine;
    page->grain = 1;
    r->bytes += PAGE * sizeof *fine;
    return true;
}

static Page *find_page(RaceState *r, bool shared, uint64_t number, unsigned grain)
{
    Page *page;
    if (shared) {
        if (number >= sizeof r->shared / sizeof *r->shared)
            return NULL;
        if (!r->shared[number])
            r->shared[number] = new_page(r, number, grain);
        page = r->shared[number];
    } else {
        page = r->last;
        if (!page || page->number != number) {
            Page **bucket = &r->bucket[page_bucket(number)];
            for (page = *bucket; page && page->number != number;)
                page = page->next;
            if (!page) {
                if (r->bytes > CELLS_LIMIT)
                    return NULL;
                page = new_page(r, number, grain);
                if (!page)
                    return NULL;
                page->next = *bucket;
                page->older = r->newest;
                *bucket = r->newest = page;
            }
        }
        r->last = page;
    }
    return page && grain < page->grain && !split_page(r, page) ? NULL : page;
}

// ---- ordering ----

static Stamp stamp_of(const Warp *w, uint32_t lane, bool strong, uint32_t line)
{
    return (Stamp){w->block->linear, (uint16_t)(w->index * LANES + lane), true, strong, w->time, w->lane_known[lane][lane], line};
}

// Within the running block: did what `s` stands for come before what this lane does now?
static bool seen_in_block(const Warp *w, uint32_t lane, const Stamp *s)
{
    uint32_t warp = s->thread / LANES, other = s->thread % LANES;
    if (warp != w->index)
        return w->known[warp] > s->time;
    return other == lane || w->time > s->time || w->lane_known[lane][other] > s->lane_time;
}

static bool covers(const Known *k, const Stamp *s)
{
    if (k->block != s->block)
        return false;
    if (k->any || s->time < k->time)
        return true;
    // The atomic of a release comes after its fence; who saw it may go on with plain accesses of the same address.
    return s->thread / LANES == k->warp && (s->strong || s->lane_time < k->lanes[s->thread % LANES]);
}

static bool acquired(const RaceState *r, const Warp *w, uint32_t lane, const Stamp *s)
{
    for (size_t i = 0; i < r->acquired_count; i++) {
        const Acquired *a = &r->acquired[i];
        if (!seen_in_block(w, lane, &a->by))
            continue;
        for (size_t k = 0; k < a->count; k++)
            if (covers(&a->from->known[k], s))
                return true;
    }
    return false;
}

static bool ordered(const RaceState *r, const Warp *w, uint32_t lane, const Stamp *s)
{
    if (s->block == w->block->linear && seen_in_block(w, lane, s))
        return true;
    return r->acquired_too_much || (r->acquired_count && acquired(r, w, lane, s));
}

// ---- release and acquire ----

static SyncVariable *variable_at(RaceState *r, uint64_t address, bool shared)
{
    SyncVariable **bucket = &r->variables[variable_bucket(address)], *v = *bucket;
    while (v && (v->address != address || v->shared != shared))
        v = v->next;
    if (v)
        return v;
    v = calloc(1, sizeof *v);
    if (!v)
        return NULL;
    *v = (SyncVariable){.next = *bucket, .older = r->newest_variable, .address = address, .shared = shared};
    *bucket = r->newest_variable = v;
    return v;
}

static void release(SyncVariable *v, const Warp *w, uint32_t lane, uint32_t time, uint32_t lane_time)
{
    Known *k = NULL;
    for (size_t i = v->count; i-- > 0 && !k;) // blocks run one after another: mostly the last entry
        k = v->known[i].block == w->block->linear ? &v->known[i] : NULL;
    if (k && k->warp != w->index) {
        k->any = true;
        return;
    }
    if (k && k->time < time)
        k->time = time;
    if (!k) {
        if (v->count == v->room) {
            size_t room = v->room ? 2 * v->room : 16;
            Known *grown = realloc(v->known, room * sizeof *grown);
            if (!grown)
                return;
            v->known = grown;
            v->room = room;
        }
        k = &v->known[v->count++];
        *k = (Known){.block = w->block->linear, .warp = w->index, .time = time};
    }
    for (uint32_t l = 0; l < LANES; l++) {
        uint32_t until = l == lane ? lane_time : w->lane_known[lane][l];
        k->lanes[l] = until > k->lanes[l] ? until : k->lanes[l];
    }
}

static void acquire(RaceState *r, const Warp *w, uint32_t lane, SyncVariable *v, size_t count)
{
    for (size_t i = 0; i < r->acquired_count; i++)
        if (r->acquired[i].from == v && r->acquired[i].by.thread == w->index * LANES + lane && r->acquired[i].count >= count)
            return;
    if (r->acquired_count < ACQUIRED_KEPT)
        r->acquired[r->acquired_count++] = (Acquired){stamp_of(w, lane, false, 0), v, count};
    else
        r->acquired_too_much = true; // better to miss a race than to invent one
}

// Everything that all warps of the block did before this is known to the warp.
static uint32_t common_time(const Warp *w)
{
    uint32_t least = w->time;
    for (uint32_t v = 0; v < w->block->warps; v++)
        if (v != w->index && w->known[v] < least)
            least = w->known[v];
    return least;
}

void race_fence(Warp *w, uint32_t lane)
{
    RaceState *r = w->block->launch->races;
    if (!r)
        return;
    struct LaneState *s = &r->lane[w->index][lane];
    s->fenced = true;
    s->fence_time = common_time(w);
    s->fence_lane_time = ++w->lane_known[lane][lane];
    for (unsigned i = 0; i < s->observed_count; i++)
        acquire(r, w, lane, s->observed[i].variable, s->observed[i].count);
    s->observed_count = 0;
}

// A strong access: it may publish what the thread knew at its last fence, and it sees what others published here.
static void synchronise(RaceState *r, Warp *w, const Inst *in, uint32_t lane, bool shared, uint64_t address, AccessKind kind)
{
    struct LaneState *s = &r->lane[w->index][lane];
    int semantics = in->mod[C_SEMANTICS];
    bool releases = semantics == M_SEMANTICS_release || semantics == M_SEMANTICS_acq_rel;
    bool acquires = semantics == M_SEMANTICS_acquire || semantics == M_SEMANTICS_acq_rel;
    SyncVariable *v = variable_at(r, address, shared);
    if (!v)
        return;
    if (access_reads(kind) && acquires) {
        acquire(r, w, lane, v, v->count);
    } else if (access_reads(kind)) {
        unsigned i = 0;
        while (i < s->observed_count && s->observed[i].variable != v)
            i++;
        if (i == OBSERVED_KEPT) // the oldest goes
            memmove(&s->observed[0], &s->observed[1], (--i) * sizeof s->observed[0]);
        s->observed[i].variable = v;
        s->observed[i].count = v->count;
        s->observed_count = i + 1 > s->observed_count ? i + 1 : s->observed_count;
    }
    if (access_writes(kind) && releases) {
        uint32_t lane_time = ++w->lane_known[lane][lane];
        release(v, w, lane, common_time(w), lane_time);
    } else if (access_writes(kind) && s->fenced) {
        release(v, w, lane, s->fence_time, s->fence_lane_time);
    }
}

// ---- hooks of exec.c ----

bool race_start(Launch *launch)
{
    launch->races = NULL;
    if (settings.races == RACES_OFF || settings.together > 1)
        return true;
    launch->races = spare ? spare : calloc(1, sizeof(RaceState));
    spare = NULL;
    return launch->races != NULL;
}

static void free_shared(RaceState *r)
{
    for (size_t i = 0; i < sizeof r->shared / sizeof *r->shared; i++)
        if (r->shared[i]) {
            r->bytes -= PAGE / r->shared[i]->grain * sizeof(Cell);
            free_page(r->shared[i]);
            r->shared[i] = NULL;
        }
}

void race_end(Launch *launch)
{
    RaceState *r = launch->races;
    if (!r)
        return;
    free_shared(r);
    for (Page *page = r->newest, *older; page; page = older) {
        older = page->older;
        r->bucket[page_bucket(page->number)] = NULL;
        free_page(page);
    }
    for (SyncVariable *v = r->newest_variable, *older; v; v = older) {
        older = v->older;
        r->variables[variable_bucket(v->address)] = NULL;
        free(v->known);
        free(v);
    }
    r->newest = r->last = NULL;
    r->newest_variable = NULL;
    r->bytes = 0;
    spare = r;
    launch->races = NULL;
}

void race_unload(void)
{
    free(spare);
    spare = NULL;
}

void race_block(Block *b)
{
    RaceState *r = b->launch->races;
    if (!r)
        return;
    free_shared(r);
    r->acquired_count = 0;
    r->acquired_too_much = false;
    memset(r->lane, 0, b->warps * sizeof r->lane[0]);
    for (uint32_t i = 0; i < b->warps; i++) {
        b->warp[i].time = 0;
        memset(b->warp[i].known, 0, sizeof b->warp[i].known);
        memset(b->warp[i].lane_known, 0, sizeof b->warp[i].lane_known);
    }
}

void race_barrier(Block *b, uint32_t warps)
{
    if (!b->launch->races)
        return;
    uint32_t join[MAX_WARPS] = {0};
    for (uint32_t left = warps; left; left &= left - 1) {
        Warp *w = &b->warp[__builtin_ctz(left)];
        w->known[w->index] = ++w->time;
        for (uint32_t v = 0; v < b->warps; v++)
            join[v] = w->known[v] > join[v] ? w->known[v] : join[v];
    }
    for (uint32_t left = warps; left; left &= left - 1)
        memcpy(b->warp[__builtin_ctz(left)].known, join, sizeof join);
}

void race_warp(Warp *w, uint32_t lanes)
{
    if (!w->block->launch->races)
        return;
    uint32_t join[LANES] = {0};
    for (uint32_t left = lanes; left; left &= left - 1) {
        uint32_t l = (uint32_t)__builtin_ctz(left);
        w->lane_known[l][l]++;
        for (uint32_t o = 0; o < LANES; o++)
            join[o] = w->lane_known[l][o] > join[o] ? w->lane_known[l][o] : join[o];
    }
    for (uint32_t left = lanes; left; left &= left - 1)
        memcpy(w->lane_known[__builtin_ctz(left)], join, sizeof join);
}

// ---- accesses ----

static _Noreturn void race(Warp *w, const Inst *in, uint32_t lane, Space space, uint64_t address, const char *does, const Stamp *s,
                           const char *did)
{
    const Launch *launch = w->block->launch;
    uint32_t t = s->thread, b = s->block;
    const uint32_t *n = launch->block, *g = launch->grid;
    exec_violation(w, in, (int)lane, CUDA_ERROR_LAUNCH_FAILED,
                   "race: %s 0x%llx of the .%s space, which thread (%u,%u,%u) of block (%u,%u,%u) %s at line %u; "
                   "nothing orders the "
                   "two",
                   does, (unsigned long long)address, space == SPACE_SHARED ? "shared" : "global", t % n[0], t / n[0] % n[1],
                   t / n[0] / n[1], b % g[0], b / g[0] % g[1], b / g[0] / g[1], did, s->line);
}

static bool conflicts(const RaceState *r, const Warp *w, uint32_t lane, const Stamp *s, bool strong)
{
    return s->set && !(strong && s->strong) && !ordered(r, w, lane, s);
}

static void remember_reader(const RaceState *r, const Warp *w, uint32_t lane, Cell *cell, Stamp me)
{
    for (int i = 0; i < 2; i++)
        if (!cell->reader[i].set || ordered(r, w, lane, &cell->reader[i])) {
            cell->reader[i] = me;
            return;
        }
    cell->reader[1] = me;
}

void race_access(Warp *w, const Inst *in, uint32_t lane, Space space, uint64_t address, unsigned size, AccessKind kind, const void *old,
                 const void *fresh)
{
    RaceState *r = w->block->launch->races;
    bool shared = space == SPACE_SHARED;
    if (!r || (!shared && settings.races != RACES_ON))
        return;
    bool strong = kind != ACCESS_READ && kind != ACCESS_WRITE, writes = access_writes(kind), reads = access_reads(kind);
    if (strong)
        synchronise(r, w, in, lane, shared, address, kind);
    Page *page = find_page(r, shared, address / PAGE, size < 4 ? 1 : 4);
    if (!page)
        return;
    Stamp me = stamp_of(w, lane, strong, in->line);
    bool read_only = in->mod[C_CACHE] == M_CACHE_nc;
    for (unsigned at = 0; at < size; at += page->grain) {
        Cell *cell = &page->cell[(address + at) % PAGE / page->grain];
        if (read_only && cell->writer.set)
            race(w, in, lane, space, address + at, "read through the read-only cache of", &cell->writer, "wrote in this launch");
        if (conflicts(r, w, lane, &cell->writer, strong)) {
            bool same = kind == ACCESS_WRITE && !memcmp((const char *)old + at, (const char *)fresh + at, page->grain);
            if (!same)
                race(w, in, lane, space, address + at, writes ? "write of" : "read of", &cell->writer, "wrote");
        }
        if (writes && cell->cached.set)
            race(w, in, lane, space, address + at, "write of", &cell->cached, "read through the read-only cache");
        if (read_only)
            cell->cached = me;
        if (writes)
            for (int i = 0; i < 2; i++)
                if (conflicts(r, w, lane, &cell->reader[i], strong))
                    race(w, in, lane, space, address + at, "write of", &cell->reader[i], "read");
        if (writes) {
            cell->writer = me;
            if (!reads)
                cell->reader[0].set = cell->reader[1].set = false;
        }
        if (reads && !writes)
            remember_reader(r, w, lane, cell, me);
    }
}
