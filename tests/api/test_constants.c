/*
 * kiln_mark_constant: what is made of constants alone is computed once and kept, whoever asks for it; and never stale. Each way in which a
 * value may change, and in which a kept one is asked for: other values in the same memory, scalars, functions, threads, overwriting, too
 * little room.
 */
#include "api.h"

#include <pthread.h>

enum { N = 96, ELEMENTS = N * N };

static int64_t kernels(void)
{
    kiln_stats stats = stats_now();
    return stats.kernels;
}

static int64_t live(void)
{
    kiln_stats stats = stats_now();
    return stats.live_bytes;
}

static void fill(float *data, float first)
{
    for (int i = 0; i < ELEMENTS; i++)
        data[i] = first + (float)(i * 7 % 31) / 64;
}

/* The sums of columns of exp(w.T) + w: worth being kept. */
static kiln_tensor *table(kiln_tensor *w) { return kiln_sum_axes(kiln_add(kiln_exp(kiln_transpose(w)), w), KILN_AXES(0), 0); }

static void want_table(float first, float *to)
{
    static float w[ELEMENTS];
    fill(w, first);
    for (int j = 0; j < N; j++) {
        double sum = 0;
        for (int i = 0; i < N; i++)
            sum += exp((double)w[j * N + i]) + (double)w[i * N + j];
        to[j] = (float)sum;
    }
}

static void compare(const float *got, const float *want, float scale, float plus)
{
    for (int i = 0; i < N; i++) {
        float w = want[i] * scale + plus;
        cr_assert(fabsf(got[i] - w) <= 1e-4F * (1 + fabsf(w)), "element %d: %g instead of %g", i, (double)got[i], (double)w);
    }
}

/* table(w) * scale + plus, where `scale` is a tensor of its own each time. How many kernels that took. */
static int64_t use(kiln_tensor *w, float first, float scale, float plus)
{
    float got[N], want[N], factors[N];
    kiln_scope *scope = kiln_scope_begin();
    for (int i = 0; i < N; i++)
        factors[i] = scale;
    kiln_tensor *y = kiln_mul(table(w), kiln_from(KILN_F32, KILN_SHAPE(N), factors));
    if (plus != 0)
        y = kiln_add(y, kiln_full(KILN_F32, KILN_SHAPE(N), (double)plus));
    int64_t before = kernels();
    cr_assert_eq(kiln_read(y, KILN_F32, got, sizeof got), KILN_OK, "%s", kiln_error_message());
    int64_t n = kernels() - before;
    kiln_scope_end(scope);
    want_table(first, want);
    compare(got, want, scale, plus);
    return n;
}

static void mark(kiln_tensor *w) { cr_assert_eq(kiln_mark_constant(w), KILN_OK, "%s", kiln_error_message()); }

static kiln_tensor *marked(float first)
{
    static float data[ELEMENTS];
    fill(data, first);
    kiln_tensor *w = kiln_retain(kiln_from(KILN_F32, KILN_SHAPE(N, N), data));
    mark(w);
    return w;
}

static bool compiles(void)
{
    char mode[16];
    return kiln_get_option("mode", mode, sizeof mode) == KILN_OK && strcmp(mode, "jit") == 0;
}

/* The second time one kernel is enough. */
static void once(kiln_tensor *w, float first)
{
    use(w, first, 2, 0);
    int64_t n = use(w, first, 3, 0);
    cr_assert(!compiles() || n == 1, "%d kernels", (int)n);
}

API_TEST(constants, are_computed_once)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *w = marked(0);
    once(w, 0);
    use(w, 0, 1, 5); /* another graph; it finds the value, too */
    int64_t n = use(w, 0, 1, 7);
    cr_assert(!compiles() || n == 1, "%d kernels", (int)n);
    kiln_release(w);
    kiln_scope_end(scope);
}

API_TEST(constants, of_another_graph_are_found)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *w = marked(0);
    use(w, 0, 1, 0);
    int64_t n = use(w, 0, 1, 5);
    cr_assert(!compiles() || n == 1, "%d kernels", (int)n);
    kiln_release(w);
    kiln_scope_end(scope);
}

