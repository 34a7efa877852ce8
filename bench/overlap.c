/*
 * How much of communication runs beside computing: bench/overlap [--quick]
 *
 * One process, and a backend whose two ranks have the same data, joined by a link of so many bytes a second: a collective takes the time
 * that its bytes take there, and nothing of the CPU. A training step of LAYERS products with its gradients averaged, by itself (the link takes no
 * time), and with links of several rates. The least of some rounds, in turns.
 */
#include <kiln.h>

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { LAYERS = 12, WIDTH = 512, ROWS = 256, RATES = 4, MOST = 21 };

static struct {
    double rate, due, took; /* rate 0: at once; took: of all collectives */
    char notes[64][KILN_COMM_NOTE];
    size_t bytes[64];
    int told, heard;
} link;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static kiln_status open_link(void *user, void **comm, int *rank, int *size, char *why)
{
    (void)user, (void)why;
    *comm = &link;
    *rank = 0;
    *size = 2;
    return KILN_OK;
}

static kiln_status split_link(void *comm, int color, int key, void **out, int *rank, int *size, char *why)
{
    (void)comm, (void)color, (void)key;
    return open_link(NULL, out, rank, size, why);
}

static kiln_status start(void *comm, const kiln_comm_call *c, void **request, char *why)
{
    const float *in = c->in;
    float *out = c->out;
    (void)comm, (void)why;
    *request = &link;
    if (c->op != KILN_COMM_ALL_REDUCE)
        return KILN_OK;
    for (uint64_t i = 0; i < c->count; i++)
        out[i] = 2 * in[i];
    double takes = link.rate > 0 ? (double)c->count * 4 / link.rate : 0;
    link.took += takes;
    link.due = now() + takes;
    return KILN_OK;
}

static kiln_status test(void *comm, void *request, int *done, char *why)
{
    (void)comm, (void)request, (void)why;
    *done = now() >= link.due;
    return KILN_OK;
}

/* What this rank says the other one says, too. */
static kiln_status tell(void *comm, int to, const void *note, size_t bytes, char *why)
{
    (void)comm, (void)to, (void)why;
    memcpy(link.notes[link.told % 64], note, bytes);
    link.bytes[link.told++ % 64] = bytes;
    return KILN_OK;
}

static kiln_status hear(void *comm, int *from, void *note, size_t *bytes, char *why)
{
    (void)comm, (void)why;
    *from = link.heard < link.told ? 1 : -1;
    if (*from < 0)
        return KILN_OK;
    *bytes = link.bytes[link.heard % 64];
    memcpy(note, link.notes[link.heard++ % 64], *bytes);
    return KILN_OK;
}

static void close_link(void *comm, int orderly) { (void)comm, (void)orderly; }

static kiln_tensor *layer[LAYERS];

static void step(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *x = in[0], *g[LAYERS];
    for (int k = 0; k < LAYERS; k++)
        x = kiln_tanh(kiln_matmul(x, layer[k]));
    out[0] = kiln_mean(kiln_square(x));
    kiln_check(kiln_grad(out[0], layer, LAYERS, g));
    kiln_check(kiln_parallel_gradients(user, g, LAYERS));
    for (int k = 0; k < LAYERS; k++)
        kiln_check(kiln_assign(layer[k], kiln_sub(layer[k], kiln_mul(g[k], 0.01))));
}

static double least(const double *x, int n)
{
    double best = x[0];
    for (int i = 1; i < n; i++)
        best = x[i] < best ? x[i] : best;
    return best;
}

int main(int argc, char **argv)
{
    static const double rates[RATES] = {0, 2e9, 1e9, 0.5e9};
    static const kiln_comm_backend backend = {.version = KILN_COMM_VERSION,
                                              .name = "link",
                                              .open = open_link,
                                              .split = split_link,
                                              .start = start,
                                              .test = test,
                                              .tell = tell,
                                              .hear = hear,
                                              .close = close_link};
    const int rounds = argc > 1 && !strcmp(argv[1], "--quick") ? 3 : MOST;
    double t[RATES][MOST], sent[RATES] = {0};
    kiln_check(kiln_comm_register(&backend));
    kiln_group *world = kiln_group_world("link");
    kiln_check(world ? KILN_OK : kiln_error_status());
    kiln_scope *scope = kiln_scope_begin();
    for (int k = 0; k < LAYERS; k++)
        layer[k] = kiln_param(kiln_normal(KILN_F32, KILN_SHAPE(WIDTH, WIDTH), 0, 0.05));
    kiln_tensor *x = kiln_normal(KILN_F32, KILN_SHAPE(ROWS, WIDTH), 0, 1), *loss;
    kiln_check(kiln_eval(x));
    kiln_check(kiln_eval_many(layer, LAYERS));
    kiln_function *f = kiln_function_new(step, 1, 1, world);
    for (int r = -2; r < rounds; r++)
        for (int k = 0; k < RATES; k++) {
            kiln_scope *inner = kiln_scope_begin();
            link.rate = rates[k];
            link.took = 0;
            double began = now();
            kiln_check(kiln_function_call(f, &x, &loss));
            kiln_check(kiln_eval(loss));
            if (r >= 0)
                t[k][r] = now() - began;
            sent[k] = link.took;
            kiln_scope_end(inner);
        }
    printf("%12s %12s %12s %12s %12s\n", "link, GB/s", "computing", "link", "a step", "hidden");
    for (int k = 1; k < RATES; k++) {
        const double alone = least(t[0], rounds), both = least(t[k], rounds);
        printf("%12.1f %9.2f ms %9.2f ms %9.2f ms %10.0f %%\n", rates[k] * 1e-9, alone * 1e3, sent[k] * 1e3, both * 1e3,
               100 * (alone + sent[k] - both) / sent[k]);
    }
    kiln_function_free(f);
    kiln_scope_end(scope);
    return kiln_barrier(world) != KILN_OK;
}
