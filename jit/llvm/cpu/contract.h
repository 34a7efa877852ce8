/*
 * Products on the host, FORM_CONTRACT: out[batch..., m, n] = epilogue(sum over k of a[batch, m, k] * b[batch, k, n]).
 *
 * The lane axis and the row axis (jit/dot_facts.h) are cut into tiles of `rows` x `width`, which is what registers hold. Four ways to make the tiles of a task:
 *
 *     packed   both operands are copied to panels of tiles first, then the micro-kernel multiplies (tile.c, pack.c); windows of images are
 *              read where they lie (place.c)
 *     direct   small products: the micro-kernel's work, but with the operands where they are (thin.c)
 *     strips   few rows, a wide lane operand: some rows of k at a time go over the whole width of the task, or of some tasks (thin.c)
 *     dots     few rows, a lane operand that is contiguous along k: squares of it are transposed in registers (thin.c)
 *
 * Which loops that makes says the nest (jit/nest_product.c); contract.c walks it, with a function for each kind of node. A product that
 * sums up rows of a band (jit/fuse/bands.c) does a block of them in each phase.
 *
 * In all of them blocks of the order's steps of k are chains of FMAs from +0 and their results are added in order (ir/orders.def). By pairs a step
 * takes two elements of bf16 or small ints at once, or four bytes (factor.c). So nothing that is decided here changes a bit. What is decided are directives of the schedule (jit/rules_product.c).
 */
#ifndef JIT_LLVM_CPU_CONTRACT_H
#define JIT_LLVM_CPU_CONTRACT_H

#include "jit/dot_facts.h"
#include "jit/llvm/build.h"

enum { MOST_ROWS = 14, MOST_HEIGHTS = 6, MOST_SQUARES = 2 };
/* What a task is of: results; a block of k, whose sums are kept; or results again, for which these are added. */
typedef enum TaskOf { TASK_WHOLE, TASK_BLOCK, TASK_COMBINED } TaskOf;
enum { FLAGS_ZERO, FLAGS_FINITE, FLAGS };
/* Rows of a band that have spans: what the kernel makes, its row operand, what is read for each sum. */
enum { SPAN_MADE, SPAN_ROWS, SPAN_BESIDE, SPANS };
#define NO_SPAN UINT32_MAX

typedef struct Span { /* columns [first, end), outside of which rows are +0 */
    LV first, end;
} Span;

/* One of several products that have the row operand in common, or the only one. */
typedef struct OneProduct {
    DotFacts dot;
    LV n, first, tiles, points; /* columns; the number of the first tile, of all that there are; tiles; x points */
} OneProduct;

