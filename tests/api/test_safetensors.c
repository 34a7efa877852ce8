/* safetensors files: what is saved comes back, what others write is read where it lies, what is malformed is refused and says why. */
#include "api.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[400], path[512];

static void use_folder(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/kiln_safetensors_%ld", tmp ? tmp : "/tmp", (long)getpid());
    cr_assert(mkdir(folder, 0700) == 0);
    snprintf(path, sizeof path, "%s/m.safetensors", folder);
}

static int files_left(bool drop)
{
    int n = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char file[700];
        snprintf(file, sizeof file, "%s/%s", folder, entry->d_name);
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        n++;
        if (drop)
            remove(file);
    }
    closedir(dir);
    return n;
}

static void drop_folder(void)
{
    files_left(true);
    rmdir(folder);
}

TestSuite(safetensors, .init = use_folder, .fini = drop_folder);

static void write_to(const char *file, const void *data, size_t n)
{
    FILE *f = fopen(file, "wb");
    cr_assert(f && fwrite(data, 1, n, f) == n && fclose(f) == 0);
}

/* A file in the folder: the header's text with its length before it, and data. */
static void write_named(const char *name, const char *header, const void *data, size_t bytes)
{
    char file[8192], full[700];
    size_t n = strlen(header);
    for (int i = 0; i < 8; i++)
        file[i] = (char)((uint64_t)n >> 8 * i);
    memcpy(file + 8, header, n);
    if (bytes)
        memcpy(file + 8 + n, data, bytes);
    snprintf(full, sizeof full, "%s/%s", folder, name);
    write_to(full, file, 8 + n + bytes);
}

static void write_file(const char *header, const void *data, size_t bytes) { write_named("m.safetensors", header, data, bytes); }

/* The same with spaces behind the header, so that the data begins at a multiple of 64. */
static void write_aligned(const char *header, const void *data, size_t bytes)
{
    char padded[256];
    size_t n = strlen(header), most = (n + 8 + 63) / 64 * 64 - 8;
    snprintf(padded, sizeof padded, "%-*s", (int)most, header);
    write_file(padded, data, bytes);
}

static kiln_file *opened(void)
{
    kiln_file *f = kiln_load_safetensors(path);
    cr_assert(f, "%s", kiln_error_message());
    return f;
}

/* Loading fails with this status, and its message has the path and the text. */
static void refused(int line, const char *file, kiln_status status, const char *text)
{
    kiln_file *f = kiln_load_safetensors(file);
    cr_assert(!f, "line %d: it was read", line);
    cr_assert(kiln_error_status() == status, "line %d: %s: %s", line, kiln_status_name(kiln_error_status()), kiln_error_message());
    const char *parts[] = {text, strrchr(file, '/') + 1, "kiln_load_safetensors: ", "test_safetensors.c", NULL};
    for (int i = 0; parts[i]; i++)
        cr_assert(strstr(kiln_error_message(), parts[i]), "line %d: \"%s\" is not in: %s", line, parts[i], kiln_error_message());
    kiln_clear_error();
}

static bool same(kiln_tensor *a, kiln_tensor *b)
{
    double equal = 0;
    return kiln_item(kiln_all(kiln_eq(a, b)), &equal) == KILN_OK && equal == 1;
}

