/*
 * The cache on disk when the system fails it: the n-th of its system calls gives an error, or the process is killed there, for every
 * n, while programs are written and while they are loaded. In each case
 *
 *   the process that was not killed has the right values, no fall-back, and a few words of warning at most
 *   what lies on disk then is whole: no entry that is half of one; no temporary where an error passed; where the process was killed or
 *   every further call fails, too, what is left goes with a later eviction
 *   no descriptor stays open (WELL of harness.h)
 *   a fresh process has the right values, and the one after it compiles nothing: nothing is disabled for good
 *
 * A run takes a slice of the calls (support/slice.h). io --long tries every kind of error at every call instead of two of them.
 */
#include "tests/faults/harness.h"
#include "tests/support/slice.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROGRAMS = 2, MOST_CALLS = 400 };

static const char *kept_folder;

static void drop_kept(void) { shell("rm -rf '%s'", kept_folder); }

static const Run *with_fault(const char *cache, int nth, const char *fault)
{
    char hook[96];
    snprintf(hook, sizeof hook, "KILN_TEST_FAIL=io:%d:%s", nth, fault);
    return worker(cache, PROGRAMS, (const char *const[]){hook, NULL}, 0);
}

/* Makes what a killed writer left as old as it must be for an eviction, and it time for one. */
static void hours_pass(const char *cache)
{
    shell("find '%s' -name 'tmp.*' -exec touch -d '3 hours ago' {} +; touch -d '2 hours ago' '%s/evicted'", cache, cache);
}

static int swept; /* temporaries that an eviction removed */

/* A fresh process, and one more. `loads`: the first one finds everything. */
static void afterwards(const char *cache, const char *what, bool loads)
{
    int bad = 0, left = 0, n = entries(cache, &bad, &left);
    CHECK(n <= PROGRAMS && bad == 0, "%s: %d of %d entries are not whole", what, bad, n);
    if (left)
        hours_pass(cache);
    const Run *fresh = worker(cache, PROGRAMS, NULL, 0);
    WELL(fresh, what);
    if (left && fresh->stored > 0) { /* an eviction comes with a store */
        (void)entries(cache, NULL, &n);
        CHECK(n == 0, "%s: %d stale temporaries are still there", what, n);
        swept += left;
    }
    CHECK(fresh->refused == 0 && fresh->warnings == 0, "%s: the next process says\n%s", what, fresh->text);
    if (loads)
        CHECK(fresh->compiles == 0, "%s: entries were lost:\n%s", what, fresh->text);
    if (fresh->compiles > 0) {
        const Run *warm = worker(cache, PROGRAMS, NULL, 0);
        WELL(warm, what);
        CHECK(warm->compiles == 0 && warm->hits == PROGRAMS, "%s: nothing is kept any more:\n%s", what, warm->text);
    }
}

/* A directory for one fault: empty, or with every program. */
static const char *directory(bool full)
{
    static char kept[PATH_BYTES];
    if (full && !kept[0]) {
        snprintf(kept, sizeof kept, "%s/kiln_faults_full.%ld", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", (long)getpid());
        WELL(worker(kept, PROGRAMS, NULL, 0), "filling a directory");
        atexit(drop_kept);
        kept_folder = kept;
    }
    const char *cache = new_folder();
    if (full)
        shell("rmdir '%s' && cp -a '%s' '%s'", cache, kept, cache);
    else
        shell("touch '%s/evicted' && head -c 16 /dev/zero >'%s/size'", cache,
              cache); /* else every process would count, which is many calls */
    return cache;
}

/* One fault. false: the process did fewer system calls than that. */
static bool one(const char *fault, int nth, bool full)
{
    char what[128];
    const char *cache = directory(full);
    bool kill = strcmp(fault, "kill") == 0;
    snprintf(what, sizeof what, "%s at call %d, %s", fault, nth, full ? "loading" : "writing");
    const Run *run = with_fault(cache, nth, fault);
    bool killed = kill && run->signal == SIGKILL;
    if (!killed)
        WELL(run, what);
    int left = 0;
    (void)entries(cache, NULL, &left);
    CHECK(left == 0 || (left <= PROGRAMS && (killed || strstr(fault, "sticky"))), "%s: %d temporaries are left", what, left);
    /* reading, listing, writing: one of a kind */
    CHECK(run->warnings <= 3, "%s: many words:\n%s", what, run->text);
    if (full) /* an error of the system says nothing about an entry */
        CHECK(entries(cache, NULL, NULL) == PROGRAMS, "%s: an entry was removed:\n%s", what, run->text);
    afterwards(cache, what, full);
    return !kill || killed;
}

static int calls(bool full)
{
    int n = 0;
    for (bool more = true; more && n < MOST_CALLS; n += more)
        more = !slice_takes((uint64_t)n) || one("kill", n + 1, full);
    printf("%s: killed at %s of %d system calls\n", full ? "loading" : "writing", slices() > 1 ? "some" : "each", n);
    CHECK(n > 5 && n < MOST_CALLS, "%d calls", n);
    return n;
}

static bool is_long;

static void each_fault(bool full)
{
    static const char *const faults[] = {"ENOSPC", "EACCES:sticky", "EMFILE", "EINTR",  "EIO",    "EIO:sticky", "ENOSPC:sticky",
                                         "EDQUOT", "EROFS",         "EPERM",  "ENOMEM", "ENOENT", "ESTALE"};
    int n = calls(full), kinds = (int)(sizeof faults / sizeof *faults);
    for (int nth = 1; nth <= n; nth++)
        for (int f = 0; f < kinds; f++)
            if (slice_takes((uint64_t)nth) && (is_long || (nth / (int)slices() + f) % 7 == 0))
                one(faults[f], nth, full);
    CHECK(full || swept > 0 || slices() > 1, "no killed writer left a temporary for an eviction to remove");
    drop_folder();
}

static void while_writing(void) { each_fault(false); }
static void while_loading(void) { each_fault(true); }

int main(int argc, char **argv)
{
    static const Test tests[] = {{"while_writing", while_writing}, {"while_loading", while_loading}};
    is_long = argc > 1 && strcmp(argv[1], "--long") == 0;
    return run_tests("io", tests, sizeof tests / sizeof *tests, argc - is_long, argv + is_long);
}
