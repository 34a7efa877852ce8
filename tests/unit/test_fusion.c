/*
 * Why fusion says no and what it recognises, as KILN_LOG=fusion tells it.
 *
 * tests/fusion/refused.txt and recognised.txt hold cases, divided by lines "====": a graph, a line "----", and the lines of the log that refuse
 * or recognise something. The first line may be a comment with words: "cuda" (with tensor cores of f16 and bf16 where it says "new") instead of
 * the host, "fast", "memory" for remat=memory, "bands" wherever there can be some, "dynamic" lets no size be compiled in. KILN_GOLDEN=update
 * writes what came out instead of comparing. Each row of jit/fuse/refusals.def and of jit/fuse/recognise.def is told by one of them.
 */
#include "ir/graph.h"
#include "jit/fuse/recognise.h"
#include "jit/fuse/refuse.h"
#include "jit/options.h"
#include "jit/plan.h"
#include "tests/unit/golden_cases.h"
#include "tests/unit/query_nothing.h"

TestSuite(fusion, .init = setup, .fini = teardown);

/* The rows of a table, by their sentences. */
typedef struct Rows {
    const char *sentence[REFUSALS + (int)RECOGNISED_ROWS]; /* NULL: none */
    bool told[REFUSALS + (int)RECOGNISED_ROWS];
    int n;
} Rows;
static Rows rows;

static bool says(const char *words, const char *word) { return strncmp(words, "//", 2) == 0 && strstr(words, word) != NULL; }

static void rows_of_refusals(void)
{
    rows = (Rows){.n = REFUSALS};
    for (RefusalId id = 0; id < REFUSALS; id++)
        rows.sentence[id] = refusal_sentence(id);
}

static void rows_of_recognised(void)
{
    rows = (Rows){.n = RECOGNISED_ROWS};
    for (RecognisedId id = 0; id < RECOGNISED_ROWS; id++)
        rows.sentence[id] = recognised_sentence(id);
}

/* Appends the lines that have a row's sentence, and notes the row. */
static void take_rows(const char *log, Str *out)
{
    for (const char *line = log, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        const char *text = arena_printf(&arena, "%.*s", (int)(end - line), line);
        bool found = false;
        for (int i = 0; i < rows.n; i++) {
            const char *at = rows.sentence[i] ? strstr(text, rows.sentence[i]) : NULL;
            if (!at || (at[strlen(rows.sentence[i])] != 0 && at[strlen(rows.sentence[i])] != ':'))
                continue;
            rows.told[i] = found = true;
        }
        if (found)
            str_printf(out, "%s\n", text);
    }
}

static void log_of(const char *text, Str *out)
{
    Graph *g;
    Plan plan;
    Str log;
    JitOptions options = {.value = {0}};
    const char *words = arena_printf(&arena, "%.*s", (int)strcspn(text, "\n"), text);
    cr_assert_eq(graph_parse(text, &arena, &g), ST_OK, "%s in\n%s", fail_message(), text);
    options.value[OPT_FUSE] = 1;
    options.value[OPT_BANDS] = says(words, "bands") ? BANDS_ALWAYS : BANDS_AUTO;
    options.value[OPT_MATH] = says(words, "fast") ? OPT_MATH_FAST : OPT_MATH_STRICT;
    options.value[OPT_REMAT] = says(words, "memory") ? REMAT_MEMORY : 0;
    if (says(words, "cuda"))
        options.target = (CudaTarget){.sm = says(words, "new") ? 90 : 75, .ptx = says(words, "new") ? 80 : 70};
    g->shared->query = says(words, "dynamic") ? &nothing : NULL;
    str_init(&log, &arena);
    cr_assert_eq(jit_plan_told(g, &options, &plan, &log), ST_OK, "%s in\n%s", fail_message(), text);
    take_rows(log.text, out);
}

static void check_rows(const char *path, int least)
{
    cr_assert_geq(golden_cases(path, log_of, true), least);
    for (int a = 0; a < rows.n; a++) {
        if (!rows.sentence[a])
            continue;
        cr_expect(rows.told[a], "no case of %s is told \"%s\"", path, rows.sentence[a]);
        /* a sentence is a row's name for people: it is no part of another's */
        for (int b = 0; b < rows.n; b++)
            cr_expect(a == b || !rows.sentence[b] || !strstr(rows.sentence[a], rows.sentence[b]), "\"%s\" is in \"%s\"", rows.sentence[b],
                      rows.sentence[a]);
    }
}

Test(fusion, each_reason_is_told)
{
    rows_of_refusals();
    check_rows(KILN_SOURCE_DIR "/tests/fusion/refused.txt", 20);
}

Test(fusion, each_thing_is_recognised)
{
    rows_of_recognised();
    check_rows(KILN_SOURCE_DIR "/tests/fusion/recognised.txt", 8);
}
