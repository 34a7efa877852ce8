/*
 * Batching ops: one short rule for each class of ir/ops.def (batch.h).
 *
 *   elementwise, matmul, gather, scatter, concat    what does not vary is repeated along the batch, as a view
 *   all with axes                                   they move up by one
 *
 * Where not all indices run what is recorded (Batch.mask), the others compute something that nobody reads. That must not fail, so their indices into
 * axes become 0; loops are told by batch_body.c.
 */
#define KILN_NO_LOCATIONS
#include "runtime/record/batch.h"
#include "ir/base/os.h"
#include "runtime/gradient/custom.h"

#include <string.h>

/* ---- views that rules use ---- */

static RtNode *too_many_axes(const Batch *b, const RtNode *x)
{
    char text[SHAPE_TEXT];
    return rec_fail(b->r, ST_UNSUPPORTED, "%s has %d axes, and kiln_map adds one: at most %d are possible inside of it", node_text(x, text),
                    x->rank, MAX_RANK - 1);
}

RtNode *batch_spread(const Batch *b, Mapped x)
{
    if (x.varies || !x.node)
        return x.node;
    if (x.node->rank == MAX_RANK)
        return too_many_axes(b, x.node);
    return rec_repeat(b->r, rec_insert(b->r, x.node, 0), 1, &b->n);
}

/* A value of each index, repeated to the dims of what has the batch as its first axis. */
static RtNode *along(const Batch *b, RtNode *each, int rank, const int64_t *dims)
{
    int64_t ones[MAX_RANK] = {b->n};
    for (int d = 1; d < rank; d++)
        ones[d] = 1;
    if (rank > 1)
        each = rec_split(b->r, each, 0, rank, ones);
    return rec_repeat(b->r, each, (uint8_t)(((1u << rank) - 1) & ~1u), dims);
}

RtNode *batch_select(const Batch *b, RtNode *chosen, RtNode *x, RtNode *y)
{
    if (!chosen || !x || !y || x == y)
        return x;
    return rec_ew3(b->r, OP_WHERE, along(b, chosen, x->rank, x->dim), x, y);
}

/* ---- rules ---- */

/* One op of the body; operands, as they are (of what has a rule that repeats them: all with the batch as their first axis). */
typedef struct Op1 {
    const Batch *b;
    const RtNode *of;
    const Mapped *in;
    RtNode **node; /* room for the operands */
} Op1;

static RtNode *again(const Op1 *x, const Attr *attr)
{
    const RtNode *of = x->of;
    return rec_node(x->b->r, (Op)of->op, node_dtype(of), attr, of->n_in, x->node, of->facts, of->n_facts);
}

static RtNode *with_axis(const Op1 *x)
{
    Attr attr = x->of->attr;
    attr.axis++;
    return again(x, &attr);
}

static RtNode *with_mask(const Op1 *x)
{
    Attr attr = x->of->attr;
    attr.mask = (uint8_t)(attr.mask << 1);
    return again(x, &attr);
}

static RtNode *as_it_is(const Op1 *x) { return again(x, &x->of->attr); }

static RtNode *with_group(const Op1 *x)
{
    Attr attr = x->of->attr;
    memmove(attr.group.in + 1, attr.group.in, attr.n);
    memmove(attr.group.out + 1, attr.group.out, attr.n);
    attr.group.in[0] = attr.group.out[0] = 1;
    attr.n++;
    return again(x, &attr);
}

static RtNode *with_perm(const Op1 *x)
{
    Attr attr = {0};
    for (uint8_t d = 0; d < x->of->rank; d++)
        attr.perm[d + 1] = (uint8_t)(x->of->attr.perm[d] + 1);
    return again(x, &attr);
}

/* What is around is of rank 0: where each index has its own, it is laid around afterwards. */
static RtNode *pad(const Op1 *x)
{
    Rec *r = x->b->r;
    RtNode *in = x->node[0] = batch_spread(x->b, x->in[0]), *around = x->in[1].node;
    if (!in || !x->in[1].varies)
        return in ? with_mask(x) : NULL;
    x->node[1] = rec_scalar(r, node_dtype(around), 0);
    RtNode *padded = with_mask(x), *inside;
    x->node[0] = rec_expand(r, rec_bits(r, DT_BOOL, 1), in->rank, in->dim);
    x->node[1] = rec_bits(r, DT_BOOL, 0);
    if (!padded || !x->node[0] || !x->node[1] || !(inside = with_mask(x)))
        return NULL;
    return rec_ew3(r, OP_WHERE, inside, padded, along(x->b, around, padded->rank, padded->dim));
}

