/* Folders of golden texts. */
#ifndef TESTS_UNIT_GOLDEN_H
#define TESTS_UNIT_GOLDEN_H

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>

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
