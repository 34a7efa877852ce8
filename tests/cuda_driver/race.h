// race.h: who accessed what, and whether that was ordered (race.c).
#ifndef TEST_CUDA_RACE_H
#define TEST_CUDA_RACE_H

#include "tests/cuda_driver/exec.h"

bool race_start(Launch *launch);
void race_end(Launch *launch);
void race_unload(void);                          // no launch will follow
void race_block(Block *block);                   // a block starts
void race_barrier(Block *block, uint32_t warps); // these warps passed a barrier together
void race_warp(Warp *w, uint32_t lanes);         // these lanes passed bar.warp.sync together
void race_fence(Warp *w, uint32_t lane);
// One access of `size` bytes; `fresh` are the bytes that a write will leave, `old` those that are there.
void race_access(Warp *w, const Inst *in, uint32_t lane, Space space, uint64_t address, unsigned size, AccessKind kind, const void *old,
                 const void *fresh);

#endif
