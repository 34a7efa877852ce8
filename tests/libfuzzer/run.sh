#!/bin/sh
# run.sh PROGRAM ARGUMENTS...: a fuzz target with the seed of the commit: what one run of a commit finds another one finds, too. (It has
# KILN_TEST_SEED for that; there is nothing that KILN_TEST_SLICES would cut.)
program=$1
shift
exec "$program" -seed=$((${KILN_TEST_SEED:-0} + 1)) "$@"
