/* sort_network.inc for AVX-512; compiled with its flag, run only where the CPU has it. */
#include <immintrin.h>

#define NETWORK sort_network_avx512
#define VECTOR_BYTES 64
#define LANES32 16
#define LANES64 8
#define BLOCK_LEVELS 4
#define BLOCK_VECTORS 16
#define LEAST32(a, b) (Vector32) _mm512_min_epi32((__m512i)(a), (__m512i)(b))
#define GREATEST32(a, b) (Vector32) _mm512_max_epi32((__m512i)(a), (__m512i)(b))
#define LEAST64(a, b) (Vector64) _mm512_min_epi64((__m512i)(a), (__m512i)(b))
#define GREATEST64(a, b) (Vector64) _mm512_max_epi64((__m512i)(a), (__m512i)(b))
#include "jit/sort_network.inc"
