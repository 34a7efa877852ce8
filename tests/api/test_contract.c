/* Contractions: einsum against plain loops over all letters, its relatives, what is refused; gradients. */
#include "api.h"

#include "tests/support/slice.h"

#include <stdio.h>

enum { MAX_TERMS = 4, MAX_LETTERS = 6, VALUES = 4096 };

static uint64_t state;

static int pick(int n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((state >> 33) % (uint64_t)n);
}

/* An equation over the letters a to f, sizes of those, and the tensors with small whole numbers as elements. */
typedef struct Problem {
    char text[128];
    int n, size[MAX_LETTERS];
    int rank[MAX_TERMS], letter[MAX_TERMS][4], out[MAX_LETTERS], n_out;
    double value[MAX_TERMS][VALUES];
} Problem;

static void invent(Problem *p)
{
    bool there[MAX_LETTERS] = {false};
    char *to = p->text;
    p->n = 1 + pick(MAX_TERMS);
    p->n_out = 0;
    for (int l = 0; l < MAX_LETTERS; l++)
        p->size[l] = 1 + pick(4);
    for (int t = 0; t < p->n; t++) {
        if (t)
            *to++ = ',';
        p->rank[t] = pick(5);
        int count = 1;
        for (int d = 0; d < p->rank[t]; d++) {
            int l = p->letter[t][d] = pick(MAX_LETTERS);
            there[l] = true;
            count *= p->size[l];
            *to++ = (char)('a' + l);
        }
        for (int i = 0; i < count; i++)
            p->value[t][i] = pick(7) - 3;
    }
    to += sprintf(to, "->");
    for (int l = MAX_LETTERS; l-- > 0;)
        if (there[l] && pick(2)) {
            p->out[p->n_out++] = l;
            *to++ = (char)('a' + l);
        }
    *to = 0;
}

static int place(const Problem *p, const int *letter, int rank, const int *at)
{
    int i = 0;
    for (int d = 0; d < rank; d++)
        i = i * p->size[letter[d]] + at[letter[d]];
    return i;
}

/* The sum over all values of all letters; a letter that no tensor has counts once. */
static int loops(const Problem *p, double *y)
{
    int size[MAX_LETTERS], at[MAX_LETTERS] = {0}, n = 1;
    for (int l = 0; l < MAX_LETTERS; l++) {
        bool there = false;
        for (int t = 0; t < p->n; t++)
            for (int d = 0; d < p->rank[t]; d++)
                there |= p->letter[t][d] == l;
        size[l] = there ? p->size[l] : 1;
    }
    for (int d = 0; d < p->n_out; d++)
        n *= p->size[p->out[d]];
    memset(y, 0, sizeof *y * (size_t)n);
    for (bool more = true; more;) {
        double product = 1;
        for (int t = 0; t < p->n; t++)
            product *= p->value[t][place(p, p->letter[t], p->rank[t], at)];
        y[place(p, p->out, p->n_out, at)] += product;
        more = false;
        for (int l = 0; l < MAX_LETTERS && !more; l++) {
            more = ++at[l] < size[l];
            at[l] = more ? at[l] : 0;
        }
    }
    return n;
}

API_TEST(einsum, equals_loops)
{
    static const kiln_dtype dtypes[] = {KILN_F64, KILN_F32, KILN_I32, KILN_I64};
    static Problem p;
    static double y[VALUES];
    state = slice_seed() * 77 + 5;
    for (int round = 0; round < 12; round++) {
        invent(&p);
        kiln_dtype dtype = dtypes[round % 4];
        kiln_tensor *in[MAX_TERMS];
        for (int t = 0; t < p.n; t++) {
            kiln_shape shape = {.rank = p.rank[t]};
            for (int d = 0; d < p.rank[t]; d++)
                shape.dim[d] = p.size[p.letter[t][d]];
            in[t] = kiln_cast(kiln_from(KILN_F64, shape, p.value[t]), dtype);
        }
        kiln_shape shape = {.rank = p.n_out};
        for (int d = 0; d < p.n_out; d++)
            shape.dim[d] = p.size[p.out[d]];
        int n = loops(&p, y);
        kiln_tensor *made = kiln_einsum_list(p.text, in, p.n);
        cr_assert(made, "seed %d, \"%s\": %s", (int)slice_seed(), p.text, kiln_error_message());
        printf("seed %d, round %d: %s\n", (int)slice_seed(), round, p.text);
        expect(__LINE__, made, dtype, shape, 1e-12, y, (size_t)n); /* whole numbers: exact in any order, but for the sign of 0 */
    }
}

