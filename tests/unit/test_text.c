/* The text form: golden texts, messages with places, round trips of random graphs, damaged texts. */
#include "ir/text.h"
#include "tests/unit/graphs.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>

TestSuite(text, .init = open_arena, .fini = close_arena);

/* Text that prints as it was written. */
static const char every_op[] = "graph g(%0: f32[64,512], %1: f32[512] strides(-1), %2: i64[] constant, %3: bool[3,0]) {\n"
                               "  %4 = reduce_sum %0 axes(1) : f32[64]\n"
                               "  %5 = slice %1 axes(0) range(0:2:256) : f32[256]\n"
                               "  %6 = scalar f32 0.1 : f32[]\n"
                               "  %7 = const f16 -inf : f16[]\n"
                               "  %8 = reshape %6 groups(0:1 0:1) : f32[1,1]\n"
                               "  %9 = expand %8 axes(0 1) size(s0 s1) : f32[64,512]\n"
                               "  %10 = mul %0 %9 : f32[64,512]\n"
                               "  %11 = reshape %10 groups(2:1) : f32[32768]\n"
                               "  %12 = reshape %11 groups(1:2) size(512 64) : f32[512,64]\n"
                               "  %13 = matmul %10 %12 : f32[64,64]\n"
                               "  %14 = cast f16 %13 : f16[64,64]\n"
                               "  %15 = pad %14 %7 axes(1) by(3:#4) : f16[64,71]\n"
                               "  %16 = concat %15 %15 axis(1) : f16[64,142]\n"
                               "  %17 = reshape %5 groups(1:1 0:1) : f32[256,1]\n"
                               "  %18 = expand %17 axes(1) size(((s0+s1)*2)) : f32[256,1152]\n"
                               "  %19 = argsort %18 axis(0) descending : i64[256,1152]\n"
                               "  %20 = argsort %18 axis(1) : i64[256,1152]\n"
                               "  %21 = gather %18 %19 axis(0) : f32[256,1152]\n"
                               "  %22 = scatter %18 %19 %21 axis(1) mode(max) : f32[256,1152]\n"
                               "  %23 = permute %22 perm(1 0) : f32[1152,256]\n"
                               "  %24 = iota 7 : i64[7]\n"
                               "  %25 = input u8[3]\n"
                               "  %26 = argmin %22 axes(0 1) : i64[]\n"
                               "  %27 = cumsum %24 axis(0) : i64[7]\n"
                               "  %28 = not %3 : bool[3,0]\n"
                               "  %29 = where %28 %3 %28 : bool[3,0]\n"
                               "  return %4 %23 %25 %26 %27 %29 %29\n"
                               "}\n";

Test(text, prints_as_it_was_written)
{
    /* iota's length is a list like every other */
    char *want = arena_strdup(&arena, every_op), *iota = strstr(want, "iota 7 :");
    char *fixed = arena_printf(&arena, "%.*siota size(7)%s", (int)(iota - want), want, iota + 6);
    Graph *g = parse(fixed);
    cr_assert_eq(graph_verify(g), ST_OK, "%s", fail_message());
    cr_assert_str_eq(print(g), fixed);
}

/* Bodies have nodes of their own, and sizes and facts of the whole graph. */
Test(text, bodies_print_as_they_were_written)
{
    static const char whole[] = "graph g(%0: f32[8,4], %1: f32[4], %2: bool[]) {\n"
                                "  %3 = loop %1 %0 carries(1) xs(1) ys(1) reverse count(8) step(%0: i64[], %1: f32[4], %2: f32[4]) {\n"
                                "    %3 = slice %2 axes(0) range(0:1:4) : f32[4]\n"
                                "    %4 = add %1 %3 : f32[4]\n"
                                "    return %4 %0\n"
                                "  } phase(1) : bool[]\n"
                                "  %4 = result %3 number(0) phase(1) : f32[4]\n"
                                "  %5 = result %3 number(1) : i64[8]\n"
                                "  %6 = cond %2 %4 number(1) then(%0: f32[4]) {\n"
                                "    return %0\n"
                                "  } else(%0: f32[4]) {\n"
                                "    %1 = loop %0 carries(1) xs(0) ys(0) count(9) step(%0: i64[], %1: f32[4]) {\n"
                                "      %2 = neg %1 : f32[4]\n"
                                "      return %2\n"
                                "    } condition(%0: f32[4]) {\n"
                                "      %1 = const bool true : bool[]\n"
                                "      return %1\n"
                                "    } : bool[]\n"
                                "    %2 = result %1 number(0) : f32[4]\n"
                                "    return %2\n"
                                "  } : bool[]\n"
                                "  %7 = result %6 number(0) : f32[4]\n"
                                "  return %7 %5\n"
                                "}\n";
    Graph *g = parse(whole);
    cr_assert_eq(graph_verify(g), ST_OK, "%s", fail_message());
    cr_assert_str_eq(print(g), whole);
}

