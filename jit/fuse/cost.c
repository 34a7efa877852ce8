/*
 * What gets a buffer.
 *
 * Before the first round, by structure: graph outputs; scatters, sorts and long concats; each
 * matrix product together with the elementwise chain that follows it (its epilogue: the last node
 * of the chain that readers would not do as well gets the buffer); and operands of matrix products that are more than a few light
 * operations on buffers, which are computed where they are packed (on CUDA: more than a view or cast), since a contraction reads them many times.
 *
 * After a round, when it is known which kernels evaluate what: a value that several kernels
 * compute, or one kernel at several coordinates, or at many more points than it has elements, gets
 * a buffer if storing it is cheaper.
 */
#include "jit/fuse/fuse.h"
#include "jit/fuse/cost.h"

enum { HOT = 12, COST_MAX = 1 << 20, PACKED_MOST = 6, MOST_MADE = 64, PIECE_LEAST = 16 };

/* Smaller ones are read where they lie, out of a cache (limits.def, cached_bytes): to compute them there for each tile, or to pack them for
 * that, takes longer than to store them. Relu of 100 cubed, of 512 cubed, of 8 x 1024 x 1024: 0.63, 1.25 and 1.4 times as fast packed. */
enum { PACKED_LEAST = 1 << 16 };

static bool is_view(const Node *node) { return op_class((Op)node->op) == CLS_VIEW; }

static void want(Fuser *f, Ref n) { f->flags[n] |= NODE_WANT; }

/* Where the group says that a node is stored, it is. */
static void want_refused(RefusalId group, Asked *asked)
{
    RefusalId why = refuse(group, asked);
    if (!why)
        return;
    refused_note(asked->f, &asked->f->decisions, why, asked);
    want(asked->f, asked->n);
}

static void want_asked(Fuser *f, RefusalId group, Ref n) { want_refused(group, &(Asked){.f = f, .n = n}); }

static uint32_t user_count(const Fuser *f, Ref n) { return f->user_at[n + 1] - f->user_at[n]; }

/* Is a permutation better done by the store before it? Where it is an output, where a reshape follows, which would need the elements in
 * that order, and where all that follows goes over them in that order, as an optimiser does. */
static bool stored_permuted(const Fuser *f, Ref n)
{
    bool in_order = user_count(f, n) > 0;
    for (uint32_t u = f->user_at[n]; u < f->user_at[n + 1]; u++) {
        OpClass cls = class_of(f, f->users[u]);
        in_order &= cls == CLS_EW || cls == CLS_REDUCE;
    }
    return f->flags[n] & NODE_WANT || in_order || (user_count(f, n) == 1 && graph_node(f->g, f->users[f->user_at[n]])->op == OP_RESHAPE);
}

static bool in_epilogue(const Fuser *f, Ref n)
{
    const Node *node = graph_node(f->g, n);
    return f->contract_of[n] == REF_NONE && !(f->flags[n] & NODE_ATTENDED) &&
           (op_class((Op)node->op) == CLS_EW || node->op == OP_RESHAPE || (node->op == OP_PERMUTE && stored_permuted(f, n)));
}

enum { MAX_REGION = 32, MAX_REGION_USERS = 64 };

/* The first user of the region that is not in it (REF_NONE: none), and how many nodes of the region
 * such users read. */
static Ref next_user(const Fuser *f, const Ref *region, uint32_t n, uint32_t *open, Ref *last)
{
    Ref next = REF_NONE;
    *open = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (user_count(f, region[i]) > MAX_REGION_USERS) {
            *open = 2;
            return REF_NONE;
        }
        bool leaves = user_count(f, region[i]) == 0;
        for (uint32_t u = f->user_at[region[i]]; u < f->user_at[region[i] + 1]; u++) {
            uint32_t j = 0;
            while (j < n && region[j] != f->users[u])
                j++;
            if (j < n)
                continue;
            leaves = true;
            next = f->users[u] < next ? f->users[u] : next;
        }
        if (leaves) {
            *open += 1;
            *last = region[i];
        }
    }
    return next;
}

