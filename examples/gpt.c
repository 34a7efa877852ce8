/*
 * A small language model over bytes: trains on any text, and writes on.
 *
 *     gpt train FILE... [options]
 *     gpt sample MODEL [options]
 *
 * The network is a transformer (Vaswani et al. 2017) with norms before each part (RMS norm; Zhang and Sennrich 2019), rotary positions (Su et al.
 * 2021), GELU, and an output layer that shares its weights with the embedding. A step, from bytes to the update, is a kiln_function: one
 * program, which overwrites parameters and state in place. Sampling keeps keys and values of what was read in a cache of fixed size: one
 * program reads a prompt, one adds a byte, whatever the length. What a step draws follows from the seed and its number, so a run that is
 * resumed gives the bits of one that was not stopped.
 *
 * Under mpirun -n N each process trains on its part of the batch, with the mean of all gradients: the same run as one process has, but for
 * the order of sums. The first one writes.
 */
#include <kiln.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char program[] = "gpt";
#include "arguments.h"
#include "files.h"
#include "gpt/checkpoint.h"
#include "progress.h"
#include "random.h"

enum { MOST_SAVED = 3 * MOST_PARAMS + 2, VALIDATION_BATCHES = 8, NOT_SAID = -1 };

/* ---- the network ---- */

typedef struct Model {
    long depth, width, heads, context;
    double dropout;
    int n;                                              /* parameters */
    kiln_tensor *p[MOST_PARAMS];                        /* f32, as param_at tells */
    char name[MOST_PARAMS][NAME];                       /* in files */
    kiln_tensor *keys[MOST_DEPTH], *values[MOST_DEPTH]; /* the cache, [1, heads, context, width / heads]; NULL: there is none */
} Model;

/* Random weights; those that add to the stream of a block are smaller, the more blocks there are (Radford et al. 2019). */
static void make_params(Model *m)
{
    const About network = {.depth = m->depth, .width = m->width};
    const double deviation[] = {[WEIGHT] = 0.02, [ADDS] = 0.02 / sqrt(2.0 * (double)m->depth)};
    m->n = param_count(&network);
    for (int i = 0; i < m->n; i++) {
        Param p = param_at(&network, i);
        memcpy(m->name[i], p.name, NAME);
        m->p[i] = kiln_param(p.kind == NORM ? kiln_ones(KILN_F32, p.shape) : kiln_normal(KILN_F32, p.shape, 0, deviation[p.kind]));
    }
}

static kiln_tensor *linear(kiln_tensor *x, kiln_tensor *weight) { return kiln_matmul(x, kiln_transpose(weight)); }

static kiln_tensor *drop(const Model *m, kiln_tensor *x) { return m->dropout > 0 ? kiln_dropout(x, m->dropout) : x; }

/* x [batch, n, width] -> [batch, heads, n, d] */
static kiln_tensor *split_heads(const Model *m, kiln_tensor *x)
{
    return kiln_permute(kiln_reshape(x, KILN_SHAPE(kiln_dim(x, 0), kiln_dim(x, 1), m->heads, m->width / m->heads)), KILN_AXES(0, 2, 1, 3));
}

/* Attention of one block. at: the place of the first byte, rank 0; with a cache, keys and values go into it. */
static kiln_tensor *attend(Model *m, long b, kiln_tensor *x, kiln_tensor *angles, kiln_tensor *at)
{
    kiln_tensor *const *p = m->p + 2 + b * BLOCK_PARAMS, *part[3];
    int64_t batch = kiln_dim(x, 0), n = kiln_dim(x, 1);
    if (kiln_split(linear(kiln_rms_norm(x, p[0], 1e-5), p[1]), -1, 3, NULL, part) != KILN_OK)
        return NULL;
    kiln_tensor *q = kiln_rotary(split_heads(m, part[0]), angles, false), *k = kiln_rotary(split_heads(m, part[1]), angles, false);
    kiln_tensor *v = split_heads(m, part[2]);
    kiln_attention_options options = {.causal = true};
    if (m->keys[b] && n == 1) { /* one more byte: it sees all that was read */
        kiln_tensor *place = kiln_reshape(at, KILN_SHAPE(1));
        k = kiln_scatter(m->keys[b], place, k, 2, KILN_SCATTER_SET);
        v = kiln_scatter(m->values[b], place, v, 2, KILN_SCATTER_SET);
        options = (kiln_attention_options){.lengths = kiln_add(at, 1)};
    }
    if (m->keys[b]) {
        (void)kiln_assign(m->keys[b], k);
        (void)kiln_assign(m->values[b], v);
    }
    kiln_tensor *y = kiln_permute(kiln_attention(q, k, v, &options), KILN_AXES(0, 2, 1, 3));
    return drop(m, linear(kiln_reshape(y, KILN_SHAPE(batch, n, m->width)), p[2]));
}

