/*
 * NumPy's .npz files: a zip archive with an .npy file for each array, stored or deflated, through minizip (of zlib).
 *
 * minizip reads from the mapping and writes through os_file.h, so it opens nothing itself. What an archive says of itself is checked before
 * memory is asked for: names, methods, sizes that a deflated member cannot have, places that overlap or leave the file; each header
 * against its member. Checksums are compared when the elements are read.
 *
 * Members that are no .npy file are left out, as NumPy does. Not there: encrypted members and other methods (ST_UNSUPPORTED).
 */
#include "ir/base/os.h"
#include "runtime/device/device.h"
#include "runtime/files/npy.h"

#include <errno.h>
#include <inttypes.h>
#include <minizip/unzip.h>
#include <minizip/zip.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STORED = 0, DEFLATED = 8, MOST_RATIO = 1032, NAME_BYTES = 1024, CHUNK = 1 << 30 };
static const char suffix[] = ".npy";

/* --- what minizip reads from ----------------------------------------------------------------------------------------------- */

typedef struct Position {
    const FilePart *part;
    uint64_t at;
} Position;

static void *part_open(void *position, const void *name, int mode)
{
    (void)name, (void)mode;
    return position;
}

static uLong part_read(void *unused, void *position, void *out, uLong n)
{
    Position *p = position;
    (void)unused;
    uint64_t left = p->part->bytes - p->at;
    n = n < left ? n : (uLong)left;
    memcpy(out, p->part->data + p->at, n);
    p->at += n;
    return n;
}

static ZPOS64_T part_tell(void *unused, void *position)
{
    (void)unused;
    return ((Position *)position)->at;
}

/* From the start, from here, or from the end; false: it would be outside. */
static bool moved(uint64_t *at, uint64_t end, ZPOS64_T offset, int origin)
{
    uint64_t from = origin == ZLIB_FILEFUNC_SEEK_SET ? 0 : origin == ZLIB_FILEFUNC_SEEK_CUR ? *at : end;
    if (__builtin_add_overflow(from, offset, &from) || from > end)
        return false;
    *at = from;
    return true;
}

static long part_seek(void *unused, void *position, ZPOS64_T offset, int origin)
{
    Position *p = position;
    (void)unused;
    return moved(&p->at, p->part->bytes, offset, origin) ? 0 : -1;
}

/* Closing, and whether there was an error: there was none. */
static int nothing(void *unused, void *position)
{
    (void)unused, (void)position;
    return 0;
}

/* NULL: it is none, or minizip has no memory. `position` must stay while it is open. */
static unzFile open_archive(const FilePart *part, Position *position)
{
    *position = (Position){part, 0};
    zlib_filefunc64_def functions = {.zopen64_file = part_open,
                                     .zread_file = part_read,
                                     .ztell64_file = part_tell,
                                     .zseek64_file = part_seek,
                                     .zclose_file = nothing,
                                     .zerror_file = nothing,
                                     .opaque = position};
    return unzOpen2_64(part->path, &functions);
}

/* --- one member ------------------------------------------------------------------------------------------------------------ */

/* A member that is open, as a source of bytes. */
typedef struct Member {
    unzFile zip;
    NpySource source;
    char path[NAME_BYTES + 400]; /* "archive: member "x.npy"" */
} Member;

static Status damaged(const Member *m, int code)
{
    return code == UNZ_INTERNALERROR || code == Z_MEM_ERROR
               ? fail(ST_OUT_OF_MEMORY, "%s: out of memory", m->path)
               : fail(ST_FORMAT, "%s: %s" FILE_DAMAGED, m->path,
                      code == UNZ_CRCERROR   ? "its checksum is wrong"
                      : code == Z_DATA_ERROR ? "what was deflated cannot be inflated"
                                             : "its two headers differ, or it lies outside of the file");
}

static Status read_member(NpySource *source, void *out, size_t n, size_t *got)
{
    Member *m = source->from;
    for (*got = 0; *got < n;) {
        size_t some = n - *got < CHUNK ? n - *got : CHUNK;
        int read = unzReadCurrentFile(m->zip, (char *)out + *got, (unsigned)some);
        if (read < 0)
            return damaged(m, read);
        if (read == 0)
            break;
        *got += (size_t)read;
    }
    return ST_OK;
}

