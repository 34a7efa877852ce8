/* .npz files: what is saved comes back, stored and deflated; archives that lie about themselves are refused and say why. */
#include "api.h"

#include <stdio.h>
#include <unistd.h>

static char path[512];

static void use_file(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/kiln_test_%ld.npz", tmp ? tmp : "/tmp", (long)getpid());
}

static void drop_file(void) { remove(path); }

TestSuite(npz, .init = use_file, .fini = drop_file);

static void write_bytes(const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    cr_assert(f && fwrite(data, 1, n, f) == n && fclose(f) == 0);
}

static size_t read_bytes(unsigned char *data, size_t most)
{
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(data, 1, most, f) : 0;
    cr_assert(f && fclose(f) == 0);
    return n;
}

static bool same(kiln_tensor *a, kiln_tensor *b)
{
    double equal = 0;
    return kiln_item(kiln_all(kiln_eq(a, b)), &equal) == KILN_OK && equal == 1;
}

static kiln_file *opened(void)
{
    kiln_file *f = kiln_load_npz(path);
    cr_assert(f, "%s", kiln_error_message());
    return f;
}

static void everything_comes_back(int mode)
{
    static const kiln_dtype dtypes[] = {KILN_BOOL, KILN_I8,  KILN_I16, KILN_I32, KILN_I64, KILN_U8,
                                        KILN_U16,  KILN_U32, KILN_U64, KILN_F16, KILN_F32, KILN_F64};
    const kiln_shape shapes[] = {KILN_SHAPE(2, 1, 3), KILN_SHAPE(), KILN_SHAPE(0), KILN_SHAPE(300, 40)};
    enum { DTYPES = sizeof dtypes / sizeof *dtypes, N = DTYPES * 4 };
    kiln_named all[N];
    char names[N][32];
    begin_mode(mode);
    for (int i = 0; i < N; i++) {
        kiln_shape shape = shapes[i / DTYPES];
        int64_t n = 1;
        for (int d = 0; d < shape.rank; d++)
            n *= shape.dim[d];
        snprintf(names[i], sizeof names[i], "layer/%d \xe2\x82\xac", i);
        all[i] = (kiln_named){names[i], kiln_cast(kiln_reshape(kiln_arange(KILN_F32, 0, (double)n, 1), shape), dtypes[i % DTYPES])};
    }
    for (int compressed = 0; compressed < 2; compressed++) {
        cr_assert(kiln_save_npz(path, N, all, compressed) == KILN_OK, "%s", kiln_error_message());
        kiln_file *f = opened();
        cr_assert(kiln_file_count(f) == N && !kiln_file_metadata(f, 0).key);
        kiln_tensor *loaded[N];
        cr_assert(kiln_file_tensors(f, loaded) == KILN_OK, "%s", kiln_error_message());
        for (int i = 0; i < N; i++) {
            int at = kiln_file_find(f, names[i]);
            cr_assert(at >= 0, "%s", names[i]);
            same_shape(i, loaded[at], dtypes[i % DTYPES], shapes[i / DTYPES]);
            cr_assert(kiln_file_info(f, at).dtype == dtypes[i % DTYPES]);
            cr_assert(same(loaded[at], all[i].tensor), "%d", i);
        }
        kiln_file_free(f);
    }
}

Test(npz, every_dtype_and_shape_comes_back) { everything_comes_back(0); }

Test(npz, every_dtype_and_shape_comes_back_to_a_device)
{
    if (cuda_driver())
        everything_comes_back(3);
    else
        cr_log_warn("no software CUDA driver in this build: nothing was tested");
}

Test(npz, deflated_is_smaller_and_the_same_bytes_each_time)
{
    static unsigned char first[70000], second[70000];
    kiln_named x = {"x", kiln_zeros(KILN_F32, KILN_SHAPE(4096))};
    cr_assert(kiln_save_npz(path, 1, &x, false) == KILN_OK);
    size_t stored = read_bytes(first, sizeof first);
    cr_assert(stored > 4096 * 4 && stored < 4096 * 4 + 600);
    cr_assert(kiln_save_npz(path, 1, &x, true) == KILN_OK);
    size_t n = read_bytes(first, sizeof first);
    cr_assert(n < 1000, "%zu", n);
    sleep(2); /* the resolution of a zip archive's times */
    cr_assert(kiln_save_npz(path, 1, &x, true) == KILN_OK && read_bytes(second, sizeof second) == n && memcmp(first, second, n) == 0);
}

/* ---- archives made by hand ---- */

