/*
 * Schedules of CPUs' kernels as data.
 *
 * tests/schedules/NAME.txt holds cases, divided by lines "====": a kernel, a line "----", and the schedules that kiln has for it with vectors
 * of 512, 256 and 128 bits; or a kernel with a schedule that is asked for at 256 bits, a line "----", and "taken" or why it is refused.
 * KILN_GOLDEN=update writes what came out instead of comparing.
 *
 * And whatever schedule is taken gives the bits of the reference: those that these tests ask for are all that can be made of a few values
 * of each directive.
 */
#include "ir/base/log.h"
#include "jit/kernel_text.h"
#include "jit/rules.h"
#include "tests/support/slice.h"
#include "tests/unit/golden_cases.h"
#include "tests/unit/kernel_ref.h"

#include <errno.h>
#include <unistd.h>

TestSuite(schedule, .init = setup, .fini = teardown);

static char said[1024];

static void hear(void *user, int level, const char *topic, const char *line)
{
    (void)user, (void)level, (void)topic;
    snprintf(said, sizeof said, "%s", line);
}

static Kernel *parsed(const char *text)
{
    Kernel *k;
    CudaTarget host = {0};
    cr_assert_eq(kernel_parse(text, &arena, &k), ST_OK, "%s in\n%s", fail_message(), text);
    schedule_kernel(k, &host);
    return k;
}

static JitOptions strict(int bits) { return setting_options((Setting){bits, 1, MATH_STRICT, bits == 512 ? CPU_V4 : CPU_V3}); }

static uint64_t rules_seen;

/* nest: gets its loops; rules: the names of those that gave it, or NULL. */
static const char *own_text(const Kernel *k, const JitOptions *o, Str *nest, Str *rules)
{
    Schedule s;
    Str out;
    str_init(nest, &arena);
    llvm_host_schedule(k, o, &arena, &s, nest);
    str_init(&out, &arena);
    schedule_print(&s, k, &out);
    if (rules) {
        str_init(rules, &arena);
        rules_print(&s, rules);
        rules_seen |= s.rules;
    }
    return out.text;
}

/* The option's value for a file with these bytes; 0: it was refused. */
static int64_t ask_bytes(const char *text, size_t n)
{
    char path[] = "/tmp/kiln_schedule_XXXXXX";
    int file = mkstemp(path);
    cr_assert(file >= 0 && write(file, text, n) == (ssize_t)n);
    close(file);
    bool good = option_set("schedule", path) == ST_OK;
    unlink(path);
    return good ? option_int(OPT_SCHEDULE) : 0;
}

static int64_t ask(const char *text) { return ask_bytes(text, strlen(text)); }

/* ---- files ---- */

static void outcome(const char *text, Str *out)
{
    static uint64_t emitted;
    const char *asked = strstr(text, "\nschedule");
    if (!asked) {
        Kernel *k = parsed(text);
        for (int bits = 512; bits >= 128; bits /= 2) {
            JitOptions o = strict(bits);
            Str nest, rules;
            const char *own = own_text(k, &o, &nest, &rules);
            Emitted code;
            str_printf(out, "%s %s\n", own, rules.text);
            if (!slice_takes(emitted++))
                continue;
            /* it may be asked for itself */
            o.value[OPT_SCHEDULE] = ask(arena_printf(&arena, "%s%s %s\n%s", text, own, rules.text, nest.len ? nest.text : ""));
            cr_assert_neq(o.value[OPT_SCHEDULE], 0, "%s", fail_message());
            said[0] = 0;
            log_set_sink(hear, NULL);
            cr_assert_eq(llvm_emit_host(k, "test", &o, false, &code), ST_OK, "%s", fail_message());
            log_set_sink(NULL, NULL);
            free_emitted(&code);
            cr_assert_str_eq(said, "");
        }
        return;
    }
    JitOptions o = strict(256);
    o.value[OPT_SCHEDULE] = ask(text);
    if (!o.value[OPT_SCHEDULE]) {
        const char *message = fail_message(), *at = strstr(message, "\": ");
        str_printf(out, "%s\n", at ? at + 3 : message);
        return;
    }
    Emitted code;
    said[0] = 0;
    log_set_sink(hear, NULL);
    cr_assert_eq(llvm_emit_host(parsed(arena_printf(&arena, "%.*s", (int)(asked - text), text)), "test", &o, false, &code), ST_OK);
    log_set_sink(NULL, NULL);
    free_emitted(&code);
    str_printf(out, "%s\n", said[0] ? said : "taken");
}

