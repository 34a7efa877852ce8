/*
 * The graph of one compilation (or one interpretation): nodes in topological order in an arena.
 *
 * A node is an op, a dtype, a shape, inputs, and what distinguishes it from others of its op, in two
 * parts that must never be confused (DESIGN.md section 3):
 *   - `attr`: structure. Axes, permutations, groups. Part of the key.
 *   - facts: numbers that may differ between two graphs of one structure (an input's dims, a slice's
 *     start, a scalar's value). The graph refers to them by index into the vectors `ints` and `scalars`.
 *
 * Sizes are `Dim`s: small expressions over integer facts (constant, fact, sum, product), with the value
 * they have in the graph at hand (`hint`). Building the graph unifies dims that an op needs equal
 * (union-find, no guard: valid by structure). Whoever wants to *rely* on a size's value or on the
 * equality of two sizes asks through ir/query.h, which records a guard; reading the hint is free but may
 * only choose between programs with identical results.
 *
 * Nodes without facts are interned: graph_add of an equal node returns the existing one (so CSE happens
 * as the graph is built). A node that carries facts is never merged here; the CSE pass may, with a guard.
 */
#ifndef IR_GRAPH_H
#define IR_GRAPH_H

#include "ir/base/arena.h"
#include "ir/base/status.h"
#include "ir/base/str.h"
#include "ir/base/table.h"
#include "ir/base/vec.h"
#include "ir/dtype.h"
#include "ir/op.h"

enum { MAX_RANK = 8, MAX_PHASE = 3, MAX_CHECKPOINT = 3, MAX_CALL_RESULTS = 32 };

typedef uint32_t Ref; /* index of a node in its graph; printed %12 */
typedef uint32_t Dim; /* index of a size in its graph */
#define REF_NONE UINT32_MAX
#define DIM_NONE UINT32_MAX

/*
 * Structural attributes, zero where unused, compared and hashed as bytes. By op:
 *   INPUT       n = which input
 *   RESHAPE     n groups; group g takes in[g] axes of the input and gives out[g] axes, in order.
 *               (1,1) keep; (k,1) merge; (1,k) split; (0,1) insert an axis of size 1; (1,0) drop an
 *               axis of size 1; (j,k) general, as users' reshapes are recorded
 *   PERMUTE     perm[i] = input axis that becomes output axis i
 *   EXPAND, SLICE, PAD, REDUCE_*, ARGMAX, ARGMIN     mask = the axes concerned (of the input)
 *   CONCAT, CUMSUM, GATHER, SCATTER                  axis
 *   SCATTER     mode (ScatterMode)
 *   SCALAR      flag = a constant made by a rewrite, in every graph of the structure; mode = SCALAR_ARGUMENT: recorded as a
 *               number that changes from call to call (a random stream's position), never compiled in
 *   ARGSORT     axis, flag = descending
 *   LOOP, COND  loop; n = how many results (ir/body.h)
 *   CUSTOM      n = how many results; custom.type = dtype << 4 | rank of each
 *   RESULT      n = which result
 * Integer facts of a node, in order, in node.fact[0..n_facts):
 *   INPUT       its dims; then, if `flag` (strided), its strides in elements
 *   IOTA        length
 *   RESHAPE     for each group with out > 1: its output sizes
 *   EXPAND      size per masked axis, ascending
 *   SLICE       start, step, length per masked axis; start and step address the input as is
 *   PAD         low, high (>= 0) per masked axis
 *   WINDOW      stride, dilation, count, size: element t of window i is the input's element i * stride + t * dilation of the axis
 *   LOOP        how often it runs; with a condition: at most (INT64_MAX: no bound)
 *   CUSTOM      the dims of all results, one after the other
 */
typedef struct Attr {
    uint32_t n;
    uint8_t axis, mask, flag, mode;
    union {
        uint8_t perm[MAX_RANK];
        struct {
            uint8_t in[2 * MAX_RANK], out[2 * MAX_RANK]; /* [1,2] -> [2,1] has three groups */
        } group;
        struct {
            uint16_t carries, xs, ys;
            uint8_t reverse;
            uint8_t settles; /* it goes on while any of some points does, and those that do not change no more (ir/body.h) */
        } loop;
        struct {
            uint8_t type[MAX_CALL_RESULTS];
        } custom;
    };
} Attr;

enum { SCALAR_ARGUMENT = 1 };

typedef enum ScatterMode { SCATTER_SET, SCATTER_ADD, SCATTER_MAX, SCATTER_MIN } ScatterMode;

/* Where the user recorded a node; belongs to the graph at hand, never to a program. */
typedef struct Loc {
    const char *file; /* static storage of the user's program; NULL: unknown */
    int line;
} Loc;

