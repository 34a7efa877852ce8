// The code of one kernel: names to slots, words to modifiers, labels to indices, calls inlined.
#include "tests/cuda_driver/ptx_decode.h"

#include <fenv.h>
#include <stdlib.h>
#include <string.h>

const char *const ptx_op_names[OP_COUNT] = {
#define OP(name, text, run, operands, classes, types) [OP_##name] = text,
#include "tests/cuda_driver/ptx_ops.def"
};

const OpRow ptx_op_rows[OP_COUNT] = {
#define OP(name, text, run, operands, classes, types) [OP_##name] = {operands, classes, types},
#include "tests/cuda_driver/ptx_ops.def"
};

static const struct Modifier {
    const char *text;
    PtxClass cls;
} modifiers[M_COUNT] = {
#define MOD(cls, name, text) [M_##cls##_##name] = {text, C_##cls},
#include "tests/cuda_driver/ptx_modifiers.def"
};

static const struct ClassLetter {
    char letter;
    PtxClass cls;
} class_letters[] = {
    /* clang-format off */
    {'r', C_ROUND},     {'f', C_FLAG},  {'c', C_COMPARE}, {'b', C_BOOLEAN},   {'w', C_WIDTH},   {'v', C_VECTOR},
    {'s', C_SPACE},     {'k', C_CACHE}, {'k', C_LEVEL},   {'m', C_SEMANTICS}, {'o', C_SCOPE},   {'a', C_ATOMIC},
    {'h', C_SHUFFLE},   {'t', C_VOTE},  {'y', C_SYNC},    {'e', C_REDUCE},    {'T', C_TO},      {'C', C_CARRY},
    {'D', C_DIRECTION}, {'S', C_SHIFT}, {'R', C_PRMT},    {'z', C_TEST},      {'U', C_UNIFORM}, {'H', C_SHAPE},
    {'L', C_LAYOUT},    {'A', C_ASYNC},
    /* clang-format on */
};

const char *ptx_modifier_text(int value) { return value > 0 && value < M_COUNT ? modifiers[value].text : ""; }

// ---- instructions ----

static bool has_type(const char *list, const char *text)
{
    size_t n = strlen(text);
    for (const char *at = list; (at = strstr(at, text)); at += n)
        if ((at == list || at[-1] == ' ') && (at[n] == 0 || at[n] == ' '))
            return true;
    return false;
}

static bool takes_class(const char *letters, PtxClass cls)
{
    for (size_t i = 0; i < sizeof class_letters / sizeof *class_letters; i++)
        if (class_letters[i].cls == cls && strchr(letters, class_letters[i].letter))
            return true;
    return false;
}

static void parse_modifier(Decoder *d, const char *opcode, const Token *t)
{
    Inst *in = &d->in;
    const OpRow *row = &ptx_op_rows[in->op];
    PtxType type = ptx_type_of(t->text);
    if (type != T_NONE && has_type(row->types, t->text)) {
        if (in->types == ptx_types_of((PtxOp)in->op))
            ptx_fail(d->p, t->line, "'%s' with too many types", opcode);
        in->type[in->types++] = (uint8_t)type;
        return;
    }
    for (int m = 1; m < M_COUNT; m++) {
        if (strcmp(modifiers[m].text, t->text) || !takes_class(row->classes, modifiers[m].cls))
            continue;
        bool again = modifiers[m].cls == C_FLAG || modifiers[m].cls == C_LEVEL || modifiers[m].cls == C_LAYOUT || in->op == OP_CP;
        if (in->mod[modifiers[m].cls] && !again)
            ptx_fail(d->p, t->line, "'%s' with two modifiers of one kind", opcode);
        in->mod[modifiers[m].cls] = (uint16_t)m;
        if (modifiers[m].cls == C_FLAG)
            in->flags |= 1u << (m - M_FLAG_ftz);
        return;
    }
    ptx_fail(d->p, t->line, "'%s' does not take '.%s', or it is not known here", opcode, t->text);
}

static int find_op(const char *text)
{
    for (int op = 0; op < OP_COUNT; op++)
        if (!strcmp(ptx_op_names[op], text))
            return op;
    return -1;
}

static uint32_t emit(Decoder *d)
{
    Kernel *k = d->k;
    if (k->code_count == d->room)
        k->code = ptx_grow(d->p->arena, k->code, k->code_count, &d->room, sizeof *k->code);
    Arg *arg = arena_alloc(d->p->arena, (d->arg_count + 1) * sizeof *arg);
    memcpy(arg, d->arg, d->arg_count * sizeof *arg);
    d->in.arg = arg;
    k->code[k->code_count] = d->in;
    return (uint32_t)k->code_count++;
}

