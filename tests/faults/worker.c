/*
 * worker [N]: a process like any other that computes N (3) small programs and checks their values. Prints what it took, as a line of
 * name=number, and every warning; `descriptors`: how many stay open at the end beyond one of the cache directory. Its status says whether
 * the values were right and the interpreter was not needed.
 */
#include "tests/support/stats.h"

#include <kiln.h>

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int warnings;

static void say(void *user, int level, const char *topic, const char *line)
{
    (void)user, (void)topic;
    warnings += level == 0;
    printf("%s: %s\n", level == 0 ? "warning" : "log", line);
}

/* Descriptors that are open, but for those that stay open on purpose: one of a cache directory, and with KILN_PERF the CPU's counters, one of each
 * kind. Prints what the others are where `say`. */
static int descriptors(int print)
{
    enum { COUNTERS = 4 };
    int n = 0, caches = 0, counters = 0;
    DIR *dir = opendir("/proc/self/fd");
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char target[4096], tag[4200];
        const char *named = getenv("KILN_CACHE_DIR");
        int fd = atoi(entry->d_name);
        ssize_t length = entry->d_name[0] == '.' ? -1 : readlinkat(dirfd(dir), entry->d_name, target, sizeof target - 1);
        if (length < 0 || fd == dirfd(dir))
            continue;
        target[length] = '\0';
        snprintf(tag, sizeof tag, "%s/CACHEDIR.TAG", target);
        int cache = (named && strcmp(named, target) == 0) || access(tag, F_OK) == 0;
        int counter = strcmp(target, "anon_inode:[perf_event]") == 0;
        caches += cache;
        counters += counter;
        int meant = (cache && caches == 1) || (counter && counters <= COUNTERS);
        n += !meant;
        if (print && fd > 2 && !meant)
            printf("open: %d %s\n", fd, target);
    }
    if (dir)
        closedir(dir);
    return n;
}

/* A structure of its own for each k: doubles k % 3 times, negates k / 3 % 2 times, adds 1 k / 6 times. */
static int one(int k)
{
    static const float start[5] = {1, 2, 3, 4, 5};
    float got[5], want[5];
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(5), start);
    memcpy(want, start, sizeof want);
    x = kiln_flip(x, KILN_AXES(0));
    for (int i = 0; i < 5; i++)
        want[i] = start[4 - i];
    for (int i = 0; i < k % 3; i++)
        x = kiln_add(x, x);
    for (int i = 0; i < k / 3 % 2; i++)
        x = kiln_neg(x);
    for (int i = 0; i < k / 6; i++)
        x = kiln_add(x, kiln_scalar(1));
    for (int i = 0; i < 5; i++)
        want[i] = want[i] * (float)(1 << k % 3) * (k / 3 % 2 ? -1 : 1) + (float)(k / 6);
    kiln_status status = kiln_read(x, KILN_F32, got, sizeof got);
    int right = status == KILN_OK && memcmp(got, want, sizeof got) == 0;
    if (!right)
        printf("program %d: %s: %g instead of %g\n", k, status == KILN_OK ? "wrong value" : kiln_error_message(), (double)got[0],
               (double)want[0]);
    kiln_scope_end(scope);
    return right;
}

int main(int argc, char **argv)
{
    int n = argc > 1 ? atoi(argv[1]) : 3, right = 0, before = descriptors(0);
    kiln_set_log_sink(say, NULL);
    for (int k = 0; k < n; k++)
        right += one(k);
    kiln_stats s = stats_now();
    int more = descriptors(0) - before;
    if (more > 0)
        (void)descriptors(1);
    printf("right=%d compiles=%" PRId64 " hits=%" PRId64 " refused=%" PRId64 " stored=%" PRId64 " fallbacks=%" PRId64
           " warnings=%d descriptors=%d",
           right, s.compiles, s.disk_hits, s.disk_refused, s.disk_stored, s.fallbacks, warnings, more);
    for (int reason = 0; kiln_miss_reason(reason); reason++)
        if (s.miss[reason])
            printf(" miss.%s=%" PRId64, kiln_miss_reason(reason), s.miss[reason]);
    printf("\n");
    return right != n || s.fallbacks != 0;
}
