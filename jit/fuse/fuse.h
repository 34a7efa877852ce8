/*
 * Fusion's own structures, shared by jit/fuse/ and jit/schedule.c. The essay is at the top of
 * jit/fuse/cluster.c.
 */
#ifndef JIT_FUSE_FUSE_H
#define JIT_FUSE_FUSE_H

#include "ir/base/log.h"
#include "jit/fuse/refuse.h"
#include "jit/options.h"
#include "jit/target.h"
#include "jit/plan.h"

enum {
    MAX_SPACE = 2 * MAX_RANK, /* axes of a kernel */
    MAX_BUFFERS = 60,         /* buffers of a kernel, about */
    MAX_VISITS = 700,         /* nodes evaluated in a kernel, about */
    MAX_PLACES = 6,           /* coordinates of one node in a kernel that has become too large */
    MAX_INDEX = 256,          /* parts of a coordinate that a reshape makes; a longer one is not followed */
    MAX_CONCAT = 8,           /* operands a concat may have and still be read through selects */
    MANY_PIECES = 32,         /* with more its kernels take their places as arguments: equal pieces share one */
    NO_UNIT = 0xffffffff
};

/* Per node. */
enum {
    NODE_LIVE = 1,
    NODE_WANT = 2,        /* gets a buffer: decided before the round */
    NODE_FORCED = 4,      /* gets a buffer: some kernel of this round could not absorb it */
    NODE_PENDING = 8,     /* no unit makes it yet */
    NODE_REFUSED = 16,    /* must not be computed in the unit being formed (it would close a cycle) */
    NODE_TARGET = 32,     /* made by the unit being formed */
    NODE_ROOT = 64,       /* being stored by the unit being formed */
    NODE_CHOSEN = 128,    /* wanted because storing it looked cheaper, not because it must be */
    NODE_NEVER = 256,     /* was chosen, and nobody read it */
    NODE_OUTPUT = 512,    /* of the graph, but for a reshape */
    NODE_READ = 1024,     /* loaded by the unit being formed; only while roots are merged */
    NODE_SORTED = 2048,   /* a gather by its own source's argsort, which nothing else reads: sorted elements in one step */
    NODE_ATTENDED = 4096, /* from an attention's scores to its weights: computed in its kernel alone, or in those of its gradient */
    NODE_BUCKET = 8192,   /* a concat, one operand behind the other, that only collectives read */
    NODE_CHAINED = 16384, /* a product of an attention with its gradient: computed in several kernels */
    NODE_PACKED = 32768   /* of an operand of a matrix product: computed where that is packed */
};

/* The loops of a kernel whose root is a node: parallel axes, then reduction axes. */
struct Space {
    uint32_t n_x, n_r;
    Dim dim[MAX_SPACE];
    int8_t axis_of[MAX_RANK]; /* axis of the root -> axis of the kernel; -1: its size is 1 */
    bool known;
};

typedef VEC(PlanArg) PlanArgs;

/* What has been decided of a kernel: which nodes it computes at which coordinates of its loops, what it loads and what it stores. */
typedef struct Draft {
    Ref root;
    Kernel *k;     /* with all that was looked at on the way, needed or not; until the next round */
    PlanArgs args; /* beside k->args */
    uint32_t n_x, n_r;
    uint32_t step; /* of its unit, which becomes this kernel */
} Draft;

/* What is launched together: one kernel as a rule; a scatter, a sort or a long concat may take
 * several. */
struct Unit {
    Ref root;
    VEC(Ref) outputs; /* nodes whose buffers it writes */
    VEC(Ref) loads;   /* nodes whose buffers it reads (inputs included) */
    VEC(PlanStep) steps;
    VEC(Draft) drafts; /* of those that are kernels, until they are lowered */
    uint32_t visits;   /* nodes evaluated: how big it is */
};

/* One node evaluated in one unit: what the choice between storing and computing again looks at. */
typedef struct Visit {
    Ref node;
    uint32_t unit;
    double points; /* how often it is computed, at the hints */
} Visit;

typedef struct SizeFact { /* what spec_dim said about a Dim */
    uint8_t known;        /* 0 not asked, 1 constant, 2 varies */
    int64_t value;
} SizeFact;

typedef VEC(Ref) Cut;

