/*
 * How the schedule of a CPU's kernel is chosen: rules (jit/rules.def), tried in the order of that table, of which each gives some
 * directives (jit/directives.def) to kernels that it is for, and limits (jit/limits.def), the numbers by which they tell. Nothing else is
 * looked at but the kernel's text, the width of vectors and keyed options, and no result follows from it.
 */
#ifndef JIT_RULES_H
#define JIT_RULES_H

#include "jit/kernel_facts.h"

typedef enum RuleId {
#define RULE(id, group, gives, sentence) RULE_##id,
#include "jit/rules.def"
#undef RULE
    RULES
} RuleId;

typedef enum LimitId {
#define LIMIT(id, narrow, wide, unit, measured) LIMIT_##id,
#include "jit/limits.def"
#undef LIMIT
    LIMITS
} LimitId;

int64_t rule_limit(int64_t bits, LimitId id);

/* Fills *s. ST_INTERNAL: a rule has set a directive that it does not give. */
Status rules_choose(const KernelFacts *f, Schedule *s);
/* What such a kernel allows. */
ScheduleFacts rules_allow(const KernelFacts *f, const Schedule *own);
/* The names of the rules that fitted, as a comment behind the schedule: "// points, light". */
void rules_print(const Schedule *s, Str *out);

#endif
