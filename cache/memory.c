/* See memory.h. A uthash map of entries; each holds a short list of variants with the last hit in front. */
#define HASH_NONFATAL_OOM 1
#include "cache/memory.h"
#include "ir/base/bytes.h"
#include "ir/base/os.h"
#include "ir/base/timeline.h"

#include <stdatomic.h>
#include <string.h>
#include <uthash.h>

typedef struct Variant Variant;
struct Variant {
    Variant *next;
    Program *program;
    struct Entry *entry;             /* it is of */
    _Atomic uint64_t last_use, hits; /* changed without the lock, too: cache_again */
    size_t bytes;
    uint32_t n_ints, n_scalars;
    size_t signature_bytes;
    uint8_t *signature;
    int64_t *made_ints; /* the facts it was compiled for */
    uint64_t *made_scalars;
    int64_t *last_ints; /* the facts it last served, and ... */
    uint64_t *last_scalars;
    int64_t *last_sizes; /* ... the values of its size table for them */
    int64_t *try_sizes;  /* room for looking */
};

typedef struct Entry {
    Hash128 hash; /* the table's key; never proof */
    Variant *variants;
    size_t structure_bytes;
    struct Entry *same_hash; /* entries of other structures with this hash */
    UT_hash_handle hh;
    uint8_t structure[];
} Entry;

enum { EVICTED_REMEMBERED = 256 };

static Entry *table;
static CacheUser *users;
static uint64_t clock_now, n_evicted, generation; /* generation: changes when a variant goes or a better one comes */
static uint32_t n_entries, n_variants;
static size_t total_bytes;
static Hash128 evicted[EVICTED_REMEMBERED]; /* of entries dropped for room: so that a later miss can say so */
static uint64_t hash_mask = UINT64_MAX;

void cache_test_hash_bits(int bits) { hash_mask = bits > 0 && bits < 64 ? ((uint64_t)1 << bits) - 1 : UINT64_MAX; }

static Hash128 table_hash(const CallKey *key)
{
    if (hash_mask != UINT64_MAX)
        return (Hash128){key->hash.lo & hash_mask, 0};
    return key->hash;
}

static Entry *find_entry(const CallKey *key)
{
    Hash128 hash = table_hash(key);
    Entry *entry = NULL;
    HASH_FIND(hh, table, &hash, sizeof hash, entry);
    for (; entry; entry = entry->same_hash)
        if (entry->structure_bytes == key->structure_bytes && memcmp(entry->structure, key->structure, key->structure_bytes) == 0)
            return entry;
    return NULL;
}

static bool same_signature(const Variant *v, const CallKey *key)
{
    return v->signature_bytes == key->signature_bytes && memcmp(v->signature, key->signature, key->signature_bytes) == 0;
}

/* Evaluation has the lock, or nobody has: plain numbers but for two threads at once that have not. */
static void add_hits(Variant *v, uint64_t n) { atomic_fetch_add_explicit(&v->hits, n, memory_order_relaxed); }
static void set_last_use(Variant *v, uint64_t when) { atomic_store_explicit(&v->last_use, when, memory_order_relaxed); }

/* --- looking up ---------------------------------------------------------------------------------------------- */

static bool exact_repeat(const Variant *v, const Facts *facts)
{
    size_t ints = sizeof *facts->ints * facts->n_ints, scalars = sizeof *facts->scalars * facts->n_scalars;
    return bytes_equal(v->last_ints, ints, facts->ints, ints) &&
           (!v->program->guards.on_scalars || bytes_equal(v->last_scalars, scalars, facts->scalars, scalars));
}

static void remember_served(Variant *v, const Facts *facts)
{
    int64_t *sizes = v->last_sizes;
    v->last_sizes = v->try_sizes;
    v->try_sizes = sizes;
    if (facts->n_ints)
        memcpy(v->last_ints, facts->ints, sizeof *facts->ints * facts->n_ints);
    if (facts->n_scalars)
        memcpy(v->last_scalars, facts->scalars, sizeof *facts->scalars * facts->n_scalars);
}

