#!/bin/sh
# gpt.sh PROGRAM WORK: learns a text, resumes with the same bits, survives kill -9, writes on with a cache that equals none, refuses what is bad.
program=$1 work=$2
rm -rf "$work" && mkdir -p "$work" || exit 1
fail() { echo "wrong: $1"; exit 1; }
i=0
while [ $i -lt 160 ]; do # what follows a byte is known, but for the number
    echo "line $((i * 7919 % 97)): the quick brown fox jumps over the lazy dog"
    i=$((i + 1))
done >"$work/text"
small="--depth 2 --width 32 --heads 2 --context 24 --batch 8 --warmup 5 --rate 0.01"
# shellcheck disable=SC2086
train() { "$program" train "$work/text" $small "$@"; }

train --steps 80 --every 20 --save "$work/whole" --svg "$work/curve.svg" >"$work/out" 2>"$work/err" || { cat "$work/err"; fail "training"; }
cat "$work/out"
[ -s "$work/err" ] && fail "something on stderr that is no terminal: $(cat "$work/err")"
awk '/^step 80:/ { loss = $4 + 0; validation = $6 + 0 } /^step 1:/ { first = $4 + 0 } /programs were compiled/ { programs = $1 }
    END { exit !(first > 4.5 && loss > 0 && loss < 1 && validation > 0 && validation < 1 && programs <= 8) }' "$work/out" || fail "what it learned"
[ "$(grep -c '<polyline' "$work/curve.svg")" = 2 ] && grep -q '</svg>' "$work/curve.svg" || fail "the curve"

. "$(dirname "$0")/../support/turn.sh"

if turn 0; then
    # Stopped and resumed, with dropout: the bits of a run that was not stopped.
    train --steps 12 --stop 5 --every 5 --dropout 0.1 --save "$work/a" >/dev/null && train --steps 12 --every 5 --dropout 0.1 --resume "$work/a" --save "$work/a" >/dev/null &&
        train --steps 12 --every 5 --dropout 0.1 --save "$work/b" >/dev/null || fail "resuming"
    cmp "$work/a" "$work/b" || fail "a resumed run has other bits"
    train --steps 12 --every 5 --dropout 0.1 --seed 2 --save "$work/c" >/dev/null
    cmp -s "$work/b" "$work/c" && fail "another seed, the same bits"
fi

if turn 1; then
    # Killed at some time: what was saved last is whole.
    "$program" train "$work/text" $small --steps 1000000 --every 1 --save "$work/killed" >/dev/null 2>&1 &
    child=$!
    n=0
    while [ ! -s "$work/killed" ] && [ $n -lt 6000 ]; do
        sleep 0.1
        n=$((n + 1))
    done
    sleep 0.3
    kill -9 $child
    wait $child 2>/dev/null
    "$program" sample "$work/killed" --tokens 1 >/dev/null || fail "a killed run's model"
    step=$(head -c 400 "$work/killed" | LC_ALL=C grep -a -o '"step":"[0-9]*"' | tr -dc 0-9)
    [ "${step:-0}" -gt 0 ] || fail "the step of a killed run's model"
    stop=$((step + 7))
    train --steps 1000000 --stop $stop --every 1 --resume "$work/killed" --save "$work/killed" >/dev/null && train --steps 1000000 --stop $stop --every 1 --save "$work/unkilled" >/dev/null ||
        fail "resuming a killed run"
    cmp "$work/killed" "$work/unkilled" || fail "a killed and resumed run has other bits"
fi

if turn 2; then
    # Products in bf16: other bits, and it learns.
    train --steps 60 --every 60 --bf16 --save "$work/low" >"$work/out" && train --steps 60 --every 60 --save "$work/full" >/dev/null || fail "bf16"
    awk '/^step 60:/ { exit !($4 + 0 < 1.5) }' "$work/out" || { cat "$work/out"; fail "what it learned in bf16"; }
    cmp -s "$work/low" "$work/full" && fail "--bf16 changes nothing"
fi

if turn 3; then
    # Writing: by the seed, without a program for each length, and as without a cache, also beyond the context and from a prompt that is longer.
    sample() { "$program" sample "$work/whole" "$@" 2>"$work/err"; }
    [ "$(sample --prompt "line 5: the quick b" --temperature 0 --tokens 34 | head -n 1)" = "line 5: the quick brown fox jumps over the lazy dog" ] || fail "it did not learn the line: $(sample --prompt "line 5: the quick b" --temperature 0 --tokens 34)"
    sample --tokens 60 --seed 3 >"$work/s1" && sample --tokens 60 --seed 3 >"$work/s2" && sample --tokens 60 --seed 4 --temperature 1.5 >"$work/s3" || fail "sampling"
    cmp "$work/s1" "$work/s2" || fail "a seed gives two texts"
    cmp -s "$work/s1" "$work/s3" && fail "two seeds give one text"
    programs() { sample --prompt "line 12" --tokens "$1" --check >/dev/null && awk '/^largest difference/ { print $7 }' "$work/err"; }
    [ "$(programs 3)" = "$(programs 40)" ] || fail "a program for a length: $(programs 3) and $(programs 40)"
    for prompt in "l" "line 12: the quick brown fox jumps over the lazy dog"; do
        sample --prompt "$prompt" --tokens 70 --check --top-k 5 --top-p 0.9 >/dev/null || fail "checking"
        awk '/^largest difference/ { seen = 1; exit !($6 !~ /nan/ && $6 + 0 < 1e-5 && $7 <= 8) } END { if (!seen) exit 1 }' "$work/err" || fail "with a cache: $(cat "$work/err")"
    done
