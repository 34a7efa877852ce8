/*
 * make_cache DIR: fills a cache directory with entries made by hand, so that what the command
 * prints is the same on every machine.
 *
 *   chain A, B   one graph by one maker, for 4096 x 1024 and for 128 x 1024: guards of sizes
 *   chain C      the same graph by another maker: strict, on a CPU without avx512f
 *   softmax      another graph, two kernels, accepts every shape
 * and, with --many=N, as many more graphs; with --machine, an entry with the maker text of this
 * machine (import takes it, and refuses the others).
 */
#include "cache/disk.h"
#include "cache/maker.h"
#include "cache/records.h"
#include "ir/base/os.h"
#include "ir/base/pack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static Arena arena;

static void must(Status status)
{
    if (status == ST_OK)
        return;
    fprintf(stderr, "make_cache: %s\n", fail_message());
    exit(1);
}

static void line(Str *out, const char *name, const char *value) { key_line_add(out, name, value, strlen(value)); }

/* ---- keys ---- */

static Str maker(const char *features, const char *math)
{
    Str out;
    str_init(&out, &arena);
    line(&out, "format", arena_printf(&arena, "%d", ENTRY_FORMAT));
    line(&out, "version", "0.1.0");
    line(&out, "build", "0123456789abcdef0123456789abcdef01234567");
    line(&out, "llvm", "19.1.7");
    line(&out, "target", "x86_64-linux-gnu");
    line(&out, "machine", "TestVendor 6 143");
    line(&out, "features", features);
    line(&out, "math", math);
    return out;
}

static Str this_machine(void)
{
    Str out;
    JitOptions options = {.value = {0}};
    str_init(&out, &arena);
    options_snapshot(&options);
    maker_text(&options, &out);
    return out;
}

static const char wide[] = "adx aes avx avx2 avx512bw avx512f avx512vl bmi bmi2 f16c fma fxsr "
                           "lzcnt mmx movbe popcnt sse sse2";
static const char narrow[] = "adx aes avx avx2 bmi bmi2 f16c fma fxsr lzcnt mmx movbe popcnt sse sse2";

/* ---- programs ---- */

typedef struct Sample {
    const char *structure, *recorded, *optimised, *where, *place, *shapes;
    const char *kernels[2];
    int64_t ints[2];
    bool general;
    int made; /* order */
} Sample;

static const char chain_text[] = "graph chain(%0: f32[4096,1024], %1: f32[4096,1024]) {\n"
                                 "  %2 = sin %0\n"
                                 "  %3 = mul %2 %1\n"
                                 "  %4 = add %3 %0\n"
                                 "  return %4\n"
                                 "}\n";
static const char softmax_text[] = "graph softmax(%0: f32[64,512]) {\n"
                                   "  %1 = reduce_max %0 axes(1) : f32[64]\n"
                                   "  return %1\n"
                                   "}\n";

static const char *kernel_text(const char *name, const char *what) { return arena_printf(&arena, "%s of %s\n", what, name); }

/* A kernel as the code generator leaves it: some bytes for code, IR and assembly packed. */
static CompiledKernel *kernel(const char *name, size_t code_bytes)
{
    const char *ir = kernel_text(name, "; IR"), *assembly = kernel_text(name, "# assembly");
    size_t n = strlen(ir) + strlen(assembly) + 2;
    char *both = arena_alloc(&arena, n), *code = arena_alloc(&arena, code_bytes);
    memcpy(both, ir, strlen(ir) + 1);
    memcpy(both + strlen(ir) + 1, assembly, strlen(assembly) + 1);
    for (size_t i = 0; i < code_bytes; i++)
        code[i] = (char)(i * 7);
    void *packed = NULL;
    CompiledKernel *out = ARENA_NEW(&arena, CompiledKernel);
    must(pack(both, n, &packed, &out->texts_bytes));
    out->texts = arena_copy(&arena, packed, out->texts_bytes);
    os_free(packed);
    out->key = kernel_text(name, "loops");
    out->key_bytes = strlen(out->key);
    out->object = code;
    out->object_bytes = code_bytes;
    return out;
}

