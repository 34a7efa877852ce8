/*
 * The cache on disk across processes: what one compiled the next one loads, and nothing else is ever used. Each test has a
 * directory of its own and runs disk_program in it, several times.
 */
#include "tests/support/count.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TEXT = 1 << 16, PATH = 256 };

static char dir[PATH];

/* Texts live until the test ends (the oldest go where there are very many). */
static char *texts[1000];
static int n_texts;

static __attribute__((format(printf, 1, 2))) char *text_of(const char *format, ...)
{
    char **out = &texts[n_texts++ % 1000];
    va_list args;
    va_start(args, format);
    free(*out);
    cr_assert_geq(vasprintf(out, format, args), 0);
    va_end(args);
    return *out;
}

static void shell(const char *command) { cr_assert_eq(system(command), 0, "%s", command); }
static char *in_dir(const char *name) { return text_of("%s/%s", dir, name); }

static void setup(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/kiln_cache_XXXXXX", tmp ? tmp : "/tmp");
    cr_assert_not_null(mkdtemp(dir));
    setenv("KILN_CACHE_DIR", dir, 1);
    setenv("KILN_CACHE", "on", 1);
}

static void teardown(void)
{
    shell(text_of("rm -rf '%s'", dir));
    for (int i = 0; i < 1000; i++)
        free(texts[i]);
}

TestSuite(disk, .init = setup, .fini = teardown);

/* What disk_program says with this environment ("KILN_MATH=strict ") and these steps. */
static const char *run(const char *environment, const char *steps)
{
    static char text[4][TEXT];
    static int turn;
    char *out = text[turn++ % 4], *command = text_of("%s '%s' %s 2>&1", environment, KILN_DISK_PROGRAM, steps);
    FILE *pipe = popen(command, "r");
    cr_assert_not_null(pipe);
    size_t n = fread(out, 1, TEXT - 1, pipe);
    out[n] = '\0';
    int status = pclose(pipe);
    cr_assert_eq(status, 0, "%s\n%s", command, out);
    return out;
}

/* The number behind "name=" in what disk_program said at the end. */
static long counter(const char *text, const char *name)
{
    char word[64];
    snprintf(word, sizeof word, "%s=", name);
    for (const char *at = text; (at = strstr(at, word)); at++)
        if (at == text || at[-1] == ' ' || at[-1] == '\n')
            return strtol(at + strlen(word), NULL, 10);
    return 0;
}

#define EXPECT_COUNTER(text, name, value) cr_assert_eq(counter(text, name), value, "%s is %ld:\n%s", name, counter(text, name), text)

/* The result of a step: the line that begins with it. */
static const char *result(const char *text, const char *step)
{
    static char line[4][128];
    static int turn;
    const char *at = strstr(text, step);
    cr_assert_not_null(at, "%s in:\n%s", step, text);
    char *out = line[turn++ % 4];
    snprintf(out, sizeof line[0], "%.*s", (int)strcspn(at, "\n"), at);
    return out;
}

static int entries(char names[][128], int most)
{
    int n = 0;
    for (int i = 0; i < 256; i++) {
        DIR *stream = opendir(text_of("%s/%02x", dir, i));
        for (struct dirent *entry; stream && (entry = readdir(stream));)
            if (strstr(entry->d_name, ".kiln")) {
                if (n < most && names)
                    snprintf(names[n], sizeof names[0], "%.2s/%.100s", entry->d_name, entry->d_name);
                n++;
            }
        if (stream)
            closedir(stream);
    }
    return n;
}

/* --- hits ---------------------------------------------------------------------------------------------------------------- */

static const char every[] =
    "elementwise:6 reduction:7 contraction:5 doubles:9 power:2 sorted:8 dynamic:4 static:4 gather:3 strided:6 function:5 constant:4";

