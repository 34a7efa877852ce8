/*
 * Running one collective: is it the same on all ranks, and do they come?
 *
 *     rank r    tell r + 1 what it has  |  start  |  test, hear what r - 1 has, tell r + 2, test ...  |  done: both are there
 *
 * Every collective carries a check, in log2(size) rounds: each rank tells the one 1, 2, 4... behind it what it has, after it heard from
 * those 1, 2, ... before it that they have the same (a dissemination barrier). Who heard all rounds knows that all ranks have the same, and
 * gives no result out before: so no rank has a result where another sees a difference, whatever the backend made of collectives that do not
 * fit. The rounds go on beside the collective, which waits for the others anyway, so they cost no waiting; but what runs for the first time
 * starts when all have agreed, so that a backend meets differing sizes seldom. Ranks that agreed so far know of the same sequences that
 * they ran; where they do not agree, who waits for a round that does not come hears from him who saw the difference.
 *
 * Who waits for a while tells all ranks of the group what he waits in: so differences show also where the next rank is somewhere else, and
 * at the deadline it is known who did not come. Who sees a failure tells all ranks of the world (FAILED), and who waits hears that. After a
 * collective is done there is a last look for
 * that: a rank that gave up may have had other things in its memory by the time that its part was read.
 *
 * Large ones may be in the air while their program goes on with what does not need them (comm_begin, comm_end), one after the other: a
 * thread asks the backend how far the first one is, takes notes and looks at the clock meanwhile. Who waits for one does that itself.
 *
 * A process that ends tells how many collectives it ran (LEFT), so who waits for one more of it need not wait for long. It ends when all
 * others do, as MPI wants it, or when one of them fails.
 */
#include "ir/base/hash.h"
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "ir/base/os_dir.h"
#include "ir/base/path.h"
#include "ir/base/timeline.h"
#include "jit/options.h"
#include "runtime/comm/comm.h"
#include "runtime/eval/pool.h"
#include "runtime/evaluation.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* One collective that runs. */
typedef struct Running {
    kiln_group *g;
    const CommWhat *what;
    Loc loc;
    uint32_t agreed;  /* rounds: 1 << k: the rank 1 << k before this one has the same, and those that it heard of */
    uint32_t told_of; /* rounds that this rank began, of all */
    uint32_t all;
    bool told;               /* all others know that this one waits */
    bool started;            /* and may still write */
    bool leaving;            /* it is none: the process ends */
    int peer;                /* of a COMM_SEND or COMM_RECV: the other rank; -1: it is of the whole group */
    uint64_t vote;           /* of this rank and of those heard so far; 0: they differ, or want none (comm_ask) */
    uint32_t more;           /* are in the same CUDA graph */
    double began, due;       /* seconds */
    uint64_t rounds, number; /* number: of the collective in its group */
    Status status;
} Running;

/* ---- words ---- */

static const char *op_word(unsigned op)
{
    static const char *const word[COMM_OPS] = {[KILN_COMM_ALL_REDUCE] = "all_reduce",
                                               [KILN_COMM_ALL_GATHER] = "all_gather",
                                               [KILN_COMM_REDUCE_SCATTER] = "reduce_scatter",
                                               [KILN_COMM_BROADCAST] = "broadcast",
                                               [KILN_COMM_REDUCE] = "gradient of broadcast",
                                               [KILN_COMM_ALL_TO_ALL] = "all_to_all",
                                               [KILN_COMM_SEND_RECV] = "send_recv",
                                               [KILN_COMM_BARRIER] = "barrier",
                                               [COMM_SPLIT] = "group_split",
                                               [COMM_SEND] = "send",
                                               [COMM_RECV] = "recv",
                                               [COMM_CAPTURED] = "capture of a CUDA graph"};
    return op < COMM_OPS ? word[op] : "?";
}

