/* The cache of programs in memory: exact bytes decide, guards choose among variants, memory is bounded. Programs here have no kernels. */
#include "cache/memory.h"
#include "ir/base/os.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>

/* A program with one guard: fact 0 == value; general: no guard. */
static Program *program(int64_t value, bool general)
{
    Program *p = os_calloc(1, sizeof *p);
    atomic_init(&p->refs, 1);
    p->guards.sizes.at = os_calloc(1, sizeof *p->guards.sizes.at);
    p->guards.sizes.at[0] = (SizeExpr){.kind = SIZE_FACT, .a = 0};
    p->guards.sizes.n = 1;
    p->guards.at = os_calloc(1, sizeof *p->guards.at);
    p->guards.at[0] = (Guard){.kind = GUARD_INT_EQ, .v = value, .who = "test"};
    p->guards.n = general ? 0 : 1;
    p->general = general;
    p->bytes = 1000;
    return p;
}

static CallKey key_of(const char *structure, const char *signature)
{
    return (CallKey){hash128(structure, strlen(structure)), (const uint8_t *)structure, (const uint8_t *)signature, strlen(structure),
                     strlen(signature)};
}

static Facts facts_of(const int64_t *value) { return (Facts){value, NULL, 1, 0}; }

static void add(const char *structure, const char *signature, int64_t value, Program *p, size_t limit)
{
    CallKey key = key_of(structure, signature);
    Facts facts = facts_of(&value);
    CacheHit hit;
    cr_assert(eq(int, (int)cache_add(&key, &facts, p, limit, &hit), ST_OK));
    cr_assert(eq(ptr, hit.program, p));
}

static Program *find(const char *structure, const char *signature, int64_t value, CacheMiss *miss)
{
    CallKey key = key_of(structure, signature);
    Facts facts = facts_of(&value);
    CacheHit hit;
    if (!cache_find(&key, &facts, &hit, miss))
        return NULL;
    cr_assert(eq(i64, hit.sizes[0], value));
    return hit.program;
}

enum { PLENTY = 1 << 20 };

Test(memory_cache, finds_the_variant_whose_guards_hold)
{
    CacheMiss miss;
    cr_assert(zero(ptr, find("graph", "f32", 3, &miss)));
    cr_assert(eq(int, (int)miss.reason, REASON_NEVER_SEEN));
    Program *three = program(3, false), *four = program(4, false);
    add("graph", "f32", 3, three, PLENTY);
    add("graph", "f32", 4, four, PLENTY);
    for (int round = 0; round < 3; round++) {
        cr_assert(eq(ptr, find("graph", "f32", 3, &miss), three));
        cr_assert(eq(ptr, find("graph", "f32", 4, &miss), four));
    }
    cr_assert(zero(ptr, find("graph", "f32", 5, &miss)));
    cr_assert(eq(int, (int)miss.reason, REASON_SIZE));
    cr_assert(eq(u32, miss.n_variants, 2));
    cr_assert(zero(ptr, find("graph", "f64", 3, &miss)));
    cr_assert(eq(int, (int)miss.reason, REASON_DTYPE));
    cr_assert(eq(int, memcmp(miss.signature, "f32", 3), 0));
    cr_assert(zero(ptr, find("other", "f32", 3, &miss)));
    cr_assert(eq(int, (int)miss.reason, REASON_NEVER_SEEN));
    cache_clear();
    cr_assert(eq(sz, cache_use().bytes, 0));
}

Test(memory_cache, a_hash_is_never_proof)
{
    cache_test_hash_bits(1); /* everything collides */
    Program *made[32];
    char name[32][16];
    CacheMiss miss;
    for (int i = 0; i < 32; i++) {
        snprintf(name[i], sizeof name[i], "g%d", i);
        made[i] = program(1, false);
        add(name[i], "f32", 1, made[i], PLENTY);
    }
    for (int i = 0; i < 32; i++)
        cr_assert(eq(ptr, find(name[i], "f32", 1, &miss), made[i]));
    cr_assert(zero(ptr, find("g32", "f32", 1, &miss)));
    cache_clear();
    cr_assert(eq(u32, cache_use().entries, 0));
    cache_test_hash_bits(0);
}

Test(memory_cache, the_general_program_replaces_its_signature)
{
    CacheMiss miss;
    add("graph", "f32", 3, program(3, false), PLENTY);
    add("graph", "f32", 4, program(4, false), PLENTY);
    Program *other = program(3, false), *general = program(0, true);
    add("graph", "f64", 3, other, PLENTY);
    add("graph", "f32", 9, general, PLENTY);
    cr_assert(eq(u32, cache_use().variants, 2));
    cr_assert(eq(ptr, find("graph", "f32", 3, &miss), general));
    cr_assert(eq(ptr, find("graph", "f32", 77, &miss), general));
    cr_assert(eq(ptr, find("graph", "f64", 3, &miss), other));
    cache_clear();
}

static void sum_hits(const Program *program, uint64_t hits, void *user)
{
    (void)program;
    *(uint64_t *)user += hits;
}

