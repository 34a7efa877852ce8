/*
 * How a kernel compiled for CUDA is launched: plain data, stored with its PTX, evaluated on the host without LLVM.
 *
 * A plan is a list of phases, run one after another on one stream; each is an entry function of the PTX and the size of its
 * grid. Sizes are expressions over the kernel's ARG_SIZE arguments, kept as nodes that name earlier nodes.
 *
 * Several phases may be launches of one entry, neighbours in the list: it learns from `numbered` which one it is.
 *
 * Every entry takes one parameter: the argument block (one 8-byte slot per Kernel.args entry) by value, or, where the block
 * is larger than GRID_BLOCK_BYTES (`by_pointer`), the device address of a copy of it.
 *
 * What follows the arguments in the block, its tail: the number of the phase, where the plan is `numbered`; then a slot for each of
 * `divisor`, sizes that the kernel divides by: a multiplier and a shift (grid_magic). Blocks that are passed by pointer have no tail.
 *
 * ARG_SCRATCH: `scratch` bytes of device memory, aligned to 256 (0 bytes: the kernel has no such argument). Its first
 * GRID_COUNTER_BYTES are counters: zero before the first launch that uses this memory, and left zero by every launch, so
 * kernels may share one scratch buffer on one stream. The rest holds anything.
 */
#ifndef JIT_GRID_H
#define JIT_GRID_H

#include "ir/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    GRID_NODES = 256,
    GRID_PHASES = 32,
    GRID_NAME = 80,
    GRID_BLOCK_BYTES = 4096,
    GRID_COUNTER_BYTES = 4096,
    GRID_DIVISORS = 24,
    GRID_TAIL = GRID_DIVISORS + 1
};

/* What PTX is made for. sm: 75, 80, 86, 87, 89, 90; ptx: 63 for 6.3, ...; arch: with what only this architecture has (sm_90a).
 * device: the compute capability of the device itself, which machine code is made for (100 for 10.0), by the assembler of a driver of
 * version `driver` (12040 for 12.4): PTX does not depend on that.
 * multiprocessors and threads (that one of them holds at most): what loops are cut for; 0: those of a usual device of that sm. */
typedef struct CudaTarget {
    int sm, ptx, device;
    bool arch;
    int driver, multiprocessors, threads;
} CudaTarget;

/* The target for a device of compute capability major.minor under a driver of version `driver` (12040 for CUDA 12.4): the
 * newest that both LLVM and the driver know. ST_UNSUPPORTED: older than sm_75, or a driver older than CUDA 10.0. */
Status cuda_target(int major, int minor, int driver, CudaTarget *out);
bool cuda_target_known(const CudaTarget *t);
int64_t cuda_multiprocessors(const CudaTarget *t);
int64_t cuda_room(const CudaTarget *t); /* threads that the whole device holds at once */
int64_t cuda_busy(const CudaTarget *t); /* threads that keep its memory busy with a few accesses each: a quarter of them */
/*
 * Fast mode cuts the sums over k of a matrix product of few results into parts: how much of k one has, a multiple of
 * CUDA_PART_UNIT. A function of sizes alone (see jit/llvm/cuda_parts.c). Results count by whole tiles, in the shape below that
 * needs fewest of them: CUDA_FULL_TILES keep a device at work.
 */
enum { CUDA_FULL_TILES = 512, CUDA_LEAST_PART = 256, CUDA_MOST_PARTS = 16, CUDA_PART_UNIT = 64, CUDA_PART_SHAPES = 3 };
extern const struct CudaPartShape {
    int64_t rows, columns;
} cuda_part_shapes[CUDA_PART_SHAPES];
int64_t cuda_part(int64_t batch, int64_t rows, int64_t columns, int64_t k);

typedef enum GridOp { GRID_CONST, GRID_ARG, GRID_SMS, GRID_ADD, GRID_MUL, GRID_CEIL_DIV, GRID_MIN, GRID_MAX } GridOp;

typedef struct GridNode {
    int64_t value; /* CONST: the number; ARG: which argument. SMS: the device's multiprocessors */
    uint16_t a, b; /* ADD...: earlier nodes; CEIL_DIV rounds up, its divisor is taken as at least 1 */
    uint8_t op;
} GridNode;

typedef struct GridPhase {
    char entry[GRID_NAME];
    uint16_t blocks;  /* node: blocks of the grid's x dimension; 0 or less: nothing to launch */
    uint16_t points;  /* node: x times r points, with Kernel.cost an estimate of the work */
    uint16_t shared;  /* node: dynamic shared memory, bytes */
    uint16_t threads; /* of a block */
} GridPhase;

typedef struct GridPlan {
    uint32_t n_nodes, n_phases;
    uint16_t scratch;                /* node: bytes of ARG_SCRATCH */
    bool by_pointer, full;           /* full: a node or a phase found no room; such a plan is never given out */
    bool numbered;                   /* the block's tail starts with the number of the phase; never by_pointer */
    uint8_t n_divisors;              /* 0 where by_pointer */
    uint16_t divisor[GRID_DIVISORS]; /* nodes: what the other slots of the tail are for */
    GridNode node[GRID_NODES];
    GridPhase phase[GRID_PHASES];
} GridPlan;

typedef struct GridLaunch {
    int64_t blocks, points;
    uint32_t threads, shared;
} GridLaunch;

/* Making one. Constants fold, equal nodes are one. */
uint16_t grid_const(GridPlan *p, int64_t value);
uint16_t grid_arg(GridPlan *p, uint32_t arg);
uint16_t grid_sms(GridPlan *p);
uint16_t grid_op(GridPlan *p, GridOp op, uint16_t a, uint16_t b);
/* A slot of the tail for divisions by node `size`: which one (0 is the first after the arguments) of a kernel of n_args arguments.
 * false: the block has no room for it. */
bool grid_divide_by(GridPlan *p, uint16_t size, uint32_t n_args, uint32_t *slot);
GridPhase *grid_phase(GridPlan *p, const char *entry, uint32_t threads);

/* For one argument block and a device of `sms` multiprocessors. Arithmetic saturates. */
GridLaunch grid_launch(const GridPlan *p, uint32_t phase, void *const *args, int64_t sms);
int64_t grid_scratch(const GridPlan *p, void *const *args, int64_t sms);
/* The slots of the block after the arguments, GRID_TAIL at most; how many there are. */
uint32_t grid_tail(const GridPlan *p, uint32_t phase, void *const *args, int64_t sms, uint64_t *tail);
/*
 * Division by multiplication: for 0 <= n < 2^31, n / d is n * multiplier >> shift in 64 bits, where the multiplier is the lower half
 * of grid_magic(d) and the shift the upper one. d counts as 1 where it is less, and as 2^31 where it is more (then n / d is 0, too).
 */
uint64_t grid_magic(int64_t d);
/* Is a plan that came from a disk well-formed, for a kernel of n_args arguments? */
bool grid_valid(const GridPlan *p, uint32_t n_args);

/*
 * A grid object: a plan, the PTX that it launches and, where the driver's assembler was at hand, the machine code made of that; as bytes
 * for the kernel table and the cache on disk.
 */
typedef struct GridObject {
    const GridPlan *plan;
    const char *ptx;
    const void *cubin; /* NULL: none */
    size_t cubin_bytes;
    uint32_t n_args; /* of the kernel */
} GridObject;
Status grid_object_make(const GridObject *from, void **object, size_t *bytes); /* os_free */
bool grid_object_is(const void *object, size_t bytes);
/* Its parts, in place, checked. ST_FORMAT. */
Status grid_object_open(const void *object, size_t bytes, GridObject *out);

#endif
