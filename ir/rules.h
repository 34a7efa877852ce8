/*
 * Rewriting: nodes are simplified as they are added, by the table ir/rules.def.
 *
 *     Rewriter w = {.g = g, .math = MATH_FAST, .families = FAMILY_CANON | FAMILY_FOLD | FAMILY_RULES};
 *     graph_rewrite(&w);     walks the old nodes, oldest first, and adds each anew through rewrite_add
 *
 * rewrite_add adds a node, tries the rules of its op and gives what it simplified to. A rule sees only nodes that are
 * simplified already, and builds its replacement with rewrite_add again, so one walk suffices.
 */
#ifndef IR_RULES_H
#define IR_RULES_H

#include "ir/graph.h"
#include "ir/scalar.h"

typedef enum Soundness { SOUND_EXACT, SOUND_INT_ONLY, SOUND_FAST, SOUND_FINITE, SOUND_NEARER } Soundness;

typedef enum Family {
    FAMILY_CANON = 1,  /* one spelling */
    FAMILY_FOLD = 2,   /* constants */
    FAMILY_RULES = 4,  /* everything algebraic */
    FAMILY_MERGE = 8,  /* not in the table: merge nodes whose facts are equal now, with guards */
    FAMILY_USER = 16,  /* not in the table: the rules of users */
    FAMILY_PAIRS = 32, /* for a host that multiplies by pairs of steps (ORDER_HOST_PAIRS) */
    FAMILY_WIDEN = 64  /* for a host, which multiplies halves in f32 */
} Family;

typedef enum RuleDTypes {
    RULE_ANY,
    RULE_FLOATS,
    RULE_WIDE_FLOATS,
    RULE_INTS_ONLY,
    RULE_UINTS,
    RULE_SIGNED,
    RULE_NEGATIVE,
    RULE_BOOLS
} RuleDTypes;

typedef enum RuleId {
#define RULE(name, pattern, replacement, dtypes, soundness) RULE_##name,
#define REWRITE(name, function, cls, family, soundness) RULE_##name,
#include "ir/rules.def"
#undef RULE
#undef REWRITE
    RULE_COUNT
} RuleId;

typedef struct PatternRule PatternRule; /* ir/match.h */

/* Rules of users, for FAMILY_USER; tried in this order. */
typedef struct UserRules {
    const PatternRule *const *rules;
    uint32_t n, *hits;   /* hits: how often each was applied */
    uint32_t left;       /* so many may be applied yet: rules that turn each other back have an end, too */
    const char *endless; /* the rule that was not applied therefore; NULL: none */
    const char *last;    /* the last that fitted */
} UserRules;

typedef struct Rewriter {
    Graph *g;
    MathMode math;
    bool finite; /* KILN_FINITE: FINITE rows may be applied */
    unsigned families;
    bool unsound;              /* tests: apply rows whatever their soundness column says */
    uint32_t only;             /* tests: 1 + the one row to apply; 0: all */
    uint32_t hits[RULE_COUNT]; /* how often each row was applied */
    uint32_t merged;           /* nodes merged because their facts are equal */
    UserRules user;
    /* private */
    uint32_t depth;
    VEC(Ref) result;       /* of each new node: what it simplified to; REF_NONE: not tried yet */
    VEC(uint32_t) readers; /* of each new node: how often the old nodes that became it are read; 0 beyond its end */
    HashTable facts_table; /* nodes with facts */
} Rewriter;

/* A C rewrite: the replacement of node r, or REF_NONE. */
typedef Ref RewriteFn(Rewriter *w, Ref r);

typedef struct RuleInfo {
    const char *name;
    const char *pattern, *replacement; /* NULL for a REWRITE */
    RewriteFn *function;
    uint8_t cls, family, dtypes, soundness;
} RuleInfo;
extern const RuleInfo rule_info[RULE_COUNT];

/* May the row be applied to operands of `dtype`? */
bool rule_allows(const Rewriter *w, RuleId rule, DType dtype);

/* Rewrites the whole graph and drops what is no longer needed. Facts keep their numbers. */
Status graph_rewrite(Rewriter *w);

/* Adds a node and simplifies it. */
Ref rewrite_add(Rewriter *w, Op op, DType dtype, const Ref *in, uint32_t n_in, const Attr *attr, const Dim *facts, uint32_t n_facts,
                Loc loc);
/* An elementwise node, dtype by the op's rule; REF_NONE for absent inputs. REF_NONE where the rule refuses the dtypes. */
Ref rewrite_ew(Rewriter *w, Op op, Ref a, Ref b, Ref c, Loc loc);
/* The older node equal to r but for facts that are proven equal (or guarded, with FAMILY_MERGE); r if there is none. */
Ref rewrite_merge(Rewriter *w, Ref r);
Ref rewrite_cast(Rewriter *w, Ref x, DType to, Loc loc);
/* Rank-0 node `s` repeated to these sizes. */
Ref rewrite_broadcast(Rewriter *w, Ref s, int rank, const Dim *dims, Loc loc);
/* A constant of these sizes. */
Ref rewrite_const(Rewriter *w, DType dtype, uint64_t bits, int rank, const Dim *dims, Loc loc);
/* The rank-0 node that r repeats through views (r itself when of rank 0); REF_NONE if r is no such broadcast. */
Ref scalar_source(const Graph *g, Ref r);
/* The number of nodes as people count them: a number and the views that repeat it are one. */
uint32_t graph_size(const Graph *g);

/* For tests: the pattern as nodes over the variables x, y, z, c (REF_NONE: not needed). Literals become scalar facts. */
Ref rule_instance(Graph *g, RuleId rule, const Ref vars[4]);
unsigned rule_variables(RuleId rule); /* bit set: 1 x, 2 y, 4 z, 8 c */

#define REWRITE(name, function, cls, family, soundness) RewriteFn function;
#define RULE(name, pattern, replacement, dtypes, soundness)
#include "ir/rules.def"
#undef RULE
#undef REWRITE

#endif
