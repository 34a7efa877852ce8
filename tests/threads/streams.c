/*
 * What threads do to values of each other, in every order in which a CUDA device's streams must wait for one another: values made by one thread and
 * used by another, memory given up by one while another's work that is queued still reads it, values overwritten in place, streams of threads that
 * ended, more threads than a set of streams has bits; used by evaluations, and by kiln_functions that are repeated. tests/cuda_driver does queued work as late as it may, so each missing wait gives a wrong number.
 * Then all of it at once. A plain program, so that it also runs under ThreadSanitizer. Arguments: the number of rounds; "broken": the driver ignores
 * waits and lets kernels read what nobody wrote (KILN_TEST_CUDA=waits=ignored,uninit=off), and each of these must give a wrong number, while no call fails.
 */
#include "kiln.h"
#include "tests/threads/run_threads.h"
#include "tests/support/stats.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 70, THREADS = 4, OVER = 6, CROWD = 40 };

static int rounds = 20;
static bool broken;
static atomic_int failures, unnoticed; /* broken: failures are what is to be noticed */
static const char *scenario;
static kiln_function *adding, *layer; /* adding: NULL: by evaluations */

static void must(kiln_status status, const char *what)
{
    if (status != KILN_OK && atomic_fetch_add(broken ? &unnoticed : &failures, 1) < 10)
        fprintf(stderr, "%s: %s (%s)\n", scenario, what, kiln_error_message());
}

static void expect(kiln_tensor *x, double expected, const char *what)
{
    double got = -1;
    kiln_status status = kiln_item(x, &got);
    if (status == KILN_OK && got == expected)
        return;
    if (status != KILN_OK && broken)
        must(status, what);
    else if (atomic_fetch_add(&failures, 1) < 10 && !broken)
        fprintf(stderr, "%s%s: %s: %g, expected %g (%s)\n", scenario, adding ? ", by functions" : "", what, got, expected,
                kiln_error_message());
    kiln_clear_error();
}

/* --- another thread that does one thing at a time, while the caller waits ------------------------------------------------------- */

typedef struct Helper {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    void (*what)(void *with);
    void *with;
    bool ends;
} Helper;

static void *helps(void *user)
{
    Helper *h = user;
    pthread_mutex_lock(&h->lock);
    for (;;) {
        while (!h->what && !h->ends)
            pthread_cond_wait(&h->changed, &h->lock);
        if (!h->what)
            break;
        h->what(h->with);
        h->what = NULL;
        pthread_cond_broadcast(&h->changed);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

static void begin(Helper *h)
{
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->changed, NULL);
    h->what = NULL;
    h->ends = false;
    if (pthread_create(&h->thread, NULL, helps, h) != 0)
        exit(2);
}

static void in(Helper *h, void (*what)(void *with), void *with)
{
    pthread_mutex_lock(&h->lock);
    h->what = what;
    h->with = with;
    pthread_cond_broadcast(&h->changed);
    while (h->what)
        pthread_cond_wait(&h->changed, &h->lock);
    pthread_mutex_unlock(&h->lock);
}

static void end(Helper *h)
{
    pthread_mutex_lock(&h->lock);
    h->ends = true;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    pthread_join(h->thread, NULL);
}

/* --- one thing --------------------------------------------------------------------------------------------------------------- */

static int64_t n; /* elements, of a size class for each scenario */

/* n times value, queued. */
static kiln_tensor *made(int value)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_retain(kiln_full(KILN_F32, KILN_SHAPE(n), value));
    must(kiln_eval(x), "making a value");
    kiln_scope_end(scope);
    return x;
}

/* Nothing of it is queued any more. */
static kiln_tensor *made_by_now(int value)
{
    kiln_tensor *x = made(value);
    must(kiln_wait(x), "waiting for a value");
    return x;
}

static Helper b, c, crowd;

