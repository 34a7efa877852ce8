/*
 * What kernels cost on a device, counted instead of timed: instructions an element in the loop that does the work, accesses of
 * 16 bytes, special functions, registers. An H200 issues about 60 instructions in the time in which an f32 is read and another
 * written, half as many for one that is only read; beyond that it is they that take the time.
 *
 * Counted in the PTX, always; in the machine code of sm_90a too, where there are ptxas and nvdisasm (or $NVDISASM). Bounds are
 * what was counted when they were written and an eighth more: a loss of a fifth fails. Less than half of a bound fails, too: the
 * loop is not the one that does the work, or the bound is to be lowered. EMIT_PRINT=1 prints the counts.
 */
#define CHECK_PTX
#include "tests/unit/kernel_ref.h"
#include "tests/unit/arena.h"
#include "tests/support/count.h"

#include <stdarg.h>

TestSuite(ptx_quality, .init = setup, .fini = teardown);

/* ---- the workloads ---- */

enum { SIDE = 4096, MANY = 1 << 24, NONE = VREF_NONE };

typedef struct Build {
    Kernel *k;
    DType t;
} Build;

static Build build(DType t)
{
    Build b = {kernel_new(&arena), t};
    b.k->index_bits = 32;
    return b;
}

static uint32_t buffer(Build b, DType t, bool written) { return k_arg(b.k, ARG_BUFFER, t, written); }
static VRef op1(Build b, Op op, VRef x) { return k_op(b.k, op, b.t, x, NONE, NONE); }
static VRef op2(Build b, Op op, VRef x, VRef y) { return k_op(b.k, op, b.t, x, y, NONE); }
static VRef number(Build b, double value) { return k_const(b.k, b.t, value); }

static IRef axis(Build b, AxisKind kind, int64_t n)
{
    b.k->vec_axis = k_axis(b.k, kind, kidx_const(b.k, n), n);
    return kidx_axis(b.k, b.k->vec_axis);
}

static IRef square(Build b, IRef row, IRef column) { return kidx_add(b.k, kidx_mul(b.k, row, kidx_const(b.k, SIDE)), column); }

static Kernel *chain_a(void)
{
    Build b = build(DT_F32);
    uint32_t in[2] = {buffer(b, b.t, false), buffer(b, b.t, false)}, out = buffer(b, b.t, true);
    IRef i = axis(b, AXIS_X, MANY);
    VRef x = k_load(b.k, in[0], i, NONE), y = k_load(b.k, in[1], i, NONE);
    VRef v = op2(b, OP_ADD, op2(b, OP_MUL, op1(b, OP_SIN, x), op1(b, OP_COS, y)), x);
    k_store(b.k, out, i, op1(b, OP_RELU, op2(b, OP_MUL, v, y)), NONE);
    return b.k;
}

static Kernel *whole_fold(Op fold, VRef (*body)(Build b, VRef x), int64_t n)
{
    Build b = build(DT_F32);
    DType result = fold == OP_ARGMAX ? DT_I64 : b.t;
    uint32_t in = buffer(b, b.t, false), out = buffer(b, result, true);
    k_arg(b.k, ARG_SCRATCH, DT_U8, true);
    b.k->split = true;
    IRef j = axis(b, AXIS_R, n);
    k_store(b.k, out, kidx_const(b.k, 0), k_reduce(b.k, fold, result, body(b, k_load(b.k, in, j, NONE))), NONE);
    return b.k;
}

static Kernel *whole_sum(VRef (*body)(Build b, VRef x), int64_t n) { return whole_fold(OP_REDUCE_SUM, body, n); }

static VRef body_b(Build b, VRef x)
{
    VRef u = op1(b, OP_TANH, op2(b, OP_ADD, op2(b, OP_MUL, x, number(b, 0.1)), number(b, 1.7)));
    VRef e = op1(b, OP_EXP, op2(b, OP_MUL, op1(b, OP_NEG, x), x));
    return op2(b, OP_ADD, op2(b, OP_MUL, u, op1(b, OP_SIGMOID, x)), e);
}

static VRef body_plain(Build b, VRef x) { return (void)b, x; }
static Kernel *chain_b(void) { return whole_sum(body_b, 10000000); }
static Kernel *short_b(void) { return whole_sum(body_b, 1000000); }
static Kernel *long_b(void) { return whole_sum(body_b, 100000000); }
static Kernel *sum(void) { return whole_sum(body_plain, MANY); }

static Kernel *elementwise_of(DType from, VRef (*body)(Build b, VRef x), DType to)
{
    Build b = build(DT_F32);
    uint32_t in = buffer(b, from, false), out = buffer(b, to, true);
    IRef i = axis(b, AXIS_X, MANY);
    VRef x = k_load(b.k, in, i, NONE);
    VRef v = body(b, from == b.t ? x : k_op(b.k, OP_CAST, b.t, x, NONE, NONE));
    k_store(b.k, out, i, to == b.t ? v : k_op(b.k, OP_CAST, to, v, NONE, NONE), NONE);
    return b.k;
}

static Kernel *elementwise(VRef (*body)(Build b, VRef x), DType to) { return elementwise_of(DT_F32, body, to); }

static VRef body_e(Build b, VRef x)
{
    VRef r = op1(b, OP_RELU, op2(b, OP_ADD, op2(b, OP_MUL, x, number(b, 2)), number(b, 1)));
    return op1(b, OP_SIGMOID, op2(b, OP_MUL, r, number(b, 0.5)));
}

static VRef body_gelu(Build b, VRef x)
{
    VRef u = op1(b, OP_ERF, op2(b, OP_MUL, x, number(b, 0.70710678)));
    return op2(b, OP_MUL, op2(b, OP_MUL, x, number(b, 0.5)), op2(b, OP_ADD, u, number(b, 1)));
}

static VRef body_negative(Build b, VRef x) { return op1(b, OP_NEG, x); }
static Kernel *chain_e(void) { return elementwise(body_e, DT_F32); }
static Kernel *gelu(void) { return elementwise_of(DT_BF16, body_gelu, DT_BF16); }
static Kernel *copy(void) { return elementwise(body_negative, DT_F32); }
static Kernel *narrow(void) { return elementwise(body_plain, DT_BF16); }

static Kernel *add_row(void)
{
    Build b = build(DT_F32);
    uint32_t in[2] = {buffer(b, b.t, false), buffer(b, b.t, false)}, out = buffer(b, b.t, true);
    IRef row = axis(b, AXIS_X, SIDE), i = axis(b, AXIS_X, SIDE), at = square(b, row, i);
    k_store(b.k, out, at, op2(b, OP_ADD, k_load(b.k, in[0], at, NONE), k_load(b.k, in[1], i, NONE)), NONE);
    return b.k;
}

static Kernel *transpose(void)
{
    Build b = build(DT_F32);
    uint32_t in = buffer(b, b.t, false), out = buffer(b, b.t, true);
    IRef row = axis(b, AXIS_X, SIDE), i = axis(b, AXIS_X, SIDE);
    k_store(b.k, out, square(b, row, i), op1(b, OP_NEG, k_load(b.k, in, square(b, i, row), NONE)), NONE);
    return b.k;
}

static Kernel *softmax(DType t)
{
    Build b = build(DT_F32);
    uint32_t in = buffer(b, t, false), out = buffer(b, t, true);
    IRef row = axis(b, AXIS_X, SIDE), at = square(b, row, axis(b, AXIS_R, SIDE));
    VRef v = k_load(b.k, in, at, NONE);
    v = t == b.t ? v : k_op(b.k, OP_CAST, b.t, v, NONE, NONE);
    VRef e = op1(b, OP_EXP, op2(b, OP_SUB, v, k_reduce(b.k, OP_REDUCE_MAX, b.t, v)));
    VRef r = op2(b, OP_MUL, e, op1(b, OP_RECIPROCAL, k_reduce(b.k, OP_REDUCE_SUM, b.t, e)));
    k_store(b.k, out, at, t == b.t ? r : k_op(b.k, OP_CAST, t, r, NONE, NONE), NONE);
    return b.k;
}

