/*
 * What a checkpoint says. A value is used only if it is in the bounds of the table below, a tensor only if its dtype and shape follow from
 * the values.
 */
#include "checkpoint.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((format(printf, 2, 3))) static bool wrong(char why[WHY], const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(why, WHY, format, list);
    va_end(list);
    for (char *c = why; *c; c++) /* a file's text could speak to the terminal */
        if (*c < ' ' || *c > '~')
            *c = '?';
    return false;
}

static const struct {
    const char *key;
    size_t at; /* a long of About */
    long least, most;
} about_table[ABOUT] = {{"depth", offsetof(About, depth), 1, MOST_DEPTH},     {"width", offsetof(About, width), 2, MOST_WIDTH},
                        {"heads", offsetof(About, heads), 1, MOST_WIDTH / 2}, {"context", offsetof(About, context), 2, MOST_CONTEXT},
                        {"step", offsetof(About, step), 0, MOST_STEPS},       {"seed", offsetof(About, seed), 0, MOST_STEPS},
                        {"text", offsetof(About, text), 0, LONG_MAX}};

void about_write(const About *about, char text[ABOUT][VALUE], kiln_metadata metadata[ABOUT])
{
    for (int i = 0; i < ABOUT; i++) {
        long value;
        memcpy(&value, (const char *)about + about_table[i].at, sizeof value);
        snprintf(text[i], VALUE, "%ld", value);
        metadata[i] = (kiln_metadata){about_table[i].key, text[i]};
    }
}

bool about_read(const kiln_file *file, About *about, char why[WHY])
{
    for (int i = 0; i < ABOUT; i++) {
        const char *text = kiln_file_metadata_value(file, about_table[i].key);
        char *end;
        if (!text)
            return wrong(why, "it is no model of this program: its metadata do not tell \"%s\"", about_table[i].key);
        errno = 0;
        long value = strtol(text, &end, 10);
        if (errno || end == text || *end || value < about_table[i].least || value > about_table[i].most)
            return wrong(why, "its %s, \"%.20s\", is no whole number from %ld to %ld", about_table[i].key, text, about_table[i].least,
                         about_table[i].most);
        memcpy((char *)about + about_table[i].at, &value, sizeof value);
    }
    if (about->width % (2 * about->heads))
        return wrong(why, "its width, %ld, is no multiple of twice its heads, %ld", about->width, about->heads);
    return true;
}

static const struct {
    const char *name;
    int rows, columns; /* times width; 0: there is no such axis */
    ParamKind kind;
} block_params[BLOCK_PARAMS] = {{"norm1", 0, 1, NORM}, {"qkv", 3, 1, WEIGHT}, {"out", 1, 1, ADDS},
                                {"norm2", 0, 1, NORM}, {"up", 4, 1, WEIGHT},  {"down", 1, 4, ADDS}};

int param_count(const About *about) { return 2 + BLOCK_PARAMS * (int)about->depth; }

Param param_at(const About *about, int i)
{
    Param p = {"embedding", KILN_SHAPE(BYTES, about->width), WEIGHT};
    int block = (i - 2) / BLOCK_PARAMS, k = (i - 2) % BLOCK_PARAMS;
    long rows = i < 2 ? 0 : block_params[k].rows * about->width;
    if (i == 1)
        p = (Param){"norm", KILN_SHAPE(about->width), NORM};
    if (i < 2)
        return p;
    snprintf(p.name, sizeof p.name, "blocks.%d.%s", block, block_params[k].name);
    p.shape = rows ? KILN_SHAPE(rows, block_params[k].columns * about->width) : KILN_SHAPE(about->width);
    p.kind = block_params[k].kind;
    return p;
}

bool params_fit(const kiln_file *file, const About *about, char why[WHY])
{
    for (int i = 0; i < param_count(about); i++) {
        Param p = param_at(about, i);
        int at = kiln_file_find(file, p.name);
        if (at < 0)
            return wrong(why, "tensor \"%s\" is not in it", p.name);
        kiln_file_entry has = kiln_file_info(file, at);
        if (has.dtype != KILN_F32)
            return wrong(why, "tensor \"%s\" is %s; f32 is needed", p.name, kiln_dtype_name(has.dtype));
        if (has.shape.rank != p.shape.rank || memcmp(has.shape.dim, p.shape.dim, sizeof *has.shape.dim * (size_t)p.shape.rank) != 0)
            return wrong(why, "tensor \"%s\" has another shape than its metadata tell", p.name);
    }
    return true;
}

bool curve_read(const kiln_file *file, const About *about, float **curve, long *rows, char why[WHY])
{
    int at = kiln_file_find(file, "curve");
    *curve = NULL;
    *rows = 0;
    if (at < 0)
        return true;
    kiln_file_entry has = kiln_file_info(file, at);
    if (has.dtype != KILN_F32 || has.shape.rank != 2 || has.shape.dim[1] != CURVE || has.shape.dim[0] < 1 || has.shape.dim[0] > about->step)
        return wrong(why, "tensor \"curve\" is no f32 table of %d columns with a row for one step or more of %ld", CURVE, about->step);
    size_t bytes = sizeof **curve * CURVE * (size_t)has.shape.dim[0];
    float *values = malloc(bytes);
    if (!values)
        return wrong(why, "no memory for tensor \"curve\"");
    kiln_scope *scope = kiln_scope_begin();
    bool good = kiln_read(kiln_file_tensor(file, "curve"), KILN_F32, values, bytes) == KILN_OK || wrong(why, "%s", kiln_error_message());
    kiln_scope_end(scope);
    for (int64_t i = 0; good && i < CURVE * has.shape.dim[0]; i++)
        good = isfinite(values[i]) || wrong(why, "tensor \"curve\" has losses that are not finite");
    if (!good) {
        free(values);
        return false;
    }
    *curve = values;
    *rows = (long)has.shape.dim[0];
    return true;
}
