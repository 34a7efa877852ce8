/*
 * embed_model make FOLDER [PREFIX [ACTIVATION]]                 writes a small model of the BERT family, whose weights follow from a fixed seed
 * embed_model check TOKENS VECTORS POOLING NORMALIZE ACTIVATION    the largest difference of VECTORS (.npy) to those that this program computes in
 *                                                               double from TOKENS (what embed --tokens prints); fails beyond 1e-5
 * embed_model same A B                                          of two .npy files; fails beyond 1e-6
 *
 * The reference below is written from the paper alone (Devlin et al. 2018; Vaswani et al. 2017), a line at a time, with nothing of kiln.
 */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 32, LAYERS = 2, HEADS = 4, INNER = 48, POSITIONS = 48, TYPES = 2, HEAD = WIDTH / HEADS };

static const char *const pieces[] = {
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "a",
    "cat",
    "dog",
    "sat",
    "on",
    "mat",
    "un",
    "##aff",
    "##able",
    "##ff",
    "##a",
    "##s",
    "##ing",
    "play",
    "##ed",
    "run",
    "##n",
    "cafe",
    "zurich",
    "uber",
    "re",
    "##sume",
    "naive",
    "ss",
    ",",
    ".",
    "!",
    "?",
    "'",
    "-",
    "$",
    "(",
    ")",
    "[",
    "]",
    "##b",
    "b",
    "c",
    "##c",
    "\xe4\xb8\xad",
    "\xe6\x96\x87",
    "\xe5\xad\x97",
    "\xce\xb1",
    "\xcf\x83",
    "##\xcf\x83",
    "\xe1\x84\x92",
    "##\xe1\x85\xa1",
    "##\xe1\x86\xab",
    "\xd0\xb8",
    "1",
    "##2",
    "##3",
    "\xe2\x82\xac",
    "\xe2\x80\x9c",
    "\xe2\x80\x9d",
    "sep",
    "unk",
    "i",
};
enum { WORDS = sizeof pieces / sizeof *pieces };

typedef struct Param {
    const char *name;
    int rows, columns;    /* columns 0: a vector */
    double middle, width; /* values are middle - width to middle + width */
} Param;

/* In the order of the file; those of layers come once for each. */
static const Param params[] = {
    {"embeddings.word_embeddings.weight", WORDS, WIDTH, 0, 1},
    {"embeddings.position_embeddings.weight", POSITIONS, WIDTH, 0, 0.5},
    {"embeddings.token_type_embeddings.weight", TYPES, WIDTH, 0, 0.5},
    {"embeddings.LayerNorm.weight", WIDTH, 0, 1, 0.3},
    {"embeddings.LayerNorm.bias", WIDTH, 0, 0, 0.3},
    {"attention.self.query.weight", WIDTH, WIDTH, 0, 0.5},
    {"attention.self.query.bias", WIDTH, 0, 0, 0.3},
    {"attention.self.key.weight", WIDTH, WIDTH, 0, 0.5},
    {"attention.self.key.bias", WIDTH, 0, 0, 0.3},
    {"attention.self.value.weight", WIDTH, WIDTH, 0, 0.3},
    {"attention.self.value.bias", WIDTH, 0, 0, 0.3},
    {"attention.output.dense.weight", WIDTH, WIDTH, 0, 0.3},
    {"attention.output.dense.bias", WIDTH, 0, 0, 0.3},
    {"attention.output.LayerNorm.weight", WIDTH, 0, 1, 0.3},
    {"attention.output.LayerNorm.bias", WIDTH, 0, 0, 0.3},
    {"intermediate.dense.weight", INNER, WIDTH, 0, 0.4},
    {"intermediate.dense.bias", INNER, 0, 0, 0.3},
    {"output.dense.weight", WIDTH, INNER, 0, 0.3},
    {"output.dense.bias", WIDTH, 0, 0, 0.3},
    {"output.LayerNorm.weight", WIDTH, 0, 1, 0.3},
    {"output.LayerNorm.bias", WIDTH, 0, 0, 0.3},
};
enum { EMBEDDINGS = 5, OF_LAYER = 16, ALL = EMBEDDINGS + LAYERS * OF_LAYER };

static const Param *row_of(int i) { return &params[i < EMBEDDINGS ? i : EMBEDDINGS + (i - EMBEDDINGS) % OF_LAYER]; }

static size_t count_of(int i) { return (size_t)row_of(i)->rows * (size_t)(row_of(i)->columns ? row_of(i)->columns : 1); }

static float *weights[ALL];

static void make_weights(void)
{
    for (int i = 0; i < ALL; i++) {
        uint64_t state = UINT64_C(0x9e3779b97f4a7c15) * (uint64_t)(i + 1);
        weights[i] = malloc(count_of(i) * sizeof(float));
        for (size_t k = 0; k < count_of(i); k++) { /* Knuth's linear generator, its upper bits */
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            double u = (double)(state >> 40) * 0x1p-24 * 2 - 1;
            weights[i][k] = (float)(row_of(i)->middle + row_of(i)->width * u);
        }
    }
}

