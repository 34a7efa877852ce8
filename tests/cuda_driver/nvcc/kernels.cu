// Kernels for test_nvcc.c in CUDA C: what another compiler makes of them is no echo of what kiln makes, and their results are known
// on the host.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#define ENTRY extern "C" __global__ void

__device__ int of_thread() { return (int)(blockIdx.x * blockDim.x + threadIdx.x); }

ENTRY each(const float *__restrict__ x, const float *__restrict__ y, float *z, int n)
{
    for (int i = of_thread(); i < n; i += (int)(gridDim.x * blockDim.x))
        z[i] = x[i] * y[i] + 1.5f;
}

ENTRY each4(const float4 *x, float4 *y, int n)
{
    int i = of_thread();
    if (i >= n)
        return;
    float4 v = x[i];
    y[i] = make_float4(v.w, v.z * 2, v.y - v.x, fmaxf(v.x, v.w));
}

// ---- integers ----

enum { INT_RESULTS = 26 };

ENTRY ints(const int *a_, const int *b_, int *out, int n)
{
    int i = of_thread();
    if (i >= n)
        return;
    int a = a_[i], b = b_[i], *o = out + INT_RESULTS * i, k = 0;
    unsigned ua = (unsigned)a, ub = (unsigned)b;
    o[k++] = b && !(a == INT32_MIN && b == -1) ? a / b : 0;
    o[k++] = b && !(a == INT32_MIN && b == -1) ? a % b : 0;
    o[k++] = b ? (int)(ua / ub) : 0;
    o[k++] = b ? (int)(ua % ub) : 0;
    o[k++] = a / 7;
    o[k++] = a % 10;
    o[k++] = (int)(ua / 641u);
    o[k++] = __mulhi(a, b);
    o[k++] = (int)__umulhi(ua, ub);
    o[k++] = (int)(ua << (ub & 31));
    o[k++] = a >> (ub & 31);
    o[k++] = (int)(ua >> (ub & 31));
    o[k++] = __clz(a);
    o[k++] = __popc(ua);
    o[k++] = (int)__brev(ua);
    o[k++] = __ffs(a);
    o[k++] = (int)__funnelshift_l(ua, ub, 13);
    o[k++] = (int)__funnelshift_r(ua, ub, ub);
    o[k++] = (int)__byte_perm(ua, ub, 0x7241);
    o[k++] = min(a, b);
    o[k++] = (int)max(ua, ub);
    o[k++] = a == INT32_MIN ? 0 : abs(a);
    o[k++] = (int)(int8_t)a;
    o[k++] = (int)(uint16_t)b;
    o[k++] = (a < b) - (ua < ub);
    o[k++] = a & ~b ^ (a | b);
}

enum { LONG_RESULTS = 14 };

ENTRY longs(const long long *a_, const long long *b_, long long *out, int n)
{
    int i = of_thread();
    if (i >= n)
        return;
    long long a = a_[i], b = b_[i], *o = out + LONG_RESULTS * i;
    unsigned long long ua = (unsigned long long)a, ub = (unsigned long long)b;
    bool fine = b && !(a == INT64_MIN && b == -1);
    int k = 0;
    o[k++] = fine ? a / b : 0;
    o[k++] = fine ? a % b : 0;
    o[k++] = b ? (long long)(ua / ub) : 0;
    o[k++] = b ? (long long)(ua % ub) : 0;
    o[k++] = a / 1000003;
    o[k++] = __mul64hi(a, b);
    o[k++] = (long long)__umul64hi(ua, ub);
    o[k++] = (long long)(ua << (ub & 63));
    o[k++] = a >> (ub & 63);
    o[k++] = __clzll(a);
    o[k++] = __popcll(ua);
    o[k++] = (long long)__brevll(ua);
    o[k++] = a * b;
    o[k++] = a < b ? a : b;
}

// A jump table, and an array that is indexed at run time.
ENTRY choose(const int *which, int *out, int n)
{
    int i = of_thread();
    if (i >= n)
        return;
    int table[8];
    for (int k = 0; k < 8; k++)
        table[k] = k * k + which[i];
    int r;
    switch (which[i] & 7) {
    case 0: r = 17; break;
    case 1: r = table[which[i] & 3]; break;
    case 2: r = which[i] * 3; break;
    case 3: r = -which[i]; break;
    case 4: r = which[i] ^ 0x55; break;
    case 5: r = table[(which[i] >> 3) & 7]; break;
    case 6: r = which[i] >> 2; break;
    default: r = 1 << (which[i] & 15); break;
    }
    out[i] = r;
}

