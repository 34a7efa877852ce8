/*
 * Batching calls (batch.h). What takes more leading axes (Callee.leading: kiln's own) is called once, for all rows; where only its right
 * side varies, with all their columns beside each other (Callee.columns), so that a matrix that they share is not repeated. A function of
 * the user's that was made for one row is called for each, in a loop over the rows.
 *
 * A call on nothing that varies stays one. Inside of a branch or loop that not all rows take there is none: it would be called for rows
 * that it is not meant for, and may fail for them.
 */
#define KILN_NO_LOCATIONS
#include "ir/base/os.h"
#include "runtime/record/batch.h"

#include <string.h>

typedef struct Rows {
    const Batch *b;
    const RtNode *of;
    const Mapped *in;
} Rows;

/* The call on these operands: borrowed results. */
static void call(Rec *r, const RtNode *of, RtNode *const *in, RtNode **result)
{
    RtNode *node = r->status == ST_OK ? bodies_again(r, of, in) : NULL;
    for (uint32_t k = 0; k < of->attr.n && r->status == ST_OK; k++) {
        Shape type = call_result_type(of, k);
        result[k] = bodies_result_new(r, node, k, &type);
    }
}

static void call_row(kiln_tensor **in, kiln_tensor **out, void *with)
{
    const Rows *x = with;
    Rec r = rec_begin(x->of->api, x->of->loc.file, x->of->loc.line);
    RtNode *result[MAX_CALL_RESULTS] = {NULL}, **operand = os_calloc(x->of->n_in + 1u, sizeof *operand);
    uint32_t at = 1; /* in[0] is the number of the row */
    if (!operand)
        rec_fail(&r, ST_OUT_OF_MEMORY, "out of memory");
    for (uint32_t k = 0; k < x->of->n_in && operand; k++)
        operand[k] = x->in[k].varies ? rec_in(&r, in[at++], "an input") : x->in[k].node;
    call(&r, x->of, operand, result);
    for (uint32_t k = 0; k < x->of->attr.n && r.status == ST_OK; k++)
        out[k] = rec_out(&r, result[k]);
    rec_end(&r, NULL);
    os_free(operand);
}

static Status type_of_rows(void *user, uint32_t k, RtNode *const *out, Shape *type)
{
    const Rows *x = user;
    if (out[k]->rank == MAX_RANK)
        return fail(ST_SHAPE, "a result of the function has %d axes: no room for that of the rows", MAX_RANK);
    *type = (Shape){.dtype = out[k]->dtype, .rank = (uint8_t)(out[k]->rank + 1), .dim = {x->b->n}};
    memcpy(type->dim + 1, out[k]->dim, sizeof *type->dim * out[k]->rank);
    return ST_OK;
}

static void loop_over(Rows *x, uint32_t n_xs, RtNode **given, Shape *type, RtNode **result)
{
    uint32_t at = 0;
    type[0] = (Shape){.dtype = DT_I64};
    for (uint32_t k = 0; k < x->of->n_in; k++) {
        const RtNode *all = x->in[k].node;
        if (!x->in[k].varies)
            continue;
        given[at++] = x->in[k].node;
        type[at] = (Shape){.dtype = all->dtype, .rank = (uint8_t)(all->rank - 1)};
        memcpy(type[at].dim, all->dim + 1, sizeof *all->dim * type[at].rank);
    }
    const BodyFunction function = {.call = call_row, .with = x, .n_in = n_xs + 1, .n_out = x->of->attr.n, .in = type, .counts = true};
    const BodiesRequest request = {.op = OP_LOOP,
                                   .attr.loop = {.xs = (uint16_t)n_xs, .ys = (uint16_t)x->of->attr.n},
                                   .facts = &x->b->n,
                                   .n_facts = 1,
                                   .n_bodies = 1,
                                   .n_given = n_xs,
                                   .n_results = x->of->attr.n,
                                   .given = given,
                                   .function = &function,
                                   .type = type_of_rows,
                                   .user = x,
                                   .differentiable = true};
    (void)bodies_record(x->b->r, &request, result);
    for (uint32_t k = 0; k < x->of->attr.n && x->b->r->status == ST_OK; k++)
        rec_own(x->b->r, result[k]);
}

