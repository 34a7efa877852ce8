/*
 * Folders of golden texts: NAME.txt is an input, a line "----", and what the code makes of it. KILN_GOLDEN=update writes what came out instead
 * of comparing.
 */
#ifndef TESTS_UNIT_GOLDEN_H
#define TESTS_UNIT_GOLDEN_H

#include "ir/base/os.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>

enum { GOLDEN_MOST = 1 << 20 };

/* Reads the file into `text`, of GOLDEN_MOST bytes, which becomes the input alone; returns what is wanted of it, NULL: nothing. (Not inlined: some
 * callers use setjmp.) */
static __attribute__((noinline)) char *golden_read(const char *path, char *text)
{
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file, "%s", path);
    text[fread(text, 1, GOLDEN_MOST - 1, file)] = 0;
    fclose(file);
    char *split = strstr(text, "----\n");
    if (!split)
        return NULL;
    *split = 0;
    return split + 5;
}

static void golden_compare(const char *path, const char *text, const char *wanted, const char *got)
{
    const char *mode = os_getenv("KILN_GOLDEN");
    if (mode && !strcmp(mode, "update")) {
        FILE *file = fopen(path, "w");
        cr_assert_not_null(file);
        fprintf(file, "%s----\n%s", text, got);
        fclose(file);
    } else {
        cr_expect(wanted && !strcmp(wanted, got), "%s: got\n%s\nwanted\n%s", path, got, wanted ? wanted : "nothing");
    }
}

/* Checks each NAME.txt of a folder of the sources, of which there are `least` or more. */
static void golden_folder(const char *folder, void (*check)(const char *path), int least)
{
    DIR *dir = opendir(folder);
    cr_assert_not_null(dir, "%s", folder);
    int n = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        size_t len = strlen(entry->d_name);
        char path[1024];
        if (len < 5 || strcmp(entry->d_name + len - 4, ".txt") != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        check(path);
        n++;
    }
    closedir(dir);
    cr_expect_geq(n, least, "only %d golden files", n);
}

#endif
