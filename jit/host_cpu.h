/*
 * Which CPU this is, in words: read from the CPU itself, without LLVM, so that a process that finds all its code on disk never wakes
 * LLVM. Two hosts with equal words get equal code: everything is in it by which LLVM tells x86-64 CPUs apart.
 */
#ifndef JIT_HOST_CPU_H
#define JIT_HOST_CPU_H

/* "GenuineIntel 6 143": vendor, family, model. Static storage. */
const char *host_cpu_name(void);
/* "adx aes avx ... os-ymm": what it can do and what the system lets it do, in the order of jit/host_cpu.def. Static storage. */
const char *host_cpu_features(void);

#endif