/* So many blocks of the size, that a thread takes what others used. */
static void make_many(void *unused)
{
    (void)unused;
    kiln_tensor *other[CROWD];
    for (int k = 0; k < CROWD; k++)
        other[k] = made_by_now(-9);
    for (int k = 0; k < CROWD; k++)
        kiln_release(other[k]);
}

/* Values in memory that was given up, done by now. */
static void overwrite(void *unused)
{
    (void)unused;
    kiln_tensor *other[OVER];
    for (int k = 0; k < OVER; k++)
        other[k] = made_by_now(-7);
    for (int k = 0; k < OVER; k++)
        kiln_release(other[k]);
}

static void give_up_and_overwrite(void *x)
{
    kiln_release(x);
    in(&crowd, make_many, NULL);
    overwrite(NULL);
}

typedef struct Sum {
    kiln_tensor *of, *sum;
    int expected;
} Sum;

static void sums(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_sum(in[0]);
}

/* The third call of a thread takes no lock. */
static kiln_tensor *added_by_function(kiln_tensor *x)
{
    static _Thread_local int64_t called_with;
    kiln_tensor *sum = NULL;
    if (called_with != n) {
        kiln_tensor *other = made_by_now(1);
        for (int k = 0; k < 2; k++)
            must(kiln_function_call(adding, &other, &sum), "a function");
        kiln_release(other);
        called_with = n;
    }
    must(kiln_function_call(adding, &x, &sum), "a function");
    return sum;
}

/* Queued, not waited for. */
static void add_up(void *user)
{
    Sum *s = user;
    kiln_scope *scope = kiln_scope_begin();
    s->sum = kiln_retain(adding ? added_by_function(s->of) : kiln_sum(s->of));
    if (!adding)
        must(kiln_eval(s->sum), "adding up");
    kiln_scope_end(scope);
}

static void read_sum(void *user)
{
    Sum *s = user;
    expect(s->sum, (double)s->expected * (double)n, "a sum");
    kiln_release(s->sum);
}

static void made_here_used_there(void)
{
    kiln_tensor *x = made(3);
    Sum s = {x, NULL, 3};
    in(&b, add_up, &s);
    in(&b, read_sum, &s);
    kiln_release(x);
}

static void given_up_while_read(void)
{
    kiln_tensor *x = made_by_now(3);
    Sum s = {x, NULL, 3};
    in(&b, add_up, &s);
    give_up_and_overwrite(x);
    in(&b, read_sum, &s);
}

static void given_up_while_two_read(void)
{
    kiln_tensor *x = made_by_now(3);
    Sum s = {x, NULL, 3}, t = s;
    in(&b, add_up, &s);
    in(&c, add_up, &t);
    give_up_and_overwrite(x);
    in(&c, read_sum, &t);
    in(&b, read_sum, &s);
}

static void given_up_while_both_read(void)
{
    kiln_tensor *x = made_by_now(3);
    Sum s = {x, NULL, 3}, own = s;
    in(&b, add_up, &s);
    add_up(&own);
    give_up_and_overwrite(x);
    read_sum(&own);
    in(&b, read_sum, &s);
}

static void given_up_by_a_third(void)
{
    kiln_tensor *x = made_by_now(3);
    Sum s = {x, NULL, 3};
    in(&b, add_up, &s);
    in(&c, give_up_and_overwrite, x);
    in(&b, read_sum, &s);
}

static void given_up_unread(void)
{
    kiln_tensor *x = made(3), *y[OVER];
    in(&b, give_up_and_overwrite, x); /* what is queued here writes it ... */
    for (int k = 0; k < OVER; k++)
        y[k] = made(5);
    Sum s = {y[0], NULL, 5};
    in(&b, add_up, &s);
    in(&b, read_sum, &s);
    for (int k = 0; k < OVER; k++)
        kiln_release(y[k]);
}

static void add_one(void *p)
{
    kiln_scope *scope = kiln_scope_begin();
    must(kiln_assign(p, kiln_add(p, kiln_int(1))), "assigning");
    must(kiln_eval(p), "an update");
    kiln_scope_end(scope);
}

