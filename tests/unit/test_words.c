/*
 * Elements side by side that move as words (jit/words.c). tests/kernels/words/cases.txt has kernels and what becomes of them; both do the same
 * to the same bytes.
 */
#include "tests/unit/golden_cases.h"
#include "tests/unit/kernel_ref.h"
#include "tests/unit/kernel_round_trip.h"

TestSuite(words, .init = setup, .fini = teardown);

enum { BYTES = 1024, SIZE = 5 }; /* of a buffer; what sizes that vary are */

/* Buffers of any bytes, as the reference leaves them. */
static void run(const Kernel *k, char (*buffer)[BYTES])
{
    void *args[REF_ARGS];
    cr_assert_leq(k->args.n, REF_ARGS);
    for (uint32_t a = 0; a < k->args.n; a++) {
        for (int i = 0; i < BYTES; i++)
            buffer[a][i] = (char)(i % 2 ? 31 * i + (int)a : i); /* bools, too, are moved as they are */
        args[a] = k->args.at[a].kind == ARG_SIZE ? (void *)(intptr_t)SIZE : buffer[a];
    }
    ref_run(k, args, MATH_STRICT);
}

static void outcome(const char *text, Str *out)
{
    static char before[REF_ARGS][BYTES], after[REF_ARGS][BYTES];
    Kernel *k;
    cr_assert_eq(kernel_parse(text, &arena, &k), ST_OK, "%s in\n%s", fail_message(), text);
    Kernel *words = kernel_words(k, &arena);
    run(k, before);
    run(words, after);
    cr_assert(memcmp(before, after, sizeof before) == 0, "%s", text);
    check_round_trip(words, &arena);
    if (words == k)
        str_printf(out, "none\n");
    else
        kernel_print(words, out);
}

Test(words, cases) { cr_assert_geq(golden_cases(KILN_SOURCE_DIR "/tests/kernels/words/cases.txt", outcome, true), 17); }
