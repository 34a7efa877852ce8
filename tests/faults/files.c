/*
 * Saving over a file while the system fails: the n-th of its system calls gives an error, or the process is killed there, for every n; the
 * file may not grow so large; a device is full. The old file is there, whole, or the new one is; an error leaves no temporary, and no
 * descriptor open. Loading under errors of the system fails with a status that says so.
 */
#include "ir/base/os.h"
#include "ir/base/os_dir.h"
#include "kiln.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 3000, MOST_CALLS = 100 };

static char folder[400], path[500];
static int failed;

#define CHECK(condition, ...)                                       \
    do {                                                            \
        if (!(condition)) {                                         \
            fprintf(stderr, "line %d: %s: ", __LINE__, #condition); \
            fprintf(stderr, __VA_ARGS__);                           \
            fprintf(stderr, "\n");                                  \
            failed++;                                               \
        }                                                           \
    } while (0)

/* A format: how n elements of one value are saved and looked at. */
typedef struct Format {
    const char *name;
    kiln_status (*save)(double value);
    kiln_tensor *(*load)(void);
} Format;

static kiln_tensor *filled(double value) { return kiln_full(KILN_F64, KILN_SHAPE(N), value); }

static kiln_status save_npy(double value) { return kiln_save_npy(filled(value), path); }
static kiln_tensor *load_npy(void) { return kiln_load_npy(path); }

static kiln_status save_safetensors(double value) { return kiln_save_safetensors(path, 1, &(kiln_named){"x", filled(value)}, 0, NULL); }

static kiln_tensor *load_safetensors(void)
{
    kiln_file *f = kiln_load_safetensors(path);
    kiln_tensor *x = f ? kiln_file_tensor(f, "x") : NULL;
    kiln_file_free(f);
    return x;
}

static kiln_status save_npz(double value) { return kiln_save_npz(path, 1, &(kiln_named){"x", filled(value)}, false); }

static kiln_tensor *load_npz(void)
{
    kiln_file *f = kiln_load_npz(path);
    kiln_tensor *x = f ? kiln_file_tensor(f, "x") : NULL;
    kiln_file_free(f);
    return x;
}

/* The one value that all elements have; -1: it does not load, or they differ. */
static double value_of(const Format *format)
{
    double low = -1, high = -2;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = format->load();
    bool ok = x && kiln_numel(x) == N && kiln_item(kiln_min(x), &low) == KILN_OK && kiln_item(kiln_max(x), &high) == KILN_OK;
    kiln_scope_end(scope);
    return ok && low == high ? low : -1;
}

static int entries(int *temporaries)
{
    int n = 0;
    DIR *dir = opendir(folder);
    *temporaries = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            n++;
            *temporaries += strstr(entry->d_name, ".tmp") != NULL;
        }
    closedir(dir);
    return n;
}

static void sweep(void)
{
    char file[700];
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        snprintf(file, sizeof file, "%s/%s", folder, entry->d_name);
        remove(file);
    }
    closedir(dir);
}

static int descriptors(void)
{
    int n = 0;
    for (int file = 0; file < 256; file++)
        n += fcntl(file, F_GETFD) >= 0;
    return n;
}

static void with_error(const Format *format, int nth, int err, bool sticky, bool *through)
{
    int open_before = descriptors(), temporaries;
    CHECK(format->save(1) == KILN_OK, "%s", kiln_error_message());
    kiln_scope *scope = kiln_scope_begin();
    int64_t calls = os_io_calls();
    os_fail_io(nth, err, sticky);
    kiln_status status = format->save(2);
    os_fail_io(0, 0, false);
    *through = os_io_calls() - calls < nth;
    char said[400];
    snprintf(said, sizeof said, "%s", kiln_error_message());
    kiln_scope_end(scope);
    double value = value_of(format);
    CHECK(value == (status == KILN_OK ? 2 : 1), "%s: call %d: %s: after \"%s\" the file has %g: %s", format->name, nth, strerror(err),
          kiln_status_name(status), value, said);
    CHECK(status == KILN_OK || (status == KILN_IO && strstr(said, strerror(err)) && strstr(said, path)), "%s: call %d: %s", format->name,
          nth, said);
    CHECK(entries(&temporaries) == 1 && temporaries == 0, "%s: call %d: %s: a temporary is left", format->name, nth, strerror(err));
    CHECK(descriptors() == open_before, "%s: call %d: a descriptor is open", format->name, nth);
    sweep();
}

