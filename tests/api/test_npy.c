/* .npy files: what is written and what NumPy writes is read, what is malformed is refused. */
#include "api.h"

#include <stdio.h>
#include <unistd.h>

static char path[512];

static void use_file(void)
{
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/kiln_test_%ld.npy", folder ? folder : "/tmp", (long)getpid());
}

static void drop_file(void) { remove(path); }

TestSuite(npy, .init = use_file, .fini = drop_file);

static void write_bytes(const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    cr_assert(f && fwrite(data, 1, n, f) == n && fclose(f) == 0);
}

/* Writes a file of a format with this header text and these data bytes. */
static void write_npy(int major, const char *header, const void *data, size_t bytes)
{
    char file[4096] = "\x93NUMPY";
    size_t n = strlen(header), at = 8;
    file[6] = (char)major;
    for (int i = 0; i < (major == 1 ? 2 : 4); i++)
        file[at++] = (char)(n >> (8 * i));
    memcpy(file + at, header, n);
    if (bytes)
        memcpy(file + at + n, data, bytes);
    write_bytes(file, at + n + bytes);
}

Test(npy, every_dtype_and_shape_comes_back)
{
    for (int t = KILN_BOOL; t <= KILN_F64; t++) {
        if (t == KILN_BF16)
            continue;
        kiln_dtype dtype = (kiln_dtype)t;
        kiln_tensor *x = kiln_cast(F32(KILN_SHAPE(2, 1, 3), 0, 1, 2, 3, 4, 5), dtype);
        cr_assert(kiln_save_npy(x, path) == KILN_OK, "%s", kiln_error_message());
        kiln_tensor *y = kiln_load_npy(path);
        same_shape(t, y, dtype, KILN_SHAPE(2, 1, 3));
        double equal;
        cr_assert(kiln_item(kiln_all(kiln_eq(x, y)), &equal) == KILN_OK && equal == 1);
    }
    const kiln_shape shapes[] = {KILN_SHAPE(), KILN_SHAPE(0), KILN_SHAPE(5), KILN_SHAPE(3, 0, 2), KILN_SHAPE(1, 1, 1, 1, 1, 1, 1, 2)};
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        cr_assert(kiln_save_npy(kiln_full(KILN_I32, shapes[k], 7), path) == KILN_OK);
        same_shape((int)k, kiln_load_npy(path), KILN_I32, shapes[k]);
    }
}

Test(npy, the_bytes_are_numpys)
{
    static const char want[] = "\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }"
                               "                                                          \n";
    char got[256];
    cr_assert(kiln_save_npy(F32(KILN_SHAPE(2, 1), 1, 2), path) == KILN_OK);
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(got, 1, sizeof got, f) : 0;
    cr_assert(n == 128 + 8, "%zu bytes", n);
    cr_assert(sizeof want - 1 == 128 && memcmp(got, want, 128) == 0);
    cr_assert(fclose(f) == 0);
}

Test(npy, views_and_wraps_are_written_in_order)
{
    float data[6] = {1, 2, 3, 4, 5, 6};
    kiln_tensor *x = kiln_wrap_strided(KILN_F32, KILN_SHAPE(3, 2), (int64_t[]){1, 3}, data, NULL, NULL);
    cr_assert(kiln_save_npy(x, path) == KILN_OK);
    EXPECT(kiln_load_npy(path), KILN_F32, KILN_SHAPE(3, 2), 0, 1, 4, 2, 5, 3, 6);
    cr_assert(kiln_save_npy(kiln_transpose(F32(KILN_SHAPE(2, 2), 1, 2, 3, 4)), path) == KILN_OK);
    EXPECT(kiln_load_npy(path), KILN_F32, KILN_SHAPE(2, 2), 0, 1, 3, 2, 4);
}

Test(npy, what_others_write)
{
    static const float six[6] = {1, 2, 3, 4, 5, 6};
    write_npy(1, "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }\n", six, sizeof six);
    EXPECT(kiln_load_npy(path), KILN_F32, KILN_SHAPE(2, 3), 0, 1, 3, 5, 2, 4, 6);
    write_npy(2, "{\"shape\":(6L,),\"descr\":\"<f4\",\"fortran_order\":False}", six, sizeof six);
    EXPECT(kiln_load_npy(path), KILN_F32, KILN_SHAPE(6), 0, 1, 2, 3, 4, 5, 6);
    write_npy(3, "{'descr': '>i2', 'fortran_order': False, 'shape': (2,), }", "\x01\x02\xff\xfe", 4);
    EXPECT(kiln_load_npy(path), KILN_I16, KILN_SHAPE(2), 0, 258, -2);
    write_npy(1, "{'descr': '|b1', 'fortran_order': False, 'shape': (3,), }", "\x00\x01\x07", 3);
    EXPECT(kiln_load_npy(path), KILN_BOOL, KILN_SHAPE(3), 0, 0, 1, 1);
    write_npy(1, "{'descr': '|u1', 'fortran_order': False, 'shape': (), }  \n",
              "\x09"
              "more",
              5);
    EXPECT(kiln_load_npy(path), KILN_U8, KILN_SHAPE(), 0, 9);
}

