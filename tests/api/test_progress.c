/* kiln_set_progress: what is told of a compile, of loading, of one that fails, from the background; what a callback may do. */
#include "api.h"
#include "tests/support/seconds.h"

#include <sched.h>
#include <stdio.h>
#include <unistd.h>

enum { MOST = 256, KERNELS = 6 };

typedef struct Told {
    char phase[16], program[64], name[64];
    int64_t done, total;
    double seconds;
} Told;

static struct {
    Told at[MOST];
    int n, inside, overlaps;
    kiln_status computed; /* what computing in the callback gave */
    kiln_tensor *try;
} told;

static void note(void *user, const kiln_progress *now)
{
    cr_assert(user == &told && now->size == sizeof(kiln_progress) && told.n < MOST);
    told.overlaps += told.inside++ > 0;
    Told *t = &told.at[told.n++];
    snprintf(t->phase, sizeof t->phase, "%s", now->phase);
    snprintf(t->program, sizeof t->program, "%s", now->program);
    snprintf(t->name, sizeof t->name, "%s", now->name ? now->name : "");
    t->done = now->done;
    t->total = now->total;
    t->seconds = now->seconds;
    if (told.try)
        told.computed = kiln_eval(told.try);
    told.inside--;
}

static int phases(const char *phase)
{
    int n = 0;
    for (int i = 0; i < told.n; i++)
        n += strcmp(told.at[i].phase, phase) == 0;
    return n;
}

static void listen(void)
{
    set_option("dynamic", "never"); /* so that each length is a kernel of its own */
    kiln_set_progress(note, &told);
}

/* A graph of so many kernels and one that adds up. */
static kiln_tensor *work(int length)
{
    kiln_tensor *total = kiln_full(KILN_F32, KILN_SHAPE(1), 0);
    for (int i = 0; i < KERNELS; i++) {
        kiln_tensor *x = kiln_linspace(KILN_F32, 0, 1, length + 8 * i);
        total = kiln_add(total, kiln_max(kiln_sin(kiln_cumsum(x, 0))));
    }
    return total;
}

Test(progress, a_compile)
{
    listen();
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *y = work(64);
    cr_assert(kiln_eval(y) == KILN_OK, "%s", kiln_error_message());
    kiln_stats stats = stats_now();
    int n = told.n;
    cr_assert(n >= 5 && stats.compiles == 1, "%d calls, %d compiles", n, (int)stats.compiles);
    cr_expect_str_eq(told.at[0].phase, "optimising");
    cr_expect_str_eq(told.at[1].phase, "planning");
    cr_expect_str_eq(told.at[n - 1].phase, "finished");
    cr_expect(phases("optimising") == 1 && phases("planning") == 1 && phases("finished") == 1 && phases("loading") == 0);
    cr_expect(told.at[0].total == 0 && strlen(told.at[0].program) == 16, "%s", told.at[0].program);
    int64_t most = 0, total = told.at[2].total;
    cr_expect(total >= KERNELS && phases("compiling") == 2 * total, "%d kernels, told %d times", (int)total, phases("compiling"));
    for (int i = 0; i < n; i++) {
        const Told *t = &told.at[i];
        cr_expect_str_eq(t->program, told.at[0].program);
        cr_expect(t->seconds >= 0 && t->seconds < 600);
        if (strcmp(t->phase, "compiling") != 0)
            continue;
        cr_expect(*t->name && t->total == total && t->done >= 0 && t->done <= total, "%s %d of %d", t->name, (int)t->done, (int)t->total);
        most = t->done > most ? t->done : most;
    }
    cr_expect(most == total && told.overlaps == 0);

    cr_assert(kiln_eval(work(64)) == KILN_OK); /* found in memory */
    cr_expect(told.n == n, "a hit told something: %s", told.at[n].phase);
    kiln_set_progress(NULL, NULL);
    cr_assert(kiln_eval(work(65)) == KILN_OK);
    cr_expect(told.n == n, "told after kiln_set_progress(NULL)");
    kiln_scope_end(scope);
}

