/*
 * Expressions of elementwise ops as text, in which the tables of rewrites (ir/rules.def) and of gradients (ir/gradients.def) and the
 * rules of users are written: "(mul x (add y 1))". A variable is one letter of those that the table has; a number is a decimal, -0.5.
 */
#ifndef IR_PATTERN_H
#define IR_PATTERN_H

#include "ir/base/status.h"
#include "ir/op.h"

typedef enum PatKind { PAT_VAR, PAT_LITERAL, PAT_OP } PatKind;

typedef struct Pat {
    uint8_t kind, op, n_in, var; /* var: index of the letter */
    uint8_t swap;                /* PAT_OP that commutes: 1 + its number within the pattern */
    uint16_t in[3];              /* indices in the pool */
    double value;
} Pat;

/* All patterns of a table. */
typedef struct PatternPool {
    Pat *at;
    uint16_t n, cap;
} PatternPool;

typedef struct PatternUse {
    uint8_t n_swaps; /* ops that commute */
    uint8_t vars;    /* bit set of the variables */
    uint8_t n_literals;
} PatternUse;

/* What a pattern may have: each op that commutes doubles the orders that are tried. */
enum { PATTERN_SWAPS = 8, PATTERN_LITERALS = 16, PATTERN_DEPTH = 32 };

/* Parses the whole text; *root: the index of its root in the pool. ST_INVALID: "at column 6: there is no op `mull`; `mul` is near". The pool is
 * then of no use. */
Status pattern_read(PatternPool *pool, const char *text, const char *variables, PatternUse *use, uint16_t *root);
/* The same of a row of a table, where a malformed one is a broken build: aborts, printing it. */
uint16_t pattern_parse(PatternPool *pool, const char *text, const char *variables, PatternUse *use);
_Noreturn void pattern_bad(const char *text);

#endif
