/*
 * What a key on disk consists of, and what it does not.
 *
 *   options      generated from the table: a KEYED one with another value finds nothing of the others, and each finds its own again;
 *                a NOT_KEYED one finds everything
 *   maker        each line of the maker's part: an entry whose line differs is not used, under its own name or under ours
 *   cpu          written by a process that sees more of the CPU: refused by one that sees less, and the other way round
 *   neutral      process, threads, folder, locale, time zone, size of the environment, home, place in memory: the same names
 *   threads      written with 8, loaded with 1, 2 and 16
 *   short hashes names and keys of 2 bits: everything collides, everything is right
 */
#include "tests/faults/harness.h"
#include "tests/faults/whole.h"
#include "tests/support/stats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <unistd.h>

enum { PROGRAMS = 3 };

/* --- options ------------------------------------------------------------------------------------------------------------- */

static void keyed(const char *cache, const OptionRow *row, const char *const *set)
{
    int before = entries(cache, NULL, NULL);
    const Run *run = worker(cache, PROGRAMS, set, 0);
    WELL(run, row->name);
    CHECK(run->hits == 0 && run->compiles == PROGRAMS && number(run, "miss.disk_maker") == PROGRAMS,
          "%s is KEYED, but programs made without it serve:\n%s", set[0], run->text);
    CHECK(entries(cache, NULL, NULL) == before + PROGRAMS, "%s: %d entries", set[0], entries(cache, NULL, NULL));
    run = worker(cache, PROGRAMS, set, 0);
    CHECK(run->hits == PROGRAMS, "%s does not find its own:\n%s", set[0], run->text);
    run = worker(cache, PROGRAMS, NULL, 0);
    CHECK(run->hits == PROGRAMS, "after %s the others are lost:\n%s", set[0], run->text);
}

static void not_keyed(const char *cache, const OptionRow *row, const char *const *set)
{
    int before = entries(cache, NULL, NULL);
    const Run *run = worker(cache, PROGRAMS, set, 0);
    WELL(run, row->name);
    CHECK(run->hits == PROGRAMS && entries(cache, NULL, NULL) == before,
          "%s is NOT_KEYED, but what was made without it does not serve:\n%s", set[0], run->text);
}

/* A file for an option that names one: a schedule, for a kernel that no program here has. */
static void option_file(const char *path)
{
    FILE *file = fopen(path, "w");
    CHECK(file &&
              fputs("kernel (a0 f32, a1 f32 out) for i < 5, j < 70; v0 = load a0[i*70 + j]; v1 = exp v0; store a1[i*70 + j] = v1\n"
                    "schedule 256; lanes 8; body once\n",
                    file) >= 0 &&
              fclose(file) == 0,
          "%s cannot be written", path);
}

static void options(void)
{
    /* These are about the cache itself or leave it out; what they do is tested elsewhere. */
    static const char *const others[] = {"mode", "cache",        "cache_dir", "device",    "libcuda", "libnccl", "libcusolver", "liblapack",
                                         "comm", "comm_address", "comm_rank", "test_fail", "log",     "dump",    "trace"};
    const char *cache = new_folder();
    OptionRow row;
    int n_keyed = 0, n_neutral = 0;
    WELL(worker(cache, PROGRAMS, NULL, 0), "filling");
    for (int i = 0; option_row(i, &row); i++) {
        char set[2 * PATH_BYTES] = "KILN_", path[PATH_BYTES + 16];
        bool skip = false;
        for (size_t k = 0; k < sizeof others / sizeof *others; k++)
            skip |= strcmp(row.name, others[k]) == 0;
        if (skip) {
            CHECK(!row.keyed, "%s is KEYED and left out here", row.name);
            continue;
        }
        snprintf(path, sizeof path, "%s.option", cache);
        bool is_file = strcmp(row.kind, "file") == 0;
        if (is_file)
            option_file(path);
        CHECK(is_file || row.other[0], "%s: no other value is known", row.name);
        for (size_t at = 0; row.name[at]; at++)
            snprintf(set + 5 + at, sizeof set - 5 - at, "%c",
                     row.name[at] >= 'a' && row.name[at] <= 'z' ? row.name[at] - 32 : row.name[at]);
        snprintf(set + strlen(set), sizeof set - strlen(set), "=%s", is_file ? path : row.other);
        if (row.keyed)
            keyed(cache, &row, (const char *const[]){set, NULL}), n_keyed++;
        else
            not_keyed(cache, &row, (const char *const[]){set, NULL}), n_neutral++;
        if (is_file)
            remove(path);
    }
    not_keyed(cache, &(OptionRow){.name = "log"}, (const char *const[]){"KILN_LOG=recompiles,cache", NULL});
    not_keyed(cache, &(OptionRow){.name = "check"}, (const char *const[]){"KILN_CHECK=cache", NULL});
    not_keyed(cache, &(OptionRow){.name = "cache"}, (const char *const[]){"KILN_CACHE=readonly", NULL});
    printf("%d options in the key, %d not\n", n_keyed, n_neutral);
    CHECK(n_keyed >= 6 && n_neutral >= 8, "%d, %d", n_keyed, n_neutral);
    drop_folder();
}

