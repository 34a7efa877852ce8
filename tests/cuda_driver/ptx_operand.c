// Names and operands: what a register, a constant, a special register or a variable in the text stands for in the code.
#include "tests/cuda_driver/ptx_decode.h"

#include <stdlib.h>
#include <string.h>

static const char *const special_names[SPECIAL_COUNT] = {
#define X(name, text) text,
    PTX_SPECIALS(X)
#undef X
};

// ---- names ----

void *ptx_grow(Arena *arena, void *old, size_t used, size_t *room, size_t size)
{
    size_t bigger = *room ? *room * 2 : 64;
    void *fresh = arena_alloc(arena, bigger * size);
    if (used)
        memcpy(fresh, old, used * size);
    *room = bigger;
    return fresh;
}

uint32_t ptx_new_slot(Decoder *d, PtxType type)
{
    Kernel *k = d->k;
    if (k->slots == d->slot_room)
        d->slot_type = ptx_grow(d->p->arena, d->slot_type, k->slots, &d->slot_room, 1);
    d->slot_type[k->slots] = (uint8_t)type;
    return k->slots++;
}

Symbol *ptx_add_symbol(Decoder *d, SymbolKind kind, const char *name)
{
    Symbol *s = arena_alloc(d->p->arena, sizeof *s);
    s->kind = kind;
    s->name = name;
    s->next = d->scope->symbols;
    d->scope->symbols = s;
    return s;
}

// %r12 under "%r<24>": which one?
static bool numbered(const Symbol *s, const char *name, uint32_t *index)
{
    size_t n = strlen(s->name);
    if (strncmp(name, s->name, n) || !name[n])
        return false;
    char *rest;
    unsigned long i = strtoul(name + n, &rest, 10);
    if (*rest || rest == name + n || i >= s->count)
        return false;
    *index = (uint32_t)i;
    return true;
}

const Symbol *ptx_find_symbol(const Scope *scope, const char *name, uint32_t *index)
{
    *index = 0;
    for (; scope; scope = scope->parent)
        for (const Symbol *s = scope->symbols; s; s = s->next)
            if (s->count ? numbered(s, name, index) : !strcmp(s->name, name))
                return s;
    return NULL;
}

static uint32_t constant_slot(Decoder *d, uint64_t value, const Variable *variable)
{
    for (Constant *c = d->constants; c; c = c->next)
        if (c->value == value && c->variable == variable)
            return c->slot;
    Constant *c = arena_alloc(d->p->arena, sizeof *c);
    *c = (Constant){value, variable, ptx_new_slot(d, T_NONE), d->constants};
    d->constants = c;
    d->k->constant_count++;
    return c->slot;
}

static uint32_t special_slot(Decoder *d, SpecialRegister which)
{
    for (Special *s = d->specials; s; s = s->next)
        if (s->which == which)
            return s->slot;
    Special *s = arena_alloc(d->p->arena, sizeof *s);
    *s = (Special){which, ptx_new_slot(d, T_NONE), d->specials};
    d->specials = s;
    d->k->special_count++;
    return s->slot;
}

// The kernel's own copy of a shared variable, placed behind the others with a gap.
const Variable *ptx_place_shared(Decoder *d, const Variable *v)
{
    Kernel *k = d->k;
    Variable *copy = arena_alloc(d->p->arena, sizeof *copy);
    *copy = *v;
    copy->next = k->shared;
    k->shared = copy;
    if (v->external && v->size == 0) {
        k->has_dynamic = true;
        return copy; // its address: dynamic_offset, at the end
    }
    copy->address = align_up(d->shared_extent + SPACE_GAP, copy->align > 16 ? copy->align : 16);
    d->shared_extent = copy->address + copy->size;
    k->shared_bytes = align_up(k->shared_bytes, copy->align) + copy->size;
    return copy;
}

static const Variable *find_variable(Decoder *d, const char *name)
{
    for (Variable *v = d->k->shared; v; v = v->next)
        if (!strcmp(v->name, name))
            return v;
    for (Variable *v = d->p->module->shared; v; v = v->next)
        if (!strcmp(v->name, name))
            return ptx_place_shared(d, v);
    for (Variable *v = d->p->module->variables; v; v = v->next)
        if (!strcmp(v->name, name))
            return v;
    return NULL;
}

