/* Parts of vectors in memory: under a mask, and of a row's last tile. */
#ifndef JIT_LLVM_CPU_TAILS_H
#define JIT_LLVM_CPU_TAILS_H

#include "jit/llvm/build.h"

/* At least `bytes` of stack that is 0 and never written to: what is loaded where a predicate is false. */
LV zeros(Emit *e, unsigned bytes);
/* Never read: what a store goes to where its predicate is false. */
LV sink(Emit *e, unsigned bytes);
unsigned tile_bytes(const Emit *e, unsigned align);

/* Lanes of one masked access of contiguous elements of so many bytes; 0: the machine has none. */
unsigned lanes_at_once(const Emit *e, unsigned bytes);
LV lane_of(Emit *e, LV v, unsigned lane);
/* The mask of the part of a tile that begins at lane `from`: `n` lanes, those past the tile's off. */
LV part_mask(Emit *e, LV mask, unsigned from, unsigned n);
/* A tile of contiguous elements; mask NULL: all of it. */
LV masked_load(Emit *e, LLVMTypeRef element, LV ptr, LV mask, unsigned align);
/* May elements of that size be loaded by pairs, where the machine has no masks for them? */
bool pairs_hold(const Emit *e, unsigned align);
/* Of those every second one, as i16. */
LV load_every_second(Emit *e, LV ptr, LV mask);
void masked_store(Emit *e, LV v, LV ptr, LV mask, unsigned align);

/* Code for a whole tile beside code for the last one, of which one is run. */
typedef struct Fork {
    LLVMBasicBlockRef from[2], join;
} Fork;

bool forks(const Emit *e);
Fork fork_begin(Emit *e);                         /* in front of a whole tile's access */
LV fork_last(Emit *e, Fork *f);                   /* between that and the last tile's; its mask */
LV fork_end(Emit *e, Fork *f, LV whole, LV last); /* the one of both that was run; NULL where they are stores */

/* Contiguous elements, stride 1 or -1, of a tile that may be the last one, by way of the stack. */
bool stages(const Emit *e, int64_t stride, const Val *pred);
LV stage_load(Emit *e, LLVMTypeRef element, LV at, int64_t stride, unsigned align);
void stage_store(Emit *e, LV v, LV at, int64_t stride, unsigned align);

#endif
