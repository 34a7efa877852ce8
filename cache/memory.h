/*
 * The cache of compiled programs in memory: key -> variants, newest hit first.
 *
 *   entry     one structure (ops, wiring, axes, ranks; the target and the KEYED options): its bytes are compared in full
 *   variant   one program under it: its signature (dtypes, layouts), its guards, the facts it was compiled for
 *
 * The most general program of a signature replaces the others or, where it only fills in for them (runtime/eval/background.c), lies
 * behind them: a look-up tries it last. An exact repeat of the last facts that a variant served skips its guards. Bounded in bytes, least
 * recently used first. All functions but cache_again and cache_recall_again are called under the evaluation lock (runtime/eval.c).
 */
#ifndef CACHE_MEMORY_H
#define CACHE_MEMORY_H

#include "ir/base/hash.h"
#include "jit/program.h"

/* What a call looks up. Borrowed pointers. */
typedef struct CallKey {
    Hash128 hash; /* of the structure */
    const uint8_t *structure, *signature;
    size_t structure_bytes, signature_bytes;
} CallKey;

typedef struct CacheHit {
    Program *program;     /* borrowed: retain it to keep it beyond the next cache call */
    const int64_t *sizes; /* the values of its size table for these facts; same lifetime */
    struct Variant *variant;
    uint32_t n_variants; /* a general program that was looked up: the others of its signature, none of which fits;
                                   UINT32_MAX: not counted */
} CacheHit;

/* What a caller that repeats one key and one set of facts remembers of its last hit, to skip the look-up. Zeroed: nothing. */
typedef struct CacheMemo {
    struct Variant *variant;
    int64_t *sizes; /* heap; cache_forget frees it */
    uint64_t generation;
} CacheMemo;

typedef struct CacheMiss {
    Reason reason;
    uint32_t n_variants;      /* of the same signature, general ones left out */
    bool general;             /* there is a general one, and its guards fail */
    const Program *closest;   /* the variant with the fewest failing guards; NULL: none. Until the next cache call */
    uint32_t guard;           /* its first failing guard */
    const uint8_t *signature; /* REASON_DTYPE: the signature of the newest variant, as long as the key's; the same lifetime */
} CacheMiss;

/* Looks for a program whose guards hold; true: *hit, false: *miss says why. */
bool cache_find(const CallKey *key, const Facts *facts, CacheHit *hit, CacheMiss *miss);

/* The same hit again; false: something left the cache meanwhile, or nothing is remembered. Scalars are taken to be those that the
 * program's guards held for. */
bool cache_recall(const CacheMemo *memo, CacheHit *hit);
void cache_remember(CacheMemo *memo, const CacheHit *hit); /* out of memory: remembers nothing */
void cache_forget(CacheMemo *memo);

/*
 * What a thread found, to be found again without the evaluation lock, while nobody has it (runtime/eval/lock.c): this reads the cache and changes nothing of
 * it but hits, which are handed over now and then. Zeroed: nothing. Lives for ever once it is listed.
 */
enum { CACHE_SEEN = 64 };
typedef struct CacheSeen {
    struct Variant *variant; /* NULL: nothing; else for these facts, while the generation is this: */
    uint64_t generation;
    int64_t *ints; /* heap; behind them the sizes and the scalars */
    size_t words;  /* room there */
} CacheSeen;
typedef struct CacheUser {
    struct CacheUser *next;
    struct Variant *used; /* the last hits were of this one: */
    uint64_t hits;
    CacheSeen seen[CACHE_SEEN];
} CacheUser;
void cache_user_list(CacheUser *user);
/* Under the evaluation lock, after a hit. Out of memory: remembers nothing. */
void cache_learn(CacheUser *user, const CallKey *key, const Facts *facts, const CacheHit *hit);
/* Without the lock, by the user's thread, while nobody has it: what it learnt; what a memo says, as cache_recall. */
bool cache_again(CacheUser *user, const CallKey *key, const Facts *facts, CacheHit *hit);
bool cache_recall_again(CacheUser *user, const CacheMemo *memo, CacheHit *hit);

/* The policy for compiling after a miss: what varied between this call and the variants of its signature. `seen` gets up to
 * max_seen facts of theirs (borrowed until the next cache call). */
uint32_t cache_history(const CallKey *key, const Facts *facts, bool *int_varies, bool *scalar_varies, Facts *seen, uint32_t max_seen);

/* Enters a finished program (takes over the caller's reference). A general program replaces the other variants of its signature. Then drops
 * the least recently used programs beyond `limit` bytes. ST_OUT_OF_MEMORY: not entered, the reference is released. */
Status cache_add(const CallKey *key, const Facts *facts, Program *program, size_t limit, CacheHit *hit);
/* The same, but the program is one more variant: a general one goes behind the others of its signature and replaces none. */
Status cache_add_variant(const CallKey *key, const Facts *facts, Program *program, size_t limit, CacheHit *hit);

/* Is a program of this key and signature in memory that lies on disk under this name? */
bool cache_holds(const CallKey *key, const char *entry);

/* What a look-up that ended at a general program would have said without it. */
void cache_explain(const CallKey *key, const Facts *facts, CacheMiss *miss);

/* Shows every variant, in no particular order, with the facts that it was compiled for. No other cache call meanwhile. */
typedef void CacheVisit(void *user, const Program *program, const Facts *made);
void cache_each(CacheVisit *visit, void *user);

/* The hits of each program since the last time; take may be NULL. */
void cache_take_hits(void (*take)(const Program *program, uint64_t hits, void *user), void *user);

typedef struct CacheUse {
    uint32_t entries, variants;
    size_t bytes;
    uint64_t evicted;
} CacheUse;
CacheUse cache_use(void);
void cache_clear(void);

/* Test hook: only this many low bits of the hash are used (0: all); equality of bytes must still decide. */
void cache_test_hash_bits(int bits);

#endif
