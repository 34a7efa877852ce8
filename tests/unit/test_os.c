/* The OS layer, the log and the guarded buffers. */
#include "ir/base/arena.h"
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "tests/support/guarded.h"
#include "tests/support/sanitizer.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

Test(os, zero_bytes_and_overflow)
{
    void *a = os_alloc(0), *b = os_calloc(0, 8);
    cr_assert(a && b);
    a = os_realloc(a, 0);
    cr_assert(a);
    os_free(a);
    os_free(b);
    os_free(NULL);
    volatile size_t huge = SIZE_MAX / 2; /* unknown to the compiler, which would warn */
    cr_assert_null(os_calloc(huge, 4));
}

Test(os, injected_failures)
{
    os_fail_alloc(3, false);
    void *a = os_alloc(1), *b = os_calloc(1, 1);
    cr_assert(a && b);
    cr_assert_null(os_alloc_aligned(64, 1), "the third call fails");
    void *c = os_alloc(1);
    cr_assert(c, "and only the third");
    os_fail_alloc(1, true);
    cr_assert_null(os_realloc(c, 2));
    cr_assert_null(os_alloc(1), "sticky");
    os_fail_alloc(0, false);
    void *d = os_alloc(1);
    cr_assert(d, "switched off");
    os_free(a);
    os_free(b);
    os_free(c);
    os_free(d);
}

Test(os, alignment)
{
    static const size_t sizes[] = {0, 1, 63, 64, 4096, (2 << 20) - 1, 2 << 20, (5 << 20) + 3};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char *block = os_alloc_aligned(64, sizes[i]);
        cr_assert(block);
        cr_assert_eq((uintptr_t)block % 64, 0);
        if (sizes[i] >= 2 << 20)
            cr_assert_eq((uintptr_t)block % (2 << 20), 0, "huge pages");
        memset(block, 1, sizes[i]);
        os_free(block);
    }
}

Test(os, code_memory)
{
    enum { BYTES = 4096 };
    unsigned char *code = os_map_rw(BYTES);
    cr_assert(code);
#if defined(__x86_64__)
    static const unsigned char return_7[] = {0xb8, 7, 0, 0, 0, 0xc3}; /* mov eax, 7; ret */
    memcpy(code, return_7, sizeof return_7);
    cr_assert(os_protect_rx(code, BYTES));
    int (*fn)(void);
    memcpy(&fn, &code, sizeof fn);
    cr_assert_eq(fn(), 7);
#endif
    os_unmap(code, BYTES);
}

static void deep(void *out)
{
    volatile char big[6 << 20];
    for (size_t i = 0; i < sizeof big; i += 4096)
        big[i] = 1;
    *(char *)out = big[0];
}

Test(os, deep_stack)
{
    char result = 0;
    os_run_on_stack(8 << 20, deep, &result);
    cr_assert_eq(result, 1);
}

Test(os, time_and_cpus)
{
    double a = os_seconds(), b = os_seconds();
    cr_assert(b >= a && a > 0);
    cr_assert(os_cpu_count() >= 1);
    cr_assert_null(os_getenv("KILN_NO_SUCH_VARIABLE"));
}

Test(os, files)
{
    char root[] = "/tmp/kiln_os_XXXXXX", path[256], back[8];
    cr_assert(mkdtemp(root));
    snprintf(path, sizeof path, "%s/a/b/c", root);
    cr_assert(os_make_dir(path));
    cr_assert(os_make_dir(path), "again is fine");
    snprintf(path, sizeof path, "%s/a/b/c/file", root);
    cr_assert(os_write_file(path, "first", 5));
    cr_assert(os_write_file(path, "second!", 7), "replaces");
    FILE *file = fopen(path, "rb");
    cr_assert(file);
    cr_assert_eq(fread(back, 1, sizeof back, file), 7);
    fclose(file);
    cr_assert_eq(memcmp(back, "second!", 7), 0);
    cr_assert(!os_make_dir(path), "a file is no folder");
    cr_assert_eq(errno, ENOTDIR);
    snprintf(path, sizeof path, "%s/no/such/file", root);
    cr_assert(!os_write_file(path, "x", 1));
    cr_assert_eq(errno, ENOENT);
    cr_assert(!os_make_dir(""));
    char command[300];
    snprintf(command, sizeof command, "rm -r %s", root);
    cr_assert_eq(system(command), 0);
}

/* ---- log ---- */

typedef struct Seen {
    int lines, warnings;
    char last[2000], topic[32];
} Seen;

static void remember(void *seen_, int level, const char *topic, const char *line)
{
    Seen *seen = seen_;
    seen->lines++;
    seen->warnings += level == 0;
    snprintf(seen->last, sizeof seen->last, "%s", line);
    snprintf(seen->topic, sizeof seen->topic, "%s", topic);
}

