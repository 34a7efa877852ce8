/*
 * Which vectors compiled code has in this run: KILN_CPU and KILN_VECTOR_BITS of the environment, and what this machine can execute. Programs
 * say it at their end. What cannot be executed is compiled all the same, IR and object are checked, and the interpreter computes
 * (jit/codegen.c); a test then looks at the reason of that.
 */
#ifndef TESTS_SUPPORT_VECTORS_H
#define TESTS_SUPPORT_VECTORS_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline const char *vectors_asked(const char *variable, const char *otherwise)
{
    const char *text = getenv(variable);
    return text && *text ? text : otherwise;
}

static inline bool vectors_wide(void)
{
    bool hidden = strcmp(vectors_asked("KILN_TEST_FAIL", ""), "cpu:-avx512f") == 0;
    return !hidden && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
}

/* Can this machine execute what the environment asks for? */
static inline bool vectors_executed(void) { return strcmp(vectors_asked("KILN_CPU", "host"), "x86-64-v4") != 0 || vectors_wide(); }

/* Is that the reason why the interpreter computed? `warning`: the library's last. */
static inline bool vectors_missing(const char *warning) { return !vectors_executed() && strstr(warning, "cannot run code for"); }

static inline void vectors_print(void)
{
    const char *cpu = vectors_asked("KILN_CPU", "host");
    int asked = atoi(vectors_asked("KILN_VECTOR_BITS", "0"));
    int most = strcmp(cpu, "x86-64-v3") == 0 ? 256 : strcmp(cpu, "x86-64-v4") == 0 || vectors_wide() ? 512 : 256;
    printf("vectors: %d bits, cpu=%s%s\n", asked && asked < most ? asked : most, cpu,
           vectors_executed() ? "" : ": compiled and checked, not executed: this machine cannot");
}

#endif
