/*
 * Groups: the processes of a world, and parts of them; where backends come from.
 *
 * Groups are for the life of the process: recorded nodes hold their numbers. A world belongs to a backend, whose library is opened once,
 * with its symbols for all (parts of an MPI look for those of others), and never closed.
 */
#define KILN_NO_LOCATIONS
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "ir/base/os_dir.h"
#include "jit/options.h"
#include "runtime/comm/comm.h"
#include "runtime/eval.h"
#include "runtime/gradient/body.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BACKENDS = 16, PATH = 4096 };

static struct {
    kiln_group *_Atomic first; /* the newest */
    World *worlds;
    const kiln_comm_backend *backend[BACKENDS];
    char *asked[BACKENDS]; /* what its library was asked for as; NULL: it was registered */
    int (*one_thread[BACKENDS])(void);
    kiln_comm_start *(*moves[BACKENDS])(void);
    int n_backends;
    uint32_t n_groups;
    bool at_exit;
    atomic_bool many; /* a world has other ranks */
} all;

kiln_group *group_of(uint32_t id)
{
    kiln_group *g = atomic_load(&all.first);
    while (g && g->id != id)
        g = g->next;
    return g;
}

uint32_t comm_groups(void) { return all.n_groups; }

bool comm_many(void) { return atomic_load_explicit(&all.many, memory_order_relaxed); }

/* ---- backends ---- */

static Status check_backend(const kiln_comm_backend *b)
{
    if (!b)
        return fail(ST_INVALID, "backend is NULL");
    if (!b->name || !callee_word(b->name))
        return fail(ST_INVALID, "needs a name of letters, digits, _ . + and -");
    if (b->version != KILN_COMM_VERSION)
        return fail(ST_INVALID, "%s is made for version %u of kiln_comm_backend, this is %d", b->name, b->version, KILN_COMM_VERSION);
    for (size_t k = 0; k < sizeof b->reserved / sizeof *b->reserved; k++)
        if (b->reserved[k])
            return fail(ST_INVALID, "%s: reserved is not 0", b->name);
    if (!b->open || !b->split || !b->start || !b->test || !b->tell || !b->hear || !b->close)
        return fail(ST_INVALID, "%s: a function is missing", b->name);
    return ST_OK;
}

static Status add_backend(const kiln_comm_backend *b, const char *asked)
{
    TRY(check_backend(b));
    for (int k = 0; k < all.n_backends && !asked; k++)
        if (!strcmp(all.backend[k]->name, b->name))
            return fail(ST_INVALID, "there is a backend %s already", b->name);
    if (!strcmp(b->name, comm_self()->name) || all.n_backends == BACKENDS)
        return fail(ST_INVALID, "%s: that is kiln's own, or there are %d already", b->name, BACKENDS);
    if (asked && !(all.asked[all.n_backends] = os_copy(asked, strlen(asked) + 1)))
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    all.backend[all.n_backends++] = b;
    return ST_OK;
}

kiln_status kiln_comm_register(const kiln_comm_backend *backend) { return kiln_comm_register_at(backend, NULL, 0); }

kiln_status kiln_comm_register_at(const kiln_comm_backend *backend, const char *file, int line)
{
    eval_lock();
    Status status = add_backend(backend, NULL);
    eval_unlock();
    return (kiln_status)error_keep(status, "kiln_comm_register", (Loc){file, line});
}

/* Beside libkiln.so, then as the system looks for libraries. */
static void *open_library(const char *name, char *path, size_t size)
{
    if (strchr(name, '/')) {
        snprintf(path, size, "%s", name);
        return os_library_open_for_all(path);
    }
    char folder[PATH - 2 * COMM_NAME];
    void *library = NULL;
    if (os_library_folder(folder, sizeof folder)) {
        snprintf(path, size, "%slibkiln_%.64s.so", folder, name);
        library = os_library_open_for_all(path);
    }
    if (library)
        return library;
    snprintf(path, size, "libkiln_%.64s.so", name);
    return os_library_open_for_all(path);
}

static Status load_backend(const char *name, const kiln_comm_backend **out)
{
    char path[PATH];
    if (!strchr(name, '/') && !callee_word(name))
        return fail(ST_INVALID, "%s is no name of a backend: self, mpi, one that was registered, or a path", name);
    void *library = open_library(name, path, sizeof path), *symbol = NULL;
    if (!library)
        return fail(ST_COMM, "no backend %s: %s (is the library there that is built where MPI is?)", name, os_library_error());
    if (!(symbol = os_library_symbol(library, "kiln_comm_plugin")))
        return fail(ST_COMM, "%s has no kiln_comm_plugin", path);
    const kiln_comm_backend *(*plugin)(void);
    memcpy(&plugin, &symbol, sizeof plugin);
    *out = plugin();
    symbol = os_library_symbol(library, "kiln_comm_one_thread"); /* kiln's own plugin has it */
    memcpy(&all.one_thread[all.n_backends], &symbol, sizeof symbol);
    symbol = os_library_symbol(library, "kiln_comm_cuda_moves"); /* likewise */
    memcpy(&all.moves[all.n_backends], &symbol, sizeof symbol);
    if (log_on(LOG_COMM))
        log_line(LOG_COMM, "backend %s from %s", *out ? (*out)->name : "?", path);
    return add_backend(*out, name);
}

