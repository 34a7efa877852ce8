/* Packs as bytes: see packfile.h for the layout. Nothing here does I/O. */
#include "cache/packfile.h"
#include "ir/base/os.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { NAME = 64, RECORD = NAME + 4 * 8, FORMAT = 1, MOST = 1 << 24 };
const char pack_magic[PACK_MAGIC_BYTES] = {'K', 'I', 'L', 'N', 'P', 'A', 'C', 'K'};

_Static_assert((int)ENTRY_NAME_BYTES <= (int)NAME, "a name fits its field");

static uint64_t aligned(uint64_t n) { return (n + 7) & ~(uint64_t)7; }

size_t packfile_gap(size_t bytes) { return (size_t)(aligned(bytes) - bytes); }

/* ---- writing ---- */

Status packfile_index(PackItem *items, uint32_t n, Bytes *out)
{
    Bytes index = {0};
    uint64_t at = PACK_HEADER_BYTES + (uint64_t)RECORD * n;
    for (uint32_t i = 0; i < n; i++) {
        char name[NAME] = {0};
        snprintf(name, sizeof name, "%s", items[i].name);
        items[i].offset = at;
        bytes_add(&index, name, sizeof name);
        bytes_u64(&index, at);
        bytes_u64(&index, items[i].bytes);
        bytes_u64(&index, items[i].sum.lo);
        bytes_u64(&index, items[i].sum.hi);
        at += aligned(items[i].bytes);
    }
    Hash128 sum = hash128(index.at, index.n);
    bytes_add(out, pack_magic, sizeof pack_magic);
    bytes_u32(out, FORMAT);
    bytes_u32(out, n);
    bytes_u64(out, at);
    bytes_u64(out, sum.lo);
    bytes_u64(out, sum.hi);
    bytes_add(out, index.at, index.n);
    bool failed = index.failed || out->failed;
    os_free(index.at);
    return failed ? fail(ST_OUT_OF_MEMORY, "out of memory") : ST_OK;
}

/* ---- reading ---- */

typedef struct Header {
    uint32_t n;
    uint64_t size;
    Hash128 sum;
} Header;

static Status read_header(const void *bytes, size_t n, Header *out)
{
    ByteReader in = {bytes, (const uint8_t *)bytes + n, false};
    const void *magic = read_bytes(&in, sizeof pack_magic);
    if (!magic || n < PACK_HEADER_BYTES || memcmp(magic, pack_magic, sizeof pack_magic) != 0)
        return fail(ST_FORMAT, "no pack of a kiln cache");
    uint32_t format = read_u32(&in);
    if (format != FORMAT)
        return fail(ST_FORMAT, "a pack of format %" PRIu32 ", this command reads %d", format, FORMAT);
    out->n = read_u32(&in);
    out->size = read_u64(&in);
    out->sum.lo = read_u64(&in);
    out->sum.hi = read_u64(&in);
    return ST_OK;
}

Status packfile_begins(const void *bytes, size_t n, uint64_t *size)
{
    Header header;
    TRY(read_header(bytes, n, &header));
    *size = header.size;
    return ST_OK;
}

static bool zeros(const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i])
            return false;
    return true;
}

/* Every field of the index, against the size of the file. */
static Status read_items(ByteReader *in, uint64_t size, Packfile *out)
{
    uint64_t at = PACK_HEADER_BYTES + (uint64_t)RECORD * out->n;
    for (uint32_t i = 0; i < out->n; i++) {
        PackItem *item = &out->items[i];
        const char *name = read_bytes(in, NAME);
        item->offset = read_u64(in);
        uint64_t bytes = read_u64(in);
        item->sum.lo = read_u64(in);
        item->sum.hi = read_u64(in);
        if (!memchr(name, 0, ENTRY_NAME_BYTES) || !entry_name_valid(name))
            return fail(ST_FORMAT, "entry %" PRIu32 " has a name that no entry has", i);
        snprintf(item->name, sizeof item->name, "%s", name);
        item->bytes = (size_t)bytes;
        if (item->offset != at || bytes > ENTRY_MAX_BYTES || aligned(bytes) > size - at)
            return fail(ST_FORMAT, "entry %" PRIu32 " lies outside the file", i);
        at += aligned(bytes);
        if (!zeros(out->bytes + item->offset + bytes, packfile_gap(item->bytes)))
            return fail(ST_FORMAT, "there is something behind entry %" PRIu32, i);
    }
    return at == size ? ST_OK : fail(ST_FORMAT, "it is longer than its index says");
}

Status packfile_parse(const void *bytes, size_t n, Arena *arena, Packfile *out)
{
    Header header;
    *out = (Packfile){.bytes = bytes};
    TRY(read_header(bytes, n, &header));
    if (header.size != n)
        return fail(ST_FORMAT, header.size > n ? "truncated: %zu of %" PRIu64 " bytes" : "%zu bytes where %" PRIu64 " belong", n,
                    header.size);
    if (header.n > MOST || (uint64_t)RECORD * header.n > n - PACK_HEADER_BYTES)
        return fail(ST_FORMAT, "its index lies outside the file");
    size_t index_bytes = (size_t)RECORD * header.n;
    ByteReader in = {out->bytes + PACK_HEADER_BYTES, out->bytes + PACK_HEADER_BYTES + index_bytes, false};
    Hash128 now = hash128(in.at, index_bytes);
    if (now.lo != header.sum.lo || now.hi != header.sum.hi)
        return fail(ST_FORMAT, "its index is damaged: the checksum differs");
    out->n = header.n;
    out->items = ARENA_ARRAY(arena, PackItem, header.n);
    return read_items(&in, n, out);
}

Status packfile_entry(const Packfile *pack, uint32_t i, const void **bytes)
{
    const PackItem *item = &pack->items[i];
    const uint8_t *at = pack->bytes + item->offset;
    Hash128 now = hash128(at, item->bytes);
    if (now.lo != item->sum.lo || now.hi != item->sum.hi)
        return fail(ST_FORMAT, "damaged in the pack: the checksum differs");
    *bytes = at;
    return ST_OK;
}
