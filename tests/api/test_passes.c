/* Passes of one's own (kiln_pass_register): what they see, build and replace; guards of what they ask; keys in memory and on disk; failures. */
#include "api.h"
#include "tests/support/remove_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void begin(void) { begin_mode(0); }

TestSuite(passes, .init = begin);

static char said[1 << 16];
static kiln_log_buffer log_text = {said, sizeof said, 0};

/* What the log says meanwhile comes to `said`. */
static void listen(const char *topics)
{
    memset(said, 0, sizeof said);
    log_text = (kiln_log_buffer){said, sizeof said, 0};
    kiln_set_log_sink(kiln_log_into, &log_text);
    set_option("log", topics);
}

static void listen_no_more(void)
{
    set_option("log", "");
    kiln_set_log_sink(NULL, NULL);
}

static int64_t compiles(void)
{
    kiln_stats stats = stats_now();
    return stats.compiles;
}

static int64_t fallbacks(void)
{
    kiln_stats stats = stats_now();
    return stats.fallbacks;
}

static kiln_node find(kiln_graph *g, const char *op)
{
    for (kiln_node n = 0; n < kiln_graph_nodes(g); n++)
        if (strcmp(kiln_node_op(g, n), op) == 0)
            return n;
    return KILN_NO_NODE;
}

/* --- looking ------------------------------------------------------------------------------------------------------------- */

static char seen[4096];

static kiln_status look(kiln_graph *g, void *user)
{
    (void)user;
    for (kiln_node n = 0; n < kiln_graph_nodes(g); n++) {
        size_t at = strlen(seen);
        int axes[KILN_MAX_RANK], n_axes = kiln_node_axes(g, n, axes);
        at += (size_t)snprintf(seen + at, sizeof seen - at, "%d.%d=%s %s[", kiln_graph_depth(g), (int)n, kiln_node_op(g, n),
                               kiln_dtype_name(kiln_node_dtype(g, n)));
        for (int d = 0; d < kiln_node_rank(g, n); d++)
            at += (size_t)snprintf(seen + at, sizeof seen - at, "%s%d", d ? "," : "", (int)kiln_node_size_now(g, n, d));
        at += (size_t)snprintf(seen + at, sizeof seen - at, "]");
        for (int k = 0; k < kiln_node_n_inputs(g, n); k++)
            at += (size_t)snprintf(seen + at, sizeof seen - at, " %d", (int)kiln_node_input(g, n, k));
        for (int k = 0; k < n_axes; k++)
            at += (size_t)snprintf(seen + at, sizeof seen - at, " axis %d", axes[k]);
        if (*kiln_node_attributes(g, n))
            at += (size_t)snprintf(seen + at, sizeof seen - at, " %s", kiln_node_attributes(g, n));
        at += (size_t)snprintf(seen + at, sizeof seen - at, " <");
        for (int k = 0; k < kiln_node_n_users(g, n); k++)
            at += (size_t)snprintf(seen + at, sizeof seen - at, " %d", (int)kiln_node_user(g, n, k));
        snprintf(seen + at, sizeof seen - at, "%s\n", kiln_node_is_output(g, n) ? " out" : "");
    }
    return KILN_OK;
}

Test(passes, see_the_graph_in_order)
{
    OK(kiln_pass_register("look", "1", NULL, look, NULL));
    kiln_tensor *x = F32(KILN_SHAPE(2, 3), 1, 2, 3, 4, 5, 6), *y = kiln_exp(x);
    EXPECT(kiln_sum_axes(kiln_transpose(kiln_mul(y, y)), KILN_AXES(0), false), KILN_F32, KILN_SHAPE(2), 1e-4, exp(2) + exp(4) + exp(6),
           exp(8) + exp(10) + exp(12));
    OK(kiln_pass_remove("look"));
    static const char wanted[] = "0.0=input f32[2,3] < 1\n"
                                 "0.1=exp f32[2,3] 0 < 2\n"
                                 "0.2=mul f32[2,3] 1 1 < 3\n"
                                 "0.3=permute f32[3,2] 2 axis 1 axis 0 perm(1 0) < 4\n"
                                 "0.4=reduce_sum f32[2] 3 axis 0 axes(0) < out\n";
    cr_assert_str_eq(seen, wanted);
    cr_assert_eq(fallbacks(), 0);
}

