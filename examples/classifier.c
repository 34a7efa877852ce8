/*
 * Trains a two-layer network to read digits: images of 28 x 28 through a hidden layer to 10 classes.
 *
 *     loss = mean(cross_entropy(w2 relu(w1 x + b1) + b2, label))
 *
 * The digits are drawn from a font of 5 x 7 dots, three times as large, somewhere in the image, under noise; no two are the same. A step, which is
 * loss, accuracy, gradients and the optimiser's update, is a kiln_function: one program, which overwrites parameters and state in place. The learning
 * rate is an input of it, so that it may change without another compile. classifier --help tells the options.
 */
#include <kiln.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char program[] = "classifier";
#include "arguments.h"
#include "files.h"
#include "progress.h"
#include "random.h"

enum { SIDE = 28, PIXELS = SIDE * SIDE, CLASSES = 10, PARAMS = 4, STATES = 2 * PARAMS + 1, TEST_IMAGES = 1000 };

/* ---- options ---- */

typedef struct Options {
    long steps, stop, batch, hidden, seed;
    double rate, decay;
    const char *optimizer, *save, *load;
} Options;

static const char help[] =
    "usage: classifier [options]\n"
    "trains a two-layer network to read noisy digits, and prints loss and accuracy\n"
    "  --steps N        steps in all (300)\n"
    "  --stop N         stops after step N, to go on later (--steps)\n"
    "  --batch N        images in a step (64)\n"
    "  --hidden N       hidden units (256)\n"
    "  --optimizer X    sgd, adam or adamw (adamw)\n"
    "  --rate R         the greatest learning rate (0.002; sgd: 0.05); it rises for 20 steps, then falls as a cosine\n"
    "  --decay R        weight decay (0.01)\n"
    "  --seed N         of parameters and images (1)\n"
    "  --save FILE      writes parameters and the optimiser's state (safetensors)\n"
    "  --load FILE      goes on from there, with the same bits as without a stop\n"
    "  --help           this\n";

static Options read_options(int argc, char **argv)
{
    Options o = {300, 0, 64, 256, 1, 0, 0.01, "adamw", NULL, NULL};
    const Known known[] = {{"--steps", &o.steps, 1, 1000000, .text = NULL},
                           {"--stop", &o.stop, 1, 1000000, .text = NULL},
                           {"--batch", &o.batch, 1, 100000, .text = NULL},
                           {"--hidden", &o.hidden, 1, 100000, .text = NULL},
                           {"--seed", &o.seed, 0, 1000000000, .text = NULL},
                           {"--rate", .number = &o.rate, .low = 0, .high = 1e6},
                           {"--decay", .number = &o.decay, .low = 0, .high = 1e6},
                           {"--optimizer", .text = &o.optimizer},
                           {"--save", .text = &o.save},
                           {"--load", .text = &o.load}};
    help_if_asked(help, argc, argv);
    for (int i = 1; i < argc; i++)
        take_option(known, sizeof known / sizeof *known, argc, argv, &i);
    if (strcmp(o.optimizer, "sgd") && strcmp(o.optimizer, "adam") && strcmp(o.optimizer, "adamw"))
        refuse("--optimizer", "sgd, adam or adamw is needed");
    if (o.stop == 0 || o.stop > o.steps)
        o.stop = o.steps;
    if (o.rate == 0)
        o.rate = strcmp(o.optimizer, "sgd") ? 0.002 : 0.05;
    return o;
}

/* ---- images ---- */

static const char *const font[CLASSES][7] = {
    {".###.", "#...#", "#..##", "#.#.#", "##..#", "#...#", ".###."}, {"..#..", ".##..", "..#..", "..#..", "..#..", "..#..", ".###."},
    {".###.", "#...#", "....#", "...#.", "..#..", ".#...", "#####"}, {"#####", "...#.", "..#..", "...#.", "....#", "#...#", ".###."},
    {"...#.", "..##.", ".#.#.", "#..#.", "#####", "...#.", "...#."}, {"#####", "#....", "####.", "....#", "....#", "#...#", ".###."},
    {"..##.", ".#...", "#....", "####.", "#...#", "#...#", ".###."}, {"#####", "....#", "...#.", "..#..", ".#...", ".#...", ".#..."},
    {".###.", "#...#", "#...#", ".###.", "#...#", "#...#", ".###."}, {".###.", "#...#", "#...#", ".####", "....#", "...#.", ".##.."}};

