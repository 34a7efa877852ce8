/*
 * safetensors (github.com/huggingface/safetensors): a file of named tensors,
 *
 *     u64 N, little-endian | N bytes of JSON, padded with spaces | the elements of all tensors, row-major, little-endian
 *
 *     {"__metadata__": {"key": "text", ...},
 *      "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}     offsets count from the end of the JSON
 *
 * The format's own rules are enforced before anything is believed: N, one object, no key twice, only known keys, dtypes and shapes that fit
 * their bytes without overflow, and bytes that cover the rest of the file without a hole or an overlap.
 *
 * A model in several files has an index beside them, {"metadata": {...}, "weight_map": {"name": "file"}}. The files lie in the index's
 * folder: a name that leads anywhere else is refused.
 *
 * Leaves out: what kiln has no dtype for (8-, 6- and 4-bit floats, complex: ST_UNSUPPORTED, by name).
 */
#include "ir/base/os.h"
#include "runtime/files/file.h"
#include "runtime/files/json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH = 8, ALIGN = 64 };

static const struct {
    const char *name;
    DType dtype; /* DT_COUNT: kiln has none */
} dtypes[] = {
    {"BOOL", DT_BOOL},         {"U8", DT_U8},         {"I8", DT_I8},
    {"I16", DT_I16},           {"U16", DT_U16},       {"F16", DT_F16},
    {"BF16", DT_BF16},         {"I32", DT_I32},       {"U32", DT_U32},
    {"F32", DT_F32},           {"F64", DT_F64},       {"I64", DT_I64},
    {"U64", DT_U64},           {"F8_E4M3", DT_COUNT}, {"F8_E5M2", DT_COUNT},
    {"F8_E8M0", DT_COUNT},     {"F4", DT_COUNT},      {"F6_E2M3", DT_COUNT},
    {"C64", DT_COUNT},         {"F6_E3M2", DT_COUNT}, {"F8_E4M3FNUZ", DT_COUNT},
    {"F8_E5M2FNUZ", DT_COUNT},
};

/* --- one file: checking ---------------------------------------------------------------------------------------------------- */

/* One file that is being read. */
typedef struct Reading {
    kiln_file *file;
    const char *path;
    uint32_t part;
    uint64_t data, end; /* where the elements begin, and the file ends */
    const char *name;   /* of the tensor at hand */
} Reading;

/* A message about the tensor at hand. */
#define TENSOR_FAIL(r, status, format, ...) \
    fail((status), "%s: tensor %s: " format, (r)->path, file_name_text((r)->name, (char[FILE_NAME_TEXT]){0}), __VA_ARGS__)

static Status read_dtype(const Reading *r, const json_t *json, DType *dtype)
{
    const char *name = json_string_value(json);
    if (!name)
        return TENSOR_FAIL(r, ST_FORMAT, "\"dtype\" is %s" FILE_DAMAGED, json ? "no string" : "missing");
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(dtypes[i].name, name) == 0) {
            *dtype = dtypes[i].dtype;
            return *dtype != DT_COUNT
                       ? ST_OK
                       : TENSOR_FAIL(r, ST_UNSUPPORTED, "its dtype is %s, which kiln does not have: save the model as BF16 or F32", name);
        }
    char text[FILE_NAME_TEXT];
    return TENSOR_FAIL(r, ST_UNSUPPORTED, "its dtype is %s, which kiln does not know: save the model as BF16 or F32",
                       file_name_text(name, text));
}

static Status read_shape(const Reading *r, const json_t *json, FileEntry *e)
{
    if (!json_is_array(json))
        return TENSOR_FAIL(r, ST_FORMAT, "\"shape\" is %s" FILE_DAMAGED, json ? "no list" : "missing");
    size_t rank = json_array_size(json);
    if (rank > MAX_RANK)
        return TENSOR_FAIL(r, ST_UNSUPPORTED, "it has %zu axes: kiln has at most %d, save it reshaped", rank, MAX_RANK);
    e->rank = (int)rank;
    for (size_t d = 0; d < rank; d++) {
        const json_t *dim = json_array_get(json, d);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return TENSOR_FAIL(r, ST_FORMAT, "dim %zu of its shape is no size" FILE_DAMAGED, d);
        e->dim[d] = json_integer_value(dim);
    }
    return ST_OK;
}

