/* Guards: noting what is asked, checking it, and saying it. The printed guards are evaluated by a second, text-driven evaluator. */
#include "guards/guards.h"
#include "ir/base/str.h"
#include "ir/infer.h"
#include "ir/scalar.h"
#include "tests/support/guard_text.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdlib.h>
#include <string.h>

static const Loc nowhere = {NULL, 0};

typedef struct Fixture {
    Arena arena;
    jmp_buf oom;
    Graph *g;
    bool int_varies[64], scalar_varies[8];
    GuardPolicy policy;
} Fixture;

static void begin(Fixture *f)
{
    memset(f, 0, sizeof *f);
    arena_init(&f->arena, &f->oom);
    if (setjmp(f->oom))
        cr_fatal("out of memory");
    f->g = graph_new(&f->arena);
    f->policy = (GuardPolicy){.int_varies = f->int_varies, .scalar_varies = f->scalar_varies};
}

/* --- tests ------------------------------------------------------------------------------------------------------------ */

Test(guards, only_what_was_asked_is_guarded)
{
    Fixture f;
    begin(&f);
    Ref x = graph_add_input(f.g, DT_F32, 3, (int64_t[]){4, 5, 6}, NULL, nowhere);
    GuardBuilder *b = guard_builder_new(f.g, &f.policy);
    int64_t value = 0;
    cr_assert(spec_dim(f.g, graph_node(f.g, x)->dim[1], "test", &value));
    cr_assert(eq(i64, value, 5));
    GuardSet set;
    cr_assert(eq(int, (int)guard_builder_finish(b, &set), ST_OK));
    cr_assert(eq(u32, set.n, 1));
    int64_t sizes[8], ints[] = {9, 5, 9};
    Facts facts = {ints, NULL, 3, 0};
    sizes_eval(&set.sizes, ints, sizes);
    uint32_t failed;
    cr_assert(guards_hold(&set, sizes, &facts, &failed));
    ints[1] = 7;
    sizes_eval(&set.sizes, ints, sizes);
    cr_assert(not(guards_hold(&set, sizes, &facts, &failed)));
    cr_assert(eq(int, (int)guard_reason(&set.at[failed]), REASON_SIZE));
    Str out;
    str_init(&out, &f.arena);
    guard_print_failure(&set.at[failed], sizes, &facts, &out);
    cr_assert(eq(str, out.text, "expected 5, found 7"));
    guards_free(&set);
    arena_free(&f.arena);
}

Test(guards, undo_takes_notes_back)
{
    Fixture f;
    begin(&f);
    Ref x = graph_add_input(f.g, DT_F32, 2, (int64_t[]){4, 5}, NULL, nowhere);
    GuardBuilder *b = guard_builder_new(f.g, &f.policy);
    int64_t value;
    uint32_t mark = query_mark(f.g);
    cr_assert(spec_dim(f.g, graph_node(f.g, x)->dim[0], "test", &value));
    query_undo(f.g, mark);
    GuardSet set;
    cr_assert(eq(int, (int)guard_builder_finish(b, &set), ST_OK));
    cr_assert(eq(u32, set.n, 0));
    guards_free(&set);
    arena_free(&f.arena);
}

Test(guards, a_varying_fact_takes_its_class_along)
{
    Fixture f;
    begin(&f);
    Ref x = graph_add_input(f.g, DT_F32, 1, (int64_t[]){4}, NULL, nowhere);
    Ref y = graph_add_input(f.g, DT_F32, 1, (int64_t[]){4}, NULL, nowhere);
    graph_output(f.g, graph_ew(f.g, OP_ADD, x, y, REF_NONE, nowhere)); /* add unifies the two dims */
    f.int_varies[1] = true;
    guard_policy_close(&f.policy, f.g, false);
    cr_assert(f.int_varies[0]);
    (void)guard_builder_new(f.g, &f.policy);
    int64_t value;
    cr_assert(not(spec_dim(f.g, graph_node(f.g, x)->dim[0], "test", &value)));
    arena_free(&f.arena);
}

Test(guards, varying_scalars_are_not_compiled_in)
{
    Fixture f;
    begin(&f);
    Ref a = graph_add_scalar(f.g, DT_F32, scalar_from_double(DT_F32, 2.0), nowhere);
    Ref b = graph_add_scalar(f.g, DT_F32, scalar_from_double(DT_F32, 2.0), nowhere);
    f.scalar_varies[1] = true;
    GuardBuilder *builder = guard_builder_new(f.g, &f.policy);
    cr_assert(spec_scalar_eq(f.g, a, 2.0, "test"));
    cr_assert(not(spec_scalar_eq(f.g, a, 3.0, "test")));
    cr_assert(not(spec_scalar_eq(f.g, b, 2.0, "test")));
    GuardSet set;
    cr_assert(eq(int, (int)guard_builder_finish(builder, &set), ST_OK));
    cr_assert(eq(u32, set.n, 1));
    cr_assert(set.on_scalars);
    uint64_t scalars[] = {scalar_from_double(DT_F32, 2.5), 0};
    Facts facts = {NULL, scalars, 0, 2};
    cr_assert(not(guard_holds(&set.at[0], NULL, &facts)));
    guards_free(&set);
    arena_free(&f.arena);
}

