/*
 * Programs whose traces are looked at: program NAME [ARGUMENT], with KILN_TRACE set, if not said otherwise.
 */
#include <kiln.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void must(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "%s: %s\n", what, kiln_error_message());
    exit(1);
}

static atomic_int done; /* sync points */

/* One kernel; `n` decides the size. */
static double once(int64_t n)
{
    kiln_scope *scope = kiln_scope_begin();
    double total;
    kiln_tensor *x = kiln_arange(KILN_F32, 0, (double)n, 1);
    must(kiln_item(kiln_sum(kiln_mul(x, x)), &total) == KILN_OK, "once");
    kiln_scope_end(scope);
    atomic_fetch_add(&done, 1);
    return total;
}

/* A size, again, another. */
static void sizes(const char *unused)
{
    (void)unused;
    once(8);
    once(8);
    once(9);
}

static void twice_body(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_add(in[0], in[0]);
}

/* A kiln_function, and an op that the interpreter runs. */
static void function(const char *unused)
{
    (void)unused;
    kiln_function *f = kiln_function_new(twice_body, 1, 1, NULL);
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(4)), *y;
    must(kiln_eval(x) == KILN_OK, "eval");
    for (int i = 0; i < 3; i++)
        must(kiln_function_call(f, &x, &y) == KILN_OK, "call");
    kiln_function_free(f);
    must(kiln_set_option("mode", "interp") == KILN_OK, "mode");
    once(5);
}

static void *many(void *n)
{
    for (int i = 0; i < *(int *)n; i++)
        once(1000 + i % 7);
    return NULL;
}

/* Kernels of which it is known what they compute: tests/trace/perf.sh has the numbers. */
static void work(const char *unused)
{
    (void)unused;
    kiln_tensor *a = kiln_full(KILN_F32, KILN_SHAPE(64, 48), 0.5), *b = kiln_full(KILN_F32, KILN_SHAPE(48, 32), 2), *d;
    kiln_tensor *x = kiln_full(KILN_F32, KILN_SHAPE(1000), 1);
    must(kiln_eval(a) == KILN_OK && kiln_eval(b) == KILN_OK && kiln_eval(x) == KILN_OK, "inputs");
    must(kiln_eval(kiln_matmul(a, b)) == KILN_OK, "matmul");
    must(kiln_eval(kiln_exp(x)) == KILN_OK, "exp");
    must(kiln_eval(kiln_prod(kiln_square(a))) == KILN_OK, "prod");
    must(kiln_eval(kiln_softmax(b, -1)) == KILN_OK, "softmax");
    must(kiln_eval(kiln_sort(x, 0, false)) == KILN_OK, "sort");
    for (int64_t n = 10; n < 50; n += 10) { /* the third one's size is an argument */
        d = kiln_full(KILN_F64, KILN_SHAPE(n), 3);
        must(kiln_eval(d) == KILN_OK && kiln_eval(kiln_sub(d, kiln_reciprocal(d))) == KILN_OK, "sub");
    }
}

enum { LAYER = 5, MOST_LAYERS = 16, TOKENS = 16, WIDTH = 32 };

/* A layer of attention and one of products. */
static kiln_tensor *layer(kiln_tensor *x, kiln_tensor **p)
{
    kiln_tensor *q = kiln_matmul(x, p[0]), *k = kiln_matmul(x, p[1]), *v = kiln_matmul(x, p[2]);
    kiln_tensor *seen = kiln_matmul(kiln_softmax(kiln_mul(kiln_matmul(q, kiln_transpose(k)), 0.18), -1), v);
    return kiln_add(seen, kiln_matmul(kiln_relu(kiln_matmul(seen, p[3])), p[4]));
}

