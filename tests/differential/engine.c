/*
 * See engine.h.
 *
 *   check(case)
 *     data of the inputs -> interp on plain copies -> wanted outputs
 *     for jit and eager, for some layouts of the operands: run, compare
 *
 * Leaves out: which layouts are tried at level 0 rotates with the number of the case, so that a table of cases sees all of them.
 */
#include "tests/differential/engine.h"
#include "tests/differential/layouts.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Shared between the groups (child processes) and the parent. */
typedef struct Shared {
    int64_t cases, runs, failures, compiles;
    char now[512];      /* the case at hand */
} Shared;

static Shared *shared;
static int64_t group_failures;
enum { MAX_SHOWN = 8 };  /* failures printed per group */

int test_level(void)
{
    static int level = -1;
    if (level < 0) {
        const char *text = getenv("KILN_TEST_LEVEL");
        level = text ? atoi(text) : 0;
    }
    return level;
}

void set_option(const char *name, const char *value)
{
    if (kiln_set_option(name, value) != KILN_OK) {
        fprintf(stderr, "option %s = %s: %s\n", name, value, kiln_error_message());
        exit(2);
    }
}

static char warning[256];

/* Keeps the last warning, for the reason of a fall-back. */
static void keep_warning(void *user, int level, const char *topic, const char *line)
{
    (void)user, (void)topic;
    if (level == 0)
        snprintf(warning, sizeof warning, "%s", line);
}

/* --- telling -------------------------------------------------------------------------------------------------------- */

static void describe(const Case *c, const char *how, char *text, size_t size)
{
    int n = snprintf(text, size, "%s(", c->op);
    for (int i = 0; i < c->n_in && (size_t)n < size; i++) {
        char shape[96];
        n += snprintf(text + n, size - (size_t)n, "%s%s", i ? ", " : "", shape_text(c->in[i].dtype, c->in[i].shape, shape));
    }
    if ((size_t)n < size)
        n += snprintf(text + n, size - (size_t)n, ") args");
    for (int i = 0; i < 6 && (size_t)n < size; i++)
        n += snprintf(text + n, size - (size_t)n, " %" PRId64, c->arg[i]);
    if ((size_t)n < size)
        snprintf(text + n, size - (size_t)n, " [%s]", how);
}

void report(const Case *c, const char *how, const char *format, ...)
{
    shared->failures++;
    if (group_failures++ >= MAX_SHOWN)
        return;
    char text[512], why[512];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    describe(c, how, text, sizeof text);
    printf("FAIL %s: %s\n", text, why);
    if (group_failures == MAX_SHOWN)
        printf("     (more failures of this group are only counted)\n");
    fflush(stdout);
}

void count_case(void)
{
    shared->cases++;
}

/* --- one run -------------------------------------------------------------------------------------------------------- */

typedef struct Output {
    kiln_dtype dtype;
    kiln_shape shape;
    void *data;
} Output;

typedef struct Result {
    int n;
    kiln_status refused; /* by the recording functions */
    Output out[MAX_OUT];
} Result;

static void result_free(Result *r)
{
    for (int i = 0; i < r->n; i++)
        free(r->out[i].data);
    *r = (Result){0};
}

/* Builds, evaluates and reads back. false: failed after recording (reported). */
static bool compute(const Case *c, const char *how, kiln_tensor *const *in, Result *result)
{
    kiln_tensor *out[MAX_OUT] = {0};
    *result = (Result){0};
    int n = c->build(c, in, out);
    for (int i = 0; i < n; i++)
        if (!out[i])
            n = 0;
    if (n == 0) {
        result->refused = kiln_error_status();
        if (result->refused == KILN_OK || result->refused != c->refused) {
            report(c, how, "recording failed: %s", kiln_error_message());
            kiln_clear_error();
            return false;
        }
        kiln_clear_error();
        return true;
    }
    if (kiln_eval_many(out, n) != KILN_OK) {
        report(c, how, "kiln_eval_many: %s", kiln_error_message());
        kiln_clear_error();
        return false;
    }
    result->n = n;
    for (int i = 0; i < n; i++) {
        Output *o = &result->out[i];
        o->dtype = kiln_dtype_of(out[i]);
        o->shape = kiln_shape_of(out[i]);
        size_t bytes = (size_t)kiln_numel(out[i]) * kiln_dtype_size(o->dtype);
        o->data = malloc(bytes + 1);
        if (kiln_read(out[i], o->dtype, o->data, bytes) != KILN_OK) {
            report(c, how, "kiln_read: %s", kiln_error_message());
            kiln_clear_error();
            return false;
        }
    }
    return true;
}

