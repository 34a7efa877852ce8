/*
 * Bytes as a pack of entries. As they are they are nearly always refused at the header or at the index's checksum; so they also come with those
 * put right, and once more with every field right. What is taken lies where its index says, each entry within the pack and behind the one
 * before, and an index written from it is the one that was read.
 */
#include "target.h"

#include "cache/packfile.h"
#include "ir/base/os.h"

#include <string.h>

enum { RECORD = 64 + 4 * 8, MOST_ENTRIES = 64 };

static void look_into(const Packfile *pack, const uint8_t *bytes, size_t n, Arena *arena)
{
    const uint8_t *behind = bytes + PACK_HEADER_BYTES + (size_t)RECORD * pack->n;
    PackItem *items = ARENA_ARRAY(arena, PackItem, pack->n + 1);
    Bytes index = {0};
    for (uint32_t i = 0; i < pack->n; i++) {
        const void *entry = NULL;
        const PackItem *item = &pack->items[i];
        REQUIRE(entry_name_valid(item->name), "%s", item->name);
        Status status = packfile_entry(pack, i, &entry);
        REQUIRE(status == ST_OK || (status == ST_FORMAT && fail_message()[0]), "%s", status_name(status));
        if (status == ST_OK)
            REQUIRE((const uint8_t *)entry == behind && item->bytes <= (size_t)(bytes + n - behind), "an entry outside its place");
        behind += item->bytes + packfile_gap(item->bytes);
        items[i] = *item;
        items[i].offset = 0;
    }
    REQUIRE(behind == bytes + n, "the end is elsewhere");
    REQUIRE(packfile_index(items, pack->n, &index) == ST_OK, "%s", fail_message());
    REQUIRE(index.n == PACK_HEADER_BYTES + (size_t)RECORD * pack->n && memcmp(index.at, bytes, PACK_HEADER_BYTES) == 0 &&
                memcmp(index.at, bytes, index.n) == 0,
            "written anew it is another index");
    for (uint32_t i = 0; i < pack->n; i++)
        REQUIRE(items[i].offset == pack->items[i].offset, "entry %u is elsewhere when written anew", i);
    os_free(index.at);
}

static bool take(const uint8_t *bytes, size_t n)
{
    Arena arena;
    jmp_buf oom;
    Packfile pack;
    volatile bool taken = false;
    arena_init(&arena, &oom);
    if (setjmp(oom) == 0) {
        uint64_t size;
        Status begins = packfile_begins(bytes, n, &size), status = packfile_parse(bytes, n, &arena, &pack);
        REQUIRE(status == ST_OK || (status == ST_FORMAT && fail_message()[0]), "%s", status_name(status));
        REQUIRE(status != ST_OK || (begins == ST_OK && size == n), "its beginning alone is refused, or says another size");
        if (status == ST_OK)
            look_into(&pack, bytes, n, &arena);
        taken = status == ST_OK;
    }
    arena_free(&arena);
    return taken;
}

/* Of its own, so that a sanitizer sees its end. */
static bool take_copy(const uint8_t *bytes, size_t n)
{
    uint8_t *exact = malloc(n ? n : 1);
    REQUIRE(exact, "memory");
    if (n)
        memcpy(exact, bytes, n);
    bool taken = take(exact, n);
    free(exact);
    return taken;
}

static void put(uint8_t *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

static void put_hash(uint8_t *at, const void *bytes, size_t n)
{
    Hash128 sum = hash128(bytes, n);
    put(at, sum.lo, 8);
    put(at + 8, sum.hi, 8);
}

/* Magic, format, size and the index's checksum; the number of entries as it is, as far as there is room. The number. */
static uint32_t header_right(uint8_t *bytes, size_t n)
{
    uint32_t count = bytes[12], room = (uint32_t)((n - PACK_HEADER_BYTES) / RECORD);
    count = count < room ? count : room;
    count = count < MOST_ENTRIES ? count : MOST_ENTRIES;
    memcpy(bytes, pack_magic, PACK_MAGIC_BYTES);
    put(bytes + 8, 1, 4);
    put(bytes + 12, count, 4);
    put(bytes + 16, n, 8);
    put_hash(bytes + 24, bytes + PACK_HEADER_BYTES, (size_t)RECORD * count);
    return count;
}

/* Names, places, lengths (the low bits of those that are there), gaps and hashes: nothing is left to refuse. The new size. */
static size_t index_right(uint8_t *bytes, size_t n, uint32_t count)
{
    static const char form[] = "00000000000000000000000000000000-00000000-0000000000000000.kiln";
    size_t at = PACK_HEADER_BYTES + (size_t)RECORD * count;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *row = bytes + PACK_HEADER_BYTES + (size_t)RECORD * i;
        size_t length = row[72] | (size_t)row[73] << 8;
        length = length < n - at ? length : (n - at) & ~(size_t)7;
        for (size_t k = 0; k < 64; k++)
            row[k] = k >= sizeof form ? 0 : form[k] == '0' ? (uint8_t) "0123456789abcdef"[row[k] & 15] : (uint8_t)form[k];
        put(row + 64, at, 8);
        put(row + 72, length, 8);
        put_hash(row + 80, bytes + at, length);
        memset(bytes + at + length, 0, packfile_gap(length));
        at += length + packfile_gap(length);
    }
    return at;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    take_copy(bytes, n);
    if (n < PACK_HEADER_BYTES)
        return 0;
    n &= ~(size_t)7;
    uint8_t *copy = malloc(n);
    REQUIRE(copy, "memory");
    memcpy(copy, bytes, n);
    uint32_t count = header_right(copy, n);
    take_copy(copy, n);
    size_t size = index_right(copy, n, count);
    (void)header_right(copy, size);
    REQUIRE(take_copy(copy, size), "a right pack of %u entries is refused: %s", count, fail_message());
    free(copy);
    return 0;
}
