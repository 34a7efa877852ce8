// driver.h: the driver's own objects and what its files offer each other. api.c is the only door: it locks, counts,
// injects failures and checks that a context is current; everything below runs under its lock.
#ifndef TEST_CUDA_DRIVER_H
#define TEST_CUDA_DRIVER_H

#include "tests/cuda_driver/cuda_api.h"
#include "tests/cuda_driver/ptx.h"
#include "tests/cuda_driver/test_cuda.h"

#include <pthread.h>

// ---- settings, failures, counters, reports (faults.c) ----

enum { MAX_DEVICES = 8 };

typedef enum Races { RACES_OFF, RACES_SHARED, RACES_ON } Races;

typedef enum Uninit { UNINIT_OFF, UNINIT_NOT_LOCAL, UNINIT_ON } Uninit;

typedef struct Settings {
    int devices, major, minor, sms, driver;
    char name[128];
    size_t memory;
    bool late, mixed; // streams
    bool no_waits;
    uint64_t order;
    uint32_t together;
    Uninit uninit;
    Races races;
    bool exited_allowed;
    uint64_t steps;
    bool early; // asynchronous copies
    bool rough; // as wrong as documented
    char log[256];
    char graphs[256];
    bool leaks;
    bool malformed; // KILN_TEST_CUDA: nothing starts
} Settings;

extern Settings settings;
extern test_cuda_counters counters;

