#!/bin/sh
# expect_fail.sh TEXT COMMAND...: passes when the command fails and prints TEXT.
text=$1
shift
output=$("$@" 2>&1)
status=$?
if [ $status -eq 0 ]; then
    echo "the gate let a broken program pass: $*"
    echo "$output"
    exit 1
fi
case $output in
*"$text"*) exit 0 ;;
esac
echo "failed (status $status), but without '$text':"
echo "$output"
exit 1
