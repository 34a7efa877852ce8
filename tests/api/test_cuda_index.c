/*
 * Indices out of bounds on a CUDA device (the software driver): nobody waits for them, and who
 * wants a value that depends on one is told.
 */
#include "on_cuda.h"

#include <pthread.h>
#include <unistd.h>

static char warnings[WARNINGS];

static void use_cuda(void)
{
    kiln_set_log_sink(keep_warnings, warnings);
    CUDA_WITH("test_memory", "exact", "strict", "1");
}

/* x[index], evaluated: queued, and nobody waited. */
static kiln_tensor *taken(kiln_tensor *x, int64_t index)
{
    kiln_tensor *y = kiln_take(x, I64(KILN_SHAPE(2), 0, index), 0);
    uint64_t before = counted().synchronizations;
    cr_assert(kiln_eval(y) == KILN_OK, "%s", kiln_error_message());
    cr_assert_eq(counted().synchronizations, before, "an evaluation waited");
    return y;
}

/* Evaluated; what is wrong may be known already. */
static bool queued(kiln_tensor *x)
{
    kiln_status status = kiln_eval(x);
    cr_assert(status == KILN_OK || status == KILN_BAD_INDEX, "%s", kiln_error_message());
    kiln_clear_error();
    return status == KILN_OK;
}

static void expect_bad(int line, kiln_status status, const char *api)
{
    cr_assert(status == KILN_BAD_INDEX, "line %d: %s: %s", line, kiln_status_name(status), kiln_error_message());
    const char *texts[] = {api, "of the kiln_take at ", "test_cuda_index.c:", "is out of bounds: axis 0 has 3 elements"};
    for (int i = 0; i < 4; i++)
        cr_assert(strstr(kiln_error_message(), texts[i]), "line %d: \"%s\" is not in: %s", line, texts[i], kiln_error_message());
    kiln_clear_error();
}
#define EXPECT_BAD(status, api) expect_bad(__LINE__, (status), (api))

Test(cuda_index, whoever_waits_is_told)
{
    use_cuda();
    kiln_tensor *x = F32(KILN_SHAPE(3), 1, 2, 3), *good = taken(x, 2), *bad = taken(x, 3), *worse = taken(x, -4);
    float data[2] = {7, 7};
    EXPECT_BAD(kiln_wait(bad), "kiln_wait");
    EXPECT_BAD(kiln_wait(bad), "kiln_wait"); /* each time */
    EXPECT_BAD(kiln_read(worse, KILN_F32, data, sizeof data), "kiln_read");
    cr_assert(data[0] == 7 && data[1] == 7); /* nothing was written */
    cr_assert(kiln_to(worse, "cpu") == NULL && kiln_error_status() == KILN_BAD_INDEX);
    kiln_clear_error();
    EXPECT(good, KILN_F32, KILN_SHAPE(2), 0, 1, 3); /* the others do not care */
    EXPECT(kiln_mul(good, kiln_scalar(2)), KILN_F32, KILN_SHAPE(2), 0, 2, 6);
    EXPECT(x, KILN_F32, KILN_SHAPE(3), 0, 1, 2, 3);
}

Test(cuda_index, what_is_computed_from_it_is_wrong_too)
{
    use_cuda();
    kiln_tensor *x = F32(KILN_SHAPE(3), 1, 2, 3), *bad = taken(x, 3), *good = taken(x, 1);
    kiln_tensor *sum = kiln_add(bad, good), *next = kiln_exp(sum),
                *both[2] = {kiln_mul(bad, kiln_scalar(3)), kiln_mul(good, kiln_scalar(3))};
    queued(sum);
    queued(next);
    double value;
    EXPECT_BAD(kiln_item(kiln_sum(next), &value), "kiln_item");
    EXPECT_BAD(kiln_wait(sum), "kiln_wait");
    EXPECT_BAD(kiln_eval_many(both, 2), "kiln_eval_many"); /* known by now: at once */
    EXPECT(kiln_mul(good, kiln_scalar(4)), KILN_F32, KILN_SHAPE(2), 0, 4, 8);
    kiln_tensor *again = taken(good, 1); /* an operand with a pending fault */
    EXPECT(again, KILN_F32, KILN_SHAPE(2), 0, 1, 2);
}

Test(cuda_index, sync_finds_it_at_once)
{
    use_cuda();
    set_option("sync", "1");
    EXPECT_BAD(kiln_eval(kiln_take(F32(KILN_SHAPE(3), 1, 2, 3), I64(KILN_SHAPE(1), 3), 0)), "kiln_eval");
}