/* ---- files ---- */

static FILE *create(const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    if (!f) {
        perror(path);
        exit(2);
    }
    return f;
}

static void make(const char *folder, const char *prefix, const char *activation)
{
    FILE *f = create(folder, "vocab.txt");
    for (int i = 0; i < WORDS; i++)
        fprintf(f, "%s\n", pieces[i]);
    fclose(f);
    f = create(folder, "config.json");
    fprintf(f,
            "{\"model_type\": \"bert\", \"vocab_size\": %d, \"hidden_size\": %d, \"num_hidden_layers\": %d,\n\"num_attention_heads\": %d, "
            "\"intermediate_size\": %d, \"max_position_embeddings\": %d,\n\"type_vocab_size\": %d, \"hidden_act\": \"%s\", "
            "\"layer_norm_eps\": 1e-12}\n",
            WORDS, WIDTH, LAYERS, HEADS, INNER, POSITIONS, TYPES, activation);
    fclose(f);
    static char header[1 << 16];
    size_t used = (size_t)snprintf(header, sizeof header, "{"), at = 0;
    for (int i = 0; i < ALL; i++) {
        char shape[40], layer[60] = "";
        const Param *row = row_of(i);
        snprintf(shape, sizeof shape, row->columns ? "%d,%d" : "%d", row->rows, row->columns);
        if (i >= EMBEDDINGS)
            snprintf(layer, sizeof layer, "encoder.layer.%d.", (i - EMBEDDINGS) / OF_LAYER);
        used += (size_t)snprintf(header + used, sizeof header - used,
                                 "%s\"%s%s%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}", i ? "," : "", prefix, layer,
                                 row->name, shape, at, at + 4 * count_of(i));
        at += 4 * count_of(i);
    }
    header[used++] = '}';
    while (used % 8)
        header[used++] = ' ';
    f = create(folder, "model.safetensors");
    uint64_t length = used; /* little-endian, as this machine is */
    fwrite(&length, 8, 1, f);
    fwrite(header, 1, used, f);
    for (int i = 0; i < ALL; i++)
        fwrite(weights[i], 4, count_of(i), f);
    fclose(f);
}

/* A .npy matrix of f32 in C order, as embed writes it. */
static float *read_npy(const char *path, long *rows, long *columns)
{
    unsigned char begin[10];
    char header[4096];
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(begin, 1, 10, f) : 0, length = n == 10 ? begin[8] + 256u * begin[9] : 0;
    if (n != 10 || length >= sizeof header || fread(header, 1, length, f) != length) {
        fprintf(stderr, "%s: no .npy file\n", path);
        exit(2);
    }
    header[length] = 0;
    const char *shape = strstr(header, "'shape': (");
    if (!strstr(header, "'<f4'") || strstr(header, "'fortran_order': True") || !shape ||
        sscanf(shape + 10, "%ld, %ld", rows, columns) != 2) {
        fprintf(stderr, "%s: no matrix of f32: %s\n", path, header);
        exit(2);
    }
    size_t wanted = (size_t)*rows * (size_t)*columns;
    float *x = malloc(wanted * sizeof *x + 1);
    if (fread(x, sizeof *x, wanted, f) != wanted || fgetc(f) != EOF) {
        fprintf(stderr, "%s: its elements are not as many as its shape says\n", path);
        exit(2);
    }
    fclose(f);
    return x;
}

/* ---- the reference ---- */

typedef double Vector[INNER];

static void normalise(double *x, const float *weight, const float *bias)
{
    double mean = 0, variance = 0;
    for (int i = 0; i < WIDTH; i++)
        mean += x[i] / WIDTH;
    for (int i = 0; i < WIDTH; i++)
        variance += (x[i] - mean) * (x[i] - mean) / WIDTH;
    for (int i = 0; i < WIDTH; i++)
        x[i] = (x[i] - mean) / sqrt(variance + 1e-12) * (double)weight[i] + (double)bias[i];
}

/* y = W x + b, where w[0] is W of `rows` rows, w[1] is b */
static void product(const double *x, float *const *w, int rows, int columns, double *y)
{
    for (int r = 0; r < rows; r++) {
        y[r] = (double)w[1][r];
        for (int c = 0; c < columns; c++)
            y[r] += (double)w[0][r * columns + c] * x[c];
    }
}

static double activated(double x, const char *activation)
{
    if (strcmp(activation, "relu") == 0)
        return x > 0 ? x : 0;
    if (strcmp(activation, "gelu_new") == 0)
        return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    return 0.5 * x * erfc(-x / sqrt(2));
}

static void attention(Vector *q, Vector *k, Vector *v, int n, Vector *y)
{
    double p[POSITIONS];
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < n; i++) {
            double sum = 0;
            for (int j = 0; j < n; j++) {
                double score = 0;
                for (int c = h * HEAD; c < (h + 1) * HEAD; c++)
                    score += q[i][c] * k[j][c];
                sum += p[j] = exp(score / sqrt(HEAD));
            }
            for (int c = h * HEAD; c < (h + 1) * HEAD; c++) {
                y[i][c] = 0;
                for (int j = 0; j < n; j++)
                    y[i][c] += p[j] / sum * v[j][c];
            }
        }
}