static bool variant_fits(Variant *v, const Facts *facts)
{
    if (exact_repeat(v, facts))
        return true;
    uint32_t failed;
    int64_t began = timeline_begin();
    sizes_eval(&v->program->guards.sizes, facts->ints, v->try_sizes);
    bool held = guards_hold(&v->program->guards, v->try_sizes, facts, &failed);
    if (began && v->program->guards.n)
        timeline_span(TL_GUARDS, "guards", began, TL_TEXT("program", program_name(v->program)), TL_INT("guards", v->program->guards.n),
                      TL_TEXT("held", held ? "yes" : "no"));
    if (!held)
        return false;
    remember_served(v, facts);
    return true;
}

/* Which variant of the signature has the fewest failing guards, and its first one. */
static void explain_miss(const Entry *entry, const CallKey *key, const Facts *facts, CacheMiss *miss)
{
    uint32_t fewest = UINT32_MAX;
    *miss = (CacheMiss){.reason = REASON_DTYPE};
    for (Variant *v = entry->variants; v; v = v->next) {
        if (!same_signature(v, key)) {
            if (!miss->signature && v->signature_bytes == key->signature_bytes)
                miss->signature = v->signature;
            continue;
        }
        miss->n_variants += !v->program->general;
        const GuardSet *set = &v->program->guards;
        sizes_eval(&set->sizes, facts->ints, v->try_sizes);
        uint32_t failing = 0, first = 0;
        for (uint32_t i = set->n; i-- > 0;)
            if (!guard_holds(&set->at[i], v->try_sizes, facts)) {
                failing++;
                first = i;
            }
        miss->general |= failing && v->program->general;
        if (failing && failing < fewest) {
            fewest = failing;
            miss->closest = v->program;
            miss->guard = first;
            miss->reason = guard_reason(&set->at[first]);
        }
    }
}

static bool was_evicted(Hash128 hash)
{
    for (int i = 0; i < EVICTED_REMEMBERED; i++)
        if (evicted[i].lo == hash.lo && evicted[i].hi == hash.hi && (hash.lo || hash.hi))
            return true;
    return false;
}

bool cache_find(const CallKey *key, const Facts *facts, CacheHit *hit, CacheMiss *miss)
{
    Entry *entry = find_entry(key);
    if (!entry) {
        *miss = (CacheMiss){.reason = was_evicted(table_hash(key)) ? REASON_EVICTED : REASON_NEVER_SEEN};
        return false;
    }
    uint32_t tried = 0;
    Variant **link = &entry->variants;
    for (Variant *v = *link; v; link = &v->next, v = *link) {
        if (!same_signature(v, key))
            continue;
        if (!variant_fits(v, facts)) {
            tried++;
            continue;
        }
        if (!v->program->general) { /* to the front */
            *link = v->next;
            v->next = entry->variants;
            entry->variants = v;
        }
        set_last_use(v, ++clock_now);
        add_hits(v, 1);
        *hit = (CacheHit){v->program, v->last_sizes, v, tried};
        return true;
    }
    explain_miss(entry, key, facts, miss);
    return false;
}

void cache_explain(const CallKey *key, const Facts *facts, CacheMiss *miss)
{
    Entry *entry = find_entry(key);
    if (entry)
        explain_miss(entry, key, facts, miss);
    else
        *miss = (CacheMiss){.reason = REASON_NEVER_SEEN};
}

bool cache_holds(const CallKey *key, const char *entry)
{
    const Entry *structure = find_entry(key);
    for (const Variant *v = structure ? structure->variants : NULL; v; v = v->next)
        if (same_signature(v, key) && strcmp(v->program->entry, entry) == 0)
            return true;
    return false;
}

bool cache_recall(const CacheMemo *memo, CacheHit *hit)
{
    if (!memo->variant || memo->generation != generation)
        return false;
    set_last_use(memo->variant, ++clock_now);
    add_hits(memo->variant, 1);
    *hit = (CacheHit){memo->variant->program, memo->sizes, memo->variant, UINT32_MAX};
    return true;
}

