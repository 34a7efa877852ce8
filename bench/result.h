/*
 * What a benchmark found: rows with a name, a value and an aim, printed as they come, and written as JSON, as
 * a table for a README, or as lines of text that another program reads back (bench/gpu gathers the rows of
 * several programs, one of them in Python).
 *
 * A line of text has the members of Row in their order, with tabs between them:
 *     name, who, value, unit, aim, more|less, ok|failed|skipped, note
 */
#ifndef BENCH_RESULT_H
#define BENCH_RESULT_H

#include <stdbool.h>
#include <stdio.h>

typedef enum Outcome { ROW_OK, ROW_FAILED, ROW_SKIPPED } Outcome;

typedef struct Row {
    char name[80]; /* "a: time" */
    char who[24];  /* the program measured where there are several: "kiln", "torch"; else "" */
    double value;
    char unit[12];
    double aim;    /* 0: none */
    bool at_least; /* more is better: the value should be at least the aim */
    Outcome outcome;
    char note[240]; /* why it failed, or a fact that is no number */
} Row;

/* Adds a row and prints it as a line. */
void result(const char *name, double value, const char *unit, double aim, bool at_least);
void named_result(const char *workload, const char *what, double value, const char *unit, double aim, bool at_least);
void add_row(const Row *row); /* without printing */

const Row *all_rows(int *n);
bool row_meets_aim(const Row *row);

/* JSON: an object with the library's version, the members in `more` (JSON text: "\"cpus\": 2", or ""), and
 * "results", the rows. 0: written. */
int write_json(const char *path, const char *more);
/* The rows as a table; `head` stands over its first column. 0: written. */
int write_markdown(const char *path, const char *head);
/* Lines of text: one row added to a file that is open, all rows of a file read (-1: cannot, else how many
 * lines were malformed). */
void write_line(FILE *file, const Row *row);
int read_lines(const char *path);

/* Writes text as a JSON string. */
void json_text(FILE *file, const char *text);

#endif
