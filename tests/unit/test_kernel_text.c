/*
 * Kernels as text. tests/kernels/NAME.txt holds cases, divided by lines "====": a kernel, a line "----", and what becomes of it:
 * its text as it is printed, or why it is refused. KILN_GOLDEN=update writes what came out instead of comparing.
 */
#include "tests/unit/golden_cases.h"
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

static void each_file(GoldenMake *make, bool compare)
{
    const char *folder = KILN_SOURCE_DIR "/tests/kernels";
    DIR *dir = opendir(folder);
    cr_assert_not_null(dir, "%s", folder);
    int n = 0;
    for (struct dirent *entry; (entry = readdir(dir));)
        if (strstr(entry->d_name, ".txt"))
            n += golden_cases(arena_printf(&arena, "%s/%s", folder, entry->d_name), make, compare);
    closedir(dir);
    cr_expect_geq(n, 25, "only %d cases", n);
}

Test(kernel_text, files) { each_file(outcome, true); }

/* Whatever is cut out or put in: it is parsed, verified, printed and parsed again, or refused with a place. */
static void damage(const char *kernel, Str *out)
{
    static const char put[] = "v9s3a0ijz*/%+-[](){}.:;,=~< \n\x01\xff";
    size_t n = strlen(kernel);
    (void)out;
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

Test(kernel_text, damaged_texts_are_refused_or_mean_something) { each_file(damage, false); }