/* Two products and what is between them, as one kernel (attention.c). */
struct Attention {
    Ref product;       /* of weights and values */
    Ref scores, query; /* what the exponentials are of, and the product that they are made of */
    Ref weights;       /* the first operand of `product`, but for views */
    Ref share,
        mean; /* `share` is divided by the weights' sum, which here it is already: its value is that of its operand `mean`; or REF_NONE */
    Dim queries, also[2]; /* sizes that guards say to be the same: in its kernel they are the first */
    bool zero, parts;     /* ATTEND_ZERO, ATTEND_PARTS */
    uint8_t chain;        /* of a gradient (chain.c): ATTEND_SUM, ATTEND_MOST; else 0. `product` is the end, `scores` what it reads */
    bool turned;          /* which is its second operand */
};

typedef struct Unattended {
    Ref product;
    RefusalId why;
    bool late; /* only its draft told */
} Unattended;

struct Fuser {
    Graph *g;
    const JitOptions *options;
    Arena *arena;
    Arena *drafts;  /* emptied when a round begins */
    Arena *scratch; /* emptied when the building of a kernel begins */
    Plan *plan;
    bool fuse;
    uint32_t n; /* nodes */
    uint32_t round;
    uint16_t *flags;
    uint32_t *user_at, *users; /* users of node i: users[user_at[i] .. user_at[i + 1]) */
    bool anew;                 /* something turned out not to be what it was planned as: from the start again */
    VEC(Attention) attentions;
    VEC(Unattended) unattended; /* what looked like some, and has kernels like other products */
    Ref *contract_of;           /* the matmul whose contraction kernel computes this node as its epilogue;
                            REF_NONE */
    uint32_t *unit_of;          /* unit that makes a node */
    uint32_t *buffer_of;        /* buffer of a node; for an INPUT: the input's own */
    uint32_t *copy_of;          /* of a strided INPUT that is an output: the buffer of its contiguous copy */
    uint32_t *fault_of;
    Ref lowest_shared; /* the first node of all units that make several; REF_NONE: none */
    uint32_t *stamp, stamp_now;
    uint32_t *reached, reached_now; /* what the unit being formed needs, as far as searched */
    uint32_t *times;                /* 0, but for a while: how often a kernel evaluates a node */
    Space *space;                   /* chosen this round */
    VEC(SizeFact) sizes;
    VEC(Unit) units;
    VEC(Unit) previous; /* of the round before */
    uint32_t *previous_of;
    VEC(Ref) pending;
    uint32_t formed; /* of pending, about */
    VEC(Visit) visits;
    uint8_t *named; /* names.c: of the last op of a function that has a name, 1 + which */
    uint32_t n_named;
    Ref *part_of;          /* ... and of its others, that one; REF_NONE */
    Str *told;             /* what the log says of fusion, too; NULL: nobody asked */
    RefusedList reasons;   /* of this round */
    RefusedList decisions; /* what is stored, and why: of all rounds */
};

/* Is anybody told why things fuse or not? */
static inline bool fuser_tells(const Fuser *f) { return f->told || log_on(LOG_FUSION); }

/* ---- access.c: the scaffold of a kernel; draft.c: evaluating nodes into it ---- */

typedef uint32_t Tuple; /* interned coordinates, of one Build */

typedef struct Coords {
    uint32_t n;
    IRef at[MAX_RANK];
} Coords;

typedef struct Memo {
    Ref node;
    Tuple at;
    VRef pred, value;
} Memo;

typedef struct Frame { /* a shape that was evaluated at coordinates that visit each of its points
                          once, in the r loops */
    uint32_t rank;
    Dim dim[MAX_RANK];
    Tuple at;
} Frame;

typedef struct NotEmpty { /* a predicate that adds to another that the loops of a reduction are not
                             empty; VREF_NONE: to none */
    VRef live, pred;
} NotEmpty;

