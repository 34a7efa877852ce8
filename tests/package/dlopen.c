/*
 * dlopen LIBRARY: the library can be loaded by a program that is already running (a plug-in, a binding of another language),
 * leaves the floating-point modes as they are, computes, reports an error, stays usable for its own threads when it is closed
 * again, and may be opened and closed in a loop: memory, mappings and threads stay as many as they were.
 */
#define KILN_NO_LOCATIONS
#include <kiln.h>

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SYMBOL(name)                                      \
    __typeof__(name) *p_##name;                           \
    {                                                     \
        void *at = dlsym(library, #name);                 \
        memcpy(&p_##name, &at, sizeof at);                \
        if (!at)                                          \
            return fprintf(stderr, "%s\n", dlerror()), 1; \
    }

static unsigned float_modes(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_stmxcsr() & ~0x3fu;
#else
    return 0;
#endif
}

static long count_lines(const char *path)
{
    long lines = 0;
    FILE *f = fopen(path, "r");
    for (int c; f && (c = getc(f)) != EOF;)
        lines += c == '\n';
    if (f)
        fclose(f);
    return lines;
}

static long threads(void)
{
    long n = -1;
    char line[256];
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "Threads: %ld", &n) == 1)
            break;
    if (f)
        fclose(f);
    return n;
}

/* Opens, computes, closes. */
static int once(const char *path)
{
    unsigned modes = float_modes();
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return fprintf(stderr, "%s\n", dlerror()), 1;
    if (float_modes() != modes)
        return fprintf(stderr, "loading changed the floating-point modes\n"), 1;
    SYMBOL(kiln_full)
    SYMBOL(kiln_sum)
    SYMBOL(kiln_add)
    SYMBOL(kiln_item)
    SYMBOL(kiln_reshape)
    SYMBOL(kiln_error_message)
    double total = 0;
    kiln_tensor *x = p_kiln_full(KILN_F32, KILN_SHAPE(1 << 20), 0.5); /* large enough for the thread pool */
    if (p_kiln_item(p_kiln_sum(p_kiln_add(x, x)), &total) != KILN_OK || total != 1 << 20)
        return fprintf(stderr, "sum is %g: %s\n", total, p_kiln_error_message()), 1;
    if (p_kiln_reshape(x, KILN_SHAPE(3)) || !strstr(p_kiln_error_message(), "kiln_reshape"))
        return fprintf(stderr, "no error: %s\n", p_kiln_error_message()), 1;
    if (float_modes() != modes)
        return fprintf(stderr, "computing changed the floating-point modes\n"), 1;
    dlclose(library);
    return 0;
}

int main(int argc, char **argv)
{
    enum { TIMES = 40 };
    long maps = 0, running = 0;
    if (argc != 2)
        return fprintf(stderr, "usage: dlopen LIBRARY\n"), 2;
    for (int i = 0; i < TIMES; i++) {
        if (once(argv[1]) != 0)
            return 1;
        if (i == 2) {
            usleep(20000);
            maps = count_lines("/proc/self/maps");
            running = threads();
        }
    }
    for (int wait = 0; wait < 3000 && threads() > running; wait++) /* a joined thread may still be going */
        usleep(20000);
    if (threads() > running || count_lines("/proc/self/maps") > maps + 4)
        return fprintf(stderr, "threads %ld, then %ld; mappings %ld, then %ld\n", running, threads(), maps, count_lines("/proc/self/maps")),
               1;
    puts("loaded, computed, closed");
    return 0;
}
