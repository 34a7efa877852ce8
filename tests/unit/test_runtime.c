/*
 * The recording layer with memory running out at each point in turn: every public function gives
 * NULL or a status, keeps an error, leaks nothing and works again afterwards. Linked with the
 * inside for the allocation hook.
 */
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "runtime/api/dlpack.h"
#include "runtime/api/stats.h"
#include "runtime/record/tensor.h"
#include "tests/support/sanitizer.h"
#include "tests/support/stats.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const float six[6] = {1, 2, 3, 4, 5, 6};
static char path[512];

static int64_t live(void)
{
    kiln_stats stats = stats_now();
    return stats.live_bytes;
}

static kiln_tensor *x23(void) { return kiln_from(KILN_F32, KILN_SHAPE(2, 3), six); }

/* Each task says whether it succeeded; all must under normal conditions. */
typedef bool Task(void);

static bool creating(void)
{
    return kiln_full(KILN_F32, KILN_SHAPE(2, 3), 7) && kiln_arange(KILN_I32, 0, 9, 2) && kiln_linspace(KILN_F64, 0, 1, 9) &&
           kiln_eye(KILN_F32, 3, 4, 1) && kiln_scalar(1) && x23();
}

static int deleted;

static void deleter(void *data, void *user)
{
    (void)data, (void)user;
    deleted++;
}

static bool wrapping(void)
{
    static float data[6];
    int before = deleted;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *a = kiln_wrap(KILN_F32, KILN_SHAPE(2, 3), data, deleter, NULL);
    kiln_tensor *b = kiln_wrap_strided(KILN_F32, KILN_SHAPE(3, 2), (int64_t[]){1, 3}, data, deleter, NULL);
    kiln_touch(a);
    kiln_touch(b);
    int made = (a != NULL) + (b != NULL);
    bool ok = made == 2 && kiln_error_status() == KILN_OK;
    kiln_scope_end(scope);
    if (scope)
        cr_assert(deleted - before == made, "%d deleted, %d made", deleted - before, made);
    return ok;
}

static bool recording(void)
{
    kiln_tensor *x = x23(), *y = kiln_add(kiln_mul(x, kiln_scalar(2)), kiln_slice_axis(x, 1, 0, 1, 1));
    kiln_tensor *parts[12];
    for (int i = 0; i < 12; i++)
        parts[i] = i % 2 ? x : kiln_cast(x, KILN_F64);
    kiln_tensor *long_one = kiln_concat(parts, 12, 0), *stacked = kiln_stack(parts, 12, -1);
    kiln_tensor *halves[3], *values, *where;
    return y && long_one && stacked && kiln_split(x, 1, 3, NULL, halves) == KILN_OK &&
           kiln_topk(x, 2, 1, true, &values, &where) == KILN_OK && kiln_tile(x, KILN_SHAPE(2, 2)) && kiln_triu(x, 0) &&
           kiln_softmax(x, 1) && kiln_layer_norm(x, x, x, 1e-5) && kiln_var(x, 1) && kiln_logsumexp(x) &&
           kiln_matmul(x, kiln_transpose(x)) && kiln_cross_entropy(x, kiln_zeros(KILN_I64, KILN_SHAPE(2))) &&
           kiln_linear(x, x, kiln_zeros(KILN_F32, KILN_SHAPE(2))) && kiln_mse(x, x) && kiln_binary_cross_entropy(x, x) && kiln_norm(x) &&
           kiln_one_hot(kiln_zeros(KILN_I64, KILN_SHAPE(2)), 3, KILN_F32);
}

