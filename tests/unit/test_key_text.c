/* Key texts: printed, they parse back to the same lines, and nothing but printed lines parses. */
#include "cache/key_text.h"
#include "cache/maker.h"
#include "jit/host_cpu.h"
#include "jit/target.h"
#include "tests/unit/arena.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

TestSuite(key_text, .init = setup, .fini = teardown);

static uint64_t state = 88172645463325252u;
static uint32_t next(uint32_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32) % below;
}

/* Bytes that try to look like lines. */
static size_t random_bytes(char *bytes, size_t most)
{
    static const char alphabet[] = "a=0:1\n9_\0x";
    size_t n = next((uint32_t)most + 1);
    for (size_t i = 0; i < n; i++)
        bytes[i] = alphabet[next(sizeof alphabet)];
    return n;
}

Test(key_text, what_is_printed_parses_back)
{
    for (int round = 0; round < 20000; round++) {
        enum { LINES = 4, MOST = 12 };
        char names[LINES][4], values[LINES][MOST];
        size_t lengths[LINES];
        uint32_t lines = next(LINES + 1);
        Str text;
        str_init(&text, &arena);
        for (uint32_t i = 0; i < lines; i++) {
            uint32_t letters = 1 + next(3);
            for (uint32_t k = 0; k < letters; k++)
                names[i][k] = "aZ0_."[next(5)];
            names[i][letters] = 0;
            lengths[i] = random_bytes(values[i], MOST);
            key_line_add(&text, names[i], values[i], lengths[i]);
        }
        const char *at = text.text, *end = text.text + text.len;
        for (uint32_t i = 0; i < lines; i++) {
            KeyLine line;
            cr_assert(key_line_next(&at, end, &line));
            cr_assert_eq(line.name_bytes, strlen(names[i]));
            cr_assert_eq(memcmp(line.name, names[i], line.name_bytes), 0);
            cr_assert_eq(line.n, lengths[i]);
            cr_assert_eq(memcmp(line.bytes, values[i], line.n), 0);
        }
        cr_assert_eq(at, end);
        cr_assert(key_lines_whole(text.text, text.len));
    }
}

Test(key_text, what_parses_prints_the_same)
{
    int whole = 0;
    for (int round = 0; round < 5000000; round++) {
        char bytes[8];
        size_t n = random_bytes(bytes, sizeof bytes);
        if (!key_lines_whole(bytes, n))
            continue;
        whole += n > 0;
        Str again;
        str_init(&again, &arena);
        const char *at = bytes;
        KeyLine line;
        while (key_line_next(&at, bytes + n, &line)) {
            char name[16];
            memcpy(name, line.name, line.name_bytes);
            name[line.name_bytes] = 0;
            key_line_add(&again, name, line.bytes, line.n);
        }
        cr_assert_eq(again.len, n);
        cr_assert_eq(memcmp(again.text, bytes, n), 0);
    }
    cr_assert_gt(whole, 50, "only %d random texts were lines", whole);
}

