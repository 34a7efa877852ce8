/*
 * A host object as assembly. Reading the finished bytes back costs a fifth of generating code a second time, and shows what really runs.
 *
 *     run:
 *             pushq   %rbp
 *             vmovaps 64(%rip), %zmm1                 # .rodata.cst64+0x40
 *             jle     .L1c0
 *     ...
 *     .rodata.cst64:
 *             .long   0x3f800000, ...
 *
 * One pass: the disassembler asks for the name of each jump's target, which is noted; labels are put in when the lines are written.
 */
#include "jit/llvm/disassemble.h"
#include "ir/base/bytes.h"
#include "ir/base/os.h"

#include <elf.h>
#include <llvm-c/Disassembler.h>
#include <llvm-c/Target.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { LABEL = 24, LINE = 160, COMMENT_COLUMN = 56 };

typedef struct Line {
    uint32_t address, at, length; /* its text lies at `at` of lines_text */
} Line;

typedef struct Dis {
    const uint8_t *object;
    const Elf64_Shdr *sections;
    unsigned n_sections;
    const char *section_names;
    const Elf64_Shdr *code;
    uint8_t *target;   /* by byte of the code section: something jumps here */
    char label[LABEL]; /* the last one asked for */
    Bytes lines, lines_text, out;
} Dis;

