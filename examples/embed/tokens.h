/*
 * Text into numbers, by the rules of BERT (Devlin et al. 2018): words, which are then cut into the longest pieces of a vocabulary.
 *
 *     char why[WHY];
 *     Vocabulary *v = vocabulary_parse(bytes, n, why);      NULL: why not
 *     Tokens tokens = {0};
 *     if (tokenize(v, &usual_rules, line, length, 512, &tokens)) ...      tokens.id[0..tokens.n), behind what was there before
 */
#ifndef EXAMPLES_EMBED_TOKENS_H
#define EXAMPLES_EMBED_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WHY = 400 }; /* bytes of a message */

typedef struct Vocabulary Vocabulary;
/* One piece a line, whose number is the line's; of equal ones the last counts. [UNK], [CLS] and [SEP] must be there. NULL: why not. */
Vocabulary *vocabulary_parse(const char *text, size_t n, char why[WHY]);
void vocabulary_free(Vocabulary *v);
int32_t vocabulary_count(const Vocabulary *v);
/* A piece, without an end; *length gets its bytes. */
const char *vocabulary_piece(const Vocabulary *v, int32_t id, size_t *length);

typedef struct Rules {
    bool lower, strip, apart; /* lower case; without accents; Chinese characters as words of their own */
} Rules;
extern const Rules usual_rules;

typedef struct Tokens {
    int32_t *id;
    size_t n, room;
} Tokens;
/* [CLS], the pieces of a text, [SEP]: at most `most` (2 and more) behind those that are there. *cut: there would have been more. False: no memory. */
bool tokenize(const Vocabulary *v, const Rules *rules, const char *text, size_t length, size_t most, Tokens *tokens, bool *cut);

#endif
