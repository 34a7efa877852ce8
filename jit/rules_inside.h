/* What the functions of rules share: rules.c has the table and those of loops, rules_product.c those of products. */
#ifndef JIT_RULES_INSIDE_H
#define JIT_RULES_INSIDE_H

#include "jit/dot_facts.h"
#include "jit/rules.h"

typedef struct Choice {
    const KernelFacts *f;
    Weight w;           /* of a point, or of the heaviest piece of a row */
    DotFacts dot;       /* of a product, once it is known along which axis lanes run */
    const char *broken; /* the rule that set what it does not give; or NULL */
} Choice;

/*
 * Is the kernel one of the rule's? Then *s, the schedule as the rules before have made it, has been changed; where it says no,
 * whatever was changed is forgotten.
 */
typedef bool Give(Choice *c, Schedule *s);

/* By a vector, and enough rows, contiguous along k, to be tasks: they are read from end to end. */
bool rows_are_dots(const Choice *c);

#define RULE(id, group, gives, sentence) Give give_##id;
#include "jit/rules.def"
#undef RULE

#endif
