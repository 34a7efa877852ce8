/*
 * Every row of ir/rules.def against the interpreter.
 *
 * For a RULE the pattern itself is built as a graph over inputs that hold a grid of special values (every pair where there
 * are two variables, samples of triples), in every dtype that the row's column allows; the interpreter runs it before and
 * after that one row was applied. EXACT and INT_ONLY rows must agree in every bit (any NaN equals any NaN); FAST rows
 * must agree exactly on integers, and NEARER rows come near to the function that they mean, where their patterns do not. A REWRITE is tried on the texts listed here. That the harness would notice a wrong
 * column is tested too: rows that are not exact, applied to floats regardless, must be caught.
 */
#include "ir/interp.h"
#include "ir/rules.h"
#include "ir/user_rule.h"
#include "tests/unit/graphs.h"

#include <math.h>
#include <stdio.h>

TestSuite(rules, .init = open_arena, .fini = close_arena);

static bool is_nan(DType t, uint64_t bits) { return dtype_is_float(t) && isnan(scalar_to_double(t, bits)); }

/* ---- running ---- */

/* The first output's values; the graph's inputs are `data`. */
static uint64_t *interpret(const Graph *g, MathMode math, const void *const *data, int64_t *numel)
{
    void **out = arena_alloc(&arena, sizeof *out * g->outputs.n);
    for (uint32_t k = 0; k < g->outputs.n; k++) {
        DType t = (DType)graph_node(g, g->outputs.at[k])->dtype;
        out[k] = arena_alloc(&arena, dtype_bytes(t) * (size_t)node_hint_numel(g, g->outputs.at[k]) + 8);
    }
    const Node *bad = NULL;
    cr_assert_eq(interp_run(g, INTERP_NATIVE, math, ORDER_HOST, data, out, &bad), ST_OK, "%s\n%s", fail_message(), print(g));
    DType t = (DType)graph_node(g, g->outputs.at[0])->dtype;
    *numel = node_hint_numel(g, g->outputs.at[0]);
    uint64_t *bits = arena_alloc(&arena, sizeof *bits * (size_t)*numel);
    for (int64_t k = 0; k < *numel; k++)
        bits[k] = scalar_load(t, (char *)out[0] + k * (int64_t)dtype_bytes(t));
    return bits;
}

/* How many values differ before and after row `rule` alone; -1 if it was not applied. */
static int64_t differences(Graph *g, RuleId rule, MathMode math, bool unsound, const void *const *data, char *first)
{
    int64_t n, m, wrong = 0;
    const uint64_t *before = interpret(g, math, data, &n);
    const char *text = print(g);
    DType t = (DType)graph_node(g, g->outputs.at[0])->dtype;
    Rewriter w = {.g = g,
                  .math = math,
                  .finite = true,
                  .families = FAMILY_CANON | FAMILY_FOLD | FAMILY_RULES | FAMILY_WIDEN,
                  .unsound = unsound,
                  .only = rule + 1u};
    cr_assert_eq(graph_rewrite(&w), ST_OK, "%s", fail_message());
    cr_assert_eq(graph_verify(g), ST_OK, "%s: %s", rule_info[rule].name, fail_message());
    if (!w.hits[rule])
        return -1;
    const uint64_t *after = interpret(g, math, data, &m);
    cr_assert_eq(n, m);
    for (int64_t k = 0; k < n; k++) {
        if (before[k] == after[k] || (is_nan(t, before[k]) && is_nan(t, after[k])))
            continue;
        if (wrong++ == 0)
            snprintf(first, 2000, "%s %s: element %d was %llx, is %llx\n%s%s", rule_info[rule].name, dtype_name(t), (int)k,
                     (unsigned long long)before[k], (unsigned long long)after[k], text, print(g));
    }
    return wrong;
}

enum { MAX_POINTS = 4096 };

/* The row's pattern over a grid of special values of `dtype`. */
static int64_t try_pattern(RuleId rule, DType dtype, MathMode math, bool unsound, char *first)
{
    static const uint64_t bools[2] = {0, 1};
    uint64_t grid[RULE_SPECIALS];
    uint32_t n = rule_special_values(dtype, grid), vars = rule_variables(rule), total = 1, size[4] = {0};
    for (int v = 0; v < 4; v++) {
        if (!(vars >> v & 1))
            continue;
        size[v] = v == 3 ? 2 : n;
        total *= size[v];
    }
    uint32_t points = total < MAX_POINTS ? total : MAX_POINTS;
    Graph *g = graph_new(&arena);
    Ref refs[4] = {REF_NONE, REF_NONE, REF_NONE, REF_NONE};
    const void *data[4];
    uint32_t inputs = 0;
    uint64_t state = 99;
    for (int v = 0; v < 4; v++) {
        if (!size[v])
            continue;
        DType t = v == 3 ? DT_BOOL : dtype;
        refs[v] = graph_add_input(g, t, 1, (int64_t[]){points}, NULL, (Loc){0});
        char *at = arena_alloc(&arena, points * 8u);
        data[inputs++] = at;
        uint32_t below = 1;
        for (int u = 0; u < v; u++)
            below *= size[u] ? size[u] : 1;
        for (uint32_t k = 0; k < points; k++) {
            uint32_t index = total == points ? k / below % size[v] : pick(&state, size[v]);
            scalar_store(t, v == 3 ? bools[index] : grid[index], at + k * dtype_bytes(t));
        }
    }
    graph_output(g, rule_instance(g, rule, refs));
    return differences(g, rule, math, unsound, data, first);
}

