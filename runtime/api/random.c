/*
 * Random numbers: Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror, Shaw: Parallel random
 * numbers: as easy as 1, 2, 3, 2011).
 *
 *   element i of a draw = threefry(counter = first + i, key = seed)
 *                       = 64 bits: word 0 (the low half), word 1
 *
 * The stream of the process is a counter that each draw of n elements advances by n while it is
 * recorded, whether its values are ever used or not. So a value depends on the seed, on what was
 * drawn before and on its own index, and on nothing else.
 *
 *   uniform   f32: top 24 bits of word 0, times 2^-24; f64: top 53 bits of both, times 2^-53
 *   normal    Box-Muller: sqrt(-2 ln u) cos(2 pi v), u in (0, 1] from word 0, v in [0, 1) from
 *             word 1, 24 bits each in f32 and 32 bits each in f64 (so values stay below 6.7)
 *   dropout   kept where word 0 is at least p 2^32
 *   ints      low + bits mod (high - low): biased by less than (high - low) / 2^64
 *
 * Several threads that draw at once share the stream in an unspecified order; kiln_seed is meant
 * for one thread at a time.
 */
#include "runtime/api/random.h"
#include "runtime/gradient/body.h"
#include "runtime/record/record.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static _Atomic uint64_t stream_key, stream_next;

void kiln_seed(uint64_t seed)
{
    if (body_refuses("kiln_seed", (Loc){NULL, 0}))
        return;
    trace_sync("kiln_seed", (Loc){NULL, 0}); /* a replay draws from the stream as it finds it */
    atomic_store(&stream_key, seed);
    atomic_store(&stream_next, 0);
}

uint64_t random_advance(uint64_t count) { return atomic_fetch_add(&stream_next, count); }

void random_rewind(uint64_t first, uint64_t count)
{
    uint64_t next = first + count;
    atomic_compare_exchange_strong(&stream_next, &next, first);
}

uint64_t random_key(void) { return atomic_load(&stream_key); }

/* In a loop a draw takes its positions once, however long that runs: iterations have keys of their own, each of its number and the key of
 * the loop around. */
static RtNode *iteration_key(Rec *r, const LoopBody *loop, RtNode *key)
{
    if (!loop)
        return key;
    key = iteration_key(r, loop->outer, key);
    return loop->index && key ? rec_ew2(r, OP_THREEFRY, rec_cast(r, loop->index, DT_U64), rec_ew1(r, OP_NOT, key)) : key;
}

/* 64 random bits for each element of a shape. */
static RtNode *draw(Rec *r, kiln_shape shape)
{
    int64_t n;
    if (!rec_shape(r, shape))
        return NULL;
    shape_numel(shape.rank, shape.dim, &n);
    uint64_t start = random_advance((uint64_t)n);
    RtNode *counter = rec_bits(r, DT_U64, start), *key = rec_bits(r, DT_U64, random_key());
    if (!counter || !key)
        return NULL;
    counter->attr.mode = key->attr.mode = SCALAR_ARGUMENT; /* a draw from position 0 is like any other */
    counter->body = key->body = 0;                         /* a loop captures them: its derivative draws the same */
    trace_draw(counter, key, start, (uint64_t)n);
    RtNode *own = iteration_key(r, r->thread->loop, key);
    RtNode *index = rec_cast(r, rec_split(r, rec_iota(r, n), 0, shape.rank, shape.dim), DT_U64);
    return rec_ew2(r, OP_THREEFRY, rec_ew2(r, OP_ADD, index, counter), own);
}

/* The low (which = 0) or high word of the bits, as u32. */
static RtNode *word(Rec *r, RtNode *bits, int which)
{
    if (which)
        bits = rec_ew2(r, OP_SHR, bits, rec_int(r, DT_U64, 32));
    return rec_cast(r, bits, DT_U32);
}

