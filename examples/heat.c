/*
 * The heat equation and the wave equation on a square, by finite differences.
 *
 *     heat   u_t  = u_xx + u_yy      u'  = u + r L u                  r = dt / h^2, stable up to 1/4
 *     wave   u_tt = u_xx + u_yy      u'' = 2 u - u_before + c^2 L u   c = dt / h, stable up to 1/sqrt(2)
 *     L u = north + south + west + east - 4 u; u is 0 on the border and on walls
 *
 * `--together` steps are a kiln_scan, a loop inside one program, so they have one sync point; however many they are, the program is the same.
 * It begins with u = sin(pi x) sin(pi y) + sin(2 pi x) sin(3 pi y) / 2 at rest, for which the solution is known (without walls): each term
 * times exp(-k t) or cos(sqrt(k) t), k = pi^2 and 13 pi^2 times 2 and 1. The error falls with the square of h.
 */
#include <kiln.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char program[] = "heat";
#include "arguments.h"
#include "files.h"
#include "progress.h"

static const double PI = 3.14159265358979323846;

typedef struct Heat {
    long size, steps, together, every; /* size: cells on a side without the border; every: steps between frames */
    double rate;
    bool wave, f64;
    const char *walls, *frames, *out;
    kiln_tensor *u, *before, *open; /* open: 0 on walls, else 1; NULL: there are none */
} Heat;

static const char help[] =
    "usage: heat [options]\n"
    "solves the heat equation (or --wave) on the unit square and says how far the result is from the known solution\n"
    "  --size N         cells on a side (255)\n"
    "  --steps N        steps in time (1000)\n"
    "  --rate R         dt / h^2, at most 0.25 (0.2); with --wave dt / h, at most 0.7071 (0.5)\n"
    "  --wave           the wave equation\n"
    "  --f64            in f64 instead of f32\n"
    "  --walls FILE     a .npy matrix of that size: cells that are not 0 stay 0\n"
    "  --together N     steps of one call (100)\n"
    "  --frames PREFIX  writes pictures PREFIX0000.ppm, PREFIX0001.ppm... of the beginning and of every ...\n"
    "  --every N        ... N steps (100)\n"
    "  --out FILE       writes u at the end as .npy\n"
    "  --help           this\n";

static Heat read_options(int argc, char **argv)
{
    Heat h = {.size = 255, .steps = 1000, .together = 100, .every = 100};
    const char *rate = NULL;
    const Known known[] = {{"--size", &h.size, 1, 30000, .text = NULL},
                           {"--steps", &h.steps, 1, 1000000000, .text = NULL},
                           {"--together", &h.together, 1, 1000000000, .text = NULL},
                           {"--every", &h.every, 1, 1000000000, .text = NULL},
                           {"--rate", .text = &rate},
                           {"--walls", .text = &h.walls},
                           {"--frames", .text = &h.frames},
                           {"--out", .text = &h.out},
                           {"--wave", .flag = &h.wave},
                           {"--f64", .flag = &h.f64}};
    help_if_asked(help, argc, argv);
    for (int i = 1; i < argc; i++)
        take_option(known, sizeof known / sizeof *known, argc, argv, &i);
    double most = h.wave ? sqrt(0.5) : 0.25; /* --wave may stand behind --rate */
    h.rate = rate ? number("--rate", rate, 1e-9, 1e9) : h.wave ? 0.5 : 0.2;
    if (h.rate > most) {
        char why[120];
        snprintf(why, sizeof why, "\"%.20s\" is beyond %.4f, up to which the steps are stable", rate, most);
        refuse("--rate", why);
    }
    return h;
}

/* ---- the equations ---- */

/* u moved by one cell along an axis, with zeros from outside. */
static kiln_tensor *moved(kiln_tensor *u, int axis, int by)
{
    kiln_padding pad[2] = {{0, 0}, {0, 0}};
    pad[axis] = (kiln_padding){by > 0, by < 0};
    return kiln_pad(kiln_slice_axis(u, axis, by < 0, kiln_dim(u, axis) - (by > 0), 1), 2, pad, kiln_scalar(0));
}

static kiln_tensor *laplacian(kiln_tensor *u)
{
    kiln_tensor *rows = kiln_add(moved(u, 0, 1), moved(u, 0, -1)), *columns = kiln_add(moved(u, 1, 1), moved(u, 1, -1));
    return kiln_sub(kiln_add(rows, columns), kiln_mul(u, 4));
}

