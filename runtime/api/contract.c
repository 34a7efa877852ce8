/*
 * Contractions: einsum and its relatives, as matrix products of permuted views.
 *
 * A term is a node with a label for each axis. Two terms become one: labels of both that nobody needs any more are summed over,
 * the others stay. With axes ordered as [batch, free, summed] and [batch, summed, free], those of a kind merged, that is a
 * matrix product; where no label is summed, a product of elements; where none is free, a sum of such. The views cost nothing
 * where a product's packing can follow them.
 *
 *     "bqhd,bkhd->bhqk":   batch b h, free q and k, summed d:   [b,h,q,d] x [b,h,d,k]
 */
#include "ir/base/os.h"
#include "runtime/record/record.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Labels: letters in the order of their character codes, then those of an ellipsis, the last axis last. */
enum { LETTERS = 52, LABELS = LETTERS + MAX_RANK, MAX_PLANNED = 8 };
typedef uint64_t Labels; /* a set */

static Labels one(int label) { return (Labels)1 << label; }

typedef struct Term {
    RtNode *x; /* NULL: an error was kept */
    uint8_t label[MAX_RANK];
} Term;

static Labels labels_of(const Term *t)
{
    Labels all = 0;
    for (int d = 0; t->x && d < t->x->rank; d++)
        all |= one(t->label[d]);
    return all;
}

static int axis_of(const Term *t, int label)
{
    int d = 0;
    while (t->label[d] != label)
        d++;
    return d;
}

static void remove_axis(Term *t, int axis, int rank) { memmove(t->label + axis, t->label + axis + 1, (size_t)(rank - axis - 1)); }

/* ---- two terms become one ---- */

/* The term with its axes in this order of labels, all of which it has. */
static RtNode *ordered(Rec *r, const Term *t, const uint8_t *label, int n)
{
    uint8_t perm[MAX_RANK] = {0};
    for (int d = 0; d < n; d++)
        perm[d] = (uint8_t)axis_of(t, label[d]);
    return t->x ? rec_permute(r, t->x, perm) : NULL;
}

/* Sums over what nobody needs. */
static void sum_rest(Rec *r, Term *t, Labels needed)
{
    uint8_t mask = 0, rank = t->x ? t->x->rank : 0;
    for (int d = rank; d-- > 0;)
        if (!(needed & one(t->label[d]))) {
            mask |= (uint8_t)(1u << d);
            remove_axis(t, d, rank);
        }
    if (mask)
        t->x = rec_reduce(r, OP_REDUCE_SUM, t->x, mask, false);
}

typedef struct List {
    uint8_t label[LABELS];
    int n;
} List;

static void append(List *list, const List *more)
{
    memcpy(list->label + list->n, more->label, (size_t)more->n);
    list->n += more->n;
}

/* Those of a term that are in a set, as it has them. */
static List listed(const Term *t, Labels set)
{
    List list = {.n = 0};
    for (int d = 0; d < t->x->rank; d++)
        if (set & one(t->label[d]))
            list.label[list.n++] = t->label[d];
    return list;
}

/* The term with an axis of size 1 for each label that it lacks. */
static RtNode *spread_to(Rec *r, const Term *t, const List *all)
{
    List own = {.n = 0};
    Labels has = labels_of(t);
    for (int i = 0; i < all->n; i++)
        if (has & one(all->label[i]))
            own.label[own.n++] = all->label[i];
    RtNode *x = ordered(r, t, own.label, own.n);
    for (int i = 0; i < all->n; i++)
        if (!(has & one(all->label[i])))
            x = rec_insert(r, x, i);
    return x;
}

/* [batch, rows, columns] of what is merged; a group of none becomes an axis of size 1. */
static RtNode *as_matrix(Rec *r, const Term *t, const List *batch, const List *rows, const List *columns)
{
    List order = *batch;
    append(&order, rows);
    append(&order, columns);
    RtNode *x = ordered(r, t, order.label, order.n);
    x = rec_merge(r, x, batch->n + rows->n, columns->n);
    return rec_merge(r, x, batch->n, rows->n);
}