/* The dtype of the pattern at *at for x, y, z of `dtype`, c bool and literals of what their place asks for; DT_COUNT: refused. */
static DType pattern_dtype(const char **at, DType dtype, bool condition)
{
    while (**at == ' ')
        ++*at;
    if (**at != '(') {
        bool c = **at == 'c' || (condition && !strchr("xyz", **at));
        *at += strcspn(*at, " )");
        return c ? DT_BOOL : dtype;
    }
    size_t len = strcspn(++*at, " )");
    Op op = op_parse(*at, len);
    DType in[3] = {dtype, dtype, dtype};
    *at += len;
    for (int k = 0; k < op_info[op].arity; k++)
        in[k] = pattern_dtype(at, dtype, op == OP_WHERE && k == 0);
    ++*at;
    return infer_dtype(op, (uint32_t)op_info[op].arity, in, DT_COUNT);
}

static bool pattern_takes(RuleId rule, DType dtype)
{
    const char *at = rule_info[rule].pattern;
    return pattern_dtype(&at, dtype, false) != DT_COUNT;
}

Test(rules, every_pattern_keeps_its_word)
{
    char first[2000];
    for (int k = 0; k < RULE_COUNT; k++) {
        RuleId rule = (RuleId)k;
        const RuleInfo *info = &rule_info[k];
        int applied = 0;
        if (!info->pattern)
            continue;
        for (int t = 0; t < DT_COUNT; t++) {
            DType dtype = (DType)t;
            for (MathMode math = 0; math < MATH_MODES; math++) {
                Rewriter w = {.math = math, .finite = true};
                bool x = rule_variables(rule) & 1;
                if (!rule_allows(&w, rule, x ? dtype : DT_BOOL) || !pattern_takes(rule, dtype) || (!x && dtype != DT_BOOL))
                    continue;
                int64_t wrong = try_pattern(rule, dtype, math, false, first);
                applied += wrong >= 0;
                if (info->soundness < SOUND_FAST || !dtype_is_float(dtype))
                    cr_expect_leq(wrong, 0, "%s", first);
                arena_free(&arena);
            }
        }
        cr_expect(applied, "%s was never applied", info->name);
    }
}

/* Applied to floats against their column, these rows must be caught by the same comparison. */
Test(rules, a_wrong_column_would_be_noticed)
{
    static const RuleId wrong[] = {RULE_add_zero,    RULE_sub_self,         RULE_zero_sub,     RULE_neg_sub, RULE_mul_zero,
                                   RULE_div_self,    RULE_reciprocal_twice, RULE_floordiv_one, RULE_rem_one, RULE_pow_half,
                                   RULE_square_sqrt, RULE_exp_log,          RULE_log_exp,      RULE_max_min, RULE_min_max,
                                   RULE_eq_self,     RULE_le_self,          RULE_not_lt,       RULE_not_ge};
    char first[2000];
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        int64_t seen = 0;
        for (int t = DT_F16; t < DT_COUNT; t++) {
            int64_t n = try_pattern(wrong[k], (DType)t, MATH_STRICT, true, first);
            seen += n > 0 ? n : 0;
            arena_free(&arena);
        }
        cr_expect_gt(seen, 0, "%s on floats looks exact: is its column too strict?", rule_info[wrong[k]].name);
    }
}

/* FAST and FINITE rows on floats: for values of moderate size the replacement is right up to a few roundings. */
Test(rules, fast_rows_are_close)
{
    static const double epsilon[DT_COUNT] = {[DT_F16] = 0x1p-11, [DT_BF16] = 0x1p-8, [DT_F32] = 0x1p-24, [DT_F64] = 0x1p-53};
    enum { POINTS = 64 };
    for (int k = 0; k < RULE_COUNT; k++) {
        const RuleInfo *info = &rule_info[k];
        for (int t = DT_F16; info->pattern && (info->soundness == SOUND_FAST || info->soundness == SOUND_FINITE) && t < DT_COUNT; t++) {
            DType dtype = (DType)t;
            if (!rule_allows(&(Rewriter){.math = MATH_FAST, .finite = true}, (RuleId)k, dtype))
                continue;
            const void *data[4];
            Graph *g = graph_new(&arena);
            Ref refs[4] = {REF_NONE, REF_NONE, REF_NONE, REF_NONE};
            unsigned variables = rule_variables((RuleId)k);
            cr_assert_lt(variables, 8u, "%s: a FAST row of a bool needs another grid", info->name);
            for (int v = 0; variables >> v; v++) { /* those of y and z in another order */
                char *x = arena_alloc(&arena, POINTS * 8);
                cr_assert(variables >> v & 1);
                refs[v] = graph_add_input(g, dtype, 1, (int64_t[]){POINTS}, NULL, (Loc){0});
                for (int i = 0; i < POINTS; i++)
                    scalar_store(dtype, scalar_from_double(dtype, 0.5 + i * (1 + 6 * v) % POINTS * 0.055), x + i * (int)dtype_bytes(dtype));
                data[v] = x;
            }
            graph_output(g, rule_instance(g, (RuleId)k, refs));
            int64_t n, m;
            const uint64_t *before = interpret(g, MATH_FAST, data, &n);
            Rewriter w = {.g = g, .math = MATH_FAST, .finite = true, .families = FAMILY_RULES, .only = (uint32_t)k + 1};
            cr_assert_eq(graph_rewrite(&w), ST_OK);
            cr_assert_eq(w.hits[k], 1, "%s", info->name);
            const uint64_t *after = interpret(g, MATH_FAST, data, &m);
            for (int i = 0; i < POINTS; i++) {
                double a = scalar_to_double(dtype, before[i]), b = scalar_to_double(dtype, after[i]);
                cr_expect_leq(fabs(a - b), 16 * epsilon[t] * fabs(a), "%s %s: %g became %g", info->name, dtype_name(dtype), a, b);
            }
            arena_free(&arena);
        }
    }
}

