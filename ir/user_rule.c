/*
 * Rules of users (ir/user_rule.h): reading one, and trying it before it is let in.
 *
 * The values: pattern and replacement are outputs of one graph over inputs x, y, z, c, and the interpreter runs it. EXACT and INT_ONLY must agree in
 * every bit (any NaN is any NaN) on pairs of special values and on random bits, in both modes of mathematics; FAST and FINITE rows of floats
 * within 16 roundings for values from 0.5 to 4, and FAST ones must have the pattern's NaN, infinities and zeros.
 */
#include "ir/user_rule.h"
#include "ir/base/os.h"
#include "ir/infer.h"
#include "ir/interp.h"
#include "ir/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { POOL = 256, CONDITION = 3, POINTS = 4096, ENOUGH = 32 };

static const char *const soundness_words[] = {
    [SOUND_EXACT] = "exact", [SOUND_INT_ONLY] = "int_only", [SOUND_FAST] = "fast", [SOUND_FINITE] = "finite"};
static const char *const dtypes_words[] = {
    [RULE_ANY] = "any",     [RULE_FLOATS] = "floats",      [RULE_WIDE_FLOATS] = "wide floats", [RULE_INTS_ONLY] = "ints",
    [RULE_UINTS] = "uints", [RULE_SIGNED] = "signed ints", [RULE_NEGATIVE] = "signed",         [RULE_BOOLS] = "bools"};

/* ---- reading ---- */

Status user_name_check(const char *what, const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-");
    if (!*name)
        return fail(ST_INVALID, "%s is empty", what);
    if (name[n])
        return fail(ST_INVALID, "%s \"%.64s\" has `%.1s` in it: letters, digits, _ . and - are valid", what, name, name + n);
    return n < USER_NAME ? ST_OK : fail(ST_INVALID, "%s \"%.64s...\" is longer than %d letters", what, name, USER_NAME - 1);
}

static Status read_text(UserRule *made, PatternPool *pool, const char *what, const char *text, PatternUse *use, uint16_t *root)
{
    char reason[256];
    if (strlen(text) >= USER_RULE_TEXT)
        return fail(ST_INVALID, "rule \"%s\": the %s is longer than %d characters", made->name, what, USER_RULE_TEXT - 1);
    if (pattern_read(pool, text, rule_variable_letters, use, root) == ST_OK)
        return ST_OK;
    snprintf(reason, sizeof reason, "%s", fail_message());
    return fail(ST_INVALID, "rule \"%s\": the %s \"%s\", %s", made->name, what, text, reason);
}

static Status refuse(const UserRule *made, const char *why) { return fail(ST_INVALID, "rule \"%s\": %s", made->name, why); }

static Status read_rule(UserRule *made, const char *pattern, const char *replacement)
{
    PatternPool pool = {made->pool, 0, POOL};
    PatternRule *rule = &made->rule;
    PatternUse use, used;
    TRY(read_text(made, &pool, "pattern", pattern, &use, &rule->pattern));
    TRY(read_text(made, &pool, "replacement", replacement, &used, &rule->replacement));
    rule->n_swaps = use.n_swaps;
    rule->vars = use.vars;
    snprintf(made->pattern, sizeof made->pattern, "%s", pattern);
    snprintf(made->replacement, sizeof made->replacement, "%s", replacement);
    if (made->pool[rule->pattern].kind != PAT_OP)
        return refuse(made, "a pattern begins with an op, `(`");
    if (!(use.vars & (1u << 0 | 1u << CONDITION)))
        return refuse(made, "a pattern has an x, whose dtype decides (or a c, of bools)");
    for (int v = 0; v < RULE_VARIABLES; v++)
        if (used.vars >> v & 1 && !(use.vars >> v & 1))
            return fail(ST_INVALID, "rule \"%s\": the replacement \"%s\" has a %c, which the pattern \"%s\" has not", made->name,
                        replacement, rule_variable_letters[v], pattern);
    for (uint16_t k = 0; k < pool.n; k++)
        if (pool.at[k].kind == PAT_OP && pool.at[k].op == OP_CAST)
            return refuse(made, "cast has no place in a rule, which cannot say to which dtype: write a pass (kiln_pass_register)");
    return ST_OK;
}