static RtNode *split_sizes(Rec *r, RtNode *x, int axis, const Term *from, const List *list)
{
    int64_t dims[MAX_RANK];
    for (int i = 0; i < list->n; i++)
        dims[i] = from->x->dim[axis_of(from, list->label[i])];
    return rec_split(r, x, axis, list->n, dims);
}

static RtNode *product(Rec *r, const Term *a, const Term *b, const List *batch, const List *rows, const List *summed, const List *columns)
{
    RtNode *in[2];
    in[0] = as_matrix(r, a, batch, rows, summed);
    in[1] = as_matrix(r, b, batch, summed, columns);
    if (!in[0] || !in[1])
        return NULL;
    RtNode *y = rec_node(r, OP_MATMUL, DT_COUNT, NULL, 2, in, NULL, 0);
    y = y ? split_sizes(r, y, batch->n + 1, b, columns) : NULL;
    return y ? split_sizes(r, y, batch->n, a, rows) : NULL;
}

/* A sum of products of elements, in f32 where they are halves. */
static RtNode *inner(Rec *r, const Term *a, const Term *b, const List *batch, const List *summed)
{
    List order = *batch;
    append(&order, summed);
    RtNode *x = ordered(r, a, order.label, order.n), *y = ordered(r, b, order.label, order.n);
    if (!x || !y)
        return NULL;
    DType out = node_dtype(x), wide = dtype_accumulator(out);
    uint8_t mask = (uint8_t)(((1u << summed->n) - 1) << batch->n);
    return rec_cast(r, rec_reduce(r, OP_REDUCE_SUM, rec_ew2(r, OP_MUL, rec_cast(r, x, wide), rec_cast(r, y, wide)), mask, false), out);
}

/* The position of the first label of the set in the order that is wanted in the end; its length: none. */
static int first_in(const List *order, Labels set)
{
    int i = 0;
    while (i < order->n && !(set & one(order->label[i])))
        i++;
    return i;
}

/* Two terms as one that has the labels of `needed`. Both have no others alone. */
static Term contract(Rec *r, const Term *a, const Term *b, Labels needed, const List *order)
{
    Term out = {NULL, {0}};
    if (!a->x || !b->x)
        return out;
    Labels shared = labels_of(a) & labels_of(b);
    if (first_in(order, labels_of(b) & ~shared) < first_in(order, labels_of(a) & ~shared)) { /* the result needs no permutation then */
        const Term *other = a;
        a = b;
        b = other;
    }
    List all = listed(a, shared & needed), batch = all, summed = listed(a, shared & ~needed);
    List rows = listed(a, ~shared), columns = listed(b, ~shared);
    append(&all, &rows);
    append(&all, &columns);
    if (all.n > MAX_RANK) {
        rec_fail(r, ST_SHAPE, "a product of two of the tensors has %d axes: %d are the most", all.n, MAX_RANK);
        return out;
    }
    if (!summed.n) {
        RtNode *x = spread_to(r, a, &all), *y = spread_to(r, b, &all);
        out.x = x && y ? rec_ew2(r, OP_MUL, x, y) : NULL;
    } else if (!rows.n && !columns.n) {
        out.x = inner(r, a, b, &batch, &summed);
    } else {
        out.x = product(r, a, b, &batch, &rows, &summed, &columns);
    }
    memcpy(out.label, all.label, (size_t)all.n);
    return out;
}

/* ---- the order of several ---- */

typedef struct Contraction {
    Rec *r;
    Term *term;
    int n;
    List out;
    Labels wanted; /* those of out */
    int64_t size[LABELS];
} Contraction;

static double elements(const Contraction *c, Labels set)
{
    double n = 1;
    for (; set; set &= set - 1)
        n *= (double)c->size[__builtin_ctzll(set)];
    return n;
}

/* What is left of a set of terms (bits) when they are one: labels that the result or another term needs. */
static Labels left_of(const Contraction *c, uint32_t set)
{
    Labels inside = 0, outside = c->wanted;
    for (int i = 0; i < c->n; i++)
        *(set >> i & 1 ? &inside : &outside) |= labels_of(&c->term[i]);
    return inside & outside;
}

typedef struct Plan { /* of a set of terms: the best first cut, its multiplications, and the elements that are stored on the way */
    double flops, stored;
    uint32_t cut;
    Labels left;
} Plan;

