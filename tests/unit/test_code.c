/* The object loader: real objects run, damaged ones are refused or at least never crash the loader.
 * */
#include "tests/unit/kernel_ref.h"
#include "tests/unit/arena.h"

#include <elf.h>
#include <threads.h>

TestSuite(code, .init = setup, .fini = teardown);

/* y[i] = sin(x[i]): has constants, so relocations. As F64 it has a function for large arguments as well. */
static Emitted object_of(DType t, bool text)
{
    Kernel *k = kernel_new(&arena);
    k_arg(k, ARG_BUFFER, t, false);
    k_arg(k, ARG_BUFFER, t, true);
    uint32_t a = k_axis(k, AXIS_X, kidx_const(k, 64), 64);
    k->vec_axis = a;
    IRef i = kidx_axis(k, a);
    VRef x = k_load(k, 0, i, VREF_NONE);
    k_store(k, 1, i, k_op(k, OP_SIN, t, x, VREF_NONE, VREF_NONE), VREF_NONE);
    JitOptions o = setting_options(settings[text]); /* with text: 256 bits, for which what large arguments need is a function */
    Emitted out;
    cr_assert_eq(llvm_emit_host(k, "sin", &o, text, &out), ST_OK, "%s", fail_message());
    return out;
}

static Emitted object_of_sin(bool text) { return object_of(DT_F32, text); }

static void run_sin(const Code *code, int64_t tasks)
{
    float x[64], y[64];
    for (int i = 0; i < 64; i++)
        x[i] = (float)i * 0.25f;
    void *args[2] = {x, y};
    code_run(code)(args, 0, 0, tasks, NULL);
    for (int i = 0; i < 64; i++)
        cr_assert_float_eq(y[i], sinf(x[i]), 1e-6);
}

Test(code, loads_and_runs)
{
    Emitted o = object_of_sin(false);
    Code *code;
    cr_assert_eq(code_load(o.object, o.bytes, &code), ST_OK, "%s", fail_message());
    HostLaunch launch;
    host_launch(&o.launch, NULL, &launch);
    cr_assert(o.launch.fixed && launch.phases == 1);
    memset(o.object, 0, o.bytes); /* the object is not needed any more */
    free_emitted(&o);
    run_sin(code, launch.tasks[0]);
    cr_assert_gt(code_bytes(code), 0);
    code_free(code);
    code_free(NULL);
}

Test(code, equal_kernels_give_equal_bytes)
{
    Emitted a = object_of_sin(false), b = object_of_sin(false);
    cr_assert_eq(a.bytes, b.bytes);
    cr_assert_arr_eq((char *)a.object, (char *)b.object, a.bytes);
    free_emitted(&a);
    free_emitted(&b);
}

Test(code, text_is_given_when_asked_for)
{
    Kernel *k = kernel_new(&arena);
    k_arg(k, ARG_BUFFER, DT_I32, true);
    k_store(k, 0, kidx_const(k, 0), k_const(k, DT_I32, 7), VREF_NONE);
    JitOptions o = setting_options(settings[0]);
    Emitted out;
    cr_assert_eq(llvm_emit_host(k, "seven", &o, true, &out), ST_OK, "%s", fail_message());
    cr_assert_not_null(strstr(out.ir, "define hidden void @run("));
    cr_assert_not_null(strstr(out.assembly, "run:"));
    free_emitted(&out);
}

/* The assembly has each function of the IR: one that rarely runs, such as sin's of large arguments, has a section of its own. */
Test(code, text_has_every_function)
{
    Emitted out = object_of(DT_F64, true);
    int functions = 0;
    for (const char *at = out.ir; (at = strstr(at, "\ndefine ")); at++, functions++) {
        char name[64];
        cr_assert_eq(sscanf(strchr(at, '@'), "@%62[a-z0-9_]", name), 1);
        strcat(name, ":");
        cr_expect_not_null(strstr(out.assembly, name), "no %s in\n%s", name, out.assembly);
    }
    cr_expect_geq(functions, 2, "sin has no function of its own for large arguments:\n%s", out.ir);
    free_emitted(&out);
}

Test(code, truncated_at_every_length)
{
    Emitted o = object_of_sin(false);
    for (size_t n = 0; n < o.bytes; n++) {
        char *cut = os_alloc(n ? n : 1); /* on the heap, so that sanitizers see a read past it */
        memcpy(cut, o.object, n);
        Code *code = NULL;
        cr_assert_eq(code_load(cut, n, &code), ST_FORMAT, "length %zu", n);
        cr_assert_null(code);
        os_free(cut);
    }
    free_emitted(&o);
}

/* Whatever the bytes say, the loader stays inside the object and its mapping. What loads is not
 * run. */
Test(code, random_damage)
{
    Emitted o = object_of_sin(false);
    char *copy = os_alloc(o.bytes);
    int refused = 0;
    for (int round = 0; round < 20000; round++) {
        memcpy(copy, o.object, o.bytes);
        int flips = 1 + (int)(next_random() % 4);
        for (int f = 0; f < flips; f++)
            copy[next_random() % o.bytes] ^= (char)(1 << next_random() % 8);
        Code *code;
        if (code_load(copy, o.bytes, &code) != ST_OK) {
            refused++;
            cr_assert_null(code);
        }
        code_free(code);
    }
    cr_assert_gt(refused, 1000);
    os_free(copy);
    free_emitted(&o);
}

/* Every byte of the header, the section table and the symbol table, replaced by values that are
 * likely to hurt. */
