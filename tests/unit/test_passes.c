/* The passes: golden texts before and after, guards through a recording query, hooks, size. */
#include "ir/base/os.h"
#include "ir/query.h"
#include "jit/passes.h"
#include "jit/target.h"
#include "tests/unit/graphs.h"

#include <stdio.h>
#include <time.h>

TestSuite(passes, .init = open_arena, .fini = close_arena);

/* ---- a query that writes down what was asked ---- */

typedef struct Notes {
    Query query; /* first: a Notes is a Query */
    Graph *g;
    bool vary; /* refuse everything */
    char line[256][64];
    uint32_t n;
} Notes;

static bool note_int(Query *q, uint32_t fact, const char *who, int64_t *value)
{
    Notes *notes = (Notes *)q;
    *value = notes->g->shared->ints.at[fact].value;
    if (!notes->vary)
        snprintf(notes->line[notes->n++], 64, "s%u == %d (%s)", fact, (int)*value, who);
    return !notes->vary;
}

static bool note_same(Query *q, const Graph *g, Dim a, Dim b, const char *who)
{
    Notes *notes = (Notes *)q;
    Str x, y;
    str_init(&x, g->arena);
    str_init(&y, g->arena);
    dim_print(g, a, &x);
    dim_print(g, b, &y);
    if (!notes->vary)
        snprintf(notes->line[notes->n++], 64, "%.16s == %.16s (%.16s)", x.text, y.text, who);
    return !notes->vary;
}

static bool note_range(Query *q, const Graph *g, Dim d, int64_t min, int64_t max, const char *who)
{
    Notes *notes = (Notes *)q;
    (void)max;
    Str x;
    str_init(&x, g->arena);
    dim_print(g, d, &x);
    if (!notes->vary)
        snprintf(notes->line[notes->n++], 64, "%.16s >= %d (%.20s)", x.text, (int)min, who);
    return !notes->vary;
}

static void no_bounds(Query *q, const Graph *g, Dim d, int64_t *min, int64_t *max)
{
    (void)q, (void)g, (void)d;
    *min = INT64_MIN;
    *max = INT64_MAX;
}

static bool note_scalar(Query *q, uint32_t scalar, const char *who, uint64_t *bits)
{
    Notes *notes = (Notes *)q;
    *bits = notes->g->shared->scalars.at[scalar].bits;
    if (!notes->vary)
        snprintf(notes->line[notes->n++], 64, "k%u (%s)", scalar, who);
    return !notes->vary;
}

static uint32_t note_mark(Query *q) { return ((Notes *)q)->n; }

static void note_undo(Query *q, uint32_t mark) { ((Notes *)q)->n = mark; }

static Notes *take_notes(Graph *g)
{
    Notes *notes = arena_alloc(&arena, sizeof *notes);
    notes->query = (Query){note_int, note_same, note_range, no_bounds, note_scalar, note_mark, note_undo};
    notes->g = g;
    g->shared->query = &notes->query;
    return notes;
}

static JitOptions options(int64_t math)
{
    JitOptions o;
    options_snapshot(&o);
    o.value[OPT_MATH] = math;
    o.value[OPT_REWRITE] = 1;
    return o;
}

static const char *run(Graph *g, int64_t math)
{
    JitOptions o = options(math);
    cr_assert_eq(jit_run_passes(g, &o, NULL, NULL), ST_OK, "%s", fail_message());
    return print(g);
}

/* What the passes make of a graph, and the guards it took. */
static void golden(const char *before, const char *after, const char *guards)
{
    Graph *g = parse(before);
    Notes *notes = take_notes(g);
    const char *text = run(g, OPT_MATH_FAST);
    cr_expect_str_eq(text, after, "%s\ngave\n%s\nexpected\n%s", before, text, after);
    Str all;
    str_init(&all, &arena);
    for (uint32_t k = 0; k < notes->n; k++)
        str_printf(&all, "%s%s", k ? "; " : "", notes->line[k]);
    cr_expect_str_eq(all.text, guards, "%s\nguards %s\nexpected %s", before, all.text, guards);
}

/* ---- golden texts ---- */

#define SCALED(k) "%1 = scalar f32 " k " %2 = reshape %1 groups(0:1) %3 = expand %2 axes(0) size(s0)\n"

