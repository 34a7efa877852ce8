/*
 * The key text: everything that decides which code a graph gets, as bytes that people can read and that parse back.
 *
 *     name=<length>:<bytes>\n        lines in a fixed order, so that two different keys cannot read alike
 *
 * Two parts, each hashed on its own for the name of an entry:
 *
 *   maker    who can make and run the code: entry format, library build, LLVM version, target (triple, CPU, features, or SM, PTX and
 *            driver version), every KEYED option
 *   graph    the canonical graph (ops, attributes, wiring, ranks, marks) and its signature (dtypes, devices)
 *
 * Not in it: addresses, device ordinals, process ids, thread counts, paths, locale, NOT_KEYED options.
 */
#ifndef CACHE_KEY_TEXT_H
#define CACHE_KEY_TEXT_H

#include "ir/base/hash.h"
#include "ir/base/str.h"

#include <stdbool.h>

void key_line_add(Str *out, const char *name, const void *bytes, size_t n);

typedef struct KeyLine {
    const char *name, *bytes;   /* into the text; not terminated */
    size_t name_bytes, n;
} KeyLine;

/* The line at *at, which moves past it. false: no whole line is there (*at == end: the text is complete). */
bool key_line_next(const char **at, const char *end, KeyLine *line);

/* A whole key: parts in order. */
typedef struct KeyText {
    const char *maker, *graph;  /* borrowed */
    size_t maker_bytes, graph_bytes;
} KeyText;

#endif
