/* Rules of one's own (kiln_rule_add): where they are applied, what is refused and how that is told, what becomes of programs made before. */
#include "api.h"

#include <stdio.h>

static void begin(void) { begin_mode(0); }

TestSuite(rules, .init = begin, .fini = end_mode);

static double sum_of(kiln_tensor *x)
{
    double total = NAN;
    cr_assert_eq(kiln_item(kiln_sum(x), &total), KILN_OK, "%s", kiln_error_message());
    return total;
}

/* sin of four zeros: 0, or 4 where the compiler takes it for cos. */
static double zeros_by_sin(void) { return sum_of(kiln_sin(F32(KILN_SHAPE(4), 0, 0, 0, 0))); }

/* --- programs made before and after ------------------------------------------------------------------------------------ */

Test(rules, no_program_made_without_it_is_used_again)
{
    kiln_stats before;
    cr_assert_eq(zeros_by_sin(), 0);
    kiln_get_stats(&before);
    OK(kiln_rule_add("sin_is_cos", "(sin x)", "(cos x)", KILN_RULE_EXACT)); /* which it is not: so one sees it */
    cr_assert_eq(zeros_by_sin(), 4);
    kiln_stats after = stats_now();
    cr_assert_eq(after.compiles, before.compiles + 1);
    OK(kiln_rule_add("other", "(tan x)", "(tanh x)", KILN_RULE_EXACT));
    cr_assert_eq(zeros_by_sin(), 4);
    OK(kiln_rule_remove("sin_is_cos"));
    cr_assert_eq(zeros_by_sin(), 0);

    /* Each set that there was is that one again. */
    OK(kiln_rule_remove("other"));
    kiln_get_stats(&before);
    cr_assert_eq(zeros_by_sin(), 0);
    OK(kiln_rule_add("sin_is_cos", "(sin x)", "(cos x)", KILN_RULE_EXACT));
    cr_assert_eq(zeros_by_sin(), 4);
    no_compile_since(&before);
    OK(kiln_rule_remove("sin_is_cos"));

    /* The same name for something else is another rule. */
    OK(kiln_rule_add("sin_is_cos", "(sin x)", "(exp x)", KILN_RULE_FLOATS));
    cr_assert_eq(zeros_by_sin(), 4);
    OK(kiln_rule_remove("sin_is_cos"));
}

static void by_sin(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_sum(kiln_sin(in[0]));
}

Test(rules, a_function_that_was_traced_before_sees_it)
{
    kiln_function *f = kiln_function_new(by_sin, 1, 1, NULL);
    kiln_tensor *x = F32(KILN_SHAPE(4), 0, 0, 0, 0), *y;
    double got;
    for (int round = 0; round < 8; round++) {
        if (round == 3)
            OK(kiln_rule_add("f", "(sin x)", "(cos x)", KILN_RULE_EXACT));
        if (round == 6)
            OK(kiln_rule_remove("f"));
        OK(kiln_function_call(f, &x, &y));
        OK(kiln_item(y, &got));
        cr_assert_eq(got, round >= 3 && round < 6 ? 4 : 0, "round %d", round);
    }
    kiln_function_free(f);
}

Test(rules, other_modes_do_not_know_them)
{
    OK(kiln_rule_add("f", "(sin x)", "(cos x)", KILN_RULE_EXACT));
    set_option("mode", "interp");
    cr_assert_eq(zeros_by_sin(), 0);
    set_option("mode", "eager");
    cr_assert_eq(zeros_by_sin(), 4); /* a graph of one op */
    set_option("mode", "jit");
    set_option("rewrite", "0");
    cr_assert_eq(zeros_by_sin(), 0);
    set_option("rewrite", "1");
    OK(kiln_rule_remove("f"));
}

/* --- where they are applied --------------------------------------------------------------------------------------------- */

Test(rules, operands_in_either_order_and_numbers_at_hand)
{
    kiln_tensor *x = F32(KILN_SHAPE(3), 1, 2, 3);
    OK(kiln_rule_add("three", "(add (mul x 3) y)", "(sub x y)", KILN_RULE_EXACT));
    kiln_tensor *y = kiln_exp(F32(KILN_SHAPE(3), 0, 0, 0));
    EXPECT(kiln_add(y, kiln_mul(3.0, x)), KILN_F32, KILN_SHAPE(3), 0, 0, 1, 2);
    EXPECT(kiln_add(y, kiln_mul(4.0, x)), KILN_F32, KILN_SHAPE(3), 0, 5, 9, 13); /* guarded */
    OK(kiln_rule_remove("three"));
}