static bool killed_at(const Format *format, int nth)
{
    int temporaries, status;
    CHECK(format->save(1) == KILN_OK, "%s", kiln_error_message());
    pid_t child = fork();
    if (child == 0) {
        os_fail_io(nth, -1, false);
        _exit(format->save(2) == KILN_OK ? 0 : 1);
    }
    waitpid(child, &status, 0);
    double value = value_of(format);
    bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    CHECK(killed ? value == 1 || value == 2 : status == 0 && value == 2, "%s: killed at call %d: the file has %g", format->name, nth,
          value);
    CHECK(entries(&temporaries) - temporaries == 1 && temporaries <= 1, "%s: killed at call %d: %d temporaries", format->name, nth,
          temporaries);
    sweep();
    return killed;
}

static void each_call(const Format *format)
{
    static const int errors[] = {ENOSPC, EIO, EDQUOT, EROFS, EACCES, EMFILE};
    bool through = false;
    int n = 0;
    while (!through && n < MOST_CALLS) {
        n++;
        for (size_t e = 0; e < sizeof errors / sizeof *errors; e++)
            for (int sticky = 0; sticky < 2; sticky++)
                with_error(format, n, errors[e], sticky, &through);
    }
    int killed = 0;
    while (killed < MOST_CALLS && killed_at(format, killed + 1))
        killed++;
    CHECK(n > 5 && n < MOST_CALLS && killed + 1 == n, "%s: %d calls, killed at %d", format->name, n, killed);
    printf("%s: errors and kills at each of %d system calls\n", format->name, killed);
}

/* A write that the system cuts short, and then refuses. */
static void limited(const Format *format)
{
    int status, temporaries;
    CHECK(format->save(1) == KILN_OK, "%s", kiln_error_message());
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit = {8 * N / 2, RLIM_INFINITY};
        setrlimit(RLIMIT_FSIZE, &limit);
        _exit(format->save(2) == KILN_IO && strstr(kiln_error_message(), "too large") ? 0 : 1);
    }
    waitpid(child, &status, 0);
    CHECK(status == 0, "%s: status %x", format->name, (unsigned)status);
    CHECK(value_of(format) == 1 && entries(&temporaries) == 1, "%s: the old file is not there any more", format->name);
    sweep();
}

static void loading(const Format *format)
{
    CHECK(format->save(1) == KILN_OK, "%s", kiln_error_message());
    int before = descriptors();
    for (int nth = 1;; nth++) {
        int64_t calls = os_io_calls();
        kiln_scope *scope = kiln_scope_begin();
        os_fail_io(nth, EIO, false);
        kiln_tensor *x = format->load();
        os_fail_io(0, 0, false);
        bool through = os_io_calls() - calls < nth;
        CHECK(through ? x != NULL : !x && kiln_error_status() == KILN_IO && strstr(kiln_error_message(), path), "%s: loading, call %d: %s",
              format->name, nth, kiln_error_message());
        kiln_clear_error();
        kiln_scope_end(scope);
        if (through)
            break;
    }
    CHECK(descriptors() == before, "%s: a descriptor is open", format->name);
    sweep();
}

int main(void)
{
    static const Format formats[] = {
        {"npy", save_npy, load_npy}, {"safetensors", save_safetensors, load_safetensors}, {"npz", save_npz, load_npz}};
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/kiln_faults_files_XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(folder) || kiln_set_option("mode", "interp") != KILN_OK) /* a forked child computes without a pool, too */
        return 2;
    snprintf(path, sizeof path, "%s/file", folder);
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        each_call(&formats[i]);
        limited(&formats[i]);
        loading(&formats[i]);
    }
    rmdir(folder);
    if (failed)
        fprintf(stderr, "%d checks failed\n", failed);
    return failed > 0;
}
