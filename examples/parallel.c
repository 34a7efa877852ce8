/*
 * One network on several processes, in three ways, with the losses that one process has: mpirun -n N parallel data|shard|tensor
 *
 *     block:  x + gelu(norm(x) W1) W2        W1 [width, hidden], W2 [hidden, width]
 *
 *     data     each rank has the whole network and a part of the batch; gradients are averaged (kiln_parallel_gradients)
 *     shard    as data, but of each parameter, its gradient and what the optimiser keeps for it a rank has a part (Rajbhandari et al. 2020,
 *              ZeRO, stage 3): the whole is gathered where it is used, forward and once more backward, and its gradient is scattered
 *     tensor   each rank has the whole batch, and of each layer a part (Shoeybi et al. 2019, Megatron-LM): columns of W1, rows of W2, and
 *              so of what is hidden between them; what W2's parts give is summed up, and backward what flows to W1's input
 *
 * The network learns a function of random points. At the end it tells what memory a rank needed.
 */
#include <kiln.h>
#include <time.h>

static const char program[] = "parallel";
#include "arguments.h"

enum { MOST_BLOCKS = 64, SCALE = 0, W1, W2, KINDS };
typedef enum Way { DATA, SHARD, TENSOR, WAYS } Way;
static const char *const way_names[WAYS] = {"data", "shard", "tensor"};

/* A parameter: what it is whole; a rank has p, which may be a part. */
typedef struct Weight {
    kiln_group *group;
    kiln_shape shape;
    kiln_tensor *p;
} Weight;

typedef struct Net {
    kiln_group *group;
    Way way;
    long blocks, width, hidden, batch, steps, every, seed;
    double rate;
    Weight weight[MOST_BLOCKS * KINDS];
    kiln_tensor *p[MOST_BLOCKS * KINDS], *g[MOST_BLOCKS * KINDS]; /* of all, as the optimiser wants them */
    kiln_optimizer *optimizer;
    int n, rank, ranks;
} Net;

/* ---- sharded: y = x W, W whole while it is multiplied ---- */

static void gathered(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const Weight *w = user;
    out[0] = kiln_matmul(in[0], kiln_unshard(w->group, in[1], w->shape));
}

static void gathered_again(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user)
{
    const Weight *w = user;
    (void)out;
    grads[0] = kiln_matmul(cotangents[0], kiln_transpose(kiln_unshard(w->group, in[1], w->shape)));
    grads[1] = kiln_reduce_scatter(w->group, kiln_flatten(kiln_matmul(kiln_transpose(in[0]), cotangents[0])), KILN_REDUCE_MEAN, 0);
}

static kiln_tensor *sharded_linear(Weight *w, kiln_tensor *x)
{
    kiln_tensor *y;
    kiln_check(kiln_custom_gradient(gathered, gathered_again, NULL, 2, (kiln_tensor *[]){x, w->p}, 1, &y, w));
    return y;
}

/* ---- tensor-parallel: where a part of the layers begins, and where it ends ---- */

static void as_it_is(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = in[0];
}

static void summed(kiln_tensor **in, kiln_tensor **out, void *user) { out[0] = kiln_all_reduce(user, in[0], KILN_REDUCE_SUM); }

static void summed_back(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user)
{
    (void)in, (void)out;
    grads[0] = kiln_all_reduce(user, cotangents[0], KILN_REDUCE_SUM);
}

static void back_as_it_is(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user)
{
    (void)in, (void)out, (void)user;
    grads[0] = cotangents[0];
}

/* x, the same on all ranks, goes into each rank's columns: each has a part of its gradient. */
static kiln_tensor *column_parallel(const Weight *w, kiln_tensor *x)
{
    kiln_check(kiln_custom_gradient(as_it_is, summed_back, NULL, 1, &x, 1, &x, w->group));
    return kiln_matmul(x, w->p);
}

/* Each rank's rows give a part of the sum; all have it, and its gradient. */
static kiln_tensor *row_parallel(const Weight *w, kiln_tensor *x)
{
    kiln_tensor *y = kiln_matmul(x, w->p);
    kiln_check(kiln_custom_gradient(summed, back_as_it_is, NULL, 1, &y, 1, &y, w->group));
    return y;
}

