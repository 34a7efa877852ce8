/* Broken on purpose: leaks. The gate: LeakSanitizer's report at exit. */
#include <stdlib.h>

int main(void)
{
    void *volatile lost = malloc(100);
    lost = NULL;
    return lost != NULL;
}
