/*
 * May a node be in a kernel? A function for each row of jit/fuse/refusals.def, true where it refuses, and how that is told. Those about costs,
 * products, attention and loops are in the files that know what these are (fuse/cost.c, fuse/attention.c, fuse/loop.c).
 *
 * Functions are asked in the order of the table and may ask for sizes, which are guarded then: so none is asked when an earlier one holds.
 */
#include "jit/fuse/fuse.h"

#include "ir/query.h"

static const struct {
    bool (*refuses)(Asked *); /* NULL: of a group, or told */
    const char *text;         /* a sentence; of a group its line */
    bool group;
} rows[REFUSALS] = {
#define GROUP(id, line) {NULL, line, true},
#define REFUSAL(id, sentence) {refuses_##id, sentence, false},
#define TOLD(id, sentence) {NULL, sentence, false},
#include "jit/fuse/refusals.def"
#undef GROUP
#undef REFUSAL
#undef TOLD
};

RefusalId refuse(RefusalId group, Asked *a)
{
    RefusalId id = group + 1;
    while (id < REFUSALS && !rows[id].group && !(rows[id].refuses && rows[id].refuses(a)))
        id++;
    return id < REFUSALS && !rows[id].group ? id : REFUSAL_NONE;
}

/* ---- what is told ---- */

const char *refusal_sentence(RefusalId id) { return rows[id].group ? NULL : rows[id].text; }

RefusalId refusal_group(RefusalId id)
{
    while (!rows[id].group)
        id--;
    return id;
}

/* One reason for each node in each kernel is enough. */
static bool already(const RefusedList *list, Ref n, Ref root)
{
    for (uint32_t i = list->n; i-- > 0 && list->at[i].root == root;)
        if (list->at[i].n == n)
            return true;
    return false;
}

void refused_note(Fuser *f, RefusedList *list, RefusalId id, const Asked *a)
{
    Ref root = a->b ? a->b->root : a->with ? a->with->node : REF_NONE;
    if (fuser_tells(f) && !already(list, a->n, root))
        VEC_PUSH(f->arena, *list, ((Refused){.id = id, .n = a->n, .root = root, .numbers = {a->numbers[0], a->numbers[1]}}));
}

const char *refused_line(const Fuser *f, const Refused *r)
{
    Str out;
    str_init(&out, f->arena);
    for (const char *c = rows[refusal_group(r->id)].text; *c; c++) {
        if (*c == '@')
            str_printf(&out, "%%%u %s", r->n, op_name((Op)graph_node(f->g, r->n)->op));
        else if (*c == '#')
            str_printf(&out, "%%%u", r->root);
        else
            str_printf(&out, "%c", *c);
    }
    str_printf(&out, ": %s", rows[r->id].text);
    if (r->numbers[0] != r->numbers[1])
        str_printf(&out, ": %lld, not %lld", (long long)r->numbers[0], (long long)r->numbers[1]);
    return out.text;
}

/* ---- by structure ---- */

static const Node *asked_node(const Asked *a) { return graph_node(a->f->g, a->n); }

bool refuses_own_kernel(Asked *a)
{
    OpClass cls = class_of(a->f, a->n);
    return cls == CLS_SORT || cls == CLS_SCATTER || in_pieces(a->f, a->n);
}

bool refuses_custom(Asked *a) { return refuses_body(a) && graph_node(a->f->g, asked_node(a)->in[0])->op == OP_CUSTOM; }

bool refuses_body(Asked *a) { return class_of(a->f, a->n) == CLS_RESULT; }

/* What a body is given lies in memory: stored once, be it read by others too. A view has a copy of its own (form_body). */
bool refuses_given(Asked *a)
{
    OpClass cls = class_of(a->f, a->n);
    return cls != CLS_LEAF && cls != CLS_VIEW && !asked_node(a)->number && !has_buffer(a->f, a->n);
}

/* ---- a node that has no buffer ---- */

bool refuses_large(Asked *a)
{
    bool full = a->b->visits >= a->b->budget || a->b->buffers >= MAX_BUFFERS;
    return full && asked_node(a)->op != OP_RESHAPE;
}

/* A reshape uses each coordinate of a group several times, so those of a chain of reshapes and
 * permutations grow as 2^k where they can't be simplified: the chain is cut by storing an operand. */
bool refuses_long_index(Asked *a)
{
    return coords_long(a->b, &a->b->tuples.at[a->at]) && !has_buffer(a->f, a->n) && op_class((Op)asked_node(a)->op) != CLS_LEAF;
}

bool refuses_contraction(Asked *a) { return a->b->contraction != a->n; }

/* Coordinates that a reshape made and that could not be simplified. */
bool refuses_other_indices(Asked *a)
{
    bool others = false;
    const Coords *c = &a->b->tuples.at[a->at];
    for (uint32_t i = 0; i < asked_node(a)->rank && !others; i++)
        others = c->at[i] != product_axis(a->b, i);
    return others;
}

/* ---- a reduction or a running sum in the loops of a kernel ---- */

static bool is_scan(const Asked *a) { return asked_node(a)->op == OP_CUMSUM; }

static const Node *operand(const Asked *a) { return graph_node(a->f->g, asked_node(a)->in[0]); }

