/*
 * NumPy's .npy files (numpy.lib.format):
 *
 *     \x93NUMPY  major minor  header length (u16 in format 1, u32 in 2 and 3)  header  data
 *
 * The header is the text of a Python dict with the keys descr, fortran_order and shape. It is read
 * by a small parser for exactly that: strings, True and False, a tuple of ints, in any order and
 * spacing. Fortran order is a reversed shape and a permutation, so it costs nothing here. Files are
 * not trusted: every length is checked against the file before memory is asked for. Saving is as file.h has it: the old file or the new one.
 *
 * Leaves out: structured, object, string, complex and datetime dtypes (KILN_UNSUPPORTED), and bf16,
 * which NumPy has no code for (safetensors keeps it).
 */
#include "ir/base/os.h"
#include "ir/base/os_fd.h"
#include "runtime/device/device.h"
#include "runtime/eval/sync.h"
#include "runtime/files/npy.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char magic[] = "\x93NUMPY";

enum { MAGIC = 6, LARGEST_HEADER = 1 << 20 };

/* ---- the header's text ---- */

typedef struct Parser {
    const char *at, *end;
    const char *path, *text;
    size_t first; /* byte of the file that the text begins at */
} Parser;

static Status malformed(const Parser *p, const char *what)
{
    return fail(ST_FORMAT, "%s: byte %zu: malformed header: %s" FILE_DAMAGED, p->path, p->first + (size_t)(p->at - p->text), what);
}

static void skip_space(Parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r'))
        p->at++;
}

/* Takes one character if it is next. */
static bool take(Parser *p, char c)
{
    skip_space(p);
    if (p->at == p->end || *p->at != c)
        return false;
    p->at++;
    return true;
}

/* A string of printable ASCII in either quotes, without escapes: it may go into a message. */
static Status parse_string(Parser *p, char *out, size_t size)
{
    skip_space(p);
    char quote = p->at < p->end ? *p->at : '\0';
    if (quote != '\'' && quote != '"')
        return malformed(p, "a string is missing");
    const char *from = ++p->at;
    while (p->at < p->end && *p->at != quote && *p->at >= ' ' && *p->at <= '~')
        p->at++;
    if (p->at == p->end)
        return malformed(p, "a string does not end");
    if (*p->at != quote)
        return malformed(p, "a string that is not plain text");
    size_t n = (size_t)(p->at++ - from);
    if (n >= size)
        return malformed(p, "a string is too long");
    memcpy(out, from, n);
    out[n] = '\0';
    return ST_OK;
}

/* The dtype of a code such as "<f4", and whether its bytes are in the other order. */
static Status parse_descr(Parser *p, NpyHeader *h)
{
    char code[64];
    skip_space(p);
    if (p->at < p->end && *p->at == '[')
        return fail(ST_UNSUPPORTED, "%s: a structured dtype: save its fields as arrays of their own", p->path);
    TRY(parse_string(p, code, sizeof code));
    char order = code[0];
    const char *kind = strchr("<>=|", order) && order ? code + 1 : code;
    for (int t = 0; t < DT_COUNT; t++) {
        const char *known = dtype_info[t].numpy;
        if (!known[0] || strcmp(known + 1, kind) != 0)
            continue;
        h->dtype = (DType)t;
        h->swap = order == '>' && dtype_bytes((DType)t) > 1;
        return ST_OK;
    }
    return fail(ST_UNSUPPORTED, "%s: dtype \"%s\": bools, ints and floats of up to 64 bits are read: cast it (astype) before it is saved",
                p->path, code);
}

static Status parse_bool(Parser *p, bool *out)
{
    skip_space(p);
    size_t left = (size_t)(p->end - p->at);
    if (left >= 4 && memcmp(p->at, "True", 4) == 0) {
        p->at += 4;
        *out = true;
    } else if (left >= 5 && memcmp(p->at, "False", 5) == 0) {
        p->at += 5;
        *out = false;
    } else {
        return malformed(p, "fortran_order is neither True nor False");
    }
    return ST_OK;
}

static Status parse_shape(Parser *p, kiln_shape *shape)
{
    shape->rank = 0;
    if (!take(p, '('))
        return malformed(p, "the shape is no tuple");
    while (!take(p, ')')) {
        int64_t n = 0;
        skip_space(p);
        const char *from = p->at;
        while (p->at < p->end && *p->at >= '0' && *p->at <= '9') {
            if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, *p->at - '0', &n))
                return fail(ST_OVERFLOW, "%s: a dim is too large" FILE_DAMAGED, p->path);
            p->at++;
        }
        if (p->at == from)
            return malformed(p, "a dim is no number");
        if (p->at < p->end && *p->at == 'L') /* written by Python 2 */
            p->at++;
        if (shape->rank == MAX_RANK)
            return fail(ST_UNSUPPORTED, "%s: more than %d axes: reshape it before it is saved", p->path, MAX_RANK);
        shape->dim[shape->rank++] = n;
        if (!take(p, ',') && (p->at == p->end || *p->at != ')'))
            return malformed(p, "the shape does not end");
    }
    return ST_OK;
}