Status user_rule_new(const char *name, const char *pattern, const char *replacement, Soundness soundness, RuleDTypes dtypes, UserRule **out)
{
    *out = NULL;
    TRY(user_name_check("the name of a rule", name));
    UserRule *made = os_calloc(1, sizeof *made + POOL * sizeof *made->pool);
    if (!made)
        return fail(ST_OUT_OF_MEMORY, "no memory for a rule");
    snprintf(made->name, sizeof made->name, "%s", name);
    snprintf(made->text, sizeof made->text, "rule %s %s -> %s %s %s", name, pattern, replacement, soundness_words[soundness],
             dtypes_words[dtypes]);
    made->rule = (PatternRule){
        .name = made->name, .text = made->text, .pool = made->pool, .soundness = (uint8_t)soundness, .dtypes = (uint8_t)dtypes};
    Status status = read_rule(made, pattern, replacement);
    if (status == ST_OK)
        *out = made;
    else
        os_free(made);
    return status;
}

/* ---- a graph of one rule ---- */

/* The dtype of pool[index] for x, y, z of `dtype` and c bool; DT_COUNT: some op or number refuses. literal: of a number that stands there. */
static DType dtype_for(const Pat *pool, uint16_t index, DType dtype, DType literal)
{
    const Pat *p = &pool[index];
    DType in[3];
    if (p->kind == PAT_VAR)
        return p->var == CONDITION ? DT_BOOL : dtype;
    if (p->kind == PAT_LITERAL)
        return pattern_literal_exists(literal, p->value) ? literal : DT_COUNT;
    for (int k = 0; k < p->n_in; k++) {
        in[k] = dtype_for(pool, p->in[k], dtype, p->op == OP_WHERE && k == 0 ? DT_BOOL : dtype);
        if (in[k] == DT_COUNT)
            return DT_COUNT;
    }
    return infer_dtype((Op)p->op, p->n_in, in, DT_COUNT);
}

/* Can the rule be applied to this dtype? *result: that of its pattern. */
static bool is_for(const PatternRule *rule, const Rewriter *w, DType dtype, DType *result)
{
    if (!(rule->vars & 1) && dtype != DT_BOOL)
        return false;
    *result = dtype_for(rule->pool, rule->pattern, dtype, dtype);
    return *result != DT_COUNT && rule_sound(w, rule->dtypes, rule->soundness, dtype) &&
           dtype_for(rule->pool, rule->replacement, dtype, *result) == *result;
}

/* A graph of the pattern over inputs of n elements. */
static Graph *graph_of(Arena *arena, const PatternRule *rule, DType dtype, int64_t n, Ref vars[RULE_VARIABLES])
{
    Graph *g = graph_new(arena);
    for (int v = 0; v < RULE_VARIABLES; v++)
        vars[v] = rule->vars >> v & 1 ? graph_add_input(g, v == CONDITION ? DT_BOOL : dtype, 1, &n, NULL, (Loc){0}) : REF_NONE;
    graph_output(g, pattern_instance(g, rule->pool, rule->pattern, vars, DT_COUNT));
    return g;
}

/* ---- does it end? ---- */

typedef struct EndCheck {
    const PatternRule *const *rules;
    uint32_t n;
} EndCheck;

static const char *node_text(const Graph *g, Ref r)
{
    Str out;
    str_init(&out, g->arena);
    node_print(g, r, &out);
    const char *equals = strstr(out.text, "= ");
    return equals ? equals + 2 : out.text;
}

