/*
 * What a kernel is, as far as its text, the target and the keyed options say: what its schedule is chosen by (jit/rules.c) and, with
 * that, what its nest is made of (jit/nest.c).
 */
#ifndef JIT_KERNEL_FACTS_H
#define JIT_KERNEL_FACTS_H

#include "ir/fold.h"
#include "jit/kernel.h"
#include "jit/schedule.h"

enum { LINE = 64 }; /* bytes of a cache line */

typedef struct KernelFacts {
    Arena *arena;
    const Kernel *k;
    MathMode math;
    int64_t bits; /* of a host's vector */
    bool fours;   /* the host multiplies four bytes at a time */
    InstInfo *info;
    bool *live;    /* instructions that some store needs */
    bool *checked; /* KI_BOUND whose value nobody needs: the index is checked all the same */
    uint32_t n_x, n_r;
    uint32_t n_products; /* of a contraction: several have one each of as many last x axes, which lie beside each other (kernel_beside) */
    uint32_t n_stages;   /* stages that have something to do at the points of the r axes */
    Order order;         /* of the kernel's folds in lanes (kernel_order) */
    bool in_order;       /* the r axes are walked point by point */

    /* Under a schedule. */
    const Schedule *schedule;
    bool heavy;           /* lanes run along r, and a point takes many operations */
    uint32_t n_pieces;    /* of the axis that the schedule cuts */
    const int64_t *piece; /* points of each; -1: not known */
} KernelFacts;

KernelFacts kernel_facts(const Kernel *k, OrderDevice device, MathMode math, int64_t bits, bool fours, Arena *arena);

/* How an index moves along `axis`: not at all, element by element, or some other way. */
typedef enum IndexWalk { INDEX_STAYS, INDEX_STEPS, INDEX_JUMPS } IndexWalk;
IndexWalk index_walk(const Kernel *k, IRef i, uint32_t axis);
bool index_through_value(const Kernel *k, IRef i); /* is a value in it? */
/* Is it a sum of constant multiples of the coordinates of these axes, and of what has none of them? Adds the multiples to times[axis]. */
bool index_linear(const Kernel *k, IRef i, uint32_t axes, int64_t *times);
/* Is it one of multiples of this coordinate by what is the same for all points? */
bool index_steps(const Kernel *k, IRef i, uint32_t axis);
/* Is this index a sum of multiples of coordinates, as far as the two x axes from `first` on, the last ones, go? Counts those that are a row, a
 * column, and others. */
bool index_counts_rows(const Kernel *k, IRef i, uint32_t first, uint32_t count[3]);
/* Is it a load of one row of the axis, the same for all others, that nobody writes to? And is all that a kernel without folds reads and writes such
 * rows, of a number of points that is no constant, rows that lie side by side, and what is the same for all points of these? */
bool load_repeats(const Kernel *k, VRef v, uint32_t axis);
bool rows_repeat(const Kernel *k);
bool index_is_row(const Kernel *k, IRef term, uint32_t axis, IRef size); /* axis * size? */

/* Stores are all that it does: no index is checked, nothing is scattered. */
bool facts_only_stores(const KernelFacts *f);
/* May a point be computed twice? What it stores must not be where something is read. */
bool facts_twice(const KernelFacts *f);

/* The value along which a kernel, which does nothing else, scatters, where that is the same for all x points and as quickly computed for many
 * points of the r axis as for one; or VREF_NONE. */
VRef facts_place(const KernelFacts *f);

/* part[i]: stage `stage` executes instruction i at the r level: its reductions, its stores or the rows saved in it need that.
 * loads_saved: a row that an earlier stage saved is loaded; else (CUDA) it is in registers, or computed again. */
void facts_part(const KernelFacts *f, uint32_t stage, bool loads_saved, bool *part);

/* Scalar operations per point, those that nearly every point computes, and the widest and narrowest element touched. */
typedef struct Weight {
    uint32_t ops, usual;
    unsigned widest, narrowest;
} Weight;
/* Of the body, or of this part of it (NULL: all). Without r axes, what the tiles of a row share under this schedule is no part of it. */
Weight facts_weigh(const KernelFacts *f, const Schedule *s, const bool *part);
/* What one point of the r axes is for a vector of these lanes along x: w's operations, those of the reductions, and the loads, which may
 * be lane by lane. */
int64_t facts_weigh_point(const KernelFacts *f, const Schedule *s, Weight w);
/* Of a heavy body the code is long, and what it reads is asked for ahead. */
bool facts_heavy(const KernelFacts *f, Weight w);

/* Squares of registers (jit/llvm/cpu/squares.c): their side, and whether a load can come in them, with lanes along `along`. */
int64_t square_side(int64_t bits, DType dtype);
bool in_squares(const KernelFacts *f, VRef load, int64_t side, uint32_t along, uint32_t across);

#endif