/* ---- functions spelled out ---- */

static long double one_plus_erf(long double x) { return erfcl(-x); }
static long double half_plus_erf(long double x) { return erfcl(-x) / 2; }
static long double logistic(long double x) { return 1 / (1 + expl(-x)); }
static long double silu(long double x) { return x / (1 + expl(-x)); }

static long double gelu_factor(long double x) { return erfcl(-x * sqrtl(0.5L)); }

static const struct {
    RuleId rule;
    long double (*exact)(long double);
    double most;  /* error of what it becomes, and ... */
    double worse; /* ... of the pattern somewhere, at least, in f32; in units in the last place */
} spelled[] = {
    {RULE_one_plus_erf, one_plus_erf, 4.5, 1e6},  {RULE_half_plus_erf, half_plus_erf, 4.5, 1e6}, {RULE_one_minus_erf, erfcl, 4.5, 1e6},
    {RULE_gelu_quotient, gelu_factor, 1600, 1e6}, /* half a unit of an argument of -26 is 1400 */
    {RULE_gelu_product, gelu_factor, 1600, 1e6},  {RULE_logistic, logistic, 4.5, 1e5},           {RULE_silu_product, silu, 4.5, 3},
    {RULE_silu_quotient, silu, 4.5, 1e5}};

/* In units in the last place of the exact result, one of the least normal where it is less. */
static double units(DType t, double value, long double exact)
{
    static const int digits[DT_COUNT] = {[DT_F16] = 11, [DT_BF16] = 8, [DT_F32] = 24, [DT_F64] = 53},
                     least[DT_COUNT] = {[DT_F16] = -13, [DT_BF16] = -125, [DT_F32] = -125, [DT_F64] = -1021};
    int e;
    (void)frexpl(exact, &e);
    return (double)(fabsl(value - exact) / ldexpl(1, (e < least[t] ? least[t] : e) - digits[t]));
}

/* The largest error of the graph's values; those that are to be no numbers are. */
static double worst(const Graph *g, DType t, const void *x, long double (*exact)(long double), const char *name)
{
    int64_t n;
    const uint64_t *bits = interpret(g, MATH_FAST, &x, &n);
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        double at = scalar_to_double(t, scalar_load(t, (const char *)x + i * (int64_t)dtype_bytes(t))), y = scalar_to_double(t, bits[i]);
        long double e = exact(at);
        if (isnan(e) || isinf(e))
            cr_expect(isnan(e) ? isnan(y) : y == e, "%s %s at %g: %g", name, dtype_name(t), at, y);
        else if (units(t, y, e) > most)
            most = units(t, y, e);
    }
    return most;
}

/* Over all of the range and at what is special: nearer than the ops as written, and as near as the function itself (ir/accuracy.def). */
Test(rules, functions_spelled_out_are_near)
{
    enum { POINTS = 4001 };
    for (size_t k = 0; k < sizeof spelled / sizeof *spelled; k++)
        for (int t = DT_F16; t < DT_COUNT; t++) {
            DType dtype = (DType)t;
            const char *name = rule_info[spelled[k].rule].name;
            Graph *g = graph_new(&arena);
            Ref refs[4] = {graph_add_input(g, dtype, 1, (int64_t[]){POINTS}, NULL, (Loc){0}), REF_NONE, REF_NONE, REF_NONE};
            char *x = arena_alloc(&arena, POINTS * 8);
            static const double special[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, 1e30, -1e30, 1e-30, -1e-30, 6e4, -6e4};
            for (int i = 0; i < POINTS; i++) {
                bool any = (size_t)i < sizeof special / sizeof *special;
                double v = any ? special[i] : (i - POINTS / 2) * (i % 2 ? 0.005 : 0.055);
                scalar_store(dtype, scalar_from_double(dtype, v), x + i * (int)dtype_bytes(dtype));
            }
            graph_output(g, rule_instance(g, spelled[k].rule, refs));
            double before = dtype == DT_F32 ? worst(g, dtype, x, spelled[k].exact, name) : HUGE_VAL;
            Rewriter w = {.g = g, .math = MATH_FAST, .families = FAMILY_RULES, .only = spelled[k].rule + 1u};
            cr_assert_eq(graph_rewrite(&w), ST_OK);
            cr_assert_eq(w.hits[spelled[k].rule], 1, "%s %s", name, dtype_name(dtype));
            double after = worst(g, dtype, x, spelled[k].exact, name);
            cr_expect_leq(after, spelled[k].most, "%s %s: %g units", name, dtype_name(dtype), after);
            cr_expect_geq(before, spelled[k].worse, "%s: as written it is off by %g units only", name, before);
            arena_free(&arena);
        }
    for (int k = 0; k < RULE_COUNT; k++) {
        bool listed = rule_info[k].soundness != SOUND_NEARER;
        for (size_t i = 0; i < sizeof spelled / sizeof *spelled; i++)
            listed |= spelled[i].rule == (RuleId)k;
        cr_expect(listed, "%s is not tried", rule_info[k].name);
    }
}