void cache_remember(CacheMemo *memo, const CacheHit *hit)
{
    size_t bytes = sizeof *memo->sizes * hit->program->guards.sizes.n;
    cache_forget(memo);
    memo->sizes = os_alloc(bytes + 1);
    if (!memo->sizes)
        return;
    if (bytes)
        memcpy(memo->sizes, hit->sizes, bytes);
    memo->variant = hit->variant;
    memo->generation = generation;
}

void cache_forget(CacheMemo *memo)
{
    os_free(memo->sizes);
    *memo = (CacheMemo){0};
}

/* --- without the lock ----------------------------------------------------------------------------------------------- */

void cache_user_list(CacheUser *user)
{
    user->next = users;
    users = user;
}

static CacheSeen *place_of(CacheUser *user, const CallKey *key, const Facts *facts)
{
    uint64_t hash = key->hash.lo;
    for (uint32_t i = 0; i < facts->n_ints; i++)
        hash = (hash ^ (uint64_t)facts->ints[i]) * UINT64_C(0x9e3779b97f4a7c15);
    return &user->seen[(hash >> 32) % CACHE_SEEN];
}

static size_t n_sizes(const Variant *v) { return v->program->guards.sizes.n; }

static bool saw(const CacheSeen *seen, const Facts *facts)
{
    const Variant *v = seen->variant;
    if (!v || seen->generation != generation || v->n_ints != facts->n_ints || v->n_scalars != facts->n_scalars)
        return false;
    size_t ints = sizeof *facts->ints * facts->n_ints, scalars = sizeof *facts->scalars * facts->n_scalars;
    return bytes_equal(seen->ints, ints, facts->ints, ints) &&
           (!v->program->guards.on_scalars || bytes_equal(seen->ints + facts->n_ints + n_sizes(v), scalars, facts->scalars, scalars));
}

void cache_learn(CacheUser *user, const CallKey *key, const Facts *facts, const CacheHit *hit)
{
    CacheSeen *seen = place_of(user, key, facts);
    Variant *v = hit->variant;
    if (seen->variant == v && saw(seen, facts))
        return;
    size_t sizes = n_sizes(v), words = facts->n_ints + sizes + facts->n_scalars + 1;
    seen->variant = NULL;
    if (words > seen->words) {
        os_free(seen->ints);
        seen->ints = os_alloc(words * sizeof *seen->ints);
        seen->words = seen->ints ? words : 0;
        if (!seen->ints)
            return;
    }
    if (facts->n_ints)
        memcpy(seen->ints, facts->ints, sizeof *facts->ints * facts->n_ints);
    memcpy(seen->ints + facts->n_ints, hit->sizes, sizeof *hit->sizes * sizes);
    if (facts->n_scalars)
        memcpy(seen->ints + facts->n_ints + sizes, facts->scalars, sizeof *facts->scalars * facts->n_scalars);
    seen->variant = v;
    seen->generation = generation;
}

static void hand_over(CacheUser *user)
{
    if (user->used) {
        add_hits(user->used, user->hits);
        set_last_use(user->used, clock_now);
    }
    user->used = NULL;
    user->hits = 0;
}

static void hand_over_all(void)
{
    for (CacheUser *user = users; user; user = user->next)
        hand_over(user);
}

static void count_hit(CacheUser *user, Variant *v)
{
    if (user->used != v)
        hand_over(user);
    user->used = v;
    user->hits++;
}

bool cache_again(CacheUser *user, const CallKey *key, const Facts *facts, CacheHit *hit)
{
    const CacheSeen *seen = place_of(user, key, facts);
    Variant *v = seen->variant;
    if (!saw(seen, facts) || v->entry->structure_bytes != key->structure_bytes ||
        memcmp(v->entry->structure, key->structure, key->structure_bytes) != 0 || !same_signature(v, key))
        return false;
    count_hit(user, v);
    *hit = (CacheHit){v->program, seen->ints + facts->n_ints, v, UINT32_MAX};
    return true;
}

bool cache_recall_again(CacheUser *user, const CacheMemo *memo, CacheHit *hit)
{
    if (!memo->variant || memo->generation != generation)
        return false;
    count_hit(user, memo->variant);
    *hit = (CacheHit){memo->variant->program, memo->sizes, memo->variant, UINT32_MAX};
    return true;
}

