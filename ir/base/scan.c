#include "ir/base/scan.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Status scan_bad(const Scan *s, const char *message)
{
    int line = 1;
    const char *start = s->text;
    for (const char *c = s->text; c < s->at; c++)
        if (*c == '\n')
            line++, start = c + 1;
    return fail(ST_FORMAT, "%d:%d: %s", line, (int)(s->at - start) + 1, message);
}

Status scan_bad_because(const Scan *s)
{
    char reason[1024];
    snprintf(reason, sizeof reason, "%s", fail_message());
    return scan_bad(s, reason);
}

void scan_skip(Scan *s)
{
    for (;;) {
        while (isspace((unsigned char)*s->at))
            s->at++;
        if (s->at[0] != '/' || s->at[1] != '/')
            return;
        while (*s->at && *s->at != '\n')
            s->at++;
    }
}

bool scan_accept(Scan *s, char c)
{
    scan_skip(s);
    if (*s->at != c)
        return false;
    s->at++;
    return true;
}

Status scan_expect(Scan *s, char c)
{
    char message[32];
    snprintf(message, sizeof message, "expected '%c'", c);
    return scan_accept(s, c) ? ST_OK : scan_bad(s, message);
}

bool scan_word_char(char c) { return isalnum((unsigned char)c) || c == '_'; }

size_t scan_peek_word(Scan *s)
{
    size_t len = 0;
    scan_skip(s);
    while (scan_word_char(s->at[len]))
        len++;
    return len;
}

bool scan_accept_word(Scan *s, const char *word)
{
    size_t len = scan_peek_word(s);
    if (len != strlen(word) || memcmp(s->at, word, len) != 0)
        return false;
    s->at += len;
    return true;
}

Status scan_int(Scan *s, int64_t *value)
{
    scan_skip(s);
    char *end;
    errno = 0;
    if (!isdigit((unsigned char)*s->at) && *s->at != '-')
        return scan_bad(s, "expected a number");
    long long v = strtoll(s->at, &end, 10);
    if (end == s->at || errno)
        return scan_bad(s, end == s->at ? "expected a number" : "number out of range");
    s->at = end;
    *value = v;
    return ST_OK;
}