/* --- the maker ------------------------------------------------------------------------------------------------------------- */

static char one_entry[2 * PATH_BYTES];

static void found(const char *path, void *user)
{
    (void)user;
    snprintf(one_entry, sizeof one_entry, "%s", path);
}

static void maker_lines(void)
{
    int lines = 0;
    for (;; lines++) {
        const char *cache = new_folder();
        WELL(worker(cache, 1, NULL, 0), "filling");
        each_entry(cache, found, NULL);
        const char *name = rewrite_maker(one_entry, lines, false);
        if (!name)
            break;
        shell("rm '%s'", one_entry);
        int n = entries(cache, NULL, NULL);
        CHECK(n == 1, "line %d (%s): %d entries", lines, name, n);
        const Run *run = worker(cache, 1, NULL, 0);
        WELL(run, name);
        CHECK(run->hits == 0 && number(run, "miss.disk_maker") == 1 && run->refused == 0, "%s of another maker:\n%s", name, run->text);

        cache = new_folder();
        WELL(worker(cache, 1, NULL, 0), "filling");
        each_entry(cache, found, NULL);
        name = rewrite_maker(one_entry, lines, true);
        run = worker(cache, 1, NULL, 0);
        WELL(run, name);
        CHECK(run->hits == 0 && run->refused == 1, "%s of another maker, under our name:\n%s", name, run->text);
    }
    printf("%d lines of the maker's part\n", lines);
    CHECK(lines >= 10, "%d lines", lines);
    drop_folder();
}

static void cpu(void)
{
    static const char *const narrow[] = {"KILN_TEST_FAIL=cpu:-sse4.2", NULL};
    const char *cache = new_folder();
    WELL(worker(cache, PROGRAMS, NULL, 0), "wide");
    const Run *run = worker(cache, PROGRAMS, narrow, 0);
    WELL(run, "narrow");
    CHECK(run->hits == 0 && number(run, "miss.disk_maker") == PROGRAMS, "a narrower CPU runs code of a wider one:\n%s", run->text);
    run = worker(cache, PROGRAMS, narrow, 0);
    CHECK(run->hits == PROGRAMS, "the narrower one does not find its own:\n%s", run->text);
    run = worker(cache, PROGRAMS, NULL, 0);
    CHECK(run->hits == PROGRAMS && run->warnings == 0, "the wider one does not find its own:\n%s", run->text);
    shell("cp -a '%s' '%s.copy' && rm -rf '%s'/??", cache, cache, cache);
    WELL(worker(cache, PROGRAMS, narrow, 0), "narrow alone");
    run = worker(cache, PROGRAMS, (const char *const[]){"KILN_COMPILE=off", NULL}, 0);
    CHECK(run->exit != 0 && run->hits == 0, "a wider CPU takes a narrower one's entries, which its key does not say:\n%s", run->text);
    shell("rm -rf '%s.copy'", cache);
    drop_folder();
}

/* Loops are cut for the size of a CUDA device, so code for one of another size is not taken. */
static void cuda(void)
{
    char library[4096];
    const char *driver = getenv("KILN_TEST_LIBCUDA");
    if (!driver) {
        printf("no software CUDA driver in this build: nothing was tested\n");
        return;
    }
    snprintf(library, sizeof library, "KILN_LIBCUDA=%s", driver);
    const char *small[] = {"KILN_DEVICE=cuda", library, "KILN_TEST_CUDA=sms=4", NULL},
               *large[] = {small[0], library, "KILN_TEST_CUDA=sms=100", NULL};
    const char *cache = new_folder();
    WELL(worker(cache, 2, small, 0), "small");
    const Run *run = worker(cache, 2, large, 0);
    WELL(run, "large");
    CHECK(run->hits == 0 && number(run, "miss.disk_maker") == 2, "a large device runs code for a small one:\n%s", run->text);
    run = worker(cache, 2, small, 0);
    CHECK(run->hits == 2, "the small one does not find its own:\n%s", run->text);
    drop_folder();
}

/* --- what must not matter ------------------------------------------------------------------------------------------------------ */

static void add_name(const char *path, void *user)
{
    char *names = user;
    strcat(names, strrchr(path, '/'));
}