/* At the end of a chain: a reshape, which moves nothing, and a cast to a wider dtype, which readers do as well as the store, of fewer bytes. */
static bool readers_do(const Fuser *f, Ref n)
{
    const Node *node = graph_node(f->g, n);
    bool widens = node->op == OP_CAST && dtype_bytes((DType)graph_node(f->g, node->in[0])->dtype) < dtype_bytes((DType)node->dtype);
    return node->op == OP_RESHAPE || (widens && !(f->flags[n] & NODE_WANT));
}

/*
 * The node whose buffer holds matmul c and the elementwise work after it. The region of nodes that
 * depend on c grows by one user at a time; whenever only one of its nodes is read from outside (the
 * others, as in x * sigmoid(x), have met again), that node can be the one that is stored. Nodes of
 * the region are marked as c's epilogue.
 */
static Ref matmul_top(Fuser *f, Ref c)
{
    Ref region[MAX_REGION] = {c}, top = c;
    uint32_t n = 1, kept = 1;
    f->contract_of[c] = c;
    while (f->fuse && n < MAX_REGION) {
        uint32_t open;
        Ref last = c, next = next_user(f, region, n, &open, &last);
        if (open == 1 && last == region[n - 1]) {
            top = last;
            kept = n;
        }
        if (next == REF_NONE || !in_epilogue(f, next))
            break;
        region[n++] = next;
    }
    for (uint32_t i = 1; i < kept; i++)
        f->contract_of[region[i]] = c;
    while (top != c && readers_do(f, top)) {
        f->contract_of[top] = REF_NONE;
        top = graph_node(f->g, top)->in[0];
    }
    return top;
}

static bool looks_through(const Node *node) { return is_view(node) && node->op != OP_PAD && node->op != OP_CONCAT; }

/* Elements of a matrix of an operand, at the hints. */
static int64_t matrix_elements(const Graph *g, Ref n)
{
    const Node *node = graph_node(g, n);
    int64_t elements = 1;
    for (int d = node->rank > 2 ? node->rank - 2 : 0; d < node->rank; d++)
        elements *= dim_hint(g, node->dim[d]);
    return elements;
}

/* What an operand of a product is made of, down to buffers. */
typedef struct Made {
    uint32_t n, left; /* left: how many operations more there may be */
    bool pieces;      /* may there be some that take other elements at some places? */
    Ref at[MOST_MADE];
} Made;

static bool is_among(const Made *m, Ref n)
{
    uint32_t i = 0;
    while (i < m->n && m->at[i] != n)
        i++;
    return i < m->n;
}

/* Is there something costly in what n is made of, down to buffers? */
static bool is_costly(const Fuser *f, Ref n, uint32_t depth)
{
    const Node *node = graph_node(f->g, n);
    bool costly = op_info[node->op].flags & OPF_COSTLY;
    for (uint32_t i = 0; !has_buffer(f, n) && depth && (is_view(node) || class_of(f, n) == CLS_EW) && i < node->n_in; i++)
        costly |= is_costly(f, node->in[i], depth - 1);
    return costly && !has_buffer(f, n);
}

/* Of few elements, which are repeated for many others, something costly, as sines of angles for all heads: it is stored. Else REF_NONE. */
static Ref table_of(const Fuser *f, const Node *node)
{
    enum { DEPTH = 4 };
    Ref n = node->op == OP_EXPAND ? strip_reshape(f->g, node->in[0]) : REF_NONE;
    return n != REF_NONE && is_costly(f, n, DEPTH) ? n : REF_NONE;
}

/* Pieces of a row that take vectors to fill; of pairs lanes would be shuffled, which a kernel of their own does faster. */
static bool has_long_pieces(const Fuser *f, const Node *node)
{
    bool all = true;
    for (uint32_t i = 0; node->op == OP_CONCAT && i < node->n_in; i++)
        all &= dim_hint(f->g, graph_node(f->g, node->in[i])->dim[node->attr.axis]) >= PIECE_LEAST;
    return all;
}

/* Adds n and what it is made of. false: not a few light operations on buffers. */
static bool add_made(const Fuser *f, Ref n, Made *m)
{
    const Node *node = graph_node(f->g, n);
    if (has_buffer(f, n) || op_class((Op)node->op) == CLS_LEAF || node->number || is_among(m, n))
        return true;
    const bool free = looks_through(node), made = class_of(f, n) == CLS_EW && !(op_info[node->op].flags & OPF_COSTLY);
    const uint32_t cost = !free;
    const bool light = is_view(node) ? free || (m->pieces && has_long_pieces(f, node)) : made && f->contract_of[n] == REF_NONE;
    if (!light || m->left < cost || m->n == MOST_MADE)
        return false;
    m->left -= cost;
    m->at[m->n++] = n;
    for (uint32_t i = 0; i < node->n_in; i++)
        if (!(m->pieces && table_of(f, node) != REF_NONE) && !add_made(f, node->in[i], m))
            return false;
    return true;
}