/* Its bytes, and that they are those of its shape. */
static Status read_place(const Reading *r, const json_t *json, FileEntry *e)
{
    int64_t n;
    const json_t *ends[2] = {json_array_get(json, 0), json_array_get(json, 1)};
    if (json_array_size(json) != 2 || !json_is_integer(ends[0]) || !json_is_integer(ends[1]) || json_integer_value(ends[0]) < 0)
        return TENSOR_FAIL(r, ST_FORMAT, "\"data_offsets\" %s" FILE_DAMAGED, json ? "are not two places in the file" : "is missing");
    uint64_t begin = (uint64_t)json_integer_value(ends[0]), end = (uint64_t)json_integer_value(ends[1]), size = dtype_bytes(e->dtype);
    if (json_integer_value(ends[1]) < json_integer_value(ends[0]))
        return TENSOR_FAIL(r, ST_FORMAT, "its data ends, at %" PRIu64 ", before it begins, at %" PRIu64 FILE_DAMAGED, end, begin);
    if (end > r->end - r->data)
        return TENSOR_FAIL(r, ST_FORMAT, "its data ends at byte %" PRIu64 " of the data, which has %" PRIu64 FILE_DAMAGED, end,
                           r->end - r->data);
    if (!shape_numel(e->rank, e->dim, &n) || (uint64_t)n > ((uint64_t)1 << 62) / size)
        return TENSOR_FAIL(r, ST_OVERFLOW, "its shape has more than 2^62 %s" FILE_DAMAGED, n < 0 ? "elements" : "bytes");
    if ((uint64_t)n * size != end - begin)
        return TENSOR_FAIL(r, ST_FORMAT, "its shape takes %" PRIu64 " bytes, its data_offsets %" PRIu64 FILE_DAMAGED, (uint64_t)n * size,
                           end - begin);
    e->at = r->data + begin;
    e->bytes = end - begin;
    return ST_OK;
}

static Status read_tensor(const Reading *r, const json_t *json)
{
    const char *key;
    json_t *value;
    FileEntry e = {.part = r->part};
    if (!json_is_object(json))
        return TENSOR_FAIL(r, ST_FORMAT, "%s" FILE_DAMAGED, "it is no object");
    json_object_foreach((json_t *)(uintptr_t)json, key,
                        value) if (strcmp(key, "dtype") != 0 && strcmp(key, "shape") != 0 && strcmp(key, "data_offsets") != 0)
    {
        char text[FILE_NAME_TEXT];
        return TENSOR_FAIL(r, ST_FORMAT, "the format has no key %s" FILE_DAMAGED, file_name_text(key, text));
    }
    TRY(read_dtype(r, json_object_get(json, "dtype"), &e.dtype));
    TRY(read_shape(r, json_object_get(json, "shape"), &e));
    TRY(read_place(r, json_object_get(json, "data_offsets"), &e));
    e.name = arena_strdup(&r->file->arena, r->name);
    VEC_PUSH(&r->file->arena, r->file->entries, e);
    return ST_OK;
}

static Status read_metadata(const Reading *r, const json_t *json)
{
    const char *key;
    json_t *value;
    if (!json_is_object(json))
        return fail(ST_FORMAT, "%s: __metadata__ is no object" FILE_DAMAGED, r->path);
    json_object_foreach((json_t *)(uintptr_t)json, key, value)
    {
        char text[FILE_NAME_TEXT];
        if (!json_is_string(value))
            return fail(ST_FORMAT, "%s: __metadata__: %s is no string" FILE_DAMAGED, r->path, file_name_text(key, text));
        Arena *arena = &r->file->arena;
        kiln_metadata pair = {arena_strdup(arena, key), arena_strdup(arena, json_string_value(value))};
        VEC_PUSH(arena, r->file->metadata, pair);
    }
    return ST_OK;
}

static int compare_places(const void *a, const void *b)
{
    const FileEntry *x = *(const FileEntry *const *)a, *y = *(const FileEntry *const *)b;
    return x->at != y->at ? (x->at < y->at ? -1 : 1) : x->bytes != y->bytes ? (x->bytes < y->bytes ? -1 : 1) : 0;
}

