/*
 * libkiln_test_aware.so: makes a CUDA-aware MPI of any, for the CUDA driver made of software (tests/cuda_driver). Preloaded, it says that the MPI takes
 * buffers on devices, and shows it where they lie. What is sent is read at once, when all that its stream was given before has to be over: else it
 * is memory that nobody wrote, and the call fails. Of MPI's functions messages alone are there: what else gets such an address ends the process.
 */
#include "tests/cuda_driver/test_cuda.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

#define API __attribute__((visibility("default")))

enum { MPI_ERR_BUFFER_ = 1 };

/* Handles are ints of one MPI and addresses of the other: both travel as a word. */
typedef uintptr_t Handle;

API int MPIX_Query_cuda_support(void);
API int MPI_Isend(const void *buffer, int count, Handle type, int to, int tag, Handle comm, void *request);
API int MPI_Irecv(void *buffer, int count, Handle type, int from, int tag, Handle comm, void *request);

int MPIX_Query_cuda_support(void) { return 1; }

static void *real(const char *name) { return dlsym(RTLD_DEFAULT, name); }

/* What lies there, in memory of this process; NULL: it may not be used. */
static void *shown(const void *buffer, int count, Handle type, bool write)
{
    const uint64_t at = (uint64_t)(uintptr_t)buffer;
    int (*type_size)(Handle, int *), size = 0;
    void *symbol = real("PMPI_Type_size");
    memcpy(&type_size, &symbol, sizeof symbol);
    if (at >> 40 != 0x70) /* where addresses of devices are */
        return (void *)(uintptr_t)buffer;
    type_size(type, &size);
    return test_cuda_access(at, (size_t)count * (size_t)size, write);
}

int MPI_Isend(const void *buffer, int count, Handle type, int to, int tag, Handle comm, void *request)
{
    int (*isend)(const void *, int, Handle, int, int, Handle, void *);
    void *symbol = real("PMPI_Isend"), *bytes = shown(buffer, count, type, false);
    memcpy(&isend, &symbol, sizeof symbol);
    return bytes || !buffer ? isend(bytes, count, type, to, tag, comm, request) : MPI_ERR_BUFFER_;
}

int MPI_Irecv(void *buffer, int count, Handle type, int from, int tag, Handle comm, void *request)
{
    int (*irecv)(void *, int, Handle, int, int, Handle, void *);
    void *symbol = real("PMPI_Irecv"), *bytes = shown(buffer, count, type, true);
    memcpy(&irecv, &symbol, sizeof symbol);
    return bytes || !buffer ? irecv(bytes, count, type, from, tag, comm, request) : MPI_ERR_BUFFER_;
}
