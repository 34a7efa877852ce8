#!/bin/sh
# first.sh PROGRAM: prints one number, the same in each mode up to rounding of the sum, and the same with any threads.
number()
{
    "$@" | awk 'NF == 1 && $1 + 0 > 0 { n++; v = $1 } END { if (NR != 1 || n != 1) exit 1; print v }' || {
        echo "bad output of: $*"
        "$@"
        exit 1
    }
}
jit=$(number "$1") || { echo "$jit"; exit 1; }
one=$(KILN_THREADS=1 number "$1") || { echo "$one"; exit 1; }
eager=$(KILN_MODE=eager number "$1") || { echo "$eager"; exit 1; }
[ "$jit" = "$one" ] || { echo "threads change the result: $jit, $one"; exit 1; }
# relu((sin x cos y + x) y) for uniform x, y: mean 0.21275 (double integral), times 2^24, give or take 5 sigma
echo "$jit $eager" | awk '{
    d = $1 - $2; if (d < 0) d = -d
    if (d > 1e-5 * $1) { print "jit and eager differ: " $0; exit 1 }
    m = $1 / 16777216
    if (m < 0.2122 || m > 0.2133) { print "mean " m " is not to be believed"; exit 1 }
    print "mean " m
}'
