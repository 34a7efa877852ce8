/* The parts of an evaluation (runtime/eval.c) and what is around it: the lock, misses, the interpreter, what is said about a call. */
#ifndef RUNTIME_EVAL_H
#define RUNTIME_EVAL_H

#include "ir/base/fp_mode.h"
#include "ir/base/log.h"
#include "ir/base/timeline.h"
#include "runtime/evaluation.h"

/* The evaluation lock (runtime/eval/lock.c): recursive (a deleter may call back), and safe across fork. eval_lock waits for those who are concurrent,
 * too; eval_trylock does not. */
void eval_lock(void);
void eval_unlock(void);
bool eval_trylock(void); /* false: another thread has it */
/* eval_lock for a call of the user, and this thread's object (NULL: it is not needed). No lock on failure: ST_INVALID in a log sink and in
 * a function of an op of the user's, ST_OUT_OF_MEMORY. */
Status eval_enter(Evaluation **e);
/* The same while others may be concurrent: for who looks at no pending node but by collect(), which waits for the claimed ones. */
Status eval_enter_among(Evaluation **e);

/* Would these refuse? Does this thread hold the lock? */
Status eval_may_enter(void);
bool eval_holds(void);

/* Under the lock: waits until nobody is concurrent, which may give the lock back meanwhile. */
void eval_alone(void);

/* From begin to end the lock is given back, while the call of this walk runs, or is compiled, concurrently: its nodes are claimed (walk 0: it has no
 * pending ones). Not possible where something around holds the lock, too, or somebody waits to be alone; of no use to a thread that evaluates
 * alone. The end takes the lock again. */
typedef struct EvalConcurrent {
    struct EvalConcurrent *next;
    uint32_t walk;
    const CallKey *compiles; /* NULL: nothing */
} EvalConcurrent;
bool eval_concurrent_allowed(void);
bool eval_concurrent_possible(void); /* and is there anybody else? */
#define CONCURRENT_SECONDS 500e-9    /* less work than this is done before the lock is given to another thread and back */
void eval_concurrent_begin(EvalConcurrent *concurrent, uint32_t walk, const CallKey *compiles);
void eval_concurrent_end(const EvalConcurrent *concurrent);

/* Where another thread compiles a program for this key, and nothing around holds the lock: waits for that and returns true. The lock is given back
 * meanwhile, and the call of this walk claimed. */
bool eval_await_compile(uint32_t walk, const CallKey *key);

/* Under the lock: is a pending node with this mark part of a call that is concurrent? Waiting until it is not gives the lock back meanwhile. */
bool eval_claimed(uint32_t mark);
void eval_await(uint32_t mark);

/*
 * An evaluation of nothing but the thread's own nodes, by a program that it knows, goes inside instead of taking the lock (runtime/eval/lock.c):
 *
 *     eval_own_begin   false: it has to take the lock
 *     eval_own_run     the call of this walk runs: nobody is kept out, its nodes are claimed
 *     eval_own_ran     inside again, or with the lock
 *     eval_own_end     after begin or ran
 *     eval_own_let_go  then, what the call held: that may run code of the user's
 *
 * A kiln_function that a thread repeats goes inside, too. It has no pending nodes; what it is repeated by is held while it runs (`repeats`).
 */
typedef struct EvalOwn {
    struct EvalOwn *next;
    atomic_bool taken;             /* by a thread's evaluation */
    atomic_bool inside;            /* written by that thread alone, as is what follows */
    _Atomic uint32_t walk;         /* that runs; 0: none */
    _Atomic(const void *) repeats; /* the template (runtime/function/template.h) that runs; NULL: none */
    bool locked;
    CacheUser cache;
} EvalOwn;
EvalOwn *eval_own_new(void);      /* for the life of the process; NULL: out of memory */
void eval_own_free(EvalOwn *own); /* the next one may have it; NULL is allowed */
bool eval_own_used(void);         /* has any thread had company? */
bool eval_own_possible(const EvalOwn *own);
bool eval_own_begin(EvalOwn *own);
void eval_own_run(EvalOwn *own, uint32_t walk);
void eval_own_ran(EvalOwn *own);
void eval_own_end(EvalOwn *own);
void eval_own_let_go(Evaluation *e);          /* e->let_go */
bool eval_own_repeats(const void *template_); /* does any thread? */

/* Does somebody want to know of every evaluation? */
static inline bool eval_told(void) { return log_on(LOG_CACHE) || log_on(LOG_BREAKS) || log_on(LOG_PERF) || timeline_on(); }

