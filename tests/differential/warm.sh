#!/bin/sh
# warm.sh PROGRAM: a part of the matrix with an empty cache on disk, then with a warm one. The second run compiles nothing and must hold
# against the interpreter as the first does.
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
export KILN_CACHE=on KILN_CACHE_DIR="$dir"
"$1" || exit 1
second=$("$1") || { echo "$second"; exit 1; }
echo "$second"
case $second in
*" 0 programs compiled, 0 failures"*) ;;
*)
    echo "the warm run compiled something"
    exit 1
    ;;
esac