Test(disk, a_second_process_compiles_nothing)
{
    const char *cold = run("", every), *warm = run("", every);
    long compiles = counter(cold, "compiles");
    cr_assert_geq(compiles, 10, "%s", cold);
    EXPECT_COUNTER(cold, "disk_hits", 0);
    EXPECT_COUNTER(cold, "disk_stored", compiles);
    EXPECT_COUNTER(warm, "compiles", 0);
    EXPECT_COUNTER(warm, "misses", 0);
    EXPECT_COUNTER(warm, "disk_hits", compiles);
    EXPECT_COUNTER(warm, "fallbacks", 0);
    cr_assert_null(strstr(cold, "warning"), "%s", cold);
    cr_assert_null(strstr(warm, "warning"), "%s", warm);
    cr_assert_eq(strncmp(cold, warm, strcspn(cold, "h")), 0, "results differ:\n%s%s", cold, warm);
    char steps[sizeof every];
    strcpy(steps, every);
    for (char *step = strtok(steps, " "); step; step = strtok(NULL, " "))
        cr_assert_str_eq(result(cold, step), result(warm, step));
}

Test(disk, results_are_those_without_a_cache_and_of_the_interpreter)
{
    const char *off = run("KILN_CACHE=off KILN_MATH=strict", every), *interp = run("KILN_MODE=interp KILN_MATH=strict", every);
    EXPECT_COUNTER(off, "disk_stored", 0);
    cr_assert_eq(entries(NULL, 0), 0);
    (void)run("KILN_MATH=strict", every);
    const char *warm = run("KILN_MATH=strict", every);
    EXPECT_COUNTER(warm, "compiles", 0);
    char steps[sizeof every];
    strcpy(steps, every);
    for (char *step = strtok(steps, " "); step; step = strtok(NULL, " ")) {
        cr_assert_str_eq(result(off, step), result(warm, step));
        cr_assert_str_eq(result(interp, step), result(warm, step));
    }
}

/* A warm process needs no LLVM at all. */
Test(disk, a_warm_process_does_not_wake_llvm)
{
    (void)run("", every);
    const char *warm = run("KILN_TEST_FAIL=llvm KILN_STRICT=1", every);
    EXPECT_COUNTER(warm, "compiles", 0);
    cr_assert(!strstr(warm, "error") && !strstr(warm, "KILN_TEST_FAIL"), "%s", warm);
    const char *cold = run("KILN_TEST_FAIL=llvm KILN_STRICT=1", "elementwise:6 elementwise:60");
    cr_assert_not_null(strstr(cold, "KILN_TEST_FAIL"), "the hook does nothing:\n%s", cold);
}

Test(disk, five_processes_make_the_same_keys)
{
    char first[64][128], again[64][128];
    (void)run("setarch -R", "elementwise:6 reduction:7 gather:3");
    int n = entries(first, 64);
    cr_assert_geq(n, 3);
    for (int i = 0; i < 5; i++) {
        const char *text =
            run(i % 2 ? "MALLOC_PERTURB_=90" : "", i % 2 ? "gather:3 reduction:7 elementwise:6" : "reduction:7 elementwise:6 gather:3");
        EXPECT_COUNTER(text, "compiles", 0);
    }
    (void)run("KILN_CACHE=refresh", "reduction:7 gather:3 elementwise:6");
    cr_assert_eq(entries(again, 64), n);
}

Test(disk, threads_and_other_options_that_change_no_code_share)
{
    (void)run("KILN_THREADS=8", "contraction:40 reduction:90");
    static const char *const neutral[] = {"KILN_THREADS=1", "KILN_THREADS=2",      "KILN_THREADS=16",
                                          "KILN_STRICT=1",  "KILN_NO_LOCATIONS=1", "KILN_DYNAMIC=always",
                                          "LC_ALL=C",       "KILN_CHECK=pure",     "KILN_CACHE_BYTES=100000000"};
    const char *before = NULL;
    for (size_t i = 0; i < sizeof neutral / sizeof *neutral; i++) {
        const char *text = run(neutral[i], "contraction:40 reduction:90");
        EXPECT_COUNTER(text, "compiles", 0);
        if (before)
            cr_assert_str_eq(result(before, "contraction"), result(text, "contraction"), "%s", neutral[i]);
        before = text;
    }
}

/* --- what must not hit --------------------------------------------------------------------------------------------------- */

