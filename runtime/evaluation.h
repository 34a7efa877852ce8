/*
 * One evaluation: all that is known from the sync point to the results, and the room that the work needs.
 *
 * Each thread has one, made at its first sync point and used again by the next ones, so that an evaluation of a known graph allocates
 * nothing but its results. It is passed to whatever takes part; nothing of one evaluation lies in a static variable (a test reads the
 * sources for that, tests/layers/statics.sh). What outlives evaluations is elsewhere: nodes, storage, caches, histories, statistics.
 *
 *   eval_enter            takes the lock and finds the thread's object (runtime/eval/lock.c)
 *   evaluation_begin      a sync point starts: the first block below is fresh, the rest is only room
 *
 * A failed evaluation leaves nothing behind that the next one would read.
 */
#ifndef RUNTIME_EVALUATION_H
#define RUNTIME_EVALUATION_H

#include "jit/options.h"
#include "runtime/eval/call.h"

struct CudaRun; /* runtime/cuda/cuda.h */
struct Seat;    /* runtime/function/replay.c */

enum { EVALUATION_SEATS = 16 };

/* An evaluated node that another thread recorded, met by a walk without the lock. */
typedef struct Foreign {
    const RtNode *node;
    uint32_t index; /* as RtNode.index */
} Foreign;

typedef struct CallPart {
    Program *program; /* retained */
    size_t sizes;     /* where in `sizes` */
} CallPart;

/* What the thread's last sync point did, as far as it cannot be asked later (runtime/api/last_call.c). */
typedef struct CallRecord {
    size_t n;            /* programs that ran; */
    BUF(CallPart) parts; /* these, and maybe one of the call before */
    BUF(int64_t) sizes;  /* their size tables, one after the other */
    uint32_t prepared;   /* Template.prepared_number whose program this is; 0: none */
    int source, reason;  /* kiln_call_source; Reason, -1: there was no miss */
    double compile_seconds, load_seconds;
    int64_t in_place;
    const char *why_not; /* the first result that is not in place: why; static */
    int device;          /* where the last program ran */
} CallRecord;

enum { FLIGHTS = 4 }; /* jit/buffers.c plans for so many */

typedef struct Evaluation {
    /* The sync point. */
    uint32_t number;     /* of this evaluation */
    bool busy;           /* from collecting to publishing: a deleter that runs then must not start another */
    uint32_t asked;      /* the first so many of what is computed were asked for, the rest are company (runtime/gradient/group.c) */
    bool whole;          /* the call at hand is the last part of its walk, which looks at nothing after it */
    bool concurrent;     /* the run at hand is (runtime/eval/lock.c): nothing is measured of it, should somebody ask for that meanwhile */
    struct EvalOwn *own; /* what others see of it (runtime/eval/lock.c) */
    bool
        owns; /* the walk at hand goes without the lock: it may meet no pending nodes but those of this thread that are in no other call ... */
    bool given_up;           /* ... and met one, or another thing that needs the lock */
    uint32_t awaits;         /* the walk ended at a node that is part of another thread's call, which has this number; 0: it did not */
    int64_t launches, moved; /* of the run at hand: not in the statistics yet; bytes */
    bool launching;          /* a program runs ... */
    bool lent;               /* ... in whose memory a collective that failed may still write: nothing of it is freed (runtime/comm/run.c) */
    struct {
        struct CommFlight *flight;
        const void *in, *out; /* reads and writes this */
    } flight[FLIGHTS];        /* collectives of the program that runs, which are not done yet, the first first (runtime/comm/comm.h) */
    uint32_t n_flights;
    bool ordered; /* the program that runs had collectives of a CUDA device (runtime/comm/collective.c) */
    bool refused; /* the compile was, by the user's own word: no fall-back */
    const char *api;
    Loc loc;
    JitOptions options;
    bool options_read;   /* `options` are those of ... */
    uint64_t generation; /* ... options_generation() */
    double began;        /* with KILN_LOG=breaks: when it was served, ... */
    int64_t compile_ns;  /* ... and how long compiles had taken by then */
    double perf_began;   /* with KILN_PERF: when the sync point began; 0: nothing is counted of it */
    int64_t traced;      /* with KILN_TRACE: when the sync point began; 0: nothing is written of it */
    char entry[64];      /* the first two parts of the names of the call's entries on disk; "": no look-up there was made */

    CallRecord record;

    /* Collecting (runtime/eval/collect.c). */
    Call call;
    uint32_t taken;   /* the last number that evaluation_next_number gave; 0: none */
    bool keeps;       /* some of them keep their inputs */
    size_t n_pending; /* how many of the complete nodes have no value yet */
    BUF(RtNode *) stack;
    BUF(RtNode *) let_go; /* inputs of what has its value now: released when nothing is held any more */
    BUF(Foreign) foreign;
    BUF(RtNode *) results_held; /* of loops and branches, retained while they are computed */
    bool alone;                 /* a loop's results are computed only where they are asked for */
    BUF(bool) used;             /* by canonical number: some complete node uses it */
    BUF(RtNode *) given;        /* results of calls that were looked at and not computed */
    BUF(bool) donated;          /* by input: see call_donated */
    BUF(bool) output;           /* by canonical number */
    BUF(uint32_t) user;         /* by canonical number: see call_save */
    BUF(uint32_t) uses;         /* by canonical number: how many inputs of pending nodes it is */
    BUF(uint32_t) going;        /* references that go away, by canonical number */

    /* Launching (runtime/eval/launch.c). */
    BUF(Result) results; /* by output */
    bool first_of_two;   /* they will be computed once more (runtime/eval/twice.h): no input is overwritten */
    BUF(void *) address; /* of each buffer */
    BUF(void *) args;    /* of the step at hand */
    BUF(size_t) slot_offset;
    BUF(uint64_t) host;               /* scalars that the program makes of the call's */
    BUF(struct Constant *) constants; /* values that the run at hand reads (runtime/eval/constants.c), ... */
    BUF(Storage *) constant_storage;  /* ... what they are looked up by: of the call's inputs, ... */
    BUF(char *) constant_data;
    BUF(uint64_t) constant_words; /* ... and of one value */
    char *scratch;                /* of all threads of a phase */
    size_t scratch_bytes;
    struct CudaRun *cuda; /* the launches on a CUDA device; NULL: none so far */

    /* Room for the kiln_functions that this thread repeats (runtime/function/replay.c), by the number of what is prepared there. */
    struct Seat *seats[EVALUATION_SEATS];
} Evaluation;

/* This thread's; made now if it has none. NULL: out of memory (fail() was called). */
Evaluation *evaluation_of_thread(void);
unsigned evaluations_of_threads(void); /* how many threads have one */
void evaluations_forked(void);         /* in the child */
/* A sync point of the user begins. ST_INVALID: in the middle of another one, which a deleter is called from. */
Status evaluation_begin(Evaluation *e, const char *api, Loc loc);

/* The parts of CallRecord: a sync point computes something; where a program of it came from, the costliest counts; what runs, retained until the
 * next sync point of the thread. */
void record_begin(Evaluation *e);
void record_source(Evaluation *e, int source);
Status record_program(Evaluation *e, Program *program, const int64_t *sizes);
void record_end_thread(Evaluation *e);
const char *record_source_name(int source); /* NULL: KILN_CALL_NOTHING */

/* A number that no other collection or evaluation has, whichever thread asks; never 0. */
uint32_t evaluation_next_number(Evaluation *e);

#endif