/* Which loops the coordinates follow, but for the axis of a running sum, and which axes are folded that are loops, in order. */
static void find_axes(Asked *a)
{
    const Build *b = a->b;
    const Node *node = asked_node(a), *input = operand(a);
    a->count = a->used = 0;
    if (is_scan(a)) {
        for (uint32_t i = 0; i < node->rank; i++)
            if (i != node->attr.axis)
                a->used |= b->k->idx_axes.at[b->tuples.at[a->at].at[i]];
        a->axes[a->count++] = node->attr.axis;
        return;
    }
    a->used = tuple_axes(b, a->at);
    for (uint32_t i = 0; i < input->rank; i++)
        if (node->attr.mask >> i & 1 && !size_is_one(a->f, input->dim[i]))
            a->axes[a->count++] = i;
}

bool refuses_of_product(Asked *a) { return a->b->contraction != REF_NONE; }

bool refuses_part_of_row(Asked *a) { return a->pred != VREF_NONE && a->b->k->inst_axes.at[a->pred] & a->b->r_mask; }

bool refuses_across_row(Asked *a)
{
    const Build *b = a->b;
    if (!is_scan(a))
        return false;
    const Idx *c = &b->k->idx.at[b->tuples.at[a->at].at[asked_node(a)->attr.axis]];
    return b->n_r != 1 || c->kind != IX_AXIS || c->a != b->n_x;
}

bool refuses_along_row(Asked *a)
{
    find_axes(a);
    return a->used & a->b->r_mask;
}

bool refuses_repeated(Asked *a) { return a->b->x_points * (is_scan(a) ? a->b->r_points : 1) > (double)node_hint_numel(a->f->g, a->n); }

bool refuses_no_row(Asked *a) { return a->b->n_r == 0 && a->count; }

bool refuses_other_axes(Asked *a) { return a->count != a->b->n_r; }

bool refuses_other_length(Asked *a)
{
    Build *b = a->b;
    for (uint32_t i = 0; i < a->count; i++) {
        Dim d = operand(a)->dim[a->axes[i]];
        if (build_size(b, d) == b->k->axes.at[b->n_x + i].size)
            continue;
        a->numbers[0] = dim_hint(a->f->g, d);
        a->numbers[1] = dim_hint(a->f->g, b->dim[b->n_x + i]);
        return true;
    }
    return false;
}

/* ---- a node that has a buffer and is still to be made ---- */

/* Do these coordinates visit each element of n once, over all the loops of a level? */
bool visits_all(Build *b, Ref n, Tuple at)
{
    const Node *node = graph_node(b->f->g, n);
    uint32_t seen = 0;
    for (uint32_t i = 0; i < node->rank; i++) {
        Idx c = b->k->idx.at[b->tuples.at[at].at[i]];
        if (c.kind == IX_CONST && c.value == 0 && size_is_one(b->f, node->dim[i]))
            continue;
        if (c.kind != IX_AXIS || seen >> c.a & 1 || build_size(b, node->dim[i]) != b->k->axes.at[c.a].size)
            return false;
        seen |= 1u << c.a;
    }
    return seen == b->x_mask || seen == (b->x_mask | b->r_mask);
}

bool refuses_pieces(Asked *a) { return !a->b->absorb; }

bool refuses_made(Asked *a) { return !(a->f->flags[a->n] & NODE_PENDING); }

bool refuses_cycle(Asked *a) { return a->f->flags[a->n] & NODE_REFUSED; }

bool refuses_masked(Asked *a) { return a->pred != VREF_NONE; }

bool refuses_alone(Asked *a)
{
    Ref c = a->f->contract_of[a->n];
    return refuses_own_kernel(a) || refuses_body(a) || (c != REF_NONE && c != a->b->contraction);
}

bool refuses_no_room(Asked *a) { return a->b->buffers >= MAX_BUFFERS || a->b->visits >= a->b->budget; }

bool refuses_other_places(Asked *a) { return !visits_all(a->b, a->n, a->at); }

bool refuses_other_row(Asked *a)
{
    OpClass cls = class_of(a->f, a->n);
    return (cls == CLS_REDUCE || cls == CLS_SCAN) && !reduce_is_trivial(a->f, a->n) && refuse(GROUP_FOLD, a);
}

/* ---- two roots ---- */

/* Is x computed again, in another half than y or inside of more kiln_checkpoints, and is memory what counts? */
static bool is_later(const Fuser *f, const Node *x, const Node *y)
{
    bool for_memory = x->checkpoint || f->options->value[OPT_REMAT] == REMAT_MEMORY;
    return for_memory && x->again && (x->phase > y->phase || (y->again && x->again > y->again));
}

/* With remat=memory, and inside of a kiln_checkpoint, what is computed again and what a lower phase stores: one kernel of both would store
 * what was not to be kept. Otherwise it saves a kernel, and costs no memory that was seen. */
bool for_later(const Fuser *f, Ref a, Ref b)
{
    const Node *x = graph_node(f->g, a), *y = graph_node(f->g, b);
    return is_later(f, x, y) || is_later(f, y, x);
}

bool refuses_later(Asked *a)
{
    bool found = false;
    for (uint32_t i = 0; i < a->b->outputs.n && !found; i++)
        found = for_later(a->f, a->n, a->b->outputs.at[i]);
    return found;
}

bool refuses_both_large(Asked *a)
{
    return a->b->buffers + a->before->loads.n + 1 > MAX_BUFFERS || a->b->visits + a->before->visits > MAX_VISITS;
}

/* Else `at` is where they evaluate it. */
bool refuses_other_loops(Asked *a) { return !same_loops(a->b, a->own, a->n, &a->at); }

bool refuses_between(Asked *a) { return closes_cycle(a->b, a->n, a->before); }
