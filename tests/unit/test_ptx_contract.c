/* The kernels of test_emit_contract.c, as PTX. */
#define CHECK_PTX
#include "tests/unit/test_emit_contract.c"
