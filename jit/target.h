/*
 * What code is made for, this host or a CUDA device: what neutral code does otherwise for one than for the other, one row each, and the facts by
 * which keys, entries on disk and messages tell targets apart, one row each.
 */
#ifndef JIT_TARGET_H
#define JIT_TARGET_H

#include "ir/base/str.h"
#include "ir/fold.h"
#include "jit/cuda_target.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct TargetKind {
    OrderDevice order;     /* in which floats are folded */
    const char *assembly;  /* how files of it end */
    bool bands;            /* products and what is done to their rows run some rows at a time: jit/bands.c */
    bool attends;          /* attention is one kernel: jit/fuse_attention.c */
    bool sums_thin;        /* a product with a vector is a sum like others, where it may be added up in another order */
    bool sorts_by_kernels; /* which have arguments of their own, and move places only; else one step moves the elements themselves, too */
    bool narrow_index;     /* 32-bit indices are cheaper where they do: jit/index_width.c */
    bool
        goes_on_when_wrong; /* kernels behind one that finds an index out of bounds were queued: what they overwrite must be able to wait */
} TargetKind;

const TargetKind *target_kind(const CudaTarget *target);

typedef enum TargetFact {
#define TARGET_FACT(id, name, of, code) TARGET_##id,
#include "jit/target.def"
#undef TARGET_FACT
    TARGET_FACTS
} TargetFact;

const char *target_fact_name(TargetFact fact);
/* Is there such a fact of that kind of target? */
bool target_fact_of(TargetFact fact, bool cuda);
/* Does code as LLVM makes it follow from it? */
bool target_fact_codes(TargetFact fact);
void target_fact_print(TargetFact fact, const CudaTarget *target, Str *out);

/* All of what code follows from, in words, for keys in memory. */
enum { TARGET_WORDS = 2 };
void target_words(const CudaTarget *target, int64_t words[TARGET_WORDS]);
bool target_same(const CudaTarget *a, const CudaTarget *b);

#endif