static void draw_digit(float *image, int digit, uint64_t *random)
{
    int left = 2 + (int)(draw(random) % 9), top = 1 + (int)(draw(random) % 5);
    for (int i = 0; i < PIXELS; i++) {
        int x = i % SIDE - left, y = i / SIDE - top;
        float ink = x >= 0 && x < 15 && y >= 0 && y < 21 && font[digit][y / 3][x / 3] == '#';
        float noise = (float)(draw(random) >> 40) * 0x1p-24f + (float)(draw(random) >> 40) * 0x1p-24f - 1;
        image[i] = ink + noise;
    }
}

/* n images with their labels. */
static void make_batch(uint64_t seed, long n, kiln_tensor **images, kiln_tensor **labels)
{
    float *pixels = malloc(sizeof *pixels * PIXELS * (size_t)n);
    int32_t *digits = malloc(sizeof *digits * (size_t)n);
    if (!pixels || !digits) {
        fputs("classifier: out of memory\n", stderr);
        exit(1);
    }
    for (long i = 0; i < n; i++) {
        digits[i] = (int32_t)(draw(&seed) % CLASSES);
        draw_digit(pixels + i * PIXELS, digits[i], &seed);
    }
    *images = kiln_from(KILN_F32, KILN_SHAPE(n, PIXELS), pixels);
    *labels = kiln_from(KILN_I32, KILN_SHAPE(n), digits);
    free(pixels);
    free(digits);
}

/* ---- the network ---- */

typedef struct Net {
    kiln_tensor *p[PARAMS], *g[PARAMS]; /* w1 b1 w2 b2; their gradients while a step is recorded */
    kiln_optimizer *optimizer;
} Net;

static const char *const names[PARAMS] = {"w1", "b1", "w2", "b2"};

/* in: images, labels. out: the loss, and the share of images that were read rightly. */
static void forward(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const Net *net = user;
    kiln_tensor *hidden = kiln_relu(kiln_linear(in[0], net->p[0], net->p[1]));
    kiln_tensor *logits = kiln_linear(hidden, net->p[2], net->p[3]);
    out[0] = kiln_mean(kiln_cross_entropy(logits, in[1]));
    out[1] = kiln_mean(kiln_eq(kiln_argmax_axis(logits, -1, false), in[1]));
}

/* The same, with the learning rate as in[2], and an update. What fails in here fails the call. */
static void step(kiln_tensor **in, kiln_tensor **out, void *user)
{
    Net *net = user;
    forward(in, out, user);
    if (kiln_grad(out[0], net->p, PARAMS, net->g) == KILN_OK)
        (void)kiln_optimizer_step(net->optimizer, net->g, in[2]);
}

/* Random weights, scaled so that each layer keeps the size of its input (He et al. 2015). */
static Net make_net(const Options *o)
{
    Net net = {{kiln_normal(KILN_F32, KILN_SHAPE(o->hidden, PIXELS), 0, sqrt(2.0 / PIXELS)), kiln_zeros(KILN_F32, KILN_SHAPE(o->hidden)),
                kiln_normal(KILN_F32, KILN_SHAPE(CLASSES, o->hidden), 0, sqrt(2.0 / (double)o->hidden)),
                kiln_zeros(KILN_F32, KILN_SHAPE(CLASSES))},
               {NULL},
               NULL};
    kiln_optimizer_options options = {.kind = !strcmp(o->optimizer, "sgd")    ? KILN_SGD
                                              : !strcmp(o->optimizer, "adam") ? KILN_ADAM
                                                                              : KILN_ADAMW,
                                      .momentum = 0.9,
                                      .weight_decay = o->decay};
    for (int i = 0; i < PARAMS; i++)
        kiln_param(net.p[i]);
    net.optimizer = kiln_optimizer_new(net.p, PARAMS, &options);
    return net;
}

