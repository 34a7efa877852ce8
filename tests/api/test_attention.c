/* Attention against plain loops over random settings; what the documentation of PyTorch and ONNX describes; gradients; sizes that change; errors. */
#include "api.h"

#include "tests/support/slice.h"

#include <stdio.h>

enum { VALUES = 4096 };

static uint64_t state;

static int pick(int n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((state >> 33) % (uint64_t)n);
}

typedef struct Setting {
    int batch, heads, shared, queries, keys, d, e;
    bool causal, from_end, lengths;
    int before, after;
    int mask; /* 0: none, 1: bools, 2: added */
    double scale, softcap;
} Setting;

static double q[VALUES], k[VALUES], v[VALUES], mask[VALUES], y[VALUES];
static int64_t lengths[8];

static bool sees(const Setting *s, int b, int i, int j)
{
    int count = s->lengths ? (int)lengths[b] : s->keys;
    count = count > s->keys ? s->keys : count;
    int own = s->from_end ? i + count - s->queries : i;
    return j < count && (!s->causal || j <= own) && (!s->before || own - j <= s->before) && (!s->after || j - own <= s->after) &&
           (s->mask != 1 || mask[i * s->keys + j] != 0);
}

static int loops(const Setting *s)
{
    int n = 0;
    for (int b = 0; b < s->batch; b++)
        for (int h = 0; h < s->heads; h++)
            for (int i = 0; i < s->queries; i++) {
                const double *row = q + ((b * s->heads + h) * s->queries + i) * s->d;
                int from = b * s->shared + h / (s->heads / s->shared);
                double weight[64], total = 0;
                for (int j = 0; j < s->keys; j++) {
                    double score = 0;
                    for (int c = 0; c < s->d; c++)
                        score += row[c] * k[(from * s->keys + j) * s->d + c];
                    score *= s->scale != 0 ? s->scale : 1 / sqrt(s->d);
                    if (s->softcap > 0)
                        score = s->softcap * tanh(score / s->softcap);
                    if (s->mask == 2)
                        score += mask[i * s->keys + j];
                    weight[j] = sees(s, b, i, j) ? exp(score) : 0;
                    total += weight[j];
                }
                for (int c = 0; c < s->e; c++, n++) {
                    y[n] = 0;
                    for (int j = 0; j < s->keys && total > 0; j++)
                        y[n] += weight[j] / total * v[(from * s->keys + j) * s->e + c];
                }
            }
    return n;
}

static void fill(double *to, int n)
{
    for (int i = 0; i < n; i++)
        to[i] = (pick(9) - 4) / 4.0;
}

static Setting invent(void)
{
    Setting s = {
        .batch = 1 + pick(2), .shared = 1 + pick(2), .queries = 1 + pick(5), .keys = 1 + pick(6), .d = 1 + pick(4), .e = 1 + pick(4)};
    s.heads = s.shared * (1 + pick(3));
    s.causal = pick(2);
    s.from_end = pick(2);
    s.lengths = pick(3) == 0;
    s.before = pick(2) ? 1 + pick(3) : 0;
    s.after = !s.causal && pick(2) ? 1 + pick(3) : 0;
    s.mask = pick(3);
    s.scale = pick(2) ? 0.75 : 0;
    s.softcap = pick(3) == 0 ? 1.5 : 0;
    return s;
}

static kiln_tensor *made(const Setting *s, kiln_dtype dtype)
{
    kiln_attention_options o = {.scale = s->scale, .softcap = s->softcap, .causal = s->causal, .from_end = s->from_end};
    o.before = s->before;
    o.after = s->after;
    kiln_tensor *added = kiln_from(KILN_F64, KILN_SHAPE(s->queries, s->keys), mask);
    if (s->mask)
        o.mask = s->mask == 1 ? kiln_ne(added, kiln_int(0)) : added;
    if (s->lengths)
        o.lengths = kiln_from(KILN_I64, KILN_SHAPE(s->batch), lengths);
    return kiln_attention(kiln_cast(kiln_from(KILN_F64, KILN_SHAPE(s->batch, s->heads, s->queries, s->d), q), dtype),
                          kiln_cast(kiln_from(KILN_F64, KILN_SHAPE(s->batch, s->shared, s->keys, s->d), k), dtype),
                          kiln_cast(kiln_from(KILN_F64, KILN_SHAPE(s->batch, s->shared, s->keys, s->e), v), dtype), &o);
}

