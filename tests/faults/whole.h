#ifndef TESTS_FAULTS_WHOLE_H
#define TESTS_FAULTS_WHOLE_H

#include <stdbool.h>
#include <stddef.h>

/* Is the file an entry of the cache on disk, whole and under its own name? */
bool entry_is_whole(const char *path, const char *name);
/* Lets this process forget all its programs, so that it looks on disk for the next one. No evaluation is under way. */
void forget_programs(void);
/* Lets keys and names of entries use so many bits of their hashes only (0: all). */
void shorten_hashes(int bits);

/* The table of options (jit/options.def): row i; false: there is none. `other` gets a value that is not the default, "" if none is
 * known. */
typedef struct OptionRow {
    const char *name, *kind; /* kind: "bool", "file"... */
    bool keyed;
    char other[32];
} OptionRow;
bool option_row(int i, OptionRow *row);

/*
 * Writes the entry at `path` again as another maker would have: line `line` of the maker's part of its key has another value. Under
 * its right name and, `misfiled`, under the name that it had (checksum and all else right). The line's name; NULL: no such line.
 */
const char *rewrite_maker(const char *path, int line, bool misfiled);
/* Puts the checksum of an entry's bytes right again. */
void mend_checksum(unsigned char *bytes, size_t n);

#endif