static void add_fixup(Decoder *d, uint32_t inst, const char *label)
{
    Fixup *f = arena_alloc(d->p->arena, sizeof *f);
    *f = (Fixup){inst, label, d->scope, d->in.line, d->fixups};
    d->fixups = f;
}

static void emit_branch(Decoder *d, uint32_t line, uint32_t guard, bool negate, const char *label)
{
    d->in = (Inst){.run = run_bra, .op = OP_BRA, .guard = guard, .guard_negate = negate, .line = line};
    d->arg_count = 0;
    add_fixup(d, emit(d), label);
}

// What depends on the whole instruction: its evaluation, the bits of its result, sense of the combination.
static void finish_inst(Decoder *d)
{
    Inst *in = &d->in;
    const PtxTypeInfo *type = &ptx_types[in->type[0]];
    in->bits = type->bits;
    in->is_signed = type->cls == 's';
    unsigned bits = type->bits;
    if (in->mod[C_WIDTH] == M_WIDTH_wide)
        bits *= 2;
    const char *pattern = ptx_op_rows[in->op].operands;
    if (*pattern == 'n')
        bits = 32;
    if (*pattern == 'w' && in->operands) { // a wider register takes the extended value
        const Arg *arg = &d->arg[in->first[0]];
        for (uint32_t i = 0; i < in->count[0]; i++)
            if (arg[i].slot != NO_SLOT && ptx_types[d->slot_type[arg[i].slot]].bits > bits)
                bits = ptx_types[d->slot_type[arg[i].slot]].bits;
    }
    in->mask = bits_mask(bits);
    in->host_round = in->mod[C_ROUND] == M_ROUND_rz   ? FE_TOWARDZERO
                     : in->mod[C_ROUND] == M_ROUND_rm ? FE_DOWNWARD
                     : in->mod[C_ROUND] == M_ROUND_rp ? FE_UPWARD
                                                      : FE_TONEAREST;
    in->run = exec_runs[in->op];
    in->eval = exec_eval((PtxOp)in->op, (PtxType)in->type[0]);
    if (in->run == run_alu && !in->eval)
        ptx_fail(d->p, in->line, "'%s' of type .%s", ptx_op_names[in->op], type->text);
    if (in->mod[C_CARRY] != M_ABSENT)
        in->run = run_carry;
    if (in->op == OP_MOV && (in->count[0] > 1 || in->count[1] > 1)) {
        if (in->count[0] > 1 && in->count[1] > 1)
            ptx_fail(d->p, in->line, "mov between two vectors");
        in->run = run_mov_vector;
    } else if (in->op == OP_MOV && d->reads_clock) {
        in->run = run_clock;
        in->target = d->clock;
    } else if (d->reads_clock) {
        ptx_fail(d->p, in->line, "a clock is read by mov only");
    }
    unsigned lanes = in->mod[C_VECTOR] == M_VECTOR_v2 ? 2 : in->mod[C_VECTOR] == M_VECTOR_v4 ? 4 : in->mod[C_VECTOR] == M_VECTOR_v8 ? 8 : 1;
    if ((in->op == OP_LD || in->op == OP_ST) && in->count[in->op == OP_ST] != lanes)
        ptx_fail(d->p, in->line, "%u registers for a vector of %u", in->count[in->op == OP_ST], lanes);
    if (in->types == 0 && *ptx_op_rows[in->op].types && in->op != OP_BAR && in->op != OP_BARRIER && in->op != OP_NANOSLEEP)
        ptx_fail(d->p, in->line, "'%s' without a type", ptx_op_names[in->op]);
    if (in->op == OP_MMA || in->op == OP_LDMATRIX || in->op == OP_STMATRIX) {
        const char *problem = mma_problem(in);
        if (problem)
            ptx_fail(d->p, in->line, "'%s': %s not known here", ptx_op_names[in->op], problem);
    }
}

static void decode_body(Decoder *d);

static const Symbol *call_operand(Decoder *d, const Param *want)
{
    Token *t = next(d);
    uint32_t index;
    const Symbol *s = t->kind == TOKEN_WORD ? ptx_find_symbol(d->scope, t->text, &index) : NULL;
    if (!s || s->kind != SYMBOL_VARIABLE || s->space != SPACE_LOCAL)
        ptx_fail(d->p, t->line, "argument '%s' of a call is no .param variable", t->text);
    if (s->size != want->size)
        ptx_fail(d->p, t->line, "argument '%s' has %zu bytes, parameter '%s' %zu", t->text, s->size, want->name, want->size);
    return s;
}