/* Sizes s0, s1 and, unless the program is general, a guard on each. */
static GuardSet guards(const Sample *sample)
{
    GuardSet set = {.sizes = {ARENA_ARRAY(&arena, SizeExpr, 3), 3}, .at = ARENA_ARRAY(&arena, Guard, 2), .n = sample->general ? 0 : 2};
    for (uint32_t i = 0; i < 2; i++) {
        set.sizes.at[i] = (SizeExpr){.kind = SIZE_FACT, .a = i};
        set.at[i] = (Guard){.kind = GUARD_INT_EQ, .a = i, .v = sample->ints[i], .who = i ? "vectorise" : "fuse"};
    }
    set.sizes.at[2] = (SizeExpr){.kind = SIZE_MUL, .a = 0, .b = 1};
    return set;
}

static Program *program(const Sample *sample)
{
    static const ProgBuffer buffers[] = {{BUFFER_INPUT, DT_F32, 0, 2, 0, NO_SLOT, NO_BUFFER, NO_OFFSET},
                                         {BUFFER_OUTPUT, DT_F32, 0, 2, 0, NO_SLOT, NO_BUFFER, NO_OFFSET}};
    static const ProgArg args[] = {{BIND_BUFFER, 0}, {BIND_BUFFER, 1}, {BIND_SIZE, 2}};
    static uint32_t outputs[] = {1};
    Program *p = ARENA_NEW(&arena, Program);
    p->guards = guards(sample);
    p->n_kernels = p->n_steps = sample->kernels[1] ? 2 : 1;
    p->kernels = ARENA_ARRAY(&arena, ProgKernel, 2);
    p->steps = ARENA_ARRAY(&arena, ProgStep, 2);
    for (uint32_t i = 0; i < p->n_kernels; i++) {
        p->kernels[i] = (ProgKernel){kernel(sample->kernels[i], 1000 + 500 * i), sample->kernels[i], 0.25};
        p->steps[i] = (ProgStep){.kind = STEP_KERNEL, .kernel = i, .n_args = 3, .bytes = 2, .what = sample->kernels[i]};
    }
    p->buffers = arena_copy(&arena, buffers, sizeof buffers);
    p->args = arena_copy(&arena, args, sizeof args);
    p->outputs = outputs;
    p->n_buffers = 2;
    p->n_args = p->max_step_args = 3;
    p->n_inputs = p->n_outputs = 1;
    p->general = sample->general;
    return p;
}

/* ---- entries ---- */

static void publish(Disk *disk, const Sample *sample, const Str *by)
{
    Str graph, meta;
    str_init(&graph, &arena);
    str_init(&meta, &arena);
    line(&graph, "structure", sample->structure);
    line(&graph, "signature", "f32 f32");
    line(&meta, "made", arena_printf(&arena, "%d", 1769860800 + 3600 * sample->made));
    line(&meta, "compile_us", arena_printf(&arena, "%d", 9400 + 1000 * sample->made));
    line(&meta, "where", sample->where);
    if (sample->place)
        line(&meta, "place", sample->place);
    line(&meta, "shapes", sample->shapes);
    bool varies[2] = {false, false};
    GuardPolicy policy = {.int_varies = varies, .scalar_varies = varies, .general = sample->general};
    EntryParts parts = {
        .key = {by->text, graph.text, by->len, graph.len},
        .meta = meta.text,
        .meta_bytes = meta.len,
        .facts = {sample->ints, NULL, 2, 0},
        .policy = &policy,
        .program = program(sample),
        .recorded = sample->recorded,
        .optimised = sample->optimised,
    };
    void *bytes = NULL;
    size_t n = 0;
    char name[ENTRY_NAME_BYTES];
    must(entry_write(&parts, &bytes, &n));
    entry_name(&parts.key, &parts.program->guards, name);
    must(disk_publish(disk, name, bytes, n, true));
    os_free(bytes);
}

