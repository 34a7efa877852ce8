/* Rules of how rows are cut or put together: short ones side by side, in squares, in pieces, as a whole. One that makes another thing of what a point
 * is asks again for lanes and body. */
#include "jit/rules_inside.h"

#include "jit/kernel_text.h"
#include "jit/pieces.h"

#include <stdlib.h>

/* ---- short rows ---- */

/* Is it a load, a store or a coordinate, whose index rules of short rows must look at? *other: it is something that they leave alone. */
static bool reads_index(const KInst *n, bool *other)
{
    *other = n->kind == KI_CONST || n->kind == KI_SCALAR || n->kind == KI_OP;
    return (n->kind == KI_LOAD || n->kind == KI_STORE || n->kind == KI_INDEX) && n->pred == VREF_NONE;
}

/* Rows that lie side by side where they are stored: all that is read of a tile of them is a few vectors, or one row again and again. */
static bool rows_join(const KernelFacts *f, int64_t length)
{
    int64_t most = rule_limit(f->bits, LIMIT_apart);
    for (uint32_t i = 0; i < f->k->inst.n; i++) {
        const KInst *n = inst(f, i);
        int64_t times[KERNEL_AXES] = {0};
        bool other, reads = reads_index(n, &other);
        if (!f->live[i] || other)
            continue;
        if (!reads || !index_linear(f->k, n->idx, 3u << (f->n_x - 2), times))
            return false;
        int64_t row = times[f->n_x - 2], apart = times[f->n_x - 1];
        if (n->kind == KI_STORE ? apart != 1 || row != length : n->kind == KI_LOAD && (llabs(row) > most * length || llabs(apart) > most))
            return false;
    }
    return true;
}

/*
 * The same for rows of a few points, which are read from as many places, in each of which rows go on, or stay: a vector of each, all shuffled
 * together, of two or four some under masks (load_lists in jit/llvm/cpu/memory.c). Bytes of the widest element that is read so; 0: it is something else.
 */
static int64_t rows_are_lists(const KernelFacts *f, int64_t length)
{
    const bool even = length == 2 || length == 4;
    int64_t widest = 0;
    for (uint32_t i = 0; i < f->k->inst.n && length <= MOST_LISTS; i++) {
        const KInst *n = inst(f, i);
        int64_t times[KERNEL_AXES] = {0}, bytes = (int64_t)dtype_bytes((DType)n->dtype);
        if (!f->live[i] || n->kind == KI_CONST || n->kind == KI_SCALAR || n->kind == KI_OP)
            continue;
        const bool load = n->kind == KI_LOAD && index_steps(f->k, n->idx, f->n_x - 1); /* from place to place, whatever is between them */
        if ((!load && n->kind != KI_STORE && n->kind != KI_INDEX) || !index_linear(f->k, n->idx, (load ? 1u : 3u) << (f->n_x - 2), times))
            return 0;
        const int64_t row = times[f->n_x - 2], apart = times[f->n_x - 1];
        const bool masked = n->pred != VREF_NONE && (!even || (f->bits < 512 && bytes < 4)); /* lane by lane */
        if (n->kind == KI_STORE ? apart != 1 || row != length || n->pred != VREF_NONE
                                : n->kind == KI_LOAD && ((row != 0 && row != 1) || masked))
            return 0;
        widest = n->kind == KI_LOAD && row && bytes > widest ? bytes : widest;
    }
    return !even && !(length & (length - 1)) && length * widest >= f->bits / 8 ? 0 : widest; /* that many make squares */
}

/* Of a kernel without folds, with rows along which no pieces are cut. */
static bool has_rows(const KernelFacts *f) { return !f->n_r && !f->n_stages && f->n_x >= 2; }
static bool rows_are_whole(const KernelFacts *f) { return !pieces_of(f, f->n_x - 1) && !pieces_of(f, f->n_x - 2); }

/* Whole rows, as many as four vectors hold, where that is no power of two; points that fill no tile are then computed one by one. */
static int64_t lanes_of_rows(const KernelFacts *f, Weight w, int64_t length)
{
    int64_t most = f->bits / 2 / w.widest, lanes = length;
    most = most < MOST_LANES ? most : MOST_LANES;
    while (2 * lanes <= most)
        lanes *= 2;
    return !facts_heavy(f, w) && lanes <= most ? lanes : 0;
}

