// Matrix fragments: the layouts are written down here element by element, as the documentation of mma has them, and the
// result is compared with a plain product of matrices.
#include "tests/cuda_driver/harness.h"

#include <math.h>
#include <stdlib.h>

typedef enum Kind { F16, BF16, TF32, S8, U8, F64 } Kind;

typedef struct Shape {
    const char *kernel;
    Kind a, b;
    bool half_accumulator, is_int;
    int m, k; // n is 8
    int elements_a, elements_b;
    // Row and column of element i of A in a lane with group g and thread t; row of element i of B (its column is g).
    int (*row_a)(int g, int i), (*column_a)(int t, int i), (*row_b)(int t, int i);
} Shape;

#define LAYOUT(name, position, expression) \
    static int name(int position, int i) { return expression; }
// m16n8k8, 16-bit elements
LAYOUT(k8_row_a, g, i < 2 ? g : g + 8)
LAYOUT(k8_column_a, t, t * 2 + (i & 1))
LAYOUT(k8_row_b, t, t * 2 + i)
// m16n8k16, 16-bit elements
LAYOUT(k16_row_a, g, i < 2 || (i >= 4 && i < 6) ? g : g + 8)
LAYOUT(k16_column_a, t, i < 4 ? t * 2 + (i & 1) : t * 2 + (i & 1) + 8)
LAYOUT(k16_row_b, t, i < 2 ? t * 2 + (i & 1) : t * 2 + (i & 1) + 8)
// m16n8k4 and m16n8k8, tf32
LAYOUT(tf32_k4_row_a, g, i == 0 ? g : g + 8)
LAYOUT(tf32_k4_column_a, t, i >= 0 ? t : 0)
LAYOUT(tf32_k4_row_b, t, i >= 0 ? t : 0)
LAYOUT(tf32_k8_row_a, g, i == 0 || i == 2 ? g : g + 8)
LAYOUT(tf32_k8_column_a, t, i < 2 ? t : t + 4)
LAYOUT(tf32_k8_row_b, t, i == 0 ? t : t + 4)
// m16n8k16 and m16n8k32, 8-bit elements
LAYOUT(s8_k16_row_a, g, i < 4 ? g : g + 8)
LAYOUT(s8_k16_column_a, t, t * 4 + (i & 3))
LAYOUT(s8_k16_row_b, t, t * 4 + (i & 3))
LAYOUT(s8_k32_row_a, g, i < 4 || (i >= 8 && i < 12) ? g : g + 8)
LAYOUT(s8_k32_column_a, t, i < 8 ? t * 4 + (i & 3) : t * 4 + (i & 3) + 16)
LAYOUT(s8_k32_row_b, t, i < 4 ? t * 4 + (i & 3) : t * 4 + (i & 3) + 16)
// m8n8k4, f64
LAYOUT(f64_row_a, g, i == 0 ? g : -1)
LAYOUT(f64_column_a, t, i == 0 ? t : -1)
LAYOUT(f64_row_b, t, i == 0 ? t : -1)

static const Shape shapes[] = {
    {"f16_k8", F16, F16, false, false, 16, 8, 4, 2, k8_row_a, k8_column_a, k8_row_b},
    {"f16_k16", F16, F16, false, false, 16, 16, 8, 4, k16_row_a, k16_column_a, k16_row_b},
    {"f16_acc", F16, F16, true, false, 16, 16, 8, 4, k16_row_a, k16_column_a, k16_row_b},
    {"bf16_k16", BF16, BF16, false, false, 16, 16, 8, 4, k16_row_a, k16_column_a, k16_row_b},
    {"bf16_k8", BF16, BF16, false, false, 16, 8, 4, 2, k8_row_a, k8_column_a, k8_row_b},
    {"tf32_k4", TF32, TF32, false, false, 16, 4, 2, 1, tf32_k4_row_a, tf32_k4_column_a, tf32_k4_row_b},
    {"tf32_k8", TF32, TF32, false, false, 16, 8, 4, 2, tf32_k8_row_a, tf32_k8_column_a, tf32_k8_row_b},
    {"s8_k16", S8, S8, false, true, 16, 16, 8, 4, s8_k16_row_a, s8_k16_column_a, s8_k16_row_b},
    {"u8s8_k32", U8, S8, false, true, 16, 32, 16, 8, s8_k32_row_a, s8_k32_column_a, s8_k32_row_b},
    {"f64_k4", F64, F64, false, false, 8, 4, 1, 1, f64_row_a, f64_column_a, f64_row_b},
};