/* And each rule gave one of them. */
Test(schedule, kiln_has_these)
{
    rules_seen = 0;
    cr_assert_geq(golden_cases(KILN_SOURCE_DIR "/tests/schedules/own.txt", outcome, true), 12);
    for (RuleId id = 0; id < RULES; id++) {
        Str name;
        str_init(&name, &arena);
        rules_print(&(Schedule){.rules = UINT64_C(1) << id}, &name);
        cr_expect(rules_seen >> id & 1, "no case for rule %s", name.text);
    }
}

Test(schedule, these_are_refused_by_name) { cr_assert_geq(golden_cases(KILN_SOURCE_DIR "/tests/schedules/asked.txt", outcome, true), 25); }

/* ---- what is taken changes no bit ---- */

typedef struct Case {
    const char *text;
    int64_t n[6]; /* elements of buffers, values of sizes */
} Case;

static const Case loops[] = {
    {"kernel (a0 u8, a1 u8 out) for i < 13, j < 70; v0 = load a0[j*13 + i]; v1 = add v0 3; store a1[i*70 + j] = v1", {910, 910}},
    {"kernel (a0 f32, a1 f64, a2 f64 out, s3) for i < 5, j < s3 ~6\n v0 = load a0[i*s3 + j]; v1 = cast v0 : f64; v2 = load a1[j]; v3 = mul "
     "v1 v2; v4 = sin v3; store a2[i*s3 + j] = v4",
     {335, 67, 335, 67}},
    {"kernel (a0 f32, a1 f32 out) for i < 5, j < 75\n v0 = load a0[i*75 + j]; v1 = fold max j (v0); v2 = sub v0 v1; v3 = exp v2; v4 = fold "
     "sum "
     "j (v3) order lanes 64 block 16384; v5 = div v3 v4; store a1[i*75 + j] = v5",
     {375, 375}},
    {"kernel (a0 bf16, a1 bf16 out) for i < 70, j < 9, k < 11; v0 = load a0[(j*11 + k)*70 + i]; v1 = fold sum j k (v0) order lanes 64 "
     "block 16384; store a1[i] = v1",
     {6930, 70}},
    {"kernel (a0 f32, a1 i64 out) for i < 7, j < 131; v0 = load a0[i*131 + j]; v1 = fold argmax j (v0); store a1[i] = v1", {917, 7}},
    {"kernel (a0 f32, a1 f32 out) for i < 21, j < 19; v0 = load a0[i*19 + j]; v1 = fold sum j (v0) running order serial; store a1[i*19 + "
     "j] = v1",
     {399, 399}},
    {"kernel (a0 f32, a1 f32 out, a2 shared) for i < 2, j < 70000; v0 = load a0[i*70000 + j]; v1 = fold sum j (v0) order lanes 64 block "
     "16384; store a1[i] = v1",
     {140000, 2}},
    {"kernel (a0 i16, a1 i32 out) for i < 3, j < 130; v0 = load a0[i*130 + j]; v1 = cast v0 : i32; v2 = fold sum j (v1); store a1[i] = v2",
     {390, 3}},
    {"kernel (a0 u8, a1 u8, a2 u8, a3 u8 out, s4) for i < 9, j < 130; v0 = index s4; v1 = index j; v2 = ge v1 v0; v3 = load a0[i*67 + j + "
     "-63] "
     "where v2; v4 = lt v1 v0; v5 = index s4 + -42; v6 = ge v1 v5; v7 = and v6 v4; v8 = load a1[i*42 + j + -21] where v7; v9 = where v4 v8 "
     "v3; v10 "
     "= lt v1 v5; v11 = load a2[i*21 + j] where v10; v12 = where v10 v11 v9; store a3[i*130 + j] = v12",
     {603, 378, 189, 1170, 63}},
    {"kernel (a0 f32, a1 f32, a2 f32 out) for i < 9, j < 70; v0 = index i; v1 = lt v0 4; v2 = load a0[i*70 + j] where v1; v3 = ge v0 4; v4 "
     "= "
     "load a1[i*70 + j + -280] where v3; v5 = where v1 v2 v4; v6 = index j; v7 = lt v6 1; v8 = where v7 1.5 v5; store a2[i*70 + j] = v8",
     {280, 350, 630}},
    {"kernel (a0 f32, a1 f32 out) for i < 21, j < 16500; v0 = load a0[j*21 + i]; v1 = fold sum j (v0) order lanes 64 block 16384; store "
     "a1[i] = v1",
     {346500, 21}},
    {"kernel (a0 f32, a1 f32 out, a2 f32 out, a3 u8 out, s4) for i < 70, j < s4 ~8; v0 = load a0[j*70 + i]; v1 = fold sum j (v0) order "
     "lanes 64 block 16384; v2 = "
     "fold max j "
     "(v0); v3 = cast v0 : u8; v4 = fold sum j (v3); store a1[i] = v1; store a2[i] = v2; store a3[i] = v4",
     {10010, 70, 70, 70, 143}},
    {"kernel (a0 f32, a1 f32, a2 f32 out, a3 i64 out, s4) for i < s4 ~7, j < 7, k < 9; v0 = load a0[i*63 + j*9 + k]; v1 = load a1[j*9 + "
     "k]; v2 = mul v0 v1; v3 = "
     "fold sum j k (v2) order lanes 64 block 16384; v4 = fold argmin j k (v0); store a2[i] = v3; store a3[i] = v4",
     {7749, 63, 123, 123, 123}},
    {"kernel (a0 f32, a1 f32 out, s2) for i < 45, j < s2 ~9; v0 = load a0[j*45 + i]; v1 = fold sum j (v0) order lanes 64 block 16384; v2 = "
     "mul v1 0.25; v3 = sub v0 v2; v4 = square v3; v5 = fold sum j (v4) order lanes 64 block 16384; v6 = fold max j (v3); v7 = add v5 v6; "
     "v8 "
     "= rsqrt v7; v9 = mul v3 v8; store a1[j*45 + i] = v9",
     {14400, 14400, 320}},
    {"kernel (a0 bf16, a1 u8, a2 bf16 out, a3 f32 out) for i < 37, j < 135; v0 = load a0[j*37 + i]; v1 = fold max j (v0); v2 = cast v1 : "
     "f32; v3 = gt v2 0.5; v4 = cast v0 : f32; v5 = sub v4 v2; v6 = exp v5; v7 = where v3 v6 v5; v8 = fold sum j (v7) order lanes 64 block "
     "16384; v9 = load a1[i]; v10 = cast v9 : f32; v11 = add v8 v10; v12 = div v6 v11; v13 = cast v12 : bf16; store a2[j*37 + i] = v13; "
     "store a3[i] = v8",
     {4995, 37, 4995, 37}},
    {"kernel (a0 f32, a1 f32 out) for i < 21, j < 16500; v0 = load a0[j*21 + i]; v1 = fold sum j (v0) order lanes 64 block 16384; v2 = mul "
     "v1 0.001; v3 = sub v0 v2; v4 = fold sum j (v3) order lanes 64 block 16384; store a1[i] = v4",
     {346500, 21}},
    {"kernel (a0 f64, a1 f64 out) for i < 77, j < 21; v0 = load a0[j*77 + i]; v1 = fold max j (v0); v2 = sub v0 v1; v3 = exp v2; v4 = fold "
     "sum j (v3) order lanes 64 block 16384; v5 = div v3 v4; "
     "store a1[j*77 + i] = v5",
     {1617, 1617}},
    {"kernel (a0 f64, a1 f64, a2 f64 out, a3 f64 out, s4, a5 shared) for i < 2, j < 3, k < s4 ~15; v0 = load a0[i*s4*3 + k*3 + j]; v1 = "
     "load a1[j]; v2 = mul v0 v1; v3 = "
     "fold sum k (v2) order lanes 64 block 16384; v4 = add v3 v1; store a2[i*3 + j] = v4; store a3[i*s4*3 + k*3 + j] = v2",
     {99006, 3, 6, 99006, 16501}},
    {"kernel (a0 bf16, a1 bf16, a2 bf16 out, a3 u8 out) for i < 12, j < 4, k < 35; v0 = load a0[j*420 + k*12 + i]; v1 = load a1[j*420 + "
     "k*12 + i]; v2 = add v0 v1; v3 = "
     "fold sum j k (v2) order lanes 64 block 16384; v4 = cast v2 : u8; v5 = fold max j k (v4); store a2[i] = v3; store a3[i] = v5",
     {1680, 1680, 12, 12}},
    {"kernel (a0 f32, a1 f32 out, a2 f32) for i < 7, j < 13, k < 200; v0 = load a0[i*2600 + k*13 + j]; v1 = load a2[k]; v2 = mul v0 v1; v3 "
     "= fold sum k (v2) order lanes 64 block 16384; store a1[i*13 + j] = v3",
     {18200, 91, 200}},
    {"kernel (a0 i32, a1 i32 out) for i < 12, j < 200; v0 = load a0[j*12 + i]; v1 = fold min j (v0); store a1[i] = v1", {2400, 12}},
    {"kernel (a0 f32, a1 f32, a2 f32 out) for i < 3, j < 37, k < 6; v0 = load a0[i*222 + j*-6 + k + 216]; v1 = load a1[i*6 + k]; v2 = mul "
     "v0 v1; v3 = exp v2; store a2[i*222 + j*6 + k] = v3",
     {666, 18, 666}},
    {"kernel (a0 u8, a1 u8, a2 u8 out) for i < 150, j < 4; v0 = load a0[i*8 + j*2]; v1 = load a1[i]; v2 = sub v0 v1; store a2[i*4 + j] = "
     "v2",
     {1200, 150, 600}},
    {"kernel (a0 u8, a1 u8 out) for i < 300, j < 37; v0 = load a0[j*300 + i]; v1 = fold max j (v0); store a1[i] = v1", {11100, 300}},
    {"kernel (a0 f32, a1 f32, a2 f32, a3 f32 out) for i < 2, j < 11, k < 21, l < 3, m < 3; v0 = index j + l; v1 = ge v0 1; v2 = lt v0 12; "
     "v3 = and v1 v2; v4 = index k + m; v5 = ge v4 1; v6 = lt v4 22; v7 = and v5 v6; v8 = and v3 v7; v9 = load a0[i*231 + j*21 + k + l*21 "
     "+ "
     "m + -22] where v8; v10 = load a1[i*9 + l*3 + m]; v11 = mul v9 v10; v12 = fold sum l m (v11) order lanes 64 block 16384; v13 = load "
     "a2[i*231 + j*21 + k]; v14 = add v12 v13; v15 = relu v14; store a3[i*231 + j*21 + k] = v15",
     {462, 18, 462, 462}},
    {"kernel (a0 bf16, a1 bf16 out, s2, s3, s4) for i < s2 ~4, j < s3 ~5, k < 2, l < 3; v0 = load a0[i*s4 + k*s4*2 + j + l]; v1 = fold max "
     "k l (v0); store a1[i*s3 + j] = v1",
     {231, 171, 9, 19, 21}},
};

