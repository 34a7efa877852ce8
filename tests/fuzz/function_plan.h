/*
 * What fuzz_function.c does with one seed, as plain data (Plan), and what comes of it (Log).
 *
 * A step's numbers are hints that who runs it fits to what is there, so every plan means something, and a shrinker may change it freely.
 */
#ifndef TESTS_FUZZ_FUNCTION_PLAN_H
#define TESTS_FUZZ_FUNCTION_PLAN_H

#include "tests/differential/layouts.h"
#include "tests/support/random_graph.h"

enum { CALLS = 14, SETS = 3, EVENTS = 3, MORE = 3, AFTER = 3, READS = 400 };

/* Where the recipe's inputs come from. SHARED: the first captured tensor of its kind. */
typedef enum From { ARGUMENT, CAPTURED, SHARED, NUMBER, CONSTANT, DRAWN, FROMS } From;

/* What the body does before it uses an input ... */
typedef enum Before {
    PLAINLY,
    ASSIGN_BEFORE,
    DRAW_BEFORE,
    KEEP_BEFORE,
    SCOPE_BEFORE,
    ITEM_BEFORE,
    EVAL_BEFORE,
    SEED_BEFORE,
    BEFORES
} Before;

/* ... and with its outputs. */
typedef enum After { NOTHING, ASSIGN_AFTER, SWAP, ASSIGN_ARGUMENT, NEXT_NUMBER, NESTED, KEEP_AFTER, FAIL, STEER, AFTERS } After;

/* Outputs besides the recipe's. */
typedef enum More { AN_ARGUMENT, A_CAPTURED, A_NUMBER, A_CONSTANT, TWICE, MORES } More;

/* What happens before a call. */
typedef enum Event {
    NONE,
    ASSIGN_DATA,
    ASSIGN_PENDING,
    ASSIGN_OTHER,
    ASSIGN_VIEW,
    ASSIGN_RESULT,
    SET_NUMBER,
    SET_OPTION,
    DRAW,
    SEED,
    READ,
    EVAL,
    MARK,
    NEW_FUNCTION,
    CALL_INNER,
    EVENT_KINDS
} Event;

/* Options that no result depends on; check=pure must find nothing. */
enum { OPTIONS = 16 };
typedef struct Option {
    const char *name, *value;
} Option;
extern const Option options[OPTIONS];

typedef struct Call {
    uint8_t set, type, layout;
    bool pending, same, alias, weak; /* arguments: pending; one for several; captured tensors; weak scalars */
    uint32_t data;                   /* seed of the arguments' values */
    uint8_t late;                    /* outputs to be read once more at the end: bits */
    struct {
        uint8_t event, a;
        uint16_t k;
    } event[EVENTS];
} Call;

typedef struct Plan {
    Recipe recipe;
    int64_t sizes[SETS][PALETTE];
    uint8_t from[RECIPE_NODES], before[RECIPE_NODES];
    struct {
        uint8_t kind, a;
        uint16_t k;
    } after[AFTER];
    uint8_t more[MORE];
    int n_more, n_calls;
    Call call[CALLS];
} Plan;

/* What was read in one run, one after another. */
typedef struct Entry {
    uint8_t call, index;
    bool kept; /* by the body, in this call */
    char what[12];
    uint64_t hash;
    char kind[110], first[70]; /* its dtype and shape; its first element */
} Entry;

typedef struct Log {
    int n;
    Entry entry[READS];
    int runs;      /* of the body */
    char why[400]; /* "" or what went wrong */
} Log;

/* Runs a plan in this process: through kiln_functions, or with the body called directly in mode=interp. */
void plan_run(const Plan *plan, bool through, Log *log);

/* The options as each run starts. */
void plan_options(const char *mode);

#endif
