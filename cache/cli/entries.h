/* The cache directory and its entries, as the verbs see them. */
#ifndef CACHE_CLI_ENTRIES_H
#define CACHE_CLI_ENTRIES_H

#include "cache/cli/cli.h"
#include "cache/disk.h"

/* An open cache directory. A default directory that is not there is an empty one (disk NULL). */
typedef struct Store {
    const char *path;
    Disk *disk;
    DiskItem *items; /* sorted by name */
    uint32_t n;
} Store;

/* The directory of --dir or the default, whether or not it is there; NULL: there is none, which was said. */
const char *store_path(Cli *cli);
/* Does an argument name a directory, one that is there or, by a slash at its end, one to be made? */
bool names_folder(const char *path);

/* Opens the directory of --dir or the default and lists it. -1: go on; otherwise the status to end with, all being said. */
int store_open(Cli *cli, bool writable, Store *out);
void store_close(Store *store);

/* The entry that a key fits: each of its parts, with '-' between, begins the part of the name. NULL: none or several, which was
 * said; *status is to end with. */
const DiskItem *store_find(const Cli *cli, const Store *store, const char *key, int *status);
/* The shortest key that fits this entry alone, at least 8 letters: "3fa9c2d1", or "3fa9c2d1-1a-9e" where one graph has several. */
const char *store_short_key(const Cli *cli, const Store *store, const DiskItem *item);

/* How often each entry served a call, as far as processes left it in `counters`; an array of store->n in the arena (stats.c). */
Status store_hits(Cli *cli, const Store *store, uint64_t **hits);

/* The next line name=value of the file `info`, which the library leaves in the directory. false: there is none. */
bool info_next(const char **at, KeyLine *line);

/* A whole file, terminated, in the arena. -1: read; otherwise the status to end with, all being said. */
int read_text_file(Cli *cli, const char *path, size_t max, const char **text);

/* One entry in memory. What is damaged has only item, key and damage. */
typedef struct Entry {
    const DiskItem *item;
    const char *key;    /* short */
    const char *damage; /* NULL: none was found */
    bool other_format;  /* `damage` says so; it is as another version of the library wrote it */
    EntryView view;
    const char *name;   /* what is computed: the kernels' names */
    const char *where;  /* the function of the API that needed the values, "" when unknown */
    const char *place;  /* of its call, "train.c:82", "" when unknown */
    const char *device; /* "cpu", "sm_90" */
    const char *cpu;    /* "sapphirerapids" */
    const char *shapes; /* of the call it was compiled for */
    const char *sizes;  /* "fixed": for these shapes alone; "vary": some are arguments; "any": it takes every shape of its graph */
    double compile_seconds;
    int64_t made;
} Entry;

/* Reads and parses, everything in `arena`. ST_IO: it cannot be read; damage is no failure. */
Status entry_open(const Cli *cli, const Store *store, const DiskItem *item, Arena *arena, Entry *out);
/* The same for bytes that lie in memory, filed under item->name. */
void entry_examine(const void *bytes, size_t n, Arena *arena, Entry *out);
/* Opens the directory and one entry in it, by its key. -1: go on. Damage is said and ends with END_FOUND. */
int entry_open_key(Cli *cli, const char *key, Store *store, Entry *out);
int entry_of_key(Cli *cli, const char *key, Entry *out); /* and closes the directory */

/* Everything about an entry, as `kiln cache show --json` prints it (show.c); what was left in its directory: counters, and recorded misses with
 * what failed, the newest `most` of them (stats.c, why.c). NULL: it cannot be read, which fail_message says. */
json_t *entry_json(Cli *cli, const Entry *entry);
json_t *store_stats_json(Cli *cli, const Store *store);
json_t *store_misses_json(Cli *cli, const Store *store, uint32_t most);

/* Do --device and --name let it pass? */
bool entry_wanted(const Cli *cli, const Entry *entry);

#endif
