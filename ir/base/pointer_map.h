/*
 * A table from addresses (of nodes) to numbers, in an arena: for walks that must not write into what they come to.
 */
#ifndef IR_BASE_POINTER_MAP_H
#define IR_BASE_POINTER_MAP_H

#include "ir/base/hash.h"
#include "ir/base/table.h"
#include "ir/base/vec.h"

enum { NOT_MAPPED = UINT32_MAX };

struct PointerMapEntry {
    const void *key;
    uint32_t value;
};

typedef struct PointerMap {
    VEC(struct PointerMapEntry) entries;
    HashTable table;
} PointerMap;

static inline struct PointerMapEntry *pointer_map_entry(const PointerMap *map, const void *key)
{
    for (uint32_t probe = 0, i; table_next(&map->table, table_key(hash64(&key, sizeof key)), &probe, &i);)
        if (map->entries.at[i].key == key)
            return &map->entries.at[i];
    return NULL;
}

/* NOT_MAPPED: it is not in the table. */
static inline uint32_t pointer_map_get(const PointerMap *map, const void *key)
{
    const struct PointerMapEntry *entry = pointer_map_entry(map, key);
    return entry ? entry->value : NOT_MAPPED;
}

static inline void pointer_map_put(Arena *arena, PointerMap *map, const void *key, uint32_t value)
{
    struct PointerMapEntry *entry = pointer_map_entry(map, key), made = {key, value};
    if (entry) {
        entry->value = value;
        return;
    }
    table_add(arena, &map->table, table_key(hash64(&key, sizeof key)), map->entries.n);
    VEC_PUSH(arena, map->entries, made);
}

#endif