Test(cuda_index, in_interp_mode_at_once)
{
    use_cuda();
    kiln_tensor *x = F32(KILN_SHAPE(3), 1, 2, 3), *bad = taken(x, 3);
    set_option("mode", "interp");
    cr_assert(kiln_eval(kiln_neg(bad)) == KILN_BAD_INDEX, "%s", kiln_error_message());
}

/* An error that nobody asked about is a warning, once the memory behind it is used again. */
Test(cuda_index, what_nobody_reads_is_warned_about)
{
    use_cuda();
    kiln_tensor *x = F32(KILN_SHAPE(3), 1, 2, 3);
    kiln_scope *scope = kiln_scope_begin();
    (void)taken(x, 3);
    kiln_scope_end(scope);
    scope = kiln_scope_begin();
    EXPECT_BAD(kiln_wait(taken(x, 4)), "kiln_wait"); /* told: no warning */
    kiln_scope_end(scope);
    for (int i = 0; i < 4; i++) {
        scope = kiln_scope_begin();
        cr_assert(kiln_wait(taken(x, 1)) == KILN_OK, "%s", kiln_error_message());
        kiln_scope_end(scope);
    }
    char *at = strstr(warnings, "an index of the kiln_take at ");
    cr_assert(at && strstr(at, "nobody read what was computed with it"), "%s", warnings);
    cr_assert(!strstr(at + 1, "an index of"), "told again: %s", warnings);
}

/* What a plugin's file name is worth once the plugin is unloaded: the memory may hold anything. */
Test(cuda_index, are_told_though_the_name_of_the_file_is_gone)
{
    use_cuda();
    char name[] = "plugin.c";
    kiln_tensor *x = F32(KILN_SHAPE(3), 1, 2, 3), *index = I64(KILN_SHAPE(1), 3);
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *dropped = kiln_take_at(x, index, 0, name, 5), *kept = kiln_retain(kiln_take_at(x, index, 0, name, 6));
    cr_assert(kiln_eval(dropped) == KILN_OK && kiln_eval(kept) == KILN_OK, "%s", kiln_error_message());
    kiln_scope_end(scope);
    memset(name, '!', strlen(name));
    cr_assert(kiln_wait(kept) == KILN_BAD_INDEX && strstr(kiln_error_message(), "plugin.c:6"), "%s", kiln_error_message());
    kiln_clear_error();
    kiln_release(kept);
    for (int i = 0; i < 4; i++) {
        scope = kiln_scope_begin();
        cr_assert(kiln_wait(taken(x, 1)) == KILN_OK, "%s", kiln_error_message());
        kiln_scope_end(scope);
    }
    cr_assert(strstr(warnings, "an index of the kiln_take at plugin.c:5"), "%s", warnings);
}

/* Hundreds of look-ups, each of the one before: the host does not run ahead without end, and the
 * first error is found through all. */
Test(cuda_index, chains_are_bounded)
{
    use_cuda();
    for (int round = 0; round < 2; round++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *y = F32(KILN_SHAPE(3), 1, 2, 3);
        for (int i = 0; i < 300; i++) {
            kiln_tensor *index = I64(KILN_SHAPE(3), 2, 1, round && i == 250 ? 3 : 0);
            y = kiln_take(y, index, 0);
            if (!queued(y))
                cr_assert(round && i > 250, "%d", i);
        }
        if (round)
            EXPECT_BAD(kiln_wait(y), "kiln_wait");
        else
            EXPECT(y, KILN_F32, KILN_SHAPE(3), 0, 1, 2, 3);
        kiln_scope_end(scope);
    }
    kiln_tensor *x = F32(KILN_SHAPE(3), 1, 2, 3), *sum = x;
    kiln_tensor *all[40];
    for (int i = 0; i < 40; i++) /* one that has many pending faults behind it */
        all[i] = taken(kiln_take(x, I64(KILN_SHAPE(3), 0, 1, 2), 0), i == 39 ? 3 : 2);
    for (int i = 0; i < 40; i++)
        sum = kiln_add(kiln_sum(all[i]), sum);
    EXPECT_BAD(kiln_wait(sum), "kiln_wait");
}

static void look_up(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *state = user;
    out[0] = kiln_take(in[0], in[1], 0);
    cr_assert(kiln_assign(state, kiln_add(state, kiln_sum(out[0]))) == KILN_OK);
}