static Term join(const Contraction *c, const Plan *plan, uint32_t set)
{
    if (!(set & (set - 1)))
        return c->term[__builtin_ctz(set)];
    Term a = join(c, plan, plan[set].cut), b = join(c, plan, set & ~plan[set].cut);
    return contract(c->r, &a, &b, plan[set].left, &c->out);
}

/* Least multiplications, then least elements stored, over all orders. */
static Term join_planned(const Contraction *c)
{
    Plan plan[1 << MAX_PLANNED];
    for (uint32_t set = 1; set < 1u << c->n; set++) {
        plan[set] = (Plan){.left = left_of(c, set)};
        bool cut = false;
        for (uint32_t half = (set - 1) & set; half > (set & ~half); half = (half - 1) & set) {
            const Plan *a = &plan[half], *b = &plan[set & ~half];
            Plan p = {a->flops + b->flops + elements(c, a->left | b->left), a->stored + b->stored + elements(c, plan[set].left), half,
                      plan[set].left};
            if (!cut || p.flops < plan[set].flops || (p.flops == plan[set].flops && p.stored < plan[set].stored))
                plan[set] = p;
            cut = true;
        }
    }
    return join(c, plan, (1u << c->n) - 1);
}

/* For more than can be planned: the cheapest pair, again and again. */
static Term join_greedily(Contraction *c)
{
    while (c->n > 1) {
        int a = 0, b = 1;
        double least = -1;
        for (int i = 0; i < c->n; i++)
            for (int k = i + 1; k < c->n; k++) {
                double flops = elements(c, labels_of(&c->term[i]) | labels_of(&c->term[k]));
                if (least < 0 || flops < least) {
                    least = flops;
                    a = i;
                    b = k;
                }
            }
        Labels needed = c->wanted;
        for (int i = 0; i < c->n; i++)
            needed |= i == a || i == b ? 0 : labels_of(&c->term[i]);
        c->term[a] = contract(c->r, &c->term[a], &c->term[b], needed, &c->out);
        c->term[b] = c->term[--c->n];
        if (!c->term[a].x)
            break;
    }
    return c->term[0];
}

static RtNode *contracted(Contraction *c)
{
    for (int i = 0; i < c->n; i++) { /* what is in one term alone is summed there */
        Labels needed = c->wanted;
        for (int k = 0; k < c->n; k++)
            needed |= k == i ? 0 : labels_of(&c->term[k]);
        sum_rest(c->r, &c->term[i], needed);
        if (!c->term[i].x)
            return NULL;
    }
    Term t = c->n <= MAX_PLANNED ? join_planned(c) : join_greedily(c);
    return ordered(c->r, &t, c->out.label, c->out.n);
}

/* ---- equations ---- */

static int label_of(char c) { return c >= 'A' && c <= 'Z' ? c - 'A' : c >= 'a' && c <= 'z' ? c - 'a' + 26 : -1; }

static void label_text(int label, char text[8])
{
    if (label < LETTERS)
        snprintf(text, 8, "'%c'", label < 26 ? 'A' + label : 'a' + label - 26);
    else
        snprintf(text, 8, "\"...\"");
}

/* Reading an equation: at a character of it. */
typedef struct Reader {
    Rec *r;
    const char *text, *at;
} Reader;

static bool refuse(Reader *in, const char *at, const char *what)
{
    rec_fail(in->r, ST_INVALID, "character %d of \"%s\": %s", (int)(at - in->text) + 1, in->text, what);
    return false;
}

typedef struct Side { /* labels between commas; -1 in `letter`: the ellipsis */
    int letter[2 * MAX_RANK];
    const char *place[2 * MAX_RANK];
    int n;
    bool ellipsis;
} Side;

static bool read_side(Reader *in, Side *side)
{
    *side = (Side){.n = 0};
    for (; *in->at && *in->at != ',' && !(in->at[0] == '-' && in->at[1] == '>'); in->at++) {
        if (*in->at == ' ')
            continue;
        int letter = label_of(*in->at);
        if (letter < 0 && strncmp(in->at, "...", 3) != 0)
            return refuse(in, in->at, "letters, commas, \"...\" and one \"->\" make an equation");
        if (letter < 0 && side->ellipsis)
            return refuse(in, in->at, "a second \"...\"");
        if (side->n == 2 * MAX_RANK)
            return refuse(in, in->at, "a tensor has no more than 8 axes");
        side->place[side->n] = in->at;
        side->letter[side->n++] = letter;
        side->ellipsis |= letter < 0;
        in->at += letter < 0 ? 2 : 0;
    }
    return true;
}