Test(passes, a_scalar_is_asked_for_only_when_it_decides)
{
    golden("graph g(%0: f32[4]) {" SCALED("1") "%4 = mul %0 %3 return %4 }", "graph g(%0: f32[4]) {\n  return %0\n}\n", "k0 (mul_one)");
    golden("graph g(%0: f32[4]) {" SCALED("3.5") "%4 = mul %0 %3 return %4 }",
           "graph g(%0: f32[4]) {\n  %1 = scalar f32 3.5 : f32[]\n  %2 = reshape %1 groups(0:1) : f32[1]\n"
           "  %3 = expand %2 axes(0) size(s0) : f32[4]\n  %4 = mul %0 %3 : f32[4]\n  return %4\n}\n",
           "");
    golden("graph g(%0: f32[4]) {" SCALED("0") "%4 = mul %0 %3 return %4 }", /* NaN * 0 */
           "graph g(%0: f32[4]) {\n  %1 = scalar f32 0 : f32[]\n  %2 = reshape %1 groups(0:1) : f32[1]\n"
           "  %3 = expand %2 axes(0) size(s0) : f32[4]\n  %4 = mul %0 %3 : f32[4]\n  return %4\n}\n",
           "");
    golden("graph g(%0: f32[4]) {" SCALED("2") "%4 = pow %0 %3 return %4 }",
           "graph g(%0: f32[4]) {\n  %1 = square %0 : f32[4]\n  return %1\n}\n", "k0 (pow_two)");
}

Test(passes, varying_scalars_stay)
{
    Graph *g = parse("graph g(%0: f32[4]) {" SCALED("1") "%4 = mul %0 %3 return %4 }");
    Notes *notes = take_notes(g);
    notes->vary = true;
    const char *text = run(g, OPT_MATH_FAST);
    cr_assert(strstr(text, "mul %0"), "%s", text);
    cr_assert_eq(notes->n, 0);
}

Test(passes, strict_keeps_what_fast_changes)
{
    static const char before[] = "graph g(%0: f32[4]) { %1 = sqrt %0 %2 = reciprocal %1 return %2 }";
    cr_assert_str_eq(run(parse(before), OPT_MATH_FAST), "graph g(%0: f32[4]) {\n  %1 = rsqrt %0 : f32[4]\n  return %1\n}\n");
    cr_assert_str_eq(run(parse(before), OPT_MATH_STRICT),
                     "graph g(%0: f32[4]) {\n  %1 = sqrt %0 : f32[4]\n  %2 = reciprocal %1 : f32[4]\n  return %2\n}\n");
}

/* exp(log x) is not x for a negative x: only who promises finite values gets that. */
Test(passes, rows_for_finite_values_must_be_asked_for)
{
    static const char before[] = "graph g(%0: f32[4]) { %1 = log %0 %2 = exp %1 return %2 }";
    static const char kept[] = "graph g(%0: f32[4]) {\n  %1 = log %0 : f32[4]\n  %2 = exp %1 : f32[4]\n  return %2\n}\n";
    JitOptions o = options(OPT_MATH_FAST);
    cr_assert_str_eq(run(parse(before), OPT_MATH_FAST), kept);
    o.value[OPT_FINITE] = 1;
    Graph *g = parse(before);
    cr_assert_eq(jit_run_passes(g, &o, NULL, NULL), ST_OK);
    cr_assert_str_eq(print(g), "graph g(%0: f32[4]) {\n  return %0\n}\n");
    o.value[OPT_MATH] = OPT_MATH_STRICT;
    g = parse(before);
    cr_assert_eq(jit_run_passes(g, &o, NULL, NULL), ST_OK);
    cr_assert_str_eq(print(g), kept);
}

/* Which is another order of a sum: in strict mode, and on other machines, the image is padded as f32, in which they multiply. */
Test(passes, channels_are_paired_where_products_take_pairs)
{
    static const char before[] = "graph g(%0: bf16[2,4,9], %1: bf16[2,16,12]) { %2 = scalar bf16 0 %3 = pad %0 %2 axes(2) by(1:1) "
                                 "%4 = window %3 axis(2) by(1:1:9:3) %5 = permute %4 perm(0 1 3 2) %6 = reshape %5 groups(1:1 2:1 1:1) "
                                 "%7 = matmul %1 %6 return %7 }";
    for (int math = 0; math < 2; math++)
        for (int bits = 256; bits <= 512; bits += 256) {
            JitOptions o = options(math ? OPT_MATH_FAST : OPT_MATH_STRICT);
            o.value[OPT_CPU] = CPU_HOST;
            o.value[OPT_VECTOR_BITS] = bits;
            const bool pairs = math && target_order(&o) == ORDER_HOST_PAIRS;
            cr_assert(bits == 512 || !pairs);
            Graph *g = parse(before);
            cr_assert_eq(jit_run_passes(g, &o, NULL, NULL), ST_OK, "%s", fail_message());
            cr_assert_eq(strstr(print(g), "f32[2,4,11]") != NULL, !pairs, "%s", print(g));
            cr_assert_eq(strstr(print(g), "bf16[2,2,11,2]") != NULL, pairs, "%s", print(g));
        }
}

