/* The host CPU by cpuid. See host_cpu.h; what is asked for is the table of host_cpu.def. */
#include "jit/host_cpu.h"

#include <cpuid.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { EAX, EBX, ECX, EDX };
#define XCR0 0x0c000000u /* no leaf of cpuid */

static const struct Feature {
    unsigned leaf, subleaf;
    int reg, bit;
    const char *name;
} table[] = {
#define FEATURE(leaf, subleaf, reg, bit, name) {leaf, subleaf, reg, bit, name},
#include "jit/host_cpu.def"
#undef FEATURE
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char name[64], features[1536];

static void ask(unsigned leaf, unsigned subleaf, unsigned reg[4])
{
    memset(reg, 0, 4 * sizeof *reg);
    if (leaf == XCR0) {
        __cpuid_count(1, 0, reg[EAX], reg[EBX], reg[ECX], reg[EDX]);
        bool osxsave = reg[ECX] >> 27 & 1;
        memset(reg, 0, 4 * sizeof *reg);
        if (osxsave)
            __asm__ volatile("xgetbv" : "=a"(reg[EAX]), "=d"(reg[EDX]) : "c"(0));
    } else {
        __get_cpuid_count(leaf, subleaf, &reg[EAX], &reg[EBX], &reg[ECX], &reg[EDX]); /* zeros where there is no such leaf */
    }
}

static void identify(void)
{
    unsigned reg[4];
    char vendor[13] = "";
    ask(0, 0, reg);
    memcpy(vendor, &reg[EBX], 4);
    memcpy(vendor + 4, &reg[EDX], 4);
    memcpy(vendor + 8, &reg[ECX], 4);
    ask(1, 0, reg);
    unsigned family = reg[EAX] >> 8 & 15, model = reg[EAX] >> 4 & 15;
    if (family == 6 || family == 15)
        model |= (reg[EAX] >> 16 & 15) << 4;
    if (family == 15)
        family += reg[EAX] >> 20 & 255;
    snprintf(name, sizeof name, "%s %u %u", vendor, family, model);
}

static void init(void)
{
    identify();
    unsigned reg[4] = {0}, leaf = 0, subleaf = 0;
    size_t at = 0;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const struct Feature *f = &table[i];
        if (i == 0 || f->leaf != leaf || f->subleaf != subleaf)
            ask(leaf = f->leaf, subleaf = f->subleaf, reg);
        if (reg[f->reg] >> f->bit & 1)
            at += (size_t)snprintf(features + at, sizeof features - at, "%s%s", at ? " " : "", f->name);
    }
}

const char *host_cpu_name(void)
{
    (void)pthread_once(&once, init);
    return name;
}

const char *host_cpu_features(void)
{
    (void)pthread_once(&once, init);
    return features;
}
