#include "tests/cuda_driver/exec.h"
RUN(run_ldmatrix) { exec_violation(w, in, -1, CUDA_ERROR_ILLEGAL_INSTRUCTION, "ldmatrix"); }
RUN(run_mma) { exec_violation(w, in, -1, CUDA_ERROR_ILLEGAL_INSTRUCTION, "mma"); }
