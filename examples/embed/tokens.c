/*
 * Text into numbers. A text goes by character through
 *
 *     UTF-8 -> without what is no text -> lower case -> without accents -> words: between blanks; punctuation, Chinese characters alone
 *
 * and a word is cut, from its beginning, into the longest pieces there are; one inside of the word has ## before it. A word that cannot be cut to its
 * end, or is longer than 100 characters, is [UNK]. What Unicode says of a character comes from utf8proc.
 *
 * Two choices where implementations differ: a capital sigma is lower-cased by itself, also at a word's end (as `tokenizers` does, the original did
 * not), and "[SEP]" in a text is the text of these five characters, not the mark that only a program may set.
 */
#include "tokens.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

const Rules usual_rules = {true, true, true};

enum { LONGEST_WORD = 100, LONGEST_CHAR = 4, MOST_PARTS = 8 }; /* characters; bytes; what one character is decomposed to */

/* ---- the vocabulary ---- */

typedef struct Piece {
    const char *text;
    size_t length;
    int32_t id;
} Piece;

struct Vocabulary {
    char *text;
    Piece *piece, *sorted; /* by id; by text, each once */
    int32_t count;
    size_t n_sorted, longest;
    int32_t unknown, begin, end;
};

static int by_text(const void *a, const void *b)
{
    const Piece *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->length < y->length ? x->length : y->length);
    return order ? order : (x->length > y->length) - (x->length < y->length);
}

static int by_text_and_id(const void *a, const void *b)
{
    const Piece *x = a, *y = b;
    int order = by_text(a, b);
    return order ? order : (x->id > y->id) - (x->id < y->id);
}

static int32_t find(const Vocabulary *v, const char *text, size_t length)
{
    const Piece wanted = {text, length, 0};
    const Piece *found = length <= v->longest ? bsearch(&wanted, v->sorted, v->n_sorted, sizeof wanted, by_text) : NULL;
    return found ? found->id : -1;
}

static void split_lines(Vocabulary *v, size_t n)
{
    for (char *at = v->text, *end = v->text + n; at < end;) {
        char *stop = memchr(at, '\n', (size_t)(end - at));
        char *next = stop ? stop + 1 : end;
        stop = stop ? stop : end;
        stop -= stop > at && stop[-1] == '\r';
        v->piece[v->count] = (Piece){at, (size_t)(stop - at), v->count};
        v->longest = v->piece[v->count].length > v->longest ? v->piece[v->count].length : v->longest;
        v->count++;
        at = next;
    }
}

static void sort_pieces(Vocabulary *v)
{
    memcpy(v->sorted, v->piece, (size_t)v->count * sizeof *v->piece);
    qsort(v->sorted, (size_t)v->count, sizeof *v->sorted, by_text_and_id);
    for (int32_t i = 0; i < v->count; i++) {
        bool again = v->n_sorted && by_text(&v->sorted[v->n_sorted - 1], &v->sorted[i]) == 0;
        v->sorted[v->n_sorted - again] = v->sorted[i];
        v->n_sorted += !again;
    }
}

Vocabulary *vocabulary_parse(const char *text, size_t n, char why[WHY])
{
    Vocabulary *v = calloc(1, sizeof *v);
    size_t lines = 1;
    for (size_t i = 0; i < n; i++)
        lines += text[i] == '\n';
    if (lines > INT32_MAX) {
        snprintf(why, WHY, "it has more lines than a vocabulary can have");
        free(v);
        return NULL;
    }
    if (v) {
        v->text = malloc(n + 1);
        v->piece = calloc(lines, sizeof *v->piece);
        v->sorted = calloc(lines, sizeof *v->sorted);
    }
    if (!v || !v->text || !v->piece || !v->sorted) {
        snprintf(why, WHY, "no memory for %zu bytes", n);
        vocabulary_free(v);
        return NULL;
    }
    if (n)
        memcpy(v->text, text, n);
    split_lines(v, n);
    sort_pieces(v);
    const struct {
        const char *piece;
        int32_t *id;
    } needed[] = {{"[UNK]", &v->unknown}, {"[CLS]", &v->begin}, {"[SEP]", &v->end}};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        *needed[i].id = find(v, needed[i].piece, strlen(needed[i].piece));
        if (*needed[i].id >= 0)
            continue;
        snprintf(why, WHY, "no line of it is %s; a vocabulary of a BERT model is needed, one piece a line", needed[i].piece);
        vocabulary_free(v);
        return NULL;
    }
    return v;
}

void vocabulary_free(Vocabulary *v)
{
    if (!v)
        return;
    free(v->text);
    free(v->piece);
    free(v->sorted);
    free(v);
}

int32_t vocabulary_count(const Vocabulary *v) { return v->count; }

const char *vocabulary_piece(const Vocabulary *v, int32_t id, size_t *length)
{
    *length = v->piece[id].length;
    return v->piece[id].text;
}

/* ---- characters ---- */

typedef enum Kind { DROPPED, BLANK, ALONE, LETTER } Kind;

static bool is_chinese(int32_t c)
{
    static const int32_t range[][2] = {{0x3400, 0x4dbf},   {0x4e00, 0x9fff},   {0xf900, 0xfaff},   {0x20000, 0x2a6df},
                                       {0x2a700, 0x2b73f}, {0x2b740, 0x2b81f}, {0x2b820, 0x2ceaf}, {0x2f800, 0x2fa1f}};
    for (size_t i = 0; i < sizeof range / sizeof *range; i++)
        if (c >= range[i][0] && c <= range[i][1])
            return true;
    return false;
}

