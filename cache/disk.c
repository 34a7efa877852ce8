/* The cache directory. See disk.h; the system calls are in ir/base/os_dir.c. */
#include "cache/disk.h"
#include "ir/base/bytes.h"
#include "ir/base/os.h"
#include "ir/base/os_dir.h"
#include "ir/base/vec.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HOUR = 3600, TEMPORARY_NAME = 64, TEXT_MAX = 64 << 20, FOLDER = 3, FOREIGN_NAME = 256, RECORD = 8, MOST_RECORDS = 4096 };

struct Disk {
    int dir;
    bool writable;
    char path[];
};

static const char tag_file[] = "CACHEDIR.TAG", evicted_file[] = "evicted", size_file[] = "size";
static const char tag_text[] = "Signature: 8a477f597d28d172789f06886806bc55\n"
                               "# Compiled programs of kiln. Everything here can be made again.\n";

static const char turn_prefix[] = "turn.";

static bool is_temporary(const char *name) { return strncmp(name, "tmp.", 4) == 0; }

static Status io_error(const Disk *disk, const char *name) { return fail(ST_IO, "%s/%s: %s", disk->path, name, strerror(errno)); }

/* --- opening ----------------------------------------------------------------------------------------------------------- */

static bool join(char *path, size_t size, const char *folder, const char *rest)
{
    int n = snprintf(path, size, "%s%s", folder, rest);
    return n > 0 && (size_t)n < size;
}

bool disk_default_path(char *path, size_t size)
{
    const char *named = os_getenv("KILN_CACHE_DIR"), *cache = os_getenv("XDG_CACHE_HOME"), *home = os_getenv("HOME");
    if (named && *named)
        return join(path, size, named, "");
    if (cache && *cache == '/') /* others are to be ignored, says the standard of these names */
        return join(path, size, cache, "/kiln");
    return home && *home == '/' && join(path, size, home, "/.cache/kiln");
}

static Status check_owner(const char *path, const OsFileInfo *info)
{
    if (!info->ours)
        return fail(ST_IO, "%s belongs to user %u, not to user %u who runs this", path, info->owner, os_user());
    if (info->shared)
        return fail(ST_IO, "others may write to %s (mode %04o): whoever can write it could run code as you; chmod go-w it", path,
                    info->mode);
    return ST_OK;
}

static Status cannot_open(const char *path)
{
    int cause = errno;
    OsFileInfo info;
    if (os_dir_info(-1, path, &info) && info.link)
        return fail(ST_IO, "%s is a symbolic link; name the directory itself", path);
    return fail(ST_IO, "%s: %s", path, strerror(cause));
}

static void write_tag(const Disk *disk)
{
    OsFileInfo info;
    if (!os_dir_info(disk->dir, tag_file, &info))
        (void)os_file_write_new(disk->dir, tag_file, tag_text, sizeof tag_text - 1); /* no harm without */
}

static Status open_directory(Disk *disk, bool create)
{
    OsFileInfo info;
    disk->dir = os_dir_open(-1, disk->path);
    if (disk->dir < 0 && errno == ENOENT && create && os_dir_make(-1, disk->path, true))
        disk->dir = os_dir_open(-1, disk->path);
    if (disk->dir < 0)
        return cannot_open(disk->path);
    if (!os_dir_info(disk->dir, "", &info))
        return fail(ST_IO, "%s: %s", disk->path, strerror(errno));
    TRY(check_owner(disk->path, &info));
    if (disk->writable && create)
        write_tag(disk);
    return ST_OK;
}

Status disk_open(const char *path, bool create, bool writable, Disk **out)
{
    size_t n = strlen(path);
    *out = NULL;
    while (n > 1 && path[n - 1] == '/') /* a link with a slash behind it would be followed */
        n--;
    if (n == 0)
        return fail(ST_IO, "the cache directory has an empty name");
    Disk *disk = os_calloc(1, sizeof *disk + n + 1);
    if (!disk)
        return fail(ST_OUT_OF_MEMORY, "no memory for a cache directory");
    memcpy(disk->path, path, n);
    disk->writable = writable;
    Status status = open_directory(disk, create && writable);
    if (status != ST_OK) {
        disk_close(disk);
        return status;
    }
    *out = disk;
    return ST_OK;
}

