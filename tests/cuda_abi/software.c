/* What the software driver's cuda_api.h makes of the values that toolkit.c takes from cuda.h. See abi.h. */
#include "tests/cuda_abi/abi.h"
#include "tests/cuda_driver/cuda_api.h"

const AbiValue software_values[] = {
#define VALUE(value) {#value, (long long)(value)},
#include "tests/cuda_abi/values.def"
    {NULL, 0}};