struct Build {
    Fuser *f;
    Kernel *k;
    PlanArgs args; /* beside k->args */
    VEC(Coords) tuples;
    VEC(Memo) memo;
    HashTable tuple_table, memo_table;
    VEC(Ref) loads, outputs, forced;
    Cut waiting;       /* needed by the loads, but too old to matter yet (cycle.c) */
    uint32_t searched; /* so many of the loads */
    VEC(Frame) frames;
    VEC(NotEmpty) not_empty;
    uint32_t n_x, n_r, unit;
    Dim dim[MAX_SPACE]; /* sizes of the axes */
    uint32_t x_mask, r_mask;
    double x_points, r_points;
    uint32_t buffers, visits, budget;
    Ref contraction;            /* the MATMUL of a contraction kernel; REF_NONE */
    const Attention *attention; /* of which that is the product; NULL: of none */
    RefusalId unattended;       /* why not, after all */
    Ref root;                   /* for messages */
    bool absorb;                /* may store nodes other than its roots */
    bool contracts;             /* the contraction was met */
    VEC(Ref) left;              /* stored because its budget ran out */
};

void build_init(Build *b, Fuser *f, const Dim *dims, uint32_t n_x, uint32_t n_r, Ref root);
Tuple build_tuple(Build *b, const Coords *coords);
uint32_t tuple_axes(const Build *b, Tuple at);     /* the axes that coordinates depend on */
bool coords_long(const Build *b, const Coords *c); /* is one longer than MAX_INDEX? */
Draft build_draft(const Build *b);                 /* once nothing is left to decide */
IRef build_size(Build *b, Dim d);
IRef build_size_arg(Build *b, Dim d); /* an argument even where it is known */
uint32_t build_buffer_arg(Build *b, uint32_t buffer, bool written);
uint32_t build_number_arg(Build *b, BindKind kind, uint32_t scalar, DType dtype);
uint32_t build_scalar_arg(Build *b, Ref n); /* of a number: a scalar, or what the host makes of scalars */
uint32_t build_fault_arg(Build *b);
uint32_t build_fault_id(Fuser *f, Ref n);
uint32_t build_hash(const uint32_t *words, uint32_t n);
/* Coordinates of the input of a view (not PAD, CONCAT) for those of its output, and the way back
 * (RESHAPE and PERMUTE). */
Coords view_input(Build *b, Ref n, const Coords *out);
Coords view_output(Build *b, Ref n, const Coords *in);

/* The node's value at these coordinates, loaded or computed as the plan has it. */
VRef value_at(Build *b, Ref n, Tuple at, VRef pred);
/* The same, computed in this kernel even where the node has a buffer. */
VRef value_compute(Build *b, Ref n, Tuple at, VRef pred);
/* Is the node known to have no elements? Then nothing is read of it, not even outside the loops
 * that never run. */
bool is_empty(Fuser *f, const Node *node);
/* Stores value v of node n at coordinates `at` of a contiguous buffer of the shape of `shape`,
 * whose axis `axis` is moved on by `offset` (DIM_NONE: not). */
void build_store(Build *b, uint32_t buffer, Ref shape, Tuple at, uint32_t axis, Dim offset, VRef v);
/* An index into an axis of `size`, checked; *live gets the predicate under which it and what it
 * reads may be evaluated. */
VRef build_bound(Build *b, Ref n, VRef index, Dim size, Tuple at, VRef pred, VRef *live);

/* ---- space.c ---- */
const Space *space_of(Fuser *f, Ref root);
bool sizes_equal(Fuser *f, Dim a, Dim b);
bool size_is_one(Fuser *f, Dim d);
bool size_at_most(const Fuser *f, Dim d, int64_t most, const char *who);
bool size_const(Fuser *f, Dim d, int64_t *value);
bool size_is_fixed(const Fuser *f, Dim d); /* has it been compiled in? Asks nothing */
/* Does the reduction take all its axes' sizes to be 1, so that it only passes its operand on? */
bool reduce_is_trivial(Fuser *f, Ref n);

/* ---- cycle.c ---- */
/* What the kernel makes and needs from outside, too: such a node, or REF_NONE. *all gets all of
 * them, but for those behind others. */
Ref cycle_of(Fuser *f, const Build *b, Cut *all);
/* Would the kernel, with n in it, need what it makes? `before` is the unit that made n in the round
 * before. Between two changes of f->reached_now the kernel's loads only grow. */
bool closes_cycle(Build *b, Ref n, const Unit *before);

/* ---- cut.c ---- */
/* The nodes to store so that the kernel that was tried evaluates about `limit` nodes at most.
 * false: it would anyway. */
