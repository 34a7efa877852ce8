/* Ops of one's own: what fails and is told, threads and processes, the cache on disk. */
#include "op.h"
#include "tests/support/remove_folder.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- what goes wrong ------------------------------------------------------------------------------------------------------------ */

static kiln_status fails_at_7(const kiln_buffer *in, const kiln_buffer *out, const void *attributes, size_t bytes, void *user)
{
    kiln_status *with = user;
    if (*(const float *)in[0].data != 7)
        return ramp(in, out, attributes, bytes, NULL);
    return *with == KILN_INVALID ? kiln_op_fail("%d is no good", 7) : *with;
}

Test(op_wrong, a_failing_function_fails_the_sync_point)
{
    kiln_status with = KILN_INVALID;
    kiln_op_info info = ramp_info("test.fails");
    info.host = fails_at_7;
    info.user = &with;
    info.version = "2.1";
    const kiln_op *op = registered(&info);
    EACH_MODE
    {
        kiln_scope *scope = kiln_scope_begin();
        bool eager = mode_ == 1;
        for (int k = 0; k < 3; k++) {
            float first = k == 1 ? 7 : 1;
            kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(1), &first), *y = NULL;
            kiln_status status = kiln_op_apply(op, &x, NULL, 0, &y);
            if (k != 1) {
                EXPECT(y, KILN_F32, KILN_SHAPE(1), 0, 2);
                continue;
            }
            if (eager) {
                FAILS(status, KILN_INVALID, "kiln_op_apply: test.fails 2.1 (test_op_wrong.c:");
                continue;
            }
            kiln_tensor *z = kiln_neg(y);
            FAILS(kiln_eval(z), KILN_INVALID, "kiln_eval: test.fails 2.1 (test_op_wrong.c:");
            cr_assert_eq(kiln_eval(z), KILN_INVALID);
            cr_assert(strstr(kiln_error_message(), "): 7 is no good (test_op_wrong.c:") != NULL, "%s", kiln_error_message());
            with = KILN_IO;
            FAILS(kiln_eval(y), KILN_IO, "input/output error");
            with = KILN_COMPILE; /* no reason to run it again */
            FAILS(kiln_eval(y), KILN_INVALID, "compilation failed");
            with = (kiln_status)99;
            FAILS(kiln_eval(y), KILN_INVALID, "returned 99, which is no status");
            with = KILN_INVALID;
        }
        kiln_scope_end(scope);
    }
    end_mode();
}

/* An assigned handle keeps its value, and no memory is lost that would have been taken over. */
Test(op_wrong, nothing_is_published_after_a_failure)
{
    kiln_status with = KILN_INVALID;
    kiln_op_info info = ramp_info("test.publishes");
    info.host = fails_at_7;
    info.user = &with;
    const kiln_op *op = registered(&info);
    kiln_tensor *p = kiln_from(KILN_F32, KILN_SHAPE(2), (float[]){7, 2}), *y;
    kiln_scope *scope = kiln_scope_begin();
    y = applied(op, kiln_mul(p, 1));
    cr_assert_eq(kiln_assign(p, kiln_add(kiln_mul(p, 100), y)), KILN_OK);
    FAILS(kiln_eval(p), KILN_INVALID, "7 is no good");
    kiln_scope_end(scope);
    with = KILN_OK; /* and leaves what lies there */
    cr_assert_eq(kiln_eval(p), KILN_OK, "%s", kiln_error_message());
    float got[2];
    cr_assert_eq(kiln_read(kiln_mul(p, 0), KILN_F32, got, sizeof got), KILN_OK);
    end_mode();
}

static kiln_tensor *outside;
static kiln_status evaluates(const kiln_buffer *in, const kiln_buffer *out, const void *attributes, size_t bytes, void *user)
{
    double value = 0;
    float *to = out[0].data;
    kiln_tensor *computed = user;
    to[0] = kiln_item(computed, &value) == KILN_OK && value == 3; /* there already */
    to[1] = kiln_item(kiln_add(computed, 1), &value) == KILN_INVALID;
    to[2] = strstr(kiln_error_message(), "a function of the op test.evaluates may only look at values that are computed already") != NULL;
    kiln_clear_error();
    (void)in, (void)attributes, (void)bytes;
    return KILN_OK;
}

Test(op_wrong, a_function_computes_nothing)
{
    kiln_op_info info = ramp_info("test.evaluates");
    info.host = evaluates;
    info.user = outside = kiln_full(KILN_F32, KILN_SHAPE(), 3);
    kiln_check(kiln_eval(outside));
    const kiln_op *op = registered(&info);
    EACH_MODE
    EXPECT(applied(op, kiln_ones(KILN_F32, KILN_SHAPE(3))), KILN_F32, KILN_SHAPE(3), 0, 1, 1, 1);
    EXPECT(kiln_add(outside, 1), KILN_F32, KILN_SHAPE(), 0, 4); /* afterwards it may */
    end_mode();
}

