/* kiln_function where several devices are at hand: what lies where, what is traced and what is done at each call. */
#include "on_cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

/* The thread's device stays the CPU. With memory whose end the software driver knows. */
static void use_cuda(void)
{
    use_driver();
    if (software_driver())
        set_option("test_memory", "exact");
}

/* f(in), its one output; the function goes. */
static kiln_tensor *called(kiln_function *f, kiln_tensor *const *in)
{
    kiln_tensor *out[1];
    cr_assert(kiln_function_call(f, in, out) == KILN_OK, "%s", kiln_error_message());
    return out[0];
}

static void scaled_noise(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    kiln_tensor *noise = kiln_uniform(KILN_F32, KILN_SHAPE(4), 0, 1);
    out[0] = kiln_mul(in[0], kiln_add(noise, kiln_scalar(1)));
}

static void ones(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)in, (void)user;
    out[0] = kiln_ones(KILN_F32, KILN_SHAPE(2));
}

Test(cuda_functions, follow_their_inputs)
{
    use_cuda();
    kiln_tensor *x = F32(KILN_SHAPE(4), 1, 2, 3, 4), *there = kiln_to(x, "cuda"), *out[1], *nothing[1] = {NULL};
    float want[6][4], got[4];
    for (int k = 0; k < 2; k++) { /* the same draws without and with the device */
        kiln_seed(7);
        kiln_function *f = kiln_function_new(scaled_noise, 1, 1, NULL);
        for (int i = 0; i < 6; i++) {
            kiln_tensor *in[1] = {k && i % 3 != 1 ? there : x};
            cr_assert(kiln_function_call(f, in, out) == KILN_OK, "%s", kiln_error_message());
            expect_device(out[0], in[0] == there ? "cuda:0" : "cpu");
            cr_assert(kiln_read(out[0], KILN_F32, k ? got : want[i], sizeof got) == KILN_OK, "%s", kiln_error_message());
            cr_assert(!k || memcmp(got, want[i], sizeof got) == 0, "call %d", i);
        }
        kiln_function_free(f);
    }
    kiln_function *g = kiln_function_new(ones, 0, 1, NULL);
    for (int i = 0; i < 6; i++) {
        cr_assert(kiln_set_device(i / 2 == 1 ? "cuda" : "cpu") == KILN_OK);
        cr_assert(kiln_function_call(g, nothing, out) == KILN_OK, "%s", kiln_error_message());
        expect_device(out[0], i / 2 == 1 ? "cuda:0" : "cpu");
        EXPECT(kiln_to(out[0], "cpu"), KILN_F32, KILN_SHAPE(2), 0, 1, 1);
    }
    kiln_function_free(g);
}

static void plus_one_there(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor **captured = user;
    out[0] = kiln_add(kiln_to(captured ? *captured : in[0], captured ? "cpu" : "cuda"), kiln_scalar(1));
}

/* What is copied to another device is copied at each call. */
Test(cuda_functions, copies_between_devices)
{
    use_cuda();
    kiln_function *f = kiln_function_new(plus_one_there, 1, 1, NULL);
    for (int i = 0; i < 4; i++) {
        kiln_tensor *y = called(f, (kiln_tensor *[]){kiln_mul(F32(KILN_SHAPE(2), 1, 10), kiln_scalar(i))});
        expect_device(y, "cuda:0");
        EXPECT(y, KILN_F32, KILN_SHAPE(2), 0, i + 1, 10 * i + 1);
    }
    kiln_function_free(f);
    kiln_tensor *w = kiln_to(F32(KILN_SHAPE(2), 1, 2), "cuda"), *nothing[1] = {NULL};
    f = kiln_function_new(plus_one_there, 0, 1, &w);
    for (int i = 0; i < 4; i++) {
        kiln_tensor *y = called(f, nothing);
        expect_device(y, "cpu");
        EXPECT(y, KILN_F32, KILN_SHAPE(2), 0, 2 + i, 3 + i);
        cr_assert(kiln_assign(w, kiln_add(w, kiln_scalar(1))) == KILN_OK, "%s", kiln_error_message());
    }
    kiln_function_free(f);
}

