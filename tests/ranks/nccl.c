/*
 * libkiln_test_nccl.so: NCCL made of software, on the CUDA driver made of software (tests/cuda_driver). kiln loads it like the real one
 * (KILN_LIBNCCL), and it knows nothing of kiln.
 *
 * What is queued runs in its stream's order and not before somebody waits for that: it takes what it sends when all that was queued before
 * has run, and what comes is written when the last part is there. So what is not ordered shows as wrong values, or as memory that nobody
 * wrote. Processes meet in a file whose name is in the unique id, mapped by all: a box for each pair of ranks, through which messages go
 * in pieces. Each piece says what it belongs to; ranks whose calls differ get an error, later, as from NCCL. A rank that died is waited
 * for until ncclCommAbort.
 *
 * A call on a stream that is captured becomes a node of the graph, from version 2.9 on, and its messages say so, and by which call of the
 * communicator it was captured: so a rank that captured meets only one that did, at the same place. A call on another stream while its
 * thread captures is refused. An abort while graphs with calls of the communicator are left, which NCCL's waits for, is told.
 *
 * KILN_TEST_NCCL, settings separated by commas:
 *   version=N           what ncclGetVersion says; 22304
 *   fail=NAME:N:CODE    the N-th call of that function gives this ncclResult_t
 *   async=N             the N-th collective never ends: ncclCommGetAsyncError says ncclRemoteError
 *   order=ignored       what is sent is taken at the call, whatever is queued before: tests have to notice
 *   refuse=RANK         no call of this rank is captured: an error
 *   log=PATH            a line for each collective, and for each call that waits for other ranks
 */
#include "tests/cuda_driver/test_cuda.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

enum { SUCCESS, CUDA_ERROR, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR };
enum { RANKS = 16, BOX = 256 << 10, MOST_POINTS = 2 * RANKS };

typedef struct ncclUniqueId {
    char internal[128];
} ncclUniqueId;

/* From one rank to another: piece number `sent` lies in it until `taken` is as high. */
typedef struct Box {
    _Atomic uint64_t sent, taken;
    uint64_t of; /* what it belongs to */
    size_t bytes;
    char data[BOX];
} Box;

typedef struct Meeting {
    atomic_uint there, mask;
    Box box[]; /* from * n + to */
} Meeting;

typedef struct ncclComm {
    Meeting *meeting;
    int rank, n;
    uint64_t queued, done; /* collectives: one after the other, whatever stream they are on */
    uint64_t captured;     /* calls so far */
    int in_graphs;         /* of those, that a graph still has */
    atomic_int error;
    atomic_bool aborted;
    char text[160];
} ncclComm;

typedef enum Kind { ALL_REDUCE, REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, POINTS } Kind;

/* A message: to or from a peer, in memory of this process. */
typedef struct Message {
    int peer;
    bool send;
    uint64_t device; /* POINTS */
    char *data;
    size_t bytes, at;
} Message;

typedef struct Op {
    ncclComm *comm;
    Kind kind;
    int type, how, root;
    size_t count;
    uint64_t in, out, number, of, captured; /* captured: which call; 0: it was not */
    char *sent, *got;                       /* of this rank; of all, one after the other */
    size_t in_bytes, part;
    bool started, hangs;
    Message message[MOST_POINTS];
    int n_messages;
} Op;

/* ---- settings ---- */

static struct {
    pthread_mutex_t lock;
    bool read, unordered;
    int refuses;
    int version, fail_code;
    char fail[64], log[256];
    long fail_at, async_at, calls, collectives;
} settings = {.lock = PTHREAD_MUTEX_INITIALIZER, .version = 22304, .refuses = -1};

static void read_settings(void)
{
    char text[512];
    snprintf(text, sizeof text, "%s", getenv("KILN_TEST_NCCL") ? getenv("KILN_TEST_NCCL") : "");
    settings.read = true;
    for (char *rest = text, *one; (one = strsep(&rest, ",")) != NULL;)
        if (one[0] && sscanf(one, "version=%d", &settings.version) != 1 && sscanf(one, "refuse=%d", &settings.refuses) != 1 &&
            sscanf(one, "async=%ld", &settings.async_at) != 1 &&
            sscanf(one, "fail=%63[a-zA-Z]:%ld:%d", settings.fail, &settings.fail_at, &settings.fail_code) != 3 &&
            sscanf(one, "log=%255s", settings.log) != 1) {
            settings.unordered = !strcmp(one, "order=ignored");
            if (!settings.unordered)
                settings.version = 0; /* what is misspelt fails the test */
        }
}

