/* Groups and collectives in one process: order, what is computed when, gradients, what is refused, failures. tests/ranks has several processes. */
#include "mirror.h"

static const char *const all_modes[] = {"jit", "eager", "interp"};
enum { ALL_MODES = 3 };

enum { LAYERS = 5, WIDTH = 160 }; /* 100 KB: large enough to be in the air */
static kiln_tensor *layer[LAYERS];

static kiln_tensor *ramp(kiln_dtype dtype, int64_t n) { return kiln_cast(kiln_arange(KILN_F32, 0, (double)n, 1), dtype); }

static void called(int line, const char *calls)
{
    mirror.calls[mirror.n] = 0;
    cr_assert(!strcmp(mirror.calls, calls), "line %d: \"%s\" ran, not \"%s\"", line, mirror.calls, calls);
    mirror.n = 0;
}
#define CALLED(calls) called(__LINE__, calls)

Test(ranks, alone)
{
    kiln_group *world = kiln_group_world("self");
    cr_assert(world, "%s", kiln_error_message());
    cr_assert(kiln_group_world("self") == world && kiln_group_rank(world) == 0 && kiln_group_size(world) == 1);
    cr_assert_str_eq(kiln_group_backend(world), "self");
    kiln_tensor *x = ramp(KILN_F32, 3), *i = ramp(KILN_I8, 2);
    EXPECT(kiln_all_reduce(world, x, KILN_REDUCE_SUM), KILN_F32, KILN_SHAPE(3), 0, 0, 1, 2);
    EXPECT(kiln_all_reduce(world, i, KILN_REDUCE_MEAN), KILN_F32, KILN_SHAPE(2), 0, 0, 1);
    EXPECT(kiln_all_gather(world, x, 0), KILN_F32, KILN_SHAPE(3), 0, 0, 1, 2);
    EXPECT(kiln_reduce_scatter(world, i, KILN_REDUCE_PROD, 0), KILN_I8, KILN_SHAPE(2), 0, 0, 1);
    EXPECT(kiln_broadcast(world, x, 0), KILN_F32, KILN_SHAPE(3), 0, 0, 1, 2);
    EXPECT(kiln_all_to_all(world, x, 0, 0), KILN_F32, KILN_SHAPE(3), 0, 0, 1, 2);
    EXPECT(kiln_send_recv(world, x, (int[]){0}), KILN_F32, KILN_SHAPE(3), 0, 0, 1, 2);
    EXPECT(kiln_send_recv(world, x, (int[]){-1}), KILN_F32, KILN_SHAPE(3), 0, 0, 0, 0);
    EXPECT(kiln_all_reduce(world, kiln_scalar(2), KILN_REDUCE_SUM), KILN_F32, KILN_SHAPE(), 0, 2);
    cr_assert_eq(kiln_barrier(world), KILN_OK);
    kiln_group *part = kiln_group_split(world, 3, 0);
    cr_assert(part && part != world && kiln_group_size(part) == 1, "%s", kiln_error_message());
    cr_assert(!kiln_group_split(world, -1, 0) && kiln_error_status() == KILN_OK);
    cr_assert(kiln_group_rank(NULL) == -1 && kiln_group_size(NULL) == 0 && !kiln_group_backend(NULL));
}

/* Where axes go, and dtypes, in each mode. */
Test(ranks, values)
{
    kiln_group *world = mirror_world();
    for (int mode = 0; mode < ALL_MODES; mode++) {
        set_option("mode", all_modes[mode]);
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_reshape(ramp(KILN_F32, 4), KILN_SHAPE(2, 2)), *b = kiln_cast(x, KILN_BF16), *i = ramp(KILN_I32, 2);
        EXPECT(kiln_add(kiln_all_reduce(world, kiln_mul(x, 3), KILN_REDUCE_SUM), 1), KILN_F32, KILN_SHAPE(2, 2), 0, 1, 7, 13, 19);
        EXPECT(kiln_all_reduce(world, b, KILN_REDUCE_MEAN), KILN_BF16, KILN_SHAPE(2, 2), 0, 0, 1, 2, 3);
        EXPECT(kiln_all_reduce(world, i, KILN_REDUCE_MEAN), KILN_F32, KILN_SHAPE(2), 0, 0, 1);
        EXPECT(kiln_all_reduce(world, kiln_add(i, 2), KILN_REDUCE_PROD), KILN_I32, KILN_SHAPE(2), 0, 4, 9);
        EXPECT(kiln_all_reduce(world, b, KILN_REDUCE_MAX), KILN_BF16, KILN_SHAPE(2, 2), 0, 0, 1, 2, 3);
        EXPECT(kiln_all_gather(world, x, 0), KILN_F32, KILN_SHAPE(4, 2), 0, 0, 1, 2, 3, 0, 1, 2, 3);
        EXPECT(kiln_all_gather(world, x, -1), KILN_F32, KILN_SHAPE(2, 4), 0, 0, 1, 0, 1, 2, 3, 2, 3);
        EXPECT(kiln_reduce_scatter(world, x, KILN_REDUCE_SUM, 0), KILN_F32, KILN_SHAPE(1, 2), 0, 0, 2);
        EXPECT(kiln_reduce_scatter(world, b, KILN_REDUCE_SUM, 1), KILN_BF16, KILN_SHAPE(2, 1), 0, 0, 4);
        EXPECT(kiln_reduce_scatter(world, x, KILN_REDUCE_MAX, 1), KILN_F32, KILN_SHAPE(2, 1), 0, 0, 2);
        EXPECT(kiln_reduce_scatter(world, kiln_cast(x, KILN_I8), KILN_REDUCE_PROD, 0), KILN_I8, KILN_SHAPE(1, 2), 0, 0, 1);
        EXPECT(kiln_all_to_all(world, x, 1, 0), KILN_F32, KILN_SHAPE(4, 1), 0, 0, 2, 0, 2);
        EXPECT(kiln_all_to_all(world, x, 0, 1), KILN_F32, KILN_SHAPE(1, 4), 0, 0, 1, 0, 1);
        EXPECT(kiln_broadcast(world, x, 1), KILN_F32, KILN_SHAPE(2, 2), 0, 0, 1, 2, 3);
        EXPECT(kiln_send_recv(world, i, (int[]){1, 0}), KILN_I32, KILN_SHAPE(2), 0, 0, 1);
        EXPECT(kiln_send_recv(world, i, (int[]){-1, 0}), KILN_I32, KILN_SHAPE(2), 0, 0, 0);
        EXPECT_EMPTY(kiln_all_gather(world, kiln_zeros(KILN_F32, KILN_SHAPE(0, 3)), 0), KILN_F32, KILN_SHAPE(0, 3));
        kiln_scope_end(scope);
    }
    end_mode();
}