static Kernel *softmax_f32(void) { return softmax(DT_F32); }
static Kernel *softmax_bf16(void) { return softmax(DT_BF16); }

static Kernel *layer_norm(void)
{
    Build b = build(DT_F32);
    uint32_t in[3], out;
    for (int i = 0; i < 3; i++)
        in[i] = buffer(b, b.t, false);
    out = buffer(b, b.t, true);
    b.k->args.at[in[0]].may_alias = b.k->args.at[out].may_alias = true; /* as for most users: it may be the same storage */
    KInst length = inst_new(KI_SCALAR, b.t);
    length.arg = k_arg(b.k, ARG_SCALAR, b.t, false);
    IRef row = axis(b, AXIS_X, SIDE), j = axis(b, AXIS_R, SIDE), at = square(b, row, j);
    VRef n = kernel_inst(b.k, length), x = k_load(b.k, in[0], at, NONE);
    VRef d = op2(b, OP_SUB, x, op2(b, OP_DIV, k_reduce(b.k, OP_REDUCE_SUM, b.t, x), n));
    VRef variance = op2(b, OP_DIV, k_reduce(b.k, OP_REDUCE_SUM, b.t, op1(b, OP_SQUARE, d)), n);
    VRef y = op2(b, OP_MUL, d, op1(b, OP_RSQRT, op2(b, OP_ADD, variance, number(b, 1e-5))));
    y = op2(b, OP_MUL, y, k_load(b.k, in[1], j, NONE));
    k_store(b.k, out, at, op2(b, OP_ADD, y, k_load(b.k, in[2], j, NONE)), NONE);
    return b.k;
}

static Kernel *columns(void)
{
    Build b = build(DT_F32);
    uint32_t in = buffer(b, b.t, false), out = buffer(b, b.t, true);
    IRef i = axis(b, AXIS_X, SIDE);
    uint32_t along = b.k->vec_axis;
    IRef j = axis(b, AXIS_R, SIDE);
    b.k->vec_axis = along;
    k_store(b.k, out, i, k_reduce(b.k, OP_REDUCE_SUM, b.t, k_load(b.k, in, square(b, j, i), NONE)), NONE);
    return b.k;
}

/* ---- counting ---- */

typedef struct Count {
    int all, special, loads, wide_loads, wide_stores; /* wide: of 16 bytes */
} Count;

/* A text in lines: labels, instructions with an operation each. The same for PTX and machine code. */
typedef struct Line {
    char label[32], target[32]; /* "": none */
    char operation[64];         /* "": none */
} Line;

/* "	@%p1 bra 	$L__BB0_6;", "$L__BB0_6:" */
static void ptx_line(const char *text, Line *l)
{
    *l = (Line){0};
    if (sscanf(text, " $%31[A-Za-z0-9_]:", l->label) == 1 && strchr(text, ':'))
        return;
    while (isspace((unsigned char)*text))
        text++;
    if (*text == '@')
        text += strcspn(text, " \t");
    if (!strchr(text, ';') || *text == '.' || *text == '/')
        return;
    sscanf(text, " %63[^; \t]", l->operation);
    if (strncmp(l->operation, "bra", 3) == 0)
        sscanf(text, " %*s $%31[A-Za-z0-9_]", l->target);
}

/* "        /_*0180*_/               @P0 BRA `(.L_x_2) ;", ".L_x_2:" */
static void machine_line(const char *text, Line *l)
{
    *l = (Line){0};
    if (sscanf(text, ".%31[A-Za-z0-9_]:", l->label) == 1)
        return;
    const char *code = strstr(text, "*/"), *target = strstr(text, "(.L");
    if (strncmp(text, "        /*", 10) != 0 || !code)
        return;
    code += 2;
    code += strspn(code, " \t{");
    if (*code == '@')
        code += strcspn(code, " \t");
    sscanf(code, " %63[^; \t]", l->operation);
    if (target && strncmp(l->operation, "BRA", 3) == 0)
        sscanf(target, "(.%31[A-Za-z0-9_]", l->target);
}

static bool has(const Line *l, const char *what) { return strstr(l->operation, what) != NULL; }

static bool is_load(const Line *l) { return has(l, "ld.global") || has(l, "LDG"); }

static Count count_lines(const Line *l, size_t n)
{
    Count c = {0};
    for (size_t begin = 0, end; begin < n; begin = end) { /* straight runs; one of f64 is a cold path of sin */
        bool cold = false;
        for (end = begin; end < n; end++) {
            cold |= has(&l[end], "f64") || has(&l[end], "DFMA") || has(&l[end], "DMUL");
            if (l[end].target[0] || (end > begin && l[end].label[0])) {
                end += l[end].target[0] != 0;
                break;
            }
        }
        for (size_t i = begin; i < end && !cold; i++) {
            c.all += l[i].operation[0] != 0;
            c.special += has(&l[i], ".approx") || has(&l[i], "MUFU");
            c.loads += is_load(&l[i]);
            c.wide_loads += (has(&l[i], "ld.global") && has(&l[i], ".v4.") && has(&l[i], "32")) || has(&l[i], "LDG.E.128");
            c.wide_stores += (has(&l[i], "st.global") && has(&l[i], ".v4.") && has(&l[i], "32")) || has(&l[i], "STG.E.128");
        }
    }
    return c;
}

/* One past the last branch back to the label of line `begin`; `begin`: there is none. */
static size_t loop_end_of(const Line *l, size_t n, size_t begin)
{
    size_t end = begin;
    for (size_t i = begin; i < n && l[begin].label[0]; i++)
        end = strcmp(l[begin].label, l[i].target) == 0 ? i + 1 : end;
    return end;
}

static int loads_of(const Line *l, size_t n)
{
    int loads = 0;
    for (size_t i = 0; i < n; i++)
        loads += is_load(&l[i]);
    return loads;
}

/* Does a loop inside of this one load? */
static bool has_inner(const Line *l, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (loads_of(&l[i], loop_end_of(l, n, i) - i))
            return true;
    return false;
}

static Line *lines_of(const char *text, void (*read)(const char *, Line *), size_t *n)
{
    size_t room = 1;
    for (const char *at = text; *at; at++)
        room += *at == '\n';
    Line *l = ARENA_ARRAY(&arena, Line, room);
    *n = 0;
    for (const char *at = text; *at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : at + strlen(at)) {
        char one[256];
        snprintf(one, sizeof one, "%.*s", (int)strcspn(at, "\n"), at);
        read(one, &l[*n]);
        *n += l[*n].label[0] || l[*n].operation[0];
    }
    return l;
}

/* PTX: the fewest instructions from the first operation `from` to an operation `to`, by whatever branches; loops included. */
static int shortest_way(const char *ptx, const char *from, const char *to)
{
    enum { NEVER = INT32_MAX / 2 };
    size_t n, first = 0;
    const Line *l = lines_of(ptx, ptx_line, &n);
    while (first < n && !has(&l[first], from))
        first++;
    cr_assert(first < n, "no %s", from);
    int *fewest = ARENA_ARRAY(&arena, int, n + 1);
    for (size_t i = 0; i <= n; i++)
        fewest[i] = NEVER;
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = n; i-- > 0;) {
            int way = has(&l[i], "bra.uni") ? NEVER : fewest[i + 1];
            for (size_t j = 0; j < n && l[i].target[0]; j++)
                if (strcmp(l[j].label, l[i].target) == 0 && fewest[j] < way)
                    way = fewest[j];
            way = has(&l[i], to) ? 0 : way < NEVER ? way + (l[i].operation[0] != 0) : NEVER;
            changed |= way < fewest[i];
            fewest[i] = way < fewest[i] ? way : fewest[i];
        }
    }
    cr_assert(fewest[first] < NEVER, "no way from %s to %s", from, to);
    return fewest[first];
}

