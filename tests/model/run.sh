#!/bin/sh
# run.sh FOLDER: locks.pml and streams.pml hold, and spin finds each thing that is taken out of them, a part of both in each commit.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../support/turn.sh"
mkdir -p "$1" && cd "$1" || exit 2
bad=0

# check NAME MODEL OPTIONS...: spin's verdict over all interleavings, safety first, then, of the locks, that all threads end.
check()
{
    name=$1 model=$2 ends=
    shift 2
    [ "$model" = streams ] || ends='-a -f -N all_end'
    spin "$@" -a "$here/$model.pml" >spin.log 2>&1 && cc -O2 -w -DVECTORSZ=2048 -o "pan_$name" pan.c || { cat spin.log; exit 2; }
    "./pan_$name" -m1000000 $ends >"$name.log" 2>&1
    grep -q '^State-vector' "$name.log" && ! grep -q 'max search depth too small' "$name.log" || { cat "$name.log"; exit 2; }
    grep -q 'errors: 0' "$name.log"
}

# model, option that chooses a part of it
number=0
while read -r name model option; do
    number=$((number + 1))
    turn $((number % 16)) || continue
    if check "$name" "$model" $option; then
        echo "$name: $(awk '/states, stored/ { print $1 " states" ; exit }' "$name.log"), no error"
    else
        echo "$name: FAILED"
        cat "$name.log"
        bad=1
    fi
done <<'END'
plain locks
async locks -DASYNC
repeat locks -DREPEAT
streams streams
END
number=0
while read -r broken model option; do
    number=$((number + 1))
    turn $((number % 16)) || continue
    if check "$broken" "$model" $option "-DBREAK_$broken"; then
        echo "BREAK_$broken: FAILED: spin finds nothing"
        bad=1
    else
        echo "BREAK_$broken: found: $(sed -n 's/^pan:1: //p' "$broken.log" | head -n 1)"
    fi
done <<'END'
WAKE locks
CLAIM locks
AWAIT locks
ALONE locks
SETTLE locks -DASYNC
SHUT locks
OWN locks
TOLD locks
REPEATS locks -DREPEAT
LAST locks -DREPEAT
USERS locks -DREPEAT
WAIT streams
READERS streams
ONCE streams
NOTED streams
CLEARED streams
END
exit $bad
