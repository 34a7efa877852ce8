/*
 * Kernels as text. tests/kernels/NAME.txt holds cases, divided by lines "====": a kernel, a line "----", and what becomes of it:
 * its text as it is printed, or why it is refused. KILN_GOLDEN=update writes what came out instead of comparing.
 */
#include "tests/unit/golden_cases.h"
#include "tests/unit/kernel_round_trip.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

TestSuite(kernel_text, .init = setup, .fini = teardown);

static void outcome(const char *text, Str *out)
{
    Kernel *k;
    Status status = kernel_parse(text, &arena, &k);
    if (status != ST_OK) {
        cr_assert(status == ST_FORMAT || status == ST_INTERNAL);
        str_printf(out, "refused: %s\n", fail_message());
        return;
    }
    check_round_trip(k, &arena);
    kernel_print(k, out);
}

static void each_file(GoldenMake *make, bool compare)
{
    const char *folder = KILN_SOURCE_DIR "/tests/kernels";
    DIR *dir = opendir(folder);
    cr_assert_not_null(dir, "%s", folder);
    int n = 0;
    for (struct dirent *entry; (entry = readdir(dir));)
        if (strstr(entry->d_name, ".txt"))
            n += golden_cases(arena_printf(&arena, "%s/%s", folder, entry->d_name), make, compare);
    closedir(dir);
    cr_expect_geq(n, 25, "only %d cases", n);
}

Test(kernel_text, files) { each_file(outcome, true); }

/* The order is part of the text and so of the key; a text with that of another device or mode is refused where code is made of it. */
Test(kernel_text, orders_are_those_of_the_device_and_the_mode)
{
    static const char *const texts[] = {
        "kernel (a0 f32, a1 f32 out) for i < 4, j < 80; v0 = load a0[i*80 + j]; v1 = fold sum j (v0)%s; store a1[i] = v1",
        "kernel (a0 f32, a1 f32 out) for i < 4, j < 80; v0 = load a0[i*80 + j]; v1 = fold sum j (v0) running%s; store a1[i*80 + j] = v1",
        ("kernel (a0 f32, a1 f32 out) for i < 4, j < 4, k < 80; v0 = load a0[i*80 + k]; v1 = load a0[j*80 + k]; v2 = fold dot k (v0, "
         "v1)%s; "
         "store a1[i*4 + j] = v2"),
        ("kernel (a0 bf16, a1 bf16 out) for i < 4, j < 4, k < 80; v0 = load a0[i*80 + k]; v1 = load a0[j*80 + k]; v2 = fold dot k (v0, "
         "v1)%s; store a1[i*4 + j] = v2")};
    static const struct {
        int text;
        const char *order;
        bool host[2], cuda[2], pairs[2]; /* strict, fast */
    } cases[] = {{0, " order lanes 64 block 16384", {1, 1}, {0, 0}, {1, 1}},
                 {0, " order lanes 1024 block 16384 tree", {0, 0}, {1, 1}, {0, 0}},
                 {1, " order serial", {1, 1}, {1, 0}, {1, 1}},
                 {1, " order halves", {0, 0}, {0, 1}, {0, 0}},
                 {2, " order chain block 256", {1, 1}, {0, 0}, {1, 1}},
                 {2, " order chain", {0, 0}, {1, 0}, {0, 0}},
                 {2, " order parts", {0, 0}, {0, 1}, {0, 0}},
                 {3, " order chain block 256", {1, 1}, {0, 0}, {1, 0}},
                 {3, " order pairs block 256", {0, 0}, {0, 0}, {0, 1}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Kernel *k;
        char text[400];
        snprintf(text, sizeof text, texts[cases[i].text], cases[i].order);
        cr_assert_eq(kernel_parse(text, &arena, &k), ST_OK, "%s", fail_message());
        for (int math = 0; math < MATH_MODES; math++) {
            cr_expect_eq(kernel_verify_orders(k, ORDER_HOST, (MathMode)math) == ST_OK, cases[i].host[math], "%s", text);
            cr_expect_eq(kernel_verify_orders(k, ORDER_CUDA, (MathMode)math) == ST_OK, cases[i].cuda[math], "%s", text);
            cr_expect_eq(kernel_verify_orders(k, ORDER_HOST_PAIRS, (MathMode)math) == ST_OK, cases[i].pairs[math], "%s", text);
            kernel_set_orders(k, ORDER_HOST, (MathMode)math);
            cr_expect_eq(kernel_verify_orders(k, ORDER_HOST, (MathMode)math), ST_OK);
            cr_assert_eq(kernel_parse(text, &arena, &k), ST_OK);
        }
    }
    Kernel *k;
    cr_assert_eq(kernel_parse("kernel (a0 f32, a1 f32 out) for i < 80; v0 = load a0[i]; v1 = fold sum i (v0) order lanes 64 block 16384; "
                              "store a1[0] = v1",
                              &arena, &k),
                 ST_OK);
    cr_assert_eq(kernel_verify_orders(k, ORDER_CUDA, MATH_STRICT), ST_INTERNAL);
    cr_assert(
        strstr(fail_message(), "an order that CUDA devices do not have in this mode in: v1 = fold sum i (v0) order lanes 64 block 16384"),
        "%s", fail_message());
}

/* Whatever is cut out or put in: it is parsed, verified, printed and parsed again, or refused with a place. */
static void damage(const char *kernel, Str *out)
{
    static const char put[] = "v9s3a0ijz*/%+-[](){}.:;,=~< \n\x01\xff";
    size_t n = strlen(kernel);
    (void)out;
    for (size_t i = 0; i < n; i++) {
        Arena own;
        jmp_buf own_oom;
        arena_init(&own, &own_oom);
        cr_assert_eq(setjmp(own_oom), 0);
        Str ignored;
        str_init(&ignored, &own);
        char *text = arena_strdup(&own, kernel);
        Kernel *k;
        memmove(text + i, text + i + 1, n - i);
        if (kernel_parse(text, &own, &k) == ST_OK)
            check_round_trip(k, &own);
        memcpy(text, kernel, n + 1);
        text[i] = put[i * 7 % (sizeof put - 1)];
        if (kernel_parse(text, &own, &k) == ST_OK)
            check_round_trip(k, &own);
        text[i] = 0;
        if (kernel_parse(text, &own, &k) == ST_OK)
            check_round_trip(k, &own);
        arena_free(&own);
    }
}

Test(kernel_text, damaged_texts_are_refused_or_mean_something) { each_file(damage, false); }
