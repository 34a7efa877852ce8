/*
 * Rows of which a mask has left stretches of -inf, as causal attention does: there exp(x - m) is +0, which need not be computed.
 *
 *     for chunks of the row
 *         where x is -inf in all of the chunk: the steps, with +0 for the exp
 *         elsewhere:                           the steps
 *
 * m is the same for all of the row. If it is more than -inf, -inf - m is -inf and its exp +0; if not, or NaN, the exp is computed. Nothing
 * else is left out, so no bit changes. The first vector tells most chunks from such. Only rows of bands are looked at, as a product that was
 * masked left them: loops in chunks take some 8 % longer where there is nothing to leave out (softmax of 1024 x 1024 with AVX2).
 */
#include "jit/llvm/build.h"

static bool is_float(const KInst *n) { return n->dtype == DT_F32 || n->dtype == DT_F64; }

bool masked_stage(const Emit *e, Masked *m)
{
    enum { CHUNK = 64, LEAST = 2 };
    int64_t n;
    m->chunk = CHUNK < LEAST * e->lanes ? LEAST * e->lanes : CHUNK;
    if (!e->vec_r || e->lanes == 1 || (l_is_const(e->flat_n, &n) && n < LEAST * m->chunk))
        return false;
    for (VRef v = 0; v < e->k->inst.n; v++) {
        const KInst *exp = &e->k->inst.at[v];
        const KInst *less = exp->kind == KI_OP && exp->op == OP_EXP && is_float(exp) ? &e->k->inst.at[exp->a] : NULL;
        if (!less || less->kind != KI_OP || less->op != OP_SUB || e->info[v].stage != e->stage || e->level[v] != LV_R ||
            e->level[less->b] >= LV_R)
            continue;
        m->exp = v;
        m->x = less->a;
        m->less = less->b;
        const KInst *x = &e->k->inst.at[m->x];
        if (x->kind == KI_LOAD && e->k->args.at[x->arg].band && x->dtype == exp->dtype && e->level[m->x] == LV_R)
            return true;
    }
    return false;
}

static LV lowest(Emit *e, const Masked *m, bool vec)
{
    const bool f32 = e->k->inst.at[m->x].dtype == DT_F32;
    return l_const(e, f32 ? SC_F32 : SC_F64, f32 ? UINT64_C(0xff800000) : UINT64_C(0xfff0000000000000), vec);
}

/* i1: are all lanes at this point -inf? */
static LV all_lowest(Emit *e, const Masked *m, LV flat)
{
    r_point(e, flat);
    LV others = LLVMBuildFCmp(e->b, LLVMRealUNE, value_vector(e, m->x), lowest(e, m, true), "");
    return LLVMBuildNot(e->b, l_any(e, (Val){.v = others, .vec = true}), "");
}

static void chunk_where(Emit *e, const Masked *m, const NestNode *node, LV from, LV condition, const VRef *zero)
{
    If i = if_begin(e, condition, "chunk");
    Loop l = loop_begin(e, from, l_add(e, from, l_i64(e, m->chunk)), l_i64(e, node->by), "r");
    e->zero = zero;
    r_step(e, node->child, l.iv);
    e->zero = NULL;
    loop_end(e, &l);
    if_end(e, &i);
}

void masked_chunk(Emit *e, const Masked *m, const NestNode *node, LV from)
{
    LV masked = l_alloca(e, e->type[SC_I1], 0, "masked");
    LV first = all_lowest(e, m, from), more = LLVMBuildFCmp(e->b, LLVMRealOGT, value(e, m->less).v, lowest(e, m, false), "");
    l_store(e, LLVMConstNull(e->type[SC_I1]), masked, 0);
    If may = if_begin(e, LLVMBuildAnd(e->b, first, more, ""), "may_be_masked");
    const LV end = l_add(e, from, l_i64(e, m->chunk));
    Loop others = loop_begin(e, l_add(e, from, l_i64(e, node->by)), end, l_i64(e, node->by), "masked");
    LV all = all_lowest(e, m, others.iv);
    l_store(e, all, masked, 0);
    others.end = LLVMBuildSelect(e->b, all, end, from, "");
    loop_end(e, &others);
    if_end(e, &may);
    LV is = l_load(e, e->type[SC_I1], masked, 0);
    chunk_where(e, m, node, from, is, &m->exp);
    chunk_where(e, m, node, from, LLVMBuildNot(e->b, is, ""), NULL);
}
