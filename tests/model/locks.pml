/*
 * The evaluation lock, claims, kiln_functions that are repeated and the queue of kiln_eval_async as a model for spin (run.sh): what runtime/eval/lock.c,
 * eval.c, async.c and runtime/function/replay.c promise, for all interleavings of a few threads.
 *
 *     a value is computed by one thread at a time, and published once
 *     a program is compiled by one thread at a time, and made once where no compile fails
 *     who is alone has nobody concurrent, who has the lock nobody inside
 *     what a kiln_function is repeated by stays while it is, and goes in the end
 *     every thread comes to its end, whatever fails: nobody waits for ever
 *
 * A thread whose nodes are its own and which knows the program may go inside without the lock (eval_own). SHARED was recorded by thread 0.
 * An evaluation on a CUDA device goes the same way as on a CPU; how streams wait for each other then is streams.pml.
 *
 * Threads 0 and 1 evaluate what is made of one value that they share, thread 2 something of its own, all by one program; thread 3 is alone, as a
 * gradient or a fork is. With ASYNC thread 1 queues its evaluation, goes on, and asks for it at its end, while thread 4 serves the queue, thread 0 asks
 * for the same, and there is no thread 2. Any evaluation and any compile may fail; who fails leaves his nodes pending, and does not try again.
 *
 * With REPEAT threads 0 and 1 call a kiln_function of one template, inside (short kernels or long ones) or under the lock and concurrently, thread 2
 * drops that template, as one kind of inputs too many does, and thread 3 is alone.
 *
 * Each macro BREAK_... takes out one thing that the code does, and spin must find what goes wrong then. What it cannot find with evaluations that end: that
 * who waits to be alone would wait for ever if others newly were concurrent (eval_concurrent_possible).
 */
#define THREADS 5
#define SHARED 0 /* a node, of bit 1 << 0; others are what threads are asked for */
#define NODES 4

/* runtime/eval/lock.c: `shared` */
bool locked;
byte woken;   /* broadcasts so far: who waits has seen one less */
byte waiting, alone;
bool held, inside[THREADS];
byte looking; /* threads that are, since they did not see `held` */
bool concurrent[THREADS];
byte claims[THREADS]; /* the nodes of its walk, a bit each */
bool compiles[THREADS]; /* the program */
byte marked;            /* the nodes that some walk met, a bit each */

bool value[NODES], made;
byte computing[NODES], compiling;
byte ended;

#define ALL 4

#define owner(n) (n == SHARED || n == 1 -> 0 : n - 1) /* who recorded it */
#define nobody_inside (!inside[0] && !inside[1] && !inside[2] && !inside[4])
#define others(t) ((concurrent[0] && t != 0) || (concurrent[1] && t != 1) || (concurrent[2] && t != 2) || (concurrent[4] && t != 4))
#define claimed(t, n) (((claims[0] & n) && t != 0) || ((claims[1] & n) && t != 1) || ((claims[2] & n) && t != 2) || ((claims[4] & n) && t != 4))
#ifndef BREAK_AWAIT
#define compiled_elsewhere(t) ((compiles[0] && t != 0) || (compiles[1] && t != 1) || (compiles[2] && t != 2) || (compiles[4] && t != 4))
#else
#define compiled_elsewhere(t) false
#endif

#ifndef BREAK_SHUT
#define shut() held = true; nobody_inside
#else
#define shut() held = true
#endif
inline acquire() { atomic { !locked -> locked = true }; shut() }
inline release() { held = false; locked = false }

/* pthread_cond_wait: giving the lock back and beginning to wait are one step. */
inline wait_for_change()
{
    waiting++;
    held = false;
    atomic { seen = woken; locked = false }
    woken != seen;
    acquire();
    waiting--
}

inline change()
{
#ifndef BREAK_WAKE
    if
    :: waiting > 0 -> woken++
    :: else
    fi
#else
    skip
#endif
}

