/*
 * For the tests of the CUDA target: what kernel_ref.h's check_kernel does for the host, done for PTX.
 *
 * A kernel is emitted for each target below; ptxas, where there is one, must assemble it without warnings (from ctest: later, with those of
 * all tests); and the
 * software driver (tests/cuda_driver), where it was built, runs it on copies of the buffers, aligned and not. Results are
 * compared bit for bit with the reference executor, which reduces in the order of CUDA devices then.
 *
 * A test file for the host becomes one for PTX by including it after defining CHECK_PTX.
 */
#ifndef TESTS_UNIT_PTX_CHECK_H
#define TESTS_UNIT_PTX_CHECK_H

#include "jit/launch_plan.h"
#include "jit/llvm/emit.h"
#include "tests/unit/ptx_driver.h"

#include <ctype.h>
#include <sys/wait.h>
#include <unistd.h>

/* Assembled for the first target always, for the second one kernel in PTX_SECOND: ptxas takes most of the time. */
enum { PTX_SECOND = 8, PTX_BIG = 1 << 17 }; /* bytes of buffers beyond which only aligned ones are run */
static uint32_t ptx_checked;

static const CudaTarget ptx_targets[] = {{.sm = 80, .ptx = 74}, {.sm = 90, .ptx = 80, .arch = true}};

/* ---- ptxas ---- */

/* The assembler: $PTXAS, the one that CMake found, or none. */
static const char *ptxas_path(void)
{
    const char *named = getenv("PTXAS");
#ifdef KILN_PTXAS
    named = named ? named : KILN_PTXAS;
#endif
    return named && *named ? named : NULL;
}

typedef struct Assembled {
    int registers, spills, stack; /* the most of any entry; bytes */
} Assembled;

static inline int number_before(const char *text, const char *what)
{
    int most = 0;
    for (const char *at = text; (at = strstr(at, what)); at++) {
        const char *digit = at;
        while (digit > text && isdigit((unsigned char)digit[-1]))
            digit--;
        most = atoi(digit) > most ? atoi(digit) : most;
    }
    return most;
}

/* Fails the test with ptxas's words where it refuses the text or warns. All zeros where there is no ptxas. */
static inline Assembled assemble(const char *ptx, const CudaTarget *t, const char *what)
{
    const char *program = ptxas_path();
    if (!program)
        return (Assembled){0};
    char file[] = "/tmp/kiln_ptx_XXXXXX", command[512], said[16384];
    int fd = mkstemp(file);
    size_t bytes = strlen(ptx);
    cr_assert(fd >= 0 && write(fd, ptx, bytes) == (ssize_t)bytes);
    close(fd);
    snprintf(command, sizeof command, "%s -v -arch sm_%d%s -o /dev/null %s 2>&1", program, t->sm, t->arch ? "a" : "", file);
    FILE *pipe = popen(command, "r");
    cr_assert(pipe);
    size_t n = fread(said, 1, sizeof said - 1, pipe);
    said[n] = 0;
    int status = pclose(pipe);
    unlink(file);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: ptxas: %s\n%s", what, said, ptx);
    cr_assert(!strstr(said, "warning"), "%s: ptxas: %s", what, said);
    if (getenv("EMIT_PRINT"))
        fprintf(stderr, "%s: %s", what, said);
    return (Assembled){number_before(said, " registers"), number_before(said, " bytes spill stores"),
                       number_before(said, " bytes stack frame")};
}

/* Where texts are left for ptxas, to be assembled all together (cuda_driver/assemble.sh); NULL: each test assembles its own. */
static inline const char *ptx_folder(void)
{
    const char *folder = getenv("KILN_TEST_CUDA_PTX");
    return folder && *folder ? folder : NULL;
}

static inline void leave_for_ptxas(const char *ptx, const char *folder)
{
    char path[512], unfinished[560];
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (const char *at = ptx; *at; at++)
        hash = (hash ^ (uint8_t)*at) * UINT64_C(0x100000001b3);
    snprintf(path, sizeof path, "%s/%016llx.ptx", folder, (unsigned long long)hash);
    snprintf(unfinished, sizeof unfinished, "%s.%ld", path, (long)getpid());
    FILE *f = access(path, F_OK) ? fopen(unfinished, "w") : NULL;
    if (f) {
        bool whole = fputs(ptx, f) >= 0;
        cr_assert(fclose(f) == 0 && whole && rename(unfinished, path) == 0, "%s", path);
    }
}