/* "all_reduce sum of f32[4] (train.c:12)" */
static const char *what_text(const CommWhat *w, const char *where, char *text, size_t size)
{
    static const char *const how[] = {"sum", "prod", "max", "min", "mean"};
    char shape[SHAPE_TEXT] = "", root[32] = "";
    Shape type = {.dtype = w->dtype, .rank = w->rank & (COMM_ON_DEVICE - 1)};
    if (type.rank <= MAX_RANK && w->dtype < DT_COUNT)
        memcpy(type.dim, w->dim, sizeof *w->dim * type.rank);
    const char *place = w->rank & COMM_ON_DEVICE ? " on CUDA" : "";
    bool has_data = w->op < KILN_COMM_BARRIER || comm_is_pair(w->op),
         reduces = w->op == KILN_COMM_ALL_REDUCE || w->op == KILN_COMM_REDUCE_SCATTER;
    if (w->op == KILN_COMM_BROADCAST || w->op == KILN_COMM_REDUCE)
        snprintf(root, sizeof root, " from rank %d", w->root);
    if (comm_is_pair(w->op))
        snprintf(root, sizeof root, " %s rank %d", w->op == COMM_SEND ? "to" : "from", w->root);
    snprintf(text, size, "%s%s%s%s%s%s%s%s", op_word(w->op), reduces && w->how < 5 ? " " : "", reduces && w->how < 5 ? how[w->how] : "",
             has_data ? " of " : "", has_data ? shape_text(&type, shape) : "", place, root, where);
    return text;
}

static void where_text(Loc loc, char *where)
{
    where[0] = 0;
    if (loc.file)
        snprintf(where, COMM_PLACE, " (%s:%d)", path_name(loc.file), loc.line);
}

/* For a note: each collective tells it, and it is mostly what the one before told. */
static void told_place(kiln_group *g, Loc loc, char *where)
{
    if (g->told.file != loc.file || g->told.line != loc.line || !loc.file) {
        where_text(loc, g->place);
        g->told = loc;
    }
    memcpy(where, g->place, COMM_PLACE);
}

enum { WHAT_TEXT = SHAPE_TEXT + COMM_PLACE + 96 };

static const char *own_text(const Running *run, char *text)
{
    char where[COMM_PLACE];
    where_text(run->loc, where);
    return what_text(run->what, where, text, WHAT_TEXT);
}

/* ---- failing ---- */

/* Sends what it has of a note; a rank that cannot be told is one that finds out by itself. */
static void tell(const kiln_group *g, int to, const CommNote *note)
{
    char why[KILN_COMM_WHY];
    size_t bytes = note->kind == NOTE_FAILED || note->kind == NOTE_TROUBLE ? sizeof *note : offsetof(CommNote, text);
    (void)g->world->backend->tell(g->comm, to, note, bytes, why);
}

static void tell_others(const kiln_group *g, const CommNote *note)
{
    for (int k = 0; k < g->size; k++)
        if (k != g->rank)
            tell(g, k, note);
}

static Status refuse(const World *w) { return fail(ST_COMM, "%s", w->why); }

Status comm_failed(kiln_group *g, const char *format, ...)
{
    World *w = g->world;
    CommNote note = {.kind = NOTE_FAILED, .format = COMM_FORMAT};
    va_list args;
    if (w->failed)
        return refuse(w);
    va_start(args, format);
    vsnprintf(w->why, sizeof w->why, format, args);
    va_end(args);
    w->failed = true;
    memcpy(note.text, w->why, sizeof note.text);
    tell_others(w->group, &note);
    return refuse(w);
}

static void lost(Running *run, const char *text)
{
    char own[WHAT_TEXT], graph[64] = "";
    if (run->more)
        snprintf(graph, sizeof graph, ", in a CUDA graph with %u more", run->more);
    if (run->status == ST_OK)
        run->status =
            comm_failed(run->g, "%s: %s%s, number %llu %s%s on rank %d", text, own_text(run, own), graph, (unsigned long long)run->number,
                        run->peer < 0 ? "of group " : "between the two in group ", run->g->name, run->g->world->group->rank);
}

void comm_trouble(void)
{
    CommNote note = {.kind = NOTE_TROUBLE, .format = COMM_FORMAT};
    snprintf(note.text, sizeof note.text, "%s", fail_message());
    for (uint32_t id = 0; id < comm_groups(); id++) {
        const kiln_group *g = group_of(id);
        if (g && g == g->world->group && !g->world->failed && g->world->process == os_process())
            tell_others(g, &note);
    }
}

