// A module's text: directives, variables, functions. Bodies are skipped here and decoded by ptx_decode.c, kernel by kernel,
// once all names are known.
#include "tests/cuda_driver/ptx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VARIABLE_LIMIT ((size_t)1 << 40)
#define INITIAL_LIMIT ((size_t)64 << 20)
enum { ALIGN_LIMIT = 4096, PARAM_LIMIT = 32764 };

const PtxTypeInfo ptx_types[T_COUNT] = {
    [T_NONE] = {"", 0, 0, 0},
#define TYPE(name, text, bits, cls, lanes) [T_##name] = {text, bits, cls, lanes},
#include "tests/cuda_driver/ptx_modifiers.def"
};

PtxType ptx_type_of(const char *text)
{
    for (int t = T_NONE + 1; t < T_COUNT; t++)
        if (!strcmp(text, ptx_types[t].text))
            return (PtxType)t;
    return T_NONE;
}

static Token *peek(Parser *p) { return &p->token[p->at]; }

static Token *next(Parser *p)
{
    Token *t = &p->token[p->at];
    if (t->kind != TOKEN_END)
        p->at++;
    return t;
}

bool ptx_accept(Parser *p, const char *punct)
{
    Token *t = peek(p);
    if (t->kind != TOKEN_PUNCT || strcmp(t->text, punct))
        return false;
    p->at++;
    return true;
}

void ptx_expect(Parser *p, const char *punct)
{
    Token *t = peek(p);
    if (!ptx_accept(p, punct))
        ptx_fail(p, t->line, "expected '%s', found '%s'", punct, t->text);
}

static bool accept_dot(Parser *p, const char *word)
{
    Token *t = peek(p);
    if (t->kind != TOKEN_DOT || strcmp(t->text, word))
        return false;
    p->at++;
    return true;
}

static const char *expect_name(Parser *p)
{
    Token *t = next(p);
    if (t->kind != TOKEN_WORD)
        ptx_fail(p, t->line, "expected a name, found '%s'", t->text);
    return t->text;
}

static uint64_t expect_integer(Parser *p)
{
    bool minus = ptx_accept(p, "-");
    Token *t = next(p);
    if (t->kind != TOKEN_INTEGER)
        ptx_fail(p, t->line, "expected a number, found '%s'", t->text);
    return minus ? 0 - t->value : t->value;
}

static size_t align_up(size_t n, size_t align) { return (n + align - 1) / align * align; }

// ---- variables ----

typedef struct Declaration {
    PtxType type;
    size_t align, lanes;
} Declaration;

// [.align n] [.v2|.v4] .type [.ptr [.space] [.align n]], in the orders that occur.
static Declaration parse_declaration(Parser *p)
{
    Declaration d = {.lanes = 1};
    uint32_t line = peek(p)->line;
    for (;;) {
        Token *t = peek(p);
        if (t->kind != TOKEN_DOT)
            break;
        p->at++;
        PtxType type = ptx_type_of(t->text);
        if (type != T_NONE && d.type != T_NONE)
            ptx_fail(p, t->line, "declaration with two types");
        if (type != T_NONE)
            d.type = type;
        else if (!strcmp(t->text, "align"))
            d.align = (size_t)expect_integer(p);
        else if (!strcmp(t->text, "v2"))
            d.lanes = 2;
        else if (!strcmp(t->text, "v4"))
            d.lanes = 4;
        else if (!strcmp(t->text, "ptr")) { // what a parameter points to: facts for a compiler only
            while (peek(p)->kind == TOKEN_DOT)
                if (!strcmp(next(p)->text, "align"))
                    expect_integer(p);
        } else
            ptx_fail(p, t->line, "unknown word '.%s' in a declaration", t->text);
    }
    if (d.type == T_NONE || d.type == T_PRED)
        ptx_fail(p, line, "declaration without a type that has a size");
    size_t natural = ptx_types[d.type].bits / 8u * d.lanes;
    if (d.align == 0)
        d.align = natural;
    if (d.align & (d.align - 1) || d.align > ALIGN_LIMIT)
        ptx_fail(p, line, "alignment %zu is no power of two up to %d", d.align, ALIGN_LIMIT);
    return d;
}

