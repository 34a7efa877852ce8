/* The targets that PTX is made for, and what follows from the size of a device. */
#include "jit/cuda_target.h"

#include <stddef.h>

/* What LLVM 19 knows. Later devices run PTX of the last one, later drivers take PTX of the last version. */
static const struct {
    int sm, least_ptx, multiprocessors, threads, tensor_rate, shared; /* shared: kilobytes */
} sms[] = {{75, 63, 40, 1024, 512, 64},   {80, 70, 108, 2048, 1024, 164}, {86, 71, 84, 1536, 512, 100},
           {87, 74, 16, 1536, 1024, 164}, {89, 78, 142, 1536, 512, 100},  {90, 78, 132, 2048, 1330, 228}};
static const int ptx_versions[] = {63, 64, 65, 70, 71, 72, 73, 74, 75, 76, 77, 78, 80, 81, 82, 83, 84, 85};
enum { N_SMS = sizeof sms / sizeof *sms, N_PTX = sizeof ptx_versions / sizeof *ptx_versions };
enum { ARCH_SM = 90, ARCH_PTX = 80 }; /* sm_90a */
enum { SMALL_SM = 120, SMALL_SHARED = 100 };

bool cuda_target_known(const CudaTarget *t)
{
    bool ptx = false, sm = false;
    for (size_t i = 0; i < N_PTX; i++)
        ptx |= ptx_versions[i] == t->ptx;
    for (size_t i = 0; i < N_SMS; i++)
        sm |= sms[i].sm == t->sm && t->ptx >= sms[i].least_ptx;
    return ptx && sm && (!t->arch || (t->sm == ARCH_SM && t->ptx >= ARCH_PTX));
}

bool cuda_copies(const CudaTarget *t) { return t->sm >= 80 && t->ptx >= 70; }

bool cuda_multiplies(const CudaTarget *t, DType half)
{
    return (half == DT_F16 && t->sm >= 75 && t->ptx >= 65) || (half == DT_BF16 && cuda_copies(t));
}

int64_t cuda_multiprocessors(const CudaTarget *t)
{
    int usual = 1;
    for (size_t i = 0; i < N_SMS; i++)
        usual = sms[i].sm == t->sm ? sms[i].multiprocessors : usual;
    return t->multiprocessors > 0 ? t->multiprocessors : usual;
}

int64_t cuda_room(const CudaTarget *t)
{
    int usual = 1024;
    for (size_t i = 0; i < N_SMS; i++)
        usual = sms[i].sm == t->sm ? sms[i].threads : usual;
    return cuda_multiprocessors(t) * (t->threads > 0 ? t->threads : usual);
}

int64_t cuda_tensor_rate(const CudaTarget *t)
{
    int rate = sms[0].tensor_rate;
    for (size_t i = 0; i < N_SMS; i++)
        rate = sms[i].sm == t->sm ? sms[i].tensor_rate : rate;
    return rate;
}

int64_t cuda_shared_memory(const CudaTarget *t)
{
    int device = t->device ? t->device : t->sm, kilobytes = sms[0].shared;
    for (size_t i = 0; i < N_SMS; i++)
        kilobytes = sms[i].sm == t->sm ? sms[i].shared : kilobytes;
    if (device >= SMALL_SM && kilobytes > SMALL_SHARED) /* PTX of sm_90 on a later device, whose memory may be that of a small one */
        kilobytes = SMALL_SHARED;
    return (int64_t)kilobytes << 10;
}

int64_t cuda_busy(const CudaTarget *t) { return cuda_room(t) / 4; }

static int64_t whole(int64_t a, int64_t b) { return a / b + (a % b != 0); }

const struct CudaPartShape cuda_part_shapes[CUDA_PART_SHAPES] = {{64, 64}, {32, 128}, {128, 32}};

int64_t cuda_part(int64_t batch, int64_t rows, int64_t columns, int64_t k)
{
    int64_t tiles = CUDA_FULL_TILES, most = whole(k, CUDA_LEAST_PART);
    for (int i = 0; i < CUDA_PART_SHAPES; i++) {
        int64_t all;
        bool many = __builtin_mul_overflow(whole(rows, cuda_part_shapes[i].rows), whole(columns, cuda_part_shapes[i].columns), &all) ||
                    __builtin_mul_overflow(all, batch, &all);
        tiles = !many && all < tiles ? all : tiles;
    }
    int64_t wanted = whole(CUDA_FULL_TILES, tiles > 0 ? tiles : 1);
    int64_t n = wanted < most ? wanted : most;
    n = n > CUDA_MOST_PARTS ? CUDA_MOST_PARTS : n > 1 ? n : 1;
    int64_t units = whole(whole(k, n), CUDA_PART_UNIT);
    return (units > 1 ? units : 1) * CUDA_PART_UNIT;
}

Status cuda_target(int major, int minor, int driver, CudaTarget *out)
{
    int cc = major * 10 + minor, cuda = driver / 1000, point = driver % 1000 / 10, ptx = 0;
    /* CUDA 10.n brought PTX 6.3 + n; 11.n 7.n; 12.n 8.n */
    int most = cuda < 10 ? 0 : cuda == 10 ? 63 + point : cuda == 11 ? 70 + point : cuda == 12 ? 80 + point : 85;
    for (size_t i = 0; i < N_PTX; i++)
        ptx = ptx_versions[i] <= most ? ptx_versions[i] : ptx;
    *out = (CudaTarget){.ptx = ptx, .device = cc, .driver = driver};
    for (size_t i = 0; i < N_SMS; i++)
        if (sms[i].sm <= cc && sms[i].least_ptx <= ptx)
            out->sm = sms[i].sm;
    out->arch = cc == ARCH_SM && out->sm == ARCH_SM && ptx >= ARCH_PTX;
    if (cc < sms[0].sm)
        return fail(ST_UNSUPPORTED, "compute capability %d.%d: kiln needs 7.5 or newer", major, minor);
    if (!out->sm)
        return fail(ST_UNSUPPORTED, "the NVIDIA driver is too old: it speaks CUDA %d.%d, kiln needs 10.0 or newer", cuda, point);
    return ST_OK;
}
