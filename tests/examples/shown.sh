#!/bin/sh
# shown.sh SOURCE PROGRAMS WORK [TOOL]: the commands of examples/README.md do what it shows. Each line of a ```console block that begins with "$ " is run by sh,
# one after the other in one folder, and must print the lines below it, where ... stands for anything within a line, and a line of ... for any lines.
# TOOL: a program of the tests that a block uses; blocks that name it, or embed, are left out where it was not built. Every program is shown.
source=$1 programs=$2 work=$3 tool=$4
rm -rf "$work" && mkdir -p "$work" || exit 1
cd "$work" || exit 1
PATH=$programs${tool:+:$(dirname "$tool")}:$PATH
export PATH
awk -v with="$tool" '
    /^```/ && on { on = 0; close(name ".command"); close(name ".wanted"); next }
    /^```console$/ { on = 1; name = ""; next }
    /^```/ { print "examples/README.md, line " FNR ": a block of another kind than ```console: nobody runs it" >"bad"; on = 1; name = "bad"; next }
    on && /^\$ / { name = sprintf("%03d", FNR); print substr($0, 3) >(name ".command"); printf "" >(name ".wanted"); next }
    on && name { print >(name ".wanted") }' "$source/examples/README.md"
[ ! -e bad ] || { head -n 1 bad; exit 1; }
mkdir run && cd run || exit 1
count=0
failures=0
for command in ../*.command; do
    name=${command%.command}
    [ -n "$tool" ] || ! grep -q '\(^\|[ |]\)embed' "$command" || continue
    count=$((count + 1))
    sh "$command" >"$name.out" 2>&1 || echo "(exit $?)" >>"$name.out"
    awk '
        NR == FNR && $0 == "..." { pattern = pattern "(.*\n)?"; next }
        NR == FNR { gsub(/[][\\.*^$+?(){}|\/]/, "\\\\&"); gsub(/\\\.\\\.\\\./, "[^\n]*"); pattern = pattern $0 "\n"; next }
        { text = text $0 "\n" }
        END { exit text !~ "^" pattern "$" }' "$name.wanted" "$name.out" && continue
    failures=$((failures + 1))
    echo "examples/README.md, line $(basename "$name" | sed 's/^0*//'): $(cat "$command")"
    echo "prints"
    cat "$name.out"
    echo "and not what is shown:"
    cat "$name.wanted"
done
for program in "$source"/examples/*.c; do
    program=$(basename "$program" .c)
    grep -q "\(^\|[ |]\)$program\( \|\$\)" ../*.command || { echo "no block of examples/README.md runs $program"; failures=$((failures + 1)); }
done
echo "$count commands, $failures failed"
cd / && [ "$failures" -eq 0 ] && rm -rf "$work"
[ "$failures" -eq 0 ]
