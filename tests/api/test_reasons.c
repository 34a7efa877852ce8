/* Reasons for recompiles, as KILN_LOG=recompiles gives them: what, where, expected, found. */
#include "api.h"

#include <stdio.h>

static char last[2000];

static void keep(void *user, int level, const char *topic, const char *line)
{
    (void)user;
    if (level == 1 && strcmp(topic, "recompiles") == 0)
        snprintf(last, sizeof last, "%s", line);
}

static kiln_tensor *evaluated(kiln_dtype dtype, int64_t n)
{
    kiln_tensor *x = kiln_ones(dtype, KILN_SHAPE(n));
    cr_assert(kiln_eval(x) == KILN_OK);
    return x;
}

static void has(const char *const *words)
{
    for (; *words; words++)
        cr_expect(strstr(last, *words) != NULL, "no '%s' in: %s", *words, last);
}

Test(reasons, name_place_expected_and_found)
{
    kiln_set_log_sink(keep, NULL);
    set_option("log", "recompiles");
    kiln_tensor *four = evaluated(KILN_F32, 4), *five = evaluated(KILN_F32, 5), *wide = evaluated(KILN_F64, 4);
    cr_assert(kiln_eval(kiln_exp(four)) == KILN_OK);
    has((const char *[]){"never_seen", "test_reasons.c", "kiln_eval", NULL});
    cr_assert(kiln_eval(kiln_exp(wide)) == KILN_OK);
    has((const char *[]){"dtype", "expected f32, found f64", "test_reasons.c:17", NULL});
    cr_assert(kiln_eval(kiln_exp(five)) == KILN_OK);
    has((const char *[]){"size of axis 0", "expected 4, found 5", "test_reasons.c:17", "f32[5]", "closest of 1", NULL});
    last[0] = '\0';
    cr_assert(kiln_eval(kiln_exp(evaluated(KILN_F32, 4))) == KILN_OK);
    cr_assert(kiln_eval(kiln_exp(five)) == KILN_OK);
    cr_expect(strstr(last, "exp") == NULL, "%s", last);
    set_option("log", "");
    kiln_set_log_sink(NULL, NULL);
}
