/*
 * Files of named tensors: looking at them, and tensors of what they hold.
 *
 * On the CPU a tensor lies in the mapping: nothing is read until somebody does, and nothing is copied. It is memory of somebody else's,
 * as one that kiln_wrap took: never overwritten, never donated; its last user lets the mapping go. What cannot be used where it is
 * (elements that are not aligned, bools that are neither 0 nor 1, a CUDA device) is copied.
 */
#include "runtime/files/file.h"
#include "ir/base/os.h"
#include "runtime/device/device.h"
#include "runtime/eval/sync.h"
#include "runtime/gradient/body.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- names ----------------------------------------------------------------------------------------------------------------- */

/* The bytes that the first character takes, 0 where there is none in UTF-8 (RFC 3629). */
static int utf8_bytes(const unsigned char *at)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    int n = *at < 0x80 ? 1 : *at >> 5 == 6 ? 2 : *at >> 4 == 14 ? 3 : *at >> 3 == 30 ? 4 : 0;
    uint32_t code = n == 1 ? *at : *at & (0x7fu >> n);
    for (int i = 1; i < n; i++) {
        if (at[i] >> 6 != 2)
            return 0;
        code = code << 6 | (at[i] & 0x3f);
    }
    return n && (code < least[n] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) ? 0 : n;
}

bool file_is_utf8(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    for (int n; *at; at += n)
        if ((n = utf8_bytes(at)) == 0)
            return false;
    return true;
}

const char *file_name_text(const char *name, char *text)
{
    size_t n = 0;
    const unsigned char *at = (const unsigned char *)name;
    text[n++] = '"';
    while (*at && n < FILE_NAME_TEXT - 12) {
        int bytes = utf8_bytes(at);
        bool shown = bytes && *at >= ' ' && *at != 0x7f && !(*at == 0xc2 && at[1] < 0xa0);
        if (shown)
            memcpy(text + n, at, (size_t)bytes);
        else
            text[n] = '?';
        n += shown ? (size_t)bytes : 1;
        at += bytes ? bytes : 1;
    }
    memcpy(text + n, *at ? "...\"" : "\"", *at ? 5 : 2);
    return text;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(const FileEntry *const *)a)->name, (*(const FileEntry *const *)b)->name);
}

static Status sort_names(kiln_file *f, const char *path)
{
    char text[FILE_NAME_TEXT];
    f->by_name = ARENA_ARRAY(&f->arena, const FileEntry *, f->entries.n + 1);
    for (uint32_t i = 0; i < f->entries.n; i++)
        f->by_name[i] = &f->entries.at[i];
    qsort(f->by_name, f->entries.n, sizeof(const FileEntry *), compare_names);
    for (uint32_t i = 1; i < f->entries.n; i++)
        if (strcmp(f->by_name[i - 1]->name, f->by_name[i]->name) == 0)
            return fail(ST_FORMAT, "%s: two tensors are called %s" FILE_DAMAGED, path, file_name_text(f->by_name[i]->name, text));
    return ST_OK;
}

static const FileEntry *find(const kiln_file *f, const char *name)
{
    FileEntry wanted = {.name = name};
    const FileEntry *key = &wanted, **found;
    found = bsearch(&key, f->by_name, f->entries.n, sizeof(const FileEntry *), compare_names);
    return found ? *found : NULL;
}

/* --- reading --------------------------------------------------------------------------------------------------------------- */

static void part_release(void *part, void *unused)
{
    FilePart *p = part;
    (void)unused;
    if (!p || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1)
        return;
    os_unmap_file(p->data, p->bytes);
    os_free(p);
}

Status file_map(kiln_file *f, const char *path, uint32_t *part)
{
    size_t room = strlen(path) + 1;
    VEC_RESERVE(&f->arena, f->parts, f->parts.n + 1); /* from here on the arena may not leave */
    FilePart *p = os_calloc(1, sizeof *p + room);
    if (!p)
        return fail(ST_OUT_OF_MEMORY, "%s: out of memory", path);
    if (!os_map_file(path, &p->data, &p->bytes)) {
        os_free(p);
        return errno ? fail(errno == ENOMEM ? ST_OUT_OF_MEMORY : ST_IO, "%s: %s", path, strerror(errno))
                     : fail(ST_UNSUPPORTED, "%s: a regular file is needed, which can be mapped: copy it to one", path);
    }
    atomic_init(&p->refs, 1);
    p->path = memcpy(p + 1, path, room);
    *part = f->parts.n;
    f->parts.at[f->parts.n++] = p;
    return ST_OK;
}

static void free_file(kiln_file *f)
{
    for (uint32_t i = 0; i < f->parts.n; i++)
        part_release(f->parts.at[i], NULL);
    arena_free(&f->arena);
    os_free(f);
}

