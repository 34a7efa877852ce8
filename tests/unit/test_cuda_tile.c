/*
 * The model that chooses tiles of matrix products on CUDA devices (jit/cuda_tile.h), and into how many parts their sums are cut. What it says is
 * computed: nothing here was timed on a device. EMIT_PRINT=1 prints its table.
 */
#include "jit/cuda_tile.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

static const CudaTarget hopper = {.sm = 90, .ptx = 80, .arch = true};

static CudaProduct product(bool tensor, int64_t batch, int64_t m, int64_t n, int64_t k)
{
    int64_t part = cuda_part(batch, m, n, k);
    return (CudaProduct){.batch = (double)batch,
                         .n = {m, n},
                         .k = k,
                         .parts = (k + part - 1) / part,
                         .bytes = tensor ? 2 : 4,
                         .tensor = tensor,
                         .copies = tensor};
}

/* What is chosen on an H100 of 132 multiprocessors; bench/README.md has it beside what was chosen before there was a model. */
Test(cuda_tile, of_an_h100)
{
    static const struct {
        bool tensor;
        int64_t batch, m, n, k, parts, rows, columns;
    } cases[] = {
        {true, 1, 16, 4096, 4096, 11, 16, 128},    {true, 1, 64, 4096, 4096, 6, 64, 64},      {true, 1, 128, 4096, 4096, 3, 128, 128},
        {true, 1, 256, 256, 4096, 16, 64, 64},     {true, 1, 256, 1024, 2048, 6, 64, 64},     {true, 1, 256, 2048, 1024, 3, 64, 64},
        {true, 1, 512, 512, 4096, 6, 64, 64},      {true, 1, 512, 1024, 4096, 3, 128, 128},   {true, 1, 768, 768, 4096, 3, 128, 128},
        {true, 1, 1024, 1024, 1024, 2, 128, 128},  {true, 1, 1024, 1024, 4096, 2, 128, 128},  {true, 1, 512, 2048, 4096, 2, 128, 128},
        {true, 1, 1024, 1536, 4096, 1, 128, 128},  {true, 1, 1280, 1280, 4096, 1, 128, 128},  {true, 1, 1536, 1536, 4096, 1, 128, 256},
        {true, 1, 512, 4096, 2048, 1, 128, 128},   {true, 1, 2048, 2048, 2048, 1, 128, 256},  {true, 1, 4096, 4096, 4096, 1, 128, 256},
        {true, 64, 128, 128, 128, 1, 64, 64},      {true, 8, 256, 256, 4096, 3, 128, 128},    {false, 1, 16, 4096, 4096, 11, 32, 32},
        {false, 1, 64, 4096, 4096, 6, 64, 64},     {false, 1, 128, 4096, 4096, 3, 64, 64},    {false, 1, 256, 256, 4096, 16, 64, 64},
        {false, 1, 256, 1024, 2048, 6, 64, 64},    {false, 1, 256, 2048, 1024, 3, 64, 64},    {false, 1, 512, 512, 4096, 6, 64, 64},
        {false, 1, 512, 1024, 4096, 3, 64, 64},    {false, 1, 768, 768, 4096, 3, 128, 128},   {false, 1, 1024, 1024, 1024, 2, 128, 128},
        {false, 1, 1024, 1024, 4096, 2, 128, 128}, {false, 1, 512, 2048, 4096, 2, 128, 128},  {false, 1, 1024, 1536, 4096, 1, 64, 64},
        {false, 1, 1280, 1280, 4096, 1, 128, 128}, {false, 1, 1536, 1536, 4096, 1, 64, 64},   {false, 1, 512, 4096, 2048, 1, 128, 128},
        {false, 1, 2048, 2048, 2048, 1, 128, 128}, {false, 1, 4096, 4096, 4096, 1, 128, 128}, {false, 64, 128, 128, 128, 1, 128, 64},
        {false, 8, 256, 256, 4096, 3, 64, 64},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CudaProduct p = product(cases[i].tensor, cases[i].batch, cases[i].m, cases[i].n, cases[i].k);
        const CudaTile *t = cuda_tile(&hopper, &p);
        int64_t rows = cuda_tile_side(t, ROWS), columns = cuda_tile_side(t, COLUMNS);
        if (getenv("EMIT_PRINT"))
            fprintf(stderr, "%s %lld x %lld x %lld x %lld: %lld parts, %lld x %lld, %.0f clocks\n", cases[i].tensor ? "bf16" : "f32",
                    (long long)cases[i].batch, (long long)cases[i].m, (long long)cases[i].n, (long long)cases[i].k, (long long)p.parts,
                    (long long)rows, (long long)columns, cuda_tile_clocks(&hopper, &p, t));
        cr_expect(p.parts == cases[i].parts && rows == cases[i].rows && columns == cases[i].columns, "case %zu: %lld parts, %lld x %lld", i,
                  (long long)p.parts, (long long)rows, (long long)columns);
    }
}