/* Bytes [batch, n], of which the first stands at `at` -> the stream after the last norm, [batch, n, width]. */
static kiln_tensor *forward(Model *m, kiln_tensor *bytes, kiln_tensor *at)
{
    long d = m->width / m->heads;
    kiln_tensor *frequency = kiln_pow(kiln_scalar(10000), kiln_mul(kiln_arange(KILN_F32, 0, (double)d, 2), -1.0 / (double)d));
    kiln_tensor *places = kiln_add(kiln_arange(KILN_F32, 0, (double)kiln_dim(bytes, 1), 1), kiln_cast(at, KILN_F32));
    kiln_tensor *angles = kiln_outer(places, frequency), *x = drop(m, kiln_take(m->p[0], bytes, 0));
    for (long b = 0; b < m->depth; b++) {
        kiln_tensor *const *p = m->p + 2 + b * BLOCK_PARAMS;
        x = kiln_add(x, attend(m, b, x, angles, at));
        x = kiln_add(x, drop(m, linear(kiln_gelu_tanh(linear(kiln_rms_norm(x, p[3], 1e-5), p[4])), p[5])));
    }
    return kiln_rms_norm(x, m->p[1], 1e-5);
}

static kiln_tensor *logits_of(const Model *m, kiln_tensor *x) { return linear(x, m->p[0]); }

/* ---- files ---- */

typedef struct Run {
    long step, seed, batch; /* step: how many were made */
    long text;              /* a hash of the bytes to learn from */
    float *curve;           /* rows of step, loss, validation loss */
    long rows;
} Run;

static int everything(const Model *m, const kiln_optimizer *optimizer, kiln_named *all)
{
    int n = 0;
    for (; n < m->n; n++)
        all[n] = (kiln_named){m->name[n], m->p[n]};
    for (int i = 0; optimizer && (all[n].tensor = kiln_optimizer_state(optimizer, i, &all[n].name)); i++)
        n++;
    return n;
}

static void save(const Model *m, const kiln_optimizer *optimizer, const Run *run, const char *path)
{
    kiln_named all[MOST_SAVED];
    char text[ABOUT][VALUE];
    kiln_metadata metadata[ABOUT];
    const About about = {m->depth, m->width, m->heads, m->context, run->step, run->seed, run->text};
    kiln_scope *scope = kiln_scope_begin();
    about_write(&about, text, metadata);
    int n = everything(m, optimizer, all);
    if (run->rows)
        all[n++] = (kiln_named){"curve", kiln_from(KILN_F32, KILN_SHAPE(run->rows, CURVE), run->curve)};
    kiln_check(kiln_save_safetensors(path, n, all, ABOUT, metadata));
    kiln_scope_end(scope);
}

static kiln_file *open_model(Model *m, const char *path, About *about)
{
    char why[WHY];
    kiln_file *file = kiln_load_safetensors(path);
    if (!file) {
        fprintf(stderr, "gpt: %s\n", kiln_error_message());
        exit(1);
    }
    if (!about_read(file, about, why) || !params_fit(file, about, why))
        refuse(path, why);
    m->depth = about->depth;
    m->width = about->width;
    m->heads = about->heads;
    m->context = about->context;
    return file;
}

