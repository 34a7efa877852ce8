/*
 * A program: one compiled variant of a graph. Plain data (kernels as code, launch plan, buffer plan, guards, texts): nothing
 * in it points into a graph or names an address of a tensor, and nothing here needs LLVM.
 *
 * Made by jit/compile.c, kept by cache/memory.c, run by runtime/eval/launch.c. Reference-counted: a program that is
 * evicted while it runs lives until the run ends.
 */
#ifndef JIT_PROGRAM_H
#define JIT_PROGRAM_H

#include "guards/guards.h"
#include "jit/kernel_table.h"
#include "jit/plan.h"

#include <stdatomic.h>

typedef struct ProgKernel {
    CompiledKernel *compiled; /* shared with every program that has an equal kernel */
    const char *name;
    double cost; /* rough nanoseconds per point: grain of parallel work */
} ProgKernel;

enum { NO_OFFSET = 0xffffffffu };

typedef struct ProgBuffer {
    uint8_t kind, dtype;  /* BufferKind, DType */
    uint32_t index;       /* INPUT: which */
    uint32_t numel;       /* size entry */
    uint32_t row;         /* BAND: size entry, elements of a row */
    uint32_t slot;        /* TEMP; BAND: of a thread's own */
    uint32_t alias_input; /* OUTPUT: input *index* whose storage it may take over, or NO_BUFFER */
    uint32_t offset; /* TEMP: size entry, elements from the beginning of the slot, in which a bucket lies; NO_OFFSET: it begins there */
} ProgBuffer;

typedef struct ProgArg {
    uint8_t kind;   /* BindKind */
    uint32_t value; /* buffer, size entry, scalar or host scalar */
} ProgArg;

typedef struct ProgStep {
    uint8_t kind; /* StepKind */
    bool descending, values;
    uint8_t dtype; /* SORT: of the input */
    uint32_t kernel;
    uint32_t first_arg, n_args;
    uint32_t bytes; /* size entry: bytes read and written */
    const char *what;
    uint32_t n_in, n_results;  /* LOOP, COND, CALL: of the node (ir/body.h), ... */
    uint16_t carries, xs;      /* ... of a LOOP too, ... */
    uint8_t reverse, n_bodies; /* ... and its bodies: Program.bodies from ... */
    uint32_t body;
    uint32_t place; /* canonical number of the node, for messages */
} ProgStep;

/* Steps that are run together, some rows at a time (jit/fuse/bands.c). */
typedef struct ProgBand {
    uint32_t first, n, batch, rows; /* steps; size entries */
} ProgBand;

/*
 * A body of a LOOP or COND (ir/body.h) is a program inside of another one: its buffers, steps, arguments, faults and host scalars are its
 * own; its kernels and sizes are those of the program around, guards and everything else it has not. So is what makes a value that is kept.
 */
typedef struct Program {
    atomic_uint refs;
    GuardSet guards; /* holds the size table too */
    ProgKernel *kernels;
    struct Program *
        *bodies; /* of steps, and behind these n_constants that make, each of some of the call's inputs alone, a value that is kept */
    ProgBuffer *buffers;
    ProgStep *steps;
    ProgArg *args;
    ProgBand *bands;   /* in the order of their steps */
    uint32_t *outputs; /* buffer of each output */
    uint32_t *faults;  /* canonical node of each fault id - 1 */
    HostScalar *host;  /* scalars made of the call's, at each launch */
    uint32_t n_kernels, n_buffers, n_steps, n_args, n_outputs, n_faults, n_host, n_slots, n_band_slots, n_bands, n_bodies;
    uint32_t n_inputs, n_constants; /* the call's inputs; those behind are what the constants make (runtime/eval/constants.h) */
    struct Recipe *recipe;          /* of one of those */
    uint32_t max_step_args;
    uint8_t math;    /* MathMode: of the host scalars */
    bool takes_over; /* some output may take over an input's storage */
    bool inner;      /* it is a body */
    bool general;    /* every size is an argument: without guards it accepts all of its structure and signature */
    size_t bytes;    /* memory it holds, code included */
    double compile_seconds;
    double seconds;       /* that its last launch on a CPU took where several threads evaluate; 0: none did. Under the evaluation lock */
    int64_t traced;       /* in a trace: when its compile in the background began, on ... */
    uint32_t traced_lane; /* ... which lane; `traced` 0 after its first use */
    char id[17];          /* how the log calls its graph: the beginning of such a name; "": nobody said */
    char entry[64];       /* the name under which it lies in the cache on disk; "": it does not */
    char *texts;          /* names, and who asked for a guard where that is no static text; owned */
} Program;

Program *program_retain(Program *program);
void program_release(Program *program);

/*
 * What makes a value that is kept, as words: two that compute the same have the same words, whichever program they lie in. Kernels by their
 * addresses (equal ones are one, jit/kernel_table.h); inputs, sizes and scalars of the program around by the order of their first use,
 * listed.
 */
typedef struct Recipe {
    uint64_t hash; /* of the words */
    uint32_t n_words, n_inputs, n_sizes, n_scalars;
    uint64_t *word;
    uint32_t *input, *size, *scalar;
} Recipe;
Recipe *recipe_new(const Program *constant); /* one block; NULL: out of memory */

/* Sets `bytes`, of what it has so far; `text_bytes` of it are its texts. */
void program_weigh(Program *program, size_t text_bytes);

/* What makes input n_inputs + k. */
static inline struct Program *program_constant(const Program *p, uint32_t k) { return p->bodies[p->n_bodies - p->n_constants + k]; }

/* How it is called where it is spoken of, which `kiln cache show` takes where it lies on disk; "?": nobody said. */
const char *program_name(const Program *program);

/* Does it call functions of the user's or of a library, itself or in a body? */
bool program_calls(const Program *program);

uint32_t program_output(const Program *program, uint32_t buffer); /* the first of the outputs that are this buffer, which is one */
/* Bytes of outputs and temporaries at once, with these sizes (sizes_eval of the program's facts); a double, as sizes may be anything. */
double program_memory(const Program *program, const int64_t *sizes);

/* The readable launch plan: steps, arguments, buffers, guards. */
void program_print(const Program *program, Str *out);

#endif