/* The tile follows from the device, the parts do not: they are the order of the sum. */
Test(cuda_tile, follows_the_device)
{
    CudaProduct p = product(true, 1, 1024, 1280, 4096);
    CudaTarget small = {.sm = 80, .ptx = 74, .multiprocessors = 28, .threads = 2048}, large = small;
    large.multiprocessors = 400;
    const CudaTile *of_small = cuda_tile(&small, &p), *of_large = cuda_tile(&large, &p);
    cr_expect_gt(cuda_tile_side(of_small, ROWS) * cuda_tile_side(of_small, COLUMNS),
                 cuda_tile_side(of_large, ROWS) * cuda_tile_side(of_large, COLUMNS));
}

/* Half a million to one and a half million results: parts of k keep the device at work, where there is a k to cut. */
Test(cuda_tile, a_million_results_are_cut)
{
    static const int64_t sizes[][2] = {{512, 1024}, {768, 768}, {1024, 1024}, {512, 2048}, {256, 4096}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        CudaProduct cut = product(true, 1, sizes[i][0], sizes[i][1], 4096), whole = cut;
        whole.parts = 1;
        cr_expect_gt(cut.parts, 1);
        cr_expect_lt(1.05 * cuda_tile_clocks(&hopper, &cut, cuda_tile(&hopper, &cut)),
                     cuda_tile_clocks(&hopper, &whole, cuda_tile(&hopper, &whole)), "case %zu", i);
        cr_expect_eq(product(true, 1, sizes[i][0], sizes[i][1], 256).parts, 1);
    }
}

/* Every tile is the best one for something, and sums of eight bytes fit registers. */
Test(cuda_tile, each_is_chosen)
{
    for (int tensor = 0; tensor < 2; tensor++) {
        const CudaTile *tiles = tensor ? cuda_mma_tiles : cuda_fma_tiles;
        int n = tensor ? CUDA_MMA_TILES : CUDA_FMA_TILES, seen = 0;
        for (int64_t m = 1; m <= 8192; m *= 2)
            for (int64_t x = 1; x <= 8192; x *= 2)
                for (int64_t k = 32; k <= 16384 * 8; k *= 8) {
                    bool batch = k > 16384; /* of short ones */
                    CudaProduct p = product(tensor, batch ? 4096 : 1, m, x, batch ? 64 : k);
                    seen |= 1 << (cuda_tile(&hopper, &p) - tiles);
                    p.bytes = 8;
                    const CudaTile *t = cuda_tile(&hopper, &p);
                    cr_assert(tensor || cuda_tile_side(t, ROWS) * cuda_tile_side(t, COLUMNS) <= 64 * 64);
                }
        cr_expect_eq(seen, (1 << n) - 1, "%s: %x", tensor ? "tensor cores" : "multiply-adds", (unsigned)seen);
    }
}

/* As many slices as fit beside those of the other blocks, and no fewer than two. */
Test(cuda_tile, slices_fit)
{
    static const struct {
        CudaTarget target;
        int64_t shared, slices[2]; /* of the two largest tiles */
    } devices[] = {{{.sm = 80, .ptx = 74}, 164 << 10, {4, 4}},
                   {{.sm = 89, .ptx = 78}, 100 << 10, {3, 2}},
                   {{.sm = 90, .ptx = 80, .arch = true}, 228 << 10, {4, 4}},
                   {{.sm = 90, .ptx = 85, .device = 100}, 228 << 10, {4, 4}},
                   {{.sm = 90, .ptx = 85, .device = 120}, 100 << 10, {3, 2}}};
    CudaProduct p = product(true, 1, 4096, 4096, 4096);
    for (size_t d = 0; d < sizeof devices / sizeof *devices; d++) {
        cr_expect_eq(cuda_shared_memory(&devices[d].target), devices[d].shared);
        for (int i = 0; i < CUDA_MMA_TILES; i++) {
            const CudaTile *t = &cuda_mma_tiles[i];
            int64_t slices = cuda_tile_slices(&devices[d].target, &p, t);
            int64_t bytes = slices * (cuda_tile_side(t, ROWS) + cuda_tile_side(t, COLUMNS)) * (cuda_tile_depth(&p, t) * 2 + 16);
            cr_expect_leq(t->blocks * (bytes + CUDA_SHARED_BLOCK), devices[d].shared, "device %zu, tile %d", d, i);
            cr_expect(slices >= 2 && (i > 1 || slices == devices[d].slices[i]), "device %zu, tile %d: %d slices", d, i, (int)slices);
        }
    }
}