static bool images(void)
{
    kiln_tensor *x = kiln_reshape(x23(), KILN_SHAPE(1, 2, 3)), *mean = kiln_zeros(KILN_F32, KILN_SHAPE(2)), *kept[2];
    kiln_tensor *square = kiln_reshape(x, KILN_SHAPE(3, 2));
    const kiln_attention_options o = {.causal = true, .before = 1, .from_end = true, .softcap = 2, .lengths = kiln_int(2)};
    kept[0] = mean;
    kept[1] = kiln_ones(KILN_F32, KILN_SHAPE(2));
    return x && mean && kept[1] && square && o.lengths && kiln_attention(square, square, square, &o) &&
           kiln_rotary(square, kiln_ones(KILN_F32, KILN_SHAPE(1)), true) &&
           kiln_batch_norm(x, kept[0], kept[1], &(kiln_norm_options){.training = true, .weight = mean}) &&
           kiln_group_norm(x, 2, &(kiln_norm_options){.bias = mean}) && kiln_adaptive_avg_pool(x, KILN_SHAPE(2), false) &&
           kiln_adaptive_max_pool(x, KILN_SHAPE(1), true) &&
           kiln_interpolate(x, KILN_SHAPE(4), &(kiln_interpolate_options){.mode = KILN_CUBIC}) && kiln_fold(square, 0, 4, 1, 1);
}

static bool drawing(void)
{
    return kiln_uniform(KILN_F32, KILN_SHAPE(3, 4), 0, 1) && kiln_normal(KILN_BF16, KILN_SHAPE(5), 0, 1) &&
           kiln_randint(KILN_U8, KILN_SHAPE(), 0, 9) && kiln_randn(KILN_F64, KILN_SHAPE(3)) && kiln_dropout(x23(), 0.5);
}

static bool files(void)
{
    kiln_tensor *x = x23();
    if (!x || kiln_save_npy(x, path) != KILN_OK)
        return false;
    kiln_tensor *y = kiln_load_npy(path);
    return y && kiln_numel(y) == 6;
}

static bool models(void)
{
    kiln_named two[] = {{"a", x23()}, {"b", kiln_full(KILN_U8, KILN_SHAPE(3), 1)}};
    kiln_tensor *both[2] = {NULL, NULL};
    if (!two[0].tensor || !two[1].tensor || kiln_save_safetensors(path, 2, two, 1, &(kiln_metadata){"k", "v"}) != KILN_OK)
        return false;
    kiln_file *f = kiln_load_safetensors(path);
    bool ok = f && kiln_file_tensor(f, "b") && kiln_file_tensors(f, both) == KILN_OK && both[1];
    cr_assert(!f || ok || (!both[0] && !both[1]), "half of it is there");
    kiln_file_free(f);
    return ok;
}

static bool archives(void)
{
    kiln_named two[] = {{"a", x23()}, {"b", kiln_full(KILN_U8, KILN_SHAPE(3), 1)}};
    kiln_tensor *both[2] = {NULL, NULL};
    if (!two[0].tensor || !two[1].tensor || kiln_save_npz(path, 2, two, true) != KILN_OK)
        return false;
    kiln_file *f = kiln_load_npz(path);
    bool ok = f && kiln_file_tensor(f, "b") && kiln_file_tensors(f, both) == KILN_OK && both[1];
    cr_assert(!f || ok || (!both[0] && !both[1]), "half of it is there");
    kiln_file_free(f);
    return ok;
}

static void drop_array(struct DLManagedTensorVersioned *self) { ++*(int *)self->context; }

static bool exchanging(void)
{
    static float data[6];
    int64_t shape[] = {3, 2}, strides[] = {1, 3};
    int dropped = 0;
    struct DLManagedTensorVersioned array = {
        .version = {1, 0},
        .context = &dropped,
        .deleter = drop_array,
        .tensor = {
            .data = data, .device = {DLPACK_CPU, 0}, .rank = 2, .type = {DLPACK_KIND_FLOAT, 32, 1}, .shape = shape, .strides = strides}};
    struct DLManagedTensorVersioned *out = NULL;
    struct DLManagedTensor *old = NULL;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_from_dlpack(&array, 0);
    bool ok = x && kiln_to_dlpack(x, 0, &out) == KILN_OK && kiln_to_dlpack_unversioned(x, 0, &old) == KILN_OK;
    if (out)
        out->deleter(out);
    if (old)
        old->deleter(old);
    kiln_scope_end(scope);
    if (scope)
        cr_assert(dropped == (x != NULL), "%d deleted", dropped);
    return ok;
}