static Status check_end(Arena *arena, void *user)
{
    const EndCheck *check = user;
    const PatternRule *rule = check->rules[check->n - 1];
    DType result;
    bool some = false;
    const char *spelling = NULL;
    for (int t = 0; t < DT_COUNT; t++) {
        Ref vars[RULE_VARIABLES];
        uint32_t *hits = ARENA_ARRAY(arena, uint32_t, check->n);
        Rewriter w = {.math = MATH_FAST,
                      .finite = true,
                      .families = FAMILY_CANON | FAMILY_FOLD | FAMILY_USER,
                      .user = {.rules = check->rules, .n = check->n, .hits = hits, .left = ENOUGH}};
        if (!is_for(rule, &w, (DType)t, &result))
            continue;
        w.g = graph_of(arena, rule, (DType)t, 4, vars);
        TRY(graph_rewrite(&w));
        TRY(graph_verify(w.g));
        if (w.user.endless)
            return fail(ST_INVALID, "rule \"%s\" has no end: what it makes of its own pattern fits a rule again%s%s%s, and so on",
                        rule->name, strcmp(w.user.endless, rule->name) != 0 ? ", \"" : "",
                        strcmp(w.user.endless, rule->name) != 0 ? w.user.endless : "", strcmp(w.user.endless, rule->name) != 0 ? "\"" : "");
        uint32_t any = 0;
        for (uint32_t k = 0; k < check->n; k++)
            any += hits[k];
        some |= any > 0;
        spelling = node_text(w.g, w.g->outputs.at[0]);
    }
    if (!spelling)
        return fail(ST_INVALID, "rule \"%s\": for no dtype that it is for are its pattern and its replacement of one dtype", rule->name);
    return some ? ST_OK
                : fail(ST_INVALID, "rule \"%s\" would never change anything: what it looks for is `%s` by then, in kiln's own spelling",
                       rule->name, spelling);
}

Status user_rule_check_end(const PatternRule *const *rules, uint32_t n)
{
    EndCheck check = {rules, n};
    return with_arena(check_end, &check);
}

/* ---- does it keep its word? ---- */

uint32_t rule_special_values(DType t, uint64_t *out)
{
    static const double floats[] = {0.0,  -0.0,  1,    -1,    0.5,   -0.5,  2,      -2,     3,     -3,     0.1,      -0.1,      1.5,
                                    -1.5, 2.5,   3.7,  -3.7,  7,     100,   -100,   1000,   65504, 1e-3,   6e-5,     6e-8,      -6e-8,
                                    1e10, -1e10, 3e38, -3e38, 1e-38, 1e-45, -1e-45, 1e-300, 1e300, 5e-324, INFINITY, -INFINITY, NAN};
    uint32_t n = 0;
    if (t == DT_BOOL) {
        out[n++] = 0;
        out[n++] = 1;
    } else if (dtype_is_float(t)) {
        for (size_t k = 0; k < sizeof floats / sizeof *floats; k++)
            out[n++] = scalar_from_double(t, floats[k]);
    } else {
        uint32_t bits = (uint32_t)dtype_bytes(t) * 8;
        uint64_t all = bits == 64 ? ~UINT64_C(0) : (UINT64_C(1) << bits) - 1, top = UINT64_C(1) << (bits - 1);
        const uint64_t values[] = {0, 1, 2, 3, 5, 7, 10, 63, 64, all, all - 1, all - 2, top, top - 1, top + 1, all / 3};
        for (size_t k = 0; k < sizeof values / sizeof *values; k++)
            out[n++] = values[k] & all;
    }
    return n;
}

static uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

typedef struct Values {
    const UserRule *rule;
    DType dtype, result;
    MathMode math;
    bool bitwise;  /* else: close */
    bool moderate; /* values from 0.5 to 4 */
} Values;

/* Point i of variable v: every pair of special values of the first two variables, then random ones. */
static uint64_t value_at(const Values *c, DType t, int v, uint32_t i, const uint64_t *special, uint32_t n, uint64_t *state)
{
    uint64_t bits = dtype_bytes(t) == 8 ? draw(state) : draw(state) & ((UINT64_C(1) << 8 * dtype_bytes(t)) - 1);
    if (t == DT_BOOL)
        return bits & 1;
    if (c->moderate)
        return scalar_from_double(t, 0.5 + (double)(bits % 3584) / 1024);
    if (i < n * n)
        return special[v == 0 ? i % n : v == 1 ? i / n : bits % n];
    return bits;
}

static bool agree(const Values *c, uint64_t a, uint64_t b)
{
    DType t = c->result;
    static const double epsilon[DT_COUNT] = {[DT_F16] = 0x1p-11, [DT_BF16] = 0x1p-8, [DT_F32] = 0x1p-24, [DT_F64] = 0x1p-53};
    if (a == b || !dtype_is_float(t))
        return a == b;
    double x = scalar_to_double(t, a), y = scalar_to_double(t, b);
    if (isnan(x) || c->bitwise)
        return isnan(x) && isnan(y);
    if (c->moderate)
        return isfinite(x) ? fabs(x - y) <= 16 * epsilon[t] * fabs(x) : x == y;
    return isinf(x) || x == 0 ? x == y && signbit(x) == signbit(y) : isfinite(y);
}

