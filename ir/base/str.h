/* A growing text in an arena; `text` is always NUL-terminated once str_printf was called. */
#ifndef IR_BASE_STR_H
#define IR_BASE_STR_H

#include "ir/base/arena.h"

typedef struct Str {
    Arena *arena;
    char *text;
    size_t len, cap;
} Str;

void str_init(Str *str, Arena *arena); /* empty text "" */
void str_printf(Str *str, const char *format, ...) __attribute__((format(printf, 2, 3)));
void str_add(Str *str, const char *text, size_t len);

/* How many letters must change to make one word of the other (Levenshtein), for words of at most 32 letters: what was meant? */
size_t str_distance(const char *a, const char *b);

#endif
