#!/bin/sh
# report.sh PROGRAM KILN JSON GOLDEN WORK: `kiln report`: the page's data, what is no input, where it is written. The page itself: browser.sh.
# KILN_TEST_GOLDEN=1 writes the expected data anew.
program=$1 kiln=$2 json=$3 golden=$4 work=$5
failed=0
rm -rf "$work"
mkdir -p "$work/cache" || exit 2
chmod 700 "$work/cache"
KILN_CACHE_DIR=$work/cache # of its own
HOME=$work
export KILN_CACHE_DIR HOME
fail()
{
    echo "FAILED: $*"
    failed=1
}
. "$(dirname "$0")/make.sh"

# report STATUS ARGUMENT...: its output in $work/out and err
report()
{
    want=$1
    shift
    "$kiln" report "$@" >"$work/out" 2>"$work/err"
    got=$?
    [ $got = "$want" ] || fail "report $* ended with $got, not $want: $(head -c 2000 "$work/out") $(cat "$work/err")"
}
warns() { grep -Eq -- "$1" "$work/err" || fail "it does not say \"$1\": $(cat "$work/err")"; }
# value PATH...: of the JSON in $work/out
value() { "$json" "$@" <"$work/out"; }
same()
{
    [ "$1" = "$2" ] || fail "$3: \"$1\", not \"$2\""
}
compare() # NAME: $work/out against the expected text
{
    sed "s|$work|WORK|g" "$work/out" >"$work/$1"
    if [ "${KILN_TEST_GOLDEN:-}" = 1 ]; then
        cp "$work/$1" "$golden/$1"
    elif ! diff -u "$golden/$1" "$work/$1"; then
        fail "$1 is another than expected"
    fi
}

# By hand: two kernels, of which one has two sizes; memory; misses; a lane with a name; what is no event.
{
    printf '{"displayTimeUnit":"ns","traceEvents":[   \n'
    printf '{"name":"never_seen","cat":"miss","ph":"i","ts":2.5,"s":"t","pid":1,"tid":1,"args":{"file":"a.c","line":7,"programs":0}},\n'
    printf '{"name":"size","cat":"miss","ph":"i","ts":3.5,"s":"t","pid":1,"tid":1,"args":{"file":"a.c","line":7,"programs":1,"why":"size: expected 8, found 9"}},\n'
    printf '{"name":"kiln_exp","cat":"result","ph":"i","ts":60.0,"s":"t","pid":1,"tid":1,"args":{"file":"c.c","line":3,"bytes":70000}},\n'
    printf '{"name":"kiln_exp","cat":"result","ph":"i","ts":61.0,"s":"t","pid":1,"tid":1,"args":{"file":"c.c","line":3,"bytes":90000}},\n'
    printf '{"name":"kiln_add","cat":"result","ph":"i","ts":62.0,"s":"t","pid":1,"tid":1,"args":{"file":"d.c","line":4,"bytes":100000}},\n'
    printf '{"name":"kiln_eval","cat":"sync","ph":"X","ts":1.0,"dur":90.0,"pid":1,"tid":1,"args":{"file":"a.c","line":7}},\n'
    printf '{"name":"bytes","cat":"memory","ph":"C","ts":91.0,"pid":1,"tid":0,"args":{"tensors":4096,"most":8192,"kept for reuse":64,"programs":12}},\n'
    printf 'rubbish\n'
    printf '{"name":"add","cat":"launch","ph":"X","ts":20.0,"dur":4.0,"pid":1,"tid":1,"args":{"program":"p1","bytes":64,"flops":16,"tasks":1,"threads":2,"regime":"memory"}},\n'
    printf '{"name":"add","cat":"launch","ph":"X","ts":30.0,"dur":6.0,"pid":1,"tid":1,"args":{"program":"p1","bytes":64,"flops":16,"tasks":1,"threads":2,"regime":"memory"}},\n'
    printf '{"name":"add","cat":"launch","ph":"X","ts":40.0,"dur":1.0,"pid":1,"tid":1,"args":{"program":"p1","bytes":128,"flops":32,"tasks":1}},\n'
    printf '{"name":"mul","cat":"launch","ph":"X","ts":50.0,"dur":1.0,"pid":1,"tid":1,"args":{"program":"p1","bytes":1,"flops":1}},\n'
    printf '{"name":"mul","cat":"device","ph":"X","ts":51.0,"dur":2.0,"pid":1,"tid":2000,"args":{"program":"p1","bytes":1,"flops":1,"blocks":9}},\n'
    printf '{"name":"add","cat":"device","ph":"X","ts":53.0,"dur":4.0,"pid":1,"tid":2000,"args":{"program":"p1","bytes":64,"flops":16,"regime":"overhead","percent_of_limit":25.0}},\n'
    printf '{"name":"kiln_read","cat":"sync","ph":"X","ts":95.0,"dur":5.0,"pid":1,"tid":1,"args":{"file":"b.c","line":9}},\n'
    printf '{"name":"bytes","cat":"memory","ph":"C","ts":100.0,"pid":1,"tid":0,"args":{"tensors":1024,"most":8192,"kept for reuse":3136,"programs":12}},\n'
    printf '{"name":"thread_name","ph":"M","pid":1,"tid":2000,"args":{"name":"cuda 0"}},\n'
    printf '{"name":"process_name","ph":"M","pid":1,"tid":0,"args":{"name":"kiln"}}\n],"otherData":{"kiln":"9.9","lost_events":3,'
    printf '"limits":{"cpu":{"threads":2,"copy":17000000000,"read":"<b>","wake":-1},"cuda:0":{"memory":1555000000000},"cuda:1":[7]}}}   \n'
} >"$work/hand.json"
report 0 --json "$work/hand.json"
sed -i 's/"kiln": "[0-9.]*"/"kiln": "VERSION"/; s/this page by kiln [0-9.]*[0-9]/this page by kiln VERSION/' "$work/out"
compare report.json