/* The name of a file or folder that kiln gives. */
static bool is_our_name(const char *name)
{
    static const char *const names[] = {"info", "counters", "misses", "machine", evicted_file, size_file, tag_file};
    const char *digits = strncmp(name, turn_prefix, sizeof turn_prefix - 1) ? name : name + sizeof turn_prefix - 1;
    bool folder_or_turn = strlen(digits) == 2 && strspn(digits, "0123456789abcdef") == 2;
    bool found = folder_or_turn || is_temporary(name);
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        found |= strcmp(name, names[k]) == 0;
    return found;
}

static bool is_foreign(const char *name, void *user)
{
    char *first = user;
    if (!is_our_name(name))
        snprintf(first, FOREIGN_NAME, "%s", name);
    return !*first;
}

/* Reads as much of the tag as there should be: other programs mark their caches so, too. */
static bool is_tagged(const Disk *disk)
{
    char text[sizeof tag_text - 1];
    OsFileInfo info;
    int file = os_file_open(disk->dir, tag_file, &info);
    bool ours = file >= 0 && info.regular && os_file_read(file, text, sizeof text) && memcmp(text, tag_text, sizeof text) == 0;
    os_file_close(file);
    return ours;
}

Status disk_open_to_fill(const char *path, Disk **out)
{
    OsFileInfo info;
    char foreign[FOREIGN_NAME] = "";
    bool there = os_dir_info(-1, path, &info);
    TRY(disk_open(path, !there, true, out));
    Status status = ST_OK;
    if (there && !os_dir_each((*out)->dir, is_foreign, foreign))
        status = io_error(*out, "");
    else if (*foreign && !is_tagged(*out))
        status = fail(ST_IO, "%s holds \"%s\", which is not kiln's: name a new directory, an empty one or a cache of kiln", path, foreign);
    if (status == ST_OK) {
        write_tag(*out);
        return ST_OK;
    }
    disk_close(*out);
    *out = NULL;
    return status;
}

void disk_close(Disk *disk)
{
    if (disk)
        os_dir_close(disk->dir);
    os_free(disk);
}

const char *disk_path(const Disk *disk) { return disk->path; }

/* --- the folders of entries --------------------------------------------------------------------------------------------- */

/* The folder of the names that begin so; -1 in *folder: there is none, though a file may have its name. The caller closes it. */
static Status open_folder(const Disk *disk, const char *name, bool create, int *folder)
{
    char short_name[FOLDER] = {name[0], name[1]};
    OsFileInfo info;
    *folder = os_dir_open(disk->dir, short_name);
    if (*folder < 0 && !create && (errno == ENOENT || errno == ENOTDIR))
        return ST_OK;
    if (*folder < 0 && errno == ENOENT) {
        if (os_dir_make(disk->dir, short_name, false))
            *folder = os_dir_open(disk->dir, short_name);
    }
    if (*folder < 0 || !os_dir_info(*folder, "", &info)) {
        Status status = io_error(disk, short_name);
        os_dir_close(*folder);
        *folder = -1;
        return status;
    }
    Status status = check_owner(disk->path, &info);
    if (status != ST_OK) {
        os_dir_close(*folder);
        *folder = -1;
    }
    return status;
}

typedef struct Listing {
    Arena *arena;
    const char *prefix;
    size_t prefix_bytes;
    int folder;
    bool full; /* there was no memory for all */
    VEC(DiskItem) items;
} Listing;

