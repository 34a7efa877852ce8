/*
 * How rules and passes learn facts. Every function records what was relied on, so the guard set of a
 * program is complete by construction; a rewrite that is abandoned takes its guards back
 * (query_mark / query_undo). The layer `guards` implements the interface; a graph without a query
 * (g->shared->query == NULL, in unit tests and in the interpreter) answers with the facts at hand and records nothing.
 *
 * `who` is the pass or rule that asks, a string literal: shown to the user when the guard fails.
 */
#ifndef IR_QUERY_H
#define IR_QUERY_H

#include "ir/graph.h"

struct Query {
    /* May the value of integer fact `fact` be compiled in? true: *value is it and a guard `fact == value` was
     * recorded. false: the fact is an argument of this program (it is known to vary). */
    bool (*spec_int)(Query *q, uint32_t fact, const char *who, int64_t *value);
    /* Records `sizes differ never`: a guard a == b between two size expressions whose hints are equal.
     * false if policy says not to. */
    bool (*spec_same)(Query *q, const Graph *g, Dim a, Dim b, const char *who);
    /* Relies on min <= size <= max (max INT64_MAX: none). false where the graph at hand does not satisfy it. */
    bool (*spec_range)(Query *q, const Graph *g, Dim d, int64_t min, int64_t max, const char *who);
    /* What holds of a size in every graph that the program will meet, without a guard. */
    void (*bounds)(Query *q, const Graph *g, Dim d, int64_t *min, int64_t *max);
    /* Relies on a scalar's exact bits. false when the scalar is known to vary. */
    bool (*spec_scalar)(Query *q, uint32_t scalar, const char *who, uint64_t *bits);
    uint32_t (*mark)(Query *q);
    void (*undo)(Query *q, uint32_t mark);
};

/* The size's value as a constant, guarding every fact it is made of; false if it varies. */
bool spec_dim(const Graph *g, Dim d, const char *who, int64_t *value);
bool spec_dim_eq(const Graph *g, Dim d, int64_t value, const char *who); /* is it `value`? guards only when true */
bool spec_dim_same(const Graph *g, Dim a, Dim b, const char *who);       /* proven, or guarded; guards only when true */
bool spec_range(const Graph *g, Dim d, int64_t min, int64_t max, const char *who);
/* min <= size <= max, by structure and by what users promised (kiln_mark_dynamic): needs no guard. */
void dim_bounds(const Graph *g, Dim d, int64_t *min, int64_t *max);
/* A SCALAR node's value. Constants made by rewrites need no guard. false if `r` is no SCALAR or varies. */
bool spec_scalar(const Graph *g, Ref r, const char *who, uint64_t *bits);
/* Is scalar `r` equal to `value` (in its own dtype)? Guards only when true. */
bool spec_scalar_eq(const Graph *g, Ref r, double value, const char *who);
uint32_t query_mark(const Graph *g);
void query_undo(const Graph *g, uint32_t mark);

#endif
