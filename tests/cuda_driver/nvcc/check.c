// Kernels that nvcc made of CUDA C (kernels.cu), against results computed here: what this driver makes of PTX that kiln did not
// write. nvcc.sh runs it with the folder of the texts in NVCC_PTX; arguments: the targets.
#include "tests/cuda_driver/harness.h"

#include <math.h>
#include <stdlib.h>

enum { N = 333 };

static char *text;        // the PTX
static bool text_is_open; // it is a module

static CUfunction kernel(const char *name)
{
    static CUmodule m;
    if (!text_is_open) {
        const char *settings[] = {"cc=7.5,driver=13000", "cc=8.0,driver=13000", "cc=9.0,driver=13000"};
        harness_start(settings[strstr(text, ".target sm_90") ? 2 : strstr(text, ".target sm_80") ? 1 : 0]);
        text_is_open = true;
        m = harness_text(text);
        if (!m) {
            fprintf(stderr, "refused: %s\n", cu.test_cuda_report());
            exit(1);
        }
    }
    return harness_function(m, name);
}

static uint32_t random_bits(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static float random_float(float most) { return ((float)(random_bits() & 0xffffff) / 0x800000 - 1) * most; }

// Operands of all sizes, the difficult ones first.
static void fill_ints(int32_t *a, int32_t *b)
{
    static const int32_t hard[] = {0, 1, -1, 2, 7, -7, 31, 32, 33, 641, INT32_MAX, INT32_MIN};
    enum { HARD = sizeof hard / sizeof *hard };
    for (int i = 0; i < N; i++) {
        a[i] = i < HARD * HARD ? hard[i / HARD] : (int32_t)(random_bits() >> (i % 31));
        b[i] = i < HARD * HARD ? hard[i % HARD] : (int32_t)(random_bits() >> (i % 29));
    }
}

static void fill_floats(float *a, float *b)
{
    static const float hard[] = {0.0f, -0.0f, 1, -1, 0.5f, 2.5f, -3.5f, 1e-40f, -1e-45f, 3e38f, INFINITY, -INFINITY, NAN};
    enum { HARD = sizeof hard / sizeof *hard };
    for (int i = 0; i < N; i++) {
        a[i] = i < HARD * HARD ? hard[i / HARD] : ldexpf(random_float(1), i % 41 - 20);
        b[i] = i < HARD * HARD ? hard[i % HARD] : ldexpf(random_float(1), i % 37 - 18);
    }
}

static bool same_float(float a, float b) { return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0; }

// Runs name(a, b, out, N); `results` words of `size` bytes for each element.
static void run_pairs(const char *name, const void *a, const void *b, void *out, size_t size, int results)
{
    CUfunction f = kernel(name);
    int n = N;
    CUdeviceptr da = harness_upload(a, size * N), db = b ? harness_upload(b, size * N) : 0,
                dout = harness_empty(size * N * (size_t)results);
    CHECK_OK(harness_launch(f, (N + 63) / 64, 64, 0, b ? PARAMS(&da, &db, &dout, &n) : PARAMS(&da, &dout, &n)));
    harness_download(out, dout, size * N * (size_t)results);
}

static void expect_ints(const char *name, const int64_t *got, const int64_t *want, int results, int64_t a, int64_t b)
{
    for (int k = 0; k < results; k++)
        harness_check(got[k] == want[k], __FILE__, __LINE__, "%s(%lld, %lld)[%d] is %lld, not %lld", name, (long long)a, (long long)b, k,
                      (long long)got[k], (long long)want[k]);
}

// ---- elements ----

static void each(void)
{
    float x[N], y[N], z[N];
    for (int i = 0; i < N; i++)
        x[i] = random_float(10), y[i] = random_float(3);
    CUfunction f = kernel("each");
    CUdeviceptr dx = harness_upload(x, sizeof x), dy = harness_upload(y, sizeof y), dz = harness_empty(sizeof z);
    int n = N;
    CHECK_OK(harness_launch(f, 2, 64, 0, PARAMS(&dx, &dy, &dz, &n)));
    harness_download(z, dz, sizeof z);
    for (int i = 0; i < N; i++)
        CHECK(z[i] == fmaf(x[i], y[i], 1.5f));

    float in[4 * 32], out[4 * 32];
    for (int i = 0; i < 4 * 32; i++)
        in[i] = random_float(5);
    CUdeviceptr din = harness_upload(in, sizeof in), dout = harness_empty(sizeof out);
    n = 32;
    CHECK_OK(harness_launch(kernel("each4"), 1, 32, 0, PARAMS(&din, &dout, &n)));
    harness_download(out, dout, sizeof out);
    for (int i = 0; i < 4 * 32; i += 4)
        CHECK(out[i] == in[i + 3] && out[i + 1] == in[i + 2] * 2 && out[i + 2] == in[i + 1] - in[i] &&
              out[i + 3] == fmaxf(in[i], in[i + 3]));
}

static int first_set(uint32_t a) { return a ? __builtin_ctz(a) + 1 : 0; }

static uint64_t reversed_bits(uint64_t a, int bits)
{
    uint64_t r = 0;
    for (int i = 0; i < bits; i++)
        r |= (a >> i & 1) << (bits - 1 - i);
    return r;
}

static int32_t bytes_of(uint32_t a, uint32_t b, uint32_t selector)
{
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++)
        r |= (uint32_t)(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return (int32_t)r;
}

static void ints(void)
{
    enum { RESULTS = 26 };
    static int32_t a[N], b[N], out[N][RESULTS];
    fill_ints(a, b);
    run_pairs("ints", a, b, out, sizeof *a, RESULTS);
    for (int i = 0; i < N; i++) {
        int64_t x = a[i], y = b[i], got[RESULTS];
        uint32_t ux = (uint32_t)a[i], uy = (uint32_t)b[i];
        bool fine = y && !(a[i] == INT32_MIN && y == -1);
        const int64_t want[RESULTS] = {fine ? x / y : 0,
                                       fine ? x % y : 0,
                                       y ? (int32_t)(ux / uy) : 0,
                                       y ? (int32_t)(ux % uy) : 0,
                                       x / 7,
                                       x % 10,
                                       (int32_t)(ux / 641),
                                       x * y >> 32,
                                       (int32_t)((uint64_t)ux * uy >> 32),
                                       (int32_t)(ux << (uy & 31)),
                                       x >> (uy & 31),
                                       (int32_t)(ux >> (uy & 31)),
                                       ux ? __builtin_clz(ux) : 32,
                                       __builtin_popcount(ux),
                                       (int32_t)reversed_bits(ux, 32),
                                       first_set(ux),
                                       (int32_t)(((uint64_t)uy << 32 | ux) << 13 >> 32),
                                       (int32_t)(((uint64_t)uy << 32 | ux) >> (uy & 31)),
                                       bytes_of(ux, uy, 0x7241),
                                       x < y ? x : y,
                                       (int32_t)(ux > uy ? ux : uy),
                                       a[i] == INT32_MIN ? 0 : llabs(x),
                                       (int8_t)ux,
                                       (uint16_t)uy,
                                       (x < y) - (ux < uy),
                                       (x & ~y) ^ (x | y)};
        for (int k = 0; k < RESULTS; k++)
            got[k] = out[i][k];
        expect_ints("ints", got, want, RESULTS, x, y);
    }
}

static void longs(void)
{
    enum { RESULTS = 14 };
    static int64_t a[N], b[N], out[N][RESULTS];
    int32_t low[N], high[N];
    fill_ints(low, high);
    for (int i = 0; i < N; i++) {
        a[i] = i % 3 ? low[i] : (int64_t)((uint64_t)low[i] << 32 | random_bits());
        b[i] = i % 2 ? high[i] : (int64_t)((uint64_t)high[i] << (random_bits() & 31));
    }
    a[1] = INT64_MIN, b[1] = -1, a[2] = INT64_MIN, b[2] = 3;
    run_pairs("longs", a, b, out, sizeof *a, RESULTS);
    for (int i = 0; i < N; i++) {
        int64_t x = a[i], y = b[i];
        uint64_t ux = (uint64_t)x, uy = (uint64_t)y;
        bool fine = y && !(x == INT64_MIN && y == -1);
        const int64_t want[RESULTS] = {fine ? x / y : 0,
                                       fine ? x % y : 0,
                                       y ? (int64_t)(ux / uy) : 0,
                                       y ? (int64_t)(ux % uy) : 0,
                                       x / 1000003,
                                       (int64_t)((__int128)x * y >> 64),
                                       (int64_t)((unsigned __int128)ux * uy >> 64),
                                       (int64_t)(ux << (uy & 63)),
                                       x >> (uy & 63),
                                       ux ? __builtin_clzll(ux) : 64,
                                       __builtin_popcountll(ux),
                                       (int64_t)reversed_bits(ux, 64),
                                       (int64_t)(ux * uy),
                                       x < y ? x : y};
        expect_ints("longs", out[i], want, RESULTS, x, y);
    }
}

static void choose(void)
{
    int32_t a[N], b[N], out[N];
    fill_ints(a, b);
    for (int i = 0; i < N; i++)
        a[i] = i < 64 ? i : a[i] & 0xffff;
    run_pairs("choose", a, NULL, out, sizeof *a, 1);
    for (int i = 0; i < N; i++) {
        int w = a[i], t = (w >> 3) & 7;
        const int want[8] = {17, (w & 3) * (w & 3) + w, w * 3, -w, w ^ 0x55, t * t + w, w >> 2, 1 << (w & 15)};
        CHECK(out[i] == want[w & 7]);
    }
}

// ---- floating point ----

static float rounded_to(float x, int bits) // of its fraction; normal numbers of a format with as many exponents
{
    uint32_t u;
    if (!isfinite(x))
        return x;
    memcpy(&u, &x, sizeof u);
    uint32_t cut = 1u << (23 - bits), low = u & (cut - 1);
    u -= low;
    if (low > cut / 2 || (low == cut / 2 && u & cut))
        u += cut;
    memcpy(&x, &u, sizeof u);
    return x;
}

static float as_half(float x)
{
    if (isnan(x) || isinf(x))
        return x;
    if (fabsf(x) < 0x1p-14f)
        return copysignf((float)(nearbyint((double)fabsf(x) * 0x1p24) * 0x1p-24), x);
    x = rounded_to(x, 10);
    return fabsf(x) > 65504 ? copysignf(INFINITY, x) : x;
}

// Towards zero, and up: exact in f64 or nearly, so that the direction is known.
static float sum_rz(float a, float b)
{
    double s = (double)a + b, error = (double)b - (s - (double)a) + ((double)a - (s - (s - (double)a)));
    float r = (float)s;
    if (isfinite(a) && isfinite(b) && (fabs((double)r) > fabs(s) || ((double)r == s && error * s < 0)))
        r = nextafterf(r, 0);
    return r;
}

static float product_ru(float a, float b)
{
    double p = (double)a * b;
    float r = (float)p;
    return isfinite(a) && isfinite(b) && (double)r < p ? nextafterf(r, INFINITY) : r;
}

static float min_or_other(float a, float b, bool greater)
{
    if (isnan(a) || isnan(b))
        return isnan(a) ? b : a;
    if (a == b)
        return (signbit(a) != 0) == greater ? b : a;
    return (a > b) == greater ? a : b;
}

static void floats(void)
{
    enum { RESULTS = 24 };
    static float a[N], b[N], out[N][RESULTS];
    fill_floats(a, b);
    run_pairs("floats", a, b, out, sizeof *a, RESULTS);
    for (int i = 0; i < N; i++) {
        float x = a[i], y = b[i], big = fminf(fmaxf(x, -1e9f), 1e9f), other = fminf(fmaxf(y, -1e9f), 1e9f), flipped;
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        bits ^= 0x40000000;
        memcpy(&flipped, &bits, sizeof bits);
        const float want[RESULTS] = {x / y,
                                     sqrtf(fabsf(x)),
                                     1 / y,
                                     sum_rz(x, y),
                                     product_ru(x, y),
                                     x - y,
                                     fmaf(x, y, -x),
                                     min_or_other(x, y, false),
                                     min_or_other(x, y, true),
                                     rintf(x),
                                     floorf(x),
                                     ceilf(x),
                                     truncf(x),
                                     copysignf(x, y),
                                     fmodf(x, y),
                                     (float)(int)big,
                                     (float)(long long)other,
                                     x,
                                     (float)((double)x * y),
                                     as_half(x),
                                     rounded_to(y, 7),
                                     flipped,
                                     isnan(x) ? 0 : fminf(fmaxf(x, 0), 1),
                                     isnan(x) || isinf(y) ? 1.0f
                                     : signbit(x)         ? 2.0f
                                                          : 3.0f};
        for (int k = 0; k < RESULTS; k++)
            harness_check(same_float(out[i][k], want[k]) || (k == 22 && out[i][k] == want[k]), __FILE__, __LINE__,
                          "floats(%a, %a)[%d] is %a, not %a", (double)x, (double)y, k, (double)out[i][k], (double)want[k]);
    }
}

// The device's functions are sequences of instructions with a documented error of a few units in the last place.
static void near(const char *name, int k, float x, float got, double want, double error)
{
    float w = (float)want;
    double unit = fmax(fabs(want) * 0x1p-23, 0x1p-126 * 0x1p-23);
    harness_check(same_float(got, w) || (got == w) || (isnan(got) && isnan(w)) || fabs((double)got - want) <= error * unit, __FILE__,
                  __LINE__, "%s(%a)[%d] is %a, not %a", name, (double)x, k, (double)got, want);
}

static void maths(void)
{
    enum { RESULTS = 15, FAST = 7 };
    static float a[N], b[N], out[N][RESULTS], quick[N][FAST];
    fill_floats(a, b);
    for (int i = 0; i < N; i++)
        a[i] = i < 13 * 13 ? b[i] : random_float(i % 2 ? 30 : 2);
    run_pairs("maths", a, NULL, out, sizeof *a, RESULTS);
    run_pairs("fast", a, NULL, quick, sizeof *a, FAST);
    for (int i = 0; i < N; i++) {
        double x = (double)a[i], m = fabs(x);
        bool tame = m < 1e5;
        const double want[RESULTS] = {exp(x),  exp2(x), expm1(x), log(m),      log2(m),     log1p(m), tanh(x),        sinh(x),
                                      atan(x), erf(x),  cbrt(x),  1 / sqrt(m), pow(m, 1.7), asinh(x), exp(x) + log(m)};
        for (int k = 0; k < RESULTS; k++)
            near("maths", k, a[i], out[i][k], want[k], k == 12 ? 8 : 4);
        const double rough[FAST] = {exp(x), log(m), sin(x), cos(x), x / 3, 1 / sqrt(m), sqrt(m)};
        for (int k = 0; k < FAST && tame && m > 1e-3; k++)
            harness_check(fabs((double)quick[i][k] - rough[k]) <= 2e-5 * (1 + fabs(rough[k])) || m > 20, __FILE__, __LINE__,
                          "fast(%a)[%d] is %g, not %g", x, k, (double)quick[i][k], rough[k]);
    }
}

static uint16_t half_bits(float x) // of small multiples of 1/8
{
    int e = 0;
    if (x == 0)
        return 0;
    float f = frexpf(fabsf(x), &e);
    return (uint16_t)((x < 0 ? 0x8000 : 0) | (e + 14) << 10 | ((int)(f * 2048) & 0x3ff));
}

static uint16_t bfloat_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return (uint16_t)(u >> 16);
}

