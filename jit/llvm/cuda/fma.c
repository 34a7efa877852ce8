/*
 * Contractions on CUDA by fused multiply-adds: every dtype, and in strict mode all that there are. The walk is cuda/tiles.c.
 *
 * A thread has m x n sums. Its rows and columns come in units of 16 bytes, so that slices, which lie as [k][row] and
 * [k][column] in the accumulator's dtype, are read 16 bytes at a time. A warp is four units by eight, and the whole of it
 * again for each further unit of a thread:
 *
 *          columns  0..3   4..7 ...28..31 | 32..35 ...          lane  4 3 2 1 0 (bits)
 *     rows 0..3     lane 0 lane 1  4 ...  | lane 0 ...                | | | | +- column unit, bit 0
 *          4..7     lane 2 lane 3  6 ...  | lane 2 ...                | | | +--- row unit, bit 0
 *          8..11    lane 16 ...           |                           | +-+----- column unit, bits 1 and 2
 *          12..15   lane 18 ...           |                           +--------- row unit, bit 1
 *
 * Eight lanes in a row then read what two of them share or 128 bytes in a row: no bank twice, and two quarters of a warp
 * at once.
 *
 * Each sum is one chain of multiply-adds over k from +0, as everywhere: results equal the reference's bit for bit. No k
 * past the end is added (-0 + 0 is +0).
 */
#include "jit/llvm/cuda/tiles.h"

enum { UNITS_DOWN = 4, UNITS_ACROSS = 8 };

static int64_t at_most(int64_t n, int64_t most) { return n < most ? n : most; }

/* ---- multiplication ---- */

static int64_t unit(const Product *p, int s) { return at_most(p->fragments[s], MOST_BYTES / element_bytes(p)); }

/* From a thread's unit to its next one. */
static int64_t unit_step(const Product *p, int s) { return unit(p, s) * (s == ROWS ? UNITS_DOWN : UNITS_ACROSS); }

static LLVMTypeRef unit_type(const Product *p, int s)
{
    return unit(p, s) > 1 ? LLVMVectorType(p->element, (unsigned)unit(p, s)) : p->element;
}

static unsigned unit_bytes(const Product *p, int s) { return (unsigned)(unit(p, s) * element_bytes(p)); }

static LV factor(Emit *e, const Product *p, int s)
{
    DType in = (DType)e->k->inst.at[p->operand[s]].dtype;
    return val_vector(e, cast_emit(e, in, p->type, value(e, p->operand[s])));
}

/* Bits `from`... of the lane, `n` of them, moved to bit `to`. */
static LV lane_bits(Emit *e, const Product *p, int from, int n, int to)
{
    LV bits = l_mod(e, l_div(e, p->lane, l_i64(e, 1 << from)), l_i64(e, 1 << n));
    return l_mul(e, bits, l_i64(e, 1 << to));
}

static void place(Emit *e, Product *p)
{
    LV units[2] = {l_add(e, lane_bits(e, p, 1, 1, 0), lane_bits(e, p, 4, 1, 1)),
                   l_add(e, lane_bits(e, p, 0, 1, 0), lane_bits(e, p, 2, 2, 1))};
    for (int s = 0; s < 2; s++)
        p->place[s] = l_add(e, l_mul(e, p->warp[s], l_i64(e, p->of_warp[s])), l_mul(e, units[s], l_i64(e, unit(p, s))));
}

static LV element_of(Emit *e, LV v, int64_t i)
{
    bool vector = LLVMGetTypeKind(LLVMTypeOf(v)) == LLVMVectorTypeKind;
    return vector ? LLVMBuildExtractElement(e->b, v, const_i32(e, i), "") : v;
}

