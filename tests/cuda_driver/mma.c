// Matrix fragments: ldmatrix, stmatrix, mma.sync.
//
// All shapes follow one pattern. With g = lane / 4, t = lane % 4 and n elements in a register:
//
//   A  register r, element j:   row g + 8 * (r % 2), column (r / 2) * 4n + t * n + j
//   B  register r, element j:   row r * 4n + t * n + j, column g
//   C, D  value i:              row g + 8 * (i / 2), column 2t + i % 2      (f16: value i is half i % 2 of register i / 2)
//
// Products are exact; a dot product is summed in f64 and rounded once with the accumulator. Devices round differently and do
// not say how, so tests allow for that; with the setting rough=on, f32 sums are cut off after each addition and go from the
// last product to the first.
#include "tests/cuda_driver/driver.h"
#include "tests/cuda_driver/exec.h"

#include <string.h>

static const struct Shape {
    int modifier;
    unsigned m, n, k;
} shapes[] = {{M_SHAPE_m8n8k4, 8, 8, 4},
              {M_SHAPE_m16n8k4, 16, 8, 4},
              {M_SHAPE_m16n8k8, 16, 8, 8},
              {M_SHAPE_m16n8k16, 16, 8, 16},
              {M_SHAPE_m16n8k32, 16, 8, 32}};

// The combinations of types, and the shapes that each has.
static const struct Combination {
    PtxType d, a, b, c;
    int shapes[3];
} combinations[] = {
    {T_F32, T_F16, T_F16, T_F32, {M_SHAPE_m16n8k8, M_SHAPE_m16n8k16}},
    {T_F16, T_F16, T_F16, T_F16, {M_SHAPE_m16n8k8, M_SHAPE_m16n8k16}},
    {T_F32, T_BF16, T_BF16, T_F32, {M_SHAPE_m16n8k8, M_SHAPE_m16n8k16}},
    {T_F32, T_TF32, T_TF32, T_F32, {M_SHAPE_m16n8k4, M_SHAPE_m16n8k8}},
    {T_S32, T_S8, T_S8, T_S32, {M_SHAPE_m16n8k16, M_SHAPE_m16n8k32}},
    {T_S32, T_U8, T_U8, T_S32, {M_SHAPE_m16n8k16, M_SHAPE_m16n8k32}},
    {T_S32, T_S8, T_U8, T_S32, {M_SHAPE_m16n8k16, M_SHAPE_m16n8k32}},
    {T_S32, T_U8, T_S8, T_S32, {M_SHAPE_m16n8k16, M_SHAPE_m16n8k32}},
    {T_F64, T_F64, T_F64, T_F64, {M_SHAPE_m8n8k4}},
};

static const struct Shape *shape_of(const Inst *in)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (shapes[i].modifier == in->mod[C_SHAPE])
            return &shapes[i];
    return NULL;
}

static unsigned register_bits(PtxType type) { return type == T_F64 ? 64 : 32; }

static unsigned per_register(PtxType type) { return register_bits(type) / ptx_types[type].bits; }

static unsigned matrices(const Inst *in)
{
    return in->mod[C_LAYOUT] == M_LAYOUT_x1 ? 1 : in->mod[C_LAYOUT] == M_LAYOUT_x2 ? 2 : in->mod[C_LAYOUT] == M_LAYOUT_x4 ? 4 : 0;
}

