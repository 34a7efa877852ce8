/* Plain data as bytes and back. See bytes.h. */
#include "ir/base/bytes.h"
#include "ir/base/os.h"

#include <string.h>

/* --- writing --- */

static uint8_t *room(Bytes *out, size_t n)
{
    if (out->failed || n > SIZE_MAX / 4 - out->n) {
        out->failed = true;
        return NULL;
    }
    if (!out->at || out->n + n > out->cap) {
        size_t cap = out->cap ? out->cap * 2 : 256;
        while (cap < out->n + n)
            cap *= 2;
        uint8_t *grown = os_realloc(out->at, cap);
        if (!grown) {
            out->failed = true;
            return NULL;
        }
        out->at = grown;
        out->cap = cap;
    }
    uint8_t *at = out->at + out->n;
    out->n += n;
    return at;
}

void bytes_add(Bytes *out, const void *data, size_t n)
{
    uint8_t *at = room(out, n);
    if (at && n)
        memcpy(at, data, n);
}

static void add_little_endian(Bytes *out, uint64_t value, size_t n)
{
    uint8_t *at = room(out, n);
    for (size_t i = 0; at && i < n; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

void bytes_u8(Bytes *out, uint8_t value) { add_little_endian(out, value, 1); }
void bytes_u32(Bytes *out, uint32_t value) { add_little_endian(out, value, 4); }
void bytes_u64(Bytes *out, uint64_t value) { add_little_endian(out, value, 8); }

void bytes_text(Bytes *out, const char *text)
{
    size_t n = strlen(text);
    if (n > UINT32_MAX) {
        out->failed = true;
        return;
    }
    bytes_u32(out, (uint32_t)n);
    bytes_add(out, text, n + 1);
}

void bytes_blob(Bytes *out, const void *data, size_t n)
{
    bytes_u64(out, n);
    bytes_add(out, data, n);
}

void bytes_align(Bytes *out, size_t to)
{
    while (!out->failed && out->n % to)
        bytes_u8(out, 0);
}

/* --- reading --- */

const void *read_bytes(ByteReader *in, size_t n)
{
    if (in->bad || n > (size_t)(in->end - in->at)) {
        in->bad = true;
        return NULL;
    }
    const uint8_t *at = in->at;
    in->at += n;
    return at;
}

static uint64_t read_little_endian(ByteReader *in, size_t n)
{
    const uint8_t *at = read_bytes(in, n);
    uint64_t value = 0;
    for (size_t i = 0; at && i < n; i++)
        value |= (uint64_t)at[i] << 8 * i;
    return value;
}

uint8_t read_u8(ByteReader *in) { return (uint8_t)read_little_endian(in, 1); }
uint32_t read_u32(ByteReader *in) { return (uint32_t)read_little_endian(in, 4); }
uint64_t read_u64(ByteReader *in) { return read_little_endian(in, 8); }

const char *read_text(ByteReader *in)
{
    size_t n = read_u32(in);
    const char *text = read_bytes(in, n + 1);
    if (text && !memchr(text, 0, n) && text[n] == 0)
        return text;
    in->bad = true;
    return "";
}

const void *read_blob(ByteReader *in, size_t *n)
{
    uint64_t length = read_u64(in);
    const void *data = length <= SIZE_MAX ? read_bytes(in, (size_t)length) : NULL;
    *n = data ? (size_t)length : 0;
    return data;
}

uint32_t read_count(ByteReader *in, size_t least)
{
    uint32_t n = read_u32(in);
    if (in->bad || n > (size_t)(in->end - in->at) / least) {
        in->bad = true;
        return 0;
    }
    return n;
}
