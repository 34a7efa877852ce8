/*
 * One compilation: LLVM's objects around an Emit, from a kernel to the bytes and texts that a target wants. What targets
 * differ in is in SessionTarget (code generation) and in build.h's Target (the IR that is made). Internal to jit/llvm.
 */
#ifndef JIT_LLVM_SESSION_H
#define JIT_LLVM_SESSION_H

#include "ir/base/status.h"
#include "jit/launch_plan.h"
#include "jit/llvm/build.h"

#include <llvm-c/TargetMachine.h>

typedef struct SessionTarget SessionTarget;

typedef struct Session {
    Emit e;
    Arena arena;
    const SessionTarget *how;
    LLVMTargetMachineRef machine;
    const char *name, *schedule; /* schedule: a line that stands above the IR where people read it; NULL: none */
    Status plan;                 /* of the nest */
    char error[512];             /* what a diagnostic said */
} Session;

struct SessionTarget {
    const Target *target;
    LLVMTargetMachineRef (*machine)(const Session *s); /* NULL: LLVM has none */
    void (*release)(const Session *s);                 /* of s->machine; the module is gone by then */
    void (*attributes)(Session *s, LV fn);             /* of one function that has a body */
    void (*after_passes)(Session *s);                  /* what they may have made that the target cannot; NULL: nothing */
    LLVMCodeGenFileType file;
    Status (*check)(const Session *s, const unsigned char *code, size_t bytes); /* of the finished code */
    Status (*assembly)(const void *code, size_t bytes, char **text);            /* the code as text; NULL: it is text */
};

typedef struct SessionOut { /* all os_free */
    LaunchPlan launch;      /* launch_plan_free */
    void *code;
    size_t bytes;
    char *ir, *assembly; /* NULL unless asked for; no assembly where the code is text itself */
} SessionOut;

/* lint.c. ST_INTERNAL: the module holds what no code of ours may be; the message has the instruction. */
Status lint_ir(const Session *s);
void lint_spoil(Session *s); /* test hook: puts such a thing in */

void session_init(void);  /* once a process, before any target is asked for; thread-safe, idempotent */
bool session_fails(void); /* KILN_TEST_FAIL=llvm: shows that a process needs no LLVM */
LLVMCodeGenOptLevel session_effort(const Session *s);
void session_attribute(Session *s, LV fn, const char *key, const char *text);
/* For after_passes: instead of each instruction that is `wrong` what `mended` makes in front of it. */
void session_rewrite(Session *s, bool (*wrong)(LV), LV (*mended)(Session *, LV));

/* Compiles start->k: `start` holds what the target fixes before anything is made (k, options, bits, cuda, launch).
 * ST_COMPILE, ST_INTERNAL, ST_OUT_OF_MEMORY, or what emission failed with. */
Status session_compile(const SessionTarget *how, const Emit *start, const char *name, bool want_text, SessionOut *out);

#endif
