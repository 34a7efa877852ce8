/* The cache directory: who may own it, names, publishing, listing, use, eviction, small files; and each system call failing in turn. */
#include "cache/disk.h"
#include "ir/base/os.h"
#include "ir/base/os_dir.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static Arena arena;
static jmp_buf oom;
static char dir[256];
static Disk *disk;

static char *path_of(const char *name) { return arena_printf(&arena, "%s/%s", dir, name); }

static void setup(void)
{
    const char *tmp = getenv("TMPDIR");
    arena_init(&arena, &oom);
    if (setjmp(oom))
        cr_assert(false, "out of memory");
    snprintf(dir, sizeof dir, "%s/kiln_disk_XXXXXX", tmp ? tmp : "/tmp");
    cr_assert_not_null(mkdtemp(dir));
    cr_assert_eq(disk_open(dir, true, true, &disk), ST_OK, "%s", fail_message());
}

static void teardown(void)
{
    disk_close(disk);
    cr_assert_eq(system(arena_printf(&arena, "rm -rf '%s'", dir)), 0);
    arena_free(&arena);
}

TestSuite(disk, .init = setup, .fini = teardown);

static char *name_of(unsigned n) { return arena_printf(&arena, "%02x%030x-12345678-%016x.kiln", n & 255, n, n); }

static char *file_of(unsigned n) { return path_of(arena_printf(&arena, "%02x/%s", n & 255, name_of(n))); }

static void publish(unsigned n, const char *text)
{
    cr_assert_eq(disk_publish(disk, name_of(n), text, strlen(text), false), ST_OK, "%s", fail_message());
}

static const char *content(unsigned n)
{
    const void *bytes;
    size_t size;
    cr_assert_eq(disk_read(disk, name_of(n), &arena, &bytes, &size), ST_OK, "%s", fail_message());
    return bytes ? arena_copy(&arena, bytes, size + 1) : NULL;
}

static uint32_t listed(const char *prefix)
{
    DiskItem *items;
    uint32_t n;
    cr_assert_eq(disk_list(disk, prefix, &arena, &items, &n), ST_OK, "%s", fail_message());
    for (uint32_t i = 1; i < n; i++)
        cr_assert_lt(strcmp(items[i - 1].name, items[i].name), 0);
    return n;
}

static void set_used(unsigned n, int64_t time)
{
    struct timespec times[2] = {{.tv_sec = time}, {.tv_sec = time}};
    cr_assert_eq(utimensat(AT_FDCWD, file_of(n), times, 0), 0);
}

static int64_t used(unsigned n)
{
    struct stat info;
    cr_assert_eq(stat(file_of(n), &info), 0);
    return info.st_mtime;
}

/* --- entries --- */

Test(disk, entries_are_published_listed_read_and_removed)
{
    cr_assert_eq(listed(""), 0);
    cr_assert_null(content(1));
    publish(1, "one");
    publish(2, "two");
    publish(257, "same folder as one");
    cr_assert_str_eq(content(1), "one");
    cr_assert_str_eq(content(257), "same folder as one");
    cr_assert_eq(listed(""), 3);
    cr_assert_eq(listed("01"), 2);
    cr_assert_eq(listed("0"), 3);
    cr_assert_eq(listed("7"), 0);
    char prefix[40];
    snprintf(prefix, sizeof prefix, "%.33s", name_of(2));
    cr_assert_eq(listed(prefix), 1);
    cr_assert_eq(disk_remove(disk, name_of(1)), ST_OK);
    cr_assert_eq(disk_remove(disk, name_of(1)), ST_OK, "twice is no fault");
    cr_assert_null(content(1));
    cr_assert_eq(listed(""), 2);
}

Test(disk, the_loser_of_a_race_drops_its_copy_unless_it_replaces)
{
    publish(1, "first");
    publish(1, "second");
    cr_assert_str_eq(content(1), "first");
    cr_assert_eq(disk_publish(disk, name_of(1), "third", 5, true), ST_OK);
    cr_assert_str_eq(content(1), "third");
    cr_assert_eq(system(arena_printf(&arena, "test $(ls %s/01 | wc -l) = 1", dir)), 0, "a temporary was left");
    struct stat info;
    cr_assert_eq(stat(file_of(1), &info), 0);
    cr_assert_eq(info.st_mode & 0777, 0600);
    cr_assert_eq(info.st_nlink, 1);
}

