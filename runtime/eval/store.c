/*
 * The cache on disk, as evaluation uses it. Read store_find() and store_keep() first: they are the whole story.
 *
 *   look-up   the names of the graph's entries -> those of this maker -> read, verified, key compared byte for byte -> guards tried on
 *             the parsed entry -> the one that holds is loaded. Where none holds all are loaded, for the history that decides what
 *             becomes an argument of the next program, as if this process had compiled them
 *   keeping   key, facts, program, texts -> bytes -> published; the most general program removes those that it stands for
 *
 * What must hold: nothing here fails a call. What goes wrong is a reason for the miss, a counter, and at most one warning of its kind.
 * Directories that were opened stay open (they are few), so that a thread in the background needs no lock to use one.
 */
#include "runtime/eval/store.h"
#include "cache/disk.h"
#include "cache/machine.h"
#include "cache/maker.h"
#include "ir/base/bytes.h"
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "ir/base/path.h"
#include "ir/base/os_dir.h"
#include "ir/base/progress.h"
#include "ir/base/timeline.h"
#include "jit/llvm/emit.h"
#include "runtime/api/stats.h"
#include "runtime/comm/comm.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof((Program *)0)->entry >= ENTRY_NAME_BYTES, "a program holds the name of its entry");

/* --- the directory ------------------------------------------------------------------------------------------------------- */

enum { PATH_BYTES = 4096 };

typedef struct Opened {
    struct Opened *next;
    Disk *disk; /* NULL: it could not be opened, which was said */
    bool writable;
    char path[];
} Opened;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* never held in a fork: see store.h */
static Opened *opened;

static Disk *open_disk(const char *path, bool writable)
{
    for (const Opened *o = opened; o; o = o->next)
        if (o->writable == writable && strcmp(o->path, path) == 0)
            return o->disk;
    Opened *o = os_calloc(1, sizeof *o + strlen(path) + 1);
    if (!o)
        return NULL;
    memcpy(o->path, path, strlen(path) + 1);
    o->writable = writable;
    if (disk_open(path, true, writable, &o->disk) != ST_OK)
        log_warn_once("disk open", "no cache on disk: %s", fail_message());
    else if (log_on(LOG_CACHE))
        log_line(LOG_CACHE, "disk: %s%s", path, writable ? "" : " (read only)");
    if (o->disk && writable)
        store_log_open(o->disk);
    o->next = opened;
    opened = o;
    return o->disk;
}

/* KILN_TEST_FAIL=io:N:ERROR makes the N-th system call of the cache on disk fail (ir/base/os_dir.h). */
static void test_hook(void)
{
    static char last[64];
    char hook[64];
    option_text(OPT_TEST_FAIL, hook, sizeof hook);
    if (strcmp(hook, last) == 0)
        return;
    memcpy(last, hook, sizeof last);
    if (strncmp(hook, "io:", 3) == 0 && !os_fail_io_text(hook + 3))
        log_warn("KILN_TEST_FAIL=%s: io:N:ERROR is valid", hook);
}

/* KILN_TEST_FAIL=guard:NAME makes programs that are wrong on purpose: none of them may outlive the process. */
static bool forgets_guards(void)
{
    char hook[64];
    return strncmp(option_text(OPT_TEST_FAIL, hook, sizeof hook), "guard:", 6) == 0;
}

/* NULL: there is none to use. */
static Disk *the_disk(const JitOptions *options)
{
    char path[PATH_BYTES];
    Disk *disk = NULL;
    if (options->value[OPT_CACHE] == CACHE_OFF || os_elevated() || forgets_guards())
        return NULL;
    pthread_mutex_lock(&lock);
    test_hook();
    if (option_text(OPT_CACHE_DIR, path, sizeof path)[0] || disk_default_path(path, sizeof path))
        disk = open_disk(path, options->value[OPT_CACHE] != CACHE_READONLY);
    else
        log_warn_once("disk home", "no cache on disk: neither KILN_CACHE_DIR nor XDG_CACHE_HOME nor HOME names a directory");
    pthread_mutex_unlock(&lock);
    return disk;
}

bool store_wanted(const JitOptions *options) { return options->value[OPT_CACHE] != CACHE_READONLY && the_disk(options) != NULL; }