API_TEST(attention, equals_loops)
{
    static const struct {
        kiln_dtype dtype;
        double tolerance;
    } kinds[] = {{KILN_F64, 1e-12}, {KILN_F32, 3e-6}, {KILN_F16, 1e-3}, {KILN_BF16, 1e-2}};
    state = slice_seed() * 71 + 5;
    for (int round = 0; round < 10; round++) {
        Setting s = invent();
        fill(q, s.batch * s.heads * s.queries * s.d);
        fill(k, s.batch * s.shared * s.keys * s.d);
        fill(v, s.batch * s.shared * s.keys * s.e);
        fill(mask, s.queries * s.keys);
        for (int b = 0; b < s.batch; b++)
            lengths[b] = pick(s.keys + 3) - 1;
        int n = loops(&s);
        printf("seed %d, round %d: heads %d/%d, %d queries, %d keys, causal %d, from_end %d, window %d %d, lengths %d, mask %d\n",
               (int)slice_seed(), round, s.heads, s.shared, s.queries, s.keys, s.causal, s.from_end, s.before, s.after, s.lengths, s.mask);
        kiln_tensor *got = made(&s, kinds[round % 4].dtype);
        cr_assert(got, "seed %d, round %d: %s", (int)slice_seed(), round, kiln_error_message());
        expect(__LINE__, got, kinds[round % 4].dtype, KILN_SHAPE(s.batch, s.heads, s.queries, s.e), kinds[round % 4].tolerance, y,
               (size_t)n);
    }
}

#define KEYS F64(KILN_SHAPE(3, 2), 1, 0, 0, 1, 1, 1)
#define VALUES_OF F64(KILN_SHAPE(3, 1), 1, 2, 4)