/* What that rank said, for a message about it. */
static const char *trouble_of(const World *w, int rank, char *text, size_t size)
{
    text[0] = 0;
    if (w->trouble[0] && w->troubled == rank)
        snprintf(text, size, "; it said: %s", w->trouble);
    return text;
}

/* ---- notes ---- */

/* This rank has something else than another one. pair: one of the two has a message for, or from, the other. */
static void differ(Running *run, int from, const CommNote *note, bool pair)
{
    const kiln_group *g = run->g;
    char own[WHAT_TEXT], other[WHAT_TEXT], number[32];
    const bool first = from < g->rank;
    if (run->status != ST_OK)
        return;
    what_text(&note->what, note->where, other, sizeof other);
    own_text(run, own);
    snprintf(number, sizeof number, "number %llu of", (unsigned long long)(pair ? note->number : g->calls));
    const bool both_send = pair && note->what.op == COMM_SEND && run->what->op == COMM_SEND;
    run->status =
        comm_failed(run->g, "ranks differ in %s %s group %s: rank %d has %s, rank %d has %s%s", pair ? "message" : "collective", number,
                    g->name, g->world_rank[first ? from : g->rank], first ? other : own, g->world_rank[first ? g->rank : from],
                    first ? own : other, both_send ? "; one has to receive first, or both to call kiln_send_recv" : "");
}

/* Of the collective that runs. */
static void compare(Running *run, int from, const CommNote *note)
{
    if (memcmp(&note->what, run->what, sizeof note->what) != 0)
        differ(run, from, note, false);
}

/* Of what two ranks have together: is one to send what the other is to receive? */
static void compare_pair(Running *run, int from, const CommNote *note)
{
    CommWhat fitting = *run->what;
    fitting.op = fitting.op == COMM_SEND ? COMM_RECV : COMM_SEND;
    fitting.root = run->g->rank;
    if (memcmp(&note->what, &fitting, sizeof fitting) != 0)
        differ(run, from, note, true);
    else
        run->agreed = 1;
}

enum { MOST_ROUNDS = 31 };

static int before(const kiln_group *g, uint32_t round)
{
    return (int)((g->rank + (int64_t)g->size - (INT64_C(1) << round) % g->size) % g->size);
}

static int behind(const kiln_group *g, uint32_t round) { return (int)((g->rank + (INT64_C(1) << round)) % g->size); }

/* About a collective that this rank has not come to. */
static void keep_early(Running *run, kiln_group *g, int from, const CommNote *note)
{
    if (g->n_early == g->cap_early) {
        uint32_t cap = g->cap_early ? 2 * g->cap_early : 4;
        EarlyNote *grown = os_realloc(g->early, sizeof *grown * cap);
        if (!grown) {
            lost(run, "out of memory");
            return;
        }
        g->early = grown;
        g->cap_early = cap;
    }
    g->early[g->n_early].from = from;
    memcpy(&g->early[g->n_early++].note, note, offsetof(CommNote, text));
}

static void take_has(Running *run, kiln_group *g, int from, const CommNote *note)
{
    if (note->number > g->heard[from])
        g->heard[from] = note->number;
    if (note->number > g->calls) {
        keep_early(run, g, from, note);
    } else if (g == run->g && run->peer < 0 && note->number == run->number) {
        compare(run, from, note);
        if (note->kind == NOTE_HAS && note->round < run->all && from == before(g, note->round)) {
            run->agreed |= 1u << note->round;
            run->vote = note->vote == run->vote ? run->vote : 0;
        }
    }
}

/* Another rank waits for this one, with what the two have together. Where this one waits for all in a collective that the other comes to
 * only then, neither would ever go on. */
static void take_pair(Running *run, kiln_group *g, int from, const CommNote *note)
{
    const bool own = g == run->g && !run->leaving;
    if (own && run->peer == from && note->number == run->number)
        compare_pair(run, from, note);
    else if (own && run->peer < 0 && note->round < (uint32_t)g->calls)
        differ(run, from, note, true);
    else
        keep_early(run, g, from, note);
}

