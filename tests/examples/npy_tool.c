/*
 * Writes and checks .npy files without kiln, so that kiln's own reader and writer don't vouch for each other.
 *
 *     npy_tool make FILE DTYPE ROWS COLUMNS     a matrix with columns of different mean and spread; the last one constant
 *     npy_tool check FILE DTYPE ROWS COLUMNS    exits 0 when FILE is make's matrix standardised
 * DTYPE is f4, f8 or i4 (check: what the result should have).
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Element (i, j) of the matrix: whole numbers, so that every dtype holds them exactly. */
static double element(long i, long j, long columns)
{
    if (j == columns - 1)
        return 42;
    uint32_t h = (uint32_t)i * 2654435761u ^ (uint32_t)j * 2246822519u;
    h ^= h >> 15;
    h *= 2654435761u;
    h ^= h >> 13;
    return (double)(h % 1000) * (double)(1 + j % 7) - 100.0 * (double)j;
}

static int make(const char *path, const char *dtype, long rows, long columns)
{
    char dict[128];
    int length = snprintf(dict, sizeof dict, "{'descr': '<%s', 'fortran_order': False, 'shape': (%ld, %ld), }", dtype, rows, columns);
    int header = (10 + length + 1 + 63) / 64 * 64 - 10;
    FILE *file = fopen(path, "wb");
    if (!file)
        return 1;
    fwrite("\x93NUMPY\x01\x00", 1, 8, file);
    fputc(header & 255, file);
    fputc(header >> 8, file);
    fprintf(file, "%-*s\n", header - 1, dict);
    for (long i = 0; i < rows; i++)
        for (long j = 0; j < columns; j++) {
            double value = element(i, j, columns);
            float f4 = (float)value;
            int32_t i4 = (int32_t)value;
            if (strcmp(dtype, "f8") == 0)
                fwrite(&value, sizeof value, 1, file);
            else if (strcmp(dtype, "f4") == 0)
                fwrite(&f4, sizeof f4, 1, file);
            else
                fwrite(&i4, sizeof i4, 1, file);
        }
    return fclose(file) != 0;
}

/* Reads the file; NULL with a message when it is not a rows x columns matrix of dtype. */
static double *read_matrix(const char *path, const char *dtype, long rows, long columns)
{
    FILE *file = fopen(path, "rb");
    unsigned char head[10];
    char dict[4096] = "", want[64];
    if (!file || fread(head, 1, 10, file) != 10 || memcmp(head, "\x93NUMPY\x01\x00", 8) != 0) {
        fprintf(stderr, "%s: no .npy file of format 1.0\n", path);
        exit(1);
    }
    size_t length = head[8] + 256u * head[9];
    if (length >= sizeof dict || fread(dict, 1, length, file) != length || (10 + length) % 64 != 0) {
        fprintf(stderr, "%s: bad header length\n", path);
        exit(1);
    }
    snprintf(want, sizeof want, "'shape': (%ld, %ld)", rows, columns);
    char descr[32];
    snprintf(descr, sizeof descr, "'descr': '<%s'", dtype);
    if (!strstr(dict, want) || !strstr(dict, descr) || !strstr(dict, "'fortran_order': False")) {
        fprintf(stderr, "%s: header %s\n", path, dict);
        exit(1);
    }
    size_t n = (size_t)(rows * columns), size = dtype[1] == '8' ? 8 : 4;
    double *out = malloc(n * sizeof *out + 1);
    for (size_t i = 0; out && i < n; i++) {
        float f4 = 0;
        size_t got = size == 8 ? fread(&out[i], 8, 1, file) : fread(&f4, 4, 1, file);
        if (size == 4)
            out[i] = (double)f4;
        if (got != 1) {
            fprintf(stderr, "%s: too short\n", path);
            exit(1);
        }
    }
    if (fgetc(file) != EOF) {
        fprintf(stderr, "%s: bytes after the end\n", path);
        exit(1);
    }
    fclose(file);
    return out;
}

static int check(const char *path, const char *dtype, long rows, long columns)
{
    double *got = read_matrix(path, dtype, rows, columns), tolerance = dtype[1] == '8' ? 1e-12 : 2e-5;
    int wrong = 0;
    for (long j = 0; got && j < columns; j++) {
        double mean = 0, var = 0;
        for (long i = 0; i < rows; i++)
            mean += element(i, j, columns) / (double)rows;
        for (long i = 0; i < rows; i++)
            var += (element(i, j, columns) - mean) * (element(i, j, columns) - mean) / (double)rows;
        for (long i = 0; i < rows && wrong < 10; i++) {
            double want = j == columns - 1 ? 0 : (element(i, j, columns) - mean) / sqrt(var);
            double error = fabs(got[i * columns + j] - want);
            if (!(error <= tolerance * (1 + fabs(want)))) {
                fprintf(stderr, "(%ld, %ld): got %.9g, want %.9g\n", i, j, got[i * columns + j], want);
                wrong++;
            }
        }
    }
    free(got);
    return wrong != 0;
}

int main(int argc, char **argv)
{
    if (argc != 6)
        return 2;
    long rows = atol(argv[4]), columns = atol(argv[5]);
    return strcmp(argv[1], "make") == 0 ? make(argv[2], argv[3], rows, columns) : check(argv[2], argv[3], rows, columns);
}
