/*
 * Recording tapes, and the table of those made so far.
 *
 * tape_get looks into a table indexed by (op, dtype, math); an empty slot is filled by running the op's expansion
 * against a recorder (ir/expand.h), dropping what the result does not need, and publishing the tape with one
 * compare-and-swap: a thread that loses the race drops its copy. Tapes live for ever; there are at most a few thousand.
 *
 * The recorder numbers values: an instruction equal to an earlier one is that one, and an instruction of constants is a
 * constant, computed by the interpreter's own engine. An instruction inside a cold region is not reused outside.
 */
#include "ir/base/os.h"
#include "ir/expand.h"
#include "ir/tape_run.h"

#include <stdatomic.h>
#include <string.h>

static ExpandFn *const expand_fn[OP_COUNT] = {
#define OP(id, text, arity, cls, rule, flags) OP_IS_EW_##cls([OP_##id] = expand_##id, )
#include "ir/ops.def"
#undef OP
};

/* Ops that work on the stored bits of f16 and bf16 instead of on their f32 values. */
static const bool on_stored_bits[OP_COUNT] = {[OP_CAST] = true,     [OP_WHERE] = true, [OP_NEXTAFTER] = true, [OP_SIGNBIT] = true,
                                              [OP_COPYSIGN] = true, [OP_NEG] = true,   [OP_ABS] = true,       [OP_RELU] = true};

/* Ops whose result is an operand, its negation or a whole number no larger: of f16 and bf16 values it is one, too, and nothing is to be rounded. */
static const bool keeps_halves[OP_COUNT] = {
    [OP_NEG] = true,  [OP_ABS] = true,   [OP_SIGN] = true,  [OP_RELU] = true,    [OP_FLOOR] = true,
    [OP_CEIL] = true, [OP_ROUND] = true, [OP_TRUNC] = true, [OP_MAXIMUM] = true, [OP_MINIMUM] = true};

bool op_keeps_halves(Op op) { return keeps_halves[op]; }

const FloatForm float_forms[2] = {
    {SC_I32, 32, 23, 127, UINT64_C(0x80000000), UINT64_C(0x7f800000), UINT64_C(0x3f800000), UINT64_C(0x7fc00000), 0x1p-126, 0x1.fffffep127},
    {SC_I64, 64, 52, 1023, UINT64_C(0x8000000000000000), UINT64_C(0x7ff0000000000000), UINT64_C(0x3ff0000000000000),
     UINT64_C(0x7ff8000000000000), 0x1p-1022, 0x1.fffffffffffffp1023},
};

/* ---- recorder ---- */

static uint32_t inst_hash(const TapeInst *i)
{
    uint64_t h = i->op | (uint64_t)i->type << 8 | (uint64_t)i->a << 16 | (uint64_t)i->b << 32 | (uint64_t)i->c << 48;
    h = (h ^ (i->imm * UINT64_C(0x9e3779b97f4a7c15))) * UINT64_C(0xff51afd7ed558ccd);
    return (uint32_t)(h >> 32) ^ (uint32_t)(h >> 13);
}

static bool inst_same(const TapeInst *x, const TapeInst *y)
{
    return x->op == y->op && x->type == y->type && x->a == y->a && x->b == y->b && x->c == y->c && x->imm == y->imm;
}

/* Doubles instruction array and table (which stays at most half full). */
static bool grow(E *e)
{
    uint32_t cap = e->cap ? e->cap * 2 : 64;
    if (cap > 65536)
        return false;
    TapeInst *inst = os_realloc(e->inst, cap * sizeof *inst);
    if (!inst)
        return false;
    e->inst = inst;
    e->cap = cap;
    uint16_t *table = os_calloc(cap * 2, sizeof *table);
    if (!table)
        return false;
    for (uint32_t i = 0; i < e->table_cap; i++) {
        if (!e->table[i])
            continue;
        uint32_t at = inst_hash(&inst[e->table[i] - 1]) & (cap * 2 - 1);
        while (table[at])
            at = (at + 1) & (cap * 2 - 1);
        table[at] = e->table[i];
    }
    os_free(e->table);
    e->table = table;
    e->table_cap = cap * 2;
    return true;
}

/* True when instruction k lies in a cold region that is closed by now. */
static bool in_closed_region(const E *e, uint32_t k)
{
    for (uint32_t i = 0; i < e->n_cold; i++)
        if (k >= e->cold[i].begin && k < e->cold[i].end) /* an open one ends at 0 */
            return true;
    return false;
}

static X record(E *e, TapeInst want)
{
    if (e->failed)
        return 0;
    if (e->n == e->cap && !grow(e)) {
        e->failed = true;
        return 0;
    }
    uint32_t at = inst_hash(&want) & (e->table_cap - 1);
    for (; e->table[at]; at = (at + 1) & (e->table_cap - 1)) {
        uint32_t k = e->table[at] - 1u;
        if (inst_same(&e->inst[k], &want)) {
            if (!in_closed_region(e, k))
                return (X)k;
            break; /* reuse the slot for the new copy, which is visible from here on */
        }
    }
    e->inst[e->n] = want;
    e->table[at] = (uint16_t)(e->n + 1);
    return (X)e->n++;
}