/* A call says what it calls; an equal one is the same node, and so are its results. */
Test(text, calls_print_as_they_were_written)
{
    static const char whole[] = "graph g(%0: f32[8,4], %1: i64[]) {\n"
                                "  %2 = custom %0 %1 calls(acme.fft 1.2-rc+1 image:00000000000000ab00000000000000cd bytes:00ff10) "
                                "gives(f64:2 bool:0) sizes(8 3) : bool[]\n"
                                "  %3 = result %2 number(1) : bool[]\n"
                                "  %4 = result %2 number(0) : f64[8,3]\n"
                                "  %5 = custom calls(x 0) gives(u8:1) sizes(0) phase(1) : bool[]\n"
                                "  %6 = result %5 number(0) phase(1) : u8[0]\n"
                                "  return %3 %4 %6\n"
                                "}\n";
    Graph *g = parse(whole);
    cr_assert_eq(graph_verify(g), ST_OK, "%s", fail_message());
    cr_assert_str_eq(print(g), whole);
#define CALL(n, callee, size) "%" #n " = custom %0 calls(" callee ") gives(f32:1) sizes(" size ") "
    g = parse("graph g(%0: f32[4]) {" CALL(1, "a 1", "5") CALL(2, "a 2", "5") CALL(3, "a 1", "5") CALL(4, "a 1 bytes:00", "5")
                  CALL(5, "b 1", "5") CALL(6, "a 1", "6") "%7 = result %1 number(0) %8 = result %3 number(0) return %7 %8 }");
    cr_assert_eq(g->nodes.n, 7, "%d", (int)g->nodes.n); /* %3 is %1, and its result that one's */
    cr_assert_eq(g->outputs.at[0], g->outputs.at[1]);
}

Test(text, calls_that_do_not_fit)
{
    static const struct {
        const char *text, *why;
    } rows[] = {
        {"gives(f32:1) sizes(4)", "does not say what it calls"},
        {"calls(a) gives(f32:1) sizes(4)", "expected a name or version"},
        {"calls(a/b 1) gives(f32:1) sizes(4)", "expected a name or version"},
        {"calls(a 1 image:12) gives(f32:1) sizes(4)", "expected 32 digits"},
        {"calls(a 1 bytes:0) gives(f32:1) sizes(4)", "expected ')'"},
        {"calls(a 1) gives() sizes()", "no results"},
        {"calls(a 1) gives(f32:1) sizes(4 5)", "wrong number of facts"},
        {"calls(a 1) gives(f32:2) sizes(4)", "wrong number of facts"},
        {"calls(a 1) gives(f32:1) sizes(-1)", "less than 0 elements"},
        {"calls(a 1) gives(f32:1) sizes(4) then() { return }", "expected '%'"},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        Graph *g;
        char *text = arena_printf(&arena, "graph g(%%0: f32[4]) { %%1 = custom %%0 %s return }", rows[k].text);
        cr_expect_neq(graph_parse(text, &arena, &g), ST_OK, "row %d is taken", (int)k);
        cr_expect(strstr(fail_message(), rows[k].why), "row %d: \"%s\", not \"%s\"", (int)k, fail_message(), rows[k].why);
    }
}

