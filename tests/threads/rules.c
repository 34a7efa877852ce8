/*
 * Threads that add and remove rules and passes while others compile: every result is right whatever there is at the moment, no pass is
 * called any more when its removal has returned (what it reads is freed then), and what was compiled under one set is never used under
 * another. A plain program, so that it also runs under ThreadSanitizer. Argument: the number of rounds.
 */
#include "kiln.h"
#include "tests/support/stats.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIVE = 0x11fe, SIZES = 5, CALLS = 100 };

static int rounds = 60; /* at least, and until passes were called so often: */
static atomic_int failures, evaluators = 2, called;

#define REQUIRE(condition, ...)                                   \
    do {                                                          \
        if (!(condition)) {                                       \
            if (atomic_fetch_add(&failures, 1) < 10) {            \
                fprintf(stderr, __VA_ARGS__);                     \
                fprintf(stderr, " (%s)\n", kiln_error_message()); \
            }                                                     \
        }                                                         \
    } while (0)

/* sin x by another node that is sin x. */
static kiln_status rebuild(kiln_graph *g, void *user)
{
    kiln_node x[4];
    REQUIRE(*(int *)user == ALIVE, "a pass is called after its removal");
    atomic_fetch_add(&called, 1);
    for (kiln_node n = 0; n < kiln_graph_nodes(g); n++)
        if (kiln_graph_match(g, n, "(sin x)", x))
            REQUIRE(kiln_graph_replace(g, n, kiln_graph_build(g, "(sin x)", x)), "a node was not replaced");
    return KILN_OK;
}

static void *change_sets(void *which)
{
    int thread = *(int *)which;
    char rule[16], pass[16], pattern[32], version[16];
    snprintf(rule, sizeof rule, "rule%d", thread);
    snprintf(pass, sizeof pass, "pass%d", thread);
    for (int round = 0; atomic_load(&evaluators); round++) {
        int *alive = malloc(sizeof *alive);
        *alive = ALIVE;
        snprintf(pattern, sizeof pattern, "(mul x %d)", 1 + round % 2);
        snprintf(version, sizeof version, "%d", round % 3);
        REQUIRE(kiln_rule_add(rule, pattern, round % 2 ? "(add x x)" : "x", KILN_RULE_EXACT) == KILN_OK, "rule");
        REQUIRE(kiln_pass_register(pass, version, round % 2 ? "rules" : NULL, rebuild, alive) == KILN_OK, "pass");
        struct timespec while_ = {0, 300000};
        nanosleep(&while_, NULL);
        REQUIRE(kiln_rule_remove(rule) == KILN_OK, "rule");
        REQUIRE(kiln_pass_remove(pass) == KILN_OK, "pass");
        *alive = 0;
        free(alive);
    }
    return NULL;
}

static void *evaluate(void *which)
{
    int thread = *(int *)which;
    for (int round = 0; round < rounds || (atomic_load(&called) < CALLS && round < 1000 * rounds); round++) {
        float data[SIZES] = {0.5f, 1, -1, 2, 0};
        int64_t n = 1 + (round + thread) % SIZES;
        double total = 0, wanted = 0;
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(n), data);
        for (int64_t i = 0; i < n; i++)
            wanted += 2 * sin(data[i]) * (1 + round % 7);
        for (int k = 0; k < round % 4; k++) /* another graph */
            x = kiln_exp(kiln_mul(kiln_relu(x), 0.5));
        kiln_tensor *y =
            kiln_sum(kiln_mul(kiln_mul(kiln_mul(kiln_sin(kiln_from(KILN_F32, KILN_SHAPE(n), data)), 1.0), 2.0), 1.0 + round % 7));
        REQUIRE(kiln_eval(kiln_sum(x)) == KILN_OK, "thread %d round %d", thread, round);
        REQUIRE(kiln_item(y, &total) == KILN_OK && fabs(total - wanted) < 1e-5 * (1 + fabs(wanted)), "thread %d round %d: %g, not %g",
                thread, round, total, wanted);
        kiln_scope_end(scope);
    }
    atomic_fetch_sub(&evaluators, 1);
    return NULL;
}

static void quiet(void *user, int level, const char *topic, const char *line)
{
    (void)user;
    if (level == 0 && !strstr(line, "it was removed meanwhile")) /* which the interpreter makes up for */
        fprintf(stderr, "%s: %s\n", topic, line);
}

int main(int argc, char **argv)
{
    pthread_t thread[4];
    int number[4];
    if (argc > 1)
        rounds = atoi(argv[1]);
    kiln_set_log_sink(quiet, NULL);
    if (kiln_set_option("async_compile", "1") != KILN_OK)
        return 1;
    /* The first compile, here: what LLVM needs is made by call_once, of which ThreadSanitizer knows nothing. */
    if (kiln_eval(kiln_exp(kiln_arange(KILN_F32, 0, 4, 1))) != KILN_OK)
        return 1;
    for (int k = 0; k < 4; k++) {
        number[k] = k;
        if (pthread_create(&thread[k], NULL, k < 2 ? evaluate : change_sets, &number[k]) != 0)
            return 1;
    }
    for (int k = 0; k < 4; k++)
        pthread_join(thread[k], NULL);
    kiln_stats stats = stats_now();
    printf("%d programs, %d calls of passes, %d by the interpreter, %d failures\n", (int)stats.compiles, atomic_load(&called),
           (int)stats.fallbacks, atomic_load(&failures));
    return atomic_load(&failures) != 0 || atomic_load(&called) < CALLS;
}
