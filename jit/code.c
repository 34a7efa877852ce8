/*
 * The loader of host kernels: an ELF relocatable object, mapped and relocated, nothing else.
 *
 *   1. check the header and the section table
 *   2. give each section to be loaded (SHF_ALLOC) an offset in one mapping, aligned as it asks
 *   3. copy, zero, relocate
 *   4. find "run", make the mapping read-execute
 *
 * Every offset and length comes from the object, which may come from a disk: each is checked
 * against the object's size before use, by subtraction, so that nothing overflows. Accepted
 * relocations are those LLVM uses in PIC code of the small model without undefined symbols: PC32
 * and PLT32 (calls and constants), PC64 and 64, 32 and 32S where the value fits. The code itself is
 * not checked: a cache entry is guarded by its checksum and by its folder's owner.
 *
 * The mapping is writable first and read-execute afterwards, never both. Writable sections are
 * refused: kernels have none.
 */
#include "jit/code.h"
#include "ir/base/os.h"

#include <elf.h>
#include <string.h>

enum { MAX_SECTIONS = 256, MAX_ALIGN = 4096 };
static const size_t MAX_BYTES = (size_t)1 << 28;

struct Code {
    unsigned char *base;
    size_t bytes;
    KernelRun *run;
};

typedef struct Loader {
    const unsigned char *object;
    size_t bytes;
    unsigned n_sections;
    Elf64_Shdr section[MAX_SECTIONS];
    size_t place[MAX_SECTIONS]; /* offset in the mapping; SIZE_MAX: not loaded */
    unsigned symtab;            /* section of symbols */
    size_t n_symbols;
    unsigned char *base;
    size_t mapped;
    size_t run; /* its offset; SIZE_MAX: not found */
} Loader;

static bool inside(size_t bytes, uint64_t offset, uint64_t length) { return offset <= bytes && length <= bytes - offset; }

static Status bad(const char *what) { return fail(ST_FORMAT, "kernel object: %s", what); }

/* Step 1. */
static Status read_sections(Loader *l)
{
    Elf64_Ehdr h;
    if (l->bytes < sizeof h)
        return bad("shorter than its header");
    memcpy(&h, l->object, sizeof h);
    if (memcmp(h.e_ident, ELFMAG, SELFMAG) || h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_ident[EI_DATA] != ELFDATA2LSB)
        return bad("not a 64-bit little-endian ELF file");
    if (h.e_type != ET_REL || h.e_machine != EM_X86_64)
        return bad("not an x86-64 relocatable");
    if (h.e_shentsize != sizeof(Elf64_Shdr) || h.e_shnum == 0 || h.e_shnum > MAX_SECTIONS)
        return bad("odd section table");
    if (!inside(l->bytes, h.e_shoff, (uint64_t)h.e_shnum * sizeof(Elf64_Shdr)))
        return bad("section table outside the file");
    l->n_sections = h.e_shnum;
    memcpy(l->section, l->object + h.e_shoff, l->n_sections * sizeof(Elf64_Shdr));
    for (unsigned i = 0; i < l->n_sections; i++) {
        const Elf64_Shdr *s = &l->section[i];
        if (s->sh_type != SHT_NOBITS && s->sh_type != SHT_NULL && !inside(l->bytes, s->sh_offset, s->sh_size))
            return bad("section outside the file");
        if (s->sh_type != SHT_SYMTAB)
            continue;
        if (l->symtab)
            return bad("two symbol tables");
        if (s->sh_entsize != sizeof(Elf64_Sym) || s->sh_link >= l->n_sections || l->section[s->sh_link].sh_type != SHT_STRTAB)
            return bad("odd symbol table");
        l->symtab = i;
        l->n_symbols = s->sh_size / sizeof(Elf64_Sym);
    }
    return l->symtab ? ST_OK : bad("no symbol table");
}