/* A failed call of a function leaves what it assigns as it was: it waits to know. */
Test(cuda_index, functions_that_assign_wait)
{
    use_cuda();
    kiln_tensor *state = kiln_retain(F32(KILN_SHAPE(), 100)), *x = F32(KILN_SHAPE(3), 1, 2, 3), *out[1];
    kiln_function *f = kiln_function_new(look_up, 2, 1, state);
    double want = 100, value;
    for (int i = 0; i < 8; i++) {
        kiln_tensor *in[2] = {x, I64(KILN_SHAPE(1), i % 3 == 1 ? 3 : 2)};
        kiln_status status = kiln_function_call(f, in, out);
        if (i % 3 == 1)
            EXPECT_BAD(status, "kiln_function_call");
        else
            cr_assert(status == KILN_OK, "%s", kiln_error_message());
        want += i % 3 == 1 ? 0 : 3;
        cr_assert(kiln_item(state, &value) == KILN_OK && value == want, "%d: %g, not %g", i, value, want);
    }
    kiln_function_free(f);
    kiln_release(state);
}

/* Whatever waits is told of the index, not of something else that went wrong because of it. */
Test(cuda_index, printing_and_files)
{
    if (software_driver())
        setenv("KILN_TEST_CUDA", "devices=2", 1);
    use_cuda();
    kiln_tensor *bad = taken(F32(KILN_SHAPE(3), 1, 2, 3), 3);
    char text[64];
    size_t needed;
    EXPECT_BAD(kiln_format(bad, text, sizeof text, &needed), "kiln_format");
    cr_assert(needed == 0);
    EXPECT_BAD(kiln_print(bad), "kiln_print");
    EXPECT_BAD(kiln_save_npy(bad, "never_written.npy"), "kiln_save_npy");
    cr_assert(access("never_written.npy", F_OK) != 0);
    if (software_driver()) {
        cr_assert(kiln_to(bad, "cuda:1") == NULL);
        EXPECT_BAD(kiln_error_status(), "kiln_to");
    }
}

/* Threads that judge several indices of a row write the same word, each its own number: that is no race. */
Test(cuda_index, several_indices_of_a_row)
{
    use_cuda();
    static float table[3 * 40];
    for (int i = 0; i < 3 * 40; i++)
        table[i] = (float)(i / 40);
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(3, 40), table);
    for (int64_t k = 2; k < 4; k++) {
        kiln_tensor *a = kiln_take(x, I64(KILN_SHAPE(4), 0, 1, k, 2), 0), *b = kiln_take(x, I64(KILN_SHAPE(4), k, 0, 1, 2), 0);
        kiln_tensor *sums = kiln_sum_axes(kiln_add(a, b), KILN_AXES(1), false);
        if (k == 2)
            EXPECT(sums, KILN_F32, KILN_SHAPE(4), 0, 80, 40, 120, 160);
        else
            EXPECT_BAD(kiln_wait(sums), "kiln_wait");
    }
}

/* Threads beyond the points compute, too: not with the zeros that they have instead of indices. The program that subtracts the
 * start of a shard from its indices, and keeps them, is one that might overwrite them. */