/* Queries of zeros weigh all keys the same: results are means of values. */
API_TEST(attention, options)
{
    kiln_tensor *zeros = kiln_zeros(KILN_F64, KILN_SHAPE(2, 2));
    EXPECT(kiln_attention(zeros, KEYS, VALUES_OF, NULL), KILN_F64, KILN_SHAPE(2, 1), 1e-15, 7.0 / 3, 7.0 / 3);
    EXPECT(kiln_attention(zeros, KEYS, VALUES_OF, &(kiln_attention_options){.causal = true}), KILN_F64, KILN_SHAPE(2, 1), 1e-15, 1, 1.5);
    EXPECT(kiln_attention(zeros, KEYS, VALUES_OF, &(kiln_attention_options){.causal = true, .from_end = true}), KILN_F64, KILN_SHAPE(2, 1),
           1e-15, 1.5, 7.0 / 3);
    EXPECT(kiln_attention(zeros, KEYS, VALUES_OF, &(kiln_attention_options){.causal = true, .before = 1, .from_end = true}), KILN_F64,
           KILN_SHAPE(2, 1), 1e-15, 1.5, 3);
    EXPECT(kiln_attention(zeros, KEYS, VALUES_OF, &(kiln_attention_options){.lengths = kiln_int(2)}), KILN_F64, KILN_SHAPE(2, 1), 1e-15,
           1.5, 1.5);
    /* a mask of one row for all, and one of a number for each query */
    EXPECT(kiln_attention(zeros, KEYS, VALUES_OF, &(kiln_attention_options){.mask = BOOL(KILN_SHAPE(3), 1, 0, 1)}), KILN_F64,
           KILN_SHAPE(2, 1), 1e-15, 2.5, 2.5);
    EXPECT(kiln_attention(zeros, KEYS, VALUES_OF, &(kiln_attention_options){.mask = F32(KILN_SHAPE(2, 1), 5, (float)-INFINITY)}), KILN_F64,
           KILN_SHAPE(2, 1), 1e-15, 7.0 / 3, 0);
    /* nothing is seen: zeros, whatever forbids it */
    EXPECT(kiln_attention(zeros, KEYS, VALUES_OF, &(kiln_attention_options){.mask = BOOL(KILN_SHAPE(2, 1), 1, 0)}), KILN_F64,
           KILN_SHAPE(2, 1), 1e-15, 7.0 / 3, 0);
    EXPECT(kiln_attention(zeros, KEYS, VALUES_OF, &(kiln_attention_options){.lengths = kiln_int(0)}), KILN_F64, KILN_SHAPE(2, 1), 0, 0, 0);
    EXPECT(kiln_attention(kiln_zeros(KILN_F32, KILN_SHAPE(2, 2)), kiln_zeros(KILN_F32, KILN_SHAPE(0, 2)),
                          kiln_zeros(KILN_F32, KILN_SHAPE(0, 1)), NULL),
           KILN_F32, KILN_SHAPE(2, 1), 0, 0, 0);
    EXPECT_EMPTY(kiln_attention(kiln_zeros(KILN_F32, KILN_SHAPE(0, 2)), KEYS, VALUES_OF, NULL), KILN_F64, KILN_SHAPE(0, 1));
    EXPECT_EMPTY(kiln_attention(kiln_zeros(KILN_F16, KILN_SHAPE(0, 4, 1, 2)), kiln_zeros(KILN_F16, KILN_SHAPE(0, 2, 3, 2)),
                                kiln_zeros(KILN_F16, KILN_SHAPE(0, 2, 3, 5)), NULL),
                 KILN_F16, KILN_SHAPE(0, 4, 1, 5));
    for (int shared = 0; shared < 3; shared++) { /* no heads, of so many that keys have */
        kiln_tensor *keys = kiln_zeros(KILN_F32, KILN_SHAPE(shared, 4, 3)), *grad;
        kiln_tensor *queries = kiln_param(kiln_zeros(KILN_F32, KILN_SHAPE(0, 2, 3))), *none = kiln_attention(queries, keys, keys, NULL);
        cr_assert_eq(kiln_grad(kiln_sum(none), &queries, 1, &grad), KILN_OK, "%s", kiln_error_message());
        EXPECT_EMPTY(none, KILN_F32, KILN_SHAPE(0, 2, 3));
        EXPECT_EMPTY(grad, KILN_F32, KILN_SHAPE(0, 2, 3));
    }
    /* no elements to multiply: all keys are the same */
    EXPECT(kiln_attention(kiln_zeros(KILN_F64, KILN_SHAPE(1, 0)), kiln_zeros(KILN_F64, KILN_SHAPE(3, 0)), VALUES_OF, NULL), KILN_F64,
           KILN_SHAPE(1, 1), 1e-15, 7.0 / 3);
    /* one query's scores are large: no overflow; a NaN that is not seen does no harm, one that is seen does */
    kiln_tensor *big = F64(KILN_SHAPE(1, 2), 2000, 0);
    EXPECT(kiln_attention(big, KEYS, VALUES_OF, &(kiln_attention_options){.scale = 1}), KILN_F64, KILN_SHAPE(1, 1), 1e-15, 2.5);
    kiln_tensor *bad = F64(KILN_SHAPE(3, 2), 1, 0, 0, 1, NAN, 1);
    EXPECT(kiln_attention(zeros, bad, VALUES_OF, &(kiln_attention_options){.causal = true}), KILN_F64, KILN_SHAPE(2, 1), 1e-15, 1, 1.5);
    EXPECT(kiln_attention(zeros, bad, VALUES_OF, NULL), KILN_F64, KILN_SHAPE(2, 1), 0, NAN, NAN);
    /* batch axes broadcast, before the heads */
    EXPECT(kiln_attention(kiln_zeros(KILN_F64, KILN_SHAPE(2, 1, 1, 2)), kiln_reshape(KEYS, KILN_SHAPE(1, 1, 3, 2)),
                          kiln_reshape(VALUES_OF, KILN_SHAPE(1, 1, 3, 1)), &(kiln_attention_options){.lengths = I32(KILN_SHAPE(2), 1, 2)}),
           KILN_F64, KILN_SHAPE(2, 1, 1, 1), 1e-15, 1, 1.5);
    /* ints are floats */
    EXPECT(kiln_attention(kiln_zeros(KILN_I32, KILN_SHAPE(1, 1)), kiln_ones(KILN_I32, KILN_SHAPE(2, 1)), I32(KILN_SHAPE(2, 1), 3, 4), NULL),
           KILN_F32, KILN_SHAPE(1, 1), 1e-7, 3.5);
}

/* The promise of finite floats is the user's: kiln's own -inf for what is not seen is none of theirs. */
API_TEST(attention, with_finite_numbers_promised)
{
    set_option("finite", "1");
    kiln_tensor *zeros = kiln_zeros(KILN_F32, KILN_SHAPE(2, 2));
    kiln_attention_options o = {.causal = true, .mask = BOOL(KILN_SHAPE(2, 1), 0, 1)};
    EXPECT(kiln_attention(zeros, kiln_cast(KEYS, KILN_F32), kiln_cast(VALUES_OF, KILN_F32), &o), KILN_F32, KILN_SHAPE(2, 1), 1e-7, 0, 1.5);
}

