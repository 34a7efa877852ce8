/*
 * Kernels as text. tests/kernels/NAME.txt holds cases, divided by lines "====": a kernel, a line "----", and what becomes of it:
 * its text as it is printed, or why it is refused. KILN_GOLDEN=update writes what came out instead of comparing.
 */
#include "ir/base/os.h"
#include "tests/unit/arena.h"
#include "tests/unit/kernel_round_trip.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

TestSuite(kernel_text, .init = setup, .fini = teardown);

static void outcome(const char *text, Str *out)
{
    Kernel *k;
    Status status = kernel_parse(text, &arena, &k);
    if (status != ST_OK) {
        cr_assert(status == ST_FORMAT || status == ST_INTERNAL);
        str_printf(out, "refused: %s\n", fail_message());
        return;
    }
    check_round_trip(k, &arena);
    kernel_print(k, out);
}

/* Cuts at the next line `mark`: what is before it, terminated; *rest behind it, or NULL. */
static char *cut(char *text, const char *mark, char **rest)
{
    char *at = strstr(text, mark);
    *rest = at ? at + strlen(mark) : NULL;
    if (at)
        *at = 0;
    return text;
}

typedef void OnCase(const char *kernel, const char *expected, const char *path, Str *out);

static void each_case(OnCase *on_case, bool write)
{
    static char text[1 << 16];
    const char *folder = KILN_SOURCE_DIR "/tests/kernels";
    DIR *dir = opendir(folder);
    cr_assert_not_null(dir, "%s", folder);
    int n = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (!strstr(entry->d_name, ".txt"))
            continue;
        const char *path = arena_printf(&arena, "%s/%s", folder, entry->d_name);
        FILE *file = fopen(path, "r");
        cr_assert_not_null(file, "%s", path);
        text[fread(text, 1, sizeof text - 1, file)] = 0;
        fclose(file);
        Str out;
        str_init(&out, &arena);
        for (char *rest = text; rest; n++) {
            char *next, *expected, *kernel = cut(cut(rest, "====\n", &next), "----\n", &expected);
            str_printf(&out, "%s%s----\n", out.len ? "====\n" : "", kernel);
            on_case(kernel, expected, path, &out);
            rest = next;
        }
        if (write) {
            file = fopen(path, "w");
            cr_assert_not_null(file, "%s", path);
            fputs(out.text, file);
            fclose(file);
        }
    }
    closedir(dir);
    cr_expect_geq(n, 25, "only %d cases", n);
}

static bool updates(void)
{
    const char *mode = os_getenv("KILN_GOLDEN");
    return mode && !strcmp(mode, "update");
}

static void compare(const char *kernel, const char *expected, const char *path, Str *out)
{
    size_t at = out->len;
    outcome(kernel, out);
    if (!updates())
        cr_expect(expected && !strcmp(expected, out->text + at), "%s: of\n%sgot\n%swanted\n%s", path, kernel, out->text + at,
                  expected ? expected : "nothing");
}

Test(kernel_text, files) { each_case(compare, updates()); }

/* Whatever is cut out or put in: it is parsed, verified, printed and parsed again, or refused with a place. */
static void damage(const char *kernel, const char *expected, const char *path, Str *out)
{
    static const char put[] = "v9s3a0ijz*/%+-[](){}.:;,=~< \n\x01\xff";
    size_t n = strlen(kernel);
    (void)expected, (void)path, (void)out;
    for (size_t i = 0; i < n; i++) {
        Arena own;
        jmp_buf own_oom;
        arena_init(&own, &own_oom);
        cr_assert_eq(setjmp(own_oom), 0);
        Str ignored;
        str_init(&ignored, &own);
        char *text = arena_strdup(&own, kernel);
        Kernel *k;
        memmove(text + i, text + i + 1, n - i);
        if (kernel_parse(text, &own, &k) == ST_OK)
            check_round_trip(k, &own);
        memcpy(text, kernel, n + 1);
        text[i] = put[i * 7 % (sizeof put - 1)];
        if (kernel_parse(text, &own, &k) == ST_OK)
            check_round_trip(k, &own);
        text[i] = 0;
        if (kernel_parse(text, &own, &k) == ST_OK)
            check_round_trip(k, &own);
        arena_free(&own);
    }
}

Test(kernel_text, damaged_texts_are_refused_or_mean_something) { each_case(damage, false); }
