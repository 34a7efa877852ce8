/* What the examples ask of a file before they work for hours. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Refuses a path where no file can be written. What lies there stays as it is. */
static void check_writable(const char *option, const char *path)
{
    FILE *there = fopen(path, "rb"), *file = fopen(path, "ab");
    char why[200];
    snprintf(why, sizeof why, "%.100s cannot be written: %s", path, strerror(errno));
    if (!file)
        refuse(option, why);
    fclose(file);
    if (there)
        fclose(there);
    else
        remove(path);
}
