/*
 * Rules as text, matched and applied: those of ir/rules.def and of users.
 */
#ifndef IR_MATCH_H
#define IR_MATCH_H

#include "ir/pattern.h"
#include "ir/rules.h"

enum { RULE_VARIABLES = 4 };
extern const char rule_variable_letters[RULE_VARIABLES + 1]; /* "xyzc" */

struct PatternRule {
    const char *name; /* lives as long as the programs that it is asked for by: guards name it */
    const char *text; /* all of a user's rule */
    const Pat *pool;
    uint16_t pattern, replacement; /* in the pool */
    uint8_t n_swaps, vars;         /* of the pattern: ops that commute; bit set of the variables */
    uint8_t dtypes, soundness;
};

typedef struct Match {
    const Graph *g;
    unsigned order;
    Ref var[RULE_VARIABLES];      /* REF_NONE: not in the pattern */
    Ref scalar[PATTERN_LITERALS]; /* the scalars that literals stand for */
    double value[PATTERN_LITERALS];
    int n_literals;
} Match;

/* Does node r fit pool[pattern]? Asks nothing yet: ... */
bool pattern_match(const Graph *g, const Pat *pool, uint16_t pattern, uint8_t n_swaps, Ref r, Match *m);
/* ... the numbers that it has are asked for here, by `who`. false: one varies, and nothing was asked. */
bool match_ask(const Match *m, const char *who);

/* Does the rule fit node r, and is it sound there? Asks nothing. */
bool pattern_rule_fits(const Rewriter *w, const PatternRule *rule, Ref r, Match *m);
/* What r becomes then; REF_NONE: a number that decides varies. */
Ref pattern_rule_build(Rewriter *w, const PatternRule *rule, Ref r, const Match *m);
/* May a rule of these columns be applied to operands of `dtype`? */
bool rule_sound(const Rewriter *w, uint8_t dtypes, uint8_t soundness, DType dtype);

/* Is there such a number of this dtype? 0.5 is no integer. */
bool pattern_literal_exists(DType dtype, double value);

/* For tests of rules: pool[index] as nodes over the variables. Literals become scalar facts, at the top of dtype `literal` (DT_COUNT: that of x). */
Ref pattern_instance(Graph *g, const Pat *pool, uint16_t index, const Ref vars[RULE_VARIABLES], DType literal);

#endif
