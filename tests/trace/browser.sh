#!/bin/sh
# browser.sh PROGRAM KILN WORK: pages of `kiln report` in a browser without a screen: each checks itself (cache/cli/report/check.js).
program=$1 kiln=$2 work=$3
failed=0
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || {
    echo 'skipped: no chromium'
    exit 77
}
rm -rf "$work"
mkdir -p "$work/cache" || exit 2
chmod 700 "$work/cache"
KILN_CACHE_DIR=$work/cache HOME=$work
export KILN_CACHE_DIR HOME
fail()
{
    echo "FAILED: $*"
    failed=1
}
. "$(dirname "$0")/make.sh"

# open NAME WIDTH: the page checks itself, and the browser's console stays empty. (With --virtual-time-budget the browser hangs now and then.)
open()
{
    timeout -k 5 900 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$work/profile" --window-size="$2,900" \
        --no-first-run --disable-background-networking --enable-logging=stderr --dump-dom "file://$work/$1.html#check" >"$work/dom" 2>"$work/log"
    sed -n 's/.*<pre id="checked">//p' "$work/dom" >"$work/checked"
    grep -q '^CHECK PASSED: overview' "$work/checked" || fail "$1, $2 wide: $(cat "$work/checked") $(grep CONSOLE "$work/log")"
    grep 'CONSOLE' "$work/log" && fail "$1: it says something on the console"
}
# page NAME SOURCE...
page()
{
    name=$1
    shift
    "$kiln" report "$@" -o "$work/$name.html" >/dev/null || fail "report $*"
    size=$(wc -c <"$work/$name.html")
    [ "$size" -lt 5000000 ] || fail "$name has $size bytes"
}
has() { grep -q "$1" "$work/checked" || fail "$2: $(cat "$work/checked")"; }

# With entries and dumps, every section has something to show.
KILN_CACHE=on KILN_TRACE="$work/transformer.json" KILN_DUMP="$work/dump" "$program" transformer 2>/dev/null || fail transformer
# shellcheck disable=SC2046
page transformer "$work/transformer.json" "$work/dump" $("$kiln" cache list --keys --sort=kernels | head -n 3)
open transformer 1200
open transformer 400
has 'programs, cache, options' 'a transformer'
. "$(dirname "$0")/../support/turn.sh"
if turn 2; then # a graph of a thousand nodes: a part of it, another one by a click, all of it on demand (check.js clicks every button)
    KILN_CACHE=off KILN_DUMP="$work/deep" "$program" transformer 12 2>/dev/null || fail 'twelve layers'
    page deep "$work/deep"/*"$(cd "$work/deep" && for d in *; do echo "$(wc -l <"$d/00_graph_recorded.txt") $d"; done | sort -n | tail -n 1 | sed 's/.*_//')"
    open deep 1200
    grep -q 'Drawn are the 80 nodes nearest to one' "$work/dom" || fail 'a large graph is not drawn in part'
    grep -q 'draw all 1' "$work/dom" || fail 'a large graph cannot be drawn whole'
fi
if turn 3; then
    printf '{"displayTimeUnit":"ns","traceEvents":[\n' >"$work/nothing.json"
    page nothing "$work/nothing.json"
    open nothing 1200
    has 'timeline (nothing)' 'a trace without an event'
fi
KILN_CACHE=off KILN_TRACE="$work/one.json" "$program" sizes || fail sizes
page one "$work/one.json"
open one 1200
for name in timeline flame kernels roofline places memory misses; do
    grep -q "$name (nothing)" "$work/checked" && fail "one has no $name"
done
if [ -n "$KILN_TEST_LIBCUDA" ] && turn 2; then # kernels of two devices, each with its roofs
    KILN_CACHE=off KILN_DEVICE=cuda KILN_LIBCUDA=$KILN_TEST_LIBCUDA KILN_TRACE="$work/cuda.json" "$program" work || fail 'work on cuda'
    KILN_CACHE=off KILN_TRACE="$work/cpu.json" "$program" work || fail work
    awk 'NR == FNR { if (/"cat":"launch"/) own = own $0 "\n"; next } { print } NR > FNR && FNR == 2 { printf "%s", own }' "$work/cpu.json" "$work/cuda.json" >"$work/both.json"
    page both "$work/both.json"
    open both 1200
    for device in cpu cuda:0; do
        grep -q "roofline plot of the kernels on $device\"" "$work/dom" || fail "no roofline of $device"
    done
    grep -q 'The lines are what cuda:0 can do, by its clocks: memory 1555 GB/s (full)' "$work/dom" || fail 'no roof of cuda:0'
fi
if turn 3; then
    KILN_CACHE=off KILN_TRACE="$work/hostile.json" "$program" hostile || fail hostile
    page hostile "$work/hostile.json"
    open hostile 400
    trace a.json 1.0.0 0 'matmul 100 10 10 900' 'gone 8 3' '<b> 8 3'
    trace b.json 1.0.0 0 'matmul 100 12 12 12' 'fresh 8 3'
    page change --diff "$work/a.json" "$work/b.json"
    open change 400
    has 'comparison$\|comparison<' 'a comparison'
fi

# Large ones: a thousand recompiles, 5,000 kernels.
if turn 0; then
    last=$(ls "$work/dump" | tail -n 1)
    for i in $(seq 1001 2000); do # a thousand recompiles
        cp -r "$work/dump/$last" "$work/dump/${i}_$last"
    done
    page thousand "$work/dump"
    open thousand 1200
fi
if turn 1; then
    awk 'BEGIN {
        print "{\"displayTimeUnit\":\"ns\",\"traceEvents\":["
        for (i = 0; i < 20000; i++)
            printf "{\"name\":\"kernel%d\",\"cat\":\"launch\",\"ph\":\"X\",\"ts\":%d.000,\"dur\":%d.000,\"pid\":1,\"tid\":1,\"args\":{\"program\":\"p%d\",\"bytes\":%d,\"flops\":8,\"tasks\":1}},\n", \
                i % 5000, i * 100, 1 + i % 97, i % 500, 1 + i % 5000
        for (i = 0; i < 1000; i++)
            printf "{\"name\":\"size\",\"cat\":\"miss\",\"ph\":\"i\",\"ts\":%d.0,\"pid\":1,\"tid\":1,\"args\":{\"file\":\"file%d.c\",\"line\":7,\"programs\":1}},\n", i, i % 50
        print "],\"otherData\":{\"kiln\":\"1.0\",\"lost_events\":0}}"
    }' >"$work/many.json"
    page many "$work/many.json"
    open many 1200
fi

# The check itself can fail: a page whose script breaks, and one that says NaN.
sed 's/^const count = .*/const count = n => nothing(n);/' "$work/one.html" >"$work/broken.html"
sed 's/^const count = .*/const count = n => "NaN";/' "$work/one.html" >"$work/nan.html"
for name in broken nan; do
    (
        failed=0
        open $name 1200 >/dev/null
        exit $failed
    ) && fail "$name passes the check"
done
exit $failed