Test(key_text, malformed_lines_are_refused)
{
    static const char *const bad[] = {"a",
                                      "a=",
                                      "a=1",
                                      "a=1:",
                                      "a=1:x",
                                      "a=2:x\n",
                                      "a=01:x\n",
                                      "a=1:x\nb",
                                      "=1:x\n",
                                      "a b=1:x\n",
                                      "a=-1:\n",
                                      "a=99999999999999999999:x\n",
                                      "a=18446744073709551615:x\n",
                                      "a=:\n",
                                      "a=0:x\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_assert_not(key_lines_whole(bad[i], strlen(bad[i])), "accepted: %s", bad[i]);
    cr_assert(key_lines_whole("", 0));
    cr_assert(key_lines_whole("a=0:\nb=1:\n\n", 11));
}

Test(key_text, finds_lines_and_the_first_difference)
{
    static const char a[] = "x=1:1\ny=2:22\nz=1:3\n", b[] = "x=1:1\ny=2:23\nz=1:4\n";
    KeyLine of_a, of_b;
    size_t n;
    cr_assert_eq(strncmp(key_line_find(a, sizeof a - 1, "y", &n), "22", 2), 0);
    cr_assert_eq(n, 2);
    cr_assert_null(key_line_find(a, sizeof a - 1, "w", &n));
    cr_assert_not(key_lines_differ(a, sizeof a - 1, a, sizeof a - 1, &of_a, &of_b));
    cr_assert(key_lines_differ(a, sizeof a - 1, b, sizeof b - 1, &of_a, &of_b));
    cr_assert_eq(strncmp(of_a.name, "y", 1), 0);
    cr_assert_eq(strncmp(of_b.bytes, "23", 2), 0);
    cr_assert(key_lines_differ(a, 6, a, sizeof a - 1, &of_a, &of_b));
    cr_assert_null(of_a.name);
    cr_assert_not_null(of_b.name);
}

/* Every KEYED option, perturbed, changes the maker's text; every other leaves it as it was. */
Test(key_text, the_maker_names_every_keyed_option)
{
    JitOptions options = {.value = {0}};
    options_snapshot(&options);
    Str base;
    str_init(&base, &arena);
    cr_assert(maker_text(&options, &base));
    cr_assert(key_lines_whole(base.text, base.len));
    for (int id = 0; id < OPT_COUNT; id++) {
        char name[64];
        snprintf(name, sizeof name, "%s", option_name((OptionId)id));
        JitOptions other = options;
        other.value[id] = id == OPT_VECTOR_BITS ? 128 : !other.value[id];
        Str text;
        str_init(&text, &arena);
        cr_assert(maker_text(&other, &text));
        KeyLine of_base, of_other;
        bool differ = key_lines_differ(base.text, base.len, text.text, text.len, &of_base, &of_other);
        cr_assert_eq(differ, option_keyed((OptionId)id), "%s", name);
        if (differ)
            cr_assert(of_base.name_bytes == strlen(name) && strncmp(of_base.name, name, strlen(name)) == 0, "%s", name);
    }
    static const char *const lines[] = {"format", "version", "build", "llvm", "target", "machine", "features", "cpu", "math"};
    size_t n;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        cr_assert_not_null(key_line_find(base.text, base.len, lines[i], &n), "%s", lines[i]);
        cr_assert_gt(n, 0, "%s", lines[i]);
    }
}

/* Code for another device is another maker's: each part of the target tells in a line of its own. */
Test(key_text, the_maker_names_the_target)
{
    static const struct {
        CudaTarget target;
        const char *line;
    } targets[] = {{{.sm = 0}, ""},
                   {{80, 70, 90, false, 12040, 0, 0}, "target"},
                   {{90, 70, 90, false, 12040, 0, 0}, "sm"},
                   {{90, 78, 90, false, 12040, 0, 0}, "ptx"},
                   {{90, 78, 90, true, 12040, 0, 0}, "sm"},
                   {{90, 78, 100, true, 12040, 0, 0}, "device"},
                   {{90, 78, 100, true, 12080, 0, 0}, "driver"},
                   {{90, 78, 100, true, 12080, 132, 0}, "threads"},
                   {{90, 78, 100, true, 12080, 132, 2048}, "threads"}};
    JitOptions options;
    options_snapshot(&options);
    Str before = {0}, text;
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++, before = text) {
        options.target = targets[i].target;
        str_init(&text, &arena);
        cr_assert(maker_text(&options, &text));
        KeyLine was, is;
        if (i == 0)
            continue;
        cr_assert(key_lines_differ(before.text, before.len, text.text, text.len, &was, &is));
        cr_assert(is.name_bytes == strlen(targets[i].line) && strncmp(is.name, targets[i].line, is.name_bytes) == 0, "%s", targets[i].line);
    }
}

