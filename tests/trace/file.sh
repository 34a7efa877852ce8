#!/bin/sh
# file.sh PROGRAM VALIDATE GOLDEN WORK: traces of small programs, as golden text; and what may go wrong with a file.
program=$1 validate=$2 golden=$3 work=$4
failed=0
unset KILN_TRACE
rm -rf "$work"
mkdir -p "$work" || exit 2

fail()
{
    echo "FAILED: $*"
    failed=1
}

# traced NAME VARIABLE... -- ARGUMENTS: runs the program, its trace in NAME.json, and validates that.
traced()
{
    name=$1
    shift
    variables=
    while [ "$1" != -- ]; do variables="$variables $1" && shift; done
    shift
    rm -f "$work/$name".*
    # shellcheck disable=SC2086
    (env $variables KILN_TRACE="$work/$name.json" "$program" "$@") >"$work/$name.out" 2>&1
    code=$?
    said=$("$validate" "$work/$name.json" 2>&1) || fail "$name: $said"
}

# compare NAME: with its golden text. KILN_UPDATE=1 writes that anew.
compare()
{
    # why there was a miss is a sentence with places, cut where it is long: that it is there, no more; and which limit is near depends on what a
    # busy machine measured
    "$validate" "$work/$1.json" print | sed 's/ why=[^ ].*/ why=TEXT/; s/ regime="[a-z ]*"/ regime=WORD/' >"$work/$1.txt" || fail "$1"
    [ -z "$KILN_UPDATE" ] || cp "$work/$1.txt" "$golden/$1.txt"
    diff -u "$golden/$1.txt" "$work/$1.txt" || fail "$1 differs from its golden text"
}

for name in sizes function copies; do
    traced "$name" KILN_THREADS=1 -- "$name"
    [ $code = 0 ] || fail "$name ended with $code: $(cat "$work/$name.out")"
    compare "$name"
    grep -q '"otherData":{.*"limits":{"cpu":{"threads":1,"copy":[1-9]' "$work/$name.json" || fail "$name has no limits: $(tail -c 400 "$work/$name.json")"
done

grep '"name":"size","cat":"miss"' "$work/sizes.json" | grep -q '"why":"size: a size that was compiled in differs' || fail "why: $(grep '"cat":"miss"' "$work/sizes.json")"

# With a cache on disk: stored, then loaded by another process.
for name in stored loaded; do
    traced "$name" KILN_THREADS=1 KILN_CACHE=on KILN_CACHE_DIR="$work/cache" -- loop 1
    compare "$name"
done

# Places that are no JSON: the golden text has what a reader of JSON gets.
traced hostile KILN_THREADS=1 -- hostile
[ $code = 0 ] || fail "hostile ended with $code: $(cat "$work/hostile.out")"
compare hostile

# Threads: workers tell their parts. On a loaded machine one may come too late for all of them.
for rounds in 20 200 2000 20000; do
    traced threads KILN_THREADS=2 -- threads $rounds
    [ $code = 0 ] || fail "threads ended with $code: $(cat "$work/threads.out")"
    "$validate" "$work/threads.json" print >"$work/threads.txt"
    grep -q 'thread_name name="worker ' "$work/threads.txt" && break
done
grep -q '^[0-9]* X part: ' "$work/threads.txt" || fail "no worker tells its part"
grep -q '^[0-9]* M : thread_name name="worker ' "$work/threads.txt" || fail "no lane is a worker's"

# The software CUDA device has a lane, by its own clock.
if [ -n "$KILN_TEST_LIBCUDA" ]; then
    traced cuda KILN_DEVICE=cuda KILN_LIBCUDA="$KILN_TEST_LIBCUDA" -- threads 3
    [ $code = 0 ] || fail "cuda ended with $code: $(cat "$work/cuda.out")"
    "$validate" "$work/cuda.json" print >"$work/cuda.txt"
    [ "$(grep -c '^2000 X device: ' "$work/cuda.txt") $(grep -c '^2016 X device: ' "$work/cuda.txt")" = '3 3' ] || fail "cuda: not a device time for each launch, by the stream of its thread"
    [ "$(grep -Ec '^20(00|16) X device: .*specials=.* blocks=.* threads=.* regime="[a-z ]*" percent_of_limit=#' "$work/cuda.txt")" = 6 ] || fail "cuda: no regimes"
    traced cuda_copies KILN_DEVICE=cuda KILN_LIBCUDA="$KILN_TEST_LIBCUDA" -- copies
    "$validate" "$work/cuda_copies.json" print >"$work/cuda_copies.txt"
    for way in in out; do
        [ "$(grep -c "X copy: copy $way device=\"cuda:0\" bytes=# GB/s=#" "$work/cuda_copies.txt")" = 2 ] || fail "cuda: not 2 copies $way"
    done
    grep -q '"limits":{"cuda:0":{"memory":[1-9]' "$work/cuda.json" || fail "cuda: no limits: $(tail -c 400 "$work/cuda.json")"
    grep -q '^2000 M : thread_name name="cuda 0"' "$work/cuda.txt" || fail "cuda: the lane has no name"
    grep -q '^2016 M : thread_name name="cuda 0 stream 1"' "$work/cuda.txt" || fail "cuda: the other stream has no name"
    grep -q 'X wait: wait for the device' "$work/cuda.txt" || fail "cuda: no wait"