static float brought[2] = {1, 2};

static void plus_brought(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    kiln_tensor *own = kiln_from(KILN_F32, KILN_SHAPE(2), brought);
    out[0] = in ? kiln_add(in[0], own) : kiln_add(own, kiln_scalar(1));
}

static void brought_plus_one(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)in;
    plus_brought(NULL, out, user);
}

/* KILN_CHECK=pure compares what a function brings along, wherever that lies. */
Test(cuda_functions, are_checked_for_purity)
{
    use_cuda();
    set_option("device", "cuda");
    set_option("check", "pure");
    kiln_tensor *in[1] = {F32(KILN_SHAPE(2), 3, 4)}, *out[1];
    kiln_function *f = kiln_function_new(plus_brought, 1, 1, NULL);
    for (int i = 0; i < 3; i++)
        EXPECT(called(f, in), KILN_F32, KILN_SHAPE(2), 0, 4, 6);
    brought[1] = 5;
    cr_assert(kiln_function_call(f, in, out) == KILN_INVALID, "%s", kiln_error_message());
    cr_assert(strstr(kiln_error_message(), "another tensor"), "%s", kiln_error_message());
    kiln_clear_error();
    kiln_function_free(f);
}

/* A function that depends on no tensor runs where the thread runs. */
Test(cuda_functions, without_inputs_follow_the_thread)
{
    use_cuda();
    kiln_tensor *nothing[1] = {NULL};
    kiln_function *f = kiln_function_new(brought_plus_one, 0, 1, NULL);
    for (int i = 0; i < 6; i++) {
        cr_assert(kiln_set_device(i / 2 == 1 ? "cuda" : "cpu") == KILN_OK);
        kiln_tensor *y = called(f, nothing);
        expect_device(y, i / 2 == 1 ? "cuda:0" : "cpu");
        EXPECT(y, KILN_F32, KILN_SHAPE(2), 0, 2, 3);
    }
    kiln_function_free(f);
}

static int runs; /* of a traced C function */

static void brought_there(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)in, (void)user;
    runs++;
    cr_assert(kiln_set_device("cuda") == KILN_OK, "%s", kiln_error_message());
    plus_brought(NULL, out, NULL);
    cr_assert(kiln_set_device("cpu") == KILN_OK);
}

/* The C function chooses the device of what it brings along. */
Test(cuda_functions, that_choose_a_device)
{
    use_cuda();
    kiln_tensor *nothing[1] = {NULL};
    kiln_function *f = kiln_function_new(brought_there, 0, 1, NULL);
    for (int i = 0; i < 3; i++) {
        kiln_tensor *y = called(f, nothing);
        expect_device(y, "cuda:0");
        EXPECT(y, KILN_F32, KILN_SHAPE(2), 0, 2, 3);
    }
    cr_assert(runs == 1, "%d runs", runs);
    kiln_function_free(f);
}

static void hand_on(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    runs++;
    out[0] = in[0];
}

static void brought_as_it_is(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    runs++;
    out[0] = in[0];
    out[1] = kiln_from(KILN_F32, KILN_SHAPE(2), brought);
}

/* An input lies where it lies, what is brought along where the thread runs, though nothing is computed. */
Test(cuda_functions, that_compute_nothing)
{
    use_cuda();
    kiln_tensor *x = F32(KILN_SHAPE(2), 3, 4), *there = kiln_to(x, "cuda"), *out[2];
    for (int n_out = 1; n_out <= 2; n_out++) {
        kiln_function *f = kiln_function_new(n_out == 1 ? hand_on : brought_as_it_is, 1, n_out, NULL);
        runs = 0;
        for (int i = 0; i < 8; i++) {
            kiln_tensor *in[1] = {i % 2 ? there : x};
            const char *now = i / 4 ? "cuda:0" : "cpu";
            cr_assert(kiln_set_device(now) == KILN_OK);
            cr_assert(kiln_function_call(f, in, out) == KILN_OK, "%s", kiln_error_message());
            expect_device(out[0], i % 2 ? "cuda:0" : "cpu");
            EXPECT(out[0], KILN_F32, KILN_SHAPE(2), 0, 3, 4);
            if (n_out == 2)
                expect_device(out[1], now);
        }
        cr_assert(runs == 2 * n_out, "%d results: %d runs", n_out, runs); /* for the input here and there; on each device */
        kiln_function_free(f);
    }
}