Test(constants, of_changed_memory_are_made_anew) /* on the CPU, where wrapped memory is */
{
    static float data[ELEMENTS];
    fill(data, 0);
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *w = kiln_retain(kiln_wrap(KILN_F32, KILN_SHAPE(N, N), data, NULL, NULL));
    mark(w);
    for (int round = 0; round < 3; round++) {
        fill(data, (float)round);
        kiln_touch(w);
        once(w, (float)round);
    }
    kiln_release(w);
    kiln_scope_end(scope);
}

/* The handle means another value, which lies where the first one did, and is marked as that was. */
API_TEST(constants, of_an_overwritten_value_are_made_anew)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *w = marked(0);
    once(w, 0);
    for (int round = 1; round < 4; round++) {
        kiln_scope *inner = kiln_scope_begin();
        kiln_tensor *one = kiln_full(KILN_F32, KILN_SHAPE(N, N), 1);
        kiln_assign(w, kiln_add(w, kiln_mul(one, kiln_reshape(kiln_sum(kiln_sub(table(w), table(w))), KILN_SHAPE(1, 1)))));
        kiln_assign(w, kiln_add(w, one));
        cr_assert_eq(kiln_eval(w), KILN_OK, "%s", kiln_error_message());
        kiln_scope_end(inner);
        use(w, (float)round, 2, 0); /* not marked */
        mark(w);
        once(w, (float)round);
    }
    kiln_release(w);
    kiln_scope_end(scope);
}

/* Another value in the memory of a marked one, which is gone: a result that is an input as it lies shares that, and the next overwrites
 * it. */
API_TEST(constants, of_memory_that_was_shared_are_made_anew)
{
    kiln_scope *scope = kiln_scope_begin();
    for (int round = 0; round < 3; round++) {
        kiln_tensor *w = marked(0), *y = kiln_retain(kiln_reshape(w, KILN_SHAPE(1, N, N)));
        cr_assert_eq(kiln_eval(y), KILN_OK, "%s", kiln_error_message());
        once(w, 0);
        kiln_release(w);
        for (int i = 1; i < 3; i++) {
            kiln_scope *inner = kiln_scope_begin();
            kiln_assign(y, kiln_add(y, kiln_full(KILN_F32, KILN_SHAPE(1, N, N), 1)));
            cr_assert_eq(kiln_eval(y), KILN_OK, "%s", kiln_error_message());
            kiln_tensor *again = kiln_reshape(y, KILN_SHAPE(N, N));
            cr_assert_eq(kiln_eval(again), KILN_OK, "%s", kiln_error_message());
            mark(again);
            once(again, (float)i);
            kiln_scope_end(inner);
        }
        kiln_release(y);
    }
    kiln_scope_end(scope);
}

/* table(w) itself overwrites what it was made of: who reads it and drops it may. */
API_TEST(constants, that_are_results_stay)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *w = marked(0);
    float want[N], got[N];
    want_table(0, want);
    for (int round = 0; round < 3; round++) {
        kiln_scope *inner = kiln_scope_begin();
        kiln_tensor *y = kiln_retain(table(w));
        cr_assert_eq(kiln_eval(y), KILN_OK, "%s", kiln_error_message());
        kiln_assign(y, kiln_mul(y, kiln_full(KILN_F32, KILN_SHAPE(N), 2)));
        cr_assert_eq(kiln_read(y, KILN_F32, got, sizeof got), KILN_OK, "%s", kiln_error_message());
        kiln_release(y);
        kiln_scope_end(inner);
        compare(got, want, 2, 0);
    }
    kiln_release(w);
    kiln_scope_end(scope);
}

