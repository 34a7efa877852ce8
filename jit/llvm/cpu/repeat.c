/*
 * Short rows side by side, of any number of points (the directive `join_below`), that a row which is the same for all of them is computed with:
 * x[n, 20] + b[20]. A tile is in several rows, and what it wants of b are runs that begin anew with each of them. So b is copied to the stack
 * as often as fills a tile that begins at b's last element, and a tile loads it there like anything else, from its first lane's column on:
 *
 *     b0 b1 ... b19 b0 b1 ... b19 b0 ...        columns 17, 18, 19, 0, 1, ... of a tile:   b17 b18 b19 b0 b1 ...
 *
 * Nobody writes to such a row (load_repeats in jit/kernel_facts.c), so it is the same for all tasks. All else that such a kernel reads or
 * writes are rows side by side (rows_repeat), so that no tile asks for the coordinates of its lanes, which would be divisions.
 */
#include "jit/llvm/build.h"

void repeat_rows(Emit *e)
{
    uint32_t row = e->n_x - 1;
    e->repeated = NULL;
    if (e->schedule.joined != JOINED_ANY || !rows_repeat(e->k))
        return;
    e->repeated = ARENA_ARRAY(e->arena, LV, e->k->inst.n + 1);
    for (VRef v = 0; v < e->k->inst.n; v++) {
        const KInst *n = &e->k->inst.at[v];
        if (!load_repeats(e->k, v, row))
            continue;
        LLVMTypeRef element = l_memory(e, (DType)n->dtype);
        unsigned align = (unsigned)dtype_bytes((DType)n->dtype);
        LV from = address_of(e, element, argument(e, n->arg), n->idx).ptr; /* of column 0: at this level there is no other */
        LV size = axis_size(e, row), end = l_add(e, size, l_i64(e, e->lanes));
        LV room = l_alloca(e, LLVMArrayType2(element, (uint64_t)(e->schedule.join_below + e->lanes)), 64, "repeated");
        Loop l = loop_begin(e, l_i64(e, 0), end, l_i64(e, 1), "repeat");
        LV first = LLVMBuildICmp(e->b, LLVMIntSLT, l.iv, size, "");
        LV at = LLVMBuildSelect(e->b, first, l_gep(e, element, from, l.iv), l_gep(e, element, room, l_sub(e, l.iv, size)), "");
        l_store(e, l_load(e, element, at, align), l_gep(e, element, room, l.iv), align);
        loop_end(e, &l);
        e->repeated[v] = room;
    }
    e->column = l_alloca(e, e->type[SC_I64], 8, "column");
}

/* At least 1, for what is computed where no point is. */
static LV row_size(Emit *e) { return l_max(e, axis_size(e, e->n_x - 1), l_i64(e, 1)); }

void repeat_from(Emit *e, LV point)
{
    if (e->repeated)
        l_store(e, l_mod(e, point, row_size(e)), e->column, 8);
}

void repeat_next(Emit *e)
{
    if (!e->repeated)
        return;
    Place place = level_enter(e, LV_TASK);
    LV size = row_size(e), step = l_mod(e, l_i64(e, e->lanes), size);
    level_leave(e, place);
    LV next = l_add(e, l_load(e, e->type[SC_I64], e->column, 8), step), over = LLVMBuildICmp(e->b, LLVMIntSGE, next, size, "");
    l_store(e, LLVMBuildSelect(e->b, over, l_sub(e, next, size), next, ""), e->column, 8);
}

bool load_repeated(Emit *e, VRef v, Val *to)
{
    DType dtype = (DType)e->k->inst.at[v].dtype;
    LLVMTypeRef element = l_memory(e, dtype);
    if (!e->repeated || !e->repeated[v])
        return false;
    LV at = l_gep(e, element, e->repeated[v], l_load(e, e->type[SC_I64], e->column, 8));
    *to = (Val){.v = l_from_memory(e, dtype, l_load(e, l_vec(e, element), at, (unsigned)dtype_bytes(dtype))), .vec = e->lanes > 1};
    return true;
}