/* A product that is rounded as the recorded one; tensor cores multiply halves. Windows that don't overlap, and f32, stay as they are. */
Test(passes, images_of_halves_are_padded_as_f32_on_hosts)
{
    static const char text[] = "graph g(%%0: %s[2,4,9], %%1: %s[2,16,%d]) { %%2 = scalar %s 0 %%3 = pad %%0 %%2 axes(2) by(1:1) "
                               "%%4 = window %%3 axis(2) by(1:1:9:%d) %%5 = permute %%4 perm(0 1 3 2) "
                               "%%6 = reshape %%5 groups(1:1 2:1 1:1) %%7 = matmul %%1 %%6 return %%7 }";
    static const struct {
        const char *dtype;
        int taps, sm;
        bool widened;
    } cases[] = {{"f16", 3, 0, true},    {"bf16", 3, 0, true}, {"f16", 3, 90, false},
                 {"bf16", 3, 90, false}, {"f16", 1, 0, false}, {"f32", 3, 0, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char graph[500];
        const char *t = cases[i].dtype;
        JitOptions o = options(OPT_MATH_STRICT);
        o.target.sm = cases[i].sm;
        snprintf(graph, sizeof graph, text, t, t, 4 * cases[i].taps, t, cases[i].taps);
        Graph *g = parse(graph);
        cr_assert_eq(jit_run_passes(g, &o, NULL, NULL), ST_OK, "%s", fail_message());
        cr_expect_eq(strstr(print(g), "cast f32 %0") != NULL, cases[i].widened, "%d: %s", (int)i, print(g));
        cr_expect_eq(strstr(print(g), ": f32[2,16,9]") != NULL, cases[i].widened || !strcmp(t, "f32"), "%d: %s", (int)i, print(g));
    }
}

Test(passes, constants_fold_and_facts_do_not)
{
    golden("graph g(%0: f32[4]) { %1 = const f32 2 %2 = const f32 3 %3 = add %1 %2 %4 = reshape %3 groups(0:1)\n"
           "%5 = expand %4 axes(0) size(s0) %6 = mul %5 %0 return %6 }",
           "graph g(%0: f32[4]) {\n  %1 = const f32 5 : f32[]\n  %2 = reshape %1 groups(0:1) : f32[1]\n"
           "  %3 = expand %2 axes(0) size(s0) : f32[4]\n  %4 = mul %0 %3 : f32[4]\n  return %4\n}\n",
           "");
    golden("graph g() { %0 = scalar f32 2 %1 = scalar f32 3 %2 = add %0 %1 return %2 }",
           "graph g() {\n  %0 = scalar f32 2 : f32[]\n  %1 = scalar f32 3 : f32[]\n  %2 = add %0 %1 : f32[]\n  return %2\n}\n", "");
}

Test(passes, scalars_are_computed_once_and_on_the_right)
{
    golden("graph g(%0: f32[4,2]) { %1 = scalar f32 3 %2 = reshape %1 groups(0:1 0:1)\n"
           "%3 = expand %2 axes(0 1) size(s0 s1) %4 = sqrt %3 %5 = reciprocal %4 %6 = mul %5 %0 return %6 }",
           "graph g(%0: f32[4,2]) {\n  %1 = scalar f32 3 : f32[]\n  %2 = sqrt %1 : f32[]\n  %3 = reciprocal %2 : f32[]\n"
           "  %4 = reshape %3 groups(0:1 0:1) : f32[1,1]\n  %5 = expand %4 axes(0 1) size(s0 s1) : f32[4,2]\n"
           "  %6 = mul %0 %5 : f32[4,2]\n  return %6\n}\n",
           ""); /* no rsqrt: the host computes the two as the interpreter does */
}

/* A rule that asks for a scalar's value would guard it; of what the host computes none asks. */
Test(passes, scalars_of_the_host_are_not_asked_for)
{
    golden("graph g(%0: f32[4]) { %1 = scalar f32 1 %2 = scalar f32 0 %3 = mul %1 %2 %4 = pow %3 %1\n"
           "%5 = reshape %4 groups(0:1) %6 = expand %5 axes(0) size(s0) %7 = add %0 %6 return %7 }",
           "graph g(%0: f32[4]) {\n  %1 = scalar f32 1 : f32[]\n  %2 = scalar f32 0 : f32[]\n  %3 = mul %1 %2 : f32[]\n"
           "  %4 = pow %3 %1 : f32[]\n  %5 = reshape %4 groups(0:1) : f32[1]\n  %6 = expand %5 axes(0) size(s0) : f32[4]\n"
           "  %7 = add %0 %6 : f32[4]\n  return %7\n}\n",
           "");
}

Test(passes, views_compose)
{
    golden("graph g(%0: f32[2,3,4]) { %1 = permute %0 perm(1 0 2) %2 = permute %1 perm(1 0 2) return %2 }",
           "graph g(%0: f32[2,3,4]) {\n  return %0\n}\n", "");
    golden("graph g(%0: f32[2,3,4]) { %1 = permute %0 perm(1 2 0) %2 = permute %1 perm(1 2 0) return %2 }",
           "graph g(%0: f32[2,3,4]) {\n  %1 = permute %0 perm(2 0 1) : f32[4,2,3]\n  return %1\n}\n", "");
    golden("graph g(%0: f32[2,3,4]) { %1 = reshape %0 groups(2:1 1:1) %2 = reshape %1 groups(2:1)\n"
           "%3 = reshape %2 groups(1:2) size(8 3) return %3 }",
           "graph g(%0: f32[2,3,4]) {\n  %1 = reshape %0 groups(3:2) size(8 3) : f32[8,3]\n  return %1\n}\n", "");
    golden("graph g(%0: f32[2,3]) { %1 = reshape %0 groups(1:1 0:1 1:1) %2 = reshape %1 groups(1:1 1:0 1:1) return %2 }",
           "graph g(%0: f32[2,3]) {\n  return %0\n}\n", "");
    golden("graph g(%0: f32[1,3]) { %1 = reshape %0 groups(1:1 0:1 1:1) %2 = expand %1 axes(0) size(4)\n"
           "%3 = expand %2 axes(1) size(5) return %3 }",
           "graph g(%0: f32[1,3]) {\n  %1 = reshape %0 groups(1:1 0:1 1:1) : f32[1,1,3]\n"
           "  %2 = expand %1 axes(0 1) size(4 5) : f32[4,5,3]\n  return %2\n}\n",
           "");
    golden("graph g(%0: f32[16]) { %1 = slice %0 axes(0) range(1:2:7) %2 = slice %1 axes(0) range(2:2:2) return %2 }",
           "graph g(%0: f32[16]) {\n  %1 = slice %0 axes(0) range((s1=1+(s2=2*s4=2)):(s2*s5=2):2) : f32[2]\n  return %1\n}\n", "");
}

Test(passes, a_flip_of_a_flip_asks)
{
    golden("graph g(%0: f32[16]) { %1 = slice %0 axes(0) range(15:-1:16) %2 = slice %1 axes(0) range(15:-1:16) return %2 }",
           "graph g(%0: f32[16]) {\n  return %0\n}\n",
           "s1 == 15 (slice); s2 == -1 (slice); s4 == 15 (slice); s2 == -1 (slice); s5 == -1 (slice); s6 == s0 (slice)");
}

Test(passes, equal_slices_merge_with_a_guard)
{
    golden("graph g(%0: f32[16]) { %1 = slice %0 axes(0) range(0:1:8) %2 = slice %0 axes(0) range(0:1:8)\n"
           "%3 = exp %1 %4 = exp %2 %5 = add %3 %4 return %5 }",
           "graph g(%0: f32[16]) {\n  %1 = slice %0 axes(0) range(0:1:8) : f32[8]\n  %2 = exp %1 : f32[8]\n"
           "  %3 = add %2 %2 : f32[8]\n  return %3\n}\n",
           "s1 == s4 (cse); s2 == s5 (cse)");
    /* Sizes proven equal need none. */
    golden("graph g(%0: f32[16], %1: f32[1]) { %2 = expand %1 axes(0) size(16) %3 = add %0 %2 %4 = expand %1 axes(0) size(16)\n"
           "%5 = mul %3 %4 return %5 }",
           "graph g(%0: f32[16], %1: f32[1]) {\n  %2 = expand %1 axes(0) size(16) : f32[16]\n  %3 = add %0 %2 : f32[16]\n"
           "  %4 = mul %3 %2 : f32[16]\n  return %4\n}\n",
           "");
}

/* The same chain with equal scalars spelled twice: pinned where the nodes are large, left alone where they are not. */
Test(passes, equal_scalars_merge_where_it_pays)
{
    static const char chain[] = "graph g(%%0: f32[%d]) { %%1 = scalar f32 0.1 %%2 = reshape %%1 groups(0:1)\n"
                                "%%3 = expand %%2 axes(0) size(s0) %%4 = mul %%0 %%3 %%5 = scalar f32 0.1\n"
                                "%%6 = reshape %%5 groups(0:1) %%7 = expand %%6 axes(0) size(s0) %%8 = mul %%0 %%7\n"
                                "%%9 = exp %%4 %%10 = exp %%8 return %%9 %%10 }";
    for (int large = 0; large < 2; large++) {
        Graph *g = parse(arena_printf(&arena, chain, large ? 100000 : 10));
        Notes *notes = take_notes(g);
        run(g, OPT_MATH_FAST);
        cr_assert_eq(g->outputs.at[0] == g->outputs.at[1], large == 1);
        cr_assert_eq(notes->n, large ? 2 : 0);
    }
}

Test(passes, reductions)
{
    golden("graph g(%0: f32[1,8]) { %1 = reduce_sum %0 axes(0) return %1 }",
           "graph g(%0: f32[1,8]) {\n  %1 = reshape %0 groups(1:0 1:1) : f32[8]\n  return %1\n}\n", "s0 == 1 (reduce_size_one)");
    golden("graph g(%0: f32[1,8]) { %1 = reduce_sum %0 axes(0 1) return %1 }",
           "graph g(%0: f32[1,8]) {\n  %1 = reshape %0 groups(1:0 1:1) : f32[8]\n"
           "  %2 = reduce_sum %1 axes(0) : f32[]\n  return %2\n}\n",
           "s0 == 1 (reduce_size_one)");
    golden("graph g(%0: f32[1,8]) { %1 = argmax %0 axes(0) return %1 }",
           "graph g(%0: f32[1,8]) {\n  %1 = const i64 0 : i64[]\n  %2 = reshape %1 groups(0:1) : i64[1]\n"
           "  %3 = expand %2 axes(0) size(s1) : i64[8]\n  return %3\n}\n",
           "s0 == 1 (reduce_size_one)");
    golden("graph g(%0: i32[1,8]) { %1 = expand %0 axes(0) size(6) %2 = reduce_sum %1 axes(0) return %2 }",
           "graph g(%0: i32[1,8]) {\n  %1 = reshape %0 groups(1:0 1:1) : i32[8]\n  %2 = const i32 6 : i32[]\n"
           "  %3 = reshape %2 groups(0:1) : i32[1]\n  %4 = expand %3 axes(0) size(s1) : i32[8]\n"
           "  %5 = mul %1 %4 : i32[8]\n  return %5\n}\n",
           "s2 == 6 (sum_of_broadcast)");
    golden("graph g(%0: f32[1,8]) { %1 = expand %0 axes(0) size(6) %2 = reduce_max %1 axes(0 1) return %2 }",
           "graph g(%0: f32[1,8]) {\n  %1 = reshape %0 groups(1:0 1:1) : f32[8]\n"
           "  %2 = reduce_max %1 axes(0) : f32[]\n  return %2\n}\n",
           "s2 >= 1 (max_of_broadcast)");
    golden("graph g(%0: bool[1,8]) { %1 = expand %0 axes(0) size(6) %2 = reduce_any %1 axes(0) return %2 }",
           "graph g(%0: bool[1,8]) {\n  %1 = reshape %0 groups(1:0 1:1) : bool[8]\n  return %1\n}\n", "s2 >= 1 (max_of_broadcast)");
    golden("graph g(%0: f32[2,3,4]) { %1 = reduce_max %0 axes(1) %2 = reduce_max %1 axes(1) return %2 }",
           "graph g(%0: f32[2,3,4]) {\n  %1 = reduce_max %0 axes(1 2) : f32[2]\n  return %1\n}\n", "");
    golden("graph g(%0: f32[2,3,4]) { %1 = reduce_sum %0 axes(1) %2 = reduce_sum %1 axes(1) return %2 }",
           "graph g(%0: f32[2,3,4]) {\n  %1 = reduce_sum %0 axes(1) : f32[2,4]\n  %2 = reduce_sum %1 axes(1) : f32[2]\n"
           "  return %2\n}\n",
           "");
}

Test(passes, casts)
{
    static const struct {
        const char *from, *through, *to;
        bool skipped;
    } table[] = {
        /* clang-format off */
        {"f16", "f32", "f16", true},  {"f32", "f16", "f32", false}, {"i8", "i32", "i16", true},  {"i32", "i8", "i32", false},
        {"i64", "i32", "i8", true},   {"i64", "i8", "i32", false},  {"u8", "i16", "u16", true},  {"i8", "u8", "i16", false},
        {"i16", "f32", "i8", false},  {"i16", "f32", "i64", true},  {"i32", "f32", "f64", false}, {"u8", "f16", "f64", true},
        {"bool", "f16", "i8", true},  {"i8", "bool", "i8", false},  {"f32", "bool", "f64", false}, {"u16", "bf16", "f32", false},
        {"i32", "f64", "i32", true},  {"i64", "f64", "i64", false}, {"f16", "f64", "i8", true},  {"u32", "i64", "i32", true},
        /* clang-format on */
    };
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        Graph *g = parse(arena_printf(&arena, "graph g(%%0: %s[2]) { %%1 = cast %s %%0 %%2 = cast %s %%1 return %%2 }", table[k].from,
                                      table[k].through, table[k].to));
        run(g, OPT_MATH_STRICT);
        bool same = strcmp(table[k].from, table[k].to) == 0;
        uint32_t want = table[k].skipped ? (same ? 1 : 2) : 3;
        cr_expect_eq(g->nodes.n, want, "%s -> %s -> %s", table[k].from, table[k].through, table[k].to);
    }
}

