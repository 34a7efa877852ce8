/*
 * Where data lies: a generalised program meets its inputs at every byte offset that their dtype allows, transposed and backwards; inputs
 * overlap each other and what they are assigned to. Never two things of one memory taken for two memories, or the other way round.
 *
 * On a device (KILN_DEVICE) all of these are views of tensors there.
 */
#include "tests/mutation/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 5, MOST = 70, ROOM = (ROWS * MOST + 64) * 8 };

/* ROWS x n elements that start `offset` bytes into memory: row-major, column-major, or backwards. */
static kiln_tensor *placed(kiln_dtype dtype, unsigned char *memory, size_t offset, int64_t n, int way)
{
    size_t size = kiln_dtype_size(dtype);
    int64_t count = ROWS * n, first = (int64_t)(offset / size);
    if (!on_device()) {
        unsigned char *at = memory + offset;
        int64_t strides[] = {way == 1 ? 1 : -n, way == 1 ? ROWS : -1};
        return way == 0
                   ? kiln_wrap(dtype, KILN_SHAPE(ROWS, n), at, NULL, NULL)
                   : kiln_wrap_strided(dtype, KILN_SHAPE(ROWS, n), strides, way == 2 ? at + (size_t)(count - 1) * size : at, NULL, NULL);
    }
    kiln_tensor *all = kiln_from(dtype, KILN_SHAPE(count + 64), memory), *x = kiln_slice_axis(all, 0, first, first + count, 1);
    return way == 1 ? kiln_transpose(kiln_reshape(x, KILN_SHAPE(n, ROWS)))
                    : kiln_reshape(way == 2 ? kiln_flip(x, KILN_AXES(0)) : x, KILN_SHAPE(ROWS, n));
}

/* Three sizes first, so that one program serves all; then every offset at a few sizes, each way round. */
static void offsets_of(kiln_dtype dtype)
{
    static _Alignas(64) unsigned char memory[ROOM];
    static unsigned char got[ROOM], wanted[ROOM];
    size_t size = kiln_dtype_size(dtype);
    const int64_t sizes[] = {20, 33, 7, 64, 1, 65};
    int64_t warm = 0;
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        for (size_t offset = 0; offset < 64; offset += size)
            for (int way = 0; way < 3; way++) {
                int64_t n = sizes[k], count = ROWS * n;
                values_fill(dtype, VALUES_PLAIN, 0, offset + (size_t)way, count, memory + offset);
                kiln_scope *scope = kiln_scope_begin();
                kiln_tensor *x = placed(dtype, memory, offset, n, way);
                kiln_tensor *y = kiln_sub(kiln_mul(x, x), x);
                OK(kiln_read(y, dtype, got, (size_t)count * size));
                set_option("mode", "interp");
                OK(kiln_read(kiln_sub(kiln_mul(x, x), x), dtype, wanted, (size_t)count * size));
                set_option("mode", "jit");
                int64_t differs = values_differ(dtype, count, got, wanted, (Tolerance){0, 0});
                CHECK(differs < 0, "%s[%d,%d] at byte %d, way %d: element %d", kiln_dtype_name(dtype), ROWS, (int)n, (int)offset, way,
                      (int)differs);
                kiln_scope_end(scope);
                if (k == 1 && offset + size >= 64 && way == 2)
                    warm = stats_now().compiles;
            }
    /* a row of one element, or one row, may be packed whatever its strides say: another class */
    CHECK(stats_now().compiles <= warm + 1, "%s: %d programs, then %d", kiln_dtype_name(dtype), (int)warm, (int)stats_now().compiles);
}

static void offsets(void)
{
    static const kiln_dtype dtypes[] = {KILN_I8, KILN_F16, KILN_F32, KILN_F64};
    set_option("math", "strict");
    for (size_t k = 0; k < sizeof dtypes / sizeof *dtypes; k++)
        offsets_of(dtypes[k]);
}

/* --- assignment beside what must keep the old values --- */

typedef enum Beside { NOTHING, RETAINED, SLICE, SLICE_OF_SLICE, TRANSPOSE, OTHER_OUTPUT, FUNCTION_CAPTURE, SCOPE_OUTSIDE, BESIDES } Beside;
static const char *const beside_names[] = {"nothing",       "a retained handle", "a slice",   "a slice of a slice",
                                           "its transpose", "another output",    "a capture", "a handle of the scope outside"};

static void add_captured(kiln_tensor **in, kiln_tensor **out, void *user) { out[0] = kiln_add(in[0], *(kiln_tensor **)user); }