X x_inst(E *e, ScalarOp op, SType type, X a, X b, X c)
{
    if (e->failed)
        return 0;
    TapeInst want = {.op = (uint8_t)op, .type = (uint8_t)type, .a = a};
    int arity = scalar_op_info[op].arity;
    if (arity > 1)
        want.b = b;
    if (arity > 2)
        want.c = c;
    const TapeInst *i = e->inst;
    if (i[a].op == SOP_CONST && (arity < 2 || i[b].op == SOP_CONST) && (arity < 3 || i[c].op == SOP_CONST)) {
        uint64_t operand[3] = {i[a].imm, i[b].imm, i[c].imm};
        return x_bits(e, type, tape_fold(op, type, (SType)i[a].type, operand));
    }
    return record(e, want);
}

static X x_input(E *e, SType type, unsigned k) { return record(e, (TapeInst){.op = SOP_INPUT, .type = (uint8_t)type, .imm = k}); }

X x_bits(E *e, SType type, uint64_t bits)
{
    if (stype_bits[type] < 64)
        bits &= (UINT64_C(1) << stype_bits[type]) - 1;
    return record(e, (TapeInst){.op = SOP_CONST, .type = (uint8_t)type, .imm = bits});
}

X x_num(E *e, SType type, double value)
{
    uint64_t bits;
    if (e->failed) /* then types are those of nothing */
        return 0;
    if (type == SC_F32) {
        float f = (float)value;
        uint32_t u;
        memcpy(&u, &f, sizeof u);
        bits = u;
    } else if (type == SC_F64) {
        memcpy(&bits, &value, sizeof bits);
    } else {
        bits = (uint64_t)(int64_t)value;
    }
    return x_bits(e, type, bits);
}

X x_lookup(E *e, LookupTable table, X index)
{
    if (e->failed)
        return 0;
    if (e->inst[index].op == SOP_CONST)
        return x_num(e, SC_F64, lookup_table[table][e->inst[index].imm % LOOKUP_ENTRIES]);
    return record(e, (TapeInst){.op = SOP_LOOKUP, .type = SC_F64, .a = index, .imm = table});
}

X x_row(E *e, X index, int column)
{
    if (e->failed)
        return 0;
    if (e->inst[index].op == SOP_CONST)
        return x_num(e, SC_F64, row_table[e->inst[index].imm % ROW_COUNT][column]);
    return record(e, (TapeInst){.op = SOP_ROW, .type = SC_F64, .a = index, .imm = (uint64_t)column});
}

void x_cold_begin(E *e, X cond)
{
    if (e->failed)
        return;
    TapeCold *cold = os_realloc(e->cold, (e->n_cold + 1) * sizeof *cold);
    if (!cold) {
        e->failed = true;
        return;
    }
    e->cold = cold;
    e->cold[e->n_cold++] = (TapeCold){.cond = cond, .begin = (uint16_t)e->n};
}

void x_cold_end(E *e)
{
    if (e->failed)
        return;
    uint32_t inner = e->n_cold - 1;
    while (e->cold[inner].end)
        inner--;
    e->cold[inner].end = (uint16_t)e->n;
}

X x_poly(E *e, X x, const Poly *p)
{
    if (e->failed)
        return 0; /* x may have any type now */
    int which = x_type(e, x) == SC_F64, n = p->of[which].n;
    const double *c = p->of[which].c;
    X r = x_like(e, x, c[n - 1]);
    for (int i = n - 2; i >= 0; i--)
        r = x_fma(e, r, x, x_like(e, x, c[i]));
    return r;
}

/* ---- making a tape ---- */

/* Drops what `out` does not need and moves the rest into one block: Tape, instructions, regions. NULL: no memory. */
static Tape *finish(E *e, X out, unsigned n_inputs)
{
    uint16_t *map = os_calloc(e->n + 1, sizeof *map); /* 1 + new index; first as a mark */
    if (!map)
        return NULL;
    map[out] = 1;
    for (unsigned k = 0; k < n_inputs; k++)
        map[k] = 1; /* inputs stay, used or not */
    for (uint32_t k = e->n; k-- > 0;) {
        if (!map[k])
            continue;
        const TapeInst *i = &e->inst[k];
        const uint16_t operand[3] = {i->a, i->b, i->c};
        for (int j = 0; j < scalar_op_info[i->op].arity; j++)
            map[operand[j]] = 1;
    }
    uint32_t n = 0;
    for (uint32_t k = 0; k < e->n; k++)
        n += map[k];
    Tape *tape = os_alloc(sizeof *tape + n * sizeof(TapeInst) + e->n_cold * sizeof(TapeCold));
    if (!tape) {
        os_free(map);
        return NULL;
    }
    TapeInst *inst = (TapeInst *)(tape + 1);
    TapeCold *cold = (TapeCold *)(inst + n);
    uint16_t n_cold = 0;
    for (uint32_t r = 0; r < e->n_cold; r++) {
        uint32_t before = 0, inside = 0;
        for (uint32_t k = 0; k < e->cold[r].end; k++)
            *(k < e->cold[r].begin ? &before : &inside) += map[k] != 0;
        TapeCold region = {.cond = e->cold[r].cond, .begin = (uint16_t)before, .end = (uint16_t)(before + inside)};
        if (inside)
            cold[n_cold++] = region;
    }
    uint16_t next = 0;
    for (uint32_t k = 0; k < e->n; k++) {
        if (!map[k])
            continue;
        TapeInst i = e->inst[k];
        int arity = scalar_op_info[i.op].arity;
        i.a = arity > 0 ? map[i.a] : 0;
        i.b = arity > 1 ? map[i.b] : 0;
        i.c = arity > 2 ? map[i.c] : 0;
        inst[next] = i;
        map[k] = next++;
    }
    for (uint16_t r = 0; r < n_cold; r++)
        cold[r].cond = map[cold[r].cond];
    *tape = (Tape){.inst = inst, .n = next, .n_inputs = (uint16_t)n_inputs, .out = map[out], .n_cold = n_cold, .cold = cold};
    os_free(map);
    return tape;
}