/* The innermost loop with the most loads of 16 bytes; where there are none, with the most that load at all and special functions. */
static Count main_loop(const char *text, void (*read)(const char *, Line *))
{
    size_t n;
    const Line *l = lines_of(text, read, &n);
    Count best = {0};
    int most = -1;
    for (size_t begin = 0; begin < n; begin++) {
        size_t length = loop_end_of(l, n, begin) - begin;
        if (!length || has_inner(&l[begin], length))
            continue;
        Count c = count_lines(&l[begin], length);
        int score = c.wide_loads ? c.wide_loads * 1000 : loads_of(&l[begin], length) + c.special;
        if (score > most || (score == most && c.all < best.all)) {
            most = score;
            best = c;
        }
    }
    return best;
}

/* What nvdisasm makes of the machine code; NULL where there is none, or no ptxas. */
static const char *disassemble(const char *ptx)
{
    const char *program = getenv("NVDISASM");
#ifdef KILN_NVDISASM
    program = program ? program : KILN_NVDISASM;
#endif
    if (!program || !*program || !ptxas_path())
        return NULL;
    char in[] = "/tmp/kiln_ptx_XXXXXX", out[] = "/tmp/kiln_cubin_XXXXXX", command[1024];
    int fd = mkstemp(in), code = mkstemp(out);
    size_t bytes = strlen(ptx);
    cr_assert(fd >= 0 && code >= 0 && write(fd, ptx, bytes) == (ssize_t)bytes);
    close(fd);
    close(code);
    snprintf(command, sizeof command, "%s -arch sm_90a -o %s %s && %s -c %s", ptxas_path(), out, in, program, out);
    FILE *pipe = popen(command, "r");
    cr_assert(pipe);
    enum { MOST = 1 << 21 };
    char *text = arena_alloc(&arena, MOST);
    text[fread(text, 1, MOST - 1, pipe)] = 0;
    int status = pclose(pipe);
    unlink(in);
    unlink(out);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s", command);
    return text;
}

/* ---- bounds ---- */

static const struct Workload {
    const char *name;
    Kernel *(*kernel)(void);
    int elements;        /* of an iteration of the loop, of a thread */
    double ptx, machine; /* most instructions an element */
    int special;         /* special functions of an iteration in PTX, no more */
    int loads, stores;   /* of 16 bytes, no fewer; some load, wide or not, there must be */
    int registers;       /* of sm_90a, no more */
} workloads[] = {
    {"a", chain_a, 8, 55.4, 44.1, 0, 4, 2, 64},
    {"b", chain_b, 8, 59.6, 50.1, 40, 0, 0, 64},
    {"b of 1M", short_b, 8, 65.9, 53.6, 40, 0, 0, 64},
    {"b of 100M", long_b, 4, 59.6, 50.1, 20, 1, 0, 64},
    {"e", chain_e, 8, 22.7, 20.5, 16, 2, 2, 32},
    {"gelu bf16", gelu, 16, 56.7, 44.5, 0, 2, 2, 64},
    {"copy", copy, 8, 4.4, 3.9, 0, 2, 2, 32},
    {"cast", narrow, 16, 2.5, 2.2, 0, 4, 2, 40},
    {"add a row", add_row, 8, 6.8, 6.3, 0, 4, 2, 40},
    {"transpose", transpose, 16, 5.0, 4.8, 0, 4, 4, 56},
    {"sum", sum, 16, 4.2, 3.6, 0, 4, 0, 56},
    {"column sums", columns, 8, 11.0, 10.1, 0, 0, 0, 64},
    {"softmax", softmax_f32, 16, 28.2, 26.9, 17, 4, 4, 64},
    {"softmax bf16", softmax_bf16, 32, 29.0, 25.8, 33, 4, 4, 88},
    {"layer norm", layer_norm, 16, 21.2, 23.3, 2, 12, 4, 64},
};

/* `each`: instructions an element of what was counted in `text`. */
static void check_counts(const struct Workload *w, const char *text, Count c, double each, double most)
{
    cr_expect(each <= most, "%s, %s: %.1f instructions an element, %.1f are the most", w->name, text, each, most);
    cr_expect(each >= most / 2, "%s, %s: %.1f instructions an element, half of %.1f: is this the loop that does the work?", w->name, text,
              each, most);
    cr_expect((c.special > 0) == (w->special > 0), "%s, %s: %d special functions", w->name, text, c.special);
    cr_expect(c.loads > 0, "%s, %s: the loop loads nothing", w->name, text);
    cr_expect(c.wide_loads >= w->loads && c.wide_stores >= w->stores, "%s, %s: %d loads and %d stores of 16 bytes", w->name, text,
              c.wide_loads, c.wide_stores);
}

Test(ptx_quality, instructions_an_element)
{
    bool seen = false;
    for (size_t i = 0; i < sizeof workloads / sizeof *workloads; i++) {
        const struct Workload *w = &workloads[i];
        EmittedPtx p = emit_ptx(w->kernel(), &ptx_targets[1], MATH_FAST, w->name);
        Assembled a = assemble(p.ptx, &ptx_targets[1], w->name);
        const char *code = disassemble(p.ptx);
        Count ptx = main_loop(p.ptx, ptx_line), machine = code ? main_loop(code, machine_line) : (Count){0};
        double each = (double)ptx.all / w->elements, each_machine = (double)machine.all / w->elements;
        if (getenv("EMIT_PRINT"))
            fprintf(stderr, "%-14s PTX %5.1f an element, machine code %5.1f; %d special, %d + %d wide (%d, %d + %d); %d registers\n",
                    w->name, each, each_machine, ptx.special, ptx.wide_loads, ptx.wide_stores, machine.special, machine.wide_loads,
                    machine.wide_stores, a.registers);
        check_counts(w, "PTX", ptx, each, w->ptx);
        cr_expect(ptx.special <= w->special, "%s: %d special functions, %d are the most", w->name, ptx.special, w->special);
        if (code)
            check_counts(w, "machine code", machine, each_machine, w->machine);
        cr_expect(a.registers <= w->registers && a.spills == 0, "%s: %d registers, %d bytes spilled", w->name, a.registers, a.spills);
        cr_expect(a.registers > 0 || !ptxas_path(), "%s: ptxas told of no registers", w->name);
        seen |= code != NULL;
        free_ptx(&p);
    }
    if (!ptxas_path())
        fprintf(stderr, "no ptxas here: registers and machine code were left out, PTX alone was counted\n");
    else if (!seen)
        fprintf(stderr, "no nvdisasm here (NVDISASM=path): machine code was left out, PTX and registers were counted\n");
}

/* (b): 16,384 elements are a block of the order. On 132 multiprocessors of 1,024 threads each 10M are a turn and a sixth: more threads of fewer lanes,
 * which wait less often. Of many turns the last one is little of all. Of 1M and fewer some multiprocessors would have none: a task is a half or a
 * quarter of a block, of its lanes. Places take registers that more threads would not have. */
Test(ptx_quality, threads_of_split_sums)
{
    static const struct {
        Op fold;
        int n, threads, tasks;
    } cases[] = {{OP_REDUCE_SUM, 300000, 256, 4 * 19}, {OP_REDUCE_SUM, 1000000, 512, 2 * 62}, {OP_REDUCE_SUM, 2000000, 512, 123},
                 {OP_REDUCE_SUM, 10000000, 512, 611},  {OP_REDUCE_SUM, 17000000, 256, 1038},  {OP_REDUCE_SUM, 100000000, 256, 132 * 32},
                 {OP_ARGMAX, 1000000, 256, 62},        {OP_ARGMAX, 10000000, 256, 611}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        EmittedPtx p = emit_ptx(whole_fold(cases[i].fold, body_b, cases[i].n), &ptx_targets[1], MATH_FAST, "split");
        char text[32];
        snprintf(text, sizeof text, ".maxntid %d", cases[i].threads);
        cr_expect(strstr(p.ptx, text), "%d elements: not %d threads", cases[i].n, cases[i].threads);
        int64_t tasks = grid_launch(&p.launch, 0, (void *[3]){NULL}, 132).blocks;
        cr_expect(tasks == cases[i].tasks, "%d elements: %d tasks", cases[i].n, (int)tasks);
        free_ptx(&p);
    }
}

