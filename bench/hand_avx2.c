/* hand.inc for AVX2 with FMA; compiled with its flags, run only where the CPU has it. */
#include "bench/hand.h"

#ifdef __AVX2__
#include <immintrin.h>

enum { LANES = 8 };
#define V __m256
#define LOAD(p) _mm256_load_ps(p)
#define STORE(p, v) _mm256_store_ps((p), (v))
#define STREAM(p, v) _mm256_stream_ps((p), (v))
#define SET(c) _mm256_set1_ps(c)
#define ADD(a, b) _mm256_add_ps((a), (b))
#define SUB(a, b) _mm256_sub_ps((a), (b))
#define MUL(a, b) _mm256_mul_ps((a), (b))
#define DIV(a, b) _mm256_div_ps((a), (b))
#define MAX(a, b) _mm256_max_ps((a), (b))
#define MIN(a, b) _mm256_min_ps((a), (b))
#define FMA(a, b, c) _mm256_fmadd_ps((a), (b), (c))

static inline __m256 exp2_bits(__m256 t)
{
    __m256i n = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(n, _mm256_set1_epi32(0x3f800000)));
}
#define EXP2_BITS(t) exp2_bits(t)

static inline __m256 flip(__m256 v, __m256 t)
{
    __m256i sign = _mm256_slli_epi32(_mm256_castps_si256(t), 31);
    return _mm256_castsi256_ps(_mm256_xor_si256(_mm256_castps_si256(v), sign));
}
#define FLIP(v, t) flip((v), (t))

static inline double add_lanes(__m256 v)
{
    float lane[8];
    _mm256_storeu_ps(lane, v);
    double sum = 0;
    for (int i = 0; i < 8; i++)
        sum += (double)lane[i];
    return sum;
}
#define TOTAL(v) add_lanes(v)

#include "bench/hand.inc"

const HandLoops hand_avx2 = {"avx2", loop_copy, loop_a, loop_e, loop_b};
#else
const HandLoops hand_avx2 = {0};
#endif
