/*
 * For tests that run in each mode, in strict arithmetic: the order of sums is no matter of fusion then, so that results are compared bit for bit.
 * STRICT_TEST(suite, name) { ... } is one test, which runs its body in all modes.
 */
#ifndef TESTS_EACH_MODE_H
#define TESTS_EACH_MODE_H

#include "api.h"

static const char *const modes[] = {"jit", "interp", "eager", "cuda"};
enum { MODES = 4 };

/* The last is jit on the software CUDA device; false: this build has none. */
static inline bool set_mode(int mode)
{
    if (mode == 3 && !cuda_driver())
        return false;
    set_option("math", "strict");
    set_option("mode", mode == 3 ? "jit" : modes[mode]);
    if (mode == 3) {
        set_option("test_memory", "exact");
        use_driver();
        set_option("device", "cuda");
    }
    return true;
}

#define STRICT_TEST(suite, name)                                     \
    static void suite##_##name(void);                                \
    Test(suite, name)                                                \
    {                                                                \
        for (int mode = 0; mode < MODES && set_mode(mode); mode++) { \
            kiln_scope *scope = kiln_scope_begin();                  \
            suite##_##name();                                        \
            kiln_scope_end(scope);                                   \
        }                                                            \
        end_mode();                                                  \
    }                                                                \
    static void suite##_##name(void)

static inline void same_bits(int line, kiln_tensor *a, kiln_tensor *b)
{
    static char x[1 << 16], y[1 << 16];
    cr_assert(a && b, "line %d: %s", line, kiln_error_message());
    kiln_dtype dtype = kiln_dtype_of(a);
    size_t n = (size_t)kiln_numel(a) * kiln_dtype_size(dtype);
    cr_assert(dtype == kiln_dtype_of(b) && kiln_rank(a) == kiln_rank(b) && kiln_numel(a) == kiln_numel(b), "line %d", line);
    cr_assert_leq(n, sizeof x);
    for (int d = 0; d < kiln_rank(a); d++)
        cr_assert_eq(kiln_dim(a, d), kiln_dim(b, d), "line %d: axis %d", line, d);
    cr_assert_eq(kiln_read(a, dtype, x, n), KILN_OK, "line %d: %s", line, kiln_error_message());
    cr_assert_eq(kiln_read(b, dtype, y, n), KILN_OK, "line %d: %s", line, kiln_error_message());
    cr_assert(memcmp(x, y, n) == 0, "line %d: bits differ", line);
}
#define SAME(a, b) same_bits(__LINE__, a, b)

#endif