/* Parameters, and the optimiser's state where there is one. */
static void load_all(const Model *m, const kiln_optimizer *optimizer, const kiln_file *file, const char *path)
{
    kiln_named all[MOST_SAVED];
    int n = everything(m, optimizer, all);
    kiln_scope *scope = kiln_scope_begin();
    for (int i = 0; i < n; i++) {
        kiln_tensor *x = kiln_file_tensor(file, all[i].name);
        if (!x || kiln_assign(all[i].tensor, x) != KILN_OK) {
            fprintf(stderr, "gpt: %s: %s; it is no model of this program\n", path, kiln_error_message());
            exit(1);
        }
    }
    kiln_scope_end(scope);
}

static unsigned char *read_text(char **paths, int n, size_t *length)
{
    size_t room = 1 << 16;
    unsigned char *text = malloc(room);
    *length = 0;
    for (int i = 0; i < n; i++) {
        FILE *file = fopen(paths[i], "rb");
        size_t got = 1;
        while (file && text && got) {
            got = fread(text + *length, 1, room - *length, file);
            *length += got;
            if (*length == room)
                text = realloc(text, room *= 2);
        }
        if (!file || ferror(file))
            refuse(paths[i], strerror(errno));
        fclose(file);
    }
    if (!text)
        refuse("text", "no memory");
    return text;
}

/* FNV-1a (Fowler, Noll, Vo), without the sign. */
static long hash(const unsigned char *text, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ text[i]) * 0x100000001b3u;
    return (long)(h >> 1);
}

/* ---- training ---- */

typedef struct Training {
    Model model;
    kiln_tensor *g[MOST_PARAMS];
    kiln_optimizer *optimizer;
    Run run;
    kiln_group *world;
    int rank, ranks;
    unsigned char *text;
    size_t train, length; /* bytes to learn from; the rest validates */
    long steps, stop, warmup, every;
    double rate, clip;
    bool bf16;
    const char *save, *svg;
} Training;

/* in: bytes [batch, context + 1] -> out: the mean of -log p(next byte) */
static void loss_of(kiln_tensor **in, kiln_tensor **out, void *user)
{
    Training *t = user;
    long n = t->model.context;
    kiln_mode *low = t->bf16 ? kiln_autocast_push(KILN_BF16) : NULL; /* of products, and so of their gradients */
    kiln_tensor *x = forward(&t->model, kiln_slice_axis(in[0], 1, 0, n, 1), kiln_scalar(0));
    out[0] = kiln_mean(kiln_cross_entropy(logits_of(&t->model, x), kiln_slice_axis(in[0], 1, 1, n + 1, 1)));
    kiln_check(kiln_mode_pop(low));
}

/* The same, of all ranks, with in[1], the learning rate, and an update; out[1]: the norm of all gradients before they are clipped. */
static void step(kiln_tensor **in, kiln_tensor **out, void *user)
{
    Training *t = user;
    loss_of(in, out, user);
    if (kiln_grad(out[0], t->model.p, t->model.n, t->g) == KILN_OK && kiln_parallel_gradients(t->world, t->g, t->model.n) == KILN_OK &&
        kiln_clip_by_global_norm(t->g, t->model.n, t->clip, t->g, &out[1]) == KILN_OK)
        (void)kiln_optimizer_step(t->optimizer, t->g, in[1]); /* an error that is kept fails the call */
    out[0] = kiln_all_reduce(t->world, out[0], KILN_REDUCE_MEAN);
}

/* Of pieces from random places of text[from, to) one part. */
static kiln_tensor *make_batch(const Training *t, uint64_t random, size_t from, size_t to, int part, int parts)
{
    size_t n = (size_t)t->model.context + 1, rows = (size_t)t->run.batch / (size_t)parts;
    uint8_t *bytes = malloc(rows * n);
    if (!bytes)
        refuse("--batch", "no memory");
    for (size_t r = 0; r < rows * (size_t)part; r++)
        (void)draw(&random);
    for (size_t r = 0; r < rows; r++)
        memcpy(bytes + r * n, t->text + from + draw(&random) % (to - from - n + 1), n);
    kiln_tensor *x = kiln_cast(kiln_from(KILN_U8, KILN_SHAPE((int64_t)rows, (int64_t)n), bytes), KILN_I32);
    free(bytes);
    return x;
}