/* What others put where a folder of entries belongs hides no entry; storing there says what is in the way. */
Test(disk, a_file_in_place_of_a_folder)
{
    DiskItem *items;
    uint32_t n;
    publish(1, "x");
    publish(2, "y");
    cr_assert_eq(system(arena_printf(&arena, "rm -r %s/02 && touch %s/02 && ln -s 01 %s/03", dir, dir, dir)), 0);
    cr_assert_eq(disk_list(disk, "", &arena, &items, &n), ST_OK, "%s", fail_message());
    cr_assert_eq(n, 1);
    cr_assert_str_eq(items[0].name, name_of(1));
    cr_assert_neq(disk_publish(disk, name_of(2), "y", 1, false), ST_OK);
    cr_assert_not_null(strstr(fail_message(), "02: Not a directory"), "%s", fail_message());
    cr_assert_neq(disk_publish(disk, name_of(3), "z", 1, false), ST_OK);
}

Test(disk, only_regular_files_of_ours_are_read)
{
    const void *bytes;
    size_t n;
    publish(1, "x");
    publish(2, "hostile");
    cr_assert_eq(unlink(file_of(1)), 0);
    cr_assert_eq(symlink(file_of(2), file_of(1)), 0);
    cr_assert_eq(disk_read(disk, name_of(1), &arena, &bytes, &n), ST_FORMAT);
    cr_assert_not_null(strstr(fail_message(), "symbolic link"));
    cr_assert_eq(unlink(file_of(1)), 0);
    cr_assert_eq(mkfifo(file_of(1), 0600), 0); /* must not block */
    cr_assert_eq(disk_read(disk, name_of(1), &arena, &bytes, &n), ST_FORMAT);
    cr_assert_eq(unlink(file_of(1)), 0);
    cr_assert_eq(mkdir(file_of(1), 0700), 0);
    cr_assert_eq(disk_read(disk, name_of(1), &arena, &bytes, &n), ST_FORMAT);
    cr_assert_eq(chmod(file_of(2), 0666), 0);
    cr_assert_eq(disk_read(disk, name_of(2), &arena, &bytes, &n), ST_FORMAT);
    cr_assert_eq(chmod(file_of(2), 0600), 0);
    if (geteuid() == 0) {
        cr_assert_eq(chown(file_of(2), 12345, (gid_t)-1), 0);
        cr_assert_eq(disk_read(disk, name_of(2), &arena, &bytes, &n), ST_FORMAT);
        cr_assert_eq(chown(path_of("02"), 12345, (gid_t)-1), 0);
        cr_assert_eq(disk_read(disk, name_of(2), &arena, &bytes, &n), ST_IO);
        cr_assert_eq(chown(path_of("02"), 0, (gid_t)-1), 0);
        cr_assert_eq(chown(file_of(2), 0, (gid_t)-1), 0);
    }
    cr_assert_eq(truncate(file_of(2), (off_t)ENTRY_MAX_BYTES + 1), 0);
    cr_assert_eq(disk_read(disk, name_of(2), &arena, &bytes, &n), ST_FORMAT);
    cr_assert_not_null(strstr(fail_message(), "too large"));
    cr_assert_eq(listed(""), 1, "a directory is no entry");
}

Test(disk, strange_names_are_no_entries)
{
    publish(1, "x");
    const char *const strange[] = {"01/tmp.1.2", "01/notes.txt", "01/0100.kiln", "stray", "zz"};
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
        FILE *file = fopen(path_of(strange[i]), "w");
        cr_assert_not_null(file);
        fclose(file);
    }
    cr_assert_eq(listed(""), 1);
}

/* --- the directory --- */

static Status reopen(const char *path, bool create, bool writable)
{
    Disk *other;
    Status status = disk_open(path, create, writable, &other);
    cr_assert_eq(status == ST_OK, other != NULL);
    disk_close(other);
    return status;
}