static Status find_backend(const char *name, const kiln_comm_backend **out)
{
    if (!strcmp(name, comm_self()->name)) {
        *out = comm_self();
        return ST_OK;
    }
    for (int k = 0; k < all.n_backends; k++)
        if (!strcmp(name, all.asked[k] ? all.asked[k] : all.backend[k]->name)) {
            *out = all.backend[k];
            return ST_OK;
        }
    return load_backend(name, out);
}

/* How many processes a launcher of MPI says that it started; 0: none did, -1: it does not say how many. */
static long launched(void)
{
    static const char *const size[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"};
    for (size_t k = 0; k < sizeof size / sizeof *size; k++) {
        const char *text = os_getenv(size[k]);
        if (text)
            return strtol(text, NULL, 10);
    }
    return os_getenv("PMIX_RANK") || os_getenv("PMI_RANK") ? -1 : 0;
}

/* ---- groups ---- */

/* Ranks of the world are to be set. NULL: out of memory. */
static kiln_group *group_new(World *w, void *comm, int rank, int size)
{
    size_t n = (size_t)size;
    kiln_group *g = os_calloc(1, sizeof *g);
    if (!g || !(g->heard = os_calloc(n, sizeof *g->heard)) || !(g->pairs = os_calloc(n, sizeof *g->pairs)) ||
        !(g->left = os_alloc(n * sizeof *g->left)) || !(g->world_rank = os_calloc(n, sizeof *g->world_rank))) {
        if (g) {
            os_free(g->heard);
            os_free(g->pairs);
            os_free(g->left);
        }
        os_free(g);
        (void)fail(ST_OUT_OF_MEMORY, "out of memory");
        return NULL;
    }
    memset(g->left, 0xff, n * sizeof *g->left);
    g->world = w;
    g->comm = comm;
    g->rank = rank;
    g->size = size;
    return g;
}

static void enter(kiln_group *g)
{
    g->id = all.n_groups++;
    g->next = atomic_load(&all.first);
    atomic_store(&all.first, g);
}

/* Who computes in another thread at the end of the process has the lock: nobody is told then. */
static void leave_all(void)
{
    if (!eval_trylock())
        return;
    for (World *w = all.worlds; w; w = w->next)
        if (w->process == os_process()) {
            comm_leave(w);
            w->backend->close(w->group->comm, !w->failed);
            w->process = 0;
        }
    eval_unlock();
}

/* over: what carries notes and what lies in memory of the host; b itself, but for NCCL. */
static Status make_world(const kiln_comm_backend *b, const kiln_comm_backend *over, kiln_group **out)
{
    char why[KILN_COMM_WHY] = "";
    int rank = 0, size = 0;
    void *comm = NULL;
    const long expected = launched();
    World *w = os_calloc(1, sizeof *w);
    if (!w)
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    Status status = b->open(b->user, &comm, &rank, &size, why) == KILN_OK ? ST_OK : fail(ST_COMM, "%s: %s", b->name, why);
    if (status == ST_OK && (size < 1 || rank < 0 || rank >= size))
        status = fail(ST_COMM, "%s says that this is rank %d of %d", b->name, rank, size);
    if (status == ST_OK && size == 1 && expected > 1 && b != comm_self())
        status = fail(ST_COMM, "the launcher started %ld processes, %s knows of one: does it belong to another MPI? (%s)", expected,
                      b->name, why);
    kiln_group *g = status == ST_OK ? group_new(w, comm, rank, size) : NULL;
    if (!g) {
        os_free(w);
        return status == ST_OK ? ST_OUT_OF_MEMORY : status;
    }
    for (int k = 0; k < size; k++)
        g->world_rank[k] = k;
    snprintf(g->name, sizeof g->name, "world");
    w->backend = b;
    w->few_types = b != over;
    for (int k = 0; k < all.n_backends; k++) {
        w->one_thread |= all.backend[k] == over && all.one_thread[k] && all.one_thread[k]();
        if (all.backend[k] == b && all.moves[k])
            w->moves = all.moves[k]();
    }
    w->device = b != over ? comm_nccl_device() : w->moves ? comm_direct_device() : NULL;
    w->process = os_process();
    w->group = g;
    w->next = all.worlds;
    all.worlds = w;
    enter(g);
    if (size > 1)
        atomic_store(&all.many, true);
    if (!all.at_exit)
        all.at_exit = os_at_exit(leave_all);
    if (log_on(LOG_COMM))
        log_line(LOG_COMM, "world of %s: rank %d of %d", b->name, rank, size);
    *out = g;
    return ST_OK;
}

/* NCCL, over what is named after it. */
static bool is_nccl(const char *name) { return !strncmp(name, "nccl", 4) && (!name[4] || name[4] == ':'); }

static Status world_of(const char *name, kiln_group **out)
{
    char option[PATH];
    const kiln_comm_backend *b = NULL, *over = NULL;
    if (!name)
        name = option_text(OPT_COMM, option, sizeof option);
    const bool nccl = is_nccl(name);
    if (nccl)
        name = name[4] ? name + 5 : "auto";
    if (!strcmp(name, "auto"))
        name = launched() ? "mpi" : nccl ? comm_tcp()->name : "self";
    if (nccl && !strcmp(name, comm_tcp()->name))
        over = comm_tcp();
    else
        TRY(find_backend(name, &over));
    b = nccl ? comm_nccl(over) : over;
    for (World *w = all.worlds; w; w = w->next)
        if (w->backend == b) {
            *out = w->group;
            return ST_OK;
        }
    TRY(comm_open_chain());
    return make_world(b, over, out);
}

kiln_group *kiln_group_world(const char *backend) { return kiln_group_world_at(backend, NULL, 0); }

kiln_group *kiln_group_world_at(const char *backend, const char *file, int line)
{
    static const char api[] = "kiln_group_world";
    const Loc loc = {file, line};
    kiln_group *g = NULL;
    if (body_refuses(api, loc))
        return NULL;
    Status status = eval_enter(NULL);
    if (status == ST_OK) {
        trace_sync(api, loc);
        status = world_of(backend, &g);
        eval_unlock();
    }
    (void)error_keep(status, api, loc);
    return g;
}

/* All ranks are here: their world's ranks, so that messages name them. */
static Status name_ranks(kiln_group *g, const kiln_group *parent, Loc loc)
{
    int32_t *ranks = os_calloc((size_t)g->size + 1, sizeof *ranks); /* the last: this one's */
    if (!ranks)
        return comm_failed(g, "out of memory for a group");
    ranks[g->size] = parent->world_rank[parent->rank];
    const CommWhat what = {.op = KILN_COMM_ALL_GATHER, .dtype = DT_I32};
    const kiln_comm_call call = {
        .op = KILN_COMM_ALL_GATHER, .dtype = KILN_I32, .count = 1, .in = ranks + g->size, .out = ranks, .to = -1, .from = -1};
    TRY(comm_run(g, &what, &call, NULL, loc)); /* which may still write there */
    for (int k = 0; k < g->size; k++)
        g->world_rank[k] = ranks[k];
    os_free(ranks);
    return ST_OK;
}

static Status split(kiln_group *parent, int color, int key, Loc loc, kiln_group **out)
{
    char why[KILN_COMM_WHY] = "";
    World *w = parent->world;
    void *comm = NULL;
    int rank = 0, size = 0;
    const CommWhat what = {.op = COMM_SPLIT};
    const kiln_comm_call call = {.op = KILN_COMM_BARRIER, .to = -1, .from = -1};
    TRY(comm_run(parent, &what, &call, NULL, loc));
    if (w->backend->split(parent->comm, color, key, &comm, &rank, &size, why) != KILN_OK)
        return comm_failed(parent, "a group of %s could not be split: %s", parent->name, why);
    parent->splits++;
    if (color < 0) {
        all.n_groups++; /* numbers are the same on all ranks */
        return ST_OK;
    }
    kiln_group *g = group_new(w, comm, rank, size);
    if (!g)
        return comm_failed(parent, "out of memory for a group");
    snprintf(g->name, sizeof g->name, "%.32s/%u:%d", parent->name, parent->splits, color);
    enter(g);
    TRY(name_ranks(g, parent, loc));
    if (log_on(LOG_COMM))
        log_line(LOG_COMM, "group %s: rank %d of %d", g->name, rank, size);
    *out = g;
    return ST_OK;
}

kiln_group *kiln_group_split(kiln_group *group, int color, int key) { return kiln_group_split_at(group, color, key, NULL, 0); }

kiln_group *kiln_group_split_at(kiln_group *group, int color, int key, const char *file, int line)
{
    static const char api[] = "kiln_group_split";
    const Loc loc = {file, line};
    kiln_group *g = NULL;
    if (body_refuses(api, loc))
        return NULL;
    Status status = comm_enter(group, api, loc);
    if (status == ST_OK) {
        status = split(group, color, key, loc, &g);
        eval_unlock();
    }
    (void)error_keep(status, api, loc);
    return status == ST_OK ? g : NULL;
}

int kiln_group_rank(const kiln_group *group) { return group ? group->rank : -1; }

int kiln_group_size(const kiln_group *group) { return group ? group->size : 0; }

const char *kiln_group_backend(const kiln_group *group) { return group ? group->world->backend->name : NULL; }
