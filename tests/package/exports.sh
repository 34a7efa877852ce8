#!/bin/sh
# exports.sh LIBRARY hidden|shared NM: libkiln.so defines kiln_* and nothing else but the names of their versions; with hidden LLVM it doesn't need
# libLLVM.
library=$1 llvm=$2 nm=$3
names=$("$nm" -D --defined-only "$library" | awk '$2 != "A" { print $NF }' | sed 's/@.*//')
count=$(echo "$names" | grep -c '^kiln_')
others=$(echo "$names" | grep -v '^kiln_')
echo "$count exported names"
if [ "$count" -lt 100 ]; then
    echo "too few: is the interface there?"
    exit 1
fi
if [ -n "$others" ]; then
    echo "exported, but no kiln_*:"
    echo "$others" | head -n 20
    exit 1
fi
if [ "$llvm" = hidden ] && ldd "$library" | grep -i llvm; then
    echo "needs a shared LLVM"
    exit 1
fi
soname=$(objdump -p "$library" | awk '$1 == "SONAME" { print $2 }')
case $soname in
libkiln.so.[0-9]*) echo "SONAME $soname" ;;
*)
    echo "bad SONAME '$soname'"
    exit 1
    ;;
esac
