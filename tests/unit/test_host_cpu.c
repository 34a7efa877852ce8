/*
 * The words for the host's CPU that stand in keys, held against what LLVM says of it: LLVM sees nothing that the words leave out, so
 * equal words mean equal code.
 */
#include "jit/host_cpu.h"
#include "jit/llvm/emit.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

/* Is `word` among the words separated by blanks? */
static bool has_word(const char *words, const char *word, size_t n)
{
    for (const char *at = words; *at; at += strcspn(at, " "), at += *at == ' ')
        if (strcspn(at, " ") == n && memcmp(at, word, n) == 0)
            return true;
    return false;
}

/* Names that LLVM derives from others: from what all have, or from that word of ours. */
static bool derived(const char *name, size_t n)
{
    static const struct {
        const char *name, *from;
    } names[] = {{"crc32", "sse4.2"}, {"evex512", "avx512f"}, {"x87", "sse2"}, {"egpr", "apx"}, {"push2pop2", "apx"}, {"ppx", "apx"},
                 {"ndd", "apx"},      {"ccmp", "apx"},        {"nf", "apx"},   {"cf", "apx"},   {"zu", "apx"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i].name) == n && memcmp(names[i].name, name, n) == 0)
            return has_word(host_cpu_features(), names[i].from, strlen(names[i].from));
    return false;
}

/* Does the list take this feature back further on? jit/llvm/cpu/host.c does, where LLVM says what it happens to find. */
static bool overruled(const char *at, const char *end)
{
    size_t n = strcspn(at, ",");
    for (const char *later = at + n; later < end; later += strcspn(later, ",")) {
        later++;
        if (*later == '-' && strcspn(later, ",") == n && memcmp(later + 1, at + 1, n - 1) == 0)
            return true;
    }
    return false;
}

Test(host_cpu, every_feature_that_llvm_sees_is_in_the_words)
{
    const char *target = llvm_host_target(), *features = strrchr(target, ' ');
    cr_assert_not_null(features);
    int seen = 0, denied = 0;
    for (const char *at = features + 1; *at; at += strcspn(at, ","), at += *at == ',') {
        if (overruled(at, features + strlen(features)))
            continue;
        size_t n = strcspn(at, ",") - 1;
        bool ours = has_word(host_cpu_features(), at + 1, n);
        if (*at == '+') {
            cr_assert(ours || derived(at + 1, n), "LLVM knows %.*s of this CPU, the key does not", (int)n, at + 1);
            seen++;
        } else {
            denied++;
            cr_assert(!ours || !has_word(host_cpu_features(), "os-ymm", 6), "LLVM does not use %.*s", (int)n, at + 1);
        }
    }
    cr_assert_gt(seen, 10, "%s", target);
    cr_assert_gt(denied, 10, "%s", target);
}

Test(host_cpu, the_words_stay)
{
    char first[2048];
    snprintf(first, sizeof first, "%s|%s", host_cpu_name(), host_cpu_features());
    for (int i = 0; i < 3; i++) {
        char again[2048];
        snprintf(again, sizeof again, "%s|%s", host_cpu_name(), host_cpu_features());
        cr_assert_str_eq(first, again);
    }
    cr_assert(has_word(host_cpu_features(), "sse2", 4), "%s", first);
    unsigned family, model;
    char vendor[32];
    cr_assert_eq(sscanf(host_cpu_name(), "%31s %u %u", vendor, &family, &model), 3, "%s", first);
}

/* The key names the LLVM that kiln was built for; this is the one that runs. */
Test(host_cpu, llvm_is_the_one_in_the_key) { cr_assert_str_eq(llvm_version(), KILN_LLVM_VERSION); }
