/*
 * A program that has closed some of its descriptors 0 to 2, or all, and writes there all the same: nothing of it may land in a file of
 * kiln's, be it an entry of the cache, a log of it, or an array that is saved. And what kiln opens it closes.
 */
#define KILN_NO_LOCATIONS
#include "kiln.h"
#include "tests/support/remove_folder.h"
#include "tests/support/stats.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char garbage[] = "WHAT THE PROGRAM PRINTS";
static atomic_bool finished;
static atomic_int landed;

static void *print_for_ever(void *set)
{
    unsigned closed = *(unsigned *)set;
    while (!atomic_load(&finished))
        for (int file = 0; file < 3; file++)
            if ((closed >> file & 1) && write(file, garbage, sizeof garbage - 1) > 0)
                atomic_fetch_add(&landed, 1);
    return NULL;
}

static int open_descriptors(void)
{
    int n = 0;
    for (int file = 0; file < 256; file++)
        n += fcntl(file, F_GETFD) >= 0;
    return n;
}

/* Programs of several structures, which are stored, and loaded once more by who comes next; an array goes to a file and back. */
static int work(const char *folder)
{
    char path[300];
    snprintf(path, sizeof path, "%s/x.npy", folder);
    for (int k = 1; k < 8; k++) {
        double sum = 0, want = 1;
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_full(KILN_F32, KILN_SHAPE(16, k), 1);
        for (int i = 0; i < k; i++) {
            x = i % 2 ? kiln_add(x, x) : kiln_square(x);
            want = i % 2 ? want + want : want * want;
        }
        if (kiln_item(kiln_sum(x), &sum) != KILN_OK || sum != 16 * k * want)
            return 10;
        if (kiln_save_npy(x, path) != KILN_OK || !kiln_load_npy(path))
            return 11;
        kiln_scope_end(scope);
    }
    kiln_stats stats = stats_now();
    return stats.fallbacks ? 12 : 0;
}

static int child(unsigned closed, const char *folder)
{
    for (int file = 0; file < 3; file++)
        if (closed >> file & 1)
            close(file);
    pthread_t thread;
    if (pthread_create(&thread, NULL, print_for_ever, &closed) != 0)
        return 13;
    int before = open_descriptors(), failed = work(folder);
    atomic_store(&finished, true);
    pthread_join(thread, NULL);
    int after = open_descriptors();
    if (failed)
        return failed;
    for (int file = 0; file < 3; file++)
        if ((closed >> file & 1) && fcntl(file, F_GETFD) >= 0)
            return 14;      /* kept */
    if (after > before + 2) /* the cache's directory, and the random source */
        return 15;
    return atomic_load(&landed) ? 16 : 0;
}

static bool found;
static int look(const char *path, const struct stat *info, int type, struct FTW *where)
{
    static char text[1 << 20];
    (void)info, (void)where;
    FILE *f = type == FTW_F ? fopen(path, "rb") : NULL;
    size_t n = f ? fread(text, 1, sizeof text, f) : 0;
    if (f)
        fclose(f);
    if (n && memmem(text, n, garbage, sizeof garbage - 1)) {
        fprintf(stderr, "%s holds what the program printed\n", path);
        found = true;
    }
    return 0;
}

int main(void)
{
    int failures = 0;
    for (unsigned closed = 1; closed < 8; closed++) {
        char folder[200];
        const char *tmp = getenv("TMPDIR");
        snprintf(folder, sizeof folder, "%s/kiln_descriptors_XXXXXX", tmp ? tmp : "/tmp");
        if (!mkdtemp(folder) || setenv("KILN_CACHE_DIR", folder, 1) != 0 || setenv("KILN_CACHE", "on", 1) != 0)
            return 2;
        for (int turn = 0; turn < 2; turn++) { /* stored; found */
            pid_t pid = fork();
            if (pid == 0)
                _exit(child(closed, folder));
            int status = -1;
            if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
                fprintf(stderr, "closed %x, turn %d: status %x\n", closed, turn, (unsigned)status);
                failures++;
            }
        }
        found = false;
        nftw(folder, look, 16, FTW_PHYS);
        failures += found;
        remove_folder(folder);
    }
    if (!failures)
        puts("descriptors 0 to 2 were left alone");
    return failures != 0;
}