/* Without the lock a thread finds again what it found, for those bytes and facts alone, until something goes; hits are counted. */
Test(memory_cache, a_thread_finds_again_what_it_found)
{
    static CacheUser user;
    CacheMiss miss;
    CacheHit hit, again;
    CallKey key = key_of("graph", "f32"), other = key_of("graph", "f64"), third = key_of("gra", "f32");
    third.hash = key.hash;
    int64_t value = 3, four = 4;
    Facts facts = facts_of(&value), others = facts_of(&four);
    uint64_t hits = 0;
    Program *p = program(3, false);
    add("graph", "f32", 3, p, PLENTY);
    cache_user_list(&user);
    cr_assert(not(cache_again(&user, &key, &facts, &again)));
    cr_assert(cache_find(&key, &facts, &hit, &miss));
    cache_learn(&user, &key, &facts, &hit);
    cr_assert(cache_again(&user, &key, &facts, &again));
    cr_assert(again.program == p && again.sizes != hit.sizes && again.sizes[0] == 3);
    cr_assert(not(cache_again(&user, &other, &facts, &again)), "another dtype");
    cr_assert(not(cache_again(&user, &third, &facts, &again)), "another structure with the same hash");
    cr_assert(not(cache_again(&user, &key, &others, &again)), "other facts");
    cache_take_hits(sum_hits, &hits);
    cr_assert(eq(u64, hits, 2));
    cache_clear();
    cr_assert(not(cache_again(&user, &key, &facts, &again)), "it went");
}

/* Beside the others a general program is found only where none of them fits, however often it is found. */
Test(memory_cache, a_general_program_beside_others_is_tried_last)
{
    CacheMiss miss;
    CacheHit hit;
    CallKey key = key_of("graph", "f32");
    int64_t value = 9, other = 4;
    Facts nine = facts_of(&value), four = facts_of(&other);
    Program *three = program(3, false), *general = program(0, true), *better = program(4, false);
    add("graph", "f32", 3, three, PLENTY);
    cr_assert(eq(int, (int)cache_add_variant(&key, &nine, general, PLENTY, &hit), ST_OK));
    cr_assert(eq(u32, cache_use().variants, 2));
    for (int round = 0; round < 3; round++) {
        cr_assert(cache_find(&key, &nine, &hit, &miss));
        cr_assert(eq(ptr, hit.program, general));
        cr_assert(eq(u32, hit.n_variants, 1));
        cr_assert(eq(ptr, find("graph", "f32", 3, &miss), three));
    }
    cache_explain(&key, &nine, &miss);
    cr_assert(eq(int, (int)miss.reason, REASON_SIZE));
    cr_assert(eq(u32, miss.n_variants, 1));
    cr_assert(miss.closest == three);

    CacheMemo memo = {0};
    cr_assert(cache_find(&key, &four, &hit, &miss));
    cr_assert(eq(ptr, hit.program, general));
    cache_remember(&memo, &hit);
    cr_assert(cache_recall(&memo, &hit));
    cr_assert(eq(int, (int)cache_add_variant(&key, &four, better, PLENTY, &hit), ST_OK));
    cr_assert(not(cache_recall(&memo, &hit)), "what was remembered is not the best any more");
    cr_assert(eq(ptr, find("graph", "f32", 4, &miss), better));
    cr_assert(eq(ptr, find("graph", "f32", 3, &miss), three));
    cr_assert(eq(ptr, find("graph", "f32", 5, &miss), general));
    cache_forget(&memo);
    cache_clear();
}

Test(memory_cache, least_recently_used_goes_and_the_miss_says_so)
{
    CacheMiss miss;
    size_t limit = 4500; /* room for three or so */
    add("a", "s", 1, program(1, false), limit);
    add("b", "s", 1, program(1, false), limit);
    cr_assert(find("a", "s", 1, &miss) != NULL); /* b is the oldest now */
    add("c", "s", 1, program(1, false), limit);
    add("d", "s", 1, program(1, false), limit);
    cr_assert(le(sz, cache_use().bytes, limit));
    cr_assert(find("a", "s", 1, &miss) != NULL);
    cr_assert(find("d", "s", 1, &miss) != NULL);
    cr_assert(zero(ptr, find("b", "s", 1, &miss)));
    cr_assert(eq(int, (int)miss.reason, REASON_EVICTED));
    cr_assert(cache_use().evicted > 0);
    cache_clear();
}

Test(memory_cache, history_tells_what_varied)
{
    int64_t a[] = {4, 5, 6}, b[] = {4, 7, 6};
    uint64_t s[] = {1, 2}, t[] = {1, 3};
    CallKey key = key_of("graph", "f32");
    Facts first = {a, s, 3, 2}, second = {b, t, 3, 2};
    CacheHit hit;
    cr_assert(eq(int, (int)cache_add(&key, &first, program(4, false), PLENTY, &hit), ST_OK));
    bool ints[3] = {false}, scalars[2] = {false};
    Facts seen[4];
    cr_assert(eq(u32, cache_history(&key, &second, ints, scalars, seen, 4), 1));
    bool right = !ints[0] && ints[1] && !ints[2] && !scalars[0] && scalars[1];
    cr_assert(right);
    cr_assert(eq(i64, seen[0].ints[1], 5));
    cache_clear();
}

Test(memory_cache, a_program_in_use_outlives_its_eviction)
{
    Program *p = program(1, false);
    add("a", "s", 1, p, PLENTY);
    program_retain(p);
    cache_clear();
    cr_assert(eq(i64, p->guards.at[0].v, 1));
    program_release(p);
}