uint32_t cache_history(const CallKey *key, const Facts *facts, bool *int_varies, bool *scalar_varies, Facts *seen, uint32_t max_seen)
{
    uint32_t n = 0;
    Entry *entry = find_entry(key);
    for (Variant *v = entry ? entry->variants : NULL; v; v = v->next) {
        if (!same_signature(v, key))
            continue;
        for (uint32_t i = 0; i < facts->n_ints; i++)
            int_varies[i] |= v->made_ints[i] != facts->ints[i] || v->last_ints[i] != facts->ints[i];
        for (uint32_t i = 0; i < facts->n_scalars; i++)
            scalar_varies[i] |= v->made_scalars[i] != facts->scalars[i] || v->last_scalars[i] != facts->scalars[i];
        if (n < max_seen)
            seen[n++] = (Facts){v->made_ints, v->made_scalars, v->n_ints, v->n_scalars};
    }
    return n;
}

/* --- changing ---------------------------------------------------------------------------------------------------- */

static void free_variant(Variant *v)
{
    total_bytes -= v->bytes;
    n_variants--;
    generation++;
    program_release(v->program);
    os_free(v);
}

/* One block for a variant and all its arrays, each aligned to 8. */
static Variant *new_variant(const CallKey *key, const Facts *facts, Program *program)
{
    size_t ints = sizeof(int64_t) * facts->n_ints, scalars = sizeof(uint64_t) * facts->n_scalars;
    size_t sizes = sizeof(int64_t) * program->guards.sizes.n;
    size_t bytes = sizeof(Variant) + 2 * (ints + scalars + sizes) + key->signature_bytes;
    Variant *v = os_calloc(1, bytes);
    if (!v)
        return NULL;
    char *at = (char *)(v + 1);
    v->made_ints = (int64_t *)at, at += ints;
    v->last_ints = (int64_t *)at, at += ints;
    v->made_scalars = (uint64_t *)at, at += scalars;
    v->last_scalars = (uint64_t *)at, at += scalars;
    v->last_sizes = (int64_t *)at, at += sizes;
    v->try_sizes = (int64_t *)at, at += sizes;
    v->signature = (uint8_t *)at;
    v->program = program;
    v->n_ints = facts->n_ints;
    v->n_scalars = facts->n_scalars;
    v->signature_bytes = key->signature_bytes;
    memcpy(v->signature, key->signature, key->signature_bytes);
    if (ints)
        memcpy(v->made_ints, facts->ints, ints);
    if (scalars)
        memcpy(v->made_scalars, facts->scalars, scalars);
    sizes_eval(&program->guards.sizes, facts->ints, v->try_sizes);
    remember_served(v, facts);
    set_last_use(v, ++clock_now);
    v->bytes = bytes + program->bytes;
    return v;
}

static Entry *new_entry(const CallKey *key)
{
    Entry *entry = os_calloc(1, sizeof *entry + key->structure_bytes);
    if (!entry)
        return NULL;
    entry->hash = table_hash(key);
    entry->structure_bytes = key->structure_bytes;
    memcpy(entry->structure, key->structure, key->structure_bytes);
    Entry *first = NULL;
    HASH_FIND(hh, table, &entry->hash, sizeof entry->hash, first);
    if (first) {
        entry->same_hash = first->same_hash;
        first->same_hash = entry;
    } else {
        HASH_ADD(hh, table, hash, sizeof entry->hash, entry);
        if (!entry->hh.tbl) { /* the table could not grow */
            os_free(entry);
            return NULL;
        }
    }
    n_entries++;
    total_bytes += sizeof *entry + key->structure_bytes;
    return entry;
}

