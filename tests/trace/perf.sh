#!/bin/sh
# perf.sh PROGRAM KILN WORK: KILN_PERF tells of each kernel and program what it took, what it computed and what limits it; the machine's limits.
program=$1 kiln=$2 work=$3
failed=0
rm -rf "$work"
mkdir -p "$work" || exit 2
fail()
{
    echo "FAILED: $*"
    failed=1
}

# csv ARGUMENT...: the lines of KILN_PERF=csv, without what stands before each in the log.
csv() { KILN_PERF=csv KILN_THREADS=1 "$program" "$@" 2>&1 >/dev/null | sed -n 's/^\[kiln perf\] //p'; }
head=what,kernel,program,calls,launches,total_ns,median_ns,bytes,flops,specials,limit_ns,percent_of_limit,regime,could_be_saved_ns,instructions,cycles,cache_misses,page_faults

# 300 launches, whatever the size; what waited for a compile is no call of a program.
csv loop 300 >"$work/loop.csv"
awk -F, -v head=$head '
    NR == 1 { if ($0 != head) exit 1; next }
    NF != 18 { exit 1 }
    $1 == "kernel" { calls += $4; bytes += $8; if ($6 <= 0 || $7 <= 0 || $11 <= 0 || $11 + $14 > $6 + 2 && $11 < $6) exit 1 }
    $1 == "program" { programs += $4; launches += $5; if ($11 >= $6 || $14 <= 0) exit 1 }
    END { if (calls != 300 || programs < 290 || programs > 299 || launches != programs || bytes != 300 * 4) { print calls, programs, bytes; exit 1 } }
' "$work/loop.csv" || fail "loop: $(cat "$work/loop.csv")"

# What is computed, by hand: a product of 64 x 48 and 48 x 32; softmax of 48 rows of 32: max, minus, exp, sum, times, and 48 reciprocals; x - 1/x in
# f64 of 10, 20, 30 and 40 elements, where the size became an argument.
csv work >"$work/work.csv"
awk -F, '
    $1 != "kernel" { next }
    { calls[$2] += $4; bytes[$2] += $8; flops[$2] += $9; specials[$2] += $10; regime[$2] = $13 }
    function is(name, c, b, f, s) { if (calls[name] != c || bytes[name] != b || flops[name] != f || specials[name] != s) {
        print name, calls[name], bytes[name], flops[name], specials[name]; bad = 1 } }
    END {
        is("matmul", 1, 4 * (64 * 48 + 48 * 32 + 64 * 32), 2 * 64 * 48 * 32, 0)
        is("exp", 1, 8000, 0, 1000)
        is("square_reduce_prod", 1, 4 * (64 * 48 + 1), 2 * 64 * 48, 0)
        is("softmax", 1, 8 * 48 * 32, 4 * 48 * 32 + 48, 48 * 32)
        is("reciprocal_sub", 4, 100 * 16, 200, 0)
        is("sort", 1, 8000, 0, 0)
        exit bad || regime["sort"] != "unknown"
    }
' "$work/work.csv" || fail "work: $(cat "$work/work.csv")"

# Each call of a kiln_function counts, from when it is wanted on.
KILN_THREADS=1 "$program" later 2>&1 | grep -q '^.kiln perf. kernel,add,[0-9a-f]*,10,10,' || fail "later: $(KILN_THREADS=1 "$program" later 2>&1)"

# The greatest saving comes first.
csv threads 40 | awk -F, '$1 == "kernel" { if (n++ && $14 > last) exit 1; last = $14 } END { exit n < 1 }' || fail "threads: the order"

[ -z "$(KILN_PERF=off "$program" loop 3 2>&1)" ] || fail "off says something"

# A child tells what it did itself: three sync points in three processes, of the parent two.
[ "$(csv forks | grep -c '^what,')" = 3 ] || fail "forks: $(csv forks)"
[ "$(csv forks | awk -F, '$1 == "kernel" { print $4 }' | sort | tr '\n' ' ')" = '1 1 2 ' ] || fail "forks: $(csv forks)"

# The machine is measured once: a line in the cache directory, which decides the regimes. Each figure in turn is far too low here.
KILN_CACHE=on KILN_CACHE_DIR="$work/cache"
export KILN_CACHE KILN_CACHE_DIR
csv work >/dev/null
csv work >/dev/null
[ "$(wc -l <"$work/cache/machine")" = 1 ] || fail "not measured once: $(cat "$work/cache/machine")"
cp "$work/cache/machine" "$work/machine"
# machine WORD...: of this machine all are far too high, but for these.
machine()
{
    cp "$work/machine" "$work/cache/machine"
    for word in copy=1000000000000000 read=1000000000000000 cache_copy=1000000000000000 fma_f32=1000000000000000 wake=0 "$@"; do
        sed -i "s/ ${word%%=*}=[0-9]*/ $word/" "$work/cache/machine"
    done
}
# regime KERNEL WANTED LIMIT WORD...
regime()
{
    kernel=$1 wanted=$2 limit=$3
    shift 3
    machine "$@"
    csv work | awk -F, -v kernel="$kernel" -v wanted="$wanted" -v limit="$limit" '
        $2 == kernel { found = $13 == wanted && (limit == "" || $11 == limit); if (!found) print $0 } END { exit !found }' ||
        fail "$kernel is not $wanted, $limit ns: $*"
}
regime matmul compute 98304000 fma_f32=2000000
regime exp memory 80000000 cache_copy=100000
regime exp 'special functions' '' fma_f32=1000000
regime matmul overhead '' wake=1000000000
regime reciprocal_sub compute 400000 fma_f32=2000000