Status file_read(FileReader *reader, const char *path, void *user, kiln_file **out)
{
    jmp_buf oom;
    kiln_file *f = os_calloc(1, sizeof *f);
    *out = NULL;
    if (!f)
        return fail(ST_OUT_OF_MEMORY, "%s: out of memory", path);
    arena_init(&f->arena, &oom);
    Status status = setjmp(oom) == 0 ? reader(f, path, user) : fail(ST_OUT_OF_MEMORY, "%s: out of memory", path);
    if (status == ST_OK)
        status = setjmp(oom) == 0 ? sort_names(f, path) : fail(ST_OUT_OF_MEMORY, "%s: out of memory", path);
    f->arena.oom = NULL;
    if (status == ST_OK)
        *out = f;
    else
        free_file(f);
    return status;
}

/* --- saving ---------------------------------------------------------------------------------------------------------------- */

Status file_save(const char *path, FileWriter *writer, void *user)
{
    OsSaving saving;
    int cancel = os_cancel_off(), cause = 0;
    Status status = os_save_begin(&saving, path) ? ST_OK : ST_IO;
    if (status != ST_OK) {
        cause = errno;
    } else {
        status = writer(&saving, user);
        cause = errno;
        if (!os_save_end(&saving, status == ST_OK) && status == ST_OK) {
            status = ST_IO;
            cause = errno;
        }
    }
    os_cancel_restore(cancel);
    if (status != ST_IO)
        return status;
    return fail(cause == ENOMEM ? ST_OUT_OF_MEMORY : ST_IO, "%s: %s; what was there before is unchanged", path, strerror(cause));
}

Status file_write_elements(const Named *x, bool (*write)(void *out, const void *data, size_t bytes), void *out)
{
    void *copy;
    const void *elements;
    TRY(dense_elements(x->node, &elements, &copy));
    bool ok = write(out, elements, (size_t)x->bytes);
    int cause = errno;
    os_free(copy);
    errno = cause;
    return ok ? ST_OK : ST_IO;
}

static int compare_named(const void *a, const void *b) { return strcmp(((const Named *)a)->name, ((const Named *)b)->name); }

static Status check_named(int n, const kiln_named *tensors, Named *named)
{
    char text[FILE_NAME_TEXT];
    for (int i = 0; i < n; i++) {
        if (!tensors[i].name)
            return fail(ST_INVALID, "the name of tensor %d is NULL", i);
        if (!file_is_utf8(tensors[i].name))
            return fail(ST_INVALID, "the name of tensor %d, %s, is not UTF-8", i, file_name_text(tensors[i].name, text));
        RtNode *node = tensors[i].tensor->node;
        named[i] = (Named){tensors[i].name, node, (uint64_t)node_elements(node) * dtype_bytes(node_dtype(node))};
    }
    qsort(named, (size_t)n, sizeof *named, compare_named);
    for (int i = 1; i < n; i++)
        if (strcmp(named[i - 1].name, named[i].name) == 0)
            return fail(ST_INVALID, "two tensors are called %s", file_name_text(named[i].name, text));
    return ST_OK;
}

kiln_status file_save_named(const char *path, int n, const kiln_named *tensors, NamedWriter *writer, void *user, const char *api, Loc loc)
{
    if (body_refuses(api, loc))
        return KILN_INVALID;
    trace_sync(api, loc);
    if (!path)
        return error_sync(fail(ST_INVALID, "path is NULL"), api, loc);
    if (n < 0 || (n && !tensors))
        return error_sync(fail(ST_INVALID, n < 0 ? "%d tensors" : "the list of %d tensors is NULL", n), api, loc);
    for (int i = 0; i < n; i++)
        if (!tensors[i].tensor) {
            char name[32];
            snprintf(name, sizeof name, "tensor %d", i);
            return error_null(name, api, loc);
        }
    Named *named = os_alloc(sizeof *named * (size_t)(n + 1));
    RtNode **nodes = os_alloc(sizeof(RtNode *) * (size_t)(n + 1));
    Status status = named && nodes ? check_named(n, tensors, named) : fail(ST_OUT_OF_MEMORY, "out of memory");
    int held = 0;
    for (; held < n && status == ST_OK; held++)
        nodes[held] = node_retain(named[held].node);
    if (n && status == ST_OK)
        status = eval_nodes(nodes, (uint32_t)n, api, loc);
    if (status == ST_OK)
        status = writer(path, named, n, user);
    while (held)
        node_release(nodes[--held]);
    os_free(nodes);
    os_free(named);
    return error_sync(status, api, loc);
}

/* --- asking ---------------------------------------------------------------------------------------------------------------- */

int kiln_file_count(const kiln_file *file) { return file ? (int)file->entries.n : -1; }

kiln_file_entry kiln_file_info(const kiln_file *file, int i)
{
    kiln_file_entry entry = {.shape.rank = -1};
    if (!file || i < 0 || (uint32_t)i >= file->entries.n)
        return entry;
    const FileEntry *e = &file->entries.at[i];
    entry = (kiln_file_entry){e->name, (kiln_dtype)e->dtype, {e->rank, {0}}};
    memcpy(entry.shape.dim, e->dim, sizeof *e->dim * (size_t)e->rank);
    return entry;
}

