/*
 * Sorting by order-preserving keys: each element becomes an unsigned key whose order is the wanted one (descending order inverts it, so
 * stability is the same). Four ways; which is the cheapest follows from the job's sizes alone, and all give the same bits:
 *
 *   network   many short lines: one in each lane of a vector (jit/sort_network.h)
 *   line      a line by one thread: by quicksort with vectors where there are some for its items (jit/sort_quick.inc). Else merged when
 *             it is short, or by radix from the lowest digit up; a digit in which all keys agree costs nothing but its count
 *   cuts      a long line by all threads, with vectors: each cuts its slice at the same bounds, quantiles of a sample, then each sorts
 *             what of all slices lies between two of these
 *   slices    a long line by all threads, by radix: each counts and moves the digits of its slice, whose elements keep their order
 *
 * An item is what moves: the key where values are wanted, else key and place in one integer, or a pair of both where that has no room. With vectors a
 * line of such is tried without pairs: what its keys are above the least of them, without lower bits where that is too long, and the place. Few
 * keys differ in these bits alone; they are put right afterwards (sort_squeezed).
 */
#include "jit/sort.h"
#include "jit/sort_network.h"

#include <string.h>

enum { WAY_NETWORK, WAY_LINE, WAY_CUTS, WAY_SLICES };
enum { RUN = 8, CACHE_LINE = 64, DIGIT = 8, RADIX = 1 << DIGIT, MOST_DIGITS = 64 / DIGIT };
enum { SLICE_LEAST = 1 << 15, GRAIN = 4096 }; /* elements that are worth a thread of their own; that are worth a trip to one */

typedef struct Pair {
    uint64_t key;
    int64_t at;
} Pair;

typedef struct Range { /* of keys */
    int64_t least, greatest;
} Range;

/* --- keys -------------------------------------------------------------------------------------------------------------- */

KeyRule sort_key_rule(DType dtype, bool descending)
{
    static const uint64_t infinity[DT_COUNT] = {
        [DT_F16] = 0x7c00, [DT_BF16] = 0x7f80, [DT_F32] = 0x7f800000, [DT_F64] = UINT64_C(0x7ff0000000000000)};
    KeyRule r = {.bytes = (unsigned)dtype_bytes(dtype), .descending = descending};
    r.is_float = dtype_is_float(dtype);
    r.is_signed = dtype_is_signed(dtype);
    r.sign = UINT64_C(1) << (r.bytes * 8 - 1);
    r.infinity = infinity[dtype];
    return r;
}

static inline uint64_t bits_at(const KeyRule *r, const unsigned char *at)
{
    uint64_t bits = 0;
    memcpy(&bits, at, r->bytes); /* little endian */
    return bits;
}

/* Unsigned order of the result is the order asked for; only the rule's bytes are used. */
static inline uint64_t key_of(const KeyRule *r, uint64_t bits)
{
    uint64_t mask = r->sign | (r->sign - 1);
    if (r->is_float) {
        if ((bits & ~r->sign) > r->infinity)
            return mask; /* NaN: last */
        if (bits == r->sign)
            bits = 0; /* -0 */
        bits = bits & r->sign ? ~bits & mask : bits | r->sign;
    } else if (r->is_signed) {
        bits ^= r->sign;
    }
    return r->descending ? ~bits & mask : bits;
}

static bool is_nan_key(const KeyRule *r, uint64_t bits) { return (bits & ~r->sign) > r->infinity; }

void sort_restore(const KeyRule *rule, const void *line, void *sorted, int64_t n, int64_t stride)
{
    const unsigned char *x = line;
    unsigned char *y = sorted;
    const size_t bytes = rule->bytes, step = (size_t)stride * bytes;
    uint64_t zero = key_of(rule, 0);
    int64_t nans = 0, before = 0; /* elements whose order is before that of zero */
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = bits_at(rule, x + (size_t)i * step);
        bool nan = is_nan_key(rule, bits);
        nans += nan;
        before += !nan && key_of(rule, bits) < zero;
    }
    int64_t next_nan = n - nans, next_zero = before;
    for (int64_t i = 0; i < n; i++) {
        const unsigned char *from = x + (size_t)i * step;
        uint64_t bits = bits_at(rule, from);
        if (is_nan_key(rule, bits))
            memcpy(y + (size_t)next_nan++ * step, from, bytes);
        else if (!(bits & ~rule->sign))
            memcpy(y + (size_t)next_zero++ * step, from, bytes);
    }
}

/* --- which way ----------------------------------------------------------------------------------------------------------- */

SortVectors sort_vectors(int64_t most_bits, bool avx512)
{
    __builtin_cpu_init();
    if (avx512 && (most_bits == 0 || most_bits >= 512) && __builtin_cpu_supports("avx512f"))
        return SORT_AVX512;
    return (most_bits == 0 || most_bits >= 256) && __builtin_cpu_supports("avx2") ? SORT_AVX2 : SORT_NONE;
}

static const SortNetwork *network_of(SortVectors vectors)
{
    return vectors == SORT_AVX512 ? &sort_network_avx512 : vectors == SORT_AVX2 ? &sort_network_avx2 : NULL;
}

/* Bytes of an item of the network: the place has the lower half. 0: it has none. */
static int network_item(const SortJob *job)
{
    int bytes = (int)dtype_bytes(job->dtype);
    if (job->values)
        return bytes == 8 ? 8 : 4;
    return bytes == 8 ? 0 : bytes == 4 ? 8 : 4;
}

