/*
 * The cache on disk as evaluation uses it: look-up after a miss in memory, keeping what was compiled (runtime/store.c).
 */
#ifndef RUNTIME_STORE_H
#define RUNTIME_STORE_H

#include "jit/compile.h"
#include "runtime/eval.h"

/* Appends the graph part of the key text (runtime/key_text.c). */
void call_key_text(const Call *call, Str *out);

/* A miss in memory: loads what the disk has for this call into the cache in memory and looks again; true: *hit. Otherwise *miss
 * says what is known now. Under the evaluation lock. */
bool store_find(const Call *call, const Sync *sync, CacheMiss *miss, CacheHit *hit);

/* Will programs that are compiled under these options be kept? Then they need their texts and the graph part of the key. */
bool store_wanted(const JitOptions *options);

typedef struct StoreItem {
    const char *graph_key;      /* call_key_text */
    size_t graph_key_bytes;
    const Facts *facts;         /* it was compiled for */
    Program *program;           /* gets the name of its entry */
    const CompileTexts *texts;
    const JitOptions *options;
    const char *where;          /* function of the API */
} StoreItem;

/* Keeps a compiled program; any failure is a warning. In any thread that a fork waits for. */
void store_keep(const StoreItem *item);

#endif
