/* The table of compiled kernels: a uthash map under a lock, texts compared in full. */
#define HASH_NONFATAL_OOM 1
#include "jit/kernel_table.h"
#include "ir/base/os.h"

#include <pthread.h>
#include <string.h>
#include <uthash.h>

typedef struct Entry {
    CompiledKernel kernel; /* first: a CompiledKernel* is an Entry* */
    uint32_t users;
    UT_hash_handle hh;
    char text[];
} Entry;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Entry *table;

static Entry *find_locked(const char *text, size_t len)
{
    Entry *entry = NULL;
    HASH_FIND(hh, table, text, len, entry);
    if (entry)
        entry->users++;
    return entry;
}

CompiledKernel *kernel_table_find(const char *text, size_t len)
{
    pthread_mutex_lock(&lock);
    Entry *entry = find_locked(text, len);
    pthread_mutex_unlock(&lock);
    return entry ? &entry->kernel : NULL;
}

static void free_parts(const CompiledKernel *kernel)
{
    if (kernel->code)
        code_free(kernel->code);
    os_free((void *)kernel->object);
    os_free((void *)kernel->texts);
    os_free(kernel->work);
}

Status kernel_parts_load(KernelParts *parts)
{
    KernelObject object;
    parts->code = NULL;
    TRY(kernel_object_open(parts->object, parts->object_bytes, &object));
    return object.elf ? code_load(object.elf, object.elf_bytes, &parts->code) : ST_OK;
}

/* Takes the parts over; NULL: out of memory. */
static Entry *make_entry(const char *text, size_t len, const KernelParts *parts)
{
    Entry *fresh = os_calloc(1, sizeof *fresh + len);
    CompiledKernel kernel = {.code = parts->code,
                             .object = parts->object,
                             .object_bytes = parts->object_bytes,
                             .texts = parts->texts,
                             .texts_bytes = parts->texts_bytes,
                             .key_bytes = len};
    (void)kernel_object_open(parts->object, parts->object_bytes, &kernel.parts); /* was checked */
    if (parts->code) {
        kernel.run = code_run(parts->code);
        kernel.bytes = code_bytes(parts->code);
        if (kernel.parts.plan.fixed)
            host_launch(&kernel.parts.plan, NULL, &kernel.fixed);
    }
    if (!fresh) {
        (void)fail(ST_OUT_OF_MEMORY, "no memory for a kernel of %zu bytes", parts->object_bytes);
        free_parts(&kernel);
        return NULL;
    }
    memcpy(fresh->text, text, len);
    kernel.key = fresh->text;
    kernel.bytes += parts->object_bytes + parts->texts_bytes + len + sizeof *fresh;
    fresh->kernel = kernel;
    fresh->users = 1;
    return fresh;
}

CompiledKernel *kernel_table_private(const char *text, size_t len, const KernelParts *parts)
{
    Entry *entry = make_entry(text, len, parts);
    return entry ? &entry->kernel : NULL;
}

CompiledKernel *kernel_table_add(const char *text, size_t len, const KernelParts *parts)
{
    Entry *fresh = make_entry(text, len, parts);
    if (!fresh)
        return NULL;
    pthread_mutex_lock(&lock);
    Entry *entry = find_locked(text, len);
    if (!entry) {
        HASH_ADD(hh, table, text[0], len, fresh);
        if (fresh->hh.tbl) { /* NULL: the table could not grow (HASH_NONFATAL_OOM) */
            entry = fresh;
            fresh = NULL;
        }
    }
    pthread_mutex_unlock(&lock);
    if (fresh) { /* lost the race, or no memory for the table */
        free_parts(&fresh->kernel);
        os_free(fresh);
    }
    if (!entry)
        (void)fail(ST_OUT_OF_MEMORY, "no memory for the table of kernels");
    return entry ? &entry->kernel : NULL;
}

void kernel_table_release(CompiledKernel *kernel)
{
    Entry *entry = (Entry *)kernel;
    pthread_mutex_lock(&lock);
    bool last = --entry->users == 0;
    if (last && entry->hh.tbl) /* NULL: it is in no table */
        HASH_DEL(table, entry);
    pthread_mutex_unlock(&lock);
    if (last) {
        if (entry->kernel.unload)
            entry->kernel.unload(entry->kernel.loaded);
        free_parts(&entry->kernel);
        os_free(entry);
    }
}
