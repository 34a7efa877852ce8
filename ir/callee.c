/* What CUSTOM nodes call, as a value and as text (ir/callee.h). */
#include "ir/callee.h"
#include "ir/text.h"

#include <inttypes.h>
#include <string.h>

static bool word_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '+' || c == '-';
}

bool callee_word(const char *text)
{
    size_t n = 0;
    while (n < CALLEE_NAME && word_char(text[n]))
        n++;
    return n > 0 && n < CALLEE_NAME && !text[n];
}

bool callee_equal(const Callee *a, const Callee *b)
{
    return !strcmp(a->name, b->name) && !strcmp(a->version, b->version) && a->image.lo == b->image.lo && a->image.hi == b->image.hi &&
           a->bytes == b->bytes && (a->bytes == 0 || memcmp(a->attributes, b->attributes, a->bytes) == 0);
}

Callee *callee_copy(Arena *arena, const Callee *callee)
{
    Callee *copy = ARENA_NEW(arena, Callee);
    *copy = *callee;
    copy->name = arena_copy(arena, callee->name, strlen(callee->name) + 1);
    copy->version = arena_copy(arena, callee->version, strlen(callee->version) + 1);
    copy->attributes = arena_copy(arena, callee->attributes, callee->bytes);
    return copy;
}

/* ---- text ---- */

void callee_print(const Callee *c, Str *out)
{
    str_printf(out, "%s %s%s", c->name, c->version, c->ordered ? " ordered" : "");
    if (c->image.lo || c->image.hi)
        str_printf(out, " image:%016" PRIx64 "%016" PRIx64, c->image.hi, c->image.lo);
    if (c->bytes)
        str_printf(out, " bytes:");
    for (size_t k = 0; k < c->bytes; k++)
        str_printf(out, "%02x", ((const uint8_t *)c->attributes)[k]);
}

static int digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

/* The next n / 2 bytes; false: no such digits. */
static bool parse_bytes(Scan *s, size_t n, uint8_t *to)
{
    for (size_t k = 0; k < n; k++) {
        int high = digit(s->at[0]), low = high < 0 ? -1 : digit(s->at[1]);
        if (low < 0)
            return false;
        to[k] = (uint8_t)(high << 4 | low);
        s->at += 2;
    }
    return true;
}

static Status parse_word(Scan *s, Arena *arena, const char **out)
{
    size_t n = 0;
    scan_skip(s);
    while (word_char(s->at[n]))
        n++;
    char *word = arena_alloc(arena, n + 1);
    memcpy(word, s->at, n);
    word[n] = 0;
    *out = word;
    if (!callee_word(word))
        return scan_bad(s, "expected a name or version");
    s->at += n;
    return ST_OK;
}

Status callee_parse(Scan *s, Arena *arena, Callee **out)
{
    Callee *c = *out = ARENA_NEW(arena, Callee);
    TRY(parse_word(s, arena, &c->name));
    TRY(parse_word(s, arena, &c->version));
    c->ordered = scan_accept_word(s, "ordered");
    if (scan_accept_word(s, "image")) {
        uint8_t hash[16] = {0};
        TRY(scan_expect(s, ':'));
        if (!parse_bytes(s, sizeof hash, hash))
            return scan_bad(s, "expected 32 digits");
        for (int k = 0; k < 16; k++)
            *(k < 8 ? &c->image.hi : &c->image.lo) = *(k < 8 ? &c->image.hi : &c->image.lo) << 8 | hash[k];
    }
    if (scan_accept_word(s, "bytes")) {
        TRY(scan_expect(s, ':'));
        while (digit(s->at[c->bytes]) >= 0)
            c->bytes++;
        c->bytes /= 2;
        uint8_t *bytes = arena_alloc(arena, c->bytes + 1);
        if (!parse_bytes(s, c->bytes, bytes))
            return scan_bad(s, "expected digits");
        c->attributes = bytes;
    }
    return scan_expect(s, ')');
}