/* eval_own: a call of nothing but this thread's nodes, by a known program; done: it was. */
inline evaluate_own(t, root, reads)
{
    inside[t] = true;
    if
    :: held -> inside[t] = false
    :: else ->
        looking++;
        shares = reads && !value[SHARED];
        walk = (1 << root) | shares;
        if
        :: value[root] || owner(root) != t || (shares && owner(SHARED) != t) || (marked & walk) || !made ->
            looking--;
            inside[t] = false /* it gives up; the marks that it left are no claims */
        :: else ->
            done = true;
            marked = marked | walk;
            computes(root);
#ifndef BREAK_OWN
            claims[t] = walk;
#endif
            concurrent[t] = true;
            looking--;
            inside[t] = false;
            /* the steps run */
            inside[t] = true;
            if
            :: held -> inside[t] = false; acquire(); locks = true
            :: else -> looking++; locks = false
            fi;
            atomic { concurrent[t] = false; claims[t] = 0 }
            computed(root);
            publish(root);
            if
            :: locks -> change(); release()
            :: else ->
                looking--;
                inside[t] = false;
#ifndef BREAK_TOLD
                if
                :: waiting > 0 -> acquire(); change(); release()
                :: else
                fi
#endif
            fi
        fi
    fi
}

inline concurrent_begin(t, what)
{
    concurrent[t] = true;
#ifndef BREAK_CLAIM
    claims[t] = walk;
#endif
    compiles[t] = what;
    release()
}

inline concurrent_end(t)
{
    acquire();
    atomic { concurrent[t] = false; claims[t] = 0; compiles[t] = false }
    change()
}

inline computes(root)
{
    atomic {
        computing[root]++;
        if
        :: shares -> computing[SHARED]++
        :: else
        fi
    }
    assert(computing[root] == 1 && computing[SHARED] <= 1)
}

inline computed(root)
{
    atomic {
        computing[root]--;
        if
        :: shares -> computing[SHARED]--
        :: else
        fi
    }
}

inline publish(root)
{
    if
    :: assert(!value[root] && (!shares || !value[SHARED]));
        atomic {
            value[root] = true;
            if
            :: shares -> value[SHARED] = true
            :: else
            fi
        }
    :: skip /* it failed */
    fi
}

/* A sync point of thread t for node `root`: eval_nodes() from the lock on. */
inline evaluate(t, root, reads)
{
    done = false;
    if
    :: alone == 0 && !value[root] -> evaluate_own(t, root, reads)
    :: true /* it may not: a log is written, say */
    fi;
    if
    :: done -> goto ended_here
    :: else
    fi;
    acquire();
collect:
    if
    :: value[root] -> goto finished
    :: else
    fi;
    shares = reads && !value[SHARED];
    walk = (1 << root) | shares;
    if
    :: claimed(t, walk) ->
        do
        :: claimed(t, walk) -> wait_for_change()
        :: else -> break
        od;
        goto collect /* anything may have changed */
    :: else
    fi;
    marked = marked | walk;
look_up:
    if
    :: made -> skip
    :: !made && compiled_elsewhere(t) ->
        atomic { concurrent[t] = true; claims[t] = walk } /* eval_await_compile: the call is claimed meanwhile */
        do
        :: compiled_elsewhere(t) -> wait_for_change()
        :: else -> break
        od;
        atomic { concurrent[t] = false; claims[t] = 0 }
        change();
        goto look_up
    :: else ->
        freely = alone == 0;
        if
        :: freely -> concurrent_begin(t, true)
        :: else
        fi;
        compiling++;
        assert(compiling == 1);
        compiling--;
        if
        :: freely -> concurrent_end(t)
        :: else
        fi;
        if
        :: assert(!made); made = true
        :: goto finished /* it failed */
        fi
    fi;
    freely = alone == 0;
    computes(root);
    if
    :: freely -> concurrent_begin(t, false)
    :: else
    fi;
    if
    :: freely -> acquire(); atomic { concurrent[t] = false; claims[t] = 0 }
    :: else
    fi;
    computed(root);
    if
    :: freely -> change()
    :: else
    fi;
    publish(root);
finished:
    release();
ended_here:
    skip
}

/* ---- kiln_eval_async: runtime/eval/async.c ---- */

#define NONE 0
#define QUEUED 1
#define RUNS 2
bool list_locked;
byte job, list_woken;
bool none_comes;

inline list_acquire() { atomic { !list_locked -> list_locked = true } }
inline list_release() { list_locked = false }

inline list_wait()
{
    atomic { seen = list_woken; list_locked = false }
    list_woken != seen;
    list_acquire()
}

proctype evaluator(byte t, root; bool reads)
{
    bool shares, freely, locks, done;
    byte seen, walk;
#ifdef ASYNC
    if
    :: t == 1 ->
        list_acquire();
        job = QUEUED;
        list_woken++;
        list_release();
        /* the caller goes on, and asks for it: async_settle */
        list_acquire();
        do
        :: job == RUNS -> list_wait()
        :: job == QUEUED -> job = NONE
        :: else -> break
        od;
        none_comes = true;
        list_woken++;
        list_release()
    :: else
    fi;
#endif
    evaluate(t, root, reads);
    ended++
}