/* ---- the network ---- */

static kiln_tensor *linear(const Net *net, Weight *w, int kind, kiln_tensor *x)
{
    if (net->way == SHARD)
        return sharded_linear(w, x);
    return net->way == DATA ? kiln_matmul(x, w->p) : kind == W1 ? column_parallel(w, x) : row_parallel(w, x);
}

/* in: x, y [rows, width] -> out: the loss of all ranks */
static void step(kiln_tensor **in, kiln_tensor **out, void *user)
{
    Net *net = user;
    kiln_tensor *x = in[0];
    for (long b = 0; b < net->blocks; b++) {
        Weight *w = net->weight + b * KINDS;
        kiln_tensor *scale = net->way == SHARD ? kiln_unshard(net->group, w[SCALE].p, w[SCALE].shape) : w[SCALE].p;
        kiln_tensor *hidden = kiln_gelu_tanh(linear(net, &w[W1], W1, kiln_rms_norm(x, scale, 1e-5)));
        x = kiln_add(x, linear(net, &w[W2], W2, hidden));
    }
    kiln_tensor *loss = kiln_mean(kiln_square(kiln_sub(x, in[1])));
    kiln_status status = kiln_grad(loss, net->p, net->n, net->g);
    if (status == KILN_OK && net->way == DATA)
        status = kiln_parallel_gradients(net->group, net->g, net->n);
    if (status == KILN_OK)
        (void)kiln_optimizer_step(net->optimizer, net->g, kiln_scalar(net->rate)); /* an error that is kept fails the call */
    out[0] = net->way == TENSOR ? loss : kiln_all_reduce(net->group, loss, KILN_REDUCE_MEAN);
}

/* What this rank has of a parameter. */
static kiln_tensor *own_part(const Net *net, int kind, kiln_tensor *whole)
{
    const int64_t part = net->hidden / net->ranks, first = net->rank * part;
    if (net->way == SHARD)
        return kiln_shard(net->group, whole);
    if (net->way == DATA || kind == SCALE)
        return whole;
    return kiln_slice_axis(whole, kind == W1 ? 1 : 0, first, first + part, 1);
}

static void make_weights(Net *net)
{
    const kiln_shape shape[KINDS] = {KILN_SHAPE(net->width), KILN_SHAPE(net->width, net->hidden), KILN_SHAPE(net->hidden, net->width)};
    for (int i = 0; i < net->n; i++) {
        kiln_scope *scope = kiln_scope_begin(); /* so that there is one whole parameter at a time */
        int kind = i % KINDS;
        kiln_tensor *whole = kind == SCALE ? kiln_ones(KILN_F32, shape[kind]) : kiln_normal(KILN_F32, shape[kind], 0, 0.05);
        net->p[i] = kiln_keep(kiln_param(own_part(net, kind, whole)));
        kiln_check(kiln_eval(net->p[i]));
        net->weight[i] = (Weight){net->group, shape[kind], net->p[i]};
        kiln_scope_end(scope);
    }
    net->optimizer = kiln_optimizer_new(net->p, net->n, &(kiln_optimizer_options){.kind = KILN_ADAMW});
    for (int i = 0; net->optimizer && kiln_optimizer_state(net->optimizer, i, NULL); i++)
        kiln_check(kiln_eval(kiln_optimizer_state(net->optimizer, i, NULL)));
}

/* Points, and what the network is to make of them; this rank's rows. */
static void make_batch(const Net *net, kiln_tensor *in[2])
{
    int64_t rows = net->batch, first = 0;
    if (net->way != TENSOR)
        first = net->rank * (rows /= net->ranks);
    kiln_tensor *x = kiln_normal(KILN_F32, KILN_SHAPE(net->batch, net->width), 0, 1);
    in[0] = kiln_slice_axis(x, 0, first, first + rows, 1);
    in[1] = kiln_sin(kiln_add(in[0], kiln_roll(in[0], 1, 1)));
    kiln_check(kiln_eval_many(in, 2));
}