static void donate(Beside beside, int64_t n)
{
    enum { LARGEST = 40 };
    static float got[4 * LARGEST], wanted[4 * LARGEST];
    const char *name = beside_names[beside];
    kiln_scope *outside = kiln_scope_begin(), *scope = kiln_scope_begin();
    kiln_tensor *p = kiln_mul(plain_f32(KILN_SHAPE(4, n), 3), kiln_scalar(1)), *kept = NULL;
    OK(kiln_eval(p));
    if (beside == RETAINED || beside == SCOPE_OUTSIDE)
        kept = kiln_positive(p); /* another handle of the same value */
    if (beside == RETAINED)
        kiln_retain(kept);
    if (beside == SCOPE_OUTSIDE)
        kiln_keep(kept);
    if (beside == SLICE || beside == SLICE_OF_SLICE)
        kept = kiln_slice_axis(p, 0, 1, 3, 1);
    if (beside == SLICE_OF_SLICE)
        kept = kiln_slice_axis(kept, 1, KILN_NONE, KILN_NONE, -1);
    if (beside == TRANSPOSE)
        kept = kiln_transpose(p);
    kiln_function *f = beside == FUNCTION_CAPTURE ? kiln_function_new(add_captured, 1, 1, &p) : NULL;
    kiln_tensor *zero = kiln_zeros(KILN_F32, KILN_SHAPE(4, n));
    if (f) /* traced with p as it is; the next call sees what p is then */
        OK(kiln_function_call(f, &zero, &kept));
    int64_t count = kept ? kiln_numel(kept) : 0;
    if (kept) {
        set_option("mode", "interp");
        read_f32(kiln_mul(kept, kiln_scalar(1)), wanted, count);
        set_option("mode", "jit");
    }
    kiln_tensor *next = kiln_sub(p, kiln_scalar(5)), *other = beside == OTHER_OUTPUT ? kiln_mul(p, kiln_scalar(2)) : NULL;
    OK(kiln_assign(p, next));
    OK(other ? kiln_eval_many((kiln_tensor *[]){p, other}, 2) : kiln_eval(p));
    static float old[4 * LARGEST];
    values_fill(KILN_F32, VALUES_PLAIN, 0, 3, 4 * n, old);
    read_f32(p, got, 4 * n);
    for (int64_t i = 0; i < 4 * n; i++)
        CHECK(got[i] == old[i] - 5, "beside %s, n = %d: element %d is %g", name, (int)n, (int)i, (double)got[i]);
    if (other && read_f32(other, got, 4 * n))
        for (int64_t i = 0; i < 4 * n; i++)
            CHECK(got[i] == old[i] * 2, "beside %s, n = %d: the other's element %d is %g", name, (int)n, (int)i, (double)got[i]);
    if (beside == RETAINED || beside == SCOPE_OUTSIDE) /* the scope goes, the handle stays */
        kiln_scope_end(scope);
    if (kept && read_f32(kept, got, count))
        CHECK(memcmp(got, wanted, (size_t)count * sizeof *got) == 0, "beside %s, n = %d: the old values changed", name, (int)n);
    if (f && OK(kiln_function_call(f, &zero, &kept)) && read_f32(kept, got, 4 * n))
        CHECK(got[0] == old[0] - 5, "the function adds what it captured, not what that is now: %g", (double)got[0]);
    if (beside == RETAINED)
        kiln_release(kept);
    else if (beside != SCOPE_OUTSIDE)
        kiln_scope_end(scope);
    kiln_scope_end(outside);
    kiln_function_free(f);
}

static void donation(void)
{
    static const int64_t sizes[] = {16, 23, 8, 40, 1};
    set_option("math", "strict");
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        for (int beside = 0; beside < BESIDES; beside++)
            donate((Beside)beside, sizes[k]);
}

/* --- inputs that overlap, in one generalised program --- */

static void overlaps(void)
{
    enum { N = 80 };
    static float memory[2 * N], copy[2 * N], got[N];
    values_fill(KILN_F32, VALUES_PLAIN, 0, 6, 2 * N, memory);
    memcpy(copy, memory, sizeof copy);
    int64_t warm = 0;
    for (int n = 20; n <= N; n += 15)
        for (int shift = 0; shift < 12; shift++) {
            kiln_scope *scope = kiln_scope_begin();
            kiln_tensor *base = there(kiln_wrap(KILN_F32, KILN_SHAPE(2 * N), memory, NULL, NULL));
            kiln_tensor *a = on_device() ? kiln_slice_axis(base, 0, 0, n, 1) : kiln_wrap(KILN_F32, KILN_SHAPE(n), memory, NULL, NULL);
            kiln_tensor *b = on_device() ? kiln_slice_axis(base, 0, shift, shift + n, 1)
                                         : kiln_wrap(KILN_F32, KILN_SHAPE(n), memory + shift, NULL, NULL);
            kiln_tensor *sum = kiln_sub(kiln_add(a, b), kiln_flip(a, KILN_AXES(0)));
            for (int again = 0; again < 10; again++) { /* fed back */
                OK(kiln_assign(a, again ? kiln_sub(kiln_add(a, b), kiln_flip(a, KILN_AXES(0))) : sum));
                OK(kiln_eval(a));
            }
            read_f32(a, got, n);
            static float x[N], y[N];
            memcpy(x, copy, sizeof x);
            for (int again = 0; again < 10; again++) {
                for (int i = 0; i < n; i++)
                    y[i] = x[i] + copy[i + shift] - x[n - 1 - i];
                memcpy(x, y, sizeof x);
            }
            CHECK(memcmp(x, got, sizeof *x * (size_t)n) == 0, "n = %d, shift %d: %g, expected %g", n, shift, (double)got[1], (double)x[1]);
            CHECK(memcmp(memory, copy, sizeof copy) == 0, "n = %d, shift %d: borrowed memory was written to", n, shift);
            static float now[2 * N];
            read_f32(base, now, 2 * N);
            CHECK(memcmp(now, copy, sizeof copy) == 0, "n = %d, shift %d: what it is a view of was written to", n, shift);
            kiln_scope_end(scope);
            if (n == 35)
                warm = stats_now().compiles;
        }
    CHECK(stats_now().compiles == warm, "%d programs, then %d", (int)warm, (int)stats_now().compiles);
}

int main(int argc, char **argv)
{
    static const Test tests[] = {{"offsets", offsets}, {"donation", donation}, {"overlaps", overlaps}};
    return run_tests("mutate_places", tests, sizeof tests / sizeof *tests, argc, argv);
}