static void everything_comes_back(int mode)
{
    begin_mode(mode);
    const kiln_shape shapes[] = {KILN_SHAPE(2, 1, 3), KILN_SHAPE(), KILN_SHAPE(0), KILN_SHAPE(3, 0, 2), KILN_SHAPE(1, 1, 1, 1, 1, 1, 1, 2)};
    enum { SHAPES = sizeof shapes / sizeof *shapes, N = SHAPES * (KILN_F64 + 1) };
    kiln_named all[N];
    char names[N][32];
    for (int i = 0; i < N; i++) {
        kiln_shape shape = shapes[i / (KILN_F64 + 1)];
        int64_t n = 1;
        for (int d = 0; d < shape.rank; d++)
            n *= shape.dim[d];
        snprintf(names[i], sizeof names[i], "tensor.%d", i);
        all[i] = (kiln_named){names[i],
                              kiln_cast(kiln_reshape(kiln_arange(KILN_F32, 0, (double)n, 1), shape), (kiln_dtype)(i % (KILN_F64 + 1)))};
    }
    const kiln_metadata texts[] = {{"format", "kiln"}, {"", "caf\xc3\xa9 \"quoted\" \\ \n"}};
    cr_assert(kiln_save_safetensors(path, N, all, 2, texts) == KILN_OK, "%s", kiln_error_message());
    cr_assert(files_left(false) == 1);
    kiln_file *f = opened();
    cr_assert(kiln_file_count(f) == N);
    cr_assert_str_eq(kiln_file_metadata_value(f, "format"), "kiln");
    cr_assert_str_eq(kiln_file_metadata_value(f, ""), texts[1].value);
    cr_assert_null(kiln_file_metadata_value(f, "more"));
    cr_assert_str_eq(kiln_file_metadata(f, 1).key, "");
    cr_assert_null(kiln_file_metadata(f, 2).key);
    for (int i = 0; i < N; i++) {
        kiln_tensor *x = kiln_file_tensor(f, names[i]);
        same_shape(i, x, (kiln_dtype)(i % (KILN_F64 + 1)), shapes[i / (KILN_F64 + 1)]);
        cr_assert(same(x, all[i].tensor), "%d", i);
        kiln_file_entry entry = kiln_file_info(f, kiln_file_find(f, names[i]));
        cr_assert_str_eq(entry.name, names[i]);
        cr_assert(entry.dtype == kiln_dtype_of(x) && entry.shape.rank == kiln_rank(x));
    }
    kiln_tensor *again[N];
    cr_assert(kiln_file_tensors(f, again) == KILN_OK, "%s", kiln_error_message());
    for (int i = 0; i < N; i++)
        cr_assert(same(again[i], kiln_file_tensor(f, kiln_file_info(f, i).name)));
    kiln_file_free(f);
}

Test(safetensors, every_dtype_and_shape_comes_back) { everything_comes_back(0); }

Test(safetensors, every_dtype_and_shape_comes_back_to_a_device)
{
    if (cuda_driver())
        everything_comes_back(3);
    else
        cr_log_warn("no software CUDA driver in this build: nothing was tested");
}

Test(safetensors, the_bytes_are_the_formats)
{
    static const char header[] = "{\"__metadata__\":{\"a\":\"b\"},\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                                 "\"b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[8,9]}}";
    char got[512];
    kiln_named both[] = {{"b", kiln_full(KILN_U8, KILN_SHAPE(), 7)}, {"w", F32(KILN_SHAPE(2), 1, 2)}};
    cr_assert(kiln_save_safetensors(path, 2, both, 1, &(kiln_metadata){"a", "b"}) == KILN_OK, "%s", kiln_error_message());
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(got, 1, sizeof got, f) : 0;
    cr_assert(f && fclose(f) == 0);
    cr_assert(n == 192 + 9, "%zu", n);
    cr_assert(got[0] == (char)184 && memcmp(got + 1, "\0\0\0\0\0\0", 7) == 0);
    cr_assert(memcmp(got + 8, header, sizeof header - 1) == 0, "%.*s", 184, got + 8);
    for (size_t i = 8 + sizeof header - 1; i < 192; i++)
        cr_assert(got[i] == ' ');
    cr_assert(memcmp(got + 192, (float[]){1, 2}, 8) == 0 && got[200] == 7);
}

