/* Element types: sizes, kinds, promotion. */
#ifndef IR_DTYPE_H
#define IR_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum DType {
#define DTYPE(id, name, bytes, kind, scalar, numpy) DT_##id,
#include "ir/dtypes.def"
#undef DTYPE
    DT_COUNT
} DType;

typedef enum DKind { DK_BOOL, DK_INT, DK_UINT, DK_FLOAT } DKind;

/* Machine types that scalar code computes in. I1 is a truth value; in memory a bool is one byte, 0 or 1. */
typedef enum SType { SC_I1, SC_I8, SC_I16, SC_I32, SC_I64, SC_F32, SC_F64, STYPE_COUNT } SType;

typedef struct DTypeInfo {
    const char *name;
    uint8_t bytes, kind, scalar;
    const char *numpy;
} DTypeInfo;
extern const DTypeInfo dtype_info[DT_COUNT];

static inline size_t dtype_bytes(DType t) { return dtype_info[t].bytes; }
static inline const char *dtype_name(DType t) { return dtype_info[t].name; }
static inline DKind dtype_kind(DType t) { return (DKind)dtype_info[t].kind; }
static inline bool dtype_is_float(DType t) { return dtype_info[t].kind == DK_FLOAT; }
static inline bool dtype_is_int(DType t) { return dtype_info[t].kind == DK_INT || dtype_info[t].kind == DK_UINT; }
static inline bool dtype_is_half(DType t) { return t == DT_F16 || t == DT_BF16; }
static inline bool dtype_is_signed(DType t) { return dtype_info[t].kind == DK_INT || dtype_info[t].kind == DK_FLOAT; }

/* The dtype that both operands of a binary op are cast to (array API standard's table; where that has
 * none, int with float gives the float; u64 with a signed int gives f32; f16 with bf16 gives f32). */
DType dtype_promote(DType a, DType b);

/* The same where `weak` is a weakly typed scalar of kind `weak`: it takes b's dtype, unless its kind is
 * higher (a float with an int tensor gives f32, an int with a bool tensor gives i64). */
DType dtype_promote_weak(DType strong, DKind weak);

/* The dtype sums and products accumulate in: f32 for f16 and bf16, otherwise the dtype itself. */
DType dtype_accumulator(DType t);

/* Parses "f32"; DT_COUNT when unknown. */
DType dtype_parse(const char *name, size_t len);

#endif
