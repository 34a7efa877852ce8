/*
 * Sentence vectors from a model of the BERT family as it lies on disk: a folder with config.json, model.safetensors and vocab.txt.
 *
 *     embed MODEL [FILE] -o vectors.npy
 *     embed MODEL [FILE] --query "what is looked for"
 *
 * Lines become numbers of pieces (embed/tokens.c), are sorted by length and go in batches through the encoder (embed/encoder.c), one kiln_function
 * for batches of every size; what the JSON files say of it is checked in embed/config.c. Vectors come in the order of the lines.
 */
#include <kiln.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char program[] = "embed";
#include "arguments.h"
#include "embed/encoder.h"
#include "files.h"
#include "progress.h"

static const char help[] =
    "usage: embed MODEL [FILE] [options]\n"
    "one vector for each line of FILE, or of standard input, from the model of the BERT family in the folder MODEL\n"
    "  -o FILE          writes the vectors as .npy, f32 [lines, width]\n"
    "  --query TEXT     prints the lines, those that are most similar to TEXT first, with the cosine of the angle between both\n"
    "  --similar        prints each line with that of it and the line before\n"
    "  --tokens         prints the pieces of each line; the weights are not read\n"
    "  --pooling KIND   mean, cls or max (what the model's folder says, else mean)\n"
    "  --normalize      vectors of length 1 (what the model's folder says, else as they are)\n"
    "  --no-normalize   as they are, whatever the model's folder says\n"
    "  --max-length N   pieces of a line that count, with its two marks (what the model's folder says)\n"
    "  --batch N        lines at once, at most (32)\n"
    "  --bf16           products in bf16\n"
    "  --stats          tells lines, pieces, programs and rate on standard error\n"
    "  --help           this\n";

typedef struct Job {
    const char *model, *file, *out, *query, *pooling;
    bool similar, tokens, normalize, as_they_are, bf16, stats;
    long batch, most; /* most: pieces of a line; 0: not said */
    Encoder encoder;
    Vocabulary *vocabulary;
    Rules rules;
    /* of all lines, the query behind them */
    char **line;
    size_t *length, *first; /* bytes; the first of its pieces, the next one's first behind the last */
    size_t lines, room;
    Tokens pieces;
    float *vectors;
} Job;

/* What is wrong with a file, which ends the program. */
static void stop(const char *path, const char *why)
{
    fprintf(stderr, "embed: %s: %s\n", path, why);
    exit(1);
}

static void *need(void *memory)
{
    if (!memory)
        stop("lines", "no memory for them; give fewer lines at once");
    return memory;
}

/* ---- the model's folder ---- */

static void path_in(const Job *job, const char *folder, const char *name, char path[4096])
{
    int n = snprintf(path, 4096, "%s/%s%s%s", job->model, folder, *folder ? "/" : "", name);
    if (n >= 4096)
        refuse(job->model, "the path is too long");
}

/* A file of the folder, whole; NULL: there is none, and it need not be. */
static char *read_whole(const Job *job, const char *folder, const char *name, bool needed, size_t *n)
{
    enum { LARGEST = 1 << 28 };
    char path[4096], why[200];
    path_in(job, folder, name, path);
    FILE *file = fopen(path, "rb");
    if (!file && errno == ENOENT && !needed)
        return NULL;
    size_t room = 1 << 16;
    char *text = need(malloc(room));
    *n = 0;
    for (size_t got = 1; file && got && *n <= LARGEST;) {
        got = fread(text + *n, 1, room - *n, file);
        *n += got;
        if (*n == room)
            text = need(realloc(text, room *= 2));
    }
    if (!file || ferror(file)) {
        snprintf(why, sizeof why, "%s; the folder of a model with config.json, model.safetensors and vocab.txt is needed", strerror(errno));
        stop(path, why);
    }
    if (*n > LARGEST)
        stop(path, "it is larger than any such file; is it the right one?");
    fclose(file);
    return text;
}

/* A parser's answer on a file. */
static void accept(const Job *job, const char *folder, const char *name, char *text, bool good, const char *why)
{
    char path[4096];
    path_in(job, folder, name, path);
    if (!good)
        stop(path, why);
    free(text);
}

