/*
 * What a product is (FORM_CONTRACT), as far as its text and the axis along which lanes run say: what its schedule is chosen by
 * (jit/rules_product.c) and its code made of (jit/llvm/cpu/contract.h).
 *
 * Lanes run along one of the x axes (the lane axis, normally n). The operand that varies along it is the lane operand, the other the row
 * operand. Along the row axis the lane operand stays the same (normally m; a batch axis that it is broadcast over does as well).
 *
 * Several products of one left operand (kernel_beside) have it as their row operand and lanes along their columns, an axis of each. Their
 * tiles are numbered through: those of the first, then those of the next.
 */
#ifndef JIT_DOT_FACTS_H
#define JIT_DOT_FACTS_H

#include "jit/kernel_facts.h"

enum { LANE_SIDE, ROW_SIDE, SIDES, NO_AXIS = -1 };
/* Where the way is strips (jit/llvm/cpu/thin.c): points of k that go over all tiles of a task together; tasks that are walked as one; tiles of
 * rows that a task may have. */
enum { STRIP_STEPS = 8, STRIP_TASKS = 4, STRIP_GROUPS = 4 };
enum { PLACE_RUNS = 4 }; /* rows of an image that a tile has, where it has several: what registers hold */

typedef struct DotFacts {
    VRef reduce, operand[SIDES];
    int axis[SIDES];   /* the lane axis and the row axis; NO_AXIS: there is none, one point */
    int outer;         /* an axis of which each point has as many rows more, behind those of the one before; or NO_AXIS (dot_join_rows) */
    bool along[SIDES]; /* that operand lies contiguous along k; of several products: all lane operands do */
    DType in, out, acc;
    int lanes;     /* of a machine's vector */
    int64_t block; /* of k, after which the order starts another chain */
    /* Elements along k that a step of a sum takes: 2 where its order goes by pairs, and where integers are multiplied by pairs, or 4 by fours
     * (jit/llvm/cpu/factor.c), which changes no bit; else 1. */
    int64_t each;
    bool row_signed; /* by fours: the row operand counts as signed, the lane operand as unsigned; or the other way round */
    bool
        flips; /* by fours: which is not so; the lane operand's upper bits are flipped, or the row operand's, and then it is the other way round */
    bool one_block;    /* k is a constant of one block at most */
    bool has_lanes;    /* lanes run along the lane axis ... */
    bool regular;      /* ... along which the row operand stays the same */
    bool sums_rows;    /* of a band in phases, each of which is a block of k (jit/fuse/bands.c) */
    int64_t band_rows; /* of a band whose rows are summed up, too: rows of the blocks that they come in; else 0 */
    int64_t kept;      /* the lane operand is kept in panels of so many points; of several products: some are; 0: it is not */
    int64_t band_row;  /* bytes of a row of what is in a band; 0: nothing is */
    int64_t batch, n[SIDES],
        n_k; /* points, or what is planned for: of the other x axes, of the lane and row axis, of k; of several products the
                                     columns of all */
} DotFacts;

/* `along`: Schedule.along. */
DotFacts dot_facts(const KernelFacts *f, int64_t along);
/* Is a row of what lies along k a few lines only, as a key of attention is? What is read next lies in other rows. */
bool dot_short(const DotFacts *d);
/* The facts of one of several products, d being those of all: its own columns. */
DotFacts dot_product(const KernelFacts *f, const DotFacts *d, uint32_t number);
/* Columns of the product that has most; tiles of that width, of all products. */
int64_t dot_widest(const KernelFacts *f, const DotFacts *d);
int64_t dot_tiles(const KernelFacts *f, const DotFacts *d, int64_t width);
/* The dtype that products of this one are summed up in. */
DType dot_accumulator(DType t);
/* v, or the integer of 16 bits or fewer that it is cast from to one of 32. */
VRef dot_uncast(const Kernel *k, VRef v);
/* So many points does a panel have in which an operand is kept along an axis; 0: it is not. */
int64_t dot_panel(const KernelFacts *f, VRef operand, int axis);
/* Rows are the points of this axis, for each point of another that the row operand varies along and the lane operand does not. */
void dot_join_rows(const KernelFacts *f, DotFacts *d, int rows);

/* Windows of images whose points along an axis can be read where they lie. */
typedef struct DotPlaces {
    IRef row;       /* so many of them, from each multiple of that on, lie evenly: a row of the image. All points are whole rows */
    bool fixed;     /* that is a constant ... */
    int64_t length; /* ... this one */
    int64_t apart;  /* elements from one to the next */
    bool pairs;     /* steps 2n and 2n + 1 lie side by side, and there is no odd one behind them */
} DotPlaces;

/* Is v such windows? */
bool dot_places(const KernelFacts *f, VRef v, int axis, DotPlaces *out);
/* Of the tiles of so many rows that go over a row of the image: how many have one row less, so that no point is in two of them. 0: none, or
 * that is not enough, or the length is no constant, and then the last tile begins earlier. */
int64_t dot_places_lower(const DotPlaces *p, int64_t rows);
/* Of how many rows of the image such a tile has rows: more than 1 where they are shorter, and then it has each whole. */
int64_t dot_places_runs(const DotPlaces *p, int64_t rows);
/* Have all tiles so many rows, and none has one of another? */
bool dot_places_whole(const DotPlaces *p, int64_t rows);
/* Does all that is stored lie contiguous along an axis? */
bool dot_stored_along(const KernelFacts *f, int axis);
/* Points of an axis, or what is planned for: 1 at least. */
int64_t dot_about(const KernelFacts *f, int axis);
/* The lane operand's axis as the graph has it, n, of several products that of the first, and the one before it; or NO_AXIS. */
int dot_last(const KernelFacts *f);
int dot_before(const KernelFacts *f);
bool dot_varies(const KernelFacts *f, VRef v, int axis);
bool dot_is_const(const KernelFacts *f, int axis);

/* Under a schedule: the same with rows joined, where they are read where they lie; whether lanes run along the rows in what follows the sum
 * (what is stored lies contiguous along them), and how many. */
DotFacts dot_scheduled(const KernelFacts *f);
/* Are the panels of its lane operand those of the tiles, and so read where they lie? */
bool dot_reads_panels(const KernelFacts *f, const DotFacts *d);
bool dot_turned(const KernelFacts *f, const DotFacts *d);
int64_t dot_row_lanes(const Schedule *s);
/* Of a machine's vector; of rows read where they lie, in tiles of half a vector, that half. */
int dot_lanes(const DotFacts *d, const Schedule *s);

#endif