static void overwritten_while_read(void)
{
    kiln_tensor *p = made_by_now(3);
    Sum s = {p, NULL, 3}, t = {p, NULL, 4};
    in(&b, add_up, &s);
    add_one(p);
    must(kiln_wait(p), "waiting for an update");
    in(&b, read_sum, &s);
    in(&b, add_up, &t);
    in(&b, read_sum, &t);
    kiln_release(p);
}

/* b read it before it was overwritten. */
static void read_again(void)
{
    kiln_tensor *p = made_by_now(3);
    Sum s = {p, NULL, 3}, t = {p, NULL, 4};
    in(&b, add_up, &s);
    in(&b, read_sum, &s);
    add_one(p);
    in(&b, add_up, &t);
    in(&b, read_sum, &t);
    kiln_release(p);
}

static void overwritten_there(void)
{
    kiln_tensor *p = made(3);
    Sum s = {p, NULL, 4};
    in(&b, add_one, p);
    in(&c, add_up, &s);
    in(&c, read_sum, &s);
    kiln_release(p);
}

static void of_a_thread_that_ended(void)
{
    Helper d, e;
    kiln_tensor *x = made_by_now(3);
    Sum s = {x, NULL, 3};
    begin(&d);
    in(&d, add_up, &s);
    end(&d);
    begin(&e);
    in(&e, give_up_and_overwrite, x); /* it has the stream of the one before */
    end(&e);
    read_sum(&s);
}

/* What is queued in one thread for memory that it gave up, and another has then. */
static kiln_tensor *theirs[OVER];

static void make_and_give_up(void *last)
{
    kiln_tensor *first = made(3);
    *(kiln_tensor **)last = made(3);
    kiln_release(first);
}

static void make_theirs(void *unused)
{
    (void)unused;
    for (int k = 0; k < OVER; k++)
        theirs[k] = made_by_now(5);
}

static void wait_for(void *last)
{
    must(kiln_wait(*(kiln_tensor **)last), "waiting");
    kiln_release(*(kiln_tensor **)last);
}

static void given_up_by_one_of_many(Helper *one, Helper *other)
{
    kiln_tensor *last;
    in(one, make_and_give_up, &last);
    in(&crowd, make_many, NULL);
    in(other, make_theirs, NULL);
    in(one, wait_for, &last);
    for (int k = 0; k < OVER; k++) {
        Sum s = {theirs[k], NULL, 5};
        in(other, add_up, &s);
        in(other, read_sum, &s);
        kiln_release(theirs[k]);
    }
}

static void of_many(void)
{
    static Helper many[MANY];
    static Sum sum[MANY], next[MANY];
    kiln_tensor *x = made(3);
    for (int k = 0; k < MANY; k++) {
        sum[k] = (Sum){x, NULL, 3};
        begin(&many[k]);
        in(&many[k], add_up, &sum[k]);
    }
    in(&many[MANY - 1], read_sum, &sum[MANY - 1]); /* before anything waits for x */
    give_up_and_overwrite(x);
    for (int k = MANY - 1; k-- > 0;)
        in(&many[k], read_sum, &sum[k]);
    for (int k = 0; k < MANY; k++) { /* from hand to hand, nothing waited for */
        next[k] = (Sum){k ? next[k - 1].sum : NULL, NULL, 0};
        if (k == 0)
            next[k].of = made(2);
        in(&many[k], add_up, &next[k]);
    }
    expect(next[MANY - 1].sum, 2.0 * (double)n, "a sum of sums");
    given_up_by_one_of_many(&many[MANY - 2], &many[MANY - 1]);
    kiln_release(next[0].of);
    for (int k = 0; k < MANY; k++) {
        kiln_release(next[k].sum);
        end(&many[k]);
    }
}