static const Case products[] = {
    {"kernel (a0 f32, a1 f32, a2 f32 out) for i < 31, j < 45, k < 300; v0 = load a0[i*300 + k]; v1 = load a1[k*45 + j]; v2 = fold dot k "
     "(v0, v1) order chain block 256; "
     "store a2[i*45 + j] = v2",
     {9300, 13500, 1395}},
    {"kernel (a0 bf16, a1 bf16, a2 f32, a3 bf16 out, s4) for i < 2, j < s4 ~4, k < 18, l < 40; v0 = load a0[(i*s4 + j)*40 + l]; v1 = load "
     "a1[(i*18 "
     "+ k)*40 + l]; v2 = fold dot l (v0, v1) order chain block 256; v3 = cast v2 : f32; v4 = load a2[k]; v5 = add v3 v4; v6 = cast v5 : "
     "bf16; store a3[(i*s4 + "
     "j)*18 + "
     "k] = v6",
     {720, 1440, 18, 324, 9}},
    {"kernel (a0 i32, a1 i32, a2 i32 out) for i < 40, j < 33; v0 = load a0[j]; v1 = load a1[j*40 + i]; v2 = fold dot j (v0, v1); store "
     "a2[i] = v2",
     {33, 1320, 40}},
    {"kernel (a0 f32, a1 f32 panels 16 along j, a2 f32 out) for i < 31, j < 45, k < 300; v0 = load a0[i*300 + k]; v1 = load a1[k*16 + "
     "(j/16)*4800 + j%16]; v2 = fold dot k (v0, v1) order chain block 256; store a2[i*45 + j] = v2",
     {9300, 14400, 1395}},
    {"kernel (a0 f32, a1 f32, a2 f32 out) for i < 4, j < 45, k < 64; v0 = load a0[i*64 + k]; v1 = load a1[(j%9)*4 + k%4]; v2 = fold dot k "
     "(v0, v1) order chain block 256; store a2[i*45 + j] = v2",
     {256, 36, 180}},
};

