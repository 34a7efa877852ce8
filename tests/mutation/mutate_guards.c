/*
 * Each kind of guard is needed: for each, a program whose answers would be wrong, or an error, if its guards of that kind were forgotten
 * (KILN_TEST_FAIL=guard:NAME, by guards_matter.sh). Once with graphs, and once with loops and branches whose bodies alone ask for them.
 */
#include "tests/mutation/harness.h"
#include "tests/support/guarded.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct Sizes {
    int64_t n, m;
    double scalar;
} Sizes;

static void meet(Recipe1 *build, const Sizes *calls, int n)
{
    for (int i = 0; i < n; i++) {
        char what[64];
        Sizes s = calls[i];
        snprintf(what, sizeof what, "call %d", i);
        same_as_interp(build, &s, what);
    }
}
#define MEET(build, ...) meet(build, (const Sizes[]){__VA_ARGS__}, (int)(sizeof((const Sizes[]){__VA_ARGS__}) / sizeof(Sizes)))

static kiln_tensor *row_sums(void *user)
{
    const Sizes *s = user;
    return kiln_sum_axes(plain_f32(KILN_SHAPE(s->n, s->m), 1), KILN_AXES(1), false);
}

/* One compiled for 6 x 40 adds 40 numbers in each row. */
static void size(void) { MEET(row_sums, {6, 40, 0}, {6, 30, 0}, {6, 40, 0}, {4, 30, 0}); }

static kiln_tensor *two_slices(void *user)
{
    const Sizes *s = user;
    kiln_tensor *x = plain_f32(KILN_SHAPE(100), 1);
    kiln_tensor *a = kiln_square(kiln_slice_axis(x, 0, 0, s->n, 1)), *b = kiln_square(kiln_slice_axis(x, 0, 0, s->m, 1));
    return kiln_sub(kiln_sum(a), kiln_mul(kiln_sum(b), kiln_scalar(0.5)));
}

/* Two slices with equal bounds are one, whatever the bounds: but not with bounds that differ. */
static void same(void) { MEET(two_slices, {20, 20, 0}, {33, 33, 0}, {40, 40, 0}, {33, 20, 0}, {33, 33, 0}, {0, 64, 0}); }

static kiln_tensor *any_of_repeated(void *user)
{
    const Sizes *s = user;
    kiln_tensor *positive = kiln_gt(plain_f32(KILN_SHAPE(5, 1), 1), kiln_scalar(0));
    return kiln_any_axes(kiln_expand(positive, KILN_SHAPE(5, s->n)), KILN_AXES(1), false);
}

static kiln_tensor *bad_row(void *user)
{
    const Sizes *s = user;
    enum { ROWS = 70 }; /* of fewer rows the sums are cut into blocks, and of nothing there is no block */
    kiln_tensor *index = kiln_from(KILN_I64, KILN_SHAPE(ROWS), (int64_t[ROWS]){0, s->m});
    return kiln_sum_axes(kiln_take(plain_f32(KILN_SHAPE(4, s->n), 1), index, 0), KILN_AXES(1), false);
}

/* Any of n equal bools is the bool, except of none. */
static void range_of_any(void) { MEET(any_of_repeated, {4, 0, 0}, {7, 0, 0}, {0, 0, 0}, {7, 0, 0}, {3, 0, 0}); }

/* A row that holds nothing is not looked up, so its number may be anything: no guard, the code knows. */
static void rows_of_nothing(void) { MEET(bad_row, {4, 1, 0}, {7, 2, 0}, {0, 99, 0}, {5, 3, 0}, {0, -99, 0}); }

/* Sums along repetitions: what an index picks is read once for each of them, outside their loop. The column ends where no byte may be
 * read; it is left to the process's end. */
static kiln_tensor *sums_of_repeated(void *user)
{
    const Sizes *s = user;
    Guarded column = guarded_at_end((size_t)s->n * sizeof(float), 0);
    kiln_tensor *x = kiln_wrap(KILN_F32, KILN_SHAPE(s->n, 1), column.data, NULL, NULL);
    const char *device = getenv("KILN_DEVICE");
    x = kiln_expand(device ? kiln_to(x, device) : x, KILN_SHAPE(s->n, s->m));
    kiln_tensor *index = kiln_expand(kiln_from(KILN_I64, KILN_SHAPE(2, 1), (int64_t[]){1, 0}), KILN_SHAPE(2, s->m));
    return kiln_sum_axes(kiln_take_along_axis(kiln_add(x, kiln_scalar(1)), index, 0), KILN_AXES(1), false);
}

/* Repeated no times there may be nothing to pick from. */
static void columns_of_nothing(void) { MEET(sums_of_repeated, {4, 3, 0}, {7, 5, 0}, {0, 0, 0}, {2, 0, 0}, {3, 9, 0}, {0, 0, 0}); }