/* On one CPU, where kernels are compiled one by one: a product that is the last step is the first of them. */
Test(progress, what_takes_longest_is_first)
{
    cpu_set_t all, one;
    cr_assert(sched_getaffinity(0, sizeof all, &all) == 0);
    CPU_ZERO(&one);
    for (size_t cpu = 0; cpu < CPU_SETSIZE && !CPU_COUNT(&one); cpu++)
        if (CPU_ISSET(cpu, &all))
            CPU_SET(cpu, &one);
    cr_assert(sched_setaffinity(0, sizeof one, &one) == 0);
    listen();
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_reshape(kiln_sin(kiln_cumsum(kiln_linspace(KILN_F32, 0, 1, 4096), 0)), KILN_SHAPE(64, 64));
    cr_assert(kiln_eval(kiln_matmul(x, kiln_cumsum(x, 0))) == KILN_OK, "%s", kiln_error_message());
    cr_assert(told.n > 4 && told.at[2].total > 1, "%d calls, %d kernels", told.n, (int)told.at[2].total);
    cr_expect(strstr(told.at[2].name, "matmul"), "%s", told.at[2].name);
    kiln_scope_end(scope);
}

Test(progress, a_failure_is_finished)
{
    listen();
    set_option("test_fail", "llvm");
    kiln_scope *scope = kiln_scope_begin();
    cr_assert(kiln_eval(work(32)) == KILN_OK, "the interpreter computes it");
    cr_expect(told.n > 1 && strcmp(told.at[told.n - 1].phase, "finished") == 0, "the last of %d calls: %s", told.n,
              told.at[told.n - 1].phase);
    kiln_scope_end(scope);
}

Test(progress, computing_in_it_is_refused)
{
    listen();
    kiln_scope *scope = kiln_scope_begin();
    told.computed = KILN_OK;
    told.try = kiln_add(kiln_ones(KILN_F32, KILN_SHAPE(3)), kiln_scalar(1));
    cr_assert(kiln_eval(work(16)) == KILN_OK);
    cr_expect(told.computed == KILN_INVALID, "%s", kiln_status_name(told.computed));
    told.try = NULL;
    kiln_scope_end(scope);
}

Test(progress, loading)
{
    char folder[] = "/tmp/kiln_progress.XXXXXX", command[64];
    cr_assert(mkdtemp(folder));
    set_option("cache", "on");
    set_option("cache_dir", folder);
    listen();
    kiln_scope *scope = kiln_scope_begin();
    cr_assert(kiln_eval(work(24)) == KILN_OK);
    int64_t kernels = told.at[2].total;
    set_option("cache_bytes", "1"); /* the next program pushes it out of memory */
    cr_assert(kiln_eval(kiln_exp(kiln_linspace(KILN_F32, 0, 1, 7))) == KILN_OK);
    told.n = 0;
    cr_assert(kiln_eval(work(24)) == KILN_OK);
    cr_expect(told.n == 2 && phases("compiling") == 0, "%d calls", told.n);
    cr_expect_str_eq(told.at[0].phase, "loading");
    cr_expect(told.at[0].done == 0 && told.at[0].total == kernels, "%d of %d", (int)told.at[0].done, (int)told.at[0].total);
    cr_expect_str_eq(told.at[1].phase, "finished");
    kiln_scope_end(scope);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    cr_expect(system(command) == 0);
}

Test(progress, the_background)
{
    listen();
    set_option("dynamic", "auto");
    set_option("async_compile", "1");
    kiln_scope *scope = kiln_scope_begin();
    kiln_stats stats;
    cr_assert(kiln_eval(work(40)) == KILN_OK);
    for (int i = 0; i < 60000; i++) {
        kiln_get_stats(&stats);
        if (stats.background_compiles > 0)
            break;
        usleep(5000);
    }
    cr_assert(stats.background_compiles > 0);
    kiln_set_progress(NULL, NULL); /* waits for a call that is running */
    cr_expect(phases("finished") >= 2 && phases("optimising") == phases("planning"), "%d", phases("finished"));
    cr_expect(told.overlaps == 0);
    kiln_scope_end(scope);
}
