/* Scopes, keep, retain, assign, memory counters. */
#include "api.h"

#include <pthread.h>
#include <stdio.h>

static int64_t live(void)
{
    kiln_stats stats = stats_now();
    return stats.live_bytes;
}

static kiln_tensor *block(void)
{
    static float data[1000];
    return kiln_from(KILN_F32, KILN_SHAPE(1000), data);
}

Test(lifetime, scopes_release_what_they_own)
{
    int64_t before = live();
    kiln_scope *outer = kiln_scope_begin();
    block();
    kiln_scope *inner = kiln_scope_begin();
    kiln_tensor *kept = kiln_keep(block()), *gone = block();
    cr_assert(live() - before == 12000);
    (void)gone;
    kiln_scope_end(inner);
    cr_assert(live() - before == 8000, "%d", (int)(live() - before));
    double value;
    cr_assert(kiln_item(kiln_sum(kept), &value) == KILN_OK && value == 0);
    kiln_scope_end(outer);
    cr_assert(live() == before);
}

Test(lifetime, retain_outlives_the_scope)
{
    int64_t before = live();
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_retain(block());
    kiln_scope_end(scope);
    cr_assert(live() - before == 4000);
    cr_assert(kiln_rank(x) == 1);
    kiln_release(x);
    cr_assert(live() == before);
    kiln_release(NULL);
    cr_assert(kiln_retain(NULL) == NULL && kiln_keep(NULL) == NULL);
}

Test(lifetime, pending_values_hold_their_inputs)
{
    int64_t before = live();
    kiln_scope *outer = kiln_scope_begin();
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *y = kiln_keep(kiln_sum(kiln_add(block(), kiln_scalar(1))));
    kiln_scope_end(scope);
    cr_assert(live() - before == 4000, "the input is still needed");
    double value;
    cr_assert(kiln_item(y, &value) == KILN_OK && value == 1000, "%s", kiln_error_message());
    cr_assert(live() - before < 4000, "and is let go once the value is there: %d", (int)(live() - before));
    kiln_scope_end(outer);
    cr_assert(live() == before);
}

Test(lifetime, ending_an_outer_scope_ends_the_inner_ones)
{
    int64_t before = live();
    kiln_scope *outer = kiln_scope_begin(), *inner = kiln_scope_begin();
    block();
    kiln_scope_end(outer);
    cr_assert(live() == before);
    kiln_scope_end(NULL);
    kiln_clear_error();
    kiln_scope_end(inner); /* no longer open */
    cr_assert(kiln_error_status() == KILN_INVALID);
}

Test(lifetime, keep_climbs_one_scope_at_a_time)
{
    int64_t before = live();
    kiln_scope *a = kiln_scope_begin(), *b = kiln_scope_begin(), *c = kiln_scope_begin();
    kiln_tensor *x = block();
    for (int i = 0; i < 10; i++)
        block();
    cr_assert(kiln_keep(kiln_keep(x)) == x);
    kiln_scope_end(c);
    kiln_scope_end(b);
    cr_assert(live() - before == 4000);
    kiln_scope_end(a);
    cr_assert(live() == before);
}

static void *in_thread(void *arg)
{
    kiln_tensor **x = arg;
    double value = 0;
    if (kiln_item(kiln_sum(kiln_add(x[0], kiln_scalar(1))), &value) == KILN_OK && value == 1000)
        x[1] = kiln_retain(kiln_neg(x[0]));
    kiln_release(x[0]);
    block(); /* in the root scope of this thread, which ends with it */
    return NULL;
}

Test(lifetime, tensors_cross_threads)
{
    int64_t before = live();
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x[2] = {kiln_retain(block()), NULL};
    pthread_t thread;
    cr_assert(pthread_create(&thread, NULL, in_thread, x) == 0);
    pthread_join(thread, NULL);
    cr_assert(x[1] != NULL);
    cr_assert(kiln_eval(x[1]) == KILN_OK);
    kiln_release(x[1]);
    kiln_scope_end(scope);
    cr_assert(live() == before, "%d", (int)(live() - before));
}

static kiln_tensor *passes_on(const kiln_op_call *call, void *user)
{
    (void)user;
    return kiln_mode_next(call, call->in);
}

enum { TOLD = 200 };

typedef struct OfAThread {
    kiln_scope *scope;
    kiln_recording *recording;
    kiln_mode *mode;
    char told[3][TOLD];
} OfAThread;

static void note_error(char *told)
{
    snprintf(told, TOLD, "%d %s", (int)kiln_error_status(), kiln_error_message());
    kiln_clear_error();
}

static void *ends_what_is_not_its_own(void *arg)
{
    OfAThread *of = arg;
    kiln_scope *own = kiln_scope_begin();
    kiln_scope_end(of->scope);
    note_error(of->told[0]);
    kiln_recording_end(of->recording);
    note_error(of->told[1]);
    (void)(kiln_mode_pop(of->mode) == KILN_OK);
    note_error(of->told[2]);
    kiln_scope_end(own);
    return NULL;
}

