#!/bin/sh
# run.sh FOLDER: locks.pml holds, and spin finds each thing that is taken out of it, a quarter of them in each commit.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../support/turn.sh"
mkdir -p "$1" && cd "$1" || exit 2
bad=0

# check NAME OPTIONS...: spin's verdict over all interleavings, safety first, then that all threads end.
check()
{
    name=$1
    shift
    spin "$@" -a "$here/locks.pml" >spin.log 2>&1 && cc -O2 -w -DVECTORSZ=2048 -o "pan_$name" pan.c || { cat spin.log; exit 2; }
    "./pan_$name" -m1000000 -a -f -N all_end >"$name.log" 2>&1
    grep -q '^State-vector' "$name.log" && ! grep -q 'max search depth too small' "$name.log" || { cat "$name.log"; exit 2; }
    grep -q 'errors: 0' "$name.log"
}

for how in plain async; do
    [ $how = plain ] && set -- || set -- -DASYNC
    if check $how "$@"; then
        echo "$how: $(awk '/states, stored/ { print $1 " states" ; exit }' $how.log), no error"
    else
        echo "$how: FAILED"
        cat $how.log
        bad=1
    fi
done
number=0
for broken in WAKE CLAIM AWAIT ALONE SETTLE SHUT OWN TOLD; do
    number=$((number + 1))
    turn $((number % 4)) 4 || continue
    [ $broken = SETTLE ] && set -- -DASYNC || set --
    if check $broken "$@" -DBREAK_$broken; then
        echo "BREAK_$broken: FAILED: spin finds nothing"
        bad=1
    else
        echo "BREAK_$broken: found: $(sed -n 's/^pan:1: //p' $broken.log | head -n 1)"
    fi
done
exit $bad