static int64_t longer;
static kiln_status changes(const kiln_type *in, kiln_type *out, const void *attributes, size_t bytes, void *user)
{
    (void)user;
    kiln_status status = same(in, out, attributes, bytes, NULL);
    out[0].shape.dim[0] += longer;
    return status;
}

static kiln_status impossible(const kiln_type *in, kiln_type *out, const void *attributes, size_t bytes, void *user)
{
    (void)in, (void)attributes, (void)bytes;
    out[0] = (kiln_type){KILN_F32, KILN_SHAPE(-1)};
    return user ? KILN_OK : (out[0].shape.rank = 9, KILN_OK);
}

Test(op_wrong, infer_is_held_to_what_it_says)
{
    kiln_op_info info = ramp_info("test.infer");
    const kiln_op *op = registered(&info);
    kiln_tensor *x = kiln_ones(KILN_I32, KILN_SHAPE(2)), *y = x;
    FAILS(kiln_op_apply(op, &x, NULL, 0, &y), KILN_INVALID, "kiln_op_apply: test.infer 1: wants f32, not i32 (test_op_wrong.c:");
    cr_assert(y == NULL);
    for (int k = 0; k < 2; k++) {
        info = ramp_info(k ? "test.negative" : "test.rank");
        info.infer = impossible;
        info.user = k ? &info : NULL;
        op = registered(&info);
        FAILS(kiln_op_apply(op, &x, NULL, 0, &y), KILN_INVALID, "infer gives no possible dtype and shape of out[0]");
    }
    info = ramp_info("test.changes");
    info.infer = changes;
    op = registered(&info);
    y = applied(op, kiln_ones(KILN_F32, KILN_SHAPE(2)));
    longer = 1;
    FAILS(kiln_eval(y), KILN_INVALID, "infer gives f32[3] for out[0], and gave f32[2] when it was recorded");
    longer = 0;
    EXPECT(y, KILN_F32, KILN_SHAPE(2), 0, 2, 3);
    end_mode();
}

static kiln_status overwrites(const kiln_buffer *in, const kiln_buffer *out, const void *attributes, size_t bytes, void *user)
{
    kiln_status status = ramp(in, out, attributes, bytes, user);
    ((float *)in[0].data)[0] += 1;
    return status;
}

Test(op_wrong, pure_compares_inputs)
{
    kiln_op_info info = ramp_info("test.overwrites");
    info.host = overwrites;
    const kiln_op *op = registered(&info);
    set_option("check", "pure");
    FAILS(kiln_eval(applied(op, kiln_ones(KILN_F32, KILN_SHAPE(2)))), KILN_INVALID, "its function changed in[0]");
    set_option("check", "off");
    end_mode();
}

/* In none of the modes is an input's memory a result's. */
static kiln_status apart(const kiln_buffer *in, const kiln_buffer *out, const void *attributes, size_t bytes, void *user)
{
    const char *a = in[0].data, *b = out[0].data;
    size_t n = sizeof(float) * (size_t)count_of(&in[0].type);
    return a + n <= b || b + n <= a ? ramp(in, out, attributes, bytes, user) : kiln_op_fail("they overlap");
}

Test(op_wrong, operands_are_never_taken_over)
{
    kiln_op_info info = ramp_info("test.apart");
    info.host = apart;
    const kiln_op *op = registered(&info);
    kiln_tensor *p = kiln_ones(KILN_F32, KILN_SHAPE(1000));
    kiln_check(kiln_eval(p));
    for (int k = 0; k < 4; k++) {
        kiln_scope *scope = kiln_scope_begin();
        cr_assert_eq(kiln_assign(p, kiln_mul(applied(op, kiln_mul(p, 1)), 0.5)), KILN_OK);
        cr_assert_eq(kiln_eval(p), KILN_OK, "%s", kiln_error_message());
        kiln_scope_end(scope);
    }
    float got[1000];
    cr_assert_eq(kiln_read(p, KILN_F32, got, sizeof got), KILN_OK);
    cr_assert_eq(got[10], 1 + 4 * 5);
    end_mode();
}

static void records(kiln_tensor **in, kiln_tensor **out, const void *attributes, size_t bytes, void *user)
{
    (void)attributes, (void)bytes, (void)user;
    out[0] = in[0];
}

