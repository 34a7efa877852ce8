/*
 * An encoder of the BERT family: word, position and type embeddings with a norm, then layers of
 *
 *     x = norm(x + out(attention(query(x), key(x), value(x))))
 *     x = norm(x + down(activation(up(x))))
 *
 * where a line sees its own pieces only, and one vector of each line: the mean of its pieces', the first piece's or the greatest of each element.
 * Lines and pieces are dynamic from the start (kiln_mark_dynamic): one program for batches of any size.
 */
#include "encoder.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sizes as a row of the tables below names them. */
typedef enum Size { NONE, WORDS, POSITIONS, TYPES, WIDTH, INNER } Size;

typedef struct Param {
    const char *name;
    Size rows, columns; /* columns NONE: a vector */
    bool product;       /* a matrix that x is multiplied with, in bf16 if that is asked for */
} Param;

enum { WORD, POSITION, TYPE, NORM, NORM_BIAS };
static const Param embedding_params[EMBEDDING_PARAMS] = {[WORD] = {"word_embeddings.weight", WORDS, WIDTH, false},
                                                         [POSITION] = {"position_embeddings.weight", POSITIONS, WIDTH, false},
                                                         [TYPE] = {"token_type_embeddings.weight", TYPES, WIDTH, false},
                                                         [NORM] = {"LayerNorm.weight", WIDTH, NONE, false},
                                                         [NORM_BIAS] = {"LayerNorm.bias", WIDTH, NONE, false}};

/* The bias of each stands behind it. */
enum { QUERY = 0, KEY = 2, VALUE = 4, OUT = 6, OUT_NORM = 8, UP = 10, DOWN = 12, DOWN_NORM = 14 };
static const Param layer_params[LAYER_PARAMS] = {
    [QUERY] = {"attention.self.query.weight", WIDTH, WIDTH, true},
    [QUERY + 1] = {"attention.self.query.bias", WIDTH, NONE, false},
    [KEY] = {"attention.self.key.weight", WIDTH, WIDTH, true},
    [KEY + 1] = {"attention.self.key.bias", WIDTH, NONE, false},
    [VALUE] = {"attention.self.value.weight", WIDTH, WIDTH, true},
    [VALUE + 1] = {"attention.self.value.bias", WIDTH, NONE, false},
    [OUT] = {"attention.output.dense.weight", WIDTH, WIDTH, true},
    [OUT + 1] = {"attention.output.dense.bias", WIDTH, NONE, false},
    [OUT_NORM] = {"attention.output.LayerNorm.weight", WIDTH, NONE, false},
    [OUT_NORM + 1] = {"attention.output.LayerNorm.bias", WIDTH, NONE, false},
    [UP] = {"intermediate.dense.weight", INNER, WIDTH, true},
    [UP + 1] = {"intermediate.dense.bias", INNER, NONE, false},
    [DOWN] = {"output.dense.weight", WIDTH, INNER, true},
    [DOWN + 1] = {"output.dense.bias", WIDTH, NONE, false},
    [DOWN_NORM] = {"output.LayerNorm.weight", WIDTH, NONE, false},
    [DOWN_NORM + 1] = {"output.LayerNorm.bias", WIDTH, NONE, false},
};

/* ---- the weights ---- */

static bool load_param(const Encoder *e, const kiln_file *file, const Param *row, const char *prefix, kiln_tensor **p, char why[WHY])
{
    const Config *c = &e->config;
    const long size[] = {[WORDS] = c->words, [POSITIONS] = c->positions, [TYPES] = c->types, [WIDTH] = c->width, [INNER] = c->inner};
    char name[160];
    snprintf(name, sizeof name, "bert.%s%s", prefix, row->name);
    int i = kiln_file_find(file, name);
    if (i < 0 && (i = kiln_file_find(file, name + 5)) < 0) {
        snprintf(why, WHY, "it has no tensor %s, with or without \"bert.\" before it, which config.json asks for", name + 5);
        return false;
    }
    kiln_file_entry entry = kiln_file_info(file, i);
    int rank = row->columns == NONE ? 1 : 2;
    bool right = entry.shape.rank == rank && entry.shape.dim[0] == size[row->rows];
    right = right && (rank == 1 || entry.shape.dim[1] == size[row->columns]);
    right = right && (entry.dtype == KILN_F32 || entry.dtype == KILN_F16 || entry.dtype == KILN_BF16 || entry.dtype == KILN_F64);
    if (!right) {
        char wanted[60], is[240] = "";
        size_t used = 0;
        snprintf(wanted, sizeof wanted, rank == 1 ? "[%ld]" : "[%ld,%ld]", size[row->rows], rank == 1 ? 0 : size[row->columns]);
        for (int d = 0; d < entry.shape.rank; d++)
            used += (size_t)snprintf(is + used, sizeof is - used, "%s%" PRId64, d ? "," : "", entry.shape.dim[d]);
        snprintf(why, WHY, "%s is %s[%s]; config.json asks for floats %s", entry.name, kiln_dtype_name(entry.dtype), is, wanted);
        return false;
    }
    kiln_tensor *x = kiln_file_tensor(file, entry.name);
    *p = kiln_cast(x, e->bf16 && row->product ? KILN_BF16 : KILN_F32);
    if (kiln_eval(*p) == KILN_OK)
        return true;
    snprintf(why, WHY, "%s", kiln_error_message());
    return false;
}

static void encode(kiln_tensor **in, kiln_tensor **out, void *user);