/* Numbers in [0, 1), or (0, 1] if `upper`, from the top bits of an unsigned value, as f32 or f64. */
static RtNode *unit(Rec *r, RtNode *bits, int width, int keep, DType dtype, bool upper)
{
    if (!bits)
        return NULL;
    if (width != keep)
        bits = rec_ew2(r, OP_SHR, bits, rec_int(r, node_dtype(bits), width - keep));
    RtNode *x = rec_cast(r, bits, dtype);
    if (upper)
        x = rec_ew2(r, OP_ADD, x, rec_scalar(r, dtype, 1));
    return rec_ew2(r, OP_MUL, x, rec_scalar(r, dtype, ldexp(1, -keep)));
}

/* x * scale + offset, in `dtype` at the end. */
static RtNode *affine(Rec *r, RtNode *x, double scale, double offset, kiln_dtype dtype)
{
    if (!x)
        return NULL;
    DType wide = node_dtype(x);
    x = rec_ew2(r, OP_ADD, rec_ew2(r, OP_MUL, x, rec_scalar(r, wide, scale)), rec_scalar(r, wide, offset));
    return rec_cast(r, x, (DType)dtype);
}

/* Is it a dtype of the kind wanted? */
static bool check_dtype(Rec *r, kiln_dtype dtype, bool wants_float)
{
    bool exists = (unsigned)dtype < DT_COUNT;
    if (exists && (wants_float ? dtype_is_float((DType)dtype) : dtype_is_int((DType)dtype)))
        return true;
    if (!exists)
        rec_fail(r, ST_INVALID, "dtype %d does not exist", (int)dtype);
    else
        rec_fail(r, ST_DTYPE, "dtype is %s: %s is needed", dtype_name((DType)dtype), wants_float ? "a float" : "an int");
    return false;
}

/* Uniform over [low, high) in dtype. */
static RtNode *uniform(Rec *r, kiln_dtype dtype, kiln_shape shape, double low, double high)
{
    RtNode *bits = draw(r, shape);
    RtNode *x = dtype == KILN_F64 ? unit(r, bits, 64, 53, DT_F64, false) : unit(r, word(r, bits, 0), 32, 24, DT_F32, false);
    return affine(r, x, high - low, low, dtype);
}

/* Box-Muller */
static RtNode *normal(Rec *r, kiln_dtype dtype, kiln_shape shape, double mean, double std)
{
    DType wide = dtype == KILN_F64 ? DT_F64 : DT_F32;
    int keep = wide == DT_F64 ? 32 : 24;
    RtNode *bits = draw(r, shape);
    RtNode *u = unit(r, word(r, bits, 0), 32, keep, wide, true);
    RtNode *v = unit(r, word(r, bits, 1), 32, keep, wide, false);
    RtNode *radius = rec_ew1(r, OP_SQRT, rec_ew2(r, OP_MUL, rec_ew1(r, OP_LOG, u), rec_scalar(r, wide, -2)));
    RtNode *angle = rec_ew1(r, OP_COS, rec_ew2(r, OP_MUL, v, rec_scalar(r, wide, 6.283185307179586)));
    return affine(r, rec_ew2(r, OP_MUL, radius, angle), std, mean, dtype);
}

API4(kiln_tensor *, kiln_uniform, kiln_dtype, dtype, kiln_shape, shape, double, low, double, high)
{
    Rec r = REC(kiln_uniform);
    if (!check_dtype(&r, dtype, true))
        return rec_end(&r, NULL);
    bool wide = dtype == KILN_F64; /* else all is computed in f32 */
    if (!(wide ? isfinite(high - low) : isfinite((float)(high - low)) && isfinite((float)low) && isfinite((float)high)) || low > high)
        return rec_end(&r, rec_fail(&r, ST_INVALID, "low %g and high %g: two finite numbers, low <= high, and high - low fits %s", low,
                                    high, wide ? "f64" : "f32"));
    return rec_end(&r, uniform(&r, dtype, shape, low, high));
}