Test(lifetime, scopes_recordings_and_modes_are_ended_by_their_thread_alone)
{
    int64_t before = live();
    OfAThread of = {.scope = kiln_scope_begin(), .recording = kiln_recording_begin(), .mode = kiln_mode_push(passes_on, NULL, NULL)};
    kiln_tensor *x = block();
    pthread_t thread;
    cr_assert(pthread_create(&thread, NULL, ends_what_is_not_its_own, &of) == 0);
    pthread_join(thread, NULL);
    static const char *const expected[] = {"kiln_scope_end: the scope is not an open one of this thread",
                                           "kiln_recording_end: the recording is not an open one of this thread",
                                           "kiln_mode_pop: the mode is not the innermost one of this thread"};
    char told[TOLD];
    for (int i = 0; i < 3; i++) {
        snprintf(told, sizeof told, "%d %s", (int)KILN_INVALID, expected[i]);
        cr_assert(strncmp(of.told[i], told, strlen(told)) == 0, "%s, not %s", of.told[i], told);
    }
    cr_assert(kiln_error_status() == KILN_OK, "the error is the other thread's");
    double value;
    cr_assert(kiln_item(kiln_sum(x), &value) == KILN_OK, "the scope still owns what it owned");
    cr_assert(kiln_mode_pop(of.mode) == KILN_OK, "%s", kiln_error_message());
    kiln_recording_end(of.recording);
    kiln_scope_end(of.scope);
    cr_assert(kiln_error_status() == KILN_OK, "%s", kiln_error_message());
    cr_assert(live() == before, "%d", (int)(live() - before));
}

Test(lifetime, a_long_chain_needs_no_stack)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_retain(kiln_zeros(KILN_F32, KILN_SHAPE(4)));
    for (int i = 0; i < 1000000; i++) {
        kiln_scope *step = kiln_scope_begin();
        kiln_tensor *y = kiln_retain(kiln_neg(x));
        kiln_scope_end(step);
        kiln_release(x);
        x = y;
    }
    kiln_release(x); /* a million nodes go, one after another */
    kiln_scope_end(scope);
}

API_TEST(lifetime, assign)
{
    kiln_tensor *p = F32(KILN_SHAPE(3), 1, 2, 3), *old = kiln_positive(p);
    for (int step = 0; step < 3; step++) {
        cr_assert(kiln_assign(p, kiln_mul(p, kiln_scalar(2))) == KILN_OK);
        cr_assert(kiln_eval(p) == KILN_OK, "%s", kiln_error_message());
    }
    EXPECT(p, KILN_F32, KILN_SHAPE(3), 0, 8, 16, 24);
    EXPECT(old, KILN_F32, KILN_SHAPE(3), 0, 1, 2, 3);
    cr_assert(kiln_assign(p, kiln_zeros(KILN_F32, KILN_SHAPE(2))) == KILN_BAD_SHAPE);
    EXPECT_ERROR(NULL, KILN_BAD_SHAPE, "kiln_assign: shapes differ: p is f32[3], value is f32[2]", "test_lifetime.c");
    cr_assert(kiln_assign(p, kiln_zeros(KILN_F64, KILN_SHAPE(3))) == KILN_BAD_DTYPE);
    EXPECT_ERROR(NULL, KILN_BAD_DTYPE, "dtypes differ");
    cr_assert(kiln_assign(NULL, p) == KILN_INVALID);
    EXPECT_ERROR(NULL, KILN_INVALID, "p is NULL");
    cr_assert(kiln_assign(p, NULL) == KILN_INVALID);
    EXPECT_ERROR(NULL, KILN_INVALID, "value is NULL");
    EXPECT(p, KILN_F32, KILN_SHAPE(3), 0, 8, 16, 24);
    kiln_tensor *s = F32(KILN_SHAPE(), 1);
    cr_assert(kiln_assign(s, kiln_scalar(2.5)) == KILN_OK);
    EXPECT(s, KILN_F32, KILN_SHAPE(), 0, 2.5);
}

API_TEST(lifetime, assign_leaves_borrowed_and_exported_memory_alone)
{
    float data[3] = {1, 2, 3};
    kiln_tensor *p = kiln_wrap(KILN_F32, KILN_SHAPE(3), data, NULL, NULL);
    cr_assert(kiln_assign(p, kiln_neg(p)) == KILN_OK && kiln_eval(p) == KILN_OK);
    cr_assert(data[0] == 1 && data[2] == 3);
    EXPECT(p, KILN_F32, KILN_SHAPE(3), 0, -1, -2, -3);
    const void *seen;
    kiln_tensor *hold = kiln_positive(p);
    cr_assert(kiln_data(hold, &seen) == KILN_OK);
    cr_assert(kiln_assign(p, kiln_neg(p)) == KILN_OK && kiln_eval(p) == KILN_OK);
    cr_assert(((const float *)seen)[0] == -1, "exported memory was written");
    EXPECT(p, KILN_F32, KILN_SHAPE(3), 0, 1, 2, 3);
}

API_TEST(lifetime, assign_with_views_of_the_old_value)
{
    kiln_tensor *p = F32(KILN_SHAPE(4), 1, 2, 3, 4), *tail = kiln_slice_axis(p, 0, 2, 4, 1), *back = kiln_flip(p, KILN_ALL_AXES);
    cr_assert(kiln_assign(p, kiln_add(p, back)) == KILN_OK);
    cr_assert(kiln_eval(p) == KILN_OK);
    EXPECT(p, KILN_F32, KILN_SHAPE(4), 0, 5, 5, 5, 5);
    EXPECT(tail, KILN_F32, KILN_SHAPE(2), 0, 3, 4);
    EXPECT(back, KILN_F32, KILN_SHAPE(4), 0, 4, 3, 2, 1);
}
