/*
 * Rules of users: rows such as those of ir/rules.def that a program adds while it runs (kiln_rule_add).
 *
 * What is wrong with the text of one is told with its place; what it does is tried on small graphs: a rule that never fits, or that with the
 * others has no end, is refused, and with KILN_CHECK=rules one that does not keep its word, with the values that show it.
 * A rule lives as long as the process: guards of programs name it.
 */
#ifndef IR_USER_RULE_H
#define IR_USER_RULE_H

#include "ir/match.h"

enum { USER_NAME = 64, USER_RULE_TEXT = 512 };

typedef struct UserRule {
    PatternRule rule;
    char name[USER_NAME], pattern[USER_RULE_TEXT], replacement[USER_RULE_TEXT];
    char text[2 * USER_RULE_TEXT + USER_NAME + 64]; /* "rule mul_one (mul x 1) -> x exact any" */
    Pat pool[];
} UserRule;

/* Is this a name for what users add? Letters, digits, `_`, `.`, `-`; it stands in keys and logs. ST_INVALID: why not. */
Status user_name_check(const char *what, const char *name);

/* Parses a rule. ST_INVALID with what is wrong, and where. */
Status user_rule_new(const char *name, const char *pattern, const char *replacement, Soundness soundness, RuleDTypes dtypes,
                     UserRule **out);

/* Does the last of these rules fit its own pattern, and do they come to an end on it? ST_INVALID. */
Status user_rule_check_end(const PatternRule *const *rules, uint32_t n);
/* Does it keep its word, for special and random values of each dtype that it is for? ST_INVALID with a counterexample. */
Status user_rule_check_values(const UserRule *rule);

/* Values that rules get wrong, at most RULE_SPECIALS: zeros, infinities, NaN, the ends of ranges. */
enum { RULE_SPECIALS = 64 };
uint32_t rule_special_values(DType t, uint64_t *out);

#endif