static void begin_member(Member *m, unzFile zip, const char *archive, const char *name, uint64_t bytes)
{
    char text[FILE_NAME_TEXT];
    snprintf(m->path, sizeof m->path, "%.300s: member %s", archive, file_name_text(name, text));
    m->zip = zip;
    m->source = (NpySource){m->path, read_member, m, bytes};
}

/* --- loading --------------------------------------------------------------------------------------------------------------- */

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);
    return n >= k && strcmp(name + n - k, end) == 0;
}

/* Would it stay in the folder where somebody unpacks it? */
static bool stays_inside(const char *name)
{
    if (name[0] == '/' || strchr(name, '\\'))
        return false;
    for (const char *at = name; at; at = strchr(at, '/') ? strchr(at, '/') + 1 : NULL)
        if (strcmp(at, "..") == 0 || strncmp(at, "../", 3) == 0)
            return false;
    return true;
}

/* What an archive says of a member, before it is opened. */
static Status check_info(const Member *m, const unz_file_info64 *info, const char *name, uint64_t end)
{
    if (!file_is_utf8(name))
        return fail(ST_FORMAT, "%s: its name is not UTF-8: write the archive with other names", m->path);
    if (!stays_inside(name))
        return fail(ST_FORMAT, "%s: its name leads out of the folder: it is not read", m->path);
    if (info->flag & 1)
        return fail(ST_UNSUPPORTED, "%s: it is encrypted: write the archive without", m->path);
    if (info->compression_method != STORED && info->compression_method != DEFLATED)
        return fail(ST_UNSUPPORTED, "%s: it is compressed by method %lu: stored and deflated ones are read", m->path,
                    (unsigned long)info->compression_method);
    bool possible = info->compression_method == STORED ? info->compressed_size == info->uncompressed_size
                                                       : info->uncompressed_size / MOST_RATIO <= info->compressed_size;
    if (!possible || info->compressed_size > end)
        return fail(ST_FORMAT, "%s: %" PRIu64 " bytes cannot be %" PRIu64 " of them unpacked" FILE_DAMAGED, m->path,
                    (uint64_t)info->compressed_size, (uint64_t)info->uncompressed_size);
    return ST_OK;
}

/* Where the bytes of a member lie. */
typedef struct Extent {
    uint64_t at, end;
} Extent;

static int compare_extents(const void *a, const void *b)
{
    const Extent *x = a, *y = b;
    return x->at != y->at ? (x->at < y->at ? -1 : 1) : x->end != y->end ? (x->end < y->end ? -1 : 1) : 0;
}

/* An archive that is being read: what must be given back, whatever happens. */
typedef struct Archive {
    unzFile zip;
    Position position;
    Member member;
    kiln_file *file;
    FilePart *part;
    VEC(Extent) extents;
} Archive;

/* The header of the member at hand. */
static Status read_header(Archive *a, const unz_file_info64 *info, NpyHeader *h)
{
    Member *m = &a->member;
    int code = unzOpenCurrentFile(a->zip);
    if (code != UNZ_OK)
        return damaged(m, code);
    Extent extent = {unzGetCurrentFileZStreamPos64(a->zip), 0};
    Status status = npy_read_header(&m->source, h);
    (void)unzCloseCurrentFile(a->zip); /* no checksum: it was not read to its end */
    TRY(status);
    if (m->source.left != h->bytes)
        return fail(ST_FORMAT, "%s: %" PRIu64 " bytes follow the array" FILE_DAMAGED, m->path, m->source.left - h->bytes);
    if (__builtin_add_overflow(extent.at, info->compressed_size, &extent.end) || extent.end > a->part->bytes)
        return fail(ST_FORMAT, "%s: it lies outside of the file" FILE_DAMAGED, m->path);
    VEC_PUSH(&a->file->arena, a->extents, extent);
    return ST_OK;
}

