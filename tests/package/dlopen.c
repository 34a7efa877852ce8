/*
 * dlopen LIBRARY: the library can be loaded by a program that is already running (a plug-in, a binding of another language),
 * computes, reports an error, and stays usable for its own threads when it is closed again.
 */
#define KILN_NO_LOCATIONS
#include <kiln.h>

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SYMBOL(name)                                                                               \
    __typeof__(name) *p_##name;                                                                    \
    {                                                                                              \
        void *at = dlsym(library, #name);                                                          \
        memcpy(&p_##name, &at, sizeof at);                                                         \
        if (!at)                                                                                   \
            return fprintf(stderr, "%s\n", dlerror()), 1;                                          \
    }

int main(int argc, char **argv)
{
    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library)
        return fprintf(stderr, "%s\n", argc == 2 ? dlerror() : "usage: dlopen LIBRARY"), 1;
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
    dlclose(library);
    usleep(20000);
    puts("loaded, computed, closed");
    return 0;
}
