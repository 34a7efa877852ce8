/*
 * The kernels of runtime/cuda/cuda_loop.c, as text: of one thread each, but MOVE. Each takes one block of 8-byte numbers.
 */
#include "runtime/cuda/cuda.h"

/* A line of PTX is a line here. */
/* clang-format off */

/* Sets a condition. */
#define SET(HANDLE, VALUE)                       \
    "{ .param .b64 handle; .param .b32 value;\n" \
    "  st.param.b64 [handle], " HANDLE ";\n"     \
    "  st.param.b32 [value], " VALUE ";\n"       \
    "  call.uni cudaGraphSetConditional, (handle, value); }\n"

/* Copies pieces of 1 << SHIFT bytes, or stores zeros (%copy is false). %at: this thread's first; %all: threads. */
#define PIECES(LABEL, SHIFT, LOAD, STORE)                          \
    LABEL ":\n"                                                    \
          "  shl.b64 %i, %at, " SHIFT ";\n"                        \
          "  shl.b64 %stride, %all, " SHIFT ";\n" LABEL "_NEXT:\n" \
          "  setp.ge.u64 %p, %i, %bytes;\n"                        \
          "  @%p bra DONE;\n"                                      \
          "  add.u64 %a, %from, %i;\n"                             \
          "  add.u64 %b, %to, %i;\n"                               \
          "  @%copy " LOAD ";\n"                                   \
          "  " STORE ";\n"                                         \
          "  add.u64 %i, %i, %stride;\n"                           \
          "  bra " LABEL "_NEXT;\n"