static int radix_item(const SortJob *job)
{
    int bytes = (int)dtype_bytes(job->dtype);
    if (job->values)
        return bytes == 8 ? 8 : 4;
    return bytes == 8 || job->n > UINT32_MAX ? (int)sizeof(Pair) : 8;
}

/* Does a line have items that vectors sort? */
static bool quick(const SortPlan *plan) { return network_of(plan->vectors) && plan->item_bytes <= 8; }

/* Or may they be such, when they are made? */
static bool squeezes(const SortPlan *plan)
{
    enum { LEAST = 12 };
    return network_of(plan->vectors) && plan->item_bytes == (int)sizeof(Pair) && plan->job.n >= LEAST;
}

static int log2_above(int64_t n)
{
    int size = 0;
    while (size < 62 && (INT64_C(1) << size) < n)
        size++;
    return size;
}

/* How many lines lie side by side for the network. */
static int64_t neighbours(const SortJob *job) { return job->inner > 1 ? job->inner : job->outer; }

static int64_t groups(int64_t lines, int lanes) { return (lines + lanes - 1) / lanes; }

/* Rough nanoseconds per element, measured on one core of Cascade Lake: each step of the network on a vector, and reading and writing. */
static double network_cost(const SortJob *job, int lanes, int item)
{
    int size = log2_above(job->n < SORT_NETWORK_LEAST ? SORT_NETWORK_LEAST : job->n);
    double steps = 0.5 * size * (size + 1) + (item == 8 ? 12 : 10);
    double vectors = (double)((int64_t)1 << size) * (double)groups(neighbours(job), lanes);
    return steps * (item == 8 ? 0.8 : 0.6) * vectors / ((double)job->n * (double)neighbours(job));
}

/* The same of a quicksort, whose leaves are sorted in registers; elements that lie apart are fetched one by one. */
static double quick_cost(const SortJob *job, const SortNetwork *network)
{
    int item = radix_item(job), lanes = item == 8 ? network->lanes64 : network->lanes32, cuts = 0;
    while (((int64_t)32 * lanes) << cuts < job->n)
        cuts++;
    double cost = 30.0 / (double)job->n + (item == 8 ? 2.3 + 8.0 / lanes : 1.5) + (job->inner > 1 ? 8 : 0);
    return cuts ? cost + 16.0 / lanes + cuts * (item == 8 ? 0.9 : 0.35) : cost;
}

static int digits_of(const SortJob *job) { return (int)dtype_bytes(job->dtype); }

/* Lines up to this length are merged: counting the digits of few elements costs more. */
static int64_t few(const SortJob *job) { return 16 * digits_of(job); }

/* What the slices of a line share; the two orders of items follow, then counts[slices][radix]. */
typedef struct Shared {
    int now;    /* which order holds */
    bool skip;  /* all agree in this digit */
    bool odd[]; /* by slice: has NaNs or zeros below zero */
} Shared;

static size_t aligned(size_t bytes)
{
    return bytes > SIZE_MAX - CACHE_LINE ? SIZE_MAX : (bytes + CACHE_LINE - 1) & ~(size_t)(CACHE_LINE - 1);
}

static size_t shared_bytes(int64_t slices) { return aligned(sizeof(Shared) + (size_t)slices); }

/* One order of n items. */
static size_t order_bytes(int64_t n, int item)
{
    size_t bytes;
    return __builtin_mul_overflow((size_t)n, (size_t)item, &bytes) ? SIZE_MAX : aligned(bytes);
}

static size_t two_orders(int64_t n, int item)
{
    size_t one = order_bytes(n, item);
    return one > SIZE_MAX / 4 ? SIZE_MAX : 2 * one;
}

/* Make items; for each digit count, add up, move; write the result; restore what keys do not know. */
enum { STEP_COUNT, STEP_ADD, STEP_MOVE, STEPS };
static int line_phases(const SortJob *job) { return 3 + STEPS * digits_of(job); }

/* Parts of a line that is cut, for each of its slices (several, as samples make them uneven); samples for each part. No more slices than
 * have room for all samples. */
enum { PARTS = 4, SAMPLES = 32, MOST_SLICES = SLICE_LEAST / (PARTS * SAMPLES) };
/* Keys, if they are to be squeezed; items, of which each slice's are cut; parts are sorted and written; restore what keys do not know, or settle. */
enum { CUTS_KEYS, CUTS_CUT, CUTS_SORT, CUTS_RESTORE, CUTS_PHASES };

/* What slices and parts share, before the items. */
static size_t cuts_head(int64_t slices)
{
    return aligned((size_t)slices) + aligned((size_t)slices * sizeof(Range)) + aligned((size_t)(slices * slices * PARTS) * sizeof(int64_t));
}

/* Slices of a line, whose last one has the remainder. */
static int64_t slice_start(const SortPlan *plan, int64_t slice)
{
    return slice == plan->slices ? plan->job.n : plan->job.n / plan->slices * slice;
}

/* Of what vectors sort. */
static int moved_bytes(const SortPlan *plan) { return squeezes(plan) ? 8 : plan->item_bytes; }

/* Can the result be the items' place while they are sorted? */
static bool in_place(const SortPlan *plan)
{
    return quick(plan) && plan->job.values && plan->job.inner == 1 && (int)dtype_bytes(plan->job.dtype) == plan->item_bytes;
}

