/*
 * Products with weights that are constant (kiln_mark_constant): they are kept in the panels that register tiles read (jit/panels.c). The bits
 * are those of the same product with weights that are not constant, and in strict mode the interpreter's; and what is kept is never stale.
 * And products of so many rows that a step before them makes such panels.
 */
#include "api.h"
#include "tests/support/slice.h"

enum { MOST = 1 << 20 };

static int kept;   /* so many times was it told that weights are kept in panels */
static int packed; /* or that an operand is brought to panels before the product */

static void count(void *user, int level, const char *topic, const char *line)
{
    (void)user, (void)level, (void)topic;
    kept += strstr(line, "kept in the panels") != NULL;
    packed += strstr(line, "packed before them") != NULL;
}

static void listen(void)
{
    set_option("cache", "off");
    set_option("log", "fusion");
    set_option("dynamic", "never");
    kiln_set_log_sink(count, NULL);
}

TestSuite(kept_panels, .init = listen);

static kiln_tensor *values(kiln_dtype dtype, kiln_shape shape, int salt)
{
    static float data[MOST];
    int64_t n = 1;
    bool whole = dtype != KILN_F32 && dtype != KILN_F64 && dtype != KILN_F16 && dtype != KILN_BF16;
    for (int d = 0; d < shape.rank; d++)
        n *= shape.dim[d];
    cr_assert_leq(n, MOST);
    for (int64_t i = 0; i < n; i++)
        data[i] = whole ? (float)((i * 7 + salt) % 19 - 9) : (float)((i + salt) * 7919 % 2003) / 512 - 2;
    kiln_tensor *x = kiln_cast(kiln_from(KILN_F32, shape, data), dtype);
    OK(kiln_eval(x));
    return x;
}

/* ---- what is made of inputs, and weights that are constant or not ---- */

enum { IN = 4 };
typedef kiln_tensor *Make(kiln_tensor *const *x, kiln_tensor *const *w);

static kiln_tensor *plain(kiln_tensor *const *x, kiln_tensor *const *w) { return kiln_matmul(x[0], w[0]); }
static kiln_tensor *turned(kiln_tensor *const *x, kiln_tensor *const *w) { return kiln_matmul(x[0], kiln_transpose(w[0])); }
static kiln_tensor *cast(kiln_tensor *const *x, kiln_tensor *const *w)
{
    return kiln_matmul(kiln_cast(x[0], KILN_I32), kiln_cast(w[0], KILN_I32));
}
static kiln_tensor *cast_united(kiln_tensor *const *x, kiln_tensor *const *w)
{
    kiln_tensor *y = kiln_cast(x[0], KILN_I32), *sum = kiln_matmul(y, kiln_cast(x[1], KILN_I32)); /* that is not kept */
    for (int i = 0; i < 2; i++)
        sum = kiln_sub(kiln_mul(sum, kiln_full(KILN_I32, KILN_SHAPE(), 3)), kiln_matmul(y, kiln_cast(w[i], KILN_I32)));
    return sum;
}
static kiln_tensor *left(kiln_tensor *const *x, kiln_tensor *const *w)
{
    return kiln_transpose(kiln_matmul(kiln_transpose(w[0]), kiln_transpose(x[0])));
}
static kiln_tensor *folded(kiln_tensor *const *x, kiln_tensor *const *w) { return kiln_matmul(x[0], kiln_mul(w[0], kiln_exp(w[1]))); }
static kiln_tensor *twice(kiln_tensor *const *x, kiln_tensor *const *w)
{
    return kiln_add(kiln_matmul(x[0], w[0]), kiln_relu(kiln_matmul(kiln_abs(x[0]), w[0])));
}
static kiln_tensor *read_too(kiln_tensor *const *x, kiln_tensor *const *w)
{
    return kiln_mul(kiln_matmul(x[0], w[0]), kiln_sum_axes(w[0], KILN_AXES(0), 0));
}
static kiln_tensor *united(kiln_tensor *const *x, kiln_tensor *const *w)
{
    return kiln_add(kiln_mul(kiln_matmul(x[0], w[0]), kiln_matmul(x[0], w[1])), kiln_matmul(x[0], w[2]));
}
static kiln_tensor *layers(kiln_tensor *const *x, kiln_tensor *const *w)
{
    return kiln_matmul(kiln_relu(kiln_matmul(x[0], w[0])), kiln_transpose(w[1]));
}
static kiln_tensor *part(kiln_tensor *const *x, kiln_tensor *const *w)
{
    return kiln_matmul(x[0], kiln_slice(w[0], 2, (kiln_range[]){KILN_ALL, {1, 66, 1}}));
}

