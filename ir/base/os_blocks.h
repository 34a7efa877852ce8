/*
 * A file made of blocks of BLOCK_BYTES that is whole whenever the process ends, by whatever death: each block lies on a page of its own,
 * and the system copies a page at once. It never is longer or shorter for a moment, either: one of another length is made aside, as
 * PATH.PID.tmp, and renamed.
 *
 *     | head | block 0 | block 1 | ... | block n - 1 | tail |
 *
 * What stands between head and tail is the caller's; blocks that were not put yet are blank (spaces).
 */
#ifndef IR_BASE_OS_BLOCKS_H
#define IR_BASE_OS_BLOCKS_H

#include "ir/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BLOCK_BYTES = 4096 };

typedef struct OsBlocks {
    int file; /* 0: none is open */
    uint32_t n;
    char *path; /* heap */
} OsBlocks;

/* Makes it, with n blank blocks. A symbolic link stays, and leads to the file. ST_IO, and nothing was changed: it cannot be made, or what
 * lies there is no file that begins as `head` does (up to `magic_bytes`). */
Status os_blocks_open(const char *path, const char *head, size_t magic_bytes, const char *tail, uint32_t n, OsBlocks *out);
/* Writes n blocks from `first` on, in their order, or the tail (first == blocks->n, n == 1). false: errno tells why. */
bool os_blocks_put(const OsBlocks *blocks, uint32_t first, const char *data, uint32_t n);
/* The same file with `kept` of its blocks and n - kept blank ones. ST_IO: it is as it was. */
Status os_blocks_resize(OsBlocks *blocks, uint32_t kept, uint32_t n, const char *tail);
void os_blocks_close(OsBlocks *blocks);

#endif