/* A set with every kind of guard, over sums and products. */
static void every_kind(Fixture *f, GuardSet *set)
{
    begin(f);
    Ref x = graph_add_input(f->g, DT_F32, 3, (int64_t[]){4, 6, 6}, NULL, nowhere);
    Ref s = graph_add_scalar(f->g, DT_F32, scalar_from_double(DT_F32, 0.5), nowhere);
    GuardBuilder *b = guard_builder_new(f->g, &f->policy);
    const Dim *dim = graph_node(f->g, x)->dim;
    Dim sum = dim_add(f->g, dim_mul(f->g, dim[0], dim[1]), dim_const(f->g, 8));
    int64_t value;
    cr_assert(spec_dim(f->g, dim[0], "kind", &value));
    cr_assert(spec_dim_same(f->g, dim[1], dim[2], "kind"));
    cr_assert(spec_range(f->g, sum, 2, 100, "kind"));
    cr_assert(spec_range(f->g, dim[2], 1, INT64_MAX, "kind"));
    cr_assert(spec_scalar_eq(f->g, s, 0.5, "kind"));
    cr_assert(eq(int, (int)guard_builder_finish(b, set), ST_OK));
    bool seen[GUARD_COUNT] = {false};
    for (uint32_t i = 0; i < set->n; i++)
        seen[set->at[i].kind] = true;
    for (int kind = 0; kind < GUARD_COUNT; kind++)
        cr_assert(seen[kind], "no guard of kind %d", kind);
}

Test(guards, printed_guards_mean_what_is_checked)
{
    Fixture f;
    GuardSet set;
    every_kind(&f, &set);
    int64_t ints[3], sizes[32];
    uint64_t scalars[1];
    Facts facts = {ints, scalars, 3, 1};
    uint64_t seed = 12345;
    int held = 0, broke = 0;
    for (int round = 0; round < 2000; round++) {
        for (int i = 0; i < 3; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            ints[i] = (int64_t)(seed >> 33) % 9;
        }
        scalars[0] = scalar_from_double(DT_F32, (double)(seed >> 60 & 1) / 2);
        sizes_eval(&set.sizes, ints, sizes);
        for (uint32_t i = 0; i < set.n; i++) {
            Str out;
            str_init(&out, &f.arena);
            guard_print(&set, &set.at[i], &out);
            bool checked = guard_holds(&set.at[i], sizes, &facts);
            TextScalar number = {scalar_to_double(DT_F32, scalars[0]), true};
            cr_assert(eq(int, (int)text_guard(out.text, ints, &number), checked ? TEXT_HOLDS : TEXT_BROKEN), "%s", out.text);
            held += checked;
            broke += !checked;
        }
    }
    cr_assert(held > 100 && broke > 100);
    guards_free(&set);
    arena_free(&f.arena);
}

