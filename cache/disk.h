/*
 * The cache directory: entries as files, verified before use, published atomically, evicted by size and age.
 *
 *     <dir>/                 0700, owned by the effective user, writable by no one else; opened once, used only through that handle
 *       CACHEDIR.TAG         so that back-up programs leave it out
 *       info                 what the library found of devices and features when it last wrote (for `kiln info`)
 *       counters             lines appended per process: hits, misses, refusals, seconds saved (O_APPEND, no lock); cache/records.h
 *       misses               recorded misses, a line each, bounded (for `kiln cache why`); cache/records.h
 *       machine              what the machine can do at most, a line for each CPU and number of threads; cache/machine.h
 *       size                 numbers of 8 bytes, appended without a lock: what all entries took when they were counted last, then each store
 *       turn.3f              locked while one of several ranks compiles for an entry of that folder (disk_turn)
 *       evicted              its time of modification: when the last eviction was; locked during one
 *       3f/3fa9...-....kiln  entries in 256 folders by the first byte of their name
 *       3f/tmp.<pid>.<random>  being written; no reader matches it
 *
 * Any failure is a miss with a reason and at most one warning of its kind in a process; never an error of the caller's work. Content errors
 * remove an entry, I/O errors never do. Nothing is flushed to the disk when it is published: after a power failure a file may be there with
 * holes in it, which its checksum tells; it is removed then and made again. Thread-safe: a Disk never changes.
 */
#ifndef CACHE_DISK_H
#define CACHE_DISK_H

#include "cache/entry.h"

typedef struct Disk Disk;

/* $KILN_CACHE_DIR, else $XDG_CACHE_HOME/kiln, else $HOME/.cache/kiln, into path; false: there is none (no home). */
bool disk_default_path(char *path, size_t size);

/* Opens (creates if `create`) a cache directory. ST_IO with what is wrong: not there, not a directory, a symbolic link, owned by whom, writable by
 * whom. `writable` false: nothing in it is ever changed. */
Status disk_open(const char *path, bool create, bool writable, Disk **out);
/* For a directory that a person named to be filled: opened for writing, or made, where it is not there, is empty, holds only what kiln writes,
 * or is tagged as a cache of kiln. ST_IO: it holds something else, or as disk_open. */
Status disk_open_to_fill(const char *path, Disk **out);
void disk_close(Disk *disk);
const char *disk_path(const Disk *disk);

typedef struct DiskItem {
    char name[ENTRY_NAME_BYTES];
    size_t bytes;
    int64_t made, used; /* Unix seconds; made 0: the system does not know. used is the file's modification time (disk_used) */
} DiskItem;

/* Entries whose name begins with `prefix` ("" for all), sorted by name, in the arena. ST_IO. */
Status disk_list(Disk *disk, const char *prefix, Arena *arena, DiskItem **items, uint32_t *n);

/* The bytes of one entry, in the arena, not verified; *bytes NULL where it is gone. ST_IO with errno's text, ST_FORMAT for something that
 * is no regular file of ours or too large. */
Status disk_read(Disk *disk, const char *name, Arena *arena, const void **bytes, size_t *n);

/* Notes that an entry was loaded, at most once an hour. */
void disk_used(Disk *disk, const DiskItem *item);

/* Publishes bytes under a name; a present entry of that name stays (the loser of a race drops its copy) unless `replace`. ST_IO. */
Status disk_publish(Disk *disk, const char *name, const void *bytes, size_t n, bool replace);
/* The turn to compile for entries of this name's folder, among processes that ask for it; ends with the process or disk_turn_end. -1: another has it
 * (*taken), or there are no locks here. */
int disk_turn(Disk *disk, const char *name, bool *taken);
void disk_turn_end(int turn);
Status disk_remove(Disk *disk, const char *name); /* gone already: ST_OK */

/* What writers left behind: temporaries, and of these the stale ones, which are done or older than an hour: nobody is at work on them;
 * `remove`: those go. */
typedef struct DiskLeftovers {
    uint32_t n, stale, removed;
    uint64_t bytes;
} DiskLeftovers;
void disk_leftovers(Disk *disk, bool remove, DiskLeftovers *out);

/* Removes the least recently used entries until at most max_bytes remain, those not used for max_age seconds (0: any age), and stale
 * temporaries. dry_run: only counts. */
typedef struct DiskPrune {
    uint32_t removed, kept, stale;
    uint64_t removed_bytes, kept_bytes;
} DiskPrune;
Status disk_prune(Disk *disk, uint64_t max_bytes, int64_t max_age, bool dry_run, DiskPrune *out);
/* After `stored` bytes were published: the same to 80 % of `limit` where more is there. Everything is counted at most once an hour by one process
 * of all, and whenever the sum of what was counted then and stored since passes the limit. false: nothing was counted. */
bool disk_evict(Disk *disk, uint64_t stored, uint64_t limit, DiskPrune *out);

/* Appends one line to a file of the directory in one write (no lock). `limit`: the file starts anew beyond so many bytes. */
Status disk_append(Disk *disk, const char *file, const char *line, size_t limit);
/* A whole small file of the directory, terminated, in the arena; NULL text: not there. */
Status disk_text(Disk *disk, const char *file, Arena *arena, const char **text);
Status disk_write_text(Disk *disk, const char *file, const char *text);

#endif