static void halves(void)
{
    uint16_t h[4][N];
    static float v[2][N], out[N][8];
    for (int i = 0; i < N; i++)
        for (int k = 0; k < 2; k++) {
            v[k][i] = (float)(int)(random_bits() % 128) / 8 - 8;
            h[k][i] = half_bits(v[k][i]);
            h[2 + k][i] = bfloat_bits(v[k][i]);
        }
    CUdeviceptr at[4], dout = harness_empty(sizeof out);
    CUfunction f = kernel("halves");
    dout = harness_empty(sizeof out);
    for (int k = 0; k < 4; k++)
        at[k] = harness_upload(h[k], sizeof h[k]);
    int n = N;
    CHECK_OK(harness_launch(f, (N + 63) / 64, 64, 0, PARAMS(&at[0], &at[1], &at[2], &at[3], &dout, &n)));
    harness_download(out, dout, sizeof out);
    for (int i = 0; i < N; i++) {
        float a = v[0][i], b = v[1][i];
        const float want[8] = {as_half(a + b),
                               as_half(a * b),
                               as_half(fmaf(a, b, a)),
                               rounded_to(a + b, 7),
                               rounded_to(a * b, 7),
                               rounded_to(fmaf(a, b, a), 7),
                               as_half(a + b) - as_half(b + b),
                               a < b};
        for (int k = 0; k < 8; k++)
            harness_check(out[i][k] == want[k], __FILE__, __LINE__, "halves(%g, %g)[%d] is %g, not %g", (double)a, (double)b, k,
                          (double)out[i][k], (double)want[k]);
    }
}

