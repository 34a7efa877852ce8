/*
 * Several rows of windows in a tile (jit/overlap.h, the directive `rows` of a kernel with folds). Each row has code of its own, one behind
 * another, and stores what it has made before the next one begins; what it loads and computes at a point of the r axes is kept for those
 * behind it, by the numbers that its forms are there:
 *
 *     row 0    loads 0 1 2    row 1    loads 3, has 1 2    row 2    loads 4, has 2 3          of 3 x 3: 3 loads each
 *
 * To the levels (build.h) rows are points of r: the coordinate of the first one belongs to the tile's row, how far the one at hand is
 * behind it is a constant, and so are the distances of their addresses. Rows that fill no tile go one by one, without what is kept.
 */
#include "jit/llvm/build.h"

typedef struct OverlapValue OverlapValue;
struct OverlapValue {
    OverlapValue *next;
    Val val;
    int64_t forms[OVERLAP_FORMS];
};

static bool shared(const Emit *e, VRef v) { return e->row.had && e->level[v] == LV_R && !e->overlap->alone[v]; }

void overlap_point(Emit *e, int64_t point)
{
    if (e->row.had)
        overlap_at(&e->facts, e->overlap, e->row.at, point, e->row.forms);
}

static bool same_forms(const Emit *e, VRef v, const int64_t *forms)
{
    for (uint32_t i = 0; i < e->overlap->n; i++)
        if (e->overlap->forms[v] >> i & 1 && forms[i] != e->row.forms[i])
            return false;
    return true;
}

bool overlap_recall(Emit *e, VRef v, Val *had)
{
    if (!shared(e, v))
        return false;
    const OverlapValue *at = e->row.had[v];
    while (at && !same_forms(e, v, at->forms))
        at = at->next;
    if (at)
        *had = at->val;
    return at;
}

void overlap_keep(Emit *e, VRef v, Val val)
{
    if (!shared(e, v))
        return;
    OverlapValue *at = ARENA_NEW(e->arena, OverlapValue);
    *at = (OverlapValue){.next = e->row.had[v], .val = val};
    memcpy(at->forms, e->row.forms, sizeof at->forms);
    e->row.had[v] = at;
}

/* As many rows as a tile has, or those that are left. */
void walk_overlap(Emit *e, const NestNode *node)
{
    uint32_t across = e->overlap->across;
    NestRef left = e->nest.node.at[node->child].next;
    LV first = e->axis[across].base, rows = l_sub(e, axis_size(e, across), first), by = l_i64(e, node->by);
    e->row = (OverlapRow){.first = first};
    if (left == NEST_NONE) {
        nest_emit(e, node->child);
        return;
    }
    LV whole = LLVMBuildICmp(e->b, LLVMIntSGE, rows, by, "");
    If full = if_begin(e, whole, "rows");
    nest_emit(e, node->child);
    if_end(e, &full);
    If rest = if_begin(e, LLVMBuildNot(e->b, whole, ""), "rows_left");
    e->axis[across] = ix_uniform(first);
    nest_emit(e, left);
    if_end(e, &rest);
}

/* Those of a tile. */
void walk_overlap_rows(Emit *e, const NestNode *node)
{
    uint32_t across = e->overlap->across;
    e->row.had = ARENA_ARRAY(e->arena, OverlapValue *, e->k->inst.n + 1);
    for (e->row.at = 0; e->row.at < node->points; e->row.at++) {
        level_open(e, LV_R);
        e->cur = LV_TILE;
        e->axis[across] = ix_uniform(l_add(e, e->row.first, l_i64(e, e->row.at)));
        nest_inside(e, node);
    }
    e->axis[across] = ix_uniform(e->row.first);
    e->row.at = 0;
    e->row.had = NULL;
}

/* All that are left, each with its tiles. */
void walk_overlap_left(Emit *e, const NestNode *node)
{
    uint32_t across = e->overlap->across;
    Stretch tiles = e->stretch;
    Loop r = loop_begin(e, e->row.first, axis_size(e, across), l_i64(e, 1), "row");
    level_open(e, LV_ROW);
    e->row.first = r.iv;
    e->axis[across] = ix_uniform(r.iv);
    e->stretch = tiles;
    nest_inside(e, node);
    loop_end(e, &r);
}