# Written by the library: each kernel of which it is known what it computes.
KILN_CACHE=off KILN_THREADS=1 KILN_TRACE="$work/work.json" "$program" work || fail "work"
report 0 --json "$work/work.json"
same "$(value sources 0 lost_events) $(value trace n_misses)" '0 12' 'a program of the tests'
grep -q '"flops": 196608' "$work/out" || fail 'the matmul of 64x48 by 48x32 has 2*64*48*32 flops'
report 0 "$work/work.json" -o "$work/page.html"
same "$(cat "$work/out")" "$work/page.html" 'it tells where the page is'
same "$(head -c 17 "$work/page.html")" '<!--kiln report--' 'how a page begins'
[ ! -e "$work/page.html.tmp" ] || fail 'a temporary is left'

# Hostile names: none ends the script element that the data lie in.
mkdir -p "$work/hostile"
trace hostile.json 1.0.0 0 '</script><script>alert(1)</script> 8 2' '<!--<script> 8 2' '\\u2028\\u2029 8 2' '\\u0000\\u001b 8 2' '%s%n 8 2' '&lt;b&gt; 8 2' 'x 8 1e300'
printf '\342\200\250' >"$work/separator"
sed -i "3i {\"name\":\"$(cat "$work/separator")raw\",\"cat\":\"code\",\"ph\":\"X\",\"ts\":1.0,\"dur\":9.0,\"pid\":1,\"tid\":1,\"args\":{\"</script>\":\"</script>\"}}," "$work/hostile.json"
report 0 "$work/hostile.json" -o "$work/hostile.html"
sed -n 's/.*<script type="application\/json" id="data">//p' "$work/hostile.html" >"$work/data"
same "$(grep -o '<[^>]*>' "$work/data" | tr '\n' ' ')" '</script> ' 'markup in the data'
LC_ALL=C grep -q "$(cat "$work/separator")" "$work/data" && fail 'a raw U+2028'
sed 's/<\/script>$//' "$work/data" | "$json" >/dev/null || fail 'the data are no JSON'

