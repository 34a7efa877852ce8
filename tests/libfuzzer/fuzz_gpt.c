/*
 * Bytes as a checkpoint of examples/gpt: what is believed of it is in bounds and no larger than the file, what is not is refused with a
 * message that a terminal may be shown. Metadata that were believed are the same when they are written and read again.
 */
#include "tests/libfuzzer/file.h"

#include "examples/gpt/checkpoint.h"

#include <math.h>

/* A reader's answer. */
static bool taken(bool good, const char why[WHY])
{
    REQUIRE(good || (*why && memchr(why, 0, WHY)), "refused without a word");
    for (const char *c = why; !good && *c; c++)
        REQUIRE(*c >= ' ' && *c <= '~', "%d in a message", *c);
    return good;
}

static void same_again(const About *about, const File *out)
{
    char text[ABOUT][VALUE], why[WHY] = "";
    kiln_metadata metadata[ABOUT];
    About again;
    about_write(about, text, metadata);
    REQUIRE(kiln_save_safetensors(out->path, 0, NULL, ABOUT, metadata) == KILN_OK, "%s", kiln_error_message());
    kiln_file *file = kiln_load_safetensors(out->path);
    REQUIRE(file && about_read(file, &again, why) && memcmp(about, &again, sizeof again) == 0, "%s", file ? why : kiln_error_message());
    REQUIRE(!params_fit(file, &again, why), "parameters from nowhere");
    kiln_file_free(file);
}

static void read_all(const kiln_file *file, size_t n, const File *out)
{
    About about;
    char why[WHY] = "";
    float *curve;
    long rows;
    if (!taken(about_read(file, &about, why), why))
        return;
    REQUIRE(about.depth > 0 && about.depth <= MOST_DEPTH && about.width > 1 && about.width <= MOST_WIDTH && about.heads > 0 &&
                about.width % (2 * about.heads) == 0 && about.context > 1 && about.context <= MOST_CONTEXT && about.step >= 0 &&
                about.step <= MOST_STEPS && about.seed >= 0 && about.seed <= MOST_STEPS && about.text >= 0,
            "out of bounds");
    same_again(&about, out);
    if (!taken(params_fit(file, &about, why), why))
        return;
    size_t elements = 0;
    for (int i = 0; i < param_count(&about); i++) {
        Param p = param_at(&about, i);
        kiln_tensor *x = kiln_file_tensor(file, p.name);
        REQUIRE(x && kiln_numel(x) > 0 && kiln_dtype_of(x) == KILN_F32, "%s: %s", p.name, kiln_error_message());
        elements += (size_t)kiln_numel(x);
    }
    REQUIRE(elements * sizeof(float) < n, "%zu elements of %zu bytes", elements, n);
    if (!taken(curve_read(file, &about, &curve, &rows, why), why))
        return;
    REQUIRE(rows >= 0 && rows <= about.step && (size_t)rows * CURVE * sizeof *curve < n && (rows > 0) == (curve != NULL), "%ld rows", rows);
    for (long i = 0; i < CURVE * rows; i++)
        REQUIRE(isfinite(curve[i]), "row %ld", i / CURVE);
    free(curve);
}

static bool take(const File *in, const File *out, size_t n)
{
    kiln_file *f = kiln_load_safetensors(in->path);
    if (!f)
        return false;
    read_all(f, n, out);
    kiln_file_free(f);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) { return fuzz_file(bytes, n, "kiln_load_safetensors: ", take); }
