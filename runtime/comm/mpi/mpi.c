/*
 * libkiln_mpi.so: kiln_comm_backend over MPI 3. The only file that includes <mpi.h>; it needs nothing of libkiln.so.
 *
 * Collectives are the nonblocking ones, which progress while they are asked for (MPI_Test), so that nobody waits inside of MPI. Notes have
 * a communicator of their
 * own: sent from buffers that are kept until they went, received by one receive that is always posted. MPI's errors are returned, not fatal.
 *
 * MPI's own maximum of floats does not say what it makes of NaN: max and min are functions here.
 *
 * Small sums of floats, by as many ranks as are a power of two, are messages between the ranks of pairs, then of pairs of pairs... (recursive
 * doubling): nonblocking all_reduces take up to twice as long as blocking ones, Open MPI's of 64 KB half as long again. All ranks add in one order.
 */
#include "kiln.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A note on its way. */
typedef struct Letter {
    struct Letter *next;
    MPI_Request request;
    char note[KILN_COMM_NOTE];
} Letter;

/* A sum in pairs. */
typedef struct Pairs {
    int apart; /* the ranks of a pair, now; 0: nothing is summed */
    int n;
    MPI_Datatype type;
    const void *own; /* what this rank has so far: it lies in `out` from the first round on */
    void *out, *other;
    size_t room; /* of `other` */
} Pairs;

typedef struct Comm {
    MPI_Comm data, notes;
    int rank, size;
    MPI_Request request; /* the collective that runs: there is one at a time */
    int n_parts;         /* of what is moved by messages: more of them, one for each ... */
    MPI_Request *part;   /* ... message; room for one to each rank and one from each */
    Pairs pairs;
    MPI_Request listening;
    char heard[KILN_COMM_NOTE];
    Letter *sent, *idle;
    struct Comm *made; /* the one that was split before it, of all */
} Comm;

/* Of the process, as MPI is. */
static struct {
    int ours; /* it was initialised here */
    int level;
    Comm *newest;
    MPI_Op max, min;
} mpi;

#define MPI_TRY(call)                 \
    do {                              \
        int error_ = (call);          \
        if (error_ != MPI_SUCCESS)    \
            return told(error_, why); \
    } while (0)

static kiln_status told(int error, char *why)
{
    char text[MPI_MAX_ERROR_STRING] = "unknown error";
    int length = 0;
    if (MPI_Error_string(error, text, &length) != MPI_SUCCESS)
        length = 0;
    snprintf(why, KILN_COMM_WHY, "MPI: %.240s", text);
    return KILN_COMM;
}

/* Who initialised MPI may have finalised it. */
static kiln_status still_there(char *why)
{
    int over = 0;
    if (mpi.ours || (MPI_Finalized(&over) == MPI_SUCCESS && !over))
        return KILN_OK;
    snprintf(why, KILN_COMM_WHY, "MPI_Finalize was called");
    return KILN_COMM;
}

/* ---- NaN ---- */

#define EXTREME(name, type, better)                                 \
    static void name(const type *in, type *inout, int n)            \
    {                                                               \
        for (int i = 0; i < n; i++)                                 \
            if (in[i] better inout[i] || in[i] != in[i])            \
                inout[i] = inout[i] != inout[i] ? inout[i] : in[i]; \
    }
EXTREME(max_f32, float, >)
EXTREME(max_f64, double, >)
EXTREME(min_f32, float, <)
EXTREME(min_f64, double, <)

static void max_floats(void *in, void *inout, int *n, MPI_Datatype *type)
{
    if (*type == MPI_FLOAT)
        max_f32(in, inout, *n);
    else
        max_f64(in, inout, *n);
}

static void min_floats(void *in, void *inout, int *n, MPI_Datatype *type)
{
    if (*type == MPI_FLOAT)
        min_f32(in, inout, *n);
    else
        min_f64(in, inout, *n);
}

static MPI_Op op_of(kiln_reduce how, kiln_dtype dtype)
{
    int is_float = dtype == KILN_F32 || dtype == KILN_F64;
    if (how == KILN_REDUCE_MAX)
        return is_float ? mpi.max : MPI_MAX;
    if (how == KILN_REDUCE_MIN)
        return is_float ? mpi.min : MPI_MIN;
    return MPI_SUM;
}

