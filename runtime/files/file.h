/*
 * Files of named tensors inside: what a reader (safetensors.c) fills, and what file.c makes tensors of.
 *
 *   kiln_file --> FilePart   one file on disk, mapped; counted, since tensors that lie in it outlive the kiln_file
 *             --> FileEntry  one tensor: name, dtype, shape, and where its bytes are
 *
 * A reader believes nothing: it checks all of a file but the elements before there is a kiln_file. That never changes afterwards, so
 * threads may share it.
 */
#ifndef RUNTIME_FILE_H
#define RUNTIME_FILE_H

#include "ir/base/os_file.h"
#include "ir/base/vec.h"
#include "runtime/record/record.h"

typedef struct FilePart {
    atomic_uint refs;
    const char *data; /* of the mapping */
    size_t bytes;
    const char *path; /* behind the struct */
} FilePart;

typedef struct FileEntry {
    const char *name; /* UTF-8; in the kiln_file's arena */
    DType dtype;
    int rank;
    int64_t dim[MAX_RANK];
    uint32_t part;
    uint64_t at, bytes; /* in the part */
} FileEntry;

struct kiln_file {
    Arena arena; /* of all that follows; nothing is taken from it once the file is read */
    VEC(FilePart *) parts;
    VEC(FileEntry) entries;
    VEC(kiln_metadata) metadata;
    const FileEntry **by_name; /* sorted */
};

/* Fills `file`, whose arena it may use; what else it holds is the caller's, `user`'s: memory may run out in any call (ir/base/arena.h). */
typedef Status FileReader(kiln_file *file, const char *path, void *user);
/* Reads a file; a name that comes twice is ST_FORMAT. On failure *out is NULL. */
Status file_read(FileReader *reader, const char *path, void *user, kiln_file **out);

/* Maps a file as a part of this one. ST_IO, ST_UNSUPPORTED: it is no regular file. */
Status file_map(kiln_file *file, const char *path, uint32_t *part);

/* Saves a file by what `writer` writes. ST_IO from that needs no message: errno tells. On failure what was there before is unchanged. */
typedef Status FileWriter(OsSaving *saving, void *user);
Status file_save(const char *path, FileWriter *writer, void *user);

/* A name for a message: in quotes, without control characters, cut where it is long. */
enum { FILE_NAME_TEXT = 128 };
const char *file_name_text(const char *name, char *text);

/* What to do about a damaged file: the end of the message. */
#define FILE_DAMAGED "; the file is damaged, or was cut short: get or write it again"

/* Is it UTF-8? */
bool file_is_utf8(const char *text);

#endif
