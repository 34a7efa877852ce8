/*
 * As much of Criterion as the API_TESTs of tests/api and test_cuda*.c there use, so that they run on machines that have no Criterion
 * (tests/gpu/api.c). Each test with parameters registers itself and its parameters. Tests without parameters are no API_TESTs: those
 * of a file that is compiled with TESTS_CHOOSE_CUDA compute on the device themselves, those of others on the CPU and are left out.
 */
#ifndef TESTS_GPU_CRITERION_H
#define TESTS_GPU_CRITERION_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct criterion_test_params {
    size_t size;
    char *params;
    size_t length;
};

typedef struct PlainTest {
    const char *suite, *name;
    struct criterion_test_params (*parameters)(void); /* NULL: none */
    void (*run)(void *parameter);
    struct PlainTest *next;
} PlainTest;

void plain_test(PlainTest *test);
/* Prints where and what; `fatal` ends the test. */
void plain_failed(int fatal, const char *file, int line, const char *condition, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

#ifdef TESTS_CHOOSE_CUDA
#define Test(suite, name, ...)                                                     \
    static void suite##_##name##_test(void);                                       \
    static void suite##_##name##_run(void *p)                                      \
    {                                                                              \
        (void)p;                                                                   \
        suite##_##name##_test();                                                   \
    }                                                                              \
    static __attribute__((constructor)) void suite##_##name##_register(void)       \
    {                                                                              \
        static PlainTest test = {#suite, #name, NULL, suite##_##name##_run, NULL}; \
        plain_test(&test);                                                         \
    }                                                                              \
    static void suite##_##name##_test(void)
#else
#define Test(suite, name, ...) static __attribute__((unused)) void suite##_##name##_left_out(void)
#endif
#define TestSuite(...) extern int plain_no_suite
#define ParameterizedTestParameters(suite, name) static struct criterion_test_params suite##_##name##_parameters(void)
#define ParameterizedTest(parameter, suite, name)                                                         \
    static void suite##_##name##_test(parameter);                                                         \
    static void suite##_##name##_run(void *p) { suite##_##name##_test(p); }                               \
    static __attribute__((constructor)) void suite##_##name##_register(void)                              \
    {                                                                                                     \
        static PlainTest test = {#suite, #name, suite##_##name##_parameters, suite##_##name##_run, NULL}; \
        plain_test(&test);                                                                                \
    }                                                                                                     \
    static void suite##_##name##_test(parameter)
#define cr_make_param_array(type, array, n) ((struct criterion_test_params){sizeof(type), (char *)(array), (size_t)(n)})

#define cr_assert(condition, ...) ((condition) ? (void)0 : plain_failed(1, __FILE__, __LINE__, #condition, " " __VA_ARGS__))
#define cr_expect(condition, ...) ((condition) ? (void)0 : plain_failed(0, __FILE__, __LINE__, #condition, " " __VA_ARGS__))
#define cr_assert_str_eq(a, b, ...) cr_assert(strcmp((a), (b)) == 0, __VA_ARGS__)
#define cr_assert_arr_eq(a, b, bytes, ...) cr_assert(memcmp((a), (b), (bytes)) == 0, __VA_ARGS__)
#define cr_assert_eq(a, b, ...) cr_assert((a) == (b), __VA_ARGS__)
#define cr_expect_eq(a, b, ...) cr_expect((a) == (b), __VA_ARGS__)
#define cr_assert_gt(a, b, ...) cr_assert((a) > (b), __VA_ARGS__)
#define cr_assert_geq(a, b, ...) cr_assert((a) >= (b), __VA_ARGS__)
#define cr_assert_leq(a, b, ...) cr_assert((a) <= (b), __VA_ARGS__)
#define cr_assert_float_eq(a, b, tolerance, ...) cr_assert(fabs((double)((a) - (b))) <= (tolerance), __VA_ARGS__)
#define cr_assert_fail(...) cr_assert(0, __VA_ARGS__)
#define cr_skip(...) (printf(__VA_ARGS__), puts(""))
#define cr_log_info(...) ((void)0)
#define cr_log_warn(...) ((void)0)

#endif
