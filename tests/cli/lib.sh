# What the scripts of tests/cli share; sourced. They are called as: sh SCRIPT KILN TOOLS GOLDEN WORK
#   KILN    the command        TOOLS   the folder of make_cache, pty and json        GOLDEN  expected texts        WORK  scratch
# KILN_TEST_GOLDEN=1 writes the expected texts anew: look at the difference before you commit it.
set -u
kiln=$1 tools=$2 golden=$3 work=$4
failures=0
rm -rf "$work"
mkdir -p "$work/home"
HOME=$work/home TZ=UTC LC_ALL=C TERM=xterm
export HOME TZ LC_ALL TERM
unset XDG_CACHE_HOME NO_COLOR COLUMNS KILN_CACHE KILN_CACHE_DIR KILN_MATH KILN_LOG 2>/dev/null

fail()
{
    echo "FAILED: $*"
    failures=$((failures + 1))
}

# golden NAME COMMAND...: its stdout, stderr and status, with what differs from run to run masked, against GOLDEN/NAME.txt
golden()
{
    name=$1
    shift
    "$@" >"$work/out" 2>"$work/err" </dev/null
    status=$?
    cp "$work/out" "$work/$name.txt.raw"
    {
        cat "$work/out"
        sed 's/^/stderr: /' "$work/err"
        echo "status $status"
    } | sed -e "s|$work|WORK|g" -e "s|$kiln|kiln|g" \
        -e 's/last used .*/last used      TIME/' -e 's/"used": [0-9]*/"used": TIME/' \
        -e 's/\([ (]\)[0-9][0-9.]*k\([ );]\|$\)/\1SIZE\2/g' -e 's/"\([a-z_]*bytes\)": [0-9]*/"\1": BYTES/' -e 's/bytes  *[0-9]*$/bytes BYTES/' -e 's/of [0-9]* bytes/of BYTES bytes/' -e 's/[0-9a-f]\{64\}/SHA256/' >"$work/$name.txt"
    if [ "${KILN_TEST_GOLDEN:-}" = 1 ]; then
        cp "$work/$name.txt" "$golden/$name.txt"
    elif ! diff -u "$golden/$name.txt" "$work/$name.txt"; then
        fail "$name: $*"
    fi
}

# expect STATUS COMMAND...: only how it ends
expect()
{
    wanted=$1
    shift
    "$@" >"$work/out" 2>"$work/err" </dev/null
    status=$?
    [ $status = "$wanted" ] || {
        fail "status $status, expected $wanted: $*"
        cat "$work/out" "$work/err"
    }
}

# A cache with the entries of make_cache.c, their last use set, in $1. The rest goes to make_cache.
make_cache()
{
    "$tools/cli_make_cache" "$@" || fail "make_cache $*"
    used 4c8481bf '210 minutes ago' "$1"
    used 6a216ed3 '972 hours ago' "$1"
    used 94791d8c '150 minutes ago' "$1"
}

# used PREFIX WHEN DIR: when the entries of this prefix were last used. WHEN lies between two numbers that the command shows (3h, 40d):
# on such a number the clock's step between touch and the command would decide, and the zone's summer time where it is in days.
used() { find "$3" -name "$1*.kiln" -exec touch -d "$2" {} +; }

# entry PREFIX DIR: the file of an entry
entry() { find "$2" -name "$1*.kiln" | sort | head -n 1; }

# says TEXT: the output or complaint of the last expect has it
says()
{
    grep -qF -- "$1" "$work/out" "$work/err" || {
        fail "nothing says: $1"
        cat "$work/out" "$work/err"
    }
}

finish()
{
    [ $failures = 0 ] || { echo "$failures failed"; exit 1; }
    rm -rf "$work"
    echo ok
}