/* Messages of two ranks: values in each mode, in the order of all collectives, computed though nobody asks for them. */
Test(ranks, messages)
{
    kiln_group *world = mirror_world();
    for (int mode = 0; mode < ALL_MODES; mode++) {
        set_option("mode", all_modes[mode]);
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = ramp(KILN_F32, 3);
        kiln_tensor *sum = kiln_all_reduce(world, x, KILN_REDUCE_SUM), *sent = kiln_send(world, kiln_mul(sum, 2), 1);
        kiln_tensor *got = kiln_recv(world, KILN_I32, KILN_SHAPE(2, 1), 1), *all = kiln_all_gather(world, kiln_add(got, 1), 0);
        (void)kiln_send(world, kiln_gt(x, 1), 1);
        if (mode != 1)
            CALLED("");
        EXPECT(all, KILN_I32, KILN_SHAPE(4, 1), 0, 11, 12, 11, 12);
        EXPECT(sent, KILN_F32, KILN_SHAPE(), 0, 0);
        EXPECT(got, KILN_I32, KILN_SHAPE(2, 1), 0, 10, 11);
        EXPECT(kiln_send(world, kiln_cast(x, KILN_F64), 1), KILN_F64, KILN_SHAPE(), 0, 0);
        EXPECT(kiln_send(world, kiln_cast(x, KILN_I8), 1), KILN_F32, KILN_SHAPE(), 0, 0);
        EXPECT(kiln_recv(world, KILN_F64, KILN_SHAPE(), 1), KILN_F64, KILN_SHAPE(), 0, 10);
        EXPECT_EMPTY(kiln_recv(world, KILN_F32, KILN_SHAPE(0, 2), 1), KILN_F32, KILN_SHAPE(0, 2));
        (void)kiln_send(world, x, 1);
        cr_assert_eq(kiln_barrier(world), KILN_OK);
        CALLED("R><G>>><<>b");
        kiln_scope_end(scope);
    }
    end_mode();
}

/* To itself, which no backend sees: first in, first out; and gradients. */
Test(ranks, messages_to_itself)
{
    kiln_group *worlds[] = {kiln_group_world("self"), mirror_world()};
    for (int mode = 0; mode < 2 * ALL_MODES; mode++) {
        kiln_group *world = worlds[mode / ALL_MODES];
        set_option("mode", all_modes[mode % ALL_MODES]);
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_param(ramp(KILN_F32, 3)), *one = kiln_send(world, kiln_mul(x, 2), 0),
                    *two = kiln_send(world, kiln_add(x, 1), 0);
        kiln_tensor *first = kiln_recv(world, KILN_F32, KILN_SHAPE(3), 0), *second = kiln_recv(world, KILN_F32, KILN_SHAPE(3), 0), *g;
        kiln_tensor *loss = kiln_add(kiln_add(two, kiln_sum(kiln_square(second))), kiln_add(kiln_sum(kiln_mul(first, 5)), one));
        cr_assert_eq(kiln_grad(loss, &x, 1, &g), KILN_OK, "%s", kiln_error_message());
        EXPECT(kiln_sub(first, second), KILN_F32, KILN_SHAPE(3), 0, -1, 0, 1);
        EXPECT(g, KILN_F32, KILN_SHAPE(3), 0, 12, 14, 16);
        kiln_scope_end(scope);
    }
    CALLED("");
    kiln_send(worlds[0], ramp(KILN_F32, 2), 0);
    fails_with(kiln_eval(kiln_recv(worlds[0], KILN_F32, KILN_SHAPE(3), 0)), KILN_COMM,
               "rank 0, which sends itself something, has send of f32[2] to rank 0 (test_ranks.c:");
    fails_with(kiln_eval(kiln_recv(worlds[1], KILN_F32, KILN_SHAPE(3), 0)), KILN_COMM, "recv of f32[3] from rank 0 (test_ranks.c:");
    end_mode();
}