/* ---- the text ---- */

/* Strict mode: only what rounds as written. */
static inline void check_strict_text(const char *ptx, bool fma_asked, const char *what)
{
    static const char *const never[] = {".ftz", ".approx", "div.full", "mad.f32", "mad.f64", "mad.rn.f"};
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        cr_assert(!strstr(ptx, never[i]), "%s: %s in strict code\n%s", what, never[i], ptx);
    cr_assert(fma_asked || !strstr(ptx, "fma."), "%s: a fused multiply-add that nobody asked for\n%s", what, ptx);
    cr_assert(!strstr(ptx, "mul.f"), "%s: a multiplication that ptxas may contract\n%s", what, ptx);
    cr_assert(!strstr(ptx, "add.f"), "%s: an addition that ptxas may contract\n%s", what, ptx);
}

static inline EmittedPtx emit_ptx_with(const Kernel *k, const CudaTarget *t, MathMode math, bool tf32, const char *what)
{
    EmittedPtx out;
    JitOptions o = setting_options((Setting){0, 1, math, CPU_HOST});
    o.value[OPT_TF32] = tf32;
    bool text = getenv("EMIT_TEXT") != NULL;
    set_orders(k, ORDER_CUDA, math);
    Status status = llvm_emit_ptx(k, "test", &o, t, text, &out);
    cr_assert_eq(status, ST_OK, "%s: %s", what, fail_message());
    if (text)
        fprintf(stderr, "%s\n%s\n", out.ir, out.ptx);
    LaunchPlan again;
    cr_assert_eq(launch_plan_open(out.launch.packed, out.launch.bytes, &again), ST_OK, "%s: launch plan", what);
    return out;
}

static inline EmittedPtx emit_ptx(const Kernel *k, const CudaTarget *t, MathMode math, const char *what)
{
    return emit_ptx_with(k, t, math, false, what);
}

static inline void free_ptx(EmittedPtx *p)
{
    launch_plan_free(&p->launch);
    os_free(p->ptx);
    os_free(p->ir);
}

/* ---- running ---- */

/* `gap`: elements between the start of each buffer's memory and its first element. Asynchronous copies land early or late. */
static inline void run_ptx(const EmittedPtx *p, const Kernel *k, const CheckArg *in, void *const *want, int gap, const char *what)
{
    uint64_t memory[REF_ARGS] = {0};
    void *args[REF_ARGS];
    for (uint32_t a = 0; a < k->args.n; a++) {
        args[a] = (void *)(intptr_t)in[a].value;
        if (!in[a].data)
            continue;
        size_t before = (size_t)gap * dtype_bytes(k->args.at[a].kind == ARG_FAULT ? DT_I64 : (DType)k->args.at[a].dtype);
        memory[a] = driver_alloc(in[a].bytes + before);
        driver_write(memory[a] + before, in[a].data, in[a].bytes);
        args[a] = (void *)(uintptr_t)(memory[a] + before);
    }
    int64_t scratch = grid_scratch(&p->launch, args, DRIVER_SMS);
    uint64_t room = 0;
    if (scratch) {
        static const char zeros[GRID_COUNTER_BYTES];
        room = driver_alloc((size_t)scratch);
        driver_write(room, zeros, GRID_COUNTER_BYTES);
        for (uint32_t a = 0; a < k->args.n; a++)
            if (k->args.at[a].kind == ARG_SCRATCH)
                args[a] = (void *)(uintptr_t)room;
    }
    cr_assert_eq(driver.configure((ptx_checked + (uint32_t)gap) % 2 ? "async=early" : "async=late"), 0);
    DriverModule module = driver_load(p->ptx, what);
    for (int turn = 0; turn < (room ? 2 : 1); turn++) { /* the second finds the counters as the first left them */
        for (uint32_t a = 0; a < k->args.n; a++)
            if (in[a].data && (turn == 0 || k->args.at[a].written || k->args.at[a].kind == ARG_FAULT))
                driver_write((uint64_t)(uintptr_t)args[a], in[a].data, in[a].bytes);
        for (uint32_t i = 0; i < p->launch.n_phases; i++)
            driver_launch(module, &p->launch, i, args, k->args.n, what);
        for (uint32_t a = 0; a < k->args.n; a++) {
            if (!in[a].data || !in[a].bytes)
                continue;
            DType t = k->args.at[a].kind == ARG_FAULT ? DT_I64 : (DType)k->args.at[a].dtype;
            size_t each = dtype_bytes(t);
            char *got = os_alloc(in[a].bytes);
            driver_read(got, (uint64_t)(uintptr_t)args[a], in[a].bytes);
            for (size_t i = 0; i < in[a].bytes / each; i++) {
                const char *x = (const char *)want[a] + i * each, *y = got + i * each;
                cr_assert(same_bits(t, x, y), "%s (PTX, gap %d, turn %d): arg %u[%zu]: want %g (%llx), got %g (%llx)", what, gap, turn, a,
                          i, scalar_to_double(t, scalar_load(t, x)), (unsigned long long)scalar_load(t, x),
                          scalar_to_double(t, scalar_load(t, y)), (unsigned long long)scalar_load(t, y));
            }
            os_free(got);
        }
        if (room) {
            char counters[GRID_COUNTER_BYTES];
            driver_read(counters, room, sizeof counters);
            for (size_t i = 0; i < sizeof counters; i++)
                cr_assert_eq(counters[i], 0, "%s: a counter was not left zero", what);
        }
    }
    driver_unload(module);
    driver_free(room);
    for (uint32_t a = 0; a < k->args.n; a++)
        driver_free(memory[a]);
}

