/* Hashes of bytes by XXH3, compiled in here alone (the rest of kiln sees two functions). */
#include "ir/base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

Hash128 hash128(const void *data, size_t bytes)
{
    XXH128_hash_t h = XXH3_128bits(data, bytes);
    return (Hash128){.lo = h.low64, .hi = h.high64};
}

uint64_t hash64(const void *data, size_t bytes) { return XXH3_64bits(data, bytes); }
