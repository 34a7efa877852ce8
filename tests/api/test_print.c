/* Printing: the texts are NumPy 2.4's. */
#include "api.h"

static void check(int line, kiln_tensor *x, const char *want)
{
    char text[4096];
    size_t needed;
    cr_assert(kiln_format(x, text, sizeof text, &needed) == KILN_OK, "line %d: %s", line, kiln_error_message());
    cr_assert(strcmp(text, want) == 0, "line %d:\n%s\nnot\n%s", line, text, want);
    cr_assert(needed == strlen(want), "line %d: needed is %zu", line, needed);
}
#define CHECK(x, want) check(__LINE__, (x), (want))

Test(print, floats)
{
    CHECK(F32(KILN_SHAPE(3), 1, 2.25f, 3.5f), "[1.   2.25 3.5 ]");
    CHECK(F32(KILN_SHAPE(3), 0.1f, 0.2f, 0.3f), "[0.1 0.2 0.3]");
    CHECK(F32(KILN_SHAPE(2), -0.0f, 0), "[-0.  0.]");
    CHECK(F32(KILN_SHAPE(4), NAN, INFINITY, -INFINITY, 0.5f), "[ nan  inf -inf  0.5]");
    CHECK(F32(KILN_SHAPE(1), NAN), "[nan]");
    CHECK(F32(KILN_SHAPE(2), 1e-5f, 1), "[1.e-05 1.e+00]");
    CHECK(F64(KILN_SHAPE(2), 1e10, -1.5e-5), "[ 1.0e+10 -1.5e-05]");
    CHECK(F64(KILN_SHAPE(2), 1.0 / 3, 2.0 / 3), "[0.33333333 0.66666667]");
    CHECK(F64(KILN_SHAPE(3), 1e100, 1.25e-7, -1), "[ 1.00e+100  1.25e-007 -1.00e+000]");
    CHECK(F64(KILN_SHAPE(3), 1e10, 2, 1e-300), "[1.e+010 2.e+000 1.e-300]");
    CHECK(F64(KILN_SHAPE(2), 1.0000000000000001e-5 * (1 + 3e-16), 1e4), "[1.e-05 1.e+04]");
    CHECK(F32(KILN_SHAPE(2), 1e-3f, 1e-4f), "[0.001  0.0001]"); /* limits are in the dtype */
    CHECK(kiln_cast(F32(KILN_SHAPE(2), 100, 0.1f), KILN_F16), "[100.    0.1]");
    CHECK(kiln_cast(F32(KILN_SHAPE(2), 0.1f, 2), KILN_F16), "[0.1 2. ]");
    CHECK(kiln_cast(F32(KILN_SHAPE(2), 0.1f, 2), KILN_BF16), "[0.1 2. ]");
}

Test(print, scalars)
{
    CHECK(F32(KILN_SHAPE(), 3.1415927f), "3.1415927");
    CHECK(F64(KILN_SHAPE(), 0.1), "0.1");
    CHECK(F32(KILN_SHAPE(), 1e6f), "1e+06");
    CHECK(F32(KILN_SHAPE(), 1.2345679e8f), "1.2345679e+08");
    CHECK(F64(KILN_SHAPE(), 9e-5), "9e-05");
    CHECK(F64(KILN_SHAPE(), 123456789), "123456789.0");
    CHECK(F32(KILN_SHAPE(), -0.0f), "-0.0");
    CHECK(F32(KILN_SHAPE(), NAN), "nan");
    CHECK(F32(KILN_SHAPE(), -INFINITY), "-inf");
    CHECK(I64(KILN_SHAPE(), -7), "-7");
    CHECK(BOOL(KILN_SHAPE(), 1), "True");
    CHECK(kiln_scalar(2), "2.0");
    CHECK(kiln_sum(kiln_ones(KILN_F32, KILN_SHAPE(3))), "3.0");
}

Test(print, ints_and_bools)
{
    CHECK(I32(KILN_SHAPE(2, 2), 1, -2, 3, 400), "[[  1  -2]\n [  3 400]]");
    CHECK(BOOL(KILN_SHAPE(2), 1, 0), "[ True False]");
    CHECK(kiln_from(KILN_U64, KILN_SHAPE(2), (uint64_t[]){UINT64_MAX, 0}), "[18446744073709551615                    0]");
}

Test(print, shapes)
{
    CHECK(kiln_zeros(KILN_F32, KILN_SHAPE(2, 0)), "[]");
    CHECK(kiln_reshape(kiln_arange(KILN_F32, 0, 24, 1), KILN_SHAPE(2, 3, 4)),
          "[[[ 0.  1.  2.  3.]\n  [ 4.  5.  6.  7.]\n  [ 8.  9. 10. 11.]]\n\n [[12. 13. 14. 15.]\n "
          " [16. 17. 18. 19.]\n"
          "  [20. 21. 22. 23.]]]");
    CHECK(kiln_arange(KILN_I64, 0, 30, 1), "[ 0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 "
                                           "18 19 20 21 22 23\n 24 25 26 27 28 29]");
    CHECK(kiln_arange(KILN_I64, 0, 1001, 1), "[   0    1    2 ...  998  999 1000]");
    CHECK(kiln_reshape(kiln_arange(KILN_I64, 0, 2000, 1), KILN_SHAPE(100, 20)),
          "[[   0    1    2 ...   17   18   19]\n [  20   21   22 ...   37   38   39]\n [  40   41 "
          "  42 ...   57   58   59]\n ...\n"
          " [1940 1941 1942 ... 1957 1958 1959]\n [1960 1961 1962 ... 1977 1978 1979]\n [1980 1981 "
          "1982 ... 1997 1998 1999]]");
    float data[6] = {1, 2, 3, 4, 5, 6};
    CHECK(kiln_wrap_strided(KILN_F32, KILN_SHAPE(3, 2), (int64_t[]){1, 3}, data, NULL, NULL), "[[1. 4.]\n [2. 5.]\n [3. 6.]]");
}
