#!/bin/sh
# gated.sh LOGS PROGRAM ARGS...: runs a test program and fails when it fails or when any sanitizer wrote a report.
#
# Reports go to files LOGS.<pid> instead of stderr, because Criterion runs each test in a child whose report and exit code
# can get lost (a leak found at the child's exit does not fail the test). Any such file fails the run and is printed.
logs=$1
shift
mkdir -p "$(dirname "$logs")"
rm -f "$logs".*
common="log_path=$logs:exitcode=99"
here=$(dirname "$0")
ASAN_OPTIONS="$common:detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1:allocator_may_return_null=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
LSAN_OPTIONS="$common:suppressions=$here/lsan.supp:print_suppressions=0"
UBSAN_OPTIONS="$common:print_stacktrace=1:halt_on_error=1"
TSAN_OPTIONS="$common:halt_on_error=0:second_deadlock_stack=1:suppressions=$here/tsan.supp"
export ASAN_OPTIONS LSAN_OPTIONS UBSAN_OPTIONS TSAN_OPTIONS
"$@"
status=$?
for log in "$logs".*; do
    [ -f "$log" ] || continue
    echo "sanitizer report in $log:"
    head -n 100 "$log"
    status=98
done
exit $status
