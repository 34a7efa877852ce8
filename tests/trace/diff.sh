#!/bin/sh
# diff.sh PROGRAM KILN JSON WORK: `kiln trace diff`: which kernels got slower, and traces that are none.
program=$1 kiln=$2 json=$3 work=$4
failed=0
rm -rf "$work"
mkdir -p "$work" || exit 2
fail()
{
    echo "FAILED: $*"
    failed=1
}

. "$(dirname "$0")/make.sh"
# diff STATUS ARGUMENT...: its output in $work/out and err
diff_()
{
    want=$1
    shift
    "$kiln" trace diff "$@" >"$work/out" 2>"$work/err"
    got=$?
    [ $got = "$want" ] || fail "trace diff $* ended with $got, not $want: $(cat "$work/out" "$work/err")"
}
says() { grep -Eq -- "$1" "$work/out" || fail "it does not say \"$1\": $(cat "$work/out")"; }
warns() { grep -Eq -- "$1" "$work/err" || fail "it does not warn \"$1\": $(cat "$work/err")"; }

# Medians count: one slow launch of three is none. The same name with other bytes is another kernel.
trace a.json 1.0.0 0 'matmul 100 10 10 900' 'add 64 5 5 5' 'exp 8 20 20' 'old 8 3' 'tiny 8 0.1 0.1' 'add 128 7'
trace b.json 1.0.0 0 'matmul 100 12 12 12' 'add 64 5.1 5.1 5.1' 'exp 8 10 10' 'fresh 8 30' 'tiny 8 0.9 0.9' 'add 128 7'
diff_ 0 "$work/a.json" "$work/b.json"
says '^matmul +100 +3 +3 +10.00 +12.00 +\+20.0% +slower$'
says '^add +64 +3 +3 +5.00 +5.10 +\+2.0% +same$'
says '^exp +8 +2 +2 +20.00 +10.00 +-50.0% +faster$'
says '^old +8 +1 +0 +3.00 +gone$'
says '^fresh +8 +0 +1 +30.00 +new$'
says '^tiny .*too short$'
[ "$(sed -n '2s/ .*//p;3s/ .*//p' "$work/out" | tr '\n' ' ')" = 'fresh matmul ' ] || fail "the order: $(cat "$work/out")"
[ ! -s "$work/err" ] || fail "it complains: $(cat "$work/err")"

# For CI: the status.
diff_ 1 "$work/a.json" "$work/b.json" --fail-above 10%
warns '1 kernel is slower by more than 10%, the worst by 20.0%'
diff_ 0 "$work/a.json" "$work/b.json" --fail-above=20.5
diff_ 1 "$work/a.json" "$work/b.json" --fail-above=1.5%
warns '2 kernels are slower'
diff_ 0 "$work/b.json" "$work/b.json" --fail-above=0
diff_ 2 "$work/a.json" "$work/b.json" --fail-above=much
warns 'percents such as 10%'
diff_ 2 "$work/a.json" "$work/b.json" --fail-above=-1
diff_ 2 "$work/a.json"
"$kiln" trace graph a b >/dev/null 2>"$work/err"
[ $? = 2 ] || fail "trace graph"
warns 'kiln trace diff A B'
"$kiln" trace diff --json --fail-above=10% "$work/a.json" "$work/b.json" >"$work/out" 2>/dev/null
[ $? = 1 ] || fail "--json has another status"
[ "$("$json" failed <"$work/out") $("$json" a launches <"$work/out") $("$json" kernels 1 change <"$work/out")" = '1 12 slower' ] ||
    fail "--json: $(cat "$work/out")"