static void parse_element(Parser *p, Variable *v, uint8_t *bytes, size_t size, size_t offset)
{
    Token *t = peek(p);
    if (offset + size > v->size)
        ptx_fail(p, t->line, "too many initial values for '%s'", v->name);
    uint64_t value = 0;
    bool generic = false;
    if (t->kind == TOKEN_WORD && !strcmp(t->text, "generic") && p->token[p->at + 1].kind == TOKEN_PUNCT) {
        generic = true;
        p->at += 2;
        t = peek(p);
    }
    if (t->kind == TOKEN_FLOAT) {
        p->at++;
        value = t->value;
    } else if (t->kind == TOKEN_WORD) {
        Relocation *r = arena_alloc(p->arena, sizeof *r);
        *r = (Relocation){offset, expect_name(p), 0, generic, v->relocations};
        if (generic)
            ptx_expect(p, ")");
        if (ptx_accept(p, "+"))
            r->addend = (int64_t)expect_integer(p);
        if (size != 8)
            ptx_fail(p, t->line, "address of '%s' in a value of %zu bytes", r->symbol, size);
        v->relocations = r;
    } else {
        value = expect_integer(p);
    }
    memcpy(bytes + offset, &value, size);
}

static void parse_initial(Parser *p, Variable *v, size_t size)
{
    if (v->size > INITIAL_LIMIT)
        ptx_fail(p, peek(p)->line, "'%s' is too large for initial values", v->name);
    uint8_t *bytes = arena_alloc(p->arena, v->size);
    v->initial = bytes;
    size_t offset = 0, depth = 0;
    do { // nested braces follow the dimensions; values come in order either way
        if (ptx_accept(p, "{")) {
            depth++;
            continue;
        }
        parse_element(p, v, bytes, size, offset);
        offset += size;
        while (depth && ptx_accept(p, "}"))
            depth--;
        if (depth)
            ptx_expect(p, ",");
    } while (depth);
}

Variable *ptx_variables(Parser *p, Space space, bool external)
{
    Variable *first = NULL, **tail = &first;
    Declaration d = parse_declaration(p);
    size_t element = ptx_types[d.type].bits / 8u;
    do {
        Variable *v = arena_alloc(p->arena, sizeof *v);
        v->name = expect_name(p);
        v->space = space;
        v->align = d.align;
        v->size = element * d.lanes;
        v->external = external;
        if (ptx_accept(p, "<")) { // n variables name0 .. name(n-1)
            size_t count = (size_t)expect_integer(p);
            ptx_expect(p, ">");
            const char *prefix = v->name;
            if (count > 1u << 16 || strlen(prefix) > 200)
                ptx_fail(p, peek(p)->line, "too many variables '%s'", prefix);
            for (size_t i = 0; i < count; i++) {
                char text[256];
                Variable *one = arena_alloc(p->arena, sizeof *one);
                *one = *v;
                int n = snprintf(text, sizeof text, "%s%zu", prefix, i);
                one->name = arena_text(p->arena, text, (size_t)n);
                *tail = one;
                tail = &one->next;
            }
            continue;
        }
        while (ptx_accept(p, "[")) {
            uint64_t n = peek(p)->kind == TOKEN_INTEGER ? expect_integer(p) : 0;
            if (n > VARIABLE_LIMIT / (v->size ? v->size : 1))
                ptx_fail(p, peek(p)->line, "'%s' is too large", v->name);
            v->size *= (size_t)n;
            ptx_expect(p, "]");
        }
        if (ptx_accept(p, "="))
            parse_initial(p, v, element);
        *tail = v;
        tail = &v->next;
    } while (ptx_accept(p, ","));
    ptx_expect(p, ";");
    return first;
}

static void append(Variable **list, Variable *more)
{
    while (*list)
        list = &(*list)->next;
    *list = more;
}

// ---- functions ----

