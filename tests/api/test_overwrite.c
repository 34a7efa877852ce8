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

/* --- behind steps that may fail ----------------------------------------------------------------------------------------- */

typedef enum Kind { LOOP, INDEX_IN_LOOP, SORT, BRANCH, CALL, KINDS } Kind;

static const struct {
    const char *name;
    kiln_status status; /* where it fails */
} kinds[KINDS] = {[LOOP] = {"loop", KILN_INVALID},
                  [INDEX_IN_LOOP] = {"index in a loop", KILN_BAD_INDEX},
                  [SORT] = {"sort", KILN_BAD_INDEX},
                  [BRANCH] = {"branch", KILN_BAD_INDEX},
                  [CALL] = {"call", KILN_INVALID}};

enum { WIDTH = 64, FAR = 1000 };

/* in[0]: WIDTH floats; in[1]: 1 where it is to fail, else 0. */
static kiln_tensor *few_steps(kiln_tensor **in, void *user)
{
    (void)user;
    return kiln_lt(in[2], kiln_add(kiln_mul(in[1], 100), 3));
}

static void tanh_step(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_tanh(in[0]);
    out[1] = in[1];
    out[2] = kiln_add(in[2], 1);
}

static void sum_step(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    kiln_tensor **in = user;
    (void)x, (void)y;
    kiln_tensor *index = kiln_reshape(kiln_add(i, kiln_mul(in[1], FAR)), KILN_SHAPE(1));
    carry_out[0] = kiln_add(carry[0], kiln_take(in[0], index, 0));
}

static void takes_far(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_sub(in[0], kiln_take(in[0], kiln_reshape(kiln_mul(in[1], FAR), KILN_SHAPE(1)), 0));
}

static void exponential(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_exp(in[0]);
}

static kiln_status as_first(const kiln_type *in, kiln_type *out, const void *attributes, size_t bytes, void *user)
{
    (void)attributes, (void)bytes, (void)user;
    out[0] = in[0];
    return KILN_OK;
}

static kiln_status squares(const kiln_buffer *in, const kiln_buffer *out, const void *attributes, size_t bytes, void *user)
{
    (void)attributes, (void)bytes, (void)user;
    for (int i = 0; i < WIDTH; i++)
        ((float *)out[0].data)[i] = ((const float *)in[0].data)[i] * ((const float *)in[0].data)[i];
    return *(const int64_t *)in[1].data ? kiln_op_fail("as it shall") : KILN_OK;
}

/* Something of p; fails where `wrong`, an i64, is 1. NULL: it did where it was recorded (eager mode). */
static kiln_tensor *made_by(Kind kind, kiln_tensor *p, kiln_tensor *wrong)
{
    static const kiln_op *op;
    kiln_tensor *in[] = {p, wrong, kiln_int(0)}, *out[3] = {NULL}, *zero;
    kiln_status status = KILN_OK;
    switch (kind) {
    case LOOP: status = kiln_while(few_steps, tanh_step, 3, in, 5, out, NULL); break;
    case INDEX_IN_LOOP:
        zero = kiln_zeros(KILN_F32, KILN_SHAPE(1));
        status = kiln_scan(sum_step, 3, 0, 1, &zero, out, 0, NULL, 0, NULL, in);
        break;
    case SORT:
        in[2] = kiln_add(kiln_arange(KILN_I64, 0, WIDTH, 1), kiln_mul(wrong, FAR));
        out[0] = kiln_matmul(kiln_tril(kiln_ones(KILN_F32, KILN_SHAPE(WIDTH, WIDTH)), 0), kiln_take(kiln_sort(p, 0, true), in[2], 0));
        break;
    case BRANCH: status = kiln_cond(kiln_ge(in[1], 0), takes_far, exponential, 2, in, 1, out, NULL); break;
    case CALL:
        if (!op)
            op = kiln_op_register(
                &(kiln_op_info){.name = "test.squares", .version = "1", .n_in = 2, .n_out = 1, .infer = as_first, .host = squares});
        status = kiln_op_apply(op, in, NULL, 0, out);
        break;
    case KINDS: break;
    }
    return status == KILN_OK ? out[0] : NULL;
}

typedef struct Update {
    Kind kind;
    kiln_tensor *p, *other;
} Update;

/* p = p - made / 4; in[0]: whether it fails. And the other one, which waits for nothing. */
static void update(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const Update *u = user;
    kiln_tensor *made = made_by(u->kind, u->p, in[0]);
    (void)out;
    (void)kiln_assign(u->other, kiln_add(u->other, 1));
    if (made)
        (void)kiln_assign(u->p, kiln_sub(u->p, kiln_mul(made, 0.25)));
}

static void behind(Kind kind, bool compiled)
{
    float before[WIDTH], made[WIDTH], after[WIDTH];
    for (int i = 0; i < WIDTH; i++)
        before[i] = (float)(i * 7 % 64) / 32 - 1;
    Update u = {kind, kiln_from(KILN_F32, KILN_SHAPE(WIDTH), before), kiln_from(KILN_F32, KILN_SHAPE(2), (float[]){0, 0})};
    kiln_tensor *right = kiln_full_int(KILN_I64, KILN_SHAPE(), 0), *wrong = kiln_full_int(KILN_I64, KILN_SHAPE(), 1);
    kiln_function *f = kiln_function_new(update, 1, 0, &u);
    for (int round = 0; round < 6; round++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *m = made_by(kind, kiln_from(KILN_F32, KILN_SHAPE(WIDTH), before), right);
        bool one = kiln_numel(m) == 1;
        OK(kiln_read(m, KILN_F32, made, one ? sizeof *made : sizeof made));
        kiln_scope_end(scope);
        if (round % 3) {
            fails_with(kiln_function_call(f, &wrong, NULL), kinds[kind].status, "");
            OK(kiln_read(u.p, KILN_F32, after, sizeof after));
            cr_assert(memcmp(before, after, sizeof before) == 0, "%s: a step that failed changed something", kinds[kind].name);
            EXPECT(u.other, KILN_F32, KILN_SHAPE(2), 0, round, round);
        }
        kiln_call_report last = {.size = sizeof last};
        OK(kiln_function_call(f, &right, NULL));
        OK(kiln_last_call(&last));
        if (compiled && round > 2) /* a CUDA device overwrites nothing before all kernels ran once */
            cr_expect(last.in_place >= 1, "%s: %s", kinds[kind].name, last.why_not_in_place);
        OK(kiln_read(u.p, KILN_F32, after, sizeof after));
        for (int i = 0; i < WIDTH; i++) {
            float want = before[i] - made[one ? 0 : i] / 4;
            cr_assert(fabsf(after[i] - want) <= 1e-6f, "%s, round %d: %g, not %g", kinds[kind].name, round, (double)after[i], (double)want);
        }
        memcpy(before, after, sizeof before);
    }
    kiln_function_free(f);
}

/* What overwrites comes behind all that may fail: where that does, nothing has changed. */
API_TEST(overwrite, behind_what_may_fail)
{
    char mode[16], device[16];
    OK(kiln_get_option("mode", mode, sizeof mode));
    OK(kiln_device_of(kiln_from(KILN_F32, KILN_SHAPE(1), (float[]){0}), device, sizeof device));
    for (Kind kind = 0; kind < KINDS; kind++)
        if (kind != CALL || !strcmp(device, "cpu"))
            behind(kind, !strcmp(mode, "jit"));
}