static double rate_at(const Training *t, long at)
{
    if (at < t->warmup)
        return t->rate * (double)(at + 1) / (double)t->warmup;
    double along = (double)(at - t->warmup) / (double)(t->steps - t->warmup > 0 ? t->steps - t->warmup : 1);
    return t->rate * (0.1 + 0.9 * 0.5 * (1 + cos(3.14159265358979 * fmin(along, 1))));
}

static double validate(Training *t, kiln_function *loss)
{
    double sum = 0, one, dropout = t->model.dropout;
    for (int i = 0; i < VALIDATION_BATCHES; i++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *in = make_batch(t, UINT64_C(0x5eed) + (uint64_t)i, t->train, t->length, 0, 1), *out;
        t->model.dropout = 0;
        kiln_check(kiln_function_call(loss, &in, &out));
        kiln_check(kiln_item(out, &one));
        t->model.dropout = dropout;
        sum += one;
        kiln_scope_end(scope);
    }
    return sum / VALIDATION_BATCHES;
}

static void write_curve(const Training *t)
{
    const Run *r = &t->run;
    FILE *file = fopen(t->svg, "w");
    float most = 0;
    for (long i = 0; i < r->rows; i++)
        most = fmaxf(most, fmaxf(r->curve[CURVE * i + 1], r->curve[CURVE * i + 2]));
    if (!file || most <= 0)
        refuse(t->svg, "it cannot be written");
    fprintf(file, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 360\" font-family=\"sans-serif\" font-size=\"12\">\n"
                  "<rect width=\"640\" height=\"360\" fill=\"white\"/>\n<path d=\"M50 20V320H620\" fill=\"none\" stroke=\"black\"/>\n");
    for (int i = 0; i <= 4; i++)
        fprintf(file, "<text x=\"45\" y=\"%g\" text-anchor=\"end\">%.2f</text>\n", 324 - 75.0 * i, (double)most * i / 4);
    static const char *const style[] = {"stroke=\"#1f77b4\"", "stroke=\"#d62728\" stroke-dasharray=\"6 3\""};
    for (int line = 0; line < 2; line++) {
        fprintf(file, "<polyline fill=\"none\" %s points=\"", style[line]);
        for (long i = 0; i < r->rows; i++)
            fprintf(file, "%.1f,%.1f ", 50 + 570 * (double)r->curve[CURVE * i] / (double)(r->step > 0 ? r->step : 1),
                    320 - 300 * (double)(r->curve[CURVE * i + 1 + line] / most));
        fprintf(file, "\"/>\n<text x=\"500\" y=\"%d\">%s</text>\n", 40 + 16 * line, line ? "- - validation" : "-- training");
    }
    fprintf(file, "<text x=\"50\" y=\"340\">0</text><text x=\"620\" y=\"340\" text-anchor=\"end\">step %ld</text>\n</svg>\n", r->step);
    if (fclose(file) != 0)
        refuse(t->svg, "it cannot be written");
}

static void note(Training *t, double loss, double validation)
{
    Run *r = &t->run;
    r->curve = realloc(r->curve, sizeof *r->curve * CURVE * (size_t)(r->rows + 1));
    if (!r->curve)
        refuse("curve", "no memory");
    const float row[CURVE] = {(float)r->step, (float)loss, (float)validation};
    memcpy(r->curve + CURVE * r->rows++, row, sizeof row);
}

