/*
 * The floating-point mode: rounding, what is done with subnormals (FTZ, DAZ), and which exceptions trap, are registers of each thread
 * that the program may have set. kiln's results are those of the default mode: round to nearest, subnormals kept, no traps. So what
 * computes stands between fp_enter and fp_leave: each call of the program's (runtime/eval.c, runtime/record/record.c) and each task on a
 * thread of the pool. The caller gets its mode back, its exception flags included. Threads inherit the mode of whoever starts them.
 */
#ifndef IR_BASE_FP_MODE_H
#define IR_BASE_FP_MODE_H

#include <stdint.h>

typedef struct FpMode {
    uint32_t sse; /* MXCSR */
    uint16_t x87; /* its control word, which the C library's conversions from and to text look at; 0: was not touched */
} FpMode;

#if defined(__x86_64__)
#include <xmmintrin.h>

enum { FP_FLAGS = 0x3f, FP_SSE_DEFAULT = 0x1f80, FP_X87_DEFAULT = 0x37f };

static inline FpMode fp_enter(void)
{
    FpMode before = {_mm_getcsr(), 0};
    if (__builtin_expect((before.sse & ~(uint32_t)FP_FLAGS) != FP_SSE_DEFAULT, 0)) {
        const uint16_t x87 = FP_X87_DEFAULT;
        __asm__ volatile("fnstcw %0" : "=m"(before.x87));
        __asm__ volatile("fldcw %0" : : "m"(x87));
        _mm_setcsr(FP_SSE_DEFAULT);
    }
    return before;
}

static inline void fp_leave(FpMode before)
{
    if (_mm_getcsr() != before.sse)
        _mm_setcsr(before.sse);
    if (__builtin_expect(before.x87 != 0, 0))
        __asm__ volatile("fldcw %0" : : "m"(before.x87));
}
#else
static inline FpMode fp_enter(void) { return (FpMode){0, 0}; }
static inline void fp_leave(FpMode before) { (void)before; }
#endif

#endif
