/*
 * An axis in pieces (the directive of that name). What puts tensors beside one another (concat, stack, roll, pad) chooses by comparing a
 * coordinate with where each begins. Instead of asking that of every element, the axis is cut there:
 *
 *     for j < 3072                              for j < 1024 { store a0[j] }
 *         store j < 1024 ? a0[j] : ...          for j in [1024, 2048) { store a1[j - 1024] }  ...
 *
 * Each piece has a loop of its own (jit/nest.h), in which the comparisons, what follows from them and the predicates of accesses are
 * known; of a `where` only the side that holds is there. So a piece that computes nothing is a copy.
 *
 * Windows (kernels with r axes) ask for each of their points whether it is inside the image: k*2 + m >= 1 and k*2 + m < 113. Of the tiles
 * of lanes along k most have no point outside. Those are `inside`: whether the comparisons hold for the first and the last lane at the first
 * and the last point of the window is asked once a tile, and in the code for such a tile they are known.
 *
 * Kernels without r axes have insides, too, where comparisons ask for several axes: gradients of windows, whose elements ask along each axis
 * whether there are windows before and after them. Of windows that are two apart every second row of an image is in one row of them, the others
 * are in two: (j + 1)%2 + 2 < 3. Such a comparison, the same for all of a row, is its `choice`: there is code for either answer.
 *
 * A cut is a sum of sizes; of two cuts it must follow from the sizes' being natural which one comes first, so that a piece's comparisons
 * are the same at every call. Pieces are of kernels without r axes and of a product's operands where they are packed (jit/llvm/cpu/pack.c),
 * insides of others that have some.
 */
#ifndef JIT_PIECES_H
#define JIT_PIECES_H

#include "jit/kernel_facts.h"

enum { MOST_PIECES = 17, CUT_TERMS = 8 };

typedef struct CutTerm {
    IRef of; /* IREF_NONE: 1 */
    int64_t times;
} CutTerm;

typedef struct Cut {
    uint32_t n;
    CutTerm term[CUT_TERMS];
} Cut;

typedef struct Pieces {
    uint32_t axis, n;          /* pieces */
    Cut cut[MOST_PIECES];      /* the first n - 1: where the next piece begins */
    int8_t *says[MOST_PIECES]; /* of each piece, per instruction: 0 or 1 where it is a bool and known there, else -1 */
} Pieces;

typedef struct Inside {
    uint32_t n;
    VRef *holds; /* the comparisons, of a coordinate, which grows along its axes, and a number */
    VRef choice; /* or VREF_NONE */
    /* What follows from them, and from those alone that a row says for all of its tiles, as in Pieces; where the choice does not hold, and does
     * (no choice: both are the same). */
    int8_t *says[2][2];
    bool *asks; /* computed from one of them, or the choice: where something is known of it, it is another value, and no row's */
} Inside;

const Inside *inside_of(const KernelFacts *f, uint32_t axis); /* NULL: none is of a coordinate of this axis, along which the lanes run */
/* Of a kernel without r axes: are most points, where all of them hold, by constants? */
bool inside_mostly(const KernelFacts *f, const Inside *in);
const Pieces *pieces_of(const KernelFacts *f, uint32_t axis); /* NULL: comparisons do not cut it, or where is not known */
bool pieces_lengths(const Kernel *k, const Pieces *p, int64_t length[MOST_PIECES]); /* -1 where that is no constant; all are: true */
void piece_part(const KernelFacts *f, const Pieces *p, uint32_t piece,
                bool *part); /* part[i]: instruction i is in the loop of this piece */

#endif