/* What is only moved is bytes, 2 of them at a time. */
static MPI_Datatype type_of(kiln_dtype dtype)
{
    switch (dtype) {
    case KILN_BOOL:
    case KILN_U8: return MPI_UINT8_T;
    case KILN_I8: return MPI_INT8_T;
    case KILN_I16: return MPI_INT16_T;
    case KILN_F16:
    case KILN_BF16:
    case KILN_U16: return MPI_UINT16_T;
    case KILN_I32: return MPI_INT32_T;
    case KILN_U32: return MPI_UINT32_T;
    case KILN_I64: return MPI_INT64_T;
    case KILN_U64: return MPI_UINT64_T;
    case KILN_F32: return MPI_FLOAT;
    case KILN_F64: return MPI_DOUBLE;
    }
    return MPI_BYTE;
}

/* ---- communicators ---- */

static kiln_status listen(Comm *c, char *why)
{
    MPI_TRY(MPI_Irecv(c->heard, KILN_COMM_NOTE, MPI_BYTE, MPI_ANY_SOURCE, 0, c->notes, &c->listening));
    return KILN_OK;
}

/* Of `from`, which is left as it is. */
static kiln_status comm_new(MPI_Comm from, Comm **out, char *why)
{
    Comm *c = calloc(1, sizeof *c);
    if (!c) {
        snprintf(why, KILN_COMM_WHY, "out of memory");
        return KILN_OUT_OF_MEMORY;
    }
    c->request = c->listening = MPI_REQUEST_NULL;
    c->made = mpi.newest; /* MPI knows of it: it stays, whatever fails */
    mpi.newest = c;
    *out = c;
    MPI_TRY(MPI_Comm_dup(from, &c->data));
    MPI_TRY(MPI_Comm_dup(from, &c->notes));
    MPI_TRY(MPI_Comm_set_errhandler(c->data, MPI_ERRORS_RETURN));
    MPI_TRY(MPI_Comm_set_errhandler(c->notes, MPI_ERRORS_RETURN));
    MPI_TRY(MPI_Comm_rank(c->data, &c->rank));
    MPI_TRY(MPI_Comm_size(c->data, &c->size));
    c->part = malloc(2 * sizeof *c->part * (size_t)c->size);
    if (!c->part) {
        snprintf(why, KILN_COMM_WHY, "out of memory");
        return KILN_OUT_OF_MEMORY;
    }
    return listen(c, why);
}

static kiln_status call_at_finalize(char *why);

static kiln_status mpi_open(void *user, void **comm, int *rank, int *size, char *why)
{
    int done = 0, over = 0, level = 0, length = 0;
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    Comm *c = NULL;
    (void)user;
    MPI_TRY(MPI_Initialized(&done));
    MPI_TRY(MPI_Finalized(&over));
    if (over) {
        snprintf(why, KILN_COMM_WHY, "MPI_Finalize was called already");
        return KILN_COMM;
    }
    if (done)
        MPI_TRY(MPI_Query_thread(&level));
    else
        MPI_TRY(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level));
    mpi.ours |= !done;
    mpi.level = level;
    MPI_TRY(MPI_Op_create(max_floats, 1, &mpi.max));
    MPI_TRY(MPI_Op_create(min_floats, 1, &mpi.min));
    kiln_status status = comm_new(MPI_COMM_WORLD, &c, why);
    if (status == KILN_OK)
        status = call_at_finalize(why);
    if (status != KILN_OK)
        return status;
    *comm = c;
    *rank = c->rank;
    *size = c->size;
    if (MPI_Get_library_version(version, &length) == MPI_SUCCESS)
        snprintf(why, KILN_COMM_WHY, "%.*s", (int)strcspn(version, ",\n"), version);
    return KILN_OK;
}

static kiln_status mpi_split(void *comm, int color, int key, void **out, int *rank, int *size, char *why)
{
    const Comm *parent = comm;
    MPI_Comm part;
    Comm *c = NULL;
    MPI_TRY(MPI_Comm_split(parent->data, color < 0 ? MPI_UNDEFINED : color, key, &part));
    *out = NULL;
    if (part == MPI_COMM_NULL)
        return KILN_OK;
    kiln_status status = comm_new(part, &c, why);
    if (status != KILN_OK)
        return status;
    MPI_TRY(MPI_Comm_free(&part));
    *out = c;
    *rank = c->rank;
    *size = c->size;
    return KILN_OK;
}

/* ---- collectives ---- */

static int count_fits(const Comm *c, const kiln_comm_call *call, int *count)
{
    int all = call->op == KILN_COMM_ALL_GATHER || call->op == KILN_COMM_REDUCE_SCATTER || call->op == KILN_COMM_ALL_TO_ALL;
    *count = (int)call->count;
    return call->count <= 0x7fffffff / (uint64_t)(all ? c->size : 1);
}

