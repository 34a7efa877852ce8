/* Texts for people, compressed (zstd). */
#ifndef IR_BASE_PACK_H
#define IR_BASE_PACK_H

#include "ir/base/arena.h"
#include "ir/base/status.h"

/* Compresses; *out is os_free'd by the caller. ST_OUT_OF_MEMORY. */
Status pack(const void *data, size_t n, void **out, size_t *bytes);
/* Back into the arena, with a 0 after the last byte. ST_FORMAT: no such data, or more than `max` bytes. */
Status unpack(const void *packed, size_t bytes, size_t max, Arena *arena, char **out, size_t *n);

#endif
