/*
 * Finds the F32 coefficients of poly_sin_half_pi (ir/expand_coef.c):
 *
 *     cc -O3 -march=native -ffp-contract=off -fno-trapping-math search_sin.c -o search_sin -lm && ./search_sin [seed [steps]]
 *
 * The minimax polynomial (coefficients.py sin_half_pi) is as good as this one on paper, but its rounded sum exceeds 1 at a
 * few r near pi/2, and a clamp would cost two instructions an element. So a random walk starts there: a step moves
 * the coefficients so that they about cancel each other near the end of the interval, and is kept when the
 * worst error over a sample, with every r near pi/2 in it, is no larger; a sum above 1 counts as a huge error. What comes
 * out is checked over every r. Results differ by how the errors of the reduction of x add up: of several seeds, the one was
 * taken whose sin and cos have the smallest errors over all x below 2^17.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COEFFICIENTS = 4, MOST = 1 << 19, BLOCK = 4096 };
static const float end = 1.5833f; /* pi/2 (1 + 1/128) and a little */

static float r_at[MOST], high[MOST], low[MOST], per_ulp[MOST]; /* sin r = high + low */
static size_t n;

static float of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t to_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* As sin_half_pi of ir/expand_trig.c. */
static inline float sine(const float *c, float r)
{
    float z = fmaf(r, r, 0x1p-100f), p = c[3];
    p = fmaf(p, z, c[2]);
    p = fmaf(p, z, c[1]);
    p = fmaf(p, z, c[0]);
    return fmaf(r, fmaf(z, p, -0x1p-100f * c[0]), r);
}

static void add(float r)
{
    double s = sin((double)r);
    r_at[n] = r;
    high[n] = (float)s;
    low[n] = (float)(s - (double)high[n]);
    per_ulp[n++] = ldexpf(1, 23 - ilogb(s));
}

static void add_every(float from, float to, uint32_t stride)
{
    for (uint32_t u = to_bits(from); u < to_bits(to); u += stride)
        add(of_bits(u));
}

/* The worst error over the sample in ULP; stops early where it exceeds `limit`. */
static float worst(const float *c, float limit)
{
    float most = 0;
    for (size_t at = 0; at < n && most <= limit; at += BLOCK)
        for (size_t i = at; i < at + BLOCK; i++) {
            float s = sine(c, r_at[i]), e = fabsf((s - high[i]) - low[i]) * per_ulp[i];
            e = s > 1 ? 50 : e;
            most = e > most ? e : most;
        }
    return most;
}

/* -1 to 1 */
static double unit(void) { return rand() / (RAND_MAX / 2.0) - 1; }

static void step(float *c)
{
    double z = 2.467, d3 = rand() % 3 ? unit() * ldexp(1, rand() % 4 ? -33 : -29) : 0;
    double d2 = -d3 * z * (1 + 0.4 * unit()), d1 = 0;
    if (rand() % 2)
        d1 = -(d2 * z + d3 * z * z) * (1 + 0.5 * unit());
    if (rand() % 3 == 0)
        d2 += unit() * 20 * 0x1p-36;
    if (rand() % 3 == 0)
        d1 += unit() * 10 * 0x1p-30;
    if (rand() % 3 == 0)
        c[0] = of_bits(to_bits(c[0]) + (uint32_t)(rand() % 5) - 2);
    c[1] = (float)(c[1] + d1);
    c[2] = (float)(c[2] + d2);
    c[3] = (float)(c[3] + d3);
}

int main(int argc, char **argv)
{
    float best[COEFFICIENTS] = {-0x1.55554cp-3f, 0x1.110edap-7f, -0x1.9f70e2p-13f, 0x1.5dc754p-19f};
    int steps = argc > 2 ? atoi(argv[2]) : 60000;
    srand(argc > 1 ? (unsigned)atoi(argv[1]) : 1);
    add_every(1.5703f, 1.5713f, 1);
    add_every(1.4f, end, 5);
    add_every(0.5f, 1.4f, 499);
    add_every(0x1p-5f, 0.5f, 4999);
    while (n % BLOCK)
        add(end);
    float error = worst(best, INFINITY);
    for (int i = 0; i < steps; i++) {
        float c[COEFFICIENTS];
        memcpy(c, best, sizeof c);
        step(c);
        float e = worst(c, error);
        if (e <= error) {
            error = e;
            memcpy(best, c, sizeof best);
        }
    }
    double most = 0;
    size_t above_one = 0;
    for (uint32_t u = to_bits(0x1p-8f); u <= to_bits(end); u++) {
        float r = of_bits(u), s = sine(best, r);
        double want = sin((double)r), e = fabs((double)s - want) * ldexp(1, 23 - ilogb(want));
        most = e > most ? e : most;
        above_one += s > 1;
    }
    printf("{%a, %a, %a, %a}: %.4f ULP over every r, above 1 at %zu\n", (double)best[0], (double)best[1], (double)best[2], (double)best[3],
           most, above_one);
    return above_one != 0;
}