# Many: bounded, and it is said.
awk 'BEGIN {
    print "{\"displayTimeUnit\":\"ns\",\"traceEvents\":["
    for (i = 0; i < 60000; i++)
        printf "{\"name\":\"kernel%d_with_a_name_of_some_length_as_they_are\",\"cat\":\"launch\",\"ph\":\"X\",\"ts\":%d.000,\"dur\":%d.000,\"pid\":1,\"tid\":1,\"args\":{\"program\":\"p%d\",\"bytes\":%d,\"flops\":8,\"tasks\":1}},\n", \
            i % 9000, i * 100, i % 97, i % 500, i % 9000
    for (i = 0; i < 9000; i++) {
        printf "{\"name\":\"size\",\"cat\":\"miss\",\"ph\":\"i\",\"ts\":%d.0,\"pid\":1,\"tid\":1,\"args\":{\"file\":\"file%d.c\",\"line\":7,\"programs\":1}},\n", i, i
        printf "{\"name\":\"bytes\",\"cat\":\"memory\",\"ph\":\"C\",\"ts\":%d.0,\"pid\":1,\"tid\":0,\"args\":{\"tensors\":%d}},\n", i, i == 4321 ? 99999 : i
    }
    print "],\"otherData\":{\"kiln\":\"1.0\",\"lost_events\":0}}"
}' >"$work/many.json"
report 0 "$work/many.json" -o "$work/many.html"
size=$(wc -c <"$work/many.html")
[ "$size" -lt 5000000 ] || fail "the page has $size bytes"
report 0 --json "$work/many.json"
for words in 'the 20000 longest of 60000 spans' 'kernels beyond the first 5000' 'only the first 1000 places' 'Of 9000 misses the first 2000'; do
    grep -q "$words" "$work/out" || fail "it does not say: $words"
done
grep -q '^ *99999,*$' "$work/out" || fail 'the moment of most memory is not kept'

# What is no trace, or no whole one.
report 3 "$work/none.json" -o "$work/no.html"
warns 'none.json: No such file'
report 3 "$work/work.json" "$work/none" -o "$work/no.html"
warns '/none: No such file or folder. A folder of dumps is made where the program compiles'
echo '{"traceEvents":[]}' >"$work/other.json"
report 3 "$work/other.json" -o "$work/no.html"
warns 'other.json: it is no trace as a program writes it with KILN_TRACE=file.json'
report 2 "$work/work.json" "$work/hand.json" -o "$work/no.html"
warns 'one report shows one trace'
report 2 -o "$work/no.html"
report 2 "$work/work.json" --fail-above=3%
[ ! -e "$work/no.html" ] || fail 'a page of nothing'
size=$(wc -c <"$work/hand.json") at=45
while [ $at -lt "$size" ]; do # cut anywhere: what is whole is shown, and it is said
    head -c $at "$work/hand.json" >"$work/cut.json"
    report 0 --json "$work/cut.json"
    grep -q 'cut short' "$work/out" || [ $at -gt $((size - 6)) ] || fail "cut at $at: not said"
    at=$((at + 131))
done

# Where it is written.
echo precious >"$work/mine.html"
report 3 "$work/work.json" -o "$work/mine.html"
warns 'mine.html is there and holds something else'
same "$(cat "$work/mine.html")" precious 'a file of somebody else'
report 3 "$work/work.json" -o "$work/cache"
warns 'is a directory'
report 3 "$work/work.json" -o "$work/nowhere/page.html"
echo old >>"$work/page.html"
report 0 "$work/work.json" --output="$work/page.html"
tail -n 1 "$work/page.html" | grep -q '^</html>$' || [ "$(tail -n 2 "$work/page.html" | head -n 1)" = '</html>' ] || fail 'an older page is not replaced'
report 0 "$work/work.json" -o -
cmp -s "$work/out" "$work/page.html" || fail '-o - is another page'
if [ -e /dev/full ]; then
    report 3 "$work/work.json" -o /dev/full
fi
(cd "$work" && "$kiln" report work.json >/dev/null 2>&1 && [ -s report.html ]) || fail 'without -o it is report.html'

