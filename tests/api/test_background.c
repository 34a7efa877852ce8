/* KILN_ASYNC_COMPILE: who waits, what is compiled when, the same bits, failures, functions, fork. Exit: threads/exit.c. */
#include "api.h"
#include "tests/support/sanitizer.h"
#include "tests/support/seconds.h"

#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int background(void)
{
    kiln_stats stats = stats_now();
    return (int)stats.background_compiles;
}

/* Of all compiles those that a caller waited for. */
static int waited(void)
{
    kiln_stats stats = stats_now();
    return (int)(stats.compiles - stats.background_compiles);
}

static int compiles(void)
{
    kiln_stats stats = stats_now();
    return (int)stats.compiles;
}

static int misses(void)
{
    kiln_stats stats = stats_now();
    return (int)stats.misses;
}

enum { HANGS = 60000 }; /* times 5 ms: what has not come by then never will */

/* Waits until so many programs were compiled in the background. */
static void wait_for(int n)
{
    for (int i = 0; i < HANGS && background() < n; i++)
        usleep(5000);
    cr_assert(background() >= n, "%d programs were compiled in the background, %d are expected", background(), n);
}

static void start(void)
{
    set_option("async_compile", "1");
    kiln_reset_stats();
}

static kiln_tensor *ramp(int64_t a, int64_t b)
{
    float data[64 * 64];
    for (int64_t i = 0; i < a * b; i++)
        data[i] = (float)((i * 37) % 101) * 0.03f - 1.5f;
    return kiln_from(KILN_F32, KILN_SHAPE(a, b), data);
}

/* A structure with reductions, whose order must not depend on the program; one evaluation, one program. */
static void run(int64_t a, int64_t b, float *out)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *y = kiln_sum_axes(kiln_softmax(kiln_exp(kiln_mul(ramp(a, b), kiln_scalar(0.7))), 1), KILN_AXES(0), false);
    cr_assert(kiln_read(y, KILN_F32, out, (size_t)b * sizeof *out) == KILN_OK, "%s", kiln_error_message());
    kiln_scope_end(scope);
}

static char lines[64][512];
static int n_lines;

static void keep_line(void *user, int level, const char *topic, const char *line)
{
    (void)user, (void)level, (void)topic;
    if (n_lines < 64)
        snprintf(lines[n_lines++], sizeof lines[0], "%s", line);
}

static int lines_with(const char *text)
{
    int n = 0;
    for (int i = 0; i < n_lines; i++)
        n += strstr(lines[i], text) != NULL;
    return n;
}

Test(background, only_the_first_call_waits_and_the_bits_stay)
{
    float first[64], out[64], want[64];
    start();
    run(8, 16, first);
    cr_assert(waited() == 1);
    wait_for(1);     /* the most general program */
    run(9, 16, out); /* runs that; queues the better one */
    cr_assert(misses() == 1, "the second size waited");
    wait_for(2);
    run(9, 16, want); /* runs the better one */
    cr_assert(memcmp(out, want, 16 * sizeof *out) == 0, "the general and the better program differ");
    run(23, 16, out); /* fits it, too: nothing new */
    run(8, 16, out);
    cr_assert(memcmp(out, first, 16 * sizeof *out) == 0);
    usleep(100000);
    cr_assert(compiles() == 3 && misses() == 1, "%d compiles, %d misses", compiles(), misses());
    set_option("mode", "interp");
    run(8, 16, want);
    for (int i = 0; i < 16; i++)
        cr_assert(fabsf(out[i] - want[i]) < 1e-4f);
}

Test(background, every_program_of_a_graph_gives_the_same_bits)
{
    float general[64], better[64], fixed[64];
    for (int64_t b = 1; b < 64; b += 7) {
        set_option("async_compile", "0");
        set_option("dynamic", "never");
        set_option("cache_bytes", "0"); /* of each graph only the newest program is kept */
        run(5, b, fixed);
        set_option("dynamic", "auto");
        set_option("cache_bytes", "100000000");
        start();
        run(6, b, general);
        for (int k = 0; k < 3; k++) {
            run(5, b, general);
            run(5, b, better);
            cr_assert(memcmp(general, better, (size_t)b * sizeof *better) == 0);
            cr_assert(memcmp(fixed, better, (size_t)b * sizeof *better) == 0, "%d columns", (int)b);
            usleep(20000);
        }
    }
}

Test(background, a_second_size_at_once_compiles_nothing_twice)
{
    float out[64];
    start();
    for (int i = 0; i < 40; i++) /* whether the general program is ready, begun or still queued */
        run(4 + i % 11, 12, out);
    wait_for(1);
    usleep(200000);
    run(4, 12, out);
    cr_assert(misses() <= 2 && compiles() <= 3, "%d misses, %d compiles", misses(), compiles());
}

Test(background, at_most_max_variants_beside_the_general_one)
{
    float out[64];
    set_option("max_variants", "2");
    start();
    for (int64_t i = 0; i < 40; i++) {
        run(2 + i % 31, 2 + (i * 7) % 29, out);
        usleep(20000);
    }
    cr_assert(misses() <= 2 && compiles() <= 4, "%d misses, %d compiles", misses(), compiles());
}

