#ifndef JIT_LLVM_CPU_SUBNORMALS_H
#define JIT_LLVM_CPU_SUBNORMALS_H

#include "jit/llvm/build.h"

/* Are they zeros in all of the kernel (option subnormals)? */
bool subnormals_flushed(const Emit *e);
/* The function that shall have the body of fn, which calls it and does no more: there they are zeros. */
LV subnormals_body(Emit *e, LV fn);
/* Of v, f32 or f64, in each lane: is it below the least normal, or zero? */
LV subnormals_are(Emit *e, LV v);
/* Target.normal: what looks at bits, or makes them, does not know of the mode. */
bool subnormals_normal(Emit *e, DType dtype, Val *v);
/* From here on; to be given to subnormals_keep. */
LV subnormals_flush(Emit *e);
/* As it was before. */
void subnormals_keep(Emit *e, LV before);

#endif
