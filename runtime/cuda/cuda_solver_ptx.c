/*
 * The kernels of runtime/cuda/cuda_solver.c, as text: MOVE copies elements of many matrices, FINITE looks for NaN and infinities, each for
 * elements of 4 and of 8 bytes. Each takes one block of 8-byte numbers, and any number of threads.
 */
#include "runtime/cuda/cuda.h"

/* A line of PTX is a line here. */
/* clang-format off */

/* %at goes through this thread's elements of [matrices, rows, columns]: element (%i, %j) of matrix %m, kept (%keep) where lo <= j - i <= hi;
 * lo and hi lie at LO and behind it. In the block are before: one address, another, the number of elements, rows, columns. */
#define WALK(NAME, BYTES, LO, HI, BODY)                                      \
    ".visible .entry " NAME "(.param .align 8 .b8 block[" BYTES "])\n"       \
    "{\n"                                                                    \
    "  .reg .pred %p, %keep;\n"                                              \
    "  .reg .b32 %cta, %threads, %thread, %ctas, %v4;\n"                     \
    "  .reg .b64 %to, %from, %total, %rows, %columns, %square, %lo, %hi;\n"  \
    "  .reg .b64 %at, %all, %m, %i, %j, %r, %x, %d, %v8;\n"                  \
    "  ld.param.u64 %to, [block];\n"                                         \
    "  ld.param.u64 %from, [block+8];\n"                                     \
    "  ld.param.u64 %total, [block+16];\n"                                   \
    "  ld.param.u64 %rows, [block+24];\n"                                    \
    "  ld.param.u64 %columns, [block+32];\n"                                 \
    "  ld.param.s64 %lo, [block+" LO "];\n"                                  \
    "  ld.param.s64 %hi, [block+" HI "];\n"                                  \
    "  mov.u32 %cta, %ctaid.x;\n"                                            \
    "  mov.u32 %threads, %ntid.x;\n"                                         \
    "  mov.u32 %thread, %tid.x;\n"                                           \
    "  mov.u32 %ctas, %nctaid.x;\n"                                          \
    "  mul.wide.u32 %at, %cta, %threads;\n"                                  \
    "  cvt.u64.u32 %x, %thread;\n"                                           \
    "  add.u64 %at, %at, %x;\n"                                              \
    "  mul.wide.u32 %all, %ctas, %threads;\n"                                \
    "  mul.lo.u64 %square, %rows, %columns;\n"                               \
    "NEXT:\n"                                                                \
    "  setp.ge.u64 %p, %at, %total;\n"                                       \
    "  @%p bra DONE;\n"                                                      \
    "  div.u64 %m, %at, %square;\n"                                          \
    "  mul.lo.u64 %x, %m, %square;\n"                                        \
    "  sub.u64 %r, %at, %x;\n"                                               \
    "  div.u64 %i, %r, %columns;\n"                                          \
    "  mul.lo.u64 %x, %i, %columns;\n"                                       \
    "  sub.u64 %j, %r, %x;\n"                                                \
    "  sub.s64 %d, %j, %i;\n"                                                \
    "  setp.ge.s64 %keep, %d, %lo;\n"                                        \
    "  setp.le.s64 %p, %d, %hi;\n"                                           \
    "  and.pred %keep, %keep, %p;\n"                                         \
    BODY                                                                     \
    "  add.u64 %at, %at, %all;\n"                                            \
    "  bra NEXT;\n"                                                          \
    "DONE:\n"                                                                \
    "  ret;\n"                                                               \
    "}\n"

/* to[at] = keep ? from[m * matrix + i * row + j * column] : 0. V: a register of TYPE, 1 << SHIFT bytes. */
#define MOVE(NAME, TYPE, V, SHIFT)                \
    WALK(NAME, "80", "64", "72",                  \
    "  ld.param.u64 %x, [block+40];\n"            \
    "  mul.lo.u64 %r, %m, %x;\n"                  \
    "  ld.param.u64 %x, [block+48];\n"            \
    "  mad.lo.u64 %r, %i, %x, %r;\n"              \
    "  ld.param.u64 %x, [block+56];\n"            \
    "  mad.lo.u64 %r, %j, %x, %r;\n"              \
    "  shl.b64 %r, %r, " SHIFT ";\n"              \
    "  add.u64 %r, %r, %from;\n"                  \
    "  mov." TYPE " " V ", 0;\n"                  \
    "  @%keep ld.global." TYPE " " V ", [%r];\n"  \
    "  shl.b64 %x, %at, " SHIFT ";\n"             \
    "  add.u64 %x, %x, %to;\n"                    \
    "  st.global." TYPE " [%x], " V ";\n")

/* The i32 to[m] becomes 1 where from[at] is kept and has all bits of the exponent. */
#define FINITE(NAME, TYPE, V, SHIFT, EXPONENT)    \
    WALK(NAME, "56", "40", "48",                  \
    "  shl.b64 %x, %at, " SHIFT ";\n"             \
    "  add.u64 %x, %x, %from;\n"                  \
    "  mov." TYPE " " V ", 0;\n"                  \
    "  @%keep ld.global." TYPE " " V ", [%x];\n"  \
    "  and." TYPE " " V ", " V ", " EXPONENT ";\n" \
    "  setp.eq." TYPE " %p, " V ", " EXPONENT ";\n" \
    "  shl.b64 %x, %m, 2;\n"                      \
    "  add.u64 %x, %x, %to;\n"                    \
    "  @%p red.global.or.b32 [%x], 1;\n")

const char cuda_solver_ptx[] =
    ".version 6.3\n"
    ".target sm_75\n"
    ".address_size 64\n"
    MOVE("kiln_linalg_MOVE4", "b32", "%v4", "2")
    MOVE("kiln_linalg_MOVE8", "b64", "%v8", "3")
    FINITE("kiln_linalg_FINITE4", "b32", "%v4", "2", "0x7f800000")
    FINITE("kiln_linalg_FINITE8", "b64", "%v8", "3", "0x7ff0000000000000");
