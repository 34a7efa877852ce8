/* Inside jit/sort.c: lines and what moves. By one thread: sort_line.c; by several: sort_threads.c. */
#ifndef JIT_SORT_LINE_H
#define JIT_SORT_LINE_H

#include "jit/sort.h"
#include "jit/sort_network.h"

enum { WAY_NETWORK, WAY_LINE, WAY_CUTS, WAY_SLICES };
enum { CACHE_LINE = 64, DIGIT = 8, RADIX = 1 << DIGIT };
enum { SLICE_LEAST = 1 << 15 }; /* elements that are worth a thread of their own */

typedef struct Pair {
    uint64_t key;
    int64_t at;
} Pair;

typedef struct Range { /* of keys */
    int64_t least, greatest;
} Range;

const SortNetwork *sort_network_of(SortVectors vectors);

static inline int digits_of(const SortJob *job) { return (int)dtype_bytes(job->dtype); }

static inline int log2_above(int64_t n)
{
    int size = 0;
    while (size < 62 && (INT64_C(1) << size) < n)
        size++;
    return size;
}

static inline size_t aligned(size_t bytes)
{
    return bytes > SIZE_MAX - CACHE_LINE ? SIZE_MAX : (bytes + CACHE_LINE - 1) & ~(size_t)(CACHE_LINE - 1);
}

/* One order of n items. */
static inline size_t order_bytes(int64_t n, int item)
{
    size_t bytes;
    return __builtin_mul_overflow((size_t)n, (size_t)item, &bytes) ? SIZE_MAX : aligned(bytes);
}

static inline size_t two_orders(int64_t n, int item)
{
    size_t one = order_bytes(n, item);
    return one > SIZE_MAX / 4 ? SIZE_MAX : 2 * one;
}

/* Does a line have items that vectors sort? */
static inline bool quick(const SortPlan *plan) { return sort_network_of(plan->vectors) && plan->item_bytes <= 8; }

/* Or may they be such, when they are made? */
static inline bool squeezes(const SortPlan *plan)
{
    enum { LEAST = 12 };
    return sort_network_of(plan->vectors) && plan->item_bytes == (int)sizeof(Pair) && plan->job.n >= LEAST;
}

/* Of what vectors sort. */
static inline int moved_bytes(const SortPlan *plan) { return squeezes(plan) ? 8 : plan->item_bytes; }

/* Can the result be the items' place while they are sorted? */
static inline bool in_place(const SortPlan *plan)
{
    return quick(plan) && plan->job.values && plan->job.inner == 1 && (int)dtype_bytes(plan->job.dtype) == plan->item_bytes;
}

/* Slices of a line, whose last one has the remainder. */
static inline int64_t slice_start(const SortPlan *plan, int64_t slice)
{
    return slice == plan->slices ? plan->job.n : plan->job.n / plan->slices * slice;
}

/* ---- lines ---- */

/* One line of a job, and the digit that a pass moves by. */
typedef struct Line {
    const SortPlan *plan;
    KeyRule rule;
    const unsigned char *in;
    unsigned char *out;
    int64_t n, stride;
    uint64_t bias; /* to be added to signed keys; radix has unsigned ones */
} Line;

Line sort_line_of(const SortPlan *plan, int64_t number);
/* n <= BLOCK elements from place `at` on, side by side: where they are, or in `room`. */
enum { BLOCK = 256 };
const void *sort_elements_at(const Line *line, int64_t at, int64_t n, uint64_t *room);
int64_t sort_key_at(const Line *line, int64_t place); /* of 64 bits */
/* Keys of elements and back: with vectors, where there are some. true: some are odd. */
bool sort_keys_of_32(const Line *line, const void *elements, int64_t n, int32_t *keys);
bool sort_keys_of_64(const Line *line, const void *elements, int64_t n, int64_t *keys);

typedef struct Kind {
    /* Items of elements [lo, hi). true: some are odd. */
    bool (*make)(const Line *line, int64_t lo, int64_t hi, void *items);
    /* How often each digit occurs: of `digits` places from bit `shift` on, one count[radix] each. */
    void (*count)(const void *items, int64_t lo, int64_t hi, int shift, int digits, int64_t (*count)[RADIX]);
    void (*move)(const void *from, int64_t lo, int64_t hi, int shift, int64_t *next, void *to);
    void *(*merge)(void *items, void *spare, int64_t n);
} Kind;

const Kind *sort_kind_of(const SortPlan *plan);
void sort_items(const SortPlan *plan, void *items, int64_t n);                     /* with vectors */
void sort_write_line(const Line *line, const void *items, int64_t lo, int64_t hi); /* items [lo, hi) of a sorted line become its result */
void sort_whole(const Line *line, void *room);                                     /* as it is planned */
void sort_line(const Line *line, void *room);                                      /* squeezed, where that goes */

/* ---- keys of 64 bits and places, squeezed ---- */

/* What an item has of a key: its distance from the least one, without `lost` lower bits, above as many bits as a place of the line needs. */
typedef struct Squeeze {
    int64_t least;
    int places, lost;
} Squeeze;

Squeeze squeeze_of(int64_t n, const Range *of, int64_t count); /* of a line whose parts have these ranges */
int64_t squeeze_item(const Squeeze *q, int64_t key, int64_t place);
Range squeeze_keys(const Line *line, int64_t lo, int64_t hi, int64_t *items); /* keys of elements [lo, hi), where their items will be */
void squeeze_items(const Squeeze *q, int64_t lo, int64_t hi, int64_t *items);
void squeeze_write(const Line *line, const Squeeze *q, int64_t lo, int64_t hi, const int64_t *items);
bool squeeze_settle(const Line *line, const int64_t *items, const Squeeze *q); /* false: too many agree; pairs have to be */

/* ---- several threads ---- */

size_t cuts_head(int64_t slices); /* bytes that slices and parts share, before the items */
size_t slices_head(int64_t slices);
int cuts_phases(void); /* of a line */
int slices_phases(const SortJob *job);
int64_t cuts_most_slices(void); /* of a line that is cut */
int64_t cuts_tasks(const SortPlan *plan, int phase);
int64_t slices_tasks(const SortPlan *plan, int phase);
void cuts_run(const SortPlan *plan, int phase, int64_t task, void *room);
void slices_run(const SortPlan *plan, int phase, int64_t slice, void *room);

#endif
