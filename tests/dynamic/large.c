/*
 * Offsets and sizes beyond 2^31: sparse memory of six GiB, of which a few pages are touched. Sizes that fit 32 bits come first, so a
 * program that relied on them would be met again. Indices are 64 bits wide in all code for the host: there is no narrower version whose
 * limit could be lowered for a test, and indices_are_64_bits keeps it so. (Kernels for CUDA have one: unit/test_index_width.c, and
 * mutation/mutate_guards with the limit lowered.)
 */
#define _DEFAULT_SOURCE
#include "tests/mutation/harness.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
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

static int addresses, counts, narrow;
static char narrow_line[256];

/* The value that `line` says to be a count of lanes: which it limits, as "%22" of "  %22 = select i1 %21, i64 %20, i64 16" or of "  %22 = and i64 %20, 15"
 * (what no vector holds), or which it compares with their number, as "%22" of "  %23 = icmp sge i64 %22, 16" (the last tile). Empty: none. */
static void counted_value(const char *line, char *name, size_t size)
{
    const char *select = strstr(line, " = select i1 "), *compare = strstr(line, " = icmp sge i64 %"), *limit = strrchr(line, ' ');
    const char *at = select || strstr(line, " = and i64 %") ? strstr(line, "%") : compare ? compare + 16 : "";
    bool few = limit && limit[1] >= '1' && limit[1] <= '9' && strlen(limit) <= 4;
    snprintf(name, size, "%.*s", few ? (int)strcspn(at, " ,") : 0, at);
}

/* A line of IR: an address is computed from 64-bit numbers, and the only number that is cut to 32 bits is a count of lanes. */
static void look_at_ir(void *user, int level, const char *topic, const char *line)
{
    static char lanes[64][16]; /* what counts them, in the function at hand */
    static int n_lanes;
    (void)user, (void)level, (void)topic;
    const char *address = strstr(line, " getelementptr "), *cut = strstr(line, " = trunc i64 %");
    bool bad = false;
    char name[16];
    if (strncmp(line, "define ", 7) == 0)
        n_lanes = 0;
    counted_value(line, name, sizeof name);
    if (*name && n_lanes < 64)
        memcpy(lanes[n_lanes++], name, sizeof name);
    if (address) {
        addresses++;
        bad = strstr(address, ", i64 ") == NULL && strstr(address, " x i64> ") == NULL;
    } else if (cut) {
        counts++;
        bad = true;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(cut + 13, " "), cut + 13);
        for (int i = 0; i < n_lanes; i++)
            bad &= strcmp(name, lanes[i]) != 0;
    }
    if (bad && !narrow++)
        snprintf(narrow_line, sizeof narrow_line, "%s", line);
}

static void indices_are_64_bits(void)
{
    set_option("cache", "off");
    set_option("log", "output_code");
    kiln_set_log_sink(look_at_ir, NULL);
    static const char *const dynamic[] = {"never", "always"};
    for (int d = 0; d < 2; d++) {
        set_option("dynamic", dynamic[d]);
        kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(40 + d, 24)), *w = kiln_ones(KILN_F32, KILN_SHAPE(24, 16));
        kiln_tensor *index = kiln_zeros(KILN_I64, KILN_SHAPE(5)), *two[] = {x, x};
        OK(kiln_eval_many((kiln_tensor *[]){x, w, index}, 3));
        kiln_tensor *all[] = {kiln_neg(x),
                              kiln_matmul(x, w),
                              kiln_softmax(x, 1),
                              kiln_sum_axes(x, KILN_AXES(0), false),
                              kiln_take(x, index, 0),
                              kiln_flip(kiln_slice_axis(x, 0, 1, 30, 3), KILN_AXES(1)),
                              kiln_concat(two, 2, 0),
                              kiln_cumsum(x, 1),
                              kiln_scatter(x, index, kiln_ones(KILN_F32, KILN_SHAPE(5, 24)), 0, KILN_SCATTER_ADD),
                              kiln_sum(kiln_exp(x)),
                              kiln_reshape(kiln_transpose(kiln_add(x, x)), KILN_SHAPE(-1))};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            OK(kiln_eval(all[i]));
    }
    CHECK(addresses > 60 && counts > 0, "%d addresses and %d counts were seen", addresses, counts);
    CHECK(narrow == 0, "%d indices are narrow, such as: %s", narrow, narrow_line);
    look_at_ir(NULL, 1, "", "  %4 = getelementptr float, ptr %1, i32 %3"); /* it would be seen */
    look_at_ir(NULL, 1, "", "  %5 = trunc i64 %4 to i32");
    CHECK(narrow == 2, "%d", narrow);
}

int main(int argc, char **argv)
{
    static const Test tests[] = {{"strides", strides}, {"parts", parts}, {"indices_are_64_bits", indices_are_64_bits}};
    return run_tests("large", tests, sizeof tests / sizeof *tests, argc, argv);
}