/* On a CUDA device who reads is told; on the CPU who evaluates is. */
static void take_wrongly(void *user)
{
    kiln_tensor **y = user;
    int32_t at[2] = {1, (int32_t)n};
    kiln_scope *scope = kiln_scope_begin();
    *y = kiln_retain(kiln_take(*y, kiln_from(KILN_I32, KILN_SHAPE(2), at), 0));
    if (kiln_eval(*y) != KILN_OK && kiln_error_status() != KILN_BAD_INDEX)
        must(KILN_INVALID, "an index out of bounds");
    kiln_clear_error();
    kiln_scope_end(scope);
}

static void wrong_there(void)
{
    double got;
    kiln_tensor *x = made(3), *y = x;
    kiln_scope *scope = kiln_scope_begin();
    in(&b, take_wrongly, &y);
    if (kiln_item(kiln_sum(kiln_add(y, kiln_int(1))), &got) != KILN_BAD_INDEX)
        must(KILN_INVALID, "an index that was out of bounds in another thread");
    kiln_clear_error();
    kiln_scope_end(scope);
    kiln_release(x);
    kiln_release(y);
}

static void one_by_one(void)
{
    static const struct {
        const char *name;
        void (*run)(void);
        int rounds; /* 0: all */
        bool waits; /* it cannot be right where streams do not wait */
    } all[] = {
        {"made here, used there", made_here_used_there, 0, true},
        {"given up while another thread's work reads it", given_up_while_read, 0, true},
        {"given up while the work of two reads it", given_up_while_two_read, 0, true},
        {"given up while this thread's work and another's read it", given_up_while_both_read, 0, true},
        {"given up by a third thread", given_up_by_a_third, 0, true},
        {"given up and never read", given_up_unread, 0, true},
        {"overwritten while another thread's work reads it", overwritten_while_read, 0, true},
        {"overwritten and read again", read_again, 0, true},
        {"overwritten by another thread", overwritten_there, 0, true},
        {"read by a thread that ended", of_a_thread_that_ended, 0, false}, /* one stream serves both threads */
        {"read by many threads", of_many, 2, true},
        {"an index out of bounds in another thread", wrong_there, 0, false},
    };
    begin(&b);
    begin(&c);
    begin(&crowd);
    n = adding ? 375 : 300; /* of other size classes */
    for (size_t k = 0; k < sizeof all / sizeof *all; k++, n += n / 2) {
        int most = all[k].rounds && all[k].rounds < rounds ? all[k].rounds : rounds;
        scenario = all[k].name;
        if ((broken && !all[k].waits) || (adding && all[k].run == of_many)) /* the latter is about sets of streams */
            continue;
        for (int round = 0; round < most; round++)
            all[k].run();
        if (!broken)
            continue;
        if (atomic_exchange(&failures, 0) == 0) {
            fprintf(stderr, "%s%s: right, though streams do not wait for each other\n", scenario, adding ? ", by functions" : "");
            atomic_fetch_add(&unnoticed, 1);
        }
    }
    end(&b);
    end(&c);
    end(&crowd);
}

/* --- all at once ---------------------------------------------------------------------------------------------------------------- */

enum { WEIGHTS = 6, SIDE = 40 };
static kiln_tensor *weight[WEIGHTS]; /* evaluated; [k] is k + 1 everywhere */
static kiln_tensor *_Atomic handed[THREADS];

static void product(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_minimum(kiln_matmul(in[0], in[1]), kiln_full(KILN_F32, KILN_SHAPE(), 100));
}

static void layers(int thread, int round)
{
    kiln_tensor *x = kiln_full(KILN_F32, KILN_SHAPE(SIDE, SIDE), thread);
    double expected = thread;
    for (int k = 0; k < 3; k++) {
        int w = (round + k) % WEIGHTS;
        kiln_tensor *in[2] = {x, weight[w]};
        if (round % 2)
            must(kiln_function_call(layer, in, &x), "a layer");
        else
            product(in, &x, NULL);
        expected = expected * SIDE * (w + 1) < 100 ? expected * SIDE * (w + 1) : 100;
    }
    expect(kiln_max(x), expected, "products with what all share");
    expect(kiln_sum(kiln_full(KILN_F32, KILN_SHAPE(3000 + thread), 1)), 3000 + thread, "a split sum"); /* scratch of the stream */
}

