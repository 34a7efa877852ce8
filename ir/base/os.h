/*
 * Everything that asks the operating system (POSIX), in one place, so that faults can be injected.
 */
#ifndef IR_BASE_OS_H
#define IR_BASE_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The heap. NULL when memory runs out or a fault was injected. Freed with os_free. */
void *os_alloc(size_t bytes);                /* not zeroed */
void *os_calloc(size_t count, size_t bytes); /* zeroed, overflow-checked */
void *os_realloc(void *block, size_t bytes);
void *os_copy(const void *from, size_t bytes); /* `from` may be NULL for 0 bytes */
void os_free(void *block);
void *os_alloc_aligned(size_t align, size_t bytes); /* for tensor data: huge-page advice above 2 MiB; os_free */

/* Test hook: the n-th heap call from now fails (and every later one if `sticky`); 0 switches it off. */
void os_fail_alloc(int64_t nth, bool sticky);

double os_seconds(void);       /* monotonic */
int64_t os_memory_bytes(void); /* that this process may use: of the machine, its control group, its limits */
int os_cpu_count(void);        /* CPUs this process may use, at least 1: those of its first thread */
int os_numa_nodes(void);       /* of memory, with CPUs: at least 1 */
int os_numa_node(void);        /* the one whose CPU this thread is on: 0... */
void os_use_all_cpus(void);    /* the calling thread, one of kiln's, may use those: who made it may be kept to a core of its own */
const char *os_getenv(const char *name);  /* secure_getenv */
bool os_elevated(void);                   /* this process has rights that its user has not (setuid): it keeps no files */
bool os_build_id(char *hex, size_t size); /* of the library or program that holds this code, as the linker wrote it */

/* fn runs when the process ends by exit(), as a handler of atexit does, which registers nothing inside libkiln.so
 * (jit/llvm/inside/exit.c). */
bool os_at_exit(void (*fn)(void));
/* fn runs when the process ends by exit(): called by the main thread, before every atexit handler, whenever those were registered;
 * called by another, among them. It may run twice. To be registered while the library loads; false: not in the main thread. */
bool os_before_exit(void (*fn)(void));

/* In a loop that waits for another thread without giving up the core. */
static inline void os_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void os_give_way(double seconds); /* lets other threads and processes have the core: for so long at least; 0: only those that wait for it */

/* While it is off, pthread_cancel does not end this thread: a thread that ended with a lock held, or while another one works on its stack,
 * would hang or break the rest. Around whatever may wait, read or write there. Restores what was. */
int os_cancel_off(void);
void os_cancel_restore(int before);

/* Executable memory: map_rw, fill it, then make it read-execute. NULL / false on failure. */
void *os_map_rw(size_t bytes);
bool os_protect_rx(void *block, size_t bytes);
void os_unmap(void *block, size_t bytes);

/* A shared library by name or path, and a symbol of it; NULL on failure. os_library_error: why the last open failed in this thread. */
void *os_library_open(const char *name);
void *os_library_open_for_all(const char *name); /* what is loaded later finds its symbols */
void *os_library_symbol(void *library, const char *name);
bool os_library_folder(char *path, size_t size); /* where the library, or program, lies that holds this code: with a / at its end */
const char *os_library_error(void);

/* Runs fn(arg) to its end on a thread with a stack of `stack_bytes`; on this thread where none can be
 * made. Used for compilation, whose depth must not depend on the caller's stack. */
void os_run_on_stack(size_t stack_bytes, void (*fn)(void *), void *arg);
/* fn(arg, i) for every i < n, on this thread and as many more of that stack as there are CPUs and work. Threads that cannot be made are done
 * without. */
void os_run_parallel(size_t stack_bytes, void (*fn)(void *arg, uint32_t i), void *arg, uint32_t n);

/* Whole small files. os_write_file writes a temporary and renames it. errno tells the cause of false. */
bool os_make_dir(const char *path); /* and its parents; true if it exists */
bool os_write_file(const char *path, const void *data, size_t bytes);

#endif