Test(disk, the_directory_must_be_ours_alone)
{
    cr_assert_eq(reopen(path_of("deep/er/cache"), true, true), ST_OK);
    struct stat info;
    cr_assert_eq(stat(path_of("deep/er/cache"), &info), 0);
    cr_assert_eq(info.st_mode & 0777, 0700);
    cr_assert_eq(stat(path_of("deep"), &info), 0);
    cr_assert_eq(info.st_mode & 0777, 0700);
    cr_assert_eq(access(path_of("deep/er/cache/CACHEDIR.TAG"), F_OK), 0);
    cr_assert_eq(reopen(path_of("absent"), false, true), ST_IO);
    cr_assert_eq(reopen(path_of("absent"), true, false), ST_IO, "one that changes nothing makes nothing");
    cr_assert_neq(access(path_of("absent"), F_OK), 0);
    cr_assert_eq(reopen("", true, true), ST_IO);
    cr_assert_eq(reopen(path_of("CACHEDIR.TAG"), true, true), ST_IO);
    cr_assert_eq(reopen(path_of("CACHEDIR.TAG/cache"), true, true), ST_IO);

    cr_assert_eq(symlink(path_of("deep"), path_of("link")), 0);
    cr_assert_eq(reopen(path_of("link"), true, true), ST_IO);
    cr_assert_not_null(strstr(fail_message(), "symbolic link"), "%s", fail_message());
    cr_assert_eq(reopen(path_of("link///"), true, true), ST_IO);
    cr_assert_eq(reopen(path_of("link/er/cache"), true, true), ST_OK, "a link further up is the user's own way");

    static const mode_t shared[] = {0777, 0770, 0702, 01777};
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) {
        cr_assert_eq(chmod(path_of("deep"), shared[i]), 0);
        cr_assert_eq(reopen(path_of("deep"), true, true), ST_IO, "%o", (unsigned)shared[i]);
        cr_assert_not_null(strstr(fail_message(), "others may write"), "%s", fail_message());
    }
    cr_assert_eq(chmod(path_of("deep"), 0755), 0);
    cr_assert_eq(reopen(path_of("deep"), true, true), ST_OK, "others may look");
    if (geteuid() == 0) {
        cr_assert_eq(chown(path_of("deep"), 12345, (gid_t)-1), 0);
        cr_assert_eq(reopen(path_of("deep"), true, true), ST_IO);
        cr_assert_not_null(strstr(fail_message(), "user 12345"), "%s", fail_message());
    }
}

Test(disk, read_only_changes_nothing)
{
    DiskPrune pruned;
    DiskItem *items;
    uint32_t n;
    publish(1, "x");
    set_used(1, 1000000000);
    disk_close(disk);
    cr_assert_eq(disk_open(dir, true, false, &disk), ST_OK);
    cr_assert_str_eq(content(1), "x");
    cr_assert_eq(disk_publish(disk, name_of(2), "y", 1, false), ST_IO);
    cr_assert_eq(disk_remove(disk, name_of(1)), ST_IO);
    cr_assert_eq(disk_prune(disk, 0, 0, false, &pruned), ST_IO);
    cr_assert_eq(disk_prune(disk, 0, 0, true, &pruned), ST_OK);
    cr_assert_eq(pruned.removed, 1);
    cr_assert_not(disk_evict(disk, 0, 0, &pruned));
    cr_assert_eq(disk_append(disk, "counters", "x\n", 100), ST_IO);
    cr_assert_eq(disk_write_text(disk, "info", "x"), ST_IO);
    cr_assert_eq(disk_list(disk, "", &arena, &items, &n), ST_OK);
    disk_used(disk, &items[0]);
    cr_assert_eq(used(1), 1000000000);
    cr_assert_str_eq(content(1), "x");
}

Test(disk, the_default_place)
{
    char path[300];
    setenv("KILN_CACHE_DIR", "/a/b", 1);
    setenv("XDG_CACHE_HOME", "/xdg", 1);
    setenv("HOME", "/home/me", 1);
    cr_assert(disk_default_path(path, sizeof path));
    cr_assert_str_eq(path, "/a/b");
    setenv("KILN_CACHE_DIR", "", 1);
    cr_assert(disk_default_path(path, sizeof path));
    cr_assert_str_eq(path, "/xdg/kiln");
    setenv("XDG_CACHE_HOME", "relative", 1);
    cr_assert(disk_default_path(path, sizeof path));
    cr_assert_str_eq(path, "/home/me/.cache/kiln");
    cr_assert_not(disk_default_path(path, 10), "cut short");
    unsetenv("HOME");
    cr_assert_not(disk_default_path(path, sizeof path));
}

