/* sort_network.inc for AVX2; compiled with its flag, run only where the CPU has it. */
#include <immintrin.h>

#define NETWORK sort_network_avx2
#define VECTOR_BYTES 32
#define LANES32 8
#define LANES64 4
#define BLOCK_LEVELS 3
#define BLOCK_VECTORS 8
#define LEAST32(a, b) (Vector32) _mm256_min_epi32((__m256i)(a), (__m256i)(b))
#define GREATEST32(a, b) (Vector32) _mm256_max_epi32((__m256i)(a), (__m256i)(b))
#define LESS64(a, b) _mm256_cmpgt_epi64((__m256i)(b), (__m256i)(a))
#define LEAST64(a, b) (Vector64) _mm256_blendv_epi8((__m256i)(b), (__m256i)(a), LESS64(a, b))
#define GREATEST64(a, b) (Vector64) _mm256_blendv_epi8((__m256i)(a), (__m256i)(b), LESS64(a, b))
#include "jit/sort_network.inc"
