#!/bin/sh
# abi.sh CC INCLUDE LIBRARY NM WORK LIST [--write]: the binary interface against that of the last release, LIST: each function's declaration,
# each public struct's layout, each constant, and the version of each symbol. What LIST has must be as it was; what is new is named and no fault, since
# it breaks nobody. --write makes LIST anew, for a release (CONTRIBUTING.md). Everything is read from the header as the compiler sees it.
cc=$1 include=$2 library=$3 nm=$4 work=$5 list=$6
LC_ALL=C
export LC_ALL
rm -rf "$work"
mkdir -p "$work"
echo '#include <kiln.h>' | "$cc" -std=c11 -DKILN_NO_LOCATIONS -I"$include" -E -x c - | awk '/^# [0-9]+ "/ { on = $3 ~ /kiln\.h"$/; next } on' |
    sed 's/__attribute__((visibility("default")))//g; s/__attribute__((warn_unused_result))//g' | tr -s ' \n\t' ' ' >"$work/flat"

# Functions with bodies are in programs, not in the library: dropped. Then one declaration a line.
awk '{
    text = $0
    while (match(text, /static inline [^{]*\{/)) { # skip to the brace that closes it
        head = substr(text, 1, RSTART - 1)
        at = RSTART + RLENGTH
        for (depth = 1; depth > 0 && at <= length(text); at++) {
            c = substr(text, at, 1)
            depth += (c == "{") - (c == "}")
        }
        text = head substr(text, at)
    }
    depth = 0
    line = ""
    for (at = 1; at <= length(text); at++) {
        c = substr(text, at, 1)
        depth += (c == "{") - (c == "}")
        line = line c
        if (c == ";" && depth == 0) {
            gsub(/^ +| +$/, "", line)
            print line
            line = ""
        }
    }
}' "$work/flat" >"$work/declarations"

# A program that prints structs and constants as the compiler lays them out.
awk '
    BEGIN { print "#define KILN_NO_LOCATIONS\n#include <kiln.h>\n#include <stdio.h>\nint main(void)\n{" }
    /^typedef struct [a-z_]+ \{/ {
        name = $3
        body = substr($0, index($0, "{") + 1)
        sub(/\}[^}]*$/, "", body)
        printf "    printf(\"struct %s: %%zu bytes, aligned %%zu\\n\", sizeof(%s), _Alignof(%s));\n", name, name, name
        n = split(body, lines, ";")
        for (i = 1; i <= n; i++) {
            line = lines[i]
            gsub(/^ +| +$/, "", line)
            if (line == "") continue
            m = split(line, fields, ",")
            type = fields[1]
            sub(/[ *]*[a-z_0-9]+ *(\[[^]]*\])?$/, "", type)
            for (k = 1; k <= m; k++) {
                field = fields[k]
                sub(/\[.*/, "", field)
                gsub(/ +$/, "", field)
                sub(/.*[ *]/, "", field)
                printf "    printf(\"  %s.%s: %s at %%zu, %%zu bytes\\n\", offsetof(%s, %s), sizeof((*(%s *)0).%s));\n", name, field, type, name, field, name, field
            }
        }
    }
    /^typedef enum [a-z_]+ \{/ {
        name = $3
        body = substr($0, index($0, "{") + 1)
        sub(/\}.*/, "", body)
        n = split(body, constants, ",")
        for (i = 1; i <= n; i++) {
            gsub(/[ ]|=.*/, "", constants[i])
            if (constants[i] != "") printf "    printf(\"enum %s: %s = %%d\\n\", (int)%s);\n", name, constants[i], constants[i]
        }
    }
    END { print "    return 0;\n}" }' "$work/declarations" >"$work/layout.c"
"$cc" -std=c11 -I"$include" "$work/layout.c" -o "$work/layout" || exit 1

grep -v '^typedef \(struct\|enum\) [a-z_]* {' "$work/declarations" | sed 's/ *;$//; s/ ,/,/g; s/( /(/g' | sort >"$work/functions"
"$nm" -D --defined-only "$library" | awk '$NF !~ /^KILN_/ { sub(/@@/, " ", $NF); print "symbol " $NF }' | sort >"$work/symbols"
{ sort "$work/functions"; "$work/layout"; cat "$work/symbols"; } >"$work/now"
[ "$(wc -l <"$work/functions")" -gt 300 ] || { echo "only $(wc -l <"$work/functions") declarations were found in kiln.h"; exit 1; }

# Declared and exported must be the same.
sed -n 's/^[^(]*[ *]\(kiln_[a-z0-9_]*\) *(.*/\1/p' "$work/functions" | grep -vw "$(sed -n 's/^typedef.*[ *]\(kiln_[a-z_]*\) *(.*/\1/p' "$work/functions" | paste -sd'|' | sed 's/|/\\|/g')" | sort -u >"$work/declared"
awk '{ print $2 }' "$work/symbols" | sort -u >"$work/exported"
if ! diff "$work/declared" "$work/exported" >"$work/diff"; then
    echo "kiln.h and the library differ (<: declared only, >: exported only):"
    grep '^[<>]' "$work/diff"
    exit 1
fi
if awk '$3 == ""' "$work/symbols" | grep .; then
    echo "no version: cmake/kiln.map was not used"
    exit 1
fi
if [ "${7-}" = --write ]; then
    cp "$work/now" "$list"
    echo "wrote $(wc -l <"$list") lines"
    exit 0
fi
sort "$list" >"$work/then.sorted"
sort "$work/now" >"$work/now.sorted"
new=$(comm -13 "$work/then.sorted" "$work/now.sorted")
gone=$(comm -23 "$work/then.sorted" "$work/now.sorted")
[ -z "$new" ] || printf 'new since the last release:\n%s\n' "$new"
if [ -n "$gone" ]; then
    printf 'in the last release, and no longer so:\n%s\n' "$gone"
    echo "Programs that were built with it break. Keep it, or say so: CHANGELOG.md, a new SOVERSION, and this list made anew with --write"
    exit 1
fi
rm -rf "$work"
echo "$(wc -l <"$list") lines of the interface are as they were"
