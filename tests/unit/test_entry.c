/* Entries of the cache on disk: what is written is read back, section by section, and nothing else is accepted. */
#include "tests/unit/entries.h"
#include "tests/unit/arena.h"

TestSuite(entry, .init = setup, .fini = teardown);

static void let_go(Sample *s)
{
    program_release(s->program);
    os_free(s->bytes);
}

static const char *printed(const Program *p)
{
    Str out;
    str_init(&out, &arena);
    program_print(p, &out);
    return out.text;
}

Test(entry, every_section_comes_back)
{
    Sample s = sample_of(sample_graph, &arena);
    EntryView v;
    cr_assert_eq(entry_parse(s.bytes, s.n, &arena, &v), ST_OK, "%s", fail_message());
    cr_assert_eq(v.key.maker_bytes, s.parts.key.maker_bytes);
    cr_assert_eq(memcmp(v.key.maker, s.parts.key.maker, v.key.maker_bytes), 0);
    cr_assert_eq(v.key.graph_bytes, s.parts.key.graph_bytes);
    cr_assert_eq(memcmp(v.key.graph, s.parts.key.graph, v.key.graph_bytes), 0);
    cr_assert_str_eq(entry_meta(&v, "compile_us", &arena), "12500");
    cr_assert_null(entry_meta(&v, "nothing", &arena));
    cr_assert_eq(v.facts.n_ints, s.facts.n_ints);
    cr_assert_eq(v.facts.n_scalars, 1);
    cr_assert_eq(memcmp(v.facts.ints, s.facts.ints, sizeof *v.facts.ints * v.facts.n_ints), 0);
    cr_assert_eq(memcmp(v.facts.scalars, s.facts.scalars, sizeof *v.facts.scalars), 0);
    cr_assert_not(v.policy.general);
    cr_assert_eq(memcmp(v.policy.int_varies, s.policy.int_varies, v.facts.n_ints), 0);
    cr_assert(v.policy.scalar_varies[0]);
    cr_assert_eq(v.policy.n_seen, 1);
    cr_assert_eq(memcmp(v.policy.seen[0].ints, s.facts.ints, sizeof *s.facts.ints * s.facts.n_ints), 0);
    cr_assert_gt(v.plan->guards.n, 0);
    cr_assert_str_eq(printed(v.plan), printed(s.program));
    cr_assert_eq(v.n_kernels, s.program->n_kernels);
    cr_assert_geq(v.n_kernels, 1);
    for (uint32_t i = 0; i < v.n_kernels; i++) {
        const CompiledKernel *k = s.program->kernels[i].compiled;
        cr_assert_str_eq(v.kernels[i].name, s.program->kernels[i].name);
        cr_assert_eq(v.kernels[i].cost, s.program->kernels[i].cost);
        cr_assert_eq(v.kernels[i].code_bytes, k->object_bytes);
        cr_assert_eq(memcmp(v.kernels[i].code, k->object, k->object_bytes), 0);
    }
    EntryTexts texts;
    cr_assert_eq(entry_texts(&v, &arena, &texts), ST_OK, "%s", fail_message());
    cr_assert_str_eq(texts.recorded, s.texts.recorded);
    cr_assert_str_eq(texts.optimised, s.texts.optimised);
    cr_assert_not_null(strstr(texts.recorded, "gather"));
    cr_assert_not_null(strstr(texts.kernel_ir[0], "define"));
    cr_assert_not_null(strstr(texts.kernel_assembly[0], "ret"));
    let_go(&s);
}