/* ---- the loop ---- */

static uint32_t stages;

static void count_stage(void *user, const char *stage, const char *text)
{
    cr_assert_eq(user, &stages);
    cr_assert(strncmp(stage, "graph_", 6) == 0 && strstr(text, "return"));
    stages++;
}

Test(passes, dumps_what_changed)
{
    Graph *g = parse("graph g(%0: f32[4]) { %1 = neg %0 %2 = neg %1 return %2 }");
    JitOptions o = options(OPT_MATH_FAST);
    stages = 0;
    cr_assert_eq(jit_run_passes(g, &o, count_stage, &stages), ST_OK);
    cr_assert_eq(stages, 2, "recorded and rules, got %u", stages);
}

Test(passes, rewriting_can_be_switched_off)
{
    Graph *g = parse("graph g(%0: f32[4]) { %1 = neg %0 %2 = neg %1 %3 = exp %0 return %2 }");
    JitOptions o = options(OPT_MATH_FAST);
    o.value[OPT_REWRITE] = 0;
    cr_assert_eq(jit_run_passes(g, &o, NULL, NULL), ST_OK);
    cr_assert_str_eq(print(g), "graph g(%0: f32[4]) {\n  %1 = neg %0 : f32[4]\n  %2 = neg %1 : f32[4]\n  return %2\n}\n");
}

