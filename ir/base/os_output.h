/*
 * Where a command writes a file that a person named. Never does it take away what it did not make:
 *
 *   nothing there yet, or a file that begins with `magic`   made aside, as PATH.tmp, and renamed when it is whole: whole or not at all. A
 *                                                           PATH.tmp that a killed process left is taken over; two at once: the second fails
 *   a symbolic link                                         stays; the file that it leads to is written so. One that leads nowhere: refused
 *   a pipe, a device that takes characters, "-"             written as it comes and left where it is
 *   anything else                                           refused: a file that holds something else, a directory, a socket, a disk, a terminal
 */
#ifndef IR_BASE_OS_OUTPUT_H
#define IR_BASE_OS_OUTPUT_H

#include "ir/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef struct OsOutput {
    FILE *file;
    bool standard;          /* it is standard output, by whatever name */
    char *path, *temporary; /* heap; NULL: written as it comes */
} OsOutput;

bool os_is_standard_output(const char *path); /* "-", /dev/stdout or whatever else leads there */

/* ST_IO, ST_OUT_OF_MEMORY: nothing was changed. */
Status os_output_open(const char *path, const void *magic, size_t magic_bytes, OsOutput *out);
/* Ends it; `keep` false: what was written aside is dropped. ST_IO: it did not get there. */
Status os_output_close(OsOutput *out, bool keep);

#endif
