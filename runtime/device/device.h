/*
 * Devices: where data lies and programs run.
 *
 *   DEVICE_ANY        values without data (scalars, ranges, random bits): they go to whoever uses them
 *   DEVICE_CPU        the host
 *   DEVICE_META       nowhere: dtypes and shapes without values. Its storage has no memory, and what would compute or read is refused
 *   DEVICE_CUDA + k   the k-th CUDA device
 *
 * A recorded op lies where its operands lie; operands on two devices are an error. A graph of values that are nowhere runs on the
 * thread's current device.
 */
#ifndef RUNTIME_DEVICE_H
#define RUNTIME_DEVICE_H

#include "jit/cuda_target.h"
#include "runtime/eval/call.h"

enum { DEVICE_ANY, DEVICE_CPU, DEVICE_META, DEVICE_CUDA, MAX_CUDA_DEVICES = 16 };
enum { DEVICE_NAME = 16 };

/*
 * A kind of device: what neutral code does otherwise for one than for the other, and how its memory is reached, one row each (device.c).
 * Functions are called through those below.
 */
typedef struct DeviceKind {
    const char *name;
    bool numbered;                   /* there may be several: "cuda:1" */
    bool apart;                      /* the host cannot read its memory: elements are brought over and back */
    bool queues;                     /* what is launched runs later, and what is found wrong in it is told when all results are published */
    int dlpack;                      /* DLPack's number of it */
    const struct Launcher *launcher; /* how programs run there (runtime/eval/run.h) */
    Status (*make)(int device, const void *from, size_t bytes, Storage **out); /* from: NULL, or the values */
    void (*release)(Storage *storage);                                         /* its memory, which was made so */
    Status (*read)(Storage *storage, const char *from, void *to, size_t bytes);
    Status (*write)(Storage *storage, char *to, const void *from, size_t bytes);
    Status (*copy)(Storage *storage, const char *from, Storage *to, size_t bytes);
    Status (*wait)(Storage *storage), (*settle)(Storage *storage);
    Status (*adopt)(int device, Storage *storage, int64_t stream), (*offer)(Storage *storage, int64_t stream);
    bool (*settle_foreign)(Storage *storage), (*idle)(int device);
    Status (*target)(int device, CudaTarget *target);
} DeviceKind;

/* What a device can do in a second; 0: not known. */
typedef struct DeviceLimits {
    double memory, cached, flops; /* bytes of its memory, of what its caches hold; arithmetic on f32 */
    double half_flops;            /* of products of 16-bit floats; 0: as others */
    double specials;              /* special functions; 0: by what they are made of */
    int64_t cache_bytes;
    double launch; /* seconds that one takes, whatever it does */
} DeviceLimits;

extern const struct Launcher host_launcher, cuda_launcher; /* runtime/eval/launch_host.c, launch_cuda.c */

extern const DeviceKind device_kinds[DEVICE_CUDA + 1];
static inline const DeviceKind *device_kind(int device) { return &device_kinds[device < DEVICE_CUDA ? device : DEVICE_CUDA]; }

/* Which one of its kind. */
static inline int device_number(int device) { return device < DEVICE_CUDA ? 0 : device - DEVICE_CUDA; }

/* Where a node's data lies or will lie; DEVICE_ANY: not decided yet. */
static inline int node_device(const RtNode *node)
{
    const Storage *storage = atomic_load_explicit(&((RtNode *)(uintptr_t)node)->storage, memory_order_acquire);
    return storage ? storage->device : node->device;
}

/* "cpu", "meta", "cuda:0"; into `name`, which has DEVICE_NAME bytes. */
const char *device_name(int device, char *name);
/* From "cpu", "meta", "cuda", "cuda:1" or "auto" (a CUDA device if one can be used, else the CPU). A CUDA device is opened. ST_INVALID: no such name;
 * ST_DEVICE: why it cannot be used and what to do. */
Status device_parse(const char *text, int *device);

/* The calling thread's: set by kiln_set_device, else the option `device`. ST_DEVICE as above. */
Status device_current(int *device);

/* The same, with the thread's current device for what is not decided yet. */
Status device_of(const RtNode *node, int *device);