# What is no trace, or no whole one.
diff_ 3 "$work/none.json" "$work/b.json"
warns 'none.json: No such file'
diff_ 3 "$work" "$work/b.json"
warns 'no regular file|Is a directory'
echo '{"traceEvents":[]}' >"$work/other.json"
diff_ 3 "$work/a.json" "$work/other.json"
warns 'other.json: it is no trace as a program writes it with KILN_TRACE=file.json'
: >"$work/empty.json"
diff_ 3 "$work/a.json" "$work/empty.json"
size=$(wc -c <"$work/a.json")
at=0
while [ $at -lt "$size" ]; do # cut anywhere: never a crash, and it is said
    head -c $at "$work/a.json" >"$work/cut.json"
    "$kiln" trace diff "$work/cut.json" "$work/b.json" >"$work/out" 2>"$work/err"
    got=$?
    [ $got = 0 ] || [ $got = 3 ] || fail "cut at $at: $got"
    grep -Eq 'cut short|no trace' "$work/err" || [ $at -gt $((size - 6)) ] || fail "cut at $at: $(cat "$work/err")"
    at=$((at + 37))
done
trace later.json 9.9.9 12 'matmul 100 10'
diff_ 0 "$work/a.json" "$work/later.json"
warns 'two versions of kiln, 1.0.0 and 9.9.9'
warns '12 older events are not in it'

# Hostile names, and numbers that are none.
trace hostile.json 1.0.0 0 '</script><script>alert(1)</script> 8 2' '\\u001b[31mred\\u0007 8 2' '%s%n%d 8 2' 'much 8 1e300' 'less 8 -5' 'text 8 "x"' \
    'bytes 99999999999999999999 2' 'null 8 null'
sed -i '2a rubbish\n{"name":1,"cat":"launch","dur":5,"args":{"tasks":1}},\n[[[[[[[[\n\x01\xff' "$work/hostile.json"
diff_ 0 "$work/hostile.json" "$work/hostile.json"
warns '(8|9|10) lines are no events'
LC_ALL=C grep -q "$(printf '\033')" "$work/out" && fail "an escape reaches the terminal"
says '^%s%n%d '
"$kiln" trace diff --json "$work/hostile.json" "$work/a.json" 2>/dev/null | "$json" >/dev/null || fail "hostile --json is no JSON"

# More kernels than memory is meant for: so many are compared, and it is said. (A sanitizer needs all addresses for itself.)
awk 'BEGIN {
    print "{\"displayTimeUnit\":\"ns\",\"traceEvents\":["
    for (i = 0; i < 200000; i++)
        printf "{\"name\":\"kernel_%d\",\"cat\":\"launch\",\"ph\":\"X\",\"ts\":1.0,\"dur\":5.0,\"pid\":1,\"tid\":1,\"args\":{\"bytes\":8,\"flops\":7,\"tasks\":1}},\n", i
}' >"$work/many.json"
if ! grep -Eq '__(asan|tsan)_init' "$kiln"; then
    (ulimit -v 120000 && "$kiln" trace diff "$work/many.json" "$work/a.json" >"$work/out" 2>"$work/err") || fail "200,000 kernels: $(cat "$work/err")"
    warns '13[0-9]{4} launches are of kernels beyond the first 65536 and were not compared'
    [ "$(wc -l <"$work/out")" = 65537 ] || fail "200,000 kernels: $(wc -l <"$work/out") lines"
fi
rm -f "$work/many.json"

# Traces that the library wrote, of the CPU and of a device.
for name in one two; do KILN_THREADS=1 KILN_TRACE="$work/$name.json" "$program" work || fail "work"; done
diff_ 0 "$work/one.json" "$work/two.json"
says '^matmul +26.0k? +1 +1 '
[ ! -s "$work/err" ] || fail "it complains: $(cat "$work/err")"
if [ -n "$KILN_TEST_LIBCUDA" ]; then
    KILN_DEVICE=cuda KILN_LIBCUDA=$KILN_TEST_LIBCUDA KILN_TRACE="$work/cuda.json" "$program" loop 20 || fail "cuda"
    diff_ 0 "$work/cuda.json" "$work/cuda.json"
    [ "$(awk '$2 == "on" && $3 == "cuda:0" { n += $5 } END { print n }' "$work/out")" = 20 ] || fail "cuda: not a launch each: $(cat "$work/out")"
fi
exit $failed
