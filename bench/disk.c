/*
 * What the cache on disk costs and saves, measured in fresh processes of this program.
 *
 *     disk [--quick] [--json FILE]
 *
 * Each child does one thing and says what its first call took, on the clock and in processor time (all threads; other programs on the
 * machine count less). Ways are taken in turns, round after round; figures are medians. The directory is a fresh one under TMPDIR.
 */
#include "bench/timing.h"
#include "bench/workloads.h"
#include <kiln.h>

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 15, QUICK_ROUNDS = 3, PATH = 400, MAX_RESULTS = 64 };

static const char *program;
static char dir[PATH];
static int rounds = ROUNDS;

static void must(kiln_status status, const char *what)
{
    if (status == KILN_OK)
        return;
    fprintf(stderr, "disk: %s: %s\n", what, kiln_error_message());
    exit(1);
}

static void stop(const char *what)
{
    fprintf(stderr, "disk: %s\n", what);
    exit(1);
}

/* --- a child ------------------------------------------------------------------------------------------------------------- */

typedef struct Cost {
    double wall, cpu; /* ms */
} Cost;

static Cost now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (Cost){1e3 * now_seconds(), 1e3 * ((double)t.tv_sec + 1e-9 * (double)t.tv_nsec)};
}

/* Computes workload (a) on 1024 elements, twice, and says what each call took: "wall cpu wall cpu disk_hits compiles". */
static int first_call(void)
{
    const Workload *w = workload_named("a");
    kiln_scope *scope = kiln_scope_begin();
    static float data[1024];
    kiln_tensor *in[WORKLOAD_INPUTS] = {kiln_from(KILN_F32, KILN_SHAPE(1024), data), kiln_from(KILN_F32, KILN_SHAPE(1024), data)};
    must(kiln_eval_many(in, 2), "inputs");
    Cost cost[3];
    for (int i = 0; i < 2; i++) {
        kiln_tensor *y = w->graph(in);
        cost[0] = now();
        must(kiln_eval(y), "first call");
        cost[1] = now();
        printf("%.6f %.6f ", cost[1].wall - cost[0].wall, cost[1].cpu - cost[0].cpu);
    }
    kiln_stats stats;
    kiln_get_stats(&stats);
    printf("%d %d\n", (int)stats.disk_hits, (int)stats.compiles);
    kiln_scope_end(scope);
    return 0;
}

/* The library is there and is asked something; nothing is computed. */
static int nothing(void)
{
    kiln_scope *scope = kiln_scope_begin();
    char mode[16];
    must(kiln_get_option("mode", mode, sizeof mode), "option");
    kiln_scope_end(scope);
    return 0;
}

/* --- running children ---------------------------------------------------------------------------------------------------- */

typedef struct Calls {
    Cost first, again;
    int disk_hits, compiles;
} Calls;

static Calls call_in_child(const char *cache)
{
    char command[3 * PATH];
    Calls c = {0};
    snprintf(command, sizeof command, "KILN_CACHE=%s KILN_CACHE_DIR='%s' '%s' --first-call", cache, dir, program);
    FILE *child = popen(command, "r");
    if (!child ||
        fscanf(child, "%lf %lf %lf %lf %d %d", &c.first.wall, &c.first.cpu, &c.again.wall, &c.again.cpu, &c.disk_hits, &c.compiles) != 6)
        stop("cannot run myself");
    pclose(child);
    return c;
}

/* A whole process, from fork to its end. */
static Cost process(const char *what)
{
    struct rusage use;
    int status;
    double start = now_seconds();
    pid_t child = fork();
    if (child == 0) {
        setenv("KILN_CACHE_DIR", dir, 1);
        setenv("KILN_CACHE", "on", 1);
        if (!freopen("/dev/null", "w", stdout))
            _exit(1);
        execl(program, program, what, (char *)NULL);
        _exit(1);
    }
    if (child < 0 || wait4(child, &status, 0, &use) != child || status != 0)
        stop("cannot run myself");
    return (Cost){1e3 * (now_seconds() - start), 1e3 * ((double)use.ru_utime.tv_sec + (double)use.ru_stime.tv_sec) +
                                                     1e-3 * ((double)use.ru_utime.tv_usec + (double)use.ru_stime.tv_usec)};
}

/* --- results ---------------------------------------------------------------------------------------------------------------- */

typedef struct Row {
    const char *name, *unit;
    double wall, cpu, aim; /* aim 0: none; on the processor time */
} Row;

static Row rows[MAX_RESULTS];
static int n_rows;

static void result(const char *name, const char *unit, double wall, double cpu, double aim)
{
    rows[n_rows++] = (Row){name, unit, wall, cpu, aim};
    printf("%-58s %9.3f %9.3f %-3s", name, wall, cpu, unit);
    if (aim > 0)
        printf(" aim %g%s", aim, cpu <= aim ? "" : "  missed");
    printf("\n");
    fflush(stdout);
}

static void costs(const char *name, const Cost *cost, int n, double aim)
{
    double wall[MAX_ROUNDS], cpu[MAX_ROUNDS];
    for (int i = 0; i < n; i++) {
        wall[i] = cost[i].wall;
        cpu[i] = cost[i].cpu;
    }
    result(name, "ms", median(wall, n), median(cpu, n), aim);
}

