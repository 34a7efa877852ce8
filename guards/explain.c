/* Guards and reasons as text for people. */
#include "guards/guards.h"
#include "ir/scalar.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const reason_names[REASON_COUNT] = {
#define REASON(id, name, text) name,
#include "guards/reasons.def"
#undef REASON
};

static const char *const reason_texts[REASON_COUNT] = {
#define REASON(id, name, text) text,
#include "guards/reasons.def"
#undef REASON
};

static const char *const kind_names[GUARD_COUNT] = {
#define GUARD(id, name, text) name,
#include "guards/guards.def"
#undef GUARD
};

const char *guard_kind_name(GuardKind kind) { return kind_names[kind]; }
const char *reason_name(Reason reason) { return reason_names[reason]; }
const char *reason_text(Reason reason) { return reason_texts[reason]; }

/* Size expressions are shallow except for sums of long concatenations; `depth` keeps the text readable. */
static void print_size(const SizeTable *table, uint32_t index, int depth, Str *out)
{
    const SizeExpr *e = &table->at[index];
    if (depth > 8) {
        str_printf(out, "...");
        return;
    }
    switch ((SizeKind)e->kind) {
    case SIZE_CONST: str_printf(out, "%" PRId64, e->value); break;
    case SIZE_FACT: str_printf(out, "s%u", e->a); break;
    case SIZE_ADD:
    case SIZE_MUL:
        str_printf(out, "(");
        print_size(table, e->a, depth + 1, out);
        str_printf(out, e->kind == SIZE_ADD ? " + " : " * ");
        print_size(table, e->b, depth + 1, out);
        str_printf(out, ")");
        break;
    }
}

/* Enough digits to tell any two values of the dtype apart. */
static void print_scalar(DType dtype, uint64_t bits, Str *out)
{
    double value = scalar_to_double(dtype, bits);
    char text[32];
    snprintf(text, sizeof text, "%.9g", value);
    if (dtype == DT_F64 && strtod(text, NULL) != value)
        snprintf(text, sizeof text, "%.17g", value);
    if (dtype_is_float(dtype))
        str_printf(out, "%s", text);
    else if (dtype == DT_U64)
        str_printf(out, "%" PRIu64, bits);
    else
        str_printf(out, "%" PRId64, scalar_to_int(dtype, bits));
}

void guard_print(const GuardSet *set, const Guard *guard, Str *out)
{
    if (guard->kind == GUARD_SCALAR_EQ) {
        str_printf(out, "k%u == ", guard->a);
        print_scalar((DType)guard->dtype, (uint64_t)guard->v, out);
        return;
    }
    if (guard->kind == GUARD_RANGE)
        str_printf(out, "%" PRId64 " <= ", guard->v);
    print_size(&set->sizes, guard->a, 0, out);
    switch ((GuardKind)guard->kind) {
    case GUARD_INT_EQ: str_printf(out, " == %" PRId64, guard->v); break;
    case GUARD_SAME:
        str_printf(out, " == ");
        print_size(&set->sizes, guard->b, 0, out);
        break;
    case GUARD_RANGE:
        if (guard->w == INT64_MAX)
            break;
        str_printf(out, " <= %" PRId64, guard->w);
        break;
    case GUARD_SCALAR_EQ:
    case GUARD_COUNT: break;
    }
}

void guard_print_failure(const Guard *guard, const int64_t *sizes, const Facts *facts, Str *out)
{
    switch ((GuardKind)guard->kind) {
    case GUARD_INT_EQ: str_printf(out, "expected %" PRId64 ", found %" PRId64, guard->v, sizes[guard->a]); break;
    case GUARD_SAME: str_printf(out, "expected two equal sizes, found %" PRId64 " and %" PRId64, sizes[guard->a], sizes[guard->b]); break;
    case GUARD_RANGE:
        if (guard->w == INT64_MAX)
            str_printf(out, "expected at least %" PRId64 ", found %" PRId64, guard->v, sizes[guard->a]);
        else
            str_printf(out, "expected %" PRId64 " to %" PRId64 ", found %" PRId64, guard->v, guard->w, sizes[guard->a]);
        break;
    case GUARD_SCALAR_EQ:
        str_printf(out, "expected ");
        print_scalar((DType)guard->dtype, (uint64_t)guard->v, out);
        str_printf(out, ", found ");
        print_scalar((DType)guard->dtype, facts->scalars[guard->a], out);
        break;
    case GUARD_COUNT: break;
    }
}

uint32_t guard_first_fact(const GuardSet *set, const Guard *guard)
{
    if (guard->kind == GUARD_SCALAR_EQ)
        return UINT32_MAX;
    uint32_t index = guard->a;
    for (;;) {
        const SizeExpr *e = &set->sizes.at[index];
        switch ((SizeKind)e->kind) {
        case SIZE_FACT: return e->a;
        case SIZE_CONST: return UINT32_MAX;
        case SIZE_ADD:
        case SIZE_MUL: index = e->a; break;
        }
    }
}