// The one function that the driver itself has: it stands in the text without a body.
static bool is_set_conditional(const FunctionText *f)
{
    return strcmp(f->name, "cudaGraphSetConditional") == 0 && !f->has_body && f->result_count == 0 && f->param_count == 2 &&
           f->params[0].size == 8 && f->params[1].size == 4;
}

static FunctionText *callee_of(Decoder *d, const Token *name)
{
    FunctionText *f = d->p->functions;
    while (f && strcmp(f->name, name->text))
        f = f->next;
    if (!f)
        ptx_fail(d->p, name->line, "call of '%s', which is no function of this module", name->text);
    if (!f->has_body && !is_set_conditional(f))
        ptx_fail(d->p, name->line, "call of '%s', which has no body here", name->text);
    if (f->active)
        ptx_fail(d->p, name->line, "'%s' calls itself: recursion is not supported", name->text);
    return f;
}

// Where the callee is named: after the results in parentheses.
static FunctionText *look_for_callee(Decoder *d)
{
    const Token *t = peek(d);
    if (t->kind == TOKEN_PUNCT && t->text[0] == '(') {
        while (t->kind != TOKEN_END && !(t->kind == TOKEN_PUNCT && t->text[0] == ')'))
            t++;
        for (int skip = 0; skip < 2 && t->kind != TOKEN_END; skip++) // ")" and ","
            t++;
    }
    if (t->kind != TOKEN_WORD)
        ptx_fail(d->p, t->line, "bad call");
    return callee_of(d, t);
}

static void decode_inlined(Decoder *d, FunctionText *f, Scope *inner)
{
    size_t back = d->p->at;
    bool was_inlined = d->inlined;
    Fixup *outer_fixups = d->fixups;
    d->fixups = NULL;
    d->inlined = true;
    d->scope = inner;
    d->p->at = f->body;
    f->active = true;
    decode_body(d);
    f->active = false;
    d->inlined = was_inlined;
    d->fixups = outer_fixups;
    d->p->at = back;
}

// Parameters of the callee become other names for the caller's .param variables; then its body is decoded in place.
static void decode_call(Decoder *d, uint32_t guard, bool negate)
{
    uint32_t line = d->in.line;
    FunctionText *f = look_for_callee(d);
    Scope *inner = arena_alloc(d->p->arena, sizeof *inner);
    for (int part = 0; part < 2; part++) {
        const Param *params = part ? f->params : f->results;
        size_t count = part ? f->param_count : f->result_count, i = 0;
        if (part) {
            next(d); // the name
            if (count || peek(d)->text[0] == ',')
                ptx_expect(d->p, ",");
        }
        if (ptx_accept(d->p, "(")) {
            while (!ptx_accept(d->p, ")")) {
                if (i)
                    ptx_expect(d->p, ",");
                if (i == count)
                    ptx_fail(d->p, line, "call of '%s' with more than %zu %s", f->name, count, part ? "arguments" : "results");
                const Symbol *actual = call_operand(d, &params[i]);
                Symbol *formal = arena_alloc(d->p->arena, sizeof *formal);
                *formal = *actual;
                formal->name = params[i].name;
                formal->next = inner->symbols;
                inner->symbols = formal;
                i++;
            }
            if (!part)
                ptx_expect(d->p, ",");
        }
        if (i != count)
            ptx_fail(d->p, line, "call of '%s' with %zu %s of %zu", f->name, i, part ? "arguments" : "results", count);
    }
    ptx_expect(d->p, ";");

    static const char *const after = "";
    Scope *outer = d->scope;
    if (guard != NO_SLOT) { // around the call when the guard is false
        Scope *label = arena_alloc(d->p->arena, sizeof *label);
        label->parent = outer;
        d->scope = label;
        emit_branch(d, line, guard, !negate, after);
    }
    Scope *around = d->scope;
    if (is_set_conditional(f)) { // formal parameters stand in the list from the last one
        d->in = (Inst){.run = run_set_conditional, .op = OP_CALL, .guard = NO_SLOT, .line = line};
        d->arg[0] = (Arg){.slot = NO_SLOT, .offset = inner->symbols->next->offset};
        d->arg[1] = (Arg){.slot = NO_SLOT, .offset = inner->symbols->offset};
        d->arg_count = 2;
        emit(d);
        d->p->module->sets_conditionals = true;
    } else {
        decode_inlined(d, f, inner);
    }
    d->scope = around;
    if (guard != NO_SLOT) {
        Symbol *label = ptx_add_symbol(d, SYMBOL_LABEL, after);
        label->target = (uint32_t)d->k->code_count;
        d->scope = outer;
    }
}