Test(safetensors, tensors_lie_in_the_file)
{
    float data[64];
    for (int i = 0; i < 64; i++)
        data[i] = (float)i;
    write_aligned("{\"x\":{\"dtype\":\"F32\",\"shape\":[64],\"data_offsets\":[0,256]}}", data, sizeof data);
    kiln_file *f = opened();
    kiln_stats before = stats_now();
    kiln_tensor *x = kiln_file_tensor(f, "x"), *y = kiln_file_tensor(f, "x");
    cr_assert(kiln_is_evaluated(x));
    kiln_stats after = stats_now();
    cr_assert(after.live_bytes == before.live_bytes, "elements were copied");
    const void *at, *beside;
    cr_assert(kiln_data(x, &at) == KILN_OK && kiln_data(y, &beside) == KILN_OK && at == beside);
    kiln_file_free(f);
    cr_assert(remove(path) == 0);
    cr_assert(same(x, kiln_from(KILN_F32, KILN_SHAPE(64), data)), "the tensor went with its file");
    double first;
    cr_assert(kiln_item(kiln_select(y, 0, 5), &first) == KILN_OK && first == 5);
}

static void step(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    kiln_assign(in[0], kiln_mul(in[0], kiln_scalar(2)));
    out[0] = kiln_sum(in[0]);
}

/* The pages are read-only, so what is computed in its place would be a crash. */
Test(safetensors, a_mapped_tensor_is_never_donated)
{
    float ones[1024];
    for (int i = 0; i < 1024; i++)
        ones[i] = 1;
    write_aligned("{\"x\":{\"dtype\":\"F32\",\"shape\":[1024],\"data_offsets\":[0,4096]}}", ones, sizeof ones);
    kiln_file *f = opened();
    kiln_function *function = kiln_function_new(step, 1, 1, NULL);
    for (int round = 0; round < 4; round++) { /* traced, then replayed; other temporaries go, the mapping stays */
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_file_tensor(f, "x"), *y = kiln_file_tensor(f, "x"), *sum;
        cr_assert(kiln_assign(y, kiln_add(y, kiln_scalar(round))) == KILN_OK && kiln_eval(y) == KILN_OK); /* nobody else means it */
        double total = 0;
        cr_assert(kiln_function_call(function, &x, &sum) == KILN_OK && kiln_item(sum, &total) == KILN_OK && total == 2048, "%g", total);
        cr_assert(kiln_eval(kiln_neg(kiln_file_tensor(f, "x"))) == KILN_OK); /* a value whose only operand nobody else has */
        kiln_scope_end(scope);
    }
    double total = 0;
    cr_assert(kiln_item(kiln_sum(kiln_file_tensor(f, "x")), &total) == KILN_OK && total == 1024);
    kiln_function_free(function);
    kiln_file_free(f);
}

Test(safetensors, what_is_not_aligned_and_odd_bools_are_copied)
{
    char data[13] = {1, 0, 2, (char)255, 1};
    float two[2] = {1.5f, -2};
    memcpy(data + 5, two, 8);
    for (int pad = 0; pad < 8; pad++) { /* each residue of the address */
        char header[256];
        snprintf(header, sizeof header,
                 "{\"t\":{\"dtype\":\"BOOL\",\"shape\":[5],\"data_offsets\":[0,5]},"
                 "\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[5,13]}}%*s",
                 pad, "");
        write_file(header, data, sizeof data);
        kiln_file *f = opened();
        kiln_scope *scope = kiln_scope_begin();
        const void *at;
        kiln_tensor *x = kiln_file_tensor(f, "x");
        cr_assert(kiln_data(x, &at) == KILN_OK && (uintptr_t)at % sizeof(float) == 0, "pad %d", pad);
        EXPECT(x, KILN_F32, KILN_SHAPE(2), 0, 1.5, -2);
        EXPECT(kiln_file_tensor(f, "t"), KILN_BOOL, KILN_SHAPE(5), 0, 1, 0, 1, 1, 1);
        EXPECT(kiln_sum(kiln_file_tensor(f, "t")), KILN_I64, KILN_SHAPE(), 0, 4);
        kiln_scope_end(scope);
        kiln_file_free(f);
    }
}

