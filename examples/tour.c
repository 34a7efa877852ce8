/*
 * A walk through the field's textbook examples, and what the compiler did with each: nodes that were merged or not needed, passes that changed the
 * graph, the kernels that came out, why something was compiled again, and what split a graph. All of it is what KILN_LOG=passes,fusion,
 * recompiles,breaks prints; here it goes into memory and is shortened to what matters.
 */
#include <kiln.h>
#include <stdio.h>
#include <string.h>

/* Begins to listen, after the title of an example. */
static void begin(kiln_log_buffer *log, const char *title, const char *code)
{
    printf("%s\n    %s\n", title, code);
    log->needed = 0;
    kiln_set_log_sink(kiln_log_into, log);
}

/* Does this line tell of a pass that left the graph as it was? */
static int idle(const char *line)
{
    long before, after;
    const char *nodes = strstr(line, " -> ");
    return nodes && sscanf(line, "%*s %ld -> %ld", &before, &after) == 2 && before == after && !strstr(line, "recorded");
}

/* Stops listening and prints the lines, without times and the ends of long ones. */
static void end(kiln_log_buffer *log)
{
    kiln_set_log_sink(NULL, NULL);
    if (log->needed == 0)
        return;
    for (char *line = strtok(log->text, "\n"); line; line = strtok(NULL, "\n")) {
        char *cut = strstr(line, " nodes,");
        if (strncmp(line, "kernel", 6) == 0)
            cut = strchr(line, ':');
        if (idle(line))
            continue;
        printf("  > %.*s%s\n", cut ? (int)(cut - line) : 160, line, !cut && strlen(line) > 160 ? "..." : "");
    }
    log->text[0] = '\0';
    putchar('\n');
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        fprintf(stderr, "tour: %s: it takes no arguments; usage: tour\n", argv[1]);
        return 2;
    }
    static char text[1 << 16];
    kiln_log_buffer log = {text, sizeof text, 0};
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_uniform(KILN_F32, KILN_SHAPE(64, 100), -1, 1), *w = kiln_uniform(KILN_F32, KILN_SHAPE(100, 100), -1, 1);
    kiln_check(kiln_eval_many((kiln_tensor *[]){x, w}, 2)); /* else each example would draw them anew, inside its kernel */
    kiln_check(kiln_set_option("log", "passes,fusion"));

    begin(&log, "1. An activation: one loop over registers", "sigmoid(relu(2 x + 1) / 2)");
    kiln_check(kiln_eval(kiln_sigmoid(kiln_mul(kiln_relu(kiln_add(kiln_mul(x, 2), 1)), 0.5))));
    end(&log);

    begin(&log, "2. A dead product: recorded, never needed, never computed", "x w (thrown away); |x|");
    kiln_matmul(x, w);
    kiln_check(kiln_eval(kiln_abs(x)));
    end(&log);

    begin(&log, "3. Folding: what is made of numbers alone is computed once, before the kernel", "-(x + (2 * 3 - 6))");
    kiln_check(kiln_eval(kiln_neg(kiln_add(x, kiln_sub(kiln_mul(kiln_scalar(2), 3), 6)))));
    end(&log);

    begin(&log, "4. Common subexpressions: written twice, computed once", "exp(sin x) + cos(sin x) * sin x");
    kiln_check(kiln_eval(kiln_add(kiln_exp(kiln_sin(x)), kiln_mul(kiln_cos(kiln_sin(x)), kiln_sin(x)))));
    end(&log);

    begin(&log, "5. Rewrite rules: a power is a square, two transposes are none", "transpose(transpose(x)) ** 2");
    kiln_check(kiln_eval(kiln_pow(kiln_transpose(kiln_transpose(x)), 2)));
    end(&log);

    begin(&log, "6. Fusion: a maximum, a sum and what is between and after them read x once", "softmax(x / 10)");
    kiln_check(kiln_eval(kiln_softmax(kiln_div(x, 10), -1)));
    end(&log);

    kiln_check(kiln_set_option("log", "recompiles"));
    begin(&log, "7. Sizes that change: the second one becomes an argument, and no later one compiles", "sum(tanh(x)) of 5 to 20 elements");
    const float data[20] = {0};
    for (int64_t n = 5; n <= 20; n++)
        kiln_check(kiln_eval(kiln_sum(kiln_tanh(kiln_from(KILN_F32, KILN_SHAPE(n), data)))));
    end(&log);

    kiln_check(kiln_set_option("log", "breaks"));
    begin(&log, "8. A C `if` on a value splits the graph", "if (max(x + 1) > 1.5) exp(-(x + 1)) else exp(x + 1)");
    double largest;
    kiln_check(kiln_item(kiln_max(kiln_add(x, 1)), &largest));
    kiln_tensor *y = kiln_add(x, 1);
    kiln_check(kiln_eval(kiln_exp(largest > 1.5 ? kiln_neg(y) : y)));
    end(&log);

    kiln_scope_end(scope);
    return 0;
}