static kiln_tensor *few(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_lt(state[1], 3);
}

static void step(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_sin(in[0]);
    out[1] = kiln_add(in[1], 1);
}

static kiln_status cos_for_sin(kiln_graph *g, void *user)
{
    kiln_node x[4];
    for (kiln_node n = 0; n < kiln_graph_nodes(g); n++)
        if (kiln_graph_match(g, n, "(sin x)", x))
            *(int *)user += kiln_graph_replace(g, n, kiln_graph_build(g, "(cos x)", x));
    return KILN_OK;
}

Test(passes, reach_into_bodies)
{
    int n = 0;
    OK(kiln_pass_register("look", "1", NULL, look, NULL));
    OK(kiln_pass_register("cosines", "1", "cse", cos_for_sin, &n));
    kiln_tensor *state[] = {F32(KILN_SHAPE(1), 0), kiln_int(0)};
    OK(kiln_while(few, step, 2, state, 5, state, NULL));
    EXPECT(state[0], KILN_F32, KILN_SHAPE(1), 1e-6, cos(cos(1)));
    cr_assert_eq(n, 1);
    cr_assert(strstr(seen, "0.2=loop") && strstr(seen, "=result") && strstr(seen, "1.0=input f32[1]") && strstr(seen, "=sin f32[1]"), "%s",
              seen);
    OK(kiln_pass_remove("look"));
    OK(kiln_pass_remove("cosines"));
    cr_assert_eq(fallbacks(), 0);
}

/* --- building and replacing ------------------------------------------------------------------------------------------------ */

/* Everything that can be built, in place of neg. */
static kiln_status all_kinds(kiln_graph *g, void *user)
{
    (void)user;
    kiln_node n = find(g, "neg"), x = kiln_node_input(g, n, 0), v[4] = {x, KILN_NO_NODE, KILN_NO_NODE, KILN_NO_NODE};
    if (n == KILN_NO_NODE)
        return KILN_OK;
    kiln_node most = kiln_graph_op(g, "reduce_max axes(1)", 1, &x);           /* [2] */
    kiln_node column = kiln_graph_op(g, "reshape groups(1:1 0:1)", 1, &most); /* [2,1] */
    kiln_node both[2] = {x, column};
    kiln_node less = kiln_graph_op(g, "sub", 2, both);                                     /* [2,3], the column repeated */
    kiln_node turned = kiln_graph_op(g, "permute perm(1 0)", 1, &less);                    /* [3,2] */
    kiln_node square[2] = {less, turned}, product = kiln_graph_op(g, "matmul", 2, square); /* [2,2] */
    kiln_node cut = kiln_graph_op(g, "slice axes(1) range(0:1:1)", 1, &product);           /* [2,1] */
    kiln_node half = kiln_graph_op(g, "cast f64", 1, &cut), back = kiln_graph_op(g, "cast f32", 1, &half);
    kiln_node three[3] = {back, back, back}, wide = kiln_graph_op(g, "concat axis(1)", 3, three);
    v[1] = wide;
    v[2] = kiln_graph_number(g, KILN_F32, 100);
    (void)kiln_graph_replace(g, n, kiln_graph_build(g, "(add (mul x z) (add y 0.5))", v));
    return KILN_OK;
}

Test(passes, build_every_kind_of_node)
{
    OK(kiln_pass_register("all", "1", "rules", all_kinds, NULL));
    kiln_tensor *x = F32(KILN_SHAPE(2, 3), 1, 2, 3, 4, 5, 7);
    /* less: -2 -1 0; -3 -2 0. product: 5 8; 8 13 */
    EXPECT(kiln_neg(x), KILN_F32, KILN_SHAPE(2, 3), 0, 105.5, 205.5, 305.5, 408.5, 508.5, 708.5);
    cr_assert_eq(fallbacks(), 0);
    OK(kiln_pass_remove("all"));
    EXPECT(kiln_neg(x), KILN_F32, KILN_SHAPE(2, 3), 0, -1, -2, -3, -4, -5, -7);
}

