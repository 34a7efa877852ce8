/* The op table as C: enum, names and columns of ir/ops.def. */
#ifndef IR_OP_H
#define IR_OP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum Op {
#define OP(id, text, arity, cls, rule, flags) OP_##id,
#include "ir/ops.def"
#undef OP
    OP_COUNT
} Op;

typedef enum OpClass {
    CLS_LEAF,
    CLS_EW,
    CLS_VIEW,
    CLS_REDUCE,
    CLS_SCAN,
    CLS_GATHER,
    CLS_SCATTER,
    CLS_SORT,
    CLS_CONTRACT,
    CLS_BODY,
    CLS_RESULT
} OpClass;

typedef enum DRule {
    RULE_SAME,
    RULE_NUM,
    RULE_FLOAT,
    RULE_INTS,
    RULE_BITS,
    RULE_BOOL,
    RULE_CMP,
    RULE_FCMP,
    RULE_CAST,
    RULE_WHERE,
    RULE_RANDOM,
    RULE_INDEX,
    RULE_OWN
} DRule;

enum { ARITY_ANY = -1 };
enum { OPF_COMMUTES = 1, OPF_COSTLY = 2, OPF_IDEMPOTENT = 4 };

typedef struct OpInfo {
    const char *name;
    int8_t arity;
    uint8_t cls, rule, flags;
} OpInfo;
extern const OpInfo op_info[OP_COUNT];

static inline const char *op_name(Op op) { return op_info[op].name; }
static inline OpClass op_class(Op op) { return (OpClass)op_info[op].cls; }
/* A view of which every element is one of its input's: of a number it is that number repeated. */
static inline bool op_repeats(Op op)
{
    return op == OP_EXPAND || op == OP_RESHAPE || op == OP_PERMUTE || op == OP_SLICE || op == OP_WINDOW;
}
const char *op_rule_text(DRule rule);      /* "floats, alike": what the inputs must be and what comes out */
Op op_parse(const char *name, size_t len); /* OP_COUNT when unknown */

#endif