void sort_plan(const SortJob *job, int threads, SortVectors vectors, SortPlan *plan)
{
    int64_t lines = job->outer * job->inner;
    *plan = (SortPlan){.job = *job, .threads = threads < 1 ? 1 : threads, .vectors = vectors, .way = WAY_LINE, .phases = 1, .slices = 1};
    const SortNetwork *network = network_of(vectors);
    int item = network_item(job), lanes = !network ? 0 : item == 8 ? network->lanes64 : network->lanes32;
    plan->item_bytes = radix_item(job);
    if (lines <= 0 || job->n <= 0)
        return;
    if (network && item && job->n > 1 && job->n <= SORT_NETWORK_MOST && network_cost(job, lanes, item) < quick_cost(job, network)) {
        plan->way = WAY_NETWORK;
        plan->item_bytes = item;
        int64_t most = (int64_t)1 << log2_above(job->n < SORT_NETWORK_LEAST ? SORT_NETWORK_LEAST : job->n);
        plan->thread_room = aligned((size_t)most * (size_t)lanes * (size_t)item);
        return;
    }
    if (threads > 1 && lines < threads && job->n >= 2 * SLICE_LEAST) {
        plan->slices = job->n / SLICE_LEAST < threads ? job->n / SLICE_LEAST : threads;
        if (quick(plan) || squeezes(plan)) {
            plan->way = WAY_CUTS;
            plan->slices = plan->slices < MOST_SLICES ? plan->slices : MOST_SLICES;
            plan->phases = (int)lines * CUTS_PHASES;
            size_t items = in_place(plan) ? order_bytes(job->n, plan->item_bytes) : two_orders(job->n, plan->item_bytes);
            plan->shared = items > SIZE_MAX / 2 ? SIZE_MAX : items + cuts_head(plan->slices);
            return;
        }
        plan->way = WAY_SLICES;
        plan->phases = (int)lines * line_phases(job);
        size_t counts = (size_t)plan->slices * sizeof(int64_t[RADIX]), items = two_orders(job->n, plan->item_bytes);
        size_t shared = shared_bytes(plan->slices) + aligned(counts);
        plan->shared = items > SIZE_MAX - shared ? SIZE_MAX : items + shared;
        return;
    }
    plan->thread_room = two_orders(job->n, plan->item_bytes);
    if (quick(plan))
        plan->thread_room = in_place(plan) ? 0 : order_bytes(job->n, plan->item_bytes);
}

size_t sort_room(const SortPlan *plan)
{
    size_t all;
    if (__builtin_mul_overflow(plan->thread_room, (size_t)plan->threads, &all) || __builtin_add_overflow(all, plan->shared, &all))
        return SIZE_MAX;
    return all;
}

/* --- radix sort of a line ------------------------------------------------------------------------------------------------- */

/* One line of a job, and the digit that a pass moves by. */
typedef struct Line {
    const SortPlan *plan;
    KeyRule rule;
    const unsigned char *in;
    unsigned char *out;
    int64_t n, stride;
    uint64_t bias; /* to be added to signed keys; radix has unsigned ones */
} Line;

static Line line_of(const SortPlan *plan, int64_t number)
{
    const SortJob *job = &plan->job;
    int64_t first = number / job->inner * job->n * job->inner + number % job->inner;
    Line line = {.plan = plan, .rule = sort_key_rule(job->dtype, job->descending), .n = job->n, .stride = job->inner};
    line.in = (const unsigned char *)job->in + (size_t)first * line.rule.bytes;
    line.out = (unsigned char *)job->out + (size_t)first * (job->values ? line.rule.bytes : sizeof(int64_t));
    line.bias = quick(plan) ? 0 : line.rule.sign;
    return line;
}

/* Elements of a line that are looked at together. */
enum { BLOCK = 256 };

#define N(name) name##_of_32
#define ITEM int32_t
#define ITEM_BITS 32
#include "jit/sort_keys.inc"
#undef N
#undef ITEM
#undef ITEM_BITS
#define N(name) name##_of_64
#define ITEM int64_t
#define ITEM_BITS 64
#include "jit/sort_keys.inc"
#undef N
#undef ITEM
#undef ITEM_BITS

/* n <= BLOCK elements from place `at` on, side by side: where they are, or in `room`. */
static const void *elements_at(const Line *line, int64_t at, int64_t n, uint64_t *room)
{
    const size_t bytes = line->rule.bytes;
    const unsigned char *x = line->in + (size_t)(at * line->stride) * bytes;
    if (line->stride == 1)
        return x;
    unsigned char *to = (unsigned char *)room;
    for (int64_t i = 0; i < n; i++, x += (size_t)line->stride * bytes)
        memcpy(to + (size_t)i * bytes, x, bytes);
    return room;
}

static void put_elements(const Line *line, int64_t at, int64_t n, const unsigned char *from)
{
    const size_t bytes = line->rule.bytes;
    for (int64_t i = 0; i < n; i++)
        memcpy(line->out + (size_t)((at + i) * line->stride) * bytes, from + (size_t)i * bytes, bytes);
}

static inline void put_place(const Line *line, int64_t to, int64_t place)
{
    memcpy(line->out + (size_t)(to * line->stride) * sizeof place, &place, sizeof place);
}

