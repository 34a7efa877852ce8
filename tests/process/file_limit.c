/*
 * A process that may write no file of more than 100 bytes (RLIMIT_FSIZE, whose signal ends a process): storing in the cache costs a warning,
 * saving an array fails with a status, and neither leaves a file behind. The program's own writes meet its own handling of the signal.
 */
#define KILN_NO_LOCATIONS
#include "kiln.h"
#include "tests/support/remove_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static volatile sig_atomic_t signals;
static int warnings, left;
static char said[512];

static void on_signal(int number)
{
    (void)number;
    signals++;
}

static void sink(void *user, int level, const char *topic, const char *line)
{
    (void)user, (void)topic;
    if (level == 0) {
        warnings++;
        snprintf(said, sizeof said, "%s", line);
    }
}

static int look(const char *path, const struct stat *info, int type, struct FTW *where)
{
    if (type == FTW_F && (info->st_size > 100 || strstr(path + where->base, "tmp"))) {
        fprintf(stderr, "left behind: %s\n", path);
        left++;
    }
    return 0;
}

static int bad(const char *what)
{
    fprintf(stderr, "%s: %s (%d warnings, the last: %s; %d signals)\n", what, kiln_error_message(), warnings, said, (int)signals);
    return 1;
}

static bool computes(int n)
{
    double sum = 0;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(n));
    for (int i = 0; i < n; i++)
        x = kiln_mul(x, kiln_exp(kiln_sub(x, x)));
    bool ok = kiln_item(kiln_sum(x), &sum) == KILN_OK && sum == n;
    kiln_scope_end(scope);
    return ok;
}

int main(void)
{
    char folder[200], path[300];
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/kiln_limit_XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(folder) || kiln_set_option("cache_dir", folder) != KILN_OK || kiln_set_option("cache", "on") != KILN_OK)
        return 2;
    snprintf(path, sizeof path, "%s/x.npy", folder);
    kiln_set_log_sink(sink, NULL);
    struct rlimit limit = {100, RLIM_INFINITY}; /* the default of SIGXFSZ: the process ends */
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
        return 2;
    if (!computes(3) || !computes(4))
        return bad("computing");
    if (warnings != 1 || !strstr(said, "too large"))
        return bad("a warning is due, one, with the reason");
    if (kiln_save_npy(kiln_ones(KILN_F32, KILN_SHAPE(100)), path) != KILN_IO || !strstr(kiln_error_message(), "too large"))
        return bad("saving");
    remove(path); /* what could be written of it, as ever */

    signal(SIGXFSZ, on_signal);
    if (!computes(5) || signals != 0)
        return bad("the program's handler is not for kiln's files");
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    char text[200] = {0};
    if (write(file, text, sizeof text) != 100 || write(file, text, sizeof text) != -1 || signals != 1)
        return bad("the program's handler is for its own");
    close(file);
    remove(path);
    nftw(folder, look, 16, FTW_PHYS);
    remove_folder(folder);
    if (left)
        return 1;
    puts("one warning, no signal");
    return 0;
}