int kiln_file_find(const kiln_file *file, const char *name)
{
    const FileEntry *e = file && name ? find(file, name) : NULL;
    return e ? (int)(e - file->entries.at) : -1;
}

kiln_metadata kiln_file_metadata(const kiln_file *file, int i)
{
    return file && i >= 0 && (uint32_t)i < file->metadata.n ? file->metadata.at[i] : (kiln_metadata){NULL, NULL};
}

const char *kiln_file_metadata_value(const kiln_file *file, const char *key)
{
    for (uint32_t i = 0; file && key && i < file->metadata.n; i++)
        if (strcmp(file->metadata.at[i].key, key) == 0)
            return file->metadata.at[i].value;
    return NULL;
}

void kiln_file_free(kiln_file *file)
{
    if (file)
        free_file(file);
}

/* --- tensors --------------------------------------------------------------------------------------------------------------- */

static bool is_truth(const char *data, uint64_t n)
{
    unsigned char seen = 0;
    for (uint64_t i = 0; i < n; i++)
        seen |= (unsigned char)data[i];
    return seen <= 1;
}

/* The elements in the mapping. */
static Status mapped(FilePart *part, const FileEntry *e, Storage **out)
{
    *out = storage_borrow((char *)(uintptr_t)part->data + e->at, (size_t)e->bytes, NULL, NULL, NULL);
    return *out ? ST_OK : ST_OUT_OF_MEMORY;
}

/* A copy of them, in which a bool is 0 or 1. */
static Status copied(const char *data, const FileEntry *e, int device, Storage **out)
{
    unsigned char *truth = NULL;
    if (e->dtype == DT_BOOL && !is_truth(data, e->bytes)) {
        if (!(truth = os_alloc((size_t)e->bytes)))
            return fail(ST_OUT_OF_MEMORY, "out of memory");
        for (uint64_t i = 0; i < e->bytes; i++)
            truth[i] = data[i] != 0;
    }
    Status status = storage_copied_to(device, truth ? (const char *)truth : data, (size_t)e->bytes, out);
    os_free(truth);
    return status;
}

static RtNode *load(Rec *r, const kiln_file *f, const FileEntry *e)
{
    if (f->load)
        return f->load(r, f, e);
    FilePart *part = f->parts.at[e->part];
    const char *data = part->data + e->at;
    Storage *storage = NULL;
    int device;
    Status status = device_current(&device);
    bool as_it_is = (uintptr_t)data % dtype_bytes(e->dtype) == 0 && (e->dtype != DT_BOOL || is_truth(data, e->bytes));
    bool in_mapping = status == ST_OK && device == DEVICE_CPU && as_it_is;
    if (status == ST_OK)
        status = in_mapping ? mapped(part, e, &storage) : copied(data, e, device, &storage);
    if (status != ST_OK)
        return rec_failed(r, status);
    RtNode *node = rec_data(r, e->dtype, e->rank, e->dim, storage, storage->data, NULL);
    if (node && in_mapping) {
        atomic_fetch_add_explicit(&part->refs, 1, memory_order_relaxed);
        storage->read_only = true;
        storage->origin = part;
        storage->deleter = part_release;
    }
    return node;
}

API2(kiln_tensor *, kiln_file_tensor, const kiln_file *, from, const char *, name)
{
    Rec r = REC(kiln_file_tensor);
    char text[FILE_NAME_TEXT];
    if (!from || !name)
        return rec_end(&r, rec_fail(&r, ST_INVALID, "%s is NULL", from ? "name" : "from"));
    const FileEntry *e = find(from, name);
    if (!e)
        return rec_end(&r, rec_fail(&r, ST_INVALID, "%s: no tensor is called %s: kiln_file_info lists the %u that there are",
                                    from->parts.n ? from->parts.at[0]->path : "", file_name_text(name, text), from->entries.n));
    return rec_end(&r, load(&r, from, e));
}

API2(kiln_status, kiln_file_tensors, const kiln_file *, from, kiln_tensor **, tensors)
{
    Rec r = REC(kiln_file_tensors);
    uint32_t n = from && tensors ? from->entries.n : 0;
    if (!from || !tensors)
        rec_fail(&r, ST_INVALID, "%s is NULL", from ? "tensors" : "from");
    bool all = true;
    for (uint32_t i = 0; i < n; i++) {
        RtNode *node = all ? load(&r, from, &from->entries.at[i]) : NULL;
        tensors[i] = node ? rec_out(&r, node) : NULL;
        all = tensors[i] != NULL;
    }
    for (uint32_t i = 0; i < n && !all; i++)
        tensors[i] = NULL; /* those that there are stay their scope's */
    rec_end(&r, NULL);
    return (kiln_status)r.status;
}