typedef struct Node {
    uint8_t op, dtype, rank;
    bool stop;     /* a constant to gradients (ir/gradient.h); programs do not see it */
    bool constant; /* INPUT: its values are to stay (kiln_mark_constant): what is made of such alone is computed once
                      (jit/constants.c). Nothing overwrites it */
    uint8_t again; /* a copy of an older node, which a backward half computes again (jit/remat.c), the how many-eth; ... */
    bool copied;   /* ... and that older one: all mean one value */
    uint8_t
        checkpoint; /* inside of so many kiln_checkpoints: a gradient computes it again. Of several: as of the least phase, then the least */
    uint8_t phase;  /* 0: forward; 1 to MAX_PHASE: a gradient (of a gradient, ...), or computed from one; a node of several: the least */
    bool number;    /* made of scalars alone: every element is the same number, which the host can compute (jit/host_scalars.h) */
    uint32_t origin; /* canonical number of the recorded node it came from (for messages); set by graph_add from graph.origin */
    uint32_t n_in;
    Ref *in;
    Attr attr;
    Dim dim[MAX_RANK];
    uint32_t n_facts;
    Dim *fact;       /* integer facts, as sizes (so that rewrites may put expressions here) */
    uint32_t scalar; /* SCALAR: index into graph.scalars */
    uint32_t n_bodies;
    struct Graph **bodies;       /* LOOP: the step, and maybe the condition; COND: then, else (ir/body.h) */
    const struct Callee *callee; /* CUSTOM: what is called (ir/body.h) */
    Loc loc;
} Node;

typedef enum DimKind { DIM_CONST, DIM_FACT, DIM_ADD, DIM_MUL } DimKind;

typedef struct DimInfo {
    uint8_t kind;
    int64_t hint;  /* value in the graph at hand (of a DIM_CONST: its value) */
    uint32_t fact; /* DIM_FACT: index into graph.ints */
    Dim a, b;      /* DIM_ADD, DIM_MUL */
    Dim parent;    /* union-find; see dim_find */
    Ref owner;     /* the node that brought it, for messages; REF_NONE */
} DimInfo;

/* What a fact is about, for people. */
typedef enum FactKind { FACT_DIM, FACT_STRIDE, FACT_SIZE, FACT_START, FACT_STEP, FACT_LOW, FACT_HIGH, FACT_LENGTH, FACT_DILATION } FactKind;

/* Is the value of such a fact never negative? Recording refuses the others that could be. */
static inline bool fact_natural(FactKind kind) { return kind != FACT_STRIDE && kind != FACT_STEP; }

typedef struct IntFact {
    int64_t value; /* in the graph at hand */
    uint8_t kind;  /* FactKind */
    uint8_t axis;
    Ref node;
} IntFact;

typedef struct ScalarFact {
    uint64_t bits; /* in the representation of `dtype`, zero-extended (bool: 0 or 1) */
    uint8_t dtype;
    Ref node;
} ScalarFact;

typedef struct Query Query; /* ir/query.h */

typedef struct DimPair {
    Dim a, b;
} DimPair;
typedef VEC(DimPair) DimPairs;

/* What a graph shares with the bodies in it: one space of sizes and facts. */
typedef struct GraphShared {
    Query *query;    /* who answers questions about facts; NULL: every fact is constant, no guards */
    DimPairs *noted; /* not NULL: dim_unify notes here what it would unify, and unifies nothing (ir/view.c asks first) */
    VEC(DimInfo) dims;
    VEC(IntFact) ints;
    VEC(ScalarFact) scalars;
    HashTable dim_intern; /* constant, sum and product sizes */
} GraphShared;

typedef struct Graph {
    Arena *arena;
    GraphShared *shared;
    VEC(Node) nodes;           /* topological: inputs before users */
    VEC(Ref) inputs;           /* the INPUT nodes, by attr.n */
    VEC(Ref) outputs;          /* may name a node twice */
    HashTable intern;          /* nodes without facts */
    struct Graph *around;      /* a body: the graph that its node is in, ... */
    Ref place;                 /* ... and the node of the outermost graph that it belongs to, for messages */
    uint32_t origin;           /* what graph_add gives to new nodes: set while building and, by the pass loop, to the rewritten node's */
    bool stop;                 /* the same */
    uint8_t phase, checkpoint; /* the same */
    Ref apart;                 /* nodes before it are never merged with later ones; REF_NONE: no nodes are */
} Graph;

Graph *graph_new(Arena *arena);

