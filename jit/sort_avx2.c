/* sort_network.inc for AVX2; compiled with its flag, run only where the CPU has it. */
#include <immintrin.h>

#define NETWORK sort_network_avx2
#define VECTOR_BYTES 32
#define LANES32 8
#define LANES64 4
#define LANE_LEVELS32 3
#define LANE_LEVELS64 2
#define BLOCK_LEVELS 3
#define BLOCK_VECTORS 8
#define LEAF_VECTORS 32
#define LEAST32(a, b) (Vector32) _mm256_min_epi32((__m256i)(a), (__m256i)(b))
#define GREATEST32(a, b) (Vector32) _mm256_max_epi32((__m256i)(a), (__m256i)(b))
#define BELOW64(a, b) _mm256_cmpgt_epi64((__m256i)(b), (__m256i)(a))
#define LEAST64(a, b) (Vector64) _mm256_blendv_epi8((__m256i)(b), (__m256i)(a), BELOW64(a, b))
#define GREATEST64(a, b) (Vector64) _mm256_blendv_epi8((__m256i)(a), (__m256i)(b), BELOW64(a, b))
#define MEET32(a, b, s) __builtin_shufflevector(LEAST32(a, b), GREATEST32(a, b), LIST(LANES32)(LANE_GREATER, s))
/* b instead of a: where a is greater, or where the greater is wanted and a is not. */
#define MEET64(a, b, s) \
    (Vector64) _mm256_blendv_epi8((__m256i)(a), (__m256i)(b), _mm256_xor_si256(BELOW64(b, a), (__m256i)WANTS_GREATER64(s)))
#define WANTS_GREATER64(s) ((Vector64){0, -((1 & (s)) != 0), -((2 & (s)) != 0), -((3 & (s)) != 0)})
#define LESS32(a, b) (unsigned)_mm256_movemask_ps((__m256)_mm256_cmpgt_epi32((__m256i)(b), (__m256i)(a)))
#define LESS64(a, b) (unsigned)_mm256_movemask_pd((__m256d)BELOW64(a, b))
/* The first n lanes of a vector in memory, those of `others` behind them. */
#define SOME32(n) _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
#define SOME64(n) _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3))
#define LOAD_SOME32(at, n, others) \
    (Vector32) _mm256_blendv_epi8((__m256i)(others), _mm256_maskload_epi32((const int *)(at), SOME32(n)), SOME32(n))
#define LOAD_SOME64(at, n, others) \
    (Vector64) _mm256_blendv_epi8((__m256i)(others), _mm256_maskload_epi64((const long long *)(at), SOME64(n)), SOME64(n))
#define STORE_SOME32(at, n, x) _mm256_maskstore_epi32((int *)(at), SOME32(n), (__m256i)(x))
#define STORE_SOME64(at, n, x) _mm256_maskstore_epi64((long long *)(at), SOME64(n), (__m256i)(x))
/* There is no permutation of eight bytes: pairs of four. */
#define IN_ORDER(x, order) _mm256_permutevar8x32_epi32((__m256i)(x), _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)&(order))))
#define SPLIT32(x, below, count, first, last) first = last = (Vector32)IN_ORDER(x, split_of_8[below])
#define SPLIT64(x, below, count, first, last) first = last = (Vector64)IN_ORDER(x, split_of_4[below])
#include "jit/sort_network.inc"