static void read_settings(Job *job)
{
    Encoder *e = &job->encoder;
    char why[WHY], folder[FOLDER] = "", *text;
    size_t n;
    text = read_whole(job, "", "config.json", true, &n);
    accept(job, "", "config.json", text, config_parse(text, n, &e->config, why), why);
    job->rules = usual_rules;
    if ((text = read_whole(job, "", "tokenizer_config.json", false, &n)))
        accept(job, "", "tokenizer_config.json", text, rules_parse(text, n, &job->rules, why), why);
    long most = e->config.positions;
    if ((text = read_whole(job, "", "sentence_bert_config.json", false, &n)))
        accept(job, "", "sentence_bert_config.json", text, limit_parse(text, n, &most, why), why);
    if (job->most > e->config.positions) {
        snprintf(why, sizeof why, "the model has %ld positions", e->config.positions);
        refuse("--max-length", why);
    }
    job->most = job->most ? job->most : most < e->config.positions ? most : e->config.positions;
    if ((text = read_whole(job, "", "modules.json", false, &n)))
        accept(job, "", "modules.json", text, modules_parse(text, n, folder, &e->normalize, why), why);
    e->normalize = (e->normalize || job->normalize) && !job->as_they_are;
    e->bf16 = job->bf16;
    if (job->pooling) {
        while (pooling_names[e->pooling] && strcmp(pooling_names[e->pooling], job->pooling) != 0)
            e->pooling++;
        if (!pooling_names[e->pooling])
            refuse("--pooling", "mean, cls or max is needed");
    } else if (*folder) {
        text = read_whole(job, folder, "config.json", true, &n);
        accept(job, folder, "config.json", text, pooling_parse(text, n, &e->pooling, why), why);
    }
    text = read_whole(job, "", "vocab.txt", true, &n);
    job->vocabulary = vocabulary_parse(text, n, why);
    if (job->vocabulary && vocabulary_count(job->vocabulary) > e->config.words)
        snprintf(why, sizeof why, "it has %d pieces, config.json says %ld (\"vocab_size\"); do they belong together?",
                 (int)vocabulary_count(job->vocabulary), e->config.words);
    accept(job, "", "vocab.txt", text, job->vocabulary && vocabulary_count(job->vocabulary) <= e->config.words, why);
}

static void read_weights(Job *job)
{
    char path[4096], why[WHY];
    path_in(job, "", "model.safetensors", path);
    if (access(path, F_OK) != 0) { /* a large model, in several files */
        path_in(job, "", "model.safetensors.index.json", path);
        if (access(path, F_OK) != 0)
            path_in(job, "", "model.safetensors", path);
    }
    kiln_file *file = kiln_load_safetensors(path);
    if (!file) {
        fprintf(stderr, "embed: %s\n", kiln_error_message());
        exit(1);
    }
    if (!encoder_load(&job->encoder, file, why))
        stop(path, why);
    kiln_file_free(file);
}

/* ---- lines ---- */

static void add_line(Job *job, const char *text, size_t length)
{
    if (job->lines + 1 >= job->room) {
        job->room = job->room ? 2 * job->room : 1024;
        job->line = need(realloc(job->line, job->room * sizeof *job->line));
        job->length = need(realloc(job->length, job->room * sizeof *job->length));
        job->first = need(realloc(job->first, job->room * sizeof *job->first));
    }
    job->line[job->lines] = memcpy(need(malloc(length + 1)), text, length);
    job->length[job->lines++] = length;
}

static void read_lines(Job *job)
{
    FILE *file = job->file ? fopen(job->file, "rb") : stdin;
    char *text = NULL;
    size_t room = 0;
    ssize_t n;
    while (file && (n = getline(&text, &room, file)) >= 0) {
        n -= n > 0 && text[n - 1] == '\n';
        n -= n > 0 && text[n - 1] == '\r';
        add_line(job, text, (size_t)n);
    }
    if (!file || ferror(file))
        stop(job->file ? job->file : "standard input", strerror(errno));
    free(text);
    if (job->file)
        fclose(file);
    if (job->query)
        add_line(job, job->query, strlen(job->query));
}

