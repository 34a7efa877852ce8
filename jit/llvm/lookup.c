/*
 * The scalar ops LOOKUP and ROW: one of a table's eight doubles in each lane; a row of four out of 64.
 *
 * On a CPU the table is a constant in registers, permuted by the index: with AVX-512 eight doubles at once; with AVX2, which permutes
 * words, the lower and the upper halves of eight doubles, which are then put together. These instructions look at the index's lowest bits
 * only. Anywhere else, a GPU too, it is a tree of selects by those bits.
 *
 * The table of rows is a constant in memory (on a GPU in that for constants). A row is loaded whole for each lane; rows become columns in registers.
 */
#include "jit/llvm/build.h"

enum { CONSTANT_SPACE = 4, ROW_SHIFT = 5, ROW_BYTES = 1 << ROW_SHIFT }; /* the space is CUDA's */
_Static_assert(sizeof row_table[0] == ROW_BYTES, "");

/* Some elements of a and b in a row. */
static LV elements(Emit *e, LV a, LV b, const int *which, int n)
{
    LV at[2 * MAX_LANES];
    for (int i = 0; i < n; i++)
        at[i] = which[i] < 0 ? LLVMGetPoison(e->type[SC_I32]) : LLVMConstInt(e->type[SC_I32], (unsigned)which[i], 0);
    return LLVMBuildShuffleVector(e->b, a, b, LLVMConstVector(at, (unsigned)n), "");
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
        LV at = l_part(e, index, from, LOOKUP_ENTRIES);
        if (!wide) {
            all[n] = by_halves(e, table, at, each);
            continue;
        }
        LLVMTypeRef doubles = LLVMVectorType(e->type[SC_F64], LOOKUP_ENTRIES);
        LV entries = LLVMConstBitCast(table_bits(table, e->type[SC_I64], 0), doubles);
        all[n] = l_intrinsic(e, "llvm.x86.avx512.permvar.df.512", NULL, 0, (LV[]){entries, at}, 2);
    }
    return l_join(e, all, (unsigned)n);
}

/* The table of rows, once in a module. */
static LV rows_in_memory(Emit *e)
{
    static const char name[] = "rows";
    LV g = LLVMGetNamedGlobal(e->module, name);
    if (g)
        return g;
    LV at[ROW_COUNT * ROW_COLUMNS];
    for (int i = 0; i < ROW_COUNT * ROW_COLUMNS; i++)
        at[i] = LLVMConstReal(e->type[SC_F64], row_table[i / ROW_COLUMNS][i % ROW_COLUMNS]);
    LV all = LLVMConstArray2(e->type[SC_F64], at, ROW_COUNT * ROW_COLUMNS);
    g = LLVMAddGlobalInAddressSpace(e->module, LLVMTypeOf(all), name, e->cuda ? CONSTANT_SPACE : 0);
    LLVMSetInitializer(g, all);
    LLVMSetLinkage(g, LLVMInternalLinkage);
    LLVMSetGlobalConstant(g, 1);
    LLVMSetUnnamedAddress(g, LLVMGlobalUnnamedAddr);
    LLVMSetAlignment(g, ROW_BYTES);
    return g;
}

/* Of the row that begins at byte `offset` of the table, from a column on. */
static LV row_load(Emit *e, LLVMTypeRef type, LV offset, int column)
{
    LV at = LLVMBuildAdd(e->b, offset, LLVMConstInt(e->type[SC_I64], (unsigned)column * sizeof(double), 0), "");
    return l_load(e, type, LLVMBuildGEP2(e->b, e->type[SC_I8], rows_in_memory(e), &at, 1, ""), column ? sizeof(double) : ROW_BYTES);
}

static LV lane(Emit *e, LV vector, int i)
{
    return LLVMBuildExtractElement(e->b, vector, LLVMConstInt(e->type[SC_I32], (unsigned)i, 0), "");
}

/*
 * The columns of n rows, 4 or (two in a register) 8: as often as there are registers, elements of two at even or odd places are put side by side,
 * then pairs of those.
 *
 *      [r0 r2]  [r1 r3]       even: [r0c0 r1c0  r0c2 r1c2  r2c0 r3c0  r2c2 r3c2]
 *      [r4 r6]  [r5 r7]             [r4c0 r5c0  r4c2 r5c2  r6c0 r7c0  r6c2 r7c2]     c0: each first pair, c2: each second one
 */
static void columns_of(Emit *e, LV *rows, int n, LV *column)
{
    int which[MAX_LANES];
    if (n == 8)
        for (int i = 0; i < 4; i++) {
            int first = i / 2 * 4 + i % 2;
            rows[i] = l_join(e, (LV[]){rows[first], rows[first + 2]}, 2);
        }
    for (int odd = 0; odd < 2; odd++) {
        LV half[2];
        for (int i = 0; i < n; i++)
            which[i] = i / 2 * 2 + odd + i % 2 * n;
        for (int k = 0; k < 2; k++)
            half[k] = elements(e, rows[2 * k], rows[2 * k + 1], which, n);
        for (int second = 0; second < 2; second++) {
            for (int i = 0; i < n; i++)
                which[i] = i / 2 * 4 + 2 * second + i % 2;
            column[2 * second + odd] = elements(e, half[0], half[1], which, n);
        }
    }
}

void l_row(Emit *e, LV index, LV column[ROW_COLUMNS])
{
    bool vector = LLVMGetTypeKind(LLVMTypeOf(index)) == LLVMVectorTypeKind;
    LLVMTypeRef f64 = e->type[SC_F64];
    LV offset = LLVMBuildAnd(e->b, index, l_const(e, SC_I64, ROW_COUNT - 1, vector), "");
    offset = LLVMBuildShl(e->b, offset, l_const(e, SC_I64, ROW_SHIFT, vector), "");
    for (int c = 0; c < ROW_COLUMNS && !vector; c++)
        column[c] = row_load(e, f64, offset, c);
    if (!vector)
        return;
    int each = e->target->scalar_lanes || e->lanes < 4 ? 1 : e->bits == 512 && e->lanes >= 8 ? 8 : 4;
    LV parts[ROW_COLUMNS][MAX_LANES];
    for (int from = 0; from < e->lanes; from += each) {
        LV rows[8], of[ROW_COLUMNS];
        for (int i = 0; i < each && each > 1; i++)
            rows[i] = row_load(e, LLVMVectorType(f64, ROW_COLUMNS), lane(e, offset, from + i), 0);
        if (each > 1)
            columns_of(e, rows, each, of);
        for (int c = 0; c < ROW_COLUMNS; c++)
            parts[c][from / each] = each > 1 ? of[c] : row_load(e, f64, lane(e, offset, from), c);
    }
    for (int c = 0; c < ROW_COLUMNS; c++) {
        column[c] = each > 1 ? l_join(e, parts[c], (unsigned)(e->lanes / each)) : LLVMGetPoison(l_vec(e, f64));
        for (int i = 0; i < e->lanes && each == 1; i++)
            column[c] = LLVMBuildInsertElement(e->b, column[c], parts[c][i], LLVMConstInt(e->type[SC_I32], (unsigned)i, 0), "");
    }
}