static bool wanted_result(const Case *c, void *const *data, Result *wanted)
{
    set_option("mode", "interp");
    set_option("math", "strict");
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *in[MAX_IN] = {0};
    for (int i = 0; i < c->n_in; i++)
        in[i] = kiln_from(c->in[i].dtype, c->in[i].shape, data[i]);
    bool ok = compute(c, "interp", in, wanted);
    kiln_scope_end(scope);
    if (ok && c->refused != KILN_OK && wanted->n) {
        report(c, "interp", "should be refused (%s) but is not", kiln_status_name(c->refused));
        ok = false;
    }
    if (ok && c->out_known && wanted->n && wanted->out[0].dtype != c->out) {
        report(c, "interp", "dtype %s, expected %s", kiln_dtype_name(wanted->out[0].dtype), kiln_dtype_name(c->out));
        ok = false;
    }
    return ok;
}

static void compare(const Case *c, const char *how, const Result *wanted, const Result *got)
{
    if (wanted->n != got->n || wanted->refused != got->refused) {
        report(c, how, "%d outputs (status %d), interp has %d (%d)", got->n, got->refused, wanted->n, wanted->refused);
        return;
    }
    for (int k = 0; k < wanted->n; k++) {
        const Output *w = &wanted->out[k], *g = &got->out[k];
        char a[96], b[96];
        if (w->dtype != g->dtype || !shape_equal(w->shape, g->shape)) {
            report(c, how, "output %d is %s, interp says %s", k, shape_text(g->dtype, g->shape, a),
                   shape_text(w->dtype, w->shape, b));
            return;
        }
        int64_t n = shape_elements(w->shape), at = values_differ(w->dtype, n, w->data, g->data, c->tolerance);
        if (at < 0)
            continue;
        int64_t wrong = 0;
        Tolerance t = c->tolerance;
        size_t size = kiln_dtype_size(w->dtype);
        for (int64_t i = at; i < n; i++)
            wrong += values_differ(w->dtype, 1, (char *)w->data + (size_t)i * size, (char *)g->data + (size_t)i * size, t) >= 0;
        report(c, how, "output %d %s element %" PRId64 " is %s, interp says %s (%" PRId64 " of %" PRId64 " differ)", k,
               shape_text(w->dtype, w->shape, (char[96]){0}), at, value_text(g->dtype, g->data, at, a),
               value_text(w->dtype, w->data, at, b), wrong, n);
        return;
    }
}

/* One jit or eager run with the given layouts. */
static void run(const Case *c, const char *mode, const Layout *layouts, void *const *data, const Result *wanted)
{
    char how[160];
    int n = snprintf(how, sizeof how, "%s", mode);
    for (int i = 0; i < c->n_in; i++)
        n += snprintf(how + n, sizeof how - (size_t)n, ", %s", layout_names[layouts[i]]);
    describe(c, how, shared->now, sizeof shared->now);
    set_option("mode", mode);
    set_option("math", c->tolerance.relative > 0 ? "fast" : "strict");

    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *in[MAX_IN] = {0};
    Placed placed[MAX_IN] = {{0}};
    for (int i = 0; i < c->n_in; i++) {
        placed[i] = place(c->in[i].dtype, c->in[i].shape, data[i], layouts[i]);
        in[i] = placed[i].tensor;
    }
    kiln_stats before, after;
    kiln_get_stats(&before);
    Result got;
    if (compute(c, how, in, &got)) {
        kiln_get_stats(&after);
        compare(c, how, wanted, &got);
        int64_t elements = 0;
        for (int k = 0; k < got.n; k++)
            elements += shape_elements(got.out[k].shape);
        if (after.fallbacks != before.fallbacks)
            report(c, how, "fell back to the interpreter: %s", warning);
        bool repeating = c->n_in > 0 && layouts[0] >= LAYOUTS;
        bool free = c->flags & MAY_BE_FREE || (c->flags & FREE_WHEN_REPEATING && repeating);
        if (elements && !free && after.kernels == before.kernels)
            report(c, how, "no kernel was launched");
    }
    for (int i = 0; i < c->n_in; i++)
        if (!placed_intact(&placed[i]))
            report(c, how, "input %d was written to", i);
    kiln_scope_end(scope);
    for (int i = 0; i < c->n_in; i++)
        placed_free(&placed[i]);
    result_free(&got);
    shared->runs++;
}

/* --- one case ------------------------------------------------------------------------------------------------------- */

/* Copies the first slice along each repeating axis to the others. */
static void make_repeat(const Spec *s, char *data)
{
    size_t size = kiln_dtype_size(s->dtype);
    int64_t n = shape_elements(s->shape);
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i, from = 0, stride = 1;
        for (int axis = s->shape.rank - 1; axis >= 0; axis--) {
            int64_t at = rest % s->shape.dim[axis];
            rest /= s->shape.dim[axis];
            from += axis_repeats(s->shape.rank, axis) ? 0 : at * stride;
            stride *= s->shape.dim[axis];
        }
        memmove(data + (size_t)i * size, data + (size_t)from * size, size);
    }
}

