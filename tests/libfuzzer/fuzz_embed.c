/*
 * Bytes as a file of a model that examples/embed reads. The first byte says which. A JSON file is taken, with what it says in bounds, or refused with
 * a message. A vocabulary has a text behind its first empty line: the text's pieces are of the vocabulary, and those of the text cut short are its
 * first ones.
 */
#include "target.h"

#include "examples/embed/config.h"

#include <string.h>

static char why[WHY];

/* A parser's answer. */
static bool taken(bool good)
{
    REQUIRE(good || (*why && memchr(why, 0, sizeof why)), "refused without a word");
    return good;
}

static void json(int kind, const char *text, size_t n)
{
    Config c = {0};
    Rules rules = usual_rules;
    Pooling pooling = MEAN;
    char folder[FOLDER];
    bool normalize;
    long most = 7;
    *why = 0;
    if (kind == 0 && taken(config_parse(text, n, &c, why)))
        REQUIRE(c.words > 0 && c.positions > 1 && c.types > 0 && c.layers > 0 && c.heads > 0 && c.inner > 0 && c.width % c.heads == 0 &&
                    c.eps >= 0 && c.eps <= 1 && c.activation <= RELU,
                "out of bounds");
    if (kind == 1)
        taken(rules_parse(text, n, &rules, why));
    if (kind == 2 && taken(limit_parse(text, n, &most, why)))
        REQUIRE(most >= 2, "%ld", most);
    if (kind == 3 && taken(modules_parse(text, n, folder, &normalize, why)))
        REQUIRE(memchr(folder, 0, sizeof folder) && !strchr(folder, '/') && strcmp(folder, "..") != 0, "%.200s", folder);
    if (kind == 4 && taken(pooling_parse(text, n, &pooling, why)))
        REQUIRE(pooling <= MAX, "%d", (int)pooling);
}

static void tokens(const char *text, size_t n)
{
    const char *end = memmem(text, n, "\n\n", 2);
    size_t first = end ? (size_t)(end - text) + 1 : n;
    *why = 0;
    Vocabulary *v = vocabulary_parse(text, first, why);
    if (!taken(v != NULL))
        return;
    text += first;
    n -= first;
    for (int i = 0; i < 8; i++) {
        const Rules rules = {i & 1, i & 2, i & 4};
        Tokens t = {0}, few = {0};
        bool cut, cut_few;
        REQUIRE(tokenize(v, &rules, text, n, SIZE_MAX, &t, &cut) && !cut && t.n >= 2, "%zu", t.n);
        for (size_t k = 0; k < t.n; k++) {
            size_t length;
            REQUIRE(t.id[k] >= 0 && t.id[k] < vocabulary_count(v) && vocabulary_piece(v, t.id[k], &length), "%d", (int)t.id[k]);
        }
        REQUIRE(tokenize(v, &rules, text, n, 5, &few, &cut_few) && few.n <= 5 && cut_few == (t.n > 5), "%zu of %zu", few.n, t.n);
        REQUIRE(memcmp(few.id, t.id, (few.n - 1) * sizeof *t.id) == 0 && few.id[few.n - 1] == t.id[t.n - 1], "another beginning");
        free(t.id);
        free(few.id);
    }
    vocabulary_free(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    if (n == 0)
        return 0;
    if (*bytes >= '0' && *bytes <= '4')
        json(*bytes - '0', (const char *)bytes + 1, n - 1);
    else
        tokens((const char *)bytes + 1, n - 1);
    return 0;
}
