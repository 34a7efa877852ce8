/*
 * Drafting a kernel, by evaluating nodes: value_at(node, coordinates) gives the instruction that is its
 * value there. On the way jit/fuse/refusals.def is asked what the kernel computes, loads or stores; a draft may be given up for
 * another one, and what holds becomes a kernel in jit/fuse/lower.c.
 *
 * Elementwise nodes evaluate their inputs at the same coordinates; views evaluate theirs at
 * transformed ones, so views cost nothing but index arithmetic; what has a buffer becomes a load.
 * Results are remembered by (node, coordinates, predicate): one node may be evaluated at several
 * coordinates (a stencil), and then is computed for each.
 *
 * PAD and CONCAT read their operands only where they are read from: `pred` says where, and every
 * load below carries it (a masked load gives zeros, and what is computed from them is not
 * selected).
 *
 * A reduction is absorbed when the loops of this kernel are its loops: it is evaluated at
 * coordinates that depend on no r axis, as often as it has elements, and the r axes are its reduced
 * axes. Otherwise it gets a buffer of its own ("forced"), with a reason, and is loaded here.
 *
 * A node that has a buffer anyway, that no unit makes yet, and that is met here at coordinates that
 * visit each of its elements once is computed and stored here ("absorbed") rather than loaded.
 * Whether that closes a cycle between kernels is checked when the kernel is done (jit/fuse/cluster.c).
 */
#include "jit/fuse/fuse.h"

#include "ir/query.h"

static uint32_t memo_hash(const Memo *m) { return build_hash((const uint32_t[]){m->node, m->at, m->pred}, 3); }

static const Memo *memo_find(Build *b, const Memo *key)
{
    for (uint32_t probe = 0, i; table_next(&b->memo_table, memo_hash(key), &probe, &i);) {
        const Memo *m = &b->memo.at[i];
        if (m->node == key->node && m->at == key->at && m->pred == key->pred)
            return m;
    }
    return NULL;
}

static void memo_add(Build *b, Memo m)
{
    VEC_PUSH(b->f->scratch, b->memo, m);
    table_add(b->f->scratch, &b->memo_table, memo_hash(&m), b->memo.n - 1);
}

/* ---- small emitters ---- */

static VRef emit(Build *b, Op op, DType dtype, VRef x, VRef y, VRef z)
{
    return kernel_inst(
        b->k,
        (KInst){.kind = KI_OP, .op = (uint8_t)op, .dtype = (uint8_t)dtype, .a = x, .b = y, .c = z, .pred = VREF_NONE, .idx = IREF_NONE});
}

static VRef emit_and(Build *b, VRef p, VRef q)
{
    if (p == VREF_NONE || q == VREF_NONE || p == q)
        return p == VREF_NONE ? q : p;
    return emit(b, OP_AND, DT_BOOL, p, q, VREF_NONE);
}

/* One after the other, since C leaves the order of arguments open: compilers must agree on it. */
static VRef emit_compare(Build *b, Op op, IRef c, IRef bound)
{
    VRef right = kernel_index(b->k, bound), left = kernel_index(b->k, c);
    return emit(b, op, DT_BOOL, left, right, VREF_NONE);
}

/*
 * low <= c < high as a predicate; IREF_NONE: no such bound. VREF_NONE when it holds always. Of a quotient x / d: low * d <= x < high * d, which
 * takes no division and can cut an axis in pieces. (The quotient's axis has `high` elements at least, so high * d fits a shape.)
 */
static VRef emit_within(Build *b, IRef c, IRef low, IRef high)
{
    Kernel *k = b->k;
    int64_t d;
    while (k->idx.at[c].kind == IX_DIV && kidx_is_const(k, k->idx.at[c].b, &d) && d > 0) {
        IRef by = k->idx.at[c].b;
        c = k->idx.at[c].a;
        low = low == IREF_NONE ? low : kidx_mul(k, low, by);
        high = high == IREF_NONE ? high : kidx_mul(k, high, by);
    }
    IRef from = low == IREF_NONE ? c : kidx_add(k, c, kidx_mul(k, low, kidx_const(k, -1)));
    IRef room = high == IREF_NONE ? IREF_NONE : low == IREF_NONE ? high : kidx_add(k, high, kidx_mul(k, low, kidx_const(k, -1)));
    if (room != IREF_NONE && kidx_below(k, from, room))
        return VREF_NONE;
    VRef p = VREF_NONE;
    int64_t zero;
    if (low != IREF_NONE && !(kidx_is_const(k, low, &zero) && zero == 0))
        p = emit_compare(b, OP_GE, c, low);
    if (high != IREF_NONE)
        p = emit_and(b, p, emit_compare(b, OP_LT, c, high));
    return p;
}