/* In the order in which they were recorded, each once, whatever is asked for when. */
Test(ranks, order)
{
    kiln_group *world = mirror_world();
    for (int mode = 0; mode < ALL_MODES; mode++) {
        if (mode == 1) /* where nothing waits */
            continue;
        set_option("mode", all_modes[mode]);
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = ramp(KILN_F32, 2), *sum = kiln_all_reduce(world, x, KILN_REDUCE_SUM),
                    *again = kiln_all_reduce(world, x, KILN_REDUCE_SUM);
        kiln_tensor *gathered = kiln_all_gather(world, x, 0), *last = kiln_broadcast(world, x, 0);
        CALLED("");
        EXPECT(gathered, KILN_F32, KILN_SHAPE(4), 0, 0, 1, 0, 1);
        CALLED("RRG");
        EXPECT(kiln_add(sum, again), KILN_F32, KILN_SHAPE(2), 0, 0, 4);
        CALLED("");
        (void)last;
        cr_assert_eq(kiln_barrier(world), KILN_OK);
        CALLED("Bb");
        EXPECT(kiln_sub(kiln_all_reduce(world, x, KILN_REDUCE_SUM), kiln_all_reduce(world, x, KILN_REDUCE_SUM)), KILN_F32, KILN_SHAPE(2), 0,
               0, 0);
        CALLED("RR"); /* equal ones are two */
        kiln_scope_end(scope);
        cr_assert_eq(kiln_barrier(world), KILN_OK);
        CALLED("b");
    }
    kiln_scope *scope = kiln_scope_begin();
    (void)kiln_all_reduce(world, ramp(KILN_F32, 2), KILN_REDUCE_SUM);
    kiln_scope_end(scope); /* nobody holds its result: it is none to be dropped */
    kiln_tensor *y = kiln_all_gather(world, ramp(KILN_F32, 1), 0);
    EXPECT(y, KILN_F32, KILN_SHAPE(2), 0, 0, 0);
    CALLED("RG");
    end_mode();
}

/* One graph of more nodes than a program has. */
Test(ranks, order_in_parts)
{
    kiln_group *world = mirror_world();
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(2));
    for (int k = 0; k < 120; k++) {
        for (int j = 0; j < 50; j++)
            x = kiln_sub(kiln_mul(x, 1.5), kiln_mul(x, 0.5));
        x = kiln_all_reduce(world, x, k % 2 ? KILN_REDUCE_MEAN : KILN_REDUCE_MAX);
    }
    EXPECT(x, KILN_F32, KILN_SHAPE(2), 0, 1, 1);
    cr_assert_eq(mirror.n, 120);
}

static kiln_group *in_step;
static kiln_tensor *weight;

static void step(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    kiln_tensor *sum = kiln_all_reduce(in_step, kiln_mul(in[0], weight), KILN_REDUCE_SUM);
    kiln_assign(weight, kiln_add(weight, 1));
    out[0] = kiln_mul(kiln_all_gather(in_step, sum, 0), 10);
}

/* A kiln_function carries the order on from call to call, and into what is recorded around it. */
Test(ranks, functions)
{
    in_step = mirror_world();
    weight = kiln_ones(KILN_F32, KILN_SHAPE());
    kiln_function *f = kiln_function_new(step, 1, 1, NULL);
    kiln_tensor *x = ramp(KILN_F32, 2), *y;
    kiln_stats before;
    for (int k = 1; k < 6; k++) {
        kiln_tensor *outside = kiln_broadcast(in_step, x, 0);
        if (k == 4)
            kiln_get_stats(&before);
        cr_assert_eq(kiln_function_call(f, &x, &y), KILN_OK, "%s", kiln_error_message());
        EXPECT(y, KILN_F32, KILN_SHAPE(4), 0, 0, 20.0 * k, 0, 20.0 * k);
        CALLED("BRG");
        EXPECT(outside, KILN_F32, KILN_SHAPE(2), 0, 0, 1);
    }
    no_compile_since(&before);
    kiln_function_free(f);
    end_mode();
}

static void gradient_is(int line, kiln_tensor *y, kiln_tensor *x, kiln_shape shape, const double *want, size_t n)
{
    kiln_tensor *w = kiln_add(kiln_reshape(ramp(kiln_dtype_of(y), kiln_numel(y)), kiln_shape_of(y)), 1), *g = NULL;
    kiln_tensor *loss = kiln_sum(kiln_mul(y, w));
    cr_assert_eq(kiln_grad(loss, &x, 1, &g), KILN_OK, "line %d: %s", line, kiln_error_message());
    expect(line, g, kiln_dtype_of(x), shape, 1e-6, want, n);
}
#define GRADIENT(y, x, shape, ...) \
    gradient_is(__LINE__, y, x, shape, (const double[]){__VA_ARGS__}, sizeof((const double[]){__VA_ARGS__}) / sizeof(double))

/* y times 1, 2, ..., summed, on both ranks. */
Test(ranks, gradients)
{
    kiln_group *world = mirror_world();
    for (int mode = 0; mode < ALL_MODES; mode++) {
        set_option("mode", all_modes[mode]);
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_param(kiln_add(ramp(KILN_F32, 2), 3)), *b = kiln_param(kiln_cast(x, KILN_BF16));
        GRADIENT(kiln_all_reduce(world, x, KILN_REDUCE_SUM), x, KILN_SHAPE(2), 2, 4);
        GRADIENT(kiln_all_reduce(world, kiln_square(x), KILN_REDUCE_MEAN), x, KILN_SHAPE(2), 6, 16);
        GRADIENT(kiln_all_reduce(world, x, KILN_REDUCE_MAX), x, KILN_SHAPE(2), 1, 2);
        GRADIENT(kiln_all_reduce(world, x, KILN_REDUCE_PROD), x, KILN_SHAPE(2), 6, 16);
        GRADIENT(kiln_all_reduce(world, b, KILN_REDUCE_SUM), b, KILN_SHAPE(2), 2, 4);
        mirror.n = 0;
        GRADIENT(kiln_all_gather(world, x, 0), x, KILN_SHAPE(2), 2, 4); /* from both ranks the part of rank 0 */
        CALLED("GS");
        GRADIENT(kiln_reduce_scatter(world, x, KILN_REDUCE_SUM, 0), x, KILN_SHAPE(2), 1, 1);
        CALLED("SG");
        GRADIENT(kiln_all_gather(world, b, 0), b, KILN_SHAPE(2), 2, 4);
        mirror.n = 0;
        GRADIENT(kiln_broadcast(world, x, 0), x, KILN_SHAPE(2), 2, 4);
        CALLED("Br");
        GRADIENT(kiln_broadcast(world, x, 1), x, KILN_SHAPE(2), 0, 0);
        GRADIENT(kiln_all_to_all(world, x, 0, 0), x, KILN_SHAPE(2), 1, 1);
        mirror.n = 0;
        GRADIENT(kiln_send_recv(world, x, (int[]){1, -1}), x, KILN_SHAPE(2), 0, 0);
        GRADIENT(kiln_send_recv(world, x, (int[]){1, 0}), x, KILN_SHAPE(2), 1, 2);
        CALLED("PPPP");
        kiln_tensor *t, *y = kiln_all_reduce(world, kiln_square(x), KILN_REDUCE_SUM), *ones = kiln_ones(KILN_F32, KILN_SHAPE(2));
        cr_assert_eq(kiln_jvp(1, &x, &ones, 1, &y, 0, &t), KILN_OK, "%s", kiln_error_message());
        EXPECT(t, KILN_F32, KILN_SHAPE(2), 0, 12, 16);
        mirror.n = 0;
        kiln_scope_end(scope);
    }
    end_mode();
}