Test(entry, a_loaded_program_is_the_same_program)
{
    Sample s = sample_of(sample_graph, &arena);
    const char *before = printed(s.program);
    size_t kernels = s.program->n_kernels;
    program_release(s.program); /* so that its kernels leave the table and come from the entry */
    EntryView v;
    Program *p;
    cr_assert_eq(entry_parse(s.bytes, s.n, &arena, &v), ST_OK);
    cr_assert_eq(entry_load(&v, &p), ST_OK, "%s", fail_message());
    cr_assert_str_eq(printed(p), before);
    cr_assert_eq(p->n_kernels, kernels);
    cr_assert_float_eq(p->compile_seconds, 0.0125, 1e-9);
    EntryParts parts = s.parts;
    parts.program = p;
    void *again;
    size_t n;
    cr_assert_eq(entry_write(&parts, &again, &n), ST_OK);
    cr_assert_eq(n, s.n);
    cr_assert_eq(memcmp(again, s.bytes, n), 0, "an entry of a loaded program is another");
    memset(s.bytes, 0xee, s.n); /* nothing of a loaded program lies in the bytes */
    cr_assert_str_eq(printed(p), before);
    os_free(again);
    os_free(s.bytes);
    program_release(p);
}

/* A launch plan reads the arguments of its kernel, so a step must have as many. */
Test(entry, a_launch_plan_for_other_arguments_is_refused)
{
    Sample s = sample_of(sample_graph, &arena);
    for (int off = -1; off <= 1; off++) {
        EntryView v;
        Program *p = NULL;
        uint32_t step = 0;
        cr_assert_eq(entry_parse(s.bytes, s.n, &arena, &v), ST_OK, "%s", fail_message());
        while (v.plan->steps[step].kind != STEP_KERNEL)
            step++;
        v.plan->steps[step].n_args += (uint32_t)off;
        cr_assert_eq(entry_load(&v, &p), off ? ST_FORMAT : ST_OK);
        if (off)
            cr_expect(strstr(fail_message(), "launch plan"), "%s", fail_message());
        else
            program_release(p);
    }
    let_go(&s);
}

static const char product_graph[] = "graph product(%0: f32[2,7], %1: f32[7,40]) {\n"
                                    "  %2 = matmul %0 %1\n"
                                    "  return %2\n"
                                    "}\n";

/* KILN_CHECK=cache: code that is compiled once more, though it is known, is compared with what an entry has. */
Test(entry, a_kernel_is_compared_with_one_compiled_afresh)
{
    Sample s = sample_of(product_graph, &arena);
    const CompiledKernel *own = s.program->kernels[0].compiled;
    Program *again = NULL;
    Graph *g = NULL;
    GuardPolicy policy = s.policy;
    JitOptions options = {.value = {0}};
    options_snapshot(&options);
    cr_assert_eq(graph_parse(product_graph, &arena, &g), ST_OK, "%s", fail_message());
    CompileRequest request = {.graph = g, .policy = &policy, .options = &options, .afresh = true};
    cr_assert_eq(jit_compile(&request, &again, NULL), ST_OK, "%s", fail_message());
    const CompiledKernel *fresh = again->kernels[0].compiled;
    cr_assert(fresh != own && fresh->key_bytes == own->key_bytes && memcmp(fresh->key, own->key, own->key_bytes) == 0);

    EntryView v;
    const char *part = "";
    cr_assert_eq(entry_parse(s.bytes, s.n, &arena, &v), ST_OK, "%s", fail_message());
    cr_assert(entry_same_program(&v, again, &part), "%s", part);
    ((unsigned char *)v.kernels[0].code)[v.kernels[0].code_bytes / 2] ^= 1; /* in bytes */
    cr_assert_not(entry_same_program(&v, again, &part), "code that nothing gives");
    cr_assert_str_eq(part, "kernels");

    ((unsigned char *)v.kernels[0].code)[v.kernels[0].code_bytes / 2] ^= 1;
    again->guards.at[0].v++;
    cr_assert_not(entry_same_program(&v, again, &part));
    cr_assert_str_eq(part, "guards");
    again->guards.at[0].v--;
    again->steps[0].descending = true;
    cr_assert_not(entry_same_program(&v, again, &part));
    cr_assert_str_eq(part, "plan");
    program_release(again);
    let_go(&s);
}