/* Weights as if they were stored in 8 bits: w is replaced by what is made of w. */
static kiln_status fake_quantise(kiln_graph *g, void *user)
{
    (void)user;
    for (kiln_node n = 0; n < kiln_graph_nodes(g); n++) {
        if (strcmp(kiln_node_op(g, n), "matmul") != 0)
            continue;
        kiln_node w = kiln_node_input(g, n, 1), v[4] = {w, KILN_NO_NODE, KILN_NO_NODE, KILN_NO_NODE};
        kiln_node size = kiln_graph_build(g, "(abs x)", v);
        v[1] = kiln_graph_op(g, "reduce_max axes(0 1)", 1, &size);
        if (!kiln_graph_replace(g, w, kiln_graph_build(g, "(mul (round (div x (div y 127))) (div y 127))", v)))
            return kiln_graph_fail(g, "not replaced");
    }
    return KILN_OK;
}

Test(passes, a_node_by_what_is_made_of_it)
{
    OK(kiln_pass_register("quantise", "1", NULL, fake_quantise, NULL));
    kiln_tensor *x = F32(KILN_SHAPE(1, 2), 1, 1), *w = F32(KILN_SHAPE(2, 2), 127, 0.4f, 0.6f, 5.3f), *y[2];
    y[0] = kiln_matmul(x, w);
    y[1] = kiln_neg(w); /* reads the replaced one, too */
    cr_assert_eq(kiln_eval_many(y, 2), KILN_OK, "%s", kiln_error_message());
    EXPECT(y[0], KILN_F32, KILN_SHAPE(1, 2), 0, 128, 5);
    EXPECT(y[1], KILN_F32, KILN_SHAPE(2, 2), 0, -127, -0.0, -1, -5);
    OK(kiln_pass_remove("quantise"));
    cr_assert_eq(fallbacks(), 0);
}

static kiln_status output_by_input(kiln_graph *g, void *user)
{
    (void)user;
    kiln_node n = find(g, "relu");
    return n == KILN_NO_NODE || kiln_graph_replace(g, n, kiln_node_input(g, n, 0)) ? KILN_OK : kiln_graph_fail(g, "not replaced");
}

Test(passes, an_output_by_an_input)
{
    OK(kiln_pass_register("no_relu", "1", NULL, output_by_input, NULL));
    EXPECT(kiln_relu(F32(KILN_SHAPE(2), -1, 1)), KILN_F32, KILN_SHAPE(2), 0, -1, 1);
    OK(kiln_pass_remove("no_relu"));
    cr_assert_eq(fallbacks(), 0);
}

/* Broadcast scalars are computed by the host where all is scalars: that is found anew where one became an array. */
static kiln_status number_by_array(kiln_graph *g, void *user)
{
    (void)user;
    kiln_node n = find(g, "expand"), x = find(g, "input");
    return n == KILN_NO_NODE || kiln_graph_replace(g, n, x) ? KILN_OK : kiln_graph_fail(g, "not replaced");
}

Test(passes, a_number_by_an_array)
{
    OK(kiln_pass_register("swap", "1", NULL, number_by_array, NULL));
    kiln_tensor *c = kiln_full(KILN_F32, KILN_SHAPE(2), 7);
    EXPECT(kiln_add(kiln_neg(kiln_sqrt(c)), F32(KILN_SHAPE(2), 4, 9)), KILN_F32, KILN_SHAPE(2), 0, 2, 6);
    OK(kiln_pass_remove("swap"));
    cr_assert_eq(fallbacks(), 0);
}

/* --- places, the log -------------------------------------------------------------------------------------------------------- */

static kiln_status order(kiln_graph *g, void *user)
{
    (void)g;
    strcat(seen, user);
    return KILN_OK;
}