/* Does somebody not come any more? */
static void check_left(Running *run)
{
    char text[128 + COMM_NAME + COMM_TROUBLE], said[COMM_TROUBLE + 16];
    const kiln_group *g = run->g;
    for (int k = 0; k < g->size && run->status == ST_OK && !run->leaving; k++)
        if (run->peer < 0 ? g->left[k] < g->calls : k == run->peer && g->left[k] != UINT64_MAX && !run->agreed) {
            trouble_of(g->world, g->world_rank[k], said, sizeof said);
            snprintf(text, sizeof text, "rank %d ended after %llu collectives of group %s%s", g->world_rank[k],
                     (unsigned long long)g->left[k], g->name, said[0] ? said : " (was the last one needed there? kiln_barrier)");
            lost(run, text);
        }
}

static void take(Running *run, kiln_group *g, int from, const CommNote *note)
{
    World *w = g->world;
    switch ((NoteKind)note->kind) {
    case NOTE_HAS:
    case NOTE_WAITS: take_has(run, g, from, note); break;
    case NOTE_PAIR: take_pair(run, g, from, note); break;
    case NOTE_LEFT:
        g->left[from] = note->number;
        check_left(run);
        break;
    case NOTE_FAILED:
        if (!w->failed) {
            w->failed = true;
            snprintf(w->why, sizeof w->why, "rank %d: %.*s", g->world_rank[from], COMM_TEXT - 24, note->text);
        }
        run->status = refuse(w);
        break;
    case NOTE_TROUBLE:
        w->troubled = g->world_rank[from];
        snprintf(w->trouble, sizeof w->trouble, "%.*s", COMM_TROUBLE - 1, note->text);
        break;
    }
}

static void other_kiln(Running *run, int from, int format)
{
    char text[160];
    snprintf(text, sizeof text,
             "rank %d runs another version of kiln (its notes have format %d, those of this one %d): use one on all ranks", from, format,
             COMM_FORMAT);
    lost(run, text);
}

/* Takes what came to this group. */
static void hear(Running *run, kiln_group *g)
{
    char why[KILN_COMM_WHY] = "";
    union {
        CommNote note;
        char room[KILN_COMM_NOTE];
    } in;
    _Static_assert(sizeof(CommNote) <= KILN_COMM_NOTE, "a note fits");
    for (int from = 0; from >= 0 && run->status == ST_OK;) {
        size_t bytes = 0;
        if (g->world->backend->hear(g->comm, &from, in.room, &bytes, why) != KILN_OK)
            lost(run, why);
        else if (from >= 0 && from < g->size && bytes >= offsetof(CommNote, round) && in.note.format != COMM_FORMAT)
            other_kiln(run, from, in.note.format);
        else if (from >= g->size || (from >= 0 && bytes < offsetof(CommNote, text)))
            lost(run, "the backend gives a note that nobody sent");
        else if (from >= 0)
            take(run, g, from, &in.note);
    }
}

/* What came early about this one. */
static void take_early(Running *run)
{
    kiln_group *g = run->g;
    uint32_t n = g->n_early, left = 0;
    for (uint32_t k = 0; k < n; k++) {
        const EarlyNote early = g->early[k];
        g->n_early = left; /* where it is put back, if it is too early still */
        if (early.note.kind == NOTE_PAIR)
            take_pair(run, g, early.from, &early.note);
        else
            take_has(run, g, early.from, &early.note);
        left = g->n_early;
    }
}

/* ---- waiting ---- */

enum { BUSY_ROUNDS = 200, YIELD_ROUNDS = 20000, LOOK_AROUND = 16 };

static void note_of(const Running *run, NoteKind kind, CommNote *note)
{
    *note = (CommNote){.kind = (uint16_t)kind, .format = COMM_FORMAT, .number = run->number, .vote = run->vote, .what = *run->what};
    told_place(run->g, run->loc, note->where);
}

static bool is_missing(const Running *run, int rank)
{
    const kiln_group *g = run->g;
    return run->peer < 0 ? rank != g->rank && g->heard[rank] < run->number : rank == run->peer && !run->agreed;
}

/* Those who were not heard in this collective. */
static void name_missing(const Running *run, char *text, size_t size)
{
    const kiln_group *g = run->g;
    int n = 0;
    size_t at = 0;
    text[0] = 0;
    for (int k = 0; k < g->size && at + 16 < size; k++)
        if (is_missing(run, k))
            at += (size_t)snprintf(text + at, size - at, "%s%d", n++ ? ", " : "", g->world_rank[k]);
    if (at + 16 >= size)
        snprintf(text + at, size - at, "...");
}