/* Steps of training so many layers: gradients and updates of their parameters in one program. */
static void transformer(const char *layers)
{
    kiln_tensor *p[LAYER * MOST_LAYERS], *g[LAYER * MOST_LAYERS];
    int n = LAYER * (layers && atoi(layers) > 0 ? atoi(layers) : 1);
    must(n <= LAYER * MOST_LAYERS, "layers");
    for (int i = 0; i < n; i++) {
        int64_t in = i % LAYER == 4 ? 2 * WIDTH : WIDTH, out = i % LAYER == 3 ? 2 * WIDTH : WIDTH;
        p[i] = kiln_param(kiln_retain(kiln_full(KILN_F32, KILN_SHAPE(in, out), 0.01 * (i + 1))));
        must(kiln_eval(p[i]) == KILN_OK, "parameters");
    }
    kiln_tensor *x = kiln_reshape(kiln_div(kiln_arange(KILN_F32, 0, TOKENS * WIDTH, 1), 512.0), KILN_SHAPE(TOKENS, WIDTH));
    must(kiln_eval(x) == KILN_OK, "input");
    for (int step = 0; step < 3; step++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *y = x;
        for (int i = 0; i < n; i += LAYER)
            y = layer(y, p + i);
        kiln_tensor *loss = kiln_mean(kiln_square(kiln_sub(y, x)));
        must(kiln_grad(loss, p, n, g) == KILN_OK, "gradients");
        for (int i = 0; i < n; i++)
            must(kiln_assign(p[i], kiln_sub(p[i], kiln_mul(g[i], 0.1))) == KILN_OK, "assign");
        must(kiln_eval_many(p, n) == KILN_OK, "step");
        kiln_scope_end(scope);
    }
}

/* A kiln_function, which is on its fast path when the counting begins: kiln_set_option reaches it. */
static void later(const char *unused)
{
    (void)unused;
    kiln_function *f = kiln_function_new(twice_body, 1, 1, NULL);
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(4)), *y;
    must(kiln_eval(x) == KILN_OK, "eval");
    for (int i = 0; i < 20; i++) {
        must(i != 10 || kiln_set_option("perf", "csv") == KILN_OK, "option");
        must(kiln_function_call(f, &x, &y) == KILN_OK, "call");
    }
    kiln_function_free(f);
}

/* Data in and out: large enough to be told, then too small. */
static void copies(const char *unused)
{
    enum { LARGE = 1 << 15, SMALL = 8 };
    static float data[LARGE];
    (void)unused;
    for (int64_t n = LARGE; n >= SMALL; n /= LARGE / SMALL) {
        kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(n), data);
        must(kiln_read(kiln_add(x, x), KILN_F32, data, sizeof(float) * (size_t)n) == KILN_OK, "read");
    }
}

static pthread_barrier_t both; /* are there */

static void *many_beside(void *n)
{
    pthread_barrier_wait(&both);
    many(n);
    pthread_barrier_wait(&both);
    return NULL;
}

/* Two threads, neither of which ends before the other's first work, and kernels that are worth the pool's. */
static void threads(const char *rounds)
{
    int n = atoi(rounds);
    pthread_t other;
    must(pthread_barrier_init(&both, NULL, 2) == 0 && pthread_create(&other, NULL, many_beside, &n) == 0, "thread");
    pthread_barrier_wait(&both);
    for (int i = 0; i < n; i++)
        once(1 << 20);
    pthread_barrier_wait(&both);
    pthread_join(other, NULL);
    pthread_barrier_destroy(&both);
}

static void loop(const char *rounds)
{
    int n = atoi(rounds);
    many(&n);
}

/* A result of 64 MB in fresh memory, then three of 128 KB and one of 64 KB together. */
static void touch(const char *unused)
{
    (void)unused;
    kiln_tensor *twins[4]; /* the three largest are told */
    must(kiln_eval(kiln_linspace(KILN_F32, 0, 1, 16 << 20)) == KILN_OK, "touch");
    for (int i = 0; i < 4; i++)
        twins[i] = kiln_full(KILN_F32, KILN_SHAPE(i ? 1 << 15 : 1 << 14), i);
    must(kiln_eval_many(twins, 4) == KILN_OK, "twins");
}

/* The child's trace is its own, and so is a grandchild's; one that does nothing has none. */
static void forks(const char *unused)
{
    (void)unused;
    once(8);
    pid_t idle = fork();
    if (idle == 0)
        _exit(0);
    pid_t child = fork();
    if (child == 0) {
        once(8);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            once(8);
            exit(0);
        }
        int status;
        must(waitpid(grandchild, &status, 0) == grandchild && status == 0, "grandchild");
        exit(0);
    }
    int status;
    must(waitpid(idle, &status, 0) == idle && status == 0, "idle child");
    must(waitpid(child, &status, 0) == child && status == 0, "child");
    once(8);
}

static void *kill_soon(void *signal_)
{
    while (atomic_load(&done) < 500)
        usleep(100);
    kill(getpid(), *(int *)signal_);
    return NULL;
}

/* Ends in the middle of writing, by a signal that comes from another thread. */
static void die(const char *signal_)
{
    int signal_number = atoi(signal_), endless = 1 << 30;
    pthread_t other;
    once(1000);
    (void)signal(signal_number, SIG_DFL); /* a sanitizer reports some */
    must(pthread_create(&other, NULL, kill_soon, &signal_number) == 0, "thread");
    many(&endless);
}

