/* Real programs and entries of the cache on disk, for the tests of both. */
#ifndef TESTS_UNIT_ENTRIES_H
#define TESTS_UNIT_ENTRIES_H

#include "cache/entry.h"
#include "cache/maker.h"
#include "ir/base/os.h"
#include "jit/compile.h"

#include <criterion/criterion.h>
#include <string.h>

/* Two kernels, a temporary, a scalar, one that the host makes of it, a size that is compiled in and a fault. */
static const char sample_graph[] = "graph sample(%0: f32[8,16], %1: i64[4]) {\n"
                                   "  %2 = scalar f32 0.5\n"
                                   "  %8 = exp %2\n"
                                   "  %3 = reshape %8 groups(0:1 0:1)\n"
                                   "  %7 = expand %3 axes(0 1) size(8 16)\n"
                                   "  %9 = mul %0 %7\n"
                                   "  %10 = reshape %2 groups(0:1 0:1)\n"
                                   "  %11 = expand %10 axes(0 1) size(8 16)\n"
                                   "  %4 = mul %9 %11\n"
                                   "  %5 = reduce_sum %4 axes(0)\n"
                                   "  %6 = gather %5 %1 axis(0)\n"
                                   "  return %5 %6\n"
                                   "}\n";

typedef struct Sample {
    Graph *graph;
    Program *program;
    CompileTexts texts;
    Facts facts;
    GuardPolicy policy;
    EntryParts parts;
    void *bytes;
    size_t n;
} Sample;

static inline Facts facts_of(const Graph *g)
{
    int64_t *ints = ARENA_ARRAY(g->arena, int64_t, g->shared->ints.n + 1);
    uint64_t *scalars = ARENA_ARRAY(g->arena, uint64_t, g->shared->scalars.n + 1);
    for (uint32_t i = 0; i < g->shared->ints.n; i++)
        ints[i] = g->shared->ints.at[i].value;
    for (uint32_t i = 0; i < g->shared->scalars.n; i++)
        scalars[i] = g->shared->scalars.at[i].bits;
    return (Facts){ints, scalars, g->shared->ints.n, g->shared->scalars.n};
}

/* Compiles a graph for exactly its sizes and writes an entry of it. Release the program, os_free the bytes. */
static inline Sample sample_of(const char *text, Arena *arena)
{
    Sample s = {0};
    cr_assert_eq(graph_parse(text, arena, &s.graph), ST_OK, "%s", fail_message());
    s.facts = facts_of(s.graph);
    s.policy = (GuardPolicy){.int_varies = ARENA_ARRAY(arena, bool, s.facts.n_ints + 1),
                             .scalar_varies = ARENA_ARRAY(arena, bool, s.facts.n_scalars + 1)};
    for (uint32_t i = 0; i < s.facts.n_scalars; i++)
        s.policy.scalar_varies[i] = true;
    guard_policy_close(&s.policy, s.graph, false);
    JitOptions options = {.value = {0}};
    options_snapshot(&options);
    CompileRequest request = {.graph = s.graph, .policy = &s.policy, .options = &options, .want_texts = true};
    cr_assert_eq(jit_compile(&request, &s.program, &s.texts), ST_OK, "%s", fail_message());

    Str maker, graph, meta;
    str_init(&maker, arena);
    str_init(&graph, arena);
    str_init(&meta, arena);
    cr_assert(maker_text(&options, &maker));
    key_line_add(&graph, "graph", text, strlen(text));
    key_line_add(&meta, "made", "1700000000", 10);
    key_line_add(&meta, "compile_us", "12500", 5);
    s.parts = (EntryParts){.key = {maker.text, graph.text, maker.len, graph.len},
                           .meta = meta.text,
                           .meta_bytes = meta.len,
                           .facts = s.facts,
                           .program = s.program,
                           .recorded = s.texts.recorded,
                           .optimised = s.texts.optimised};
    s.policy.seen = arena_copy(arena, &s.facts, sizeof s.facts);
    s.policy.n_seen = 1;
    s.parts.policy = arena_copy(arena, &s.policy, sizeof s.policy);
    cr_assert_eq(entry_write(&s.parts, &s.bytes, &s.n), ST_OK, "%s", fail_message());
    return s;
}

#endif
