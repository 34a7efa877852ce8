/*
 * Buffers whose end (or start) touches a page that may not be accessed. Generated code is outside the reach of
 * AddressSanitizer, so a test that hands it such a buffer turns the first wrong byte into a fault.
 *
 *     | PROT_NONE | ... slack ... [ data, `bytes` long ]| PROT_NONE |      guarded_at_end
 *     | PROT_NONE |[ data, `bytes` long ] ... slack ... | PROT_NONE |      guarded_at_start
 *
 * The slack holds a pattern; guarded_intact tells whether it was written to (writes before the start, or after the end,
 * that stay within the slack).
 */
#ifndef TESTS_SUPPORT_GUARDED_H
#define TESTS_SUPPORT_GUARDED_H

#include <stdbool.h>
#include <stddef.h>

typedef struct Guarded {
    void *data;
    size_t bytes;
    void *map; /* the whole mapping with both guard pages */
    size_t map_bytes;
} Guarded;

/* The data ends `gap` bytes before the guard page (0: exactly at it). Zeroed. Aborts without memory. */
Guarded guarded_at_end(size_t bytes, size_t gap);
/* The data starts `gap` bytes after the guard page. */
Guarded guarded_at_start(size_t bytes, size_t gap);
bool guarded_intact(const Guarded *guarded);
void guarded_free(Guarded *guarded);

#endif