API4(kiln_tensor *, kiln_normal, kiln_dtype, dtype, kiln_shape, shape, double, mean, double, std)
{
    Rec r = REC(kiln_normal);
    if (!check_dtype(&r, dtype, true))
        return rec_end(&r, NULL);
    if (!(std >= 0) || !isfinite(std) || !isfinite(mean))
        return rec_end(&r, rec_fail(&r, ST_INVALID, "mean %g and std %g: two finite numbers, std >= 0", mean, std));
    return rec_end(&r, normal(&r, dtype, shape, mean, std));
}

API2(kiln_tensor *, kiln_rand, kiln_dtype, dtype, kiln_shape, shape)
{
    Rec r = REC(kiln_rand);
    return rec_end(&r, check_dtype(&r, dtype, true) ? uniform(&r, dtype, shape, 0, 1) : NULL);
}

API2(kiln_tensor *, kiln_randn, kiln_dtype, dtype, kiln_shape, shape)
{
    Rec r = REC(kiln_randn);
    return rec_end(&r, check_dtype(&r, dtype, true) ? normal(&r, dtype, shape, 0, 1) : NULL);
}

/* Kept where the low word of the element's bits is at least p 2^32: exact to 2^-32, and one comparison of ints. */
RtNode *rec_dropout(Rec *r, RtNode *x, double p)
{
    if (!x)
        return NULL;
    kiln_shape shape = {x->rank, {0}};
    memcpy(shape.dim, x->dim, sizeof *x->dim * x->rank);
    double edge = rint(ldexp(p, 32));
    RtNode *bits = word(r, draw(r, shape), 0);
    RtNode *kept = rec_ew2(r, OP_GE, bits, rec_bits(r, DT_U32, edge < 0x1p32 ? (uint64_t)edge : UINT32_MAX));
    RtNode *scaled = rec_ew2(r, OP_MUL, x, rec_scalar(r, node_dtype(x), 1 / (1 - p)));
    return rec_ew3(r, OP_WHERE, kept, scaled, rec_scalar(r, node_dtype(x), 0));
}

API2(kiln_tensor *, kiln_dropout, kiln_tensor *, x, double, p)
{
    static const char *const names[] = {"x"};
    Rec r = REC(kiln_dropout);
    RtNode *in = rec_strong(&r, rec_in(&r, x, "x"));
    if (!rec_promote(&r, PREP_FLOAT, 1, &in, names))
        return rec_end(&r, NULL);
    if (!(p >= 0 && p < 1))
        return rec_end(&r, rec_fail(&r, ST_INVALID, "p is %g: a probability, 0 <= p < 1, is needed", p));
    DType out = node_dtype(in);
    return rec_end(&r, rec_cast(&r, rec_dropout(&r, rec_cast(&r, in, compute_dtype(out)), p), out));
}

API4(kiln_tensor *, kiln_randint, kiln_dtype, dtype, kiln_shape, shape, int64_t, low, int64_t, high)
{
    Rec r = REC(kiln_randint);
    if (!check_dtype(&r, dtype, false))
        return rec_end(&r, NULL);
    if (low >= high)
        return rec_end(&r, rec_fail(&r, ST_INVALID, "low %" PRId64 " is not below high %" PRId64, low, high));
    uint64_t ends[2] = {scalar_from_int((DType)dtype, low), scalar_from_int((DType)dtype, high - 1)};
    if (scalar_to_int((DType)dtype, ends[0]) != low || scalar_to_int((DType)dtype, ends[1]) != high - 1 ||
        (low < 0 && !dtype_is_signed((DType)dtype)))
        return rec_end(&r, rec_fail(&r, ST_INVALID, "[%" PRId64 ", %" PRId64 ") does not fit %s", low, high, dtype_name((DType)dtype)));
    RtNode *range = rec_bits(&r, DT_U64, (uint64_t)high - (uint64_t)low);
    RtNode *x = rec_ew2(&r, OP_REM, draw(&r, shape), range);
    x = rec_ew2(&r, OP_ADD, x, rec_bits(&r, DT_U64, (uint64_t)low));
    return rec_end(&r, rec_cast(&r, x, (DType)dtype));
}
