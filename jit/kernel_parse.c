/*
 * Parses the text of a kernel; the grammar is at the top of jit/kernel_text.c. Index expressions are taken as they stand, not brought into
 * normal form, so that a printed kernel comes back as it was. The kernel is verified at the end: text from anywhere is safe.
 */
#include "jit/kernel_text.h"

#include "ir/text.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { MAX_NEST = 200, MAX_ARGS = 1 << 12, MAX_VALUES = 1 << 16 };

typedef struct KParser {
    Scan s;
    Kernel *k;
    VEC(VRef) value; /* number in the text -> instruction */
    int nest;
} KParser;

/* An operand that is a bare value has no dtype yet: where it stands. */
typedef struct Operand {
    VRef v;
    Scan literal;
} Operand;

static Status bad(const KParser *p, const char *message) { return scan_bad(&p->s, message); }

/* "a12": a letter and a number below `limit`. */
static Status parse_name(KParser *p, char letter, uint32_t limit, uint32_t *number)
{
    char message[64];
    int64_t n;
    snprintf(message, sizeof message, "expected '%c' and a number", letter);
    scan_skip(&p->s);
    if (*p->s.at != letter || !isdigit((unsigned char)p->s.at[1]))
        return bad(p, message);
    p->s.at++;
    TRY(scan_int(&p->s, &n));
    if (n >= limit)
        return bad(p, "there is none of that number");
    *number = (uint32_t)n;
    return ST_OK;
}

static bool at_name(KParser *p, char letter)
{
    scan_skip(&p->s);
    return *p->s.at == letter && isdigit((unsigned char)p->s.at[1]);
}

/* ---- index expressions ---- */

static Status parse_sum(KParser *p, IRef *i);

static Status parse_atom(KParser *p, IRef *i)
{
    uint32_t n;
    int64_t value;
    if (at_name(p, 's')) {
        TRY(parse_name(p, 's', p->k->args.n, &n));
        *i = kidx_arg(p->k, n);
        return ST_OK;
    }
    if (at_name(p, 'v')) {
        TRY(parse_name(p, 'v', p->value.n, &n));
        *i = kidx_value(p->k, p->value.at[n]);
        return ST_OK;
    }
    if (scan_accept(&p->s, '(')) {
        if (++p->nest > MAX_NEST)
            return bad(p, "nested too deep");
        TRY(parse_sum(p, i));
        p->nest--;
        return scan_expect(&p->s, ')');
    }
    const char *letter = *p->s.at ? strchr(kernel_axis_letters, *p->s.at) : NULL;
    if (letter && letter - kernel_axis_letters < (ptrdiff_t)p->k->axes.n && !scan_word_char(p->s.at[1])) {
        p->s.at++;
        *i = kidx_axis(p->k, (uint32_t)(letter - kernel_axis_letters));
        return ST_OK;
    }
    if (!isdigit((unsigned char)*p->s.at) && *p->s.at != '-')
        return bad(p, "expected an axis, a size, a value or a number");
    TRY(scan_int(&p->s, &value));
    *i = kidx_const(p->k, value);
    return ST_OK;
}

static Status parse_product(KParser *p, IRef *i)
{
    static const struct {
        char text;
        IdxKind kind;
    } operators[] = {{'*', IX_MUL}, {'/', IX_DIV}, {'%', IX_MOD}};
    TRY(parse_atom(p, i));
    for (;;) {
        size_t o = 0;
        while (o < 3 && !scan_accept(&p->s, operators[o].text))
            o++;
        if (o == 3)
            return ST_OK;
        IRef right;
        TRY(parse_atom(p, &right));
        *i = kidx_raw(p->k, operators[o].kind, *i, right);
    }
}

static Status parse_sum(KParser *p, IRef *i)
{
    TRY(parse_product(p, i));
    while (scan_accept(&p->s, '+')) {
        IRef right;
        TRY(parse_product(p, &right));
        *i = kidx_raw(p->k, IX_ADD, *i, right);
    }
    return ST_OK;
}

/* A number that is positive and at most `most`. */
static Status parse_count(KParser *p, uint32_t most, uint32_t *n)
{
    int64_t value;
    scan_skip(&p->s);
    Scan at = p->s;
    TRY(scan_int(&p->s, &value));
    if (value < 1 || value > most)
        return scan_bad(&at, "expected a positive number");
    *n = (uint32_t)value;
    return ST_OK;
}