Test(disk, every_option_that_changes_code_is_in_the_key)
{
    static const char *const keyed[] = {"KILN_MATH=strict", "KILN_FINITE=1",      "KILN_TF32=1",
                                        "KILN_FUSE=0",      "KILN_REWRITE=0",     "KILN_VECTOR_BITS=128",
                                        "KILN_LLVM_OPT=2",  "KILN_CPU=x86-64-v3", "KILN_SUBNORMALS=flush"};
    (void)run("", "elementwise:6");
    for (size_t i = 0; i < sizeof keyed / sizeof *keyed; i++) {
        const char *other = run(keyed[i], "elementwise:6");
        EXPECT_COUNTER(other, "disk_hits", 0);
        EXPECT_COUNTER(other, "miss.disk_maker", 1);
        EXPECT_COUNTER(run(keyed[i], "elementwise:6"), "compiles", 0);
    }
    EXPECT_COUNTER(run("", "elementwise:6"), "compiles", 0); /* toggled back */
    const char *toggled = run("", "elementwise:6 set:math=strict elementwise:6 set:math=fast elementwise:6");
    EXPECT_COUNTER(toggled, "compiles", 0);
    EXPECT_COUNTER(toggled, "disk_hits", 2);
}

Test(disk, an_entry_of_a_wider_cpu_is_not_used)
{
    (void)run("", "elementwise:6");
    const char *narrow = run("KILN_TEST_FAIL=cpu:-avx2 KILN_LOG=cache", "elementwise:6");
    EXPECT_COUNTER(narrow, "disk_hits", 0);
    EXPECT_COUNTER(narrow, "miss.disk_maker", 1);
    cr_assert_not_null(strstr(narrow, "features is"), "%s", narrow);
    EXPECT_COUNTER(run("KILN_TEST_FAIL=cpu:-avx2", "elementwise:6"), "compiles", 0);
}

/* On the software CUDA driver, where the build has one. */
Test(disk, a_gpu_has_entries_of_its_own)
{
    static const char steps[] = "elementwise:6 doubles:9 power:2 gather:3";
    const char *driver = getenv("KILN_TEST_LIBCUDA");
    if (!driver)
        return;
    const char *gpu = text_of("KILN_DEVICE=cuda KILN_LIBCUDA='%s' KILN_TEST_MEMORY=exact", driver);
    (void)run("", steps);
    const char *cold = run(gpu, steps), *warm = run(gpu, steps), *cpu = run("", steps);
    EXPECT_COUNTER(cold, "disk_hits", 0);
    EXPECT_COUNTER(cold, "miss.disk_maker", 4);
    EXPECT_COUNTER(cold, "disk_stored", 4);
    EXPECT_COUNTER(warm, "compiles", 0);
    EXPECT_COUNTER(warm, "fallbacks", 0);
    cr_assert_str_eq(result(cold, "elementwise"), result(warm, "elementwise"));
    cr_assert_str_eq(result(cold, "gather"), result(warm, "gather"));
    EXPECT_COUNTER(cpu, "compiles", 0);
    /* with its machine code, so nothing is assembled; beside it the PTX, for a driver that does not take that code */
    static const char *const failing[] = {"cuLinkCreate_v2:1:700:sticky", "cuModuleLoadDataEx:1:209"};
    for (size_t i = 0; i < sizeof failing / sizeof *failing; i++) {
        const char *again = run(text_of("%s KILN_STRICT=1 KILN_TEST_CUDA=fail=%s", gpu, failing[i]), steps);
        EXPECT_COUNTER(again, "compiles", 0);
        cr_assert_null(strstr(again, "error"), "%s: %s", failing[i], again);
        cr_assert_str_eq(result(cold, "elementwise"), result(again, "elementwise"));
    }
    const char *checked = run(text_of("%s KILN_CHECK=cache", gpu), steps);
    cr_assert_null(strstr(checked, "warning"), "%s", checked);
    EXPECT_COUNTER(checked, "compiles", 4);
}

/* `kiln info` and `kiln cache import` know GPUs from the file `info`, whenever a process began to use them. */
Test(disk, gpus_in_use_are_named_in_the_file_info)
{
    const char *driver = getenv("KILN_TEST_LIBCUDA");
    if (!driver)
        return;
    EXPECT_COUNTER(run(text_of("KILN_LIBCUDA='%s'", driver), "elementwise:6 set:device=cuda elementwise:6"), "disk_stored", 2);
    for (int i = 0; i < 2; i++) {
        shell(text_of("grep -q '^cuda:0=kiln software device, compute capability 8.0' '%s'", in_dir("info")));
        shell(text_of("grep -q '^cuda:0.code=sm sm_80, .*driver 13000' '%s'", in_dir("info")));
        EXPECT_COUNTER(run("", "reduction:7"), "fallbacks", 0); /* a process that uses none leaves that */
    }
}