// ---- floating point ----

enum { FLOAT_RESULTS = 24 };

ENTRY floats(const float *a_, const float *b_, float *out, int n)
{
    int i = of_thread();
    if (i >= n)
        return;
    float a = a_[i], b = b_[i], *o = out + FLOAT_RESULTS * i;
    int k = 0;
    o[k++] = a / b;
    o[k++] = sqrtf(fabsf(a));
    o[k++] = __frcp_rn(b);
    o[k++] = __fadd_rz(a, b);
    o[k++] = __fmul_ru(a, b);
    o[k++] = __fsub_rn(a, b);
    o[k++] = fmaf(a, b, -a);
    o[k++] = fminf(a, b);
    o[k++] = fmaxf(a, b);
    o[k++] = rintf(a);
    o[k++] = floorf(a);
    o[k++] = ceilf(a);
    o[k++] = truncf(a);
    o[k++] = copysignf(a, b);
    o[k++] = fmodf(a, b);
    o[k++] = (float)(int)fminf(fmaxf(a, -1e9f), 1e9f);
    o[k++] = (float)(long long)fminf(fmaxf(b, -1e9f), 1e9f);
    o[k++] = (float)(double)a;
    o[k++] = (float)((double)a * (double)b);
    o[k++] = __half2float(__float2half_rn(a));
    o[k++] = __bfloat162float(__float2bfloat16_rn(b));
    o[k++] = __int_as_float(__float_as_int(a) ^ 0x40000000);
    o[k++] = __saturatef(a);
    o[k++] = isnan(a) || isinf(b) ? 1.0f : signbit(a) ? 2.0f : 3.0f;
}

// No sinf, cosf, tanf: for large arguments they add with carries, which the driver does not know and kiln does not use.
enum { MATH_RESULTS = 15 };

ENTRY maths(const float *a_, float *out, int n)
{
    int i = of_thread();
    if (i >= n)
        return;
    float a = a_[i], *o = out + MATH_RESULTS * i;
    int k = 0;
    o[k++] = expf(a);
    o[k++] = exp2f(a);
    o[k++] = expm1f(a);
    o[k++] = logf(fabsf(a));
    o[k++] = log2f(fabsf(a));
    o[k++] = log1pf(fabsf(a));
    o[k++] = tanhf(a);
    o[k++] = sinhf(a);
    o[k++] = atanf(a);
    o[k++] = erff(a);
    o[k++] = cbrtf(a);
    o[k++] = rsqrtf(fabsf(a));
    o[k++] = powf(fabsf(a), 1.7f);
    o[k++] = asinhf(a);
    o[k++] = (float)(exp((double)a) + log((double)fabsf(a)));
}

// What is approximate in the instruction set: within 1e-5 of what it stands for.
enum { FAST_RESULTS = 7 };

ENTRY fast(const float *a_, float *out, int n)
{
    int i = of_thread();
    if (i >= n)
        return;
    float a = a_[i], *o = out + FAST_RESULTS * i;
    int k = 0;
    o[k++] = __expf(a);
    o[k++] = __logf(fabsf(a));
    o[k++] = __sinf(a);
    o[k++] = __cosf(a);
    o[k++] = __fdividef(a, 3.0f);
    o[k++] = __frsqrt_rn(fabsf(a));
    o[k++] = __powf(fabsf(a), 0.5f);
}

ENTRY halves(const __half *a, const __half *b, const __nv_bfloat16 *c, const __nv_bfloat16 *d, float *out, int n)
{
    int i = of_thread();
    if (i >= n)
        return;
    float *o = out + 8 * i;
    o[0] = __half2float(__hadd(a[i], b[i]));
    o[1] = __half2float(__hmul(a[i], b[i]));
    o[2] = __half2float(__hfma(a[i], b[i], a[i]));
    o[3] = __bfloat162float(__hadd(c[i], d[i]));
    o[4] = __bfloat162float(__hmul(c[i], d[i]));
#if __CUDA_ARCH__ >= 800
    o[5] = __bfloat162float(__hfma(c[i], d[i], c[i]));
#else
    o[5] = __bfloat162float(__float2bfloat16_rn(fmaf(__bfloat162float(c[i]), __bfloat162float(d[i]), __bfloat162float(c[i]))));
#endif
    __half2 both = __hadd2(__halves2half2(a[i], b[i]), __halves2half2(b[i], b[i]));
    o[6] = __low2float(both) - __high2float(both);
    o[7] = __hlt(a[i], b[i]) ? 1.0f : 0.0f;
}

