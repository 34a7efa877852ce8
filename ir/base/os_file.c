/* Files of the user's: mapping and saving. See os_file.h. */
#include "ir/base/os_file.h"
#include "ir/base/os.h"
#include "ir/base/os_dir.h"
#include "ir/base/os_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

bool os_map_file(const char *path, const char **data, size_t *bytes)
{
    struct stat info;
    int file = os_io_fails() ? -1 : os_open(AT_FDCWD, path, O_RDONLY | O_NONBLOCK, 0);
    bool ok = file >= 0 && !os_io_fails() && fstat(file, &info) == 0;
    *data = "";
    *bytes = 0;
    if (ok && !S_ISREG(info.st_mode)) {
        errno = S_ISDIR(info.st_mode) ? EISDIR : 0;
        ok = false;
    } else if (ok && info.st_size > 0) {
        void *at = os_io_fails() ? MAP_FAILED : mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, file, 0);
        ok = at != MAP_FAILED;
        *data = ok ? at : "";
        *bytes = ok ? (size_t)info.st_size : 0;
    }
    os_file_close(file);
    return ok;
}

void os_unmap_file(const char *data, size_t bytes)
{
    if (bytes)
        munmap((void *)(uintptr_t)data, bytes);
}

/* --- saving -------------------------------------------------------------------------------------------------------------- */

/* The real path of what is there, or, where nothing is, the path itself; heap. NULL with errno 0: what is there is to be written as it is. */
static char *real_path(const char *path, const struct stat *old)
{
    char *real = old ? realpath(path, NULL) : NULL, *copy;
    struct stat again;
    if (old && real && (stat(real, &again) != 0 || again.st_dev != old->st_dev || again.st_ino != old->st_ino)) {
        free(real); /* a name that only looks like one */
        real = NULL;
    }
    if (old && !real) {
        errno = 0;
        return NULL;
    }
    copy = os_copy(real ? real : path, strlen(real ? real : path) + 1);
    free(real);
    if (!copy)
        errno = ENOMEM;
    return copy;
}

/* Opens the folder of s->path and a temporary file in it. */
static bool open_temporary(OsSaving *s, const struct stat *old)
{
    char *slash = strrchr(s->path, '/');
    s->name = slash ? slash + 1 : s->path;
    if (!*s->name) {
        errno = EISDIR;
        return false;
    }
    if (slash)
        *slash = '\0';
    const char *folder = !slash ? "." : slash == s->path ? "/" : s->path;
    s->folder = os_io_fails() ? -1 : os_open(AT_FDCWD, folder, O_RDONLY | O_DIRECTORY, 0);
    if (s->folder < 0)
        return false;
    snprintf(s->temp, sizeof s->temp, ".kiln.%016llx.tmp", (unsigned long long)os_random());
    s->file = os_io_fails() ? -1 : os_open(s->folder, s->temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
    s->renamed = s->file >= 0;
    return s->renamed && (!old || fchmod(s->file, old->st_mode & 0777) == 0);
}

bool os_save_begin(OsSaving *s, const char *path)
{
    struct stat info;
    bool there = stat(path, &info) == 0;
    *s = (OsSaving){.folder = -1, .file = -1};
    if (!there && errno != ENOENT)
        return false;
    bool ok;
    if (!there || S_ISREG(info.st_mode))
        s->path = real_path(path, there ? &info : NULL);
    if (s->path) {
        ok = open_temporary(s, there ? &info : NULL);
    } else {
        bool as_it_is = there && (!S_ISREG(info.st_mode) || errno == 0);
        s->file = !as_it_is || os_io_fails() ? -1 : os_open(AT_FDCWD, path, O_WRONLY | O_TRUNC | O_NOCTTY, 0);
        ok = s->file >= 0;
    }
    if (!ok) {
        int cause = errno;
        os_save_end(s, false);
        errno = cause;
    }
    return ok;
}

bool os_save_write(OsSaving *s, const void *data, size_t n) { return os_write_all(s->file, data, n); }

bool os_save_seek(OsSaving *s, uint64_t at) { return !os_io_fails() && lseek(s->file, (off_t)at, SEEK_SET) >= 0; }

bool os_save_end(OsSaving *s, bool keep)
{
    bool ok = keep;
    int cause = 0;
    if (keep && s->renamed && (os_io_fails() || fsync(s->file) != 0)) {
        ok = false;
        cause = errno;
    }
    if (s->file >= 0 && (close(s->file) != 0 || (keep && os_io_fails())) && ok) { /* a network file system tells of a full disk here */
        ok = false;
        cause = errno;
    }
    if (ok && s->renamed && !os_file_rename(s->folder, s->temp, s->name)) {
        ok = false;
        cause = errno;
    }
    if (!ok && s->renamed)
        unlinkat(s->folder, s->temp, 0);
    if (ok && s->renamed)
        (void)fsync(s->folder); /* the new name, after a crash too; not every file system can */
    os_dir_close(s->folder);
    os_free(s->path);
    *s = (OsSaving){.folder = -1, .file = -1};
    errno = cause;
    return ok;
}
