/*
 * NCCL: collectives of buffers on CUDA devices, queued on a stream between a program's launches. libnccl.so.2 is opened by name when its
 * world is (KILN_LIBNCCL names another); no header of its is needed.
 *
 * NCCL moves what lies on devices, and nothing else: a carrier, which is another backend (mpi, or tcp.c), tells how many ranks there are,
 * carries the notes by which ranks check each other (run.c), what lies in memory of the host, and the id by which NCCL's own communicator
 * is found. That is made by the first collective of a group that has a buffer on a device.
 *
 *     start    ID       the carrier brings rank 0's ncclGetUniqueId to all
 *              THREAD   ncclCommInitRank, or the first call of its kind, which makes connections: they wait for other ranks, for
 *                       ever where one died, so a thread of its own makes them, and is left to itself when the rest gives up
 *              QUEUED   on the stream; an event tells when it is done, ncclCommGetAsyncError when it never will be
 *     give up  ncclCommAbort, on all communicators: what they have on the device ends, so that whoever waits for the stream does
 *
 * From 2.9 on the calls can be captured into CUDA graphs (runtime/comm/on_device.c), once their connections are made. NCCL wants that all ranks
 * capture one or none does, and that they launch graphs of one and the same capture: ranks agree on both before.
 *
 * What is only moved goes as bytes, so f16 and bf16 need no type of NCCL's. NCCL has no 16-bit integers, and its maximum loses NaN: who
 * records collectives knows (World.few_types).
 * Communicators are not destroyed at the end of the process, where the driver may be gone already: it takes them along.
 */
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "ir/base/os_dir.h"
#include "jit/options.h"
#include "runtime/comm/comm.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

typedef struct NcclCommOpaque *NcclComm;
typedef struct CuStreamOpaque *NcclStream;
typedef struct NcclId {
    char bytes[128];
} NcclId;

enum { NCCL_INVALID_USAGE = 5, NCCL_IN_PROGRESS = 7, OLDEST = 2700 /* ncclSend; 2.7.0, as NCCL writes versions up to 2.8 */ };
enum { NCCL_INT8, NCCL_UINT8, NCCL_INT32, NCCL_UINT32, NCCL_INT64, NCCL_UINT64, NCCL_FLOAT16, NCCL_FLOAT32, NCCL_FLOAT64 };
enum { NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN };

/* A communicator of the carrier, and NCCL's for the same ranks; or for two of them, who meet in it without the others. */
typedef struct Comm {
    struct Comm *made; /* the one before it, of all */
    void *carried;
    int rank, size;
    NcclComm _Atomic nccl;     /* NULL: not made */
    struct CudaDevice *device; /* that it is for; NULL: nobody knows yet */
    uint32_t called;           /* 1 << op: its connections are there; of SEND_RECV those with ... */
    int to, from;
    struct Comm **pair; /* with each rank; NULL: they had nothing for each other */
    int peer;           /* of a pair: the other rank, in the carrier's; else -1 */
} Comm;

typedef enum Stage { ID, THREAD, QUEUED } Stage;

/* A collective. Where it is given up with a thread at work, both have it for ever. */
typedef struct Request {
    Comm *comm;
    kiln_comm_call call;
    CudaLane lane;
    Stage stage;
    NcclId id;
    void *carried; /* ID: the carrier's request */
    atomic_bool ended;
    kiln_status status; /* of the thread */
    char why[KILN_COMM_WHY];
} Request;

static struct {
#define NCCL_SYM(type, name, symbol, parameters) type(*name) parameters;
#define NCCL_OPTIONAL NCCL_SYM
#include "runtime/comm/nccl_syms.def"
#undef NCCL_OPTIONAL
#undef NCCL_SYM
} nccl;

static struct {
    const kiln_comm_backend *carrier;
    Comm *newest;
    int version;
} all;

/* ---- the library ---- */