API_TEST(attention, dropout)
{
    enum { N = 4000 };
    kiln_tensor *zeros = kiln_zeros(KILN_F32, KILN_SHAPE(N, 1)), *keys = kiln_zeros(KILN_F32, KILN_SHAPE(2, 1));
    kiln_seed(3);
    kiln_tensor *made_of = kiln_attention(zeros, keys, kiln_ones(KILN_F32, KILN_SHAPE(2, 1)), &(kiln_attention_options){.dropout = 0.25});
    double mean, odd;
    cr_assert_eq(kiln_item(kiln_mean(made_of), &mean), KILN_OK);
    cr_assert(fabs(mean - 1) < 0.03, "the mean is %g", mean);
    /* each of two weights of a half is 0 or 4 / 3 of itself */
    kiln_tensor *parts = kiln_mul(made_of, kiln_scalar(1.5));
    cr_assert_eq(kiln_item(kiln_max(kiln_abs(kiln_sub(parts, kiln_round(parts)))), &odd), KILN_OK);
    cr_assert(odd < 1e-6, "%g", odd);
}

/* Central differences of a weighted sum of the result. */
API_TEST(attention, gradient)
{
    static const Setting rows[] = {
        {.batch = 1, .heads = 4, .shared = 2, .queries = 3, .keys = 4, .d = 2, .e = 3, .causal = true, .softcap = 2},
        {.batch = 2, .heads = 1, .shared = 1, .queries = 3, .keys = 3, .d = 2, .e = 1, .lengths = true, .mask = 2, .before = 1},
    };
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
        Setting s = rows[row];
        state = 5 + row;
        double *parts[3] = {q, k, v};
        int count[3] = {s.batch * s.heads * s.queries * s.d, s.batch * s.shared * s.keys * s.d, s.batch * s.shared * s.keys * s.e};
        for (int p = 0; p < 3; p++)
            fill(parts[p], count[p]);
        fill(mask, s.queries * s.keys);
        lengths[0] = 2;
        lengths[1] = 0; /* a batch of rows that see nothing */
        kiln_tensor *in[3], *d[3];
        in[0] = kiln_param(kiln_from(KILN_F64, KILN_SHAPE(s.batch, s.heads, s.queries, s.d), q));
        in[1] = kiln_param(kiln_from(KILN_F64, KILN_SHAPE(s.batch, s.shared, s.keys, s.d), k));
        in[2] = kiln_param(kiln_from(KILN_F64, KILN_SHAPE(s.batch, s.shared, s.keys, s.e), v));
        kiln_attention_options o = {.softcap = s.softcap, .causal = s.causal, .before = s.before};
        if (s.mask)
            o.mask = kiln_from(KILN_F64, KILN_SHAPE(s.queries, s.keys), mask);
        if (s.lengths)
            o.lengths = kiln_from(KILN_I64, KILN_SHAPE(s.batch), lengths);
        kiln_tensor *out = kiln_attention(in[0], in[1], in[2], &o);
        int n = s.batch * s.heads * s.queries * s.e;
        kiln_tensor *factor = kiln_sin(kiln_reshape(kiln_arange(KILN_F64, 1, n + 1, 1), kiln_shape_of(out)));
        cr_assert_eq(kiln_grad(kiln_sum(kiln_mul(out, factor)), in, 3, d), KILN_OK, "%s", kiln_error_message());
        for (int p = 0; p < 3; p++) {
            double want[64];
            for (int i = 0; i < count[p]; i++) {
                double kept = parts[p][i], sum[2];
                for (int side = 0; side < 2; side++) {
                    parts[p][i] = kept + (side ? -1e-5 : 1e-5);
                    loops(&s);
                    sum[side] = 0;
                    for (int j = 0; j < n; j++)
                        sum[side] += sin(j + 1) * y[j];
                }
                parts[p][i] = kept;
                want[i] = (sum[0] - sum[1]) / 2e-5;
            }
            expect(__LINE__, d[p], KILN_F64, kiln_shape_of(in[p]), 1e-8, want, (size_t)count[p]);
        }
    }
}

