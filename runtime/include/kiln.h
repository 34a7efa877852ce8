/*
 * kiln: array programs in C, recorded and compiled to fused kernels.
 *
 *     #include <kiln.h>
 *     #include <stdio.h>
 *
 *     int main(void)
 *     {
 *         kiln_scope *scope = kiln_scope_begin();
 *         kiln_tensor *x = kiln_uniform(KILN_F32, KILN_SHAPE(1000, 1000), -1, 1);
 *         kiln_tensor *y = kiln_relu(kiln_mul(kiln_sin(x), x)); // nothing has run so far
 *         double total;
 *         kiln_status status = kiln_item(kiln_sum(y), &total); // compiles, runs one kernel
 *         if (status != KILN_OK)
 *             fprintf(stderr, "%s\n", kiln_error_message());
 *         else
 *             printf("%f\n", total);
 *         kiln_scope_end(scope);
 *         return status != KILN_OK;
 *     }
 *
 * This file is the manual. It compiles as C99, C11 and C++17 without warnings.
 *
 * Recording and computing. A function that returns a `kiln_tensor *` only records what to compute
 * and returns at once. Values are computed at a *sync point*: kiln_eval, kiln_read, kiln_item,
 * printing, saving (they return a kiln_status). There the recorded graph is fused, compiled (or
 * found compiled) and run. Values never change once recorded, except that kiln_assign makes a
 * handle mean another value. Inputs such as kiln_uniform and kiln_arange are recorded, too: until
 * one is evaluated, each graph that uses it computes it anew inside (with the same values). Say
 * kiln_eval once for what many later graphs read.
 *
 * Numbers. In C11 and C++ an operand of the elementwise functions of two and three operands may be
 * a number: kiln_mul(x, 2.0), kiln_sub(1, x), kiln_where(mask, x, 0). It is what kiln_scalar,
 * kiln_int or kiln_bool make of it. In C99, or with KILN_NO_LOCATIONS in C, say those. (In C such an
 * operand is a block of its own: a compound literal that is *wrapped* inside it, kiln_wrap(...,
 * (float[]){1, 2}, ...), ends with it. kiln_from copies.)
 *
 * Errors. Bad arguments are found while recording. The function then returns NULL and the thread
 * keeps the *first* such error, with the name of the function, the dtypes and shapes at fault and
 * your file and line:
 *     kiln_matmul: inner dims differ: a is f32[256,1024], b is f32[512,2048] (train.c:42)
 * NULL given to a function gives NULL back, so expressions nest and one check at the sync point is
 * enough; where NULL stands for "none" (a mask, a bias), it does so only while no error is kept. A
 * sync point fails for its own arguments and its own work only; given NULL it fails with the error
 * that is kept and consumes it. Nothing in kiln prints, exits or aborts because of what you pass.
 *
 * Ownership. A tensor made in a thread belongs to the innermost open scope of that thread and lives
 * until that scope ends (each thread has a root scope that ends with the thread). There is nothing
 * to free one by one; kiln_keep, kiln_retain and kiln_release are for longer lives. What a recorded
 * value needs is kept alive inside.
 *
 * Shapes. Rank 0 to 8, dims int64_t, of which any may be 0. Row-major. `axis` arguments count from
 * the end when negative. Binary functions broadcast as NumPy does: shapes are aligned at the right,
 * and a dim of 1 (or a missing one) repeats.
 *
 * Dtypes. Operands of different dtypes are promoted to a common one: the wider of two ints or of
 * two floats; an int with a float gives the float; a signed with an unsigned int gives the next
 * wider signed one (u64 with a signed int: f32); f16 with bf16 gives f32; bool gives way to
 * everything. Functions that need floats compute ints and bools in f32. Scalars made by
 * kiln_scalar, kiln_int and kiln_bool are *weak*: they take the dtype of the tensor they meet,
 * unless their kind is higher (a float scalar with an int tensor gives f32; an int scalar with a
 * bool tensor gives i64). Among themselves they compute in f64 and i64; made into an array (expand,
 * where, concat...) they become f32 and i64. f16 and bf16 are storage formats: each function
 * computes in f32 and rounds once. Sums and products of f16 and bf16 accumulate in f32; sums and
 * products of bool and small ints are i64 or u64.
 *
 * Threads. Any function may be called from any thread. To hand a tensor to another thread,
 * kiln_retain it first. Evaluations of several threads run beside each other, on a CUDA device on a
 * stream for each thread, compiles included: a value that several need is computed once, by the first of them, and so is a program.
 * Any number of threads may read, compute and use one tensor at once. What changes what a handle
 * means -- kiln_assign, kiln_touch, kiln_param, kiln_data of a strided tensor, a kiln_function that
 * assigns, a step of an optimizer, kiln_scaler_unscale -- is yours to keep apart from every other
 * use of that handle in another thread (a value that was computed from it before stays what it was,
 * also where the new one is computed in its memory). So is the memory behind kiln_wrap, which nobody
 * may write while a value recorded from it is not computed. A kiln_function may be called by several
 * threads at once; scopes, recordings and modes belong to their thread, options and random numbers
 * to all. Nothing is freed, or released for the last time, while another thread uses it; what one
 * thread makes and another uses is handed over (by a lock, say). Where a function says no more, that
 * is all there is to keep apart.
 * kiln_eval_async brings a thread of its own. One evaluation at a time: with collectives (their
 * order is the process's), while launches are measured (KILN_PERF, KILN_LOG=perf, KILN_TRACE:
 * beside others times say little), the parts of a graph of more than 8,192 nodes but the last (the
 * rest is still to be collected), and a kiln_function that assigns, gives an argument or a captured
 * tensor back as it is, or has an op of yours or linear algebra (kiln_solve...) in it. Gradients and
 * the first call of a kiln_function wait for what others compute.
 *
 * pthread_cancel takes effect where a thread is outside of kiln (deferred
 * cancellation, the default; POSIX allows calls of almost no library under the asynchronous kind):
 * kiln's functions are no cancellation points, so a loop of them alone needs a pthread_testcancel.
 * Values can be computed at any time, in handlers of atexit and destructors of C++ globals, too.
 *
 * Floating-point mode. Results are those of the default mode (round to nearest, subnormals kept but
 * by some products in fast mode, no traps) whatever the calling thread has set; it has its mode back when a function returns.
 *
 * Functions of yours that kiln calls. The body of a kiln_function may leave by a C++ exception or
 * end its thread: the call is undone then, and its results are NULL. A log sink and a deleter have
 * to return. None of them may leave by longjmp, which would leave locks held. Log sinks and deleters
 * run in the default floating-point mode, bodies in that of the caller.
 *
 * Locations. Each recording function and sync point is also a macro that passes __FILE__ and
 * __LINE__ behind your arguments to a twin named `..._at`. Define KILN_NO_LOCATIONS before including this file to have
 * plain functions only; bindings from other languages use the plain symbols.
 */
#ifndef KILN_H
#define KILN_H

#include <stddef.h>
#include <stdint.h>
#ifndef __cplusplus
#include <stdbool.h>
#endif

#define KILN_VERSION_MAJOR 0
#define KILN_VERSION_MINOR 3
#define KILN_VERSION_PATCH 0
#define KILN_VERSION "0.3.0"

#if defined(__GNUC__)
#define KILN_API __attribute__((visibility("default")))
#define KILN_MUST_CHECK __attribute__((warn_unused_result))
#define KILN_FORMAT(text, first) __attribute__((format(printf, text, first)))
#else
#define KILN_API
#define KILN_MUST_CHECK
#define KILN_FORMAT(text, first)
#endif

/* Declares a function twice: as itself, and as its twin that is told the caller's place. The first
 * returns a tensor (NULL on error), the second a status that must be checked (a sync point). */
#define KILN_OP(name, ...)                   \
    KILN_API kiln_tensor *name(__VA_ARGS__); \
    KILN_API kiln_tensor *name##_at(__VA_ARGS__, const char *file, int line)
#define KILN_SYNC(name, ...)                                \
    KILN_API KILN_MUST_CHECK kiln_status name(__VA_ARGS__); \
    KILN_API KILN_MUST_CHECK kiln_status name##_at(__VA_ARGS__, const char *file, int line)