static Status load(void)
{
    char name[256];
    option_text(OPT_LIBNCCL, name, sizeof name);
    void *library = os_library_open(name[0] ? name : "libnccl.so.2");
    if (!library)
        return fail(ST_COMM, "no NCCL: %s; install it (libnccl2), name it (KILN_LIBNCCL), or use KILN_COMM=mpi", os_library_error());
    const char *lacks = NULL;
#define NCCL_OPTIONAL(type, name, symbol, parameters)        \
    {                                                        \
        void *address = os_library_symbol(library, #symbol); \
        memcpy(&nccl.name, &address, sizeof address);        \
    }
#define NCCL_SYM(type, name, symbol, parameters)  \
    NCCL_OPTIONAL(type, name, symbol, parameters) \
    if (!nccl.name)                               \
        lacks = #symbol;
#include "runtime/comm/nccl_syms.def"
#undef NCCL_SYM
#undef NCCL_OPTIONAL
    if (lacks)
        return fail(ST_COMM, "the NCCL library lacks %s: 2.7 or newer is needed; install one, or use KILN_COMM=mpi", lacks);
    int result = nccl.version(&all.version);
    if (result != 0)
        return fail(ST_COMM, "NCCL does not tell its version: %s", nccl.text(result));
    if (all.version < OLDEST)
        return fail(ST_COMM, "NCCL is of version %d.%d, 2.7 or newer is needed: install one, or use KILN_COMM=mpi", all.version / 1000,
                    all.version % 1000 / 100);
    return ST_OK;
}

static kiln_status told(int result, const char *what, NcclComm comm, char *why)
{
    const char *more = comm && nccl.last_error ? nccl.last_error(comm) : NULL;
    snprintf(why, KILN_COMM_WHY, "NCCL: %s: %.80s%s%.100s (NCCL_DEBUG=WARN tells more)", what, nccl.text(result),
             more && more[0] ? ": " : "", more ? more : "");
    return KILN_COMM;
}

/* ---- communicators ---- */

static kiln_status comm_new(void *carried, int rank, int size, void **out, char *why)
{
    Comm *c = os_calloc(1, sizeof *c);
    if (!c) {
        snprintf(why, KILN_COMM_WHY, "out of memory");
        return KILN_OUT_OF_MEMORY;
    }
    *c = (Comm){.made = all.newest, .carried = carried, .rank = rank, .size = size, .peer = -1};
    all.newest = c;
    *out = c;
    return KILN_OK;
}

static kiln_status nccl_open(void *user, void **comm, int *rank, int *size, char *why)
{
    void *carried = NULL;
    (void)user;
    if (load() != ST_OK) {
        snprintf(why, KILN_COMM_WHY, "%s", fail_message());
        return KILN_COMM;
    }
    kiln_status status = all.carrier->open(all.carrier->user, &carried, rank, size, why);
    if (status == KILN_OK && log_on(LOG_COMM))
        log_line(LOG_COMM, "NCCL %d, over %s: %s", all.version, all.carrier->name, why);
    return status == KILN_OK ? comm_new(carried, *rank, *size, comm, why) : status;
}

static kiln_status nccl_split(void *comm, int color, int key, void **out, int *rank, int *size, char *why)
{
    const Comm *parent = comm;
    void *carried = NULL;
    *out = NULL;
    kiln_status status = all.carrier->split(parent->carried, color, key, &carried, rank, size, why);
    return status == KILN_OK && carried ? comm_new(carried, *rank, *size, out, why) : status;
}

/* ---- what the carrier does ---- */

static kiln_status nccl_start(void *comm, const kiln_comm_call *call, void **request, char *why)
{
    return all.carrier->start(((Comm *)comm)->carried, call, request, why);
}

static kiln_status nccl_test(void *comm, void *request, int *done, char *why)
{
    return all.carrier->test(((Comm *)comm)->carried, request, done, why);
}

static kiln_status nccl_tell(void *comm, int to, const void *note, size_t bytes, char *why)
{
    return all.carrier->tell(((Comm *)comm)->carried, to, note, bytes, why);
}

static kiln_status nccl_hear(void *comm, int *from, void *note, size_t *bytes, char *why)
{
    return all.carrier->hear(((Comm *)comm)->carried, from, note, bytes, why);
}

static void nccl_close(void *comm, int orderly) { all.carrier->close(((Comm *)comm)->carried, orderly); }

/* ---- collectives on a device ---- */

static int type_of(kiln_dtype dtype)
{
    switch (dtype) {
    case KILN_I8: return NCCL_INT8;
    case KILN_I32: return NCCL_INT32;
    case KILN_U32: return NCCL_UINT32;
    case KILN_I64: return NCCL_INT64;
    case KILN_U64: return NCCL_UINT64;
    case KILN_F32: return NCCL_FLOAT32;
    case KILN_F64: return NCCL_FLOAT64;
    case KILN_BOOL:
    case KILN_U8: return NCCL_UINT8;
    case KILN_I16:
    case KILN_U16:
    case KILN_F16:
    case KILN_BF16: break; /* moved only */
    }
    return -1;
}

static int parts(const Request *r, size_t bytes)
{
    const kiln_comm_call *call = &r->call;
    int result = nccl.group_start();
    for (int k = 0; k < r->comm->size && result == 0; k++) {
        const size_t at = call->op == KILN_COMM_ALL_TO_ALL ? bytes * (size_t)k : 0;
        const bool everybody = call->op == KILN_COMM_ALL_TO_ALL;
        if (everybody || call->to == k)
            result = nccl.send((const char *)call->in + at, bytes, NCCL_UINT8, k, r->comm->nccl, r->lane.stream);
        if (result == 0 && (everybody || call->from == k))
            result = nccl.recv((char *)call->out + at, bytes, NCCL_UINT8, k, r->comm->nccl, r->lane.stream);
    }
    int end = nccl.group_end();
    return result ? result : end;
}

/* On the stream, which may be one that is captured. */
static kiln_status submit(const Request *r, char *why)
{
    static const char *const name[] = {[KILN_COMM_ALL_REDUCE] = "ncclAllReduce",
                                       [KILN_COMM_ALL_GATHER] = "ncclAllGather",
                                       [KILN_COMM_REDUCE_SCATTER] = "ncclReduceScatter",
                                       [KILN_COMM_BROADCAST] = "ncclBroadcast",
                                       [KILN_COMM_REDUCE] = "ncclReduce",
                                       [KILN_COMM_ALL_TO_ALL] = "ncclSend and ncclRecv",
                                       [KILN_COMM_SEND_RECV] = "ncclSend and ncclRecv"};
    const kiln_comm_call *call = &r->call;
    const int type = type_of(call->dtype), op = call->how == KILN_REDUCE_MAX   ? NCCL_MAX
                                                : call->how == KILN_REDUCE_MIN ? NCCL_MIN
                                                                               : NCCL_SUM;
    const size_t n = (size_t)call->count, bytes = n * dtype_bytes((DType)call->dtype);
    const NcclComm comm = r->comm->nccl;
    const NcclStream stream = r->lane.stream;
    int result = 0;
    switch (call->op) {
    case KILN_COMM_ALL_REDUCE: result = nccl.all_reduce(call->in, call->out, n, type, op, comm, stream); break;
    case KILN_COMM_REDUCE: result = nccl.reduce(call->in, call->out, n, type, op, call->root, comm, stream); break;
    case KILN_COMM_REDUCE_SCATTER: result = nccl.reduce_scatter(call->in, call->out, n, type, op, comm, stream); break;
    case KILN_COMM_ALL_GATHER: result = nccl.all_gather(call->in, call->out, bytes, NCCL_UINT8, comm, stream); break;
    case KILN_COMM_BROADCAST: result = nccl.broadcast(call->in, call->out, bytes, NCCL_UINT8, call->root, comm, stream); break;
    case KILN_COMM_ALL_TO_ALL:
    case KILN_COMM_SEND_RECV: result = parts(r, bytes); break;
    case KILN_COMM_BARRIER: break; /* has no buffers */
    }
    return result == 0 || result == NCCL_IN_PROGRESS ? KILN_OK : told(result, name[call->op], comm, why);
}

static kiln_status marked(const Request *r, char *why)
{
    if (cuda_lane_mark(&r->lane) == ST_OK)
        return KILN_OK;
    snprintf(why, KILN_COMM_WHY, "%s", fail_message());
    return KILN_COMM;
}

/* Queues it. */
static kiln_status queue(const Request *r, char *why)
{
    kiln_status status = submit(r, why);
    return status == KILN_OK ? marked(r, why) : status;
}

static void *thread_main(void *with)
{
    Request *r = with;
    NcclComm comm = atomic_load(&r->comm->nccl);
    int result = 0;
    r->status = cuda_lane_enter(&r->lane) == ST_OK ? KILN_OK : KILN_COMM;
    if (r->status != KILN_OK)
        snprintf(r->why, sizeof r->why, "%s", fail_message());
    else if (!comm && (result = nccl.init(&comm, r->comm->size, r->id, r->comm->rank)) != 0)
        r->status =
            told(result, result == NCCL_INVALID_USAGE ? "ncclCommInitRank (has each rank a CUDA device of its own?)" : "ncclCommInitRank",
                 NULL, r->why);
    if (r->status == KILN_OK) {
        atomic_store(&r->comm->nccl, comm);
        r->status = queue(r, r->why);
    }
    atomic_store(&r->ended, true);
    return NULL;
}

static kiln_status by_thread(Request *r, char *why)
{
    pthread_attr_t detached;
    pthread_t thread;
    sigset_t all_signals, old;
    r->stage = THREAD;
    if (pthread_attr_init(&detached) != 0)
        return KILN_OUT_OF_MEMORY;
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigfillset(&all_signals);
    pthread_sigmask(SIG_SETMASK, &all_signals, &old); /* signals are the user's threads' business */
    int error = pthread_create(&thread, &detached, thread_main, r);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&detached);
    if (error == 0)
        return KILN_OK;
    snprintf(why, KILN_COMM_WHY, "no thread for NCCL: %s", strerror(error));
    return KILN_COMM;
}