// Counts a call of `name`; the code of an injected failure, else CUDA_SUCCESS. *sticky tells whether it breaks the context.
CUresult fault_next(const char *name, bool *sticky);
// Calls what test_cuda_before wants before this call. Without the lock.
void before_next(const char *name);
// The last report, also written to the log.
void report(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *report_text(void);
void log_text(const char *text);

// The lock of all of it (api.c); recursive.
void api_lock(void);
void api_unlock(void);

// ---- objects ----

typedef enum ObjectKind {
    OBJECT_CONTEXT,
    OBJECT_MODULE,
    OBJECT_FUNCTION,
    OBJECT_STREAM,
    OBJECT_EVENT,
    OBJECT_LINKER,
    OBJECT_GRAPH,
    OBJECT_GRAPH_NODE,
    OBJECT_GRAPH_EXEC,
    OBJECT_CONDITIONAL,
    OBJECT_KINDS
} ObjectKind;

// First member of all that a handle points to. objects.c knows the live ones, so that a stale or foreign handle is an error.
typedef struct Object {
    ObjectKind kind;
    uint64_t number;     // serial, for texts
    struct Object *next; // in its bucket
    struct Object *older, *newer;
} Object;

void *object_new(ObjectKind kind, size_t size); // zeroed; NULL: no host memory
void object_free(void *object);
void *object_check(const void *handle, ObjectKind kind); // NULL when it is no live object of that kind
Object *object_first(ObjectKind kind);
Object *object_next(const Object *object); // of the same kind
extern const char *const object_names[OBJECT_KINDS];

// ---- contexts ----

typedef struct Context {
    Object object;
    int device;
    unsigned retained;
    bool primary, destroyed;
    CUresult sticky;
    struct Stream *null_stream;
} Context;

Context *context_current(void);
void context_break(Context *context, CUresult code); // sticky from now on
CUresult context_retain(CUcontext *out, CUdevice device);
CUresult context_release(CUdevice device);
CUresult context_reset(CUdevice device);
CUresult context_create(CUcontext *out, CUdevice device);
CUresult context_destroy(CUcontext handle);
CUresult context_set(CUcontext handle);
CUresult context_push(CUcontext handle);
CUresult context_pop(CUcontext *out);
CUresult device_attribute(int *out, CUdevice_attribute attribute, CUdevice device);
const char *error_name(CUresult code);
const char *error_text(CUresult code);
CUresult context_state(CUdevice device, unsigned *flags, int *active);
unsigned device_shared_limit(void); // bytes per block that a kernel may opt in to
void contexts_reset(void);
// Frees an object of any kind with all that it holds, if it belongs to the context (api.c).
void object_release(Object *object, const Context *owner);

// ---- memory (memory.c) ----

typedef enum AllocationKind { ALLOCATION_DEVICE, ALLOCATION_HOST, ALLOCATION_GLOBAL, ALLOCATION_CONST } AllocationKind;

typedef struct Allocation {
    uint64_t address;
    size_t size;
    uint8_t *bytes;
    uint8_t *written; // a byte each, 1: somebody wrote it; NULL: all are (host memory, variables)
    AllocationKind kind;
    int device;
    uint64_t number;
} Allocation;

CUresult memory_new(Allocation **out, size_t size, AllocationKind kind, int device);
void memory_free(Allocation *allocation);
Allocation *memory_find(uint64_t address); // the live one that contains the address, or NULL
Allocation *memory_at(uint64_t address);   // that starts there
// What is at an address that no allocation contains: text for people, valid until the next call.
const char *memory_describe(uint64_t address, size_t size);
bool memory_host(const void *p, size_t size); // page-locked by cuMemHostAlloc?
size_t memory_leaks(char *text, size_t room, size_t *used);
void memory_free_device(int device);
void memory_reset(void);
size_t memory_total(void); // of a device, the limit of a test applied (faults.c)
size_t memory_in_use(int device);

// ---- streams (stream.c): work in order ----

typedef enum CommandKind {
    COMMAND_KERNEL,
    COMMAND_COPY,
    COMMAND_SET,
    COMMAND_RECORD,
    COMMAND_WAIT,
    COMMAND_FREE,
    COMMAND_DEFAULT,
    COMMAND_CONDITIONAL,
    COMMAND_FOREIGN
} CommandKind;

typedef struct KernelCommand {
    struct Function *function;
    unsigned grid[3], block[3], shared;
    uint8_t *params;
    size_t param_bytes;
} KernelCommand;

typedef struct CopyCommand { // one of host pointer and device address on each side
    CUdeviceptr to, from;
    void *to_host;
    const void *from_host;
    uint8_t *staged; // bytes of pageable memory, taken when the copy was queued
    size_t size;
} CopyCommand;

typedef struct SetCommand {
    CUdeviceptr to;
    unsigned value, width; // of an element: 1, 2, 4 bytes
    size_t count;
} SetCommand;

// A conditional node, or (COMMAND_DEFAULT) that its condition has its value of the beginning from now on.
typedef struct ConditionalCommand {
    struct Conditional *condition; // the command holds a reference
    bool repeat;                   // WHILE
    struct Sequence *body;         // of its own; NULL in a graph, whose node knows the body
} ConditionalCommand;

typedef struct Command {
    CommandKind kind;
    Context *context;
    uint64_t graph; // serial number of the instance that launched it, 0: none
    union {
        KernelCommand kernel;
        CopyCommand copy;
        SetCommand set;
        struct {
            struct Event *event;
            uint64_t version; // of its record
        } event;
        CUdeviceptr free;
        ConditionalCommand conditional;
        struct {
            int (*poll)(void *user);
            void *user;
            struct Captured *captured; // of a node: what it stands for; each launch makes a command with a `user` of its own
        } foreign;                     // test_cuda_enqueue, test_cuda_capture
    } u;
    struct Command *next;
} Command;

// What the next node of a capture comes after.
enum { CAPTURE_TIPS = 16 };
typedef struct Tips {
    struct GraphNode *node[CAPTURE_TIPS];
    size_t count;
} Tips;

typedef struct Event {
    Object object;
    Context *context;
    bool timing;
    struct Stream *stream;   // recorded last in
    uint64_t recorded, done; // versions: how often recorded, which has been reached
    double time;
    struct Graph *capture; // recorded while that capture went on
    Tips tips;             // then: what it stands for
} Event;

typedef struct Stream {
    Object object;
    Context *context;
    bool blocking; // waits for the null stream and it for this one
    Command *first, **last;
    struct Graph *capture; // what it captures to, NULL: it runs
    CUstreamCaptureMode capture_mode;
    pthread_t capture_thread; // that began it
    bool capture_invalid, capture_origin;
    Tips tips;
} Stream;

CUresult stream_create(CUstream *out, unsigned flags);
CUresult stream_destroy(CUstream handle);
CUresult stream_get(CUstream handle, Stream **out);             // NULL and the special values give the null stream
CUresult stream_submit(Stream *stream, const Command *command); // copies the command; owns its buffers from then on
CUresult stream_drain(Stream *stream);
CUresult stream_drain_context(Context *context);
void stream_discard(Stream *stream); // what is queued is forgotten
CUresult stream_synchronize(CUstream handle);
CUresult stream_query(CUstream handle);
CUresult stream_wait(CUstream handle, CUevent event);
CUresult event_create(CUevent *out, unsigned flags);
CUresult event_destroy(CUevent event);
CUresult event_record(CUevent event, CUstream stream);
CUresult event_query(CUevent event);
CUresult event_synchronize(CUevent event);
CUresult event_elapsed(float *out, CUevent start, CUevent end);
CUresult command_run(Command *command); // does it now; CUDA_ERROR_NOT_READY: it waits for something outside, and is to be run again
void command_release(Command *command); // its buffers
bool command_copy(Command *to, const Command *from);

// ---- copies (copy.c) ----

CUresult copy_submit(CUstream stream, bool async, CopyCommand copy);
CUresult copy_run(const CopyCommand *copy);
CUresult set_submit(CUstream stream, bool async, SetCommand set);
CUresult set_run(const SetCommand *set);

// ---- modules and launches (module.c, launch.c) ----

typedef struct Function {
    Object object;
    struct Module *module;
    Kernel *kernel;
    unsigned dynamic_limit; // of shared memory
    int carveout;
} Function;

typedef struct Module {
    Object object;
    Context *context;
    PtxModule *ptx;
    Function **functions;
    size_t function_count;
} Module;

typedef struct JitOptions {
    unsigned count;
    const CUjit_option *option;
    void **value;
} JitOptions;

typedef struct Linker {
    Object object;
    Context *context;
    JitOptions options; // as given: the driver keeps them, too
    char *text;         // PTX
    size_t size;
    bool exact;      // for one architecture only
    bool unresolved; // it calls a function of the driver
    void *cubin;
} Linker;

CUresult module_load(CUmodule *out, const void *image, JitOptions options);
CUresult module_unload(CUmodule handle);
void module_free(Module *module);
void linker_free(Linker *linker);
CUresult module_function(CUfunction *out, CUmodule module, const char *name);
CUresult module_global(CUdeviceptr *out, size_t *size, CUmodule module, const char *name);
CUresult linker_create(CUlinkState *out, JitOptions options);
CUresult linker_add(CUlinkState handle, CUjitInputType type, const void *data, size_t size, JitOptions options);
CUresult linker_complete(CUlinkState handle, void **cubin, size_t *size);
CUresult linker_destroy(CUlinkState handle);
CUresult function_attribute(int *out, CUfunction_attribute attribute, CUfunction handle);
CUresult function_set_attribute(CUfunction handle, CUfunction_attribute attribute, int value);
CUresult launch_submit(CUfunction function, const unsigned grid[3], const unsigned block[3], unsigned shared, CUstream stream,
                       void **params, void **extra);
CUresult launch_prepare(KernelCommand *out, CUfunction function, const unsigned grid[3], const unsigned block[3], unsigned shared,
                        void **params, void **extra); // checks, and takes the parameters' values
CUresult launch_run(const KernelCommand *kernel, Context *context, uint64_t graph);

// ---- graphs (graph.c) ----

CUresult capture_add(Stream *stream, const Command *command); // a node; copies the command
CUresult capture_join(Stream *stream, const Event *event);    // its next nodes come after what the event stands for, too
CUresult capture_info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **after,
                      const CUgraphEdgeData **edges, size_t *count);