typedef struct Contract {
    DotFacts dot;
    LLVMTypeRef vector;
    Way way;
    int64_t rows, width;                    /* of a register tile */
    int64_t panels;                         /* of the lane operand that are packed at once */
    int64_t block_rows, block_tiles;        /* of a task; rows are whole groups of `rows` */
    int64_t together;                       /* so many tasks of one row of tasks are walked as one, at most */
    int64_t panel_at, rows_at, part, bytes; /* offsets in scratch, sums are at 0; bytes of it. In place: offsets of steps at rows_at */
    bool kept;           /* packed: the lane operand (of several products the one at hand) is read in panels that are kept */
    bool some_kept;      /* of several products */
    int64_t most_steps;  /* of k, in a panel */
    bool one_tile;       /* the scratch has sums of one tile only: each is finished at once */
    bool folds;          /* a phase is a block of k: sums lie in ARG_SCRATCH from one to the next */
    TaskOf task_of;      /* of the phase at hand */
    uint16_t together_k; /* node: blocks that are tasks of one phase; then what they have is added */
    int64_t in_place;    /* packed: rows of a tile lie so many elements apart and are read where they are (place.c); 0: they are packed */
    DotPlaces places;    /* in place */
    int64_t runs;        /* in place: rows of the image that a tile has, each whole; else 1 */
    /* Rows that tiles may have, `rows` first. In place: all of a launch, or `lower` tiles of a row of the image; packed: all of a task, and
     * the last one. */
    int64_t height[MOST_HEIGHTS];
    int heights;
    int64_t lower;     /* in place: of a row of the image the last so many tiles have rows - 1, height[1], and none overlap */
    bool turned;       /* in place: what is stored lies contiguous along the rows, and lanes run along them in the epilogue */
    int64_t row_lanes; /* so many */
    int64_t turned_at; /* in scratch: there, a tile's sums as [width][place_stride] */
    VRef wanted;     /* packed: only where this bool is true, `unless`: false, does a store read the sum; VREF_NONE: everywhere (skip.c) */
    int8_t *says[2]; /* what is known where no store reads it, and where each does (Emit.says) */
    bool unless, zeros;          /* zeros: blocks of the row operand may be +0 */
    bool spans;                  /* the kernel heeds all its ARG_SPANS, and has some (spans.c) */
    uint32_t span_arg[SPANS];    /* which these are; NO_SPAN: none */
    VRef beside;                 /* the load of what has SPAN_BESIDE */
    Span rows_span, beside_span; /* of the task's block of rows */
    int64_t flags_at[FLAGS];
    bool flips[SIDES];                     /* by fours: which operand's upper bits are flipped: rows while they are packed, lanes of dots */
    bool row_signed;                       /* by fours: then, is it the row operand that counts as signed? */
    int64_t starts_at;                     /* packed, upper bits flipped: in scratch, what the tile's sums of each column start with */
    LV multiply[MOST_HEIGHTS], square;     /* packed: the micro-kernel, of each height; transposes a square, NULL: nothing lies along k */
    LV row_length, row_groups, row_height; /* in place: of a row of the image: points, tiles; rows of each tile, one of `height` */
    LV n[SIDES], n_k, row_blocks, tile_blocks, tiles,
        sums;      /* of several products: n of the lanes is that of the one at hand, tiles of all */
    LV end[SIDES]; /* n, or where the rows of the task end */
    OneProduct *product;
    LV k_blocks, k_together, parts; /* blocks as tasks: of k; of a phase; what they have, parts of so many tasks each */
    LV row0, row1;                  /* of the task */
    LV tile0, tile1;                /* the same; of several products, of the one at hand, which counts its own */
    LV sums_tile; /* the tile whose sums come first in the task's: tile0; of several products the task's first one, counted so, too */
    /* where the walk is */
    LV k0, k1;                                /* of the block */
    LV groups, group, first;                  /* of the task; counted in it; direct, dots: the group's first row */
    LV group_rows;                            /* from one group to the next: `rows`, or a lower height, and then panels have more */
    LV panel0, panel1, tile;                  /* the first of the tiles whose panels are packed, the one behind them; this one */
    bool settled;                             /* direct: it is known how many lanes this tile has: ... */
    int64_t lanes;                            /* ... of so many at once, ... */
    LV left;                                  /* ... so many, fewer than `width`; NULL: all */
    bool even;                                /* direct: each group has `rows` rows */
    LV zero_groups;                           /* `zeros`, i1: has any group's panel a block of zeros? */
    LV in_block[MOST_ROWS], total[MOST_ROWS]; /* direct, dots: places of a tile's sums, of the block and of those before */
    LV more[MOST_ROWS];                       /* dots: what flipped bits have added to the block's sums of each row, in all lanes */
} Contract;

/* From a row's sums to the next one's, in elements. */
static inline int64_t sums_apart(const Contract *c) { return c->settled ? c->lanes : c->width; }

typedef void ProductFn(Emit *e, Contract *c, const NestNode *node);
void product_inside(Emit *e, Contract *c, const NestNode *node); /* all that is in a node */

