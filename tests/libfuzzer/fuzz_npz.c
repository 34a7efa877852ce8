/*
 * Bytes as an .npz file: kiln_load_npz takes them or refuses them with a message that names the function. What was taken is tensors that
 * read whole or not at all, and saved and loaded again they are the same.
 */
#include "tests/libfuzzer/file.h"

enum { MOST = 64 };

static void same(kiln_file_entry entry, kiln_tensor *a, kiln_tensor *b)
{
    kiln_shape shape = kiln_shape_of(a);
    REQUIRE(entry.dtype == kiln_dtype_of(a) && memcmp(&entry.shape, &shape, sizeof shape) == 0, "not what the file told");
    same_tensor(a, b);
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

static bool take(const File *in, const File *out, size_t n)
{
    (void)n;
    kiln_file *f = kiln_load_npz(in->path);
    if (!f)
        return false;
    save_and_load(f, out);
    kiln_file_free(f);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) { return fuzz_file(bytes, n, "kiln_load_npz: ", take); }