/* Element offset of coordinates in the buffer of node n: its strides where it is a strided input,
 * else row-major. */
static IRef element(Build *b, Ref n, const Coords *c)
{
    const Node *node = graph_node(b->f->g, n);
    Kernel *k = b->k;
    IRef sum = kidx_const(k, 0), stride = kidx_const(k, 1);
    bool strided = node->op == OP_INPUT && node->attr.flag;
    for (uint32_t i = node->rank; i-- > 0;) {
        if (strided)
            stride = build_size(b, node->fact[node->rank + i]);
        sum = kidx_add(k, sum, kidx_mul(k, c->at[i], stride));
        if (!strided && i)
            stride = kidx_mul(k, stride, build_size(b, node->dim[i]));
    }
    return sum;
}

/* In the loops of a reduction a load needs no test that they are not empty. */
static VRef in_loops(const Build *b, IRef idx, VRef pred)
{
    if (b->k->idx_axes.at[idx] & b->r_mask)
        for (uint32_t i = b->not_empty.n; i-- > 0;)
            if (b->not_empty.at[i].live == pred)
                pred = b->not_empty.at[i].pred;
    return pred;
}

/* Is that element read here, too, and one of the node wherever it is? Then it may be read where nobody asks for it. */
static bool read_anyway(Build *b, Ref n, const Coords *c, uint32_t arg, IRef idx)
{
    const Node *node = graph_node(b->f->g, n);
    bool read = false;
    for (VRef v = 0; v < b->k->inst.n && !read; v++)
        read = b->k->inst.at[v].kind == KI_LOAD && b->k->inst.at[v].arg == arg && b->k->inst.at[v].idx == idx;
    for (uint32_t i = 0; i < node->rank && read; i++)
        read = kidx_below(b->k, c->at[i], build_size(b, node->dim[i]));
    return read;
}

/* What is read under several predicates is one load for those behind the first, where that is possible: a gradient of maxima compares an element
 * with each window that it may be in. */
static VRef load(Build *b, Ref n, Tuple at, VRef pred)
{
    Fuser *f = b->f;
    uint32_t i = 0;
    while (i < b->loads.n && b->loads.at[i] != n)
        i++;
    if (i == b->loads.n)
        VEC_PUSH(f->scratch, b->loads, n);
    Coords c = b->tuples.at[at];
    IRef idx = element(b, n, &c);
    uint32_t arg = build_buffer_arg(b, buffer_for(f, n), false);
    return kernel_inst(b->k, (KInst){.kind = KI_LOAD,
                                     .dtype = graph_node(f->g, n)->dtype,
                                     .arg = arg,
                                     .a = VREF_NONE,
                                     .b = VREF_NONE,
                                     .c = VREF_NONE,
                                     .pred = pred == VREF_NONE || read_anyway(b, n, &c, arg, idx) ? VREF_NONE : in_loops(b, idx, pred),
                                     .idx = idx});
}

void build_store(Build *b, uint32_t buffer, Ref shape, Tuple at, uint32_t axis, Dim offset, VRef v)
{
    Coords c = b->tuples.at[at];
    const Node *node = graph_node(b->f->g, shape);
    if (offset != DIM_NONE) {
        IRef by = node->n_in > MANY_PIECES ? build_size_arg(b, offset) : build_size(b, offset);
        c.at[axis] = kidx_add(b->k, c.at[axis], by);
    }
    IRef sum = kidx_const(b->k, 0), stride = kidx_const(b->k, 1);
    for (uint32_t i = node->rank; i-- > 0;) {
        sum = kidx_add(b->k, sum, kidx_mul(b->k, c.at[i], stride));
        if (i)
            stride = kidx_mul(b->k, stride, build_size(b, node->dim[i]));
    }
    uint32_t arg = build_buffer_arg(b, buffer, true);
    kernel_inst(b->k, (KInst){.kind = KI_STORE,
                              .dtype = b->k->inst.at[v].dtype,
                              .arg = arg,
                              .a = v,
                              .b = VREF_NONE,
                              .c = VREF_NONE,
                              .pred = VREF_NONE,
                              .idx = sum});
}