static bool list_one(const char *name, void *user)
{
    Listing *list = user;
    OsFileInfo info;
    if (strncmp(name, list->prefix, list->prefix_bytes) != 0 || !entry_name_valid(name) || !os_dir_info(list->folder, name, &info) ||
        !info.regular)
        return true;
    DiskItem item = {.bytes = (size_t)info.bytes, .made = info.made, .used = info.modified};
    memcpy(item.name, name, sizeof item.name);
    jmp_buf here, *outer = list->arena->oom; /* the folder's handles must not get lost where the arena jumps */
    list->arena->oom = &here;
    if (setjmp(here) == 0)
        VEC_PUSH(list->arena, list->items, item);
    else
        list->full = true;
    list->arena->oom = outer;
    return !list->full;
}

static int by_name(const void *a, const void *b) { return strcmp(((const DiskItem *)a)->name, ((const DiskItem *)b)->name); }

static Status list_folder(Disk *disk, const char *name, Listing *list)
{
    TRY(open_folder(disk, name, false, &list->folder));
    if (list->folder < 0)
        return ST_OK;
    bool ok = os_dir_each(list->folder, list_one, list);
    Status status = list->full ? fail(ST_OUT_OF_MEMORY, "no memory for the list of entries") : ok ? ST_OK : io_error(disk, name);
    os_dir_close(list->folder);
    return status;
}

Status disk_list(Disk *disk, const char *prefix, Arena *arena, DiskItem **items, uint32_t *n)
{
    Listing list = {.arena = arena, .prefix = prefix, .prefix_bytes = strlen(prefix)};
    Status status = ST_OK;
    *items = NULL;
    *n = 0;
    for (unsigned i = 0; i < 256 && status == ST_OK; i++) {
        char folder[FOLDER];
        snprintf(folder, sizeof folder, "%02x", i);
        if (strncmp(folder, prefix, list.prefix_bytes < 2 ? list.prefix_bytes : 2) == 0)
            status = list_folder(disk, folder, &list);
    }
    if (list.items.n)
        qsort(list.items.at, list.items.n, sizeof *list.items.at, by_name);
    *items = list.items.at;
    *n = list.items.n;
    return status;
}

/* --- entries ----------------------------------------------------------------------------------------------------------------- */

/* Arena memory; where there is none the file is closed before the arena jumps. */
static void *room_while_open(Arena *arena, size_t bytes, int file)
{
    jmp_buf here, *outer = arena->oom;
    arena->oom = &here;
    if (setjmp(here) != 0) {
        os_file_close(file);
        longjmp(*outer, 1);
    }
    void *room = arena_alloc(arena, bytes);
    arena->oom = outer;
    return room;
}

static Status read_file(const Disk *disk, int folder, const char *name, size_t most, Arena *arena, const void **bytes, size_t *n)
{
    OsFileInfo info;
    int file = os_file_open(folder, name, &info);
    if (file < 0 && errno == ENOENT)
        return ST_OK;
    if (file < 0)
        return errno == ELOOP ? fail(ST_FORMAT, "a symbolic link") : io_error(disk, name);
    Status status = ST_OK;
    if (!info.regular)
        status = fail(ST_FORMAT, "no regular file");
    else if (!info.ours || info.shared)
        status = fail(ST_FORMAT, "a file that another user wrote or may write");
    else if (info.bytes > most)
        status = fail(ST_FORMAT, "too large: %" PRIu64 " bytes", info.bytes);
    if (status == ST_OK) {
        size_t size = (size_t)info.bytes;
        char *data = room_while_open(arena, size + 1, file);
        if (os_file_read(file, data, size)) {
            *bytes = data;
            *n = size;
        } else {
            status = errno ? io_error(disk, name) : fail(ST_FORMAT, "truncated while it was read");
        }
    }
    os_file_close(file);
    return status;
}

Status disk_read(Disk *disk, const char *name, Arena *arena, const void **bytes, size_t *n)
{
    int folder;
    *bytes = NULL;
    *n = 0;
    TRY(open_folder(disk, name, false, &folder));
    if (folder < 0)
        return ST_OK;
    Status status = read_file(disk, folder, name, ENTRY_MAX_BYTES, arena, bytes, n);
    os_dir_close(folder);
    return status;
}