static void write_json(const char *path)
{
    FILE *out = fopen(path, "w");
    if (!out)
        stop("cannot write the JSON file");
    fprintf(out, "[\n");
    for (int i = 0; i < n_rows; i++)
        fprintf(out, "  {\"name\": \"%s\", \"wall\": %.6g, \"cpu\": %.6g, \"unit\": \"%s\", \"aim\": %g}%s\n", rows[i].name, rows[i].wall,
                rows[i].cpu, rows[i].unit, rows[i].aim, i + 1 < n_rows ? "," : "");
    fprintf(out, "]\n");
    fclose(out);
}

/* --- parts ------------------------------------------------------------------------------------------------------------------ */

static void shell(const char *format)
{
    char command[3 * PATH];
    snprintf(command, sizeof command, format, dir);
    if (system(command) != 0)
        stop(command);
}

static void first_calls(void)
{
    Cost off[MAX_ROUNDS], store[MAX_ROUNDS], load[MAX_ROUNDS], memory[MAX_ROUNDS];
    for (int i = 0; i < rounds; i++) {
        off[i] = call_in_child("off").first;
        shell("rm -rf '%s'/*");
        Calls cold = call_in_child("on"), warm = call_in_child("on");
        if (cold.compiles != 1 || warm.compiles != 0 || warm.disk_hits != 1)
            stop("the second process did not hit");
        store[i] = cold.first;
        load[i] = warm.first;
        memory[i] = warm.again;
    }
    costs("first call of (a): compiled, no cache on disk", off, rounds, 15);
    costs("first call of (a): compiled and stored", store, rounds, 15);
    costs("first call of (a): loaded from disk", load, rounds, 1);
    costs("second call of (a): from memory", memory, rounds, 0);
}

/* Fills the directory with n names; their files are never read, but counted in every listing of their folder. */
static void fill(int n)
{
    char path[2 * PATH];
    unsigned seed = 1;
    for (int i = 0; i < 256; i++) {
        snprintf(path, sizeof path, "%s/%02x", dir, i);
        mkdir(path, 0700);
    }
    for (int i = 0; i < n; i++) {
        unsigned r[4];
        for (int k = 0; k < 4; k++)
            r[k] = seed = seed * 1664525u + 1013904223u;
        snprintf(path, sizeof path, "%s/%02x/%02x%06x%08x%08x%08x-00000000-%016x.kiln", dir, i % 256, i % 256, r[0] >> 8, r[1], r[2], r[3],
                 (unsigned)i);
        FILE *file = fopen(path, "w");
        if (!file)
            stop("cannot fill the directory");
        fclose(file);
    }
}

static void look_up(bool quick)
{
    static const int sizes[] = {10, 1000, 50000};
    static const char *const names[] = {"loaded from disk, among 10 entries", "loaded from disk, among 1,000 entries",
                                        "loaded from disk, among 50,000 entries"};
    for (size_t k = 0; k < (quick ? 2 : 3); k++) {
        Cost load[MAX_ROUNDS];
        shell("rm -rf '%s'/*");
        fill(sizes[k]);
        (void)call_in_child("on");
        for (int i = 0; i < rounds; i++)
            load[i] = call_in_child("on").first;
        costs(names[k], load, rounds, 1);
    }
}

static void whole_processes(void)
{
    Cost none[MAX_ROUNDS], warm[MAX_ROUNDS], cold[MAX_ROUNDS];
    double wall[MAX_ROUNDS], cpu[MAX_ROUNDS];
    for (int i = 0; i < rounds; i++) {
        shell("rm -rf '%s'/*");
        cold[i] = process("--first-call");
        none[i] = process("--nothing");
        warm[i] = process("--first-call");
        Calls calls = call_in_child("on");
        wall[i] = warm[i].wall / (none[i].wall + 2 * calls.again.wall);
        cpu[i] = warm[i].cpu / (none[i].cpu + 2 * calls.again.cpu);
    }
    costs("a process that only asks for an option", none, rounds, 0);
    costs("a process that computes (a) twice, cold", cold, rounds, 0);
    costs("the same, warm", warm, rounds, 0);
    result("warm over one with no work plus the kernels", "x", median(wall, rounds), median(cpu, rounds), 1.3);
}

int main(int argc, char **argv)
{
    const char *json = NULL, *tmp = getenv("TMPDIR");
    bool quick = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--first-call") == 0)
            return first_call();
        else if (strcmp(argv[i], "--nothing") == 0)
            return nothing();
        else if (strcmp(argv[i], "--quick") == 0)
            quick = true;
        else if (strcmp(argv[i], "--json") == 0 && i + 1 < argc)
            json = argv[++i];
        else {
            fprintf(stderr, "usage: disk [--quick] [--json FILE]\n");
            return 2;
        }
    }
    program = argv[0];
    rounds = quick ? QUICK_ROUNDS : ROUNDS;
    snprintf(dir, sizeof dir, "%s/kiln_bench_XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(dir))
        stop("cannot make a directory");
    printf("%-58s %9s %9s\n", "", "clock", "processor");
    first_calls();
    look_up(quick);
    whole_processes();
    shell("rm -rf '%s'");
    if (json)
        write_json(json);
    return 0;
}