/* ST_INVALID where the node has no values and never will: it lies on DEVICE_META, or is nowhere and would be computed there. */
Status device_has_values(const RtNode *node);

/* What code for a device is made for; sm 0: the host. */
Status device_target(int device, CudaTarget *target);

/* Memory of a device: a storage as storage_new makes them. */
Status storage_new_on(int device, size_t bytes, Storage **out);
/* The same, with the values at `from` in host memory, which may be changed again once this returns; NULL: none. */
Status storage_copied_to(int device, const void *from, size_t bytes, Storage **out);
/* `bytes` at `from` (an address in `storage`), copied to or from the host. Reading waits for what is queued before it; writing returns
 * once `from` may be changed again. */
Status device_read(Storage *storage, const char *from, void *to, size_t bytes);
Status device_write(Storage *storage, char *to, const void *from, size_t bytes);
/* `bytes` at `from` (an address in `storage`) to the start of fresh storage on the same device. Under the evaluation lock. */
Status device_copy(Storage *storage, const char *from, Storage *to, size_t bytes);
/* Moves fresh host storage to the thread's current device. On failure *storage is released and NULL. */
Status storage_to_current(Storage **storage);
/* Waits until what is queued for this storage is done. Like device_read, ST_INDEX: an index that its values depend on was out of bounds. */
Status device_wait(Storage *storage);
/* Waits only if that is not known yet. */
Status device_settle(Storage *storage);
/* Memory of others (DLPack). `stream` on a CUDA device: 0 or 1 the default one, 2 the thread's default one, else a handle; -1: none; nothing
 * to the CPU. A borrowed storage lies on `device`, and what is queued for it comes after what its owner queued on `stream`; */
Status device_adopt(int device, Storage *storage, int64_t stream);
/* what its owner will do comes after what is queued for it (waits). false: a forked child, which must not touch the device. */
bool device_settle_foreign(Storage *storage);
/* What is queued on `stream` from now on comes after what is queued for this storage. ST_INDEX as for device_settle. */
Status device_offer(Storage *storage, int64_t stream);
/* Waits until nothing is queued on the device, by whomever. false as above. */
bool device_idle(int device);

/* The memory of a storage that ends, on whatever device it lies. */
void device_release(Storage *storage);

/* CUDA's side (runtime/cuda/cuda_memory.c). */
Status cuda_adopt(int device, Storage *storage, int64_t stream);
Status cuda_offer(Storage *storage, int64_t stream);
bool cuda_settle_foreign(Storage *storage);
bool cuda_idle(int device);
Status cuda_storage(int k, const void *from, size_t bytes, Storage *storage); /* from: NULL, or the values */
void cuda_storage_free(Storage *storage);
Status cuda_storage_read(Storage *storage, const char *from, void *to, size_t bytes);
Status cuda_storage_write(Storage *storage, char *to, const void *from, size_t bytes);
Status cuda_storage_copy(Storage *storage, const char *from, Storage *to, size_t bytes);
Status cuda_storage_wait(Storage *storage);
Status cuda_storage_settle(Storage *storage);
Status cuda_usable(int k);

Status cuda_assemble(int device, const char *ptx, const char *name, void **cubin, size_t *bytes); /* an Assemble of jit/compile.h */

/*
 * Running a program on a CUDA device (runtime/cuda/cuda_launch.c): cuda_run_begin says on which, all is queued on this thread's stream of it,
 * cuda_run_flush or cuda_run_drop ends it. Addresses are the device's. Kernels are collected: what is queued otherwise comes before them, so
 * nothing that they use may be written or given back before cuda_run_flush has queued them.
 */
