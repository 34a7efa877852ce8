/*
 * Arguments of the examples' programs: numbers that are checked, and what is said of others. What a program refuses ends it with status 2.
 * Each program says who it is: `static const char program[]`, before this is included.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* what: the argument at fault; NULL: one that is missing */
static void refuse(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s%s%s; see --help\n", program, what ? what : "", what ? ": " : "", why);
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

/* An option and where its value goes: the one pointer that is not NULL. */
typedef struct Known {
    const char *name;
    long *whole, least, most;
    double *number, low, high;
    const char **text;
    bool *flag; /* takes no value */
} Known;

/* argv[*i] is one of n options: takes its value. */
static inline void take_option(const Known *known, size_t n, int argc, char **argv, int *i)
{
    const char *name = argv[*i];
    size_t k = 0;
    while (k < n && strcmp(name, known[k].name))
        k++;
    if (k == n)
        refuse(name, "there is no such option");
    if (known[k].flag) {
        *known[k].flag = true;
        return;
    }
    if (++*i == argc)
        refuse(name, "a value is needed");
    if (known[k].whole)
        *known[k].whole = whole(name, argv[*i], known[k].least, known[k].most);
    else if (known[k].number)
        *known[k].number = number(name, argv[*i], known[k].low, known[k].high);
    else
        *known[k].text = argv[*i];
}

/* --help, wherever it stands. */
static inline void help_if_asked(const char *help, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help")) {
            fputs(help, stdout);
            exit(0);
        }
}