static void cut_into_pieces(Job *job)
{
    size_t cuts = 0;
    for (size_t i = 0; i < job->lines; i++) {
        bool cut;
        job->first[i] = job->pieces.n;
        if (!tokenize(job->vocabulary, &job->rules, job->line[i], job->length[i], (size_t)job->most, &job->pieces, &cut))
            need(NULL);
        cuts += cut;
    }
    if (job->lines)
        job->first[job->lines] = job->pieces.n;
    if (cuts)
        fprintf(stderr, "embed: %zu of %zu lines have more than %ld pieces and were cut\n", cuts, job->lines, job->most);
}

/* ---- vectors ---- */

typedef struct Place {
    size_t line, pieces;
} Place;

static int longer(const void *a, const void *b)
{
    const Place *x = a, *y = b;
    return x->pieces != y->pieces ? (x->pieces < y->pieces) - (x->pieces > y->pieces) : (x->line > y->line) - (x->line < y->line);
}

/* Lines of about the same length together, the longest first: what does not fit into memory is known at once. */
static void make_vectors(Job *job)
{
    size_t width = (size_t)job->encoder.config.width, most = (size_t)job->batch, done = 0;
    Place *order = need(calloc(job->lines + 1, sizeof *order));
    for (size_t i = 0; i < job->lines; i++)
        order[i] = (Place){i, job->first[i + 1] - job->first[i]};
    qsort(order, job->lines, sizeof *order, longer);
    most = most < job->lines ? most : job->lines;
    size_t longest = job->lines ? order[0].pieces : 0;
    job->vectors = need(calloc(job->lines * width + 1, sizeof *job->vectors));
    float *part = need(calloc(most * width + 1, sizeof *part));
    int32_t *ids = need(calloc(most * longest + 1, sizeof *ids)), *length = need(calloc(most + 1, sizeof *length));
    long batches = most ? (long)((job->lines + most - 1) / most) : 0, at = 0;
    double began = seconds();
    Progress progress = progress_begin(batches);
    while (done < job->lines) {
        size_t n = job->lines - done < most ? job->lines - done : most, columns = order[done].pieces;
        memset(ids, 0, n * columns * sizeof *ids);
        for (size_t i = 0; i < n; i++) {
            length[i] = (int32_t)order[done + i].pieces;
            memcpy(ids + i * columns, job->pieces.id + job->first[order[done + i].line], order[done + i].pieces * sizeof *ids);
        }
        kiln_check(encoder_run(&job->encoder, (int64_t)n, (int64_t)columns, ids, length, part));
        for (size_t i = 0; i < n; i++)
            memcpy(job->vectors + order[done + i].line * width, part + i * width, width * sizeof *part);
        done += n;
        progress_show(&progress, ++at, "lines/s", (double)job->lines / (double)batches);
    }
    progress_end(&progress);
    if (job->stats) {
        kiln_stats stats;
        kiln_get_stats(&stats);
        fprintf(stderr, "%zu lines, %zu pieces, %ld batches, %lld programs compiled in %.2f s, %.1f lines/s\n", job->lines, job->pieces.n,
                batches, (long long)stats.compiles, stats.compile_seconds,
                (double)job->lines / fmax(seconds() - began - stats.compile_seconds, 1e-9));
    }
    free(order);
    free(part);
    free(ids);
    free(length);
}

/* ---- what is printed ---- */

static double cosine(const Job *job, size_t a, size_t b)
{
    size_t width = (size_t)job->encoder.config.width;
    const float *x = job->vectors + a * width, *y = job->vectors + b * width;
    double xy = 0, xx = 0, yy = 0;
    for (size_t i = 0; i < width; i++) {
        xy += (double)x[i] * (double)y[i];
        xx += (double)x[i] * (double)x[i];
        yy += (double)y[i] * (double)y[i];
    }
    return xy / fmax(sqrt(xx) * sqrt(yy), 1e-300);
}

static void print_line(const Job *job, size_t i)
{
    fwrite(job->line[i], 1, job->length[i], stdout);
    putchar('\n');
}

