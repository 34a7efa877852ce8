/*
 * One kernel that reads a value for each row, all along the row, and writes another in its place: in every mode and on every
 * device the reader must see the old one, however many threads or tasks share the row.
 */
#include "api.h"

#include <stdlib.h>

enum { MOST = 3 * 20000 };

static const struct {
    int64_t rows, n;
} sizes[] = {{1, 5}, {3, 40}, {40, 3}, {64, 64}, {5, 300}, {2, 5001}, {3, 20000}};
enum { SIZES = sizeof sizes / sizeof *sizes };

static int32_t *noise(void)
{
    int32_t *y = malloc(sizeof *y * MOST);
    for (int i = 0; i < MOST; i++)
        y[i] = i * 7919 % 101 - 50;
    return y;
}

static int32_t largest(const int32_t *y, int64_t n, int64_t apart)
{
    int32_t most = INT32_MIN;
    for (int64_t i = 0; i < n; i++)
        most = y[i * apart] > most ? y[i * apart] : most;
    return most;
}

/* out = y a + max y; a = a + max y, which is a's storage. Rows lie along the last axis, or columns along the first. */
static void assigned(const int32_t *y, int64_t rows, int64_t n, bool columns)
{
    int32_t *old = malloc(sizeof *old * (size_t)rows), *got = malloc(sizeof *got * (size_t)(rows * n));
    for (int64_t x = 0; x < rows; x++)
        old[x] = (int32_t)x + 3;
    kiln_shape whole = columns ? KILN_SHAPE(n, rows) : KILN_SHAPE(rows, n), beside = columns ? KILN_SHAPE(1, rows) : KILN_SHAPE(rows, 1);
    kiln_tensor *a = kiln_from(KILN_I32, KILN_SHAPE(rows), old);
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *t = kiln_from(KILN_I32, whole, y), *m = kiln_max_axes(t, KILN_AXES(columns ? 0 : 1), 1);
    kiln_tensor *out = kiln_retain(kiln_add(kiln_mul(t, kiln_reshape(a, beside)), m));
    cr_assert(kiln_assign(a, kiln_add(a, kiln_reshape(m, KILN_SHAPE(rows)))) == KILN_OK, "%s", kiln_error_message());
    kiln_scope_end(scope);
    kiln_tensor *both[] = {a, out};
    cr_assert(kiln_eval_many(both, 2) == KILN_OK, "%s", kiln_error_message());
    int64_t apart = columns ? rows : 1, step = columns ? 1 : n;
    cr_assert(kiln_read(out, KILN_I32, got, sizeof *got * (size_t)(rows * n)) == KILN_OK, "%s", kiln_error_message());
    for (int64_t x = 0; x < rows; x++)
        for (int64_t i = 0; i < n; i++) {
            int64_t at = x * step + i * apart;
            int32_t want = y[at] * old[x] + largest(y + x * step, n, apart);
            cr_assert(got[at] == want, "%d x %d, columns %d: element %d of %d is %d, not %d", (int)rows, (int)n, columns, (int)i, (int)x,
                      got[at], want);
        }
    cr_assert(kiln_read(a, KILN_I32, got, sizeof *got * (size_t)rows) == KILN_OK, "%s", kiln_error_message());
    for (int64_t x = 0; x < rows; x++)
        cr_assert_eq(got[x], old[x] + largest(y + x * step, n, apart));
    kiln_release(out);
    free(old);
    free(got);
}

API_TEST(overwrite, a_value_that_its_row_reads)
{
    int32_t *y = noise();
    for (int i = 0; i < SIZES; i++)
        for (int columns = 0; columns < 2; columns++)
            assigned(y, sizes[i].rows, sizes[i].n, columns != 0);
    free(y);
}

/* a and b = a + a are values of the plan's own, in one slot if that may be; out is a scan of rows with b. */
static void scanned(const int32_t *y, int64_t rows, int64_t n, bool after)
{
    int32_t *down = malloc(sizeof *down * (size_t)rows);
    int64_t *got = malloc(sizeof *got * (size_t)(rows * n));
    for (int64_t x = 0; x < rows; x++)
        down[x] = (int32_t)(rows - x);
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *t = kiln_from(KILN_I32, KILN_SHAPE(rows, n), y);
    kiln_tensor *a = kiln_argsort(kiln_from(KILN_I32, KILN_SHAPE(rows), down), 0, 0); /* rows - 1, ..., 0 */
    kiln_tensor *b = kiln_add(a, a), *rb = kiln_reshape(b, KILN_SHAPE(rows, 1));
    kiln_tensor *out = after ? kiln_mul(kiln_cumsum(t, 1), rb) : kiln_cumsum(kiln_mul(t, rb), 1);
    kiln_tensor *both[] = {kiln_argsort(b, 0, 0), out};
    cr_assert(kiln_eval_many(both, 2) == KILN_OK, "%s", kiln_error_message());
    cr_assert(kiln_read(out, KILN_I64, got, sizeof *got * (size_t)(rows * n)) == KILN_OK, "%s", kiln_error_message());
    for (int64_t x = 0; x < rows; x++) {
        int64_t sum = 0;
        for (int64_t i = 0; i < n; i++) {
            sum += y[x * n + i];
            int64_t want = sum * 2 * (rows - 1 - x);
            cr_assert(got[x * n + i] == want, "%d x %d: element %d of %d is %lld, not %lld", (int)rows, (int)n, (int)i, (int)x,
                      (long long)got[x * n + i], (long long)want);
        }
    }
    kiln_scope_end(scope);
    free(down);
    free(got);
}

