/*
 * Values made of constants alone, computed once and kept.
 *
 *     program    input n_inputs + k is what its k-th constant makes, a program of its own with a recipe: what it computes, in words
 *     look up    recipe, the inputs' stamps and addresses, the sizes: equal ones give one value, whichever program asks. What scalars of
 *                the call went into it is compared as well: with others it is made again, and takes the old one's place
 *     stamp      of a storage: a number that is never given twice, from the first look-up on. Whoever changes the storage's values, or
 *                frees it, takes the stamp away and with it what was made of them (constants_forget): kiln_touch, a result that overwrites
 *                an input, the last release
 *     bounded    by option constant_bytes on each device: what was not read for longest goes. When memory runs out, all that no run reads
 *                goes
 *
 * A run holds what it reads, so what goes meanwhile goes when the run ends. What a run makes others find when it has ended, for before that
 * it may be in no queue yet; and only if no input lost its stamp meanwhile. Two threads may make one value at the same time: one is kept.
 */
#define HASH_NONFATAL_OOM 1
#include "runtime/eval/constants.h"
#include "ir/base/hash.h"
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "runtime/device/device.h"
#include "runtime/eval/frame.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <uthash.h>

typedef struct Constant {
    UT_hash_handle hh; /* by `hash` */
    uint64_t hash;
    Program *program; /* retained: the kernels in the recipe's words are not others meanwhile */
    const Recipe *recipe;
    Storage *storage;
    uint64_t read;  /* when it was last: numbers that grow */
    uint32_t users; /* runs that hold it */
    bool listed;
    uint64_t word[]; /* words_of, then the scalars */
} Constant;

static struct {
    pthread_mutex_t lock;
    Constant *all;
    uint64_t reads;
    int64_t bytes[DEVICE_CUDA + MAX_CUDA_DEVICES];
    int64_t a_quarter; /* of the memory that the process may use; 0: nobody asked */
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};
static _Atomic uint64_t stamps;

static void before_fork(void) { pthread_mutex_lock(&kept.lock); }
static void after_fork(void) { pthread_mutex_unlock(&kept.lock); }

void constants_handle_forks(void) { pthread_atfork(before_fork, after_fork, after_fork); }

/* ---- one value ---- */

static uint64_t stamp_of(Storage *storage)
{
    uint64_t stamp = atomic_load(&storage->stamp);
    if (stamp)
        return stamp;
    uint64_t fresh = atomic_fetch_add(&stamps, 1) + 1;
    return atomic_compare_exchange_strong(&storage->stamp, &stamp, fresh) ? fresh : stamp;
}

/* Device, stamp and address of each input, sizes: n_words of them. */
static uint32_t n_words(const Recipe *r) { return 1 + 2 * r->n_inputs + r->n_sizes; }
static size_t all_words(const Recipe *r) { return sizeof(uint64_t) * (n_words(r) + r->n_scalars); }

typedef struct Asked {
    const int64_t *sizes;
    const uint64_t *scalars;
    Storage *const *storage; /* of the call's inputs, ... */
    char *const *data;       /* ... and where each begins */
    int device;
} Asked;

/* The look-up's words, and the scalars behind them, into e's room; NULL: out of memory. */
static const uint64_t *words_of(Evaluation *e, const Asked *asked, const Recipe *r)
{
    if (!BUF_RESERVE(e->constant_words, all_words(r) / sizeof(uint64_t)))
        return NULL;
    uint64_t *at = e->constant_words.at;
    *at++ = (uint64_t)asked->device;
    for (uint32_t i = 0; i < r->n_inputs; i++) {
        *at++ = stamp_of(asked->storage[r->input[i]]);
        *at++ = (uintptr_t)asked->data[r->input[i]];
    }
    for (uint32_t i = 0; i < r->n_sizes; i++)
        *at++ = (uint64_t)asked->sizes[r->size[i]];
    for (uint32_t i = 0; i < r->n_scalars; i++)
        *at++ = asked->scalars[r->scalar[i]];
    return e->constant_words.at;
}

static bool same_recipe(const Recipe *a, const Recipe *b)
{
    return a == b || (a->n_words == b->n_words && a->n_inputs == b->n_inputs && a->n_sizes == b->n_sizes && a->n_scalars == b->n_scalars &&
                      memcmp(a->word, b->word, sizeof *a->word * a->n_words) == 0);
}

static uint64_t hash_of(const Recipe *r, const uint64_t *words) { return hash64(words, sizeof *words * n_words(r)) ^ r->hash; }

/* ---- the table, under its lock ---- */

static void free_constant(Constant *c)
{
    storage_release(c->storage);
    program_release(c->program);
    os_free(c);
}

/* Out of the table. Whoever holds it frees it; else the caller does, when he has given back the lock: *list. */
static void unlist(Constant *c, Constant **list)
{
    HASH_DEL(kept.all, c);
    kept.bytes[c->storage->device] -= (int64_t)c->storage->bytes;
    c->listed = false;
    if (!c->users) {
        c->hh.next = *list;
        *list = c;
    }
}

