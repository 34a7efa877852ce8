/* Files without a name on any disk, for targets that read and write files, and what two tensors must have in common. */
#ifndef TESTS_LIBFUZZER_FILE_H
#define TESTS_LIBFUZZER_FILE_H

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

/* b is what became of a when it was saved and loaded. */
static inline void same_tensor(kiln_tensor *a, kiln_tensor *b)
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

/* A target: the bytes as a file that `take` loads and looks at, with another to write to; false: loading was refused, which has to be with a
 * message that names the function. */
static int fuzz_file(const uint8_t *bytes, size_t n, const char *function, bool (*take)(const File *in, const File *out, size_t n))
{
    static File in, out;
    if (!in.number) {
        in = new_file("in");
        out = new_file("out");
        REQUIRE(kiln_set_option("mode", "interp") == KILN_OK, "%s", kiln_error_message());
    }
    put(&in, bytes, n);
    kiln_scope *scope = kiln_scope_begin();
    if (!take(&in, &out, n))
        REQUIRE(kiln_error_status() != KILN_OK && strncmp(kiln_error_message(), function, strlen(function)) == 0, "message: %s",
                kiln_error_message());
    kiln_clear_error();
    kiln_scope_end(scope);
    return 0;
}

#endif