static Status parse_header(Parser *p, NpyHeader *h)
{
    unsigned seen = 0;
    if (!take(p, '{'))
        return malformed(p, "it is no dict");
    while (!take(p, '}')) {
        static const char *const keys[] = {"descr", "fortran_order", "shape"};
        char key[32];
        unsigned k = 0;
        TRY(parse_string(p, key, sizeof key));
        while (k < 3 && strcmp(keys[k], key) != 0)
            k++;
        if (k == 3 || seen >> k & 1)
            return malformed(p, k == 3 ? "it has an unknown key" : "a key appears twice");
        seen |= 1u << k;
        if (!take(p, ':'))
            return malformed(p, "a colon is missing");
        TRY(k == 0 ? parse_descr(p, h) : k == 1 ? parse_bool(p, &h->fortran) : parse_shape(p, &h->shape));
        if (!take(p, ',') && (p->at == p->end || *p->at != '}'))
            return malformed(p, "it does not end");
    }
    return seen == 7 ? ST_OK : malformed(p, "descr, fortran_order or shape is missing");
}

/* ---- reading ---- */

/* Reads exactly n bytes; says what was cut off if there are fewer. */
static Status read_bytes(NpySource *s, const char *what, void *out, size_t n)
{
    size_t got = 0;
    TRY(n ? s->read(s, out, n, &got) : ST_OK);
    s->left -= s->left == UINT64_MAX ? 0 : got;
    return got == n ? ST_OK : fail(ST_FORMAT, "%s: truncated: %s has %zu of %zu bytes" FILE_DAMAGED, s->path, what, got, n);
}

Status npy_read_header(NpySource *s, NpyHeader *h)
{
    unsigned char start[MAGIC + 2], length[4] = {0};
    *h = (NpyHeader){.dtype = DT_F32};
    TRY(read_bytes(s, "the start", start, sizeof start));
    if (memcmp(start, magic, MAGIC) != 0)
        return fail(ST_FORMAT, "%s: not an .npy file: give one, as numpy.save and kiln_save_npy write it", s->path);
    int major = start[MAGIC];
    if (major < 1 || major > 3)
        return fail(ST_UNSUPPORTED, "%s: .npy format %d.%d: 1 to 3 are read; save it as one of these", s->path, major, start[MAGIC + 1]);
    TRY(read_bytes(s, "the header's length", length, major == 1 ? 2 : 4));
    size_t n = (size_t)length[0] | (size_t)length[1] << 8 | (size_t)length[2] << 16 | (size_t)length[3] << 24;
    if (n > s->left)
        return fail(ST_FORMAT, "%s: truncated: the header has %" PRIu64 " of %zu bytes" FILE_DAMAGED, s->path, s->left, n);
    if (n > LARGEST_HEADER)
        return fail(ST_FORMAT, "%s: the header has %zu bytes, %d are allowed" FILE_DAMAGED, s->path, n, LARGEST_HEADER);
    char *text = os_alloc(n);
    if (!text)
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    Status status = read_bytes(s, "the header", text, n);
    Parser parser = {text, text + n, s->path, text, MAGIC + 2 + (major == 1 ? 2 : 4)};
    if (status == ST_OK)
        status = parse_header(&parser, h);
    os_free(text);
    TRY(status);
    int64_t elements;
    size_t size = dtype_bytes(h->dtype);
    if (!shape_numel(h->shape.rank, h->shape.dim, &elements) || (uint64_t)elements > ((uint64_t)1 << 62) / size)
        return fail(ST_OVERFLOW, "%s: the shape has more than 2^62 bytes" FILE_DAMAGED, s->path);
    h->bytes = (uint64_t)elements * size;
    if (h->bytes > s->left)
        return fail(ST_FORMAT, "%s: truncated: the data has %" PRIu64 " of %" PRIu64 " bytes" FILE_DAMAGED, s->path, s->left, h->bytes);
    return ST_OK;
}

/* Reverses the bytes of each element. */
static void swap_bytes(char *data, size_t size, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t b = 0; b < size / 2; b++) {
            char *x = &data[i * size + b], *y = &data[i * size + size - 1 - b], kept = *x;
            *x = *y;
            *y = kept;
        }
}

Status npy_read_data(NpySource *s, const NpyHeader *h, Storage **data)
{
    size_t bytes = (size_t)h->bytes, size = dtype_bytes(h->dtype);
    *data = storage_new(bytes);
    if (!*data)
        return ST_OUT_OF_MEMORY;
    char *at = (*data)->data;
    Status status = read_bytes(s, "the data", at, bytes);
    if (status != ST_OK) {
        storage_release(*data);
        *data = NULL;
        return status;
    }
    if (h->swap)
        swap_bytes(at, size, bytes / size);
    for (size_t i = 0; h->dtype == DT_BOOL && i < bytes; i++)
        at[i] = at[i] != 0;
    return storage_to_current(data);
}