struct CompiledKernel;
struct CudaRun;
Status cuda_run_begin(struct CudaRun **run, int device); /* *run: NULL, or what an earlier run left: used again */
void cuda_run_free(struct CudaRun *run);                 /* NULL is allowed */
/* An input: what comes next runs after its earlier uses. ST_INDEX: its values are wrong. Who calls holds it until all is queued. */
Status cuda_run_use(struct CudaRun *run, Storage *storage, bool overwritten);
Status cuda_run_scratch(struct CudaRun *run, const struct CompiledKernel *kernel, void *const *args, void **out); /* ARG_SCRATCH */
Status cuda_run_kernel(struct CudaRun *run, struct CompiledKernel *kernel, const char *name, void **args, uint32_t n_args);
Status cuda_run_flush(struct CudaRun *run);
/* After the launches so far, which are queued: copies on the device, to it (from host memory that may change at once), and from it, waiting. */
Status cuda_run_copy(struct CudaRun *run, void *to, const void *from, size_t bytes);
Status cuda_run_zero(struct CudaRun *run, void *to, size_t bytes);
Status cuda_run_write(struct CudaRun *run, void *to, const void *from, size_t bytes);
Status cuda_run_read(struct CudaRun *run, void *to, const void *from, size_t bytes);
/*
 * Work of another library, in order with a program's (runtime/cuda/cuda_lane.c): what was launched so far comes before it. aside: not on
 * the run's own stream; what comes next waits for it by being launched when it is over. A lane that is given up is left open.
 */
typedef struct CudaLane {
    struct CudaDevice *device;
    struct CuStreamOpaque *stream; /* the driver's */
    struct CuEventOpaque *event;
} CudaLane;
Status cuda_lane_open(struct CudaRun *run, bool aside, CudaLane *lane);
Status cuda_lane_enter(const CudaLane *lane); /* this thread may queue work there */
Status cuda_lane_mark(const CudaLane *lane);  /* all of it is queued */
Status cuda_lane_over(const CudaLane *lane, bool *over);
void cuda_lane_close(const CudaLane *lane);
/*
 * Calls of another library that are collected with the launches around them, and queued with these by who knows them: `by`, which
 * cuda_run_flush calls. Two calls are the same whose first `same` bytes are. aside: on the lane; each cuda_run_join is for one of those, the
 * first that had none yet: what comes behind it waits for that one.
 *
 *   one after the other   cuda_run_go queues what comes before the next call or join, which the caller does then; and so on
 *   as a graph            cuda_calls_take finds it, where all of that came before in the same way, or could be captured now: between
 *                         cuda_calls_capture and cuda_calls_give. It reaches to the last call or join: cuda_run_go queues what comes behind.
 */
typedef Status CudaCallsRun(void *user);
struct CudaGraph;
Status cuda_run_call(struct CudaRun *run, CudaCallsRun *by, void *user, const void *call, size_t bytes, size_t same, bool aside);
Status cuda_run_call_zero(struct CudaRun *run, void *to, size_t bytes); /* before the next call */
Status cuda_run_join(struct CudaRun *run);
uint32_t cuda_run_calls(const struct CudaRun *run); /* that are collected; run may be NULL */
/* What is collected, from 0 to cuda_run_collected: the call at that place, unaligned; NULL: it is none. aside may be NULL. */
const void *cuda_run_call_at(const struct CudaRun *run, size_t at, bool *aside);
size_t cuda_run_collected(const struct CudaRun *run);
Status cuda_run_go(struct CudaRun *run, size_t *at, bool *more); /* *more: at *at there is a call or a join */
/* Why there are no graphs with calls in them; NULL: there may be. */
const char *cuda_calls_objection(void);
/* NULL: no graph yet; *why says so. *number: by which it was captured, 0: it was not. */
struct CudaGraph *cuda_calls_take(struct CudaRun *run, uint64_t *number, const char **why);
void cuda_calls_give(struct CudaRun *run, struct CudaGraph *graph);
/* queue is called for each call, with its place and the stream that is captured. On failure there is no graph, now and later. */
typedef Status CudaCallsQueue(void *user, size_t at, const CudaLane *lane);
Status cuda_calls_capture(struct CudaRun *run, struct CudaGraph *graph, uint64_t number, CudaCallsQueue *queue, void *user);
Status cuda_calls_launch(struct CudaRun *run, struct CudaGraph *graph, size_t *behind); /* *behind: the place after its last call or join */
/* Other ranks have none, or one of another capture: it is forgotten, and captured anew; after many times no more. */
void cuda_calls_disagree(struct CudaRun *run, struct CudaGraph *graph);
/* What the calls need is about to go. All such graphs go before, not waited for: they may wait for what does not come. */
void cuda_calls_abandon(struct CudaDevice *device);
/* It failed: forgets what was not queued yet. The status to tell. */
Status cuda_run_drop(struct CudaRun *run, Status why);
/* What is launched from now on overwrites inputs: should the run fail with some of that made, the device is broken. */
Status cuda_run_overwrites(struct CudaRun *run);
/* Was the kernel launched on this device, so that its next launch has no more to load? */
bool cuda_ran(const struct CompiledKernel *kernel, int device);
/* Where kernels note the fault numbers that stand for these places. */
Status cuda_run_fault_word(struct CudaRun *run, const IndexPlace *places, uint32_t n, void **word);
/* Waits for what is queued: was anything wrong at one of the places? */
Status cuda_run_settle(struct CudaRun *run);
/* After cuda_run_flush: why the results may be wrong, with a reference for the caller, or NULL. ST_INDEX: they are (KILN_SYNC=1). */
struct CudaFault;
Status cuda_run_fault(struct CudaRun *run, struct CudaFault **fault);
void cuda_fault_set(Storage *storage, struct CudaFault *fault); /* what its values depend on from now on; NULL: nothing pending */
void cuda_fault_release(struct CudaFault *fault);               /* NULL is allowed */
/*
 * Loops and branches that the device runs by itself (runtime/cuda/cuda_loop.c). From cuda_record_begin on what is launched and copied is
 * only noted, with where loops and branches begin and end, and cuda_record_launch queues all of it as one graph; what is cleared is queued
 * at once, before it. Nothing is read or written meanwhile.
 */
