# turn K, of a script with slices (slice.h): is slice K this run's? Scripts number their parts; with more slices than parts some runs have none. Sourced.
turn() { [ "${KILN_TEST_SLICES:-1}" -eq 1 ] || [ $((${KILN_TEST_SEED:-0} % ${KILN_TEST_SLICES})) -eq "$1" ]; }