/* The node of the outermost graph that node r of this graph is or belongs to. */
static inline Ref graph_place(const Graph *g, Ref r) { return g->around ? g->place : r; }

static inline Node *graph_node(const Graph *g, Ref r) { return &g->nodes.at[r]; }

/*
 * Building. Each returns the new (or the interned, equal) node. Sizes come from infer_shape (ir/infer.c),
 * which also unifies. `in` and `facts` are copied. The caller has checked shapes (ir/infer.h) -- these
 * abort with the node printed on a broken invariant.
 */
Ref graph_add(Graph *g, Op op, DType dtype, const Ref *in, uint32_t n_in, const Attr *attr, const Dim *facts, uint32_t n_facts, Loc loc);
Ref graph_add_scalar(Graph *g, DType dtype, uint64_t bits, Loc loc); /* a new scalar *fact* */
Ref graph_add_const(Graph *g, DType dtype, uint64_t bits, Loc loc);  /* a SCALAR whose value is known for ever
                                                                          (attr.flag = 1): made by rewrites; interned */
/* A node with everything but its number set, for ir/body.c: an INPUT of a body, or what has bodies. Arrays are copied. */
Ref graph_push_node(Graph *g, const Node *node);
/* Each node so far is a value of its own from now on, which no later node is merged with. */
void graph_keep_apart(Graph *g);
bool graph_is_const(const Graph *g, Ref r, uint64_t *bits); /* only attr.flag = 1 scalars */
Ref graph_add_input(Graph *g, DType dtype, int rank, const int64_t *dims, const int64_t *strides, Loc loc);
/* elementwise helper: dtype by the op's rule */
Ref graph_ew(Graph *g, Op op, Ref a, Ref b, Ref c, Loc loc); /* REF_NONE for absent inputs */
void graph_output(Graph *g, Ref r);

/* Sizes. dim_const, dim_add and dim_mul fold constants and intern. */
Dim dim_const(Graph *g, int64_t value);
Dim dim_fact(Graph *g, int64_t value, FactKind kind, uint8_t axis, Ref node); /* appends to g->shared->ints */
Dim dim_add(Graph *g, Dim a, Dim b);
Dim dim_mul(Graph *g, Dim a, Dim b);
Dim dim_expr(Graph *g, DimKind kind, Dim a, Dim b); /* DIM_ADD or DIM_MUL exactly as written, nothing folded: for the parser */
Dim dim_find(const Graph *g, Dim d);                /* representative of its class; a constant where the class has one */
void dim_unify(Graph *g, Dim a, Dim b);             /* equal by structure: no guard */
bool dim_same(const Graph *g, Dim a, Dim b);        /* proven equal: same class or same expression; asks no question */
static inline int64_t dim_hint(const Graph *g, Dim d) { return g->shared->dims.at[d].hint; }
void dim_print(const Graph *g, Dim d, Str *out); /* "4096", "s3", "(s0*s1)"; s3 is ints[3] */
int64_t dim_eval(const Graph *g, Dim d, const int64_t *ints);

/* The facts that a size consists of, through class representatives, each once, in order of first use; written to
 * *facts (in the graph's arena). */
uint32_t dim_facts(const Graph *g, Dim d, uint32_t **facts);

int64_t node_hint_numel(const Graph *g, Ref r);
Dim node_numel(Graph *g, Ref r);
bool graph_is_number(const Graph *g, const Node *n); /* an elementwise op of numbers, or one repeated */

/* Checks the whole graph (order, arity, dtypes by rule, ranks, attributes, shapes by inference against
 * the stored ones, outputs). On a fault: ST_INTERNAL with the node printed. */
Status graph_verify(const Graph *g);

/* Drops nodes that no output needs, renumbering; `map` (may be NULL) gets old -> new (REF_NONE: dropped).
 * INPUT nodes stay, in order, even when unused. */
void graph_compact(Graph *g, Ref *map);

/* Rebuilding in place: takes all nodes out (facts, sizes and outputs stay; the caller maps outputs to new nodes), ... */
const Node *graph_take_nodes(Graph *g, uint32_t *n);
Ref graph_put_leaf(Graph *g, const Node *leaf);             /* ... puts an INPUT or SCALAR back as it was, ... */
void graph_remap(Graph *g, const Ref *map, uint32_t n_old); /* ... and old node numbers in facts, sizes and outputs are replaced */

/* The text form (ir/text.c); parse(print(g)) prints the same. See its head comment for the grammar. */
void graph_print(const Graph *g, const char *name, Str *out);
void node_print(const Graph *g, Ref r, Str *out);                /* one line, no newline */
Status graph_parse(const char *text, Arena *arena, Graph **out); /* message names line and column */

#endif