#ifdef __cplusplus
extern "C" {
#endif

/* ---- types ---- */

typedef struct kiln_tensor kiln_tensor; /* an array, computed or still to be computed */
/* owns the tensors made while it is the innermost one */
typedef struct kiln_scope kiln_scope;
typedef struct kiln_recording kiln_recording; /* while it is open, computed values remember how they were made */
typedef struct kiln_function kiln_function;   /* a C function traced once for each kind of input */
typedef struct kiln_optimizer kiln_optimizer; /* updates parameters by their gradients */
typedef struct kiln_scaler kiln_scaler;       /* the factor of a loss whose gradients are f16 */
typedef struct kiln_file kiln_file;           /* a file of named tensors, open for reading */

typedef enum kiln_status {
    KILN_OK,
    KILN_INVALID,   /* an argument makes no sense */
    KILN_BAD_DTYPE, /* the function does not take this dtype */
    KILN_BAD_SHAPE, /* ranks or dims do not fit */
    KILN_BAD_INDEX, /* an index, known only when values are computed, is out of bounds */
    KILN_OVERFLOW,  /* more than 2^62 elements (dims of 0 left out) or bytes */
    KILN_OUT_OF_MEMORY,
    KILN_IO,          /* a file cannot be read or written */
    KILN_BAD_FORMAT,  /* a file is malformed */
    KILN_UNSUPPORTED, /* sensible, but kiln does not do it */
    KILN_COMPILE,     /* a compile failed (option strict) or was refused (option on_recompile) */
    KILN_DEVICE,
    KILN_INTERNAL, /* a bug in kiln */
    KILN_COMM      /* another rank failed, did not come in time, or has another collective */
} kiln_status;

typedef enum kiln_dtype {
    KILN_BOOL, /* one byte, 0 or 1 */
    KILN_I8,
    KILN_I16,
    KILN_I32,
    KILN_I64,
    KILN_U8,
    KILN_U16,
    KILN_U32,
    KILN_U64,
    KILN_F16,  /* IEEE binary16 */
    KILN_BF16, /* the upper half of an f32 */
    KILN_F32,
    KILN_F64
} kiln_dtype;

#define KILN_MAX_RANK 8

/* A shape by value: KILN_SHAPE(4096, 1024), KILN_SHAPE(n), KILN_SHAPE() for rank 0. */
typedef struct kiln_shape {
    int rank;
    int64_t dim[KILN_MAX_RANK];
} kiln_shape;

/* A set of axes by value: KILN_AXES(0, -1); KILN_AXES() is none; KILN_ALL_AXES all of them. */
typedef struct kiln_axes {
    int n; /* -1: all */
    int axis[KILN_MAX_RANK];
} kiln_axes;

/* What a slice takes of an axis: start, start+step, ... before stop, as Python's start:stop:step.
 * Negative start and stop count from the end, both are clamped to the axis, KILN_NONE leaves one
 * out. step is not 0. */
typedef struct kiln_range {
    int64_t start, stop, step;
} kiln_range;
#define KILN_NONE INT64_MIN
/* clang-format off */
#define KILN_ALL {KILN_NONE, KILN_NONE, 1} /* an initialiser: the whole axis */
/* clang-format on */

/* Elements added before and after an axis, both >= 0. */
typedef struct kiln_padding {
    int64_t low, high;
} kiln_padding;

/* What scattering does where it writes. Writes happen in index order; of several SETs of one place
 * the last one stays, and each ADD rounds to x's dtype. Bools can only be SET (KILN_BAD_DTYPE). */
typedef enum kiln_scatter_mode { KILN_SCATTER_SET, KILN_SCATTER_ADD, KILN_SCATTER_MAX, KILN_SCATTER_MIN } kiln_scatter_mode;

#ifndef __cplusplus

/* KILN_SHAPE and KILN_AXES count their arguments; a shape of more than 8 dims is refused by whoever
 * gets it. */
static inline kiln_shape kiln_make_shape(size_t rank, const int64_t *dims)
{
    kiln_shape shape = {(int)rank, {0, 0, 0, 0, 0, 0, 0, 0}};
    for (size_t i = 0; i < rank && i < KILN_MAX_RANK; i++)
        shape.dim[i] = dims[i];
    return shape;
}
static inline kiln_axes kiln_make_axes(size_t n, const int *list)
{
    kiln_axes axes = {(int)n, {0, 0, 0, 0, 0, 0, 0, 0}};
    for (size_t i = 0; i < n && i < KILN_MAX_RANK; i++)
        axes.axis[i] = list[i];
    return axes;
}
#define KILN_SHAPE(...) \
    kiln_make_shape(sizeof((const int64_t[]){0, __VA_ARGS__}) / sizeof(int64_t) - 1, (const int64_t[]){0, __VA_ARGS__} + 1)
#define KILN_AXES(...) kiln_make_axes(sizeof((const int[]){0, __VA_ARGS__}) / sizeof(int) - 1, (const int[]){0, __VA_ARGS__} + 1)

#else

} /* extern "C" */
template <class... Dim> inline kiln_shape kiln_make_shape(Dim... dims)
{
    static_assert(sizeof...(dims) <= KILN_MAX_RANK, "KILN_SHAPE: at most 8 dims");
    return kiln_shape{static_cast<int>(sizeof...(dims)), {static_cast<int64_t>(dims)...}};
}
template <class... Axis> inline kiln_axes kiln_make_axes(Axis... axes)
{
    static_assert(sizeof...(axes) <= KILN_MAX_RANK, "KILN_AXES: at most 8 axes");
    return kiln_axes{static_cast<int>(sizeof...(axes)), {static_cast<int>(axes)...}};
}
#define KILN_SHAPE(...) kiln_make_shape(__VA_ARGS__)
#define KILN_AXES(...) kiln_make_axes(__VA_ARGS__)
extern "C" {

#endif

static inline kiln_axes kiln_every_axis(void)
{
    kiln_axes axes = {-1, {0, 0, 0, 0, 0, 0, 0, 0}};
    return axes;
}
#define KILN_ALL_AXES kiln_every_axis()

/* ---- library, errors, options ---- */

KILN_API const char *kiln_version(void); /* of the library in use, such as "0.3.0" */

/* The error of this thread: of the sync point that failed last, else the first of a recording
 * function. "" when there is none. Belongs to kiln; valid until the thread's next error or
 * kiln_clear_error. */
KILN_API const char *kiln_error_message(void);
/* what kind that error is; KILN_OK when there is none */
KILN_API kiln_status kiln_error_status(void);
KILN_API void kiln_clear_error(void);
KILN_API const char *kiln_status_name(kiln_status status); /* "shapes do not fit"; never NULL */

/* For short programs: unless status is KILN_OK, prints the error with the caller's place to stderr
 * and ends the process with exit(1). Libraries return the status instead. */
KILN_API void kiln_check(kiln_status status);
KILN_API void kiln_check_at(kiln_status status, const char *file, int line);

/* Where warnings (level 0) and log lines (level 1) go: one line without newline at a time, from any
 * thread. NULL: stderr. A line may come from the middle of a computation, and other threads wait
 * until the sink returns: in it, what would compute a value, look at a graph (kiln_explain,
 * kiln_graph_text) or mark an axis fails (KILN_INVALID), and so does kiln_function_call. Once
 * kiln_set_log_sink returns the sink before is not running any more. */
typedef void kiln_log_sink(void *user, int level, const char *topic, const char *line);
KILN_API void kiln_set_log_sink(kiln_log_sink *sink, void *user);

/* A sink that writes lines, each with a newline, into memory of yours: kiln_set_log_sink(
 * kiln_log_into, &buffer), and another sink before the buffer ends. Always NUL-terminated when size
 * is not 0; `needed` is what all lines take, without the NUL: from `size` on, the end is missing.
 * Set needed to 0 to begin anew. */
typedef struct kiln_log_buffer {
    char *text;
    size_t size, needed;
} kiln_log_buffer;
KILN_API void kiln_log_into(void *buffer, int level, const char *topic, const char *line);

/* How far kiln is with a program that somebody waits for, or that is compiled in the background. */
typedef struct kiln_progress {
    size_t size;         /* of the struct in this version of the library; later ones add fields at the end */
    const char *phase;   /* "loading" from the cache on disk, or "optimising", "planning", "compiling"; "finished" at last, or failed */
    const char *program; /* its id, as the log and `kiln cache` have it */
    const char *name;    /* compiling: of the kernel that was begun or is ready; else NULL */
    int64_t done, total; /* loading, compiling: kernels; else 0 of 0 */
    double seconds;      /* since the first call about this program */
} kiln_progress;
/* Whom to tell; NULL: nobody. From any thread, one call at a time, in the middle of the work, which waits: what holds for a log sink
 * holds here (kiln_set_log_sink). Texts are valid during the call. Each program has a last call with the phase "finished". kiln has
 * no tuning; what takes long is compiling. KILN_PROGRESS=1 draws a line on stderr instead, where that is a terminal. */
typedef void kiln_progress_callback(void *user, const kiln_progress *now);
KILN_API void kiln_set_progress(kiln_progress_callback *callback, void *user);

/*
 * Options, read at first use from the environment as KILN_<NAME>, set here by their lower-case
 * name, for the whole process:
 *     mode          jit | eager | interp   fused and compiled; each op its own kernel, at once;
 *                                          the reference interpreter
 *     math          fast | strict          strict: elementwise results equal the interpreter's bits;
 *                                          fast: a GPU may use tensor cores for products of f16 and
 *                                          bf16, faster instructions for some functions, and
 *                                          another order of summing up for products with vectors;
 *                                          an f16 or bf16 that one function alone reads need not be
 *                                          rounded on its way there, but where that would show
 *                                          beyond a rounding: comparisons, floor, sqrt and so on.
 *                                          One that is stored, cast, or read in two places of what
 *                                          is computed together is rounded: all see one value
 *     finite        0 | 1                  1, with math=fast: you promise that no float, of the
 *                                          inputs or of anything computed from them, is NaN,
 *                                          infinite, zero or beyond its function's domain. Rewrites
 *                                          that need that are made then: x/x is 1, exp(log x) and
 *                                          sqrt(x)^2 are x, 1/(1/x) is x. Where the promise is
 *                                          broken the result is some other number, with no error.
 *                                          Not the same as kiln_isfinite, which asks for each
 *                                          element, and always as the element is
 *     tf32          0 | 1                  1, with math=fast: products of f32 by tensor cores too,
 *                                          which keep 10 bits of each factor (a relative error of
 *                                          about 1e-3) and are many times as fast
 *     subnormals    keep | flush           flush, with math=fast: on a CPU compiled code takes floats of
 *                                          32 and 64 bits (bf16 too) whose magnitude is below the least
 *                                          normal one, 1.2e-38 and 2.2e-308, for zeros of their sign,
 *                                          and computes no such numbers (copies, signs and maxima hand
 *                                          them on): with one of them in a vector an
 *                                          instruction takes some CPUs forty times as long. As
 *                                          torch.set_flush_denormal, and XLA on CPUs
 *     bands         auto | off | always    on a CPU, a product and what is done to its rows (a
 *                                          softmax, a norm, the next product) run together, some rows
 *                                          at a time, which so never go through memory: where that
 *                                          pays; never; wherever it can be done. Same bits
 *     remat         auto | off | memory    where a gradient is computed together with what it is the
 *                                          gradient of: values in between are computed again where
 *                                          that takes less time than to write and read them; all
 *                                          are kept; as much is computed again as saves memory.
 *                                          Same bits with math=strict
 *     dynamic       never | auto | always  which sizes become arguments of compiled code
 *     async_compile 0 | 1                  1: a graph that changes its sizes waits for its first
 *                                          compile only. The most general program is compiled
 *                                          ahead, on a thread in the background, and runs until
 *                                          better ones, compiled there too, take over. Same bits
 *                                          with math=strict
 *     on_recompile  ignore | warn | error  a graph that needs another compiled program: error fails
 *                                          the sync point (KILN_COMPILE); not for programs that are
 *                                          compiled in the background, which nobody waits for
 *     check         off | pure | repeat |  pure: kiln_functions are run at each call and compared;
 *                   cache | rules          repeat: everything is computed twice, first on one thread,
 *                                          and the bits compared (else KILN_INVALID); cache: what the
 *                                          cache on disk has is compiled once more and compared;
 *                                          rules: kiln_rule_add tries rules on numbers
 *     cache         on | off | readonly |  the cache of compiled programs on disk, below; refresh
 *                   refresh                compiles anew and replaces what is there
 *     cache_dir     folder                 where it is
 *     cache_size    bytes (1 GiB)          what it may take; programs not used for longest go first
 *     compile       on | off               off: a graph without a compiled program, in memory or on
 *                                          disk, is an error (KILN_COMPILE) that names it
 *     constant_bytes bytes (a quarter of   what may be kept of kiln_mark_constant on each device; what was not
 *                   memory)                read for longest goes first
 *     pressure_bytes bytes (half of the    when tensors take more, recording computes what was recorded
 *                   memory)                and holds more in memory than it will take itself; a warning
 *                                          says so once, with the line
 *     threads       0 (all) or a number    CPU threads; no result depends on it; they use the CPUs that the
 *                                          process's first thread may use
 *     strict        0 | 1                  a failed compile is an error, not a fall-back to the
 *                                          interpreter
 *     log           topics, with commas    recompiles, guards, graph, passes, fusion, kernels,
 *                                          output_code, ...; help lists them
 *     dump          folder                 gets every stage of every program as files; one that is not
 *                                          there is made, with a warning that says so
 *     perf          off | summary | csv    at the end of the process, in the log: for each kernel and each
 *                                          program calls, total and median time, GB/s, GFLOP/s, how near
 *                                          that is to what this machine can do, what limits it (memory,
 *                                          compute, special functions, overhead), what could be saved, and
 *                                          what to do. The machine is measured once, in half a second
 *                                          (`kiln info --measure`). On a CUDA device times are by its
 *                                          clock, and each evaluation waits for it
 *     progress      0 | 1                  draws on stderr, where that is a terminal, how far a compile
 *                                          is; kiln_set_progress
 *     trace         file                   a timeline of the process: kiln_trace_start
 *     trace_size    bytes (64 MiB)         what such a file may take, read when it begins; the newest
 *                                          events stay
 * (jit/options.def lists all.) KILN_INVALID for an unknown name or value, with the valid ones in
 * the message.
 *
 * The cache on disk keeps compiled programs for later processes: in $KILN_CACHE_DIR, else
 * $XDG_CACHE_HOME/kiln, else ~/.cache/kiln, one file per program, readable with the command `kiln`.
 * A program is used only if the library, LLVM, the CPU, the options that change code and the graph
 * are the same, which is compared in full, and if the file is undamaged. No failure of the disk is
 * ever a failure of a call: it costs a compile, and one warning. Whoever may write the directory can
 * run code as you, so it is made for you alone (0700) and refused where others own it or may write it.
 * A process with more rights than its user (setuid) uses none.
 */
KILN_API KILN_MUST_CHECK kiln_status kiln_set_option(const char *name, const char *value);
/* The current value as text, NUL-terminated and cut to `size` bytes. */
KILN_API KILN_MUST_CHECK kiln_status kiln_get_option(const char *name, char *buffer, size_t size);

/*
 * A timeline of the process, in a file that Perfetto (ui.perfetto.dev) and chrome://tracing open: for each thread the recording, sync
 * points with file and line, look-ups, guards and why there was no program, passes, fusion, each kernel's code generation, loading and
 * storing, binding, launches with what they compute, their regime and how near they came to the limit, what each thread ran of a kernel,
 * copies, waits; curves of memory; arrows from a sync point to its launches. What each device can do stands in `otherData`; that
 * of the CPU is measured before the first trace on a machine begins, which takes half a second, and kept in the cache directory. KILN_TRACE=file
 * begins one when the process first uses kiln; so does the option `trace`, set to the file. %p in the path becomes the process's number.
 *
 * The file is valid JSON at every moment, whatever the process dies of; what happened in the last fraction of a millisecond may be missing
 * then. It grows up to the option trace_size, then the oldest events go, and `lost_events` counts them. A forked child writes a
 * file of its own: trace.json becomes trace.123.json. On a CUDA device each evaluation waits for its launches meanwhile, whose times are
 * the device's, and none are a graph. A file that cannot be written any more costs one warning, never a call.
 *
 * Starting ends a trace that is being written. KILN_INVALID: no path, or one that is too long; KILN_IO: the file cannot be made, or
 * what lies there is no trace. Stopping writes what is left; with no trace it does nothing. KILN_IO: that could not be written.
 */
KILN_API KILN_MUST_CHECK kiln_status kiln_trace_start(const char *path);
KILN_API KILN_MUST_CHECK kiln_status kiln_trace_stop(void);

/* What the process did so far. */
#define KILN_MISS_REASONS 32
typedef struct kiln_stats {
    int64_t nodes;                   /* ops recorded */
    int64_t evals;                   /* sync points that had something to compute */
    int64_t hits;                    /* of these: found a compiled program */
    int64_t misses;                  /* of these: did not */
    int64_t miss[KILN_MISS_REASONS]; /* the misses by reason; kiln_miss_reason(i) names it */
    int64_t compiles;                /* programs compiled */
    int64_t background_compiles;     /* of these: on the thread in the background (async_compile) */
    double compile_seconds;
    /* the cache on disk */
    int64_t disk_hits;         /* of the hits: served by a program from disk */
    int64_t disk_loaded;       /* programs loaded, for hits and for what they tell of earlier sizes */
    int64_t disk_refused;      /* entries that were of no use: damaged or unreadable */
    int64_t disk_stored;       /* programs written */
    double disk_saved_seconds; /* what compiling the loaded programs once took */
    int64_t fallbacks;         /* graphs that the interpreter ran because compiling failed */
    int64_t kernels;           /* kernels launched */
    /* bytes read and written by kernels, each buffer counted once per kernel */
    int64_t bytes_moved;
    int64_t live_bytes;   /* of tensor data, now */
    int64_t peak_bytes;   /* the most there ever was (since kiln_reset_stats); where several threads compute, 64 KiB out for each at most */
    int64_t pooled_bytes; /* freed tensor data kept for reuse, on the CPU */
    int64_t graph_launches; /* times that several kernels were launched as one CUDA graph (cuda_graphs) */
} kiln_stats;
KILN_API void kiln_get_stats(kiln_stats *stats);
/* Bytes of computed values that still know what they were made of, for gradients to come: those of recordings that are not at their end (see
 * kiln_recording_begin), and with mode=eager those computed from parameters that some handle or other value still needs. */
KILN_API int64_t kiln_kept_bytes(void);
KILN_API void kiln_reset_stats(void);              /* counters to 0, peak to what is live */
KILN_API const char *kiln_miss_reason(int reason); /* NULL past the last one */

/* Where the program of a sync point came from; of several the costliest. */
typedef enum kiln_call_source {
    KILN_CALL_NOTHING, /* there was no sync point with something to compute */
    KILN_CALL_MEMORY,
    KILN_CALL_DISK,
    KILN_CALL_COMPILED,
    KILN_CALL_INTERPRETED
} kiln_call_source;

/* What the last sync point of this thread did that had something to compute. Texts are static. */
typedef struct kiln_call_report {
    size_t size;                  /* set it to sizeof(kiln_call_report); then how much of it was filled */
    int source;                   /* a kiln_call_source */
    int miss_reason;              /* compiled: why no program fitted, for kiln_miss_reason; else -1 */
    int64_t kernels;              /* different ones */
    int64_t launches;             /* of them, and of sorts */
    int64_t bytes;                /* read and written, each buffer counted once per launch */
    int64_t flops;                /* that the graph asks for */
    int64_t specials;             /* exp, sin, sqrt and the like */
    double compile_seconds;       /* this call waited for */
    double load_seconds;          /* ... looking on disk, and loading from there */
    int64_t in_place;             /* results that lie where an input lay */
    const char *why_not_in_place; /* of the first one that does not; NULL: all do */
    const char *regime;           /* memory, compute, special functions, overhead; NULL: not known */
    char program[64];             /* how `kiln cache show` calls the first program, and the log */
    double peak_flops;            /* in a second, that its device does at most in f32 (`kiln info --measure`); 0: not known */
} kiln_call_report;
/* Fills *report; at the first time of all, half a second goes to measuring the machine, if that is not kept in the cache directory.
 * KILN_INVALID: NULL, or a size that no version of the struct had. */
KILN_API KILN_MUST_CHECK kiln_status kiln_last_call(kiln_call_report *report);

/* The overhead test. body computes your work at size n, values included (kiln_eval, kiln_item), and returns the status; it runs in a scope of
 * its own. It is called at n and at 2 n in turns, some uncounted times first, then 5 to 101 times each, for about half a second. */
typedef kiln_status kiln_perf_body(int64_t n, void *user);
typedef struct kiln_scaling {
    size_t size;                   /* set it to sizeof(kiln_scaling); then how much of it was filled */
    int64_t runs;                  /* of each size */
    double seconds, seconds_twice; /* medians, of one run at n and at 2 n */
    double ratio;                  /* the median of 2 n over n: 1 for overhead alone, 2 for work alone */
    int64_t compiles;    /* in the counted runs: not 0 means that the body compiles again and again, which is what is timed then */
    const char *verdict; /* what that means and what to do, a sentence; static */
} kiln_scaling;
/* Also a line of KILN_LOG=perf. KILN_INVALID: NULL, a size that no version of the struct had, n not from 1 to 2^62. Else the status that
 * body returns, which ends it. */
KILN_API KILN_MUST_CHECK kiln_status kiln_perf_scaling(kiln_perf_body *body, int64_t n, void *user, kiln_scaling *result);

/* ---- scopes and lifetimes ---- */

/* Opens a scope: tensors made from now on in this thread belong to it. NULL only when out of memory
 * (harmless: tensors then belong to the enclosing scope). */
KILN_API kiln_scope *kiln_scope_begin(void);
/* Ends a scope of this thread, and those opened inside it that are still open: releases the tensors
 * they own. NULL is allowed. A scope of another thread is refused (KILN_INVALID is kept), and so is,
 * inside the body of a kiln_function, one that the body did not begin. */
KILN_API void kiln_scope_end(kiln_scope *scope);
/* Moves a tensor from the scope that owns it to the enclosing one; returns it. Of a root scope, or a
 * scope of another thread: no change. */
KILN_API kiln_tensor *kiln_keep(kiln_tensor *x);
/* One more owner; returns x. Each kiln_retain is paired with one kiln_release, in any thread. */
KILN_API kiln_tensor *kiln_retain(kiln_tensor *x);
KILN_API void kiln_release(kiln_tensor *x);

/* ---- asking about a tensor (no sync point) ---- */

KILN_API kiln_dtype kiln_dtype_of(const kiln_tensor *x); /* of NULL: KILN_BOOL */
KILN_API int kiln_rank(const kiln_tensor *x);            /* of NULL: -1 */
/* negative axes count from the end; -1 where there is none */
KILN_API int64_t kiln_dim(const kiln_tensor *x, int axis);
KILN_API kiln_shape kiln_shape_of(const kiln_tensor *x); /* of NULL: rank -1 */
KILN_API int64_t kiln_numel(const kiln_tensor *x);       /* number of elements; of NULL: -1 */
KILN_API bool kiln_is_evaluated(const kiln_tensor *x);
KILN_API bool kiln_is_weak(const kiln_tensor *x);       /* a weakly typed scalar */
KILN_API const char *kiln_dtype_name(kiln_dtype dtype); /* "f32"; "?" for no dtype */
KILN_API size_t kiln_dtype_size(kiln_dtype dtype);      /* bytes of one element; 0 for no dtype */

/* ---- making tensors ---- */

KILN_OP(kiln_zeros, kiln_dtype dtype, kiln_shape shape);
KILN_OP(kiln_ones, kiln_dtype dtype, kiln_shape shape);
/* an int dtype takes whole numbers that it holds (KILN_INVALID) */
KILN_OP(kiln_full, kiln_dtype dtype, kiln_shape shape, double value);
/* exact for 64-bit ints */
KILN_OP(kiln_full_int, kiln_dtype dtype, kiln_shape shape, int64_t value);
KILN_OP(kiln_zeros_like, kiln_tensor *x); /* dtype and shape of x */
KILN_OP(kiln_ones_like, kiln_tensor *x);
KILN_OP(kiln_full_like, kiln_tensor *x, double value);

/* Weakly typed scalars of rank 0 (see the top). Their values are arguments of compiled code: a
 * value that changes never recompiles. */
KILN_OP(kiln_scalar, double value);
KILN_OP(kiln_int, int64_t value);
KILN_OP(kiln_uint, uint64_t value); /* beyond an int64: KILN_OVERFLOW */
KILN_OP(kiln_bool, bool value);

/* start, start + step, ... before stop (none if step points away), 1-D; element i is start + i *
 * step, computed in f64 for floats and in i64 for ints (where start and step must be whole
 * numbers). step is not 0. Not for bool. */
KILN_OP(kiln_arange, kiln_dtype dtype, double start, double stop, double step);
/* n values evenly spaced from start to stop, both included; a float dtype. */
KILN_OP(kiln_linspace, kiln_dtype dtype, double start, double stop, int64_t n);
/* rows x cols with ones where column - row == k. */
KILN_OP(kiln_eye, kiln_dtype dtype, int64_t rows, int64_t cols, int64_t k);

/* Copies numel(shape) elements, row-major, from `data`. bool data: any byte but 0 is true. */
KILN_OP(kiln_from, kiln_dtype dtype, kiln_shape shape, const void *data);
/* Borrows row-major elements at `data` (aligned to the element) without copying. The memory must
 * stay valid and unchanged until `deleter(data, user)` is called (from any thread; it may be NULL:
 * then for as long as the process uses it); after changing it say kiln_touch. bool data must be 0
 * or 1. When NULL is returned the deleter is not called. */
KILN_OP(kiln_wrap, kiln_dtype dtype, kiln_shape shape, void *data, void (*deleter)(void *data, void *user), void *user);
/* The same with strides, in elements: element (i, j, ...) is at data + i*strides[0] + j*strides[1]
 * + ...; strides may be zero or negative (`data` is element (0, 0, ...)). */
KILN_OP(kiln_wrap_strided, kiln_dtype dtype, kiln_shape shape, const int64_t *strides, void *data, void (*deleter)(void *data, void *user),
        void *user);
/* Says that the memory behind a wrapped tensor changed: values recorded from now on see the new
 * contents. Of one on a CUDA device nothing: take it in anew. Not while another thread uses x. */
KILN_API void kiln_touch(kiln_tensor *x);

/*
 * DLPack (dmlc.github.io/dlpack): arrays of other libraries without a copy, and tensors for them. Include its dlpack.h for the structs;
 * the plain functions are for those of version 1.x, the others for the older one without a version, which many libraries still have.
 *
 * `stream`, on a CUDA device: the stream on which the other side wrote, or will read; each side waits for the other on the device, not
 * on the host. 0 or 1 is the default stream, 2 the thread's default one, another number a CUstream, -1 says that there is nothing to
 * wait for. On the CPU it means nothing.
 */
struct DLManagedTensorVersioned;
struct DLManagedTensor;
/* Takes an array in, as kiln_wrap takes memory: it must stay unchanged (on the CPU: or say kiln_touch), any strides, never overwritten.
 * Its deleter is called once, from any thread, when no value lies there any more. Bools are compared with 0, which is a copy. The CPU
 * (pinned memory of CUDA, too) and CUDA devices; others are refused by name (KILN_DEVICE), and so are types that kiln does not have
 * (KILN_UNSUPPORTED). When NULL is returned the array stays the caller's. */
KILN_OP(kiln_from_dlpack, struct DLManagedTensorVersioned *tensor, int64_t stream);
KILN_OP(kiln_from_dlpack_unversioned, struct DLManagedTensor *tensor, int64_t stream);
/* Computes x and gives it away: *tensor lies where x does, with its strides, and stays until its deleter is called, from any thread,
 * also after x is gone. It is for reading: values never change (1.x says so by its flag; without a version what lies in a file or
 * came in for reading only is copied). On a CUDA device the deleter waits until the device is idle. */
KILN_SYNC(kiln_to_dlpack, kiln_tensor *x, int64_t stream, struct DLManagedTensorVersioned **tensor);
KILN_SYNC(kiln_to_dlpack_unversioned, kiln_tensor *x, int64_t stream, struct DLManagedTensor **tensor);

/*
 * Random numbers from one counter-based stream of the process (Threefry-2x32, 20 rounds; Salmon et
 * al. 2011): element i of a draw is a function of the seed, of how many elements were drawn before,
 * and of i alone -- not of threads, fusion or whether a draw was ever used. kiln_seed starts the
 * stream over. f16 and bf16 are drawn in f32 and rounded.
 */
KILN_API void kiln_seed(uint64_t seed);
/* floats: low <= x < high, up to rounding */
KILN_OP(kiln_uniform, kiln_dtype dtype, kiln_shape shape, double low, double high);
/* floats; Box-Muller */
KILN_OP(kiln_normal, kiln_dtype dtype, kiln_shape shape, double mean, double std);
KILN_OP(kiln_rand, kiln_dtype dtype, kiln_shape shape);  /* floats: 0 <= x < 1 */
KILN_OP(kiln_randn, kiln_dtype dtype, kiln_shape shape); /* floats: mean 0, standard deviation 1 */
/* ints: low <= x < high, by remainder */
KILN_OP(kiln_randint, kiln_dtype dtype, kiln_shape shape, int64_t low, int64_t high);

/* ---- elementwise, one operand ---- */

/* Any number dtype; the result has it too. */
KILN_OP(kiln_positive, kiln_tensor *x);
KILN_OP(kiln_neg, kiln_tensor *x); /* ints wrap */
KILN_OP(kiln_abs, kiln_tensor *x);
KILN_OP(kiln_sign, kiln_tensor *x); /* -1, 0 or 1; NaN stays */
KILN_OP(kiln_square, kiln_tensor *x);
KILN_OP(kiln_floor, kiln_tensor *x); /* ints: unchanged, as for the next three */
KILN_OP(kiln_ceil, kiln_tensor *x);
KILN_OP(kiln_round, kiln_tensor *x); /* halves to even */
KILN_OP(kiln_trunc, kiln_tensor *x);
KILN_OP(kiln_relu, kiln_tensor *x); /* max(x, 0); NaN stays */

/* Floats; ints and bools are computed in f32. Outside the domain: NaN. */
KILN_OP(kiln_reciprocal, kiln_tensor *x);
KILN_OP(kiln_sqrt, kiln_tensor *x);
KILN_OP(kiln_rsqrt, kiln_tensor *x); /* 1 / sqrt(x) */
KILN_OP(kiln_exp, kiln_tensor *x);
KILN_OP(kiln_exp2, kiln_tensor *x);
KILN_OP(kiln_expm1, kiln_tensor *x); /* exp(x) - 1, accurate near 0 */
KILN_OP(kiln_log, kiln_tensor *x);
KILN_OP(kiln_log2, kiln_tensor *x);
KILN_OP(kiln_log10, kiln_tensor *x);
KILN_OP(kiln_log1p, kiln_tensor *x); /* log(1 + x), accurate near 0 */
KILN_OP(kiln_sin, kiln_tensor *x);   /* radians */
KILN_OP(kiln_cos, kiln_tensor *x);
KILN_OP(kiln_tan, kiln_tensor *x);
KILN_OP(kiln_asin, kiln_tensor *x);
KILN_OP(kiln_acos, kiln_tensor *x);
KILN_OP(kiln_atan, kiln_tensor *x);
KILN_OP(kiln_sinh, kiln_tensor *x);
KILN_OP(kiln_cosh, kiln_tensor *x);
KILN_OP(kiln_tanh, kiln_tensor *x);
KILN_OP(kiln_asinh, kiln_tensor *x);
KILN_OP(kiln_acosh, kiln_tensor *x);
KILN_OP(kiln_atanh, kiln_tensor *x);
KILN_OP(kiln_erf, kiln_tensor *x);
KILN_OP(kiln_erfc, kiln_tensor *x);     /* 1 - erf(x), accurate where that is small */
KILN_OP(kiln_sigmoid, kiln_tensor *x);  /* 1 / (1 + exp(-x)) */
KILN_OP(kiln_softplus, kiln_tensor *x); /* log(1 + exp(x)) without overflow */
KILN_OP(kiln_silu, kiln_tensor *x);     /* x * sigmoid(x) */
/* x/2 * (1 + erf(x / sqrt 2)), computed as x/2 * erfc(-x / sqrt 2), so that the tail of negative x is
 * kept; Hendrycks and Gimpel 2016 */
KILN_OP(kiln_gelu, kiln_tensor *x);
/* its tanh form: x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) */
KILN_OP(kiln_gelu_tanh, kiln_tensor *x);

/* bool results. */
KILN_OP(kiln_isnan, kiln_tensor *x); /* ints: false, false, true for these three */
KILN_OP(kiln_isinf, kiln_tensor *x);
KILN_OP(kiln_isfinite, kiln_tensor *x);
KILN_OP(kiln_signbit, kiln_tensor *x);     /* true for -0.0 too; of a computed NaN (-x is one): either */
KILN_OP(kiln_logical_not, kiln_tensor *x); /* any dtype: x == 0 */
/* ints: flips the bits; bool: negation. */
KILN_OP(kiln_bitwise_not, kiln_tensor *x);

/* The same values in another dtype. Float to int: toward zero, saturating, NaN gives 0. Int to int
 * wraps. To bool: x != 0. */
KILN_OP(kiln_cast, kiln_tensor *x, kiln_dtype dtype);

/* ---- elementwise, two operands (broadcast and promoted) ---- */

/* Numbers. Of two bools kiln_add and kiln_maximum are or, kiln_mul and kiln_minimum are and, as in NumPy;
 * the others refuse them (KILN_BAD_DTYPE): bools have no differences. */
KILN_OP(kiln_add, kiln_tensor *a, kiln_tensor *b); /* ints wrap */
KILN_OP(kiln_sub, kiln_tensor *a, kiln_tensor *b);
KILN_OP(kiln_mul, kiln_tensor *a, kiln_tensor *b);
KILN_OP(kiln_div, kiln_tensor *a, kiln_tensor *b); /* true division: ints are divided in f32 */
/* floor(a / b); an int by 0 gives 0. Of infinities as NumPy: an infinite a gives NaN, a finite one by an infinity
 * 0, or -1 where the signs differ; a float by 0 gives a / b. */
KILN_OP(kiln_floor_divide, kiln_tensor *a, kiln_tensor *b);
/* sign of b, as Python's %; an int by 0 gives 0 */
KILN_OP(kiln_remainder, kiln_tensor *a, kiln_tensor *b);
KILN_OP(kiln_fmod, kiln_tensor *a, kiln_tensor *b); /* sign of a, as C's fmod */
/* ints wrap; an int to a negative int gives 1, -1 or 0 */
KILN_OP(kiln_pow, kiln_tensor *a, kiln_tensor *b);
KILN_OP(kiln_maximum, kiln_tensor *a, kiln_tensor *b); /* NaN if either is */
KILN_OP(kiln_minimum, kiln_tensor *a, kiln_tensor *b);

/* Floats; ints and bools are computed in f32. */
KILN_OP(kiln_atan2, kiln_tensor *y, kiln_tensor *x);
KILN_OP(kiln_hypot, kiln_tensor *a, kiln_tensor *b);
KILN_OP(kiln_logaddexp, kiln_tensor *a, kiln_tensor *b); /* log(exp(a) + exp(b)) */
KILN_OP(kiln_copysign, kiln_tensor *a, kiln_tensor *b);  /* |a| with the sign of b; b a NaN: see kiln_signbit */
KILN_OP(kiln_nextafter, kiln_tensor *a, kiln_tensor *b);

/* Comparisons: any dtypes, bool result; false with NaN (kiln_ne: true). An int tensor and a weak int compare
 * as numbers, whatever the tensor's dtype holds: a u8 is less than kiln_int(300), and never equal to it. */
KILN_OP(kiln_eq, kiln_tensor *a, kiln_tensor *b);
KILN_OP(kiln_ne, kiln_tensor *a, kiln_tensor *b);
KILN_OP(kiln_lt, kiln_tensor *a, kiln_tensor *b);
KILN_OP(kiln_le, kiln_tensor *a, kiln_tensor *b);
KILN_OP(kiln_gt, kiln_tensor *a, kiln_tensor *b);
KILN_OP(kiln_ge, kiln_tensor *a, kiln_tensor *b);

/* Logical: any dtypes, taken as x != 0; bool result. */
KILN_OP(kiln_logical_and, kiln_tensor *a, kiln_tensor *b);
KILN_OP(kiln_logical_or, kiln_tensor *a, kiln_tensor *b);
KILN_OP(kiln_logical_xor, kiln_tensor *a, kiln_tensor *b);

/* Bitwise: ints or bools. */
KILN_OP(kiln_bitwise_and, kiln_tensor *a, kiln_tensor *b);
KILN_OP(kiln_bitwise_or, kiln_tensor *a, kiln_tensor *b);
KILN_OP(kiln_bitwise_xor, kiln_tensor *a, kiln_tensor *b);
KILN_OP(kiln_shift_left, kiln_tensor *a, kiln_tensor *b); /* ints; by the width or more: 0 */
/* arithmetic for signed ints; too far: 0 or -1 */
KILN_OP(kiln_shift_right, kiln_tensor *a, kiln_tensor *b);

/* condition (any dtype, taken as != 0) ? a : b; the three broadcast, a and b are promoted. */
KILN_OP(kiln_where, kiln_tensor *condition, kiln_tensor *a, kiln_tensor *b);
/* min(max(x, low), high); the three broadcast. The result has x's dtype: low and high are cast to it (toward
 * zero), and one beyond what it holds becomes its end, which bounds nothing: ints as floats. NaN stays. Numbers. */
KILN_OP(kiln_clamp, kiln_tensor *x, kiln_tensor *low, kiln_tensor *high);

/* ---- reductions ---- */

/*
 * kiln_NAME(x) reduces all axes to rank 0; kiln_NAME_axes(x, axes, keepdims) the named ones, which
 * are dropped or, with keepdims, stay with size 1. KILN_AXES() reduces nothing, KILN_ALL_AXES
 * everything.
 */
/* Of bool and ints: i64 or u64; of f16 and bf16: accumulated in f32. Of no elements: 0 and 1. */
KILN_OP(kiln_sum, kiln_tensor *x);
KILN_OP(kiln_sum_axes, kiln_tensor *x, kiln_axes axes, bool keepdims);
KILN_OP(kiln_prod, kiln_tensor *x);
KILN_OP(kiln_prod_axes, kiln_tensor *x, kiln_axes axes, bool keepdims);
/* NaN if any is; of bools any and all. Of no elements there is none: KILN_BAD_SHAPE, unless the result has no
 * elements either (the maxima of f32[0,3] along axis 1 are f32[0]). */
KILN_OP(kiln_max, kiln_tensor *x);
KILN_OP(kiln_max_axes, kiln_tensor *x, kiln_axes axes, bool keepdims);
KILN_OP(kiln_min, kiln_tensor *x);
KILN_OP(kiln_min_axes, kiln_tensor *x, kiln_axes axes, bool keepdims);
/* Any dtype, taken as != 0; bool. Of no elements: false and true. */
KILN_OP(kiln_any, kiln_tensor *x);
KILN_OP(kiln_any_axes, kiln_tensor *x, kiln_axes axes, bool keepdims);
KILN_OP(kiln_all, kiln_tensor *x);
KILN_OP(kiln_all_axes, kiln_tensor *x, kiln_axes axes, bool keepdims);
/* Means; floats, and ints and bools computed in f32 (f16 and bf16 in f32, rounded once). Of no
 * elements: NaN. Variance and standard deviation are of the deviations from the mean (two passes),
 * divided by n - correction (0: population, 1: sample); n <= correction gives NaN or infinity. */
KILN_OP(kiln_mean, kiln_tensor *x);
KILN_OP(kiln_mean_axes, kiln_tensor *x, kiln_axes axes, bool keepdims);
KILN_OP(kiln_var, kiln_tensor *x, double correction);
KILN_OP(kiln_var_axes, kiln_tensor *x, kiln_axes axes, double correction, bool keepdims);
KILN_OP(kiln_std, kiln_tensor *x, double correction);
KILN_OP(kiln_std_axes, kiln_tensor *x, kiln_axes axes, double correction, bool keepdims);
/* Euclidean: sqrt(sum(x^2)); floats, and ints and bools computed in f32. Of no elements: 0, where its derivative is 0, too. */
KILN_OP(kiln_norm, kiln_tensor *x);
KILN_OP(kiln_norm_axes, kiln_tensor *x, kiln_axes axes, bool keepdims);
/* log(sum(exp(x))) without overflow; -inf where all are -inf or there are none. */
KILN_OP(kiln_logsumexp, kiln_tensor *x);
KILN_OP(kiln_logsumexp_axes, kiln_tensor *x, kiln_axes axes, bool keepdims);
/* i64 index of the first greatest or least element (NaN counts as both), along an axis or, without
 * one, row-major in all of x. Of no elements: KILN_BAD_SHAPE, unless the result has none either. */
KILN_OP(kiln_argmax, kiln_tensor *x);
KILN_OP(kiln_argmax_axis, kiln_tensor *x, int axis, bool keepdims);
KILN_OP(kiln_argmin, kiln_tensor *x);
KILN_OP(kiln_argmin_axis, kiln_tensor *x, int axis, bool keepdims);

/* ---- moving elements (fused into whoever reads them; no copy of their own) ---- */

/* same elements, row-major; one dim may be -1: what remains */
KILN_OP(kiln_reshape, kiln_tensor *x, kiln_shape shape);
KILN_OP(kiln_flatten, kiln_tensor *x); /* to 1-D */
/* output axis i is input axis order[i]; names each axis once (KILN_ALL_AXES is no order) */
KILN_OP(kiln_permute, kiln_tensor *x, kiln_axes order);
/* swaps the last two axes; rank >= 2 */
KILN_OP(kiln_transpose, kiln_tensor *x);
KILN_OP(kiln_swap_axes, kiln_tensor *x, int a, int b);
/* broadcasts to `shape`; -1 keeps a dim of x */
KILN_OP(kiln_expand, kiln_tensor *x, kiln_shape shape);
/* drops axes, each of size 1 (KILN_ALL_AXES: those that are) */
KILN_OP(kiln_squeeze, kiln_tensor *x, kiln_axes axes);
/* a new axis of size 1 that becomes `axis` of the result */
KILN_OP(kiln_unsqueeze, kiln_tensor *x, int axis);
/* Takes ranges of the first n axes, the rest whole: kiln_slice(x, 2, (kiln_range[]){KILN_ALL, {0,
 * 10, 2}}). n <= rank. */
KILN_OP(kiln_slice, kiln_tensor *x, int n, const kiln_range *ranges);
KILN_OP(kiln_slice_axis, kiln_tensor *x, int axis, int64_t start, int64_t stop, int64_t step);
/* x at one index (negative: from the end) of an axis, which is dropped. Out of bounds:
 * KILN_BAD_INDEX, at once. */
KILN_OP(kiln_select, kiln_tensor *x, int axis, int64_t index);
/* reverses the order along the axes */
KILN_OP(kiln_flip, kiln_tensor *x, kiln_axes axes);
/* Elements shifted along an axis by `shift` (either sign), wrapping around. */
KILN_OP(kiln_roll, kiln_tensor *x, int64_t shift, int axis);
/* Adds elements around the first n axes; `value` has rank 0 and is cast to x's dtype as kiln_cast does. Of a
 * weak scalar that an int dtype does not hold exactly (300 or 0.5 for u8) KILN_INVALID; a float dtype takes the nearest value
 * that it has (1e9 in f16: infinity). */
KILN_OP(kiln_pad, kiln_tensor *x, int n, const kiln_padding *paddings, kiln_tensor *value);
/* n >= 1 tensors of one rank, equal in all other dims, one after another along an axis; promoted.
 * */
KILN_OP(kiln_concat, kiln_tensor *const *tensors, int n, int axis);
/* n >= 1 tensors of one shape along a new axis; promoted. */
KILN_OP(kiln_stack, kiln_tensor *const *tensors, int n, int axis);
/* Cuts x along an axis into n parts of the given sizes (which add up), parts[0..n). NULL sizes: n
 * equal parts. On error all parts are NULL and the error is kept, as for functions that return a
 * tensor. */
KILN_API kiln_status kiln_split(kiln_tensor *x, int axis, int n, const int64_t *sizes, kiln_tensor **parts);
KILN_API kiln_status kiln_split_at(kiln_tensor *x, int axis, int n, const int64_t *sizes, kiln_tensor **parts, const char *file, int line);
/* x repeated repeats.dim[i] times along axis i (aligned at the right, missing ones 1), as NumPy's
 * tile. */
KILN_OP(kiln_tile, kiln_tensor *x, kiln_shape repeats);
/* The last two axes with zeros below (triu) or above (tril) the k-th diagonal. */
KILN_OP(kiln_triu, kiln_tensor *x, int64_t k);
KILN_OP(kiln_tril, kiln_tensor *x, int64_t k);

/* How an axis goes on beyond its ends: with zeros; its last element; without it, backwards (a b c | b a); with it, backwards
 * (a b c | c b); from the other end (a b c | a b). NumPy's modes constant, edge, reflect, symmetric, wrap. */
typedef enum kiln_pad_mode { KILN_PAD_ZERO, KILN_PAD_EDGE, KILN_PAD_REFLECT, KILN_PAD_SYMMETRIC, KILN_PAD_WRAP } kiln_pad_mode;
/* Adds elements around the first n axes, one after another, as a mode says. Of an axis too short for what it adds
 * KILN_BAD_SHAPE (reflect: at most its size less 1; symmetric and wrap: its size). */
KILN_OP(kiln_pad_by, kiln_tensor *x, int n, const kiln_padding *paddings, kiln_pad_mode mode);
/* Windows of `size` elements along an axis, each `stride` after the one before, its elements `dilation` apart (all at least 1): the axis
 * becomes the windows, what is in one a new last axis. x[i * stride + t * dilation] at [..., i, ..., t]. An axis shorter than a window:
 * KILN_BAD_SHAPE. */
KILN_OP(kiln_unfold, kiln_tensor *x, int axis, int64_t size, int64_t stride, int64_t dilation);
/* The inverse way: x's last axis has the elements of a window, `axis` the windows of an axis of `length` elements; each place has the sum of
 * what windows have there (PyTorch's fold, along one axis). Numbers; f16 and bf16 are summed up in f32. KILN_BAD_SHAPE: kiln_unfold
 * would have made another number of windows of that length. */
KILN_OP(kiln_fold, kiln_tensor *x, int axis, int64_t length, int64_t stride, int64_t dilation);

/* ---- indexing and sorting ---- */

/*
 * Indices are ints of any dtype; negative ones count from the end. One out of bounds is found when
 * values are computed: the sync point returns KILN_BAD_INDEX and names the function. On a CUDA
 * device, where kiln_eval does not wait for the values, that is at the latest the first that does:
 * kiln_wait, kiln_read, kiln_item, kiln_to... of this tensor or of one computed from it; with
 * sync=1 it is kiln_eval. A kiln_function that assigns waits, and changes nothing then. An index of
 * an element that no value depends on (it is sliced off, or times an integer 0) may go unnoticed.
 */
/* x[..., index, ...] along an axis: the axis is replaced by the axes of `index` (any rank). */
KILN_OP(kiln_take, kiln_tensor *x, kiln_tensor *index, int axis);
/* out[i, j, ...] = x[i, index[i, j, ...], ...]: index has x's rank and broadcasts with it in all
 * other axes. */
KILN_OP(kiln_take_along_axis, kiln_tensor *x, kiln_tensor *index, int axis);
/* x with source written (or added...) where a 1-D index says along an axis: source has x's shape
 * but for that axis, where it has the length of index (it is broadcast to that). Result in x's
 * dtype. The inverse of kiln_take. */
KILN_OP(kiln_scatter, kiln_tensor *x, kiln_tensor *index, kiln_tensor *source, int axis, kiln_scatter_mode mode);
/* The inverse of kiln_take_along_axis: index has x's rank; in the other axes it has x's dims or fewer, and what it does not
 * reach stays as it is (PyTorch's scatter, ONNX's ScatterElements). source is broadcast to index's shape. */
KILN_OP(kiln_scatter_along_axis, kiln_tensor *x, kiln_tensor *index, kiln_tensor *source, int axis, kiln_scatter_mode mode);

/* Stable; NaN comes last in either order. argsort: i64 indices. */
KILN_OP(kiln_sort, kiln_tensor *x, int axis, bool descending);
KILN_OP(kiln_argsort, kiln_tensor *x, int axis, bool descending);
/* The k greatest (or least) along an axis, best first, equal ones in their order, and their i64 indices. NaN is greater
 * than all, as for kiln_max. 0 <= k <= dim. On error both are NULL and the error is kept. */
KILN_API kiln_status kiln_topk(kiln_tensor *x, int64_t k, int axis, bool greatest, kiln_tensor **values, kiln_tensor **indices);
KILN_API kiln_status kiln_topk_at(kiln_tensor *x, int64_t k, int axis, bool greatest, kiln_tensor **values, kiln_tensor **indices,
                                  const char *file, int line);
/* Running sum along an axis. bool and ints: i64 or u64; f16 and bf16 accumulate in f32. */
KILN_OP(kiln_cumsum, kiln_tensor *x, int axis);

/* ---- linear algebra and networks ---- */

/* Matrix product as NumPy's: [..., m, k] x [..., k, n] -> [..., m, n], batch axes broadcast; a 1-D
 * operand is a row (left) or a column (right) and its axis is dropped from the result. Numbers,
 * promoted; f16 and bf16 accumulate in f32. */
KILN_OP(kiln_matmul, kiln_tensor *a, kiln_tensor *b);

/* x weight^T + bias: x [..., in], weight [out, in] (as PyTorch has it), bias [out]; numbers, promoted. The product of f16 or bf16 is
 * accumulated in f32. Without a bias: kiln_matmul(x, kiln_transpose(weight)). */
KILN_OP(kiln_linear, kiln_tensor *x, kiln_tensor *weight, kiln_tensor *bias);

/*
 * Sums of products, as an equation says: a letter for each axis of each tensor, commas between tensors, and behind "->" the
 * letters of the result; what is not among them is summed over.
 *     kiln_einsum("ij,jk->ik", a, b)            a matrix product
 *     kiln_einsum("bqhd,bkhd->bhqk", q, k)      products of all heads of attention
 *     kiln_einsum("ii->i", a)                   the diagonal;  "ii": its sum
 *     kiln_einsum("...ij->...ji", a)            "..." stands for any axes, which broadcast
 * As NumPy's: spaces mean nothing; without "->" the result has the axes of "..." and the letters that occur once, in the order of
 * their character codes; an axis of size 1 fits any size, but not beside another of its own tensor. Of three and more tensors the two come
 * first whose product takes the fewest multiplications in all. Numbers, promoted; f16 and bf16 accumulate in f32, and each product of two
 * is rounded once. Errors: KILN_INVALID for an equation that is none, with the character at fault; KILN_BAD_SHAPE where sizes differ or a
 * product of two tensors has more than 8 axes. In C++ a function, elsewhere a macro of kiln_einsum_list(equation, tensors, n), n >= 1.
 */
KILN_OP(kiln_einsum_list, const char *equation, kiln_tensor *const *tensors, int n);
/* Sums over pairs of axes, axes_a.axis[i] of a with axes_b.axis[i] of b, of one size; the result has a's other axes, then b's. No
 * pairs: all products. Numbers, as in kiln_einsum. */
KILN_OP(kiln_tensordot, kiln_tensor *a, kiln_tensor *b, kiln_axes axes_a, kiln_axes axes_b);
KILN_OP(kiln_outer, kiln_tensor *a, kiln_tensor *b); /* all products of an element of a and one of b: a's axes, then b's */
KILN_OP(kiln_dot, kiln_tensor *a, kiln_tensor *b);   /* the sum of products of two vectors of one length; rank 0 */

/*
 * Linear algebra by LAPACK (docs/linear_algebra.md): matrices in the last two axes, any axes before them. f32 and f64; f16 and bf16 are
 * computed as f32 and rounded, ints and bools become f32. The library is opened when the first of them is computed, on whichever device: on
 * a CUDA device values are brought to the host and back. Where there is none, and where a matrix is what it must not be, the sync point
 * fails (KILN_UNSUPPORTED; KILN_INVALID, with the line, which matrix of a batch, and where in it). Gradients of any order, in both modes;
 * in loops, branches and kiln_map. KILN_BAD_SHAPE: fewer than two axes, or not square.
 */
/* X of A X = B: a [..., n, n], b [n] (one column) or [..., n, k]; axes before them broadcast. A singular matrix is an error. */
KILN_OP(kiln_solve, kiln_tensor *a, kiln_tensor *b);
/* The same of a triangular a, of which one triangle is read: the lower one, or the upper one (KILN_UPPER); of its transpose
 * (KILN_TRANSPOSED); with ones on the diagonal, whatever is there (KILN_UNIT_DIAGONAL). A zero on the diagonal is an error. */
enum { KILN_UPPER = 1, KILN_TRANSPOSED = 2, KILN_UNIT_DIAGONAL = 4 };
KILN_OP(kiln_solve_triangular, kiln_tensor *a, kiln_tensor *b, unsigned flags);
KILN_OP(kiln_inv,
        kiln_tensor *a); /* the inverse; kiln_solve is faster and more accurate where it is multiplied with something. Singular: an error */
KILN_OP(kiln_det, kiln_tensor *a);      /* the determinant, 0 of a singular matrix (whose gradient is an error) */
KILN_OP(kiln_cholesky, kiln_tensor *a); /* L, lower, of a = L L^T: reads the lower triangle of a. Not positive definite: an error */
/* The sign of the determinant (0 of a singular matrix) and the logarithm of its absolute value (-inf), which neither overflow nor underflow. */
KILN_API kiln_status kiln_slogdet(kiln_tensor *a, kiln_tensor **sign, kiln_tensor **log_abs);
KILN_API kiln_status kiln_slogdet_at(kiln_tensor *a, kiln_tensor **sign, kiln_tensor **log_abs, const char *file, int line);
/* a [..., m, n] = Q R with k = min(m, n): Q [..., m, k] with orthonormal columns, R [..., k, n] upper. Signs are LAPACK's. A gradient needs
 * the first k columns to be independent. On error, here and below, all results are NULL and the error is kept. */
KILN_API kiln_status kiln_qr(kiln_tensor *a, kiln_tensor **q, kiln_tensor **r);
KILN_API kiln_status kiln_qr_at(kiln_tensor *a, kiln_tensor **q, kiln_tensor **r, const char *file, int line);
/* Eigenvalues [..., n] of symmetric matrices, ascending, and eigenvectors, the columns of vectors [..., n, n] (NULL: not needed): reads the
 * lower triangle. Vectors have any sign, and where values are equal any basis: only what does not depend on that has a gradient. NaN and
 * infinities are an error. */
KILN_API kiln_status kiln_eigh(kiln_tensor *a, kiln_tensor **values, kiln_tensor **vectors);
KILN_API kiln_status kiln_eigh_at(kiln_tensor *a, kiln_tensor **values, kiln_tensor **vectors, const char *file, int line);
/* a [..., m, n] = U diag(s) V^T with k = min(m, n): u [..., m, k], s [..., k] descending, vt [..., k, n]; u and vt may be NULL: not needed.
 * The same holds. */
KILN_API kiln_status kiln_svd(kiln_tensor *a, kiln_tensor **u, kiln_tensor **s, kiln_tensor **vt);
KILN_API kiln_status kiln_svd_at(kiln_tensor *a, kiln_tensor **u, kiln_tensor **s, kiln_tensor **vt, const char *file, int line);

/*
 * Options. A structure of options is initialised with zeros, as {0} and {.member = ...} do, and zeros mean what the comments say. New
 * members take the place of words that are `reserved`, so a structure never changes its size, and 0 stays what it was: a program built with
 * an older kiln.h runs with a newer library as before. With an older library, a member that it does not know is refused when it is not 0
 * (KILN_INVALID), never overlooked.
 */

#define KILN_MAX_SPATIAL 3

/* Of a convolution; all zeros: PyTorch's defaults. One entry for each spatial axis. */
typedef struct kiln_conv_options {
    int64_t stride[KILN_MAX_SPATIAL], dilation[KILN_MAX_SPATIAL]; /* 0: 1 */
    kiln_padding padding[KILN_MAX_SPATIAL];
    kiln_pad_mode pad_mode;
    bool same;                                /* pads so that there are ceil(size / stride) places, with the odd element behind */
    bool channels_last;                       /* x and the result are [n, ..., channels] */
    bool transposed;                          /* the transposed convolution: w is [in, out / groups, ...], padding is taken away */
    int64_t groups;                           /* 0: 1 */
    int64_t output_padding[KILN_MAX_SPATIAL]; /* transposed: places more, behind; less than stride or dilation */
    kiln_tensor *bias;                        /* NULL: none; else [out], added */
    uint64_t reserved[8];                     /* 0 */
} kiln_conv_options;
/*
 * Convolution along 1 to 3 axes (cross-correlation, as networks have it): x is [n, in, ...] or one image [in, ...], w [out, in / groups,
 * taps...]; the result is [n, out, places...] with (size + padding - dilation * (taps - 1) - 1) / stride + 1 places, rounded down. Numbers,
 * promoted; f16 and bf16 accumulate in f32. options NULL: all zeros. KILN_BAD_SHAPE: channels that do not fit, an axis shorter with its
 * padding than a window; one without elements has no places where windows are one element or `same` is set. Windows of x are read where they
 * lie: nothing of their size is stored.
 */
KILN_OP(kiln_conv, kiln_tensor *x, kiln_tensor *w, const kiln_conv_options *options);

/* Of pooling; all zeros: PyTorch's defaults. */
typedef struct kiln_pool_options {
    int64_t stride[KILN_MAX_SPATIAL];       /* 0: the window's size */
    int64_t dilation[KILN_MAX_SPATIAL];     /* 0: 1 */
    kiln_padding padding[KILN_MAX_SPATIAL]; /* less than a window */
    bool same, channels_last;               /* as for kiln_conv */
    bool ceil;            /* the number of places is rounded up; a window that would begin behind x and its padding is left out */
    bool exclude_padding; /* averages divide by the elements of x in the window; otherwise padding counts, but not what `ceil` adds */
    uint64_t reserved[8]; /* 0 */
} kiln_pool_options;
/* The greatest, or the mean, in windows of x, which is [n, channels, ...] or [channels, ...]; `window` has 1 to 3 sizes. NaN if any is. The
 * maximum: of numbers, padded with the least there is, to which no gradient flows. The mean: floats, ints in f32; f16 and bf16 in f32,
 * rounded once; NaN where `exclude_padding` leaves nothing. */
KILN_OP(kiln_max_pool, kiln_tensor *x, kiln_shape window, const kiln_pool_options *options);
KILN_OP(kiln_avg_pool, kiln_tensor *x, kiln_shape window, const kiln_pool_options *options);
/* The same with windows so that there are `size` places along each axis (1: global pooling): place i of m has elements floor(i n / m)
 * up to ceil((i + 1) n / m). x [n, channels, ...] or [channels, ...], with channels_last [..., channels]. An axis of no elements: KILN_BAD_SHAPE. */
KILN_OP(kiln_adaptive_max_pool, kiln_tensor *x, kiln_shape size, bool channels_last);
KILN_OP(kiln_adaptive_avg_pool, kiln_tensor *x, kiln_shape size, bool channels_last);

typedef enum kiln_interpolation {
    KILN_NEAREST,        /* element floor(i n / m) for place i of m */
    KILN_NEAREST_CENTER, /* floor((i + 1/2) n / m); PyTorch's nearest-exact */
    KILN_LINEAR,         /* between two elements along each axis */
    KILN_CUBIC           /* between four (Keys 1981, with -0.75); what would be beyond an end is the element at the end */
} kiln_interpolation;

/* Of interpolation; all zeros: PyTorch's defaults. */
typedef struct kiln_interpolate_options {
    kiln_interpolation mode;
    bool
        align_corners; /* linear, cubic: the first and last places are the first and last elements; else place i is at (i + 1/2) n / m - 1/2 */
    bool channels_last;             /* as for kiln_conv */
    double scale[KILN_MAX_SPATIAL]; /* 0: m / n; else this number in its place (PyTorch's scale_factor), where m is n, too */
    uint64_t reserved[8];           /* 0 */
} kiln_interpolate_options;
/* x, [n, channels, ...] or [channels, ...], with `size` places (1 to 3 sizes, each at least 1) along its spatial axes. Any dtype for the
 * nearest, floats (ints in f32; f16 and bf16 in f32, rounded once) for the others. Places are computed exactly, in integers or f64. */
KILN_OP(kiln_interpolate, kiln_tensor *x, kiln_shape size, const kiln_interpolate_options *options);

/* Of attention; all zeros: PyTorch's defaults. */
typedef struct kiln_attention_options {
    double scale;      /* of scores; 0: 1 / sqrt(d) */
    double softcap;    /* c: a scaled score s becomes c tanh(s / c), before any mask; 0: none */
    double dropout;    /* a weight is 0 with this probability, as in kiln_dropout; 0 <= dropout < 1 */
    kiln_tensor *mask; /* NULL: none; else bools (true: seen) or floats (added to scores), which broadcast to [..., heads, queries, keys] */
    kiln_tensor *lengths; /* NULL: all keys count; else ints, that broadcast to q's axes before its last three: only so many do */
    bool causal;          /* a query sees no key behind its own place; `after` is 0 then (KILN_INVALID) */
    bool from_end;        /* the last query's place is the last key's (of those that count), as in decoding; else the first's the first's */
    int64_t before, after; /* a window: so many keys before a query's place, or behind it, are the farthest that it sees; 0: no bound */
    uint64_t reserved[8];  /* 0 */
} kiln_attention_options;
/*
 * Attention (Vaswani et al. 2017): the sum of rows of v with weights softmax(scale q k^T) along keys. q is [..., heads, queries, d], k [...,
 * kv heads, keys, d], v [..., kv heads, keys, e], of one rank from 2 (no heads) to 7; the result is [..., heads, queries, e]. Axes before the
 * heads broadcast. heads is a multiple of kv heads: query head h reads head h / (heads / kv heads), which is not repeated in memory. All
 * conditions of the options hold together. A query that sees no key gives zeros (as PyTorch since 2.5), and its gradients are zeros;
 * k where nobody sees it may be anything, v there must be finite. Floats, promoted (ints and bools in f32); f16 and bf16 are computed in f32
 * throughout and rounded once at the end; the mask has no part in the result's dtype. On a CPU scores are in memory for some rows at a time
 * only (option bands; in a gradient where all of them would take 16 MiB or more), on a CUDA device all of them are: memory grows with queries
 * times keys there. options NULL: all zeros.
 */
KILN_OP(kiln_attention, kiln_tensor *q, kiln_tensor *k, kiln_tensor *v, const kiln_attention_options *options);
/*
 * Rotary embedding (Su et al. 2021): pairs of elements along the last axis of x turned by angles, which broadcast to [..., pairs]; with fewer
 * than d / 2 pairs the rest of d stays as it is. A pair is elements (i, i + pairs), or with interleaved (2i, 2i + 1). Floats; f16 and bf16 in
 * f32, rounded once; angles have no part in the result's dtype, and f64 ones are not rounded before their sine. For x [..., n, d]:
 *     kiln_tensor *frequency = kiln_pow(10000.0, kiln_mul(kiln_arange(KILN_F32, 0, d, 2), -1.0 / d));
 *     x = kiln_rotary(x, kiln_outer(kiln_arange(KILN_F32, first, first + n, 1), frequency), false);
 */
KILN_OP(kiln_rotary, kiln_tensor *x, kiln_tensor *angles, bool interleaved);

/* Floats (ints and bools in f32); f16 and bf16 are computed in f32 inside and rounded once at the
 * end. */
KILN_OP(kiln_softmax, kiln_tensor *x, int axis);     /* exp(x - max) / sum(exp(x - max)) */
KILN_OP(kiln_log_softmax, kiln_tensor *x, int axis); /* x - max - log(sum(exp(x - max))) */
/* (x - mean) / sqrt(variance + eps), mean and (population) variance over the axes. eps is finite and at least 0, here
 * and in the next two (KILN_INVALID). */
KILN_OP(kiln_normalize, kiln_tensor *x, kiln_axes axes, double eps);
/* kiln_normalize over the last axis, times weight plus bias, both broadcast with x (Ba et al.
 * 2016). */
KILN_OP(kiln_layer_norm, kiln_tensor *x, kiln_tensor *weight, kiln_tensor *bias, double eps);
/* x / sqrt(mean(x^2) + eps) over the last axis, times weight (Zhang and Sennrich 2019). */
KILN_OP(kiln_rms_norm, kiln_tensor *x, kiln_tensor *weight, double eps);
/* Of batch and group normalisation; all zeros: PyTorch's defaults. */
typedef struct kiln_norm_options {
    kiln_tensor *weight, *bias; /* [channels]; NULL: 1, 0 */
    double eps;                 /* 0: 1e-5 */
    double momentum;            /* of kiln_batch_norm; 0: 0.1 */
    bool training;              /* of kiln_batch_norm: statistics of x, not the running ones */
    bool channels_last;         /* x is [n, ..., channels] */
    uint64_t reserved[8];       /* 0 */
} kiln_norm_options;
/*
 * (x - mean) / sqrt(variance + eps) weight + bias for each channel of x, [n, channels, ...] (Ioffe and Szegedy 2015), with the running mean
 * and variance, [channels], floats. With `training` mean and population variance are those of x over all axes but the channels', of which
 * there are at least two elements (KILN_BAD_SHAPE), and unless both running tensors are NULL, each is assigned (kiln_assign)
 * (1 - momentum) running + momentum new, with the variance that divides by n - 1; no gradient flows there. Floats (ints in f32); f16
 * and bf16 in f32, rounded once; running tensors have no part in the result's dtype, and keep theirs.
 */
KILN_OP(kiln_batch_norm, kiln_tensor *x, kiln_tensor *running_mean, kiln_tensor *running_var, const kiln_norm_options *options);
/* The same with mean and population variance of each image and each of `groups` groups of channels (Wu and He 2018): 1 is a layer
 * normalisation over all but n; as many as channels an instance normalisation. */
KILN_OP(kiln_group_norm, kiln_tensor *x, int64_t groups, const kiln_norm_options *options);
/* Per example: -log_softmax(logits)[label], classes along the last axis. labels: ints, shape of
 * logits without its last axis. kiln_mean of the result is the usual training loss. */
KILN_OP(kiln_cross_entropy, kiln_tensor *logits, kiln_tensor *labels);
/* Per element: -(t log p + (1 - t) log(1 - p)), p = sigmoid(logits), t = targets, of the same shape, 0 to 1 (bools and ints, too);
 * computed from the logits, without overflow or loss; a logit of infinity that is right costs 0. */
KILN_OP(kiln_binary_cross_entropy, kiln_tensor *logits, kiln_tensor *targets);
/* The mean of (prediction - target)^2, of rank 0. Both have one shape: nothing is broadcast. Of no elements: NaN. */
KILN_OP(kiln_mse, kiln_tensor *prediction, kiln_tensor *target);
/* labels' shape plus an axis of `classes`: 1 at the label, 0 elsewhere. Labels are indices (see kiln_take): ints, negative ones
 * count from the end, those out of bounds are KILN_BAD_INDEX at the sync point. */
KILN_OP(kiln_one_hot, kiln_tensor *labels, int64_t classes, kiln_dtype dtype);
/* Each element is 0 with probability p, 0 <= p < 1, else x / (1 - p): for training (Srivastava et al. 2014); otherwise leave it out.
 * Draws one element of the process's stream for each of x. (A run that is to be resumed says kiln_seed before each step.) */
KILN_OP(kiln_dropout, kiln_tensor *x, double p);

/* ---- devices ---- */

/* Devices are named "cpu", "cuda:0", "cuda:1"... ("cuda" is the first; "auto" a CUDA device if one
 * can be used, else the CPU). A CUDA device needs the NVIDIA driver, nothing else.
 *
 * What lies on the device "meta" has a dtype and a shape and no values: it takes no memory and nothing is computed, whatever its size. Recording,
 * gradients, kiln_assign, functions and errors are as elsewhere; a kiln_function is recorded anew by each call; kiln_explain tells launches and
 * memory of what a CPU would run. kiln_from does not look at its data there (NULL is allowed), files give shapes. A sync point is KILN_INVALID.
 *
 * A value lies where its operands lie; operands on two devices are an error (KILN_DEVICE) that
 * kiln_to mends. What has no operands with data (zeros, ranges, random numbers) goes to whoever
 * uses it, or to the thread's current device. kiln_from and what loads files copy to the
 * current device; memory that is wrapped lies on the CPU.
 *
 * Calls that use a CUDA device make its primary context current in the calling thread and leave it
 * so: a program that works with contexts of its own sets them again. */

/* The current device of this thread, for values that are nowhere yet. NULL: what the option
 * `device` says. KILN_INVALID for no such name or number, else why it cannot be used: KILN_DEVICE,
 * KILN_UNSUPPORTED (the GPU or its driver is too old), KILN_OUT_OF_MEMORY. */
KILN_SYNC(kiln_set_device, const char *name);
/* Where x lies or will lie, as text (16 bytes are enough). Not a sync point. */
KILN_SYNC(kiln_device_of, const kiln_tensor *x, char *buffer, size_t size);
/* x on another device: x itself where it lies there already or will, else x is computed (a sync
 * point) and copied. What lies nowhere yet is computed too, and lies there from then on. A weak
 * scalar stays weak. To "meta" only its dtype and shape go: no sync point; from there nothing does (KILN_INVALID). */
KILN_OP(kiln_to, kiln_tensor *x, const char *device);
/* Computes x and waits until its values are there. */
KILN_SYNC(kiln_wait, kiln_tensor *x);

/* ---- sync points ---- */

/* Computes x (and everything it needs). On a CUDA device it returns once the work is queued; reading
 * waits for it, and then tells of an index that was out of bounds (KILN_BAD_INDEX). */
KILN_SYNC(kiln_eval, kiln_tensor *x);
/* Computes several together: shared work is done once. */
KILN_SYNC(kiln_eval_many, kiln_tensor *const *tensors, int n);
/* The same in a thread of kiln's, in the order of the calls: returns once it is queued. Whoever asks for a value (kiln_wait, kiln_read,
 * kiln_eval..., also of what is computed from it) waits for it, or computes it if that thread has not begun; kiln_is_evaluated says whether
 * it is there. Until then it is as if another thread used the tensors ("Threads" above). What nobody holds any more when its turn comes is
 * not computed.
 *
 * A failure (an index out of bounds, no memory) is that of the first sync point that asks for the value: its status, and a message that names
 * this call, too. Options count as they are when it is computed; kiln_last_call does not tell of it.
 *
 * It is computed before the call returns under a mode (kiln_..._push), on a CUDA device (as kiln_eval, which queues), in one of several
 * ranks, and when 64 calls are waiting. */
KILN_SYNC(kiln_eval_async, kiln_tensor *x);
KILN_SYNC(kiln_eval_many_async, kiln_tensor *const *tensors, int n);
/* Copies all elements, row-major, to `data`. `dtype` must be x's and `bytes` exactly numel *
 * kiln_dtype_size. */
KILN_SYNC(kiln_read, kiln_tensor *x, kiln_dtype dtype, void *data, size_t bytes);
/* The only element of x (any shape of one element) as a double, or as an int64 (floats toward zero,
 * saturating). */
KILN_SYNC(kiln_item, kiln_tensor *x, double *value);
KILN_SYNC(kiln_item_int, kiln_tensor *x, int64_t *value);
/* The elements where they lie, row-major, valid as long as x is and until x is assigned; NULL for
 * an empty tensor is possible. x must lie on the CPU: of one on a GPU it is an error (KILN_DEVICE)
 * that says how to get at it, and *data is NULL. Where x is strided it is made dense: not while
 * another thread uses it. */
KILN_SYNC(kiln_data, kiln_tensor *x, const void **data);

/* Prints x to stdout as NumPy (2.4) prints an array: at most 8 digits after the point, more than
 * 1000 elements abbreviated. */
KILN_SYNC(kiln_print, kiln_tensor *x);
/* The same text into a buffer of `size` bytes (cut, always NUL-terminated when size > 0); *needed
 * (may be NULL) gets its length without the NUL. */
KILN_SYNC(kiln_format, kiln_tensor *x, char *buffer, size_t size, size_t *needed);

/* ---- files ---- */

/*
 * Files are not trusted: what they say of themselves is checked before it is believed, and nothing is half loaded. Errors name the
 * file, the place in it, what is wrong and what to do: KILN_IO, KILN_BAD_FORMAT (damaged, or something else), KILN_UNSUPPORTED
 * (sensible, but not for kiln), KILN_OVERFLOW.
 *
 * Saving writes a temporary file in the same folder, brings it to the disk and renames it, so whoever looks, after a crash too, finds
 * the old file or the new one. Links stay links. A pipe or a device is written as it is.
 */

/* NumPy's .npy files, of one array. Saving writes format 1.0, C order, little-endian (bf16, which NumPy has no code for, is
 * KILN_UNSUPPORTED: kiln_save_safetensors keeps it). Loading takes formats 1 to 3, C and Fortran order and either byte order, all
 * dtypes but bf16, and copies to the current device. */
KILN_SYNC(kiln_save_npy, kiln_tensor *x, const char *path);
KILN_OP(kiln_load_npy, const char *path);

/* NumPy's .npz files, of several arrays by name: kiln_load_npz opens one, see kiln_file below; elements are read, unpacked and checked when
 * a tensor is asked for, and copied to the current device. Members that are no .npy file are left out. kiln_save_npz computes n tensors
 * together and saves them, stored or deflated; no two names are equal, none leads out of a folder (KILN_INVALID); dtypes as for
 * kiln_save_npy. The same tensors are the same bytes. */
KILN_API kiln_file *kiln_load_npz(const char *path);
KILN_API kiln_file *kiln_load_npz_at(const char *path, const char *file, int line);

/* What a file says of one of its tensors. */
typedef struct kiln_file_entry {
    const char *name; /* UTF-8; valid until the file is freed */
    kiln_dtype dtype;
    kiln_shape shape;
} kiln_file_entry;
/* A tensor with its name, to be saved. */
typedef struct kiln_named {
    const char *name; /* UTF-8; no two are equal */
    kiln_tensor *tensor;
} kiln_named;
/* A text with its name, both UTF-8. */
typedef struct kiln_metadata {
    const char *key, *value;
} kiln_metadata;

/*
 *     kiln_file *model = kiln_load_safetensors("model.safetensors");
 *     kiln_tensor *weight = kiln_file_tensor(model, "encoder.weight");
 *     kiln_file_free(model);                                                    weight stays
 *
 * Opens a safetensors file, or a model in several files by its index (path ends in .json, as model.safetensors.index.json does; the
 * files lie in the same folder, and the tensors are those that the index names). Everything but the elements is read and checked; the
 * elements are mapped, so a file of any size opens at once. All dtypes of kiln; what it does not have (8-bit floats and smaller,
 * complex) is KILN_UNSUPPORTED, by name. NULL: an error is kept. Replacing the file while it is open is fine (which is what saving
 * does); one who writes into it or cuts it short changes or breaks the tensors.
 */
KILN_API kiln_file *kiln_load_safetensors(const char *path);
KILN_API kiln_file *kiln_load_safetensors_at(const char *path, const char *file, int line);
/* Closes it. Tensors that were made of it live on, by themselves. NULL is allowed. Not while another
 * thread uses the file. */
KILN_API void kiln_file_free(kiln_file *file);
KILN_API int kiln_file_count(const kiln_file *file); /* how many tensors it has; of NULL: -1 */
/* The i-th, in the file's order; name NULL and rank -1 where there is none. Any thread may ask, and take tensors, at any time. */
KILN_API kiln_file_entry kiln_file_info(const kiln_file *file, int i);
KILN_API int kiln_file_find(const kiln_file *file, const char *name); /* which one has that name; -1: none */
/* The i-th text that the file carries beside its tensors; key NULL past the last one. */
KILN_API kiln_metadata kiln_file_metadata(const kiln_file *file, int i);
/* the value of that key; NULL: there is none; valid until the file is freed */
KILN_API const char *kiln_file_metadata_value(const kiln_file *file, const char *key);
/* One tensor by name (KILN_INVALID: there is none), evaluated. On the CPU it lies in the mapping: nothing is read before it is used,
 * nothing is copied, and it is never overwritten, as memory that was wrapped. Elements that are not aligned and bools other than 0
 * and 1 are copied. With a CUDA device as the current one they are copied there. (.npz files: always a copy.) */
KILN_OP(kiln_file_tensor, const kiln_file *from, const char *name);
/* All of them, in the file's order: tensors[0..kiln_file_count). On error all are NULL and the error is kept. */
KILN_API kiln_status kiln_file_tensors(const kiln_file *from, kiln_tensor **tensors);
KILN_API kiln_status kiln_file_tensors_at(const kiln_file *from, kiln_tensor **tensors, const char *file, int line);

KILN_SYNC(kiln_save_npz, const char *path, int n, const kiln_named *tensors, bool compressed);
/* Computes n tensors together and saves them as a safetensors file, with n_metadata texts (the list may be NULL for none). No two
 * names and no two keys are equal, none is "__metadata__" (KILN_INVALID). Elements begin at a multiple of 64 bytes and are aligned. */
KILN_SYNC(kiln_save_safetensors, const char *path, int n, const kiln_named *tensors, int n_metadata, const kiln_metadata *metadata);

/* ---- which sizes are compiled in ---- */

/*
 * Sizes are compiled in at first; one that is met with a second value becomes an argument of the
 * next program (option `dynamic`). These say it beforehand, for an axis of a tensor wherever it is
 * an input, and where it is computed inside a graph: dynamic from the first compile on, its size
 * promised to be min to max (0 and INT64_MAX promise nothing); or static: each size has programs of
 * its own. The mark stays with this value: a tensor that kiln_assign gives another value has no
 * mark. The promise is checked here and now, and programs rely on it without a guard: on a size that
 * is not 0, on one that is a single number, on indices that fit 32 bits on a GPU. So each promise has
 * programs of its own. Marks say nothing about results. Errors: no such axis (KILN_BAD_SHAPE), a size outside the promise (KILN_BAD_SHAPE),
 * min > max or an axis marked the other way (KILN_INVALID). Two marks that contradict each other in
 * a graph, because its ops need the sizes equal, fail the sync point (KILN_INVALID), naming both
 * places, in every mode (mode=eager: the op).
 */
KILN_SYNC(kiln_mark_dynamic, kiln_tensor *x, int axis, int64_t min, int64_t max);
KILN_SYNC(kiln_mark_static, kiln_tensor *x, int axis);
/*
 * Says that x's values stay as they are, as a model's weights do: what a graph makes of such tensors alone (a weight transposed, put
 * together of parts, dequantised, with another one folded in, or laid out as a product reads it) is then computed at the first evaluation,
 * kept, and read by the later ones, of other graphs as well. It is a promise about memory that kiln_wrap or kiln_from_dlpack borrowed, which
 * has to stay unchanged anyway; kiln_touch, after it changed, takes what was kept back, and x stays marked. Nothing else can make a
 * kept value wrong: kiln_assign gives a tensor another value, which has no mark, and a marked value is not overwritten in place.
 *
 * What is kept goes when the last of the tensors that it was made of goes, when memory runs out, and, what was not read for longest
 * first, when all of it on a device takes more than option `constant_bytes`. KILN_LOG=memory tells what is kept, how large it is, and
 * what was not worth it: an operation or two at each element, and all that would be larger in memory than what it is made of, is computed where
 * it is read. Results are the same with and without; one more program is compiled for a graph with other marks. x need not be
 * computed yet; inside a graph, where it is no input of it, the mark says nothing.
 */
KILN_SYNC(kiln_mark_constant, kiln_tensor *x);

/* ---- changing state, tracing, looking inside ---- */

/* Makes handle p mean `value`, of p's dtype (weak scalars are cast) and shape. Recorded, like
 * everything: computed at the next sync point; when nothing else needs p's old contents they are
 * overwritten in place. Something else needs them while another handle means them, or while a value
 * computed from them is recorded and not computed yet and has a handle: a scope that is open still
 * owns the handles of all intermediates made in it. So a loop that opens a scope for each step, and
 * ends it before the sync point, overwrites; KILN_LOG=memory tells for each result whether it did,
 * and why not. Memory that was wrapped, or handed out by kiln_data, is never overwritten. Other
 * handles keep their values. Not while another thread uses p. */
KILN_API kiln_status kiln_assign(kiln_tensor *p, kiln_tensor *value);
KILN_API kiln_status kiln_assign_at(kiln_tensor *p, kiln_tensor *value, const char *file, int line);

/*
 * Gradients are recorded like anything else, from what is recorded and not computed yet: forward and backward pass are one graph at
 * the sync point. A *parameter* is a handle marked by kiln_param; gradients are asked for with respect to parameters and values that are
 * computed from some. A step of gradient descent:
 *
 *     kiln_tensor *w = kiln_param(kiln_retain(kiln_zeros(KILN_F32, KILN_SHAPE(10))));      once
 *     kiln_tensor *loss = kiln_mean(kiln_square(kiln_sub(kiln_matmul(x, w), y))), *g;      each step
 *     if (kiln_grad(loss, &w, 1, &g) == KILN_OK)
 *         (void)kiln_assign(w, kiln_sub(w, kiln_mul(kiln_scalar(0.1), g)));
 *     kiln_status status = kiln_eval(w);
 *
 * A value that was computed (by printing it, say) forgets what it was made of. A gradient that would have to go through it is an error
 * that names it (KILN_INVALID), never a zero: take gradients before. Through ints and bools nothing flows, and through kiln_to
 * and kiln_nextafter nothing can (KILN_UNSUPPORTED). Where a derivative does not exist: relu and abs 0 at 0; maximum and minimum, of
 * two, along axes or in windows, share evenly among equals; std, hypot 0 at 0; sqrt infinite at 0. A zero never becomes NaN by meeting an
 * infinity or NaN, so that what kiln_where does not choose does no harm. f16 and bf16 are computed in f32 and rounded once.
 * Gradients of gradients are as good as any (of kiln_prod with three zeros up to the second). On error results are NULL and the error is kept.
 *
 * A sync point (kiln_item(loss)) that needs values which recorded gradients need as well computes with what it was asked for what this thread
 * assigned since; where none of that uses the gradients, the gradients that some handle still means. A failure of these is none of the
 * sync point's. KILN_JOINT=0 turns it off.
 */

/* Until its end, values that this thread records keep how they were made when they are computed, so that gradients may be taken
 * later; their memory is kept as well, and not overwritten (kiln_kept_bytes tells how much). A kiln_function that is called runs as if its
 * body stood there. Recordings nest as scopes do; one that is left open ends with the thread. NULL is allowed as for scopes. */
KILN_API kiln_recording *kiln_recording_begin(void);
KILN_API void kiln_recording_end(kiln_recording *recording);
/* Marks handle x as a parameter, from now on, and returns it; kiln_assign keeps the mark. Of a float that is not weak; else NULL
 * (KILN_BAD_DTYPE, KILN_INVALID). Inputs of a kiln_function are parameters inside. Not while another thread uses x. */
KILN_OP(kiln_param, kiln_tensor *x);
/* The same value, a constant to gradients. */
KILN_OP(kiln_stop_gradient, kiln_tensor *x);
/* grads[i] = d loss / d params[i], of dtype and shape of params[i]; zeros where loss does not depend on it. loss: a float of one
 * element. params[i] that was assigned after loss was recorded: KILN_INVALID. */
KILN_API kiln_status kiln_grad(kiln_tensor *loss, kiln_tensor *const *params, int n, kiln_tensor **grads);
KILN_API kiln_status kiln_grad_at(kiln_tensor *loss, kiln_tensor *const *params, int n, kiln_tensor **grads, const char *file, int line);

enum {
    KILN_GRAD_CONNECTED = 1 /* KILN_INVALID, instead of zeros, where nothing depends on what was asked for */
};

/* Reverse mode: grads[i] = sum over k of cotangents[k]^T d outputs[k] / d inputs[i]. A cotangent has its output's dtype and shape; a weak
 * scalar is spread to it. flags: 0 or KILN_GRAD_CONNECTED. */
KILN_API kiln_status kiln_vjp(int n_out, kiln_tensor *const *outputs, kiln_tensor *const *cotangents, int n_in, kiln_tensor *const *inputs,
                              unsigned flags, kiln_tensor **grads);
KILN_API kiln_status kiln_vjp_at(int n_out, kiln_tensor *const *outputs, kiln_tensor *const *cotangents, int n_in,
                                 kiln_tensor *const *inputs, unsigned flags, kiln_tensor **grads, const char *file, int line);
/* Forward mode: out_tangents[k] = sum over i of d outputs[k] / d inputs[i] tangents[i]. Likewise. */
KILN_API kiln_status kiln_jvp(int n_in, kiln_tensor *const *inputs, kiln_tensor *const *tangents, int n_out, kiln_tensor *const *outputs,
                              unsigned flags, kiln_tensor **out_tangents);
KILN_API kiln_status kiln_jvp_at(int n_in, kiln_tensor *const *inputs, kiln_tensor *const *tangents, int n_out, kiln_tensor *const *outputs,
                                 unsigned flags, kiln_tensor **out_tangents, const char *file, int line);

/*
 * Modes: layers of a thread that see each op that is recorded, from the public function at hand down: the one that was pushed last sees it
 * first, and records what it gives for it by those below. While one is at work it is not asked itself, and neither are those above it. Each belongs
 * to the thread until it is popped, the innermost first (else KILN_INVALID, and nothing is popped; NULL is allowed); one that a kiln_function
 * or a function of kiln_checkpoint leaves is popped when that returns, all others when the thread ends.
 *
 * kiln_autocast_push: products (kiln_matmul, kiln_linear, kiln_conv, kiln_attention, ...) of f32 are computed in `low`, KILN_BF16 or KILN_F16, and so
 * are their gradients: operands are rounded to it, sums run in f32, results are rounded to it and are f32 again, so tensors have the dtypes
 * that they have without (PyTorch's autocast gives results in `low`). f64 and ints stay. KILN_F32: as if there were none, inside. With KILN_F16 scale
 * the loss (kiln_scaler_new). kiln_functions are traced for each.
 * kiln_finite_check_push: the sync point that computes what was recorded under it fails (KILN_INVALID) where an op made a NaN or an
 * infinity of finite operands, and names the first such op, forward or backward: "kiln_log (net.c:42) made a NaN of finite operands, first
 * at [3,17]". The sync point comes before the layer is popped. Values are there nevertheless, and the next sync point looks at what is
 * recorded after it; with mode=eager the op itself fails, and has none. What is recorded is computed, be it asked for or not. Kernels stay
 * fused; on a CUDA device the values in between are computed once more for it. Functions of loops and branches that are recorded under it
 * are looked into (not the condition of a kiln_while): "..., in iteration 7 of kiln_scan (net.c:50)". Not inside of a kiln_function
 * (KILN_INVALID).
 * kiln_log_ops_push: each op as a line of the log, topic "ops": `%7 = matmul f32[8,4] f32[4,2] -> f32[8,2] kiln_linear net.c:31`.
 *
 * kiln_mode_push: a layer of your own. op(call, user) gives the result of one op: of the dtype and shape that the op has (KILN_BAD_DTYPE,
 * KILN_BAD_SHAPE at the public function's line); NULL with a kept error fails that function. kiln_mode_next(call, in) records this op on
 * these operands, by the layers below, as often as you like; other recording functions do as well. An op is a primitive of kiln's (names as
 * in KILN_LOG=graph), not a public function, whose name comes along: kiln_softmax is made of several. Numbers (kiln_scalar and literals)
 * are not seen. call and what it points to are valid during the callback; what the callback recorded and did not give is released after it.
 * Under such a layer (and kiln_log_ops_push, kiln_finite_check_push) a kiln_function runs as if its body stood there. end(user) is called
 * when it is popped; it may be NULL. The callback must not pop layers that it did not push, nor throw.
 */
typedef struct kiln_mode kiln_mode;
typedef struct kiln_op_call {
    const char *op;       /* "matmul" */
    const char *function; /* the public function that records it: "kiln_linear", "gradient of kiln_linear" */
    const char *file;     /* where; NULL: unknown */
    int line, n_in;
    kiln_tensor *const *in; /* operands, of the dtypes and shapes that the op needs */
} kiln_op_call;
typedef kiln_tensor *kiln_mode_op(const kiln_op_call *call, void *user);
KILN_API kiln_mode *kiln_autocast_push(kiln_dtype low); /* NULL: an error is kept; likewise below */
KILN_API kiln_mode *kiln_autocast_push_at(kiln_dtype low, const char *file, int line);
KILN_API kiln_mode *kiln_finite_check_push(void);
KILN_API kiln_mode *kiln_log_ops_push(void);
KILN_API kiln_mode *kiln_mode_push(kiln_mode_op *op, void (*end)(void *user), void *user);
KILN_API kiln_mode *kiln_mode_push_at(kiln_mode_op *op, void (*end)(void *user), void *user, const char *file, int line);
KILN_API kiln_tensor *kiln_mode_next(const kiln_op_call *call, kiln_tensor *const *in);
KILN_API kiln_status kiln_mode_pop(kiln_mode *mode); /* an error is kept */
KILN_API kiln_status kiln_mode_pop_at(kiln_mode *mode, const char *file, int line);

/*
 * Rules and passes of one's own: what the compiler does with a graph before it makes kernels of it (docs/passes.md). They belong to the process and
 * concern what is compiled from then on, in any thread; add them at the start. What there is is part of the key of each program, in memory and on
 * disk: no program that was made without a rule is used once it is there, and when it is taken away those made before are found again. Only compiled
 * programs know of them: mode=interp does not, nor does the interpreter where a compile failed; in mode=eager a graph is one op. A rule or a pass
 * that changes what is computed is yours to know of.
 *
 * kiln_rule_add("mul_one", "(mul x 1)", "x", KILN_RULE_EXACT): wherever the pattern is found in a graph, or in the body of a loop or branch, the
 * replacement is computed instead. Both are expressions of elementwise ops (`kiln ops` lists them; no cast) over x, y and z (any value, the same
 * letter the same value), c (a bool one) and decimals, which stand for a number of that very value in the dtype at hand. Operands of add, mul and
 * the like match in either order. Rules see what was recorded with constants to the right (and no rule of kiln's applied yet); the first that fits
 * is applied, and rules are tried on what comes out. A rule for which x, y or z have a dtype that its condition excludes is not applied:
 *     KILN_RULE_EXACT     the same bits for all values
 *     KILN_RULE_INT_ONLY  for integers and bools alone
 *     KILN_RULE_FAST      floats: with math=fast alone; another rounding, but the same NaN, infinities and zeros
 *     KILN_RULE_FINITE    floats: with math=fast and finite=1 alone
 *     or'ed with          KILN_RULE_FLOATS, KILN_RULE_INTS or KILN_RULE_BOOLS: for these alone
 * A number that decided is a fact: another value is another program. KILN_INVALID: what is wrong with the texts, and where; a name that is taken, or
 * no name (letters, digits, `_`, `.`, `-`); a rule that would never be applied, or has no end ((add x y) -> (add y x), by itself or with others).
 * With the option check=rules the pattern and the replacement are computed for special and random values of each dtype, and a rule that does not
 * keep its word is refused with the values that show it. The most rules are 256, the most passes 64.
 */
enum {
    KILN_RULE_EXACT = 0,
    KILN_RULE_INT_ONLY = 1,
    KILN_RULE_FAST = 2,
    KILN_RULE_FINITE = 3,
    KILN_RULE_FLOATS = 0x10,
    KILN_RULE_INTS = 0x20,
    KILN_RULE_BOOLS = 0x30
};
KILN_SYNC(kiln_rule_add, const char *name, const char *pattern, const char *replacement, unsigned condition);
KILN_SYNC(kiln_rule_remove, const char *name);

/*
 * A pass sees each graph that is compiled, and behind it each body in it (kiln_graph_depth: 0 for the graph), through a view. callback(graph, user)
 * looks, builds and replaces; KILN_OK: that is done; another status, best of kiln_graph_fail(graph, "why"), or anything that does not fit makes the
 * compile fail with the pass's name, which costs a warning and the interpreter's time (with strict=1 an error), never the program. It runs in
 * whichever thread compiles, several at a time if several do, and must give the same for the same graph: then `version`, to be changed whenever what
 * it does changes, stands for it in keys. It may call the functions below, and none that computes (KILN_INVALID); it must not throw, nor jump out.
 * `after`: NULL, before all; or a pass of kiln's: canonicalise, fold, user_rules, rules, cse (KILN_LOG=passes shows them with the number of nodes
 * before and after each, and what yours built and replaced); or one of yours. It runs when a program is compiled, not when it comes from the cache.
 * `user` must stay until kiln_pass_remove returns, which waits for calls in progress; not inside of a pass (KILN_INVALID).
 *
 * Nodes have numbers: those of the graph, 0 to kiln_graph_nodes(graph) - 1, each behind its inputs; what the pass builds stands behind those and is
 * not counted. A number that is no node's is an error of the pass, KILN_NO_NODE gives KILN_NO_NODE, false, 0 or "". Texts live as long as the call.
 * A pass is right for every size and number that its program will serve; so what it learns of them is a fact:
 *     kiln_node_size      the size of an axis (-1: the last), and the program is for that size alone; false: it serves several, do without
 *     kiln_node_number    the value of a number (repeated or not), likewise
 *     kiln_node_size_now  that of the call at hand, for reports; it must not decide what is computed
 * kiln_node_op is the name of the op as in KILN_LOG=graph ("input", "scalar", "mul", "loop", "result"); kiln_node_axes writes the axes it is about
 * (of a permute: the order), and returns how many; kiln_node_attributes is all of its structure as text ("axes(0 2)"), kiln_node_text the node as in
 * the log. Users of a node are those that are still needed, and what was built.
 *
 * kiln_graph_match: does the expression of a rule fit there? vars: what x, y, z and c are. kiln_graph_build makes nodes of one; kiln_graph_op makes
 * one of any op but leaves, loops and results, by its name and attributes as text: "reduce_sum axes(1)", "cast f16", "permute perm(1 0)"; sizes in
 * it are plain numbers. Operands of elementwise ops are brought to one shape as NumPy does. KILN_NO_NODE without an error: sizes that would have to
 * be equal vary in this program. (Recording functions would know the sizes of one call only.) kiln_graph_number: a constant of rank 0.
 * kiln_graph_replace: those that used `node`, and the results, use `with` from now on, which has its dtype and shape (false without an error: not in
 * every graph that this program serves). What the pass built goes on using what it was given: with = f(node) is no circle. A circle is an error.
 */
typedef struct kiln_graph kiln_graph;
typedef int32_t kiln_node;
#define KILN_NO_NODE (-1)
typedef kiln_status kiln_pass(kiln_graph *graph, void *user);
KILN_SYNC(kiln_pass_register, const char *name, const char *version, const char *after, kiln_pass *callback, void *user);
KILN_SYNC(kiln_pass_remove, const char *name);
KILN_API kiln_status kiln_graph_fail(kiln_graph *graph, const char *message); /* returns KILN_INVALID */
KILN_API int kiln_graph_depth(const kiln_graph *graph);
KILN_API kiln_node kiln_graph_nodes(const kiln_graph *graph);
KILN_API const char *kiln_node_op(const kiln_graph *graph, kiln_node node);
KILN_API kiln_dtype kiln_node_dtype(const kiln_graph *graph, kiln_node node);
KILN_API int kiln_node_rank(const kiln_graph *graph, kiln_node node);
KILN_API bool kiln_node_size(kiln_graph *graph, kiln_node node, int axis, int64_t *size);
KILN_API int64_t kiln_node_size_now(const kiln_graph *graph, kiln_node node, int axis);
KILN_API bool kiln_node_number(kiln_graph *graph, kiln_node node, double *number);
KILN_API int kiln_node_axes(const kiln_graph *graph, kiln_node node, int *axes); /* room for KILN_MAX_RANK */
KILN_API const char *kiln_node_attributes(kiln_graph *graph, kiln_node node);
KILN_API const char *kiln_node_text(kiln_graph *graph, kiln_node node);
KILN_API int kiln_node_n_inputs(const kiln_graph *graph, kiln_node node);
KILN_API kiln_node kiln_node_input(const kiln_graph *graph, kiln_node node, int k);
KILN_API int kiln_node_n_users(kiln_graph *graph, kiln_node node);
KILN_API kiln_node kiln_node_user(kiln_graph *graph, kiln_node node, int k);
KILN_API bool kiln_node_is_output(const kiln_graph *graph, kiln_node node);
KILN_API bool kiln_graph_match(kiln_graph *graph, kiln_node node, const char *pattern, kiln_node vars[4]); /* vars may be NULL */
KILN_API kiln_node kiln_graph_build(kiln_graph *graph, const char *expression, const kiln_node vars[4]);   /* KILN_NO_NODE: not in it */
KILN_API kiln_node kiln_graph_op(kiln_graph *graph, const char *op, int n_in, const kiln_node *in);
KILN_API kiln_node kiln_graph_number(kiln_graph *graph, kiln_dtype dtype, double number);
KILN_API bool kiln_graph_replace(kiln_graph *graph, kiln_node node, kiln_node with);

/*
 * A C function of tensors that is traced (run) once for each combination of input dtypes, shapes,
 * strides, devices and options, and from then on costs one look-up; 64 combinations are remembered.
 * (Another size is another trace, but what was compiled is found as ever.) f(in, out, user) fills
 * out[0..n_out) from in[0..n_in); what else it does happens only while it is traced. It may use
 * other tensors (their current value is read at each call), draw random numbers and kiln_assign to
 * other tensors (in[i] is no handle of the caller's: an assign to it stays inside); C numbers that
 * it reads are frozen: pass what changes as a rank-0 tensor (a weak scalar that is passed is weak no
 * more: f64, i64 or bool). A sync point or kiln_seed inside f turns the shortcut off, and so does
 * mode=eager. The option check=pure runs f at each call and fails (KILN_INVALID) when it does
 * something else than when it was traced. Scopes that f leaves open are ended for it; a result that f
 * made in a scope that it then ends belongs to the scope around f, if out[i] was set before. An error inside f that is kept and
 * not cleared fails the call, with its message, and nothing is assigned.
 */
typedef void kiln_function_body(kiln_tensor **in, kiln_tensor **out, void *user);
/* n_in >= 0, n_out >= 0 (none: a step that only assigns). `user` stays yours and is handed to each call of f. NULL: an error is kept. */
KILN_API kiln_function *kiln_function_new(kiln_function_body *f, int n_in, int n_out, void *user);
KILN_API kiln_function *kiln_function_new_at(kiln_function_body *f, int n_in, int n_out, void *user, const char *file, int line);
/* A kiln_function of n_out + n_wrt outputs: those of f, of which out[0] is the loss (a float of one element), then d out[0] / d
 * in[wrt[j]] for each j. Called and freed as any other. */
KILN_API kiln_function *kiln_value_and_grad(kiln_function_body *f, int n_in, int n_out, const int *wrt, int n_wrt, void *user);
KILN_API kiln_function *kiln_value_and_grad_at(kiln_function_body *f, int n_in, int n_out, const int *wrt, int n_wrt, void *user,
                                               const char *file, int line);
/* Records f(in, out, user), which fills out[0..n_out). A gradient that goes through it keeps in and out in memory, not what lies between: that is
 * computed once more when it is needed, products included, whatever KILN_REMAT says. Values and gradients are the same bits as without.
 * Checkpoints nest, three deep: inner ones are computed again for each of both. f runs once, here, on handles of its own; it may use any
 * tensors (gradients flow to these, too), draw random numbers and ask for gradients. It only records: a sync point, kiln_to, kiln_seed,
 * kiln_set_device and kiln_assign to a tensor from outside are KILN_INVALID in it. in[i] may be anything; in and out may be one array. On error
 * (f's own, an output that it left unset) all of out is NULL and the error is kept. With KILN_MODE=eager all is kept, as ever. */
KILN_API kiln_status kiln_checkpoint(kiln_function_body *f, int n_in, kiln_tensor *const *in, int n_out, kiln_tensor **out, void *user);
KILN_API kiln_status kiln_checkpoint_at(kiln_function_body *f, int n_in, kiln_tensor *const *in, int n_out, kiln_tensor **out, void *user,
                                        const char *file, int line);
/*
 * Records f(in, out, user), which fills out[0..n_out), as a function whose derivative is yours: gradients do not look into f. For one that
 * computes better, or otherwise: through rounding, to the end of an iteration, at a point where the formula divides 0 by 0.
 *
 *     vjp   reverse mode: grads[i] = sum over k of (d out[k] / d in[i])^T cotangents[k], of dtype and shape of in[i]
 *     jvp   forward mode: out_tangents[k] = sum over i of d out[k] / d in[i] tangents[i], of dtype and shape of out[k]
 *
 * One of the two may be NULL. Without jvp forward mode fails (KILN_UNSUPPORTED); without vjp reverse mode is the transpose of jvp, which has to
 * be linear in the tangents. A result that is left NULL is zero, a weak scalar is spread. What is no float, or a number of kiln_scalar or
 * kiln_int, has no gradient: its cotangent or tangent is NULL, and so must its result be. Of a result of f that nothing flows to the
 * cotangent is zeros.
 *
 * f runs once, here, then vjp and jvp, once each, if an input is a parameter or computed from one. Their tensors stand for values that
 * come later: an own derivative is recorded like everything else, fused, differentiated again (by the rules of the ops it uses), and `user` is not
 * needed any more once the call returns. All three only record, as in kiln_checkpoint; those that a rule is called with, and what is made of
 * them, have no value outside of it (KILN_INVALID). f may use other tensors only if no gradient can be asked for through them: what is a parameter,
 * or computed from one, must be among `in`. in and out may be one array. On error all of out is NULL and the error is kept.
 *
 *     static void straight(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user)
 *     {
 *         grads[0] = cotangents[0];                                    rounding, as if it were nothing (Bengio et al. 2013)
 *     }
 *     kiln_custom_gradient(round_it, straight, NULL, 1, &x, 1, &y, NULL);
 */
typedef void kiln_vjp_body(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user);
typedef void kiln_jvp_body(kiln_tensor **in, kiln_tensor **out, kiln_tensor **tangents, kiln_tensor **out_tangents, void *user);
KILN_API kiln_status kiln_custom_gradient(kiln_function_body *f, kiln_vjp_body *vjp, kiln_jvp_body *jvp, int n_in, kiln_tensor *const *in,
                                          int n_out, kiln_tensor **out, void *user);
KILN_API kiln_status kiln_custom_gradient_at(kiln_function_body *f, kiln_vjp_body *vjp, kiln_jvp_body *jvp, int n_in,
                                             kiln_tensor *const *in, int n_out, kiln_tensor **out, void *user, const char *file, int line);

/*
 * Loops and branches inside a program: their functions are called once, here, and what they record is compiled with what is around it, so
 * that no value has to come back to C between steps, and how often a loop runs is no part of what was compiled.
 *
 *     static kiln_tensor *not_there(kiln_tensor **state, void *user)
 *     {
 *         return kiln_gt(kiln_abs(kiln_sub(kiln_square(state[0]), state[1])), 1e-6);
 *     }
 *     static void newton(kiln_tensor **in, kiln_tensor **out, void *user)
 *     {
 *         out[0] = kiln_mul(kiln_add(in[0], kiln_div(in[1], in[0])), 0.5);
 *         out[1] = in[1];
 *     }
 *     kiln_while(not_there, newton, 2, (kiln_tensor *[]){kiln_ones(KILN_F32, KILN_SHAPE()), x}, 100, root, NULL);   x: one number
 *
 * All functions only record, as in kiln_checkpoint; they may use any tensors, which are read as they are when the loop is recorded. What a
 * function is called with, and what it makes, has no value outside of it (KILN_INVALID). Weak scalars that are passed or given become f32,
 * i64 or bool. Random draws differ from iteration to iteration. Results belong to the innermost scope; arrays of inputs and results may be
 * one. On error all results are NULL and the error is kept. At most 8 nest. Gradients (reverse mode) flow through kiln_scan, kiln_cond, and
 * kiln_while with max_steps > 0 (without: KILN_UNSUPPORTED): the carries of a scan that parameters have a part in are kept for each step;
 * the gradient of a kiln_while runs it once more and has room for max_steps states. Forward mode goes through all of them, and both go
 * through what they recorded, to any order. On CUDA devices before CUDA 12.4 the host waits for each condition and predicate.
 */
typedef kiln_tensor *kiln_condition(kiln_tensor **state, void *user);
/* state = init; while (condition(state)) state = step(state). step(in, out, user) keeps dtypes and shapes; condition gives one element,
 * taken as != 0. n >= 1 values. max_steps > 0: where a step more is wanted, the sync point fails (KILN_INVALID), on a CUDA device
 * the one that waits for values; 0: no bound. out: the last state. */
KILN_API kiln_status kiln_while(kiln_condition *condition, kiln_function_body *step, int n, kiln_tensor *const *init, int64_t max_steps,
                                kiln_tensor **out, void *user);
KILN_API kiln_status kiln_while_at(kiln_condition *condition, kiln_function_body *step, int n, kiln_tensor *const *init, int64_t max_steps,
                                   kiln_tensor **out, void *user, const char *file, int line);
/* For i = 0 to length - 1 (with KILN_SCAN_REVERSE downwards): carry, y[i] = body(i, carry, xs[i]). i: i64 of rank 0; x: each of xs at index
 * i of its first axis, which is as long as the loop; length -1: xs tell. body fills carry_out[0..n_carry), of the carries' dtypes and
 * shapes, and y[0..n_ys).
 * last: the carries at the end, init where length is 0. ys: all y[i], with a first axis of `length`. */
enum { KILN_SCAN_REVERSE = 1 };
typedef void kiln_scan_body(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user);
KILN_API kiln_status kiln_scan(kiln_scan_body *body, int64_t length, unsigned flags, int n_carry, kiln_tensor *const *init,
                               kiln_tensor **last, int n_xs, kiln_tensor *const *xs, int n_ys, kiln_tensor **ys, void *user);
KILN_API kiln_status kiln_scan_at(kiln_scan_body *body, int64_t length, unsigned flags, int n_carry, kiln_tensor *const *init,
                                  kiln_tensor **last, int n_xs, kiln_tensor *const *xs, int n_ys, kiln_tensor **ys, void *user,
                                  const char *file, int line);
/* out = predicate ? then_f(in) : else_f(in). predicate: one element, taken as != 0. Both are recorded and give the same dtypes and shapes;
 * one is run. (kiln_where computes both, for each element.) */
KILN_API kiln_status kiln_cond(kiln_tensor *predicate, kiln_function_body *then_f, kiln_function_body *else_f, int n_in,
                               kiln_tensor *const *in, int n_out, kiln_tensor **out, void *user);
KILN_API kiln_status kiln_cond_at(kiln_tensor *predicate, kiln_function_body *then_f, kiln_function_body *else_f, int n_in,
                                  kiln_tensor *const *in, int n_out, kiln_tensor **out, void *user, const char *file, int line);

/*
 * f at each index of axis axes[k] (negative: from the end; axes NULL: the first ones) of in[k], all at once: f is called once, with one
 * index of each, and what it records is recorded for all of them, as if it had been written so; nothing loops. Results get a first axis.
 * With axes[k] = KILN_WHOLE each index is given all of in[k]. Mapped axes are as long as each other (KILN_BAD_SHAPE). chunk > 0: so many
 * indices at a time, in a kiln_scan, which bounds memory; 0: all.
 *
 * In f are at most 7 axes, with a chunk that divides the work 6. Where kiln_cond or kiln_while decide by what differs from index to index,
 * both branches run, and the loop until the last one is at its end; each index keeps its own. Each index draws random numbers of its own,
 * the same whatever the chunk. Maps nest; kiln_grad inside gives a gradient for each index. Gradients flow through it as through what f
 * records. What may fail, like an index out of bounds, fails for no index that does not run it.
 */
enum { KILN_WHOLE = -1000 };
KILN_API kiln_status kiln_map(kiln_function_body *f, int n_in, kiln_tensor *const *in, const int *axes, int64_t chunk, int n_out,
                              kiln_tensor **out, void *user);
KILN_API kiln_status kiln_map_at(kiln_function_body *f, int n_in, kiln_tensor *const *in, const int *axes, int64_t chunk, int n_out,
                                 kiln_tensor **out, void *user, const char *file, int line);

/*
 * Ops of your own, registered once and applied like any function that records (docs/custom.md). What computes one is
 *
 *     decompose   a function over kiln's functions, called at each kiln_op_apply: what it records stands there as if you had written it; or
 *     host        a C function on memory of the host, dense, row-major, aligned for its dtype: it computes all of out[0..n_out) of in[0..n_in), which it leaves as they
 *                 are, and none of which out overlaps; and/or
 *     image       PTX (text) or a cubin, whose entry `function` is launched on a CUDA device. Its parameters: a pointer to each input, to each output, then the dims of
 *                 each input and of each output, an i64 each. launch sets grid, block and bytes of shared memory, which are 1, 1 and 0 before; a grid of 0 launches nothing.
 *
 * infer tells dtypes and shapes of the results from those of the inputs (for host and image), and is asked again before each call.
 * `attributes`, at most 65536 bytes, are copied, aligned as by malloc, and handed to each function: a call with other bytes is another
 * value. name and version are letters, digits and _.+- of at most 63 bytes (a name that begins with kiln. is refused); the version changes
 * whenever the meaning or the code does: it is a part of what is compiled and kept on disk. An op is never unregistered; user outlives it.
 *
 * host and image are steps of the program around them, in loops and branches too. Equal calls (the same bytes, on the same tensors) are
 * one, and what nobody needs is not called. With KILN_OP_EFFECTS (host alone) each kiln_op_apply calls it once, there and then: a sync
 * point, which keeps the order, and KILN_INVALID in a function that only records; n_out may be 0 then. A device without the one that it
 * needs: KILN_UNSUPPORTED.
 *
 * infer, host and launch return KILN_OK, or kiln_op_fail(...), which says why not: kiln_op_apply fails then (infer), or the sync point,
 * whose values are not there. They may record and read what is computed; what would compute values is KILN_INVALID in them. They run in the
 * default floating-point mode, in the thread that evaluates, in several threads at once, and neither throw nor leave by longjmp.
 *
 * vjp and jvp are derivatives as those of kiln_custom_gradient; NULL: those of what decompose records, else there is none (KILN_UNSUPPORTED
 * where one is asked for).
 *
 *     static kiln_status same(const kiln_type *in, kiln_type *out, const void *attributes, size_t bytes, void *user) { out[0] = in[0]; return KILN_OK; }
 *     static kiln_status run(const kiln_buffer *in, const kiln_buffer *out, const void *attributes, size_t bytes, void *user) { ... }
 *     kiln_op_info info = {.name = "acme.smooth", .version = "1", .n_in = 1, .n_out = 1, .infer = same, .host = run};
 *     const kiln_op *smooth = kiln_op_register(&info);
 *     kiln_op_apply(smooth, &x, NULL, 0, &y);
 */
typedef struct kiln_op kiln_op;
typedef struct kiln_type {
    kiln_dtype dtype;
    kiln_shape shape;
} kiln_type;
typedef struct kiln_buffer {
    kiln_type type;
    void *data;
} kiln_buffer;
typedef struct kiln_launch {
    unsigned grid[3], block[3], shared_bytes;
} kiln_launch;
enum { KILN_OP_EFFECTS = 1 };
typedef kiln_status kiln_op_infer(const kiln_type *in, kiln_type *out, const void *attributes, size_t bytes, void *user);
typedef void kiln_op_decompose(kiln_tensor **in, kiln_tensor **out, const void *attributes, size_t bytes, void *user);
typedef kiln_status kiln_op_host(const kiln_buffer *in, const kiln_buffer *out, const void *attributes, size_t bytes, void *user);
typedef kiln_status kiln_op_launch(const kiln_type *in, const kiln_type *out, const void *attributes, size_t bytes, kiln_launch *launch,
                                   void *user);
typedef void kiln_op_vjp(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, const void *attributes,
                         size_t bytes, void *user);
typedef void kiln_op_jvp(kiln_tensor **in, kiln_tensor **out, kiln_tensor **tangents, kiln_tensor **out_tangents, const void *attributes,
                         size_t bytes, void *user);
typedef struct kiln_op_info {
    const char *name, *version; /* "acme.fft", of one registration in a process; "1.2" */
    int n_in, n_out;            /* 0 to 256, 1 to 32 */
    unsigned flags;             /* KILN_OP_EFFECTS, or 0 */
    kiln_op_infer *infer;
    kiln_op_decompose *decompose;
    kiln_op_host *host;
    const void *image;
    size_t image_bytes;
    const char *function;
    kiln_op_launch *launch;
    kiln_op_vjp *vjp;
    kiln_op_jvp *jvp;
    void *user;
    uint64_t reserved[8]; /* 0 */
} kiln_op_info;
/* All but `user` is copied. NULL: an error is kept: the name is taken, something is missing, or things that exclude each other are there. */
KILN_API const kiln_op *kiln_op_register(const kiln_op_info *info);
KILN_API const kiln_op *kiln_op_register_at(const kiln_op_info *info, const char *file, int line);
/* in and out may be one array; NULL where there are none. On error all of out is NULL and the error is kept. */
KILN_API kiln_status kiln_op_apply(const kiln_op *op, kiln_tensor *const *in, const void *attributes, size_t bytes, kiln_tensor **out);
KILN_API kiln_status kiln_op_apply_at(const kiln_op *op, kiln_tensor *const *in, const void *attributes, size_t bytes, kiln_tensor **out,
                                      const char *file, int line);
/* In infer, host or launch: keeps what to tell the user, and returns KILN_INVALID; return that, or another status. */
KILN_API kiln_status kiln_op_fail(const char *format, ...) KILN_FORMAT(1, 2);

/*
 * Ranks: a program that runs as several processes, on one machine or many (docs/ranks.md). Each process is a rank of a group; collectives
 * are recorded like any op, and computed at sync points. All ranks of a group record the same collectives in the same order,
 * with the same dtypes and shapes; that order is part of the
 * graph: computing one computes all that were recorded before it, none is dropped and none is made twice. What a rank never needs it
 * computes with its next collective, or at kiln_barrier: end a program with that. Ranks that differ, a rank that ends, and one that does
 * not come within KILN_COMM_TIMEOUT (300) seconds fail the sync points of all with KILN_COMM and a message that names ranks and
 * collectives; after that every collective fails.
 *
 *     kiln_group *world = kiln_group_world(NULL);                                  mpirun -n 4 ./train
 *     x = kiln_slice_axis(all, 0, kiln_group_rank(world) * n, ...);                each rank its part
 *     kiln_grad(loss, p, n_params, g);
 *     kiln_parallel_gradients(world, g, n_params);                                 mean over the ranks
 *
 * Groups are opened, and collectives recorded, by one thread of a process. In functions of loops, branches, kiln_map and kiln_checkpoint
 * they are KILN_UNSUPPORTED. A group of one rank communicates with nobody, and its collectives are views. What lies on a CUDA device stays there with
 * "nccl"; with other backends it is copied to the host, and back.
 */
typedef struct kiln_group kiln_group; /* for the life of the process */
typedef enum kiln_reduce { KILN_REDUCE_SUM, KILN_REDUCE_PROD, KILN_REDUCE_MAX, KILN_REDUCE_MIN, KILN_REDUCE_MEAN } kiln_reduce;

/* All processes that were started together. backend: "self" (this process alone), "mpi" (libkiln_mpi.so, from where libkiln.so lies, then
 * as the system looks for libraries), "nccl" (libnccl.so.2, for what lies on CUDA devices, over "mpi" or, without MPI, the options comm_address
 * and comm_rank; over another one: "nccl:" and its name), another that was registered or has such a library, or a path; NULL: what the
 * option `comm` says, which is "mpi" where a launcher of MPI started the process, and else "self". The same group each time; NULL: an error
 * is kept (KILN_COMM). MPI is initialised unless it is, and then finalised at exit. */
KILN_API kiln_group *kiln_group_world(const char *backend);
KILN_API kiln_group *kiln_group_world_at(const char *backend, const char *file, int line);
/* Ranks of one color become a group, ordered by key, then by rank. A sync point, for all ranks of `group`. color < 0: NULL, and no error. */
KILN_API kiln_group *kiln_group_split(kiln_group *group, int color, int key);
KILN_API kiln_group *kiln_group_split_at(kiln_group *group, int color, int key, const char *file, int line);
KILN_API int kiln_group_rank(const kiln_group *group);            /* 0 to size - 1; of NULL -1 */
KILN_API int kiln_group_size(const kiln_group *group);            /* of NULL 0 */
KILN_API const char *kiln_group_backend(const kiln_group *group); /* "mpi"; of NULL NULL */

/* x of all ranks, combined. Ints keep their dtype (a sum wraps) but for MEAN, which makes floats of them as kiln_mean does; f16 and bf16
 * are combined in f32 and rounded once; of bool MAX is "any" and MIN "all", SUM and PROD KILN_BAD_DTYPE. The order of a sum is the
 * backend's: the same bits on all ranks, and each time where that keeps its word. */
KILN_OP(kiln_all_reduce, kiln_group *group, kiln_tensor *x, kiln_reduce how);
/* x of all ranks, one after the other along axis. */
KILN_OP(kiln_all_gather, kiln_group *group, kiln_tensor *x, int axis);
/* Of x of all ranks, combined, this rank's part: axis cut into as many equal parts as there are ranks (else KILN_BAD_SHAPE). */
KILN_OP(kiln_reduce_scatter, kiln_group *group, kiln_tensor *x, kiln_reduce how, int axis);
/* x of rank root; that of the others tells dtype and shape. */
KILN_OP(kiln_broadcast, kiln_group *group, kiln_tensor *x, int root);
/* Each rank's split_axis is cut into a part for each rank; what comes lies one after the other along concat_axis, by rank. */
KILN_OP(kiln_all_to_all, kiln_group *group, kiln_tensor *x, int split_axis, int concat_axis);
/* x of rank from[this rank]; zeros where that is -1. from has a place for each rank, is the same on all, and has no rank twice. */
KILN_OP(kiln_send_recv, kiln_group *group, kiln_tensor *x, const int *from);
/* From one rank to another, which alone record them: kiln_send on the one, kiln_recv of the same dtype and shape on the other, the first one
 * with the first, and so on. Each has its place in the order of its rank's collectives: it begins when all that were recorded there before
 * it are done, and ends when the other rank has come to its part. So ranks that could record theirs one at a time, each with its other
 * half, never wait for ever; two that both send first, or one that waits in a collective for another that waits in a message to it, fail
 * with KILN_COMM and a message that names both, and longer rings within KILN_COMM_TIMEOUT. (All at once: kiln_send_recv.) To itself a rank
 * sends before it receives.
 *
 * kiln_recv gives what comes, on the current device; kiln_send a 0 of rank 0 (of x's dtype if that is a float, else f32), of which the
 * gradient is what flows to the received value on the other rank, by a message back: add it to the loss, or let it be the loss. So where
 * one takes a gradient of what came, the other takes one of its kiln_send's result; kiln_stop_gradient, on the rank that received, if it is
 * a constant. Forward mode goes through neither. */
KILN_OP(kiln_send, kiln_group *group, kiln_tensor *x, int to);
KILN_OP(kiln_recv, kiln_group *group, kiln_dtype dtype, kiln_shape shape, int from);
/* Computes all collectives that were recorded, and waits until all ranks of the group are here. */
KILN_SYNC(kiln_barrier, kiln_group *group);
/* Parameters of which each rank keeps a part, and what an optimiser keeps for them with it: kiln_shard is this rank's part of x, which is the
 * same on all ranks (kiln_broadcast), laid out in one row: [elements / ranks, rounded up], with zeros at the end. kiln_unshard is the whole
 * again, of this shape, by an all_gather where it is recorded; its gradient is the mean over the ranks, as kiln_parallel_gradients makes it,
 * by a reduce_scatter. In forward mode it is an all_gather. KILN_BAD_SHAPE: shard is no part of that shape.
 *
 *     p[k] = kiln_param(kiln_shard(world, weight));                                once
 *     kiln_tensor *w = kiln_unshard(world, p[k], KILN_SHAPE(rows, columns));       in each step
 *     kiln_grad(loss, p, n_params, g);                                             of the parts: kiln_optimizer_step
 */
KILN_OP(kiln_shard, kiln_group *group, kiln_tensor *x);
KILN_OP(kiln_unshard, kiln_group *group, kiln_tensor *shard, kiln_shape shape);
/* grads[k] becomes the mean over the group, for each k; small ones travel together. */
KILN_API kiln_status kiln_parallel_gradients(kiln_group *group, kiln_tensor **grads, int n);
KILN_API kiln_status kiln_parallel_gradients_at(kiln_group *group, kiln_tensor **grads, int n, const char *file, int line);

/*
 * What carries collectives: a table of functions, registered in the process (the name is free, and the struct outlives it), or got from the
 * library libkiln_NAME.so, in which `kiln_comm_plugin` returns it. One thread at a time calls them, not always the same; a function returns
 * KILN_OK, or another status with its reason in why. A communicator is what the backend makes of a group.
 *
 *     open        the communicator of all processes, this one's rank, and how many there are
 *     split       as kiln_group_split; all ranks of comm are there. color < 0: *out is NULL
 *     start       begins a collective, in and out stay as they are until it is done; later ones begin when it is done. *request is what test is asked with
 *     test        is it done? Does not wait; called again and again, so work that is to go on meanwhile is done here. After *done = 1 the request is gone
 *     tell        sends a note to a rank, and returns at once; notes from one rank to another come in their order, beside collectives
 *     hear        takes one that came, into note: *from = -1, or its rank and *bytes
 *     close       at the end of the process. orderly 0: something failed, wait for nobody
 */
enum { KILN_COMM_VERSION = 1, KILN_COMM_WHY = 256, KILN_COMM_NOTE = 512 };
typedef enum kiln_comm_op {
    KILN_COMM_ALL_REDUCE,     /* count elements in and out */
    KILN_COMM_ALL_GATHER,     /* in has count, out as many from each rank */
    KILN_COMM_REDUCE_SCATTER, /* in has count for each rank, out count */
    KILN_COMM_BROADCAST,      /* count; in is read on root only, out is written everywhere */
    KILN_COMM_REDUCE,         /* count; out is written on root only */
    KILN_COMM_ALL_TO_ALL,     /* count for each rank, in and out */
    KILN_COMM_SEND_RECV,      /* count: in goes to `to`, out comes from `from`, each -1 for nobody; root -1: other ranks are not there */
    KILN_COMM_BARRIER
} kiln_comm_op;
typedef struct kiln_comm_call {
    kiln_comm_op op;
    kiln_reduce how;  /* SUM, MAX, MIN: NaN where a value is NaN */
    kiln_dtype dtype; /* combined: no f16, bf16; bool (bytes 0 and 1) for MAX and MIN only */
    int root, to, from;
    uint64_t count;
    const void *in;
    void *out;
} kiln_comm_call;
typedef kiln_status kiln_comm_open(void *user, void **comm, int *rank, int *size, char *why);
typedef kiln_status kiln_comm_split(void *comm, int color, int key, void **out, int *rank, int *size, char *why);
typedef kiln_status kiln_comm_start(void *comm, const kiln_comm_call *call, void **request, char *why);
typedef kiln_status kiln_comm_test(void *comm, void *request, int *done, char *why);
typedef kiln_status kiln_comm_tell(void *comm, int to, const void *note, size_t bytes, char *why);
typedef kiln_status kiln_comm_hear(void *comm, int *from, void *note, size_t *bytes, char *why);
typedef void kiln_comm_close(void *comm, int orderly);
typedef struct kiln_comm_backend {
    unsigned version; /* KILN_COMM_VERSION */
    const char *name; /* "mpi" */
    kiln_comm_open *open;
    kiln_comm_split *split;
    kiln_comm_start *start;
    kiln_comm_test *test;
    kiln_comm_tell *tell;
    kiln_comm_hear *hear;
    kiln_comm_close *close;
    void *user;           /* for open */
    uint64_t reserved[8]; /* 0 */
} kiln_comm_backend;
KILN_API kiln_status kiln_comm_register(const kiln_comm_backend *backend);
KILN_API kiln_status kiln_comm_register_at(const kiln_comm_backend *backend, const char *file, int line);

/* Calls it: out[0..n_out) get tensors owned by the innermost scope (NULL on error). in and out may be NULL where there are none. Several threads may
 * call it at once; but where it assigns, not while another thread calls it or uses what it assigns. */
KILN_SYNC(kiln_function_call, kiln_function *function, kiln_tensor *const *in, kiln_tensor **out);
/* NULL is allowed. A function that is being called, by its own body or elsewhere, is refused
 * (KILN_INVALID is kept) and stays. Not while another thread may begin to call it. */
KILN_API void kiln_function_free(kiln_function *function);

/*
 * Optimisers update parameters by their gradients. Loss, gradients and update of a step are recorded in a kiln_function, so they are one
 * program, which overwrites parameters and state where they lie; what is to change from step to step, such as the learning rate, is an input:
 *
 *     static void step(kiln_tensor **in, kiln_tensor **out, void *user)             in: images, labels, learning rate
 *     {
 *         struct net *net = user;                                                   net->p: n parameters, net->g: room for n gradients
 *         out[0] = kiln_mean(kiln_cross_entropy(forward(net, in[0]), in[1]));
 *         if (kiln_grad(out[0], net->p, net->n, net->g) == KILN_OK)
 *             (void)kiln_optimizer_step(net->opt, net->g, in[2]);                   an error that is kept fails the call
 *     }
 *     ...
 *     net.opt = kiln_optimizer_new(net.p, net.n, &(kiln_optimizer_options){.kind = KILN_ADAMW, .weight_decay = 0.01});
 *     kiln_function *train = kiln_function_new(step, 3, 1, &net);
 *     for each batch: kiln_function_call(train, (kiln_tensor *[]){images, labels, kiln_scalar(rate)}, &loss)
 *
 * (docs/training.md has all of it.) Gradients of several batches are added up by kiln_assign(sum, kiln_add(sum, g)) before one step.
 */
typedef enum kiln_optimizer_kind {
    KILN_SGD,  /* b = momentum b + g; p -= rate (nesterov: g + momentum b; else b) */
    KILN_ADAM, /* Kingma and Ba 2015 */
    KILN_ADAMW /* the same, weight decay beside the gradient: p -= rate weight_decay p (Loshchilov and Hutter 2019) */
} kiln_optimizer_kind;

typedef struct kiln_optimizer_options {
    kiln_optimizer_kind kind;
    double momentum;          /* SGD; 0 to 1 */
    bool nesterov;            /* SGD, with momentum */
    double beta1, beta2, eps; /* Adam, AdamW; 0: 0.9, 0.999, 1e-8 */
    double weight_decay;      /* SGD, Adam: weight_decay p is added to g */
    uint64_t reserved[8];     /* 0 */
} kiln_optimizer_options;

/* For n parameters (kiln_param), which it retains, with state of zeros: f32, of f64 parameters f64. NULL: an error is kept (KILN_INVALID: no
 * parameter, one twice, options out of range; inside a kiln_function). */
KILN_API kiln_optimizer *kiln_optimizer_new(kiln_tensor *const *params, int n, const kiln_optimizer_options *options);
KILN_API kiln_optimizer *kiln_optimizer_new_at(kiln_tensor *const *params, int n, const kiln_optimizer_options *options, const char *file,
                                               int line);
KILN_API void kiln_optimizer_free(kiln_optimizer *opt); /* NULL is allowed; parameters stay */
/* Records one step and assigns (kiln_assign) parameters and state; grads[i] is of params[i]'s shape, a float; learning_rate of rank 0.
 * f16 and bf16 are computed in f32 and rounded once. On error nothing is assigned, and the error is kept. Not while another thread uses a parameter or
 * the optimiser; nor is that freed meanwhile. */
KILN_API kiln_status kiln_optimizer_step(kiln_optimizer *opt, kiln_tensor *const *grads, kiln_tensor *learning_rate);
KILN_API kiln_status kiln_optimizer_step_at(kiln_optimizer *opt, kiln_tensor *const *grads, kiln_tensor *learning_rate, const char *file,
                                            int line);
/* The same where condition, of rank 0, is true; else nothing changes. */
KILN_API kiln_status kiln_optimizer_step_where(kiln_optimizer *opt, kiln_tensor *condition, kiln_tensor *const *grads,
                                               kiln_tensor *learning_rate);
KILN_API kiln_status kiln_optimizer_step_where_at(kiln_optimizer *opt, kiln_tensor *condition, kiln_tensor *const *grads,
                                                  kiln_tensor *learning_rate, const char *file, int line);
/* The i-th tensor of its state, to be saved or (kiln_assign) restored; NULL past the last one. It is the optimiser's. *name (may be
 * NULL): "steps", "m.0", "v.0", "m.1"... or "momentum.0"..., by parameter. With parameters and state restored, the next steps give
 * the same bits. */
KILN_API kiln_tensor *kiln_optimizer_state(const kiln_optimizer *opt, int i, const char **name);

/* clipped[i] = grads[i] min(1, max_norm / (norm + 1e-6)), norm = sqrt of the sum of all squares, in f32 (f64 where one is f64); clipped may be
 * grads. *norm (may be NULL) gets it. max_norm >= 0. */
KILN_API kiln_status kiln_clip_by_global_norm(kiln_tensor *const *grads, int n, double max_norm, kiln_tensor **clipped, kiln_tensor **norm);
KILN_API kiln_status kiln_clip_by_global_norm_at(kiln_tensor *const *grads, int n, double max_norm, kiln_tensor **clipped,
                                                 kiln_tensor **norm, const char *file, int line);

/*
 * Loss scaling, for gradients computed in f16, of which small ones vanish (bf16 needs none): the gradients of scale * loss, divided by scale.
 * A step whose gradients are not all finite changes nothing; the scale is halved then, and doubled after `interval` finite steps in a row.
 *
 *     kiln_grad(kiln_scaler_scale(scaler, loss), p, n, g);
 *     kiln_tensor *finite = kiln_scaler_unscale(scaler, g, n, g);
 *     kiln_optimizer_step_where(opt, finite, g, rate);
 */
/* scale > 0 (65536 is usual; a power of two is exact), interval >= 1 (2000). NULL: an error is kept. */
KILN_API kiln_scaler *kiln_scaler_new(double scale, int64_t interval);
KILN_API kiln_scaler *kiln_scaler_new_at(double scale, int64_t interval, const char *file, int line);
KILN_API void kiln_scaler_free(kiln_scaler *scaler);                /* NULL is allowed. Not while another thread uses it */
KILN_OP(kiln_scaler_scale, kiln_scaler *scaler, kiln_tensor *loss); /* loss * scale, at least f32 */
/* unscaled[i] = grads[i] / scale, at least f32 (may be grads), and the scale's new value is assigned. Returns whether all of grads are finite:
 * a bool of rank 0; NULL, and no results, on error. Once for each step; not while another thread uses the scaler. */
KILN_OP(kiln_scaler_unscale, kiln_scaler *scaler, kiln_tensor *const *grads, int n, kiln_tensor **unscaled);
/* Its state, as kiln_optimizer_state: "scale" (f32) and "good_steps" (i64). */
KILN_API kiln_tensor *kiln_scaler_state(const kiln_scaler *scaler, int i, const char **name);

/* The graph that computing x would run, as text, like kiln_format into a buffer. Computes nothing.
 * */
KILN_SYNC(kiln_graph_text, kiln_tensor *x, char *buffer, size_t size, size_t *needed);
/* What computing x would do, as text, likewise: whether a compiled program fits and with which
 * guards, or why none does (the closest one's guard, what it expected and found, who asked, your
 * file and line); then one line for each kernel that would be launched, called by its ops and by the
 * functions that these make, however they were spelled ("matmul_add_gelu"). A graph of more than 4096
 * nodes runs in parts: each is told in turn, after "part 1:" and so on. */
KILN_SYNC(kiln_explain, kiln_tensor *x, char *buffer, size_t size, size_t *needed);

#ifdef __cplusplus
} /* extern "C" */
#endif