/* One call, with the batch as first axis of all operands and results. */
static void call_all(const Batch *b, const RtNode *of, const Mapped *in, RtNode **operand, RtNode **result)
{
    Shape type[MAX_CALL_RESULTS];
    bool room = true;
    for (uint32_t k = 0; k < of->attr.n; k++) {
        const Shape one = call_result_type(of, k);
        room &= one.rank < MAX_RANK;
        type[k] = (Shape){.dtype = one.dtype, .rank = (uint8_t)(one.rank + 1), .dim = {b->n}};
        memcpy(type[k].dim + 1, one.dim, sizeof *one.dim * (room ? one.rank : 0));
    }
    for (uint32_t k = 0; k < of->n_in; k++) {
        room &= in[k].node->rank < MAX_RANK + in[k].varies;
        operand[k] = room ? batch_spread(b, in[k]) : NULL;
    }
    if (!room)
        rec_fail(b->r, ST_SHAPE, "%s has operands of %d axes: no room for that of the rows", bodies_of(of)->callee->name, MAX_RANK);
    RtNode *node = b->r->status == ST_OK ? bodies_call_new(b->r, bodies_of(of)->callee, of->n_in, operand, of->attr.n, type) : NULL;
    for (uint32_t k = 0; k < of->attr.n && b->r->status == ST_OK; k++)
        result[k] = bodies_result_new(b->r, node, k, &type[k]);
}

/* One call, with the columns [.., n, k] of all rows as those of one: [.., n, rows k]. */
static void call_columns(const Batch *b, const RtNode *of, const Mapped *in, RtNode **operand, RtNode **result)
{
    Rec *r = b->r;
    Shape type = call_result_type(of, 0);
    RtNode *all = in[of->n_in - 1].node;
    uint8_t there[MAX_RANK], back[MAX_RANK], last = (uint8_t)(all->rank - 1);
    const int64_t parts[2] = {b->n, type.dim[type.rank - 1]};
    for (uint8_t d = 0; d <= last; d++) {
        there[d] = d == last ? last : d == last - 1 ? 0 : (uint8_t)(d + 1);
        back[there[d]] = d;
    }
    for (uint32_t k = 0; k + 1 < of->n_in; k++)
        operand[k] = in[k].node;
    operand[of->n_in - 1] = rec_merge(r, rec_permute(r, all, there), last - 1, 2);
    type.dim[type.rank - 1] *= b->n;
    RtNode *node = r->status == ST_OK ? bodies_call_new(r, bodies_of(of)->callee, of->n_in, operand, 1, &type) : NULL;
    RtNode *x = node ? bodies_result_new(r, node, 0, &type) : NULL;
    result[0] = x ? rec_permute(r, rec_split(r, x, last - 1, 2, parts), back) : NULL;
}

bool batch_call(const Batch *b, const RtNode *of, const Mapped *in, Mapped *result)
{
    Rec *r = b->r;
    Rows x = {b, of, in};
    RtNode *made[MAX_CALL_RESULTS] = {NULL}, **given = os_calloc(of->n_in + 1u, sizeof *given);
    Shape *type = os_calloc(of->n_in + 1u, sizeof *type);
    uint32_t n_xs = 0;
    for (uint32_t k = 0; k < of->n_in; k++)
        n_xs += in[k].varies;
    if (!given || !type)
        rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
    else if (b->mask)
        rec_fail(r, ST_UNSUPPORTED, "%s in a branch or loop that not all rows take: call kiln_scan, which takes one row at a time",
                 bodies_of(of)->callee->name);
    else if (n_xs == 1 && of->n_in > 1 && in[of->n_in - 1].varies && bodies_of(of)->callee->columns)
        call_columns(b, of, in, given, made);
    else if (n_xs && bodies_of(of)->callee->leading)
        call_all(b, of, in, given, made);
    else if (n_xs)
        loop_over(&x, n_xs, given, type, made);
    for (uint32_t k = 0; k < of->n_in && !n_xs && given; k++)
        given[k] = in[k].node;
    if (!n_xs && r->status == ST_OK)
        call(r, of, given, made);
    for (uint32_t k = 0; k < of->attr.n && r->status == ST_OK; k++)
        result[k] = (Mapped){made[k], n_xs > 0};
    os_free(given);
    os_free(type);
    return r->status == ST_OK;
}
