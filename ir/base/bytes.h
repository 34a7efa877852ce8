/*
 * Plain data as bytes and back: little-endian integers, byte strings, terminated texts.
 *
 * A writer remembers that memory ran out, a reader that the bytes ended too early or were malformed; both then do nothing (a
 * reader gives zeros), so one check at the end is enough. A reader never looks outside [at, end).
 */
#ifndef IR_BASE_BYTES_H
#define IR_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct Bytes {
    uint8_t *at; /* heap; os_free */
    size_t n, cap;
    bool failed; /* memory ran out */
} Bytes;

void bytes_add(Bytes *out, const void *data, size_t n);
void bytes_u8(Bytes *out, uint8_t value);
void bytes_u32(Bytes *out, uint32_t value);
void bytes_u64(Bytes *out, uint64_t value);
void bytes_text(Bytes *out, const char *text);           /* u32 length, characters, 0 */
void bytes_blob(Bytes *out, const void *data, size_t n); /* u64 length, bytes */
void bytes_align(Bytes *out, size_t to);                 /* zeros */

/* Are they as many and the same? None may lie nowhere (NULL). */
static inline bool bytes_equal(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    return a_bytes == b_bytes && (a_bytes == 0 || memcmp(a, b, a_bytes) == 0);
}

typedef struct ByteReader {
    const uint8_t *at, *end;
    bool bad;
} ByteReader;

const void *read_bytes(ByteReader *in, size_t n); /* in place; NULL when there are fewer */
uint8_t read_u8(ByteReader *in);
uint32_t read_u32(ByteReader *in);
uint64_t read_u64(ByteReader *in);
const char *read_text(ByteReader *in); /* in place; "" when malformed */
const void *read_blob(ByteReader *in, size_t *n);
/* A number of records of at least `least` bytes each; 0 and bad where so many cannot follow. */
uint32_t read_count(ByteReader *in, size_t least);

#endif
