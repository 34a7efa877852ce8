/* sort_network.inc for AVX-512; compiled with its flag, run only where the CPU has it. */
#include <immintrin.h>

#define NETWORK sort_network_avx512
#define VECTOR_BYTES 64
#define LANES32 16
#define LANES64 8
#define LANE_LEVELS32 4
#define LANE_LEVELS64 3
#define BLOCK_LEVELS 4
#define BLOCK_VECTORS 16
#define LEAF_VECTORS 32
#define LEAST32(a, b) (Vector32) _mm512_min_epi32((__m512i)(a), (__m512i)(b))
#define GREATEST32(a, b) (Vector32) _mm512_max_epi32((__m512i)(a), (__m512i)(b))
#define LEAST64(a, b) (Vector64) _mm512_min_epi64((__m512i)(a), (__m512i)(b))
#define GREATEST64(a, b) (Vector64) _mm512_max_epi64((__m512i)(a), (__m512i)(b))
#define MEET32(a, b, s) __builtin_shufflevector(LEAST32(a, b), GREATEST32(a, b), LIST(LANES32)(LANE_GREATER, s))
#define MEET64(a, b, s) __builtin_shufflevector(LEAST64(a, b), GREATEST64(a, b), LIST(LANES64)(LANE_GREATER, s))
#define LESS32(a, b) _mm512_cmplt_epi32_mask((__m512i)(a), (__m512i)(b))
#define LESS64(a, b) _mm512_cmplt_epi64_mask((__m512i)(a), (__m512i)(b))
/* The first n lanes of a vector in memory, those of `others` behind them. */
#define SOME(n) ((1u << (n)) - 1)
#define LOAD_SOME32(at, n, others) (Vector32) _mm512_mask_loadu_epi32((__m512i)(others), (__mmask16)SOME(n), at)
#define LOAD_SOME64(at, n, others) (Vector64) _mm512_mask_loadu_epi64((__m512i)(others), (__mmask8)SOME(n), at)
#define STORE_SOME32(at, n, x) _mm512_mask_storeu_epi32(at, (__mmask16)SOME(n), (__m512i)(x))
#define STORE_SOME64(at, n, x) _mm512_mask_storeu_epi64(at, (__mmask8)SOME(n), (__m512i)(x))
/* Sixteen lanes are too many for a table: compressed in a register (into memory it is slow on Zen 4), the others turned to the end. */
#define TURNED(x, by) _mm512_permutexvar_epi32(_mm512_loadu_si512(split_turns + 16 - (by)), x)
#define SPLIT32(x, below, count, first, last)                                        \
    first = (Vector32)_mm512_maskz_compress_epi32((__mmask16)(below), (__m512i)(x)); \
    last = (Vector32)TURNED(_mm512_maskz_compress_epi32((__mmask16) ~(below), (__m512i)(x)), count)
#define ORDER64(order) _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)&(order)))
#define SPLIT64(x, below, count, first, last) first = last = (Vector64)_mm512_permutexvar_epi64(ORDER64(split_of_8[below]), (__m512i)(x))
#include "jit/sort_network.inc"