/* Two gradients of one collective are two; what was recorded between stays between. */
Test(ranks, gradients_have_their_place)
{
    kiln_group *world = mirror_world();
    kiln_tensor *x = kiln_param(ramp(KILN_F32, 2)), *y = kiln_sum(kiln_all_gather(world, x, 0)), *g, *h;
    cr_assert_eq(kiln_grad(y, &x, 1, &g), KILN_OK);
    kiln_tensor *between = kiln_broadcast(world, ramp(KILN_F32, 2), 0);
    cr_assert_eq(kiln_grad(kiln_square(y), &x, 1, &h), KILN_OK);
    EXPECT(h, KILN_F32, KILN_SHAPE(2), 0, 8, 8);
    CALLED("GSBS");
    EXPECT(kiln_add(g, between), KILN_F32, KILN_SHAPE(2), 0, 2, 3);
    CALLED("");
    kiln_tensor *gg;
    cr_assert_eq(kiln_grad(kiln_sum(kiln_square(g)), &x, 1, &gg), KILN_OK); /* it is constant */
}

static void sync_backward(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user)
{
    (void)in, (void)out;
    grads[0] = kiln_all_reduce(user, cotangents[0], KILN_REDUCE_SUM);
}

static void as_it_is(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = in[0];
}

/* Of one's own: the identity whose gradient is summed, as tensor-parallel layers have it. */
Test(ranks, in_a_custom_gradient)
{
    kiln_group *world = mirror_world();
    kiln_tensor *x = kiln_param(ramp(KILN_F32, 2)), *y, *g;
    cr_assert_eq(kiln_custom_gradient(as_it_is, sync_backward, NULL, 1, &x, 1, &y, world), KILN_OK, "%s", kiln_error_message());
    kiln_tensor *loss = kiln_sum(kiln_all_reduce(world, kiln_square(y), KILN_REDUCE_SUM));
    cr_assert_eq(kiln_grad(loss, &x, 1, &g), KILN_OK, "%s", kiln_error_message());
    EXPECT(g, KILN_F32, KILN_SHAPE(2), 0, 0, 8);
    CALLED("RRR");
}

Test(ranks, parallel_gradients)
{
    kiln_group *world = mirror_world();
    kiln_tensor *grads[5] = {ramp(KILN_F32, 3), kiln_full(KILN_F64, KILN_SHAPE(2, 1), 4), kiln_full(KILN_F32, KILN_SHAPE(), 7),
                             kiln_full(KILN_F32, KILN_SHAPE(100, 200), 5), kiln_zeros(KILN_F32, KILN_SHAPE(0, 2))};
    cr_assert_eq(kiln_parallel_gradients(world, grads, 5), KILN_OK, "%s", kiln_error_message());
    EXPECT(grads[0], KILN_F32, KILN_SHAPE(3), 0, 0, 1, 2);
    EXPECT(grads[1], KILN_F64, KILN_SHAPE(2, 1), 0, 4, 4);
    EXPECT(grads[2], KILN_F32, KILN_SHAPE(), 0, 7);
    EXPECT(kiln_mean(grads[3]), KILN_F32, KILN_SHAPE(), 0, 5);
    EXPECT_EMPTY(grads[4], KILN_F32, KILN_SHAPE(0, 2));
    CALLED("RRR"); /* the large one, the small f32 ones, the f64 one */
    cr_assert_eq(kiln_parallel_gradients(world, NULL, 0), KILN_OK);
    grads[1] = NULL;
    fails_with(kiln_parallel_gradients(world, grads, 5), KILN_INVALID, "a gradient is NULL");
    end_mode();
}