/*
 * By themselves such rows would take an access each. Heavy bodies have one vector in flight, and what is left of a row costs them as much
 * as a whole tile and more, so they join also where rows are no whole tiles: up to a length from which a tile in two rows costs more than
 * that.
 */
bool give_joined(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    int64_t length, lanes = s->lanes;
    if (!has_lanes(s) || !has_rows(f) || !is_const(f, f->n_x - 1, &length) || length < 2)
        return false;
    const int64_t bytes = rows_are_lists(f, length);
    if (!bytes && !(rows_are_whole(f) && rows_join(f, length)))
        return false;
    s->joined = length;
    Weight w = facts_weigh(f, s, NULL);
    rules_ask_lanes(c, w, s);
    if (s->body == BODY_ONCE && length % s->lanes && length <= rule_limit(f->bits, LIMIT_long_row))
        return true;
    if (bytes && s->body != BODY_ONCE) { /* a whole vector of each list */
        const int64_t most = length * f->bits / 8 / bytes;
        s->lanes = most < MOST_LANES ? most : MOST_LANES;
    }
    if (length & (length - 1)) {
        s->lanes = lanes_of_rows(f, w, length);
        s->tail = TAIL_SCALAR;
    }
    if (bytes && s->lanes < 2 * length) /* each list has an element */
        return false;
    return s->lanes > lanes && s->lanes % length == 0;
}

/*
 * Each launch asks. Where rows are no whole tiles, the rest of one costs as much as a tile, with AVX2 as much as six. Where all that is read is
 * rows side by side, or the same row again and again (jit/llvm/cpu/repeat.c), a tile in several rows costs no more than another.
 */
bool give_join_below(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    bool repeats = rows_repeat(f->k);
    int64_t length;
    if (!has_rows(f) || s->rows || s->inside >= 0 || s->lanes == 1 || (s->body != BODY_ONCE && !repeats) ||
        is_const(f, f->n_x - 1, &length) || kernel_extent(f->k, f->n_x - 1) > rule_limit(f->bits, LIMIT_planned) || !rows_are_whole(f))
        return false;
    for (uint32_t i = 0; i < f->k->inst.n; i++) {
        const KInst *n = inst(f, i);
        uint32_t count[3] = {0};
        bool other, reads = reads_index(n, &other);
        if (!f->live[i] || other)
            continue;
        if (!reads || !index_counts_rows(f->k, n->idx, f->n_x - 2, count) ||
            (n->kind == KI_STORE && (count[0] != 1 || count[1] != 1 || count[2])))
            return false;
    }
    s->join_below = rule_limit(f->bits, repeats ? LIMIT_join_repeating : LIMIT_join_below);
    return true;
}

/* ---- transposed inputs ---- */

/* 4096 x 4096 f32: 141 ms row by row, 30 so. */
bool give_bands(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    if (f->n_stages || f->n_x < 2 || !along_x(f, s) || s->lanes == 1 || s->joined)
        return false;
    for (uint32_t i = 0; i < f->k->inst.n; i++) {
        const KInst *n = inst(f, i);
        if ((n->kind != KI_LOAD && n->kind != KI_STORE) || index_walk(f->k, n->idx, (uint32_t)s->along) != INDEX_JUMPS)
            continue;
        for (uint32_t a = 0; a + 1 < f->n_x; a++) {
            int64_t block = LINE / (int64_t)dtype_bytes((DType)n->dtype);
            if (index_walk(f->k, n->idx, a) != INDEX_STEPS || block < s->rows)
                continue;
            s->rows = block;
            s->across = a;
        }
    }
    return s->rows;
}

/* Each row of a band has code of its own. */
bool give_squares(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    for (uint32_t i = 0; i < f->k->inst.n && s->rows; i++) {
        int64_t side = square_side(f->bits, (DType)inst(f, i)->dtype), points = kernel_extent(f->k, (uint32_t)s->across), squares = 0;
        int64_t rows = (s->rows < points ? s->rows : points) / side * side;
        uint32_t along = (uint32_t)s->along, across = (uint32_t)s->across;
        for (uint32_t n = i; n < f->k->inst.n && in_squares(f, i, side, along, across); n++)
            squares += in_squares(f, n, side, along, across);
        if (!rows || !squares || squares > rule_limit(f->bits, LIMIT_squares) || s->lanes < side ||
            c->w.ops * rows > rule_limit(f->bits, LIMIT_squares_code))
            continue;
        s->rows = rows;
        s->square = s->lanes = side;
        return true;
    }
    return false;
}