/* The file `info`, as the library writes it: name=value lines. */
static const char *info_text(const Str *by)
{
    Str out;
    KeyLine part;
    str_init(&out, &arena);
    for (const char *at = by->text; key_line_next(&at, by->text + by->len, &part);)
        str_printf(&out, "%.*s=%.*s\n", (int)part.name_bytes, part.name, (int)part.n, part.bytes);
    return out.text;
}

static void fill(Disk *disk, bool machine)
{
    Sample chain = {.structure = "sin 0; mul 2 1; add 3 0",
                    .recorded = chain_text,
                    .optimised = chain_text,
                    .where = "kiln_item",
                    .place = "chain.c:7",
                    .shapes = "%0: f32[4096,1024], %1: f32[4096,1024]",
                    .kernels = {"sin_mul_add"},
                    .ints = {4096, 1024}};
    Sample small = chain;
    Sample softmax = {.structure = "reduce_max 0; sub; exp; reduce_sum",
                      .recorded = softmax_text,
                      .optimised = softmax_text,
                      .where = "kiln_read",
                      .shapes = "%0: f32[64,512]",
                      .kernels = {"max_exp_sum", "div"},
                      .ints = {64, 512},
                      .general = true,
                      .made = 3};
    small.shapes = "%0: f32[128,1024], %1: f32[128,1024]";
    small.ints[0] = 128;
    small.made = 1;
    Str first = maker(wide, "fast"), second = maker(narrow, "strict");
    publish(disk, &chain, &first);
    publish(disk, &small, &first);
    chain.made = 2;
    publish(disk, &chain, &second);
    publish(disk, &softmax, &first);
    if (machine) {
        Str own = this_machine();
        publish(disk, &chain, &own);
    }
    must(disk_write_text(disk, "info", info_text(&first)));
}

/* One whose kernels' names say less than its place. */
static void fill_long(Disk *disk)
{
    Str by = maker(wide, "fast");
    Sample step = {.structure = "reduce_max 0; mul; add; sub",
                   .recorded = softmax_text,
                   .optimised = softmax_text,
                   .where = "kiln_function_call",
                   .place = "train.c:82",
                   .shapes = "%0: f32[64,512]",
                   .kernels = {"matmul_add_relu_matmul", "sub_exp_reduce_sum_log"},
                   .ints = {64, 512},
                   .made = 4};
    publish(disk, &step, &by);
}

/* So many graphs more, alike but for a number. */
static void fill_many(Disk *disk, int n)
{
    Str by = maker(wide, "fast");
    for (int i = 0; i < n; i++) {
        Sample sample = {.structure = arena_printf(&arena, "graph number %d", i),
                         .recorded = chain_text,
                         .optimised = chain_text,
                         .where = "kiln_eval",
                         .shapes = "%0: f32[4096,1024], %1: f32[4096,1024]",
                         .kernels = {"sin_mul_add"},
                         .ints = {4096, 1024}};
        publish(disk, &sample, &by);
    }
}

int main(int argc, char **argv)
{
    Disk *disk = NULL;
    jmp_buf oom;
    if (argc < 2)
        return 2;
    arena_init(&arena, &oom);
    if (setjmp(oom))
        return 1;
    must(disk_open(argv[1], true, true, &disk));
    fill(disk, argc > 2 && strcmp(argv[2], "--machine") == 0);
    if (argc > 2 && strcmp(argv[2], "--long") == 0)
        fill_long(disk);
    if (argc > 2 && strncmp(argv[2], "--many=", 7) == 0)
        fill_many(disk, atoi(argv[2] + 7));
    disk_close(disk);
    arena_free(&arena);
    return 0;
}