/* Keys of elements and back: with vectors, where there are some. */
#define KEYS_OF(width)                                                                                                            \
    static bool keys_of_##width(const Line *line, const void *elements, int64_t n, int##width##_t *keys)                          \
    {                                                                                                                             \
        const SortNetwork *network = network_of(line->plan->vectors);                                                             \
        return network ? network->keys##width(&line->rule, elements, n, keys) : items_of_##width(&line->rule, elements, n, keys); \
    }                                                                                                                             \
    static void keys_back_##width(const Line *line, const int##width##_t *keys, int64_t n, void *elements)                        \
    {                                                                                                                             \
        const SortNetwork *network = network_of(line->plan->vectors);                                                             \
        if (network)                                                                                                              \
            network->elements##width(&line->rule, keys, n, elements);                                                             \
        else                                                                                                                      \
            elements_of_##width(&line->rule, keys, n, elements);                                                                  \
    }

KEYS_OF(32)
KEYS_OF(64)

/* Kinds of items: K(kind, type, width of its keys, the key of x, the item of a key and a place). */
#define KINDS(K)                                                               \
    K(key32, uint32_t, 32, (x), (uint32_t)key)                                 \
    K(key64, uint64_t, 64, (x), key)                                           \
    K(place32, uint64_t, 32, (x) >> 32, (uint64_t)key << 32 | (uint32_t)place) \
    K(pair, Pair, 64, (x).key, ((Pair){key, place}))

typedef struct Kind {
    /* Items of elements [lo, hi). true: some are odd. */
    bool (*make)(const Line *line, int64_t lo, int64_t hi, void *items);
    /* How often each digit occurs: of `digits` places from bit `shift` on, one count[radix] each. */
    void (*count)(const void *items, int64_t lo, int64_t hi, int shift, int digits, int64_t (*count)[RADIX]);
    void (*move)(const void *from, int64_t lo, int64_t hi, int shift, int64_t *next, void *to);
    void *(*merge)(void *items, void *spare, int64_t n);
} Kind;