const char *mma_problem(const Inst *in)
{
    if (in->op == OP_LDMATRIX || in->op == OP_STMATRIX) {
        unsigned vector = in->op == OP_LDMATRIX ? 0 : 1;
        if (in->mod[C_SHAPE] != M_SHAPE_m8n8 || matrices(in) == 0)
            return "shape or number of matrices";
        return in->count[vector] == matrices(in) ? NULL : "number of registers";
    }
    const struct Shape *s = shape_of(in);
    if (!s || in->types != 4)
        return "shape or types";
    for (size_t i = 0; i < sizeof combinations / sizeof *combinations; i++) {
        const struct Combination *c = &combinations[i];
        if (c->d != in->type[0] || c->a != in->type[1] || c->b != in->type[2] || c->c != in->type[3])
            continue;
        bool known = false;
        for (size_t j = 0; j < sizeof c->shapes / sizeof *c->shapes; j++)
            known |= c->shapes[j] == s->modifier;
        if (!known)
            return "this shape with these types";
        unsigned want[4] = {s->m * s->n / LANES / per_register(c->d), s->m * s->k / LANES / per_register(c->a),
                            s->k * s->n / LANES / per_register(c->b), s->m * s->n / LANES / per_register(c->c)};
        for (int j = 0; j < 4; j++)
            if (in->count[j] != want[j])
                return "number of registers";
        return NULL;
    }
    return "these types";
}

static void whole_warp(Warp *w, const Inst *in, uint32_t lanes)
{
    if (lanes != UINT32_MAX)
        exec_violation(w, in, __builtin_ctz(lanes), CUDA_ERROR_LAUNCH_FAILED,
                       "matrix instruction with lanes 0x%08x only: all 32 are needed", lanes);
}

// ---- mma ----

static double number(PtxType type, uint64_t bits)
{
    switch (type) {
    case T_S8: return (double)(int8_t)bits;
    case T_U8: return (double)(uint8_t)bits;
    case T_S32: return (double)(int32_t)bits;
    case T_TF32: // the low bits of the register are not looked at
        return float_widen(T_F32, bits & 0xffffe000u);
    default: return float_widen(type, bits);
    }
}

static uint64_t element(const Warp *w, const Inst *in, int operand, unsigned r, unsigned j, unsigned lane, PtxType type)
{
    uint64_t v = w->slot[in->arg[in->first[operand] + r].slot][lane];
    return per_register(type) == 1 ? v : v >> (j * ptx_types[type].bits) & ((UINT64_C(1) << ptx_types[type].bits) - 1);
}

static uint64_t accumulated(const Inst *in, double sum)
{
    if (in->type[0] != T_S32)
        return float_narrow((PtxType)in->type[0], sum, M_ROUND_rn);
    if (in->flags & FLAG(satfinite))
        sum = sum > 2147483647.0 ? 2147483647.0 : sum < -2147483648.0 ? -2147483648.0 : sum;
    return (uint32_t)(int64_t)sum; // at most 2^31 + 32 * 2^16: exact
}

static void act_mma(Warp *w, const Inst *in, uint32_t lanes)
{
    whole_warp(w, in, lanes);
    const struct Shape *s = shape_of(in);
    double a[16][32], b[32][8], c[16][8];
    uint64_t d[16][8];
    PtxType ta = (PtxType)in->type[1], tb = (PtxType)in->type[2], tc = (PtxType)in->type[3], td = (PtxType)in->type[0];
    for (unsigned lane = 0; lane < LANES; lane++) {
        unsigned g = lane / 4, t = lane % 4, n = per_register(ta);
        unsigned halves = s->m / 8; // registers for one stretch of columns
        for (unsigned r = 0; r < in->count[1]; r++)
            for (unsigned j = 0; j < n; j++)
                a[g + 8 * (r % halves)][r / halves * 4 * n + t * n + j] = number(ta, element(w, in, 1, r, j, lane, ta));
        n = per_register(tb);
        for (unsigned r = 0; r < in->count[2]; r++)
            for (unsigned j = 0; j < n; j++)
                b[r * 4 * n + t * n + j][g] = number(tb, element(w, in, 2, r, j, lane, tb));
        n = per_register(tc);
        for (unsigned i = 0; i < in->count[3] * n; i++)
            c[g + 8 * (i / 2)][2 * t + i % 2] = number(tc, element(w, in, 3, i / n, i % n, lane, tc));
    }
    for (unsigned i = 0; i < s->m; i++)
        for (unsigned j = 0; j < s->n; j++) {
            double sum = 0;
            for (unsigned k = 0; k < s->k; k++)
                sum += a[i][k] * b[k][j];
            d[i][j] = accumulated(in, sum + c[i][j]);
            if (settings.rough && td == T_F32) {
                sum = c[i][j];
                for (unsigned k = s->k; k-- > 0;)
                    sum = float_widen(T_F32, float_narrow(T_F32, sum + a[i][k] * b[k][j], M_ROUND_rz));
                d[i][j] = float_narrow(T_F32, sum, M_ROUND_rn);
            }
        }
    for (unsigned lane = 0; lane < LANES; lane++) {
        unsigned g = lane / 4, t = lane % 4, n = per_register(td);
        for (unsigned r = 0; r < in->count[0]; r++) {
            uint64_t v = 0;
            for (unsigned j = 0; j < n; j++) {
                unsigned i = r * n + j;
                v |= d[g + 8 * (i / 2)][2 * t + i % 2] << (j * ptx_types[td].bits);
            }
            w->slot[in->arg[in->first[0] + r].slot][lane] = v;
        }
    }
}

