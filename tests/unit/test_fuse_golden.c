/*
 * Golden texts of fusion: tests/golden/fusion/NAME.txt holds a graph, a line "----", and what
 * jit_plan makes of it. The first line may be a comment with words: "nofuse" switches fusion off,
 * "dynamic" lets no size be compiled in. KILN_GOLDEN=update writes what came out instead of
 * comparing.
 */
#include "ir/base/os.h"
#include "jit/options.h"
#include "jit/plan.h"
#include "tests/unit/kernel_round_trip.h"
#include "tests/unit/golden.h"
#include "tests/unit/query_nothing.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_plan(Graph *g, const Plan *plan, Str *out)
{
    static const char *const kind[] = {"input", "output", "temp", "rows"};
    for (uint32_t s = 0; s < plan->steps.n; s++) {
        const PlanStep *step = &plan->steps.at[s];
        for (uint32_t b = 0; b < plan->bands.n; b++)
            if (plan->bands.at[b].first == s) {
                str_printf(out, "in bands of rows, ");
                dim_print(g, plan->bands.at[b].batch, out);
                str_printf(out, " x ");
                dim_print(g, plan->bands.at[b].rows, out);
                str_printf(out, ": the next %u steps\n", plan->bands.at[b].n);
            }
        str_printf(out, "step %u: %s makes %%%u", s, step->what, step->node);
        const char *before = ", buffers";
        for (uint32_t a = 0; a < step->args.n; a++) {
            if (step->args.at[a].kind != BIND_BUFFER)
                continue;
            str_printf(out, "%s b%u", before, step->args.at[a].buffer);
            before = "";
        }
        str_printf(out, "\n");
        if (step->kernel) {
            kernel_print(step->kernel, out);
            check_round_trip(step->kernel, out->arena);
        }
    }
    for (uint32_t b = 0; b < plan->buffers.n; b++) {
        const PlanBuffer *buffer = &plan->buffers.at[b];
        str_printf(out, "b%u: %s %%%u %s[", b, kind[buffer->kind], buffer->node, dtype_name((DType)buffer->dtype));
        dim_print(g, buffer->numel, out);
        str_printf(out, "]");
        if (buffer->kind == BUFFER_TEMP)
            str_printf(out, " slot %u", buffer->slot);
        if (buffer->kind == BUFFER_BAND) {
            str_printf(out, " of ");
            dim_print(g, buffer->row, out);
            str_printf(out, " each, slot %u of a thread", buffer->slot);
        }
        if (buffer->alias_input != NO_BUFFER)
            str_printf(out, " may be b%u", buffer->alias_input);
        str_printf(out, "\n");
    }
    str_printf(out, "outputs");
    for (uint32_t i = 0; i < plan->outputs.n; i++)
        str_printf(out, " b%u", plan->outputs.at[i]);
    str_printf(out, "\npeak %lld with reuse, %lld without\n", (long long)plan->peak_with_reuse, (long long)plan->peak_without);
}

static void check_file(const char *path)
{
    static char text[GOLDEN_MOST];
    char *expected = golden_read(path, text);
    Arena arena;
    jmp_buf oom;
    arena_init(&arena, &oom);
    cr_assert_eq(setjmp(oom), 0);
    Graph *g;
    Plan plan;
    JitOptions options = {.value = {0}};
    Str out;
    cr_assert_eq(graph_parse(text, &arena, &g), ST_OK, "%s: %s", path, fail_message());
    bool words = text[0] == '/';
    size_t line = strcspn(text, "\n");
    text[line] = 0;
    options.value[OPT_CPU] = CPU_V4; /* the same text on every machine: orders follow from what this one can */
    options.value[OPT_FUSE] = !(words && strstr(text, "nofuse"));
    options.value[OPT_BANDS] = words && strstr(text, "bands") ? BANDS_ALWAYS : BANDS_OFF;
    g->shared->query = words && strstr(text, "dynamic") ? &nothing : NULL;
    text[line] = '\n';
    cr_assert_eq(jit_plan(g, &options, &plan), ST_OK, "%s: %s", path, fail_message());
    str_init(&out, &arena);
    print_plan(g, &plan, &out);
    golden_compare(path, text, expected, out.text);
    arena_free(&arena);
}

Test(fuse_golden, files) { golden_folder(KILN_SOURCE_DIR "/tests/golden/fusion", check_file, 20); }