// ---- between threads ----

static void warps(void)
{
    enum { THREADS = 128 };
    float x[THREADS], sums[THREADS / 32];
    unsigned votes[THREADS];
    for (int i = 0; i < THREADS; i++)
        x[i] = (float)((int)(random_bits() % 64) - 32);
    CUfunction f = kernel("warps");
    CUdeviceptr dx = harness_upload(x, sizeof x), ds = harness_empty(sizeof sums), dv = harness_empty(sizeof votes);
    CHECK_OK(harness_launch(f, 1, THREADS, 0, PARAMS(&dx, &ds, &dv)));
    harness_download(sums, ds, sizeof sums);
    harness_download(votes, dv, sizeof votes);
    for (int w = 0; w < THREADS / 32; w++) {
        float sum = 0;
        unsigned ballot = 0;
        for (int l = 0; l < 32; l++) {
            sum += x[32 * w + l];
            ballot |= (unsigned)(x[32 * w + l] > 0) << l;
        }
        CHECK(sums[w] == sum);
        for (unsigned l = 0; l < 32; l++) {
            unsigned first = 32 * (unsigned)w, up = first + (l < 3 ? l : l - 3), half = first + l / 16 * 16 + 5;
            CHECK(votes[first + l] == (ballot ^ up * 131 ^ half * 65537 ^ 1u << 30));
        }
    }
}

