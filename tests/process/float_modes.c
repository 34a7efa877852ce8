/*
 * Whatever floating-point mode the caller has set -- rounding, FTZ, DAZ, traps -- results have the bits of the default mode: with one thread
 * and with two, compiled, unfused and interpreted, compiled before or in that mode, what the constants of a graph are included. The
 * caller has its mode (and, where that is not the default, its exception flags) afterwards, and inside the body of a kiln_function, too.
 * A run takes a slice of the ways to compute (support/slice.h).
 */
#define KILN_NO_LOCATIONS
#include "kiln.h"
#include "tests/support/slice.h"

#include <fenv.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <xmmintrin.h>

enum { N = 200003, FEW = 20011, MODES = 7, ALL = 10 };
static float data[N], large[N];
static int64_t length = N; /* of the operands: enough for two threads */
static unsigned in_body;

static uint16_t x87(void)
{
    uint16_t word;
    __asm__ volatile("fnstcw %0" : "=m"(word));
    return word;
}

static void set_mode(int mode)
{
    static const unsigned bits[MODES] = {0x1f80, 0x9f80, 0x1fc0, 0x3f80, 0x5f80, 0x7f80, 0xffc0}; /* FTZ; DAZ; down, up, to 0; all */
    static const int rounding[MODES] = {FE_TONEAREST, FE_TONEAREST, FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO, FE_TOWARDZERO};
    fesetround(rounding[mode]);
    _mm_setcsr(bits[mode]);
}

/* 1e-20, on the way to which there is a subnormal, of scalars alone: the host computes it when arguments are bound. */
static kiln_tensor *tiny(void) { return kiln_mul(kiln_mul(kiln_scalar(1e-200), kiln_scalar(1e-120)), kiln_scalar(1e300)); }

static void body(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    in_body = _mm_getcsr() & ~0x3fu;
    out[0] = kiln_mul(kiln_mul(kiln_exp(in[0]), kiln_scalar(0.1)), tiny());
}

/* A number of each result's bits; `salt` makes graphs of their own. false: something failed. */
static bool results(int salt, uint64_t *hash, char *text, size_t room)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_wrap(KILN_F32, KILN_SHAPE(length), data, NULL, NULL),
                *y = kiln_wrap(KILN_F32, KILN_SHAPE(length), large, NULL, NULL);
    kiln_tensor *third = kiln_div(kiln_scalar(1), kiln_scalar(3)), *call_in = kiln_mul(y, kiln_scalar(0.3)), *call_out = NULL;
    for (int i = 0; i < salt; i++) {
        x = kiln_neg(x);
        y = kiln_neg(y);
    }
    kiln_tensor *all[ALL] = {
        kiln_mul(x, kiln_scalar(0.1)),
        kiln_mul(kiln_sin(y), kiln_add(third, kiln_full(KILN_F32, KILN_SHAPE(1), 0.7))),
        kiln_sum(kiln_exp(y)),
        kiln_cast(kiln_mul(y, y), KILN_F16),
        kiln_cumsum(kiln_slice(y, 1, (kiln_range[]){{0, 3001, 1}}), 0),
        kiln_linspace(KILN_F64, 0.1, 0.9, 77),
        kiln_cast(kiln_mul(kiln_cast(x, KILN_F64), kiln_scalar(1e-3)), KILN_F32),
        kiln_argsort(kiln_slice(x, 1, (kiln_range[]){{0, 1001, 1}}), 0, false),
        kiln_mul(y, tiny()),
        NULL,
    };
    kiln_function *f = kiln_function_new(body, 1, 1, NULL);
    bool ok = f && kiln_function_call(f, &call_in, &call_out) == KILN_OK;
    all[ALL - 1] = call_out;
    double item = 0;
    ok = ok && kiln_item(kiln_slice(x, 1, (kiln_range[]){{3, 4, 1}}), &item) == KILN_OK;
    *hash = 14695981039346656037u;
    for (int k = 0; k < ALL && ok; k++) {
        const void *bytes;
        if (k == ALL - 2 && kiln_data(all[k], &bytes) == KILN_OK && *(const float *)bytes == 0) {
            puts("a subnormal of the host's scalars became 0");
            return false;
        }
        ok = kiln_data(all[k], &bytes) == KILN_OK;
        size_t n = ok ? (size_t)kiln_numel(all[k]) * kiln_dtype_size(kiln_dtype_of(all[k])) : 0;
        for (size_t i = 0; i < n; i++)
            *hash = (*hash ^ ((const unsigned char *)bytes)[i]) * 1099511628211u;
    }
    uint64_t bits;
    memcpy(&bits, &item, sizeof bits);
    *hash = (*hash ^ bits) * 1099511628211u;
    ok = ok && kiln_format(all[1], text, room, NULL) == KILN_OK;
    kiln_function_free(f);
    kiln_scope_end(scope);
    return ok;
}