// ---- between threads ----

// The sum of each warp, and what votes say.
ENTRY warps(const float *x, float *sums, unsigned *votes)
{
    int i = of_thread();
    float v = x[i];
    for (int s = 16; s; s >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, s);
    unsigned up = __shfl_up_sync(0xffffffffu, threadIdx.x, 3), half = __shfl_sync(0xffffffffu, threadIdx.x, 5, 16);
    unsigned some = __ballot_sync(0xffffffffu, x[i] > 0);
    bool all = __all_sync(0xffffffffu, x[i] > -1e30f), any = __any_sync(0xffffffffu, x[i] > 1e30f);
    if (threadIdx.x % 32 == 0)
        sums[i / 32] = v;
    votes[i] = some ^ up * 131 ^ half * 65537 ^ (all ? 1u << 30 : 0) ^ (any ? 1u << 31 : 0);
}

// One sum in one launch: the block that comes last adds up.
__device__ unsigned arrived;

ENTRY total(const float *x, int n, float *partial, float *sum)
{
    __shared__ float part[256];
    __shared__ bool last;
    float v = 0;
    for (int i = of_thread(); i < n; i += (int)(gridDim.x * blockDim.x))
        v += x[i];
    part[threadIdx.x] = v;
    __syncthreads();
    for (unsigned s = blockDim.x / 2; s; s >>= 1) {
        if (threadIdx.x < s)
            part[threadIdx.x] += part[threadIdx.x + s];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = part[0];
        __threadfence();
        last = atomicAdd(&arrived, 1u) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        float all = 0;
        for (unsigned b = 0; b < gridDim.x; b++)
            all += partial[b];
        *sum = all;
        arrived = 0;
    }
}

ENTRY matmul(const float *a, const float *b, float *c, int n)
{
    __shared__ float ta[16][16], tb[16][17];
    int x = (int)threadIdx.x, y = (int)threadIdx.y, row = (int)blockIdx.y * 16 + y, column = (int)blockIdx.x * 16 + x;
    float sum = 0;
    for (int k = 0; k < n; k += 16) {
        ta[y][x] = row < n && k + x < n ? a[row * n + k + x] : 0;
        tb[y][x] = column < n && k + y < n ? b[(k + y) * n + column] : 0;
        __syncthreads();
        for (int j = 0; j < 16; j++)
            sum = fmaf(ta[y][j], tb[j][x], sum);
        __syncthreads();
    }
    if (row < n && column < n)
        c[row * n + column] = sum;
}

// Shared memory whose size the launch gives, filled behind the threads' backs where the device can.
ENTRY reversed(const int *x, int *y)
{
    extern __shared__ int row[];
    int at = (int)(blockIdx.x * blockDim.x + threadIdx.x);
#if __CUDA_ARCH__ >= 800
    unsigned to = (unsigned)__cvta_generic_to_shared(&row[threadIdx.x]);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(x + at));
    asm volatile("cp.async.wait_all;");
#else
    row[threadIdx.x] = x[at];
#endif
    __syncthreads();
    y[at] = row[blockDim.x - 1 - threadIdx.x] + __syncthreads_count(x[at] > 0) + (__syncthreads_or(x[at] == 77) ? 1000 : 0);
}

ENTRY atomics(const int *x, int n, int *ints, unsigned *wraps, float *sum, double *exact, unsigned long long *bits)
{
    int i = of_thread();
    if (i >= n)
        return;
    atomicAdd(&ints[0], x[i]);
    atomicMax(&ints[1], x[i]);
    atomicMin(&ints[2], x[i]);
    atomicXor(&ints[3], x[i]);
    atomicInc(&wraps[0], 6);
    atomicAdd(sum, 0.25f);
    atomicAdd(exact, (double)x[i]);
    atomicOr(bits, 1ull << (x[i] & 63));
    int seen = *(volatile int *)&ints[4], want;
    do { /* the largest square, by compare and swap */
        want = seen;
        seen = atomicCAS(&ints[4], want, max(want, (x[i] & 255) * (x[i] & 255)));
    } while (seen != want);
}