typedef struct Found {
    size_t line;
    double score;
} Found;

static int closer(const void *a, const void *b)
{
    const Found *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score) - (x->score > y->score) : (x->line > y->line) - (x->line < y->line);
}

static void print_found(const Job *job, size_t lines)
{
    Found *found = need(calloc(lines + 1, sizeof *found));
    for (size_t i = 0; i < lines; i++)
        found[i] = (Found){i, cosine(job, i, lines)};
    qsort(found, lines, sizeof *found, closer);
    for (size_t i = 0; i < lines; i++) {
        printf("%.4f\t", found[i].score);
        print_line(job, found[i].line);
    }
    free(found);
}

static void print_pieces(const Job *job)
{
    for (size_t i = 0; i < job->lines; i++)
        for (size_t k = job->first[i]; k < job->first[i + 1]; k++) {
            size_t length;
            const char *piece = vocabulary_piece(job->vocabulary, job->pieces.id[k], &length);
            fwrite(piece, 1, length, stdout);
            putchar(k + 1 < job->first[i + 1] ? ' ' : '\n');
        }
}

static void answer(Job *job)
{
    size_t lines = job->lines - (job->query != NULL);
    for (size_t i = 0; job->similar && i < lines; i++) {
        if (i)
            printf("%.4f\t", cosine(job, i - 1, i));
        else
            printf("-\t");
        print_line(job, i);
    }
    if (job->query)
        print_found(job, lines);
    if (!job->out)
        return;
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE((int64_t)lines, job->encoder.config.width), job->vectors);
    if (kiln_save_npy(x, job->out) != KILN_OK) {
        fprintf(stderr, "embed: %s\n", kiln_error_message());
        exit(1);
    }
}

/* ---- all of it ---- */

static void read_options(Job *job, int argc, char **argv)
{
    const Known known[] = {{"-o", .text = &job->out},
                           {"--query", .text = &job->query},
                           {"--pooling", .text = &job->pooling},
                           {"--similar", .flag = &job->similar},
                           {"--tokens", .flag = &job->tokens},
                           {"--normalize", .flag = &job->normalize},
                           {"--no-normalize", .flag = &job->as_they_are},
                           {"--bf16", .flag = &job->bf16},
                           {"--stats", .flag = &job->stats},
                           {"--max-length", &job->most, 2, 1 << 20, .text = NULL},
                           {"--batch", &job->batch, 1, 1 << 20, .text = NULL}};
    help_if_asked(help, argc, argv);
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-' && argv[i][1])
            take_option(known, sizeof known / sizeof *known, argc, argv, &i);
        else if (job->file)
            refuse(argv[i], "there is a file already; one is read");
        else
            *(job->model ? &job->file : &job->model) = argv[i];
    }
    if (!job->model)
        refuse(NULL, "name the folder of a model");
    if (!job->out && !job->query && !job->similar && !job->tokens)
        refuse(NULL, "say what is wanted: -o FILE, --query TEXT, --similar or --tokens");
    if (job->normalize && job->as_they_are)
        refuse("--normalize", "it was said with --no-normalize; say one");
    if (job->file && strcmp(job->file, "-") == 0)
        job->file = NULL;
    if (job->out)
        check_writable("-o", job->out);
}

int main(int argc, char **argv)
{
    static Job job = {.batch = 32};
    read_options(&job, argc, argv);
    kiln_scope *scope = kiln_scope_begin();
    read_settings(&job);
    if (!job.tokens)
        read_weights(&job);
    read_lines(&job);
    cut_into_pieces(&job);
    if (job.tokens) {
        print_pieces(&job);
    } else {
        make_vectors(&job);
        answer(&job);
    }
    if (fflush(stdout) != 0)
        stop("standard output", strerror(errno));
    for (size_t i = 0; i < job.lines; i++)
        free(job.line[i]);
    free(job.line);
    free(job.length);
    free(job.first);
    free(job.pieces.id);
    free(job.vectors);
    vocabulary_free(job.vocabulary);
    encoder_free(&job.encoder);
    kiln_scope_end(scope);
    return 0;
}
