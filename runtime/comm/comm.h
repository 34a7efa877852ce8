/*
 * Ranks inside: groups, what carries collectives between processes, and how a collective waits.
 *
 *     kiln_all_reduce ...        what users call: dtypes, axes, gradients                         (runtime/api/ranks.c)
 *       collective_record        a CUSTOM node (ir/callee.h) with an operand and a result more: the chain, which keeps the order     (collective.c)
 *         comm_run               when it is computed: checks that all ranks have the same, runs it, waits; a bound for that     (run.c)
 *           kiln_comm_backend    "self" (self.c), "mpi" (mpi/, a library of its own), others
 *           CommDevice           buffers that stay on a CUDA device: "nccl" (nccl.c), and what a CUDA-aware MPI moves (direct.c); others are copied
 *                                to the host, and back. Collected with the launches around them, and run in turn or as a graph (on_device.c)
 *
 * The chain. One number, in a handle of the process, counts the collectives of all groups: each takes it and gives it increased by one. So
 * a graph orders them, whatever is computed when: no two are equal, none is computed before those that were recorded before it, and a
 * kiln_function, which sees a captured handle that it assigns, carries it on from call to call. It is a value like others, and so tells
 * what went wrong: a collective that is given another number than that of the collectives that ran was made in an evaluation that failed
 * half way, and ranks are out of step. In the rule of a derivative, which is a template, the operand is a constant that stands for it; who
 * records the template's copies puts them into the chain (runtime/gradient/gradient.c).
 *
 * Nodes and entries on disk hold the number of a group, which says in what order the process made them, never an address; the number of
 * ranks is in the shapes alone.
 *
 * All of it but recording is under the evaluation lock: one collective of a process at a time (what a thread does for large ones: run.c).
 */
#ifndef RUNTIME_COMM_H
#define RUNTIME_COMM_H

#include "ir/callee.h"
#include "runtime/device/device.h"
#include "runtime/record/record.h"

enum { COMM_NAME = 64, COMM_PLACE = 48, COMM_TEXT = 352, COMM_SEEN = 64, COMM_TROUBLE = 128, COMM_ON_DEVICE = 64 };

/* What a rank says that it has: the same bytes on all ranks of a group, but for where. */
typedef struct CommWhat {
    uint8_t op; /* kiln_comm_op, or CommExtra */
    uint8_t how, dtype;
    uint8_t rank;  /* of the operand; COMM_ON_DEVICE with it: it stays on a CUDA device */
    int32_t root;  /* COMM_SEND, COMM_RECV: the other rank */
    uint64_t from; /* SEND_RECV: a hash */
    int64_t dim[MAX_RANK];
} CommWhat;
typedef enum CommExtra { COMM_SPLIT = KILN_COMM_BARRIER + 1, COMM_SEND, COMM_RECV, COMM_CAPTURED, COMM_OPS } CommExtra;
/* Of two ranks: the others are not there. */
static inline bool comm_is_pair(unsigned op) { return op == COMM_SEND || op == COMM_RECV; }

typedef enum NoteKind { NOTE_HAS, NOTE_WAITS, NOTE_LEFT, NOTE_FAILED, NOTE_TROUBLE, NOTE_PAIR } NoteKind;

/* What ranks tell each other beside collectives. */
enum { COMM_FORMAT = 1 }; /* another number where what follows has changed: ranks may run other versions of kiln */
typedef struct CommNote {
    uint16_t kind, format;
    uint32_t round;  /* of HAS (runtime/comm/run.c); PAIR: how many collectives of the group came before it */
    uint64_t number; /* HAS, WAITS: of the collective, in the group; PAIR: among those of the two; LEFT: how many there were */
    CommWhat what;
    char where[COMM_PLACE];
    uint64_t vote;        /* HAS: of those heard so far (comm_ask) */
    char text[COMM_TEXT]; /* FAILED, TROUBLE; of the others it is not sent */
} CommNote;

typedef struct EarlyNote {
    int from;
    CommNote note; /* but for its text */
} EarlyNote;

