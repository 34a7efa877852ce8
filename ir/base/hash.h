/* 64 and 128-bit hashes (XXH3) of bytes. A hash is never proof: whoever finds by hash compares the bytes. */
#ifndef IR_BASE_HASH_H
#define IR_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct Hash128 {
    uint64_t lo, hi;
} Hash128;

Hash128 hash128(const void *data, size_t bytes);
uint64_t hash64(const void *data, size_t bytes);

#endif
