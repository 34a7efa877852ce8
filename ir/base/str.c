/* A growing text in an arena: doubles when full, so appending n characters costs O(n). */
#include "ir/base/str.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void str_init(Str *str, Arena *arena) { *str = (Str){.arena = arena, .text = arena_alloc(arena, 64), .cap = 64}; }

/* Makes room for `more` characters and the final NUL. */
static void reserve(Str *str, size_t more)
{
    size_t want = str->len + more + 1;
    if (want <= str->cap)
        return;
    size_t cap = str->cap ? str->cap * 2 : 64;
    while (cap < want)
        cap *= 2;
    char *text = arena_alloc(str->arena, cap);
    if (str->len)
        memcpy(text, str->text, str->len);
    str->text = text;
    str->cap = cap;
}

void str_add(Str *str, const char *text, size_t len)
{
    reserve(str, len);
    if (len)
        memcpy(str->text + str->len, text, len);
    str->len += len;
    str->text[str->len] = 0;
}

void str_printf(Str *str, const char *format, ...)
{
    char small[256];
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int len = vsnprintf(small, sizeof small, format, args);
    va_end(args);
    if (len >= 0 && (size_t)len < sizeof small) {
        str_add(str, small, (size_t)len);
    } else if (len > 0) {
        reserve(str, (size_t)len);
        vsnprintf(str->text + str->len, (size_t)len + 1, format, again);
        str->len += (size_t)len;
    }
    va_end(again);
}

size_t str_distance(const char *a, const char *b)
{
    enum { LONGEST = 32 };
    size_t n = strlen(a), m = strlen(b), row[LONGEST + 1];
    if (n > LONGEST || m > LONGEST)
        return LONGEST;
    for (size_t j = 0; j <= m; j++)
        row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            size_t least = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            row[j] = change < least ? change : least;
        }
    }
    return row[m];
}
