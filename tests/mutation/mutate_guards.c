/*
 * Each kind of guard is needed: for each, a program whose answers would be wrong, or an error, if its guards of that kind were forgotten
 * (KILN_TEST_FAIL=guard:NAME, by guards_matter.sh).
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

int main(int argc, char **argv)
{
    static const Test tests[] = {{"size", size},
                                 {"same", same},
                                 {"range_of_any", range_of_any},
                                 {"rows_of_nothing", rows_of_nothing},
                                 {"columns_of_nothing", columns_of_nothing},
                                 {"range_of_indices", range_of_indices},
                                 {"scalar", scalar}};
    return run_tests("mutate_guards", tests, sizeof tests / sizeof *tests, argc, argv);
}