/* What is done with buffers on CUDA devices. start and test: as kiln_comm_backend's. */
typedef struct CommDevice {
    bool (*carries)(int op); /* kiln_comm_op, COMM_SEND, COMM_RECV; others go through memory of the host */
    kiln_status (*start)(const kiln_group *g, const kiln_comm_call *call, const CudaLane *lane, void **request, char *why);
    kiln_status (*test)(const kiln_group *g, void *request, int *done, char *why);
    void (*give_up)(void); /* one failed: nothing that is queued waits for other ranks any more, and no graph has its calls */
    /* In CUDA graphs: why not at all, NULL: it may be; is this call one that could be captured now, on all ranks; queueing it on a stream
     * that is captured; and what test is given once the graph with it was launched on the lane, and marked. */
    const char *(*no_graphs)(void);
    bool (*connected)(const kiln_group *g, const kiln_comm_call *call);
    kiln_status (*capture)(const kiln_group *g, const kiln_comm_call *call, const CudaLane *lane, char *why);
    kiln_status (*follow)(const kiln_group *g, const CudaLane *lane, void **request, char *why);
} CommDevice;

typedef struct World {
    struct World *next;
    const kiln_comm_backend *backend;
    const CommDevice *device; /* NULL: copies in memory of the host */
    kiln_comm_start *moves;   /* of device: the backend's, for what is moved between CUDA devices (runtime/comm/direct.c) */
    bool few_types;           /* 16-bit integers are not combined, and a maximum or minimum forgets NaN */
    bool told_way;            /* the log knows how buffers on devices travel */
    kiln_group *group;        /* of all processes */
    int64_t process;          /* that opened it */
    bool failed;
    bool one_thread; /* the one that opened it alone may call the backend: MPI was initialised so */
    char why[COMM_TEXT];
    int troubled; /* the last rank that said what its evaluation failed of, ... */
    char trouble[COMM_TROUBLE];
} World;

struct kiln_group {
    struct kiln_group *next;
    World *world;
    void *comm;
    uint32_t id, splits; /* how many groups were made before it; of it */
    int rank, size;
    char name[COMM_NAME];
    uint64_t calls;      /* collectives that began */
    uint64_t *pairs;     /* with each rank: what the two sent each other, and what began */
    struct OwnMail *own; /* what this rank sent itself: the oldest first */
    uint64_t *heard;     /* of each rank: the last collective that it was heard in */
    int *world_rank;     /* of each rank */
    uint64_t *left;      /* of each rank that ended: after how many; else UINT64_MAX */
    EarlyNote *early;    /* about collectives to come */
    uint32_t n_early, cap_early;
    Loc told;                 /* of the last note, ... */
    char place[COMM_PLACE];   /* ... as text (runtime/comm/run.c) */
    uint64_t last;            /* a hash of what ran last */
    uint64_t seen[COMM_SEEN]; /* hashes of what ran already, with what ran before it */
};

/* The group of this number; NULL: there is none. How many numbers there are. */
kiln_group *group_of(uint32_t id);
uint32_t comm_groups(void);
/* Is this process one of several ranks? */
bool comm_many(void);
const kiln_comm_backend *comm_self(void);
/* What tells ranks of each other without MPI: for NCCL. (runtime/comm/tcp.c) */
const kiln_comm_backend *comm_tcp(void);
/* NCCL, with what carries the rest; the first one stays. (runtime/comm/nccl.c) */
const kiln_comm_backend *comm_nccl(const kiln_comm_backend *carrier);
const CommDevice *comm_nccl_device(void);
/* A backend that takes buffers on CUDA devices (World.moves). (runtime/comm/direct.c) */
const CommDevice *comm_direct_device(void);

/* Runs a collective of which all ranks of the group say the same, and waits for it. lane: in and out are on a CUDA device, and so is the
 * work; NULL: in memory of the host. ST_COMM. (runtime/comm/run.c) */
Status comm_run(kiln_group *g, const CommWhat *what, const kiln_comm_call *call, const CudaLane *lane, Loc loc);
/* The same in two steps: what does not touch call->in and call->out may be done between. Those that began run one after the other, and
 * end in that order; nothing else of any group runs before they ended. comm_end frees it. */