void store_machine(int threads, Machine *machine)
{
    JitOptions options;
    options_snapshot(&options);
    Disk *disk = the_disk(&options);
    if (disk && machine_read(disk, threads, machine))
        return;
    *machine = (Machine){.threads = threads};
    machine_measure(threads, machine);
    if (disk && options.value[OPT_CACHE] != CACHE_READONLY && machine_write(disk, machine) != ST_OK)
        log_warn_once("machine", "what was measured of this machine is not kept: %s", fail_message());
}

/* false: this library has no build id. */
static bool make_key(const JitOptions *options, const char *graph, size_t graph_bytes, Arena *arena, KeyText *key)
{
    Str maker;
    str_init(&maker, arena);
    if (!maker_text(options, &maker)) {
        log_warn_once("disk build", "no cache on disk: this library was linked without a build id");
        return false;
    }
    *key = (KeyText){maker.text, graph, maker.len, graph_bytes};
    return true;
}

/* --- ranks ------------------------------------------------------------------------------------------------------------------- */

#define TURN_SECONDS 120.0 /* longer than any compile; then each compiles for himself */

/* A thread of this process has a turn, and may want the evaluation lock, which who waits for a turn has. */
static atomic_bool has_turn;

int store_turn(const Evaluation *e)
{
    Disk *disk = comm_many() && e->entry[0] && e->options.value[OPT_CACHE] != CACHE_READONLY ? the_disk(&e->options) : NULL;
    const double until = os_seconds() + TURN_SECONDS;
    bool taken = disk && !atomic_exchange(&has_turn, true);
    if (!taken)
        return -1;
    int turn = disk_turn(disk, e->entry, &taken);
    while (turn < 0 && taken && os_seconds() < until) {
        os_give_way(1e-3);
        turn = disk_turn(disk, e->entry, &taken);
    }
    if (turn < 0)
        atomic_store(&has_turn, false);
    return turn;
}

void store_turn_end(int turn)
{
    if (turn < 0)
        return;
    disk_turn_end(turn);
    atomic_store(&has_turn, false);
}

/* --- look-up ----------------------------------------------------------------------------------------------------------------- */

typedef struct Find {
    const Call *call;
    Evaluation *e;
    CacheMiss *miss;
    Disk *disk;
    Arena *arena;
    KeyText key;
    DiskItem *items;  /* of this graph and maker, last used first */
    EntryView *views; /* of the first n_views items */
    uint32_t n_items, n_views;
    bool other_maker, damaged, unreadable;
    bool served;
    bool better; /* the most general program is there: only others are of use */
    CacheHit *hit;
} Find;

static int by_use(const void *a_, const void *b_)
{
    const DiskItem *a = a_, *b = b_;
    return a->used != b->used ? (a->used > b->used ? -1 : 1) : strcmp(a->name, b->name);
}

/* An entry that cannot be used. What is wrong with its content never gets better: it is removed. */
static void refuse(Find *f, const char *name, Status status)
{
    bool content = status == ST_FORMAT;
    stat_add(STAT_DISK_REFUSED, 1);
    store_log_refused(content ? REFUSED_DAMAGED : REFUSED_UNREADABLE);
    f->damaged |= content;
    f->unreadable |= !content;
    char why[256];
    snprintf(why, sizeof why, "%s", fail_message());
    log_warn_once(content ? "disk damaged" : "disk read", "the cache on disk has an entry that is of no use%s: %s/%s: %s",
                  content ? " and is removed" : "", disk_path(f->disk), name, why);
    if (log_on(LOG_CACHE))
        log_line(LOG_CACHE, "disk: refused %s: %s", name, why);
    if (content && f->e->options.value[OPT_CACHE] == CACHE_ON)
        (void)disk_remove(f->disk, name);
}