/* Has any of it another reader, for which it would be computed as well? */
static bool is_shared(const Fuser *f, const Made *m, Ref product)
{
    for (uint32_t i = 0; i < m->n; i++)
        for (uint32_t u = f->user_at[m->at[i]]; u < f->user_at[m->at[i] + 1]; u++)
            if (!is_view(graph_node(f->g, m->at[i])) && !is_among(m, f->users[u]) && f->users[u] != product)
                return true;
    return false;
}

/*
 * How often is an element packed, at the hints? Rows once for all columns of a task, columns once for each band of rows. 0: nobody knows, as small
 * operands may be read where they lie; but not where the columns lie along the sum, as keys do, and rows are not few (jit/rules_product.c).
 */
static int64_t times_packed(const Graph *g, const Node *product, uint32_t side)
{
    enum { THIN_ROWS = 8, TASK_COLUMNS = 1024, BAND_ROWS = 224 };
    const int64_t rows = dim_hint(g, product->dim[product->rank - 2]), columns = dim_hint(g, product->dim[product->rank - 1]);
    if (rows <= THIN_ROWS || !lies_along(g, product->in[1], 1))
        return 0;
    return side == 0 ? (columns + TASK_COLUMNS - 1) / TASK_COLUMNS : (rows + BAND_ROWS - 1) / BAND_ROWS;
}

/*
 * May a product compute its operand as it packs it? A few operations a point, of buffers, none of them with a table or a series inside, and no
 * other reader: an element is packed once for some hundred points of the other operand. More of them, and of pieces of a row, as rotary
 * embedding of queries is, where it is known that they are packed few times. (Zen 4, of q and k, 4 x 16 heads of 128 x 128, D 64: 2.80 -> 2.21 ms,
 * AVX2 2.58 -> 2.18; of k at 2048 queries it costs as much as it saves.)
 */
static bool is_packed(const Fuser *f, Ref product, uint32_t side, Ref operand, Made *m)
{
    enum { WORK = 48, FEW_TIMES = 2, MOST_TIMES = 4 };
    const int64_t times = times_packed(f->g, graph_node(f->g, product), side);
    m->n = 0;
    m->pieces = times > 0 && times <= (side == 0 ? MOST_TIMES : FEW_TIMES);
    m->left = m->pieces ? (uint32_t)(WORK / (times > FEW_TIMES ? times : FEW_TIMES)) : PACKED_MOST;
    return (m->pieces || matrix_elements(f->g, operand) > PACKED_LEAST) && add_made(f, operand, m) && !is_shared(f, m, product);
}

/* What such an operand begins with is never stored: each point of the product would look like one more at which it is computed. */
static void mark_packed(Fuser *f, const Made *m)
{
    for (uint32_t i = 0; i < m->n; i++) {
        const Ref table = m->pieces ? table_of(f, graph_node(f->g, m->at[i])) : REF_NONE;
        f->flags[m->at[i]] |= NODE_PACKED;
        if (table != REF_NONE)
            want(f, table);
    }
}

/* Every second element of rows in memory, or fewer. */
static bool thins_rows(const Fuser *f, Ref n)
{
    bool thins = false;
    const Node *node = graph_node(f->g, n);
    for (; !has_buffer(f, n) && (node->op == OP_SLICE || node->op == OP_RESHAPE); n = node->in[0], node = graph_node(f->g, n))
        thins |= node->op == OP_SLICE && node->attr.mask >> (node->rank - 1) & 1 && dim_hint(f->g, node->fact[node->n_facts - 2]) > 1;
    return thins && (has_buffer(f, n) || op_class((Op)node->op) == CLS_LEAF);
}

