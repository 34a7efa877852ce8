/* What keeps an entry from serving a call, and what differs between keys, in words. Shared by diff, why and import. */
#ifndef CACHE_CLI_COMPARE_H
#define CACHE_CLI_COMPARE_H

#include "cache/cli/entries.h"

/* The guards of an entry held against the facts of a call. */
typedef struct Verdict {
    bool comparable;     /* the call has as many facts as the entry's graph */
    uint32_t failing;    /* guards that do not hold; 0 and comparable: the entry serves it */
    const char *guard;   /* the first of them, "s0 == 4096" */
    const char *failure; /* "expected 4096, found 128" */
    const char *who;     /* who asked for it */
    const char *kind;    /* a reason's name */
} Verdict;
Verdict judge(const EntryView *entry, const Facts *facts, Arena *arena);

/* One line that two key texts do not share; NULL: it is missing there. */
typedef struct LineDiff {
    const char *name, *a, *b;
} LineDiff;
/* In the order of a, then what b alone has. In the arena. */
uint32_t diff_lines(const char *a, size_t a_bytes, const char *b, size_t b_bytes, Arena *arena, LineDiff **out);
/* The difference of two values in a sentence: for lists of words what each has alone. a and b say where: "in the first", "here". */
const char *diff_text(const LineDiff *diff, const char *a, const char *b, Arena *arena);
#endif