static void train(Training *t)
{
    kiln_function *update = kiln_function_new(step, 2, 2, t), *loss = kiln_function_new(loss_of, 1, 1, t);
    long first = t->run.step;
    double tokens = (double)(t->run.batch * t->model.context), norm, now;
    Progress progress = progress_begin(t->stop - first);
    progress.terminal &= t->rank == 0;
    kiln_call_report report = {.size = sizeof report};
    kiln_stats stats;
    while (t->run.step < t->stop) {
        kiln_scope *scope = kiln_scope_begin();
        uint64_t random = (uint64_t)t->run.seed << 32 | (uint64_t)t->run.step;
        kiln_tensor *in[2] = {make_batch(t, random, 0, t->train, t->rank, t->ranks), kiln_scalar(rate_at(t, t->run.step))}, *out[2];
        kiln_seed(random + ((uint64_t)t->rank << 56)); /* of dropout */
        kiln_check(kiln_function_call(update, in, out));
        kiln_check(kiln_last_call(&report));
        kiln_check(kiln_item(out[0], &now));
        kiln_check(kiln_item(out[1], &norm));
        kiln_scope_end(scope);
        t->run.step++;
        if (!isfinite(now))
            refuse("loss", "it is not finite; a smaller --rate may help");
        progress_show(&progress, t->run.step - first, "bytes/s", tokens);
        if (t->run.step % t->every && t->run.step < t->stop && t->run.step > 1)
            continue;
        double validation = validate(t, loss), rate = progress_rate(&progress, t->run.step - first, tokens);
        note(t, now, validation);
        progress_end(&progress);
        if (t->rank)
            continue;
        printf("step %ld: loss %.4f, validation %.4f, gradient %.3f", t->run.step, now, validation, norm);
        if (rate > 0)
            printf("; %.0f bytes/s, %.1f GFLOP/s", rate, 1e-9 * (double)report.flops * rate / tokens);
        if (rate > 0 && report.peak_flops > 0) /* what the recorded ops of a step ask for, against the f32 of all threads' registers */
            printf(", %.0f %% of the peak", 100 * (double)report.flops * rate / tokens / report.peak_flops);
        putchar('\n');
        fflush(stdout);
        if (t->save)
            save(&t->model, t->optimizer, &t->run, t->save);
    }
    progress_end(&progress);
    kiln_get_stats(&stats);
    if (t->rank == 0)
        printf("%lld programs were compiled\n", (long long)stats.compiles);
    kiln_function_free(update);
    kiln_function_free(loss);
}

static const char help[] =
    "usage: gpt train FILE... [options]     trains on the bytes of the files; the last tenth validates\n"
    "  --depth N --width N --heads N --context N    the network (4, 128, 4, 64)\n"
    "  --batch N        pieces of text in a step (16)\n"
    "  --steps N        steps in all (500), over which the rate falls; --stop N: stops after step N, to be resumed\n"
    "  --rate R         the greatest learning rate (0.002), reached after --warmup N steps (20), then a cosine down to a tenth\n"
    "  --decay R        weight decay (0.01)      --clip R     the greatest norm of all gradients (1)\n"
    "  --dropout R      (0)                      --bf16       products in bf16\n"
    "  --seed N         (1)                      --every N    steps between validations, each of which saves (100)\n"
    "  --save FILE      writes parameters and state (safetensors)      --resume FILE   goes on from there, with the\n"
    "                   same bits if --batch, --steps, --rate and the like are said again\n"
    "  --svg FILE       a picture of the losses\n"
    "                   mpirun -n N gpt train ...: each of N processes takes its part of the batch\n"
    "usage: gpt sample MODEL [options]      writes on, byte by byte\n"
    "  --prompt TEXT    (a line feed)            --tokens N   bytes to write (200)\n"
    "  --temperature R  0: the likeliest (0.8)   --top-k N    of so many bytes (256)      --top-p R   of the likeliest that sum to it (1)\n"
    "  --seed N         (1)                      --check      compares each byte's logits with those without the cache\n";

/* ---- writing ---- */

typedef struct Sampling {
    const char *prompt;
    long tokens, top_k, seed;
    double temperature, top_p;
    bool check;
} Sampling;

/* in: bytes [1, context], the place of the last that counts -> out: logits [256] behind it */
static void read_prompt(kiln_tensor **in, kiln_tensor **out, void *user)
{
    Model *m = user;
    kiln_tensor *x = forward(m, in[0], kiln_scalar(0));
    out[0] = kiln_reshape(logits_of(m, kiln_take(x, kiln_reshape(in[1], KILN_SHAPE(1)), 1)), KILN_SHAPE(BYTES));
}