static void look_at_the_clock(Running *run)
{
    const double now = os_seconds(), limit = run->due - run->began;
    if (!run->told && run->peer < 0 && now - run->began > (limit < 10 ? limit / 2 : 5)) {
        CommNote note;
        note_of(run, NOTE_WAITS, &note);
        tell_others(run->g, &note);
        run->told = true;
    }
    if (now < run->due)
        return;
    char missing[128], text[256 + COMM_TROUBLE], said[COMM_TROUBLE + 16] = "";
    name_missing(run, missing, sizeof missing);
    for (int k = 0; k < run->g->size && !said[0]; k++)
        if (is_missing(run, k))
            trouble_of(run->g->world, run->g->world_rank[k], said, sizeof said);
    if (missing[0])
        snprintf(text, sizeof text, "rank %s did not come within %.0f s (KILN_COMM_TIMEOUT)%s", missing, limit, said);
    else
        snprintf(text, sizeof text, "all ranks came, but it was not done within %.0f s (KILN_COMM_TIMEOUT)", limit);
    lost(run, text);
}

static uint32_t all_rounds(const kiln_group *g)
{
    uint32_t n = 0;
    while (n < MOST_ROUNDS && INT64_C(1) << n < g->size)
        n++;
    return n;
}

/* Have all ranks the same? The rounds before it are agreed: this rank's next one begins. */
static bool agreed(Running *run)
{
    const kiln_group *g = run->g;
    CommNote note;
    for (; run->told_of < run->all && run->status == ST_OK; run->told_of++) {
        const uint32_t before_it = (1u << run->told_of) - 1;
        if ((run->agreed & before_it) != before_it)
            return false;
        note_of(run, run->peer < 0 ? NOTE_HAS : NOTE_PAIR, &note);
        note.round = run->peer < 0 ? run->told_of : (uint32_t)g->calls;
        tell(g, run->peer < 0 ? behind(g, run->told_of) : run->peer, &note);
    }
    return run->agreed == (1u << run->all) - 1;
}

/* Notes and, now and then, the clock. */
static void listen(Running *run)
{
    kiln_group *g = run->g, *all = g->world->group;
    if (g->size > 1)
        hear(run, g);
    if (run->status == ST_OK && all != g && run->rounds % LOOK_AROUND == 0)
        hear(run, all);
    run->rounds++;
    if (run->status == ST_OK && run->rounds > BUSY_ROUNDS && (run->rounds % LOOK_AROUND == 0 || run->rounds > YIELD_ROUNDS))
        look_at_the_clock(run);
}

static void rest(const Running *run)
{
    if (run->rounds <= BUSY_ROUNDS)
        os_pause();
    else
        os_give_way(run->rounds < YIELD_ROUNDS ? 0 : 50e-6);
}

/* The backend says that it failed: a difference that explains it may be on its way. */
static void backend_failed(Running *run, const char *why)
{
    const double until = os_seconds() + 1;
    CommNote note;
    note_of(run, NOTE_WAITS, &note);
    if (!run->told && run->peer < 0)
        tell_others(run->g, &note);
    run->told = true;
    while (run->status == ST_OK && run->due > os_seconds() && os_seconds() < until) {
        listen(run);
        rest(run);
    }
    lost(run, why[0] ? why : "the backend failed");
}

/* Did the same run here before, after the same? Then it is checked beside it. (Backends were seen to crash on sizes that differ, so one
 * collective alone is not enough.) */
static bool seen(kiln_group *g, const CommWhat *what)
{
    const uint64_t hash = hash128(what, sizeof *what).lo, key = (hash ^ g->last * UINT64_C(0x9e3779b97f4a7c15)) | 1;
    uint64_t *place = &g->seen[key / 2 % COMM_SEEN];
    const bool known = *place == key;
    *place = key;
    g->last = hash;
    return known;
}

struct CommFlight {
    CommFlight *next;
    Running run;
    CommWhat what;
    kiln_comm_call call;
    CudaLane lane; /* device NULL: in memory of the host */
    void *request;
    CommLaunch *launch; /* instead of `call` (comm_launch), with ... */
    void *user;
    bool asks; /* nothing begins yet */
    bool entered, known, begun, over;
    int done;      /* says the backend */
    int64_t began; /* for a timeline; 0: it has not, or none is written */
};

