/* See programs.h. Linked with the inside of the library. */
#include "tests/mutation/programs.h"
#include "cache/memory.h"
#include "ir/base/arena.h"
#include "ir/scalar.h"
#include "tests/support/guard_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_FACTS = 4096, MAX_SAID = 4 };

_Static_assert((int)PROGRAMS_KINDS == GUARD_COUNT, "kinds of guards");
const char *programs_kind(int kind) { return guard_kind_name((GuardKind)kind); }

typedef struct Look {
    Agreement all;
    int rounds;
    uint64_t seed;
    void (*say)(void *user, const char *what);
    void *user;
    Arena *arena;
} Look;

static uint64_t any(Look *look)
{
    uint64_t x = look->seed += 0x9e3779b97f4a7c15u; /* splitmix64 */
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static int64_t between(Look *look, int64_t low, int64_t high) { return low + (int64_t)(any(look) % (uint64_t)(high - low + 1)); }
static bool chance(Look *look, int percent) { return between(look, 1, 100) <= percent; }

/* A number as the text has it: the kind of a scalar is known from the guard that asks for it. */
static TextScalar number_of(const Guard *guard, uint64_t bits)
{
    DType dtype = (DType)guard->dtype;
    if (dtype_is_float(dtype))
        return (TextScalar){scalar_to_double(dtype, bits), dtype != DT_F64};
    return (TextScalar){dtype == DT_U64 ? (double)bits : (double)scalar_to_int(dtype, bits), false};
}

static void one_guard(Look *look, const GuardSet *set, const Guard *guard, const int64_t *sizes, const Facts *facts)
{
    Str text;
    static TextScalar numbers[MAX_FACTS];
    str_init(&text, look->arena);
    guard_print(set, guard, &text);
    if (guard->kind == GUARD_SCALAR_EQ)
        numbers[guard->a] = number_of(guard, facts->scalars[guard->a]);
    bool checked = guard_holds(guard, sizes, facts);
    TextGuard said = text_guard(text.text, facts->ints, numbers);
    look->all.held += checked && said == TEXT_HOLDS;
    look->all.broke += !checked && said == TEXT_BROKEN;
    look->all.cut += said == TEXT_CUT;
    if (said == TEXT_CUT || said == (checked ? TEXT_HOLDS : TEXT_BROKEN))
        return;
    if (look->all.disagreed++ < MAX_SAID) {
        char line[512];
        snprintf(line, sizeof line, "\"%s\" is %s, the check says it %s", text.text,
                 said == TEXT_BAD     ? "no guard"
                 : said == TEXT_HOLDS ? "true"
                                      : "false",
                 checked ? "holds" : "fails");
        look->say(look->user, line);
    }
}

/* A fact near a number that some guard names, near what it was, or anything. */
static int64_t some_int(Look *look, const GuardSet *set, int64_t now)
{
    static const int64_t edges[] = {0, 1, 2, -1, 63, 64, 65, INT32_MAX, (int64_t)INT32_MAX + 1, INT64_MAX, INT64_MIN};
    const Guard *guard = &set->at[between(look, 0, set->n - 1)];
    switch (between(look, 0, 5)) {
    case 0: return edges[between(look, 0, (int64_t)(sizeof edges / sizeof *edges) - 1)];
    case 1: return (int64_t)((uint64_t)now + (uint64_t)between(look, -1, 1));
    case 2: return (int64_t)((uint64_t)guard->v + (uint64_t)between(look, -1, 1));
    case 3: return (int64_t)((uint64_t)guard->w + (uint64_t)between(look, -1, 1));
    case 4: return between(look, 0, 9);
    default: return (int64_t)any(look);
    }
}

static void one_program(void *user, const Program *program, const Facts *made)
{
    static int64_t ints[MAX_FACTS];
    static uint64_t scalars[MAX_FACTS];
    Look *look = user;
    const GuardSet *set = &program->guards;
    look->all.programs++;
    look->all.guards += set->n;
    for (uint32_t i = 0; i < set->n; i++)
        look->all.of_kind[set->at[i].kind]++;
    if (set->n == 0 || made->n_ints > MAX_FACTS || made->n_scalars > MAX_FACTS)
        return;
    Facts facts = {ints, scalars, made->n_ints, made->n_scalars};
    int64_t *sizes = ARENA_ARRAY(look->arena, int64_t, set->sizes.n + 1);
    for (int round = 0; round <= look->rounds; round++) {
        for (uint32_t i = 0; i < made->n_ints; i++)
            ints[i] = round && chance(look, 40) ? some_int(look, set, made->ints[i]) : made->ints[i];
        for (uint32_t i = 0; i < made->n_scalars; i++)
            scalars[i] = made->scalars[i];
        for (uint32_t i = 0; i < set->n && round; i++) /* scalars of the kind that the guard knows */
            if (set->at[i].kind == GUARD_SCALAR_EQ && chance(look, 50))
                scalars[set->at[i].a] =
                    scalar_from_double((DType)set->at[i].dtype, (double)between(look, -4, 4) / (chance(look, 30) ? 3 : 1));
        sizes_eval(&set->sizes, ints, sizes);
        for (uint32_t i = 0; i < set->n; i++)
            one_guard(look, set, &set->at[i], sizes, &facts);
        uint32_t failed;
        if (round == 0 && !guards_hold(set, sizes, &facts, &failed)) {
            look->all.disagreed++;
            look->say(look->user, "the guards of a program do not hold for the facts it was made for");
        }
    }
}

Agreement programs_guards_agree(int rounds, void (*say)(void *user, const char *what), void *user)
{
    Arena arena;
    jmp_buf oom;
    arena_init(&arena, &oom);
    if (setjmp(oom))
        abort();
    Look look = {.rounds = rounds, .seed = 99, .say = say, .user = user, .arena = &arena};
    cache_each(one_program, &look);
    arena_free(&arena);
    return look.all;
}