const char cuda_loop_ptx[] =
    ".version 6.3\n"
    ".target sm_75\n"
    ".address_size 64\n"
    ".extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);\n"

    /* handle, state, going, fault, count, endless, first, step, start, also: see CudaCount */
    ".visible .entry kiln_loop_COUNT(.param .align 8 .b8 block[80])\n"
    "{\n"
    "  .reg .pred %p;\n"
    "  .reg .b32 %on, %holds;\n"
    "  .reg .b64 %handle, %state, %going, %fault, %also, %count, %endless, %first, %step, %index, %done, %seen;\n"
    "  ld.param.u64 %handle, [block];\n"
    "  ld.param.u64 %state, [block+8];\n"
    "  ld.param.u64 %going, [block+16];\n"
    "  ld.param.u64 %fault, [block+24];\n"
    "  ld.param.u64 %count, [block+32];\n"
    "  ld.param.u64 %endless, [block+40];\n"
    "  ld.param.u64 %first, [block+48];\n"
    "  ld.param.u64 %step, [block+56];\n"
    "  ld.param.u64 %index, [block+64];\n"
    "  ld.param.u64 %also, [block+72];\n"
    "  mov.u64 %done, 0;\n"
    "  setp.ne.s64 %p, %first, 0;\n"
    "  @%p bra HERE;\n"
    "  ld.global.u64 %done, [%state];\n"
    "  add.s64 %done, %done, 1;\n"
    "  ld.global.u64 %index, [%state+8];\n"
    "  add.s64 %index, %index, %step;\n"
    "HERE:\n"
    "  st.global.u64 [%state], %done;\n"
    "  st.global.u64 [%state+8], %index;\n"
    "  setp.lt.s64 %p, %done, %count;\n"
    "  selp.u32 %on, 1, 0, %p;\n"
    "  setp.eq.s64 %p, %fault, 0;\n"
    "  @%p bra OTHER;\n"
    "  ld.global.u64 %seen, [%fault];\n"
    "  setp.ne.s64 %p, %seen, 0;\n"
    "  @%p bra WRONG;\n"
    "OTHER:\n"
    "  setp.eq.s64 %p, %also, 0;\n"
    "  @%p bra RIGHT;\n"
    "  ld.global.u64 %seen, [%also];\n"
    "  setp.eq.s64 %p, %seen, 0;\n"
    "  @%p bra RIGHT;\n"
    "WRONG:\n"
    "  mov.u32 %on, 0;\n"
    "  bra DONE;\n"
    "RIGHT:\n"
    "  setp.eq.s64 %p, %going, 0;\n"
    "  @%p bra DONE;\n"
    "  ld.global.u8 %holds, [%going];\n"
    "  setp.ne.u32 %p, %holds, 0;\n"
    "  selp.u32 %holds, 1, 0, %p;\n"
    "  setp.gt.u32 %p, %holds, %on;\n"
    "  @%p st.global.u64 [%fault], %endless;\n"

    /* a loop that asks has a word */
    "  and.b32 %on, %on, %holds;\n"
    "DONE:\n"
    SET("%handle", "%on")
    "  ret;\n"
    "}\n"

    /* two handles, the predicate */
    ".visible .entry kiln_loop_CHOOSE(.param .align 8 .b8 block[24])\n"
    "{\n"
    "  .reg .pred %p;\n"
    "  .reg .b32 %v, %yes, %no;\n"
    "  .reg .b64 %then, %else, %predicate;\n"
    "  ld.param.u64 %then, [block];\n"
    "  ld.param.u64 %else, [block+8];\n"
    "  ld.param.u64 %predicate, [block+16];\n"
    "  ld.global.u8 %v, [%predicate];\n"
    "  setp.ne.u32 %p, %v, 0;\n"
    "  selp.u32 %yes, 1, 0, %p;\n"
    "  selp.u32 %no, 0, 1, %p;\n"
    SET("%then", "%yes")
    SET("%else", "%no")
    "  ret;\n"
    "}\n"

    /* to, from, bytes, index, to_step, from_step */
    ".visible .entry kiln_loop_MOVE(.param .align 8 .b8 block[48])\n"
    "{\n"
    "  .reg .pred %p, %copy;\n"
    "  .reg .b32 %t, %n, %c, %v<4>;\n"
    "  .reg .b64 %to, %from, %bytes, %index, %step, %at, %all, %stride, %i, %a, %b;\n"
    "  ld.param.u64 %to, [block];\n"
    "  ld.param.u64 %from, [block+8];\n"
    "  ld.param.u64 %bytes, [block+16];\n"
    "  ld.param.u64 %index, [block+24];\n"
    "  setp.ne.s64 %copy, %from, 0;\n"
    "  setp.eq.s64 %p, %index, 0;\n"
    "  @%p bra PLACED;\n"
    "  ld.global.u64 %index, [%index];\n"
    "  ld.param.u64 %step, [block+32];\n"
    "  mad.lo.s64 %to, %index, %step, %to;\n"
    "  ld.param.u64 %step, [block+40];\n"
    "  mad.lo.s64 %from, %index, %step, %from;\n"
    "PLACED:\n"
    "  mov.u32 %t, %tid.x;\n"
    "  mov.u32 %n, %ntid.x;\n"
    "  mov.u32 %c, %ctaid.x;\n"
    "  mul.wide.u32 %at, %c, %n;\n"
    "  cvt.u64.u32 %all, %t;\n"
    "  add.u64 %at, %at, %all;\n"
    "  mov.u32 %c, %nctaid.x;\n"
    "  mul.wide.u32 %all, %c, %n;\n"
    "  mov.u32 %v0, 0;\n"
    "  mov.u32 %v1, 0;\n"
    "  mov.u32 %v2, 0;\n"
    "  mov.u32 %v3, 0;\n"
    "  or.b64 %a, %to, %from;\n"
    "  or.b64 %a, %a, %bytes;\n"
    "  and.b64 %b, %a, 15;\n"
    "  setp.eq.s64 %p, %b, 0;\n"
    "  @%p bra WIDE;\n"
    "  and.b64 %b, %a, 3;\n"
    "  setp.eq.s64 %p, %b, 0;\n"
    "  @%p bra WORDS;\n"
    PIECES("BYTES", "0", "ld.global.u8 %v0, [%a]", "st.global.u8 [%b], %v0")
    PIECES("WORDS", "2", "ld.global.u32 %v0, [%a]", "st.global.u32 [%b], %v0")
    PIECES("WIDE", "4", "ld.global.v4.u32 {%v0, %v1, %v2, %v3}, [%a]", "st.global.v4.u32 [%b], {%v0, %v1, %v2, %v3}")
    "DONE:\n"
    "  ret;\n"
    "}\n"

    /* word, the word around, offset */
    ".visible .entry kiln_loop_REPORT(.param .align 8 .b8 block[24])\n"
    "{\n"
    "  .reg .pred %p;\n"
    "  .reg .b64 %word, %there, %offset, %v, %before;\n"
    "  ld.param.u64 %word, [block];\n"
    "  ld.param.u64 %there, [block+8];\n"
    "  ld.param.u64 %offset, [block+16];\n"
    "  ld.global.u64 %v, [%word];\n"
    "  setp.eq.s64 %p, %v, 0;\n"
    "  @%p bra DONE;\n"
    "  ld.global.u64 %before, [%there];\n"
    "  setp.ne.s64 %p, %before, 0;\n"
    "  @%p bra DONE;\n"
    "  add.s64 %v, %v, %offset;\n"
    "  st.global.u64 [%there], %v;\n"
    "DONE:\n"
    "  ret;\n"
    "}\n";
/* clang-format on */