static Status read_entry(Archive *a, const char *archive)
{
    char name[NAME_BYTES] = "";
    unz_file_info64 info;
    unz64_file_pos place;
    NpyHeader h;
    Arena *arena = &a->file->arena;
    if (unzGetCurrentFileInfo64(a->zip, &info, name, sizeof name, NULL, 0, NULL, 0) != UNZ_OK || unzGetFilePos64(a->zip, &place) != UNZ_OK)
        return fail(ST_FORMAT, "%s: the archive's directory is damaged" FILE_DAMAGED, archive);
    if (info.size_filename >= sizeof name || strlen(name) != info.size_filename)
        return fail(ST_FORMAT, "%s: a member's name of %lu bytes is too long, or has a NUL in it" FILE_DAMAGED, archive,
                    (unsigned long)info.size_filename);
    if (!ends_with(name, suffix))
        return ST_OK;
    begin_member(&a->member, a->zip, archive, name, info.uncompressed_size);
    TRY(check_info(&a->member, &info, name, a->part->bytes));
    TRY(read_header(a, &info, &h));
    name[strlen(name) - strlen(suffix)] = '\0';
    FileEntry e = {.name = arena_strdup(arena, name),
                   .dtype = h.dtype,
                   .rank = h.shape.rank,
                   .at = place.pos_in_zip_directory,
                   .number = place.num_of_file,
                   .bytes = h.bytes,
                   .fortran = h.fortran,
                   .swap = h.swap};
    memcpy(e.dim, h.shape.dim, sizeof *e.dim * (size_t)e.rank);
    VEC_PUSH(arena, a->file->entries, e);
    return ST_OK;
}

static Status check_overlap(Archive *a, const char *path)
{
    if (a->extents.n)
        qsort(a->extents.at, a->extents.n, sizeof *a->extents.at, compare_extents);
    for (uint32_t i = 1; i < a->extents.n; i++)
        if (a->extents.at[i].at < a->extents.at[i - 1].end)
            return fail(ST_FORMAT, "%s: byte %" PRIu64 ": two members overlap" FILE_DAMAGED, path, a->extents.at[i].at);
    return ST_OK;
}

static RtNode *load_entry(Rec *r, const kiln_file *file, const FileEntry *e);

/* What ends an archive, as minizip finds it: PK 5 6, 16 bytes, the length of a comment, the comment. minizip takes what is cut off for
 * zeros, and sees none where nothing else is. */
typedef enum Ending { ENDING_NONE, ENDING_ALONE, ENDING_WHOLE } Ending;

static Ending archive_ending(const FilePart *part)
{
    enum { BYTES = 22, COMMENT = 20, MOST_BACK = BYTES + UINT16_MAX };
    for (size_t back = 4; back <= part->bytes && back <= MOST_BACK; back++) {
        const unsigned char *at = (const unsigned char *)part->data + part->bytes - back;
        if (memcmp(at, "PK\x05\x06", 4) != 0)
            continue;
        bool whole = back >= BYTES && (size_t)(at[COMMENT] | at[COMMENT + 1] << 8) == back - BYTES;
        bool empty = whole && back == part->bytes && at[8] + at[9] + at[10] + at[11] == 0; /* of so many members */
        return empty ? ENDING_ALONE : whole ? ENDING_WHOLE : ENDING_NONE;
    }
    return ENDING_NONE;
}

static Status read_archive(kiln_file *file, const char *path, void *user)
{
    Archive *a = user;
    uint32_t part;
    a->file = file;
    TRY(file_map(file, path, &part));
    a->part = file->parts.at[part];
    file->load = load_entry;
    Ending ending = archive_ending(a->part);
    if (ending == ENDING_ALONE)
        return ST_OK;
    a->zip = ending == ENDING_WHOLE ? open_archive(a->part, &a->position) : NULL;
    if (!a->zip)
        return fail(ST_FORMAT, "%s: not an .npz file: a zip archive has a directory at its end" FILE_DAMAGED, path);
    int code = unzGoToFirstFile(a->zip);
    for (; code == UNZ_OK; code = unzGoToNextFile(a->zip))
        TRY(read_entry(a, path));
    unz_global_info64 all;
    if (code != UNZ_END_OF_LIST_OF_FILE && (unzGetGlobalInfo64(a->zip, &all) != UNZ_OK || all.number_entry > 0))
        return fail(ST_FORMAT, "%s: the archive's directory is damaged" FILE_DAMAGED, path);
    return check_overlap(a, path);
}