Test(passes, run_where_they_are_asked_to)
{
    OK(kiln_pass_register("c", "1", "cse", order, "c"));
    OK(kiln_pass_register("a", "1", NULL, order, "a"));
    OK(kiln_pass_register("d", "1", "c", order, "d"));
    OK(kiln_pass_register("b", "1", "canonicalise", order, "b"));
    OK(kiln_pass_register("e", "1", "c", order, "e"));
    EXPECT(kiln_neg(F32(KILN_SHAPE(1), 1)), KILN_F32, KILN_SHAPE(1), 0, -1);
    cr_assert_str_eq(seen, "abced"); /* e: right behind c */
    fails_with(kiln_pass_register("f", "1", "remat", order, ""), KILN_INVALID,
               "a pass cannot run after \"remat\": canonicalise, fold, user_rules, rules, cse, hoist, or a pass of yours");
    fails_with(kiln_pass_register("f", "1", "g", order, ""), KILN_INVALID, "a pass cannot run after \"g\"");
    fails_with(kiln_pass_register("a", "2", NULL, order, ""), KILN_INVALID, "there is a pass \"a\" already, of version 1");
    fails_with(kiln_pass_register("dce", "2", NULL, order, ""), KILN_INVALID, "\"dce\" is a pass of kiln's own");
    fails_with(kiln_pass_register("x y", "2", NULL, order, ""), KILN_INVALID, "the name of a pass \"x y\" has ` ` in it");
    fails_with(kiln_pass_register("x", "2;", NULL, order, ""), KILN_INVALID, "the version of a pass \"2;\" has `;` in it");
    fails_with(kiln_pass_register("x", NULL, NULL, order, ""), KILN_INVALID, "the version is NULL");
    fails_with(kiln_pass_register("x", "1", NULL, NULL, ""), KILN_INVALID, "the callback is NULL");
    fails_with(kiln_pass_remove("x"), KILN_INVALID, "there is no pass \"x\"");
    static const char *const all[] = {"a", "b", "c", "d", "e"};
    for (int k = 0; k < 5; k++)
        OK(kiln_pass_remove(all[k]));
}

/* Each line of KILN_LOG=passes begins with as many nodes as the one before ended with, those of users too. */
Test(passes, the_log_counts_them)
{
    int n = 0;
    listen("passes");
    OK(kiln_pass_register("acme.cosines", "1", "fold", cos_for_sin, &n));
    OK(kiln_rule_add("halves", "(mul x 0.5)", "(div x 2)", KILN_RULE_EXACT));
    kiln_tensor *x = F32(KILN_SHAPE(2), 1, 2);
    EXPECT(kiln_mul(kiln_sin(kiln_neg(kiln_neg(x))), 0.5), KILN_F32, KILN_SHAPE(2), 1e-6, cos(1) / 2, cos(2) / 2);
    listen_no_more();
    int lines = 0, before = -1;
    for (char *line = strtok(said, "\n"); line; line = strtok(NULL, "\n")) {
        char name[32];
        int from, to;
        const char *at = strstr(line, "] ");
        if (sscanf(at ? at + 2 : line, "%31s %d -> %d nodes", name, &from, &to) != 3 || strcmp(name, "recorded") == 0)
            continue;
        cr_assert(before < 0 || before == from, "%s", line);
        before = to;
        lines++;
        if (strcmp(name, "acme.cosines") == 0)
            cr_assert(strstr(line, ": built 1, replaced 1") != NULL, "%s", line);
        if (strcmp(name, "user_rules") == 0)
            cr_assert(strstr(line, ": halves 1") != NULL, "%s", line);
    }
    cr_assert_eq(lines, 9, "%d lines", lines);
    OK(kiln_pass_remove("acme.cosines"));
    OK(kiln_rule_remove("halves"));
}

/* --- guards ------------------------------------------------------------------------------------------------------------------- */

typedef struct Asking {
    bool size, number;
    int64_t got;
    double value;
    int refused;
} Asking;

/* sin x becomes cos x where the axis has 4 elements, or the number that x is multiplied by is 2. */
static kiln_status ask(kiln_graph *g, void *user)
{
    Asking *a = user;
    kiln_node x[4], n = find(g, "sin");
    if (!kiln_graph_match(g, n, "(sin (mul x y))", x))
        return KILN_OK;
    a->got = 0;
    a->value = 0;
    if (a->size)
        a->refused += !kiln_node_size(g, n, -1, &a->got);
    if (a->number)
        a->refused += !kiln_node_number(g, x[1], &a->value) && !kiln_node_number(g, x[0], &a->value);
    if (a->got == 4 || a->value == 2)
        (void)kiln_graph_replace(g, n, kiln_graph_build(g, "(cos (mul x y))", x));
    return KILN_OK;
}

static double by_ask(int64_t n, double factor)
{
    float zeros[16] = {0};
    double total;
    cr_assert_eq(kiln_item(kiln_sum(kiln_sin(kiln_mul(kiln_from(KILN_F32, KILN_SHAPE(n), zeros), factor))), &total), KILN_OK, "%s",
                 kiln_error_message());
    return total;
}