/* Parts of what is laid out in one row, the last with zeros, and back; the gradient is the mean. */
Test(ranks, shards)
{
    kiln_group *world = mirror_world(), *alone = kiln_group_world("self");
    for (int mode = 0; mode < ALL_MODES; mode++) {
        set_option("mode", all_modes[mode]);
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_reshape(kiln_add(ramp(KILN_F32, 6), 1), KILN_SHAPE(2, 3));
        EXPECT(kiln_shard(world, x), KILN_F32, KILN_SHAPE(3), 0, 1, 2, 3);
        EXPECT(kiln_shard(world, ramp(KILN_I8, 5)), KILN_I8, KILN_SHAPE(3), 0, 0, 1, 2);
        EXPECT(kiln_shard(world, kiln_full(KILN_F32, KILN_SHAPE(), 7)), KILN_F32, KILN_SHAPE(1), 0, 7);
        EXPECT_EMPTY(kiln_shard(world, kiln_zeros(KILN_F32, KILN_SHAPE(0, 3))), KILN_F32, KILN_SHAPE(0));
        EXPECT(kiln_shard(alone, x), KILN_F32, KILN_SHAPE(6), 0, 1, 2, 3, 4, 5, 6);
        EXPECT(kiln_unshard(alone, kiln_shard(alone, x), KILN_SHAPE(2, 3)), KILN_F32, KILN_SHAPE(2, 3), 0, 1, 2, 3, 4, 5, 6);
        mirror.n = 0;
        kiln_tensor *p = kiln_param(kiln_shard(world, x)), *b = kiln_param(kiln_cast(kiln_shard(world, x), KILN_BF16));
        EXPECT(kiln_unshard(world, p, KILN_SHAPE(5)), KILN_F32, KILN_SHAPE(5), 0, 1, 2, 3, 1, 2);
        EXPECT(kiln_unshard(world, kiln_ones(KILN_F32, KILN_SHAPE(1)), KILN_SHAPE()), KILN_F32, KILN_SHAPE(), 0, 1);
        EXPECT_EMPTY(kiln_unshard(world, kiln_zeros(KILN_F32, KILN_SHAPE(0)), KILN_SHAPE(3, 0)), KILN_F32, KILN_SHAPE(3, 0));
        mirror.n = 0;
        GRADIENT(kiln_square(kiln_unshard(world, p, KILN_SHAPE(2, 3))), p, KILN_SHAPE(3), 2, 8, 18);
        CALLED("GS");
        GRADIENT(kiln_square(kiln_unshard(world, b, KILN_SHAPE(2, 3))), b, KILN_SHAPE(3), 2, 8, 18);
        mirror.n = 0;
        kiln_scope_end(scope);
    }
    end_mode();
}

static void train_layers(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *x = in[0], *g[LAYERS];
    for (int k = 0; k < LAYERS; k++)
        x = kiln_tanh(kiln_matmul(x, layer[k]));
    out[0] = kiln_mean(kiln_square(x));
    kiln_check(kiln_grad(out[0], layer, LAYERS, g));
    kiln_check(kiln_parallel_gradients(user, g, LAYERS));
    for (int k = 0; k < LAYERS; k++)
        kiln_check(kiln_assign(layer[k], kiln_sub(layer[k], kiln_mul(g[k], 3))));
}

/* Some steps, from the same weights; what they are then. */
static void trained(kiln_group *world, double takes, int steps, float *weights)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_function *f = kiln_function_new(train_layers, 1, 1, world);
    kiln_tensor *x = kiln_sin(kiln_reshape(ramp(KILN_F32, 64 * WIDTH), KILN_SHAPE(64, WIDTH))), *loss;
    for (int k = 0; k < LAYERS; k++) {
        kiln_tensor *w = kiln_cos(kiln_mul(ramp(KILN_F32, WIDTH * WIDTH), 0.37 + k));
        layer[k] = kiln_param(kiln_mul(kiln_reshape(w, KILN_SHAPE(WIDTH, WIDTH)), 0.1));
    }
    cr_assert_eq(kiln_eval_many(layer, LAYERS), KILN_OK);
    mirror.takes = takes;
    for (int s = 0; s < steps; s++) {
        cr_assert_eq(kiln_function_call(f, &x, &loss), KILN_OK, "%s", kiln_error_message());
        cr_assert_eq(kiln_eval(loss), KILN_OK, "%s", kiln_error_message());
    }
    mirror.takes = 0;
    for (int k = 0; k < LAYERS; k++)
        cr_assert_eq(kiln_read(layer[k], KILN_F32, weights + k * WIDTH * WIDTH, WIDTH * WIDTH * sizeof *weights), KILN_OK);
    kiln_function_free(f);
    kiln_scope_end(scope);
}

/* The program goes on while collectives are on their way: nobody reads what is not there yet, nor writes what is still read. Same bits. */
Test(ranks, in_the_air)
{
    kiln_group *world = mirror_world();
    static float at_once[LAYERS * WIDTH * WIDTH], in_the_air[LAYERS * WIDTH * WIDTH];
    trained(world, 0, 3, at_once);
    CALLED("RRRRRRRRRRRRRRR");
    const int asked = mirror.elsewhere;
    trained(world, 3e-3, 3, in_the_air);
    CALLED("RRRRRRRRRRRRRRR");
    cr_assert(memcmp(at_once, in_the_air, sizeof at_once) == 0);
    cr_assert_gt(mirror.elsewhere, asked, "nobody asked how far it is while the program went on");
    end_mode();
}

/* One that fails in the air: the sync point fails, and parameters have what they had. */
Test(ranks, fails_in_the_air)
{
    kiln_group *world = mirror_world();
    static float before[LAYERS * WIDTH * WIDTH], after[WIDTH * WIDTH];
    trained(world, 0, 0, before);
    kiln_function *f = kiln_function_new(train_layers, 1, 1, world);
    kiln_tensor *x = kiln_sin(kiln_reshape(ramp(KILN_F32, 64 * WIDTH), KILN_SHAPE(64, WIDTH))), *loss;
    for (int k = 0; k < LAYERS; k++)
        layer[k] = kiln_param(kiln_from(KILN_F32, KILN_SHAPE(WIDTH, WIDTH), before + k * WIDTH * WIDTH));
    cr_assert_eq(kiln_function_call(f, &x, &loss), KILN_OK, "%s", kiln_error_message());
    cr_assert_eq(kiln_eval(loss), KILN_OK, "%s", kiln_error_message());
    cr_assert_eq(kiln_read(layer[2], KILN_F32, before, sizeof after), KILN_OK);
    set_option("comm_timeout", "1");
    mirror.stuck = true;
    mirror.takes = 1e-3;
    kiln_status status = kiln_function_call(f, &x, &loss);
    status = status == KILN_OK ? kiln_eval(loss) : status;
    fails_with(status, KILN_COMM, "all ranks came, but it was not done within 1 s (KILN_COMM_TIMEOUT): all_reduce sum of f32[160,160]");
    cr_assert_eq(kiln_read(layer[2], KILN_F32, after, sizeof after), KILN_OK, "%s", kiln_error_message());
    cr_assert(memcmp(before, after, sizeof after) == 0);
    kiln_function_free(f);
}