/* ---- pieces ---- */

/* Weight of the heaviest piece; ops of all together in *all. */
static Weight weigh_pieces(const KernelFacts *f, const Schedule *s, const Pieces *p, uint32_t *all)
{
    Weight most = {.widest = 1, .narrowest = 8};
    bool *part = ARENA_ARRAY(f->arena, bool, f->k->inst.n + 1);
    *all = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        piece_part(f, p, i, part);
        Weight w = facts_weigh(f, s, part);
        *all += w.ops;
        most.ops = w.ops > most.ops ? w.ops : most.ops;
        most.widest = w.widest > most.widest ? w.widest : most.widest;
        most.narrowest = w.narrowest < most.narrowest ? w.narrowest : most.narrowest;
    }
    return most;
}

/* Pieces of a row that one tile holds cost more than they save, but where each is some tiles without a mask. */
static bool pieces_pay(const KernelFacts *f, const Schedule *s, const Pieces *p, int64_t row)
{
    int64_t length[MOST_PIECES], size;
    if (p->axis != s->along || !is_const(f, (uint32_t)s->along, &size) || size > row)
        return true;
    bool whole = pieces_lengths(f->k, p, length);
    for (uint32_t i = 0; i < p->n && whole; i++)
        whole = length[i] % s->lanes == 0;
    return whole;
}

bool give_pieces(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    const Pieces *p = NULL;
    uint32_t axis = f->n_x, ops;
    if (s->joined && rows_are_lists(f, s->joined)) /* lanes go over both axes, and with masks */
        return false;
    while (axis > 0 && !f->n_r && has_lanes(s) && !s->rows && s->inside < 0 && !p)
        p = pieces_of(f, --axis);
    if (!p)
        return false;
    Weight w = weigh_pieces(f, s, p, &ops);
    int64_t length[MOST_PIECES], longest = 0, lanes = s->lanes;
    bool known = p->axis == s->along && pieces_lengths(f->k, p, length);
    rules_ask_lanes(c, w, s);
    for (uint32_t i = 0; known && i < p->n; i++)
        longest = length[i] > longest ? length[i] : longest;
    while (known && s->lanes > 1 && s->lanes / 2 >= longest)
        s->lanes /= 2;
    s->pieces = axis;
    s->prefetch = 0;
    rules_ask(c, ALL_AHEAD, w, s);
    return ops <= rule_limit(f->bits, LIMIT_pieces_code) && (!has_masks(f, w) || pieces_pay(f, s, p, lanes));
}

/* ---- copies ---- */

/* A value of memory as it is there, or one of several, which is known in each piece. */
static bool is_copied(const KernelFacts *f, const Schedule *s, VRef v)
{
    const KInst *x = inst(f, v);
    if (x->kind == KI_OP && x->op == OP_WHERE && s->pieces >= 0)
        return is_copied(f, s, x->b) || is_copied(f, s, x->c);
    return x->kind == KI_LOAD && x->dtype != DT_BOOL && (x->pred == VREF_NONE || s->pieces >= 0);
}

/* Where all that the kernel does is one such store: the bytes of an element; else 0. */
static int64_t copied_bytes(const KernelFacts *f, const Schedule *s)
{
    int64_t bytes = 0;
    for (VRef v = 0; v < f->k->inst.n; v++) {
        const KInst *x = inst(f, v);
        bool store = x->kind == KI_STORE;
        if (x->kind == KI_SCATTER || f->checked[v] || (store && (bytes || x->pred != VREF_NONE || !is_copied(f, s, x->a))))
            return 0;
        bytes = store ? (int64_t)dtype_bytes((DType)inst(f, x->a)->dtype) : bytes;
    }
    return bytes;
}

bool give_copies(Choice *c, Schedule *s)
{
    const KernelFacts *f = c->f;
    bool tiles = !f->n_r && along_x(f, s) && s->lanes > 1 && s->body == BODY_TWICE && !s->rows && !s->joined && s->inside < 0;
    s->copy = rule_limit(f->bits, LIMIT_copy);
    return tiles && extent(f, s) * copied_bytes(f, s) >= s->copy;
}