static bool reading(void)
{
    static float data[6] = {1, 2, 3, 4, 5, 6};
    char text[64];
    const void *at;
    kiln_tensor *w = kiln_wrap_strided(KILN_F32, KILN_SHAPE(3, 2), (int64_t[]){1, 3}, data, NULL, NULL);
    size_t needed;
    float got[6];
    return w && kiln_format(w, text, sizeof text, &needed) == KILN_OK && strcmp(text, "[[1. 4.]\n [2. 5.]\n [3. 6.]]") == 0 &&
           kiln_save_npy(w, path) == KILN_OK && kiln_data(w, &at) == KILN_OK && ((const float *)at)[1] == 4 &&
           kiln_eval_many(&w, 1) == KILN_OK && kiln_read(w, KILN_F32, got, sizeof got) == KILN_OK && got[2] == 2;
}

static bool owning(void)
{
    kiln_scope *outer = kiln_scope_begin();
    kiln_scope_begin(); /* without memory for a scope the enclosing one owns what is made */
    kiln_tensor *x = kiln_keep(x23());
    for (int i = 0; i < 100 && x; i++)
        x = kiln_keep(kiln_neg(x));
    bool ok = x && kiln_assign(x, kiln_neg(x)) == KILN_OK && kiln_error_status() == KILN_OK;
    kiln_scope_end(outer);
    return ok;
}

static void squashed(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_tanh(in[0]);
    out[1] = kiln_neg(out[0]);
}

static bool checkpointing(void)
{
    kiln_tensor *w = kiln_param(x23()), *out[2] = {w, w}, *g;
    if (kiln_checkpoint(squashed, 1, &w, 2, out, NULL) != KILN_OK) {
        cr_assert(!out[0] && !out[1]);
        return false;
    }
    return kiln_grad(kiln_sum(kiln_mul(out[0], out[1])), &w, 1, &g) == KILN_OK;
}

static void squashed_vjp(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user)
{
    (void)in, (void)user;
    grads[0] = kiln_mul(kiln_sub(cotangents[0], cotangents[1]), kiln_sub(out[0], kiln_square(out[0])));
}

static void squashed_jvp(kiln_tensor **in, kiln_tensor **out, kiln_tensor **tangents, kiln_tensor **along, void *user)
{
    (void)in, (void)user;
    along[0] = kiln_mul(tangents[0], kiln_sub(out[0], kiln_square(out[0])));
    along[1] = kiln_neg(along[0]);
}

static bool customizing(void)
{
    kiln_tensor *w = kiln_param(x23()), *one = kiln_scalar(1), *out[2] = {w, w}, *g, *along[2];
    if (kiln_custom_gradient(squashed, squashed_vjp, squashed_jvp, 1, &w, 2, out, NULL) != KILN_OK) {
        cr_assert(!out[0] && !out[1]);
        return false;
    }
    if (kiln_jvp(1, &w, &one, 2, out, 0, along) != KILN_OK || kiln_grad(kiln_sum(out[1]), &w, 1, &g) != KILN_OK)
        return false;
    return kiln_custom_gradient(squashed, NULL, squashed_jvp, 1, &w, 2, out, NULL) == KILN_OK;
}

static kiln_tensor *hand_on(const kiln_op_call *call, void *user)
{
    (void)user;
    return kiln_mode_next(call, call->in);
}

