// ptx.h: PTX text, and what it becomes before it runs.
//
//   text -> tokens (ptx_lex.c) -> module: variables and functions (ptx_parse.c) -> code of each kernel (ptx_decode.c)
//
// Code is decoded once per kernel. Every value has a slot: a register, a constant or a special register is one number, the
// index of 32 lanes of 64 bits in a warp's register file, so that an instruction reads all its sources the same way. Calls
// are inlined: the callee's body is decoded anew at each call with slots and local memory of its own. So a warp has no call
// stack, and the place of an instruction in the code orders lanes that diverged. Recursion and indirect calls are refused.
//
// Everything of a module lives in its arena. Errors in the text end parsing by a longjmp to ptx_parse, which gives the
// message; no other function here can fail half-way.
#ifndef TEST_CUDA_PTX_H
#define TEST_CUDA_PTX_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// ---- types and modifiers: rows of ptx_modifiers.def ----

typedef enum PtxType {
    T_NONE,
#define TYPE(name, text, bits, cls, lanes) T_##name,
#include "tests/cuda_driver/ptx_modifiers.def"
    T_COUNT
} PtxType;

typedef struct PtxTypeInfo {
    const char *text;
    uint8_t bits;  // of the whole value
    char cls;      // 'b' untyped, 'u', 's', 'f', 'p' predicate
    uint8_t lanes; // 2 for packed halves
} PtxTypeInfo;
extern const PtxTypeInfo ptx_types[T_COUNT];

// Classes of modifiers. One word (".lo", ".and") may stand in several; the row of the opcode says which ones it takes.
/* clang-format off */
#define PTX_CLASSES(X)                                                                                                                  \
    X(ROUND)                                                                                                                            \
    X(FLAG)                                                                                                                             \
    X(COMPARE)                                                                                                                          \
    X(BOOLEAN)                                                                                                                          \
    X(WIDTH)                                                                                                                            \
    X(VECTOR) X(SPACE) X(CACHE) X(SEMANTICS) X(SCOPE) X(ATOMIC) X(SHUFFLE) X(VOTE) X(SYNC) X(TO) X(CARRY) X(DIRECTION) X(SHIFT) X(PRMT) \
        X(TEST) X(UNIFORM) X(SHAPE) X(LAYOUT) X(ASYNC) X(LEVEL) X(REDUCE)
typedef enum PtxClass {
#define X(name) C_##name,
    PTX_CLASSES(X)
#undef X
        C_COUNT
} PtxClass;
/* clang-format on */

enum { // values of modifiers; 0 is "absent" in every class
    M_ABSENT,
#define TYPE(name, text, bits, cls, lanes)
#define MOD(cls, name, text) M_##cls##_##name,
#include "tests/cuda_driver/ptx_modifiers.def"
    M_COUNT
};

// Members of the class FLAG are kept as a set.
#define FLAG(name) (1u << (M_FLAG_##name - M_FLAG_ftz))

// ---- opcodes: rows of ptx_ops.def ----

typedef enum PtxOp {
#define OP(name, text, run, operands, classes, types) OP_##name,
#include "tests/cuda_driver/ptx_ops.def"
    OP_COUNT
} PtxOp;
extern const char *const ptx_op_names[OP_COUNT];

// ---- code ----

enum { LANES = 32, MAX_OPERANDS = 6, NO_SLOT = UINT32_MAX };

typedef struct Arg {
    uint32_t slot;  // NO_SLOT: the sink "_", or an address without a register
    bool negate;    // "!p"
    int64_t offset; // of an address
} Arg;

struct Warp;
struct Inst;
typedef void (*Run)(struct Warp *w, const struct Inst *in);
typedef uint64_t (*Eval)(const struct Inst *in, uint64_t a, uint64_t b, uint64_t c, uint64_t d);