bool narrow_cut(Build *b, uint32_t limit, Cut *cut);
/* Of the visits from `visits` on, the uppermost node that was evaluated at many places: storing it makes the kernel small at once. */
Ref many_places(Fuser *f, uint32_t visits);

/* ---- roots.c ---- */
Tuple space_tuple(Build *b, const Space *space, uint32_t rank); /* coordinates of the root of these loops, in them */
void add_root(Build *b, Ref n, Tuple at);
void merge_roots(Build *b, const Space *own); /* adds to the kernel the other roots that have its loops and read what it reads */
/* A pure elementwise root may be better placed in the kernel of a row of the same shape: that root, or `n` itself. */
Ref better_root(Fuser *f, Ref n);
bool has_own_unit(const Fuser *f, Ref n); /* is it made by something else than a kernel around a root? */
/* Coordinates at which root n can be evaluated in the loops `own` of b; false when it has other loops. */
bool same_loops(Build *b, const Space *own, Ref n, Tuple *at);

/* ---- product.c ---- */
/* Begins the draft of the kernel of root n, of the product that it is or ends: *at is where its loops have n. false: it can't be that. */
bool product_begin(Build *b, Fuser *f, Ref n, Tuple *at);
bool sums_products(const Fuser *f, const Node *node); /* is this product a reduction of products? */
/* Do neighbours along the last axis of n, or, `back` 1, the one before, lie side by side in memory, as the graph has it? */
bool lies_along(const Graph *g, Ref n, uint32_t back);

/* ---- order.c ---- */
/* Writes the plan's steps. Fails (ST_INTERNAL) where what was decided has no order, or something that is read no maker. */
Status order_units(Fuser *f);

/* ---- cost.c: what gets a buffer ---- */
void want_structural(Fuser *f);
bool want_more(Fuser *f);                 /* after a round; false: nothing new */
bool never_stored(const Fuser *f, Ref n); /* leaves, views, and what belongs to a contraction */

/* ---- rounding.c: which values of f16 and bf16 may stay unrounded ---- */
void note_node(Build *b, Ref n, VRef v);  /* v is the value of n, which is no view */
void note_same(KInst *inst, uint32_t of); /* two instructions, one of node `of`, have become this one */
void choose_unrounded(Fuser *f);          /* of the finished plan */

/* ---- attention.c ---- */
void find_attentions(Fuser *f); /* what is in f->unattended is none */
void unattend(Fuser *f, Ref product, RefusalId why, bool late);
const Attention *attention_of(const Fuser *f, Ref n);    /* with this product; NULL: none */
const Attention *attention_share(const Fuser *f, Ref n); /* with this share */
VRef value_attention(Build *b, Tuple at, VRef pred);     /* its product */
VRef value_query(Build *b, Ref query, Tuple at, VRef pred);
/* Does the group refuse what was made of the attention at hand? */
void ask_values(Build *b, RefusalId group, Ref n, Tuple at, VRef left, VRef right);
bool attention_side(Fuser *f, Dim d);        /* elements of a query, key or value that there is a kernel for? */
Ref attention_scores(const Fuser *f, Ref n); /* n = exp(scores - the greatest): those; else REF_NONE */
VRef cast_to(Build *b, VRef v, DType to);

/* ---- chain.c ---- */
void find_chains(Fuser *f);                                  /* after find_attentions, which calls it */
bool read_often(const Fuser *f, Ref product, uint32_t side); /* does the kernel of this product read the operand many times? */
Ref factor_of(Fuser *f, Ref product, uint32_t side);         /* what that kernel reads of an operand */
/* What tensor cores multiply of a factor, in the factor's dtype; else the factor. And v times what its rows have been multiplied by since. */
VRef chain_factor_at(Build *b, Ref factor, Coords at, VRef pred);
VRef chain_rows(Build *b, VRef v, Ref factor, Coords at, VRef pred);
uint32_t attention_loops(const Fuser *f, const Attention *a, Dim *dim); /* sizes of its loops; how many are parallel: two more fold */
IRef product_axis(const Build *b, uint32_t i);                          /* the loop that goes along axis i of the product of b */
VRef value_chain(Build *b, Tuple at, VRef pred);                        /* the end of a.chain */

