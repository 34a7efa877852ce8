/*
 * Arena memory: blocks in a list, a bump pointer in the newest, everything freed at once.
 *
 * Blocks double from 16 KiB up to 4 MiB so that a graph of any size costs few heap calls; a request
 * larger than that gets a block of its own. Handed-out memory is zeroed and aligned to 16. Running
 * out of heap jumps to `oom` (see the header), so no caller checks for NULL. Nothing is ever freed
 * singly.
 */
#include "ir/base/arena.h"
#include "ir/base/os.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 16, FIRST_BLOCK = 16 * 1024, LARGEST_BLOCK = 4 * 1024 * 1024 };

struct ArenaBlock {
    ArenaBlock *next;
    size_t bytes; /* of the whole block */
};

#define HEADER ((sizeof(ArenaBlock) + ALIGN - 1) & ~(size_t)(ALIGN - 1))

void arena_init(Arena *arena, jmp_buf *oom) { *arena = (Arena){.oom = oom}; }

static void free_blocks(ArenaBlock *block)
{
    for (ArenaBlock *next; block; block = next) {
        next = block->next;
        os_free(block);
    }
}

void arena_free(Arena *arena)
{
    for (Arena *scratch = arena->scratch; scratch; scratch = scratch->older)
        arena_free(scratch);
    free_blocks(arena->head);
    *arena = (Arena){.oom = arena->oom, .older = arena->older};
}

/* Leaves through `oom`; an arena without one has a broken owner. */
static _Noreturn void out_of_memory(const Arena *arena)
{
    if (!arena->oom) {
        fputs("kiln: arena out of memory and no handler set\n", stderr);
        abort();
    }
    longjmp(*arena->oom, 1);
}

/* Makes room for `bytes` (already rounded) in a new block. */
static void grow(Arena *arena, size_t bytes)
{
    size_t want = arena->head ? arena->head->bytes * 2 : FIRST_BLOCK;
    if (want > LARGEST_BLOCK)
        want = LARGEST_BLOCK;
    if (want < bytes + HEADER)
        want = bytes + HEADER;
    ArenaBlock *block = os_alloc(want);
    if (!block)
        out_of_memory(arena);
    *block = (ArenaBlock){.next = arena->head, .bytes = want};
    arena->head = block;
    arena->at = (char *)block + HEADER;
    arena->end = (char *)block + want;
}

/* The struct lies in the parent's memory. */
Arena *arena_scratch(Arena *parent)
{
    Arena *arena = ARENA_NEW(parent, Arena);
    *arena = (Arena){.oom = parent->oom, .older = parent->scratch};
    parent->scratch = arena;
    return arena;
}

void arena_reset(Arena *arena)
{
    if (!arena->head)
        return;
    free_blocks(arena->head->next);
    arena->head->next = NULL;
    arena->at = (char *)arena->head + HEADER;
    arena->bytes = 0;
}

void *arena_alloc(Arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX / 2)
        out_of_memory(arena);
    size_t rounded = (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    if (rounded == 0)
        rounded = ALIGN;
    if ((size_t)(arena->end - arena->at) < rounded)
        grow(arena, rounded);
    void *block = arena->at;
    arena->at += rounded;
    arena->bytes += rounded;
    return memset(block, 0, rounded);
}

void *arena_copy(Arena *arena, const void *data, size_t bytes)
{
    void *block = arena_alloc(arena, bytes);
    if (bytes)
        memcpy(block, data, bytes);
    return block;
}

char *arena_strdup(Arena *arena, const char *text) { return arena_copy(arena, text, strlen(text) + 1); }

char *arena_printf(Arena *arena, const char *format, ...)
{
    char small[256];
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int len = vsnprintf(small, sizeof small, format, args);
    va_end(args);
    char *text = arena_alloc(arena, (size_t)(len < 0 ? 0 : len) + 1);
    if (len >= 0 && (size_t)len < sizeof small)
        memcpy(text, small, (size_t)len + 1);
    else if (len > 0)
        vsnprintf(text, (size_t)len + 1, format, again);
    va_end(again);
    return text;
}

Status with_arena(Status (*fn)(Arena *arena, void *user), void *user)
{
    Arena arena;
    jmp_buf oom;
    arena_init(&arena, &oom);
    Status status = setjmp(oom) == 0 ? fn(&arena, user) : fail(ST_OUT_OF_MEMORY, "no memory for a graph");
    arena_free(&arena);
    return status;
}