/* --- use and eviction --- */

Test(disk, use_is_noted_once_an_hour)
{
    DiskItem *items;
    uint32_t n;
    publish(1, "x");
    int64_t now = os_time(), recent = now - 60, old = now - 7200, future = now + 100000;
    const int64_t before[] = {recent, old, future};
    for (int i = 0; i < 3; i++) {
        set_used(1, before[i]);
        cr_assert_eq(disk_list(disk, "", &arena, &items, &n), ST_OK);
        cr_assert_eq(items[0].used, before[i]);
        cr_assert_eq(items[0].bytes, 1);
        disk_used(disk, &items[0]);
        cr_assert(i == 0 ? used(1) == recent : used(1) >= now && used(1) < now + 100);
    }
}

Test(disk, pruning_removes_the_least_recently_used)
{
    DiskPrune pruned;
    int64_t now = os_time();
    for (unsigned n = 0; n < 10; n++) {
        publish(n * 7, "0123456789");
        set_used(n * 7, now - 1000 * (int64_t)(n + 1));
    }
    cr_assert_eq(disk_prune(disk, 55, 0, true, &pruned), ST_OK);
    cr_assert_eq(pruned.removed, 5);
    cr_assert_eq(listed(""), 10);
    cr_assert_eq(disk_prune(disk, 55, 0, false, &pruned), ST_OK);
    cr_assert_eq(pruned.kept, 5);
    cr_assert_eq(pruned.kept_bytes, 50);
    cr_assert_eq(pruned.removed_bytes, 50);
    cr_assert_not_null(content(0));
    cr_assert_null(content(9 * 7));
    cr_assert_eq(disk_prune(disk, UINT64_MAX, 2500, false, &pruned), ST_OK);
    cr_assert_eq(listed(""), 2, "older than 2500 seconds");
    cr_assert_eq(disk_prune(disk, 0, 0, false, &pruned), ST_OK);
    cr_assert_eq(listed(""), 0);
}

Test(disk, stale_temporaries_go_and_fresh_ones_stay)
{
    DiskPrune pruned;
    publish(1, "x");
    cr_assert_eq(system(arena_printf(&arena, "touch %s/01/tmp.7.fresh && touch -d '2 hours ago' %s/01/tmp.7.stale", dir, dir)), 0);
    cr_assert_eq(disk_prune(disk, UINT64_MAX, 0, false, &pruned), ST_OK);
    cr_assert_eq(pruned.stale, 1);
    cr_assert_eq(access(path_of("01/tmp.7.fresh"), F_OK), 0);
    cr_assert_neq(access(path_of("01/tmp.7.stale"), F_OK), 0);
    cr_assert_eq(listed(""), 1);
}

/* A writer that was stopped after its temporary file had become the entry leaves that with two names: one goes at once, not in an hour. */
Test(disk, what_is_an_entry_already_is_no_fresh_temporary)
{
    DiskPrune pruned;
    DiskLeftovers left;
    publish(1, "x");
    cr_assert_eq(system(arena_printf(
                     &arena, "cd %s && ln 01/*.kiln 01/tmp.7.linked && touch tmp.7.fresh && touch -d '2 hours ago' tmp.7.stale", dir)),
                 0);
    disk_leftovers(disk, false, &left);
    cr_assert_eq(left.n, 3);
    cr_assert_eq(left.stale, 2);
    cr_assert_eq(left.removed, 0);
    cr_assert_eq(disk_prune(disk, UINT64_MAX, 0, true, &pruned), ST_OK);
    cr_assert_eq(pruned.stale, 2, "a dry run tells them");
    cr_assert_eq(access(path_of("01/tmp.7.linked"), F_OK), 0);
    cr_assert_eq(disk_prune(disk, UINT64_MAX, 0, false, &pruned), ST_OK);
    cr_assert_eq(pruned.stale, 2);
    cr_assert_neq(access(path_of("01/tmp.7.linked"), F_OK), 0);
    cr_assert_neq(access(path_of("tmp.7.stale"), F_OK), 0);
    cr_assert_eq(access(path_of("tmp.7.fresh"), F_OK), 0);
    cr_assert_eq(listed(""), 1);
}