API_TEST(constants, depend_on_scalars)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *w = marked(0);
    float want[N], got[N], ones[N];
    for (int i = 0; i < N; i++)
        ones[i] = 1;
    for (int round = 0; round < 6; round++) {
        kiln_scope *inner = kiln_scope_begin();
        double add = round % 4 / 2; /* 0 0 1 1 0 0 */
        kiln_tensor *shifted = kiln_add(w, kiln_scalar(add));
        kiln_tensor *y = kiln_mul(table(shifted), kiln_from(KILN_F32, KILN_SHAPE(N), ones));
        cr_assert_eq(kiln_read(y, KILN_F32, got, sizeof got), KILN_OK, "%s", kiln_error_message());
        kiln_scope_end(inner);
        want_table((float)add, want);
        compare(got, want, 1, 0);
    }
    kiln_release(w);
    kiln_scope_end(scope);
}

API_TEST(constants, of_several_sizes)
{
    kiln_scope *scope = kiln_scope_begin();
    static float data[ELEMENTS];
    fill(data, 0);
    kiln_tensor *w[6];
    float got[N], want[6][N], factor[N];
    for (int i = 0; i < N; i++)
        factor[i] = 1;
    for (int round = 0; round < 3; round++)
        for (int s = 0; s < 6; s++) {
            int64_t n = 20 + 13 * s;
            if (round == 0) {
                w[s] = kiln_from(KILN_F32, KILN_SHAPE(n, n), data);
                if (s % 3 != 2)
                    mark(w[s]);
            }
            kiln_tensor *y = kiln_mul(table(w[s]), kiln_from(KILN_F32, KILN_SHAPE(n), factor));
            cr_assert_eq(kiln_read(y, KILN_F32, round ? got : want[s], sizeof(float) * (size_t)n), KILN_OK, "%s", kiln_error_message());
            for (int64_t i = 0; i < n && round; i++)
                cr_assert(got[i] == want[s][i], "size %d, element %d", (int)n, (int)i);
        }
    kiln_scope_end(scope);
}

/* Two that overlap, and one with strides, of the same memory. */
Test(constants, are_told_apart_by_where_they_lie) /* on the CPU, where wrapped memory is */
{
    static float data[2 * ELEMENTS];
    fill(data, 0);
    fill(data + ELEMENTS, 3);
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *w[3] = {kiln_wrap(KILN_F32, KILN_SHAPE(N, N), data, NULL, NULL),
                         kiln_wrap(KILN_F32, KILN_SHAPE(N, N), data + ELEMENTS, NULL, NULL),
                         kiln_wrap_strided(KILN_F32, KILN_SHAPE(N, N), (int64_t[]){1, N}, data, NULL, NULL)};
    for (int i = 0; i < 3; i++)
        mark(w[i]);
    for (int round = 0; round < 3; round++) {
        use(w[0], 0, 2, 0);
        use(w[1], 3, 2, 0);
        kiln_tensor *turned = kiln_mul(table(w[2]), kiln_full(KILN_F32, KILN_SHAPE(N), 1));
        float got[N], want[N];
        cr_assert_eq(kiln_read(turned, KILN_F32, got, sizeof got), KILN_OK, "%s", kiln_error_message());
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int i = 0; i < N; i++)
                sum += exp((double)data[i * N + j]) + (double)data[j * N + i];
            want[j] = (float)sum;
        }
        compare(got, want, 1, 0);
    }
    kiln_scope_end(scope);
}

static kiln_tensor *captured;

static void body(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_mul(table(captured), in[0]);
}

static void call(kiln_function *f, float first)
{
    float got[N], want[N], factors[N];
    kiln_scope *scope = kiln_scope_begin();
    for (int i = 0; i < N; i++)
        factors[i] = 2;
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(N), factors), *y;
    cr_assert_eq(kiln_function_call(f, &x, &y), KILN_OK, "%s", kiln_error_message());
    cr_assert_eq(kiln_read(y, KILN_F32, got, sizeof got), KILN_OK, "%s", kiln_error_message());
    kiln_scope_end(scope);
    want_table(first, want);
    compare(got, want, 2, 0);
}

