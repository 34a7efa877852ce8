/*
 * Checking guards: the part of a call that decides whether compiled code may be reused. No allocation, no recursion:
 * size expressions were put in order when the program was made, so one pass over a table gives all their values.
 */
#include "guards/guards.h"

void sizes_eval(const SizeTable *table, const int64_t *ints, int64_t *out)
{
    for (uint32_t i = 0; i < table->n; i++) {
        const SizeExpr *e = &table->at[i];
        switch ((SizeKind)e->kind) {
        case SIZE_CONST: out[i] = e->value; break;
        case SIZE_FACT: out[i] = ints[e->a]; break;
        case SIZE_ADD: out[i] = (int64_t)((uint64_t)out[e->a] + (uint64_t)out[e->b]); break;
        case SIZE_MUL: out[i] = (int64_t)((uint64_t)out[e->a] * (uint64_t)out[e->b]); break;
        }
    }
}

bool guard_holds(const Guard *guard, const int64_t *sizes, const Facts *facts)
{
    switch ((GuardKind)guard->kind) {
    case GUARD_INT_EQ: return sizes[guard->a] == guard->v;
    case GUARD_SAME: return sizes[guard->a] == sizes[guard->b];
    case GUARD_RANGE: return guard->v <= sizes[guard->a] && sizes[guard->a] <= guard->w;
    case GUARD_SCALAR_EQ: return facts->scalars[guard->a] == (uint64_t)guard->v;
    case GUARD_COUNT: break;
    }
    return false;
}

bool guards_hold(const GuardSet *set, const int64_t *sizes, const Facts *facts, uint32_t *failed)
{
    for (uint32_t i = 0; i < set->n; i++) {
        if (!guard_holds(&set->at[i], sizes, facts)) {
            *failed = i;
            return false;
        }
    }
    return true;
}

Reason guard_reason(const Guard *guard)
{
    static const Reason reason[GUARD_COUNT] = {
        [GUARD_INT_EQ] = REASON_SIZE,
        [GUARD_SAME] = REASON_SAME,
        [GUARD_RANGE] = REASON_RANGE,
        [GUARD_SCALAR_EQ] = REASON_SCALAR,
    };
    return reason[guard->kind];
}