/* ---- what is absorbed ---- */

/* Does the group refuse node n, read at `at`, a place in this kernel? Then it has a buffer from now on. */
static bool refused(Build *b, RefusalId group, Ref n, Tuple at, VRef pred)
{
    Asked asked = {.f = b->f, .b = b, .n = n, .at = at, .pred = pred};
    RefusalId why = refuse(group, &asked);
    if (!why)
        return false;
    refused_note(b->f, &b->f->reasons, why, &asked);
    force(b->f, b, n);
    return true;
}

/* Is node n, which has a buffer, made by this kernel? */
static bool is_absorbed(Build *b, Ref n, Tuple at, VRef pred)
{
    Asked asked = {.f = b->f, .b = b, .n = n, .at = at, .pred = pred};
    if (!b->f->fuse)
        return false;
    RefusalId why = refuse(GROUP_MADE, &asked);
    if (why)
        refused_note(b->f, &b->f->reasons, why, &asked);
    return !why;
}

/* For the choice of what to store: n is computed here. */
static void note_visit(Build *b, Ref n, Tuple at)
{
    if (b->attention) /* it computes scores and what they are masked by as often as there are scores, rather than store them */
        return;
    uint32_t axes = tuple_axes(b, at);
    double points = axes & b->r_mask ? b->x_points * b->r_points : axes ? b->x_points : 1;
    VEC_PUSH(b->f->arena, b->f->visits, (Visit){.node = n, .unit = b->unit, .points = points});
}

/* ---- evaluation by class ---- */

static VRef value_leaf(Build *b, Ref n, Tuple at, VRef pred)
{
    const Node *node = graph_node(b->f->g, n);
    uint64_t bits;
    if (node->op == OP_INPUT)
        return load(b, n, at, pred);
    if (node->op == OP_IOTA)
        return kernel_index(b->k, b->tuples.at[at].at[0]);
    if (graph_is_const(b->f->g, n, &bits))
        return kernel_inst(b->k, KINST(.kind = KI_CONST, .dtype = node->dtype, .imm = bits));
    return kernel_inst(b->k, KINST(.kind = KI_SCALAR, .dtype = node->dtype, .arg = build_scalar_arg(b, n)));
}

/* Buffers first: so the number of arguments is known while a deep chain is still being walked down.
 */
static VRef value_elementwise(Build *b, Ref n, Tuple at, VRef pred)
{
    const Node *node = graph_node(b->f->g, n);
    VRef in[3] = {VREF_NONE, VREF_NONE, VREF_NONE};
    const Attention *divided = attention_share(b->f, n);
    if (divided)
        return value_at(b, divided->mean, at, pred);
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < node->n_in; i++) {
            bool leaf = op_class((Op)graph_node(b->f->g, node->in[i])->op) == CLS_LEAF;
            if (leaf == (pass == 0))
                in[i] = value_at(b, node->in[i], at, pred);
        }
    }
    return emit(b, (Op)node->op, (DType)node->dtype, in[0], in[1], in[2]);
}

static VRef value_pad(Build *b, Ref n, Tuple at, VRef pred)
{
    const Node *node = graph_node(b->f->g, n);
    const Node *x = graph_node(b->f->g, node->in[0]);
    Coords c = b->tuples.at[at];
    VRef inside = VREF_NONE;
    uint32_t fact = 0;
    for (uint32_t i = 0; i < c.n; i++) {
        if (!(node->attr.mask >> i & 1))
            continue;
        IRef low = build_size(b, node->fact[fact]);
        fact += 2;
        inside = emit_and(b, inside, emit_within(b, c.at[i], low, kidx_add(b->k, low, build_size(b, x->dim[i]))));
        c.at[i] = kidx_add(b->k, c.at[i], kidx_mul(b->k, low, kidx_const(b->k, -1)));
    }
    VRef v = value_at(b, node->in[0], build_tuple(b, &c), emit_and(b, pred, inside));
    if (inside == VREF_NONE)
        return v;
    VRef fill = value_at(b, node->in[1], build_tuple(b, &(Coords){.n = 0}), pred);
    return emit(b, OP_WHERE, (DType)node->dtype, inside, v, fill);
}

