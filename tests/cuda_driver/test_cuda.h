// test_cuda.h: how a test steers libkiln_test_cuda.so, the CUDA driver made of software.
//
// The shared object offers the entry points of the CUDA driver API, by name, and runs PTX on the CPU (README.md). A test
// sets the environment variable KILN_TEST_CUDA before the library is loaded, or looks these functions up with dlsym in the
// handle that dlopen gave it. All of them may be called at any time from any thread; none counts as a driver call.
//
// KILN_TEST_CUDA and test_cuda_configure take a list of settings, separated by commas:
//   devices=N           how many devices there are (0: cuInit gives CUDA_ERROR_NO_DEVICE); 1
//   cc=MAJOR.MINOR      compute capability that they claim; 8.0
//   sms=N               multiprocessors; 8
//   driver=N            what cuDriverGetVersion says; 13000
//   name=TEXT           device name (no comma in it)
//   memory=BYTES        memory of a device, with K, M or G after it; 2G
//   fail=N:CODE[:sticky]        the N-th driver call from now fails with CODE
//   fail=NAME:N:CODE[:sticky]   the N-th call of that function from now
//   streams=late|eager|mixed  late: work is done when something waits for it, so a missing wait shows; eager: at once; mixed: of some
//                       streams some, whenever something is queued, in an order that follows from order=. late
//   waits=obeyed|ignored  ignored: no stream waits for an event, to see which tests notice. obeyed
//   order=SEED          blocks of a launch run in an order shuffled by SEED; 0: in rising order
//   together=N          N blocks of a launch run at a time, in turns whose lengths follow from order=; races are not looked for
//                       then. 1: one after another
//   uninit=on|not_local|off  reads of memory that nobody wrote are violations; on. not_local: those of a thread's local
//                       memory give bytes 0xff, for a compiler may load early there what it then does not use
//   races=on|shared|off races in shared and global memory are violations; on
//   exited=error|allow  a barrier that waits while other threads of the block have ended; error
//   steps=N             warp instructions of one launch before it is ended with CUDA_ERROR_LAUNCH_TIMEOUT, and turns of a conditional node that
//                       loops, in thousands; 2G
//   async=late|early    cp.async: a copy lands when it is waited for, or when it is issued; a device may do either. late
//   rough=on|off        tensor cores and approximate instructions are as wrong as their documentation allows, and a NaN has
//                       another sign after neg and abs; off
//   log=stderr|none|PATH   where texts of violations and errors go; stderr
//   graphs=PATH         a line for each node of a graph that is instantiated: "process P graph G node N NAME after N..."; NAME: the kernel's,
//                       FOREIGN (test_cuda_capture) or OTHER
//   leaks=on|off        at unload, say on the log what is still alive; off
// With a setting in KILN_TEST_CUDA that is unknown or malformed cuInit gives CUDA_ERROR_INVALID_VALUE: what is misspelt fails the test.
// KILN_TEST_CUDA_PTX names a folder where each PTX text that is taken is left, once, for assemble.sh.
#ifndef KILN_TEST_CUDA_H
#define KILN_TEST_CUDA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Applies settings as above. Returns 0, or -1 when one is unknown or malformed (those before it are applied). Device
// properties (devices, cc, sms, driver, name, memory) are read anew by each driver call.
int test_cuda_configure(const char *settings);

// The n-th driver call from now (1: the next one) fails with the CUresult `code` and does nothing else. n = 0: no more
// failures. Sticky: the current context is broken from then on, all calls that need it give `code`.
void test_cuda_fail(long n, int code, int sticky);

// The same for calls of one function only, by its exported name ("cuMemAlloc_v2"). NULL means every function.
void test_cuda_fail_call(const char *name, long n, int code, int sticky);

// Calls hook(user) in whichever thread makes one of the next `calls` calls of this function, before anything of it, the driver's
// lock not held. NULL: no more.
void test_cuda_before(const char *name, int calls, void (*hook)(void *user), void *user);

// Device memory beyond this many bytes in all is CUDA_ERROR_OUT_OF_MEMORY. 0: back to the setting memory=.
void test_cuda_limit_memory(size_t bytes);

// For a library that queues work of its own on a stream (tests/ranks/nccl.c): poll(user) is called under the driver's lock once all that was
// queued before is done, and again until it gives 1: done, or less than 0: the context is broken. 0: it waits for something outside; whoever
// waits for the stream waits on. Returns a CUresult.
int test_cuda_enqueue(void *stream, int (*poll)(void *user), void *user);

// The same as a node of the graph that the stream captures: each launch of an instance begins with begin(user), NULL: it fails, whose result
// is given to poll. end(user): neither graph nor instance is left; launches may be, on their way. Both under the driver's lock. Where this
// fails `end` may have been called.
typedef struct test_cuda_captured {
    void *(*begin)(void *user);
    int (*poll)(void *begun);
    void (*end)(void *user);
    void *user;
} test_cuda_captured;
int test_cuda_capture(void *stream, const test_cuda_captured *what);
// Does this thread capture a stream, by a mode that keeps to the thread?
int test_cuda_capturing(void);

// Bytes of device memory, to be read (all of them were written, else NULL and a report) or written (they count as written then) by
// poll, which is to be in the stream's order. NULL: they are inside no allocation.
void *test_cuda_access(uint64_t address, size_t size, int write);

typedef struct test_cuda_counters {
    uint64_t calls;          // driver calls
    uint64_t launches;       // kernels run, those of graphs included
    uint64_t graph_launches; // cuGraphLaunch
    uint64_t captures;       // captures ended well
    uint64_t copies;         // copies in any direction
    uint64_t bytes_to_device, bytes_to_host, bytes_on_device;
    uint64_t memsets;
    uint64_t allocations, frees; // of device memory
    uint64_t bytes_live;         // device memory in use now
    uint64_t bytes_peak;
    uint64_t modules_loaded;
    uint64_t thread_instructions; // executed: one per active thread and instruction
    uint64_t synchronizations;    // calls that waited for a stream, an event or the context
    uint64_t violations;          // texts that test_cuda_report gave or could have given
} test_cuda_counters;

void test_cuda_get_counters(test_cuda_counters *out);
void test_cuda_reset_counters(void); // all but the live ones to 0

// The text of the last violation or refused PTX, "" when there was none since test_cuda_clear_report. Valid until the next
// driver call.
const char *test_cuda_report(void);
void test_cuda_clear_report(void);

// Writes into `text` one line per object alive (allocations, host memory, modules, linkers, streams, events, graphs,
// retained contexts), cut at `size`; returns how many objects there are.
size_t test_cuda_leaks(char *text, size_t size);

// Forgets everything: objects freed, contexts whole again, counters, failures and settings as when the library was loaded
// (KILN_TEST_CUDA is read again). For a test that starts afresh in one process; handles from before are invalid.
void test_cuda_reset(void);

#ifdef __cplusplus
}
#endif
#endif