/* One step; carried: u and, of the wave equation, u before it. */
static void advance(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    const Heat *h = user;
    kiln_tensor *u = carry[0], *next;
    (void)i, (void)x, (void)y;
    if (h->wave)
        next = kiln_add(kiln_sub(kiln_mul(u, 2), carry[1]), kiln_mul(laplacian(u), h->rate * h->rate));
    else
        next = kiln_add(u, kiln_mul(laplacian(u), h->rate));
    carry_out[0] = h->open ? kiln_mul(next, h->open) : next;
    if (h->wave)
        carry_out[1] = u;
}

static long lesser(long a, long b) { return a < b ? a : b; }
static long rounded_up(long a, long b) { return (a + b - 1) / b; } /* a / b */

static void take_steps(Heat *h, long steps)
{
    kiln_tensor *state[2] = {h->u, h->before};
    kiln_scope *scope = kiln_scope_begin();
    kiln_check(kiln_scan(advance, steps, 0, h->wave ? 2 : 1, state, state, 0, NULL, 0, NULL, h));
    kiln_check(kiln_assign(h->u, state[0]));
    if (h->wave)
        kiln_check(kiln_assign(h->before, state[1]));
    kiln_check(kiln_eval_many((kiln_tensor *[]){h->u, h->before}, h->wave ? 2 : 1));
    kiln_scope_end(scope);
}

/* sin(pi x) sin(pi y) a + sin(2 pi x) sin(3 pi y) b / 2 */
static kiln_tensor *modes(const Heat *h, kiln_dtype dtype, double a, double b)
{
    double end = (double)h->size / (double)(h->size + 1), step = 1 / (double)(h->size + 1);
    kiln_tensor *along = kiln_linspace(KILN_F64, step, end, h->size);
    kiln_tensor *x = kiln_reshape(along, KILN_SHAPE(h->size, 1)), *y = kiln_reshape(along, KILN_SHAPE(1, h->size));
    kiln_tensor *first = kiln_mul(kiln_sin(kiln_mul(x, PI)), kiln_sin(kiln_mul(y, PI)));
    kiln_tensor *second = kiln_mul(kiln_sin(kiln_mul(x, 2 * PI)), kiln_sin(kiln_mul(y, 3 * PI)));
    return kiln_cast(kiln_add(kiln_mul(first, a), kiln_mul(second, b / 2)), dtype);
}

static kiln_tensor *solution(const Heat *h, double time)
{
    double a = 2 * PI * PI, b = 13 * PI * PI;
    return h->wave ? modes(h, KILN_F64, cos(sqrt(a) * time), cos(sqrt(b) * time)) : modes(h, KILN_F64, exp(-a * time), exp(-b * time));
}

/* ---- files ---- */

static void load_walls(Heat *h)
{
    kiln_tensor *walls = kiln_load_npy(h->walls);
    char why[120];
    if (!walls) {
        fprintf(stderr, "heat: %s: give a .npy file, as numpy.save writes them\n", kiln_error_message());
        exit(1);
    }
    if (kiln_rank(walls) != 2 || kiln_dim(walls, 0) != h->size || kiln_dim(walls, 1) != h->size) {
        snprintf(why, sizeof why, "a matrix of %ld x %ld is needed (--size), it has rank %d and %lld rows", h->size, h->size,
                 kiln_rank(walls), (long long)kiln_dim(walls, 0));
        refuse(h->walls, why);
    }
    h->open = kiln_cast(kiln_eq(walls, kiln_scalar(0)), h->f64 ? KILN_F64 : KILN_F32);
    kiln_check(kiln_eval(h->open));
}

