/* See criterion.h. */
#include <criterion/criterion.h>