/* Is `asked` taken for this kernel? Then it is run. */
static bool taken(const Case *c, const char *asked, int bits)
{
    Kernel *k = parsed(c->text);
    CheckArg args[REF_ARGS] = {0};
    JitOptions o = strict(bits);
    Str nest;
    const char *own = own_text(k, &o, &nest, NULL);
    o.value[OPT_SCHEDULE] = ask(arena_printf(&arena, "%s\nschedule %d; %s\n", c->text, bits, asked));
    cr_assert_neq(o.value[OPT_SCHEDULE], 0, "%s", fail_message());
    const char *now = own_text(k, &o, &nest, NULL);
    if (strcmp(now, own) == 0)
        return false;
    bool special = next_random() & 1; /* with which most sums are NaN, whatever their order */
    for (uint32_t a = 0; a < k->args.n; a++) {
        DType t = (DType)k->args.at[a].dtype;
        if (k->args.at[a].kind == ARG_BUFFER)
            args[a] = (CheckArg){.data = filled(t, (size_t)c->n[a], special), .bytes = (size_t)c->n[a] * dtype_bytes(t)};
        else
            args[a].value = c->n[a];
    }
    Emitted out;
    cr_assert_eq(llvm_emit_host(k, "test", &o, false, &out), ST_OK, "%s: %s", now, fail_message());
    CompiledKernel *code = load_kernel(&out);
    if (llvm_host_runs(&o) == ST_OK)
        check_code(code, k, args, (Setting){bits, 1, MATH_STRICT, CPU_V3}, arena_printf(&arena, "%s\n%s", c->text, now));
    kernel_table_release(code);
    free_emitted(&out);
    for (uint32_t a = 0; a < k->args.n; a++)
        os_free((void *)(uintptr_t)args[a].data);
    return true;
}

