/* See guarded.h. Leaves out: more than one mapping per buffer; callers free each. */
#include "tests/support/guarded.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PATTERN = 0xa5 };

/* Maps room for `bytes` and `gap` between two guard pages and fills it with the pattern. */
static Guarded map_guarded(size_t bytes, size_t gap, bool at_end)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t inner = (bytes + gap + page - 1) / page * page;
    if (inner == 0)
        inner = page;
    Guarded g = {.bytes = bytes, .map_bytes = inner + 2 * page};
    g.map = mmap(NULL, g.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *start = (char *)g.map + page;
    if (g.map == MAP_FAILED || mprotect(start, inner, PROT_READ | PROT_WRITE) != 0) {
        perror("guarded buffer");
        abort();
    }
    memset(start, PATTERN, inner);
    g.data = at_end ? start + inner - gap - bytes : start + gap;
    memset(g.data, 0, bytes);
    return g;
}

Guarded guarded_at_end(size_t bytes, size_t gap) { return map_guarded(bytes, gap, true); }

Guarded guarded_at_start(size_t bytes, size_t gap) { return map_guarded(bytes, gap, false); }

bool guarded_intact(const Guarded *g)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const unsigned char *at = (const unsigned char *)g->map + page;
    const unsigned char *end = (const unsigned char *)g->map + g->map_bytes - page;
    const unsigned char *data = g->data;
    for (; at < end; at++)
        if ((at < data || at >= data + g->bytes) && *at != PATTERN)
            return false;
    return true;
}

void guarded_free(Guarded *g)
{
    munmap(g->map, g->map_bytes);
    *g = (Guarded){0};
}