// ---- tensor cores: one warp, operands row by row as mma wants them ----

ENTRY mma_f16(const uint32_t *a, const uint32_t *b, float *c) // a: 16 x 16, b: 8 x 16 (columns of k), pairs in words
{
    int lane = (int)threadIdx.x, row = lane / 4, pair = lane % 4;
    float d[4] = {0, 0, 0, 0};
#if __CUDA_ARCH__ >= 800
    uint32_t a0 = a[row * 8 + pair], a1 = a[(row + 8) * 8 + pair], a2 = a[row * 8 + pair + 4], a3 = a[(row + 8) * 8 + pair + 4];
    uint32_t b0 = b[row * 8 + pair], b1 = b[row * 8 + pair + 4];
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#else
    for (int half = 0; half < 2; half++) {
        uint32_t a0 = a[row * 8 + pair + 4 * half], a1 = a[(row + 8) * 8 + pair + 4 * half], b0 = b[row * 8 + pair + 4 * half];
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a0), "r"(a1), "r"(b0));
    }
#endif
    for (int i = 0; i < 4; i++)
        c[(row + 8 * (i / 2)) * 8 + 2 * pair + i % 2] = d[i];
}

// The same through shared memory and ldmatrix; b lies as rows of k then (16 x 8), so it is transposed on the way.
ENTRY mma_ldmatrix(const uint32_t *a, const uint32_t *b, float *c)
{
    __shared__ __align__(16) uint32_t sa[16 * 8], sb[16 * 4];
    int lane = (int)threadIdx.x, row = lane / 4, pair = lane % 4;
    for (int i = 0; i < 4; i++)
        sa[lane + 32 * i] = a[lane + 32 * i];
    for (int i = 0; i < 2; i++)
        sb[lane + 32 * i] = b[lane + 32 * i];
    __syncwarp();
    uint32_t x[4], y[2];
    unsigned at = (unsigned)__cvta_generic_to_shared(&sa[(lane % 16) * 8 + lane / 16 * 4]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at));
    at = (unsigned)__cvta_generic_to_shared(&sb[(lane % 16) * 4]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(y[0]), "=r"(y[1]) : "r"(at));
    float d[4] = {0, 0, 0, 0};
    for (int half = 0; half < 2; half++)
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(x[2 * half]), "r"(x[2 * half + 1]), "r"(y[half]));
    for (int i = 0; i < 4; i++)
        c[(row + 8 * (i / 2)) * 8 + 2 * pair + i % 2] = d[i];
}

#if __CUDA_ARCH__ >= 800
ENTRY mma_bf16(const uint32_t *a, const uint32_t *b, float *c)
{
    int lane = (int)threadIdx.x, row = lane / 4, pair = lane % 4;
    float d[4] = {1, 2, 3, 4};
    uint32_t a0 = a[row * 8 + pair], a1 = a[(row + 8) * 8 + pair], a2 = a[row * 8 + pair + 4], a3 = a[(row + 8) * 8 + pair + 4];
    uint32_t b0 = b[row * 8 + pair], b1 = b[row * 8 + pair + 4];
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    for (int i = 0; i < 4; i++)
        c[(row + 8 * (i / 2)) * 8 + 2 * pair + i % 2] = d[i];
}

ENTRY mma_tf32(const float *a, const float *b, float *c) // a: 16 x 8, b: 8 x 8 (columns of k)
{
    int lane = (int)threadIdx.x, row = lane / 4, k = lane % 4;
    float d[4] = {0, 0, 0, 0};
    uint32_t x[4] = {__float_as_uint(a[row * 8 + k]), __float_as_uint(a[(row + 8) * 8 + k]), __float_as_uint(a[row * 8 + k + 4]),
                     __float_as_uint(a[(row + 8) * 8 + k + 4])};
    uint32_t y[2] = {__float_as_uint(b[row * 8 + k]), __float_as_uint(b[row * 8 + k + 4])};
    for (int i = 0; i < 4; i++)
        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(x[i]) : "f"(__uint_as_float(x[i])));
    for (int i = 0; i < 2; i++)
        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y[i]) : "f"(__uint_as_float(y[i])));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
    for (int i = 0; i < 4; i++)
        c[(row + 8 * (i / 2)) * 8 + 2 * (lane % 4) + i % 2] = d[i];
}
#endif