static VRef value_concat(Build *b, Ref n, Tuple at, VRef pred)
{
    const Node *node = graph_node(b->f->g, n);
    uint32_t axis = node->attr.axis;
    IRef c = b->tuples.at[at].at[axis], start[MAX_CONCAT], end[MAX_CONCAT], offset = kidx_const(b->k, 0);
    Ref part[MAX_CONCAT];
    uint32_t count = 0;
    for (uint32_t i = 0; i < node->n_in; i++) {
        int64_t size;
        IRef length = build_size(b, graph_node(b->f->g, node->in[i])->dim[axis]);
        if (kidx_is_const(b->k, length, &size) && size == 0)
            continue;
        part[count] = node->in[i];
        start[count] = offset;
        offset = kidx_add(b->k, offset, length);
        end[count++] = offset;
    }
    if (!count)
        return kernel_inst(b->k, KINST(.kind = KI_CONST, .dtype = node->dtype));
    VRef v = VREF_NONE;
    for (uint32_t i = count; i-- > 0;) {
        VRef before = i + 1 < count ? emit_within(b, c, IREF_NONE, end[i]) : VREF_NONE;
        VRef after = i ? emit_within(b, c, start[i], IREF_NONE) : VREF_NONE;
        Coords inner = b->tuples.at[at];
        inner.at[axis] = kidx_add(b->k, c, kidx_mul(b->k, start[i], kidx_const(b->k, -1)));
        VRef x = value_at(b, part[i], build_tuple(b, &inner), emit_and(b, pred, emit_and(b, after, before)));
        v = v == VREF_NONE || before == VREF_NONE ? x : emit(b, OP_WHERE, (DType)node->dtype, before, x, v);
    }
    return v;
}

static VRef value_view(Build *b, Ref n, Tuple at, VRef pred)
{
    const Node *node = graph_node(b->f->g, n);
    if (node->op == OP_PAD)
        return value_pad(b, n, at, pred);
    if (node->op == OP_CONCAT)
        return value_concat(b, n, at, pred);
    Coords out = b->tuples.at[at], in = view_input(b, n, &out);
    Tuple inner = build_tuple(b, &in);
    (void)refused(b, GROUP_VIEWED, node->in[0], inner, pred);
    return value_at(b, node->in[0], inner, pred);
}

/* Notes a shape that is evaluated once at each of its points: another root of that shape can be
 * stored there too. */
static void add_frame(Build *b, Ref n, Tuple at)
{
    const Node *node = graph_node(b->f->g, n);
    Frame frame = {.rank = node->rank, .at = at};
    if (!visits_all(b, n, at))
        return;
    memcpy(frame.dim, node->dim, sizeof frame.dim);
    VEC_PUSH(b->f->scratch, b->frames, frame);
}

/* A reduction: its operand at (x, r). Over axes of size 1 only it is its operand. */
static VRef value_reduce(Build *b, Ref n, Tuple at, VRef pred)
{
    Fuser *f = b->f;
    const Node *node = graph_node(f->g, n), *input = graph_node(f->g, node->in[0]);
    if (b->attention && b->contraction == n)
        return value_chain(b, at, pred);
    bool trivial = reduce_is_trivial(f, n);
    if (!trivial && refused(b, GROUP_FOLD, n, at, pred))
        return load(b, n, at, pred);
    note_visit(b, n, at);
    Coords out = b->tuples.at[at], in = {.n = input->rank};
    uint32_t from = 0, r = b->n_x;
    for (uint32_t i = 0; i < input->rank; i++) {
        if (!(node->attr.mask >> i & 1))
            in.at[i] = out.at[from++];
        else if (size_is_one(f, input->dim[i]))
            in.at[i] = kidx_const(b->k, 0);
        else
            in.at[i] = kidx_axis(b->k, r++);
    }
    Tuple inner = build_tuple(b, &in);
    bool index = node->op == OP_ARGMAX || node->op == OP_ARGMIN;
    if (trivial && index)
        return kernel_inst(b->k, KINST(.kind = KI_CONST, .dtype = DT_I64));
    VRef v = value_at(b, node->in[0], inner, pred);
    if (trivial)
        return v;
    add_frame(b, node->in[0], inner);
    KInst inst = KINST(.kind = KI_FOLD, .op = (uint8_t)fold_of((Op)node->op), .dtype = node->dtype);
    inst.a = v;
    return kernel_inst(b->k, inst);
}

