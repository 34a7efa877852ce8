// Integer and bit instructions, one lane at a time. Values come zero-extended from their slots; what an eval returns is cut
// to the result's bits by its caller.
#include "tests/cuda_driver/exec.h"

#include <fenv.h>
#include <string.h>

static int64_t sign_extend(uint64_t v, unsigned bits) { return bits >= 64 ? (int64_t)v : (int64_t)(v << (64 - bits)) >> (64 - bits); }

static uint64_t low_bits(unsigned bits) { return bits >= 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1; }

#define S(v) sign_extend(v, in->bits)
#define EVAL(name, ...)                                                                         \
    static uint64_t eval_##name(const Inst *in, uint64_t a, uint64_t b, uint64_t c, uint64_t d) \
    {                                                                                           \
        (void)in, (void)a, (void)b, (void)c, (void)d;                                           \
        __VA_ARGS__                                                                             \
    }

// .sat, of s32 only: the nearest value that fits.
static uint64_t saturated(int64_t v) { return (uint64_t)(v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : v); }

EVAL(add, return in->flags & FLAG(sat) ? saturated(S(a) + S(b)) : a + b;)
EVAL(sub, return in->flags & FLAG(sat) ? saturated(S(a) - S(b)) : a - b;)

static uint64_t product(const Inst *in, uint64_t a, uint64_t b)
{
    unsigned __int128 p = in->is_signed ? (unsigned __int128)((__int128)S(a) * S(b)) : (unsigned __int128)a * b;
    return (uint64_t)(in->mod[C_WIDTH] == M_WIDTH_hi ? p >> in->bits : p);
}

EVAL(mul, return product(in, a, b);)
EVAL(mad, return product(in, a, b) + c;)
EVAL(mul24, { // of the lower 24 bits of each
    int64_t x = in->is_signed ? sign_extend(a, 24) : (int64_t)(a & 0xffffff);
    int64_t y = in->is_signed ? sign_extend(b, 24) : (int64_t)(b & 0xffffff);
    return (uint64_t)(x * y) >> (in->mod[C_WIDTH] == M_WIDTH_hi ? 16 : 0);
})
// Division by zero has no defined result; all ones is what devices give.
EVAL(div_u, return b ? a / b : UINT64_MAX;)
EVAL(div_s, return S(b) == 0 ? UINT64_MAX : S(b) == -1 ? 0 - a : (uint64_t)(S(a) / S(b));)
EVAL(rem_u, return b ? a % b : a;)
EVAL(rem_s, return S(b) == 0 ? a : S(b) == -1 ? 0 : (uint64_t)(S(a) % S(b));)
EVAL(abs, return S(a) < 0 ? 0 - a : a;)
EVAL(neg, return 0 - a;)
EVAL(min_u, return a < b ? a : b;)
EVAL(min_s, return S(a) < S(b) ? a : b;)
EVAL(max_u, return a > b ? a : b;)
EVAL(max_s, return S(a) > S(b) ? a : b;)
// add, min, max of two numbers of 16 bits in one register.
EVAL(pair, {
    uint64_t r = 0;
    for (unsigned at = 0; at < 32; at += 16) {
        uint64_t x = a >> at & 0xffff, y = b >> at & 0xffff, flip = in->is_signed ? 0x8000 : 0;
        bool less = (x ^ flip) < (y ^ flip);
        r |= ((in->op == OP_ADD ? x + y : less == (in->op == OP_MIN) ? x : y) & 0xffff) << at;
    }
    return r;
})
EVAL(sad_u, return c + (a < b ? b - a : a - b);)
EVAL(sad_s, return c + (S(a) < S(b) ? b - a : a - b);)
EVAL(and, return a & b;)
EVAL(or, return a | b;)
EVAL(xor, return a ^ b;)
EVAL(not, return ~a;)
EVAL(cnot, return a == 0;)
EVAL(lop3, {
    uint64_t r = 0;
    for (unsigned i = 0; i < 8; i++) // bit i of the table: the result where the bits of a, b, c are those of i
        if (d >> i & 1)
            r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return r;
})
EVAL(shl, return b >= in->bits ? 0 : a << b;)
EVAL(shr_u, return b >= in->bits ? 0 : a >> b;)
EVAL(shr_s, return (uint64_t)(S(a) >> (b >= in->bits ? in->bits - 1u : b));)
EVAL(shf, { // a is the lower half of the pair
    uint64_t both = b << 32 | (uint32_t)a;
    unsigned n = (unsigned)(in->mod[C_SHIFT] == M_SHIFT_wrap ? c & 31 : c > 32 ? 32 : c);
    if (in->mod[C_DIRECTION] == M_DIRECTION_l)
        return n ? both >> (32 - n) : b;
    return both >> n;
})

