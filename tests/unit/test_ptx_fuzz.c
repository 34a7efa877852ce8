/* The kernels of test_emit_fuzz.c, as PTX. */
#define CHECK_PTX
#include "tests/unit/test_emit_fuzz.c"
