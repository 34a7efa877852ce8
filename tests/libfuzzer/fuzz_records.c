/*
 * Bytes as the lines of `counters` and `misses`, which processes append to without a lock and which `kiln cache why FILE` takes from anybody.
 * Words lie in their line and in order; a line read as a miss and written again reads the same.
 */
#include "target.h"

#include "cache/records.h"

#include <string.h>

static bool same_miss(const MissRecord *a, const MissRecord *b)
{
    const Facts *x = &a->facts, *y = &b->facts;
    return a->time == b->time && strcmp(a->key, b->key) == 0 && strcmp(a->where, b->where) == 0 && strcmp(a->reason, b->reason) == 0 &&
           x->n_ints == y->n_ints && x->n_scalars == y->n_scalars &&
           (x->n_ints == 0 || memcmp(x->ints, y->ints, sizeof *x->ints * x->n_ints) == 0) &&
           (x->n_scalars == 0 || memcmp(x->scalars, y->scalars, sizeof *x->scalars * x->n_scalars) == 0);
}

static void read_line(const char *line, size_t n, Arena *arena)
{
    const char *at = line, *end = line + n, *before = line;
    RecordWord word;
    while (record_next(&at, end, &word)) {
        int64_t value;
        REQUIRE(at > before && at <= end, "no progress");
        REQUIRE(word.name >= before && word.name_bytes > 0 && word.value == word.name + word.name_bytes + 1 && word.value + word.n == at,
                "a word outside its line");
        (void)record_int(&word, &value);
        before = at;
    }
    MissRecord miss, again;
    if (!record_read_miss(line, n, arena, &miss))
        return;
    Str out;
    str_init(&out, arena);
    record_miss(&out, &miss);
    REQUIRE(out.len && out.text[out.len - 1] == '\n' && strlen(out.text) == out.len, "a line without an end");
    REQUIRE(record_read_miss(out.text, out.len - 1, arena, &again) && same_miss(&miss, &again), "written anew it is another miss: %s",
            out.text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    const char *text = (const char *)bytes;
    Arena arena;
    jmp_buf oom;
    arena_init(&arena, &oom);
    if (setjmp(oom) == 0)
        for (size_t at = 0; at < n;) {
            const char *newline = memchr(text + at, '\n', n - at);
            size_t length = newline ? (size_t)(newline - text) - at : n - at;
            read_line(text + at, length, &arena);
            at += length + 1;
        }
    arena_free(&arena);
    return 0;
}