# Dumps: the graph after each pass, with places; why what fused; kernels, IR, assembly.
KILN_CACHE=on KILN_DUMP="$work/dump" "$program" work 2>/dev/null || fail 'work with dumps'
report 0 --json "$work/dump"
same "$(value sources 0 kind) $(value sources 0 programs)" 'dump 12' 'a folder of dumps'
softmax=programs\ 6
# shellcheck disable=SC2086
{
    value $softmax graphs 0 text | grep -q '^  %1 = reduce_max %0 axes(1) : f32\[48\]' || fail 'the graph as recorded'
    value $softmax graphs 0 text | grep -q '^// %1 .*program.c:[0-9]*$' || fail 'where its nodes were recorded'
    value $softmax fusion | grep -q '^kernel 0 softmax ' || fail 'fusion'
    value $softmax plan | grep -q 'guard s0 == 48' || fail 'the plan'
    same "$(value $softmax id)" "$(ls "$work/dump" | sed -n '7s/.*_//p')" 'the id of its graph'
    value $softmax kernels 0 text | grep -q 'v1 = fold max j' || fail 'the kernel as text'
    value $softmax kernels 0 ir | grep -q '^define' || fail 'its IR'
    value $softmax kernels 0 assembly | grep -q 'ret' || fail 'its assembly'
}
one=$work/dump/$(ls "$work/dump" | sed -n 7p)
report 0 --json "$one"
same "$(value sources 0 programs) $(value programs 0 kernels 0 name)" '1 softmax' 'the folder of one program'
mkdir "$work/odd" "$work/odd/0000_x" "$work/odd/0001_y" "$work/empty"
mkfifo "$work/odd/0000_x/00_graph_recorded.txt"
ln -s /etc/passwd "$work/odd/0000_x/01_graph_rules.txt"
head -c 200000 /dev/zero | tr '\0' x >"$work/odd/0000_x/02_kernel0_long.ll"
printf 'kernel' >"$work/odd/0000_x/03_kernel99999999999999999999_a.txt"
printf 'kernel' >"$work/odd/0000_x/04_kernel3"
printf 'graph g(\377</script>' >"$work/odd/0001_y/00_graph_recorded.txt"
report 0 --json "$work/odd"
same "$(value programs 1 graphs 0 pass)" recorded 'a graph that is none'
grep -q root: "$work/out" && fail 'it follows a link'
grep -q 'Some texts of programs are left out' "$work/out" || fail 'a long text is left out in silence'
report 3 "$work/empty" -o "$work/no.html"
warns 'empty: it is no folder of dumps'

# Entries, by key: the same and what the directory tells.
key=$("$kiln" cache list --keys --name=square_reduce_prod)
report 0 --json "$key"
same "$(value programs 0 entry entry) $(value programs 0 graphs 1 pass)" "$key all passes" 'an entry'
value programs 0 kernels 0 assembly | grep -q 'ret' || fail 'assembly of an entry'
same "$(value programs 0 entry maker math)" fast 'an option that decides about code'
same "$(value cache entries)" "$("$kiln" cache list --keys | wc -l)" 'counters of the directory'
"$kiln" cache why --json >"$work/why"
report 0 --json "$key"
same "$(value recorded 11 reason) $(value recorded 11 guard)" "$("$json" misses 11 reason <"$work/why") $("$json" misses 11 guard <"$work/why")" 'recorded misses'
report 0 "$work/work.json" "$work/dump" "$key" -o "$work/all.html"
report 1 0123456789abcdef -o "$work/no.html"
warns 'there is no entry'
report 3 "$key" --dir "$work/nowhere" -o "$work/no.html"
echo garbage >>"$(find "$work/cache" -name "$key")"
report 1 "$key" -o "$work/no.html"
[ ! -e "$work/no.html" ] || fail 'a page of nothing'

# Two traces: the table, the data, the page, the status.
trace a.json 1.0.0 0 'matmul 100 10 10 900' 'gone 8 3'
trace b.json 1.0.0 0 'matmul 100 12 12 12' 'fresh 8 3'
report 1 --diff "$work/a.json" "$work/b.json" --fail-above=10%
grep -Eq '^matmul +100 +3 +3 +10.00 +12.00 +\+20.0% +slower$' "$work/out" || fail "the table: $(cat "$work/out")"
warns '1 kernel is slower'
report 0 --diff "$work/a.json" "$work/b.json" --fail-above=30% -o "$work/diff.html"
report 0 --diff --json "$work/a.json" "$work/b.json" -o "$work/diff.html"
same "$(value diff kernels 0 change) $(value diff failed)" 'slower 0' 'data of a comparison'
report 2 --diff "$work/a.json"
exit $failed