/* What is known of a GPU stays where a process uses another one only: entries for both can be imported. */
Test(disk, each_gpu_in_use_is_named_in_the_file_info)
{
    const char *driver = getenv("KILN_TEST_LIBCUDA");
    if (!driver)
        return;
    static const char *const words[] = {"devices=2,cc=8.0 KILN_DEVICE=cuda:0", "devices=2,cc=9.0 KILN_DEVICE=cuda:1",
                                        "devices=2,cc=8.0 KILN_DEVICE=cuda:0", "devices=0"};
    for (int i = 0; i < 4; i++) {
        const char *text =
            run(text_of("KILN_LIBCUDA='%s' KILN_TEST_CUDA=%s", driver, words[i]), text_of("elementwise:6 reduction:%d", 7 + i));
        EXPECT_COUNTER(text, "fallbacks", 0);
        static const char *const lines[] = {"^cuda:0=.*compute capability 8.0", "^cuda:0.code=sm sm_80,",
                                            "^cuda:1=.*compute capability 9.0", "^cuda:1.code=sm sm_90"};
        for (int k = 0; k < (i == 0 ? 2 : 4); k++)
            shell(text_of("test \"$(grep -c '%s' '%s')\" = 1", lines[k], in_dir("info")));
        shell(text_of("test \"$(grep -c '^cuda:' '%s')\" = %d", in_dir("info"), i == 0 ? 2 : 4));
    }
}

/* Machine code that another driver's assembler made is not used, though the PTX would be the same. */
Test(disk, another_driver_compiles_anew)
{
    const char *driver = getenv("KILN_TEST_LIBCUDA");
    if (!driver)
        return;
    const char *older = text_of("KILN_DEVICE=cuda KILN_LIBCUDA='%s' KILN_TEST_CUDA=driver=12060", driver);
    const char *newer = text_of("KILN_DEVICE=cuda KILN_LIBCUDA='%s' KILN_TEST_CUDA=driver=13000 KILN_LOG=cache", driver);
    EXPECT_COUNTER(run(older, "elementwise:6"), "disk_stored", 1);
    const char *updated = run(newer, "elementwise:6");
    EXPECT_COUNTER(updated, "disk_hits", 0);
    EXPECT_COUNTER(updated, "miss.disk_maker", 1);
    EXPECT_COUNTER(updated, "compiles", 1);
    cr_assert_not_null(strstr(updated, "driver is"), "%s", updated);
    EXPECT_COUNTER(run(newer, "elementwise:6"), "compiles", 0);
    EXPECT_COUNTER(run(older, "elementwise:6"), "compiles", 0);
}

Test(disk, marks_are_in_the_key)
{
    (void)run("", "dynamic:4");
    EXPECT_COUNTER(run("", "dynamic:5 dynamic:6"), "compiles", 0);
    EXPECT_COUNTER(run("", "static:4"), "disk_hits", 0);
    EXPECT_COUNTER(run("", "static:5"), "disk_hits", 0);
    EXPECT_COUNTER(run("", "static:4 static:5 dynamic:7"), "compiles", 0);
}

/* --- sizes that vary from process to process -------------------------------------------------------------------------------- */

Test(disk, what_varied_in_another_process_becomes_an_argument)
{
    EXPECT_COUNTER(run("", "elementwise:6"), "compiles", 1);
    const char *second = run("", "elementwise:8"); /* sees that the size was 6 */
    EXPECT_COUNTER(second, "compiles", 1);
    EXPECT_COUNTER(second, "disk_loaded", 1);
    EXPECT_COUNTER(second, "miss.size", 1);
    const char *third = run("", "elementwise:11 elementwise:300 elementwise:0 elementwise:1");
    EXPECT_COUNTER(third, "disk_hits", 1);
    cr_assert_leq(counter(third, "compiles"), 1, "%s", third);
    EXPECT_COUNTER(run("KILN_DYNAMIC=never", "elementwise:77 elementwise:78"), "fallbacks", 0);
}

