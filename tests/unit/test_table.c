/* Open addressing (ir/base/table.h): against a list that is searched, with hashes that collide, through several growths. */
#include "ir/base/hash.h"
#include "ir/base/table.h"
#include "tests/unit/arena.h"

TestSuite(table, .init = setup, .fini = teardown);

enum { N = 5000 };

static uint32_t hash_of(uint32_t i, uint32_t kinds) { return table_key(hash64(&(uint32_t){i % kinds}, sizeof i)); }

/* All numbers of a hash, those that were added first coming first, and no others; kinds: how many hashes there are. */
static void check(HashTable *t, uint32_t n, uint32_t kinds)
{
    uint32_t all = 0;
    for (uint32_t kind = 0; kind < kinds; kind++) {
        uint32_t want = kind;
        for (uint32_t probe = 0, i; table_next(t, hash_of(kind, kinds), &probe, &i);) {
            cr_assert_eq(i, want, "%u of %u: %u, not %u", kind, kinds, i, want);
            want += kinds;
            all++;
        }
        cr_assert_geq(want, n);
    }
    cr_assert_eq(all, n);
    cr_assert_eq(t->n, n);
}

Test(table, finds_what_was_added_in_that_order)
{
    static const uint32_t kinds[] = {1, 2, 3, 64, 1000, N};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        HashTable t = {0};
        uint32_t n = kinds[k] < 10 ? 300 : N;
        for (uint32_t i = 0; i < n; i++) {
            table_add(&arena, &t, hash_of(i, kinds[k]), i);
            if (i % 97 == 0 && i >= kinds[k])
                check(&t, i + 1, kinds[k]);
        }
        check(&t, n, kinds[k]);
        table_clear(&t);
        uint32_t probe = 0, i;
        cr_assert_not(table_next(&t, hash_of(0, kinds[k]), &probe, &i));
        table_add(&arena, &t, hash_of(0, kinds[k]), 7);
        probe = 0;
        cr_assert(table_next(&t, hash_of(0, kinds[k]), &probe, &i) && i == 7);
    }
}

Test(table, an_empty_one_has_nothing)
{
    HashTable t = {0};
    uint32_t probe = 0, i;
    cr_assert_not(table_next(&t, 0, &probe, &i));
    table_clear(&t);
    cr_assert_eq(t.cap, 0);
}

/* Neighbours in the table at its end and its beginning. */
Test(table, runs_around_the_end)
{
    HashTable t = {0};
    for (uint32_t i = 0; i < 200; i++)
        table_add(&arena, &t, UINT32_MAX - 1, i);
    uint32_t want = 0;
    for (uint32_t probe = 0, i; table_next(&t, UINT32_MAX - 1, &probe, &i);)
        cr_assert_eq(i, want++);
    cr_assert_eq(want, 200);
}