fi

# What was compiled in the background, and the arrow to its first use.
traced background KILN_THREADS=1 -- background
[ $code = 0 ] || fail "background ended with $code: $(cat "$work/background.out")"
"$validate" "$work/background.json" print | grep -q '^[0-9]* f flow: first use' || fail "no arrow to the first use"

# A file that may be small keeps the newest events, and says how many went.
traced ring KILN_TRACE_SIZE=65536 KILN_THREADS=1 -- loop 400
case $said in *' 0 lost'*) fail "ring: nothing was lost" ;; *' lost') ;; *) fail "ring: $said" ;; esac
size=$(wc -c <"$work/ring.json")
[ "$size" -le 65536 ] || fail "ring: $size bytes"
[ "$size" -gt 50000 ] || fail "ring: only $size bytes"

# It is valid whatever the process dies of: SIGABRT, SIGKILL, SIGSEGV, SIGTERM; small files are replaced from their beginning meanwhile.
for round in 1 2 3; do
    for signal in 6 9 11 15; do
        traced die$signal-$round KILN_TRACE_SIZE=$((round * 65536)) -- die $signal
        [ $code = $((128 + signal)) ] || fail "die $signal: ended with $code"
        case $said in [0-9]' '* | [0-9][0-9]' '*) fail "die $signal: little is there: $said" ;; esac
    done
done

# Forks: the parent's, the child's and the grandchild's.
traced forks -- forks
[ $code = 0 ] || fail "forks ended with $code: $(cat "$work/forks.out")"
[ "$(ls "$work"/forks*.json | wc -l)" = 3 ] || fail "forks: $(ls "$work"/forks*.json)"
for file in "$work"/forks*.json; do
    "$validate" "$file" print >"$work/fork.txt" || fail "$file"
    syncs=$(grep -c 'X sync: kiln_item' "$work/fork.txt")
    case $file in
        */forks.json) [ "$syncs" = 2 ] || fail "the parent's has $syncs sync points" ;;
        *) [ "$syncs" = 1 ] || fail "a child's has $syncs sync points" ;;
    esac
done
KILN_TRACE="$work/p%p.json" "$program" sizes || fail "%p"
[ "$(ls "$work"/p[0-9]*.json | wc -l)" = 1 ] || fail "%p: $(ls "$work")"

# The functions.
"$program" calls "$work" || fail calls
for file in one two; do "$validate" "$work/$file.json" || fail "$file.json"; done
[ "$("$validate" "$work/two.json" print | grep -c 'X sync')" = 2 ] || fail "two.json has not two sync points"
[ "$(cat "$work/other.txt")" = mine ] || fail "other.txt was changed"
ls "$work"/*.tmp 2>/dev/null && fail "temporary files are left"

# The three largest results of an evaluation, each with its place, also where they are as large as one another.
traced touch KILN_THREADS=1 -- touch
[ "$(sed -n 's/.*"cat":"result".*"line":\([0-9]*\),"bytes":\([0-9]*\)}.*/\2/p' "$work/touch.json" | tr '\n' ' ')" = '67108864 131072 131072 131072 ' ] ||
    fail "results: $(grep '"cat":"result"' "$work/touch.json")"

# A file that cannot be: one warning. A link stays, and leads to the trace.
KILN_TRACE=/nowhere/x.json "$program" unwritable 'No such file' || fail "a folder that is not there"
KILN_TRACE="$work" "$program" unwritable 'no regular file' || fail "a folder"
KILN_TRACE="$work/other.txt" "$program" unwritable 'holds something else' || fail "a file of somebody else's"
: >"$work/target.json"
ln -s target.json "$work/link.json"
KILN_TRACE="$work/link.json" "$program" sizes || fail "a link"
[ -h "$work/link.json" ] || fail "the link was replaced"
"$validate" "$work/target.json" || fail "the link's target"

# Little room: what fits stays, with one warning.
(
    ulimit -f 160 # of 512 or 1024 bytes
    KILN_TRACE="$work/full.json" "$program" loop 3000 2>"$work/full.err"
) || fail "no more room: $(cat "$work/full.err")"
"$validate" "$work/full.json" || fail full.json
[ "$(grep -c 'KILN_TRACE' "$work/full.err")" = 1 ] || fail "no more room: $(cat "$work/full.err")"
exit $failed