/* A picture: red where u is positive, blue where it is negative, grey walls. */
static void write_frame(const Heat *h, long frame)
{
    size_t cells = (size_t)h->size * (size_t)h->size;
    char path[4096];
    float *u = malloc(cells * sizeof *u), *open = h->open ? malloc(cells * sizeof *open) : NULL;
    unsigned char *pixels = malloc(3 * cells);
    if (!u || !pixels || (h->open && !open)) {
        fprintf(stderr, "heat: no memory for a picture of %ld x %ld\n", h->size, h->size);
        exit(1);
    }
    kiln_check(kiln_read(h->u, KILN_F32, u, cells * sizeof *u));
    if (open)
        kiln_check(kiln_read(h->open, KILN_F32, open, cells * sizeof *open));
    for (size_t i = 0; i < cells; i++) {
        float strength = fminf(fabsf(u[i]), 1), rest = 255 * (1 - strength);
        unsigned char faint = (unsigned char)rest, *p = &pixels[3 * i];
        p[0] = u[i] >= 0 ? 255 : faint;
        p[1] = faint;
        p[2] = u[i] >= 0 ? faint : 255;
        if (open && open[i] == 0)
            memset(p, 96, 3);
    }
    int n = snprintf(path, sizeof path, "%s%04ld.ppm", h->frames, frame);
    FILE *file = n < (int)sizeof path ? fopen(path, "wb") : NULL;
    bool good = file && fprintf(file, "P6\n%ld %ld\n255\n", h->size, h->size) > 0 && fwrite(pixels, 3, cells, file) == cells;
    if (file)
        good = fclose(file) == 0 && good;
    if (!good) {
        fprintf(stderr, "heat: %s: cannot be written; name a prefix in a folder that is there\n", path);
        exit(1);
    }
    free(pixels);
    free(open);
    free(u);
}

/* ---- all of it ---- */

static void begin(Heat *h)
{
    kiln_dtype dtype = h->f64 ? KILN_F64 : KILN_F32;
    h->u = modes(h, dtype, 1, 1);
    if (h->open)
        h->u = kiln_mul(h->u, h->open);
    kiln_check(kiln_eval(h->u));
    if (!h->wave)
        return;
    /* at rest: u(-dt) = u(dt), so u(-dt) = u + c^2 / 2 L u */
    kiln_tensor *before = kiln_add(h->u, kiln_mul(laplacian(h->u), h->rate * h->rate / 2));
    h->before = h->open ? kiln_mul(before, h->open) : before;
    kiln_check(kiln_eval(h->before));
}

static void report(const Heat *h, long calls, double rate)
{
    double width = 1 / (double)(h->size + 1), time = (double)h->steps * h->rate * (h->wave ? width : width * width), error, most;
    kiln_stats stats;
    kiln_get_stats(&stats);
    printf("%s equation, %ld x %ld cells, %ld steps to t = %.6g, %s\n", h->wave ? "wave" : "heat", h->size, h->size, h->steps, time,
           h->f64 ? "f64" : "f32");
    kiln_check(kiln_item(kiln_max(kiln_abs(h->u)), &most));
    printf("largest value %.6g\n", most);
    if (!(most < 1e30)) {
        fprintf(stderr, "heat: u has grown beyond all bounds\n");
        exit(1);
    }
    if (!h->open) {
        kiln_check(kiln_item(kiln_max(kiln_abs(kiln_sub(kiln_cast(h->u, KILN_F64), solution(h, time)))), &error));
        printf("largest error against the known solution %.3g\n", error);
    }
    printf("%ld calls, %lld programs compiled, %lld kernels\n", calls, (long long)stats.compiles, (long long)stats.kernels);
    if (rate > 0)
        printf("%.1f million cells a second\n", rate);
}

int main(int argc, char **argv)
{
    Heat h = read_options(argc, argv);
    if (h.out)
        check_writable("--out", h.out);
    kiln_scope *scope = kiln_scope_begin();
    if (h.walls)
        load_walls(&h);
    begin(&h);
    long done = 0, frame = 0, call = 0, period = h.frames ? h.every : h.steps; /* steps between pictures */
    long calls = h.steps / period * rounded_up(period, h.together) + rounded_up(h.steps % period, h.together);
    double cells = 1e-6 * (double)h.size * (double)h.size * (double)h.steps / (double)calls;
    Progress progress = progress_begin(calls);
    if (h.frames)
        write_frame(&h, frame++);
    while (done < h.steps) {
        long stop = lesser(done - done % period + period, h.steps), steps = lesser(stop - done, h.together);
        take_steps(&h, steps);
        done += steps;
        progress_show(&progress, ++call, "million cells/s", cells);
        if (h.frames && done % period == 0)
            write_frame(&h, frame++);
    }
    progress_end(&progress);
    report(&h, calls, progress_rate(&progress, calls, cells));
    if (h.out && kiln_save_npy(h.u, h.out) != KILN_OK) {
        fprintf(stderr, "heat: %s\n", kiln_error_message());
        return 1;
    }
    kiln_scope_end(scope);
    return 0;
}