typedef struct Member {
    const char *name;
    const void *data;
    size_t bytes;
    int method, flags;    /* as both headers have them */
    int packed, unpacked; /* sizes that they tell besides the true ones */
    uint32_t wrong_sum;
    int offset; /* of the local header, as the directory has it, besides the true one */
} Member;

static size_t put(unsigned char *at, int bytes, uint64_t value)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> 8 * i);
    return (size_t)bytes;
}

static uint32_t checksum(const unsigned char *data, size_t n)
{
    uint32_t sum = ~0u;
    for (size_t i = 0; i < n; i++) {
        sum ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            sum = sum >> 1 ^ (sum & 1 ? 0xedb88320u : 0);
    }
    return ~sum;
}

/* What both headers say. */
static size_t put_common(unsigned char *at, const Member *m)
{
    size_t n = put(at, 2, 20);
    n += put(at + n, 2, (uint64_t)m->flags);
    n += put(at + n, 2, (uint64_t)m->method);
    n += put(at + n, 4, 0x00210000);
    n += put(at + n, 4, checksum(m->data, m->bytes) ^ m->wrong_sum);
    n += put(at + n, 4, (uint32_t)((int)m->bytes + m->packed));
    n += put(at + n, 4, (uint32_t)((int)m->bytes + m->unpacked));
    n += put(at + n, 2, strlen(m->name));
    return n + put(at + n, 2, 0);
}

static size_t archive(unsigned char *to, const Member *members, int count)
{
    size_t n = 0, local[8], directory;
    for (int i = 0; i < count; i++) {
        local[i] = n;
        n += put(to + n, 4, 0x04034b50);
        n += put_common(to + n, &members[i]);
        memcpy(to + n, members[i].name, strlen(members[i].name));
        n += strlen(members[i].name);
        memcpy(to + n, members[i].data, members[i].bytes);
        n += members[i].bytes;
    }
    directory = n;
    for (int i = 0; i < count; i++) {
        n += put(to + n, 4, 0x02014b50);
        n += put(to + n, 2, 20);
        n += put_common(to + n, &members[i]);
        n += put(to + n, 2, 0);
        n += put(to + n, 2, 0);
        n += put(to + n, 2, 0);
        n += put(to + n, 4, 0);
        n += put(to + n, 4, (uint32_t)((int)local[i] + members[i].offset));
        memcpy(to + n, members[i].name, strlen(members[i].name));
        n += strlen(members[i].name);
    }
    size_t size = n - directory;
    n += put(to + n, 4, 0x06054b50);
    n += put(to + n, 4, 0);
    n += put(to + n, 2, (uint64_t)count);
    n += put(to + n, 2, (uint64_t)count);
    n += put(to + n, 4, size);
    n += put(to + n, 4, directory);
    return n + put(to + n, 2, 0);
}

/* An .npy file of two bytes. */
static const char two[] = "\x93NUMPY\x01\x00\x37\x00{'descr': '|u1', 'fortran_order': False, 'shape': (2,)}\x01\x02";
enum { TWO = sizeof two - 1 };

static void write_archive(const Member *members, int count)
{
    unsigned char bytes[4096];
    write_bytes(bytes, archive(bytes, members, count));
}

static void refused(int line, kiln_status status, const char *text)
{
    kiln_file *f = kiln_load_npz(path);
    cr_assert(!f, "line %d: it was read", line);
    cr_assert(kiln_error_status() == status, "line %d: %s: %s", line, kiln_status_name(kiln_error_status()), kiln_error_message());
    const char *parts[] = {text, strrchr(path, '/') + 1, "kiln_load_npz: ", "test_npz.c", NULL};
    for (int i = 0; parts[i]; i++)
        cr_assert(strstr(kiln_error_message(), parts[i]), "line %d: \"%s\" is not in: %s", line, parts[i], kiln_error_message());
    kiln_clear_error();
}

Test(npz, what_others_write)
{
    const Member members[] = {
        {"b.npy", two, .bytes = TWO, .method = 0}, {"notes.txt", "hello", .bytes = 5}, {"a.b/c.npy", two, .bytes = TWO, .method = 0}};
    write_archive(members, 3);
    kiln_file *f = opened();
    cr_assert(kiln_file_count(f) == 2 && strcmp(kiln_file_info(f, 0).name, "b") == 0 && strcmp(kiln_file_info(f, 1).name, "a.b/c") == 0);
    EXPECT(kiln_file_tensor(f, "a.b/c"), KILN_U8, KILN_SHAPE(2), 0, 1, 2);
    EXPECT_ERROR(kiln_file_tensor(f, "notes.txt"), KILN_INVALID, "no tensor is called \"notes.txt\"");
    kiln_file_free(f);
    write_archive(members, 0);
    f = opened();
    cr_assert(kiln_file_count(f) == 0);
    kiln_file_free(f);
    cr_assert(kiln_save_npz(path, 0, NULL, false) == KILN_OK && kiln_file_count(f = opened()) == 0);
    kiln_file_free(f);
}

