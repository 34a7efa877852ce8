/* Lines of words: see records.h. Written by the library, read by the command. */
#include "cache/records.h"

#include <inttypes.h>
#include <string.h>

static const struct {
    const char *name, *help;
} counters[COUNTER_COUNT] = {
#define COUNTER(id, name, help) {name, help},
#include "cache/counters.def"
#undef COUNTER
};

const char *counter_name(CounterId id) { return counters[id].name; }
const char *counter_help(CounterId id) { return counters[id].help; }

/* ---- writing ---- */

static bool breaks_word(char c) { return (unsigned char)c <= ' ' || c == 127; }

void record_text(Str *line, const char *name, const char *value)
{
    str_printf(line, "%s%s=%s", line->len && line->text[line->len - 1] != '\n' ? " " : "", name, value);
    for (size_t i = line->len - strlen(value); i < line->len; i++)
        if (breaks_word(line->text[i]))
            line->text[i] = '_';
}

void record_number(Str *line, const char *name, int64_t value)
{
    str_printf(line, "%s%s=%" PRId64, line->len && line->text[line->len - 1] != '\n' ? " " : "", name, value);
}

void record_end(Str *line) { str_printf(line, "\n"); }

void record_miss(Str *line, const MissRecord *miss)
{
    record_number(line, "time", miss->time);
    record_text(line, "where", miss->where);
    record_text(line, "reason", miss->reason);
    record_text(line, "key", miss->key);
    str_printf(line, " ints=");
    for (uint32_t i = 0; i < miss->facts.n_ints; i++)
        str_printf(line, "%s%" PRId64, i ? "," : "", miss->facts.ints[i]);
    str_printf(line, " scalars=");
    for (uint32_t i = 0; i < miss->facts.n_scalars; i++)
        str_printf(line, "%s%" PRIx64, i ? "," : "", miss->facts.scalars[i]);
    record_end(line);
}

/* ---- reading ---- */

bool record_next(const char **at, const char *end, RecordWord *word)
{
    const char *c = *at;
    for (;;) {
        while (c < end && *c == ' ')
            c++;
        const char *from = c, *equals = NULL;
        while (c < end && !breaks_word(*c)) {
            if (*c == '=' && !equals)
                equals = c;
            c++;
        }
        *at = c;
        if (c == from)
            return false;
        if (equals > from) { /* otherwise no word of ours: skipped */
            *word = (RecordWord){from, equals + 1, (size_t)(equals - from), (size_t)(c - equals - 1)};
            return true;
        }
    }
}

bool record_is(const RecordWord *word, const char *name)
{
    return strlen(name) == word->name_bytes && memcmp(name, word->name, word->name_bytes) == 0;
}

static int digit_of(char c, unsigned base)
{
    int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    return d < (int)base ? d : -1;
}

/* A number of digits alone that fits 64 bits. */
static bool read_digits(const char *text, size_t n, unsigned base, uint64_t *out)
{
    uint64_t value = 0;
    if (!n)
        return false;
    for (size_t i = 0; i < n; i++) {
        int d = digit_of(text[i], base);
        if (d < 0 || value > (UINT64_MAX - (uint64_t)d) / base)
            return false;
        value = value * base + (uint64_t)d;
    }
    *out = value;
    return true;
}

static bool read_int(const char *text, size_t n, int64_t *out)
{
    bool minus = n && *text == '-';
    uint64_t value = 0;
    if (!read_digits(text + minus, n - minus, 10, &value) || value > (uint64_t)INT64_MAX + minus)
        return false;
    *out = (int64_t)(minus ? 0 - value : value);
    return true;
}

bool record_int(const RecordWord *word, int64_t *value) { return read_int(word->value, word->n, value); }

/* "1,2,3", decimal and signed or hexadecimal, as 64-bit words in the arena. */
static bool read_list(const RecordWord *word, bool hex, Arena *arena, uint64_t **out, uint32_t *n)
{
    uint32_t count = word->n ? 1 : 0;
    for (size_t i = 0; i < word->n; i++)
        count += word->value[i] == ',';
    *out = ARENA_ARRAY(arena, uint64_t, count);
    *n = count;
    const char *at = word->value, *end = word->value + word->n;
    for (uint32_t i = 0; i < count; i++) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        size_t length = (size_t)((comma ? comma : end) - at);
        if (hex ? !read_digits(at, length, 16, *out + i) : !read_int(at, length, (int64_t *)*out + i))
            return false;
        at += length + 1;
    }
    return true;
}

bool record_read_miss(const char *line, size_t n, Arena *arena, MissRecord *out)
{
    const char *at = line, *end = line + n;
    uint64_t *ints = NULL, *scalars = NULL;
    bool good = true;
    RecordWord word;
    *out = (MissRecord){.where = "", .reason = "", .key = NULL};
    while (record_next(&at, end, &word)) {
        if (record_is(&word, "time"))
            good &= record_int(&word, &out->time);
        else if (record_is(&word, "where"))
            out->where = arena_printf(arena, "%.*s", (int)word.n, word.value);
        else if (record_is(&word, "reason"))
            out->reason = arena_printf(arena, "%.*s", (int)word.n, word.value);
        else if (record_is(&word, "key"))
            out->key = arena_printf(arena, "%.*s", (int)word.n, word.value);
        else if (record_is(&word, "ints"))
            good &= read_list(&word, false, arena, &ints, &out->facts.n_ints);
        else if (record_is(&word, "scalars"))
            good &= read_list(&word, true, arena, &scalars, &out->facts.n_scalars);
    }
    out->facts.ints = (const int64_t *)ints;
    out->facts.scalars = scalars;
    return good && out->key;
}
