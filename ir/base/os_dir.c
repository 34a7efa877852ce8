/*
 * Files of one directory. See os_dir.h. Thin wrappers; every system call that can fail for a reason of its own asks os_io_fails.
 */
#include "ir/base/os_dir.h"
#include "ir/base/os.h"
#include "ir/base/os_fd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* --- faults ------------------------------------------------------------------------------------------------------------ */

static atomic_int_least64_t fail_after, n_calls; /* > 0: so many calls until one fails */
static atomic_int fail_error;
static atomic_bool fail_sticky, fail_always;

void os_fail_io(int64_t nth, int err, bool sticky)
{
    atomic_store(&fail_always, false);
    atomic_store(&fail_sticky, sticky);
    atomic_store(&fail_error, err);
    atomic_store(&fail_after, nth > 0 ? nth : 0);
}

bool os_fail_io_text(const char *text)
{
    static const struct {
        const char *name;
        int err;
    } names[] = {{"ENOSPC", ENOSPC}, {"EIO", EIO},       {"EDQUOT", EDQUOT}, {"EACCES", EACCES}, {"EROFS", EROFS}, {"EPERM", EPERM},
                 {"EMFILE", EMFILE}, {"ENOMEM", ENOMEM}, {"ENOENT", ENOENT}, {"ESTALE", ESTALE}, {"kill", -1}};
    char *end;
    long long nth = strtoll(text, &end, 10);
    if (end == text || *end != ':' || nth < 1)
        return false;
    const char *name = end + 1, *colon = strchr(name, ':');
    size_t n = colon ? (size_t)(colon - name) : strlen(name);
    if (colon && strcmp(colon, ":sticky") != 0)
        return false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i].name) == n && memcmp(names[i].name, name, n) == 0) {
            os_fail_io(nth, names[i].err, colon != NULL);
            return true;
        }
    return false;
}

int64_t os_io_calls(void) { return atomic_load(&n_calls); }

bool os_io_fails(void)
{
    atomic_fetch_add_explicit(&n_calls, 1, memory_order_relaxed);
    if (!atomic_load_explicit(&fail_always, memory_order_relaxed)) {
        if (atomic_load_explicit(&fail_after, memory_order_relaxed) <= 0 || atomic_fetch_sub(&fail_after, 1) != 1)
            return false;
        if (atomic_load(&fail_error) < 0)
            raise(SIGKILL);
        if (atomic_load(&fail_sticky))
            atomic_store(&fail_always, true);
    }
    errno = atomic_load(&fail_error);
    return true;
}

/* --- directories --------------------------------------------------------------------------------------------------------- */

static int base(int dir) { return dir < 0 ? AT_FDCWD : dir; }

int os_dir_open(int dir, const char *path) { return os_io_fails() ? -1 : os_open(base(dir), path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0); }

static void close_keeping_errno(int file)
{
    int cause = errno;
    if (file >= 0)
        close(file);
    errno = cause;
}

void os_dir_close(int dir) { close_keeping_errno(dir); }

static bool make_one(int dir, const char *path) { return !os_io_fails() && (mkdirat(base(dir), path, 0700) == 0 || errno == EEXIST); }

bool os_dir_make(int dir, const char *path, bool parents)
{
    size_t n = strlen(path);
    char *copy = os_copy(path, n + 1);
    if (!copy) {
        errno = ENOMEM;
        return false;
    }
    bool ok = true;
    for (size_t i = 1; parents && ok && i < n; i++)
        if (copy[i] == '/') {
            copy[i] = '\0';
            struct stat info; /* a parent that is there need not be one that could be made */
            ok = fstatat(base(dir), copy, &info, 0) == 0 || make_one(dir, copy);
            copy[i] = '/';
        }
    ok = ok && make_one(dir, copy);
    int cause = errno;
    os_free(copy);
    errno = cause;
    return ok;
}

static void fill(const struct stat *from, OsFileInfo *info)
{
    *info = (OsFileInfo){.regular = S_ISREG(from->st_mode),
                         .directory = S_ISDIR(from->st_mode),
                         .link = S_ISLNK(from->st_mode),
                         .ours = from->st_uid == geteuid(),
                         .shared = (from->st_mode & (S_IWGRP | S_IWOTH)) != 0,
                         .linked = S_ISREG(from->st_mode) && from->st_nlink > 1,
                         .owner = from->st_uid,
                         .mode = from->st_mode & 07777,
                         .bytes = (uint64_t)from->st_size,
                         .modified = from->st_mtime};
}

bool os_dir_info(int dir, const char *name, OsFileInfo *info)
{
    struct stat status;
    struct statx more;
    if (os_io_fails() || fstatat(base(dir), name, &status, AT_SYMLINK_NOFOLLOW | (*name ? 0 : AT_EMPTY_PATH)) != 0)
        return false;
    fill(&status, info);
    if (info->regular && statx(base(dir), name, AT_SYMLINK_NOFOLLOW, STATX_BTIME, &more) == 0 && (more.stx_mask & STATX_BTIME))
        info->made = more.stx_btime.tv_sec;
    return true;
}