/* What flows to what was received goes back, and what flows to what was sent comes, in the opposite order, whatever the loss is made of first. */
Test(ranks, gradients_of_messages)
{
    kiln_group *world = mirror_world();
    for (int mode = 0; mode < ALL_MODES; mode++) {
        set_option("mode", all_modes[mode]);
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_param(ramp(KILN_F32, 2)), *b = kiln_param(kiln_full(KILN_F64, KILN_SHAPE(2), 3)), *both[] = {x, b}, *g[2];
        kiln_tensor *sent = kiln_send(world, kiln_mul(x, 3), 1), *got = kiln_recv(world, KILN_F32, KILN_SHAPE(2), 1);
        kiln_tensor *more = kiln_send(world, kiln_mul(b, 2), 1), *last = kiln_recv(world, KILN_F64, KILN_SHAPE(), 1);
        kiln_tensor *loss = kiln_add(kiln_add(kiln_sum(kiln_mul(got, x)), sent), kiln_add(kiln_square(last), more));
        cr_assert_eq(kiln_grad(loss, both, 2, g), KILN_OK, "%s", kiln_error_message());
        if (mode != 1)
            CALLED("");
        cr_assert_eq(kiln_eval_many(g, 2), KILN_OK, "%s", kiln_error_message());
        EXPECT(g[0], KILN_F32, KILN_SHAPE(2), 0, 30 + 10, 33 + 11);
        EXPECT(g[1], KILN_F64, KILN_SHAPE(2), 0, 20, 22);
        EXPECT(loss, KILN_F64, KILN_SHAPE(), 0, 111);
        CALLED("><><><><"); /* the gradient of the last one first: what was received goes back, what was sent comes */
        cr_assert_eq(kiln_grad(kiln_sum(kiln_mul(kiln_recv(world, KILN_F32, KILN_SHAPE(2), 1), 7)), NULL, 0, NULL), KILN_OK, "%s",
                     kiln_error_message());
        cr_assert_eq(kiln_barrier(world), KILN_OK); /* nobody asks for anything, but the other rank */
        CALLED("<>b");
        kiln_tensor *constant = kiln_stop_gradient(kiln_recv(world, KILN_F32, KILN_SHAPE(2), 1));
        GRADIENT(kiln_mul(constant, x), x, KILN_SHAPE(2), 10, 22);
        CALLED("<");
        /* Equal messages, and equal gradients, are several. */
        sent = kiln_add(kiln_send(world, x, 1), kiln_send(world, x, 1));
        cr_assert_eq(kiln_grad(sent, &x, 1, g), KILN_OK, "%s", kiln_error_message());
        EXPECT(g[0], KILN_F32, KILN_SHAPE(2), 0, 20, 22);
        CALLED(">><<");
        kiln_tensor *along = kiln_ones(KILN_F32, KILN_SHAPE(2)), *t;
        loss = kiln_mul(kiln_recv(world, KILN_F32, KILN_SHAPE(2), 1), x);
        fails_with(kiln_jvp(1, &x, &along, 1, &loss, 0, &t), KILN_UNSUPPORTED, "depends on kiln_recv");
        loss = kiln_send(world, x, 1);
        fails_with(kiln_jvp(1, &x, &along, 1, &loss, 0, &t), KILN_UNSUPPORTED, "kiln_send");
        cr_assert_eq(kiln_barrier(world), KILN_OK);
        CALLED("<>b");
        kiln_scope_end(scope);
    }
    end_mode();
}

static void pass_on(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *g;
    kiln_tensor *got = kiln_recv(user, KILN_F32, KILN_SHAPE(2), 1), *sent = kiln_send(user, kiln_mul(got, layer[0]), 1);
    (void)in;
    kiln_check(kiln_grad(sent, layer, 1, &g));
    kiln_check(kiln_assign(layer[0], kiln_sub(layer[0], g)));
    out[0] = kiln_add(layer[0], 0);
}

/* Traced once. */
Test(ranks, messages_in_a_function)
{
    kiln_group *world = mirror_world();
    kiln_function *f = kiln_function_new(pass_on, 0, 1, world);
    kiln_tensor *out;
    layer[0] = kiln_param(ramp(KILN_F32, 2));
    for (int k = 1; k <= 3; k++) {
        cr_assert_eq(kiln_function_call(f, NULL, &out), KILN_OK, "%s", kiln_error_message());
        EXPECT(out, KILN_F32, KILN_SHAPE(2), 0, -100 * k, 1 - 121 * k);
        CALLED("<><>");
    }
    kiln_function_free(f);
}

/* What the other rank has for this one does not fit. */
Test(ranks, messages_that_differ)
{
    kiln_group *world = mirror_world();
    mirror.same_way = true;
    fails_with(kiln_eval(kiln_send(world, ramp(KILN_F32, 4), 1)), KILN_COMM, "one has to receive first");
    CALLED("");
}