/* tile.c */
LV tile_function(Emit *e, const Contract *c, int64_t rows);
/* square(from [lanes][lanes], to, stride): vectors stride elements apart. */
LV square_function(Emit *e, const Contract *c);
void tile_transpose(Emit *e, LV *v, int n); /* n vectors of n elements, in place */
/* Of vectors of n elements those of each word, of as many elements as there are vectors: what one instruction interleaves at will, tile_word elements. */
void tile_transpose_words(Emit *e, LV *v, int n, int word);
int tile_word(const Emit *e, LLVMTypeRef element, int n);
LV add_block(Emit *e, const Contract *c, LV total, LV block, LV first); /* first (i1): of the blocks, nothing is there yet */

/* pack.c */
typedef struct Panels {
    LV first, count; /* the first point along the operand's axis; panels */
    LV apart;        /* points from one panel to the next: as many as a panel has, or fewer, and then both have some of them */
    int64_t width;   /* points of a panel */
    LV to;           /* [count][most_steps][width], panel_stride apart */
} Panels;
/* From one panel to the next, in elements: vectors that are wider than a step reach past the last one, and the next panel is there already. */
static inline int64_t panel_stride(const Contract *c, int64_t width)
{
    bool whole = width >= c->dot.lanes && (width & (width - 1)) == 0;
    return c->most_steps * width + (whole ? 0 : MAX_LANES);
}
/* Points [k0, k1) of k. Writes past the last panel as well, by less than PACK_SLACK bytes. */
enum { PACK_SLACK = 4096 };
void pack_panels(Emit *e, const Contract *c, int side, const Panels *panels, LV k0, LV k1);
/* What the flipped bits of rows add to the sums of each column of a lane panel is known before they are multiplied: less that much they start. */
void pack_starts(Emit *e, const Contract *c, LV panel, LV to);

/* place.c: rows that are read where they lie. What they read is asked for so many steps before. Tiles are counted as if each had `rows`. */
enum { PLACE_AHEAD = 27 };
typedef struct PlaceGroup {
    LV base, height; /* a tile has rows from `base` on, so many of them */
    LV first, count; /* those that no other has: the first, how many */
} PlaceGroup;
void place_plan(const Emit *e, Contract *c);
bool place_whole(const Contract *c);                            /* all tiles have `rows` rows that no other has */
uint16_t place_rows(Emit *e, const Contract *c, uint16_t rows); /* node: of so many points, rows of tiles */
void place_sizes(Emit *e, Contract *c);                         /* row_length and so on, and n of the rows */
PlaceGroup place_group(Emit *e, const Contract *c);             /* the tile that the walk is at */
LV place_row(Emit *e, const Contract *c, LV row, LV k);         /* where a row is at a step of the sum */
void place_offsets(Emit *e, const Contract *c, LV k0, LV k1);   /* bytes from step 0 to steps [k0, k1 + PLACE_AHEAD), to the scratch */
int64_t place_stride(const Contract *c);                        /* elements from a column to the next of turned sums */
/* At a column of this tile, counted in it, with lanes along the rows. */
typedef void PlaceColumnFn(Emit *e, const Contract *c, const PlaceGroup *g, LV column);
void place_ask(Emit *e, const Contract *c, PlaceColumnFn *ask);       /* at each column of this tile, for the last row's line */
void place_epilogue(Emit *e, const Contract *c, const PlaceGroup *g); /* of this tile */

/* factor.c */
/* Are factors of a band, and in tiles other factors and sums, zeros where they are below the least normal (ir/orders.def)? */
bool contract_flushes(const Emit *e, const Contract *c);
/* The factor of a step at k, in the accumulator's dtype, all lanes at hand; of `n` elements: fewer than a step has are the last ones. */
LV contract_factor(Emit *e, const Contract *c, int side, LV k, int64_t n);
LV contract_factors(Emit *e, const Contract *c, int side, LV k); /* of steps from k on, one in each lane of a vector */
/* a of the row operand, b of the lane operand. */
LV contract_step(Emit *e, const Contract *c, LV sum, LV a, LV b);
LV contract_flip(Emit *e, unsigned lanes); /* what flips the upper bits of bytes */
/* For points [k0, k1) of k from `from` on, step by step: body(factors of how many elements), and once more for the last ones that are no whole step. */
typedef void StepFn(Emit *e, const Contract *c, const Loop *loop, int64_t n, void *user);
void contract_steps(Emit *e, const Contract *c, LV from, LV k1, const char *name, StepFn *body, void *user);
LV contract_steps_of(Emit *e, const Contract *c, LV points); /* how many steps: points by a step's elements, rounded up */

