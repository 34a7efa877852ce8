#!/bin/sh
# heat.sh PROGRAM WORK [PTY]: the error falls with the square of the cell's width; one program however many calls and steps; walls, pictures, refusals;
# how far it is, on a terminal (PTY: the program of tests/cli that gives it one).
program=$1 work=$2 pty=$3
rm -rf "$work" && mkdir -p "$work" || exit 1
fail() { echo "wrong: $1"; exit 1; }
error() { "$program" --f64 "$@" | awk '/^largest error/ { print $NF }'; }
order() # WHAT A B: B is a quarter of A
{
    awk -v what="$1" -v a="$2" -v b="$3" 'BEGIN { print what ": " a ", " b; exit !(b > 0 && a / b > 3.8 && a / b < 4.2) }' || fail "$1: the error does not fall with h^2"
}
order heat "$(error --size 31 --steps 200)" "$(error --size 63 --steps 800)"
order wave "$(error --size 31 --steps 40 --wave)" "$(error --size 63 --steps 80 --wave)"
# Steps taken together are the same steps, also where the last call has fewer.
for together in 1 7 200; do
    [ "$(error --size 31 --steps 200 --together $together)" = "$(error --size 31 --steps 200)" ] || fail "--together $together"
done
[ "$(error --size 31 --steps 40 --wave --together 4)" = "$(error --size 31 --steps 40 --wave)" ] || fail "--wave --together"
# f32 has the same error here, but for its own rounding.
awk -v a="$("$program" --size 31 --steps 200 | awk '/^largest error/ { print $NF }')" -v b="$(error --size 31 --steps 200)" 'BEGIN { exit !(a > b * 0.9 && a < b * 1.1) }' || fail f32
# Thousands of steps are one call, with the kernels of each; calls of any number of steps are one program, and another for the first.
calls() # TEXT ARGUMENTS...
{
    text=$1
    shift
    "$program" --size 20 "$@" >"$work/out" || fail "$*"
    grep -q "^$text" "$work/out" || { cat "$work/out"; fail "$*: not $text"; }
}
calls '1 calls, [0-2] programs compiled, 5001 kernels' --steps 5000 --together 5000
calls '500 calls, [0-2] programs compiled' --steps 500 --together 1
calls '39 calls, [0-3] programs compiled' --steps 500 --together 13
calls '80 calls, [0-3] programs compiled' --steps 500 --together 7 --every 50 --frames "$work/f"
"$program" --size 20 --steps 500 2>&1 >/dev/null | grep . && fail "something on stderr that is no terminal"
if [ -n "$pty" ]; then
    "$pty" 80 '' "$program" --size 50 --steps 40 --together 2 >"$work/out"
    case $? in
    0) grep -q '2 of 20, [0-9.]* million cells/s, [0-9]* s left' "$work/out" && grep -q '^.*20 calls' "$work/out" || { cat "$work/out"; fail "no rate and time left on a terminal"; } ;;
    77) echo "no terminal can be had here: left out" ;;
    *) cat "$work/out"; fail "on a terminal" ;;
    esac
fi

# A row of walls across the middle: they stay 0, and grey in the pictures; the solution is not known then.
{
    printf '\223NUMPY\001\000\166\000'
    printf '%-117s\n' "{'descr': '|b1', 'fortran_order': False, 'shape': (5, 5), }"
    printf '\000\000\000\000\000\000\000\000\000\000\001\001\001\001\001\000\000\000\000\000\000\000\000\000\000'
} >"$work/walls.npy"
"$program" --size 5 --steps 40 --every 20 --walls "$work/walls.npy" --frames "$work/frame" --out "$work/end.npy" >"$work/out" || fail "walls"
grep -q 'known solution' "$work/out" && fail "walls have no known solution"
for i in 0 1 2; do
    [ "$(head -c 11 "$work/frame000$i.ppm" | tr '\n' ' ')" = "P6 5 5 255 " ] && [ "$(wc -c <"$work/frame000$i.ppm")" = 86 ] || fail "picture $i"
    [ "$(tail -c 75 "$work/frame000$i.ppm" | tail -c +31 | head -c 15 | tr -d '\140' | wc -c)" = 0 ] || fail "picture $i: the walls are not grey"
done
[ -e "$work/frame0003.ppm" ] && fail "a fourth picture"
# in the file: 25 numbers of 4 bytes; those of the middle row are zeros, those beside it are not
[ "$(tail -c 100 "$work/end.npy" | tail -c +41 | head -c 20 | tr -d '\000' | wc -c)" = 0 ] || fail "u is not 0 on walls"
[ "$(tail -c 100 "$work/end.npy" | tail -c +21 | head -c 20 | tr -d '\000' | wc -c)" -gt 8 ] || fail "u is 0 beside walls"

refused() # TEXT ARGUMENTS...
{
    text=$1
    shift
    "$program" "$@" >"$work/out" 2>"$work/err" && fail "$* is not refused"
    [ ! -s "$work/out" ] && grep -q -- "$text" "$work/err" || { cat "$work/err"; fail "$* is not refused with \"$text\""; }
}
refused '"0.26" is beyond 0.2500, up to which the steps are stable' --rate 0.26
refused '"0.71" is beyond 0.7071' --rate 0.71 --wave
refused '"-1" is no number' --rate -1
refused '"0" is no whole number' --size 0
refused 'there is no such option' --walls2 x
refused 'a value is needed' --out
refused 'a matrix of 6 x 6 is needed' --size 6 --walls "$work/walls.npy"
refused 'numpy.save' --walls "$work/none.npy"
refused 'numpy.save' --size 5 --walls "$work/frame0000.ppm"
refused 'cannot be written' --size 5 --steps 1 --frames "$work/none/x"
"$program" --size 5 --steps 1 --out "$work/none/x.npy" >/dev/null 2>"$work/err" && fail "a result that cannot be written"
grep -q none "$work/err" || fail "which file cannot be written"
"$program" --help | grep -q -- '--together' || fail "no help"
exit 0
