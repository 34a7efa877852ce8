/*
 * How kiln opens and writes files, so that neither does harm to the rest of the process:
 *
 *   descriptors 0 to 2   belong to the program, even where it has closed them: what it prints there must never land in a file of kiln's.
 *                        So nothing of kiln's is ever opened there
 *   SIGXFSZ              a write beyond the process's limit (RLIMIT_FSIZE) fails with EFBIG, and the signal is not delivered
 */
#ifndef IR_BASE_OS_FD_H
#define IR_BASE_OS_FD_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* openat with O_CLOEXEC; `dir` as it takes it. The descriptor is at least 3; -1: errno says why. */
int os_open(int dir, const char *path, int flags, unsigned mode);
/* fopen likewise. */
FILE *os_open_stream(const char *path, const char *mode);

/* While they are held nothing that is opened gets a descriptor below 3: those that are closed are taken, by what can neither be read nor
 * written. For what opens files of its own. */
typedef struct OsLow {
    int n, taken[3];
} OsLow;
void os_low_hold(OsLow *low);
void os_low_release(const OsLow *low); /* errno stays */

/* Around writes to a file: in between this thread gets no SIGXFSZ. */
typedef struct OsWriting {
    sigset_t mask;
    bool pending; /* it was before */
} OsWriting;
void os_writing_begin(OsWriting *writing);
void os_writing_end(const OsWriting *writing); /* errno stays */

/* Writes all bytes, going on after interruptions and short writes. */
bool os_write_all(int file, const void *data, size_t n);

#endif
