/* Broken on purpose: writes one byte past a heap block. */
#include <stdlib.h>

int main(int argc, char **argv)
{
    (void)argv;
    char *block = malloc(8);
    block[7 + argc] = 1;
    free(block);
    return 0;
}
