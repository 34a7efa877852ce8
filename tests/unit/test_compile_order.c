/*
 * Code depends on a kernel's text, the target and the options: never on which program came first. The same programs are compiled in
 * shuffled orders, each time into an empty table of kernels, and their objects are compared byte by byte. Many of their kernels have one
 * text but for what is planned for, since all sizes may vary. Nor does it matter which target was asked for first, as the compiler keeps
 * what it made for one.
 */
#include "ir/base/hash.h"
#include "ir/base/os.h"
#include "jit/compile.h"
#include "tests/unit/arena.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(compile_order, .init = setup, .fini = teardown);

static const char *const shapes[] = {"2,3", "64,64", "300,7", "5,20000", "70000,16"};
#define SPREAD_MAX "  %1 = reduce_max %0 axes(1)\n  %2 = reshape %1 groups(1:1 0:1)\n  %3 = expand %2 axes(1) size(COLUMNS)\n"
static const char *const bodies[] = {
    "  %1 = sin %0\n  %2 = add %1 %0\n  return %2\n",
    "  %1 = reduce_sum %0 axes(1)\n  return %1\n",
    "  %1 = reduce_max %0 axes(0)\n  return %1\n",
    (SPREAD_MAX "  %4 = sub %0 %3\n  %5 = exp %4\n  %6 = reduce_sum %5 axes(1)\n  return %5 %6\n"),
    "  %1 = cumsum %0 axis(1)\n  return %1\n",
    "  %1 = permute %0 perm(1 0)\n  %2 = matmul %0 %1\n  return %2\n",
    "  %1 = permute %0 perm(1 0)\n  %2 = matmul %0 %1\n  %3 = relu %1\n  %4 = matmul %0 %3\n  return %2 %4\n",
};
enum { SHAPES = sizeof shapes / sizeof *shapes, PROGRAMS = SHAPES * (sizeof bodies / sizeof *bodies), MOST = 4, ORDERS = 4 };

typedef struct FirstCode {
    const char *key;
    const void *object;
    size_t bytes;
} FirstCode;

/* Target 0 is this CPU. */
static const struct {
    int64_t bits, cpu;
} targets[] = {{0, CPU_HOST}, {256, CPU_HOST}, {128, CPU_HOST}, {0, CPU_V3}, {128, CPU_V3}};
enum { TARGETS = sizeof targets / sizeof *targets };

static Program *compile(uint32_t number, uint32_t target)
{
    char text[1024], body[800];
    const char *shape = shapes[number % SHAPES], *from = bodies[number / SHAPES], *columns = strstr(from, "COLUMNS");
    if (columns)
        snprintf(body, sizeof body, "%.*s%s%s", (int)(columns - from), from, strchr(shape, ',') + 1, columns + strlen("COLUMNS"));
    else
        snprintf(body, sizeof body, "%s", from);
    snprintf(text, sizeof text, "graph p(%%0: f32[%s]) {\n%s}\n", shape, body);
    Graph *g;
    Program *p = NULL;
    JitOptions options = {.value = {0}};
    options_snapshot(&options);
    options.value[OPT_VECTOR_BITS] = targets[target].bits;
    options.value[OPT_CPU] = targets[target].cpu;
    cr_assert_eq(graph_parse(text, &arena, &g), ST_OK, "%s in\n%s", fail_message(), text);
    GuardPolicy policy = {.int_varies = ARENA_ARRAY(&arena, bool, g->shared->ints.n + 1), .scalar_varies = ARENA_ARRAY(&arena, bool, 1)};
    guard_policy_close(&policy, g, true);
    CompileRequest request = {.graph = g, .policy = &policy, .options = &options};
    cr_assert_eq(jit_compile(&request, &p, NULL), ST_OK, "%s", fail_message());
    cr_assert(p->n_kernels > 0 && p->n_kernels <= MOST);
    return p;
}

/* First to last, last to first, then by chance. */
static void shuffle(uint32_t *order, int round)
{
    static uint64_t seed = 1;
    for (uint32_t i = 0; i < PROGRAMS; i++)
        order[i] = round == 1 ? PROGRAMS - 1 - i : i;
    for (uint32_t i = PROGRAMS; round > 1 && i-- > 1;) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint32_t j = (uint32_t)(seed >> 33) % (i + 1), t = order[i];
        order[i] = order[j], order[j] = t;
    }
}

Test(compile_order, code_is_the_same_whoever_was_first)
{
    static FirstCode first[PROGRAMS][MOST];
    uint32_t order[PROGRAMS], shared = 0;
    for (int round = 0; round < ORDERS; round++) {
        Program *programs[PROGRAMS];
        shuffle(order, round);
        for (uint32_t i = 0; i < PROGRAMS; i++)
            programs[order[i]] = compile(order[i], 0);
        for (uint32_t i = 0; i < PROGRAMS; i++) {
            for (uint32_t k = 0; k < programs[i]->n_kernels; k++) {
                const CompiledKernel *c = programs[i]->kernels[k].compiled;
                FirstCode *f = &first[i][k];
                if (!round)
                    *f = (FirstCode){arena_printf(&arena, "%.*s", (int)c->key_bytes, c->key),
                                     arena_copy(&arena, c->object, c->object_bytes), c->object_bytes};
                for (uint32_t j = 0; !round && j < i; j++)
                    shared += !strcmp(first[j][0].key, f->key);
                cr_assert(strlen(f->key) == c->key_bytes && !memcmp(c->key, f->key, c->key_bytes));
                cr_assert(c->object_bytes == f->bytes && !memcmp(c->object, f->object, f->bytes),
                          "round %d, program %u: other code for\n%s", round, i, f->key);
            }
        }
        for (uint32_t i = 0; i < PROGRAMS; i++)
            program_release(programs[i]);
    }
    cr_assert_gt(shared, 0, "no two programs have a kernel in common");
}

/* What is compiled for each target, in a process that knows none before. */
static void compile_targets(bool backwards, uint64_t code[TARGETS])
{
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        for (uint32_t i = 0; i < TARGETS; i++) {
            uint32_t target = backwards ? TARGETS - 1 - i : i;
            code[target] = 0;
            for (uint32_t number = 0; number < PROGRAMS; number += SHAPES) {
                const CompiledKernel *c = compile(number, target)->kernels[0].compiled;
                code[target] = 31 * code[target] + hash64(c->object, c->object_bytes);
            }
        }
        _exit(write(ends[1], code, sizeof *code * TARGETS) != (ssize_t)(sizeof *code * TARGETS));
    }
    int status = 1;
    cr_assert_eq(read(ends[0], code, sizeof *code * TARGETS), (ssize_t)(sizeof *code * TARGETS));
    cr_assert(waitpid(child, &status, 0) == child && status == 0);
    close(ends[0]);
    close(ends[1]);
}

Test(compile_order, code_is_the_same_whichever_target_was_first)
{
    uint64_t forwards[TARGETS], backwards[TARGETS];
    compile_targets(false, forwards);
    compile_targets(true, backwards);
    for (uint32_t t = 0; t < TARGETS; t++)
        cr_expect_eq(forwards[t], backwards[t], "other code for target %u, after other targets", t);
    cr_expect_neq(forwards[1], forwards[2], "256 and 128 bits have one code");
}