/* contract.c */
void contract_k(Emit *e, LV k, bool lanes);              /* the coordinate along k: uniform, or of lanes */
void contract_anew(Emit *e, int level);                  /* another point along an axis: nothing of that level or below holds */
void contract_row(Emit *e, const Contract *c, LV row);   /* the coordinate along the row axis */
void contract_tile(Emit *e, const Contract *c, LV tile); /* that along the lane axis, of a tile's lanes, and its mask: mask_end */
/* The place of the sums of this tile: [rows][width]. */
LV contract_sums(Emit *e, const Contract *c);
LV contract_first_row(Emit *e, const Contract *c);      /* of the group */
void contract_stores(Emit *e, const Contract *c, LV v); /* what is made of these lanes' sums */
LV contract_load(Emit *e, const Contract *c, LV at);    /* as many lanes as there are now */
void contract_store(Emit *e, const Contract *c, LV v, LV at);
LV contract_slot(Emit *e, const Contract *c, int64_t offset, LV element); /* of the scratch */

/* skip.c: what a packed product need not multiply. In scratch, flags: by group; by panel */
void skip_plan(const Emit *e, Contract *c);
int64_t skip_bytes(const Contract *c, int which);
LV skip_flags(Emit *e, const Contract *c, int which);
LV skip_look(Emit *e, const Contract *c);              /* i1: may any tile of the panels at hand be wanted? */
LV skip_wanted(Emit *e, const Contract *c, bool read); /* i1: may a point of this tile be one whose sum is read; false: is not? */
LV skip_may_want(Emit *e, const Contract *c, LV tile0, LV tile1, LV row0, LV row1); /* i1: of these tiles and rows */
LV skip_pack_rows(Emit *e, const Contract *c, LV whole);             /* `zeros`, along k: packs the others. i1, and `whole`: as ... */
LV skip_pack_columns(Emit *e, const Contract *c, LV whole);          /* `zeros`, rows that have spans, summed up: likewise */
void skip_pack_zeros(Emit *e, const Contract *c, LV group, LV rows); /* where that has not packed them */
/* Those of groups [first, end). i1: has any group's panel a block of zeros? `whole`: of a block. */
LV skip_find_zeros(Emit *e, const Contract *c, LV first, LV end, LV whole);
void skip_find_finite(Emit *e, const Contract *c, LV panels, int64_t stride, LV count, LV some); /* so many, `stride` elements apart */
LV skip_is_zero(Emit *e, const Contract *c, LV tile, LV group);
void skip_add_zeros(Emit *e, const Contract *c, LV sums, LV first);

/* spans.c */
void spans_plan(const Emit *e, Contract *c, bool rows_are_tasks);
void spans_begin(Emit *e, Contract *c, LV block); /* of a task, by the number of its block of rows among all */
LV span_outside(Emit *e, Span s, LV from, LV to); /* i1: is none of the columns [from, to) in it? */
LV spans_beside(Emit *e, const Contract *c);      /* i1: is what is read beside this tile outside, and zeros? */

/* thin.c */
void thin_sums(Emit *e, Contract *c); /* places for the sums of a tile; to the scratch, behind the last block */
void thin_sums_end(Emit *e, const Contract *c);
ProductFn thin_start, thin_merge, direct_tile, direct_steps, dots_steps, strip_start, strip_steps, strip_merge;

#endif
