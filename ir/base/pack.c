/* zstd, as far as kiln uses it; the only file that includes it. */
#include "ir/base/pack.h"
#include "ir/base/os.h"

#include <zstd.h>

enum { LEVEL = 1 }; /* texts are stored once and rarely read: time counts */

Status pack(const void *data, size_t n, void **out, size_t *bytes)
{
    size_t bound = ZSTD_compressBound(n);
    *out = os_alloc(bound + 1);
    *bytes = *out ? ZSTD_compress(*out, bound, data, n, LEVEL) : 0;
    if (*out && !ZSTD_isError(*bytes))
        return ST_OK;
    os_free(*out);
    *out = NULL;
    *bytes = 0;
    return fail(ST_OUT_OF_MEMORY, "no memory to compress %zu bytes", n);
}

Status unpack(const void *packed, size_t bytes, size_t max, Arena *arena, char **out, size_t *n)
{
    unsigned long long size = ZSTD_getFrameContentSize(packed, bytes);
    *out = NULL;
    *n = 0;
    if (size == ZSTD_CONTENTSIZE_UNKNOWN || size == ZSTD_CONTENTSIZE_ERROR || size > max)
        return fail(ST_FORMAT, "compressed text: no length, or more than %zu bytes", max);
    char *text = arena_alloc(arena, (size_t)size + 1);
    size_t got = ZSTD_decompress(text, (size_t)size, packed, bytes);
    if (ZSTD_isError(got) || got != size)
        return fail(ST_FORMAT, "compressed text: %s", ZSTD_isError(got) ? ZSTD_getErrorName(got) : "too short");
    *out = text;
    *n = got;
    return ST_OK;
}
