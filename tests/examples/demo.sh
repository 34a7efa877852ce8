#!/bin/sh
# demo.sh PROGRAM: the quick demo has two rows for each of its seven workloads, one kernel where that is promised, and compiles
# another number of rows once, not each time.
out=$("$1" --quick) || { echo "$out"; exit 1; }
echo "$out"
echo "$out" | awk '
    $2 == "eager" && NF >= 8 { eager++; kernels[$1] = $3 }
    $2 == "jit" && NF >= 9 { jit++
        if ($1 ~ /^(a|b|e|softmax|layer_norm)$/ && $3 != 1) bad = bad " " $1 " took " $3 " kernels;"
        if ($1 == "g" && $3 > 2) bad = bad " g took " $3 " kernels;"
        if ($3 > kernels[$1]) bad = bad " " $1 " took more kernels than eager;" }
    /recompiles/ { reasons++ }
    /evaluations:/ { seen = 1 }
    END {
        if (eager != 7 || jit != 7) bad = bad " rows missing;"
        if (reasons < 2) bad = bad " no recompile reasons;"
        if (!seen) bad = bad " no statistics;"
        if (bad) { print "wrong:" bad; exit 1 }
    }'