Test(log, levels)
{
    Seen seen = {0};
    log_set_sink(remember, &seen);
    log_configure("fusion,+passes");
    cr_assert(log_on(LOG_FUSION) && !log_detailed(LOG_FUSION));
    cr_assert(log_on(LOG_PASSES) && log_detailed(LOG_PASSES));
    cr_assert(!log_on(LOG_GRAPH));
    log_line(LOG_GRAPH, "not shown");
    cr_assert_eq(seen.lines, 0);
    log_line(LOG_FUSION, "%d and %s", 1, "two");
    cr_assert_str_eq(seen.last, "1 and two");
    cr_assert_str_eq(seen.topic, "fusion");
    log_configure("all");
    for (int i = 0; i < LOG_COUNT; i++)
        cr_assert(log_on((LogTopic)i));
    log_configure(NULL);
    for (int i = 0; i < LOG_COUNT; i++)
        cr_assert(!log_on((LogTopic)i));
    cr_assert_eq(seen.warnings, 0);
    log_set_sink(NULL, NULL);
}

Test(log, unknown_names_and_help)
{
    Seen seen = {0};
    log_set_sink(remember, &seen);
    log_configure("fusoin,passes");
    cr_assert_eq(seen.warnings, 1);
    cr_assert(strstr(seen.last, "fusoin") && strstr(seen.last, "fusion") && strstr(seen.last, "timing"));
    cr_assert(log_on(LOG_PASSES), "the good ones count");
    log_configure("fusoin");
    cr_assert_eq(seen.warnings, 1, "once");
    seen.lines = 0;
    log_configure("help");
    cr_assert_gt(seen.lines, LOG_COUNT);
    log_configure("+");
    log_configure(",,  ,");
    cr_assert_eq(seen.warnings, 1);
    log_set_sink(NULL, NULL);
}

Test(log, long_lines_and_texts)
{
    Seen seen = {0};
    log_set_sink(remember, &seen);
    log_configure("graph");
    char big[1500];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    log_line(LOG_GRAPH, "%s", big);
    cr_assert_str_eq(seen.last, big);
    seen.lines = 0;
    log_text(LOG_GRAPH, "a\n\nb\nc");
    cr_assert_eq(seen.lines, 4);
    cr_assert_str_eq(seen.last, "c");
    log_set_sink(NULL, NULL);
}

Test(log, once)
{
    Seen seen = {0};
    log_set_sink(remember, &seen);
    for (int i = 0; i < 5; i++)
        log_warn_once("same", "number %d", i);
    cr_assert_eq(seen.lines, 1);
    cr_assert_str_eq(seen.last, "number 0");
    log_warn_once("other", "again");
    cr_assert_eq(seen.lines, 2);
    log_set_sink(NULL, NULL);
}

/* A sink that logs must not hang. */
static void nested(void *depth_, int level, const char *topic, const char *line)
{
    (void)level, (void)topic, (void)line;
    int *depth = depth_;
    if (++*depth < 3)
        log_warn("again");
}

Test(log, sink_that_logs_and_fork, .timeout = HANGS_AFTER(20))
{
    int depth = 0;
    log_set_sink(nested, &depth);
    log_warn("first");
    cr_assert_eq(depth, 3);
    log_set_sink(NULL, NULL);
    pid_t child = fork();
    if (child == 0) {
        log_set_sink(nested, &depth);
        log_warn("in the child");
        _exit(0);
    }
    int status = -1;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
}

/* ---- arenas ---- */

Test(arena, scratch_is_emptied_and_goes_with_its_parent)
{
    jmp_buf oom;
    Arena arena;
    arena_init(&arena, &oom);
    cr_assert(setjmp(oom) == 0);
    Arena *one = arena_scratch(&arena), *two = arena_scratch(&arena);
    char *kept = arena_strdup(&arena, "kept");
    for (int round = 0; round < 50; round++) {
        unsigned char *data = arena_alloc(one, 100000);
        for (int i = 0; i < 100000; i += 999)
            cr_assert_eq(data[i], 0, "memory is zeroed again");
        memset(data, 0xff, 100000);
        cr_assert_not_null(arena_alloc(two, 100));
        arena_reset(one);
        cr_assert_eq(one->bytes, 0);
    }
    arena_reset(arena_scratch(&arena)); /* never used */
    cr_assert_str_eq(kept, "kept");
    arena_free(&arena); /* a leak of any of the three fails under LeakSanitizer */
    cr_assert_eq(arena.bytes, 0);
}

/* ---- guarded buffers ---- */

Test(guarded, edges)
{
    for (size_t bytes = 0; bytes < 9000; bytes += 1237) {
        Guarded end = guarded_at_end(bytes, 0), start = guarded_at_start(bytes, 3);
        memset(end.data, 1, bytes);
        memset(start.data, 1, bytes);
        cr_assert(guarded_intact(&end) && guarded_intact(&start));
        ((char *)start.data)[-1] = 0;
        cr_assert(!guarded_intact(&start));
        guarded_free(&end);
        guarded_free(&start);
    }
}

#if !WITH_ASAN /* which takes the signal for itself; gates/guard_page has the same without Criterion */
Test(guarded, faults_past_the_end, .signal = 11)
{
    Guarded g = guarded_at_end(100, 0);
    ((volatile char *)g.data)[100] = 1;
}
#endif