Test(ranks, messages_of_other_shapes)
{
    kiln_group *world = mirror_world();
    mirror.lie = 8 + 48 + 8 * 8; /* behind the first dim are seven more, the place, and a vote */
    kiln_tensor *got = kiln_recv(world, KILN_F32, KILN_SHAPE(4), 1);
    fails_with(kiln_eval(got), KILN_COMM,
               "ranks differ in message number 1 of group world: rank 0 has recv of f32[4] from rank 1 (test_ranks.c:");
    fails_with(kiln_eval(kiln_add(got, 1)), KILN_COMM, "rank 1 has send of f32[5] to rank 0 (test_ranks.c:");
    CALLED("");
}

Test(ranks, messages_that_nobody_takes)
{
    kiln_group *world = mirror_world();
    set_option("comm_timeout", "1");
    mirror.mute = true;
    fails_with(kiln_eval(kiln_send(world, ramp(KILN_F32, 4), 1)), KILN_COMM,
               "rank 1 did not come within 1 s (KILN_COMM_TIMEOUT): send of f32[4] to rank 1 (test_ranks.c:");
}

static kiln_group *refused;

static void reduces(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_all_reduce(refused, in[0], KILN_REDUCE_SUM);
}

static void fails(int line, kiln_tensor *x, kiln_status status, const char *text)
{
    cr_assert(!x, "line %d", line);
    fails_with(kiln_error_status(), status, text);
}
#define FAILS(x, status, text) fails(__LINE__, x, status, text)

Test(ranks, refuses)
{
    kiln_group *world = refused = mirror_world();
    kiln_tensor *x = ramp(KILN_F32, 3), *y, *deep = kiln_zeros(KILN_F32, KILN_SHAPE(1, 1, 1, 1, 1, 1, 1, 2));
    FAILS(kiln_all_reduce(NULL, x, KILN_REDUCE_SUM), KILN_INVALID, "group is NULL (test_ranks.c:");
    FAILS(kiln_all_reduce(world, NULL, KILN_REDUCE_SUM), KILN_INVALID, "x is NULL");
    FAILS(kiln_all_reduce(world, x, (kiln_reduce)9), KILN_INVALID, "no kiln_reduce");
    FAILS(kiln_all_reduce(world, kiln_gt(x, 0), KILN_REDUCE_SUM), KILN_BAD_DTYPE, "MAX is any");
    FAILS(kiln_all_gather(world, x, 1), KILN_INVALID, "axis");
    FAILS(kiln_all_gather(world, deep, 0), KILN_UNSUPPORTED, "at most 7 axes");
    FAILS(kiln_reduce_scatter(world, x, KILN_REDUCE_SUM, 0), KILN_BAD_SHAPE, "cannot be cut into 2 equal parts");
    FAILS(kiln_unshard(world, kiln_ones(KILN_F32, KILN_SHAPE(6)), KILN_SHAPE(2, 3)), KILN_BAD_SHAPE,
          "shard is f32[6]: each of 2 ranks has [3] of 6 elements");
    FAILS(kiln_unshard(world, kiln_ones(KILN_F32, KILN_SHAPE(2, 3)), KILN_SHAPE(2, 3)), KILN_BAD_SHAPE, "shard is f32[2,3]");
    FAILS(kiln_unshard(world, kiln_ones(KILN_F32, KILN_SHAPE(6)), KILN_SHAPE(-1)), KILN_BAD_SHAPE, "-1");
    FAILS(kiln_all_to_all(world, x, 0, 0), KILN_BAD_SHAPE, "cannot be cut into 2");
    FAILS(kiln_broadcast(world, x, 2), KILN_INVALID, "root is 2 in a group of 2");
    FAILS(kiln_send_recv(world, x, NULL), KILN_INVALID, "from is NULL");
    FAILS(kiln_send_recv(world, x, (int[]){0, 2}), KILN_INVALID, "from[1] is 2");
    FAILS(kiln_send_recv(world, x, (int[]){1, 1}), KILN_INVALID, "kiln_broadcast");
    FAILS(kiln_send(world, x, 2), KILN_INVALID, "to is 2 in a group of 2");
    FAILS(kiln_recv(world, KILN_F32, KILN_SHAPE(2), -1), KILN_INVALID, "from is -1 in a group of 2");
    fails_with(kiln_barrier(NULL), KILN_INVALID, "group is NULL");
    fails_with(kiln_checkpoint(reduces, 1, &x, 1, &y, NULL), KILN_UNSUPPORTED, "kiln_checkpoint");
    fails_with(kiln_map(reduces, 1, &x, NULL, 0, 1, &y, NULL), KILN_UNSUPPORTED, "kiln_map");
    fails_with(kiln_cond(kiln_gt(kiln_sum(x), 0), reduces, reduces, 1, &x, 1, &y, NULL), KILN_UNSUPPORTED, "a branch");
    cr_assert(!kiln_group_world("no such") && kiln_error_status() == KILN_INVALID);
    kiln_clear_error();
    cr_assert(!kiln_group_world("nosuch"));
    fails_with(kiln_error_status(), KILN_COMM, "libkiln_nosuch.so");
    kiln_comm_backend bad = {.version = 99, .name = "bad"};
    fails_with(kiln_comm_register(&bad), KILN_INVALID, "version 99");
    bad = (kiln_comm_backend){.version = KILN_COMM_VERSION, .name = "mirror"};
    fails_with(kiln_comm_register(&bad), KILN_INVALID, "a function is missing");
    cr_assert(!kiln_op_register(&(kiln_op_info){.name = "kiln.all_reduce", .version = "1"}));
    fails_with(kiln_error_status(), KILN_INVALID, "kiln's own");
    CALLED("");
}