/* Does the program bind what this call has? Its key says so; this is for an entry whose file was tampered with. */
static bool binds(const Program *plan, const Facts *facts, const Call *call)
{
    bool ok = facts->n_ints == call->facts.n_ints && facts->n_scalars == call->facts.n_scalars && plan->n_outputs == call->outputs.n &&
              plan->n_inputs == call->inputs.n;
    for (uint32_t i = 0; ok && i < plan->n_buffers; i++) {
        const ProgBuffer *b = &plan->buffers[i];
        ok = (b->kind != BUFFER_INPUT || b->index < call->inputs.n + plan->n_constants) &&
             (b->kind != BUFFER_OUTPUT || b->alias_input == NO_BUFFER || b->alias_input < call->inputs.n);
    }
    for (uint32_t i = 0; ok && i < plan->n_faults; i++)
        ok = plan->faults[i] < call->nodes.n;
    return ok;
}

/* Reads and checks one entry; ST_OK with *usable false: it is another's. */
static Status open_entry(Find *f, const char *name, EntryView *view, bool *usable)
{
    const void *bytes;
    size_t n;
    char own_name[ENTRY_NAME_BYTES];
    *usable = false;
    TRY(disk_read(f->disk, name, f->arena, &bytes, &n));
    if (!bytes)
        return ST_OK; /* evicted meanwhile */
    TRY(entry_parse(bytes, n, f->arena, view));
    entry_name(&view->key, &view->plan->guards, own_name);
    if (strcmp(own_name, name) != 0)
        return fail(ST_FORMAT, "filed under a wrong name, its own is %s", own_name);
    if (!bytes_equal(view->key.maker, view->key.maker_bytes, f->key.maker, f->key.maker_bytes) ||
        !bytes_equal(view->key.graph, view->key.graph_bytes, f->key.graph, f->key.graph_bytes))
        return ST_OK; /* another key with the same hash */
    if (!binds(view->plan, &view->facts, f->call))
        return fail(ST_FORMAT, "its program does not fit its graph");
    *usable = true;
    return ST_OK;
}

/* Says in which line of the key an entry of another maker differs. */
static void log_other_maker(Find *f, const char *name)
{
    const void *bytes;
    size_t n;
    EntryView view;
    KeyLine its, ours;
    if (disk_read(f->disk, name, f->arena, &bytes, &n) == ST_OK && bytes && entry_parse(bytes, n, f->arena, &view) == ST_OK &&
        key_lines_differ(view.key.maker, view.key.maker_bytes, f->key.maker, f->key.maker_bytes, &its, &ours))
        log_line(LOG_CACHE, "disk: %s is not for this process: %.*s is \"%.*s\" there, \"%.*s\" here", name, (int)its.name_bytes,
                 its.name ? its.name : "", (int)its.n, its.bytes ? its.bytes : "", (int)ours.n, ours.bytes ? ours.bytes : "");
}

/* The entries of this graph and maker that are not in memory yet. */
static Status list_items(Find *f)
{
    char prefix[ENTRY_NAME_BYTES];
    DiskItem *all;
    uint32_t n;
    entry_prefix(&f->key, false, prefix);
    TRY(disk_list(f->disk, prefix, f->arena, &all, &n));
    entry_prefix(&f->key, true, prefix);
    memcpy(f->e->entry, prefix, sizeof prefix);
    f->e->entry[strlen(prefix) - 1] = '\0';
    f->items = ARENA_ARRAY(f->arena, DiskItem, n);
    for (uint32_t i = 0; i < n; i++) {
        if (strncmp(all[i].name, prefix, strlen(prefix)) == 0) {
            if (!cache_holds(&f->call->key, all[i].name))
                f->items[f->n_items++] = all[i];
        } else {
            if (log_on(LOG_CACHE) && !f->other_maker)
                log_other_maker(f, all[i].name);
            f->other_maker = true;
        }
    }
    if (f->other_maker)
        store_log_refused(REFUSED_MAKER);
    if (f->n_items)
        qsort(f->items, f->n_items, sizeof *f->items, by_use);
    uint32_t most = (uint32_t)f->e->options.value[OPT_MAX_VARIANTS] + 1;
    if (f->n_items > most)
        f->n_items = most;
    return ST_OK;
}

static void read_views(Find *f)
{
    uint32_t kept = 0;
    f->views = ARENA_ARRAY(f->arena, EntryView, f->n_items);
    for (uint32_t i = 0; i < f->n_items; i++) {
        bool usable;
        Status status = open_entry(f, f->items[i].name, &f->views[kept], &usable);
        if (status != ST_OK)
            refuse(f, f->items[i].name, status);
        if (usable)
            f->items[kept++] = f->items[i];
    }
    f->n_items = f->n_views = kept;
}

