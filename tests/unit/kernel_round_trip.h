/* A printed kernel parses to what prints so. */
#ifndef TESTS_UNIT_KERNEL_ROUND_TRIP_H
#define TESTS_UNIT_KERNEL_ROUND_TRIP_H

#include "jit/kernel.h"

#include <criterion/criterion.h>

static inline void check_round_trip(const Kernel *k, Arena *own)
{
    Kernel *back;
    Str text, again;
    str_init(&text, own);
    str_init(&again, own);
    kernel_print(k, &text);
    cr_assert_eq(kernel_parse(text.text, own, &back), ST_OK, "%s\n%s", fail_message(), text.text);
    kernel_print(back, &again);
    cr_assert_str_eq(again.text, text.text);
    for (uint32_t a = 0; a < k->axes.n; a++)
        cr_assert_eq(back->axes.at[a].kind, k->axes.at[a].kind, "axis %u in\n%s", a, text.text);
    cr_assert_eq(back->form, k->form);
    cr_assert_str_eq(kernel_name(back, own), kernel_name(k, own));
}

#endif