bool os_dir_each(int dir, bool (*each)(const char *name, void *user), void *user)
{
    int own = os_dir_open(dir, "."); /* a position of its own */
    DIR *stream = own < 0 ? NULL : fdopendir(own);
    if (!stream) {
        close_keeping_errno(own);
        return false;
    }
    const struct dirent *entry;
    bool failed = false;
    for (;;) {
        errno = 0;
        entry = readdir(stream);
        failed = !entry && errno != 0;
        if (!entry)
            break;
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 && !each(entry->d_name, user))
            break;
    }
    int cause = errno;
    closedir(stream);
    errno = cause;
    return !failed;
}

/* --- files ------------------------------------------------------------------------------------------------------------------ */

int os_file_open(int dir, const char *name, OsFileInfo *info)
{
    struct stat status;
    int file = os_io_fails() ? -1 : os_open(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
    if (file < 0)
        return -1;
    if (os_io_fails() || fstat(file, &status) != 0) {
        close_keeping_errno(file);
        return -1;
    }
    fill(&status, info);
    return file;
}

bool os_file_read(int file, void *data, size_t n)
{
    for (char *at = data; n > 0;) {
        ssize_t got = os_io_fails() ? -1 : read(file, at, n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            errno = got < 0 ? errno : 0;
            return false;
        }
        at += got;
        n -= (size_t)got;
    }
    return true;
}

void os_file_close(int file) { close_keeping_errno(file); }

bool os_file_write_new(int dir, const char *name, const void *data, size_t n)
{
    int file = os_io_fails() ? -1 : os_open(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    if (file < 0)
        return false;
    bool ok = os_write_all(file, data, n);
    int cause = errno;
    if (close(file) != 0 || os_io_fails()) { /* a network file system tells of a full disk here */
        cause = ok ? errno : cause;
        ok = false;
    }
    if (!ok)
        unlinkat(dir, name, 0);
    errno = cause;
    return ok;
}

bool os_file_append(int dir, const char *name, const void *data, size_t n, size_t limit)
{
    struct stat status;
    int file = os_io_fails() ? -1 : os_open(dir, name, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (file < 0)
        return false;
    bool ok = !os_io_fails() && fstat(file, &status) == 0;
    if (ok && !S_ISREG(status.st_mode)) {
        errno = EINVAL;
        ok = false;
    }
    if (ok && (uint64_t)status.st_size > limit)
        ok = !os_io_fails() && ftruncate(file, 0) == 0;
    OsWriting writing;
    os_writing_begin(&writing);
    ok = ok && !os_io_fails() && write(file, data, n) == (ssize_t)n;
    os_writing_end(&writing);
    close_keeping_errno(file);
    return ok;
}

bool os_file_rename(int dir, const char *from, const char *to) { return !os_io_fails() && renameat(dir, from, dir, to) == 0; }
bool os_file_link(int dir, const char *from, const char *to) { return !os_io_fails() && linkat(dir, from, dir, to, 0) == 0; }
bool os_file_remove(int dir, const char *name) { return !os_io_fails() && unlinkat(dir, name, 0) == 0; }

bool os_file_touch(int dir, const char *name, int64_t time)
{
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = time, .tv_nsec = time ? 0 : UTIME_NOW}};
    return !os_io_fails() && utimensat(dir, name, times, AT_SYMLINK_NOFOLLOW) == 0;
}

int os_file_lock(int dir, const char *name)
{
    int file = os_io_fails() ? -1 : os_open(dir, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (file >= 0 && (os_io_fails() || flock(file, LOCK_EX | LOCK_NB) != 0)) {
        close_keeping_errno(file);
        return -1;
    }
    return file;
}

/* --- the rest ----------------------------------------------------------------------------------------------------------------- */

/* Not time(NULL), which may be a tick behind: what a file was stamped with three hours ago by `touch` would be 2 hours old. */
int64_t os_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec;
}

uint64_t os_random(void)
{
    uint64_t value = 0;
    if (getrandom(&value, sizeof value, GRND_NONBLOCK) != (ssize_t)sizeof value) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        value = (uint64_t)now.tv_nsec * 2654435761u ^ (uint64_t)now.tv_sec << 20 ^ (uint64_t)getpid();
    }
    return value;
}

uint32_t os_user(void) { return geteuid(); }

/* The number is asked for once, and by a forked child once more: as a system call it was a tenth of what a small collective costs. */
static atomic_int_least64_t process;
static pthread_once_t process_once = PTHREAD_ONCE_INIT;

static void forget_process(void) { atomic_store(&process, 0); }
static void watch_forks(void) { pthread_atfork(NULL, NULL, forget_process); }

int64_t os_process(void)
{
    int64_t known = atomic_load_explicit(&process, memory_order_relaxed);
    if (known)
        return known;
    pthread_once(&process_once, watch_forks);
    known = getpid();
    atomic_store(&process, known);
    return known;
}