static int compare(const char *how, const char *threads, const char *dynamic, bool warm)
{
    static const char *const names[MODES] = {"default", "FTZ", "DAZ", "down", "up", "to zero", "FTZ, DAZ, to zero"};
    static int salt;
    char want_text[400], text[400];
    uint64_t want, hash;
    int failures = 0;
    length = strcmp(how, "interp") == 0 ? FEW : N; /* which has one thread, and takes long */
    set_mode(0);
    if (kiln_set_option("mode", how) != KILN_OK || kiln_set_option("threads", threads) != KILN_OK ||
        kiln_set_option("dynamic", dynamic) != KILN_OK || !results(0, &want, want_text, sizeof want_text))
        return 1;
    for (int mode = 1; mode < MODES; mode++) {
        if (!warm)
            salt += 2; /* an even number of negations: the same values from another graph, which is compiled in this mode */
        set_mode(mode);
        _mm_setcsr(_mm_getcsr() | 0x10); /* a flag of the caller's */
        unsigned sse = _mm_getcsr(), fpu = x87();
        bool ok = results(warm ? 0 : salt, &hash, text, sizeof text);
        unsigned after = _mm_getcsr(), fpu_after = x87();
        set_mode(0);
        if (!ok || hash != want || strcmp(text, want_text) != 0 || after != sse || fpu_after != fpu || in_body != (sse & ~0x3fu)) {
            printf("%s, %s threads, dynamic=%s, %s, caller's mode %s: %s%s%s%s%s\n", how, threads, dynamic, warm ? "warm" : "new",
                   names[mode], ok ? "" : kiln_error_message(), hash != want ? "other bits " : "",
                   strcmp(text, want_text) != 0 ? "other text " : "", after != sse || fpu_after != fpu ? "mode or flags changed " : "",
                   in_body != (sse & ~0x3fu) ? "not the caller's in a body" : "");
            failures++;
        }
    }
    return failures;
}

int main(void)
{
    for (int i = 0; i < N; i++) {
        data[i] = ldexpf((float)(i % 1013 - 500), -140 + i % 7); /* subnormals, most of them */
        large[i] = (float)(i % 1009 - 500) / 37.0f;
    }
    int failures = 0;
    static const char *const modes[] = {"jit", "eager", "interp"}, *const threads[] = {"1", "2"};
    for (int m = 0; m < 3; m++)
        for (int t = 0; t < 2; t++)
            for (int warm = 0; warm < 2; warm++)
                if (slice_takes((uint64_t)(4 * m + 2 * t + warm)))
                    failures += compare(modes[m], threads[t], "auto", warm);
    if (slice_takes(12))
        failures += compare("jit", "2", "always", false);
    set_mode(0);
    _mm_setcsr(0x1f80 & ~0x1e80u); /* every exception traps but "invalid": nothing of kiln's does */
    char text[400];
    uint64_t hash;
    bool ok = results(501, &hash, text, sizeof text);
    set_mode(0);
    failures += !ok;
    if (!failures)
        puts("one result in every mode");
    return failures != 0;
}
#else
int main(void) { return puts("left out: not an x86-64"), 0; }
#endif
