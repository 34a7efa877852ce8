# Lines that say how far long work is: on a terminal only, gone at the end, cut to its width; a compile's, and those of the command.
. "$(dirname "$0")/lib.sh"
cache=$work/cache
export KILN_THREADS=1
esc=$(printf '\033')
drawn() { sed "s/$esc\[K/\n/g" "$work/out"; } # what was on the line, one time after the other; what follows the last erasing

# --- the library: nothing unless it is asked for, nothing in a pipe, what it prints is as ever
plain=$(KILN_PROGRESS=1 KILN_CACHE=off KILN_DYNAMIC=never "$tools/cli_use" 20 20 many 2>"$work/err") || fail "use many in a pipe"
[ -s "$work/err" ] && fail "it draws where there is no terminal: $(cat "$work/err")"
if "$tools/cli_pty" 80 '' "$kiln" path >/dev/null; [ $? = 77 ]; then
    echo "note: no pseudo terminal here; lines are not tested"
    finish
    exit 0
fi
KILN_PROGRESS=1 KILN_CACHE=off KILN_DYNAMIC=never "$tools/cli_pty" 60 '' "$tools/cli_use" 20 20 many >"$work/out" || fail "use on a terminal"
grep -qE "kiln: compiling [0-9a-f]{16}: [0-9]+ of 3[0-9]+, [0-9.]+ s" "$work/out" || fail "no line of the compile: $(cat -v "$work/out")"
[ "$(drawn | tail -n 1)" = "$plain" ] || fail "the line is not gone before the result: $(cat -v "$work/out")"
drawn | grep -q '.\{60\}' && fail "a line is longer than the terminal is wide"
KILN_CACHE=off KILN_DYNAMIC=never "$tools/cli_pty" 60 '' "$tools/cli_use" 20 20 many >"$work/out" || fail "use on a terminal, not asked"
[ "$(cat "$work/out")" = "$plain" ] || fail "it draws though nobody asked: $(cat -v "$work/out")"

# --- the command: KILN_PROGRESS=1 draws at once, else what takes long
make_cache "$cache"
line() # VERB COMMAND...
{
    verb=$1
    shift
    KILN_PROGRESS=1 "$tools/cli_pty" 80 '' "$@" >"$work/out" || fail "status $?: $*: $(cat -v "$work/out")"
    drawn | grep -qE "^$verb: 0 of 4, [0-9.]+ s\$" || fail "no line of $verb: $(cat -v "$work/out")"
    drawn | tail -n 1 | grep -q "$verb: " && fail "$verb: the line stays: $(cat -v "$work/out")"
    "$@" >"$work/out" 2>"$work/err" </dev/null
    grep -q " of 4, " "$work/out" "$work/err" && fail "$verb draws in a pipe"
}
line verify "$kiln" cache verify --dir="$cache"
line "export: read" "$kiln" cache export "$work/a.kilnpack" --dir="$cache"
line import "$kiln" cache import --yes --foreign "$work/a.kilnpack" --dir="$work/taken"
KILN_CACHE=off KILN_TRACE="$work/trace.json" "$tools/cli_use" 20 20 >/dev/null || fail "use with a trace"
KILN_PROGRESS=1 "$tools/cli_pty" 80 '' "$kiln" report "$work/trace.json" -o "$work/report.html" >"$work/out" || fail "report: $(cat -v "$work/out")"
drawn | grep -qE '^read, MB: 0(\.[0-9])? of [0-9.]+, [0-9.]+ s$' || fail "no line of report: $(cat -v "$work/out")"
[ "$(drawn | tail -n 1)" = "$work/report.html" ] || fail "report: the line stays: $(cat -v "$work/out")"
"$tools/cli_pty" 80 '' "$kiln" cache verify --dir="$cache" >"$work/out"
drawn | grep -qE "^verify: .* of 4, 0\.[01] s" && fail "verify draws before it has taken long, though nobody asked: $(cat -v "$work/out")"
finish