/* One program for all lengths of decoding, and one for all batches. */
Test(attention, sizes_change)
{
    begin_mode(0);
    kiln_stats before;
    for (int n = 9; n < 40; n++) {
        kiln_scope *scope = kiln_scope_begin();
        static const float zeros[2 * 40 * 4];
        kiln_tensor *key = kiln_from(KILN_F32, KILN_SHAPE(1, 2, n, 4), zeros);
        float places[40];
        for (int i = 0; i < n; i++)
            places[i] = (float)i;
        kiln_tensor *value = kiln_expand(kiln_from(KILN_F32, KILN_SHAPE(1, 1, n, 1), places), KILN_SHAPE(1, 2, n, 1));
        kiln_tensor *query = kiln_from(KILN_F32, KILN_SHAPE(1, 4, 2, 4), zeros);
        kiln_tensor *made_of = kiln_attention(query, key, value, &(kiln_attention_options){.causal = true, .from_end = true});
        double got, want = (n - 2) / 2.0; /* the first of two queries sees all keys but the last */
        cr_assert(kiln_item(kiln_select(kiln_flatten(made_of), 0, 0), &got) == KILN_OK, "%s", kiln_error_message());
        cr_assert(fabs(got - want) < 1e-5, "%d keys: %g, not %g", n, got, want);
        kiln_scope_end(scope);
        if (n == 14)
            kiln_get_stats(&before);
    }
    no_compile_since(&before);
    end_mode();
}

API_TEST(attention, refuses)
{
    kiln_tensor *a = kiln_zeros(KILN_F32, KILN_SHAPE(2, 3)), *b = kiln_zeros(KILN_F32, KILN_SHAPE(4, 3));
    kiln_tensor *heads = kiln_zeros(KILN_F32, KILN_SHAPE(3, 2, 3)), *two = kiln_zeros(KILN_F32, KILN_SHAPE(2, 2, 3));
    EXPECT_ERROR(
        kiln_attention(a, kiln_transpose(a), b, NULL), KILN_BAD_SHAPE,
        "q is [..., queries, d], k [..., keys, d], v [..., keys, e]: q is f32[2,3], k is f32[3,2], v is f32[4,3] (test_attention.c:");
    EXPECT_ERROR(kiln_attention(a, b, a, NULL), KILN_BAD_SHAPE, "v [..., keys, e]");
    EXPECT_ERROR(kiln_attention(a, two, two, NULL), KILN_BAD_SHAPE, "one rank, 2 to 7: q is f32[2,3], k is f32[2,2,3]");
    EXPECT_ERROR(kiln_attention(heads, two, two, NULL), KILN_BAD_SHAPE,
                 "heads of q, axis 0, are not shared evenly by those of k: q is f32[3,2,3], k is f32[2,2,3]");
    kiln_tensor *batch = kiln_zeros(KILN_F32, KILN_SHAPE(2, 1, 2, 3)), *other = kiln_zeros(KILN_F32, KILN_SHAPE(3, 1, 2, 3));
    EXPECT_ERROR(kiln_attention(batch, other, other, NULL), KILN_BAD_SHAPE, "axes before the heads do not broadcast");
    EXPECT_ERROR(kiln_attention(a, b, b, &(kiln_attention_options){.mask = kiln_zeros(KILN_F32, KILN_SHAPE(3, 4))}), KILN_BAD_SHAPE,
                 "mask does not broadcast to the scores: scores are f32[2,4], mask is f32[3,4]");
    EXPECT_ERROR(kiln_attention(a, b, b, &(kiln_attention_options){.mask = kiln_zeros(KILN_I32, KILN_SHAPE(2, 4))}), KILN_BAD_DTYPE,
                 "mask is i32[2,4]: bools (true: seen) or floats (added) are needed");
    EXPECT_ERROR(kiln_attention(a, b, b, &(kiln_attention_options){.lengths = I32(KILN_SHAPE(2), 1, 2)}), KILN_BAD_SHAPE,
                 "lengths do not broadcast to the axes before the heads: q is f32[2,3], lengths is i64[2]");
    EXPECT_ERROR(kiln_attention(a, b, b, &(kiln_attention_options){.lengths = a}), KILN_BAD_DTYPE, "lengths is f32[2,3]: ints");
    EXPECT_ERROR(kiln_attention(a, b, b, &(kiln_attention_options){.scale = INFINITY}), KILN_INVALID, "scale is inf");
    EXPECT_ERROR(kiln_attention(a, b, b, &(kiln_attention_options){.softcap = -1}), KILN_INVALID, "softcap is -1");
    EXPECT_ERROR(kiln_attention(a, b, b, &(kiln_attention_options){.dropout = 1}), KILN_INVALID, "dropout is 1");
    EXPECT_ERROR(kiln_attention(a, b, b, &(kiln_attention_options){.before = -1}), KILN_INVALID, "-1 keys before and 0 after");
    EXPECT_ERROR(kiln_attention(a, b, b, &(kiln_attention_options){.causal = true, .after = 2}), KILN_INVALID, "`causal` comes with 2");
    EXPECT_ERROR(kiln_attention(a, b, b, &(kiln_attention_options){.reserved = {0, 1}}), KILN_INVALID,
                 "reserved[1] of the options is not 0");
    kiln_tensor *endless = kiln_expand(kiln_scalar(1), KILN_SHAPE(INT64_C(1) << 40, 1));
    EXPECT_ERROR(kiln_attention(endless, endless, endless, NULL), KILN_OVERFLOW, "more than 2^62 scores");
}

