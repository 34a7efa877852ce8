/* sort_arg against a plain stable insertion by comparison. */
#include "ir/base/os.h"
#include "ir/scalar.h"
#include "jit/sort.h"

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

static void check(DType t, int64_t outer, int64_t n, int64_t inner, bool descending)
{
    static const double odd[] = {0.0, -0.0, INFINITY, -INFINITY, NAN, 1.0, -1.0, 1e-40};
    size_t total = (size_t)(outer * n * inner), bytes = dtype_bytes(t);
    char *in = os_alloc(total * bytes + 1);
    int64_t *out = os_alloc(total * 8 + 1), *order = os_alloc((size_t)n * 8 + 1);
    for (size_t i = 0; i < total; i++) {
        uint64_t r = next_random(), bits = r >> 7;
        if (t == DT_BOOL)
            bits &= 1;
        else if (dtype_is_float(t))
            bits = r & 3 ? scalar_from_double(t, (double)(int64_t)(r >> 52) - 2000) : scalar_from_double(t, odd[(r >> 2) % 8]);
        else if (r & 1)
            bits &= 7;
        scalar_store(t, bits, in + i * bytes);
        out[i] = -1;
    }
    int64_t lines = outer * inner, cut = lines / 2;
    cr_assert_eq(sort_arg(t, in, out, outer, n, inner, descending, cut, lines), ST_OK);
    cr_assert_eq(sort_arg(t, in, out, outer, n, inner, descending, 0, cut), ST_OK);
    for (int64_t line = 0; line < lines; line++) {
        int64_t first = line / inner * n * inner + line % inner;
#define KEY(i) scalar_load(t, in + (size_t)(first + (i)*inner) * bytes)
        for (int64_t i = 0; i < n; i++) {
            int64_t j = i;
            for (; j > 0 && before(t, descending, KEY(order[j - 1]), KEY(i)); j--)
                order[j] = order[j - 1];
            order[j] = i;
        }
        for (int64_t i = 0; i < n; i++)
            cr_assert_eq(out[first + i * inner], order[i], "%s n %d inner %d descending %d: [%d] is %d, want %d", dtype_name(t), (int)n,
                         (int)inner, descending, (int)i, (int)out[first + i * inner], (int)order[i]);
    }
    os_free(in);
    os_free(out);
    os_free(order);
}

Test(sort, every_dtype)
{
    static const int64_t lengths[] = {0, 1, 2, 5, 47, 48, 49, 300, 1000};
    for (DType t = 0; t < DT_COUNT; t++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            for (int descending = 0; descending < 2; descending++) {
                check(t, 3, lengths[i], 1, descending);
                check(t, 2, lengths[i], 3, descending);
            }
    check(DT_F32, 0, 5, 3, false);
    check(DT_F32, 3, 5, 0, false);
}

Test(sort, out_of_memory)
{
    float in[3] = {3, 1, 2};
    int64_t out[3];
    cr_assert_eq(sort_arg(DT_F32, in, out, 1, INT64_MAX / 4, 1, false, 0, 1), ST_OUT_OF_MEMORY);
    os_fail_alloc(1, false);
    cr_assert_eq(sort_arg(DT_F32, in, out, 1, 3, 1, false, 0, 1), ST_OUT_OF_MEMORY);
    cr_assert_eq(sort_arg(DT_F32, in, out, 1, 3, 1, false, 0, 1), ST_OK);
}