static bool view_fits(const Find *f, const EntryView *view)
{
    const Facts *facts = &f->call->facts;
    int64_t *sizes = ARENA_ARRAY(f->arena, int64_t, view->plan->guards.sizes.n);
    uint32_t failed;
    sizes_eval(&view->plan->guards.sizes, facts->ints, sizes);
    return guards_hold(&view->plan->guards, sizes, facts, &failed);
}

/* The entry to serve the call with: the most general one only where no other holds, and where it is of use. UINT32_MAX: none. */
static uint32_t choose(const Find *f)
{
    uint32_t chosen = UINT32_MAX;
    for (uint32_t i = 0; i < f->n_views; i++)
        if (view_fits(f, &f->views[i]) && (!f->views[i].plan->general || (chosen == UINT32_MAX && !f->better))) {
            chosen = i;
            if (!f->views[i].plan->general)
                break;
        }
    return chosen;
}

static bool same_facts(const Facts *a, const Facts *b)
{
    return bytes_equal(a->ints, sizeof *a->ints * a->n_ints, b->ints, sizeof *b->ints * b->n_ints) &&
           bytes_equal(a->scalars, sizeof *a->scalars * a->n_scalars, b->scalars, sizeof *b->scalars * b->n_scalars);
}

/*
 * KILN_CHECK=cache: compiles the entry's graph once more, kernels that are known too, and compares. false: they differ; *program is the
 * fresh one.
 */
static bool check(const Find *f, uint32_t i, Program **program)
{
    Program *fresh;
    const char *part;
    if (!same_facts(&f->views[i].facts, &f->call->facts)) {
        log_line(LOG_CACHE, "disk: not checked, it was compiled for other sizes: %s", f->items[i].name);
        return true;
    }
    if (compile_as(f->e, f->call, &f->views[i], &fresh) != ST_OK) {
        log_warn("KILN_CHECK=cache: %s cannot be compiled again: %s", f->items[i].name, fail_message());
        return true;
    }
    bool same = entry_same_program(&f->views[i], fresh, &part);
    if (same) {
        log_line(LOG_CACHE, "disk: checked, compiling gives the same: %s", f->items[i].name);
        program_release(fresh);
        return true;
    }
    log_warn("KILN_CHECK=cache: %s/%s IS NOT what compiling gives: its %s differ. The fresh program is used; please report this",
             disk_path(f->disk), f->items[i].name, part);
    *program = fresh;
    return false;
}

/* Enters one entry's program into the cache in memory. */
static bool load(Find *f, uint32_t i)
{
    const JitOptions *options = &f->e->options;
    double start = os_seconds();
    int64_t began = timeline_begin();
    Program *program;
    bool checked = options->value[OPT_CHECK] != CHECK_CACHE || check(f, i, &program);
    Progress progress = checked ? progress_begin(call_id(f->call).text) : (Progress){0};
    progress_tell(&progress, "loading", NULL, 0, f->views[i].n_kernels);
    Status status = checked ? entry_load(&f->views[i], &program) : ST_OK;
    progress_end(&progress);
    if (status != ST_OK) {
        refuse(f, f->items[i].name, status);
        return false;
    }
    memcpy(program->entry, f->items[i].name, ENTRY_NAME_BYTES);
    int64_t saved = (int64_t)(1e9 * program->compile_seconds);
    CacheHit hit;
    size_t limit = (size_t)options->value[OPT_CACHE_BYTES];
    status = options->value[OPT_ASYNC_COMPILE] ? cache_add_variant(&f->call->key, &f->views[i].facts, program, limit, &hit)
                                               : cache_add(&f->call->key, &f->views[i].facts, program, limit, &hit);
    if (status != ST_OK)
        return false;
    disk_used(f->disk, &f->items[i]);
    double seconds = os_seconds() - start;
    stat_add(STAT_DISK_LOADED, 1);
    stat_add(STAT_DISK_LOAD_NS, (int64_t)(1e9 * seconds));
    stat_add(STAT_DISK_SAVED_NS, saved);
    if (began)
        timeline_span(TL_DISK, "load", began, TL_TEXT("entry", f->items[i].name), TL_INT("bytes", (int64_t)f->items[i].bytes),
                      TL_INT("kernels", program->n_kernels));
    if (log_on(LOG_CACHE))
        log_line(LOG_CACHE, "disk: loaded %s (%zu bytes, %.2f ms)", f->items[i].name, f->items[i].bytes, 1e3 * seconds);
    return true;
}

