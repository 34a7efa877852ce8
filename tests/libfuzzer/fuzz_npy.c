/*
 * Bytes as an .npy file: kiln_load_npy takes them or refuses them with a message that names the function. What was taken reads
 * whole, and saved and loaded again it is the same dtype, shape and bytes.
 */
#include "tests/libfuzzer/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static File in, out;
    if (!in.number) {
        in = new_file("in");
        out = new_file("out");
        REQUIRE(kiln_set_option("mode", "interp") == KILN_OK, "%s", kiln_error_message());
    }
    put(&in, bytes, n);
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_load_npy(in.path);
    if (x) {
        REQUIRE(kiln_save_npy(x, out.path) == KILN_OK, "%s", kiln_error_message());
        same_tensor(x, kiln_load_npy(out.path));
    } else {
        refused_by("kiln_load_npy: ");
    }
    kiln_scope_end(scope);
    return 0;
}