fi

refused() # TEXT ARGUMENTS...
{
    text=$1
    shift
    "$program" "$@" >"$work/out" 2>"$work/err" </dev/null && fail "$* is not refused"
    grep -q -- "$text" "$work/err" || { cat "$work/err"; fail "$* is not refused with \"$text\""; }
}
refused '^gpt: train or sample is needed'
refused '^gpt: learn: train or sample is needed' learn
refused 'name files' train
refused "none: No such file" train "$work/none"
refused "$work: Is a directory" train "$work"
refused 'too few bytes' train "$work/text" --context 4000
refused 'a multiple of twice' train "$work/text" --width 30 --heads 4
refused '"0" is no whole number' train "$work/text" --batch 0
refused '"nan" is no number' train "$work/text" --rate nan
refused 'there is no such option' train "$work/text" --layers 3
refused 'a value is needed' train "$work/text" --steps
refused 'No such file' train "$work/text" --save "$work/none/x"
refused 'x.svg cannot be written: No such file' train "$work/text" $small --steps 1 --svg "$work/none/x.svg"
refused 'No such file' train "$work/text" --resume "$work/none"
refused '--width: the run that is resumed has another' train "$work/text" --width 64 --resume "$work/whole"
refused '--seed: the run that is resumed has another' train "$work/text" --seed 7 --resume "$work/whole"
refused 'another text' train "$work/curve.svg" "$work/text" --resume "$work/whole"
cp "$work/whole" "$work/kept"
refused 'another text' train "$work/curve.svg" "$work/text" --resume "$work/whole" --save "$work/whole"
cmp "$work/whole" "$work/kept" || fail "a run that was refused has changed the file"
refused 'is it a safetensors file' sample "$work/text"
# What a model says of itself: each value out of bounds, missing, no number, or not what its tensors are; metadata alone that tell of terabytes.
spoiled() # FROM TO TEXT: the same number of bytes
{
    sed "s/$1/$2/" "$work/whole" >"$work/spoiled"
    cmp -s "$work/whole" "$work/spoiled" && fail "nothing to spoil: $1"
    refused "$3" sample "$work/spoiled"
    refused "$3" train "$work/text" --resume "$work/spoiled"
}
spoiled '"depth":"2"' '"depth":"0"' 'its depth, "0", is no whole number from 1 to 48'
spoiled '"depth":"2"' '"depth":"3"' 'tensor "blocks.2.norm1" is not in it'
spoiled '"depth":"2"' '"depht":"2"' 'its metadata do not tell "depth"'
spoiled '"depth":"2"' '"depth":"x"' 'its depth, "x", is no whole number'
spoiled '"width":"32"' '"width":"36"' 'tensor "embedding" has another shape than its metadata tell'
spoiled '"width":"32"' '"width":"-2"' 'its width, "-2", is no whole number'
spoiled '"heads":"2"' '"heads":"3"' 'its width, 32, is no multiple of twice its heads, 3'
spoiled '"context":"24"' '"context":"0x"' 'its context, "0x", is no whole number'
spoiled '"embedding"' '"embeddinh"' 'tensor "embedding" is not in it'
sed 's/"shape":\[5,3\]/"shape":[3,5]/' "$work/whole" >"$work/spoiled"
refused 'tensor "curve" is no f32 table of 3 columns' train "$work/text" --resume "$work/spoiled"
header=$(($(od -An -tu8 -N8 "$work/whole") + 8))
{ head -c $header "$work/whole"; head -c $(($(wc -c <"$work/whole") - header)) /dev/zero | LC_ALL=C tr '\0' '\377'; } >"$work/nan"
refused 'numbers are not finite' sample "$work/nan"
refused 'tensor "curve" has losses that are not finite' train "$work/text" --resume "$work/nan"
about='{"__metadata__":{"depth":"48","width":"65536","heads":"2","context":"64","step":"1","seed":"1",'$(head -c 600 "$work/whole" | LC_ALL=C grep -a -o '"text":"[0-9]*"')'}}'
{ printf "\\$(printf %o ${#about})\\0\\0\\0\\0\\0\\0\\0"; printf %s "$about"; } >"$work/huge"
refused 'tensor "embedding" is not in it' sample "$work/huge"
refused 'tensor "embedding" is not in it' train "$work/text" --resume "$work/huge"
refused 'one byte at least' sample "$work/whole" --prompt ''
head -c 5000 "$work/whole" >"$work/cut"
refused "$work/cut" sample "$work/cut"
"$program" --help | grep -q -- '--top-p' || fail "no help"
exit 0
