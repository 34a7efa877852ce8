/*
 * What code is made for, this host or a CUDA device: what neutral code does otherwise for one than for the other, one row each, and the
 * facts by which keys, entries on disk and messages tell targets apart, one row each.
 */
#ifndef JIT_TARGET_H
#define JIT_TARGET_H

#include "ir/base/str.h"
#include "ir/fold.h"
#include "jit/cuda_target.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum TargetDevice { TARGET_HOST, TARGET_CUDA, TARGETS } TargetDevice;

typedef struct TargetKind {
    TargetDevice device;   /* whose code it is */
    const char *assembly;  /* how files of it end */
    bool nests;            /* a kernel has a schedule and loops that print: jit/rules.h, jit/nest.h */
    bool scans_together;   /* threads share a running fold: lanes along it, and cut among blocks of them */
    bool cuts_products;    /* the sum over k is cut where there are few results: jit/llvm/cuda/parts.c */
    bool sizes_ask;        /* sizes that vary decide at the launch whether folds are cut into tasks, not what is planned for */
    uint32_t cut_stages;   /* of which each is a launch: at most so many can be cut; 0: any number */
    int64_t few;           /* fewer rows than this do not keep it busy; 0: than multiprocessors, twice that where a cut costs no launch */
    int64_t far;           /* a row worth cutting */
    int64_t keeps;         /* bytes of rows of which blocks are tasks and that are kept from one stage to the next; 0: none are */
    bool bands;            /* products and what is done to their rows run some rows at a time: jit/fuse/bands.c */
    bool blocks;           /* blocks of k of a product are tasks, whose sums a phase of its own adds up: jit/fuse/blocks.c */
    bool unites;           /* products of one operand are one kernel: jit/fuse/union.c */
    bool packs;            /* a product computes its operands as it packs them: jit/llvm/cpu/pack.c */
    bool attends;          /* attention is one kernel: jit/fuse/attention.c */
    bool sums_thin;        /* a product with a vector is a sum like others, where it may be added up in another order */
    bool sorts_by_kernels; /* which have arguments of their own, and move places only; else one step moves the elements themselves, too */
    bool aligns;           /* what is aligned is moved 16 bytes at a time, and other places take longer */
    bool narrow_index;     /* 32-bit indices are cheaper where they do: jit/index_width.c */
    bool
        goes_on_when_wrong; /* kernels behind one that finds an index out of bounds were queued: what they overwrite must be able to wait */
} TargetKind;

const TargetKind *target_kind(const CudaTarget *target);
/* In which order floats are folded by code for options->target with these options. All that it follows from is in the key: features, and
 * the options `cpu` and `vector_bits`. */
typedef struct JitOptions JitOptions;
OrderDevice target_order(const JitOptions *options);
/* Does code for options->target, by vectors of so many bits, multiply four bytes at a time (jit/llvm/cpu/factor.c)? It follows from the same. */
bool target_multiplies_fours(const JitOptions *options, int64_t bits);

typedef enum TargetFact {
#define TARGET_FACT(id, name, of, code) TARGET_##id,
#include "jit/target.def"
#undef TARGET_FACT
    TARGET_FACTS
} TargetFact;

const char *target_fact_name(TargetFact fact);
/* Is there such a fact of that kind of target? */
bool target_fact_of(TargetFact fact, TargetDevice device);
/* Does code as LLVM makes it follow from it? */
bool target_fact_codes(TargetFact fact);
void target_fact_print(TargetFact fact, const CudaTarget *target, Str *out);

/* All of what code follows from, in words, for keys in memory. */
enum { TARGET_WORDS = 2 };
void target_words(const CudaTarget *target, int64_t words[TARGET_WORDS]);
bool target_same(const CudaTarget *a, const CudaTarget *b);

#endif
