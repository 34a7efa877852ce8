/*
 * Scalar ops of conversions that take vector instructions of their own on a CPU: STICKY, F32TOBF16. Anywhere else, a GPU too, they are integer
 * arithmetic. All give the same bits.
 */
#include "jit/llvm/build.h"
#include "jit/target.h"

enum { BHALF_SHIFT = 16, WORD = 32 };

/* Words of one or two registers: the sign instruction makes 0 of 2^31 where a word is 0, and leaves it elsewhere. */
static LV sticky_by_sign(Emit *e, LV v, int lanes)
{
    LLVMTypeRef words = LLVMVectorType(e->type[SC_I32], 2 * (unsigned)lanes);
    LV bit[2 * MAX_LANES], at[2 * MAX_LANES], w = LLVMBuildBitCast(e->b, v, words, "");
    for (int i = 0; i < 2 * lanes; i++) {
        bit[i] = LLVMConstInt(e->type[SC_I32], UINT32_C(1) << (WORD - 1), 0);
        at[i] = LLVMConstInt(e->type[SC_I32], (unsigned)(i % 2 ? 2 * lanes + i : i), 0);
    }
    const char *sign = lanes == 4 ? "llvm.x86.avx2.psign.d" : "llvm.x86.ssse3.psign.d.128";
    LV low = l_intrinsic(e, sign, NULL, 0, (LV[]){LLVMConstVector(bit, 2 * (unsigned)lanes), w}, 2);
    LV r = LLVMBuildShuffleVector(e->b, low, w, LLVMConstVector(at, 2 * (unsigned)lanes), "");
    return LLVMBuildBitCast(e->b, r, LLVMTypeOf(v), "");
}

/* A test of the lower words and a move under its mask. */
static LV sticky_by_mask(Emit *e, LV v)
{
    unsigned n = 2 * (unsigned)e->lanes;
    LLVMTypeRef words = LLVMVectorType(e->type[SC_I32], n);
    LV bit[2 * MAX_LANES], lower[2 * MAX_LANES], w = LLVMBuildBitCast(e->b, v, words, "");
    for (unsigned i = 0; i < n; i++) {
        bit[i] = LLVMConstInt(e->type[SC_I32], UINT32_C(1) << (WORD - 1), 0);
        lower[i] = LLVMConstInt(e->type[SC_I32], i % 2 ? 0 : UINT32_MAX, 0);
    }
    LV lost = LLVMBuildICmp(e->b, LLVMIntNE, LLVMBuildAnd(e->b, w, LLVMConstVector(lower, n), ""), LLVMConstNull(words), "");
    return LLVMBuildBitCast(e->b, LLVMBuildSelect(e->b, lost, LLVMConstVector(bit, n), w, ""), LLVMTypeOf(v), "");
}

LV l_sticky(Emit *e, LV v, bool vec)
{
    if (vec && e->lanes > 1 && !e->target->scalar_lanes) {
        if (e->bits == 512)
            return sticky_by_mask(e, v);
        LV all[MAX_LANES];
        int n = 0, each = e->bits == 128 || e->lanes < 4 ? 2 : 4;
        for (int from = 0; from < e->lanes; from += each, n++)
            all[n] = sticky_by_sign(e, l_part(e, v, from, each), each);
        return l_join(e, all, (unsigned)n);
    }
    LV lower = l_const(e, SC_I64, UINT32_MAX, vec), bit = l_const(e, SC_I64, UINT64_C(1) << (WORD - 1), vec);
    LV lost = LLVMBuildAnd(e->b, v, lower, ""), zero = LLVMConstNull(LLVMTypeOf(v));
    LV is_exact = LLVMBuildICmp(e->b, LLVMIntEQ, lost, zero, "");
    return LLVMBuildOr(e->b, LLVMBuildXor(e->b, v, lost, ""), LLVMBuildSelect(e->b, is_exact, zero, bit, ""), "");
}

/* To nearest even at bit 16, by adding just under half of the last place, plus its parity. */
static LV bhalf_by_adding(Emit *e, LV v, bool vec)
{
    LLVMTypeRef i32 = vec ? l_vec(e, e->type[SC_I32]) : e->type[SC_I32], i16 = vec ? l_vec(e, e->type[SC_I16]) : e->type[SC_I16];
    LV i = LLVMBuildBitCast(e->b, v, i32, ""), shift = l_const(e, SC_I32, BHALF_SHIFT, vec);
    LV parity = LLVMBuildAnd(e->b, LLVMBuildLShr(e->b, i, shift, ""), l_const(e, SC_I32, 1, vec), "");
    LV rounded = LLVMBuildAdd(e->b, i, LLVMBuildAdd(e->b, parity, l_const(e, SC_I32, 0x7fff, vec), ""), "");
    return LLVMBuildTrunc(e->b, LLVMBuildLShr(e->b, rounded, shift, ""), i16, "");
}

/* AVX512-BF16 takes subnormal numbers for 0: so they are none here. */
LV l_float_to_bhalf(Emit *e, LV v, bool vec)
{
    enum { REGISTER = 16 };
    if (!vec || e->target->scalar_lanes || e->bits != 512 || e->lanes < REGISTER || target_order(e->options) != ORDER_HOST_PAIRS)
        return bhalf_by_adding(e, v, vec);
    LV all[MAX_LANES];
    int n = 0, each = e->lanes < 2 * REGISTER ? REGISTER : 2 * REGISTER;
    for (int from = 0; from < e->lanes; from += each, n++) {
        LV low = l_part(e, v, from, REGISTER);
        LV r = each == REGISTER ? l_intrinsic(e, "llvm.x86.avx512bf16.cvtneps2bf16.512", NULL, 0, &low, 1)
                                : l_intrinsic(e, "llvm.x86.avx512bf16.cvtne2ps2bf16.512", NULL, 0,
                                              (LV[]){l_part(e, v, from + REGISTER, REGISTER), low}, 2);
        all[n] = LLVMBuildBitCast(e->b, r, LLVMVectorType(e->type[SC_I16], (unsigned)each), "");
    }
    return l_join(e, all, (unsigned)n);
}
