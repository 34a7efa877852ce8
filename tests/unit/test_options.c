/* Options: what each may be, where its value came from. */
#include "ir/base/log.h"
#include "ir/base/str.h"
#include "jit/options.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static void swallow(void *user, int level, const char *topic, const char *line) { (void)user, (void)level, (void)topic, (void)line; }

static OptionOrigin origin(OptionId id)
{
    OptionInfo option;
    option_describe(id, &option);
    return option.origin;
}

Test(options, a_value_says_where_it_came_from)
{
    setenv("KILN_MATH", "strict", 1);
    setenv("KILN_LLVM_OPT", "7", 1);
    log_set_sink(swallow, NULL); /* the warning of KILN_LLVM_OPT */
    cr_assert_eq(origin(OPT_MATH), ORIGIN_ENVIRONMENT);
    cr_assert_eq(origin(OPT_LLVM_OPT), ORIGIN_INVALID);
    cr_assert_eq(option_int(OPT_LLVM_OPT), 1);
    cr_assert_eq(origin(OPT_FUSE), ORIGIN_DEFAULT);
    cr_assert_eq(option_set("fuse", "maybe"), ST_INVALID);
    cr_assert_eq(origin(OPT_FUSE), ORIGIN_DEFAULT);
    cr_assert_eq(option_set("fuse", "0"), ST_OK);
    cr_assert_eq(origin(OPT_FUSE), ORIGIN_SET);
}

Test(options, values_are_listed_as_they_are_accepted)
{
    for (int id = 0; id < OPT_SHOWN; id++) {
        char values[256], variable[64];
        OptionInfo option;
        option_describe((OptionId)id, &option);
        option_values((OptionId)id, values, sizeof values);
        cr_expect(values[0], "%s", option.name);
        cr_expect_str_eq(option_variable((OptionId)id, variable, sizeof variable) + 4, variable + 4);
        cr_expect(strncmp(variable, "KILN_", 5) == 0);
        cr_expect(option.help[0]);
        if (strcmp(option.kind, "enum") != 0)
            continue;
        for (char *word = strtok(values, ", "); word; word = strtok(NULL, ", "))
            cr_expect_eq(option_set(option.name, word), ST_OK, "%s=%s", option.name, word);
    }
    char buf[64];
    cr_assert_str_eq(option_values(OPT_LLVM_OPT, buf, sizeof buf), "0 to 2");
    cr_assert_str_eq(option_values(OPT_MATH, buf, sizeof buf), "fast, strict");
    cr_assert_str_eq(option_variable(OPT_MAX_VARIANTS, buf, sizeof buf), "KILN_MAX_VARIANTS");
}

Test(options, distance_counts_letters)
{
    cr_assert_eq(str_distance("cache", "cache"), 0);
    cr_assert_eq(str_distance("cashe", "cache"), 1);
    cr_assert_eq(str_distance("", "cache"), 5);
    cr_assert_eq(str_distance("mode", "made up"), 4);
}