static void find_on_disk(Find *f)
{
    if (list_items(f) != ST_OK) {
        f->unreadable = true;
        store_log_refused(REFUSED_UNREADABLE);
        log_warn_once("disk list", "the cache on disk cannot be read: %s", fail_message());
        return;
    }
    read_views(f);
    uint32_t chosen = choose(f);
    bool loaded = false;
    if (chosen != UINT32_MAX) {
        loaded = load(f, chosen);
    } else if (!f->better) {
        for (uint32_t i = f->n_views; i-- > 0;) /* the last used one ends up in front */
            loaded |= load(f, i);
    }
    f->served = loaded && cache_find(&f->call->key, &f->call->facts, f->hit, f->miss);
}

/* What the miss comes from, where memory knew nothing. */
static void explain(const Find *f)
{
    if (f->miss->reason != REASON_NEVER_SEEN)
        return;
    if (f->damaged)
        f->miss->reason = REASON_DISK_DAMAGED;
    else if (f->unreadable)
        f->miss->reason = REASON_DISK_IO;
    else if (f->other_maker)
        f->miss->reason = REASON_DISK_MAKER;
}

static Status find_in_arena(Arena *arena, void *user)
{
    Find *f = user;
    Str graph;
    str_init(&graph, arena);
    call_key_text(f->call, &graph);
    f->arena = arena;
    if (!make_key(&f->e->options, graph.text, graph.len, arena, &f->key))
        return ST_OK;
    find_on_disk(f);
    explain(f);
    if (f->served && log_on(LOG_RECOMPILES))
        log_line(LOG_RECOMPILES, "%s at %s:%d: loaded from disk instead of compiling %zu nodes (%s)", f->e->api,
                 f->e->loc.file ? f->e->loc.file : "?", f->e->loc.line, f->call->nodes.n, call_id(f->call).text);
    return ST_OK;
}

bool store_find(Evaluation *e, const Call *call, CacheMiss *miss, CacheHit *hit)
{
    Find find = {.e = e, .call = call, .miss = miss, .hit = hit};
    if (e->options.value[OPT_CACHE] == CACHE_REFRESH || !(find.disk = the_disk(&e->options)))
        return false;
    (void)with_arena(find_in_arena, &find);
    return find.served;
}

bool store_better(Evaluation *e, const Call *call, CacheHit *hit)
{
    CacheMiss miss = {.reason = REASON_NEVER_SEEN};
    CacheHit found;
    Find find = {.e = e, .call = call, .miss = &miss, .hit = &found, .better = true};
    if (e->options.value[OPT_CACHE] == CACHE_REFRESH || !(find.disk = the_disk(&e->options)))
        return false;
    (void)with_arena(find_in_arena, &find);
    if (find.served)
        *hit = found;
    return find.served;
}

void store_miss(const Evaluation *e, const Call *call, const CacheMiss *miss)
{
    Disk *disk = e->options.value[OPT_CACHE] == CACHE_ON && e->entry[0] ? the_disk(&e->options) : NULL;
    if (disk)
        store_log_miss(disk, e->entry, e, call, miss);
}

/* --- keeping ------------------------------------------------------------------------------------------------------------------- */

const char *store_place(Loc loc, Arena *arena) { return loc.file ? arena_printf(arena, "%s:%d", path_name(loc.file), loc.line) : ""; }