#define A23 F32(KILN_SHAPE(2, 3), 1, 2, 3, 4, 5, 6)
#define B32 F32(KILN_SHAPE(3, 2), 1, 0, 2, 1, 0, 3)

API_TEST(einsum, as_numpys)
{
    kiln_tensor *a = A23, *b = B32, *square = kiln_einsum("ij,kj->ik", a, a);
    EXPECT(kiln_einsum("ij,jk->ik", a, b), KILN_F32, KILN_SHAPE(2, 2), 0, 5, 11, 14, 23);
    EXPECT(kiln_einsum(" i j , j k ", a, b), KILN_F32, KILN_SHAPE(2, 2), 0, 5, 11, 14, 23);
    EXPECT(kiln_einsum("ij,jk->ki", a, b), KILN_F32, KILN_SHAPE(2, 2), 0, 5, 14, 11, 23);
    EXPECT(kiln_einsum("ba", a), KILN_F32, KILN_SHAPE(3, 2), 0, 1, 4, 2, 5, 3, 6); /* letters in order */
    EXPECT(kiln_einsum("aB", a), KILN_F32, KILN_SHAPE(3, 2), 0, 1, 4, 2, 5, 3, 6); /* capitals first */
    EXPECT(kiln_einsum("ij->", a), KILN_F32, KILN_SHAPE(), 0, 21);
    EXPECT(kiln_einsum("ii->i", square), KILN_F32, KILN_SHAPE(2), 0, 14, 77);
    EXPECT(kiln_einsum("ii", square), KILN_F32, KILN_SHAPE(), 0, 91);
    EXPECT(kiln_einsum(",->", kiln_scalar(3), kiln_scalar(4)), KILN_F32, KILN_SHAPE(), 0, 12);
    kiln_tensor *two = kiln_stack((kiln_tensor *[]){a, kiln_neg(a)}, 2, 0);
    EXPECT(kiln_einsum("...ij,jk->...ik", two, b), KILN_F32, KILN_SHAPE(2, 2, 2), 0, 5, 11, 14, 23, -5, -11, -14, -23);
    EXPECT(kiln_einsum("j...,j->...", kiln_einsum("ij->ji", a), F32(KILN_SHAPE(3), 1, 0, 2)), KILN_F32, KILN_SHAPE(2), 0, 7, 16);
    EXPECT(kiln_einsum("...,...->...", two, kiln_ones(KILN_F32, KILN_SHAPE(1, 3))), KILN_F32, KILN_SHAPE(2, 2, 3), 0, 1, 2, 3, 4, 5, 6, -1,
           -2, -3, -4, -5, -6);
    EXPECT(kiln_einsum("ij,ij->i", a, F32(KILN_SHAPE(1, 3), 1, 2, 3)), KILN_F32, KILN_SHAPE(2), 0, 14, 32); /* 1 fits any size */
    EXPECT(kiln_einsum("i,j,k->kij", F32(KILN_SHAPE(1), 2), F32(KILN_SHAPE(2), 1, 3), F32(KILN_SHAPE(2), 1, 10)), KILN_F32,
           KILN_SHAPE(2, 1, 2), 0, 2, 6, 20, 60);
    EXPECT(kiln_einsum("...ij->ij", two), KILN_F32, KILN_SHAPE(2, 3), 0, 0, 0, 0, 0, 0, 0); /* summed over, as in PyTorch */
    EXPECT(kiln_einsum("b...a", two), KILN_F32, KILN_SHAPE(2, 3, 2), 0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6, -6);
    EXPECT(kiln_einsum("ii,i->i", square, F32(KILN_SHAPE(1), 10)), KILN_F32, KILN_SHAPE(2), 0, 140, 770);
    EXPECT(kiln_einsum("i,i->", kiln_full(KILN_I8, KILN_SHAPE(3), 100), kiln_full(KILN_I8, KILN_SHAPE(3), 100)), KILN_I8, KILN_SHAPE(), 0,
           48); /* in the dtype of the tensors: 30000, wrapped */
    EXPECT_EMPTY(kiln_einsum("ij,jk->ik", kiln_zeros(KILN_F32, KILN_SHAPE(0, 3)), b), KILN_F32, KILN_SHAPE(0, 2));
    EXPECT(kiln_einsum("ij,jk->ik", kiln_zeros(KILN_F32, KILN_SHAPE(1, 0)), kiln_zeros(KILN_F32, KILN_SHAPE(0, 2))), KILN_F32,
           KILN_SHAPE(1, 2), 0, 0, 0);
    EXPECT(kiln_einsum("i,i->", kiln_ones(KILN_F16, KILN_SHAPE(4000)), kiln_ones(KILN_F16, KILN_SHAPE(4000))), KILN_F16, KILN_SHAPE(), 0,
           4000);          /* summed up in f32 */
    kiln_tensor *many[10]; /* more than are planned */
    for (int k = 0; k < 10; k++)
        many[k] = F32(KILN_SHAPE(2, 2), 1, 1, 0, 1);
    EXPECT(kiln_einsum_list("ab,bc,cd,de,ef,fg,gh,hi,ij,jk->ak", many, 10), KILN_F32, KILN_SHAPE(2, 2), 0, 1, 10, 0, 1);
}

