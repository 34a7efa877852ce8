#!/bin/sh
# docs.sh SOURCE LIBRARY WORK CC: each C block of README.md and docs/ is compiled without warnings and run; what it prints must be the ```text block that
# follows it before the next C block, where ... stands for anything within a line. A block without main is the body of one (docs/README.md); one of
# functions stands before those that follow it in its page. docs/lines.md has at most 1.2 times as many lines of C as of Python.
source=$1 library=$2 work=$3 cc=$4
rm -rf "$work"
mkdir -p "$work"
cd "$work" || exit 1
awk '
    FNR == 1 { file = FILENAME; sub(/.*\//, "", file); sub(/\.md$/, "", file); last = 0 }
    /^```c$/ { n++; name = sprintf("%03d_%s_%d", n, file, FNR); out = name ".block"; last = 1; next }
    /^```text$/ && last { last = 0; out = name ".wanted"; printf "" >out; next }
    /^```/ { if (out) close(out); out = ""; next }
    out { print >out }' "$source/README.md" "$source"/docs/*.md
count=0
failures=0
complain()
{
    echo "$1, in $(echo "$block" | sed 's/.block//; s/^[0-9]*_\(.*\)_\([0-9]*\)$/\1.md, line \2/'):"
    cat "$2"
    failures=$((failures + 1))
}
LD_LIBRARY_PATH=$(dirname "$library")
export LD_LIBRARY_PATH
for block in *.block; do
    count=$((count + 1))
    name=${block%.block}
    page=$(echo "$name" | sed 's/^[0-9]*_//; s/_[0-9]*$//')
    if grep -q '^int main' "$block"; then
        cp "$block" "$name.c"
    elif grep -q '^{$' "$block"; then
        cat "$block" >>"$page.functions"
        continue
    else
        { printf '#include <kiln.h>\n#include <math.h>\n#include <stdio.h>\n#include <string.h>\n\n'
          [ ! -e "$page.functions" ] || cat "$page.functions"
          printf 'int main(void)\n{\n    kiln_scope *scope = kiln_scope_begin();\n'
          cat "$block"; printf '    kiln_scope_end(scope);\n    return 0;\n}\n'; } >"$name.c"
    fi
    "$cc" -std=c11 -Wall -Wextra -Werror -Wno-misleading-indentation -I"$source/runtime/include" "$name.c" "$library" -lm -o "$name.program" 2>"$name.log" || { complain "does not compile" "$name.log"; continue; }
    if ! "./$name.program" >"$name.out" 2>&1; then
        if grep -q 'needs a LAPACK library' "$name.out"; then
            echo "left out: $name needs a LAPACK library (Debian: liblapack3)"
        else
            complain "fails" "$name.out"
        fi
        continue
    fi
    case $name in # the top README says in words what its program prints
    *_README_*) if [ ! -e "$name.wanted" ] && [ -s "$name.out" ]; then
        number=$(sed -n 's/^It prints `\([0-9.]*\)`.*/\1/p' "$source/README.md")
        echo "$number" >"$name.wanted"
    fi ;;
    esac
    [ -e "$name.wanted" ] || : >"$name.wanted"
    awk '{ gsub(/[][\\.*^$+?(){}|\/]/, "\\\\&"); gsub(/\\\.\\\.\\\./, ".*"); print "^" $0 "$" }' "$name.wanted" >"$name.patterns"
    if [ "$(wc -l <"$name.wanted")" != "$(wc -l <"$name.out")" ] || ! paste -d '\n' "$name.patterns" "$name.out" |
        awk 'NR % 2 { pattern = $0; next } $0 !~ pattern { print "<" $0 ">"; bad = 1 } END { exit bad }' >"$name.lines"; then
        complain "prints something else" "$name.out"
    fi
done
lines() # LANGUAGE
{
    awk -v begin="\`\`\`$1" '$0 == begin && !seen { on = seen = 1; next } /^```/ { on = 0 } on && !/^[{}]?$/ { n++ } END { print n + 0 }' "$source/docs/lines.md"
}
echo "docs/lines.md: $(lines c) lines of C, $(lines python) of Python"
[ $(($(lines c) * 10)) -le $(($(lines python) * 12)) ] && [ "$(lines c)" -gt 20 ] || { echo "more than 1.2 times as many"; failures=1; }
[ $count -ge 10 ] || { echo "only $count blocks found"; exit 1; }
echo "$count C blocks, $failures failed"
cd / && [ $failures -eq 0 ] && rm -rf "$work"
[ $failures -eq 0 ]
