/* The costs that fusion (jit/fuse/cost.c) and rematerialisation (jit/remat.c) share. Their unit is one cheap op on one element. */
#ifndef JIT_FUSE_COST_H
#define JIT_FUSE_COST_H

enum {
    COST_COSTLY = 5,     /* an op of OPF_COSTLY */
    COST_STORE = 5,      /* touching four bytes of memory (PERFORMANCE.md section 1) */
    COST_LAUNCH = 100000 /* a kernel is worth its launch when it saves this many */
};

#endif