int64_t ptx_place_local(Decoder *d, Variable *v)
{
    v->address = align_up(d->local_extent + SPACE_GAP, v->align > 16 ? v->align : 16);
    d->local_extent = v->address + v->size;
    v->next = d->k->local;
    d->k->local = v;
    return (int64_t)v->address;
}

// ---- operands ----

static uint64_t float_constant(Decoder *d, const Token *t, PtxType type)
{
    if (type == T_NONE || t->bits == ptx_types[type].bits || ptx_types[type].cls != 'f')
        return t->value;
    double value;
    float narrow;
    if (t->bits == 32) {
        uint32_t bits = (uint32_t)t->value;
        memcpy(&narrow, &bits, sizeof bits);
        value = (double)narrow;
    } else {
        memcpy(&value, &t->value, sizeof value);
    }
    uint64_t wide;
    switch (type) {
    case T_F64: memcpy(&wide, &value, sizeof wide); return wide;
    case T_F32: {
        narrow = (float)value;
        uint32_t bits;
        memcpy(&bits, &narrow, sizeof bits);
        return bits;
    }
    default: ptx_fail(d->p, t->line, "floating point constant '%s' for an operand of type .%s", t->text, ptx_types[type].text);
    }
}

static bool special_register(Decoder *d, const Token *t, Arg *arg)
{
    char name[64];
    strncpy(name, t->text, sizeof name - 8);
    name[sizeof name - 8] = 0;
    const Token *dot = peek(d);
    bool component = dot->kind == TOKEN_DOT && strlen(dot->text) == 1;
    for (int i = 0; i < SPECIAL_COUNT; i++) {
        size_t n = strlen(name);
        bool dotted =
            component && !strncmp(special_names[i], name, n) && special_names[i][n] == '.' && !strcmp(special_names[i] + n + 1, dot->text);
        if (!dotted && strcmp(special_names[i], name))
            continue;
        if (dotted)
            next(d);
        if (i >= SPECIAL_CLOCK) {
            d->reads_clock = true;
            d->clock = (uint32_t)i;
        }
        arg->slot = special_slot(d, (SpecialRegister)i);
        return true;
    }
    return false;
}

// A register must have the size of the operand (`wider`: at least), and a float never stands for an integer.
static void check_register(Decoder *d, const Token *t, PtxType have, PtxType want, unsigned bits, bool wider)
{
    if (want == T_NONE || have == T_NONE)
        return;
    const PtxTypeInfo *h = &ptx_types[have], *w = &ptx_types[want];
    bool size_ok = h->bits == bits || (wider && h->bits > bits && h->cls != 'f' && h->cls != 'p');
    bool class_ok = (h->cls == 'p') == (w->cls == 'p') && (h->cls == 'b' || w->cls == 'b' || w->bits == 16 || w->lanes == 2 ||
                                                           want == T_TF32 || (h->cls == 'f') == (w->cls == 'f'));
    if (!size_ok || !class_ok)
        ptx_fail(d->p, t->line, "'%s' is a register of type .%s, '%s' wants .%s of %u bits here", t->text, h->text, ptx_op_names[d->in.op],
                 w->text, bits);
}

