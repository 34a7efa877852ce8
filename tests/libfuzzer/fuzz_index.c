/*
 * Bytes as the index of a model in several files, beside two such files, in a folder below one that must not be reached: it is taken or
 * refused with a message, and what is taken is tensors of those two.
 */
#include "target.h"

#include "kiln.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char folder[400];
static int accepted;

static void put(const char *name, const void *bytes, size_t n)
{
    char path[500];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    REQUIRE(f && fwrite(bytes, 1, n, f) == n && fclose(f) == 0, "%s", path);
}

static void drop(void)
{
    static const char *const names[] = {"one.safetensors", "two.safetensors", "i.json", ""};
    char path[500];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        remove(path);
    }
}

static void set_up(void)
{
    static const char one[] = "\x3a\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}     \1\2";
    static const char two[] = "\x3a\0\0\0\0\0\0\0{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}     \3";
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/kiln_index_XXXXXX", tmp ? tmp : "/tmp");
    REQUIRE(mkdtemp(folder), "%s", folder);
    atexit(drop);
    put("one.safetensors", one, sizeof one - 1);
    put("two.safetensors", two, sizeof two - 1);
    REQUIRE(kiln_set_option("mode", "interp") == KILN_OK, "%s", kiln_error_message());
    static const char good[] = "{\"weight_map\":{\"b\":\"two.safetensors\",\"a\":\"one.safetensors\"}}";
    LLVMFuzzerTestOneInput((const uint8_t *)good, sizeof good - 1);
    REQUIRE(accepted == 1, "a good index is refused");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    char path[500];
    if (!*folder)
        set_up();
    put("i.json", bytes, n);
    snprintf(path, sizeof path, "%s/i.json", folder);
    kiln_scope *scope = kiln_scope_begin();
    kiln_file *f = kiln_load_safetensors(path);
    for (int i = 0; i < kiln_file_count(f); i++) {
        const char *name = kiln_file_info(f, i).name;
        const void *at;
        REQUIRE(strcmp(name, "a") == 0 || strcmp(name, "b") == 0, "%s", name);
        REQUIRE(kiln_data(kiln_file_tensor(f, name), &at) == KILN_OK, "%s", kiln_error_message());
        REQUIRE(*(const uint8_t *)at == (*name == 'a' ? 1 : 3), "other bytes");
    }
    accepted += f != NULL;
    if (!f) {
        REQUIRE(strncmp(kiln_error_message(), "kiln_load_safetensors: ", 23) == 0, "message: %s", kiln_error_message());
        kiln_clear_error();
    }
    kiln_file_free(f);
    kiln_scope_end(scope);
    return 0;
}
