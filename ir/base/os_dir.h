/*
 * Files of one directory, through its handle: what the cache on disk asks the system for (cache/disk.c), in one place, so that faults
 * can be injected. No function follows a symbolic link in the last part of a path. errno tells the cause of a failure.
 */
#ifndef IR_BASE_OS_DIR_H
#define IR_BASE_OS_DIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct OsFileInfo {
    bool regular, directory, link;
    bool ours;   /* belongs to the effective user */
    bool shared; /* somebody else may write it */
    bool linked; /* it has another name besides */
    uint32_t owner, mode;
    uint64_t bytes;
    int64_t modified, made; /* Unix seconds; made 0: unknown */
} OsFileInfo;

/* A directory's handle, -1: failure. `dir` -1: the path is one of its own. close-on-exec. */
int os_dir_open(int dir, const char *path);
void os_dir_close(int dir);
/* Makes a directory, 0700; with `parents` those too. true if it exists. */
bool os_dir_make(int dir, const char *path, bool parents);
/* Of a file in the directory; name "": of the directory itself. */
bool os_dir_info(int dir, const char *name, OsFileInfo *info);
/* Calls each(name) for all but "." and ".."; stops where it gives false. */
bool os_dir_each(int dir, bool (*each)(const char *name, void *user), void *user);

/* Opens a file for reading (a FIFO or device does not block); -1: failure. Then reads exactly n bytes. */
int os_file_open(int dir, const char *name, OsFileInfo *info);
bool os_file_read(int file, void *data, size_t n); /* errno 0: it ended early */
void os_file_close(int file);

/* Writes a file that does not exist yet, 0600. On failure there is none. */
bool os_file_write_new(int dir, const char *name, const void *data, size_t n);
/* Appends in one write; makes the file if need be. One beyond `limit` bytes is emptied before. */
bool os_file_append(int dir, const char *name, const void *data, size_t n, size_t limit);
bool os_file_rename(int dir, const char *from, const char *to); /* replaces */
bool os_file_link(int dir, const char *from, const char *to);   /* a second name; EEXIST */
bool os_file_remove(int dir, const char *name);
bool os_file_touch(int dir, const char *name, int64_t time); /* sets the time of modification; 0: now */

/* Takes an exclusive lock that ends with the process or os_file_close; -1: somebody has it (EWOULDBLOCK), or failure. */
int os_file_lock(int dir, const char *name);

int64_t os_time(void); /* Unix seconds */
uint64_t os_random(void);
uint32_t os_user(void); /* the effective one */
int64_t os_process(void);

/*
 * Test hook: the n-th of these system calls from now fails with errno `err` (and every later one if `sticky`); `err` -1 kills
 * the process there, as kill -9 would; nth 0 switches it off. As text: "3:ENOSPC", "3:EIO:sticky", "3:kill"; false: it is none of those.
 */
void os_fail_io(int64_t nth, int err, bool sticky);
bool os_fail_io_text(const char *text);
int64_t os_io_calls(void); /* how many there were so far */
bool os_io_fails(void);    /* for who makes such a call: true: it is to fail; errno says how */

#endif