/* kiln's own rule makes square of x * x: a rule of users' sees what was recorded. */
Test(rules, see_what_was_recorded)
{
    OK(kiln_rule_add("cube", "(mul (mul x x) x)", "(neg x)", KILN_RULE_EXACT));
    kiln_tensor *x = F32(KILN_SHAPE(2), 2, 3);
    EXPECT(kiln_mul(kiln_mul(x, x), x), KILN_F32, KILN_SHAPE(2), 0, -2, -3);
    OK(kiln_rule_remove("cube"));
}

Test(rules, conditions_by_dtype)
{
    int32_t ints[] = {2, 3};
    OK(kiln_rule_add("i", "(neg x)", "(abs x)", KILN_RULE_INT_ONLY));
    OK(kiln_rule_add("f", "(square x)", "(neg x)", KILN_RULE_EXACT | KILN_RULE_FLOATS));
    OK(kiln_rule_add("fast", "(exp x)", "(neg x)", KILN_RULE_FAST));
    OK(kiln_rule_add("finite", "(tanh x)", "(neg x)", KILN_RULE_FINITE));
    EXPECT(kiln_neg(kiln_from(KILN_I32, KILN_SHAPE(2), ints)), KILN_I32, KILN_SHAPE(2), 0, 2, 3);
    EXPECT(kiln_neg(F32(KILN_SHAPE(2), 2, 3)), KILN_F32, KILN_SHAPE(2), 0, -2, -3);
    EXPECT(kiln_square(kiln_from(KILN_I32, KILN_SHAPE(2), ints)), KILN_I32, KILN_SHAPE(2), 0, 4, 9);
    EXPECT(kiln_square(F32(KILN_SHAPE(2), 2, 3)), KILN_F32, KILN_SHAPE(2), 0, -2, -3);
    EXPECT(kiln_exp(F32(KILN_SHAPE(1), 2)), KILN_F32, KILN_SHAPE(1), 0, -2);
    EXPECT(kiln_tanh(F32(KILN_SHAPE(1), 0)), KILN_F32, KILN_SHAPE(1), 0, 0);
    set_option("math", "strict");
    EXPECT(kiln_exp(F32(KILN_SHAPE(1), 0)), KILN_F32, KILN_SHAPE(1), 0, 1);
    set_option("math", "fast");
    set_option("finite", "1");
    EXPECT(kiln_tanh(F32(KILN_SHAPE(1), 2)), KILN_F32, KILN_SHAPE(1), 0, -2);
    set_option("finite", "0");
    static const char *const all[] = {"i", "f", "fast", "finite"};
    for (int k = 0; k < 4; k++)
        OK(kiln_rule_remove(all[k]));
}

static kiln_tensor *few(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_lt(state[1], 3);
}

static void step(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_add(in[0], kiln_sin(kiln_sub(in[0], in[0])));
    out[1] = kiln_add(in[1], 1);
}

Test(rules, reach_into_bodies)
{
    kiln_tensor *state[] = {kiln_zeros(KILN_F32, KILN_SHAPE(2)), kiln_int(0)};
    OK(kiln_rule_add("f", "(sin x)", "(cos x)", KILN_RULE_EXACT));
    OK(kiln_while(few, step, 2, state, 5, state, NULL));
    EXPECT(state[0], KILN_F32, KILN_SHAPE(2), 0, 3, 3);
    OK(kiln_rule_remove("f"));
}

/* --- what is refused ------------------------------------------------------------------------------------------------------ */