static inline bool asks_fma(const Kernel *k)
{
    for (uint32_t i = 0; i < k->inst.n; i++) {
        const KInst *n = &k->inst.at[i];
        if (inst_is_dot(n))
            return true;
        if (n->kind != KI_OP)
            continue;
        const VRef refs[3] = {n->a, n->b, n->c};
        DType types[3] = {0};
        for (int a = 0; a < op_info[n->op].arity; a++)
            types[a] = (DType)k->inst.at[refs[a]].dtype;
        const Tape *t = tape_get((Op)n->op, types, (DType)n->dtype, MATH_STRICT);
        for (uint32_t j = 0; j < t->n; j++)
            if (t->inst[j].op == SOP_FMA)
                return true;
    }
    return false;
}

/* Indices of 64 bits and of 32, in turn: all sizes here fit both. A slice of the kernels of each test (support/slice.h). */
static inline void check_kernel_math(const Kernel *k, const CheckArg *in, MathMode math, const char *what)
{
    static uint64_t number;
    if (!slice_takes(number++))
        return;
    Kernel narrow = *k;
    narrow.index_bits = 32;
    if (ptx_checked % 2 == 0)
        k = &narrow;
    set_orders(k, ORDER_CUDA, math);
    cr_assert_eq(kernel_verify(k), ST_OK, "%s: %s", what, fail_message());
    void *want[REF_ARGS], *copy[REF_ARGS] = {0};
    size_t bytes = 0;
    for (uint32_t a = 0; a < k->args.n; a++) {
        want[a] = (void *)(intptr_t)in[a].value;
        if (!in[a].data)
            continue;
        bytes += in[a].bytes;
        want[a] = copy[a] = os_alloc(in[a].bytes + 8);
        memcpy(want[a], in[a].data, in[a].bytes);
    }
    ref_run(k, want, math);
    for (size_t t = 0; t < sizeof ptx_targets / sizeof *ptx_targets; t++) {
        EmittedPtx p = emit_ptx(k, &ptx_targets[t], math, what);
        if (math == MATH_STRICT)
            check_strict_text(p.ptx, asks_fma(k), what);
        if (ptx_folder())
            leave_for_ptxas(p.ptx, ptx_folder());
        else if (t == 0 || ptx_checked % PTX_SECOND == 0)
            assemble(p.ptx, &ptx_targets[t], what);
        if (driver_there() && t == 0) {
            run_ptx(&p, k, in, want, 0, what);
            if (bytes <= PTX_BIG)
                run_ptx(&p, k, in, want, 1, what);
        }
        free_ptx(&p);
    }
    ptx_checked++;
    for (uint32_t a = 0; a < k->args.n; a++)
        os_free(copy[a]);
}

static inline void check_kernel_ptx(const Kernel *k, const CheckArg *in, const char *what) { check_kernel_math(k, in, MATH_STRICT, what); }

#endif
