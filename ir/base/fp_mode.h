/*
 * The floating-point mode: rounding, what is done with subnormals (FTZ, DAZ), and which exceptions trap, are registers of each thread
 * that the program may have set. kiln's results are those of the default mode: round to nearest, subnormals kept, no traps. So what
 * computes stands between fp_enter and fp_leave: each call of the program's (runtime/eval.c, runtime/record/record.c) and each task on a
 * thread of the pool. The caller gets its mode back. (In the default mode neither costs more than reading a register, so exception flags are
 * raised there, as by any arithmetic.) Threads inherit the mode of whoever starts them.
 */
#ifndef IR_BASE_FP_MODE_H
#define IR_BASE_FP_MODE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct FpMode {
    uint32_t sse; /* MXCSR */
    uint16_t x87; /* its control word, which the C library's conversions from and to text look at */
    bool other;   /* than the default; else neither was touched */
} FpMode;

#if defined(__x86_64__)
#include <xmmintrin.h>

enum { FP_FLAGS = 0x3f, FP_SSE_DEFAULT = 0x1f80, FP_X87_DEFAULT = 0x37f };

static inline FpMode fp_enter(void)
{
    FpMode before = {.sse = _mm_getcsr()};
    before.other = (before.sse & ~(uint32_t)FP_FLAGS) != FP_SSE_DEFAULT;
    if (__builtin_expect(before.other, 0)) {
        const uint16_t x87 = FP_X87_DEFAULT;
        __asm__ volatile("fnstcw %0" : "=m"(before.x87));
        __asm__ volatile("fldcw %0" : : "m"(x87));
        _mm_setcsr(FP_SSE_DEFAULT);
    }
    return before;
}

static inline void fp_leave(FpMode before)
{
    if (__builtin_expect(before.other, 0)) {
        _mm_setcsr(before.sse);
        __asm__ volatile("fldcw %0" : : "m"(before.x87));
    }
}
#else
static inline FpMode fp_enter(void) { return (FpMode){0}; }
static inline void fp_leave(FpMode before) { (void)before; }
#endif

#endif