Test(code, damaged_tables)
{
    static const unsigned char values[] = {0, 1, 0x7f, 0x80, 0xff};
    Emitted o = object_of_sin(false);
    char *copy = os_alloc(o.bytes);
    Elf64_Ehdr h;
    memcpy(&h, o.object, sizeof h);
    for (size_t at = 0; at < o.bytes; at++) {
        if (at >= sizeof h && at < h.e_shoff && at % 3)
            continue;
        for (size_t v = 0; v < sizeof values; v++) {
            memcpy(copy, o.object, o.bytes);
            copy[at] = (char)values[v];
            Code *code;
            (void)code_load(copy, o.bytes, &code);
            code_free(code);
        }
    }
    os_free(copy);
    free_emitted(&o);
}

Test(code, undefined_symbols_are_named)
{
    Emitted o = object_of_sin(false);
    Elf64_Ehdr h;
    memcpy(&h, o.object, sizeof h);
    bool found = false;
    for (unsigned i = 0; i < h.e_shnum; i++) {
        Elf64_Shdr s;
        memcpy(&s, (char *)o.object + h.e_shoff + i * sizeof s, sizeof s);
        if (s.sh_type != SHT_SYMTAB)
            continue;
        for (size_t at = sizeof(Elf64_Sym); at < s.sh_size; at += sizeof(Elf64_Sym)) {
            Elf64_Sym symbol;
            memcpy(&symbol, (char *)o.object + s.sh_offset + at, sizeof symbol);
            if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC)
                continue;
            symbol.st_shndx = SHN_UNDEF;
            memcpy((char *)o.object + s.sh_offset + at, &symbol, sizeof symbol);
            found = true;
        }
    }
    cr_assert(found);
    Code *code;
    cr_assert_eq(code_load(o.object, o.bytes, &code), ST_FORMAT);
    cr_assert(strstr(fail_message(), "run"), "%s", fail_message());
    free_emitted(&o);
}

Test(code, no_memory)
{
    Emitted o = object_of_sin(false);
    Code *code;
    for (int n = 1; n <= 2; n++) {
        os_fail_alloc(n, false);
        cr_assert_eq(code_load(o.object, o.bytes, &code), ST_OUT_OF_MEMORY);
        cr_assert_null(code);
    }
    os_fail_alloc(0, false);
    cr_assert_eq(code_load(o.object, o.bytes, &code), ST_OK);
    code_free(code);
    free_emitted(&o);
}

/* The emitter itself: every allocation of its own fails once; LLVM's are not ours. */
Test(code, emitter_without_memory)
{
    Kernel *k = kernel_new(&arena);
    k_arg(k, ARG_BUFFER, DT_F32, true);
    uint32_t a = k_axis(k, AXIS_X, kidx_const(k, 40), 40);
    k->vec_axis = a;
    VRef i = k_op(k, OP_CAST, DT_F32, k_index(k, kidx_axis(k, a)), VREF_NONE, VREF_NONE);
    k_store(k, 0, kidx_axis(k, a), k_op(k, OP_EXP, DT_F32, i, VREF_NONE, VREF_NONE), VREF_NONE);
    JitOptions o = setting_options(settings[0]);
    Status status = ST_OUT_OF_MEMORY;
    options_init(); /* allocates, and reads on without memory */
    int n = 1;
    options_init(); /* whose own allocations may fail without harm */
    for (; n < 200 && status == ST_OUT_OF_MEMORY; n++) {
        Emitted out;
        os_fail_alloc(n, false);
        status = llvm_emit_host(k, "starved", &o, false, &out);
        os_fail_alloc(0, false);
        cr_assert(status == ST_OK || (status == ST_OUT_OF_MEMORY && !out.object), "%s", fail_message());
        free_emitted(&out);
    }
    cr_assert_eq(status, ST_OK);
    cr_assert_gt(n, 2);
}

enum { COMPILERS = 4, ROUNDS = 6 };

static int compile_again(void *arg)
{
    const Emitted *want = arg;
    for (int i = 0; i < ROUNDS; i++) {
        Arena own;
        jmp_buf no_memory;
        arena_init(&own, &no_memory);
        if (setjmp(no_memory))
            return 1;
        Kernel *k = kernel_new(&own);
        k_arg(k, ARG_BUFFER, DT_F32, false);
        k_arg(k, ARG_BUFFER, DT_F32, true);
        uint32_t a = k_axis(k, AXIS_X, kidx_const(k, 64), 64);
        k->vec_axis = a;
        VRef x = k_load(k, 0, kidx_axis(k, a), VREF_NONE);
        k_store(k, 1, kidx_axis(k, a), k_op(k, OP_SIN, DT_F32, x, VREF_NONE, VREF_NONE), VREF_NONE);
        JitOptions o = setting_options(settings[0]);
        Emitted out;
        Code *code = NULL;
        int bad = llvm_emit_host(k, "sin", &o, false, &out) != ST_OK || out.bytes != want->bytes ||
                  memcmp(out.object, want->object, out.bytes) != 0 || code_load(out.object, out.bytes, &code) != ST_OK;
        code_free(code);
        free_emitted(&out);
        arena_free(&own);
        if (bad)
            return 1;
    }
    return 0;
}

/* Several threads compile at once: no shared state, the same bytes. */
Test(code, compiling_in_parallel)
{
    Emitted want = object_of_sin(false);
    thrd_t threads[COMPILERS];
    for (int i = 0; i < COMPILERS; i++)
        cr_assert_eq(thrd_create(&threads[i], compile_again, &want), thrd_success);
    for (int i = 0; i < COMPILERS; i++) {
        int bad = 1;
        thrd_join(threads[i], &bad);
        cr_assert_eq(bad, 0);
    }
    free_emitted(&want);
}