/* Step 2. */
static Status place_sections(Loader *l)
{
    size_t at = 0;
    for (unsigned i = 0; i < l->n_sections; i++) {
        const Elf64_Shdr *s = &l->section[i];
        l->place[i] = SIZE_MAX;
        if (!(s->sh_flags & SHF_ALLOC) || s->sh_size == 0)
            continue;
        if (s->sh_flags & (SHF_WRITE | SHF_TLS))
            return bad("writable data");
        if (s->sh_type != SHT_PROGBITS && s->sh_type != SHT_NOBITS && s->sh_type != SHT_X86_64_UNWIND)
            return bad("unknown kind of loaded section");
        uint64_t align = s->sh_addralign ? s->sh_addralign : 1;
        if (align > MAX_ALIGN || (align & (align - 1)))
            return bad("odd alignment");
        at = (at + align - 1) & ~(size_t)(align - 1);
        if (!inside(MAX_BYTES, at, s->sh_size))
            return bad("too big");
        l->place[i] = at;
        at += s->sh_size;
    }
    l->mapped = at;
    return at ? ST_OK : bad("no code");
}

/* The n-th symbol's offset in the mapping (and its name, which ends inside the string table). */
static Status symbol_at(const Loader *l, uint64_t n, Elf64_Sym *symbol, const char **name)
{
    const Elf64_Shdr *symbols = &l->section[l->symtab], *strings = &l->section[symbols->sh_link];
    if (n >= l->n_symbols)
        return bad("symbol number outside the table");
    memcpy(symbol, l->object + symbols->sh_offset + n * sizeof *symbol, sizeof *symbol);
    if (symbol->st_name >= strings->sh_size)
        return bad("symbol name outside its table");
    *name = (const char *)l->object + strings->sh_offset + symbol->st_name;
    return memchr(*name, 0, strings->sh_size - symbol->st_name) ? ST_OK : bad("symbol name without end");
}

/* Where a symbol lies in the mapping. */
static Status resolve(const Loader *l, uint64_t n, size_t *offset)
{
    Elf64_Sym symbol;
    const char *name = "";
    TRY(symbol_at(l, n, &symbol, &name));
    if (symbol.st_shndx == SHN_UNDEF)
        return fail(ST_FORMAT, "kernel object: undefined symbol %.64s", name);
    if (symbol.st_shndx >= l->n_sections || l->place[symbol.st_shndx] == SIZE_MAX)
        return bad("symbol outside the loaded sections");
    if (symbol.st_value > l->section[symbol.st_shndx].sh_size)
        return bad("symbol outside its section");
    *offset = l->place[symbol.st_shndx] + symbol.st_value;
    return ST_OK;
}

static Status relocate_one(const Loader *l, unsigned target, const Elf64_Rela *r)
{
    size_t symbol;
    TRY(resolve(l, ELF64_R_SYM(r->r_info), &symbol));
    uint32_t type = ELF64_R_TYPE(r->r_info);
    size_t width = type == R_X86_64_64 || type == R_X86_64_PC64 ? 8 : 4;
    if (!inside(l->section[target].sh_size, r->r_offset, width))
        return bad("relocation outside its section");
    unsigned char *at = l->base + l->place[target] + r->r_offset;
    uint64_t value = (uint64_t)(uintptr_t)(l->base + symbol) + (uint64_t)r->r_addend;
    uint64_t relative = value - (uint64_t)(uintptr_t)at;
    switch (type) {
    case R_X86_64_64: memcpy(at, &value, 8); return ST_OK;
    case R_X86_64_PC64: memcpy(at, &relative, 8); return ST_OK;
    case R_X86_64_PC32:
    case R_X86_64_PLT32:
        if ((int64_t)relative != (int32_t)relative)
            return bad("relocation out of range");
        memcpy(at, &relative, 4);
        return ST_OK;
    case R_X86_64_32:
    case R_X86_64_32S:
        if (type == R_X86_64_32 ? value > UINT32_MAX : (int64_t)value != (int32_t)value)
            return bad("relocation out of range");
        memcpy(at, &value, 4);
        return ST_OK;
    }
    return fail(ST_FORMAT, "kernel object: relocation of type %u", (unsigned)type);
}

