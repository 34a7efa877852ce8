/*
 * A target: LLVMFuzzerTestOneInput gives some bytes to a parser and requires what must hold for any bytes at all. libFuzzer calls
 * it with inputs of its own making (preset fuzz), replay.c with the files of corpus/ (every other preset).
 */
#ifndef TESTS_LIBFUZZER_TARGET_H
#define TESTS_LIBFUZZER_TARGET_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/* Aborts, which libFuzzer takes for a crash and keeps the input of. */
#define REQUIRE(condition, ...)                                             \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
            fprintf(stderr, __VA_ARGS__);                                   \
            fprintf(stderr, "\n");                                          \
            abort();                                                        \
        }                                                                   \
    } while (0)

#endif
