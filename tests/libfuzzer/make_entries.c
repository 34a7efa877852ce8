/* make_entries FOLDER: entries of this library and this machine as files, from which the fuzz target `entry` starts. */
#include "cache/entry.h"
#include "cache/maker.h"
#include "ir/base/os.h"
#include "jit/compile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const graphs[] = {
    "graph small(%0: f32[4]) {\n  %1 = neg %0\n  return %1\n}\n",
    "graph two_kernels(%0: f32[8,16], %1: i64[4]) {\n"
    "  %2 = scalar f32 0.5\n"
    "  %8 = exp %2\n"
    "  %3 = reshape %8 groups(0:1 0:1)\n"
    "  %4 = expand %3 axes(0 1) size(8 16)\n"
    "  %5 = mul %0 %4\n"
    "  %6 = reduce_sum %5 axes(0)\n"
    "  %7 = gather %6 %1 axis(0)\n"
    "  return %6 %7\n"
    "}\n",
    "graph looped(%0: f32[8], %1: f32[8], %2: i64[], %3: bool[]) {\n"
    "  %4 = loop %0 %1 %2 carries(1) xs(0) ys(0) count(9) step(%0: i64[], %1: f32[8], %2: f32[8], %3: i64[]) {\n"
    "    %4 = reduce_sum %1 axes(0)\n"
    "    %5 = reshape %4 groups(0:1)\n"
    "    %6 = expand %5 axes(0) size(8)\n"
    "    %7 = sub %6 %2\n"
    "    return %7\n"
    "  }\n"
    "  %5 = result %4 number(0)\n"
    "  %6 = cond %3 %5 number(1) then(%0: f32[8]) {\n    %1 = exp %0\n    return %1\n  } else(%0: f32[8]) {\n    return %0\n  }\n"
    "  %7 = result %6 number(0)\n"
    "  return %7\n"
    "}\n",
    "graph sorted(%0: i32[7,5]) {\n  %1 = argsort %0 axis(1) descending\n  %2 = gather %0 %1 axis(1)\n  return %2\n}\n",
};

static Status make(const char *text, bool with_texts, Arena *arena, const char *path)
{
    Graph *g;
    Program *program;
    CompileTexts texts;
    JitOptions options = {.value = {0}};
    TRY(graph_parse(text, arena, &g));
    Str maker, graph;
    int64_t *ints = ARENA_ARRAY(arena, int64_t, g->shared->ints.n + 1);
    uint64_t *scalars = ARENA_ARRAY(arena, uint64_t, g->shared->scalars.n + 1);
    for (uint32_t i = 0; i < g->shared->ints.n; i++)
        ints[i] = g->shared->ints.at[i].value;
    for (uint32_t i = 0; i < g->shared->scalars.n; i++)
        scalars[i] = g->shared->scalars.at[i].bits;
    Facts facts = {ints, scalars, g->shared->ints.n, g->shared->scalars.n};
    GuardPolicy policy = {.int_varies = ARENA_ARRAY(arena, bool, facts.n_ints + 1),
                          .scalar_varies = ARENA_ARRAY(arena, bool, facts.n_scalars + 1)};
    guard_policy_close(&policy, g, false);
    options_snapshot(&options);
    CompileRequest request = {.graph = g, .policy = &policy, .options = &options, .want_texts = with_texts};
    TRY(jit_compile(&request, &program, &texts));
    str_init(&maker, arena);
    str_init(&graph, arena);
    if (!maker_text(&options, &maker))
        return fail(ST_INTERNAL, "no build id");
    key_line_add(&graph, "graph", text, strlen(text));
    EntryParts parts = {.key = {maker.text, graph.text, maker.len, graph.len},
                        .meta = "made=1:1\n",
                        .meta_bytes = 9,
                        .facts = facts,
                        .policy = &policy,
                        .program = program};
    if (with_texts) {
        parts.recorded = texts.recorded;
        parts.optimised = texts.optimised;
    }
    void *bytes;
    size_t n;
    policy.seen = &facts;
    policy.n_seen = 1;
    Status status = entry_write(&parts, &bytes, &n);
    if (status == ST_OK && !os_write_file(path, bytes, n))
        status = fail(ST_IO, "%s cannot be written", path);
    os_free(bytes);
    program_release(program);
    return status;
}

int main(int argc, char **argv)
{
    if (argc != 2 || !os_make_dir(argv[1]))
        return fprintf(stderr, "usage: make_entries FOLDER\n"), 2;
    for (size_t i = 0; i < 2 * (sizeof graphs / sizeof *graphs); i++) {
        char path[4096];
        Arena arena;
        jmp_buf oom;
        arena_init(&arena, &oom);
        snprintf(path, sizeof path, "%s/made%zu", argv[1], i);
        Status status = setjmp(oom) == 0 ? make(graphs[i / 2], i % 2, &arena, path) : ST_OUT_OF_MEMORY;
        arena_free(&arena);
        if (status != ST_OK)
            return fprintf(stderr, "%s: %s\n", path, fail_message()), 1;
    }
    return 0;
}