#ifdef ASYNC
proctype server()
{
    bool shares, freely, locks, done;
    byte seen, walk;
    list_acquire();
    do
    :: job == QUEUED ->
        job = RUNS;
        list_release();
        evaluate(4, 2, true);
        list_acquire();
        job = NONE;
#ifndef BREAK_SETTLE
        list_woken++
#endif
    :: job != QUEUED && none_comes -> break
    :: else -> list_wait()
    od;
    list_release();
    ended++
}
#endif

proctype gradient()
{
    byte seen;
    acquire();
    alone++;
#ifndef BREAK_ALONE
    do
    :: others(3) -> wait_for_change()
    :: else -> break
    od;
#endif
    alone--;
    assert(!others(3) && looking == 0); /* it looks at pending graphs ... */
    assert(!others(3) && looking == 0); /* ... for a while */
    release();
    ended++
}

/* ---- kiln_functions that are repeated: runtime/function/replay.c, template.c ---- */

#ifdef REPEAT
bool listed = true, freed, dropped; /* the template */
bool repeats[THREADS];              /* EvalOwn.repeats is this template */
byte users, running;                /* running: whom the template serves now */

inline use_template()
{
    running++;
    assert(!freed);
    running--;
    assert(!freed)
}

/* template_drop */
inline drop_template()
{
    dropped = users > 0 || repeats[0] || repeats[1];
    if
    :: !dropped -> assert(!freed); freed = true
    :: else
    fi
}

/* call_own and template_repeat_own */
inline repeat_own(t)
{
    inside[t] = true;
    if
    :: held -> inside[t] = false
    :: else ->
        looking++;
        if
        :: !listed ->
            looking--;
            inside[t] = false
        :: else ->
            done = true;
#ifndef BREAK_REPEATS
            repeats[t] = true;
#endif
            locks = false;
            if
            :: use_template() /* short kernels, there and then */
            :: concurrent[t] = true;
                looking--;
                inside[t] = false;
                use_template();
                inside[t] = true;
                if
                :: held -> inside[t] = false; acquire(); locks = true
                :: else -> looking++
                fi;
                concurrent[t] = false
            fi;
#ifndef BREAK_LAST
            last = dropped;
#endif
            if
            :: !last -> repeats[t] = false
            :: else
            fi;
            if
            :: locks -> change(); release()
            :: else ->
                looking--;
                inside[t] = false;
                if
                :: waiting > 0 -> acquire(); change(); release()
                :: else
                fi
            fi;
            if
            :: last -> /* template_release_own */
                acquire();
                alone++;
                do
                :: others(t) -> wait_for_change()
                :: else -> break
                od;
                alone--;
                repeats[t] = false;
                drop_template();
                release()
            :: else
            fi
        fi
    fi
}

/* template_repeat: short kernels under the lock, long ones concurrently. */
inline repeat_locked(t)
{
    acquire();
    if
    :: !listed -> skip /* it is traced anew */
    :: else ->
#ifndef BREAK_USERS
        users++;
#endif
        if
        :: alone == 0 ->
            concurrent[t] = true;
            release();
            use_template();
            acquire();
            concurrent[t] = false;
            change()
        :: use_template()
        fi;
#ifndef BREAK_USERS
        users--;
#endif
        if
        :: dropped -> drop_template()
        :: else
        fi
    fi;
    release()
}

proctype repeater(byte t)
{
    bool locks, done, last;
    byte seen;
    if
    :: alone == 0 -> repeat_own(t)
    :: true
    fi;
    if
    :: !done -> repeat_locked(t)
    :: else
    fi;
    atomic { ended++; assert(ended < ALL || freed) }
}

proctype dropper()
{
    acquire();
    listed = false;
    drop_template();
    release();
    atomic { ended++; assert(ended < ALL || freed) }
}
#endif

init
{
    atomic {
#ifdef ASYNC
        run evaluator(0, 2, true);
        run evaluator(1, 2, true);
        run server();
#elif defined REPEAT
        run repeater(0);
        run repeater(1);
        run dropper();
#else
        run evaluator(0, 1, true);
        run evaluator(1, 2, true);
        run evaluator(2, 3, false);
#endif
        run gradient()
    }
}

ltl all_end { <>(ended == ALL) }
