// Text to tokens, and the arena that all of a module lives in.
//
// A word may start with % or $, a dot word (.f32, .shared::cta, .L2::128B) is one token without its dot. Numbers are kept as
// 64 bits; 0f and 0d give the bits of a float. Comments and line ends vanish, the line number stays with each token.
#include "tests/cuda_driver/ptx.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Chunk {
    struct Chunk *next;
    size_t used, size;
    max_align_t data[];
} Chunk;

struct Arena {
    Chunk *chunk;
};

Arena *arena_new(void) { return calloc(1, sizeof(Arena)); }

void arena_free(Arena *arena)
{
    if (!arena)
        return;
    for (Chunk *chunk = arena->chunk, *next; chunk; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    free(arena);
}

void *arena_alloc(Arena *arena, size_t size)
{
    size = (size + 15) & ~(size_t)15;
    Chunk *chunk = arena->chunk;
    if (!chunk || chunk->size - chunk->used < size) {
        size_t room = size > 65536 ? size : 65536;
        chunk = calloc(1, sizeof(Chunk) + room);
        if (!chunk)
            abort(); // a test program out of host memory: nothing to test any more
        chunk->size = room;
        chunk->next = arena->chunk;
        arena->chunk = chunk;
    }
    void *p = (char *)chunk->data + chunk->used;
    chunk->used += size;
    return p;
}

char *arena_text(Arena *arena, const char *start, size_t length)
{
    char *text = arena_alloc(arena, length + 1);
    memcpy(text, start, length);
    return text;
}

_Noreturn void ptx_fail(Parser *p, uint32_t line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = snprintf(p->error, p->error_size, "ptx line %u: ", line);
    if (n > 0 && (size_t)n < p->error_size)
        vsnprintf(p->error + n, p->error_size - (size_t)n, format, args);
    va_end(args);
    longjmp(p->failed, 1);
}

typedef struct Lexer {
    Parser *p;
    const char *at, *end;
    uint32_t line;
    Token *token;
    size_t count, room;
} Lexer;

static Token *add_token(Lexer *lx, TokenKind kind, const char *start, size_t length)
{
    if (lx->count == lx->room) {
        size_t room = lx->room ? lx->room * 2 : 1024;
        Token *grown = arena_alloc(lx->p->arena, room * sizeof(Token));
        if (lx->count)
            memcpy(grown, lx->token, lx->count * sizeof(Token));
        lx->token = grown;
        lx->room = room;
    }
    Token *t = &lx->token[lx->count++];
    *t = (Token){.kind = kind, .line = lx->line, .text = arena_text(lx->p->arena, start, length)};
    return t;
}

static bool word_char(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$'; }

static void skip_blank(Lexer *lx)
{
    while (lx->at < lx->end) {
        if (*lx->at == '\n') {
            lx->line++;
            lx->at++;
        } else if (isspace((unsigned char)*lx->at)) {
            lx->at++;
        } else if (lx->end - lx->at >= 2 && lx->at[0] == '/' && lx->at[1] == '/') {
            while (lx->at < lx->end && *lx->at != '\n')
                lx->at++;
        } else if (lx->end - lx->at >= 2 && lx->at[0] == '/' && lx->at[1] == '*') {
            uint32_t line = lx->line;
            for (lx->at += 2; lx->end - lx->at >= 2 && !(lx->at[0] == '*' && lx->at[1] == '/'); lx->at++)
                lx->line += *lx->at == '\n';
            if (lx->end - lx->at < 2)
                ptx_fail(lx->p, line, "comment without end");
            lx->at += 2;
        } else {
            return;
        }
    }
}

// 123, 0x7f, 0b101, 017, each perhaps with U; 0f3F800000, 0d...; 7.0 (a version) as a word-like token with value 70.
static void lex_number(Lexer *lx)
{
    const char *start = lx->at;
    while (lx->at < lx->end && word_char(*lx->at))
        lx->at++;
    size_t length = (size_t)(lx->at - start);
    char *text = arena_text(lx->p->arena, start, length);
    char mark = length > 2 && text[0] == '0' ? (char)tolower((unsigned char)text[1]) : 0;
    char *rest = text;
    Token *t;
    if (mark == 'f' || mark == 'd') {
        t = add_token(lx, TOKEN_FLOAT, start, length);
        t->bits = mark == 'f' ? 32 : 64;
        t->value = strtoull(text + 2, &rest, 16);
        if (length != (mark == 'f' ? 10u : 18u) || *rest)
            ptx_fail(lx->p, lx->line, "bad floating point constant '%s'", text);
        return;
    }
    t = add_token(lx, TOKEN_INTEGER, start, length);
    t->value = mark == 'b' ? strtoull(text + 2, &rest, 2) : strtoull(text, &rest, 0);
    if (*rest == 'U')
        rest++;
    if (*rest)
        ptx_fail(lx->p, lx->line, "bad number '%s'", text);
    if (lx->end - lx->at >= 2 && *lx->at == '.' && isdigit((unsigned char)lx->at[1])) {
        lx->at++;
        uint64_t minor = 0, scale = 1;
        start = lx->at;
        for (; lx->at < lx->end && isdigit((unsigned char)*lx->at); lx->at++, scale *= 10)
            minor = minor * 10 + (uint64_t)(*lx->at - '0');
        t = add_token(lx, TOKEN_DOT, start, (size_t)(lx->at - start));
        t->value = minor;
    }
}

Token *ptx_lex(Parser *p, const char *text, size_t size)
{
    Lexer lx = {.p = p, .at = text, .end = text + size, .line = 1};
    for (;;) {
        skip_blank(&lx);
        if (lx.at == lx.end || *lx.at == 0)
            break;
        const char *start = lx.at;
        char c = *start;
        if (isdigit((unsigned char)c)) {
            lex_number(&lx);
        } else if (word_char(c) || (c == '%' && lx.end - start >= 2 && word_char(start[1]))) {
            for (lx.at++; lx.at < lx.end && word_char(*lx.at);)
                lx.at++;
            add_token(&lx, TOKEN_WORD, start, (size_t)(lx.at - start));
        } else if (c == '.' && lx.end - start >= 2 && word_char(start[1])) {
            for (lx.at++; lx.at < lx.end; lx.at++) {
                if (lx.end - lx.at > 2 && lx.at[0] == ':' && lx.at[1] == ':')
                    lx.at++;
                else if (!word_char(*lx.at))
                    break;
            }
            add_token(&lx, TOKEN_DOT, start + 1, (size_t)(lx.at - start) - 1);
        } else if (c == '"') {
            for (lx.at++; lx.at < lx.end && *lx.at != '"' && *lx.at != '\n';)
                lx.at++;
            if (lx.at == lx.end || *lx.at != '"')
                ptx_fail(p, lx.line, "string without end");
            add_token(&lx, TOKEN_STRING, start + 1, (size_t)(lx.at - start) - 1);
            lx.at++;
        } else if (strchr("{}()[],;:+-=<>|@!", c)) {
            lx.at++;
            add_token(&lx, TOKEN_PUNCT, start, 1);
        } else {
            ptx_fail(p, lx.line, "unexpected character 0x%02x", (unsigned char)c);
        }
    }
    add_token(&lx, TOKEN_END, "end of text", 11);
    return lx.token;
}
