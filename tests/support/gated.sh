#!/bin/sh
# gated.sh LOGS PROGRAM ARGS...: runs a test program and fails when it fails or when any sanitizer wrote a report.
#
# Reports go to files LOGS.<pid> instead of stderr, because Criterion runs each test in a child whose report and exit code
# can get lost (a leak found at the child's exit does not fail the test). Any such file fails the run and is printed.
# One exception: Criterion's runner sometimes forgets a record of a child. A leak report in which no frame but the allocator
# and libcriterion occurs is the runner's own and does not count; a leak in a test has the test's frame in it.
logs=$1
shift
mkdir -p "$(dirname "$logs")"
rm -f "$logs".*
common="log_path=$logs:exitcode=99"
here=$(dirname "$0")
ASAN_OPTIONS="$common:detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1:allocator_may_return_null=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
# exitcode=0: a leak must not replace the exit status of the program, which may tell of a failed assertion; the file is enough.
LSAN_OPTIONS="log_path=$logs:exitcode=0:suppressions=$here/lsan.supp:print_suppressions=0"
UBSAN_OPTIONS="$common:print_stacktrace=1:halt_on_error=1"
TSAN_OPTIONS="$common:halt_on_error=0:second_deadlock_stack=1:suppressions=$here/tsan.supp"
export ASAN_OPTIONS LSAN_OPTIONS UBSAN_OPTIONS TSAN_OPTIONS

# Is this a leak report about Criterion's runner and nothing else?
runners_own()
{
    awk '
        /ERROR: LeakSanitizer/ { leaks = 1; next }
        /ERROR:|WARNING:|runtime error/ { foreign = 1 }
        /^ *#[0-9]+ / && !/__interceptor_/ && !/libcriterion/ { foreign = 1 }
        END { exit !(leaks && !foreign) }' "$1"
}

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
exit $status
