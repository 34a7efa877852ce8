# turn K N, of a script with slices (slice.h): is it this run's turn for part K of N? Sourced.
turn() { [ "${KILN_TEST_SLICES:-1}" -eq 1 ] || [ $((${KILN_TEST_SEED:-0} % ${KILN_TEST_SLICES} % $2)) -eq "$1" ]; }
