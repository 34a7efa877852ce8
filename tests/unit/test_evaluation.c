/* The object of one evaluation: one for each thread, its numbers, and that a nested sync point leaves the outer one alone. */
#include "runtime/evaluation.h"
#include "runtime/record/tensor.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>

enum { THREADS = 4, NUMBERS = 5000 };

typedef struct Taken {
    Evaluation *e;
    uint32_t number[NUMBERS];
} Taken;

static pthread_barrier_t all_have_one;

static void *take_numbers(void *taken_)
{
    Taken *taken = taken_;
    taken->e = evaluation_of_thread();
    if (evaluation_of_thread() != taken->e)
        taken->e = NULL;
    pthread_barrier_wait(&all_have_one); /* else a later thread might get an earlier one's memory */
    for (int i = 0; i < NUMBERS && taken->e; i++)
        taken->number[i] = evaluation_next_number(taken->e);
    pthread_barrier_wait(&all_have_one);
    return NULL;
}

static int by_value(const void *a_, const void *b_)
{
    const uint32_t *a = a_, *b = b_;
    return (*a > *b) - (*a < *b);
}

Test(evaluation, each_thread_has_one_and_numbers_are_unique)
{
    static Taken taken[THREADS];
    static uint32_t all[THREADS * NUMBERS];
    pthread_t thread[THREADS];
    pthread_barrier_init(&all_have_one, NULL, THREADS);
    for (int t = 0; t < THREADS; t++)
        cr_assert_eq(pthread_create(&thread[t], NULL, take_numbers, &taken[t]), 0);
    for (int t = 0; t < THREADS; t++)
        pthread_join(thread[t], NULL);
    for (int t = 0; t < THREADS; t++) {
        cr_assert_not_null(taken[t].e);
        for (int u = 0; u < t; u++)
            cr_assert_neq(taken[t].e, taken[u].e);
        for (int i = 0; i < NUMBERS; i++)
            all[t * NUMBERS + i] = taken[t].number[i];
    }
    qsort(all, THREADS * NUMBERS, sizeof *all, by_value);
    cr_assert_neq(all[0], 0);
    for (int i = 1; i < THREADS * NUMBERS; i++)
        cr_assert_neq(all[i], all[i - 1], "%u was given twice", all[i]);
}

/* A fresh node carries the mark 0: it must be no collection's number. */
Test(evaluation, no_number_is_0_after_all_were_given)
{
    Evaluation e = {.taken = UINT32_MAX - 1};
    for (int i = 0; i < 3; i++)
        cr_assert_neq(evaluation_next_number(&e), 0);
}

Test(evaluation, a_nested_sync_point_leaves_the_outer_one_alone)
{
    Evaluation *e = evaluation_of_thread();
    cr_assert_eq(evaluation_begin(e, "kiln_eval", (Loc){"outer.c", 1}), ST_OK);
    uint32_t number = e->number;
    e->busy = true;
    e->refused = true;
    cr_assert_eq(evaluation_begin(e, "kiln_read", (Loc){"inner.c", 2}), ST_INVALID);
    cr_assert_str_eq(e->api, "kiln_eval");
    cr_assert_str_eq(e->loc.file, "outer.c");
    cr_assert_eq(e->number, number);
    cr_assert(e->refused);
    e->busy = false;
    cr_assert_eq(evaluation_begin(e, "kiln_read", (Loc){"inner.c", 2}), ST_OK);
    cr_assert_neq(e->number, number);
    cr_assert_not(e->refused);
}

Test(evaluation, options_are_read_anew_when_one_was_set)
{
    Evaluation *e = evaluation_of_thread();
    cr_assert_eq(kiln_set_option("max_variants", "5"), KILN_OK);
    cr_assert_eq(evaluation_begin(e, "kiln_eval", (Loc){NULL, 0}), ST_OK);
    cr_assert_eq(e->options.value[OPT_MAX_VARIANTS], 5);
    cr_assert_eq(kiln_set_option("max_variants", "6"), KILN_OK);
    cr_assert_eq(e->options.value[OPT_MAX_VARIANTS], 5, "those of the evaluation at hand stay");
    cr_assert_eq(evaluation_begin(e, "kiln_eval", (Loc){NULL, 0}), ST_OK);
    cr_assert_eq(e->options.value[OPT_MAX_VARIANTS], 6);
}