static bool layering(void)
{
    kiln_tensor *x = x23(), *w = kiln_ones(KILN_F32, KILN_SHAPE(3, 2));
    kiln_mode *low = kiln_autocast_push(KILN_BF16), *own = low ? kiln_mode_push(hand_on, NULL, NULL) : NULL;
    kiln_mode *check = own ? kiln_finite_check_push() : NULL;
    kiln_tensor *y = check ? kiln_softmax(kiln_matmul(x, w), 1) : NULL;
    bool ok = y && kiln_eval(y) == KILN_OK;
    return (!check || kiln_mode_pop(check) == KILN_OK) && (!own || kiln_mode_pop(own) == KILN_OK) &&
           (!low || kiln_mode_pop(low) == KILN_OK) && ok;
}

static bool differentiating(void)
{
    kiln_tensor *w = kiln_param(x23()), *x = kiln_param(kiln_zeros(KILN_F32, KILN_SHAPE(3))), *in[2] = {w, x}, *g[2], *t, *second[2],
                *one = kiln_scalar(1);
    kiln_tensor *loss = kiln_sum(kiln_square(kiln_matmul(kiln_tanh(w), x)));
    if (kiln_grad(loss, in, 2, g) != KILN_OK) {
        cr_assert(!g[0] && !g[1]);
        return false;
    }
    return kiln_jvp(1, &w, &one, 2, g, 0, second) == KILN_OK && kiln_vjp(1, &loss, &one, 1, &x, 0, &t) == KILN_OK &&
           kiln_assign(w, kiln_sub(w, g[0])) == KILN_OK && kiln_stop_gradient(w);
}

/* A step that fails changes nothing. */
static bool stepping(void)
{
    kiln_tensor *p[2] = {kiln_param(x23()), kiln_param(kiln_ones(KILN_F16, KILN_SHAPE(2)))},
                *g[2] = {x23(), kiln_ones(KILN_F32, KILN_SHAPE(2))};
    kiln_scaler *scaler = p[0] && p[1] && g[0] && g[1] ? kiln_scaler_new(8, 2) : NULL;
    kiln_optimizer *opt = scaler ? kiln_optimizer_new(p, 2, &(kiln_optimizer_options){.kind = KILN_ADAMW}) : NULL;
    RtNode *before = opt ? p[0]->node : NULL;
    kiln_tensor *finite = opt ? kiln_scaler_unscale(scaler, g, 2, g) : NULL;
    bool ok = finite && kiln_clip_by_global_norm(g, 2, 1, g, NULL) == KILN_OK;
    ok = ok && kiln_optimizer_step_where(opt, finite, g, kiln_scalar(1)) == KILN_OK;
    cr_assert(!opt || (p[0]->node != before) == ok, "half a step was made");
    kiln_optimizer_free(opt);
    kiln_scaler_free(scaler);
    return ok;
}

static kiln_tensor *small_sum(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_lt(kiln_sum(kiln_square(state[0])), kiln_int(9));
}

static void nearer(kiln_tensor **in, kiln_tensor **out, void *user)
{
    out[0] = kiln_mul(in[0], *(kiln_tensor **)user);
    out[1] = kiln_add(in[1], kiln_int(1));
}

static void halve(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_mul(in[0], kiln_scalar(0.5));
}

static void stays_whole(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = in[0];
}

/* A branch and a loop, both by what is mapped, or as they are. */
static void both_kinds(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *x[2] = {NULL, kiln_int(0)};
    if (kiln_cond(kiln_gt(kiln_sum(in[0]), kiln_int(1)), halve, stays_whole, 1, in, 1, x, user) == KILN_OK &&
        kiln_while(small_sum, nearer, 2, x, 20, x, user) == KILN_OK)
        out[0] = x[0];
}

static void add_both_kinds(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    kiln_tensor *in = kiln_add(x[0], i);
    both_kinds(&in, carry_out, user);
    carry_out[0] = kiln_add(carry[0], carry_out[0]);
    y[0] = carry_out[0];
}

