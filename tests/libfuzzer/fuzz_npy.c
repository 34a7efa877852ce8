/*
 * Bytes as an .npy file: kiln_load_npy takes them or refuses them with a message that names the function. What was taken reads
 * whole, and saved and loaded again it is the same dtype, shape and bytes.
 */
#include "tests/libfuzzer/file.h"

static bool take(const File *in, const File *out, size_t n)
{
    (void)n;
    kiln_tensor *x = kiln_load_npy(in->path);
    if (!x)
        return false;
    REQUIRE(kiln_save_npy(x, out->path) == KILN_OK, "%s", kiln_error_message());
    same_tensor(x, kiln_load_npy(out->path));
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) { return fuzz_file(bytes, n, "kiln_load_npy: ", take); }