static kiln_tensor *scaled(void *user)
{
    const Sizes *s = user;
    return kiln_add(kiln_mul(plain_f32(KILN_SHAPE(s->n), 1), kiln_scalar(s->scalar)), kiln_scalar(2));
}

/* x * 1 is x. */
static void scalar(void) { MEET(scaled, {9, 0, 1}, {9, 0, 3}, {9, 0, 1}, {9, 0, 0}, {9, 0, -0.5}); }

static kiln_tensor *turned(void *user)
{
    const Sizes *s = user;
    return kiln_add(kiln_transpose(plain_f32(KILN_SHAPE(s->n, s->m), 1)), kiln_scalar(1));
}

/* Indices that are narrower on a CUDA device than on the host, here so narrow that little memory is enough to leave their range. */
static void range_of_indices(void)
{
    char hook[64] = "", both[80];
    const char *driver = getenv("KILN_TEST_LIBCUDA");
    if (!driver) { /* guards_matter.sh looks for it */
        printf("no software CUDA driver in this build: nothing was tested\n");
        CHECK(!getenv("KILN_TEST_FAIL"), "no driver to notice it");
        return;
    }
    OK(kiln_get_option("test_fail", hook, sizeof hook));
    snprintf(both, sizeof both, "%s%sindex:16", hook, hook[0] ? "," : "");
    set_option("test_fail", both);
    set_option("libcuda", driver);
    set_option("device", "cuda");
    int64_t before = stats_now().compiles;
    MEET(turned, {10, 12, 0}, {20, 9, 0}, {150, 210, 0}, {7, 30, 0});
    CHECK(stats_now().compiles - before == 2, "%d", (int)(stats_now().compiles - before));
    MEET(turned, {200, 300, 0}, {11, 5, 0}, {90, 800, 0}, {40000, 1, 0}, {1, 40000, 0}, {12, 13, 0});
    CHECK(stats_now().compiles - before == 3, "%d", (int)(stats_now().compiles - before));
}

/* --- guards that only what a loop or a branch holds asks for: of what depends on its state, so that it stays there --------------- */

typedef kiln_tensor *Inside(kiln_tensor *x, const Sizes *s); /* of the dtype and shape of x */
typedef struct Held Held;
typedef kiln_tensor *Around(const Held *held, kiln_tensor *x);

struct Held {
    Around *around;
    Inside *inside;
    kiln_shape (*shape)(const Sizes *s);
    Sizes sizes;
};

static void scan_step(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **next, kiln_tensor **y, void *user)
{
    const Held *held = user;
    (void)i, (void)x, (void)y;
    next[0] = held->inside(carry[0], &held->sizes);
}

static kiln_tensor *in_scan(const Held *held, kiln_tensor *x)
{
    kiln_tensor *last = NULL;
    OK(kiln_scan(scan_step, 3, 0, 1, &x, &last, 0, NULL, 0, NULL, (void *)(uintptr_t)held));
    return last;
}

static void while_step(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const Held *held = user;
    out[0] = held->inside(in[0], &held->sizes);
    out[1] = kiln_add(in[1], 1);
}

static kiln_tensor *twice(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_lt(state[1], 2);
}

static kiln_tensor *in_while(const Held *held, kiln_tensor *x)
{
    kiln_tensor *state[] = {x, kiln_from(KILN_I64, KILN_SHAPE(), (int64_t[]){0})};
    OK(kiln_while(twice, while_step, 2, state, 0, state, (void *)(uintptr_t)held));
    return state[0];
}

/* The guard is about what the condition makes of the state, which only grows. */
static kiln_tensor *below(kiln_tensor **state, void *user)
{
    const Held *held = user;
    return kiln_lt(kiln_max(held->inside(state[0], &held->sizes)), 1e3);
}

static void grow(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_add(kiln_mul(in[0], 2), 1);
}

static kiln_tensor *in_condition(const Held *held, kiln_tensor *x)
{
    OK(kiln_while(below, grow, 1, &x, 0, &x, (void *)(uintptr_t)held));
    return x;
}

static void taken(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const Held *held = user;
    out[0] = held->inside(in[0], &held->sizes);
}

static void not_taken(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_neg(in[0]);
}

static kiln_tensor *in_branch(const Held *held, kiln_tensor *x)
{
    kiln_tensor *yes = kiln_from(KILN_BOOL, KILN_SHAPE(), (bool[]){true}), *out = NULL;
    OK(kiln_cond(yes, taken, not_taken, 1, &x, 1, &out, (void *)(uintptr_t)held));
    return out;
}

