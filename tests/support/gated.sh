#!/bin/sh
# gated.sh LOGS PROGRAM ARGS...: runs a test program and fails when it fails or when any sanitizer wrote a report.
#
# Reports go to files LOGS.<pid> instead of stderr, because Criterion runs each test in a child whose report and exit code
# can get lost (a leak found at the child's exit does not fail the test). Any such file fails the run and is printed.
# One exception: Criterion's runner sometimes forgets a record of a child. A leak report in which no frame but the allocator
# and libcriterion occurs is the runner's own and does not count; a leak in a test has the test's frame in it.
#
# Slices (slice.h), for tests that have some: KILN_TEST_PARTS (tests/CMakeLists.txt, kiln_slices) says how many, KILN_TEST_SLICES=N asks for another number,
# KILN_TEST_SLICES=all for everything, without a limit of processor time. KILN_TEST_SEED is the number of the commit unless it is set. A test that is
# said to have slices and whose program does not look at KILN_TEST_SLICES fails: it would run the same, or all, each time.
#
# Time: KILN_TEST_CPU is how many seconds of processor time a process of the test may take, on a machine that counts to 200,000 in
# a shell in 0.15 s; a slower one gets more. Time by the clock has no limit but ctest's, which is for what hangs.
# Prints "cpu: SECONDS" at the end, for .ci/run.
logs=$1
shift
mkdir -p "$(dirname "$logs")"
rm -f "$logs".*
common="log_path=$logs:exitcode=99"
here=$(dirname "$0")
ASAN_OPTIONS="$common:detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1:allocator_may_return_null=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
# exitcode=0: a leak must not replace the exit status of the program, which may tell of a failed assertion; the file is enough.
# clang has one exit code for all sanitizers of a program, that of the last of these variables which names one.
LSAN_OPTIONS="log_path=$logs:exitcode=0:suppressions=$here/lsan.supp:print_suppressions=0"
UBSAN_OPTIONS="log_path=$logs:print_stacktrace=1:halt_on_error=1"
TSAN_OPTIONS="$common:halt_on_error=0:second_deadlock_stack=1:suppressions=$here/tsan.supp"
export ASAN_OPTIONS LSAN_OPTIONS UBSAN_OPTIONS TSAN_OPTIONS

# Is this a leak report about Criterion's runner and nothing else?
runners_own()
{
    awk '
        /ERROR: LeakSanitizer/ { leaks = 1; next }
        /ERROR:|WARNING:|runtime error/ { foreign = 1 }
        /^ *#[0-9]+ / && !/ in (__interceptor_)?(malloc|calloc|realloc|strdup|posix_memalign)[ (]/ && !/__interceptor_/ && !/libcriterion/ { foreign = 1 }
        END { exit !(leaks && !foreign) }' "$1"
}

# The number of the commit; of a shallow clone, which does not know it, some number; without git 0.
commit()
{
    case $(git -C "$here" rev-parse --is-shallow-repository 2>/dev/null) in
    false) git -C "$here" rev-list --count HEAD ;;
    true) echo $((0x$(git -C "$here" rev-parse HEAD | cut -c1-6))) ;;
    *) echo 0 ;;
    esac
}

again=
case ${KILN_TEST_PARTS:+${KILN_TEST_SLICES:-one}} in
'') unset KILN_TEST_SLICES KILN_TEST_SEED ;; # no slices: the same in each run
*)
    case ${KILN_TEST_SLICES:-one} in
    one) again="" KILN_TEST_SLICES=$KILN_TEST_PARTS ;;
    *) again="KILN_TEST_SLICES=$KILN_TEST_SLICES " ;;
    esac
    if [ "$KILN_TEST_SLICES" = all ]; then
        KILN_TEST_SLICES=1
        unset KILN_TEST_CPU
    fi
    obeys=
    for file in "$@"; do
        [ ! -f "$file" ] || ! grep -Eq "KILN_TEST_SLICES|support/turn.sh" "$file" || obeys=yes
    done
    [ -n "$obeys" ] || {
        echo "has slices in a CMakeLists.txt (kiln_slices), but does not look at KILN_TEST_SLICES"
        exit 1
    }
    KILN_TEST_SEED=${KILN_TEST_SEED:-$(commit)}
    again="${again}KILN_TEST_SEED=$KILN_TEST_SEED"
    export KILN_TEST_SLICES KILN_TEST_SEED
    echo "slice $((KILN_TEST_SEED % KILN_TEST_SLICES)) of $KILN_TEST_SLICES ($again)"
    ;;
esac

# KILN_TEST_SPEED (seconds.h): measured once for a build folder.
if [ -n "${KILN_TEST_CPU-}" ]; then
    speed=${TMPDIR:-/tmp}/kiln_speed
    if [ ! -s "$speed" ]; then
        sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done; times' |
            awk 'NR == 1 { split($1, t, /[ms]/); s = int((60 * t[1] + t[2]) * 100 / 0.15); print (s > 100) ? s : 100 }' > "$speed.$$"
        mv "$speed.$$" "$speed"
    fi
    KILN_TEST_SPEED=$(cat "$speed")
    export KILN_TEST_SPEED
    limit=$((KILN_TEST_CPU * KILN_TEST_SPEED / 100))
    ulimit -S -t "$limit"
fi

"$@"
status=$?
for log in "$logs".*; do
    [ -f "$log" ] || continue
    if runners_own "$log"; then
        continue
    fi
    echo "sanitizer report in $log:"
    head -n 100 "$log"
    status=98
done
if [ $status -ne 0 ]; then
    [ $status -ne 152 ] && [ $status -ne 137 ] || echo "more than $limit s of processor time"
    [ -z "$again" ] || echo "this slice again: $again ctest --test-dir BUILD -R '^${logs##*/logs/}\$'"
fi
times > "$logs.times" # not in a pipe, whose shell has no children
awk 'NR == 2 { split($1, u, /[ms]/); split($2, s, /[ms]/); printf "cpu: %.1f\n", 60 * (u[1] + s[1]) + u[2] + s[2] }' "$logs.times"
rm -f "$logs.times"
exit $status