Test(npy, what_is_malformed)
{
    static const struct {
        const char *header;
        kiln_status status;
        const char *message;
    } rows[] = {
        {"", KILN_BAD_FORMAT, "byte 10: malformed header: it is no dict; the file is damaged"},
        {"{", KILN_BAD_FORMAT, "byte 11: malformed header: a string is missing"},
        {"{}", KILN_BAD_FORMAT, "missing"},
        {"{'descr': '<f4', 'fortran_order': False}", KILN_BAD_FORMAT, "shape is missing"},
        {"{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", KILN_BAD_FORMAT, "neither True nor False"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': 3}", KILN_BAD_FORMAT, "no tuple"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3}", KILN_BAD_FORMAT, "does not end"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-3,)}", KILN_BAD_FORMAT, "no number"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'x': 1}", KILN_BAD_FORMAT, "unknown key"},
        {"{'descr': '<f4', 'descr': '<f4', 'shape': (3,)}", KILN_BAD_FORMAT, "twice"},
        {"{'descr' '<f4'}", KILN_BAD_FORMAT, "colon"},
        {"{'descr': '<f4 'fortran_order': False, 'shape': (1,)}", KILN_UNSUPPORTED, "dtype"},
        {"{'descr': '<f4", KILN_BAD_FORMAT, "does not end"},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}", KILN_UNSUPPORTED,
         "dtype \"<c8\": bools, ints and floats of up to 64 bits are read: cast it"},
        {"{'descr': '<f\x1b[2J', 'fortran_order': False, 'shape': (1,)}", KILN_BAD_FORMAT, "plain text"},
        {"{'descr': '<f\xff', 'fortran_order': False, 'shape': (1,)}", KILN_BAD_FORMAT, "plain text"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", KILN_UNSUPPORTED, "|O"},
        {"{'descr': '', 'fortran_order': False, 'shape': (1,)}", KILN_UNSUPPORTED, "dtype"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", KILN_UNSUPPORTED, "structured dtype: save its fields"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", KILN_OVERFLOW, "too large"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4)}", KILN_OVERFLOW, "2^62"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}", KILN_BAD_FORMAT, "truncated"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1)}", KILN_UNSUPPORTED, "more than 8 axes: reshape it"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}", KILN_BAD_FORMAT, "truncated: the data has 4 of 12 bytes"},
    };
    const char *name = strrchr(path, '/') + 1;
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        write_npy(1, rows[k].header, "data", 4);
        const char *advice = rows[k].status == KILN_UNSUPPORTED ? "" : "; the file is damaged, or was cut short: get or write it again (";
        expect_error((int)k, kiln_load_npy(path), rows[k].status,
                     (const char *const[]){rows[k].message, advice, name, "kiln_load_npy", NULL});
    }
    write_bytes("PK\x03\x04 zip, not npy", 18);
    EXPECT_ERROR(kiln_load_npy(path), KILN_BAD_FORMAT, "not an .npy file: give one");
    write_npy(9, "{}", NULL, 0);
    EXPECT_ERROR(kiln_load_npy(path), KILN_UNSUPPORTED, "format 9.0: 1 to 3 are read");
    write_bytes("\x93NUMPY\x02\x00\xff\xff\xff\xff", 12);
    EXPECT_ERROR(kiln_load_npy(path), KILN_BAD_FORMAT, "truncated: the header has 0 of 4294967295 bytes; the file is damaged");
    EXPECT_ERROR(kiln_load_npy("/nonexistent/x.npy"), KILN_IO, "kiln_load_npy: /nonexistent/x.npy: No such file", "test_npy.c");
    EXPECT_ERROR(kiln_load_npy("/"), KILN_IO, "directory");
}

Test(npy, truncated_anywhere_and_flipped_anywhere)
{
    char whole[256], copy[256];
    cr_assert(kiln_save_npy(F32(KILN_SHAPE(2), 1, 2), path) == KILN_OK);
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(whole, 1, sizeof whole, f) : 0;
    cr_assert(n == 136 && fclose(f) == 0);
    for (size_t cut = 0; cut < n; cut++) {
        write_bytes(whole, cut);
        cr_assert(kiln_load_npy(path) == NULL, "%zu", cut);
        cr_assert(kiln_error_status() == KILN_BAD_FORMAT, "%zu: %s", cut, kiln_error_message());
        kiln_clear_error();
    }
    for (size_t bit = 0; bit < 8 * 128; bit++) { /* never a crash; a changed number may still be a file */
        memcpy(copy, whole, n);
        copy[bit / 8] = (char)(copy[bit / 8] ^ (1 << bit % 8));
        write_bytes(copy, n);
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_load_npy(path);
        cr_assert(x || kiln_error_status() != KILN_OK);
        if (x)
            cr_assert(kiln_eval(x) == KILN_OK);
        kiln_clear_error();
        kiln_scope_end(scope);
    }
}

Test(npy, saving_fails_clearly)
{
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(2));
    cr_assert(kiln_save_npy(x, "/nonexistent/x.npy") == KILN_IO);
    cr_assert(strstr(kiln_error_message(), "kiln_save_npy: /nonexistent/x.npy: No such file"), "%s", kiln_error_message());
    cr_assert(kiln_save_npy(x, NULL) == KILN_INVALID);
    cr_assert(kiln_save_npy(NULL, path) == KILN_INVALID);
    cr_assert(kiln_save_npy(kiln_cast(x, KILN_BF16), path) == KILN_UNSUPPORTED);
    cr_assert(strstr(kiln_error_message(), "NumPy has no bf16: kiln_save_safetensors keeps it"), "%s", kiln_error_message());
    if (access("/dev/full", W_OK) == 0) {
        cr_assert(kiln_save_npy(x, "/dev/full") == KILN_IO);
        cr_assert(strstr(kiln_error_message(), "No space"), "%s", kiln_error_message());
    }
}