static double seconds(void)
{
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void train(Net *net)
{
    kiln_stats stats;
    kiln_function *update = kiln_function_new(step, 2, 1, net);
    kiln_get_stats(&stats);
    const double kept = 1e-6 * (double)stats.live_bytes;
    double began = 0;
    for (long s = 1; s <= net->steps; s++) {
        kiln_scope *scope = kiln_scope_begin();
        if (s <= 2) { /* the first one records and compiles, and holds more while it does */
            kiln_reset_stats();
            began = seconds();
        }
        kiln_tensor *in[2], *loss;
        double now;
        make_batch(net, in);
        kiln_check(kiln_function_call(update, in, &loss));
        kiln_check(kiln_item(loss, &now));
        if (net->rank == 0 && (s % net->every == 0 || s == 1))
            printf("step %ld: loss %.6f\n", s, now);
        kiln_scope_end(scope);
    }
    kiln_get_stats(&stats);
    if (net->rank == 0)
        printf("%s, %d ranks: %.2f MB of parameters and state, at most %.2f MB in a step, which takes %.2f ms\n", way_names[net->way],
               net->ranks, kept, 1e-6 * (double)stats.peak_bytes,
               1e3 * (seconds() - began) / (double)(net->steps > 1 ? net->steps - 1 : 1));
    kiln_function_free(update);
}

static const char help[] = "usage: mpirun -n N parallel data|shard|tensor [options]\n"
                           "trains one network, cut in one of three ways, and prints its loss and what memory a rank needs\n"
                           "  --blocks N  --width N  --hidden N    the network (4, 64, 256)\n"
                           "  --batch N        points in a step (64)\n"
                           "  --steps N        (40)      --every N    steps between lines (10)\n"
                           "  --rate R         learning rate (0.002)\n"
                           "  --seed N         of parameters and points (1)\n";

int main(int argc, char **argv)
{
    static Net net = {
        .way = WAYS, .blocks = 4, .width = 64, .hidden = 256, .batch = 64, .steps = 40, .every = 10, .seed = 1, .rate = 0.002};
    const Known known[] = {{"--blocks", &net.blocks, 1, MOST_BLOCKS, .text = NULL}, {"--width", &net.width, 2, 1 << 16, .text = NULL},
                           {"--hidden", &net.hidden, 1, 1 << 18, .text = NULL},     {"--batch", &net.batch, 1, 1 << 20, .text = NULL},
                           {"--steps", &net.steps, 1, 1000000, .text = NULL},       {"--every", &net.every, 1, 1000000, .text = NULL},
                           {"--seed", &net.seed, 0, 1000000000, .text = NULL},      {"--rate", .number = &net.rate, .low = 0, .high = 10}};
    help_if_asked(help, argc, argv);
    for (int w = 0; w < WAYS && argc > 1; w++)
        if (!strcmp(argv[1], way_names[w]))
            net.way = (Way)w;
    if (net.way == WAYS)
        refuse(argv[1], "data, shard or tensor is needed");
    for (int i = 2; i < argc; i++)
        take_option(known, sizeof known / sizeof *known, argc, argv, &i);
    kiln_scope *scope = kiln_scope_begin();
    if (!(net.group = kiln_group_world(NULL)))
        kiln_check(kiln_error_status());
    net.rank = kiln_group_rank(net.group);
    net.ranks = kiln_group_size(net.group);
    net.n = (int)net.blocks * KINDS;
    if (net.way != TENSOR && net.batch % net.ranks)
        refuse("--batch", "a multiple of the number of processes is needed");
    if (net.way != DATA && net.hidden % net.ranks)
        refuse("--hidden", "a multiple of the number of processes is needed");
    kiln_seed((uint64_t)net.seed);
    make_weights(&net);
    train(&net);
    kiln_check(kiln_barrier(net.group));
    kiln_optimizer_free(net.optimizer);
    kiln_scope_end(scope);
    return 0;
}