/* Do the tensors from `first` on cover the data, each byte once? */
static Status check_cover(Reading *r, uint32_t first)
{
    uint32_t n = r->file->entries.n - first;
    const FileEntry **sorted = ARENA_ARRAY(&r->file->arena, const FileEntry *, n + 1);
    for (uint32_t i = 0; i < n; i++)
        sorted[i] = &r->file->entries.at[first + i];
    qsort(sorted, n, sizeof *sorted, compare_places);
    uint64_t at = r->data;
    for (uint32_t i = 0; i < n; i++) {
        r->name = sorted[i]->name;
        if (sorted[i]->at != at)
            return TENSOR_FAIL(r, ST_FORMAT, "its data begins at byte %" PRIu64 ", %s" FILE_DAMAGED, sorted[i]->at - r->data,
                               sorted[i]->at < at ? "inside another tensor's" : "after bytes that belong to no tensor");
        at += sorted[i]->bytes;
    }
    if (at != r->end)
        return fail(ST_FORMAT, "%s: %" PRIu64 " bytes at the end belong to no tensor" FILE_DAMAGED, r->path, r->end - at);
    return ST_OK;
}

/* *json: the caller's, whatever happens. */
static Status read_one(kiln_file *file, const char *path, json_t **json)
{
    const char *key;
    json_t *value;
    Reading r = {.file = file, .path = path};
    TRY(file_map(file, path, &r.part));
    const FilePart *part = file->parts.at[r.part];
    const unsigned char *length = (const unsigned char *)part->data;
    uint64_t n = 0;
    if (part->bytes < LENGTH)
        return fail(ST_FORMAT, "%s: a safetensors file has at least %d bytes, this one %zu" FILE_DAMAGED, path, LENGTH, part->bytes);
    for (int i = 0; i < LENGTH; i++)
        n |= (uint64_t)length[i] << 8 * i;
    if (n > JSON_MOST_BYTES)
        return fail(ST_FORMAT, "%s: its first 8 bytes tell of a header of %" PRIu64 " bytes, %d are allowed: is it a safetensors file?",
                    path, n, JSON_MOST_BYTES);
    if (n > part->bytes - LENGTH)
        return fail(ST_FORMAT, "%s: truncated: the header has %zu of %" PRIu64 " bytes" FILE_DAMAGED, path, part->bytes - LENGTH, n);
    r.data = LENGTH + n;
    r.end = part->bytes;
    TRY(json_parse(part->data + LENGTH, (size_t)n, path, LENGTH, json));
    uint32_t first = file->entries.n;
    json_object_foreach(*json, key, value)
    {
        r.name = key;
        TRY(strcmp(key, "__metadata__") == 0 ? read_metadata(&r, value) : read_tensor(&r, value));
    }
    return check_cover(&r, first);
}

/* --- several files --------------------------------------------------------------------------------------------------------- */