/* Operand 1 is an index. */
static RtNode *indexed(const Op1 *x)
{
    RtNode *index = x->node[1], *zero = rec_int(x->b->r, DT_I64, 0);
    if (x->b->mask && zero)
        x->node[1] = batch_select(x->b, x->b->mask, index, rec_expand(x->b->r, zero, index->rank, index->dim));
    return x->node[1] ? with_axis(x) : NULL;
}

typedef RtNode *BatchRule(const Op1 *x);

static BatchRule *view_rule(Op op)
{
    return op == OP_RESHAPE                     ? with_group
           : op == OP_PERMUTE                   ? with_perm
           : op == OP_PAD                       ? pad
           : op == OP_WINDOW || op == OP_CONCAT ? with_axis
           : op == OP_EXPAND || op == OP_SLICE  ? with_mask
                                                : NULL;
}

static BatchRule *rule_of(Op op)
{
    switch (op_class(op)) {
    case CLS_EW:
    case CLS_CONTRACT: return as_it_is;
    case CLS_VIEW: return view_rule(op);
    case CLS_REDUCE: return with_mask;
    case CLS_SCAN:
    case CLS_SORT: return with_axis;
    case CLS_GATHER:
    case CLS_SCATTER: return indexed;
    case CLS_LEAF:
    case CLS_BODY:
    case CLS_RESULT: return NULL; /* nothing to vary by; batch_body.c */
    }
    return NULL;
}

static bool may_fail(Op op) { return op_class(op) == CLS_GATHER || op_class(op) == CLS_SCATTER; }

static RtNode *record_batched(const Op1 *x)
{
    const RtNode *of = x->of;
    BatchRule *rule = rule_of((Op)of->op);
    if (of->rank == MAX_RANK)
        return too_many_axes(x->b, of);
    if (!rule)
        return rec_fail(x->b->r, ST_UNSUPPORTED, "%s has no form for many indices at once: kiln_scan takes them one by one",
                        op_name((Op)of->op));
    for (uint32_t k = 0; k < of->n_in && rule != pad; k++)
        if (!(x->node[k] = batch_spread(x->b, x->in[k])))
            return NULL;
    return rule(x);
}

static RtNode *record_one(const Op1 *x, bool varies)
{
    Rec *r = x->b->r;
    const RtNode *of = x->of;
    uint32_t before = r->thread->n_temp;
    RtNode *node;
    if (of->held && !custom_of(of)->of_bodies && x->in[0].node->tracked)
        return rec_fail(r, ST_UNSUPPORTED,
                        "inside of kiln_map it would lose its derivative: take the gradient inside, too, or write it for all "
                        "indices at once");
    for (uint32_t k = 0; k < of->n_in; k++)
        x->node[k] = x->in[k].node;
    if (varies)
        node = record_batched(x);
    else
        node = of->op == OP_SCALAR || of->weak ? bodies_once_more(r, of, x->node) : as_it_is(x);
    for (uint32_t k = before; k < r->thread->n_temp; k++) { /* as the function recorded it */
        RtNode *made = r->thread->temp[k];
        made->checkpoint = of->checkpoint;
        made->phase = made->phase > of->phase ? made->phase : of->phase;
    }
    return node && of->stop && !node->stop ? rec_stop(node) : node;
}

/* ---- the body ---- */

/* Which nodes of the body its outputs are made of: the others are there for derivatives only. */
static void mark_live(const RtBody *body, bool *live)
{
    const Slot *operand = body->operand;
    for (uint32_t m = 0; m < body->n_made; m++)
        operand += body->made[m]->n_in;
    for (uint32_t k = 0; k < body->n_outputs; k++)
        if (slot_list(body->output[k]) == SLOT_MADE)
            live[slot_index(body->output[k])] = true;
    for (uint32_t m = body->n_made; m-- > 0;) {
        operand -= body->made[m]->n_in;
        for (uint32_t k = 0; live[m] && k < body->made[m]->n_in; k++)
            if (slot_list(operand[k]) == SLOT_MADE)
                live[slot_index(operand[k])] = true;
    }
}