/* As in memory: after KILN_MAX_VARIANTS programs the most general one, which replaces the others. */
Test(disk, a_general_program_replaces_the_others)
{
    char step[64];
    for (int n = 2; n <= 4; n++) {
        snprintf(step, sizeof step, "static:9 power:%d", n);
        EXPECT_COUNTER(run("KILN_MAX_VARIANTS=3", step), "fallbacks", 0);
    }
    int before = entries(NULL, 0);
    const char *general =
        run("KILN_MAX_VARIANTS=3", "elementwise:2 set:dynamic=never elementwise:3 elementwise:4 set:dynamic=auto elementwise:5");
    EXPECT_COUNTER(general, "compiles", 4);
    cr_assert_eq(entries(NULL, 0), before + 1, "%d and then %d", before, entries(NULL, 0));
    EXPECT_COUNTER(run("KILN_MAX_VARIANTS=3", "elementwise:2 elementwise:3 elementwise:1000"), "compiles", 0);
}

/* --- modes -------------------------------------------------------------------------------------------------------------------- */

Test(disk, readonly_changes_nothing)
{
    char name[1][128];
    (void)run("", "elementwise:6");
    shell(text_of("cd %s && rm -f counters misses info", dir));
    cr_assert_eq(entries(name, 1), 1);
    struct timespec old[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    cr_assert_eq(utimensat(AT_FDCWD, in_dir(name[0]), old, 0), 0);
    const char *text = run("KILN_CACHE=readonly", "elementwise:6 reduction:4");
    EXPECT_COUNTER(text, "disk_hits", 1);
    EXPECT_COUNTER(text, "compiles", 1);
    EXPECT_COUNTER(text, "disk_stored", 0);
    cr_assert_eq(entries(NULL, 0), 1);
    struct stat info;
    cr_assert_eq(stat(in_dir(name[0]), &info), 0);
    cr_assert_eq(info.st_mtime, 1000000000);
    cr_assert_neq(access(in_dir("counters"), F_OK), 0);
    (void)run("", "elementwise:6"); /* a use is noted again */
    cr_assert_eq(stat(in_dir(name[0]), &info), 0);
    cr_assert_gt(info.st_mtime, 1000000000);
}

Test(disk, refresh_compiles_anew_and_replaces)
{
    char name[1][128];
    struct stat before, after;
    (void)run("", "elementwise:6");
    cr_assert_eq(entries(name, 1), 1);
    cr_assert_eq(stat(in_dir(name[0]), &before), 0);
    const char *text = run("KILN_CACHE=refresh", "elementwise:6");
    EXPECT_COUNTER(text, "compiles", 1);
    EXPECT_COUNTER(text, "disk_stored", 1);
    cr_assert_eq(entries(NULL, 0), 1);
    cr_assert_eq(stat(in_dir(name[0]), &after), 0);
    cr_assert_neq(before.st_ino, after.st_ino);
}

Test(disk, compile_off_names_what_is_missing)
{
    (void)run("", "elementwise:6");
    const char *text = run("KILN_COMPILE=off", "elementwise:6 reduction:4 elementwise:7");
    EXPECT_COUNTER(text, "disk_hits", 1);
    EXPECT_COUNTER(text, "compiles", 0);
    EXPECT_COUNTER(text, "fallbacks", 0);
    cr_assert_null(strstr(result(text, "elementwise:6"), "error"), "%s", text);
    const char *missing = strstr(text, "reduction:4 error");
    cr_assert(missing && strstr(missing, "KILN_COMPILE=off") && strstr(missing, "f32[4,5]") && strstr(missing, "kiln_eval at") &&
                  strstr(missing, "program.c:"),
              "%s", text);
    cr_assert_not_null(strstr(text, "elementwise:7 error"), "%s", text);
}

Test(disk, check_compares_with_a_fresh_compile)
{
    (void)run("", every);
    const char *text = run("KILN_CHECK=cache KILN_LOG=cache", every);
    cr_assert_null(strstr(text, "warning"), "%s", text);
    int checked = occurrences("checked, compiling gives the same", text);
    cr_assert_eq(checked, counter(text, "disk_hits"), "%s", text);
    cr_assert_eq(counter(text, "compiles"), checked, "%s", text);
    const char *dynamic = run("", "elementwise:7 elementwise:8");
    cr_assert_eq(counter(dynamic, "fallbacks"), 0);
    text = run("KILN_CHECK=cache KILN_LOG=cache", "elementwise:7");
    cr_assert_not_null(strstr(text, "compiling gives the same"), "%s", text);
    text = run("KILN_CHECK=cache KILN_LOG=cache", "elementwise:9");
    cr_assert_not_null(strstr(text, "not checked"), "%s", text);
}

/* Kernels are shared by their text, and their code follows from it: whichever program was first, compiling gives the same. */
Test(disk, check_holds_whichever_program_had_a_kernel_first)
{
    const char *driver = getenv("KILN_TEST_LIBCUDA");
    const char *gpu = driver ? text_of(" KILN_DEVICE=cuda KILN_LIBCUDA='%s' KILN_TEST_MEMORY=exact", driver) : "";
    static const char *const orders[] = {"product:2 ranked:300", "ranked:300 product:2", "ranked:300", "product:2"};
    for (int device = 0; device < (driver ? 2 : 1); device++) {
        (void)run(text_of("KILN_DYNAMIC=always%s", device ? gpu : ""), orders[0]);
        for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
            const char *text = run(text_of("KILN_DYNAMIC=always KILN_CHECK=cache KILN_LOG=cache%s", device ? gpu : ""), orders[i]);
            cr_assert_null(strstr(text, "warning"), "%s", text);
            cr_assert_not_null(strstr(text, "checked, compiling gives the same"), "%s", text);
            EXPECT_COUNTER(text, "disk_hits", i < 2 ? 2 : 1);
        }
    }
}