/* The default mode: expansions may differ from strict ones within the bounds that ir/accuracy.def states. */
static void check_fast(const Case *c, void *const *data, const Result *wanted)
{
    static const double units[DTYPES] = {[KILN_F16] = 0x1p-9, [KILN_BF16] = 0x1p-6, [KILN_F32] = 0x1p-20, [KILN_F64] = 0x1p-48};
    Layout plain[MAX_IN] = {LAYOUT_PLAIN};
    if (wanted->n == 0 || !dtype_is_float(wanted->out[0].dtype))
        return;
    Case fast = *c;
    fast.tolerance.relative = units[wanted->out[0].dtype];
    fast.tolerance.absolute = wanted->out[0].dtype == KILN_F64 ? 1e-300 : wanted->out[0].dtype == KILN_F16 ? 1e-7 : 1e-37;
    run(&fast, "jit", plain, data, wanted);
}

static void fill_layouts(Layout *layouts, int n, int64_t first, int count, int base)
{
    for (int i = 0; i < n; i++)
        layouts[i] = (Layout)(base + (int)((first + 5 * i) % count));
}

static void check_on(const Case *c, void *const *data, bool repeating)
{
    Result wanted;
    describe(c, "interp", shared->now, sizeof shared->now);
    if (wanted_result(c, data, &wanted)) {
        Layout layouts[MAX_IN];
        int64_t number = shared->cases;
        bool few = test_level() == 0 || (c->flags & QUICK);
        int base = repeating ? LAYOUTS : 0, count = repeating ? LAYOUTS_ALL - LAYOUTS : LAYOUTS;
        int tries = few ? (repeating ? 1 : 2) : count;
        for (int k = 0; k < tries; k++) {
            int64_t first = few && k == 1 ? 1 + number % (count - 1) : repeating ? number + k : k;
            fill_layouts(layouts, c->n_in, first, count, base);
            if (k == 0 && !repeating) /* all plain */
                memset(layouts, 0, sizeof layouts);
            run(c, "jit", layouts, data, &wanted);
            if (k < 2 || !few)
                run(c, "eager", layouts, data, &wanted);
        }
        if ((c->flags & FAST_TOO) && !repeating)
            check_fast(c, data, &wanted);
    }
    result_free(&wanted);
}

void check(const Case *c)
{
    void *data[MAX_IN] = {0};
    shared->cases++;
    uint64_t seed = 1000003u * (uint64_t)c->arg[0] + (uint64_t)shared->cases;
    bool rank = false;
    for (int i = 0; i < c->n_in; i++) {
        int64_t n = shape_elements(c->in[i].shape);
        data[i] = malloc((size_t)n * kiln_dtype_size(c->in[i].dtype) + 1);
        values_fill(c->in[i].dtype, c->in[i].values, c->in[i].limit, seed + 77 * (uint64_t)i, n, data[i]);
        rank |= c->in[i].shape.rank > 0 && n > 0;
    }
    check_on(c, data, false);
    if (rank && c->refused == KILN_OK && (test_level() > 0 ? !(c->flags & QUICK) : shared->cases % 4 == 0)) {
        for (int i = 0; i < c->n_in; i++)
            make_repeat(&c->in[i], data[i]);
        check_on(c, data, true);
    }
    for (int i = 0; i < c->n_in; i++)
        free(data[i]);
}

/* --- groups --------------------------------------------------------------------------------------------------------- */

enum { GROUP_SECONDS = 600 };

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void count_compiles(void)
{
    kiln_stats stats;
    kiln_get_stats(&stats);
    shared->compiles += stats.compiles;
}

static void run_group(const Group *group)
{
    shared->now[0] = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(GROUP_SECONDS);
        kiln_set_log_sink(keep_warning, NULL);
        group->run(group);
        count_compiles();
        fflush(stdout);
        exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status))
        printf("FAIL %s: signal %d at %s\n", group->name, WTERMSIG(status), shared->now);
    else if (WEXITSTATUS(status))
        printf("FAIL %s: exit status %d at %s\n", group->name, WEXITSTATUS(status), shared->now);
    if (status)
        shared->failures++;
}

int run_groups(const char *program, const Group *groups, int n, int argc, char **argv)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 2;
    double start = seconds();
    int ran = 0, failed = 0;
    for (int i = 0; i < n; i++) {
        bool wanted = argc < 2;
        for (int k = 1; k < argc; k++)
            wanted |= strcmp(argv[k], groups[i].name) == 0;
        if (!wanted)
            continue;
        int64_t failures = shared->failures, cases = shared->cases;
        double begun = seconds();
        run_group(&groups[i]);
        failed += shared->failures != failures;
        ran++;
        if (shared->failures != failures || test_level() > 0)
            printf("%-28s %6" PRId64 " cases %5" PRId64 " failures %6.1f s\n", groups[i].name, shared->cases - cases,
                   shared->failures - failures, seconds() - begun);
    }
    printf("%s: %d groups, %" PRId64 " cases, %" PRId64 " runs, %" PRId64 " programs compiled, %" PRId64
           " failures in %d groups, %.1f s\n",
           program, ran, shared->cases, shared->runs, shared->compiles, shared->failures, failed, seconds() - start);
    return ran == 0 || shared->failures > 0;
}