static int64_t free_list(Constant *list)
{
    int64_t bytes = 0;
    while (list) {
        Constant *next = list->hh.next;
        bytes += (int64_t)list->storage->bytes;
        free_constant(list);
        list = next;
    }
    return bytes;
}

static Constant *find(const Recipe *r, const uint64_t *words)
{
    const uint64_t hash = hash_of(r, words);
    Constant *c;
    HASH_FIND(hh, kept.all, &hash, sizeof hash, c);
    bool same = c && same_recipe(c->recipe, r) && memcmp(c->word, words, all_words(r)) == 0;
    return same ? c : NULL;
}

static int64_t limit(void)
{
    int64_t bytes = option_int(OPT_CONSTANT_BYTES);
    if (bytes)
        return bytes;
    if (!kept.a_quarter)
        kept.a_quarter = os_memory_bytes() / 4; /* reads files */
    return kept.a_quarter;
}

/* Makes room for so many bytes more. false: they are more than there may be. */
static bool make_room(int device, int64_t bytes, Constant **list)
{
    const int64_t most = limit();
    while (bytes <= most && kept.bytes[device] > most - bytes) {
        Constant *oldest = NULL;
        for (Constant *c = kept.all; c; c = c->hh.next)
            if (c->storage->device == device && (!oldest || c->read < oldest->read))
                oldest = c;
        unlist(oldest, list);
    }
    return bytes <= most;
}

/* ---- for whoever changes values, or needs memory ---- */

static bool made_of(const Constant *c, uint64_t stamp)
{
    bool made = false;
    for (uint32_t i = 0; i < c->recipe->n_inputs; i++)
        made |= c->word[1 + 2 * i] == stamp;
    return made;
}

void constants_forget(Storage *storage)
{
    const uint64_t stamp = atomic_exchange(&storage->stamp, 0);
    Constant *next, *list = NULL;
    if (!stamp)
        return;
    pthread_mutex_lock(&kept.lock);
    for (Constant *c = kept.all; c; c = next) {
        next = c->hh.next;
        if (made_of(c, stamp))
            unlist(c, &list);
    }
    pthread_mutex_unlock(&kept.lock);
    (void)free_list(list);
}

int64_t constants_drop(int device)
{
    Constant *next, *list = NULL;
    pthread_mutex_lock(&kept.lock);
    for (Constant *c = kept.all; c; c = next) {
        next = c->hh.next;
        if (c->storage->device == device && !c->users)
            unlist(c, &list);
    }
    pthread_mutex_unlock(&kept.lock);
    return free_list(list);
}

/* ---- for runs ---- */

/* One more that e holds. */
static Constant *hold(Evaluation *e, const Recipe *r, const uint64_t *words)
{
    pthread_mutex_lock(&kept.lock);
    Constant *c = find(r, words);
    if (c) {
        c->users++;
        c->read = ++kept.reads;
        e->constants.at[e->constants.n++] = c;
    }
    pthread_mutex_unlock(&kept.lock);
    return c;
}

void constants_let_go(Evaluation *e)
{
    Constant *list = NULL;
    if (!e->constants.n)
        return;
    pthread_mutex_lock(&kept.lock);
    while (e->constants.n) {
        Constant *c = e->constants.at[--e->constants.n];
        if (--c->users == 0 && !c->listed) {
            c->hh.next = list;
            list = c;
        }
    }
    pthread_mutex_unlock(&kept.lock);
    (void)free_list(list);
}

bool constants_find(Evaluation *e, const Program *p, const int64_t *sizes, Storage *const *in, char *const *data_in,
                    const uint64_t *scalars, char **data)
{
    const Asked asked = {sizes, scalars, in, data_in, DEVICE_CPU};
    bool all = BUF_RESERVE(e->constants, p->n_constants);
    for (uint32_t k = 0; k < p->n_constants && all; k++) {
        const Recipe *r = program_constant(p, k)->recipe;
        const uint64_t *words = words_of(e, &asked, r);
        const Constant *c = words ? hold(e, r, words) : NULL;
        all = c != NULL;
        data[k] = c ? c->storage->data : NULL;
    }
    if (!all)
        constants_let_go(e);
    return all;
}

/* Its values, into `storage`. */
static Status make(Run *run, const Program *constant, Storage *storage)
{
    const Call *call = run->call;
    Frame f;
    for (uint32_t i = 0; i < constant->recipe->n_inputs; i++) /* what is wrong with them would never be told of what is kept */
        TRY(device_settle(atomic_load(&call->nodes.at[call->inputs.at[constant->recipe->input[i]]]->storage)));
    Status status = frame_begin(run, constant, run->p->n_inputs, &f);
    for (uint32_t i = 0; i < run->p->n_inputs && status == ST_OK; i++)
        f.in[i] = call->nodes.at[call->inputs.at[i]]->data;
    if (status == ST_OK) {
        f.out[0] = storage->data;
        status = frame_run(&f);
    }
    if (status == ST_OK)
        status = run->kind->launcher->flush(run);
    frame_end(&f);
    return status;
}