/* ---- lower.c ---- */
/* What has been decided of a kernel, as a kernel: step's, whose kind and node are there. Only this writes kernels, and it cannot fail. */
void lower(Fuser *f, Draft *d, PlanStep *step);
Dim step_bytes(Fuser *f, const PlanStep *step);
Dim size_in_graph(Fuser *f, const Kernel *k, const PlanStep *step, IRef i); /* a size of the step's kernel as one of the graph */
void turn_operands(Fuser *f);                                               /* turn.c */

/* ---- bucket.c ---- */
void find_buckets(Fuser *f);
/* The last step of the unit stores operand n of a bucket from element `at` on. */
void place_in_bucket(Fuser *f, Unit *u, Ref n, Ref bucket, Dim at);

/* ---- sorted.c ---- */
void find_sorted(Fuser *f);
void form_sort(Fuser *f, Unit *u, Ref n);

/* ---- pieces.c ---- */
void form_scatter(Fuser *f, Unit *u, Ref n);
void form_concat(Fuser *f, Unit *u, Ref n);
void form_copy(Fuser *f, Unit *u, Ref n);        /* of a strided input that is an output */
uint32_t dense_buffer(Fuser *f, Unit *u, Ref n); /* the buffer of n, row-major: its own, or that of a copy which the unit makes */

/* ---- bodies.c ---- */
void form_body(Fuser *f, Unit *u, Ref n);
Status plan_loops(Fuser *f);  /* before the buffers of steps are placed: those that are kernels */
Status plan_bodies(Fuser *f); /* of the others */

/* ---- told.c ---- */
void fuser_tell(Fuser *f, const char *line);
void log_plan(Fuser *f);

/* ---- loop.c ---- */
bool loop_may_be_kernel(Fuser *f, Ref n); /* is it worth planning its step to see? */
/* Step s, a STEP_LOOP whose bodies are planned, becomes one STEP_KERNEL or two; false: it stays. */
bool loop_as_kernel(Fuser *f, uint32_t s);

/* ---- fuse/refuse.c ---- */
bool visits_all(Build *b, Ref n, Tuple at);   /* do these coordinates visit each element of n once, over all the loops of a level? */
bool for_later(const Fuser *f, Ref a, Ref b); /* is one computed again, and not to be kept by a kernel of both? */

/* ---- cluster.c ---- */
uint32_t buffer_for(Fuser *f, Ref n);
uint32_t buffer_private(Fuser *f, Ref n, BufferKind kind);
Ref strip_reshape(const Graph *g, Ref n);
void force(Fuser *f, Build *b, Ref n);
void unit_take(Fuser *f, Unit *u, Build *b); /* the draft holds: it is one of the unit's kernels */
/* What a node is to fusion. */
static inline OpClass class_of(const Fuser *f, Ref n)
{
    return f->flags[n] & NODE_SORTED ? CLS_SORT : op_class((Op)graph_node(f->g, n)->op);
}
/* Is it a concat whose operands are stored by a kernel each? */
static inline bool in_pieces(const Fuser *f, Ref n)
{
    return graph_node(f->g, n)->op == OP_CONCAT && (graph_node(f->g, n)->n_in > MAX_CONCAT || f->flags[n] & NODE_BUCKET);
}
static inline bool has_buffer(const Fuser *f, Ref n) { return (f->flags[n] & (NODE_WANT | NODE_FORCED)) != 0; }

/* ---- scalars.c ---- */
Ref number_source(const Graph *g, Ref n); /* the scalar or the op that node n, which is a number, repeats */
void plan_host_scalars(Fuser *f);         /* makes the list that arguments of the kind BIND_HOST, nodes so far, refer to */

/* ---- schedule.c, index_width.c, buffers.c ---- */
void choose_index_width(Graph *g, Plan *plan); /* for CUDA; guards what it relies on */
void plan_buffers(Fuser *f);

/* ---- bands.c: between the two, which steps run together ---- */

void plan_bands(Fuser *f);

/* ---- union.c: of the steps that are in no band, products of one operand become one ---- */

void plan_unions(Fuser *f);

/* ---- blocks.c: products whose blocks of k are tasks ---- */

void plan_blocks(Fuser *f);

#endif