Test(safetensors, saving_over_what_is_mapped)
{
    kiln_named x = {"x", F32(KILN_SHAPE(3), 1, 2, 3)};
    cr_assert(kiln_save_safetensors(path, 1, &x, 0, NULL) == KILN_OK);
    cr_assert(chmod(path, 0640) == 0);
    kiln_file *f = opened();
    kiln_tensor *old = kiln_file_tensor(f, "x");
    kiln_file_free(f);
    x.tensor = kiln_mul(old, kiln_scalar(10));
    cr_assert(kiln_save_safetensors(path, 1, &x, 0, NULL) == KILN_OK, "%s", kiln_error_message());
    EXPECT(old, KILN_F32, KILN_SHAPE(3), 0, 1, 2, 3);
    f = opened();
    EXPECT(kiln_file_tensor(f, "x"), KILN_F32, KILN_SHAPE(3), 0, 10, 20, 30);
    kiln_file_free(f);
    struct stat info;
    cr_assert(stat(path, &info) == 0 && (info.st_mode & 0777) == 0640, "the mode is %o", info.st_mode);

    char link[700], elsewhere[700]; /* a link stays a link */
    snprintf(link, sizeof link, "%s/link", folder);
    snprintf(elsewhere, sizeof elsewhere, "%s/there", folder);
    cr_assert(rename(path, elsewhere) == 0 && symlink("there", link) == 0);
    x.tensor = F32(KILN_SHAPE(1), 5);
    cr_assert(kiln_save_safetensors(link, 1, &x, 0, NULL) == KILN_OK, "%s", kiln_error_message());
    cr_assert(lstat(link, &info) == 0 && S_ISLNK(info.st_mode) && files_left(false) == 2);
    f = kiln_load_safetensors(elsewhere);
    EXPECT(kiln_file_tensor(f, "x"), KILN_F32, KILN_SHAPE(1), 0, 5);
    kiln_file_free(f);
}

#define T(dtype, shape, offsets) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