static CommFlight flight_of(kiln_group *g, const CommWhat *what, const kiln_comm_call *call, const CudaLane *lane, Loc loc)
{
    const double now = os_seconds();
    const bool pair = comm_is_pair(what->op);
    return (CommFlight){.run = {.g = g,
                                .loc = loc,
                                .all = pair ? 1 : all_rounds(g),
                                .peer = pair ? what->root : -1,
                                .began = now,
                                .due = now + (double)option_int(OPT_COMM_TIMEOUT)},
                        .what = *what,
                        .call = *call,
                        .lane = lane ? *lane : (CudaLane){.device = NULL}};
}

static void start(CommFlight *f)
{
    Running *run = &f->run;
    const kiln_group *g = run->g;
    char why[KILN_COMM_WHY] = "";
    run->started = true;
    kiln_status status = f->launch        ? f->launch(f->user, &f->lane, &f->request, why)
                         : f->lane.device ? g->world->device->start(g, &f->call, &f->lane, &f->request, why)
                                          : g->world->backend->start(g->comm, &f->call, &f->request, why);
    if (status != KILN_OK)
        backend_failed(run, why);
}

static void test(CommFlight *f)
{
    Running *run = &f->run;
    const kiln_group *g = run->g;
    char why[KILN_COMM_WHY] = "";
    kiln_status status =
        f->lane.device ? g->world->device->test(g, f->request, &f->done, why) : g->world->backend->test(g->comm, f->request, &f->done, why);
    if (status != KILN_OK)
        backend_failed(run, why);
}

static void enter(CommFlight *f)
{
    Running *run = &f->run;
    run->what = &f->what;
    f->entered = true;
    if (run->g->world->failed) {
        run->status = ST_COMM;
        return;
    }
    run->number = run->peer < 0 ? ++run->g->calls : ++run->g->pairs[run->peer];
    take_early(run);
    check_left(run);
    f->known = seen(run->g, &f->what);
}

/* Does what can be done now. Over: it is done here, and all ranks have the same; or it failed. */
static void look_at(CommFlight *f)
{
    Running *run = &f->run;
    if (!f->entered)
        enter(f);
    if (run->status == ST_OK && !f->begun && (agreed(run) || f->known) && !f->asks) {
        f->begun = true;
        f->began = timeline_begin();
        start(f);
    }
    if (run->status == ST_OK && f->begun && !f->done)
        test(f);
    f->over = run->status != ST_OK || (agreed(run) && (f->done || f->asks));
    if (!f->over)
        listen(run);
    else if (run->status == ST_OK && run->g->size > 1)
        hear(run, run->g->world->group);
    f->over |= run->status != ST_OK;
    run->started &= !f->over || run->status != ST_OK;
}

static void look_until_over(CommFlight *f)
{
    for (look_at(f); !f->over; look_at(f))
        rest(&f->run);
}

static Status ended(const CommFlight *f)
{
    const Running *run = &f->run;
    const kiln_group *g = run->g;
    Evaluation *e = rt_thread()->evaluation;
    if (run->started && run->status != ST_OK && e && e->launching)
        e->lent = true;
    if (run->started && run->status != ST_OK && f->lane.device)
        g->world->device->give_up();
    else if (f->lane.device)
        cuda_lane_close(&f->lane);
    if (log_on(LOG_COMM) && log_levels[LOG_COMM] > 1) {
        char own[WHAT_TEXT];
        log_line(LOG_COMM, "rank %d, group %s, number %llu: %s, %.1f us", g->world->group->rank, g->name, (unsigned long long)run->number,
                 own_text(run, own), (os_seconds() - run->began) * 1e6);
    }
    return run->status == ST_OK ? ST_OK : refuse(g->world); /* whichever thread saw it */
}

static Status may_run(const kiln_group *g)
{
    if (g->world->failed)
        return refuse(g->world);
    if (os_process() != g->world->process)
        return fail(ST_COMM, "a forked child is no rank: collectives belong to the process that opened the group");
    return ST_OK;
}