static bool whole_hour(int64_t since, int64_t now) { return now - since >= HOUR || since > now + HOUR; }

void disk_used(Disk *disk, const DiskItem *item)
{
    int folder;
    if (!disk->writable || !whole_hour(item->used, os_time()) || open_folder(disk, item->name, false, &folder) != ST_OK || folder < 0)
        return;
    (void)os_file_touch(folder, item->name, 0); /* at worst it is evicted too early */
    os_dir_close(folder);
}

static Status read_only(const Disk *disk) { return fail(ST_IO, "%s was opened for reading", disk->path); }

/* A temporary that is not needed any more. Tried twice, for a call may fail for once; what stays all the same is stale in an hour, is told of by
 * `kiln cache verify` and goes with the next eviction. */
static void drop_temporary(int folder, const char *name)
{
    if (!os_file_remove(folder, name))
        (void)os_file_remove(folder, name);
}

/* Gives the finished temporary its name. Two names are better than a rename, which would replace; not all systems have them. */
static bool give_name(int folder, const char *temporary, const char *name, bool replace)
{
    OsFileInfo info;
    bool linked = !replace && os_file_link(folder, temporary, name);
    int cause = errno;
    bool there = !replace && !linked && cause == EEXIST && os_dir_info(folder, name, &info) && info.regular && info.ours && !info.shared;
    if (linked || there) {
        drop_temporary(folder, temporary);
        return true;
    }
    if (!replace && cause != EEXIST && cause != EPERM && cause != EOPNOTSUPP && cause != ENOSYS && cause != EMLINK) {
        errno = cause;
        return false;
    }
    return os_file_rename(folder, temporary, name);
}

Status disk_publish(Disk *disk, const char *name, const void *bytes, size_t n, bool replace)
{
    int folder;
    char temporary[TEMPORARY_NAME];
    if (!disk->writable)
        return read_only(disk);
    TRY(open_folder(disk, name, true, &folder));
    snprintf(temporary, sizeof temporary, "tmp.%" PRId64 ".%016" PRIx64, os_process(), os_random());
    Status status = ST_OK;
    if (!os_file_write_new(folder, temporary, bytes, n)) {
        status = io_error(disk, temporary);
    } else if (!give_name(folder, temporary, name, replace)) {
        status = io_error(disk, name);
        drop_temporary(folder, temporary);
    }
    os_dir_close(folder);
    return status;
}

Status disk_remove(Disk *disk, const char *name)
{
    int folder;
    if (!disk->writable)
        return read_only(disk);
    TRY(open_folder(disk, name, false, &folder));
    if (folder < 0)
        return ST_OK;
    bool gone = os_file_remove(folder, name) || errno == ENOENT;
    Status status = gone ? ST_OK : io_error(disk, name);
    os_dir_close(folder);
    return status;
}

/* A small file of the directory, replaced as a whole. */
static Status write_small(Disk *disk, const char *file, const void *bytes, size_t n)
{
    char temporary[TEMPORARY_NAME];
    if (!disk->writable)
        return read_only(disk);
    snprintf(temporary, sizeof temporary, "tmp.%" PRId64 ".%016" PRIx64, os_process(), os_random());
    if (!os_file_write_new(disk->dir, temporary, bytes, n))
        return io_error(disk, temporary);
    if (os_file_rename(disk->dir, temporary, file))
        return ST_OK;
    Status status = io_error(disk, file);
    drop_temporary(disk->dir, temporary);
    return status;
}

/* --- pruning ------------------------------------------------------------------------------------------------------------------- */

typedef struct Leftovers {
    int folder;
    bool remove;
    int64_t now;
    DiskLeftovers *out;
} Leftovers;