static void evicted_long_ago(void) { cr_assert_eq(system(arena_printf(&arena, "touch -d '2 hours ago' %s/evicted", dir)), 0); }

/* One more entry of 10 bytes. */
static bool publish_and_evict(unsigned n, uint64_t limit, DiskPrune *pruned)
{
    publish(n, "0123456789");
    return disk_evict(disk, 10, limit, pruned);
}

/* No store leaves more than the limit, whatever the hour; below it nothing is counted. */
Test(disk, the_limit_holds_at_each_store)
{
    DiskPrune pruned;
    for (unsigned n = 0; n < 40; n++) {
        bool counted = publish_and_evict(n, 95, &pruned);
        cr_assert_leq(10 * listed(""), 95, "%u entries after store %u", listed(""), n);
        cr_assert_eq(counted, n >= 9 && (n - 9) % 3 == 0, "store %u", n); /* down to 76, which are 7 */
    }
    cr_assert(publish_and_evict(40, 30, &pruned), "a smaller limit");
    cr_assert_eq(listed(""), 2);
    cr_assert(publish_and_evict(41, 5, &pruned), "one entry alone is too large");
    cr_assert_eq(listed(""), 0);
}

/* What the sum rests on may be lost, damaged, or far too large: then it is counted. */
Test(disk, a_lost_sum_is_counted_anew)
{
    static const char *const harm[] = {"rm %s/size", "truncate -s 5 %s/size", "truncate -s 1M %s/size",
                                       "rm -f %s/size && printf '\\377\\377\\377\\377\\377\\377\\377\\377' >%s/size"};
    DiskPrune pruned;
    unsigned n = 0;
    for (; n < 5; n++)
        cr_assert_not(publish_and_evict(n, 1000, &pruned));
    for (size_t k = 0; k < sizeof harm / sizeof *harm; k++) {
        cr_assert_eq(system(arena_printf(&arena, harm[k], dir, dir)), 0);
        cr_assert(publish_and_evict(n++, 1000, &pruned), "%s", harm[k]);
        cr_assert_eq(pruned.kept_bytes, 10 * n, "%s", harm[k]);
        cr_assert_not(publish_and_evict(n++, 1000, &pruned), "after %s", harm[k]);
    }
    cr_assert_eq(listed(""), n);
    cr_assert_eq(system(arena_printf(&arena, "rm %s/size && mkdir %s/size", dir, dir)), 0); /* no sum can be kept: every hour, then */
    cr_assert_not(publish_and_evict(n++, 50, &pruned));
    evicted_long_ago();
    cr_assert(publish_and_evict(n++, 50, &pruned));
    cr_assert_eq(listed(""), 4);
}

Test(disk, eviction_is_hourly_and_by_one)
{
    DiskPrune pruned;
    for (unsigned n = 0; n < 10; n++)
        cr_assert_not(publish_and_evict(n, 100, &pruned), "the hour begins with a new directory");
    evicted_long_ago();
    cr_assert(disk_evict(disk, 0, 100, &pruned), "nothing to do");
    cr_assert_eq(listed(""), 10);
    evicted_long_ago();
    int lock = os_file_lock(os_dir_open(-1, dir), "evicted"); /* somebody else is at it */
    cr_assert_geq(lock, 0);
    cr_assert_not(disk_evict(disk, 0, 90, &pruned));
    os_file_close(lock);
    cr_assert(disk_evict(disk, 0, 90, &pruned), "a lock ends with its owner");
    cr_assert_eq(listed(""), 7, "80 %% of 90");
    cr_assert_not(disk_evict(disk, 0, 90, &pruned));
    cr_assert_eq(system(arena_printf(&arena, "touch -d '+3 days' %s/evicted", dir)), 0);
    cr_assert(disk_evict(disk, 0, 90, &pruned), "a clock that was set back");
}

/* --- small files --- */