Test(op_wrong, what_is_no_op)
{
    static const struct {
        kiln_op_info info;
        const char *text;
    } bad[] = {
        {{.name = "no name", .version = "1"}, "needs a name and a version"},
        {{.name = "test.bad", .version = ""}, "needs a name and a version"},
        {{.name = "kiln.solve", .version = "1", .n_in = 1, .n_out = 1, .host = ramp, .infer = same}, "names that begin with kiln."},
        {{.name = "test.bad", .version = "1", .n_in = 1, .n_out = 1}, "test.bad: needs decompose, host or image"},
        {{.name = "test.bad", .version = "1", .n_out = 1, .decompose = records, .infer = same}, "decompose stands alone"},
        {{.name = "test.bad", .version = "1", .n_out = 1, .host = ramp}, "host and image need infer"},
        {{.name = "test.bad", .version = "1", .n_out = 1, .image = "x", .infer = same}, "an image needs"},
        {{.name = "test.bad", .version = "1", .n_out = 1, .flags = 1, .decompose = records}, "KILN_OP_EFFECTS is for host alone"},
        {{.name = "test.bad", .version = "1", .host = ramp, .infer = same}, "without outputs nothing would need it"},
        {{.name = "test.bad", .version = "1", .n_out = 33, .host = ramp, .infer = same}, "0 to 32 outputs"},
        {{.name = "test.bad", .version = "1", .n_out = 1, .flags = 2, .host = ramp, .infer = same}, "known flags"},
        {{.name = "test.bad", .version = "1", .n_out = 1, .host = ramp, .infer = same, .reserved = {0, 1}}, "reserved is not 0"},
    };
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        cr_assert(kiln_op_register(&bad[k].info) == NULL, "case %d", (int)k);
        FAILS(kiln_error_status(), KILN_INVALID, bad[k].text);
    }
    kiln_op_info info = ramp_info("test.taken");
    const kiln_op *op = registered(&info);
    info.version = "2";
    cr_assert(kiln_op_register(&info) == NULL);
    FAILS(kiln_error_status(), KILN_INVALID, "kiln_op_register: test.taken is registered already, as version 1 (test_op_wrong.c:");
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(2)), *y;
    FAILS(kiln_op_apply(NULL, &x, NULL, 0, &y), KILN_INVALID, "op is NULL");
    FAILS(kiln_op_apply(op, &x, NULL, 8, &y), KILN_INVALID, "attributes of 8 bytes: they are NULL");
    FAILS(kiln_op_apply(op, NULL, NULL, 0, &y), KILN_INVALID, "test.taken needs inputs (1) and room for outputs (1)");
    y = NULL;
    cr_assert_eq(kiln_op_apply(op, &y, NULL, 0, &y), KILN_INVALID);
    kiln_clear_error();
    (void)kiln_op_fail("nobody asked");
    end_mode();
}

/* --- what is seen of them --------------------------------------------------------------------------------------------------------- */

static void keep_line(void *user, int level, const char *topic, const char *line)
{
    char *text = user;
    (void)level;
    if (!strcmp(topic, "graph") || !strcmp(topic, "perf") || !strcmp(topic, "fusion"))
        strncat(text, line, 8000 - strlen(text) - 1);
}

Test(op_wrong, logs_name_it)
{
    static char text[8000];
    kiln_op_info info = ramp_info("test.seen");
    info.version = "3.4";
    const kiln_op *op = registered(&info);
    float factor = 1;
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(2)), *y;
    cr_assert_eq(kiln_op_apply(op, &x, &factor, sizeof factor, &y), KILN_OK);
    cr_assert_eq(kiln_explain(kiln_add(y, 1), text, sizeof text, NULL), KILN_OK, "%s", kiln_error_message());
    cr_assert(strstr(text, "call test.seen 3.4\n"), "%s", text);
    text[0] = 0;
    kiln_set_log_sink(keep_line, text);
    set_option("log", "graph,perf,fusion");
    cr_assert_eq(kiln_eval(kiln_add(y, 1)), KILN_OK);
    set_option("log", "");
    kiln_set_log_sink(NULL, NULL);
    cr_assert(strstr(text, "calls(test.seen 3.4 bytes:0000803f) gives(f32:1) sizes(2)"), "%s", text);
    cr_assert(strstr(text, "call test.seen 3.4"), "%s", text);
    cr_assert(strstr(text, "a function of the user's makes it"), "%s", text);
    end_mode();
}

/* --- threads and processes ------------------------------------------------------------------------------------------------------ */

static void *computes(void *op)
{
    for (int k = 0; k < 50; k++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_full(KILN_F32, KILN_SHAPE(3), k), *y;
        float got[3];
        if (kiln_op_apply(op, &x, NULL, 0, &y) != KILN_OK || kiln_read(kiln_add(y, 1), KILN_F32, got, sizeof got) != KILN_OK ||
            got[2] != (float)(2 * k + 3))
            return op;
        kiln_scope_end(scope);
    }
    return NULL;
}