/* Reads a member whole, from an archive of this thread's own. */
static Status load_member(const kiln_file *file, const FileEntry *e, unzFile zip, NpyHeader *h, Storage **data)
{
    Member m;
    unz64_file_pos place = {e->at, e->number};
    unz_file_info64 info;
    FilePart *part = file->parts.at[0];
    begin_member(&m, zip, part->path, e->name, 0);
    int code = unzGoToFilePos64(zip, &place);
    if (code == UNZ_OK)
        code = unzGetCurrentFileInfo64(zip, &info, NULL, 0, NULL, 0, NULL, 0);
    if (code == UNZ_OK)
        code = unzOpenCurrentFile(zip);
    if (code != UNZ_OK)
        return damaged(&m, code);
    m.source.left = info.uncompressed_size;
    TRY(npy_read_header(&m.source, h));
    if (h->bytes != e->bytes)
        return fail(ST_FORMAT, "%s: it was changed since it was opened: open it again", m.path);
    TRY(npy_read_data(&m.source, h, data));
    code = unzCloseCurrentFile(zip);
    return code == UNZ_OK ? ST_OK : damaged(&m, code);
}

static RtNode *load_entry(Rec *r, const kiln_file *file, const FileEntry *e)
{
    NpyHeader h;
    Storage *data = NULL;
    Position position;
    unzFile zip = open_archive(file->parts.at[0], &position);
    Status status = zip ? load_member(file, e, zip, &h, &data) : fail(ST_OUT_OF_MEMORY, "%s: out of memory", file->parts.at[0]->path);
    if (zip) {
        (void)unzCloseCurrentFile(zip);
        unzClose(zip);
    }
    if (status == ST_OK)
        return npy_node(r, &h, data);
    storage_release(data);
    return rec_failed(r, status);
}

API1(kiln_file *, kiln_load_npz, const char *, path)
{
    Rec r = REC(kiln_load_npz);
    kiln_file *f = NULL;
    Archive *a = path ? os_calloc(1, sizeof *a) : NULL;
    if (!a) {
        rec_failed(&r, path ? fail(ST_OUT_OF_MEMORY, "out of memory") : fail(ST_INVALID, "path is NULL"));
    } else {
        int cancel = os_cancel_off();
        Status status = file_read(read_archive, path, a, &f);
        if (a->zip)
            unzClose(a->zip);
        os_cancel_restore(cancel);
        os_free(a);
        if (status != ST_OK)
            rec_failed(&r, status);
    }
    rec_end(&r, NULL);
    return f;
}

/* --- saving ---------------------------------------------------------------------------------------------------------------- */

/* What minizip writes to. A failure is kept from it, which would lose memory over it, and told in the end. */
typedef struct Output {
    OsSaving *saving;
    uint64_t at, end;
    int cause; /* errno of what failed; 0: nothing */
    zipFile zip;
} Output;

static void *out_open(void *output, const void *name, int mode)
{
    (void)name, (void)mode;
    return output;
}

static uLong out_read(void *output, void *stream, void *to, uLong n)
{
    (void)output, (void)stream, (void)to, (void)n;
    return 0;
}

static uLong out_write(void *output, void *stream, const void *from, uLong n)
{
    Output *o = stream;
    (void)output;
    if (!o->cause && !os_save_write(o->saving, from, n))
        o->cause = errno;
    o->at += n;
    o->end = o->at > o->end ? o->at : o->end;
    return n;
}

static ZPOS64_T out_tell(void *output, void *stream)
{
    (void)output;
    return ((Output *)stream)->at;
}

