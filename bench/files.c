/*
 * files [--quick]: what a safetensors file costs: saving, opening, a tensor that lies in the mapping, its first touch and its second.
 * The file has 1 GiB (64 MiB with --quick) in TMPDIR, and is in the page cache: what is measured is kiln and the mapping, no disk.
 * Each round opens the file anew, so that its first touch takes every page's fault. Medians of 11 rounds.
 */
#include "timing.h"

#include <kiln.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 11, TENSORS = 64 };

static char path[512];

static int failed(const char *what)
{
    const char *why = kiln_error_message();
    fprintf(stderr, "files: %s: %s\n", what, *why ? why : "other values than those that were saved");
    remove(path);
    return 1;
}

/* Every tensor is read once, in the file's order. Are they those that were saved, "layer.i" n elements of i % 3? */
static bool touch(const kiln_file *file, kiln_tensor **all, int64_t n)
{
    bool same = true;
    for (int i = 0; i < TENSORS && same; i++) {
        double sum;
        same = kiln_item(kiln_sum(all[i]), &sum) == KILN_OK &&
               sum == (double)(n * (strtol(kiln_file_info(file, i).name + strlen("layer."), NULL, 10) % 3));
    }
    return same;
}

int main(int argc, char **argv)
{
    if (argc > 2 || (argc == 2 && strcmp(argv[1], "--quick") != 0)) {
        fprintf(stderr, "usage: files [--quick]\n");
        return 2;
    }
    bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
    int64_t n = quick ? 1 << 18 : 1 << 22; /* elements of one tensor */
    double bytes = (double)n * sizeof(float) * TENSORS, open_ms[ROUNDS], load_ms[ROUNDS], first[ROUNDS], second[ROUNDS], ratio[ROUNDS];
    char names[TENSORS][16];
    const char *tmp = getenv("TMPDIR");
    kiln_named named[TENSORS];
    snprintf(path, sizeof path, "%s/kiln_bench_files_%ld", tmp ? tmp : "/tmp", (long)getpid());
    kiln_scope *scope = kiln_scope_begin();
    for (int i = 0; i < TENSORS; i++) {
        snprintf(names[i], sizeof names[i], "layer.%d", i);
        named[i] = (kiln_named){names[i], kiln_full(KILN_F32, KILN_SHAPE(n), i % 3)};
        if (kiln_eval(named[i].tensor) != KILN_OK)
            return failed("filling");
    }
    double start = now_seconds();
    if (kiln_save_safetensors(path, TENSORS, named, 0, NULL) != KILN_OK)
        return failed("saving");
    double saved = now_seconds() - start;
    kiln_scope_end(scope);
    for (int round = -1; round < ROUNDS; round++) { /* the first compiles */
        int k = round < 0 ? 0 : round;
        kiln_tensor *all[TENSORS];
        scope = kiln_scope_begin();
        start = now_seconds();
        kiln_file *file = kiln_load_safetensors(path);
        double opened = now_seconds();
        if (!file || kiln_file_count(file) != TENSORS || kiln_file_tensors(file, all) != KILN_OK)
            return failed("loading");
        double loaded = now_seconds();
        if (!touch(file, all, n))
            return failed("the first touch");
        double touched = now_seconds();
        if (!touch(file, all, n))
            return failed("the second touch");
        second[k] = now_seconds() - touched;
        first[k] = touched - loaded;
        open_ms[k] = (opened - start) * 1e3;
        load_ms[k] = (loaded - start) * 1e3;
        ratio[k] = second[k] / first[k];
        kiln_file_free(file);
        kiln_scope_end(scope);
    }
    remove(path);
    printf("a file of %.0f MiB, %d tensors\n", bytes / 1048576, TENSORS);
    printf("saved, brought to the disk         %8.2f s   %6.1f GB/s\n", saved, bytes / saved * 1e-9);
    printf("opened and checked                 %8.3f ms\n", median(open_ms, ROUNDS));
    printf("the same, and every tensor         %8.3f ms  aim: at most 5\n", median(load_ms, ROUNDS));
    printf("summed up, at the first touch      %8.2f ms  %6.1f GB/s\n", median(first, ROUNDS) * 1e3, bytes / median(first, ROUNDS) * 1e-9);
    printf("summed up, at the second           %8.2f ms  %6.1f GB/s\n", median(second, ROUNDS) * 1e3,
           bytes / median(second, ROUNDS) * 1e-9);
    printf("second over first                  %8.2f\n", median(ratio, ROUNDS));
    return 0;
}
