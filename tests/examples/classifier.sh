#!/bin/sh
# classifier.sh PROGRAM WORK: it learns, in one program that is compiled once; goes on from a file with the same bits; refuses what makes no sense.
program=$1 work=$2
rm -rf "$work" && mkdir -p "$work" || exit 1
fail() { echo "wrong: $1"; exit 1; }
out=$("$program" --steps 200) || { echo "$out"; exit 1; }
echo "$out"
echo "$out" | awk '
    /^step/ { steps++; loss = $4 + 0; if (steps == 1) first = loss; else if ($9 != 0) bad = "compiled again"; if ($7 < 1) bad = "no kernels" }
    /new images/ { accuracy = $NF }
    END { if (steps != 5) bad = steps " lines"; if (first < 2 || loss > 0.5) bad = "loss " first ", then " loss
          if (accuracy < 0.9) bad = "accuracy " accuracy
          if (bad) { print "wrong: " bad; exit 1 } }' || exit 1

small="--hidden 20 --batch 8 --rate 0.01"
for kind in sgd adam adamw; do
    "$program" $small --optimizer $kind --steps 24 --save "$work/whole" >/dev/null || fail "$kind"
    "$program" $small --optimizer $kind --steps 24 --stop 12 --save "$work/half" >/dev/null || fail "$kind stopped"
    "$program" $small --optimizer $kind --steps 24 --load "$work/half" --save "$work/resumed" >/dev/null || fail "$kind resumed"
    cmp "$work/whole" "$work/resumed" || fail "$kind: stopped and resumed gives other bits"
    cmp -s "$work/whole" "$work/half" && fail "$kind: nothing happens after the stop"
    KILN_MODE=interp "$program" $small --optimizer $kind --steps 2 >"$work/interp" && KILN_MATH=strict "$program" $small --optimizer $kind --steps 2 >"$work/jit" || fail "$kind, other modes"
    [ "$(sed 's/;.*//' "$work/interp")" = "$(sed 's/;.*//' "$work/jit")" ] || fail "$kind: not what the interpreter says"
done

# What makes no sense is said, with status 2, and nothing is trained.
refused() # TEXT ARGUMENTS...
{
    text=$1
    shift
    "$program" "$@" >"$work/out" 2>"$work/err"
    [ $? -eq 2 ] && [ ! -s "$work/out" ] && grep -q -- "$text" "$work/err" || { cat "$work/err"; fail "$* is not refused with \"$text\""; }
}
refused '--steps: "0" is no whole number from 1' --steps 0
refused '"ten" is no whole number' --batch ten
refused '"-1" is no number from 0 to 1e+06' --rate -1
refused 'nosuch: there is no such option' --nosuch
refused '--save: a value is needed' --save
refused 'sgd, adam or adamw' --optimizer rmsprop
"$program" --help | grep -q -- '--optimizer' || fail "no help"
"$program" --steps 5 --load "$work/err" >"$work/out" 2>"$work/err" && fail "loads what is no file of tensors"
grep -q 'safetensors' "$work/err" || { cat "$work/err"; fail "no word of what is wrong with the file"; }
"$program" --steps 40 --hidden 21 --load "$work/whole" >"$work/out" 2>"$work/err" && fail "loads other shapes"
grep -q 'shapes differ' "$work/err" || { cat "$work/err"; fail "no word of shapes"; }
"$program" --steps 5 --save "$work/none/x" >"$work/out" 2>"$work/err" && fail "saves where there is no folder"
grep -q 'No such file' "$work/err" && [ ! -s "$work/out" ] || { cat "$work/err" "$work/out"; fail "trained before it looked where to save"; }
exit 0