/* The tape of what was recorded, or NULL where memory ran out; the recorder's own memory is given back. */
static Tape *end_recording(E *e, X result, unsigned n_inputs)
{
    Tape *tape = e->failed || !e->n ? NULL : finish(e, result, n_inputs);
    os_free(e->inst);
    os_free(e->table);
    os_free(e->cold);
    return tape;
}

static Tape *make(Op op, const DType *in, DType out, MathMode math)
{
    E e = {.math = math, .out = out};
    if (!grow(&e)) /* from here on there is an instruction 0 to name */
        return end_recording(&e, 0, 0);
    bool widen = !on_stored_bits[op];
    X x[3] = {0, 0, 0};
    unsigned arity = (unsigned)op_info[op].arity;
    for (unsigned k = 0; k < arity; k++)
        x[k] = x_input(&e, (SType)dtype_info[in[k]].scalar, k);
    for (unsigned k = 0; k < arity; k++) {
        e.in[k] = in[k];
        if (widen && dtype_is_half(in[k])) {
            x[k] = x_widen(&e, in[k], x[k]);
            e.in[k] = DT_F32;
        }
    }
    if (widen && dtype_is_half(out))
        e.out = DT_F32;
    X result = expand_fn[op](&e, x);
    if (widen && dtype_is_half(out))
        result = (keeps_halves[op] ? x_narrow_exact : x_narrow)(&e, out, result);
    return end_recording(&e, result, arity);
}

Tape *tape_record(RecordFn *record_fn, const void *what, const DType *in, unsigned n)
{
    E e = {.math = MATH_STRICT};
    X x[4] = {0};
    if (!grow(&e))
        return end_recording(&e, 0, 0);
    for (unsigned k = 0; k < n; k++) {
        e.in[k] = in[k];
        x[k] = x_input(&e, (SType)dtype_info[in[k]].scalar, k);
    }
    return end_recording(&e, record_fn(&e, x, what), n);
}

const Tape *tape_publish(_Atomic(const Tape *) *slot, Tape *made)
{
    const Tape *other = NULL;
    if (!made || atomic_compare_exchange_strong_explicit(slot, &other, made, memory_order_acq_rel, memory_order_acquire))
        return made;
    os_free(made);
    return other;
}

const Tape *tape_get(Op op, const DType *in, DType out, MathMode math)
{
    static _Atomic(const Tape *) table[OP_COUNT + DT_COUNT][DT_COUNT][MATH_MODES];
    if (!expand_fn[op])
        return NULL;
    /* The inputs' one dtype decides, but for WHERE (the second's) and CAST (two of them). */
    size_t row = op == OP_CAST ? (size_t)OP_COUNT + in[0] : (size_t)op;
    DType column = op == OP_CAST ? out : in[op == OP_WHERE ? 1 : 0];
    _Atomic(const Tape *) *slot = &table[row][column][math];
    const Tape *tape = atomic_load_explicit(slot, memory_order_acquire);
    if (tape)
        return tape;
    return tape_publish(slot, make(op, in, out, math));
}

uint16_t tape_region_after(const Tape *tape, uint16_t r)
{
    uint16_t next = (uint16_t)(r + 1);
    while (next < tape->n_cold && tape->cold[next].begin < tape->cold[r].end)
        next++;
    return next;
}

static bool is_computed(ScalarOp op) { return op != SOP_INPUT && op != SOP_CONST && op != SOP_BITCAST; }

TapeLength tape_usual_length(const Tape *tape)
{
    TapeLength length = {0};
    uint16_t i = 0;
    for (uint16_t r = 0; i < tape->n; r = tape_region_after(tape, r)) {
        for (uint16_t end = r < tape->n_cold ? tape->cold[r].begin : tape->n; i < end; i++) {
            length.all++;
            length.computing += is_computed((ScalarOp)tape->inst[i].op);
        }
        i = r < tape->n_cold ? tape->cold[r].end : tape->n;
    }
    return length;
}