Test(cuda_index, threads_without_a_point)
{
    use_cuda();
    enum { ROWS = 5, N = 64, SHARD = 100, MANY = 3001 };
    static int64_t ids[MANY];
    static float table[ROWS * SHARD], sums[ROWS], many[MANY];
    for (int i = 0; i < ROWS * SHARD; i++)
        table[i] = (float)i;
    for (int i = 0; i < MANY; i++)
        ids[i] = 1000 + i * 37 % SHARD;
    for (int part = 0; part < 4; part++) {
        int64_t n = part < 2 ? ROWS * N : MANY - part;
        kiln_tensor *x = part < 2 ? kiln_from(KILN_I64, KILN_SHAPE(ROWS, N), ids) : kiln_from(KILN_I64, KILN_SHAPE(n), ids);
        kiln_tensor *of = part < 2 ? kiln_from(KILN_F32, KILN_SHAPE(ROWS, SHARD), table) : kiln_from(KILN_F32, KILN_SHAPE(SHARD), table);
        kiln_tensor *local = kiln_sub(x, kiln_int(1000)), *y = part < 2 ? kiln_take_along_axis(of, local, 1) : kiln_take(of, local, 0);
        y = part == 0 ? kiln_sum_axes(y, KILN_AXES(1), false) : y;
        cr_assert(kiln_eval_many((kiln_tensor *[]){y, local}, 2) == KILN_OK, "%s", kiln_error_message());
        cr_assert(kiln_wait(y) == KILN_OK, "part %d: %s", part, kiln_error_message());
        cr_assert(kiln_wait(local) == KILN_OK, "part %d: %s", part, kiln_error_message());
        float *got = part == 0 ? sums : many;
        cr_assert(kiln_read(y, KILN_F32, got, sizeof *got * (size_t)(part == 0 ? ROWS : n)) == KILN_OK, "%s", kiln_error_message());
        for (int64_t i = 0; i < n; i++) {
            float want = (float)(ids[i] - 1000 + (part < 2 ? i / N * SHARD : 0));
            if (part == 0)
                sums[i / N] -= want;
            else
                cr_assert(many[i] == want, "part %d: [%d] is %g, not %g", part, (int)i, (double)many[i], (double)want);
        }
        for (int i = 0; i < ROWS && part == 0; i++)
            cr_assert(sums[i] == 0, "row %d is off by %g", i, (double)sums[i]);
    }
}

/* Nothing is overwritten by what may turn out to be wrong. */
Test(cuda_index, in_place_updates_wait)
{
    use_cuda();
    kiln_tensor *p = kiln_retain(F32(KILN_SHAPE(2), 10, 20)), *x = F32(KILN_SHAPE(3), 1, 2, 3);
    cr_assert(kiln_wait(p) == KILN_OK);
    for (int i = 0; i < 4; i++) {
        kiln_tensor *delta = taken(x, i == 3 ? 3 : 1);
        cr_assert(kiln_assign(p, kiln_add(p, delta)) == KILN_OK);
        if (i == 3)
            EXPECT_BAD(kiln_wait(p), "kiln_wait");
        else
            EXPECT(p, KILN_F32, KILN_SHAPE(2), 0, 11 + i, 22 + 2 * i);
    }
    kiln_release(p);
}

static void *look_ups(void *user)
{
    kiln_tensor *x = user;
    bool fine = true;
    for (int i = 0; i < 30 && fine; i++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *y = kiln_take(x, I64(KILN_SHAPE(1), i % 5), 0);
        float value = 0;
        fine = kiln_eval(y) == KILN_OK;
        kiln_status status = kiln_read(kiln_add(y, kiln_scalar(1)), KILN_F32, &value, sizeof value);
        fine = fine && (i % 5 < 3 ? status == KILN_OK && value == (float)(i % 5 + 2) : status == KILN_BAD_INDEX);
        kiln_clear_error();
        kiln_scope_end(scope);
    }
    kiln_release(x);
    return fine ? x : NULL;
}

Test(cuda_index, threads)
{
    use_cuda();
    kiln_tensor *x = F32(KILN_SHAPE(3), 1, 2, 3);
    pthread_t thread[4];
    for (int t = 0; t < 4; t++)
        cr_assert(pthread_create(&thread[t], NULL, look_ups, kiln_retain(x)) == 0);
    for (int t = 0; t < 4; t++) {
        void *result;
        pthread_join(thread[t], &result);
        cr_assert(result != NULL, "thread %d", t);
    }
    cr_assert_str_eq(warnings, "");
}

/* Results are given up where the driver cannot record when they are there: an index of theirs that is found wrong afterwards is no
 * concern of the next run. */
Test(cuda_index, a_run_without_its_event_leaves_nothing_to_the_next)
{
    use_cuda();
    kiln_tensor *x = F32(KILN_SHAPE(3), 1, 2, 3);
    for (int run = 0; run < 4; run++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *y = kiln_take(x, I64(KILN_SHAPE(2), 0, run == 1 ? 9 : 2), 0);
        if (run == 1) {
            DRIVER(test_cuda_fail_call)("cuEventRecord", 1, 999, 0);
            expect_status(kiln_eval(y), KILN_DEVICE, "recording an event");
            DRIVER(test_cuda_fail_call)(NULL, 0, 0, 0);
            kiln_clear_error();
        } else {
            EXPECT(y, KILN_F32, KILN_SHAPE(2), 0, 1, 3);
        }
        kiln_scope_end(scope);
    }
    cr_assert(strstr(warnings, "nobody read what was computed with it"), "%s", warnings);
}
