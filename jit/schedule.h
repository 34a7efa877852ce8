/*
 * How a CPU runs a kernel, as data: chosen by rules (jit/rules.h; products: jit/llvm/cpu/contract.c) from the kernel's text, the width of the
 * vectors and the keyed options; printed, parsed, checked; lowering reads it and decides none of this again. It never changes a result.
 *
 *     schedule 512; along i; lanes 32; tail mask; body twice; prefetch off; split never // points, light
 *
 * KILN_LOG=nest prints each kernel with its schedule, the rules that gave it and the loops that this makes of it (jit/nest.h), and the option `schedule` names a file
 * of such texts: a kernel whose text is in it runs as the schedule below says. `;` or a new line ends a directive.
 */
#ifndef JIT_SCHEDULE_H
#define JIT_SCHEDULE_H

#include "jit/kernel.h"

enum { SCHEDULE_STAGES = 32, MOST_LANES = 64, MOST_STRIP = 256, MOST_SHARES = 64, MOST_LISTS = 15 };
typedef enum SplitWhen { SPLIT_NEVER, SPLIT_ASKED, SPLIT_ALWAYS } SplitWhen;
typedef enum TailWay { TAIL_MASK, TAIL_SCALAR, TAIL_EARLIER } TailWay;
typedef enum BodyCopies { BODY_TWICE, BODY_ONCE } BodyCopies;
typedef enum Way { WAY_DIRECT, WAY_PACKED, WAY_STRIPS, WAY_DOTS } Way;

typedef enum SchedulePrefetch { PREFETCH_OFF, PREFETCH_ON, PREFETCH_PAGES } SchedulePrefetch; /* by lines; by pages */

typedef struct Schedule {
    int64_t bits; /* of a vector: the target's */
#define DIRECTIVE(forms, field, kind, help) int64_t field;
#include "jit/directives.def"
#undef DIRECTIVE
    uint32_t n_stages;                    /* 0: each stage has `lanes`; else how many are listed */
    uint8_t stage_lanes[SCHEDULE_STAGES]; /* lanes of each stage */
    uint64_t rules;                       /* that gave it: a bit for each row of jit/rules.def; 0: a file did. Not in the text */
} Schedule;

/* Are several rows of windows a tile (jit/overlap.h)? With folds `rows` is that, without them a band. */
static inline bool schedule_overlaps(const Schedule *s) { return s->rows && s->unroll; }

/* What a kernel allows. */
typedef struct ScheduleFacts {
    const Schedule *own; /* kiln's */
    bool product;        /* FORM_CONTRACT */
    uint32_t n_x, n_r, n_stages;
    int64_t order_lanes;   /* of its folds in lanes */
    uint32_t cut;          /* axes that can be in pieces, a bit each */
    bool inside;           /* the last x axis is that of windows with edges, or of elements that ask for theirs */
    bool overlap;          /* rows of windows can be tiles together */
    bool twice;            /* points may be computed twice: what they store is no part of what is read */
    bool carries;          /* a loop of the graph's */
    bool columns, strips;  /* one stage of reductions, or some, none of them in order or of places */
    int64_t last_x;        /* points of the last x axis, where that is constant; else 0 */
    int64_t points;        /* of the r axes, where that is constant; else 0 */
    bool in_order;         /* running sums or scatters: r is walked element by element */
    bool regular, along_k; /* product: only one operand varies along the lanes; that one is contiguous along the sum */
    int64_t vector;        /* product: elements of a vector */
    int64_t place_rows;    /* product: points of a row of the image that is read where it lies; 0: it is no constant, or nothing is */
} ScheduleFacts;

/* One line, without its end. */
void schedule_print(const Schedule *s, const Kernel *k, Str *out);
/* Looks for k's text among the kernels of `texts` and changes *s by what is asked below it; none: as it was. ST_FORMAT with line and column. */
Status schedule_find(const char *texts, const Kernel *k, Arena *arena, Schedule *s);
/* Is `texts` a list of kernels with schedules? ST_FORMAT with line and column; ST_OUT_OF_MEMORY. */
Status schedule_check(const char *texts);
/* ST_INVALID with the first sentence of jit/refusals.def that holds. */
Status schedule_verify(const Schedule *s, const ScheduleFacts *facts);

#endif
