/* What the software driver declares of the driver, against cuda.h. See abi.h. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include "tests/cuda_abi/abi.h"

#define RESULT(name, value, text) _Static_assert((int)name == (value), #name);
#include "tests/cuda_driver/cuda_results.def"
#define NUMBER(name, value) _Static_assert((int)name == (value), #name);
#include "tests/cuda_driver/cuda_numbers.def"
#define ATTRIBUTE(name, number, value) _Static_assert((int)CU_DEVICE_ATTRIBUTE_##name == (number), #name);
#include "tests/cuda_driver/cuda_attributes.def"

/* Each entry is declared, as one version or another. */
#define ENTRY(name, exported) _Static_assert(sizeof(&exported) == sizeof(void *), #exported);
#include "tests/cuda_driver/cuda_entries.def"

const char *const software_symbols[] = {
#define ENTRY(name, exported) #exported,
#include "tests/cuda_driver/cuda_entries.def"
#define ENTRY(name, exported) #name,
#include "tests/cuda_driver/cuda_entries.def"
    NULL};

const AbiValue toolkit_values[] = {
#define VALUE(value) {#value, (long long)(value)},
#include "tests/cuda_abi/values.def"
    {NULL, 0}};