/* The labels of a tensor's axes. */
static bool label_term(Reader *in, const Side *side, int k, Term *t)
{
    char text[SHAPE_TEXT];
    int named = side->n - side->ellipsis, rest = t->x->rank - named, d = 0;
    if (rest < 0 || (rest && !side->ellipsis)) {
        rec_fail(in->r, ST_SHAPE, "\"%s\" names %d axes of tensor %d, which is %s", in->text, named, k, node_text(t->x, text));
        return false;
    }
    for (int i = 0; i < side->n; i++)
        if (side->letter[i] >= 0)
            t->label[d++] = (uint8_t)side->letter[i];
        else
            for (int e = 0; e < rest; e++)
                t->label[d++] = (uint8_t)(LABELS - rest + e);
    return true;
}

static bool refuse_sizes(const Contraction *c, int label, int64_t a, int in, int64_t b, int other)
{
    char text[8];
    label_text(label, text);
    rec_fail(c->r, ST_SHAPE, "%s is %" PRId64 " in tensor %d and %" PRId64 " in tensor %d", text, a, in, b, other);
    return false;
}

/* Sizes of the labels: those of the axes, of which 1 fits all. Axes of one tensor that are a diagonal are of one size. */
static bool find_sizes(Contraction *c)
{
    int brought[LABELS];
    for (int label = 0; label < LABELS; label++)
        c->size[label] = -1;
    for (int k = 0; k < c->n; k++) {
        const Term *t = &c->term[k];
        for (int d = 0; d < t->x->rank; d++) {
            int label = t->label[d];
            int64_t dim = t->x->dim[d], *size = &c->size[label];
            for (int e = 0; e < d; e++)
                if (t->label[e] == label && t->x->dim[e] != dim)
                    return refuse_sizes(c, label, t->x->dim[e], k, dim, k);
            if (*size == -1 || (*size == 1 && dim != 1)) {
                *size = dim;
                brought[label] = k;
            } else if (dim != *size && dim != 1) {
                return refuse_sizes(c, label, *size, brought[label], dim, k);
            }
        }
    }
    return true;
}

/* Axes of size 1 that are another size elsewhere go: a product repeats what lacks a label. */
static void drop_ones(const Contraction *c, Term *t)
{
    uint8_t mask = 0, rank = t->x->rank;
    for (int d = rank; d-- > 0;)
        if (t->x->dim[d] == 1 && c->size[t->label[d]] != 1) {
            mask |= (uint8_t)(1u << d);
            remove_axis(t, d, rank);
        }
    t->x = rec_drop(c->r, t->x, mask);
}

/* Of axes with one label the diagonal: [n, n] is n * n elements, of which it takes every n + 1st. */
static void take_diagonals(Rec *r, Term *t)
{
    for (int a = 0; t->x && a < t->x->rank; a++)
        for (int b = t->x->rank - 1; t->x && b > a; b--) {
            if (t->label[a] != t->label[b])
                continue;
            uint8_t perm[MAX_RANK], rank = t->x->rank;
            int64_t n = t->x->dim[a];
            for (int d = 0; d < rank; d++)
                perm[d] = (uint8_t)(d <= a ? d : d == a + 1 ? b : d <= b ? d - 1 : d);
            t->x = rec_slice(r, rec_merge(r, rec_permute(r, t->x, perm), a, 2), a, 0, n + 1, n);
            remove_axis(t, b, rank);
        }
}