/* A file's name, and nothing but a name. */
static bool is_plain(const char *name)
{
    for (const char *at = name; *at; at++)
        if (*at == '/' || *at == '\\' || (unsigned char)*at < ' ')
            return false;
    return *name && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

typedef struct Shards {
    json_t *index, *json; /* the caller's */
} Shards;

static int compare_entries(const void *a, const void *b)
{
    const FileEntry *x = *(const FileEntry *const *)a, *y = *(const FileEntry *const *)b;
    int order = strcmp(x->name, y->name);
    return order ? order : x->part != y->part ? (x->part < y->part ? -1 : 1) : 0;
}

/* The part that holds the index's file `shard`, read when it is first named. */
static Status shard_part(kiln_file *file, const char *path, Shards *s, const char *shard, uint32_t *part)
{
    const char *slash = strrchr(path, '/');
    const char *full = arena_printf(&file->arena, "%.*s%s", slash ? (int)(slash - path) + 1 : 0, path, shard);
    for (*part = file->parts.n; *part > 0; --*part) /* neighbours mostly lie in one file */
        if (strcmp(file->parts.at[*part - 1]->path, full) == 0)
            return --*part, ST_OK;
    *part = file->parts.n;
    json_decref(s->json);
    s->json = NULL;
    return read_one(file, full, &s->json);
}

/* Leaves the tensors that the index names, in its order. */
static Status read_weight_map(kiln_file *file, const char *path, Shards *s, const json_t *map)
{
    const char *name;
    json_t *value;
    char text[2][FILE_NAME_TEXT];
    Arena *arena = &file->arena;
    FileEntry *wanted = ARENA_ARRAY(arena, FileEntry, json_object_size(map) + 1);
    uint32_t n = 0;
    json_object_foreach((json_t *)(uintptr_t)map, name, value)
    {
        const char *shard = json_string_value(value);
        if (!shard || !is_plain(shard))
            return fail(ST_FORMAT, "%s: weight_map: tensor %s: %s is not the name of a file in the same folder", path,
                        file_name_text(name, text[0]), shard ? file_name_text(shard, text[1]) : "what is given");
        wanted[n].name = name;
        TRY(shard_part(file, path, s, shard, &wanted[n++].part));
    }
    const FileEntry **sorted = ARENA_ARRAY(arena, const FileEntry *, file->entries.n + 1);
    for (uint32_t i = 0; i < file->entries.n; i++)
        sorted[i] = &file->entries.at[i];
    qsort(sorted, file->entries.n, sizeof *sorted, compare_entries);
    for (uint32_t i = 0; i < n; i++) {
        const FileEntry *key = &wanted[i], **found;
        found = bsearch(&key, sorted, file->entries.n, sizeof *sorted, compare_entries);
        if (!found)
            return fail(ST_FORMAT, "%s: tensor %s is not in %s, where the index has it: get both again", path,
                        file_name_text(key->name, text[0]), file->parts.at[key->part]->path);
        wanted[i] = **found;
    }
    file->entries.at = wanted;
    file->entries.n = file->entries.cap = n;
    return ST_OK;
}

static Status read_index(kiln_file *file, const char *path, void *user)
{
    Shards *s = user;
    const char *text;
    size_t bytes;
    if (!os_map_file(path, &text, &bytes))
        return fail(ST_IO, "%s: %s", path, errno ? strerror(errno) : "a regular file is needed");
    Status status = bytes <= JSON_MOST_BYTES ? json_parse(text, bytes, path, 0, &s->index)
                                             : fail(ST_FORMAT, "%s: an index has at most %d bytes", path, JSON_MOST_BYTES);
    os_unmap_file(text, bytes);
    TRY(status);
    const json_t *map = json_object_get(s->index, "weight_map");
    if (!json_is_object(map))
        return fail(ST_FORMAT, "%s: it has no weight_map: is it the index of a safetensors model?", path);
    return read_weight_map(file, path, s, map);
}

static Status read_file(kiln_file *file, const char *path, void *user)
{
    Shards *s = user;
    return read_one(file, path, &s->json);
}

API1(kiln_file *, kiln_load_safetensors, const char *, path)
{
    Rec r = REC(kiln_load_safetensors);
    kiln_file *f = NULL;
    Shards s = {NULL, NULL};
    if (!path) {
        rec_fail(&r, ST_INVALID, "path is NULL");
    } else {
        size_t n = strlen(path);
        int cancel = os_cancel_off();
        Status status = file_read(n >= 5 && strcmp(path + n - 5, ".json") == 0 ? read_index : read_file, path, &s, &f);
        json_decref(s.index);
        json_decref(s.json);
        os_cancel_restore(cancel);
        if (status != ST_OK)
            rec_failed(&r, status);
    }
    rec_end(&r, NULL);
    return f;
}

/* --- saving ---------------------------------------------------------------------------------------------------------------- */

static const char *dtype_text(DType dtype)
{
    size_t i = 0;
    while (dtypes[i].dtype != dtype)
        i++;
    return dtypes[i].name;
}

/* Wide elements first, so that each tensor is aligned to its own; then by name. */
static int compare_wide(const void *a, const void *b)
{
    const Named *x = a, *y = b;
    size_t left = dtype_bytes(node_dtype(x->node)), right = dtype_bytes(node_dtype(y->node));
    return left != right ? (left > right ? -1 : 1) : strcmp(x->name, y->name);
}

static Status check_metadata(int n, const kiln_metadata *metadata)
{
    char text[FILE_NAME_TEXT];
    for (int i = 0; i < n; i++) {
        if (!metadata[i].key || !metadata[i].value)
            return fail(ST_INVALID, "the %s of metadata %d is NULL", metadata[i].key ? "value" : "key", i);
        if (!file_is_utf8(metadata[i].key) || !file_is_utf8(metadata[i].value))
            return fail(ST_INVALID, "metadata %d, %s, is not UTF-8", i, file_name_text(metadata[i].key, text));
    }
    return ST_OK;
}

/* Sets key of an object, which takes `value` over; false: out of memory. The key must be new. */
static bool put(json_t *object, const char *key, json_t *value) { return json_object_set_new_nocheck(object, key, value) == 0; }

/* The header, padded so that the elements begin at a multiple of ALIGN; heap, freed by free(). */
static Status header_text(Named *named, int n, int n_metadata, const kiln_metadata *metadata, char **out)
{
    char text[FILE_NAME_TEXT];
    json_t *root = json_object(), *pairs = n_metadata ? json_object() : NULL;
    uint64_t at = 0;
    bool ok = root && (!n_metadata || (pairs && put(root, "__metadata__", pairs)));
    Status status = ST_OK;
    for (int i = 0; i < n_metadata && ok && status == ST_OK; i++)
        if (json_object_get(pairs, metadata[i].key))
            status = fail(ST_INVALID, "two metadata are called %s", file_name_text(metadata[i].key, text));
        else
            ok = put(pairs, metadata[i].key, json_string_nocheck(metadata[i].value));
    for (int i = 0; i < n && ok && status == ST_OK; i++) {
        const RtNode *x = named[i].node;
        json_t *shape = json_array(), *tensor;
        for (int d = 0; d < x->rank && ok; d++)
            ok = shape && json_array_append_new(shape, json_integer(x->dim[d])) == 0;
        if (strcmp(named[i].name, "__metadata__") == 0)
            status = fail(ST_INVALID, "a tensor is called __metadata__, which the format keeps for itself");
        tensor = json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype_text(node_dtype(x)), "shape", shape, "data_offsets", (json_int_t)at,
                           (json_int_t)(at + named[i].bytes));
        if (status == ST_OK)
            ok = ok && tensor && put(root, named[i].name, tensor);
        else
            json_decref(tensor);
        at += named[i].bytes;
    }
    *out = ok && status == ST_OK ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return *out || status != ST_OK ? status : fail(ST_OUT_OF_MEMORY, "out of memory");
}