/* A new one that e holds and nobody finds. */
static Status make_constant(Run *run, const Program *constant, const uint64_t *words, Constant **made)
{
    Evaluation *e = run->e;
    const Recipe *r = constant->recipe;
    Constant *c = os_calloc(1, sizeof *c + all_words(r));
    if (!c)
        return fail(ST_OUT_OF_MEMORY, "no memory for a constant");
    *c = (Constant){.hash = hash_of(r, words), .recipe = r, .users = 1, .program = program_retain((Program *)(uintptr_t)run->p)};
    memcpy(c->word, words, all_words(r));
    Status status = storage_new_on(run->device, buffer_bytes(&constant->buffers[constant->outputs[0]], run->sizes), &c->storage);
    if (status == ST_OK)
        status = make(run, constant, c->storage);
    if (status != ST_OK) {
        free_constant(c);
        return status;
    }
    e->constants.at[e->constants.n++] = *made = c;
    return ST_OK;
}

/* What the inputs of a call are. */
static bool ask(const Run *run, Asked *asked)
{
    Evaluation *e = run->e;
    const uint32_t n = run->p->n_inputs;
    if (!BUF_RESERVE(e->constants, run->p->n_constants) || !BUF_RESERVE(e->constant_storage, n + 1) ||
        !BUF_RESERVE(e->constant_data, n + 1))
        return false;
    for (uint32_t i = 0; i < n; i++) {
        const RtNode *input = run->call->nodes.at[run->call->inputs.at[i]];
        e->constant_storage.at[i] = atomic_load(&((RtNode *)(uintptr_t)input)->storage);
        e->constant_data.at[i] = input->data;
    }
    *asked = (Asked){run->sizes, run->call->facts.scalars, e->constant_storage.at, e->constant_data.at, run->device};
    return true;
}

Status constants_begin(Run *run)
{
    const Program *p = run->p;
    const Launcher *on = run->kind->launcher;
    Asked asked;
    if (!p->n_constants)
        return ST_OK;
    if (!ask(run, &asked))
        return ST_OUT_OF_MEMORY;
    for (uint32_t k = 0; k < p->n_constants; k++) {
        const Program *constant = program_constant(p, k);
        const uint64_t *words = words_of(run->e, &asked, constant->recipe);
        Constant *c = words ? hold(run->e, constant->recipe, words) : NULL;
        if (!words)
            return ST_OUT_OF_MEMORY;
        if (!c)
            TRY(make_constant(run, constant, words, &c));
        else if (on->reads)
            TRY(on->reads(run, c->storage));
        for (uint32_t b = 0; b < p->n_buffers; b++)
            if (p->buffers[b].kind == BUFFER_INPUT && p->buffers[b].index == p->n_inputs + k)
                run->address[b] = c->storage->data;
    }
    return ST_OK;
}

Storage *constants_storage(const Run *run, uint32_t k) { return run->e->constants.at[k]->storage; }

/* Nothing that it was made of has changed since. */
static bool still_true(const Evaluation *e, const Constant *c)
{
    bool same = true;
    for (uint32_t i = 0; i < c->recipe->n_inputs; i++)
        same &= atomic_load(&e->constant_storage.at[c->recipe->input[i]]->stamp) == c->word[1 + 2 * i];
    return same;
}

/* Into the table, if there is room; its bytes then. */
static size_t list(Constant *c, Constant **goes)
{
    Constant *other;
    HASH_FIND(hh, kept.all, &c->hash, sizeof c->hash, other);
    if (other) /* of other scalars, or another thread was as fast */
        unlist(other, goes);
    if (!make_room(c->storage->device, (int64_t)c->storage->bytes, goes))
        return 0;
    HASH_ADD(hh, kept.all, hash, sizeof c->hash, c);
    if (!c->hh.tbl) /* the table could not grow (HASH_NONFATAL_OOM) */
        return 0;
    c->listed = true;
    c->read = ++kept.reads;
    kept.bytes[c->storage->device] += (int64_t)c->storage->bytes;
    return c->storage->bytes;
}

void constants_end(Run *run, Status status)
{
    Evaluation *e = run->e;
    Constant *goes = NULL;
    size_t bytes = 0;
    if (!run->p->n_constants)
        return;
    pthread_mutex_lock(&kept.lock);
    for (size_t k = 0; k < e->constants.n && status == ST_OK; k++)
        if (!e->constants.at[k]->listed && !e->constants.at[k]->read && still_true(e, e->constants.at[k]))
            bytes += list(e->constants.at[k], &goes);
    const int64_t all = kept.bytes[run->device];
    pthread_mutex_unlock(&kept.lock);
    (void)free_list(goes);
    constants_let_go(e);
    if (bytes && log_on(LOG_MEMORY)) /* a sink of the user's may release tensors */
        log_line(LOG_MEMORY, "%zu bytes made of constants are kept now, with others %" PRId64, bytes, all);
}