Test(safetensors, what_is_malformed)
{
    static const struct {
        const char *header;
        kiln_status status;
        const char *message;
    } rows[] = {
        {"", KILN_BAD_FORMAT, "byte 8: a JSON object is needed"},
        {" {}", KILN_BAD_FORMAT, "begins with {"},
        {"[]", KILN_BAD_FORMAT, "a JSON object is needed"},
        {"{", KILN_BAD_FORMAT, "malformed JSON"},
        {"{} {}", KILN_BAD_FORMAT, "end of file expected"},
        {"{\"a\":[[[[[[[[[[1]]]]]]]]]]}", KILN_BAD_FORMAT, "byte 20: JSON nested deeper than 8"},
        {"{\"a\xff\":1}", KILN_BAD_FORMAT, "byte 11: malformed JSON: unable to decode byte 0xff"},
        {"{\"a\\u0000\":1}", KILN_BAD_FORMAT, "NUL byte in object key"},
        {"{\"a\":" T("F32", "[1]", "[0,4]") ",\"a\":" T("F32", "[1]", "[0,4]") "}", KILN_BAD_FORMAT, "duplicate"},
        {"{\"a\":" T("F32", "[1]", "[0,4]") ",\"\\u0061\":" T("F32", "[1]", "[0,4]") "}", KILN_BAD_FORMAT, "duplicate"},
        {"{\"a\":1}", KILN_BAD_FORMAT, "tensor \"a\": it is no object"},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", KILN_BAD_FORMAT, "\"dtype\" is missing"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", KILN_BAD_FORMAT, "\"shape\" is missing"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", KILN_BAD_FORMAT, "\"data_offsets\" is missing"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":0}}", KILN_BAD_FORMAT, "no key \"x\""},
        {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", KILN_BAD_FORMAT, "\"dtype\" is no string"},
        {"{\"a\":" T("F8_E4M3", "[4]", "[0,4]") "}", KILN_UNSUPPORTED, "tensor \"a\": its dtype is F8_E4M3"},
        {"{\"a\":" T("F8_E5M2", "[4]", "[0,4]") "}", KILN_UNSUPPORTED, "its dtype is F8_E5M2"},
        {"{\"a\":" T("f32", "[1]", "[0,4]") "}", KILN_UNSUPPORTED, "its dtype is \"f32\""},
        {"{\"a\":" T("F\\u001b[2J", "[1]", "[0,4]") "}", KILN_UNSUPPORTED, "its dtype is \"F?[2J\""},
        {"{\"a\":" T("F32", "4", "[0,4]") "}", KILN_BAD_FORMAT, "\"shape\" is no list"},
        {"{\"a\":" T("F32", "[-1]", "[0,4]") "}", KILN_BAD_FORMAT, "dim 0 of its shape"},
        {"{\"a\":" T("F32", "[1.0]", "[0,4]") "}", KILN_BAD_FORMAT, "dim 0 of its shape"},
        {"{\"a\":" T("F32", "[1,\"1\"]", "[0,4]") "}", KILN_BAD_FORMAT, "dim 1 of its shape"},
        {"{\"a\":" T("F32", "[99999999999999999999]", "[0,4]") "}", KILN_BAD_FORMAT, "too big integer"},
        {"{\"a\":" T("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", KILN_UNSUPPORTED, "it has 9 axes"},
        {"{\"a\":" T("F32", "[4611686018427387904]", "[0,4]") "}", KILN_OVERFLOW, "2^62"},
        {"{\"a\":" T("F32", "[4611686018427387905,4]", "[0,4]") "}", KILN_OVERFLOW, "2^62"},
        {"{\"a\":" T("F32", "[2]", "[0,4]") "}", KILN_BAD_FORMAT, "its shape takes 8 bytes, its data_offsets 4"},
        {"{\"a\":" T("F32", "[1]", "[4,0]") "}", KILN_BAD_FORMAT, "before it begins"},
        {"{\"a\":" T("F32", "[1]", "[-4,0]") "}", KILN_BAD_FORMAT, "not two places"},
        {"{\"a\":" T("F32", "[1]", "[0]") "}", KILN_BAD_FORMAT, "not two places"},
        {"{\"a\":" T("F32", "[1]", "[0,4,4]") "}", KILN_BAD_FORMAT, "not two places"},
        {"{\"a\":" T("F32", "[2]", "[0,8]") "}", KILN_BAD_FORMAT, "byte 8 of the data, which has 4"},
        {"{\"a\":" T("F32", "[1]", "[0,9223372036854775807]") "}", KILN_BAD_FORMAT, "of the data, which has 4"},
        {"{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[3]", "[1,4]") "}", KILN_BAD_FORMAT, "inside another tensor's"},
        {"{\"a\":" T("U8", "[1]", "[0,1]") ",\"b\":" T("U8", "[2]", "[2,4]") "}", KILN_BAD_FORMAT, "belong to no tensor"},
        {"{\"a\":" T("U8", "[3]", "[0,3]") "}", KILN_BAD_FORMAT, "1 bytes at the end belong to no tensor"},
        {"{}", KILN_BAD_FORMAT, "4 bytes at the end"},
        {"{\"a\":" T("U8", "[3]", "[1,4]") "}", KILN_BAD_FORMAT, "begins at byte 1, after bytes"},
        {"{\"__metadata__\":7,\"a\":" T("F32", "[1]", "[0,4]") "}", KILN_BAD_FORMAT, "__metadata__ is no object"},
        {"{\"__metadata__\":{\"k\":7},\"a\":" T("F32", "[1]", "[0,4]") "}", KILN_BAD_FORMAT, "__metadata__: \"k\" is no string"},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        write_file(rows[k].header, "data", 4);
        refused((int)k, path, rows[k].status, rows[k].message);
    }
    write_to(path, "1234567", 7);
    refused(__LINE__, path, KILN_BAD_FORMAT, "at least 8 bytes, this one 7");
    write_to(path, "", 0);
    refused(__LINE__, path, KILN_BAD_FORMAT, "at least 8 bytes, this one 0");
    write_to(path, "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
    refused(__LINE__, path, KILN_BAD_FORMAT, "18446744073709551615 bytes, 100000000 are allowed");
    write_to(path, "\x09\0\0\0\0\0\0\0{}", 10);
    refused(__LINE__, path, KILN_BAD_FORMAT, "truncated: the header has 2 of 9 bytes");
    refused(__LINE__, "/nonexistent/x.safetensors", KILN_IO, "No such file");
    cr_assert(!kiln_load_safetensors(folder) && kiln_error_status() == KILN_IO && strstr(kiln_error_message(), "irectory"), "%s",
              kiln_error_message());
    kiln_clear_error();
    char pipe[700];
    snprintf(pipe, sizeof pipe, "%s/pipe", folder);
    cr_assert(mkfifo(pipe, 0600) == 0);
    refused(__LINE__, pipe, KILN_UNSUPPORTED, "a regular file is needed"); /* and nobody waits for a writer */
    cr_assert(!kiln_load_safetensors(NULL) && kiln_error_status() == KILN_INVALID);
    kiln_clear_error();
}