/* ---- tensors counted ---- */

#ifdef __cplusplus
template <class... Tensor> inline kiln_tensor *kiln_einsum_of(const char *file, int line, const char *equation, Tensor... tensors)
{
    kiln_tensor *const list[] = {tensors...};
    return kiln_einsum_list_at(equation, list, static_cast<int>(sizeof...(tensors)), file, line);
}
#else
#define KILN_LIST(...) (kiln_tensor *const[]){__VA_ARGS__}, (int)(sizeof((kiln_tensor *const[]){__VA_ARGS__}) / sizeof(kiln_tensor *))
#endif

/* ---- numbers as operands ---- */

#ifdef __cplusplus

inline kiln_tensor *kiln_operand(kiln_tensor *x, const char *, int) { return x; }
inline kiln_tensor *kiln_operand(decltype(nullptr), const char *, int) { return nullptr; }
inline kiln_tensor *kiln_operand(bool x, const char *file, int line) { return kiln_bool_at(x, file, line); }
inline kiln_tensor *kiln_operand(float x, const char *file, int line) { return kiln_scalar_at(static_cast<double>(x), file, line); }
inline kiln_tensor *kiln_operand(double x, const char *file, int line) { return kiln_scalar_at(x, file, line); }
inline kiln_tensor *kiln_operand(int x, const char *file, int line) { return kiln_int_at(x, file, line); }
inline kiln_tensor *kiln_operand(long x, const char *file, int line) { return kiln_int_at(x, file, line); }
inline kiln_tensor *kiln_operand(long long x, const char *file, int line) { return kiln_int_at(x, file, line); }
inline kiln_tensor *kiln_operand(unsigned x, const char *file, int line) { return kiln_uint_at(x, file, line); }
inline kiln_tensor *kiln_operand(unsigned long x, const char *file, int line) { return kiln_uint_at(x, file, line); }
inline kiln_tensor *kiln_operand(unsigned long long x, const char *file, int line) { return kiln_uint_at(x, file, line); }