static VRef value_scan(Build *b, Ref n, Tuple at, VRef pred)
{
    const Node *node = graph_node(b->f->g, n);
    bool trivial = size_is_one(b->f, node->dim[node->attr.axis]);
    if (!trivial && refused(b, GROUP_FOLD, n, at, pred))
        return load(b, n, at, pred);
    note_visit(b, n, at);
    VRef v = value_at(b, node->in[0], at, pred);
    if (trivial)
        return v;
    KInst inst = KINST(.kind = KI_FOLD, .op = (uint8_t)fold_of((Op)node->op), .mode = RUNNING, .dtype = node->dtype);
    inst.a = v;
    return kernel_inst(b->k, inst);
}

/*
 * An index may be the same along a reduction's loops, and then is checked and used outside them: also
 * when they are empty, where nothing may be checked or read. So such a check, and what is read outside
 * the loops (load() above), carries the predicate that they are not. Sizes that are known, or promised
 * not to be 0, need none.
 * Where an x axis is empty no task runs, so nothing is outside of those.
 */
static VRef while_not_empty(Build *b, uint32_t axes, VRef pred)
{
    VRef live = pred;
    int64_t least, most;
    for (uint32_t a = b->n_x; a < b->n_x + b->n_r; a++) {
        IRef size = b->k->axes.at[a].size;
        dim_bounds(b->f->g, b->dim[a], &least, &most);
        if (!(axes >> a & 1) || least > 0 || kidx_is_const(b->k, size, &least))
            continue;
        VRef zero = kernel_index(b->k, kidx_const(b->k, 0));
        VRef some = emit(b, OP_GT, DT_BOOL, kernel_index(b->k, size), zero, VREF_NONE);
        live = emit_and(b, live, some);
    }
    if (live != pred)
        VEC_PUSH(b->f->scratch, b->not_empty, (NotEmpty){.live = live, .pred = pred});
    return live;
}

VRef build_bound(Build *b, Ref n, VRef index, Dim size, Tuple at, VRef pred, VRef *live)
{
    if (b->k->inst.at[index].dtype != DT_I64)
        index = emit(b, OP_CAST, DT_I64, index, VREF_NONE, VREF_NONE);
    *live = while_not_empty(b, tuple_axes(b, at) & ~b->k->inst_axes.at[index], pred);
    KInst bound = KINST(.kind = KI_BOUND, .dtype = DT_I64, .imm = build_fault_id(b->f, n));
    bound.a = index;
    bound.pred = *live;
    bound.arg = build_fault_arg(b);
    bound.idx = build_size(b, size);
    return kernel_inst(b->k, bound);
}

static VRef value_gather(Build *b, Ref n, Tuple at, VRef pred)
{
    const Node *node = graph_node(b->f->g, n), *x = graph_node(b->f->g, node->in[0]);
    VRef live, index = value_at(b, node->in[1], at, pred);
    VRef bound = build_bound(b, n, index, x->dim[node->attr.axis], at, pred, &live);
    Coords c = b->tuples.at[at];
    c.at[node->attr.axis] = kidx_value(b->k, bound);
    return value_at(b, node->in[0], build_tuple(b, &c), live);
}

static VRef widened(Build *b, VRef v, DType to) { return b->k->inst.at[v].dtype == to ? v : emit(b, OP_CAST, to, v, VREF_NONE, VREF_NONE); }

/* As a contraction does: products and their sum in the accumulator's dtype. */
static VRef sum_of_products(Build *b, VRef x, VRef y, DType dtype)
{
    DType acc = dtype_accumulator(dtype);
    VRef left = widened(b, x, acc), right = widened(b, y, acc);
    KInst sum = KINST(.kind = KI_FOLD, .op = FOLD_SUM, .dtype = (uint8_t)acc);
    sum.a = emit(b, OP_MUL, acc, left, right, VREF_NONE);
    return widened(b, kernel_inst(b->k, sum), dtype);
}