static void free_entry(Entry *entry)
{
    Entry *first = NULL;
    HASH_FIND(hh, table, &entry->hash, sizeof entry->hash, first);
    if (first == entry) {
        Entry *heir = entry->same_hash;
        if (heir) /* before the other goes, so that the table never has to be made anew */
            HASH_ADD(hh, table, hash, sizeof heir->hash, heir);
        HASH_DEL(table, entry);
    } else {
        while (first->same_hash != entry)
            first = first->same_hash;
        first->same_hash = entry->same_hash;
    }
    n_entries--;
    total_bytes -= sizeof *entry + entry->structure_bytes;
    os_free(entry);
}

/* Drops the least recently used variant other than `keep`; false when there is none. */
static bool evict_one(const Variant *keep)
{
    Variant **victim = NULL;
    Entry *owner = NULL;
    for (Entry *bucket = table; bucket; bucket = bucket->hh.next)
        for (Entry *entry = bucket; entry; entry = entry->same_hash)
            for (Variant **link = &entry->variants; *link; link = &(*link)->next)
                if (*link != keep && (!victim || (*link)->last_use < (*victim)->last_use)) {
                    victim = link;
                    owner = entry;
                }
    if (!victim)
        return false;
    Variant *v = *victim;
    *victim = v->next;
    free_variant(v);
    if (!owner->variants) {
        evicted[n_evicted % EVICTED_REMEMBERED] = owner->hash;
        free_entry(owner);
    }
    n_evicted++;
    return true;
}

static void drop_others(Entry *entry, const CallKey *key)
{
    for (Variant **link = &entry->variants; *link;) {
        Variant *v = *link;
        if (same_signature(v, key)) {
            *link = v->next;
            free_variant(v);
        } else {
            link = &v->next;
        }
    }
}

static Status add(const CallKey *key, const Facts *facts, Program *program, size_t limit, bool replaces, CacheHit *hit)
{
    hand_over_all();
    Variant *fresh = new_variant(key, facts, program);
    Entry *entry = fresh ? find_entry(key) : NULL;
    if (fresh && !entry)
        entry = new_entry(key);
    if (!entry) {
        os_free(fresh);
        program_release(program);
        return fail(ST_OUT_OF_MEMORY, "no memory for an entry of the program cache");
    }
    if (replaces)
        drop_others(entry, key);
    Variant **link = &entry->variants;
    while (program->general && *link)
        link = &(*link)->next;
    fresh->entry = entry;
    fresh->next = *link;
    *link = fresh;
    n_variants++;
    total_bytes += fresh->bytes;
    while (total_bytes > limit && evict_one(fresh))
        continue;
    *hit = (CacheHit){program, fresh->last_sizes, fresh, UINT32_MAX};
    return ST_OK;
}

Status cache_add(const CallKey *key, const Facts *facts, Program *program, size_t limit, CacheHit *hit)
{
    return add(key, facts, program, limit, program->general, hit);
}

Status cache_add_variant(const CallKey *key, const Facts *facts, Program *program, size_t limit, CacheHit *hit)
{
    generation++; /* whoever remembers another program shall look again */
    return add(key, facts, program, limit, false, hit);
}

void cache_each(CacheVisit *visit, void *user)
{
    for (Entry *bucket = table; bucket; bucket = bucket->hh.next)
        for (Entry *entry = bucket; entry; entry = entry->same_hash)
            for (Variant *v = entry->variants; v; v = v->next)
                visit(user, v->program, &(Facts){v->made_ints, v->made_scalars, v->n_ints, v->n_scalars});
}

void cache_take_hits(void (*take)(const Program *program, uint64_t hits, void *user), void *user)
{
    hand_over_all();
    for (Entry *bucket = table; bucket; bucket = bucket->hh.next)
        for (Entry *entry = bucket; entry; entry = entry->same_hash)
            for (Variant *v = entry->variants; v; v = v->next) {
                if (v->hits && take)
                    take(v->program, v->hits, user);
                v->hits = 0;
            }
}

CacheUse cache_use(void) { return (CacheUse){n_entries, n_variants, total_bytes, n_evicted}; }

void cache_clear(void)
{
    hand_over_all();
    while (table) {
        Entry *entry = table;
        while (entry->variants) {
            Variant *v = entry->variants;
            entry->variants = v->next;
            free_variant(v);
        }
        free_entry(entry);
    }
}