static bool looping(void)
{
    kiln_tensor *rate = kiln_param(kiln_full(KILN_F32, KILN_SHAPE(), 1.5)), *xs = x23(), *zero = kiln_zeros(KILN_F32, KILN_SHAPE(3)),
                *last = xs, *ys = xs, *g, *along, *one = kiln_scalar(1);
    if (kiln_scan(add_both_kinds, -1, 0, 1, &zero, &last, 1, &xs, 1, &ys, &rate) != KILN_OK) {
        cr_assert(!last && !ys);
        return false;
    }
    return kiln_grad(kiln_sum(ys), &rate, 1, &g) == KILN_OK && kiln_jvp(1, &rate, &one, 1, &last, 0, &along) == KILN_OK;
}

static bool mapping(void)
{
    kiln_tensor *rate = kiln_param(kiln_full(KILN_F32, KILN_SHAPE(), 1.5)), *xs = x23(), *out = xs;
    for (int64_t chunk = 0; chunk < 3; chunk += 2)
        if (kiln_map(both_kinds, 1, &xs, (int[]){1}, chunk, 1, &out, &rate) != KILN_OK) {
            cr_assert(!out);
            return false;
        }
    return true;
}

/* Fails allocation 1, 2, ... of a task until it gets through. */
static void fail_each(const char *name, Task *task)
{
    kiln_scope *warm = kiln_scope_begin();
    cr_assert(task(), "%s: %s", name, kiln_error_message());
    kiln_scope_end(warm);
    int64_t before = live();
    bool ok = false;
    for (int n = 1; n < 3000 && !ok; n++) {
        kiln_scope *scope = kiln_scope_begin();
        os_fail_alloc(n, n % 2);
        ok = task();
        os_fail_alloc(0, false);
        if (!ok)
            cr_assert(kiln_error_status() == KILN_OUT_OF_MEMORY, "%s, allocation %d: %s", name, n, kiln_error_message());
        if (ok)
            for (int again = 0; again < 2 && ok; again++) { /* really through, not lucky */
                os_fail_alloc(n + 1 + again, false);
                ok = task();
                os_fail_alloc(0, false);
            }
        kiln_clear_error();
        kiln_scope_end(scope);
        cr_assert(live() == before, "%s, allocation %d: %lld bytes are left", name, n, (long long)(live() - before));
    }
    cr_assert(ok, "%s", name);
}

static void use_file(void)
{
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/kiln_runtime_%ld.npy", folder ? folder : "/tmp", (long)getpid());
}

static void drop_file(void) { remove(path); }

TestSuite(memory_runs_out, .init = use_file, .fini = drop_file);

