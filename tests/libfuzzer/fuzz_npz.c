/*
 * Bytes as an .npz file: kiln_load_npz takes them or refuses them with a message that names the function. What was taken is tensors that
 * read whole or not at all, and saved and loaded again they are the same.
 */
#include "target.h"

#include "kiln.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST = 64 };

typedef struct File {
    int number;
    char path[64];
} File;

/* A file without a name on any disk. */
static File new_file(const char *name)
{
    File f = {.number = memfd_create(name, 0)};
    REQUIRE(f.number >= 0, "memfd_create");
    snprintf(f.path, sizeof f.path, "/proc/self/fd/%d", f.number);
    return f;
}

static void same(kiln_file_entry entry, kiln_tensor *a, kiln_tensor *b)
{
    const void *pa = NULL, *pb = NULL;
    kiln_shape sa = kiln_shape_of(a), sb = kiln_shape_of(b);
    REQUIRE(b, "what was saved does not load: %s", kiln_error_message());
    REQUIRE(entry.dtype == kiln_dtype_of(a) && memcmp(&entry.shape, &sa, sizeof sa) == 0, "not what the file told");
    REQUIRE(kiln_dtype_of(a) == kiln_dtype_of(b) && memcmp(&sa, &sb, sizeof sa) == 0, "another dtype or shape");
    REQUIRE(kiln_data(a, &pa) == KILN_OK && kiln_data(b, &pb) == KILN_OK, "%s", kiln_error_message());
    size_t bytes = (size_t)kiln_numel(a) * kiln_dtype_size(kiln_dtype_of(a));
    REQUIRE(bytes == 0 || memcmp(pa, pb, bytes) == 0, "other bytes");
}

static void save_and_load(const kiln_file *f, const File *out)
{
    kiln_named all[MOST];
    int n = 0;
    for (int i = 0; i < kiln_file_count(f) && n < MOST; i++) {
        const char *name = kiln_file_info(f, i).name;
        kiln_tensor *x = kiln_file_tensor(f, name); /* its checksum may be wrong, and it may not inflate */
        REQUIRE(kiln_file_find(f, name) == i, "%s", name);
        if (x)
            all[n++] = (kiln_named){name, x};
        kiln_clear_error();
    }
    kiln_status status = kiln_save_npz(out->path, n, all, n % 2);
    if (status == KILN_INVALID && strstr(kiln_error_message(), "cannot be a file's name")) /* ".npy" alone is read, and not written */
        return;
    REQUIRE(status == KILN_OK, "%s", kiln_error_message());
    kiln_file *again = kiln_load_npz(out->path);
    REQUIRE(again && kiln_file_count(again) == n, "%s", kiln_error_message());
    for (int i = 0; i < n; i++)
        same(kiln_file_info(f, kiln_file_find(f, all[i].name)), all[i].tensor, kiln_file_tensor(again, all[i].name));
    kiln_file_free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static File in, out;
    if (!in.number) {
        in = new_file("in");
        out = new_file("out");
        REQUIRE(kiln_set_option("mode", "interp") == KILN_OK, "%s", kiln_error_message());
    }
    REQUIRE(ftruncate(in.number, 0) == 0 && pwrite(in.number, bytes, n, 0) == (ssize_t)n, "writing %zu bytes", n);
    kiln_scope *scope = kiln_scope_begin();
    kiln_file *f = kiln_load_npz(in.path);
    if (f) {
        save_and_load(f, &out);
    } else {
        REQUIRE(kiln_error_status() != KILN_OK && strncmp(kiln_error_message(), "kiln_load_npz: ", 15) == 0, "message: %s",
                kiln_error_message());
        kiln_clear_error();
    }
    kiln_file_free(f);
    kiln_scope_end(scope);
    return 0;
}