Test(key_text, a_cpu_without_a_feature_is_another_maker)
{
    JitOptions options = {.value = {0}};
    options_snapshot(&options);
    Str wide, narrow;
    KeyLine of_wide, of_narrow;
    str_init(&wide, &arena);
    str_init(&narrow, &arena);
    cr_assert(maker_text(&options, &wide));
    cr_assert_eq(option_set("test_fail", "cpu:-avx2"), ST_OK);
    cr_assert(maker_text(&options, &narrow));
    cr_assert(key_lines_differ(wide.text, wide.len, narrow.text, narrow.len, &of_wide, &of_narrow));
    cr_assert_eq(strncmp(of_wide.name, "features", 8), 0);
    cr_assert_eq(of_narrow.n + strlen("avx2 "), of_wide.n);
}

/* Whatever an order follows from is in the key: the CPU's features, and keyed options. */
Test(key_text, products_of_bytes_follow_the_cpu)
{
    JitOptions options = {.value = {0}};
    options_snapshot(&options);
    options.value[OPT_CPU] = CPU_HOST;
    const bool wide = target_multiplies_fours(&options, 512), narrow = target_multiplies_fours(&options, 256);
    fprintf(stderr, "this CPU multiplies four bytes at a time in vectors of 512 bits: %d, of 256: %d\n", wide, narrow);
    cr_assert_eq(wide, strstr(host_cpu_features(), "avx512vnni") && strstr(host_cpu_features(), "os-zmm-high"));
    cr_assert_eq(narrow, strstr(host_cpu_features(), "avxvnni ") && strstr(host_cpu_features(), "os-ymm"));
    cr_assert_eq(target_multiplies_fours(&options, 128), narrow);
    for (int cpu = CPU_V3; cpu <= CPU_V4; cpu++) {
        options.value[OPT_CPU] = cpu;
        cr_assert(!target_multiplies_fours(&options, 512) && !target_multiplies_fours(&options, 256));
    }
    options.value[OPT_CPU] = CPU_HOST;
    options.target = (CudaTarget){.sm = 80};
    cr_assert(!target_multiplies_fours(&options, 512) && !target_multiplies_fours(&options, 256));
    options.target = (CudaTarget){0};
    static const char *const without[] = {"cpu:-avx512vnni", "cpu:-os-zmm-high", "cpu:-avx512f"};
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(option_set("test_fail", without[i]), ST_OK);
        cr_assert(!target_multiplies_fours(&options, 512));
        cr_assert_eq(target_multiplies_fours(&options, 256), narrow);
    }
    cr_assert_eq(option_set("test_fail", "cpu:-avxvnni"), ST_OK);
    cr_assert(!target_multiplies_fours(&options, 256));
}

Test(key_text, products_of_bf16_follow_the_cpu)
{
    JitOptions options = {.value = {0}};
    options_snapshot(&options);
    options.value[OPT_CPU] = CPU_HOST;
    options.value[OPT_VECTOR_BITS] = 0;
    bool pairs = target_order(&options) == ORDER_HOST_PAIRS;
    fprintf(stderr, "this CPU %s\n", pairs ? "multiplies pairs of bf16" : "has no instruction for pairs of bf16");
    cr_assert_eq(pairs, strstr(host_cpu_features(), "avx512bf16") && strstr(host_cpu_features(), "os-zmm-high"));
    options.value[OPT_VECTOR_BITS] = 512;
    cr_assert_eq(target_order(&options), pairs ? ORDER_HOST_PAIRS : ORDER_HOST);
    options.value[OPT_VECTOR_BITS] = 256;
    cr_assert_eq(target_order(&options), ORDER_HOST);
    options.value[OPT_VECTOR_BITS] = 0;
    options.value[OPT_CPU] = CPU_V4;
    cr_assert_eq(target_order(&options), ORDER_HOST);
    options.value[OPT_CPU] = CPU_HOST;
    options.target = (CudaTarget){.sm = 80};
    cr_assert_eq(target_order(&options), ORDER_CUDA);
    options.target = (CudaTarget){0};
    static const char *const without[] = {"cpu:-avx512bf16", "cpu:-os-zmm-high", "cpu:-avx512f"};
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(option_set("test_fail", without[i]), ST_OK);
        cr_assert_eq(target_order(&options), ORDER_HOST);
    }
}
