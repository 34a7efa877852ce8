# guards_matter.sh program: with the guards of one kind forgotten, each test named after it must fail; without the hook all pass.
program=$1
out=${TMPDIR:-.}/guards_matter.$$
trap 'rm -f "$out"' EXIT
"$program" || exit 1
tests='size same range_of_any range_of_indices scalar'
for kind in size same range scalar; do
    for place in scan while condition branch; do
        tests="$tests ${kind}_in_$place"
    done
done
for test in $tests; do
    kind=${test%%_*}
    if KILN_TEST_FAIL=guard:$kind "$program" $test > "$out" 2>&1; then
        echo "nobody notices that the guards of kind $kind are forgotten"
        exit 1
    fi
    echo "guard:$kind, $test: $(grep -m 1 FAIL "$out")"
done
