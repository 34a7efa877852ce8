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
    uint64_t number;    /* npz.c: which member; `at` is where the archive's directory has it */
    bool fortran, swap; /* npz.c: as npy.h has them */
} FileEntry;

struct kiln_file {
    Arena arena; /* of all that follows; nothing is taken from it once the file is read */
    VEC(FilePart *) parts;
    VEC(FileEntry) entries;
    VEC(kiln_metadata) metadata;
    const FileEntry **by_name; /* sorted */
    /* The elements of an entry as a node; NULL: they lie in their part as they are. */
    RtNode *(*load)(Rec *r, const kiln_file *file, const FileEntry *entry);
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

/* A tensor to be saved, computed. */
typedef struct Named {
    const char *name;
    RtNode *node;
    uint64_t bytes;
} Named;
/* The body of a public function that saves n tensors, `writer`'s part aside: arguments and names are checked, the tensors are computed. */
typedef Status NamedWriter(const char *path, Named *named, int n, void *user);
kiln_status file_save_named(const char *path, int n, const kiln_named *tensors, NamedWriter *writer, void *user, const char *api, Loc loc);
/* The elements of one, row-major, to write(out, data, bytes); false from that is ST_IO, whose cause is in errno. */
Status file_write_elements(const Named *named, bool (*write)(void *out, const void *data, size_t bytes), void *out);

/* A name for a message: in quotes, without control characters, cut where it is long. */
enum { FILE_NAME_TEXT = 128 };
const char *file_name_text(const char *name, char *text);

/* What to do about a damaged file: the end of the message. */
#define FILE_DAMAGED "; the file is damaged, or was cut short: get or write it again"

/* Is it UTF-8? */
bool file_is_utf8(const char *text);

#endif