typedef struct CudaCount {
    void *state;        /* two i64 in device memory: iterations that are over, and the number of the one at hand */
    const void *going;  /* a bool that says whether there is another one; NULL: only the count does */
    void *fault, *also; /* i64 that end it when they are not 0; the first becomes `endless` where `going` holds after `count`; NULL: none */
    int64_t count, endless;
    bool reverse;       /* numbers go down */
    uint32_t condition; /* made at its first use; 0 before */
} CudaCount;
/* *why_not: NULL, or why the host has to decide; a text that lives on. */
Status cuda_record_begin(struct CudaRun *run, const char **why_not);
Status cuda_record_count(struct CudaRun *run, CudaCount *count,
                         bool first); /* another iteration? Before the first, and at the end of each */
Status cuda_record_choose(struct CudaRun *run, const void *predicate, uint32_t condition[2]); /* that hold where it is true, false */
Status cuda_record_open(struct CudaRun *run, bool repeat, uint32_t condition); /* what follows, while or if that holds, ... */
Status cuda_record_close(struct CudaRun *run);                                 /* ... up to here */
/* Copies bytes to `to` + *index * to_step from `from` + *index * from_step; index NULL: 0, from NULL: zeros. */
Status cuda_record_move(struct CudaRun *run, void *to, const void *from, size_t bytes, const void *index, size_t to_step, size_t from_step);
/* A fault number at `word` is one at `there` that is `offset` higher. */
Status cuda_record_report(struct CudaRun *run, const void *word, void *there, int64_t offset);
Status cuda_record_launch(struct CudaRun *run, bool *done); /* *done = false: nothing of it was queued */
void cuda_record_drop(struct CudaRun *run);
/* Device times (runtime/cuda/cuda_perf.c): launches from now on are of this step; waits for all of the run and tells their times. */
struct Launched;
void cuda_perf_step(struct CudaRun *run, const struct Launched *step);
void cuda_perf_tell(struct CudaRun *run);
bool cuda_limits(int device, DeviceLimits *out); /* by its clocks (runtime/cuda/cuda_limits.c) */
Status cuda_device_target(int device, CudaTarget *target);
/* "cuda:0=NAME, compute capability 9.0, 132 multiprocessors" for each device in use, and "cuda:0.code=" with maker_device's text of it
 * (cache/maker.h). Returns how many are in use; `out` may be NULL. */
uint32_t cuda_describe(Str *out);

#endif
