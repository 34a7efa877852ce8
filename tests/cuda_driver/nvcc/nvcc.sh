#!/bin/sh
# nvcc.sh CHECK OUT: compiles kernels.cu with nvcc to PTX for the targets below, and runs CHECK on it. Ends with 77 (skipped) where
# there is no nvcc that works, or none of these targets; a target that an nvcc does not know, or makes newer PTX for than the software
# driver takes, is left out with a word.
check=$1 out=$2 here=$(dirname "$0")
nvcc=${NVCC:-$(command -v nvcc)}
[ -x "$nvcc" ] || nvcc=/usr/local/cuda/bin/nvcc
if [ ! -x "$nvcc" ]; then
    echo "skipped: no nvcc here (in PATH or /usr/local/cuda/bin)"
    exit 77
fi
mkdir -p "$out" && echo '__global__ void nothing() {}' > "$out/probe.cu" || exit 1
targets=
for target in sm_75 sm_80 sm_90; do
    if ! "$nvcc" -ptx -arch=$target -o "$out/probe.ptx" "$out/probe.cu" > "$out/said" 2>&1; then
        echo "left out: $target: $(head -n 1 "$out/said")"
    elif ! awk '/^\.version/ { exit $2 > 9.0 }' "$out/probe.ptx"; then
        echo "left out: $target: PTX newer than 9.0"
    else
        "$nvcc" -ptx -arch=$target -o "$out/$target.ptx" "$here/kernels.cu" || exit 1
        targets="$targets $target"
    fi
done
[ -n "$targets" ] || { echo "skipped: no target is left"; exit 77; }
NVCC_PTX=$out "$check" $targets