/* --- what leaves a loop ------------------------------------------------------------------------------------------------ */

/* exp of what the loop captures does, with the sum of it and the quotient; what depends on the carry or the step, what is cheap and what is
 * only repeated stays. */
Test(passes, what_is_the_same_in_each_step_leaves_a_loop)
{
    Graph *g = parse("graph g(%0: f32[8], %1: f32[8], %2: i64[]) {\n"
                     "%3 = loop %0 %1 %2 carries(1) xs(0) ys(0) count(9) step(%0: i64[], %1: f32[8], %2: f32[8], %3: i64[]) {\n"
                     "%4 = exp %2 %5 = reduce_sum %4 axes(0) %6 = reshape %5 groups(0:1) %7 = expand %6 axes(0) size(8) %8 = div %4 %7\n"
                     "%9 = neg %2 %10 = mul %8 %1 %11 = add %10 %9 return %11 }\n"
                     "%4 = result %3 number(0) return %4 }");
    JitOptions o = options(OPT_MATH_FAST);
    cr_assert_eq(jit_run_passes(g, &o, NULL, NULL), ST_OK, "%s", fail_message());
    cr_assert_str_eq(
        print(g),
        "graph g(%0: f32[8], %1: f32[8], %2: i64[]) {\n"
        "  %3 = exp %1 : f32[8]\n"
        "  %4 = reduce_sum %3 axes(0) : f32[]\n"
        "  %5 = reshape %4 groups(0:1) : f32[1]\n"
        "  %6 = expand %5 axes(0) size(s3=8) : f32[8]\n"
        "  %7 = div %3 %6 : f32[8]\n"
        "  %8 = loop %0 %1 %2 %7 carries(1) xs(0) ys(0) count(s2=9) step(%0: i64[], %1: f32[8], %2: f32[8], %3: i64[], %4: f32[8]) {\n"
        "    %5 = mul %4 %1 : f32[8]\n"
        "    %6 = sub %5 %2 : f32[8]\n"
        "    return %6\n"
        "  } : bool[]\n"
        "  %9 = result %8 number(0) : f32[8]\n"
        "  return %9\n"
        "}\n");
}