/* The id, which rank 0 makes. */
static kiln_status bring_id(Request *r, char *why)
{
    const Comm *c = r->comm;
    const bool pair = c->peer >= 0;
    const kiln_comm_call call = {.op = pair ? KILN_COMM_SEND_RECV : KILN_COMM_BROADCAST,
                                 .dtype = KILN_U8,
                                 .root = pair ? -1 : 0,
                                 .to = pair && c->rank == 0 ? c->peer : -1,
                                 .from = pair && c->rank == 1 ? c->peer : -1,
                                 .count = sizeof r->id,
                                 .in = &r->id,
                                 .out = &r->id};
    int result = c->rank == 0 ? nccl.unique_id(&r->id) : 0;
    if (result != 0)
        return told(result, "ncclGetUniqueId", NULL, why);
    r->stage = ID;
    return all.carrier->start(c->carried, &call, &r->carried, why);
}

/* A call that two ranks have alone is one of their own communicator. */
static kiln_status pair_of(Comm **comm, kiln_comm_call *call, char *why)
{
    Comm *all_ranks = *comm;
    const int peer = call->to >= 0 ? call->to : call->from;
    if (!all_ranks->pair && !(all_ranks->pair = os_calloc((size_t)all_ranks->size, sizeof(Comm *)))) {
        snprintf(why, KILN_COMM_WHY, "out of memory");
        return KILN_OUT_OF_MEMORY;
    }
    Comm **pair = &all_ranks->pair[peer];
    void *made = *pair;
    kiln_status status = made ? KILN_OK : comm_new(all_ranks->carried, all_ranks->rank > peer, 2, &made, why);
    if (status != KILN_OK)
        return status;
    *comm = *pair = made;
    (*pair)->peer = peer;
    *(call->to >= 0 ? &call->to : &call->from) = 1 - (*pair)->rank;
    return KILN_OK;
}

