/* What the reader (cache/entry.c) and the writer (cache/entry_write.c) of entries share: the layout of entry.h in numbers. */
#ifndef CACHE_ENTRY_LAYOUT_H
#define CACHE_ENTRY_LAYOUT_H

#include "guards/guards.h"

#define ENTRY_SECTIONS(SECTION) \
    SECTION(MAKER, "maker")     \
    SECTION(GRAPH, "graph")     \
    SECTION(META, "meta")       \
    SECTION(FACTS, "facts")     \
    SECTION(POLICY, "policy")   \
    SECTION(GUARDS, "guards")   \
    SECTION(PLAN, "plan")       \
    SECTION(KERNELS, "kernels") \
    SECTION(TEXTS, "texts")

typedef enum EntrySection {
#define SECTION(id, name) SECTION_##id,
    ENTRY_SECTIONS(SECTION)
#undef SECTION
        SECTION_COUNT
} EntrySection;

static const char entry_magic[8] = {'k', 'i', 'l', 'n', '\r', '\n', 0x1a, '\n'}; /* no text file, no transfer as text */

enum {
    CHECKED_FROM = 8 + 4 + 4 + 8 + 16, /* magic, format, number of sections, size, checksum */
    HEADER_BYTES = CHECKED_FROM + 16 * SECTION_COUNT
};

/* The least bytes of a record of each kind. */
enum { SIZE_BYTES = 17, GUARD_BYTES = 31, BUFFER_BYTES = 26, ARG_BYTES = 5, STEP_BYTES = 24, HOST_BYTES = 22, KERNEL_BYTES = 42 };
enum { BODY_BYTES = 43, BAND_BYTES = 16 };

extern const char *const entry_section_names[SECTION_COUNT];

/* A hash of the guards alone (not of who asked for them). */
uint64_t entry_guards_hash(const GuardSet *guards);

#endif