/*
 * What an operand that is multiplied more than once has of a buffer, where that lies apart in its rows; REF_NONE: it does not. Steps of a sum, of rows
 * (4096 x 1024 by 1024 x 16, Zen 4: 14 -> 3.3 ms), and columns that are places of images, as 1x1 convolutions with a stride have them: the end of
 * each row would be looked for. Columns of a matrix are packed as fast as they are stored.
 */
static Ref thinned(const Fuser *f, Ref product, uint32_t side, Ref operand)
{
    const Node *node = graph_node(f->g, product);
    const Node *all = graph_node(f->g, operand);
    const bool steps = lies_along(f->g, operand, side);
    if (dim_hint(f->g, node->dim[node->rank - (side ? 2 : 1)]) == 1)
        return REF_NONE;
    for (Ref n = operand; !has_buffer(f, n) && looks_through(graph_node(f->g, n)); n = graph_node(f->g, n)->in[0]) {
        const Node *of = graph_node(f->g, n);
        const bool places = side == 1 && !dim_same(f->g, of->dim[of->rank - 1], all->dim[all->rank - 1]);
        if (of->op == OP_SLICE && (steps || places) && thins_rows(f, n))
            return n;
    }
    return REF_NONE;
}

bool refuses_apart(Asked *a)
{
    a->n = thinned(a->f, a->product, a->side, a->n);
    return a->n != REF_NONE;
}

static bool widens(const Fuser *f, const Node *node)
{
    return node->op == OP_CAST && node->dtype == DT_F32 && dtype_is_half((DType)graph_node(f->g, node->in[0])->dtype);
}

/* An operand of a contraction that is more than views and casts of a buffer; what is stored is what they begin with, as narrow as it is: n becomes that. */
bool refuses_operand(Asked *a)
{
    const Fuser *f = a->f;
    Ref at = a->n;
    while (!has_buffer(f, at) && (looks_through(graph_node(f->g, at)) || widens(f, graph_node(f->g, at))))
        at = graph_node(f->g, at)->in[0];
    a->n = at;
    while (!has_buffer(f, at)) {
        const Node *node = graph_node(f->g, at);
        if (op_class((Op)node->op) == CLS_LEAF || node->number)
            return false;
        if (node->op != OP_CAST && !looks_through(node))
            return !has_buffer(f, a->n);
        at = node->in[0];
    }
    return false;
}

bool refuses_epilogue(Asked *a) { return !has_buffer(a->f, a->n); }

void want_structural(Fuser *f)
{
    const Graph *g = f->g;
    const bool packs = target_kind(&f->options->target)->packs;
    for (uint32_t i = 0; i < g->outputs.n; i++) {
        Ref n = strip_reshape(g, g->outputs.at[i]);
        if (graph_node(g, n)->op != OP_INPUT || graph_node(g, n)->attr.flag)
            want(f, n);
    }
    for (Ref n = 0; n < f->n; n++) {
        const Node *node = graph_node(g, n);
        if (!(f->flags[n] & NODE_LIVE))
            continue;
        OpClass cls = class_of(f, n);
        want_asked(f, GROUP_ALONE, n);
        for (uint32_t i = 0; cls == CLS_BODY && i < node->n_in; i++)
            want_asked(f, GROUP_GIVEN, strip_reshape(g, node->in[i]));
        if (!f->fuse && cls != CLS_LEAF && cls != CLS_VIEW && cls != CLS_BODY && !node->number)
            want(f, n);
    }
    find_attentions(f);
    for (Ref n = 0; n < f->n; n++) {
        if (!(f->flags[n] & NODE_LIVE) || f->flags[n] & NODE_ATTENDED || (graph_node(g, n)->op != OP_MATMUL && !attention_of(f, n)))
            continue;
        want_asked(f, GROUP_PRODUCT, matmul_top(f, n));
    }
    for (Ref n = 0; n < f->n; n++) {
        if (f->flags[n] & NODE_LIVE && graph_node(g, n)->op == OP_MATMUL) {
            for (uint32_t side = 0; side < 2; side++) {
                Ref operand = factor_of(f, n, side);
                Made made;
                if (packs)
                    want_refused(GROUP_STRIDED, &(Asked){.f = f, .n = operand, .product = n, .side = side});
                if (packs && is_packed(f, n, side, operand, &made))
                    mark_packed(f, &made);
                else if (read_often(f, n, side))
                    want_asked(f, GROUP_OPERAND, operand);
            }
        }
    }
}