static size_t bytes_of(MPI_Datatype type)
{
    int size = 0;
    MPI_Type_size(type, &size);
    return (size_t)size;
}

/* What is moved, by messages. */
static int start_messages(Comm *c, const kiln_comm_call *call, int n, MPI_Datatype type)
{
    const size_t bytes = (size_t)n * bytes_of(type);
    const int gather = call->op == KILN_COMM_ALL_GATHER, cut = call->op == KILN_COMM_ALL_TO_ALL, all = gather || cut;
    const int root = call->op == KILN_COMM_BROADCAST;
    int error = MPI_SUCCESS;
    for (int k = 0; k < c->size && error == MPI_SUCCESS; k++)
        if (all || k == (root ? call->root : call->from))
            error = MPI_Irecv((char *)call->out + (all ? bytes * (size_t)k : 0), n, type, k, 0, c->data, &c->part[c->n_parts++]);
    for (int k = 0; k < c->size && error == MPI_SUCCESS; k++)
        if (all || (root ? call->root == c->rank : k == call->to))
            error = MPI_Isend((const char *)call->in + (cut ? bytes * (size_t)k : 0), n, type, k, 0, c->data, &c->part[c->n_parts++]);
    return error;
}

/* ---- sums in pairs ---- */

/* Bytes. Two ranks send each other what they must; of more each sends all it has in each round, which other ways do not. */
enum { PAIR_MOST = 512 << 10, PAIRS_MOST = 32 << 10, PAIRS_TAG = 1 };

#define ADD(name, type)                                                                                         \
    /* out = a + b, which is any of both */                                                                     \
    static void name(const type *a, const type *b, type *out, int n)                                            \
    {                                                                                                           \
        if (out == a || out == b) {                                                                             \
            const type *restrict other = out == a ? b : a;                                                      \
            type *restrict sum = out;                                                                           \
            for (int i = 0; i < n; i++)                                                                         \
                sum[i] = out == a ? sum[i] + other[i] : other[i] + sum[i]; /* of two NaN the first one stays */ \
            return;                                                                                             \
        }                                                                                                       \
        type *restrict sum = out;                                                                               \
        for (int i = 0; i < n; i++)                                                                             \
            sum[i] = a[i] + b[i];                                                                               \
    }
ADD(add_f32, float)
ADD(add_f64, double)

static int in_pairs(const Comm *c, const kiln_comm_call *call)
{
    const size_t bytes = call->dtype == KILN_F32 ? 4 : call->dtype == KILN_F64 ? 8 : 0, most = c->size == 2 ? PAIR_MOST : PAIRS_MOST;
    return call->op == KILN_COMM_ALL_REDUCE && call->how == KILN_REDUCE_SUM && bytes && call->count && call->count <= most / bytes &&
           c->size > 1 && !(c->size & (c->size - 1));
}

static int start_pair(Comm *c)
{
    Pairs *p = &c->pairs;
    int error = MPI_Irecv(p->other, p->n, p->type, c->rank ^ p->apart, PAIRS_TAG, c->data, &c->part[0]);
    c->n_parts = error == MPI_SUCCESS;
    if (error == MPI_SUCCESS)
        error = MPI_Isend(p->own, p->n, p->type, c->rank ^ p->apart, PAIRS_TAG, c->data, &c->part[1]);
    c->n_parts += error == MPI_SUCCESS;
    return error;
}

static kiln_status start_pairs(Comm *c, const kiln_comm_call *call, int n, MPI_Datatype type, char *why)
{
    Pairs *p = &c->pairs;
    const size_t bytes = (size_t)n * bytes_of(type);
    if (bytes > p->room) {
        free(p->other);
        p->room = 0;
        p->other = malloc(bytes);
        if (!p->other) {
            snprintf(why, KILN_COMM_WHY, "out of memory");
            return KILN_OUT_OF_MEMORY;
        }
        p->room = bytes;
    }
    p->apart = 1;
    p->n = n;
    p->type = type;
    p->own = call->in;
    p->out = call->out;
    MPI_TRY(start_pair(c));
    return KILN_OK;
}