typedef struct CommFlight CommFlight;
Status comm_begin(kiln_group *g, const CommWhat *what, const kiln_comm_call *call, const CudaLane *lane, Loc loc, CommFlight **out);
Status comm_end(CommFlight *flight);
/* Have all ranks this collective, and the same vote, other than 0? Whoever does not ask has none. Nothing is in the air. Then it is either
 * *out that comm_begin takes (which makes one where it is NULL), or comm_launch: with it n - 1 more are over that the vote stands for, by what
 * `launch` queues on the lane. out NULL: that is all of it. */
typedef kiln_status CommLaunch(void *user, const CudaLane *lane, void **request, char *why);
Status comm_ask(kiln_group *g, const CommWhat *what, uint64_t vote, Loc loc, CommFlight **out, bool *all);
Status comm_launch(CommFlight *flight, uint32_t n, const CudaLane *lane, CommLaunch *launch, void *user);
/* A COMM_SEND or COMM_RECV whose other rank is this one: what is sent is kept until it is received. Memory of the host. ST_COMM. */
Status comm_own(kiln_group *g, const CommWhat *what, const kiln_comm_call *call, Loc loc);
/* From now on every collective fails, here and (told) elsewhere. */
Status comm_failed(kiln_group *g, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* An evaluation with collectives failed here, of something else: others learn why this rank may not come, and wait on. */
void comm_trouble(void);
/* The end of the process: waits for that of the others, unless something failed. */
void comm_leave(World *world);

/* ---- recording (runtime/comm/collective.c) ---- */

typedef struct Collective {
    kiln_group *group;
    int op; /* kiln_comm_op, COMM_SEND, COMM_RECV */
    kiln_reduce how;
    int root;        /* COMM_SEND, COMM_RECV: the other rank */
    const int *from; /* SEND_RECV: of each rank */
    Shape type;      /* COMM_RECV: of what comes */
} Collective;

/* May this thread record collectives of the group here and now? */
Status comm_may_record(const RtThread *t, const kiln_group *g);
/* The op on x, strong and with an axis for ranks in front where there are parts for each; of COMM_RECV x says what comes before it. Of
 * COMM_SEND the result is a 0 of rank 0. Borrowed. */
RtNode *collective_record(Rec *r, const Collective *c, RtNode *x);
/* The call of a collective whose buffers are on a CUDA device: it runs with the launches that are collected; kept: the number that it gives is a
 * result of the program. *done = false: the buffers have to be copied to the host first. */
Status comm_call_on_device(struct Evaluation *e, const Callee *callee, Loc loc, const CallBuffer *in, const CallBuffer *out, bool kept,
                           bool *done);
/* Which collective is next, for one whose operands are copied to the host. ST_COMM */
Status comm_number(struct Evaluation *e, const Callee *callee, int64_t *number);
/* The evaluation has its values: so have its collectives. */
void comm_whole(void);
/* Of the collectives that the program at hand has in the air, at most so many are left: the last ones. Of those that are collected: what is
 * collected from now on comes behind them. */
Status comm_land(struct Evaluation *e, uint32_t left);

/* ---- on CUDA devices (runtime/comm/on_device.c) ---- */

/* One that is collected. Two are the same up to `loc`. */
typedef struct CommCall {
    kiln_group *group;
    CommWhat what;
    kiln_comm_call call;
    Loc loc;
    const char *name;
    int64_t number; /* how many there were, with it, and ... */
    void *kept;     /* ... where that is told; NULL: nowhere */
} CommCall;
/* zero: so many bytes of its result are cleared before. aside: beside launches that come next. */
Status comm_collect(struct Evaluation *e, const CommCall *call, size_t zero, bool aside);
/* What is collected runs. */
Status comm_flush(struct Evaluation *e);
/* n collectives run now: none of an evaluation that failed came before. (runtime/comm/collective.c) */
Status comm_count(struct Evaluation *e, kiln_group *g, const char *name, uint32_t n);
/* There is an order from now on, of this thread. ST_OUT_OF_MEMORY. */
Status comm_open_chain(void);
/* A sync point of the group's own begins: all that was recorded has run, and this thread holds the evaluation lock (on failure it does not). */
Status comm_enter(const kiln_group *g, const char *api, Loc loc);

#endif