/* What is read elsewhere too would be computed beside the function: then the ops stay as they were written. In strict mode they always do. */
Test(rules, functions_spelled_out_are_alone)
{
    static const struct {
        const char *text;
        bool applied;
    } cases[] = {
        {"graph g(%0: f32[9]) { %1 = erf %0 %2 = const f32 1 %3 = reshape %2 groups(0:1) %4 = expand %3 axes(0) size(9) %5 = add %4 %1 "
         "return %5 }",
         true},
        {"graph g(%0: f32[9]) { %1 = erf %0 %2 = const f32 1 %3 = reshape %2 groups(0:1) %4 = expand %3 axes(0) size(9) %5 = add %4 %1 "
         "return %5 %1 }",
         false},
        {"graph g(%0: f32[9]) { %1 = sigmoid %0 %2 = mul %1 %0 return %2 }", true},
        {"graph g(%0: f32[9]) { %1 = sigmoid %0 %2 = mul %1 %0 %3 = square %1 return %2 %3 }", false},
        {"graph g(%0: f32[9]) { %1 = sigmoid %0 %2 = mul %1 %0 %3 = square %1 return %2 }", true}, /* of what nothing needs */
        {"graph g(%0: f32[9]) { %1 = neg %0 %2 = exp %1 %3 = const f32 1 %4 = reshape %3 groups(0:1) %5 = expand %4 axes(0) size(9) "
         "%6 = add %2 %5 %7 = reciprocal %6 return %7 }",
         true},
        {"graph g(%0: f32[9]) { %1 = neg %0 %2 = exp %1 %3 = const f32 1 %4 = reshape %3 groups(0:1) %5 = expand %4 axes(0) size(9) "
         "%6 = add %2 %5 %7 = reciprocal %6 %8 = sin %2 return %7 %8 }",
         false},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (MathMode math = 0; math < MATH_MODES; math++) {
            Graph *g = parse(cases[k].text);
            uint32_t hits = 0;
            Rewriter w = {.g = g, .math = math, .families = FAMILY_CANON | FAMILY_FOLD | FAMILY_RULES};
            cr_assert_eq(graph_rewrite(&w), ST_OK, "%s", fail_message());
            for (size_t i = 0; i < sizeof spelled / sizeof *spelled; i++)
                hits += w.hits[spelled[i].rule];
            cr_expect_eq(hits, cases[k].applied && math == MATH_FAST, "%s became\n%s", cases[k].text, print(g));
            arena_free(&arena);
        }
}

/* ---- C rewrites ---- */

typedef struct Sample {
    RuleId rule;
    const char *text;   /* "DT" stands for each dtype listed */
    const char *dtypes; /* separated by spaces */
} Sample;

#define FLOATS4 "f16 bf16 f32 f64"
#define NUMBERS "i8 i16 i32 i64 u8 u16 u32 u64 f16 bf16 f32 f64"
#define ALL "bool " NUMBERS

static const Sample samples[] = {
    {RULE_lift_scalars, "graph g(%0: DT[]) { %1 = reshape %0 groups(0:1) %2 = expand %1 axes(0) size(5) %3 = neg %2 return %3 }", NUMBERS},
    {RULE_lift_scalars, "graph g(%0: DT[], %1: DT[]) { %2 = reshape %0 groups(0:1) %3 = reshape %1 groups(0:1) %4 = add %2 %3 return %4 }",
     NUMBERS},
    {RULE_constant_right,
     "graph g(%0: DT[20]) { %1 = scalar DT 3 %2 = reshape %1 groups(0:1) %3 = expand %2 axes(0) size(s0) %4 = mul %3 %0 return %4 }",
     NUMBERS},
    {RULE_cast_same, "graph g(%0: DT[20]) { %1 = cast DT %0 return %1 }", ALL},
    {RULE_view_of_scalar,
     "graph g(%0: DT[]) { %1 = reshape %0 groups(0:1 0:1) %2 = expand %1 axes(0 1) size(3 4) %3 = permute %2 perm(1 0) %4 = reshape %3 "
     "groups(2:1) %5 = slice %4 axes(0) range(1:2:4) return %5 }",
     ALL},
    {RULE_permute, "graph g(%0: DT[2,3,4]) { %1 = permute %0 perm(2 0 1) %2 = permute %1 perm(0 2 1) return %2 }", ALL},
    {RULE_reshape,
     "graph g(%0: DT[4,1,6]) { %1 = reshape %0 groups(1:2 1:0 1:1) size(2 2) %2 = reshape %1 groups(1:1 2:2) size(3 4) %3 = reshape %2 "
     "groups(0:1 2:1 1:1) return %3 }",
     ALL},
    {RULE_reshape, "graph g(%0: DT[4,6]) { %1 = reshape %0 groups(1:1 1:1) return %1 }", ALL},
    {RULE_reshape, "graph g(%0: DT[0,3]) { %1 = reshape %0 groups(2:2) size(2 0) %2 = reshape %1 groups(2:1) return %2 }", ALL},
    {RULE_expand, "graph g(%0: DT[1,3,1]) { %1 = expand %0 axes(0) size(2) %2 = expand %1 axes(2) size(4) return %2 }", ALL},
    {RULE_expand, "graph g(%0: DT[1,3,1]) { %1 = expand %0 axes(0) size(#1) return %1 }", ALL},
    {RULE_slice, "graph g(%0: DT[9,4]) { %1 = slice %0 axes(0 1) range(8:-2:4 1:1:3) %2 = slice %1 axes(0) range(3:-1:3) return %2 }", ALL},
    {RULE_slice, "graph g(%0: DT[1,6]) { %1 = expand %0 axes(0) size(5) %2 = slice %1 axes(0 1) range(1:2:2 5:-1:6) return %2 }", ALL},
    {RULE_slice, "graph g(%0: DT[9]) { %1 = slice %0 axes(0) range(8:-1:9) %2 = slice %1 axes(0) range(8:-1:9) return %2 }", ALL},
    {RULE_slice, "graph g(%0: DT[9]) { %1 = slice %0 axes(0) range(#0:#1:s0) return %1 }", ALL},
    {RULE_pad_nothing, "graph g(%0: DT[3,4], %1: DT[]) { %2 = pad %0 %1 axes(0 1) by(#0:#0 1:2) return %2 }", ALL},
    {RULE_pad_nothing, "graph g(%0: DT[3,4], %1: DT[]) { %2 = pad %0 %1 axes(0) by(#0:#0) return %2 }", ALL},
    {RULE_concat_one, "graph g(%0: DT[3,4]) { %1 = concat %0 axis(1) return %1 }", ALL},
    {RULE_concat_one, "graph g(%0: DT[3,4]) { %1 = slice %0 axes(1) range(0:1:#0) %2 = concat %0 %1 %0 axis(1) return %2 }", ALL},
    {RULE_fold, "graph g() { %0 = const DT 3 %1 = const DT 5 %2 = sub %0 %1 return %2 }", NUMBERS},
    {RULE_fold, "graph g() { %0 = const f32 3.7 %1 = cast DT %0 return %1 }", ALL},
    {RULE_reduce_nothing, "graph g(%0: DT[3,4]) { %1 = reduce_sum %0 axes() return %1 }", NUMBERS},
    {RULE_reduce_nothing, "graph g(%0: DT[3,4]) { %1 = argmax %0 axes() return %1 }", ALL},
    {RULE_reduce_size_one, "graph g(%0: DT[39,1]) { %1 = reduce_sum %0 axes(1) return %1 }", NUMBERS},
    {RULE_reduce_size_one, "graph g(%0: DT[39,1]) { %1 = reduce_prod %0 axes(1) return %1 }", NUMBERS},
    {RULE_reduce_size_one, "graph g(%0: DT[39,1]) { %1 = reduce_max %0 axes(1) return %1 }", NUMBERS},
    {RULE_reduce_size_one, "graph g(%0: DT[39,1]) { %1 = reduce_min %0 axes(1) return %1 }", NUMBERS},
    {RULE_reduce_size_one, "graph g(%0: DT[39,1]) { %1 = argmin %0 axes(1) return %1 }", ALL},
    {RULE_reduce_size_one, "graph g(%0: DT[3,1,13]) { %1 = reduce_sum %0 axes(1 2) return %1 }", NUMBERS},
    {RULE_reduce_size_one, "graph g(%0: DT[3,1,13]) { %1 = argmax %0 axes(0 1) return %1 }", ALL},
    {RULE_reduce_size_one, "graph g(%0: bool[3,1]) { %1 = reduce_any %0 axes(1) return %1 }", "bool"},
    {RULE_reduce_size_one, "graph g(%0: bool[0,1]) { %1 = reduce_all %0 axes(0 1) return %1 }", "bool"},
    {RULE_max_of_broadcast, "graph g(%0: DT[39,1]) { %1 = expand %0 axes(1) size(5) %2 = reduce_max %1 axes(1) return %2 }", NUMBERS},
    {RULE_max_of_broadcast, "graph g(%0: DT[13,1,3]) { %1 = expand %0 axes(1) size(5) %2 = reduce_min %1 axes(1 2) return %2 }", NUMBERS},
    {RULE_max_of_broadcast, "graph g(%0: bool[2,1]) { %1 = expand %0 axes(1) size(5) %2 = reduce_all %1 axes(1) return %2 }", "bool"},
    {RULE_sum_of_broadcast, "graph g(%0: DT[16,1]) { %1 = expand %0 axes(1) size(300) %2 = reduce_sum %1 axes(1) return %2 }",
     "i8 i16 i32 i64 u8 u16 u32 u64"},
    {RULE_max_of_max, "graph g(%0: DT[3,13,2]) { %1 = reduce_max %0 axes(1) %2 = reduce_max %1 axes(1) return %2 }", NUMBERS},
    {RULE_max_of_max, "graph g(%0: bool[3,1,2]) { %1 = reduce_any %0 axes(0) %2 = reduce_any %1 axes(0 1) return %2 }", "bool"},
    {RULE_widen_windows,
     "graph g(%0: DT[2,4,9], %1: DT[4,3]) { %2 = scalar DT 0 %3 = pad %0 %2 axes(2) by(1:1) %4 = window %3 axis(2) by(1:1:9:3) "
     "%5 = reshape %4 groups(2:1 1:1 1:1) %6 = permute %5 perm(2 0 1) %7 = reshape %6 groups(1:1 2:1) %8 = matmul %1 %7 return %8 }",
     "f16 bf16"},
    {RULE_widen_windows,
     "graph g(%0: DT[2,9], %1: DT[18,4]) { %2 = scalar DT 1 %3 = pad %0 %2 axes(1) by(2:0) %4 = window %3 axis(1) by(2:1:5:3) "
     "%5 = permute %4 perm(1 0 2) %6 = reshape %5 groups(1:1 2:1) %7 = slice %1 axes(0) range(0:3:6) %8 = matmul %6 %7 return %8 }",
     "f16 bf16"},
    {RULE_sum_of_sum, "graph g(%0: DT[3,13,2]) { %1 = reduce_sum %0 axes(1) %2 = reduce_sum %1 axes(0) return %2 }",
     "i8 i16 i32 i64 u8 u16 u32 u64"},
    {RULE_sum_of_sum, "graph g(%0: DT[3,13,2]) { %1 = reduce_prod %0 axes(0) %2 = reduce_prod %1 axes(1) return %2 }",
     "i8 i16 i32 i64 u8 u16 u32 u64"},
    {RULE_cast_of_cast, "graph g(%0: f16[39]) { %1 = cast f32 %0 %2 = cast DT %1 return %2 }", ALL},
    {RULE_cast_of_cast, "graph g(%0: i8[39]) { %1 = cast i32 %0 %2 = cast DT %1 return %2 }", ALL},
    {RULE_cast_of_cast, "graph g(%0: bool[39]) { %1 = cast bf16 %0 %2 = cast DT %1 return %2 }", ALL},
    {RULE_cast_of_cast, "graph g(%0: u64[39]) { %1 = cast i32 %0 %2 = cast DT %1 return %2 }", "i8 i16 i32 u8 u16 u32"},
    {RULE_cast_of_cast, "graph g(%0: i16[39]) { %1 = cast f32 %0 %2 = cast DT %1 return %2 }", "i16 i32 i64 f16 bf16 f32 f64 bool"},
    {RULE_cast_of_cast, "graph g(%0: u8[39]) { %1 = cast bf16 %0 %2 = cast DT %1 return %2 }", "u8 i16 u16 i32 f16 f32 bool"},
    {RULE_idempotent, "graph g(%0: DT[39]) { %1 = relu %0 %2 = relu %1 return %2 }", NUMBERS},
    {RULE_idempotent, "graph g(%0: DT[39]) { %1 = abs %0 %2 = abs %1 return %2 }", NUMBERS},
    {RULE_idempotent, "graph g(%0: DT[39]) { %1 = sign %0 %2 = sign %1 return %2 }", NUMBERS},
    {RULE_idempotent, "graph g(%0: DT[39]) { %1 = floor %0 %2 = ceil %1 return %2 }", NUMBERS},
    {RULE_idempotent, "graph g(%0: DT[39]) { %1 = round %0 %2 = trunc %1 return %2 }", NUMBERS},
    {RULE_idempotent, "graph g(%0: DT[39]) { %1 = trunc %0 %2 = floor %1 return %2 }", NUMBERS},
    {RULE_idempotent, "graph g(%0: DT[39]) { %1 = ceil %0 %2 = round %1 return %2 }", NUMBERS},
    {RULE_scalars_together,
     "graph g(%0: DT[39]) { %1 = scalar DT 100 %2 = reshape %1 groups(0:1) %3 = expand %2 axes(0) size(s0) %4 = scalar DT 77 %5 = reshape "
     "%4 groups(0:1) %6 = expand %5 axes(0) size(s0) %7 = mul %0 %3 %8 = mul %7 %6 return %8 }",
     "i8 i16 i32 i64 u8 u16 u32 u64"},
    {RULE_bounds_together,
     "graph g(%0: DT[39]) { %1 = scalar DT 2 %2 = reshape %1 groups(0:1) %3 = expand %2 axes(0) size(s0) %4 = scalar DT 7 %5 = reshape %4 "
     "groups(0:1) %6 = expand %5 axes(0) size(s0) %7 = maximum %0 %3 %8 = maximum %7 %6 return %8 }",
     NUMBERS},
    {RULE_bounds_together,
     "graph g(%0: DT[39]) { %1 = scalar DT -0 %2 = reshape %1 groups(0:1) %3 = expand %2 axes(0) size(s0) %4 = scalar DT nan %5 = reshape "
     "%4 groups(0:1) %6 = expand %5 axes(0) size(s0) %7 = minimum %0 %3 %8 = minimum %7 %6 return %8 }",
     FLOATS4},
};

/* The text with every "DT" replaced. */
static const char *with_dtype(const char *text, const char *dtype)
{
    Str out;
    str_init(&out, &arena);
    for (const char *at; (at = strstr(text, "DT")); text = at + 2) {
        str_add(&out, text, (size_t)(at - text));
        str_printf(&out, "%s", dtype);
    }
    str_printf(&out, "%s", text);
    return out.text;
}

/* Inputs filled with special values, round and round. */
static const void **fill(const Graph *g)
{
    const void **data = arena_alloc(&arena, sizeof *data * (g->inputs.n + 1));
    for (uint32_t k = 0; k < g->inputs.n; k++) {
        DType t = (DType)graph_node(g, g->inputs.at[k])->dtype;
        int64_t numel = node_hint_numel(g, g->inputs.at[k]);
        uint64_t grid[RULE_SPECIALS];
        uint32_t n = rule_special_values(t, grid);
        char *at = arena_alloc(&arena, (size_t)numel * 8);
        for (int64_t i = 0; i < numel; i++)
            scalar_store(t, grid[(uint64_t)(i * 7 + k) % n], at + i * (int64_t)dtype_bytes(t));
        data[k] = at;
    }
    return data;
}

Test(rules, every_rewrite_keeps_its_word)
{
    char first[2000], name[16];
    bool tried[RULE_COUNT] = {false};
    for (size_t k = 0; k < sizeof samples / sizeof *samples; k++) {
        const Sample *s = &samples[k];
        tried[s->rule] = true;
        for (const char *at = s->dtypes; *at; at += strcspn(at, " "), at += *at == ' ') {
            snprintf(name, sizeof name, "%.*s", (int)strcspn(at, " "), at);
            Graph *g = parse(with_dtype(s->text, name));
            const void **data = fill(g);
            int64_t wrong = differences(g, s->rule, MATH_STRICT, false, data, first);
            cr_expect_neq(wrong, -1, "%s was not applied to %s", rule_info[s->rule].name, with_dtype(s->text, name));
            cr_expect_leq(wrong, 0, "%s", first);
            arena_free(&arena);
        }
    }
    for (int k = 0; k < RULE_COUNT; k++)
        cr_expect(tried[k] || rule_info[k].pattern || rule_info[k].family == FAMILY_PAIRS, "%s has no sample", rule_info[k].name);
}

/* Windows of padded images by pairs of channels: the same sums, which are exact here, in another order. Text before and behind what differs. */
Test(rules, pair_channels_keeps_exact_sums)
{
    static const struct {
        const char *text;
        bool applied;
    } cases[] = {
        /* one axis; two, with a stride, and a slice of what is padded; groups of channels as a batch axis */
        {"graph g(%0: bf16[2,4,9], %1: bf16[2,16,12]) { %2 = scalar bf16 0 %3 = pad %0 %2 axes(2) by(1:1) %4 = window %3 axis(2) "
         "by(1:1:9:3) "
         "%5 = permute %4 perm(0 1 3 2) %6 = reshape %5 groups(1:1 2:1 1:1) %7 = matmul %1 %6 return %7 }",
         true},
        {"graph g(%0: bf16[2,6,9,17], %1: bf16[2,17,36]) { %2 = scalar bf16 0 %3 = pad %0 %2 axes(2 3) by(1:0 2:2) %4 = slice %3 axes(3) "
         "range(1:1:19) %5 = window %4 axis(3) by(2:1:9:3) %6 = window %5 axis(2) by(1:2:8:2) %7 = permute %6 perm(0 1 3 5 2 4) "
         "%8 = reshape %7 groups(1:1 3:1 2:1) %9 = matmul %1 %8 return %9 }",
         true},
        {"graph g(%0: bf16[6,2,9], %1: bf16[2,3,16,6]) { %2 = scalar bf16 1 %3 = pad %0 %2 axes(2) by(2:0) %4 = window %3 axis(2) "
         "by(1:1:9:3) "
         "%5 = permute %4 perm(0 1 3 2) %6 = reshape %5 groups(1:2 2:1 1:1) size(2 3) %7 = matmul %1 %6 return %7 }",
         true},
        /* another dtype; an odd number of channels; few outputs; no padding; places that lie apart */
        {"graph g(%0: f32[2,4,9], %1: f32[2,16,12]) { %2 = scalar f32 0 %3 = pad %0 %2 axes(2) by(1:1) %4 = window %3 axis(2) by(1:1:9:3) "
         "%5 = permute %4 perm(0 1 3 2) %6 = reshape %5 groups(1:1 2:1 1:1) %7 = matmul %1 %6 return %7 }",
         false},
        {"graph g(%0: bf16[2,3,9], %1: bf16[2,16,9]) { %2 = scalar bf16 0 %3 = pad %0 %2 axes(2) by(1:1) %4 = window %3 axis(2) "
         "by(1:1:9:3) "
         "%5 = permute %4 perm(0 1 3 2) %6 = reshape %5 groups(1:1 2:1 1:1) %7 = matmul %1 %6 return %7 }",
         false},
        {"graph g(%0: bf16[2,4,9], %1: bf16[2,15,12]) { %2 = scalar bf16 0 %3 = pad %0 %2 axes(2) by(1:1) %4 = window %3 axis(2) "
         "by(1:1:9:3) "
         "%5 = permute %4 perm(0 1 3 2) %6 = reshape %5 groups(1:1 2:1 1:1) %7 = matmul %1 %6 return %7 }",
         false},
        {"graph g(%0: bf16[2,4,9], %1: bf16[2,16,12]) { %2 = window %0 axis(2) by(1:1:7:3) %3 = permute %2 perm(0 1 3 2) "
         "%4 = reshape %3 groups(1:1 2:1 1:1) %5 = matmul %1 %4 return %5 }",
         false},
        {"graph g(%0: bf16[2,9,4], %1: bf16[2,16,12]) { %2 = scalar bf16 0 %3 = permute %0 perm(0 2 1) %4 = relu %3 %5 = pad %4 %2 axes(2) "
         "by(1:1) %6 = window %5 axis(2) by(1:1:9:3) %7 = permute %6 perm(0 1 3 2) %8 = reshape %7 groups(1:1 2:1 1:1) %9 = matmul %1 %8 "
         "return %9 }",
         false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int math = 0; math < 2; math++) {
            Graph *g = parse(cases[i].text);
            const void *data[2];
            for (uint32_t k = 0; k < 2; k++) {
                DType t = (DType)graph_node(g, g->inputs.at[k])->dtype;
                int64_t numel = node_hint_numel(g, g->inputs.at[k]);
                char *to = arena_alloc(&arena, (size_t)numel * 4);
                for (int64_t at = 0; at < numel; at++)
                    scalar_store(t, scalar_from_double(t, (double)(at * 7 % 11) - 4), to + at * (int64_t)dtype_bytes(t));
                data[k] = to;
            }
            int64_t n, m;
            const uint64_t *before = interpret(g, MATH_FAST, data, &n);
            Rewriter w = {.g = g, .math = (MathMode)math, .families = FAMILY_CANON | FAMILY_FOLD | FAMILY_RULES | FAMILY_PAIRS};
            cr_assert_eq(graph_rewrite(&w), ST_OK, "%s", fail_message());
            cr_assert_eq(graph_verify(g), ST_OK, "%d: %s", (int)i, fail_message());
            cr_expect_eq(w.hits[RULE_pair_channels], cases[i].applied && math == MATH_FAST, "%d: %s", (int)i, print(g));
            const uint64_t *after = interpret(g, MATH_FAST, data, &m);
            cr_assert(n == m && !memcmp(before, after, sizeof *before * (size_t)n), "%d: %s", (int)i, print(g));
            arena_free(&arena);
        }
}

/* FAST for floats: right up to rounding. */
Test(rules, sum_of_broadcast_is_close)
{
    static const char *const dtypes[] = {"f16", "bf16", "f32", "f64"};
    for (int k = 0; k < 4; k++) {
        Graph *g =
            parse(with_dtype("graph g(%0: DT[3,1]) { %1 = expand %0 axes(1) size(5) %2 = reduce_sum %1 axes(1) return %2 }", dtypes[k]));
        DType t = (DType)graph_node(g, 0)->dtype;
        char data[24];
        for (int i = 0; i < 3; i++)
            scalar_store(t, scalar_from_double(t, 1.25 * i - 1), data + i * (int)dtype_bytes(t));
        const void *in = data;
        Rewriter w = {.g = g, .math = MATH_FAST, .families = FAMILY_CANON | FAMILY_FOLD | FAMILY_RULES};
        cr_assert_eq(graph_rewrite(&w), ST_OK);
        cr_assert_eq(w.hits[RULE_sum_of_broadcast], 1);
        int64_t n;
        uint64_t *bits = interpret(g, MATH_FAST, &in, &n);
        for (int i = 0; i < 3; i++)
            cr_assert_float_eq(scalar_to_double(t, bits[i]), 5 * (1.25 * i - 1), 1e-6, "%s", dtypes[k]);
    }
}

/* Everything at once, strictly: random graphs give the same bits before and after. */
Test(rules, random_graphs_keep_their_values)
{
    uint32_t hits[RULE_COUNT] = {0};
    for (uint64_t seed = 0; seed < 400; seed++) {
        Graph *g = random_graph(seed + 9000, 40);
        const void **data = fill(g);
        const char *text = print(g);
        DType t = (DType)graph_node(g, g->outputs.at[0])->dtype;
        int64_t n, m;
        const uint64_t *before = interpret(g, MATH_STRICT, data, &n);
        Rewriter w = {.g = g, .math = MATH_STRICT, .families = FAMILY_CANON | FAMILY_FOLD | FAMILY_RULES | FAMILY_MERGE};
        cr_assert_eq(graph_rewrite(&w), ST_OK, "seed %d: %s", (int)seed, fail_message());
        cr_assert_eq(graph_verify(g), ST_OK, "seed %d: %s", (int)seed, fail_message());
        const uint64_t *after = interpret(g, MATH_STRICT, data, &m);
        for (int64_t k = 0; k < n; k++)
            cr_assert(before[k] == after[k] || (is_nan(t, before[k]) && is_nan(t, after[k])),
                      "seed %d, element %d: %llx became %llx\n%s\n%s", (int)seed, (int)k, (unsigned long long)before[k],
                      (unsigned long long)after[k], text, print(g));
        for (int k = 0; k < RULE_COUNT; k++)
            hits[k] += w.hits[k];
        arena_free(&arena);
    }
    uint32_t distinct = 0;
    for (int k = 0; k < RULE_COUNT; k++)
        distinct += hits[k] > 0;
    cr_assert_gt(distinct, 15u, "only %u rows were met", distinct);
}

/* The default mode never loses a NaN, an infinity or the sign of a zero: only rounding may differ. */
Test(rules, fast_rows_keep_special_values)
{
    static const double special[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, -2.0, 1e30, 1e-30};
    enum { N = sizeof special / sizeof *special };
    for (int k = 0; k < RULE_COUNT; k++) {
        const RuleInfo *info = &rule_info[k];
        if (!info->pattern || (info->soundness != SOUND_FAST && info->soundness != SOUND_NEARER))
            continue;
        double x[N];
        const void *data = x;
        memcpy(x, special, sizeof x);
        Graph *g = graph_new(&arena);
        Ref refs[4] = {graph_add_input(g, DT_F64, 1, (int64_t[]){N}, NULL, (Loc){0}), REF_NONE, REF_NONE, REF_NONE};
        graph_output(g, rule_instance(g, (RuleId)k, refs));
        int64_t n, m;
        const uint64_t *before = interpret(g, MATH_FAST, &data, &n);
        Rewriter w = {.g = g, .math = MATH_FAST, .families = FAMILY_RULES, .only = (uint32_t)k + 1};
        cr_assert_eq(graph_rewrite(&w), ST_OK);
        cr_assert_eq(w.hits[k], 1, "%s", info->name);
        const uint64_t *after = interpret(g, MATH_FAST, &data, &m);
        for (int i = 0; i < N; i++) {
            double a = scalar_to_double(DT_F64, before[i]), b = scalar_to_double(DT_F64, after[i]);
            bool same = isnan(a) ? isnan(b) : isinf(a) || a == 0 ? a == b && signbit(a) == signbit(b) : isfinite(b);
            cr_expect(same, "%s at %g: %g became %g", info->name, special[i], a, b);
        }
        arena_free(&arena);
    }
}