/* Two scalars that differ never print alike. */
Test(guards, scalars_print_in_full)
{
    static const struct {
        DType dtype;
        double value, other;
        const char *text;
    } rows[] = {
        {DT_F64, 1.0 / 3, 0.333333333, "k0 == 0.33333333333333331"},
        {DT_F64, 0.1, 0.10000000000000002, "k0 == 0.1"},
        {DT_F32, 0.1, 0.2, "k0 == 0.100000001"},
        {DT_F64, -0.0, 0.0, "k0 == -0"},
        {DT_U64, 0x1p63, 5, "k0 == 9223372036854775808"},
        {DT_I8, -7, 7, "k0 == -7"},
        {DT_BOOL, 1, 0, "k0 == 1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Fixture f;
        begin(&f);
        Ref s = graph_add_scalar(f.g, rows[i].dtype, scalar_from_double(rows[i].dtype, rows[i].value), nowhere);
        GuardBuilder *b = guard_builder_new(f.g, &f.policy);
        cr_assert(spec_scalar_eq(f.g, s, rows[i].value, "test"));
        GuardSet set;
        cr_assert(eq(int, (int)guard_builder_finish(b, &set), ST_OK));
        Str out;
        str_init(&out, &f.arena);
        guard_print(&set, &set.at[0], &out);
        cr_assert(eq(str, out.text, (char *)(uintptr_t)rows[i].text));
        bool single = rows[i].dtype == DT_F32;
        TextScalar itself = {single ? (double)(float)rows[i].value : rows[i].value, single}, other = {rows[i].other, single};
        cr_assert(eq(int, (int)text_guard(out.text, NULL, &itself), TEXT_HOLDS));
        cr_assert(eq(int, (int)text_guard(out.text, NULL, &other), TEXT_BROKEN));
        guards_free(&set);
        arena_free(&f.arena);
    }
}

Test(guards, the_general_policy_guards_nothing)
{
    Fixture f;
    begin(&f);
    Ref x = graph_add_input(f.g, DT_F32, 2, (int64_t[]){4, 4}, NULL, nowhere);
    (void)graph_add_scalar(f.g, DT_F32, scalar_from_double(DT_F32, 1.0), nowhere);
    f.policy.general = true;
    guard_policy_close(&f.policy, f.g, true);
    GuardBuilder *b = guard_builder_new(f.g, &f.policy);
    const Dim *dim = graph_node(f.g, x)->dim;
    int64_t value;
    cr_assert(not(spec_dim(f.g, dim[0], "test", &value)));
    cr_assert(not(spec_dim_same(f.g, dim[0], dim[1], "test")));
    cr_assert(not(spec_range(f.g, dim[0], 1, 100, "test")));
    GuardSet set;
    cr_assert(eq(int, (int)guard_builder_finish(b, &set), ST_OK));
    cr_assert(eq(u32, set.n, 0));
    guards_free(&set);
    arena_free(&f.arena);
}

/* Where all sizes are arguments: a step of 1 or -1 is guarded instead, until it has varied or nothing optional may be guarded. */
Test(guards, which_way_a_slice_goes_is_no_size)
{
    for (int way = -2; way <= 2; way++)
        for (int seen = 0; seen < 2; seen++)
            for (int general = 0; general < 2; general++) {
                Fixture f;
                begin(&f);
                Ref x = graph_add_input(f.g, DT_F32, 1, (int64_t[]){8}, (int64_t[]){way}, nowhere);
                Dim step = dim_fact(f.g, way, FACT_STEP, 0, x), start = dim_fact(f.g, 1, FACT_START, 0, x);
                f.policy.general = general;
                f.policy.int_varies[f.g->shared->ints.n - 2] = seen;
                guard_policy_close(&f.policy, f.g, true);
                GuardBuilder *b = guard_builder_new(f.g, &f.policy);
                int64_t value;
                cr_assert(eq(int, spec_dim(f.g, step, "test", &value), (way == 1 || way == -1) && !seen && !general));
                cr_assert(not(spec_dim(f.g, start, "test", &value)));
                GuardSet set;
                cr_assert(eq(int, (int)guard_builder_finish(b, &set), ST_OK));
                cr_assert(eq(u32, set.n, (way == 1 || way == -1) && !seen && !general));
                guards_free(&set);
                arena_free(&f.arena);
            }
}

/* Of windows, up to four: whether it has varied or not, until there are too many programs. How far apart their taps are is a size like others. */
Test(guards, usual_steps_of_windows_are_guarded)
{
    for (int64_t n = 1; n <= 5; n++)
        for (int breadth = 0; breadth < 3; breadth++) {
            Fixture f;
            begin(&f);
            Ref x = graph_add_input(f.g, DT_F32, 1, (int64_t[]){40}, NULL, nowhere);
            uint32_t first = f.g->shared->ints.n;
            Dim facts[] = {dim_fact(f.g, n, FACT_STEP, 0, x), dim_fact(f.g, n, FACT_DILATION, 0, x), dim_fact(f.g, 3, FACT_SIZE, 0, x),
                           dim_fact(f.g, 2, FACT_SIZE, 1, x)};
            Ref window = graph_add(f.g, OP_WINDOW, DT_F32, &x, 1, &(Attr){.axis = 0}, facts, 4, nowhere);
            for (uint32_t i = 0; i < 4; i++) {
                f.g->shared->ints.at[first + i].node = window;
                f.policy.int_varies[first + i] = true;
            }
            f.policy.wide = breadth == 1;
            f.policy.general = breadth == 2;
            guard_policy_close(&f.policy, f.g, breadth > 0);
            (void)guard_builder_new(f.g, &f.policy);
            int64_t value;
            cr_assert(eq(int, spec_dim(f.g, facts[0], "test", &value), n <= 4 && breadth == 0), "step %d, breadth %d", (int)n, breadth);
            cr_assert(not(spec_dim(f.g, facts[1], "test", &value)));
            arena_free(&f.arena);
        }
}

Test(guards, long_sums_need_no_stack)
{
    Fixture f;
    begin(&f);
    Ref x = graph_add_input(f.g, DT_F32, 1, (int64_t[]){3}, NULL, nowhere);
    GuardBuilder *b = guard_builder_new(f.g, &f.policy);
    Dim sum = graph_node(f.g, x)->dim[0];
    for (int i = 0; i < 20000; i++)
        sum = dim_add(f.g, dim_mul(f.g, sum, dim_const(f.g, 1)), dim_fact(f.g, 1, FACT_SIZE, 0, x));
    uint32_t entry = guard_builder_size(b, sum);
    GuardSet set;
    cr_assert(eq(int, (int)guard_builder_finish(b, &set), ST_OK));
    int64_t *ints = malloc(sizeof *ints * f.g->shared->ints.n), *sizes = malloc(sizeof *sizes * set.sizes.n);
    for (uint32_t i = 0; i < f.g->shared->ints.n; i++)
        ints[i] = 2;
    sizes_eval(&set.sizes, ints, sizes);
    cr_assert(eq(i64, sizes[entry], 2 * 20001));
    free(ints);
    free(sizes);
    guards_free(&set);
    arena_free(&f.arena);
}