/* Calls of a kind, by direction for a pair, whose first one makes connections. */
static uint32_t kind_of(const Comm *c, const kiln_comm_call *call)
{
    return 1u << (c->peer >= 0 && call->from >= 0 ? KILN_COMM_BARRIER : (int)call->op);
}

static bool has_connections(const Comm *c, const kiln_comm_call *call)
{
    return c->called & kind_of(c, call) &&
           (c->peer >= 0 || call->op != KILN_COMM_SEND_RECV || (call->to == c->to && call->from == c->from));
}

static kiln_status device_start(const kiln_group *g, const kiln_comm_call *given, const CudaLane *lane, void **request, char *why)
{
    Comm *c = g->comm;
    kiln_comm_call own = *given;
    const kiln_comm_call *call = &own;
    Request *r = os_calloc(1, sizeof *r);
    if (!r) {
        snprintf(why, KILN_COMM_WHY, "out of memory");
        return KILN_OUT_OF_MEMORY;
    }
    if (own.op == KILN_COMM_SEND_RECV && own.root < 0 && pair_of(&c, &own, why) != KILN_OK) {
        os_free(r);
        return KILN_OUT_OF_MEMORY;
    }
    *r = (Request){.comm = c, .call = *call, .lane = *lane, .stage = QUEUED};
    *request = r;
    if (c->device && c->device != lane->device) {
        snprintf(why, KILN_COMM_WHY,
                 "NCCL: collectives of a group are for buffers on one CUDA device of each rank, the first one's; kiln_to moves x there");
        return KILN_COMM;
    }
    c->device = lane->device;
    if (!c->nccl)
        return bring_id(r, why);
    if (!has_connections(c, call))
        return by_thread(r, why);
    if (cuda_lane_enter(lane) == ST_OK)
        return queue(r, why);
    snprintf(why, KILN_COMM_WHY, "%s", fail_message());
    return KILN_COMM;
}