static void total(void)
{
    enum { MANY = 10000, BLOCKS = 7 };
    static float x[MANY];
    float sum = 0, want = 0;
    for (int i = 0; i < MANY; i++)
        want += x[i] = (float)(random_bits() % 16);
    CUfunction f = kernel("total");
    CUdeviceptr dx = harness_upload(x, sizeof x), partial = harness_empty(sizeof(float) * BLOCKS), ds = harness_empty(sizeof sum);
    int n = MANY;
    for (int i = 0; i < 2; i++) { // it leaves its counter as it was
        CHECK_OK(harness_launch(f, BLOCKS, 256, 0, PARAMS(&dx, &n, &partial, &ds)));
        harness_download(&sum, ds, sizeof sum);
        CHECK(sum == want);
    }
}

static void matmul(void)
{
    enum { SIDE = 35 };
    float a[SIDE * SIDE], b[SIDE * SIDE], c[SIDE * SIDE];
    for (int i = 0; i < SIDE * SIDE; i++)
        a[i] = random_float(2), b[i] = random_float(2);
    CUfunction f = kernel("matmul");
    CUdeviceptr da = harness_upload(a, sizeof a), db = harness_upload(b, sizeof b), dc = harness_empty(sizeof c);
    int n = SIDE;
    CHECK_OK(cu.cuLaunchKernel(f, 3, 3, 1, 16, 16, 1, 0, NULL, PARAMS(&da, &db, &dc, &n), NULL));
    harness_download(c, dc, sizeof c);
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++) {
            float sum = 0;
            for (int k = 0; k < SIDE; k++)
                sum = fmaf(a[i * SIDE + k], b[k * SIDE + j], sum);
            CHECK(c[i * SIDE + j] == sum);
        }
}