Test(npz, what_is_malformed)
{
    static const char big[] = "\x93NUMPY\x01\x00\x46\x00{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}   ";
    static const struct {
        Member members[2];
        int count;
        kiln_status status;
        const char *message;
    } rows[] = {
        {{{"../x.npy", two, .bytes = TWO}}, 1, KILN_BAD_FORMAT, "member \"../x.npy\": its name leads out"},
        {{{"/x.npy", two, .bytes = TWO}}, 1, KILN_BAD_FORMAT, "leads out"},
        {{{"a/../../x.npy", two, .bytes = TWO}}, 1, KILN_BAD_FORMAT, "leads out"},
        {{{"a\\x.npy", two, .bytes = TWO}}, 1, KILN_BAD_FORMAT, "leads out"},
        {{{"\xff.npy", two, .bytes = TWO}}, 1, KILN_BAD_FORMAT, "not UTF-8"},
        {{{"x.npy", two, .bytes = TWO, .flags = 1}}, 1, KILN_UNSUPPORTED, "encrypted"},
        {{{"x.npy", two, .bytes = TWO, .method = 12}}, 1, KILN_UNSUPPORTED, "compressed by method 12"},
        {{{"x.npy", two, .bytes = TWO, .unpacked = 1}}, 1, KILN_BAD_FORMAT, "cannot be"},
        {{{"x.npy", two, .bytes = TWO, .method = 8, .unpacked = 1 << 30}}, 1, KILN_BAD_FORMAT, "cannot be"},
        {{{"x.npy", two, .bytes = TWO, .packed = 5000, .unpacked = 5000}}, 1, KILN_BAD_FORMAT, "cannot be"},
        {{{"x.npy", two, .bytes = TWO, .packed = 50, .unpacked = 50}}, 1, KILN_BAD_FORMAT, "50 bytes follow the array"},
        {{{"x.npy", two, .bytes = TWO - 1}}, 1, KILN_BAD_FORMAT, "truncated: the data has 1 of 2 bytes"},
        {{{"x.npy", two, .bytes = 20}}, 1, KILN_BAD_FORMAT, "truncated: the header"},
        {{{"x.npy", "nothing", .bytes = 7}}, 1, KILN_BAD_FORMAT, "truncated: the start"},
        {{{"x.npy", "nothing of NumPy", .bytes = 16}}, 1, KILN_BAD_FORMAT, "not an .npy file"},
        {{{"x.npy", big, .bytes = sizeof big - 1}}, 1, KILN_BAD_FORMAT, "truncated: the data has 0 of 8000000000000 bytes"},
        {{{"x.npy", "\x07 nothing that inflates", .bytes = 23, .method = 8}}, 1, KILN_BAD_FORMAT, "cannot be inflated"},
        {{{"x.npy", two, .bytes = TWO, .offset = 1}}, 1, KILN_BAD_FORMAT, "its two headers differ"},
        {{{"x.npy", two, .bytes = TWO, .offset = 1 << 20}}, 1, KILN_BAD_FORMAT, "its two headers differ, or it lies outside"},
        {{{"x.npy", two, .bytes = TWO}, {"x.npy", two, .bytes = TWO}}, 2, KILN_BAD_FORMAT, "two tensors are called \"x\""},
        {{{"x.npy", two, .bytes = TWO}, {"y.npy", two, .bytes = TWO, .offset = -(30 + 5 + TWO)}},
         2,
         KILN_BAD_FORMAT,
         "two members overlap"},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        write_archive(rows[k].members, rows[k].count);
        refused((int)k, rows[k].status, rows[k].message);
    }
    write_bytes("\x93NUMPY", 6);
    refused(__LINE__, KILN_BAD_FORMAT, "not an .npz file");
    write_bytes("", 0);
    refused(__LINE__, KILN_BAD_FORMAT, "not an .npz file");
    EXPECT_ERROR((kiln_load_npz("/nonexistent/x.npz"), (kiln_tensor *)NULL), KILN_IO, "/nonexistent/x.npz: No such file");
}

