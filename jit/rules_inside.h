/* What the functions of rules share: rules.c has the table, rules_lanes.c, rules_folds.c and rules_rows.c those of loops, rules_product.c those of
 * products. */
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

typedef enum Group {
    ONE_ALONG,
    ONE_SPLIT,
    ALL_AHEAD,
    ONE_LANES,
    ALL_BODY,
    ALL_MORE,
    ONE_SIDES,
    ONE_WAY,
    ONE_TILE,
    ONE_TASK,
    ALL_LAST
} Group;

/* Asks the rules of a group. What they gave before is for the caller to take back. */
void rules_ask(Choice *c, Group group, Weight w, Schedule *s);
void rules_ask_lanes(Choice *c, Weight w, Schedule *s); /* for lanes and body, where a point weighs that */

/* Not more than there are points; of several r axes as many as keep every tile inside one row, so that it is contiguous. */
int64_t rules_fitting_lanes(const KernelFacts *f, const Schedule *s, int64_t lanes);
bool rules_overlap(const KernelFacts *f); /* of windows whose points have code of their own: are several rows of them a tile's? */

/* By a vector, and enough rows, contiguous along k, to be tasks: they are read from end to end. */
bool rows_are_dots(const Choice *c);

/* ---- what rules look at ---- */

static inline const KInst *inst(const KernelFacts *f, VRef v) { return &f->k->inst.at[v]; }

static inline bool has(const Kernel *k, bool (*is)(const KInst *))
{
    for (uint32_t i = 0; i < k->inst.n; i++)
        if (is(&k->inst.at[i]))
            return true;
    return false;
}

static inline bool carries(const KInst *x) { return x->kind == KI_CARRY; }
static inline bool ends(const KInst *x) { return x->kind == KI_NEXT && x->mode == ENDS; }
static inline bool in_lanes(const KInst *x) { return x->order.kind == ORD_LANES; }

static inline bool along_r(const KernelFacts *f, const Schedule *s) { return s->along >= (int64_t)f->n_x; }
static inline bool along_x(const KernelFacts *f, const Schedule *s) { return s->along >= 0 && !along_r(f, s); }

static inline bool has_lanes(const Schedule *s) { return !(s->rules >> RULE_scalar & 1); }

/* Lanes of 32 bits in a vector. */
static inline int64_t one_vector(const KernelFacts *f) { return f->bits / 32; }

static inline bool is_const(const KernelFacts *f, uint32_t axis, int64_t *size)
{
    return kidx_is_const(f->k, f->k->axes.at[axis].size, size);
}

/* Points of the axes that lanes run along, or what is planned for. */
static inline int64_t extent(const KernelFacts *f, const Schedule *s)
{
    if (!along_r(f, s))
        return kernel_extent(f->k, (uint32_t)s->along) * (s->joined ? kernel_extent(f->k, f->n_x - 2) : 1);
    int64_t n = 1;
    for (uint32_t a = f->n_x; a < f->k->axes.n; a++)
        n *= kernel_extent(f->k, a) > 0 ? kernel_extent(f->k, a) : 1;
    return n;
}

/* Points of the r axes, or what is planned for. */
static inline int64_t planned_r(const KernelFacts *f)
{
    int64_t n = 1;
    for (uint32_t a = f->n_x; a < f->k->axes.n; a++)
        n *= kernel_extent(f->k, a);
    return n;
}

/* Points of the r axes, where that is constant; else 0. */
static inline int64_t constant_r(const KernelFacts *f)
{
    int64_t n = f->n_r ? 1 : 0, size;
    for (uint32_t a = f->n_x; a < f->k->axes.n; a++)
        n = is_const(f, a, &size) && !__builtin_mul_overflow(n, size, &n) ? n : 0;
    return n;
}

/* Points of the last x axis, where that is constant; else 0. */
static inline int64_t last_x(const KernelFacts *f)
{
    int64_t n = 0;
    return f->n_x && is_const(f, f->n_x - 1, &n) ? n : 0;
}

/* Folds, none of them in order or of places. */
static inline bool folds_in_strips(const KernelFacts *f)
{
    return f->n_x && f->n_r && f->n_stages && !f->in_order && !has(f->k, inst_has_place);
}

/* The same in one stage. */
static inline bool folds_columns(const KernelFacts *f) { return folds_in_strips(f) && f->n_stages == 1; }

/* AVX2 has no masked access to smaller elements. */
static inline bool has_masks(const KernelFacts *f, Weight w) { return f->bits == 512 || w.narrowest >= 4; }

/* Of few operations. */
static inline bool is_light_fold(const KernelFacts *f, Weight w) { return f->n_r && w.ops <= rule_limit(f->bits, LIMIT_light_fold); }

#define RULE(id, group, gives, sentence) Give give_##id;
#include "jit/rules.def"
#undef RULE

#endif