static bool count_temporary(const char *name, void *user)
{
    Leftovers *left = user;
    OsFileInfo info;
    if (!is_temporary(name) || !os_dir_info(left->folder, name, &info))
        return true;
    /* One with another name has become an entry, and is as fresh as that was used: its writer was stopped between giving and taking a name. */
    bool stale = info.linked || whole_hour(info.modified, left->now);
    left->out->n++;
    left->out->stale += stale;
    left->out->bytes += info.bytes;
    left->out->removed += stale && left->remove && os_file_remove(left->folder, name);
    return true;
}

void disk_leftovers(Disk *disk, bool remove, DiskLeftovers *out)
{
    *out = (DiskLeftovers){0};
    Leftovers left = {.remove = remove && disk->writable, .now = os_time(), .out = out};
    for (unsigned i = 0; i < 256; i++) {
        char folder[FOLDER];
        snprintf(folder, sizeof folder, "%02x", i);
        if (open_folder(disk, folder, false, &left.folder) != ST_OK || left.folder < 0)
            continue;
        (void)os_dir_each(left.folder, count_temporary, &left);
        os_dir_close(left.folder);
    }
    left.folder = disk->dir;
    (void)os_dir_each(left.folder, count_temporary, &left);
}

static int by_use(const void *a_, const void *b_)
{
    const DiskItem *a = a_, *b = b_;
    return a->used != b->used ? (a->used < b->used ? -1 : 1) : strcmp(a->name, b->name);
}

typedef struct PruneJob {
    Disk *disk;
    uint64_t limit, down_to; /* more than `limit` bytes: removed down to `down_to` */
    int64_t max_age;
    bool dry_run;
    DiskPrune *out;
} PruneJob;

static Status prune(const PruneJob *job, Arena *arena)
{
    DiskItem *items;
    uint32_t n;
    DiskPrune *out = job->out;
    int64_t now = os_time();
    TRY(disk_list(job->disk, "", arena, &items, &n));
    if (n)
        qsort(items, n, sizeof *items, by_use);
    out->kept = n;
    for (uint32_t i = 0; i < n; i++)
        out->kept_bytes += items[i].bytes;
    uint64_t most = out->kept_bytes > job->limit || !job->limit ? job->down_to : UINT64_MAX; /* a limit of 0: all go, empty ones too */
    Status status = ST_OK;
    for (uint32_t i = 0; i < n; i++) {
        bool old = job->max_age > 0 && now - items[i].used > job->max_age;
        if (out->kept_bytes <= most && most && !old)
            break; /* sorted: the rest was used later */
        Status removed = job->dry_run ? ST_OK : disk_remove(job->disk, items[i].name);
        if (removed != ST_OK) {
            status = removed;
            continue;
        }
        out->removed++;
        out->removed_bytes += items[i].bytes;
        out->kept--;
        out->kept_bytes -= items[i].bytes;
    }
    DiskLeftovers left;
    disk_leftovers(job->disk, !job->dry_run, &left);
    out->stale = job->dry_run ? left.stale : left.removed;
    return status;
}

static Status run_prune(const PruneJob *job)
{
    Arena arena;
    jmp_buf oom;
    *job->out = (DiskPrune){0};
    arena_init(&arena, &oom);
    Status status = setjmp(oom) == 0 ? prune(job, &arena) : fail(ST_OUT_OF_MEMORY, "no memory for the list of entries");
    arena_free(&arena);
    return status;
}

Status disk_prune(Disk *disk, uint64_t max_bytes, int64_t max_age, bool dry_run, DiskPrune *out)
{
    PruneJob job = {disk, max_bytes, max_bytes, max_age, dry_run, out};
    return !disk->writable && !dry_run ? read_only(disk) : run_prune(&job);
}

/*
 * The bytes that all entries took when they were last counted and those stored since, this store included; UINT64_MAX: not known. *counted:
 * false where there was no record before this one. One that is replaced counts twice, and what two processes store while a third counts may
 * count once too often or not at all: a count puts it right.
 */