/* in: one byte [1, 1], its place -> out: logits [256] */
static void add_byte(kiln_tensor **in, kiln_tensor **out, void *user)
{
    Model *m = user;
    out[0] = kiln_reshape(logits_of(m, forward(m, in[0], in[1])), KILN_SHAPE(BYTES));
}

static void call(kiln_function *f, const uint8_t *bytes, long n, long at, float *logits)
{
    kiln_scope *scope = kiln_scope_begin();
    int64_t place = at;
    kiln_tensor *in[2] = {kiln_cast(kiln_from(KILN_U8, KILN_SHAPE(1, n), bytes), KILN_I32), kiln_from(KILN_I64, KILN_SHAPE(), &place)},
                *out;
    kiln_check(kiln_function_call(f, in, &out));
    kiln_check(kiln_read(out, KILN_F32, logits, BYTES * sizeof *logits));
    kiln_scope_end(scope);
}

typedef struct Choice {
    int byte;
    double weight;
} Choice;

static int likelier(const void *a, const void *b)
{
    const Choice *x = a, *y = b;
    return x->weight != y->weight ? (x->weight < y->weight) - (x->weight > y->weight) : x->byte - y->byte;
}

static int choose(const float *logits, const Sampling *s, uint64_t *random)
{
    Choice choice[BYTES];
    double sum = 0, among = 0, most = -INFINITY;
    long n = 0;
    for (int i = 0; i < BYTES; i++) {
        if (!isfinite(logits[i]))
            refuse("sample", "the model's numbers are not finite: it learned nothing, or the file was changed");
        most = fmax(most, (double)logits[i]);
    }
    for (int i = 0; i < BYTES; i++) {
        choice[i] = (Choice){i, s->temperature > 0 ? exp(((double)logits[i] - most) / s->temperature) : (double)logits[i]};
        sum += choice[i].weight;
    }
    qsort(choice, BYTES, sizeof *choice, likelier);
    if (s->temperature <= 0)
        return choice[0].byte;
    while (n < s->top_k && (n == 0 || among < s->top_p * sum))
        among += choice[n++].weight;
    double left = among * (double)(draw(random) >> 11) * 0x1p-53;
    for (long i = 0; i < n; i++)
        if ((left -= choice[i].weight) < 0)
            return choice[i].byte;
    return choice[n - 1].byte;
}

/* Keys and values of the last `n` bytes, which fit, and the logits behind them. */
static void read_on(Model *m, kiln_function *reader, const uint8_t *bytes, long n, float *logits)
{
    uint8_t *padded = calloc((size_t)m->context, 1);
    if (!padded)
        refuse("context", "no memory");
    memcpy(padded, bytes, (size_t)n);
    call(reader, padded, m->context, n - 1, logits);
    free(padded);
}

static void sample(Model *m, const Sampling *s)
{
    Model plain = *m; /* without a cache */
    size_t length = strlen(s->prompt), all = length + (size_t)s->tokens;
    uint8_t *text = malloc(all);
    long base = length > (size_t)m->context ? (long)length - m->context : 0; /* text[base] stands at place 0 */
    float logits[BYTES], other[BYTES];
    double difference = 0;
    uint64_t random = (uint64_t)s->seed;
    kiln_stats stats;
    if (!text)
        refuse("--tokens", "no memory");
    memcpy(text, s->prompt, length);
    for (long b = 0; b < m->depth; b++) {
        kiln_shape shape = KILN_SHAPE(1, m->heads, m->context, m->width / m->heads);
        m->keys[b] = kiln_zeros(KILN_F32, shape);
        m->values[b] = kiln_zeros(KILN_F32, shape);
    }
    kiln_function *reader = kiln_function_new(read_prompt, 2, 1, m), *adder = kiln_function_new(add_byte, 2, 1, m);
    kiln_function *checker = kiln_function_new(read_prompt, 2, 1, &plain);
    read_on(m, reader, text + base, (long)length - base, logits);
    fputs(s->prompt, stdout);
    for (size_t n = length; n < all; n++) {
        text[n] = (uint8_t)choose(logits, s, &random);
        putchar(text[n]);
        fflush(stdout);
        long at = (long)n - base;
        if (at == m->context) { /* full: what is kept is the later half */
            base += m->context - m->context / 2;
            read_on(m, reader, text + base, (long)n + 1 - base, logits);
        } else {
            call(adder, &text[n], 1, at, logits);
        }
        if (!s->check)
            continue;
        read_on(&plain, checker, text + base, (long)n + 1 - base, other);
        for (int i = 0; i < BYTES; i++) {
            double d = fabs((double)logits[i] - (double)other[i]);
            difference = d <= difference ? difference : d; /* a NaN stays */
        }
    }
    putchar('\n');
    kiln_get_stats(&stats);
    if (s->check)
        fprintf(stderr, "largest difference of a logit %.3g, %lld programs compiled\n", difference, (long long)stats.compiles);
    kiln_function_free(reader);
    kiln_function_free(adder);
    kiln_function_free(checker);
    free(text);
}

