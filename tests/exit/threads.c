/* threads N MICROSECONDS: N threads compile one program after another; main returns so soon. */
#include "tests/exit/work.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *compile_for_ever(void *first)
{
    for (unsigned i = (unsigned)(uintptr_t)first;; i += 7)
        if (!compute_new(i)) {
            fprintf(stderr, "a thread: %s\n", kiln_error_message());
            _exit(1);
        }
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return fprintf(stderr, "usage: threads N MICROSECONDS\n"), 2;
    for (int i = 0; i < atoi(argv[1]); i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, compile_for_ever, (void *)(uintptr_t)(i * 1000)) != 0)
            return 1;
    }
    usleep((useconds_t)atoi(argv[2]));
    return 0;
}
