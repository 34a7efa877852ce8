/*
 * A pack: entries of the cache in one file, to be shipped with a program. As bytes: `kiln cache export` and `import` (cache/cli/) write and
 * read them.
 *
 *     magic   8 bytes, "KILNPACK"
 *     format  u32, 1          count  u32
 *     size    u64, of the whole file
 *     sum     2 x u64, hash of the index
 *     index   of each entry: name (64 bytes, zero-padded), offset, bytes, hash of its bytes (4 x u64)
 *     entries at their offsets, aligned to 8 with zeros between, in the order of the index
 *
 * Little-endian. The hashes are against accidents: whoever makes a pack makes right ones, and what is in it is code. What a pack is taken
 * for is decided by a digest that its maker gave (--sha256) or by a person.
 */
#ifndef CACHE_PACKFILE_H
#define CACHE_PACKFILE_H

#include "cache/entry.h"
#include "ir/base/bytes.h"
#include "ir/base/hash.h"

enum { PACK_MAGIC_BYTES = 8, PACK_HEADER_BYTES = PACK_MAGIC_BYTES + 4 + 4 + 8 + 16 };
extern const char pack_magic[PACK_MAGIC_BYTES];

typedef struct PackItem {
    char name[ENTRY_NAME_BYTES];
    size_t bytes;
    Hash128 sum;
    uint64_t offset;
} PackItem;

typedef struct Packfile {
    const uint8_t *bytes; /* all of it; borrowed */
    PackItem *items;      /* in the arena */
    uint32_t n;
} Packfile;

/* Header and index of a pack of these items (name, bytes, sum), whose offsets are filled in; heap, os_free. ST_OUT_OF_MEMORY. */
Status packfile_index(PackItem *items, uint32_t n, Bytes *out);
/* How many zeros follow an entry of so many bytes. */
size_t packfile_gap(size_t bytes);

/* Does a file that begins so claim to be a pack? *size: how long it says that it is. ST_FORMAT. */
Status packfile_begins(const void *bytes, size_t n, uint64_t *size);
/* Checks header, index, and that every byte is where the index says; the entries themselves wait for packfile_entry. ST_FORMAT says what is
 * wrong. When memory runs out the arena jumps. */
Status packfile_parse(const void *bytes, size_t n, Arena *arena, Packfile *out);
/* One entry's bytes, in place. ST_FORMAT: its hash differs. */
Status packfile_entry(const Packfile *pack, uint32_t i, const void **bytes);

#endif