/* The first carry is what the condition reads, the second one what the third becomes, the fourth is for nobody; of a scan a y is, and what it is made of; of a
 * branch a result. What may fail stays. */
Test(passes, what_nobody_reads_leaves_loops_and_branches)
{
    Graph *g =
        parse("graph g(%0: i64[], %1: f32[8], %2: f32[4,8], %3: bool[]) {\n"
              "%4 = loop %0 %1 %1 %1 carries(4) xs(0) ys(0) count(9) step(%0: i64[], %1: i64[], %2: f32[8], %3: f32[8], %4: f32[8]) {\n"
              "%5 = add %1 %0 %6 = neg %2 %7 = exp %4 return %5 %6 %2 %7 } condition(%0: i64[], %1: f32[8], %2: f32[8], %3: f32[8]) {\n"
              "%4 = scalar i64 3 %5 = lt %0 %4 return %5 }\n"
              "%5 = result %4 number(2)\n"
              "%6 = loop %1 %2 carries(1) xs(1) ys(2) count(4) step(%0: i64[], %1: f32[8], %2: f32[8]) {\n"
              "%3 = add %1 %2 %4 = sin %1 %5 = cos %2 return %3 %4 %5 }\n"
              "%7 = result %6 number(2)\n"
              "%8 = cond %3 %1 number(2) then(%0: f32[8]) { %1 = exp %0 %2 = neg %0 return %1 %2 } else(%0: f32[8]) { return %0 %0 }\n"
              "%9 = result %8 number(1) return %5 %7 %9 }");
    JitOptions o = options(OPT_MATH_FAST);
    cr_assert_eq(jit_run_passes(g, &o, NULL, NULL), ST_OK, "%s", fail_message());
    cr_assert_str_eq(print(g), "graph g(%0: i64[], %1: f32[8], %2: f32[4,8], %3: bool[]) {\n"
                               "  %4 = loop %0 %1 %1 carries(3) xs(0) ys(0) count(9) step(%0: i64[], %1: i64[], %2: f32[8], %3: f32[8]) {\n"
                               "    %4 = add %1 %0 : i64[]\n"
                               "    %5 = neg %2 : f32[8]\n"
                               "    return %4 %5 %2\n"
                               "  } condition(%0: i64[], %1: f32[8], %2: f32[8]) {\n"
                               "    %3 = scalar i64 3 : i64[]\n"
                               "    %4 = lt %0 %3 : bool[]\n"
                               "    return %4\n"
                               "  } : bool[]\n"
                               "  %5 = result %4 number(2) : f32[8]\n"
                               "  %6 = loop %2 carries(0) xs(1) ys(1) count(4) step(%0: i64[], %1: f32[8]) {\n"
                               "    %2 = cos %1 : f32[8]\n"
                               "    return %2\n"
                               "  } : bool[]\n"
                               "  %7 = result %6 number(0) : f32[4,8]\n"
                               "  %8 = cond %3 %1 number(1) then(%0: f32[8]) {\n"
                               "    %1 = neg %0 : f32[8]\n"
                               "    return %1\n"
                               "  } else(%0: f32[8]) {\n"
                               "    return %0\n"
                               "  } : bool[]\n"
                               "  %9 = result %8 number(0) : f32[8]\n"
                               "  return %5 %7 %9\n"
                               "}\n");
    g = parse("graph g(%0: f32[8], %1: f32[4,1]) {\n"
              "%2 = loop %0 %1 carries(1) xs(1) ys(1) count(4) step(%0: i64[], %1: f32[8], %2: f32[1]) {\n"
              "%3 = reshape %0 groups(0:1) %4 = gather %1 %3 axis(0) %5 = neg %1 return %5 %4 }\n"
              "%3 = result %2 number(0) return %3 }");
    cr_assert_eq(jit_run_passes(g, &o, NULL, NULL), ST_OK, "%s", fail_message());
    cr_assert(strstr(print(g), "ys(1)"), "%s", print(g));
}