Test(safetensors, what_others_write)
{
    write_file("{}", NULL, 0);
    kiln_file *f = opened();
    cr_assert(kiln_file_count(f) == 0 && !kiln_file_info(f, 0).name && kiln_file_find(f, "x") == -1);
    EXPECT_ERROR(kiln_file_tensor(f, "x\x01"), KILN_INVALID, "no tensor is called \"x?\"", "m.safetensors");
    cr_assert(kiln_file_tensors(f, &(kiln_tensor *){NULL}) == KILN_OK);
    kiln_file_free(f);
    /* any order, empty tensors anywhere, unusual names, space at the end */
    write_file("{\"\":" T("U8", "[2]", "[2,4]") ",\"../a/b\":" T("F64", "[0,7]", "[2,2]") ",\"\xe2\x82\xac\":" T(
                   "I16", "[]", "[0,2]") ",\"z\":" T("F32", "[3,0]", "[4,4]") "} \n\t ",
               "\x01\x02\x03\x04", 4);
    f = opened();
    EXPECT(kiln_file_tensor(f, ""), KILN_U8, KILN_SHAPE(2), 0, 3, 4);
    EXPECT(kiln_file_tensor(f, "\xe2\x82\xac"), KILN_I16, KILN_SHAPE(), 0, 513);
    EXPECT_EMPTY(kiln_file_tensor(f, "../a/b"), KILN_F64, KILN_SHAPE(0, 7));
    EXPECT_EMPTY(kiln_file_tensor(f, "z"), KILN_F32, KILN_SHAPE(3, 0));
    cr_assert_str_eq(kiln_file_info(f, 0).name, "");
    cr_assert_str_eq(kiln_file_info(f, 3).name, "z");
    EXPECT_ERROR(kiln_file_tensor(NULL, "x"), KILN_INVALID, "from is NULL");
    EXPECT_ERROR(kiln_file_tensor(f, NULL), KILN_INVALID, "name is NULL");
    kiln_file_free(f);
    kiln_file_free(NULL);
    cr_assert(kiln_file_count(NULL) == -1 && kiln_file_info(NULL, 0).shape.rank == -1 && !kiln_file_metadata(NULL, 0).key);
}