/* ---- options ---- */

static void train_main(int argc, char **argv)
{
    static Training t = {.model = {.depth = NOT_SAID, .width = NOT_SAID, .heads = NOT_SAID, .context = NOT_SAID},
                         .run = {.seed = NOT_SAID, .batch = 16},
                         .steps = 500,
                         .warmup = 20,
                         .every = 100,
                         .rate = 0.002,
                         .clip = 1};
    double decay = 0.01;
    const char *resume = NULL;
    int files = 0;
    const Known known[] = {{"--depth", &t.model.depth, 1, MOST_DEPTH, .text = NULL},
                           {"--width", &t.model.width, 2, MOST_WIDTH, .text = NULL},
                           {"--heads", &t.model.heads, 1, 1024, .text = NULL},
                           {"--context", &t.model.context, 2, MOST_CONTEXT, .text = NULL},
                           {"--batch", &t.run.batch, 1, 1 << 20, .text = NULL},
                           {"--steps", &t.steps, 1, MOST_STEPS, .text = NULL},
                           {"--stop", &t.stop, 1, MOST_STEPS, .text = NULL},
                           {"--warmup", &t.warmup, 0, MOST_STEPS, .text = NULL},
                           {"--every", &t.every, 1, MOST_STEPS, .text = NULL},
                           {"--seed", &t.run.seed, 0, MOST_STEPS, .text = NULL},
                           {"--rate", .number = &t.rate, .low = 0, .high = 10},
                           {"--decay", .number = &decay, .low = 0, .high = 10},
                           {"--clip", .number = &t.clip, .low = 1e-6, .high = 1e9},
                           {"--dropout", .number = &t.model.dropout, .low = 0, .high = 0.95},
                           {"--bf16", .flag = &t.bf16},
                           {"--save", .text = &t.save},
                           {"--resume", .text = &resume},
                           {"--svg", .text = &t.svg}};
    for (int i = 2; i < argc; i++) {
        if (argv[i][0] == '-' && argv[i][1])
            take_option(known, sizeof known / sizeof *known, argc, argv, &i);
        else
            argv[2 + files++] = argv[i];
    }
    if (!files)
        refuse("train", "name files to learn from");
    struct {
        const char *name;
        long *value, usual, said;
    } kept[] = {{"--depth", &t.model.depth, 4, 0},
                {"--width", &t.model.width, 128, 0},
                {"--heads", &t.model.heads, 4, 0},
                {"--context", &t.model.context, 64, 0},
                {"--seed", &t.run.seed, 1, 0}};
    for (size_t k = 0; k < sizeof kept / sizeof *kept; k++) {
        kept[k].said = *kept[k].value;
        *kept[k].value = kept[k].said == NOT_SAID ? kept[k].usual : kept[k].said;
    }
    if (!(t.world = kiln_group_world(NULL)))
        kiln_check(kiln_error_status());
    t.rank = kiln_group_rank(t.world);
    t.ranks = kiln_group_size(t.world);
    if (t.run.batch % t.ranks)
        refuse("--batch", "a multiple of the number of processes is needed");
    if (t.save && t.rank == 0)
        check_writable("--save", t.save);
    if (t.svg && t.rank == 0)
        check_writable("--svg", t.svg);
    About about;
    kiln_file *from = resume ? open_model(&t.model, resume, &about) : NULL;
    if (t.model.width % (2 * t.model.heads))
        refuse("--width", "a multiple of twice --heads is needed");
    if (from) {
        t.run.step = about.step;
        t.run.seed = about.seed;
        for (size_t k = 0; k < sizeof kept / sizeof *kept; k++)
            if (kept[k].said != NOT_SAID && kept[k].said != *kept[k].value)
                refuse(kept[k].name, "the run that is resumed has another");
    }
    t.stop = t.stop && t.stop < t.steps ? t.stop : t.steps;
    t.text = read_text(argv + 2, files, &t.length);
    t.train = t.length - t.length / 10;
    t.run.text = hash(t.text, t.length);
    if (from && about.text != t.run.text)
        refuse(resume, "it learns from another text than these files");
    if (t.length / 10 <= (size_t)t.model.context)
        refuse("train", "the files have too few bytes: a tenth of them must be longer than --context");
    kiln_seed((uint64_t)t.run.seed);
    make_params(&t.model);
    t.optimizer =
        kiln_optimizer_new(t.model.p, t.model.n, &(kiln_optimizer_options){.kind = KILN_ADAMW, .beta2 = 0.99, .weight_decay = decay});
    if (!t.optimizer)
        kiln_check(kiln_error_status());
    kiln_named all[MOST_SAVED];
    kiln_tensor *state[MOST_SAVED];
    int values = everything(&t.model, t.optimizer, all);
    for (int i = 0; i < values; i++)
        state[i] = all[i].tensor;
    kiln_check(kiln_eval_many(state, values)); /* so that the first step is as all others */
    if (from) {
        load_all(&t.model, t.optimizer, from, resume);
        char why[WHY];
        if (!curve_read(from, &about, &t.run.curve, &t.run.rows, why))
            refuse(resume, why);
        kiln_file_free(from);
    }
    int64_t count = 0;
    for (int i = 0; i < t.model.n; i++)
        count += kiln_numel(t.model.p[i]);
    if (t.rank == 0)
        printf("%.2f million parameters, %zu bytes to learn from, %zu to validate\n", 1e-6 * (double)count, t.train, t.length - t.train);
    train(&t);
    if (t.svg && t.rank == 0)
        write_curve(&t);
    kiln_check(kiln_barrier(t.world));
    kiln_optimizer_free(t.optimizer);
    free(t.run.curve);
    free(t.text);
}