static void add_meta(const StoreItem *item, Str *out)
{
    char number[24];
    snprintf(number, sizeof number, "%" PRId64, os_time());
    key_line_add(out, "made", number, strlen(number));
    snprintf(number, sizeof number, "%" PRId64, (int64_t)(1e6 * item->program->compile_seconds));
    key_line_add(out, "compile_us", number, strlen(number));
    key_line_add(out, "where", item->where, strlen(item->where));
    if (*item->place)
        key_line_add(out, "place", item->place, strlen(item->place));
    const char *from = item->texts->recorded ? strchr(item->texts->recorded, '(') : NULL;
    const char *to = from ? strstr(from, ") {") : NULL;
    if (to) /* "graph name(%0: f32[8,16]) {" */
        key_line_add(out, "shapes", from + 1, (size_t)(to - from - 1));
}

/* The most general program stands for all others of its key. */
static void remove_subsumed(Disk *disk, const KeyText *key, const char *name, Arena *arena)
{
    char prefix[ENTRY_NAME_BYTES];
    DiskItem *items;
    uint32_t n;
    entry_prefix(key, true, prefix);
    if (disk_list(disk, prefix, arena, &items, &n) != ST_OK)
        return;
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(items[i].name, name) != 0)
            (void)disk_remove(disk, items[i].name);
}

static void evict(Disk *disk, size_t stored, const JitOptions *options)
{
    DiskPrune pruned;
    if (disk_evict(disk, stored, (uint64_t)options->value[OPT_CACHE_SIZE], &pruned) && log_on(LOG_CACHE))
        log_line(LOG_CACHE, "disk: %u entries removed (%" PRIu64 " bytes), %u kept (%" PRIu64 " bytes)", pruned.removed,
                 pruned.removed_bytes, pruned.kept, pruned.kept_bytes);
}

typedef struct Keep {
    const StoreItem *item;
    Disk *disk;
} Keep;

static Status keep_in_arena(Arena *arena, void *user)
{
    const Keep *keep = user;
    const StoreItem *item = keep->item;
    Str meta;
    EntryParts parts = {.facts = *item->facts,
                        .policy = item->policy,
                        .program = item->program,
                        .recorded = item->texts->recorded,
                        .optimised = item->texts->optimised};
    char name[ENTRY_NAME_BYTES];
    void *bytes;
    size_t n;
    int64_t began = timeline_begin();
    if (!make_key(item->options, item->graph_key, item->graph_key_bytes, arena, &parts.key))
        return ST_OK;
    str_init(&meta, arena);
    add_meta(item, &meta);
    parts.meta = meta.text;
    parts.meta_bytes = meta.len;
    entry_name(&parts.key, &item->program->guards, name);
    TRY(entry_write(&parts, &bytes, &n));
    bool refresh = item->options->value[OPT_CACHE] == CACHE_REFRESH, general = item->program->general;
    Status status = disk_publish(keep->disk, name, bytes, n, refresh || general);
    os_free(bytes);
    TRY(status);
    memcpy(item->program->entry, name, sizeof name);
    stat_add(STAT_DISK_STORED, 1);
    stat_add(STAT_DISK_STORED_BYTES, (int64_t)n);
    if (began)
        timeline_span(TL_DISK, "store", began, TL_TEXT("entry", name), TL_INT("bytes", (int64_t)n));
    if (log_on(LOG_CACHE))
        log_line(LOG_CACHE, "disk: stored %s (%zu bytes)", name, n);
    if (general && !item->options->value[OPT_ASYNC_COMPILE])
        remove_subsumed(keep->disk, &parts.key, name, arena);
    store_log_info(keep->disk);
    evict(keep->disk, n, item->options);
    return ST_OK;
}

/* The key names the LLVM that kiln was built with. A shared one may have been exchanged since. */
static bool llvm_is_ours(void)
{
    if (strcmp(llvm_version(), KILN_LLVM_VERSION) == 0)
        return true;
    log_warn_once("disk llvm", "nothing is kept on disk: LLVM is %s, kiln was built with " KILN_LLVM_VERSION, llvm_version());
    return false;
}

void store_keep(const StoreItem *item)
{
    if (!llvm_is_ours())
        return;
    Keep keep = {item, item->options->value[OPT_CACHE] == CACHE_READONLY ? NULL : the_disk(item->options)};
    if (keep.disk && with_arena(keep_in_arena, &keep) != ST_OK)
        log_warn_once("disk write", "the cache on disk keeps nothing new: %s", fail_message());
}