static VRef value_matmul(Build *b, Ref n, Tuple at, VRef pred)
{
    Fuser *f = b->f;
    const Node *node = graph_node(f->g, n);
    if (b->attention && (b->attention->query == n || (b->attention->chain && f->flags[n] & NODE_CHAINED)))
        return value_query(b, n, at, pred);
    if (refused(b, GROUP_CONTRACTION, n, at, pred))
        return load(b, n, at, pred);
    uint32_t rank = node->rank;
    Coords a = b->tuples.at[at], c = a;
    if (b->attention)
        return b->attention->chain ? value_chain(b, at, pred) : value_attention(b, at, pred);
    IRef k = kidx_axis(b->k, b->n_x);
    a.at[rank - 1] = k;
    c.at[rank - 2] = k;
    KInst inst = KINST(.kind = KI_FOLD, .op = FOLD_DOT, .dtype = node->dtype);
    inst.a = value_at(b, node->in[0], build_tuple(b, &a), pred);
    inst.b = value_at(b, node->in[1], build_tuple(b, &c), pred);
    b->contracts = true;
    if (b->k->form == FORM_CONTRACT)
        return kernel_inst(b->k, inst);
    return sum_of_products(b, inst.a, inst.b, (DType)node->dtype);
}

bool is_empty(Fuser *f, const Node *node)
{
    int64_t value;
    for (uint32_t i = 0; i < node->rank; i++)
        if (dim_hint(f->g, node->dim[i]) == 0 && size_const(f, node->dim[i], &value) && value == 0)
            return true;
    return false;
}

VRef value_compute(Build *b, Ref n, Tuple at, VRef pred)
{
    const Node *self = graph_node(b->f->g, n);
    if (is_empty(b->f, self))
        return kernel_inst(b->k, KINST(.kind = KI_CONST, .dtype = self->dtype));
    const Memo *found = memo_find(b, &(Memo){.node = n, .at = at, .pred = pred});
    if (found)
        return found->value;
    if (self->number) /* an argument, wherever it is read and whatever has a buffer */
        return value_leaf(b, number_source(b->f->g, n), at, pred);
    VRef v = VREF_NONE;
    OpClass cls = class_of(b->f, n);
    b->visits++;
    b->f->plan->looks++;
    if (cls == CLS_EW || cls == CLS_VIEW || cls == CLS_GATHER)
        note_visit(b, n, at);
    switch (cls) {
    case CLS_LEAF: v = value_leaf(b, n, at, pred); break;
    case CLS_EW: v = value_elementwise(b, n, at, pred); break;
    case CLS_VIEW: v = value_view(b, n, at, pred); break;
    case CLS_REDUCE: v = value_reduce(b, n, at, pred); break;
    case CLS_SCAN: v = value_scan(b, n, at, pred); break;
    case CLS_GATHER: v = value_gather(b, n, at, pred); break;
    case CLS_CONTRACT: v = value_matmul(b, n, at, pred); break;
    case CLS_SCATTER:
    case CLS_SORT:
    case CLS_BODY:
    case CLS_RESULT: v = load(b, n, at, pred); break; /* want_structural gave them buffers */
    }
    if (cls != CLS_LEAF && cls != CLS_VIEW && cls != CLS_GATHER)
        note_node(b, n, v);
    memo_add(b, (Memo){.node = n, .at = at, .pred = pred, .value = v});
    return v;
}

VRef value_at(Build *b, Ref n, Tuple at, VRef pred)
{
    Fuser *f = b->f;
    OpClass cls = class_of(f, n);
    const Memo *found = memo_find(b, &(Memo){.node = n, .at = at, .pred = pred});
    if (found)
        return found->value;
    if (cls == CLS_LEAF || graph_node(f->g, n)->number || is_empty(f, graph_node(f->g, n)))
        return value_compute(b, n, at, pred);
    if (!has_buffer(f, n)) {
        if (!refused(b, GROUP_ROOM, n, at, pred))
            return value_compute(b, n, at, pred);
        VEC_PUSH(f->scratch, b->left, n);
    }
    VRef v;
    if (is_absorbed(b, n, at, pred)) {
        v = value_compute(b, n, at, pred);
        if (!(f->flags[n] & NODE_ROOT)) {
            f->flags[n] |= NODE_ROOT;
            VEC_PUSH(f->scratch, b->outputs, n);
            build_store(b, buffer_for(f, n), n, at, 0, DIM_NONE, v);
        }
        return v;
    }
    v = load(b, n, at, pred);
    memo_add(b, (Memo){.node = n, .at = at, .pred = pred, .value = v});
    return v;
}