/* ---- after a round ---- */

struct Where {
    uint32_t first;      /* of the units that evaluate it */
    uint32_t count;      /* different units, 2 standing for more too */
    uint32_t computed;   /* different units that really computed it in this round, 2 standing for more
                          too */
    uint32_t times;      /* coordinates at which the unit of its last visit evaluates it */
    uint32_t last;       /* that unit */
    double points, most; /* computed in this round: in all units, and in the one that computes most */
    double widest;       /* the most at one tuple of coordinates */
    bool hot;            /* it, or through views a user of it, is evaluated at too many coordinates of one
                      kernel */
};

static void add_unit(Where *w, uint32_t unit)
{
    if (!w->count) {
        w->first = unit;
        w->count = 1;
    } else if (w->count == 1 && w->first != unit)
        w->count = 2;
}

/* Units of work to compute one element from buffers: a reduction counts as a buffer, since it would
 * become one. */
static uint32_t own_cost(const Fuser *f, Ref n)
{
    const Node *node = graph_node(f->g, n);
    OpClass cls = class_of(f, n);
    if (cls == CLS_VIEW)
        return node->op == OP_PAD || node->op == OP_CONCAT ? 2 : 0;
    if (cls == CLS_LEAF || node->number)
        return node->op == OP_INPUT && node->rank ? COST_STORE : 0;
    if (cls == CLS_GATHER)
        return COST_STORE;
    return cls == CLS_EW ? op_info[node->op].flags & OPF_COSTLY ? COST_COSTLY : 1 : COST_STORE;
}

static void costs(const Fuser *f, uint32_t *cost)
{
    for (Ref n = 0; n < f->n; n++) {
        const Node *node = graph_node(f->g, n);
        OpClass cls = class_of(f, n);
        uint64_t sum = own_cost(f, n);
        bool leaf = cls == CLS_REDUCE || cls == CLS_SCAN || cls == CLS_CONTRACT || cls == CLS_SORT || cls == CLS_SCATTER || cls == CLS_BODY;
        for (uint32_t i = 0; !leaf && i < node->n_in; i++)
            sum += has_buffer(f, node->in[i]) ? COST_STORE : cost[node->in[i]];
        cost[n] = sum > COST_MAX ? COST_MAX : (uint32_t)sum;
    }
}

static bool is_reduction(const Fuser *f, Ref n)
{
    OpClass cls = class_of(f, n);
    return cls == CLS_REDUCE || cls == CLS_SCAN;
}

/* A cast to a wider dtype of what could be stored in its place, or is: it is of fewer bytes, and readers cast as well as the store would. */
static bool is_widened(const Fuser *f, Ref n)
{
    const Node *node = graph_node(f->g, n);
    if (node->op != OP_CAST || dtype_bytes((DType)node->dtype) <= dtype_bytes((DType)graph_node(f->g, node->in[0])->dtype))
        return false;
    return has_buffer(f, node->in[0]) || !never_stored(f, node->in[0]);
}

bool never_stored(const Fuser *f, Ref n)
{
    OpClass cls = class_of(f, n);
    return cls == CLS_LEAF || cls == CLS_VIEW || graph_node(f->g, n)->number || f->contract_of[n] != REF_NONE ||
           f->flags[n] & (NODE_ATTENDED | NODE_PACKED) || is_widened(f, n);
}

/* Sums up the visits of a round. */
static void gather_visits(Fuser *f, Where *where)
{
    double *here = ARENA_ARRAY(f->arena, double, f->n); /* points in the unit of the last visit */
    for (uint32_t i = 0; i < f->visits.n; i++) {
        const Visit *v = &f->visits.at[i];
        Where *w = &where[v->node];
        bool again = w->times && w->last == v->unit;
        w->times = again ? w->times + 1 : 1;
        here[v->node] = again ? here[v->node] + v->points : v->points;
        w->computed += !again && w->computed < 2;
        w->last = v->unit;
        w->points += v->points;
        w->widest = v->points > w->widest ? v->points : w->widest;
        w->most = here[v->node] > w->most ? here[v->node] : w->most;
        if (op_class((Op)graph_node(f->g, v->node)->op) == CLS_REDUCE) /* wherever it was really computed */
            add_unit(w, v->unit);
    }
}

