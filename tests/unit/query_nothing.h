/* A policy that lets nothing be compiled in. */
#ifndef TESTS_UNIT_QUERY_NOTHING_H
#define TESTS_UNIT_QUERY_NOTHING_H

#include "ir/query.h"

static bool no_int(Query *q, uint32_t fact, const char *who, int64_t *value)
{
    (void)q, (void)fact, (void)who, (void)value;
    return false;
}
static bool no_same(Query *q, const Graph *g, Dim a, Dim b, const char *who)
{
    (void)q, (void)g, (void)a, (void)b, (void)who;
    return false;
}
static bool no_range(Query *q, const Graph *g, Dim d, int64_t min, int64_t max, const char *who)
{
    (void)q, (void)g, (void)d, (void)min, (void)max, (void)who;
    return false;
}
static void no_bounds(Query *q, const Graph *g, Dim d, int64_t *min, int64_t *max)
{
    (void)q, (void)g, (void)d;
    *min = INT64_MIN;
    *max = INT64_MAX;
}
static bool no_scalar(Query *q, uint32_t scalar, const char *who, uint64_t *bits)
{
    (void)q, (void)scalar, (void)who, (void)bits;
    return false;
}
static uint32_t mark(Query *q)
{
    (void)q;
    return 0;
}
static void undo(Query *q, uint32_t at) { (void)q, (void)at; }
static Query nothing = {no_int, no_same, no_range, no_bounds, no_scalar, mark, undo};

#endif