/* The names of all entries that a worker makes in this environment, in an order of their own. */
static void names_of(const char *const *environment, char *names)
{
    const char *cache = new_folder();
    WELL(worker(cache, PROGRAMS, environment, 0), environment ? environment[0] : "as always");
    names[0] = '\0';
    each_entry(cache, add_name, names);
    CHECK(entries(cache, NULL, NULL) == PROGRAMS, "%d entries", entries(cache, NULL, NULL));
}

static void neutral(void)
{
    static char large[100000];
    memset(large, 'x', sizeof large - 1);
    memcpy(large, "LARGE=", 6);
    const char *const environments[][4] = {{NULL},
                                           {"KILN_THREADS=8", "TZ=Asia/Tokyo", NULL},
                                           {"LC_ALL=de_DE.UTF-8", "LANG=tr_TR", NULL},
                                           {large, "HOME=/nonexistent", NULL},
                                           {"HOME", "PWD=/elsewhere", "MALLOC_PERTURB_=165", NULL}};
    char first[1024], names[1024], here[PATH_BYTES];
    names_of(NULL, first);
    for (size_t i = 0; i < sizeof environments / sizeof *environments; i++) {
        names_of(environments[i], names);
        CHECK(strcmp(names, first) == 0, "other keys with %.60s: %s, not %s", environments[i][0] ? environments[i][0] : "nothing", names,
              first);
    }
    int persona = personality(0xffffffff); /* every process so far was at another place in memory; these are at the same */
    if (persona >= 0 && personality((unsigned long)persona | ADDR_NO_RANDOMIZE) >= 0) {
        names_of(NULL, names);
        CHECK(strcmp(names, first) == 0, "other keys without address randomisation: %s", names);
        (void)personality((unsigned long)persona);
    }
    CHECK(getcwd(here, sizeof here) && chdir("/") == 0, "chdir");
    names_of(NULL, names);
    CHECK(strcmp(names, first) == 0, "other keys in another folder: %s", names);
    CHECK(chdir(here) == 0, "chdir");
    drop_folder();
}

static void threads(void)
{
    static const char *const counts[] = {"KILN_THREADS=1", "KILN_THREADS=2", "KILN_THREADS=16"};
    const char *cache = new_folder();
    WELL(worker(cache, PROGRAMS, (const char *const[]){"KILN_THREADS=8", NULL}, 0), "8 threads");
    for (int i = 0; i < 3; i++) {
        const Run *run = worker(cache, PROGRAMS, (const char *const[]){counts[i], NULL}, 0);
        WELL(run, counts[i]);
        CHECK(run->hits == PROGRAMS && run->compiles == 0, "%s: %s", counts[i], run->text);
    }
    drop_folder();
}

/* --- collisions --------------------------------------------------------------------------------------------------------------- */

/* Program k and its value. */
static bool compute(int k)
{
    static const float data[4] = {1, 2, 3, 4};
    double value = -1, want = 10;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(4), data);
    for (int bits = k + 1; bits; bits /= 2) {
        x = bits % 2 ? kiln_add(x, x) : kiln_neg(x);
        want = bits % 2 ? want + want : -want;
    }
    bool right = kiln_item(kiln_sum(x), &value) == KILN_OK && value == want;
    CHECK(right, "program %d: %g, not %g: %s", k, value, want, kiln_error_message());
    kiln_scope_end(scope);
    return right;
}

static void short_hashes(void)
{
    enum { MANY = 24, BITS = 2 };
    const char *cache = new_folder();
    set_option("cache", "on");
    set_option("cache_dir", cache);
    shorten_hashes(BITS);
    for (int again = 0; again < 3; again++) {
        forget_programs();
        for (int k = 0; k < MANY; k++)
            compute(k);
    }
    kiln_stats s = stats_now();
    int n = entries(cache, NULL, NULL);
    CHECK(n >= 1 && n <= 1 << 3 * BITS, "%d entries", n);
    CHECK(s.disk_hits > 0, "nothing was found");
    CHECK(s.fallbacks == 0 && s.disk_refused == 0 && n_warnings == 0, "%d refused: %s", (int)s.disk_refused, last_warning);
    printf("%d programs under %d names: %d found on disk, %d compiled\n", MANY, n, (int)s.disk_hits, (int)s.compiles);
    shorten_hashes(0);
    drop_folder();
}

int main(int argc, char **argv)
{
    static const Test tests[] = {{"options", options}, {"maker_lines", maker_lines},  {"cpu", cpu}, {"cuda", cuda}, {"neutral", neutral},
                                 {"threads", threads}, {"short_hashes", short_hashes}};
    return run_some_tests("keys", tests, sizeof tests / sizeof *tests, argc, argv);
}