static uint64_t size_with(const Disk *disk, uint64_t stored, bool *counted)
{
    OsFileInfo info;
    uint8_t record[RECORD];
    uint64_t sum = 0;
    *counted = true;
    for (int i = 0; i < RECORD; i++)
        record[i] = (uint8_t)(stored >> 8 * i);
    if (!os_file_append(disk->dir, size_file, record, sizeof record, SIZE_MAX))
        return 0; /* it cannot be summed up here: every hour it is counted */
    int file = os_file_open(disk->dir, size_file, &info);
    if (file < 0 || !info.regular || info.bytes % RECORD != 0 || info.bytes > RECORD * MOST_RECORDS) {
        os_file_close(file);
        return UINT64_MAX;
    }
    uint8_t *bytes = os_alloc((size_t)info.bytes + 1);
    bool complete = bytes && os_file_read(file, bytes, (size_t)info.bytes);
    ByteReader in = {bytes, complete ? bytes + info.bytes : bytes, false};
    while (in.at < in.end)
        if (__builtin_add_overflow(sum, read_u64(&in), &sum))
            sum = UINT64_MAX;
    *counted = info.bytes > RECORD;
    os_free(bytes);
    os_file_close(file);
    return complete ? sum : UINT64_MAX;
}

static void keep_size(Disk *disk, uint64_t size)
{
    char record[RECORD];
    for (int i = 0; i < RECORD; i++)
        record[i] = (char)(size >> 8 * i);
    (void)write_small(disk, size_file, record, sizeof record);
}

bool disk_evict(Disk *disk, uint64_t stored, uint64_t limit, DiskPrune *out)
{
    PruneJob job = {disk, limit, limit / 5 * 4, 0, false, out};
    OsFileInfo info;
    bool counted = false;
    if (!disk->writable)
        return false;
    uint64_t size = size_with(disk, stored, &counted);
    bool stamped = os_dir_info(disk->dir, evicted_file, &info);
    bool due = stamped && (!counted || whole_hour(info.modified, os_time())); /* the hour begins with a new directory's first entry */
    if (stamped && !due && size <= limit)
        return false;
    int lock = os_file_lock(disk->dir, evicted_file); /* where the system has no locks two may evict: no harm */
    if (lock < 0 && errno == EWOULDBLOCK)
        return false;
    (void)os_file_touch(disk->dir, evicted_file, 0);
    bool done = (due || size > limit) && run_prune(&job) == ST_OK;
    if (done)
        keep_size(disk, out->kept_bytes);
    os_file_close(lock);
    return done;
}

int disk_turn(Disk *disk, const char *name, bool *taken)
{
    char file[sizeof turn_prefix + 2];
    *taken = false;
    if (!disk->writable || snprintf(file, sizeof file, "%s%.2s", turn_prefix, name) != (int)sizeof file - 1)
        return -1;
    int turn = os_file_lock(disk->dir, file);
    *taken = turn < 0 && errno == EWOULDBLOCK;
    return turn;
}

void disk_turn_end(int turn) { os_file_close(turn); }

/* --- small files ----------------------------------------------------------------------------------------------------------------- */

Status disk_append(Disk *disk, const char *file, const char *line, size_t limit)
{
    if (!disk->writable)
        return read_only(disk);
    return os_file_append(disk->dir, file, line, strlen(line), limit) ? ST_OK : io_error(disk, file);
}

Status disk_text(Disk *disk, const char *file, Arena *arena, const char **text)
{
    const void *bytes = NULL;
    size_t n;
    TRY(read_file(disk, disk->dir, file, TEXT_MAX, arena, &bytes, &n));
    *text = bytes; /* an arena's memory is zero: there is a 0 behind it */
    return ST_OK;
}

Status disk_write_text(Disk *disk, const char *file, const char *text) { return write_small(disk, file, text, strlen(text)); }