static void log_line(const char *line, int rank)
{
    FILE *f = settings.log[0] ? fopen(settings.log, "a") : NULL;
    if (f) {
        fprintf(f, "rank %d: %s\n", rank, line);
        fclose(f);
    }
}

/* Is this call to fail? */
static int enter(const char *name)
{
    int result = SUCCESS;
    pthread_mutex_lock(&settings.lock);
    if (!settings.read)
        read_settings();
    if (!strcmp(name, settings.fail) && ++settings.calls == settings.fail_at)
        result = settings.fail_code;
    pthread_mutex_unlock(&settings.lock);
    return result;
}

#define ENTER()                        \
    do {                               \
        int result_ = enter(__func__); \
        if (result_ != SUCCESS)        \
            return result_;            \
    } while (0)

/* ---- arithmetic ---- */

static size_t type_bytes(int type)
{
    static const size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return type >= 0 && type < 10 ? bytes[type] : 0;
}

/* fmax: a NaN is lost, as it is by NCCL's. */
#define COMBINE(name, ctype, most, least)                                                                                      \
    static void name(int how, void *to, const void *from, size_t n)                                                            \
    {                                                                                                                          \
        ctype *a = to;                                                                                                         \
        const ctype *b = from;                                                                                                 \
        for (size_t i = 0; i < n; i++)                                                                                         \
            a[i] = (ctype)(how == 0 ? a[i] + b[i] : how == 1 ? a[i] * b[i] : how == 2 ? most(a[i], b[i]) : least(a[i], b[i])); \
    }
#define MOST(a, b) ((a) > (b) ? (a) : (b))
#define LEAST(a, b) ((a) < (b) ? (a) : (b))
COMBINE(combine_i8, int8_t, MOST, LEAST)
COMBINE(combine_u8, uint8_t, MOST, LEAST)
COMBINE(combine_u32, uint32_t, MOST, LEAST)
COMBINE(combine_u64, uint64_t, MOST, LEAST)
COMBINE(combine_f32, float, fmaxf, fminf)
COMBINE(combine_f64, double, fmax, fmin)

/* Sums wrap: as unsigned; what is compared is not. */
#define SIGNED(name, unsigned_name, ctype)                          \
    static void name(int how, void *to, const void *from, size_t n) \
    {                                                               \
        ctype *a = to;                                              \
        const ctype *b = from;                                      \
        if (how < 2)                                                \
            unsigned_name(how, to, from, n);                        \
        for (size_t i = 0; i < n && how >= 2; i++)                  \
            a[i] = how == 2 ? MOST(a[i], b[i]) : LEAST(a[i], b[i]); \
    }
SIGNED(combine_i32, combine_u32, int32_t)
SIGNED(combine_i64, combine_u64, int64_t)

typedef void Combine(int how, void *to, const void *from, size_t n);
static Combine *const combine[10] = {combine_i8,  combine_u8, combine_i32, combine_u32, combine_i64,
                                     combine_u64, NULL,       combine_f32, combine_f64, NULL};

/* ---- running ---- */

static bool wrong(ncclComm *c, int code, const char *text)
{
    snprintf(c->text, sizeof c->text, "%s", text);
    atomic_store(&c->error, code);
    return false;
}

static Box *box_of(const ncclComm *c, const Message *m)
{
    return &c->meeting->box[m->send ? c->rank * c->n + m->peer : m->peer * c->n + c->rank];
}

/* As far as it goes now. false: an error. */
static bool move(Op *op, Message *m, bool *done)
{
    Box *box = box_of(op->comm, m);
    while (m->at < m->bytes || (m->bytes == 0 && m->at == 0)) {
        const uint64_t sent = atomic_load(&box->sent), taken = atomic_load(&box->taken);
        size_t piece = m->bytes - m->at < BOX ? m->bytes - m->at : BOX;
        if ((sent == taken) != m->send)
            break;
        if (m->send) {
            memcpy(box->data, m->data + m->at, piece);
            box->bytes = piece;
            box->of = op->of;
            atomic_store(&box->sent, sent + 1);
        } else {
            if (box->of != op->of || box->bytes != piece)
                return wrong(op->comm, INVALID_USAGE, "ranks make different calls");
            memcpy(m->data + m->at, box->data, piece);
            atomic_store(&box->taken, taken + 1);
        }
        m->at += piece ? piece : 1;
    }
    *done &= m->bytes ? m->at == m->bytes : m->at == 1;
    return true;
}