/* ---- the head ---- */

static Status parse_expected(KParser *p, KArg *size)
{
    int64_t value;
    scan_skip(&p->s);
    Scan at = p->s;
    TRY(scan_int(&p->s, &value));
    if (value < (size->natural ? 0 : -EXPECTED_MOST) || value > EXPECTED_MOST)
        return scan_bad(&at, "what a size is expected to be lies within -128 and 128, 0 and 128 where it is never negative");
    size->expected = (int16_t)value;
    return ST_OK;
}

static Status parse_panels(KParser *p, KArg *operand)
{
    uint32_t points = 0;
    TRY(parse_count(p, UINT16_MAX, &points));
    if (!scan_accept_word(&p->s, "along"))
        return bad(p, "expected 'along'");
    scan_skip(&p->s);
    const char *letter = *p->s.at ? strchr(kernel_axis_letters, *p->s.at) : NULL;
    if (!letter || scan_word_char(p->s.at[1]))
        return bad(p, "expected an axis");
    p->s.at++;
    operand->panel = (uint16_t)points;
    operand->panel_axis = (uint8_t)(letter - kernel_axis_letters);
    return ST_OK;
}

static Status parse_spans(KParser *p, KArg *spans)
{
    uint32_t of = 0;
    if (!scan_accept_word(&p->s, "of"))
        return bad(p, "expected 'of'");
    TRY(parse_name(p, 'a', MAX_ARGS, &of));
    if (of >= p->k->args.n || !p->k->args.at[of].band)
        return bad(p, "spans are of rows of a band, an argument before them");
    spans->of = (uint16_t)of;
    return ST_OK;
}

static Status parse_arg(KParser *p)
{
    KArg arg = {0};
    uint32_t number;
    DType dtype = DT_COUNT;
    bool buffer = at_name(p, 'a');
    TRY(parse_name(p, buffer ? 'a' : 's', MAX_ARGS, &number));
    if (number != p->k->args.n)
        return bad(p, "arguments are numbered in order");
    size_t len = scan_peek_word(&p->s);
    if (dtype_parse(p->s.at, len) != DT_COUNT)
        TRY(text_parse_dtype(&p->s, &dtype));
    if (buffer && dtype == DT_COUNT) {
        bool fault = scan_accept_word(&p->s, "fault"), spans = !fault && scan_accept_word(&p->s, "spans");
        if (!fault && !spans && !scan_accept_word(&p->s, "shared"))
            return bad(p, "expected a dtype, fault, shared or spans");
        arg.kind = fault ? ARG_FAULT : spans ? ARG_SPANS : ARG_SCRATCH;
        if (spans)
            TRY(parse_spans(p, &arg));
        arg.stops = fault && scan_accept_word(&p->s, "stops");
    } else if (buffer) {
        arg = (KArg){.kind = ARG_BUFFER, .dtype = (uint8_t)dtype};
        arg.written = scan_accept_word(&p->s, "out");
        arg.may_alias = scan_accept_word(&p->s, "alias");
        arg.band = scan_accept_word(&p->s, "band");
        if (arg.band && scan_accept_word(&p->s, "blocks"))
            TRY(parse_count(p, UINT32_MAX, &arg.blocks));
        if (scan_accept_word(&p->s, "panels"))
            TRY(parse_panels(p, &arg));
    } else if (dtype != DT_COUNT) {
        arg = (KArg){.kind = ARG_SCALAR, .dtype = (uint8_t)dtype};
    } else {
        arg.kind = ARG_SIZE;
        arg.natural = !scan_accept_word(&p->s, "int");
        arg.expects = scan_accept_word(&p->s, "expects");
        if (arg.expects)
            TRY(parse_expected(p, &arg));
    }
    VEC_PUSH(p->k->arena, p->k->args, arg);
    return ST_OK;
}

