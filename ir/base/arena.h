/*
 * An arena: memory of one lifetime, freed whole. One per graph and per compilation.
 *
 * Allocation never returns NULL: when memory runs out the arena jumps to `oom`, which its owner must
 * have set with setjmp before the first allocation (ARENA_TRY below). So passes need no checks and
 * the owner turns the jump into ST_OUT_OF_MEMORY. No LLVM frame may lie between the two.
 */
#ifndef IR_BASE_ARENA_H
#define IR_BASE_ARENA_H

#include "ir/base/status.h"

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ArenaBlock ArenaBlock;

typedef struct Arena {
    ArenaBlock *head;
    char *at, *end;
    size_t bytes;          /* handed out so far */
    jmp_buf *oom;          /* where to go when memory runs out; owner's */
    struct Arena *scratch; /* the newest of those that are freed with this one */
    struct Arena *older;   /* the one made before it */
} Arena;

void arena_init(Arena *arena, jmp_buf *oom);
void arena_free(Arena *arena); /* frees every block; the arena may be used again */
/* An arena inside another, for work that is done many times: freed with its parent, and before that emptied at will. */
Arena *arena_scratch(Arena *parent);
void arena_reset(Arena *arena);                /* all that was handed out is gone; keeps the newest block */
void *arena_alloc(Arena *arena, size_t bytes); /* zeroed, aligned to 16; 0 bytes gives a valid pointer */
void *arena_copy(Arena *arena, const void *data, size_t bytes);
char *arena_strdup(Arena *arena, const char *text);
char *arena_printf(Arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Runs fn with an arena that lives as long as the call; memory exhaustion in it becomes ST_OUT_OF_MEMORY. */
Status with_arena(Status (*fn)(Arena *arena, void *user), void *user);

#define ARENA_NEW(arena, T) ((T *)arena_alloc((arena), sizeof(T)))
#define ARENA_ARRAY(arena, T, n) ((T *)arena_alloc((arena), sizeof(T) * (size_t)(n)))

#endif
