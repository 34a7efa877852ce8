/*
 * The lines of `counters` and `misses`, the two small files beside the entries: words name=value with a blank between, a line per record.
 * A value holds no blank, no control character. A reader skips words that it does not know, so libraries of different age share a directory.
 *
 *   counters   time=1769860800 memory_hits=120 disk_hits=3 compiles=1 miss.size=1 refused.damaged=1 compile_us=9400 saved_us=31000
 *                  one per process, at its end: the rows of cache/counters.def that are not 0; `miss.` and `refused.` with a reason's name
 *              entry=3fa9...-....kiln hits=120
 *                  one for each entry that served calls of the process
 *   misses     time=1769860800 where=kiln_item reason=size key=3fa9...-1a2b3c4d ints=4096,128 scalars=3f800000
 *                  one per miss: the beginning of the names under which an entry would be filed, and the facts of the call, so that
 *                  `kiln cache why` can hold them against the guards of every entry that is there by then
 */
#ifndef CACHE_RECORDS_H
#define CACHE_RECORDS_H

#include "guards/guards.h"
#include "ir/base/str.h"

typedef enum CounterId {
#define COUNTER(id, name, help) COUNTER_##id,
#include "cache/counters.def"
#undef COUNTER
    COUNTER_COUNT
} CounterId;

const char *counter_name(CounterId id);
const char *counter_help(CounterId id);

/* Appends a word, after a blank where the line has one already. Blanks and control characters of the value become '_'. */
void record_text(Str *line, const char *name, const char *value);
void record_number(Str *line, const char *name, int64_t value);
void record_end(Str *line); /* the newline */

typedef struct RecordWord {
    const char *name, *value; /* into the text; not terminated */
    size_t name_bytes, n;
} RecordWord;

/* The next word of the line at *at, which moves past it; false: the line is over. */
bool record_next(const char **at, const char *end, RecordWord *word);
bool record_is(const RecordWord *word, const char *name);
bool record_int(const RecordWord *word, int64_t *value); /* false: no whole number */

typedef struct MissRecord {
    int64_t time;
    const char *where;  /* function of the API */
    const char *reason; /* a name of guards/reasons.def, or of why the disk's entries were refused */
    const char *key;    /* "<32 hex>-<8 hex>": entry_prefix without its last '-' */
    Facts facts;
} MissRecord;

void record_miss(Str *line, const MissRecord *miss);
/* A line read back, in the arena; false: it is none (it needs a key and whole numbers). */
bool record_read_miss(const char *line, size_t n, Arena *arena, MissRecord *out);

#endif
