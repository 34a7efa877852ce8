/*
 * Argsort by order-preserving keys: each element becomes an unsigned key whose order is the wanted
 * one (descending order inverts it, so stability is the same), and (key, position) pairs are sorted
 * by insertion when few, else by a radix sort from the lowest byte. A byte in which all keys agree
 * costs nothing but its count, so narrow dtypes and small ranges are fast.
 */
#include "jit/sort.h"
#include "ir/base/os.h"

#include <string.h>

enum { FEW = 48, RADIX = 256 };

typedef struct Pair {
    uint64_t key;
    int64_t at;
} Pair;

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

/* Unsigned order of the result is the order asked for; only the rule's bytes are used. */
static uint64_t key_of(const KeyRule *r, const unsigned char *at)
{
    uint64_t mask = r->sign | (r->sign - 1), bits = 0;
    memcpy(&bits, at, r->bytes); /* little endian */
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

static void insertion_sort(Pair *a, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        Pair x = a[i];
        int64_t j = i;
        for (; j > 0 && a[j - 1].key > x.key; j--)
            a[j] = a[j - 1];
        a[j] = x;
    }
}

/* One pass over a byte, from a to b; false: all keys agree in it and nothing was moved. */
static bool radix_pass(const Pair *a, Pair *b, int64_t n, unsigned shift)
{
    int64_t start[RADIX] = {0};
    for (int64_t i = 0; i < n; i++)
        start[a[i].key >> shift & 255]++;
    if (start[a[0].key >> shift & 255] == n)
        return false;
    int64_t at = 0;
    for (int d = 0; d < RADIX; d++) {
        int64_t count = start[d];
        start[d] = at;
        at += count;
    }
    for (int64_t i = 0; i < n; i++)
        b[start[a[i].key >> shift & 255]++] = a[i];
    return true;
}

/* Sorts n pairs with room for n more; returns where the result is. */
static Pair *sort_pairs(Pair *a, Pair *room, int64_t n, unsigned bytes)
{
    if (n <= FEW) {
        insertion_sort(a, n);
        return a;
    }
    for (unsigned byte = 0; byte < bytes; byte++) {
        if (!radix_pass(a, room, n, byte * 8))
            continue;
        Pair *t = a;
        a = room;
        room = t;
    }
    return a;
}

Status sort_arg(DType dtype, const void *in, int64_t *out, int64_t outer, int64_t n, int64_t inner, bool descending, int64_t lo, int64_t hi)
{
    if (n <= 0 || lo >= hi || outer <= 0 || inner <= 0)
        return ST_OK;
    if ((uint64_t)n > SIZE_MAX / 2 / sizeof(Pair))
        return fail(ST_OUT_OF_MEMORY, "argsort: no memory for %lld pairs", (long long)n);
    Pair *pairs = os_alloc((size_t)n * 2 * sizeof *pairs);
    if (!pairs)
        return fail(ST_OUT_OF_MEMORY, "argsort: no memory for %lld pairs", (long long)n);
    KeyRule rule = sort_key_rule(dtype, descending);
    for (int64_t line = lo; line < hi; line++) {
        int64_t first = line / inner * n * inner + line % inner;
        const unsigned char *x = (const unsigned char *)in + (size_t)first * rule.bytes;
        size_t stride = (size_t)inner * rule.bytes;
        for (int64_t i = 0; i < n; i++, x += stride)
            pairs[i] = (Pair){key_of(&rule, x), i};
        const Pair *sorted = sort_pairs(pairs, pairs + n, n, rule.bytes);
        for (int64_t i = 0; i < n; i++)
            out[first + i * inner] = sorted[i].at;
    }
    os_free(pairs);
    return ST_OK;
}
