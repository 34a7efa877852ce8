/*
 * What a CUDA device can do at most, by what its driver says of its clocks and by what NVIDIA publishes of its architecture: bounds, not
 * measurements. Memory moves two words a clock on each line of its bus.
 */
#include "runtime/cuda/cuda.h"

/* Of one multiprocessor in one clock: f32 multiplications with an addition, special functions ("Throughput of Native Arithmetic
 * Instructions", CUDA C++ Programming Guide), and multiplications with an addition of dense products of 16-bit floats by tensor cores
 * (white papers of the architectures; where sums in f16 are faster, those). */
static const struct {
    int capability, fma, special, matrix;
} rates[] = {{75, 64, 16, 512}, {80, 64, 16, 1024}, {86, 128, 16, 512}, {90, 128, 16, 2048}, {100, 128, 16, 4096}, {120, 128, 16, 512}};

static const double LAUNCH = 2e-6; /* from the end of one kernel to the first results of the next, about */

bool cuda_limits(int device, DeviceLimits *out)
{
    const CudaDevice *d = cuda_opened(device_number(device));
    size_t row = 0;
    if (!d || !d->clock_khz || !d->memory_khz || !d->bus_bits)
        return false;
    while (row + 1 < sizeof rates / sizeof *rates && rates[row + 1].capability <= d->target.device)
        row++;
    double clocks = 1e3 * (double)d->clock_khz * (double)d->multiprocessors;
    double bytes = 2 * 1e3 * (double)d->memory_khz * (double)d->bus_bits / 8;
    *out = (DeviceLimits){.memory = bytes,
                          .cached = bytes,
                          .flops = 2 * clocks * (double)rates[row].fma,
                          .half_flops = 2 * clocks * (double)rates[row].matrix,
                          .specials = clocks * (double)rates[row].special,
                          .launch = LAUNCH};
    return true;
}
