/*
 * The CPU thread pool: fork-join over a range of tasks. Workers spin briefly, then sleep. After fork the child gets a
 * fresh pool at its first use. Results never depend on the number of threads: tasks are independent and fixed in size.
 */
#ifndef RUNTIME_POOL_H
#define RUNTIME_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* fn(arg, lo, hi, thread): run tasks [lo, hi); `thread` < pool_threads() numbers the executing thread in this call. */
typedef void PoolFn(void *arg, int64_t lo, int64_t hi, int thread);

int pool_threads(void);             /* under the current KILN_THREADS */
void pool_set_threads(int threads); /* 0: all CPUs of this process; takes effect at the next run */
/* For tests: so many NUMA nodes, and what says on which one this thread is; 0, NULL: those of the system. */
void pool_set_nodes(int nodes, int (*node)(void));
/* Runs all of [0, tasks), at most `grain` tasks at a time, on up to max_threads threads (the caller is one), and returns when all
 * are done. Calls from several threads run concurrently, one with the workers at a time; a call from within a task runs inline. tasks
 * <= grain runs inline. */
void pool_run(int64_t tasks, int64_t grain, int max_threads, PoolFn *fn, void *arg);
/* From now on this thread runs all of its tasks itself, in order; false: no longer. */
void pool_run_here(bool alone);
/* Makes fork wait for the pool from now on. For who holds a lock around pool_run: fork takes locks in the reverse order
 * of their handlers' registration, so this comes before the handlers of that lock. */
void pool_handle_forks(void);
/* How what this thread runs from now on is called in a trace (KILN_TRACE); stays the caller's, until the run ends. */
void pool_name_work(const char *name);
void pool_shutdown(void); /* joins the workers (at exit, in leak checks); the next run starts afresh */

#endif
