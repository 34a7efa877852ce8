/* Guards against facts, key lines against key lines: see compare.h. */
#include "cache/cli/compare.h"

#include <string.h>

enum { LONG_VALUE = 60 };

Verdict judge(const EntryView *entry, const Facts *facts, Arena *arena)
{
    const GuardSet *set = &entry->plan->guards;
    Verdict verdict = {.comparable = facts->n_ints == entry->facts.n_ints && facts->n_scalars == entry->facts.n_scalars};
    if (!verdict.comparable)
        return verdict;
    int64_t *sizes = ARENA_ARRAY(arena, int64_t, set->sizes.n + 1);
    sizes_eval(&set->sizes, facts->ints, sizes);
    for (uint32_t i = 0; i < set->n; i++) {
        const Guard *guard = &set->at[i];
        if (guard_holds(guard, sizes, facts) || verdict.failing++)
            continue;
        Str text, failure;
        str_init(&text, arena);
        str_init(&failure, arena);
        guard_print(set, guard, &text);
        guard_print_failure(guard, sizes, facts, &failure);
        verdict.guard = text.text;
        verdict.failure = failure.text;
        verdict.who = guard->who;
        verdict.kind = reason_name(guard_reason(guard));
    }
    return verdict;
}

/* ---- key lines ---- */

typedef struct Lines {
    uint32_t n;
    KeyLine *at;
} Lines;

static Lines split(const char *text, size_t bytes, Arena *arena)
{
    VEC(KeyLine) lines = {0};
    const char *at = text, *end = text + bytes;
    KeyLine line;
    while (key_line_next(&at, end, &line))
        VEC_PUSH(arena, lines, line);
    return (Lines){.n = lines.n, .at = lines.at};
}

static bool same(const char *a, size_t n, const char *b, size_t m) { return n == m && memcmp(a, b, n) == 0; }

/* The line of this name, the `nth` of them. NULL: none. */
static const KeyLine *find(const Lines *lines, const KeyLine *like, uint32_t nth)
{
    for (uint32_t i = 0; i < lines->n; i++)
        if (same(lines->at[i].name, lines->at[i].name_bytes, like->name, like->name_bytes) && nth-- == 0)
            return &lines->at[i];
    return NULL;
}

/* How many lines before this one have its name. */
static uint32_t nth(const Lines *lines, uint32_t index)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < index; i++)
        n += same(lines->at[i].name, lines->at[i].name_bytes, lines->at[index].name, lines->at[index].name_bytes);
    return n;
}

static char *copy(const char *text, size_t n, Arena *arena)
{
    char *out = arena_alloc(arena, n + 1);
    memcpy(out, text, n);
    return out;
}

uint32_t diff_lines(const char *a, size_t a_bytes, const char *b, size_t b_bytes, Arena *arena, LineDiff **out)
{
    Lines of_a = split(a, a_bytes, arena), of_b = split(b, b_bytes, arena);
    VEC(LineDiff) found = {0};
    for (uint32_t i = 0; i < of_a.n; i++) {
        const KeyLine *mine = &of_a.at[i], *other = find(&of_b, mine, nth(&of_a, i));
        if (!other || !same(mine->bytes, mine->n, other->bytes, other->n))
            VEC_PUSH(arena, found,
                     (LineDiff){copy(mine->name, mine->name_bytes, arena), copy(mine->bytes, mine->n, arena),
                                other ? copy(other->bytes, other->n, arena) : NULL});
    }
    for (uint32_t i = 0; i < of_b.n; i++)
        if (!find(&of_a, &of_b.at[i], nth(&of_b, i)))
            VEC_PUSH(arena, found,
                     (LineDiff){copy(of_b.at[i].name, of_b.at[i].name_bytes, arena), NULL, copy(of_b.at[i].bytes, of_b.at[i].n, arena)});
    *out = found.at;
    return found.n;
}

/* ---- in words ---- */

static bool has_word(const char *words, const char *word, size_t n)
{
    for (const char *at = words; *at;) {
        size_t m = strcspn(at, " ");
        if (same(at, m, word, n))
            return true;
        at += m;
        at += strspn(at, " ");
    }
    return false;
}

/* The words of a that b has not; NULL: none. */
static const char *words_only_in(const char *a, const char *b, Arena *arena)
{
    Str out;
    str_init(&out, arena);
    for (const char *at = a; *at;) {
        size_t n = strcspn(at, " ");
        if (n && !has_word(b, at, n))
            str_printf(&out, "%s%.*s", out.len ? " " : "", (int)n, at);
        at += n;
        at += strspn(at, " ");
    }
    return out.len ? out.text : NULL;
}

/* "only in the first: x y; only in the second: z", leaving out who has nothing of its own. */
static const char *words_text(const LineDiff *diff, const char *a, const char *b, Arena *arena)
{
    const char *of_a = words_only_in(diff->a, diff->b, arena), *of_b = words_only_in(diff->b, diff->a, arena);
    Str out;
    str_init(&out, arena);
    if (of_a)
        str_printf(&out, "only %s: %s", a, of_a);
    if (of_b)
        str_printf(&out, "%sonly %s: %s", of_a ? "; " : "", b, of_b);
    return out.len ? out.text : "the same words in another order";
}

/* The line of a text where it begins to differ from another, shortened. */
static const char *first_line_that_differs(const char *a, const char *b, Arena *arena)
{
    size_t i = 0, start = 0;
    for (; a[i] && a[i] == b[i]; i++)
        if (a[i] == '\n')
            start = i + 1;
    size_t n = strcspn(a + start, "\n");
    while (n && a[start] == ' ')
        start++, n--;
    return n ? arena_printf(arena, "\"%.*s%s\"", (int)(n > LONG_VALUE ? LONG_VALUE : n), a + start, n > LONG_VALUE ? "..." : "")
             : "its end";
}

const char *diff_text(const LineDiff *diff, const char *a, const char *b, Arena *arena)
{
    if (!diff->a || !diff->b)
        return arena_printf(arena, "only %s: %.*s", diff->a ? a : b, LONG_VALUE, diff->a ? diff->a : diff->b);
    if (strchr(diff->a, '\n') || strchr(diff->b, '\n'))
        return arena_printf(arena, "%s %s, %s %s", first_line_that_differs(diff->a, diff->b, arena), a,
                            first_line_that_differs(diff->b, diff->a, arena), b);
    if ((strlen(diff->a) > LONG_VALUE || strlen(diff->b) > LONG_VALUE) && strchr(diff->a, ' '))
        return words_text(diff, a, b, arena);
    return arena_printf(arena, "%s %s, %s %s", *diff->a ? diff->a : "(empty)", a, *diff->b ? diff->b : "(empty)", b);
}