typedef struct Inst {
    Run run;
    Eval eval;             // for the plain ones: result of one lane
    uint64_t mask;         // of the result's bits
    uint8_t op;            // PtxOp
    uint8_t type[4];       // in the order written; [0] is mostly the result's
    uint8_t types;         // how many
    uint16_t mod[C_COUNT]; // value per class, 0 absent
    uint32_t flags;        // FLAG(...)
    uint8_t operands;      // operand i is arg[first[i]], count[i] of them (a vector in braces has several)
    uint8_t first[MAX_OPERANDS], count[MAX_OPERANDS];
    const Arg *arg;
    uint32_t guard; // slot of the predicate, or NO_SLOT
    bool guard_negate;
    uint8_t bits; // of type[0], and whether it is signed
    bool is_signed;
    int host_round;  // FE_* for the eval
    uint32_t target; // of a branch
    uint32_t line;
} Inst;

typedef enum Space { SPACE_GENERIC, SPACE_GLOBAL, SPACE_SHARED, SPACE_LOCAL, SPACE_PARAM, SPACE_CONST } Space;

typedef struct Variable {
    const char *name;
    Space space;
    size_t size, align;
    uint64_t address;               // global and const: device address, given when the module is loaded; else offset in its space
    const uint8_t *initial;         // or NULL: global variables start as zeros
    struct Relocation *relocations; // addresses of other variables in the initial value
    bool external;                  // dynamic shared memory when size is 0
    struct Variable *next;
} Variable;

typedef struct Relocation {
    size_t offset;
    const char *symbol;
    int64_t addend;
    bool generic;
    struct Relocation *next;
} Relocation;

typedef struct Param {
    const char *name;
    size_t offset, size, align;
} Param;

typedef struct ConstantSlot {
    uint32_t slot;
    uint64_t value;
    const Variable *variable; // its address is added, or NULL
} ConstantSlot;

typedef struct SpecialSlot {
    uint32_t slot;
    int special; // SpecialRegister
} SpecialSlot;

// Special registers whose value is fixed for a thread; clocks are read by an instruction of their own.
/* clang-format off */
#define PTX_SPECIALS(X)                                                                                                               \
    X(TID_X, "%tid.x")                                                                                                                \
    X(TID_Y, "%tid.y")                                                                                                                \
    X(TID_Z, "%tid.z")                                                                                                                \
    X(NTID_X, "%ntid.x")                                                                                                              \
    X(NTID_Y, "%ntid.y")                                                                                                              \
    X(NTID_Z, "%ntid.z")                                                                                                              \
    X(CTAID_X, "%ctaid.x") X(CTAID_Y, "%ctaid.y") X(CTAID_Z, "%ctaid.z") X(NCTAID_X, "%nctaid.x") X(NCTAID_Y, "%nctaid.y")            \
        X(NCTAID_Z, "%nctaid.z") X(LANEID, "%laneid") X(WARPID, "%warpid") X(NWARPID, "%nwarpid") X(SMID, "%smid") X(NSMID, "%nsmid") \
            X(GRIDID, "%gridid") X(LANEMASK_EQ, "%lanemask_eq") X(LANEMASK_LE, "%lanemask_le") X(LANEMASK_LT, "%lanemask_lt")         \
                X(LANEMASK_GE, "%lanemask_ge") X(LANEMASK_GT, "%lanemask_gt") X(DYNAMIC_SMEM, "%dynamic_smem_size")                   \
                    X(TOTAL_SMEM, "%total_smem_size") X(CLOCK, "%clock") X(CLOCK_HI, "%clock_hi") X(CLOCK64, "%clock64")              \
                        X(GLOBALTIMER, "%globaltimer") X(GLOBALTIMER_LO, "%globaltimer_lo") X(GLOBALTIMER_HI, "%globaltimer_hi")
/* clang-format on */
typedef enum SpecialRegister {
#define X(name, text) SPECIAL_##name,
    PTX_SPECIALS(X)
#undef X
        SPECIAL_COUNT
} SpecialRegister;

