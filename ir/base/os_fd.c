/* Opening and writing files beside a program of somebody else's. See os_fd.h. */
#include "ir/base/os_fd.h"
#include "ir/base/os_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

enum { LOWEST = 3 };

void os_low_hold(OsLow *low)
{
    low->n = 0;
    for (int file = 0; file < LOWEST; file++) {
        if (fcntl(file, F_GETFD) >= 0)
            continue;
        int got = open("/", O_PATH | O_CLOEXEC);
        if (got < 0 || got >= LOWEST) { /* another thread was there first */
            if (got >= LOWEST)
                close(got);
            return;
        }
        low->taken[low->n++] = got;
    }
}

void os_low_release(const OsLow *low)
{
    int cause = errno;
    for (int i = 0; i < low->n; i++)
        close(low->taken[i]);
    errno = cause;
}

/* Moves a descriptor that came too low all the same: another thread's hold hid that it was free, and ended. */
static int raised(int file)
{
    if (file < 0 || file >= LOWEST)
        return file;
    int copy = fcntl(file, F_DUPFD_CLOEXEC, LOWEST), cause = errno;
    close(file);
    errno = cause;
    return copy;
}

int os_open(int dir, const char *path, int flags, unsigned mode)
{
    OsLow low;
    os_low_hold(&low);
    int file = raised(openat(dir, path, flags | O_CLOEXEC, (mode_t)mode));
    os_low_release(&low);
    return file;
}

FILE *os_open_stream(const char *path, const char *mode)
{
    bool write = mode[0] == 'w';
    int file = os_open(AT_FDCWD, path, write ? O_WRONLY | O_CREAT | O_TRUNC : O_RDONLY, 0666);
    FILE *stream = file < 0 ? NULL : fdopen(file, mode);
    if (!stream && file >= 0) {
        int cause = errno;
        close(file);
        errno = cause;
    }
    return stream;
}

/* A write raises the signal in the thread that writes, so there it is blocked, and taken back if it came. */
void os_writing_begin(OsWriting *writing)
{
    sigset_t limit, pending;
    sigemptyset(&limit);
    sigaddset(&limit, SIGXFSZ);
    writing->pending = sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
    pthread_sigmask(SIG_BLOCK, &limit, &writing->mask);
}

void os_writing_end(const OsWriting *writing)
{
    int cause = errno;
    sigset_t limit;
    sigemptyset(&limit);
    sigaddset(&limit, SIGXFSZ);
    if (!writing->pending)
        sigtimedwait(&limit, NULL, &(struct timespec){0});
    pthread_sigmask(SIG_SETMASK, &writing->mask, NULL);
    errno = cause;
}

bool os_write_all(int file, const void *data, size_t n)
{
    const char *at = data;
    OsWriting writing;
    os_writing_begin(&writing);
    bool ok = true;
    while (n > 0 && ok) {
        ssize_t wrote = os_io_fails() ? -1 : write(file, at, n);
        ok = wrote >= 0 || errno == EINTR;
        at += wrote > 0 ? wrote : 0;
        n -= wrote > 0 ? (size_t)wrote : 0;
    }
    os_writing_end(&writing);
    return ok;
}
