/*
 * How a kernel is launched: plain data beside its code, evaluated on the host without LLVM. One form for all devices.
 *
 * A plan is a list of phases, run one after another, each of so many independent tasks. Sizes are expressions over the kernel's
 * ARG_SIZE arguments, kept as nodes that name earlier nodes; where all sizes are fixed they have folded to constants.
 *
 *                 CPU                                          CUDA
 *     phase       a call of run (jit/kernel.h), by number      a launch of an entry function of the PTX
 *     task        what run's lo and hi count                   a block of the grid's x dimension
 *     local       scratch of each thread                       dynamic shared memory of a block
 *     scratch     ARG_SCRATCH, aligned to 64                   ARG_SCRATCH in device memory, aligned to 256
 *     number      `count`, by the sizes: those listed,         as listed
 *                 over and over
 *
 * CUDA: several phases may be launches of one entry, neighbours in the list: it learns from `numbered` which one it is. Every entry
 * takes one parameter: the argument block (one 8-byte slot per Kernel.args entry) by value, or, where the block is larger than
 * GRID_BLOCK_BYTES (`by_pointer`), the device address of a copy of it. What follows the arguments in the block, its tail: the number of
 * the phase, where the plan is `numbered`; then a slot for each of `divisor`, sizes that the kernel divides by: a multiplier and a shift
 * (grid_magic). Blocks that are passed by pointer have no tail. The first GRID_COUNTER_BYTES of ARG_SCRATCH are counters: zero before the
 * first launch that uses this memory, and left zero by every launch, so kernels may share one scratch buffer on one stream. The rest
 * holds anything.
 *
 * Code generation fills in a LaunchBuilder; what it comes to is packed (launch_plan_make), lies so in a kernel's object
 * (jit/kernel_object.h), and is read in place.
 */
#ifndef JIT_LAUNCH_PLAN_H
#define JIT_LAUNCH_PLAN_H

#include "ir/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    LAUNCH_NODES = 512,
    LAUNCH_PHASES = 32,
    LAUNCH_NAME = 80,
    GRID_BLOCK_BYTES = 4096,
    GRID_COUNTER_BYTES = 4096,
    GRID_DIVISORS = 24,
    GRID_TAIL = GRID_DIVISORS + 1
};

typedef enum LaunchOp {
    LAUNCH_CONST,
    LAUNCH_ARG,
    LAUNCH_SMS, /* multiprocessors of the device */
    LAUNCH_ADD,
    LAUNCH_MUL,
    LAUNCH_CEIL_DIV,   /* rounds up; the divisor is taken as at least 1 */
    LAUNCH_CEIL_SHIFT, /* the same by a power of two, whose exponent is constant b: what division by such a constant becomes */
    LAUNCH_MIN,
    LAUNCH_MAX,
    LAUNCH_LESS,   /* 1 or 0 */
    LAUNCH_CHOOSE, /* a, which is 1 or 0: b or c */
    LAUNCH_OPS
} LaunchOp;

typedef struct LaunchNode {
    int64_t value;    /* CONST: the number; ARG: which argument */
    uint16_t a, b, c; /* ADD...: earlier nodes, a and b; CHOOSE: c as well */
    uint8_t op, unused;
} LaunchNode;

typedef struct LaunchPhase {
    uint16_t tasks;   /* node: 0 or less: nothing to launch */
    uint16_t points;  /* node: x times r points, with Kernel.cost an estimate of the work */
    uint16_t local;   /* node: bytes */
    uint16_t threads; /* CUDA: of a block */
    uint16_t entry;   /* CUDA: where the entry's name is in the plan's names */
} LaunchPhase;

typedef struct LaunchPlan {
    const void *packed; /* all of it: what the pointers below lead into */
    size_t bytes;
    uint32_t n_args;                    /* of the kernel */
    uint32_t n_consts, n_read, n_nodes; /* nodes: constants first, then up to n_read arguments, then what is computed */
    uint32_t n_phases, n_divisors;      /* n_divisors: 0 where by_pointer */
    uint16_t scratch;                   /* node: bytes of ARG_SCRATCH */
    uint16_t count;                     /* node, CPU: phases that are run */
    uint16_t rows;    /* node, CPU: so many rows of a band are a task, or tasks beside each other (jit/fuse/bands.c), or, of a product with
                                ARG_SCRATCH, steps of the sum that are a phase; 0: tasks are no rows */
    uint8_t together; /* CPU: so many neighbouring tasks are faster as one run, as long as all threads have some; 0, 1: none */
    bool by_pointer;  /* CUDA */
    bool numbered;    /* CUDA: the block's tail starts with the number of the phase; never by_pointer */
    bool spans;       /* CPU: the kernel heeds its ARG_SPANS */
    bool fixed;       /* all nodes are constants */
    const LaunchNode *node; /* operands come first */
    const LaunchPhase *phase;
    const uint16_t *divisor; /* nodes: what the other slots of the tail are for */
    const char *names;       /* of entries, each with its end */
} LaunchPlan;