Status comm_run(kiln_group *g, const CommWhat *what, const kiln_comm_call *call, const CudaLane *lane, Loc loc)
{
    TRY(may_run(g));
    CommFlight f = flight_of(g, what, call, lane, loc);
    look_until_over(&f);
    return ended(&f);
}

Status comm_ask(kiln_group *g, const CommWhat *what, uint64_t vote, Loc loc, CommFlight **out, bool *all)
{
    TRY(may_run(g));
    const kiln_comm_call none = {.root = -1, .to = -1, .from = -1};
    CommFlight *f = os_alloc(sizeof *f);
    if (!f)
        return fail(ST_OUT_OF_MEMORY, "no memory for a collective");
    *f = flight_of(g, what, &none, NULL, loc);
    f->asks = true;
    f->run.vote = vote;
    look_until_over(f);
    *all = f->run.vote != 0;
    Status status = f->run.status == ST_OK && out ? ST_OK : ended(f);
    f->asks = f->over = false;
    if (!out || status != ST_OK) {
        os_free(f);
        f = NULL;
    }
    if (out)
        *out = f;
    return status;
}

/* It is the first one of the n: the others have numbers, too, and are over with it. */
Status comm_launch(CommFlight *f, uint32_t n, const CudaLane *lane, CommLaunch *launch, void *user)
{
    f->lane = *lane;
    f->launch = launch;
    f->user = user;
    f->run.more = n - 1;
    f->run.g->calls += n - 1;
    f->run.g->last ^= f->run.vote; /* what comes next comes after all of them */
    look_until_over(f);
    Status status = ended(f);
    os_free(f);
    return status;
}

/* ---- to itself ---- */

/* What was sent, and where. */
typedef struct OwnMail {
    struct OwnMail *next;
    Running run;
    CommWhat what;
    size_t bytes;
    char data[];
} OwnMail;

Status comm_own(kiln_group *g, const CommWhat *what, const kiln_comm_call *call, Loc loc)
{
    TRY(may_run(g));
    const size_t bytes = (size_t)call->count * dtype_bytes((DType)call->dtype);
    const Running run = {.g = g, .what = what, .loc = loc, .peer = g->rank, .number = ++g->pairs[g->rank]};
    char own[WHAT_TEXT], other[WHAT_TEXT];
    OwnMail **last = &g->own, *first = g->own;
    while (*last)
        last = &(*last)->next;
    if (what->op == COMM_SEND) {
        OwnMail *m = os_alloc(sizeof *m + bytes);
        if (!m)
            return comm_failed(g, "rank %d is out of memory", g->world->group->rank);
        *m = (OwnMail){.run = run, .what = *what, .bytes = bytes};
        m->run.what = &m->what;
        memcpy(m->data, call->in, bytes);
        *last = m;
        return ST_OK;
    }
    if (!first)
        return comm_failed(g, "%s on this rank, which has sent itself nothing before", own_text(&run, own));
    CommWhat fitting = first->what;
    fitting.op = COMM_RECV;
    if (memcmp(&fitting, what, sizeof fitting) != 0)
        return comm_failed(g, "rank %d, which sends itself something, has %s, and then %s", g->world->group->rank,
                           own_text(&first->run, other), own_text(&run, own));
    memcpy(call->out, first->data, bytes);
    g->own = first->next;
    os_free(first);
    return ST_OK;
}

/* ---- in the air ---- */

static struct {
    pthread_mutex_t lock; /* while something is in the air, who has it calls the backend */
    pthread_cond_t work;
    CommFlight *first; /* that has not ended; those behind it begin one after the other */
    double rest;       /* between looks */
    uint32_t lane;     /* the thread's, in a timeline */
    bool started;
} progress = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER};

/* Without a core of its own the thread leaves that to what computes, most of the time. */
#define PROGRESS_REST 20e-6

/* In the lane of the thread, whoever saw its end: there they stand one behind the other. */
static void tell_timeline(const CommFlight *f, int64_t waited)
{
    char own[WHAT_TEXT];
    const uint32_t lane = timeline_on() ? timeline_lane() : 0;
    if (!f->began || !lane || !progress.lane)
        return;
    timeline_share_lane(progress.lane);
    timeline_span(TL_RANKS, own_text(&f->run, own), f->began, TL_TEXT("group", f->run.g->name), TL_REAL("waited", 1e-3 * (double)waited));
    timeline_share_lane(lane);
}