RUN(run_mma) { exec_collective(w, in, -1, act_mma); }

// ---- ldmatrix, stmatrix: 8 x 8 matrices of 16 bits; lane i gives the address of row i % 8 of matrix i / 8 ----

static uint64_t row_address(const Warp *w, const Inst *in, int operand, unsigned lane)
{
    const Arg *arg = &in->arg[in->first[operand]];
    return (arg->slot == NO_SLOT ? 0 : w->slot[arg->slot][lane]) + (uint64_t)arg->offset;
}

// Which element of a matrix is half j of a lane's register?
static void place(const Inst *in, unsigned lane, unsigned j, unsigned *row, unsigned *column)
{
    unsigned g = lane / 4, c = 2 * (lane % 4) + j;
    *row = in->flags & FLAG(trans) ? c : g;
    *column = in->flags & FLAG(trans) ? g : c;
}

static Space matrix_space(const Inst *in) { return exec_space(in) == SPACE_GENERIC ? SPACE_GENERIC : SPACE_SHARED; }

static void act_ldmatrix(Warp *w, const Inst *in, uint32_t lanes)
{
    whole_warp(w, in, lanes);
    uint32_t fresh[4][LANES] = {0};
    for (unsigned m = 0; m < matrices(in); m++) {
        uint16_t value[8][8];
        for (unsigned r = 0; r < 8; r++)
            memcpy(value[r], exec_access(w, in, 8 * m + r, matrix_space(in), row_address(w, in, 1, 8 * m + r), 16, ACCESS_READ, NULL), 16);
        for (unsigned lane = 0; lane < LANES; lane++)
            for (unsigned j = 0; j < 2; j++) {
                unsigned row, column;
                place(in, lane, j, &row, &column);
                fresh[m][lane] |= (uint32_t)value[row][column] << (16 * j);
            }
    }
    for (unsigned m = 0; m < matrices(in); m++) // after all addresses were read
        for (unsigned lane = 0; lane < LANES; lane++)
            w->slot[in->arg[in->first[0] + m].slot][lane] = fresh[m][lane];
}

RUN(run_ldmatrix) { exec_collective(w, in, -1, act_ldmatrix); }

static void act_stmatrix(Warp *w, const Inst *in, uint32_t lanes)
{
    whole_warp(w, in, lanes);
    for (unsigned m = 0; m < matrices(in); m++) {
        uint16_t value[8][8];
        for (unsigned lane = 0; lane < LANES; lane++)
            for (unsigned j = 0; j < 2; j++) {
                unsigned row, column;
                place(in, lane, j, &row, &column);
                value[row][column] = (uint16_t)(w->slot[in->arg[in->first[1] + m].slot][lane] >> (16 * j));
            }
        for (unsigned r = 0; r < 8; r++)
            memcpy(exec_access(w, in, 8 * m + r, matrix_space(in), row_address(w, in, 0, 8 * m + r), 16, ACCESS_WRITE, value[r]), value[r],
                   16);
    }
}

RUN(run_stmatrix) { exec_collective(w, in, -1, act_stmatrix); }