static void *registers(void *name)
{
    kiln_op_info info = ramp_info(name);
    return (void *)(uintptr_t)kiln_op_register(&info);
}

Test(op_wrong, threads)
{
    kiln_op_info info = ramp_info("test.threads");
    const kiln_op *op = registered(&info);
    pthread_t thread[4];
    void *result;
    int won = 0;
    for (int k = 0; k < 4; k++)
        cr_assert_eq(pthread_create(&thread[k], NULL, computes, (void *)(uintptr_t)op), 0);
    for (int k = 0; k < 4; k++) {
        pthread_join(thread[k], &result);
        cr_assert(result == NULL);
    }
    for (int k = 0; k < 4; k++)
        cr_assert_eq(pthread_create(&thread[k], NULL, registers, (void *)(uintptr_t) "test.race"), 0);
    for (int k = 0; k < 4; k++) {
        pthread_join(thread[k], &result);
        won += result != NULL;
    }
    cr_assert_eq(won, 1);
    end_mode();
}

Test(op_wrong, after_fork)
{
    kiln_op_info info = ramp_info("test.fork");
    const kiln_op *op = registered(&info);
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(2));
    EXPECT(applied(op, x), KILN_F32, KILN_SHAPE(2), 0, 2, 3);
    pid_t child = fork();
    if (child == 0) {
        float got[2];
        kiln_tensor *y;
        bool fine = kiln_op_apply(op, &x, NULL, 0, &y) == KILN_OK && kiln_read(y, KILN_F32, got, sizeof got) == KILN_OK && got[1] == 3;
        _exit(!fine);
    }
    int status;
    waitpid(child, &status, 0);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    end_mode();
}

/* carry / 2 + op(x), where the carry lies. */
static void halves(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *op)
{
    (void)i, (void)x, (void)y;
    kiln_tensor *made = NULL;
    (void)kiln_op_apply(op, &carry[1], NULL, 0, &made);
    carry_out[0] = kiln_add(kiln_mul(carry[0], 0.5), made);
    carry_out[1] = carry[1];
}

/* Of a child process: how many of two programs came from disk. Its op is another version each time but the first two. */
static int disk_hits(const char *folder, const char *version, bool compile)
{
    pid_t child = fork();
    if (child == 0) {
        kiln_op_info info = ramp_info("test.disk");
        float got[2];
        info.version = version;
        bool fine = kiln_set_option("cache", "on") == KILN_OK && kiln_set_option("cache_dir", folder) == KILN_OK &&
                    kiln_set_option("compile", compile ? "on" : "off") == KILN_OK;
        const kiln_op *op = kiln_op_register(&info);
        kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(2)), *y, *last[2], *init[] = {kiln_zeros(KILN_F32, KILN_SHAPE(2)), x};
        fine = fine && op && kiln_op_apply(op, &x, NULL, 0, &y) == KILN_OK &&
               kiln_read(kiln_add(y, 1), KILN_F32, got, sizeof got) == KILN_OK && got[1] == 4 &&
               kiln_scan(halves, 3, 0, 2, init, last, 0, NULL, 0, NULL, (void *)(uintptr_t)op) == KILN_OK &&
               kiln_read(last[0], KILN_F32, got, sizeof got) == KILN_OK && got[1] == 5.25f;
        kiln_stats stats = stats_now();
        _exit(fine ? (int)stats.disk_hits : 100);
    }
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 101;
}

Test(op_wrong, lies_on_disk_by_name_and_version)
{
    char folder[256];
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/kiln_op_XXXXXX", tmp ? tmp : "/tmp");
    cr_assert(mkdtemp(folder));
    cr_assert_eq(disk_hits(folder, "1", true), 0);
    cr_assert_eq(disk_hits(folder, "1", false), 2);
    cr_assert_eq(disk_hits(folder, "2", true), 0);
    cr_assert_eq(disk_hits(folder, "2", false), 2);
    cr_assert_eq(disk_hits(folder, "1", false), 2);
    remove_folder(folder);
}

/* --- on a CUDA device ------------------------------------------------------------------------------------------------------------- */

Test(op_wrong, without_an_image_on_cuda)
{
    if (!cuda_driver())
        return;
    kiln_op_info info = ramp_info("test.host_only");
    const kiln_op *op = registered(&info);
    begin_mode(3);
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(2));
    FAILS(kiln_eval(applied(op, x)), KILN_UNSUPPORTED, "test.host_only 1 (test_op_wrong.c:");
    info = ramp_info("test.effects_on_cuda"); /* which are no part of a program */
    info.flags = KILN_OP_EFFECTS;
    op = registered(&info);
    EXPECT(kiln_add(applied(op, x), x), KILN_F32, KILN_SHAPE(2), 0, 3, 4);
    end_mode();
}
