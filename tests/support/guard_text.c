/* See guard_text.h. */
#include "tests/support/guard_text.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct Text {
    const char *at;
    const int64_t *ints;
    bool bad, cut;
} Text;

static uint64_t text_sum(Text *t);

static bool take(Text *t, const char *word)
{
    while (isspace((unsigned char)*t->at))
        t->at++;
    if (strncmp(t->at, word, strlen(word)) != 0)
        return false;
    t->at += strlen(word);
    return true;
}

static uint64_t text_atom(Text *t)
{
    char *end;
    if (take(t, "...")) {
        t->cut = true;
        return 0;
    }
    if (take(t, "(")) {
        uint64_t value = text_sum(t);
        t->bad |= !take(t, ")");
        return value;
    }
    bool fact = take(t, "s");
    int64_t value = strtoll(t->at, &end, 10);
    t->bad |= end == t->at;
    t->at = end;
    return (uint64_t)(fact && !t->bad ? t->ints[value] : value);
}

static uint64_t text_product(Text *t)
{
    uint64_t value = text_atom(t);
    while (take(t, "*"))
        value *= text_atom(t);
    return value;
}

static uint64_t text_sum(Text *t)
{
    uint64_t value = text_product(t);
    while (take(t, "+"))
        value += text_product(t);
    return value;
}

TextGuard text_guard(const char *text, const int64_t *ints, const TextScalar *scalars)
{
    Text t = {.at = text, .ints = ints};
    bool holds = true;
    char *end;
    if (take(&t, "k")) {
        const TextScalar *scalar = &scalars[strtoul(t.at, &end, 10)];
        double value = scalar->value;
        t.at = end;
        if (!take(&t, "=="))
            return TEXT_BAD;
        double wanted = scalar->single ? (double)strtof(t.at, &end) : strtod(t.at, &end);
        bool same = memcmp(&value, &wanted, sizeof value) == 0 || (value != value && wanted != wanted);
        return *end || end == t.at ? TEXT_BAD : same ? TEXT_HOLDS : TEXT_BROKEN;
    }
    int64_t left = (int64_t)text_sum(&t);
    while (!t.bad && *t.at) {
        bool equal = take(&t, "==");
        t.bad |= !equal && !take(&t, "<=");
        int64_t right = (int64_t)text_sum(&t);
        holds &= equal ? left == right : left <= right;
        left = right;
    }
    return t.bad ? TEXT_BAD : t.cut ? TEXT_CUT : holds ? TEXT_HOLDS : TEXT_BROKEN;
}
