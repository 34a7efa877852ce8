/* jit/sort.c against a plain stable merge by comparison: every way of it, at each width of vectors that this CPU has. */
#include "ir/base/os.h"
#include "ir/scalar.h"
#include "jit/sort.h"
#include "tests/support/slice.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 88172645463325252u;

static uint64_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Must b come before a? */
static bool before(DType t, bool descending, uint64_t a, uint64_t b)
{
    if (dtype_is_float(t)) {
        double x = scalar_to_double(t, a), y = scalar_to_double(t, b);
        if (isnan(x) || isnan(y))
            return isnan(x) && !isnan(y);
        return descending ? y > x : y < x;
    }
    if (dtype_is_signed(t)) {
        int64_t x = scalar_to_int(t, a), y = scalar_to_int(t, b);
        return descending ? y > x : y < x;
    }
    return descending ? b > a : b < a;
}

/* Runs the job's phases, the tasks of each in some order, as `threads` threads would. */
static void run_sort(const SortJob *job, int threads, SortVectors vectors)
{
    SortPlan plan;
    sort_plan(job, threads, vectors, &plan);
    char *room = os_alloc_aligned(64, sort_room(&plan) + 64);
    memset(room, 0xa5, sort_room(&plan) + 64);
    for (int phase = 0; phase < plan.phases; phase++) {
        int64_t grain, tasks = sort_tasks(&plan, phase, &grain);
        for (int64_t task = tasks; task-- > 0;) /* from behind: no task waits for another */
            sort_run(&plan, phase, task, task + 1, (int)(task % plan.threads), room);
    }
    for (size_t i = 0; i < 64; i++)
        cr_assert_eq((unsigned char)room[sort_room(&plan) + i], 0xa5, "the room was left");
    os_free(room);
}

typedef struct Case {
    DType dtype;
    int64_t outer, n, inner;
    bool descending;
    int odd; /* of 16 elements, how many are zeros, NaNs, infinities; 16: integers of a small range */
} Case;

static void fill(const Case *c, char *in, size_t total)
{
    static const double odd[] = {0.0, -0.0, INFINITY, -INFINITY, NAN, 1.0, -1.0, 1e-40};
    size_t bytes = dtype_bytes(c->dtype);
    for (size_t i = 0; i < total; i++) {
        uint64_t r = next_random(), bits = r >> 7;
        if (c->dtype == DT_BOOL)
            bits &= 1;
        else if (dtype_is_float(c->dtype) && (int)(r & 15) < c->odd)
            bits = scalar_from_double(c->dtype, odd[(r >> 4) % 8]) ^ (r >> 8 & 1); /* with NaNs of several bits */
        else if (dtype_is_float(c->dtype))
            bits = scalar_from_double(c->dtype, (double)(int64_t)(r >> 52) - 2000);
        else if ((int)(r & 15) < c->odd)
            bits &= 7;
        scalar_store(c->dtype, bits, in + i * bytes);
    }
}

/* The order by definition, of one line. */
static void merge_order(const Case *c, const char *in, int64_t first, int64_t *order, int64_t *spare)
{
    size_t bytes = dtype_bytes(c->dtype);
#define KEY(i) scalar_load(c->dtype, in + (size_t)(first + (i)*c->inner) * bytes)
    for (int64_t i = 0; i < c->n; i++)
        order[i] = i;
    for (int64_t width = 1; width < c->n; width *= 2) {
        for (int64_t lo = 0; lo < c->n; lo += 2 * width) {
            int64_t mid = lo + width < c->n ? lo + width : c->n, hi = mid + width < c->n ? mid + width : c->n, a = lo, b = mid;
            for (int64_t k = lo; k < hi; k++) {
                bool right = a == mid || (b < hi && before(c->dtype, c->descending, KEY(order[a]), KEY(order[b])));
                spare[k] = order[right ? b++ : a++];
            }
        }
        memcpy(order, spare, (size_t)c->n * sizeof *order);
    }
#undef KEY
}

static void check_of(const Case *c, const char *in, int threads, SortVectors vectors)
{
    size_t total = (size_t)(c->outer * c->n * c->inner), bytes = dtype_bytes(c->dtype);
    char *values = os_alloc(total * bytes + 1);
    int64_t *places = os_alloc(total * 8 + 1), *order = os_alloc((size_t)c->n * 16 + 1);
    memset(places, 0xff, total * 8);
    SortJob job = {c->dtype, c->descending, false, c->outer, c->n, c->inner, in, places};
    run_sort(&job, threads, vectors);
    job.values = true;
    job.out = values;
    run_sort(&job, threads, vectors);
    for (int64_t line = 0; line < c->outer * c->inner; line++) {
        int64_t first = line / c->inner * c->n * c->inner + line % c->inner;
        merge_order(c, in, first, order, order + c->n);
        for (int64_t i = 0; i < c->n; i++) {
            int64_t at = first + i * c->inner;
            cr_assert_eq(places[at], order[i], "%s [%d, %d, %d] descending %d vectors %d threads %d: [%d] is %d, want %d",
                         dtype_name(c->dtype), (int)c->outer, (int)c->n, (int)c->inner, c->descending, vectors, threads, (int)i,
                         (int)places[at], (int)order[i]);
            cr_assert_arr_eq(values + (size_t)at * bytes, in + (size_t)(first + order[i] * c->inner) * bytes, bytes,
                             "%s [%d, %d, %d] descending %d vectors %d threads %d: element %d", dtype_name(c->dtype), (int)c->outer,
                             (int)c->n, (int)c->inner, c->descending, vectors, threads, (int)i);
        }
    }
    os_free(values);
    os_free(places);
    os_free(order);
}

