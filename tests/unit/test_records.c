/* Lines of the files `counters` and `misses`: what is written reads back, and nothing else reads as one. */
#include "cache/records.h"

#include <criterion/criterion.h>
#include <string.h>

static Arena arena;
static jmp_buf oom;

static void open_arena(void) { arena_init(&arena, &oom); }
static void close_arena(void) { arena_free(&arena); }

static bool read_back(const char *line, MissRecord *out) { return record_read_miss(line, strlen(line), &arena, out); }

Test(records, a_miss_reads_back, .init = open_arena, .fini = close_arena)
{
    int64_t ints[] = {4096, -3, INT64_MIN, INT64_MAX};
    uint64_t scalars[] = {0x3f800000, UINT64_MAX};
    MissRecord miss = {1769860800, "kiln item\n", "size", "3fa9-1a2b", {ints, scalars, 4, 2}}, back;
    Str line;
    str_init(&line, &arena);
    record_miss(&line, &miss);
    cr_assert_str_eq(line.text, "time=1769860800 where=kiln_item_ reason=size key=3fa9-1a2b "
                                "ints=4096,-3,-9223372036854775808,9223372036854775807 scalars=3f800000,ffffffffffffffff\n");
    cr_assert(record_read_miss(line.text, line.len, &arena, &back));
    cr_assert_eq(back.time, miss.time);
    cr_assert_str_eq(back.where, "kiln_item_");
    cr_assert_str_eq(back.reason, "size");
    cr_assert_str_eq(back.key, "3fa9-1a2b");
    cr_assert_eq(back.facts.n_ints, 4);
    cr_assert_eq(back.facts.n_scalars, 2);
    cr_assert_eq(memcmp(back.facts.ints, ints, sizeof ints), 0);
    cr_assert_eq(memcmp(back.facts.scalars, scalars, sizeof scalars), 0);
}

Test(records, a_miss_without_facts_reads_back, .init = open_arena, .fini = close_arena)
{
    MissRecord miss = {.where = "", .reason = "never_seen", .key = "a-b"}, back;
    Str line;
    str_init(&line, &arena);
    record_miss(&line, &miss);
    cr_assert(record_read_miss(line.text, line.len, &arena, &back));
    cr_assert_eq(back.facts.n_ints + back.facts.n_scalars, 0);
    cr_assert_str_eq(back.where, "");
}

Test(records, what_is_no_miss_is_refused, .init = open_arena, .fini = close_arena)
{
    static const char *const bad[] = {"",
                                      "\n",
                                      "time=1 reason=size",
                                      "key=a ints=1,,2",
                                      "key=a ints=1,",
                                      "key=a ints=x",
                                      "key=a ints=9223372036854775808",
                                      "key=a scalars=g",
                                      "key=a scalars=10000000000000000",
                                      "key=a time=soon",
                                      "key=a ints=-",
                                      "=key"};
    MissRecord out;
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++)
        cr_expect_not(read_back(bad[k], &out), "%s", bad[k]);
    cr_expect(read_back("later=words key=a are skipped", &out));
}

Test(records, words_of_a_line, .init = open_arena, .fini = close_arena)
{
    Str line;
    str_init(&line, &arena);
    record_number(&line, counter_name(COUNTER_DISK_HITS), 3);
    record_text(&line, "entry", "x y=z");
    record_end(&line);
    cr_assert_str_eq(line.text, "disk_hits=3 entry=x_y=z\n");
    const char *at = line.text, *end = at + line.len;
    RecordWord word;
    int64_t value = 0;
    cr_assert(record_next(&at, end, &word) && record_is(&word, "disk_hits") && record_int(&word, &value));
    cr_assert_eq(value, 3);
    cr_assert(record_next(&at, end, &word) && record_is(&word, "entry") && !record_int(&word, &value));
    cr_assert_eq(word.n, strlen("x_y=z"));
    cr_assert_not(record_next(&at, end, &word));
}