/* The axes that some fold, sort or scatter is over: a look ahead, since instructions depend on them. `at`: the first that is none. */
static Status find_r_axes(KParser *p, uint32_t *mask)
{
    Scan s = p->s;
    *mask = 0;
    while (*s.at) {
        size_t len = scan_peek_word(&s);
        bool fold = scan_accept_word(&s, "fold"), attend = !fold && scan_accept_word(&s, "attend");
        bool other = !fold && !attend && (scan_accept_word(&s, "sort") || scan_accept_word(&s, "along"));
        if (!fold && !other && !attend) {
            s.at += len ? len : *s.at != 0;
            continue;
        }
        if (fold)
            s.at += scan_peek_word(&s);
        uint32_t here = 0;
        for (;;) {
            len = scan_peek_word(&s);
            const char *letter = len == 1 ? strchr(kernel_axis_letters, *s.at) : NULL;
            if (!letter)
                break;
            if (letter - kernel_axis_letters >= (ptrdiff_t)p->k->axes.n)
                return scan_bad(&s, "no such axis");
            here |= 1u << (letter - kernel_axis_letters);
            s.at++;
        }
        if (attend)
            p->k->form = FORM_ATTENTION;
        if (!here || (*mask && here != *mask && !attend))
            return scan_bad(&s, here ? "folds over different axes are not made yet" : "expected the axes that it is over");
        *mask |= here;
    }
    return ST_OK;
}

static Status parse_axes(KParser *p)
{
    Kernel *k = p->k;
    if (!scan_accept_word(&p->s, "for"))
        return ST_OK;
    bool beside = false;
    do {
        KAxis axis = {.beside = beside};
        int64_t bucket = 0, fixed;
        axis.kind = scan_accept_word(&p->s, "row") ? AXIS_R : AXIS_X;
        scan_skip(&p->s);
        if (k->axes.n == KERNEL_AXES || *p->s.at != kernel_axis_letters[k->axes.n])
            return bad(p, "expected the next axis: i, j, k and so on, 16 at most");
        p->s.at++;
        TRY(scan_expect(&p->s, '<'));
        TRY(parse_sum(p, &axis.size));
        if (scan_accept(&p->s, '~'))
            TRY(scan_int(&p->s, &bucket));
        if (bucket < 0 || bucket > KERNEL_BUCKETS || (bucket && kidx_is_const(k, axis.size, &fixed)))
            return bad(p, "a bucket belongs to a size that may vary, and is at most 40");
        axis.bucket = (uint8_t)bucket;
        VEC_PUSH(k->arena, k->axes, axis);
        beside = scan_accept_word(&p->s, "or");
    } while (beside || scan_accept(&p->s, ','));
    return ST_OK;
}

static Status parse_head(KParser *p)
{
    Kernel *k = p->k;
    uint32_t folded;
    if (!scan_accept_word(&p->s, "kernel"))
        return bad(p, "expected 'kernel'");
    if (scan_accept_word(&p->s, "index")) {
        TRY(parse_name(p, 'i', 65, &folded));
        if (folded != 16 && folded != 32)
            return bad(p, "indices are of 16 or 32 bits, or it is not said");
        k->index_bits = (uint8_t)folded;
    }
    TRY(scan_expect(&p->s, '('));
    while (!scan_accept(&p->s, ')')) {
        if (k->args.n)
            TRY(scan_expect(&p->s, ','));
        TRY(parse_arg(p));
    }
    if (scan_accept_word(&p->s, "of"))
        for (int i = 0; i < 3; i++) {
            if (i && !scan_accept_word(&p->s, "x"))
                return bad(p, "expected 'x'");
            TRY(parse_product(p, &k->product[i]));
        }
    TRY(parse_axes(p));
    TRY(find_r_axes(p, &folded));
    for (uint32_t a = 0; a < k->axes.n; a++)
        if (folded >> a & 1)
            k->axes.at[a].kind = AXIS_R;
    return ST_OK;
}

/* ---- instructions ---- */

static VRef literal(KParser *p, DType dtype, uint64_t bits)
{
    KInst inst = KINST(.kind = KI_CONST, .dtype = (uint8_t)dtype, .imm = bits);
    return kernel_inst(p->k, inst);
}

