#!/bin/sh
# many.sh FOLDER TIMES: runs the programs of tests/exit so many times; each must end with status 0, whenever its main returns.
folder=$1 times=$2 failures=0 runs=0
try()
{
    runs=$((runs + 1))
    timeout 900 "$@" >/dev/null
    status=$?
    if [ $status -ne 0 ]; then
        echo "status $status: $*"
        failures=$((failures + 1))
    fi
}
i=0
while [ $i -lt "$times" ]; do
    for how in none used async; do
        try "$folder/exit_early" $how
    done
    for how in none used; do
        try "$folder/exit_global" $how
    done
    for threads in 1 3; do
        try "$folder/exit_threads" $threads $((i * i * 700))
    done
    i=$((i + 1))
done
echo "$((runs - failures)) of $runs processes ended well"
[ $failures -eq 0 ]