/* Each way in which bodies and their node may not fit. */
Test(text, bodies_that_do_not_fit)
{
    static const struct {
        const char *text, *why;
    } rows[] = {
#define LOOP(head, step) "graph g(%0: f32[8,4], %1: f32[4]) {\n%3 = loop " head " step" step "\nreturn\n}"
        {LOOP("%1 %0 carries(1) xs(1) ys(0) count(7)", "(%0, %1, %2) { return %1 }"), "not as long as the loop"},
        {LOOP("%1 %0 carries(2) xs(1) ys(0) count(8)", "(%0, %1, %2) { return %1 }"), "fewer operands"},
        {LOOP("%1 %0 carries(1) xs(1) ys(0)", "(%0, %1, %2) { return %1 }"), "wrong number of facts"},
        {LOOP("%1 %0 carries(1) xs(1) ys(0) count(-1)", "(%0, %1, %2) { return %1 }"), "less than 0 times"},
        {LOOP("%1 %0 carries(1) xs(1) ys(0) count(8)", "(%0, %1) { return %1 }"), "expected ','"},
        {LOOP("%1 %0 carries(1) xs(1) ys(0) count(8)", "(%0, %1: f32[5], %2) { return %1 }"), "not the type"},
        {LOOP("%1 %0 carries(1) xs(1) ys(0) count(8)", "(%0, %1, %2) { return %0 }"), "changes the type of a carry"},
        {LOOP("%1 %0 carries(1) xs(1) ys(0) count(8)", "(%0, %1, %2) { return %1 %2 }"), "as many outputs"},
        {LOOP("%1 %0 carries(1) xs(1) ys(0) count(8)", "(%0, %1, %2) { return %3 }"), "no such node"},
        {LOOP("%1 %0 carries(1) xs(1) ys(0) count(8)", "(%0, %1, %2) { return %1 } condition(%0, %1) { return %0 }"),
         "neither xs nor a direction"},
        {LOOP("%1 carries(1) xs(0) ys(0) settles count(8)", "(%0, %1) { return %1 }"), "without a condition settles"},
        {LOOP("%1 carries(1) xs(0) ys(0) count(8)", "(%0, %1) { return %1 } condition(%0) { return %0 }"), "differ"},
        {LOOP("%1 carries(1) xs(0) ys(0) count(8)", "(%0, %1) { return %1 } %4 = neg %3"), "nothing else takes that"},
        {LOOP("%1 carries(1) xs(0) ys(0) count(8)", "(%0, %1) { return %1 } %4 = result %3 number(1)"), "no such result"},
        {LOOP("%1 carries(1) xs(0) ys(0) count(8)", "(%0, %1) { return %1 } %4 = result %1 number(0)"), "of what has bodies"},
        {LOOP("%1 carries(1) xs(0) ys(0) count(8)", "(%0, %1) { return %1 } return %3 }"), "only results"},
        {LOOP("%1 carries(1) xs(0) ys(0) count(8)", ""), "expected '('"},
        {"graph g(%0: f32[4]) { %1 = cond %0 number(0) then() { return } else() { return } return }", "no bool of rank 0"},
        {"graph g(%0: bool[]) { %1 = cond %0 number(0) then() { return } return }", "expected a body"},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        Graph *g;
        cr_expect_eq(graph_parse(rows[k].text, &arena, &g), ST_FORMAT, "row %d is taken", (int)k);
        cr_expect(strstr(fail_message(), rows[k].why), "row %d: \"%s\", not \"%s\"", (int)k, fail_message(), rows[k].why);
    }
    Str deep; /* nine branches, one in the other */
    Graph *g;
    str_init(&deep, &arena);
    str_printf(&deep, "graph g(%%0: bool[]) {");
    for (int k = 0; k < 9; k++)
        str_printf(&deep, " %%1 = cond %%0 %%0 number(1) then(%%0) {");
    cr_expect_eq(graph_parse(deep.text, &arena, &g), ST_FORMAT);
    cr_expect(strstr(fail_message(), "nested too deep"), "%s", fail_message());
}

Test(text, types_and_comments_are_optional)
{
    Graph *g = parse("graph name(%0: f32[2]) { // x\n %1 = neg %0 %2 = abs %1 // y\nreturn %2 }");
    cr_assert_str_eq(print(g), "graph g(%0: f32[2]) {\n  %1 = neg %0 : f32[2]\n  %2 = abs %1 : f32[2]\n  return %2\n}\n");
    Graph *empty = parse("graph g() { return }");
    cr_assert_str_eq(print(empty), "graph g() {\n  return\n}\n");
}

Test(text, numbers_may_have_gaps)
{
    Graph *g = parse("graph g(%7: f32[2]) { %12 = neg %7 return %12 }");
    cr_assert_str_eq(print(g), "graph g(%0: f32[2]) {\n  %1 = neg %0 : f32[2]\n  return %1\n}\n");
}

