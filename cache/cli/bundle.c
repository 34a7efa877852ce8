/* Bundles as files: see bundle.h for the layout. */
#include "cache/cli/bundle.h"
#include "ir/base/bytes.h"
#include "ir/base/os.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { HEADER = 8 + 4 + 4 + 8 + 16, NAME = 64, RECORD = NAME + 4 * 8, FORMAT = 1, MOST = 1 << 24 };
static const char magic[8] = {'K', 'I', 'L', 'N', 'P', 'A', 'C', 'K'};

_Static_assert((int)ENTRY_NAME_BYTES <= (int)NAME, "a name fits its field");

static uint64_t aligned(uint64_t n) { return (n + 7) & ~(uint64_t)7; }

/* ---- writing ---- */

/* Header and index; the heap, os_free. */
static Status make_index(const DiskItem *const *items, const Hash128 *sums, uint32_t n, Bytes *out)
{
    Bytes index = {0};
    uint64_t at = HEADER + (uint64_t)RECORD * n;
    for (uint32_t i = 0; i < n; i++) {
        char name[NAME] = {0};
        snprintf(name, sizeof name, "%s", items[i]->name);
        bytes_add(&index, name, sizeof name);
        bytes_u64(&index, at);
        bytes_u64(&index, items[i]->bytes);
        bytes_u64(&index, sums[i].lo);
        bytes_u64(&index, sums[i].hi);
        at += aligned(items[i]->bytes);
    }
    Hash128 sum = hash128(index.at, index.n);
    bytes_add(out, magic, sizeof magic);
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

static Status put(FILE *file, const void *bytes, size_t n, const char *path)
{
    return fwrite(bytes, 1, n, file) == n ? ST_OK : fail(ST_IO, "cannot write %s: %s", path, strerror(errno));
}

static Status put_entry(Cli *cli, const Store *store, const DiskItem *item, Hash128 sum, FILE *file, const char *path)
{
    static const char zeros[8];
    const void *bytes = NULL;
    size_t n = 0;
    Arena arena;
    arena_init(&arena, cli->arena->oom);
    Status status = disk_read(store->disk, item->name, &arena, &bytes, &n);
    Hash128 now = bytes ? hash128(bytes, n) : (Hash128){0};
    if (status == ST_OK && (!bytes || n != item->bytes || now.lo != sum.lo || now.hi != sum.hi))
        status = fail(ST_IO, "%s changed while it was exported; try again", item->name);
    if (status == ST_OK)
        status = put(file, bytes, n, path);
    if (status == ST_OK)
        status = put(file, zeros, (size_t)(aligned(n) - n), path);
    arena_free(&arena);
    return status;
}

static Status put_all(Cli *cli, const Store *store, const DiskItem *const *items, const Hash128 *sums, uint32_t n, FILE *file,
                      const char *path)
{
    Bytes index = {0};
    Status status = make_index(items, sums, n, &index);
    if (status == ST_OK)
        status = put(file, index.at, index.n, path);
    os_free(index.at);
    for (uint32_t i = 0; i < n && status == ST_OK; i++)
        status = put_entry(cli, store, items[i], sums[i], file, path);
    return status;
}

Status bundle_write(Cli *cli, const Store *store, const DiskItem *const *items, const Hash128 *sums, uint32_t n, const char *path)
{
    const char *temporary = arena_printf(cli->arena, "%s.tmp", path);
    FILE *file = fopen(temporary, "wbx");
    if (!file && errno == EEXIST) /* whose it is cannot be told: it stays */
        return fail(ST_IO,
                    "%s is there already: another export writes it now, or one was killed; if none "
                    "is under way, remove it",
                    temporary);
    if (!file)
        return fail(ST_IO, "cannot write %s: %s", temporary, strerror(errno));
    Status status = put_all(cli, store, items, sums, n, file, path);
    if (fclose(file) != 0 && status == ST_OK)
        status = fail(ST_IO, "cannot write %s: %s", path, strerror(errno));
    if (status == ST_OK && rename(temporary, path) != 0)
        status = fail(ST_IO, "cannot rename %s: %s", temporary, strerror(errno));
    if (status != ST_OK)
        remove(temporary);
    return status;
}

/* ---- reading ---- */

static Status read_at(FILE *file, uint64_t offset, void *out, size_t n)
{
    if (fseek(file, (long)offset, SEEK_SET) != 0)
        return fail(ST_IO, "%s", strerror(errno));
    errno = 0;
    if (fread(out, 1, n, file) == n)
        return ST_OK;
    return ferror(file) ? fail(ST_IO, "%s", strerror(errno)) : fail(ST_FORMAT, "truncated");
}

/* Every field of the index, against the size of the file. */
static Status check_index(const uint8_t *index, uint64_t size, Bundle *out)
{
    ByteReader in = {index, index + (size_t)RECORD * out->n, false};
    uint64_t at = HEADER + (uint64_t)RECORD * out->n;
    for (uint32_t i = 0; i < out->n; i++) {
        BundleItem *item = &out->items[i];
        const char *name = read_bytes(&in, NAME);
        item->offset = read_u64(&in);
        uint64_t bytes = read_u64(&in);
        item->sum.lo = read_u64(&in);
        item->sum.hi = read_u64(&in);
        item->item.bytes = (size_t)bytes;
        if (!memchr(name, 0, ENTRY_NAME_BYTES) || !entry_name_valid(name))
            return fail(ST_FORMAT, "entry %" PRIu32 " has a name that no entry has", i);
        snprintf(item->item.name, sizeof item->item.name, "%s", name);
        if (item->offset != at || bytes > ENTRY_MAX_BYTES || bytes > size - at)
            return fail(ST_FORMAT, "entry %" PRIu32 " lies outside the file", i);
        at += aligned(bytes);
        if (at > size)
            return fail(ST_FORMAT, "entry %" PRIu32 " lies outside the file", i);
    }
    return at == size ? ST_OK : fail(ST_FORMAT, "it is longer than its index says");
}

static Status read_index(Cli *cli, FILE *file, uint64_t size, Bundle *out)
{
    uint8_t header[HEADER];
    ByteReader in = {header, header + HEADER, false};
    TRY(read_at(file, 0, header, size < HEADER ? (size_t)size : HEADER));
    if (size < HEADER || memcmp(read_bytes(&in, sizeof magic), magic, sizeof magic) != 0)
        return fail(ST_FORMAT, "no bundle of a kiln cache");
    uint32_t format = read_u32(&in);
    if (format != FORMAT)
        return fail(ST_FORMAT, "a bundle of format %" PRIu32 ", this command reads %d", format, FORMAT);
    out->n = read_u32(&in);
    uint64_t said = read_u64(&in);
    Hash128 sum = {.lo = read_u64(&in)};
    sum.hi = read_u64(&in);
    if (said != size)
        return fail(ST_FORMAT, "truncated: %" PRIu64 " of %" PRIu64 " bytes", size, said);
    if (out->n > MOST || (uint64_t)RECORD * out->n > size - HEADER)
        return fail(ST_FORMAT, "its index lies outside the file");
    size_t n = (size_t)RECORD * out->n;
    uint8_t *index = arena_alloc(cli->arena, n);
    out->items = ARENA_ARRAY(cli->arena, BundleItem, out->n);
    TRY(read_at(file, HEADER, index, n));
    Hash128 now = hash128(index, n);
    if (now.lo != sum.lo || now.hi != sum.hi)
        return fail(ST_FORMAT, "its index is damaged: the checksum differs");
    return check_index(index, size, out);
}

Status bundle_open(Cli *cli, const char *path, Bundle *out)
{
    *out = (Bundle){.file = fopen(path, "rb")};
    if (!out->file)
        return fail(ST_IO, "cannot read %s: %s", path, strerror(errno));
    long size = fseek(out->file, 0, SEEK_END) == 0 ? ftell(out->file) : -1;
    Status status = size < 0 ? fail(ST_IO, "%s", strerror(errno)) : read_index(cli, out->file, (uint64_t)size, out);
    if (status == ST_OK)
        return ST_OK;
    bundle_close(out);
    const char *cause = arena_strdup(cli->arena, fail_message());
    return fail(status, "cannot read %s: %s", path, cause);
}

Status bundle_read(const Bundle *bundle, uint32_t i, Arena *arena, const void **bytes)
{
    const BundleItem *item = &bundle->items[i];
    void *copy = arena_alloc(arena, item->item.bytes);
    TRY(read_at(bundle->file, item->offset, copy, item->item.bytes));
    Hash128 now = hash128(copy, item->item.bytes);
    if (now.lo != item->sum.lo || now.hi != item->sum.hi)
        return fail(ST_FORMAT, "damaged in the bundle: the checksum differs");
    *bytes = copy;
    return ST_OK;
}

void bundle_close(Bundle *bundle)
{
    if (bundle->file)
        fclose(bundle->file);
    bundle->file = NULL;
}
