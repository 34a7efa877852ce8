/*
 * What a CUSTOM node calls: an op of the user's (kiln_op_register), or a function of a library that kiln knows (ir/linalg.h). The graph
 * knows how it is called and told apart, not what it computes: name, version, attributes and image are what two calls have to have in
 * common to be one, and all that text, key and entry hold. Two calls that have are given operands of the same types, have results of the
 * same types.
 */
#ifndef IR_CALLEE_H
#define IR_CALLEE_H

#include "ir/base/arena.h"
#include "ir/base/hash.h"
#include "ir/base/status.h"
#include "ir/base/str.h"
#include "ir/graph.h"

enum { CALLEE_NAME = 64, CALLEE_ATTRIBUTES = 1 << 16 }; /* the longest name or version, 0 included; bytes of attributes */

/* An operand or result: dense, row-major, in memory of the host. */
typedef struct CallBuffer {
    uint8_t dtype;
    int rank;
    const int64_t *dim;
    void *data;
} CallBuffer;

typedef struct Callee Callee;
/* Calls it on the host; `loc`: where the call was recorded, for messages. */
typedef Status CallHost(const Callee *callee, Loc loc, const CallBuffer *in, uint32_t n_in, const CallBuffer *out, uint32_t n_out);

/* The derivative of a call, as GradientCalls.derive (ir/gradient.h). */
struct Gradient;
struct GradientCall;
typedef void CallRule(struct Gradient *d, const struct GradientCall *call, bool forward, const Ref *seed, Ref *got);

struct Callee {
    const char *name, *version; /* callee_word */
    const void *attributes;
    size_t bytes;
    Hash128 image;   /* of machine code that it brings along; 0: none */
    bool ordered;    /* a collective: the last operand and the last result keep the order (runtime/comm/chain.h) */
    bool derivative; /* it has one of the user's: gradients that come to its results do not look at the call; or it has a rule */
    CallRule *rule;  /* of kiln's own; NULL: none */
    bool leading;    /* what has more leading axes is so many calls in one: operands and results alike */
    bool columns;    /* so are columns of the last operand, and of its one result, which are as many */
    CallHost *host;  /* NULL: what was read as text, which nobody can call */
    const void *op;  /* of the user's: for `host`; NULL: it is kiln's own, which runs on the host alone */
};

/* Is it a name or version: letters, digits and _ . + - of at most CALLEE_NAME - 1? */
bool callee_word(const char *text);
bool callee_equal(const Callee *a, const Callee *b);
Callee *callee_copy(Arena *arena, const Callee *callee);
/* "acme.fft 1.2", then " ordered", " image:" and " bytes:" with digits where there are such. (callee_parse: ir/text.h) */
void callee_print(const Callee *callee, Str *out);

#endif