API_TEST(attention, rotary)
{
    const double half = 1.5707963267948966;
    kiln_tensor *x = F64(KILN_SHAPE(2, 4), 1, 2, 3, 4, 5, 6, 7, 8), *angles = F64(KILN_SHAPE(2, 2), half, 0, 0, half);
    EXPECT(kiln_rotary(x, angles, false), KILN_F64, KILN_SHAPE(2, 4), 1e-15, -3, 2, 1, 4, 5, -8, 7, 6);
    EXPECT(kiln_rotary(x, angles, true), KILN_F64, KILN_SHAPE(2, 4), 1e-15, -2, 1, 3, 4, 5, 6, -8, 7);
    /* fewer pairs than there are: the rest stays */
    EXPECT(kiln_rotary(x, F64(KILN_SHAPE(1), half), false), KILN_F64, KILN_SHAPE(2, 4), 1e-15, -2, 1, 3, 4, -6, 5, 7, 8);
    EXPECT(kiln_rotary(x, F64(KILN_SHAPE(2, 1), half, 0), true), KILN_F64, KILN_SHAPE(2, 4), 1e-15, -2, 1, 3, 4, 5, 6, 7, 8);
    EXPECT(kiln_rotary(kiln_cast(x, KILN_BF16), kiln_cast(angles, KILN_F32), false), KILN_BF16, KILN_SHAPE(2, 4), 1e-6, -3, 2, 1, 4, 5, -8,
           7, 6);
    EXPECT(kiln_rotary(F32(KILN_SHAPE(3), 1, 2, 3), kiln_zeros(KILN_F32, KILN_SHAPE(0)), true), KILN_F32, KILN_SHAPE(3), 0, 1, 2, 3);
    /* with all axes that there can be, and one element that is of no pair */
    kiln_tensor *long_x = F64(KILN_SHAPE(1, 2, 1, 1, 1, 1, 1, 5), 1, 2, 3, 4, 9, 5, 6, 7, 8, 10);
    EXPECT(kiln_rotary(long_x, F64(KILN_SHAPE(2, 1, 1, 1, 1, 1, 2), half, 0, 0, half), true), KILN_F64, KILN_SHAPE(1, 2, 1, 1, 1, 1, 1, 5),
           1e-15, -2, 1, 3, 4, 9, 5, 6, -8, 7, 10);
    EXPECT_EMPTY(kiln_rotary(kiln_zeros(KILN_F32, KILN_SHAPE(0, 4)), kiln_zeros(KILN_F32, KILN_SHAPE(2)), true), KILN_F32,
                 KILN_SHAPE(0, 4));
    /* lengths stay: the gradient of half the sum of squares is x */
    kiln_tensor *p = kiln_param(x), *g;
    cr_assert_eq(kiln_grad(kiln_sum(kiln_mul(kiln_square(kiln_rotary(p, kiln_add(angles, 0.3), true)), 0.5)), &p, 1, &g), KILN_OK);
    EXPECT(g, KILN_F64, KILN_SHAPE(2, 4), 1e-14, 1, 2, 3, 4, 5, 6, 7, 8);
    EXPECT_ERROR(kiln_rotary(x, kiln_zeros(KILN_F32, KILN_SHAPE(3)), false), KILN_BAD_SHAPE,
                 "at most d / 2 pairs: x is f64[2,4], angles is f32[3]");
    EXPECT_ERROR(kiln_rotary(x, kiln_zeros(KILN_F32, KILN_SHAPE(3, 2)), false), KILN_BAD_SHAPE, "angles is f32[3,2]");
    EXPECT_ERROR(kiln_rotary(x, kiln_scalar(1), false), KILN_BAD_SHAPE, "angles broadcast to [..., pairs]");
}
