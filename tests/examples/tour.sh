#!/bin/sh
# tour.sh PROGRAM: what examples/tour.c says of each example is what its title promises.
said=$("$1" --nonsense 2>&1)
[ $? -eq 2 ] && [ "$said" = "tour: --nonsense: it takes no arguments; usage: tour" ] || { echo "an unknown option: $said"; exit 1; }
out=$("$1") || { echo "$out"; exit 1; }
echo "$out"
echo "$out" | awk '
    function want(condition, what) { if (!condition) { print "wrong: in " n ", " what; bad = 1 } }
    function check() {
        if (n == 1 || n >= 2 && n <= 6) want(kernels == 1, kernels " kernels")
        if (n == 2) want(unneeded == 1 && name == "abs", "the product was not left out")
        if (n == 4) want(merged == 2, merged " merged")
        if (n == 5) want(name == "square" && after == 2, "no rule applied")
        if (n == 6) want(name ~ /softmax/, "its kernel is " name)
        if (n == 7) want(compiles == 2, compiles " compiles")
        if (n == 8) want(cut, "no break told")
    }
    /^[1-9]\./ { check(); n = $1 + 0; kernels = merged = unneeded = compiles = cut = 0; name = "" }
    /^  > kernel/ { kernels++; name = $4 }
    /^  > recorded/ { after = $5; unneeded = $7; merged = $10 }
    /^  > (rules|canonicalise)/ { after = $5 }
    /compiling/ { compiles++ }
    /cut a graph in two/ { cut = 1 }
    END { check(); want(n == 8, "the end is missing"); exit bad }'