static void decode_inst(Decoder *d)
{
    uint32_t guard = NO_SLOT;
    bool negate = false;
    if (ptx_accept(d->p, "@")) {
        negate = ptx_accept(d->p, "!");
        Token *t = next(d);
        uint32_t index;
        const Symbol *s = t->kind == TOKEN_WORD ? ptx_find_symbol(d->scope, t->text, &index) : NULL;
        if (!s || s->kind != SYMBOL_REGISTER || s->type != T_PRED)
            ptx_fail(d->p, t->line, "guard '%s' is no predicate", t->text);
        guard = s->slot + index;
    }
    Token *t = next(d);
    char opcode[256];
    int op = t->kind == TOKEN_WORD ? find_op(t->text) : -1;
    size_t used = strlen(t->text) < sizeof opcode ? strlen(t->text) : sizeof opcode - 1;
    memcpy(opcode, t->text, used);
    for (Token *dot = peek(d); dot->kind == TOKEN_DOT && used + strlen(dot->text) + 2 < sizeof opcode; dot++) {
        opcode[used++] = '.';
        memcpy(opcode + used, dot->text, strlen(dot->text));
        used += strlen(dot->text);
    }
    opcode[used] = 0;
    if (op < 0)
        ptx_fail(d->p, t->line, "unknown instruction '%s'", opcode);
    d->in = (Inst){.op = (uint8_t)op, .guard = guard, .guard_negate = negate, .line = t->line};
    d->arg_count = 0;
    d->reads_clock = false;
    while (peek(d)->kind == TOKEN_DOT)
        parse_modifier(d, opcode, next(d));
    if (op == OP_CALL) {
        decode_call(d, guard, negate);
        return;
    }
    if (op == OP_BRA) {
        Token *label = next(d);
        if (label->kind != TOKEN_WORD)
            ptx_fail(d->p, label->line, "expected a label, found '%s'", label->text);
        ptx_expect(d->p, ";");
        emit_branch(d, t->line, guard, negate, label->text);
        return;
    }
    if (op == OP_RET && d->inlined) {
        ptx_expect(d->p, ";");
        emit_branch(d, t->line, guard, negate, NULL);
        return;
    }
    ptx_parse_operands(d);
    ptx_expect(d->p, ";");
    ptx_require(d->p, &d->in);
    finish_inst(d);
    emit(d);
}

// ---- bodies ----

static void decode_registers(Decoder *d)
{
    Token *t = next(d);
    if (t->kind == TOKEN_DOT && (!strcmp(t->text, "v2") || !strcmp(t->text, "v4")))
        ptx_fail(d->p, t->line, "vector registers are not supported");
    PtxType type = t->kind == TOKEN_DOT ? ptx_type_of(t->text) : T_NONE;
    if (type == T_NONE)
        ptx_fail(d->p, t->line, "unknown register type '.%s'", t->text);
    do {
        t = next(d);
        if (t->kind != TOKEN_WORD)
            ptx_fail(d->p, t->line, "expected a register name, found '%s'", t->text);
        Symbol *s = ptx_add_symbol(d, SYMBOL_REGISTER, t->text);
        s->type = type;
        uint32_t count = 1;
        if (ptx_accept(d->p, "<")) {
            count = s->count = (uint32_t)next(d)->value;
            ptx_expect(d->p, ">");
            if (count == 0 || count > 1u << 20)
                ptx_fail(d->p, t->line, "%u registers", count);
        }
        s->slot = ptx_new_slot(d, type);
        for (uint32_t i = 1; i < count; i++)
            ptx_new_slot(d, type);
        d->k->registers += count * (type == T_PRED ? 0u : ptx_types[type].bits == 64 ? 2u : 1u);
    } while (ptx_accept(d->p, ","));
    ptx_expect(d->p, ";");
}

static void declare_variables(Decoder *d, Space space)
{
    uint32_t line = line_of(d);
    for (Variable *v = ptx_variables(d->p, space == SPACE_PARAM ? SPACE_LOCAL : space, false), *rest; v; v = rest) {
        rest = v->next;
        if (space == SPACE_SHARED) {
            ptx_place_shared(d, v);
            continue;
        }
        if (v->initial)
            ptx_fail(d->p, line, "initial value of '%s', which is not in .global or .const", v->name);
        Symbol *s = ptx_add_symbol(d, SYMBOL_VARIABLE, v->name);
        s->space = SPACE_LOCAL;
        s->is_param = space == SPACE_PARAM;
        s->size = v->size;
        s->offset = ptx_place_local(d, v);
        if (space == SPACE_LOCAL) // .param variables live in registers
            d->k->local_bytes += align_up(v->size, 4);
    }
}

