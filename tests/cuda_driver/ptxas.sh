#!/bin/sh
# ptxas.sh OPS FOLDER OUT: assembles every PTX text of the tests for sm_80 and sm_90a with ptxas, so that what the software
# driver runs is known to be valid: the files of FOLDER and the module that the program OPS writes. Ends with 77 (skipped)
# where there is no ptxas.
ops=$1 folder=$2 out=$3
ptxas=$(command -v ptxas) || ptxas=/usr/local/cuda/bin/ptxas
if [ ! -x "$ptxas" ]; then
    echo "skipped: no ptxas here (in PATH or /usr/local/cuda/bin)"
    exit 77
fi
mkdir -p "$out" && "$ops" "$out/ops.ptx" || exit 1
status=0 count=0
for file in "$folder"/*.ptx "$out/ops.ptx"; do
    for target in sm_80 sm_90a; do
        if [ $target = sm_80 ] && grep -q '^\.target sm_90' "$file"; then
            continue
        fi
        count=$((count + 1))
        "$ptxas" -arch=$target "$file" -o "$out/result.cubin" || { echo "$file for $target: refused"; status=1; }
    done
done
echo "$count assembled"
[ $count -gt 2 ] && exit $status
