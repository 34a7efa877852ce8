/*
 * One entry of the cache on disk: a program, the guards under which it is right, and the texts that explain it, as bytes and back.
 *
 *     header     fixed size: magic, format version, number of sections, file size, checksum of everything after it; then the table of
 *                sections (offset, length), in order and without gaps beyond alignment to 8. Little-endian
 *     maker      first part of the key text (cache/key_text.h)
 *     graph      second part
 *     meta       name=<length>:<bytes> lines: made (Unix time), compile_us (what it cost, in microseconds), where (function of the
 *                API), place (of its call: file and line, no path; not there: unknown), shapes (of its inputs when it was made)
 *     facts      the facts it was compiled for (ints, scalars): the history from which sizes become arguments
 *     policy     what that compilation knew of other calls: which facts varied, and facts of earlier ones. So that a check can repeat it
 *     guards     size table and guards
 *     plan       buffers, scalars that the host computes, bodies of loops and branches (plans like it), arguments, steps, outputs, faults
 *     kernels    of each: name, cost, the text it is interned by, its code, and its IR and assembly (zstd)
 *     texts      zstd: graph as recorded, graph after the passes
 *
 * Parsing checks everything before anything is used, in this order: size cap, magic, format, lengths, checksum, then every index and
 * length inside the sections. An entry that passes can be loaded without another check; whether its key and its guards fit a
 * call is the caller's question. Nothing here does I/O, maps code (but entry_load) or knows LLVM.
 */
#ifndef CACHE_ENTRY_H
#define CACHE_ENTRY_H

#include "cache/key_text.h"
#include "jit/program.h"

enum { ENTRY_FORMAT = 10 };
enum { ENTRY_MAX_BYTES = 1 << 30 };

typedef struct EntryKernel {
    const char *name;  /* "sin_mul_add" */
    const char *key;   /* the text it is interned by; not terminated */
    const void *code;  /* host object (ELF), or PTX / cubin by the target of the key */
    const void *texts; /* packed; NULL: none */
    size_t key_bytes, code_bytes, texts_bytes;
    double cost;
} EntryKernel;

/* A parsed entry. Everything points into `bytes` or the arena given to entry_parse. */
typedef struct EntryView {
    const void *bytes;
    size_t n_bytes;
    KeyText key;
    const char *meta;
    size_t meta_bytes;
    Facts facts;
    GuardPolicy policy; /* int_fixed is NULL: it has done its work */
    const EntryKernel *kernels;
    uint32_t n_kernels;
    const Program *plan; /* all of the program but code: kernels[i].compiled is NULL, names are there. For printing and
                                   checking guards; never run, never released */
    const void *texts;   /* packed; NULL: none */
    size_t texts_bytes;
} EntryView;

/* ST_FORMAT says what is wrong with it (a person reads it: "truncated: 812 of 4096 bytes"). When memory runs out the arena jumps. */
Status entry_parse(const void *bytes, size_t n, Arena *arena, EntryView *out);

/* The format that these bytes say they are of; 0: no entry of any. Another than ENTRY_FORMAT is no damage: another version wrote it. */
uint32_t entry_format(const void *bytes, size_t n);

/* A value of the meta lines, terminated, in the arena; NULL: not there. */
const char *entry_meta(const EntryView *entry, const char *name, Arena *arena);

/* The texts for people, unpacked into the arena; NULL where there is none. Arrays of n_kernels. */
typedef struct EntryTexts {
    const char *recorded, *optimised;
    const char *const *kernel_ir, *const *kernel_assembly;
} EntryTexts;
Status entry_texts(const EntryView *entry, Arena *arena, EntryTexts *out);

/* The program, with its code mapped (kernels are interned in jit/kernel_table.h as fresh ones are). ST_FORMAT, ST_OUT_OF_MEMORY. */
Status entry_load(const EntryView *entry, Program **out);

/* What an entry is made of. Borrowed. The kernels' code and texts are the program's. */
typedef struct EntryParts {
    KeyText key;
    const char *meta;
    size_t meta_bytes;
    Facts facts;
    const GuardPolicy *policy;
    const Program *program;
    const char *recorded, *optimised; /* graphs as text; NULL: none */
} EntryParts;

/* The bytes of an entry, deterministic but for meta; os_free. ST_OUT_OF_MEMORY. */
Status entry_write(const EntryParts *parts, void **bytes, size_t *n);

/* Does the program say what the entry says: guards, plan, and kernels to the last byte of code? false: *section names the part that differs. */
bool entry_same_program(const EntryView *entry, const Program *program, const char **section);

/* "<32 hex: graph part>-<8 hex: maker part>-<16 hex: guards>.kiln", the name under which an entry is filed. */
enum { ENTRY_GRAPH_HEX = 32, ENTRY_MAKER_HEX = 8, ENTRY_GUARDS_HEX = 16 };
enum { ENTRY_NAME_BYTES = ENTRY_GRAPH_HEX + 1 + ENTRY_MAKER_HEX + 1 + ENTRY_GUARDS_HEX + 5 + 1 };
void entry_name(const KeyText *key, const GuardSet *guards, char name[ENTRY_NAME_BYTES]);
/* The first part of the names of all entries of a graph, and, `maker` too, of all that one maker wrote: ends in '-'. */
void entry_prefix(const KeyText *key, bool maker, char prefix[ENTRY_NAME_BYTES]);
/* Is it the name of an entry? */
bool entry_name_valid(const char *name);

/* Test hook: names use only this many low bits of each hash (0: all); equality of bytes must still decide. */
void entry_test_hash_bits(int bits);

#endif