typedef struct Kernel {
    const char *name;
    struct PtxModule *module;
    Param *params;
    size_t param_count, param_bytes;
    Inst *code;
    size_t code_count;
    uint32_t slots;
    ConstantSlot *constants;
    size_t constant_count;
    SpecialSlot *specials;
    size_t special_count;
    size_t registers;      // 32-bit registers declared, an upper bound of what a real compiler would use
    Variable *shared;      // used by this kernel, placed with gaps between them
    size_t shared_bytes;   // as a device counts them, without the gaps
    size_t shared_extent;  // as placed
    size_t dynamic_offset; // where the dynamic part starts
    bool has_dynamic;
    Variable *local;                 // the same for a thread's local memory, with the .param variables of calls
    size_t local_bytes;              // per thread, as a device counts them
    size_t local_extent;             // as placed
    uint32_t maxntid[3], reqntid[3]; // 0: not given
    uint32_t maxnreg, minnctapersm;
    uint32_t line;
    struct Kernel *next;
} Kernel;

typedef struct PtxModule {
    struct Arena *arena;
    int version;         // 10 * major + minor
    int target;          // 80 for sm_80
    char target_suffix;  // 'a' for sm_90a, 0
    Variable *variables; // .global and .const
    Variable *shared;    // .shared at module scope
    Kernel *kernels;
    size_t kernel_count;
    bool sets_conditionals; // it calls cudaGraphSetConditional, which the driver has
    uint32_t lines;
} PtxModule;

// Parses and decodes `text`, not necessarily terminated. NULL: message in `error` ("line 12: ...").
PtxModule *ptx_parse(const char *text, size_t size, char *error, size_t error_size);
void ptx_free(PtxModule *module);

// ---- inside the parser ----

typedef struct Arena Arena;
Arena *arena_new(void);
void arena_free(Arena *arena);
void *arena_alloc(Arena *arena, size_t size); // zeroed
char *arena_text(Arena *arena, const char *start, size_t length);

typedef enum TokenKind { TOKEN_END, TOKEN_WORD, TOKEN_DOT, TOKEN_INTEGER, TOKEN_FLOAT, TOKEN_STRING, TOKEN_PUNCT } TokenKind;

typedef struct Token {
    TokenKind kind;
    uint32_t line;
    const char *text; // in the arena, terminated; of a dot word without its dot; of punctuation one character
    uint64_t value;   // of a number: 64 bits; of a FLOAT the bits that 0f or 0d gave
    uint8_t bits;     // of a FLOAT: 32 or 64
} Token;

typedef struct Parser {
    Arena *arena;
    Token *token; // all of them, the last is TOKEN_END
    size_t at;
    PtxModule *module;
    struct FunctionText *functions;
    jmp_buf failed;
    char *error;
    size_t error_size;
} Parser;

typedef struct FunctionText { // a .entry or .func as read, before decoding
    const char *name;
    bool entry, has_body;
    Param *results, *params;
    size_t result_count, param_count;
    size_t body; // token after the opening brace
    uint32_t line;
    bool active; // being decoded: a call to it now would be recursion
    Kernel *kernel;
    struct FunctionText *next;
} FunctionText;

Token *ptx_lex(Parser *p, const char *text, size_t size);
_Noreturn void ptx_fail(Parser *p, uint32_t line, const char *format, ...) __attribute__((format(printf, 3, 4)));
bool ptx_accept(Parser *p, const char *punct);
void ptx_expect(Parser *p, const char *punct);
// A variable from after its state space: alignment, vector and type, names with sizes and values.
Variable *ptx_variables(Parser *p, Space space, bool external);
PtxType ptx_type_of(const char *text);
void ptx_decode(Parser *p, FunctionText *f);        // the code of a kernel
void ptx_require(Parser *p, const Inst *in);        // fails when the text's target or version is too old for it
void ptx_require_version(Parser *p, uint32_t line); // the same for the target itself
bool ptx_form_ok(const Inst *in);                   // do its modifiers go together, and with its types? (ptx_forms.c)
unsigned ptx_types_of(PtxOp op);                    // how many types it takes at most
const char *ptx_modifier_text(int value);

#endif
