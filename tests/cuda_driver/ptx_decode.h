// ptx_decode.h: what decoding keeps while it goes through a kernel (ptx_decode.c: instructions and bodies; ptx_operand.c:
// names and operands).
#ifndef TEST_CUDA_PTX_DECODE_H
#define TEST_CUDA_PTX_DECODE_H

#include "tests/cuda_driver/exec.h"
#include "tests/cuda_driver/ptx.h"

typedef struct OpRow {
    const char *operands, *classes, *types;
} OpRow;
extern const OpRow ptx_op_rows[OP_COUNT];

typedef enum SymbolKind { SYMBOL_REGISTER, SYMBOL_VARIABLE, SYMBOL_LABEL } SymbolKind;

typedef struct Symbol {
    SymbolKind kind;
    const char *name;
    uint32_t count; // of %r<count>, 0: the name stands for itself
    uint32_t slot;  // of the (first) register
    PtxType type;
    Space space;   // of a variable: SPACE_LOCAL, or SPACE_PARAM (the kernel's own)
    bool is_param; // declared .param, wherever it lies
    int64_t offset;
    size_t size;
    uint32_t target; // of a label
    struct Symbol *next;
} Symbol;

typedef struct Scope {
    Symbol *symbols;
    struct Scope *parent;
} Scope;

typedef struct Fixup {
    uint32_t inst;
    const char *label; // NULL: the end of the inlined function
    Scope *scope;
    uint32_t line;
    struct Fixup *next;
} Fixup;

typedef struct Constant {
    uint64_t value;
    const Variable *variable; // whose address is added when it is known
    uint32_t slot;
    struct Constant *next;
} Constant;

typedef struct Special {
    SpecialRegister which;
    uint32_t slot;
    struct Special *next;
} Special;

typedef struct Decoder {
    Parser *p;
    Kernel *k;
    Scope *scope;
    Fixup *fixups;
    bool inlined;
    Constant *constants;
    Special *specials;
    size_t room;        // of code
    uint8_t *slot_type; // PtxType of a register's slot; T_NONE: constant or special
    size_t slot_room;
    size_t local_extent, shared_extent;
    // the instruction at hand
    Inst in;
    Arg arg[64];
    uint32_t arg_count;
    bool reads_clock;
    uint32_t clock;
} Decoder;

static inline uint32_t line_of(Decoder *d) { return d->p->token[d->p->at].line; }

static inline Token *peek(Decoder *d) { return &d->p->token[d->p->at]; }

static inline Token *next(Decoder *d)
{
    Token *t = peek(d);
    if (t->kind != TOKEN_END)
        d->p->at++;
    return t;
}

static inline uint64_t bits_mask(unsigned bits) { return bits >= 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1; }

static inline size_t align_up(size_t n, size_t align) { return (n + align - 1) / align * align; }

// ---- ptx_operand.c ----

void *ptx_grow(Arena *arena, void *old, size_t used, size_t *room, size_t size);
uint32_t ptx_new_slot(Decoder *d, PtxType type);
Symbol *ptx_add_symbol(Decoder *d, SymbolKind kind, const char *name);
// The symbol that `name` means in this scope or one around it; *index: which register of a numbered group.
const Symbol *ptx_find_symbol(const Scope *scope, const char *name, uint32_t *index);
// The kernel's own copy of a shared variable; a place in a thread's local memory. Both leave a gap before the variable.
const Variable *ptx_place_shared(Decoder *d, const Variable *v);
int64_t ptx_place_local(Decoder *d, Variable *v);
// All operands of the instruction at hand, up to its semicolon.
void ptx_parse_operands(Decoder *d);

#endif
