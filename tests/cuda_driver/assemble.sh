#!/bin/sh
# assemble.sh FOLDER BATCH: assembles every PTX text that tests left in FOLDER (KILN_TEST_CUDA_PTX, module.c) for sm_80 and sm_90a,
# those for sm_90a for that alone, those for sm_75 for that, too, on all cores, and removes them. The program BATCH (batch.c)
# puts them together for few calls of ptxas; a call that is refused is done again text by text, to name those at fault.
# What ptxas refuses or warns about fails, and so does a kernel that spills a register, a contraction's excepted: those
# keep tiles of their operands in shared memory, and as much of them in registers as fits; what that costs is their tests'
# business. Texts that fail stay in FOLDER/failed.
#
# KILN_TEST_SPILLS=BYTES: what a kernel may spill (0). KILN_TEST_SPILLING=N: no more than one kernel in N, and two, may do so at all. A few bytes in
# a few kernels are no fault: those of 1,024 threads have 64 registers each, whatever they need, and ptxas may order badly what would fit.
#
# It takes a slice of the texts (support/slice.h). PTXAS=path: that assembler; PTXAS= (nothing): none. Ends with 77 (skipped)
# where there is none. No text fails: the tests that leave some ran before, or did not look for the folder.
folder=$1
report() # TARGET SAID: a line for each kernel that spills
{
    # the lines before a number of bytes name the kernel: "Compiling entry function 'NAME__TEXT' for 'sm_80'"
    awk -v target="$1" -F"'" '
        /Compiling entry function/ { name = $2; count++ }
        /bytes spill stores/ { split($0, part, /, */); split(part[2], word, " ")
                               if (word[1] > 0) print "SPILL", target, name, word[1], "bytes" }
        END { print "DONE", target, count + 0 }' "$2"
}
if [ "$2" = one ]; then # $3: ptxas, $4: a batch, $5: the target
    said=$4.$5
    if "$3" -v -arch "$5" -o /dev/null "$4" > "$said" 2>&1 && ! grep -q warning "$said"; then
        report "$5" "$said"
        exit 0
    fi
    while read -r text; do
        file=$folder/$text.ptx
        if ! "$3" -v -arch "$5" -o /dev/null "$file" > "$said" 2>&1 || grep -q warning "$said"; then
            echo "REFUSED $5 $file: $(grep '\.entry' "$file" | tr -d '\n'): $(head -c 2000 "$said" | tr '\n' ' ')"
        fi
        report "$5" "$said" | sed "/^SPILL/s/ \([0-9]* bytes\)/__$text \1/"
    done < "${4%.ptx}.list"
    exit 0
fi
ptxas=${PTXAS-$(command -v ptxas || echo /usr/local/cuda/bin/ptxas)}
if [ ! -x "$ptxas" ]; then
    echo "skipped: no ptxas here (PTXAS, in PATH or /usr/local/cuda/bin)"
    exit 77
fi
out=$folder/batches
rm -rf "$out"
mkdir -p "$out" || exit 1
"$2" "$folder" "$out" > "$out/calls" 2> "$out/counts"
status=$?
cat "$out/counts"
[ $status -eq 0 ] || exit 1
if [ ! -s "$out/calls" ]; then
    echo "no test has left a text in $folder: run tests that compile for CUDA first, all or some (ctest -R 'unit/test_ptx|cuda/assemble')"
    exit 1
fi
xargs -P "$(getconf _NPROCESSORS_ONLN)" -L 1 sh "$0" "$folder" one "$ptxas" < "$out/calls" > "$out/said"
refused=$(grep -c '^REFUSED' "$out/said")
grep '^REFUSED' "$out/said" | head -20
kernels=$(awk '$1 == "DONE" { n += $3 } END { print n + 0 }' "$out/said")
grep '^SPILL' "$out/said" | while read -r line; do
    text=${line##*__}
    grep -q '^[[:space:]]*\.shared .* tiles\[' "$folder/${text%% *}.ptx" || echo "$line"
done | sort -k4,4nr > "$out/all"
head -40 "$out/all"
if [ -n "$KILN_TEST_SPILLING" ] && [ "$(wc -l < "$out/all")" -gt $((kernels / KILN_TEST_SPILLING + 2)) ]; then
    echo "$(wc -l < "$out/all") of $kernels kernels spill registers: more than one in $KILN_TEST_SPILLING, and two"
    cp "$out/all" "$out/spills"
else
    awk -v most="${KILN_TEST_SPILLS:-0}" '$4 > most' "$out/all" > "$out/spills"
fi
spills=$(wc -l < "$out/spills")
echo "$kernels kernels assembled, $refused texts refused," \
    "$(grep -c '^SPILL' "$out/said") kernels spill registers, $spills of them that must not"
if [ "$refused" -ne 0 ] || [ "$spills" -ne 0 ]; then
    mkdir -p "$folder/failed"
    sed -n 's/^REFUSED [^ ]* \([^:]*\):.*/\1/p' "$out/said" | while read -r file; do cp "$file" "$folder/failed"; done
    sed 's/ bytes$//; s/.*__\([^ ]*\) .*/\1/' "$out/spills" | while read -r text; do cp "$folder/$text.ptx" "$folder/failed"; done
fi
calls=$(wc -l < "$out/calls")
ended=$(grep -c '^DONE' "$out/said")
if [ "$refused" -eq 0 ] && [ "$ended" -ne "$calls" ]; then
    echo "$calls calls of ptxas, of which $ended ended: one was stopped, or texts are refused together and by themselves are not (batch.c)"
    refused=1
fi
find "$folder" -maxdepth 1 -name '*.ptx*' -delete
rm -rf "$out"
[ "$refused" -eq 0 ] && [ "$spills" -eq 0 ]