/* Around code of the user's that runs under the lock: it computes in the mode of the caller. */
typedef struct EvalHeld {
    unsigned depth;
    int cancel; /* os_cancel_off() */
    FpMode caller;
} EvalHeld;
EvalHeld eval_step_out(void);
void eval_step_in(EvalHeld before);

/* Collects the pending graph behind `roots` under the options at hand, as evaluation does. Under the evaluation lock. */
Status eval_collect(Evaluation *e, RtNode *const *roots, uint32_t n, ServeCall *take, void *user);
/* What a sync point of this thread that asks for `nodes` would compute: *roots begins with them, *n counts them; a reference each, in an
 * array of the thread's. *roots is NULL where they are all. */
Status eval_company(RtNode *const *nodes, const char *api, Loc loc, RtNode ***roots, uint32_t *n);
/* Serves a call as evaluation does: find or compile, launch, publish. Under the evaluation lock. */
Status eval_serve(Evaluation *e, Call *call, const char *api, Loc loc);

/* May the call be compiled, and run, concurrently? (runtime/eval.c) */
bool may_be_concurrent(const Evaluation *e, const Call *call);

/* Serves a miss (runtime/eval/miss.c): says why, makes a program, enters it into the cache: *hit. */
Status serve_miss(Evaluation *e, Call *call, const CacheMiss *miss, CacheHit *hit);
/* Which facts become arguments of a program: those that varied under its key and those marked, or all. */
typedef enum Breadth { BREADTH_USUAL, BREADTH_WIDE, BREADTH_GENERAL } Breadth; /* guards/guards.h: wide, general */
Status miss_policy(const Call *call, const JitOptions *options, Breadth breadth, const Graph *g, GuardPolicy *policy); /* in g's arena */
/* What outlives the cache's next call. */
const void *bytes_copy(Arena *arena, const void *data, size_t bytes); /* never NULL */
Facts facts_copy(Arena *arena, const Facts *facts);

/* Computes the outputs' values into e->results, with the reference interpreter (runtime/eval/interpret.c). */
Status interpret(Evaluation *e, const Call *call);

/* What serving a call would do: appends the look-up's outcome and the launches to `out`, in whose arena it works. */
Status eval_explain(Evaluation *e, Call *call, Arena *arena, Str *out);

/* KILN_LOG=breaks (runtime/eval/breaks.c): before a call is served, and after it was. */
void breaks_report(Evaluation *e, const Call *call);
void breaks_served(const Evaluation *e, const Call *call);
void breaks_read(const RtNode *node, const char *api, Loc loc); /* a sync point gives the program the value of this node */

/* How a call's graph is called wherever it is spoken of: the first digits of the names of its entries on disk, which `kiln cache show` takes
 * (runtime/eval/key_text.c). */
enum { CALL_ID_HEX = 16 };
typedef struct CallId {
    char text[CALL_ID_HEX + 1];
} CallId;
CallId call_id(const Call *call);

/* Log lines and warnings about a call. */
void log_hit(const Call *call);
void log_graph(const Graph *g, const Call *call);
/* The first line of KILN_LOG=passes (runtime/api/recorded.c): counted where the call is at hand, told where it is compiled. */
typedef struct Recorded {
    uint32_t needed, not_needed, left;
} Recorded;
Recorded count_recorded(const Graph *g, const Call *call);
void log_recorded(Recorded r);
void warn_fallback(const Call *call, const char *api, Loc loc);
const char *dump_name(const Call *call, char *buffer, size_t size); /* NULL: KILN_DUMP is off */

/* Why a call found no program: the reason, the closest variant's guard, what was expected and found, who asked, where. */
void explain_miss(const Graph *g, const Call *call, const CacheMiss *miss, Str *out);
/* A hit: the program's guards and launches. */
void explain_program(const Program *program, Str *out);
/* A sync point is about to compile: appends how the graph differs from the one that it compiled before, where this one was never seen
 * (runtime/eval/call_site.c). */
void call_site_compiles(const Call *call, bool never_seen, const JitOptions *options, Loc loc, Str *out);
/* Before compiling after a miss: logs the reason, warns or refuses (ST_COMPILE) as KILN_ON_RECOMPILE says. */
Status miss_reported(const Graph *g, const Call *call, const CacheMiss *miss, const JitOptions *options, const char *api, Loc loc);

#endif