RtNode *npy_node(Rec *r, const NpyHeader *h, Storage *data)
{
    int rank = h->shape.rank;
    int64_t dims[MAX_RANK] = {0};
    uint8_t perm[MAX_RANK] = {0};
    for (int d = 0; d < rank; d++) {
        dims[d] = h->shape.dim[h->fortran ? rank - 1 - d : d];
        perm[d] = (uint8_t)(h->fortran ? rank - 1 - d : d);
    }
    return rec_permute(r, rec_data(r, h->dtype, rank, dims, data, data->data, NULL), perm);
}

/* ---- a file of one array ---- */

/* The bytes from here to the end of a file; UINT64_MAX where that cannot be known (a pipe). */
static uint64_t bytes_left(FILE *f)
{
    long here = ftell(f);
    if (here < 0 || fseek(f, 0, SEEK_END) != 0)
        return UINT64_MAX;
    long end = ftell(f);
    if (fseek(f, here, SEEK_SET) != 0 || end < here)
        return UINT64_MAX;
    return (uint64_t)(end - here);
}

static Status read_stream(NpySource *s, void *out, size_t n, size_t *got)
{
    *got = fread(out, 1, n, s->from);
    return *got < n && ferror((FILE *)s->from) ? fail(ST_IO, "%s: %s", s->path, strerror(errno)) : ST_OK;
}

API1(kiln_tensor *, kiln_load_npy, const char *, path)
{
    Rec r = REC(kiln_load_npy);
    if (!path)
        return rec_end(&r, rec_fail(&r, ST_INVALID, "path is NULL"));
    FILE *f = os_open_stream(path, "rb");
    if (!f)
        return rec_end(&r, rec_fail(&r, ST_IO, "%s: %s", path, strerror(errno)));
    NpyHeader h;
    Storage *data = NULL;
    NpySource source = {path, read_stream, f, bytes_left(f)};
    Status status = npy_read_header(&source, &h);
    if (status == ST_OK)
        status = npy_read_data(&source, &h, &data);
    fclose(f);
    return rec_end(&r, status == ST_OK ? npy_node(&r, &h, data) : rec_failed(&r, status));
}

/* ---- saving ---- */

Status npy_has_dtype(const char *path, DType dtype)
{
    if (dtype_info[dtype].numpy[0])
        return ST_OK;
    return fail(ST_UNSUPPORTED, "%s: NumPy has no %s: kiln_save_safetensors keeps it, or cast it first", path, dtype_name(dtype));
}

size_t npy_write_header(const RtNode *node, char out[NPY_HEADER])
{
    char text[NPY_HEADER];
    int n = snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (", dtype_info[node->dtype].numpy);
    for (int d = 0; d < node->rank; d++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%" PRId64 "%s", d ? " " : "", node->dim[d],
                      d + 1 < node->rank || node->rank == 1 ? "," : "");
    n += snprintf(text + n, sizeof text - (size_t)n, "), }");
    int start = MAGIC + 4, total = (start + n + 1 + 63) / 64 * 64, header = total - start;
    memcpy(out, magic, MAGIC);
    out[MAGIC] = 1;
    out[MAGIC + 1] = 0;
    out[MAGIC + 2] = (char)(header & 255);
    out[MAGIC + 3] = (char)(header >> 8);
    memset(out + start, ' ', (size_t)header);
    memcpy(out + start, text, (size_t)n);
    out[total - 1] = '\n';
    return (size_t)total;
}

typedef struct Writing {
    const RtNode *node;
    const void *data;
} Writing;

static Status write_file(OsSaving *saving, void *user)
{
    const Writing *w = user;
    char header[NPY_HEADER];
    size_t bytes = dtype_bytes(node_dtype(w->node)) * (size_t)node_elements(w->node);
    bool ok = os_save_write(saving, header, npy_write_header(w->node, header)) && os_save_write(saving, w->data, bytes);
    return ok ? ST_OK : ST_IO;
}

API2(kiln_status, kiln_save_npy, kiln_tensor *, x, const char *, path)
{
    static const char api[] = "kiln_save_npy";
    Loc loc = {file, line};
    if (x && !path)
        return error_sync(fail(ST_INVALID, "path is NULL"), api, loc);
    Status writable = x ? npy_has_dtype(path, node_dtype(x->node)) : ST_OK;
    if (writable != ST_OK)
        return error_sync(writable, api, loc);
    kiln_status status;
    void *copy;
    const void *data;
    RtNode *node = sync_dense(x, api, loc, &data, &copy, &status);
    if (!node)
        return status;
    Status result = file_save(path, write_file, &(Writing){node, data});
    os_free(copy);
    node_release(node);
    return error_sync(result, api, loc);
}
