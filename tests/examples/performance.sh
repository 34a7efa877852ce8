#!/bin/sh
# performance.sh SOURCE LIBRARY KILN WORK CC [DEMO]: docs/performance.md shows what its commands print. Its programs (the C blocks; that they compute what it says
# is docs.sh's) run under the variables that the text names; each line shown must be among those printed, numbers apart, where a line that ends in
# "..." is shown in part. The ```sh blocks run as they are, with the second program as ./program, and must leave the files that they name.
source=$1 library=$2 kiln=$3 work=$4 cc=$5 demo=$6
page=$source/docs/performance.md
failed=0
rm -rf "$work" && mkdir -p "$work/bin" "$work/cache" && chmod 700 "$work/cache" || exit 2
cd "$work" || exit 2
KILN_CACHE=on KILN_CACHE_DIR=$work/cache LD_LIBRARY_PATH=$(dirname "$library") PATH=$work/bin:$PATH
export KILN_CACHE KILN_CACHE_DIR LD_LIBRARY_PATH PATH
ln -s "$kiln" bin/kiln
fail()
{
    echo "FAILED: $*"
    failed=1
}
awk '
    /^```/ && out { close(out); out = ""; next }
    /^```c$/ { out = "block" ++c ".c"; next }
    /^```sh$/ { out = "block" ++sh ".sh"; next }
    /^```$/ { out = "shown" ++shown; next }
    /^```/ { out = "other"; next }
    out { print >out }' "$page"
for i in 1 2; do
    { printf '#include <kiln.h>\n#include <stdio.h>\nint main(void)\n{\nkiln_scope *scope = kiln_scope_begin();\n'
      cat block$i.c
      printf 'kiln_scope_end(scope);\nreturn 0;\n}\n'; } >program$i.c
    "$cc" -std=c11 -I"$source/runtime/include" program$i.c "$library" -o program$i || fail "program $i does not compile"
done
ln -s program2 program

# shape: numbers are #, and so are regimes and what a program's line says of its overhead, which depend on what a busy machine measured; spaces are one;
# a line that begins with spaces and a letter goes on with the one before, as the page wraps it
shape() { sed 's/^\[kiln perf\] //' | awk '/^    [a-z]/ { sub(/^ +/, " "); text = text $0; next } { if (NR > 1) print text; text = $0 } END { print text }' |
    sed 's/[0-9a-f]\{16\}/#/g; s/[+-]*[0-9][0-9.]*[kM]*\(%\|\)/#/g; s/  */ /g; s/ # \(memory\|compute\|special functions\|overhead\) # / # # # /; s/ around them: overhead; .*/ around them/; s/^ //; s/ $//'; }
# printed SHOWN FILE
printed()
{
    shape <"$2" >"$2.shape"
    shape <"$1" >"$1.shape"
    [ -s "$1.shape" ] || fail "$1 is empty"
    while IFS= read -r line; do
        case $line in
        *...) awk -v line="${line%...}" 'index($0, line) == 1 { found = 1 } END { exit !found }' "$2.shape" ;;
        *) grep -qxF -e "$line" "$2.shape" ;;
        esac || fail "docs/performance.md shows \"$line\", not printed: $(cat "$2")"
    done <"$1.shape"
}
KILN_PERF=summary KILN_THREADS=2 ./program1 >out1 2>&1 || fail 'the first program'
sed -i "/ us of work: /,\$d" shown1 # advice where something can be saved: on a busy machine nothing can
printed shown1 out1
KILN_LOG=perf ./program2 >out2 2>&1 || fail 'the second program'
sed -i 's/% of the limit: .*/% of the limit:/' shown2 out2 # which regime it is depends on the machine
printed shown2 out2
for i in 1 2; do
    sh block$i.sh >out 2>&1 # the status is that of the last command
    [ $? -le 1 ] || fail "its commands: $(cat out)"
    [ $i = 1 ] || cp out out3
done
for file in run.html change.html; do [ -s $file ] || fail "no $file"; done
sed -i 's/\(slower\|faster\|same\|too short\)$//; /^kiln: [0-9]* kernels* \(are\|is\) slower/d; s/ *[+-][0-9.]*% *$//' shown3 out3 # how much it is depends on the machine
printed shown3 out3
if [ -n "$demo" ]; then # a smaller one: the same kernels
    KILN_PERF=summary "$demo" --quick >demo.out 2>out4 || fail 'the demo'
    [ "$(sed -n 's/.*  \([a-z_]*\) of [0-9a-f]\{16\}$/\1/p' shown4 | tee names | wc -l)" = 8 ] || fail "rows of the demo: $(cat names)"
    while read -r name; do grep -q " $name of [0-9a-f]*$" out4 || fail "the demo has no kernel $name: $(cat out4)"; done <names
fi
KILN_PERF=csv ./program2 2>&1 | sed -n 's/^\[kiln perf\] //p' | head -n 1 | tr ',' '\n' >columns
while read -r column; do grep -q "\`$column\`" "$page" || fail "the column $column of KILN_PERF=csv is not in docs/performance.md"; done <columns
[ "$(wc -l <columns)" -gt 10 ] || fail "KILN_PERF=csv: $(cat columns)"
exit $failed
