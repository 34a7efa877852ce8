/*
 * Files of the user's: mapped for reading; saved so that whoever looks, after a crash too, sees the old file or the new one, whole.
 * errno tells the cause of a failure. The test hook is os_fail_io (os_dir.h).
 */
#ifndef IR_BASE_OS_FILE_H
#define IR_BASE_OS_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Maps a regular file, to be read only: *data has *bytes bytes ("" for none). Replacing the file (a rename) leaves the mapping what it is;
 * one who cuts it short takes pages away. false with errno 0: it is no regular file. */
bool os_map_file(const char *path, const char **data, size_t *bytes);
void os_unmap_file(const char *data, size_t bytes);

/*
 * A file that is being saved: written under a temporary name in its folder, brought to the disk, renamed. Links are followed, so a link
 * stays one; the mode of an old file is kept. What is no regular file, or has no name (a pipe, a device, /proc/self/fd/5), is written as
 * it is.
 */
typedef struct OsSaving {
    int folder, file;
    char *path; /* heap: the real one */
    char *name; /* in it: the last part */
    char temp[32];
    bool renamed; /* written under `temp` */
} OsSaving;

bool os_save_begin(OsSaving *saving, const char *path);
bool os_save_write(OsSaving *saving, const void *data, size_t n);
bool os_save_seek(OsSaving *saving, uint64_t at); /* what is written next goes there */
/* keep: what was written is the file now; else it never was. Either way it is over. */
bool os_save_end(OsSaving *saving, bool keep);

#endif
