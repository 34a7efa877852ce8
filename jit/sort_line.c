/* A line by one thread: its elements' keys, items of four kinds, radix and merging, and keys of 64 bits squeezed. */
#include "jit/sort_line.h"

#include <string.h>

enum { RUN = 8, MOST_DIGITS = 64 / DIGIT };

/* Lines up to this length are merged: counting the digits of few elements costs more. */
static int64_t few(const SortJob *job) { return 16 * digits_of(job); }

/* --- radix sort of a line ------------------------------------------------------------------------------------------------- */

Line sort_line_of(const SortPlan *plan, int64_t number)
{
    const SortJob *job = &plan->job;
    int64_t first = number / job->inner * job->n * job->inner + number % job->inner;
    Line line = {.plan = plan, .rule = sort_key_rule(job->dtype, job->descending), .n = job->n, .stride = job->inner};
    line.in = (const unsigned char *)job->in + (size_t)first * line.rule.bytes;
    line.out = (unsigned char *)job->out + (size_t)first * (job->values ? line.rule.bytes : sizeof(int64_t));
    line.bias = quick(plan) ? 0 : line.rule.sign;
    return line;
}

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
const void *sort_elements_at(const Line *line, int64_t at, int64_t n, uint64_t *room)
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
    bool sort_keys_of_##width(const Line *line, const void *elements, int64_t n, int##width##_t *keys)                            \
    {                                                                                                                             \
        const SortNetwork *network = sort_network_of(line->plan->vectors);                                                        \
        return network ? network->keys##width(&line->rule, elements, n, keys) : items_of_##width(&line->rule, elements, n, keys); \
    }                                                                                                                             \
    static void keys_back_##width(const Line *line, const int##width##_t *keys, int64_t n, void *elements)                        \
    {                                                                                                                             \
        const SortNetwork *network = sort_network_of(line->plan->vectors);                                                        \
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
            odd |= sort_keys_of_##width(line, sort_elements_at(line, at, n, room), n, keys);                             \
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
void sort_write_line(const Line *line, const void *items, int64_t lo, int64_t hi)
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

const Kind *sort_kind_of(const SortPlan *plan)
{
    if (plan->job.values)
        return plan->item_bytes == 4 ? &key32 : &key64;
    return plan->item_bytes == 8 ? &place32 : &pair;
}

void sort_items(const SortPlan *plan, void *items, int64_t n)
{
    const SortNetwork *network = sort_network_of(plan->vectors);
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

Squeeze squeeze_of(int64_t n, const Range *of, int64_t count)
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

int64_t squeeze_item(const Squeeze *q, int64_t key, int64_t place)
{
    const uint64_t above = ((uint64_t)key - (uint64_t)q->least) >> q->lost;
    return (int64_t)((above << q->places | (uint64_t)place) ^ UINT64_C(1) << 63); /* vectors compare signed ones */
}

/* Keys of elements [lo, hi) where their items will be. */
Range squeeze_keys(const Line *line, int64_t lo, int64_t hi, int64_t *items)
{
    Range r = {INT64_MAX, INT64_MIN};
    for (int64_t at = lo; at < hi; at += BLOCK) {
        uint64_t room[BLOCK];
        int64_t n = hi - at < BLOCK ? hi - at : BLOCK;
        sort_keys_of_64(line, sort_elements_at(line, at, n, room), n, items + at);
        for (int64_t i = at; i < at + n; i++) {
            r.least = items[i] < r.least ? items[i] : r.least;
            r.greatest = items[i] > r.greatest ? items[i] : r.greatest;
        }
    }
    return r;
}

void squeeze_items(const Squeeze *q, int64_t lo, int64_t hi, int64_t *items)
{
    for (int64_t i = lo; i < hi; i++)
        items[i] = squeeze_item(q, items[i], i);
}

void squeeze_write(const Line *line, const Squeeze *q, int64_t lo, int64_t hi, const int64_t *items)
{
    for (int64_t i = lo; i < hi; i++)
        put_place(line, i, items[i] & places_of(q));
}

int64_t sort_key_at(const Line *line, int64_t place)
{
    uint64_t room[1];
    int64_t key;
    sort_keys_of_64(line, sort_elements_at(line, place, 1, room), 1, &key);
    return key;
}

/* Places [first, first + n) of the result, whose items' keys agree, are put in order by the whole keys. They are in order of place. */
static void settle_tied(const Line *line, int64_t *place, int64_t first, int64_t n)
{
    int64_t key[MOST_TIED];
    for (int64_t i = 0; i < n; i++) {
        int64_t k = sort_key_at(line, place[i]), at = place[i], j = i;
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
    return memcmp(line->in + (size_t)a * step, line->in + (size_t)b * step, line->rule.bytes) == 0 ||
           sort_key_at(line, a) == sort_key_at(line, b);
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

bool squeeze_settle(const Line *line, const int64_t *items, const Squeeze *q)
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
    sort_network_of(line->plan->vectors)->sort64(items, n);
    squeeze_write(line, &q, 0, n, items);
    return squeeze_settle(line, items, &q);
}

void sort_whole(const Line *line, void *room)
{
    const SortPlan *plan = line->plan;
    const Kind *kind = sort_kind_of(plan);
    int64_t n = line->n;
    char *items = in_place(plan) ? (char *)line->out : room;
    bool odd = kind->make(line, 0, n, items);
    if (quick(plan)) {
        sort_items(plan, items, n);
    } else {
        char *spare = items + order_bytes(n, plan->item_bytes);
        items = n > few(&plan->job) ? radix_sort(plan, kind, items, spare, n) : kind->merge(items, spare, n);
    }
    sort_write_line(line, items, 0, n);
    if (odd && plan->job.values)
        sort_restore(&line->rule, line->in, line->out, n, line->stride);
}

void sort_line(const Line *line, void *room)
{
    if (!squeezes(line->plan) || !sort_squeezed(line, room))
        sort_whole(line, room);
}
