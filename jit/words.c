/*
 * What is only moved, two, four or eight bytes that lie side by side together, moves as words (CPUs, which read them at any address):
 *
 *     for i < 256, j < 1024, k < 4: a1[i*4096 + j*4 + k] = a0[i*4 + j*1024 + k]      i8
 *     for i < 256, j < 1024:        a1[i*1024 + j]       = a0[i + j*256]             i32
 *
 * Pairs and fours that change places (complex numbers, pixels, the fours of k of a product of bytes) are a transposition of words then, by squares
 * in registers; else each is a loop of its own. (Cascade Lake, one thread, us: i8 [1024,256,4] with the first axes turned 655 -> 120.)
 */
#include "jit/kernel.h"

#include <string.h>

enum { LONGEST = 8 }; /* bytes of a word */

typedef struct Words {
    Kernel *from, *to;
    uint32_t axis; /* along which a word has `n` elements, the last one */
    int64_t n;
    bool *moved;     /* by instruction: it is an element that is moved */
    bool *arg_moved; /* by argument */
    IRef *place;     /* of each axis, in `to` */
    VRef *value;
    uint32_t bytes; /* of an element; 0: none was met */
} Words;

static bool goes_along(const Words *w, VRef v) { return v != VREF_NONE && w->from->inst_axes.at[v] >> w->axis & 1; }

/* Does a word begin at this index, whatever the other axes are, and lie along `axis`? */
static bool is_word(Words *w, IRef idx)
{
    Kernel *k = w->from;
    IRef coef, rest;
    int64_t one, past;
    return kidx_linear(k, idx, w->axis, &coef, &rest) && kidx_is_const(k, coef, &one) && one == 1 &&
           kidx_is_const(k, kidx_mod(k, rest, kidx_const(k, w->n)), &past) && past == 0;
}

static bool moves(Words *w, const KInst *n)
{
    const uint32_t bytes = (uint32_t)dtype_bytes((DType)(n->kind == KI_STORE ? w->from->inst.at[n->a].dtype : n->dtype));
    if (goes_along(w, n->pred) || !is_word(w, n->idx) || bytes * w->n > LONGEST || (w->bytes && w->bytes != bytes))
        return false;
    w->bytes = bytes;
    w->arg_moved[n->arg] = true;
    return true;
}

static bool is_element(const Words *w, VRef v) { return w->moved[v] || w->from->inst.at[v].kind == KI_CONST; }

/* Loads of elements, choices among them and numbers, stores; all else is the same for all elements of a word. */
static bool only_moves(Words *w)
{
    const Kernel *k = w->from;
    for (VRef v = 0; v < k->inst.n; v++) {
        const KInst *n = &k->inst.at[v];
        bool fits = true;
        if (n->kind == KI_STORE)
            fits = w->moved[n->a] && moves(w, n);
        else if (goes_along(w, v) && n->kind == KI_LOAD)
            w->moved[v] = fits = moves(w, n);
        else if (goes_along(w, v))
            w->moved[v] = fits =
                n->kind == KI_OP && n->op == OP_WHERE && !goes_along(w, n->a) && is_element(w, n->b) && is_element(w, n->c);
        if (!fits)
            return false;
    }
    for (VRef v = 0; v < k->inst.n; v++) /* an argument has words everywhere or nowhere */
        if (k->inst.at[v].kind == KI_LOAD && !w->moved[v] && w->arg_moved[k->inst.at[v].arg])
            return false;
    return w->bytes > 0;
}

static IRef same_size(void *user, uint32_t arg) { return kidx_arg(((Words *)user)->to, arg); }

static DType word_type(const Words *w) { return w->bytes * w->n == 2 ? DT_I16 : w->bytes * w->n == 4 ? DT_I32 : DT_I64; }

/* A choice's or a store's operand. */
static VRef word_of(Words *w, VRef v)
{
    const unsigned bits = 8 * w->bytes;
    const uint64_t number = w->from->inst.at[v].imm & (UINT64_MAX >> (64 - bits));
    uint64_t word = 0;
    if (w->moved[v])
        return w->value[v];
    for (int64_t i = 0; i < w->n; i++)
        word |= number << (unsigned)i * bits;
    return kernel_inst(w->to, KINST(.kind = KI_CONST, .dtype = (uint8_t)word_type(w), .imm = word));
}

static void copy_words(Words *w)
{
    const Kernel *k = w->from;
    const KMap map = {.size = same_size, .user = w, .place = w->place, .value = w->value};
    for (uint32_t a = 0; a < k->args.n; a++) {
        VEC_PUSH(w->to->arena, w->to->args, k->args.at[a]);
        if (w->arg_moved[a])
            w->to->args.at[a].dtype = (uint8_t)word_type(w);
    }
    for (uint32_t a = 0; a < w->axis; a++)
        w->place[a] = kidx_axis(w->to, kernel_add_axis(w->to, (AxisKind)k->axes.at[a].kind, kidx_copy(w->to, k, k->axes.at[a].size, &map),
                                                       kernel_extent(k, a)));
    w->place[w->axis] = kidx_const(w->to, 0);
    for (VRef v = 0; v < k->inst.n; v++) {
        KInst n = k->inst.at[v];
        const bool store = n.kind == KI_STORE, word = store || w->moved[v], choice = word && n.kind == KI_OP;
        n.a = n.a == VREF_NONE ? VREF_NONE : store ? word_of(w, n.a) : w->value[n.a];
        n.b = n.b == VREF_NONE ? VREF_NONE : choice ? word_of(w, n.b) : w->value[n.b];
        n.c = n.c == VREF_NONE ? VREF_NONE : choice ? word_of(w, n.c) : w->value[n.c];
        n.pred = n.pred == VREF_NONE ? VREF_NONE : w->value[n.pred];
        n.idx = n.idx == IREF_NONE ? IREF_NONE : kidx_copy(w->to, k, n.idx, &map);
        if (word && n.idx != IREF_NONE)
            n.idx = kidx_div(w->to, n.idx, kidx_const(w->to, w->n));
        if (word)
            n.dtype = (uint8_t)word_type(w);
        w->value[v] = kernel_inst(w->to, n);
    }
}

Kernel *kernel_words(Kernel *k, Arena *scratch)
{
    int64_t n;
    const uint32_t axes = k->axes.n;
    if (k->form != FORM_LOOPS || axes < 2 || kernel_r_axes(k) || !kidx_is_const(k, k->axes.at[axes - 1].size, &n) ||
        (n != 2 && n != 4 && n != LONGEST))
        return k;
    Words w = {.from = k, .axis = axes - 1, .n = n};
    w.moved = ARENA_ARRAY(scratch, bool, k->inst.n + 1);
    w.arg_moved = ARENA_ARRAY(scratch, bool, k->args.n + 1);
    memset(w.moved, 0, sizeof *w.moved * k->inst.n);
    memset(w.arg_moved, 0, sizeof *w.arg_moved * k->args.n);
    if (!only_moves(&w))
        return k;
    w.to = kernel_new(k->arena);
    w.place = ARENA_ARRAY(scratch, IRef, axes);
    w.value = ARENA_ARRAY(scratch, VRef, k->inst.n + 1);
    copy_words(&w);
    return w.to;
}
