/*
 * Guards: what compiled code relies on, checked against the facts of a call.
 *
 *   facts    the numbers of one call: integer facts (dims, slice bounds...) and scalars, in canonical order
 *   sizes    expressions over integer facts, evaluated all at once in table order into one array
 *   guards   predicates over that array and the scalars
 *
 * A guard set is complete by construction: guard_builder implements ir/query.h, through which every pass and the code
 * generator learn facts, and notes each answer it gives. Plain data: no pointer into a graph survives in a GuardSet.
 */
#ifndef GUARDS_GUARDS_H
#define GUARDS_GUARDS_H

#include "ir/graph.h"
#include "ir/query.h"

/* The facts of one call. Borrowed pointers. */
typedef struct Facts {
    const int64_t *ints;
    const uint64_t *scalars;
    uint32_t n_ints, n_scalars;
} Facts;

typedef enum SizeKind { SIZE_CONST, SIZE_FACT, SIZE_ADD, SIZE_MUL } SizeKind;

/* One size expression; operands are earlier entries of the same table. */
typedef struct SizeExpr {
    uint8_t kind;
    uint32_t a, b; /* FACT: a is the fact's index */
    int64_t value; /* CONST */
} SizeExpr;

typedef struct SizeTable {
    SizeExpr *at;
    uint32_t n;
} SizeTable;

/* Evaluates every entry: out[i] is the value of entry i. Sums and products wrap (shapes were checked when recorded). */
void sizes_eval(const SizeTable *table, const int64_t *ints, int64_t *out);

typedef enum GuardKind {
#define GUARD(id, name, text) GUARD_##id,
#include "guards/guards.def"
#undef GUARD
    GUARD_COUNT
} GuardKind;

typedef enum Reason {
#define REASON(id, name, text) REASON_##id,
#include "guards/reasons.def"
#undef REASON
    REASON_COUNT
} Reason;

typedef struct Guard {
    uint8_t kind;
    uint8_t dtype; /* SCALAR_EQ: of the scalar */
    uint32_t a, b;
    int64_t v, w;
    const char *who; /* the pass or rule that relied on it; static text */
} Guard;

typedef struct GuardSet {
    SizeTable sizes; /* shared with the launch plan of the program */
    Guard *at;
    uint32_t n;
    bool on_scalars; /* some guard looks at a scalar */
} GuardSet;

/* Do all guards hold? `sizes` is sizes_eval of the same facts. Otherwise *failed is the first that does not. */
bool guards_hold(const GuardSet *set, const int64_t *sizes, const Facts *facts, uint32_t *failed);
bool guard_holds(const Guard *guard, const int64_t *sizes, const Facts *facts);
Reason guard_reason(const Guard *guard);
const char *guard_kind_name(GuardKind kind); /* "size", "same"... as in guards.def */
const char *reason_name(Reason reason);
const char *reason_text(Reason reason);

/* "s0 * s1 == 4096"; s3 stands for the integer fact 3, k2 for the scalar 2. */
void guard_print(const GuardSet *set, const Guard *guard, Str *out);
/* "expected 4096, found 128" for a guard that fails. */
void guard_print_failure(const Guard *guard, const int64_t *sizes, const Facts *facts, Str *out);
/* The first integer fact that a guard's left side is made of; UINT32_MAX: none. For naming the culprit. */
uint32_t guard_first_fact(const GuardSet *set, const Guard *guard);

/* --- making a guard set --------------------------------------------------------------------------- */

/* A size that lies in a range in every call that the program will meet: the calls' signature says so, so nothing guards it. */
typedef struct PromisedRange {
    Dim size;
    int64_t min, max;
} PromisedRange;

/*
 * The policy of one compilation: which facts are known to vary, hence must be arguments. Its arrays belong to the
 * caller and live as long as the builder.
 */
typedef struct GuardPolicy {
    bool *int_varies;    /* per integer fact */
    bool *scalar_varies; /* per scalar */
    bool *int_fixed;     /* per integer fact: never an argument, whatever varied (NULL: none). Equal in all calls that
                                   the program will meet: the caller sees to that */
    const Facts *seen;   /* facts of earlier graphs under this key and signature */
    uint32_t n_seen;
    const PromisedRange *promised;
    uint32_t n_promised;
    bool wide;    /* a general program: every fact is an argument, but what was the same in every graph seen may
                                   be relied on to stay the same */
    bool general; /* the most general program: no optional guard at all */
} GuardPolicy;

/* Makes every fact unified with a varying one vary too, and with `always` every fact, but steps and strides of 1 and -1 until they are seen to
 * vary or the program is the most general one; those unified with a fixed one never. */
void guard_policy_close(GuardPolicy *policy, const Graph *g, bool always);

typedef struct GuardBuilder GuardBuilder;
/* Installs itself as g->shared->query. In the graph's arena. */
GuardBuilder *guard_builder_new(Graph *g, const GuardPolicy *policy);

/* Copies a size into the table being built, returning its entry (equal expressions share one). */
uint32_t guard_builder_size(GuardBuilder *b, Dim d);
/* The finished set, deduplicated, in heap memory (guards_free). ST_OUT_OF_MEMORY. The sizes requested so far are in it. */
Status guard_builder_finish(GuardBuilder *b, GuardSet *out);
void guards_free(GuardSet *set);

#endif
