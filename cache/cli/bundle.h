/* A bundle: entries of the cache in one file, to be shipped with a program. */
#ifndef CACHE_CLI_BUNDLE_H
#define CACHE_CLI_BUNDLE_H

#include "cache/cli/entries.h"

/*
 *     magic   8 bytes, "KILNPACK"
 *     format  u32, 1          count  u32
 *     size    u64, of the whole file
 *     sum     2 x u64, hash of the index
 *     index   of each entry: name (64 bytes, zero-padded), offset, bytes, hash of its bytes (4 x u64)
 *     entries at their offsets, aligned to 8, in the order of the index
 *
 * Little-endian. What is in it is checked twice: by these hashes when it is read, and as an entry before it is published.
 */
typedef struct BundleItem {
    DiskItem item; /* name and bytes */
    uint64_t offset;
    Hash128 sum;
} BundleItem;

typedef struct Bundle {
    FILE *file;
    BundleItem *items;
    uint32_t n;
} Bundle;

/* Writes the index and the entries as they are in the store now; a temporary beside `path` is renamed. ST_IO. */
Status bundle_write(Cli *cli, const Store *store, const DiskItem *const *items, const Hash128 *sums, uint32_t n, const char *path);

/* Opens and checks header, index and lengths. ST_IO, ST_FORMAT. */
Status bundle_open(Cli *cli, const char *path, Bundle *out);
/* One entry's bytes in the arena. ST_IO; ST_FORMAT: the hash differs. */
Status bundle_read(const Bundle *bundle, uint32_t i, Arena *arena, const void **bytes);
void bundle_close(Bundle *bundle);

#endif