/* --- what a process leaves behind ------------------------------------------------------------------------------------------------ */

static const char *file_text(const char *name)
{
    static char text[TEXT];
    FILE *file = fopen(in_dir(name), "r");
    size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;
    text[n] = '\0';
    if (file)
        fclose(file);
    return text;
}

static int lines(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

Test(disk, counters_misses_and_info_are_left_behind)
{
    (void)run("", "elementwise:6 elementwise:6");
    const char *text = file_text("counters");
    cr_assert(strstr(text, "memory_hits=1") && strstr(text, "compiles=1") && strstr(text, "published=1") &&
                  strstr(text, "miss.never_seen=1"),
              "%s", text);
    cr_assert_not_null(strstr(text, ".kiln hits=1"), "%s", text);
    text = file_text("misses");
    cr_assert(lines(text) == 1 && strstr(text, "where=kiln_eval") && strstr(text, "reason=never_seen") && strstr(text, "ints=6,3"), "%s",
              text);
    cr_assert_null(strchr(text, '/'), "a path in %s", text);
    text = file_text("info");
    cr_assert(strstr(text, "llvm=") && strstr(text, "features=") && strstr(text, "build="), "%s", text);
    (void)run("", "elementwise:6 elementwise:6");
    text = file_text("counters");
    cr_assert(strstr(text, "disk_hits=1") && strstr(text, "saved_us="), "%s", text);
    cr_assert_eq(lines(file_text("misses")), 1);
}

Test(disk, a_child_counts_for_itself)
{
    const char *text = run("", "elementwise:6 reduction:4 fork elementwise:6 elementwise:6 contraction:3");
    EXPECT_COUNTER(text, "fallbacks", 0);
    text = file_text("counters");
    cr_assert_not_null(strstr(text, "memory_hits=2 compiles=1 published=1"), "%s", text); /* the parent ended without exit handlers */
    EXPECT_COUNTER(run("", "elementwise:6 reduction:4 contraction:3"), "compiles", 0);
}

Test(disk, background_programs_are_kept_too)
{
    const char *cold = run("KILN_ASYNC_COMPILE=1", "elementwise:6 elementwise:7");
    EXPECT_COUNTER(cold, "disk_stored", 2);
    const char *warm = run("KILN_ASYNC_COMPILE=1", "elementwise:6 elementwise:500");
    EXPECT_COUNTER(warm, "misses", 0);
    EXPECT_COUNTER(warm, "disk_loaded", 2);
}

/* --- the directory ------------------------------------------------------------------------------------------------------------------ */

/* The most general program serves a call for which the disk has a better one: that is loaded, and not compiled again. */
Test(disk, a_better_program_on_disk_is_not_compiled_again)
{
    const char *cold = run("KILN_ASYNC_COMPILE=1", "grid:816 wait:1 grid:916 wait:2 grid:916");
    EXPECT_COUNTER(cold, "compiles", 3);
    EXPECT_COUNTER(cold, "disk_stored", 3);
    const char *warm = run("", "grid:917 set:async_compile=1 grid:916 grid:916 grid:716");
    EXPECT_COUNTER(warm, "compiles", 0);
    EXPECT_COUNTER(warm, "disk_loaded", 2);
    EXPECT_COUNTER(warm, "misses", 0);
    cr_assert_str_eq(result(cold, "grid:916"), result(warm, "grid:916"));
    const char *without = run("KILN_CACHE=refresh", "grid:917 set:async_compile=1 grid:916");
    cr_assert_geq(counter(without, "compiles"), 1, "%s", without);
}

/* Programs that were made to forget guards are wrong on purpose: none is left to others, and none of the others is used. */
Test(disk, programs_without_their_guards_stay_in_their_process)
{
    const char *hook = "KILN_TEST_FAIL=guard:size", *wrong = run(hook, "reduction:7 reduction:9");
    EXPECT_COUNTER(wrong, "compiles", 1);
    EXPECT_COUNTER(wrong, "disk_stored", 0);
    cr_assert_eq(entries(NULL, 0), 0);
    const char *right = run("", "reduction:7 reduction:9");
    EXPECT_COUNTER(right, "compiles", 2);
    EXPECT_COUNTER(right, "disk_stored", 2);
    cr_assert_str_neq(result(wrong, "reduction:9"), result(right, "reduction:9"), "the hook does nothing");
    EXPECT_COUNTER(run(hook, "reduction:7"), "disk_hits", 0);
}

Test(disk, no_home_is_one_warning)
{
    const char *text = run("env -u KILN_CACHE_DIR -u XDG_CACHE_HOME -u HOME", "elementwise:6 reduction:3");
    const char *first = strstr(text, "warning: ");
    cr_assert(first && strstr(first, "no cache on disk"), "%s", text);
    cr_assert_null(strstr(first + 1, "warning: "), "%s", text);
    EXPECT_COUNTER(text, "compiles", 2);
}

Test(disk, the_default_place_is_made_for_its_user_alone)
{
    const char *text = run(text_of("env -u KILN_CACHE_DIR -u XDG_CACHE_HOME HOME='%s/home'", dir), "elementwise:6");
    EXPECT_COUNTER(text, "disk_stored", 1);
    struct stat info;
    cr_assert_eq(stat(in_dir("home/.cache/kiln"), &info), 0);
    cr_assert_eq(info.st_mode & 0777, 0700);
    cr_assert_eq(access(in_dir("home/.cache/kiln/CACHEDIR.TAG"), F_OK), 0);
    text = run(text_of("env -u KILN_CACHE_DIR XDG_CACHE_HOME='%s/home/.cache'", dir), "elementwise:6");
    EXPECT_COUNTER(text, "disk_hits", 1);
}

Test(disk, a_directory_that_others_may_write_is_refused)
{
    (void)run("", "elementwise:6");
    cr_assert_eq(chmod(dir, 0777), 0);
    const char *text = run("", "elementwise:6");
    EXPECT_COUNTER(text, "disk_hits", 0);
    cr_assert(strstr(text, "warning: ") && strstr(text, "others may write"), "%s", text);
    cr_assert_eq(chmod(dir, 0700), 0);
    EXPECT_COUNTER(run("", "elementwise:6"), "disk_hits", 1);
}

Test(disk, a_link_to_a_directory_is_refused)
{
    (void)run("", "elementwise:6");
    cr_assert_eq(symlink(dir, in_dir("link")), 0);
    const char *text = run(text_of("KILN_CACHE_DIR='%s/link/'", dir), "elementwise:6");
    EXPECT_COUNTER(text, "disk_hits", 0);
    cr_assert(strstr(text, "symbolic link"), "%s", text);
}

/* Whatever lies where an entry should be: another compile, and the next process has its entry back. */
Test(disk, strange_things_in_place_of_an_entry)
{
    static const char *const replace[] = {": >", "echo text >", "ln -s /etc/passwd ", "mkfifo ", "head -c 9999 /dev/zero >"};
    for (size_t i = 0; i < sizeof replace / sizeof *replace; i++) {
        char name[1][128];
        (void)run("", "elementwise:6");
        cr_assert_eq(entries(name, 1), 1);
        cr_assert_eq(unlink(in_dir(name[0])), 0);
        shell(text_of("%s'%s'", replace[i], in_dir(name[0])));
        const char *text = run("", "elementwise:6");
        EXPECT_COUNTER(text, "compiles", 1);
        EXPECT_COUNTER(text, "fallbacks", 0);
        const char *next = run("", "elementwise:6");
        EXPECT_COUNTER(next, "compiles", 0);
        cr_assert_str_eq(result(text, "elementwise:6"), result(next, "elementwise:6"));
    }
}

Test(disk, an_entry_under_anothers_name_is_refused)
{
    char name[2][128];
    (void)run("", "elementwise:6");
    cr_assert_eq(entries(name, 1), 1);
    (void)run("", "reduction:6");
    cr_assert_eq(entries(name, 2), 2);
    shell(text_of("cd '%s' && cp %s %s", dir, name[0], name[1]));
    const char *text = run("", "elementwise:6 reduction:6");
    EXPECT_COUNTER(text, "disk_hits", 1);
    EXPECT_COUNTER(text, "disk_refused", 1);
    EXPECT_COUNTER(text, "miss.disk_damaged", 1);
    EXPECT_COUNTER(run("", "elementwise:6 reduction:6"), "compiles", 0);
}

static long size_of_entries(char name[][128], int n)
{
    long bytes = 0;
    for (int i = 0; i < n; i++) {
        struct stat info;
        cr_assert_eq(stat(in_dir(name[i]), &info), 0);
        bytes += info.st_size;
    }
    return bytes;
}

/* One process fills a cache for three programs with twelve: after each store what is there is within the limit. */
Test(disk, the_limit_holds_after_each_store)
{
    static char name[64][128];
    static const char *const step[] = {"elementwise:6", "reduction:7", "contraction:5", "doubles:9",  "power:2",       "sorted:8",
                                       "static:4",      "gather:3",    "strided:6",     "function:5", "elementwise:9", "reduction:70"};
    (void)run("", "elementwise:6 reduction:7 contraction:5");
    long limit = size_of_entries(name, entries(name, 64));
    char small[60], steps[400] = "";
    snprintf(small, sizeof small, "KILN_CACHE_SIZE=%ld", limit);
    long stored = 0, removed = 0;
    for (size_t i = 0; i < sizeof step / sizeof *step; i++) {
        snprintf(steps + strlen(steps), sizeof steps - strlen(steps), "%s ", step[i]);
        shell(text_of("rm -rf '%s'/*", dir));
        long now = counter(run(small, steps), "disk_stored");
        int n = entries(name, 64);
        long size = size_of_entries(name, n);
        cr_assert_leq(size, limit, "%ld of %ld bytes after %ld stores", size, limit, now);
        cr_assert_geq(n, 1, "nothing is left after %ld stores", now);
        cr_assert_gt(now, stored, "step %s stores nothing", step[i]);
        stored = now;
        removed = now - n;
    }
    cr_assert_geq(removed, 4, "of %ld entries %ld went: the limit was hardly met", stored, removed);
}

/* Old ones go first, to 80 % of the limit. */
Test(disk, eviction_keeps_the_limit)
{
    static char name[64][128], after[64][128];
    (void)run("", every);
    int n = entries(name, 64);
    long bytes = size_of_entries(name, n);
    for (int i = 0; i < n; i++) {
        struct timespec old[2] = {{.tv_sec = 1000000000 + i}, {.tv_sec = 1000000000 + i}};
        cr_assert_eq(utimensat(AT_FDCWD, in_dir(name[i]), old, 0), 0);
    }
    shell(text_of("touch -d '2 hours ago' %s/evicted", dir));
    char *stale = text_of("%s/%.2s/tmp.1.2", dir, name[0]);
    shell(text_of("touch -d '3 hours ago' %s", stale));
    const char *limit = text_of("KILN_CACHE_SIZE=%ld", bytes);
    (void)run(limit, "elementwise:4000"); /* one more, so the limit is passed */
    long left = size_of_entries(after, entries(after, 64));
    cr_assert_leq(left, bytes / 5 * 4, "%ld of %ld bytes left", left, bytes);
    cr_assert_gt(left, bytes / 3);
    cr_assert_neq(access(in_dir(name[0]), F_OK), 0, "the oldest is still there");
    cr_assert_neq(access(text_of("%s/%.2s/tmp.1.2", dir, name[0]), F_OK), 0, "a stale temporary is still there");
    EXPECT_COUNTER(run(limit, every), "fallbacks", 0);
}
