/*
 * The key text: everything that decides which code a graph gets, as bytes that people can read and that parse back.
 *
 *     name=<length>:<bytes>\n        lines in a fixed order, so that two different keys cannot read alike
 *
 * Two parts, each hashed on its own for the name of an entry:
 *
 *   maker    who can make and run the code: entry format, library version and build, LLVM version, target (triple, CPU, features; or
 *            SM, PTX and driver version), every KEYED option
 *   graph    the canonical graph (ops, attributes, wiring, ranks, marks) and its signature (dtypes, devices)
 *
 * Not in it: addresses, device ordinals, process ids, thread counts, paths, locale, NOT_KEYED options.
 * cache/maker.c writes the first part, runtime/eval/key_text.c the second.
 */
#ifndef CACHE_KEY_TEXT_H
#define CACHE_KEY_TEXT_H

#include "ir/base/hash.h"
#include "ir/base/str.h"

#include <stdbool.h>

/* Appends a line. `name` is made of letters, digits, '_' and '.'. */
void key_line_add(Str *out, const char *name, const void *bytes, size_t n);

typedef struct KeyLine {
    const char *name, *bytes; /* into the text; not terminated */
    size_t name_bytes, n;
} KeyLine;

/* The line at *at, which moves past it. false: no whole line is there (*at == end: the text is complete). */
bool key_line_next(const char **at, const char *end, KeyLine *line);

/* Is the text whole lines and nothing else? */
bool key_lines_whole(const char *text, size_t n);
/* The value of the first line of this name, *n bytes; NULL: there is none. */
const char *key_line_find(const char *text, size_t bytes, const char *name, size_t *n);

/* The first line in which two texts differ; false: they are equal. A text that ends earlier gives an empty line (name NULL). */
bool key_lines_differ(const char *a, size_t a_bytes, const char *b, size_t b_bytes, KeyLine *of_a, KeyLine *of_b);

/* A whole key: parts in order. */
typedef struct KeyText {
    const char *maker, *graph; /* borrowed */
    size_t maker_bytes, graph_bytes;
} KeyText;

#endif
