/*
 * The loops by which a CPU runs a kernel of FORM_LOOPS, as data: made of kernel and schedule by nest_build, checked by nest_verify, printed
 * below the schedule (KILN_LOG=nest), and all that emission reads of loops, their order, vectors, tails and statements (jit/llvm/cpu/loops.c; of
 * products jit/llvm/cpu/contract.c).
 *
 *     nest                                    a softmax of rows, with 512 bits
 *       for i task
 *         start v1
 *         for j by 64 vector
 *           step v1
 *         merge v1
 *         total v1
 *         start v4
 *         for j by 16 vector
 *           save v3; step v4
 *         merge v4
 *         total v4
 *         for j by 16 vector
 *           store a1
 *
 * `for AXES by N`: the points of these axes as of one axis, N a step. `task`: those steps, together with the ones of the loops around it
 * that are tasks, are what may run side by side; all others run one after the other. `vector`: N lanes; the points that fill no vector are the
 * tail: `tail mask` has a copy of the code with a mask, `tail scalar` one without lanes, `tail halves` some with fewer and fewer, where it is
 * known how many points there are, `tail passes` goes through the loop again; without one there are none. `inside`:
 * vectors whose windows no edge cuts have code that knows it, and the copy for the tail is that of the others, too. The other words are in
 * jit/nest.def.
 *
 * What an instruction does besides being a value is its statement, and each statement belongs to one body: `run`, an element of a running
 * fold; `save`, its row is kept for later stages; `step` of a fold; `check` of an index; `store`, `scatter`; `next`, what a carry becomes.
 * All that a body loads comes before what it stores. Around bodies folds `start`, in so many accumulators (`slots`), `merge` them and give
 * their `total`, or the `part` of a block, which other tasks `combine`.
 */
#ifndef JIT_NEST_H
#define JIT_NEST_H

#include "jit/kernel_facts.h"

typedef enum NestKind {
#define NEST(id, role, text) NEST_##id,
#include "jit/nest.def"
#undef NEST
    NEST_KINDS
} NestKind;

typedef enum NestRole { NEST_ROLE_LOOP, NEST_ROLE_CUT, NEST_ROLE_SCOPE, NEST_ROLE_DO } NestRole;

typedef enum NestTail {
    NEST_TAIL_NONE,
    NEST_TAIL_MASK,
    NEST_TAIL_SCALAR,
    NEST_TAIL_HALVES,
    NEST_TAIL_PASSES,
    NEST_TAIL_REGISTERS,
    NEST_TAIL_EARLIER
} NestTail;

/* Whether whole vectors have a loop: yes; no, there are none or strips have them; only where there are too few rows for strips. */
typedef enum NestWhole { NEST_WHOLE, NEST_WHOLE_NONE, NEST_WHOLE_SHORT } NestWhole;

typedef uint32_t NestRef; /* index into Nest.node */
#define NEST_NONE UINT32_MAX

typedef struct NestNode {
    uint8_t kind;
    uint8_t tail, whole; /* NestTail; of TILES, LANES and JOINT: NestWhole */
    bool task;           /* of a loop: its steps are tasks */
    bool split;          /* PHASE: of those that blocks of folds are cut into */
    bool joined;         /* PHASE: of launches whose rows are joined, where they are few points (join_below) */
    bool inside;         /* TILES: those whose windows no edge cuts have code of their own, and all others that of the tail */
    bool partial;        /* STAGE, COLUMNS: of one block, which is a task */
    bool ends;           /* STEPS: no further than a carry says (ENDS) */
    uint32_t axes;       /* of a loop: bit set */
    int64_t by;          /* of a loop: points a step. CANONICAL: lanes, STRIP_ROWS: rows */
    int64_t points; /* PIECE: how many where that is known, else -1. EACH, UNROLL, TILE_ROWS: all. ROUNDS: vectors a step. SHARES: how many.
                                    STRIP_ROWS: steps at once; 0: one */
    int64_t lanes;  /* STAGE: of a vector */
    int64_t few;    /* CANONICAL, one of two: blocks of fewer rows take chains, others rows; 0: there is one */
    uint32_t own;   /* BODY of one of several products: its lane axis, a bit; else 0 */
    uint32_t number;             /* of a PHASE, PIECE or PRODUCT; the stage of others, of a product's the instruction */
    NestRef parent, child, next; /* the first child, the next child of its parent */
} NestNode;

typedef enum StatementKind {
    STATEMENT_NONE,
    STATEMENT_RUN,
    STATEMENT_SAVE,
    STATEMENT_STEP,
    STATEMENT_EFFECT,
    STATEMENT_NEXT
} StatementKind;

typedef struct Statement {
    uint8_t kind; /* StatementKind: all but a save */
    bool saved;   /* the row of this value is kept */
    uint8_t body; /* which one: the number of a stage, or n_stages, that of the x points */
} Statement;

typedef struct Nest {
    Arena *arena;
    Statement *does; /* of each instruction */
    VEC(NestNode) node;
    NestRef phase; /* the first; NEST_NONE: only statements, CUDA and sorts have loops of their own */
} Nest;

void nest_statements(Nest *n, const KernelFacts *f, Arena *arena);
void nest_build(Nest *n, const KernelFacts *f); /* behind nest_statements */
/* ST_INTERNAL with the first rule that is broken and where: each point of each body is run once, folds have their order, there are tails. */
Status nest_verify(const Nest *n, const KernelFacts *f);
void nest_print(const Nest *n, const KernelFacts *f, Str *out);

NestRole nest_role(NestKind kind);
/* Does a body that is `own` do what instruction v says? */
static inline bool nest_body_has(const Kernel *k, uint32_t own, VRef v)
{
    uint32_t of = own ? k->inst_axes.at[v] & kernel_beside(k) : 0;
    return !of || of & own;
}
/* Points of these axes where that is constant, else -1. */
int64_t nest_points(const Kernel *k, uint32_t axes);
/* Of a vector in this stage. */
int64_t nest_stage_lanes(const Schedule *s, uint32_t stage);
/* The accumulators of a fold: vectors of the stage's lanes. extreme: with signs and NaN beside them. */
typedef struct NestFold {
    uint32_t slots;
    bool extreme;
} NestFold;
NestFold nest_fold(const Nest *n, const KernelFacts *f, VRef fold);
int64_t nest_column_rows(const Nest *n, const KernelFacts *f); /* columns: rows whose accumulators follow one another */
/* Of an x point, made of what a stage folds, for the points of the r axes in later ones: strips keep it (jit/llvm/cpu/strips.c). */
bool nest_kept(const KernelFacts *f, VRef v);
bool nest_keeps(const KernelFacts *f, uint32_t stage); /* one that is made of this stage */
/* Has this stage a fold whose order shows? */
bool nest_ordered(const Nest *n, const Kernel *k, uint32_t stage);
/* Does this phase have such a loop over tasks? Or NEST_NONE. */
NestRef nest_task_loop(const Nest *n, NestRef phase, NestKind kind);

#endif