static void sample_main(int argc, char **argv)
{
    static Model model;
    Sampling s = {"\n", 200, BYTES, 1, 0.8, 1, false};
    const Known known[] = {{"--prompt", .text = &s.prompt},
                           {"--tokens", &s.tokens, 1, 1000000000, .text = NULL},
                           {"--top-k", &s.top_k, 1, BYTES, .text = NULL},
                           {"--seed", &s.seed, 0, 1000000000, .text = NULL},
                           {"--temperature", .number = &s.temperature, .low = 0, .high = 100},
                           {"--top-p", .number = &s.top_p, .low = 1e-6, .high = 1},
                           {"--check", .flag = &s.check}};
    if (argc < 3)
        refuse("sample", "name a model");
    for (int i = 3; i < argc; i++)
        take_option(known, sizeof known / sizeof *known, argc, argv, &i);
    if (!*s.prompt)
        refuse("--prompt", "one byte at least is needed");
    About about;
    kiln_file *from = open_model(&model, argv[2], &about);
    make_params(&model);
    load_all(&model, NULL, from, argv[2]);
    kiln_file_free(from);
    sample(&model, &s);
}

int main(int argc, char **argv)
{
    help_if_asked(help, argc, argv);
    if (argc < 2 || (strcmp(argv[1], "train") && strcmp(argv[1], "sample")))
        refuse(argv[1], "train or sample is needed");
    kiln_scope *scope = kiln_scope_begin();
    (strcmp(argv[1], "train") ? sample_main : train_main)(argc, argv);
    kiln_scope_end(scope);
    return 0;
}