static void scaled_sum(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor **captured = user;
    out[0] = kiln_mul(kiln_add(in[1], *captured), in[0]);
}

/* Numbers and other values that lie nowhere go to whoever uses them, as without a function. */
Test(cuda_functions, values_that_lie_nowhere)
{
    use_cuda();
    kiln_tensor *there = kiln_to(F32(KILN_SHAPE(2), 1, 2), "cuda"), *w = kiln_zeros(KILN_F32, KILN_SHAPE(2));
    kiln_function *f = kiln_function_new(scaled_sum, 2, 1, &w);
    for (int i = 0; i < 4; i++) {
        kiln_tensor *y = called(f, (kiln_tensor *[]){kiln_cast(kiln_scalar(i), KILN_F32), there});
        expect_device(y, "cuda:0");
        EXPECT(y, KILN_F32, KILN_SHAPE(2), 0, i * (1 + i), i * (2 + i));
        kiln_tensor *next = kiln_full(KILN_F32, KILN_SHAPE(2), i + 1);
        cr_assert(kiln_assign(w, next) == KILN_OK, "%s", kiln_error_message());
    }
    kiln_function_free(f);
}

/* No results: the parameter takes the sum, where it lies. */
static void adds_to_parameter(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)out;
    kiln_tensor **w = user;
    cr_assert(kiln_assign(*w, kiln_add(*w, in[0])) == KILN_OK, "%s", kiln_error_message());
}

Test(cuda_functions, without_results_only_assign)
{
    use_cuda();
    kiln_tensor *w = kiln_to(F32(KILN_SHAPE(2), 1, 2), "cuda"), *in[1] = {kiln_to(F32(KILN_SHAPE(2), 1, 10), "cuda")};
    kiln_function *f = kiln_function_new(adds_to_parameter, 1, 0, &w);
    for (int i = 0; i < 4; i++)
        cr_assert(kiln_function_call(f, in, NULL) == KILN_OK, "%s", kiln_error_message());
    expect_device(w, "cuda:0");
    EXPECT(kiln_to(w, "cpu"), KILN_F32, KILN_SHAPE(2), 0, 5, 42);
    kiln_function_free(f);
}

static bool refused;

static void *frees(void *f)
{
    kiln_function_free(f);
    refused = kiln_error_status() == KILN_INVALID && strstr(kiln_error_message(), "kiln_function_free: the function is being called");
    return NULL;
}

static void free_elsewhere(void *f)
{
    pthread_t thread;
    cr_assert(pthread_create(&thread, NULL, frees, f) == 0);
    pthread_join(thread, NULL);
}

static void *evaluates(void *unused)
{
    (void)unused;
    return kiln_eval(kiln_ones(KILN_F32, KILN_SHAPE(2))) == KILN_OK ? &refused : NULL;
}

/* A call that takes no lock is one, too. */
Test(cuda_functions, are_not_freed_by_another_thread_while_they_are_repeated)
{
    use_cuda();
    pthread_t thread;
    void *fine = evaluates(NULL);
    cr_assert(fine != NULL);
    cr_assert(pthread_create(&thread, NULL, evaluates, NULL) == 0); /* from now on this thread has company */
    pthread_join(thread, &fine);
    cr_assert(fine != NULL);
    kiln_tensor *x = kiln_to(F32(KILN_SHAPE(4), 1, 2, 3, 4), "cuda");
    kiln_function *f = kiln_function_new(scaled_noise, 1, 1, NULL);
    for (int i = 0; i < 4; i++)
        called(f, &x);
    DRIVER(test_cuda_before)("cuLaunchKernel", 1, free_elsewhere, f);
    expect_device(called(f, &x), "cuda:0");
    cr_assert(refused);
    expect_device(called(f, &x), "cuda:0");
    kiln_function_free(f);
    cr_assert(kiln_error_status() == KILN_OK, "%s", kiln_error_message());
}