static void check(const Case *c, int threads, SortVectors vectors)
{
    size_t total = (size_t)(c->outer * c->n * c->inner);
    char *in = os_alloc(total * dtype_bytes(c->dtype) + 1);
    fill(c, in, total);
    check_of(c, in, threads, vectors);
    os_free(in);
}

static void check_all(Case c)
{
    static uint64_t number;
    if (!slice_takes(number++))
        return;
    for (SortVectors vectors = SORT_NONE; vectors <= sort_vectors(0, true); vectors++)
        for (int descending = 0; descending < 2; descending++) {
            c.descending = descending;
            check(&c, 1, vectors);
            check(&c, 3, vectors);
        }
}

Test(sort, every_dtype)
{
    static const int64_t lengths[] = {0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 48, 100, 300, 1000};
    for (DType t = 0; t < DT_COUNT; t++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            check_all((Case){t, 3, lengths[i], 1, false, 4});
            check_all((Case){t, 37, lengths[i], 1, false, (int)(i % 17)}); /* several groups of the network, the last one partly filled */
            check_all((Case){t, 2, lengths[i], 19, false, 4});
        }
    check_all((Case){DT_F32, 0, 5, 3, false, 4});
    check_all((Case){DT_F32, 3, 5, 0, false, 4});
}

Test(sort, long_lines)
{
    static const DType types[] = {DT_U8, DT_BF16, DT_F32, DT_I64}; /* of each width: digits, items */
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        DType t = types[i];
        check_all((Case){t, 9, 4096, 1, false, 2}); /* the longest of the network, and one more */
        check_all((Case){t, 2, 4097, 1, false, 2});
        check_all((Case){t, 1, 70001, 1, false, 2}); /* by slices or cuts */
        check_all((Case){t, 1, 65537, 2, false, 0});
    }
}

/* Lines that bounds of a quicksort may cut badly, and radix digits that agree, which are passed over. */
Test(sort, lines_with_a_pattern)
{
    enum { N = 100000, KINDS = 7 };
    static int32_t in[N], values[N];
    static int64_t places[N], wide[N], wide_values[N];
    for (int kind = 0; kind < KINDS; kind++) {
        for (int i = 0; i < N; i++) {
            const int32_t of[KINDS] = {7, i, -i, i < N / 2 ? i : N - i, i % 3, i % 1000 ? INT32_MAX : i, 1 << (next_random() >> 20) % 31};
            in[i] = of[kind];
            wide[i] = in[i] * (INT64_C(1) << 31);
        }
        for (SortVectors vectors = SORT_NONE; vectors <= sort_vectors(0, true); vectors++)
            for (int threads = 1; threads <= 4; threads += 3) {
                SortJob job = {DT_I32, false, true, 1, N, 1, in, values};
                run_sort(&job, threads, vectors);
                job = (SortJob){DT_I64, false, true, 1, N, 1, wide, wide_values};
                run_sort(&job, threads, vectors);
                job = (SortJob){DT_I32, false, false, 1, N, 1, in, places};
                run_sort(&job, threads, vectors);
                for (int i = 0; i < N; i++) {
                    cr_assert_eq(values[i], in[places[i]]);
                    cr_assert_eq(wide_values[i], wide[places[i]]);
                    cr_assert(i == 0 || values[i - 1] < values[i] || (values[i - 1] == values[i] && places[i - 1] < places[i]));
                }
            }
    }
}

/* Keys of 64 bits and a place in one item: where keys differ only in bits that it has no room for, few of them, many, or all but one. */
Test(sort, keys_that_agree_in_upper_bits)
{
    enum { KINDS = 9 };
    static const int64_t lengths[] = {11, 12, 64, 300, 5000, 70000};
    uint64_t number = 0;
    static const DType types[] = {DT_I64, DT_F64}; /* of any bits: NaNs, too */
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
            for (int inner = 1; inner <= (lengths[l] > 5000 ? 1 : 3); inner += 2) { /* the longest by cuts */
                const int64_t n = lengths[l], total = n * inner;
                if (!slice_takes(number++))
                    continue;
                uint64_t *in = os_alloc((size_t)total * 8);
                for (int64_t i = 0; i < total; i++) {
                    const uint64_t r = next_random(), some = (uint64_t)1 << 62;
                    const uint64_t of[KINDS] = {r,
                                                some + r % 8,
                                                some + (r >> 40 << 20) + r % 4,
                                                r % 2 ? 0 : r,
                                                r % 3 ? r % 3 : r,
                                                r % 2 ? (uint64_t)INT64_MAX : (uint64_t)INT64_MIN + r % 4 * (r % 5 == 0),
                                                r % 1000,
                                                5,
                                                r % 7 ? some + ((uint64_t)(i / 9) << 8) + r % 3 : r};
                    in[i] = of[kind];
                }
                in[total / 2] = (uint64_t)INT64_MIN / 3; /* far from the others, where these are near each other */
                for (size_t t = 0; t < 2; t++)
                    for (SortVectors vectors = SORT_NONE; vectors <= sort_vectors(0, true); vectors++)
                        for (int descending = 0; descending < 2; descending++) {
                            const Case c = {types[t], 1, n, inner, descending, 0};
                            check_of(&c, (const char *)in, 1 + 2 * descending, vectors);
                        }
                os_free(in);
            }
}

Test(sort, room_of_impossible_lines)
{
    SortPlan plan;
    SortJob job = {DT_F32, false, false, 1, INT64_MAX / 4, 1, NULL, NULL};
    sort_plan(&job, 1, SORT_NONE, &plan);
    cr_assert_eq(sort_room(&plan), SIZE_MAX);
    job.n = INT64_MAX / 16;
    job.outer = 16;
    sort_plan(&job, 32, SORT_NONE, &plan);
    cr_assert_eq(sort_room(&plan), SIZE_MAX);
}