/* What the result has: as said behind "->", or the ellipsis and the letters that occur once, in order. */
static bool read_result(Reader *in, Contraction *c, bool ellipsis, const uint8_t *count)
{
    Labels there = 0;
    for (int k = 0; k < c->n; k++)
        there |= labels_of(&c->term[k]);
    List dots = {.n = 0};
    for (int label = LETTERS; label < LABELS; label++)
        if (there & one(label))
            dots.label[dots.n++] = (uint8_t)label;
    if (!*in->at) {
        c->out = dots;
        for (int label = 0; label < LETTERS; label++)
            if (count[label] == 1)
                c->out.label[c->out.n++] = (uint8_t)label;
    } else {
        Side side;
        in->at += 2;
        if (!read_side(in, &side))
            return false;
        if (*in->at)
            return refuse(in, in->at, *in->at == ',' ? "one result, without commas" : "a second \"->\"");
        for (int i = 0; i < side.n; i++) {
            int label = side.letter[i];
            if (label < 0) {
                if (!ellipsis)
                    return refuse(in, side.place[i], "no tensor has \"...\"");
                append(&c->out, &dots);
                continue;
            }
            if (!(there & one(label)))
                return refuse(in, side.place[i], "no tensor has this letter");
            for (int before = 0; before < i; before++)
                if (side.letter[before] == label)
                    return refuse(in, side.place[i], "this letter is twice in the result");
            c->out.label[c->out.n++] = (uint8_t)label;
        }
    }
    if (c->out.n > MAX_RANK) {
        rec_fail(in->r, ST_SHAPE, "the result of \"%s\" has %d axes: %d are the most", in->text, c->out.n, MAX_RANK);
        return false;
    }
    for (int i = 0; i < c->out.n; i++)
        c->wanted |= one(c->out.label[i]);
    return true;
}

static RtNode *einsum(Rec *r, const char *equation, RtNode *const *x, Term *terms, int n)
{
    Contraction c = {.r = r, .term = terms, .n = n};
    Reader in = {r, equation, equation};
    uint8_t count[LETTERS] = {0};
    bool ellipsis = false;
    for (int k = 0; k < n; k++) {
        Side side;
        if (!read_side(&in, &side))
            return NULL;
        terms[k] = (Term){x[k], {0}};
        if (!label_term(&in, &side, k, &terms[k]))
            return NULL;
        ellipsis |= side.ellipsis;
        for (int i = 0; i < side.n; i++)
            if (side.letter[i] >= 0 && count[side.letter[i]] < 2)
                count[side.letter[i]]++;
        if (k + 1 < n && *in.at != ',')
            return rec_fail(r, ST_INVALID, "\"%s\" names %d of %d tensors", equation, k + 1, n);
        in.at += k + 1 < n;
    }
    if (*in.at == ',' && !refuse(&in, in.at, n == 1 ? "there is one tensor" : "there are no more tensors"))
        return NULL;
    if (!find_sizes(&c) || !read_result(&in, &c, ellipsis, count))
        return NULL;
    for (int k = 0; k < n; k++) {
        drop_ones(&c, &terms[k]);
        take_diagonals(r, &terms[k]);
        if (!terms[k].x)
            return NULL;
    }
    return contracted(&c);
}

API3(kiln_tensor *, kiln_einsum_list, const char *, equation, kiln_tensor *const *, tensors, int, n)
{
    Rec r = REC(kiln_einsum);
    if (!equation)
        return rec_end(&r, rec_fail(&r, ST_INVALID, "the equation is NULL"));
    RtNode **x = rec_list(&r, tensors, n), *y = NULL;
    Term *terms = x ? os_alloc(sizeof *terms * (size_t)n) : NULL;
    if (x && !terms)
        rec_fail(&r, ST_OUT_OF_MEMORY, "out of memory");
    else if (x && node_dtype(x[0]) == DT_BOOL)
        rec_fail(&r, ST_DTYPE, "bools have no products: cast them, or use kiln_logical_and and kiln_any");
    else if (x)
        y = einsum(&r, equation, x, terms, n);
    os_free(terms);
    os_free(x);
    return rec_end(&r, y);
}

/* ---- relatives ---- */

static bool two_numbers(Rec *r, kiln_tensor *a, kiln_tensor *b, RtNode **in)
{
    static const char *const names[] = {"a", "b"};
    in[0] = rec_in(r, a, "a");
    in[1] = rec_in(r, b, "b");
    return in[0] && in[1] && rec_promote(r, PREP_NUM, 2, in, names);
}