Test(npz, a_wrong_checksum_is_found_when_it_is_read)
{
    const Member members[] = {{"x.npy", two, .bytes = TWO, .wrong_sum = 1}, {"y.npy", two, .bytes = TWO}};
    write_archive(members, 2);
    kiln_file *f = opened();
    kiln_tensor *both[2];
    EXPECT_ERROR(kiln_file_tensor(f, "x"), KILN_BAD_FORMAT, "member \"x\": its checksum is wrong");
    EXPECT(kiln_file_tensor(f, "y"), KILN_U8, KILN_SHAPE(2), 0, 1, 2);
    cr_assert(kiln_file_tensors(f, both) == KILN_BAD_FORMAT && !both[0] && !both[1], "half of it is there");
    kiln_file_free(f);
    kiln_clear_error();
}

Test(npz, truncated_anywhere_and_flipped_anywhere)
{
    static unsigned char whole[4096], copy[4096];
    for (int compressed = 0; compressed < 2; compressed++) {
        kiln_named both[] = {{"b", kiln_arange(KILN_I16, 0, 40, 1)}, {"w", F32(KILN_SHAPE(2), 1, 2)}};
        cr_assert(kiln_save_npz(path, 2, both, compressed) == KILN_OK);
        size_t n = read_bytes(whole, sizeof whole);
        cr_assert(n > 300 && n < 1000);
        for (size_t cut = 0; cut < n; cut++) {
            write_bytes(whole, cut);
            refused((int)cut, KILN_BAD_FORMAT, "");
        }
        for (size_t bit = 0; bit < 8 * n; bit += 7) { /* one or two of each byte, each in turn */
            memcpy(copy, whole, n);
            copy[bit / 8] = (unsigned char)(copy[bit / 8] ^ (1 << bit % 8));
            write_bytes(copy, n);
            kiln_scope *scope = kiln_scope_begin();
            kiln_file *f = kiln_load_npz(path);
            cr_assert(f || kiln_error_status() != KILN_OK);
            for (int i = 0; i < kiln_file_count(f); i++) { /* the elements are right, or they are not there */
                const char *name = kiln_file_info(f, i).name;
                kiln_tensor *x = kiln_file_tensor(f, name);
                int k = strcmp(name, "b") == 0 ? 0 : strcmp(name, "w") == 0 ? 1 : -1;
                const void *at, *want;
                if (!x || k < 0 || kiln_dtype_of(x) != kiln_dtype_of(both[k].tensor) || kiln_numel(x) != kiln_numel(both[k].tensor))
                    continue;
                cr_assert(kiln_data(x, &at) == KILN_OK && kiln_data(both[k].tensor, &want) == KILN_OK);
                cr_assert(memcmp(at, want, k ? 2 * sizeof(float) : 40 * sizeof(int16_t)) == 0, "bit %zu", bit);
            }
            kiln_file_free(f);
            kiln_clear_error();
            kiln_scope_end(scope);
        }
    }
}

static void fails(int line, kiln_status got, kiln_status want, const char *text)
{
    cr_assert(got == want, "line %d: %s: %s", line, kiln_status_name(got), kiln_error_message());
    cr_assert(strstr(kiln_error_message(), text) && strstr(kiln_error_message(), "kiln_save_npz: "), "line %d: %s", line,
              kiln_error_message());
}

Test(npz, saving_fails_clearly)
{
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(2));
    static const char *const names[] = {"", "/x", "../x", "a/../x", "a\\x", ".."};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        fails((int)i, kiln_save_npz(path, 1, &(kiln_named){names[i], x}, false), KILN_INVALID, "cannot be a file's name");
    char name[2000];
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = '\0';
    fails(__LINE__, kiln_save_npz(path, 1, &(kiln_named){name, x}, false), KILN_INVALID, "cannot be a file's name");
    kiln_named two_names[] = {{"a", x}, {"a", x}}, half = {"h", kiln_cast(x, KILN_BF16)}, odd = {"\xff", x};
    fails(__LINE__, kiln_save_npz(path, 2, two_names, false), KILN_INVALID, "two tensors are called \"a\"");
    fails(__LINE__, kiln_save_npz(path, 1, &odd, false), KILN_INVALID, "not UTF-8");
    fails(__LINE__, kiln_save_npz(path, 1, &half, false), KILN_UNSUPPORTED, "\"h\": NumPy has no bf16: kiln_save_safetensors keeps it");
    fails(__LINE__, kiln_save_npz("/nonexistent/x", 1, &(kiln_named){"a", x}, true), KILN_IO, "/nonexistent/x: No such file");
    cr_assert(access(path, F_OK) != 0, "a file that failed is there");
    if (access("/dev/full", W_OK) == 0)
        fails(__LINE__, kiln_save_npz("/dev/full", 1, &(kiln_named){"a", x}, true), KILN_IO, "No space");
}