/* Both messages have come. *done = 0: the next ones are on their way. */
static int end_pair(Comm *c, int *done)
{
    Pairs *p = &c->pairs;
    const void *first = c->rank & p->apart ? p->other : p->own, *second = c->rank & p->apart ? p->own : p->other;
    if (p->type == MPI_FLOAT)
        add_f32(first, second, p->out, p->n);
    else
        add_f64(first, second, p->out, p->n);
    p->own = p->out;
    p->apart *= 2;
    *done = p->apart == c->size;
    if (!*done)
        return start_pair(c);
    p->apart = 0;
    return MPI_SUCCESS;
}

/* May a collective begin, and of how many elements? */
static kiln_status ready(Comm *c, const kiln_comm_call *call, int *n, char *why)
{
    if (still_there(why) != KILN_OK)
        return KILN_COMM;
    if (!count_fits(c, call, n)) {
        snprintf(why, KILN_COMM_WHY, "MPI takes at most 2^31 - 1 elements at a time, this are %llu", (unsigned long long)call->count);
        return KILN_UNSUPPORTED;
    }
    c->n_parts = c->pairs.apart = 0;
    c->request = MPI_REQUEST_NULL;
    return KILN_OK;
}

static kiln_status mpi_start(void *comm, const kiln_comm_call *call, void **request, char *why)
{
    Comm *c = comm;
    MPI_Datatype type = type_of(call->dtype);
    MPI_Op op = op_of(call->how, call->dtype);
    int n, error = MPI_SUCCESS;
    kiln_status status = ready(c, call, &n, why);
    if (status != KILN_OK)
        return status;
    *request = c;
    if (in_pairs(c, call))
        return start_pairs(c, call, n, type, why);
    switch (call->op) {
    case KILN_COMM_ALL_REDUCE: error = MPI_Iallreduce(call->in, call->out, n, type, op, c->data, &c->request); break;
    case KILN_COMM_ALL_GATHER: error = MPI_Iallgather(call->in, n, type, call->out, n, type, c->data, &c->request); break;
    case KILN_COMM_REDUCE_SCATTER: error = MPI_Ireduce_scatter_block(call->in, call->out, n, type, op, c->data, &c->request); break;
    case KILN_COMM_BROADCAST:
        if (c->rank == call->root && n && call->in != call->out)
            memcpy(call->out, call->in, (size_t)n * bytes_of(type));
        error = MPI_Ibcast(call->out, n, type, call->root, c->data, &c->request);
        break;
    case KILN_COMM_REDUCE:
        error = MPI_Ireduce(call->in, c->rank == call->root ? call->out : NULL, n, type, op, call->root, c->data, &c->request);
        break;
    case KILN_COMM_ALL_TO_ALL: error = MPI_Ialltoall(call->in, n, type, call->out, n, type, c->data, &c->request); break;
    case KILN_COMM_SEND_RECV: error = start_messages(c, call, n, type); break;
    case KILN_COMM_BARRIER: error = MPI_Ibarrier(c->data, &c->request); break;
    }
    return error == MPI_SUCCESS ? KILN_OK : told(error, why);
}

static kiln_status mpi_test(void *comm, void *request, int *done, char *why)
{
    Comm *c = request;
    (void)comm;
    MPI_TRY(MPI_Test(&c->request, done, MPI_STATUS_IGNORE));
    for (int k = 0; k < c->n_parts; k++) {
        int one = 0;
        MPI_TRY(MPI_Test(&c->part[k], &one, MPI_STATUS_IGNORE));
        *done &= one;
    }
    if (*done && c->pairs.apart)
        MPI_TRY(end_pair(c, done));
    return KILN_OK;
}

/* ---- buffers on CUDA devices ---- */

/* Of Open MPI and MPICH: does this one take them? Another MPI has neither function, or is asked nothing. */
int MPIX_Query_cuda_support(void) __attribute__((weak));
int MPIX_GPU_query_support(int gpu_type, int *is_supported) __attribute__((weak));
enum { MPICH_CUDA = 0 };

static int takes_cuda(void)
{
    int yes = MPIX_Query_cuda_support ? MPIX_Query_cuda_support() : 0;
    if (!yes && MPIX_GPU_query_support && MPIX_GPU_query_support(MPICH_CUDA, &yes) != MPI_SUCCESS)
        yes = 0;
    return yes;
}

/* Messages, as Open MPI's nonblocking collectives take no such buffers. */
static kiln_status move_cuda(void *comm, const kiln_comm_call *call, void **request, char *why)
{
    Comm *c = comm;
    int n;
    kiln_status status = ready(c, call, &n, why);
    if (status != KILN_OK)
        return status;
    *request = c;
    MPI_TRY(start_messages(c, call, n, type_of(call->dtype)));
    return KILN_OK;
}

