/* See engine.h: groups and their processes, and telling about a case. What is done with a case is check()'s, in another file. */
#include "tests/differential/engine.h"
#include "tests/support/seconds.h"
#include "tests/support/vectors.h"
#include "tests/support/slice.h"
#include "tests/support/stats.h"

#include <inttypes.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Shared between the groups (child processes) and the parent. */
typedef struct Shared {
    int64_t cases, taken, runs, failures, compiles;
    char now[512]; /* the case at hand */
} Shared;

static Shared *shared;
static int64_t group_failures;
enum { MAX_SHOWN = 8 }; /* failures printed per group */

bool on_device(void) { return getenv("KILN_DEVICE") != NULL; }

int64_t size_here(int64_t n)
{
    static int64_t largest = 0;
    if (largest == 0) {
        const char *text = getenv("KILN_TEST_LARGEST");
        largest = !on_device() ? INT64_MAX : text ? atoll(text) : 4099;
    }
    return n < largest ? n : largest;
}

Case case_here(const Case *c)
{
    Case here = *c;
    for (int i = 0; i < c->n_in; i++) {
        for (int d = 0; d < c->in[i].shape.rank; d++)
            here.in[i].shape.dim[d] = size_here(c->in[i].shape.dim[d]);
        here.in[i].limit = size_here(c->in[i].limit);
    }
    return here;
}

void set_option(const char *name, const char *value)
{
    if (kiln_set_option(name, value) != KILN_OK) {
        fprintf(stderr, "option %s = %s: %s\n", name, value, kiln_error_message());
        exit(2);
    }
}

char last_warning[256];

/* Keeps the last warning of a fall-back; others (of many recompiles, say) may come after it. */
static void keep_warning(void *user, int level, const char *topic, const char *line)
{
    (void)user, (void)topic;
    if (level == 0 && strstr(line, "the interpreter runs it"))
        snprintf(last_warning, sizeof last_warning, "%s", line);
}

/* --- telling -------------------------------------------------------------------------------------------------------- */

void describe(const Case *c, const char *how, char *text, size_t size)
{
    int n = snprintf(text, size, "%s(", c->op);
    for (int i = 0; i < c->n_in && (size_t)n < size; i++) {
        char shape[96];
        n += snprintf(text + n, size - (size_t)n, "%s%s", i ? ", " : "", shape_text(c->in[i].dtype, c->in[i].shape, shape));
    }
    if ((size_t)n < size)
        n += snprintf(text + n, size - (size_t)n, ") args");
    for (int i = 0; i < 6 && (size_t)n < size; i++)
        n += snprintf(text + n, size - (size_t)n, " %" PRId64, c->arg[i]);
    if ((size_t)n < size)
        snprintf(text + n, size - (size_t)n, " [%s]", how);
}

void report(const Case *c, const char *how, const char *format, ...)
{
    shared->failures++;
    if (group_failures++ >= MAX_SHOWN)
        return;
    char text[512], why[512];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    describe(c, how, text, sizeof text);
    printf("FAIL %s: %s\n", text, why);
    if (group_failures == MAX_SHOWN)
        printf("     (more failures of this group are only counted)\n");
    fflush(stdout);
}

bool case_due(int64_t *number)
{
    int64_t n = shared->cases++;
    if (number)
        *number = n;
    if (!slice_takes((uint64_t)n))
        return false;
    shared->taken++;
    return true;
}

void count_run(void) { shared->runs++; }
void case_at_hand(const Case *c, const char *how) { describe(c, how, shared->now, sizeof shared->now); }

/* --- groups --------------------------------------------------------------------------------------------------------- */

enum { GROUP_SECONDS = 600 };

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void count_compiles(void)
{
    kiln_stats stats = stats_now();
    shared->compiles += stats.compiles;
}

static void run_group(const Group *group)
{
    shared->now[0] = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        test_seconds(GROUP_SECONDS);
        kiln_set_log_sink(keep_warning, NULL);
        group->run(group);
        group_ends(group);
        count_compiles();
        fflush(stdout);
        exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status))
        printf("FAIL %s: signal %d at %s\n", group->name, WTERMSIG(status), shared->now);
    else if (WEXITSTATUS(status))
        printf("FAIL %s: exit status %d at %s\n", group->name, WEXITSTATUS(status), shared->now);
    if (status)
        shared->failures++;
}

/* Those that argv names, or all; how many of them. */
static int run_wanted(const Group *groups, int n, int argc, char **argv, int *failed)
{
    int ran = 0;
    for (int i = 0; i < n; i++) {
        bool wanted = argc < 2;
        for (int k = 1; k < argc; k++)
            wanted |= strcmp(argv[k], groups[i].name) == 0;
        if (!wanted)
            continue;
        int64_t failures = shared->failures, cases = shared->cases;
        double begun = seconds();
        run_group(&groups[i]);
        *failed += shared->failures != failures;
        ran++;
        if (shared->failures != failures)
            printf("%-28s %6" PRId64 " cases %5" PRId64 " failures %6.1f s\n", groups[i].name, shared->cases - cases,
                   shared->failures - failures, seconds() - begun);
    }
    return ran;
}

/* With more slices than cases some cases come more often, as in slice_takes_of. How many there are is known behind the last one. */
static void take_some(int64_t cases)
{
    char seed[24];
    snprintf(seed, sizeof seed, "%" PRIu64, slice_seed() % slices() % (uint64_t)cases);
    setenv("KILN_TEST_SEED", seed, 1);
}

int run_groups(const char *program, const Group *groups, int n, int argc, char **argv)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 2;
    mallopt(M_MMAP_THRESHOLD, 1 << 28); /* pages that go back and come again cost more than the cases */
    mallopt(M_TRIM_THRESHOLD, 1 << 28);
    double start = seconds();
    int failed = 0, ran = run_wanted(groups, n, argc, argv, &failed);
    if (shared->taken == 0 && shared->cases > 0) {
        take_some(shared->cases);
        shared->cases = 0;
        ran = run_wanted(groups, n, argc, argv, &failed);
    }
    if (!on_device())
        vectors_print();
    const char *slash = strrchr(argv[0], '/');
    printf("%s: %d groups, %" PRId64 " of %" PRId64 " cases, %" PRId64 " runs, %" PRId64 " programs compiled, %" PRId64
           " failures in %d groups, %.1f s\n",
           slash ? slash + 1 : program, ran, shared->taken, shared->cases, shared->runs, shared->compiles, shared->failures, failed,
           seconds() - start);
    if (shared->taken == 0)
        printf("FAIL no case was run\n");
    return ran == 0 || shared->failures > 0 || shared->taken == 0;
}
