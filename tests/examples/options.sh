#!/bin/sh
# options.sh PROGRAM WORK: prices stand within their error of the closed forms, error bars are as wide as they should be; bad options are refused.
program=$1 work=$2
rm -rf "$work" && mkdir -p "$work" || exit 1
fail() { echo "wrong: $1"; exit 1; }
for case in "european --paths 500000" "geometric --paths 300000 --fixings 12" "geometric --strike 110 --volatility 0.4 --years 2 --rate -0.01 --paths 300000" \
    "european --fixings 1 --strike 90 --seed 5 --paths 300000"; do
    "$program" --kind $case --batch 50000 >"$work/out" || fail "$case"
    cat "$work/out"
    awk '/^closed form/ { away = $4; seen++ } /^simulated/ { wide = $4; price = $2; seen++ } /million paths/ { seen++ }
        END { exit !(seen == 3 && away < 3.5 && wide > 0 && wide < price / 50) }' "$work/out" || fail "$case"
done
# The arithmetic mean: both estimates agree, the second within a far smaller error.
"$program" --paths 300000 --batch 50000 --fixings 20 >"$work/out" || fail "asian"
cat "$work/out"
awk '/^simulated/ { a = $2; wide = $4 } /^with the geometric/ { b = $6; narrow = $8 }
    END { d = a > b ? a - b : b - a; exit !(d < 2 * wide && narrow > 0 && narrow < wide / 10) }' "$work/out" || fail "asian"
# A seed gives one result; without error bars that shrink as the root of the number of paths something would be wrong.
"$program" --paths 20000 --batch 5000 --fixings 8 | grep -v million >"$work/a" && "$program" --paths 20000 --batch 5000 --fixings 8 | grep -v million >"$work/b" || fail "twice"
cmp "$work/a" "$work/b" || fail "two runs differ"
"$program" --paths 20000 --batch 5000 --fixings 8 --seed 2 | grep -v million | cmp -s "$work/a" - && fail "another seed, the same numbers"
"$program" --paths 320000 --batch 5000 --fixings 8 >"$work/c" || fail "more paths"
awk '/^simulated/ { n++; wide[n] = $4 } END { q = wide[1] / wide[2]; exit !(q > 3.7 && q < 4.3) }' "$work/a" "$work/c" || fail "sixteen times the paths, not a quarter of the error"

refused() # TEXT ARGUMENTS...
{
    text=$1
    shift
    "$program" "$@" >"$work/out" 2>"$work/err"
    [ $? -eq 2 ] && [ ! -s "$work/out" ] && grep -q -- "$text" "$work/err" || { cat "$work/err"; fail "$* is not refused with \"$text\""; }
}
refused 'asian, geometric or european' --kind lookback
refused '"0" is no whole number' --fixings 0
refused '"1e3" is no whole number' --paths 1e3
refused '"-0.2" is no number' --volatility -0.2
refused '"nan" is no number' --spot nan
refused 'there is no such option' --puts
refused 'a value is needed' --strike
"$program" --help | grep -q -- '--fixings' || fail "no help"
exit 0
