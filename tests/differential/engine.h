/*
 * The differential engine: one case is one op (or small graph) on given dtypes and shapes. It is computed by the
 * reference interpreter from plain contiguous copies, then by compiled code; everything must be equal (bit for bit unless the case has a
 * tolerance). The tables of cases are in diff_*.c; what is done with each case is one function, check(), of which there are two:
 *
 *     check.c                   in jit and in eager mode, from operands that lie in memory in several ways, at guard pages
 *     ../mutation/matrix.c      guard mutation: a warm program meets each of its facts changed
 *
 *     static void group(const Group *g) { ... check(&(Case){.op = g->name, .build = f, ...}); ... }
 *     int main(int argc, char **argv) { run a Group for each op }
 *
 * What must hold of each jit and eager run, besides the values: no fall-back to the interpreter; kernels were launched
 * where something had to be computed; inputs unchanged.
 *
 * A run takes a slice of the cases (support/slice.h).
 *
 * With KILN_DEVICE=cuda everything is placed and computed there, the interpreter's results too: it sums in the device's order then, so the
 * comparison is as strict.
 *
 * Each group runs in a child process, so that a crash costs one group; its case is printed. Arguments of the program: names of
 * groups to run.
 */
#ifndef TESTS_DIFFERENTIAL_ENGINE_H
#define TESTS_DIFFERENTIAL_ENGINE_H

#include "tests/support/compare.h"

enum { MAX_IN = 4, MAX_OUT = 8 };

/* Sets of dtypes, for tables. */
enum {
    D_BOOL = 1 << KILN_BOOL,
    D_SIGNED = 1 << KILN_I8 | 1 << KILN_I16 | 1 << KILN_I32 | 1 << KILN_I64,
    D_UNSIGNED = 1 << KILN_U8 | 1 << KILN_U16 | 1 << KILN_U32 | 1 << KILN_U64,
    D_INTS = D_SIGNED | D_UNSIGNED,
    D_BITS = D_INTS | D_BOOL,
    D_FLOATS = 1 << KILN_F16 | 1 << KILN_BF16 | 1 << KILN_F32 | 1 << KILN_F64,
    D_NUMBERS = D_INTS | D_FLOATS,
    D_ALL = D_NUMBERS | D_BOOL
};
enum { DTYPES = KILN_F64 + 1 };

typedef struct Spec {
    kiln_dtype dtype;
    kiln_shape shape;
    Values values;
    int64_t limit; /* VALUES_INDEX */
} Spec;

typedef struct Case Case;
/* Records the case on its inputs: fills out and returns the number of outputs (0: refused, an error is kept). */
typedef int Build(const Case *c, kiln_tensor *const *in, kiln_tensor **out);

enum {
    MAY_BE_FREE = 1,        /* may need no kernel: a view of an input, a constant */
    FAST_TOO = 8,           /* also with math=fast (the default), within a few units in the last place */
    FREE_WHEN_REPEATING = 4 /* may need no kernel when the data repeats along axes: max of an expanded tensor */
};

struct Case {
    const char *op;
    Build *build;
    const void *row; /* whatever build needs */
    int64_t arg[6];  /* the same, printed with a failure */
    int choices[6];  /* how many values arg[k] may take that leave the structure as it is: 0 and up; 0: just the one it has */
    int n_in;
    Spec in[MAX_IN];
    unsigned flags;
    Tolerance tolerance;
    double fast_absolute; /* FAST_TOO: how far off a float narrower than f64 may be besides, where the formula cancels */
    kiln_status refused;  /* the error that recording must give; KILN_OK: must work */
    kiln_dtype out;       /* expected dtype of the first output when out_known */
    bool out_known;
};

void check(const Case *c);

typedef struct Group Group;
struct Group {
    const char *name;
    void (*run)(const Group *group);
    const void *row;
};

/* Called at the end of each group's process; beside check(). */
void group_ends(const Group *group);

/* Runs the groups (those named in argv) and prints a summary; the exit status of main. */
int run_groups(const char *program, const Group *groups, int n, int argc, char **argv);

/* KILN_DEVICE is set: operands lie there and programs run there, on the software CUDA driver in CI. */
bool on_device(void);
/* The size that n stands for: there at most KILN_TEST_LARGEST (4099), since each instruction is executed by software. */
int64_t size_here(int64_t n);
Case case_here(const Case *c);
/* Counts and prints a failure of the case at hand, for checks beside the engine's. */
void report(const Case *c, const char *how, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Counts a case; is it one of this run's slice? *number, if not NULL, gets its number, which is the same in each run. */
bool case_due(int64_t *number);
void count_run(void);
/* "add(f32[7,13], f32[13]) args 0 0 0 0 0 0 [jit, plain]"; the second is kept, for when the process dies. */
void describe(const Case *c, const char *how, char *text, size_t size);
void case_at_hand(const Case *c, const char *how);
extern char last_warning[256]; /* for the reason of a fall-back */

/* Sets an option; leaves the program when it is refused. */
void set_option(const char *name, const char *value);

#endif
