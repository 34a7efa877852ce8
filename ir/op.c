/* The op table of ir/ops.def as data. */
#include "ir/op.h"

#include <string.h>

/* The flag column is a sum such as COMMUTES | COSTLY in the table's own words. */
enum { COMMUTES = OPF_COMMUTES, COSTLY = OPF_COSTLY, IDEMPOTENT = OPF_IDEMPOTENT, ANY = ARITY_ANY };

const OpInfo op_info[OP_COUNT] = {
#define OP(id, text, arity, cls, rule, flags) {text, arity, CLS_##cls, RULE_##rule, flags},
#include "ir/ops.def"
#undef OP
};

const char *op_rule_text(DRule rule)
{
    static const char *const texts[] = {
        [RULE_SAME] = "any, alike",
        [RULE_NUM] = "all but bool, alike",
        [RULE_FLOAT] = "floats, alike",
        [RULE_INTS] = "ints, alike",
        [RULE_BITS] = "ints or bool, alike",
        [RULE_BOOL] = "bool",
        [RULE_CMP] = "any, alike -> bool",
        [RULE_FCMP] = "float -> bool",
        [RULE_CAST] = "any -> any",
        [RULE_WHERE] = "bool, then two alike",
        [RULE_RANDOM] = "u64",
        [RULE_INDEX] = "any -> i64",
        [RULE_OWN] = "its own rule",
    };
    return texts[rule];
}

Op op_parse(const char *name, size_t len)
{
    for (int op = 0; op < OP_COUNT; op++)
        if (strlen(op_info[op].name) == len && memcmp(op_info[op].name, name, len) == 0)
            return (Op)op;
    return OP_COUNT;
}