Test(passes, what_they_ask_is_guarded)
{
    Asking a = {.size = false};
    set_option("dynamic", "always"); /* sizes are arguments where nobody relies on them */
    OK(kiln_pass_register("ask", "1", NULL, ask, &a));
    cr_assert_eq(by_ask(3, 3), 0);
    int64_t before = compiles();
    for (int64_t n = 4; n < 8; n++)
        cr_assert_eq(by_ask(n, 3 + (double)n), 0);
    cr_assert_eq(compiles(), before, "nothing was asked");
    OK(kiln_pass_remove("ask"));

    a.size = true; /* with dynamic=always there is no answer, and no guard */
    OK(kiln_pass_register("ask", "2", NULL, ask, &a));
    cr_assert_eq(by_ask(4, 3), 0);
    cr_assert_eq(a.refused, 1);
    OK(kiln_pass_remove("ask"));

    set_option("dynamic", "auto");
    a = (Asking){.size = true};
    OK(kiln_pass_register("ask", "3", NULL, ask, &a));
    before = compiles();
    cr_assert_eq(by_ask(4, 3), 4);
    cr_assert_eq(a.got, 4);
    cr_assert_eq(by_ask(4, 5), 4);
    cr_assert_eq(compiles(), before + 1, "numbers are arguments");
    cr_assert_eq(by_ask(5, 3), 0); /* another size: another program, in which the size varies: it is not told */
    cr_assert_eq(compiles(), before + 2);
    cr_assert_eq(a.refused, 1);
    cr_assert_eq(by_ask(6, 3), 0);
    cr_assert_eq(compiles(), before + 2);
    OK(kiln_pass_remove("ask"));

    a = (Asking){.number = true};
    OK(kiln_pass_register("ask", "4", NULL, ask, &a));
    before = compiles();
    cr_assert_eq(by_ask(4, 2), 4);
    cr_assert_eq(by_ask(4, 3), 0);
    cr_assert_eq(compiles(), before + 2);
    OK(kiln_pass_remove("ask"));
    cr_assert_eq(fallbacks(), 0);
}

/* x + y of one shape today: equal by nothing but today's sizes, so a program that adds them is for those. */
static kiln_status add_inputs(kiln_graph *g, void *user)
{
    kiln_node n = find(g, "concat"), in[2] = {kiln_node_input(g, n, 0), kiln_node_input(g, n, 1)}, sum = kiln_graph_op(g, "add", 2, in);
    kiln_node twice[2] = {sum, sum};
    *(int *)user += n != KILN_NO_NODE && sum == KILN_NO_NODE;
    (void)kiln_graph_replace(g, n, kiln_graph_op(g, "concat axis(0)", 2, twice));
    return KILN_OK;
}

static kiln_status sum_inputs(kiln_graph *g, void *user)
{
    (void)user;
    kiln_node n = find(g, "reduce_sum"), c = kiln_node_input(g, n, 0), in[2] = {kiln_node_input(g, c, 0), kiln_node_input(g, c, 1)};
    kiln_node sum = kiln_graph_op(g, "add", 2, in);
    (void)kiln_graph_replace(g, n, kiln_graph_op(g, "reduce_sum axes(0)", 1, &sum));
    return KILN_OK;
}

static kiln_tensor *joined(int64_t n, int64_t m)
{
    float ones[16];
    for (int k = 0; k < 16; k++)
        ones[k] = 1;
    kiln_tensor *two[2] = {kiln_from(KILN_F32, KILN_SHAPE(n), ones), kiln_from(KILN_F32, KILN_SHAPE(m), ones)};
    return kiln_concat(two, 2, 0);
}

Test(passes, what_they_build_is_for_sizes_that_fit)
{
    int refused = 0;
    OK(kiln_pass_register("adds", "1", NULL, add_inputs, &refused));
    EXPECT(joined(2, 2), KILN_F32, KILN_SHAPE(4), 0, 2, 2, 2, 2);
    cr_assert_eq(refused, 0);
    int64_t before = fallbacks();
    EXPECT(joined(2, 3), KILN_F32, KILN_SHAPE(5), 0, 1, 1, 1, 1, 1); /* the pass is wrong there: the interpreter runs it */
    cr_assert_eq(fallbacks(), before + 1);
    EXPECT(joined(3, 3), KILN_F32, KILN_SHAPE(6), 0, 2, 2, 2, 2, 2, 2);
    OK(kiln_pass_remove("adds"));

    /* The sum of x + y in place of that of both: of no sizes but those that were added. A program for any sizes is for equal ones. */
    set_option("dynamic", "always");
    OK(kiln_pass_register("adds", "2", NULL, sum_inputs, NULL));
    for (int64_t m = 4; m <= 6; m++) {
        double total;
        OK(kiln_item(kiln_sum(joined(4, m)), &total));
        cr_assert_eq(total, (double)(4 + m));
    }
    OK(kiln_pass_remove("adds"));
}

