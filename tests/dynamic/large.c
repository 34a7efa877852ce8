/*
 * Offsets and sizes beyond 2^31: sparse memory of six GiB, of which a few pages are touched. Sizes that fit 32 bits come first, so a
 * program that relied on them would be met again.
 */
#define _DEFAULT_SOURCE
#include "tests/mutation/harness.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>

enum { GIB_BITS = 30 };
static const int64_t total = (int64_t)6 << GIB_BITS;
static int8_t *memory;

static bool reserve(void)
{
    memory = mmap(NULL, (size_t)total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        printf("no six GiB of address space here: nothing was checked\n");
    CHECK(true, "%s", "");
    return memory != MAP_FAILED;
}

/* A few elements that lie `stride` apart. */
static void strides(void)
{
    if (!reserve())
        return;
    for (int bits = 10; bits <= 31; bits += 3) {
        int64_t stride = ((int64_t)1 << bits) + 3;
        int8_t got[3] = {0}, back[3] = {0};
        for (int64_t i = 0; i < 3 && i * stride < total; i++)
            memory[i * stride] = (int8_t)(bits + i);
        int64_t n = 2 * stride < total ? 3 : 2;
        kiln_tensor *x = kiln_wrap_strided(KILN_I8, KILN_SHAPE(n), &stride, memory, NULL, NULL);
        OK(kiln_read(kiln_add(x, kiln_int(1)), KILN_I8, got, (size_t)n));
        OK(kiln_read(kiln_flip(kiln_neg(x), KILN_AXES(0)), KILN_I8, back, (size_t)n));
        for (int64_t i = 0; i < n; i++) {
            CHECK(got[i] == bits + i + 1, "stride 2^%d: element %d is %d", bits, (int)i, got[i]);
            CHECK(back[n - 1 - i] == -(bits + i), "stride 2^%d backwards: element %d is %d", bits, (int)i, back[n - 1 - i]);
        }
    }
}

/* A few elements of a large row-major tensor: by slice, by index, by two axes. */
static void parts(void)
{
    if (!reserve())
        return;
    for (int bits = 12; bits <= 32; bits += 4) {
        int64_t n = ((int64_t)1 << bits) + 100, at = n - 60;
        int8_t got[8] = {0};
        for (int i = 0; i < 8; i++)
            memory[at + i] = (int8_t)(bits + i);
        kiln_tensor *x = kiln_wrap(KILN_I8, KILN_SHAPE(n), memory, NULL, NULL);
        OK(kiln_read(kiln_add(kiln_slice_axis(x, 0, at, at + 8, 1), kiln_int(1)), KILN_I8, got, 8));
        for (int i = 0; i < 8; i++)
            CHECK(got[i] == bits + i + 1, "2^%d sliced: element %d is %d", bits, i, got[i]);
        OK(kiln_read(kiln_slice_axis(x, 0, at + 7, at - 1, -1), KILN_I8, got, 8));
        for (int i = 0; i < 8; i++)
            CHECK(got[i] == bits + 7 - i, "2^%d sliced backwards: element %d is %d", bits, i, got[i]);
        kiln_tensor *index = kiln_add(kiln_arange(KILN_I64, 0, 8, 1), kiln_int(at));
        OK(kiln_read(kiln_take(x, index, 0), KILN_I8, got, 8));
        for (int i = 0; i < 8; i++)
            CHECK(got[i] == bits + i, "2^%d taken: element %d is %d", bits, i, got[i]);
        int64_t rows = n / 100 + 1, row = at / 100, column = at % 100;
        kiln_tensor *matrix = kiln_wrap(KILN_I8, KILN_SHAPE(rows, 100), memory, NULL, NULL);
        int64_t one = 0;
        OK(kiln_item_int(kiln_select(kiln_select(kiln_neg(matrix), 0, row), 0, column), &one));
        CHECK(one == -bits, "2^%d as a matrix: %" PRId64, bits, one);
        for (int i = 0; i < 8; i++)
            memory[at + i] = 0;
    }
}

int main(int argc, char **argv)
{
    static const Test tests[] = {{"strides", strides}, {"parts", parts}};
    return run_tests("large", tests, sizeof tests / sizeof *tests, argc, argv);
}