/* One k of the slices at `half`. */
static void multiply(Emit *e, const Product *p, LV half, LV k)
{
    LV slice[2] = {half, l_gep_bytes(e, half, l_i64(e, slice_bytes(p, ROWS)))}, x[2][MOST_SUMS];
    for (int s = 0; s < 2; s++)
        for (int64_t i = 0; i < p->fragments[s]; i += unit(p, s)) {
            LV at = l_add(e, p->place[s], l_mul(e, k, l_i64(e, slice_pitch(p, s))));
            at = l_add(e, at, l_i64(e, i / unit(p, s) * unit_step(p, s)));
            LV v = l_load(e, unit_type(p, s), l_gep(e, p->element, slice[s], at), unit_bytes(p, s));
            for (int64_t j = 0; j < unit(p, s); j++)
                x[s][i + j] = element_of(e, v, j);
        }
    for (int64_t i = 0; i < p->fragments[ROWS]; i++)
        for (int64_t j = 0; j < p->fragments[COLUMNS]; j++) {
            LV sum = p->sum[i * p->fragments[COLUMNS] + j];
            l_store(e, dot_step(e, p->acc, l_load(e, p->element, sum, 0), x[ROWS][i], x[COLUMNS][j]), sum, 0);
        }
}

static void slices(Emit *e, const Product *p, LV half, LV k0)
{
    LV left = l_sub(e, p->n_k, k0);
    int64_t n;
    bool whole = l_is_const(p->n_k, &n) && n % p->depth == 0;
    LLVMBasicBlockRef full = l_block(e, "slice"), part = whole ? NULL : l_block(e, "part"), join = l_block(e, "");
    if (whole)
        LLVMBuildBr(e->b, full);
    else
        LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSGE, left, l_i64(e, p->depth), ""), full, part);
    l_at(e, full);
    for (int64_t k = 0; k < p->depth; k++)
        multiply(e, p, half, l_i64(e, k));
    LLVMBuildBr(e->b, join);
    if (part) {
        l_at(e, part);
        Loop l = loop_begin(e, l_i64(e, 0), left, l_i64(e, 1), "k");
        multiply(e, p, half, l.iv);
        loop_end(e, &l);
        LLVMBuildBr(e->b, join);
    }
    l_at(e, join);
}

static void put(Emit *e, const Product *p, LV row, int64_t pitch)
{
    LV down = l_sub(e, p->place[ROWS], l_mul(e, p->warp[ROWS], l_i64(e, p->of_warp[ROWS])));
    LV base = l_add(e, l_add(e, row, l_mul(e, down, l_i64(e, pitch))), p->place[COLUMNS]);
    for (int64_t i = 0; i < p->fragments[ROWS]; i++)
        for (int64_t j = 0; j < p->fragments[COLUMNS]; j += unit(p, COLUMNS)) {
            LV v = LLVMGetPoison(unit_type(p, COLUMNS));
            for (int64_t x = 0; x < unit(p, COLUMNS); x++) {
                LV one = l_load(e, p->element, p->sum[i * p->fragments[COLUMNS] + j + x], 0);
                v = unit(p, COLUMNS) > 1 ? LLVMBuildInsertElement(e->b, v, one, const_i32(e, x), "") : one;
            }
            int64_t r = i / unit(p, ROWS) * unit_step(p, ROWS) + i % unit(p, ROWS);
            LV at = l_add(e, base, l_i64(e, r * pitch + j / unit(p, COLUMNS) * unit_step(p, COLUMNS)));
            l_store(e, v, l_gep(e, p->element, p->shared, at), unit_bytes(p, COLUMNS));
        }
}

/* ---- the plan ---- */

static const Multiply by_fma = {.factor = factor, .place = place, .slices = slices, .put = put};

/* A short integer is summed up in 32 bits: the low ones are the same. */
static DType wide(DType acc) { return dtype_bytes(acc) < 4 ? DT_I32 : acc; }

bool plan_fma(Emit *e, Product *p)
{
    if (e->n_r != 1 || (p->axis[ROWS] == NO_AXIS && p->axis[COLUMNS] == NO_AXIS))
        return false;
    p->how = &by_fma;
    p->type = p->acc = wide(dtype_accumulator((DType)e->k->inst.at[p->reduce].dtype));
    p->element = l_type(e, p->acc, false);
    p->raw = p->one_by_one = true;
    tiles_choose(e, p, false);
    for (int s = 0; s < 2; s++) {
        p->fragments[s] = p->of_warp[s] / (s == ROWS ? UNITS_DOWN : UNITS_ACROSS);
        p->pad[s] = MOST_BYTES / element_bytes(p);
    }
    return true;
}