static void encode(const int *ids, int n, const char *activation, Vector *x)
{
    static Vector q[POSITIONS], k[POSITIONS], v[POSITIONS], y[POSITIONS];
    double inner[INNER], out[WIDTH];
    for (int i = 0; i < n; i++) {
        for (int c = 0; c < WIDTH; c++)
            x[i][c] = (double)weights[0][ids[i] * WIDTH + c] + (double)weights[1][i * WIDTH + c] + (double)weights[2][c];
        normalise(x[i], weights[3], weights[4]);
    }
    for (int layer = 0; layer < LAYERS; layer++) {
        float *const *w = weights + EMBEDDINGS + layer * OF_LAYER;
        for (int i = 0; i < n; i++) {
            product(x[i], w, WIDTH, WIDTH, q[i]);
            product(x[i], w + 2, WIDTH, WIDTH, k[i]);
            product(x[i], w + 4, WIDTH, WIDTH, v[i]);
        }
        attention(q, k, v, n, y);
        for (int i = 0; i < n; i++) {
            product(y[i], w + 6, WIDTH, WIDTH, out);
            for (int c = 0; c < WIDTH; c++)
                x[i][c] += out[c];
            normalise(x[i], w[8], w[9]);
            product(x[i], w + 10, INNER, WIDTH, inner);
            for (int c = 0; c < INNER; c++)
                inner[c] = activated(inner[c], activation);
            product(inner, w + 12, WIDTH, INNER, out);
            for (int c = 0; c < WIDTH; c++)
                x[i][c] += out[c];
            normalise(x[i], w[14], w[15]);
        }
    }
}

static void pool(Vector *x, int n, const char *pooling, bool length_one, double *y)
{
    double sum = 0;
    for (int c = 0; c < WIDTH; c++) {
        y[c] = x[0][c];
        for (int i = 1; i < n && strcmp(pooling, "cls") != 0; i++)
            y[c] = strcmp(pooling, "max") == 0 ? fmax(y[c], x[i][c]) : y[c] + x[i][c];
        y[c] /= strcmp(pooling, "mean") == 0 ? n : 1;
        sum += y[c] * y[c];
    }
    for (int c = 0; c < WIDTH && length_one; c++)
        y[c] /= sqrt(sum);
}

static int read_ids(char *line, int *ids)
{
    int n = 0;
    for (char *piece = strtok(line, " \n"); piece; piece = strtok(NULL, " \n")) {
        int id = 0;
        while (id < WORDS && strcmp(pieces[id], piece) != 0)
            id++;
        if (id == WORDS || n == POSITIONS) {
            fprintf(stderr, "%s: no such piece, or more than there are positions\n", piece);
            exit(2);
        }
        ids[n++] = id;
    }
    return n;
}

static int check(char **argument)
{
    static Vector x[POSITIONS];
    static char line[1 << 16];
    int ids[POSITIONS];
    double y[WIDTH], most = 0;
    long rows, columns, row = 0;
    FILE *tokens = fopen(argument[0], "rb");
    float *vectors = read_npy(argument[1], &rows, &columns);
    while (tokens && fgets(line, sizeof line, tokens)) {
        int n = read_ids(line, ids);
        encode(ids, n, argument[4], x);
        pool(x, n, argument[2], strcmp(argument[3], "1") == 0, y);
        for (int c = 0; c < WIDTH && row < rows && columns == WIDTH; c++) {
            double d = fabs(y[c] - (double)vectors[row * WIDTH + c]);
            most = d <= most ? most : d; /* a NaN stays */
        }
        row++;
    }
    printf("%ld lines, largest difference %.3g\n", row, most);
    return !(row == rows && columns == WIDTH && row > 0 && most < 1e-5);
}

static int same(char **argument)
{
    long rows[2], columns[2];
    float *a = read_npy(argument[0], &rows[0], &columns[0]), *b = read_npy(argument[1], &rows[1], &columns[1]);
    double most = 0;
    if (rows[0] != rows[1] || columns[0] != columns[1])
        return printf("other shapes\n"), 1;
    for (long i = 0; i < rows[0] * columns[0]; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        most = d <= most ? most : d;
    }
    printf("largest difference %.3g\n", most);
    return !(most < 1e-6);
}

int main(int argc, char **argv)
{
    make_weights();
    if (argc >= 3 && strcmp(argv[1], "make") == 0)
        make(argv[2], argc > 3 ? argv[3] : "", argc > 4 ? argv[4] : "gelu");
    else if (argc == 7 && strcmp(argv[1], "check") == 0)
        return check(argv + 2);
    else if (argc == 4 && strcmp(argv[1], "same") == 0)
        return same(argv + 2);
    else
        return 2;
    for (int i = 0; i < ALL; i++)
        free(weights[i]);
    return 0;
}