static Status parse_operand(KParser *p, Operand *o)
{
    uint32_t n;
    DType dtype;
    uint64_t bits;
    *o = (Operand){.v = VREF_NONE};
    if (at_name(p, 'v')) {
        TRY(parse_name(p, 'v', p->value.n, &n));
        o->v = p->value.at[n];
        return ST_OK;
    }
    if (at_name(p, 's')) {
        TRY(parse_name(p, 's', p->k->args.n, &n));
        KInst inst = KINST(.kind = KI_SCALAR, .dtype = p->k->args.at[n].dtype, .arg = n);
        o->v = kernel_inst(p->k, inst);
        return ST_OK;
    }
    size_t len = scan_peek_word(&p->s);
    if (dtype_parse(p->s.at, len) != DT_COUNT) {
        TRY(text_parse_dtype(&p->s, &dtype));
        TRY(scan_expect(&p->s, '('));
        TRY(text_parse_scalar(&p->s, dtype, &bits));
        o->v = literal(p, dtype, bits);
        return scan_expect(&p->s, ')');
    }
    o->literal = p->s;
    while (scan_word_char(*p->s.at) || *p->s.at == '-' || *p->s.at == '+' || *p->s.at == '.')
        p->s.at++;
    return p->s.at == o->literal.at ? bad(p, "expected a value") : ST_OK;
}

static Status resolve(KParser *p, Operand *o, DType dtype)
{
    uint64_t bits;
    if (o->v != VREF_NONE)
        return ST_OK;
    if (dtype == DT_COUNT)
        return scan_bad(&o->literal, "its dtype must be said: f32(1)");
    TRY(text_parse_scalar(&o->literal, dtype, &bits));
    o->v = literal(p, dtype, bits);
    return ST_OK;
}

/* Operands become instructions: what they are known to be decides what bare values are. */
static Status set_operands(KParser *p, KInst *inst, Operand *o, uint32_t n)
{
    DType types[3] = {DT_COUNT, DT_COUNT, DT_COUNT};
    VRef *const at[3] = {&inst->a, &inst->b, &inst->c};
    for (uint32_t i = 0; i < n; i++)
        if (o[i].v != VREF_NONE && p->k->inst.at[o[i].v].kind != KI_CONST)
            types[i] = (DType)p->k->inst.at[o[i].v].dtype;
    for (uint32_t i = 0; i < n; i++) {
        TRY(resolve(p, &o[i], kernel_literal_dtype(p->k, inst, i, types)));
        *at[i] = o[i].v;
    }
    return ST_OK;
}

static Status parse_where(KParser *p, KInst *inst)
{
    Operand o;
    if (!scan_accept_word(&p->s, "where"))
        return ST_OK;
    TRY(parse_operand(p, &o));
    TRY(resolve(p, &o, DT_BOOL));
    inst->pred = o.v;
    return ST_OK;
}

static Status parse_access(KParser *p, KInst *inst)
{
    TRY(parse_name(p, 'a', p->k->args.n, &inst->arg));
    TRY(scan_expect(&p->s, '['));
    TRY(parse_sum(p, &inst->idx));
    inst->dtype = p->k->args.at[inst->arg].dtype;
    return scan_expect(&p->s, ']');
}

/* Letters that find_r_axes has seen. */
static void skip_axes(KParser *p)
{
    while (scan_peek_word(&p->s) == 1)
        p->s.at++;
}

static Status parse_operands(KParser *p, KInst *inst, uint32_t n, bool commas)
{
    Operand o[3];
    for (uint32_t i = 0; i < n; i++) {
        if (i && commas)
            TRY(scan_expect(&p->s, ','));
        TRY(parse_operand(p, &o[i]));
    }
    return set_operands(p, inst, o, n);
}

static Status parse_fold(KParser *p, KInst *inst)
{
    size_t len = scan_peek_word(&p->s);
    int fold = 0;
    while (fold < FOLD_COUNT && (strlen(fold_info[fold].text) != len || strncmp(fold_info[fold].text, p->s.at, len) != 0))
        fold++;
    if (fold == FOLD_COUNT)
        return bad(p, "no such fold");
    p->s.at += len;
    inst->kind = KI_FOLD;
    inst->op = (uint8_t)fold;
    skip_axes(p);
    TRY(scan_expect(&p->s, '('));
    TRY(parse_operands(p, inst, fold_info[fold].operands, true));
    TRY(scan_expect(&p->s, ')'));
    if (scan_accept_word(&p->s, "running")) {
        if (fold != FOLD_SUM)
            return bad(p, "only sums can be running");
        inst->mode = RUNNING;
    }
    if (inst_is_dot(inst) && p->k->form != FORM_ATTENTION)
        p->k->form = FORM_CONTRACT;
    return ST_OK;
}

