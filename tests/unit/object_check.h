/*
 * What can be said of an object without executing it, read from its assembly (as jit/llvm/disassemble.c writes it): how many bytes each
 * instruction reads or writes at once through a pointer of the program, and how much stack it takes.
 */
#ifndef TESTS_UNIT_OBJECT_CHECK_H
#define TESTS_UNIT_OBJECT_CHECK_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of a memory operand by the instruction's name, where they are not those of the widest register; 0: those. `wide`: of that. */
static inline size_t object_operand_bytes(const char *name, size_t wide)
{
    static const struct {
        const char *start;
        size_t bytes, part; /* so many, or this part of the register */
    } rows[] = {
        {"vmovss", 4, 0},       {"vmovsd", 8, 0},       {"vmovd", 4, 0},        {"vmovq", 8, 0},        {"vinsertps", 4, 0},
        {"vbroadcastss", 4, 0}, {"vbroadcastsd", 8, 0}, {"vpbroadcastb", 1, 0}, {"vpbroadcastw", 2, 0}, {"vpbroadcastd", 4, 0},
        {"vpbroadcastq", 8, 0}, {"vpinsrb", 1, 0},      {"vpinsrw", 2, 0},      {"vpinsrd", 4, 0},      {"vpinsrq", 8, 0},
        {"vpextrb", 1, 0},      {"vpextrw", 2, 0},      {"vpextrd", 4, 0},      {"vpextrq", 8, 0},      {"vextractps", 4, 0},
        {"vaddss", 4, 0},       {"vaddsd", 8, 0},       {"vcvtph2ps", 0, 2},    {"vcvtps2ph", 0, 2},    {"vpmovzxbw", 0, 2},
        {"vpmovzxwd", 0, 2},    {"vpmovzxdq", 0, 2},    {"vpmovsxwd", 0, 2},    {"vpmovzxbd", 0, 4},    {"vpmovsxbd", 0, 4},
        {"vmovlps", 8, 0},      {"vmovhps", 8, 0},      {"vmovddup", 8, 0},
    };
    size_t n = strcspn(name, " \t");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strlen(rows[i].start) == n && strncmp(rows[i].start, name, n) == 0)
            return rows[i].bytes ? rows[i].bytes : wide / rows[i].part;
    return wide;
}

/* Bytes that one line of assembly reads or writes through a pointer, without a mask. 0: none, or its own stack or constants, or under a mask. */
static inline size_t object_access_bytes(const char *line)
{
    char text[256];
    snprintf(text, sizeof text, "%s", line + strspn(line, " \t"));
    if (strchr(text, '#'))
        *strchr(text, '#') = 0;
    const char *at = strchr(text, '(');
    if (!at || text[0] != 'v' || strstr(text, "{%k") || strstr(text, "maskmov") || strstr(text, "gather") || strstr(text, "scatter") ||
        strncmp(at, "(%rip", 5) == 0 || strncmp(at, "(%rsp", 5) == 0 || strncmp(at, "(%rbp", 5) == 0)
        return 0;
    size_t wide = strstr(text, "%zmm") ? 64 : strstr(text, "%ymm") ? 32 : strstr(text, "%xmm") ? 16 : 8;
    return object_operand_bytes(text, wide);
}

/* No instruction accesses more than `most` bytes at once. */
static inline void object_check_accesses(const char *assembly, size_t most)
{
    for (const char *line = assembly; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        char text[256];
        snprintf(text, sizeof text, "%.*s", (int)strcspn(line, "\n"), line);
        cr_assert_leq(object_access_bytes(text), most, "of a buffer of %zu bytes:%s\n%s", most, text, assembly);
    }
}

/* The largest frame that a function takes. */
static inline size_t object_stack_bytes(const char *assembly)
{
    size_t most = 0;
    for (const char *at = assembly; (at = strstr(at, "subq\t$")); at++) {
        char *end;
        size_t bytes = (size_t)strtoull(at + 6, &end, 10);
        if (strncmp(end, ", %rsp", 6) == 0 && bytes > most)
            most = bytes;
    }
    return most;
}

static inline void object_check_stack(const char *assembly, size_t most)
{
    cr_assert_leq(object_stack_bytes(assembly), most, "%zu bytes of stack:\n%s", object_stack_bytes(assembly), assembly);
}

#endif