static kiln_tensor *convolution(kiln_tensor *const *x, kiln_tensor *const *w)
{
    kiln_conv_options o = {.padding = {{1, 1}, {1, 1}}};
    return kiln_conv(x[0], w[0], &o);
}
static kiln_tensor *last(kiln_tensor *const *x, kiln_tensor *const *w)
{
    kiln_conv_options o = {.padding = {{1, 1}, {1, 1}}, .channels_last = true};
    return kiln_relu(kiln_conv(x[0], w[0], &o));
}
static kiln_tensor *spread(kiln_tensor *const *x, kiln_tensor *const *w)
{
    kiln_conv_options o = {.transposed = true, .stride = {2, 2}};
    return kiln_conv(x[0], w[0], &o);
}
/* Where stores ask for a part of the tiles. */
static kiln_tensor *lower(kiln_tensor *const *x, kiln_tensor *const *w)
{
    kiln_tensor *y = kiln_matmul(x[0], w[0]);
    kiln_tensor *i = kiln_arange(KILN_I64, 0, (double)kiln_dim(y, 0), 1), *j = kiln_arange(KILN_I64, 0, (double)kiln_dim(y, 1), 1);
    return kiln_where(kiln_ge(kiln_unsqueeze(i, 1), j), y, kiln_full(kiln_dtype_of(y), KILN_SHAPE(), -1));
}
/* Rows of zeros, in a band. */
static kiln_tensor *masked(kiln_tensor *const *x, kiln_tensor *const *w)
{
    kiln_tensor *y = kiln_matmul(kiln_relu(kiln_sub(kiln_matmul(x[0], w[0]), kiln_full(KILN_F32, KILN_SHAPE(), 40))), w[1]);
    return kiln_matmul(kiln_relu(y), w[2]);
}

typedef struct Case {
    const char *name;
    Make *make;
    kiln_dtype dtype;
    int64_t x[4], w[4]; /* their shapes; 0 ends one */
    int panels;         /* so many operands are kept in panels, where accumulators are as large as elements */
} Case;

/* Operands that the second cache does not hold, so that products of them pack. */
static const Case cases[] = {
    {"whole tiles", plain, KILN_F32, {64, 1024}, {1024, 96}, 1},
    {"edges", plain, KILN_F32, {33, 513}, {513, 133}, 1},
    {"one tile", plain, KILN_F32, {140, 4100}, {4100, 17}, 1},
    {"blocks as tasks", plain, KILN_F32, {40, 4100}, {4100, 17}, 0}, /* which the first caches do hold, where they lie */
    {"pairs of blocks as tasks", plain, KILN_I16, {33, 4100}, {4100, 65}, 1},
    {"pairs of blocks as tasks, batches", plain, KILN_BF16, {2, 33, 2101}, {2, 2101, 65}, -1},
    {"one block", plain, KILN_F32, {70, 129}, {129, 520}, 1},
    {"f64", plain, KILN_F64, {31, 513}, {513, 75}, 1},
    {"pairs", plain, KILN_BF16, {33, 1027}, {1027, 133}, -1}, /* where the CPU multiplies such */
    {"pairs of whole tiles", plain, KILN_BF16, {48, 1024}, {1024, 160}, -1},
    {"f16", plain, KILN_F16, {33, 513}, {513, 133}, 0},
    {"i8", plain, KILN_I8, {33, 513}, {513, 133}, -1}, /* by fours, where the CPU multiplies such */
    {"i8 cast", cast, KILN_I8, {33, 515}, {515, 133}, -1},
    {"u8 cast", cast, KILN_U8, {33, 1026}, {1026, 64}, -1},
    {"i16 cast", cast, KILN_I16, {33, 513}, {513, 133}, 1},
    {"i8 cast, united", cast_united, KILN_I8, {300, 300}, {300, 300}, -1},
    {"i16", plain, KILN_I16, {33, 513}, {513, 133}, 1}, /* by pairs everywhere */
    {"u16", turned, KILN_U16, {48, 1024}, {160, 1024}, 1},
    {"i32", plain, KILN_I32, {33, 513}, {513, 133}, 1},
    {"i64", plain, KILN_I64, {33, 513}, {513, 133}, 1},
    {"turned", turned, KILN_F32, {33, 513}, {133, 513}, 1},
    {"turned pairs", turned, KILN_BF16, {33, 1027}, {133, 1027}, -1},
    {"on the left", left, KILN_F32, {33, 513}, {513, 133}, 1},
    {"batches", plain, KILN_F32, {3, 40, 1027}, {3, 1027, 71}, 1},
    {"heads", plain, KILN_F32, {2, 3, 40, 1027}, {3, 1027, 71}, 1},
    {"one for all", plain, KILN_F32, {3, 40, 513}, {513, 133}, 1},
    {"folded", folded, KILN_F32, {33, 513}, {513, 133}, 1},
    {"two products", twice, KILN_F32, {33, 513}, {513, 133}, 2},
    {"read too", read_too, KILN_F32, {33, 513}, {513, 133}, 1},
    {"united", united, KILN_F32, {64, 513}, {513, 133}, 3},
    {"layers", layers, KILN_F32, {96, 513}, {513, 513}, 2},
    {"convolution", convolution, KILN_F32, {2, 40, 15, 17}, {70, 40, 3, 3}, 1},
    {"convolution, channels last", last, KILN_F32, {2, 15, 17, 40}, {70, 40, 3, 3}, 1},
    {"convolution of pairs", convolution, KILN_BF16, {2, 41, 15, 17}, {140, 41, 3, 3}, -1},
    {"transposed convolution", spread, KILN_F32, {2, 70, 9, 11}, {70, 33, 3, 3}, -1},
    {"lower", lower, KILN_F32, {257, 700}, {700, 130}, 1},
    {"masked", masked, KILN_F32, {96, 513}, {513, 513}, 3},
    {"columns of some", part, KILN_F32, {33, 1027}, {1027, 133}, 1},
};

