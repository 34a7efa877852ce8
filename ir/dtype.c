/* Element types: the table of ir/dtypes.def as data, and the promotion rules. */
#include "ir/dtype.h"

#include <string.h>

const DTypeInfo dtype_info[DT_COUNT] = {
#define DTYPE(id, name, bytes, kind, scalar, numpy) {name, bytes, DK_##kind, SC_##scalar, numpy},
#include "ir/dtypes.def"
#undef DTYPE
};

/* The signed integer dtype of at least `bytes` bytes; DT_COUNT when there is none. */
static DType signed_of(int bytes)
{
    return bytes <= 1 ? DT_I8 : bytes <= 2 ? DT_I16 : bytes <= 4 ? DT_I32 : bytes <= 8 ? DT_I64 : DT_COUNT;
}

DType dtype_promote(DType a, DType b)
{
    if (a == b || dtype_kind(b) == DK_BOOL)
        return a;
    if (dtype_kind(a) == DK_BOOL)
        return b;
    if (dtype_is_float(a) != dtype_is_float(b))
        return dtype_is_float(a) ? a : b;
    size_t wa = dtype_bytes(a), wb = dtype_bytes(b);
    if (dtype_is_float(a)) /* equal widths that differ: f16 with bf16 */
        return wa == wb ? DT_F32 : wa > wb ? a : b;
    if (dtype_kind(a) == dtype_kind(b))
        return wa > wb ? a : b;
    size_t of_signed = dtype_is_signed(a) ? wa : wb, of_unsigned = dtype_is_signed(a) ? wb : wa;
    DType wide = signed_of((int)(of_signed > of_unsigned ? of_signed : 2 * of_unsigned));
    return wide == DT_COUNT ? DT_F32 : wide;
}

DType dtype_promote_weak(DType strong, DKind weak)
{
    if (weak == DK_FLOAT && !dtype_is_float(strong))
        return DT_F32;
    if (weak != DK_BOOL && weak != DK_FLOAT && strong == DT_BOOL)
        return DT_I64;
    return strong;
}

DType dtype_accumulator(DType t) { return dtype_is_half(t) ? DT_F32 : t; }

DType dtype_parse(const char *name, size_t len)
{
    for (int t = 0; t < DT_COUNT; t++)
        if (strlen(dtype_info[t].name) == len && memcmp(dtype_info[t].name, name, len) == 0)
            return (DType)t;
    return DT_COUNT;
}
