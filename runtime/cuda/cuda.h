/*
 * CUDA devices, through the driver alone: libcuda.so.1 is opened by name at the first use (KILN_LIBCUDA names another), no toolkit and no
 * header of its is needed. Only runtime/cuda/ knows the driver.
 *
 *   runtime/cuda/cuda_syms.def, cuda_numbers.def   the functions and numbers used
 *   runtime/cuda/cuda.c          loading, devices, contexts, streams, errors
 *   runtime/cuda/cuda_memory.c   the caching allocator, copies through pinned memory
 *   runtime/cuda/cuda_launch.c   modules and launches
 *   runtime/cuda/cuda_graph.c    launches that come again and again as one
 *   runtime/cuda/cuda_loop.c     loops and branches that the device runs by itself, as nodes of such graphs
 *   runtime/cuda/cuda_solver.c   linear algebra by cuSOLVER
 *   runtime/cuda/cuda_perf.c     how long launches take, where the log asks
 *   runtime/cuda/cuda_lane.c     what other libraries queue between launches
 *   runtime/cuda/cuda_fault.c    indices out of bounds: known when values are waited for
 */
#ifndef RUNTIME_CUDA_H
#define RUNTIME_CUDA_H

#include "jit/kernel_table.h"
#include "runtime/device/device.h"
#include "runtime/device/size_class.h"
#include "runtime/eval/call.h"
#include "runtime/eval/perf.h"
#include "runtime/record/thread.h"

#include <pthread.h>

/* The driver's types. An enum of its is an int. */
typedef int CuResult, CuDevice, CuDeviceAttribute, CuFunctionAttribute, CuJitOption, CuInputKind, CuCaptureMode, CuCaptureStatus;
typedef unsigned long long CuPointer;
typedef struct CuContextOpaque *CuContext;
typedef struct CuStreamOpaque *CuStream;
typedef struct CuEventOpaque *CuEvent;
typedef struct CuModuleOpaque *CuModule;
typedef struct CuFunctionOpaque *CuFunction;
typedef struct CuLinkOpaque *CuLink;
typedef struct CuGraphOpaque *CuGraph;
typedef struct CuGraphNodeOpaque *CuGraphNode;
typedef struct CuGraphExecOpaque *CuGraphExec;
typedef struct CuEdgeDataOpaque CuEdgeData; /* never given */
typedef uint64_t CuCondition;

typedef struct CuKernelNode { /* CUDA_KERNEL_NODE_PARAMS of CUDA 12 */
    CuFunction function;
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    void **parameters, **extra;
    void *kernel;
    CuContext context;
} CuKernelNode;

typedef struct CuNode { /* CUgraphNodeParams, of a conditional node */
    int type, reserved0[3];
    union {
        long long reserved1[29];
        struct {
            CuCondition handle;
            int kind;
            unsigned size;
            CuGraph *bodies; /* the driver's */
            CuContext context;
        } conditional;
    };
    long long reserved2;
} CuNode;

enum {
#define CUDA_NUMBER(name, theirs, value) name = value,
#define CUDA_NO_CODE CUDA_NUMBER
#define CUDA_STICKY CUDA_NUMBER
#include "runtime/cuda/cuda_numbers.def"
};

typedef struct CudaDriver {
#define CUDA_SYM(name, symbol, parameters) CuResult(*name) parameters;
#define CUDA_OPTIONAL CUDA_SYM
#include "runtime/cuda/cuda_syms.def"
#undef CUDA_OPTIONAL
#undef CUDA_SYM
} CudaDriver;

extern CudaDriver cuda; /* complete once cuda_open succeeded */

typedef struct CudaBlock CudaBlock;   /* runtime/cuda/cuda_memory.c */
typedef struct CudaGraphs CudaGraphs; /* runtime/cuda/cuda_graph.c */