static kiln_shape shape_of(const int64_t *dim)
{
    kiln_shape s = {0};
    while (s.rank < 4 && dim[s.rank]) {
        s.dim[s.rank] = dim[s.rank];
        s.rank++;
    }
    return s;
}

static char want[MOST], got[MOST];

static size_t result(const Case *c, kiln_tensor *const *x, kiln_tensor *const *w, char *to)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *y = c->make(x, w);
    cr_assert(y, "%s: %s", c->name, kiln_error_message());
    size_t bytes = (size_t)kiln_numel(y) * kiln_dtype_size(kiln_dtype_of(y));
    cr_assert_leq(bytes, MOST);
    cr_assert_eq(kiln_read(y, kiln_dtype_of(y), to, bytes), KILN_OK, "%s: %s", c->name, kiln_error_message());
    kiln_scope_end(scope);
    return bytes;
}

static void check(const Case *c, const char *math, const char *bits)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x[IN], *w[2][IN];
    for (int i = 0; i < IN; i++) {
        x[i] = values(c->dtype, shape_of(c->x), i);
        for (int constant = 0; constant < 2; constant++)
            w[constant][i] = values(c->dtype, shape_of(c->w), 100 * i);
        OK(kiln_mark_constant(w[1][i]));
    }
    size_t bytes = result(c, x, w[0], want);
    kept = 0;
    for (int call = 0; call < 3; call++) {
        memset(got, 0xff, bytes);
        result(c, x, w[1], got);
        cr_assert_eq(memcmp(want, got, bytes), 0, "%s, %s, %s bits: other bits in call %d", c->name, math, bits, call);
    }
    cr_expect(c->panels < 0 || kept == c->panels, "%s, %s, %s bits: %d kept in panels, %d are expected", c->name, math, bits, kept,
              c->panels);
    if (strcmp(math, "strict") == 0 && (strcmp(bits, "128") == 0 || c->dtype == KILN_I8 || c->dtype == KILN_U8)) {
        set_option("mode", "interp");
        result(c, x, w[1], got);
        cr_assert_eq(memcmp(want, got, bytes), 0, "%s, %s bits: not the interpreter's", c->name, bits);
        set_option("mode", "jit");
    }
    kiln_scope_end(scope);
}

static void each_width(const char *math)
{
    static const char *const bits[] = {"128", "256", "512"};
    set_option("math", math);
    for (int i = 0; i < 3; i++) {
        set_option("vector_bits", bits[i]);
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
            if (slice_takes_in_turn(k + (size_t)i, 2))
                check(&cases[k], math, bits[i]);
    }
}