static void reversed(void)
{
    enum { THREADS = 96, BLOCKS = 2 };
    int x[THREADS * BLOCKS], y[THREADS * BLOCKS];
    for (int i = 0; i < THREADS * BLOCKS; i++)
        x[i] = i == 100 ? 77 : (int)(random_bits() % 64) - 32;
    CUfunction f = kernel("reversed");
    CUdeviceptr dx = harness_upload(x, sizeof x), dy = harness_empty(sizeof y);
    CHECK_OK(harness_launch(f, BLOCKS, THREADS, THREADS * sizeof(int), PARAMS(&dx, &dy)));
    harness_download(y, dy, sizeof y);
    for (int b = 0; b < BLOCKS; b++) {
        int positive = 0;
        for (int t = 0; t < THREADS; t++)
            positive += x[b * THREADS + t] > 0;
        for (int t = 0; t < THREADS; t++)
            CHECK(y[b * THREADS + t] == x[b * THREADS + THREADS - 1 - t] + positive + (b ? 1000 : 0));
    }
}

static void atomics(void)
{
    int32_t x[N], ints[5] = {0, INT32_MIN, INT32_MAX, 0, 0}, got[5], want[5] = {0, INT32_MIN, INT32_MAX, 0, 0};
    uint32_t wraps = 0;
    float sum = 0;
    double exact = 0, sum_exact = 0;
    uint64_t bits = 0, want_bits = 0;
    for (int i = 0; i < N; i++) {
        x[i] = (int32_t)random_bits() >> 8;
        want[0] = (int32_t)((uint32_t)want[0] + (uint32_t)x[i]);
        want[1] = x[i] > want[1] ? x[i] : want[1];
        want[2] = x[i] < want[2] ? x[i] : want[2];
        want[3] ^= x[i];
        want[4] = (x[i] & 255) * (x[i] & 255) > want[4] ? (x[i] & 255) * (x[i] & 255) : want[4];
        sum_exact += x[i];
        want_bits |= UINT64_C(1) << (x[i] & 63);
    }
    CUfunction f = kernel("atomics");
    CUdeviceptr dx = harness_upload(x, sizeof x), di = harness_upload(ints, sizeof ints), dw = harness_upload(&wraps, sizeof wraps),
                ds = harness_upload(&sum, sizeof sum), de = harness_upload(&exact, sizeof exact), db = harness_upload(&bits, sizeof bits);
    int n = N;
    CHECK_OK(harness_launch(f, (N + 63) / 64, 64, 0, PARAMS(&dx, &n, &di, &dw, &ds, &de, &db)));
    harness_download(got, di, sizeof got);
    harness_download(&wraps, dw, sizeof wraps);
    harness_download(&sum, ds, sizeof sum);
    harness_download(&exact, de, sizeof exact);
    harness_download(&bits, db, sizeof bits);
    CHECK(memcmp(got, want, sizeof got) == 0);
    CHECK(wraps == N % 7 && sum == 0.25f * N && exact == sum_exact && bits == want_bits);
}

