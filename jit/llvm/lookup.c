/*
 * The scalar op LOOKUP: one of a table's eight doubles in each lane.
 *
 * On a CPU the table is a constant in registers, permuted by the index: with AVX-512 eight doubles at once; with AVX2, which permutes
 * words, the lower and the upper halves of eight doubles, which are then put together. These instructions look at the index's lowest bits
 * only. Anywhere else, a GPU too, it is a tree of selects by those bits.
 */
#include "jit/llvm/build.h"

/* Some elements of a and b in a row. */
static LV elements(Emit *e, LV a, LV b, const int *which, int n)
{
    LV at[2 * MAX_LANES];
    for (int i = 0; i < n; i++)
        at[i] = which[i] < 0 ? LLVMGetPoison(e->type[SC_I32]) : LLVMConstInt(e->type[SC_I32], (unsigned)which[i], 0);
    return LLVMBuildShuffleVector(e->b, a, b, LLVMConstVector(at, (unsigned)n), "");
}

/* n elements of v from `from` on; what v does not have is undefined. */
static LV part(Emit *e, LV v, int from, int n)
{
    int which[MAX_LANES], all = (int)LLVMGetVectorSize(LLVMTypeOf(v));
    for (int i = 0; i < n; i++)
        which[i] = from + i < all ? from + i : -1;
    return n == all ? v : elements(e, v, LLVMGetPoison(LLVMTypeOf(v)), which, n);
}

/* Parts of `each` elements, a power of two of them, as one vector. */
static LV joined(Emit *e, LV *parts, int n, int each)
{
    int which[MAX_LANES];
    for (; n > 1; n /= 2, each *= 2) {
        for (int i = 0; i < 2 * each; i++)
            which[i] = i;
        for (int k = 0; k < n / 2; k++)
            parts[k] = elements(e, parts[2 * k], parts[2 * k + 1], which, 2 * each);
    }
    return parts[0];
}

/* The table as a vector of integers of `type`: of each entry's bits those from `shift` on. */
static LV table_bits(const double *table, LLVMTypeRef type, int shift)
{
    LV at[LOOKUP_ENTRIES];
    for (int i = 0; i < LOOKUP_ENTRIES; i++) {
        uint64_t bits;
        memcpy(&bits, &table[i], sizeof bits);
        at[i] = LLVMConstInt(type, bits >> shift, 0);
    }
    return LLVMConstVector(at, LOOKUP_ENTRIES);
}

/*
 * Up to eight doubles by as many words of the index. Eight are put together within each half of a register, so the index is
 * permuted before, which both halves and other tables share.
 */
static LV by_halves(Emit *e, const double *table, LV index, int n)
{
    static const int order[LOOKUP_ENTRIES] = {0, 1, 4, 5, 2, 3, 6, 7};
    bool all = n == LOOKUP_ENTRIES;
    LLVMTypeRef i32 = e->type[SC_I32];
    int which[2 * LOOKUP_ENTRIES];
    for (int i = 0; i < n; i++) {
        which[2 * i] = all ? order[i] : i;
        which[2 * i + 1] = LOOKUP_ENTRIES + which[2 * i];
    }
    if (all)
        index = elements(e, index, LLVMGetPoison(LLVMTypeOf(index)), order, n);
    LV half[2];
    for (int k = 0; k < 2; k++)
        half[k] = l_intrinsic(e, "llvm.x86.avx2.permd", NULL, 0, (LV[]){table_bits(table, i32, 32 * k), index}, 2);
    return LLVMBuildBitCast(e->b, elements(e, half[0], half[1], which, 2 * n), LLVMVectorType(e->type[SC_F64], (unsigned)n), "");
}

static LV by_selects(Emit *e, const double *table, LV index, bool vec)
{
    LV at[LOOKUP_ENTRIES];
    for (int i = 0; i < LOOKUP_ENTRIES; i++) {
        uint64_t bits;
        memcpy(&bits, &table[i], sizeof bits);
        at[i] = l_const(e, SC_F64, bits, vec);
    }
    for (int n = LOOKUP_ENTRIES / 2, bit = 1; n; n /= 2, bit *= 2) {
        LV is_set = LLVMBuildAnd(e->b, index, l_const(e, SC_I32, (uint64_t)bit, vec), "");
        is_set = LLVMBuildICmp(e->b, LLVMIntNE, is_set, LLVMConstNull(LLVMTypeOf(index)), "");
        for (int i = 0; i < n; i++)
            at[i] = LLVMBuildSelect(e->b, is_set, at[2 * i + 1], at[2 * i], "");
    }
    return at[0];
}

LV l_lookup(Emit *e, const double *table, LV index, bool vec)
{
    bool wide = e->bits == 512;
    if (!vec || e->target->scalar_lanes || e->lanes < (wide ? LOOKUP_ENTRIES : 4))
        return by_selects(e, table, index, vec);
    LV all[MAX_LANES];
    int n = 0, each = e->lanes < LOOKUP_ENTRIES ? e->lanes : LOOKUP_ENTRIES;
    if (wide)
        index = LLVMBuildZExt(e->b, index, l_vec(e, e->type[SC_I64]), "");
    for (int from = 0; from < e->lanes; from += each, n++) {
        LV at = part(e, index, from, LOOKUP_ENTRIES);
        if (!wide) {
            all[n] = by_halves(e, table, at, each);
            continue;
        }
        LLVMTypeRef doubles = LLVMVectorType(e->type[SC_F64], LOOKUP_ENTRIES);
        LV entries = LLVMConstBitCast(table_bits(table, e->type[SC_I64], 0), doubles);
        all[n] = l_intrinsic(e, "llvm.x86.avx512.permvar.df.512", NULL, 0, (LV[]){entries, at}, 2);
    }
    return joined(e, all, n, each);
}