/* Kernels of our own (runtime/cuda/cuda_loop.c). */
typedef enum CudaLoopKernel {
#define LOOP_KERNEL(name) LOOP_##name,
#define LOOP_KERNELS LOOP_KERNEL(COUNT) LOOP_KERNEL(CHOOSE) LOOP_KERNEL(MOVE) LOOP_KERNEL(REPORT)
    LOOP_KERNELS
#undef LOOP_KERNEL
        N_LOOP_KERNELS
} CudaLoopKernel;
extern const char cuda_loop_ptx[]; /* runtime/cuda/cuda_loop_ptx.c */

typedef enum CudaSolverKernel { /* runtime/cuda/cuda_solver.c */
#define SOLVER_KERNEL(name) SOLVER_##name,
#define SOLVER_KERNELS SOLVER_KERNEL(MOVE4) SOLVER_KERNEL(MOVE8) SOLVER_KERNEL(FINITE4) SOLVER_KERNEL(FINITE8)
                                SOLVER_KERNELS
#undef SOLVER_KERNEL
                                    N_SOLVER_KERNELS
} CudaSolverKernel;
extern const char cuda_solver_ptx[]; /* runtime/cuda/cuda_solver_ptx.c */

typedef struct CudaFault CudaFault; /* runtime/cuda/cuda_fault.c */

/* Pinned memory through which the copies of a stream pass: two halves, each with the event of its last copy. */
typedef struct CudaStaging {
    char *half[2];
    size_t bytes; /* of a half */
    CuEvent done[2];
    bool used[2];
} CudaStaging;

/* A stream, and what lets another stream wait for it. Streams are never destroyed: a thread that ends hands its own to the next. But for `event`,
 * which any thread may have recorded anew, what follows `next_same` is used by its thread alone (of the uploads': under upload_lock). */
typedef struct CudaStream {
    struct CudaDevice *device;
    uint32_t number, bit; /* number: of the threads' streams on this device: 0, 1... */
    CuStream stream;
    CuEvent event;
    struct CudaStream *next_same; /* of the same bit */
    struct CudaStream *next_free;
    CudaStaging staging;
    void *solver, *blas; /* handles of cuSOLVER and cuBLAS for this stream (runtime/cuda/cuda_solver.c); NULL: not made yet */
    CuPointer scratch;   /* kept for ARG_SCRATCH (jit/launch_plan.h): its counters are zero. 0: none */
    size_t scratch_bytes;
} CudaStream;

/* A set of streams of a device: a bit for each, but the bit of the threads' streams from number BIT_OF_MANY on stands for all of those. */
enum { BIT_OF_MANY = 62, BIT_OF_UPLOADS, STREAM_BITS };
static inline uint64_t cuda_bit(const CudaStream *stream) { return UINT64_C(1) << stream->bit; }

typedef struct CudaDevice {
    int ordinal;
    char name[64];
    int multiprocessors;
    int clock_khz, memory_khz, bus_bits;                     /* 0: the driver does not say */
    bool exact;                                              /* option test_memory */
    CudaTarget target;                                       /* what code is made for */
    CuContext _Atomic context;                               /* NULL: not open */
    pthread_mutex_t lock;                                    /* of streams, memory and faults */
    CuStream lane, captures;                                 /* of other libraries (runtime/cuda/cuda_lane.c), and where
                                                                 launches are captured with theirs; NULL: not made */
    CudaStream *_Atomic streams[STREAM_BITS], *free_streams; /* by bit; those of threads that ended */
    uint32_t n_streams;                                      /* that threads had or have */
    pthread_mutex_t upload_lock;           /* of streams[BIT_OF_UPLOADS]: large copies to fresh memory, beside what is computed */
    CudaBlock *pool[SIZE_CLASSES], *spare; /* spare: of no memory now */
    CudaBlock *tight;                      /* in use, and smaller than their size class */
    size_t in_use, pooled;                 /* bytes */
    CudaFault *first_fault, *last_fault;   /* retired, the oldest first */
    _Atomic int64_t *words;                /* pinned, not given to a fault yet */
    uint32_t n_words;
    pthread_mutex_t graphs_lock;
    CudaGraphs *graphs;
    pthread_mutex_t loops_lock; /* held where these are loaded, at the first loop */
    CuFunction loop_kernel[N_LOOP_KERNELS];
    bool no_loops;                              /* they cannot be loaded */
    CuFunction solver_kernel[N_SOLVER_KERNELS]; /* loaded at the first call of linear algebra, under loops_lock */
    atomic_bool broken; /* by a sticky error: every later call fails with it. Set once, after `cause`, under `lock` */
    char cause[256];
} CudaDevice;