static long out_seek(void *output, void *stream, ZPOS64_T offset, int origin)
{
    Output *o = stream;
    (void)output;
    bool inside = moved(&o->at, o->end, offset, origin);
    if (inside && !o->cause && !os_save_seek(o->saving, o->at))
        o->cause = errno;
    return inside ? 0 : -1;
}

/* Is all well so far? `code`: what minizip says. errno tells why not. */
static bool well(const Output *o, int code)
{
    errno = o->cause ? o->cause : ENOMEM;
    return code == ZIP_OK && !o->cause;
}

static bool write_bytes(void *output, const void *data, size_t n)
{
    Output *o = output;
    const char *at = data;
    bool ok = true;
    for (size_t some; n > 0 && ok; at += some, n -= some) {
        some = n < CHUNK ? n : CHUNK;
        ok = well(o, zipWriteInFileInZip(o->zip, at, (unsigned)some));
    }
    return ok;
}

static Status write_member(Output *o, const Named *x, bool compressed)
{
    enum { UTF8_NAME = 1 << 11, LEVEL = 6, MEM_LEVEL = 8, VERSION = 20 };
    zip_fileinfo info = {.dosDate = 1 << 21 | 1 << 16}; /* 1 January 1980: the same arrays are the same bytes */
    char name[NAME_BYTES], header[NPY_HEADER];
    snprintf(name, sizeof name, "%s%s", x->name, suffix);
    int zip64 = x->bytes >= UINT32_MAX - (UINT32_MAX >> 4);
    int code = zipOpenNewFileInZip4_64(o->zip, name, &info, NULL, 0, NULL, 0, NULL, compressed ? DEFLATED : STORED, LEVEL, 0, -15,
                                       MEM_LEVEL, 0, NULL, 0, VERSION, UTF8_NAME, zip64);
    if (code != ZIP_OK)
        return well(o, code) ? ST_OK : ST_IO;
    Status status = write_bytes(o, header, npy_write_header(x->node, header)) ? file_write_elements(x, write_bytes, o) : ST_IO;
    code = zipCloseFileInZip(o->zip);
    return status == ST_OK && !well(o, code) ? ST_IO : status;
}

typedef struct Writing {
    bool compressed;
    Named *named;
    int n;
} Writing;

static Status write_archive(OsSaving *saving, void *user)
{
    const Writing *w = user;
    Output o = {.saving = saving};
    zlib_filefunc64_def functions = {.zopen64_file = out_open,
                                     .zread_file = out_read,
                                     .zwrite_file = out_write,
                                     .ztell64_file = out_tell,
                                     .zseek64_file = out_seek,
                                     .zclose_file = nothing,
                                     .zerror_file = nothing,
                                     .opaque = &o};
    o.zip = zipOpen2_64("", APPEND_STATUS_CREATE, NULL, &functions);
    if (!o.zip)
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    Status status = ST_OK;
    for (int i = 0; i < w->n && status == ST_OK; i++)
        status = write_member(&o, &w->named[i], w->compressed);
    int code = zipClose(o.zip, NULL);
    bool ok = well(&o, code);
    return status == ST_OK && !ok ? ST_IO : status;
}

static Status save(const char *path, Named *named, int n, void *user)
{
    Writing *w = user;
    char text[FILE_NAME_TEXT];
    for (int i = 0; i < n; i++) {
        size_t bytes = strlen(named[i].name);
        if (bytes == 0 || bytes + sizeof suffix > NAME_BYTES || !stays_inside(named[i].name))
            return fail(ST_INVALID, "%s cannot be a file's name in an archive: 1 to %zu bytes, no \\, no .. and no / in front",
                        file_name_text(named[i].name, text), NAME_BYTES - sizeof suffix);
        TRY(npy_has_dtype(file_name_text(named[i].name, text), node_dtype(named[i].node)));
    }
    w->named = named;
    w->n = n;
    return file_save(path, write_archive, w);
}

API4(kiln_status, kiln_save_npz, const char *, path, int, n, const kiln_named *, tensors, bool, compressed)
{
    return file_save_named(path, n, tensors, save, &(Writing){.compressed = compressed}, "kiln_save_npz", (Loc){file, line});
}