Test(schedule, what_loops_may_be_asked_for_changes_no_bit)
{
    static const char *const along[] = {"i", "j", "k", "none"}, *const ways[] = {"body once; prefetch on", "body twice; split never",
                                                                                 "tail scalar"};
    static const int lanes[] = {1, 4, 16, 32, 64}, points[] = {13, 19, 21, 37, 63}, few[] = {3, 12, 13, 21};
    for (size_t c = 0; c < sizeof loops / sizeof *loops; c++) {
        if (!slice_takes(c))
            continue;
        const Kernel *k = parsed(loops[c].text);
        int n = 0;
        for (size_t a = 0; a < 4; a++)
            for (size_t l = 0; l < sizeof lanes / sizeof *lanes && (along[a][1] || a < k->axes.n); l++)
                for (size_t w = 0; w < 3; w++)
                    n += taken(&loops[c], arena_printf(&arena, "along %s; lanes %d; %s", along[a], lanes[l], ways[w]), 256);
        for (int rows = 1; rows <= 5; rows += 2)
            n += taken(&loops[c], arena_printf(&arena, "joined 0; square 0; across i; rows %d", rows), 128);
        n += taken(&loops[c], "stages 64 4 16", 256);
        n += taken(&loops[c], "stages 1 64 32", 256);
        for (int strip = 0; strip <= 6; strip += 3)
            n += taken(&loops[c], arena_printf(&arena, "lanes 8; strip %d", strip), 256);
        for (int l = 0; l < 3; l++)
            for (int columns = 0; columns < 4; columns++)
                n += taken(&loops[c],
                           arena_printf(&arena, "along %c; lanes %d; body once; strip 0; columns %d", kernel_axis_letters[k->axes.n - 1],
                                        4 << 2 * l, few[columns]),
                           256);
        for (int chains = 1; chains <= 64; chains *= 2)
            n += taken(&loops[c], arena_printf(&arena, "lanes 8; strip 2; chains %d", chains), 256);
        for (int steps = 2; steps <= 17; steps += 5)
            n += taken(&loops[c], arena_printf(&arena, "lanes 8; strip 2; chains 0; steps %d", steps), 256);
        for (int p = 0; p < 10; p++)
            n += taken(&loops[c], arena_printf(&arena, "along i; lanes %d; strip 0; unroll %d", 4 << p % 2, points[p / 2]),
                       p % 2 ? 256 : 128);
        for (int rows = 2; rows <= 16; rows += rows < 6 ? 1 : 5)
            for (int l = 4; l <= 16; l *= 2)
                n += k->axes.n > 3 && taken(&loops[c],
                                            arena_printf(&arena, "lanes %d; strip 0; across %c; rows %d; unroll %d", l,
                                                         k->axes.n > 4 ? 'j' : 'i', rows, k->axes.n > 4 ? 9 : 6),
                                            256);
        for (int l = 1; l <= 64; l += l < 8 ? 7 : 8)
            for (size_t w = 0; w < 3; w++)
                n += taken(&loops[c], arena_printf(&arena, "lanes %d; %s; joined %d", l, ways[w], l % 16 ? 6 : 4), 256);
        for (size_t a = 0; a < 4; a++)
            n += (along[a][1] || a < k->axes.n) && taken(&loops[c], arena_printf(&arena, "joined 0; pieces %s", along[a]), 256);
        cr_expect_geq(n, 8, "%d schedules of\n%s", n, loops[c].text);
    }
}