/* What follows "order". */
static Status parse_order(KParser *p, Order *order)
{
    uint32_t lanes = 0;
    int kind = ORD_ANY + 1;
    while (kind < ORDER_KINDS && !scan_accept_word(&p->s, order_kind_text[kind]))
        kind++;
    if (kind == ORDER_KINDS)
        return bad(p, "expected lanes, chain, pairs, parts, serial or halves");
    order->kind = (uint8_t)kind;
    if (kind == ORD_LANES)
        TRY(parse_count(p, UINT16_MAX, &lanes));
    order->lanes = (uint16_t)lanes;
    if (scan_accept_word(&p->s, "block"))
        TRY(parse_count(p, UINT32_MAX, &order->block));
    order->tree = scan_accept_word(&p->s, "tree");
    return ST_OK;
}

static Status parse_attend(KParser *p, KInst *inst)
{
    uint32_t block = 0;
    inst->kind = KI_ATTEND;
    skip_axes(p);
    TRY(scan_expect(&p->s, '('));
    TRY(parse_operands(p, inst, 2, true));
    TRY(scan_expect(&p->s, ')'));
    inst->mode = scan_accept_word(&p->s, "zero")   ? ATTEND_ZERO
                 : scan_accept_word(&p->s, "sum")  ? ATTEND_SUM
                 : scan_accept_word(&p->s, "most") ? ATTEND_MOST
                                                   : 0;
    if (!inst_is_chain(inst) && scan_accept_word(&p->s, "parts")) {
        inst->mode |= ATTEND_PARTS;
        return ST_OK;
    }
    if (!scan_accept_word(&p->s, "blocks"))
        return bad(p, "expected 'blocks' or 'parts'");
    TRY(parse_count(p, UINT32_MAX, &block));
    return block == ATTEND_BLOCK ? ST_OK : bad(p, "blocks are of 64 keys");
}

static Status parse_sort(KParser *p, KInst *inst)
{
    int64_t bits;
    inst->kind = KI_SORT;
    p->k->form = FORM_SORT;
    skip_axes(p);
    TRY(scan_expect(&p->s, '('));
    TRY(parse_operands(p, inst, 1, false));
    TRY(scan_expect(&p->s, ')'));
    inst->mode = scan_accept_word(&p->s, "descending");
    if (!scan_accept_word(&p->s, "places"))
        return bad(p, "expected 'places'");
    TRY(scan_int(&p->s, &bits));
    if (bits != 32 && bits != 64)
        return bad(p, "places are of 32 or 64 bits");
    inst->imm = (uint64_t)bits;
    return ST_OK;
}

static Status parse_bound(KParser *p, KInst *inst)
{
    Operand o;
    int64_t id;
    inst->kind = KI_BOUND;
    inst->dtype = DT_I64;
    TRY(parse_operand(p, &o));
    TRY(set_operands(p, inst, &o, 1));
    if (!scan_accept_word(&p->s, "below"))
        return bad(p, "expected 'below'");
    TRY(parse_sum(p, &inst->idx));
    if (!scan_accept_word(&p->s, "fault"))
        return bad(p, "expected 'fault'");
    TRY(parse_name(p, 'a', p->k->args.n, &inst->arg));
    TRY(scan_expect(&p->s, '.'));
    TRY(scan_int(&p->s, &id));
    inst->imm = (uint64_t)id;
    return parse_where(p, inst);
}

/* "carry START", "next CARRY VALUE", "next CARRY VALUE ends" */
static Status parse_carried(KParser *p, KInst *inst, bool carry)
{
    inst->kind = carry ? KI_CARRY : KI_NEXT;
    TRY(parse_operands(p, inst, carry ? 1 : 2, false));
    inst->dtype = p->k->inst.at[inst->a].dtype;
    inst->mode = !carry && scan_accept_word(&p->s, "ends") ? ENDS : 0;
    return ST_OK;
}

static Status parse_op(KParser *p, KInst *inst)
{
    size_t len = scan_peek_word(&p->s);
    Op op = op_parse(p->s.at, len);
    if (op == OP_COUNT || op_class(op) != CLS_EW)
        return bad(p, "expected load, index, fold, attend, sort, bound, carry, next or an elementwise op");
    p->s.at += len;
    inst->kind = KI_OP;
    inst->op = (uint8_t)op;
    return parse_operands(p, inst, (uint32_t)op_info[op].arity, false);
}

