/*
 * Arguments of the examples' programs: numbers that are checked, and what is said of others. What a program refuses ends it with status 2.
 * Each program says who it is: `static const char program[]`, before this is included.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static void refuse(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s: %s; see --help\n", program, what, why);
    exit(2);
}

static long whole(const char *name, const char *text, long least, long most)
{
    char *end, why[90];
    errno = 0;
    long value = strtol(text, &end, 10);
    snprintf(why, sizeof why, "\"%.20s\" is no whole number from %ld to %ld", text, least, most);
    if (errno || end == text || *end || value < least || value > most)
        refuse(name, why);
    return value;
}

static double number(const char *name, const char *text, double least, double most)
{
    char *end, why[90];
    double value = strtod(text, &end);
    snprintf(why, sizeof why, "\"%.20s\" is no number from %g to %g", text, least, most);
    if (end == text || *end || !(value >= least && value <= most))
        refuse(name, why);
    return value;
}