/* ---- of many rows, beside the same by few rows at a time, which are packed for as they are ---- */

static const Case of_many_rows[] = {
    {"whole tiles", plain, KILN_F32, {640, 256}, {256, 256}, 1},
    {"edges", plain, KILN_F32, {901, 513}, {513, 133}, 1},
    {"turned", turned, KILN_F32, {700, 301}, {261, 301}, 1},
    {"one block", plain, KILN_F32, {1000, 129}, {129, 200}, 1},
    {"f64", plain, KILN_F64, {601, 257}, {257, 133}, 1},
    {"f16", plain, KILN_F16, {1400, 257}, {257, 233}, 0}, /* each task widens for itself */
    {"pairs", plain, KILN_BF16, {801, 513}, {513, 233}, -1},
    {"i16", plain, KILN_I16, {801, 513}, {513, 233}, -1},
    {"i8 cast", cast, KILN_I8, {801, 513}, {513, 233}, -1},
    {"batches", plain, KILN_F32, {2, 600, 257}, {2, 257, 133}, 1},
    {"one for all", plain, KILN_F32, {2, 600, 257}, {257, 133}, 1},
    {"united", united, KILN_F32, {640, 257}, {257, 257}, -1},
    {"read too", read_too, KILN_F32, {901, 257}, {257, 233}, 1},
    {"few rows", plain, KILN_F32, {64, 512}, {512, 512}, 0},
    {"little to pack", plain, KILN_F32, {2000, 64}, {64, 64}, 0},
};

static kiln_tensor *rows(const Case *c, kiln_tensor *const *x, kiln_tensor *const *w, int64_t first, int64_t last)
{
    kiln_range range[4] = {KILN_ALL, KILN_ALL, KILN_ALL, KILN_ALL};
    kiln_tensor *of[IN];
    const int rank = kiln_rank(x[0]);
    range[rank - 2] = (kiln_range){first, last, 1};
    for (int i = 0; i < IN; i++)
        of[i] = kiln_slice(x[i], rank, range);
    return c->make(of, w);
}

static size_t result_by_rows(const Case *c, kiln_tensor *const *x, kiln_tensor *const *w, char *to)
{
    enum { ROWS = 100, MOST_PARTS = 32 };
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *part[MOST_PARTS];
    int n = 0;
    const int64_t all = kiln_dim(x[0], -2);
    for (int64_t first = 0; first < all; first += ROWS)
        OK(kiln_eval(part[n++] = rows(c, x, w, first, first + ROWS < all ? first + ROWS : all)));
    kiln_tensor *y = kiln_concat(part, n, -2);
    const size_t bytes = (size_t)kiln_numel(y) * kiln_dtype_size(kiln_dtype_of(y));
    cr_assert_leq(bytes, MOST);
    OK(kiln_read(y, kiln_dtype_of(y), to, bytes));
    kiln_scope_end(scope);
    return bytes;
}

static void check_before(const Case *c, const char *math, const char *bits)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x[IN], *w[IN];
    for (int i = 0; i < IN; i++) {
        x[i] = values(c->dtype, shape_of(c->x), i);
        w[i] = values(c->dtype, shape_of(c->w), 100 * i);
    }
    size_t bytes = result_by_rows(c, x, w, want);
    packed = 0;
    for (int threads = 1; threads <= 2; threads++) {
        set_option("threads", threads == 1 ? "1" : "2");
        memset(got, 0xff, bytes);
        result(c, x, w, got);
        cr_assert_eq(memcmp(want, got, bytes), 0, "%s, %s, %s bits: other bits with %d threads", c->name, math, bits, threads);
    }
    cr_expect(c->panels < 0 || packed == c->panels, "%s, %s, %s bits: %d packed before, %d are expected", c->name, math, bits, packed,
              c->panels);
    kiln_scope_end(scope);
}

static void each_width_before(const char *math)
{
    static const char *const bits[] = {"128", "256", "512"};
    set_option("math", math);
    for (int i = 0; i < 3; i++) {
        set_option("vector_bits", bits[i]);
        for (size_t k = 0; k < sizeof of_many_rows / sizeof *of_many_rows; k++)
            check_before(&of_many_rows[k], math, bits[i]);
    }
}