// One element: register, constant, name of a variable, "_".
static void parse_element(Decoder *d, PtxType want, unsigned bits, bool wider, bool is_result)
{
    if (d->arg_count == sizeof d->arg / sizeof *d->arg)
        ptx_fail(d->p, line_of(d), "too many operands");
    Arg *arg = &d->arg[d->arg_count++];
    *arg = (Arg){.slot = NO_SLOT};
    arg->negate = ptx_accept(d->p, "!");
    bool minus = ptx_accept(d->p, "-");
    Token *t = next(d);
    if (t->kind == TOKEN_WORD && !minus) {
        uint32_t index;
        const Symbol *s = ptx_find_symbol(d->scope, t->text, &index);
        const Variable *v;
        if (s && s->kind == SYMBOL_REGISTER) {
            arg->slot = s->slot + index;
            check_register(d, t, s->type, want, bits, wider);
        } else if (is_result) {
            if (strcmp(t->text, "_"))
                ptx_fail(d->p, t->line, "'%s' is no register", t->text);
        } else if (s && s->kind == SYMBOL_VARIABLE) {
            arg->slot = constant_slot(d, (uint64_t)s->offset, NULL);
        } else if (special_register(d, t, arg)) {
            ;
        } else if (!strcmp(t->text, "WARP_SZ")) {
            arg->slot = constant_slot(d, LANES, NULL);
        } else if ((v = find_variable(d, t->text))) {
            int64_t addend = 0;
            if (ptx_accept(d->p, "+"))
                addend = (int64_t)next(d)->value;
            arg->slot = constant_slot(d, (uint64_t)addend, v);
        } else {
            ptx_fail(d->p, t->line, "unknown name '%s'", t->text);
        }
        return;
    }
    if (is_result)
        ptx_fail(d->p, t->line, "expected a register for the result, found '%s'", t->text);
    uint64_t value;
    bool floats = want == T_F32 || want == T_F64, integers = ptx_types[want].cls == 'u' || ptx_types[want].cls == 's';
    if ((floats && t->kind == TOKEN_INTEGER) || (integers && t->kind == TOKEN_FLOAT))
        ptx_fail(d->p, t->line, "constant '%s' for an operand of type .%s", t->text, ptx_types[want].text);
    if (t->kind == TOKEN_INTEGER)
        value = minus ? 0 - t->value : t->value;
    else if (t->kind == TOKEN_FLOAT && !minus)
        value = float_constant(d, t, want);
    else
        ptx_fail(d->p, t->line, "expected an operand, found '%s'", t->text);
    if (want == T_PRED)
        value = value != 0;
    arg->slot = constant_slot(d, value & bits_mask(bits), NULL);
}

static void parse_address(Decoder *d)
{
    ptx_expect(d->p, "[");
    Arg *arg = &d->arg[d->arg_count++];
    *arg = (Arg){.slot = NO_SLOT};
    Token *t = peek(d);
    if (t->kind == TOKEN_WORD) {
        next(d);
        uint32_t index;
        const Symbol *s = ptx_find_symbol(d->scope, t->text, &index);
        const Variable *v = NULL;
        if (s && s->kind == SYMBOL_REGISTER) {
            arg->slot = s->slot + index;
            unsigned bits = ptx_types[s->type].bits;
            if (bits != 64 && bits != 32)
                ptx_fail(d->p, t->line, "'%s' of type .%s is no address", t->text, ptx_types[s->type].text);
        } else if (s && s->kind == SYMBOL_VARIABLE) {
            arg->offset = s->offset;
            bool says_param = exec_space(&d->in) == SPACE_PARAM;
            if (says_param != s->is_param)
                ptx_fail(d->p, t->line, "'%s' is %s .param variable", t->text, s->is_param ? "a" : "no");
            if (says_param && s->space == SPACE_LOCAL)
                d->in.mod[C_SPACE] = M_SPACE_local; // .param variables of calls are local memory
        } else if ((v = find_variable(d, t->text))) {
            bool copy = d->in.op == OP_CP; // whose two addresses are in spaces of their own
            if (!copy && d->in.mod[C_SPACE] && exec_space(&d->in) != v->space)
                ptx_fail(d->p, t->line, "'%s' is not in the space of this instruction", t->text);
            arg->slot = constant_slot(d, 0, v);
        } else {
            ptx_fail(d->p, t->line, "unknown name '%s'", t->text);
        }
    }
    bool first = t->kind != TOKEN_WORD;
    while (!ptx_accept(d->p, "]")) {
        bool plus = ptx_accept(d->p, "+");
        bool minus = ptx_accept(d->p, "-");
        if (!plus && !minus && !first)
            ptx_fail(d->p, t->line, "bad address");
        t = next(d);
        if (t->kind != TOKEN_INTEGER)
            ptx_fail(d->p, t->line, "expected an offset, found '%s'", t->text);
        arg->offset += minus ? -(int64_t)t->value : (int64_t)t->value;
        first = false;
    }
}

