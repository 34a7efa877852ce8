#!/bin/sh
# crash.sh WORKER: kill -9 at each system call that touches the cache directory while a process writes its programs, with strace
# (tests/faults/io.c does the same without it, at the calls of kiln's own file layer). After each kill a fresh process must have the
# right values and no refused entry, and the one after it must compile nothing. Where strace may not trace, this says so and passes.
worker=$1
work=${TMPDIR:-/tmp}/kiln_crash.$$
KILN_CACHE=on KILN_THREADS=1
MALLOC_ARENA_MAX=1 # the C library looks into /proc, or not, when it gives back memory of other arenas: calls are counted here
export KILN_CACHE KILN_THREADS MALLOC_ARENA_MAX
trap 'rm -rf "$work"' EXIT
mkdir -p "$work" || exit 2

if ! command -v strace >/dev/null || ! strace -f -o "$work/probe" -e inject=getuid:signal=KILL:when=1 true 2>/dev/null && [ ! -s "$work/probe" ]; then
    echo "strace may not trace here: left out"
    exit 0
fi

# fresh DIR: an empty cache directory that was just evicted from
fresh()
{
    rm -rf "$1"
    mkdir -m 700 "$1" && touch "$1/evicted" && head -c 16 /dev/zero >"$1/size"
}

# One run shows which calls there are: name and ordinal (among the calls of that name by the main thread).
calls=openat,mkdirat,newfstatat,fstat,statx,getdents64,read,write,close,linkat,renameat,unlinkat,utimensat,ftruncate,flock
fresh "$work/cache"
KILN_CACHE_DIR=$work/cache strace -f -y -o "$work/trace" -e trace=$calls "$worker" 2 >"$work/out" || { cat "$work/out"; exit 1; }
main=$(head -n 1 "$work/trace" | sed 's/ .*//')
awk -v main="$main" -v dir="$work/cache" '
    $1 == main {
        call = $2
        sub(/\(.*/, "", call)
        n[call]++
        if (index($0, dir))
            print call, n[call]
    }' "$work/trace" >"$work/calls"
total=$(wc -l <"$work/calls")
if [ "$total" -lt 10 ]; then
    echo "only $total calls found"
    cat "$work/trace"
    exit 1
fi

failed=0
complain()
{
    echo "killed at $call $nth: $*"
    cat "$work/out"
    failed=$((failed + 1))
}

while read -r call nth; do
    fresh "$work/cache"
    KILN_CACHE_DIR=$work/cache strace -f -o /dev/null -e trace="$call" -e inject="$call:signal=KILL:when=$nth" "$worker" 2 >"$work/out" 2>&1
    status=$?
    [ $status -eq 137 ] || complain "the process ended with $status"
    KILN_CACHE_DIR=$work/cache "$worker" 2 >"$work/out" 2>&1 || complain "the next process failed"
    grep -q " refused=0 .* warnings=0" "$work/out" || complain "the next process found something damaged"
    KILN_CACHE_DIR=$work/cache "$worker" 2 >"$work/out" 2>&1 || complain "the process after it failed"
    grep -q " compiles=0 hits=2 " "$work/out" || complain "nothing is kept any more"
done <"$work/calls"
echo "killed at each of $total system calls: $failed failures"
[ $failed -eq 0 ]