API_TEST(overwrite, a_value_that_a_scan_reads)
{
    int32_t *y = noise();
    for (int i = 0; i < SIZES; i++)
        for (int after = 0; after < 2; after++)
            scanned(y, sizes[i].rows, sizes[i].n, after != 0);
    free(y);
}

/* Few columns are summed by as many threads as there are rows, and some more, who look at the last one: not after it was overwritten. */
API_TEST(overwrite, a_place_that_is_taken_from)
{
    static const int64_t rows[] = {1, 33, 72, 73, 96, 130, 200};
    static int32_t table[200 * 3], down[200];
    static int64_t got[200];
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        int64_t n = rows[r];
        for (int64_t i = 0; i < n; i++)
            down[i] = (int32_t)(n - i);
        for (int i = 0; i < 3 * n; i++)
            table[i] = 1000 + i;
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *at = kiln_argsort(kiln_from(KILN_I32, KILN_SHAPE(n), down), 0, 0); /* n - 1, ..., 0 */
        kiln_tensor *taken = kiln_take(kiln_from(KILN_I32, KILN_SHAPE(n, 3), table), at, 0);
        kiln_tensor *out = kiln_argsort(kiln_sum_axes(taken, KILN_AXES(1), 0), 0, 0);
        cr_assert(kiln_read(out, KILN_I64, got, sizeof *got * (size_t)n) == KILN_OK, "%d rows: %s", (int)n, kiln_error_message());
        for (int64_t i = 0; i < n; i++)
            cr_assert_eq(got[i], n - 1 - i);
        kiln_scope_end(scope);
    }
}

/* Values of one byte leave places of eight where they will: few columns, whose threads exchange both. */
API_TEST(overwrite, places_of_the_largest_byte)
{
    static const kiln_dtype dtypes[] = {KILN_BOOL, KILN_U8, KILN_I8, KILN_I16};
    int64_t got[4];
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (int64_t n = 3; n < 9; n += 2)
            for (int64_t columns = 1; columns < 4; columns++) {
                uint8_t data[2 * 9 * 4] = {0};
                size_t bytes = kiln_dtype_size(dtypes[d]);
                for (int64_t x = 0; x < columns; x++)
                    data[(size_t)((x * 5 % n) * columns + x) * bytes] = 1;
                kiln_scope *scope = kiln_scope_begin();
                kiln_tensor *at = kiln_argmax_axis(kiln_from(dtypes[d], KILN_SHAPE(n, columns), data), 0, 0);
                cr_assert(kiln_read(at, KILN_I64, got, sizeof *got * (size_t)columns) == KILN_OK, "%s", kiln_error_message());
                for (int64_t x = 0; x < columns; x++)
                    cr_assert(got[x] == x * 5 % n, "%s[%d,%d]: column %d: %d", kiln_dtype_name(dtypes[d]), (int)n, (int)columns, (int)x,
                              (int)got[x]);
                kiln_scope_end(scope);
            }
}

/* --- products --- */

static const struct {
    int64_t m, k, n;
} products[] = {{1, 9, 1}, {1, 40, 230}, {70, 33, 1}, {5, 300, 7}, {64, 64, 64}, {130, 20, 90}, {33, 700, 65}, {200, 17, 200}};

/* w = 3 w - a b, where w is: each task of the product reads what it overwrites. Also with w as a factor, which is never overwritten. */
static void product_assigned(int64_t m, int64_t k, int64_t n, bool factor)
{
    int32_t *y = noise();
    kiln_tensor *w = kiln_from(KILN_I32, KILN_SHAPE(m, n), y);
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *a = kiln_from(KILN_I32, KILN_SHAPE(m, k), y + 7), *b = kiln_from(KILN_I32, KILN_SHAPE(k, n), y + 13);
    kiln_tensor *product = factor ? kiln_matmul(w, b) : kiln_matmul(a, b);
    cr_assert(kiln_assign(w, kiln_sub(kiln_mul(w, kiln_int(3)), product)) == KILN_OK, "%s", kiln_error_message());
    kiln_scope_end(scope);
    kiln_call_report report = {.size = sizeof report};
    cr_assert(kiln_eval(w) == KILN_OK, "%s", kiln_error_message());
    cr_assert(kiln_last_call(&report) == KILN_OK);
    char mode[16], device[16];
    cr_assert(kiln_get_option("mode", mode, sizeof mode) == KILN_OK && kiln_get_option("device", device, sizeof device) == KILN_OK);
    if (!strcmp(mode, "jit") && !strcmp(device, "cpu")) /* a CUDA device overwrites nothing before all kernels ran once */
        cr_expect_eq(report.in_place, !factor, "%d x %d x %d: %s", (int)m, (int)k, (int)n, report.why_not_in_place);
    int32_t *got = malloc(sizeof *got * (size_t)(m * n));
    cr_assert(kiln_read(w, KILN_I32, got, sizeof *got * (size_t)(m * n)) == KILN_OK, "%s", kiln_error_message());
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            int32_t want = 3 * y[i * n + j];
            for (int64_t l = 0; l < k; l++)
                want -= (factor ? y : y + 7)[i * k + l] * (y + 13)[l * n + j];
            cr_assert(got[i * n + j] == want, "%d x %d x %d: element %d, %d is %d, not %d", (int)m, (int)k, (int)n, (int)i, (int)j,
                      got[i * n + j], want);
        }
    free(got);
    free(y);
}

API_TEST(overwrite, products)
{
    for (size_t s = 0; s < sizeof products / sizeof *products; s++) {
        product_assigned(products[s].m, products[s].k, products[s].n, false);
        product_assigned(products[s].n, products[s].n, products[s].n, true);
    }
}
