/*
 * The cache on disk as evaluation uses it: look-up after a miss in memory, keeping what was compiled (runtime/eval/store.c).
 */
#ifndef RUNTIME_STORE_H
#define RUNTIME_STORE_H

#include "cache/entry.h"
#include "jit/compile.h"
#include "runtime/eval.h"

/* Appends the graph as text that says what the key says, a line for each node; and that as the graph part of the key text
 * (runtime/eval/key_text.c). */
void call_graph_text(const Call *call, Str *out);
void call_key_text(const Call *call, Str *out);

/* A miss in memory: loads what the disk has for this call into the cache in memory and looks again; true: *hit. Otherwise *miss
 * says what is known now. Under the evaluation lock. */
bool store_find(Evaluation *e, const Call *call, CacheMiss *miss, CacheHit *hit);

/* After store_find found nothing, where several ranks may be about to compile the same: one at a time, so whose turn it is looks again.
 * Waits for a bounded time. -1: there are none, or the turn cannot be had: who compiles does not need one. Under the evaluation lock. */
int store_turn(const Evaluation *e);
void store_turn_end(int turn); /* -1: nothing */

/* A hit of the most general program: loads a better one for this call, where the disk has it and memory has not; true: *hit is that.
 * Under the evaluation lock. */
bool store_better(Evaluation *e, const Call *call, CacheHit *hit);

/* Will programs that are compiled under these options be kept? Then they need their texts and the graph part of the key. */
bool store_wanted(const JitOptions *options);

/* What the machine can do at most with so many threads (cache/machine.h): as it is kept in the cache directory, or else measured now and kept. */
typedef struct Machine Machine;
void store_machine(int threads, Machine *machine);

/* A miss that nothing on disk could serve either: into the file `misses`. Under the evaluation lock. */
void store_miss(const Evaluation *e, const Call *call, const CacheMiss *miss);

typedef struct StoreItem {
    const char *graph_key; /* call_key_text */
    size_t graph_key_bytes;
    const Facts *facts; /* it was compiled for */
    const GuardPolicy *policy;
    Program *program; /* gets the name of its entry */
    const CompileTexts *texts;
    const JitOptions *options;
    const char *where; /* function of the API */
    const char *place; /* of its call, by store_place */
} StoreItem;

/* "train.c:82", in the arena; "": not known. No folders: entries are shipped. */
const char *store_place(Loc loc, Arena *arena);

/* The same program, compiled as one on disk was, with kernels of its own (runtime/eval/miss.c): for KILN_CHECK=cache. */
Status compile_as(const Evaluation *e, const Call *call, const EntryView *entry, Program **out);

/* Keeps a compiled program; any failure is a warning. In any thread that a fork waits for. */
void store_keep(const StoreItem *item);

/* What a process leaves behind for the command `kiln` (runtime/eval/store_log.c). */
typedef struct Disk Disk;
void store_log_open(Disk *disk); /* this directory is in use: its counters are written at exit, or when another one is */
void store_log_info(Disk *disk); /* the file `info`, if it says something else */
void store_log_miss(Disk *disk, const char *key, const Evaluation *e, const Call *call, const CacheMiss *miss);
typedef enum StoreRefusal { REFUSED_DAMAGED, REFUSED_UNREADABLE, REFUSED_MAKER, REFUSAL_COUNT } StoreRefusal;
void store_log_refused(StoreRefusal why);
void store_log_forked(void); /* in a child: what the parent did is the parent's */

#endif
