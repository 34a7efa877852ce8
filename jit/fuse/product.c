/*
 * The loops of the kernel of a matrix product: those of the product, whatever its epilogue has made of them.
 */
#include "jit/fuse/fuse.h"

static const char who[] = "product";

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
 * Do neighbours along an axis of n, the last or, `back` 1, the one before, lie side by side in memory, and is each element n's alone?
 * As the graph has it, whatever has a buffer; what is not looked through lies row by row.
 */
bool lies_along(const Graph *g, Ref n, uint32_t back)
{
    for (;;) {
        const Node *node = graph_node(g, n), *input = node->n_in ? graph_node(g, node->in[0]) : NULL;
        uint32_t i = 0, axis = node->rank - 1U - back;
        if (back >= node->rank)
            return false;
        switch (node->op) {
        case OP_EXPAND: return false;
        case OP_PERMUTE: back = node->rank - 1U - node->attr.perm[axis]; break;
        case OP_RESHAPE: /* axes in front come and go */
            for (i = 0; i <= back && i < input->rank; i++)
                if (!dim_same(g, node->dim[node->rank - 1 - i], input->dim[input->rank - 1 - i]))
                    break;
            if (back && i <= back)
                return false;
            break;
        default:
            if (op_class((Op)node->op) != CLS_EW)
                return back == 0;
            while (i + 1 < node->n_in && (graph_node(g, node->in[i])->op == OP_EXPAND || graph_node(g, node->in[i])->rank != node->rank))
                i++;
            n = node->in[i];
            if (graph_node(g, n)->rank != node->rank)
                return false;
            continue;
        }
        n = node->in[0];
    }
}

/* Has the product one row, and a matrix that lies along the sum? Or one column? A guard says so, or that there are more: the sizes
 * of a call say in which order it is added up, not those that a program was made at. */
static bool sums_lines(const Fuser *f, const Node *node)
{
    enum { NARROW_LEAST = 128 }; /* elements that are widened: of bf16, AVX2, 4096 sums of 64 took 26 us instead of 18 */
    const Node *left = graph_node(f->g, node->in[0]);
    Dim rows = node->dim[node->rank - 2], columns = node->dim[node->rank - 1], inner = left->dim[left->rank - 1];
    DType of = (DType)left->dtype;
    if (!dtype_is_float(of) || order_of(FOLD_DOT, false, of, target_order(f->options), MATH_FAST).kind == ORD_PAIRS)
        return false;
    bool one = (lies_along(f->g, node->in[0], 0) && size_at_most(f, columns, 1, who)) ||
               (lies_along(f->g, node->in[1], 1) && size_at_most(f, rows, 1, who));
    return one && (dtype_bytes(of) >= 4 || !size_at_most(f, inner, NARROW_LEAST - 1, who));
}

/*
 * A product with a vector may be a reduction of products. On a CUDA device a block of threads or all of them share an element, where a
 * contraction has one thread each, which sums up in order. On a CPU lanes run along the sum, where a contraction's run across it and each
 * square of the matrix must be transposed. Strict mode promises the order of a contraction for floats.
 *
 * In fast mode the two differ in rounding. On a CUDA device structure decides (a vector that was given another axis), the same for all
 * variants of a program; a size that only happens to be 1 stays a contraction. One that a rewrite relied on to be 1 (of an axis that a
 * reshape by numbers adds) counts as structure: variants for other sizes may then round otherwise. On a CPU a guard decides.
 */
bool sums_products(const Fuser *f, const Node *node)
{
    bool fast = options_math(f->options) == MATH_FAST;
    if (!target_kind(&f->options->target)->sums_thin)
        return fast && sums_lines(f, node);
    bool vector = is_vector(f->g, node->dim[node->rank - 1]) || is_vector(f->g, node->dim[node->rank - 2]);
    return vector && (fast || dtype_is_int((DType)node->dtype));
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
