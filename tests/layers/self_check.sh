#!/bin/sh
# self_check.sh CHECK WORK: the layer check must accept a good tree and refuse each of these bad lines.
check=$1
work=$2
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
rm -rf "$work"
[ $failures -eq 0 ] && echo "all refused"
exit $failures