/* The only one that may be looked at: those before it are over, those behind it have not begun. */
static CommFlight *first_in_the_air(void)
{
    CommFlight *f = progress.first;
    while (f && f->over)
        f = f->next;
    return f;
}

static void *progress_main(void *unused)
{
    pthread_mutex_lock(&progress.lock);
    timeline_name_lane("ranks");
    progress.lane = timeline_lane();
    for (;;) {
        CommFlight *f = first_in_the_air();
        if (!f) {
            pthread_cond_wait(&progress.work, &progress.lock);
            continue;
        }
        look_at(f);
        if (f->over)
            tell_timeline(f, 0);
        pthread_mutex_unlock(&progress.lock);
        os_give_way(progress.rest);
        pthread_mutex_lock(&progress.lock);
    }
    return unused;
}

/* Where there is none, comm_end does all. */
static void progress_start(void)
{
    pthread_attr_t detached;
    pthread_t thread;
    sigset_t all_signals, old;
    if (progress.started || pthread_attr_init(&detached) != 0)
        return;
    progress.rest = os_cpu_count() > pool_threads() ? 0 : PROGRESS_REST;
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigfillset(&all_signals);
    pthread_sigmask(SIG_SETMASK, &all_signals, &old); /* signals are the user's threads' business */
    progress.started = pthread_create(&thread, &detached, progress_main, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&detached);
}

Status comm_begin(kiln_group *g, const CommWhat *what, const kiln_comm_call *call, const CudaLane *lane, Loc loc, CommFlight **out)
{
    TRY(may_run(g));
    if (!g->world->one_thread)
        progress_start();
    if (*out) {
        (*out)->call = *call;
        (*out)->lane = lane ? *lane : (CudaLane){.device = NULL};
    } else {
        if (!(*out = os_alloc(sizeof **out)))
            return fail(ST_OUT_OF_MEMORY, "no memory for a collective");
        **out = flight_of(g, what, call, lane, loc);
    }
    pthread_mutex_lock(&progress.lock);
    CommFlight **last = &progress.first;
    while (*last)
        last = &(*last)->next;
    *last = *out;
    if (first_in_the_air() == *out)
        look_at(*out); /* nobody has to wait for the thread where it can begin */
    pthread_cond_signal(&progress.work);
    pthread_mutex_unlock(&progress.lock);
    return ST_OK;
}

Status comm_end(CommFlight *f)
{
    pthread_mutex_lock(&progress.lock);
    const int64_t waits = f->over ? 0 : timeline_begin();
    if (!f->over)
        look_until_over(f);
    if (waits)
        tell_timeline(f, timeline_now() - waits);
    progress.first = f->next;
    pthread_mutex_unlock(&progress.lock);
    Status status = ended(f);
    os_free(f);
    return status;
}

/* ---- the end ---- */

enum { WARN_AFTER = 10 }; /* seconds */

static bool all_left(const kiln_group *g, char *missing, size_t size)
{
    size_t at = 0;
    missing[0] = 0;
    for (int k = 0; k < g->size; k++)
        if (k != g->rank && g->left[k] == UINT64_MAX && at + 16 < size)
            at += (size_t)snprintf(missing + at, size - at, " %d", k);
    return at == 0;
}

void comm_leave(World *world)
{
    const CommWhat what = {.op = COMM_OPS};
    Running run = {.g = world->group, .what = &what, .leaving = true, .peer = -1};
    char missing[128];
    bool warned = false;
    double began = os_seconds();
    for (uint32_t id = comm_groups(); id-- > 0 && !world->failed;) { /* the world's own last: who hears that asks no more */
        const kiln_group *g = group_of(id);
        if (g && g->world == world)
            tell_others(g, &(CommNote){.kind = NOTE_LEFT, .format = COMM_FORMAT, .number = g->calls});
    }
    while (!world->failed && !all_left(world->group, missing, sizeof missing)) {
        hear(&run, world->group);
        os_give_way(os_seconds() - began < 1e-3 ? 0 : 1e-3);
        if (!warned && os_seconds() - began > WARN_AFTER) {
            log_warn("rank %d is at its end and waits for that of rank%s", world->group->rank, missing);
            warned = true;
        }
    }
}
