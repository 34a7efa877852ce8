/* Reading text forms: words, numbers and single characters, with blanks and comments from "//" to the end of the line between them; what is
 * wrong is told with its line and column. */
#ifndef IR_BASE_SCAN_H
#define IR_BASE_SCAN_H

#include "ir/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Scan {
    const char *text, *at; /* all of it, NUL-terminated, and where the scanner stands */
} Scan;

Status scan_bad(const Scan *s, const char *message); /* ST_FORMAT: "3:14: message", here */
Status scan_bad_because(const Scan *s);              /* the same with the reason that fail() already holds */
void scan_skip(Scan *s);
bool scan_accept(Scan *s, char c);
Status scan_expect(Scan *s, char c);
bool scan_word_char(char c);    /* a letter, a digit or '_' */
size_t scan_peek_word(Scan *s); /* length of the word at hand, which is not consumed; 0: none */
bool scan_accept_word(Scan *s, const char *word);
Status scan_int(Scan *s, int64_t *value);

#endif
