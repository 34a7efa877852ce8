/*
 * early none|used|async: computes in a handler of atexit that was registered before kiln was used: the first thing of all, after the main
 * program computed something else, or while the thread in the background compiles.
 */
#include "tests/exit/work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void late(void)
{
    for (unsigned i = 0; i < 3; i++)
        if (!compute_new(i * 1234 + 77)) {
            fprintf(stderr, "the handler: %s\n", kiln_error_message());
            _exit(1);
        }
    puts("computed in the handler");
}

int main(int argc, char **argv)
{
    const char *how = argc == 2 ? argv[1] : "";
    if (atexit(late) != 0)
        return 1;
    if (strcmp(how, "async") == 0 && kiln_set_option("async_compile", "1") != KILN_OK)
        return 1;
    for (unsigned i = 0; i < 3 && strcmp(how, "none") != 0; i++)
        if (!compute_new(i + 1))
            return 1;
    return 0;
}