/* What is sent, as it is now. */
static bool take(Op *op)
{
    for (int k = 0; k < op->n_messages; k++)
        if (op->kind == POINTS && op->message[k].send) {
            const void *from = test_cuda_access(op->message[k].device, op->message[k].bytes, 0);
            if (!from)
                return wrong(op->comm, CUDA_ERROR, test_cuda_report());
            memcpy(op->message[k].data, from, op->message[k].bytes);
        }
    if (op->in_bytes) {
        const void *from = test_cuda_access(op->in, op->in_bytes, 0);
        if (!from)
            return wrong(op->comm, CUDA_ERROR, test_cuda_report());
        memcpy(op->sent, from, op->in_bytes);
    }
    return true;
}

static bool give(uint64_t to, const void *from, size_t bytes)
{
    void *there = bytes ? test_cuda_access(to, bytes, 1) : NULL;
    if (there)
        memcpy(there, from, bytes);
    return there || !bytes;
}

static bool finish(Op *op)
{
    const ncclComm *c = op->comm;
    const size_t part = op->part;
    for (int k = 0; k < op->n_messages; k++)
        if (op->kind == POINTS && !op->message[k].send && !give(op->message[k].device, op->message[k].data, op->message[k].bytes))
            return false;
    switch (op->kind) {
    case POINTS: return true;
    case ALL_GATHER: memcpy(op->got + part * (size_t)c->rank, op->sent, part); return give(op->out, op->got, part * (size_t)c->n);
    case BROADCAST: return give(op->out, c->rank == op->root ? op->sent : op->got + part * (size_t)op->root, part);
    case ALL_REDUCE:
    case REDUCE:
    case REDUCE_SCATTER: break;
    }
    if (op->kind == REDUCE && c->rank != op->root)
        return true;
    memcpy(op->got + part * (size_t)c->rank, op->sent + (op->kind == REDUCE_SCATTER ? part * (size_t)c->rank : 0), part);
    for (int k = 1; k < c->n; k++)
        combine[op->type](op->how, op->got, op->got + part * (size_t)k, op->count);
    return give(op->out, op->got, part);
}

static void op_free(Op *op)
{
    for (int k = 0; k < op->n_messages && op->kind == POINTS; k++)
        free(op->message[k].data);
    free(op->sent);
    free(op->got);
    free(op);
}

/* Called by the driver when all that was queued before is done. */
static int poll(void *user)
{
    Op *op = user;
    ncclComm *c = op->comm;
    if (atomic_load(&c->aborted)) {
        op_free(op);
        return 1;
    }
    if (atomic_load(&c->error) != SUCCESS || c->done != op->number)
        return 0;
    if (op->hangs) {
        wrong(c, REMOTE_ERROR, "told to");
        return 0;
    }
    if (!op->started && !settings.unordered && !take(op))
        return 0;
    op->started = true;
    bool done = true;
    for (int k = 0; k < op->n_messages; k++)
        if (!move(op, &op->message[k], &done))
            return 0;
    if (!done)
        return 0;
    if (!finish(op)) {
        wrong(c, CUDA_ERROR, test_cuda_report());
        return 0;
    }
    c->done++;
    op_free(op);
    return 1;
}

/* ---- queueing ---- */

static void add(Op *op, int peer, bool send, char *data, size_t bytes)
{
    if (peer != op->comm->rank)
        op->message[op->n_messages++] = (Message){.peer = peer, .send = send, .data = data, .bytes = bytes};
}

/* Who sends what to whom. */
static void plan(Op *op)
{
    const ncclComm *c = op->comm;
    const size_t part = op->part;
    for (int k = 0; k < c->n; k++) {
        char *got = op->got + part * (size_t)k;
        switch (op->kind) {
        case ALL_REDUCE:
        case ALL_GATHER:
            add(op, k, true, op->sent, part);
            add(op, k, false, got, part);
            break;
        case REDUCE_SCATTER:
            add(op, k, true, op->sent + part * (size_t)k, part);
            add(op, k, false, got, part);
            break;
        case BROADCAST:
            if (c->rank == op->root)
                add(op, k, true, op->sent, part);
            else if (k == op->root)
                add(op, k, false, got, part);
            break;
        case REDUCE:
            if (c->rank == op->root)
                add(op, k, false, got, part);
            else if (k == op->root)
                add(op, k, true, op->sent, part);
            break;
        case POINTS: break;
        }
    }
}

/* It is the next one of its communicator, as it runs. */
static void number(Op *op)
{
    static const char *const name[] = {"all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast", "points"};
    char line[80];
    ncclComm *c = op->comm;
    pthread_mutex_lock(&settings.lock);
    op->hangs = ++settings.collectives == settings.async_at;
    snprintf(line, sizeof line, "%s of %zu of type %d%s", name[op->kind], op->count, op->type, op->captured ? " in a graph" : "");
    log_line(line, c->rank);
    pthread_mutex_unlock(&settings.lock);
    op->number = c->queued++;
    op->of ^= op->number << 24 ^ op->captured * UINT64_C(0x9e3779b97f4a7c15);
}