Test(kept_panels, before_products_of_many_rows_strictly) { each_width_before("strict"); }
Test(kept_panels, before_products_of_many_rows) { each_width_before("fast"); }

Test(kept_panels, strict_bits) { each_width("strict"); }
Test(kept_panels, fast_bits) { each_width("fast"); }

/* ---- never stale, and not for ever ---- */

enum { M = 40, K = 513, N = 133 };

static void product_is(kiln_tensor *x, kiln_tensor *w, const float *values, const char *when)
{
    kiln_scope *scope = kiln_scope_begin();
    static float to[M * N], same[M * N];
    OK(kiln_read(kiln_matmul(x, w), KILN_F32, to, sizeof to));
    OK(kiln_read(kiln_matmul(x, kiln_from(KILN_F32, KILN_SHAPE(K, N), values)), KILN_F32, same, sizeof same));
    cr_assert_eq(memcmp(to, same, sizeof to), 0, "%s: the weights are those of before", when);
    kiln_scope_end(scope);
}

static void fill(float *to, int salt)
{
    for (int i = 0; i < K * N; i++)
        to[i] = (float)((i + salt) * 7919 % 2003) / 512 - 2;
}

Test(kept_panels, follow_what_weights_become)
{
    static float data[K * N], now[K * N];
    kiln_tensor *x = values(KILN_F32, KILN_SHAPE(M, K), 0), *w = kiln_wrap(KILN_F32, KILN_SHAPE(K, N), data, NULL, NULL);
    OK(kiln_mark_constant(w));
    for (int round = 0; round < 3; round++) {
        fill(data, round);
        kiln_touch(w);
        product_is(x, w, data, "touched");
        product_is(x, w, data, "touched before");
    }
    cr_assert_gt(kept, 0);
    for (int round = 0; round < 3; round++) {
        fill(now, 10 + round);
        OK(kiln_assign(w, kiln_from(KILN_F32, KILN_SHAPE(K, N), now)));
        product_is(x, w, now, "assigned");
        product_is(x, w, now, "assigned before");
    }
    for (int i = 0; i < K * N; i++)
        now[i] += 1;
    OK(kiln_assign(w, kiln_add(w, kiln_full(KILN_F32, KILN_SHAPE(), 1))));
    product_is(x, w, now, "overwritten");
}

/* Weights in one place of memory, read by other strides. */
Test(kept_panels, tell_views_apart)
{
    static float data[K * K], part[2][K * N];
    for (int i = 0; i < K * K; i++)
        data[i] = (float)(i * 7919 % 2003) / 512 - 2;
    for (int i = 0; i < K * N; i++) {
        part[0][i] = data[i / N * K + i % N];
        part[1][i] = data[i % N * K + i / N];
    }
    kiln_tensor *x = values(KILN_F32, KILN_SHAPE(M, K), 0), *all = kiln_wrap(KILN_F32, KILN_SHAPE(K, K), data, NULL, NULL);
    for (int call = 0; call < 4; call++) {
        kiln_tensor *w = kiln_slice(call % 2 ? kiln_transpose(all) : all, 2, (kiln_range[]){KILN_ALL, {0, N, 1}});
        OK(kiln_mark_constant(w));
        product_is(x, w, part[call % 2], "a view");
    }
}

static int64_t live(void)
{
    kiln_stats stats = stats_now();
    return stats.live_bytes;
}

/* One copy, whichever program reads it; none where there is no room, and the product is right all the same. */
Test(kept_panels, are_bounded)
{
    static float data[K * N];
    fill(data, 5);
    for (int room = 1; room >= 0; room--) {
        set_option("constant_bytes", room ? "1048576" : "1000");
        kiln_tensor *x = values(KILN_F32, KILN_SHAPE(M, K), 0), *w = kiln_from(KILN_F32, KILN_SHAPE(K, N), data);
        OK(kiln_eval(w));
        OK(kiln_mark_constant(w));
        const int64_t before = live();
        product_is(x, w, data, "bounded");
        kiln_scope *scope = kiln_scope_begin();
        OK(kiln_eval(kiln_tanh(kiln_matmul(x, w))));
        kiln_scope_end(scope);
        const int64_t more = live() - before, panels = 4 * K * (N + 63);
        cr_assert(room ? more >= 4 * K * N && more <= panels : more == 0, "%d bytes", (int)more);
        kiln_release(w);
        cr_assert_leq(live(), before);
    }
}
