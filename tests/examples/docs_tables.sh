#!/bin/sh
# docs_tables.sh SOURCE: the tables in docs/ that are made of others: names.md has each public function and no other, misses.md a section for each reason
# for a miss, numbers.md the order of each sum and the accuracy of each function; each link between pages leads somewhere.
cd "$1" || exit 2
LC_ALL=C
export LC_ALL
bad=0
complain()
{
    echo "$*"
    bad=1
}
# Declared by KILN_OP, KILN_SYNC and KILN_API, and macros with arguments; twins with a place apart.
{ sed -n 's/^KILN_\(OP\|SYNC\)(\(kiln_[a-z0-9_]*\),.*/\2/p' runtime/include/kiln.h
  grep -o '^#define kiln_[a-z0-9_]*(' runtime/include/kiln.h | grep -o 'kiln_[a-z0-9_]*'
  grep -o '^KILN_API [^(]*' runtime/include/kiln.h | grep -o 'kiln_[a-z0-9_]*$' | grep -v '_at$'; } | sort -u >"${TMPDIR:-/tmp}/kiln_names_$$"
functions=$(cat "${TMPDIR:-/tmp}/kiln_names_$$")
rm -f "${TMPDIR:-/tmp}/kiln_names_$$"
[ "$(echo "$functions" | wc -l)" -gt 200 ] || complain "only $(echo "$functions" | wc -l) functions found in kiln.h"
listed=$(grep '^| `kiln_' docs/names.md | cut -d'|' -f2 | grep -o 'kiln_[a-z0-9_]*' | sort)
for name in $functions; do
    echo "$listed" | grep -qx "$name" || complain "docs/names.md has no row for $name: say what it is called in NumPy, PyTorch and JAX"
done
for name in $listed; do
    echo "$functions" | grep -qx "$name" || complain "docs/names.md has $name, which kiln.h has not"
done
[ -z "$(echo "$listed" | uniq -d)" ] || complain "docs/names.md has twice: $(echo "$listed" | uniq -d)"

reasons=$(sed -n 's/^REASON([A-Z_]*, *"\([a-z_]*\)".*/\1/p' guards/reasons.def)
sections=$(sed -n 's/^### //p' docs/misses.md)
[ "$reasons" = "$sections" ] || complain "docs/misses.md has sections for: $(echo $sections); guards/reasons.def has rows for: $(echo $reasons)"

# ORDER(fold, running, FLOATS, device, mode, order): a line for each fold and device, with a column for each mode
made=$(sed -n 's/^ORDER(\([A-Z]*\), *\([A-Z]*\), *FLOATS, *\([A-Z]*\), *\([A-Z]*\), *\(.*\))$/\1-\2 \3 \4 \5/p' ir/orders.def | awk '
    BEGIN { name["SUM-ONCE"] = "kiln_sum"; name["PROD-ONCE"] = "kiln_prod"; name["DOT-ONCE"] = "kiln_matmul"; name["SUM-RUNNING"] = "kiln_cumsum" }
    { order = $0; sub(/^[^ ]* [^ ]* [^ ]* /, "", order); order = tolower(order)
      tree = sub(/lanes_tree/, "lanes", order) ? " tree" : ""
      sub(/\(0\)/, "", order); sub(/lanes\(/, "lanes ", order); sub(/, /, " block ", order); sub(/chain\(/, "chain block ", order); sub(/\)/, "", order)
      of[$3] = order tree
      if ($3 == "FAST") print "| `" name[$1] "` | " ($2 == "HOST" ? "CPU" : $2) " | " of["STRICT"] " | " of["FAST"] " |" }')
written=$(sed -n '/^## Orders/,/^## Accuracy/p' docs/numbers.md | grep '^| `kiln_')
[ -n "$made" ] && [ "$made" = "$written" ] || { echo "the table of orders in docs/numbers.md should be:"; echo "$made"; bad=1; }

made=$(sed -n 's/^ACCURACY(\([A-Z0-9_]*\), *\([0-9.]*\), *\([0-9.]*\)).*/\1 \2 \3/p' ir/accuracy.def | awk '{ print "| `kiln_" tolower($1) "` | " $2 " | " $3 " |" }')
written=$(sed -n '/^## Accuracy/,$p' docs/numbers.md | grep '^| `kiln_')
[ -n "$made" ] && [ "$made" = "$written" ] || { echo "the table of docs/numbers.md should be:"; echo "$made"; bad=1; }

for page in docs/*.md; do
    grep -q "(${page#docs/})" docs/README.md || [ "$page" = docs/README.md ] || complain "docs/README.md does not name $page"
    for link in $(grep -o '](\([a-z_/.]*\.md\))' "$page" | tr -d '()]'); do
        [ -e "docs/$link" ] || complain "$page links to $link, which is not there"
    done
done
exit $bad
