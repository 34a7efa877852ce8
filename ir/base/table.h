/*
 * A table from hashes to numbers of things that lie elsewhere, in an arena: for interning, memos, and what was seen. Open addressing, at most half
 * full. It keeps the hashes, so it grows by itself; whether a thing is the one that is looked for, its owner says:
 *
 *     for (uint32_t probe = 0, i; table_next(&table, hash, &probe, &i);)
 *         if (equal(&thing[i], &wanted))
 *             return i;
 *     table_add(arena, &table, hash, n_things);
 *
 * All zeros is a table without anything in it. Which numbers one hash gives, and in which order, does not depend on addresses or on growth alone:
 * those that were added first come first.
 */
#ifndef IR_BASE_TABLE_H
#define IR_BASE_TABLE_H

#include "ir/base/arena.h"

#include <stdbool.h>
#include <string.h>

typedef struct HashSlot {
    uint32_t hash, number; /* the number + 1; 0: empty */
} HashSlot;

typedef struct HashTable {
    HashSlot *slot;
    uint32_t cap, n; /* cap: a power of two, or 0 */
} HashTable;

static inline uint32_t table_key(uint64_t hash) { return (uint32_t)(hash ^ hash >> 32); }

/* The next number with this hash; *probe begins with 0. false: there is none. */
static inline bool table_next(const HashTable *table, uint32_t hash, uint32_t *probe, uint32_t *number)
{
    while (table->cap) {
        const HashSlot *s = &table->slot[(hash + (*probe)++) & (table->cap - 1)];
        if (!s->number)
            break;
        *number = s->number - 1;
        if (s->hash == hash)
            return true;
    }
    return false;
}

/* Without looking whether it is there. A number is below UINT32_MAX. */
static inline void table_add(Arena *memory, HashTable *table, uint32_t hash, uint32_t number)
{
    if (2 * (table->n + 1) > table->cap) {
        HashTable old = *table;
        *table = (HashTable){.cap = old.cap ? 4 * old.cap : 64};
        table->slot = ARENA_ARRAY(memory, HashSlot, table->cap);
        uint32_t begin = 0; /* behind an empty slot, where no run of neighbours is cut: those of one hash keep their order */
        while (old.n && old.slot[begin].number)
            begin++;
        for (uint32_t i = 0; i < old.cap; i++) {
            const HashSlot *s = &old.slot[(begin + i) & (old.cap - 1)];
            if (s->number)
                table_add(memory, table, s->hash, s->number - 1);
        }
    }
    uint32_t at = hash & (table->cap - 1);
    while (table->slot[at].number)
        at = (at + 1) & (table->cap - 1);
    table->slot[at] = (HashSlot){hash, number + 1};
    table->n++;
}

/* Takes everything out. */
static inline void table_clear(HashTable *table)
{
    if (table->cap)
        memset(table->slot, 0, sizeof *table->slot * table->cap);
    table->n = 0;
}

#endif
