/* Axes in pieces (jit/pieces.h): where each piece begins, which tiles are inside, and what is known in the code that is being
 * emitted. */
#include "jit/pieces.h"

#include "jit/launch_plan.h"
#include "jit/llvm/build.h"

int piece_says(const Emit *e, VRef v) { return v == VREF_NONE || !e->says ? -1 : e->says[v]; }

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
    e->says = e->pieces->says[piece];
}

void piece_end(Emit *e) { e->says = NULL; }

/* The index of the first lane of a tile at the first point of r, of its first row where it has several, or of the last ones. */
static LV index_at(Emit *e, IRef i, LV at, bool last)
{
    const Idx *x = &e->k->idx.at[i];
    int64_t factor = 1, rows = e->overlap ? e->schedule.rows : 0;
    uint32_t first = rows ? e->overlap->across : (uint32_t)e->tile_axis;
    if (!(e->k->idx_axes.at[i] >> first))
        return index_uniform(e, i);
    if (x->kind == IX_ADD)
        return l_add(e, index_at(e, x->a, at, last), index_at(e, x->b, at, last));
    if (x->kind == IX_MUL && kidx_is_const(e->k, x->b, &factor))
        x = &e->k->idx.at[x->a];
    LV n = (int)x->a == e->tile_axis ? l_i64(e, e->lanes) : axis_size(e, x->a), from = (int)x->a == e->tile_axis ? at : l_i64(e, 0);
    if (rows && x->a == first)
        n = l_i64(e, rows), from = e->axis[first].base;
    return l_mul(e, last ? l_sub(e, l_add(e, from, n), l_i64(e, 1)) : from, l_i64(e, factor));
}

LV tile_is_inside(Emit *e, LV at, bool row)
{
    LV all = LLVMConstInt(e->type[SC_I1], 1, 0);
    for (uint32_t h = 0; h < e->edges->n; h++) {
        const KInst *n = &e->k->inst.at[e->edges->holds[h]], *right = &e->k->inst.at[n->b];
        bool below = n->op == OP_LT || n->op == OP_LE;
        if (row && e->k->inst_axes.at[n->a] >> e->tile_axis & 1)
            continue;
        LV a = index_at(e, e->k->inst.at[n->a].idx, at, below);
        LV b = right->kind == KI_CONST ? l_i64(e, (int64_t)right->imm) : index_uniform(e, right->idx);
        LLVMIntPredicate holds = n->op == OP_LT ? LLVMIntSLT : n->op == OP_LE ? LLVMIntSLE : n->op == OP_GE ? LLVMIntSGE : LLVMIntSGT;
        all = LLVMBuildAnd(e->b, all, LLVMBuildICmp(e->b, holds, a, b, ""), "");
    }
    return all;
}