static Status parse_definition(KParser *p, KInst *inst)
{
    uint32_t number;
    TRY(parse_name(p, 'v', MAX_VALUES, &number));
    if (number != p->value.n)
        return bad(p, "values are numbered in order");
    TRY(scan_expect(&p->s, '='));
    if (scan_accept_word(&p->s, "index")) {
        inst->kind = KI_INDEX;
        inst->dtype = DT_I64;
        return parse_sum(p, &inst->idx);
    }
    if (scan_accept_word(&p->s, "load")) {
        inst->kind = KI_LOAD;
        TRY(parse_access(p, inst));
        return parse_where(p, inst);
    }
    if (scan_accept_word(&p->s, "bound"))
        return parse_bound(p, inst);
    if (scan_accept_word(&p->s, "carry") || scan_accept_word(&p->s, "next"))
        return parse_carried(p, inst, p->s.at[-1] == 'y');
    TRY(scan_accept_word(&p->s, "fold")     ? parse_fold(p, inst)
        : scan_accept_word(&p->s, "sort")   ? parse_sort(p, inst)
        : scan_accept_word(&p->s, "attend") ? parse_attend(p, inst)
                                            : parse_op(p, inst));
    DType types[3] = {DT_COUNT, DT_COUNT, DT_COUNT}, own;
    const VRef in[3] = {inst->a, inst->b, inst->c};
    uint32_t n = 0;
    for (uint32_t i = 0; i < 3 && in[i] != VREF_NONE; i++)
        types[n++] = (DType)p->k->inst.at[in[i]].dtype;
    own = kernel_result_dtype(inst, n, types);
    if (scan_accept(&p->s, ':'))
        TRY(text_parse_dtype(&p->s, &own));
    if (own == DT_COUNT)
        return bad(p, "the dtype of the result must be said, or its operands do not fit");
    inst->dtype = (uint8_t)own;
    return inst->kind == KI_FOLD && scan_accept_word(&p->s, "order") ? parse_order(p, &inst->order) : ST_OK;
}

static Status parse_store(KParser *p, KInst *inst)
{
    Operand o;
    inst->kind = scan_accept_word(&p->s, "store") ? KI_STORE : KI_SCATTER;
    if (inst->kind == KI_SCATTER) {
        (void)scan_accept_word(&p->s, "scatter");
        while (inst->mode < 4 && !scan_accept_word(&p->s, kernel_scatter_mode[inst->mode]))
            inst->mode++;
        if (inst->mode == 4)
            return bad(p, "expected set, add, max or min");
    }
    TRY(parse_access(p, inst));
    TRY(scan_expect(&p->s, '='));
    TRY(parse_operand(p, &o));
    TRY(set_operands(p, inst, &o, 1));
    if (inst->kind == KI_SCATTER) {
        if (!scan_accept_word(&p->s, "along"))
            return bad(p, "expected 'along'");
        skip_axes(p);
    }
    return parse_where(p, inst);
}

/* A newline (which may be behind the scanner already) or ';', or the end of the text. */
static Status parse_end(KParser *p)
{
    scan_skip(&p->s);
    for (const char *c = p->s.at; c > p->s.text && isspace((unsigned char)c[-1]); c--)
        if (c[-1] == '\n')
            return ST_OK;
    return !*p->s.at || scan_accept(&p->s, ';') ? ST_OK : bad(p, "expected the end of the line");
}

static Status parse_inst(KParser *p)
{
    KInst inst = KINST(.kind = KI_OP);
    bool defines = at_name(p, 'v');
    if (!defines && strncmp(p->s.at, "store", 5) != 0 && strncmp(p->s.at, "scatter", 7) != 0)
        return bad(p, "expected a value, store or scatter");
    TRY(defines ? parse_definition(p, &inst) : parse_store(p, &inst));
    inst.unrounded = scan_accept_word(&p->s, "unrounded");
    VRef v = kernel_inst(p->k, inst);
    if (defines)
        VEC_PUSH(p->k->arena, p->value, v);
    return parse_end(p);
}

Status kernel_parse(const char *text, Arena *arena, Kernel **out)
{
    KParser p = {.s = {text, text}, .k = kernel_new(arena)};
    TRY(parse_head(&p));
    TRY(parse_end(&p));
    while (*p.s.at) {
        TRY(parse_inst(&p));
        scan_skip(&p.s);
    }
    TRY(kernel_verify(p.k));
    *out = p.k;
    return ST_OK;
}