/* relu(x) + y, of x[n,4] and y[4], where there was relu(x) alone beside y. */
static kiln_status add_a_row(kiln_graph *g, void *user)
{
    kiln_node n = find(g, "relu"), y = KILN_NO_NODE, two[2], once;
    for (kiln_node k = 0; k < kiln_graph_nodes(g); k++)
        if (kiln_node_rank(g, k) == 1 && strcmp(kiln_node_op(g, k), "input") == 0)
            y = k;
    two[0] = kiln_node_input(g, n, 0);
    once = kiln_graph_op(g, "relu", 1, two);
    two[0] = y;
    two[1] = once;
    *(int *)user += kiln_graph_replace(g, n, kiln_graph_op(g, "add", 2, two));
    return KILN_OK;
}

/* A row is repeated as often as there are rows, in one program, also when the first had one. */
Test(passes, what_they_repeat_is_for_every_size)
{
    float data[20];
    int n = 0;
    for (int k = 0; k < 20; k++)
        data[k] = (float)k;
    set_option("dynamic", "always");
    OK(kiln_pass_register("row", "1", NULL, add_a_row, &n));
    int64_t before = compiles();
    for (int64_t rows = 1; rows <= 5; rows++) {
        kiln_tensor *y = F32(KILN_SHAPE(4), 10, 20, 30, 40), *x = kiln_from(KILN_F32, KILN_SHAPE(rows, 4), data),
                    *two[2] = {kiln_relu(x), kiln_neg(y)};
        double total;
        cr_assert_eq(kiln_eval_many(two, 2), KILN_OK, "%s", kiln_error_message());
        OK(kiln_item(kiln_sum(two[0]), &total));
        cr_assert_eq(total, (double)(rows * 100 + 4 * rows * (4 * rows - 1) / 2), "%d rows", (int)rows);
    }
    cr_assert_eq(n, 1);
    cr_assert_eq(compiles(), before + 2, "%d programs", (int)(compiles() - before));
    OK(kiln_pass_remove("row"));
    cr_assert_eq(fallbacks(), 0);
}

/* --- failures ---------------------------------------------------------------------------------------------------------------------- */

enum {
    GIVES_UP,
    CIRCLE,
    WRONG_TYPE,
    WRONG_OP,
    NO_SUCH_NODE,
    WRONG_ATTRIBUTE,
    COMPUTES,
    REMOVES,
    NO_STATUS,
    WRONG_COUNT,
    A_LOOP,
    HALF_AN_INT,
    TWICE,
    N_FAULTS
};

static kiln_status faulty(kiln_graph *g, void *user)
{
    kiln_node n = find(g, "sin"), x = kiln_node_input(g, n, 0), v[4] = {n, KILN_NO_NODE, KILN_NO_NODE, KILN_NO_NODE};
    double ignored;
    if (n == KILN_NO_NODE)
        return KILN_OK;
    switch (*(int *)user) {
    case GIVES_UP: return kiln_graph_fail(g, "I cannot");
    case CIRCLE: (void)kiln_graph_replace(g, x, kiln_graph_build(g, "(add x 1)", v)); break;
    case WRONG_TYPE: (void)kiln_graph_replace(g, n, kiln_graph_op(g, "cast f64", 1, &x)); break;
    case WRONG_OP: (void)kiln_graph_op(g, "sine", 1, &x); break;
    case NO_SUCH_NODE: (void)kiln_node_op(g, 77); break;
    case WRONG_ATTRIBUTE: (void)kiln_graph_op(g, "reduce_sum axes(5)", 1, &x); break;
    case COMPUTES: return kiln_item(kiln_sum(kiln_ones(KILN_F32, KILN_SHAPE(2))), &ignored);
    case REMOVES: return kiln_pass_remove("faulty");
    case NO_STATUS: return (kiln_status)99;
    case WRONG_COUNT: (void)kiln_graph_op(g, "add", 1, &x); break;
    case HALF_AN_INT: (void)kiln_graph_number(g, KILN_I32, 0.5); break;
    case A_LOOP: (void)kiln_graph_op(g, "loop carries(1)", 1, &x); break;
    case TWICE:
        (void)kiln_graph_replace(g, n, x);
        (void)kiln_graph_replace(g, n, x);
        break;
    default: break;
    }
    return KILN_OK;
}

