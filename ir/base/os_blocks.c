/* See os_blocks.h. */
#include "ir/base/os_blocks.h"
#include "ir/base/os.h"
#include "ir/base/os_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { AT_ONCE = 16 }; /* blocks that one call of the system copies */

static Status cannot_write(const char *path) { return fail(ST_IO, "cannot write %s: %s", path, strerror(errno)); }

/* All of these blocks, in their order, going on after interruptions. A page within the file is written at once or not at all. */
static bool put_at(int file, off_t at, const char *blocks, uint32_t n)
{
    for (size_t done = 0, bytes = (size_t)n * BLOCK_BYTES; done < bytes;) {
        ssize_t wrote = pwrite(file, blocks + done, bytes - done, at + (off_t)done);
        if (wrote < 0 && errno != EINTR)
            return false;
        done += wrote > 0 ? (size_t)wrote : 0;
    }
    return true;
}

static bool get_at(int file, off_t at, char *blocks, uint32_t n)
{
    for (size_t done = 0, bytes = (size_t)n * BLOCK_BYTES; done < bytes;) {
        ssize_t got = pread(file, blocks + done, bytes - done, at + (off_t)done);
        if (got == 0)
            errno = EIO;
        if (got == 0 || (got < 0 && errno != EINTR))
            return false;
        done += got > 0 ? (size_t)got : 0;
    }
    return true;
}

static off_t place(uint32_t i) { return ((off_t)i + 1) * BLOCK_BYTES; }

static uint32_t at_most(uint32_t n) { return n < AT_ONCE ? n : AT_ONCE; }

/* Head, the first `kept` blocks of `from`, blank ones, tail. `room` has AT_ONCE blocks. */
static bool fill(int to, int from, const char *head, uint32_t kept, uint32_t n, const char *tail, char *room)
{
    bool ok = put_at(to, 0, head, 1);
    for (uint32_t i = 0; ok && i < kept; i += AT_ONCE)
        ok = get_at(from, place(i), room, at_most(kept - i)) && put_at(to, place(i), room, at_most(kept - i));
    memset(room, ' ', (size_t)AT_ONCE * BLOCK_BYTES);
    for (uint32_t i = 0; i < AT_ONCE; i++)
        room[(i + 1) * BLOCK_BYTES - 1] = '\n';
    for (uint32_t i = kept; ok && i < n; i += AT_ONCE)
        ok = put_at(to, place(i), room, at_most(n - i));
    return ok && put_at(to, place(n), tail, 1);
}

/* Makes the file aside and renames it; -1: failure, and errno. */
static int make(const char *path, int from, const char *head, uint32_t kept, uint32_t n, const char *tail)
{
    size_t bytes = strlen(path) + 32, blocks = (size_t)AT_ONCE * BLOCK_BYTES;
    char *room = os_alloc(blocks + bytes), *aside = room + blocks;
    if (!room) {
        errno = ENOMEM;
        return -1;
    }
    snprintf(aside, bytes, "%s.%ld.tmp", path, (long)getpid());
    OsWriting writing;
    os_writing_begin(&writing);
    int file = os_open(AT_FDCWD, aside, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
    bool ok = file >= 0 && fill(file, from, head, kept, n, tail, room) && rename(aside, path) == 0;
    int cause = errno;
    if (file >= 0 && !ok) {
        unlink(aside);
        close(file);
    }
    os_writing_end(&writing);
    os_free(room);
    errno = cause;
    return ok ? file : -1;
}

/* The file that a path means, for which another one may be put in its place: heap. */
static Status resolve(const char *path, const char *head, size_t magic_bytes, char **out)
{
    struct stat info;
    char begins[BLOCK_BYTES];
    *out = NULL;
    if (stat(path, &info) != 0) {
        if (errno != ENOENT || lstat(path, &info) == 0) /* a link that leads nowhere stays */
            return cannot_write(path);
        *out = os_copy(path, strlen(path) + 1);
        return *out ? ST_OK : fail(ST_OUT_OF_MEMORY, "out of memory");
    }
    if (!S_ISREG(info.st_mode))
        return fail(ST_IO, "cannot write %s: it is no regular file", path);
    int file = os_open(AT_FDCWD, path, O_RDONLY | O_NONBLOCK, 0);
    if (file < 0)
        return cannot_write(path);
    ssize_t got = pread(file, begins, magic_bytes, 0);
    close(file);
    if (got != 0 && (got != (ssize_t)magic_bytes || memcmp(begins, head, magic_bytes) != 0))
        return fail(ST_IO, "%s is there and holds something else: remove it, or name another file", path);
    char *real = realpath(path, NULL);
    if (!real)
        return cannot_write(path);
    *out = os_copy(real, strlen(real) + 1);
    free(real);
    return *out ? ST_OK : fail(ST_OUT_OF_MEMORY, "out of memory");
}

Status os_blocks_open(const char *path, const char *head, size_t magic_bytes, const char *tail, uint32_t n, OsBlocks *out)
{
    *out = (OsBlocks){0};
    TRY(resolve(path, head, magic_bytes, &out->path));
    out->n = n;
    int file = make(out->path, -1, head, 0, n, tail);
    if (file >= 0) {
        out->file = file;
        return ST_OK;
    }
    Status status = cannot_write(out->path);
    os_blocks_close(out);
    return status;
}

bool os_blocks_put(const OsBlocks *blocks, uint32_t first, const char *data, uint32_t n)
{
    return put_at(blocks->file, place(first), data, n);
}

Status os_blocks_resize(OsBlocks *blocks, uint32_t kept, uint32_t n, const char *tail)
{
    char head[BLOCK_BYTES];
    int file = get_at(blocks->file, 0, head, 1) ? make(blocks->path, blocks->file, head, kept, n, tail) : -1;
    if (file < 0)
        return cannot_write(blocks->path);
    close(blocks->file);
    blocks->file = file;
    blocks->n = n;
    return ST_OK;
}

void os_blocks_close(OsBlocks *blocks)
{
    if (blocks->file)
        close(blocks->file);
    os_free(blocks->path);
    *blocks = (OsBlocks){0};
}