bool batch_inline(const Batch *b, const RtBody *body, const Mapped *in, const Mapped *captured, Mapped *out)
{
    Rec *r = b->r;
    const Rec before = *r;
    uint32_t most = 1, results = 0;
    for (uint32_t m = 0; m < body->n_made; m++) {
        most = body->made[m]->n_in > most ? body->made[m]->n_in : most;
        results += node_has_bodies(body->made[m]) ? bodies_of(body->made[m])->n_results : 0;
    }
    Mapped *made = os_alloc(sizeof *made * ((size_t)body->n_made + most + results)), *operands = made ? made + body->n_made : NULL;
    Mapped **result = os_alloc(sizeof *result * (body->n_made + 1u)), *next = operands ? operands + most : NULL; /* of what has bodies */
    RtNode **room = os_alloc(sizeof *room * most);
    bool *live = os_calloc(body->n_made + 1u, sizeof *live);
    const Slot *operand = body->operand;
    if (!made || !result || !room || !live)
        rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
    else
        mark_live(body, live);
#define VALUE(of) \
    (slot_list(of) == SLOT_MADE ? made[slot_index(of)] : slot_list(of) == SLOT_PLACE ? in[slot_index(of)] : captured[slot_index(of)])
    for (uint32_t m = 0; m < body->n_made && r->status == ST_OK; m++) {
        const RtNode *of = body->made[m];
        const Slot *first = operand;
        bool varies = b->mask && may_fail((Op)of->op);
        operand += of->n_in;
        made[m] = (Mapped){NULL, false};
        if (!live[m])
            continue;
        r->api = of->api;
        r->loc = of->loc;
        if (of->op == OP_RESULT) {
            made[m] = result[slot_index(*first)][of->attr.n];
            continue;
        }
        for (uint32_t k = 0; k < of->n_in; k++) {
            operands[k] = VALUE(first[k]);
            varies |= operands[k].varies;
        }
        if (node_has_bodies(of)) {
            result[m] = next;
            next += bodies_of(of)->n_results;
            (void)batch_body(b, of, operands, result[m]);
        } else {
            made[m] = (Mapped){record_one(&(Op1){b, of, operands, room}, varies), varies};
        }
    }
    for (uint32_t k = 0; k < body->n_outputs && r->status == ST_OK; k++)
        out[k] = VALUE(body->output[k]);
    os_free(made);
    os_free(result);
    os_free(room);
    os_free(live);
    r->api = before.api;
    r->loc = before.loc;
    return r->status == ST_OK;
}

bool batch_varies(Rec *r, const RtBody *body, const bool *in, const bool *captured, bool masked, bool *out)
{
    uint32_t most = 1, results = 0;
    for (uint32_t m = 0; m < body->n_made; m++) {
        most = body->made[m]->n_in > most ? body->made[m]->n_in : most;
        results += node_has_bodies(body->made[m]) ? bodies_of(body->made[m])->n_results : 0;
    }
    bool *made = os_calloc((size_t)body->n_made + most + results + 1, sizeof *made), *operands = made ? made + body->n_made : NULL,
         *next = operands ? operands + most : NULL;
    const bool **result = os_calloc(body->n_made + 1u, sizeof *result);
    const Slot *operand = body->operand;
    if (!made || !result)
        rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
    for (uint32_t m = 0; m < body->n_made && r->status == ST_OK; m++) {
        const RtNode *of = body->made[m];
        const Slot *first = operand;
        operand += of->n_in;
        if (of->op == OP_RESULT) {
            made[m] = result[slot_index(*first)][of->attr.n];
            continue;
        }
        made[m] = masked && may_fail((Op)of->op);
        for (uint32_t k = 0; k < of->n_in; k++) {
            operands[k] = VALUE(first[k]);
            made[m] |= operands[k];
        }
        if (node_has_bodies(of)) {
            result[m] = next;
            (void)batch_body_varies(r, of, operands, masked, next);
            next += bodies_of(of)->n_results;
        }
    }
    for (uint32_t k = 0; k < body->n_outputs && r->status == ST_OK; k++)
        out[k] = VALUE(body->output[k]);
#undef VALUE
    os_free(made);
    os_free(result);
    return r->status == ST_OK;
}