/* Places that are no JSON. */
static void hostile(const char *unused)
{
    static const char *const files[] = {
        "\"</script><script>alert(1)</script>",
        "back\\slash\nline\ttab\x01\x1f\x7f",
        "\xff\xfe\xc0\x80\xed\xa0\x80\xf4\x90\x80\x80 \xe2\x82",
        "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x94\xa5",
        "",
    };
    (void)unused;
    char longest[5000];
    memset(longest, '"', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        kiln_tensor *x = kiln_full(KILN_F32, KILN_SHAPE((int64_t)i + 2), (double)i);
        must(kiln_eval_at(x, files[i], (int)i) == KILN_OK, "eval");
    }
    must(kiln_eval_at(kiln_ones(KILN_F32, KILN_SHAPE(9)), longest, -1) == KILN_OK, "eval");
}

/* Programs that are compiled in the background, and used. */
static void background(const char *unused)
{
    (void)unused;
    must(kiln_set_option("async_compile", "1") == KILN_OK, "option");
    kiln_stats stats;
    for (int i = 0; i < 200000; i++) {
        once(100 + i % 5);
        kiln_get_stats(&stats);
        if (stats.background_compiles >= 1 && i > 50)
            break;
        usleep(1000);
    }
    once(101);
    must(stats.background_compiles >= 1, "nothing was compiled in the background");
}

static int lines;
static char last[1000];

static void count(void *user, int level, const char *topic, const char *line)
{
    (void)user, (void)topic;
    lines += level == 0;
    snprintf(last, sizeof last, "%s", line);
}

static void refused(const char *path, kiln_status status, const char *words)
{
    must(kiln_trace_start(path) == status, path ? path : "NULL");
    must(strstr(kiln_error_message(), words) != NULL, words);
}

/* The functions, in the folder `folder`, without KILN_TRACE. */
static void calls(const char *folder)
{
    char one[500], two[500], other[500], value[500];
    snprintf(one, sizeof one, "%s/one.json", folder);
    snprintf(two, sizeof two, "%s/two.json", folder);
    snprintf(other, sizeof other, "%s/other.txt", folder);
    must(kiln_trace_stop() == KILN_OK, "stop without a start");
    refused(NULL, KILN_INVALID, "path is NULL");
    refused("", KILN_INVALID, "path is empty");
    refused("/nowhere/trace.json", KILN_IO, "No such file");
    refused(folder, KILN_IO, "no regular file");
    refused("/dev/null", KILN_IO, "no regular file");
    FILE *text = fopen(other, "w");
    must(text && fputs("mine\n", text) >= 0 && fclose(text) == 0, "fopen");
    refused(other, KILN_IO, "holds something else");
    once(8);
    must(kiln_trace_start(one) == KILN_OK, "start");
    must(kiln_get_option("trace", value, sizeof value) == KILN_OK && strcmp(value, one) == 0, "option");
    once(8);
    must(kiln_trace_start(two) == KILN_OK, "start another");
    once(8);
    once(8);
    must(kiln_trace_stop() == KILN_OK, "stop");
    must(kiln_get_option("trace", value, sizeof value) == KILN_OK && !*value, "option");
    once(8);
    must(kiln_trace_stop() == KILN_OK, "stop twice");
    must(kiln_trace_start(one) == KILN_OK, "start again: it is a trace");
    must(kiln_trace_stop() == KILN_OK, "stop");
}

/* KILN_TRACE names a place where nothing can be: one warning, and all is computed. */
static void unwritable(const char *words)
{
    kiln_set_log_sink(count, NULL);
    must(once(3) == 5 && once(4) == 14, "values");
    must(lines == 1 && strstr(last, words), last);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(const char *argument);
    } programs[] = {
        {"sizes", sizes}, {"function", function}, {"copies", copies},           {"threads", threads}, {"loop", loop},
        {"touch", touch}, {"work", work},         {"transformer", transformer}, {"later", later},     {"forks", forks},
        {"die", die},     {"hostile", hostile},   {"background", background},   {"calls", calls},     {"unwritable", unwritable}};
    for (size_t i = 0; argc > 1 && i < sizeof programs / sizeof *programs; i++)
        if (strcmp(programs[i].name, argv[1]) == 0) {
            programs[i].run(argc > 2 ? argv[2] : "0");
            return 0;
        }
    fprintf(stderr, "program NAME\n");
    return 2;
}