Test(safetensors, truncated_anywhere_and_flipped_anywhere)
{
    char whole[512], copy[512];
    kiln_named both[] = {{"b", kiln_full(KILN_I16, KILN_SHAPE(3), 7)}, {"w", F32(KILN_SHAPE(2), 1, 2)}};
    cr_assert(kiln_save_safetensors(path, 2, both, 0, NULL) == KILN_OK);
    FILE *in = fopen(path, "rb");
    size_t n = in ? fread(whole, 1, sizeof whole, in) : 0;
    cr_assert(n > 100 && n < 300 && fclose(in) == 0);
    for (size_t cut = 0; cut < n; cut++) {
        write_to(path, whole, cut);
        refused((int)cut, path, KILN_BAD_FORMAT, "");
    }
    for (size_t bit = 0; bit < 8 * n; bit++) { /* never a crash; a changed name or number may still be a file */
        memcpy(copy, whole, n);
        copy[bit / 8] = (char)(copy[bit / 8] ^ (1 << bit % 8));
        write_to(path, copy, n);
        kiln_scope *scope = kiln_scope_begin();
        kiln_file *f = kiln_load_safetensors(path);
        kiln_tensor *all[2];
        cr_assert(f || kiln_error_status() != KILN_OK);
        if (f)
            cr_assert(kiln_file_count(f) == 2 && kiln_file_tensors(f, all) == KILN_OK && kiln_eval_many(all, 2) == KILN_OK);
        kiln_file_free(f);
        kiln_clear_error();
        kiln_scope_end(scope);
    }
}

static void write_index(const char *text)
{
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    write_to(path, text, strlen(text));
}

Test(safetensors, models_in_several_files)
{
    write_named("one.safetensors", "{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[1]", "[2,3]") "}", "\1\2\3", 3);
    write_named("two.safetensors", "{\"a\":" T("U8", "[1]", "[0,1]") ",\"c\":" T("U8", "[1]", "[1,2]") "}", "\4\5", 2);
    write_index("{\"metadata\":{\"total_size\":5,\"more\":[{}]},\"weight_map\":{\"c\":\"two.safetensors\",\"a\":\"one.safetensors\"}}\n");
    kiln_file *f = opened();
    cr_assert(kiln_file_count(f) == 2 && kiln_file_find(f, "b") == -1 && kiln_file_find(f, "c") == 0);
    EXPECT(kiln_file_tensor(f, "a"), KILN_U8, KILN_SHAPE(2), 0, 1, 2);
    EXPECT(kiln_file_tensor(f, "c"), KILN_U8, KILN_SHAPE(1), 0, 5);
    kiln_file_free(f);
    static const struct {
        const char *text;
        kiln_status status;
        const char *message;
    } rows[] = {
        {"{\"weight_map\":{\"a\":\"../m.safetensors\"}}", KILN_BAD_FORMAT, "tensor \"a\": \"../m.safetensors\" is not the name of a file"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", KILN_BAD_FORMAT, "is not the name of a file"},
        {"{\"weight_map\":{\"a\":\"x\\\\y\"}}", KILN_BAD_FORMAT, "is not the name of a file"},
        {"{\"weight_map\":{\"a\":\"..\"}}", KILN_BAD_FORMAT, "is not the name of a file"},
        {"{\"weight_map\":{\"a\":\"\"}}", KILN_BAD_FORMAT, "is not the name of a file"},
        {"{\"weight_map\":{\"a\":7}}", KILN_BAD_FORMAT, "what is given is not the name of a file"},
        {"{\"weight_map\":[]}", KILN_BAD_FORMAT, "no weight_map"},
        {"{}", KILN_BAD_FORMAT, "no weight_map"},
        {"", KILN_BAD_FORMAT, "a JSON object is needed"},
        {"{\"weight_map\":{\"c\":\"one.safetensors\"}}", KILN_BAD_FORMAT, "tensor \"c\" is not in"},
        {"{\"weight_map\":{\"a\":\"one.safetensors\",\"a\":\"two.safetensors\"}}", KILN_BAD_FORMAT, "duplicate"},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        write_index(rows[k].text);
        refused((int)k, path, rows[k].status, rows[k].message);
    }
    write_index("{\"weight_map\":{\"a\":\"three.safetensors\"}}");
    cr_assert(!kiln_load_safetensors(path) && kiln_error_status() == KILN_IO && strstr(kiln_error_message(), "three.safetensors: No such"),
              "%s", kiln_error_message());
    kiln_clear_error();
    write_named("three.safetensors", "{\"a\":" T("U8", "[2]", "[0,2]") "}", "\1", 1);
    cr_assert(!kiln_load_safetensors(path) && kiln_error_status() == KILN_BAD_FORMAT, "%s", kiln_error_message());
    cr_assert(strstr(kiln_error_message(), "three.safetensors: tensor \"a\""), "%s", kiln_error_message());
    kiln_clear_error();
}

