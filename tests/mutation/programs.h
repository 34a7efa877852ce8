/* Guards of the programs in the cache: what is printed against what is checked. */
#ifndef TESTS_MUTATION_PROGRAMS_H
#define TESTS_MUTATION_PROGRAMS_H

#include <stdint.h>

enum { PROGRAMS_KINDS = 4 }; /* kinds of guards */
const char *programs_kind(int kind);

typedef struct Agreement {
    int64_t programs, guards;
    int64_t held, broke; /* evaluations on which both said so */
    int64_t cut, disagreed;
    int64_t of_kind[PROGRAMS_KINDS]; /* guards by kind */
} Agreement;

/*
 * For every guard of every cached program: evaluates its text by guard_text.h and itself by guards_hold, on the facts that the
 * program was made for and on `rounds` sets of facts around them (random values, the numbers named in the guards and their
 * neighbours). `say` gets a line for each disagreement.
 */
Agreement programs_guards_agree(int rounds, void (*say)(void *user, const char *what), void *user);

#endif