Test(entry, equal_compilations_give_equal_bytes)
{
    Sample a = sample_of(sample_graph, &arena);
    program_release(a.program);
    Sample b = sample_of(sample_graph, &arena);
    cr_assert_eq(a.n, b.n);
    cr_assert_eq(memcmp(a.bytes, b.bytes, a.n), 0);
    os_free(a.bytes);
    let_go(&b);
}

/* Every length short of the whole, and a few beyond. */
Test(entry, truncated_at_any_length_is_refused)
{
    Sample s = sample_of(sample_graph, &arena);
    for (size_t n = 0; n < s.n; n += n < 600 ? 1 : 61) {
        Arena own;
        jmp_buf none;
        arena_init(&own, &none);
        void *copy = os_alloc(n + 1); /* exact, so that a sanitizer sees a read past the end */
        cr_assert_not_null(copy);
        memcpy(copy, s.bytes, n);
        EntryView v;
        cr_assert_eq(entry_parse(copy, n, &own, &v), ST_FORMAT, "%zu of %zu bytes", n, s.n);
        os_free(copy);
        arena_free(&own);
    }
    uint8_t *longer = os_calloc(1, s.n + 8);
    memcpy(longer, s.bytes, s.n);
    EntryView v;
    cr_assert_eq(entry_parse(longer, s.n + 8, &arena, &v), ST_FORMAT);
    os_free(longer);
    let_go(&s);
}

Test(entry, messages_say_what_is_wrong)
{
    Sample s = sample_of(sample_graph, &arena);
    EntryView v;
    uint8_t *bytes = s.bytes;
    cr_assert_eq(entry_parse(bytes, s.n / 2, &arena, &v), ST_FORMAT);
    cr_assert_not_null(strstr(fail_message(), "truncated"), "%s", fail_message());
    bytes[s.n - 1] ^= 1;
    cr_assert_eq(entry_parse(bytes, s.n, &arena, &v), ST_FORMAT);
    cr_assert_not_null(strstr(fail_message(), "checksum"), "%s", fail_message());
    cr_assert_eq(entry_format(bytes, s.n), ENTRY_FORMAT);
    bytes[8]++;
    cr_assert_eq(entry_format(bytes, s.n), ENTRY_FORMAT + 1);
    cr_assert_eq(entry_format(bytes, 11), 0);
    cr_assert_eq(entry_parse(bytes, s.n, &arena, &v), ST_FORMAT);
    cr_assert_not_null(strstr(fail_message(), arena_printf(&arena, "format %d", ENTRY_FORMAT + 1)), "%s", fail_message());
    bytes[0] ^= 1;
    cr_assert_eq(entry_format(bytes, s.n), 0);
    cr_assert_eq(entry_parse(bytes, s.n, &arena, &v), ST_FORMAT);
    cr_assert_not_null(strstr(fail_message(), "magic"), "%s", fail_message());
    let_go(&s);
}

/* Bytes changed behind a right checksum: the inner checks must hold alone (under a sanitizer this is the proof). */
Test(entry, changed_behind_the_checksum_never_crashes)
{
    Sample s = sample_of("graph small(%0: f32[4]) {\n  %1 = neg %0\n  return %1\n}\n", &arena);
    uint8_t *bytes = os_alloc(s.n);
    uint64_t state = 1;
    int refused = 0, accepted = 0;
    for (int round = 0; round < 20000; round++) {
        memcpy(bytes, s.bytes, s.n);
        for (int k = 0; k < 2; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            size_t span = s.n - 40 < 4096 ? s.n - 40 : 4096;
            size_t at = 40 + (size_t)(state >> 33) % (k ? span : s.n - 40);
            bytes[at] = (uint8_t)(state >> 20 & 1 ? state >> 40 : bytes[at] ^ 1u << (state >> 50 & 7));
        }
        Hash128 sum = hash128(bytes + 40, s.n - 40);
        memcpy(bytes + 24, &sum.lo, 8);
        memcpy(bytes + 32, &sum.hi, 8);
        Arena own;
        jmp_buf none;
        arena_init(&own, &none);
        EntryView v;
        if (entry_parse(bytes, s.n, &own, &v) == ST_OK) {
            EntryTexts texts;
            accepted++;
            (void)entry_texts(&v, &own, &texts);
            Str out;
            str_init(&out, &own);
            program_print(v.plan, &out);
        } else {
            refused++;
        }
        arena_free(&own);
    }
    cr_assert_gt(refused, 100);
    cr_assert_gt(accepted, 100);
    os_free(bytes);
    let_go(&s);
}