/* ---- making ---- */

typedef struct LaunchBuilder {
    uint32_t n_nodes, n_phases, names_bytes;
    uint16_t scratch, count, rows; /* nodes, as in the plan */
    uint8_t together;              /* as in the plan */
    bool by_pointer, numbered, spans;
    bool full; /* a node or a phase found no room: there will be no plan */
    uint8_t n_divisors;
    uint16_t divisor[GRID_DIVISORS];
    LaunchNode node[LAUNCH_NODES];
    LaunchPhase phase[LAUNCH_PHASES];
    char names[LAUNCH_PHASES * LAUNCH_NAME];
} LaunchBuilder;

/* Constants fold, equal nodes are one. Arithmetic saturates. */
uint16_t launch_const(LaunchBuilder *b, int64_t value);
uint16_t launch_arg(LaunchBuilder *b, uint32_t arg);
uint16_t launch_sms(LaunchBuilder *b);
uint16_t launch_op(LaunchBuilder *b, LaunchOp op, uint16_t x, uint16_t y);
uint16_t launch_choose(LaunchBuilder *b, uint16_t test, uint16_t yes, uint16_t no); /* test: 1 or 0 */
uint16_t launch_round_up(LaunchBuilder *b, uint16_t x, int64_t unit);               /* to a multiple of it */
bool launch_is_const(const LaunchBuilder *b, uint16_t x, int64_t *value);
/* A slot of the tail for divisions by node `size`: which one (0 is the first after the arguments) of a kernel of n_args arguments.
 * false: the block has no room for it. */
bool grid_divide_by(LaunchBuilder *b, uint16_t size, uint32_t n_args, uint32_t *slot);
/* One more phase, without tasks yet. `entry`: a neighbour may have the same. */
LaunchPhase *launch_phase(LaunchBuilder *b, const char *entry, uint32_t threads);
/* Packs what the phases need, for a kernel of n_args arguments; launch_plan_free. ST_UNSUPPORTED: it was full; ST_OUT_OF_MEMORY. */
Status launch_plan_make(const LaunchBuilder *b, uint32_t n_args, LaunchPlan *out);
void launch_plan_free(LaunchPlan *p);

/* ---- using ---- */

/* One that may come from a disk, in place: nothing that is asked of it later leaves its bytes or n_args arguments. `packed` is
 * aligned to 8. ST_FORMAT. */
Status launch_plan_open(const void *packed, size_t bytes, LaunchPlan *out);

/* On the CPU. */
typedef struct HostLaunch {
    int64_t phases, tasks[2]; /* of even and of odd phases */
    int64_t points, local, scratch, rows, together;
    bool spans;
} HostLaunch;
void host_launch(const LaunchPlan *p, void *const *args, HostLaunch *out);

/* On a CUDA device of `sms` multiprocessors. */
typedef struct GridLaunch {
    int64_t blocks, points;
    uint32_t threads, shared;
} GridLaunch;
GridLaunch grid_launch(const LaunchPlan *p, uint32_t phase, void *const *args, int64_t sms);
const char *grid_entry(const LaunchPlan *p, uint32_t phase);
int64_t grid_scratch(const LaunchPlan *p, void *const *args, int64_t sms);
/* The slots of the block after the arguments, GRID_TAIL at most; how many there are. */
uint32_t grid_tail(const LaunchPlan *p, uint32_t phase, void *const *args, int64_t sms, uint64_t *tail);
/*
 * Division by multiplication: for 0 <= n < 2^31, n / d is n * multiplier >> shift in 64 bits, where the multiplier is the lower half
 * of grid_magic(d) and the shift the upper one. d counts as 1 where it is less, and as 2^31 where it is more (then n / d is 0, too).
 */
uint64_t grid_magic(int64_t d);

#endif