static uint64_t extract(const Inst *in, uint64_t a, uint64_t position, uint64_t length)
{
    unsigned at = (unsigned)(position & 0xff), n = (unsigned)(length & 0xff), bits = in->bits;
    uint64_t field = at < bits ? a >> at & low_bits(n) : 0;
    if (!in->is_signed || n == 0)
        return n == 0 ? 0 : field;
    unsigned top = at + n - 1 < bits - 1u ? at + n - 1 : bits - 1u; // the bit that fills the rest
    unsigned got = top >= at ? top - at + 1 : 0;
    if (n >= bits && at == 0)
        return field;
    return a >> top & 1 ? field | ~low_bits(got) : field;
}

EVAL(bfe_u, return extract(in, a, b, c);)
EVAL(bfe_s, return extract(in, a, b, c);)
EVAL(bfi, { // the lower d bits of a into b at c
    unsigned at = (unsigned)(c & 0xff), n = (unsigned)(d & 0xff);
    uint64_t field = at < in->bits ? low_bits(n) << at : 0;
    return n == 0 ? b : (b & ~field) | (at < in->bits ? a << at & field : 0);
})
EVAL(brev, {
    uint64_t r = 0;
    for (unsigned i = 0; i < in->bits; i++)
        r |= (a >> i & 1) << (in->bits - 1u - i);
    return r;
})
EVAL(popc, return (uint64_t)__builtin_popcountll(a);)
EVAL(clz, return a ? (uint64_t)(__builtin_clzll(a) - (64 - in->bits)) : in->bits;)

static uint64_t find_bit(const Inst *in, uint64_t a)
{
    if (a == 0)
        return UINT32_MAX;
    unsigned top = 63u - (unsigned)__builtin_clzll(a);
    return in->flags & FLAG(shiftamt) ? in->bits - 1u - top : top;
}

EVAL(bfind_u, return find_bit(in, a);)
EVAL(bfind_s, return find_bit(in, S(a) < 0 ? ~a & low_bits(in->bits) : a);)

static uint64_t pick_byte(uint64_t both, uint64_t selector)
{
    uint64_t byte = both >> (8 * (selector & 7)) & 0xff;
    return selector & 8 ? (byte & 0x80 ? 0xff : 0) : byte; // bit 3: the sign, eight times
}

EVAL(prmt, {
    uint64_t both = b << 32 | (uint32_t)a;
    uint64_t r = 0;
    unsigned s = (unsigned)c & 3;
    for (unsigned i = 0; i < 4; i++) {
        unsigned from;
        switch (in->mod[C_PRMT]) {
        case M_ABSENT: r |= pick_byte(both, c >> (4 * i)) << (8 * i); continue;
        case M_PRMT_f4e: from = s + i; break;
        case M_PRMT_b4e: from = (8 + s - i) & 7; break;
        case M_PRMT_rc8: from = s; break;
        case M_PRMT_ecl: from = i > s ? i : s; break;
        case M_PRMT_ecr: from = i < s ? i : s; break;
        default: // rc16
            from = (s & 1) * 2 + (i & 1);
            break;
        }
        r |= pick_byte(both, from) << (8 * i);
    }
    return r;
})

static unsigned count_of(const Inst *in, uint64_t n) { return (unsigned)(in->mod[C_SHIFT] == M_SHIFT_wrap ? n & 31 : n > 32 ? 32 : n); }

EVAL(szext_u, return a & low_bits(count_of(in, b));)
EVAL(szext_s, {
    unsigned n = count_of(in, b);
    return n ? (uint64_t)sign_extend(a, n) : 0;
})
EVAL(bmsk, { // b ones from bit a on
    unsigned at = count_of(in, a);
    return at >= 32 ? 0 : low_bits(count_of(in, b)) << at;
})
EVAL(dp4a, {
    bool sa = ptx_types[in->type[0]].cls == 's';
    bool sb = ptx_types[in->type[in->types > 1 ? 1 : 0]].cls == 's';
    int64_t sum = 0;
    for (unsigned i = 0; i < 32; i += 8) {
        int64_t x = sa ? (int8_t)(a >> i) : (int64_t)(a >> i & 0xff);
        int64_t y = sb ? (int8_t)(b >> i) : (int64_t)(b >> i & 0xff);
        sum += x * y;
    }
    return c + (uint64_t)sum;
})
EVAL(selp, return c ? a : b;)
EVAL(slct, { // by the sign of c; -0 counts as not negative
    PtxType t = (PtxType)in->type[1];
    if (t == T_F32)
        return c & 0x80000000u && c << 1 & 0xffffffffu && (c & 0x7fffffffu) <= 0x7f800000u ? b : a;
    return c & 0x80000000u ? b : a;
})

#define eval_none ((Eval)0)
static const struct IntEvals {
    Eval u, s;
} evals[OP_COUNT] = {
#define ALU(name, text, operands, classes, types, u, s, f) [OP_##name] = {eval_##u, eval_##s},
#include "tests/cuda_driver/ptx_ops.def"
};

Eval float_eval(PtxOp op, PtxType type);