/* What a captured call does at a launch of its graph. */
static void *begin(void *user)
{
    const Op *call = user;
    Op *op = malloc(sizeof *op);
    *op = *call;
    op->sent = malloc(op->in_bytes + 1);
    op->got = malloc(op->part * (size_t)op->comm->n + 1);
    op->n_messages = op->kind == POINTS ? call->n_messages : 0;
    for (int k = 0; k < op->n_messages; k++)
        op->message[k].data = malloc(op->message[k].bytes + 1);
    plan(op);
    number(op);
    if (settings.unordered && !take(op)) {
        op_free(op);
        return NULL;
    }
    return op;
}

static void end(void *user)
{
    Op *op = user;
    op->comm->in_graphs--;
    op_free(op);
}

static int submit(Op *op, void *stream)
{
    extern int cuStreamIsCapturing(void *stream, unsigned *status);
    ncclComm *c = op->comm;
    unsigned status = 0;
    const int captures = test_cuda_capturing();
    if (cuStreamIsCapturing(stream, &status) != 0 ||
        (captures && (status != 1 || settings.version < 20900 || settings.refuses == c->rank))) {
        wrong(c, SUCCESS, status != 1 ? "not the stream that is captured" : settings.version < 20900 ? "no graphs before 2.9" : "told to");
        op_free(op);
        return INVALID_USAGE;
    }
    if (captures) {
        op->captured = ++c->captured;
        c->in_graphs++;
        log_line("captured", c->rank);
        return test_cuda_capture(stream, &(test_cuda_captured){begin, poll, end, op}) == 0 ? SUCCESS : CUDA_ERROR;
    }
    number(op);
    if (settings.unordered && !take(op)) {
        op_free(op);
        return CUDA_ERROR;
    }
    return test_cuda_enqueue(stream, poll, op) == 0 ? SUCCESS : CUDA_ERROR;
}

static int collective(Kind kind, const void *in, void *out, size_t count, int type, int how, int root, ncclComm *c, void *stream)
{
    const size_t part = count * type_bytes(type);
    const bool reduces = kind <= REDUCE_SCATTER;
    if (!c || atomic_load(&c->aborted) || !stream || !type_bytes(type) || root < 0 || root >= c->n ||
        (reduces && (!combine[type] || how > 3)))
        return INVALID_ARGUMENT;
    Op *op = calloc(1, sizeof *op);
    *op = (Op){.comm = c, .kind = kind, .type = type, .how = how, .root = root, .count = count, .part = part};
    op->in = (uint64_t)(uintptr_t)in;
    op->out = (uint64_t)(uintptr_t)out;
    op->in_bytes = kind == BROADCAST && c->rank != root ? 0 : kind == REDUCE_SCATTER ? part * (size_t)c->n : part;
    op->of = ((((uint64_t)kind * 16 + (uint64_t)type) * 4 + (uint64_t)how) * RANKS + (uint64_t)root) << 40 ^ count;
    op->sent = malloc(op->in_bytes + 1);
    op->got = malloc(part * (size_t)c->n + 1);
    plan(op);
    return submit(op, stream);
}

API int ncclAllReduce(const void *in, void *out, size_t count, int type, int how, ncclComm *comm, void *stream)
{
    ENTER();
    return collective(ALL_REDUCE, in, out, count, type, how, 0, comm, stream);
}

API int ncclReduce(const void *in, void *out, size_t count, int type, int how, int root, ncclComm *comm, void *stream)
{
    ENTER();
    return collective(REDUCE, in, out, count, type, how, root, comm, stream);
}

API int ncclReduceScatter(const void *in, void *out, size_t count, int type, int how, ncclComm *comm, void *stream)
{
    ENTER();
    return collective(REDUCE_SCATTER, in, out, count, type, how, 0, comm, stream);
}

API int ncclAllGather(const void *in, void *out, size_t count, int type, ncclComm *comm, void *stream)
{
    ENTER();
    return collective(ALL_GATHER, in, out, count, type, 0, 0, comm, stream);
}

API int ncclBroadcast(const void *in, void *out, size_t count, int type, int root, ncclComm *comm, void *stream)
{
    ENTER();
    return collective(BROADCAST, in, out, count, type, 0, root, comm, stream);
}

/* ---- messages, in a group ---- */

static _Thread_local struct {
    int depth;
    Op *op;
    void *stream;
} group;