machine wake=1000000000
said=$(KILN_PERF=summary KILN_THREADS=1 "$program" loop 300 2>&1)
case $said in
    *'300 launches took'*'this machine, 1 thread: '*'regime'*' overhead '*'program '*' calls, median'*'us of work: it does less'*'kiln_function'*) ;;
    *) fail "summary: $said" ;;
esac
# Counters of the CPU: what this machine has, and a word on what it has not; a result of 64 MB is first touched page by page.
said=$(KILN_PERF=summary KILN_THREADS=2 "$program" touch 2>&1)
case $said in
    *'counted in each by the CPU, kernel'*) ;;
    *'not counted: instructions, cycles, cache misses, page faults: '*) echo "note: no counter is permitted here" ;;
    *) fail "counters: $said" ;;
esac
said=$(KILN_PERF=csv KILN_THREADS=2 "$program" touch 2>&1)
echo "$said" | awk -F, '/^.kiln perf. kernel,/ && $18 != "" { seen = 1; faults += $18 } END { exit seen && (faults < 16 || faults > 60000) }' || fail "page faults: $said"
said=$(KILN_TEST_FAIL=counters KILN_PERF=summary KILN_THREADS=1 "$program" loop 2 2>&1)
case $said in
    *'counted in each'*) fail "refused counters count: $said" ;;
    *'not counted: instructions, cycles, cache misses, page faults: not permitted'*) ;;
    *) fail "refused counters: $said" ;;
esac
[ "$(KILN_TEST_FAIL=counters csv loop 3 | awk -F, 'NR > 1 && ($15 $16 $17 $18) != ""' | wc -l)" = 0 ] || fail "refused counters have figures"

said=$(KILN_LOG=perf KILN_THREADS=1 "$program" loop 1 2>&1)
case $said in *' us '*' GB/s '*' GFLOP/s '*'% of the limit: overhead') ;; *) fail "KILN_LOG=perf: $said" ;; esac

# Lines of others, of other numbers of threads, cut ones and rubbish are not taken.
sed 's/threads=1/threads=77/; s/copy=[0-9]*/copy=1/' "$work/machine" >"$work/cache/machine"
printf 'rubbish\n\001\377 copy=\n time=1 cpu=Other_1_2 threads=1 copy=1 read=1\n' >>"$work/cache/machine"
head -c 60 "$work/machine" >>"$work/cache/machine"
csv work | grep -q '^kernel,matmul' || fail "rubbish in the file"
[ "$(grep -c "cpu=.* threads=1 copy=[0-9][0-9]" "$work/cache/machine")" = 1 ] || fail "not measured anew: $(cat "$work/cache/machine")"

# kiln info --measure measures anew; without it the figures are shown.
cp "$work/machine" "$work/cache/machine"
KILN_THREADS=1 "$kiln" info --measure >"$work/info.txt" || fail "info --measure ended with $?"
grep -q 'fma_f32 .*GFLOP/s' "$work/info.txt" || fail "info --measure: $(cat "$work/info.txt")"
[ "$(wc -l <"$work/cache/machine")" = 2 ] || fail "info --measure did not keep it"
KILN_THREADS=1 "$kiln" info --json | grep -q '"fma_f64": [1-9]' || fail "info --json"
KILN_THREADS=63 "$kiln" info | grep -q 'not measured; kiln info --measure' || fail "info of what was not measured"
KILN_CACHE_DIR="$work/machine" "$kiln" info --measure 2>"$work/err" && fail "info --measure with no directory"
grep -qi 'not a directory' "$work/err" || fail "info --measure: $(cat "$work/err")"
unset KILN_CACHE_DIR
KILN_CACHE=off

if [ -n "$KILN_TEST_LIBCUDA" ]; then
    KILN_DEVICE=cuda KILN_LIBCUDA=$KILN_TEST_LIBCUDA
    export KILN_DEVICE KILN_LIBCUDA
    csv loop 20 | awk -F, '$1 == "kernel" { calls += $4; good = $13 == "overhead" && $9 > 0 } END { exit calls != 20 || !good }' || fail "cuda: $(csv loop 20)"
    # limits by the clocks that the software device tells: memory 2 x 1.215 GHz x 5120 bits, 4 multiprocessors of 2 x 128 flops at 1.41 GHz
    csv work | awk -F, '$2 == "matmul" { found = $11 == 136 } $2 == "square_reduce_prod" { found += $11 == 8 || $11 == 9 } END { exit found != 2 }' ||
        fail "cuda, 196,608 flops at 1,443.8 GFLOP/s, 12,292 bytes at 1,555.2 GB/s are 136 and 8 ns: $(csv work)"
    KILN_PERF=summary "$program" loop 3 2>&1 | grep -q 'cuda:0, by its clocks: 1555.20 GB/s; 1443.8 GFLOP/s in f32, 23101.4 in products of 16-bit' ||
        fail "summary of a device: $(KILN_PERF=summary "$program" loop 3 2>&1)"
fi
exit $failed