Eval exec_eval(PtxOp op, PtxType type)
{
    if (op == OP_SELP || op == OP_SLCT)
        return evals[op].u;
    if (type == T_U16X2 || type == T_S16X2)
        return op == OP_ADD || op == OP_MIN || op == OP_MAX ? eval_pair : NULL;
    switch (ptx_types[type].cls) {
    case 'f': return float_eval(op, type);
    case 's': return evals[op].s;
    default: return evals[op].u;
    }
}

RUN(run_alu)
{
    static const Slot zeros;
    const uint64_t *s[4] = {zeros, zeros, zeros, zeros};
    for (int i = 1; i < in->operands && i < 5; i++)
        s[i - 1] = source(w, in, i);
    if (in->arg[0].slot == NO_SLOT)
        return;
    uint64_t *out = result(w, in, 0), mask = in->mask;
    if (in->host_round != FE_TONEAREST)
        fesetround(in->host_round);
    FOR_LANES(w, l)
    out[l] = in->eval(in, s[0][l], s[1][l], s[2][l], s[3][l]) & mask;
    if (in->host_round != FE_TONEAREST)
        fesetround(FE_TONEAREST);
}

// add.cc, addc, sub.cc, subc: a carry bit per lane; in subtractions it is the borrow.
RUN(run_carry)
{
    const uint64_t *a = source(w, in, 1), *b = source(w, in, 2);
    bool minus = in->op == OP_SUB || in->op == OP_SUBC;
    bool takes = in->op == OP_ADDC || in->op == OP_SUBC;
    bool gives = in->mod[C_CARRY] != M_ABSENT;
    uint64_t *out = result(w, in, 0);
    FOR_LANES(w, l)
    {
        unsigned __int128 carry = takes ? w->carry[l] : 0, x = a[l], y = b[l];
        unsigned __int128 r = minus ? x - y - carry : x + y + carry;
        if (gives)
            w->carry[l] = (uint8_t)(r >> in->bits & 1);
        out[l] = (uint64_t)r & in->mask;
    }
}

// ---- mov, cvta, isspacep ----

RUN(run_mov)
{
    if (in->arg[0].slot == NO_SLOT)
        return;
    const uint64_t *a = source(w, in, 1);
    uint64_t *out = result(w, in, 0);
    FOR_LANES(w, l)
    out[l] = a[l] & in->mask;
}

// {a, b} = c and c = {a, b}: the first element is the lowest.
RUN(run_mov_vector)
{
    bool unpack = in->count[0] > 1;
    const Arg *part = &in->arg[in->first[unpack ? 0 : 1]];
    unsigned n = in->count[unpack ? 0 : 1], bits = in->bits / n;
    uint64_t *whole = w->slot[in->arg[in->first[unpack ? 1 : 0]].slot];
    FOR_LANES(w, l)
    {
        uint64_t v = unpack ? whole[l] : 0;
        for (unsigned i = 0; i < n; i++) {
            if (part[i].slot == NO_SLOT)
                continue;
            if (unpack)
                w->slot[part[i].slot][l] = v >> (i * bits) & low_bits(bits);
            else
                v |= (w->slot[part[i].slot][l] & low_bits(bits)) << (i * bits);
        }
        if (!unpack)
            whole[l] = v;
    }
}

// A clock ticks once per warp instruction of the launch.
RUN(run_clock)
{
    uint64_t now = w->block->launch->steps;
    bool high = in->target == SPECIAL_CLOCK_HI || in->target == SPECIAL_GLOBALTIMER_HI;
    uint64_t *out = result(w, in, 0);
    FOR_LANES(w, l)
    out[l] = (high ? now >> 32 : now) & in->mask;
}

static uint64_t window_of(Space space)
{
    return space == SPACE_SHARED ? SHARED_WINDOW : space == SPACE_LOCAL ? LOCAL_WINDOW : space == SPACE_PARAM ? PARAM_WINDOW : 0;
}

RUN(run_cvta)
{
    uint64_t window = window_of(exec_space(in));
    const uint64_t *a = source(w, in, 1);
    uint64_t *out = result(w, in, 0);
    bool to = in->mod[C_TO] != M_ABSENT;
    FOR_LANES(w, l)
    {
        if (to && window && a[l] - window >= WINDOW_SIZE)
            exec_violation(w, in, (int)l, CUDA_ERROR_INVALID_ADDRESS_SPACE, "address 0x%llx is not in the .%s space",
                           (unsigned long long)a[l], ptx_modifier_text(in->mod[C_SPACE]));
        out[l] = (to ? a[l] - window : a[l] + window) & in->mask;
    }
}

RUN(run_isspacep)
{
    uint64_t window = window_of(exec_space(in));
    const uint64_t *a = source(w, in, 1);
    uint64_t *out = result(w, in, 0);
    FOR_LANES(w, l)
    {
        bool other = a[l] - SHARED_WINDOW < WINDOW_SIZE || a[l] - LOCAL_WINDOW < WINDOW_SIZE || a[l] - PARAM_WINDOW < WINDOW_SIZE;
        out[l] = window ? a[l] - window < WINDOW_SIZE : !other;
    }
}