KILN_API kiln_comm_start *kiln_comm_cuda_moves(void);

/* What starts a collective that combines nothing, of buffers on CUDA devices; NULL: this MPI takes none. */
kiln_comm_start *kiln_comm_cuda_moves(void) { return takes_cuda() ? move_cuda : NULL; }

/* ---- notes ---- */

/* Letters that went are to be used again. */
static void collect(Comm *c)
{
    for (Letter **at = &c->sent; *at;) {
        Letter *letter = *at;
        int done = 0;
        if (MPI_Test(&letter->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || !done) {
            at = &letter->next;
            continue;
        }
        *at = letter->next;
        letter->next = c->idle;
        c->idle = letter;
    }
}

static kiln_status mpi_tell(void *comm, int to, const void *note, size_t bytes, char *why)
{
    Comm *c = comm;
    if (still_there(why) != KILN_OK)
        return KILN_COMM;
    collect(c);
    Letter *letter = c->idle ? c->idle : malloc(sizeof *letter);
    if (!letter || bytes > sizeof letter->note) {
        snprintf(why, KILN_COMM_WHY, "no memory for a note");
        return KILN_OUT_OF_MEMORY;
    }
    if (letter == c->idle)
        c->idle = letter->next;
    memcpy(letter->note, note, bytes);
    letter->next = c->sent;
    c->sent = letter;
    letter->request = MPI_REQUEST_NULL;
    MPI_TRY(MPI_Isend(letter->note, (int)bytes, MPI_BYTE, to, 0, c->notes, &letter->request));
    return KILN_OK;
}

static kiln_status mpi_hear(void *comm, int *from, void *note, size_t *bytes, char *why)
{
    Comm *c = comm;
    MPI_Status status;
    int done = 0, count = 0;
    *from = -1;
    if (still_there(why) != KILN_OK)
        return KILN_COMM;
    MPI_TRY(MPI_Test(&c->listening, &done, &status));
    if (!done)
        return KILN_OK;
    MPI_TRY(MPI_Get_count(&status, MPI_BYTE, &count));
    *from = status.MPI_SOURCE;
    *bytes = (size_t)count;
    memcpy(note, c->heard, *bytes);
    return listen(c, why);
}

/* ---- the end ---- */

/* MPI_Finalize deletes what is attached to MPI_COMM_SELF first, whoever calls it. Notes that nobody asked for are taken, so that their
 * senders' requests end. */
static int at_finalize(MPI_Comm self, int key, void *value, void *extra)
{
    char note[KILN_COMM_NOTE], why[KILN_COMM_WHY];
    (void)self, (void)key, (void)value, (void)extra;
    for (Comm *c = mpi.newest; c; c = c->made) {
        size_t bytes;
        for (int from = 0; from >= 0;)
            if (mpi_hear(c, &from, note, &bytes, why) != KILN_OK)
                break;
        collect(c);
        if (c->listening != MPI_REQUEST_NULL && MPI_Cancel(&c->listening) == MPI_SUCCESS)
            MPI_Wait(&c->listening, MPI_STATUS_IGNORE);
    }
    return MPI_SUCCESS;
}

static kiln_status call_at_finalize(char *why)
{
    int key;
    MPI_TRY(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, at_finalize, &key, NULL));
    MPI_TRY(MPI_Comm_set_attr(MPI_COMM_SELF, key, NULL));
    MPI_TRY(MPI_Comm_free_keyval(&key)); /* when it is deleted */
    return KILN_OK;
}

/* All at once: the world is closed last, and MPI with it. */
static void mpi_close(void *comm, int orderly)
{
    int over = 1;
    (void)comm;
    if (orderly && mpi.ours && MPI_Finalized(&over) == MPI_SUCCESS && !over)
        MPI_Finalize();
}

/* May only the thread call that initialised MPI? So it is where the program did that for less than one thread at a time. */
KILN_API int kiln_comm_one_thread(void);

int kiln_comm_one_thread(void) { return mpi.level < MPI_THREAD_SERIALIZED; }

KILN_API const kiln_comm_backend *kiln_comm_plugin(void);

const kiln_comm_backend *kiln_comm_plugin(void)
{
    static const kiln_comm_backend backend = {.version = KILN_COMM_VERSION,
                                              .name = "mpi",
                                              .open = mpi_open,
                                              .split = mpi_split,
                                              .start = mpi_start,
                                              .test = mpi_test,
                                              .tell = mpi_tell,
                                              .hear = mpi_hear,
                                              .close = mpi_close};
    return &backend;
}
