/* hand.inc for AVX-512; compiled with its flags, run only where the CPU has it. */
#include "bench/hand.h"

#ifdef __AVX512F__
#include <immintrin.h>

enum { LANES = 16 };
#define V __m512
#define LOAD(p) _mm512_load_ps(p)
#define STORE(p, v) _mm512_store_ps((p), (v))
#define STREAM(p, v) _mm512_stream_ps((p), (v))
#define SET(c) _mm512_set1_ps(c)
#define ADD(a, b) _mm512_add_ps((a), (b))
#define SUB(a, b) _mm512_sub_ps((a), (b))
#define MUL(a, b) _mm512_mul_ps((a), (b))
#define DIV(a, b) _mm512_div_ps((a), (b))
#define MAX(a, b) _mm512_max_ps((a), (b))
#define MIN(a, b) _mm512_min_ps((a), (b))
#define FMA(a, b, c) _mm512_fmadd_ps((a), (b), (c))

static inline __m512 exp2_bits(__m512 t)
{
    __m512i n = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(n, _mm512_set1_epi32(0x3f800000)));
}
#define EXP2_BITS(t) exp2_bits(t)

static inline __m512 flip(__m512 v, __m512 t)
{
    __m512i sign = _mm512_slli_epi32(_mm512_castps_si512(t), 31);
    return _mm512_castsi512_ps(_mm512_xor_epi32(_mm512_castps_si512(v), sign));
}
#define FLIP(v, t) flip((v), (t))
#define TOTAL(v) (double)_mm512_reduce_add_ps(v)

#include "bench/hand.inc"

const HandLoops hand_avx512 = {"avx512", loop_copy, loop_a, loop_e, loop_b};
#else
const HandLoops hand_avx512 = {0};
#endif
