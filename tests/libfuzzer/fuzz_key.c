/*
 * Bytes as a key text. Lines that are read and written again are the same bytes, so no two texts read alike; a value is found under
 * its name; and a text differs from itself in nothing.
 */
#include "target.h"

#include "cache/key_text.h"

#include <string.h>

static void read_and_write(const char *text, size_t n, Arena *arena)
{
    Str out;
    str_init(&out, arena);
    const char *at = text, *end = text + n;
    KeyLine line;
    for (const char *before = at; key_line_next(&at, end, &line); before = at) {
        REQUIRE(at > before && at <= end, "a line that is no progress");
        REQUIRE(line.name >= text && line.name + line.name_bytes <= end && line.bytes >= text && line.bytes + line.n <= end,
                "a line outside the text");
        char *name = arena_alloc(arena, line.name_bytes + 1);
        memcpy(name, line.name, line.name_bytes);
        key_line_add(&out, name, line.bytes, line.n);
        size_t found_bytes;
        const char *found = key_line_find(text, n, name, &found_bytes);
        REQUIRE(found && found <= line.bytes, "a name that is not found");
    }
    REQUIRE(out.len == (size_t)(at - text) && memcmp(out.text, text, out.len) == 0, "written anew it is another text");
    REQUIRE(key_lines_whole(text, n) == (at == end), "whole or not");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    const char *text = (const char *)bytes;
    KeyLine a, b;
    Arena arena;
    jmp_buf oom;
    arena_init(&arena, &oom);
    if (setjmp(oom) == 0) {
        read_and_write(text, n, &arena);
        REQUIRE(!key_lines_differ(text, n, text, n, &a, &b), "differs from itself");
        for (size_t cut = n; cut-- > 0 && cut + 8 > n;)
            REQUIRE(key_lines_differ(text, n, text, cut, &a, &b), "the same as its beginning of %zu bytes", cut);
    }
    arena_free(&arena);
    return 0;
}
