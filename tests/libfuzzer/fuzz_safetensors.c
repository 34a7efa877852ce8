/*
 * Bytes as a safetensors file: kiln_load_safetensors takes them or refuses them with a message that names the function. What was taken
 * is tensors that read whole, and saved and loaded again they have the same names, dtypes, shapes and bytes.
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
    kiln_metadata texts[MOST];
    int n = kiln_file_count(f), n_texts = 0;
    n = n < MOST ? n : MOST;
    for (int i = 0; i < n; i++) {
        all[i].name = kiln_file_info(f, i).name;
        all[i].tensor = kiln_file_tensor(f, all[i].name);
        REQUIRE(all[i].tensor && kiln_file_find(f, all[i].name) == i, "%s", kiln_error_message());
    }
    while (n_texts < MOST && kiln_file_metadata(f, n_texts).key) {
        texts[n_texts] = kiln_file_metadata(f, n_texts);
        n_texts++;
    }
    REQUIRE(kiln_save_safetensors(out->path, n, all, n_texts, texts) == KILN_OK, "%s", kiln_error_message());
    kiln_file *again = kiln_load_safetensors(out->path);
    REQUIRE(again && kiln_file_count(again) == n, "%s", kiln_error_message());
    for (int i = 0; i < n; i++)
        same(kiln_file_info(f, i), all[i].tensor, kiln_file_tensor(again, all[i].name));
    for (int i = 0; i < n_texts; i++)
        REQUIRE(strcmp(kiln_file_metadata_value(again, texts[i].key), texts[i].value) == 0, "other metadata");
    kiln_file_free(again);
}

static bool take(const File *in, const File *out, size_t n)
{
    (void)n;
    kiln_file *f = kiln_load_safetensors(in->path);
    if (!f)
        return false;
    save_and_load(f, out);
    kiln_file_free(f);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) { return fuzz_file(bytes, n, "kiln_load_safetensors: ", take); }