Test(text, facts_keep_their_numbers)
{
    const char *want = "graph g(%0: f32[8]) {\n"
                       "  %1 = slice %0 axes(0) range(s5=0:s6=1:s2=4) : f32[4]\n"
                       "  %2 = slice %0 axes(0) range(0:(s6*1):s2) : f32[4]\n"
                       "  %3 = pad %1 %4 axes(0) by((s3=2+s9=3):10) : f32[19]\n"
                       "  return %1\n}\n";
    Graph *g = NULL;
    cr_assert_eq(graph_parse(want, &arena, &g), ST_FORMAT); /* %4 is not there yet */
    want = "graph g(%0: f32[8], %1: f32[]) {\n"
           "  %2 = slice %0 axes(0) range(s5=0:1:s2=4) : f32[4]\n"
           "  %3 = slice %0 axes(0) range(0:(s6*1):s2) : f32[4]\n"
           "  %4 = pad %2 %1 axes(0) by((s3=2+s9=3):10) : f32[19]\n"
           "  return %2\n}\n";
    g = parse(want);
    cr_assert_str_eq(print(g), want);
    cr_assert_eq(g->shared->ints.at[5].kind, FACT_START);
    cr_assert_eq(g->shared->ints.at[2].value, 4);
    cr_assert_eq(g->shared->ints.at[10].kind, FACT_HIGH);
}

static const char *scalar_text(DType dtype, uint64_t bits)
{
    Str s;
    str_init(&s, &arena);
    text_print_scalar(dtype, bits, &s);
    return s.text;
}

Test(text, scalars)
{
    cr_assert_str_eq(scalar_text(DT_F32, scalar_from_double(DT_F32, 0.1)), "0.1");
    cr_assert_str_eq(scalar_text(DT_F64, scalar_from_double(DT_F64, 0.1)), "0.1");
    cr_assert_str_eq(scalar_text(DT_F32, scalar_from_double(DT_F32, -0.0)), "-0");
    cr_assert_str_eq(scalar_text(DT_F16, scalar_from_double(DT_F16, INFINITY)), "inf");
    cr_assert_str_eq(scalar_text(DT_BF16, scalar_from_double(DT_BF16, NAN)), "nan");
    cr_assert_str_eq(scalar_text(DT_F32, 0x7fc01234), "0x7fc01234");
    cr_assert_str_eq(scalar_text(DT_F32, 1), "1e-45");
    cr_assert_str_eq(scalar_text(DT_U64, UINT64_MAX), "18446744073709551615");
    cr_assert_str_eq(scalar_text(DT_I64, (uint64_t)INT64_MIN), "-9223372036854775808");
    cr_assert_str_eq(scalar_text(DT_I8, 0xff), "-1");
    cr_assert_str_eq(scalar_text(DT_BOOL, 1), "true");
}

/* Every scalar reads back to the same bits: all of the 8 and 16-bit dtypes, random ones of the others. */
Test(text, scalars_round_trip)
{
    uint64_t state = 3;
    for (int t = 0; t < DT_COUNT; t++) {
        DType dtype = (DType)t;
        uint32_t n = dtype == DT_BOOL ? 2 : dtype_bytes(dtype) == 1 ? 256 : 3000;
        Str s;
        str_init(&s, &arena);
        str_printf(&s, "graph g() {\n");
        uint64_t *want = arena_alloc(&arena, sizeof *want * n);
        for (uint32_t k = 0; k < n; k++) {
            uint64_t bits = n <= 256 ? k : next_random(&state);
            if (n > 256 && k % 4 == 0)
                bits = scalar_from_double(dtype, (double)(int64_t)next_random(&state) / 4096);
            want[k] = dtype_bytes(dtype) == 8 ? bits : bits & ((UINT64_C(1) << 8 * dtype_bytes(dtype)) - 1);
            str_printf(&s, "%%%u = scalar %s ", k, dtype_name(dtype));
            text_print_scalar(dtype, want[k], &s);
            str_printf(&s, "\n");
        }
        str_printf(&s, "return }");
        Graph *g = parse(s.text);
        for (uint32_t k = 0; k < n; k++)
            cr_assert_eq(g->shared->scalars.at[k].bits, want[k], "%s %llx", dtype_name(dtype), (unsigned long long)want[k]);
    }
}

Test(text, locale_does_not_matter)
{
    if (!setlocale(LC_NUMERIC, "de_DE.UTF-8") && !setlocale(LC_NUMERIC, "fr_FR.UTF-8"))
        cr_log_info("no locale with a decimal comma installed: the C locale is tested");
    cr_assert_str_eq(scalar_text(DT_F64, scalar_from_double(DT_F64, 1.5e-7)), "1.5e-07");
    double value;
    cr_assert(text_double("2.25", &value) && value == 2.25);
    cr_assert_not(text_double("2.25x", &value));
    cr_assert_not(text_double("", &value));
}