CUresult capture_begin(CUstream stream, CUstreamCaptureMode mode);
CUresult capture_end(CUstream stream, CUgraph *out);
CUresult capture_status(CUstream stream, CUstreamCaptureStatus *status);
CUresult graph_create(CUgraph *out);
CUresult graph_destroy(CUgraph handle);
CUresult graph_add_kernel(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t after_count,
                          const CUDA_KERNEL_NODE_PARAMS *params);
CUresult graph_conditional(CUgraphConditionalHandle *out, CUgraph graph, CUcontext context, unsigned value, unsigned flags);
CUresult graph_add_conditional(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t after_count,
                               CUgraphNodeParams *params);
bool conditional_copy(ConditionalCommand *command); // of what it was copied from, its own
void conditional_release(ConditionalCommand *command);
CUresult conditional_run(const ConditionalCommand *command, Context *context, uint64_t graph);
bool command_uses(const Command *command, const struct Module *module); // does it launch one of its kernels?
void conditional_default(const ConditionalCommand *command);
CUresult graph_nodes(CUgraph handle, CUgraphNode *nodes, size_t *count);
CUresult graph_node_type(CUgraphNode node, CUgraphNodeType *type);
CUresult graph_kernel_params(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params);
CUresult graph_instantiate(CUgraphExec *out, CUgraph graph);
CUresult graph_exec_kernel_params(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params);
CUresult graph_exec_memset_params(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params);
CUresult graph_exec_update(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info);
CUresult graph_launch(CUgraphExec exec, CUstream stream);
CUresult graph_exec_destroy(CUgraphExec exec);
bool capture_forbids(void);                                  // is a capture going on that unsafe calls break? It is broken then
struct Captured *captured_retain(struct Captured *captured); // NULL is allowed, here and below
void captured_release(struct Captured *captured);
void *captured_begin(const struct Captured *captured);
void graph_free(struct Graph *graph);
void graph_exec_free(struct GraphExec *exec);
Context *graph_context(const Object *object); // of a graph or an instance of one
bool graph_is_body(const Object *object);     // a graph that belongs to a conditional node

#endif