#define TASK(name) \
    Test(memory_runs_out, name) { fail_each(#name, name); }
TASK(creating)
TASK(wrapping)
TASK(recording)
TASK(images)
TASK(drawing)
TASK(files)
TASK(models)
TASK(archives)
TASK(exchanging)
TASK(reading)
TASK(owning)
TASK(differentiating)
TASK(checkpointing)
TASK(looping)
TASK(mapping)
TASK(customizing)
TASK(layering)
TASK(stepping)

/* ---- scratch ---- */

static bool columns(int64_t rows, int64_t width)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_zeros(KILN_F32, KILN_SHAPE(rows, width));
    bool ok = kiln_eval(x) == KILN_OK && kiln_eval(kiln_softmax(x, 0)) == KILN_OK;
    kiln_scope_end(scope);
    return ok;
}

/* The bytes that softmax over the rows of [rows, 1] has no memory for, when it is given none. */
static long long scratch_of_one_column(int64_t rows, const char *threads)
{
    cr_assert(kiln_set_option("threads", threads) == KILN_OK);
    cr_assert(columns(8, 256) && columns(12, 512), "%s", kiln_error_message()); /* both sizes vary; too few points to expect any */
    long long bytes = -1;
    for (int n = 1; n < 1000 && bytes < 0; n++) {
        kiln_clear_error();
        os_fail_alloc(n, true);
        bool ok = columns(rows, 1);
        os_fail_alloc(0, false);
        cr_assert(!ok, "%s threads: no scratch was asked for", threads);
        const char *text = strstr(kiln_error_message(), "no memory for ");
        if (text && strstr(text, "bytes of scratch of kernel "))
            sscanf(text, "no memory for %lld", &bytes);
    }
    return bytes;
}

/* A column that is too short to be cut is one task: it runs on one thread, however many there are. */
Test(scratch, is_for_the_threads_that_run)
{
    long long alone = scratch_of_one_column(60000, "1"), of_many = scratch_of_one_column(60000, "16");
    cr_assert(alone >= 240000 && alone == of_many, "%lld bytes, %lld of 16 threads", alone, of_many);
    cr_assert(columns(60000, 1), "%s", kiln_error_message());
}

/* ---- the root scope ---- */

static int warnings;
static char warned[256];

static void count(void *user, int level, const char *topic, const char *line)
{
    (void)user, (void)topic;
    warnings += level == 0;
    snprintf(warned, sizeof warned, "%s", line);
}

Test(scopes, a_growing_root_scope_is_warned_about_once)
{
    kiln_set_log_sink(count, NULL);
    for (int i = 0; i < 300000; i++)
        kiln_scalar(i);
    cr_assert(warnings == 1, "%d warnings", warnings);
    cr_assert(strstr(warned, "open a scope in the loop"), "%s", warned);
    kiln_set_log_sink(NULL, NULL);
}

Test(scopes, a_graph_that_nobody_evaluates_is_warned_about_once)
{
    kiln_set_log_sink(count, NULL);
    kiln_scope *outer = kiln_scope_begin();
    kiln_tensor *x = kiln_retain(kiln_zeros(KILN_F32, KILN_SHAPE(2)));
    for (int i = 0; i < 300000; i++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *y = kiln_retain((kiln_neg_at)(x, "loop.c", 7));
        kiln_release(x);
        x = y;
        kiln_scope_end(scope);
    }
    kiln_release(x);
    kiln_scope_end(outer);
    cr_assert(warnings == 1, "%d warnings", warnings);
    cr_assert(strstr(warned, "kiln_neg at loop.c:7: 131072 ops in a row"), "%s", warned);
    kiln_set_log_sink(NULL, NULL);
}

/* ---- the pool of tensor data ---- */

static long faults(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
}

/* Memory lies, where that matters, near the thread that touches it first: one that works on it, so not the one that asks for it. */
Test(pool, memory_is_not_touched_by_who_asks_for_it)
{
    storage_trim();
    const size_t bytes = (size_t)1 << 28;
    const long shadow = WITH_ASAN ? (long)(bytes / 8 / 4096) : 0; /* AddressSanitizer writes a byte of its own for every eight */
    long before = faults();
    Storage *storage = storage_new(bytes);
    cr_assert(storage && faults() - before < 256 + shadow, "%ld pages", faults() - before);
    storage_release(storage);
    storage_trim();
}

Test(pool, blocks_are_reused_and_accounted_for)
{
    bool pools = false;
    for (size_t bytes = 1; bytes < (size_t)1 << 24; bytes += 1 + bytes / 7) {
        Storage *a = storage_new(bytes);
        cr_assert(a && (uintptr_t)a->data % 64 == 0 && a->bytes == bytes);
        memset(a->data, 1, bytes);
        void *data = a->data;
        storage_release(a);
        pools |= stat_get(STAT_POOLED) > 0;
        Storage *b = storage_new(bytes);
        if (pools)
            cr_assert(b->data == data && stat_get(STAT_POOLED) < (int64_t)1 << 27, "%zu bytes", bytes);
        storage_release(b);
    }
    storage_trim();
    cr_assert(stat_get(STAT_POOLED) == 0, "%lld bytes", (long long)stat_get(STAT_POOLED));
    cr_assert(stat_get(STAT_LIVE) == 0);
    cr_assert(storage_new(SIZE_MAX / 2) == NULL);
    kiln_stats stats = stats_now();
    cr_assert(stats.peak_bytes >= ((int64_t)1 << 24) / 8 * 7 - 100, "%lld", (long long)stats.peak_bytes);
}