/* Several kernels compute it, and storing it once is cheaper than what all but one of them spend. */
bool refuses_several(Asked *a)
{
    const Fuser *f = a->f;
    const Where *w = &a->where[a->n];
    bool open = !(f->flags[a->n] & (NODE_WANT | NODE_NEVER)) && (!has_buffer(f, a->n) || w->computed > 1);
    if (!open || w->count < 2 || never_stored(f, a->n))
        return false;
    if (is_reduction(f, a->n))
        return true;
    double again = w->points - w->most, numel = (double)node_hint_numel(f->g, a->n), cost = a->cost[a->n];
    return cost > COST_STORE && again * (cost - COST_STORE) > numel * COST_STORE;
}

/* Evaluated at so many places of one kernel (a stencil of a stencil) that it should be stored. Only
 * the uppermost such nodes are: what is below them is looked at again in the next round. */
bool refuses_places(Asked *a)
{
    const Fuser *f = a->f;
    Where *w = &a->where[a->n];
    bool below = false, made = has_buffer(f, a->n);
    for (uint32_t i = f->user_at[a->n]; i < f->user_at[a->n + 1]; i++)
        below |= a->where[f->users[i]].hot;
    w->hot = below && !made;
    if (made || never_stored(f, a->n))
        return false;
    w->hot |= w->times > 1 && (is_reduction(f, a->n) || w->times * own_cost(f, a->n) >= HOT || w->times >= HOT / 2);
    return w->hot && !below;
}

/* Computed at many more points than it has elements: a costly value that is broadcast or gathered
 * from. */
bool refuses_spread(Asked *a)
{
    const Fuser *f = a->f;
    double numel = (double)node_hint_numel(f->g, a->n), widest = a->where[a->n].widest, cost = a->cost[a->n];
    if (has_buffer(f, a->n) || never_stored(f, a->n) || is_reduction(f, a->n) || cost <= COST_STORE + 3)
        return false;
    return widest > 2 * numel && (widest - numel) * (cost - COST_STORE) > COST_LAUNCH;
}

/* What was chosen to be stored, and is only read by the kernel that makes it, needs no buffer after
 * all: its other readers have been merged into that kernel. */
static bool forget_unread(Fuser *f)
{
    bool *read = ARENA_ARRAY(f->arena, bool, f->n), any = false;
    for (uint32_t u = 0; u < f->units.n; u++)
        for (uint32_t i = 0; i < f->units.at[u].loads.n; i++)
            read[f->units.at[u].loads.at[i]] = true;
    for (Ref n = 0; n < f->n; n++) {
        if (!(f->flags[n] & NODE_CHOSEN) || read[n])
            continue;
        f->flags[n] = (uint16_t)((f->flags[n] & ~(NODE_WANT | NODE_CHOSEN)) | NODE_NEVER);
        any = true;
    }
    return any;
}

bool want_more(Fuser *f)
{
    if (!f->fuse)
        return false;
    bool any;
    uint32_t *cost = ARENA_ARRAY(f->arena, uint32_t, f->n);
    Where *where = ARENA_ARRAY(f->arena, Where, f->n);
    uint32_t fresh = f->units.n; /* units that new buffers will have */
    any = forget_unread(f);
    costs(f, cost);
    gather_visits(f, where);
    for (Ref n = f->n; n-- > 0;) {
        if (!(f->flags[n] & NODE_LIVE))
            continue;
        bool made = has_buffer(f, n);
        Asked asked = {.f = f, .n = n, .where = where, .cost = cost};
        RefusalId why = refuse(GROUP_COST, &asked);
        if (why && !made) /* what made it one has been told already */
            refused_note(f, &f->decisions, why, &asked);
        if (why) {
            f->flags[n] |= NODE_WANT | NODE_CHOSEN;
            any = true;
        }
        Where self = where[n];
        if (made && f->unit_of[n] != NO_UNIT)
            self = (Where){.first = f->unit_of[n], .count = 1};
        else if (has_buffer(f, n))
            self = (Where){.first = fresh++, .count = 1};
        const Node *node = graph_node(f->g, n);
        for (uint32_t i = 0; i < node->n_in; i++) {
            if (self.count)
                add_unit(&where[node->in[i]], self.first);
            if (self.count > 1)
                where[node->in[i]].count = 2;
        }
    }
    return any;
}
