#!/bin/sh
# self_check.sh CHECK STATICS WORK: the layer check must accept a good tree and refuse each of these bad lines; likewise the check of
# variables that live as long as the process.
check=$1
statics=$2
work=$3
fresh()
{
    rm -rf "$work"
    mkdir -p "$work/ir/base" "$work/guards" "$work/jit/llvm" "$work/cache" "$work/runtime"
    echo '#include "ir/base/a.h"' >"$work/ir/a.c"
}
failures=0
refuses()
{
    fresh
    echo "#include $2" >"$work/$1"
    if sh "$check" "$work" >/dev/null; then
        echo "accepted: $2 in $1"
        failures=$((failures + 1))
    fi
}
fresh
sh "$check" "$work" >/dev/null || { echo "refused a good tree"; failures=1; }
refuses ir/base/x.c '"ir/graph.h"'
refuses ir/x.c '"guards/guard.h"'
refuses ir/x.h '"jit/kernel.h"'
refuses guards/x.c '"jit/kernel.h"'
refuses jit/x.c '"runtime/record/tensor.h"'
refuses jit/x.c '<llvm-c/Core.h>'
refuses cache/x.c '"jit/llvm/emit.h"'
refuses runtime/x.c '<llvm-c/Core.h>'
refuses runtime/x.c '<sys/mman.h>'
refuses ir/x.c '<criterion/criterion.h>'

# A copy of the check that allows only what the tree below has.
kept()
{
    rm -rf "$work"
    mkdir -p "$work/runtime/eval"
    sed "/^allowed=/,/^'$/c allowed='\nruntime/eval/a.c  kept  for a reason\n'" "$statics" >"$work/statics.sh"
    {
        echo 'static int kept;'
        echo 'static const int table[] = {1};'
        echo 'static const char *const names[] = {"a"};'
        echo 'static Status step(Run *run);'
        echo 'static Status step(Run *run)'
        echo '{'
        echo '    static const char api[] = "a";'
        echo '    int local = 0;'
        echo '}'
        echo 'typedef struct Run {'
        echo '    BUF(int) list;'
        echo '} Run;'
    } >"$work/runtime/eval/a.c"
}
refuses_static()
{
    kept
    printf '%s\n' "$1" >"$work/runtime/eval/b.c"
    if sh "$work/statics.sh" "$work" >/dev/null; then
        echo "accepted: $1"
        failures=$((failures + 1))
    fi
}
kept
sh "$work/statics.sh" "$work" || { echo "refused constants, functions and types"; failures=1; }
refuses_static 'static int count;'
refuses_static 'static const char *step;'
refuses_static 'static Call call = {0}; /* const */'
refuses_static 'static BUF(RtNode *) stack, given;'
refuses_static 'static _Thread_local bool in_task;'
refuses_static 'CudaDriver cuda;'
refuses_static '_Thread_local RtThread tls __attribute__((tls_model("initial-exec")));'
refuses_static '    static atomic_uint serial;'
refuses_static 'static CudaFault *inputs[INPUTS], *own;'
refuses_static 'static struct Served {
    int walk;
} served[4];'
echo 'int f(void);' >"$work/runtime/eval/a.c"
sh "$work/statics.sh" "$work" >/dev/null && { echo "accepted a row for a variable that is gone"; failures=1; }
rm -rf "$work"
[ $failures -eq 0 ] && echo "all refused"
exit $failures