#define KILN_NUMBERS2(name)                                                                         \
    template <class A, class B> inline kiln_tensor *name##_at(A a, B b, const char *file, int line) \
    {                                                                                               \
        return name##_at(kiln_operand(a, file, line), kiln_operand(b, file, line), file, line);     \
    }                                                                                               \
    template <class A, class B> inline kiln_tensor *name(A a, B b) { return name##_at(a, b, nullptr, 0); }
#define KILN_NUMBERS3(name)                                                                                                  \
    template <class A, class B, class C> inline kiln_tensor *name##_at(A a, B b, C c, const char *file, int line)            \
    {                                                                                                                        \
        return name##_at(kiln_operand(a, file, line), kiln_operand(b, file, line), kiln_operand(c, file, line), file, line); \
    }                                                                                                                        \
    template <class A, class B, class C> inline kiln_tensor *name(A a, B b, C c) { return name##_at(a, b, c, nullptr, 0); }
KILN_NUMBERS2(kiln_add)
KILN_NUMBERS2(kiln_sub)
KILN_NUMBERS2(kiln_mul)
KILN_NUMBERS2(kiln_div)
KILN_NUMBERS2(kiln_floor_divide)
KILN_NUMBERS2(kiln_remainder)
KILN_NUMBERS2(kiln_fmod)
KILN_NUMBERS2(kiln_pow)
KILN_NUMBERS2(kiln_maximum)
KILN_NUMBERS2(kiln_minimum)
KILN_NUMBERS2(kiln_atan2)
KILN_NUMBERS2(kiln_hypot)
KILN_NUMBERS2(kiln_logaddexp)
KILN_NUMBERS2(kiln_copysign)
KILN_NUMBERS2(kiln_nextafter)
KILN_NUMBERS2(kiln_eq)
KILN_NUMBERS2(kiln_ne)
KILN_NUMBERS2(kiln_lt)
KILN_NUMBERS2(kiln_le)
KILN_NUMBERS2(kiln_gt)
KILN_NUMBERS2(kiln_ge)
KILN_NUMBERS2(kiln_logical_and)
KILN_NUMBERS2(kiln_logical_or)
KILN_NUMBERS2(kiln_logical_xor)
KILN_NUMBERS2(kiln_bitwise_and)
KILN_NUMBERS2(kiln_bitwise_or)
KILN_NUMBERS2(kiln_bitwise_xor)
KILN_NUMBERS2(kiln_shift_left)
KILN_NUMBERS2(kiln_shift_right)
KILN_NUMBERS3(kiln_where)
KILN_NUMBERS3(kiln_clamp)
#undef KILN_NUMBERS2
#undef KILN_NUMBERS3

#endif

/* ---- locations ---- */

/* Your file and line go behind your arguments, so that compilers count those as you do: "argument 1 of kiln_exp_at" is your first. Where one is
 * missing they speak of too few arguments, and of the place as one of a wrong type. */
#ifndef KILN_NO_LOCATIONS
#define KILN_HERE __FILE__, __LINE__
#define kiln_check(...) kiln_check_at(__VA_ARGS__, KILN_HERE)
#define kiln_zeros(...) kiln_zeros_at(__VA_ARGS__, KILN_HERE)
#define kiln_ones(...) kiln_ones_at(__VA_ARGS__, KILN_HERE)
#define kiln_full(...) kiln_full_at(__VA_ARGS__, KILN_HERE)
#define kiln_full_int(...) kiln_full_int_at(__VA_ARGS__, KILN_HERE)
#define kiln_zeros_like(...) kiln_zeros_like_at(__VA_ARGS__, KILN_HERE)
#define kiln_ones_like(...) kiln_ones_like_at(__VA_ARGS__, KILN_HERE)
#define kiln_full_like(...) kiln_full_like_at(__VA_ARGS__, KILN_HERE)
#define kiln_scalar(...) kiln_scalar_at(__VA_ARGS__, KILN_HERE)
#define kiln_int(...) kiln_int_at(__VA_ARGS__, KILN_HERE)
#define kiln_uint(...) kiln_uint_at(__VA_ARGS__, KILN_HERE)
#define kiln_bool(...) kiln_bool_at(__VA_ARGS__, KILN_HERE)
#define kiln_arange(...) kiln_arange_at(__VA_ARGS__, KILN_HERE)
#define kiln_linspace(...) kiln_linspace_at(__VA_ARGS__, KILN_HERE)
#define kiln_eye(...) kiln_eye_at(__VA_ARGS__, KILN_HERE)
#define kiln_from(...) kiln_from_at(__VA_ARGS__, KILN_HERE)
#define kiln_wrap(...) kiln_wrap_at(__VA_ARGS__, KILN_HERE)
#define kiln_wrap_strided(...) kiln_wrap_strided_at(__VA_ARGS__, KILN_HERE)
#define kiln_from_dlpack(...) kiln_from_dlpack_at(__VA_ARGS__, KILN_HERE)
#define kiln_from_dlpack_unversioned(...) kiln_from_dlpack_unversioned_at(__VA_ARGS__, KILN_HERE)
#define kiln_to_dlpack(...) kiln_to_dlpack_at(__VA_ARGS__, KILN_HERE)
#define kiln_to_dlpack_unversioned(...) kiln_to_dlpack_unversioned_at(__VA_ARGS__, KILN_HERE)
#define kiln_uniform(...) kiln_uniform_at(__VA_ARGS__, KILN_HERE)
#define kiln_normal(...) kiln_normal_at(__VA_ARGS__, KILN_HERE)
#define kiln_rand(...) kiln_rand_at(__VA_ARGS__, KILN_HERE)
#define kiln_randn(...) kiln_randn_at(__VA_ARGS__, KILN_HERE)
#define kiln_randint(...) kiln_randint_at(__VA_ARGS__, KILN_HERE)
#define kiln_positive(...) kiln_positive_at(__VA_ARGS__, KILN_HERE)
#define kiln_neg(...) kiln_neg_at(__VA_ARGS__, KILN_HERE)
#define kiln_abs(...) kiln_abs_at(__VA_ARGS__, KILN_HERE)
#define kiln_sign(...) kiln_sign_at(__VA_ARGS__, KILN_HERE)
#define kiln_square(...) kiln_square_at(__VA_ARGS__, KILN_HERE)
#define kiln_floor(...) kiln_floor_at(__VA_ARGS__, KILN_HERE)
#define kiln_ceil(...) kiln_ceil_at(__VA_ARGS__, KILN_HERE)
#define kiln_round(...) kiln_round_at(__VA_ARGS__, KILN_HERE)
#define kiln_trunc(...) kiln_trunc_at(__VA_ARGS__, KILN_HERE)
#define kiln_relu(...) kiln_relu_at(__VA_ARGS__, KILN_HERE)
#define kiln_reciprocal(...) kiln_reciprocal_at(__VA_ARGS__, KILN_HERE)
#define kiln_sqrt(...) kiln_sqrt_at(__VA_ARGS__, KILN_HERE)
#define kiln_rsqrt(...) kiln_rsqrt_at(__VA_ARGS__, KILN_HERE)
#define kiln_exp(...) kiln_exp_at(__VA_ARGS__, KILN_HERE)
#define kiln_exp2(...) kiln_exp2_at(__VA_ARGS__, KILN_HERE)
#define kiln_expm1(...) kiln_expm1_at(__VA_ARGS__, KILN_HERE)
#define kiln_log(...) kiln_log_at(__VA_ARGS__, KILN_HERE)
#define kiln_log2(...) kiln_log2_at(__VA_ARGS__, KILN_HERE)
#define kiln_log10(...) kiln_log10_at(__VA_ARGS__, KILN_HERE)
#define kiln_log1p(...) kiln_log1p_at(__VA_ARGS__, KILN_HERE)
#define kiln_sin(...) kiln_sin_at(__VA_ARGS__, KILN_HERE)
#define kiln_cos(...) kiln_cos_at(__VA_ARGS__, KILN_HERE)
#define kiln_tan(...) kiln_tan_at(__VA_ARGS__, KILN_HERE)
#define kiln_asin(...) kiln_asin_at(__VA_ARGS__, KILN_HERE)
#define kiln_acos(...) kiln_acos_at(__VA_ARGS__, KILN_HERE)
#define kiln_atan(...) kiln_atan_at(__VA_ARGS__, KILN_HERE)
#define kiln_sinh(...) kiln_sinh_at(__VA_ARGS__, KILN_HERE)
#define kiln_cosh(...) kiln_cosh_at(__VA_ARGS__, KILN_HERE)
#define kiln_tanh(...) kiln_tanh_at(__VA_ARGS__, KILN_HERE)
#define kiln_asinh(...) kiln_asinh_at(__VA_ARGS__, KILN_HERE)
#define kiln_acosh(...) kiln_acosh_at(__VA_ARGS__, KILN_HERE)
#define kiln_atanh(...) kiln_atanh_at(__VA_ARGS__, KILN_HERE)
#define kiln_erf(...) kiln_erf_at(__VA_ARGS__, KILN_HERE)
#define kiln_erfc(...) kiln_erfc_at(__VA_ARGS__, KILN_HERE)
#define kiln_sigmoid(...) kiln_sigmoid_at(__VA_ARGS__, KILN_HERE)
#define kiln_softplus(...) kiln_softplus_at(__VA_ARGS__, KILN_HERE)
#define kiln_silu(...) kiln_silu_at(__VA_ARGS__, KILN_HERE)
#define kiln_gelu(...) kiln_gelu_at(__VA_ARGS__, KILN_HERE)
#define kiln_gelu_tanh(...) kiln_gelu_tanh_at(__VA_ARGS__, KILN_HERE)
#define kiln_isnan(...) kiln_isnan_at(__VA_ARGS__, KILN_HERE)
#define kiln_isinf(...) kiln_isinf_at(__VA_ARGS__, KILN_HERE)
#define kiln_isfinite(...) kiln_isfinite_at(__VA_ARGS__, KILN_HERE)
#define kiln_signbit(...) kiln_signbit_at(__VA_ARGS__, KILN_HERE)
#define kiln_logical_not(...) kiln_logical_not_at(__VA_ARGS__, KILN_HERE)
#define kiln_bitwise_not(...) kiln_bitwise_not_at(__VA_ARGS__, KILN_HERE)
#define kiln_cast(...) kiln_cast_at(__VA_ARGS__, KILN_HERE)
#define kiln_sum(...) kiln_sum_at(__VA_ARGS__, KILN_HERE)
#define kiln_sum_axes(...) kiln_sum_axes_at(__VA_ARGS__, KILN_HERE)
#define kiln_prod(...) kiln_prod_at(__VA_ARGS__, KILN_HERE)
#define kiln_prod_axes(...) kiln_prod_axes_at(__VA_ARGS__, KILN_HERE)
#define kiln_max(...) kiln_max_at(__VA_ARGS__, KILN_HERE)
#define kiln_max_axes(...) kiln_max_axes_at(__VA_ARGS__, KILN_HERE)
#define kiln_min(...) kiln_min_at(__VA_ARGS__, KILN_HERE)
#define kiln_min_axes(...) kiln_min_axes_at(__VA_ARGS__, KILN_HERE)
#define kiln_any(...) kiln_any_at(__VA_ARGS__, KILN_HERE)
#define kiln_any_axes(...) kiln_any_axes_at(__VA_ARGS__, KILN_HERE)
#define kiln_all(...) kiln_all_at(__VA_ARGS__, KILN_HERE)
#define kiln_all_axes(...) kiln_all_axes_at(__VA_ARGS__, KILN_HERE)
#define kiln_mean(...) kiln_mean_at(__VA_ARGS__, KILN_HERE)
#define kiln_mean_axes(...) kiln_mean_axes_at(__VA_ARGS__, KILN_HERE)
#define kiln_var(...) kiln_var_at(__VA_ARGS__, KILN_HERE)
#define kiln_var_axes(...) kiln_var_axes_at(__VA_ARGS__, KILN_HERE)
#define kiln_std(...) kiln_std_at(__VA_ARGS__, KILN_HERE)
#define kiln_std_axes(...) kiln_std_axes_at(__VA_ARGS__, KILN_HERE)
#define kiln_norm(...) kiln_norm_at(__VA_ARGS__, KILN_HERE)
#define kiln_norm_axes(...) kiln_norm_axes_at(__VA_ARGS__, KILN_HERE)
#define kiln_logsumexp(...) kiln_logsumexp_at(__VA_ARGS__, KILN_HERE)
#define kiln_logsumexp_axes(...) kiln_logsumexp_axes_at(__VA_ARGS__, KILN_HERE)
#define kiln_argmax(...) kiln_argmax_at(__VA_ARGS__, KILN_HERE)
#define kiln_argmax_axis(...) kiln_argmax_axis_at(__VA_ARGS__, KILN_HERE)
#define kiln_argmin(...) kiln_argmin_at(__VA_ARGS__, KILN_HERE)
#define kiln_argmin_axis(...) kiln_argmin_axis_at(__VA_ARGS__, KILN_HERE)
#define kiln_reshape(...) kiln_reshape_at(__VA_ARGS__, KILN_HERE)
#define kiln_flatten(...) kiln_flatten_at(__VA_ARGS__, KILN_HERE)
#define kiln_permute(...) kiln_permute_at(__VA_ARGS__, KILN_HERE)
#define kiln_transpose(...) kiln_transpose_at(__VA_ARGS__, KILN_HERE)
#define kiln_swap_axes(...) kiln_swap_axes_at(__VA_ARGS__, KILN_HERE)
#define kiln_expand(...) kiln_expand_at(__VA_ARGS__, KILN_HERE)
#define kiln_squeeze(...) kiln_squeeze_at(__VA_ARGS__, KILN_HERE)
#define kiln_unsqueeze(...) kiln_unsqueeze_at(__VA_ARGS__, KILN_HERE)
#define kiln_slice(...) kiln_slice_at(__VA_ARGS__, KILN_HERE)
#define kiln_slice_axis(...) kiln_slice_axis_at(__VA_ARGS__, KILN_HERE)
#define kiln_select(...) kiln_select_at(__VA_ARGS__, KILN_HERE)
#define kiln_flip(...) kiln_flip_at(__VA_ARGS__, KILN_HERE)
#define kiln_roll(...) kiln_roll_at(__VA_ARGS__, KILN_HERE)
#define kiln_pad(...) kiln_pad_at(__VA_ARGS__, KILN_HERE)
#define kiln_concat(...) kiln_concat_at(__VA_ARGS__, KILN_HERE)
#define kiln_stack(...) kiln_stack_at(__VA_ARGS__, KILN_HERE)
#define kiln_split(...) kiln_split_at(__VA_ARGS__, KILN_HERE)
#define kiln_tile(...) kiln_tile_at(__VA_ARGS__, KILN_HERE)
#define kiln_triu(...) kiln_triu_at(__VA_ARGS__, KILN_HERE)
#define kiln_tril(...) kiln_tril_at(__VA_ARGS__, KILN_HERE)
#define kiln_take(...) kiln_take_at(__VA_ARGS__, KILN_HERE)
#define kiln_take_along_axis(...) kiln_take_along_axis_at(__VA_ARGS__, KILN_HERE)
#define kiln_scatter(...) kiln_scatter_at(__VA_ARGS__, KILN_HERE)
#define kiln_scatter_along_axis(...) kiln_scatter_along_axis_at(__VA_ARGS__, KILN_HERE)
#define kiln_sort(...) kiln_sort_at(__VA_ARGS__, KILN_HERE)
#define kiln_argsort(...) kiln_argsort_at(__VA_ARGS__, KILN_HERE)
#define kiln_topk(...) kiln_topk_at(__VA_ARGS__, KILN_HERE)
#define kiln_param(...) kiln_param_at(__VA_ARGS__, KILN_HERE)
#define kiln_stop_gradient(...) kiln_stop_gradient_at(__VA_ARGS__, KILN_HERE)
#define kiln_grad(...) kiln_grad_at(__VA_ARGS__, KILN_HERE)
#define kiln_checkpoint(...) kiln_checkpoint_at(__VA_ARGS__, KILN_HERE)
#define kiln_while(...) kiln_while_at(__VA_ARGS__, KILN_HERE)
#define kiln_scan(...) kiln_scan_at(__VA_ARGS__, KILN_HERE)
#define kiln_cond(...) kiln_cond_at(__VA_ARGS__, KILN_HERE)
#define kiln_map(...) kiln_map_at(__VA_ARGS__, KILN_HERE)
#define kiln_autocast_push(...) kiln_autocast_push_at(__VA_ARGS__, KILN_HERE)
#define kiln_mode_push(...) kiln_mode_push_at(__VA_ARGS__, KILN_HERE)
#define kiln_mode_pop(...) kiln_mode_pop_at(__VA_ARGS__, KILN_HERE)
#define kiln_rule_add(...) kiln_rule_add_at(__VA_ARGS__, KILN_HERE)
#define kiln_rule_remove(...) kiln_rule_remove_at(__VA_ARGS__, KILN_HERE)
#define kiln_pass_register(...) kiln_pass_register_at(__VA_ARGS__, KILN_HERE)
#define kiln_pass_remove(...) kiln_pass_remove_at(__VA_ARGS__, KILN_HERE)
#define kiln_custom_gradient(...) kiln_custom_gradient_at(__VA_ARGS__, KILN_HERE)
#define kiln_op_register(...) kiln_op_register_at(__VA_ARGS__, KILN_HERE)
#define kiln_op_apply(...) kiln_op_apply_at(__VA_ARGS__, KILN_HERE)
#define kiln_group_world(...) kiln_group_world_at(__VA_ARGS__, KILN_HERE)
#define kiln_group_split(...) kiln_group_split_at(__VA_ARGS__, KILN_HERE)
#define kiln_all_reduce(...) kiln_all_reduce_at(__VA_ARGS__, KILN_HERE)
#define kiln_all_gather(...) kiln_all_gather_at(__VA_ARGS__, KILN_HERE)
#define kiln_reduce_scatter(...) kiln_reduce_scatter_at(__VA_ARGS__, KILN_HERE)
#define kiln_broadcast(...) kiln_broadcast_at(__VA_ARGS__, KILN_HERE)
#define kiln_all_to_all(...) kiln_all_to_all_at(__VA_ARGS__, KILN_HERE)
#define kiln_send_recv(...) kiln_send_recv_at(__VA_ARGS__, KILN_HERE)
#define kiln_send(...) kiln_send_at(__VA_ARGS__, KILN_HERE)
#define kiln_recv(...) kiln_recv_at(__VA_ARGS__, KILN_HERE)
#define kiln_barrier(...) kiln_barrier_at(__VA_ARGS__, KILN_HERE)
#define kiln_parallel_gradients(...) kiln_parallel_gradients_at(__VA_ARGS__, KILN_HERE)
#define kiln_shard(...) kiln_shard_at(__VA_ARGS__, KILN_HERE)
#define kiln_unshard(...) kiln_unshard_at(__VA_ARGS__, KILN_HERE)
#define kiln_comm_register(...) kiln_comm_register_at(__VA_ARGS__, KILN_HERE)
#define kiln_vjp(...) kiln_vjp_at(__VA_ARGS__, KILN_HERE)
#define kiln_jvp(...) kiln_jvp_at(__VA_ARGS__, KILN_HERE)
#define kiln_optimizer_new(...) kiln_optimizer_new_at(__VA_ARGS__, KILN_HERE)
#define kiln_optimizer_step(...) kiln_optimizer_step_at(__VA_ARGS__, KILN_HERE)
#define kiln_optimizer_step_where(...) kiln_optimizer_step_where_at(__VA_ARGS__, KILN_HERE)
#define kiln_clip_by_global_norm(...) kiln_clip_by_global_norm_at(__VA_ARGS__, KILN_HERE)
#define kiln_scaler_new(...) kiln_scaler_new_at(__VA_ARGS__, KILN_HERE)
#define kiln_scaler_scale(...) kiln_scaler_scale_at(__VA_ARGS__, KILN_HERE)
#define kiln_scaler_unscale(...) kiln_scaler_unscale_at(__VA_ARGS__, KILN_HERE)
#define kiln_cumsum(...) kiln_cumsum_at(__VA_ARGS__, KILN_HERE)
#define kiln_matmul(...) kiln_matmul_at(__VA_ARGS__, KILN_HERE)
#define kiln_linear(...) kiln_linear_at(__VA_ARGS__, KILN_HERE)

#define kiln_einsum_list(...) kiln_einsum_list_at(__VA_ARGS__, KILN_HERE)
#ifdef __cplusplus
#define kiln_einsum(...) kiln_einsum_of(KILN_HERE, __VA_ARGS__)
#else
#define kiln_einsum(equation, ...) kiln_einsum_list_at(equation, KILN_LIST(__VA_ARGS__), KILN_HERE)
#endif
#define kiln_tensordot(...) kiln_tensordot_at(__VA_ARGS__, KILN_HERE)
#define kiln_outer(...) kiln_outer_at(__VA_ARGS__, KILN_HERE)
#define kiln_dot(...) kiln_dot_at(__VA_ARGS__, KILN_HERE)
#define kiln_solve(...) kiln_solve_at(__VA_ARGS__, KILN_HERE)
#define kiln_solve_triangular(...) kiln_solve_triangular_at(__VA_ARGS__, KILN_HERE)
#define kiln_inv(...) kiln_inv_at(__VA_ARGS__, KILN_HERE)
#define kiln_det(...) kiln_det_at(__VA_ARGS__, KILN_HERE)
#define kiln_cholesky(...) kiln_cholesky_at(__VA_ARGS__, KILN_HERE)
#define kiln_slogdet(...) kiln_slogdet_at(__VA_ARGS__, KILN_HERE)
#define kiln_qr(...) kiln_qr_at(__VA_ARGS__, KILN_HERE)
#define kiln_eigh(...) kiln_eigh_at(__VA_ARGS__, KILN_HERE)
#define kiln_svd(...) kiln_svd_at(__VA_ARGS__, KILN_HERE)
#define kiln_pad_by(...) kiln_pad_by_at(__VA_ARGS__, KILN_HERE)
#define kiln_unfold(...) kiln_unfold_at(__VA_ARGS__, KILN_HERE)
#define kiln_fold(...) kiln_fold_at(__VA_ARGS__, KILN_HERE)
#define kiln_conv(...) kiln_conv_at(__VA_ARGS__, KILN_HERE)
#define kiln_max_pool(...) kiln_max_pool_at(__VA_ARGS__, KILN_HERE)
#define kiln_avg_pool(...) kiln_avg_pool_at(__VA_ARGS__, KILN_HERE)
#define kiln_adaptive_max_pool(...) kiln_adaptive_max_pool_at(__VA_ARGS__, KILN_HERE)
#define kiln_adaptive_avg_pool(...) kiln_adaptive_avg_pool_at(__VA_ARGS__, KILN_HERE)
#define kiln_interpolate(...) kiln_interpolate_at(__VA_ARGS__, KILN_HERE)
#define kiln_batch_norm(...) kiln_batch_norm_at(__VA_ARGS__, KILN_HERE)
#define kiln_group_norm(...) kiln_group_norm_at(__VA_ARGS__, KILN_HERE)
#define kiln_attention(...) kiln_attention_at(__VA_ARGS__, KILN_HERE)
#define kiln_rotary(...) kiln_rotary_at(__VA_ARGS__, KILN_HERE)
#define kiln_softmax(...) kiln_softmax_at(__VA_ARGS__, KILN_HERE)
#define kiln_log_softmax(...) kiln_log_softmax_at(__VA_ARGS__, KILN_HERE)
#define kiln_normalize(...) kiln_normalize_at(__VA_ARGS__, KILN_HERE)
#define kiln_layer_norm(...) kiln_layer_norm_at(__VA_ARGS__, KILN_HERE)
#define kiln_rms_norm(...) kiln_rms_norm_at(__VA_ARGS__, KILN_HERE)
#define kiln_cross_entropy(...) kiln_cross_entropy_at(__VA_ARGS__, KILN_HERE)
#define kiln_binary_cross_entropy(...) kiln_binary_cross_entropy_at(__VA_ARGS__, KILN_HERE)
#define kiln_mse(...) kiln_mse_at(__VA_ARGS__, KILN_HERE)
#define kiln_one_hot(...) kiln_one_hot_at(__VA_ARGS__, KILN_HERE)
#define kiln_dropout(...) kiln_dropout_at(__VA_ARGS__, KILN_HERE)
#define kiln_set_device(...) kiln_set_device_at(__VA_ARGS__, KILN_HERE)
#define kiln_device_of(...) kiln_device_of_at(__VA_ARGS__, KILN_HERE)
#define kiln_to(...) kiln_to_at(__VA_ARGS__, KILN_HERE)
#define kiln_wait(...) kiln_wait_at(__VA_ARGS__, KILN_HERE)
#define kiln_eval(...) kiln_eval_at(__VA_ARGS__, KILN_HERE)
#define kiln_eval_many(...) kiln_eval_many_at(__VA_ARGS__, KILN_HERE)
#define kiln_eval_async(...) kiln_eval_async_at(__VA_ARGS__, KILN_HERE)
#define kiln_eval_many_async(...) kiln_eval_many_async_at(__VA_ARGS__, KILN_HERE)
#define kiln_read(...) kiln_read_at(__VA_ARGS__, KILN_HERE)
#define kiln_item(...) kiln_item_at(__VA_ARGS__, KILN_HERE)
#define kiln_item_int(...) kiln_item_int_at(__VA_ARGS__, KILN_HERE)
#define kiln_data(...) kiln_data_at(__VA_ARGS__, KILN_HERE)
#define kiln_print(...) kiln_print_at(__VA_ARGS__, KILN_HERE)
#define kiln_format(...) kiln_format_at(__VA_ARGS__, KILN_HERE)
#define kiln_save_npy(...) kiln_save_npy_at(__VA_ARGS__, KILN_HERE)
#define kiln_load_npy(...) kiln_load_npy_at(__VA_ARGS__, KILN_HERE)
#define kiln_load_safetensors(...) kiln_load_safetensors_at(__VA_ARGS__, KILN_HERE)
#define kiln_load_npz(...) kiln_load_npz_at(__VA_ARGS__, KILN_HERE)
#define kiln_save_npz(...) kiln_save_npz_at(__VA_ARGS__, KILN_HERE)
#define kiln_file_tensor(...) kiln_file_tensor_at(__VA_ARGS__, KILN_HERE)
#define kiln_file_tensors(...) kiln_file_tensors_at(__VA_ARGS__, KILN_HERE)
#define kiln_save_safetensors(...) kiln_save_safetensors_at(__VA_ARGS__, KILN_HERE)
#define kiln_mark_dynamic(...) kiln_mark_dynamic_at(__VA_ARGS__, KILN_HERE)
#define kiln_mark_static(...) kiln_mark_static_at(__VA_ARGS__, KILN_HERE)
#define kiln_mark_constant(...) kiln_mark_constant_at(__VA_ARGS__, KILN_HERE)
#define kiln_assign(...) kiln_assign_at(__VA_ARGS__, KILN_HERE)
#define kiln_function_new(...) kiln_function_new_at(__VA_ARGS__, KILN_HERE)
#define kiln_value_and_grad(...) kiln_value_and_grad_at(__VA_ARGS__, KILN_HERE)
#define kiln_function_call(...) kiln_function_call_at(__VA_ARGS__, KILN_HERE)
#define kiln_explain(...) kiln_explain_at(__VA_ARGS__, KILN_HERE)
#define kiln_graph_text(...) kiln_graph_text_at(__VA_ARGS__, KILN_HERE)
#elif defined(__cplusplus)
#define kiln_einsum(...) kiln_einsum_of(NULL, 0, __VA_ARGS__)
#else
#define kiln_einsum(equation, ...) kiln_einsum_list(equation, KILN_LIST(__VA_ARGS__))
#endif

/* ---- operands of functions of two and three ---- */

#ifndef KILN_NO_LOCATIONS
#if defined(__GNUC__) && !defined(__cplusplus) && defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
/* From here on gcc names your line alone where an operand is wrong (INFINITY without <math.h>), not each of the macros on the way. It would drop
 * warnings of ignored results, too, so nothing below returns a status. */
#pragma GCC system_header

/* The variable, because _Generic alone would have to name x twice, and with nested calls 2^depth
 * times; its name, because of -Wshadow. */
#define KILN_OPERAND(x) KILN_OPERAND_NUMBERED(x, __COUNTER__)
#define KILN_OPERAND_NUMBERED(x, n) KILN_OPERAND_NAMED(x, n)
#define KILN_OPERAND_NAMED(x, n)                   \
    __extension__({                                \
        __auto_type kiln_operand_##n = (x);        \
        _Generic(kiln_operand_##n,               \
            kiln_tensor *: kiln_operand_tensor,  \
            void *: kiln_operand_null,           \
            _Bool: kiln_bool_at,                 \
            float: kiln_scalar_at,               \
            double: kiln_scalar_at,              \
            char: kiln_int_at,                   \
            signed char: kiln_int_at,            \
            short: kiln_int_at,                  \
            int: kiln_int_at,                    \
            long: kiln_int_at,                   \
            long long: kiln_int_at,              \
            unsigned char: kiln_uint_at,         \
            unsigned short: kiln_uint_at,        \
            unsigned: kiln_uint_at,              \
            unsigned long: kiln_uint_at,         \
            unsigned long long: kiln_uint_at)(kiln_operand_##n, KILN_HERE); \
    })
static inline kiln_tensor *kiln_operand_tensor(kiln_tensor *x, const char *file, int line)
{
    (void)file, (void)line;
    return x;
}
static inline kiln_tensor *kiln_operand_null(void *x, const char *file, int line)
{
    (void)file, (void)line;
    return (kiln_tensor *)x;
}

#define KILN_TWO_OPERANDS(a, b) KILN_OPERAND(a), KILN_OPERAND(b), KILN_HERE
#define KILN_THREE_OPERANDS(a, b, c) KILN_OPERAND(a), KILN_OPERAND(b), KILN_OPERAND(c), KILN_HERE
#else
#define KILN_TWO_OPERANDS(...) __VA_ARGS__, KILN_HERE
#define KILN_THREE_OPERANDS(...) __VA_ARGS__, KILN_HERE
#endif
#define kiln_add(...) kiln_add_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_sub(...) kiln_sub_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_mul(...) kiln_mul_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_div(...) kiln_div_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_floor_divide(...) kiln_floor_divide_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_remainder(...) kiln_remainder_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_fmod(...) kiln_fmod_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_pow(...) kiln_pow_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_maximum(...) kiln_maximum_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_minimum(...) kiln_minimum_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_atan2(...) kiln_atan2_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_hypot(...) kiln_hypot_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_logaddexp(...) kiln_logaddexp_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_copysign(...) kiln_copysign_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_nextafter(...) kiln_nextafter_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_eq(...) kiln_eq_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_ne(...) kiln_ne_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_lt(...) kiln_lt_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_le(...) kiln_le_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_gt(...) kiln_gt_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_ge(...) kiln_ge_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_logical_and(...) kiln_logical_and_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_logical_or(...) kiln_logical_or_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_logical_xor(...) kiln_logical_xor_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_bitwise_and(...) kiln_bitwise_and_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_bitwise_or(...) kiln_bitwise_or_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_bitwise_xor(...) kiln_bitwise_xor_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_shift_left(...) kiln_shift_left_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_shift_right(...) kiln_shift_right_at(KILN_TWO_OPERANDS(__VA_ARGS__))
#define kiln_where(...) kiln_where_at(KILN_THREE_OPERANDS(__VA_ARGS__))
#define kiln_clamp(...) kiln_clamp_at(KILN_THREE_OPERANDS(__VA_ARGS__))
#endif

#endif