Test(disk, small_files)
{
    const char *text;
    cr_assert_eq(disk_text(disk, "info", &arena, &text), ST_OK);
    cr_assert_null(text);
    cr_assert_eq(disk_write_text(disk, "info", "a=1\n"), ST_OK);
    cr_assert_eq(disk_write_text(disk, "info", "b=2\n"), ST_OK);
    cr_assert_eq(disk_text(disk, "info", &arena, &text), ST_OK);
    cr_assert_str_eq(text, "b=2\n");
    for (int i = 0; i < 5; i++)
        cr_assert_eq(disk_append(disk, "misses", "12345678\n", 20), ST_OK);
    cr_assert_eq(disk_text(disk, "misses", &arena, &text), ST_OK);
    cr_assert_str_eq(text, "12345678\n12345678\n", "three lines pass the limit, so it began anew");
    cr_assert_eq(symlink("/etc/passwd", path_of("counters")), 0);
    cr_assert_eq(disk_append(disk, "counters", "x\n", 20), ST_IO);
}

/* --- faults --- */

/* Publishes, lists, reads, prunes; every failure must be a status. */
static int all_at_once(void)
{
    Disk *d;
    DiskItem *items;
    DiskPrune pruned;
    const void *bytes;
    const char *text;
    uint32_t n = 0;
    size_t size;
    int failures = 0;
    if (disk_open(dir, true, true, &d) != ST_OK)
        return 1;
    failures += disk_publish(d, name_of(3), "three", 5, false) != ST_OK;
    failures += disk_publish(d, name_of(3), "three", 5, true) != ST_OK;
    failures += disk_list(d, "", &arena, &items, &n) != ST_OK;
    if (n)
        disk_used(d, &items[0]);
    failures += disk_read(d, name_of(3), &arena, &bytes, &size) != ST_OK;
    failures += disk_append(d, "misses", "line\n", 100) != ST_OK;
    failures += disk_write_text(d, "info", "text") != ST_OK;
    failures += disk_text(d, "info", &arena, &text) != ST_OK;
    failures += disk_prune(d, UINT64_MAX, 0, false, &pruned) != ST_OK;
    failures += disk_remove(d, name_of(3)) != ST_OK;
    disk_close(d);
    return failures;
}

static int open_handles(void)
{
    int n = 0;
    for (int i = 0; i < 256; i++)
        n += fcntl(i, F_GETFD) >= 0;
    return n;
}

Test(disk, every_system_call_may_fail)
{
    static const int errors[] = {ENOSPC, EIO, EDQUOT, EACCES, EROFS, EMFILE};
    publish(1, "one");
    (void)all_at_once();
    int before = open_handles();
    int64_t calls = os_io_calls();
    cr_assert_eq(all_at_once(), 0);
    calls = os_io_calls() - calls;
    cr_assert_gt(calls, 300);
    for (size_t e = 0; e < sizeof errors / sizeof *errors; e++)
        for (int sticky = 0; sticky < 2; sticky++)
            for (int64_t nth = 1; nth <= calls; nth += nth < 60 ? 1 : 37) {
                os_fail_io(nth, errors[e], sticky);
                (void)all_at_once();
                os_fail_io(0, 0, false);
                cr_assert_eq(open_handles(), before, "error %d at call %" PRId64 " lost a handle", errors[e], nth);
                cr_assert_str_eq(content(1), "one");
                const char *three = content(3);
                cr_assert(!three || strcmp(three, "three") == 0, "half an entry: %s", three);
            }
    cr_assert_eq(all_at_once(), 0, "%s", fail_message());
}

Test(disk, faults_can_be_asked_for_as_text)
{
    cr_assert(os_fail_io_text("1:ENOSPC"));
    cr_assert_eq(disk_append(disk, "misses", "x\n", 100), ST_IO);
    cr_assert_not_null(strstr(fail_message(), strerror(ENOSPC)), "%s", fail_message());
    cr_assert_eq(disk_append(disk, "misses", "x\n", 100), ST_OK);
    cr_assert(os_fail_io_text("2:EIO:sticky"));
    for (int i = 0; i < 3; i++)
        cr_assert_eq(disk_append(disk, "misses", "x\n", 100), ST_IO);
    os_fail_io(0, 0, false);
    static const char *const bad[] = {"", "ENOSPC", "0:EIO", "-1:EIO", "1:", "1:EWHAT", "1:EIO:often", "x:EIO"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_assert_not(os_fail_io_text(bad[i]), "%s", bad[i]);
}