Test(text, mistakes_are_named_with_their_place)
{
    static const struct {
        const char *text, *message;
    } table[] = {
        {"", "1:1: expected 'graph'"},
        {"graph g(%0: f33[2]) { return }", "1:13: expected a dtype"},
        {"graph g(%0: f32[2]) {\n  %1 = frob %0\n return }", "2:8: expected an op"},
        {"graph g(%0: f32[2]) {\n  %1 = neg %3\n return }", "2:12: no such node yet"},
        {"graph g(%0: f32[2]) {\n  %0 = neg %0\n return }", "2:5: this number is taken"},
        {"graph g(%0: f32[2]) { %1 = add %0 return %1 }", "1:35: add does not take f32"},
        {"graph g(%0: f32[2], %1: f32[3]) { %2 = add %0 %1 return }", "1:50: shapes differ: a is f32[2], b is f32[3]"},
        {"graph g(%0: f32[2]) { %1 = neg %0 : f32[3] return }", "1:43: not the type of this node"},
        {"graph g(%0: f32[2]) { %1 = slice %0 axes(0) range(0:1) return }", "1:56: wrong number of facts"},
        {"graph g(%0: f32[2]) { %1 = reduce_sum %0 axes(9) return }", "1:47: number out of range"},
        {"graph g(%0: f32[-2]) { return }", "1:20: negative or too many elements"},
        {"graph g(%0: f32[2]) { %1 = scalar i8 300 return }", "1:38: not an integer of that dtype"},
        {"graph g(%0: f32[2]) { %1 = scalar f32 x return }", "1:39: expected a number"},
        {"graph g(%0: f32[2]) { %1 = expand %0 axes(0) size(s9) return }", "1:53: no such fact yet"},
        {"graph g(%0: f32[2]) { return } x", "1:32: text after the graph"},
        {"graph g(%99999999999: f32[2]) { return }", "1:21: reference number too large"},
        {"graph g(%0: f32[1]) { %1 = expand %0 axes(0) size(s99999999=3) return }", "1:62: fact number too large"},
    };
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        Graph *g = NULL;
        cr_assert_eq(graph_parse(table[k].text, &arena, &g), ST_FORMAT, "%s", table[k].text);
        const char *said = fail_message(), *want = table[k].message;
        /* Where several mistakes are possible at once the wording may extend the expected one. */
        cr_expect(strncmp(said, want, strlen(want)) == 0, "%s\n  expected %s\n  got      %s", table[k].text, want, said);
        cr_assert_null(g);
    }
}

Test(text, random_graphs_round_trip)
{
    for (uint64_t seed = 1000; seed < 1400; seed++) {
        Graph *g = random_graph(seed, 50), *again = NULL;
        const char *first = print(g);
        cr_assert_eq(graph_parse(first, &arena, &again), ST_OK, "seed %d: %s\n%s", (int)seed, fail_message(), first);
        cr_assert_eq(graph_verify(again), ST_OK, "%s", fail_message());
        cr_assert_str_eq(print(again), first, "seed %d", (int)seed);
        graph_compact(g, NULL);
        first = print(g);
        cr_assert_eq(graph_parse(first, &arena, &again), ST_OK, "seed %d: %s\n%s", (int)seed, fail_message(), first);
        cr_assert_str_eq(print(again), first, "compacted, seed %d", (int)seed);
        arena_free(&arena);
    }
}

/* Damaged text is refused or understood; it never crashes. */
Test(text, damaged_texts)
{
    static const char noise[] = "%0129-():s=#*+,[]{} \nabcdefgx.";
    uint64_t state = 11;
    uint32_t understood = 0;
    for (int k = 0; k < 3000; k++) {
        char *text = arena_strdup(&arena, print(random_graph((uint64_t)(k % 20), 12)));
        size_t len = strlen(text);
        for (uint32_t hits = 1 + pick(&state, 3); hits && len > 1; hits--) {
            size_t at = pick(&state, (uint32_t)len);
            switch (pick(&state, 3)) {
            case 0: text[at] = noise[pick(&state, sizeof noise - 1)]; break;
            case 1:
                memmove(text + at, text + at + 1, len - at);
                len--;
                break;
            default:
                text[at] = 0;
                len = at ? at : 1;
                break;
            }
        }
        Graph *g = NULL;
        Status status = graph_parse(text, &arena, &g);
        cr_assert(status == ST_OK || status == ST_FORMAT, "%s", fail_message());
        if (status == ST_OK) {
            understood++;
            cr_assert_eq(graph_verify(g), ST_OK, "%s\n%s", fail_message(), text);
        }
        arena_free(&arena);
    }
    cr_assert_gt(understood, 10u);
}