Test(passes, each_can_be_made_to_fail)
{
    JitOptions o = options(OPT_MATH_FAST);
    for (int id = 0; id < PASS_COUNT; id++) {
        Graph *g = parse("graph g(%0: f32[4]) { %1 = neg %0 return %1 }");
        const char *name = pass_name((PassId)id);
        cr_assert_eq(option_set("test_fail", arena_printf(&arena, "pass:%s", name)), ST_OK);
        cr_assert_eq(jit_run_passes(g, &o, NULL, NULL), ST_COMPILE);
        cr_assert(strstr(fail_message(), name), "%s", fail_message());
    }
    cr_assert_eq(option_set("test_fail", ""), ST_OK);
}

Test(passes, a_broken_graph_is_refused)
{
    Graph *g = parse("graph g(%0: f32[4]) { %1 = neg %0 return %1 }");
    JitOptions o = options(OPT_MATH_FAST);
    graph_node(g, 1)->dtype = DT_I8;
    cr_assert_eq(jit_run_passes(g, &o, NULL, NULL), ST_INTERNAL);
}

/* Random graphs stay valid, in either mode, and a second run changes nothing more. */
Test(passes, random_graphs_stay_valid)
{
    for (uint64_t seed = 0; seed < 300; seed++) {
        Graph *g = random_graph(seed + 5000, 50);
        Notes *notes = take_notes(g);
        notes->vary = seed % 3 == 0;
        Shape out[5];
        for (int k = 0; k < 5; k++)
            out[k] = shape_of(g, g->outputs.at[k]);
        JitOptions o = options(seed % 2 ? OPT_MATH_FAST : OPT_MATH_STRICT);
        notes->n = 0;
        cr_assert_eq(jit_run_passes(g, &o, NULL, NULL), ST_OK, "seed %d: %s", (int)seed, fail_message());
        for (int k = 0; k < 5; k++) {
            Shape now = shape_of(g, g->outputs.at[k]);
            cr_assert(now.dtype == out[k].dtype && now.rank == out[k].rank && memcmp(now.dim, out[k].dim, sizeof now.dim) == 0,
                      "seed %d: output %d changed its type", (int)seed, k);
        }
        arena_free(&arena);
    }
}