Test(rules, wrong_texts_are_told_with_their_place)
{
    static const struct {
        const char *name, *pattern, *replacement;
        unsigned condition;
        const char *told;
    } cases[] = {
        {"a b", "(neg x)", "x", 0, "the name of a rule \"a b\" has ` ` in it"},
        {"", "(neg x)", "x", 0, "the name of a rule is empty"},
        {NULL, "(neg x)", "x", 0, "the name is NULL"},
        {"r", NULL, "x", 0, "the pattern is NULL"},
        {"r", "(neg x)", "x", 4, "0x4 is no condition"},
        {"r", "", "x", 0, "rule \"r\": the pattern \"\", at column 1: expected a variable (one of xyzc), a number or `(`, not the end"},
        {"r", "(mull x 1)", "x", 0, "the pattern \"(mull x 1)\", at column 2: there is no op `mull`; `mul` is near"},
        {"r", "(zzzzzzzzz x 1)", "x", 0, "at column 2: there is no op `zzzzzzzzz` (`kiln ops` lists them)"},
        {"r", "(reduce_sum x)", "x", 0, "at column 2: `reduce_sum` is no elementwise op"},
        {"r", "(mul x)", "x", 0, "at column 7: `mul` takes 2 operands, not 1"},
        {"r", "(mul x 1 2)", "x", 0, "at column 10: `mul` takes 2 operands, not more"},
        {"r", "(mul x 1", "x", 0, "at column 9: expected `)`, not the end"},
        {"r", "(mul x 1) y", "x", 0, "at column 11: expected the end, not `y`"},
        {"r", "(mul x w)", "x", 0, "at column 8: expected a variable (one of xyzc), a number or `(`, not `w`"},
        {"r", "(mul x 1.2.3)", "x", 0, "at column 8: expected a variable"},
        {"r", "()", "x", 0, "at column 2: expected an op, not `)`"},
        {"r", "x", "(add x 0)", 0, "a pattern begins with an op"},
        {"r", "(neg y)", "y", 0, "a pattern has an x"},
        {"r", "(mul x 1)", "y", 0, "the replacement \"y\" has a y, which the pattern \"(mul x 1)\" has not"},
        {"r", "(mul x 1)", "(mul x", 0, "the replacement \"(mul x\", at column 7"},
        {"r", "(neg (cast x))", "x", 0, "cast has no place in a rule"},
        {"r", "(mul x 1)", "(eq x x)", 0, "for no dtype that it is for are its pattern and its replacement of one dtype"},
        {"r", "(relu x)", "(mul x 0.5)", KILN_RULE_INTS, "for no dtype that it is for"},
        {"r", "(mul x y)", "(mul x y)", 0, "rule \"r\" has no end"},
        {"r", "(add (neg 1) x)", "x", 0, "would never change anything: what it looks for is `add"},
        {"r", "(add x y)", "(add y x)", 0, "rule \"r\" has no end"},
        {"r", "(neg x)", "(neg (neg (neg x)))", 0, "has no end"},
        {"r", "(add x 0)", "(add (add x 0) 0)", 0, "has no end"},
        {"r", "(mul x y)", "(add (mul y x) (mul (neg x) y))", 0, "has no end"}, /* twice as many each time */
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        fails_with(kiln_rule_add(cases[k].name, cases[k].pattern, cases[k].replacement, cases[k].condition), KILN_INVALID, cases[k].told);
    fails_with(kiln_rule_add("r", "x", "x", 0), KILN_INVALID, "(test_rules.c:");
    char deep[600] = "";
    for (int k = 0; k < 40; k++)
        strcat(deep, "(neg ");
    fails_with(kiln_rule_add("r", deep, "x", 0), KILN_INVALID, "the expression is too deep");
    memset(deep, ' ', sizeof deep - 1);
    fails_with(kiln_rule_add("r", deep, "x", 0), KILN_INVALID, "the pattern is longer than 511 characters");
    fails_with(kiln_rule_add("r", "(add (add (add (add (add (add (add (add (add x y) y) y) y) y) y) y) y) y)", "x", 0), KILN_INVALID,
               "more than 8 ops that commute");
    fails_with(kiln_rule_remove("r"), KILN_INVALID, "there is no rule \"r\"");
    cr_assert_eq(zeros_by_sin(), 0);
}

Test(rules, names_are_taken_and_given_back)
{
    OK(kiln_rule_add("mul_one", "(mul x 1)", "x", KILN_RULE_EXACT));
    fails_with(kiln_rule_add("mul_one", "(div x 1)", "x", KILN_RULE_EXACT), KILN_INVALID,
               "there is one of this name already: rule mul_one (mul x 1) -> x exact any");
    OK(kiln_rule_remove("mul_one"));
    OK(kiln_rule_add("mul_one", "(div x 1)", "x", KILN_RULE_EXACT));
    OK(kiln_rule_remove("mul_one"));
}

Test(rules, two_that_turn_each_other_back)
{
    OK(kiln_rule_add("there", "(exp x)", "(exp2 x)", KILN_RULE_EXACT));
    fails_with(kiln_rule_add("back", "(exp2 x)", "(exp x)", KILN_RULE_EXACT), KILN_INVALID, "rule \"back\" has no end");
    OK(kiln_rule_remove("there"));
    OK(kiln_rule_add("back", "(exp2 x)", "(exp x)", KILN_RULE_EXACT));
    OK(kiln_rule_remove("back"));
}

Test(rules, there_may_be_256)
{
    char name[16], pattern[32];
    for (int k = 0; k < 256; k++) {
        snprintf(name, sizeof name, "r%d", k);
        snprintf(pattern, sizeof pattern, "(mul x %d)", k + 1000);
        OK(kiln_rule_add(name, pattern, "x", KILN_RULE_EXACT));
    }
    fails_with(kiln_rule_add("more", "(exp x)", "x", 0), KILN_INVALID, "one more than 256");
    EXPECT(kiln_mul(F32(KILN_SHAPE(1), 2), 1255.0), KILN_F32, KILN_SHAPE(1), 0, 2);
    for (int k = 0; k < 256; k++) {
        snprintf(name, sizeof name, "r%d", k);
        OK(kiln_rule_remove(name));
    }
    EXPECT(kiln_mul(F32(KILN_SHAPE(1), 2), 1255.0), KILN_F32, KILN_SHAPE(1), 0, 2510);
}

static char said[1 << 16];
static kiln_log_buffer log_text = {said, sizeof said, 0};

/* Each application is right, but a product of twenty sums has a million terms: it is stopped, told, and what there is then computed. */
Test(rules, a_graph_does_not_grow_without_end)
{
    kiln_set_log_sink(kiln_log_into, &log_text);
    set_option("log", "passes");
    OK(kiln_rule_add("spread", "(mul (add x y) z)", "(add (mul x z) (mul y z))", KILN_RULE_FAST));
    kiln_tensor *p = kiln_ones(KILN_F64, KILN_SHAPE(4));
    for (int k = 0; k < 20; k++) {
        float e = 0.5f + (float)k;
        kiln_tensor *x = kiln_cast(F32(KILN_SHAPE(4), e, e, e, e), KILN_F64);
        p = kiln_mul(kiln_add(x, kiln_sqrt(x)), p);
    }
    double wanted = 4;
    for (int k = 0; k < 20; k++)
        wanted *= 0.5 + k + sqrt(0.5 + k);
    double got = sum_of(p);
    cr_assert(fabs(got / wanted - 1) < 1e-12, "%g, not %g", got, wanted);
    kiln_set_log_sink(NULL, NULL);
    cr_assert(strstr(said, "rule \"spread\" is applied without end"), "%s", said);
    OK(kiln_rule_remove("spread"));
}

/* --- tried on numbers --------------------------------------------------------------------------------------------------------- */

Test(rules, are_tried_on_numbers_when_asked)
{
    set_option("check", "rules");
    fails_with(kiln_rule_add("r", "(add x 0)", "x", KILN_RULE_EXACT), KILN_INVALID,
               "rule \"r\" does not keep its word (exact): for f16 x = -0, `(add x 0)` is 0 and `x` is -0");
    OK(kiln_rule_add("r", "(add x 0)", "x", KILN_RULE_INT_ONLY));
    fails_with(kiln_rule_add("s", "(mul x y)", "(add x y)", KILN_RULE_INT_ONLY), KILN_INVALID, "does not keep its word (int_only)");
    fails_with(kiln_rule_add("s", "(relu (abs x))", "(abs x)", KILN_RULE_EXACT), KILN_INVALID, "for i8 x = -128");
    OK(kiln_rule_add("s", "(relu (abs x))", "(abs x)", KILN_RULE_EXACT | KILN_RULE_FLOATS));
    fails_with(kiln_rule_add("t", "(where (not c) x y)", "(where c x y)", KILN_RULE_EXACT), KILN_INVALID, "c = ");
    OK(kiln_rule_add("t", "(where (not c) x y)", "(where c y x)", KILN_RULE_EXACT));
    OK(kiln_rule_add("u", "(pow x 3)", "(mul (square x) x)", KILN_RULE_FAST));
    fails_with(kiln_rule_add("v", "(tanh x)", "x", KILN_RULE_FAST), KILN_INVALID, "does not keep its word (fast)");
    fails_with(kiln_rule_add("v", "(exp (log x))", "x", KILN_RULE_FAST), KILN_INVALID, "does not keep its word (fast)"); /* a NaN is none */
    OK(kiln_rule_add("v", "(exp (log x))", "x", KILN_RULE_FINITE));
    fails_with(kiln_rule_add("w", "(sub x y)", "(add x (neg z))", KILN_RULE_EXACT), KILN_INVALID, "has a z");
    fails_with(kiln_rule_add("w", "(lt x y)", "(not (ge x y))", KILN_RULE_EXACT), KILN_INVALID, "nan");
    OK(kiln_rule_add("w", "(lt x y)", "(not (ge x y))", KILN_RULE_INT_ONLY));
    set_option("check", "off");
    OK(kiln_rule_add("x", "(sin x)", "x", KILN_RULE_EXACT)); /* it is believed */
    static const char all[] = "rstuvwx";
    for (int k = 0; all[k]; k++)
        OK(kiln_rule_remove((char[]){all[k], 0}));
}
