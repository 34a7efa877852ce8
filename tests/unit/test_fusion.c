/*
 * Why fusion says no, as KILN_LOG=fusion tells it.
 *
 * tests/fusion/refused.txt holds cases, divided by lines "====": a graph, a line "----", and the lines of the log that refuse something. The
 * first line may be a comment with words: "cuda" (with tensor cores of f16 and bf16 where it says "new") instead of the host, "fast",
 * "dynamic" lets no size be compiled in. KILN_GOLDEN=update writes what came out instead of comparing. Each row of jit/fuse/refusals.def is
 * told by one of them.
 */
#include "ir/graph.h"
#include "jit/fuse/refuse.h"
#include "jit/options.h"
#include "jit/plan.h"
#include "tests/unit/golden_cases.h"
#include "tests/unit/query_nothing.h"

TestSuite(fusion, .init = setup, .fini = teardown);

static bool told[REFUSALS];

static bool says(const char *words, const char *word) { return strncmp(words, "//", 2) == 0 && strstr(words, word) != NULL; }

/* Appends the lines that refuse something, and notes by which rows. */
static void take_refusals(const char *log, Str *out)
{
    for (const char *line = log, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        const char *row = arena_printf(&arena, "%.*s", (int)(end - line), line);
        bool refuses = false;
        for (RefusalId id = 0; id < REFUSALS; id++) {
            const char *sentence = refusal_sentence(id), *at = sentence ? strstr(row, sentence) : NULL;
            if (!at || (at[strlen(sentence)] != 0 && at[strlen(sentence)] != ':'))
                continue;
            told[id] = refuses = true;
        }
        if (refuses)
            str_printf(out, "%s\n", row);
    }
}

static void refused(const char *text, Str *out)
{
    Graph *g;
    Plan plan;
    Str log;
    JitOptions options = {.value = {0}};
    const char *words = arena_printf(&arena, "%.*s", (int)strcspn(text, "\n"), text);
    cr_assert_eq(graph_parse(text, &arena, &g), ST_OK, "%s in\n%s", fail_message(), text);
    options.value[OPT_FUSE] = 1;
    options.value[OPT_BANDS] = BANDS_AUTO;
    options.value[OPT_MATH] = says(words, "fast") ? OPT_MATH_FAST : OPT_MATH_STRICT;
    options.value[OPT_REMAT] = says(words, "memory") ? REMAT_MEMORY : 0;
    if (says(words, "cuda"))
        options.target = (CudaTarget){.sm = says(words, "new") ? 90 : 75, .ptx = says(words, "new") ? 80 : 70};
    g->shared->query = says(words, "dynamic") ? &nothing : NULL;
    str_init(&log, &arena);
    cr_assert_eq(jit_plan_told(g, &options, &plan, &log), ST_OK, "%s in\n%s", fail_message(), text);
    take_refusals(log.text, out);
}

Test(fusion, each_reason_is_told)
{
    cr_assert_geq(golden_cases(KILN_SOURCE_DIR "/tests/fusion/refused.txt", refused, true), 20);
    for (RefusalId id = 0; id < REFUSALS; id++)
        cr_expect(!refusal_sentence(id) || told[id], "no case is refused because \"%s\"", refusal_sentence(id));
}

/* A sentence is a row's name for people: no two rows have the same one, nor one that is a part of another's. */
Test(fusion, each_reason_is_another)
{
    for (RefusalId a = 0; a < REFUSALS; a++)
        for (RefusalId b = 0; b < REFUSALS; b++)
            if (a != b && refusal_sentence(a) && refusal_sentence(b))
                cr_expect_not(strstr(refusal_sentence(a), refusal_sentence(b)), "\"%s\" is in \"%s\"", refusal_sentence(b),
                              refusal_sentence(a));
}