/* "f32 x = 1.5, y = nan" */
static Status counterexample(const Values *c, void *const *data, uint32_t i, uint64_t a, uint64_t b, Arena *arena)
{
    Str out;
    str_init(&out, arena);
    str_printf(&out, "rule \"%s\" does not keep its word (%s): for %s", c->rule->name, soundness_words[c->rule->rule.soundness],
               dtype_name(c->dtype));
    for (int v = 0; v < RULE_VARIABLES; v++) {
        DType t = v == CONDITION ? DT_BOOL : c->dtype;
        if (!data[v])
            continue;
        str_printf(&out, " %c = ", rule_variable_letters[v]);
        text_print_scalar(t, scalar_load(t, (const char *)data[v] + i * dtype_bytes(t)), &out);
        str_printf(&out, ",");
    }
    str_printf(&out, " `%s` is ", c->rule->pattern);
    text_print_scalar(c->result, a, &out);
    str_printf(&out, " and `%s` is ", c->rule->replacement);
    text_print_scalar(c->result, b, &out);
    return fail(ST_INVALID, "%s", out.text);
}

static Status check_values(Arena *arena, void *user)
{
    const Values *c = user;
    const PatternRule *rule = &c->rule->rule;
    uint64_t special[RULE_SPECIALS], state = 1;
    uint32_t n = rule_special_values(c->dtype, special);
    Ref vars[RULE_VARIABLES];
    void *data[RULE_VARIABLES] = {NULL}, *out[2];
    const void *in[RULE_VARIABLES];
    uint32_t n_in = 0;
    Graph *g = graph_of(arena, rule, c->dtype, POINTS, vars);
    graph_output(g, pattern_instance(g, rule->pool, rule->replacement, vars, c->result));
    for (int v = 0; v < RULE_VARIABLES; v++) {
        DType t = v == CONDITION ? DT_BOOL : c->dtype;
        if (vars[v] == REF_NONE)
            continue;
        in[n_in++] = data[v] = arena_alloc(arena, POINTS * dtype_bytes(t));
        for (uint32_t i = 0; i < POINTS; i++)
            scalar_store(t, value_at(c, t, v, i, special, n, &state), (char *)data[v] + i * dtype_bytes(t));
    }
    size_t bytes = dtype_bytes(c->result);
    for (int k = 0; k < 2; k++)
        out[k] = arena_alloc(arena, POINTS * bytes);
    const Node *bad = NULL;
    TRY(interp_run(g, INTERP_NATIVE, c->math, ORDER_HOST, in, out, &bad));
    int64_t elements[2] = {node_hint_numel(g, g->outputs.at[0]), node_hint_numel(g, g->outputs.at[1])};
    for (uint32_t i = 0; i < POINTS; i++) {
        uint64_t a = scalar_load(c->result, (char *)out[0] + i % (uint64_t)elements[0] * bytes);
        uint64_t b = scalar_load(c->result, (char *)out[1] + i % (uint64_t)elements[1] * bytes);
        if (!agree(c, a, b))
            return counterexample(c, data, i, a, b, arena);
    }
    return ST_OK;
}

Status user_rule_check_values(const UserRule *made)
{
    const PatternRule *rule = &made->rule;
    for (int t = 0; t < DT_COUNT; t++) {
        for (MathMode math = 0; math < MATH_MODES; math++) {
            Rewriter w = {.math = math, .finite = true};
            Values c = {.rule = made, .dtype = (DType)t, .math = math};
            if (!is_for(rule, &w, c.dtype, &c.result))
                continue;
            c.bitwise = rule->soundness < SOUND_FAST || !dtype_is_float(c.dtype);
            if (rule->soundness != SOUND_FINITE || c.bitwise)
                TRY(with_arena(check_values, &c));
            c.moderate = true;
            if (!c.bitwise)
                TRY(with_arena(check_values, &c));
        }
    }
    return ST_OK;
}
