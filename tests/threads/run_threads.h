/* n threads, each given its number, until all have ended. */
#ifndef TESTS_THREADS_RUN_THREADS_H
#define TESTS_THREADS_RUN_THREADS_H

#include <pthread.h>
#include <stdlib.h>

static inline void run_threads(int n, void *(*work)(void *number))
{
    pthread_t *thread = calloc((size_t)n, sizeof *thread);
    int *number = calloc((size_t)n, sizeof *number);
    for (int i = 0; i < n; i++) {
        number[i] = i;
        if (!thread || !number || pthread_create(&thread[i], NULL, work, &number[i]) != 0)
            exit(2);
    }
    for (int i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
    free(thread);
    free(number);
}

#endif