API_TEST(einsum, refuses)
{
    kiln_tensor *a = A23, *b = B32, *truth = kiln_gt(a, kiln_int(0));
    EXPECT_ERROR(kiln_einsum("ij,jk->ix", a, b), KILN_INVALID, "kiln_einsum: character 9 of \"ij,jk->ix\": no tensor has this letter");
    EXPECT_ERROR(kiln_einsum("ij,jk->ii", a, b), KILN_INVALID, "character 9", "twice in the result");
    EXPECT_ERROR(kiln_einsum("ij,j?->i", a, b), KILN_INVALID, "character 5");
    EXPECT_ERROR(kiln_einsum("ij-jk", a, b), KILN_INVALID, "character 3");
    EXPECT_ERROR(kiln_einsum("ij,jk->i->k", a, b), KILN_INVALID, "character 9", "second");
    EXPECT_ERROR(kiln_einsum("ij,jk->i,k", a, b), KILN_INVALID, "character 9", "one result");
    EXPECT_ERROR(kiln_einsum("ij->...", a), KILN_INVALID, "character 5", "no tensor has \"...\"");
    EXPECT_ERROR(kiln_einsum("......ij", a), KILN_INVALID, "character 4", "second \"...\"");
    EXPECT_ERROR(kiln_einsum("ij..", a), KILN_INVALID, "character 3");
    EXPECT_ERROR(kiln_einsum("ij", a, b), KILN_INVALID, "names 1 of 2 tensors");
    EXPECT_ERROR(kiln_einsum("ij,jk", a), KILN_INVALID, "character 3", "one tensor");
    EXPECT_ERROR(kiln_einsum("ij,jk,kl", a, b), KILN_INVALID, "character 6", "no more");
    EXPECT_ERROR(kiln_einsum("ijk", a), KILN_BAD_SHAPE, "names 3 axes of tensor 0, which is f32[2,3]");
    EXPECT_ERROR(kiln_einsum("i", a), KILN_BAD_SHAPE, "names 1 axes of tensor 0");
    EXPECT_ERROR(kiln_einsum("ij,kj->ik", a, b), KILN_BAD_SHAPE, "'j' is 3 in tensor 0 and 2 in tensor 1");
    EXPECT_ERROR(kiln_einsum("...,...->...", a, b), KILN_BAD_SHAPE, "\"...\" is 2 in tensor 0 and 3 in tensor 1");
    EXPECT_ERROR(kiln_einsum("ii", a), KILN_BAD_SHAPE, "'i' is 2 in tensor 0 and 3 in tensor 0");
    EXPECT_ERROR(kiln_einsum("ii->i", kiln_ones(KILN_F32, KILN_SHAPE(1, 3))), KILN_BAD_SHAPE, "'i' is 1 in tensor 0 and 3 in tensor 0");
    EXPECT_ERROR(kiln_einsum("i,jii->j", kiln_ones(KILN_F32, KILN_SHAPE(3)), kiln_ones(KILN_F32, KILN_SHAPE(2, 3, 1))), KILN_BAD_SHAPE,
                 "'i' is 3 in tensor 1 and 1 in tensor 1");
    EXPECT_ERROR(kiln_einsum("abcdefgh,ijklmnop->abcdefghijklmnop", kiln_ones(KILN_F32, KILN_SHAPE(1, 1, 1, 1, 1, 1, 1, 1)),
                             kiln_ones(KILN_F32, KILN_SHAPE(1, 1, 1, 1, 1, 1, 1, 1))),
                 KILN_BAD_SHAPE, "16 axes");
    EXPECT_ERROR(kiln_einsum("ij", truth), KILN_BAD_DTYPE, "bools");
    EXPECT_ERROR(kiln_einsum("i,j->ij", kiln_expand(F32(KILN_SHAPE(1), 1), KILN_SHAPE(INT64_C(1) << 32)),
                             kiln_expand(F32(KILN_SHAPE(1), 1), KILN_SHAPE(INT64_C(1) << 32))),
                 KILN_OVERFLOW, "4294967296");
}