/* Through memory of the host; and what lies where is in one order. */
Test(ranks, on_a_gpu)
{
    if (!cuda_driver())
        return;
    kiln_group *world = mirror_world();
    use_driver();
    kiln_tensor *x = ramp(KILN_F32, 2), *there = kiln_to(x, "cuda");
    kiln_tensor *sum = kiln_all_reduce(world, there, KILN_REDUCE_SUM), *all = kiln_all_gather(world, kiln_add(sum, 1), 0);
    kiln_tensor *max = kiln_all_reduce(world, x, KILN_REDUCE_MAX), *last = kiln_broadcast(world, kiln_mul(there, 3), 1);
    EXPECT(last, KILN_F32, KILN_SHAPE(2), 0, 0, 3);
    char where[16];
    cr_assert(kiln_device_of(last, where, sizeof where) == KILN_OK && !strcmp(where, "cuda:0"));
    EXPECT(max, KILN_F32, KILN_SHAPE(2), 0, 0, 1);
    EXPECT(all, KILN_F32, KILN_SHAPE(4), 0, 1, 3, 1, 3);
    CALLED("RGRB");
    FAILS(kiln_all_reduce(world, kiln_to(x, "meta"), KILN_REDUCE_SUM), KILN_DEVICE, "different devices");
}

Test(ranks, who_differs)
{
    kiln_group *world = mirror_world();
    mirror.lie = 8 + 48 + 8 * 8; /* behind the first dim are seven more, the place, and a vote */
    kiln_tensor *x = kiln_all_reduce(world, ramp(KILN_F32, 4), KILN_REDUCE_SUM), *later = kiln_all_gather(world, x, 0);
    fails_with(kiln_eval(x), KILN_COMM, "rank 0 has all_reduce sum of f32[4] (test_ranks.c:");
    CALLED(""); /* of what is new, the check comes first */
    fails_with(kiln_eval(later), KILN_COMM, "rank 1 has all_reduce sum of f32[5] (test_ranks.c:");
    fails_with(kiln_barrier(world), KILN_COMM, "ranks differ");
    CALLED("");
}

Test(ranks, who_runs_another_kiln)
{
    kiln_group *world = mirror_world();
    mirror.older = true;
    kiln_tensor *x = kiln_all_reduce(world, ramp(KILN_F32, 4), KILN_REDUCE_SUM);
    fails_with(kiln_eval(x), KILN_COMM,
               "rank 1 runs another version of kiln (its notes have format 0, those of this one 1): use one on all ranks");
    fails_with(kiln_barrier(world), KILN_COMM, "another version of kiln");
    CALLED("");
}

Test(ranks, who_does_not_come)
{
    kiln_group *world = mirror_world();
    set_option("comm_timeout", "1");
    kiln_tensor *x = kiln_all_reduce(world, ramp(KILN_F32, 4), KILN_REDUCE_SUM);
    EXPECT(x, KILN_F32, KILN_SHAPE(4), 0, 0, 2, 4, 6);
    mirror.mute = true;
    x = kiln_all_reduce(world, kiln_add(x, 1), KILN_REDUCE_SUM);
    fails_with(kiln_eval(x), KILN_COMM, "rank 1 did not come within 1 s (KILN_COMM_TIMEOUT): all_reduce sum of f32[4] (test_ranks.c:");
    mirror.mute = false;
    fails_with(kiln_eval(x), KILN_COMM, "rank 1 did not come");
}

/* In each mode: its memory is nobody else's afterwards. */
Test(ranks, what_hangs)
{
    kiln_group *world = mirror_world();
    set_option("comm_timeout", "1");
    mirror.stuck = true;
    kiln_tensor *x = kiln_all_reduce(world, ramp(KILN_F32, 4), KILN_REDUCE_SUM);
    fails_with(kiln_eval(x), KILN_COMM, "all ranks came, but it was not done within 1 s");
}

Test(ranks, backend_fails)
{
    kiln_group *world = mirror_world();
    mirror.start_fails = "out of cables";
    set_option("comm_timeout", "1");
    fails_with(kiln_eval(kiln_all_reduce(world, ramp(KILN_F32, 4), KILN_REDUCE_SUM)), KILN_COMM, "out of cables: all_reduce sum of f32[4]");
}

/* A failure after a collective, in the same program: it must not run once more. */
Test(ranks, out_of_step)
{
    kiln_group *world = mirror_world();
    kiln_tensor *sum = kiln_all_reduce(world, ramp(KILN_I32, 2), KILN_REDUCE_SUM);
    kiln_tensor *bad = kiln_take(ramp(KILN_F32, 2), sum, 0), *next = kiln_all_reduce(world, bad, KILN_REDUCE_SUM);
    cr_assert_eq(kiln_eval(kiln_take(ramp(KILN_F32, 1), sum, 0)), KILN_BAD_INDEX);
    CALLED("R");
    kiln_clear_error();
    fails_with(kiln_eval(next), KILN_COMM, "ranks are out of step");
    CALLED("");
}

/* A split is for all ranks of a group: it has its place in the order. */
Test(ranks, split)
{
    kiln_group *world = mirror_world();
    kiln_tensor *x = kiln_all_reduce(world, ramp(KILN_F32, 2), KILN_REDUCE_SUM);
    kiln_group *part = kiln_group_split(world, 1, 0);
    cr_assert(part && kiln_group_size(part) == 2, "%s", kiln_error_message());
    CALLED("RbG");
    EXPECT(kiln_add(x, kiln_all_gather(part, kiln_ones(KILN_F32, KILN_SHAPE(1)), 0)), KILN_F32, KILN_SHAPE(2), 0, 1, 3);
    CALLED("G");
    cr_assert(!kiln_group_split(world, -1, 0) && kiln_error_status() == KILN_OK && mirror.splits == 2);
}