API int ncclGroupStart(void)
{
    ENTER();
    group.depth++;
    return SUCCESS;
}

API int ncclGroupEnd(void)
{
    ENTER();
    Op *op = group.op;
    if (group.depth == 0)
        return INVALID_USAGE;
    if (--group.depth || !op)
        return SUCCESS;
    group.op = NULL;
    return submit(op, group.stream);
}

static int point(bool send, void *buffer, size_t count, int type, int peer, ncclComm *c, void *stream)
{
    if (!group.depth) /* it would wait for the other half */
        return INVALID_USAGE;
    if (!c || atomic_load(&c->aborted) || !stream || !type_bytes(type) || peer < 0 || peer >= c->n)
        return INVALID_ARGUMENT;
    if (!group.op) {
        group.op = calloc(1, sizeof *group.op);
        *group.op = (Op){.comm = c, .kind = POINTS, .of = UINT64_C(1) << 63};
        group.stream = stream;
    }
    if (group.op->comm != c || group.stream != stream || group.op->n_messages == MOST_POINTS)
        return INVALID_USAGE;
    const size_t bytes = count * type_bytes(type);
    group.op->message[group.op->n_messages++] =
        (Message){.peer = peer, .send = send, .device = (uint64_t)(uintptr_t)buffer, .data = malloc(bytes + 1), .bytes = bytes};
    return SUCCESS;
}

#ifndef TEST_NCCL_OLD
API int ncclSend(const void *in, size_t count, int type, int to, ncclComm *comm, void *stream)
{
    ENTER();
    return point(true, (void *)(uintptr_t)in, count, type, to, comm, stream);
}
#endif

API int ncclRecv(void *out, size_t count, int type, int from, ncclComm *comm, void *stream)
{
    ENTER();
    return point(false, out, count, type, from, comm, stream);
}

/* ---- communicators ---- */

API int ncclGetVersion(int *version)
{
    ENTER();
    *version = settings.version;
    return SUCCESS;
}

API const char *ncclGetErrorString(int result)
{
    static const char *const text[] = {"no error",
                                       "unhandled cuda error",
                                       "unhandled system error",
                                       "internal error",
                                       "invalid argument",
                                       "invalid usage",
                                       "remote process exited or there was a network error"};
    return result >= 0 && result < 7 ? text[result] : "unknown result code";
}

API const char *ncclGetLastError(ncclComm *comm) { return comm ? comm->text : ""; }

API int ncclGetUniqueId(ncclUniqueId *id)
{
    ENTER();
    const char *folder = getenv("TMPDIR");
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "%.90s/kiln_nccl_XXXXXX", folder ? folder : "/tmp");
    int file = mkstemp(id->internal);
    if (file < 0)
        return SYSTEM_ERROR;
    close(file);
    return SUCCESS;
}

API int ncclCommInitRank(ncclComm **comm, int n, ncclUniqueId id, int rank)
{
    extern int cuCtxGetCurrent(void **context);
    void *context = NULL;
    ENTER();
    if (cuCtxGetCurrent(&context) != 0 || !context)
        return CUDA_ERROR;
    if (n < 1 || n > RANKS || rank < 0 || rank >= n)
        return INVALID_ARGUMENT;
    const size_t bytes = sizeof(Meeting) + sizeof(Box) * (size_t)n * (size_t)n;
    int file = open(id.internal, O_RDWR | O_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)bytes) != 0)
        return SYSTEM_ERROR;
    Meeting *meeting = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (meeting == MAP_FAILED)
        return SYSTEM_ERROR;
    log_line("init", rank);
    if (atomic_fetch_or(&meeting->mask, 1u << rank) & 1u << rank)
        return INVALID_USAGE;
    atomic_fetch_add(&meeting->there, 1);
    while (atomic_load(&meeting->there) < (unsigned)n) /* for ever, where one does not come */
        usleep(1000);
    if (rank == 0)
        unlink(id.internal);
    *comm = calloc(1, sizeof **comm);
    (*comm)->meeting = meeting;
    (*comm)->rank = rank;
    (*comm)->n = n;
    return SUCCESS;
}

API int ncclCommGetAsyncError(ncclComm *comm, int *result)
{
    ENTER();
    *result = atomic_load(&comm->error);
    return SUCCESS;
}

/* What it has queued ends; the rest stays, as somebody may look at it. */
API int ncclCommAbort(ncclComm *comm)
{
    ENTER();
    atomic_store(&comm->aborted, true);
    log_line("abort", comm->rank);
    if (comm->in_graphs)
        log_line("FAILED: a graph has calls of a communicator that is aborted", comm->rank);
    return SUCCESS;
}