static size_t width(Kind kind)
{
    static const size_t bytes[] = {2, 2, 4, 1, 1, 8};
    return bytes[kind];
}

// Small integers: exact in every format, and so are their products and sums.
static void put(uint8_t *at, Kind kind, int value)
{
    float f = (float)value;
    double d = value;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    uint16_t bf16 = (uint16_t)(bits >> 16), f16 = 0;
    if (value) { // normal numbers of f16: exponent from bias 127 to 15
        f16 = (uint16_t)((bits >> 16 & 0x8000) | ((bits >> 23 & 0xff) - 112) << 10 | (bits >> 13 & 0x3ff));
    }
    switch (kind) {
    case F16: memcpy(at, &f16, 2); break;
    case BF16: memcpy(at, &bf16, 2); break;
    case TF32: memcpy(at, &bits, 4); break;
    case S8:
    case U8: *at = (uint8_t)value; break;
    case F64: memcpy(at, &d, 8); break;
    }
}

static void check_shape(const Shape *s)
{
    harness_start("");
    CUfunction f = harness_function(harness_module("mma.ptx"), s->kernel);
    int a[16][32], b[32][8], c[16][8];
    uint8_t fa[32 * 16 * 2] = {0}, fb[32 * 16] = {0}, fc[32 * 16] = {0}, fd[32 * 16];
    for (int i = 0; i < s->m; i++)
        for (int j = 0; j < s->k; j++)
            a[i][j] = s->a == U8 ? (i * 5 + j * 3) % 11 : (i * 5 + j * 3) % 11 - 5;
    for (int i = 0; i < s->k; i++)
        for (int j = 0; j < 8; j++)
            b[i][j] = (i * 7 + j) % 9 - 4;
    for (int i = 0; i < s->m; i++)
        for (int j = 0; j < 8; j++)
            c[i][j] = i - 3 * j;
    int values = s->m == 16 ? 4 : 2; // of the accumulator per lane
    size_t wide = s->a == F64 ? 8 : s->half_accumulator ? 2 : 4;
    Kind accumulator = s->a == F64 ? F64 : s->half_accumulator ? F16 : TF32;
    for (int lane = 0; lane < 32; lane++) {
        int g = lane / 4, t = lane % 4;
        for (int i = 0; i < s->elements_a; i++)
            put(fa + (size_t)(lane * s->elements_a + i) * width(s->a), s->a, a[s->row_a(g, i)][s->column_a(t, i)]);
        for (int i = 0; i < s->elements_b; i++)
            put(fb + (size_t)(lane * s->elements_b + i) * width(s->b), s->b, b[s->row_b(t, i)][g]);
        for (int i = 0; i < values; i++) {
            int value = c[i < 2 ? g : g + 8][t * 2 + (i & 1)];
            uint8_t *at = fc + (size_t)(lane * values + i) * wide;
            if (s->is_int)
                memcpy(at, &value, 4);
            else
                put(at, accumulator, value);
        }
    }
    CUdeviceptr da = harness_upload(fa, sizeof fa), db = harness_upload(fb, sizeof fb), dc = harness_upload(fc, sizeof fc),
                dd = harness_upload(fc, sizeof fc);
    CHECK_OK(harness_launch(f, 1, 32, 0, PARAMS(&dd, &da, &db, &dc)));
    harness_download(fd, dd, sizeof fd);
    int wrong = 0;
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < values; i++) {
            int row = i < 2 ? lane / 4 : lane / 4 + 8, column = lane % 4 * 2 + (i & 1), want = c[row][column];
            for (int k = 0; k < s->k; k++)
                want += a[row][k] * b[k][column];
            uint8_t expected[8] = {0};
            if (s->is_int)
                memcpy(expected, &want, 4);
            else
                put(expected, accumulator, want);
            wrong += memcmp(expected, fd + (size_t)(lane * values + i) * wide, wide) != 0;
        }
    harness_check(wrong == 0, __FILE__, __LINE__, "%s: %d values wrong", s->kernel, wrong);
}