/* Loads the driver and opens the k-th device, once; the primary context is made current in this thread. ST_DEVICE says why not and what to
 * do; in a forked child always. */
Status cuda_open(int k, CudaDevice **out);
const CudaDevice *cuda_opened(int k); /* asks the driver nothing; NULL: it is not open */
bool cuda_forked(void);               /* is this a child that must not touch the driver? */

/* The status of a driver call, with a message that names `what` and the driver's error. A sticky error marks the device broken. */
Status cuda_check(CudaDevice *device, CuResult result, const char *what);
/* From now on the device is broken by what the last message of this thread tells. ST_DEVICE */
Status cuda_broken(CudaDevice *device);

/* This thread's stream on a device. */
Status cuda_stream(CudaDevice *device, CudaStream **out);
/* The device's stream for uploads. Under upload_lock. */
Status cuda_upload_stream(CudaDevice *device, CudaStream **out);
/* What is queued on `stream` from now on waits for what is queued on the others now. */
Status cuda_stream_after(CudaStream *stream, uint64_t others);
/* The thread ends: its streams go to the next one. */
void cuda_end_thread(RtThread *thread);

/* Device memory, stream-ordered: a block is free once these streams have done what is queued on them now, and used again at once where that is the
 * one stream that it was used on. */
Status cuda_alloc(CudaDevice *device, CudaStream *stream, size_t bytes, CuPointer *out);
void cuda_free(CudaDevice *device, uint64_t streams, CuPointer pointer, size_t bytes);
void cuda_trim(CudaDevice *device);
/* A call ended so for want of memory, and what was kept is given back now, by this thread or another: make it once more. */
bool cuda_made_room(CudaDevice *device, CuResult result);
#define CUDA_WITH_ROOM(device, result, call) ((result) = (call), cuda_made_room(device, result) ? ((result) = (call)) : (result))
/* How its memory stands, and what to do when there is none left; in `text`. */
const char *cuda_memory_text(CudaDevice *device, char *text, size_t size);
/* Queues a copy of host memory, which may change as soon as this returns. */
Status cuda_copy_in(CudaDevice *device, CudaStream *stream, CuPointer to, const char *from, size_t bytes);
/* Copies to host memory and waits. */
Status cuda_copy_out(CudaDevice *device, CudaStream *stream, char *to, CuPointer from, size_t bytes);

/* Launches that wait to be queued, in order; where a loop or branch of conditions begins, which ends at its LAUNCH_END; and what comes with
 * another library's calls (runtime/device/device.h): these, memory that is cleared before one, where those aside are waited for. */
typedef enum CudaLaunchKind { LAUNCH_KERNEL, LAUNCH_WHILE, LAUNCH_IF, LAUNCH_END, LAUNCH_CALL, LAUNCH_ZERO, LAUNCH_JOIN } CudaLaunchKind;

enum { CONDITIONS = 2 };
typedef struct CudaLaunch {
    CudaLaunchKind kind;
    uint32_t condition[CONDITIONS]; /* counted from 1. WHILE, IF: [0] decides; of a kernel: those whose handles its block begins with */
    CuFunction function;
    unsigned blocks, threads, shared;
    bool aside;           /* CALL: on the lane */
    uint32_t block_bytes; /* of a CALL: those by which it is the same as another */
    size_t block;         /* where in the batch's bytes its argument block lies; phases of one kernel share it */
    const char *name;     /* of the kernel, for messages */
    atomic_bool *ran;     /* to be set when it is queued; NULL: nobody asks */
} CudaLaunch;

/* What a LAUNCH_ZERO is given. */
typedef struct CudaZero {
    void *to;
    size_t bytes;
} CudaZero;

typedef struct CudaBatch {
    BUF(CudaLaunch) launch;
    BUF(char) bytes;
    uint32_t n_conditions; /* 0: kernels alone, and ... */
    uint32_t n_calls;
} CudaBatch;