Test(schedule, what_products_may_be_asked_for_changes_no_bit)
{
    static const char *const ways[] = {"direct", "packed", "strips", "dots"};
    static const int rows[] = {1, 5, 14}, widths[] = {1, 4, 8, 16}, tiles[] = {1, 3};
    int by_way[4] = {0};
    for (size_t c = 0; c < sizeof products / sizeof *products; c++)
        for (size_t w = 0; w < 4; w++)
            for (size_t r = 0; r < 3; r++)
                for (size_t v = 0; v < 4; v++)
                    for (size_t t = 0; t < 2; t++)
                        by_way[w] +=
                            slice_takes(5 * c + r * 8 + v * 2 + t) &&
                            taken(&products[c],
                                  arena_printf(&arena, "way %s; tile_rows %d; tile_width %d; task_rows %d; task_tiles %d; panels 1",
                                               ways[w], rows[r], widths[v], (w == WAY_STRIPS ? 1 : 2) * rows[r], tiles[t]),
                                  256);
    for (int w = 0; w < 4; w++)
        cr_expect(slices() > 1 || by_way[w] >= 6, "%d are %s", by_way[w], ways[w]);
    cr_expect_geq(by_way[0] + by_way[1] + by_way[2] + by_way[3], 6, "few are taken");
}

/* What is in the file counts, not its name; it is a part of the key. */
Test(schedule, a_file_is_what_it_holds)
{
    int64_t one = ask("// nothing\n"), other = ask("// none\n");
    cr_assert(one && other && one != other && one == ask("// nothing\n"));
    cr_assert(option_keyed(OPT_SCHEDULE));
    cr_assert_str_eq(option_contents(one), "// nothing\n");
    cr_assert_null(option_contents(one + 1));
    cr_assert_eq(option_set("schedule", "/nowhere/at/all"), ST_INVALID);
    cr_assert(strstr(fail_message(), "/nowhere/at/all"));
    cr_assert_eq(option_int(OPT_SCHEDULE), one, "a bad value replaced a good one");
    cr_assert_eq(option_set("schedule", ""), ST_OK);
    cr_assert_eq(option_int(OPT_SCHEDULE), 0);
}

Test(schedule, what_is_no_text_or_never_ends_is_refused)
{
    static const char hidden[] = "// fine\n\0 kernel and what not";
    cr_assert_eq(ask_bytes(hidden, sizeof hidden - 1), 0, "what stands behind a 0 is not looked at");
    cr_assert(strstr(fail_message(), "it holds a byte 0"), "%s", fail_message());
    cr_assert_eq(option_set("schedule", "/dev/zero"), ST_INVALID);
    cr_assert(strstr(fail_message(), strerror(EFBIG)), "%s", fail_message());
}

/* Entries without loops: each ends where the next one begins, and none is looked for beyond. */
Test(schedule, many_entries)
{
    enum { ENTRIES = 5000 };
    static const char entry[] = "kernel (a0 f32, a1 f32 out) for i < 5; v0 = load a0[i]; store a1[i] = v0\nschedule 256; lanes 8\n";
    static char text[ENTRIES * sizeof entry + 100];
    for (int i = 0; i < ENTRIES; i++)
        memcpy(text + (size_t)i * (sizeof entry - 1), entry, sizeof entry);
    cr_assert_neq(ask(text), 0, "%s", fail_message());
    strcat(text, "kernel (a0 f32) for i\n");
    cr_assert_eq(ask(text), 0);
    cr_assert(strstr(fail_message(), ": 10002:"), "%s", fail_message());
}
