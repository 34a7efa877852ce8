/*
 * A line on stderr that says how far long work is, where that is a terminal: drawn over again and again, gone at the end. Work that ends
 * soon draws none. Whoever writes other lines there clears it first; it is drawn under one lock at a time (the log's; the command has one thread).
 */
#ifndef IR_BASE_PROGRESS_LINE_H
#define IR_BASE_PROGRESS_LINE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct ProgressLine {
    double began, first, drawn; /* os_seconds: its work began, it may be drawn from then on, it was drawn last */
    bool terminal;
} ProgressLine;

ProgressLine progress_line_begin(bool at_once);   /* at_once: drawn the first time that it can be */
bool progress_line_due(const ProgressLine *line); /* some time after the beginning, and after it was drawn last: then draw it */
/* "text" for now, cut to the terminal's width; control characters become '?'. */
void progress_line_draw(ProgressLine *line, const char *text);
void progress_line_clear(void); /* none is there: nothing */
/* "3 of 40, 2.1 s"; what is left at this rate follows where that can be told. */
void progress_line_count(char *out, size_t size, double done, double total, double seconds);
/* Of a loop: "verify: 3 of 40, 2.1 s", where it is due. */
void progress_line_step(ProgressLine *line, const char *what, double done, double total);

#endif