static bool passes_under_failure(Arena *own, jmp_buf *out, const char *text, JitOptions *o)
{
    if (setjmp(*out))
        return false;
    Graph *g;
    if (graph_parse(text, own, &g) != ST_OK)
        return false;
    return jit_run_passes(g, o, NULL, NULL) == ST_OK;
}

/* The n-th heap call fails, for every n until none does: the arena's owner gets control back, nothing leaks. */
Test(passes, memory_runs_out)
{
    const char *text = print(random_graph(77, 300));
    JitOptions o = options(OPT_MATH_STRICT);
    bool done = false;
    for (int64_t nth = 1; !done; nth++) {
        Arena own;
        jmp_buf out;
        cr_assert_lt(nth, 10000);
        arena_init(&own, &out);
        os_fail_alloc(nth, false);
        done = passes_under_failure(&own, &out, text, &o);
        os_fail_alloc(0, false);
        if (done)
            cr_assert_gt(nth, 3);
        arena_free(&own);
    }
}

/* Linear: 100,000 nodes pass in well under a second (measured 0.1 s optimised; sanitizers get more). */
Test(passes, large_graphs)
{
    Graph *g = graph_new(&arena);
    enum { N = 64 };
    Ref x = graph_add_input(g, DT_F32, 2, (int64_t[]){N, N}, NULL, (Loc){0});
    uint64_t state = 1;
    while (g->nodes.n < 100000) {
        Ref y = random_scalar_like(g, &state, x);
        static const Op ops[] = {OP_ADD, OP_MUL, OP_SUB, OP_MAXIMUM};
        Ref z = graph_ew(g, ops[pick(&state, 4)], x, y, REF_NONE, (Loc){0});
        Attr swap = {.perm = {1, 0}};
        z = graph_add(g, OP_PERMUTE, DT_F32, &z, 1, &swap, NULL, 0, (Loc){0});
        x = graph_ew(g, pick(&state, 2) ? OP_SIN : OP_RELU, z, REF_NONE, REF_NONE, (Loc){0});
        if (pick(&state, 10) == 0)
            graph_output(g, x);
    }
    graph_output(g, x);
    JitOptions o = options(OPT_MATH_FAST);
    clock_t start = clock(); /* of the processor: what else the machine does is no matter */
    cr_assert_eq(jit_run_passes(g, &o, NULL, NULL), ST_OK, "%s", fail_message());
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    cr_log_info("100,000 nodes: %.3f s", seconds);
    cr_assert_lt(seconds, 30 * KILN_TEST_SLOWER);
}