static kiln_status look(Request *r, int *done, char *why)
{
    bool over = false;
    int error = 0, result = nccl.async_error(r->comm->nccl, &error);
    if (result != 0 || (error != 0 && error != NCCL_IN_PROGRESS))
        return told(result ? result : error, "while it ran", r->comm->nccl, why);
    if (error == 0 && cuda_lane_over(&r->lane, &over) != ST_OK) {
        snprintf(why, KILN_COMM_WHY, "%s", fail_message());
        return KILN_COMM;
    }
    *done = over;
    return KILN_OK;
}

static kiln_status device_test(const kiln_group *g, void *request, int *done, char *why)
{
    Request *r = request;
    Comm *c = r->comm;
    kiln_status status = KILN_OK;
    (void)g;
    int there = 0;
    *done = 0;
    switch (r->stage) {
    case ID:
        status = all.carrier->test(c->carried, r->carried, &there, why);
        return status == KILN_OK && there ? by_thread(r, why) : status;
    case THREAD:
        if (!atomic_load(&r->ended))
            return KILN_OK;
        if (r->status != KILN_OK) {
            memcpy(why, r->why, sizeof r->why);
            return r->status;
        }
        c->called |= kind_of(c, &r->call);
        if (r->call.op == KILN_COMM_SEND_RECV) {
            c->to = r->call.to;
            c->from = r->call.from;
        }
        r->stage = QUEUED;
        return KILN_OK;
    case QUEUED: status = look(r, done, why);
    }
    if (*done)
        os_free(r);
    return status;
}

static bool device_carries(int op)
{
    (void)op;
    return true;
}

/* ---- in CUDA graphs ---- */

enum { OLDEST_GRAPHS = 20900 }; /* 2.9.0, as NCCL writes versions from then on */

static const char *device_no_graphs(void)
{
    return all.version < OLDEST_GRAPHS ? "NCCL 2.9 or newer is needed for that" : cuda_calls_objection();
}

static bool device_connected(const kiln_group *g, const kiln_comm_call *call)
{
    const Comm *c = g->comm;
    return c->nccl && has_connections(c, call);
}

static kiln_status device_capture(const kiln_group *g, const kiln_comm_call *call, const CudaLane *lane, char *why)
{
    const Request r = {.comm = g->comm, .call = *call, .lane = *lane};
    return submit(&r, why);
}

static kiln_status device_follow(const kiln_group *g, const CudaLane *lane, void **request, char *why)
{
    Request *r = os_calloc(1, sizeof *r);
    if (!r) {
        snprintf(why, KILN_COMM_WHY, "out of memory");
        return KILN_OUT_OF_MEMORY;
    }
    *r = (Request){.comm = g->comm, .lane = *lane, .stage = QUEUED};
    *request = r;
    return marked(r, why);
}

/* NCCL's abort waits for the end of all graphs that have calls of the communicator. */
static void device_give_up(void)
{
    for (const Comm *c = all.newest; c; c = c->made)
        if (c->nccl && c->device)
            cuda_calls_abandon(c->device);
    for (Comm *c = all.newest; c; c = c->made)
        if (c->nccl)
            nccl.abort(atomic_exchange(&c->nccl, NULL));
}

const kiln_comm_backend *comm_nccl(const kiln_comm_backend *carrier)
{
    static const kiln_comm_backend backend = {.version = KILN_COMM_VERSION,
                                              .name = "nccl",
                                              .open = nccl_open,
                                              .split = nccl_split,
                                              .start = nccl_start,
                                              .test = nccl_test,
                                              .tell = nccl_tell,
                                              .hear = nccl_hear,
                                              .close = nccl_close};
    if (!all.carrier)
        all.carrier = carrier;
    return &backend;
}

const CommDevice *comm_nccl_device(void)
{
    static const CommDevice device = {.carries = device_carries,
                                      .start = device_start,
                                      .test = device_test,
                                      .give_up = device_give_up,
                                      .no_graphs = device_no_graphs,
                                      .connected = device_connected,
                                      .capture = device_capture,
                                      .follow = device_follow};
    return &device;
}
