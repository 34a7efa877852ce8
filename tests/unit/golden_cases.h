/*
 * Files of several golden cases, divided by lines "====": an input, a line "----", and what the code makes of it. KILN_GOLDEN=update writes
 * what came out instead of comparing. For programs with tests/unit/arena.h.
 */
#ifndef TESTS_UNIT_GOLDEN_CASES_H
#define TESTS_UNIT_GOLDEN_CASES_H

#include "ir/base/os.h"
#include "ir/base/str.h"
#include "tests/unit/arena.h"

#include <stdio.h>
#include <string.h>

/* Appends what becomes of it. */
typedef void GoldenMake(const char *given, Str *out);

/* Cuts at the next line `mark`: what is before it, terminated; *rest behind it, or NULL. */
static inline char *golden_cut(char *text, const char *mark, char **rest)
{
    char *at = strstr(text, mark);
    *rest = at ? at + strlen(mark) : NULL;
    if (at)
        *at = 0;
    return text;
}

/* Returns how many cases the file has. compare: holds what `make` appends against what the file has, or writes it there. */
static inline int golden_cases(const char *path, GoldenMake *make, bool compare)
{
    static char text[1 << 17];
    const char *mode = os_getenv("KILN_GOLDEN");
    bool update = compare && mode && !strcmp(mode, "update");
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file, "%s", path);
    const size_t length = fread(text, 1, sizeof text, file);
    fclose(file);
    cr_assert_lt(length, sizeof text, "%s is longer than there is room for", path);
    text[length] = 0;
    Str out;
    str_init(&out, &arena);
    int n = 0;
    for (char *rest = text; rest; n++) {
        char *next, *expected, *given = golden_cut(golden_cut(rest, "====\n", &next), "----\n", &expected);
        str_printf(&out, "%s%s----\n", out.len ? "====\n" : "", given);
        size_t at = out.len;
        make(given, &out);
        if (compare && !update)
            cr_expect(expected && !strcmp(expected, out.text + at), "%s: of\n%sgot\n%swanted\n%s", path, given, out.text + at,
                      expected ? expected : "nothing");
        rest = next;
    }
    if (update) {
        file = fopen(path, "w");
        cr_assert_not_null(file, "%s", path);
        fputs(out.text, file);
        fclose(file);
    }
    return n;
}

#endif
