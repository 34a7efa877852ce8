/* Removes a folder with all that is in it. */
#ifndef TESTS_SUPPORT_REMOVE_FOLDER_H
#define TESTS_SUPPORT_REMOVE_FOLDER_H

#include <ftw.h>
#include <stdio.h>

static inline int remove_one(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info, (void)type, (void)where;
    return remove(path);
}

static inline void remove_folder(const char *path) { nftw(path, remove_one, 16, FTW_PHYS | FTW_DEPTH); }

#endif
