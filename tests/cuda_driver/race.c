#include "tests/cuda_driver/race.h"
bool race_start(Launch *launch, uint32_t blocks) { (void)launch; (void)blocks; return true; }
void race_end(Launch *launch) { (void)launch; }
void race_block(Block *block) { (void)block; }
void race_barrier(Block *block, uint32_t warps) { (void)block; (void)warps; }
void race_warp(Warp *w, uint32_t lanes) { (void)w; (void)lanes; }
void race_fence(Warp *w, uint32_t lane) { (void)w; (void)lane; }
void race_access(Warp *w, const Inst *in, uint32_t lane, Space space, uint64_t address, unsigned size, AccessKind kind,
                 const void *old, const void *fresh)
{ (void)w; (void)in; (void)lane; (void)space; (void)address; (void)size; (void)kind; (void)old; (void)fresh; }