static __attribute__((format(printf, 2, 3))) void put(Bytes *out, const char *format, ...)
{
    char text[LINE + LABEL];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    bytes_add(out, text, n < 0 ? 0 : (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

static const char *name_target(void *user, uint64_t value, uint64_t *type, uint64_t pc, const char **name)
{
    Dis *d = user;
    bool branch = *type == LLVMDisassembler_ReferenceType_In_Branch && value < d->code->sh_size;
    (void)pc;
    *type = LLVMDisassembler_ReferenceType_InOut_None;
    *name = NULL;
    if (!branch)
        return NULL;
    d->target[value] = 1;
    snprintf(d->label, sizeof d->label, ".L%llx", (unsigned long long)value);
    return d->label;
}

static const char *section_name(const Dis *d, unsigned index)
{
    return index < d->n_sections ? d->section_names + d->sections[index].sh_name : "?";
}

/* What the instruction at [from, to) refers to outside the code: "# .rodata.cst4+0x8". */
static void put_reference(Dis *d, size_t from, size_t to, size_t column)
{
    for (unsigned i = 0; i < d->n_sections; i++) {
        const Elf64_Shdr *s = &d->sections[i];
        if (s->sh_type != SHT_RELA || &d->sections[s->sh_info] != d->code)
            continue;
        for (size_t at = 0; at < s->sh_size; at += sizeof(Elf64_Rela)) {
            Elf64_Rela r;
            Elf64_Sym symbol;
            memcpy(&r, d->object + s->sh_offset + at, sizeof r);
            if (r.r_offset < from || r.r_offset >= to)
                continue;
            memcpy(&symbol, d->object + d->sections[s->sh_link].sh_offset + ELF64_R_SYM(r.r_info) * sizeof symbol, sizeof symbol);
            /* relative to the end of the instruction, which the addend makes up for */
            long long offset = (long long)symbol.st_value + r.r_addend + (long long)(to - r.r_offset);
            put(&d->lines_text, "%*s# %s+0x%llx", column < COMMENT_COLUMN ? (int)(COMMENT_COLUMN - column) : 1, "",
                section_name(d, symbol.st_shndx), (unsigned long long)offset);
        }
    }
}

static Status take_apart(Dis *d, LLVMDisasmContextRef context)
{
    uint8_t *code = (uint8_t *)(uintptr_t)(d->object + d->code->sh_offset); /* not written */
    size_t size = d->code->sh_size;
    for (size_t at = 0; at < size;) {
        char text[LINE];
        size_t n = LLVMDisasmInstruction(context, code + at, size - at, at, text, sizeof text);
        if (n == 0)
            return fail(ST_COMPILE, "no instruction at offset %zu", at);
        Line line = {(uint32_t)at, (uint32_t)d->lines_text.n, 0};
        put(&d->lines_text, "%s", text);
        put_reference(d, at, at + n, strlen(text) + 8);
        line.length = (uint32_t)d->lines_text.n - line.at;
        bytes_add(&d->lines, &line, sizeof line);
        at += n;
    }
    return ST_OK;
}

/* The functions that begin here. */
static void put_functions(Dis *d, size_t address)
{
    for (unsigned i = 0; i < d->n_sections; i++) {
        const Elf64_Shdr *s = &d->sections[i];
        for (size_t at = 0; s->sh_type == SHT_SYMTAB && at < s->sh_size; at += sizeof(Elf64_Sym)) {
            Elf64_Sym symbol;
            memcpy(&symbol, d->object + s->sh_offset + at, sizeof symbol);
            if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_value == address && &d->sections[symbol.st_shndx] == d->code)
                put(&d->out, "%s:\n", (const char *)d->object + d->sections[s->sh_link].sh_offset + symbol.st_name);
        }
    }
}

static void put_lines(Dis *d)
{
    for (size_t i = 0; i < d->lines.n / sizeof(Line); i++) {
        Line line;
        memcpy(&line, d->lines.at + i * sizeof line, sizeof line);
        put_functions(d, line.address);
        if (d->target[line.address])
            put(&d->out, ".L%x:\n", (unsigned)line.address);
        bytes_add(&d->out, d->lines_text.at + line.at, line.length);
        bytes_u8(&d->out, '\n');
    }
}

static void put_constants(Dis *d)
{
    for (unsigned i = 0; i < d->n_sections; i++) {
        const Elf64_Shdr *s = &d->sections[i];
        if (s->sh_type != SHT_PROGBITS || !(s->sh_flags & SHF_ALLOC) || (s->sh_flags & SHF_EXECINSTR) || s->sh_size == 0)
            continue;
        put(&d->out, "%s:", section_name(d, i));
        for (size_t at = 0; at + 4 <= s->sh_size; at += 4) {
            uint32_t word;
            memcpy(&word, d->object + s->sh_offset + at, sizeof word);
            put(&d->out, "%s0x%08x", at % 32 ? ", " : "\n\t.long\t", (unsigned)word);
        }
        put(&d->out, "\n");
    }
}

/* One section of code; rarely run functions have one of their own (".text.unlikely."). */
static Status print_code(Dis *d, const Elf64_Shdr *code, LLVMDisasmContextRef context)
{
    d->code = code;
    d->lines.n = d->lines_text.n = 0;
    d->target = os_calloc(code->sh_size, 1);
    Status status = d->target ? take_apart(d, context) : ST_OUT_OF_MEMORY;
    if (d->lines.failed || d->lines_text.failed)
        status = ST_OUT_OF_MEMORY;
    if (status == ST_OK)
        put_lines(d);
    os_free(d->target);
    return status;
}

static Status print(Dis *d, const char *cpu, LLVMDisasmContextRef context)
{
    unsigned printed = 0;
    for (unsigned i = 0; context && i < d->n_sections; i++) {
        const Elf64_Shdr *s = &d->sections[i];
        if (!(s->sh_flags & SHF_EXECINSTR) || s->sh_size == 0)
            continue;
        TRY(print_code(d, s, context));
        printed++;
    }
    if (!printed)
        return fail(ST_COMPILE, "LLVM has no disassembler for %s", cpu);
    put_constants(d);
    bytes_u8(&d->out, 0);
    return d->out.failed ? ST_OUT_OF_MEMORY : ST_OK;
}

Status disassemble(const char *triple, const char *cpu, const char *features, const void *object, size_t bytes, char **text)
{
    Elf64_Ehdr header;
    (void)bytes;
    *text = NULL;
    memcpy(&header, object, sizeof header);
    Dis d = {.object = object, .n_sections = header.e_shnum};
    Elf64_Shdr *sections = os_alloc(header.e_shnum * sizeof *sections);
    if (!sections)
        return fail(ST_OUT_OF_MEMORY, "no memory for a kernel's assembly");
    memcpy(sections, d.object + header.e_shoff, header.e_shnum * sizeof *sections);
    d.sections = sections;
    d.section_names = (const char *)d.object + sections[header.e_shstrndx].sh_offset;
    LLVMDisasmContextRef context = LLVMCreateDisasmCPUFeatures(triple, cpu, features, &d, 0, NULL, name_target);
    Status status = print(&d, cpu, context);
    if (status == ST_OUT_OF_MEMORY)
        (void)fail(status, "no memory for a kernel's assembly");
    if (context)
        LLVMDisasmDispose(context);
    os_free(sections);
    os_free(d.lines.at);
    os_free(d.lines_text.at);
    if (status == ST_OK)
        *text = (char *)d.out.at;
    else
        os_free(d.out.at);
    return status;
}