/* A captured tensor: many calls, then other values in each way there is. */
Test(constants, that_a_function_captured) /* on the CPU, where wrapped memory is */
{
    static float data[ELEMENTS];
    kiln_scope *scope = kiln_scope_begin();
    fill(data, 0);
    captured = kiln_retain(kiln_wrap(KILN_F32, KILN_SHAPE(N, N), data, NULL, NULL));
    mark(captured);
    kiln_function *f = kiln_function_new(body, 1, 1, NULL);
    for (int i = 0; i < 20; i++)
        call(f, 0);
    int64_t before = kernels();
    call(f, 0);
    cr_assert(!compiles() || kernels() == before + 1, "%d kernels", (int)(kernels() - before));
    for (int round = 1; round < 4; round++) {
        fill(data, (float)round);
        kiln_touch(captured);
        for (int i = 0; i < 5; i++)
            call(f, (float)round);
    }
    for (int round = 4; round < 7; round++) {
        kiln_assign(captured, kiln_add(captured, kiln_full(KILN_F32, KILN_SHAPE(N, N), 1)));
        cr_assert_eq(kiln_eval(captured), KILN_OK, "%s", kiln_error_message());
        call(f, (float)round);
        mark(captured);
        for (int i = 0; i < 5; i++)
            call(f, (float)round);
    }
    kiln_function_free(f);
    kiln_release(captured);
    kiln_scope_end(scope);
}

static void *in_thread(void *w)
{
    for (int i = 0; i < 30; i++)
        use(w, 0, (float)(1 + i % 3), (float)(i % 2));
    return NULL;
}

API_TEST(constants, that_several_threads_read)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *w = marked(0);
    pthread_t thread[4];
    for (int i = 0; i < 4; i++)
        cr_assert_eq(pthread_create(&thread[i], NULL, in_thread, w), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    kiln_release(w);
    kiln_scope_end(scope);
}

/* A model of many weights, more than there is room for, and one that has none at all. */
API_TEST(constants, are_bounded)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *w[8];
    set_option("constant_bytes", "1500");
    for (int i = 0; i < 8; i++)
        w[i] = marked((float)i);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 8; i++)
            use(w[i], (float)i, 2, 0);
    set_option("constant_bytes", "1");
    int64_t n = 0;
    for (int i = 0; i < 3; i++)
        n = use(w[0], 0, 2, 0);
    cr_assert(!compiles() || n == 2, "%d kernels", (int)n);
    set_option("constant_bytes", "0");
    for (int i = 0; i < 8; i++)
        kiln_release(w[i]);
    kiln_scope_end(scope);
}

API_TEST(constants, go_with_what_they_are_made_of)
{
    int64_t before = live();
    for (int i = 0; i < 3; i++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *w = marked(0);
        once(w, 0);
        kiln_release(w);
        kiln_scope_end(scope);
        cr_assert_eq(live(), before, "%d bytes more", (int)(live() - before));
    }
}

/* Rows of x times the transpose of w: in fast mode one row is added up in another order than several, whatever programs there are. */
static void rows_times(kiln_tensor *w, int64_t rows, float *out)
{
    static float x[4 * N];
    for (int i = 0; i < 4 * N; i++)
        x[i] = 1.0F / (float)(3 + i % 17);
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *y = kiln_matmul(kiln_from(KILN_F32, KILN_SHAPE(rows, N), x), kiln_transpose(w));
    cr_assert_eq(kiln_read(y, KILN_F32, out, sizeof(float) * (size_t)(rows * N)), KILN_OK, "%s", kiln_error_message());
    kiln_scope_end(scope);
}

Test(constants, leave_the_order_of_one_row_as_it_is)
{
    static const int64_t rows[] = {4, 3, 2, 1};
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *w = marked(0.3F), *plain = marked(0.3F);
    kiln_assign(plain, kiln_mul(w, kiln_full(KILN_F32, KILN_SHAPE(N, N), 1))); /* the same values, without a mark */
    cr_assert_eq(kiln_eval(plain), KILN_OK, "%s", kiln_error_message());
    for (int i = 0; i < 4; i++) {
        float got[4 * N], want[4 * N];
        rows_times(w, rows[i], got);
        rows_times(plain, rows[i], want);
        cr_assert_eq(memcmp(got, want, sizeof(float) * (size_t)(rows[i] * N)), 0, "%d rows", (int)rows[i]);
    }
    kiln_release(plain);
    kiln_release(w);
    kiln_scope_end(scope);
}