// ---- tensor cores ----

// A 16 x k, B k x 8 of small integers, so that sums are exact.
static void mma(void)
{
    float a[16][16], b[16][8], c[16][8], want[16][8];
    bool ampere = strstr(text, ".target sm_75") == NULL;
    for (int i = 0; i < 256; i++)
        a[i / 16][i % 16] = (float)(int)(random_bits() % 15) - 7;
    for (int i = 0; i < 128; i++)
        b[i / 8][i % 8] = (float)(int)(random_bits() % 15) - 7;
    static const char *const names[] = {"mma_f16", "mma_ldmatrix", "mma_bf16", "mma_tf32"};
    for (int kind = 0; kind < (ampere ? 4 : 2); kind++) {
        int depth = kind == 3 ? 8 : 16;
        uint16_t ha[256], hb[128];
        float ta[128], tb[64];
        for (int i = 0; i < 16; i++)
            for (int k = 0; k < depth; k++) {
                ha[i * 16 + k % 16] = kind == 2 ? bfloat_bits(a[i][k]) : half_bits(a[i][k]);
                if (depth == 8)
                    ta[i * 8 + k] = a[i][k];
            }
        for (int j = 0; j < 8; j++)
            for (int k = 0; k < depth; k++) {
                hb[kind == 1 ? k * 8 + j : j * 16 + k] = kind == 2 ? bfloat_bits(b[k][j]) : half_bits(b[k][j]);
                if (depth == 8)
                    tb[j * 8 + k] = b[k][j];
            }
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 8; j++) { // mma_bf16 starts from what the lane's registers hold
                want[i][j] = kind == 2 ? (float)(1 + i / 8 * 2 + j % 2) : 0;
                for (int k = 0; k < depth; k++)
                    want[i][j] += a[i][k] * b[k][j];
            }
        CUfunction f = kernel(names[kind]);
        CUdeviceptr da = depth == 8 ? harness_upload(ta, sizeof ta) : harness_upload(ha, sizeof ha),
                    db = depth == 8 ? harness_upload(tb, sizeof tb) : harness_upload(hb, sizeof hb), dc = harness_empty(sizeof c);
        CHECK_OK(harness_launch(f, 1, 32, 0, PARAMS(&da, &db, &dc)));
        harness_download(c, dc, sizeof c);
        harness_check(memcmp(c, want, sizeof c) == 0, __FILE__, __LINE__, "%s is wrong", names[kind]);
    }
}

