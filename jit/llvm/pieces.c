/* Axes in pieces (jit/pieces.h): where each piece begins, and what is known in the one that is being emitted. */
#include "jit/pieces.h"

#include "jit/launch_plan.h"
#include "jit/llvm/build.h"

int piece_says(const Emit *e, VRef v) { return v == VREF_NONE || !e->pieces || e->piece < 0 ? -1 : e->pieces->says[e->piece][v]; }

VRef piece_side(const Emit *e, const KInst *n)
{
    int says = n->kind == KI_OP && n->op == OP_WHERE ? piece_says(e, n->a) : -1;
    return says < 0 ? VREF_NONE : says ? n->b : n->c;
}

void pieces_open(Emit *e)
{
    const Pieces *p = e->pieces;
    if (!p)
        return;
    LV size = axis_size(e, p->axis);
    e->piece_start[0] = l_i64(e, 0);
    e->piece_start[p->n] = size;
    for (uint32_t i = 0; i + 1 < p->n; i++) {
        LV at = l_i64(e, 0);
        for (uint32_t t = 0; t < p->cut[i].n; t++) {
            const CutTerm *term = &p->cut[i].term[t];
            LV of = term->of == IREF_NONE ? l_i64(e, 1) : index_uniform(e, term->of);
            at = l_add(e, at, l_mul(e, of, l_i64(e, term->times)));
        }
        e->piece_start[i + 1] = l_max(e, l_i64(e, 0), l_min(e, at, size));
    }
}

/* Where pieces_open says that they begin. */
uint16_t pieces_node(Emit *e, int64_t lanes)
{
    const Pieces *p = e->pieces;
    LaunchBuilder *b = e->launch;
    uint16_t size = axis_node(e, p->axis), none = launch_const(b, 0), from = none, tiles = none;
    for (uint32_t i = 0; i < p->n; i++) {
        uint16_t to = none;
        for (uint32_t t = 0; i + 1 < p->n && t < p->cut[i].n; t++) {
            const CutTerm *term = &p->cut[i].term[t];
            uint16_t of = term->of == IREF_NONE ? launch_const(b, 1) : size_node(e, term->of);
            to = launch_op(b, LAUNCH_ADD, to, launch_op(b, LAUNCH_MUL, of, launch_const(b, term->times)));
        }
        to = i + 1 < p->n ? launch_op(b, LAUNCH_MAX, none, launch_op(b, LAUNCH_MIN, to, size)) : size;
        uint16_t length = launch_op(b, LAUNCH_ADD, to, launch_op(b, LAUNCH_MUL, from, launch_const(b, -1)));
        tiles = launch_op(b, LAUNCH_ADD, tiles, tasks_node(e, length, lanes));
        from = to;
    }
    return tiles;
}

void piece_begin(Emit *e, uint32_t piece, LV *from, LV *to)
{
    *from = e->piece_start[piece];
    *to = e->piece_start[piece + 1];
    e->piece = (int)piece;
}

void piece_end(Emit *e) { e->piece = -1; }
