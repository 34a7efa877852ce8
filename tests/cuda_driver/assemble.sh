#!/bin/sh
# assemble.sh FOLDER: assembles the PTX texts that tests left in FOLDER (KILN_TEST_CUDA_PTX, module.c) for sm_80 and sm_90a, those of
# newer devices than sm_80 for sm_90a alone, those of sm_75, which have no instruction of later ones, for that, on all cores, and removes
# them. What ptxas refuses or warns about fails, and so does a kernel
# that spills more than `bound` bytes of registers and is none of those in `may_spill` below: elementwise and row kernels must not. Fewer
# are counted; that the kernels of the README's workloads spill nothing is held by unit/test_ptx.c.
#
# KILN_TEST_PTXAS_EVERY=N: one text in N, by the hash in its name; 1, 2, 4, 8 or 16 (16; 1: all); of sm_75, which few tests make, four times
# as many. Ends with 77 (skipped) where there is no ptxas.
folder=$1
if [ "$2" = one ]; then # $3: one text
    ptxas=$4
    case $(sed -n 's/^\.target \(sm_[0-9a]*\).*/\1/p' "$3") in # a text runs on what is as new or newer
    sm_75) targets=sm_75 ;;
    sm_80) targets="sm_80 sm_90a" ;;
    *) targets=sm_90a ;;
    esac
    for target in $targets; do
        said=$("$ptxas" -v -arch $target -o /dev/null "$3" 2>&1)
        status=$?
        case $said in *warning*) status=1 ;; esac
        if [ $status -ne 0 ]; then
            echo "REFUSED $target $3: $said" | head -c 2000
            echo
        fi
        # the lines before a number of bytes name the kernel: "Compiling entry function 'NAME' for 'sm_80'"
        echo "$said" | awk -v target=$target -v file="$3" -F"'" '
            /Compiling entry function/ { name = $2 }
            /bytes spill stores/ { split($0, part, /, */); split(part[2], word, " ")
                                   if (word[1] > 0) print "SPILL", target, name, word[1], "bytes", file }'
        echo "DONE $target"
    done
    exit 0
fi
ptxas=${PTXAS:-$(command -v ptxas)}
[ -x "$ptxas" ] || ptxas=/usr/local/cuda/bin/ptxas
if [ ! -x "$ptxas" ]; then
    echo "skipped: no ptxas here (in PATH or /usr/local/cuda/bin)"
    exit 77
fi
bound=64
may_spill='matmul' # a contraction keeps as much as fits; what it costs is its tests' business
every=${KILN_TEST_PTXAS_EVERY:-16}
out=$folder/said
mkdir -p "$folder"
case $every in
1) some='.' ;;
2) some='[02468ace]' ;;
4) some='[048c]' ;;
8) some='[08]' ;;
*) some='0' ;;
esac
find "$folder" -maxdepth 1 -name '*.ptx' | sort > "$folder/all"
{
    grep "$some\.ptx\$" "$folder/all"
    grep "[$(echo "$some" | tr -d '[].')159d]\.ptx\$" "$folder/all" | xargs -r grep -l '^\.target sm_75'
} | sort -u > "$folder/chosen"
all=$(wc -l < "$folder/all") chosen=$(wc -l < "$folder/chosen")
xargs -P "$(getconf _NPROCESSORS_ONLN)" -I FILE sh "$0" "$folder" one FILE "$ptxas" < "$folder/chosen" > "$out"
refused=$(grep -c '^REFUSED' "$out")
grep -A 3 '^REFUSED' "$out" | grep -v '^DONE\|^SPILL' | head -60
grep '^SPILL' "$out" | grep -v "^SPILL [^ ]* [^ ]*\($may_spill\)" > "$folder/few"
awk -v bound=$bound '$4 > bound' "$folder/few" > "$folder/spills"
sort -k4,4nr "$folder/spills" | head -20
spills=$(wc -l < "$folder/spills")
echo "$all texts, $chosen of them chosen, $(grep -c '^DONE' "$out") assembled, $refused refused," \
    "$(wc -l < "$folder/few") spill registers, $spills of them more than $bound bytes"
if [ "$refused" -ne 0 ] || [ "$spills" -ne 0 ]; then # they stay for a look
    mkdir -p "$folder/failed"
    sed -n 's/^REFUSED [^ ]* \([^:]*\):.*/\1/p; s/^SPILL .* bytes //p' "$out" | sort -u | while read -r file; do cp "$file" "$folder/failed"; done
fi
find "$folder" -maxdepth 1 -name '*.ptx*' -delete
if [ "$chosen" -eq 0 ]; then
    echo "skipped: no test has left a text here"
    exit 77
fi
[ "$refused" -eq 0 ] && [ "$spills" -eq 0 ]