static void decode_directive(Decoder *d)
{
    Token *t = next(d);
    if (!strcmp(t->text, "reg"))
        decode_registers(d);
    else if (!strcmp(t->text, "local"))
        declare_variables(d, SPACE_LOCAL);
    else if (!strcmp(t->text, "param"))
        declare_variables(d, SPACE_PARAM);
    else if (!strcmp(t->text, "shared"))
        declare_variables(d, SPACE_SHARED);
    else if (!strcmp(t->text, "loc") || !strcmp(t->text, "pragma") || !strcmp(t->text, "file"))
        while (peek(d)->kind != TOKEN_END && peek(d)->line == t->line)
            next(d);
    else
        ptx_fail(d->p, t->line, "unknown directive '.%s' in a function", t->text);
}

static void resolve_labels(Decoder *d)
{
    for (Fixup *f = d->fixups; f; f = f->next) {
        Inst *in = &d->k->code[f->inst];
        uint32_t index;
        if (!f->label) {
            in->target = (uint32_t)d->k->code_count;
            continue;
        }
        const Symbol *s = ptx_find_symbol(f->scope, f->label, &index);
        if (!s || s->kind != SYMBOL_LABEL)
            ptx_fail(d->p, f->line, "branch to '%s', which is no label here", f->label);
        in->target = s->target;
    }
}

// From after the opening brace to the closing one; labels are resolved at the end.
static void decode_body(Decoder *d)
{
    Scope *body = arena_alloc(d->p->arena, sizeof *body);
    body->parent = d->scope;
    d->scope = body;
    size_t depth = 1;
    while (depth) {
        Token *t = peek(d);
        if (t->kind == TOKEN_DOT) {
            decode_directive(d);
        } else if (ptx_accept(d->p, "{")) {
            Scope *inner = arena_alloc(d->p->arena, sizeof *inner);
            inner->parent = d->scope;
            d->scope = inner;
            depth++;
        } else if (ptx_accept(d->p, "}")) {
            d->scope = d->scope->parent;
            depth--;
        } else if (t->kind == TOKEN_WORD && t[1].kind == TOKEN_PUNCT && t[1].text[0] == ':') {
            Symbol *s = ptx_add_symbol(d, SYMBOL_LABEL, t->text);
            s->target = (uint32_t)d->k->code_count;
            d->p->at += 2;
        } else {
            decode_inst(d);
        }
    }
    resolve_labels(d);
}

static void finish_kernel(Decoder *d)
{
    Kernel *k = d->k;
    k->local_bytes = align_up(k->local_bytes, 8);
    k->local_extent = d->local_extent;
    size_t dynamic_align = 16;
    for (Variable *v = k->shared; v; v = v->next)
        if (v->external && v->size == 0 && v->align > dynamic_align)
            dynamic_align = v->align;
    k->dynamic_offset = align_up(d->shared_extent + SPACE_GAP, dynamic_align);
    k->shared_extent = d->shared_extent;
    for (Variable *v = k->shared; v; v = v->next)
        if (v->external && v->size == 0)
            v->address = k->dynamic_offset;

    k->constants = arena_alloc(d->p->arena, (k->constant_count + 1) * sizeof *k->constants);
    size_t n = 0;
    for (Constant *c = d->constants; c; c = c->next)
        k->constants[n++] = (ConstantSlot){c->slot, c->value, c->variable};
    k->specials = arena_alloc(d->p->arena, (k->special_count + 1) * sizeof *k->specials);
    n = 0;
    for (Special *s = d->specials; s; s = s->next)
        k->specials[n++] = (SpecialSlot){s->slot, (int)s->which};
}

void ptx_decode(Parser *p, FunctionText *f)
{
    Decoder d = {.p = p, .k = f->kernel, .local_extent = SPACE_START, .shared_extent = SPACE_START};
    Scope own = {0};
    d.scope = &own;
    for (size_t i = 0; i < f->param_count; i++) {
        Symbol *s = ptx_add_symbol(&d, SYMBOL_VARIABLE, f->params[i].name);
        s->space = SPACE_PARAM;
        s->is_param = true;
        s->offset = (int64_t)f->params[i].offset;
        s->size = f->params[i].size;
    }
    p->at = f->body;
    f->active = true;
    decode_body(&d);
    f->active = false;
    d.in = (Inst){.op = OP_EXIT, .run = run_exit, .guard = NO_SLOT, .line = p->token[p->at - 1].line};
    d.arg_count = 0;
    emit(&d); // running off the end is an end
    finish_kernel(&d);
}
