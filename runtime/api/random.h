/* The process's stream of random numbers: a key (the seed) and how many counters were drawn. */
#ifndef RUNTIME_RANDOM_H
#define RUNTIME_RANDOM_H

#include <stdint.h>

uint64_t random_advance(uint64_t count); /* takes the next `count` counters; returns the first */
/* Gives the counters that random_advance took back, unless others were taken since. */
void random_rewind(uint64_t first, uint64_t count);
uint64_t random_key(void);

#endif
