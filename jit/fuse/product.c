/*
 * The loops of the kernel of a matrix product: those of the product, whatever its epilogue has made of them.
 */
#include "jit/fuse/fuse.h"

/* The contraction kernel of root n: loops over the product's own axes; n's coordinates follow from
 * them, up the epilogue. false: they would become too long, or something on the way has a kernel of plain loops by now. */
static bool contraction_tuple(Build *b, Ref n, Tuple *at)
{
    Fuser *f = b->f;
    VEC(Ref) path = {0};
    Coords c = {.n = graph_node(f->g, b->contraction)->rank};
    for (uint32_t i = 0; i < c.n; i++)
        c.at[i] = product_axis(b, i);
    for (Ref step = n; step != b->contraction;) {
        const Node *node = graph_node(f->g, step);
        VEC_PUSH(f->scratch, path, step);
        uint32_t i = 0;
        while (i < node->n_in && f->contract_of[node->in[i]] != b->contraction)
            i++;
        if (i == node->n_in)
            return false;
        step = node->in[i];
    }
    while (path.n) {
        c = view_output(b, path.at[--path.n], &c);
        if (coords_long(b, &c))
            return false;
    }
    *at = build_tuple(b, &c);
    return true;
}

static bool is_vector(const Graph *g, Dim d)
{
    const DimInfo *info = &g->shared->dims.at[dim_find(g, d)];
    return info->kind == DIM_CONST && info->hint == 1;
}

/*
 * On a CUDA device a product with a vector is a reduction of products: a block of threads or all of them for each element, where a
 * contraction has one thread each, which sums up in order. Strict mode promises that order for floats. In fast mode the two differ in
 * rounding, so structure decides (a vector that was given another axis), the same for all variants of a program; a size that
 * only happens to be 1 stays a contraction. One that a rewrite relied on to be 1 (of an axis that a reshape by numbers adds) counts as
 * structure: variants for other sizes may then round otherwise.
 */
bool sums_products(const Fuser *f, const Node *node)
{
    bool vector = is_vector(f->g, node->dim[node->rank - 1]) || is_vector(f->g, node->dim[node->rank - 2]);
    return target_kind(&f->options->target)->sums_thin && vector &&
           (options_math(f->options) == MATH_FAST || dtype_is_int((DType)node->dtype));
}

/* Begins the draft of the kernel of root n, of the product that it is or ends: *at is where its loops have n. false: it can't be that. */
bool product_begin(Build *b, Fuser *f, Ref n, Tuple *at)
{
    Ref c = f->contract_of[n];
    const Node *node = graph_node(f->g, c), *left = graph_node(f->g, node->in[0]);
    const Attention *attention = attention_of(f, c);
    Dim dim[MAX_RANK + 3];
    uint32_t n_x = node->rank;
    if (attention) {
        n_x = attention_loops(f, attention, dim);
    } else {
        memcpy(dim, node->dim, sizeof node->dim);
        dim[node->rank] = left->dim[left->rank - 1];
    }
    build_init(b, f, dim, n_x, attention ? 2 : 1, n);
    b->k->form = attention ? FORM_ATTENTION : sums_products(f, node) ? FORM_LOOPS : FORM_CONTRACT;
    b->contraction = c;
    b->attention = attention;
    return contraction_tuple(b, n, at);
}