static void updates(int thread)
{
    kiln_tensor *p = kiln_full(KILN_F32, KILN_SHAPE(SIDE), 1);
    for (int k = 0; k < 4; k++) {
        kiln_scope *scope = kiln_scope_begin();
        must(kiln_assign(p, kiln_add(p, kiln_cast(kiln_full(KILN_F32, KILN_SHAPE(), thread), KILN_F32))), "assigning");
        must(kiln_eval(p), "an update");
        kiln_scope_end(scope);
    }
    expect(kiln_max(p), 1 + 4 * thread, "updates in place");
}

/* Each result is made of what the neighbour handed on, computed or not: values count the hands. */
static void hand_on(int thread, int round)
{
    kiln_tensor *from = atomic_exchange(&handed[thread], NULL);
    kiln_tensor *to = from ? kiln_add(from, kiln_int(1)) : kiln_full(KILN_F32, KILN_SHAPE(SIDE, SIDE), 1);
    double first = -1;
    if (round % 3)
        must(round % 2 ? kiln_eval_async(to) : kiln_eval(to), "what is handed on");
    if (round % 8 != 7)
        kiln_release(atomic_exchange(&handed[(thread + 1) % THREADS], kiln_retain(to)));
    if (kiln_item(kiln_max(to), &first) != KILN_OK || first < 1 || first != (double)(int64_t)first)
        must(KILN_INVALID, "what was handed on");
    if (from)
        expect(kiln_min(from), first - 1, "what was handed here");
    kiln_release(from);
}

static void add(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)x, (void)y, (void)user;
    carry_out[0] = kiln_add(carry[0], weight[1]);
}

static void loops(int round)
{
    kiln_tensor *zero = kiln_zeros(KILN_F32, KILN_SHAPE(SIDE, SIDE)), *last;
    must(kiln_scan(add, 1 + round % 3, 0, 1, &zero, &last, 0, NULL, 0, NULL, NULL), "a loop");
    expect(kiln_max(last), 2 * (1 + round % 3), "a loop");
}

static void *work(void *user)
{
    int thread = *(int *)user;
    for (int round = 0; round < rounds; round++) {
        kiln_scope *scope = kiln_scope_begin();
        layers(thread, round);
        updates(thread);
        hand_on(thread, round);
        loops(round);
        kiln_scope_end(scope);
    }
    return NULL;
}

static void at_once(void)
{
    kiln_scope *scope = kiln_scope_begin();
    scenario = "all at once";
    for (int k = 0; k < WEIGHTS; k++)
        weight[k] = kiln_full(KILN_F32, KILN_SHAPE(SIDE, SIDE), k + 1);
    must(kiln_eval_many(weight, WEIGHTS), "weights");
    for (int life = 0; life < 2; life++)
        run_threads(THREADS, work);
    for (int k = 0; k < THREADS; k++)
        kiln_release(atomic_exchange(&handed[k], NULL));
    kiln_scope_end(scope);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        rounds = atoi(argv[1]);
    broken = argc > 2 && strcmp(argv[2], "broken") == 0;
    one_by_one();
    adding = kiln_function_new(sums, 1, 1, NULL);
    one_by_one();
    kiln_function_free(adding);
    adding = NULL;
    layer = kiln_function_new(product, 2, 1, NULL);
    if (!broken)
        at_once();
    kiln_function_free(layer);
    kiln_stats stats = stats_now();
    if (stats.fallbacks) {
        fprintf(stderr, "%d fall-backs\n", (int)stats.fallbacks);
        atomic_fetch_add(&failures, 1);
    }
    bool right = atomic_load(&failures) == 0 && atomic_load(&unnoticed) == 0;
    if (right)
        puts("all right");
    return !right;
}