static bool write_header(OsSaving *saving, const char *text)
{
    static const char spaces[] = "                                                                ";
    _Static_assert(sizeof spaces == ALIGN + 1, "as many as may be needed");
    char length[LENGTH];
    size_t n = strlen(text), padded = (n + LENGTH + ALIGN - 1) / ALIGN * ALIGN - LENGTH;
    for (int i = 0; i < LENGTH; i++)
        length[i] = (char)(padded >> 8 * i);
    return os_save_write(saving, length, LENGTH) && os_save_write(saving, text, n) && os_save_write(saving, spaces, padded - n);
}

typedef struct Writing {
    const kiln_metadata *metadata;
    int n_metadata, n;
    Named *named;
    char *header;
} Writing;

static bool write_bytes(void *saving, const void *data, size_t n) { return os_save_write(saving, data, n); }

static Status write_file(OsSaving *saving, void *user)
{
    const Writing *w = user;
    Status status = write_header(saving, w->header) ? ST_OK : ST_IO;
    for (int i = 0; i < w->n && status == ST_OK; i++)
        status = file_write_elements(&w->named[i], write_bytes, saving);
    return status;
}

static Status save(const char *path, Named *named, int n, void *user)
{
    Writing *w = user;
    TRY(check_metadata(w->n_metadata, w->metadata));
    qsort(named, (size_t)n, sizeof *named, compare_wide);
    w->named = named;
    w->n = n;
    Status status = header_text(named, n, w->n_metadata, w->metadata, &w->header);
    if (status == ST_OK)
        status = file_save(path, write_file, w);
    free(w->header);
    return status;
}

API5(kiln_status, kiln_save_safetensors, const char *, path, int, n, const kiln_named *, tensors, int, n_metadata, const kiln_metadata *,
     metadata)
{
    static const char api[] = "kiln_save_safetensors";
    Loc loc = {file, line};
    if (n_metadata < 0 || (n_metadata && !metadata))
        return error_sync(fail(ST_INVALID, n_metadata < 0 ? "%d metadata" : "the list of %d metadata is NULL", n_metadata), api, loc);
    return file_save_named(path, n, tensors, save, &(Writing){.metadata = metadata, .n_metadata = n_metadata}, api, loc);
}