/* Queues the batch as one graph where its launches came before in the same way, or where there are conditions; *done = false: the caller
 * shall queue them. Handles of conditions are written to the blocks. */
Status cuda_graph_run(CudaDevice *device, CudaStream *stream, CudaBatch *batch, bool *done);
bool cuda_graph_wanted(void); /* does the driver have graphs, and nobody objects? */
/* The stream where launches are captured: nobody else's. And that of other libraries. */
Status cuda_lane_streams(CudaDevice *device, CuStream *captures, CuStream *lane);
/* The functions entry[0..n) of a module of PTX, which stays, as the device does; loaded on a stack that is deep enough for the driver's
 * assembler. */
Status cuda_load_text(CudaDevice *device, const char *ptx, const char *name, uint32_t n, const char *const *entry, CuFunction *function);
/* These functions go: so do the graphs that launch them. In any thread. */
void cuda_graph_forget(CudaDevice *device, const CuFunction *functions, uint32_t n);

/* Memory that is given back once the batch is queued or dropped. */
typedef struct CudaHeld {
    CuPointer pointer;
    size_t bytes;
} CudaHeld;

/* A step whose launches are timed. */
typedef struct CudaTimed {
    Launched step; /* of the program at hand */
    CuEvent before, after;
} CudaTimed;

enum { FAULT_INPUTS = 4 };

/* One run of a program on a device; kept by the thread's Evaluation for its room. */
typedef struct CudaRun {
    CudaDevice *device;
    CudaStream *stream;
    CudaBatch batch;
    BUF(CudaHeld) held;
    uint32_t queued;     /* launches of this run that are on their way */
    bool overwriting;    /* some input is lost then */
    bool queueing;       /* the batch is on its way: what is queued now comes where it has got to */
    CudaCallsRun *calls; /* who queues a batch with calls, ... */
    void *caller;        /* ... for whom */
    bool recording;      /* the batch is that of a loop or branch (runtime/cuda/cuda_loop.c) */
    uint32_t n_inputs;
    CudaFault *inputs[FAULT_INPUTS], *own; /* runtime/cuda/cuda_fault.c */
    BUF(CudaTimed) timed;                  /* runtime/cuda/cuda_perf.c, with ... */
    Launched step;                         /* ... what comes next; `what` NULL: nobody asked for times */
} CudaRun;

/* One more launch of the batch, with a copy of its argument block. */
Status cuda_add_launch(CudaRun *run, CudaLaunch launch, const void *block, size_t bytes);
void cuda_batch_ran(const CudaBatch *batch); /* its launches are queued */
void cuda_batch_empty(CudaRun *run);         /* they are, or are forgotten */

/* Pending faults of the run. Its inputs' become the results'; ST_INDEX: such an input is wrong. */
Status cuda_fault_input(CudaRun *run, const Storage *storage);
Status cuda_fault_own(CudaRun *run, const IndexPlace *places, uint32_t n, void **word);
Status cuda_fault_results(CudaRun *run, CudaFault **fault);
void cuda_fault_drop(CudaRun *run); /* it failed, or its fault is taken */
/* Waits for what this storage's values depend on. ST_INDEX: an index was out of bounds. */
Status cuda_fault_settle(const Storage *storage);

/* Around launches that are queued: false: nobody asked for their time (cuda_perf_step). cuda_perf_drop forgets what was taken. */
bool cuda_perf_begin(CudaRun *run);
void cuda_perf_end(CudaRun *run);
void cuda_perf_drop(CudaRun *run);

CudaDevice *cuda_device_of(const Storage *storage);
/* Before something is queued on `stream` that reads the storage, or that writes it: it comes after all earlier uses that matter to it, and before those
 * to come. Reads in any threads at once, by who holds the storage until they are queued; a write where nobody else does. (tests/model/streams.pml) */
Status cuda_before_read(Storage *storage, CudaStream *stream);
Status cuda_before_write(Storage *storage, CudaStream *stream);
/* The streams whose end is the end of all uses so far. */
uint64_t cuda_uses(const Storage *storage);

#endif