static char *read_text(const char *path)
{
    FILE *f = fopen(path, "rb");
    static char room[1 << 20];
    size_t n = f ? fread(room, 1, sizeof room - 1, f) : 0;
    if (f)
        fclose(f);
    room[n] = 0;
    char *copy = malloc(n + 1);
    return copy ? memcpy(copy, room, n + 1) : NULL;
}

static void of_target(const char *target)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s.ptx", getenv("NVCC_PTX"), target);
    static const Case all[] = {{"each", each},         {"ints", ints},       {"longs", longs}, {"choose", choose}, {"floats", floats},
                               {"maths", maths},       {"halves", halves},   {"warps", warps}, {"total", total},   {"matmul", matmul},
                               {"reversed", reversed}, {"atomics", atomics}, {"mma", mma}};
    text = read_text(path);
    CHECK(text && *text);
    for (size_t i = 0; text && *text && i < sizeof all / sizeof *all; i++) {
        int before = failures;
        all[i].run();
        if (failures != before)
            printf("%s: %s FAILED\n", path, all[i].name);
    }
    free(text);
    text_is_open = false;
}

static void turing(void) { of_target("sm_75"); }
static void ampere(void) { of_target("sm_80"); }
static void hopper(void) { of_target("sm_90"); }

static const Case cases[] = {{"sm_75", turing}, {"sm_80", ampere}, {"sm_90", hopper}};
MAIN(cases)
