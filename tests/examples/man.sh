#!/bin/sh
# man.sh SOURCE LIBRARY WORK CC: each program of kiln(3) is compiled without warnings and run, and its last one learns; each function that the page
# names is in kiln.h.
source=$1 library=$2 work=$3 cc=$4
page=$source/cache/cli/man/kiln.3.in
rm -rf "$work" && mkdir -p "$work" && cd "$work" || exit 1
LD_LIBRARY_PATH=$(dirname "$library")
export LD_LIBRARY_PATH
bad=0
for name in $(sed -n 's/^\.Fn \(kiln_[a-z0-9_]*\).*/\1/p' "$page"); do
    grep -q "\b$name\b" "$source/runtime/include/kiln.h" || { echo "kiln(3) names $name, which kiln.h has not"; bad=1; }
done
awk '/^\.Bd -literal/ { n++; on = 1; next } /^\.Ed/ { on = 0 } on { gsub(/\\-/, "-"); gsub(/\\e/, "\\"); print >("program" n ".c") }' "$page"
for program in program*.c; do
    "$cc" -std=c11 -Wall -Wextra -Werror -I"$source/runtime/include" "$program" "$library" -lm -o "${program%.c}" && "./${program%.c}" >"${program%.c}.out" 2>&1 ||
        { echo "$program of kiln(3):"; cat "${program%.c}.out"; bad=1; }
done
[ "$(cat program2.out)" = learned ] && [ ! -e program3.c ] || { echo "not two programs, of which the second learns: $(cat program2.out)"; bad=1; }
exit $bad