API_TEST(einsum, relatives)
{
    kiln_tensor *a = A23, *b = B32;
    EXPECT(kiln_tensordot(a, b, KILN_AXES(1), KILN_AXES(0)), KILN_F32, KILN_SHAPE(2, 2), 0, 5, 11, 14, 23);
    EXPECT(kiln_tensordot(a, b, KILN_AXES(0, 1), KILN_AXES(-1, 0)), KILN_F32, KILN_SHAPE(), 0, 1 * 1 + 2 * 2 + 0 + 0 + 5 * 1 + 6 * 3);
    EXPECT(kiln_tensordot(F32(KILN_SHAPE(2), 1, 2), F32(KILN_SHAPE(2), 3, 4), KILN_AXES(), KILN_AXES()), KILN_F32, KILN_SHAPE(2, 2), 0, 3,
           4, 6, 8);
    EXPECT(kiln_tensordot(a, a, KILN_ALL_AXES, KILN_ALL_AXES), KILN_F32, KILN_SHAPE(), 0, 91);
    EXPECT_ERROR(kiln_tensordot(a, b, KILN_AXES(1), KILN_AXES(1)), KILN_BAD_SHAPE, "axis 1 of a and 1 of b differ");
    EXPECT_ERROR(kiln_tensordot(a, b, KILN_AXES(1), KILN_AXES()), KILN_INVALID, "1 axes of a meet 0 of b");
    EXPECT(kiln_outer(F32(KILN_SHAPE(2), 1, 2), F32(KILN_SHAPE(3), 3, 4, 5)), KILN_F32, KILN_SHAPE(2, 3), 0, 3, 4, 5, 6, 8, 10);
    EXPECT(kiln_outer(kiln_scalar(2), F32(KILN_SHAPE(2), 3, 4)), KILN_F32, KILN_SHAPE(2), 0, 6, 8);
    EXPECT(kiln_dot(F32(KILN_SHAPE(3), 1, 2, 3), F32(KILN_SHAPE(3), 4, 5, 6)), KILN_F32, KILN_SHAPE(), 0, 32);
    EXPECT(kiln_dot(kiln_zeros(KILN_I32, KILN_SHAPE(0)), kiln_zeros(KILN_I32, KILN_SHAPE(0))), KILN_I32, KILN_SHAPE(), 0, 0);
    EXPECT_ERROR(kiln_dot(a, b), KILN_BAD_SHAPE, "two vectors of one length");
}