Test(passes, failures_cost_the_program_nothing_but_time)
{
    static const char *const told[N_FAULTS] = {
        [GIVES_UP] = "pass faulty: I cannot",
        [CIRCLE] = "pass faulty: %1 (sin) would be made of itself if %0 were replaced by %",
        [WRONG_TYPE] = "pass faulty: %1 is f32[2] and cannot be replaced by %3, which is f64[2]",
        [WRONG_OP] = "pass faulty: \"sine\" is no op with its attributes: 1:1: expected an op",
        [NO_SUCH_NODE] = "pass faulty: kiln_node_op: there is no node 77",
        [WRONG_ATTRIBUTE] = "pass faulty: reduce_sum: ",
        [COMPUTES] = "pass faulty: it gave \"invalid argument\"",
        [REMOVES] = "pass faulty: it gave \"invalid argument\"",
        [NO_STATUS] = "pass faulty: it gave 99, which is no status",
        [WRONG_COUNT] = "pass faulty: add takes 2 operands, not 1",
        [A_LOOP] = "pass faulty: loop: a pass cannot build it",
        [TWICE] = "pass faulty: %1 was replaced already",
        [HALF_AN_INT] = "pass faulty: 0.5 is no i32",
    };
    int fault;
    OK(kiln_pass_register("faulty", "1", NULL, faulty, &fault));
    for (fault = 0; fault < N_FAULTS; fault++) {
        int64_t before = fallbacks();
        double got;
        set_option("strict", "1");
        fails_with(kiln_item(kiln_sum(kiln_sin(F32(KILN_SHAPE(2), 0, 0))), &got), KILN_COMPILE, told[fault]);
        set_option("strict", "0");
        kiln_clear_error();
        listen("");
        cr_assert_eq(kiln_item(kiln_sum(kiln_sin(F32(KILN_SHAPE(2), 0, 0))), &got), KILN_OK, "fault %d: %s", fault, kiln_error_message());
        listen_no_more();
        cr_assert_eq(got, 0);
        cr_assert_eq(fallbacks(), before + 1);
    }
    OK(kiln_pass_remove("faulty"));
}

/* --- keys ---------------------------------------------------------------------------------------------------------------------------- */

Test(passes, no_program_of_another_version_is_used)
{
    int n = 0;
    kiln_tensor *x = F32(KILN_SHAPE(2), 0, 0);
    EXPECT(kiln_sin(x), KILN_F32, KILN_SHAPE(2), 0, 0, 0);
    int64_t before = compiles();
    OK(kiln_pass_register("p", "1", NULL, cos_for_sin, &n));
    EXPECT(kiln_sin(x), KILN_F32, KILN_SHAPE(2), 0, 1, 1);
    OK(kiln_pass_remove("p"));
    EXPECT(kiln_sin(x), KILN_F32, KILN_SHAPE(2), 0, 0, 0);
    OK(kiln_pass_register("p", "2", NULL, cos_for_sin, &n));
    EXPECT(kiln_sin(x), KILN_F32, KILN_SHAPE(2), 0, 1, 1);
    OK(kiln_pass_remove("p"));
    cr_assert_eq(compiles(), before + 2);
    OK(kiln_pass_register("p", "1", NULL, cos_for_sin, &n)); /* the very one */
    EXPECT(kiln_sin(x), KILN_F32, KILN_SHAPE(2), 0, 1, 1);
    cr_assert_eq(compiles(), before + 2);
    OK(kiln_pass_remove("p"));
}

