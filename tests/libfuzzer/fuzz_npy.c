/*
 * Bytes as an .npy file: kiln_load_npy takes them or refuses them with a message that names the function. What was taken reads
 * whole, and saved and loaded again it is the same dtype, shape and bytes.
 */
#include "target.h"

#include "kiln.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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

static void put(const File *f, const uint8_t *bytes, size_t n)
{
    REQUIRE(ftruncate(f->number, 0) == 0 && pwrite(f->number, bytes, n, 0) == (ssize_t)n, "writing %zu bytes", n);
}

static void same(kiln_tensor *a, kiln_tensor *b)
{
    const void *pa = NULL, *pb = NULL;
    REQUIRE(b, "what was saved does not load: %s", kiln_error_message());
    kiln_shape sa = kiln_shape_of(a), sb = kiln_shape_of(b);
    REQUIRE(kiln_dtype_of(a) == kiln_dtype_of(b) && sa.rank == sb.rank && memcmp(sa.dim, sb.dim, sizeof *sa.dim * (size_t)sa.rank) == 0,
            "another dtype or shape");
    REQUIRE(kiln_data(a, &pa) == KILN_OK && kiln_data(b, &pb) == KILN_OK, "%s", kiln_error_message());
    size_t bytes = (size_t)kiln_numel(a) * kiln_dtype_size(kiln_dtype_of(a));
    REQUIRE(bytes == 0 || memcmp(pa, pb, bytes) == 0, "other bytes");
}

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
        same(x, kiln_load_npy(out.path));
    } else {
        REQUIRE(kiln_error_status() != KILN_OK && strncmp(kiln_error_message(), "kiln_load_npy: ", 15) == 0, "message: %s",
                kiln_error_message());
        kiln_clear_error();
    }
    kiln_scope_end(scope);
    return 0;
}