API4(kiln_tensor *, kiln_tensordot, kiln_tensor *, a, kiln_tensor *, b, kiln_axes, axes_a, kiln_axes, axes_b)
{
    Rec r = REC(kiln_tensordot);
    RtNode *in[2];
    uint8_t mask;
    char left[SHAPE_TEXT], right[SHAPE_TEXT];
    if (!two_numbers(&r, a, b, in) || !rec_axes(&r, in[0], axes_a, &mask) || !rec_axes(&r, in[1], axes_b, &mask))
        return rec_end(&r, NULL);
    int n = axes_a.n < 0 ? in[0]->rank : axes_a.n, other = axes_b.n < 0 ? in[1]->rank : axes_b.n;
    if (n != other)
        return rec_end(&r, rec_fail(&r, ST_INVALID, "%d axes of a meet %d of b: a is %s, b is %s", n, other, node_text(in[0], left),
                                    node_text(in[1], right)));
    Contraction c = {.r = &r, .n = 2};
    Term terms[2] = {{in[0], {0, 1, 2, 3, 4, 5, 6, 7}}, {in[1], {8, 9, 10, 11, 12, 13, 14, 15}}}; /* all different */
    c.term = terms;
    Labels summed = 0;
    for (int i = 0; i < n && i < MAX_RANK; i++) {
        int x = i, y = i;
        if ((axes_a.n >= 0 && !rec_axis(&r, in[0], axes_a.axis[i], &x)) || (axes_b.n >= 0 && !rec_axis(&r, in[1], axes_b.axis[i], &y)))
            return rec_end(&r, NULL);
        if (in[0]->dim[x] != in[1]->dim[y])
            return rec_end(&r, rec_fail(&r, ST_SHAPE, "axis %d of a and %d of b differ: a is %s, b is %s", x, y, node_text(in[0], left),
                                        node_text(in[1], right)));
        terms[1].label[y] = (uint8_t)x;
        summed |= one(x);
    }
    for (int k = 0; k < 2; k++) {
        List free = listed(&terms[k], ~summed);
        append(&c.out, &free);
    }
    if (c.out.n > MAX_RANK)
        return rec_end(&r, rec_fail(&r, ST_SHAPE, "the result has %d axes: a is %s, b is %s", c.out.n, node_text(in[0], left),
                                    node_text(in[1], right)));
    for (int i = 0; i < c.out.n; i++)
        c.wanted |= one(c.out.label[i]);
    find_sizes(&c);
    return rec_end(&r, contracted(&c));
}

API2(kiln_tensor *, kiln_outer, kiln_tensor *, a, kiln_tensor *, b)
{
    Rec r = REC(kiln_outer);
    RtNode *in[2];
    char left[SHAPE_TEXT], right[SHAPE_TEXT];
    if (!two_numbers(&r, a, b, in))
        return rec_end(&r, NULL);
    int rank = in[0]->rank, more = in[1]->rank;
    if (rank + more > MAX_RANK)
        return rec_end(&r, rec_fail(&r, ST_SHAPE, "the result has %d axes: a is %s, b is %s", rank + more, node_text(in[0], left),
                                    node_text(in[1], right)));
    for (int d = 0; d < more && in[0]; d++)
        in[0] = rec_insert(&r, in[0], rank);
    return rec_end(&r, in[0] ? rec_ew2(&r, OP_MUL, in[0], in[1]) : NULL);
}

API2(kiln_tensor *, kiln_dot, kiln_tensor *, a, kiln_tensor *, b)
{
    Rec r = REC(kiln_dot);
    RtNode *in[2];
    char left[SHAPE_TEXT], right[SHAPE_TEXT];
    if (!two_numbers(&r, a, b, in))
        return rec_end(&r, NULL);
    if (in[0]->rank != 1 || in[1]->rank != 1 || in[0]->dim[0] != in[1]->dim[0])
        return rec_end(&r, rec_fail(&r, ST_SHAPE, "two vectors of one length are needed: a is %s, b is %s", node_text(in[0], left),
                                    node_text(in[1], right)));
    Term x = {in[0], {0}}, y = {in[1], {0}};
    List none = {.n = 0};
    return rec_end(&r, contract(&r, &x, &y, 0, &none).x);
}
