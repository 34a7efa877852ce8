/* Broken on purpose: reads one byte past a guarded buffer. Without sanitizer, as generated code runs. */
#include "tests/support/guarded.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static void caught(int signal_)
{
    (void)signal_;
    static const char text[] = "the guard page was hit\n";
    _exit(write(1, text, sizeof text - 1) > 0 ? 3 : 4);
}

int main(int argc, char **argv)
{
    (void)argv;
    signal(SIGSEGV, caught);
    Guarded g = guarded_at_end(13, 0);
    volatile char *data = g.data;
    char last = data[12]; /* inside: must not fault */
    return data[12 + argc] + last;
}