static void fails(int line, kiln_status got, kiln_status want, const char *text)
{
    cr_assert(got == want, "line %d: %s: %s", line, kiln_status_name(got), kiln_error_message());
    cr_assert(strstr(kiln_error_message(), text) && strstr(kiln_error_message(), "kiln_save_safetensors: "), "line %d: %s", line,
              kiln_error_message());
}

Test(safetensors, saving_fails_clearly)
{
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(2));
    kiln_named two[] = {{"a", x}, {"a", x}}, bad = {"\xc3(", x}, meta = {"__metadata__", x}, none = {"n", NULL}, nameless = {NULL, x};
    kiln_metadata same_key[] = {{"k", "v"}, {"k", "w"}}, odd = {"k", "\xff"}, half = {"k", NULL};
    fails(__LINE__, kiln_save_safetensors(path, 2, two, 0, NULL), KILN_INVALID, "two tensors are called \"a\"");
    fails(__LINE__, kiln_save_safetensors(path, 1, &bad, 0, NULL), KILN_INVALID, "not UTF-8");
    fails(__LINE__, kiln_save_safetensors(path, 1, &meta, 0, NULL), KILN_INVALID, "keeps for itself");
    fails(__LINE__, kiln_save_safetensors(path, 1, &none, 0, NULL), KILN_INVALID, "tensor 0 is NULL");
    fails(__LINE__, kiln_save_safetensors(path, 1, &nameless, 0, NULL), KILN_INVALID, "the name of tensor 0 is NULL");
    fails(__LINE__, kiln_save_safetensors(path, -1, two, 0, NULL), KILN_INVALID, "-1 tensors");
    fails(__LINE__, kiln_save_safetensors(path, 1, NULL, 0, NULL), KILN_INVALID, "list of 1 tensors is NULL");
    fails(__LINE__, kiln_save_safetensors(path, 1, two, 2, same_key), KILN_INVALID, "two metadata are called \"k\"");
    fails(__LINE__, kiln_save_safetensors(path, 1, two, 1, &odd), KILN_INVALID, "not UTF-8");
    fails(__LINE__, kiln_save_safetensors(path, 1, two, 1, &half), KILN_INVALID, "the value of metadata 0 is NULL");
    fails(__LINE__, kiln_save_safetensors(path, 1, two, 1, NULL), KILN_INVALID, "list of 1 metadata is NULL");
    fails(__LINE__, kiln_save_safetensors(NULL, 1, two, 0, NULL), KILN_INVALID, "path is NULL");
    fails(__LINE__, kiln_save_safetensors("/nonexistent/x", 1, two, 0, NULL), KILN_IO, "/nonexistent/x: No such file");
    fails(__LINE__, kiln_save_safetensors(folder, 1, two, 0, NULL), KILN_IO, "irectory");
    cr_assert(files_left(false) == 0, "a file that failed is there");
    if (access("/dev/full", W_OK) == 0)
        fails(__LINE__, kiln_save_safetensors("/dev/full", 1, two, 0, NULL), KILN_IO, "No space");
    cr_assert(kiln_save_safetensors(path, 0, NULL, 0, NULL) == KILN_OK);
    kiln_file *empty = opened();
    cr_assert_eq(kiln_file_count(empty), 0);
    kiln_file_free(empty);
}