static Param *parse_params(Parser *p, size_t *count)
{
    Param list[4096];
    size_t n = 0, offset = 0;
    while (!ptx_accept(p, ")")) {
        if (n)
            ptx_expect(p, ",");
        if (n == sizeof list / sizeof *list)
            ptx_fail(p, peek(p)->line, "more than %zu parameters", n);
        if (!accept_dot(p, "param"))
            ptx_fail(p, peek(p)->line, "expected .param, found '%s'", peek(p)->text);
        Declaration d = parse_declaration(p);
        Param *q = &list[n++];
        q->name = expect_name(p);
        q->align = d.align;
        q->size = ptx_types[d.type].bits / 8u * d.lanes;
        while (ptx_accept(p, "[")) {
            uint64_t n_elements = peek(p)->kind == TOKEN_INTEGER ? expect_integer(p) : 0;
            if (n_elements > PARAM_LIMIT)
                ptx_fail(p, peek(p)->line, "parameter '%s' is too large", q->name);
            q->size *= (size_t)n_elements;
            ptx_expect(p, "]");
        }
        offset = align_up(offset, q->align);
        q->offset = offset;
        offset += q->size;
    }
    *count = n;
    Param *params = arena_alloc(p->arena, (n + 1) * sizeof *params);
    memcpy(params, list, n * sizeof *params);
    return params;
}

static void skip_body(Parser *p)
{
    uint32_t line = peek(p)->line;
    for (size_t depth = 1; depth;) {
        Token *t = next(p);
        if (t->kind == TOKEN_END)
            ptx_fail(p, line, "body without end");
        if (t->kind == TOKEN_PUNCT)
            depth += t->text[0] == '{' ? 1u : 0u, depth -= t->text[0] == '}' ? 1u : 0u;
    }
}

static void parse_three(Parser *p, uint32_t out[3])
{
    for (int i = 0; i < 3; i++)
        out[i] = i == 0 || ptx_accept(p, ",") ? (uint32_t)expect_integer(p) : 1;
}

// The directives between a function's parameters and its body.
static void parse_tuning(Parser *p, Kernel *k)
{
    while (peek(p)->kind == TOKEN_DOT) {
        Token *t = next(p);
        if (!strcmp(t->text, "maxntid"))
            parse_three(p, k->maxntid);
        else if (!strcmp(t->text, "reqntid"))
            parse_three(p, k->reqntid);
        else if (!strcmp(t->text, "minnctapersm") || !strcmp(t->text, "maxnctapersm"))
            k->minnctapersm = (uint32_t)expect_integer(p);
        else if (!strcmp(t->text, "maxnreg"))
            k->maxnreg = (uint32_t)expect_integer(p);
        else if (!strcmp(t->text, "noreturn"))
            continue;
        else if (!strcmp(t->text, "pragma")) {
            next(p);
            ptx_expect(p, ";");
        } else
            ptx_fail(p, t->line, "unknown directive '.%s'", t->text);
    }
}

static FunctionText *find_function(Parser *p, const char *name)
{
    for (FunctionText *f = p->functions; f; f = f->next)
        if (!strcmp(f->name, name))
            return f;
    return NULL;
}

static void parse_function(Parser *p, bool entry)
{
    uint32_t line = peek(p)->line;
    FunctionText *f = arena_alloc(p->arena, sizeof *f);
    f->entry = entry;
    f->line = line;
    if (!entry && ptx_accept(p, "("))
        f->results = parse_params(p, &f->result_count);
    f->name = expect_name(p);
    if (ptx_accept(p, "("))
        f->params = parse_params(p, &f->param_count);
    f->kernel = arena_alloc(p->arena, sizeof *f->kernel);
    Kernel *k = f->kernel;
    *k = (Kernel){.name = f->name, .module = p->module, .params = f->params, .param_count = f->param_count, .line = line};
    if (f->param_count)
        k->param_bytes = f->params[f->param_count - 1].offset + f->params[f->param_count - 1].size;
    parse_tuning(p, k);
    if (ptx_accept(p, "{")) {
        f->has_body = true;
        f->body = p->at;
        skip_body(p);
    } else {
        ptx_expect(p, ";");
    }
    FunctionText *known = find_function(p, f->name);
    if (known && known->has_body && f->has_body)
        ptx_fail(p, line, "'%s' is defined twice", f->name);
    if (known && !f->has_body)
        return;
    f->next = p->functions; // a definition comes before its declaration in the list
    p->functions = f;
}