/* Step 3. */
static Status relocate(Loader *l)
{
    for (unsigned i = 0; i < l->n_sections; i++)
        if (l->place[i] != SIZE_MAX && l->section[i].sh_type != SHT_NOBITS)
            memcpy(l->base + l->place[i], l->object + l->section[i].sh_offset, l->section[i].sh_size);
    for (unsigned i = 0; i < l->n_sections; i++) {
        const Elf64_Shdr *s = &l->section[i];
        if (s->sh_type != SHT_RELA && s->sh_type != SHT_REL)
            continue;
        if (s->sh_info >= l->n_sections)
            return bad("odd relocation table");
        if (l->place[s->sh_info] == SIZE_MAX)
            continue; /* of debug data, of LLVM's profile of calls (llvm_opt=2) and the like */
        if (s->sh_type == SHT_REL)
            return bad("relocations without addends");
        if (s->sh_entsize != sizeof(Elf64_Rela) || s->sh_link != l->symtab)
            return bad("odd relocation table");
        for (size_t at = 0; at + sizeof(Elf64_Rela) <= s->sh_size; at += sizeof(Elf64_Rela)) {
            Elf64_Rela r;
            memcpy(&r, l->object + s->sh_offset + at, sizeof r);
            TRY(relocate_one(l, s->sh_info, &r));
        }
    }
    return ST_OK;
}

/* Step 4. */
static Status find_run(Loader *l)
{
    l->run = SIZE_MAX;
    for (size_t n = 1; n < l->n_symbols; n++) {
        Elf64_Sym symbol;
        const char *name = "";
        TRY(symbol_at(l, n, &symbol, &name));
        if (strcmp(name, "run") != 0)
            continue;
        TRY(resolve(l, n, &l->run));
        if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || !(l->section[symbol.st_shndx].sh_flags & SHF_EXECINSTR) ||
            symbol.st_value >= l->section[symbol.st_shndx].sh_size)
            return bad("run is no function");
    }
    return l->run != SIZE_MAX ? ST_OK : bad("lacks run");
}

static Status load(Loader *l, Code **out)
{
    TRY(read_sections(l));
    TRY(place_sections(l));
    l->base = os_map_rw(l->mapped);
    if (!l->base)
        return fail(ST_OUT_OF_MEMORY, "kernel object: no memory to map %zu bytes", l->mapped);
    Status status = relocate(l);
    if (status == ST_OK)
        status = find_run(l);
    if (status == ST_OK && !os_protect_rx(l->base, l->mapped))
        status = fail(ST_UNSUPPORTED, "the system refuses executable memory");
    Code *code = status == ST_OK ? os_calloc(1, sizeof *code) : NULL;
    if (status == ST_OK && !code)
        status = fail(ST_OUT_OF_MEMORY, "kernel object: no memory");
    if (status != ST_OK) {
        os_unmap(l->base, l->mapped);
        return status;
    }
    code->base = l->base;
    code->bytes = l->mapped;
    unsigned char *run = l->base + l->run;
    memcpy(&code->run, &run, sizeof run); /* object pointer to function pointer, as POSIX allows */
    *out = code;
    return ST_OK;
}

Status code_load(const void *object, size_t bytes, Code **out)
{
    *out = NULL;
    Loader *l = os_calloc(1, sizeof *l);
    if (!l)
        return fail(ST_OUT_OF_MEMORY, "kernel object: no memory");
    l->object = object;
    l->bytes = bytes;
    Status status = load(l, out);
    os_free(l);
    return status;
}

void code_free(Code *code)
{
    if (!code)
        return;
    os_unmap(code->base, code->bytes);
    os_free(code);
}

KernelRun *code_run(const Code *code) { return code->run; }
size_t code_bytes(const Code *code) { return code->bytes; }