static void parse_operand(Decoder *d, char letter)
{
    Inst *in = &d->in;
    PtxType want = (PtxType)in->type[0];
    unsigned bits = ptx_types[want].bits;
    bool wide = in->mod[C_WIDTH] == M_WIDTH_wide;
    bool is_result = strchr("dwhqPn", letter) != NULL && !(letter == 'w' && in->operands > 0);
    switch (letter) {
    case 'd':
    case 'h': bits = wide ? 2 * bits : bits; break;
    case 'a':
        if (wide && in->operands == 3) // the addend of mad.wide
            bits *= 2;
        break;
    case 'b':
    case 'v':
    case '1':
    case '2':
    case '3': {
        int index = letter == '2' ? 2 : letter == '3' ? 3 : 1;
        want = (PtxType)in->type[in->types > index ? index : 0];
        bits = ptx_types[want].bits;
        break;
    }
    case 'n':
        want = T_B32;
        bits = 32;
        break;
    case 'u':
        want = T_B32;
        bits = 32;
        break;
    case 'i':
        want = T_NONE;
        bits = 64;
        break;
    case 'p':
    case 'P':
    case 'q':
        want = T_PRED;
        bits = 1;
        break;
    default: break;
    }
    if (in->op == OP_MMA || in->op == OP_LDMATRIX || in->op == OP_STMATRIX) { // registers of a fragment
        bits = in->op == OP_MMA && want == T_F64 ? 64 : 32;
        want = bits == 64 || want == T_F32 ? want : T_B32;
    }
    in->first[in->operands] = (uint8_t)d->arg_count;
    uint32_t before = d->arg_count;
    if (letter == 'm') {
        parse_address(d);
    } else if (ptx_accept(d->p, "{")) {
        PtxType part = want;
        if (in->op == OP_MOV && want != T_NONE) { // halves or quarters of the other side: sizes are checked by count
            part = T_NONE;
            bits = 64;
        }
        do
            parse_element(d, part, bits, strchr("wv", letter) != NULL, is_result);
        while (ptx_accept(d->p, ","));
        ptx_expect(d->p, "}");
    } else {
        parse_element(d, want, bits, strchr("wv", letter) != NULL, is_result);
        if (strchr("qh", letter) && ptx_accept(d->p, "|"))
            parse_element(d, T_PRED, 1, false, true);
    }
    in->count[in->operands++] = (uint8_t)(d->arg_count - before);
}

// Operands up to the semicolon, to choose between forms.
static int count_operands(Decoder *d)
{
    int count = 1;
    size_t depth = 0;
    for (Token *t = peek(d); t->kind != TOKEN_END; t++) {
        if (t->kind != TOKEN_PUNCT)
            continue;
        char c = t->text[0];
        if (c == ';')
            return t == peek(d) ? 0 : count;
        if (c == '{' || c == '[' || c == '(')
            depth++;
        else if (c == '}' || c == ']' || c == ')')
            depth--;
        else if (c == ',' && !depth)
            count++;
    }
    return count;
}

static const char *operand_pattern(Decoder *d)
{
    Inst *in = &d->in;
    const char *pattern = ptx_op_rows[in->op].operands;
    if (in->op == OP_CP) {
        switch (in->mod[C_ASYNC]) {
        case M_ASYNC_async: return "mmi?u?";
        case M_ASYNC_wait_group: return "i";
        default: return "";
        }
    }
    if (in->op == OP_BAR || in->op == OP_BARRIER) {
        if (in->mod[C_SCOPE] == M_SCOPE_warp)
            return "u";
        if (in->mod[C_SYNC] == M_SYNC_red)
            return count_operands(d) == 4 ? "duup" : "dup";
        return "uu?";
    }
    if (in->op == OP_CVT && in->types == 2 && ptx_types[in->type[0]].lanes == 2)
        return "wvv";
    return pattern;
}

void ptx_parse_operands(Decoder *d)
{
    int left = count_operands(d), given = left;
    for (const char *c = operand_pattern(d); *c; c++) {
        bool optional = c[1] == '?';
        if (left == 0 && optional) {
            c++;
            continue;
        }
        if (left == 0)
            ptx_fail(d->p, d->in.line, "'%s' wants more than %d operands", ptx_op_names[d->in.op], given);
        if (left < given)
            ptx_expect(d->p, ",");
        parse_operand(d, *c);
        left--;
        c += optional;
    }
    if (left)
        ptx_fail(d->p, d->in.line, "'%s' with %d operands", ptx_op_names[d->in.op], given);
}
