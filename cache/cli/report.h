/*
 * `kiln report`: what a run left (a timeline, dumps, entries of the cache) as one page. The C side gathers data as JSON, bounded whatever the
 * input's size; the page, report/, shows it. Shared by its files: report.c (command line, page), report_trace.c, report_program.c.
 */
#ifndef CACHE_CLI_REPORT_H
#define CACHE_CLI_REPORT_H

#include "cache/cli/entries.h"
#include "cache/cli/trace_read.h"

/* Texts that stand in the page many times: each once, by number; 0 is "". */
typedef struct Strings {
    VEC(const char *) at;
    HashTable table;
    size_t bytes;
    bool full; /* texts were left out */
} Strings;

typedef struct Report {
    Cli *cli;
    json_t *root, *sources, *notes, *programs;
    Store store; /* of the entries; opened by the first one */
    Strings strings;
    Arena *scratch; /* for the event, the program at hand */
    size_t text;    /* bytes of code and graphs that there is still room for */
    uint32_t n_traces;
    bool text_left_out;
} Report;

json_int_t report_string(Report *report, const char *text);
/* A line of "what is not here", to the page. */
void report_note(Report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The source that the following comes of: its row. */
json_t *report_source(Report *report, const char *kind, const char *path);
/* Each adds a source. END_FINE, or the status to end with, all being said. */
int report_trace(Report *report, const char *path);
int report_dump(Report *report, const char *path);
int report_entry(Report *report, const char *key);

#endif