/* The parameters and the optimiser's state with their names; returns how many. */
static int everything(const Net *net, kiln_named *all)
{
    int n = 0;
    for (; n < PARAMS; n++)
        all[n] = (kiln_named){names[n], net->p[n]};
    while ((all[n].tensor = kiln_optimizer_state(net->optimizer, n - PARAMS, &all[n].name)))
        n++;
    return n;
}

static void save(const Net *net, const char *path, long made)
{
    kiln_named all[PARAMS + STATES + 1];
    char steps[24];
    snprintf(steps, sizeof steps, "%ld", made);
    kiln_check(kiln_save_safetensors(path, everything(net, all), all, 1, &(kiln_metadata){"steps", steps}));
}

/* Goes on from a file; returns the steps that were made. */
static long load(const Net *net, const char *path)
{
    kiln_named all[PARAMS + STATES + 1];
    int n = everything(net, all);
    kiln_file *file = kiln_load_safetensors(path);
    const char *made = file ? kiln_file_metadata_value(file, "steps") : NULL;
    kiln_status status = file ? KILN_OK : kiln_error_status();
    for (int i = 0; i < n && status == KILN_OK; i++)
        status = kiln_assign(all[i].tensor, kiln_file_tensor(file, all[i].name));
    kiln_check(status);
    if (!made)
        refuse(path, "it does not say how many steps were made: it is of another program");
    long steps = whole(path, made, 0, 1000000);
    kiln_file_free(file);
    return steps;
}

/* ---- training ---- */

static double rate_at(const Options *o, long at)
{
    double rise = at < 20 ? (double)(at + 1) / 20 : 1;
    return o->rate * rise * 0.5 * (1 + cos(3.14159265358979 * (double)at / (double)o->steps));
}

static void train(Net *net, const Options *o, long first)
{
    kiln_function *function = kiln_function_new(step, 3, 2, net);
    Progress progress = progress_begin(o->stop - first);
    double loss, accuracy;
    kiln_stats before, after;
    for (long i = first; i < o->stop; i++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *in[3], *out[2];
        make_batch((uint64_t)o->seed << 32 | (uint64_t)i, o->batch, &in[0], &in[1]);
        in[2] = kiln_scalar(rate_at(o, i));
        kiln_get_stats(&before);
        kiln_check(kiln_function_call(function, in, out));
        kiln_check(kiln_item(out[0], &loss));
        kiln_check(kiln_item(out[1], &accuracy));
        kiln_get_stats(&after);
        kiln_scope_end(scope);
        progress_show(&progress, i + 1 - first, "steps/s", 1);
        if (i == first || (i + 1) % 50 == 0 || i + 1 == o->stop) {
            progress_end(&progress);
            printf("step %ld: loss %.4f, accuracy %.3f; %lld kernels, %lld compiled\n", i + 1, loss, accuracy,
                   (long long)(after.kernels - before.kernels), (long long)(after.compiles - before.compiles));
        }
    }
    progress_end(&progress);
    kiln_function_free(function);
}

static void test(Net *net, const Options *o)
{
    kiln_tensor *in[2], *out[2];
    double loss, accuracy;
    make_batch(~(uint64_t)o->seed, TEST_IMAGES, &in[0], &in[1]);
    forward(in, out, net);
    kiln_check(kiln_eval_many(out, 2));
    kiln_check(kiln_item(out[0], &loss));
    kiln_check(kiln_item(out[1], &accuracy));
    printf("%d new images: loss %.4f, accuracy %.3f\n", TEST_IMAGES, loss, accuracy);
}

int main(int argc, char **argv)
{
    Options o = read_options(argc, argv);
    if (o.save)
        check_writable("--save", o.save);
    kiln_scope *scope = kiln_scope_begin();
    kiln_seed((uint64_t)o.seed);
    Net net = make_net(&o);
    kiln_check(kiln_eval_many(net.p, PARAMS));
    train(&net, &o, o.load ? load(&net, o.load) : 0);
    test(&net, &o);
    if (o.save)
        save(&net, o.save, o.stop);
    kiln_optimizer_free(net.optimizer);
    kiln_scope_end(scope);
    return 0;
}
