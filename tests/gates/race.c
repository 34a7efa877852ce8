/* Broken on purpose: two threads count without a lock. */
#include <pthread.h>
#include <stddef.h>

static int counter;

static void *count(void *unused)
{
    (void)unused;
    for (int i = 0; i < 10000; i++)
        counter++;
    return NULL;
}

int main(void)
{
    pthread_t a, b;
    pthread_create(&a, NULL, count, NULL);
    pthread_create(&b, NULL, count, NULL);
    pthread_join(a, NULL);
    pthread_join(b, NULL);
    return 0;
}