/* Is each of some powers of f64 above 1? `powers` of them in a row. */
static Kernel *above_one(int powers)
{
    Build b = build(DT_F64);
    uint32_t in = buffer(b, DT_F32, false), out = buffer(b, DT_BOOL, true);
    IRef i = axis(b, AXIS_X, MANY);
    VRef v = k_op(b.k, OP_CAST, b.t, k_load(b.k, in, i, NONE), NONE, NONE);
    for (int p = 0; p < powers; p++)
        v = op2(b, OP_POW, v, k_op(b.k, OP_ABS, b.t, op2(b, OP_ADD, v, number(b, p)), NONE, NONE));
    k_store(b.k, out, i, k_op(b.k, OP_GT, DT_BOOL, v, number(b, 1), NONE), NONE);
    return b.k;
}

/* Four lanes of f64, whatever is loaded and stored, and fewer where a lane is much code. */
Test(ptx_quality, long_bodies_have_few_lanes)
{
    static const struct {
        int powers;
        const char *load;
    } cases[] = {{1, "ld.global.nc.v4.f32"}, {4, "ld.global.nc.v4.f32"}, {8, "ld.global.nc.v2.f32"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t t = 0; t < 2; t++) {
            EmittedPtx p = emit_ptx(above_one(cases[i].powers), &ptx_targets[t], MATH_STRICT, "powers");
            cr_expect(strstr(p.ptx, cases[i].load) && !strstr(p.ptx, "+16]"), "%d powers:\n%s", cases[i].powers, p.ptx);
            Assembled a = assemble(p.ptx, &ptx_targets[t], "powers");
            cr_expect(a.spills == 0 && a.registers <= 128, "%d powers: %d registers, %d bytes spilled", cases[i].powers, a.registers,
                      a.spills);
            free_ptx(&p);
        }
}

/* Each lane holds what it folds, of all folds: of many there are fewer lanes. */
Test(ptx_quality, many_folds_have_few_lanes)
{
    enum { FOLDS = 60 };
    Build b = build(DT_I64);
    uint32_t in = buffer(b, DT_F16, false), out[FOLDS];
    for (int k = 0; k < FOLDS; k++)
        out[k] = buffer(b, b.t, true);
    k_arg(b.k, ARG_SCRATCH, DT_U8, true);
    b.k->split = true;
    VRef x = k_op(b.k, OP_CAST, b.t, k_load(b.k, in, axis(b, AXIS_R, 1000000), NONE), NONE, NONE);
    for (int k = 0; k < FOLDS; k++) {
        VRef v = op2(b, OP_MUL, op2(b, OP_ADD, x, number(b, k)), x);
        k_store(b.k, out[k], kidx_const(b.k, 0), k_reduce(b.k, OP_REDUCE_MIN, b.t, v), NONE);
    }
    for (size_t t = 0; t < 2; t++) {
        EmittedPtx p = emit_ptx(b.k, &ptx_targets[t], MATH_STRICT, "folds");
        Assembled a = assemble(p.ptx, &ptx_targets[t], "folds");
        cr_expect(a.spills == 0, "%d registers, %d bytes spilled", a.registers, a.spills);
        free_ptx(&p);
    }
}

/* ---- attention ---- */

/* Of so many queries and keys, sizes 4 and 5. */
static int64_t blocks_of(const EmittedPtx *p, int64_t queries, int64_t keys)
{
    void *args[7] = {[4] = (void *)(intptr_t)queries, [5] = (void *)(intptr_t)keys};
    return grid_launch(&p->launch, 0, args, 1000).blocks;
}

/* A kernel's text, value by value. */
typedef struct Lines {
    Str text;
    int n;
} Lines;

static int line(Lines *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int line(Lines *l, const char *format, ...)
{
    char value[160];
    va_list args;
    va_start(args, format);
    int bytes = vsnprintf(value, sizeof value, format, args);
    va_end(args);
    cr_assert(bytes > 0 && bytes < (int)sizeof value, "%s", value);
    str_printf(&l->text, "v%d = %s; ", l->n, value);
    return l->n++;
}

static int cast_line(Lines *l, int v, DType from, DType to) { return from == to ? v : line(l, "cast v%d : %s", v, dtype_name(to)); }

typedef enum Places { NO_PLACES, TURNED, SLOPES } Places;

/* Element m of query j, turned by the angles a7: x cos a - y sin a in the first half, x cos a + y sin a in the second, y of the other half. */
static int turned_query(Lines *l, DType dtype, int d)
{
    const int half = d / 2, m = line(l, "index m");
    int seen[2], turned[2];
    for (int h = 0; h < 2; h++) {
        seen[h] = line(l, "%s v%d %d", h ? "ge" : "lt", m, half);
        int x = cast_line(l, line(l, "load a0[i*s4*%d + j*%d + m] where v%d", d, d, seen[h]), dtype, DT_F32);
        int y = cast_line(l, line(l, "load a0[i*s4*%d + j*%d + m + %d] where v%d", d, d, h ? -half : half, seen[h]), dtype, DT_F32);
        int angle = line(l, "load a7[j*%d + m + %d] where v%d", half, h ? -half : 0, seen[h]);
        int cosine = line(l, "cos v%d", angle), sine = line(l, "sin v%d", angle);
        int kept = line(l, "mul v%d v%d", x, cosine), other = line(l, "mul v%d v%d", y, sine);
        turned[h] = cast_line(l, line(l, "%s v%d v%d", h ? "add" : "sub", kept, other), DT_F32, dtype);
    }
    return line(l, "where v%d v%d v%d", seen[0], turned[0], turned[1]);
}

/*
 * Attention, causal or not, of 32 heads of d elements; sizes 4 and 5 say how many queries and keys. TURNED: queries are turned by angles; SLOPES: of each
 * head a7 has what the distance from key to query is multiplied by, before it is added to the score.
 */
static EmittedPtx attention_of_places_ptx(DType dtype, int d, bool causal, bool tf32, Places places, const CudaTarget *target)
{
    const char *t = dtype_name(dtype), *wide = dtype == DT_F32 ? "" : " : f32";
    Lines l = {.n = 0};
    str_init(&l.text, &arena);
    str_printf(&l.text, "kernel index i32 (a0 %s, a1 %s, a2 %s, a3 %s out, s4, s5, a6 shared%s) ", t, t, t, t, places ? ", a7 f32" : "");
    str_printf(&l.text, "for i < 32, j < s4 ~12, k < %d, l < s5 ~12, m < %d; ", d, d);
    int query = places == TURNED ? turned_query(&l, dtype, d) : line(&l, "load a0[i*s4*%d + j*%d + m]", d, d);
    int key = line(&l, "load a1[i*s5*%d + l*%d + m]", d, d);
    int score = line(&l, "fold dot m (v%d, v%d)%s order parts", query, key, wide);
    score = line(&l, "mul v%d 0.125", score);
    if (places == SLOPES) {
        int slope = line(&l, "load a7[i]"), row = line(&l, "index j"), column = line(&l, "index l");
        int away = line(&l, "cast v%d : f32", line(&l, "sub v%d v%d", column, row));
        score = line(&l, "add v%d v%d", score, line(&l, "mul v%d v%d", slope, away));
    }
    if (causal) {
        int row = line(&l, "index j"), column = line(&l, "index l"), seen = line(&l, "ge v%d v%d", row, column);
        score = line(&l, "where v%d v%d -inf", seen, score);
    }
    int value = line(&l, "load a2[i*s5*%d + l*%d + k]", d, d);
    int mean = cast_line(&l, line(&l, "attend l (v%d, v%d) zero blocks 64", score, value), DT_F32, dtype);
    str_printf(&l.text, "store a3[i*s4*%d + j*%d + k] = v%d", d, d, mean);
    Kernel *k;
    cr_assert(kernel_parse(l.text.text, &arena, &k) == ST_OK, "%s: %s", fail_message(), l.text.text);
    k->split = true;
    return emit_ptx_with(k, target, MATH_FAST, tf32, "attention");
}

static EmittedPtx attention_ptx(DType dtype, int d, bool causal, bool tf32, const CudaTarget *target)
{
    return attention_of_places_ptx(dtype, d, causal, tf32, NO_PLACES, target);
}

/*
 * Causal attention. Its code stands there once, unrolled: for 16 queries and 64 keys of a warp 8 * d / 16 products of 16 x 8 x 16 make scores, and as many
 * means; a fragment of keys or values is loaded for two of them, queries are loaded once; of a thread's 32 scores each is one exponential, and there are
 * two of what came before, and four where parts of the keys meet. Keys and values come by 16 bytes, without registers. With 64 elements a
 * head a multiprocessor has two blocks. 100 queries of 32 heads with a long cache are as many blocks as fill the device once.
 */
Test(ptx_quality, attention_is_made_of_products)
{
    static const struct {
        int side, registers;
    } cases[] = {{128, 240}, {64, 128}, {32, 128}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t t = 0; t < sizeof ptx_targets / sizeof *ptx_targets; t++) {
            int d = cases[i].side, each = 8 * d / 16;
            EmittedPtx p = attention_ptx(DT_BF16, d, true, false, &ptx_targets[t]);
            Assembled a = assemble(p.ptx, &ptx_targets[t], "attention");
            int products = occurrences("mma.sync", p.ptx), fragments = occurrences("ldmatrix", p.ptx),
                copies = occurrences("cp.async.cg.shared.global", p.ptx);
            cr_expect(products == 2 * each && fragments == 2 * each / 2 + d / 16, "%d: %d products of %d fragments", d, products,
                      fragments);
            cr_expect(occurrences("ex2.approx", p.ptx) == 32 + 2 + 4, "%d: %d exponentials", d, occurrences("ex2.approx", p.ptx));
            cr_expect(copies == (128 + 3 * 64) * d / 8 / 256, "%d: %d copies", d, copies);
            cr_expect(a.spills == 0 && a.registers <= cases[i].registers, "%d: %d registers, %d bytes spilled", d, a.registers, a.spills);
            int64_t blocks = cuda_multiprocessors(&ptx_targets[t]) / 32 * 32;
            cr_expect(blocks_of(&p, 100, 8192) == blocks && blocks_of(&p, 100, 512) == 32 && blocks_of(&p, 1000, 8192) == 32 * 8,
                      "%d: %d blocks", d, (int)blocks_of(&p, 100, 8192));
            if (getenv("EMIT_PRINT"))
                fprintf(stderr, "attention %-4d %d registers\n", d, a.registers);
            free_ptx(&p);
        }
}

/*
 * Causal attention: of a block of keys that all queries of the block see, products of queries and keys become weights as they do without a mask, and a few
 * instructions tell so. Where each score asks there are 117 more. (By tensor cores scores are made by the same code.)
 */
Test(ptx_quality, blocks_below_the_diagonal_have_no_mask)
{
    int way[2];
    for (int causal = 0; causal < 2; causal++) {
        EmittedPtx p = attention_ptx(DT_F32, 64, causal, false, &ptx_targets[1]);
        way[causal] = shortest_way(p.ptx, "fma.rn.f32", "ex2.approx");
        free_ptx(&p);
    }
    if (getenv("EMIT_PRINT"))
        fprintf(stderr, "attention of f32: %d instructions, %d of causal\n", way[0], way[1]);
    cr_expect(way[1] <= way[0] + 24, "%d instructions, %d without a mask", way[1], way[0]);
}

/*
 * The same of f32, by multiply-adds. For a thread's 4 queries and the 64 keys of a block: a slice of 16 elements has 16 * 32 of them, one of 16 values, eight
 * at a time, 8 * 16 for each 32 columns; that stands there twice, for both halves of a block. Shared memory is read by 16 bytes: 4 + 8 accesses for each 4
 * elements of a slice, for each value one of weights and one for each 32 columns. Slices come by 16 bytes without registers, and
 * stand there three times.
 */
Test(ptx_quality, attention_of_f32_is_made_of_multiply_adds)
{
    static const struct {
        int side, registers;
    } cases[] = {{128, 255}, {64, 216}, {32, 176}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t t = 0; t < sizeof ptx_targets / sizeof *ptx_targets; t++) {
            int d = cases[i].side, units = d / 32;
            EmittedPtx p = attention_ptx(DT_F32, d, true, false, &ptx_targets[t]);
            Assembled a = assemble(p.ptx, &ptx_targets[t], "attention");
            int adds = occurrences("fma.rn.f32", p.ptx), reads = occurrences("ld.shared.v4", p.ptx),
                exps = occurrences("ex2.approx", p.ptx);
            int copies = occurrences("cp.async.cg.shared.global", p.ptx), of_values = d >= 64 ? d / 64 : 1;
            cr_expect(adds == 16 * 32 + 2 * 8 * 16 * units + exps, "%d: %d multiply-adds", d, adds);
            cr_expect(exps == 32 + 4 + 8, "%d: %d exponentials", d, exps);
            cr_expect(reads == 4 * (4 + 8) + 2 * 8 * (1 + units) + 1, "%d: %d accesses to shared memory", d, reads);
            cr_expect(copies == 3 * (2 + 1) + 3 * of_values, "%d: %d copies", d, copies);
            cr_expect(a.spills == 0 && a.registers <= cases[i].registers, "%d: %d registers, %d bytes spilled", d, a.registers, a.spills);
            if (getenv("EMIT_PRINT"))
                fprintf(stderr, "attention of f32 %-4d %d registers\n", d, a.registers);
            free_ptx(&p);
        }
}

/*
 * The same of f32 as tf32: a product takes eight elements, of keys or of queries, so there are twice as many as of bf16; of values one word each comes from
 * shared memory. What is rounded is what came there, each by one thread, and weights: of a block 64 * d / 256 keys and values a thread, of queries
 * twice as many, and where they come one by one as they come.
 */
Test(ptx_quality, attention_as_tf32_is_made_of_products)
{
    static const struct {
        int side, registers;
    } cases[] = {{128, 240}, {64, 128}, {32, 128}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t t = 0; t < sizeof ptx_targets / sizeof *ptx_targets; t++) {
            int d = cases[i].side, each = 8 * d / 8;
            EmittedPtx p = attention_ptx(DT_F32, d, true, true, &ptx_targets[t]);
            Assembled a = assemble(p.ptx, &ptx_targets[t], "attention");
            int products = occurrences("mma.sync", p.ptx), rounded = occurrences("cvt.rna.tf32", p.ptx),
                exps = occurrences("ex2.approx", p.ptx);
            cr_expect(products == 2 * each && exps == 32 + 2 + 4, "%d: %d products, %d exponentials", d, products, exps);
            cr_expect(rounded <= 32 + (64 + 64 + 128) * d / 256 + 4 * 8, "%d: %d words are rounded", d, rounded);
            cr_expect(occurrences("cp.async.cg.shared.global", p.ptx) == (128 + 3 * 64) * d / 4 / 256, "%d: copies", d);
            cr_expect(a.spills == 0 && a.registers <= cases[i].registers, "%d: %d registers, %d bytes spilled", d, a.registers, a.spills);
            if (getenv("EMIT_PRINT"))
                fprintf(stderr, "attention as tf32 %-4d %d registers, %d words rounded\n", d, a.registers, rounded);
            free_ptx(&p);
        }
}

/*
 * Rotary embedding of queries and ALiBi in the kernel of attention: each of a block's products stands there as it does without them, nothing is spilled, and
 * where two blocks fit a multiprocessor without them they do so still.
 */
Test(ptx_quality, places_are_done_by_the_kernel_of_attention)
{
    static const struct {
        DType dtype;
        bool tf32;
        int side, registers[2]; /* TURNED, SLOPES */
    } cases[] = {
        {DT_BF16, false, 128, {240, 240}}, {DT_BF16, false, 64, {128, 128}}, {DT_BF16, false, 32, {128, 128}},
        {DT_F32, false, 128, {255, 255}},  {DT_F32, false, 64, {255, 216}},  {DT_F32, false, 32, {255, 176}},
        {DT_F32, true, 128, {255, 255}},   {DT_F32, true, 64, {128, 128}},   {DT_F32, true, 32, {128, 128}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int slopes = 0; slopes < 2; slopes++) {
            const CudaTarget *target = &ptx_targets[(i + (size_t)slopes) % 2];
            const DType type = cases[i].dtype;
            const int d = cases[i].side;
            const char *product = type == DT_F32 && !cases[i].tf32 ? "fma.rn.f32" : "mma.sync", *what = slopes ? "slopes" : "turned";
            EmittedPtx plain = attention_ptx(type, d, true, cases[i].tf32, target);
            EmittedPtx p = attention_of_places_ptx(type, d, true, cases[i].tf32, slopes ? SLOPES : TURNED, target);
            Assembled a = assemble(p.ptx, target, what);
            cr_expect(occurrences(product, plain.ptx) > 0 && occurrences(product, p.ptx) >= occurrences(product, plain.ptx),
                      "%s %d: %d products", what, d, occurrences(product, p.ptx));
            cr_expect(a.spills == 0 && a.registers <= cases[i].registers[slopes], "%s %s %d: %d registers, %d bytes spilled", what,
                      dtype_name(type), d, a.registers, a.spills);
            if (getenv("EMIT_PRINT"))
                fprintf(stderr, "%s %-4s %-4d %d registers\n", what, cases[i].tf32 ? "tf32" : dtype_name(type), d, a.registers);
            free_ptx(&plain);
            free_ptx(&p);
        }
}

/* The kernels that a causal attention is with its gradient: what they fold of the scores, and with what. */
typedef struct ChainKernel {
    const char *name, *values; /* NULL: there are none */
    bool keys;                 /* rows are the attention's keys */
    bool two;                  /* there are two dots */
    bool most;
    int registers[3]; /* no more, with 32, 64 and 128 elements */
} ChainKernel;

/*
 * Of 32 heads of d elements, s4 queries and as many keys: a0 queries, a1 keys, a2 values, a3 what comes from behind, a5 the most of each
 * row, a6 what is taken away from the second dot.
 */
static EmittedPtx chain_ptx(const ChainKernel *c, DType dtype, int d, const CudaTarget *target)
{
    const char *type = dtype_name(dtype), *sum = dtype == DT_F32 ? "" : " : f32";
    const char *query = c->keys ? "l" : "j", *key = c->keys ? "j" : "l", *pair = c->keys ? "v1, v0" : "v0, v1",
               *other = c->keys ? "v4, v3" : "v3, v4";
    Str t;
    str_init(&t, &arena);
    str_printf(&t, "kernel index i32 (a0 %s, a1 %s, a2 %s, a3 %s, s4, a5 f32, a6 f32, a7 f32 out) for i < 32, j < s4 ~12, k < %d, ", type,
               type, type, type, c->values ? d : 1);
    str_printf(&t, "l < s4 ~12, m < %d; v0 = load a0[i*s4*%d + %s*%d + m]; v1 = load a1[i*s4*%d + %s*%d + m]; ", d, d, query, d, d, key, d);
    str_printf(&t, "v2 = fold dot m (%s)%s order parts; ", pair, sum);
    int v = 3;
    if (c->two) {
        str_printf(&t, "v3 = load a3[i*s4*%d + %s*%d + m]; v4 = load a2[i*s4*%d + %s*%d + m]; ", d, query, d, d, key, d);
        str_printf(&t, "v5 = fold dot m (%s)%s order parts; v6 = load a6[i*s4 + %s]; v7 = sub v5 v6; ", other, sum, query);
        v = 8;
    }
    str_printf(&t, "v%d = index %s; v%d = index %s; v%d = ge v%d v%d; v%d = where v%d v2 -inf; ", v, query, v + 1, key, v + 2, v, v + 1,
               v + 3, v + 2);
    v += 4;
    if (!c->most) {
        str_printf(&t, "v%d = load a5[i*s4 + %s]; v%d = sub v%d v%d; v%d = exp v%d; ", v, query, v + 1, v - 1, v, v + 2, v + 1);
        v += 3;
    }
    if (c->two) {
        str_printf(&t, "v%d = mul v7 v%d; v%d = where v10 v%d 0; ", v, v - 1, v + 1, v);
        v += 2;
    }
    if (c->values)
        str_printf(&t, "v%d = load %s[i*s4*%d + l*%d + k]; v%d = attend l (v%d, v%d) sum blocks 64; store a7[i*s4*%d + j*%d + k] = v%d", v,
                   c->values, d, d, v + 1, v - 1, v, d, d, v + 1);
    else
        str_printf(&t, "v%d = attend l (v%d, f32(1)) %s blocks 64; store a7[i*s4 + j] = v%d", v, v - 1, c->most ? "most" : "sum", v);
    Kernel *k;
    cr_assert(kernel_parse(t.text, &arena, &k) == ST_OK, "%s: %s", fail_message(), t.text);
    return emit_ptx(k, target, MATH_FAST, c->name);
}

static const ChainKernel chain_kernels[] = {
    {.name = "most", .most = true, .registers = {136, 136, 136}},
    {.name = "total", .registers = {136, 136, 136}},
    {.name = "mean", .values = "a2", .registers = {176, 176, 232}},
    {.name = "dq", .values = "a1", .two = true, .registers = {255, 255, 255}},
    {.name = "dk", .values = "a0", .two = true, .keys = true, .registers = {255, 255, 255}},
    {.name = "dv", .values = "a3", .keys = true, .registers = {176, 176, 232}},
};

/*
 * By multiply-adds, as attention of f32: 16 * 32 for each dot, 2 * 8 * 16 for each 32 columns, and three for an exponential, of which each
 * of a thread's 32 scores has one. Slices come by 16 bytes without registers and stand there three times, those of a second dot twice: of
 * two factors 2 + 1 accesses, of values one for each 64 columns.
 */
Test(ptx_quality, the_gradient_of_attention_is_made_of_multiply_adds)
{
    for (size_t i = 0; i < sizeof chain_kernels / sizeof *chain_kernels; i++)
        for (size_t t = 0; t < 6; t++) {
            const ChainKernel *c = &chain_kernels[i];
            const CudaTarget *target = &ptx_targets[t % 2];
            int size = (int)t / 2, d = 32 << size, units = c->values ? d / 32 : 0, of_values = !c->values ? 0 : d >= 64 ? d / 64 : 1;
            EmittedPtx p = chain_ptx(c, DT_F32, d, target);
            Assembled a = assemble(p.ptx, target, c->name);
            int adds = occurrences("fma.rn.f32", p.ptx), exps = occurrences("ex2.approx", p.ptx),
                copies = occurrences("cp.async.cg.shared.global", p.ptx);
            cr_expect(exps == (c->most ? 0 : 32), "%s %d: %d exponentials", c->name, d, exps);
            cr_expect(adds == (c->two ? 2 : 1) * 16 * 32 + 2 * 8 * 16 * units + 3 * exps, "%s %d: %d multiply-adds", c->name, d, adds);
            cr_expect(copies == (c->two ? 5 : 3) * 3 + 3 * of_values, "%s %d: %d copies", c->name, d, copies);
            cr_expect(a.spills == 0 && a.registers <= c->registers[size], "%s %d: %d registers, %d bytes spilled", c->name, d, a.registers,
                      a.spills);
            if (getenv("EMIT_PRINT"))
                fprintf(stderr, "%-6s %-4d %d registers\n", c->name, d, a.registers);
            free_ptx(&p);
        }
}

/*
 * Of bf16 by tensor cores. Of a warp's 16 rows and a slice of keys, 64, or 32 where two dots and long rows leave no registers for more: d / 16 times
 * keys / 8 products for each dot, as many for the sum, a fragment of keys or values for two of them, and of rows one for each 16 elements of a dot. Rows
 * come once, by 16 bytes without registers, slices in front of the loop and in it; those of dq and dk have values among their keys.
 */
Test(ptx_quality, the_gradient_of_half_precision_is_made_of_products)
{
    static const int most[][3] = {{104, 120, 128}, {128, 128, 128}, {128, 168, 208}, {136, 184, 184}, {136, 192, 192}, {152, 176, 208}};
    for (size_t i = 0; i < sizeof chain_kernels / sizeof *chain_kernels; i++)
        for (size_t t = 0; t < 6; t++) {
            const ChainKernel *c = &chain_kernels[i];
            const CudaTarget *target = &ptx_targets[t % 2];
            int size = (int)t / 2, d = 32 << size, dots = c->two ? 2 : 1, factors = c->two || c->values ? 2 : 1;
            int keys = c->two && d > 80 ? 32 : 64, each = d / 16 * keys / 8, sums = c->values ? each : 0;
            EmittedPtx p = chain_ptx(c, DT_BF16, d, target);
            Assembled a = assemble(p.ptx, target, c->name);
            int products = occurrences("mma.sync", p.ptx), fragments = occurrences("ldmatrix", p.ptx),
                exps = occurrences("ex2.approx", p.ptx), copies = occurrences("cp.async.cg.shared.global", p.ptx);
            cr_expect(products == dots * each + sums && fragments == (dots * each + sums) / 2 + dots * d / 16,
                      "%s %d: %d products of %d fragments", c->name, d, products, fragments);
            cr_expect(exps == (c->most ? 0 : keys / 2), "%s %d: %d exponentials", c->name, d, exps);
            cr_expect(copies == (dots * 128 + 2 * factors * keys) * d / 8 / 256, "%s %d: %d copies", c->name, d, copies);
            cr_expect(a.spills == 0 && a.registers <= most[i][size], "%s %d: %d registers, %d bytes spilled", c->name, d, a.registers,
                      a.spills);
            if (getenv("EMIT_PRINT"))
                fprintf(stderr, "%-6s of bf16 %-4d %d registers\n", c->name, d, a.registers);
            free_ptx(&p);
        }
}

/*
 * Four queries of each of 8 heads: keys and values come to registers by 16 bytes, each once. 16 keys of a warp are 2 * d / 32 accesses, in front of the loop
 * and in it; values are 4 * d / 64, queries as many as keys. A product takes 16 elements of eight keys, or eight elements of 16 values. It stands there
 * twice, for single elements too. Two blocks of four warps have 255 registers each.
 */
Test(ptx_quality, decoding_loads_keys_and_values_once)
{
    static const struct {
        int side, registers;
    } cases[] = {{128, 240}, {64, 200}, {32, 180}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t t = 0; t < sizeof ptx_targets / sizeof *ptx_targets; t++) {
            int d = cases[i].side;
            const char *text = arena_printf(
                &arena,
                "kernel index i32 (a0 bf16, a1 bf16, a2 bf16, a3 bf16 out, s4, a5 shared) for i < 8, j < 4, k < %d, l < s4 ~12, m < %d; "
                "v0 = load a0[i*%d + j*%d + m]; v1 = load a1[i*s4*%d + l*%d + m]; v2 = fold dot m (v0, v1) : f32 order parts; "
                "v3 = mul v2 0.125; v4 = load a2[i*s4*%d + l*%d + k]; "
                "v5 = attend l (v3, v4) zero parts; v6 = cast v5 : bf16; store a3[i*%d + j*%d + k] = v6",
                d, d, 4 * d, d, d, d, d, d, 4 * d, d);
            Kernel *k;
            cr_assert(kernel_parse(text, &arena, &k) == ST_OK, "%s", fail_message());
            EmittedPtx p = emit_ptx(k, &ptx_targets[t], MATH_FAST, "decode");
            Assembled a = assemble(p.ptx, &ptx_targets[t], "decode");
            int keys = 2 * ((d + 31) / 32), values = 4 * ((d + 63) / 64), wide = occurrences("ld.global.nc.v4.u32", p.ptx);
            cr_expect(wide == keys + 2 * keys + values, "%d: %d accesses of 16 bytes", d, wide);
            cr_expect(occurrences("mma.sync", p.ptx) == 2 * (2 * keys + 2 * values), "%d: %d products", d, occurrences("mma.sync", p.ptx));
            cr_expect(occurrences("ldmatrix", p.ptx) == 0 && occurrences("cp.async", p.ptx) == 0, "%d: factors in shared memory", d);
            cr_expect(a.spills == 0 && a.registers <= cases[i].registers, "%d: %d registers, %d bytes spilled", d, a.registers, a.spills);
            if (getenv("EMIT_PRINT"))
                fprintf(stderr, "decoding %-4d %d registers\n", d, a.registers);
            free_ptx(&p);
        }
}

/*
 * The same of f32 by multiply-adds: a thread's parts of two keys are 2 * d / 32 accesses, in front of the loop and in it, those of values as many, those of a
 * query half as many. The loop takes eight keys a warp: of 8 KB, with 128 elements a head, on an H200, memory takes 500 clocks, and the instructions of one warp
 * for each scheduler, which are those of four queries, 146.
 */
Test(ptx_quality, decoding_of_f32_loads_keys_and_values_once)
{
    static const struct {
        int side, registers, loop; /* 0: not counted */
    } cases[] = {{128, 240, 658}, {64, 180, 0}, {32, 136, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t t = 0; t < sizeof ptx_targets / sizeof *ptx_targets; t++) {
            int d = cases[i].side;
            const char *text = arena_printf(
                &arena,
                "kernel index i32 (a0 f32, a1 f32, a2 f32, a3 f32 out, s4, a5 shared) for i < 8, j < 4, k < %d, l < s4 ~12, m < %d; "
                "v0 = load a0[i*%d + j*%d + m]; v1 = load a1[i*s4*%d + l*%d + m]; v2 = fold dot m (v0, v1) order parts; "
                "v3 = mul v2 0.125; v4 = load a2[i*s4*%d + l*%d + k]; "
                "v5 = attend l (v3, v4) zero parts; store a3[i*%d + j*%d + k] = v5",
                d, d, 4 * d, d, d, d, d, d, 4 * d, d);
            Kernel *k;
            cr_assert(kernel_parse(text, &arena, &k) == ST_OK, "%s", fail_message());
            EmittedPtx p = emit_ptx(k, &ptx_targets[t], MATH_FAST, "decode");
            Assembled a = assemble(p.ptx, &ptx_targets[t], "decode");
            int spans = d / 32, wide = occurrences("ld.global.nc.v4.", p.ptx);
            cr_expect(wide == (1 + 2 + 2 + 2) * spans, "%d: %d accesses of 16 bytes", d, wide);
            cr_expect(occurrences("cp.async", p.ptx) == 0 && occurrences("ld.local", p.ptx) + occurrences("st.local", p.ptx) == 0,
                      "%d: memory", d);
            cr_expect(a.spills == 0 && a.registers <= cases[i].registers, "%d: %d registers, %d bytes spilled", d, a.registers, a.spills);
            const char *code = t == 1 && cases[i].loop ? disassemble(p.ptx) : NULL;
            Count loop = code ? main_loop(code, machine_line) : (Count){0};
            cr_expect(loop.all <= cases[i].loop, "%d: %d instructions in the loop", d, loop.all);
            cr_expect(!code || loop.wide_loads == 4 * spans, "%d: %d accesses in the loop", d, loop.wide_loads);
            if (getenv("EMIT_PRINT"))
                fprintf(stderr, "decoding f32 %-4d %d registers, %d instructions in the loop\n", d, a.registers, loop.all);
            free_ptx(&p);
        }
}

/* ---- products ---- */

/* Of sizes that are known, or that only the launch knows and whose sums may be cut into parts. */
static Kernel *product_of(int64_t m, int64_t n, int64_t k, bool general)
{
    const char *text =
        general ? "kernel index i32 (a0 bf16, a1 bf16, a2 bf16 out, s3, s4, s5, a6 shared) of 1 x s3 x s4 for i < s3 ~12, j < s4 ~12, "
                  "k < s5 ~12; v0 = load a0[i*s5 + k]; v1 = load a1[k*s4 + j]; v2 = fold dot k (v0, v1) : f32 order parts; "
                  "v3 = cast v2 : bf16; store a2[i*s4 + j] = v3"
                : arena_printf(&arena,
                               "kernel index i32 (a0 bf16, a1 bf16, a2 bf16 out) for i < %d, j < %d, k < %d; "
                               "v0 = load a0[i*%d + k]; v1 = load a1[k*%d + j]; v2 = fold dot k (v0, v1) : f32 order parts; "
                               "v3 = cast v2 : bf16; store a2[i*%d + j] = v3",
                               (int)m, (int)n, (int)k, (int)k, (int)n, (int)n);
    Kernel *out;
    cr_assert(kernel_parse(text, &arena, &out) == ST_OK, "%s", fail_message());
    out->split = general;
    return out;
}

/*
 * bf16. For 16 k of a warp m x n fragments are m * n products, of m loads of rows and n / 2 of columns (n = 1: one); a slice has 32 k. Its copies stand in
 * front of the loop for each slice that is on its way then, and in the loop. There is a version for single elements, too, for what is not aligned.
 */
Test(ptx_quality, products_of_tensor_cores)
{
    static const struct {
        int64_t m, n, k;
        int rows, columns, slices, registers; /* fragments of a warp */
        bool general;
    } cases[] = {{4096, 4096, 4096, 4, 8, 4, 232, false}, {4096, 4096, 4096, 4, 8, 4, 255, true}, {1024, 1152, 1024, 4, 4, 4, 128, false},
                 {512, 512, 1024, 2, 2, 4, 72, false},    {16, 32768, 4096, 1, 2, 4, 64, false},  {32768, 16, 4096, 1, 2, 4, 64, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t t = 0; t < sizeof ptx_targets / sizeof *ptx_targets; t++) {
            int m = cases[i].rows, n = cases[i].columns, versions = 2;
            EmittedPtx p =
                emit_ptx(product_of(cases[i].m, cases[i].n, cases[i].k, cases[i].general), &ptx_targets[t], MATH_FAST, "product");
            Assembled a = assemble(p.ptx, &ptx_targets[t], "product");
            int products = occurrences("mma.sync", p.ptx), fragments = occurrences("ldmatrix", p.ptx),
                copies = occurrences("cp.async.cg", p.ptx);
            if (getenv("EMIT_PRINT"))
                fprintf(stderr, "product %d x %d%s: %d products of %d fragments, %d copies; %d registers\n", (int)cases[i].m,
                        (int)cases[i].n, cases[i].general ? ", any" : "", products, fragments, copies, a.registers);
            cr_expect(products == 2 * versions * m * n && fragments == 2 * versions * (m + (n + 1) / 2), "%zu: %d products of %d fragments",
                      i, products, fragments);
            int rows = m == 1 && n == 2 && cases[i].m < cases[i].n ? 16 : m == 1 ? 128 : 32 * m, columns = m == 1 ? 144 - rows : 32 * n;
            cr_expect_eq(copies, cases[i].slices * ((rows * 4 + 255) / 256 + (columns * 4 + 255) / 256), "%zu: %d copies", i, copies);
            cr_expect(a.spills == 0 && a.registers <= cases[i].registers, "%zu: %d registers, %d bytes spilled", i, a.registers, a.spills);
            free_ptx(&p);
        }
}

/* What a tile loads early waits in registers: of many inputs the last ones are loaded where they are used. */
Test(ptx_quality, many_inputs_do_not_spill)
{
    enum { INPUTS = 62 };
    Build b = build(DT_F32);
    uint32_t in[INPUTS], out;
    for (int k = 0; k < INPUTS; k++)
        in[k] = buffer(b, DT_F32, false);
    out = buffer(b, DT_F32, true);
    IRef i = axis(b, AXIS_X, MANY);
    VRef loaded[INPUTS], all = VREF_NONE;
    for (int k = 0; k < INPUTS; k++)
        loaded[k] = k_load(b.k, in[k], i, NONE);
    for (int k = 0; k < INPUTS; k++)
        all = k ? op2(b, OP_ADD, op1(b, OP_SIN, all), loaded[k]) : loaded[k];
    k_store(b.k, out, i, all, NONE);
    for (size_t t = 0; t < sizeof ptx_targets / sizeof *ptx_targets; t++) {
        EmittedPtx p = emit_ptx(b.k, &ptx_targets[t], MATH_STRICT, "many inputs");
        Assembled a = assemble(p.ptx, &ptx_targets[t], "many inputs");
        cr_expect(a.spills == 0, "%d registers, %d bytes spilled", a.registers, a.spills);
        free_ptx(&p);
    }
}

/* What is done to the sums is done while other warps still hold theirs: a GELU beside 128 of them, for sizes that only the launch knows. */
Test(ptx_quality, epilogues_do_not_spill)
{
    static const char gelu[] =
        "(a0 bf16, a1 bf16, a2 bf16 out, s3, s4, s5, a6 shared, a7 bf16, a8 bf16) of 1 x s3 x s4 for i < s3 ~12, j < s4 ~12, k < s5 ~12; "
        "v0 = load a0[i*s5 + k]; v1 = load a1[k*s4 + j]; v2 = fold dot k (v0, v1) : f32 order parts; v3 = load a7[j]; v4 = cast v3 : f32; "
        "v5 = add v2 v4; v6 = mul v5 0.70710678; v7 = erf v6; v8 = add v7 1; v9 = mul v5 0.5; v10 = mul v9 v8; v11 = load a8[i*s4 + j]; "
        "v12 = cast v11 : f32; v13 = add v10 v12; v14 = cast v13 : bf16; store a2[i*s4 + j] = v14";
    for (size_t i = 0; i < 2 * sizeof ptx_targets / sizeof *ptx_targets; i++) {
        Kernel *k;
        cr_assert(kernel_parse(arena_printf(&arena, "kernel %s %s", i % 2 ? "index i32" : "", gelu), &arena, &k) == ST_OK, "%s",
                  fail_message());
        k->split = true;
        EmittedPtx p = emit_ptx(k, &ptx_targets[i / 2], MATH_FAST, "gelu");
        Assembled a = assemble(p.ptx, &ptx_targets[i / 2], "gelu");
        cr_expect(strstr(p.ptx, ".extern .shared"), "no tile of 128 x 256");
        cr_expect(a.spills == 0, "%zu: %d registers, %d bytes spilled", i, a.registers, a.spills);
        free_ptx(&p);
    }
}