/* One product of two: a batched one of permuted views, without a copy of either. */
Test(einsum, relayout_is_no_copy)
{
    begin_mode(0);
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *q = kiln_uniform(KILN_F32, KILN_SHAPE(2, 32, 4, 16), 0, 1), *k = kiln_uniform(KILN_F32, KILN_SHAPE(2, 32, 4, 16), 0, 1);
    cr_assert(kiln_eval(q) == KILN_OK && kiln_eval(k) == KILN_OK);
    kiln_stats before = stats_now();
    cr_assert(kiln_eval(kiln_einsum("bqhd,bkhd->bhqk", q, k)) == KILN_OK, "%s", kiln_error_message());
    kiln_stats after = stats_now();
    cr_assert(after.kernels - before.kernels == 1, "%d kernels", (int)(after.kernels - before.kernels));
    kiln_scope_end(scope);
    end_mode();
}

/* A product of few results and a sum of `steps`, as the gradient of a weight is one, and what follows it: in each layout, batched, of other dtypes. */
enum { SPELLINGS = 10 };

static kiln_tensor *long_sum(int spelling, int64_t steps)
{
    static float values[1 << 20];
    for (int i = 0; i < 1 << 20 && values[0] == 0; i++)
        values[(1 << 20) - 1 - i] = (float)(pick(2001) - 1000) / 512;
    enum { M = 17, N = 21 };
    kiln_tensor *a = kiln_from(KILN_F32, KILN_SHAPE(steps, M), values), *b = kiln_from(KILN_F32, KILN_SHAPE(steps, N), values + 4096);
    kiln_tensor *row = kiln_from(KILN_F32, KILN_SHAPE(N), values + 77);
    switch (spelling) {
    case 0: return kiln_einsum("ki,kj->ij", a, b);
    case 1: return kiln_relu(kiln_add(kiln_einsum("ki,kj->ij", kiln_mul(a, a), b), row));
    case 2: return kiln_matmul(kiln_reshape(a, KILN_SHAPE(M, steps)), kiln_reshape(b, KILN_SHAPE(steps, N)));
    case 3: return kiln_softmax(kiln_einsum("ik,jk->ij", kiln_reshape(a, KILN_SHAPE(M, steps)), kiln_reshape(b, KILN_SHAPE(N, steps))), 1);
    case 4: return kiln_matmul(kiln_reshape(a, KILN_SHAPE(1, M, steps)), kiln_reshape(b, KILN_SHAPE(1, steps, N)));
    case 5: return kiln_einsum("bki,bkj->bij", kiln_reshape(a, KILN_SHAPE(2, steps / 2, M)), kiln_reshape(b, KILN_SHAPE(2, steps / 2, N)));
    case 6: return kiln_einsum("ki,kj->ij", kiln_cast(a, KILN_BF16), kiln_cast(b, KILN_BF16));
    case 7: return kiln_einsum("ki,kj->ij", kiln_cast(a, KILN_F64), kiln_cast(b, KILN_F64));
    case 8: return kiln_einsum("ki,kj->ij", kiln_cast(kiln_mul(a, kiln_scalar(40)), KILN_I32), kiln_cast(b, KILN_I32));
    default: return kiln_einsum("ki,k->i", a, kiln_reshape(kiln_slice(b, 2, (kiln_range[]){KILN_ALL, {0, 1, 1}}), KILN_SHAPE(steps)));
    }
}