// ---- modules ----

static void parse_header(Parser *p)
{
    PtxModule *m = p->module;
    uint32_t line = peek(p)->line;
    if (!accept_dot(p, "version"))
        ptx_fail(p, line, "expected .version, found '%s'", peek(p)->text);
    m->version = 10 * (int)expect_integer(p);
    if (peek(p)->kind == TOKEN_DOT && peek(p)->value < 10)
        m->version += (int)next(p)->value;
    if (!accept_dot(p, "target"))
        ptx_fail(p, peek(p)->line, "expected .target, found '%s'", peek(p)->text);
    do {
        line = peek(p)->line;
        const char *target = expect_name(p);
        if (!strncmp(target, "sm_", 3)) {
            char *rest;
            m->target = (int)strtol(target + 3, &rest, 10);
            m->target_suffix = *rest;
        } else if (strcmp(target, "texmode_independent") && strcmp(target, "debug")) {
            ptx_fail(p, line, "unknown target '%s'", target);
        }
    } while (ptx_accept(p, ","));
    ptx_require_version(p, line);
    if (accept_dot(p, "address_size") && expect_integer(p) != 64)
        ptx_fail(p, peek(p)->line, "only 64-bit addresses are supported");
}

static void skip_to_line_end(Parser *p)
{
    for (uint32_t line = peek(p)->line; peek(p)->kind != TOKEN_END && peek(p)->line == line;)
        p->at++;
}

static void parse_item(Parser *p)
{
    bool external = false;
    for (;;) {
        Token *t = next(p);
        if (t->kind != TOKEN_DOT)
            ptx_fail(p, t->line, "expected a directive, found '%s'", t->text);
        if (!strcmp(t->text, "visible") || !strcmp(t->text, "weak") || !strcmp(t->text, "common"))
            continue;
        if (!strcmp(t->text, "extern"))
            external = true;
        else if (!strcmp(t->text, "entry"))
            return parse_function(p, true);
        else if (!strcmp(t->text, "func"))
            return parse_function(p, false);
        else if (!strcmp(t->text, "global"))
            return append(&p->module->variables, ptx_variables(p, SPACE_GLOBAL, external));
        else if (!strcmp(t->text, "const"))
            return append(&p->module->variables, ptx_variables(p, SPACE_CONST, external));
        else if (!strcmp(t->text, "shared"))
            return append(&p->module->shared, ptx_variables(p, SPACE_SHARED, external));
        else if (!strcmp(t->text, "file") || !strcmp(t->text, "pragma") || !strcmp(t->text, "loc"))
            return skip_to_line_end(p);
        else if (!strcmp(t->text, "section")) {
            while (peek(p)->kind != TOKEN_END && !ptx_accept(p, "{"))
                p->at++;
            return skip_body(p);
        } else
            ptx_fail(p, t->line, "unknown directive '.%s'", t->text);
    }
}

PtxModule *ptx_parse(const char *text, size_t size, char *error, size_t error_size)
{
    Parser p = {.arena = arena_new(), .error = error, .error_size = error_size};
    if (!p.arena)
        return NULL;
    p.module = arena_alloc(p.arena, sizeof(PtxModule));
    p.module->arena = p.arena;
    Arena *volatile arena = p.arena;
    PtxModule *volatile module = p.module;
    if (setjmp(p.failed)) {
        arena_free(arena);
        return NULL;
    }
    p.token = ptx_lex(&p, text, size);
    parse_header(&p);
    while (peek(&p)->kind != TOKEN_END)
        parse_item(&p);
    module->lines = peek(&p)->line;
    for (FunctionText *f = p.functions; f; f = f->next) {
        if (!f->entry || !f->has_body)
            continue;
        ptx_decode(&p, f);
        f->kernel->next = module->kernels;
        module->kernels = f->kernel;
        module->kernel_count++;
    }
    return module;
}

void ptx_free(PtxModule *module)
{
    if (module)
        arena_free(module->arena);
}
