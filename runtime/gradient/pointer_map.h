/*
 * A table from addresses (of nodes) to numbers, in an arena: for walks that must not write into what they come to. Open addressing.
 */
#ifndef RUNTIME_POINTER_MAP_H
#define RUNTIME_POINTER_MAP_H

#include "ir/base/arena.h"
#include "ir/base/hash.h"

enum { NOT_MAPPED = UINT32_MAX };

typedef struct PointerMap {
    struct PointerMapEntry {
        const void *key;
        uint32_t value;
    } * at;
    uint32_t cap, n;
} PointerMap;

static inline struct PointerMapEntry *pointer_map_slot(const PointerMap *map, const void *key)
{
    uint32_t i = (uint32_t)hash64(&key, sizeof key) & (map->cap - 1);
    while (map->at[i].key && map->at[i].key != key)
        i = (i + 1) & (map->cap - 1);
    return &map->at[i];
}

/* NOT_MAPPED: it is not in the table. */
static inline uint32_t pointer_map_get(const PointerMap *map, const void *key)
{
    const struct PointerMapEntry *entry = map->cap ? pointer_map_slot(map, key) : NULL;
    return entry && entry->key ? entry->value : NOT_MAPPED;
}

static inline void pointer_map_put(Arena *arena, PointerMap *map, const void *key, uint32_t value)
{
    if (2 * (map->n + 1) > map->cap) {
        PointerMap old = *map;
        map->cap = old.cap ? 4 * old.cap : 256;
        map->at = ARENA_ARRAY(arena, struct PointerMapEntry, map->cap);
        for (uint32_t i = 0; i < old.cap; i++)
            if (old.at[i].key)
                *pointer_map_slot(map, old.at[i].key) = old.at[i];
    }
    struct PointerMapEntry *entry = pointer_map_slot(map, key);
    map->n += !entry->key;
    *entry = (struct PointerMapEntry){key, value};
}

#endif