static size_t long_sum_read(int spelling, int64_t steps, const char *mode, double *to)
{
    set_option("mode", mode);
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *y = long_sum(spelling, steps);
    cr_assert(y, "spelling %d: %s", spelling, kiln_error_message());
    const size_t n = (size_t)kiln_numel(y);
    cr_assert(kiln_eval(y) == KILN_OK && kiln_read(kiln_cast(y, KILN_F64), KILN_F64, to, n * sizeof *to) == KILN_OK, "%s",
              kiln_error_message());
    kiln_scope_end(scope);
    return n;
}

/* Blocks of the sum are tasks (jit/fuse/blocks.c): the interpreter's bits in strict mode, whatever the number of threads; of any size with sums
 * too short for that, with several phases of blocks, and an odd end. */
Test(einsum, blocks_of_a_long_sum)
{
    static const int64_t steps[] = {4100, 600, 40002};
    static double want[3][1024], got[1024];
    set_option("cache", "off");
    set_option("math", "strict");
    for (int spelling = 0; spelling < SPELLINGS; spelling++) {
        size_t n = 0;
        for (int i = 0; i < 3; i++)
            n = long_sum_read(spelling, steps[i], "interp", want[i]);
        for (int way = 0; way < 4; way++) {
            set_option("dynamic", way & 1 ? "always" : "never");
            set_option("threads", way & 2 ? "3" : "1");
            for (int i = 0; i < 3; i++) {
                cr_assert_eq(long_sum_read(spelling, steps[i], "jit", got), n);
                cr_expect(memcmp(got, want[i], n * sizeof *got) == 0, "spelling %d, %d steps, way %d: other bits", spelling, (int)steps[i],
                          way);
            }
        }
        set_option("math", "fast");
        long_sum_read(spelling, steps[0], "jit", got);
        for (size_t i = 0; i < n; i++)
            cr_expect(fabs(got[i] - want[0][i]) <= 1e-2 * fabs(want[0][i]) + 0.05, "spelling %d, fast, %zu: %g, not %g", spelling, i,
                      got[i], want[0][i]);
        set_option("math", "strict");
    }
    end_mode();
}

/* What flows back through a product that is linear in x: <x, dx> = <y, g>. */
API_TEST(einsum, gradient)
{
    static const char *const equations[] = {"ij,jk->ik", "ij,jk->ki", "ij,jk->", "ij,jk->ijk", "ij,ji->i", "ij,kl->il"};
    for (size_t e = 0; e < sizeof equations / sizeof *equations; e++) {
        kiln_tensor *x = kiln_param(F64(KILN_SHAPE(3, 3), 1, -2, 3, 4, 5, -6, 7, 8, 9)), *dx = NULL, *g, *y, *difference;
        kiln_tensor *w = F64(KILN_SHAPE(3, 3), 2, 1, 0, -1, 3, 5, 2, 2, 7);
        y = kiln_einsum(equations[e], x, w);
        cr_assert(y, "%s", kiln_error_message());
        g = kiln_add(kiln_reshape(kiln_arange(KILN_F64, 0, (double)kiln_numel(y), 1), kiln_shape_of(y)), kiln_scalar(1));
        cr_assert(kiln_vjp(1, &y, &g, 1, &x, 0, &dx) == KILN_OK, "%s: %s", equations[e], kiln_error_message());
        difference = kiln_sub(kiln_sum(kiln_mul(x, dx)), kiln_sum(kiln_mul(y, g)));
        EXPECT(difference, KILN_F64, KILN_SHAPE(), 1e-9, 0);
    }
}