static bool is_punctuation(int32_t c)
{
    if (c < 128) /* more than Unicode calls so: $ + < = > ^ ` | ~ */
        return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
    utf8proc_category_t category = utf8proc_category(c);
    return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

/* Before case and accents are touched. */
static Kind kind_of(int32_t c, const Rules *rules)
{
    if (c == '\t' || c == '\n' || c == '\r')
        return BLANK;
    if (c < 128) /* most of all text */
        return c < 32 || c == 127 ? DROPPED : c == ' ' ? BLANK : LETTER;
    utf8proc_category_t category = utf8proc_category(c);
    if (c == 0xfffd || category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF || category == UTF8PROC_CATEGORY_CO)
        return DROPPED;
    if (category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP)
        return BLANK;
    return rules->apart && is_chinese(c) ? ALONE : LETTER;
}

/* ---- words ---- */

typedef struct Word {
    char text[2 + LONGEST_WORD * LONGEST_CHAR]; /* behind room for ## */
    size_t at[LONGEST_WORD + 1];                /* where each character begins, and the last one ends */
    size_t characters;                          /* more than LONGEST_WORD: too long, the rest is not kept */
} Word;

static bool add_token(Tokens *t, int32_t id)
{
    if (t->n == t->room) {
        size_t room = t->room ? 2 * t->room : 1024;
        int32_t *more = room <= SIZE_MAX / sizeof *more ? realloc(t->id, room * sizeof *more) : NULL;
        if (!more)
            return false;
        t->id = more;
        t->room = room;
    }
    t->id[t->n++] = id;
    return true;
}

/* The longest piece that the word has at its character `from`; *to: where that ends. -1: none. */
static int32_t longest_piece(const Vocabulary *v, Word *w, size_t from, size_t *to)
{
    char *begin = w->text + 2 + w->at[from], kept[2];
    size_t inside = from > 0 ? 2 : 0;
    begin -= inside;
    memcpy(kept, begin, 2); /* of the word, where ## goes for a moment */
    if (inside)
        memcpy(begin, "##", 2);
    int32_t id = -1;
    for (*to = w->characters; *to > from; --*to)
        if ((id = find(v, begin, inside + w->at[*to] - w->at[from])) >= 0)
            break;
    if (inside)
        memcpy(begin, kept, 2);
    return id;
}

static bool end_word(const Vocabulary *v, Word *w, Tokens *t)
{
    size_t before = t->n, to = 0;
    bool good = true;
    if (w->characters > LONGEST_WORD)
        good = add_token(t, v->unknown);
    else
        for (size_t from = 0; good && from < w->characters; from = to) {
            int32_t id = longest_piece(v, w, from, &to);
            if (id < 0) { /* the whole word, not what is left of it */
                t->n = before;
                good = add_token(t, v->unknown);
                break;
            }
            good = add_token(t, id);
        }
    w->characters = 0;
    return good;
}

static void add_character(Word *w, int32_t c)
{
    if (w->characters < LONGEST_WORD) {
        size_t at = w->characters ? w->at[w->characters] : 0;
        w->at[w->characters] = at;
        at += (size_t)utf8proc_encode_char(c, (utf8proc_uint8_t *)w->text + 2 + at);
        w->at[w->characters + 1] = at;
    }
    w->characters += w->characters <= LONGEST_WORD;
}

/* Adds what becomes of a character to the word; punctuation ends it. */
static bool add_letter(const Vocabulary *v, const Rules *rules, int32_t c, Word *w, Tokens *t)
{
    int32_t part[MOST_PARTS] = {c};
    int n = 1, class = UTF8PROC_BOUNDCLASS_START;
    if (rules->strip && c >= 128) {
        n = (int)utf8proc_decompose_char(c, part, MOST_PARTS, UTF8PROC_DECOMPOSE, &class);
        if (n < 1 || n > MOST_PARTS) {
            part[0] = c;
            n = 1;
        }
    }
    for (int i = 0; i < n; i++) {
        if (rules->strip && part[i] >= 128 && utf8proc_category(part[i]) == UTF8PROC_CATEGORY_MN)
            continue;
        int32_t letter = rules->lower ? utf8proc_tolower(part[i]) : part[i];
        bool alone = is_punctuation(letter);
        if (alone && !end_word(v, w, t))
            return false;
        add_character(w, letter);
        if (alone && !end_word(v, w, t))
            return false;
    }
    return true;
}

bool tokenize(const Vocabulary *v, const Rules *rules, const char *text, size_t length, size_t most, Tokens *t, bool *cut)
{
    Word w = {.characters = 0};
    size_t first = t->n;
    bool good = add_token(t, v->begin);
    for (size_t i = 0; good && i < length && t->n - first < most;) { /* `most` pieces are one too many: [SEP] comes */
        int32_t c;
        utf8proc_ssize_t bytes = utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(length - i), &c);
        i += bytes > 0 ? (size_t)bytes : 1;
        Kind kind = bytes > 0 ? kind_of(c, rules) : DROPPED;
        if (kind == BLANK || kind == ALONE)
            good = end_word(v, &w, t);
        if (kind == ALONE || kind == LETTER)
            good = good && add_letter(v, rules, c, &w, t);
        if (kind == ALONE)
            good = good && end_word(v, &w, t);
    }
    good = good && end_word(v, &w, t);
    *cut = t->n - first > most - 1;
    if (*cut)
        t->n = first + most - 1;
    return good && add_token(t, v->end);
}
