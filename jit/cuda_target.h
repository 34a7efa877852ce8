/* What PTX is made for: the device, and what of its size decides how loops and sums are cut. */
#ifndef JIT_CUDA_TARGET_H
#define JIT_CUDA_TARGET_H

#include "ir/base/status.h"
#include "ir/dtype.h"
#include <stdbool.h>
#include <stdint.h>

/* sm: 75, 80, 86, 87, 89, 90; ptx: 63 for 6.3, ...; arch: with what only this architecture has (sm_90a).
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
bool cuda_copies(const CudaTarget *t);                 /* by itself to shared memory, and has the tensor cores of sm_80 */
bool cuda_multiplies(const CudaTarget *t, DType half); /* has tensor cores for f16, bf16? */
int64_t cuda_multiprocessors(const CudaTarget *t);
int64_t cuda_room(const CudaTarget *t);          /* threads that the whole device holds at once */
int64_t cuda_busy(const CudaTarget *t);          /* threads that keep its memory busy with a few accesses each: a quarter of them */
int64_t cuda_tensor_rate(const CudaTarget *t);   /* multiply-adds of f16 in a clock of a multiprocessor, by mma.sync */
int64_t cuda_shared_memory(const CudaTarget *t); /* bytes of a multiprocessor; each block takes CUDA_SHARED_BLOCK more than it asks for */
enum { CUDA_SHARED_BLOCK = 1024 };
/*
 * Fast mode cuts the sums over k of a matrix product of few results into parts: how much of k one has, a multiple of
 * CUDA_PART_UNIT. A function of sizes alone (see jit/llvm/cuda/parts.c), so it is the same on a device of 40 multiprocessors as on one of 142:
 * which tile a block takes follows from their number (jit/cuda_tile.h), the order of a sum does not. Results count by 4,096 of them, in the
 * shape below that needs fewest; CUDA_FULL_TILES keep a device at work. Of shapes, parts and tiles these came nearest to the least time that
 * the model of tiles finds on devices of 58 to 142 multiprocessors: bench/README.md.
 */
enum { CUDA_FULL_TILES = 384, CUDA_LEAST_PART = 256, CUDA_MOST_PARTS = 16, CUDA_PART_UNIT = 64, CUDA_PART_SHAPES = 3 };
extern const struct CudaPartShape {
    int64_t rows, columns;
} cuda_part_shapes[CUDA_PART_SHAPES];
int64_t cuda_part(int64_t batch, int64_t rows, int64_t columns, int64_t k);

#endif