static kiln_tensor *held_by(void *user)
{
    const Held *held = user;
    return held->around(held, plain_f32(held->shape(&held->sizes), 1));
}

static void meet_held(Held held, const Sizes *calls, int n)
{
    for (int i = 0; i < n; i++) {
        char what[64];
        held.sizes = calls[i];
        snprintf(what, sizeof what, "call %d", i);
        same_as_interp(held_by, &held, what);
    }
}

static kiln_shape rows(const Sizes *s) { return KILN_SHAPE(s->n, s->m); }
static kiln_shape hundred(const Sizes *s) { return (void)s, KILN_SHAPE(100); }
static kiln_shape column(const Sizes *s) { return (void)s, KILN_SHAPE(5, 1); }
static kiln_shape row(const Sizes *s) { return KILN_SHAPE(s->n); }

static kiln_tensor *less_its_sums(kiln_tensor *x, const Sizes *s)
{
    (void)s;
    return kiln_sub(kiln_mul(x, 0.5), kiln_mul(kiln_sum_axes(x, KILN_AXES(1), true), 0.25));
}

static kiln_tensor *with_two_slices(kiln_tensor *x, const Sizes *s)
{
    kiln_tensor *a = kiln_square(kiln_slice_axis(x, 0, 0, s->n, 1)), *b = kiln_square(kiln_slice_axis(x, 0, 0, s->m, 1));
    return kiln_add(kiln_mul(x, 0.125), kiln_mul(kiln_sub(kiln_sum(a), kiln_mul(kiln_sum(b), 0.5)), 1e-3));
}

static kiln_tensor *with_any(kiln_tensor *x, const Sizes *s)
{
    kiln_tensor *any = kiln_any_axes(kiln_expand(kiln_gt(x, 0), KILN_SHAPE(5, s->n)), KILN_AXES(1), true);
    return kiln_add(kiln_mul(x, 0.5), kiln_mul(kiln_cast(any, KILN_F32), 1e4));
}

static kiln_tensor *times(kiln_tensor *x, const Sizes *s) { return kiln_add(kiln_mul(x, kiln_scalar(s->scalar)), 2); }

#define CALLS(...) (const Sizes[]){__VA_ARGS__}, (int)(sizeof((const Sizes[]){__VA_ARGS__}) / sizeof(Sizes))
static void held_size(Around *around)
{
    meet_held((Held){around, less_its_sums, rows, {0}}, CALLS({4, 30, 0}, {6, 30, 0}, {6, 40, 0}, {4, 30, 0}, {9, 50, 0}));
}
static void held_same(Around *around)
{
    meet_held((Held){around, with_two_slices, hundred, {0}},
              CALLS({20, 20, 0}, {33, 33, 0}, {40, 40, 0}, {33, 20, 0}, {33, 33, 0}, {0, 64, 0}));
}
static void held_range(Around *around)
{
    meet_held((Held){around, with_any, column, {0}}, CALLS({4, 0, 0}, {7, 0, 0}, {0, 0, 0}, {7, 0, 0}, {3, 0, 0}));
}
static void held_scalar(Around *around)
{
    meet_held((Held){around, times, row, {0}}, CALLS({9, 0, 1}, {9, 0, 3}, {9, 0, 1}, {9, 0, 1.5}, {9, 0, 2.5}));
}

/* Each kind in the step of a scan, in that of a while, in its condition, in a branch. */
#define HELD(kind)                                                       \
    static void kind##_in_scan(void) { held_##kind(in_scan); }           \
    static void kind##_in_while(void) { held_##kind(in_while); }         \
    static void kind##_in_condition(void) { held_##kind(in_condition); } \
    static void kind##_in_branch(void) { held_##kind(in_branch); }
HELD(size)
HELD(same)
HELD(range)
HELD(scalar)

int main(int argc, char **argv)
{
#define HELD_TESTS(kind)                                                                                                    \
    {#kind "_in_scan", kind##_in_scan}, {#kind "_in_while", kind##_in_while}, {#kind "_in_condition", kind##_in_condition}, \
    {                                                                                                                       \
#kind "_in_branch", kind##_in_branch                                                                                \
    }
    static const Test tests[] = {HELD_TESTS(size),
                                 HELD_TESTS(same),
                                 HELD_TESTS(range),
                                 HELD_TESTS(scalar),
                                 {"size", size},
                                 {"same", same},
                                 {"range_of_any", range_of_any},
                                 {"rows_of_nothing", rows_of_nothing},
                                 {"columns_of_nothing", columns_of_nothing},
                                 {"range_of_indices", range_of_indices},
                                 {"scalar", scalar}};
    return run_tests("mutate_guards", tests, sizeof tests / sizeof *tests, argc, argv);
}