Test(entry, names_tell_graph_maker_and_guards_apart)
{
    Sample s = sample_of(sample_graph, &arena);
    char name[ENTRY_NAME_BYTES], other[ENTRY_NAME_BYTES], prefix[ENTRY_NAME_BYTES];
    entry_name(&s.parts.key, &s.program->guards, name);
    cr_assert(entry_name_valid(name), "%s", name);
    cr_assert_eq(strlen(name), ENTRY_NAME_BYTES - 1);
    entry_prefix(&s.parts.key, false, prefix);
    cr_assert_eq(strncmp(name, prefix, strlen(prefix)), 0);
    cr_assert_eq(strlen(prefix), ENTRY_GRAPH_HEX + 1);
    entry_prefix(&s.parts.key, true, prefix);
    cr_assert_eq(strncmp(name, prefix, strlen(prefix)), 0);
    cr_assert_eq(strlen(prefix), ENTRY_GRAPH_HEX + 1 + ENTRY_MAKER_HEX + 1);

    KeyText key = s.parts.key;
    key.graph_bytes--;
    entry_name(&key, &s.program->guards, other);
    cr_assert_neq(strncmp(name, other, ENTRY_GRAPH_HEX), 0);
    key = s.parts.key;
    key.maker_bytes--;
    entry_name(&key, &s.program->guards, other);
    cr_assert_eq(strncmp(name, other, ENTRY_GRAPH_HEX), 0);
    cr_assert_neq(strncmp(name, other, ENTRY_GRAPH_HEX + 1 + ENTRY_MAKER_HEX), 0);
    const char *who = s.program->guards.at[0].who;
    s.program->guards.at[0].who = "somebody else";
    entry_name(&s.parts.key, &s.program->guards, other);
    cr_assert_str_eq(name, other);
    s.program->guards.at[0].who = who;
    s.program->guards.at[0].v++;
    entry_name(&s.parts.key, &s.program->guards, other);
    cr_assert_eq(strncmp(name, other, strlen(prefix)), 0);
    cr_assert_str_neq(name, other);
    s.program->guards.at[0].v--;

    static const char *const bad[] = {"", "x.kiln", "tmp.12.34", ".."};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_assert_not(entry_name_valid(bad[i]));
    memcpy(other, name, sizeof other);
    other[3] = 'G';
    cr_assert_not(entry_name_valid(other));
    let_go(&s);
}

/* Each allocation of a load fails in turn: an error, and no leak. */
Test(entry, loading_survives_any_failed_allocation)
{
    Sample s = sample_of(sample_graph, &arena);
    program_release(s.program);
    EntryView v;
    Program *p = NULL;
    cr_assert_eq(entry_parse(s.bytes, s.n, &arena, &v), ST_OK);
    int failures = 0;
    for (int nth = 1; nth < 200 && !p; nth++) {
        os_fail_alloc(nth, false);
        Status status = entry_load(&v, &p);
        os_fail_alloc(0, false);
        failures += status == ST_OUT_OF_MEMORY;
        cr_assert(status == ST_OK || status == ST_OUT_OF_MEMORY);
        cr_assert_eq(status == ST_OK, p != NULL);
    }
    cr_assert_not_null(p);
    cr_assert_gt(failures, 10);
    program_release(p);
    os_free(s.bytes);
}
