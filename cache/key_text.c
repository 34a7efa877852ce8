/* Key texts: lines of name=<length>:<bytes>. There is one way to write a text, so only that one is read. */
#include "cache/key_text.h"

#include <string.h>

void key_line_add(Str *out, const char *name, const void *bytes, size_t n)
{
    str_printf(out, "%s=%zu:", name, n);
    str_add(out, bytes, n);
    str_add(out, "\n", 1);
}

static bool name_char(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.'; }

bool key_line_next(const char **at, const char *end, KeyLine *line)
{
    const char *c = *at, *name = c;
    while (c < end && name_char(*c))
        c++;
    size_t name_bytes = (size_t)(c - name);
    if (name_bytes == 0 || c == end || *c++ != '=')
        return false;
    const char *digits = c;
    size_t n = 0;
    for (; c < end && *c >= '0' && *c <= '9'; c++) {
        if (n > (SIZE_MAX - 9) / 10)
            return false;
        n = n * 10 + (size_t)(*c - '0');
    }
    bool plain = c > digits && (digits[0] != '0' || c == digits + 1); /* no leading zeros */
    if (!plain || c == end || *c++ != ':' || n >= (size_t)(end - c) || c[n] != '\n')
        return false;
    *line = (KeyLine){name, c, name_bytes, n};
    *at = c + n + 1;
    return true;
}

bool key_lines_whole(const char *text, size_t n)
{
    const char *at = text, *end = text + n;
    KeyLine line;
    while (key_line_next(&at, end, &line))
        continue;
    return at == end;
}

const char *key_line_find(const char *text, size_t bytes, const char *name, size_t *n)
{
    const char *at = text, *end = text + bytes;
    KeyLine line;
    while (key_line_next(&at, end, &line))
        if (line.name_bytes == strlen(name) && memcmp(line.name, name, line.name_bytes) == 0) {
            *n = line.n;
            return line.bytes;
        }
    *n = 0;
    return NULL;
}

bool key_lines_differ(const char *a, size_t a_bytes, const char *b, size_t b_bytes, KeyLine *of_a, KeyLine *of_b)
{
    const char *a_end = a + a_bytes, *b_end = b + b_bytes;
    for (;;) {
        *of_a = *of_b = (KeyLine){0};
        bool in_a = key_line_next(&a, a_end, of_a), in_b = key_line_next(&b, b_end, of_b);
        if (!in_a && !in_b)
            return a_end - a != b_end - b || memcmp(a, b, (size_t)(a_end - a)) != 0; /* what is no line */
        if (!in_a || !in_b || of_a->name_bytes != of_b->name_bytes || of_a->n != of_b->n ||
            memcmp(of_a->name, of_b->name, of_a->name_bytes) != 0 || memcmp(of_a->bytes, of_b->bytes, of_a->n) != 0)
            return true;
    }
}