bool encoder_load(Encoder *e, const kiln_file *file, char why[WHY])
{
    size_t n = EMBEDDING_PARAMS + LAYER_PARAMS * (size_t)e->config.layers;
    e->p = calloc(n, sizeof(kiln_tensor *));
    e->function = kiln_function_new(encode, 2, 1, e);
    if (!e->p || !e->function) {
        snprintf(why, WHY, "no memory");
        return false;
    }
    for (int i = 0; i < EMBEDDING_PARAMS; i++)
        if (!load_param(e, file, &embedding_params[i], "embeddings.", &e->p[i], why))
            return false;
    for (long layer = 0; layer < e->config.layers; layer++)
        for (int i = 0; i < LAYER_PARAMS; i++) {
            char prefix[60];
            snprintf(prefix, sizeof prefix, "encoder.layer.%ld.", layer);
            if (!load_param(e, file, &layer_params[i], prefix, &e->p[EMBEDDING_PARAMS + layer * LAYER_PARAMS + i], why))
                return false;
        }
    return true;
}

/* ---- the network ---- */

/* p: a matrix and its bias */
static kiln_tensor *linear(const Encoder *e, kiln_tensor *x, kiln_tensor *const *p)
{
    if (!e->bf16)
        return kiln_linear(x, p[0], p[1]);
    return kiln_add(kiln_cast(kiln_matmul(kiln_cast(x, KILN_BF16), kiln_transpose(p[0])), KILN_F32), p[1]);
}

static kiln_tensor *norm(const Encoder *e, kiln_tensor *x, kiln_tensor *const *p) { return kiln_layer_norm(x, p[0], p[1], e->config.eps); }

static kiln_tensor *activate(const Encoder *e, kiln_tensor *x)
{
    switch (e->config.activation) {
    case GELU: return kiln_gelu(x);
    case GELU_TANH: return kiln_gelu_tanh(x);
    case RELU: return kiln_relu(x);
    }
    return NULL;
}

/* x [lines, n, width] -> [lines, heads, n, width / heads] */
static kiln_tensor *split_heads(const Encoder *e, kiln_tensor *x)
{
    const Config *c = &e->config;
    return kiln_permute(kiln_reshape(x, KILN_SHAPE(kiln_dim(x, 0), kiln_dim(x, 1), c->heads, c->width / c->heads)), KILN_AXES(0, 2, 1, 3));
}

static kiln_tensor *attend(const Encoder *e, kiln_tensor *x, kiln_tensor *lengths, kiln_tensor *const *p)
{
    kiln_tensor *q = split_heads(e, linear(e, x, p + QUERY)), *k = split_heads(e, linear(e, x, p + KEY));
    kiln_tensor *v = split_heads(e, linear(e, x, p + VALUE));
    kiln_tensor *y = kiln_attention(q, k, v, &(kiln_attention_options){.lengths = lengths});
    return linear(e, kiln_reshape(kiln_permute(y, KILN_AXES(0, 2, 1, 3)), kiln_shape_of(x)), p + OUT);
}

static kiln_tensor *pool(const Encoder *e, kiln_tensor *x, kiln_tensor *lengths)
{
    if (e->pooling == CLS)
        return kiln_squeeze(kiln_slice_axis(x, 1, 0, 1, 1), KILN_AXES(1));
    kiln_tensor *column = kiln_unsqueeze(lengths, 1);
    kiln_tensor *real = kiln_unsqueeze(kiln_lt(kiln_arange(KILN_I32, 0, (double)kiln_dim(x, 1), 1), column), 2);
    if (e->pooling == MAX)
        return kiln_max_axes(kiln_where(real, x, -INFINITY), KILN_AXES(1), false);
    return kiln_div(kiln_sum_axes(kiln_where(real, x, 0), KILN_AXES(1), false), kiln_cast(column, KILN_F32));
}

/* in: numbers of pieces [lines, n], how many of them count [lines] -> out: vectors [lines, width] */
static void encode(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const Encoder *e = user;
    kiln_tensor *lengths = in[1], *x = kiln_take(e->p[WORD], in[0], 0);
    x = kiln_add(x, kiln_slice_axis(e->p[POSITION], 0, 0, kiln_dim(in[0], 1), 1));
    x = norm(e, kiln_add(x, kiln_slice_axis(e->p[TYPE], 0, 0, 1, 1)), e->p + NORM);
    for (long layer = 0; layer < e->config.layers; layer++) {
        kiln_tensor *const *p = e->p + EMBEDDING_PARAMS + layer * LAYER_PARAMS;
        x = norm(e, kiln_add(x, attend(e, x, lengths, p)), p + OUT_NORM);
        x = norm(e, kiln_add(x, linear(e, activate(e, linear(e, x, p + UP)), p + DOWN)), p + DOWN_NORM);
    }
    x = pool(e, x, lengths);
    if (e->normalize)
        x = kiln_div(x, kiln_maximum(kiln_norm_axes(x, KILN_AXES(1), true), 1e-12));
    out[0] = x;
}

kiln_status encoder_run(Encoder *e, int64_t lines, int64_t most, const int32_t *ids, const int32_t *length, float *vectors)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *in[2] = {kiln_from(KILN_I32, KILN_SHAPE(lines, most), ids), kiln_from(KILN_I32, KILN_SHAPE(lines), length)}, *out;
    kiln_status status = kiln_mark_dynamic(in[0], 0, 1, INT32_MAX);
    if (status == KILN_OK)
        status = kiln_mark_dynamic(in[0], 1, 1, e->config.positions);
    if (status == KILN_OK)
        status = kiln_mark_dynamic(in[1], 0, 1, INT32_MAX);
    if (status == KILN_OK)
        status = kiln_function_call(e->function, in, &out);
    if (status == KILN_OK)
        status = kiln_read(out, KILN_F32, vectors, (size_t)lines * (size_t)e->config.width * sizeof *vectors);
    kiln_scope_end(scope);
    return status;
}

void encoder_free(Encoder *e)
{
    kiln_function_free(e->function);
    free(e->p);
}
