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
#include "jit/sort_line.h"

#include <string.h>

enum { GRAIN = 4096 }; /* elements that are worth a trip to another thread */

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

const SortNetwork *sort_network_of(SortVectors vectors)
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

/* How many lines lie side by side for the network. */
static int64_t neighbours(const SortJob *job) { return job->inner > 1 ? job->inner : job->outer; }

static int64_t groups(int64_t lines, int lanes) { return (lines + lanes - 1) / lanes; }

/* Rough nanoseconds per element, measured on one core of Cascade Lake: each step of the network on a vector, and reading and writing. */
static double network_cost(const SortJob *job, int lanes, int item)
{
    int size = log2_above(job->n);
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

void sort_plan(const SortJob *job, int threads, SortVectors vectors, SortPlan *plan)
{
    int64_t lines = job->outer * job->inner;
    *plan = (SortPlan){.job = *job, .threads = threads < 1 ? 1 : threads, .vectors = vectors, .way = WAY_LINE, .phases = 1, .slices = 1};
    const SortNetwork *network = sort_network_of(vectors);
    int item = network_item(job), lanes = !network ? 0 : item == 8 ? network->lanes64 : network->lanes32;
    plan->item_bytes = radix_item(job);
    if (lines <= 0 || job->n <= 0)
        return;
    if (network && item && job->n <= SORT_NETWORK_MOST && network_cost(job, lanes, item) < quick_cost(job, network)) {
        plan->way = WAY_NETWORK;
        plan->item_bytes = item;
        int64_t most = (int64_t)1 << log2_above(job->n);
        plan->thread_room = aligned((size_t)most * (size_t)lanes * (size_t)item);
        return;
    }
    if (threads > 1 && lines < threads && job->n >= 2 * SLICE_LEAST) {
        plan->slices = job->n / SLICE_LEAST < threads ? job->n / SLICE_LEAST : threads;
        if (quick(plan) || squeezes(plan)) {
            plan->way = WAY_CUTS;
            plan->slices = plan->slices < cuts_most_slices() ? plan->slices : cuts_most_slices();
            plan->phases = (int)lines * cuts_phases();
            size_t items = in_place(plan) ? order_bytes(job->n, plan->item_bytes) : two_orders(job->n, plan->item_bytes);
            plan->shared = items > SIZE_MAX / 2 ? SIZE_MAX : items + cuts_head(plan->slices);
            return;
        }
        plan->way = WAY_SLICES;
        plan->phases = (int)lines * slices_phases(job);
        size_t counts = (size_t)plan->slices * sizeof(int64_t[RADIX]), items = two_orders(job->n, plan->item_bytes);
        size_t shared = slices_head(plan->slices) + aligned(counts);
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

/* --- running --------------------------------------------------------------------------------------------------------------- */

static int network_lanes(const SortPlan *plan)
{
    const SortNetwork *network = sort_network_of(plan->vectors);
    return plan->item_bytes == 8 ? network->lanes64 : network->lanes32;
}

int64_t sort_tasks(const SortPlan *plan, int phase, int64_t *grain)
{
    const SortJob *job = &plan->job;
    int64_t lines = job->outer * job->inner, lanes;
    *grain = 1;
    if (lines <= 0 || job->n <= 0)
        return 0;
    switch (plan->way) {
    case WAY_CUTS: return cuts_tasks(plan, phase);
    case WAY_SLICES: return slices_tasks(plan, phase);
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
    const SortNetwork *network = sort_network_of(plan->vectors);
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
            cuts_run(plan, phase, task, room);
        } else if (plan->way == WAY_SLICES) {
            slices_run(plan, phase, task, room);
        } else {
            Line line = sort_line_of(plan, task);
            sort_line(&line, own);
        }
    }
}