/* In a process of its own, with a cache on disk: how many programs it compiled, 100 times more for each that it took from disk. */
static int in_process(const char *folder, const char *version, const char *rule)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        int n = 0;
        double got = NAN;
        bool good = kiln_set_option("cache_dir", folder) == KILN_OK && kiln_set_option("cache", "on") == KILN_OK;
        if (version)
            good = good && kiln_pass_register("p", version, NULL, cos_for_sin, &n) == KILN_OK;
        if (rule)
            good = good && kiln_rule_add("r", "(cos x)", rule, KILN_RULE_EXACT) == KILN_OK;
        good = good && kiln_item(kiln_sum(kiln_sin(kiln_from(KILN_F32, KILN_SHAPE(2), (const float[]){0, 0}))), &got) == KILN_OK;
        kiln_stats stats = stats_now();
        double wanted = !version ? 0 : rule && strcmp(rule, "x") == 0 ? 0 : 2;
        _exit(!good || got != wanted ? 99 : (int)(stats.compiles + 10 * stats.disk_hits));
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

Test(passes, on_disk_another_version_is_another_entry)
{
    char folder[400];
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/test_passes_XXXXXX", tmp ? tmp : ".");
    cr_assert(mkdtemp(folder) != NULL);
    static const struct {
        const char *version, *rule;
        int wanted;
    } steps[] = {{NULL, NULL, 1}, {"1", NULL, 1}, {"2", NULL, 1},      {NULL, NULL, 10}, {"1", NULL, 10},
                 {"2", NULL, 10}, {"2", "x", 1},  {"2", "(exp x)", 1}, {"2", "x", 10},   {"2", NULL, 10}};
    for (size_t k = 0; k < sizeof steps / sizeof *steps; k++)
        cr_expect_eq(in_process(folder, steps[k].version, steps[k].rule), steps[k].wanted, "step %d: %d", (int)k,
                     in_process(folder, steps[k].version, steps[k].rule));
    remove_folder(folder);
}

/* --- gradients -------------------------------------------------------------------------------------------------------------------------- */

/* Each node of these ops by another of it: nothing changes but who it is. */
static kiln_status build_anew(kiln_graph *g, void *user)
{
    static const char *const ops[] = {"mul", "exp", "sin", "tanh", "matmul", "reduce_sum", "permute", "mul_no_nan", "cos", "neg"};
    for (kiln_node n = 0; n < kiln_graph_nodes(g); n++) {
        for (size_t k = 0; k < sizeof ops / sizeof *ops; k++) {
            kiln_node in[2] = {kiln_node_input(g, n, 0), kiln_node_input(g, n, 1)};
            char op[100];
            snprintf(op, sizeof op, "%s %s", ops[k], kiln_node_attributes(g, n));
            if (strcmp(kiln_node_op(g, n), ops[k]) == 0)
                *(int *)user += kiln_graph_replace(g, n, kiln_graph_op(g, op, kiln_node_n_inputs(g, n), in));
        }
    }
    return KILN_OK;
}

static void inner(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_tanh(kiln_matmul(kiln_sin(in[0]), in[1]));
}

static void gradients(float *got)
{
    kiln_tensor *x = kiln_param(F32(KILN_SHAPE(2, 2), 1, 2, 3, 4)), *w = kiln_param(F32(KILN_SHAPE(2, 2), 0.1f, 0.2f, -0.3f, 0.4f));
    kiln_tensor *in[2] = {x, w}, *y, *grads[2];
    OK(kiln_checkpoint(inner, 2, in, 1, &y, NULL));
    kiln_tensor *loss = kiln_sum(kiln_exp(kiln_mul(y, x))), *one = kiln_scalar(1);
    OK(kiln_vjp(1, &loss, &one, 2, in, 0, grads));
    cr_assert_eq(kiln_eval_many(grads, 2), KILN_OK, "%s", kiln_error_message());
    for (int k = 0; k < 2; k++)
        OK(kiln_read(grads[k], KILN_F32, got + 4 * k, 4 * sizeof *got));
}

Test(passes, gradients_are_the_same_of_nodes_built_anew)
{
    static const char *const places[] = {NULL, "canonicalise", "rules", "cse"}, *const remat[] = {"auto", "off", "memory"};
    float wanted[8], got[8];
    gradients(wanted);
    for (int k = 0; k < 12; k++) {
        int n = 0;
        set_option("remat", remat[k / 4]);
        OK(kiln_pass_register("anew", "1", places[k % 4], build_anew, &n));
        gradients(got);
        for (int i = 0; i < 8; i++)
            cr_assert_float_eq(got[i], wanted[i], 1e-5, "%d: %g, not %g", k, (double)got[i], (double)wanted[i]);
        cr_assert_gt(n, 5);
        OK(kiln_pass_remove("anew"));
    }
    cr_assert_eq(fallbacks(), 0);
}
