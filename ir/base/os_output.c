/* See os_output.h. */
#include "ir/base/os_output.h"
#include "ir/base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAGIC_MAX = 16, TRIES = 100 };

static bool same_file(const struct stat *a, const struct stat *b) { return a->st_dev == b->st_dev && a->st_ino == b->st_ino; }

static Status cannot_write(const char *path) { return fail(ST_IO, "cannot write %s: %s", path, strerror(errno)); }

/* How much of the magic the file has: all of it or, `part`, its beginning up to the file's end. An empty file has none to be wrong. */
static bool begins_well(int file, const void *magic, size_t n, bool part)
{
    char bytes[MAGIC_MAX];
    ssize_t got = pread(file, bytes, n, 0);
    return got >= 0 && (got == 0 || part || (size_t)got == n) && memcmp(bytes, magic, (size_t)got) == 0;
}

static Status in_place(FILE *file, const char *path, OsOutput *out)
{
    if (!file)
        return cannot_write(path);
    out->standard = file == stdout;
    if (isatty(fileno(file)) == 1) {
        if (!out->standard)
            fclose(file);
        return fail(ST_IO, "%s is a terminal: name a file or a pipe", strcmp(path, "-") == 0 ? "standard output" : path);
    }
    out->file = file;
    return ST_OK;
}

/* The file made aside, locked, empty; -1: failure. errno 0: it was renamed or removed between opening and locking. */
static int open_aside(const char *path, const void *magic, size_t magic_bytes, Status *status)
{
    struct stat info, now;
    int file = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, 0666);
    *status = ST_OK;
    if (file < 0 || fstat(file, &info) != 0) {
        *status = cannot_write(path);
    } else if (flock(file, LOCK_EX | LOCK_NB) != 0 &&
               errno == EWOULDBLOCK) { /* where there are no locks nobody can be told from a killed one */
        *status = fail(ST_IO, "another command writes %s now", path);
    } else if (lstat(path, &now) != 0 || !same_file(&info, &now)) {
        close(file);
        return -1;
    } else if (!S_ISREG(info.st_mode) || info.st_uid != geteuid() || info.st_nlink != 1 || !begins_well(file, magic, magic_bytes, true)) {
        *status = fail(ST_IO, "%s is in the way, and kiln did not leave it there: remove it, or name another file", path);
    } else if (ftruncate(file, 0) != 0) {
        *status = cannot_write(path);
    }
    if (*status == ST_OK)
        return file;
    if (file >= 0)
        close(file);
    return -1;
}

/* `path` is resolved; `old`: the file that is there, or NULL. */
static Status aside(const char *path, const struct stat *old, const void *magic, size_t magic_bytes, OsOutput *out)
{
    size_t n = strlen(path);
    out->path = os_copy(path, n + 1);
    out->temporary = os_alloc(n + sizeof ".tmp");
    if (!out->path || !out->temporary)
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    snprintf(out->temporary, n + sizeof ".tmp", "%s.tmp", path);
    Status status = ST_OK;
    int file = -1;
    for (int i = 0; i < TRIES && file < 0 && status == ST_OK; i++)
        file = open_aside(out->temporary, magic, magic_bytes, &status);
    if (file < 0)
        return status == ST_OK ? fail(ST_IO, "other commands write %s again and again", out->temporary) : status;
    if (old)
        (void)fchmod(file, old->st_mode & 0777);
    out->file = fdopen(file, "wb");
    if (out->file)
        return ST_OK;
    status = cannot_write(out->temporary);
    unlink(out->temporary);
    close(file);
    return status;
}

static Status replace(const char *path, const struct stat *info, const void *magic, size_t magic_bytes, OsOutput *out)
{
    int file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (file < 0)
        return cannot_write(path);
    bool own = begins_well(file, magic, magic_bytes, false);
    close(file);
    if (!own)
        return fail(ST_IO, "%s is there and holds something else: remove it, or name another file", path);
    char *real = realpath(path, NULL);
    if (!real)
        return cannot_write(path);
    Status status = aside(real, info, magic, magic_bytes, out);
    free(real);
    return status;
}

static const char *kind_of(mode_t mode)
{
    return S_ISDIR(mode) ? "a directory" : S_ISSOCK(mode) ? "a socket" : S_ISBLK(mode) ? "a disk" : "no file";
}

bool os_is_standard_output(const char *path)
{
    struct stat info, standard;
    return strcmp(path, "-") == 0 || (stat(path, &info) == 0 && fstat(STDOUT_FILENO, &standard) == 0 && same_file(&info, &standard));
}

static Status open_any(const char *path, const void *magic, size_t magic_bytes, OsOutput *out)
{
    struct stat info;
    if (os_is_standard_output(path))
        return in_place(stdout, path, out);
    if (stat(path, &info) != 0) {
        if (errno != ENOENT)
            return cannot_write(path);
        if (lstat(path, &info) == 0)
            return fail(ST_IO, "%s is a symbolic link that leads nowhere: remove it, or name the file itself", path);
        return aside(path, NULL, magic, magic_bytes, out);
    }
    if (S_ISREG(info.st_mode))
        return replace(path, &info, magic, magic_bytes, out);
    if (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode)) {
        int file = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
        return in_place(file < 0 ? NULL : fdopen(file, "wb"), path, out);
    }
    return fail(ST_IO, "%s is %s: name a file or a pipe", path, kind_of(info.st_mode));
}

static void forget(OsOutput *out)
{
    os_free(out->path);
    os_free(out->temporary);
    *out = (OsOutput){0};
}

Status os_output_open(const char *path, const void *magic, size_t magic_bytes, OsOutput *out)
{
    *out = (OsOutput){0};
    if (magic_bytes > MAGIC_MAX)
        return fail(ST_INTERNAL, "a magic of %zu bytes", magic_bytes);
    Status status = open_any(path, magic, magic_bytes, out);
    if (status != ST_OK)
        forget(out);
    return status;
}

/* To the disk, and under its name; the lock is held meanwhile. What appeared there and is no file stays. */
static Status publish(const OsOutput *out)
{
    struct stat info;
    if (fsync(fileno(out->file)) != 0 && errno != EINVAL && errno != ENOSYS)
        return cannot_write(out->path);
    if (lstat(out->path, &info) == 0 && !S_ISREG(info.st_mode))
        return fail(ST_IO, "%s was replaced by something that is no file", out->path);
    return rename(out->temporary, out->path) == 0 ? ST_OK : cannot_write(out->path);
}

Status os_output_close(OsOutput *out, bool keep)
{
    Status status = ST_OK;
    if (fflush(out->file) != 0 && keep)
        status = out->path ? cannot_write(out->path) : fail(ST_IO, "cannot write the output: %s", strerror(errno));
    if (out->temporary && keep && status == ST_OK)
        status = publish(out);
    if (out->temporary && (!keep || status != ST_OK))
        unlink(out->temporary); /* ours by the lock */
    if (!out->standard && fclose(out->file) != 0 && keep && status == ST_OK)
        status = fail(ST_IO, "cannot write the output: %s", strerror(errno));
    forget(out);
    return status;
}