Test(background, a_failure_leaves_a_line_and_is_not_tried_again)
{
    float out[64];
    n_lines = 0;
    kiln_set_log_sink(keep_line, NULL);
    set_option("log", "recompiles");
    set_option("test_fail", "background");
    start();
    run(8, 16, out);
    for (int i = 0; i < HANGS && lines_with("failed") == 0; i++) {
        usleep(5000);
        run(8, 16, out);
    }
    cr_assert(lines_with("in the background failed, and is not tried again") == 1);
    run(9, 16, out); /* as without the option: compiled while the caller waits */
    run(10, 16, out);
    usleep(50000);
    run(11, 16, out);
    cr_assert(compiles() == 2 && background() == 0 && misses() == 2, "%d compiles, %d misses", compiles(), misses());
    cr_assert(lines_with("failed") == 1);
}

Test(background, the_log_says_what_was_queued_and_swapped_in)
{
    float out[64];
    n_lines = 0;
    kiln_set_log_sink(keep_line, NULL);
    set_option("log", "recompiles");
    start();
    run(8, 16, out);
    wait_for(1);
    run(9, 16, out);
    wait_for(2);
    run(9, 16, out);
    cr_assert(lines_with("queued for the background: the most general program") == 1);
    cr_assert(lines_with("the most general program") == 2 && lines_with("is ready and in use") == 2);
    cr_assert(lines_with("queued for the background: the better program") == 1);
    cr_assert(lines_with("expected 8, found 9") == 1 && lines_with("test_background.c:") >= 2);
}

/* Its passes add up from a line "recorded" as those of any compile. */
Test(background, the_passes_begin_with_what_was_recorded)
{
    float out[64];
    n_lines = 0;
    kiln_set_log_sink(keep_line, NULL);
    set_option("log", "passes");
    start();
    run(8, 16, out);
    wait_for(1);
    cr_assert_eq(lines_with("recorded     "), compiles());
}

Test(background, nothing_without_the_option_or_with_dynamic_never)
{
    float out[64];
    kiln_reset_stats();
    run(8, 16, out);
    run(9, 16, out);
    start();
    set_option("dynamic", "never");
    run(10, 17, out);
    run(11, 17, out);
    usleep(50000);
    cr_assert(background() == 0);
}

Test(background, on_recompile_error_refuses_nothing_that_nobody_waits_for)
{
    float out[64];
    set_option("on_recompile", "error");
    start();
    for (int64_t i = 0; i < 20; i++) {
        run(5 + i, 16, out);
        usleep(i % 3 ? 0 : 10000);
    }
    cr_assert(misses() <= 2);
}

static void body(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_sum(kiln_tanh(kiln_mul(in[0], in[1])));
}

/* A function that remembers the general program takes the better one once it is there. */
Test(background, a_function_takes_the_better_program)
{
    kiln_function *f = kiln_function_new(body, 2, 1, NULL);
    n_lines = 0;
    kiln_set_log_sink(keep_line, NULL);
    set_option("log", "recompiles");
    start();
    double value, again;
    kiln_tensor *small[2] = {ramp(4, 6), ramp(4, 6)}, *large[2] = {ramp(5, 6), ramp(5, 6)}, *out;
    cr_assert(kiln_function_call(f, small, &out) == KILN_OK);
    wait_for(1);
    cr_assert(kiln_function_call(f, large, &out) == KILN_OK && kiln_item(out, &value) == KILN_OK);
    wait_for(2);
    for (int i = 0; i < 3; i++)
        cr_assert(kiln_function_call(f, large, &out) == KILN_OK && kiln_item(out, &again) == KILN_OK && again == value);
    cr_assert(lines_with("is ready and in use") == 2);
    char text[2000];
    body(large, &out, NULL);
    cr_assert(kiln_explain(out, text, sizeof text, NULL) == KILN_OK);
    cr_assert(strstr(text, "hit") && strstr(text, "== 6"), "the look-up finds: %s", text); /* the general one has no guard */
    kiln_function_free(f);
}

/* The child's results are right, and it compiles in the background again. */
static bool child_works(int64_t a)
{
    float out[64];
    test_seconds(60);
    int before = background();
    run(a, 16, out);
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *y[2] = {kiln_neg(kiln_exp(ramp(a, 3))), kiln_log(kiln_abs(ramp(a, 5)))};
    bool right = kiln_eval_many(y, 2) == KILN_OK;
    kiln_scope_end(scope);
    for (int i = 0; i < HANGS && background() == before; i++)
        usleep(5000);
    return right && background() > before;
}

Test(background, fork_while_something_is_compiled, .timeout = HANGS_AFTER(240))
{
    float out[64];
    start();
    for (int64_t k = 0; k < 12; k++) {
        kiln_scope *scope = kiln_scope_begin(); /* a new structure each time: something is in flight */
        kiln_tensor *x = ramp(8, 8);
        for (int64_t i = 0; i <= k; i++)
            x = kiln_sin(kiln_mul(x, x));
        cr_assert(kiln_eval(x) == KILN_OK);
        kiln_scope_end(scope);
        if (k == 0)
            let_threads_start();
        pid_t child = fork();
        if (child == 0)
            _exit(child_works(4 + k) ? 0 : 1);
        run(4 + k, 16, out);
        int status = -1;
        cr_assert(child > 0 && waitpid(child, &status, 0) == child);
        cr_assert(status == 0, "child %d: %x", (int)k, (unsigned)status);
    }
}