static void products(void)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_shape(&shapes[i]);
}

static void matrices(void)
{
    for (int trans = 0; trans < 2; trans++) {
        harness_start("");
        CUfunction f = harness_function(harness_module("mma.ptx"), trans ? "matrices_trans" : "matrices");
        uint16_t in[4][8][8], out[32][4][2];
        for (uint16_t i = 0; i < 256; i++)
            in[i / 64][i / 8 % 8][i % 8] = i;
        CUdeviceptr din = harness_upload(in, sizeof in), dout = harness_empty(sizeof out);
        CHECK_OK(harness_launch(f, 1, 32, 0, PARAMS(&dout, &din)));
        harness_download(out, dout, sizeof out);
        for (int lane = 0; lane < 32; lane++)
            for (int m = 0; m < 4; m++)
                for (int j = 0; j < 2; j++) {
                    int row = lane / 4, column = lane % 4 * 2 + j;
                    CHECK(out[lane][m][j] == (trans ? in[m][column][row] : in[m][row][column]));
                }
    }
}

static void half_a_warp(void)
{
    harness_start("");
    CUfunction f = harness_function(harness_module("mma.ptx"), "f16_k8");
    CUdeviceptr p = harness_empty(4096);
    CHECK_OK(cu.cuMemsetD8_v2(p, 0, 4096));
    CHECK_CODE(harness_launch(f, 1, 16, 0, PARAMS(&p, &p, &p, &p)), CUDA_ERROR_LAUNCH_FAILED);
    CHECK_REPORT("all 32 are needed");
}

// stmatrix and what else sm_90 brings.
static void sm90(void)
{
    harness_start("cc=9.0");
    CUfunction f = harness_function(harness_module("sm90.ptx"), "newer");
    uint32_t out[32][4];
    uint16_t matrix[8][8];
    CUdeviceptr dout = harness_empty(sizeof out), dmatrix = harness_empty(sizeof matrix);
    CHECK_OK(harness_launch(f, 1, 32, 0, PARAMS(&dout, &dmatrix)));
    harness_download(out, dout, sizeof out);
    harness_download(matrix, dmatrix, sizeof matrix);
    for (uint32_t l = 0; l < 32; l++) {
        CHECK(out[l][0] == 0x41104080 && out[l][1] == 0x41003f80); // {4, 9} and {4 - 3, 9 - 1}
        CHECK(out[l][2] == 0 && out[l][3] == (l == 0));
        // Lane l holds rows 2 (l % 4) and the next of column l / 4: its own number, then zero.
        CHECK(matrix[l % 4 * 2][l / 4] == l && matrix[l % 4 * 2 + 1][l / 4] == 0);
    }
}

static void pairs(void)
{
    static const struct {
        uint32_t words[2], want[6];
    } rows[] = {{{0x00018000, 0xffff0001}, {0x00008001, 0x00010001, 0xffff8000, 0x00008001, 0xffff8000, 0x00010001}},
                {{0x7fffffff, 0x80000001}, {0xffff0000, 0x7fff0001, 0x8000ffff, 0xffff0000, 0x8000ffff, 0x7fff0001}},
                {{0x1234fffe, 0x1235ffff}, {0x2469fffd, 0x1234fffe, 0x1235ffff, 0x2469fffd, 0x1234fffe, 0x1235ffff}},
                {{0x00000000, 0x8000ffff}, {0x8000ffff, 0x00000000, 0x8000ffff, 0x8000ffff, 0x8000ffff, 0x00000000}}};
    harness_start("cc=9.0");
    CUfunction f = harness_function(harness_module("sm90.ptx"), "pairs");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint32_t words[8] = {rows[i].words[0], rows[i].words[1]};
        CUdeviceptr d = harness_upload(words, sizeof words);
        CHECK_OK(harness_launch(f, 1, 1, 0, PARAMS(&d)));
        harness_download(words, d, sizeof words);
        CHECK(!memcmp(words + 2, rows[i].want, sizeof rows[i].want));
    }
}

static const Case cases[] = {
    {"products", products}, {"matrices", matrices}, {"half_a_warp", half_a_warp}, {"sm90", sm90}, {"pairs", pairs}};
MAIN(cases)
