/* The two kinds of target, and what is printed of each. */
#include "jit/target.h"
#include "jit/host_cpu.h"
#include "jit/kernel.h"
#include "jit/launch_plan.h"
#include "jit/options.h"

#include <stdio.h>
#include <string.h>

enum { CUDA_FAR = 2 * 16384 }; /* two blocks of a sum */

const TargetKind *target_kind(const CudaTarget *target)
{
    static const TargetKind host = {.device = TARGET_HOST,
                                    .assembly = "s",
                                    .nests = true,
                                    .sizes_ask = true,
                                    .few = HOST_FEW,
                                    .far = HOST_FAR,
                                    .keeps = HOST_KEEP,
                                    .bands = true,
                                    .blocks = true,
                                    .unites = true,
                                    .packs = true};
    static const TargetKind cuda = {.device = TARGET_CUDA,
                                    .assembly = "ptx",
                                    .scans_together = true,
                                    .cuts_products = true,
                                    .cut_stages = LAUNCH_PHASES,
                                    .far = CUDA_FAR,
                                    .attends = true,
                                    .sums_thin = true,
                                    .sorts_by_kernels = true,
                                    .aligns = true,
                                    .narrow_index = true,
                                    .goes_on_when_wrong = true};
    return target->sm ? &cuda : &host;
}

enum { HOST = 1 << TARGET_HOST, CUDA = 1 << TARGET_CUDA, BOTH = HOST | CUDA };

static const struct {
    const char *name;
    int of;
    bool code;
} facts[] = {
#define TARGET_FACT(id, name, of, code) {name, of, code},
#include "jit/target.def"
#undef TARGET_FACT
};

const char *target_fact_name(TargetFact fact) { return facts[fact].name; }
bool target_fact_of(TargetFact fact, TargetDevice device) { return facts[fact].of >> device & 1; }
bool target_fact_codes(TargetFact fact) { return facts[fact].code; }

/* A word of words with spaces between them; or NULL. */
static const char *find_word(const char *words, const char *word)
{
    size_t n = strlen(word);
    const char *at = words;
    while ((at = strstr(at, word)) && ((at > words && at[-1] != ' ') || (at[n] != ' ' && at[n])))
        at += n;
    return at;
}

/* Which feature a test takes away: KILN_TEST_FAIL=cpu:-NAME; "": none. */
static void hidden_feature(char *name, size_t size)
{
    char hook[64];
    option_text(OPT_TEST_FAIL, hook, sizeof hook);
    snprintf(name, size, "%s", strncmp(hook, "cpu:-", 5) == 0 ? hook + 5 : "");
}

static void print_features(Str *out)
{
    char hidden[64];
    hidden_feature(hidden, sizeof hidden);
    const char *features = host_cpu_features(), *at = *hidden ? find_word(features, hidden) : NULL, *rest = at ? at + strlen(hidden) : NULL;
    if (at)
        str_printf(out, "%.*s%s", (int)(at - features), features, *rest ? rest + 1 : rest);
    else
        str_printf(out, "%s", features);
}

static bool host_has(const char *feature)
{
    char hidden[64];
    hidden_feature(hidden, sizeof hidden);
    return find_word(host_cpu_features(), feature) && strcmp(feature, hidden) != 0;
}

/* What vectors of 512 bits need (jit/llvm/cpu/host.c), as far as the system saves them. */
static bool host_is_wide(void)
{
    static const char *const needed[] = {"avx512f",  "avx512bw",  "avx512dq",   "avx512vl",
                                         "avx512cd", "os-opmask", "os-zmm-low", "os-zmm-high"};
    bool all = true;
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        all &= host_has(needed[i]);
    return all;
}

OrderDevice target_order(const JitOptions *options)
{
    int64_t bits = options->value[OPT_VECTOR_BITS];
    if (options->target.sm)
        return ORDER_CUDA;
    return options->value[OPT_CPU] == CPU_HOST && (bits == 0 || bits == 512) && host_is_wide() && host_has("avx512bf16") ? ORDER_HOST_PAIRS
                                                                                                                         : ORDER_HOST;
}

/* Narrower vectors are code for a CPU without AVX-512. */
bool target_multiplies_fours(const JitOptions *options, int64_t bits)
{
    return !options->target.sm && options->value[OPT_CPU] == CPU_HOST &&
           (bits == 512 ? host_is_wide() && host_has("avx512vnni") : host_has("avxvnni") && host_has("os-ymm"));
}

void target_fact_print(TargetFact fact, const CudaTarget *t, Str *out)
{
    switch (fact) {
    case TARGET_TRIPLE: str_printf(out, "%s", t->sm ? "nvptx64-nvidia-cuda" : "x86_64-linux-gnu"); return;
    case TARGET_MACHINE: str_printf(out, "%s", host_cpu_name()); return;
    case TARGET_FEATURES: print_features(out); return;
    case TARGET_SM: str_printf(out, "sm_%d%s", t->sm, t->arch ? "a" : ""); return;
    case TARGET_PTX: str_printf(out, "%d", t->ptx); return;
    case TARGET_DEVICE: str_printf(out, "%d", t->device); return;
    case TARGET_DRIVER: str_printf(out, "%d", t->driver); return;
    case TARGET_THREADS: str_printf(out, "%d x %d", t->multiprocessors, t->threads); return;
    case TARGET_FACTS: return;
    }
}

void target_words(const CudaTarget *t, int64_t words[TARGET_WORDS])
{
    words[0] = (int64_t)t->sm << 32 | t->device << 16 | t->ptx << 1 | t->arch;
    words[1] = (int64_t)t->multiprocessors << 32 | t->threads;
}

bool target_same(const CudaTarget *a, const CudaTarget *b)
{
    int64_t of_a[TARGET_WORDS], of_b[TARGET_WORDS];
    target_words(a, of_a);
    target_words(b, of_b);
    return memcmp(of_a, of_b, sizeof of_a) == 0;
}