#define KIND(kind, Item, width, KEY, MAKE)                                                                               \
    static inline uint64_t kind##_key(Item x) { return KEY; }                                                            \
    static bool kind##_make(const Line *line, int64_t lo, int64_t hi, void *items)                                       \
    {                                                                                                                    \
        Item *a = items;                                                                                                 \
        bool odd = false;                                                                                                \
        const uint##width##_t bias = (uint##width##_t)line->bias;                                                        \
        for (int64_t at = lo; at < hi; at += BLOCK) {                                                                    \
            int##width##_t keys[BLOCK];                                                                                  \
            uint64_t room[BLOCK];                                                                                        \
            int64_t n = hi - at < BLOCK ? hi - at : BLOCK;                                                               \
            odd |= keys_of_##width(line, elements_at(line, at, n, room), n, keys);                                       \
            for (int64_t i = 0; i < n; i++) {                                                                            \
                uint##width##_t key = (uint##width##_t)keys[i] + bias;                                                   \
                int64_t place = at + i;                                                                                  \
                (void)place;                                                                                             \
                a[at + i] = MAKE;                                                                                        \
            }                                                                                                            \
        }                                                                                                                \
        return odd;                                                                                                      \
    }                                                                                                                    \
    static void kind##_count(const void *items, int64_t lo, int64_t hi, int shift, int digits, int64_t(*count)[RADIX])   \
    {                                                                                                                    \
        const Item *a = items;                                                                                           \
        for (int64_t i = lo; i < hi; i++) {                                                                              \
            uint64_t key = kind##_key(a[i]) >> shift;                                                                    \
            for (int d = 0; d < digits; d++, key >>= DIGIT)                                                              \
                count[d][key & (RADIX - 1)]++;                                                                           \
        }                                                                                                                \
    }                                                                                                                    \
    static void kind##_move(const void *from, int64_t lo, int64_t hi, int shift, int64_t *next, void *to)                \
    {                                                                                                                    \
        const Item *a = from;                                                                                            \
        Item *b = to;                                                                                                    \
        for (int64_t i = lo; i < hi; i++)                                                                                \
            b[next[kind##_key(a[i]) >> shift & (RADIX - 1)]++] = a[i];                                                   \
    }                                                                                                                    \
    /* Runs by insertion, then merged without a branch that depends on the data; where the result lies. */               \
    static void *kind##_merge(void *items, void *spare, int64_t n)                                                       \
    {                                                                                                                    \
        Item *a = items, *b = spare;                                                                                     \
        for (int64_t lo = 0; lo < n; lo += RUN)                                                                          \
            for (int64_t i = lo + 1; i < n && i < lo + RUN; i++) {                                                       \
                Item x = a[i];                                                                                           \
                int64_t j = i;                                                                                           \
                for (; j > lo && kind##_key(a[j - 1]) > kind##_key(x); j--)                                              \
                    a[j] = a[j - 1];                                                                                     \
                a[j] = x;                                                                                                \
            }                                                                                                            \
        for (int64_t run = RUN; run < n; run *= 2) {                                                                     \
            for (int64_t lo = 0; lo < n; lo += 2 * run) {                                                                \
                int64_t mid = lo + run < n ? lo + run : n, hi = mid + run < n ? mid + run : n, i = lo, j = mid, to = lo; \
                while (i < mid && j < hi) {                                                                              \
                    bool right = kind##_key(a[j]) < kind##_key(a[i]);                                                    \
                    const Item *from = right ? &a[j] : &a[i];                                                            \
                    b[to++] = *from;                                                                                     \
                    j += right;                                                                                          \
                    i += !right;                                                                                         \
                }                                                                                                        \
                memcpy(b + to, a + i, (size_t)(mid - i) * sizeof *a);                                                    \
                memcpy(b + to + (mid - i), a + j, (size_t)(hi - j) * sizeof *a);                                         \
            }                                                                                                            \
            Item *t = a;                                                                                                 \
            a = b;                                                                                                       \
            b = t;                                                                                                       \
        }                                                                                                                \
        return a;                                                                                                        \
    }                                                                                                                    \
    static const Kind kind = {kind##_make, kind##_count, kind##_move, kind##_merge};

KINDS(KIND)

/* Items [lo, hi) of a sorted line become its result. */
static void write_line(const Line *line, const void *items, int64_t lo, int64_t hi)
{
    const SortPlan *plan = line->plan;
    if (!plan->job.values && plan->item_bytes == 8) {
        for (int64_t i = lo; i < hi; i++)
            put_place(line, i, (uint32_t)((const uint64_t *)items)[i]);
        return;
    }
    for (int64_t i = lo; !plan->job.values && i < hi; i++)
        put_place(line, i, ((const Pair *)items)[i].at);
    for (int64_t at = lo; plan->job.values && at < hi; at += BLOCK) {
        uint64_t room[BLOCK], keys[BLOCK];
        int64_t n = hi - at < BLOCK ? hi - at : BLOCK;
        void *to = line->stride == 1 ? (void *)(line->out + (size_t)at * line->rule.bytes) : room;
        if (plan->item_bytes == 4) {
            for (int64_t i = 0; i < n; i++) /* `to` may be where they are */
                ((int32_t *)(void *)keys)[i] = (int32_t)(((const uint32_t *)items)[at + i] - (uint32_t)line->bias);
            keys_back_32(line, (const int32_t *)(const void *)keys, n, to);
        } else {
            for (int64_t i = 0; i < n; i++)
                ((int64_t *)(void *)keys)[i] = (int64_t)(((const uint64_t *)items)[at + i] - line->bias);
            keys_back_64(line, (const int64_t *)(const void *)keys, n, to);
        }
        if (line->stride != 1)
            put_elements(line, at, n, to);
    }
}

static const Kind *kind_of(const SortPlan *plan)
{
    if (plan->job.values)
        return plan->item_bytes == 4 ? &key32 : &key64;
    return plan->item_bytes == 8 ? &place32 : &pair;
}

static void sort_items(const SortPlan *plan, void *items, int64_t n)
{
    const SortNetwork *network = network_of(plan->vectors);
    if (plan->item_bytes == 4)
        network->sort32(items, n);
    else
        network->sort64(items, n);
}

/* Where the items lie when they are sorted: in one of two orders. */
static char *radix_sort(const SortPlan *plan, const Kind *kind, char *a, char *b, int64_t n)
{
    int64_t count[MOST_DIGITS][RADIX];
    int digits = digits_of(&plan->job);
    memset(count, 0, sizeof *count * (size_t)digits);
    kind->count(a, 0, n, 0, digits, count);
    for (int d = 0; d < digits; d++) {
        int64_t *next = count[d], at = 0;
        bool agree = false;
        for (int k = 0; k < RADIX; k++) {
            int64_t of_digit = next[k];
            agree |= of_digit == n;
            next[k] = at;
            at += of_digit;
        }
        if (agree)
            continue;
        kind->move(a, 0, n, d * DIGIT, next, b);
        char *t = a;
        a = b;
        b = t;
    }
    return a;
}

/* --- keys of 64 bits and places, squeezed ---------------------------------------------------------------------------------- */

enum { MOST_TIED = 16 }; /* keys that agree in the bits that an item has */

/* What an item has of a key: its distance from the least one, without `lost` lower bits, above as many bits as a place of the line needs. */
typedef struct Squeeze {
    int64_t least;
    int places, lost;
} Squeeze;

static Squeeze squeeze_of(int64_t n, const Range *of, int64_t count)
{
    Range all = of[0];
    for (int64_t i = 1; i < count; i++) {
        all.least = of[i].least < all.least ? of[i].least : all.least;
        all.greatest = of[i].greatest > all.greatest ? of[i].greatest : all.greatest;
    }
    const uint64_t range = (uint64_t)all.greatest - (uint64_t)all.least;
    const int bits = range ? 64 - __builtin_clzll(range) : 0, places = log2_above(n);
    return (Squeeze){all.least, places, bits + places > 64 ? bits + places - 64 : 0};
}

static int64_t places_of(const Squeeze *q) { return (INT64_C(1) << q->places) - 1; }

static int64_t squeezed(const Squeeze *q, int64_t key, int64_t place)
{
    const uint64_t above = ((uint64_t)key - (uint64_t)q->least) >> q->lost;
    return (int64_t)((above << q->places | (uint64_t)place) ^ UINT64_C(1) << 63); /* vectors compare signed ones */
}

/* Keys of elements [lo, hi) where their items will be. */
static Range squeeze_keys(const Line *line, int64_t lo, int64_t hi, int64_t *items)
{
    Range r = {INT64_MAX, INT64_MIN};
    for (int64_t at = lo; at < hi; at += BLOCK) {
        uint64_t room[BLOCK];
        int64_t n = hi - at < BLOCK ? hi - at : BLOCK;
        keys_of_64(line, elements_at(line, at, n, room), n, items + at);
        for (int64_t i = at; i < at + n; i++) {
            r.least = items[i] < r.least ? items[i] : r.least;
            r.greatest = items[i] > r.greatest ? items[i] : r.greatest;
        }
    }
    return r;
}

static void squeeze_items(const Squeeze *q, int64_t lo, int64_t hi, int64_t *items)
{
    for (int64_t i = lo; i < hi; i++)
        items[i] = squeezed(q, items[i], i);
}

static void write_places(const Line *line, const Squeeze *q, int64_t lo, int64_t hi, const int64_t *items)
{
    for (int64_t i = lo; i < hi; i++)
        put_place(line, i, items[i] & places_of(q));
}

static int64_t key_at(const Line *line, int64_t place)
{
    uint64_t room[1];
    int64_t key;
    keys_of_64(line, elements_at(line, place, 1, room), 1, &key);
    return key;
}

/* Places [first, first + n) of the result, whose items' keys agree, are put in order by the whole keys. They are in order of place. */
static void settle_tied(const Line *line, int64_t *place, int64_t first, int64_t n)
{
    int64_t key[MOST_TIED];
    for (int64_t i = 0; i < n; i++) {
        int64_t k = key_at(line, place[i]), at = place[i], j = i;
        for (; j > 0 && key[j - 1] > k; j--) {
            key[j] = key[j - 1];
            place[j] = place[j - 1];
        }
        key[j] = k;
        place[j] = at;
    }
    for (int64_t i = 0; i < n; i++)
        put_place(line, first + i, place[i]);
}

/* Have two elements of a line the same key? */
static bool keys_agree(const Line *line, int64_t a, int64_t b)
{
    const size_t step = (size_t)line->stride * line->rule.bytes;
    return memcmp(line->in + (size_t)a * step, line->in + (size_t)b * step, line->rule.bytes) == 0 || key_at(line, a) == key_at(line, b);
}

/* Sorted items [first, end), places in their lower bits, agree in the others. Where their keys do, too, they are in order. false: too many do not. */
static bool settle(const Line *line, const int64_t *items, int64_t first, int64_t end, int64_t mask)
{
    int64_t place[MOST_TIED];
    bool same = true;
    for (int64_t i = first; i < end; i++) {
        same = same && keys_agree(line, items[first] & mask, items[i] & mask);
        if (i - first < MOST_TIED)
            place[i - first] = items[i] & mask;
    }
    if (!same && end - first <= MOST_TIED)
        settle_tied(line, place, first, end - first);
    return same || end - first <= MOST_TIED;
}

static bool settle_all(const Line *line, const int64_t *items, const Squeeze *q)
{
    const int64_t mask = places_of(q);
    if (!q->lost)
        return true;
    for (int64_t first = 0, end; first < line->n; first = end) {
        for (end = first + 1; end < line->n && (items[end] ^ items[first]) <= mask && (items[end] ^ items[first]) >= 0; end++)
            continue;
        if (end - first > 1 && !settle(line, items, first, end, mask))
            return false;
    }
    return true;
}

/* false: pairs have to be. */
static bool sort_squeezed(const Line *line, int64_t *items)
{
    const int64_t n = line->n;
    const Range range = squeeze_keys(line, 0, n, items);
    const Squeeze q = squeeze_of(n, &range, 1);
    squeeze_items(&q, 0, n, items);
    network_of(line->plan->vectors)->sort64(items, n);
    write_places(line, &q, 0, n, items);
    return settle_all(line, items, &q);
}

static void sort_whole(const Line *line, void *room)
{
    const SortPlan *plan = line->plan;
    const Kind *kind = kind_of(plan);
    int64_t n = line->n;
    char *items = in_place(plan) ? (char *)line->out : room;
    bool odd = kind->make(line, 0, n, items);
    if (quick(plan)) {
        sort_items(plan, items, n);
    } else {
        char *spare = items + order_bytes(n, plan->item_bytes);
        items = n > few(&plan->job) ? radix_sort(plan, kind, items, spare, n) : kind->merge(items, spare, n);
    }
    write_line(line, items, 0, n);
    if (odd && plan->job.values)
        sort_restore(&line->rule, line->in, line->out, n, line->stride);
}

static void sort_line(const Line *line, void *room)
{
    if (!squeezes(line->plan) || !sort_squeezed(line, room))
        sort_whole(line, room);
}

/* --- a line by cuts ---------------------------------------------------------------------------------------------------------- */

typedef struct Cuts {
    int64_t parts;
    bool *odd;      /* by slice: has NaNs or zeros below zero */
    Range *range;   /* by slice: of its keys, if they are squeezed */
    int64_t *count; /* of items, by slice and part */
    char *cut;      /* items as the slices cut them */
    char *sorted;   /* and part by part */
} Cuts;

static Cuts cuts_of(const SortPlan *plan, const Line *line, void *room)
{
    char *at = room;
    Cuts c = {.parts = plan->slices * PARTS, .odd = room};
    c.range = (Range *)(void *)(at + aligned((size_t)plan->slices));
    c.count = (int64_t *)(void *)((char *)c.range + aligned((size_t)plan->slices * sizeof *c.range));
    c.cut = at + cuts_head(plan->slices);
    c.sorted = in_place(plan) ? (char *)line->out : c.cut + order_bytes(line->n, moved_bytes(plan));
    return c;
}

/* The item of one element; q: of squeezed ones. */
static int64_t item_at(const Line *line, const Squeeze *q, int64_t place)
{
    uint64_t room[1];
    if (squeezes(line->plan))
        return squeezed(q, key_at(line, place), place);
    const void *x = elements_at(line, place, 1, room);
    int64_t wide = 0;
    int32_t key = 0;
    if (line->plan->job.values && line->plan->item_bytes == 8) {
        keys_of_64(line, x, 1, &wide);
        return wide;
    }
    keys_of_32(line, x, 1, &key);
    return line->plan->job.values ? key : (int64_t)((uint64_t)(uint32_t)key << 32 | (uint32_t)place);
}

/* All slices have the same bounds: quantiles of a sample of the whole line, which lies where the sorted items will. */
#define CUT_SLICE(bits)                                                                                                              \
    static void cut_slice_##bits(const Line *line, const Cuts *c, const Squeeze *q, int64_t slice, int64_t first, int64_t end)       \
    {                                                                                                                                \
        const SortNetwork *network = network_of(line->plan->vectors);                                                                \
        const int64_t samples = c->parts * SAMPLES, step = line->n / samples;                                                        \
        int##bits##_t *bounds = (int##bits##_t *)(void *)c->sorted + first;                                                          \
        for (int64_t i = 0; i < samples; i++)                                                                                        \
            bounds[i] = (int##bits##_t)item_at(line, q, i * step + (i * 7919) % step);                                               \
        network->sort##bits(bounds, samples);                                                                                        \
        for (int64_t i = 1; i < c->parts; i++)                                                                                       \
            bounds[i - 1] = bounds[i * SAMPLES];                                                                                     \
        network->cut##bits((int##bits##_t *)(void *)c->cut + first, end - first, bounds, c->parts - 1, c->count + slice * c->parts); \
    }

CUT_SLICE(32)
CUT_SLICE(64)

/* Part `part` of all slices comes together and is sorted. */
static void sort_part(const Line *line, const Cuts *c, const Squeeze *q, int64_t part)
{
    const SortPlan *plan = line->plan;
    const size_t bytes = (size_t)moved_bytes(plan);
    int64_t first = 0, n = 0;
    for (int64_t i = 0; i < plan->slices * c->parts; i++)
        first += i % c->parts < part ? c->count[i] : 0;
    for (int64_t slice = 0; slice < plan->slices; slice++) {
        const int64_t *count = c->count + slice * c->parts;
        int64_t from = slice_start(plan, slice);
        for (int64_t i = 0; i < part; i++)
            from += count[i];
        memcpy(c->sorted + (size_t)(first + n) * bytes, c->cut + (size_t)from * bytes, (size_t)count[part] * bytes);
        n += count[part];
    }
    sort_items(plan, c->sorted + (size_t)first * bytes, n);
    if (squeezes(plan))
        write_places(line, q, first, first + n, (const int64_t *)(const void *)c->sorted);
    else
        write_line(line, c->sorted, first, first + n);
}

/* What the items do not know. */
static void complete(const Line *line, const Cuts *c, const Squeeze *q)
{
    const SortPlan *plan = line->plan;
    bool odd = false;
    for (int64_t slice = 0; slice < plan->slices; slice++)
        odd |= c->odd[slice];
    if (odd && plan->job.values)
        sort_restore(&line->rule, line->in, line->out, line->n, line->stride);
    if (squeezes(plan) && !settle_all(line, (const int64_t *)(const void *)c->sorted, q))
        sort_whole(line, c->cut);
}

static void run_cuts(const SortPlan *plan, int phase, int64_t task, void *room)
{
    Line line = line_of(plan, phase / CUTS_PHASES);
    Cuts c = cuts_of(plan, &line, room);
    int64_t first = slice_start(plan, task), end = slice_start(plan, task + 1), *items = (int64_t *)(void *)c.cut;
    const Squeeze q = squeezes(plan) && phase % CUTS_PHASES != CUTS_KEYS ? squeeze_of(line.n, c.range, plan->slices) : (Squeeze){0};
    switch (phase % CUTS_PHASES) {
    case CUTS_KEYS: c.range[task] = squeeze_keys(&line, first, end, items); break;
    case CUTS_CUT:
        c.odd[task] = squeezes(plan) ? false : kind_of(plan)->make(&line, first, end, c.cut);
        if (squeezes(plan))
            squeeze_items(&q, first, end, items);
        (moved_bytes(plan) == 4 ? cut_slice_32 : cut_slice_64)(&line, &c, &q, task, first, end);
        break;
    case CUTS_SORT: sort_part(&line, &c, &q, task); break;
    case CUTS_RESTORE: complete(&line, &c, &q); break;
    }
}

/* --- a line by slices -------------------------------------------------------------------------------------------------------- */

typedef struct Slices {
    Shared *shared;
    char *items;              /* two orders */
    int64_t (*counts)[RADIX]; /* by slice */
} Slices;

static Slices slices_of(const SortPlan *plan, void *room)
{
    char *at = (char *)room + plan->thread_room * (size_t)plan->threads;
    Slices s = {.shared = (Shared *)(void *)at, .items = at + aligned(sizeof(Shared))};
    s.counts = (int64_t(*)[RADIX])(void *)(s.items + two_orders(plan->job.n, plan->item_bytes));
    return s;
}

static char *order_of(const SortPlan *plan, const Slices *s, int which)
{
    return s->items + (which ? order_bytes(plan->job.n, plan->item_bytes) : 0);
}

/* Where each slice puts its next element of each digit: digits in order, within one the slices in order. */
static void add_up(const SortPlan *plan, const Slices *s)
{
    int64_t at = 0;
    s->shared->skip = false;
    for (int k = 0; k < RADIX; k++) {
        int64_t before = at;
        for (int64_t slice = 0; slice < plan->slices; slice++) {
            int64_t *count = &s->counts[slice][k], n = *count;
            *count = at;
            at += n;
        }
        s->shared->skip |= at - before == plan->job.n;
    }
    s->shared->now ^= !s->shared->skip;
}

static void restore(const SortPlan *plan, const Line *line, const Slices *s)
{
    bool odd = false;
    for (int64_t slice = 0; slice < plan->slices; slice++)
        odd |= s->shared->odd[slice];
    if (odd && plan->job.values)
        sort_restore(&line->rule, line->in, line->out, line->n, line->stride);
}

/* Does one task do the whole of this phase? */
static bool alone(const SortPlan *plan, int phase)
{
    int step = phase % line_phases(&plan->job), last = line_phases(&plan->job) - 1;
    return step == last || (step > 0 && step < last - 1 && (step - 1) % STEPS == STEP_ADD);
}

static void run_slice(const SortPlan *plan, int phase, int64_t slice, void *room)
{
    const Kind *kind = kind_of(plan);
    int phases = line_phases(&plan->job), step = phase % phases, shift = (step - 1) / STEPS * DIGIT;
    Line line = line_of(plan, phase / phases);
    Slices s = slices_of(plan, room);
    int64_t first = slice_start(plan, slice), end = slice_start(plan, slice + 1);
    int which = step == 0 ? 0 : s.shared->now;
    char *now = order_of(plan, &s, which), *other = order_of(plan, &s, !which);
    if (step == 0) {
        if (slice == 0)
            s.shared->now = 0; /* nobody reads it in this phase */
        s.shared->odd[slice] = kind->make(&line, first, end, s.items);
    } else if (step == phases - 2) {
        write_line(&line, now, first, end);
    } else if (step == phases - 1) {
        restore(plan, &line, &s);
    } else if ((step - 1) % STEPS == STEP_COUNT) {
        memset(s.counts[slice], 0, sizeof s.counts[slice]);
        kind->count(now, first, end, shift, 1, s.counts + slice);
    } else if ((step - 1) % STEPS == STEP_ADD) {
        add_up(plan, &s);
    } else if (!s.shared->skip) {
        kind->move(other, first, end, shift, s.counts[slice], now);
    }
}

/* --- running --------------------------------------------------------------------------------------------------------------- */

static int network_lanes(const SortPlan *plan)
{
    const SortNetwork *network = network_of(plan->vectors);
    return plan->item_bytes == 8 ? network->lanes64 : network->lanes32;
}

static int64_t cuts_tasks(const SortPlan *plan, int step)
{
    const int64_t tasks[CUTS_PHASES] = {
        [CUTS_KEYS] = squeezes(plan) ? plan->slices : 0, [CUTS_CUT] = plan->slices, [CUTS_SORT] = plan->slices * PARTS, [CUTS_RESTORE] = 1};
    return tasks[step];
}

int64_t sort_tasks(const SortPlan *plan, int phase, int64_t *grain)
{
    const SortJob *job = &plan->job;
    int64_t lines = job->outer * job->inner, lanes;
    *grain = 1;
    if (lines <= 0 || job->n <= 0)
        return 0;
    switch (plan->way) {
    case WAY_CUTS: return cuts_tasks(plan, phase % CUTS_PHASES);
    case WAY_SLICES: return alone(plan, phase) ? 1 : plan->slices;
    case WAY_NETWORK:
        lanes = network_lanes(plan);
        *grain = 1 + GRAIN / (lanes * job->n);
        return job->inner > 1 ? job->outer * groups(job->inner, (int)lanes) : groups(lines, (int)lanes);
    }
    *grain = 1 + GRAIN / job->n;
    return lines;
}

/* Group `task` of the network: lines that lie side by side, or, where they lie one after the other, any. */
static void run_group(const SortPlan *plan, int64_t task, void *room)
{
    const SortJob *job = &plan->job;
    const SortNetwork *network = network_of(plan->vectors);
    int64_t lanes = network_lanes(plan), in_a_row = job->inner > 1 ? groups(job->inner, (int)lanes) : INT64_MAX;
    int64_t row = task / in_a_row * job->inner, lo = row + task % in_a_row * lanes;
    int64_t end = job->inner > 1 ? row + job->inner : job->outer, hi = lo + lanes < end ? lo + lanes : end;
    (plan->item_bytes == 8 ? network->items64 : network->items32)(job, lo, hi, room);
}

void sort_run(const SortPlan *plan, int phase, int64_t lo, int64_t hi, int thread, void *room)
{
    void *own = (char *)room + plan->thread_room * (size_t)thread;
    for (int64_t task = lo; task < hi; task++) {
        if (plan->way == WAY_NETWORK) {
            run_group(plan, task, own);
        } else if (plan->way == WAY_CUTS) {
            run_cuts(plan, phase, task, room);
        } else if (plan->way == WAY_SLICES) {
            run_slice(plan, phase, task, room);
        } else {
            Line line = line_of(plan, task);
            sort_line(&line, own);
        }
    }
}
