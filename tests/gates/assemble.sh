#!/bin/sh
# assemble.sh SCRIPT BATCH FOLDER: shows that cuda_driver/assemble.sh fails for a text that ptxas refuses, one that it warns about,
# a kernel that spills registers, many of them, and a folder without texts, and passes what is well. PTXAS as there.
script=$1 batch=$2 folder=$3 spills=0 one_in=
wrong()
{
    echo "wrong: $*"
    cat "$folder/said"
    exit 1
}

# kernel NAME VALUES [MOST [SHARED]]: takes up so many values from the last to the first that it loaded, in MOST registers.
kernel()
{
    awk -v name="$1" -v n="$2" -v most="$3" -v shared="$4" 'BEGIN {
        print ".version 7.0\n.target sm_80\n.address_size 64"
        print ".visible .entry " name "(.param .u64 " name "_param_0)" (most ? " .maxnreg " most : "") " {"
        print ".reg .f32 %f<" n + 2 ">;\n.reg .b64 %a;\nld.param.u64 %a, [" name "_param_0];"
        if (shared)
            print "\t.shared .align 16 .b8 " shared "[64];"
        for (i = 0; i < n; i++)
            print "ld.volatile.global.f32 %f" i ", [%a+" 4 * i "];"
        print "bar.sync 0;\nmov.f32 %f" n ", 0f00000000;"
        for (i = n - 1; i >= 0; i--)
            print "fma.rn.f32 %f" n ", %f" n ", %f" n ", %f" i ";"
        print "st.volatile.global.f32 [%a], %f" n ";\nret;\n}"
    }'
}

# assembled STATUS TEXT: what the script makes of the folder; both must be so, and no text may be left.
assembled()
{
    KILN_TEST_SPILLS=$spills KILN_TEST_SPILLING=$one_in sh "$script" "$folder" "$batch" > "$folder/said" 2>&1
    status=$?
    if [ $status -eq 77 ]; then
        cat "$folder/said"
        exit 77
    fi
    [ $status -eq "$1" ] || wrong "status $status, not $1"
    grep -q "$2" "$folder/said" || wrong "no '$2'"
    [ -z "$(find "$folder" -maxdepth 1 -name '*.ptx')" ] || wrong "texts are left"
}

rm -rf "$folder"
mkdir -p "$folder" || exit 1
assembled 1 "no test has left a text"

kernel good 40 > "$folder/good.ptx"
kernel product 200 24 tiles > "$folder/product.ptx" # tiles of a contraction may spill
assembled 0 "^4 kernels assembled, 0 texts refused, 2 kernels spill registers, 0 of them that must not"

for values in 40 41; do # a function that ptxas knows is not the text's own
    kernel calls$values $values | sed 's/^.visible/.extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);\n&/
        s/^bar.sync.*/&\n{ .param .b64 handle; .param .b32 value; st.param.b64 [handle], %a; st.param.b32 [value], 1;\
        call.uni cudaGraphSetConditional, (handle, value); }/' > "$folder/calls$values.ptx"
done
assembled 0 "^4 kernels assembled, 0 texts refused, 0 kernels spill registers"

kernel good 40 > "$folder/good.ptx"
kernel bad 40 | sed 's/^bar.sync.*/&\nmov.f32 %f0, %nothing;/' > "$folder/bad.ptx"
assembled 1 "^REFUSED sm_80 .*/bad.ptx: .*nothing"
grep -q "^2 kernels assembled, 2 texts refused" "$folder/said" || wrong "the good text is not told from the bad one"
[ "$(ls "$folder/failed")" = bad.ptx ] || wrong "kept: $(ls "$folder/failed")"
rm -r "$folder/failed"

kernel good 40 > "$folder/good.ptx"
kernel narrow 200 24 > "$folder/narrow.ptx"
assembled 1 "^SPILL sm_80 narrow__narrow .* bytes"
grep -q "^4 kernels assembled, 0 texts refused, 2 kernels spill registers, 2 of them" "$folder/said" || wrong "other numbers"
[ "$(ls "$folder/failed")" = narrow.ptx ] || wrong "kept: $(ls "$folder/failed")"

kernel narrow 200 24 > "$folder/narrow.ptx"
spills=100000
assembled 0 "2 kernels spill registers, 0 of them that must not"

one_in=500
for values in 200 201; do
    kernel narrow$values $values 24 > "$folder/narrow$values.ptx"
done
assembled 1 "^4 of 4 kernels spill registers: more than one in 500, and two"
rm -r "$folder/failed"
kernel narrow 200 24 > "$folder/narrow.ptx"
assembled 0 "2 kernels spill registers, 0 of them that must not"
spills=0 one_in=

kernel warned 40 | sed 's/^\.visible.*) /&.minnctapersm 5 /' > "$folder/warned.ptx"
assembled 1 "^REFUSED sm_90a .*/warned.ptx: .*warning.*minnctapersm"

echo "each fault was seen"
